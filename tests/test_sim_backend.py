"""The sim backend and its lanes: times against recurrences to the nanosecond, decisions against the direct loop."""

from __future__ import annotations

import concurrent.futures
import itertools

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ovsdk
from ovsdk import FINISHED, IDLE, AdmissionQueue, Launch
from ovsdk.backends.sim import SimBackend, load_prices
from ovsdk.backends.sim.lower import lower
from ovsdk.errors import ConfigError, CostUnknown, Deadlock, DeviceLost, DeviceTimeout, SimulationError, StepError
from ovsdk.ledger import LAUNCH, PLAN
from ovsdk.saturated import Saturated

from .toys import Amending, Count, Echo, Failing, Finisher, Hasher, Moody, Scripted, direct, direct_asks

DRIVERS = ("inline", "threads")
PRICES = {
    "schema": 1,
    "stage": {"plan_us": 5, "prepare_us": 3, "launch_us": 1, "amend_us": 2, "retire_us": 4},
    "launch": {"echo": {"device_us": 10}, "hash": {"device_us": 10}, "finish": {"device_us": 2}},
}


def priced(stage=PRICES["stage"], **launch):
    return {"schema": 1, "stage": stage, "launch": {kind: {"device_us": us} for kind, us in launch.items()}}


def in_ns(plan, prepare, launch, retire, device):
    """Prices given in ns."""
    stages = {"plan_us": plan, "prepare_us": prepare, "launch_us": launch, "retire_us": retire}
    return priced({key: ns / 1000 for key, ns in stages.items()}, echo=device / 1000)


def spans(prices, depth, driver, steps=12, **options):
    """What -> (begin, end) of each step, in step order."""
    report = ovsdk.run(Count(steps), Echo(), SimBackend(prices, **options), depth=depth, driver=driver)
    found: dict[str, list[tuple[int, int]]] = {}
    for span in report.timeline.spans:
        found.setdefault(span.what, []).append((span.begin_ns, span.end_ns))
    return found


def retired(prices, depth, driver, steps=12):
    return [end for _, end in spans(prices, depth, driver, steps)["retire"]]


# ---- the source text's case ----


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("depth", "step_ns"), [(1, 79_000_000), (2, 45_000_000), (3, 45_000_000)])
def test_the_published_case(depth, step_ns, driver):
    report = ovsdk.run("saturated", "priced", SimBackend("longcat-flash-b8-4k"), depth=depth, driver=driver)
    ends = [span.end_ns for span in report.timeline.spans if span.what == "retire"]
    assert {later - end for end, later in itertools.pairwise(ends[2:-3])} == {step_ns}
    assert report.virtual


@pytest.mark.parametrize("extra_us", [5_000, 15_000])
@pytest.mark.parametrize("stage", ["plan", "prepare", "retire"])
def test_more_host_time_shows_only_where_it_is_not_hidden(stage, extra_us):
    known = load_prices("longcat-flash-b8-4k")
    dearer = attrs.evolve(known.stages[stage], fixed=known.stages[stage].fixed + extra_us)
    prices = attrs.evolve(known, stages={**known.stages, stage: dearer})
    features = known.launches["decode"].features
    lane_ns = sum(prices.stage_ns(name, features) for name in ("plan", "prepare", "launch", "retire"))
    lane_ns += sum(row.host_ns for row in lower(prices, "decode", {}).rows)
    for depth, step_ns in ((1, 79_000_000 + extra_us * 1000), (2, max(lane_ns, 45_000_000))):
        ends = [span.end_ns for span in saturated(prices, depth) if span.what == "retire"]
        assert {later - end for end, later in itertools.pairwise(ends[2:-2])} == {step_ns}


def saturated(prices, depth, steps=12, driver="inline", **options):
    """The spans of a run of always the same launch."""
    return ovsdk.run(Saturated(steps), "priced", SimBackend(prices, **options), depth=depth, driver=driver).timeline.spans


# ---- closed forms and recurrences ----

ns = st.integers(0, 1000)
costs = st.tuples(ns, ns, ns, ns, ns)


def one_lane(plan, prepare, launch, retire, device, depth, steps):
    """When each step has retired: plan, prepare, launch in one go while fewer than `depth` are in flight, then one retire."""
    host, device_end, done, ends = 0, 0, [], []
    for k in range(steps + depth):
        if k < steps:
            host += plan + prepare + launch
            device_end = max(device_end, host) + device
            done.append(device_end)
        if 0 <= k - depth + 1 < steps:
            host = max(host, done[k - depth + 1]) + retire
            ends.append(host)
    return ends


def two_lanes(plan, prepare, launch, retire, device, depth, steps):
    """The same with prepare and launch on a lane of their own: plan 0 .. depth-1, then retire k, plan k + depth."""
    scheduling, execution, device_end, done, ends = 0, 0, 0, [], []
    for k in range(steps + depth):
        if k < steps:
            scheduling += plan
            execution = max(execution, scheduling) + prepare + launch
            device_end = max(device_end, execution) + device
            done.append(device_end)
        if 0 <= k - depth + 1 < steps:
            scheduling = max(scheduling, done[k - depth + 1]) + retire
            ends.append(scheduling)
    return ends


@pytest.mark.parametrize(("driver", "recurrence"), [("inline", one_lane), ("threads", two_lanes)])
@settings(max_examples=60)
@given(costs=costs, depth=st.integers(1, 4), steps=st.integers(1, 9))
def test_every_retire_is_where_the_recurrence_has_it(driver, recurrence, costs, depth, steps):
    assert retired(in_ns(*costs), depth, driver, steps) == recurrence(*costs, depth, steps)


def assert_step_time(driver, costs, depth, step_ns, steps=48):
    """The run takes `steps * step_ns`, and at most one way through all of a step more."""
    assert 0 <= retired(in_ns(*costs), depth, driver, steps)[-1] - steps * step_ns <= sum(costs)


@settings(max_examples=25)
@given(costs)
def test_one_lane_steps_as_fast_as_host_or_device_and_serially_as_both(costs):
    *stages, device = costs
    assert retired(in_ns(*costs), 1, "inline", 9)[-1] == 9 * sum(costs)
    for depth in (2, 3):
        assert_step_time("inline", costs, depth, max(sum(stages), device))


@settings(max_examples=25)
@given(costs)
def test_two_lanes_step_as_fast_as_the_slowest_lane_or_as_depth_steps_go_through_all(costs):
    plan, prepare, launch, retire, device = costs
    slowest = max(device, plan + retire, prepare + launch)
    for depth in (1, 2, 3, 4):
        assert_step_time("threads", costs, depth, max(slowest, sum(costs) / depth))


def test_a_launch_enters_the_device_when_the_price_of_its_stage_has_passed():
    for driver in DRIVERS:
        found = spans(in_ns(5, 3, 7, 4, 1000), 2, driver)
        assert found["echo"][0] == (found["launch"][0][1], found["launch"][0][1] + 1000)
        assert found["launch"][0][1] - found["launch"][0][0] == 7


def test_streams_run_beside_each_other_and_each_in_order():
    with SimBackend(priced(a=10, b=4)) as backend:
        futures = [
            backend.stream(s).submit(Launch(k, fn=abs)) for s, k in (("compute", "a"), ("copy", "b"), ("compute", "b"), ("copy", "a"))
        ]
        backend.clock.wait(futures, None, None)
        assert [future.span_ns for future in futures] == [(0, 10_000), (0, 4_000), (10_000, 14_000), (4_000, 14_000)]


# ---- decisions ----


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_decision_trace_is_the_direct_loops(driver, depth):
    expected, actual = Count(25), Count(25)
    direct(expected, Echo(), depth, lambda launch: launch.stub())
    ovsdk.run(actual, Echo(), SimBackend(PRICES), depth=depth, driver=driver)
    assert (actual.trace, actual.seen) == (expected.trace, expected.seen)


@settings(max_examples=60)
@given(st.sampled_from(DRIVERS), st.integers(1, 4), st.integers(0, 10**6), costs, st.booleans())
def test_no_price_changes_a_decision(driver, depth, seed, costs, execute):
    expected, actual = Moody(seed=seed), Moody(seed=seed)
    direct_asks(expected, Hasher(), depth, Scripted(seed), lambda launch: launch.stub())
    prices = in_ns(*costs)
    prices["launch"]["hash"] = prices["launch"].pop("echo")
    ovsdk.run(actual, Hasher(), SimBackend(prices, execute=execute), depth=depth, driver=driver, admission=Scripted(seed))
    assert actual.trace == expected.trace


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(0, 10**6), costs)
def test_with_amend_both_drivers_take_one_decision_trace(depth, seed, costs):
    traces = []
    for driver in DRIVERS:
        scheduler = Amending(seed=seed)
        prices = in_ns(*costs)
        prices["launch"] = {"hash": {"device_us": costs[0] / 1000}, "finish": {"device_us": costs[1] / 1000}}
        prices["stage"]["amend_us"] = costs[2] / 1000
        ovsdk.run(scheduler, Finisher(), SimBackend(prices), depth=depth, driver=driver, admission=Scripted(seed))
        traces.append(scheduler.trace)
    assert traces[0] == traces[1]


@pytest.mark.parametrize("driver", DRIVERS)
def test_amend_and_its_launch_take_their_prices_once(driver):
    scheduler = Amending(steps=8)
    report = ovsdk.run(scheduler, Finisher(), SimBackend(PRICES), driver=driver, admission=Scripted(0))
    assert report.stage_s["amend"] == pytest.approx(report.steps * 2e-6)
    assert sum(s.what == "finish" and s.lane == "device" for s in report.timeline.spans) == report.steps


def test_an_amend_that_ends_as_a_prepare_ends_is_finished_before_the_next_prepare():
    class Late(Count):
        def amend(self, step, batch):
            return batch

    class TwoLaunches(Echo):
        def finish(self, step, inputs, late):
            return Launch("finish", fn=abs)

    prices = in_ns(1, 10, 0, 9, 0) | {"launch": {"echo": {"device_us": 0}, "finish": {"device_us": 0.001}}}
    prices["stage"]["amend_us"] = 0.009
    report = ovsdk.run(Late(9), TwoLaunches(), SimBackend(prices), depth=4, driver="threads")
    at = {(span.what, span.step): span.end_ns for span in report.timeline.spans if span.lane != "device"}
    finished = {span.step: span.begin_ns for span in report.timeline.spans if span.lane == "device" and span.what == "finish"}
    assert at["amend", 1] == at["prepare", 2] == finished[1] == 41


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_failing_step_can_be_abandoned(driver):
    class Breaks(Echo):
        def launch(self, step, inputs):
            if step == 3:
                raise ValueError("no batch like that")
            return super().launch(step, inputs)

    class Abandons:
        @ovsdk.hookimpl
        def ovsdk_step_failed(self, step):
            return "abandon" if step == 3 else None

    scheduler, manager = Failing(8), ovsdk.plugin_manager()
    manager.add(Abandons())
    ovsdk.run(scheduler, Breaks(), SimBackend(PRICES), driver=driver, plugins=manager)
    assert [step for step, _, _ in scheduler.failed] == [3]
    assert [step for step, _, _ in scheduler.seen] == [0, 1, 2, 4, 5, 6, 7]


class Serve:
    """Serves what arrives, a request a step, and keeps when it was asked."""

    def __init__(self):
        self.waiting, self.served = [], []

    def plan(self, ask):
        self.waiting += [(request, ask.now_s) for request in ask.arrivals]
        if not self.waiting:
            return IDLE
        self.served.append(self.waiting.pop(0))
        return self.served[-1][0]

    def retire(self, step, batch, result):
        """Nothing follows."""


@pytest.mark.parametrize("driver", DRIVERS)
def test_timed_arrivals_are_asked_for_at_their_time(driver):
    scheduler, admission = Serve(), AdmissionQueue([(0.001, "b"), (0.0, "a"), (0.25, "c")])
    admission.close()
    report = ovsdk.run(scheduler, Echo(lambda _: None), SimBackend(PRICES), driver=driver, admission=admission)
    assert scheduler.served == [("a", 0.0), ("b", 0.001), ("c", 0.25)]
    assert report.makespan_s == pytest.approx(0.25 + 23e-6)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_foreign_loop_advances_virtual_time_by_its_patience(driver):
    admission, backend = AdmissionQueue([(1.0, "a")]), SimBackend(PRICES)
    admission.close()
    with ovsdk.start(Serve(), Echo(lambda _: None), backend, driver=driver, admission=admission) as going:
        times = [0]
        while going.advance(timeout_s=0.25) is not FINISHED:
            times.append(backend.clock.now_ns())
    assert {250_000_000, 500_000_000, 750_000_000, 1_000_000_000} <= set(times)


# ---- outputs ----


def test_without_execute_nothing_of_the_users_device_code_runs():
    def boom(*_):
        raise AssertionError("ran")

    with SimBackend(PRICES) as backend:
        model = backend.load(boom)
        stream = backend.stream()
        assert stream.submit(Launch("echo", fn=model.forward, inputs=(1,))).result() is None
        assert stream.submit(Launch("echo", fn=boom, stub=lambda: "stub")).result() == "stub"
        broken = stream.submit(Launch("echo", fn=abs, stub=lambda: 1 / 0))
        with pytest.raises(ZeroDivisionError):
            broken.result()
    assert "execute=True" in backend.capabilities.can["executes"]


class Model:
    def __init__(self, device):
        self.device, self.calls = device, 0

    def forward(self, x, *, scale=1):
        self.calls += 1
        return x.sum() * scale, self.calls


def test_execute_runs_the_real_functions_in_order_when_they_begin():
    with SimBackend(PRICES, execute=True) as backend:
        model, stream, x = backend.load(Model), backend.stream(), np.ones(3)
        first = stream.submit(Launch("echo", fn=model.forward, inputs=(x,)))
        x[:] = 100  # the caller's again
        second = stream.submit(Launch("hash", fn=model.forward, inputs={"x": x}, host={"scale": 2}))
        assert not first.done()
        assert second.result() == (600, 2)
        assert first.done()
        assert first.result() == (3, 1)
        assert (first.span_ns, second.span_ns) == ((0, 10_000), (10_000, 20_000))
        with pytest.raises(AttributeError, match="no method 'forwards'; it has: forward"):
            _ = model.forwards
    assert backend.capabilities.can["executes"] is True


def test_a_function_is_called_when_its_launch_begins_on_the_device():
    with SimBackend(PRICES, execute=True) as backend:
        futures = [backend.stream().submit(Launch("echo", fn=backend.clock.now_ns)) for _ in range(3)]
        assert [future.result() for future in futures] == [0, 10_000, 20_000]
        assert backend.clock.now_ns() == 30_000


def test_an_exception_on_the_device_goes_to_its_future_alone():
    with SimBackend(PRICES, execute=True) as backend:
        futures = [backend.stream().submit(Launch("echo", fn=abs, inputs=(x,))) for x in (-1, "no number", -3)]
        backend.clock.wait(futures, None, None)
        for _ in range(2):
            with pytest.raises(TypeError, match="bad operand"):
                futures[1].result()
        assert [futures[0].result(), futures[2].result()] == [1, 3]


def test_what_build_raises_is_raised_and_a_strangers_method_is_refused():
    def build(device):
        raise OSError(f"no weights for {device}")

    with SimBackend(PRICES, execute=True) as backend, SimBackend(PRICES, execute=True) as other:
        with pytest.raises(OSError, match="no weights for cpu"):
            backend.load(build)
        with pytest.raises(ConfigError, match=r"launch 'echo'.*did not load; use backend.load"):
            backend.stream().submit(Launch("echo", fn=other.load(Model).forward))


def test_callbacks_are_called_when_done_or_at_once():
    backend, seen = SimBackend(PRICES), []
    future = backend.stream().submit(Launch("echo", fn=abs))
    future.add_done_callback(lambda f: seen.append(("first", f.span_ns, backend.clock.now_ns())))
    assert (seen, future.span_ns) == ([], None)
    future.result()
    future.add_done_callback(lambda f: seen.append(("second", f.done())))
    assert seen == [("first", (0, 10_000), 10_000), ("second", True)]


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_executor_may_warm_up_before_the_first_step(driver):
    class Warm(Echo):
        def open(self, backend):
            assert backend.stream().submit(Launch("hash", fn=abs, stub=lambda: 7)).result() == 7
            self.opened_ns = backend.clock.now_ns()

    executor, scheduler = Warm(), Count(5)
    report = ovsdk.run(scheduler, executor, SimBackend(PRICES), driver=driver)
    assert executor.opened_ns == 10_000
    assert report.timeline.begin_ns == 10_000
    assert len(scheduler.seen) == 5


class OwnFuture:
    """An engine's own handle of work that it submitted itself."""

    def __init__(self, inner):
        self.inner = inner

    def done(self):
        return self.inner.done()

    def result(self):
        return ("own", self.inner.result())


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_engine_may_return_its_own_future_of_simulated_work(driver):
    class Engine(Echo):
        def open(self, backend):
            self.stream = backend.stream()

        def launch(self, step, inputs):
            return OwnFuture(self.stream.submit(super().launch(step, inputs)))

    scheduler = Count(4)
    ovsdk.run(scheduler, Engine(), SimBackend(PRICES), driver=driver)
    assert [result for _, _, result in scheduler.seen] == [("own", 2 * (k + 1)) for k in range(4)]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_an_engines_future_that_virtual_time_cannot_complete_is_refused(driver, timeout_s):
    class Engine(Echo):
        def launch(self, step, inputs):
            return concurrent.futures.Future()

    with pytest.raises(SimulationError, match=r"executor's own <Future .*nothing in virtual time can complete it.*return a Launch"):
        ovsdk.run(Count(4), Engine(), SimBackend(PRICES, timeout_s=timeout_s), driver=driver)


# ---- random prices ----

DRAWN = {"quantiles": [[0, 1], [1, 100]]}


def test_a_seed_is_a_run_and_one_price_more_changes_no_draw_of_another():
    prices = priced(PRICES["stage"] | {"plan_us": DRAWN}, echo=DRAWN)
    runs = [spans(prices, 2, "inline", seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    other = spans(priced(PRICES["stage"] | {"plan_us": DRAWN, "retire_us": DRAWN}, echo=DRAWN, more=DRAWN), 1, "threads", seed=1)

    def lengths(found, what):
        return [end - begin for begin, end in found[what]]

    for what in ("plan", "echo"):
        assert lengths(other, what) == lengths(runs[0], what), "common random numbers: the draw belongs to price and step"
        assert len(set(lengths(other, what))) == 12
    assert lengths(other, "retire") != lengths(runs[0], "retire")


def test_a_seed_is_an_int():
    with pytest.raises(ConfigError, match=r"seed is an int; got 1.5"):
        SimBackend(PRICES, seed=1.5)


# ---- what goes wrong ----


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("execute", [False, True])
def test_a_launch_without_a_price_fails_at_submit_and_names_the_known(driver, execute):
    backend = SimBackend(priced(hash=1, decode=1), execute=execute)
    with pytest.raises(CostUnknown, match=r"no price for launch kind 'echo'.*; priced: decode, hash"):
        backend.stream().submit(Launch("echo", fn=abs))
    with pytest.raises(
        StepError, match=r"step 0 failed in launch: CostUnknown: no price for launch kind 'echo'.*; priced: decode, hash"
    ) as caught:
        ovsdk.run(Count(3), Echo(), backend, driver=driver)
    assert isinstance(caught.value.__cause__, CostUnknown)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("stage", ["plan", "prepare", "launch", "retire"])
def test_a_stage_without_a_price_ends_the_run(driver, stage):
    stages = {key: us for key, us in PRICES["stage"].items() if key != f"{stage}_us"}
    with pytest.raises(CostUnknown, match=f"no price for stage '{stage}': add {stage}_us to .stage.; priced: amend, "):
        ovsdk.run(Count(3), Echo(), SimBackend(priced(stages, echo=1)), driver=driver)


def test_a_batch_brings_the_features_that_price_its_stages():
    class Batch:
        features = {"batch": 8}  # noqa: RUF012

    class Planner(Count):
        def plan(self, ask):
            return Batch() if super().plan(ask) is not ovsdk.CLOSED else ovsdk.CLOSED

    prices = priced(PRICES["stage"] | {"plan_us": {"us": 1, "per": {"batch": 2}}, "ask_us": 50}, echo=10)
    report = ovsdk.run(Planner(4), Echo(lambda _: None), SimBackend(prices))
    assert report.stage_s["plan"] == pytest.approx(4 * 17e-6 + 50e-6)
    with pytest.raises(CostUnknown, match=r"stage.plan_us needs the feature 'batch'; given: none"):
        ovsdk.run(Count(4), Echo(), SimBackend(prices))


def test_waiting_for_what_can_never_come_is_a_deadlock_that_says_so():
    clock = SimBackend(PRICES).clock
    with pytest.raises(Deadlock, match=r"the host waits, with no deadline, for a signal \(in virtual time requests"):
        clock.wait((), clock.signal(), None)
    with pytest.raises(Deadlock, match="AdmissionQueue"):
        ovsdk.run(Serve(), Echo(), SimBackend(PRICES), admission=AdmissionQueue())


def test_a_wait_ends_with_its_futures_its_signal_or_its_deadline():
    backend = SimBackend(PRICES)
    clock, signal = backend.clock, backend.clock.signal()
    future = backend.stream().submit(Launch("echo", fn=abs))
    assert clock.wait((future,), signal, 4_000) == 4_000
    assert not future.done()
    future.add_done_callback(lambda _: signal.set())
    assert clock.wait((), signal, None) == 10_000
    assert clock.wait((), signal, 10**9) == 10_000
    signal.clear()
    assert clock.wait((), signal, 12_000) == 12_000
    assert clock.wait((), None, 5_000) == 12_000, "time went back"
    assert clock.wait((future,), None, None) == 12_000


def test_lap_passes_the_price_of_the_stage():
    clock = SimBackend(PRICES).clock
    assert clock.price_ns(PLAN, 0, {}) == 5_000
    assert (clock.lap(PLAN, 0, {}), clock.lap(PLAN, 1, None), clock.lap(LAUNCH, 0, {})) == (5_000, 5_000, 6_000)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_launch_that_takes_longer_than_allowed_is_a_timeout(driver):
    with pytest.raises(StepError, match=r"step 0 failed in device: DeviceTimeout") as caught:
        ovsdk.run(Count(3), Echo(), SimBackend(priced(echo=3e6), timeout_s=2.0), driver=driver)
    assert isinstance(caught.value.__cause__, DeviceTimeout)


def test_after_close_nothing_is_taken_and_closing_twice_is_fine():
    backend = SimBackend(PRICES)
    stream = backend.stream()
    backend.close()
    backend.close()
    with pytest.raises(DeviceLost, match="the sim backend is closed"):
        stream.submit(Launch("echo", fn=abs))
    with pytest.raises(DeviceLost, match="the sim backend is closed"):
        backend.load(Model)


@pytest.mark.parametrize("driver", DRIVERS)
def test_runs_on_one_backend_follow_each_other(driver):
    backend = SimBackend(PRICES)
    for _ in range(3):
        scheduler = Count(4)
        begin_ns = backend.clock.now_ns()
        report = ovsdk.run(scheduler, Echo(), backend, driver=driver)
        assert backend.clock.now_ns() == begin_ns + round(report.makespan_s * 1e9)
        assert len(scheduler.seen) == 4
    with pytest.raises(Deadlock) as caught:
        backend.clock.wait((), backend.clock.signal(), None)
    assert str(caught.value).endswith("; stream compute waits for get 'compute'"), "a lane is left behind"
