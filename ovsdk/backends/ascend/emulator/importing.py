"""Acting when a module is imported, right before or after it: how a process comes to the emulated NPU without asking for it.

Standard library only: every Python process under `ovsdk emulate` loads this file at its start (see site/sitecustomize.py).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from typing import Any, cast


def nothing() -> None:
    """Do nothing."""


class Around:
    """A finder that calls `before` and `after` once, around the import of the module `name`. To look a module up is no import."""

    def __init__(self, name: str, before: Callable[[], object] = nothing, after: Callable[[], object] = nothing) -> None:
        self.name, self.before, self.after = name, before, after

    def watch(self) -> None:
        """From now on."""
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`: what the other finders say, with a loader that acts."""
        if name != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.watch()
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Loader, _Loader(spec.loader, self))
        return spec


class _Loader:
    """A module's own loader, with something before and after it."""

    def __init__(self, loader: Any, around: Around) -> None:
        self._loader, self._around = loader, around

    def create_module(self, spec: ModuleSpec) -> Any:
        if self._around in sys.meta_path:
            sys.meta_path.remove(self._around)
        self._around.before()
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._around.after()

    def __getattr__(self, name: str) -> Any:  # is_package, get_resource_reader, ...
        return getattr(self._loader, name)
