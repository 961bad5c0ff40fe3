"""A device made of one thread: the smallest backend, and the oracle in tests.

For emulators and for device work that is one long call without the GIL (a sleep, one big matrix product). An eager
torch model in it hides NOTHING: it takes the GIL back at each of its hundreds of operators, so host and device take
turns. Use `cpu`, a process, for a model.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import BackendProtocolError, DeviceLost
from ..types import Capabilities, Launch, Resident, bind
from ._host import HostClock, Wake
from ._residents import Residents


class ThreadFuture:
    """Handle of a launch on a device thread. `span_ns`: when it ran."""

    __slots__ = ("_call", "_done", "_error", "_value", "span_ns", "wakes")

    def __init__(self, call: Callable[[], Any], wakes: Wake) -> None:
        self._call: Callable[[], Any] | None = call
        self._done, self._value, self._error = False, None, None
        self.wakes, self.span_ns = wakes, (0, 0)
        """`wakes`: what is set when it is done."""

    def done(self) -> bool:
        """See `Future.done`."""
        return self._done

    def result(self) -> Any:
        """See `Future.result`. A driver waits through its clock; this wait is for people."""
        while not self._done:
            time.sleep(50e-6)
        if self._error is not None:
            raise self._error
        return self._value

    def run(self) -> None:
        """On the device thread: call, keep the outcome, publish."""
        assert self._call is not None
        begin_ns = time.perf_counter_ns()
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error
        self._finish(begin_ns)

    def lose(self, error: DeviceLost) -> None:
        """The device was closed before this launch ran."""
        self._error = error
        self._finish(time.perf_counter_ns())

    def _finish(self, begin_ns: int) -> None:
        self._call = None  # what the launch held may go now
        self.span_ns = (begin_ns, time.perf_counter_ns())
        self._done = True
        self.wakes.set()

    _error: BaseException | None


class ThreadStream:
    """FIFO of the one device thread. Arrays are used in place, not copied: do not write to what was submitted."""

    def __init__(self, backend: ThreadBackend) -> None:
        self._backend = backend

    def submit(self, launch: Launch) -> ThreadFuture:
        """See `Stream.submit`. Raises ConfigError for a method of another backend's object."""
        fn = self._backend.residents.function(launch)
        args, kwargs = bind(launch)
        return self._backend.enqueue(lambda: fn(*args, **kwargs))


class ThreadBackend:
    """One device thread. `timeout_s`: most that a launch may take before a driver calls it DeviceTimeout."""

    name = "thread"

    def __init__(self, timeout_s: float = 300.0) -> None:
        self.timeout_s, self.clock = timeout_s, HostClock()
        self.capabilities = Capabilities(
            {
                "asynchronous": True,
                "executes": True,
                "wall_clock": True,
                "parallel": "one process: device work that holds the GIL stops the host",
            }
        )
        self.residents = Residents()
        self._queue: queue.SimpleQueue[ThreadFuture | None] = queue.SimpleQueue()
        self._stream, self._closed = ThreadStream(self), False
        self._thread = threading.Thread(target=self._work, name="ovsdk-device", daemon=True)
        self._thread.start()

    def stream(self, name: str = "compute") -> ThreadStream:
        """The one stream, under any name."""
        return self._stream

    def load(self, build: Callable[[str], Any]) -> Resident:
        """See `Backend.load`; `build` runs on the device thread with the device name "cpu"."""
        future = self.enqueue(lambda: build("cpu"))
        self.clock.wait((future,), None, None)
        return self.residents.add(future.result())

    def enqueue(self, call: Callable[[], Any]) -> ThreadFuture:
        """Put a call on the device's FIFO. Raises DeviceLost after `close`."""
        if self._closed:
            raise DeviceLost("the thread backend is closed")
        future = ThreadFuture(call, self.clock.woken)
        self._queue.put(future)
        return future

    def close(self) -> None:
        """Let what was submitted finish, then end the thread. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        if threading.current_thread() is self._thread:
            raise BackendProtocolError("a device function closed its own backend; close it from the host")
        self._thread.join()
        self.residents.clear()

    def _work(self) -> None:
        for future in iter(self._queue.get, None):
            future.run()
            del future  # or its result would live until the next launch

    def __enter__(self) -> ThreadBackend:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
