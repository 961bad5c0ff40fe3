"""The price grammar: what it gives, against numpy and exact fractions; what it refuses, and that it says where and why."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ovsdk.backends.sim.lower import lower
from ovsdk.backends.sim.price import _mix, _origin, uniform
from ovsdk.backends.sim.prices import load_prices, shipped
from ovsdk.errors import ConfigError, CostUnknown, ProfileError, SimulationError

FILE = """
schema = 1
name   = "small"
source = "invented"
[stage]
plan_us    = 12.5
prepare_us = { us = 2, per = { batch = 0.5, kv_tokens = 0.001 } }
retire_us  = { quantiles = [[0.1, 10], [0.5, 20], [0.9, 50]] }
[launch.decode]
features  = { batch = 8, kv_tokens = 8192 }
device_us = { by = "kv_tokens", at = [[8192, 400], [32768, 640], [131072, 1900]] }
[launch."copy in"]
device_us = 3
"""


def launch_ns(prices, kind: str, features: dict[str, Any], seed: int = 0, step: int = 0) -> int:
    """Device time of a launch of one operator."""
    (row,) = lower(prices, kind, features, seed=seed, step=step).rows
    return row.device_ns


def mapping(**changes: Any) -> dict[str, Any]:
    return {"schema": 1, "stage": {"plan_us": 1}, "launch": {"decode": {"device_us": 2}}, **changes}


def device(price: Any) -> dict[str, Any]:
    return mapping(launch={"decode": {"device_us": price}})


# ---- what a price gives ----


def test_a_file_gives_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(FILE)
    for prices in (load_prices(path), load_prices(str(path))):
        assert (prices.name, prices.source) == ("small", "invented")
        assert prices.stage_ns("plan", {}) == 12_500
        assert prices.stage_ns("prepare", {"batch": 4, "kv_tokens": 1000}) == 5_000
        assert prices.stage_ns("ask", {}) == 0
        assert launch_ns(prices, "decode", {}) == 400_000
        assert launch_ns(prices, "decode", {"kv_tokens": 20480}) == 520_000
        assert launch_ns(prices, "copy in", {"whatever": 1}) == 3_000
        assert prices.launches["decode"].features == {"batch": 8, "kv_tokens": 8192}
        assert load_prices(prices) is prices
    assert load_prices(mapping()).name == "prices"


numbers = st.floats(0, 1e6).map(lambda us: round(us, 3))


@given(st.floats(0, 1e9))
def test_ns_are_rounded_half_to_even(us: float) -> None:
    exact = Fraction(us * 1000)
    got = launch_ns(load_prices(device(us)), "decode", {})
    assert abs(got - exact) <= Fraction(1, 2)
    assert got % 2 == 0 or abs(got - exact) != Fraction(1, 2)


def test_halves_go_to_the_even_ns() -> None:
    assert [launch_ns(load_prices(device(us)), "decode", {}) for us in (0.0005, 0.0015, 0.0025)] == [0, 2, 2]


@given(numbers, st.dictionaries(st.sampled_from("abc"), numbers), st.fixed_dictionaries({f: st.integers(0, 100) for f in "abc"}))
def test_affine(us: float, per: dict[str, float], features: dict[str, float]) -> None:
    exact = 1000 * (Fraction(us) + sum(Fraction(rate) * Fraction(features[f]) for f, rate in per.items()))
    assert launch_ns(load_prices(device({"us": us, "per": per})), "decode", features) == pytest.approx(float(exact), abs=1)


points = st.lists(st.tuples(st.integers(0, 10**6), numbers), min_size=2, max_size=6, unique_by=lambda p: p[0]).map(sorted)


@given(points, st.floats(0, 1))
@example([(0, 433485.594), (2477, 0.0)], 1.0)  # y0 + (y1 - y0) * (x - x0) / (x1 - x0) is below 0 here
def test_a_table_is_linear_between_its_points(at: list[tuple[int, float]], where: float) -> None:
    x = min(at[0][0] + where * (at[-1][0] - at[0][0]), at[-1][0])
    prices = load_prices(device({"by": "n", "at": [list(p) for p in at]}))
    assert launch_ns(prices, "decode", {"n": x}) == pytest.approx(1000 * float(np.interp(x, *zip(*at, strict=True))), abs=1)
    for n, us in at:
        assert launch_ns(prices, "decode", {"n": n}) == pytest.approx(1000 * us, abs=1)


@pytest.mark.parametrize("x", [8191, 131072.5, -1])
def test_a_table_refuses_outside(x: float) -> None:
    table = {"by": "kv", "at": [[8192, 400], [131072, 1900]]}
    with pytest.raises(CostUnknown, match=rf"launch.decode.device_us is priced for kv from 8192 to 131072; got {x:g}"):
        launch_ns(load_prices(device(table)), "decode", {"kv": x})


def test_quantiles_are_drawn_by_the_inverse_distribution_function() -> None:
    at = [(0.1, 10.0), (0.5, 20.0), (0.9, 50.0)]
    prices = load_prices(device({"quantiles": at}))
    draws = [uniform(7, "launch.decode.device_us of decode.decode[0]", step) for step in range(4000)]
    got = [launch_ns(prices, "decode", {}, seed=7, step=step) for step in range(4000)]
    assert got == pytest.approx(1000 * np.interp(draws, *zip(*at, strict=True)), abs=1)
    assert min(got) == 10_000, "clamped below the first"
    assert max(got) == 50_000, "and above the last"
    assert np.quantile(got, [0.3, 0.5, 0.7]) == pytest.approx([15_000, 20_000, 35_000], rel=0.05)


def test_a_callable_gets_the_features_defaults_included() -> None:
    prices = load_prices(mapping(launch={"decode": {"features": {"batch": 8}, "device_us": lambda f: 2 * f["batch"] + f.get("kv", 0)}}))
    assert launch_ns(prices, "decode", {}) == 16_000
    assert launch_ns(prices, "decode", {"batch": 1, "kv": 3}) == 5_000


# ---- draws ----


def test_draws_are_splitmix64() -> None:
    """The published sequence for seed 1234567 (Vigna's splitmix64.c, as quoted on Rosetta Code)."""
    golden = 0x9E3779B97F4A7C15
    assert [_mix(1234567 + k * golden) for k in (1, 2, 3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def vectorised(origin: int, steps: Any) -> Any:
    """uniform over steps in numpy, from the origin of its sequence."""
    z = np.uint64(origin) + (steps.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@given(st.integers(), st.text(), st.integers(-1, 2**40))
def test_draws_can_be_vectorised(seed: int, stream: str, step: int) -> None:
    with np.errstate(over="ignore"):
        assert uniform(seed, stream, step) == vectorised(_origin(seed, stream), np.array([step], dtype=np.int64))[0]


def test_draws_are_uniform_and_of_their_own_for_each_seed_stream_and_step() -> None:
    keys = [(seed, stream, step) for seed in range(10) for stream in ("stage.plan_us", "launch.decode.device_us") for step in range(500)]
    draws = [uniform(*key) for key in keys]
    assert len(set(draws)) == len(draws)
    assert all(0 <= u < 1 for u in draws)
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    assert sum((counts - 500) ** 2) / 500 < 43.8, "chi square with 19 degrees of freedom, 0.1 % level"
    by_stream = np.array(draws).reshape(10, 2, 500)
    assert abs(np.corrcoef(by_stream[:, 0].ravel(), by_stream[:, 1].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(by_stream[0].ravel(), by_stream[1].ravel())[0, 1]) < 0.1


def test_the_order_of_calls_changes_no_draw() -> None:
    prices = load_prices(device({"quantiles": [[0, 1], [1, 1000]]}))
    steps = list(range(200))
    in_order = {step: launch_ns(prices, "decode", {}, 3, step) for step in steps}
    random.Random(0).shuffle(steps)
    assert {step: launch_ns(prices, "decode", {}, 3, step) for step in steps} == in_order
    assert len(set(in_order.values())) > 190


# ---- what is refused ----


@pytest.mark.parametrize(
    ("content", "place", "why"),
    [
        ({}, "prices", "the key 'schema' is missing; got no keys"),
        (mapping(schema=2), "prices: schema", "got 2; allowed: 1"),
        (mapping(schema=True), "prices: schema", "got True"),
        (mapping(schema="1"), "prices: schema", "got '1'"),
        (
            mapping(stages={}),
            "prices",
            "unknown key 'stages' (did you mean 'stage'?); allowed: calibration, launch, machine, name, op, schema, source, stage",
        ),
        (mapping(name=3), "prices: name", "got 3; allowed: text"),
        (mapping(stage=7), "prices: stage", "got 7; allowed: a table"),
        (mapping(stage={"plans_us": 1}), "prices: stage", "unknown key 'plans_us' (did you mean 'plan_us'?)"),
        (mapping(stage={"device_us": 1}), "prices: stage", "allowed: amend_us, ask_us, launch_us, plan_us, prepare_us, retire_us"),
        (mapping(stage={"plan_us": -1}), "prices: stage.plan_us", "got -1; allowed: microseconds, at least 0"),
        (mapping(stage={"plan_us": math.nan}), "prices: stage.plan_us", "got nan; allowed: a finite number"),
        (mapping(stage={"plan_us": math.inf}), "prices: stage.plan_us", "got inf"),
        (mapping(stage={"plan_us": "12"}), "prices: stage.plan_us", "got '12'"),
        (mapping(stage={"plan_us": True}), "prices: stage.plan_us", "got True"),
        (mapping(stage={"plan_us": None}), "prices: stage.plan_us", "got None"),
        (mapping(launch={"decode": 3}), "prices: launch.decode", "got 3; allowed: a table"),
        (mapping(launch={"decode": {}}), "prices: launch.decode", "a launch has either ops or device_us; got none"),
        (mapping(launch={"decode": {"device": 3}}), "prices: launch.decode", "unknown key 'device' (did you mean 'device_us'?)"),
        (mapping(launch={3: {}}), "prices: launch", "got 3; allowed: keys that are text"),
        (mapping(launch={"d": {"device_us": 1, "features": {"b": "8"}}}), "prices: launch.d.features.b", "got '8'"),
        (mapping(launch={"d": {"device_us": 1, "features": [8]}}), "prices: launch.d.features", "got [8]; allowed: a table"),
        (device({}), "prices: launch.decode.device_us", "the key 'us' is missing; got no keys"),
        (
            device({"ms": 1}),
            "prices: launch.decode.device_us",
            "unknown key 'ms'; allowed: at, by, per, quantiles, us",
        ),
        (device({"per": {"batch": 1}}), "prices: launch.decode.device_us", "the key 'us' is missing; got 'per'"),
        (device({"us": 1, "per": 2}), "prices: launch.decode.device_us.per", "got 2; allowed: a table"),
        (device({"us": 1, "per": {"batch": -1}}), "prices: launch.decode.device_us.per.batch", "got -1"),
        (device({"us": 1, "by": "n"}), "prices: launch.decode.device_us", "unknown key 'us'; allowed: at, by"),
        (device({"by": "n"}), "prices: launch.decode.device_us", "the key 'at' is missing; got 'by'"),
        (device({"by": 3, "at": [[1, 2], [3, 4]]}), "prices: launch.decode.device_us.by", "got 3; allowed: text"),
        (device({"by": "n", "at": [[1, 2]]}), "prices: launch.decode.device_us.at", "allowed: two or more points [x, us]"),
        (device({"by": "n", "at": [[1, 2, 3], [4, 5]]}), "prices: launch.decode.device_us.at", "allowed: two or more points [x, us]"),
        (device({"by": "n", "at": [[2, 2], [1, 4]]}), "prices: launch.decode.device_us.at", "allowed: points with x strictly increasing"),
        (device({"by": "n", "at": [[1, 2], [1, 4]]}), "prices: launch.decode.device_us.at", "strictly increasing"),
        (device({"by": "n", "at": [[1, 2], [3, -4]]}), "prices: launch.decode.device_us.at[1][1]", "got -4"),
        (device({"by": "n", "at": [["1", 2], [3, 4]]}), "prices: launch.decode.device_us.at[0][0]", "got '1'"),
        (device({"quantiles": [[0.5, 3], [1.5, 4]]}), "prices: launch.decode.device_us.quantiles", "allowed: probabilities from 0 to 1"),
        (device({"quantiles": [[-0.5, 3], [0.5, 4]]}), "prices: launch.decode.device_us.quantiles", "allowed: probabilities from 0 to 1"),
        (
            device({"quantiles": [[0.1, 3], [0.5, 2]]}),
            "prices: launch.decode.device_us.quantiles",
            "allowed: a quantile not below the one before",
        ),
        (device({"quantiles": [[0.1, 3], [0.5, 5]], "us": 1}), "prices: launch.decode.device_us", "unknown key 'us'; allowed: quantiles"),
    ],
)
def test_a_wrong_profile_is_refused_with_place_value_and_what_is_allowed(content: dict[str, Any], place: str, why: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load_prices(content)
    assert str(caught.value).startswith(place + ": ")
    assert why in str(caught.value)


@pytest.mark.parametrize("content", [b"schema = 1\nschema = 2", b"plan_us", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"price file 'bad.toml' is not TOML: "):
        load_prices(path)


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("schema = 1\n[stage]\nplan_us = -3")
    with pytest.raises(ProfileError, match=r"^mine.toml: stage.plan_us: got -3"):
        load_prices(path)
    with pytest.raises(ProfileError, match=r"missing.toml' cannot be read: No such file"):
        load_prices(tmp_path / "missing.toml")


def test_an_unknown_name_lists_the_shipped_profiles() -> None:
    with pytest.raises(ConfigError, match=r"unknown price profile.*'longcat-flash'.*did you mean 'longcat-flash-b8-4k'"):
        load_prices("longcat-flash")
    with pytest.raises(ConfigError, match=r"unknown price profile.*None.*allowed: .*longcat-flash-b8-4k"):
        load_prices(None)


def test_what_has_no_price_is_unknown_and_the_priced_are_listed() -> None:
    prices = load_prices(mapping(launch={"decode": {"device_us": {"us": 1, "per": {"batch": 2}}}, "prefill": {"device_us": 1}}))
    with pytest.raises(CostUnknown, match=r"no price for launch kind 'decoed' \(did you mean 'decode'\?\); priced: decode, prefill"):
        launch_ns(prices, "decoed", {})
    with pytest.raises(CostUnknown, match=r"no price for stage 'retire': add retire_us to .stage.; priced: ask, plan"):
        prices.stage_ns("retire", {})
    with pytest.raises(CostUnknown, match=r"launch.decode.device_us needs the feature 'batch'; given: kv, n"):
        launch_ns(prices, "decode", {"kv": 1, "n": 2})
    with pytest.raises(LookupError, match=r"needs the feature 'batch' \(did you mean 'batches'\?\)"):
        launch_ns(prices, "decode", {"batches": 1})


@pytest.mark.parametrize("value", ["8", math.nan, [8]])
def test_a_feature_that_is_no_number_is_refused(value: Any) -> None:
    prices = load_prices(device({"us": 1, "per": {"batch": 2}}))
    with pytest.raises(SimulationError, match=r"launch.decode.device_us is priced by the feature 'batch', a finite number; got"):
        launch_ns(prices, "decode", {"batch": value})
    assert launch_ns(prices, "decode", {"batch": np.int64(8)}) == 17_000


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, None, "3"])
def test_a_callable_that_gives_no_price_is_refused(value: Any) -> None:
    prices = load_prices(device(lambda _: value))
    with pytest.raises(SimulationError, match=r"launch.decode.device_us came out as .* with .*; allowed: finite, at least 0"):
        launch_ns(prices, "decode", {}, step=5)


def test_shipped_profiles_load_and_say_where_their_figures_come_from() -> None:
    assert "longcat-flash-b8-4k" in shipped()
    for name in shipped():
        prices = load_prices(name)
        assert prices.name == name
        assert prices.source
