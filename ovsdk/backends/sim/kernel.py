"""The simulation kernel: processes in virtual time. All of the law of events is here.

Time is an int of ns and starts at 0. A process is a generator; it yields one of five verbs and is resumed with its value:

    sleep(ns)           or a bare int: resumed ns later, with None
    put(queue, item)    resumed when the item is in the queue or handed to who waits for one, with None
    get(queue)          resumed with the oldest item
    wait(event)         resumed when the event is set, at once if it is, with None
    first(verb, ...)    resumed by whichever can be done first, in the order given: (its index, its value);
                        the others are withdrawn and leave no trace

Of all sleepers the one with the least (time, phase, priority, tie) goes next. What *ends* at t has phase END and so
happens before what BEGINs at t: after `sleep(0, BEGIN)` all that ends at this instant has ended. Ties go to who slept
first, unless a Chooser decides. put, get and wait that need not wait go on at once; whom they wake goes on at the same
instant, before the next sleeper and without passing through the heap.

A loop that is no process pumps the kernel with `step`, `run_while` and `run_until`. What is known to happen at a time needs no process:
`at` calls a function then.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any

from ...errors import ConfigError, Deadlock, SimulationError

END, BEGIN = 0, 1
NEVER = 1 << 62
"""A time that does not come."""

Verb = int | tuple[Callable[..., Any], Any, Any]
"""What a process yields: ns, or (how, on what, argument) as the five functions below make it. It may be kept and yielded again."""
Body = Generator[Verb, Any, Any]
Chooser = Callable[[Sequence["Process"]], int]
"""Which of two or more processes that may all go on now does so: its index."""

_BLOCKED: Any = object()


class Process:
    """A generator that runs in a kernel. `ended` is set when it has returned."""

    __slots__ = ("_ready", "_send", "_waits", "ended", "kernel", "name", "server")

    live = True

    def __init__(self, kernel: Kernel, name: str, body: Body, server: bool) -> None:
        self.kernel, self.name, self.server, self.ended = kernel, name, server, Event(f"end of {name}")
        self._ready, self._send, self._waits = kernel._ready, body.send, None  # type: deque[Any], Any, Any

    @property
    def process(self) -> Process:
        """Itself: who goes on when this is woken."""
        return self

    def wake(self, value: Any) -> None:
        """Go on at this instant. Kernel, queues and events call it."""
        self._ready.append((self, value))

    def __repr__(self) -> str:
        return f"<Process {self.name}>"


class _Arm:
    """One alternative of `first`: it waits in place of the process and, when woken, withdraws all of them."""

    __slots__ = ("_arms", "_index", "_place", "live", "process")

    def __init__(self, process: Process, index: int, place: Any, arms: list[_Arm]) -> None:
        self.process, self.live, self._index, self._place, self._arms = process, True, index, place, arms

    def wake(self, value: Any) -> None:
        if self.live:  # not so where one `first` waits for one event twice
            _withdraw(self._arms)
            self.process.wake((self._index, value))


def _withdraw(arms: list[_Arm]) -> None:
    for arm in arms:
        arm.live = False  # enough for the heap, which drops it when its time comes
        if isinstance(arm._place, (Queue, Event)):
            arm._place._forget(arm)


_Waiter = Process | _Arm


class Alarm:
    """A call at a time: what is known to happen needs no process."""

    __slots__ = ("_call",)

    live = True

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    @property
    def process(self) -> Alarm:
        """Itself: what happens then."""
        return self

    def wake(self, _: None) -> None:
        """Its time has come. The kernel calls it."""
        self._call()


class Event:
    """A level-triggered flag: set stays set until cleared; setting it wakes all who wait. It is a `Signal` of `ovsdk.interfaces`."""

    __slots__ = ("_set", "_waiters", "name")

    def __init__(self, name: str = "event") -> None:
        self.name, self._set, self._waiters = name, False, []  # type: str, bool, list[_Waiter]

    def set(self) -> None:
        """Raise the flag. Not a verb: call it from anywhere."""
        self._set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake(None)

    def clear(self) -> None:
        """Lower the flag."""
        self._set = False

    def is_set(self) -> bool:
        """Whether the flag is up."""
        return self._set

    def _wait(self, _: None, waiter: _Waiter) -> Any:
        if self._set:
            return None
        self._waiters.append(waiter)
        return _BLOCKED

    def _forget(self, waiter: _Waiter) -> None:
        self._waiters = [other for other in self._waiters if other is not waiter]


class Queue:
    """FIFO of at most `capacity` items (None: any number). Raises ConfigError for a capacity under 1."""

    __slots__ = ("_capacity", "_getters", "_items", "_putters", "name")

    def __init__(self, capacity: int | None = None, name: str = "queue") -> None:
        if capacity is not None and capacity < 1:
            raise ConfigError(f"capacity of queue {name!r} is how many items it holds, an int of at least 1, or None; got {capacity!r}")
        self.name, self._capacity = name, float("inf") if capacity is None else capacity
        self._items: deque[Any] = deque()
        self._getters: deque[_Waiter] = deque()
        self._putters: deque[tuple[_Waiter, Any]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, item: Any) -> bool:
        """Put an item if there is room, else return False. Not a verb: call it from anywhere."""
        return self._put(item, None) is not _BLOCKED

    def _put(self, item: Any, waiter: _Waiter | None) -> Any:
        if self._getters:
            self._getters.popleft().wake(item)
        elif len(self._items) < self._capacity:
            self._items.append(item)
        else:
            if waiter is not None:
                self._putters.append((waiter, item))
            return _BLOCKED
        return None

    def _get(self, _: None, waiter: _Waiter) -> Any:
        if not self._items:
            self._getters.append(waiter)
            return _BLOCKED
        item = self._items.popleft()
        if self._putters:
            putter, late = self._putters.popleft()
            self._items.append(late)
            putter.wake(None)
        return item

    def _forget(self, waiter: _Waiter) -> None:
        self._getters = deque(other for other in self._getters if other is not waiter)
        self._putters = deque(entry for entry in self._putters if entry[0] is not waiter)


def sleep(ns: int, phase: int = END, priority: int = 0) -> Verb:
    """Let `ns` pass; of those due at one time the least (phase, priority) goes first."""
    return _sleep, ns, (phase, priority)


def put(queue: Queue, item: Any) -> Verb:
    """Put an item on a queue, waiting while it is full."""
    return Queue._put, queue, item


def get(queue: Queue) -> Verb:
    """Take the oldest item of a queue, waiting while it is empty."""
    return Queue._get, queue, None


def wait(event: Event) -> Verb:
    """Wait until an event is set."""
    return Event._wait, event, None


def first(*verbs: Verb) -> Verb:
    """Do whichever of the verbs can be done first; the value is (its index, its value)."""
    return _first, tuple(sleep(verb) if isinstance(verb, int) else verb for verb in verbs), None


def _sleep(ns: int, order: tuple[int, int], waiter: _Waiter) -> Any:
    if ns.__class__ is not int or ns < 0:
        raise SimulationError(f"{waiter.process!r} sleeps {ns!r} ns; allowed: an int of at least 0")
    kernel = waiter.process.kernel
    heapq.heappush(kernel._heap, (kernel.now_ns + ns, *order, next(kernel._tie), waiter))
    return _BLOCKED


def _first(verbs: tuple[Any, ...], _: None, process: Process) -> Any:
    arms: list[_Arm] = []
    for index, (how, place, argument) in enumerate(verbs):
        arm = _Arm(process, index, place, arms)
        arms.append(arm)
        value = how(place, argument, arm)
        if value is not _BLOCKED:
            _withdraw(arms)
            return index, value
    return _BLOCKED


def _describe(verb: Any) -> str:
    how, place, _ = verb
    if how is _first:
        return f"the first of ({', '.join(map(_describe, place))})"
    return f"{how.__name__.strip('_')} {getattr(place, 'name', place)!r}"


class Kernel:
    """Runs processes. `now_ns` is the time; `chooser` decides between processes that may go on at one instant."""

    __slots__ = ("_alive", "_heap", "_pop", "_ready", "_take", "_tie", "now_ns")

    def __init__(self, chooser: Chooser | None = None) -> None:
        self.now_ns, self._tie = 0, itertools.count()
        self._heap: list[Any] = []  # (time, phase, priority, tie, waiter)
        self._ready: deque[tuple[Process, Any]] = deque()
        self._alive: dict[Process, None] = {}
        self._take: Callable[[], tuple[Process, Any]] = partial(_take, chooser, self._ready) if chooser else self._ready.popleft
        self._pop: Callable[[list[Any]], Any] = partial(_pop, chooser) if chooser else heapq.heappop

    def spawn(self, name: str, body: Body, server: bool = False) -> Process:
        """Start a process now. A server may wait for ever: it is no deadlock that it does."""
        process = Process(self, name, body, server)
        self._alive[process] = None
        process.wake(None)
        return process

    def at(self, time_ns: int, call: Callable[[], object]) -> None:
        """Call it at that time, not before now, as what ends there. It takes no time."""
        heapq.heappush(self._heap, (time_ns, END, 0, next(self._tie), Alarm(call)))

    def pass_until(self, time_ns: int) -> bool:
        """Let it be that time, or later, if nothing at all happens up to and at it; else return False."""
        if self._ready or (self._heap and self._heap[0][0] <= time_ns) or time_ns >= NEVER:
            return False
        if self.now_ns < time_ns:
            self.now_ns = time_ns
        return True

    def next_ns(self) -> int | None:
        """When something happens next; None if nothing will by itself."""
        if self._ready:
            return self.now_ns
        while self._heap and not self._heap[0][4].live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Let one process go on until it waits. False if there is none. Raises what the process raises."""
        return self._run((None,))

    def run_while(self, condition: Callable[[], bool], until_ns: int | None = None) -> bool:
        """Run while the condition holds. False if it holds and nothing can happen any more.

        With `until_ns` no further than that, as `run_until`; the time is then `until_ns` if the condition still holds,
        and the answer is True.
        """
        if until_ns is None:
            return self._run(iter(condition, False))
        self._run(iter(lambda: condition() and self._due(until_ns), False))
        if condition():
            self.now_ns = max(self.now_ns, until_ns)
        return True

    def run_until(self, time_ns: int) -> None:
        """Run all that ends up to and at `time_ns`, but nothing that begins there: the caller may. The time is then `time_ns`."""
        ready, heap, end = self._ready, self._heap, (time_ns, BEGIN)  # what sorts before it ends up to then
        if ready or (heap and heap[0] < end):  # mostly not: nothing is due in most stages of a step
            self._run(iter(lambda: True if ready or (heap and heap[0] < end) else False, False))  # noqa: SIM210
        if self.now_ns < time_ns:
            self.now_ns = time_ns

    def run(self) -> None:
        """Run until nothing can happen any more. Raises Deadlock if a process that is no server still waits."""
        self._run(itertools.repeat(None))
        if not all(process.server for process in self._alive):
            raise self.deadlock()

    def deadlock(self, *others: str) -> Deadlock:
        """The error that says who waits for what; `others` say it for those who are no processes here."""
        waits = [*others, *(f"{process.name} waits for {_describe(process._waits)}" for process in self._alive if process._waits)]
        return Deadlock(f"nothing can happen any more at {self.now_ns} ns of virtual time: {'; '.join(waits)}")

    def _due(self, time_ns: int) -> bool:
        due_ns = self.next_ns()
        return due_ns is not None and (due_ns < time_ns or bool(self._ready) or self._heap[0][:2] <= (time_ns, END))

    def _run(self, turns: Iterable[Any]) -> bool:
        """One turn: a process goes on until it waits. False when nobody can. All of virtual time passes here, so it is written flat."""
        ready, heap, take, pop, push, tie = self._ready, self._heap, self._take, self._pop, heapq.heappush, self._tie
        for _ in turns:
            if ready:
                process, value = take()
            elif heap:
                due_ns, _, _, _, process = pop(heap)
                if process.__class__ is not Process:
                    if process.live:
                        self.now_ns = due_ns
                        process.wake(None)
                    continue
                self.now_ns, value = due_ns, None
            else:
                return False
            send = process._send
            try:
                while True:
                    verb = send(value)
                    if verb.__class__ is int and verb >= 0:
                        push(heap, (self.now_ns + verb, END, 0, next(tie), process))
                        break
                    if verb.__class__ is not tuple:
                        verb = sleep(verb)
                    how, place, argument = verb
                    value = how(place, argument, process)
                    if value is _BLOCKED:
                        process._waits = verb
                        break
            except StopIteration:
                del self._alive[process]
                process.ended.set()
            except BaseException:
                self._alive.pop(process, None)
                raise
        return True


def _take(choose: Chooser, ready: deque[tuple[Process, Any]]) -> tuple[Process, Any]:
    index = choose([process for process, _ in ready]) if len(ready) > 1 else 0
    chosen = ready[index]
    del ready[index]
    return chosen


def _pop(choose: Chooser, heap: list[Any]) -> Any:
    tied = [heapq.heappop(heap)]
    while heap and heap[0][:3] == tied[0][:3]:
        tied.append(heapq.heappop(heap))
    tied = [entry for entry in tied if entry[4].live] or tied[:1]
    chosen = tied.pop(choose([entry[4].process for entry in tied]) if len(tied) > 1 else 0)
    for entry in tied:
        heapq.heappush(heap, entry)
    return chosen
