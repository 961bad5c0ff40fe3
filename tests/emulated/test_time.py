"""The emulated NPU's time: deadlines, shared cores, engines, AICPU. No torch here: what is judged is what the runtime says.

No test looks at real time but in one direction: what must have been waited for was waited for.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk.backends.ascend.emulator import Emulator, Task
from ovsdk.errors import ConfigError

from .acl import Acl, AclError

MS = 1_000_000


@pytest.fixture
def acl(npu: Emulator) -> Acl:
    return Acl(npu)


def lengths(tasks: tuple[Task, ...]) -> list[int]:
    return [task.end_ns - task.begin_ns for task in tasks]


def test_a_task_begins_when_the_last_one_ends_or_when_it_is_enqueued(npu: Emulator, acl: Acl) -> None:
    npu.latency("memset", 300, each_us=0.001)
    stream = acl.stream()
    with npu.trace() as trace:
        for size in (1000, 2000, 500, 3000):
            acl.fill(stream, size)
        acl.call("aclrtSynchronizeStream", stream)
    tasks = trace.get().tasks
    assert lengths(tasks) == [300_000 + size for size in (1000, 2000, 500, 3000)]
    assert tasks[0].begin_ns == tasks[0].enqueued_ns
    assert all(b.begin_ns == max(a.end_ns, b.enqueued_ns) for a, b in itertools.pairwise(tasks))
    assert all(task.real_ns >= task.end_ns for task in tasks)


def test_the_launch_latency_is_from_the_enqueue(npu: Emulator, acl: Acl) -> None:
    npu.latency("memset", 500)
    npu.machine(launch_latency_ns=2 * MS)
    stream = acl.stream()
    try:
        with npu.trace() as trace:
            acl.fill(stream)
            acl.fill(stream)
            acl.call("aclrtSynchronizeStream", stream)
    finally:
        npu.machine(launch_latency_ns=0)
    first, second = trace.get().tasks
    assert first.begin_ns == first.enqueued_ns + 2 * MS
    assert second.begin_ns == max(first.end_ns, second.enqueued_ns + 2 * MS)


def test_a_table_is_linear_between_its_points_and_refused_outside(npu: Emulator, acl: Acl) -> None:
    npu.latency("memset", at=[(100, 10), (200, 30), (1000, 30)])
    stream = acl.stream()
    with npu.trace() as trace:
        for size in (100, 150, 200, 600, 1000):
            acl.fill(stream, size)
        acl.call("aclrtSynchronizeStream", stream)
    assert lengths(trace.get().tasks) == [10_000, 20_000, 30_000, 30_000, 30_000]
    for size in (99, 1001):
        with pytest.raises(AclError):
            acl.fill(stream, size)


def test_nothing_takes_time_unless_it_has_a_price_and_time_is_on(npu: Emulator, acl: Acl) -> None:
    stream = acl.stream()
    with npu.trace() as trace:
        acl.fill(stream)
        npu.latency("*", 1000)  # for operators
        acl.fill(stream)
        npu.latency("memset", 1000)
        npu.timed(False)
        acl.fill(stream)
        acl.call("aclrtSynchronizeStream", stream)
    assert lengths(trace.get().tasks) == [0, 0, 0]


@pytest.mark.parametrize("wrong", [{"us": -1.0}, {"us": math.nan}, {"us": 1.0, "at": [(1, 1)]}, {"at": [(2, 1), (1, 1)]}])
def test_a_price_that_is_none_is_refused(npu: Emulator, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="latency"):
        npu.latency("memset", **wrong)  # type: ignore[arg-type]


# ---- cores ----


def played(npu: Emulator, runs: list[tuple[int, int, float]]) -> list[int]:
    """When kernels (begin, work, part of the cores) end, in order of begin."""
    n = len(runs)
    begins, works, parts = zip(*runs, strict=True)
    ends = (ctypes.c_int64 * n)()
    npu._library.emu_play_cores(n, (ctypes.c_int64 * n)(*begins), (ctypes.c_double * n)(*works), (ctypes.c_double * n)(*parts), ends)  # type: ignore[attr-defined]
    return list(ends)


def judged(runs: list[tuple[int, int, Fraction]]) -> list[Fraction]:
    """The same by the definition: between two instants at which something begins or ends, rates are constant."""
    left = [Fraction(work) for _, work, _ in runs]
    ends: dict[int, Fraction] = {}
    now = Fraction(runs[0][0])
    while len(ends) < len(runs):
        on = [i for i, (begin, _, _) in enumerate(runs) if begin <= now and i not in ends]
        crowd = max(Fraction(1), sum((runs[i][2] for i in on), Fraction(0)))
        rates = {i: runs[i][2] / crowd for i in on}
        steps = [left[i] / rates[i] for i in on] + [begin - now for begin, _, _ in runs if begin > now]
        step = min(steps)
        now += step
        for i in on:
            left[i] -= rates[i] * step
            if left[i] == 0:
                ends[i] = now
    return [ends[i] for i in range(len(runs))]


PARTS = st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(3, 4), Fraction(1, 20)])
RUNS = st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(1, 5_000_000), PARTS), min_size=1, max_size=8)


@given(RUNS)
@settings(deadline=None, max_examples=200)
def test_kernels_share_the_cores_as_the_law_says(runs: list[tuple[int, int, Fraction]]) -> None:
    from ovsdk.backends.ascend import emulator

    runs = sorted(runs, key=lambda run: run[0])
    ends = played(emulator.activate(), [(begin, work, float(part)) for begin, work, part in runs])
    slack = 4 * len(runs)  # each end is rounded to a ns, and a rounding of one moves the others
    assert all(abs(end - exact) <= slack for end, exact in zip(ends, judged(runs), strict=True))


def test_two_kernels_at_once_are_slower_and_limits_matter(npu: Emulator) -> None:
    assert played(npu, [(0, 10 * MS, 1.0), (0, 10 * MS, 1.0)]) == [20 * MS, 20 * MS]
    assert played(npu, [(0, 10 * MS, 0.5), (0, 10 * MS, 0.25)]) == [20 * MS, 40 * MS]
    assert played(npu, [(0, 10 * MS, 1.0), (5 * MS, 1 * MS, 1.0)]) == [11 * MS, 7 * MS]


def test_a_limited_stream_takes_its_share_of_the_cores(npu: Emulator, acl: Acl) -> None:
    npu.latency("memset", 1000)
    stream = acl.stream()
    acl.call("aclrtSetStreamResLimit", stream, 1, 10)  # vector cores, of 40
    with npu.trace() as trace:
        acl.fill(stream)
        acl.call("aclrtSynchronizeStream", stream)
    assert lengths(trace.get().tasks) == [4 * MS]


# ---- engines ----


def copy(acl: Acl, stream: ctypes.c_void_p, host: ctypes.c_void_p, size: int) -> None:
    acl.call("aclrtMemcpyAsync", host, ctypes.c_size_t(size), acl.memory, ctypes.c_size_t(size), 2, stream)


def test_a_copy_engine_takes_one_copy_at_a_time(npu: Emulator, acl: Acl) -> None:
    npu.copies("memcpy_d2h", 5000, 1)
    host = acl.made("aclrtMallocHost", ctypes.c_size_t(4096))
    streams = [acl.stream(), acl.stream()]
    with npu.trace() as trace:
        for stream in streams:
            copy(acl, stream, host, 4096)
        for stream in streams:
            acl.call("aclrtSynchronizeStream", stream)
    first, second = sorted(trace.get().named("memcpy_d2h"), key=lambda task: task.end_ns)
    assert first.end_ns - first.begin_ns == 5 * MS + 4096
    assert second.end_ns == max(first.end_ns, second.begin_ns) + 5 * MS + 4096


def test_the_aicpu_has_so_many_workers(npu: Emulator, acl: Acl) -> None:
    npu.latency("memset", 100, aicpu_us=3000)
    npu.machine(aicpu_workers=1)
    streams = [acl.stream(), acl.stream()]
    try:
        with npu.trace() as trace:
            for stream in streams:
                acl.fill(stream)
            for stream in streams:
                acl.call("aclrtSynchronizeStream", stream)
    finally:
        npu.machine(aicpu_workers=4)
    first, second = sorted(trace.get().tasks, key=lambda task: task.end_ns)
    assert first.end_ns == first.begin_ns + 3 * MS + 100_000
    assert second.end_ns == max(first.begin_ns + 3 * MS, second.begin_ns) + 3 * MS + 100_000


# ---- events ----


def test_an_event_has_the_time_of_its_stream(npu: Emulator, acl: Acl) -> None:
    npu.latency("memset", 20_000)
    stream, begin, end = acl.stream(), acl.event(), acl.event()
    acl.fill(stream)  # so that the first record is not early
    acl.call("aclrtRecordEvent", begin, stream)
    acl.fill(stream)
    acl.fill(stream)
    acl.call("aclrtRecordEvent", end, stream)
    assert not acl.done(end)
    acl.call("aclrtSynchronizeEvent", end)
    ms = ctypes.c_float()
    acl.call("aclrtEventElapsedTime", ctypes.byref(ms), begin, end)
    assert ms.value == pytest.approx(40.0, abs=1e-3)


def test_a_wait_concerns_the_record_before_it(npu: Emulator, acl: Acl) -> None:
    npu.latency("memset", 30_000)
    one, two, event = acl.stream(), acl.stream(), acl.event()
    acl.call("aclrtStreamWaitEvent", two, event)  # never recorded: waits for nothing
    acl.call("aclrtSynchronizeStream", two)
    assert acl.done(event)
    with npu.trace() as trace:
        acl.fill(one)
        acl.call("aclrtRecordEvent", event, one)
        acl.call("aclrtStreamWaitEvent", two, event)
        acl.fill(one)
        acl.call("aclrtRecordEvent", event, one)  # a new generation: `two` does not wait for it, a query does
        acl.fill(two, 1)
        assert not acl.done(event)
        acl.call("aclrtSynchronizeEvent", event)
        assert acl.done(event)
        acl.call("aclrtSynchronizeStream", two)
    fills = trace.get().named("memset")
    first, third = (task for task in fills if task.size == 1024)
    (second,) = (task for task in fills if task.size == 1)
    assert second.begin_ns >= first.end_ns
    assert second.begin_ns < third.end_ns


def test_an_event_without_timing_has_no_time(acl: Acl) -> None:
    stream, begin, end = acl.stream(), acl.event(0), acl.event(0)
    for event in (begin, end):
        acl.call("aclrtRecordEvent", event, stream)
    acl.call("aclrtSynchronizeStream", stream)
    with pytest.raises(AclError) as refused:
        acl.call("aclrtEventElapsedTime", ctypes.byref(ctypes.c_float()), begin, end)
    assert refused.value.code == 107006


# ---- queues ----


def test_a_full_queue_blocks_the_host(npu: Emulator, acl: Acl) -> None:
    npu.latency("memset", 1000)
    npu.machine(queue_capacity=3)
    stream = acl.stream()
    try:
        with npu.trace() as trace:
            for _ in range(12):
                acl.fill(stream)
            acl.call("aclrtSynchronizeStream", stream)
    finally:
        npu.machine(queue_capacity=1024)
    tasks = trace.get().tasks
    assert all(later.enqueued_ns >= task.end_ns - 2 * MS for task, later in zip(tasks, tasks[5:], strict=False))
    assert tasks[-1].enqueued_ns >= tasks[6].end_ns  # behind one that runs and three that wait


def test_a_synchronisation_has_a_timeout(npu: Emulator, acl: Acl) -> None:
    npu.hang("memset")
    stream = acl.stream()
    acl.fill(stream)
    with pytest.raises(AclError) as refused:
        acl.call("aclrtSynchronizeStreamWithTimeout", stream, 5)
    assert refused.value.code == 507046
    npu.reset()
    acl.call("aclrtSynchronizeStream", stream)


# ---- what may be seen of it ----


def test_spans_and_a_timeline_say_that_they_are_virtual(npu: Emulator, acl: Acl) -> None:
    npu.latency("memset", 1000)
    stream, event = acl.stream(), acl.event()
    with npu.trace() as trace:
        acl.fill(stream)
        acl.call("aclrtRecordEvent", event, stream)
        acl.call("aclrtSynchronizeStream", stream)
    (span,) = trace.get().spans(step=3)
    assert (span.what, span.step, span.end_ns - span.begin_ns) == ("memset", 3, MS)
    assert span.lane.startswith("server emulated npu:0 stream ")
    timeline = trace.get().timeline()
    assert timeline.origin == "simulated"
    ((row, (shown,)),) = timeline.servers.items()
    assert row in span.lane
    assert shown._replace(step=3) == span


def test_calls_are_counted_and_unknown_settings_refused(npu: Emulator, acl: Acl) -> None:
    before, stream = npu.calls("aclrtMemsetAsync"), acl.stream()
    acl.fill(stream)
    acl.fill(stream)
    assert npu.calls("aclrtMemsetAsync") == before + 2
    assert npu.calls("aclrtNoSuchFunction") == 0
    with pytest.raises(ConfigError, match="no setting"):
        npu.machine(cores=3)
