"""The benchmarks' own logic: statistics, the refusal of what cannot be, the JSON object, and that what is compared does the
same work. No figure is measured here.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ovsdk

from .toys import Count, Echo

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))  # as for a script that runs there
table, trial, loops, cost, overhead = map(importlib.import_module, ("_table", "_trial", "_loops", "_driver_cost", "overhead"))
sleep_device, language_model = map(importlib.import_module, ("_sleep_device", "_language_model"))
Row, Section, Impossible = table.Row, table.Section, table.Impossible

times = st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=200)


# ---- statistics ----


@given(times, st.floats(0, 1))
def test_quantile_is_numpy_s(values: list[float], share: float) -> None:
    assert table.quantile(values, share) == pytest.approx(float(numpy.quantile(values, share)), rel=1e-9, abs=1e-6)


@given(times)
def test_a_median_row_has_median_and_half_the_distance_of_quartiles(values: list[float]) -> None:
    row = table.median("x", values, "ms")
    low, middle, high = numpy.quantile(values, [0.25, 0.5, 0.75])
    assert (row.value, row.spread) == (pytest.approx(middle), pytest.approx((high - low) / 2, abs=1e-6))


def test_a_tail_of_few_values_is_called_their_highest() -> None:
    assert table.tail("gap", range(99), "us") == Row("gap, highest of 99", 98, "us")
    assert table.tail("gap", range(101), "us") == Row("gap, 99th percentile of 101", 99, "us")


def test_variants_alternate_and_the_first_round_is_dropped() -> None:
    calls: list[str] = []

    def call(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = table.alternate({"a": lambda: call("a"), "b": lambda: call("b")}, rounds=2, before=lambda: calls.append("before"))
    assert calls == ["before", "a", "b"] * 3
    assert results == {"a": [5, 8], "b": [6, 9]}


# ---- what cannot be ----


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_only_what_beats_the_ideal_by_more_than_the_clock_is_refused(ideal: int, more: int) -> None:
    table.refuse_faster("x", ideal + more, ideal)
    table.refuse_faster("x", ideal - table.RESOLUTION_NS, ideal)
    with pytest.raises(Impossible, match=r"inline: .*the measurement is wrong"):
        table.refuse_faster("inline", ideal - table.RESOLUTION_NS - 1 - more, ideal)


def fifo(launches: list[int], gaps: list[int]) -> list[tuple[int, int]]:
    """What a device stamps that does one launch at a time."""
    spans, now = [], 7
    for duration, gap in zip(launches, gaps, strict=False):
        spans.append((now, now + duration))
        now += duration + gap
    return spans


def durations(shortest: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(shortest, 10**7), min_size=2, max_size=30)


@given(durations(1), durations(0))
def test_a_step_of_a_true_device_is_never_refused(launches: list[int], gaps: list[int]) -> None:
    spans = fifo(launches, gaps)
    seen = trial.from_spans(reversed(spans), host_ns=[0])
    assert list(seen.gaps_ns) == gaps[: len(spans) - 1]
    assert seen.step_ns == pytest.approx(seen.device_ns + sum(seen.gaps_ns) / len(seen.gaps_ns))
    assert [row.name for row in trial.step_rows("x", [seen], trial.ideal([seen]))] == ["x: step", "x: step / ideal"]


def test_two_launches_at_once_are_refused() -> None:
    with pytest.raises(Impossible, match="two at once, for 1 ns"):
        trial.from_spans([(0, 10), (9, 20)])


def test_a_run_that_beats_the_fastest_device_or_host_is_refused() -> None:
    slow, fast = trial.from_spans([(0, 100), (100, 200)], host_ns=[50]), trial.from_spans([(0, 60), (70, 130)])
    trial.step_rows("fast", [fast], trial.ideal([slow, fast]))
    with pytest.raises(Impossible, match="fast"):
        trial.step_rows("fast", [fast], trial.ideal([slow]))
    with pytest.raises(Impossible, match="fast"):
        trial.step_rows("fast", [fast], trial.ideal([slow._replace(host_ns=(81, 80)), fast]))


def test_runs_that_gave_other_tokens_are_not_compared() -> None:
    one, other = (language_model.Outcome(None, tokens) for tokens in ("1a", "2b"))
    assert language_model.same_tokens({"cpu": [one, one], "thread": [one]}) == "1a"
    with pytest.raises(Impossible, match="other tokens"):
        language_model.same_tokens({"cpu": [one], "thread": [one, other]})


@pytest.mark.parametrize(("host_ms", "aimed"), [(3.9, True), (4.0, False)])
def test_gaps_have_a_target_only_where_the_host_is_faster_than_the_device(host_ms: float, aimed: bool) -> None:
    seen = trial.from_spans(fifo([4_000_000] * 101, [5000] * 101), host_ns=[3_900_000] * 99 + [round(host_ms * 1e6)])
    names = ("serial (depth 1)", *sleep_device.DRIVERS, *sleep_device.OTHER_DEVICES)
    shown = list(sleep_device.rows("case", {name: [seen] for name in names}))
    gaps = {row.name: row.target for row in shown if isinstance(row, Row) and "device gap" in row.name}
    ours = {name: target for name, target in gaps.items() if name.startswith(("case, inline:", "case, threads:"))}
    assert list(ours.values()) == ([35.0, 170.0] if aimed else [None, None]) * 2
    assert {gaps[name] for name in gaps.keys() - ours.keys()} == {None}
    assert any("no target" in str(row) for row in shown) is not aimed


def test_a_gap_for_which_the_device_had_to_wait_for_the_host_does_not_count() -> None:
    seen = trial.from_spans(fifo([4_000_000] * 4, [5000, 999_000, 7000, 0]), host_ns=[3_000_000, 4_990_000, 3_999_000])
    share, _, median, highest = sleep_device.gap_rows("x", [seen], sleep_device.NO_TARGETS)
    assert (round(share.value), median.value, highest.value) == (67, 6.0, 7.0)


def test_the_ideal_of_a_driver_is_that_of_each_of_its_steps() -> None:
    seen = trial.from_spans(fifo([4_000_000] * 5, [0, 2_000_000, 0, 0, 0]), host_ns=[1_000_000, 6_000_000, 4_000_000, 1_000_000])
    names = ("serial (depth 1)", *sleep_device.DRIVERS, *sleep_device.OTHER_DEVICES)
    shown = {row.name: row for row in sleep_device.rows("case", {name: [seen] for name in names}) if isinstance(row, Row)}
    row = shown["case, threads: step / ideal, with S as it was in each step"]
    assert (row.value, row.target) == (pytest.approx(1.0), 1.05)
    assert shown["case, threads: step / ideal"].value == pytest.approx(18 / 16)


def test_host_work_counts_for_the_launch_during_which_it_is_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts calls of `compute`: retire(k-1), plan(k+1) and prepare(k+1) while k runs."""
    clock = [0]
    monkeypatch.setattr(sleep_device.time, "thread_time_ns", lambda: clock[0])
    monkeypatch.setattr(sleep_device, "compute", lambda turns: clock.__setitem__(0, clock[0] + turns))
    busy = sleep_device.Busy(6, 10.0, int, 0)
    busy.turns = {"plan": 1, "prepare": 10, "retire": 100}
    ovsdk.run(busy, busy, "thread", depth=2)
    assert busy.host_ns(0) == (11, 111, 111, 111, 111)
    assert busy.host_ns(2) == (111, 111, 111)


@pytest.mark.parametrize("driver", ["inline", "threads"])
def test_sending_is_host_work_as_far_as_it_computes(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    """The thread's own clock counts, which stands still while it waits for the GIL, though its launch stage goes on."""
    clock = [0]
    monkeypatch.setattr(sleep_device.time, "thread_time_ns", lambda: clock[0])
    monkeypatch.setattr(sleep_device, "compute", lambda turns: None)

    class Slow(sleep_device.Sending):
        def open(self, backend: Any) -> None:
            submit = backend.stream().submit
            self._stream = SimpleNamespace(submit=lambda launch: (clock.__setitem__(0, clock[0] + 7), submit(launch))[1])

    busy = Slow(6, 10.0, int, 0)
    report = ovsdk.run(busy, busy, "thread", depth=2, driver=driver)
    assert busy.host_ns(1) == (7, 7, 7, 7)
    assert len(trial.from_report(report, 1).gaps_ns) == 4


def test_calibration_scales_the_work_to_the_time_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = trial.from_spans([(0, 1), (2, 3)], host_ns=[9_000_000, 7_000_000, 7_000_000])
    monkeypatch.setattr(sleep_device, "driven", lambda case, device, work, driver, depth: seen)
    monkeypatch.setattr(sleep_device, "turns_per_ms", lambda: 1000.0)
    case = sleep_device.Case(3.5, sleep_device.EFFORT[True])
    assert case.turns == 3500
    case.calibrate(None, None)
    assert case.turns == 1750
    assert case.busy(None).turns == {"plan": 700, "prepare": 700, "retire": 350}


def test_host_and_device_time_are_those_of_the_steps_that_count() -> None:
    """On a virtual clock they are known: 3 + 5 + 2 us of host work and 40 us of device a step; the first two steps do not count."""
    report = ovsdk.run(Count(20), Echo(), simulator(plan=3, prepare=5, retire=2, device=40), depth=2)
    seen = trial.from_report(report, warm=2)
    assert (seen.device_ns, seen.step_ns, seen.gaps_ns) == (40_000, 40_000, (0,) * 17)
    assert seen.host_ns == (10_000,) * 18


def test_host_time_of_two_threads_is_not_counted() -> None:
    report = ovsdk.run(Count(20), Echo(), simulator(plan=3, prepare=5, retire=2, device=40), driver="threads")
    assert trial.from_report(report, warm=2).host_ns == ()


def simulator(plan: int, prepare: int, retire: int, device: int) -> Any:
    prices = {
        "schema": 1,
        "stage": {"plan_us": plan, "prepare_us": prepare, "launch_us": 0, "retire_us": retire},
        "launch": {"echo": {"device_us": device}},
    }
    return ovsdk.open_backend("sim", prices=prices)


# ---- what is compared does the same ----


@pytest.mark.parametrize("loop", [loops.direct, loops.two_threads, loops.launch_late, loops.on_asyncio])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 17])
def test_every_loop_does_what_a_run_does(loop: Any, steps: int) -> None:
    expected, seen = Count(steps), Count(steps)
    with ovsdk.open_backend("thread") as device:
        ovsdk.run(expected, Echo(), device)
        stream = trial.Recording(device.stream())
        loop(seen, Echo(), stream)
    assert seen.seen == expected.seen
    assert len(stream.futures) == steps
    if loop is not loops.launch_late:  # that one plans a step with one result less
        assert seen.trace == expected.trace


@pytest.mark.parametrize("name", cost.variants(1))
def test_every_driver_and_loop_of_the_cost_table_does_all_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    retired: list[int] = []
    monkeypatch.setattr(cost.Nothing, "retire", lambda self, step, batch, result: retired.append(step))
    cost.variants(20)[name]()
    assert retired == list(range(20))


# ---- the command ----

ROWS = [Row("fast", 1.0, "us", 1.0, 0.25), Row("slow", 1.00001, "us", 1.0), Row("peer", 7.0, "us"), Row("skipped: no torch", None, "")]


def run(capsys: pytest.CaptureFixture[str], rows: list[Any], *arguments: str) -> tuple[int, str, str]:
    code = table.main("About.", {"a": Section("A table", lambda quick: iter(rows))}, arguments)
    return code, *capsys.readouterr()


def test_json_is_one_object_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, ["a remark", *ROWS], "--json")
    assert json.loads(out) == {
        "rows": [
            {"name": "fast", "value": 1.0, "unit": "us", "target": 1.0, "ok": True},
            {"name": "fast, spread", "value": 0.25, "unit": "us", "target": None, "ok": None},
            {"name": "slow", "value": 1.0, "unit": "us", "target": 1.0, "ok": False},
            {"name": "peer", "value": 7.0, "unit": "us", "target": None, "ok": None},
            {"name": "skipped: no torch", "value": None, "unit": "", "target": None, "ok": None},
        ]
    }
    assert code == 1
    assert "a remark" in err


def test_people_get_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, ["a remark", *ROWS])
    assert code == 1
    assert out.startswith("machine: ")
    assert "load average" in out
    assert "(a) A table\na remark\n" in out
    assert [" ".join(text.split()) for text in out.splitlines() if text.startswith(("fast", "slow", "peer"))] == [
        "fast 1.000 ± 0.250 us at most 1 ok",
        "slow 1.000 us at most 1 MISSED",
        "peer 7.000 us",
    ]


def test_all_targets_met_is_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, [ROWS[0], *ROWS[2:]])[0] == 0


def test_a_refused_result_fails_and_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def measure(quick: bool) -> Iterator[Any]:
        table.refuse_faster("inline", 1.0, 4e6)
        yield Row("inline", 1.0, "ms")

    assert table.main("About.", {"a": Section("A table", measure)}, ["--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "refused: inline: 0.000001 ms beats the ideal, 4.000000 ms" in err


def test_only_and_quick_reach_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    def measure(quick: bool) -> Iterator[Any]:
        yield Row("quick" if quick else "full", 1.0, "")

    sections = {key: Section(key, measure) for key in "abc"}
    assert table.main("About.", sections, ["--only", "b,c", "--quick", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["quick", "quick"]
    with pytest.raises(SystemExit, match="2"):
        table.main("About.", sections, ["--only", "a,z"])
    assert "'z' unknown; there are a, b, c" in capsys.readouterr().err


def test_overhead_has_its_four_tables() -> None:
    assert list(overhead.SECTIONS) == ["a", "b", "c", "d"]
