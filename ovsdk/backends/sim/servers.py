"""The device in virtual time: what rows pass through, one process each. The law of a row is that of `rows`, by events.

    launching lane -> [task queue] -> launcher -> [device queue of a stream] -> stream -> ... last row -> d2h engine -> done

A row leaves the task queue when the launcher takes it, which it does when it is free and the row's stream has room; it
leaves the device queue when it begins. A stream runs one row at a time, in the order of launch: after the launch latency,
after the rows that it waits for on other streams, and after its part on the AICPU, for which it holds one of the workers.
Streams run beside each other, unless the machine has them share its cores. A copy engine is a server of its own: inputs
are rows of its stream, results are copied one after the other, and a result is read when its copy begins. The values of a
host-value tiling are copied by the lane itself, beside the engine. At level 0 the lane is the launcher.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from .host import Cores, Host
from .kernel import NEVER, Body, Event, Kernel, Queue, Verb, get, wait
from .operators import D2H, H2D, OWN
from .passage import Passage
from .prices import Prices
from .rows import NO_SYNC, Program, Row

if TYPE_CHECKING:
    from .ahead import Known

Times = tuple[str, int, int]
"""Name, begin and end in ns."""
Call = Callable[[], Any]
Again = Callable[[int], Program]
COPIES = (H2D, D2H)
MOST_THREADS = 3
"""Of a host, that compute at once: two lanes and the launcher. With as many cores nobody has to share one."""


class Lane(Protocol):
    """The host thread that launches."""

    def work(self, ns: int) -> Body:
        """Let its own time pass."""
        ...

    def block(self, verb: Verb) -> Body:
        """Wait in native code, without the GIL."""
        ...


class FreeLane:
    """A lane that waits for nothing but what it asks for: no GIL, a core of its own."""

    def work(self, ns: int) -> Body:
        """See `Lane.work`."""
        yield ns

    def block(self, verb: Verb) -> Body:
        """See `Lane.block`."""
        yield verb


class Task:
    """A row on its way. Its times are -1 until they are known; `launched` and `ended` are events for who waits for them."""

    __slots__ = ("begin_ns", "blocked_ns", "end_ns", "ended", "flight", "freed_ns", "launched", "ready_ns", "row", "stream", "taken_ns")

    def __init__(self, flight: Flight, row: Row, stream: Stream) -> None:
        self.flight, self.row, self.stream = flight, row, stream
        self.blocked_ns = self.freed_ns = self.taken_ns = self.ready_ns = self.begin_ns = self.end_ns = -1
        self.launched: Event | None = None
        self.ended: Event | None = None

    @property
    def title(self) -> str:
        """Of its stream."""
        return self.stream.title

    def until_launched(self) -> Verb:
        """To wait for the end of its launcher."""
        self.launched = self.launched or Event(f"the launch of {self.row.op}")
        return wait(self.launched)

    def until_ended(self) -> Verb:
        """To wait for its end on the device."""
        self.ended = self.ended or Event(f"the end of {self.row.op}")
        return wait(self.ended)


class Flight:
    """A launch on its way: its rows as tasks once they are enqueued, its value once the first operator has begun.

    stream      where rows without a stream of their own go
    call        gives the value, or raises
    copies      whether the value is copied, as the arrays are that it stands for; else it is only handed on
    again       gives the rows anew for a step, where prices are drawn
    """

    value: Any = None
    error: Exception | None = None
    tasks: Sequence[Task | Passage] = ()
    """Its rows with times since `since_ns`, as far as they are enqueued. Without any: what it is known to do at its entry."""
    since_ns, copied_ns, left = 0, -1, 0
    done_ns = NEVER
    """When the host may have its value, as far as that is known."""
    callbacks: tuple[Callable[..., Any], ...] = ()
    known: Known
    entry: tuple[int, ...]

    def __init__(self, program: Program, stream: str, call: Call | None = None, copies: bool = False, again: Again | None = None) -> None:
        self.program, self.stream, self.call, self.copies, self.again = program, stream, call, copies, again

    def depart(self, step: int) -> None:
        """It is to be enqueued now, as that step's."""
        if self.again is not None:
            self.program = self.again(step)
        self.left = len(self.program.rows)

    def land(self) -> None:
        """The host may have its value, from now on."""

    def compute(self) -> None:
        """Take what the call gives, or what it raises. Nobody sees it before it has landed."""
        call, self.call = self.call, None
        try:
            self.value = None if call is None else call()
        except Exception as error:
            self.error = error

    def read(self) -> None:
        """The copy of the result begins: what a later launch writes there does not matter any more. The second time nothing is read."""
        if self.copies and self.error is None:
            self.call, self.copies = partial(copy.deepcopy, self.value), False
            self.compute()

    def rows(self) -> Sequence[Task | Passage]:
        """Its rows with times since `since_ns`."""
        return self.tasks or self.known.passages(self.entry)

    def operators(self) -> list[Times]:
        """When each operator ran on the device."""
        since = self.since_ns
        return [(t.row.op, since + t.begin_ns, since + t.end_ns) for t in self.rows() if t.row.op not in COPIES]

    def syncs(self) -> list[Times]:
        """When the lane waited for the stream, and for which operator."""
        since = self.since_ns
        return [(t.row.op, since + t.blocked_ns, since + t.freed_ns) for t in self.rows() if t.row.sync_ns != NO_SYNC]

    def served(self, latency_ns: int) -> dict[str, list[Times]]:
        """Server -> what it did for this launch: streams, the task queue's thread, the AICPU and the copy engines."""
        found: dict[str, list[Times]] = {}
        for t in self.rows():
            row, begin_ns = t.row, self.since_ns + t.begin_ns
            found.setdefault(t.title, []).append((row.op, begin_ns, self.since_ns + t.end_ns))
            found.setdefault("task queue", []).append((row.op, self.since_ns + t.taken_ns, self.since_ns + t.ready_ns - latency_ns))
            found.setdefault("aicpu", []).append((row.op, begin_ns - row.aicpu_ns, begin_ns))
        found[D2H] = [(self.program.kind, self.copied_ns - self.program.d2h_ns, self.copied_ns)]
        kept = {server: [times for times in all_ if times[1] < times[2]] for server, all_ in found.items()}
        return {server: times for server, times in kept.items() if times}


class Room:
    """So many places. Who wants one while all are taken waits until it may be otherwise, and looks again."""

    __slots__ = ("_freed", "_wait", "free")

    def __init__(self, places: int, name: str) -> None:
        self.free, self._freed = places, Event(name)
        self._wait = wait(self._freed)

    def full(self) -> Verb:
        """To wait for a place."""
        self._freed.clear()
        return self._wait

    def leave(self) -> None:
        """Give a place back."""
        self.free += 1
        if self.free == 1:
            self._freed.set()


def title(name: str) -> str:
    """What the server of that stream is called."""
    return name if name == H2D else f"stream {name}"


class Stream:
    """One FIFO of the device: its queue, which holds `room` rows that have not begun, and the last row enqueued."""

    __slots__ = ("last", "queue", "room", "title")

    def __init__(self, name: str, room: int) -> None:
        self.title = title(name)
        self.queue, self.room = Queue(name=name), Room(room, f"room in the device queue of {name!r}")
        self.last: Task | None = None


class Device:
    """Servers in a kernel. `host` is where the launcher runs."""

    def __init__(self, kernel: Kernel, prices: Prices, host: Host) -> None:
        machine = prices.machine
        self._kernel, self._names, self._places = kernel, prices.streams, machine.device
        self.latency_ns = machine.latency_ns
        self._streams: dict[str, Stream] = {}
        self._native = host.native if host.model.cores is not None and host.model.cores < MOST_THREADS else None
        self._cores = Cores(kernel, 1) if prices.hardware.shared else None
        self._aicpu = Room(machine.aicpu_workers, "a worker of the AICPU")
        self._room = Room(machine.task, "room in the task queue")
        self._tasks, self._last = Queue(name="task queue"), None  # type: Queue, Task | None
        self._results, self._copying = Queue(name=D2H), False
        self._queued = machine.level > 0
        if self._queued:
            kernel.spawn("launcher", self._launch_all(), server=True)
        if prices.hardware.d2h is not None and prices.hardware.d2h.pinned:
            kernel.spawn(D2H, self._copy_all(), server=True)

    def stream(self, name: str) -> Stream:
        """The stream of that name, made on first use."""
        if name not in self._streams:
            stream = self._streams[name] = Stream(name, self._places)
            self._kernel.spawn(stream.title, self._serve(stream), server=True)
        return self._streams[name]

    # ---- launching lane ----

    def enqueue(self, flight: Flight, step: int, lane: Lane) -> Body:
        """What a lane does for a launch, row by row, as that step's; it ends when the last one is enqueued."""
        flight.depart(step)
        names, tasks = self._names, list[Task]()
        flight.tasks = tasks
        for row in flight.program.rows:
            name = names[row.stream]
            task = Task(flight, row, self.stream(flight.stream if name == OWN else name))
            if row.sync_ns != NO_SYNC:
                yield from self._sync(task, lane)
            if row.host_ns:
                yield from lane.work(row.host_ns)
            tasks.append(task)
            room = self._room if self._queued else task.stream.room
            while not room.free:
                yield from lane.block(room.full())
            room.free -= 1
            task.stream.last = self._last = task
            if self._queued:
                self._tasks.offer(task)
            else:
                task.taken_ns = self._kernel.now_ns
                self._launched(task)

    def _sync(self, task: Task, lane: Lane) -> Body:
        """Wait for all that has been enqueued to be launched, and on this stream to end; then copy and tile."""
        launched, ended = self._last, task.stream.last
        task.blocked_ns = self._kernel.now_ns
        if launched is not None and launched.ready_ns < 0:
            yield from lane.block(launched.until_launched())
        if ended is not None and ended.end_ns < 0:
            yield from lane.block(ended.until_ended())
        if task.row.sync_ns:
            yield from lane.block(task.row.sync_ns)
        task.freed_ns = self._kernel.now_ns

    # ---- servers ----

    def _launch_all(self) -> Body:
        kernel, take, left, native = self._kernel, get(self._tasks), self._room, self._native
        while True:
            task = yield take
            room = task.stream.room
            while not room.free:
                yield room.full()
            room.free -= 1
            task.taken_ns = kernel.now_ns
            left.leave()
            if native is not None:
                yield from native(task.row.launcher_ns)
            elif task.row.launcher_ns:
                yield task.row.launcher_ns
            self._launched(task)

    def _launched(self, task: Task) -> None:
        task.ready_ns = self._kernel.now_ns + self.latency_ns
        task.stream.queue.offer(task)
        if task.launched is not None:
            task.launched.set()

    def _serve(self, stream: Stream) -> Body:
        kernel, take, copies = self._kernel, get(stream.queue), stream.title == H2D
        cores = None if copies else self._cores
        while True:
            task: Task = yield take
            row, flight = task.row, task.flight
            if task.ready_ns > kernel.now_ns:
                yield task.ready_ns - kernel.now_ns
            for earlier in row.waits:
                other: Any = flight.tasks[earlier]
                if other.end_ns < 0:
                    yield other.until_ended()
            if row.aicpu_ns:
                yield from self._on_aicpu(row.aicpu_ns)
            task.begin_ns = kernel.now_ns
            stream.room.leave()
            if flight.call is not None and not copies:
                flight.compute()
            if cores is not None:
                yield from cores.serve(row.device_ns)
            elif row.device_ns:
                yield row.device_ns
            self._ended(task)

    def _on_aicpu(self, ns: int) -> Body:
        while not self._aicpu.free:
            yield self._aicpu.full()
        self._aicpu.free -= 1
        yield ns
        self._aicpu.leave()

    def _ended(self, task: Task) -> None:
        task.end_ns, flight = self._kernel.now_ns, task.flight
        if task.ended is not None:
            task.ended.set()
        flight.left -= 1
        if not flight.left:
            if flight.program.d2h_ns:
                self._copy(flight)
            else:
                flight.land()

    def _copy(self, flight: Flight) -> None:
        """A free engine reads at once, before the stream goes on to what may write there."""
        if not self._copying:
            self._copying = True
            flight.read()
        self._results.offer(flight)

    def _copy_all(self) -> Body:
        take = get(self._results)
        while True:
            flight: Flight = yield take
            flight.read()
            yield flight.program.d2h_ns
            flight.copied_ns, self._copying = self._kernel.now_ns, len(self._results) > 0
            flight.land()
