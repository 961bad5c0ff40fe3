"""`ovsdk hooks`: every hook, its arguments, and who implements it."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from .. import hookspecs
from ..plugins import PluginManager
from .output import print_json, print_table


def command(context: typer.Context, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List hooks: arguments, who implements them, what they are for."""
    manager: PluginManager = context.obj
    rows: list[dict[str, Any]] = [
        {
            "hook": name,
            "arguments": list(inspect.signature(spec).parameters),
            "implementers": {
                str(i.plugin_name): manager.origin.get(i.plugin_name, "") for i in getattr(manager.hook, name).get_hookimpls()
            },
            "about": (inspect.getdoc(spec) or "").partition("\n")[0],
        }
        for name, spec in vars(hookspecs).items()
        if name.startswith("ovsdk_")
    ]
    if as_json:
        print_json({"hooks": rows})
    else:
        print_table(
            ["hook", "implemented by", "what for"],
            [
                (
                    f"{r['hook']}({', '.join(r['arguments'])})",
                    ", ".join(f"{n} ({d})" for n, d in r["implementers"].items()) or "-",
                    r["about"],
                )
                for r in rows
            ],
        )
