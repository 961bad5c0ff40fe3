"""A run without its loop, judged by the loop with its device by events: the same Report, in every span. And when it is not done so."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

import ovsdk
from ovsdk import hookimpl, loopless
from ovsdk.backends.sim import SimBackend, load_prices, shipped
from ovsdk.critical import critical_path
from ovsdk.errors import ConfigError, CostUnknown, OvsdkError, StepError
from ovsdk.loopless import soonest
from ovsdk.plugins import plugin_manager
from ovsdk.report import Report
from ovsdk.saturated import Priced, Saturated
from ovsdk.simulation import Requests, figures, simulate
from ovsdk.sweep import Setup, evaluate

from .test_maxplus import choices, random_prices

DRIVERS = ("inline", "threads")
RECURRENCE = "by recurrence"
PLUGINS = plugin_manager()


def told(report: Report) -> Report:
    """Without how it was computed, without waits that took no time, and with two lanes' spans in one order."""
    assert report.timeline is not None
    spans = [span for span in report.timeline.spans if span.begin_ns < span.end_ns or not span.what.startswith("wait")]
    spans = sorted(spans) if report.driver == "threads" else spans
    return attrs.evolve(report, computed="", timeline=attrs.evolve(report.timeline, spans=spans))


def both(prices: Any, saturated: Callable[[], Saturated], depth: int, driver: str, **options: Any) -> tuple[Report, Report]:
    """By events throughout, and as soon as it can be."""
    by_events = ovsdk.run(saturated(), Priced(), SimBackend(prices, by_events=True, **options), depth=depth, driver=driver)
    backend = SimBackend(prices, **options)
    return by_events, soonest(saturated(), Priced(), backend, depth=depth, driver=driver, plan_when="asap", plugins=PLUGINS)


def assert_equal_reports(by_events: Report, found: Report, case: Any) -> None:
    assert told(by_events) == told(found), case
    assert {**figures(by_events, 8), "computed": ""} == {**figures(found, 8), "computed": ""}, case
    assert by_events.picture() == found.picture(), case
    if found.steps > 1:
        assert by_events.timeline is not None
        assert found.timeline is not None
        assert critical_path(by_events.timeline) == critical_path(found.timeline), case


def test_random_price_files_give_the_same_report() -> None:
    seen = Counter[bool]()
    for seed in range(400):
        draw = random.Random(seed)
        prices, steps = random_prices(draw), draw.randint(1, 12)
        if draw.random() < 0.6:
            prices["machine"]["queue"].update(task=64, device=64)
        if draw.random() < 0.3:
            prices["stage"]["plan_us"] = {"quantiles": [[0.1, 1], [0.9, 30]]}
        case = (seed, draw.randint(1, 4), draw.choice(DRIVERS))
        by_events, found = both(prices, lambda steps=steps: Saturated(steps, "step"), *case[1:], seed=seed)  # type: ignore[misc]
        assert_equal_reports(by_events, found, case)
        seen[found.computed == RECURRENCE] += 1
    assert seen[True] > 200
    assert seen[False] > 100


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("profile", shipped())
def test_shipped_profiles_give_the_same_report(profile: str, driver: str) -> None:
    prices = load_prices(profile)
    depths = itertools.cycle((1, 2, 3))
    for (kind, tilings, graph), level in itertools.product(choices(prices), (1, 0, 2)):
        case, features = (kind, tilings, graph, level), prices.launches[kind].features
        by_events, found = both(
            prices,
            lambda kind=kind, features=features: Saturated(6, kind, features),  # type: ignore[misc]
            next(depths),
            driver,
            tilings=tilings,
            graph=graph,
            level=level,
        )
        assert_equal_reports(by_events, found, case)
        assert found.computed == RECURRENCE or driver == "threads", case


def test_what_servers_did_is_left_out_where_nobody_asks() -> None:
    full, short = (simulate(PLUGINS, "longcat-flash-b8-4k", servers=servers) for servers in (True, False))
    assert full.timeline is not None
    assert short.timeline is not None
    assert set(full.timeline.servers) == {"stream compute", "task queue", "d2h"}
    assert short.timeline.servers == {}
    assert figures(short, 8) == figures(full, 8)
    point = evaluate(Setup({**PRICES, "name": "p"}), {"depth": 3})
    assert point == {"point": {"depth": 3}, **figures(simulate(PLUGINS, PRICES, depth=3), 2)}


# ---- why not ----

PRICES: Mapping[str, Any] = {
    "schema": 1,
    "stage": {"plan_us": 5, "prepare_us": 3, "launch_us": 1, "retire_us": 4},
    "launch": {"step": {"features": {"batch": 2}, "ops": ["a", "b"]}},
    "op": {"a": {"device_us": 10}, "b": {"device_us": 4}},
}


class Watching:
    @hookimpl
    def ovsdk_run_started(self, run: Any) -> None:
        """Is told."""


class Own:
    @hookimpl
    def ovsdk_make_scheduler(self, name: str) -> Any:
        return Mine(5, "step") if name == "mine" else None

    @hookimpl
    def ovsdk_make_executor(self, name: str) -> Any:
        return Other() if name == "other" else None


class Mine(Saturated):
    """It may do anything."""


class Other(Priced):
    """It may launch anything."""


DRAWN = {**PRICES, "op": {**PRICES["op"], "b": {"device_us": {"quantiles": [[0, 4], [1, 5]]}}}}
LANES = {**PRICES, "machine": {"gil": {"switch_us": 5}}}
NARROW = {**PRICES, "machine": {"queue": {"level": 1, "task": 3, "device": 9}}}
SHARED = {
    **PRICES,
    "machine": {"streams": "shared"},
    "op": {"a": {"device_us": 10}, "b": {"device_us": 4, "stream": "side"}},
}
POISSON = Requests("poisson:100", 9, "fixed:2")
REASONS = {
    "late": (PRICES, {"plan_when": "late"}, "plans begin when a prediction says so"),
    "lanes": (LANES, {"driver": "threads"}, "2 host lanes take the GIL in no fixed order"),
    "queue": (NARROW, {}, "the task queue holds 3 operators, and 2 consecutive steps have up to 4"),
    "cores": (SHARED, {}, "2 streams share the device's cores"),
    "drawn": (DRAWN, {}, "prices are drawn per operator"),
    "requests": (PRICES, {"requests": POISSON}, "a scheduler decides as it goes what is launched, plans may answer IDLE"),
    "arrivals": (PRICES, {"requests": POISSON}, "requests arrive at times of their own"),
    "scheduler": (PRICES, {"scheduler": "mine"}, "a scheduler decides as it goes"),
    "executor": (PRICES, {"executor": "other"}, "a scheduler decides as it goes"),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_run_that_needs_its_loop_says_why(name: str) -> None:
    prices, options, why = REASONS[name]
    report = simulate(plugin_manager([Own()]), prices, steps=5, **options)
    launches, _, run = report.computed.partition("; ")
    assert run.startswith("the run by events: ")
    assert why in run
    assert launches.startswith("launches by events: " if name in ("lanes", "cores") else "launches by recurrence")
    assert figures(report)["computed"] == report.as_dict()["computed"] == report.computed


def test_who_is_told_of_runs_is_told_of_this_one() -> None:
    report = simulate(plugin_manager([Watching()]), PRICES)
    assert report.computed == "launches by recurrence; the run by events: plugin 'Watching' is told of it (ovsdk_run_started)"
    assert simulate(PLUGINS, PRICES).computed == RECURRENCE


def test_more_spans_than_a_run_keeps_are_kept_by_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopless, "SPANS", 2 * 64)
    assert "more than the 128 spans that a run keeps" in simulate(PLUGINS, PRICES, steps=64).computed


@pytest.mark.parametrize(
    ("stage", "options", "error"),
    [
        ({"plan_us": 5, "prepare_us": 3, "launch_us": 1}, {}, CostUnknown),
        (PRICES["stage"], {"driver": "thread"}, ConfigError),
        (PRICES["stage"], {"depth": 0}, ConfigError),
        (PRICES["stage"], {"depth": True}, ConfigError),
        (PRICES["stage"], {"plan_when": "later"}, ConfigError),
        (PRICES["stage"], {"graph": True}, ConfigError),
    ],
)
def test_what_cannot_be_run_is_refused_as_the_run_refuses_it(stage: Any, options: dict[str, Any], error: type[OvsdkError]) -> None:
    prices = {**PRICES, "stage": stage}
    with pytest.raises(error) as loopless_says:
        simulate(PLUGINS, prices, **options)
    graph = options.pop("graph", None)
    with pytest.raises(error) as run_says:
        ovsdk.run(Saturated(5, "step", {"batch": 2}), Priced(), SimBackend(prices, graph=graph), **options)
    assert str(loopless_says.value) == str(run_says.value)


def test_a_launch_without_its_feature_is_a_failed_step() -> None:
    prices = {**PRICES, "op": {**PRICES["op"], "b": {"device_us": {"us": 1, "per": {"tokens": 1}}}}}
    with pytest.raises(StepError, match="step 0 failed in launch") as caught:
        simulate(PLUGINS, prices)
    assert isinstance(caught.value.__cause__, CostUnknown)
