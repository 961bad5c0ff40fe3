"""Products of groups of rows with the weights of their experts, cut in the kernel, which reads the list of groups.

The tiles of all groups have consecutive numbers, and program p does the tiles p, p + programs, ...: each walks all groups and carries on
where its last one ended, so the tail of one group and the head of the next share a wave, and no program has two tiles more than another.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
# Triton's values have no types that a checker knows, and triton itself ships none.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...errors import TilingError
from ..ops.grouped_matmul import COUNTS, ENDS, PAIRS
from .dot import dot

BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 32
IS_ENDS, IS_PAIRS = tl.constexpr(ENDS), tl.constexpr(PAIRS)


@triton.jit
def _tile(x, w, y, start, rows, expert, bm, bn, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """One tile of one group's product."""
    m, n = bm * BM + tl.arange(0, BM), bn * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        left = tl.load(x + (start + m)[:, None] * K + k[None, :], mask=(m < rows)[:, None] & (k < K)[None, :], other=0.0)
        right = tl.load(w + (expert * K + k)[:, None] * N + n[None, :], mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc += dot(left, right)
    inside = (m < rows)[:, None] & (n < N)[None, :]
    tl.store(y + (start + m)[:, None] * N + n[None, :], acc.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _grouped(
    x,
    w,
    y,
    group_list,
    groups,
    M,
    N,
    K,
    EXPERTS,
    KIND: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    wide = tl.cdiv(N, BN)
    start, done = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    for g in range(groups):
        expert = tl.full((), 0, tl.int64) + g
        if KIND == IS_PAIRS:
            expert = tl.load(group_list + 2 * g).to(tl.int64)
            rows = tl.load(group_list + 2 * g + 1).to(tl.int64)
        elif KIND == IS_ENDS:
            rows = tl.load(group_list + g).to(tl.int64) - start
        else:
            rows = tl.load(group_list + g).to(tl.int64)
        rows = tl.minimum(tl.maximum(rows, 0), M - start)
        known = (expert >= 0) & (expert < EXPERTS)
        tiles = tl.where(known, tl.cdiv(rows, BM) * wide, 0)
        for t in range((tl.program_id(0) - done + PROGRAMS) % PROGRAMS, tiles, PROGRAMS):
            _tile(x, w, y, start, rows, expert, t // wide, t % wide, N, K, BM, BN, BK)
        start += rows
        done = (done + tiles) % PROGRAMS


def grouped_matmul(x: Tensor, w: Tensor, group_list: Tensor, cores: int, list_type: int = COUNTS) -> Tensor:
    """y[rows of group g] = x[rows of group g] @ w[expert of g], shapes (rows, k) and (experts, k, columns), sums in float32.

    `group_list`, integers on x's device, by `list_type`: 0 the end of each group, 1 its rows, 2 pairs of expert and rows.
    Rows that are in no group, or whose expert is not there, are NaN. Raises TilingError for shapes that do not fit, and unless contiguous.
    """
    if x.dim() != 2 or w.dim() != 3 or x.shape[1] != w.shape[1] or not (x.is_contiguous() and w.is_contiguous()):
        raise TilingError(f"grouped_matmul: shapes {tuple(x.shape)} and {tuple(w.shape)}; allowed: (m, k) and (experts, k, n), contiguous")
    if list_type not in (ENDS, COUNTS, PAIRS):
        raise TilingError(f"grouped_matmul: list_type {list_type}; allowed: 0 ends, 1 counts, 2 pairs of expert and count")
    (m, k), (experts, _, n) = x.shape, w.shape
    y = torch.full((m, n), float("nan"), dtype=x.dtype, device=x.device)
    groups = group_list.numel() // (2 if list_type == PAIRS else 1)
    sizes = {"BM": BLOCK_M, "BN": BLOCK_N, "BK": BLOCK_K}
    _grouped[(cores,)](x, w, y, group_list, groups, m, n, k, experts, KIND=list_type, PROGRAMS=cores, **sizes)
    return y
