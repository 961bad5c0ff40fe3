"""What `ovsdk.run` on `sim` costs a step, and how soon `ovsdk simulate` is there: CPU time, simulated programs.

CPU time of this process, or of a child with all that it starts, its files compiled before: other programs disturb that less than
the time on the wall, which on a quiet machine is the same.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from _table import Impossible, Row, alternate, median

import ovsdk
from ovsdk.backends.sim import SimBackend, load_prices
from ovsdk.saturated import Priced, Saturated

PROFILE = "longcat-flash-b8-4k"
ONE = {
    "schema": 1,
    "stage": {"plan_us": 1000, "prepare_us": 500, "launch_us": 100, "retire_us": 400},
    "launch": {"decode": {"device_us": 2500}},
}
STEP_US, START_MS = 8.0, 500.0
STEPS, ROUNDS, STARTS = {False: 4000, True: 200}, {False: 15, True: 2}, {False: 9, True: 2}


class Ran(NamedTuple):
    """CPU us a step, and the simulated makespan."""

    us: float
    makespan_s: float


def ran(prices: Any, steps: int, spans: bool, by_events: bool) -> Ran:
    """One run of full batches, opening and report included."""
    backend: Any = SimBackend(prices, by_events=by_events)
    scheduler = Saturated(steps, "decode", backend.prices.launch("decode").features)
    gc.collect()
    begin_ns = time.process_time_ns()
    report = ovsdk.run(scheduler, Priced(), backend, spans=spans)
    return Ran((time.process_time_ns() - begin_ns) / 1e3 / steps, report.makespan_s)


def a_step(quick: bool) -> Iterator[Row | str]:
    """The deployed loop in virtual time: launches by one recurrence each, and by events."""
    steps, few = STEPS[quick], max(20, STEPS[quick] // 20)
    for name, prices in (("1 operator", load_prices(ONE)), ("59 operators", load_prices(PROFILE))):
        variants = {
            f"{name}, without spans": partial(ran, prices, steps, False, False),
            f"{name}, without spans, by events": partial(ran, prices, few, False, True),
            f"{name}, with spans": partial(ran, prices, few, True, False),
        }
        runs = alternate(variants, ROUNDS[quick])
        agree(ran(prices, few, False, False), *runs[f"{name}, with spans"], *runs[f"{name}, without spans, by events"])
        for title, found in runs.items():
            target = STEP_US if title == "1 operator, without spans" else None
            yield median(f"{title}: CPU time a step", [run.us for run in found], "us", target)
            yield Row(f"{title}: CPU time a step, lowest", min(run.us for run in found), "us")
    yield f"{ROUNDS[quick]} alternating runs at depth 2, inline, of {steps} steps; of {few} with spans, and by events"
    yield "the target is for the loop; 59 operators come with a copy of results, a stage priced by the batch, and a queue that fills"


def agree(*runs: Ran) -> None:
    """Raise Impossible unless all took the same simulated time."""
    if len({run.makespan_s for run in runs}) > 1:
        raise Impossible("runs by recurrence and by events disagree about the makespan")


# ---- the command line ----

COMMAND = f"""
import sys
from ovsdk.cli import main
try:
    main(["simulate", "{PROFILE}", "--json"])
finally:
    sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""


class Started(NamedTuple):
    """Milliseconds of a command in a new interpreter, its start included."""

    cpu: float
    wall: float


def started(code: str, environment: Mapping[str, str]) -> Started:
    """Run it in a new interpreter. Raises Impossible for one that imports torch."""
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    wall_s, after = time.perf_counter() - begin_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise Impossible(f"the command failed: {done.stderr[-300:]}")
    return Started(1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), 1e3 * wall_s)


def start_up(quick: bool) -> Iterator[Row | str]:
    """`ovsdk simulate`, and what an interpreter and the command line's own packages take of that."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    codes = {f"ovsdk simulate {PROFILE} --json": COMMAND, "import typer": "import typer", "an empty interpreter": ""}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**usual, "PYTHONPYCACHEPREFIX": cache}
        runs = alternate({name: partial(started, code, environment) for name, code in codes.items()}, STARTS[quick])
    yield f"{STARTS[quick]} alternating interpreters of each, after one that compiles; user and system time; none imported torch"
    for name, found in runs.items():
        yield median(f"{name}: CPU time", [run.cpu for run in found], "ms", START_MS if "simulate" in name else None)
        yield Row(f"{name}: on the wall, lowest", min(run.wall for run in found), "ms")
