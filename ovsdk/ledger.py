"""The overlap protocol as a ledger: two counters a stage, one chain of inequalities. All of the protocol is here.

A step goes through `plan -> prepare -> launch -> (amend) -> device -> retire`. Steps are numbers 0, 1, 2, ...;
each stage begins and ends them in order, so a stage is two counters: how many steps it has begun and ended.

    begun[s] <= ended[s-1]                    a stage begins only what the stage before has ended
    ended[s] <= begun[s]                      each stage ends in step order
    begun[PLAN] <= ended[RETIRE] + depth      at most `depth` steps in flight
    begun[RETIRE] + depth <= ended[PLAN],     FIXED LAG: what a plan has seen is a function of
        or closed, idle or waiting            earlier answers, never of timing
    plan, amend and retire never overlap      a scheduler needs no lock
    amend(k) begins when every step before k has retired; launch(k+1) when amend(k) has ended;
    a step without amend passes that stage when its launch ends
    in a run with amends, an ask begins       or how many amends a plan has seen would be
        when the oldest step in flight has    a matter of timing
        passed that stage

A plan that was begun is answered: `end(PLAN)` (a batch) or `decline(IDLE | WAIT | CLOSED)`. After IDLE or WAIT
the next retire asks again; after IDLE with nothing in flight only `wake()` does; WAIT with nothing in flight is
refused, for nothing could ever end it. An illegal move raises DriverError and changes nothing.

Nothing here knows of payloads, clocks, threads or devices. Every counter has one writer at a time, whichever lane
runs that stage, and only grows (but for a declined plan, which its own lane undoes): a lane that reads an old value
of another lane's counter waits, it never runs too early. Two lanes therefore share a ledger without a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .errors import ConfigError, DriverError

PLAN, PREPARE, LAUNCH, AMEND, DEVICE, RETIRE = STAGES = tuple(range(6))
NAMES = ("plan", "prepare", "launch", "amend", "device", "retire")
ORDER = (LAUNCH, AMEND, PREPARE, PLAN, RETIRE)
"""Feed the device first; plan before retire, as fixed lag has it."""

OPEN, IDLE, WAIT, CLOSED = STATES = tuple(range(4))
STATE_NAMES = ("open", "idle", "waiting", "closed")

NEED_DEVICE, NEED_ARRIVAL, FINISHED = -1, -2, -3


class Ledger:
    """Counters of one run. `depth` >= 1 is the most steps in flight; `asks` counts the plans begun.

    `amends`: whether steps of this run may have an amend stage.
    Raises ConfigError for a depth that is not a positive int.
    """

    __slots__ = ("amends", "asks", "begun", "depth", "ended", "state")

    def __init__(self, depth: int, amends: bool = False) -> None:
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise ConfigError(f"depth is the most steps in flight, an int of at least 1 (1 = no overlap); got {depth!r}")
        self.depth, self.amends, self.asks, self.state = depth, amends, 0, OPEN
        self.begun, self.ended = [0] * 6, [0] * 6

    @property
    def in_flight(self) -> int:
        """Steps planned and not yet retired."""
        return self.ended[PLAN] - self.ended[RETIRE]

    def may_begin(self, stage: int) -> bool:
        """Whether `begin(stage)` is legal now. DEVICE is never begun by hand: the end of its launch (or amend) begins it."""
        begun, ended = self.begun, self.ended
        if stage == PREPARE:
            return begun[PREPARE] < ended[PLAN]
        if stage == LAUNCH:
            return begun[LAUNCH] < ended[PREPARE] and begun[LAUNCH] == ended[LAUNCH] == ended[AMEND]
        if stage == DEVICE or begun[PLAN] != ended[PLAN] or begun[AMEND] != ended[AMEND] or begun[RETIRE] != ended[RETIRE]:
            return False
        if stage == PLAN:
            amend_due = self.amends and ended[AMEND] == ended[RETIRE] < ended[PLAN]
            return self.state == OPEN and begun[PLAN] < ended[RETIRE] + self.depth and not amend_due
        if stage == AMEND:
            return begun[AMEND] == ended[RETIRE] and begun[AMEND] < ended[LAUNCH]
        return begun[RETIRE] < ended[DEVICE] and (self.state != OPEN or begun[RETIRE] + self.depth <= ended[PLAN])

    def next(self) -> int:
        """The host stage to begin now, or NEED_DEVICE, NEED_ARRIVAL or FINISHED."""
        return self.next_of(ORDER)

    def begin_next(self) -> int:
        """Begin the stage that `next` names, and return it; or return what else it says. The step is `ended[stage]`.

        For a run with one lane, which ends a host stage before it begins another: then what has begun need not be read.
        The same as `begin(next())`, unrolled, for a driver asks it five times a step; a test compares them in every such state.
        """
        planned, prepared, launched, amended, _, retired = self.ended
        if launched < prepared and launched == amended:
            self.begun[LAUNCH] = launched + 1
            return LAUNCH
        if retired == amended < launched:
            self.begun[AMEND] = amended + 1
            return AMEND
        if prepared < planned:
            self.begun[PREPARE] = prepared + 1
            return PREPARE
        if self.amends and amended == retired < planned:
            return NEED_DEVICE
        return self.begin_turn()

    def begin_turn(self) -> int:
        """`begin_next` for who plans and retires alone: on a lane of its own, or with nothing to prepare or launch. Only without amends."""
        planned, _, _, _, done, retired = self.ended
        is_open = self.state == OPEN
        if is_open and planned < retired + self.depth:
            self.begun[PLAN] = planned + 1
            self.asks += 1
            return PLAN
        if retired < done and (not is_open or retired + self.depth <= planned):
            self.begun[RETIRE] = retired + 1
            return RETIRE
        return NEED_DEVICE if planned > retired else self.need()

    def begin_launch(self) -> bool:
        """Begin the next launch if it may begin: for the one lane that launches, which ends one before it begins another."""
        _, prepared, launched, amended, _, _ = self.ended
        if launched < prepared and launched == amended:
            self.begun[LAUNCH] = launched + 1
            return True
        return False

    def next_of(self, stages: tuple[int, ...]) -> int:
        """The first of `stages`, those of one lane, that may begin now; else what the run needs: see `need`."""
        for stage in stages:
            if self.may_begin(stage):
                return stage
        return self.need()

    def begin_first(self, stages: tuple[int, ...]) -> int:
        """Begin the stage that `next_of` names, and return it; or return what else it says."""
        stage = self.next_of(stages)
        if stage >= 0:
            self.begun[stage] += 1
            self.asks += stage == PLAN
        return stage

    def need(self) -> int:
        """NEED_DEVICE with steps in flight; else FINISHED if closed, NEED_ARRIVAL if not."""
        if self.begun[PLAN] > self.ended[RETIRE]:
            return NEED_DEVICE
        return FINISHED if self.state == CLOSED else NEED_ARRIVAL

    def begin(self, stage: int) -> int:
        """Begin `stage` of the next step and return that step's number. Raises DriverError if that is illegal."""
        if not self.may_begin(stage):
            raise DriverError(f"cannot begin {NAMES[stage]} of step {self.begun[stage]}: {self!r}")
        step = self.begun[stage]
        self.begun[stage] = step + 1
        if stage == PLAN:
            self.asks += 1
        return step

    def end(self, stage: int, amend: bool = False) -> int:
        """End `stage` of its oldest begun step and return that step's number; `amend` says whether a launch has that stage.

        Raises DriverError if the stage has begun nothing, or for an amend in a run without.
        """
        step = self.ended[stage]
        if amend and not self.amends:
            raise DriverError(f"this run has no amend stage: {self!r}")
        if step >= self.begun[stage]:
            raise DriverError(f"cannot end {NAMES[stage]} of step {step}, which has not begun: {self!r}")
        if stage == LAUNCH and not amend:  # before ended[LAUNCH], or the other lane would see an amend to begin
            self.begun[AMEND] = self.ended[AMEND] = self.begun[DEVICE] = step + 1
        elif stage == AMEND:
            self.begun[DEVICE] = step + 1
        elif stage == RETIRE and self.state != CLOSED:
            self.state = OPEN
        self.ended[stage] = step + 1
        return step

    def ending(self, stage: int) -> Callable[[], object]:
        """`end(stage)` without its checks, for the lane that has begun that stage. No amend follows a launch that ends so."""
        begun, ended = self.begun, self.ended

        def end() -> None:
            ended[stage] += 1

        def end_launch() -> None:
            begun[AMEND] = ended[AMEND] = begun[DEVICE] = ended[LAUNCH] + 1
            ended[LAUNCH] += 1

        def end_retire() -> None:
            if self.state != CLOSED:
                self.state = OPEN
            ended[RETIRE] += 1

        own: dict[int, Callable[[], object]] = {LAUNCH: end_launch, AMEND: partial(self.end, AMEND), RETIRE: end_retire}
        return own.get(stage, end)

    def decline(self, state: int) -> None:
        """Answer the plan that was begun with IDLE, WAIT or CLOSED instead of a batch.

        Raises DriverError outside a plan, for another state, and for WAIT with nothing in flight.
        """
        if self.begun[PLAN] != self.ended[PLAN] + 1 or state not in (IDLE, WAIT, CLOSED):
            raise DriverError(f"cannot answer state {state!r} here, only idle, waiting or closed to a plan that was begun: {self!r}")
        if state == WAIT and not self.in_flight:
            raise DriverError(f"WAIT with nothing in flight: no earlier result can end it: {self!r}")
        self.begun[PLAN] -= 1
        self.state = state

    def wake(self) -> None:
        """Ask again after IDLE with nothing in flight, because something has arrived. Raises DriverError at any other time."""
        if self.state != IDLE or self.begun[PLAN] != self.ended[RETIRE]:
            raise DriverError(f"only a run that is idle with nothing in flight can be woken: {self!r}")
        self.state = OPEN

    def __repr__(self) -> str:
        counters = " ".join(f"{n}={e}/{b}" for n, e, b in zip(NAMES, self.ended, self.begun, strict=True))
        return f"<Ledger depth={self.depth} {STATE_NAMES[self.state]} {counters}>"
