"""The command line: one module per command. `--json` everywhere; exit 0 fine, 1 a check or a run failed, 2 misuse.

A plugin adds commands with the hook `ovsdk_cli`; `--plugin FILE.py` loads a one-off one, before any command.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import typer

from ..errors import BackendUnavailable, ConfigError, OvsdkError, PluginError, ProfileError
from ..plugins import PluginManager, plugin_manager
from . import backends, demo, hooks, simulate

MISUSE = (ConfigError, BackendUnavailable, PluginError, ProfileError)
COMMANDS: Mapping[str, Callable[..., None]] = {
    "demo": demo.command,
    "simulate": simulate.command,
    "backends": backends.command,
    "hooks": hooks.command,
}
PLUGIN = "--plugin"


def application(plugins: Iterable[Any] = ()) -> typer.Typer:
    """The `ovsdk` command with built-in commands and those of plugins."""
    manager = plugin_manager(plugins)
    app = typer.Typer(
        help="Overlap scheduling: run, simulate, inspect.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )

    @app.callback()
    def options(
        context: typer.Context,
        _plugin: list[str] = typer.Option([], PLUGIN, metavar="FILE.py", help="Load a one-off plugin file (may be repeated)."),  # noqa: B008
    ) -> None:
        context.obj = manager  # the files were loaded before the commands were made

    for name, command in COMMANDS.items():
        app.command(name, cls=Spread)(command)
    manager.call("ovsdk_cli", app=app)
    return app


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
