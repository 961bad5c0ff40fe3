"""Pictures show what the timeline says: text cell by cell, figures by what stands in them, traces by reading them again."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovsdk import pictures
from ovsdk.errors import ConfigError
from ovsdk.ledger import CLOSED, DEVICE, FINISHED, LAUNCH, NAMES, NEED_DEVICE, PLAN, Ledger
from ovsdk.timeline import Timeline
from ovsdk.types import Span

MS = 1_000_000


def example(depth: int, steps: int = 4, odd: Mapping[int, int] | None = None, virtual: bool | None = True) -> Timeline:
    """plan 1, prepare 2, launch 1, device 6, retire 1 ms; `odd`: step -> how much longer it takes on the device."""
    cost, ledger = dict(zip(NAMES, (1, 2, 1, 0, 6, 1), strict=True)), Ledger(depth)
    now, tail, done, spans = 0, 0, dict[int, int](), list[Span]()
    while (move := ledger.next()) != FINISHED:
        if move == NEED_DEVICE:
            now = max(now, done[ledger.end(DEVICE)])
            continue
        step = ledger.begin(move)
        if move == PLAN and step >= steps:
            ledger.decline(CLOSED)
            continue
        spans.append(Span("host", NAMES[move], step, now * MS, (now + cost[NAMES[move]]) * MS))
        now += cost[NAMES[move]]
        if move == LAUNCH:
            begin = max(now, tail)
            tail = done[step] = begin + cost["device"] + (odd or {}).get(step, 0)
            spans.append(Span("device", "decode", step, begin * MS, tail * MS))
        ledger.end(move)
    return Timeline(spans, 0, now * MS, virtual)


def rows(picture: str) -> dict[str, str]:
    return dict(re.findall(r"^ +(\w+) +\|(.*)\|$", picture, re.M))


# ---- text ----

SERIAL = {"host": "pPPL      rpPPL      rpPPL      rpPPL      r", "device": "....000000.....111111.....222222.....333333."}
OVERLAPPED = {"host": "pPPLpPPL  rpPPL rpPPL r     r", "device": "....000000111111222222333333."}


@pytest.mark.parametrize(("depth", "want"), [(1, SERIAL), (2, OVERLAPPED)])
def test_the_picture_that_everybody_draws(depth: int, want: dict[str, str]) -> None:
    assert rows(pictures.text(example(depth), width=len(want["host"]) + 11)) == want


def test_every_line_of_it() -> None:
    assert pictures.text(example(2), width=40).splitlines() == [
        "  host   |pPPLpPPL  rpPPL rpPPL r     r|",
        "  device |....000000111111222222333333.|",
        "  0.000 to 29.000 ms of 29.000 ms, 1 cell = 1 ms (simulated)",
        "  p plan   P prepare   L launch   r retire   0-9 step mod 10   . device idle",
    ]


def test_several_timelines_share_one_scale() -> None:
    picture = pictures.text([("overlapped", example(2)), ("serial", example(1))], width=55)
    lines = picture.splitlines()
    assert lines[0] == "overlapped"
    assert lines[4] == "serial"
    assert [line.split("|")[1] for line in lines if "|" in line] == [*OVERLAPPED.values(), *SERIAL.values()]


@pytest.mark.parametrize(("virtual", "word"), [(True, "simulated"), (False, "measured"), (None, "origin not stated")])
def test_it_says_where_its_times_come_from(virtual: bool | None, word: str) -> None:
    assert f"({word})" in pictures.text(example(2, virtual=virtual))


def test_of_a_cell_the_longest_stage_wins_if_the_lane_is_busy_in_half_of_it() -> None:
    """Cells of 10: retire dominates the first although three others are in it; the second is mostly empty; the third just half full."""
    spans = [("plan", 0, 3), ("prepare", 3, 5), ("retire", 5, 9), ("launch", 9, 10), ("plan", 12, 16), ("plan", 20, 23), ("amend", 23, 25)]
    line = Timeline([Span("host", what, 0, begin, end) for what, begin, end in spans], 0, 100)
    assert rows(pictures.text(line, width=21))["host"] == "r p" + 7 * " "


word = st.sampled_from(["plan", "prepare", "launch", "amend", "finish", "retire", "ask", "idle ask", "wait device"])
host_span = st.builds(
    lambda what, k, b, n: Span("host", what, k, b, b + n), word, st.integers(0, 12), st.integers(0, 40), st.integers(0, 9)
)
device_span = st.builds(lambda k, b, n: Span("device", "decode", k, b, b + n), st.integers(0, 12), st.integers(0, 40), st.integers(0, 9))


@given(st.lists(host_span, max_size=9), st.lists(device_span, max_size=9), st.integers(10, 40))
def test_a_cell_per_nanosecond_shows_each_nanosecond(host: list[Span], device: list[Span], length: int) -> None:
    line = Timeline([*host, *device], 0, length)
    got = rows(pictures.text(line, width=length + 11, steps=None))
    letters = {**pictures.LETTERS, "wait device": " "}
    for lane in line.lanes:
        want = ["." if lane == "device" else " "] * length
        for span in line.lanes[lane]:
            for t in range(span.begin_ns, min(span.end_ns, length)):
                want[t] = str(span.step % 10) if lane == "device" else letters[span.what]
        assert got[lane] == "".join(want)


@given(st.integers(21, 200), st.integers(1, 40), st.integers(1, 3))
def test_a_picture_is_as_wide_as_asked(width: int, steps: int, depth: int) -> None:
    lines = pictures.text(example(depth, steps), width=width).splitlines()
    assert {len(line) for line in lines if "|" in line} == {width}


def test_a_long_run_is_shown_by_steady_steps_of_usual_length() -> None:
    """Steps that took longer or shorter are not in it, neither filling nor draining is; what is shown are four periods."""
    line = example(2, steps=40, odd={4: 50, 20: -1})
    begin, end = pictures.window(line)
    shown = {span.step for span in line.launched if span.begin_ns < end and begin < span.end_ns}
    assert end - begin == pictures.SHOWN * 6 * MS
    assert min(shown) > 4
    assert max(shown) < 39
    assert 20 not in shown


@pytest.mark.parametrize(("steps", "whole"), [(2 * pictures.SHOWN, True), (2 * pictures.SHOWN + 1, False)])
def test_a_short_run_is_shown_whole(steps: int, whole: bool) -> None:
    line = example(2, steps)
    assert (pictures.window(line) == (line.begin_ns, line.end_ns)) is whole


def test_the_steps_asked_for_are_shown() -> None:
    line = example(1, steps=40)
    assert pictures.window(line, range(10, 12)) == (110 * MS, 132 * MS)
    assert set(rows(pictures.text(line, steps=range(10, 12)))["device"]) == {".", "0", "1"}


def test_steps_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no span of range\(90, 95\) .* it has steps 0 to 3"):
        pictures.text(example(1), steps=range(90, 95))


def test_a_width_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"width=20 .* at least 21"):
        pictures.text(example(1), width=20)


def test_nothing_to_draw_is_refused_and_an_empty_run_is_drawn() -> None:
    with pytest.raises(ConfigError, match="no timeline"):
        pictures.text([])
    assert rows(pictures.text(Timeline([], 7, 7), width=25))["device"] == "."


def test_idle_table_tells_each_cause_and_the_busy_time() -> None:
    assert pictures.idle_table(example(1)).splitlines() == [
        "  idle: plan                1.000 ms/step    9.1 %",
        "  idle: prepare             2.000 ms/step   18.2 %",
        "  idle: launch              1.000 ms/step    9.1 %",
        "  idle: retire              0.750 ms/step    6.8 %",
        "  idle: no work             0.250 ms/step    2.3 %",
        "  busy                      6.000 ms/step   54.5 %",
    ]
    assert pictures.idle_table(Timeline([], 0, 0)) == "  busy                      0.000 ms/step    0.0 %"


# ---- PNG ----


def drawn(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> Any:
    """The figure that `png` would write."""
    figure_module = pytest.importorskip("matplotlib.figure", reason="needs matplotlib: pip install 'ovsdk[plot]'")
    kept = []
    monkeypatch.setattr(figure_module.Figure, "savefig", lambda self, *_, **__: kept.append(self))
    pictures.png(*arguments, "unused.png", **options)
    return kept[0]


def test_a_png_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'ovsdk[plot]'")
    path = tmp_path / "run.png"
    pictures.png([("depth 1", example(1)), ("depth 2", example(2))], path, title="four steps")
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(head[16:20], "big") == 1800


def test_a_figure_has_a_row_per_lane_a_number_per_step_and_a_name_per_long_bubble(monkeypatch: pytest.MonkeyPatch) -> None:
    (axes,) = drawn(monkeypatch, example(1)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["host", "device"]
    texts = Counter(text.get_text() for text in axes.texts)
    assert texts == Counter({"0": 1, "1": 1, "2": 1, "3": 1, "prepare": 4})
    bars = [(round(bar.get_x()), round(bar.get_width())) for bar in axes.patches if bar.get_hatch() is None and bar.get_y() > 0.5]
    assert bars == [(4, 6), (15, 6), (26, 6), (37, 6)]


def test_what_a_server_does_in_no_time_to_speak_of_is_seen_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    line = example(1)
    copies = [Span("server d2h", "copy", step, ms * 1_000_000, ms * 1_000_000 + 1) for step, ms in enumerate((10, 21, 32))]
    (axes,) = drawn(monkeypatch, Timeline([*line.spans, *copies], line.begin_ns, line.end_ns)).axes
    pixel_ms = axes.get_xlim()[1] / 1800
    assert [bar.get_width() > pixel_ms for bar in axes.patches if bar.get_y() > 1.5] == [True] * 3


def test_neighbours_on_the_device_differ_and_nothing_is_drawn_outside_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    (axes,) = drawn(monkeypatch, example(2, steps=40), steps=range(10, 14)).axes
    left, right = axes.get_xlim()
    assert all(left <= bar.get_x() < bar.get_x() + bar.get_width() <= right + 1e-9 for bar in axes.patches)
    colors = [bar.get_facecolor() for bar in axes.patches if bar.get_y() > 0.5]
    assert len(colors) > 4
    assert all(a != b for a, b in pairwise(colors))


def test_hatched_bubbles_have_the_colour_of_their_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    colors = pytest.importorskip("matplotlib.colors", reason="needs matplotlib: pip install 'ovsdk[plot]'")
    (axes,) = drawn(monkeypatch, example(2)).axes
    hatched = [(round(bar.get_x()), colors.to_hex(bar.get_edgecolor()), bar.get_hatch()) for bar in axes.patches if bar.get_hatch()]
    causes = [(0, "plan"), (1, "prepare"), (3, "launch")]
    assert hatched == [*((x, pictures.COLORS[cause], "/////") for x, cause in causes), (28, pictures.IDLE_COLOR, "....")]


def test_figures_of_several_timelines_share_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(monkeypatch, [("depth 1", example(1)), ("depth 2", example(2, virtual=False))], title="four steps")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["depth 1 (simulated)", "depth 2 (measured)"]
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, 44.0)}
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["plan", "prepare", "launch", "retire", "device (step)", "device idle (colour: cause)", "no work"]


def test_without_matplotlib_the_message_has_the_pip_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'ovsdk[plot]'")):
        pictures.png(example(1), tmp_path / "run.png")
    assert list(tmp_path.iterdir()) == []


# ---- Perfetto ----


def traced(line: Timeline, tmp_path: Path) -> dict[str, Any]:
    pictures.perfetto(line, tmp_path / "run.json")
    trace: dict[str, Any] = json.loads((tmp_path / "run.json").read_text())
    return trace


def tracks(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    return {name: [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == tid] for tid, name in names.items()}


def test_a_trace_holds_every_span_in_microseconds(tmp_path: Path) -> None:
    line = example(2)
    found = tracks(traced(line, tmp_path))
    assert list(found) == ["host", "device", "idle by cause"]
    for lane in ("host", "device"):
        got = [(e["name"], e["args"]["step"], e["ts"], e["ts"] + e["dur"]) for e in found[lane]]
        assert got == [(s.what, s.step, s.begin_ns / 1000, s.end_ns / 1000) for s in line.lanes[lane]]
    idle = Counter[str]()
    for event in found["idle by cause"]:
        idle[event["name"]] += round(event["dur"] * 1000)
    assert idle == line.idle_ns


def test_times_in_a_trace_count_from_the_begin_of_the_run(tmp_path: Path) -> None:
    line = Timeline([Span("host", "plan", 0, 10**15 + 1, 10**15 + 2501)], 10**15, 10**15 + 9000)
    (event,) = tracks(traced(line, tmp_path))["host"]
    assert (event["ts"], event["dur"]) == (0.001, 2.5)


@pytest.mark.parametrize(("virtual", "word"), [(True, "simulated"), (False, "measured"), (None, "origin not stated")])
def test_a_trace_says_where_its_times_come_from(virtual: bool | None, word: str, tmp_path: Path) -> None:
    trace = traced(example(2, virtual=virtual), tmp_path)
    assert trace["metadata"]["times"] == word
    assert [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"] == [f"ovsdk ({word})"]


def test_an_arrow_leads_from_each_launch_to_its_device_span(tmp_path: Path) -> None:
    spans = [
        *(Span("host", what, 0, begin, begin + 10) for what, begin in (("launch", 0), ("amend", 40), ("finish", 50))),
        *(Span("device", kind, 0, begin, begin + 10) for kind, begin in (("a", 15), ("b", 20), ("c", 60))),
        Span("device", "stray", 7, 80, 85),
    ]
    trace = traced(Timeline(spans, 0, 90), tmp_path)
    slices = {(e["tid"], e["ts"]): e["name"] for e in trace["traceEvents"] if e["ph"] == "X"}
    ends: dict[int, dict[str, str]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            ends.setdefault(event["id"], {})[event["ph"]] = slices[event["tid"], event["ts"]]
    assert sorted((end["f"], end["s"]) for end in ends.values()) == [("a", "launch"), ("b", "launch"), ("c", "finish")]


@given(st.lists(device_span, max_size=12), st.lists(host_span, max_size=12))
def test_no_two_slices_of_a_track_cross(tmp_path_factory: pytest.TempPathFactory, device: list[Span], host: list[Span]) -> None:
    found = tracks(traced(Timeline([*device, *host], 0, 60), tmp_path_factory.mktemp("trace")))
    for slices in found.values():
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-9 for a, b in pairwise(slices))
    assert sum(len(slices) for name, slices in found.items() if name.startswith("device")) == len(device)
