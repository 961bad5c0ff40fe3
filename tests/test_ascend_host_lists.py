"""Host lists under graphs: tiled before the launch, within the worst case, updated where they changed. Emulated runs show the results."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk.backends.ascend.graphs import Graphs, host_task
from ovsdk.backends.ascend.host_lists import HostList, Listed
from ovsdk.errors import TilingError
from ovsdk.tiling import OPERATORS, Tiler, TilingSpec, operator_named, plan, platform_named, tiling_spec

from .emulation import run_emulated
from .test_ascend_graphs import Loop, Npu, decode

BATCH, CACHE = 6, 4096
ATTENTION = tiling_spec("split_kv", [(BATCH, 16, 64), (BATCH, CACHE, 2, 64)], capacity=BATCH)
LENS = HostList(Tiler("910B3"), ATTENTION)
lens = st.lists(st.integers(0, CACHE), min_size=BATCH, max_size=BATCH)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_on_the_emulated_npu(level: int) -> None:
    run_emulated("test_host_lists.py", task_queue=level)


# ---- a list and its tiling ----


@given(lens)
@settings(deadline=None)
def test_it_is_tiled_on_the_host_within_the_worst_case(values: list[int]) -> None:
    listed = LENS(np.array(values))
    assert listed == (tuple(values), plan(operator_named("split_kv"), ATTENTION, platform_named("910B3"), values=values))
    assert listed.tiling.workspace <= LENS.worst.workspace
    assert listed.tiling.block_dim <= LENS.worst.block_dim
    assert len(listed.tiling.record) == LENS.worst.length
    assert all(type(value) is int for value in listed.values)


@given(lens, lens)
@settings(deadline=None)
def test_it_changes_with_its_values_alone(one: list[int], other: list[int]) -> None:
    assert (LENS(one) == LENS(other)) == (one == other)
    listed = LENS(one)
    assert copy.deepcopy({"lens": listed})["lens"] is listed


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, 2, 3, 4, 5, CACHE + 1], f"{CACHE + 1}"),
        ([1, 2, -3, 4, 5, 6], "-3"),
        ([1] * (BATCH + 1), f"{BATCH + 1} values"),
    ],
)
def test_a_list_that_cannot_be_tiled_is_refused_with_its_numbers(values: list[int], told: str) -> None:
    with pytest.raises(TilingError, match=told):
        LENS(values)


def small(op: str) -> TilingSpec:
    shapes: dict[str, Any] = {"matmul": [(8, 8), (8, 8)], "broadcast": [(8, 1), (8, 8)]}
    return tiling_spec(op, shapes.get(op, [(8, 8)]))


@pytest.mark.parametrize("op", [name for name in OPERATORS if not operator_named(name).values])
def test_an_operator_without_a_list_is_refused(op: str) -> None:
    with pytest.raises(TilingError, match=f"{op} takes no list: shapes alone decide"):
        HostList(Tiler(), small(op))


def test_a_tiler_with_its_own_operator_is_asked() -> None:
    """A framework's own tiling of an operator that takes a list."""
    mine = operator_named("split_kv")
    tiler = Tiler("910B3", operators=[mine])
    HostList(tiler, ATTENTION)([1] * BATCH)
    assert tiler.placements == {"split_kv": "host-shape"}


# ---- under a graph key ----


def test_a_task_is_updated_where_the_list_changed_and_gets_it_with_its_tiling() -> None:
    npu, seen = Npu(), list[Listed]()

    def attend(lens: Listed) -> str:
        host_task(lambda lens: seen.append(lens), lens=lens)
        return "output"

    loop, steps = Loop(Graphs(npu, instances=1)), [[1] * BATCH, [1] * BATCH, [2] * BATCH, [2] * BATCH, [CACHE] * BATCH]
    ran = [loop.step(decode(lens=LENS(values)), call=attend) for values in steps]
    assert ran == ["eager", *["inputs 1"] * 4]
    assert seen == [LENS(steps[0]), LENS(steps[0]), LENS(steps[2]), LENS(steps[4])]
    updates = [entry for entry in npu.log if entry[0] == "update"]
    assert [stream for _, stream, _ in updates] == ["copy in"] * 2
