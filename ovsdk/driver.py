"""The inline driver: one host thread, the default. `advance` does one move, for a loop of somebody's; `drive` does all of them.

On CPython a second Python thread waits for the GIL, and an accelerator's runtime already launches from a thread of its
own, so one thread hides all there is to hide. The same code drives a real device and virtual time.

One move is one stage, or one wait. The order is the ledger's: launch, amend, prepare, plan, retire; so launch(k+1)
precedes the first wait for k whenever plan(k+1) was allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from .interfaces import Future
from .ledger import AMEND, DEVICE, LAUNCH, NEED_ARRIVAL, NEED_DEVICE, ORDER, PLAN, PREPARE, RETIRE
from .stages import Stages, Step
from .types import BLOCKED, FINISHED, MOVED, Progress

LANES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "inline": {"host": ORDER},
    "threads": {"scheduling": (AMEND, PLAN, RETIRE), "execution": (LAUNCH, PREPARE)},
}
"""Driver -> lane -> the stages that it runs, first choice first."""
SCHEDULING, EXECUTION = LANES["threads"]["scheduling"], LANES["threads"]["execution"]


class Driver:
    """Drives one run. Use `ovsdk.run`, or `ovsdk.start` and `advance` from a loop of your own."""

    kind, lane = "inline", "host"

    def __init__(self, stages: Stages) -> None:
        self.stages, self.ledger, self.clock = stages, stages.ledger, stages.clock
        self._begin_next, self._moves = self.ledger.begin_next, stages.moves(self.lane)
        self.signal = self.clock.signal()
        stages.admission.signal = self.signal

    def advance(self, timeout_s: float | None = None) -> Progress:
        """Make one move. Where nothing can be done, wait up to `timeout_s` seconds of the clock (None: as long as it takes).

        Returns MOVED, BLOCKED (the timeout passed) or FINISHED. Errors of steps are raised by `result`.
        """
        stage = self._begin_next()
        if stage >= 0:
            self._moves[stage]()
            return MOVED
        return self._need_device(timeout_s) if stage == NEED_DEVICE else self._need(stage, timeout_s)

    def drive(self) -> None:
        """`advance` until FINISHED: the same moves, sooner, for the ledger need not be asked what comes after a plan or a wait."""
        if self.stages.amends or type(self).advance is not Driver.advance:
            while self.advance() is not FINISHED:
                pass
            return
        while self.lane == "host" and self.ledger.ended[LAUNCH] < self.ledger.ended[PLAN]:
            self.advance()
        begin, begun, ended = self.ledger.begin_turn, self.ledger.begun, self.ledger.ended
        moves, need_device = (self._entering(), *self._moves[1:]), self._need_device
        retire = moves[RETIRE]
        while True:
            stage = begin()
            if stage >= 0:
                moves[stage]()
            elif stage != NEED_DEVICE:
                if self._need(stage, None) is FINISHED:
                    return
            elif need_device(None) is MOVED and ended[DEVICE] > ended[RETIRE]:  # who waited could plan no further, and has a result
                begun[RETIRE] += 1
                retire()

    def _entering(self) -> Callable[[], object]:
        """A plan, with the prepare and the launch that follow it on this lane if it gave a batch."""
        plan, prepare, launch, *_ = self._moves
        begun, ended = self.ledger.begun, self.ledger.ended

        def enter() -> None:
            plan()
            if ended[PLAN] > ended[PREPARE]:
                begun[PREPARE] += 1
                prepare()
                begun[LAUNCH] += 1
                launch()

        return enter if self.lane == "host" else plan

    def close(self) -> None:
        """Ask no more: what is in flight still completes and retires. Any thread, or a signal handler."""
        self.stages.closing = True
        self.signal.set()

    def shut(self) -> None:
        """Let go of what the driver itself holds (threads). The run cannot go on."""

    def _need(self, need: int, timeout_s: float | None) -> Progress:
        if need == NEED_DEVICE:
            return self._need_device(timeout_s)
        return self._need_arrival(timeout_s) if need == NEED_ARRIVAL else FINISHED

    def _need_device(self, timeout_s: float | None) -> Progress:
        stages = self.stages
        step = stages.oldest()
        if stages.lost is None and not done(step.futures):
            until_ns, deadline_ns = self._wait_device(step, timeout_s)
            if not done(step.futures):
                if until_ns != deadline_ns:
                    return BLOCKED
                stages.overdue(step)
        stages.collect(step)
        return MOVED

    def _wait_device(self, step: Step, timeout_s: float | None) -> tuple[int | None, int | None]:
        """Wait for a step's futures; return until when at most, and the device's deadline."""
        begin_ns = self.clock.now_ns()
        deadline_ns = self.stages.deadline_ns(begin_ns)
        until_ns = sooner(deadline_ns, begin_ns, timeout_s)
        end_ns = self.clock.wait(step.futures, None, until_ns)
        if self.stages.emit is not None:
            self.stages.emit((self.lane, "wait device", step.number, begin_ns, end_ns))
        return until_ns, deadline_ns

    def _need_arrival(self, timeout_s: float | None) -> Progress:
        admission, stages = self.stages.admission, self.stages
        self.signal.clear()
        if admission.ready(stages.now_s()):
            self.ledger.wake()
        elif stages.closing or admission.exhausted():
            stages.closing = True
            self.ledger.wake()
        else:
            return self._sleep(admission.next_s(), timeout_s)
        return MOVED

    def _sleep(self, next_s: float | None, timeout_s: float | None) -> Progress:
        begin_ns = self.clock.now_ns()
        arrival_ns = None if next_s is None else self.stages.begin_ns + _ceil_ns(next_s)
        end_ns = self.clock.wait((), self.signal, sooner(arrival_ns, begin_ns, timeout_s))
        if self.stages.emit is not None:
            self.stages.emit((self.lane, "wait arrival", self.ledger.begun[PLAN], begin_ns, end_ns))
        return MOVED if self.signal.is_set() or self.stages.admission.ready(self.stages.now_s()) else BLOCKED


class SchedulingLane(Driver):
    """Drives with two lanes, from the one that schedules. What it has planned or amended it hands over to the one that executes."""

    kind, lane = "threads", "scheduling"

    def __init__(self, stages: Stages) -> None:
        super().__init__(stages)
        stages.launch_lane = "execution"
        moves = list(self._moves)
        self._plan_only, moves[PLAN], moves[AMEND] = moves[PLAN], self._plan, self._amend
        self._moves = tuple(moves)
        self._begin_next = partial(self.ledger.begin_first, SCHEDULING) if stages.amends else self.ledger.begin_turn

    def _plan(self) -> None:
        planned = self.ledger.ended
        number = planned[PLAN]
        self._plan_only()
        if planned[PLAN] > number:
            self._hand_over(number)

    def _amend(self) -> None:
        begin_ns, number = self.clock.now_ns(), self.stages.amend()
        end_ns = self.clock.lap(AMEND, number, self.stages.features(AMEND, number))
        self.stages.stage_ns[AMEND] += end_ns - begin_ns
        if self.stages.emit is not None:
            self.stages.emit((self.lane, "amend", number, begin_ns, end_ns))
        self._hand_over(number, amended=True)

    def _hand_over(self, number: int, amended: bool = False) -> None:
        """Give a step to the execution lane: to prepare and launch it, or for the launch that its amend allows."""
        raise NotImplementedError


def done(futures: tuple[Future, ...]) -> bool:
    """Whether all are done."""
    for future in futures:  # noqa: SIM110  # a generator costs more, and this is asked every step
        if not future.done():
            return False
    return True


def _ceil_ns(seconds: float) -> int:
    """The first ns at which a float of seconds has been reached."""
    ns = int(seconds * 1e9)
    return ns if ns / 1e9 >= seconds else ns + 1


def sooner(deadline_ns: int | None, now_ns: int, timeout_s: float | None) -> int | None:
    """The deadline, or the end of the caller's patience if that comes first."""
    if timeout_s is None:
        return deadline_ns
    until_ns = now_ns + _ceil_ns(timeout_s)
    return until_ns if deadline_ns is None else min(until_ns, deadline_ns)
