"""The law of rows (see `rows`) as a recurrence: `advance` is the only copy of it here, and `refuse` says where it would not do.

Every time is a sum or a maximum of earlier ones, so the same lines run on whatever has `+` and a maximum:

    ints            one chain
    unit vectors    a launch collapses to a max-plus matrix of (H, L, E[0], E[1], ...): `collapse`
    numpy arrays    replicas or a grid, an element each; launches that differ in prices alone, all collapsed at once: `vector`
    int64 in numba  the same for long runs: `jit`

What an event simulation finds with processes and queues this finds with a few additions a row; each is the other's judge.
A matrix is exact as long as no queue binds; rows with queue rings are exact always. Times are ns.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import operator
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs

from ...errors import SimulationError
from .columns import COPIES, KEPT, STREAMS, SYNC, WAITS, Columns, Same, columns_of
from .rows import Machine, Program, Row

NEVER = -(1 << 60)
"""Minus infinity: no sum of it and of a run's ns is a time."""
UNBOUNDED = -1

Launched = Callable[..., None]


def recurrence(top: Callable[[Any, Any], Any]) -> Launched:
    """The law over a `top` that gives the later of two times. What it gives moves `times`, `ends`, `rings` and `at` through a launch.

    times       H, L, E[0], E[1], ...; `streams` holds places in it
    ends        the ends of the rows that are kept, in order of rows; `waits` holds places in it, row after row
    rings, at   [0]: when the last `task` rows left the task queue, and where the oldest stands; [s]: the same of the last
                `places` rows of the device queue of the stream with that place in `times`
    task        places of the task queue; 0: there is none, the lane launches; UNBOUNDED: no queue can bind, no ring is kept
    """

    def advance(
        times: Any, ends: Any, latency: int, hosts: Any, launchers: Any, devices: Any, aicpus: Any, syncs: Any,
        streams: Any, notes: Any, waits: Any, rings: Any, at: Any, task: int, places: int,
    ) -> None:  # fmt: skip
        lane, launcher, bounded, place, awaited, kept = times[0], times[1], task != UNBOUNDED, at[0], 0, 0
        for host, launch, device, aicpu, sync, stream, note in zip(hosts, launchers, devices, aicpus, syncs, streams, notes):  # noqa: B905
            free = times[stream]
            if note and note & SYNC:  # most rows have none, and each is asked three times
                lane = top(lane, launcher)
                lane = top(lane, free) + sync
            lane = lane + host
            if bounded and task:
                lane = top(lane, rings[0][place])
            begin = top(lane, launcher)
            if bounded:
                begin = top(begin, rings[stream][at[stream]])
                if task:
                    rings[0][place] = begin
                    place = place + 1 if place + 1 < task else 0
                else:
                    lane = begin
            launcher = begin + launch
            ready = launcher + latency
            start = top(ready, free)
            if note and note >= WAITS:
                for _ in range(note // WAITS):
                    start = top(start, ends[waits[awaited]])
                    awaited += 1
            start = start + aicpu
            if bounded:
                rings[stream][at[stream]] = start
                at[stream] = at[stream] + 1 if at[stream] + 1 < places else 0
            end = start + device
            times[stream] = end
            if note and note & KEPT:
                ends[kept] = end
                kept += 1
        times[0], times[1], at[0] = lane, launcher, place

    return advance


class _WriteOut(ast.NodeTransformer):
    """`top(a, b)` becomes `a if a > b else b`."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if not (isinstance(node.func, ast.Name) and node.func.id == "top"):
            return node
        left, right = node.args
        return ast.IfExp(ast.Compare(left, [ast.Gt()], [right]), left, right)


def rewritten(law: Launched, by: ast.NodeTransformer, **names: Any) -> Launched:
    """The law in other words, for those who are slow at these. `names`: what it finds where it was made. Without its source, as it is."""
    try:
        source = textwrap.dedent(inspect.getsource(law))
    except OSError:
        return law
    tree = ast.increment_lineno(ast.fix_missing_locations(by.visit(ast.parse(source))), law.__code__.co_firstlineno - 1)
    scope: dict[str, Any] = {}
    exec(compile(tree, law.__code__.co_filename, "exec"), {**globals(), **names}, scope)
    return scope[law.__name__]  # type: ignore[no-any-return]


def _lists(rows: int, places: int) -> tuple[list[list[int]], list[int]]:
    return [[0] * places for _ in range(rows)], [0] * rows


class Arithmetic(NamedTuple):
    """What times are. `advance` is the law over them, `latest` and `earliest` are of several, `rings` makes empty queue rings."""

    advance: Launched
    latest: Callable[[Iterable[Any]], Any] = max
    earliest: Callable[[Iterable[Any]], Any] = min
    rings: Callable[[int, int], tuple[Any, Any]] = _lists


INTS = Arithmetic(rewritten(recurrence(max), _WriteOut()))
"""Python's own ints: one chain, nothing to install. A call of `max` takes CPython as long as all the rest of a row."""


# ---- through a launch ----


class State:
    """Where lane, launcher and streams of a machine are: `times` is [H, L, E[0], E[1], ...]; `copied` is where its d2h engine is.

    All are at `begin_ns`, all queues empty.

    bounded     keep queue rings. Without them a launch goes through as if no queue could bind: see `queues_bind`
    """

    def __init__(self, machine: Machine, bounded: bool = True, begin_ns: int = 0, of: Arithmetic = INTS) -> None:
        self.machine, self.of = machine, of
        self.task = (machine.task if machine.level else 0) if bounded else UNBOUNDED
        self.times: list[Any] = [begin_ns] * (STREAMS + machine.streams)
        self.copied: Any = begin_ns
        self.rings, self.at = of.rings(len(self.times), max(self.task, machine.device)) if bounded else of.rings(1, 1)


class Outcome(NamedTuple):
    """Of a launch: when its first operator began and its last one ended on the device, and when the host may have its results."""

    begin_ns: Any
    end_ns: Any
    done_ns: Any


def advance(program: Program | Columns, state: State) -> Outcome:
    """Move the state through a launch that the lane begins to enqueue at `state.times[0]`. Raises SimulationError as `columns` does."""
    of = columns_of(program)
    return _outcome(state, *through(of, state), of.counts, of.d2h)


def through(of: Columns, state: State) -> tuple[list[Any], list[Any]]:
    """Move the times; return when the first operator on each stream begins and when the last one ends."""
    last = max(stream for stream, _ in of.counts)
    if last >= len(state.times):
        raise SimulationError(f"launch {of.kind!r} uses stream {last - STREAMS}; this machine has {state.machine.streams}")
    ends: list[Any] = [0] * of.kept
    state.of.advance(
        state.times, ends, state.machine.latency_ns, of.host, of.launcher, of.device, of.aicpu, of.sync,
        of.stream, of.note, of.waits, state.rings, state.at, state.task, state.machine.device,
    )  # fmt: skip
    return [ends[place] - of.device[number] for place, number in of.first], [ends[place] for place in of.last]


def _outcome(state: State, begins: Sequence[Any], ends: Sequence[Any], counts: Sequence[tuple[int, int]], d2h: Any) -> Outcome:
    """The results of all launches go through one copy engine, in the order of the launches."""
    latest, times = state.of.latest, state.times
    done = latest([times[stream] for stream, _ in counts])
    if not isinstance(d2h, int) or d2h:
        state.copied = done = latest((state.copied, done)) + d2h
    return Outcome(state.of.earliest(begins), latest(ends), done)


# ---- a launch as a matrix ----


class Matrix(NamedTuple):
    """A launch as a max-plus map of `State.times`: a row for each of the new times, then for the first begins, then for the last ends."""

    rows: Sequence[Sequence[int]]
    counts: tuple[tuple[int, int], ...]
    """See `Columns.counts`."""
    d2h: int
    kind: str


def collapse(program: Program | Columns, machine: Machine) -> Matrix:
    """A launch as a matrix, remembered. Column c is what becomes of times that are 0 at place c and never anywhere else."""
    return _collapse(Same(program), machine.streams, machine.latency_ns)


@functools.lru_cache(maxsize=256)
def _collapse(same: Same, streams: int, latency_ns: int) -> Matrix:
    of, results = columns_of(same.program), []
    for unit in range(STREAMS + streams):
        state = State(Machine(latency_ns=latency_ns, streams=streams), bounded=False)
        state.times = [0 if place == unit else NEVER for place in range(STREAMS + streams)]
        begins, ends = through(of, state)
        results.append((*state.times, *begins, *ends))
    return Matrix(tuple(zip(*results, strict=True)), of.counts, of.d2h, of.kind)


def apply(matrix: Matrix, state: State) -> Outcome:
    """What `advance` does, at the cost of a few additions for the whole launch. Exact only where no queue can bind."""
    latest, times = state.of.latest, state.times
    moved = [latest(map(operator.add, row, times)) for row in matrix.rows]
    begins, ends = len(times), (len(times) + len(moved)) // 2
    state.times = moved[:begins]
    return _outcome(state, moved[begins:ends], moved[ends:], matrix.counts, matrix.d2h)


# ---- where this would not do ----


@attrs.frozen(kw_only=True)
class Config:
    """What decides whether a run is a fixed schedule of launches, so that matrices give its times exactly."""

    programs: Sequence[Program]
    """Of each step, in order."""
    depth: int
    machine: Machine = attrs.Factory(Machine)
    lanes: int = 1
    """Host threads that run stages."""
    cores: int | None = None
    """Host cores for these lanes and the task queue's thread; None: one each."""
    gil: bool = False
    """The lanes are threads of one interpreter with a GIL."""
    shared_cores: bool = False
    """Operators on several streams share the device's cores, and slow each other."""
    decides: bool = False
    """A scheduler of somebody's own decides as it goes what is launched."""
    amends: bool = False
    idle: bool = False
    """Plans may answer IDLE or WAIT."""
    arrivals: bool = False
    """Requests arrive at times of their own."""
    late: bool = False
    """Plans begin when a prediction says so: `plan_when="late"`."""
    aborts: bool = False
    faults: bool = False
    drawn: bool = False
    """Prices are drawn per operator."""


def refuse(config: Config) -> tuple[str, ...]:
    """Why matrices would not give this run's times exactly, a reason each; () if they do."""
    return tuple(itertools.chain.from_iterable(reason(config) for reason in _REASONS))


def queues_bind(programs: Sequence[Program | Columns | Matrix], depth: int, machine: Machine) -> tuple[str, ...]:
    """Which queues may be full, a sentence each: those shorter than the operators of some `depth` consecutive steps.

    Where a queue holds them all it never binds: step k is launched only when step k - depth has retired.
    """
    rows = [dict(program.counts if isinstance(program, Matrix) else columns_of(program).counts) for program in programs]
    task = _most([sum(on.values()) for on in rows], depth)
    device = max(_most([on.get(STREAMS + stream, 0) for on in rows], depth) for stream in range(machine.streams))
    queues = [("the task queue", machine.task, task)] * (machine.level > 0) + [("a device queue", machine.device, device)]
    return tuple(
        f"{name} holds {holds} operators, and {depth} consecutive steps have up to {most}" for name, holds, most in queues if most > holds
    )


def _most(numbers: Sequence[int], depth: int) -> int:
    sums = (0, *itertools.accumulate(numbers))
    return max((sums[min(i + depth, len(numbers))] - sums[i] for i in range(len(numbers))), default=0)


def _distinct(config: Config) -> Iterable[Program]:
    return {id(program): program for program in config.programs}.values()


def _operators(config: Config) -> Iterator[Row]:
    return (row for program in _distinct(config) for row in program.rows if row.op not in COPIES)


def _queues(config: Config) -> Iterable[str]:
    return queues_bind(config.programs, config.depth, config.machine)


def _lanes(config: Config) -> Iterator[str]:
    threads = config.lanes + (config.machine.level > 0)
    if config.gil and config.lanes > 1:
        yield f"{config.lanes} host lanes take the GIL in no fixed order"
    if config.cores is not None and config.cores < threads:
        yield f"host lanes and launcher are {threads} threads and share {config.cores} of the host's cores, in no fixed order"
    if config.lanes > 1 and config.amends:
        yield "the order of a lane depends on timing: the execution lane finishes an amended step or prepares the next, as they come"


def _device(config: Config) -> Iterator[str]:
    streams = {row.stream for row in _operators(config)}
    tilers = {row.stream for row in _operators(config) if row.aicpu_ns}
    ends = {frozenset(row.stream for row in program.rows) for program in _distinct(config) if program.d2h_ns}
    if config.shared_cores and len(streams) > 1:
        yield f"{len(streams)} streams share the device's cores"
    if len(tilers) > config.machine.aicpu_workers:
        yield f"{len(tilers)} streams tile on an AICPU pool of {config.machine.aicpu_workers}, in no fixed order"
    if len(ends) > 1:
        yield "launches end on different streams, so that their results come to the copy engine in no fixed order"


def _events(config: Config) -> Iterator[str]:
    told = {
        "decides": "a scheduler decides as it goes what is launched",
        "amends": "steps are amended",
        "idle": "plans may answer IDLE or WAIT",
        "arrivals": "requests arrive at times of their own",
        "late": "plans begin when a prediction says so",
        "aborts": "requests are aborted while the run goes on",
        "faults": "steps may fail",
        "drawn": "prices are drawn per operator: every step is a program of its own, and a matrix holds one",
    }
    return (reason for name, reason in told.items() if getattr(config, name))


_REASONS: tuple[Callable[[Config], Iterable[str]], ...] = (_queues, _lanes, _device, _events)
