"""What a run was: one line to print, pictures, plain numbers, and whether overlap was effective or why not.

Overlap hides host time behind the device's own time. It is *effective* if at least half of the host's time was hidden; what
stands in its way otherwise is looked for in a fixed order, and the first reason found is told. Nothing is claimed that
was not measured, and simulated times are called so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from . import pictures
from .errors import ConfigError
from .timeline import NO_WORK, Timeline

EFFECTIVE = 0.5
"""Share of host time that must be hidden for overlap to count as effective; also the share of its device time inside
its own launch stage from which a launch counts as blocking, and the share of steps answered WAIT that explains a poor overlap."""
NO_SPANS = "no spans were kept in this run: run it with spans=True"


@attrs.frozen
class Overlap:
    """Whether overlap was effective (None: not known), why, and the share of host time hidden behind the device, 0 to 1."""

    effective: bool | None
    why: str
    hidden: float | None = None

    def __str__(self) -> str:
        return {True: "overlap effective: ", False: "overlap not effective: ", None: "overlap "}[self.effective] + self.why


@attrs.frozen(kw_only=True)
class Report:
    """The outcome of a run. Times are seconds of the backend's clock, which is virtual in a simulator."""

    steps: int
    """Steps that were planned and retired."""
    asks: int
    """Calls of `plan`."""
    waits: int = 0
    """Asks that were answered WAIT."""
    depth: int
    driver: str
    backend: str
    virtual: bool
    """True if the times are simulated, False if they were measured."""
    asynchronous: Literal[True] | str
    """The backend's capability of that name: True, or why a launch is not over before its work is done."""
    makespan_s: float
    stage_s: Mapping[str, float]
    """Stage -> host seconds, all steps together."""
    device_busy_s: float | None = None
    """Seconds in which the device had a launch; None: not measured (futures without `span_ns`) or left to the timeline."""
    overruns: int | None = None
    """Rows launched after their request had stopped; None if the scheduler does not count them."""
    timeline: Timeline | None = attrs.field(default=None, repr=False)
    """Where the time went; None if no spans were kept. It may hold the last steps only."""
    log: Any = attrs.field(default=None, repr=False, eq=False)
    """The run log, if one was asked for."""
    notes: tuple[str, ...] = ()
    """What else must be known: steps that failed and were abandoned, and the like. A line each."""
    tilings: Mapping[str, str] = attrs.field(factory=dict)
    """Operator -> where its tiling was computed last; empty if the executor has no `tiler`."""
    computed: str = ""
    """How simulated times were computed, and why not sooner: "by recurrence", or what was done by events because of what.

    "" where they were measured, and where nobody asked for the soonest way."""
    latency: Mapping[str, Any] | None = None
    """What requests saw, from `ovsdk.metrics`: requests and tokens a second, mean and percentiles of TTFT and TPOT; None: not asked for."""

    @property
    def step_s(self) -> float | None:
        """Seconds a step: in the steady state where the timeline shows one, else the run's mean; None without steps."""
        steady = self.timeline.step_s if self.timeline is not None else None
        return steady or (self.makespan_s / self.steps if self.steps else None)

    @property
    def device_busy(self) -> float | None:
        """Share of the time in which the device was busy, 0 to 1; None if that was not measured."""
        if self.timeline is not None and self.timeline.launched:
            return _share(self.timeline.busy_ns, self.timeline.end_ns - self.timeline.begin_ns)
        return None if self.device_busy_s is None else _share(self.device_busy_s, self.makespan_s)

    @property
    def idle(self) -> dict[str, float]:
        """Cause -> share of the time in which the device idled for it, the largest first; empty if that was not measured."""
        line = self.timeline
        return {cause: _share(ns, line.end_ns - line.begin_ns) for cause, ns in line.idle_ns.items()} if line and line.launched else {}

    @property
    def overlap(self) -> Overlap:
        """Whether host time was hidden behind the device, or the first reason why not."""
        line = self.timeline
        measured = line if line is not None and line.launched else None
        hidden = None if measured is None else _hidden(measured)
        certain = _one_step(self) or _synchronous(self) or (measured and _launch_blocks(measured))
        if certain:
            return Overlap(False, certain, hidden)
        if measured is None or hidden is None:
            return Overlap(None, f"not measured: {NO_SPANS if line is None else 'the futures of this run have no span_ns'}")
        told = f"{_percent(hidden)} of host time hidden"
        if hidden >= EFFECTIVE:
            return Overlap(True, ", ".join(filter(None, [told, _host_bound(measured)])), hidden)
        reason = _waits(self) or _host_bound(measured) or _largest_bubble(measured)
        return Overlap(False, f"{reason}; {told}", hidden)

    def picture(self, width: int = 100, steps: range | None = None) -> str:
        """The timeline as text: see `ovsdk.pictures.text`. Without spans: what to do to get one."""
        return pictures.text([(self._title(), self._shown())], width, steps) if self.timeline is not None else NO_SPANS

    def png(self, path: str | os.PathLike[str], steps: range | None = None) -> None:
        """Write the timeline as PNG. Raises ConfigError without matplotlib or without spans."""
        pictures.png(self._shown(), path, f"{self.backend}, {self._title()}", steps)

    def perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline for ui.perfetto.dev. Raises ConfigError without spans."""
        pictures.perfetto(self._shown(), path)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for JSON: shares are 0 to 1, None is not measured."""
        step_s, names = self.step_s, ("steps", "asks", "waits", "depth", "driver", "backend", "virtual", "makespan_s", "overruns")
        return {
            **{name: getattr(self, name) for name in names},
            "step_ms": None if step_s is None else step_s * 1e3,
            "stage_s": dict(self.stage_s),
            "device_busy": self.device_busy,
            "idle": self.idle,
            "overlap": attrs.asdict(self.overlap),
            "notes": list(self._all_notes()),
            **({"tilings": dict(self.tilings)} if self.tilings else {}),
            **({"computed": self.computed} if self.computed else {}),
            **({} if self.latency is None else {"latency": self.latency}),
        }

    def __str__(self) -> str:
        where = f"{self.backend}{' (simulated)' if self.virtual else ''}, depth {self.depth}, {self.driver}"
        parts = [
            *self._figures(),
            str(self.overlap),
            *([] if self.overruns is None else [f"overruns {_count(self.overruns, 'row')}"]),
            *_latencies(self.latency or {}),
            *(f"tiling of {operator} {placement}" for operator, placement in self.tilings.items()),
            *(" ".join(note.split()) for note in self._all_notes()),
        ]
        return f"{_count(self.steps, 'step')} in {_seconds(self.makespan_s)} on {where}: {', '.join(parts)}"

    def _all_notes(self) -> tuple[str, ...]:
        """The run's notes, and what the timeline does not show."""
        line = self.timeline
        if line is None or not line.launched:
            return self.notes
        untimed = len(line.stages.keys() - {span.step for span in line.launched})
        partial = [f"timeline of the last {_count(line.steps, 'step')}"] if line.steps < self.steps else []
        return (*self.notes, *partial, *([f"{_count(untimed, 'step')} without a device time"] if untimed else []))

    def _figures(self) -> tuple[str, str]:
        step_s, busy = self.step_s, self.device_busy
        return (
            "no steps" if step_s is None else f"{step_s * 1e3:.3f} ms/step",
            "device busy not measured" if busy is None else f"device busy {100 * busy:.1f} %",
        )

    def _title(self) -> str:
        return f"depth {self.depth}, {self.driver}: {', '.join(self._figures())}"

    def _shown(self) -> Timeline:
        if self.timeline is None:
            raise ConfigError(NO_SPANS)
        return self.timeline if self.timeline.virtual == self.virtual else attrs.evolve(self.timeline, virtual=self.virtual)


# ---- why overlap was not effective: each returns the reason, or "" ----


def _one_step(report: Report) -> str:
    return "depth 1 keeps one step in flight; run with depth=2" if report.depth == 1 else ""


def _synchronous(report: Report) -> str:
    return "" if report.asynchronous is True else f"{report.backend} is not asynchronous: {report.asynchronous}"


def _launch_blocks(line: Timeline) -> str:
    """A launch that returns when its work is done, or hands it over operator by operator no faster than the device runs it."""
    inside = total = 0
    for span in line.launched:
        stage = line.launch_of(span)
        total += span.end_ns - span.begin_ns
        inside += 0 if stage is None else max(0, min(stage.end_ns, span.end_ns) - max(stage.begin_ns, span.begin_ns))
    share = _share(inside, total)
    return f"the launch blocks: {_percent(share)} of device time lies inside the launch stage of its own step" if share >= EFFECTIVE else ""


def _waits(report: Report) -> str:
    often = report.waits >= EFFECTIVE * max(1, report.steps)
    return f"the scheduler answered WAIT {_count(report.waits, 'time')} in {_count(report.steps, 'step')}" if often else ""


def _host_bound(line: Timeline) -> str:
    """The busiest host lane has more to do than the device, so the device must wait for it at any depth."""
    host_ns, steps = max(line.lane_ns.values(), default=0), max(1, line.steps)
    if host_ns <= 1.05 * line.busy_ns:
        return ""
    return f"host-bound: host {host_ns / steps / 1e6:.3f} ms, device {line.busy_ns / steps / 1e6:.3f} ms a step"


def _largest_bubble(line: Timeline) -> str:
    bubbles = {cause: ns for cause, ns in line.idle_ns.items() if cause != NO_WORK}
    cause = max(bubbles, key=bubbles.__getitem__, default=NO_WORK)
    return f"the device waits most for {cause!r}, {bubbles.get(cause, 0) / max(1, line.steps) / 1e6:.3f} ms a step"


def _hidden(line: Timeline) -> float:
    host_ns = sum(line.lane_ns.values())
    return line.hidden_ns / host_ns if host_ns else 1.0


def _latencies(latency: Mapping[str, Any]) -> list[str]:
    named = (("TTFT", latency.get("ttft_s")), ("TPOT", latency.get("tpot_s")))
    return [f"{name} {1e3 * law['mean']:.1f} ms, p99 {1e3 * law['p99']:.1f}" for name, law in named if law]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
