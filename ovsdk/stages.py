"""What each stage of a step does, once, for every driver; the drivers only decide when, and on which lane.

`work(stage)` begins the stage in the ledger and runs the user's code; its outcome, or what it raised, stays in the
step. The driver lets the stage's time pass (`Clock.lap`). `settle(stage)` ends it in the ledger. Between the two the
world may only see that the stage has begun.

An error of a step is a result like any other: it is known at the step's retire, in step order, never earlier, so that
decisions stay a function of the log. A step with an error passes its other stages as void.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .errors import DeviceLost, DeviceTimeout, ProtocolError, SchedulerProtocolError, StepError
from .interfaces import Admission, Backend, Executor, Future, Scheduler
from .ledger import AMEND, CLOSED, DEVICE, IDLE, LAUNCH, NAMES, PLAN, PREPARE, STAGES, WAIT, Ledger
from .log import RunLog, same
from .spans import told
from .types import Answer, Launch, SpanFields

NO_MORE, NOT_YET = Answer.CLOSED, Answer.WAIT  # CPython 3.11 finds a member of an enum by way of a property: slowly
STATE = {Answer.IDLE: IDLE, NOT_YET: WAIT, NO_MORE: CLOSED}
DECLINED = {IDLE: "idle ask", WAIT: "ask", CLOSED: "ask"}

NO_FEATURES: Mapping[str, float] = {}

Recovery = Callable[[int, str, Any, BaseException], str]
Emit = Callable[[SpanFields], None]


def features_of(batch: Any) -> Mapping[str, float]:
    """What prices the stages of a step with that batch."""
    return getattr(batch, "features", None) or NO_FEATURES


class Step:
    """The payload of a step in flight. It travels through the two queues of the threads driver."""

    inputs: Any = None
    late: Any = None
    amending = False
    """On its way to the execution thread for its second launch."""
    launched = False
    """Back from the execution thread."""
    kinds: tuple[str, ...] = ()
    futures: tuple[Future, ...] = ()
    result: Any = None
    failed_in = PLAN

    def __init__(self, number: int, batch: Any) -> None:
        self.number, self.batch = number, batch
        self.error: BaseException | None = None  # CPython finds an attribute of the class slowly, and this is asked in every stage

    def fail(self, stage: int, error: BaseException) -> None:
        """Keep the first error of this step."""
        if self.error is None:
            self.error, self.failed_in = error, stage


class Stages:
    """One run: its ledger, the steps in flight, its log and its spans. Which lane may call what is the drivers' business.

    `recover(step, stage, batch, error)` answers "stop" or "abandon" for a failed step.
    `emit`, if not None, is given every span. `results`, if not None, replace what the device computed (a replay).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        backend: Backend,
        *,
        depth: int,
        admission: Admission,
        recover: Recovery,
        log: RunLog | None = None,
        results: Mapping[int, Any] | None = None,
        emit: Emit | None = None,
    ) -> None:
        self.amends = hasattr(scheduler, "amend") and hasattr(executor, "finish")
        self.ledger, self.depth = Ledger(depth, self.amends), depth
        self.scheduler, self.executor, self.backend, self.admission = scheduler, executor, backend, admission
        self.recover, self.log, self.results, self.emit = recover, log, results, emit
        self.clock, self.stream = backend.clock, backend.stream()
        self.steps: list[Step] = [Step(-1, None)] * depth
        self.timed = emit is not None or backend.capabilities.can.get("wall_clock") is not True
        """Whether stages are timed: a virtual clock needs it, a real one only if somebody looks."""
        self.stage_ns = [0] * len(NAMES)
        self.begin_ns = self.clock.now_ns()
        self.launch_lane = "host"
        """The lane that launches; a driver with two says so."""
        self.waits = 0
        """Asks answered WAIT."""
        self.notes: list[str] = []
        """What the report must say besides its figures."""
        self.closing = False
        """No more asks: the scheduler closed, somebody called `close`, or the run failed."""
        self.failure: BaseException | None = None
        self._drop = self._differs = False
        self.lost: BaseException | None = None
        """Why nothing in flight will ever come back."""
        self._answer: Any = None
        timeout_s = getattr(backend, "timeout_s", None)
        self._timeout_ns = None if timeout_s is None else int(timeout_s * 1e9)
        self._take, self._plan, self._retire = admission.take, scheduler.plan, scheduler.retire
        self._prepare, self._launch = executor.prepare, executor.launch
        self._now_ns = self.clock.now_ns
        self._put = self.stream.submit
        never = self._work_plan  # the ledger lets nobody begin the device stage
        self._work: tuple[Callable[[int], None], ...] = (
            self._work_plan,
            self._work_prepare,
            self._work_launch,
            self._work_amend,
            never,
            self._work_retire,
        )
        mark = getattr(backend, "mark", None)
        if mark is not None:
            self._work = tuple(map(mark, NAMES, self._work))
        settle: list[Callable[[], object]] = [self.ledger.ending(stage) for stage in STAGES]
        self._end_device, self._end_plan, settle[PLAN] = settle[DEVICE], settle[PLAN], self._settle_plan
        settle[LAUNCH] = self._settle_launch if self.amends else settle[LAUNCH]
        self._settle = tuple(settle)

    # ---- for drivers ----

    def moves(self, lane: str) -> tuple[Callable[[], object], ...]:
        """For each stage, all that it does once the ledger has begun it, on a lane whose time passes by itself, or in `lap`."""
        return tuple(partial(self._timed, stage, lane) if self.timed else self._untimed(stage) for stage in STAGES)

    def _untimed(self, stage: int) -> Callable[[], None]:
        work, settle, ended = self._work[stage], self._settle[stage], self.ledger.ended

        def move() -> None:
            work(ended[stage])
            settle()

        return move

    def _timed(self, stage: int, lane: str) -> None:
        begin_ns, step = self.clock.now_ns(), self.ledger.ended[stage]
        self._work[stage](step)
        end_ns = self.clock.lap(stage, step, self.features(stage, step))
        name = self.settle(stage)
        self.stage_ns[stage] += end_ns - begin_ns
        if self.emit is not None:
            self.emit((lane, name, step, begin_ns, end_ns))

    def work(self, stage: int) -> int:
        """Begin a host stage and run the user's code. Returns the step. Raises DriverError if the move is illegal."""
        step = self.ledger.begin(stage)
        self._work[stage](step)
        return step

    def amend(self) -> int:
        """Run the scheduler's half of an amend that has begun; `finish` is the executor's, on its lane. Returns the step."""
        step = self.ledger.ended[AMEND]
        self._amend(step)
        return step

    def settle(self, stage: int) -> str:
        """End the stage that `work` began, and return what its span is called."""
        self._settle[stage]()
        return DECLINED[self.ledger.state] if stage == PLAN and type(self._answer) is Answer else NAMES[stage]

    def features(self, stage: int, step: int) -> Mapping[str, float] | None:
        """What prices a stage: the batch's features; None for a plan that gave no batch."""
        if stage != PLAN:
            return features_of(self.steps[step % self.depth].batch)
        return None if type(self._answer) is Answer else features_of(self._answer)

    def oldest(self) -> Step:
        """The step whose device stage ends next."""
        return self.steps[self.ledger.ended[DEVICE] % self.depth]

    def collect(self, step: Step) -> None:
        """End the device stage of the oldest step: its futures are done, or the device is lost."""
        if step.error is None:
            futures = step.futures
            try:
                if self.lost is not None:
                    raise self.lost
                step.result = futures[0].result() if len(futures) == 1 else tuple([future.result() for future in futures])
            except Exception as error:
                step.fail(DEVICE, error)
                self.lost = error if isinstance(error, DeviceLost) else self.lost
        self._end_device()
        if self.emit is not None:
            self._emit_device(step)
        if self.results is not None and step.error is None and step.number in self.results:
            self._replay_result(step, self.results[step.number])

    def overdue(self, step: Step) -> None:
        """The oldest step's deadline has passed: give the device up."""
        limit = getattr(self.backend, "timeout_s", None)
        self.lost = DeviceTimeout(
            f"step {step.number} ({', '.join(step.kinds)}) was not done after {limit} s on {self.backend.name}; "
            "open the backend with a larger timeout_s if it may take that long"
        )

    def deadline_ns(self, begin_ns: int) -> int | None:
        """When launches waited for since `begin_ns` must be done; None where the backend sets no limit."""
        return None if self._timeout_ns is None else begin_ns + self._timeout_ns

    def now_s(self) -> float:
        """Seconds since the run began."""
        return (self.clock.now_ns() - self.begin_ns) / 1e9

    # ---- plan ----

    def _work_plan(self, number: int) -> None:
        self._answer = NO_MORE
        if self.closing:
            return
        try:
            ask = self._take(self.ledger.asks - 1, number, (self._now_ns() - self.begin_ns) / 1e9)
            if ask is None:
                return
            if self.log is not None:
                self.log.ask(ask)
            answer = self._plan(ask)
            if answer is None or answer is NOT_YET:
                self._refuse_bad(answer, ask)
            self._answer = answer
        except Exception as error:
            self._stop(number, "plan", None, error)

    def _refuse_bad(self, answer: Any, ask: Any) -> None:
        if answer is None:
            raise SchedulerProtocolError(f"plan returned None for {ask!r}; return a batch, IDLE (no work), WAIT or CLOSED")
        if answer is NOT_YET and not self.ledger.in_flight:
            raise SchedulerProtocolError(f"plan answered WAIT to {ask!r} with nothing in flight: no result can come; answer IDLE or CLOSED")

    def _settle_plan(self) -> None:
        answer = self._answer
        if type(answer) is not Answer:
            number = self.ledger.ended[PLAN]
            self.steps[number % self.depth] = Step(number, answer)
            self._end_plan()
        else:
            state = STATE[answer]
            self.ledger.decline(state)
            self.waits += state == WAIT
            self.closing = self.closing or state == CLOSED

    def _settle_launch(self) -> None:
        self.ledger.end(LAUNCH, self.steps[self.ledger.ended[LAUNCH] % self.depth].error is None)

    # ---- prepare, launch, amend ----

    def _work_prepare(self, number: int) -> None:
        step = self.steps[number % self.depth]
        try:
            step.inputs = self._prepare(number, step.batch)
        except Exception as error:
            step.fail(PREPARE, error)

    def _work_launch(self, number: int) -> None:
        step = self.steps[number % self.depth]
        if step.error is not None:
            return
        try:
            work = self._launch(number, step.inputs)
            if type(work) is Launch:
                step.futures, step.kinds = (self._put(work),), (work.kind,)
            else:
                self._submit(step, work)
        except Exception as error:
            step.fail(LAUNCH, error)

    def _work_amend(self, number: int) -> None:
        self._amend(number)
        self.finish(number)

    def _amend(self, number: int) -> None:
        step = self.steps[number % self.depth]
        try:
            step.late = self.scheduler.amend(number, step.batch)  # type: ignore[attr-defined]
        except Exception as error:
            step.fail(AMEND, error)

    def finish(self, number: int) -> None:
        """The executor's half of amend: the second launch of a step."""
        step = self.steps[number % self.depth]
        if step.error is not None:
            return
        try:
            self._submit(step, self.executor.finish(number, step.inputs, step.late))  # type: ignore[attr-defined]
        except Exception as error:
            step.fail(AMEND, error)

    def _submit(self, step: Step, work: Any) -> None:
        if type(work) is Launch:
            step.futures += (self._put(work),)
            step.kinds += (work.kind,)
        elif type(work) is tuple and work:
            for part in work:
                self._submit(step, part)
        elif isinstance(work, Future):
            step.futures += (work,)
            step.kinds += ("engine",)
        else:
            raise SchedulerProtocolError(
                f"an executor must return a Launch, a tuple of Launches or a Future (done, result); got {work!r:.200}"
            )

    # ---- device ----

    def _replay_result(self, step: Step, logged: Any) -> None:
        """Decide by what the log holds; a device that computed something else is noted, once."""
        computes = self.backend.capabilities.can.get("executes") is True
        if computes and not self._differs and not same(step.result, logged):
            self._differs = True
            self.notes.append(f"step {step.number} is the first whose computed result differs from the replayed log's")
        step.result = logged

    def _emit_device(self, step: Step) -> None:
        for kind, future in zip(step.kinds, step.futures, strict=True):
            if future.done():
                for lane, what, begin_ns, end_ns in told(kind, future, self.launch_lane):
                    self.emit((lane, what, step.number, begin_ns, end_ns))  # type: ignore[misc]

    # ---- retire ----

    def _work_retire(self, number: int) -> None:
        step = self.steps[number % self.depth]
        if step.error is not None:
            self._retire_failed(step)
        elif not self._drop:
            try:
                if self.log is not None:
                    self.log.retire(number, step.result)
                self._retire(number, step.batch, step.result)
            except Exception as error:
                self._drop = True  # a scheduler that broke is not called again
                self._stop(number, "retire", step.batch, error)
        step.futures, step.inputs = (), None  # memory of a backend may go with them

    def _retire_failed(self, step: Step) -> None:
        error, stage = step.error, NAMES[step.failed_in]
        assert error is not None
        if not self._drop and self._recovery(step, error) == "abandon":
            self._abandon(step, error)
        else:
            self._drop = True  # later steps build on this one
            self._stop(step.number, stage, step.batch, error)

    def _recovery(self, step: Step, error: BaseException) -> str:
        if self.lost is not None or isinstance(error, (DeviceLost, DeviceTimeout)) or not hasattr(self.scheduler, "fail"):
            return "stop"
        return self.recover(step.number, NAMES[step.failed_in], step.batch, error)

    def _abandon(self, step: Step, error: BaseException) -> None:
        try:
            self.notes.append(f"step {step.number} failed in {NAMES[step.failed_in]} and was abandoned ({type(error).__name__}: {error})")
            self.scheduler.fail(step.number, step.batch, error)  # type: ignore[attr-defined]
        except Exception as worse:
            self._drop = True
            self._stop(step.number, "fail", step.batch, worse)

    def _stop(self, number: int, stage: str, batch: Any, error: BaseException) -> None:
        """End the run with this error once what is in flight has drained; errors of later steps ride along."""
        self.closing = True
        failure = error if isinstance(error, ProtocolError) else StepError(number, stage, batch, f"{type(error).__name__}: {error}")
        if failure is not error:
            failure.__cause__ = error
        if self.failure is None:
            self.failure = failure
        elif isinstance(self.failure, StepError) and isinstance(failure, StepError):
            self.failure.later += (failure,)
