"""The recurrence, judged by events: kernel, SimPy, and the drivers' own runs; its other forms by itself; its limits by what goes wrong."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ovsdk
from ovsdk import saturated
from ovsdk.backends.sim import SimBackend, fixed, jit, load_prices, maxplus, shipped, vector
from ovsdk.backends.sim.columns import Columns, columns
from ovsdk.backends.sim.fixed import DEEPER_IS_SLOWER, MS, Stages, simulate
from ovsdk.backends.sim.host import HostModel
from ovsdk.backends.sim.lower import lower
from ovsdk.backends.sim.maxplus import INTS, Arithmetic, Config, State, advance, apply, collapse, queues_bind, recurrence, refuse
from ovsdk.backends.sim.prices import Prices
from ovsdk.backends.sim.rows import Machine, Program, Row
from ovsdk.errors import ConfigError, SimulationError
from ovsdk.ledger import LAUNCH, PLAN, PREPARE, RETIRE
from ovsdk.saturated import Saturated
from ovsdk.timeline import Timeline
from ovsdk.types import TILING_SYNC

from .rows_judge import Twists, launches, on_simpy, whole

DRIVERS = ("inline", "threads")
PROGRAMS, PARTS, SIMPY = 30_000, 6, 6
"""Random cases, in how many tests, and of how many of them one goes to SimPy too."""


class Case(NamedTuple):
    """Launches with the lane's time before each, on a machine."""

    programs: list[Program]
    gaps: list[int]
    machine: Machine


def random_case(draw: Any) -> Case:
    """Up to three launches of up to twelve rows; half of the machines have queues that bind."""
    largest, level, streams = draw.choice((3, 20, 1000)), draw.choice((0, 1, 1, 2)), draw.choice((1, 1, 2))

    def ns() -> int:
        return draw.choice((0, draw.randrange(largest)))

    def row(number: int) -> Row:
        sync, aicpu = (ns() if draw.random() < 0.15 else -1), (ns() if draw.random() < 0.2 else 0)
        waits = tuple(other for other in range(number) if draw.random() < 0.1)
        return Row("op", ns(), ns() if level else 0, ns(), draw.randrange(streams), sync, aicpu, waits)

    places = (draw.randint(1, 6), draw.randint(1, 6)) if draw.random() < 0.5 else (64, 64)
    machine = Machine(level, *places, latency_ns=ns(), streams=streams)
    programs = [Program("launch", tuple(map(row, range(draw.randint(1, 12)))), ns()) for _ in range(draw.randint(1, 3))]
    return Case(programs, [ns() for _ in programs], machine)


class Run(NamedTuple):
    """A whole run."""

    programs: list[Program]
    stages: list[Stages]
    depth: int
    machine: Machine


def random_run(draw: Any) -> Run:
    """Up to six steps, some of them with the same launch. Results are copied only where that has a fixed order."""
    case = random_case(draw)
    ordered = len({frozenset(row.stream for row in program.rows) for program in case.programs}) == 1
    programs = [program if ordered else program._replace(d2h_ns=0) for program in case.programs]
    steps = [draw.choice(programs) for _ in range(draw.randint(1, 6))]
    largest = draw.choice((1, 5, 40))
    return Run(steps, [Stages(*(draw.randrange(largest) for _ in range(4))) for _ in steps], draw.randint(1, 4), case.machine)


def without_syncs(run: Run) -> Run:
    """The same with rows that never sync, and queues that never bind."""
    programs = [p._replace(rows=tuple(row._replace(sync_ns=-1) for row in p.rows)) for p in run.programs]
    return run._replace(programs=programs, machine=run.machine._replace(task=64, device=64))


draws = st.randoms(use_true_random=False)


def retired(run: Run, driver: str = "inline", **options: Any) -> list[int]:
    times = simulate(run.programs, run.stages, run.depth, machine=run.machine, driver=driver, **options)
    return [trip.retired_ns for trip in times.trips]


def through(case: Case, step: Callable[[Program, State], Any], bounded: bool = True, of: Arithmetic = INTS) -> list[tuple[int, int, int]]:
    """What the judges tell of a case, by the recurrence."""
    state, found = State(case.machine, bounded, of=of), []
    for program, gap in zip(case.programs, case.gaps, strict=True):
        state.times[0] += gap
        outcome = step(program, state)
        found.append((state.times[0], outcome.begin_ns, outcome.end_ns))
    return found


def by_matrix(program: Program, state: State) -> Any:
    return apply(collapse(program, state.machine), state)


# ---- against events ----


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_kernel_recurrence_simpy_and_matrix_agree_on_random_programs(part: int) -> None:
    matrices = 0
    for seed in range(part, PROGRAMS, PARTS):
        case = random_case(random.Random(seed))
        found = through(case, advance)
        assert found == launches(*case), seed
        assert seed // PARTS % SIMPY or found == on_simpy(*case), seed
        if not queues_bind(case.programs, len(case.programs), case.machine):
            matrices += 1
            assert found == through(case, by_matrix, bounded=False), seed
    assert matrices > PROGRAMS / PARTS / 3


@pytest.mark.slow
def test_whole_runs_agree_with_events() -> None:
    for seed in range(2000):
        run = random_run(random.Random(seed))
        for driver in DRIVERS:
            found = retired(run, driver)
            assert found == whole(*run, two=driver == "threads"), (seed, driver)
            if not queues_bind(run.programs, run.depth, run.machine):
                assert found == retired(run, driver, matrices=True) == retired(run, driver, matrices=False), (seed, driver)


class Priced(NamedTuple):
    """A run at the prices of a file."""

    backend: SimBackend
    kind: str
    steps: int
    depth: int
    driver: str


def whole_launches(line: Timeline | None) -> Timeline:
    """A timeline as the recurrence tells it: a launch is on the device from its first operator to its last, and no more is known."""
    assert line is not None
    host = [span for span in line.spans if span.lane in ("host", "scheduling", "execution") and span.what != TILING_SYNC]
    for step in sorted({span.step for span in line.launched}):
        of = [span for span in line.launched if span.step == step]
        host.append(of[0]._replace(begin_ns=min(s.begin_ns for s in of), end_ns=max(s.end_ns for s in of)))
    return Timeline(host, line.begin_ns, line.end_ns, line.virtual)


def assert_that_the_backend_agrees(run: Priced, graph: bool = False) -> tuple[str, ...]:
    """Stages, launches, idle time by cause and makespan are those of `ovsdk.run` on `sim`. Returns what `refuse` says."""
    backend, kind, steps, depth, driver = run
    prices, clock = backend.prices, backend.clock
    features = dict(prices.launches[kind].features)
    program = lower(prices, kind, features, tilings=clock.lowering.tilings, graph=graph)
    stages = Stages(*(clock.price_ns(stage, 0, features) for stage in (PLAN, PREPARE, LAUNCH, RETIRE)))
    ask_ns = clock.price_ns(PLAN, steps, None)
    expected = ovsdk.run(Saturated(steps, kind, features), saturated.Priced(), backend, depth=depth, driver=driver)
    times = simulate([program] * steps, [stages] * steps, depth, driver=driver, machine=prices.machine, ask_ns=ask_ns)
    found, line = fixed.report(times), whole_launches(expected.timeline)
    assert found.timeline is not None
    for name in ("end_ns", "retired_ns", "launched", "stages", "idle_ns"):
        assert getattr(found.timeline, name) == getattr(line, name), (name, run)
    for name in ("steps", "asks", "depth", "driver", "backend", "virtual", "makespan_s", "stage_s", "step_s"):
        assert getattr(found, name) == getattr(expected, name), (name, run)
    return refuse(Config(programs=[program] * steps, depth=depth, machine=prices.machine, lanes=1 + (driver == "threads")))


def choices(prices: Prices) -> Iterator[tuple[str, dict[str, str], bool]]:
    """Launch kind, tilings and graph: all that a price file offers, one other tiling at a time."""
    others = [{name: placement} for name, op in prices.ops.items() if len(op.placements) > 1 for placement in op.placements]
    for kind, launch in prices.launches.items():
        yield from ((kind, tiling, False) for tiling in ({}, *others))
        if launch.graph is not None:
            yield from ((kind, tiling, True) for tiling in ({}, *others) if "host-value" not in tiling.values())


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("profile", shipped())
def test_shipped_profiles_give_the_backends_times(profile: str, driver: str) -> None:
    prices = load_prices(profile)
    alone = attrs.evolve(prices, hardware=attrs.evolve(prices.hardware, host=HostModel()))  # no GIL, and cores enough
    for (kind, tilings, graph), depth, level in itertools.product(choices(prices), (1, 2, 3), (0, 1, 2)):
        backend = SimBackend(alone, tilings=tilings, graph=graph, level=level, by_events=True)
        assert assert_that_the_backend_agrees(Priced(backend, kind, 5, depth, driver), graph) == ()


def random_prices(draw: random.Random) -> dict[str, Any]:
    """A price file with everything in it; most of its queues bind."""

    def us() -> float:
        return draw.choice((0, draw.randrange(20))) / draw.choice((1, 1000))

    def op() -> dict[str, Any]:
        side = {"stream": "side"} if draw.random() < 0.3 else {}
        value = {"value_bytes": draw.randrange(100), "tiling": "host-value", "placement": {"host-value": {"tiling_us": us()}}}
        times = {f"{name}_us": us() for name in ("host", "launcher", "device", "aicpu")}
        return {**times, **side, **(value if draw.random() < 0.3 else {})}

    def copy() -> dict[str, Any]:
        return {"latency_us": us(), "gb_per_s": 1, "pinned": draw.random() < 0.7}

    names = [draw.choice("abcd") for _ in range(draw.randint(1, 8))]
    queue = {"level": draw.choice((0, 1, 2)), "task": draw.randint(1, 6), "device": draw.randint(1, 6)}
    return {
        "schema": 1,
        "machine": {"queue": queue, "d2h": copy(), "h2d": copy(), "launch_latency_us": us(), "aicpu_workers": 2},
        "stage": {f"{name}_us": us() for name in ("plan", "prepare", "launch", "retire", "ask")},
        "launch": {"step": {"ops": names, "inputs_bytes": draw.randrange(3000), "result_bytes": draw.choice((0, draw.randrange(9000)))}},
        "op": {name: op() for name in sorted(set(names))},
    }


def test_random_price_files_give_the_backends_times() -> None:
    refused = 0
    for seed in range(400):
        draw = random.Random(seed)
        backend = SimBackend(random_prices(draw), by_events=True)
        refused += bool(
            assert_that_the_backend_agrees(Priced(backend, "step", draw.randint(1, 6), draw.randint(1, 4), draw.choice(DRIVERS)))
        )
    assert 100 < refused < 390, "queues that bind, and queues that do not"


def operators(tiling: str, position: int = 57) -> Program:
    """The operators of the published case's price file, with the value-dependent one at a position."""

    def row(us: int, **more: Any) -> Row:
        return Row("op", 60_000, 40_000, us * 1000, **more)

    tilings = {
        "host-shape": [row(80)],
        "host-value": [row(80, sync_ns=70_000)],
        "in-kernel": [row(82)],
        "device-metadata": [row(6), row(80)],
        "aicpu": [row(80, aicpu_ns=25_000)],
    }
    rows = [row(100), *[row(640), row(900)] * 28, row(1700)]
    rows[position:position] = tilings[tiling]
    return Program("decode", tuple(rows), 30_000)


def step_ms(program: Program, depth: int) -> float:
    times = simulate([program] * 40, [Stages(12 * MS, 10 * MS, 0, 11_860_000)] * 40, depth, machine=Machine(latency_ns=10_000))
    ends = [trip.retired_ns for trip in times.trips]
    return (ends[-3] - ends[20]) / 17 / MS


PUBLISHED = {
    (1, "host-shape", 57): 79.0,
    (2, "host-shape", 57): 45.0,
    (2, "host-value", 57): 77.38,
    (2, "host-value", 29): 57.5,
    (2, "host-value", 1): 45.18,
    (2, "in-kernel", 57): 45.002,
    (2, "device-metadata", 57): 45.006,
    (2, "aicpu", 57): 45.025,
    (3, "host-value", 57): 77.38,
}


@pytest.mark.parametrize(("case", "expected"), PUBLISHED.items(), ids=map(str, PUBLISHED))
def test_the_published_case_operator_by_operator(case: tuple[int, str, int], expected: float) -> None:
    depth, tiling, position = case
    assert step_ms(operators(tiling, position), depth) == pytest.approx(expected, abs=1e-9)


# ---- one recurrence, several arithmetics ----


@settings(max_examples=100)
@given(draws)
def test_written_out_or_called_the_maximum_is_the_same(draw: Any) -> None:
    case = random_case(draw)
    assert through(case, advance) == through(case, advance, of=Arithmetic(recurrence(max)))


def test_without_sources_the_law_calls_its_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    law = recurrence(max)
    assert maxplus.rewritten(law, maxplus._WriteOut()) is not law

    def missing(_: object) -> str:
        raise OSError("no source")

    monkeypatch.setattr(inspect, "getsource", missing)
    assert maxplus.rewritten(law, maxplus._WriteOut()) is law


DURATIONS = ("host", "launcher", "device", "aicpu", "sync")


def varied(of: Columns, count: int, draw: np.random.Generator) -> Columns:
    """Replicas of a program: `count` of each duration, where it has one."""
    rows = {name: np.array(getattr(of, name), np.int64)[:, np.newaxis] for name in DURATIONS}
    return of._replace(**{name: column * draw.integers(0, 4, (len(column), count)) for name, column in rows.items()})


def one_of(many: Columns, number: int) -> Columns:
    return many._replace(**{name: getattr(many, name)[:, number].tolist() for name in DURATIONS})


def compiled() -> list[Any]:
    missing = pytest.mark.skipif(not jit.available(), reason="needs numba: pip install 'ovsdk[fast]'")
    return [pytest.param(lambda _: vector.ARRAYS, id="numpy"), pytest.param(jit.arrays, id="numba", marks=missing)]


@pytest.mark.parametrize("arithmetic", compiled())
@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_replicas_are_runs_of_their_own(arithmetic: Callable[[int], Arithmetic], seed: int) -> None:
    run, count, draw = random_run(random.Random(seed)), 5, np.random.default_rng(seed)
    many = {id(p): varied(columns(p), count, draw) for p in run.programs}
    stages = [Stages(*(draw.integers(0, 30, count) for _ in range(4))) for _ in run.stages]
    replicas = run._replace(programs=[many[id(p)] for p in run.programs], stages=stages)
    found = np.array(np.broadcast_arrays(*retired(replicas, of=arithmetic(count), matrices=False)))
    for number in range(count):
        single = {id(p): one_of(p, number) for p in replicas.programs}
        alone = run._replace(
            programs=[single[id(p)] for p in replicas.programs], stages=[Stages(*(int(ns[number]) for ns in s)) for s in stages]
        )
        assert found[:, number].tolist() == retired(alone)


@pytest.mark.skipif(not jit.available(), reason="needs numba: pip install 'ovsdk[fast]'")
def test_compiled_the_law_is_the_same() -> None:
    for seed in range(500):
        case = random_case(random.Random(seed))
        assert through(case, advance, of=jit.ints()) == through(case, advance), seed
        assert through(case, advance, bounded=False, of=jit.ints()) == through(case, advance, bounded=False), seed


@pytest.mark.skipif(not jit.available(), reason="needs numba: pip install 'ovsdk[fast]'")
@pytest.mark.parametrize(("unit_ns", "kind"), [(1, np.int32), (1 << 31, np.int64)])
def test_columns_typed_beforehand_are_as_wide_as_their_times(unit_ns: int, kind: type) -> None:
    for seed in range(100):
        case = random_case(random.Random(seed))
        programs = [columns(p._replace(rows=tuple(in_units(row, unit_ns) for row in p.rows))) for p in case.programs]
        given, kept = (case._replace(programs=of) for of in (list(map(jit.typed, programs)), programs))
        assert {column.dtype for p in given.programs for column in (p.host, p.device) if column.any()} <= {np.dtype(kind)}
        assert through(given, advance, of=jit.ints()) == through(kept, advance), seed


def in_units(row: Row, ns: int) -> Row:
    return row._replace(host_ns=row.host_ns * ns, launcher_ns=row.launcher_ns * ns, device_ns=row.device_ns * ns)


def test_without_numba_it_is_said_and_replicas_run_in_lockstep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "available", lambda: False)
    assert jit.arrays(7) is vector.ARRAYS
    with pytest.raises(ConfigError, match=r"numba is not installed; pip install 'ovsdk\[fast\]'"):
        jit.ints()


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_launches_collapsed_at_once_are_those_collapsed_alone(seed: int) -> None:
    case, count = random_case(random.Random(seed)), 4
    many = varied(columns(case.programs[0]), count, np.random.default_rng(seed))
    found = vector.matrices(many, case.machine)
    for number, matrix in enumerate(found):
        state, expected = State(case.machine, bounded=False, begin_ns=10**6), State(case.machine, bounded=False, begin_ns=10**6)
        assert apply(matrix, state) == advance(one_of(many, number), expected)
        assert state.times == expected.times
        assert (matrix.counts, matrix.d2h, matrix.kind) == (many.counts, many.d2h, many.kind)


def test_a_launch_is_collapsed_once_and_only_where_that_pays() -> None:
    often, once = operators("host-value"), operators("aicpu")
    stages = [Stages(1, 1, 1, 1)] * 9
    times = simulate([often] * 8 + [once], stages, 2)
    assert times.matrices == 8
    assert collapse(often, Machine()) is collapse(often, Machine())
    assert simulate([often] * 9, stages, 2, machine=Machine(task=64)).matrices == 0
    assert simulate([often, once] + [often] * 7, stages, 2, matrices=True).matrices == 9


# ---- laws ----


def lengthened(run: Run, step: int, row: int, field: str, ns: int) -> Run:
    program = run.programs[step % len(run.programs)]
    rows = list(program.rows)
    old = rows[row % len(rows)]
    rows[row % len(rows)] = old._replace(**{field: getattr(old, field) + ns * (field != "sync_ns" or old.sync_ns >= 0)})
    programs = list(run.programs)
    programs[step % len(programs)] = program._replace(rows=tuple(rows))
    return run._replace(programs=programs)


fields = st.sampled_from(("host_ns", "launcher_ns", "device_ns", "aicpu_ns", "sync_ns"))


@pytest.mark.parametrize("driver", DRIVERS)
@settings(max_examples=150)
@given(draws, st.integers(0, 5), st.integers(0, 11), fields, st.integers(1, 30))
def test_nothing_ends_sooner_for_a_longer_operator(driver: str, draw: Any, step: int, row: int, field: str, ns: int) -> None:
    run = random_run(draw)
    longer = lengthened(run, step, row, field, ns)
    assert all(early <= late for early, late in zip(retired(run, driver), retired(longer, driver), strict=True))


@pytest.mark.parametrize("driver", DRIVERS)
@settings(max_examples=150)
@given(draws)
def test_without_syncs_and_full_queues_a_deeper_run_ends_no_later(driver: str, draw: Any) -> None:
    run = without_syncs(random_run(draw))
    ends = [retired(run._replace(depth=depth), driver)[-1] for depth in (1, 2, 3, 4)]
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize("driver", DRIVERS)
@settings(max_examples=150)
@given(draws)
def test_overlap_is_never_slower_than_serial_and_never_faster_than_its_parts(driver: str, draw: Any) -> None:
    run = random_run(draw)
    ends = [retired(run._replace(depth=depth), driver)[-1] for depth in (1, 2, 3, 4)]
    assert max(ends) == ends[0]
    assert min(ends) >= max(longest_lane(run, driver), *on_device(run))


def longest_lane(run: Run, driver: str) -> int:
    rows = [sum(row.host_ns + max(row.sync_ns, 0) for row in program.rows) for program in run.programs]
    execution = sum(rows) + sum(stages.prepare + stages.launch for stages in run.stages)
    scheduling = sum(stages.plan + stages.retire for stages in run.stages)
    return execution + scheduling if driver == "inline" else max(execution, scheduling)


def on_device(run: Run) -> list[int]:
    streams = range(run.machine.streams)
    return [sum(row.device_ns for program in run.programs for row in program.rows if row.stream == stream) for stream in streams]


def test_with_syncs_depth_3_can_be_slower_than_depth_2() -> None:
    programs, stages = zip(*DEEPER_IS_SLOWER * 20, strict=True)
    ends = {depth: simulate(programs, stages, depth).trips for depth in (1, 2, 3, 4)}
    assert {depth: (trips[31].retired_ns - trips[11].retired_ns) / 10 / MS for depth, trips in ends.items()} == {1: 2, 2: 1, 3: 2, 4: 1}
    for depth, trips in ends.items():
        assert [trip.retired_ns for trip in trips] == whole(programs, stages, depth, Machine())


def test_a_full_queue_can_do_the_same_without_a_sync() -> None:
    plain = Program("plain", (Row("op", 0, 0, 1 * MS), Row("op", 0, 0, 0)))
    run = Run([plain] * 3, [Stages(0, 0, 0, 1 * MS)] * 3, 2, Machine(level=0, device=1))
    ends = {depth: retired(run._replace(depth=depth))[-1] for depth in (2, 3)}
    assert ends[2] < ends[3]
    assert ends == {depth: whole(*run._replace(depth=depth))[-1] for depth in (2, 3)}


# ---- refusals: forcing the fast path gives a wrong makespan ----


def rows(count: int, **times: Any) -> tuple[Row, ...]:
    return tuple(Row("op", **{"host_ns": 1, "launcher_ns": 1, "device_ns": 4, **times}) for _ in range(count))


PLAIN = Program("plain", rows(4))
TWO_STREAMS = Program("two", (*rows(2), *rows(2, stream=1)))
AICPU = Program("aicpu", (*rows(1, aicpu_ns=9), *rows(1, aicpu_ns=9, stream=1)))
SLOW_LAUNCHER = Program("slow", (*rows(1, host_ns=60, launcher_ns=20), *rows(3, launcher_ns=20)))
LEFT, RIGHT = Program("left", rows(1, device_ns=90), 50), Program("right", rows(1, stream=1), 50)
STAGES = Stages(3, 3, 1, 3)
TWO = Machine(streams=2)


class Refused(NamedTuple):
    """Why, in words of the reason; what the config says; what events make of it."""

    match: str
    config: dict[str, Any]
    twists: Twists = Twists()
    stages: Stages = STAGES
    cured: dict[str, Any] = {}  # noqa: RUF012
    """What else is other where it is not refused."""


ANYTHING = {"programs": [PLAIN] * 6}
REFUSED = {
    "task queue": Refused("the task queue holds 2 operators, and 2 consecutive steps have up to 8",
        {"programs": [SLOW_LAUNCHER] * 6, "machine": Machine(task=2)}),
    "device queue": Refused("a device queue holds 1 operators, and 2 consecutive steps have up to 8",
        {**ANYTHING, "machine": Machine(device=1, latency_ns=5)}),
    "GIL": Refused("2 host lanes take the GIL", {**ANYTHING, "lanes": 2, "gil": True}, Twists(host=1)),
    "cores": Refused("launcher are 3 threads and share 1 of", {**ANYTHING, "lanes": 2, "cores": 1}, Twists(host=1)),
    "lane order": Refused("the order of a lane depends on timing",
        {"programs": [Program("short", rows(1, device_ns=0))] * 6, "lanes": 2, "amends": True, "depth": 3},
        Twists(eager=True), Stages(3, 0, 0, 1)),
    "shared cores": Refused("2 streams share the device's cores",
        {"programs": [TWO_STREAMS] * 6, "machine": TWO, "shared_cores": True}, Twists(device=1)),
    "AICPU pool": Refused("2 streams tile on an AICPU pool of 1", {"programs": [AICPU] * 6, "machine": TWO}, Twists(aicpu=1)),
    "copy engine": Refused("launches end on different streams",
        {"programs": [LEFT, RIGHT] * 3, "machine": TWO}, cured={"programs": [LEFT, LEFT] * 3}),
    "own scheduler": Refused("decides as it goes", {**ANYTHING, "decides": True}, Twists(aborted_ns=30)),
    "idle": Refused("IDLE or WAIT", {**ANYTHING, "idle": True}, Twists(arrivals=[0, 0, 0, 500, 500, 500])),
    "arrivals": Refused("arrive at times", {**ANYTHING, "arrivals": True}, Twists(arrivals=range(0, 600, 100))),
    "late": Refused("a prediction", {**ANYTHING, "late": True}, Twists(arrivals=range(0, 300, 50))),
    "aborts": Refused("aborted", {**ANYTHING, "aborts": True}, Twists(aborted_ns=40)),
    "faults": Refused("may fail", {**ANYTHING, "faults": True}, Twists(fails=2)),
}  # fmt: skip


def makespans(config: Config, twists: Twists, each: Stages) -> tuple[int, int]:
    """By the fast path, forced, and by events."""
    stages = [each] * len(config.programs)
    driver = DRIVERS[config.lanes - 1]
    forced = simulate(config.programs, stages, config.depth, driver=driver, machine=config.machine, matrices=True)
    return forced.makespan_ns, whole(config.programs, stages, config.depth, config.machine, config.lanes == 2, twists)[-1]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_would_be_wrong(name: str) -> None:
    match, said, twists, stages, _ = REFUSED[name]
    config = Config(**{"depth": 2, **said})
    assert match in " ".join(refuse(config))
    forced, true = makespans(config, twists, stages)
    assert forced != true


@pytest.mark.parametrize("name", REFUSED)
def test_the_same_without_its_reason_is_not_refused_and_right(name: str) -> None:
    kept = {key: value for key, value in REFUSED[name].config.items() if key in ("programs", "lanes", "depth")}
    config = Config(**{"depth": 2, **kept, "machine": Machine(streams=2, latency_ns=5, aicpu_workers=2), **REFUSED[name].cured})
    assert refuse(config) == ()
    forced, true = makespans(config, Twists(), REFUSED[name].stages)
    assert forced == true


def test_prices_drawn_per_operator_are_refused_for_a_matrix_holds_one_program() -> None:
    drawn = [Program("drawn", rows(4, device_ns=ns)) for ns in (4, 9, 2, 30, 1, 7)]
    assert "drawn per operator" in " ".join(refuse(Config(programs=drawn, depth=2, drawn=True)))
    stages = [STAGES] * len(drawn)
    assert simulate(drawn[:1] * 6, stages, 2).makespan_ns != whole(drawn, stages, 2, Machine())[-1]
    assert simulate(drawn, stages, 2).makespan_ns == whole(drawn, stages, 2, Machine())[-1]


def test_amends_are_refused_with_one_lane_too() -> None:
    assert refuse(Config(programs=[PLAIN], depth=2, amends=True)) == ("steps are amended",)


def test_a_queue_is_long_enough_when_it_holds_depth_consecutive_steps_and_not_sooner() -> None:
    programs = [Program("few", rows(2)), Program("many", rows(5)), Program("some", rows(3))] * 2
    for depth, most in ((1, 5), (2, 8), (3, 10), (6, 20)):
        assert queues_bind(programs, depth, Machine(task=most, device=most)) == ()
        assert len(queues_bind(programs, depth, Machine(task=most - 1, device=most - 1))) == 2
    assert queues_bind(programs, 2, Machine(level=0, task=1)) == ()
    assert queues_bind([TWO_STREAMS] * 2, 2, Machine(task=8, device=4, streams=2)) == ()


def test_one_stream_shares_nothing_with_another() -> None:
    config = Config(programs=[Program("plain", rows(4, aicpu_ns=3, sync_ns=2), 9)] * 2, depth=2, shared_cores=True, cores=2)
    assert refuse(config) == ()


# ---- bad input ----


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (Program("nothing", ()), "launch 'nothing' has 0 operators"),
        (Program("copies", (Row("h2d", 0, 0, 9),)), "launch 'copies' has 0 operators"),
        (Program("back", rows(1), -1), "-1 ns of d2h"),
        (Program("back", rows(2, device_ns=-3)), "row 0 of launch 'back': times and stream are ints of at least 0"),
        (Program("ahead", (Row("op", 1, 1, 1, waits=(0,)),)), r"row 0 of launch 'ahead' waits for rows \(0,\); allowed: earlier rows"),
        (Program("two", rows(1, stream=1)), "launch 'two' uses stream 1; this machine has 1"),
    ],
)
def test_a_program_that_cannot_be_is_refused(program: Program, match: str) -> None:
    with pytest.raises(SimulationError, match=match):
        advance(program, State(Machine()))


def test_a_run_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown driver 'thread' \(did you mean 'threads'\?\)"):
        simulate([PLAIN], [STAGES], 2, driver="thread")
    for programs, depth in (([PLAIN], 0), ([PLAIN] * 2, 1)):
        with pytest.raises(ConfigError, match="allowed: a depth of at least 1, and stages for every step"):
            simulate(programs, [STAGES], depth)
