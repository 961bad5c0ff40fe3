"""The host of the simulator: the GIL and the cores to the nanosecond by hand, their laws on random programs and over every
order of ties; then the two lanes that share them.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ovsdk
from ovsdk import AdmissionQueue
from ovsdk.backends.sim import SimBackend
from ovsdk.backends.sim.host import NATIVE, PYTHON, RELEASED, Gil, Hold, Host, HostModel, Piece, Share, Thread, pieces
from ovsdk.backends.sim.kernel import Body, Event, Kernel, sleep, wait
from ovsdk.backends.sim.lanes import LanesDriver
from ovsdk.errors import ConfigError, Deadlock

from .test_sim_kernel import every_way
from .toys import Amending, Count, Echo, Finisher, Hasher, Moody, Scripted, direct_asks

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))  # as for a script that runs there
loops, gil = importlib.import_module("_gil_loops"), importlib.import_module("gil")

SMALL = Gil(switch_ns=50, handoff_ns=3, overshoot_ns=2)
ONE_GIL = HostModel(gil=SMALL)
Program = Sequence[int | Piece]
"""What a thread does: sleeps of so many ns, without the GIL, and pieces."""


class Did(NamedTuple):
    """A piece or a sleep, with the waits for the GIL in it."""

    what: Hold | None
    ns: int
    begin: int
    end: int
    waits: tuple[tuple[int, int], ...]


def trace(model: HostModel, *programs: Program, kernel: Kernel | None = None) -> list[list[Did]]:
    """What each thread did. They come to life in the order given, at 0, and the first gets the GIL."""
    kernel = kernel or Kernel()
    host, did = Host(kernel, model), [[] for _ in programs]  # type: Host, list[list[Did]]

    def body(number: int) -> Body:
        waits: list[tuple[int, int]] = []
        thread = host.thread(f"t{number}", lambda begin, end: waits.append((begin, end)))
        for op in programs[number]:
            begin = kernel.now_ns
            waits.clear()
            yield from (thread.compute([op]) if isinstance(op, Piece) else thread.block(sleep(op)))
            what, ns = (op.hold, op.ns) if isinstance(op, Piece) else (None, op)
            did[number].append(Did(what, ns, begin, kernel.now_ns, tuple(waits)))
        thread.let_go()

    for number in range(len(programs)):
        kernel.spawn(f"t{number}", body(number))
    kernel.run()
    return did


def ends(model: HostModel, *programs: Program) -> list[list[int]]:
    return [[done.end for done in thread] for thread in trace(model, *programs)]


def python(ns: int) -> Piece:
    return Piece(ns, PYTHON)


def native(ns: int) -> Piece:
    return Piece(ns, NATIVE)


def released(ns: int) -> Piece:
    return Piece(ns, RELEASED)


# ---- the GIL by hand ----


def test_pure_python_gives_the_gil_up_at_once_when_asked():
    """B wants it at 10, asks at 10 + 50 + 2; it is there at 65, computes to 85; A, which had 138 left, is back at 88."""
    assert ends(ONE_GIL, [python(200)], [10, python(20)]) == [[88 + 138], [65, 85]]


def test_native_code_gives_the_gil_up_at_its_end():
    assert ends(ONE_GIL, [native(100), python(7)], [10, python(20)]) == [[126, 133], [103, 123]]


def test_who_blocks_gives_the_gil_up_unasked():
    assert ends(ONE_GIL, [python(30), 100], [10, python(20)]) == [[30, 130], [33, 53]]


def test_who_computes_released_gives_the_gil_up_and_needs_it_at_the_end():
    assert ends(ONE_GIL, [python(10), released(100), python(5)], [python(30)]) == [[10, 110, 115], [43]]
    assert ends(ONE_GIL, [python(10), released(20), python(5)], [python(30)]) == [[10, 46, 51], [43]]


def test_a_free_gil_costs_nothing():
    assert ends(ONE_GIL, [python(10), 100, python(10)], [50, python(10)]) == [[10, 110, 120], [50, 60]]


def test_who_is_back_before_the_one_that_was_woken_has_it_first():
    """A lets go for 2 ns, B needs 3 to be there: it finds the GIL taken, and its patience begins anew, at 33."""
    assert ends(ONE_GIL, [python(30), released(2), python(100)], [python(20)]) == [[30, 32, 111 + 47], [88 + 20]]


def test_who_let_go_when_asked_is_not_back_before_another_had_it():
    """A ends its native piece at 60, asked at 52; it would be back at 61, and B is there at 63: as CPython forces switches."""
    assert ends(ONE_GIL, [native(60), released(1), python(5)], [python(20)]) == [[86, 87, 92], [83]]


def test_a_waiter_in_whose_interval_the_gil_changed_hands_does_not_ask():
    """B asks at 52 and so waits anew, behind C, which has it from 55 to 65. A, which waits since 55, would ask B at 107."""
    got = ends(ONE_GIL, [python(200)], [python(45)], [30, python(10)])
    assert got == [[116 + 200 - 52], [68 + 45], [55, 65]]


def test_waiters_are_woken_in_the_order_in_which_they_began_to_wait():
    assert ends(ONE_GIL, [python(30)], [2, python(10)], [1, python(10)]) == [[30], [46, 56], [33, 43]]


def test_without_a_gil_nobody_waits():
    got = trace(HostModel(), [python(200)], [10, native(20)], [released(30)])
    assert [[done.end for done in thread] for thread in got] == [[200], [10, 30], [30]]
    assert not any(done.waits for thread in got for done in thread)


def test_native_threads_never_wait_for_the_gil():
    kernel = Kernel()
    host, ended = Host(kernel, ONE_GIL), []

    def launcher() -> Body:
        yield from host.native(40)
        ended.append(kernel.now_ns)

    def holds(thread: Thread) -> Body:
        yield from thread.compute([native(1000)])

    kernel.spawn("python", holds(host.thread("python")))
    kernel.spawn("launcher", launcher())
    kernel.run()
    assert ended == [40]


def test_a_verb_that_need_not_wait_keeps_the_gil():
    kernel, opened = Kernel(), Event()
    host, others = Host(kernel, ONE_GIL), []
    opened.set()

    def goes_on(thread: Thread) -> Body:
        yield from thread.compute([python(10)])
        yield from thread.block(wait(opened))
        yield from thread.compute([python(10)])
        thread.let_go()

    def waits(thread: Thread) -> Body:
        yield from thread.take()
        others.append(kernel.now_ns)

    kernel.spawn("goes on", goes_on(host.thread("goes on")))
    kernel.spawn("waits", waits(host.thread("waits")))
    kernel.run()
    assert others == [23]


# ---- cores by hand ----


@pytest.mark.parametrize(
    ("cores", "works", "expected"),
    [
        (2, [100, 100], [100, 100]),
        (1, [100, 100], [200, 200]),
        (1, [100, 30], [130, 60]),
        (2, [30, 30, 30], [45, 45, 45]),
        (2, [5, 5, 5], [8, 8, 8]),
        (1, [1, 2, 4], [3, 5, 7]),
        (3, [100, 10, 10, 10, 10], [100 + 7, 17, 17, 17, 17]),
    ],
)
def test_threads_share_cores_equally(cores, works, expected):
    assert ends(HostModel(cores=cores), *[[released(work)] for work in works]) == [[end] for end in expected]


def test_a_thread_that_comes_later_slows_the_others_from_then_on():
    assert ends(HostModel(cores=1), [python(100)], [40, python(30)]) == [[130], [40, 100]]


def test_who_waits_for_the_gil_needs_no_core():
    assert ends(HostModel(gil=SMALL, cores=1), [native(40), 1000], [python(10)]) == [[40, 1040], [53]]


def test_released_code_shares_the_core_with_the_holder():
    """A is released from 10; both go half as fast; B asks for nothing, for nobody waits."""
    assert ends(HostModel(gil=SMALL, cores=1), [python(10), released(20)], [python(10)]) == [[10, 10 + 3 + 20 + 7], [33]]


# ---- laws ----

op = st.one_of(
    st.integers(4, 90), st.builds(Piece, st.integers(1, 120), st.sampled_from([PYTHON, NATIVE])), st.builds(released, st.integers(4, 90))
)
any_op = st.one_of(st.integers(0, 90), st.builds(Piece, st.integers(0, 120), st.sampled_from(list(Hold))))
figures = st.builds(Gil, switch_ns=st.integers(1, 60), handoff_ns=st.integers(0, 3), overshoot_ns=st.integers(0, 5))


def held(thread: Sequence[Did]) -> Iterator[tuple[int, int]]:
    """When a thread had the GIL: its pieces that hold it, without the waits in them; and for no time where something else ends."""
    for done in thread:
        yield done.end, done.end
        yield from ((end, end) for _, end in done.waits)
        if done.what in (PYTHON, NATIVE):
            cuts = [done.begin, *itertools.chain(*done.waits), done.end]
            yield from ((begin, end) for begin, end in zip(cuts[::2], cuts[1::2], strict=True) if begin < end)


def assert_lawful(model: HostModel, got: list[list[Did]]) -> None:
    """Every piece takes its time and its waits; two threads never hold the GIL; it is never free for long while one waits."""
    assert model.gil is not None
    for done in itertools.chain(*got):
        assert done.end - done.begin == done.ns + sum(end - begin for begin, end in done.waits)
    busy = sorted(itertools.chain(*map(held, got)))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(span for span in busy if span[0] < span[1]))
    for begin, end in (span for done in itertools.chain(*got) for span in done.waits):
        free = begin
        for taken, let_go in [*(span for span in busy if begin <= span[1] and span[0] <= end), (end, end)]:
            assert taken - free <= model.gil.handoff_ns
            free = max(free, let_go)


@settings(max_examples=200, deadline=None)
@given(figures, st.lists(st.lists(any_op, max_size=6), min_size=1, max_size=4))
def test_random_programs_are_lawful(figures, programs):
    model = HostModel(gil=figures)
    assert_lawful(model, trace(model, *programs))


@settings(max_examples=150, deadline=None)
@given(figures, st.lists(op, max_size=8), st.lists(op, max_size=8))
def test_of_two_threads_none_waits_longer_than_interval_native_piece_and_hand_off(figures, one, other):
    """Where nobody lets go for less than a hand-off takes. Who gave way waits for the other's hand-off first."""
    got = trace(HostModel(gil=figures), one, other)
    for thread, foe in ((got[0], other), (got[1], one)):
        native_ns = max([piece.ns for piece in foe if isinstance(piece, Piece) and piece.hold is NATIVE], default=0)
        most = figures.switch_ns + figures.overshoot_ns + native_ns + figures.handoff_ns
        for done in thread:
            gave_way = figures.handoff_ns * (done.what in (PYTHON, NATIVE))
            assert all(end - begin <= most + gave_way for begin, end in done.waits)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.booleans(), st.lists(st.lists(any_op, max_size=5), min_size=1, max_size=4))
def test_cores_give_no_more_than_there_is_and_waste_less_than_a_ns_a_piece(cores, lock, programs):
    got = trace(HostModel(cores=cores, gil=SMALL if lock else None), *programs)
    work = [done for done in itertools.chain(*got) if done.what is not None]
    makespan = max((done.end for done in itertools.chain(*got)), default=0)
    assert sum(done.ns for done in work) <= cores * makespan
    if cores == 1 and not lock and not any(isinstance(op, int) for program in programs for op in program):
        assert makespan - sum(done.ns for done in work) <= len(work)
    alone = trace(HostModel(), *programs)
    assert all(shared.end >= free.end for shared, free in zip(itertools.chain(*got), itertools.chain(*alone), strict=True))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**7), st.floats(0, 1), st.integers(1, 9), st.booleans())
def test_pieces_are_all_of_the_time(ns, share, parts, native):
    got = pieces(ns, Share(share, parts, native))
    assert sum(piece.ns for piece in got) == ns
    assert abs(sum(piece.ns for piece in got if piece.hold is not RELEASED) - ns * share) <= parts
    assert len(got) <= 2 * parts
    assert all(one.hold is not other.hold for one, other in itertools.pairwise(got) if 0.01 < share < 0.99 and ns > 1000 * parts)


TIED: list[list[Program]] = [
    [[python(104)], [python(52)]],
    [[native(52), released(3), python(10)], [python(10), released(3), python(20)]],
    [[python(52), 3, python(4)], [52, python(3)], [52, released(3), python(2)]],
    [[python(10), python(10)], [10, python(52)], [10, python(1)]],
]


@pytest.mark.parametrize("programs", TIED)
def test_every_order_of_ties_is_lawful(programs):
    """The figures are chosen so that waits end, pieces end and threads wake at one instant."""
    outcomes = every_way(lambda kernel: trace(ONE_GIL, *programs, kernel=kernel))
    assert len(outcomes) > 4
    assert len({repr(outcome) for outcome in outcomes}) > 1
    for outcome in outcomes:
        assert [len(thread) for thread in outcome] == [len(program) for program in programs]
        assert_lawful(ONE_GIL, outcome)


# ---- two-thread loops ----


@pytest.mark.parametrize(("device", "host"), [(4000, 1000), (4000, 3500), (1000, 500), (2000, 3000)])
def test_launch_late_hides_what_an_interval_leaves_and_launch_ahead_everything(device, host):
    """Late: the device's thread waits for the GIL until it may ask, or until the host's blocks. Two hand-offs a step."""

    def step(programs, figures):
        begun = loops.simulated(programs, HostModel(gil=figures), host, device)["begun"]
        return (begun[-2] - begun[3]) / (len(begun) - 5)

    for switch in (5000, 100):
        figures = Gil(switch_ns=switch, handoff_ns=10, overshoot_ns=60)
        late, ahead = (step(make(12), figures) for make in (loops.launch_late, loops.launch_ahead))
        if host < switch + 60:
            assert late == device + host + 20
        elif host < device:
            assert late == device + (switch + 60) + 20
        assert max(device, host) <= ahead <= max(device, host) + (40 if host > device else 0)


def test_a_start_is_an_interval_late_or_as_late_as_the_other_blocks():
    def late(compute):
        stamps = loops.simulated(loops.woken(3), ONE_GIL, compute, 0)
        return {after - before for before, after in zip(stamps["woken"], stamps["started"], strict=True)}

    assert late(500) == {50 + 2 + 3}
    assert late(40) == {40 + 3}


@pytest.mark.parametrize("make", [loops.serial, loops.launch_late, loops.launch_ahead])
def test_both_ways_to_run_a_loop_do_all_of_it(make):
    computed: list[None] = []
    real = loops.on_threads(make(7), lambda: computed.append(None), 0.0)
    ours = loops.simulated(make(7), ONE_GIL, 5, 5)
    assert (
        {name: len(times) for name, times in real.items()} == {name: len(times) for name, times in ours.items()} == {"begun": 7, "done": 7}
    )
    assert len(computed) == 7


def test_a_hidden_share_is_of_what_could_be_hidden():
    base = gil.Serial(step=5.0, device=4.0, host=1.0)
    assert [base.hidden(step) for step in (5.0, 4.5, 4.0)] == [0, 50, 100]


# ---- lanes ----

PRICES = {
    "schema": 1,
    "stage": {"plan_us": 5, "prepare_us": 3, "launch_us": 1, "amend_us": 2, "retire_us": 4},
    "launch": {"hash": {"device_us": 10}, "finish": {"device_us": 2}},
}


def in_ns(plan, prepare, launch, retire, device):
    stages = {"plan_us": plan, "prepare_us": prepare, "launch_us": launch, "retire_us": retire}
    return {"schema": 1, "stage": {key: ns / 1000 for key, ns in stages.items()}, "launch": {"echo": {"device_us": device / 1000}}}


def machine(host):
    """A host as [machine] has it."""
    if host is None:
        return {}
    cores = {} if host.cores is None else {"cores": host.cores}
    if host.gil is None:
        return cores
    figures = {f"{name[:-3]}_us": value / 1000 for name, value in attrs.asdict(host.gil).items()}
    return {**cores, "gil": {**figures, "share": {stage: attrs.asdict(share) for stage, share in host.shares.items()}}}


def simulator(prices, host):
    return SimBackend({**prices, "machine": machine(host)})


def lanes(prices, host, depth, steps=9, backend=None):
    """The report of a run on two lanes, and its spans without waits for the GIL of no length."""
    report = ovsdk.run(Count(steps), Echo(), backend or simulator(prices, host), depth=depth, driver="threads")
    return report, [(s.lane, s.what, s.step, s.begin_ns, s.end_ns) for s in report.timeline.spans]


def test_two_lanes_take_turns_by_hand():
    """Interval 7, hand-off 1. Planning step 1 and preparing step 0 take turns, until the scheduling lane has to wait."""
    _, spans = lanes(in_ns(plan=10, prepare=20, launch=0, retire=5, device=1000), HostModel(gil=Gil(switch_ns=7, handoff_ns=1)), 2, steps=2)
    by_name = {(what, step): (begin, end) for lane, what, step, begin, end in spans if what != "wait GIL" and not what.startswith("wait")}
    assert by_name["plan", 0] == (0, 10)
    assert by_name["hand-over", 0] == (10, 18)  # taken at 10; back when the other has been asked, at 17
    assert by_name["plan", 1] == (18, 37)  # 7 done, gives it up at 25; back at 34, the last 3
    assert by_name["prepare", 0] == (10, 44)  # 7 done at 17; 26 to 33; 38 to 44
    assert by_name["echo", 0] == (44, 1044)
    assert by_name["prepare", 1] == (44, 66)  # 7 done, gives it up at 51 to the other, which blocks at 52; 53 to 66
    assert by_name["retire", 0] == (1044, 1049)
    waits = [span for span in spans if span[1] == "wait GIL"]
    assert [(begin, end) for lane, _, _, begin, end in waits if lane == "scheduling"] == [(10, 18), (25, 34), (44, 52)]
    assert [(begin, end) for lane, _, _, begin, end in waits if lane == "execution"] == [(17, 26), (33, 38), (51, 53)]


def test_a_lane_that_hands_a_step_over_and_goes_on_waits_until_it_is_taken(monkeypatch):
    """Without that, the first launch would be an interval late."""
    prices, host = in_ns(plan=1000, prepare=0, launch=0, retire=10, device=100), HostModel(gil=Gil(switch_ns=700, handoff_ns=1))

    def first_launch():
        return next(begin for _, what, step, begin, _ in lanes(prices, host, 2)[1] if (what, step) == ("echo", 0))

    assert first_launch() == 1000
    monkeypatch.setattr(LanesDriver, "_goes_on", lambda self: False)
    assert first_launch() == 1000 + 700 + 1


ns = st.integers(0, 1000)
free_gil = st.builds(Gil, switch_ns=st.integers(1, 2000), handoff_ns=st.just(0), overshoot_ns=st.integers(0, 50))
any_gil = st.builds(Gil, switch_ns=st.integers(1, 2000), handoff_ns=st.integers(0, 50), overshoot_ns=st.integers(0, 50))


def without_gil_waits(prices, host, depth):
    return sorted(span for span in lanes(prices, host, depth)[1] if span[1] not in ("wait GIL", "hand-over") and span[3] < span[4])


@settings(max_examples=60, deadline=None)
@given(free_gil, ns, ns, ns, st.integers(1, 4))
def test_with_one_lane_that_computes_a_gil_changes_nothing(figures, plan, retire, device, depth):
    prices = in_ns(plan, 0, 0, retire, device)
    assert without_gil_waits(prices, HostModel(gil=figures), depth) == without_gil_waits(prices, None, depth)


@settings(max_examples=60, deadline=None)
@given(free_gil, st.tuples(ns, ns, ns, ns, ns))
def test_serially_a_gil_changes_nothing(figures, costs):
    """At depth 1 the lanes compute one after the other."""
    assert without_gil_waits(in_ns(*costs), HostModel(gil=figures), 1) == without_gil_waits(in_ns(*costs), None, 1)


def computed(stage, waits):
    """The parts of a stage in which its lane did not wait for the GIL."""
    lane, _, _, begin, end = stage
    inside = sorted((wait[3], wait[4]) for wait in waits if wait[0] == lane and begin <= wait[3] and wait[4] <= end)
    cuts = [begin, *itertools.chain(*inside), end]
    return [(one, other) for one, other in zip(cuts[::2], cuts[1::2], strict=True) if one < other]


@settings(max_examples=60, deadline=None)
@given(any_gil, st.tuples(ns, ns, ns, ns, ns), st.integers(1, 3))
def test_no_two_lanes_compute_at_once_and_all_that_is_priced_is_done(figures, costs, depth):
    report, spans = lanes(in_ns(*costs), HostModel(gil=figures), depth)
    waits = [span for span in spans if span[1] == "wait GIL"]
    stages = [span for span in spans if span[1] in ("plan", "prepare", "launch", "retire")]
    work = sorted(itertools.chain(*(computed(stage, waits) for stage in stages)))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(work))
    assert sum(end - begin for begin, end in work) == 9 * sum(costs[:4])
    assert report.makespan_s * 1e9 >= max(9 * sum(costs[:4]), 9 * costs[4]) - 1


@settings(max_examples=40, deadline=None)
@given(st.tuples(ns, ns, ns, ns, ns), st.integers(1, 3))
def test_lanes_on_one_core_do_no_more_than_it_can(costs, depth):
    report, _ = lanes(in_ns(*costs), HostModel(cores=1), depth)
    assert report.makespan_s * 1e9 >= 9 * sum(costs[:4]) - 1
    plenty, _ = lanes(in_ns(*costs), HostModel(cores=2), depth)
    apart, _ = lanes(in_ns(*costs), None, depth)
    assert plenty.timeline.spans == apart.timeline.spans


def test_two_lanes_on_one_core_go_half_as_fast_while_both_compute():
    _, spans = lanes(in_ns(plan=10, prepare=6, launch=0, retire=0, device=1000), HostModel(cores=1), 2, steps=2)
    by_name = {(what, step): (begin, end) for _, what, step, begin, end in spans}
    assert by_name["prepare", 0] == (10, 22)
    assert by_name["plan", 1] == (10, 26)


def test_a_stage_that_lets_go_of_the_gil_runs_beside_the_other_lane():
    prices = in_ns(plan=100, prepare=100, launch=0, retire=0, device=1000)
    _, spans = lanes(prices, HostModel(gil=Gil(switch_ns=500, handoff_ns=1), shares={"prepare": Share(0.1)}), 2, steps=2)
    by_name = {(what, step): (begin, end) for _, what, step, begin, end in spans}
    assert by_name["hand-over", 0] == (100, 111)  # 10 ns of it with the GIL
    assert by_name["plan", 1] == (111, 211)
    assert by_name["prepare", 0] == (100, 212)  # its result is there at 200, and the GIL when the other blocks


def test_a_stage_of_many_released_calls_waits_for_the_gil_at_each():
    prices = in_ns(plan=1000, prepare=100, launch=0, retire=0, device=10_000)

    def prepared(parts):
        host = HostModel(gil=Gil(switch_ns=50, handoff_ns=1), shares={"prepare": Share(0.1, parts)})
        return next(end - begin for _, what, step, begin, end in lanes(prices, host, 2, steps=2)[1] if (what, step) == ("prepare", 0))

    assert prepared(1) == 100 + 50 + 1
    assert prepared(10) == 100 + 10 * (50 + 1)


OPERATORS = {
    "schema": 1,
    "machine": {"gil": {"switch_us": 5000, "handoff_us": 0}, "d2h": {"latency_us": 7, "gb_per_s": 1}},
    "stage": {"plan_us": 100, "prepare_us": 0, "launch_us": 0, "retire_us": 0},
    "launch": {"echo": {"ops": ["first", "second"]}},
    "op": {
        "first": {"host_us": 10, "device_us": 1000},
        "second": {
            "host_us": 10,
            "device_us": 5,
            "value_bytes": 8000,
            "tiling": "host-value",
            "placement": {"host-value": {"tiling_us": 20}},
        },
    },
}


def test_a_lane_enqueues_with_the_gil_and_waits_for_values_without():
    """The second operator's tiling reads what the first computes: copied in 7 + 8 us, tiled in 20, while the other lane plans."""
    report = ovsdk.run(Count(2), Echo(), SimBackend(OPERATORS), depth=2, driver="threads")
    by_name = {(s.what, s.step): (s.begin_ns / 1000, s.end_ns / 1000) for s in report.timeline.spans}
    assert by_name["launch", 0] == (100, 110 + 1000 + 7 + 8 + 20 + 10)
    assert by_name["plan", 1] == (110, 210)


hosts = st.builds(
    HostModel,
    gil=any_gil,
    cores=st.sampled_from([None, 1, 2]),
    shares=st.dictionaries(
        st.sampled_from(["plan", "prepare", "retire"]), st.builds(Share, st.floats(0, 1), st.integers(1, 3), st.booleans())
    ),
)


@settings(max_examples=30, deadline=None)
@given(st.one_of(hosts, st.builds(HostModel, cores=st.integers(1, 3))), st.integers(1, 4), st.integers(0, 10**6))
def test_no_host_changes_a_decision(host, depth, seed):
    expected, actual = Moody(seed=seed), Moody(seed=seed)
    direct_asks(expected, Hasher(), depth, Scripted(seed), lambda launch: launch.stub())
    ovsdk.run(actual, Hasher(), simulator(PRICES, host), depth=depth, driver="threads", admission=Scripted(seed))
    assert actual.trace == expected.trace


@settings(max_examples=25, deadline=None)
@given(st.one_of(hosts, st.builds(HostModel, cores=st.integers(1, 3))), st.integers(1, 3), st.integers(0, 10**6))
def test_with_amend_neither(host, depth, seed):
    expected, actual = Amending(seed=seed), Amending(seed=seed)
    ovsdk.run(expected, Finisher(), SimBackend(PRICES), depth=depth, admission=Scripted(seed))
    ovsdk.run(actual, Finisher(), simulator(PRICES, host), depth=depth, driver="threads", admission=Scripted(seed))
    assert actual.trace == expected.trace


def test_the_report_says_who_waited_for_the_gil():
    report, _ = lanes(in_ns(plan=10, prepare=20, launch=0, retire=5, device=100), HostModel(gil=Gil(switch_ns=7, handoff_ns=1)), 2)
    shared, waited = report.notes
    assert shared == "two host lanes, a GIL between them, switch interval 7e-06 ms"
    assert waited.startswith("waited for the GIL: scheduling 0.000")
    spans = [span for span in report.timeline.spans if span.what == "wait GIL"]
    for lane in ("scheduling", "execution"):
        assert f"{lane} {sum(s.end_ns - s.begin_ns for s in spans if s.lane == lane) / 1e6:.3f} ms" in waited


def test_a_backend_is_as_new_after_a_run_with_a_gil():
    prices, host = in_ns(plan=10, prepare=20, launch=0, retire=5, device=100), HostModel(gil=SMALL)
    backend, fresh = simulator(prices, host), lanes(prices, host, 2)[1]
    lanes(prices, host, 3, steps=4, backend=backend)
    now = backend.clock.now_ns()
    again = lanes(prices, host, 2, backend=backend)[1]
    assert [(lane, what, step, begin - now, end - now) for lane, what, step, begin, end in again] == fresh


def test_a_run_that_fails_leaves_no_lane_waiting_for_the_gil():
    class Breaks(Echo):
        def launch(self, step, inputs):
            raise ValueError("no batch like that") if step == 2 else self.launched()

    backend = simulator(in_ns(10, 20, 1, 5, 100), HostModel(gil=SMALL))
    with pytest.raises(ovsdk.StepError):
        ovsdk.run(Count(9), Breaks(), backend, driver="threads")
    backend.clock.kernel.run()  # would not end while a lane asks for the GIL
    assert backend.clock.kernel.next_ns() is None


def test_who_waits_for_ever_is_a_deadlock_with_a_gil_too():
    class Sleeps(Count):
        def plan(self, ask):
            return ovsdk.IDLE

    with pytest.raises(Deadlock, match="execution lane waits for wait 'work for the execution lane'"):
        ovsdk.run(Sleeps(1), Echo(), simulator(PRICES, ONE_GIL), driver="threads", admission=AdmissionQueue())


# ---- bad input ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gil(switch_ns=0), r"switch_ns of Gil is an int of at least 1; got 0"),
        (lambda: Gil(handoff_ns=-1), r"handoff_ns of Gil is an int of at least 0; got -1"),
        (lambda: Gil(overshoot_ns=1.5), r"overshoot_ns of Gil is an int of at least 0; got 1.5"),
        (lambda: HostModel(cores=0), r"cores of HostModel is an int of at least 1; got 0"),
        (lambda: HostModel(cores=True), r"cores of HostModel .* got True"),
        (lambda: HostModel(shares={"plam": Share()}), r"unknown stage to divide the time of 'plam' \(did you mean 'plan'\?\)"),
        (lambda: Share(1.5), r"gil of Share is a share of a stage's time, from 0 to 1; got 1.5"),
        (lambda: Share("half"), r"gil of Share .* got 'half'"),
        (lambda: Share(0.5, 0), r"parts of Share is an int of at least 1; got 0"),
    ],
)
def test_what_no_host_can_be_is_refused(make: Callable[[], Any], message: str):
    with pytest.raises(ConfigError, match=message):
        make()
