"""Plan late: `plan_when="late"` puts off a plan until the device is about to run dry, so that it sees more arrivals.

At depth 2 a batch that is planned as soon as it may be waits a whole step for the device, and who arrives meanwhile waits
for the next. Late planning gives that time back:

    plan at    end of the oldest step in flight, as predicted, less 1.2 x the way to the device (plan to launch's end)
    at most    until the oldest step has really ended: a result is never held back, and a wrong prediction costs one way
    at once    with nothing in flight, in a run that closes, and while predictions are poor: fewer than 8 of the last 16
               alike steps seen, or the shortest of them more than a quarter below their median

    end        = max(end of the step before, launched) + the shortest of the last 16 steps of the same launches
    the way    = the longest of the last 16

Both lean to the early side: an early plan misses an arrival, a late one idles the device. (A launch that waits for the device
makes the way long: such runs are planned asap.) All of it is read off the spans
of earlier steps, by drivers; policies read no clock. *When* an ask comes decides only which arrivals it is stamped
with, so decisions stay a function of the log, and a replay makes them at any `plan_when`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from .driver import LANES, Driver, done, sooner
from .errors import ConfigError
from .ledger import PLAN
from .stages import Step
from .types import BLOCKED, FINISHED, MOVED, Progress, Span

PLAN_WHEN = ("asap", "late")
WINDOW, FEWEST, SPREAD, MARGIN = 16, 8, 0.25, 1.2
"""Steps looked back on; fewest that make a prediction; largest (median - shortest) / median; the way is taken so many times."""
LAUNCHED = ("finish", "amend", "launch")
"""The stage after which a step lacks nothing but the device: the first of these that it has."""
_NEVER_NS = -(2**62)


class Forecast:
    """Predicts, from the spans it is shown, when to plan. Spans of other threads may come in at any time."""

    steps: Sequence[Step] = ()
    """The run's steps in flight, by number modulo their count."""

    def __init__(self) -> None:
        self._stages: dict[tuple[int, str], Span] = {}
        self._device: dict[int, list[Span]] = {}
        self._free_ns = _NEVER_NS
        self._ways: deque[int] = deque(maxlen=WINDOW)
        self._took: dict[tuple[str, ...], deque[int]] = {}

    def see(self, span: Span) -> None:
        """Take a span. A step is learned from when it retires, on the lane that also asks `plan_ns`."""
        if span.lane == "device":
            self._device.setdefault(span.step, []).append(span)
        elif span.what == "plan" or span.what in LAUNCHED:
            self._stages[span.step, span.what] = span
        elif span.what == "retire":
            self._learn(span.step)

    def plan_ns(self, oldest: Step) -> int | None:
        """When to plan while `oldest` is the oldest step in flight; None while predictions are poor."""
        launched_ns, took = self._launched_ns(oldest.number), sorted(self._took.get(oldest.kinds, ()))
        if launched_ns is None or len(took) < FEWEST or took[0] < (1 - SPREAD) * took[len(took) // 2]:
            return None
        return max(self._free_ns, launched_ns) + took[0] - math.ceil(MARGIN * max(self._ways))

    def _launched_ns(self, step: int) -> int | None:
        return next((self._stages[step, what].end_ns for what in LAUNCHED if (step, what) in self._stages), None)

    def _learn(self, step: int) -> None:
        device, launched_ns = self._device.pop(step, []), self._launched_ns(step)
        stages = {what: self._stages.pop((step, what), None) for what in ("plan", *LAUNCHED)}
        plan, launch = stages["plan"], stages["launch"]
        if not device or launched_ns is None or plan is None or launch is None:  # it failed on its way, or is not timed
            return
        self._ways.append(launch.end_ns - plan.begin_ns)
        end_ns = max(span.end_ns for span in device)
        self._took.setdefault(self.steps[step % len(self.steps)].kinds, deque(maxlen=WINDOW)).append(
            end_ns - max(self._free_ns, launched_ns)
        )
        self._free_ns = end_ns


class Late:
    """Any driver, with a wait before its plans. Has the methods of a Driver that a run needs.

    Raises ConfigError for a driver whose lanes are not in `ovsdk.driver.LANES`.
    """

    def __init__(self, driver: Driver, forecast: Forecast) -> None:
        order = LANES.get(driver.kind, {}).get(driver.lane)
        if order is None:
            raise ConfigError(f'plan_when="late" knows no lane {driver.lane!r} of a driver {driver.kind!r}; use plan_when="asap" with it')
        self.driver, self.close = driver, driver.close
        self._forecast, self._order = forecast, order
        self._delayed = self._too_long = 0
        forecast.steps = driver.stages.steps

    def advance(self, timeout_s: float | None = None) -> Progress:
        """See `Driver.advance`. The wait before a plan is a move; an arrival does not end it."""
        stages = self.driver.stages
        oldest = stages.oldest()  # not in flight: it has no futures
        if not stages.closing and self.driver.ledger.next_of(self._order) == PLAN and not done(oldest.futures):
            plan_ns = self._forecast.plan_ns(oldest)
            if plan_ns is not None and self.driver.clock.now_ns() < plan_ns:
                return self._wait(oldest, plan_ns, timeout_s)
        return self.driver.advance(timeout_s)

    def drive(self) -> None:
        """See `Driver.drive`."""
        while self.advance() is not FINISHED:
            pass

    def shut(self) -> None:
        """See `Driver.shut`. Notes for the report how many plans were late."""
        why = f", {self._too_long} until the device was done, predicted too long" if self._too_long else ""
        self.driver.stages.notes.append(
            f"planned late: {self._delayed} plans{why}" if self._delayed else "planned late: none, predictions were poor (see ovsdk.late)"
        )
        self.driver.shut()

    def _wait(self, oldest: Step, plan_ns: int, timeout_s: float | None) -> Progress:
        driver, begin_ns = self.driver, self.driver.clock.now_ns()
        end_ns = driver.clock.wait(oldest.futures, None, sooner(plan_ns, begin_ns, timeout_s))
        if driver.stages.emit is not None:
            driver.stages.emit((driver.lane, "wait late", driver.ledger.begun[PLAN], begin_ns, end_ns))
        if end_ns < plan_ns and not done(oldest.futures):
            return BLOCKED
        self._delayed += 1
        self._too_long += end_ns < plan_ns
        return MOVED
