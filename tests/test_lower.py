"""A launch as rows: what each placement, level, graph and copy makes of an operator, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovsdk import Launch
from ovsdk.backends.sim import SimBackend
from ovsdk.backends.sim.lower import Lowering, lower
from ovsdk.backends.sim.operators import PLACEMENTS
from ovsdk.backends.sim.price import uniform
from ovsdk.backends.sim.prices import load_prices
from ovsdk.backends.sim.rows import NO_SYNC, Program, Row
from ovsdk.errors import ConfigError, CostUnknown, SimulationError

FILE: dict[str, Any] = {
    "schema": 1,
    "machine": {
        "queue": {"level": 1},
        "h2d": {"latency_us": 8, "gb_per_s": 2},
        "d2h": {"latency_us": 30, "gb_per_s": 0.5},
    },
    "launch": {
        "decode": {
            "features": {"batch": 8},
            "ops": ["embed", {"repeat": 2, "ops": ["attention"]}, "reduce", "sample"],
            "result_bytes": {"bytes": 100, "per": {"batch": 50}},
            "graph": {"host_us": 120, "tiling_us": 3, "launcher_us": 50, "update": ["attention"], "update_us": 20},
        }
    },
    "op": {
        "default": {"host_us": 60, "tiling_us": 5, "launcher_us": 40},
        "embed": {"device_us": 100},
        "attention": {"device_us": {"us": 10, "per": {"batch": 2}}, "tiling_us": 7},
        "sample": {"device_us": 70, "aicpu_us": 9},
        "reduce": {
            "device_us": 80,
            "value_bytes": 32,
            "tiling": "host-shape",
            "placement": {
                "host-shape": {"tiling_us": 1},
                "host-value": {"tiling_us": 35},
                "in-kernel": {"device_us": 2},
                "device-metadata": {"op": {"host_us": 61, "device_us": 6}},
                "aicpu": {"aicpu_us": 25},
            },
        },
    },
}


def changed(**sections: Any) -> dict[str, Any]:
    """The file with some keys replaced: `op__embed__host_us=3`."""
    file = copy.deepcopy(FILE)
    for path, value in sections.items():
        *way, last = path.split("__")
        table = file
        for key in way:
            table = table[key]
        table[last] = value
    return file


def rows(file: Any = FILE, features: Any = None, **options: Any) -> list[Row]:
    """In us, as far as they are whole."""
    return list(lower(load_prices(file), "decode", features or {}, **options).rows)


def us(*times: float) -> tuple[int, ...]:
    return tuple(round(1000 * time) for time in times)


def costs(row: Row) -> tuple[int, int, int, int]:
    return row.host_ns, row.launcher_ns, row.device_ns, row.aicpu_ns


def test_a_launch_is_its_operators_in_order() -> None:
    program = lower(load_prices(FILE), "decode", {"batch": 10})
    attention = Row("attention", *us(67, 40, 30))
    assert program == Program(
        "decode",
        (
            Row("embed", *us(65, 40, 100)),
            attention,
            attention,
            Row("reduce", *us(66, 40, 80)),
            Row("sample", *us(65, 40, 70), aicpu_ns=9000),
        ),
        d2h_ns=30_000 + (100 + 10 * 50) * 2,
    )


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("host-shape", [Row("reduce", *us(66, 40, 80))]),
        ("host-value", [Row("reduce", *us(60, 40, 80), sync_ns=30_000 + 64 + 40_000)]),
        ("in-kernel", [Row("reduce", *us(65, 40, 82))]),
        ("device-metadata", [Row("reduce.metadata", *us(66, 40, 6)), Row("reduce", *us(65, 40, 80))]),
        ("aicpu", [Row("reduce", *us(65, 40, 80), aicpu_ns=25_000)]),
    ],
)
def test_a_placement_adds_what_it_says(placement: str, expected: list[Row]) -> None:
    assert rows(tilings={"reduce": placement})[3:-1] == expected
    assert rows(changed(op__reduce__tiling=placement))[3:-1] == expected
    assert {*PLACEMENTS} == {*FILE["op"]["reduce"]["placement"]}, "all placements are tested"


@pytest.mark.parametrize(("level", "host", "launcher"), [(0, 66 + 40, 0), (1, 66, 40), (2, 60, 46)])
def test_the_level_says_who_pays_tiling_and_launcher(level: int, host: float, launcher: float) -> None:
    file = changed(machine__queue__level=level)
    assert costs(rows(file)[3])[:2] == us(host, launcher)
    value = rows(file, tilings={"reduce": "host-value"})[3]
    assert (value.sync_ns, value.host_ns + value.launcher_ns) == (70_064, 100_000), "values are tiled by who has waited for them"


def test_without_a_task_queue_the_lane_launches() -> None:
    file = changed()
    del file["machine"]["queue"]
    assert rows(file) == rows(changed(machine__queue__level=0))


# ---- graphs ----


def test_a_replay_is_one_enqueue_and_the_updates() -> None:
    replay = rows(graph=True)
    assert [costs(row)[:2] for row in replay] == [us(123, 50), us(27, 0), us(27, 0), (0, 0), (0, 0)]
    assert [costs(row)[2:] for row in replay] == [costs(row)[2:] for row in rows()], "the device does the same"
    file = changed()
    del file["launch"]["decode"]["graph"]["update"]
    assert [row.host_ns for row in rows(file, graph=True)] == [123_000, 0, 0, 0, 0]


@pytest.mark.parametrize(("level", "first", "update"), [(0, (173, 0), (27, 0)), (1, (123, 50), (27, 0)), (2, (120, 53), (20, 7))])
def test_a_replay_at_each_level(level: int, first: tuple[int, int], update: tuple[int, int]) -> None:
    replay = rows(changed(machine__queue__level=level), graph=True)
    assert [costs(row)[:2] for row in replay[:2]] == [us(*first), us(*update)]


def test_an_operator_that_is_updated_and_comes_first_pays_for_both() -> None:
    replay = rows(changed(launch__decode__ops=["attention", "embed"]), graph=True)
    assert [costs(row)[:2] for row in replay] == [us(123 + 27, 50), (0, 0)]


def test_an_operator_for_another_goes_into_the_graph_too() -> None:
    replay = rows(graph=True, tilings={"reduce": "device-metadata"})
    assert [(row.op, *costs(row)) for row in replay[3:5]] == [("reduce.metadata", 0, 0, 6000, 0), ("reduce", 0, 0, 80_000, 0)]


def test_a_graph_cannot_hold_a_synchronisation() -> None:
    with pytest.raises(
        ConfigError, match=r"launch 'decode' as a graph: operator 'reduce' has its tiling at host-value.*elsewhere: aicpu, d"
    ):
        rows(graph=True, tilings={"reduce": "host-value"})


def test_a_kind_without_a_graph_is_launched_one_by_one() -> None:
    file = changed()
    del file["launch"]["decode"]["graph"]
    assert rows(file, graph=True) == rows(file)


# ---- streams and copies ----


def layered(**launch: Any) -> dict[str, Any]:
    """Two layers: b runs beside a's successor on a stream of its own, c waits for it."""
    ops = {"a": {"device_us": 1}, "b": {"device_us": 2, "stream": "side", "waits": ["a"]}, "c": {"device_us": 3, "waits": ["b", "a"]}}
    return {"schema": 1, "machine": FILE["machine"], "launch": {"decode": {"ops": [{"repeat": 2, "ops": [*ops]}], **launch}}, "op": ops}


def test_an_operator_waits_for_the_latest_before_it_on_other_streams() -> None:
    assert load_prices(layered()).streams == ("", "side")
    assert [(row.op, row.stream, row.waits) for row in rows(layered())] == [
        ("a", 0, ()),
        ("b", 1, (0,)),
        ("c", 0, (1,)),
        ("a", 0, ()),
        ("b", 1, (3,)),
        ("c", 0, (4,)),
    ]


def test_an_operator_before_another_waits_in_its_place() -> None:
    file = layered()
    file["op"]["b"] |= {"tiling": "device-metadata", "placement": {"device-metadata": {"op": {"device_us": 5}}}}
    assert [(row.op, row.stream, row.waits) for row in rows(file)[1:4]] == [("b.metadata", 1, (0,)), ("b", 1, (0,)), ("c", 0, (2,))]


def test_inputs_are_a_row_that_the_first_of_each_stream_waits_for() -> None:
    file = layered(inputs_bytes=1000)
    assert load_prices(file).streams == ("", "side", "h2d")
    assert rows(file)[0] == Row("h2d", 0, 0, 8_000 + 500, stream=2)
    assert [row.waits for row in rows(file)[1:]] == [(0,), (0, 1), (2,), (), (4,), (5,)]


def test_pageable_memory_is_a_synchronisation() -> None:
    file = layered(inputs_bytes=1000, result_bytes=10)
    file["machine"] = {name: {**engine, "pinned": False} for name, engine in file["machine"].items() if name != "queue"}
    program = lower(load_prices(file), "decode", {})
    before, *operators, side, last = program.rows
    assert before == Row("h2d", 0, 0, 0, sync_ns=8_500)
    assert operators[0].waits == ()
    assert {side, last} == {Row("d2h", 0, 0, 0, 0, sync_ns=0), Row("d2h", 0, 0, 0, 1, sync_ns=30_020)}
    assert program.d2h_ns == 0


# ---- draws ----

DRAWN = {"quantiles": [[0, 10], [1, 90]]}


def test_each_use_of_an_operator_draws_for_itself_and_no_other_use_matters() -> None:
    file = changed(op__attention__device_us=DRAWN)
    first, second = [row.device_ns for row in rows(file, seed=3, step=5) if row.op == "attention"]
    assert first != second
    stream = "op.attention.device_us of decode.attention[{}]"
    assert [first, second] == [round(1000 * (10 + 80 * uniform(3, stream.format(n), 5))) for n in (0, 1)]
    longer = changed(op__attention__device_us=DRAWN, launch__decode__ops=["sample", "attention", "embed", "attention", "attention"])
    assert [row.device_ns for row in rows(longer, seed=3, step=5) if row.op == "attention"][:2] == [first, second]
    assert rows(file, seed=3, step=6) != rows(file, seed=3, step=5) != rows(file, seed=4, step=5)


def test_an_inherited_price_is_drawn_for_each_operator() -> None:
    file = changed(op__default__host_us=DRAWN)
    assert len({row.host_ns for row in rows(file)}) == len(rows(file))


# ---- what is kept ----


def test_equal_launches_are_lowered_once() -> None:
    lowering = Lowering(load_prices(FILE))
    first = lowering.program("decode", {"batch": 8, "colour": 1}, 0)
    assert lowering.program("decode", {"batch": 8.0, "colour": 2}, 1) is first, "what no price needs makes no difference"
    assert lowering.program("decode", {"batch": 9}, 2) is not first
    assert lowering.program("decode", {"batch": 8}, 3, graph=True) is not first
    assert not lowering.drawn("decode")


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.booleans()), max_size=12), st.sampled_from(sorted(PLACEMENTS)))
def test_what_is_kept_is_what_would_be_lowered(launches: list[tuple[int, int, bool]], placement: str) -> None:
    for file in (FILE, changed(op__embed__device_us=DRAWN), changed(op__embed__device_us=lambda features: features["batch"] * 3)):
        prices, tilings = load_prices(file), {"reduce": placement if placement != "host-value" else "aicpu"}
        lowering = Lowering(prices, 7, tilings)
        for batch, step, graph in launches:
            fresh = lower(prices, "decode", {"batch": batch}, seed=7, step=step, tilings=tilings, graph=graph)
            assert lowering.program("decode", {"batch": batch}, step, graph) == fresh


def test_the_programs_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovsdk.backends.sim.lower.MOST_KEPT", 3)
    lowering = Lowering(load_prices(FILE))
    for batch in (1, 2, 3, 4, 5):
        assert lowering.program("decode", {"batch": batch}, 0) == lower(lowering.prices, "decode", {"batch": batch})
        assert len(lowering._kept) <= 3


# ---- what is refused ----


def test_a_tiling_that_is_not_listed_is_refused_with_the_nearest() -> None:
    known = r"unknown operator in tilings 'reduse' \(did you mean 'reduce'\?\); allowed: attention, embed, reduce, sample"
    for opens in (lambda tilings: rows(tilings=tilings), lambda tilings: SimBackend(FILE, tilings=tilings)):
        with pytest.raises(ConfigError, match=known):
            opens({"reduse": "aicpu"})
        with pytest.raises(
            ConfigError, match=r"unknown placement of 'reduce' .*'ai-cpu' \(did you mean 'aicpu'\?\); allowed: aicpu, device-met"
        ):
            opens({"reduce": "ai-cpu"})
        with pytest.raises(ConfigError, match=r"unknown placement of 'embed' .*'aicpu'; allowed: host-shape"):
            opens({"embed": "aicpu"})


def test_what_has_no_price_is_said_by_who_submits() -> None:
    with pytest.raises(CostUnknown, match=r"no price for launch kind 'decod' \(did you mean 'decode'\?\); priced: decode"):
        lower(load_prices(FILE), "decod", {})
    file = changed(op__embed__device_us={"by": "kv", "at": [[1, 2], [3, 4]]})
    with SimBackend(file) as backend:
        with pytest.raises(CostUnknown, match=r"op.embed.device_us needs the feature 'kv'; given: batch"):
            backend.stream().submit(Launch("decode", fn=abs))
        with pytest.raises(CostUnknown, match=r"op.embed.device_us is priced for kv from 1 to 3; got 9"):
            backend.stream().submit(Launch("decode", fn=abs, features={"kv": 9}))
        with pytest.raises(SimulationError, match=r"op.embed.device_us is priced by the feature 'kv', a finite number; got \[1\]"):
            backend.stream().submit(Launch("decode", fn=abs, features={"kv": [1]}))  # type: ignore[dict-item]


def test_a_graph_that_nothing_has_is_refused() -> None:
    file = changed()
    del file["launch"]["decode"]["graph"]
    with pytest.raises(
        ConfigError, match=r"graph=True, but no launch of 'prices' has a graph: add a section .launch.KIND.graph. for one of dec"
    ):
        SimBackend(file, graph=True)


@pytest.mark.parametrize("level", [3, -1, True, "1"])
def test_an_unknown_level_is_refused(level: Any) -> None:
    with pytest.raises(ConfigError, match=r"unknown level of the task queue .*; allowed: 0, 1, 2"):
        SimBackend(FILE, level=level)


def test_a_backend_says_what_was_resolved() -> None:
    with SimBackend(FILE, tilings={"reduce": "aicpu"}, level=2) as backend:
        facts = backend.capabilities.facts
        assert {**facts, "tilings": dict(facts["tilings"])}.items() >= {"tilings": {"reduce": "aicpu"}, "level": 2, "graph": None}.items()
    assert SimBackend(FILE).capabilities.facts["tilings"] == {"reduce": "host-shape"}
    assert all(row.sync_ns == NO_SYNC for row in rows())
