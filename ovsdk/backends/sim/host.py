"""The host as a resource of the kernel: cores that threads share, and the GIL that Python threads take turns with.

A thread computes in pieces. A piece is pure Python; or native code that keeps the GIL; or code that runs released. The
rule of the GIL is CPython's, unchanged from 3.2 on (documented with `sys.setswitchinterval` and in the C API's chapter
on thread states; the details are the comment at the head of Python/ceval_gil.c):

    take     a free GIL at once, at no cost; for a held one a thread waits
    ask      who has waited `switch_ns`, in which it changed hands to nobody, asks the holder for it; then waits anew
    let go   pure Python at once when asked, native code at its end; everyone who blocks or goes on released
    wake     letting go wakes whose wait began first; he is there `handoff_ns` later and takes it, or finds that a
             thread that was running has been faster: then he waits anew, and so may wait long
    force    who let go of it after he was asked does not take it again before another has

So a thread that is woken while another computes in pure Python begins a switch interval late. The operating system ends
a timed wait `overshoot_ns` late. Native threads (a launcher, a copy engine's) need cores but never the GIL.

`n` threads that compute on `c` cores all go at speed min(1, c / n), the limit of short time slices; an end is rounded up
to a whole ns. Who waits, for the GIL too, needs no core.

Not modelled: which core a woken thread is put on; priorities and slices of the operating system; what a switch costs the
caches; the time it takes to wake a thread that finds the GIL free.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import attrs

from ...errors import ConfigError, refuse
from ...ledger import DEVICE, NAMES
from .kernel import Body, Event, Kernel, Verb, first, wait

STAGES = (*(name for stage, name in enumerate(NAMES) if stage != DEVICE), "ask")
Ns = int | Fraction
"""A part of a piece: on shared cores it need not be whole."""


def _whole(least: int) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    def check(owner: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{attribute.name} of {type(owner).__name__} is an int of at least {least}; got {value!r}")

    return check


@attrs.frozen(kw_only=True)
class Gil:
    """What the GIL of an interpreter costs. Raises ConfigError for what is no whole number of ns.

    The defaults are CPython's interval, and a wake-up between two cores; `benchmarks/gil.py` measures all three.
    """

    switch_ns: int = attrs.field(default=5_000_000, validator=_whole(1))
    """`sys.getswitchinterval()`: how long a waiter lets pass before it asks."""
    handoff_ns: int = attrs.field(default=8_000, validator=_whole(0))
    """From letting go to when the waiter that this woke computes."""
    overshoot_ns: int = attrs.field(default=0, validator=_whole(0))
    """How much later than `switch_ns` the operating system ends a waiter's timed wait."""


def _share(owner: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{attribute.name} of {type(owner).__name__} is a share of a stage's time, from 0 to 1; got {value!r}")


@attrs.frozen
class Share:
    """How a stage's host time is divided: `parts` equal parts, of each first `gil` with the GIL, then the rest released.

    Each part lets go of the GIL once: a stage of many short native calls that release it has to get it back as often.
    Raises ConfigError for a share outside 0 to 1, and for a number of parts under 1.
    """

    gil: float = attrs.field(default=1.0, validator=_share)
    parts: int = attrs.field(default=1, validator=_whole(1))
    native: bool = False
    """What holds the GIL is native code, which nobody can ask for it before it ends."""


def _stages(_owner: Any, _attribute: attrs.Attribute[Any], value: Mapping[str, Share]) -> None:
    for name in value:
        if name not in STAGES:
            refuse("stage to divide the time of", name, STAGES)


@attrs.frozen(kw_only=True)
class HostModel:
    """A host. Without a GIL its lanes are processes, or threads of a free-threaded interpreter."""

    gil: Gil | None = None
    cores: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(1)))
    """None: one for each thread."""
    shares: Mapping[str, Share] = attrs.field(factory=dict, validator=_stages)
    """Stage name -> how its time is divided; a stage that is not listed is pure Python."""

    def contended(self, threads: int) -> bool:
        """Whether that many Python threads can be in each other's way."""
        return threads > 1 and (self.gil is not None or (self.cores is not None and self.cores < threads))

    def pieces(self, stage: str, ns: int) -> list[Piece]:
        """The time of a stage in pieces: `ns` in all."""
        return pieces(ns, self.shares.get(stage, PURE))

    def __str__(self) -> str:
        gil = self.gil
        lock = "without a GIL between them" if gil is None else f"a GIL between them, switch interval {gil.switch_ns / 1e6:g} ms"
        return lock if self.cores is None else f"{lock}, on {self.cores} core{'s' * (self.cores > 1)}"


class Hold(enum.Enum):
    """What a piece does with the GIL."""

    PYTHON = "holds it and gives it up when asked"
    NATIVE = "holds it and gives it up at its end, if asked"
    RELEASED = "does not hold it"

    def __repr__(self) -> str:
        return self.name


PYTHON, NATIVE, RELEASED = Hold.PYTHON, Hold.NATIVE, Hold.RELEASED
PURE = Share()


class Piece(NamedTuple):
    """Computing that a thread does in one go."""

    ns: int
    hold: Hold = PYTHON


def pieces(ns: int, share: Share) -> list[Piece]:
    """That much time, divided so; empty pieces are left out. The sum is `ns`."""
    if share is PURE:
        return [Piece(ns)]
    cuts = [ns * i // share.parts for i in range(share.parts + 1)]
    found: list[Piece] = []
    for begin, end in itertools.pairwise(cuts):
        held = round((end - begin) * share.gil)
        found += Piece(held, NATIVE if share.native else PYTHON), Piece(end - begin - held, RELEASED)
    return [piece for piece in found if piece.ns]


class Cores:
    """Cores that threads share. `count` None: as many as there are threads."""

    def __init__(self, kernel: Kernel, count: int | None) -> None:
        self._kernel, self._count, self._computing = kernel, count, 0
        self._served: Ns = 0  # what each thread that computes has been given since time 0, had it computed all along
        self._since_ns, self._changed = 0, Event("another speed of the cores")

    def serve(self, ns: Ns, stop: Event | None = None) -> Generator[Verb, Any, Ns]:
        """Compute for `ns` of a whole core's time, or until `stop` is set. Returns what is left."""
        if self._count is None and stop is None and ns.__class__ is int:
            yield ns  # the same, at a quarter of the cost
            return 0
        self._join(1)
        goal, stops, stopped = self._served + ns, () if stop is None else (wait(stop),), False
        while self._served < goal and not stopped:
            ended, _ = yield first(-((self._served - goal) // self._speed()), wait(self._changed), *stops)
            stopped = ended == 2
            self._pass()
        self._join(-1)
        return max(0, goal - self._served)

    def _join(self, more: int) -> None:
        self._pass()
        before, self._computing = self._speed(), self._computing + more
        if self._speed() != before:
            self._changed.set()
            self._changed.clear()

    def _pass(self) -> None:
        now_ns = self._kernel.now_ns
        self._served, self._since_ns = self._served + (now_ns - self._since_ns) * self._speed(), now_ns

    def _speed(self) -> Ns:
        return 1 if self._count is None or self._computing <= self._count else Fraction(self._count, self._computing)


class Lock:
    """The GIL. `asked` is set while a waiter has asked the holder for it."""

    def __init__(self, kernel: Kernel, gil: Gil) -> None:
        self._kernel, self._handoff_ns, self._patience_ns = kernel, gil.handoff_ns, gil.switch_ns + gil.overshoot_ns
        self.holder: Thread | None = None
        self.switches, self.asked = 0, Event("the GIL is asked for")
        self._last: Thread | None = None
        self._owes: Thread | None = None  # let go of it when asked: another has to take it first
        self._waiting: deque[Event] = deque()
        self._taken = Event("another takes the GIL")

    def take_at_once(self, thread: Thread) -> bool:
        """Take it if it is free. Not a verb: call it from anywhere."""
        if self.holder is None and self._owes is not thread:
            self._take(thread)
        return self.holder is thread

    def take(self, thread: Thread) -> Body:
        """Wait for it and take it. Who holds it keeps it."""
        if self.holder is thread:
            return
        if self._owes is thread:
            yield wait(self._taken)
        while self.holder is not None:
            yield from self._wait()
        self._take(thread)

    def let_go(self, thread: Thread) -> None:
        """Let go of it, if one holds it, and wake who has waited longest. Not a verb: call it from anywhere."""
        if self.holder is not thread:
            return
        self.holder, self._owes = None, thread if self.asked.is_set() else None
        if self._waiting:
            self._waiting.popleft().set()

    def _take(self, thread: Thread) -> None:
        self.holder, self._owes = thread, None
        self.asked.clear()
        if self._last is not thread:
            self._last, self.switches = thread, self.switches + 1
        self._taken.set()
        self._taken.clear()

    def _wait(self) -> Body:
        """One wait, as long as the interval lasts or until one is woken."""
        seen, woken = self.switches, Event("the GIL")
        self._waiting.append(woken)
        timed_out, _ = yield first(wait(woken), self._patience_ns)
        if not timed_out:
            yield self._handoff_ns
        elif not woken.is_set():  # it may have been, at this very instant
            self._waiting.remove(woken)
            if self.holder is not None and self.switches == seen:
                self.asked.set()


Told = Callable[[int, int], None]
"""Is given begin and end, in ns, of each wait for the GIL that took time."""


class Thread:
    """A thread that runs Python: it computes with cores and GIL of its host, and lets go of the GIL when it blocks.

    `waited_ns` and `waits` count what it waited for the GIL. It does not hold it at first.
    """

    def __init__(self, host: Host, name: str, told: Told | None = None) -> None:
        self.host, self.name, self._told = host, name, told
        self.waited_ns = self.waits = 0

    def take_at_once(self) -> bool:
        """Take the GIL if it is free; return whether it is held now. Not a verb."""
        return self.host.lock is None or self.host.lock.take_at_once(self)

    def take(self) -> Body:
        """Wait for the GIL."""
        lock, kernel = self.host.lock, self.host.kernel
        if lock is not None and not lock.take_at_once(self):
            begin_ns = kernel.now_ns
            yield from lock.take(self)
            self._count(begin_ns, kernel.now_ns)

    def let_go(self) -> None:
        """Let go of the GIL, if it is held. Not a verb."""
        if self.host.lock is not None:
            self.host.lock.let_go(self)

    def compute(self, work: Iterable[Piece]) -> Body:
        """Do the pieces, one after the other; the GIL is held at the end."""
        if self.host.lock is None:
            yield from self.host.cores.serve(sum(piece.ns for piece in work))
            return
        yield from self._give_way()
        for piece in work:
            yield from (self._released(piece) if piece.hold is RELEASED else self._held(piece))

    def block(self, verb: Verb) -> Body:
        """Do the verb; if it cannot be done at this instant, without the GIL, which is taken again then. Returns its value."""
        if self.host.lock is None:
            return (yield verb)
        must_wait, value = yield first(verb, 0)
        if must_wait:
            self.let_go()
            value = yield verb
            yield from self.take()
        return value

    def _released(self, piece: Piece) -> Body:
        self.let_go()
        yield from self.host.cores.serve(piece.ns)
        yield from self.take()

    def _held(self, piece: Piece) -> Body:
        left: Ns = piece.ns
        asked = self.host.lock.asked if self.host.lock is not None and piece.hold is PYTHON else None
        yield from self.take()
        while left:
            left = yield from self.host.cores.serve(left, asked)
            yield from self._give_way()

    def _give_way(self) -> Body:
        """At a boundary: let go of the GIL if asked."""
        lock = self.host.lock
        if lock is not None and lock.holder is self and lock.asked.is_set():
            self.let_go()
            yield from self.take()

    def _count(self, begin_ns: int, end_ns: int) -> None:
        self.waits += 1
        self.waited_ns += end_ns - begin_ns
        if self._told is not None and begin_ns < end_ns:
            self._told(begin_ns, end_ns)


class HostLane:
    """How a thread launches: it enqueues as its launch stage computes, and blocks without the GIL."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def work(self, ns: int) -> Body:
        """See `servers.Lane.work`."""
        yield from self._thread.compute(self._thread.host.model.pieces("launch", ns))

    def block(self, verb: Verb) -> Body:
        """See `servers.Lane.block`."""
        yield from self._thread.block(verb)


class Host:
    """A host in a kernel: its cores, and its GIL in `lock` if it has one."""

    def __init__(self, kernel: Kernel, model: HostModel) -> None:
        self.kernel, self.model = kernel, model
        self.cores = Cores(kernel, model.cores)
        self.lock = None if model.gil is None else Lock(kernel, model.gil)

    def thread(self, name: str, told: Told | None = None) -> Thread:
        """A new thread that runs Python."""
        return Thread(self, name, told)

    def native(self, ns: int) -> Body:
        """Compute on a thread that never needs the GIL."""
        yield from self.cores.serve(ns)
