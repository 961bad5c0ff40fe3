"""Sweeps: the grid's laws, results that survive an interruption, and what is read off the rows, against brute force."""

from __future__ import annotations

import csv
import itertools
import json
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovsdk import engines, pareto, plugin_manager
from ovsdk import sweep as sweep_module
from ovsdk.cli import main
from ovsdk.cli.sweep import Swept, write_csv
from ovsdk.engines import run_on
from ovsdk.errors import ConfigError, ProfileError, SimulationError
from ovsdk.grid import SETTINGS, check_axes, locate, parse_axes, parse_values, points, priced, settings
from ovsdk.pareto import SAME, BreakEven, break_even, deeper_is_slower, front
from ovsdk.plugins import PluginManager
from ovsdk.results import cached_file, read_results
from ovsdk.simulation import Requests, read_profile
from ovsdk.sweep import Setup, check, evaluate, keys, sweep

# ---- the grid ----

numbers = st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6).filter(lambda x: not 0 < abs(x) < 1e-60).map(
    lambda x: int(x) if x.is_integer() else x
)
words = st.from_regex(r"[a-z][a-z_-]{0,8}", fullmatch=True)
axis_values = st.lists(numbers | words, min_size=1, max_size=5)
decimals = st.tuples(st.integers(-(10**4), 10**4), st.integers(0, 3)).map(lambda t: Fraction(t[0], 10 ** t[1]))


def text_of(number: Fraction) -> str:
    return format(float(number), ".3f")


@given(axis_values)
def test_a_list_gives_its_distinct_values_in_order(values):
    assert parse_values(",".join(map(str, values))) == tuple(dict.fromkeys(values))


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 9))
def test_a_range_of_integers_is_pythons_with_both_ends(first, more, by):
    last = first + more
    assert parse_values(f"{first}..{last}:{by}") == tuple(range(first, last + 1, by))
    assert parse_values(f"{first}..{last}") == tuple(range(first, last + 1))


@given(decimals, decimals, st.integers(1, 30))
def test_a_range_of_decimals_is_exact(first, by, steps):
    by = abs(by) or Fraction(1, 1000)
    last = first + by * steps
    assert parse_values(f"{text_of(first)}..{text_of(last)}:{text_of(by)}") == tuple(float(first + i * by) for i in range(steps + 1))


@given(st.dictionaries(words, axis_values.map(lambda v: tuple(dict.fromkeys(v))), max_size=4))
def test_points_are_nested_loops_over_the_axes(axes):
    expected = [{}]
    for axis, values in axes.items():
        expected = [{**point, axis: value} for point in expected for value in values]
    found = list(points(axes))
    assert found == expected
    assert len({tuple(point.items()) for point in found}) == len(found)


def test_axes_are_read_as_written():
    axes = parse_axes(["depth=1..4", "tiling.sum=host-value,aicpu", "op.sum.device_us=5,10,50..200:75,0..1:0.5"])
    assert axes == {"depth": (1, 2, 3, 4), "tiling.sum": ("host-value", "aicpu"), "op.sum.device_us": (5, 10, 50, 125, 200, 0, 0.5, 1)}
    assert [type(value) for value in axes["op.sum.device_us"][-3:]] == [int, float, int]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (["depth"], "NAME=VALUES"),
        (["depth="], "NAME=VALUES"),
        (["=1"], "NAME=VALUES"),
        (["depth=1,,2"], "missing beside a comma"),
        (["depth=4..1"], "is empty"),
        (["depth=1..4:0"], "is empty"),
        (["depth=1..4:-1"], "is empty"),
        (["depth=a..b"], "FIRST..LAST"),
        (["depth=1.."], "FIRST..LAST"),
        (["depth=1", "depth=2"], "given twice"),
        (["depth=1..2000000"], "2000000 values"),
        (["depth=1..1e90"], "values; allowed"),
        (["depth=1..2000", "seed=1..2000"], "4000000 points"),
    ],
)
def test_what_is_no_axis_is_refused(written, says):
    with pytest.raises(ConfigError, match=says):
        parse_axes(written)


PROFILE = {
    "schema": 1,
    "machine": {"queue": {"level": 1}},
    "stage": {"plan_us": 10, "prepare_us": {"us": 10, "per": {"batch": 1}}, "launch_us": 0, "retire_us": 10},
    "launch": {"decode": {"features": {"batch": 8}, "device_us": 45}},
    "op": {
        "sum": {"device_us": 80, "tiling": "host-shape", "placement": {"host-shape": {}, "aicpu": {"aicpu_us": 25}}},
        "aten.mm": {"device_us": 3},
    },
}


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        ("dpeth=1", "unknown axis 'dpeth' .did you mean 'depth'"),
        ("op.sum.placement.aicp.aicpu_us=1", "did you mean 'op.sum.placement.aicpu.aicpu_us'"),
        ("stage.plan.us=1", "did you mean 'stage.plan_us'"),
        ("tiling.su=aicpu", "unknown operator with a tiling 'su' .did you mean 'sum'"),
        ("tiling.sum=aicpuu", "unknown placement of 'sum' 'aicpuu' .did you mean 'aicpu'"),
        ("graph=yes", "unknown graph 'yes'; allowed: off, on"),
        ("driver=inlin", "unknown driver 'inlin' .did you mean 'inline'"),
        ("plan_when=soon", "unknown plan_when 'soon'"),
        ("level=3", "unknown task queue level 3; allowed: 0, 1, 2"),
        ("depth=0..2", "depth is a whole number, at least 1; got 0"),
        ("depth=1.5", "depth is a whole number"),
        ("seed=x", "seed is a whole number; got 'x'"),
        ("name=x", "unknown axis 'name'"),
    ],
)
def test_an_axis_that_no_run_has_is_refused(axis, says):
    with pytest.raises(ConfigError, match=says):
        check_axes(parse_axes([axis]), PROFILE)


@pytest.mark.parametrize(
    ("axis", "path"),
    [
        ("tiling.sum", ("op", "sum", "tiling")),
        ("tiling.aten.mm", ("op", "aten.mm", "tiling")),
        ("level", ("machine", "queue", "level")),
        ("op.aten.mm.device_us", ("op", "aten.mm", "device_us")),
        ("op.aten.mm.host_us", ("op", "aten.mm", "host_us")),
        ("stage.prepare_us.per.batch", ("stage", "prepare_us", "per", "batch")),
        ("launch.decode.features.batch", ("launch", "decode", "features", "batch")),
    ],
)
def test_an_axis_changes_its_key_and_nothing_else(axis, path):
    before = json.dumps(PROFILE)
    assert locate(axis, PROFILE) == path
    changed = priced(PROFILE, {"depth": 2, axis: "new"})
    assert json.dumps(PROFILE) == before
    assert dict(leaves(changed)) == {**dict(leaves(PROFILE)), path: "new"}


def leaves(table, above=()):
    for key, value in table.items():
        yield from leaves(value, (*above, key)) if isinstance(value, dict) else [((*above, key), value)]


def test_a_missing_queue_is_made_for_its_level():
    assert priced({"op": {}}, {"level": 2})["machine"] == {"queue": {"level": 2}}


def test_settings_are_what_is_not_in_the_price_file():
    how = {"depth": 2, "driver": "inline", "plan_when": "late", "seed": 1}
    assert settings({**how, "graph": "off", "level": 0, "tiling.sum": "aicpu", "stage.plan_us": 3}) == {**how, "graph": False}


# ---- running points, and keeping them ----

TINY = {
    "schema": 1,
    "name": "tiny",
    "stage": {"plan_us": 1000, "prepare_us": 1000, "launch_us": 1000, "retire_us": 1000},
    "launch": {"decode": {"device_us": 6000, "features": {"batch": 2}}},
}
SETUP = Setup(TINY, steps=8)
GRID = list(points(parse_axes(["depth=1,2", "launch.decode.device_us=2000,6000,9000"])))


class Interrupting:
    """Answers as `evaluate` does; raises KeyboardInterrupt in place of answer number `at`."""

    def __init__(self, at=None):
        self.at, self.seen = at, []

    def __call__(self, setup, point):
        if len(self.seen) == self.at:
            raise KeyboardInterrupt
        self.seen.append(point)
        return evaluate(setup, point)


def collected(*args, **options):
    return [row for _, row in sorted(sweep(*args, **options), key=lambda pair: pair[0])]


WHOLE = collected(SETUP, GRID)


def test_figures_are_those_of_the_closed_form():
    for row in WHOLE:
        device = row["point"]["launch.decode.device_us"] / 1e3
        step = 4 + device if row["point"]["depth"] == 1 else max(4, device)
        assert row["step_ms"] == pytest.approx(step)
        assert row["tokens_per_s"] == pytest.approx(2e3 / step, abs=0.01)
        assert row["latency_ms"] >= 4 + device


@pytest.mark.parametrize("at", range(len(GRID) + 1))
def test_an_interrupted_sweep_goes_on_with_exactly_the_rest(tmp_path, at):
    file, first, second = tmp_path / "r.jsonl", Interrupting(at), Interrupting()
    before = []
    try:
        for _, row in sweep(SETUP, GRID, results=file, run_one=first):
            before.append(row)
    except KeyboardInterrupt:
        assert at < len(GRID)
    assert before == WHOLE[:at]
    assert collected(SETUP, GRID, results=file, run_one=second) == WHOLE
    assert second.seen == GRID[at:]
    assert collected(SETUP, GRID, results=file, run_one=Interrupting(0)) == WHOLE


def test_a_line_torn_anywhere_costs_its_point_alone(tmp_path):
    file = tmp_path / "r.jsonl"
    collected(SETUP, GRID[:2], results=file)
    whole = file.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) + 1, 7):
        file.write_bytes(whole[:cut])
        again, told = Interrupting(), []
        assert collected(SETUP, GRID[:3], results=file, run_one=again, say=told.append) == WHOLE[:3]
        assert again.seen in ([GRID[1], GRID[2]], [GRID[2]])
        assert bool(told) == (first < cut < len(whole) - 1)
        assert list(read_results(file).values())[-1] == WHOLE[2]


def test_rows_of_two_sweeps_share_a_file(tmp_path):
    file, other = tmp_path / "r.jsonl", attrs.evolve(SETUP, steps=9)
    collected(SETUP, GRID, results=file)
    again = Interrupting()
    collected(other, GRID, results=file, run_one=again)
    assert again.seen == GRID
    assert collected(SETUP, GRID, results=file, run_one=Interrupting(0)) == WHOLE


CHANGES = {
    "profile": {**TINY, "stage": {**TINY["stage"], "plan_us": 1001}},
    "kind": "decode",
    "steps": 9,
    "scheduler": "mine",
    "executor": "mine",
    "requests": Requests("poisson:4"),
}


@pytest.mark.parametrize("field", CHANGES)
def test_nothing_that_matters_is_left_out_of_a_key(field):
    assert set(keys(SETUP, GRID)).isdisjoint(keys(attrs.evolve(SETUP, **{field: CHANGES[field]}), GRID))


def test_every_field_of_a_setup_is_known_to_matter():
    assert {*CHANGES, "plugins"} == {field.name for field in attrs.fields(Setup)}


def test_a_key_names_a_point_and_the_content_of_plugins(tmp_path):
    assert len(set(keys(SETUP, GRID))) == len(GRID)
    reordered = attrs.evolve(SETUP, profile=dict(reversed(TINY.items())))
    assert keys(reordered, GRID) == keys(SETUP, GRID)
    plugin = tmp_path / "mine.py"
    plugin.write_text("X = 1\n")
    first = keys(attrs.evolve(SETUP, plugins=(str(plugin),)), GRID)
    plugin.write_text("X = 2\n")
    assert set(first).isdisjoint(keys(attrs.evolve(SETUP, plugins=(str(plugin),)), GRID))


def test_a_key_names_ovsdk_and_what_is_installed(monkeypatch):
    before = keys(SETUP, GRID)
    with monkeypatch.context() as patched:
        patched.setattr(sweep_module, "source_digest", lambda: "another ovsdk")
        assert set(before).isdisjoint(keys(SETUP, GRID))
    with monkeypatch.context() as patched:
        patched.setattr(PluginManager, "add", add_newer(PluginManager.add))
        assert set(before).isdisjoint(keys(SETUP, GRID))
    assert keys(SETUP, GRID) == before


def add_newer(add):
    return lambda self, plugin, name=None, origin="": add(self, plugin, name, f"{origin} 9.9")


def test_a_key_names_the_content_of_a_trace(tmp_path):
    trace = tmp_path / "trace.csv"
    setup = attrs.evolve(SETUP, requests=Requests(str(trace)))
    trace.write_text("at_s,prompt_tokens,output_tokens\n0,1,1\n")
    first = keys(setup, GRID)
    trace.write_text("at_s,prompt_tokens,output_tokens\n0,1,2\n")
    assert set(first).isdisjoint(keys(setup, GRID))


def test_a_profile_with_a_function_in_it_has_no_key():
    profile = {**TINY, "stage": {**TINY["stage"], "plan_us": lambda features: 5}}
    with pytest.raises(ConfigError, match="plain data only"):
        keys(Setup(profile), GRID)


def test_a_point_that_fails_says_so_and_is_tried_again(tmp_path):
    file, grid = tmp_path / "r.jsonl", [{"depth": 1}, {"depth": 0}, {"depth": 2}]
    rows = collected(SETUP, grid, results=file)
    assert ["error" in row for row in rows] == [False, True, False]
    assert rows[1]["error"].startswith("ConfigError: depth")
    again = Interrupting()
    assert collected(SETUP, grid, results=file, run_one=again) == rows
    assert again.seen == [{"depth": 0}]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_lone_request_waits_for_nothing(depth, tmp_path):
    """Host 4 ms, device 6: one request of three tokens at a time, alone."""
    trace = tmp_path / "trace.csv"
    trace.write_text("at_s,prompt_tokens,output_tokens\n0,5,3\n1,5,3\n")
    ((_, row),) = sweep(attrs.evolve(SETUP, requests=Requests(str(trace))), [{"depth": depth}])
    assert row["requests"]["requests"] == 2
    assert row["requests"]["ttft_s"]["mean"] == pytest.approx(0.010)
    assert row["requests"]["tpot_s"]["mean"] == pytest.approx(0.010 if depth == 1 else 0.006)


def test_requests_that_cannot_be_served_fail_their_point():
    """A step of 10 ms at depth 1 and 6 ms at depth 2, 2 rows, 4 tokens each: 50 and 83 requests a second."""
    served = attrs.evolve(SETUP, requests=Requests("poisson:60", 30, "fixed:4"), steps=32)
    slow, quick = collected(served, [{"depth": 1}, {"depth": 2}])
    assert "60 requests a second arrive and at most 50 can be served" in slow["error"]
    assert quick["requests"]["tokens"] == 120


def test_late_planning_shortens_the_wait_of_those_who_come():
    served = attrs.evolve(SETUP, requests=Requests("poisson:30", 100, "fixed:4"))
    asap, late = collected(served, [{"plan_when": "asap"}, {"plan_when": "late"}])
    assert late["requests"]["ttft_s"]["mean"] < asap["requests"]["ttft_s"]["mean"]
    assert 1 in front([asap, late])


def test_a_file_that_cannot_be_used_is_named(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("a\nb\n")
    with pytest.raises(ConfigError, match=r"notes\.txt' holds no results"):
        collected(SETUP, GRID, results=file)
    with pytest.raises(ConfigError, match=r"cannot be kept in .*--resume"):
        collected(SETUP, GRID, results=file / "r.jsonl")


def test_a_full_disk_stops_the_sweep_and_says_how_to_go_on():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here: no disk that is full")
    with pytest.raises(SimulationError, match="No space left on device; make room"):
        collected(SETUP, GRID, results=full)


def test_results_are_cached_by_the_profiles_name(monkeypatch, tmp_path):
    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path))
    assert cached_file("a/b") == tmp_path / "sweeps" / "a_b.jsonl"


def test_axes_are_tried_on_the_price_file_before_anything_runs():
    check(TINY, parse_axes(["depth=1,2", "stage.plan_us=0..5", "stage.ask_us=3"]))
    for axis, says in [("stage.plan_us=-1..5", "got -1"), ("stage.plan_us=x", "got 'x'"), ("stage.plan_uss=1", "did you mean 'plan_us'")]:
        with pytest.raises(ProfileError, match=says):
            check(TINY, parse_axes([axis]))


def test_a_profile_is_read_as_it_stands_in_its_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("schema = 1\n[stage]\nplan_us = 5\n")
    assert read_profile(str(file), plugin_manager()) == {"schema": 1, "stage": {"plan_us": 5}}
    with pytest.raises(ConfigError, match="unknown price profile"):
        read_profile("nowhere", plugin_manager())


# ---- engines ----


def test_an_engine_that_is_not_there_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"unknown engine 'dusk' .did you mean 'dask'"):
        run_on("dusk", str, [1])
    with pytest.raises(ConfigError, match="at least 1; got 0"):
        run_on("local", str, [1], jobs=0)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    for engine, install in [("ray", "pip install ray"), ("dask", r"pip install 'dask\[distributed\]'")]:
        pytest.importorskip("joblib", reason="joblib is not installed: every engine misses it first")
        with pytest.raises(ConfigError, match=install):
            list(run_on(engine, str, [1]))


@pytest.mark.parametrize(("address", "said"), [("tcp://there:1", "no cluster answered at 'tcp://there:1'"), ("", "it did not start")])
def test_an_engine_that_cannot_be_reached_is_said_to_be(monkeypatch, address, said):
    pytest.importorskip("joblib", reason="joblib is not installed: every engine misses it first")

    def client(*given):
        raise OSError(f"timed out {given}")

    monkeypatch.setitem(sys.modules, "dask.distributed", SimpleNamespace(Client=client))
    with pytest.raises(ConfigError, match=f"the engine 'dask' cannot be used: {said}.*OSError: timed out"):
        list(run_on("dask", str, [1], address=address))


def test_without_joblib_one_process_does_it_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "joblib", None)
    told = []
    assert list(run_on("local", str, [1, 2, 3], jobs=2, say=told.append)) == ["1", "2", "3"]
    assert "pip install 'ovsdk[sweep]'" in told[0]
    with pytest.raises(ConfigError, match=r"pip install 'ovsdk\[sweep\]'"):
        list(run_on("ray", str, [1]))


def test_few_tasks_start_no_process(monkeypatch):
    monkeypatch.setattr(engines, "_spread", lambda *args: pytest.fail("started processes"))
    assert list(run_on("local", str, range(engines.FEW))) == [str(i) for i in range(engines.FEW)]
    assert list(run_on("dask", str, [])) == []


def test_two_processes_give_the_same_rows():
    pytest.importorskip("joblib", reason="joblib is not installed: no second process to test")
    args = [sys.executable, "-m", "ovsdk", "sweep", "longcat-flash-b8-4k", "--over", "depth=1..3", "--steps", "8", "--json", "--resume"]
    done = [subprocess.run([*args, "/dev/null", "--jobs", jobs], capture_output=True, text=True, check=False) for jobs in ("1", "2")]
    assert [d.returncode for d in done] == [0, 0], done[1].stderr
    one, two = (json.loads(d.stdout) for d in done)
    assert one["rows"] == two["rows"]
    assert [row["step_ms"] for row in two["rows"]] == [79.0, 45.0, 45.0]


# ---- what is read off the rows ----


def row(latency, tokens, step_ms=1.0, **point):
    return {"point": point, "step_ms": step_ms, "tokens_per_s": tokens, "latency_ms": latency, "device_busy": 1.0, "idle": {}}


def beats(a, b):
    return a[0] <= b[0] and a[1] >= b[1] and a != b


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=12))
def test_the_front_is_what_nothing_beats(pairs):
    rows = [row(latency, tokens) for latency, tokens in pairs]
    assert front(rows) == {i for i, pair in enumerate(pairs) if not any(beats(other, pair) for other in pairs)}


def test_rows_without_figures_are_not_on_the_front():
    assert front([{"point": {}, "error": "x"}, row(5, 7), row(None, None, None)]) == {1}
    assert front([row(5, None, step_ms=2.0), row(6, None, step_ms=1.0), row(7, None, step_ms=1.5)]) == {0, 1}


@given(st.dictionaries(st.tuples(st.integers(1, 4), st.sampled_from("ab")), st.integers(1, 5), max_size=8))
def test_deeper_and_slower_is_reported_with_the_fastest_shallower(steps):
    rows = [row(1, 1, float(ms), depth=depth, driver=driver) for (depth, driver), ms in steps.items()]
    expected = {}
    for (depth, driver), ms in steps.items():
        least = min((other for (d, who), other in steps.items() if who == driver and d < depth), default=ms)
        if ms > least:
            expected[depth, driver] = (ms, least)
    found = {(s.point["depth"], s.point["driver"]): (s.step_ms, s.shallower_ms) for s in deeper_is_slower(rows)}
    assert found == expected


ALTERNATE = """
from ovsdk import CLOSED, hookimpl
from ovsdk.saturated import PricedBatch

class Alternate:
    def plan(self, ask):
        kind = ("plain", "syncs")[ask.step % 2]
        return PricedBatch(kind, {"heavy": kind == "syncs"}) if ask.step < 40 else CLOSED
    def retire(self, step, batch, result):
        pass

@hookimpl
def ovsdk_make_scheduler(name):
    return Alternate() if name == "alternate" else None
"""
"""Steps that are work for the device alone, and steps that synchronise and are work for the host, in turn."""
SYNCS = {
    "schema": 1,
    "machine": {"d2h": {"latency_us": 0, "gb_per_s": 1000}},
    "stage": {"plan_us": 0, "prepare_us": 0, "launch_us": 0, "retire_us": {"us": 0, "per": {"heavy": 1000}}},
    "launch": {"plain": {"ops": ["work"]}, "syncs": {"ops": ["wait"]}},
    "op": {
        "work": {"device_us": 1000},
        "wait": {"device_us": 0, "value_bytes": 0, "tiling": "host-value", "placement": {"host-value": {"tiling_us": 0}}},
    },
}


def test_a_launch_that_synchronises_can_make_depth_3_slower_than_2(tmp_path):
    """Two steps take 2 ms in turn at depth 1; at depth 2 the host's is hidden; at depth 3 the host waits in a launch instead."""
    plugin = tmp_path / "alternate.py"
    plugin.write_text(ALTERNATE)
    rows = collected(Setup(SYNCS, scheduler="alternate", plugins=(str(plugin),)), [{"depth": depth} for depth in (1, 2, 3)])
    assert [row.get("error") for row in rows] == [None] * 3
    (slower,) = deeper_is_slower(rows)
    assert (slower.point, slower.shallower) == ({"depth": 3}, 2)
    assert slower.step_ms > 1.8 * slower.shallower_ms


AXES = {"tiling.sum": ("host-value", "aicpu"), "op.sum.placement.aicpu.aicpu_us": (0, 10, 20, 30), "depth": (2,)}


def priced_rows(fixed, slope, axes=AXES):
    """host-value takes `fixed` ms whatever the price, aicpu 10 ms and `slope` times the price."""
    return [
        row(1, 1, float(fixed if point["tiling.sum"] == "host-value" else 10 + slope * point["op.sum.placement.aicpu.aicpu_us"]), **point)
        for point in points(axes)
    ]


@given(st.fractions(5, 60), st.fractions("0.1", 2))
def test_the_break_even_of_a_line_is_where_it_crosses(fixed, slope):
    found = break_even(priced_rows(fixed, slope), AXES)
    crossing = (fixed - 10) / slope
    if SAME < crossing < 30 - SAME:
        (one,) = found
        assert one.price == pytest.approx(float(crossing), rel=1e-6, abs=1e-6)
        assert one.faster == "aicpu"
        assert one.at == {"depth": 2}
    elif crossing < -SAME or crossing > 30 + SAME:
        assert [(one.price, one.faster) for one in found] == [(None, "host-value" if crossing < 0 else "aicpu")]


def test_the_break_even_is_readable():
    (one,) = break_even(priced_rows(25, 1), AXES)
    axis = "op.sum.placement.aicpu.aicpu_us"
    assert str(one) == f"break-even of {axis} between host-value and aicpu, depth 2: 15, aicpu is faster below"
    assert str(one._replace(price=None)).endswith("none swept, aicpu is faster all along")
    assert break_even(priced_rows(20, 1), AXES)[0].price == 10


def test_no_break_even_without_one_price_and_one_choice():
    axes = {**AXES, "driver": ("inline", "threads")}
    assert break_even(priced_rows(25, 1, axes), axes) == []
    axes = {**AXES, "op.sum.placement.aicpu.aicpu_us": (10,)}
    assert break_even(priced_rows(25, 1, axes), axes) == []
    assert break_even(priced_rows(25, 0), AXES)[0] == BreakEven(
        "op.sum.placement.aicpu.aicpu_us", ("host-value", "aicpu"), {"depth": 2}, None, "aicpu"
    )


def test_that_there_is_no_break_even_is_said_of_a_fixed_alternative_alone():
    both = [row(1, 1, slope * price, way=way, price=price) for way, slope in (("a", 1.0), ("b", 2.0)) for price in (1, 2, 3)]
    assert break_even(both, {"way": ("a", "b"), "price": (1, 2, 3)}) == []


def test_each_other_point_has_its_break_even():
    axes = {**AXES, "depth": (1, 2)}
    assert [one.at for one in break_even(priced_rows(25, 1, axes), axes)] == [{"depth": 1}, {"depth": 2}]


def test_csv_gives_every_figure_back(tmp_path):
    axes = parse_axes(["depth=0..2", "launch.decode.device_us=2000,6000.5"])
    swept = Swept("tiny", axes, list(points(axes)))
    swept.found = dict(sweep(SETUP, swept.points))
    file = tmp_path / "r.csv"
    write_csv(swept, file)
    with file.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    best = front(swept.rows)
    for i, (line, of) in enumerate(zip(lines, swept.rows, strict=True)):
        assert {axis: parse_values(line[axis])[0] for axis in axes} == of["point"]
        assert line["error"] == of.get("error", "")
        assert line["front"] == str(int(i in best))
        idle = {c.removeprefix("idle."): float(v) for c, v in line.items() if c.startswith("idle.") and float(v)}
        assert idle == {cause: share for cause, share in of.get("idle", {}).items() if share}
        for figure in ("step_ms", "tokens_per_s", "latency_ms", "device_busy"):
            assert line[figure] == ("" if of.get(figure) is None else str(of[figure]))


def test_the_plot_is_a_png_and_names_the_front(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no PNG to test")
    file, axes = tmp_path / "p.png", {"depth": (1, 2), "launch.decode.device_us": (2000, 6000, 9000)}
    pareto.png([*WHOLE, {"point": GRID[0], "error": "x"}], axes, file, "tiny")
    assert file.read_bytes()[:4] == b"\x89PNG"


def test_a_point_is_named_by_the_ends_of_its_axes():
    assert pareto.name({"depth": 2, "op.sum.placement.aicpu.aicpu_us": 5}) == "depth=2, aicpu_us=5"
    assert len(set(map(pareto.name, GRID))) == len(list(itertools.chain(GRID)))


# ---- the page about it ----

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "sweep.md").read_text(encoding="utf-8")
COMMANDS = [line.split()[1:] for line in PAGE.splitlines() if line.startswith("    ovsdk sweep") and "--engine" not in line]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[3:]))
def test_the_commands_of_the_page_run(command, capsys, monkeypatch, tmp_path):
    if "--plot" in command:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed: no plot to make")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path))
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--jobs", "1", "--steps", "32"])
    assert not stopped.value.code
    found = re.findall("break-even of .*", capsys.readouterr().out)
    assert all(f"    {line}\n" in PAGE for line in found)
    assert bool(found) == any("aicpu_us=" in word for word in command)


def test_the_page_names_every_axis_and_engine():
    named = set(re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE))
    assert named == {*SETTINGS, "level", "tiling.OP"}
    assert all(f"--engine {engine}" in PAGE for engine in engines.ENGINES if engine != "local")
