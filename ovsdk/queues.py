"""Where requests arrive. Thread-safe; the wake is level-triggered: what was put stays until an ask takes it.

Arrivals are stamped by the *ask* that first saw them, not by its step: after IDLE or WAIT several asks concern one
step, and a log stamped by step could not tell them apart.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterable
from typing import Any

from .errors import ConfigError
from .interfaces import Signal
from .types import Ask


class AdmissionQueue:
    """Requests for a running driver: `put` and `abort` from any thread, `close` when no more will come.

    `arrivals`: (seconds since the run began, request) pairs that come by themselves, in real or virtual time.
    """

    def __init__(self, arrivals: Iterable[tuple[float, Any]] = ()) -> None:
        self.signal: Signal | None = None
        self._lock, self._order = threading.Lock(), itertools.count()
        self._requests: list[Any] = []
        self._aborts: list[Any] = []
        self._timed: list[tuple[float, int, Any]] = []
        self._closed = False
        for at_s, request in arrivals:
            self.put(request, at_s)

    def put(self, request: Any, at_s: float | None = None) -> None:
        """Add a request, now or at a time of the run. Raises ConfigError after `close`."""
        with self._lock:
            self._refuse_if_closed(request)
            if at_s is None:
                self._requests.append(request)
            else:
                heapq.heappush(self._timed, (at_s, next(self._order), request))
        self._wake()

    def abort(self, request: Any) -> None:
        """Tell the scheduler, with its next ask, that a request is not wanted any more (whatever identifies it there)."""
        with self._lock:
            self._refuse_if_closed(request)
            self._aborts.append(request)
        self._wake()

    def close(self) -> None:
        """No more will be put. A run that is idle then ends; what was put before is still served."""
        with self._lock:
            self._closed = True
        self._wake()

    def take(self, number: int, step: int, now_s: float) -> Ask:
        """See `Admission.take`."""
        with self._lock:
            while self._timed and self._timed[0][0] <= now_s:
                self._requests.append(heapq.heappop(self._timed)[2])
            ask = Ask(number, step, now_s, tuple(self._requests), tuple(self._aborts))
            self._requests.clear()
            self._aborts.clear()
        return ask

    def ready(self, now_s: float) -> bool:
        """See `Admission.ready`."""
        with self._lock:
            return bool(self._requests or self._aborts or (self._timed and self._timed[0][0] <= now_s))

    def exhausted(self) -> bool:
        """See `Admission.exhausted`."""
        with self._lock:
            return self._closed and not (self._requests or self._aborts or self._timed)

    def next_s(self) -> float | None:
        """See `Admission.next_s`."""
        with self._lock:
            return self._timed[0][0] if self._timed else None

    def _refuse_if_closed(self, request: Any) -> None:
        if self._closed:
            raise ConfigError(f"the admission queue was closed before {request!r} was put")

    def _wake(self) -> None:
        if self.signal is not None:
            self.signal.set()


_new = tuple.__new__  # Ask(...) takes twice as long


class NoArrivals:
    """The admission of a run that has none: every ask is empty, and IDLE with nothing in flight ends the run."""

    signal: Signal | None = None

    def take(self, number: int, step: int, now_s: float) -> Ask:
        """See `Admission.take`."""
        return _new(Ask, (number, step, now_s, (), ()))

    def ready(self, now_s: float) -> bool:
        """Never."""
        return False

    def exhausted(self) -> bool:
        """Always."""
        return True

    def next_s(self) -> None:
        """Never."""
