"""The backend `ascend` on the emulated NPU: data, copies, ownership, times. What every backend must do is tested by their common tests."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk import Launch, open_backend, run
from ovsdk.backends import _staging, _streams
from ovsdk.backends.ascend.backend import AscendBackend
from ovsdk.backends.ascend.emulator import Emulator
from ovsdk.errors import ConfigError, DeviceLost, SchedulerProtocolError
from ovsdk.types import Method, Resident

from ..desk import arrays, call, plain, same, strided
from ..toys import Count, Echo

SYNCHRONISES = (
    "aclrtSynchronizeStream",
    "aclrtSynchronizeStreamWithTimeout",
    "aclrtSynchronizeDevice",
    "aclrtSynchronizeDeviceWithTimeout",
    "aclrtSynchronizeEvent",
    "aclrtMemcpy",
)
UNKNOWN = ("uint16", "uint32", "uint64")
"""Of numpy's dtypes those that torch hardly knows."""


@pytest.fixture
def device(npu: Emulator) -> Iterator[AscendBackend]:
    with open_backend("ascend:0", timeout_s=20) as backend:
        yield backend


class Desk:
    """What the tests load."""

    def __init__(self, device: str) -> None:
        self.ones = torch.ones(8, device=device)
        self.kept: list[torch.Tensor] = []

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def add(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.ones

    def keep(self, x: torch.Tensor) -> None:
        self.kept.append(x)

    def kept_ones(self) -> list[torch.Tensor]:
        return self.kept

    def count(self) -> torch.Tensor:
        """The same memory each time, one more each time."""
        self.ones += 1
        return self.ones


@pytest.fixture
def desk(device: AscendBackend) -> Resident:
    return device.load(Desk)


def submit(device: AscendBackend, fn: Method | Callable[..., Any], *inputs: Any, **host: Any) -> Any:
    return device.stream().submit(Launch("test", fn=fn, inputs=inputs, host=host))


# ---- data ----


known = (arrays | strided).filter(lambda array: array.dtype.name not in UNKNOWN)
trees = st.recursive(plain | known, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=5)


def test_any_tree_of_arrays_comes_back_as_it_went(device: AscendBackend, desk: Resident) -> None:
    @settings(max_examples=60)
    @given(args=st.lists(trees, max_size=3).map(tuple), host=st.dictionaries(st.sampled_from("abc"), trees))
    def check(args: tuple[Any, ...], host: dict[str, Any]) -> None:
        assert same(call(device, desk.echo, *args, **host), (args, host))

    check()


def test_functions_get_device_tensors_and_host_values_untouched(device: AscendBackend) -> None:
    array, seen = np.arange(3), {}

    def look(x: Any, plain: Any, kept: Any) -> None:
        seen.update(device=x.device, dtype=x.dtype, offset=x.data_ptr() % 512, plain=plain, kept=kept)

    submit(device, look, array, 7, kept=array).result()
    assert seen == {"device": torch.device("npu:0"), "dtype": torch.int64, "offset": 0, "plain": 7, "kept": array}
    assert seen["kept"] is array


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool"])
def test_tensors_of_the_host_go_too_and_what_numpy_lacks_comes_back_as_a_tensor(device: AscendBackend, desk: Resident, dtype: str) -> None:
    sent = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    ((came,), _) = submit(device, desk.echo, sent.t()).result()
    assert type(came) is (torch.Tensor if dtype == "bfloat16" else np.ndarray)
    assert torch.as_tensor(came).equal(sent.t())


def test_inputs_may_change_and_results_are_the_callers_own(device: AscendBackend, desk: Resident, npu: Emulator) -> None:
    npu.latency("memcpy_h2d", 3000)
    mine, futures = np.zeros(8, np.float32), []
    for value in range(4):
        mine[:] = value
        futures.append(submit(device, desk.add, mine))
    results = [future.result() for future in futures]
    assert [result.tolist() for result in results] == [[value + 1.0] * 8 for value in range(4)]
    results[0][:] = 99
    assert submit(device, desk.add, mine).result().tolist() == [4.0] * 8
    assert results[1].flags.writeable
    assert futures[2].result() is results[2]


def test_what_a_function_keeps_of_its_inputs_is_its_own(device: AscendBackend, desk: Resident) -> None:
    for value in range(6):
        submit(device, desk.keep, np.full(4, value)).result()
    assert [kept.tolist() for kept in submit(device, desk.kept_ones).result()] == [[value] * 4 for value in range(6)]


def test_a_result_is_what_was_returned_though_the_next_launch_overwrites_it(device: AscendBackend, desk: Resident, npu: Emulator) -> None:
    npu.latency("memcpy_d2h", 5000)
    futures = [submit(device, desk.count) for _ in range(5)]
    assert [future.result().tolist() for future in futures] == [[value] * 8 for value in (2.0, 3.0, 4.0, 5.0, 6.0)]


# ---- copies, order, no wait ----


class Adder:
    """Two arrays in, three out. `staged` makes them where they are sent from."""

    def __init__(self, staged: bool = False) -> None:
        self.staged = staged

    def open(self, backend: AscendBackend) -> None:
        self.backend = backend

    def prepare(self, step: int, batch: int) -> dict[str, Any]:
        if not self.staged:
            return {"x": np.full(8, batch, np.float32), "y": np.full((2, 8), 2, np.int64)}
        staging = self.backend.staging(step)
        x, y = staging.empty(8, "float32"), staging.empty((2, 8), "int64")
        x[:], y[:] = batch, 2
        return {"x": x, "y": y}

    def launch(self, step: int, inputs: dict[str, Any]) -> Launch:
        return Launch("add", fn=_three, inputs=inputs)


def _three(x: torch.Tensor, y: torch.Tensor) -> Any:
    return {"sum": x + y[0], "more": [x * 2, y]}


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_step_is_one_copy_each_way_never_waits_and_needs_as_many_blocks_as_depth(npu: Emulator, depth: int, staged: bool) -> None:
    with open_backend("ascend:0", timeout_s=20) as device:
        run(Count(5), Adder(staged), device, depth=depth)
        made, waits = device.pool.made, {name: npu.calls(name) for name in SYNCHRONISES}
        with npu.trace() as trace:
            scheduler = Count(50)
            run(scheduler, executor := Adder(staged), device, depth=depth)
        tasks = trace.get()
        assert len(tasks.named("memcpy_h2d")) == len(tasks.named("memcpy_d2h")) == 50
        assert {name: npu.calls(name) for name in SYNCHRONISES} == waits
        assert executor.staged is staged
        assert device.pool.made == made <= 2 * depth + staged
    assert [result["sum"].tolist() for _, _, result in scheduler.seen] == [[k + 3.0] * 8 for k in range(50)]
    assert scheduler.seen[-1][2]["more"][1].tolist() == [[2] * 8] * 2


def test_staged_arrays_are_not_copied_on_the_host(device: AscendBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    within = _staging.Slot.within
    monkeypatch.setattr(_staging.Slot, "within", lambda self, *args: (written.append(self), within(self, *args))[1])
    run(Count(5), Adder(staged=True), device)
    mine = {slot.shape for slot in written if slot.shape != (1,)}
    assert mine == {(8,), (2, 8)}  # made by `empty`, and read from the results
    run(Count(5), Adder(), device)
    assert len(written) > 0


def test_events_of_launches_in_flight_are_all_different(device: AscendBackend, desk: Resident, npu: Emulator) -> None:
    for _ in range(3):  # so that there are used ones
        futures = [submit(device, desk.add, np.ones(8, np.float32)) for _ in range(4)]
        events = [id(event) for future in futures for event in future.flight.events]
        assert len(set(events)) == 16
        assert id(device.stream()._last) not in events
        assert [future.result()[0] for future in futures] == [2.0] * 4


def test_launches_are_done_in_order(device: AscendBackend, desk: Resident, npu: Emulator) -> None:
    npu.latency("aclnnAdd", 2000)
    first, *_, last = [submit(device, desk.add, np.ones(8, np.float32)) for _ in range(5)]
    assert not last.done()
    assert last.result().tolist() == [2.0] * 8
    assert first._done


def test_a_second_stream_is_one_of_its_own(device: AscendBackend, desk: Resident) -> None:
    other = device.stream("other")
    assert other is device.stream("other") is not device.stream()
    futures = [stream.submit(Launch("x", fn=desk.add, inputs=(np.ones(8, np.float32),))) for stream in (device.stream(), other) * 3]
    assert [future.result()[0] for future in futures] == [2.0] * 6


def test_other_threads_may_look(device: AscendBackend, desk: Resident, npu: Emulator) -> None:
    npu.latency("aclnnAdd", 1000)
    futures = [submit(device, desk.add, np.full(8, k, np.float32)) for k in range(20)]
    results: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda k=k: results.update({k: futures[k].result()[0]})) for k in range(20)]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: k + 1.0 for k in range(20)}


# ---- ownership: the test of the test ----


def four(device: AscendBackend, npu: Emulator) -> list[float]:
    """Four launches in flight while copies take their time."""
    npu.latency("memcpy_h2d", 5000)
    npu.latency("memcpy_d2h", 5000)
    desk = device.load(Desk)
    futures = [submit(device, desk.add, np.full(8, k, np.float32)) for k in range(4)]
    return [float(future.result()[0]) for future in futures]


def careless(self: Any, nbytes: int) -> Any:
    """Mutant: a block is free again as soon as it has been leased."""
    leased = lease(self, nbytes)
    self.give_back(leased.block)
    return leased


lease = _staging.Pool.lease


@pytest.mark.parametrize("owned", [True, False])
def test_without_ownership_results_are_wrong(device: AscendBackend, npu: Emulator, monkeypatch: pytest.MonkeyPatch, owned: bool) -> None:
    if not owned:
        monkeypatch.setattr(_staging.Pool, "lease", careless)
        monkeypatch.setattr(_streams.Flight, "proven", lambda self: True)
    assert (four(device, npu) == [1.0, 2.0, 3.0, 4.0]) is owned


def test_a_launch_whose_number_does_not_come_back_is_no_result(
    device: AscendBackend, npu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_staging.Pool, "lease", careless)
    monkeypatch.setattr(_streams, "DOUBT_NS", 10_000_000)
    with pytest.raises(DeviceLost, match="counts as done, but nothing has come back"):
        four(device, npu)


class Lagging:
    """Gives each launch the input of the one before, which it has kept until then."""

    def __init__(self, device: str) -> None:
        self.last = torch.zeros(8, device=device)

    def next(self, x: torch.Tensor) -> torch.Tensor:
        before = x * 0 + self.last
        self.last = x
        return before


@pytest.mark.parametrize("owned", [True, False])
def test_what_a_function_has_kept_is_not_overwritten_before_its_last_use(
    device: AscendBackend, npu: Emulator, monkeypatch: pytest.MonkeyPatch, owned: bool
) -> None:
    """The host lets go of an input while the device has yet to read it."""
    if not owned:
        monkeypatch.setattr(_streams.DeviceStream, "claim", lambda self, block, stream: None)
    lagging, seen = device.load(Lagging), []
    npu.latency("aclnnMuls", 5000)
    futures = [submit(device, lagging.next, np.full(8, 1.0, np.float32))]
    for value in range(2, 9):
        futures.append(submit(device, lagging.next, np.full(8, value, np.float32)))
        seen.append(futures.pop(0).result()[0])
    assert (seen == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) is owned


# ---- many runs ----


def test_a_thousand_runs_and_a_hundred_openings_leave_nothing(npu: Emulator) -> None:
    def state() -> tuple[int, int, int, int]:
        gc.collect()
        return torch.npu.memory_allocated(), npu.used_bytes(), npu.streams(), threading.active_count()

    with open_backend("ascend:0", timeout_s=20) as device:
        executor = Adder()
        for turn in range(1000):
            run(Count(3), executor if turn % 2 else Echo(), device, depth=1 + turn % 3, spans=False)
            if turn == 20:
                before, made = state(), device.pool.made
        assert state() == before
        assert device.pool.made == made
    after = state()
    for _ in range(100):
        with open_backend("ascend:0", timeout_s=20) as device:
            run(Count(2), Adder(), device)
    assert state() == after


# ---- times, facts, options ----


def test_spans_are_the_devices_times_on_the_hosts_clock(device: AscendBackend, desk: Resident, npu: Emulator) -> None:
    npu.latency("aclnnAdd", 5000)
    begin_ns = device.clock.now_ns()
    futures = [submit(device, desk.add, np.ones(8, np.float32)) for _ in range(4)]
    assert futures[0].span_ns is None
    for future in futures:
        future.result()
    spans = [future.span_ns for future in futures]
    assert all(end - begin >= 4_990_000 for begin, end in spans)
    stamps = [begin_ns, *(stamp for span in spans for stamp in span), device.clock.now_ns()]
    assert stamps == sorted(stamps)


def test_a_failed_launch_has_no_span_and_the_next_one_has(device: AscendBackend, desk: Resident) -> None:
    def fail(x: Any) -> None:
        raise KeyError("no")

    future = submit(device, fail, np.ones(2))
    with pytest.raises(KeyError, match="no"):
        future.result()
    assert future.span_ns is None
    assert submit(device, desk.add, np.ones(8, np.float32)).result()[0] == 2.0


def test_the_report_says_that_the_device_is_emulated(device: AscendBackend) -> None:
    report = run(Count(3), Echo(), device)
    assert "EMULATED NPU" in str(report)
    assert device.capabilities.facts["emulated"] is True
    assert device.capabilities.facts["soc"] == "Ascend910B3"
    assert device.capabilities.facts["ub_bytes"] == 192 * 1024
    assert device.capabilities.facts["task_queue"] in (0, 1, 2)
    assert device.capabilities.can == dict.fromkeys(("asynchronous", "executes", "wall_clock", "parallel"), True)


def test_core_limits_are_the_compute_streams_and_end_with_the_backend(npu: Emulator) -> None:
    with open_backend("ascend:0", cube_cores=4, vector_cores=9) as device:
        stream = device.stream().compute
        assert torch.npu.get_stream_limit(stream) == {"cube_core_num": 4, "vector_core_num": 9}
    assert torch.npu.get_stream_limit(stream) == torch.npu.get_device_limit(0)


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        ("ascend:1", {}, "0 to 0 here.*got 1"),
        ("ascend", {"task_queue": 3}, "task-queue level.*got 3"),
        ("ascend", {"cube_cores": 0}, "cube_cores is an int from 1 to 20.*got 0"),
        ("ascend", {"vector_cores": 41}, "vector_cores is an int from 1 to 40.*got 41"),
        ("ascend", {"timeout_s": 0}, "timeout_s is a time in seconds"),
        ("ascend", {"syncs": "never"}, "unknown syncs 'never'"),
        ("ascend", {"graph": "on"}, "did you mean 'graphs'"),
    ],
)
def test_wrong_options_say_what_is_allowed(npu: Emulator, spec: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_backend(spec, **options)


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        (Launch("x", fn="forward"), "launch 'x': fn is"),  # type: ignore[arg-type]
        (Launch("x", fn=Method(0, "echo")), "did not load"),
        (Launch("x", fn=print, inputs=(np.array(["a"]),)), "cannot be on a device"),
    ],
)
def test_what_cannot_be_launched_is_refused_at_once(device: AscendBackend, launch: Launch, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        device.stream().submit(launch)


def test_a_closed_backend_launches_nothing_and_closes_twice(device: AscendBackend) -> None:
    future = submit(device, lambda: 3)
    device.close()
    device.close()
    assert future.result() == 3
    with pytest.raises(DeviceLost, match="closed"):
        submit(device, lambda: 3)


def test_marks_are_ranges_around_stages(npu: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(torch.npu.mstx, "range_start", lambda *words: (opened.append(words), len(opened))[1])
    monkeypatch.setattr(torch.npu.mstx, "range_end", lambda number: None)
    with open_backend("ascend:0", timeout_s=20, marks=True) as device:
        run(Count(2), Echo(), device)
        stream = device.stream().compute
    assert {("ovsdk plan 0",), ("ovsdk prepare 1",), ("ovsdk retire 1",), ("ovsdk launch 1", stream)} <= set(opened)


# ---- debug ----


def test_debug_mode_refuses_a_side_stream_that_is_not_joined(npu: Emulator) -> None:
    side = torch.npu.Stream()

    def forks(x: torch.Tensor, joins: bool) -> torch.Tensor:
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            y = x + x
        if joins:
            main.wait_stream(side)
        return y if joins else x

    def leaves(x: torch.Tensor) -> torch.Tensor:
        torch.npu.set_stream(side)
        return x

    with open_backend("ascend:0", timeout_s=20, debug=True) as device:
        assert submit(device, forks, np.ones(2), joins=True).result().tolist() == [2.0, 2.0]
        with pytest.raises(SchedulerProtocolError, match=r"launch 'test' ends with work on 1 side streams: .*wait_stream"):
            submit(device, forks, np.ones(2), joins=False).result()
        with pytest.raises(SchedulerProtocolError, match="another stream current"):
            submit(device, leaves, np.ones(2)).result()
