"""How near the simulator comes to a measured run: a device process that sleeps, and host work of a fixed amount of Python.

Prices are medians. Of a run at depth 1: the launch on the device, from the launch's end to its begin there, and from its end there to the
host having it. Of the run that is predicted: its stages, for the same work takes up to 1.6 times as long a moment later on some machines.
With these the simulator is asked for the steps at depth 1, 2 and 3: at depth 1 that shows that nothing is forgotten, at depths 2 and 3
how stages and launches overlap. The runs alternate; a step is the median, and so is how far apart the two of one round are. The host is
kept off the device's core.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterable, Iterator
from functools import partial

from _on_device import Sleeper
from _sleep_device import DEVICE_MS, EFFORT, Case, off
from _table import Row, Section, alternate, main, median, quantile

import ovsdk
from ovsdk import Report
from ovsdk.saturated import Priced, Saturated

HOST_MS = (1.0, 2.5, 6.0)
"""Host work beside a device that takes DEVICE_MS: hidden with ease, hidden, and more than the device takes."""
DEPTHS = (1, 2, 3)
TARGET = 3.0
"""Percent."""


def step_ms(report: Report, warm: int) -> float:
    """The median distance of two retirements."""
    assert report.timeline is not None
    ends = report.timeline.retired_ns[warm:]
    return statistics.median(b - a for a, b in itertools.pairwise(ends)) / 1e6


def prices(report: Report, warm: int) -> dict[str, object]:
    """What a run at depth 1 says that things cost, in us."""
    line = report.timeline
    assert line is not None
    device = {span.step: span for span in line.launched}
    steps = [(stages, device[step]) for step, stages in line.stages.items() if step >= warm and "retire" in stages and step in device]

    def middle(values: Iterable[int]) -> float:
        return statistics.median(values) / 1e3

    stage = {
        f"{name}_us": middle(stages[name].end_ns - stages[name].begin_ns for stages, _ in steps)
        for name in ("plan", "prepare", "launch", "retire")
    }
    start_us = middle(max(0, span.begin_ns - stages["launch"].end_ns) for stages, span in steps)
    back_us = middle(stages["retire"].begin_ns - span.end_ns for stages, span in steps)
    return {
        "schema": 1,
        "machine": {"cores": 2, "launch_latency_us": start_us, "d2h": {"latency_us": back_us, "gb_per_s": 1}},
        "stage": stage,
        "launch": {"sleep": {"ops": ["sleep"]}},
        "op": {"sleep": {"device_us": middle(span.end_ns - span.begin_ns for _, span in steps)}},
    }


def simulated(cost: dict[str, object], depth: int) -> float:
    """The step that the simulator expects, in ms."""
    with ovsdk.open_backend("sim", prices=cost) as backend:
        return (ovsdk.run(Saturated(40, "sleep"), Priced(), backend, depth=depth).step_s or 0.0) * 1e3


def measure(quick: bool) -> Iterator[Row | str]:
    """Measured and simulated steps, and how far they are apart."""
    with ovsdk.open_backend("cpu") as device, off(device.capabilities.facts["cores"]):
        work = device.load(Sleeper).work
        for host_ms in HOST_MS:
            yield from _compared(Case(host_ms, EFFORT[quick]), EFFORT[quick].rounds, device, work)


def _compared(case: Case, rounds: int, device: ovsdk.Backend, work: ovsdk.Method) -> Iterator[Row]:
    variants = {f"depth {depth}": partial(_run, case, device, work, depth) for depth in DEPTHS}
    runs = alternate(variants, rounds, lambda: case.calibrate(device, work))
    yield from _rows(f"D {DEVICE_MS:g}, S {case.host_ms:g}", runs, case.warm)


def _run(case: Case, device: ovsdk.Backend, work: ovsdk.Method, depth: int) -> Report:
    busy = case.busy(work)
    return ovsdk.run(busy, busy, device, depth=depth)


def _rows(name: str, runs: dict[str, list[Report]], warm: int) -> Iterator[Row]:
    priced = {depth: [prices(report, warm) for report in runs[f"depth {depth}"]] for depth in DEPTHS}
    costs = priced[1]
    for depth in DEPTHS:
        seen = [step_ms(report, warm) for report in runs[f"depth {depth}"]]
        told = [simulated({**cost, "stage": own["stage"]}, depth) for cost, own in zip(costs, priced[depth], strict=True)]
        yield median(f"{name}, depth {depth}: measured step", seen, "ms")
        yield median(f"{name}, depth {depth}: simulated step", told, "ms")
        error = abs(quantile([ours / theirs for ours, theirs in zip(told, seen, strict=True)], 0.5) - 1) * 100
        yield Row(f"{name}, depth {depth}: apart", error, "%", TARGET)


SECTIONS = {"cpu": Section("the `cpu` backend's run of a sleep executor, and the simulation of it", measure)}

if __name__ == "__main__":
    sys.exit(main(__doc__, SECTIONS))
