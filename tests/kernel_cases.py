"""What the Triton kernels compute, against torch. In Triton's interpreter by test_tiling_kernels; on a GPU: pytest tests/kernel_cases.py"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ovsdk.errors import TilingError
from ovsdk.tiling import operator_named, platform_named, tiling_spec
from ovsdk.tiling.kernels.grouped_matmul import grouped_matmul
from ovsdk.tiling.kernels.reduce import capacity, reduce_sum
from ovsdk.tiling.kernels.split_kv import flash_decode
from ovsdk.tiling.metadata import prepare
from ovsdk.tiling.ops import split_kv

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = list(TOLERANCE)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def integers(values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def check_close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)


# ---- reduce ----


def summed(x: Tensor, axes: Sequence[int]) -> Tensor:
    return x.float().sum(tuple(axes)) if axes else x.float()


def check_sum(x: Tensor, axes: Sequence[int], cores: int) -> None:
    expected = summed(x, axes)
    got = reduce_sum(x, integers(axes), cores)
    assert got.numel() == capacity(tuple(x.shape))
    check_close(got[: expected.numel()].view(expected.shape), expected, x.dtype)


SHAPES = [(5, 1, 3), (70, 3), (3, 0), (200,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_reduce_over_every_set_of_axes(shape: tuple[int, ...]) -> None:
    axes = range(len(shape))
    for chosen in itertools.chain.from_iterable(itertools.combinations(axes, count) for count in range(len(shape) + 1)):
        check_sum(random(*shape), chosen, 3)
        check_sum(random(*shape), [axis - len(shape) for axis in chosen[::-1]], 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cores", [3, 20])
def test_reduce_shares_a_long_reduction(dtype: torch.dtype, cores: int) -> None:
    for axes in ([-2, 1], [1]):
        check_sum(random(5, 400, dtype=dtype), axes, cores)


def test_reduce_of_a_scalar_and_of_the_highest_rank() -> None:
    check_sum(random(), [], 2)
    check_sum(random(*[2] * 8), [7, 0, -3], 4)


@pytest.mark.parametrize("axes", [[2], [-3], [0, 0], [1, -1]])
def test_reduce_over_axes_that_cannot_be_is_nan(axes: list[int]) -> None:
    got = reduce_sum(random(4, 300), integers(axes), 8)
    assert got[:4].isnan().all() or got[:1].isnan().all()


def test_reduce_takes_axes_of_32_bits() -> None:
    x = random(4, 6)
    check_close(reduce_sum(x, integers([1], torch.int32), 2)[:4], x.sum(1), x.dtype)


@pytest.mark.parametrize("x", [torch.ones(2, 3).T, torch.ones(1, 1, 1, 1, 1, 1, 1, 1, 1), torch.ones(3, dtype=torch.int32)])
def test_reduce_refuses(x: Tensor) -> None:
    with pytest.raises(TilingError, match="reduce_sum: x is"):
        reduce_sum(x, integers([0]), 1)


# ---- grouped matmul ----

GROUPS = [[5, 0, 70, 1], [0, 0], [64, 64, 1], [], [130]]


def as_list(counts: Sequence[int], kind: int) -> tuple[list[int], list[int]]:
    """A group_list, and the expert of each group."""
    order = list(range(len(counts)))[::-1] if kind == 2 else list(range(len(counts)))
    lists = {
        0: [sum(counts[: i + 1]) for i in range(len(counts))],
        1: list(counts),
        2: [number for pair in zip(order, counts, strict=True) for number in pair],
    }
    return lists[kind], order


def check_groups(counts: Sequence[int], kind: int, cores: int, dtype: torch.dtype = torch.float32, n: int = 70, k: int = 33) -> None:
    group_list, experts = as_list(counts, kind)
    x, w = random(sum(counts), k, dtype=dtype), random(max(len(counts), 1), k, n, dtype=dtype, seed=1)
    got = grouped_matmul(x, w, integers(group_list), cores, kind)
    rows = x.split(list(counts)) if counts else ()
    expected = [part.float() @ w[expert].float() for part, expert in zip(rows, experts, strict=True)]
    check_close(got, torch.cat([torch.empty(0, n, device=DEVICE), *expected]), dtype)


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("counts", GROUPS, ids=str)
def test_groups_of_rows_are_multiplied(counts: list[int], kind: int) -> None:
    check_groups(counts, kind, 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_of_every_dtype_on_more_programs_than_tiles(dtype: torch.dtype) -> None:
    check_groups([3, 0, 65], 1, 24, dtype)


def test_rows_in_no_group_are_nan() -> None:
    x, w = random(10, 16), random(2, 16, 16)
    for group_list, kind, right in (([3, 4], 1, 7), ([0, 3, 9, 4], 2, 3), ([20, -5], 1, 10)):
        got = grouped_matmul(x, w, integers(group_list), 2, kind)
        assert not got[:right].isnan().any()
        assert got[right:].isnan().all()


def test_grouped_matmul_refuses() -> None:
    with pytest.raises(TilingError, match=r"shapes \(2, 3\) and \(1, 4, 5\)"):
        grouped_matmul(random(2, 3), random(1, 4, 5), integers([2]), 1)
    with pytest.raises(TilingError, match="list_type 3"):
        grouped_matmul(random(2, 3), random(1, 3, 5), integers([2]), 1, 3)


# ---- flash-decode ----

LENGTHS = [[200], [1, 64, 65, 0, 200, 17], [0, 0, 130], [7] * 4, [0], [0, 33, 0]]


def decoded(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    out, group = torch.zeros(q.shape, device=DEVICE), q.shape[1] // k.shape[2]
    for b, length in enumerate(lengths):
        if length:
            keys, values = (one[b, :length].float().repeat_interleave(group, 1).transpose(0, 1) for one in (k, v))
            score = (keys @ q[b].float()[:, :, None])[..., 0] * q.shape[-1] ** -0.5
            out[b] = (score.softmax(1)[:, None] @ values)[:, 0]
    return out


def check_decode(
    lengths: Sequence[int], cores: int, made: str, dtype: torch.dtype = torch.float32, heads: int = 1, group: int = 3, dim: int = 16
) -> None:
    q, shape = random(len(lengths), heads * group, dim, dtype=dtype), (len(lengths), 200, heads, dim)
    k, v = random(*shape, dtype=dtype, seed=1), random(*shape, dtype=dtype, seed=2)
    got = flash_decode(q, k, v, integers(lengths), cores, 64, record_of(lengths, q, k, cores, made))
    check_close(got, decoded(q, k, v, lengths), dtype)


def record_of(lengths: Sequence[int], q: Tensor, k: Tensor, cores: int, made: str) -> Tensor | None:
    """The table: none, by the torch form on the device, or by the derivation in Python with this attribute."""
    if made == "in-kernel":
        return None
    attributes = {made: 1} if made in ("whole", "exact") else {}
    op = operator_named("split_kv")
    spec = tiling_spec("split_kv", [tuple(q.shape), tuple(k.shape)], "float32", capacity=len(lengths), kv_block=64, **attributes)
    a = op.read(spec, platform_named("910B3"))
    a[0], a[split_kv.CORES] = len(lengths), cores
    if made == "device-metadata":
        return prepare(op, a, DEVICE)(integers(lengths))
    out = [0] * op.length(a)
    op.derive(a, lengths, out)
    return integers(out)


MADE = ["in-kernel", "device-metadata", "exact", "whole"]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_flash_decode_of_ragged_lengths(lengths: list[int], made: str) -> None:
    for cores in (1, 7) if made == "in-kernel" else (3,):
        check_decode(lengths, cores, made)


@pytest.mark.parametrize("made", MADE[:2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_flash_decode_of_every_dtype_and_several_heads(dtype: torch.dtype, made: str) -> None:
    check_decode([190, 3, 100], 5, made, dtype, heads=2, group=4, dim=24)


def test_a_record_of_a_fault_gives_nan() -> None:
    q, k = random(1, 2, 16), random(1, 200, 1, 16)
    record = record_of([201], q, k, 4, "device-metadata")
    assert flash_decode(q, k, k, integers([201]), 4, 64, record).isnan().all()


def test_a_length_that_the_cache_does_not_hold_gives_nan() -> None:
    lengths, q, k = [17, 201, -1, 130], random(4, 2, 16), random(4, 200, 1, 16)
    got = flash_decode(q, k, k, integers(lengths), 5, 64)
    assert got[1:3].isnan().all()
    check_close(got[::3], decoded(q, k, k, [17, 0, 0, 130])[::3], q.dtype)


def test_flash_decode_refuses() -> None:
    q, k = random(1, 3, 16), random(1, 8, 2, 16)
    with pytest.raises(TilingError, match="flash_decode: shapes"):
        flash_decode(q, k, k, integers([1]), 1)
    with pytest.raises(TilingError, match="contiguous"):
        flash_decode(random(1, 2, 16), k.transpose(1, 2).contiguous().transpose(1, 2), k, integers([1]), 1)
