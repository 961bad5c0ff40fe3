"""placeholder"""
import typer


def command(context: typer.Context) -> None:
    """Placeholder."""
