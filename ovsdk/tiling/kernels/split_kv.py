"""Flash-decode over ragged lengths: the KV blocks of all rows cut over a fixed number of programs, then the parts of cut rows joined.

Two ways to the cut, one pair of kernels:

device-metadata    `record` is that of `ovsdk.tiling.ops.split_kv`, made on the device before: program p reads its row of the table
in-kernel          no record: blocks count alike, and program p takes the blocks from p * blocks // programs on, each one at least

A row is a sequence and one of its KV heads; its `group` query heads are done together. A row within one program is written at once. Of one
that is cut, each program keeps its part: outputs, maximum and sum in float32. The program on which the row begins joins the parts.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
# Triton's values have no types that a checker knows, and triton itself ships none.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...errors import TilingError
from ..ops import split_kv as table
from .dot import dot

TABLE, WIDTH = tl.constexpr(table.TABLE), tl.constexpr(table.WIDTH)
ROW, BLOCK, END_ROW, END_BLOCK = (tl.constexpr(at) for at in (table.ROW, table.BLOCK, table.END_ROW, table.END_BLOCK))
SLOT, JOIN_SLOT, JOIN_PARTS = (tl.constexpr(at) for at in (table.SLOT, table.JOIN_SLOT, table.JOIN_PARTS))
TILE = 64
"""Tokens at once."""


@triton.jit
def _blocks(lengths, sequence, CACHE, KV_BLOCK: tl.constexpr):
    """KV blocks of a sequence; no more than its cache has."""
    length = tl.load(lengths + sequence).to(tl.int64)
    return tl.cdiv(tl.minimum(tl.maximum(length, 0), CACHE), KV_BLOCK)


@triton.jit
def _place(lengths, sequences, HEADS, CACHE, target, KV_BLOCK: tl.constexpr):
    """Row and block in it of block number `target`; behind all blocks: the number of rows, and 0."""
    row, block, before = tl.full((), 0, tl.int64) + sequences * HEADS, tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    for b in range(sequences):
        each = _blocks(lengths, b, CACHE, KV_BLOCK)
        inside = (target >= before) & (target < before + each * HEADS)
        row = tl.where(inside, b * HEADS + (target - before) // tl.maximum(each, 1), row)
        block = tl.where(inside, (target - before) % tl.maximum(each, 1), block)
        before += each * HEADS
    return row, block


@triton.jit
def _total(lengths, sequences, HEADS, CACHE, KV_BLOCK: tl.constexpr):
    found = tl.full((), 0, tl.int64)
    for b in range(sequences):
        found += _blocks(lengths, b, CACHE, KV_BLOCK) * HEADS
    return found


@triton.jit
def _active(total, PROGRAMS: tl.constexpr):
    """Programs that have blocks; one if there are none."""
    return tl.maximum(tl.minimum(total, PROGRAMS), 1)


@triton.jit
def _share(p, record, lengths, sequences, HEADS, CACHE, KV_BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, READ: tl.constexpr):
    """Of program p: where it begins and where the next one does."""
    if READ:
        mine = record + TABLE + p * WIDTH
        row, block, end_row, end_block = tl.load(mine + ROW), tl.load(mine + BLOCK), tl.load(mine + END_ROW), tl.load(mine + END_BLOCK)
    else:
        total = _total(lengths, sequences, HEADS, CACHE, KV_BLOCK)
        active = _active(total, PROGRAMS)
        row, block = _place(lengths, sequences, HEADS, CACHE, tl.minimum(p, active) * total // active, KV_BLOCK)
        end_row, end_block = _place(lengths, sequences, HEADS, CACHE, tl.minimum(p + 1, active) * total // active, KV_BLOCK)
        row = tl.where(p == 0, 0, row)  # rows without blocks that stand first
        block = tl.where(p == 0, 0, block)
    return row, block, end_row, end_block


@triton.jit
def _attend(
    q, k, v, scale, sequence, head, begin, end,
    HEADS, CACHE, GROUP, DIM, G: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Softmax over the tokens [begin, end) of one row: outputs not yet divided, maximum, sum."""
    g, d = tl.arange(0, G), tl.arange(0, D)
    query = (sequence * HEADS + head) * GROUP + g
    asked = tl.load(q + query[:, None] * DIM + d[None, :], mask=(g < GROUP)[:, None] & (d < DIM)[None, :], other=0.0)
    top, total = tl.full((G,), float("-inf"), tl.float32), tl.zeros((G,), dtype=tl.float32)
    acc = tl.zeros((G, D), dtype=tl.float32)
    for first in range(begin, end, TILE):
        s = first + tl.arange(0, TILE)
        where = ((sequence * CACHE + s) * HEADS + head)[:, None] * DIM + d[None, :]
        there = (s < end)[:, None] & (d < DIM)[None, :]
        keys = tl.load(k + where, mask=there, other=0.0)
        score = dot(asked, tl.trans(keys)) * scale
        score = tl.where((s < end)[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        weight, keep = tl.exp(score - higher[:, None]), tl.exp(top - higher)
        values = tl.load(v + where, mask=there, other=0.0)
        acc = acc * keep[:, None] + dot(weight.to(values.dtype), values)
        total, top = total * keep + tl.sum(weight, axis=1), higher
    return acc, top, total


@triton.jit
def _work(
    q, k, v, lengths, record, out, part, top_of, sum_of, scale, sequences,
    HEADS, CACHE, GROUP, DIM, KV_BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, READ: tl.constexpr,
    G: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0).to(tl.int64)
    row, block, end_row, end_block = _share(p, record, lengths, sequences, HEADS, CACHE, KV_BLOCK, PROGRAMS, READ)
    if READ:
        continued = tl.load(record + TABLE + p * WIDTH + SLOT)
        begun = continued + (block > 0)
    else:
        continued, begun = p, p + PROGRAMS
    g, d = tl.arange(0, G), tl.arange(0, D)
    inside = (g < GROUP)[:, None] & (d < DIM)[None, :]
    for at in range(row, end_row + (end_block > 0)):
        sequence, head = at // HEADS, at % HEADS
        asked_for = tl.load(lengths + sequence).to(tl.int64)
        length = tl.minimum(tl.maximum(asked_for, 0), CACHE)
        blocks = tl.cdiv(length, KV_BLOCK)
        low = tl.where(at == row, block, 0)
        high = tl.where(at == end_row, end_block, blocks)
        acc, top, total = _attend(
            q, k, v, scale, sequence, head, low * KV_BLOCK, tl.minimum(high * KV_BLOCK, length), HEADS, CACHE, GROUP, DIM, G, D, TILE
        )
        acc = tl.where(length == asked_for, acc, float("nan"))
        if (low == 0) & (high == blocks):
            whole = acc / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out + (at * GROUP + g)[:, None] * DIM + d[None, :], whole.to(out.dtype.element_ty), mask=inside)
        elif low < high:
            slot = tl.where((at == row) & (low > 0), continued, begun) * GROUP + g
            tl.store(part + slot[:, None] * DIM + d[None, :], acc, mask=inside)
            tl.store(top_of + slot, top, mask=g < GROUP)
            tl.store(sum_of + slot, total, mask=g < GROUP)


@triton.jit
def _join(
    lengths, record, out, part, top_of, sum_of, sequences,
    HEADS, CACHE, GROUP, DIM, KV_BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, READ: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0).to(tl.int64)
    row, block, end_row, end_block = _share(p, record, lengths, sequences, HEADS, CACHE, KV_BLOCK, PROGRAMS, READ)
    if READ:
        own = tl.load(record + TABLE + p * WIDTH + JOIN_SLOT)
        others, rest = own + 1, tl.load(record + TABLE + p * WIDTH + JOIN_PARTS) - 1
    else:
        total = _total(lengths, sequences, HEADS, CACHE, KV_BLOCK)
        left = _blocks(lengths, tl.minimum(end_row // HEADS, sequences - 1), CACHE, KV_BLOCK) - end_block
        active = _active(total, PROGRAMS)
        behind = (p + 1) * total // active + left  # the row's end, as a number of blocks: its last one is program `last`'s
        last = (behind * active - 1) // tl.maximum(total, 1)
        begins_here = (end_block > 0) & ((block == 0) | (end_row > row))
        own, others, rest = p + PROGRAMS, p + 1, tl.where(begins_here, last - p, -1)
    if rest >= 0:
        g, d = tl.arange(0, G), tl.arange(0, D)
        inside = (g < GROUP)[:, None] & (d < DIM)[None, :]
        acc, top, total_sum = tl.zeros((G, D), dtype=tl.float32), tl.full((G,), float("-inf"), tl.float32), tl.zeros((G,), dtype=tl.float32)
        for i in range(rest + 1):
            slot = tl.where(i == 0, own, others + i - 1) * GROUP + g
            other = tl.load(top_of + slot, mask=g < GROUP, other=0.0)
            higher = tl.maximum(top, other)
            keep, add = tl.exp(top - higher), tl.exp(other - higher)
            more = tl.load(part + slot[:, None] * DIM + d[None, :], mask=inside, other=0.0)
            acc = acc * keep[:, None] + more * add[:, None]
            total_sum = total_sum * keep + tl.load(sum_of + slot, mask=g < GROUP, other=1.0) * add
            top = higher
        joined = acc / total_sum[:, None]
        tl.store(out + (end_row * GROUP + g)[:, None] * DIM + d[None, :], joined.to(out.dtype.element_ty), mask=inside)


def flash_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    cores: int,
    kv_block: int = 512,
    record: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(q k^T scale) v over the first `lengths[b]` tokens of each sequence b. A sequence without tokens gives 0.

    q: (sequences, heads, head_dim); k, v: (sequences, cache, KV heads, head_dim); `lengths`: integers on the same device.
    `record`: the split_kv record for `cores` cores and this `kv_block`, int64 on the device; None: the kernel cuts for itself.
    `scale`: default head_dim ** -0.5. Sums are in float32. A record with a fault gives NaN; so do, without a record,
    lengths that the cache does not hold. Raises TilingError for shapes that do not fit.
    """
    _refuse(q, k, v, lengths)
    (sequences, query_heads, dim), (_, cache, heads, _) = q.shape, k.shape
    group, out = query_heads // heads, torch.full_like(q, float("nan"))
    parts = [torch.empty((2 * cores * group, width), dtype=torch.float32, device=q.device) for width in (dim, 1, 1)]
    sizes = {"G": max(16, triton.next_power_of_2(group)), "D": max(16, triton.next_power_of_2(dim))}
    how = {"KV_BLOCK": kv_block, "PROGRAMS": cores, "READ": record is not None, **sizes}
    given, shape = lengths if record is None else record, (heads, cache, group, dim)
    scaled = dim**-0.5 if scale is None else scale
    _work[(cores,)](q, k, v, lengths, given, out, *parts, scaled, sequences, *shape, **how, TILE=TILE)
    _join[(cores,)](lengths, given, out, *parts, sequences, *shape, **how)
    return out


def _refuse(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> None:
    fits = q.dim() == 3 and k.dim() == 4 and k.shape == v.shape and (q.shape[0], q.shape[2]) == (k.shape[0], k.shape[3])
    if not fits or q.shape[1] % max(k.shape[2], 1) or lengths.numel() != q.shape[0]:
        shapes = ", ".join(str(tuple(one.shape)) for one in (q, k, v, lengths))
        raise TilingError(f"flash_decode: shapes {shapes}; allowed: (b, h, d), twice (b, s, h_kv, d) with h a multiple of h_kv, (b,)")
    if not all(one.is_contiguous() for one in (q, k, v, lengths)):
        raise TilingError("flash_decode: tensors are contiguous; make them so with .contiguous()")
