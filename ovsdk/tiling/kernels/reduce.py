"""Sum over axes that are values on the device (in-kernel): no host ever learns which.

Every program reads shape and axes, and finds its share. The output's elements, row-major over the kept axes, are cut into blocks; where
blocks are fewer than programs, each block's reduction is shared by a group of programs, whose partial sums a second launch adds up.
Sums are in float32, in an order that depends on shape, axes and programs alone. A set of axes that cannot be makes an output of NaN.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
# Triton's values have no types that a checker knows, and triton itself ships none.
from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...errors import TilingError
from ..ops import reduce as derivation

RANK, DIMS, MOST_RANK = tl.constexpr(derivation.RANK), tl.constexpr(derivation.DIMS), derivation.MOST_RANK
KEPT, GONE = 64, 64
"""Elements of a block: of the output, and of what is summed into each at once."""


@triton.jit
def _marked(a, axes, count):
    """A bit for each axis that is summed over; and whether the axes can be."""
    rank, one = tl.load(a + RANK), tl.full((), 1, tl.int64)
    bits, wrong = one * 0, one * 0
    for i in range(count):
        axis = tl.load(axes + i).to(tl.int64)
        axis = tl.where(axis < 0, axis + rank, axis)
        inside = (axis >= 0) & (axis < rank)
        bit = one << tl.where(inside, axis, 0)
        wrong = tl.where(inside & ((bits & bit) == 0), wrong, one)
        bits = bits | tl.where(inside, bit, 0)
    return bits, wrong


@triton.jit
def _elements(a, bits, summed):
    """Elements of the space of the axes whose bit is `summed`."""
    found = tl.full((), 1, tl.int64)
    for i in range(tl.load(a + RANK)):
        found = found * tl.where(((bits >> i) & 1) == summed, tl.load(a + DIMS + i), 1)
    return found


@triton.jit
def _offsets(a, bits, summed, index):
    """Where in x, contiguous, the elements `index` of that space lie."""
    rank, step = tl.load(a + RANK), tl.full((), 1, tl.int64)
    found = index * 0
    for behind in range(rank):
        i = rank - 1 - behind
        size = tl.load(a + DIMS + i)
        mine = ((bits >> i) & 1) == summed
        here = tl.where(mine, tl.maximum(size, 1), 1)
        found += (index % here) * step
        index = index // here
        step = step * size
    return found


@triton.jit
def _cut(kept, gone, PROGRAMS: tl.constexpr, KEPT: tl.constexpr, GONE: tl.constexpr):
    """Blocks of the output; groups that share the reduction of one; elements that one of a group sums up for each."""
    blocks, chunks = tl.cdiv(kept, KEPT), tl.cdiv(gone, GONE)
    groups = tl.maximum(tl.minimum(PROGRAMS // tl.maximum(blocks, 1), chunks), 1)
    share = tl.cdiv(chunks, groups) * GONE
    return blocks, tl.maximum(tl.cdiv(gone, tl.maximum(share, 1)), 1), share


@triton.jit
def _sum(x, a, axes, count, out, partial, PROGRAMS: tl.constexpr, KEPT: tl.constexpr, GONE: tl.constexpr):
    bits, wrong = _marked(a, axes, count)
    kept, gone = _elements(a, bits, 0), _elements(a, bits, 1)
    blocks, groups, share = _cut(kept, gone, PROGRAMS, KEPT, GONE)
    for task in range(tl.program_id(0).to(tl.int64), blocks * groups, PROGRAMS):
        group = task % groups
        o = task // groups * KEPT + tl.arange(0, KEPT).to(tl.int64)
        base = _offsets(a, bits, 0, o)
        total = tl.zeros((KEPT,), dtype=tl.float32)
        end = tl.minimum((group + 1) * share, gone)
        for first in range(group * share, end, GONE):
            r = first + tl.arange(0, GONE).to(tl.int64)
            there = (o < kept)[:, None] & (r < end)[None, :]
            part = tl.load(x + base[:, None] + _offsets(a, bits, 1, r)[None, :], mask=there, other=0.0)
            total += tl.sum(part.to(tl.float32), axis=1)
        if groups == 1:
            tl.store(out + o, tl.where(wrong == 1, float("nan"), total).to(out.dtype.element_ty), mask=o < kept)
        else:
            tl.store(partial + group * kept + o, total, mask=o < kept)


@triton.jit
def _add_groups(a, axes, count, out, partial, PROGRAMS: tl.constexpr, KEPT: tl.constexpr, GONE: tl.constexpr):
    bits, wrong = _marked(a, axes, count)
    kept, gone = _elements(a, bits, 0), _elements(a, bits, 1)
    blocks, groups, _share = _cut(kept, gone, PROGRAMS, KEPT, GONE)
    if groups > 1:
        for block in range(tl.program_id(0).to(tl.int64), blocks, PROGRAMS):
            o = block * KEPT + tl.arange(0, KEPT).to(tl.int64)
            total = tl.zeros((KEPT,), dtype=tl.float32)
            for group in range(groups):
                total += tl.load(partial + group * kept + o, mask=o < kept, other=0.0)
            tl.store(out + o, tl.where(wrong == 1, float("nan"), total).to(out.dtype.element_ty), mask=o < kept)


def reduce_sum(x: Tensor, axes: Tensor, cores: int) -> Tensor:
    """The sum of x over `axes`, a tensor of integers on x's device; negative ones count from the end; none: a copy of x.

    Flat, with room for what any axes give: the first elements are the sum, row-major; view them as soon as the host knows their shape.
    dtype as x: float32, float16 or bfloat16. The first call for a shape copies that shape to the device.
    Raises TilingError for a rank over the limit, a dtype that is no float, and an x that is not contiguous.
    """
    if x.dim() > MOST_RANK or not x.is_floating_point() or not x.is_contiguous():
        how = "contiguous" if x.is_contiguous() else "not contiguous"
        raise TilingError(f"reduce_sum: x is {tuple(x.shape)}, {x.dtype}, {how}; allowed: rank up to {MOST_RANK}, floats, contiguous")
    out = torch.empty(capacity(tuple(x.shape)), dtype=x.dtype, device=x.device)
    partial = torch.empty(cores * KEPT, dtype=torch.float32, device=x.device)
    a, cut = _shape(tuple(x.shape), x.device), {"PROGRAMS": cores, "KEPT": KEPT, "GONE": GONE}
    _sum[(cores,)](x, a, axes, axes.numel(), out, partial, **cut)
    _add_groups[(cores,)](a, axes, axes.numel(), out, partial, **cut)
    return out


def capacity(shape: tuple[int, ...]) -> int:
    """Elements of the output that no axes exceed: axes of size 0 may be summed over."""
    kept = 1
    for size in shape:
        kept *= max(size, 1)
    return kept


@lru_cache(maxsize=1024)
def _shape(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The arguments of the derivation, as far as a kernel needs them."""
    return torch.tensor([0] * derivation.RANK + [len(shape), *shape], dtype=torch.int64, device=device)
