"""`ovsdk tile emit OP --target cpp|aicpu`: an operator's derivation as C++ sources."""

from __future__ import annotations

from pathlib import Path

import typer

from ..tiling.emit import TARGETS, write
from ..tiling.operator import operator_named
from .output import print_json

TOLD = "; ".join(f"{name}: {what}" for name, what in TARGETS.items())


def command(
    operator: str = typer.Argument(..., metavar="OP", help="An operator: see `ovsdk tile --help`."),
    target: str = typer.Option("cpp", "--target", help=TOLD),
    out: Path = typer.Option(Path("."), "--out", metavar="FOLDER", help="Where to write; what is there with another text is not replaced."),  # noqa: B008
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Write an operator's tiling as C++ sources: for any host, or for the device's AICPU."""
    files = [str(path) for path in write(operator_named(operator), target, out)]
    if as_json:
        print_json({"op": operator, "target": target, "files": files})
    else:
        print("\n".join(f"wrote {file}" for file in files))
