"""A run from its opening to its report: `run(...)` is the whole of it, `start(...)` gives it to a loop of your own.

Opening order: backend, scheduler and executor (where names are given), `executor.open`, driver, hooks. Closing is the
reverse, whatever happened; then the run's error is raised, or its report returned.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

import attrs

from .driver import LANES, Driver
from .errors import ConfigError, HookFailed, refuse
from .interfaces import Admission, Backend, Executor, Scheduler
from .late import PLAN_WHEN, Forecast, Late
from .ledger import NAMES, RETIRE
from .log import Replay, RunLog, read_log
from .plugins import PluginManager, make, open_backend, plugin_manager
from .queues import NoArrivals
from .report import Report
from .stages import Emit, Recovery, Stages
from .threads import ThreadsDriver
from .timeline import Timeline
from .types import Progress, Span, SpanFields

SPANS = 200_000
"""Spans kept by default: about 30,000 steps; older ones are dropped."""
NEEDED = {"scheduler": ("plan", "retire"), "executor": ("prepare", "launch"), "queue": ("put", "get")}


@attrs.frozen
class RunInfo:
    """What a hook is told of a run."""

    scheduler: Any
    executor: Any
    backend: str
    driver: str
    depth: int
    virtual: bool
    """Whether its times are simulated."""
    plan_when: str = "asap"


class Run:
    """A run that has been started. Use it as a context manager; drive it with `advance`; take the Report from `result`."""

    def __init__(
        self, info: RunInfo, stages: Stages, driver: Driver | Late, manager: PluginManager, spans: deque[SpanFields] | None
    ) -> None:
        self.info, self.driver = info, driver
        self._stages, self._manager, self._spans = stages, manager, spans
        self._report: Report | None = None
        self._shut = False

    def advance(self, timeout_s: float | None = None) -> Progress:
        """See `Driver.advance`."""
        return self.driver.advance(timeout_s)

    def close(self) -> None:
        """Ask no more; `advance` goes on until what is in flight has retired. Any thread, twice is fine."""
        self.driver.close()

    def result(self) -> Report:
        """The report of a finished run. Raises what made it fail: StepError, SchedulerProtocolError.

        Raises ConfigError if the run is not finished.
        """
        if self._stages.failure is not None:
            raise self._stages.failure
        if self._report is None:
            raise ConfigError("the run is not finished: call advance until it answers FINISHED, and leave its `with` block")
        return self._report

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shut:
            return
        self._shut = True
        try:
            self.driver.shut()
        finally:
            _call_if_there(self._stages.executor, "close")
            if self._stages.log is not None:
                self._stages.log.close()
        error = error or self._stages.failure
        if error is None:
            self._report = _report(self.info, self._stages, self._spans)
        self._manager.call("ovsdk_run_finished", run=self.info, report=self._report, error=error)


def run(
    scheduler: Scheduler | str,
    executor: Executor | str,
    backend: Backend | str,
    *,
    depth: int = 2,
    driver: str = "inline",
    admission: Admission | None = None,
    log: str | Path | bool = False,
    replay: RunLog | str | Path | None = None,
    spans: bool | int = True,
    queue: str = "simple",
    plan_when: str = "asap",
    plugins: PluginManager | None = None,
) -> Report:
    """Run a scheduler and an executor on a backend until the scheduler closes; return the Report.

    depth       most steps in flight; 1 = no overlap, 2 = two pre-submitted batches
    driver      "inline" (one host thread) or "threads" (scheduling and execution thread)
    admission   where requests arrive while it runs: an AdmissionQueue; none: IDLE with nothing in flight ends the run
    log         True keeps the run log in the report; a path also writes it
    replay      a run log or its path: asks and results come from it, decisions are those of the recorded run
    spans       keep that many spans for timeline and pictures (True: 200,000; False: none)
    queue       the queue between the two threads, by the name a plugin gave it
    plan_when   "asap", or "late": shortly before the device is done, so that a plan sees more arrivals (`ovsdk.late`)

    A string for scheduler, executor or backend is made by the plugin that knows the name; a backend made here is closed here.
    The first Ctrl-C drains what is in flight and then raises KeyboardInterrupt; the second raises at once.
    Raises ConfigError, StepError, SchedulerProtocolError, DeviceError; nothing is left open.
    """
    with contextlib.ExitStack() as opened:
        device = opened.enter_context(open_backend(backend, plugins=plugins or ())) if isinstance(backend, str) else backend
        going = opened.enter_context(
            start(
                scheduler, executor, device, depth=depth, driver=driver, admission=admission,
                log=log, replay=replay, spans=spans, queue=queue, plan_when=plan_when, plugins=plugins,
            )
        )  # fmt: skip
        with _drain_on_interrupt(going.close):
            going.driver.drive()
    return going.result()


def start(
    scheduler: Scheduler | str,
    executor: Executor | str,
    backend: Backend,
    *,
    depth: int = 2,
    driver: str = "inline",
    admission: Admission | None = None,
    log: str | Path | bool = False,
    replay: RunLog | str | Path | None = None,
    spans: bool | int = True,
    queue: str = "simple",
    plan_when: str = "asap",
    plugins: PluginManager | None = None,
) -> Run:
    """Open a run without driving it; arguments as for `run`. Call `advance` from your loop, inside `with`."""
    manager = plugins or getattr(backend, "plugins", None) or plugin_manager()
    if driver not in LANES:
        refuse("driver", driver, LANES)
    if plan_when not in PLAN_WHEN:
        refuse("plan_when", plan_when, PLAN_WHEN)
    planner: Scheduler = _made("scheduler", scheduler, manager)
    engine: Executor = _made("executor", executor, manager)
    recorded = _recorded(replay)
    if recorded is not None and admission is not None:
        raise ConfigError("a replay brings its own arrivals; leave out admission")
    if recorded is not None and recorded.depth != depth:
        raise ConfigError(
            f"this log was recorded at depth {recorded.depth}; replay it at that depth, not at {depth!r}: depth decides what a plan sees"
        )
    info = RunInfo(planner, engine, backend.name, driver, depth, backend.capabilities.can.get("wall_clock") is not True, plan_when)
    forecast = Forecast() if plan_when == "late" else None
    kept: deque[SpanFields] | None = deque(maxlen=SPANS if spans is True else spans) if spans else None
    stages = Stages(
        planner,
        engine,
        backend,
        depth=depth,
        admission=admission or (Replay(recorded) if recorded else NoArrivals()),
        recover=_recovery(manager, info),
        log=_log(log, depth),
        results=recorded.results if recorded else None,
        emit=_emit(kept, [*([forecast.see] if forecast else []), *_observers(manager, info)]),
    )
    _call_if_there(backend, "begin", depth)
    _call_if_there(engine, "open", backend)
    try:
        manager.call("ovsdk_run_started", run=info)
        stages.begin_ns = stages.clock.now_ns()
        driving = _driver(driver, stages, backend, queue, manager)
        planning = Late(driving, forecast) if forecast else driving
    except BaseException:
        _call_if_there(engine, "close")
        raise
    return Run(info, stages, planning, manager, kept)


def _driver(kind: str, stages: Stages, backend: Backend, queue: str, manager: PluginManager) -> Driver:
    own: Mapping[str, Callable[[Stages], Driver]] = getattr(backend, "drivers", {})
    if kind in own:
        return own[kind](stages)
    if kind == "inline":
        return Driver(stages)
    queues = [
        _checked("queue", make("queue", queue, {"capacity": stages.ledger.depth, "role": r}, plugins=manager)) for r in ("input", "output")
    ]
    return ThreadsDriver(stages, *queues)


def _made(kind: str, thing: Any, manager: PluginManager) -> Any:
    return _checked(kind, make(kind, thing, plugins=manager) if isinstance(thing, str) else thing)


def _checked(kind: str, thing: Any) -> Any:
    missing = [name for name in NEEDED[kind] if not callable(getattr(thing, name, None))]
    if missing:
        raise ConfigError(f"{thing!r:.100} is no {kind}: it has no method {missing[0]!r}; see ovsdk.interfaces.{kind.capitalize()}")
    return thing


def _call_if_there(thing: Any, method: str, *arguments: Any) -> None:
    if hasattr(thing, method):
        getattr(thing, method)(*arguments)


def _log(log: str | Path | bool, depth: int) -> RunLog | None:
    if isinstance(log, bool):
        return RunLog(depth) if log else None
    return RunLog(depth, path=Path(log))


def _recorded(replay: RunLog | str | Path | None) -> RunLog | None:
    return replay if replay is None or isinstance(replay, RunLog) else read_log(replay)


def _recovery(manager: PluginManager, info: RunInfo) -> Recovery:
    allowed = ("stop", "abandon")

    def recover(step: int, stage: str, batch: Any, error: BaseException) -> Literal["stop", "abandon"]:
        answer = manager.call("ovsdk_step_failed", run=info, step=step, stage=stage, batch=batch, error=error)
        if answer not in (None, *allowed):
            refuse("answer to ovsdk_step_failed", answer, allowed)
        return answer or "stop"

    return recover


def _observers(manager: PluginManager, info: RunInfo) -> list[Callable[[Span], None]]:
    return [observer for observers in manager.call("ovsdk_observers", run=info) for observer in observers]


def _emit(kept: deque[SpanFields] | None, observers: list[Callable[[Span], None]]) -> Emit | None:
    if not observers:
        return None if kept is None else kept.append

    def emit(fields: SpanFields) -> None:
        span = Span._make(fields)
        if kept is not None:
            kept.append(span)
        for observer in observers:
            try:
                observer(span)
            except Exception as error:
                raise HookFailed(f"observer {observer!r} raised {type(error).__name__}: {error}", origin_of(observer)) from error

    return emit


def origin_of(observer: Any) -> str:
    """The module that an observer was defined in."""
    return str(getattr(observer, "__module__", type(observer).__module__))


@contextlib.contextmanager
def _drain_on_interrupt(close: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C closes, and KeyboardInterrupt is raised after the block; the second raises where it strikes."""
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    interrupted = False

    def first(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, usual)
        close()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if interrupted:
        raise KeyboardInterrupt


def _report(info: RunInfo, stages: Stages, spans: deque[SpanFields] | None) -> Report:
    end_ns, overruns = stages.clock.now_ns(), getattr(info.scheduler, "overruns", None)
    return Report(
        steps=stages.ledger.ended[RETIRE],
        asks=stages.ledger.asks,
        waits=stages.waits,
        depth=info.depth,
        driver=info.driver,
        backend=info.backend,
        virtual=info.virtual,
        asynchronous=stages.backend.capabilities.can.get("asynchronous", "the backend does not say"),
        makespan_s=(end_ns - stages.begin_ns) / 1e9,
        stage_s={name: ns / 1e9 for name, ns in zip(NAMES, stages.stage_ns, strict=True) if name != "device"} if stages.timed else {},
        overruns=overruns if isinstance(overruns, int) else None,
        timeline=None if spans is None else _timeline(spans, stages.begin_ns, end_ns, info.virtual),
        log=stages.log,
        tilings=dict(getattr(getattr(stages.executor, "tiler", None), "placements", {})),
        computed=getattr(stages.backend, "computed", ""),
        notes=(*getattr(stages.backend, "notes", ()), *stages.notes),
    )


def _timeline(spans: deque[SpanFields], begin_ns: int, end_ns: int, virtual: bool) -> Timeline:
    """Of what was kept: where the oldest spans were dropped it begins with the first that was not."""
    new = tuple.__new__  # Span._make takes twice as long, and there may be 200,000
    made, full = tuple([new(Span, fields) for fields in spans]), len(spans) == spans.maxlen
    return Timeline(made, min(span.begin_ns for span in made) if full else begin_ns, end_ns, virtual)
