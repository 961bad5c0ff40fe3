"""The Protocols between users, drivers and backends. No base class is needed: have the methods.

Three parties: a user's Scheduler and Executor, a driver that calls them, a backend that owns device and time.
Methods marked *optional* are looked up once, when a run starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from .types import Answer, Ask, Capabilities, Launch, Resident

T = TypeVar("T")


class Scheduler(Protocol):
    """Decides. Called in one total order, never by two threads at a time, so it needs no lock.

    Decisions may depend on the asks and on earlier results, never on a clock or a random source of its own:
    then a run log replays to the same decisions on every driver and backend.

    Optional: `fail(step, batch, error)`, in place of `retire` for a step that failed and was abandoned;
    `amend(step, batch) -> late`, called once every earlier step has retired: host inputs that need their results
    (a grammar mask), handed to `Executor.finish`; `overruns`, an int: rows launched after their request had stopped;
    `served`, what `ovsdk.metrics` computes latencies from (see `metrics.Served`).
    """

    def plan(self, ask: Ask) -> Any | Answer:
        """Return a batch (anything but None; immutable from now on), or IDLE, WAIT or CLOSED.

        `batch.features`, if there is one, is a mapping of numbers that prices the step's stages.
        """
        ...

    def retire(self, step: int, batch: Any, result: Any) -> None:
        """Take the result of a step: what its launch returned, or a tuple of that if it had several launches."""
        ...


class Executor(Protocol):
    """Turns a batch into work on the device. With `threads`, everything but `open` and `close` runs on the execution thread.

    Optional: `open(backend)` before step 0 (load weights here) and `close()` after the last;
    `finish(step, inputs, late) -> Launch`, together with `Scheduler.amend`: the second launch of a step;
    `tiler`, a Tiler: the Report says where it computed which tiling.
    """

    def prepare(self, step: int, batch: Any) -> Any:
        """Host work before the launch: build the input arrays. What it returns goes to `launch`."""
        ...

    def launch(self, step: int, inputs: Any) -> Launch | tuple[Launch, ...] | Future:
        """Describe the work; never wait for the device. A Future of your own means that you submitted it yourself."""
        ...


@runtime_checkable
class Future(Protocol):
    """Host handle of one launch. A Future of an engine's own needs these two methods; `concurrent.futures.Future` fits.

    Optional: `span_ns`, (begin, end) on the device once done, on the backend's clock; `add_done_callback(fn)`, without
    which a real clock polls.
    """

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        ...

    def result(self) -> Any:
        """The launch's return value, or raise what it raised: the same each time. Blocks until done."""
        ...


class Stream(Protocol):
    """FIFO of launches on one device."""

    def submit(self, launch: Launch) -> Future:
        """Put a launch on the stream and return at once. Inputs may be reused by the caller when this returns."""
        ...


class Signal(Protocol):
    """A level-triggered flag that ends a `Clock.wait` from any thread: set stays set until cleared."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...


class Clock(Protocol):
    """A backend's time, in integer ns. The drivers pass time in `lap` and `wait` alone."""

    def now_ns(self) -> int:
        """The time. Only differences mean something."""
        ...

    def lap(self, stage: int, step: int, features: Mapping[str, float] | None) -> int:
        """End a host stage and return the time: a real clock is read, a virtual one advanced by the stage's price.

        `features` are the batch's; None for a plan that gave no batch.
        """
        ...

    def wait(self, futures: Sequence[Future], signal: Signal | None, deadline_ns: int | None) -> int:
        """Block until every future is done, or the signal is set, or the deadline has passed; return the time.

        The only place where a driver blocks. With no futures only signal and deadline end it.
        """
        ...

    def signal(self) -> Signal:
        """A new signal that this clock's `wait` can be given."""
        ...


class Backend(Protocol):
    """A device and its time. Opened by `ovsdk.open_backend`; a context manager; closing twice is fine.

    Optional: `timeout_s`, the most that a launch may take before it is a DeviceTimeout (None or absent: no limit);
    `drivers`, a mapping from the name of a driver to a factory that is used in place of ovsdk's own;
    `staging(step)`, where `Executor.prepare` may make a step's input arrays, so that they are sent from where they are;
    `begin(depth)`, called when a run on it starts, before `Executor.open`;
    `mark(stage, call)`, which returns what is called in place of `call`, a host stage's work: to be seen by a profiler;
    `notes`, a sequence of lines that every Report of a run on it must say, read when the run has ended.
    """

    name: str
    capabilities: Capabilities
    clock: Clock

    def stream(self, name: str = "compute") -> Stream:
        """The stream of that name, made on first use."""
        ...

    def load(self, build: Callable[[str], Any]) -> Resident:
        """Run `build(device)` where the device is and return a handle of what it built; `device` is torch's name for it.

        What `build` raises is raised here. A backend that does not execute never calls it.
        """
        ...

    def close(self) -> None:
        """Give everything back: threads, processes, memory."""
        ...

    def __enter__(self: T) -> T: ...
    def __exit__(self, *exc: object) -> None: ...


class Queue(Protocol):
    """FIFO between the two host threads; the standard library's queues fit. The ledger bounds it to `depth` items.

    `get(block=True, timeout=None)` raises `queue.Empty`. Both methods may be called from different threads at once.
    """

    def put(self, item: Any) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None) -> Any: ...


class Tiler(Protocol):
    """Says how kernels are cut: `ovsdk.tiling.Tiler`, or a framework's own. Called while a launch is prepared; it never synchronises
    with the device unless a placement says so.
    """

    @property
    def placements(self) -> Mapping[str, str]:
        """Operator -> where its tiling was computed last: `host-shape`, `host-value`, `in-kernel`, `device-metadata` or `aicpu`."""
        ...

    def tile(self, spec: Any, values: Sequence[int] | None = None) -> Any:
        """The `ovsdk.tiling.Tiling` of an `ovsdk.tiling.TilingSpec`. `values`: those that decide, where the host has them.

        Raises TilingError, naming the first constraint that failed, if there is none.
        """
        ...


class Admission(Protocol):
    """Where requests come from: `ovsdk.AdmissionQueue`, or the replay of a run log."""

    signal: Signal | None
    """Set by the driver: what `put` sets, so that a sleeping driver wakes."""

    def take(self, number: int, step: int, now_s: float) -> Ask | None:
        """The ask of that number, with what has arrived by `now_s`; None if there shall be no more asks."""
        ...

    def ready(self, now_s: float) -> bool:
        """Whether there is something to take."""
        ...

    def exhausted(self) -> bool:
        """Whether nothing will ever come again."""
        ...

    def next_s(self) -> float | None:
        """When it will be ready by itself; None if only a put can make it so."""
        ...
