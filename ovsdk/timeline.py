"""Where a run's time went: the device is busy or idle, and every idle instant has exactly one cause.

No cause is a remainder. At an instant t at which the device idles, let n be the step whose device span begins next. The
cause is read off the earliest stage of n that is unfinished at t (plan, prepare, launch, for its second launch amend, finish):

    the stage is running                  -> the stage, or what its lane waits for inside it: see INSIDE
    its lane is in another stage          -> that stage
    its lane waits                        -> what the wait is for: see WAITS
    its lane waits for another lane       -> what that lane does at t
    its lane has no span                  -> "driver": the loop, a foreign loop, a lost core or GIL
    no stage is unfinished                -> "start": launched and not begun
    no device span follows, or n was made
    of what arrived only after t          -> "no work"

A lane does at t what began last among its spans around t. Idle = bubble + no work. Times are the clock's integer ns.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import attrs

from .errors import ConfigError
from .spans import common, flatten, union
from .types import SERVER, TILING_SYNC, WAIT_GIL, Span

STAGES = ("plan", "prepare", "launch", "amend", "finish", "retire")
"""What a host lane works at, in step order."""
ASKS = ("ask", "idle ask")
"""Calls of plan that gave no batch."""
DEVICE = "device"

NO_WORK, RESULT, HAND_OVER, DRIVER, START, UNKNOWN = "no work", "result", "hand-over", "driver", "start", "not recorded"
"""Causes besides the stages. "result": the device is done and the host has not noticed. "not recorded": the step has no host span."""
INSIDE = (TILING_SYNC, WAIT_GIL)
"""Waits of a lane inside a stage."""
WAIT_BATCH, WAIT_ARRIVAL, WAIT_LATE = "wait batch", "wait arrival", "wait late"
"""The last is a cause too: the device ran dry while a plan was put off (`ovsdk.late`). The wait ends when the step in flight does,
so that is the time to notice it; the rest of what a wrong prediction costs is plan, prepare and launch."""

_FOR_PLAN = {"ask": "plan", "idle ask": NO_WORK, WAIT_ARRIVAL: NO_WORK, "wait device": RESULT, "wait launch": HAND_OVER}
# The step exists already, so the device has work: it lies between two lanes, or its lane thinks about a later step.
_LATER = {"ask": "plan", "idle ask": "plan", WAIT_ARRIVAL: HAND_OVER, WAIT_LATE: HAND_OVER}
_FOR_LATER = {**_LATER, "wait device": RESULT, "wait launch": HAND_OVER}
_FOR_HANDED = {**_FOR_LATER, "wait device": HAND_OVER}
WAITS = {"plan": _FOR_PLAN, "prepare": _FOR_HANDED, "launch": _FOR_LATER, "amend": _FOR_LATER, "finish": _FOR_HANDED}
"""Stage that has not begun -> what its lane does instead -> the cause. What is not listed here is its own cause."""


class Idle(NamedTuple):
    """A time in which the device had nothing to do, for one cause. `step` is the step it waited for, -1 if none came."""

    begin_ns: int
    end_ns: int
    cause: str
    step: int


Piece = tuple[int, int, str]
"""Begin, end, cause."""


class _Host(NamedTuple):
    """The host's spans, by what is asked of them."""

    stages: dict[int, dict[str, Span]]
    """Step -> stage -> its span."""
    lanes: dict[str, tuple[Span, ...]]
    begins: dict[str, list[int]]
    """Lane -> begins of its spans in `lanes`, to bisect."""
    arrivals: dict[str, list[int]]
    """Lane -> ends of its waits for an arrival."""


def _tuple(spans: Iterable[Span]) -> tuple[Span, ...]:
    return tuple(spans)


@attrs.frozen(slots=False)  # cached_property needs a __dict__
class Timeline:
    """The spans of one run between `begin_ns` and `end_ns`. Everything else is computed from them, once, when asked for.

    Raises ConfigError for a span, or a run, that ends before it begins.
    """

    spans: tuple[Span, ...] = attrs.field(converter=_tuple)
    begin_ns: int
    end_ns: int
    virtual: bool | None = None
    """True: simulated, False: measured, None: not stated."""

    def __attrs_post_init__(self) -> None:
        wrong = next((span for span in self.spans if span.end_ns < span.begin_ns), None)
        if wrong is not None or self.end_ns < self.begin_ns:
            seen = wrong or f"begin_ns={self.begin_ns}, end_ns={self.end_ns}"
            raise ConfigError(f"time runs backwards in {seen}; a span and a run end at or after their begin, on one clock")

    @cached_property
    def origin(self) -> str:
        """Where the times come from, in a word: a simulated time is never shown as a measured one."""
        return {True: "simulated", False: "measured", None: "origin not stated"}[self.virtual]

    @cached_property
    def lanes(self) -> dict[str, tuple[Span, ...]]:
        """Lane -> what it does, in order and never two at once; host lanes as they first appear, then `device`."""
        by_lane = {lane: spans for lane, spans in self._by_lane.items() if not lane.startswith(SERVER)}
        by_lane[DEVICE] = by_lane.pop(DEVICE, [])
        return {lane: tuple(flatten(spans)) for lane, spans in by_lane.items()}

    @cached_property
    def servers(self) -> dict[str, tuple[Span, ...]]:
        """Server (task queue, copy engine, stream, ...) -> its spans in order, as far as the backend told."""
        found = ((lane, spans) for lane, spans in self._by_lane.items() if lane.startswith(SERVER))
        return {lane.removeprefix(SERVER): tuple(sorted(spans, key=lambda s: (s.begin_ns, s.end_ns))) for lane, spans in found}

    @cached_property
    def _by_lane(self) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.lane, []).append(span)
        return found

    @cached_property
    def launched(self) -> tuple[Span, ...]:
        """The device's spans as they were reported, in order of begin; spans of two streams may overlap."""
        return tuple(sorted((s for s in self.spans if s.lane == DEVICE), key=lambda s: (s.begin_ns, s.end_ns, s.step)))

    @cached_property
    def streams(self) -> tuple[tuple[Span, ...], ...]:
        """`launched`, on as few rows as hold them without overlap; a device that runs one launch at a time has one."""
        rows: list[list[Span]] = [[]]
        for span in self.launched:
            free = next((row for row in rows if not row or row[-1].end_ns <= span.begin_ns), None)
            if free is None:
                rows.append(free := [])
            free.append(span)
        return tuple(map(tuple, rows))

    @cached_property
    def stages(self) -> dict[int, dict[str, Span]]:
        """Step -> stage -> its span, on the host."""
        found: dict[int, dict[str, Span]] = {}
        for span in self.spans:
            if span.what in STAGES and span.lane != DEVICE and not span.lane.startswith(SERVER):
                found.setdefault(span.step, {})[span.what] = span
        return found

    @cached_property
    def steps(self) -> int:
        """How many steps got a batch."""
        return sum("plan" in stages for stages in self.stages.values())

    @cached_property
    def busy(self) -> tuple[tuple[int, int], ...]:
        """When at least one launch was on the device: disjoint, in order, within the run."""
        clipped = ((max(begin, self.begin_ns), min(end, self.end_ns)) for begin, end, _ in union(self.launched))
        return tuple((begin, end) for begin, end in clipped if begin < end)

    @cached_property
    def busy_ns(self) -> int:
        """Time in which at least one launch was on the device."""
        return sum(end - begin for begin, end in self.busy)

    @cached_property
    def idle(self) -> tuple[Idle, ...]:
        """The run's time outside `busy`, in order, each part with its cause."""
        host, found = self._host(), list[Idle]()
        for begin, end, follower in self._gaps():
            step = -1 if follower is None else follower.step
            for piece in _causes(host, begin, end, follower, follower in self._second):
                _append(found, Idle(*piece, step))
        return tuple(found)

    @cached_property
    def idle_ns(self) -> dict[str, int]:
        """Cause -> idle time, the largest first."""
        total: dict[str, int] = {}
        for piece in self.idle:
            total[piece.cause] = total.get(piece.cause, 0) + piece.end_ns - piece.begin_ns
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    @cached_property
    def bubble_ns(self) -> int:
        """Idle time in which there was work."""
        return sum(ns for cause, ns in self.idle_ns.items() if cause != NO_WORK)

    @cached_property
    def stage_ns(self) -> dict[str, int]:
        """Stage -> host time in it, all lanes together; asks that gave no batch count as plan."""
        total = {stage: 0 for stage in STAGES if any(stage in stages for stages in self.stages.values())}
        for span in self._work():
            stage = "plan" if span.what in ASKS else span.what
            total[stage] = total.get(stage, 0) + span.end_ns - span.begin_ns
        return total

    @cached_property
    def lane_ns(self) -> dict[str, int]:
        """Host lane -> its time in stages, asks included."""
        return {name: sum(s.end_ns - s.begin_ns for s in _work(lane)) for name, lane in self.lanes.items() if name != DEVICE}

    @cached_property
    def hidden_ns(self) -> int:
        """Host time in stages, asks included, while the device was busy."""
        return sum(common(_work(lane), self.busy) for name, lane in self.lanes.items() if name != DEVICE)

    @cached_property
    def in_flight(self) -> int:
        """The most steps that were planned and not yet retired: the depth that the run made use of."""
        oldest = min((step for step, stages in self.stages.items() if "retire" in stages), default=0)
        plans = ((step, stages["plan"].begin_ns) for step, stages in self.stages.items() if "plan" in stages)
        return max((step + 1 - oldest - bisect_right(self.retired_ns, begin) for step, begin in plans), default=0)

    @cached_property
    def retired_ns(self) -> list[int]:
        """When each step had been retired, in order."""
        return sorted(stages["retire"].end_ns for stages in self.stages.values() if "retire" in stages)

    @cached_property
    def steady_ns(self) -> list[int]:
        """`retired_ns` without the steps that filled the pipeline, nor those that drained it; all of them in a run too short for that."""
        ends, depth = self.retired_ns, max(1, self.in_flight)
        steady = ends[depth : len(ends) - depth + 1]
        return steady if len(steady) > 1 else ends

    @cached_property
    def step_s(self) -> float | None:
        """Steady-state seconds a step: the mean distance of retirements in the run's second half; None with fewer than two.

        The first half lets a long transient pass: what a deep pipeline launched ahead at its start is not yet the steady state.
        """
        ends = self.steady_ns[len(self.steady_ns) // 2 :] if len(self.steady_ns) > 2 else self.steady_ns
        return (ends[-1] - ends[0]) / (len(ends) - 1) / 1e9 if len(ends) > 1 else None

    def launch_of(self, span: Span) -> Span | None:
        """The host stage that put a device span on the device; None if it was not recorded."""
        stages = self.stages.get(span.step, {})
        return stages.get("finish", stages.get("amend")) if span in self._second else stages.get("launch")

    def _work(self) -> Iterator[Span]:
        return (span for name, lane in self.lanes.items() if name != DEVICE for span in _work(lane))

    def _host(self) -> _Host:
        lanes = {name: lane for name, lane in self.lanes.items() if name != DEVICE}
        begins = {name: [span.begin_ns for span in lane] for name, lane in lanes.items()}
        arrivals: dict[str, list[int]] = {name: [] for name in lanes}
        for span in self.spans:
            if span.what == WAIT_ARRIVAL and span.lane in arrivals:
                insort(arrivals[span.lane], span.end_ns)
        return _Host(self.stages, lanes, begins, arrivals)

    @cached_property
    def _second(self) -> set[Span]:
        """The last device span of a step that was amended, if it began after that did. One lane does `finish` inside `amend`."""
        last = {span.step: span for span in self.launched}
        amended = {step: stages.get("finish", stages.get("amend")) for step, stages in self.stages.items()}
        return {last[step] for step, stage in amended.items() if stage and step in last and last[step].begin_ns >= stage.begin_ns}

    def _gaps(self) -> Iterator[tuple[int, int, Span | None]]:
        """Idle times of the run, each with the device span that ends it."""
        idle_from = self.begin_ns
        for begin, end, first in [*union(self.launched), (self.end_ns, self.end_ns, None)]:
            if idle_from < min(begin, self.end_ns):
                yield idle_from, min(begin, self.end_ns), first
            idle_from = max(idle_from, end)


def _work(lane: Iterable[Span]) -> list[Span]:
    return [span for span in lane if span.what in STAGES or span.what in ASKS]


def _append(found: list[Idle], piece: Idle) -> None:
    """Add a piece, or lengthen the last one if it goes on."""
    if found and found[-1][1:] == (piece.begin_ns, piece.cause, piece.step):
        piece = piece._replace(begin_ns=found.pop().begin_ns)
    found.append(piece)


def _causes(host: _Host, begin: int, end: int, follower: Span | None, second: bool) -> Iterator[Piece]:
    """Cut one idle time at the ends of the follower's stages; each cut belongs to the earliest stage that is unfinished in it."""
    if follower is None:
        yield begin, end, NO_WORK
        return
    recorded = host.stages.get(follower.step)
    if recorded is None:
        yield begin, end, UNKNOWN
        return
    for name in STAGES[: 5 if second else 3]:
        stage = recorded.get(name)
        if stage is not None and begin < stage.end_ns:
            runs, done = min(max(stage.begin_ns, begin), end), min(stage.end_ns, end)
            yield from _not_running(host, stage, begin, runs)
            if runs < done:
                yield from _running(host, stage, runs, done)
            begin = done
    if begin < end:
        yield begin, end, START


def _running(host: _Host, stage: Span, begin: int, end: int) -> Iterator[Piece]:
    """A stage that runs is the cause; but where its lane waits inside it, that is."""
    spans = host.lanes[stage.lane]
    i = max(0, bisect_right(host.begins[stage.lane], begin) - 1)
    while i < len(spans) and spans[i].begin_ns < end:
        if spans[i].what in INSIDE and begin < spans[i].end_ns:
            waits, goes_on = max(begin, spans[i].begin_ns), min(end, spans[i].end_ns)
            if begin < waits:
                yield begin, waits, stage.what
            yield waits, goes_on, spans[i].what
            begin = goes_on
        i += 1
    if begin < end:
        yield begin, end, stage.what


def _not_running(host: _Host, stage: Span, begin: int, end: int) -> Iterator[Piece]:
    """Why `stage` does not run from `begin` to `end`. Before the arrival that a plan was made for there was nothing to plan."""
    if stage.what == "plan" and begin < end:
        arrivals = host.arrivals[stage.lane]
        before = bisect_right(arrivals, stage.begin_ns)
        arrived = min(arrivals[before - 1], end) if before else begin
        if begin < arrived:
            yield begin, arrived, NO_WORK
            begin = arrived
    yield from _lane_does(host, stage, stage.lane, begin, end)


def _lane_does(host: _Host, stage: Span, lane: str, begin: int, end: int) -> Iterator[Piece]:
    """What a lane does in place of `stage`, as causes; no span is the driver's own time."""
    spans, waits = host.lanes[lane], WAITS[stage.what]
    i = max(0, bisect_right(host.begins[lane], begin) - 1)
    while begin < end:
        span = spans[i] if i < len(spans) else None
        if span is None or begin < span.begin_ns:
            until = end if span is None else min(end, span.begin_ns)
            yield begin, until, DRIVER
            begin = until
        elif begin < span.end_ns:
            until = min(end, span.end_ns)
            if span.what == WAIT_BATCH:
                yield from _other_lane(host, stage, lane, begin, until)
            else:
                yield begin, until, waits.get(span.what, span.what)
            begin = until
        else:
            i += 1


def _other_lane(host: _Host, stage: Span, lane: str, begin: int, end: int) -> Iterator[Piece]:
    """What the lane that plans the step does, while `lane` waits for it."""
    plan = host.stages[stage.step].get("plan")
    if plan is None or plan.lane == lane or stage.lane != lane:
        yield begin, end, DRIVER
    else:
        yield from _lane_does(host, stage, plan.lane, begin, end)


def causes(*timelines: Timeline) -> list[str]:
    """All causes that occur: bubbles in stage order, then the others, "no work" last."""
    order = [*STAGES, *INSIDE, WAIT_LATE, RESULT, HAND_OVER, DRIVER, START, UNKNOWN]
    seen = {cause for timeline in timelines for cause in timeline.idle_ns}
    known = [cause for cause in order if cause in seen]
    return [*known, *sorted(seen - {*order, NO_WORK}), *sorted(seen & {NO_WORK})]
