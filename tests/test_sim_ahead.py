"""The device by one recurrence a launch, judged by the device by events: the same run in every span, whoever decides and whatever comes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import attrs
import pytest

import ovsdk
from ovsdk import AdmissionQueue, Launch
from ovsdk.backends.sim import SimBackend, load_prices, shipped
from ovsdk.backends.sim.ahead import MOST, OFTEN
from ovsdk.backends.sim.inline import InlineDriver
from ovsdk.errors import CostUnknown, DeviceTimeout, SimulationError, StepError
from ovsdk.report import Report
from ovsdk.saturated import Priced, Saturated

from .test_maxplus import choices, random_prices
from .toys import Amending, Moody, double, mix

DRIVERS = ("inline", "threads")
ONE = {
    "schema": 1,
    "stage": {"plan_us": 5, "prepare_us": 3, "launch_us": 1, "retire_us": 4},
    "launch": {"step": {"device_us": 10}, "long": {"device_us": 1000}},
}


def told(report: Report) -> Report:
    """Without how it was computed, and without waits that took no time: of these the kernel knows as many as its events make."""
    assert report.timeline is not None
    spans = [span for span in report.timeline.spans if span.begin_ns < span.end_ns or not span.what.startswith("wait")]
    return attrs.evolve(report, computed="", timeline=attrs.evolve(report.timeline, spans=spans))


class Various:
    """An executor of one, two or no-one-kind launches a step, and of a second one where a step is amended. The device hashes."""

    def prepare(self, step: int, batch: Any) -> Any:
        return batch

    def launch(self, step: int, inputs: Any) -> Any:
        launches = tuple(hashing(("step", "small")[(step + i) % 2], (inputs, i)) for i in range(1 + mix(inputs) % 2))
        return launches if len(launches) > 1 else launches[0]

    def finish(self, step: int, inputs: Any, late: Any) -> Launch:
        return hashing("small", late)


def hashing(kind: str, value: Any) -> Launch:
    return Launch(kind, fn=mix, host={}, inputs=(value,), stub=lambda: mix(value))


def one_stream(draw: random.Random) -> dict[str, Any]:
    """A price file with one stream. In half of them no queue binds; in some prices are drawn."""
    prices = random_prices(draw)
    for op in prices["op"].values():
        op.pop("stream", None)
    if draw.random() < 0.5:
        prices["machine"]["queue"].update(task=64, device=64)
    drawn = {"quantiles": [[0.1, draw.randrange(9)], [0.9, 30]]}
    if draw.random() < 0.2:
        prices["stage"]["plan_us"] = drawn
    if draw.random() < 0.2:
        prices["op"][prices["launch"]["step"]["ops"][0]]["device_us"] = drawn
    prices["stage"]["amend_us"] = draw.randrange(9)
    prices["launch"]["small"] = {"ops": prices["launch"]["step"]["ops"][:1]}
    return prices


def random_setting(draw: random.Random) -> dict[str, Any]:
    return {
        "depth": draw.randint(1, 4),
        "driver": draw.choice(DRIVERS),
        "plan_when": draw.choice(("asap", "asap", "late")),
    }


def test_random_runs_are_the_same_by_events() -> None:
    seen = Counter[str]()
    for seed in range(500):
        draw = random.Random(seed)
        prices, setting, execute = one_stream(draw), random_setting(draw), draw.random() < 0.3
        arrivals = [(draw.randrange(200) / 1e6, f"r{i}") for i in range(draw.choice((0, 5)))]
        steps, moody = draw.randint(1, 20), draw.choice((Moody, Amending))
        found = []
        for by_events in (True, False):
            backend, scheduler = SimBackend(prices, seed, execute, by_events=by_events), moody(steps, seed)
            admission = AdmissionQueue(arrivals)
            admission.close()
            report = ovsdk.run(scheduler, Various(), backend, admission=admission, log=True, **setting)
            found.append((told(report), scheduler.trace, report.log.asks, report.log.results))
        assert found[0] == found[1], (seed, setting)
        assert report.computed == "launches by recurrence"
        ahead = backend.clock._ahead
        assert ahead is not None
        seen[f"queues: {ahead._queues is not None}"] += 1
        seen[f"after some time: {ahead._queues is not None and len(ahead._known) > 0}"] += 1
    assert min(seen["queues: True"], seen["queues: False"], 5 * seen["after some time: True"]) > 80, seen


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("profile", shipped())
def test_shipped_profiles_are_the_same_by_events(profile: str, driver: str) -> None:
    prices = load_prices(profile)
    for kind, tilings, graph in choices(prices):
        found = [
            ovsdk.run(
                Saturated(6, kind, prices.launches[kind].features),
                Priced(),
                SimBackend(prices, tilings=tilings, graph=graph, by_events=by_events),
                driver=driver,
            )
            for by_events in (True, False)
        ]
        assert told(found[0]) == told(found[1]), (kind, tilings, graph)


def test_a_launch_at_ever_other_distances_goes_through_as_a_matrix() -> None:
    prices = {
        **ONE,
        "stage": {**ONE["stage"], "plan_us": {"quantiles": [[0.0, 1], [1.0, 40]]}},
        "machine": {"d2h": {"latency_us": 3, "gb_per_s": 1}},
        "launch": {"step": {"ops": ["a", "b"]}},
        "op": {"a": {"device_us": 9, "host_us": 2}, "b": {"device_us": 7, "host_us": 3}},
    }
    found = []
    for by_events in (True, False):
        backend = SimBackend(prices, by_events=by_events)
        found.append(told(ovsdk.run(Saturated(MOST + 50, "step"), Priced(), backend, depth=3)))
    assert found[0] == found[1]
    assert backend.clock._ahead is not None
    (known,) = backend.clock._ahead._known.values()
    assert OFTEN < len(known.found) <= MOST


@pytest.mark.parametrize("plan_us", [5, {"us": 5, "per": {"batch": 1}}])
def test_without_spans_it_takes_the_same_time(plan_us: Any) -> None:
    prices = {**ONE, "stage": {**ONE["stage"], "plan_us": plan_us}}
    for depth, ask_us in ((1, 0), (2, 7), (3, 7)):
        prices["stage"]["ask_us"] = ask_us
        backends = SimBackend(prices), SimBackend(prices), SimBackend(prices, by_events=True), SimBackend(prices, timeout_s=0.1)
        kept, *others = (
            ovsdk.run(Saturated(9, "step", {"batch": 2}), Priced(), backend, depth=depth, spans=backend is backends[0])
            for backend in backends
        )
        for other in others:
            assert (other.makespan_s, other.stage_s, other.asks) == (kept.makespan_s, kept.stage_s, kept.asks)


class Impatient(Priced):
    """Its prepare waits for the launch before: time passes in a body, before the stage's own."""

    def open(self, backend: SimBackend) -> None:
        self.stream = backend.stream()
        self.future: Any = None

    def prepare(self, step: int, batch: Any) -> Any:
        if self.future is not None:
            self.future.result()
        return batch

    def launch(self, step: int, inputs: Any) -> Any:
        self.future = self.stream.submit(super().launch(step, inputs))
        return self.future


def test_without_spans_the_price_of_a_stage_follows_the_time_that_its_body_has_waited() -> None:
    found = []
    for by_events, spans in ((True, True), (True, False), (False, True), (False, False)):
        report = ovsdk.run(Saturated(4, "step"), Impatient(), SimBackend(ONE, by_events=by_events), spans=spans)
        found.append((report.makespan_s, report.stage_s))
    assert found == [found[0]] * 4
    assert found[0][0] == pytest.approx(4 * (3 + 1 + 10) * 1e-6 + 5e-6 + 4e-6), (
        "plans and retires are hidden, but for the first and the last one"
    )


def test_without_spans_a_device_that_takes_too_long_is_given_up_too() -> None:
    with pytest.raises(StepError) as caught:
        ovsdk.run(Saturated(9, "long"), Priced(), SimBackend(ONE, timeout_s=1e-4), spans=False)
    assert isinstance(caught.value.__cause__, DeviceTimeout)


def test_without_spans_a_price_that_is_missing_is_missed() -> None:
    prices = {**ONE, "stage": {"plan_us": 5, "prepare_us": 3, "launch_us": 1}}
    with pytest.raises(CostUnknown, match="no price for stage 'retire'"):
        ovsdk.run(Saturated(2, "step"), Priced(), SimBackend(prices), spans=False)


# ---- where a launch is not known ----


def submit(backend: SimBackend, *launches: tuple[str, str]) -> list[Any]:
    return [backend.stream(stream).submit(Launch(kind, fn=double)) for stream, kind in launches]


def test_streams_opened_before_the_first_launch_are_run_by_events() -> None:
    backend = SimBackend(ONE)
    backend.stream("side")
    futures = submit(backend, ("compute", "step"), ("side", "long"))
    assert backend.computed == "launches by events: they go to several streams"
    backend.clock.wait(futures, None, None)
    assert [future.span_ns for future in futures] == [(0, 10_000), (0, 1_000_000)]


def test_a_stream_opened_later_is_refused_while_launches_are_under_way_and_not_after() -> None:
    backend = SimBackend(ONE)
    futures = submit(backend, ("compute", "step"), ("compute", "long"))
    backend.clock.wait(futures[:1], None, None)
    with pytest.raises(SimulationError, match="launches are under way, and later ones need events"):
        backend.stream("side")
    backend.clock.wait(futures, None, None)
    (later,) = submit(backend, ("side", "step"))
    assert later.result() is None
    assert later.span_ns == (1_010_000, 1_020_000)
    assert [future.span_ns for future in futures] == [(0, 10_000), (10_000, 1_010_000)]


@pytest.mark.parametrize(
    ("machine", "driver", "why"),
    [
        ({"cores": 1, "queue": {"level": 1}}, "inline", "launching lane and launcher share the host's only core"),
        ({"gil": {"switch_us": 5}}, "threads", "two host lanes, a GIL between them"),
        ({"cores": 1}, "threads", "two host lanes, without a GIL between them, on 1 core"),
    ],
)
def test_a_lane_that_shares_launches_by_events(machine: dict[str, Any], driver: str, why: str) -> None:
    prices = {**ONE, "machine": machine}
    found = [ovsdk.run(Saturated(5, "step"), Priced(), SimBackend(prices, by_events=by), driver=driver) for by in (True, False)]
    assert told(found[0]) == told(found[1])
    assert found[1].computed.startswith(f"launches by events: {why}")


def test_who_asks_for_events_gets_them() -> None:
    assert ovsdk.run(Saturated(5, "step"), Priced(), SimBackend(ONE, by_events=True)).computed == "launches by events: as asked"


# ---- who waits ----


class Polled:
    """An engine's own future, done when a launch is that it does not hand out."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def done(self) -> bool:
        return bool(self.inner.done())

    def result(self) -> str:
        return "polled"

    def add_done_callback(self, callback: Any) -> None:
        self.inner.add_done_callback(lambda _: callback(self))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("by_events", [False, True])
def test_a_future_of_the_engine_that_polls_a_launch_is_done_with_it(driver: str, by_events: bool) -> None:
    class Owning(Priced):
        def open(self, backend: SimBackend) -> None:
            self.stream = backend.stream()

        def launch(self, step: int, inputs: Any) -> Any:
            return Polled(self.stream.submit(super().launch(step, inputs)))

    report = ovsdk.run(Saturated(3, "step"), Owning(), SimBackend(ONE, by_events=by_events), depth=1, driver=driver)
    assert report.makespan_s == pytest.approx(3 * 23e-6)


@pytest.mark.parametrize("by_events", [False, True])
def test_callbacks_are_called_when_it_is_done_whenever_they_are_added(by_events: bool) -> None:
    backend, called = SimBackend(ONE, by_events=by_events), []
    first, second = submit(backend, ("compute", "step"), ("compute", "long"))
    for future in (first, second):
        future.add_done_callback(lambda _: called.append(backend.clock.now_ns()))
    assert first.result() is None
    second.add_done_callback(lambda _: called.append(-backend.clock.now_ns()))
    assert not second.done()
    assert second.span_ns is None
    assert second.result() is None
    second.add_done_callback(lambda _: called.append(0))
    assert called == [10_000, 1_010_000, -1_010_000, 0]


def test_a_launch_whose_features_have_changed_costs_what_they_say() -> None:
    prices = {**ONE, "launch": {"step": {"device_us": {"us": 0, "per": {"n": 1}}}}}
    backend, features = SimBackend(prices), {"n": 3}
    launch = Launch("step", fn=double, features=features)
    for n in (3, 3, 7):
        features["n"] = n
        future = backend.stream().submit(launch)
        assert future.result() is None
        assert future.span_ns[1] - future.span_ns[0] == n * 1000


def test_the_inline_driver_of_virtual_time_is_one_of_the_drivers() -> None:
    with SimBackend(ONE) as backend, ovsdk.start(Saturated(2, "step"), Priced(), backend) as going:
        assert type(going.driver) is InlineDriver
        moves = 0
        while going.advance() is ovsdk.MOVED:
            moves += 1
    assert moves == 2 * 5 + 1  # plan, prepare, launch, wait and retire of each, and the ask that is answered CLOSED
