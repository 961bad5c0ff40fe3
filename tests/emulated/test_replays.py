"""Captured graphs of the emulated NPU: forks and joins, replays, updates of tasks, and what a capture forbids."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401 (torch.npu)

from ovsdk.backends.ascend.emulator import Emulator

MS = 1_000_000


@pytest.fixture
def x() -> Any:
    x = torch.ones(8, device="npu")
    torch.npu.synchronize()
    return x


def forked(x: Any, side: Any, join: bool = True) -> tuple[Any, Any]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        main = torch.npu.current_stream()
        a = x + x
        side.wait_stream(main)
        with torch.npu.stream(side):
            b = a * a
        c = a + x
        if join:
            main.wait_stream(side)
            c = c + b
    return graph, c


def test_a_replay_reads_its_inputs_anew_and_joins_its_forks(x: Any) -> None:
    graph, out = forked(x, torch.npu.Stream())
    for value in (1.0, 2.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert out.cpu().tolist() == [3 * value + 4 * value * value] * 8


def test_branches_run_beside_each_other_and_replays_one_after_the_other(npu: Emulator, x: Any) -> None:
    graph, _ = forked(x, torch.npu.Stream())
    npu.latency("aclnnAdd", 2000)  # prices are those of the replay
    npu.latency("aclnnMul", 6000)
    npu.machine(shared_cores=False, lead_ns=0)
    with npu.trace() as trace:
        graph.replay()
        graph.replay()
        torch.npu.synchronize()
    npu.machine(shared_cores=True, lead_ns=100_000)
    adds, muls = trace.get().named("aclnnAdd"), trace.get().named("aclnnMul")
    assert {task.graph for task in adds + muls} == {adds[0].graph}
    assert adds[0].graph != 0
    first = sorted(adds, key=lambda task: task.begin_ns)
    assert [task.end_ns - task.begin_ns for task in (*adds, *muls)] == [2 * MS] * 6 + [6 * MS] * 2
    assert muls[0].begin_ns == first[0].end_ns == first[1].begin_ns
    assert first[2].begin_ns == muls[0].end_ns
    assert first[3].begin_ns >= first[2].end_ns


def test_a_fork_that_is_not_joined_is_an_error(x: Any) -> None:
    side = torch.npu.Stream()
    with pytest.raises(RuntimeError, match="107027"):
        forked(x, side, join=False)
    with torch.npu.stream(side):  # it is free again
        assert (x + x).cpu().tolist() == [2.0] * 8


def test_nothing_may_wait_for_a_stream_that_is_captured(x: Any) -> None:
    def capture_a_synchronisation() -> None:
        with torch.npu.graph(torch.npu.NPUGraph()):
            x + x
            torch.npu.current_stream().synchronize()

    with pytest.raises(RuntimeError, match="107027"):
        capture_a_synchronisation()
    assert not torch.npu.is_current_stream_capturing()
    assert (x + x).cpu().tolist() == [2.0] * 8


def test_a_capture_does_not_run_its_tasks(x: Any) -> None:
    out = torch.zeros(8, device="npu")
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        torch.add(x, x, out=out)
    torch.npu.synchronize()
    assert out.cpu().tolist() == [0.0] * 8
    graph.replay()
    assert out.cpu().tolist() == [2.0] * 8


class Updated:
    """A graph of `out = x * factor`, the factor on the host: what tiling from host lists is updated like."""

    def __init__(self, x: Any) -> None:
        self.x, self.out, self.side = x, torch.zeros(8, device="npu"), torch.npu.Stream()
        torch.npu.synchronize()
        self.graph, self.event = torch.npu.NPUGraph(), torch.npu.ExternalEvent()
        with torch.npu.graph(self.graph):
            stream = torch.npu.current_stream()
            self.event.wait(stream)
            self.event.reset(stream)
            torch.npu.graph_task_group_begin(stream)
            torch.mul(self.x, 2.0, out=self.out)
            self.handle = torch.npu.graph_task_group_end(stream)

    def update(self, factor: float) -> None:
        with torch.npu.stream(self.side):
            torch.npu.graph_task_update_begin(self.side, self.handle)
            torch.mul(self.x, factor, out=self.out)
            torch.npu.graph_task_update_end(self.side)
            self.event.record(self.side)


def test_a_task_is_updated_before_its_turn(npu: Emulator, x: Any) -> None:
    one = Updated(x)
    for factor in (2.0, 3.0, 7.0):
        one.update(factor)
        one.graph.replay()
        assert one.out.cpu().tolist() == [factor] * 8
    npu.latency("task_update", 3000)
    one.graph.replay()  # waits for the event, so the update may come after it
    one.update(9.0)
    assert one.out.cpu().tolist() == [9.0] * 8


def test_an_update_that_comes_too_early_changes_the_replay_before(npu: Emulator, x: Any) -> None:
    one = Updated(x)
    npu.latency("aclnnAdd", 50_000)
    one.update(2.0)
    torch.npu.synchronize()
    busy = x + x
    one.graph.replay()  # behind `busy`
    one.update(5.0)  # while that replay has not come to its task
    torch.npu.current_stream().synchronize()
    assert busy.cpu().tolist() == [2.0] * 8
    assert one.out.cpu().tolist() == [5.0] * 8


def test_an_update_by_another_operator_is_refused(x: Any) -> None:
    one = Updated(x)
    with torch.npu.stream(one.side):
        torch.npu.graph_task_update_begin(one.side, one.handle)
        torch.add(x, x, out=one.out)
        with pytest.raises(RuntimeError, match="107000"):
            torch.npu.graph_task_update_end(one.side)


def test_a_graph_that_is_gone_gives_its_streams_back(npu: Emulator, x: Any) -> None:
    side = torch.npu.Stream()
    before = npu.streams()
    for _ in range(20):
        graph, _ = forked(x, side)
        graph.replay()
        torch.npu.synchronize()
        graph.reset()
    torch.npu.synchronize()
    assert npu.streams() < before + 10  # threads may be about to end
