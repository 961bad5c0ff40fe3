"""The device in virtual time: every time of every row against the law written as a recurrence, and what a recurrence cannot have."""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk import Launch
from ovsdk.backends.sim import SimBackend
from ovsdk.backends.sim.device import VirtualClock
from ovsdk.backends.sim.hardware import Copy, Hardware
from ovsdk.backends.sim.host import Host, HostModel
from ovsdk.backends.sim.kernel import Kernel
from ovsdk.backends.sim.lower import lower
from ovsdk.backends.sim.maxplus import State, advance
from ovsdk.backends.sim.operators import LaunchPrice
from ovsdk.backends.sim.prices import load_prices, shipped
from ovsdk.backends.sim.rows import NO_SYNC, Machine, Program, Row
from ovsdk.backends.sim.servers import Device, Flight, FreeLane
from ovsdk.errors import Deadlock


class Times(NamedTuple):
    """When a row left the task queue, had been launched, began and ended."""

    taken: int
    launched: int
    begun: int
    ended: int


def law(programs, gaps, machine):
    """The times of all rows, when the lane was through with each launch, and when its result was on the host, copied in order of launch."""
    lane = launcher = engine = 0
    ends, rows, lanes, done = [0] * machine.streams, [], [], []
    taken, begun = [], [[] for _ in range(machine.streams)]
    for program, gap in zip(programs, gaps, strict=True):
        lane += gap
        mine = []
        for row in program.rows:
            queue = begun[row.stream]
            if row.sync_ns != NO_SYNC:
                lane = max(lane, launcher, ends[row.stream]) + row.sync_ns
            lane += row.host_ns
            if machine.level and len(taken) >= machine.task:
                lane = max(lane, taken[-machine.task])
            start = max(lane, launcher, queue[-machine.device] if len(queue) >= machine.device else 0)
            launcher = start + row.launcher_ns
            lane = lane if machine.level else launcher
            waits = [mine[j].ended for j in row.waits]
            begin = max(launcher + machine.latency_ns, ends[row.stream], *waits) + row.aicpu_ns
            ends[row.stream] = begin + row.device_ns
            taken.append(start)
            queue.append(begin)
            mine.append(Times(start, launcher, begin, ends[row.stream]))
        rows += mine
        lanes.append(lane)
        last = max(row.ended for row in mine)
        engine = max(last, engine) + program.d2h_ns if program.d2h_ns else engine
        done.append(engine if program.d2h_ns else last)
    return rows, lanes, done


def priced(machine, **hardware):
    """Prices of nothing but hardware."""
    names = ("", *(f"side {i}" for i in range(1, machine.streams)))
    hardware = Hardware(rows=machine, **{"d2h": Copy(0, 1.0), **hardware})
    return attrs.evolve(load_prices({"schema": 1}), hardware=hardware, streams=names)


class Told(Flight):
    """A launch that tells when it has landed."""

    def __init__(self, program, tell):
        super().__init__(program, "compute")
        self.land = tell


def by_process(programs, gaps, machine, **hardware):
    """The same by events, with the lane as a process."""
    kernel, lanes, done = Kernel(), [], []
    device = Device(kernel, priced(machine, **hardware), Host(kernel, HostModel()))
    flights = [Told(p, lambda: done.append(kernel.now_ns)) for p in programs]

    def lane():
        for flight, gap in zip(flights, gaps, strict=True):
            yield gap
            yield from device.enqueue(flight, 0, FreeLane())
            lanes.append(kernel.now_ns)

    kernel.spawn("lane", lane())
    kernel.run()
    return times(flights, machine), lanes, done


def by_clock(programs, gaps, machine):
    """The same by events, with the lane in the caller's own time, as the inline driver has it."""
    kernel, lanes, done = Kernel(), [], []
    clock = VirtualClock(kernel, priced(machine), seed=0)
    flights = [Told(p, lambda: done.append(kernel.now_ns)) for p in programs]
    for flight, gap in zip(flights, gaps, strict=True):
        kernel.run_until(kernel.now_ns + gap)
        clock.staged.append(flight)
        clock.wait((), None, clock.now_ns())
        lanes.append(clock.now_ns())
    kernel.run()
    return times(flights, machine), lanes, done


def times(flights, machine):
    return [Times(t.taken_ns, t.ready_ns - machine.latency_ns, t.begin_ns, t.end_ns) for flight in flights for t in flight.tasks]


short = st.integers(0, 20)


@st.composite
def cases(draw):
    """Up to four launches of up to eight rows, on machines whose queues are as good as unbounded, or bind."""
    streams, level = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    size = st.one_of(st.integers(1, 3), st.just(1000))
    machine = Machine(level, draw(size), draw(size), draw(short), streams, aicpu_workers=8)

    def row(number):
        waits = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else ()
        sync = draw(st.one_of(st.just(NO_SYNC), st.just(NO_SYNC), short))
        stream = draw(st.integers(0, streams - 1))
        return Row(f"op{number}", draw(short), draw(short) if level else 0, draw(short), stream, sync, draw(short), tuple(sorted(waits)))

    launches = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    programs = [Program("launch", tuple(row(i) for i in range(rows)), draw(short)) for rows in launches]
    return programs, [draw(short) for _ in programs], machine


@pytest.mark.parametrize("events", [by_process, by_clock])
@settings(max_examples=150)
@given(case=cases())
def test_every_row_is_where_the_law_has_it(events, case):
    rows, lanes, done = events(*case)
    expected = law(*case)
    assert rows == expected[0]
    assert lanes == expected[1]
    if case[2].streams == 1:  # of several, whose result is copied first is a matter of timing
        assert sorted(done) == sorted(expected[2])


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", shipped())
def test_a_shipped_launch_goes_through_as_the_recurrence_has_it(name, graph):
    prices, gaps = load_prices(name), [5_000_000, 0, 123_457, 2_000_000]
    programs = [lower(prices, "decode", {}, graph=graph)] * len(gaps)
    state, lanes, done = State(prices.machine), [], []
    for program, gap in zip(programs, gaps, strict=True):
        state.times[0] += gap
        done.append(advance(program, state).done_ns)
        lanes.append(state.times[0])
    assert by_process(programs, gaps, prices.machine)[1:] == (lanes, done)


# ---- full queues, by hand ----


def eager(rows, device_ns, level=1, host=1, launcher=0):
    return Program("launch", tuple(Row(f"op{i}", host, launcher if level else 0, device_ns) for i in range(rows)))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_full_device_queue_holds_the_launcher_back_and_at_level_0_the_lane(level):
    """3 places, kernels of 100: row 5 is launched when row 2 begins, and the lane is through then only if it launches itself."""
    rows, lanes, _ = by_process([eager(6, 100, level)], [0], Machine(level, task=1000, device=3))
    assert [row.begun for row in rows] == [1, 101, 201, 301, 401, 501]
    assert [row.taken for row in rows] == [1, 2, 3, 4, 101, 201]
    assert lanes == [201 if level == 0 else 6]


def test_a_full_task_queue_holds_the_lane_back():
    """2 places and one that the launcher holds, which takes 50 each."""
    rows, lanes, _ = by_process([eager(6, 0, launcher=50)], [0], Machine(1, task=2))
    assert [row.taken for row in rows] == [1, 51, 101, 151, 201, 251]
    assert lanes == [151], "row 5 has a place when row 3 is taken"


def test_both_queues_full_reach_back_to_the_lane():
    _, lanes, _ = by_process([eager(8, 100)], [0], Machine(1, task=2, device=3))
    assert lanes == [201], "row 7 has a place when row 5 is taken, as row 2 begins"


# ---- copies ----


def test_results_are_copied_one_after_the_other():
    programs = [Program("launch", (Row("op", 0, 0, 10),), d2h_ns=25)] * 3
    assert by_process(programs, [0, 0, 0], Machine(0))[2] == [35, 60, 85]


class Static:
    """A model with one output buffer, as a captured graph has."""

    def __init__(self, device):
        self.out = np.zeros(2)

    def forward(self, x):
        self.out[:] = x
        return self.out


COPYING = {
    "schema": 1,
    "machine": {"d2h": {"latency_us": 1, "gb_per_s": 1}, "h2d": {"latency_us": 2, "gb_per_s": 1}},
    "launch": {"short": {"device_us": 5}, "long": {"device_us": 5, "result_bytes": 10_000}},
}


def outputs(kinds):
    with SimBackend(COPYING, execute=True) as backend:
        model = backend.load(Static)
        futures = [backend.stream().submit(Launch(kind, fn=model.forward, inputs=(number,))) for number, kind in enumerate(kinds)]
        return [list(future.result()) for future in futures]


def test_a_result_is_what_its_buffer_holds_when_the_copy_begins():
    assert outputs(["short", "short", "short"]) == [[0, 0], [1, 1], [2, 2]]
    assert outputs(["long", "short", "short"]) == [[0, 0], [2, 2], [2, 2]], "the second copy waits for the engine, and comes too late"


def test_inputs_are_copied_before_the_first_operator_beside_what_runs():
    prices = {
        "schema": 1,
        "machine": {"h2d": {"latency_us": 2, "gb_per_s": 1}},
        "launch": {"copied": {"device_us": 10, "inputs_bytes": 3000}},
    }
    with SimBackend(prices) as backend:
        futures = [backend.stream().submit(Launch("copied", fn=abs)) for _ in range(3)]
        backend.clock.wait(futures, None, None)
        assert [future.span_ns for future in futures] == [(5_000, 15_000), (15_000, 25_000), (25_000, 35_000)]
        assert [future.server_spans["h2d"] for future in futures] == [[("h2d", 5_000 * k, 5_000 * (k + 1))] for k in range(3)]


def pageable(**machine):
    return {"schema": 1, "machine": machine, "launch": {"a": {"device_us": 10, **({"inputs_bytes": 0} if "h2d" in machine else {})}}}


@pytest.mark.parametrize("engine", ["h2d", "d2h"])
def test_pageable_memory_blocks_the_lane_until_the_stream_has_drained(engine):
    for pinned in (True, False):
        with SimBackend(pageable(**{engine: {"latency_us": 3, "gb_per_s": 1, "pinned": pinned}})) as backend:
            futures = [backend.stream().submit(Launch("a", fn=abs)) for _ in range(2)]
            backend.clock.wait((), None, 0)
            enqueued_ns = backend.clock.now_ns()
            backend.clock.wait(futures, None, None)
            assert enqueued_ns == (0 if pinned else {"h2d": 16_000, "d2h": 26_000}[engine])
            assert [sync[1:] for future in futures for sync in future.sync_spans] == (
                [] if pinned else {"h2d": [(0, 3_000), (3_000, 16_000)], "d2h": [(0, 13_000), (13_000, 26_000)]}[engine]
            )
            assert futures[0].span_ns == ((3_000, 13_000) if engine == "h2d" else (0, 10_000))


# ---- what only events can have ----


@pytest.mark.parametrize(("workers", "ends"), [(1, [40, 80]), (2, [40, 40])])
def test_aicpu_workers_are_shared_by_all_streams(workers, ends):
    program = Program("launch", (Row("a", 0, 0, 0, 0, aicpu_ns=40), Row("b", 0, 0, 0, 1, aicpu_ns=40)))
    rows, _, _ = by_process([program], [0], Machine(0, streams=2, aicpu_workers=workers))
    assert sorted(row.ended for row in rows) == ends


def test_streams_run_beside_each_other_or_share_the_cores():
    program = Program("launch", (Row("a", 0, 0, 30, 0), Row("b", 0, 0, 10, 1), Row("c", 0, 0, 10, 1)))
    for shared, ends in ((False, [30, 10, 20]), (True, [50, 20, 40])):
        rows, _, _ = by_process([program], [0], Machine(0, streams=2), shared=shared)
        assert [row.ended for row in rows] == ends


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), min_size=1, max_size=8))
def test_shared_cores_do_all_the_work_and_no_more(kernels):
    program = Program("launch", tuple(Row(f"op{i}", 0, 0, ns, stream) for i, (stream, ns) in enumerate(kernels)))
    rows, _, _ = by_process([program], [0], Machine(0, streams=3), shared=True)
    total = sum(ns for _, ns in kernels)
    assert total <= max(row.ended for row in rows) <= total + len(kernels), "an end is rounded up to a ns"
    assert all(row.ended - row.begun >= ns for row, (_, ns) in zip(rows, kernels, strict=True))


def test_one_core_is_shared_by_lane_and_launcher():
    def makespan_ns(**machine):
        prices = {
            "schema": 1,
            "machine": {"queue": {"level": 1}, **machine},
            "launch": {"a": {"ops": [{"repeat": 4, "ops": ["op"]}]}},
            "op": {"op": {"host_us": 10, "launcher_us": 10, "device_us": 0}},
        }
        with SimBackend(prices) as backend:
            backend.stream().submit(Launch("a", fn=abs)).result()
            return backend.clock.now_ns()

    assert makespan_ns() == makespan_ns(cores=2) == 50_000
    assert makespan_ns(cores=1) == 80_000


# ---- what a future tells ----

SIDE = {
    "schema": 1,
    "machine": {
        "queue": {"level": 1},
        "launch_latency_us": 3,
        "h2d": {"latency_us": 4, "gb_per_s": 1},
        "d2h": {"latency_us": 5, "gb_per_s": 1},
    },
    "launch": {"layer": {"ops": ["a", "b", "c"], "inputs_bytes": 0}},
    "op": {
        "default": {"host_us": 1, "launcher_us": 2},
        "a": {"device_us": 20},
        "b": {"device_us": 50, "stream": "side", "waits": ["a"], "aicpu_us": 7},
        "c": {"device_us": 10, "waits": ["b"], "tiling": "host-value", "placement": {"host-value": {"tiling_us": 6}}},
    },
}


def test_a_future_tells_where_its_launch_has_been():
    with SimBackend(SIDE) as backend:
        future = backend.stream("main").submit(Launch("layer", fn=abs))
        assert (future.span_ns, future.spans, future.sync_spans, future.server_spans) == (None, [], [], {})
        future.result()
        us = {server: [(name, begin / 1e3, end / 1e3) for name, begin, end in spans] for server, spans in future.server_spans.items()}
    assert us == {
        "h2d": [("h2d", 3, 7)],
        "stream main": [("a", 7, 27), ("c", 84, 94)],
        "stream side": [("b", 34, 84)],
        "task queue": [("a", 1, 3), ("b", 3, 5), ("c", 39, 41)],
        "aicpu": [("b", 27, 34)],
        "d2h": [("layer", 94, 99)],
    }
    assert future.spans == [("a", 7_000, 27_000), ("b", 34_000, 84_000), ("c", 84_000, 94_000)]
    assert future.span_ns == (7_000, 94_000)
    assert future.sync_spans == [("c", 2_000, 38_000)], "the lane waits for its stream, copies and tiles; not for the other stream"
    assert backend.clock.now_ns() == 99_000


def test_a_named_stream_is_that_of_the_backend_too():
    with SimBackend(SIDE) as backend:
        other = attrs.evolve(Launch("layer", fn=abs))
        futures = [backend.stream("side").submit(other), backend.stream("main").submit(other)]
        backend.clock.wait(futures, None, None)
        assert "stream main" not in futures[0].server_spans
        assert futures[1].server_spans["stream side"][0][1] >= futures[0].server_spans["stream side"][0][2]


def test_the_value_is_there_when_the_copy_has_ended_and_not_before():
    with SimBackend(SIDE, execute=True) as backend:
        future, seen = backend.stream().submit(Launch("layer", fn=backend.clock.now_ns)), []
        future.add_done_callback(lambda f: seen.append((f.result(), backend.clock.now_ns())))
        backend.clock.wait((future,), None, 98_999)
        assert not future.done()
        assert future.result() == 7_000, "called when the first operator begins"
    assert seen == [(7_000, 99_000)]


def test_a_deadlock_names_the_servers_and_what_they_wait_for():
    with SimBackend(SIDE) as backend:
        backend.stream("main")
        with pytest.raises(Deadlock) as caught:
            backend.clock.wait((), backend.clock.signal(), None)
    for server in ("launcher waits for get 'task queue'", "d2h waits for get 'd2h'", "stream main waits for get 'main'"):
        assert server in str(caught.value)


def test_a_launch_without_operators_cannot_be():
    assert LaunchPrice({}, ()).ops == ()
    with pytest.raises(ValueError, match=r"prices: launch.a.ops: got \[\]; allowed: a list of names"):
        load_prices({"schema": 1, "launch": {"a": {"ops": []}}})
