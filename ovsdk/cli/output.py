"""How commands print: a table for people, one JSON value for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a script that wants JSON need not wait for what draws tables
    from rich.console import Console

WIDTH = 120


def print_json(value: Any) -> None:
    """One JSON value on stdout, nothing else."""
    print(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """A plain table; columns whose name begins with '>' are aligned right."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console().print(table)


def console() -> Console:
    """The console on stdout: no markup in texts, no highlighting of numbers."""
    from rich.console import Console

    return shaped(Console(markup=False, highlight=False))


def shaped(console: Console) -> Console:
    """The same console; where it is no terminal, which rich takes for 80 columns wide, lines may be longer."""
    if not console.is_terminal:
        console.width = WIDTH
    return console


def number(value: float | None, digits: int) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
