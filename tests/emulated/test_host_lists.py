"""A reduction whose axes are a list on the host, in captured launches: axes and tiling are those of the step, and nobody waits."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch_npu  # noqa: F401 (torch.npu)

import ovsdk
from ovsdk.backends.ascend import emulator
from ovsdk.backends.ascend.graphs import Graph, host_task
from ovsdk.backends.ascend.host_lists import HostList, Listed
from ovsdk.backends.ascend.syncs import Syncs
from ovsdk.errors import TilingError
from ovsdk.tiling import Tiler, operator_named, tiling_spec
from ovsdk.tiling.operator import run as derived

STEPS, SIDE = 14, 6
LEVEL = torch.npu.get_task_queue_enable()
captures = pytest.mark.skipif(LEVEL == 2, reason="torch_npu cannot capture at task-queue level 2")
AXES = HostList(Tiler("910B3"), tiling_spec("reduce", [(SIDE, SIDE, SIDE)], "int64", capacity=1))


@pytest.fixture(autouse=True)
def slow() -> Iterator[emulator.Emulator]:
    """A device that is slower than the host, so that launches really are in flight together; and no garbage of tests before."""
    gc.collect()
    device = emulator.active()
    assert device is not None, "run it under `ovsdk emulate`"
    device.latency("aclnnReduceSum", 20_000)
    yield device
    device.clear_latencies()


class Model:
    """A kernel that is given axes and a tiling record: played by a reduction and by an operator for each number of the record."""

    def __init__(self, device: str) -> None:
        self.state = torch.arange(SIDE**3, device=device).reshape(SIDE, SIDE, SIDE)

    def step(self, x: Any, axes: Listed) -> Any:
        total = torch.empty(SIDE, SIDE, dtype=torch.int64, device=x.device)
        record = torch.empty(AXES.worst.length, dtype=torch.int64, device=x.device)

        def reduce(axes: Listed) -> None:
            torch.sum(self.state, axes.values, out=total)
            for place, number in zip(record, axes.tiling.record, strict=True):
                place.fill_(number)

        host_task(reduce, axes=axes)
        self.state.add_(total * x)
        return {"total": total, "record": record}


def axis(step: int) -> int:
    """All axes, in no simple order, and one twice running."""
    return (0, 1, 1, 2, -3, 0, -1)[step % 7]


class Engine:
    def open(self, backend: Any) -> None:
        self.model = backend.load(Model)

    def prepare(self, step: int, batch: int) -> Any:
        return np.full((SIDE, SIDE), batch % 5, np.int64)

    def launch(self, step: int, inputs: Any) -> ovsdk.Launch:
        return ovsdk.Launch("decode", fn=self.model.step, inputs=inputs, host={"axes": AXES([axis(step)])}, graph="decode")


class Numbers:
    def __init__(self) -> None:
        self.results = list[tuple[Any, Any]]()

    def plan(self, ask: Any) -> Any:
        return ask.step if ask.step < STEPS else ovsdk.CLOSED

    def retire(self, step: int, batch: int, result: Any) -> None:
        self.results.append((result["total"].tolist(), result["record"].tolist()))


def run(depth: int = 2, **options: Any) -> tuple[list[Any], list[str]]:
    numbers = Numbers()
    with ovsdk.open_backend("ascend", **options) as npu:
        report = ovsdk.run(numbers, Engine(), npu, depth=depth)
    return numbers.results, list(report.notes)


def right() -> list[Any]:
    """What numpy and the host's derivation say."""
    state, answers, op = np.arange(SIDE**3).reshape(SIDE, SIDE, SIDE), list[Any](), operator_named("reduce")
    for step in range(STEPS):
        total = state.sum(axis(step))
        state = state + total * (step % 5)
        answers.append((total.tolist(), derived(op, AXES([axis(step)]).tiling.args, [axis(step)])))
    return answers


def test_eager_launches_are_right() -> None:
    assert run(1, graphs="off")[0] == right()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_replays_have_the_list_and_the_tiling_of_their_step(depth: int) -> None:
    answers, notes = run(depth)
    assert answers == right()
    if LEVEL != 2:
        ((replays, instances),) = re.findall(r"(\d+) replays of (\d+) instances", " ".join(notes))
        assert int(replays) == STEPS - int(instances) >= STEPS - max(2, depth)


@captures
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_without_the_update_they_have_those_of_the_capture(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    """The test of the test."""
    monkeypatch.setattr(Graph, "update", lambda self, host: None)
    answers, _ = run(depth)
    assert answers != right()


@captures
def test_with_old_tilings_only_the_record_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test, for the tiling alone."""
    old = AXES([0]).tiling
    monkeypatch.setattr(HostList, "__call__", lambda self, values: Listed(tuple(values), old))
    answers, _ = run()
    monkeypatch.undo()
    assert [total for total, _ in answers] == [total for total, _ in right()]
    assert [record for _, record in answers] != [record for _, record in right()]


@captures
def test_updates_run_beside_the_graph(slow: emulator.Emulator) -> None:
    """On another stream, and while the step before is still reducing. A list that stays is not updated."""
    with slow.trace() as trace:
        run(depth=2)
    replayed = [task for task in trace.get().named("aclnnReduceSum") if task.graph]
    updates = trace.get().named("task_update")
    assert len(replayed) == STEPS - 2
    assert len(updates) == sum(axis(step) != axis(step - 2) for step in range(2, STEPS))
    assert {task.stream for task in updates}.isdisjoint(task.stream for task in replayed)
    assert any(one.begin_ns < update.end_ns < one.end_ns for update in updates for one in replayed)


@captures
def test_garbage_may_be_collected_in_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeing the pinned memory of a run before records events on the stream that copied it, which is this run's, too."""
    end, on = torch.npu.graph_task_update_end, list[bool]()

    def ending(stream: Any) -> None:
        on.append(gc.isenabled())
        if on[-1]:
            gc.collect()
        end(stream)

    run()
    monkeypatch.setattr(torch.npu, "graph_task_update_end", ending)
    assert run()[0] == right()
    assert len(on) == sum(axis(step) != axis(step - 2) for step in range(2, STEPS))


def test_nothing_waits() -> None:
    """From `submit` to its return, replays and updates included; what captures may wait."""
    found = Syncs("count")
    with ovsdk.open_backend("ascend") as npu:
        model, stream = npu.load(Model), npu.stream()

        def launch(step: int) -> ovsdk.Launch:
            inputs = (np.full((SIDE, SIDE), step % 5, np.int64),)
            return ovsdk.Launch("decode", fn=model.step, inputs=inputs, host={"axes": AXES([axis(step)])}, graph="decode")

        futures = [stream.submit(launch(step)) for step in range(2)]
        for step in range(2, STEPS):
            futures[step - 2].result()  # two are in flight: as many as there are instances
            futures.append(found.call("submit", stream.submit, (launch(step),), {}))
        answers = [future.result() for future in futures]
    assert found.launches == STEPS - 2
    assert found.notes() == ()
    assert [(one["total"].tolist(), one["record"].tolist()) for one in answers] == right()


def test_a_list_that_cannot_be_tiled_leaves_the_run_as_it_was() -> None:
    with ovsdk.open_backend("ascend") as npu:
        model, stream = npu.load(Model), npu.stream()
        for step, bad in ((0, 3), (1, -4), (2, 9), (3, 3), (4, 7)):
            with pytest.raises(TilingError, match=r"axes\[0\] = -?\d is out of range for rank 3"):
                AXES([bad])
            host, x = {"axes": AXES([axis(step)])}, np.full((SIDE, SIDE), step % 5, np.int64)
            result = stream.submit(ovsdk.Launch("decode", fn=model.step, inputs=(x,), host=host, graph="decode")).result()
            assert (result["total"].tolist(), result["record"].tolist()) == right()[step]
