"""A timeline to look at: text for a terminal, PNG for a page, and trace events for ui.perfetto.dev. Nothing is computed here.

A long run is shown by a few steady steps of usual length. Several timelines in one picture share one scale.
Every picture says whether its times are measured or simulated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .timeline import ASKS, DEVICE, NO_WORK, STAGES, Idle, Timeline, causes
from .types import TILING_SYNC, Span

Timelines = Timeline | Sequence[tuple[str, Timeline]]
"""One timeline, or several with their titles."""
Window = tuple[int, int]
"""Begin and end in ns."""
Shown = tuple[str, Timeline, Window]
"""Title, timeline, and what of it is shown."""

LETTERS = dict(zip(STAGES, "pPLafr", strict=True)) | dict.fromkeys(ASKS, "p") | {TILING_SYNC: "s"}
SHOWN = 4
"""Steps shown of a long run; a run of up to twice as many is shown whole."""

COLORS = {
    "plan": "#4477aa",
    "prepare": "#66ccee",
    "launch": "#228833",
    "amend": "#ccbb44",
    "finish": "#aa3377",
    "retire": "#ee6677",
    TILING_SYNC: "#bbbbbb",
}
"""Paul Tol's "bright" scheme, which colour-blind readers can tell apart."""
SERVER_COLOR = "#999933"
ASK_COLOR, IDLE_COLOR, DEVICE_COLORS = "#aabbcc", "#777777", ("#334455", "#667788")
NARROWEST = 1 / 1200
"""Of a picture's width: what servers do is often shorter than a pixel, and would show here and there only."""


def window(timeline: Timeline, steps: range | None = None) -> Window:
    """What to show: these steps, or a short run whole, or the first `SHOWN` steady steps of median length.

    Raises ConfigError if the timeline has none of the steps.
    """
    if steps is not None:
        return _window_of(timeline, steps)
    ends = timeline.steady_ns
    lengths = sorted((end - begin, begin) for begin, end in zip(ends, ends[SHOWN:], strict=False))
    if timeline.steps <= 2 * SHOWN or not lengths:
        return timeline.begin_ns, timeline.end_ns
    usual = lengths[len(lengths) // 2][0]
    length, begin = next(window for window in lengths if window[0] == usual)
    return begin, begin + length


def _window_of(timeline: Timeline, steps: range) -> Window:
    spans = [span for span in timeline.spans if span.step in steps]
    if not spans:
        raise ConfigError(
            f"no span of {steps!r} is in this timeline; it has steps {min(timeline.stages, default=0)} to {max(timeline.stages, default=0)}"
        )
    return max(timeline.begin_ns, min(span.begin_ns for span in spans)), min(timeline.end_ns, max(span.end_ns for span in spans))


def _stack(timelines: Timelines, steps: range | None) -> list[Shown]:
    titled = [("", timelines)] if isinstance(timelines, Timeline) else timelines
    if not titled:
        raise ConfigError("no timeline to draw; give one Timeline, or at least one (title, timeline)")
    return [(title, timeline, window(timeline, steps)) for title, timeline in titled]


# ---- text ----


def text(timelines: Timelines, width: int = 100, steps: range | None = None) -> str:
    """A picture of `width` characters: a row per lane. Of what a cell holds the longest is drawn, if the lane is busy in half of it.

    Raises ConfigError if `width` leaves no room.
    """
    stack = _stack(timelines, steps)
    label = max(len(lane) for _, timeline, _ in stack for lane in timeline.lanes)
    cells = width - label - 5
    if cells < 10:
        raise ConfigError(f"width={width} leaves no room for a picture; allowed: at least {label + 15}")
    cell_ns = max(1, *(end - begin for *_, (begin, end) in stack)) / cells
    lines = [line for title, timeline, shown in stack for line in _rows(title, timeline, shown, cell_ns, label)]
    return "\n".join([*lines, _legend(timeline for _, timeline, _ in stack)])


def _rows(title: str, timeline: Timeline, shown: Window, cell_ns: float, label: int) -> Iterator[str]:
    if title:
        yield title
    for lane in timeline.lanes:
        yield f"  {lane:{label}} |{_row(timeline, lane, shown, cell_ns)}|"
    begin, end = (ns - timeline.begin_ns for ns in shown)
    yield f"  {begin / 1e6:.3f} to {end / 1e6:.3f} ms of {_ms(timeline):.3f} ms, 1 cell = {cell_ns / 1e6:.3g} ms ({timeline.origin})"


def _row(timeline: Timeline, lane: str, shown: Window, cell_ns: float) -> str:
    begin, end = shown
    cells: list[dict[str, float]] = [{} for _ in range(max(1, round((end - begin) / cell_ns)))]
    for span in timeline.lanes[lane]:
        symbol = str(span.step % 10) if lane == DEVICE else LETTERS.get(span.what)
        if symbol and span.begin_ns < end and begin < span.end_ns:
            _fill(cells, symbol, (span.begin_ns - begin) / cell_ns, (span.end_ns - begin) / cell_ns)
    blank = "." if lane == DEVICE else " "
    return "".join(max(cell, key=cell.__getitem__) if sum(cell.values()) >= 0.5 - 1e-6 else blank for cell in cells)


def _fill(cells: list[dict[str, float]], symbol: str, begin: float, end: float) -> None:
    """Add what lies in each cell, in cells."""
    for i in range(max(0, int(begin)), min(len(cells), int(end) + 1)):
        share = min(end, i + 1) - max(begin, i)
        if share > 0:
            cells[i][symbol] = cells[i].get(symbol, 0.0) + share


def _legend(timelines: Iterable[Timeline]) -> str:
    seen = {span.what for timeline in timelines for lane in timeline.lanes for span in timeline.lanes[lane] if lane != DEVICE}
    stages = [f"{LETTERS[stage]} {stage}" for stage in (*STAGES, TILING_SYNC) if stage in seen]
    return "  " + "   ".join([*stages, "0-9 step mod 10", ". device idle"])


def idle_table(timeline: Timeline) -> str:
    """A line per cause of idle: ms per step and share of the run; then the device's busy time likewise."""
    total, steps = timeline.end_ns - timeline.begin_ns, max(1, timeline.steps)
    rows = [*((f"idle: {cause}", timeline.idle_ns[cause]) for cause in causes(timeline)), ("busy", timeline.busy_ns)]
    return "\n".join(f"  {what:20} {ns / steps / 1e6:10.3f} ms/step {100 * ns / max(1, total):6.1f} %" for what, ns in rows)


def _ms(timeline: Timeline) -> float:
    return (timeline.end_ns - timeline.begin_ns) / 1e6


# ---- PNG ----


def png(timelines: Timelines, path: str | os.PathLike[str], title: str = "", steps: range | None = None) -> None:
    """Write a figure: a row per lane, stages in colour, device spans with their step, idle time hatched and named by its cause.

    Raises ConfigError without matplotlib.
    """
    _figure(_stack(timelines, steps), title).savefig(path, format="png")


def _figure(stack: list[Shown], title: str) -> Any:
    """A panel per timeline, one above the other, from the begin of its window, on one scale."""
    rows = [len(timeline.lanes) + len(timeline.servers) for _, timeline, _ in stack]
    figure = _matplotlib("figure").Figure(figsize=(12, 1.1 + sum(0.75 + 0.5 * n for n in rows)), dpi=150, layout="constrained")
    panels = figure.subplots(len(stack), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": [n + 0.5 for n in rows]})[:, 0]
    longest_ms = max(1, *(end - begin for *_, (begin, end) in stack)) / 1e6
    for axes, (name, timeline, shown) in zip(panels, stack, strict=True):
        _panel(axes, timeline, shown, longest_ms)
        axes.set_title(f"{name or title} ({timeline.origin})".strip(), loc="left", fontsize=10, fontweight="bold")
    panels[-1].set_xlabel("ms")
    panels[-1].set_xlim(0, longest_ms)
    if title and stack[0][0]:
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    figure.legend(
        handles=_keys(stack), loc="outside lower center", ncols=10, frameon=False, fontsize=9, columnspacing=1.4, handlelength=1.6
    )
    return figure


def _matplotlib(module: str) -> Any:
    try:
        return import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise ConfigError("a PNG needs matplotlib, which is not installed here: pip install 'ovsdk[plot]'") from error


def _panel(axes: Any, timeline: Timeline, shown: Window, longest_ms: float) -> None:
    """One timeline: lanes from top to bottom."""
    lanes = list(timeline.lanes)
    for row, lane in enumerate(lanes):
        draw = _draw_device if lane == DEVICE else _draw_stage
        for span, left, length in _visible(timeline.lanes[lane], shown):
            draw(axes, row, span, left, length, length / longest_ms)
    for piece, left, length in _visible(timeline.idle, shown):
        _draw_idle(axes, lanes.index(DEVICE), piece, left, length, length / longest_ms)
    for row, spans in enumerate(timeline.servers.values(), len(lanes)):
        for _, left, length in _visible(spans, shown):
            axes.barh(row, max(length, NARROWEST * longest_ms), left=left, height=0.4, color=SERVER_COLOR, linewidth=0)
    lanes += timeline.servers
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _visible(pieces: Iterable[Any], shown: Window) -> Iterator[tuple[Any, float, float]]:
    """What lies in the window: the piece, where it begins in ms from the window's begin, and its length in ms."""
    begin, end = shown
    for piece in pieces:
        left, right = max(begin, piece.begin_ns), min(end, piece.end_ns)
        if left < right:
            yield piece, (left - begin) / 1e6, (right - left) / 1e6


def _draw_stage(axes: Any, row: int, span: Span, left: float, length: float, share: float) -> None:
    color = ASK_COLOR if span.what in ASKS else COLORS.get(span.what)
    if color is not None:
        axes.barh(row, length, left=left, height=0.74, color=color, edgecolor="white", linewidth=0.4 if share > 0.004 else 0)


def _draw_device(axes: Any, row: int, span: Span, left: float, length: float, share: float) -> None:
    axes.barh(
        row, length, left=left, height=0.74, color=DEVICE_COLORS[span.step % 2], edgecolor="white", linewidth=0.4 if share > 0.004 else 0
    )
    if share > 0.009 * len(str(span.step)):
        axes.text(left + length / 2, row, str(span.step), ha="center", va="center", color="white", fontsize=9, fontweight="bold")


def _draw_idle(axes: Any, row: int, piece: Idle, left: float, length: float, share: float) -> None:
    axes.barh(row, length, left=left, height=0.74, **_hatched(piece.cause))
    if share > 0.0062 * len(piece.cause):
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
        axes.text(left + length / 2, row, piece.cause, ha="center", va="center", fontsize=8, bbox=box)


def _hatched(cause: str) -> dict[str, Any]:
    hatch = "...." if cause == NO_WORK else "/////"
    return {"facecolor": "white", "edgecolor": COLORS.get(cause, IDLE_COLOR), "hatch": hatch, "linewidth": 0}


def _keys(stack: list[Shown]) -> list[Any]:
    """The legend: what is to be seen, in stage order."""
    patch = _matplotlib("patches").Patch
    spans = [span for _, timeline, shown in stack for lane in timeline.lanes.values() for span, *_ in _visible(lane, shown)]
    idle = {piece.cause for _, timeline, shown in stack for piece, *_ in _visible(timeline.idle, shown)}
    seen = {span.what for span in spans if span.lane != DEVICE}
    keys = [patch(color=color, label=stage) for stage, color in COLORS.items() if stage in seen]
    keys += [patch(color=ASK_COLOR, label="ask, no batch")] if seen & set(ASKS) else []
    keys += [patch(color=DEVICE_COLORS[0], label="device (step)")] if any(span.lane == DEVICE for span in spans) else []
    keys += [patch(**_hatched(""), label="device idle (colour: cause)")] if idle - {NO_WORK} else []
    return [*keys, patch(**_hatched(NO_WORK), label="no work")] if NO_WORK in idle else keys


# ---- Perfetto ----


def perfetto(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write Chrome trace events, which ui.perfetto.dev and chrome://tracing open: stages, waits, device spans, an arrow from
    each launch to its device span, and the causes of idle time. Times are microseconds from the run's begin.
    """
    trace = {
        "traceEvents": list(_events(timeline)),
        "displayTimeUnit": "ms",
        "metadata": {"source": "ovsdk", "times": timeline.origin, "steps": timeline.steps},
    }
    Path(path).write_text(json.dumps(trace), encoding="utf-8")


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    tracks = list(_tracks(timeline))
    yield {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"ovsdk ({timeline.origin})"}}
    for thread, (name, spans) in enumerate(tracks, 1):
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": thread, "args": {"sort_index": thread}}
        for span in spans:
            args = {"step": span.step}
            yield {
                "ph": "X",
                "name": span.what,
                "cat": name,
                "dur": _us(span.end_ns - span.begin_ns),
                "args": args,
                **_at(timeline, thread, span),
            }
    yield from _arrows(timeline, {name: thread for thread, (name, _) in enumerate(tracks, 1)})


def _tracks(timeline: Timeline) -> Iterator[tuple[str, Sequence[Span]]]:
    yield from ((lane, spans) for lane, spans in timeline.lanes.items() if lane != DEVICE)
    yield from ((_stream(i), spans) for i, spans in enumerate(timeline.streams))
    yield from timeline.servers.items()
    yield "idle by cause", [Span("idle", piece.cause, piece.step, piece.begin_ns, piece.end_ns) for piece in timeline.idle]


def _arrows(timeline: Timeline, threads: dict[str, int]) -> Iterator[dict[str, Any]]:
    """From each launch to its device span: two events with one id."""
    pairs = [(i, span, timeline.launch_of(span)) for i, spans in enumerate(timeline.streams) for span in spans]
    for number, (i, span, stage) in enumerate(pairs):
        if stage is not None:
            arrow = {"name": "launch", "cat": "launch", "id": number}
            yield {"ph": "s", **arrow, **_at(timeline, threads[stage.lane], stage)}
            yield {"ph": "f", "bp": "e", **arrow, **_at(timeline, threads[_stream(i)], span)}


def _stream(i: int) -> str:
    return f"{DEVICE} {i + 1}" if i else DEVICE


def _at(timeline: Timeline, thread: int, span: Span) -> dict[str, Any]:
    return {"pid": 1, "tid": thread, "ts": _us(span.begin_ns - timeline.begin_ns)}


def _us(ns: int) -> float:
    return ns / 1000
