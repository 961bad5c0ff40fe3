"""What the GIL does to overlap: measured on real threads, and simulated on `ovsdk.backends.sim.host`, in one run.

A hidden share is (serial - overlap) / (serial - ideal), with ideal = max(D, S). The model is given D and S as the serial
loop had them, and two figures of the machine from waking a thread: how long a hand-off takes, and how late a timed
wait ends. It is then asked for what it was not given: the loops' step times, and the start at the default interval.

The host's work is pure Python, and a fixed CPU time: it takes no longer on a core that has just slept. A step is timed on
the device, from begin to begin; of all steps the first decile counts, for other programs only make steps longer.

Not modelled: other programs; on which core the system puts a woken thread (at times the busy one, and it starts when that
one blocks: then the median of a row lies far above its first decile); how deep a core sleeps, and so how long it takes to
wake; that a sleep ends late (D is what a sleep really took).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import _gil_loops as loops
from _gil_loops import Op, Stamps
from _table import Row, Section, alternate, main, median, quantile, refuse_faster, tail

from ovsdk.backends.sim.host import Gil, HostModel

CASES = ((4.0, 1.0), (4.0, 3.5), (1.0, 0.5))
"""(D, S) in ms."""
INTERVALS_MS = (5.0, 0.1)
LOOPS = {"launch late": loops.launch_late, "launch ahead": loops.launch_ahead}
STEPS, WARM = 12, 2
WAKES, SHORT_MS, LONG_MS = 4, 0.5, 12.0
"""Wakes in a run; how long the other thread computes: less than either interval needs to be asked, or more than both."""
UNDISTURBED = 0.1
POINTS, PERCENT = 10.0, 10.0
"""Most that a simulated hidden share, and a simulated start, may be off."""


def typical(values: list[float]) -> float:
    """Of times that other programs may have lengthened."""
    return quantile(values, UNDISTURBED)


def rounds(quick: bool) -> int:
    """How often every loop is run."""
    return 4 if quick else 40


def compute(ns: int) -> None:
    """Pure Python, for that much CPU time of this thread."""
    end_ns = time.thread_time_ns() + ns
    while time.thread_time_ns() < end_ns:
        pass


@contextlib.contextmanager
def switching_at(interval_ms: float) -> Iterator[None]:
    """The interpreter's switch interval, for a while."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_ms / 1e3)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def measured(programs: list[list[Op]], interval_ms: float, compute_ms: float, device_ms: float = 0.0) -> Stamps:
    """One run on real threads."""
    with switching_at(interval_ms):
        return loops.on_threads(programs, partial(compute, round(compute_ms * 1e6)), device_ms / 1e3)


def between(stamps: Stamps, begin: str, end: str) -> list[float]:
    """ns from each stamp to the other of the same step."""
    return [float(after - before) for before, after in zip(stamps[begin], stamps[end], strict=True)]


def steps_ns(stamps: Stamps) -> list[float]:
    """The steps of a run, without those that warm up, and without the last, which is launched with nothing left to plan."""
    return [float(after - before) for before, after in itertools.pairwise(stamps["begun"][WARM:-1])]


# ---- a woken thread ----


class Starts(NamedTuple):
    """ns from waking to starting; after a hand-off, from the other's blocking to starting."""

    handoff: list[float]
    late: dict[float, list[float]]
    """Switch interval in ms -> starts."""


@functools.lru_cache(maxsize=1)
def starts(quick: bool) -> Starts:
    """Measured once, for both tables."""
    longest, short = INTERVALS_MS
    variants: dict[str, Callable[[], list[float]]] = {
        "hand-off": partial(_starts, longest, SHORT_MS, "blocked"),
        f"{longest}": partial(_starts, longest, LONG_MS, "woken"),
        f"{short}": partial(_starts, short, SHORT_MS, "woken"),
    }
    handoff, *late = (list(itertools.chain(*runs)) for runs in alternate(variants, rounds(quick)).values())
    return Starts(handoff, dict(zip(INTERVALS_MS, late, strict=True)))


def _starts(interval_ms: float, compute_ms: float, begin: str) -> list[float]:
    return between(measured(loops.woken(WAKES), interval_ms, compute_ms), begin, "started")


def gil(seen: Starts, interval_ms: float) -> Gil:
    """The model: a hand-off as seen; a timed wait is late by what a start at the short interval took longer."""
    handoff, short_ms = typical(seen.handoff), INTERVALS_MS[-1]
    overshoot = max(0.0, typical(seen.late[short_ms]) - short_ms * 1e6 - handoff)
    return Gil(switch_ns=round(interval_ms * 1e6), handoff_ns=round(handoff), overshoot_ns=round(overshoot))


def simulated(programs: list[list[Op]], model: Gil, compute_ns: float, device_ns: float = 0.0) -> Stamps:
    """The same run in virtual time."""
    return loops.simulated(programs, HostModel(gil=model), round(compute_ns), round(device_ns))


def measure_starts(quick: bool) -> Iterator[Row | str]:
    """When a woken thread starts, while the other goes on in pure Python."""
    if not has_gil():
        yield NO_GIL
        return
    seen = starts(quick)
    yield f"{len(seen.handoff)} starts each; the model is given the hand-off and the start at {INTERVALS_MS[-1]:g} ms, not the other"
    yield from _distribution("hand-off to a woken thread when the other blocks, measured", seen.handoff)
    for ms in reversed(INTERVALS_MS):
        name = f"start of a woken thread, interval {ms:g} ms"
        yield from _distribution(f"{name}, measured", seen.late[ms])
        ours = simulated(loops.woken(1), gil(seen, ms), LONG_MS * 1e6)
        expected = between(ours, "woken", "started")[0]
        yield Row(f"{name}, simulated", expected / 1e3, "us")
        off = abs(expected / typical(seen.late[ms]) - 1) * 100
        yield Row(f"{name}: simulated is off by", off, "%", PERCENT if ms == INTERVALS_MS[0] else None)


def _distribution(name: str, values: list[float]) -> Iterator[Row]:
    us = [value / 1e3 for value in values]
    yield Row(f"{name}, first decile", typical(us), "us")
    yield median(f"{name}, median", us, "us")
    yield tail(name, us, "us")


# ---- the loops ----


class Serial(NamedTuple):
    """What the serial loop had, in ns."""

    step: float
    device: float
    host: float

    @property
    def ideal(self) -> float:
        """max(D, S)."""
        return max(self.device, self.host)

    def hidden(self, step: float) -> float:
        """The hidden share of a loop with that step, in %."""
        return 100 * (self.step - step) / (self.step - self.ideal)


def serial(runs: list[Stamps]) -> Serial:
    """Of several runs."""
    return Serial(
        typical([ns for run in runs for ns in steps_ns(run)]),
        typical([ns for run in runs for ns in between(run, "begun", "done")]),
        typical([float(after - before) for run in runs for before, after in zip(run["done"], run["begun"][1:], strict=False)]),
    )


def measure_hidden(quick: bool) -> Iterator[Row | str]:
    """Both loops at both intervals, for every case."""
    if not has_gil():
        yield NO_GIL
        return
    seen = starts(quick)
    yield f"{rounds(quick)} alternating runs of {STEPS - WARM - 2} steps each, after one of each that is dropped"
    yield f"the model is given D and S of the serial loop, and {gil(seen, INTERVALS_MS[0])!r} with the interval of each row"
    for case in CASES:
        yield from _case(case, seen, quick)


def _case(case: tuple[float, float], seen: Starts, quick: bool) -> Iterator[Row]:
    device_ms, host_ms = case
    variants: dict[str, Callable[[], Stamps]] = {"serial": partial(measured, loops.serial(STEPS), INTERVALS_MS[0], host_ms, device_ms)}
    pairs = {f"{loop} at {ms:g} ms": (make(STEPS), ms) for loop, make in LOOPS.items() for ms in INTERVALS_MS}
    variants |= {variant: partial(measured, *pair, host_ms, device_ms) for variant, pair in pairs.items()}
    runs = alternate(variants, rounds(quick))
    name, base = f"D {device_ms:g}, S {host_ms:g}", serial(runs["serial"])
    yield from (Row(f"{name}, serial: {what}", ns / 1e6, "ms") for what, ns in zip(("step", "D", "S"), base, strict=True))
    for variant, (programs, ms) in pairs.items():
        steps = [ns for run in runs[variant] for ns in steps_ns(run)]
        refuse_faster(f"{name}, {variant}", min(steps), device_ms * 1e6)
        ours = simulated(programs, gil(seen, ms), base.host, base.device)
        yield from _compared(f"{name}, {variant}", base, steps, typical(steps_ns(ours)))


def _compared(name: str, base: Serial, steps: list[float], ours: float) -> Iterator[Row]:
    yield median(f"{name}: step, median", [step / 1e6 for step in steps], "ms")
    yield Row(f"{name}: step, first decile", typical(steps) / 1e6, "ms")
    yield Row(f"{name}: step, simulated", ours / 1e6, "ms")
    yield Row(f"{name}: hidden share, measured", base.hidden(typical(steps)), "%")
    yield Row(f"{name}: hidden share, simulated", base.hidden(ours), "%")
    yield Row(f"{name}: simulated is off by", abs(base.hidden(typical(steps)) - base.hidden(ours)), "pp", POINTS)


def has_gil() -> bool:
    """Whether this interpreter has one."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


NO_GIL = "this interpreter runs without a GIL: there is nothing to compare"

SECTIONS = {
    "starts": Section("when a thread starts that is woken while another computes in pure Python: measured and simulated", measure_starts),
    "hidden": Section("host work hidden by two-thread loops: measured and simulated", measure_hidden),
}

if __name__ == "__main__":
    sys.exit(main(__doc__, SECTIONS))
