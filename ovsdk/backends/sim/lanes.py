"""`driver="threads"` in virtual time: the lanes of the same lane table over the same ledger, without a thread.

The scheduling lane is the caller's, as with threads: its time passes in the clock's `lap` and `wait`, which pump the
kernel. The execution lane is a process there, so it works meanwhile. A stage body is atomic at its begin and its price
follows. Handing a step over costs nothing; the finish of an amend, on the execution lane, is part of amend's price.
Not modelled: the GIL. The lanes never wait for each other, as if all host work let go of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...driver import LANES, Driver, sooner
from ...ledger import AMEND, DEVICE, PREPARE, RETIRE
from ...stages import Stages
from ...types import BLOCKED, MOVED, Progress, Span
from .kernel import BEGIN, Body, Event, sleep, wait

if TYPE_CHECKING:
    from .device import VirtualClock

SCHEDULING, EXECUTION = LANES["threads"]["scheduling"], LANES["threads"]["execution"]


class LanesDriver(Driver):
    """Two host lanes in virtual time. Takes the decisions that every driver takes."""

    kind, lane = "threads", "scheduling"
    clock: VirtualClock

    def __init__(self, stages: Stages) -> None:
        super().__init__(stages)
        stages.notes.append("two host lanes, without a GIL between them")
        self._work, self._amended, self._over = Event("work for the execution lane"), False, False
        self.clock.kernel.spawn("execution lane", self._execute(), server=True)

    def advance(self, timeout_s: float | None = None) -> Progress:
        """See `Driver.advance`: one move of the scheduling lane; the execution lane moves while that takes time."""
        stage = self.ledger.next_of(SCHEDULING)
        if stage < 0:
            return self._need(stage, timeout_s)
        if stage == AMEND:
            self._amend()
        else:
            self.stages.move(stage, self.lane)
        if stage != RETIRE:
            self._work.set()
        return MOVED

    def shut(self) -> None:
        """The execution lane ends when it has done what it does."""
        self._over = True
        self._work.set()

    # ---- scheduling lane ----

    def _amend(self) -> None:
        begin_ns, number = self.clock.now_ns(), self.stages.amend()
        self._passed(AMEND, "amend", self.lane, number, begin_ns, self.clock.lap(AMEND, number, self.stages.features(AMEND, number)))
        self._amended = True

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
        while not self._over:
            yield sleep(0, BEGIN)  # all that ends now has ended
            stage = self.ledger.next_of(EXECUTION)
            if self._amended:
                self._finish()
            elif stage >= 0:
                yield from self._move(stage)
            else:
                yield from self._rest()

    def _move(self, stage: int) -> Body:
        begin_ns, number = self.clock.now_ns(), self.stages.work(stage)
        staged = self.clock.take_staged()
        yield self.clock.price_ns(stage, number, self.stages.features(stage, number))
        self.clock.let_in(staged, number)
        self._passed(stage, self.stages.settle(stage), "execution", number, begin_ns, self.clock.now_ns())
        self.signal.set()

    def _finish(self) -> None:
        self._amended = False
        number = self.ledger.ended[AMEND]
        self.stages.finish(number)
        self.clock.let_in(self.clock.take_staged(), number)
        self.stages.settle(AMEND)
        self.signal.set()

    def _rest(self) -> Body:
        begin_ns = self.clock.now_ns()
        while not (self._amended or self._over or self.ledger.next_of(EXECUTION) >= 0):
            self._work.clear()
            yield wait(self._work)
        self._emit("wait batch", "execution", self.ledger.begun[PREPARE], begin_ns, self.clock.now_ns())

    def _passed(self, stage: int, what: str, lane: str, number: int, begin_ns: int, end_ns: int) -> None:
        self.stages.stage_ns[stage] += end_ns - begin_ns
        self._emit(what, lane, number, begin_ns, end_ns)

    def _emit(self, what: str, lane: str, number: int, begin_ns: int, end_ns: int) -> None:
        if self.stages.emit is not None:
            self.stages.emit(Span(lane, what, number, begin_ns, end_ns))
