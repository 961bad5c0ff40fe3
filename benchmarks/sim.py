"""How fast the simulator is: its kernel against SimPy, its recurrence by rows, by matrices and over arrays, and whole runs.

Simulated programs, measured CPU time of this process. What is compared runs in turn in one process, and gives the same times to
the nanosecond or nothing is reported. A rate is told as its time: 15,000 launches a second are 66.7 us each.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import _pipelines
import _sim_runs
import numpy as np
from _table import Impossible, Row, Section, alternate, main, median

from ovsdk.backends.sim import fixed, jit, rows, vector
from ovsdk.backends.sim.columns import Columns, columns
from ovsdk.backends.sim.maxplus import INTS, Arithmetic, State, advance

OPERATORS = 500
MACHINE = rows.Machine(task=4096, device=4096)
STAGES = fixed.Stages(300_000, 200_000, 0, 200_000)
DEPTH = 2
AGAIN = 10


class Effort(NamedTuple):
    """How often, and how much each time."""

    rounds: int
    batches: int
    launches: int
    replicas: int


EFFORT = {False: Effort(11, 20_000, 1_000, 1_000), True: Effort(2, 500, 400, 100)}


class Timed(NamedTuple):
    """CPU ns for each of what was done, and what came out."""

    ns: float
    result: int


def timed(call: Callable[[], int], count: int) -> Timed:
    """What `call` costs for each of `count`."""
    gc.collect()
    begin = time.process_time_ns()
    result = call()
    return Timed((time.process_time_ns() - begin) / count, result)


class Variant(NamedTuple):
    """A way to do `count` of something; what it gives is when the simulated run ends."""

    call: Callable[[], int]
    count: int


def compare(variants: Mapping[str, Variant], rounds: int) -> dict[str, list[Timed]]:
    """CPU time for each of `count`, by variant."""
    return alternate({name: functools.partial(timed, *variant) for name, variant in variants.items()}, rounds)


def ratio(name: str, ours: list[Timed], other: list[Timed], target: float | None = None) -> Row:
    """Our time in theirs, round by round."""
    return median(name, [mine.ns / theirs.ns for mine, theirs in zip(ours, other, strict=True)], "x", target)


def us(name: str, runs: list[Timed], target: float | None = None) -> Row:
    """A row in microseconds."""
    return median(name, [run.ns / 1e3 for run in runs], "us", target)


def agree(name: str, *ends: int) -> None:
    """Raise Impossible unless all found the same time."""
    if len(set(ends)) > 1:
        raise Impossible(f"{name}: the engines disagree about when it ends: {ends}")


# ---- kernel and SimPy ----


def events(quick: bool) -> Iterator[Row | str]:
    """Events alone, without spans and report: a host and a device, two sleeps, a put and a get a batch."""
    effort, draw = EFFORT[quick], random.Random(7)
    host, device = ([int(draw.lognormvariate(13.7, 0.35)) for _ in range(effort.batches)] for _ in range(2))
    costs = compare(
        {
            "SimPy": Variant(lambda: _pipelines.batches_simpy(host, device), effort.batches),
            "kernel": Variant(lambda: _pipelines.batches_ours(host, device), effort.batches),
        },
        effort.rounds,
    )
    agree("batches", *(runs[0].result for runs in costs.values()))
    yield f"{effort.rounds} alternating runs of {effort.batches} batches, events alone: no spans, no report"
    yield from (us(f"{name}: CPU time a batch", runs) for name, runs in costs.items())
    yield ratio("kernel's time in SimPy's", costs["kernel"], costs["SimPy"], 0.2)


# ---- launches of 500 operators ----


def program(draw: random.Random) -> rows.Program:
    """A launch of operators that no other one has the times of; host, launcher and device are about as busy."""
    return rows.Program("decode", tuple(rows.Row("op", *(draw.randrange(1, 9000) for _ in range(3))) for _ in range(OPERATORS)))


def reported(programs: list[Any], matrices: bool | None = None) -> int:
    """A run with spans, idle time by cause and report; when it ends."""
    times = fixed.simulate(programs, [STAGES] * len(programs), DEPTH, machine=MACHINE, matrices=matrices)
    report = fixed.report(times)
    assert report.timeline is not None
    assert str(report)
    assert report.timeline.idle_ns
    return int(times.end_ns)


def launches(quick: bool) -> Iterator[Row | str]:
    """Repeating and distinct launches, and the same few of them by SimPy, operator by operator."""
    effort, draw = EFFORT[quick], random.Random(7)
    kinds = [program(draw) for _ in range(8)]
    many, distinct = [draw.choice(kinds) for _ in range(effort.launches)], distinct_launches(effort.launches)
    few = many[:20]
    by_events = {
        "SimPy, events alone": Variant(lambda: _pipelines.operators(_pipelines.simpy(), few, STAGES, DEPTH, MACHINE), len(few)),
        "kernel, events alone": Variant(lambda: _pipelines.operators(_pipelines.ours(), few, STAGES, DEPTH, MACHINE), len(few)),
        "rows": Variant(lambda: reported(few, matrices=False), len(few)),
    }
    repeating = {
        "repeating, cached matrices": Variant(lambda: reported(many), len(many)),
        "repeating, without spans and report": Variant(lambda: run_alone(many), len(many)),
    }
    different = {
        "distinct, durations in arrays": Variant(lambda: reported(vector.matrices(distinct, MACHINE)), len(many)),
        "distinct, without spans and report": Variant(lambda: run_alone(vector.matrices(distinct, MACHINE)), len(many)),
    }
    costs = compare({**by_events, **repeating, **different}, effort.rounds)
    one_by_one = [alone(distinct, number) for number in range(len(many))]
    for group, judge in ((by_events, run_alone(few)), (repeating, run_alone(many, matrices=False)), (different, run_alone(one_by_one))):
        agree(" and ".join(group), judge, *(costs[name][0].result for name in group))
    yield f"{OPERATORS} operators a launch, depth {DEPTH}; spans, idle by cause and report are included unless it says otherwise"
    yield f"matrices found in the cache: repeating {hits(many):.1%}, distinct {hits(one_by_one):.1%}"
    targets = {"distinct, durations in arrays": 1e6 / 15_000}
    yield from (us(f"{name}: CPU time a launch", runs, targets.get(name)) for name, runs in costs.items())
    yield ratio("repeating with report, in SimPy's time", costs["repeating, cached matrices"], costs["SimPy, events alone"], 0.25)
    yield ratio("kernel, in SimPy's time", costs["kernel, events alone"], costs["SimPy, events alone"])


def run_alone(programs: list[Any], matrices: bool | None = None) -> int:
    """A run without spans; when it ends."""
    return int(fixed.simulate(programs, [STAGES] * len(programs), DEPTH, machine=MACHINE, matrices=matrices).end_ns)


def hits(programs: list[Any]) -> float:
    """Share of launches whose matrix is there already."""
    return 1 - len(set(map(id, programs))) / len(programs)


def distinct_launches(count: int) -> Columns:
    """As many launches, all with other durations."""
    draw, pattern = np.random.default_rng(7), columns(program(random.Random(7)))
    host, launcher, device = draw.integers(1, 9000, (3, OPERATORS, count))
    return pattern._replace(host=host, launcher=launcher, device=device)


def alone(many: Columns, number: int) -> Columns:
    """One of many launches."""
    return many._replace(**{name: getattr(many, name)[:, number].tolist() for name in ("host", "launcher", "device")})


# ---- operators ----


def operators(quick: bool) -> Iterator[Row | str]:
    """One chain of operators: the recurrence itself."""
    effort, draw = EFFORT[quick], random.Random(7)
    count = 5 * effort.batches
    chain = columns(rows.Program("chain", tuple(rows.Row("op", *(draw.randrange(9000) for _ in range(3))) for _ in range(count))))
    compiled = jit.typed(chain)
    run = {
        "Python": Variant(lambda: through(chain, False), count),
        "Python, with queues": Variant(lambda: through(chain, True), count),
    }
    if jit.available():
        run["numba"] = Variant(lambda: again(lambda: through(compiled, False, jit.ints())), AGAIN * count)
        run["numba, with queues"] = Variant(lambda: again(lambda: through(compiled, True, jit.ints())), AGAIN * count)
    costs = compare(run, effort.rounds)
    agree("with queues or without", *(runs[0].result for runs in costs.values()))
    yield f"one chain of {count} operators, events alone; 4 M operators/s are 250 ns each, 150 M/s are 6.67 ns"
    for name, runs in costs.items():
        yield median(f"{name}: CPU time an operator", [run.ns for run in runs], "ns", {"Python": 250.0, "numba": 1000 / 150}.get(name))
        yield Row(f"{name}: CPU time an operator, lowest", min(run.ns for run in runs), "ns")
    if not jit.available():
        yield Row("numba: not installed (pip install 'ovsdk[fast]')", None, "ns")


def again(call: Callable[[], int]) -> int:
    """The same some times: what takes half a millisecond would be measured out of caches that the collector has just emptied."""
    return [call() for _ in range(AGAIN)][-1]


def through(chain: Columns, bounded: bool, of: Arithmetic = INTS) -> int:
    """When the last operator of a chain ends. The queues hold all of it, so that both ways give one time."""
    size = len(chain.stream)
    state = State(rows.Machine(task=size, device=size) if bounded else MACHINE, bounded, of=of)
    return int(advance(chain, state).end_ns)


# ---- replicas and sweeps ----


def replicas(quick: bool) -> Iterator[Row | str]:
    """Replicas of one launch with durations of their own, all at once."""
    effort = EFFORT[quick]
    yield f"replicas of {OPERATORS} operators; from {jit.FEW} on numpy is used with numba, too"
    for count in (effort.replicas // 20, effort.replicas):
        many, compiled = distinct_launches(count), jit.arrays(count)
        run = {"numpy": Variant(functools.partial(last, many, vector.ARRAYS), OPERATORS * count)}
        if compiled is not vector.ARRAYS:
            run["numba"] = Variant(functools.partial(last, many, compiled), OPERATORS * count)
        costs = compare(run, effort.rounds)
        agree("replicas", *(runs[0].result for runs in costs.values()))
        yield from (
            median(f"{count} replicas, {name}: CPU time an operator", [run.ns for run in runs], "ns") for name, runs in costs.items()
        )


def last(many: Columns, of: Arithmetic) -> int:
    """When the last replica ends."""
    return int(np.max(advance(many, State(MACHINE, bounded=False, of=of)).end_ns))


def sweep(quick: bool) -> Iterator[Row | str]:
    """Configurations with prices of their own, 64 steps each: with the launch seen for the first time, and again."""
    effort, draw = EFFORT[quick], random.Random(7)
    configurations, warm = effort.rounds * 4, program(draw)
    cold = iter([program(draw) for _ in range((effort.rounds + 1) * configurations)])
    run = {
        "matrix made anew": Variant(lambda: [run_alone([next(cold)] * 64) for _ in range(configurations)][-1], configurations),
        "matrix there": Variant(lambda: [run_alone([warm] * 64) for _ in range(configurations)][-1], configurations),
    }
    costs = compare(run, effort.rounds)
    yield f"64 steps of {OPERATORS} operators a configuration, without spans and report; prices are drawn before"
    yield from (us(f"{name}: CPU time a configuration", runs) for name, runs in costs.items())


SECTIONS = {
    "a": Section("the kernel against SimPy on one model", events),
    "b": Section("launches by events, by rows and by matrices", launches),
    "c": Section("operators a second: the recurrence", operators),
    "d": Section("replicas at once", replicas),
    "e": Section("a sweep of fixed schedules", sweep),
    "f": Section("the deployed loop on sim: a step of ovsdk.run", _sim_runs.a_step),
    "g": Section("start-up of ovsdk simulate", _sim_runs.start_up),
}

if __name__ == "__main__":
    sys.exit(main(__doc__, SECTIONS))
