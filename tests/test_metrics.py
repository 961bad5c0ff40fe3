"""What requests saw, against hand counts, Little's law and numpy; the critical path against what a shorter part really saves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk import AdmissionQueue, Ask, ConfigError, RunLog, open_backend, run
from ovsdk.costs import INPUTS, overlap_costs
from ovsdk.critical import critical_path
from ovsdk.intervals import interval, step_interval, student
from ovsdk.joining import Joined, Joining
from ovsdk.metrics import digest, latency, mean_in_system, percentile, request_times, with_latency
from ovsdk.models import CausalLM, SlotScheduler
from ovsdk.saturated import Priced, Saturated
from ovsdk.timeline import Timeline
from ovsdk.types import Span
from ovsdk.workloads import Bursts, Poisson, admission, workload

PRICES = {
    "schema": 1,
    "stage": {"plan_us": 500, "prepare_us": 200, "launch_us": 100, "retire_us": 200},
    "launch": {"prefill": {"device_us": {"us": 1000, "per": {"tokens": 10}}}, "decode": {"device_us": {"us": 4000, "per": {"batch": 50}}}},
}
S = 1_000_000_000


# ---- by hand ----


def hand_made():
    """Ask 0 at 0 s, ask 1 at 10 s; step k is planned at 10 k and has retired at 10 k + 30."""
    log = RunLog(asks=[Ask(0, 0, 0.0, ("a",)), Ask(1, 1, 10.0, ("b", "c"))])
    spans = [
        Span("host", what, k, (10 * k + at) * S, (10 * k + at + 1) * S) for k in range(4) for what, at in (("plan", 0), ("retire", 29))
    ]
    return log, Timeline(spans, 0, 60 * S)


SERVED = (Joined(1, 0, range(3)), Joined(2, 1, range(1, 2)), Joined(3, -1, range(2, 4)), Joined(4, 1, range(0)))


def test_times_by_hand():
    log, timeline = hand_made()
    a, b, c = request_times(SERVED, log, timeline, {2: 4.0})
    assert (a.arrived_s, a.planned_s, a.first_s, a.last_s, a.tokens) == (0, 0, 30, 50, 3)
    assert (b.arrived_s, b.queued_s, b.ttft_s, b.tpot_s, b.total_s) == (4, 6, 36, None, 36)
    assert (c.arrived_s, c.queued_s, c.ttft_s, c.tpot_s) == (0, 20, 50, 10)


def test_latency_by_hand():
    log, timeline = hand_made()
    found = latency(request_times(SERVED, log, timeline, {2: 4.0}), 60.0)
    assert (found["requests"], found["tokens"], found["requests_per_s"], found["tokens_per_s"]) == (3, 6, 0.05, 0.1)
    assert found["ttft_s"] == {"mean": (30 + 36 + 50) / 3, "p50": 36, "p90": pytest.approx(47.2), "p99": pytest.approx(49.72)}
    assert found["tpot_s"]["mean"] == 10
    assert set(latency([], 0.0)) == {"requests", "tokens", "requests_per_s", "tokens_per_s"}


def test_mean_in_system_by_hand():
    log, timeline = hand_made()
    assert mean_in_system(SERVED, log, timeline, {2: 4.0}) == pytest.approx((50 + 36 + 60) / 60)
    never_done = Joined(5, 1, range(3, 10))  # it is there from 10 s to the end
    longer = attrs.evolve(timeline, end_ns=70 * S)
    assert mean_in_system((*SERVED, never_done), log, longer, {2: 4.0}) == pytest.approx((50 + 36 + 60 + 60) / 70)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(0, 100))
def test_percentile_is_numpy_s(values, share):
    assert percentile(sorted(values), share) == pytest.approx(float(numpy.percentile(values, share)), abs=1e-6)


def test_what_cannot_be_told_is_refused():
    log, timeline = hand_made()
    with pytest.raises(ConfigError, match=r"request 2 is said to have come at 11\.0 s, after the ask"):
        request_times(SERVED, log, timeline, {2: 11.0})
    with pytest.raises(ConfigError, match="came with ask 7, but the log has 2"):
        request_times([Joined(5, 7, range(1))], log, timeline)
    with pytest.raises(ConfigError, match="no plan of step 9"):
        request_times([Joined(5, 0, range(9, 10))], log, timeline)
    with pytest.raises(ConfigError, match="begins with step 1; older spans were dropped"):
        request_times(SERVED, log, attrs.evolve(timeline, spans=timeline.spans[2:]))


# ---- of runs ----


def slot_run(arrivals, count, *, seed=0, depth=2, driver="inline", plan_when="asap", slots=4):
    """The slot scheduler and the model's executor in virtual time; nothing is computed. Report with latency, outputs, arrivals."""
    items = workload(arrivals, count, seed, prompt="uniform:4,60", output="geometric:12")
    scheduler = SlotScheduler(slots=slots, closed=False, prefills=2)
    with open_backend("sim", prices=PRICES) as sim:
        report = run(
            scheduler,
            CausalLM("not needed", slots=slots),
            sim,
            depth=depth,
            driver=driver,
            plan_when=plan_when,
            log=True,
            admission=admission(items),
        )
    came = {item.id: item.at_s for item in items}
    return with_latency(report, scheduler.outputs.values(), came), scheduler.outputs, came, items


@pytest.mark.parametrize("arrivals", [Poisson(40), Bursts(200, 0.1, 0.3)])
@pytest.mark.parametrize(("driver", "plan_when"), [("inline", "asap"), ("threads", "asap"), ("inline", "late")])
def test_little_s_law(arrivals, driver, plan_when):
    """L, counted along the spans, is the arrival rate times the mean of what each request took."""
    report, outputs, came, items = slot_run(arrivals, 150, driver=driver, plan_when=plan_when)
    assert [len(outputs[item.id].tokens) for item in items] == [item.output for item in items]
    times = request_times(outputs.values(), report.log, report.timeline, came)
    rate, mean = len(times) / report.makespan_s, sum(request.total_s for request in times) / len(times)
    assert mean_in_system(outputs.values(), report.log, report.timeline, came) == pytest.approx(rate * mean, rel=1e-9)
    assert report.latency["requests"] == 150
    assert report.latency["tokens"] == sum(item.output for item in items)
    assert all(request.arrived_s <= request.planned_s < request.first_s <= request.last_s for request in times)


def test_first_tokens_of_the_slot_scheduler_are_those_of_their_prefills():
    report, outputs, _, _ = slot_run(Poisson(40), 60)
    prefills = {}
    for step, kinds in {k: [s.what for s in report.timeline.launched if s.step == k] for k in range(report.steps)}.items():
        prefills[step] = kinds.count("prefill")
    assert prefills == {step: sum(output.steps[0] == step for output in outputs.values()) for step in range(report.steps)}
    assert all(len(output.steps) == len(output.tokens) for output in outputs.values())
    assert all(any(request.id == key for request in report.log.asks[output.arrived].arrivals) for key, output in outputs.items())


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(0, 99), st.sampled_from([None, 2, 5]), st.booleans())
def test_little_s_law_of_a_scheduler_of_one_s_own(depth, seed, places, full):
    items = workload(Poisson(300), 40, seed, output="uniform:1,9")
    scheduler = Joining(40, places=places, full=full, features={"batch": 3})
    with open_backend("sim", prices=PRICES) as sim:
        report = run(scheduler, Priced(), sim, depth=depth, log=True, admission=admission(items, lambda item: item))
    came = {item.id: item.at_s for item in items}
    times = request_times(scheduler.served, report.log, report.timeline, came)
    mean = sum(request.total_s for request in times) / len(times)
    assert mean_in_system(scheduler.served, report.log, report.timeline, came) == pytest.approx(len(times) / report.makespan_s * mean)
    assert sorted(request.id for request in times) == list(range(40))
    live = [sum(step in joined.steps for joined in scheduler.served) for step in range(report.steps)]
    assert places is None or max(live) <= places
    assert full or min(live) > 0
    assert [s.end_ns - s.begin_ns for s in report.timeline.launched] == [1000 * (4000 + 50 * (3 if full else rows)) for rows in live]


def test_joining_refuses_what_serves_nobody():
    with pytest.raises(ConfigError, match="at least 1; got count=0"):
        Joining(0)
    with pytest.raises(ConfigError, match="places=0"):
        Joining(3, places=0)


def test_metrics_of_a_measured_run():
    with open_backend("thread") as device:
        scheduler = Own(30)
        report = run(scheduler, Priced(), device, log=True)
    report = with_latency(report, scheduler.served)
    assert report.latency["requests"] == 30
    assert 0 < report.latency["ttft_s"]["p50"] <= report.makespan_s
    assert "TTFT" in str(report)
    assert "\n" not in str(report)
    assert report.as_dict()["latency"] == report.latency
    assert json.loads(json.dumps(report.as_dict()))["latency"]["tokens"] == 30


class Own(Saturated):
    """One request a step, there from the start."""

    def __init__(self, steps):
        super().__init__(steps)
        self.served = [Joined(step, -1, range(step, step + 1)) for step in range(steps)]


def test_a_report_without_latency_says_nothing_of_it():
    with open_backend("thread") as device:
        report = run(Saturated(3), Priced(), device)
    assert report.latency is None
    assert "latency" not in report.as_dict()
    with pytest.raises(ConfigError, match="log=True"):
        with_latency(report, [])


# ---- digest ----

DIGEST = """
from tests.test_metrics import slot_run, Bursts
from ovsdk.metrics import digest
report, *_ = slot_run(Bursts(200, 0.1, 0.3), 40, seed=int({seed}), plan_when="late")
print(digest(report.log, report.timeline))
"""


def digest_in(seed, hash_seed):
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", DIGEST.format(seed=seed)], capture_output=True, text=True, check=True, env=environment, cwd=root
    )
    return done.stdout.strip()


def test_same_seed_same_digest_under_another_hash_seed():
    report, *_ = slot_run(Bursts(200, 0.1, 0.3), 40, seed=7, plan_when="late")
    again, *_ = slot_run(Bursts(200, 0.1, 0.3), 40, seed=7, plan_when="late")
    here = digest(report.log, report.timeline)
    assert here == digest(again.log, again.timeline)
    assert digest_in(7, 1) == digest_in(7, 4242) == here


def test_a_digest_depends_on_every_part():
    report, *_ = slot_run(Poisson(40), 10)
    log, timeline = report.log, report.timeline
    digests = {
        digest(log, timeline),
        digest(log, attrs.evolve(timeline, end_ns=timeline.end_ns + 1)),
        digest(log, attrs.evolve(timeline, spans=(*timeline.spans[:-1], timeline.spans[-1]._replace(begin_ns=0)))),
        digest(RunLog(asks=[log.asks[0]._replace(now_s=0.5), *log.asks[1:]], results=log.results), timeline),
        digest(RunLog(asks=log.asks, results={**log.results, 0: None}), timeline),
    }
    assert len(digests) == 5


# ---- intervals ----


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (29, 2.045), (100, 1.984)]
)
def test_student_s_t_is_the_tables(freedom, t):
    assert student(freedom, 0.95) == pytest.approx(t, abs=6e-4)


def test_intervals_cover_the_mean_as_often_as_they_say():
    draw = numpy.random.Generator(numpy.random.PCG64(5))
    inside = sum(found.low <= 3 <= found.high for found in (interval(draw.normal(3, 2, 5).tolist(), 0.9) for _ in range(2000)))
    assert inside / 2000 == pytest.approx(0.9, abs=0.02)


def test_an_interval_of_one_value_or_none():
    assert interval([4.0]).high == float("inf")
    assert str(interval([1.0, 2.0, 3.0])) == "2 ± 2.5"
    with pytest.raises(ConfigError, match="needs values"):
        interval([])
    with pytest.raises(ConfigError, match="level=95"):
        interval([1.0], 95)


def test_batch_means_of_drawn_steps_cover_the_true_mean():
    prices = {"schema": 1, "stage": PRICES["stage"], "launch": {"decode": {"device_us": {"quantiles": [[0.0, 3000], [1.0, 5000]]}}}}
    inside = 0
    for seed in range(30):
        with open_backend("sim", prices=prices, seed=seed) as sim:
            found = step_interval(run(Saturated(300), Priced(), sim).timeline)
        inside += found.low <= 4e-3 <= found.high
        assert found.count == 20
    assert inside >= 25


def test_batch_means_need_enough_steps():
    with open_backend("thread") as device, pytest.raises(ConfigError, match="too few for 20 batches"):
        step_interval(run(Saturated(20), Priced(), device).timeline)


# ---- critical path ----

PARTS = ("plan", "prepare", "launch", "retire", "device decode")


def saturated(depth, driver, us, steps=60):
    stages = {f"{name}_us": value for name, value in us.items() if " " not in name}
    with open_backend("sim", prices={"schema": 1, "stage": stages, "launch": {"decode": {"device_us": us["device decode"]}}}) as sim:
        return run(Saturated(steps), Priced(), sim, depth=depth, driver=driver)


@settings(max_examples=30)
@given(st.tuples(*[st.integers(20, 400)] * 5), st.integers(1, 3), st.sampled_from(["inline", "threads"]))
def test_what_is_on_the_path_is_what_a_shorter_part_saves(costs, depth, driver):
    """The times a step of a part is the derivative of the step time, unless another chain is (about) as long: then it is at least that."""
    us = dict(zip(PARTS, (1000 * cost for cost in costs), strict=True))
    report = saturated(depth, driver, us)
    path = critical_path(report.timeline)
    assert sum(seconds for seconds, _ in path.parts.values()) == pytest.approx(path.step_s)
    for part in PARTS:
        longer, shorter = (saturated(depth, driver, {**us, part: us[part] + change}).step_s for change in (10, -10))
        times = path.parts.get(part, (0.0, 0.0))[1]
        low, high = sorted(((longer - report.step_s) / 10e-6, (report.step_s - shorter) / 10e-6))
        assert low - 0.2 <= times <= high + 0.2  # the ends of 60 steps blur it


def test_the_path_of_the_serial_loop_is_everything_once():
    path = critical_path(saturated(1, "inline", dict(zip(PARTS, (12_000, 10_000, 130, 11_870, 45_000), strict=True))).timeline)
    assert {part: (round(s * 1e6), round(n, 6)) for part, (s, n) in path.parts.items()} == {
        "device decode": (45_000, 1),
        "plan": (12_000, 1),
        "retire": (11_870, 1),
        "prepare": (10_000, 1),
        "launch": (130, 1),
    }
    parts = "device decode 45.000 ms, plan 12.000 ms, retire 11.870 ms, prepare 10.000 ms, launch 0.130 ms"
    gain = "shorten 'device decode' first: 1 ms less of it saves 1.00 ms"
    assert str(path) == f"critical path of a step (simulated): {parts} of 79.000 ms; {gain}"


@pytest.mark.parametrize("driver", ["inline", "threads"])
def test_the_path_of_a_busy_device_is_the_device_alone(driver):
    path = critical_path(saturated(2, driver, dict(zip(PARTS, (12_000, 10_000, 130, 11_870, 45_000), strict=True))).timeline)
    assert path.parts == {"device decode": (pytest.approx(0.045), pytest.approx(1))}


FOLLOWS = [
    ("prepare", 0, "plan"),
    ("launch", 0, "prepare"),
    ("launch", -1, "amend"),
    ("launch", -1, "finish"),
    ("amend", 0, "launch"),
    ("amend", -1, "retire"),
    ("finish", 0, "amend"),
]


@pytest.mark.parametrize(("stage", "distance", "before"), FOLLOWS)
def test_the_path_goes_on_with_what_a_stage_follows_on_another_lane(stage, distance, before):
    """Two retires, then `before` for 4 on one lane, then `stage` for 2 and its retire for 2 on another."""
    step, share = (3, 2) if before == "retire" else (2, 1)
    spans = [Span("a", "retire", k, k * S, (k + 1) * S) for k in range(2)]
    spans += [
        Span("a", before, step + distance, 2 * S, 6 * S),
        Span("b", stage, step, 6 * S, 8 * S),
        Span("b", "retire", step, 8 * S, 10 * S),
    ]
    parts = {part: seconds * share for part, (seconds, _) in critical_path(Timeline(spans, 0, 10 * S)).parts.items()}
    assert parts == ({"retire": 6, stage: 2} if before == "retire" else {"retire": 2, stage: 2, before: 4})


def test_the_path_of_a_measured_run_sums_to_its_step():
    with open_backend("thread") as device:
        path = critical_path(run(Saturated(50), Priced(), device).timeline)
    assert sum(seconds for seconds, _ in path.parts.values()) == pytest.approx(path.step_s)
    assert "(measured)" in str(path)
    assert set(path.parts) <= {"plan", "prepare", "launch", "retire", "device decode", "start", "result", "driver"}


def test_a_path_needs_two_steps():
    with open_backend("thread") as device, pytest.raises(ConfigError, match="at least two retired steps"):
        critical_path(run(Saturated(1), Priced(), device).timeline)


# ---- costs of overlap ----


def test_costs_are_told_only_for_inputs_that_are_named():
    report = saturated(3, "inline", dict.fromkeys(PARTS, 1000), steps=100)
    assert overlap_costs(report) == {}
    assert overlap_costs(report, {"row_us": 4.0, "kv_bytes_per_row": 1e6}) == {}
    rows = {"rows_per_step": 8, "stop_rate": 0.01}
    assert overlap_costs(report, rows)["rows"] == pytest.approx(100 * 8 * 0.01 * 2)
    full = overlap_costs(report, {**rows, "row_us": 50, "kv_bytes_per_row": 1e6})
    assert full == {
        "rows": pytest.approx(16),
        "row_share": pytest.approx(0.02),
        "device_s": pytest.approx(16 * 50e-6),
        "slot_s": pytest.approx(16 * report.step_s),
        "held_bytes": pytest.approx(16 * report.step_s * 1e6 / report.makespan_s),
    }
    assert set(INPUTS) == {*rows, "row_us", "kv_bytes_per_row"}


def test_counted_overruns_go_before_a_rate():
    report = attrs.evolve(saturated(2, "inline", dict.fromkeys(PARTS, 1000), steps=50), overruns=7)
    assert overlap_costs(report, {"rows_per_step": 8, "stop_rate": 0.5})["rows"] == 7
    assert overlap_costs(attrs.evolve(report, overruns=0))["rows"] == 0


def test_depth_1_costs_nothing():
    costs = overlap_costs(saturated(1, "inline", dict.fromkeys(PARTS, 1000), steps=50), {"rows_per_step": 8, "stop_rate": 0.5, "row_us": 9})
    assert set(costs.values()) == {0.0}


@pytest.mark.parametrize(
    ("inputs", "told"), [({"row": 1}, "did you mean 'row_us'"), ({"stop_rate": 1.5}, "got 1.5"), ({"row_us": -1}, "got -1")]
)
def test_costs_refuse_inputs_that_cannot_be(inputs, told):
    report = saturated(2, "inline", dict.fromkeys(PARTS, 1000), steps=10)
    with pytest.raises(ConfigError, match=told):
        overlap_costs(report, inputs)


def test_arrivals_put_from_outside_count_from_their_ask():
    queue = AdmissionQueue([(0.0, workload(Poisson(1), 1, output="fixed:2")[0])])
    queue.close()
    scheduler = Joining(1, full=False)
    with open_backend("sim", prices=PRICES) as sim:
        report = run(scheduler, Priced(), sim, admission=queue, log=True)
    assert request_times(scheduler.served, report.log, report.timeline)[0].queued_s == 0
