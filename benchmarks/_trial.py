"""What one run showed, from stamps of the device and of the host.

A step is timed on the device, from begin to begin: there it has no edges, and cannot be shorter than the launch in it.
The ideal of overlap is max(D, S). D is the device's mean time a step, in the run where it was least: no run is faster than its
own. S is the host's time in the fastest step of all runs: the work is the same, but other programs slow some runs down.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from _table import Impossible, Row, median, refuse_faster

from ovsdk import Report, Stream
from ovsdk.interfaces import Future
from ovsdk.timeline import Timeline
from ovsdk.types import Launch

STAGES = ("plan", "prepare", "launch", "retire")


class Trial(NamedTuple):
    """One run, in ns, without the steps that warm up."""

    step_ns: float
    """Mean from begin to begin."""
    device_ns: float
    """Mean of a launch."""
    gaps_ns: tuple[int, ...]
    """Between a launch's end and the next one's begin."""
    host_ns: tuple[int, ...] = ()
    """Time in host stages, of each step; empty if not measured. Spans of two threads do not: they count each other's turn at the GIL."""


def from_spans(spans: Iterable[tuple[int, int]], host_ns: Iterable[int] = ()) -> Trial:
    """The trial of a device that did these launches (begin and end in ns), one a step. Raises Impossible if two ran at once."""
    ordered = sorted(spans)
    pairs = list(itertools.pairwise(ordered))
    gaps = tuple(after[0] - before[1] for before, after in pairs)
    if min(gaps) < 0:
        raise Impossible(f"a device that does one launch at a time did two at once, for {-min(gaps)} ns")
    step_ns = (ordered[-1][0] - ordered[0][0]) / len(pairs)
    return Trial(step_ns, sum(before[1] - before[0] for before, _ in pairs) / len(pairs), gaps, tuple(host_ns))


def from_report(report: Report, warm: int) -> Trial:
    """The trial of a run without its first `warm` steps."""
    line = report.timeline
    assert line is not None
    spans = [(span.begin_ns, span.end_ns) for span in line.launched if span.step >= warm]
    return from_spans(spans, _host_ns(line, warm) if report.driver == "inline" else ())


def _host_ns(line: Timeline, warm: int) -> list[int]:
    steps = (stages for step, stages in line.stages.items() if step >= warm)
    return [sum(stages[name].end_ns - stages[name].begin_ns for name in STAGES) for stages in steps]


class Recording:
    """A stream that keeps the futures of its launches, so that a loop of anybody's can be timed on the device."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.futures: list[Future] = []

    def submit(self, launch: Launch) -> Future:
        """See `Stream.submit`."""
        self.futures.append(self._stream.submit(launch))
        return self.futures[-1]

    def trial(self, warm: int) -> Trial:
        """The trial of what was submitted, one launch a step, once all is done."""
        return from_spans(future.span_ns for future in self.futures[warm:])  # type: ignore[attr-defined]


class Ideal(NamedTuple):
    """D and S, in ns."""

    device_ns: float
    host_ns: float

    @property
    def step_ns(self) -> float:
        """max(D, S): no order of work makes a step shorter."""
        return max(self.device_ns, self.host_ns)


def ideal(trials: Sequence[Trial]) -> Ideal:
    """Of runs that did the same work."""
    return Ideal(min(trial.device_ns for trial in trials), min(ns for trial in trials for ns in trial.host_ns))


def ideal_rows(name: str, best: Ideal) -> list[Row]:
    """What no loop can beat, and why."""
    times = {"D, fastest run": best.device_ns, "S, fastest step": best.host_ns, "ideal step, max(D, S)": best.step_ns}
    return [Row(f"{name}: {what}", ns / 1e6, "ms") for what, ns in times.items()]


def step_rows(name: str, trials: Sequence[Trial], best: Ideal, target: float | None = None) -> list[Row]:
    """Step time, and over the ideal. Raises Impossible for a run that beats it."""
    for trial in trials:
        refuse_faster(name, trial.step_ns, best.step_ns)
    return [
        median(f"{name}: step", [t.step_ns / 1e6 for t in trials], "ms"),
        median(f"{name}: step / ideal", [t.step_ns / best.step_ns for t in trials], "", target),
    ]
