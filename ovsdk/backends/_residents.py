"""Objects that `Backend.load` built in this process, for backends whose device is this process: by key, never by luck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from ..types import RESIDENT_KEYS, Launch, Method, Resident


class Residents:
    """What one backend has loaded."""

    def __init__(self) -> None:
        self._built: dict[int, Any] = {}

    def add(self, built: Any) -> Resident:
        """Keep an object and return its handle, which knows the names of its methods."""
        key = next(RESIDENT_KEYS)
        self._built[key] = built
        return Resident(key, frozenset(n for n in dir(built) if not n.startswith("__") and callable(getattr(built, n))))

    def function(self, launch: Launch) -> Callable[..., Any]:
        """What `launch.fn` names. Raises ConfigError for a method of an object that was not loaded here."""
        fn = launch.fn
        if not isinstance(fn, Method):
            return fn
        if fn.resident not in self._built:
            raise ConfigError(f"launch {launch.kind!r}: {fn!r} is of an object that this backend did not load; use backend.load")
        return getattr(self._built[fn.resident], fn.name)  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Let all of them go."""
        self._built.clear()
