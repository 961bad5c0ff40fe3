"""Everything that ovsdk raises on purpose: one tree, rooted in `OvsdkError`.

A message says what happened, the value seen, what is allowed and what to do. A class inherits the builtin
that a caller would catch anyway. Foreign errors are mapped where they come in, `from` their cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn


class OvsdkError(Exception):
    """Base of every error that ovsdk raises on purpose."""


class ConfigError(OvsdkError, ValueError):
    """You asked for something that does not exist or cannot be: fix the call; the message lists what is allowed."""


class BackendUnavailable(OvsdkError, LookupError):
    """No such backend here. `.name` was asked for, `.reasons` says why each known one is usable (None) or not."""

    def __init__(self, name: str, reasons: Mapping[str, str | None]) -> None:
        self.name, self.reasons = name, dict(reasons)
        known = "".join(f"\n  {known}: {why or 'available'}" for known, why in sorted(reasons.items()))
        hint = "" if name in reasons else guess(name, reasons)
        super().__init__(f"backend {name!r} cannot be opened here{hint}. Looked at:{known or ' nothing (no plugin offers a backend)'}")

    def __reduce__(self) -> Any:
        return type(self), (self.name, self.reasons)


class PluginError(OvsdkError):
    """A plugin is at fault, not you: `.plugin` is its name, `.distribution` the package to report it to."""

    def __init__(self, message: str, plugin: str = "", distribution: str = "") -> None:
        super().__init__(message)
        self.plugin, self.distribution = plugin, distribution


class PluginConflict(PluginError):
    """Two plugins own one name: uninstall one, or allow only the other with OVSDK_PLUGINS."""


class HookFailed(PluginError):
    """A plugin's hook raised (see `__cause__`) or answered what its hook does not allow."""


class ProtocolError(OvsdkError):
    """Somebody broke the rules of the pipeline; the subclass says who. The ledger is unchanged."""


class DriverError(ProtocolError):
    """The loop asked the ledger for an illegal move: a bug in a driver, please report it."""


class BackendProtocolError(ProtocolError):
    """A device reported what cannot be: a bug in a backend, please report it to its authors."""


class SchedulerProtocolError(ProtocolError):
    """A scheduler or an executor answered what its interface does not allow; see `ovsdk.interfaces`."""


class ReplayDiverged(ProtocolError):
    """A replayed run took another decision, or computed another result, than its log holds."""


class StepError(OvsdkError):
    """A step failed: `.step`, `.stage`, `.batch`; `__cause__` is what was raised; `.later` are steps that failed while draining."""

    def __init__(self, step: int, stage: str, batch: Any = None, why: str = "") -> None:
        super().__init__(f"step {step} failed in {stage}: {why}; batch: {_short(batch)}")
        self.step, self.stage, self.batch, self.why = step, stage, batch, why
        self.later: tuple[StepError, ...] = ()

    def __reduce__(self) -> Any:
        return type(self), (self.step, self.stage, self.batch, self.why)


class DeviceError(OvsdkError):
    """The device failed; `.code` is the runtime's own code where it has one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class DeviceLost(DeviceError):
    """The device is gone and nothing in flight will come back: close the backend and open it again."""


class DeviceMemoryExhausted(DeviceError, MemoryError):
    """The device has no memory left for a launch or a load: make batches or caches smaller."""


class DeviceTimeout(DeviceError, TimeoutError):
    """A launch was not done by its deadline: raise `timeout_s` if it may take that long, else treat the device as lost."""


class TilingError(OvsdkError):
    """No legal tiling: the message names the kernel, the limits and the first constraint that failed."""


class ProfileError(OvsdkError, ValueError):
    """A price or profile file is wrong: the message names file, key, value and what is allowed."""


class SimulationError(OvsdkError):
    """The simulator cannot go on."""


class Deadlock(SimulationError):
    """Nothing can ever happen again in virtual time; the message lists who waits for what."""


class CostUnknown(SimulationError, LookupError):
    """The price file has no price for this; the message lists what is priced."""


def guess(seen: str, allowed: Iterable[str]) -> str:
    """' (did you mean ...?)' where a known word is near, else ''."""
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(seen, list(allowed), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def refuse(what: str, seen: object, allowed: Iterable[str]) -> NoReturn:
    """Raise the ConfigError that names the value seen, the nearest allowed one and all that are allowed."""
    allowed = sorted(allowed)
    raise ConfigError(f"unknown {what} {seen!r}{guess(str(seen), allowed)}; allowed: {', '.join(allowed) or 'none'}")


def _short(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
