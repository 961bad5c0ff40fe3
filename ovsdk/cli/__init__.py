"""The command line: one module per command. `--json` everywhere; exit 0 fine, 1 a check or a run failed, 2 misuse.

A command's module is imported when the command is called, or listed by `--help`: one command does not wait for what
another one needs. A plugin adds commands with the hook `ovsdk_cli`; `--plugin FILE.py` loads a one-off one, before any.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import typer
import typer.core
import typer.main

from ..errors import BackendUnavailable, ConfigError, OvsdkError, PluginError, ProfileError, TilingError
from ..plugins import PluginManager, plugin_manager

MISUSE = (ConfigError, BackendUnavailable, PluginError, ProfileError, TilingError)
COMMANDS = ("demo", "simulate", "sweep", "tile", "emulate", "doctor", "backends", "hooks")
"""Each is the function `command` of the module of its name, or what its function `group` gives."""
PLUGIN = "--plugin"


def application(plugins: Iterable[Any] = ()) -> typer.Typer:
    """The `ovsdk` command with built-in commands and those of plugins."""
    manager = plugin_manager(plugins)
    app = typer.Typer(
        cls=Commands,
        help="Overlap scheduling: run, simulate, inspect.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        context: typer.Context,
        _plugin: list[str] = typer.Option([], PLUGIN, metavar="FILE.py", help="Load a one-off plugin file (may be repeated)."),  # noqa: B008
    ) -> None:
        context.obj = manager  # the files were loaded before the commands were made

    manager.call("ovsdk_cli", app=app)
    return app


class Commands(typer.core.TyperGroup):
    """The commands of this package, and those that plugins have added."""

    def list_commands(self, ctx: Any) -> list[str]:
        """See click."""
        return [*COMMANDS, *(name for name in super().list_commands(ctx) if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click."""
        return built_in(cmd_name) if cmd_name in COMMANDS else super().get_command(ctx, cmd_name)


def built_in(name: str) -> Any:
    """A command of this package, or a group of them; its module is imported now."""
    module = import_module(f".{name}", __name__)
    if hasattr(module, "group"):
        return module.group()
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Spread)(module.command)
    return typer.main.get_command(alone)


class Spread(typer.core.TyperCommand):
    """A command whose repeatable options also take several values at once: `--depth 1 2 3` is `--depth 1 --depth 2 --depth 3`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click."""
        names = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        return super().parse_args(ctx, spread(args, names))


def spread(args: Sequence[str], names: set[str]) -> list[str]:
    """Repeat an option of `names` before each of its values but the first: they end at the next word that begins with '-'."""
    out: list[str] = []
    option, values = "", 0
    for word in args:
        if word.startswith("-") and not word[1:].isdecimal():
            option, values = word if word in names else "", 0
        elif option:
            out += [option] if values else []
            values += 1
        out.append(word)
    return out


def manager_of(context: typer.Context) -> PluginManager:
    """The plugin manager of this call of the command line."""
    manager: PluginManager = context.obj
    return manager


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    # A device plugin of torch starts by itself when torch is imported, and fails where its driver is absent; a backend imports its own.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        application(_plugin_files(args))(args, prog_name="ovsdk", standalone_mode=True)
    except OvsdkError as error:
        sys.exit(_tell(error, "--json" in args))
    except BrokenPipeError:  # the reader, a pager or `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _plugin_files(args: Sequence[str]) -> list[str]:
    """Files named by --plugin: they must be loaded before the commands exist."""
    after = [value for option, value in pairwise(args) if option == PLUGIN]
    return after + [word.partition("=")[2] for word in args if word.startswith(f"{PLUGIN}=")]


def _tell(error: OvsdkError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
    print(f"ovsdk: {type(error).__name__}: {error}", file=sys.stderr)
    return 2 if isinstance(error, MISUSE) else 1
