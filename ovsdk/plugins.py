"""The plugin door: who is loaded, who owns a name, whose fault an error is. With hookspecs.py the only user of pluggy.

Built-ins come in by the same door as anybody's plugin. There is no global manager: `plugin_manager()` makes one.
`OVSDK_PLUGINS=a,b` allows only those entry points; `OVSDK_TRACE_HOOKS=1` prints every hook call to stderr.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from . import hookspecs
from .errors import BackendUnavailable, ConfigError, HookFailed, OvsdkError, PluginConflict, PluginError, refuse

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ovsdk"
BUILTINS = ("ovsdk.builtin",)
KINDS = ("scheduler", "executor", "queue", "tiler")


class PluginManager(pluggy.PluginManager):
    """pluggy's manager, with errors that name the plugin's distribution and hooks that have one owner."""

    def __init__(self) -> None:
        super().__init__(GROUP)
        self.origin: dict[str, str] = {}
        """Plugin name -> where it came from, for people: a distribution and version, or a path."""
        self.add_hookspecs(hookspecs)

    def add(self, plugin: Any, name: str | None = None, origin: str = "given in code") -> None:
        """Register a plugin. Raises PluginError for a hook that does not exist or has arguments it cannot have."""
        name = name or str(getattr(plugin, "__name__", type(plugin).__name__))
        try:
            registered = self.register(plugin, name)
            self.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(f"plugin {name!r} ({origin}) is not valid: {error}", name, origin) from error
        except Exception as error:
            raise HookFailed(f"plugin {name!r} ({origin}) failed in ovsdk_configure: {_line(error)}", name, origin) from error
        self.origin[str(registered)] = origin

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call a hook. Raises HookFailed, naming plugin and distribution, if an implementation raises anything but an OvsdkError."""
        try:
            return getattr(self.hook, hook)(**arguments)
        except OvsdkError:
            raise
        except Exception as error:
            raise self._blame(hook, error) from error

    def _blame(self, hook: str, error: Exception) -> HookFailed:
        frames, trace = set(), error.__traceback__
        while trace:
            frames.add(trace.tb_frame.f_code)
            trace = trace.tb_next
        guilty = [i for i in getattr(self.hook, hook).get_hookimpls() if getattr(i.function, "__code__", None) in frames]
        name = guilty[-1].plugin_name if guilty else "unknown"
        origin = self.origin.get(name, "")
        return HookFailed(f"plugin {name!r} ({origin}) failed in {hook}: {_line(error)}", name, origin)

    def one(self, hook: str, what: str, **arguments: Any) -> Any:
        """The only answer to a hook that has one owner, or None. Raises PluginConflict naming all who answered."""
        answers = self.call(hook, **arguments)
        if len(answers) > 1:
            raise self._conflict(what, self._answering(hook, arguments))
        return answers[0] if answers else None

    def _answering(self, hook: str, arguments: Mapping[str, Any]) -> list[str]:
        plugins = [i.plugin for i in getattr(self.hook, hook).get_hookimpls()]
        alone = {self.get_name(p): self.subset_hook_caller(hook, [q for q in plugins if q is not p]) for p in plugins}
        return [str(name) for name, call in alone.items() if call(**arguments)]

    def _conflict(self, what: str, names: list[str]) -> PluginConflict:
        who = " and ".join(f"{name!r} ({self.origin.get(name, '?')})" for name in names)
        return PluginConflict(
            f"{what} is offered by {who}; uninstall one, or allow only one of them with OVSDK_PLUGINS",
            names[-1],
            self.origin.get(names[-1], ""),
        )

    def probe(self) -> dict[str, tuple[str | None, str]]:
        """Every backend looked at: name -> (None or why it cannot be opened, the plugin that offers it)."""
        found: dict[str, tuple[str | None, str]] = {}
        plugins = [i.plugin for i in self.hook.ovsdk_probe_backends.get_hookimpls()]
        for plugin in plugins:
            owner = str(self.get_name(plugin))
            for name, why in self._probe_one(owner, plugin, plugins).items():
                if name in found:
                    raise self._conflict(f"backend {name!r}", [found[name][1], owner])
                found[name] = (why, owner)
        return found

    def _probe_one(self, owner: str, plugin: Any, plugins: list[Any]) -> Mapping[str, str | None]:
        origin = self.origin.get(owner, "")
        try:
            (answer,) = self.subset_hook_caller("ovsdk_probe_backends", [p for p in plugins if p is not plugin])() or ({},)
        except Exception as error:
            raise HookFailed(f"plugin {owner!r} ({origin}) failed in ovsdk_probe_backends: {_line(error)}", owner, origin) from error
        if not isinstance(answer, Mapping):
            raise HookFailed(f"plugin {owner!r} ({origin}): ovsdk_probe_backends must return a mapping, got {answer!r}", owner, origin)
        return answer


def plugin_manager(plugins: Iterable[Any] = ()) -> PluginManager:
    """A new manager with built-ins, installed plugins (entry-point group `ovsdk`) and `plugins`.

    `plugins`: modules, objects with hookimpls, or paths of one-off plugin files.
    Raises PluginError for a plugin that cannot be imported, ConfigError for an allowed name that is not installed.
    """
    manager = PluginManager()
    if os.environ.get("OVSDK_TRACE_HOOKS", "") not in ("", "0"):
        manager.add_hookcall_monitoring(_trace_before, _trace_after)
    for name in BUILTINS:
        manager.add(importlib.import_module(name), name.removeprefix("ovsdk."), "ovsdk")
    for entry, origin in _allowed(_installed()):
        manager.add(_load(entry, origin), entry.name, origin)
    for plugin in plugins:
        if isinstance(plugin, (str, Path)):
            manager.add(_load_file(Path(plugin)), Path(plugin).stem, str(plugin))
        else:
            manager.add(plugin)
    config = {k: v for k, v in os.environ.items() if k.startswith("OVSDK_")}
    try:
        manager.hook.ovsdk_configure.call_historic(kwargs={"config": config})
    except Exception as error:
        raise manager._blame("ovsdk_configure", error) from error
    return manager


def open_backend(spec: str, *, plugins: Iterable[Any] | PluginManager = (), **options: Any) -> Any:
    """Open a backend: `"cpu"`, `"sim"`, `"ascend:0"` (name, optional device index), with its options by keyword.

    Raises BackendUnavailable (lists every backend looked at, with reason), ConfigError for an unknown option.
    """
    manager = plugins if isinstance(plugins, PluginManager) else plugin_manager(plugins)
    name, index = _parse(spec)
    reasons = {known: why for known, (why, _) in manager.probe().items()}
    if reasons.get(name, "unknown") is not None:
        raise BackendUnavailable(name, reasons)
    if isinstance(options.get("prices"), str):  # a plugin may own a price file of that name; any other is the backend's to find
        options["prices"] = manager.one("ovsdk_prices", f"price file {options['prices']!r}", name=options["prices"]) or options["prices"]
    backend = manager.one("ovsdk_open_backend", f"backend {name!r}", name=name, index=index, options=options)
    if backend is None:
        owner = manager.probe()[name][1]
        raise HookFailed(f"plugin {owner!r} offers backend {name!r} but did not open it", owner, manager.origin.get(owner, ""))
    backend.plugins = manager
    return backend


def make(kind: str, name: str, options: Mapping[str, Any] | None = None, *, plugins: Iterable[Any] | PluginManager = ()) -> Any:
    """Make the scheduler, executor, queue or tiler that a plugin calls `name`.

    Raises ConfigError if nobody knows the name, PluginConflict if two do.
    """
    if kind not in KINDS:
        refuse("kind of object", kind, KINDS)
    manager = plugins if isinstance(plugins, PluginManager) else plugin_manager(plugins)
    made = manager.one(f"ovsdk_make_{kind}", f"{kind} {name!r}", name=name, options=dict(options or {}))
    if made is None:
        asked = ", ".join(sorted(str(i.plugin_name) for i in getattr(manager.hook, f"ovsdk_make_{kind}").get_hookimpls()))
        raise ConfigError(f"no plugin knows a {kind} called {name!r}; asked: {asked or 'none implements the hook'}; see `ovsdk hooks`")
    return made


def _parse(spec: str) -> tuple[str, int]:
    name, _, index = spec.partition(":")
    if index and not index.isdecimal():
        raise ConfigError(f"a backend is NAME or NAME:INDEX, as in 'ascend:0'; got {spec!r}")
    return name, int(index or 0)


@functools.cache
def _installed() -> tuple[tuple[EntryPoint, str], ...]:
    from importlib import metadata  # slow to import, and needed only to open something

    return tuple(
        (entry, f"{dist.metadata['Name']} {dist.version}")
        for dist in metadata.distributions()
        for entry in dist.entry_points
        if entry.group == GROUP
    )


def _allowed(entries: Iterable[tuple[EntryPoint, str]]) -> list[tuple[EntryPoint, str]]:
    named = os.environ.get("OVSDK_PLUGINS")
    entries = list(entries)
    if named is None:
        return entries
    wanted = {name.strip() for name in named.split(",") if name.strip()}
    missing = wanted - {entry.name for entry, _ in entries}
    if missing:
        refuse("plugin in OVSDK_PLUGINS", sorted(missing)[0], (entry.name for entry, _ in entries))
    return [(entry, origin) for entry, origin in entries if entry.name in wanted]


def _load(entry: EntryPoint, origin: str) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise PluginError(
            f"plugin {entry.name!r} of {origin} cannot be imported: {_line(error)}; mend or uninstall it, or leave it out of OVSDK_PLUGINS",
            entry.name,
            origin,
        ) from error


def _load_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise ConfigError(f"plugin file {str(path)!r} does not exist")
    name = f"ovsdk_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"plugin file {str(path)!r} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PluginError(f"plugin file {str(path)!r} cannot be imported: {_line(error)}", path.stem, str(path)) from error
    return module


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _trace_before(hook: str, impls: Iterable[Any], arguments: Mapping[str, Any]) -> None:
    who = ", ".join(str(i.plugin_name) for i in impls)
    print(f"{hook}({', '.join(f'{k}={v!r:.60}' for k, v in arguments.items())}) -> [{who}]", file=sys.stderr)


def _trace_after(outcome: Any, hook: str, _impls: Iterable[Any], _arguments: Mapping[str, Any]) -> None:
    result = repr(outcome.exception) if outcome.exception else f"{outcome.get_result()!r:.100}"
    print(f"{hook} = {result}", file=sys.stderr)
