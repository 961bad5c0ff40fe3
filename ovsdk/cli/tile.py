"""`ovsdk tile OP SHAPE...`: how an operator is cut; `ovsdk tile ops`: which Ascend operators need values for that; `ovsdk tile emit`.

Each operator is a command of this group, found by its name when it is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import typer
import typer.core
import typer.main

from ..errors import TilingError
from ..plugins import PluginManager, make
from ..tiling.operator import OPERATORS, Operator, loads, operator_named
from ..tiling.platform import DEFAULT, PLATFORMS
from ..tiling.spec import PLACEMENTS, Tiling, TilingSpec, tiling_spec
from ..tiling.tiler import AUTO
from .output import console, print_json, print_table

OTHERS = {"ops": "tile:ops", "emit": "emit:command"}
"""Commands of the group that are no operator: module and function in this folder."""
TILER = "auto"
"""The built-in tiler's name."""


class Operators(typer.core.TyperGroup):
    """A command for each operator, and those of OTHERS."""

    def list_commands(self, ctx: Any) -> list[str]:
        """See click."""
        return [*OPERATORS, *OTHERS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click. An operator that a tiler of a plugin brings is taken too: what the name means is asked when it is called."""
        module, _, name = OTHERS.get(cmd_name, "tile:tile").partition(":")
        about = operator_named(cmd_name).about if cmd_name in OPERATORS else None
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name, help=about)(getattr(import_module(f"..{module}", __name__), name))
        return typer.main.get_command(alone)


def group() -> Any:
    """The group, as a command of click."""
    about = "How an operator's work is cut over cores, and where that is computed."
    app = typer.Typer(name="tile", cls=Operators, help=about, no_args_is_help=True, add_completion=False)

    @app.callback()
    def options() -> None:
        """Nothing but its commands."""

    return typer.main.get_command(app)


def tile(
    context: typer.Context,
    shapes: list[str] = typer.Argument(..., metavar="SHAPE...", help="Of each input: 8x512x4096."),  # noqa: B008
    dtype: list[str] = typer.Option(["float16"], "--dtype", help="Of all inputs, or one for each."),  # noqa: B008
    attribute: list[str] = typer.Option([], "--attr", metavar="NAME=INT", help="An attribute of the operator (may be repeated)."),  # noqa: B008
    values: str | None = typer.Option(None, "--values", metavar="INT,INT,...", help="The values that decide: they are on the host."),
    capacity: int | None = typer.Option(None, "--capacity", help="Most values that there will be; left out: as many as are given, or 8."),
    soc: str = typer.Option(DEFAULT, "--soc", help=f"{', '.join(PLATFORMS)}, or a platform file (.toml, .json)."),
    placement: str = typer.Option(AUTO, "--placement", help=f"{AUTO}, {', '.join(PLACEMENTS)}."),
    prices: str = typer.Option("", "--prices", help="Price file that auto asks the simulator with."),
    priced_as: str = typer.Option("", "--priced-as", help="The operator's name in it; left out: its own."),
    tiler: str = typer.Option(TILER, "--tiler", help="A tiler that a plugin makes."),
    explained: bool = typer.Option(False, "--explain", help="Show who does what on which core."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show how this operator is cut: cores, workspace, record."""
    name, known = str(context.info_name), None if values is None else integers("--values", values)
    most = capacity if capacity is not None else len(known or ()) or 8
    spec = tiling_spec(name, map(_shape, shapes), dtype[0] if len(dtype) == 1 else dtype, most)
    spec = spec._replace(attributes=tuple(sorted(map(_attribute, attribute))))
    options: dict[str, Any] = {"platform": soc, "placement": placement}
    options |= {"prices": prices, "priced_as": {name: priced_as or name}} if prices else {}
    manager: PluginManager = context.obj
    made = make("tiler", tiler, options, plugins=manager)
    found = made.tile(spec, known)
    if as_json:
        print_json(as_dict(made, spec, found, known))
    else:
        show(made, spec, found, known, explained)


def as_dict(made: Any, spec: TilingSpec, tiling: Tiling, known: Sequence[int] | None) -> dict[str, Any]:
    """A tiling for scripts, with its figures where the record is known."""
    op = made.operator(spec.op)
    told = {"op": spec.op, "shapes": spec.shapes, "dtypes": spec.dtypes, "soc": made.platform.name, "placement": tiling.placement}
    told |= {"block_dim": tiling.block_dim, "key": tiling.key, "workspace": tiling.workspace, "length": tiling.length}
    return told | {"worst_case": made.worst_case(spec)._asdict(), "record": list(tiling.record) or None, **_figures(op, tiling, known)}


def _figures(op: Operator, tiling: Tiling, known: Sequence[int] | None) -> dict[str, Any]:
    if not tiling.record:
        return {"makespan": None, "lower_bound": None}
    most = max(loads(op, tiling.args, known or (), tiling.record), default=0)
    return {"makespan": most, "lower_bound": op.lower_bound(tiling.args, known or ())}


def show(made: Any, spec: TilingSpec, tiling: Tiling, known: Sequence[int] | None, explained: bool) -> None:
    """A tiling for people."""
    from ..tiling.explain import explain

    op = made.operator(spec.op)
    text = explain(op, tiling, known or ())
    shown = text if explained else "\n".join(text.splitlines()[:3])
    shapes = " ".join("x".join(map(str, shape)) or "scalar" for shape in spec.shapes)
    print(f"{shapes} {', '.join(dict.fromkeys(spec.dtypes))} on {made.platform.name}")
    console().print(shown, soft_wrap=True)
    if tiling.record and not explained:
        print_table(["field", ">value", "what it is"], list(fields(op, tiling)))
        rows = len(tiling.record) - op.begin
        if rows:
            print(f"and a table of {rows // op.width} rows: {', '.join(field.name for field in op.row)}")


def fields(op: Operator, tiling: Tiling) -> Iterator[tuple[str, str, str]]:
    """Name, value and meaning of each field of a record."""
    at = 0
    for field in op.header:
        some = tiling.record[at : at + field.size]
        yield field.name, " ".join(map(str, some)), field.about
        at += field.size


def ops(
    name: str = typer.Argument("", metavar="[NAME]", help="An operator: reduce_sum, or ReduceSum; left out: all."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Ascend operators whose inputs decide by value, and where their tiling may be computed."""
    from ..tiling.table import find, table

    rows = find(name) if name else table()
    if as_json:
        print_json({"ops": [row._asdict() | {"inputs": [one._asdict() for one in row.inputs]} for row in rows]})
        return
    inputs = [", ".join(f"{one.name}{' (constant)' if one.constant else ''}" for one in row.inputs) or "-" for row in rows]
    print_table(
        ["operator", "inputs that decide", "tiling", "repository"],
        [(row.op, told, row.tiling or "-", row.repo) for row, told in zip(rows, inputs, strict=True)],
    )
    sinks = sum(row.sinks for row in rows)
    print(f"{len(rows)} operators; the tiling of {sinks} may sink to the device's AICPU. Read from registrations, see ovsdk.tiling.table")


def integers(what: str, text: str) -> tuple[int, ...]:
    """Integers with commas between them; none is an empty text. Raises TilingError."""
    try:
        return tuple(int(one) for one in text.split(",") if text)
    except ValueError as error:
        raise TilingError(f"{what} is integers with commas between them, as in {what}=-1,2; got {text!r}") from error


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split("x") if text not in ("", "scalar"))
    except ValueError as error:
        raise TilingError(f"a shape is sizes with an x between them, as in 8x512x4096, or `scalar`; got {text!r}") from error


def _attribute(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name.isidentifier() or not value.lstrip("-").isdecimal():
        raise TilingError(f"an attribute is NAME=INT, as in --attr transposed=1; got {text!r}")
    return name, int(value)
