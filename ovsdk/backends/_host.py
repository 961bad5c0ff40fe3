"""Real time for devices that live in this process: signals are locks, and setting one does not let go of the GIL.

That matters: a device thread that publishes step k holds the GIL and must start step k+1 before anyone else runs. A
system call (a byte in a pipe) would hand the GIL to the woken host, and the device would wait up to a switch interval
(5 ms) to get it back. Releasing a lock does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..interfaces import Future, Signal

POLL_S = (50e-6, 1e-3)


class Wake:
    """What one sleeper sleeps on: a lock that is held while nobody has called `set`."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the sleeper, or have its next `pause` return at once. Any thread."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # released already: the sleeper has not come by yet

    def clear(self) -> None:
        """Forget earlier calls of `set`. The sleeper only, before it looks at what it waits for."""
        self._lock.acquire(blocking=False)

    def pause(self, timeout_s: float) -> None:
        """Sleep until `set` or the timeout."""
        self._lock.acquire(timeout=timeout_s)


class HostClock:
    """The machine's monotonic clock. `wait` sleeps on one lock, which futures and signals release: one waiter at a time.

    `poll_s`: first and longest pause between two looks at a future that cannot call back.
    """

    def __init__(self, poll_s: tuple[float, float] = POLL_S) -> None:
        self.now_ns, self._poll_s = time.perf_counter_ns, poll_s
        self.woken = Wake()

    def lap(self, stage: int, step: int, features: Mapping[str, float] | None) -> int:
        """Read the clock: the stage has already taken its time."""
        return time.perf_counter_ns()

    def signal(self) -> ClockSignal:
        """A signal that ends this clock's `wait`."""
        return ClockSignal(self.woken)

    def wait(self, futures: Sequence[Future], signal: Signal | None, deadline_ns: int | None) -> int:
        """See `Clock.wait`. Futures without `add_done_callback` are polled with a growing pause."""
        pause_s, longest_s = self._poll_s if self._polled(futures) else (3600.0, 3600.0)
        now_ns = time.perf_counter_ns()
        while True:
            self.woken.clear()
            if (futures and all(f.done() for f in futures)) or (signal is not None and signal.is_set()):
                return time.perf_counter_ns()
            if deadline_ns is not None and now_ns >= deadline_ns:
                return now_ns
            self.woken.pause(pause_s if deadline_ns is None else min(pause_s, (deadline_ns - now_ns) / 1e9))
            pause_s, now_ns = min(pause_s * 2, longest_s), time.perf_counter_ns()

    def _polled(self, futures: Sequence[Any]) -> bool:
        """Whether one of them must be looked at. Has every future that can call back wake this clock."""
        polled = False
        for future in futures:
            if getattr(future, "wakes", None) is not self.woken:
                call_back = getattr(future, "add_done_callback", None)
                polled = polled or call_back is None
                if call_back is not None:
                    call_back(lambda _: self.woken.set())
        return polled


class ClockSignal:
    """A flag of its own on a clock's common lock."""

    __slots__ = ("_flag", "_woken")

    def __init__(self, woken: Wake) -> None:
        self._woken, self._flag = woken, False

    def set(self) -> None:
        """Raise the flag and wake the clock's waiter. Any thread."""
        self._flag = True
        self._woken.set()

    def clear(self) -> None:
        """Lower the flag."""
        self._flag = False

    def is_set(self) -> bool:
        """Whether the flag is up."""
        return self._flag
