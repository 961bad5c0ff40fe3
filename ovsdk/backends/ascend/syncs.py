"""Host synchronisations inside launches: how many there are, and on which line of the user's code.

torch_npu's tracer (`torch_npu.utils._npu_trace`, private; as seen in 2.13.0) calls back at every synchronisation of a stream, an
event or the device, on the thread that waits. `set_sync_debug_mode` misses most of them: `.cpu()`, blocking and pageable
copies, `Event.synchronize`, `torch.npu.synchronize`. The tracer's traits shape this file:

    it costs, and it loses errors       off by default: on, an operator takes some 2 us more, and an error of an operator whose
                                        arguments are temporaries arrives as "SystemError: error return without exception set"
    it cannot be switched off again     it is hooked once a process, and passes on to whoever calls a launch
    it calls before or after the wait   there is a count and a place, and no duration
    it swallows what a callback raises  a launch is refused when its function has returned
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ...errors import DeviceError, SchedulerProtocolError, refuse

MODES = ("off", "count", "warn", "refuse")
"""off: nothing is looked for. count: the report says where. warn: also a HostSyncWarning a line. refuse: the launch fails."""
SHOWN = 5
"""Places that a note names."""
KINDS = ("stream", "event", "device")
OURS = str(Path(__file__).parents[2]) + os.sep
MODELS = OURS + "models" + os.sep
"""Of our own code the models alone count as somebody's lines."""


class HostSyncWarning(RuntimeWarning):
    """A launch made the host wait for the device, on the line that the warning points at."""


class Sync(NamedTuple):
    """Where a launch waited, and for what."""

    launch: str
    """The launch's kind."""
    waited_for: str
    """"stream", "event" or "device"."""
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        if not self.line:
            return "native code that the launch calls"
        near = os.path.relpath(self.file) if self.file.startswith(os.getcwd() + os.sep) else self.file
        return f"{near}:{self.line} in {self.function}"


class _Heard(threading.local):
    """What this thread's current launch has waited for; None outside of launches."""

    found: list[tuple[str, str, int, str]] | None = None


_heard = _Heard()


def heard(waited_for: str) -> None:
    """The tracer's callback: note a synchronisation if this thread is in a launch."""
    if _heard.found is not None:
        _heard.found.append((waited_for, *_users_line(sys._getframe(1))))


@functools.cache
def listen() -> None:
    """Switch torch_npu's tracer on, once and for good. torch_npu has been imported."""
    import torch_npu
    from torch_npu.utils import _npu_trace as trace

    for kind in KINDS:
        register = getattr(trace, f"register_callback_for_npu_{kind}_synchronization")
        register(functools.partial(_any, kind), "ovsdk")
    torch_npu._C._activate_npu_trace(0)


def _any(waited_for: str, *_stream_or_event: int) -> None:
    heard(waited_for)


class Syncs:
    """Calls the functions of launches and keeps the synchronisations in them. Any thread; raises ConfigError for an unknown mode."""

    def __init__(self, mode: str, listen: Callable[[], None] = listen) -> None:
        if mode not in MODES:
            refuse("syncs", mode, MODES)
        if mode != "off":
            listen()
        self.mode = mode
        self.reset()

    def reset(self) -> None:
        """Forget: a new run begins."""
        self.launches = 0
        self.found: Counter[Sync] = Counter()
        self._warned: dict[Any, Any] = {}

    def call(self, launch: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """`fn(*args, **kwargs)` for a launch of this kind.

        Raises SchedulerProtocolError if it waited and that is refused; DeviceError for an error that the tracer has lost.
        """
        if self.mode == "off":
            return fn(*args, **kwargs)
        outer, _heard.found = _heard.found, []
        try:
            result = fn(*args, **kwargs)
        except SystemError as error:
            raise _lost(launch, error) from error
        finally:
            found, _heard.found = [Sync(launch, *sync) for sync in _heard.found], outer
            self.launches += 1
            self.found.update(found)
        if self.mode == "warn":
            self._warn(found)
        if self.mode == "refuse" and found:
            raise _refusal(found)
        return result

    def notes(self) -> tuple[str, ...]:
        """For the report: how many there were and where; empty if there were none."""
        if not self.found:
            return ()
        total, places = self.found.total(), self.found.most_common(SHOWN)
        more = len(self.found) - len(places)
        told = "; ".join(f"{sync} ({count} x {sync.waited_for}, {sync.launch})" for sync, count in places)
        return (f"{total} host synchronisations in {self.launches} launches: {told}{f'; and {more} other places' if more else ''}",)

    def _warn(self, found: list[Sync]) -> None:
        for sync in found:
            message = f"launch {sync.launch!r} waits here for the {sync.waited_for}: nothing is launched meanwhile"
            warnings.warn_explicit(message, HostSyncWarning, sync.file, sync.line, registry=self._warned)


def _lost(launch: str, error: SystemError) -> Exception:
    if "without exception set" not in str(error):
        return error
    return DeviceError(f"launch {launch!r} failed, and torch_npu's tracer has lost the error: run it with syncs='off' to see it")


def _refusal(found: list[Sync]) -> SchedulerProtocolError:
    first = found[0]
    return SchedulerProtocolError(
        f"launch {first.launch!r} made the host wait for the {first.waited_for} at {first} ({len(found)} such waits in it), which "
        "syncs='refuse' forbids: keep the value on the device, copy it with non_blocking=True, or take it from the step's result"
    )


def _users_line(frame: FrameType | None) -> tuple[str, int, str]:
    """File, line and function of the innermost frame that is not torch's, torch_npu's or ours, below the launch's call."""
    skipped = _skipped()
    while frame is not None and frame.f_code is not Syncs.call.__code__:
        file = frame.f_code.co_filename
        if file.startswith(MODELS) or not file.startswith(skipped):
            return file, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return "<native code>", 0, ""


@functools.cache
def _skipped() -> tuple[str, ...]:
    packages = (sys.modules.get(name) for name in ("torch", "torch_npu"))
    return (OURS, *(str(Path(package.__file__).parent) + os.sep for package in packages if package is not None and package.__file__))
