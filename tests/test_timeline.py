"""Idle time by cause, judged by a clerk who looks at every single nanosecond, over schedules that the real ledger makes."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ovsdk.timeline
from ovsdk.errors import ConfigError
from ovsdk.ledger import (
    AMEND,
    CLOSED,
    DEVICE,
    FINISHED,
    IDLE,
    LAUNCH,
    NAMES,
    NEED_ARRIVAL,
    NEED_DEVICE,
    PLAN,
    PREPARE,
    RETIRE,
    WAIT,
    Ledger,
)
from ovsdk.timeline import Timeline, causes
from ovsdk.types import Span

MS = 1_000_000
STAGES = ("plan", "prepare", "launch", "amend", "finish", "retire")
COSTS = {**dict.fromkeys(STAGES, 3), "device": 1, "start": 0, "result": 0, "driver": 0, "hand-over": 0, "ask": 1, "arrival": 4}

Costs = Mapping[str, int]


# ---- schedules ----


class Host:
    """Spans of one run in virtual time: what the two schedules below have in common."""

    def __init__(self, depth: int, cost: Costs, amend: bool) -> None:
        self.ledger, self.cost, self.amend = Ledger(depth, amend), cost, amend
        self.spans: list[Span] = []
        self.done: dict[int, int] = {}
        self.tail = 0

    def add(self, lane: str, what: str, step: int, begin: int, end: int) -> int:
        self.spans.append(Span(lane, what, step, begin, end))
        return end

    def submit(self, step: int, now: int) -> None:
        begin = max(now + self.cost["start"], self.tail)
        self.tail = self.done[step] = self.add("device", "decode", step, begin, begin + self.cost["device"])


def inline(depth: int, answers: Sequence[int], cost: Costs, amend: bool = False) -> tuple[list[Span], int]:
    """One lane. `answers` of plan: 0 for a batch, IDLE or WAIT; CLOSED follows. Returns spans and the end."""
    host, now, left = Host(depth, cost, amend), 0, list(answers)
    ledger = host.ledger
    while (move := ledger.next()) != FINISHED:
        now += cost["driver"]
        if move == NEED_DEVICE:
            step = ledger.end(DEVICE)
            now = host.add("host", "wait device", step, now, max(now, host.done[step] + cost["result"]))
        elif move == NEED_ARRIVAL:
            ledger.wake()
            now = host.add("host", "wait arrival", ledger.begun[PLAN], now, now + cost["arrival"])
        else:
            now = _inline_stage(host, move, now, left)
    return host.spans, now


def _inline_stage(host: Host, move: int, now: int, left: list[int]) -> int:
    step, cost = host.ledger.begin(move), host.cost
    if move == PLAN:
        answer = left.pop(0) if left else CLOSED
        answer = IDLE if answer == WAIT and not host.ledger.in_flight else answer
        if answer:
            host.ledger.decline(answer)
            return host.add("host", "idle ask" if answer == IDLE else "ask", step, now, now + cost["ask"])
    now = host.add("host", NAMES[move], step, now, now + cost[NAMES[move]])
    if move == AMEND:
        now = host.add("host", "finish", step, now, now + cost["finish"])
    if move in (LAUNCH, AMEND):
        host.submit(step, now)
    host.ledger.end(move, host.amend and move == LAUNCH)
    return now


class Lane:
    def __init__(self, name: str, stages: tuple[int, ...], wait: str) -> None:
        self.name, self.stages, self.wait = name, stages, wait
        self.stage, self.step, self.begin, self.end = -1, -1, 0, 0


def two_lanes(depth: int, steps: int, cost: Costs) -> tuple[list[Span], int]:
    """A scheduling and an execution lane; a batch can be prepared once it has been handed over."""
    host, now, handed = Host(depth, cost, False), 0, dict[int, int]()
    lanes = [Lane("scheduling", (PLAN, RETIRE), "wait device"), Lane("execution", (LAUNCH, PREPARE), "wait batch")]
    while True:
        while any(lane.end <= now and _turn(host, lane, now, handed, steps) for lane in lanes):
            pass
        if host.ledger.next() == FINISHED:
            return host.spans, now
        times = [*(lane.end for lane in lanes), *handed.values(), *(done + cost["result"] for done in host.done.values())]
        now = min(time for time in times if time > now)


def _turn(host: Host, lane: Lane, now: int, handed: dict[int, int], steps: int) -> bool:
    """What a lane that is free, or has come to the end of a stage, does now; False for nothing."""
    if lane.stage >= 0:
        _end(host, lane, now, handed, steps)
        return True
    ledger = host.ledger
    stage = next((stage for stage in lane.stages if ledger.may_begin(stage)), -1)
    if stage < 0 and lane.name == "scheduling":
        oldest = ledger.ended[DEVICE]
        ended = oldest < ledger.begun[DEVICE] and host.done[oldest] + host.cost["result"] <= now
        return ended and ledger.end(DEVICE) >= 0
    if stage < 0 or (stage == PREPARE and handed[ledger.begun[PREPARE]] > now):
        return False
    if lane.end < now:
        host.add(lane.name, lane.wait, ledger.begun[stage], lane.end, now)
    lane.stage, lane.step, lane.begin, lane.end = stage, ledger.begin(stage), now, now + host.cost[NAMES[stage]]
    return True


def _end(host: Host, lane: Lane, now: int, handed: dict[int, int], steps: int) -> None:
    stage, lane.stage = lane.stage, -1
    if stage == PLAN and lane.step >= steps:
        host.ledger.decline(CLOSED)
        host.add(lane.name, "ask", lane.step, lane.begin, now)
        return
    host.add(lane.name, NAMES[stage], lane.step, lane.begin, now)
    if stage == LAUNCH:
        host.submit(lane.step, now)
    if stage == PLAN:
        lane.end = handed[lane.step] = host.add(lane.name, "hand-over", lane.step, now, now + host.cost["hand-over"])
    host.ledger.end(stage)


# ---- the clerk: the rules as they are told, one instant at a time ----


def does(spans: Sequence[Span], lane: str, t: int) -> str:
    around = [(s.begin_ns, -s.end_ns, i, s.what) for i, s in enumerate(spans) if s.lane == lane and s.begin_ns <= t < s.end_ns]
    return max(around)[3] if around else "driver"


def cause_at(spans: Sequence[Span], t: int) -> str | None:
    """The cause of the device's idleness at t; None if it is busy."""
    device = [s for s in spans if s.lane == "device"]
    if any(s.begin_ns <= t < s.end_ns for s in device):
        return None
    follower = min((s for s in device if s.begin_ns > t), key=lambda s: (s.begin_ns, s.end_ns, s.step), default=None)
    if follower is None:
        return "no work"
    stages = {s.what: s for s in spans if s.lane != "device" and s.step == follower.step and s.what in STAGES}
    if not stages:
        return "not recorded"
    ways = STAGES[:5] if is_second(device, stages, follower) else STAGES[:3]
    stage = next((stages[name] for name in ways if name in stages and stages[name].end_ns > t), None)
    if stage is None:
        return "start"
    inside = does(spans, stage.lane, t)
    if stage.begin_ns <= t:
        return inside if inside in ("tiling sync", "wait GIL") else stage.what
    return waited_at(spans, stages, stage, t)


def is_second(device: list[Span], stages: dict[str, Span], follower: Span) -> bool:
    amend = stages.get("finish") or stages.get("amend")
    last = max((s for s in device if s.step == follower.step), key=lambda s: (s.begin_ns, s.end_ns))
    return amend is not None and last == follower and follower.begin_ns >= amend.begin_ns


def waited_at(spans: Sequence[Span], stages: dict[str, Span], stage: Span, t: int) -> str:
    arrivals = [s.end_ns for s in spans if s.what == "wait arrival" and s.lane == stage.lane and s.end_ns <= stage.begin_ns]
    if stage.what == "plan" and arrivals and t < max(arrivals):
        return "no work"
    what = does(spans, stage.lane, t)
    if what == "wait batch":
        planner = stages["plan"].lane if "plan" in stages else stage.lane
        what = "driver" if planner == stage.lane else does(spans, planner, t)
        what = "driver" if what == "wait batch" else what
    planned = stage.what != "plan"
    return {
        "ask": "plan",
        "idle ask": "plan" if planned else "no work",
        "wait arrival": "hand-over" if planned else "no work",
        "wait launch": "hand-over",
        "wait late": "hand-over" if planned else "wait late",
        "wait device": "hand-over" if stage.what in ("prepare", "finish") else "result",
    }.get(what, what)


def check(module: Any, spans: Sequence[Span], begin: int, end: int) -> None:
    """Everything that a timeline says of these spans, against the clerk."""
    timeline = module.Timeline(spans, begin, end)
    want = [cause_at(spans, t) for t in range(begin, end)]
    got: list[str | None] = [None] * (end - begin)
    for piece in timeline.idle:
        assert begin <= piece.begin_ns < piece.end_ns <= end
        for t in range(piece.begin_ns, piece.end_ns):
            assert got[t - begin] is None, "classified twice"
            got[t - begin] = piece.cause
    assert got == want
    assert timeline.idle_ns == Counter(cause for cause in want if cause is not None)
    assert timeline.busy_ns == want.count(None)
    assert timeline.bubble_ns == sum(cause not in (None, "no work") for cause in want)
    assert (timeline.stage_ns, timeline.hidden_ns) == host_time(spans, begin, end)


def host_time(spans: Sequence[Span], begin: int, end: int) -> tuple[dict[str, int], int]:
    stage_ns, hidden = {s.what: 0 for s in spans if s.lane != "device" and s.what in STAGES}, 0
    for lane in {s.lane for s in spans} - {"device"}:
        for t in range(min(s.begin_ns for s in spans), max(s.end_ns for s in spans)):
            what = does(spans, lane, t)
            what = "plan" if what in ("ask", "idle ask") else what
            if what in STAGES:
                stage_ns[what] = stage_ns.get(what, 0) + 1
                hidden += begin <= t < end and cause_at(spans, t) is None
    return stage_ns, hidden


# ---- laws ----

cost = st.fixed_dictionaries({name: st.integers(0, 4) for name in COSTS})
answer = st.sampled_from([0, 0, 0, IDLE, WAIT])


@settings(max_examples=150)
@given(st.integers(1, 3), st.lists(answer, max_size=7), cost, st.booleans())
def test_one_lane(depth: int, answers: list[int], costs: dict[str, int], amend: bool) -> None:
    spans, end = inline(depth, answers, costs, amend)
    check(ovsdk.timeline, spans, 0, end + 2)


@settings(max_examples=100)
@given(st.integers(1, 3), st.integers(0, 5), cost)
def test_two_lanes(depth: int, steps: int, costs: dict[str, int]) -> None:
    spans, end = two_lanes(depth, steps, costs)
    check(ovsdk.timeline, spans, 0, end)


WORDS = (*STAGES, "ask", "idle ask", "wait device", "wait arrival", "wait batch", "wait launch", "wait late", "hand-over", "something new")
any_span = st.builds(
    lambda lane, what, step, begin, length: Span(lane, "decode" if lane == "device" else what, step, begin, begin + length),
    st.sampled_from(["host", "execution", "device"]),
    st.sampled_from(WORDS),
    st.integers(0, 2),
    st.integers(0, 25),
    st.integers(0, 8),
)


@settings(max_examples=200)
@given(st.lists(any_span, max_size=12), st.integers(0, 10), st.integers(0, 30))
def test_any_spans_at_all(spans: list[Span], begin: int, length: int) -> None:
    """Nested, crossing, out of order, outside the run, with stages missing or twice: each idle instant has one cause."""
    check(ovsdk.timeline, spans, begin, begin + length)


@given(st.lists(any_span, max_size=20), st.integers(0, 10), st.integers(0, 30))
def test_causes_sum_to_idle(spans: list[Span], begin: int, length: int) -> None:
    timeline = Timeline(spans, begin, begin + length)
    assert sum(timeline.idle_ns.values()) + timeline.busy_ns == length
    edges = sorted([*((p.begin_ns, p.end_ns) for p in timeline.idle), *timeline.busy])
    assert [b for b, _ in edges] + [begin + length] == [begin] + [e for _, e in edges] or (not edges and length == 0)
    assert set(causes(timeline)) == set(timeline.idle_ns)


@given(st.lists(any_span, max_size=20))
def test_a_lane_does_one_thing_at_a_time(spans: list[Span]) -> None:
    for pieces in Timeline(spans, 0, 40).lanes.values():
        assert all(a.end_ns <= b.begin_ns for a, b in pairwise(pieces))
        assert all(p.begin_ns < p.end_ns for p in pieces)


@given(st.lists(any_span, max_size=20))
def test_streams_hold_every_device_span_once_without_overlap(spans: list[Span]) -> None:
    timeline = Timeline(spans, 0, 40)
    assert sorted(s for row in timeline.streams for s in row) == sorted(timeline.launched)
    assert all(a.end_ns <= b.begin_ns for row in timeline.streams for a, b in pairwise(row))


# ---- +1 ms moves one cause ----

SERIAL = ("plan", "prepare", "launch", "retire", "start", "result", "driver")
HOST_BOUND = ("plan", "prepare", "launch", "retire", "driver")


def moved(run: Callable[[Costs], tuple[list[Span], int]], name: str, **base: int) -> tuple[dict[str, int], list[Span]]:
    """How the bubbles of each cause change, in ms, if every `name` takes 1 ms longer; and the spans before that."""
    before, after = ({**COSTS, **base, name: {**COSTS, **base}[name] + extra} for extra in (0, 1))
    lines = [Timeline(spans, 0, end) for spans, end in (run({k: v * MS for k, v in c.items()}) for c in (before, after))]
    change = Counter(lines[1].idle_ns)
    change.subtract(lines[0].idle_ns)
    return {cause: ns // MS for cause, ns in change.items() if ns and cause != "no work"}, list(lines[0].spans)


def before_last_launch(spans: list[Span], what: str) -> int:
    last = max(s.begin_ns for s in spans if s.lane == "device")
    return sum(s.what == what and s.end_ns <= last for s in spans)


@pytest.mark.parametrize("name", SERIAL)
def test_one_ms_in_a_serial_run(name: str) -> None:
    change, spans = moved(lambda costs: inline(1, [0] * 5, costs), name, device=7)
    times = {"driver": 3 + 4 * 4, "start": 5, "result": 4}.get(name) or before_last_launch(spans, name)
    assert change == {name: times}


@pytest.mark.parametrize("name", HOST_BOUND)
@pytest.mark.parametrize("depth", [2, 3])
def test_one_ms_in_a_host_bound_run(depth: int, name: str) -> None:
    change, spans = moved(lambda costs: inline(depth, [0] * 6, costs), name, driver=2)
    times = (
        before_last_launch(spans, name) if name != "driver" else sum(before_last_launch(spans, what) for what in (*STAGES, "wait device"))
    )
    assert change == {name: times}


@pytest.mark.parametrize("name", [*STAGES, "driver"])
def test_one_ms_in_a_host_bound_run_that_amends(name: str) -> None:
    change, spans = moved(lambda costs: inline(2, [0] * 6, costs, amend=True), name, driver=2)
    times = before_last_launch(spans, name)
    assert set(change) == {name}
    assert name == "driver" or change[name] == times


@pytest.mark.parametrize("name", ["plan", "prepare", "launch", "retire", "hand-over", "start", "result"])
def test_one_ms_in_a_serial_run_on_two_lanes(name: str) -> None:
    change, spans = moved(lambda costs: two_lanes(1, 5, costs), name, device=7, **{"hand-over": 1})
    times = {"start": 5, "result": 4, "hand-over": 5}.get(name) or before_last_launch(spans, name)
    assert change == {name: times}


@pytest.mark.parametrize(("name", "slow"), [("prepare", 20), ("launch", 20)])
def test_one_ms_where_the_execution_lane_is_the_bottleneck(name: str, slow: int) -> None:
    change, _ = moved(lambda costs: two_lanes(2, 6, costs), name, **{name: slow, "device": 2})
    assert change == {name: 6}


def test_one_ms_on_the_device_moves_no_cause_of_a_device_bound_run() -> None:
    change, _ = moved(lambda costs: inline(2, [0] * 6, costs), "device", device=30)
    assert change == {}


# ---- cases ----


def named(lane: str, *spans: tuple[str, int, int, int]) -> list[Span]:
    return [Span(lane, *span) for span in spans]


STEP = [
    *named("host", ("plan", 1, 40, 50), ("prepare", 1, 50, 60), ("launch", 1, 60, 70)),
    *named("device", ("d", 0, 0, 10), ("d", 1, 75, 90)),
]


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("retire", "retire"), ("prepare", "prepare"), ("ask", "plan"), ("idle ask", "no work"), ("wait arrival", "no work"),
        ("wait device", "result"), ("hand-over", "hand-over"), ("wait batch", "driver"), ("new word", "new word"),
    ],
)  # fmt: skip
def test_what_the_lane_does_before_a_plan_is_the_cause(what: str, cause: str) -> None:
    timeline = Timeline([*STEP, Span("host", what, 0, 10, 40)], 0, 95)
    assert timeline.idle_ns == Counter({cause: 30}) + Counter({"plan": 10, "prepare": 10, "launch": 10, "start": 5, "no work": 5})
    assert timeline.bubble_ns == timeline.end_ns - timeline.busy_ns - timeline.idle_ns["no work"]


def test_no_span_on_the_lane_is_the_drivers_own_time() -> None:
    assert Timeline(STEP, 0, 90).idle_ns["driver"] == 30


def test_before_the_arrival_there_was_nothing_to_plan() -> None:
    """The retire and the look for work before it are no bubble: nothing could have been planned."""
    spans = [*STEP, *named("host", ("retire", 0, 12, 20), ("idle ask", 1, 20, 22), ("wait arrival", 1, 22, 37))]
    timeline = Timeline(spans, 0, 90)
    assert timeline.idle_ns["no work"] == 27
    assert timeline.idle_ns["driver"] == 3
    assert "retire" not in timeline.idle_ns


THREADS = [
    *named("execution", ("wait batch", 1, 5, 45), ("prepare", 1, 45, 50), ("launch", 1, 50, 55), ("wait batch", 2, 55, 90)),
    *named("device", ("d", 0, 0, 10), ("d", 1, 60, 70)),
]


@pytest.mark.parametrize(
    ("what", "cause"),
    [("retire", "retire"), ("wait device", "hand-over"), ("hand-over", "hand-over"), ("ask", "plan"), ("idle ask", "plan")],
)
def test_a_lane_that_waits_for_a_batch_is_followed_to_the_scheduling_lane(what: str, cause: str) -> None:
    spans = [*THREADS, *named("scheduling", ("wait device", 0, 0, 20), ("plan", 1, 20, 30), (what, 0, 30, 40))]
    got = Timeline(spans, 0, 70).idle_ns
    assert got == Counter({"result": 10, "plan": 10, "driver": 5, "prepare": 5, "launch": 5, "start": 5}) + Counter({cause: 10})


def test_a_launch_that_blocks_is_the_cause_until_the_device_begins() -> None:
    timeline = Timeline([*named("host", ("plan", 0, 0, 5), ("launch", 0, 5, 40)), *named("device", ("d", 0, 10, 38))], 0, 40)
    assert timeline.idle_ns == {"plan": 5, "launch": 5, "no work": 2}


def test_between_two_launches_of_a_step() -> None:
    """A tuple of launches waits for its launch stage only; the launch after an amend waits for amend and finish."""
    host = named("host", ("plan", 0, 0, 1), ("launch", 0, 1, 20), ("amend", 0, 30, 40), ("finish", 0, 40, 50))
    device = named("device", ("a", 0, 5, 10), ("b", 0, 22, 25), ("c", 0, 52, 60))
    timeline = Timeline(host + device, 0, 60)
    assert timeline.idle_ns == {"launch": 14, "amend": 10, "finish": 10, "driver": 5, "start": 4, "plan": 1}
    assert [timeline.launch_of(s) for s in timeline.launched] == [host[1], host[1], host[3]]


def test_an_amend_on_one_lane_holds_its_finish() -> None:
    host = named("host", ("plan", 0, 0, 1), ("launch", 0, 1, 2), ("amend", 0, 4, 10))
    timeline = Timeline(host + named("device", ("a", 0, 2, 4), ("b", 0, 10, 12)), 0, 12)
    assert timeline.idle_ns == {"amend": 6, "plan": 1, "launch": 1}


def test_a_step_without_host_spans_is_said_to_be_unrecorded() -> None:
    assert Timeline(named("device", ("d", 0, 5, 9)), 0, 10).idle_ns == {"not recorded": 5, "no work": 1}


def test_an_empty_run() -> None:
    timeline = Timeline([], 5, 5)
    assert (timeline.idle, timeline.busy_ns, timeline.step_s, timeline.steps, timeline.in_flight) == ((), 0, None, 0, 0)
    assert Timeline([], 5, 9).idle_ns == {"no work": 4}


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("device", [1, 60])
def test_steady_step_time_is_exact_for_constant_costs(depth: int, device: int) -> None:
    """Neither filling nor draining counts. Host 12 a step: serial their sum, overlapped the larger."""
    spans, end = inline(depth, [0] * 12, {**COSTS, "device": device})
    timeline = Timeline(spans, 0, end)
    period = 12 + device if depth == 1 else max(12, device)
    assert timeline.step_s == pytest.approx(period / 1e9, rel=1e-12)
    assert (timeline.in_flight, timeline.steps) == (depth, 12)


def test_a_run_too_short_for_a_steady_state_tells_the_mean_of_what_it_has() -> None:
    spans, end = inline(2, [0] * 3, {**COSTS, "device": 60})
    line = Timeline(spans, 0, end)
    assert line.steady_ns == line.retired_ns
    assert line.step_s == pytest.approx(60e-9)


def test_a_timeline_of_the_last_steps_only_knows_its_depth() -> None:
    spans, end = inline(2, [0] * 12, COSTS)
    kept = spans[-40:]
    timeline = Timeline(kept, kept[0].begin_ns, end)
    assert timeline.in_flight == 2
    assert timeline.step_s == Timeline(spans, 0, end).step_s


def test_time_hidden_in_the_picture_that_everybody_draws() -> None:
    """plan 1, prepare 2, launch 1, device 6, retire 1: nothing hidden at depth 1; 15 of 20 at depth 2."""
    costs = {**COSTS, "plan": 1, "prepare": 2, "launch": 1, "device": 6, "retire": 1, "ask": 0}
    (serial, end_1), (overlapped, end_2) = (inline(depth, [0] * 4, costs) for depth in (1, 2))
    assert (end_1, Timeline(serial, 0, end_1).bubble_ns, Timeline(serial, 0, end_1).hidden_ns) == (44, 19, 0)
    two = Timeline(overlapped, 0, end_2)
    assert (end_2, two.bubble_ns, two.hidden_ns, two.lane_ns) == (29, 4, 15, {"host": 20})
    assert two.idle_ns == {"prepare": 2, "plan": 1, "launch": 1, "no work": 1}


@pytest.mark.parametrize(("begin", "end", "spans"), [(5, 4, []), (0, 9, [Span("host", "plan", 3, 5, 4)])])
def test_time_that_runs_backwards_is_refused(begin: int, end: int, spans: list[Span]) -> None:
    with pytest.raises(ConfigError, match="time runs backwards"):
        Timeline(spans, begin, end)


def test_causes_are_told_in_stage_order() -> None:
    timeline = Timeline([*STEP, Span("host", "new word", 0, 10, 40)], 0, 95)
    assert causes(timeline) == ["plan", "prepare", "launch", "start", "new word", "no work"]


# ---- mutants ----

HERE = Path(cast(str, ovsdk.timeline.__file__)).parent
INTERVALS = (HERE / "spans.py").read_text().replace("from __future__ import annotations\n", "")
SOURCE = (HERE / "timeline.py").read_text().replace("from .spans import common, flatten, union\n", INTERVALS)
MUTANTS = [
    ("begin < stage.end_ns:", "begin <= stage.begin_ns:"),
    ("STAGES[: 5 if second else 3]", "STAGES[:3]"),
    ("STAGES[: 5 if second else 3]", "STAGES[:5]"),
    ("for name in STAGES[: 5 if second else 3]", "for name in reversed(STAGES[: 5 if second else 3])"),
    ("yield from _running(host, stage, runs, done)", "yield runs, done, DRIVER"),
    ("yield waits, goes_on, spans[i].what", "yield waits, goes_on, stage.what"),
    ("yield begin, waits, stage.what", "yield begin, waits, spans[i].what"),
    ("begin = done", "begin = runs"),
    ("yield begin, end, START", "yield begin, end, DRIVER"),
    ("yield begin, end, NO_WORK\n", "yield begin, end, START\n"),
    ("yield begin, arrived, NO_WORK", "yield begin, arrived, DRIVER"),
    ("bisect_right(arrivals, stage.begin_ns)", "len(arrivals)"),
    ('stage.what == "plan" and begin', "begin"),
    ("yield begin, until, DRIVER", 'yield begin, until, "plan"'),
    ("bisect_right(host.begins[lane], begin) - 1", "bisect_right(host.begins[lane], begin)"),
    ("yield from _lane_does(host, stage, plan.lane, begin, end)", "yield begin, end, DRIVER"),
    ("yield from _other_lane(host, stage, lane, begin, until)", "yield begin, until, DRIVER"),
    ('_FOR_PLAN = {"ask": "plan"', '_FOR_PLAN = {"ask": NO_WORK'),
    ('"plan", "idle ask": NO_WORK', '"plan", "idle ask": "plan"'),
    ("WAIT_ARRIVAL: HAND_OVER", "WAIT_ARRIVAL: NO_WORK"),
    ("WAIT_LATE: HAND_OVER", "WAIT_LATE: WAIT_LATE"),
    ('"wait device": RESULT, "wait launch": HAND_OVER}\n_FOR', '"wait device": START, "wait launch": HAND_OVER}\n_FOR'),
    ('{**_FOR_LATER, "wait device": HAND_OVER}', "_FOR_LATER"),
    ("(s.begin_ns, -s.end_ns)", "(s.begin_ns, s.end_ns)"),
    ("top = stack[-1]", "top = stack[0]"),
    ("max(end, span.end_ns), first", "span.end_ns, first"),
    ("max(end, span.end_ns), first", "max(end, span.end_ns), span"),
    ("idle_from = max(idle_from, end)", "idle_from = begin"),
    ("yield idle_from, min(begin, self.end_ns), first", "yield idle_from, begin, first"),
    (".begin_ns >= stage.begin_ns}", ".begin_ns >= 0}"),
    ('"plan" if span.what in ASKS else span.what', "span.what"),
    ("max(busy[k][0], span.begin_ns)", "busy[k][0]"),
    ("if cause != NO_WORK", "if cause"),
]


WAITS_INSIDE = [
    *(Span("host", what, 0, begin, begin + 5) for what, begin in (("plan", 0), ("prepare", 5))),
    Span("host", "launch", 0, 10, 25),
    Span("host", "tiling sync", 0, 12, 15),
    Span("host", "wait GIL", 0, 17, 18),
    Span("device", "decode", 0, 22, 30),
]


def test_waits_inside_a_stage_are_causes_of_their_own() -> None:
    assert Timeline(WAITS_INSIDE, 0, 40).idle_ns == {"no work": 10, "launch": 8, "plan": 5, "prepare": 5, "tiling sync": 3, "wait GIL": 1}


def checked_by_the_clerk(module: Any) -> None:
    """The clerk over a fixed heap of schedules and of spans that fit nothing."""
    check(module, WAITS_INSIDE, 0, 40)
    draw = random.Random(5)
    for k in range(60):
        costs = {name: draw.randrange(5) for name in COSTS}
        check(module, *_closed(inline(1 + k % 3, draw.choices([0, 0, IDLE, WAIT], k=4), costs, bool(k % 2))))
        check(module, *_closed(two_lanes(1 + k % 2, 3, costs)))
    for _ in range(400):
        check(module, [_any_span(draw) for _ in range(9)], 3, 20)


def _closed(run: tuple[list[Span], int]) -> tuple[list[Span], int, int]:
    return run[0], 0, run[1]


def _any_span(draw: random.Random) -> Span:
    lane, begin = draw.choice(["host", "execution", "device"]), draw.randrange(25)
    return Span(lane, draw.choice(WORDS), draw.randrange(2), begin, begin + draw.randrange(9))


def built(source: str) -> ModuleType:
    module = ModuleType("ovsdk.timeline_mutant")
    module.__package__ = "ovsdk"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)  # attrs looks a class's module up
        exec(compile(source, "mutant", "exec"), module.__dict__)
    return module


def test_the_unchanged_source_passes() -> None:
    checked_by_the_clerk(built(SOURCE))


@pytest.mark.parametrize(("right", "wrong"), MUTANTS)
def test_mutant_is_noticed(right: str, wrong: str) -> None:
    assert right in SOURCE
    source = SOURCE.replace(right, wrong, 1)
    with pytest.raises((AssertionError, IndexError, KeyError)):
        checked_by_the_clerk(built(source))
