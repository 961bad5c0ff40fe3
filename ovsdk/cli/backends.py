"""`ovsdk backends`: every backend that a plugin offers, and why it cannot be opened here, if so."""

from __future__ import annotations

import typer

from ..plugins import PluginManager
from .output import print_json, print_table


def command(context: typer.Context, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List backends: available or why not, and which plugin offers them."""
    manager: PluginManager = context.obj
    rows = [
        {"name": name, "available": why is None, "reason": why, "plugin": owner, "distribution": manager.origin.get(owner, "")}
        for name, (why, owner) in sorted(manager.probe().items())
    ]
    if as_json:
        print_json({"backends": rows})
    else:
        print_table(
            ["backend", "available", "plugin", "distribution"],
            [(r["name"], "yes" if r["available"] else f"no: {r['reason']}", r["plugin"], r["distribution"]) for r in rows],
        )
