"""The critical path of a run's steady state: the chain of work that its step time is the length of.

It is followed backwards from the last steady retire, and counted where it no longer depends on having begun there: without as
many steps as were in flight. What made a span begin when it did is whichever of these ended last:

    on a host lane   the work before it on its lane; and for prepare its plan, for launch its prepare (and the amend of the
                     step before), for amend its launch and the retire before it, for finish its amend,
                     for retire the step's launches on the device
    on the device    the launch before it; and the host stage that launched it, ended or not

Time between that end and the begin belongs to nobody's work: `start` before a device span, `result` from the device to a
retire, else `driver`. A plan that was put off follows its `wait late`. Shares are derivatives: making one part shorter by x makes a
step shorter by x for each time it occurs on the path, until another chain is as long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import attrs

from .errors import ConfigError
from .timeline import ASKS, DEVICE, DRIVER, RESULT, STAGES, START, WAIT_LATE, Timeline
from .types import Span

BEFORE = {
    "prepare": ((0, "plan"),),
    "launch": ((0, "prepare"), (-1, "amend"), (-1, "finish")),
    "amend": ((0, "launch"), (-1, "retire")),
    "finish": ((0, "amend"),),
}
"""Stage -> what it follows on other lanes: (steps from its own, stage)."""


@attrs.frozen
class CriticalPath:
    """What a steady step is made of on its critical path: part -> (seconds a step, times a step), the longest first."""

    parts: dict[str, tuple[float, float]]
    step_s: float
    origin: str
    """`simulated` or `measured`."""

    def __str__(self) -> str:
        listed = ", ".join(f"{part} {1e3 * s:.3f} ms" for part, (s, _) in self.parts.items())
        most = next(iter(self.parts), "")
        gain = f"; shorten {most!r} first: 1 ms less of it saves {self.parts[most][1]:.2f} ms" if most else ""
        return f"critical path of a step ({self.origin}): {listed} of {1e3 * self.step_s:.3f} ms{gain}"


def critical_path(timeline: Timeline) -> CriticalPath:
    """The critical path between the first and the last steady retire. Raises ConfigError for a run with no two of them."""
    ends = timeline.steady_ns
    if len(ends) < 2:
        raise ConfigError(f"a critical path needs at least two retired steps with spans; this timeline has {len(ends)}")
    steps = max(1, len(ends) - 1 - timeline.in_flight)
    total: dict[str, list[float]] = {}
    for part, begin_ns, end_ns, whole_ns in _Graph(timeline).back(ends[-1], ends[0]):
        if begin_ns < ends[steps]:
            counted_ns, spent = min(end_ns, ends[steps]) - begin_ns, total.setdefault(part, [0, 0.0])
            spent[0] += counted_ns
            spent[1] += counted_ns / max(1, whole_ns)
    longest = sorted(total.items(), key=lambda item: -item[1][0])
    parts = {part: (ns / steps / 1e9, times / steps) for part, (ns, times) in longest if ns}
    return CriticalPath(parts, (ends[steps] - ends[0]) / steps / 1e9, timeline.origin)


class _Graph:
    """A run's work, by what follows what."""

    def __init__(self, timeline: Timeline) -> None:
        self._line = timeline
        self._lanes: dict[str, list[Span]] = {}
        for span in timeline.spans:
            if span.lane == DEVICE or span.what in STAGES or span.what in ASKS or span.what == WAIT_LATE:
                self._lanes.setdefault(span.lane, []).append(span)
        for lane in self._lanes.values():
            lane.sort(key=lambda span: (span.end_ns, span.begin_ns))
        self._ends = {name: [span.end_ns for span in lane] for name, lane in self._lanes.items()}
        self._on_device: dict[int, list[Span]] = {}
        for span in timeline.launched:
            self._on_device.setdefault(span.step, []).append(span)

    def back(self, end_ns: int, until_ns: int) -> Iterator[tuple[str, int, int, int]]:
        """Parts of the path with begin, end and whole length, the last first, cut at `until_ns`."""
        node = next(s["retire"] for s in self._line.stages.values() if "retire" in s and s["retire"].end_ns == end_ns)
        while end_ns > until_ns:
            yield _part(node), max(node.begin_ns, until_ns), end_ns, node.end_ns - node.begin_ns
            before = max(self._before(node), key=lambda span: (min(span.end_ns, node.begin_ns), span.begin_ns), default=None)
            if before is None:
                return
            end_ns = min(before.end_ns, node.begin_ns)
            if until_ns < node.begin_ns and end_ns < node.begin_ns:
                yield _gap(before, node), max(end_ns, until_ns), node.begin_ns, node.begin_ns - end_ns
            node = before

    def _before(self, node: Span) -> Iterator[Span]:
        """What may have made it begin: spans that began before it did."""
        candidates = [self._last_on(node.lane, node.begin_ns), *self._needed(node)]
        return (span for span in candidates if span is not None and span.begin_ns < node.begin_ns)

    def _needed(self, node: Span) -> Iterator[Span | None]:
        if node.lane == DEVICE:
            yield self._line.launch_of(node)
            return
        for distance, stage in BEFORE.get(node.what, ()):
            yield self._line.stages.get(node.step + distance, {}).get(stage)
        if node.what == "retire":
            yield from self._on_device.get(node.step, ())

    def _last_on(self, lane: str, begin_ns: int) -> Span | None:
        """The last work on a lane that ended by then and took any time."""
        spans, ends = self._lanes.get(lane, []), self._ends.get(lane, [])
        i = bisect_right(ends, begin_ns)
        if i and spans[i - 1].begin_ns == begin_ns:  # of no length, there
            i = bisect_left(ends, begin_ns)
        return spans[i - 1] if i else None


def _part(node: Span) -> str:
    if node.lane == DEVICE:
        return f"device {node.what}"
    return "plan" if node.what in ASKS else node.what


def _gap(before: Span, node: Span) -> str:
    if node.lane == DEVICE:
        return START
    return RESULT if before.lane == DEVICE else DRIVER
