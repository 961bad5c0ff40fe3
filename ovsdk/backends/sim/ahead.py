"""The device without processes: what a launch does is known as soon as it is enqueued.

One lane launches on one stream, first in first out, so nothing that comes later changes what a launch does. Its rows go through the
recurrence of `maxplus` at once, and the kernel need only let the time pass: events outside, a recurrence inside of a launch. `reasons`
says where that would not be exact.

A launch that finds launcher and streams as far ahead of the lane as once before does what it did then; one that comes back often and
finds them elsewhere goes through as a matrix. Neither knows queues. As long as the rows of all launches that are not over fit into
every queue, none binds; from the first launch on with which they may not, rows go through one by one, with their queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

from .kernel import Kernel
from .maxplus import NEVER, State, advance, apply, collapse
from .operators import H2D, OWN
from .passage import Passage, passages
from .prices import Prices
from .rows import Machine, Program
from .servers import COPIES, Flight, title

OFTEN = 4
"""To make a launch into a matrix takes as long as to go through it that often."""
MOST = 256
"""Launches, and entries of each, that are remembered."""

K = TypeVar("K")
V = TypeVar("V")
Entry = tuple[int, ...]
"""How far H, L, E[0], ... are ahead of the lane as it begins to enqueue. What is behind it is as good as at it."""
Done = tuple[Sequence[int], int, int]
"""What a launch does: times of the machine after it, begin of its first operator, end of its last row; all since its entry."""


def reasons(prices: Prices) -> Iterator[str]:
    """Why a launch is not known when it is enqueued; none if it is."""
    streams = [name for name in prices.streams if name not in (OWN, H2D)]
    if streams:
        yield f"operators run on {1 + len(streams)} streams"
    if prices.machine.level > 0 and prices.host.cores == 1:
        yield "launching lane and launcher share the host's only core"


class Known:
    """A launch with what it did at each entry so far. `titles`: of streams."""

    __slots__ = ("_machine", "_passages", "_titles", "found", "program")

    def __init__(self, program: Program, machine: Machine, titles: Sequence[str]) -> None:
        self.program, self._machine, self._titles = program, machine, titles
        self.found: dict[Entry, Done] = {}
        self._passages: dict[Entry, Sequence[Passage]] = {}

    def done(self, entry: Entry) -> Done:
        """What it does, as one looks into `found` first. The copy of its result is not its own affair: the engine may be busy."""
        return keep(self.found, entry, self._go(entry))

    def passages(self, entry: Entry) -> Sequence[Passage]:
        """The same row by row."""
        return self._passages.get(entry) or keep(self._passages, entry, tuple(passages(self.program, self._state(entry), self._titles)))

    def _go(self, entry: Entry) -> Done:
        state, program = self._state(entry), self.program
        often = len(self.found) >= OFTEN
        outcome = apply(collapse(program, self._machine), state) if often else advance(program, state)
        return state.times, outcome.begin_ns, outcome.done_ns - program.d2h_ns

    def _state(self, entry: Entry) -> State:
        state = State(self._machine, bounded=False)
        state.times, state.copied = list(entry), NEVER
        return state


class Ahead:
    """A device with one stream, of that name, and one lane that launches."""

    def __init__(self, kernel: Kernel, prices: Prices, stream: str) -> None:
        self._kernel, self._machine = kernel, prices.machine
        self._titles = tuple(title(name or stream) for name in prices.streams)
        self._places = min(self._machine.task, self._machine.device) if self._machine.level else self._machine.device
        self._times: Sequence[int] = State(self._machine, bounded=False).times
        """H, L, E[0], ... since `_now_ns`, when the last launch was enqueued."""
        self._now_ns = self._copied = self._held = 0
        self._known: dict[int, Known] = {}
        self._last: Known | None = None
        self._flown: deque[tuple[Program, int, Entry, int]] = deque()
        """Launches that may have rows in queues still, with when they were enqueued, their entry, and when their rows are over."""
        self._unrung: deque[int] = deque()
        """When launches are done, as far as the kernel was not told."""
        self._queues: State | None = None
        """The machine with its queues, once one of them may bind."""

    @property
    def idle(self) -> bool:
        """Whether all that was enqueued is over."""
        return max(self._now_ns + max(self._times), self._copied) <= self._kernel.now_ns

    def enqueue(self, flight: Flight, step: int) -> int:
        """Enqueue a launch now, as that step's. Returns when the lane is through with it."""
        if flight.again is not None:
            flight.program = flight.again(step)
        now_ns, program = self._kernel.now_ns, flight.program
        self._held += len(program.rows)
        if self._held > self._places and self._queues is None:
            self._make_room()
        begin_ns, done_ns = self._at_once(flight, program, now_ns) if self._queues is None else self._row_by_row(flight, self._queues)
        if flight.call is not None:
            self._kernel.at(begin_ns, flight.compute)
        if program.d2h_ns:
            self._copied = flight.copied_ns = done_ns = max(done_ns, self._copied) + program.d2h_ns
            if flight.copies:
                self._kernel.at(done_ns - program.d2h_ns, flight.read)
        flight.done_ns = done_ns
        unrung = self._unrung
        unrung.append(done_ns)
        while unrung[0] < now_ns:
            unrung.popleft()
        if flight.callbacks:
            self._kernel.at(done_ns, flight.land)
        return self._now_ns + self._times[0]

    def ring(self) -> None:
        """Make the kernel go through every time at which a launch is done: somebody waits, and it may be for that."""
        for done_ns in self._unrung:
            if done_ns > self._kernel.now_ns:
                self._kernel.at(done_ns, _nothing)
        self._unrung.clear()

    # ---- no queue binds ----

    def _at_once(self, flight: Flight, program: Program, now_ns: int) -> tuple[int, int]:
        """Begin and end of a launch that the lane begins to enqueue now."""
        known, passed_ns, self._now_ns = self._last, now_ns - self._now_ns, now_ns
        if known is None or known.program is not program:
            known = self._last = self._known.get(id(program)) or self._new(program)
        entry = tuple([time - passed_ns if time > passed_ns else 0 for time in self._times])
        self._times, begin_ns, over_ns = known.found.get(entry) or known.done(entry)
        over_ns += now_ns
        self._flown.append((program, now_ns, entry, over_ns))
        flight.since_ns, flight.known, flight.entry = now_ns, known, entry
        return now_ns + begin_ns, over_ns

    def _new(self, program: Program) -> Known:
        return keep(self._known, id(program), Known(program, self._machine, self._titles))

    # ---- a queue may bind ----

    def _make_room(self) -> None:
        """Forget rows that are over. If a queue may not hold the others, from now on go through rows one by one."""
        flown, now_ns = self._flown, self._kernel.now_ns
        while flown and flown[0][3] <= now_ns:
            self._held -= len(flown.popleft()[0].rows)
        if self._held > self._places:
            self._queues = self._with_queues()

    def _with_queues(self) -> State:
        """The machine with what is in its queues. A row that is over has left them, so only later ones matter."""
        state = State(self._machine)
        _, since_ns, entry, _ = self._flown[0] if self._flown else (None, self._now_ns, self._times, None)
        state.times[:] = [since_ns + time for time in entry]
        for program, since_ns, _, _ in self._flown:
            state.times[0] = since_ns
            deque(passages(program, state, self._titles), maxlen=0)
        return state

    def _row_by_row(self, flight: Flight, state: State) -> tuple[int, int]:
        """Begin and end of a launch that the lane begins to enqueue now; it waits where a queue is full."""
        state.times[0] = self._kernel.now_ns
        flight.tasks = rows = list(passages(flight.program, state, self._titles))
        self._now_ns, self._times = 0, state.times
        return min(row.begin_ns for row in rows if row.row.op not in COPIES), max(row.end_ns for row in rows)


def _nothing() -> None:
    """Time passes."""


def keep(kept: dict[K, V], key: K, value: V) -> V:
    """Remember a value, among the last few; return it."""
    if len(kept) >= MOST:
        kept.clear()
    kept[key] = value
    return value
