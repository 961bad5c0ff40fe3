"""`driver="threads"` in virtual time: the lanes of the same lane table over the same ledger, without a thread.

The scheduling lane is the caller's, as with threads: its time passes in the clock's `lap` and `wait`, which pump the
kernel. The execution lane is a process there, so it works meanwhile. A stage body is atomic at its begin and its price
follows; then it enqueues what the body has submitted. Handing a step over costs nothing; the finish of an amend, on the
execution lane, is part of amend's price, but for its enqueue.

The price file's [machine] says what the lanes share (see `host`); without cores and gil each has its own. With a GIL a lane
that computes holds it, and one that is woken, by a step or by a result, gets it first, or else waits: a span "wait GIL".
As in `threads`, a lane that hands a step over first blocks until it has been taken; but only if it would go on computing, for in
virtual time it blocks at once otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from ...driver import EXECUTION, LANES, SCHEDULING, SchedulingLane, done, sooner
from ...interfaces import Future, Signal
from ...ledger import AMEND, DEVICE, LAUNCH, NAMES, PREPARE, RETIRE
from ...stages import Stages
from ...types import BLOCKED, MOVED, Progress, Span
from .device import FREE, VirtualClock
from .host import Host, HostLane, HostModel, Thread
from .kernel import BEGIN, Body, Event, sleep, wait

APART = HostModel()
"""Lanes that are not in each other's way."""


class LanesDriver(SchedulingLane):
    """Two host lanes in virtual time. Takes the decisions that every driver takes."""

    def __init__(self, stages: Stages) -> None:
        self._virtual = cast(VirtualClock, stages.clock)
        launcher = self._virtual.prices.machine.level > 0
        shared = self._virtual.host.model.contended(len(LANES["threads"]) + launcher)
        self._host = self._virtual.host if shared else Host(self._virtual.kernel, APART)
        self._here, self._there = (self._host.thread(lane, partial(self._waited, lane)) for lane in LANES["threads"])
        self._launches = HostLane(self._there) if shared else FREE
        if shared:
            self._virtual.by_events(f"two host lanes, {self._host.model}")
            stages.clock = LaneClock(self._virtual, self._here)
        super().__init__(stages)
        stages.notes.append(f"two host lanes, {self._host.model}")
        self._work, self._taken = Event("work for the execution lane"), Event("the execution lane to take a step")
        self._amended = self._over = False
        self._rests = True
        self._virtual.kernel.spawn("execution lane", self._execute(), server=True)

    def shut(self) -> None:
        """The execution lane ends when it has done what it does."""
        self._over = True
        self._work.set()
        self._here.let_go()
        if self._host.lock is not None:
            waited = ", ".join(f"{thread.name} {thread.waited_ns / 1e6:.3f} ms" for thread in (self._here, self._there))
            self.stages.notes.append(f"waited for the GIL: {waited}")

    # ---- scheduling lane ----

    def _hand_over(self, number: int, amended: bool = False) -> None:
        """Wake the execution lane; if it rests, and this one would keep the GIL, wait until it has taken the step."""
        self._amended = self._amended or amended
        acknowledged, begin_ns = self._rests and self._host.lock is not None and self._goes_on(), self.clock.now_ns()
        self._taken.clear()
        self._work.set()
        if acknowledged:
            self._emit("hand-over", self.lane, number, begin_ns, self.clock.wait((), self._taken, None))

    def _goes_on(self) -> bool:
        """Whether this lane has something to compute now, and would keep the GIL."""
        if self.ledger.next_of(SCHEDULING) >= 0:
            return True
        futures = self.stages.oldest().futures
        return bool(futures) and done(futures)

    def _need_device(self, timeout_s: float | None) -> Progress:
        """Wait for the oldest step's futures; where it has not been launched yet, for the execution lane."""
        if self.ledger.begun[DEVICE] > self.ledger.ended[DEVICE]:
            return super()._need_device(timeout_s)
        self.signal.clear()
        begin_ns = self.clock.now_ns()
        end_ns = self.clock.wait((), self.signal, sooner(None, begin_ns, timeout_s))
        self._emit("wait launch", self.lane, self.ledger.ended[DEVICE], begin_ns, end_ns)
        return MOVED if self.signal.is_set() else BLOCKED

    # ---- execution lane ----

    def _execute(self) -> Body:
        yield from self._rest()
        while not self._over:
            yield sleep(0, BEGIN)  # all that ends now has ended
            stage = self.ledger.next_of(EXECUTION)
            if self._amended:
                yield from self._finish()
            elif stage >= 0:
                yield from self._move(stage)
            else:
                yield from self._rest()
        self._there.let_go()

    def _move(self, stage: int) -> Body:
        begin_ns, number = self.clock.now_ns(), self.stages.work(stage)
        staged = self._virtual.take_staged()
        price_ns = self._virtual.price_ns(stage, number, self.stages.features(stage, number))
        yield from self._there.compute(self._host.model.pieces(NAMES[stage], price_ns))
        yield from self._virtual.enter(staged, number, self._launches)
        what, end_ns = self.stages.settle(stage), self.clock.now_ns()
        self.stages.stage_ns[stage] += end_ns - begin_ns
        self._emit(what, "execution", number, begin_ns, end_ns)
        if stage == LAUNCH:
            self.signal.set()

    def _finish(self) -> Body:
        self._amended = False
        begin_ns, number = self.clock.now_ns(), self.ledger.ended[AMEND]
        self.stages.finish(number)
        yield from self._virtual.enter(self._virtual.take_staged(), number, self._launches)
        self.stages.settle(AMEND)
        self._emit("finish", "execution", number, begin_ns, self.clock.now_ns())
        self.signal.set()

    def _rest(self) -> Body:
        """Blocks at least once when it does not hold the GIL: the lane first looks before the first plan has ended."""
        begin_ns, self._rests = self.clock.now_ns(), True
        while not (self._amended or self._over or self.ledger.next_of(EXECUTION) >= 0):
            self._work.clear()
            yield from self._there.block(wait(self._work))
        self._rests = False
        self._taken.set()
        self._emit("wait batch", "execution", self.ledger.begun[PREPARE], begin_ns, self.clock.now_ns())

    # ---- both ----

    def _waited(self, lane: str, begin_ns: int, end_ns: int) -> None:
        stage = RETIRE if lane == "scheduling" else LAUNCH
        self._emit("wait GIL", lane, self.ledger.ended[stage], begin_ns, end_ns)

    def _emit(self, what: str, lane: str, number: int, begin_ns: int, end_ns: int) -> None:
        if self.stages.emit is not None:
            self.stages.emit(Span(lane, what, number, begin_ns, end_ns))


class LaneClock:
    """The clock as the scheduling lane sees it where lanes share something: it computes as `thread`, and blocks without the GIL.

    The rest of the world goes on as on the clock beneath, which is also the execution lane's.
    """

    def __init__(self, clock: VirtualClock, thread: Thread) -> None:
        self._clock, self._thread = clock, thread
        thread.take_at_once()

    def now_ns(self) -> int:
        """See `Clock.now_ns`."""
        return self._clock.now_ns()

    def signal(self) -> Signal:
        """See `Clock.signal`."""
        return self._clock.signal()

    def lap(self, stage: int, step: int, features: Mapping[str, float] | None) -> int:
        """See `VirtualClock.lap`: it takes longer where the lane has to share."""
        staged, price_ns = self._clock.take_staged(), self._clock.price_ns(stage, step, features)
        name = "ask" if features is None else NAMES[stage]
        self._pump(self._thread.compute(self._thread.host.model.pieces(name, price_ns)))
        if staged:
            self._pump(self._clock.enter(staged, step, HostLane(self._thread)))
        return self._clock.now_ns()

    def wait(self, futures: Sequence[Future], signal: Signal | None, deadline_ns: int | None) -> int:
        """See `VirtualClock.wait`; returns with the GIL, which may be after the deadline."""
        if not ((futures and done(tuple(futures))) or (signal is not None and signal.is_set())):
            self._thread.let_go()
        self._clock.wait(futures, signal, deadline_ns)
        if not self._thread.take_at_once():
            self._pump(self._thread.take())
        return self._clock.now_ns()

    def _pump(self, body: Body) -> None:
        """Let time pass until the lane has done that, and all else that ends then."""
        kernel = self._clock.kernel
        process = kernel.spawn(f"{self._thread.name} lane", body)
        if not kernel.run_while(lambda: not process.ended.is_set()):
            raise kernel.deadlock()
        kernel.run_until(kernel.now_ns)
