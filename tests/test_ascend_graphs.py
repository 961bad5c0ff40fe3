"""Which launches are captured, replayed or run eagerly, and why. The device is played here; under emulation it computes tokens."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovsdk import Launch
from ovsdk.backends.ascend.graphs import Graphs, host_task
from ovsdk.errors import ConfigError, DeviceTimeout

from .emulation import run_emulated

EXAMPLE = Path(__file__).parents[1] / "docs/how-to/test_on_ascend.py"

# ---- tokens, on the emulated NPU ----


@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_on_the_emulated_npu(level: int) -> None:
    """And the how-to's example, once."""
    example = [str(EXAMPLE)] if level == 1 else []
    run_emulated("test_graphs.py", *example, task_queue=level)


# ---- a device that is played ----


class Npu:
    """What `graphs` needs of torch.npu: notes what it is told."""

    level = 1
    finishes = True
    capturing = False
    reserved = pools = 0

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.current = "compute"

    def Event(self) -> Any:
        """Of work that is done."""
        return SimpleNamespace(record=lambda stream: None, query=lambda: self.finishes)

    def NPUGraph(self) -> Any:
        npu, number = self, sum(entry[0] == "capture" for entry in self.log)

        class Captured:
            def replay(self) -> None:
                npu.log.append(("replay", number))

            def reset(self) -> None:
                npu.log.append(("reset", number))

        return Captured()

    @contextlib.contextmanager
    def graph(self, graph: Any, *, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        self.log.append(("capture", pool, stream, capture_error_mode))
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def graph_pool_handle(self) -> str:
        self.pools += 1
        return f"pool {self.pools}"

    def current_stream(self) -> str:
        return self.current

    def memory_reserved(self) -> int:
        self.reserved += 1 << 20
        return self.reserved

    def get_task_queue_enable(self) -> int:
        return self.level

    def graph_task_group_begin(self, stream: str) -> None:
        self.log.append(("group", stream))

    def graph_task_group_end(self, stream: str) -> str:
        return f"handle {len(self.log)}"

    def graph_task_update_begin(self, stream: str, handle: str) -> None:
        self.log.append(("update", stream, handle))

    def graph_task_update_end(self, stream: str) -> None:
        self.log.append(("updated", stream))


class Future:
    """Of a launch that is done, or not yet."""

    over = False

    def done(self) -> bool:
        return self.over


class Flight:
    """A launch on its way: notes where its inputs went."""

    def __init__(self, npu: Npu, layout: str, number: int) -> None:
        self.npu, self.layout, self.future, self.sent, self.replayed = npu, layout, Future(), f"inputs {number}", False
        self.launch: Any = None

    def send(self, into: Any = None, then: Any = None) -> None:
        self.replayed = into is not None
        self.sent = into or self.sent
        if then is not None:
            compute, self.npu.current = self.npu.current, "copy in"
            then()
            self.npu.current = compute

    def arguments(self) -> tuple[tuple[Any, ...], Any]:
        return (), dict(self.launch.host)


def work(*_: Any, **host: Any) -> str:
    return "output"


def decode(graph: Any = "decode", **host: Any) -> Launch:
    return Launch("decode", fn=work, graph=graph, host=host)


class Loop:
    """What the stream does with graphs, with `depth` launches in flight."""

    def __init__(self, graphs: Graphs, depth: int = 1) -> None:
        self.graphs, self.depth, self.flights, self.steps = graphs, depth, list[Flight](), 0

    def step(self, launch: Launch, layout: str = "int64[4]", call: Any = work) -> str:
        """The inputs of the instance that ran it, or "eager"."""
        if len(self.flights) == self.depth:
            self.flights.pop(0).future.over = True
        self.steps += 1
        flight = Flight(self.graphs._npu, layout, self.steps)
        flight.launch = launch
        assert self.graphs.run(launch, call, flight) == "output"
        assert flight.sent not in [other.sent for other in self.flights], "the inputs of a launch in flight were written to"
        self.flights.append(flight)
        return flight.sent if flight.replayed else "eager"


def replays(npu: Npu) -> list[int]:
    return [entry[1] for entry in npu.log if entry[0] == "replay"]


# ---- instances ----


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_key_has_an_instance_for_each_launch_in_flight(depth: int) -> None:
    """That is: for each step mod depth, in this order."""
    npu = Npu()
    loop = Loop(Graphs(npu, instances=depth), depth)
    ran = [loop.step(decode()) for _ in range(3 * depth)]
    assert ran == ["eager"] * depth + [f"inputs {1 + k % depth}" for k in range(2 * depth)]
    assert replays(npu) == [k % depth for k in range(2 * depth)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30))
def test_an_instance_in_use_is_never_taken(depths: list[int]) -> None:
    """Whatever is in flight (the loop asserts it): a key gets more instances then, and keeps them."""
    graphs = Graphs(Npu(), instances=1)
    loop = Loop(graphs)
    for depth in depths:
        loop.depth = max(depth, len(loop.flights))
        loop.step(decode())
    assert graphs.facts()["decode 'decode'"]["instances"] <= max(depths)


def test_one_pool_for_all_and_the_compute_stream() -> None:
    npu = Npu()
    loop = Loop(Graphs(npu, instances=2), 2)
    for key in "abab":
        loop.step(decode(key))
    assert [entry for entry in npu.log if entry[0] == "capture"] == [("capture", "pool 1", "compute", "thread_local")] * 4


def test_another_stream_has_instances_and_memory_of_its_own() -> None:
    """Its replays may run at the same time, so they may not share intermediates."""
    npu = Npu()
    loop = Loop(Graphs(npu, instances=1))
    ran = []
    for npu.current in ("compute", "aside", "compute", "aside"):
        ran.append(loop.step(decode()))
    assert ran == ["eager", "eager", "inputs 1", "inputs 2"]
    assert [entry[1:3] for entry in npu.log if entry[0] == "capture"] == [("pool 1", "compute"), ("pool 2", "aside")]


def test_keys_and_functions_are_told_apart() -> None:
    npu = Npu()
    loop = Loop(Graphs(npu, instances=1))
    ran = [loop.step(launch) for launch in (decode("a"), decode("b"), decode("a"), Launch("decode", fn=len, graph="a"))]
    assert ran == ["eager", "eager", "inputs 1", "eager"]


def test_time_memory_and_replays_are_told() -> None:
    npu = Npu()
    graphs = Graphs(npu, instances=2)
    loop = Loop(graphs, 2)
    for _ in range(5):
        loop.step(decode())
    facts = graphs.facts()["decode 'decode'"]
    assert (facts["instances"], facts["reserved_mb"], facts["replays"], facts["eager"]) == (2, 2.0, 3, {})
    assert facts["capture_ms"] > 0
    (note,) = graphs.notes()
    assert note.startswith("graph decode 'decode': 3 replays of 2 instances (")
    graphs.reset()
    assert graphs.notes() == ()
    assert loop.step(decode()) == "inputs 2"


def test_closing_gives_every_graph_back() -> None:
    npu = Npu()
    graphs = Graphs(npu, instances=2)
    loop = Loop(graphs, 2)
    for key in "aabb":
        loop.step(decode(key))
    graphs.close()
    graphs.close()
    assert [entry[1] for entry in npu.log if entry[0] == "reset"] == [0, 1, 2, 3]


# ---- eager, and why ----


def test_no_key_or_off_is_eager_without_a_word() -> None:
    for graphs, launch in ((Graphs(Npu()), decode(None)), (Graphs(Npu(), "off"), decode())):
        loop = Loop(graphs)
        assert [loop.step(launch) for _ in range(3)] == ["eager"] * 3
        assert graphs.notes() == ()


def test_level_2_cannot_be_captured() -> None:
    npu = Npu()
    npu.level = 2
    graphs = Graphs(npu)
    loop = Loop(graphs)
    assert [loop.step(decode()) for _ in range(3)] == ["eager"] * 3
    assert graphs.notes() == (
        (
            "graph decode 'decode': 3 x eager: torch_npu cannot capture at task-queue level 2: "
            "set TASK_QUEUE_ENABLE=1, or open the backend with task_queue=1"
        ),
    )


def test_keys_beyond_the_limit_share_an_account() -> None:
    graphs = Graphs(Npu(), keys=2, instances=1)
    loop = Loop(graphs)
    for key in [*range(5), *range(5)]:
        loop.step(decode(key))
    assert graphs.facts().keys() == {"decode 0", "decode 1", "other keys"}
    assert graphs.notes()[-1] == "graph other keys: 6 x eager: there are 2 keys already, which is the limit (graph_keys)"


def test_a_failed_capture_is_not_tried_again() -> None:
    npu = Npu()
    graphs = Graphs(npu)
    loop = Loop(graphs)

    def waits(**_: Any) -> str:
        if npu.capturing:
            raise RuntimeError("error code is 107027\nmore of it")
        return "output"

    assert [loop.step(decode(), call=waits) for _ in range(3)] == ["eager"] * 3
    assert graphs.notes() == ("graph decode 'decode': 3 x eager: capture failed: error code is 107027",)
    assert sum(entry[0] == "capture" for entry in npu.log) == 1


def test_host_values_that_nothing_updates_run_eagerly() -> None:
    graphs = Graphs(Npu(), instances=1)
    loop = Loop(graphs)
    same = [loop.step(decode(lens=[1, 2], scale=np.float32(2))) for _ in range(2)]
    other = loop.step(decode(lens=[1, 3], scale=np.float32(2)))
    back = loop.step(decode(lens=[1, 2], scale=np.float32(2)))
    assert (same, other, back) == (["eager", "inputs 1"], "eager", "inputs 1")
    assert "1 x eager: host values lens differ from those captured, and no host_task updates them" in graphs.notes()[0]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1, True),
        (1, True, False),
        (np.arange(3), np.arange(3), True),
        (np.arange(3), np.arange(4), False),
        (np.arange(3), [0, 1, 2], False),
        (np.zeros(2, np.int64), np.zeros(2, np.int32), False),
        ([np.arange(2)], [np.arange(2)], False),
        ((1, "a"), (1, "a"), True),
    ],
)
def test_host_values_are_equal_only_if_they_surely_are(one: Any, other: Any, equal: bool) -> None:
    loop = Loop(Graphs(Npu(), instances=1))
    loop.step(decode(value=one))
    assert loop.step(decode(value=other)) == ("inputs 1" if equal else "eager")


def test_a_list_that_is_changed_in_place_is_a_change() -> None:
    lens, array = [1, 2], np.zeros(2)
    loop = Loop(Graphs(Npu(), instances=1))
    assert [loop.step(decode(lens=lens, array=array)) for _ in range(2)] == ["eager", "inputs 1"]
    lens[0] = 7
    assert loop.step(decode(lens=lens, array=array)) == "eager"
    lens[0] = 1
    assert loop.step(decode(lens=lens, array=array)) == "inputs 1"
    array[0] = 1
    assert loop.step(decode(lens=lens, array=array)) == "eager"


def test_a_host_value_that_cannot_be_kept_is_not_captured() -> None:
    graphs = Graphs(Npu(), instances=1)
    loop = Loop(graphs)
    assert [loop.step(decode(lock=threading.Lock())) for _ in range(2)] == ["eager"] * 2
    assert "capture failed: cannot pickle" in graphs.notes()[0]


def test_a_missing_or_new_host_value_is_a_change() -> None:
    loop = Loop(Graphs(Npu(), instances=1))
    loop.step(decode(a=1))
    assert [loop.step(decode()), loop.step(decode(a=1, b=2)), loop.step(decode(a=1))] == ["eager", "eager", "inputs 1"]


def test_required_graphs_are_not_run_eagerly() -> None:
    npu = Npu()
    npu.level = 2
    with pytest.raises(ConfigError, match="graphs='require' forbids: torch_npu cannot capture at task-queue level 2"):
        Loop(Graphs(npu, "require")).step(decode())
    loop = Loop(Graphs(Npu(), "require", instances=1))
    assert [loop.step(decode(a=1)) for _ in range(2)] == ["eager", "inputs 1"]
    with pytest.raises(ConfigError, match="host values a differ"):
        loop.step(decode(a=2))


def test_a_capture_waits_for_the_device_no_longer_than_told() -> None:
    npu = Npu()
    npu.finishes = False
    with pytest.raises(DeviceTimeout, match="before a capture"):
        Loop(Graphs(npu, timeout_s=0.0)).step(decode())
    assert npu.log == []


# ---- promises and options ----


def test_a_broken_promise_of_shapes_is_refused() -> None:
    loop = Loop(Graphs(Npu()))
    loop.step(decode(), "int64[4]")
    with pytest.raises(ConfigError, match=r"'decode' promises equal shapes, but its inputs were int64\[4\] and are int64\[5\]"):
        loop.step(decode(), "int64[5]")


def test_a_key_must_be_hashable() -> None:
    with pytest.raises(ConfigError, match="graph key must be hashable"):
        Loop(Graphs(Npu())).step(decode(["decode", 8]))


@pytest.mark.parametrize("options", [{"mode": "of"}, {"keys": 0}, {"instances": 0}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
        Graphs(Npu(), **options)


# ---- host tasks ----


def test_a_host_task_is_a_plain_call_outside_of_a_capture() -> None:
    seen: list[Any] = []
    host_task(lambda lens: seen.append(lens), lens=[1, 2])
    assert seen == [[1, 2]]


def test_a_captured_host_task_is_updated_where_its_values_changed() -> None:
    npu, seen = Npu(), list[Any]()

    def attend(lens: Any, scale: Any) -> str:
        host_task(lambda lens: seen.append(lens), lens=lens)
        host_task(lambda scale: seen.append(scale), scale=scale)
        return "output"

    loop = Loop(Graphs(npu, instances=1))
    loop.step(decode(lens=[1], scale=0), call=attend)
    captured = len(npu.log)
    assert seen == [[1], 0] * 2  # run, and captured
    for lens in ([1], [2], [2], [3]):
        assert loop.step(decode(lens=lens, scale=0), call=attend) == "inputs 1"
    assert seen[4:] == [[2], [3]]
    handle = "handle 2"
    update = [("update", "copy in", handle), ("updated", "copy in")]
    replay = [("replay", 0)]
    assert npu.log[:captured] == [("capture", "pool 1", "compute", "thread_local"), ("group", "compute"), ("group", "compute")]
    assert npu.log[captured:] == [*replay, *update, *replay, *replay, *update, *replay]


def test_a_host_task_sees_a_list_that_is_changed_in_place() -> None:
    npu, seen, lens = Npu(), list[Any](), [1]

    def attend(lens: Any) -> str:
        host_task(lambda lens: seen.append(list(lens)), lens=lens)
        return "output"

    loop = Loop(Graphs(npu, instances=1))
    for lens[0] in (1, 1, 2, 2, 3):
        loop.step(decode(lens=lens), call=attend)
    assert seen == [[1], [1], [2], [3]]


def test_each_instance_is_updated_from_its_own_values() -> None:
    npu, seen = Npu(), list[int]()

    def attend(n: int) -> str:
        host_task(lambda n: seen.append(n), n=n)
        return "output"

    loop = Loop(Graphs(npu, instances=2), 2)
    for n in (1, 2, 1, 1):
        loop.step(decode(n=n), call=attend)
    assert seen == [1, 1, 2, 2, 1]  # each run and captured; then the first instance has its 1 already, and the second is told
