"""A report says in one line what a run was, never claims what was not measured, and names the first reason against overlap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovsdk.errors import ConfigError
from ovsdk.report import NO_SPANS, Overlap, Report
from ovsdk.timeline import Timeline
from ovsdk.types import Span

MS = 1_000_000


def periodic(host_ms: int, device_ms: int, hidden_ms: int, launch_ms: int = 1, inside_launch: bool = False) -> Timeline:
    """Steps of plan and launch on one lane; `hidden_ms` of the host's time of each lie within the device time of the step before."""
    spans, period, steps = list[Span](), host_ms + device_ms - hidden_ms, 10
    for k in range(steps):
        plan, launch, end = (k * period + x for x in (0, host_ms - launch_ms, host_ms))
        begin = launch if inside_launch else end
        spans += [Span("host", "plan", k, plan * MS, launch * MS), Span("device", "decode", k, begin * MS, (begin + device_ms) * MS)]
        spans += [Span("host", "launch", k, launch * MS, (begin + device_ms if inside_launch else end) * MS)]
        spans += [Span("host", "retire", k, (begin + device_ms) * MS, (begin + device_ms) * MS)]
    return Timeline(spans, 0, ((steps - 1) * period + host_ms + device_ms) * MS)


def report(timeline: Timeline | None = None, **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "steps": 10, "asks": 11, "depth": 2, "driver": "inline", "backend": "sim", "virtual": True, "asynchronous": True,
        "makespan_s": 4.5223, "stage_s": {"plan": 0.1}, "timeline": timeline,
    }  # fmt: skip
    return Report(**{**fields, **changes})


# ---- one line ----


def test_the_line() -> None:
    got = str(report(periodic(host_ms=4, device_ms=10, hidden_ms=4), overruns=3))
    assert got == (
        "10 steps in 4.52 s on sim (simulated), depth 2, inline: 10.000 ms/step, device busy 96.2 %, "
        "overlap effective: 90 % of host time hidden, overruns 3 rows"
    )


def test_measured_times_are_not_called_simulated() -> None:
    assert "simulated" not in str(report(periodic(4, 10, 4), virtual=False, backend="cpu"))


def test_the_line_of_a_run_without_spans() -> None:
    assert str(report(steps=1, makespan_s=0.0123)) == (
        "1 step in 12.3 ms on sim (simulated), depth 2, inline: 12.300 ms/step, device busy not measured, "
        "overlap not measured: no spans were kept in this run: run it with spans=True"
    )


def test_the_line_of_a_run_without_steps() -> None:
    assert "0 steps in 0 ms on sim (simulated), depth 2, inline: no steps," in str(report(steps=0, makespan_s=0.0))


@given(st.lists(st.text(), max_size=3).map(tuple), st.integers(0, 3), st.sampled_from([None, 0, 1, 7]))
def test_it_is_one_line(notes: tuple[str, ...], steps: int, overruns: int | None) -> None:
    lines = [str(report(line, steps=steps, notes=notes, overruns=overruns)) for line in (None, Timeline([], 0, 0), periodic(4, 10, 4))]
    assert all(len(line.splitlines()) == 1 for line in lines)
    assert all(("overruns" in line) == (overruns is not None) for line in lines if "overruns" not in "".join(notes))


def test_notes_are_told_and_so_is_what_the_timeline_lacks() -> None:
    line = periodic(4, 10, 4)
    partial = Timeline([s for s in line.spans if s.lane == "host" or s.step != 3], line.begin_ns, line.end_ns)
    got = str(report(partial, steps=99, notes=("2 steps failed\nand were abandoned",)))
    assert got.endswith(", 2 steps failed and were abandoned, timeline of the last 10 steps, 1 step without a device time")


# ---- figures ----


def test_step_time_is_that_of_the_steady_state_where_there_is_one() -> None:
    assert report(periodic(4, 10, 4)).step_s == 0.010
    assert report().step_s == pytest.approx(0.45223)
    assert report(steps=0).step_s is None


def test_device_busy_is_measured_or_not_told() -> None:
    line = periodic(4, 10, 0)
    assert report(line).device_busy == pytest.approx(10 / 14)
    assert report(device_busy_s=1.5, makespan_s=3.0).device_busy == 0.5
    assert report().device_busy is None
    host_only = Timeline([s for s in line.spans if s.lane == "host"], line.begin_ns, line.end_ns)
    assert (report(host_only).device_busy, report(host_only).idle) == (None, {})


def test_shares_of_busy_and_idle_are_the_whole() -> None:
    got = report(periodic(4, 10, 0))
    assert got.device_busy is not None
    assert sum(got.idle.values()) + got.device_busy == pytest.approx(1)
    assert got.idle == {"plan": pytest.approx(3 / 14), "launch": pytest.approx(1 / 14)}


def test_plain_numbers_for_json() -> None:
    got = report(periodic(4, 10, 4), overruns=3, notes=("a note",)).as_dict()
    assert json.loads(json.dumps(got)) == got
    assert {k: got[k] for k in ("steps", "asks", "depth", "driver", "backend", "virtual", "overruns", "step_ms", "notes")} == {
        "steps": 10, "asks": 11, "depth": 2, "driver": "inline", "backend": "sim", "virtual": True, "overruns": 3, "step_ms": 10.0,
        "notes": ["a note"],
    }  # fmt: skip
    assert got["overlap"] == {"effective": True, "why": "90 % of host time hidden", "hidden": pytest.approx(0.9)}
    assert (got["device_busy"], got["idle"]) == (
        pytest.approx(100 / 104),
        {"plan": pytest.approx(3 / 104), "launch": pytest.approx(1 / 104)},
    )
    assert report().as_dict()["device_busy"] is None


# ---- overlap ----

SERIAL = periodic(4, 10, 0)
BLOCKS = "the launch blocks: 100 % of device time lies inside the launch stage of its own step"
BOUND = "host-bound: host 12.000 ms, device 10.000 ms a step"
CASES = [
    (periodic(4, 10, 4), {}, True, "90 % of host time hidden"),
    (periodic(12, 10, 9), {}, True, f"68 % of host time hidden, {BOUND}"),
    (SERIAL, {"depth": 1}, False, "depth 1 keeps one step in flight; run with depth=2"),
    (None, {"depth": 1}, False, "depth 1 keeps one step in flight; run with depth=2"),
    (SERIAL, {"asynchronous": "calls fn in submit"}, False, "sim is not asynchronous: calls fn in submit"),
    (periodic(4, 10, 4, inside_launch=True), {}, False, BLOCKS),
    (periodic(12, 10, 0, launch_ms=11), {}, False, f"{BOUND}; 0 % of host time hidden"),
    (SERIAL, {"waits": 9}, False, "the scheduler answered WAIT 9 times in 10 steps; 0 % of host time hidden"),
    (periodic(30, 10, 9), {}, False, "host-bound: host 30.000 ms, device 10.000 ms a step; 27 % of host time hidden"),
    (SERIAL, {}, False, "the device waits most for 'plan', 3.000 ms a step; 0 % of host time hidden"),
    (SERIAL, {"waits": 4}, False, "the device waits most for 'plan', 3.000 ms a step; 0 % of host time hidden"),
    (Timeline([], 0, 5), {}, None, "not measured: the futures of this run have no span_ns"),
    (None, {}, None, f"not measured: {NO_SPANS}"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "changes", "effective", "why"), CASES)
def test_overlap_or_the_first_reason_against_it(line: Timeline | None, changes: dict[str, Any], effective: bool | None, why: str) -> None:
    got = report(line, **changes).overlap
    assert (got.effective, got.why) == (effective, why)
    assert str(got) in str(report(line, **changes))


def test_hidden_is_what_the_timeline_says() -> None:
    line = periodic(12, 10, 9)
    assert report(line).overlap.hidden == line.hidden_ns / sum(line.lane_ns.values())
    assert report(line, depth=1).overlap.hidden == report(line).overlap.hidden
    assert report().overlap == Overlap(None, f"not measured: {NO_SPANS}", None)


def test_a_run_without_host_time_has_nothing_left_to_hide() -> None:
    spans = [Span("host", "launch", 0, 0, 0), Span("device", "decode", 0, 0, 10)]
    assert report(Timeline(spans, 0, 10)).overlap.effective is True


# ---- pictures ----


def test_its_picture_is_the_timelines_and_says_simulated(tmp_path: Path) -> None:
    got = report(periodic(4, 10, 4))
    first, *lanes = got.picture(width=80).splitlines()
    assert first == "depth 2, inline: 10.000 ms/step, device busy 96.2 %"
    assert [line[:10] for line in lanes[:2]] == ["  host   |", "  device |"]
    assert "(simulated)" in lanes[2]
    assert len(lanes[0]) <= 80
    assert "(measured)" in report(periodic(4, 10, 4), virtual=False).picture()


def test_its_trace_says_simulated(tmp_path: Path) -> None:
    report(periodic(4, 10, 4)).perfetto(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["metadata"]["times"] == "simulated"


def test_its_figure_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'ovsdk[plot]'")
    report(periodic(4, 10, 4)).png(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_without_spans_a_picture_says_what_to_do(tmp_path: Path) -> None:
    assert "spans=True" in report().picture()
    for write in (report().png, report().perfetto):
        with pytest.raises(ConfigError, match="spans=True"):
            write(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_fields_are_named_when_it_is_made_and_what_is_large_is_not_shown() -> None:
    with pytest.raises(TypeError):
        Report(10, 11)  # type: ignore[misc]
    shown = repr(report(periodic(4, 10, 4), log=object()))
    assert "Span" not in shown
    assert "object" not in shown
    assert eval(shown, {"Report": Report}) == report()
