"""A whole run of a fixed schedule as a recurrence: no events, no processes, a few additions a stage.

With always a next batch the ledger leaves one order of moves, whatever takes how long: plan, prepare and launch of step k,
then the wait for step k - depth + 1 and its retire. So the times of a run are a function of prices alone:

    one lane                                        two lanes: S schedules, X executes
    H = H + plan + prepare + launch, then rows      S = S + plan;  X = max(X, S) + prepare + launch, then rows
    H = max(H, done of the oldest) + retire         S = max(S, done of the oldest) + retire

and rows as in `maxplus`; a step is done when its rows have ended and its results are copied, those of one launch after those
of the other. A launch that comes back often is collapsed to a matrix once, unless a queue could bind.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs

from ...errors import ConfigError, refuse
from ...report import Report
from ...timeline import Timeline
from ...types import Span
from .columns import Columns
from .maxplus import INTS, Arithmetic, Matrix, Outcome, State, advance, apply, collapse, queues_bind
from .rows import Machine, Program, Row

LANES = {"inline": ("host", "host"), "threads": ("scheduling", "execution")}
"""Driver -> who plans and retires, who prepares and launches."""


class Stages(NamedTuple):
    """Host prices of a step in ns; `launch` is what its rows' own host time comes on top of."""

    plan: Any
    prepare: Any
    launch: Any
    retire: Any


class Trip(NamedTuple):
    """When a step went through its stages, in ns. Where only an end is given, the stage began when the one before ended."""

    plan_ns: Any
    planned_ns: Any
    prepare_ns: Any
    prepared_ns: Any
    launched_ns: Any
    begin_ns: Any
    """Its first row begins on the device."""
    end_ns: Any
    """Its last row ends there."""
    done_ns: Any
    """The host may have its results."""
    wait_ns: Any
    """The lane that retires it comes to wait for it."""
    retire_ns: Any
    retired_ns: Any


MS = 1_000_000
DEEPER_IS_SLOWER = (
    (Program("plain", (Row("work", host_ns=0, launcher_ns=0, device_ns=1 * MS),)), Stages(0, 0, 0, 0)),
    (Program("syncs", (Row("wait", host_ns=0, launcher_ns=0, device_ns=0, sync_ns=0),)), Stages(0, 0, 0, retire=1 * MS)),
)
"""Two steps that, in turn, take 1 ms together at depth 2 and 2 ms at depth 3, as at depth 1. (program, stages) each; one lane.

At depth 2 the lane retires the one that syncs while the next plain one is on the device. At depth 3 it launches another one
that syncs first, waits there for the device, and retires when the device has nothing to do. A full queue does the same.
"""


@attrs.frozen
class Times:
    """A run: its steps, the ask that was answered CLOSED, and when it ended."""

    driver: str
    depth: int
    kinds: tuple[str, ...]
    trips: tuple[Trip, ...]
    entries: tuple[tuple[Any, ...], ...]
    """Of each step, the machine's times as its lane begins to enqueue: see `State.times`."""
    ask: tuple[Any, Any]
    begin_ns: int
    end_ns: Any
    matrices: int
    """Steps that went through a matrix."""

    @property
    def makespan_ns(self) -> Any:
        """From the first plan to the end of the last retire, or of the last ask."""
        return self.end_ns - self.begin_ns


def simulate(
    programs: Sequence[Program | Columns | Matrix],
    stages: Sequence[Stages],
    depth: int,
    *,
    driver: str = "inline",
    machine: Machine = Machine(),  # noqa: B008  # a frozen value
    ask_ns: int = 0,
    begin_ns: int = 0,
    matrices: bool | None = None,
    of: Arithmetic = INTS,
) -> Times:
    """The run of `len(programs)` steps at `depth`, exactly as events would have it; see `maxplus.refuse` for what this cannot be.

    programs    of each step, in order; the same object again is recognised
    stages      of each step, in order
    ask_ns      what the ask costs that is answered CLOSED
    matrices    None: launches that come back often, as long as no queue can bind; True: all, even if it is wrong; False: none
    of          what times are: ints, or arrays of replicas (then prices and columns may hold arrays)

    Raises ConfigError for an unknown driver, a depth under 1 or unequal numbers of programs and stages.
    """
    if driver not in LANES:
        refuse("driver", driver, LANES)
    if depth < 1 or len(programs) != len(stages):
        allowed = "a depth of at least 1, and stages for every step"
        raise ConfigError(f"got depth={depth!r}, {len(programs)} programs and {len(stages)} stages; allowed: {allowed}")
    bounded = matrices is not True and bool(queues_bind(programs, depth, machine))
    run = _Run(State(machine, bounded, begin_ns, of), driver == "threads", begin_ns, begin_ns)
    ways = _ways(programs, machine, matrices is not False and not bounded, forced=matrices is True)
    for number in range(len(programs) + depth):
        if number < len(programs):
            run.feed(stages[number], ways[number])
        elif number == len(programs):
            run.decline(ask_ns)
        if 0 <= number - depth + 1 < len(programs):
            run.retire(stages[number - depth + 1].retire)
    trips = tuple(Trip(*there, *back) for there, back in zip(run.there, run.back, strict=True))
    return Times(
        driver,
        depth,
        tuple(way.kind for way in ways),
        trips,
        tuple(run.entries),
        run.ask,
        begin_ns,
        run.scheduling,
        sum(isinstance(way, Matrix) for way in ways),
    )


def _ways(programs: Sequence[Any], machine: Machine, may: bool, forced: bool) -> list[Any]:
    """Each program, or its matrix where that is allowed and pays: to make one takes as long as some launches by rows."""
    times = Counter(map(id, programs))
    least = 0 if forced else 2 + machine.streams
    return [
        collapse(program, machine) if may and not isinstance(program, Matrix) and times[id(program)] > least else program
        for program in programs
    ]


@attrs.define
class _Run:
    """Where the lanes are. One lane is two that never differ."""

    state: State
    two: bool
    scheduling: Any
    execution: Any
    ask: tuple[Any, Any] = (0, 0)
    entries: list[tuple[Any, ...]] = attrs.Factory(list)
    there: list[tuple[Any, ...]] = attrs.Factory(list)
    back: list[tuple[Any, ...]] = attrs.Factory(list)

    def feed(self, stages: Stages, program: Program | Columns | Matrix) -> None:
        """Plan, prepare and launch the next step."""
        planned = self.scheduling + stages.plan
        prepare = self.state.of.latest((self.execution, planned)) if self.two else planned
        prepared = prepare + stages.prepare
        self.state.times[0] = prepared + stages.launch
        self.entries.append(tuple(self.state.times))
        outcome: Outcome = apply(program, self.state) if isinstance(program, Matrix) else advance(program, self.state)
        self.there.append((self.scheduling, planned, prepare, prepared, launched := self.state.times[0], *outcome))
        self.execution, self.scheduling = launched, planned if self.two else launched

    def decline(self, ask_ns: int) -> None:
        """Ask once more, and be told that it is over."""
        self.ask = (self.scheduling, self.scheduling + ask_ns)
        self.scheduling = self.ask[1]

    def retire(self, price_ns: Any) -> None:
        """Wait for the oldest step and retire it."""
        begin, done = self.scheduling, self.there[len(self.back)][-1]
        waited = self.state.of.latest((begin, done))
        self.scheduling = waited + price_ns
        self.back.append((begin, waited, self.scheduling))


Told = Callable[[Times, int], Iterable[Span]]
"""What a step's launch tells of itself, on the device and elsewhere."""


def launches(times: Times, number: int) -> tuple[Span, ...]:
    """A launch is on the device from its first operator to its last, and no more is told."""
    trip = times.trips[number]
    return (Span("device", times.kinds[number], number, trip.begin_ns, trip.end_ns),)


def spans(times: Times, told: Told = launches) -> Iterator[Span]:
    """The spans that the run would have emitted, lane by lane in order: for `Timeline`. Of a run on ints."""
    scheduling, _ = LANES[times.driver]
    steps, free = len(times.trips), times.begin_ns
    for number in range(steps + times.depth):
        if number < steps:
            yield from _there(times, number, free)
            free = times.trips[number].launched_ns
        elif number == steps:
            yield Span(scheduling, "ask", steps, *times.ask)
        if 0 <= (oldest := number - times.depth + 1) < steps:
            trip = times.trips[oldest]
            yield from _waits(scheduling, oldest, trip)
            yield from told(times, oldest)
            yield Span(scheduling, "retire", oldest, trip.retire_ns, trip.retired_ns)


def _there(times: Times, number: int, free: int) -> Iterator[Span]:
    """A step's way to the device; the execution lane is free from then on."""
    scheduling, execution = LANES[times.driver]
    trip = times.trips[number]
    yield Span(scheduling, "plan", number, trip.plan_ns, trip.planned_ns)
    if scheduling != execution and free < trip.prepare_ns:
        yield Span(execution, "wait batch", number, free, trip.prepare_ns)
    yield Span(execution, "prepare", number, trip.prepare_ns, trip.prepared_ns)
    yield Span(execution, "launch", number, trip.prepared_ns, trip.launched_ns)


def _waits(lane: str, number: int, trip: Trip) -> Iterator[Span]:
    handed = min(max(trip.wait_ns, trip.launched_ns), trip.retire_ns)
    for what, (begin, end) in zip(("wait launch", "wait device"), itertools.pairwise((trip.wait_ns, handed, trip.retire_ns)), strict=True):
        if begin < end:
            yield Span(lane, what, number, begin, end)


def report(times: Times, told: Told = launches, notes: tuple[str, ...] = ()) -> Report:
    """What `ovsdk.run` reports of this run on `sim`, with what launches tell of themselves. Of a run on ints."""
    plan = sum(trip.planned_ns - trip.plan_ns for trip in times.trips) + times.ask[1] - times.ask[0]
    prepare = sum(trip.prepared_ns - trip.prepare_ns for trip in times.trips)
    launch = sum(trip.launched_ns - trip.prepared_ns for trip in times.trips)
    retire = sum(trip.retired_ns - trip.retire_ns for trip in times.trips)
    spent = {"plan": plan, "prepare": prepare, "launch": launch, "amend": 0, "retire": retire}
    return Report(
        steps=len(times.trips),
        asks=len(times.trips) + 1,
        depth=times.depth,
        driver=times.driver,
        backend="sim",
        virtual=True,
        asynchronous=True,
        makespan_s=times.makespan_ns / 1e9,
        stage_s={name: ns / 1e9 for name, ns in spent.items()},
        timeline=Timeline(spans(times, told), times.begin_ns, times.end_ns, virtual=True),
        notes=notes,
    )
