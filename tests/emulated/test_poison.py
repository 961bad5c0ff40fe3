"""Lifetimes: a block is poisoned when nobody may use it any more, and not before. Run under `ovsdk emulate --poison`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401 (torch.npu)

from ovsdk.backends.ascend.emulator import Emulator
from ovsdk.errors import ConfigError


@pytest.fixture
def x(npu: Emulator) -> Any:
    x = torch.ones(8, device="npu")
    torch.npu.synchronize()
    npu.latency("aclnnAdd", 500)
    npu.latency("aclnnMul", 50_000)
    return x


def test_temporaries_may_be_freed_while_their_readers_are_queued(x: Any) -> None:
    z = x
    for _ in range(20):
        z = z + x
    assert z.cpu().tolist() == [21.0] * 8


@pytest.mark.parametrize(("recorded", "seen"), [(True, "[6.0, 6.0]"), (False, "[nan, nan]")])
def test_a_block_that_another_stream_uses_must_be_recorded(x: Any, recorded: bool, seen: str) -> None:
    side = torch.npu.Stream()
    y = torch.full((2,), 3.0).npu()
    torch.npu.synchronize()
    with torch.npu.stream(side):
        x * x  # the side stream is late
        z = y + y
    if recorded:
        y.record_stream(side)
    del y
    torch.npu.synchronize()
    assert str(z.cpu().tolist()) == seen


def test_integers_are_minus_one(x: Any) -> None:
    side = torch.npu.Stream()
    y = torch.full((2,), 3).npu()
    host = torch.zeros(2, dtype=torch.int64, pin_memory=True)
    torch.npu.synchronize()
    with torch.npu.stream(side):
        x * x
        host.copy_(y, non_blocking=True)
    del y
    torch.npu.synchronize()
    assert host.tolist() == [-1, -1]


def test_what_a_graph_made_lives_as_long_as_it(npu: Emulator, x: Any) -> None:
    torch.npu.synchronize()
    before = npu.used_bytes()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = (x + x) * x + x
    for value in (2.0, 3.0):
        x.fill_(value)
        graph.replay()
        assert out.cpu().tolist() == [2 * value * value + value] * 8
    del out
    assert npu.used_bytes() > before
    graph.reset()
    torch.npu.synchronize()
    assert npu.used_bytes() == before


def test_nothing_is_cached(npu: Emulator, x: Any) -> None:
    torch.npu.synchronize()
    before = npu.used_bytes()
    for _ in range(50):
        torch.empty(1 << 20, device="npu")
    torch.npu.synchronize()
    assert npu.used_bytes() == before


def test_it_is_too_late_once_there_has_been_a_tensor(npu: Emulator, x: Any) -> None:
    with pytest.raises(ConfigError, match="only from the start"):
        npu.poison()
