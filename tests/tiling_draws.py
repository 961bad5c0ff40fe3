"""Random specs of value-dependent operators with values, good and bad: for the tests of tilings, host and device."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy, composite

from ovsdk.tiling.operator import Operator
from ovsdk.tiling.operator import operator_named as operator
from ovsdk.tiling.platform import PLATFORMS, Platform
from ovsdk.tiling.spec import FAULT, TilingSpec, tiling_spec

Draw = Any
platforms = st.sampled_from([PLATFORMS[name] for name in ("910B3", "910B1", "310P")])
dtypes = st.sampled_from(["float16", "float32", "int8"])
GARBAGE = st.sampled_from([-(2**62), -5, -1, 10**6, 2**62])


class Case(NamedTuple):
    """An operator, and what its derivation is given."""

    op: Operator
    spec: TilingSpec
    platform: Platform
    values: list[int]

    @property
    def args(self) -> list[int]:
        """With the number of values."""
        return [len(self.values), *self.op.read(self.spec, self.platform)[1:]]

    def derived(self) -> list[int]:
        """The record."""
        a = self.args
        out = [0] * self.op.length(a)
        self.op.derive(a, self.values, out)
        return out


def many(most: int) -> SearchStrategy[list[int]]:
    """Numbers up to it, without a bias to small ones, as many as are in a batch."""
    return st.builds(lambda seed: [random.Random(seed + i).randint(0, most) for i in range(16 + seed % 32)], st.integers(0, 10**6))


@composite
def split_kv(draw: Draw, exact: int = 0) -> Case:
    """Lengths 0, 1, full and any; a block is a few tokens, so that cuts fall everywhere."""
    cache = draw(st.sampled_from([1, 700, 5000, 9000]))
    lengths = draw(st.lists(st.sampled_from([0, 1, cache]) | st.integers(0, cache), max_size=20) | many(cache))
    heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 4, 16, 17]))
    shapes = [(len(lengths), heads * group, 32), (len(lengths), cache, heads, 32)]
    how = {"kv_block": draw(st.sampled_from([64, 512, 1024])), "whole": draw(st.sampled_from([0, 0, 1])), "exact": exact}
    return Case(operator("split_kv"), tiling_spec("split_kv", shapes, capacity=len(lengths), **how), draw(platforms), lengths)


@composite
def grouped_matmul(draw: Draw, most: int = 0) -> Case:
    """Every kind of list, with empty groups, columns of no whole tile, and rows that no group has."""
    counts = draw(many(most) if most else st.lists(st.sampled_from([0, 1, 16, 17, 129]) | st.integers(0, 300), max_size=20))
    kind, padded, experts = draw(st.integers(0, 2)), draw(st.integers(0, 1)), len(counts) + draw(st.integers(0, 2))
    ends = [sum(counts[: g + 1]) for g in range(len(counts))]
    named = draw(st.permutations(range(experts)))[: len(counts)]
    pairs = [number for pair in zip(named, counts, strict=True) for number in pair]
    shapes = [(sum(counts) + padded * draw(st.integers(0, 9)), 64), (experts, 64, draw(st.sampled_from([0, 1, 40, 256, 300, 5000, 9000])))]
    values = [ends, counts, pairs][kind]
    spec = tiling_spec("grouped_matmul", shapes, capacity=len(values) + draw(st.sampled_from([0, 4])), list_type=kind, padded=padded)
    return Case(operator("grouped_matmul"), spec, draw(platforms), values)


@composite
def repeat(draw: Draw) -> Case:
    """Rows of a byte up to many buffers, repeated; or packed from blocks of 7."""
    name = draw(st.sampled_from(["repeat", "gather"]))
    counts = draw(st.lists(st.integers(0, 7), max_size=20))
    inner, spare = draw(st.sampled_from([0, 1, 3, 100, 5000, 300_000])), draw(st.integers(0, 3))
    shape = (len(counts), inner) if name == "repeat" else (len(counts), 7, inner)
    room = {"out_rows": sum(counts) + spare} if name == "repeat" else {}
    return Case(operator(name), tiling_spec(name, [shape], draw(dtypes), len(counts), **room), draw(platforms), counts)


@composite
def range_(draw: Draw) -> Case:
    """Up and down, nothing, and as much as there is room for."""
    start, delta = draw(st.integers(-99, 99)), draw(st.integers(-9, 9).filter(bool))
    limit = start + draw(st.integers(-5, 3000)) * delta - draw(st.integers(0, abs(delta) - 1)) * (1 if delta > 0 else -1)
    room = len(range(start, limit, delta)) + draw(st.integers(0, 3))
    return Case(operator("range"), tiling_spec("range", [(room,)], "int64", 3), draw(platforms), [start, limit, delta])


@composite
def topk(draw: Draw) -> Case:
    """Rows fewer and more than cores, k from nothing to all of a row."""
    shape = (draw(st.sampled_from([0, 1, 3, 41])), draw(st.sampled_from([0, 1, 17, 1000, 40_000])))
    k = draw(st.integers(0, min(shape[1], 100)) | st.sampled_from([shape[1], shape[1] // 8]))
    return Case(operator("topk"), tiling_spec("topk", [shape], draw(dtypes), 1), draw(platforms), [k])


@composite
def reduce(draw: Draw) -> Case:
    """Any axes of a small rank, from either end."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 5, 100, 3000]), max_size=5))
    axes = draw(st.permutations(range(len(shape))))[: draw(st.integers(0, len(shape)))]
    signed = [axis - len(shape) * draw(st.integers(0, 1)) for axis in axes]
    return Case(operator("reduce"), tiling_spec("reduce", [shape], draw(dtypes), 8), draw(platforms), signed)


OURS: dict[str, SearchStrategy[Case]] = {
    "split_kv": split_kv(),
    "grouped_matmul": grouped_matmul(),
    "repeat": repeat(),
    "range": range_(),
    "topk": topk(),
}
EVERY = {**OURS, "large grouped_matmul": grouped_matmul(most=8000), "reduce": reduce()}
"""A strategy for each family."""


@composite
def damaged(draw: Draw, cases: SearchStrategy[Case]) -> Case:
    """A case some of whose values may be anything, or be gone, or be one too many."""
    case = draw(cases)
    values = [draw(GARBAGE) if draw(st.integers(0, 9)) == 0 else value for value in case.values]
    how = draw(st.integers(0, 9))
    return case._replace(values=values[:-1] if how == 0 else [*values, draw(GARBAGE)] if how == 1 else values)


def good(case: Case) -> bool:
    """Whether it has a tiling. (A k that is too large for UB has none.)"""
    return not case.derived()[FAULT]
