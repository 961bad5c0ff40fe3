"""Planning late: what it gives back, its bounds, and that it decides nothing by itself."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk import BLOCKED, FINISHED, MOVED, AdmissionQueue, ConfigError, hookimpl, open_backend, run, start
from ovsdk.backends.thread import ThreadBackend
from ovsdk.driver import Driver
from ovsdk.late import FEWEST, Forecast, Late
from ovsdk.ledger import PLAN
from ovsdk.saturated import Priced, PricedBatch, Saturated
from ovsdk.types import CLOSED, IDLE, Launch, Span

from .toys import Amending, Count, Finisher, Hasher, Moody, Scripted, double

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))  # as for a script that runs there
benchmark = importlib.import_module("plan_when")

DRIVERS = ("inline", "threads")
HOST = {"plan_us": 5, "prepare_us": 2, "launch_us": 1, "retire_us": 2}
WAY = 8


def priced(device, **host):
    """Prices in us; `device` may be a function of the batch's features."""
    return {"schema": 1, "stage": {**HOST, **host}, "launch": {kind: {"device_us": device} for kind in ("decode", "prefill")}}


class Varied(Saturated):
    """Batches with the durations given, over and over."""

    def __init__(self, steps, durations, kinds=("decode",)):
        super().__init__(steps)
        self.durations, self.kinds = durations, kinds

    def plan(self, ask):
        features = {"us": self.durations[ask.step % len(self.durations)]}
        return PricedBatch(self.kinds[ask.step % len(self.kinds)], features) if ask.step < self.steps else CLOSED


def simulated(scheduler, *, plan_when="late", driver="inline", depth=2, device=lambda f: f["us"], **host):
    with open_backend("sim", prices=priced(device, **host)) as sim:
        return run(scheduler, Priced(), sim, depth=depth, driver=driver, plan_when=plan_when)


def late_waits(report):
    return [span for span in report.timeline.spans if span.what == "wait late"]


# ---- what it gives back ----


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("depth", "plan_when", "mean_ms"), [(1, "asap", 315.0), (2, "asap", 500.0), (2, "late", 311.6)])
def test_ttft_at_saturation(driver, depth, plan_when, mean_ms):
    """Device 200 ms, host 10 ms, Poisson arrivals: the closed form, within the noise of 2000 of them (three standard errors: 4 ms)."""
    assert benchmark.expected_ms(200, 10, depth, plan_when) == pytest.approx(mean_ms)
    report = benchmark.run(200, 10, depth, plan_when, 2000, seed=3, driver=driver)
    assert report.latency["ttft_s"]["mean"] * 1e3 == pytest.approx(mean_ms, abs=4)
    assert report.latency["requests"] == 2000
    assert report.step_s == pytest.approx(0.21 if depth == 1 else 0.2)


def test_the_benchmark_has_a_row_for_every_case():
    rows = [row for row in benchmark.measure(True) if not isinstance(row, str)]
    assert len(rows) == 4 * len(benchmark.CASES) * len(benchmark.RUNS)
    assert all(row.value > 0 for row in rows)


# ---- its bounds, recomputed from the spans ----


def stage_times(report, what, end=True):
    return {s.step: s.end_ns if end else s.begin_ns for s in report.timeline.spans if s.what == what and s.lane != "device"}


def check_bounds(report, depth):
    """No wait outlasts the oldest step in flight, nor the prediction made from the steps retired before."""
    device = {s.step: s.end_ns for s in report.timeline.launched}
    launched, planned, retired = stage_times(report, "launch"), stage_times(report, "plan", end=False), stage_times(report, "retire")
    for wait in late_waits(report):
        seen = sorted(step for step, end in retired.items() if end <= wait.begin_ns)
        oldest = len(seen)
        took = [device[k] - max(device.get(k - 1, -1), launched[k]) for k in seen][-16:]
        ways = [launched[k] - planned[k] for k in seen][-16:]
        assert len(took) >= FEWEST
        assert wait.end_ns <= device[oldest]
        assert wait.end_ns <= max(device[oldest - 1], launched[oldest]) + min(took) - 1.2 * max(ways) + 1
        assert oldest < wait.step <= oldest + depth - 1


durations = st.lists(st.integers(80, 100), min_size=1, max_size=7)


@settings(max_examples=40)
@given(durations, st.integers(2, 4), st.sampled_from(DRIVERS), st.integers(0, 30))
def test_a_wait_is_bounded_and_costs_at_most_the_way_a_step(took, depth, driver, plan_us):
    reports = [simulated(Varied(40, took), plan_when=when, depth=depth, driver=driver, plan_us=plan_us) for when in ("asap", "late")]
    check_bounds(reports[1], depth)
    assert not late_waits(reports[0])
    way_s = (plan_us + 3) / 1e6
    assert reports[1].makespan_s <= reports[0].makespan_s + 40 * way_s


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("depth", [2, 3])
def test_equal_steps_lose_nothing_and_idle_for_no_cause_of_it(driver, depth):
    asap, later = (simulated(Varied(60, [100]), plan_when=when, depth=depth, driver=driver) for when in ("asap", "late"))
    assert later.makespan_s == asap.makespan_s
    assert later.idle == asap.idle
    assert len(late_waits(later)) == 60 - FEWEST - (depth - 1) + 1  # the last is before the ask that closes
    assert later.notes[-1] == f"planned late: {len(late_waits(later))} plans"


def test_the_plan_begins_1_2_ways_before_the_device_is_done():
    report = simulated(Varied(30, [100]))
    device, planned = {s.step: s.end_ns for s in report.timeline.launched}, stage_times(report, "plan", end=False)
    assert {device[k - 1] - planned[k] for k in range(15, 30)} == {round(1.2 * WAY * 1000)}


def test_steps_that_take_too_different_times_are_planned_asap():
    report = simulated(Varied(60, [100, 100, 60]))
    assert not late_waits(report)
    assert report.notes == ("planned late: none, predictions were poor (see ovsdk.late)",)
    assert "planned late: none" in str(report)


def test_steps_of_other_launches_are_predicted_apart():
    report = simulated(Varied(60, [100, 60], kinds=("prefill", "decode")))
    assert len(late_waits(report)) > 30
    assert {span.step % 2 for span in late_waits(report)} == {0, 1}


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_launch_of_operators_with_gaps_between_them_is_predicted_too(driver):
    """A tiling on the AICPU leaves the device idle between two operators of every launch."""
    summed = {"host_us": 1, "device_us": 9, "value_bytes": 8, "tiling": "aicpu", "placement": {"aicpu": {"aicpu_us": 5}}}
    prices = {
        "schema": 1,
        "stage": HOST,
        "machine": {"aicpu_workers": 1},
        "launch": {"decode": {"ops": ["large", "reduce_sum", "large"]}},
        "op": {"large": {"host_us": 1, "device_us": 90}, "reduce_sum": summed},
    }
    with open_backend("sim", prices=prices) as sim:
        report = run(Saturated(60), Priced(), sim, driver=driver, plan_when="late")
    assert len(report.timeline.launched) == 2 * 60
    assert len(late_waits(report)) > 40


def test_a_step_that_ends_before_it_was_predicted_ends_the_wait():
    report = simulated(Varied(40, [100] * 20 + [85]))
    assert report.notes[-1].endswith("1 until the device was done, predicted too long")
    assert report.step_s < 100e-6 + WAY * 1e-6 / 10


# ---- it decides nothing ----


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("amends", [False, True])
def test_one_trace_on_every_backend_and_driver(depth, amends):
    policy, engine = (Amending, Finisher) if amends else (Moody, Hasher)
    prices = {"schema": 1, "stage": HOST | {"amend_us": 1}, "launch": {"hash": {"device_us": 90}, "finish": {"device_us": 9}}}
    traces = []
    for name, options in (("thread", {}), ("sim", {"prices": prices}), ("sim", {"prices": prices, "execute": True})):
        with open_backend(name, **options) as backend:
            for driver, when in itertools.product(DRIVERS, ("asap", "late")):
                scheduler = policy(steps=60, seed=4)
                run(scheduler, engine(), backend, depth=depth, driver=driver, plan_when=when, admission=Scripted(4))
                traces.append(scheduler.trace)
    assert all(trace == traces[0] for trace in traces)
    assert len(traces[0]) > 60


def test_late_asks_see_more_and_the_log_replays_at_any_plan_when():
    seen, logs = {}, {}
    for when in ("asap", "late"):
        scheduler = Moody(steps=60, seed=9)
        with open_backend("sim", prices={"schema": 1, "stage": HOST, "launch": {"hash": {"device_us": 100}}}) as sim:
            arrivals = AdmissionQueue((i * 37e-6, f"r{i}") for i in range(150))
            arrivals.close()
            report = run(scheduler, Hasher(), sim, plan_when=when, admission=arrivals, log=True)
        seen[when], logs[when] = scheduler.trace, report.log
    assert seen["asap"] != seen["late"]
    for when, again in itertools.product(logs, ("asap", "late")):
        scheduler = Moody(steps=60, seed=9)
        with ThreadBackend() as device:
            run(scheduler, Hasher(), device, plan_when=again, replay=logs[when])
        assert scheduler.trace == seen[when]


# ---- a real device thread, on a clock that the test moves ----


class Timed:
    """A launch on the device thread, with times of the injected clock."""

    def __init__(self, inner, submitted_ns):
        self.inner, self.submitted_ns, self.span_ns = inner, submitted_ns, None

    def done(self):
        return self.span_ns is not None

    def result(self):
        return self.inner.result()


class Injected:
    """Clock and stream over those of a thread backend: a stage takes 1, a launch 100; it is done for those who wait for it without
    a deadline. Waits are noted in `calls`."""

    def __init__(self, backend, calls):
        self.real, self.inner, self.calls = backend.clock, backend.stream(), calls
        self.woken, self.signal = self.real.woken, self.real.signal
        self.ns = self.free_ns = 0

    def now_ns(self):
        return self.ns

    def lap(self, stage, step, features):
        self.ns += 1
        return self.ns

    def submit(self, launch):
        return Timed(self.inner.submit(launch), self.ns)

    def wait(self, futures, signal, deadline_ns):
        self.calls.append("device" if deadline_ns is None else "late")
        if deadline_ns is None:
            self.real.wait([future.inner for future in futures], None, None)
        for future in futures if deadline_ns is None else ():
            begin_ns = max(self.free_ns, future.submitted_ns + 1)
            self.free_ns = begin_ns + 100
            future.span_ns = begin_ns, self.free_ns
        self.ns = max(self.ns, self.free_ns if deadline_ns is None else deadline_ns)
        return self.ns


class Noting(Count):
    def __init__(self, steps, calls):
        super().__init__(steps)
        self.calls = calls

    def plan(self, ask):
        self.calls.append("plan")
        return super().plan(ask)

    def retire(self, step, batch, result):
        self.calls.append("retire")
        super().retire(step, batch, result)

    def prepare(self, step, batch):
        return batch

    def launch(self, step, inputs):
        self.calls.append("launch")
        return Launch("echo", fn=double, inputs=(inputs,))


@pytest.mark.parametrize("plan_when", ["asap", "late"])
def test_order_of_calls_on_a_device_thread(plan_when):
    calls = []
    with ThreadBackend() as device:
        device.timeout_s = None
        injected = Injected(device, calls)
        device.clock, device.stream = injected, lambda name="compute": injected
        scheduler = Noting(20, calls)
        run(scheduler, scheduler, device, plan_when=plan_when)
        device.clock = injected.real
    assert [result for _, _, result in scheduler.seen] == [2 * (k + 1) for k in range(20)]
    expected = ["plan", "launch"]
    for k in range(1, 21):  # when step k is planned, k - 1 have retired
        expected += ["late"] * (plan_when == "late" and k - 1 >= FEWEST) + ["plan"] + ["launch"] * (k < 20) + ["device", "retire"]
    assert calls == expected


# ---- errors and edges ----


def test_an_unknown_plan_when_is_refused():
    with ThreadBackend() as device, pytest.raises(ConfigError, match=r"unknown plan_when 'later' \(did you mean 'late'\?\)"):
        run(Count(1), Noting(1, []), device, plan_when="later")


def test_a_driver_of_unknown_lanes_is_refused():
    class Odd(Driver):
        lane = "somewhere"

    with open_backend("sim", prices=priced(9)) as sim:
        sim.drivers = {"inline": Odd}
        with pytest.raises(ConfigError, match=r'lane \'somewhere\' of a driver \'inline\'; use plan_when="asap"'):
            run(Saturated(1), Priced(), sim, plan_when="late")


def test_asap_adds_nothing_to_the_driver():
    with open_backend("sim", prices=priced(9)) as sim, start(Saturated(1), Priced(), sim) as going:
        assert isinstance(going.driver, Driver)
        while going.advance() is not FINISHED:
            pass


def test_patience_ends_before_the_plan_is_due():
    spans = []
    with open_backend("sim", prices=priced(1000), plugins=[Watch(spans)]) as sim:
        going = start(Saturated(30), Priced(), sim, plan_when="late")
        assert isinstance(going.driver, Late)
        with going:
            answers = [(going.advance(100e-6), spans[-1]) for _ in range(500)]
    waits = [(answer, span.end_ns - span.begin_ns) for answer, span in answers if span.what == "wait late"]
    assert {answer for answer, ns in waits if ns == 100_000} == {BLOCKED}
    assert {answer for answer, ns in waits if ns < 100_000} == {MOVED}
    assert going.result().steps == 30
    assert going.result().notes[-1] == f"planned late: {sum(answer is MOVED for answer, _ in waits)} plans"


def test_a_run_that_is_closed_does_not_wait_to_ask():
    with open_backend("sim", prices=priced(100)) as sim, start(Saturated(99), Priced(), sim, plan_when="late") as going:
        while going.driver.driver.ledger.ended[PLAN] < 30:
            going.advance()
        going.close()
        while going.advance() is not FINISHED:
            pass
    assert going.result().steps == 30
    assert max(span.step for span in late_waits(going.result())) == 29


class Watch:
    """Has every span put into a list."""

    def __init__(self, spans):
        self.spans = spans

    @hookimpl
    def ovsdk_observers(self):
        return [self.spans.append]


def test_idle_runs_end_and_futures_without_times_are_never_late():
    class Lazy(Count):
        def plan(self, ask):
            return super().plan(ask) if ask.number % 3 else IDLE

    class Ready:
        def done(self):
            return True

        def result(self):
            return 7

    class Own(Hasher):
        def launch(self, step, inputs):
            return Ready()

    for engine in (Hasher(), Own()):
        with ThreadBackend() as device:
            report = run(Lazy(30), engine, device, plan_when="late", admission=Scripted(asks=200))
        assert report.steps == 30
    assert report.notes[-1].startswith("planned late: none")


class Abandon:
    @hookimpl
    def ovsdk_step_failed(self):
        return "abandon"


def test_failed_steps_teach_nothing_and_leave_nothing_behind(monkeypatch):
    made = []

    class Kept(Forecast):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setattr(sys.modules["ovsdk.run"], "Forecast", Kept)

    class Unlucky(Priced):
        def launch(self, step, inputs):
            if step % 4 == 3:
                raise ValueError("no luck")
            return super().launch(step, inputs)

    class Tolerant(Saturated):
        def fail(self, step, batch, error):
            pass

    with open_backend("sim", prices=priced(100), plugins=[Abandon()]) as sim:
        report = run(Tolerant(60), Unlucky(), sim, plan_when="late")
    assert report.steps == 60
    assert late_waits(report)
    assert (made[0]._stages, made[0]._device) == ({}, {})


STEP = type("Step", (), {"number": 20, "kinds": ("decode",)})


def taught(*, steps=20, first_way=5, first_end=90, amend=False):
    """A forecast that has seen steps of 100: plan 0 to 5, launch 5 to 10, perhaps amend 20 to 25, device to 90; the next is launched,
    and amended 7 late."""
    forecast = Forecast()
    forecast.steps = [STEP]
    for step in range(21 - steps, 21):
        at = 100 * step
        begin, end = (at + 5 - first_way, at + first_end) if step == 21 - steps else (at, at + 90)
        forecast.see(Span("host", "plan", step, begin, at + 5))
        forecast.see(Span("host", "launch", step, at + 5, at + 10))
        if amend:
            forecast.see(Span("host", "amend", step, at + 20, at + (25 if step < 20 else 32)))
        if step < 20:
            forecast.see(Span("device", "decode", step, at + 10, end))
            forecast.see(Span("host", "retire", step, at + 90, at + 95))
    return forecast


def test_a_forecast_is_the_step_s_begin_and_the_shortest_of_its_kind_less_1_2_ways():
    assert taught().plan_ns(STEP) == 2000 + 10 + 80 - 12
    assert taught(amend=True).plan_ns(STEP) == 2000 + 32 + 65 - 12
    assert taught().plan_ns(type("Step", (), {"number": 20, "kinds": ("prefill",)})) is None
    assert taught().plan_ns(type("Step", (), {"number": 21, "kinds": ("decode",)})) is None  # not launched yet


def test_a_forecast_needs_8_steps_and_forgets_after_16():
    assert taught(steps=FEWEST).plan_ns(STEP) is None
    assert taught(steps=FEWEST + 1).plan_ns(STEP) is not None
    assert taught(steps=17, first_way=50).plan_ns(STEP) == 2000 + 10 + 80 - 66
    assert taught(steps=18, first_way=50).plan_ns(STEP) == 2000 + 10 + 80 - 12
    assert taught(steps=17, first_end=75).plan_ns(STEP) == 2000 + 10 + 65 - 12
    assert taught(steps=18, first_end=75).plan_ns(STEP) == 2000 + 10 + 80 - 12
