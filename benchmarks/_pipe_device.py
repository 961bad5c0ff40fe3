"""A device process behind a plain `multiprocessing.Pipe`: what one would write first, and what the `cpu` backend is compared with.

Its stream takes launches, in order, and stamps them; it carries no error, and a host that ends leaves it waiting.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from _on_device import serve

from ovsdk import Launch, Method, Resident


class PipeFuture:
    """Handle of one launch; `span_ns` is (begin, end) on the device once `result` has returned."""

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self.span_ns: tuple[int, int] | None = None

    def done(self) -> bool:
        """Whether the answer has been read."""
        return self.span_ns is not None

    def result(self) -> None:
        """Wait for the answer."""
        while self.span_ns is None:
            self._read()


class PipeDevice:
    """The host's end, and the one stream. What lives on the device is a `Sleeper`, whatever is loaded."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._in_flight = connection, deque[PipeFuture]()

    def stream(self) -> PipeDevice:
        """Itself."""
        return self

    def load(self, build: Callable[[str], Any]) -> Resident:
        """The object that is there already."""
        return Resident(0)

    def submit(self, launch: Launch) -> PipeFuture:
        """Send a launch of a method."""
        assert isinstance(launch.fn, Method)
        self._connection.send((launch.fn.name, launch.inputs))
        future = PipeFuture(self._read)
        self._in_flight.append(future)
        return future

    def _read(self) -> None:
        self._in_flight.popleft().span_ns = self._connection.recv()


@contextlib.contextmanager
def pipe_device(cores: tuple[int, ...]) -> Iterator[PipeDevice]:
    """Start one on those cores, if this system can, and end it after."""
    ours, theirs = multiprocessing.Pipe()
    pinned = cores if hasattr(os, "sched_setaffinity") else ()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, pinned))
    process.start()
    try:
        ours.recv()
        yield PipeDevice(ours)
    finally:
        ours.send(None)
        process.join()
        ours.close()
        theirs.close()
