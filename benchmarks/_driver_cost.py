"""Table (a): what a driver costs a step, where nobody has anything to do.

Scheduler and executor do nothing, and the device's futures are done at once; the clock is a real one. CPU time of the
process counts, both threads together, for it is what a step takes from the host's other work; opening and closing do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import _loops
from _table import Row, alternate, median

import ovsdk
from ovsdk import CLOSED, Answer, Ask, Capabilities, Launch
from ovsdk.backends._host import HostClock

TARGET_US = {"inline": 5.0, "threads": 25.0}
PEERS = {"inline, spans off": "direct 12-line loop", "threads, spans off": "two threads, queue.Queue"}
"""What each driver is, without a ledger, errors, arrivals and deadlines. The ratio drifts less than a machine's speed does."""


class Effort(NamedTuple):
    """Rounds, and steps of each run."""

    rounds: int
    steps: int


EFFORT = {False: Effort(40, 1000), True: Effort(8, 500)}


class Nothing:
    """A scheduler and an executor that have nothing to do; a stream and a backend, too, whose launches are done at once."""

    name = "null"
    capabilities = Capabilities({"asynchronous": True, "executes": True, "wall_clock": True})
    LAUNCH = Launch("nothing", fn=int)

    def __init__(self, steps: int) -> None:
        self.steps, self.clock = steps, HostClock()

    def plan(self, ask: Ask) -> int | Answer:
        """A batch, `steps` times."""
        return ask.step if ask.step < self.steps else CLOSED

    def prepare(self, step: int, batch: int) -> int:
        """Nothing."""
        return batch

    def launch(self, step: int, inputs: int) -> Launch:
        """Always the same."""
        return self.LAUNCH

    def retire(self, step: int, batch: int, result: None) -> None:
        """Nothing."""

    def stream(self, name: str = "compute") -> Nothing:
        """Itself."""
        return self

    def submit(self, launch: Launch) -> Nothing:
        """Itself, as a future."""
        return self

    def done(self) -> bool:
        """At once."""
        return True

    def result(self) -> None:
        """Nothing."""


class Cost(NamedTuple):
    """Of a step, in us."""

    cpu_us: float
    wall_us: float


def timed(steps: int, call: Callable[[], object]) -> Cost:
    """What a step of `call` costs."""
    wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    call()
    cpu_ns, wall_ns = time.process_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
    return Cost(cpu_ns / steps / 1e3, wall_ns / steps / 1e3)


def driven(steps: int, driver: str, spans: bool) -> Cost:
    """The cost of a driver: of the loop that `ovsdk.run` is."""
    nothing: Any = Nothing(steps)
    with ovsdk.start(nothing, nothing, nothing, driver=driver, spans=spans) as going:
        return timed(steps, going.driver.drive)


def looped(steps: int, loop: _loops.Loop) -> Cost:
    """The cost of a loop written by hand."""
    nothing = Nothing(steps)
    return timed(steps, lambda: loop(nothing, nothing, nothing))


def variants(steps: int) -> dict[str, Callable[[], Cost]]:
    """Drivers and alternatives, by name."""
    return {
        "inline, spans off": lambda: driven(steps, "inline", False),
        "inline, spans on": lambda: driven(steps, "inline", True),
        "threads, spans off": lambda: driven(steps, "threads", False),
        "threads, spans on": lambda: driven(steps, "threads", True),
        "direct 12-line loop": lambda: looped(steps, _loops.direct),
        "two threads, queue.Queue": lambda: looped(steps, _loops.two_threads),
        "asyncio, run_in_executor": lambda: looped(steps, _loops.on_asyncio),
    }


def measure(quick: bool) -> Iterator[Row | str]:
    """Median, spread and minimum of many short runs."""
    effort = EFFORT[quick]
    costs = alternate(variants(effort.steps), effort.rounds)
    yield f"{effort.rounds} alternating runs of {effort.steps} steps each at depth 2, after one of each that is dropped"
    for name, runs in costs.items():
        driver, _, spans = name.partition(", ")
        yield median(f"{name}: CPU time a step", [c.cpu_us for c in runs], "us", TARGET_US.get(driver) if spans == "spans off" else None)
        yield Row(f"{name}: CPU time a step, lowest", min(c.cpu_us for c in runs), "us")
        yield median(f"{name}: wall time a step", [c.wall_us for c in runs], "us")
    for ours, theirs in PEERS.items():
        pairs = zip(costs[ours], costs[theirs], strict=True)
        yield median(f"{ours}, over {theirs}, round by round", [our.cpu_us / their.cpu_us for our, their in pairs], "x")
