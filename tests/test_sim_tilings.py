"""Launches of operators under the drivers: the source text's whole story, and what it says in general, from the same price file."""

from __future__ import annotations

import copy
import importlib.resources
import itertools
import sys
from typing import Any

import pytest

import ovsdk
from ovsdk.backends.sim import SimBackend, load_prices
from ovsdk.backends.sim.lower import lower
from ovsdk.backends.sim.rows import NO_SYNC
from ovsdk.saturated import Saturated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILE, OP, MS = "longcat-flash-b8-4k", "reduce_sum", 1_000_000
FILE = tomllib.loads((importlib.resources.files("ovsdk") / "profiles" / f"{PROFILE}.toml").read_text())


def step_ns(prices: Any, depth: int, steps: int = 12, driver: str = "inline", **options: Any) -> int:
    """The time from retire to retire in the steady state: all the same, or it is none."""
    backend = SimBackend(prices, **options)
    spans = ovsdk.run(Saturated(steps), "priced", backend, depth=depth, driver=driver).timeline.spans
    ends = [span.end_ns for span in spans if span.what == "retire"]
    (step,) = {later - end for end, later in itertools.pairwise(ends[steps // 2 : -depth])}
    return step


def at_position(position: int) -> dict[str, Any]:
    """The file with the operator as that one in the launch."""
    file = copy.deepcopy(FILE)
    names = [op.name for op in load_prices(file).launches["decode"].ops if op.name != OP]
    file["launch"]["decode"]["ops"] = [*names[:position], OP, *names[position:]]
    return file


def without_gil(file: Any) -> dict[str, Any]:
    found = copy.deepcopy(file)
    del found["machine"]["gil"]
    return found


# ---- the figures ----


@pytest.mark.parametrize(
    ("placement", "serial", "overlap", "two_lanes"),
    [
        ("host-shape", 79.000, 45.000, 45.000),
        ("host-value", 79.180, 77.380, 53.520),
        ("in-kernel", 79.002, 45.002, 45.002),
        ("device-metadata", 79.006, 45.006, 45.006),
        ("aicpu", 79.025, 45.025, 45.025),
    ],
)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_source_texts_story(placement: str, serial: float, overlap: float, two_lanes: float, depth: int) -> None:
    """Copying 32 bytes takes 1.6 ns besides the copy's latency: hence the rounding. On two lanes, which no GIL keeps from it,
    the other one plans and retires while a launch is stuck: of the stages only prepare comes after the sync."""
    tilings = {OP: placement}
    assert round(step_ns(PROFILE, depth, tilings=tilings) / MS, 3) == (serial if depth == 1 else overlap)
    assert round(step_ns(without_gil(FILE), depth, driver="threads", tilings=tilings) / MS, 3) == (serial if depth == 1 else two_lanes)


@pytest.mark.parametrize(("position", "expected"), [(1, 45.18), (29, 57.50), (57, 77.38)])
def test_where_the_operator_stands_decides_what_it_costs(position: int, expected: float) -> None:
    assert round(step_ns(at_position(position), 2, tilings={OP: "host-value"}) / MS, 3) == expected


# ---- T = D + s + max(0, h_after - d_after) ----


def predicted_ns(file: Any, position: int) -> int:
    """The formula, its terms read off the prices.

    D        the device's work in a step
    s        from the drained stream to the operator's begin: copy and tiling, its enqueue, launcher, latency
    h_after  what the lane does from the operator's enqueue to the first begin of the next step: the enqueue of the others, the
             stages, the enqueue of the next step's first operator. Its launcher and latency come after both begins alike
    d_after  the device's work from the operator on
    An operator that comes first is the next step's first begin itself: the lane then comes to its sync, not to an enqueue.
    """
    prices = load_prices(file)
    rows = lower(prices, "decode", {}, tilings={OP: "host-value"}).rows
    own, stages = rows[position], sum(prices.stage_ns(name, {}) for name in ("plan", "prepare", "launch", "retire"))
    device, after = sum(row.device_ns for row in rows), sum(row.device_ns for row in rows[position:])
    visible = own.sync_ns + own.host_ns + own.launcher_ns + prices.machine.latency_ns
    if position:
        lane = sum(row.host_ns for row in rows[position + 1 :]) + stages + rows[0].host_ns
    else:
        lane = sum(row.host_ns for row in rows[1:]) + stages - own.launcher_ns - prices.machine.latency_ns
    return device + visible + max(0, lane - after)


@pytest.mark.parametrize("position", range(0, 59, 2))
@pytest.mark.parametrize("depth", [2, 3])
def test_a_value_dependent_tiling_anywhere_costs_what_the_formula_says(position: int, depth: int) -> None:
    file = at_position(position + depth % 2 if position < 58 else position)  # odd positions at depth 3
    found = [op.name for op in load_prices(file).launches["decode"].ops].index(OP)
    assert step_ns(file, depth, steps=10, tilings={OP: "host-value"}) == predicted_ns(file, found)


def test_the_sync_shows_on_the_lane_and_the_idle_in_the_launch() -> None:
    """What a launch's future tells is enough to say where the device waited, and for what."""
    futures = []

    class Keeps:
        def prepare(self, step: int, batch: Any) -> Any:
            return batch

        def open(self, backend: Any) -> None:
            self.stream = backend.stream()

        def launch(self, step: int, batch: Any) -> Any:
            futures.append(self.stream.submit(ovsdk.Launch("decode", fn=abs)))
            return futures[-1]

    ovsdk.run(Saturated(6), Keeps(), SimBackend(PROFILE, tilings={OP: "host-value"}))
    for future in futures:
        (sync,) = future.sync_spans
        before, own = future.spans[56], future.spans[57]
        assert (sync[0], own[0]) == (OP, OP)
        assert sync[2] == before[2] + 70_002, "copy and tiling begin when the stream has drained"
        assert own[1] == sync[2] + 60_000 + 40_000 + 10_000, "then enqueue, launcher, latency"
        assert future.span_ns == (future.spans[0][1], future.spans[-1][2])
        assert sum(end - begin for _, begin, end in future.spans) == 45 * MS


# ---- laws of one more millisecond ----


def dearer(path: str, us: float = 1000) -> dict[str, Any]:
    """The file with so much more at a key path."""
    file = copy.deepcopy(FILE)
    *way, last = path.split(".")
    table = file
    for key in way:
        table = table[key]
    if isinstance(table.get(last, 0), dict):
        table[last]["us"] += us
    else:
        table[last] = table.get(last, 0) + us
    return file


@pytest.mark.parametrize(
    ("path", "serial", "overlap"),
    [
        ("stage.plan_us", 1, 0),
        ("stage.prepare_us", 1, 0),
        ("stage.launch_us", 1, 0),
        ("stage.retire_us", 1, 0),
        ("op.embed.device_us", 1, 1),
        ("op.sample.device_us", 1, 1),
        ("op.moe.device_us", 28, 28),
        ("op.reduce_sum.device_us", 1, 1),
        ("op.reduce_sum.aicpu_us", 1, 1),
        ("op.embed.host_us", 1, 0),
        ("op.sample.host_us", 0, 0),
        ("op.embed.tiling_us", 1, 0),
        ("op.embed.launcher_us", 1, 0),
        ("machine.launch_latency_us", 1, 0),
        ("machine.d2h.latency_us", 1, 0),
        ("machine.h2d.latency_us", 0, 0),
    ],
)
def test_one_more_millisecond_is_seen_where_nothing_hides_it(path: str, serial: int, overlap: int) -> None:
    file = dearer(path)
    if path == "op.embed.host_us":
        file["op"]["embed"]["host_us"] = 1060  # inherited until now
    if path == "op.embed.launcher_us":
        file["op"]["embed"]["launcher_us"] = 1040
    if path == "op.sample.host_us":
        file["op"]["sample"]["host_us"] = 1060
    assert step_ns(file, 1) - step_ns(FILE, 1) == serial * MS
    assert step_ns(file, 2) - step_ns(FILE, 2) == overlap * MS


# ---- levels and graphs ----


def small() -> dict[str, Any]:
    """Short kernels, dear enqueues: what the lane does is what a step takes."""
    stages = {f"{name}_us": 5 for name in ("plan", "prepare", "retire")} | {"launch_us": 0}
    graph = {"host_us": 30, "launcher_us": 20, "update": ["b"], "update_us": 12}
    ops = {"a": {"device_us": 4}, "b": {"device_us": 6}}
    return {
        "schema": 1,
        "machine": {"queue": {"level": 1}},
        "stage": stages,
        "launch": {"decode": {"ops": [{"repeat": 10, "ops": ["a", "b"]}], "graph": graph}},
        "op": {"default": {"host_us": 10, "tiling_us": 7, "launcher_us": 9}, **ops},
    }


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_step_takes_as_long_as_the_busiest_of_lane_launcher_and_device(level: int) -> None:
    lane_us = 15 + 20 * (10 + (7 if level < 2 else 0) + (9 if level == 0 else 0))
    launcher_us = 20 * {0: 0, 1: 9, 2: 16}[level]
    assert step_ns(small(), 3, level=level) == max(lane_us, launcher_us, 10 * 10) * 1000


@pytest.mark.parametrize(("graph", "lane_us"), [(None, 355), (False, 355), (True, 15 + 30 + 10 * (12 + 7))])
def test_a_replay_takes_the_enqueues_off_the_lane(graph: bool | None, lane_us: float) -> None:
    assert step_ns(small(), 2, graph=graph) == lane_us * 1000


def test_without_an_option_a_launch_that_carries_a_graph_key_is_a_replay() -> None:
    with SimBackend(small()) as backend:
        futures = [backend.stream().submit(ovsdk.Launch("decode", fn=abs, graph=key)) for key in (None, "key")]
        backend.clock.wait(futures, None, None)
        begins = [[begin for _, begin, _ in future.server_spans["task queue"]] for future in futures]
    assert len(begins[0]) == 20
    assert len(begins[1]) == 1, "of a replay the launcher has one enqueue to do"


# ---- lanes, seeds ----


def test_two_lanes_enqueue_while_the_other_plans() -> None:
    """Without a GIL, host-bound: the slower lane is what a step takes."""
    file = without_gil(FILE)
    file["stage"]["retire_us"] += 40_000
    assert step_ns(file, 4, steps=24, driver="threads") == (12_000 + 51_860) * 1000


def test_a_run_is_a_function_of_its_seed() -> None:
    file = copy.deepcopy(FILE)
    file["op"]["moe"]["device_us"] = {"quantiles": [[0.05, 870], [0.5, 900], [0.99, 1010]]}

    def ends(seed: int) -> list[int]:
        spans = ovsdk.run(Saturated(6), "priced", SimBackend(file, seed=seed)).timeline.spans
        return [span.end_ns for span in spans]

    assert ends(1) == ends(1) != ends(2)


def test_every_row_of_the_undisturbed_launch_is_without_a_sync() -> None:
    rows = lower(load_prices(PROFILE), "decode", {}).rows
    assert {row.sync_ns for row in rows} == {NO_SYNC}
    assert sum(row.device_ns for row in rows) == 45 * MS
