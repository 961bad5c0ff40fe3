"""Launches on an accelerator: three streams, a future for each launch, and whose memory is whose. Imports no torch.

    three streams        arrays cross on `copy_in`, functions run on `compute`, results cross back on `copy_out`. Events put them in
                         order; launching waits for none of them
    one copy each way    a launch's arrays are one block on the way there, and what it returns is one block on the way back (_staging)
    done in order        every launch ends with a record on `copy_out`, so launches are done in the order of their submission
    proven               each launch sends a number with its inputs that comes back with its outputs. A record alone proves nothing:
                         behind an error in torch_npu's task queue an event counts as recorded that never was (seen in 2.13)
    owned until done     a flight holds its blocks, events, arguments and outputs until the host has seen that record happen and has
                         taken the result. Nothing is left to an allocator's marks, and no event is recorded again before. What a
                         function keeps of its inputs is its own: that block rests until nobody looks into it
    outputs may change   what a function returns is packed on `compute` at once: the next launch may overwrite it
    whose error it is    what is raised while launching is that launch's, and its future raises it. What the device tells later
                         ends the device: nothing in flight comes back (DeviceLost)
    looked at, not waited for   `Event.query` alone: `Event.synchronize` may spin for ever behind an error, and `Stream.query` and
                         `Event.elapsed_time` first wait for the host's own launch queue to drain (seen in torch_npu 2.13)

THE SEAM to graphs and to what watches a launch is `Runner`: it is called with `compute` current, calls `flight.send` once, and
returns what the function returns. `eager` is the plain one. A runner that replays sends to memory of its own:
`flight.send(into, then)`, with `into` what an earlier flight's `flight.sent` was, which nobody else may be using (ask that
flight's `future.done()`), and `then()` called with `copy_in` current, for updates that the launch has to wait for.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from ..errors import BackendProtocolError, ConfigError, DeviceLost, DeviceTimeout
from ..types import Launch
from ._device_time import DeviceTime
from ._host import POLL_S
from ._staging import Lease, Parcel, Part, Slot, filled

if TYPE_CHECKING:
    from ._torch import TorchBackend

PROBE_NS = 100_000_000
"""For so long a launch is only looked at; then, at doubling distances, something is launched behind it to see whether that raises."""
DOUBT_NS = 1_000_000_000
"""For so long a launch may count as done without its number before the device counts as lost."""
CLOSE_S = 10.0
"""The longest that opening waits for the device to answer, and closing for launches in flight."""
_numbers = itertools.count(time.perf_counter_ns())


class Streams(NamedTuple):
    """Three of the accelerator's."""

    copy_in: Any
    compute: Any
    copy_out: Any


class Events(NamedTuple):
    """The markers of one launch: its inputs are there, it begins, it ends, its outputs are here."""

    arrived: Any
    begin: Any
    end: Any
    done: Any


Sent = tuple[Lease, tuple[Slot, ...]]
"""Where a launch's inputs lie."""


class Flight:
    """A launch between its submission and its result, and all that is its own until then."""

    def __init__(self, stream: DeviceStream, launch: Launch, parcel: Parcel, events: Events) -> None:
        self.launch, self.parcel, self.events = launch, parcel, events
        self.number = next(_numbers)
        parcel.parts.append(Part("int64", numpy.array([self.number])))
        self.future = DeviceFuture(stream, launch.kind, self)
        self.submitted_ns = time.perf_counter_ns()
        self.probe_ns, self.doubted_ns = self.submitted_ns + PROBE_NS, 0
        self.sent: Sent | None = None
        self.got: Sent | None = None
        self.tree: Any = None
        self.error: Exception | None = None
        self.outputs: Any = None
        self.flew = False
        """Whether its last event has been recorded: one that never was counts as having happened."""
        self._stream = stream

    @property
    def layout(self) -> str:
        """Structure, shapes and dtypes of the inputs."""
        return self.parcel.layout

    def send(self, into: Sent | None = None, then: Callable[[], None] | None = None) -> None:
        """Let the inputs cross, to memory of the caller's choice or to a free block; `compute` waits for them and for `then`."""
        stream, events = self._stream, self.events
        self.sent = self._loaded(into)
        with stream.copy_in:
            _cross(self, *self.sent)
            if then is not None:
                then()
        events.arrived.record(stream.copy_in)
        events.arrived.wait(stream.compute)
        events.begin.record(stream.compute)

    def _loaded(self, into: Sent | None) -> Sent:
        if into is None:
            lease, slots = self.parcel.load(self._stream.home.pool)
            return lease, tuple(slots)
        self.parcel.write(*into)
        return into

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the function is to be called with: the inputs are on the device."""
        inputs, host = filled(self.parcel.tree, self.views()), self.launch.host
        return ((), {**inputs, **host}) if isinstance(inputs, dict) else (inputs, dict(host))

    def views(self) -> Any:
        """The inputs on the device, and the number behind them."""
        if self.sent is None:
            raise BackendProtocolError(f"launch {self.launch.kind!r}: its runner has not called flight.send")
        return self.sent[0].block.views(self.sent[1])

    def proven(self) -> bool:
        """Whether the number has come back; a launch that failed brings none, and no result either."""
        if self.got is None or self.error is not None:
            return self.error is not None
        lease, slots = self.got
        return bool(slots[-1].within(lease.block.host)[0] == self.number)

    def result(self) -> Any:
        """What the function returned, on the host, in memory of its own."""
        assert self.got is not None
        return self._stream.home.unpack(self.tree, *self.got)


def _cross(flight: Flight, lease: Lease, slots: Iterable[Slot]) -> None:
    """Copy the part of a block that has these slots to the device, on the current stream."""
    block, stream = lease.block, flight._stream
    stream.claim(block, stream.copy_in)
    begin, end = min(slot.offset for slot in slots), max(slot.offset + slot.nbytes for slot in slots)
    block.device[begin:end].copy_(block.pinned[begin:end], non_blocking=True)


Runner = Callable[[Launch, Callable[..., Any], Flight], Any]
"""Runs a launch's function on the device; see the head of this file."""


def eager(_launch: Launch, fn: Callable[..., Any], flight: Flight) -> Any:
    """Send the inputs and call the function."""
    flight.send()
    args, kwargs = flight.arguments()
    return fn(*args, **kwargs)


class DeviceFuture:
    """Handle of a launch. `span_ns`: when it was on the device, on the host's clock; None until it is done, or if it failed."""

    __slots__ = ("_done", "_error", "_stream", "_value", "flight", "kind", "span_ns")

    def __init__(self, stream: DeviceStream, kind: str, flight: Flight) -> None:
        self._stream, self.kind = stream, kind
        self.flight: Flight | None = flight
        """None once it is done."""
        self._done, self._value = False, None
        self._error: Exception | None = None
        self.span_ns: tuple[int, int] | None = None

    def done(self) -> bool:
        """See `Future.done`. Takes the result as soon as it is there, with all that came before it."""
        return self._done or self._stream.look(self)

    def result(self) -> Any:
        """See `Future.result`. Raises DeviceTimeout once the backend's `timeout_s` have passed since submission."""
        self._stream.wait(self, self._stream.home.timeout_s)
        if self._error is not None:
            raise self._error
        return self._value

    def settle(self, value: Any, error: Exception | None, span_ns: tuple[int, int] | None = None) -> None:
        """For streams: this is the outcome."""
        self._value, self._error, self.span_ns = value, error, span_ns
        self._done = True


class DeviceStream:
    """FIFO of launches: three streams of the accelerator."""

    def __init__(self, home: TorchBackend, streams: Streams) -> None:
        module = home.accelerator.module
        self.home, self.streams = home, streams
        self.copy_in, self.compute, self.copy_out = streams
        self._flights: deque[DeviceFuture] = deque()
        self._free: deque[Events] = deque()
        self._launching, self._fence = threading.RLock(), threading.Lock()
        self._probe, self._last = module.Event(), module.Event(enable_timing=True)
        self._time = self._calibrated()

    def submit(self, launch: Launch) -> DeviceFuture:
        """See `Stream.submit`. What the function raises, the future raises. ConfigError: the launch cannot be sent; DeviceLost."""
        home = self.home
        home.enter()
        fn = home.residents.function(launch)
        if not callable(fn):
            raise ConfigError(f"launch {launch.kind!r}: fn is a method of what backend.load returned, or a callable; got {fn!r}")
        parcel = Parcel(launch.inputs, home.part)
        with self._launching:
            flight = Flight(self, launch, parcel, self._events())
            with self.compute:
                try:
                    flight.outputs = home.runner(launch, fn, flight)
                    flight.tree, flight.got = home.pack(self, flight.outputs, flight.views()[-1])
                except Exception as error:
                    flight.error = home.fault(f"launch {launch.kind!r}", error)
                finally:
                    self._fly(flight)
            if flight.sent is not None and flight.sent[0].block.looked_at():
                flight.sent[0].block.foreign = True
        return flight.future

    def claim(self, block: Any, stream: Any) -> None:
        """Have a stream use a block's memory after all that was launched before, if somebody else may have used it."""
        if block.foreign:
            block.foreign = False
            for other in self.home.streams():
                stream.wait_stream(other.compute)

    def _events(self) -> Events:
        with self._fence:
            if self._free:
                return self._free.popleft()
        event = self.home.accelerator.module.Event
        return Events(event(), event(enable_timing=True), event(enable_timing=True), event())

    def _fly(self, flight: Flight) -> None:
        """The last records of a launch, however it went, and the copy back. A stream that takes no record is one that has stopped."""
        events = flight.events
        try:
            if flight.error is not None:
                events.arrived.record(self.copy_in)
            events.end.record(self.compute)
            events.end.wait(self.copy_out)
            if flight.got is not None and flight.error is None:
                lease = flight.got[0]
                with self.copy_out:
                    lease.block.pinned[: lease.used].copy_(lease.block.device[: lease.used], non_blocking=True)
            events.done.record(self.copy_out)
            flight.flew = True
        except Exception as error:
            self.home.lose(f"launch {flight.launch.kind!r}", error)
        self._flights.append(flight.future)

    # ---- the host's side: any thread ----

    def look(self, future: DeviceFuture) -> bool:
        """Whether a launch is done; then it is settled, with all before it. Never waits."""
        home, flight = self.home, future.flight
        if flight is None:
            return True
        home.arrive(self)
        try:
            done = flight.flew and flight.events.done.query()
            if not done:
                self._prod(flight)
            elif not flight.proven():
                done = False
                self._doubt(flight)
        except Exception as error:
            done = False
            home.lose(f"launch {future.kind!r}", error)
        if done:
            home.accelerator.tell_seen(flight.events.done)
            self._settle(future)
        elif home.lost is not None:
            future.settle(None, home.lost)  # what it holds stays held
        return future._done

    def wait(self, future: DeviceFuture, timeout_s: float) -> None:
        """Return once a launch is done. Raises DeviceTimeout if it is not after so long."""
        submitted_ns = time.perf_counter_ns() if future.flight is None else future.flight.submitted_ns
        if not _until(future.done, submitted_ns + int(timeout_s * 1e9)):
            raise DeviceTimeout(
                f"launch {future.kind!r} was not done after {timeout_s} s on {self.home.name}; "
                "open the backend with a larger timeout_s if it may take that long"
            )

    def drain(self, deadline_ns: int) -> bool:
        """Wait for all launches; whether all were done in time."""
        flights, home = tuple(self._flights), self.home
        done = not flights or _until(flights[-1].done, deadline_ns)
        for future in flights:
            if not future._done:
                future.settle(None, DeviceLost(f"the {home.name} backend was closed before launch {future.kind!r} was done"))
        self._flights.clear()
        return done and home.lost is None

    def _prod(self, flight: Flight) -> None:
        """Behind an asynchronous error an event stays silent and only the next launch raises: so launch something."""
        now_ns = time.perf_counter_ns()
        if now_ns >= flight.probe_ns and self.home.lost is None:
            flight.probe_ns = now_ns + 2 * (now_ns - flight.submitted_ns)
            self._probe.record(self.copy_out)

    def _doubt(self, flight: Flight) -> None:
        """A launch counts as done, but nothing has come back: that is an error of which the next record tells, at the latest soon."""
        now_ns = time.perf_counter_ns()
        flight.doubted_ns = flight.doubted_ns or now_ns
        self._probe.record(self.copy_out)
        if now_ns - flight.doubted_ns > DOUBT_NS:
            raise RuntimeError("it counts as done, but nothing has come back")

    def _calibrated(self) -> DeviceTime:
        """Meet the device: it answers, and some time between these two of ours."""
        asked_ns = time.perf_counter_ns()
        self._last.record(self.compute)
        if not _until(self._last.query, asked_ns + int(CLOSE_S * 1e9)):
            raise DeviceLost(f"{self.home.device} does not answer: nothing that is launched on it comes back")
        return DeviceTime(self.home.accelerator.elapsed_ms, self._last, (asked_ns + time.perf_counter_ns()) // 2)

    def _settle(self, future: DeviceFuture) -> None:
        seen_ns = time.perf_counter_ns()
        with self._fence:
            while future.flight is not None:
                self._take(self._flights.popleft(), seen_ns)

    def _take(self, future: DeviceFuture, seen_ns: int) -> None:
        """Take the result of the oldest launch; then its memory is free."""
        flight = future.flight
        assert flight is not None
        span_ns = self._span(flight, seen_ns) if flight.error is None else None
        if not future._done:
            future.settle(flight.result() if flight.error is None else None, flight.error, span_ns)
        future.flight = flight.outputs = flight.sent = flight.got = None

    def _span(self, flight: Flight, seen_ns: int) -> tuple[int, int] | None:
        """When a launch was on the device. Its events may be recorded anew then, but for the end, from which the next is placed."""
        try:
            span_ns = self._time.place(flight.events.begin, flight.events.end, flight.submitted_ns, seen_ns)
        except RuntimeError as error:  # this launch is done; the device has been lost since
            self.home.lose(f"times of launch {flight.launch.kind!r}", error)
            return None
        self._free.append(flight.events._replace(end=self._last))
        self._last = flight.events.end
        return span_ns


def _until(condition: Callable[[], bool], deadline_ns: int) -> bool:
    """Look, with growing pauses, until the condition holds; False once the deadline has passed."""
    pause_s = POLL_S[0]
    while not condition():
        if time.perf_counter_ns() >= deadline_ns:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_S[1])
    return True
