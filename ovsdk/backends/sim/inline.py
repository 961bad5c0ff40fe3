"""The inline driver in virtual time. The same moves in the same order; a run of which no spans are kept makes them sooner.

Nobody looks at the clock between two moves but the scheduler, in its asks. So a stage whose price is a constant passes by itself; and
where it is known when the device is done, and nothing else happens until then, it is then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ...driver import Driver
from ...ledger import DEVICE, PLAN, STAGES
from ...stages import Stages, features_of
from ...types import MOVED, Answer, Progress
from .device import SimFuture, VirtualClock


class InlineDriver(Driver):
    """See `Driver`."""

    def __init__(self, stages: Stages) -> None:
        super().__init__(stages)
        self._virtual = cast(VirtualClock, stages.clock)
        shortly = stages.emit is None and self._virtual.alone
        self._patient = shortly and stages.deadline_ns(0) is None
        if shortly:
            self._moves = tuple(short(stages, stage) for stage in STAGES)

    def _need_device(self, timeout_s: float | None) -> Progress:
        stages, ledger = self.stages, self.ledger
        step = stages.steps[ledger.ended[DEVICE] % ledger.depth]
        if self._patient and timeout_s is None and stages.lost is None and len(step.futures) == 1:
            future = step.futures[0]
            if type(future) is SimFuture and self._virtual.kernel.pass_until(future.done_ns):
                stages.collect(step)
                return MOVED
        return super()._need_device(timeout_s)


def short(stages: Stages, stage: int) -> Callable[[], object]:
    """A stage's move without what only spans need."""
    clock, ended, spent = cast(VirtualClock, stages.clock), stages.ledger.ended, stages.stage_ns
    work, settle = stages._work[stage], stages._settle[stage]
    kernel, ready, heap = clock.kernel, clock.kernel._ready, clock.kernel._heap
    constant_ns, priced_ns = clock.constant_ns[stage], _price_of(stages, stage)
    planning = stage == PLAN

    def move() -> None:
        step, begin_ns = ended[stage], kernel.now_ns
        work(step)
        price_ns = constant_ns
        if price_ns is None or (planning and type(stages._answer) is Answer):
            price_ns = priced_ns(step)
        if price_ns and (ready or (heap and heap[0][0] <= kernel.now_ns + price_ns)):
            kernel.run_until(kernel.now_ns + price_ns)
        else:
            kernel.now_ns += price_ns
        if clock.staged:
            clock.enqueue_staged(step)
        settle()
        spent[stage] += kernel.now_ns - begin_ns

    return move


def _price_of(stages: Stages, stage: int) -> Callable[[int], int]:
    """What gives the price of that stage of a step whose body has run."""
    clock, steps, depth = cast(VirtualClock, stages.clock), stages.steps, stages.depth
    price = clock.priced[stage]
    if stage == PLAN or price is None:
        return lambda step: clock.price_ns(stage, step, stages.features(stage, step))
    ns = price.ns
    return lambda step: ns(features_of(steps[step % depth].batch), step)
