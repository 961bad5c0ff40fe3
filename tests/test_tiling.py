"""Tilings that shapes decide, and the reduction: executed tile by tile against numpy, on drawn platforms; spec, tiler, policy.

The judge of a cover counts, cell by cell, how often a tile touches it, and knows nothing of how a tiling is derived.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys

import attrs
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ovsdk import make, plugin_manager
from ovsdk.errors import ConfigError, CostUnknown, TilingError
from ovsdk.hookspecs import hookimpl
from ovsdk.tiling import (
    OPERATORS,
    PLACEMENTS,
    Tiler,
    choose,
    from_bytes,
    load_platform,
    loads,
    operator_named,
    plan,
    platform_named,
    steps_s,
    tiling_spec,
    worst_case,
)
from ovsdk.tiling.explain import explain
from ovsdk.tiling.operator import Tile
from ovsdk.tiling.ops import broadcast, cutting, elementwise, matmul, reduce
from ovsdk.tiling.ops.broadcast import BROADCAST
from ovsdk.tiling.ops.elementwise import ELEMENTWISE
from ovsdk.tiling.ops.matmul import MATMUL
from ovsdk.tiling.ops.reduce import REDUCE
from ovsdk.tiling.platform import PLATFORMS
from ovsdk.tiling.spec import AT, BLOCK_DIM, FAULT, HEADER, ITEMSIZE, KEY, WORKSPACE
from ovsdk.tiling.table import find, parse, table

A2 = platform_named("910B3")
MOST = 30_000
"""Cells of a space that is executed."""

# ---- draws ----

SIZES = st.sampled_from([0, 1, 1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 100, 129, 512])
DTYPES = st.sampled_from(["float16", "float32", "int8", "int64"])


TIGHT, ROOMY = [2048, 4096, 20_000, 188_160], [20_000, 188_160]


@st.composite
def platforms(draw, room=TIGHT):
    """Small ones, so that small shapes have tails, several loops and more work than cores."""
    cores = draw(st.integers(1, 9))
    return attrs.evolve(A2, vector_cores=cores, cube_cores=cores, ub_bytes=A2.ub_reserved + draw(st.sampled_from(room)))


@st.composite
def shapes(draw):
    shape = draw(st.lists(SIZES, max_size=8))
    while math.prod(max(size, 1) for size in shape) > MOST:
        shape[shape.index(max(shape))] = 2
    return tuple(shape)


@st.composite
def reductions(draw):
    """A shape and axes of it, some negative."""
    shape = draw(shapes())
    axes = draw(st.lists(st.sampled_from(range(len(shape))), unique=True)) if shape else []
    return shape, [axis - len(shape) if draw(st.booleans()) else axis for axis in axes]


@st.composite
def broadcasts(draw):
    """Shapes that broadcast against each other."""
    whole = draw(shapes())
    one = st.integers(0, len(whole)).flatmap(
        lambda n: st.tuples(*(st.sampled_from([1, size]) if size else st.sampled_from([0, 1]) for size in whole[n:]))
    )
    return draw(st.lists(one, min_size=1, max_size=4))


CUBE = st.sampled_from(["float16", "bfloat16", "float32", "int8"])
SOCS = st.sampled_from(sorted(PLATFORMS))
LARGE = st.tuples(*[st.integers(1, 9000)] * 3)
MATMULS = st.tuples(*[st.sampled_from([0, 1, 5, 16, 17, 40, 64, 130])] * 2, st.sampled_from([0, 1, 8, 33, 512, 1100, 2048]))


# ---- the judge ----


def times_covered(tiles: list[Tile], space: tuple[int, ...]) -> np.ndarray:
    """How often each cell is in a tile."""
    count = np.zeros(space, dtype=np.int64)
    for tile in tiles:
        assert all(0 <= begin <= end <= size for begin, end, size in zip(tile.begin, tile.end, space, strict=True)), tile
        count[tuple(map(slice, tile.begin, tile.end))] += 1
    return count


def check(op, tiling, tiles, space, values=()):
    """What holds for every tiling of every operator."""
    count = times_covered(tiles, space)
    assert (count == 1).all()
    assert not count.size or all(begin < end for tile in tiles for begin, end in zip(tile.begin, tile.end, strict=True))
    record, a = tiling.record, tiling.args
    assert len(record) == op.length(a) == tiling.length
    assert record[FAULT] == record[AT] == 0
    used = {tile.core for tile in tiles}
    assert used == set(range(record[BLOCK_DIM]))
    assert 0 <= record[BLOCK_DIM] <= op.cores(a)
    assert max(loads(op, a, values, record), default=0) >= op.lower_bound(a, values)
    assert from_bytes(tiling.to_bytes()) == record


def planned(op, spec, platform, values=None):
    """A plan, made twice: the second is equal."""
    first, second = (plan(op, spec, platform, "host-shape", values) for _ in range(2))
    assert first == second
    worst = worst_case(op, spec, platform)
    assert first.workspace <= worst.workspace
    assert first.block_dim <= worst.block_dim
    assert first.length == worst.length
    return first


@pytest.mark.parametrize(
    "wrong",
    [
        lambda tiles: tiles[:-1],
        lambda tiles: [*tiles, tiles[0]],
        lambda tiles: [tiles[0]._replace(end=(tiles[0].end[0] + 1,)), *tiles[1:]],
        lambda tiles: [tiles[0]._replace(end=(tiles[0].end[0] - 1,)), *tiles[1:]],
        lambda tiles: [tile._replace(core=0) for tile in tiles],
        lambda tiles: [tile._replace(core=tile.core + 1) for tile in tiles],
    ],
    ids=["lost", "twice", "longer", "shorter", "one core", "shifted"],
)
def test_the_judge_notices_a_wrong_tiling(wrong):
    tiling = plan(ELEMENTWISE, tiling_spec("elementwise", [(40_000,)]), A2)
    tiles = list(ELEMENTWISE.tiles(tiling.args, (), tiling.record))
    assert len({tile.core for tile in tiles}) > 1
    check(ELEMENTWISE, tiling, tiles, (40_000,))
    with pytest.raises(AssertionError):
        check(ELEMENTWISE, tiling, wrong(tiles), (40_000,))


# ---- elementwise ----


@given(shapes(), st.lists(DTYPES, min_size=1, max_size=3), platforms(ROOMY))
def test_elementwise(shape, dtypes, platform):
    tiling = planned(ELEMENTWISE, tiling_spec("elementwise", [shape] * len(dtypes), dtypes), platform)
    n, a, record = math.prod(shape), tiling.args, tiling.record
    tiles = list(ELEMENTWISE.tiles(a, (), record))
    check(ELEMENTWISE, tiling, tiles, (n,))
    live = 2 * (sum(ITEMSIZE[name] for name in dtypes) + ITEMSIZE[dtypes[0]])
    assert all((tile.end[0] - tile.begin[0]) * live <= platform.ub for tile in tiles)
    x = np.arange(n)
    y = np.full(n, -1)
    for tile in tiles:
        y[tile.begin[0] : tile.end[0]] = 2 * x[tile.begin[0] : tile.end[0]] + 1
    assert (y == 2 * x + 1).all()


@given(shapes(), DTYPES, platforms(ROOMY))
def test_the_loops_of_elementwise_are_told_in_its_record(shape, dtype, platform):
    record = planned(ELEMENTWISE, tiling_spec("elementwise", [shape], dtype), platform).record
    if record[BLOCK_DIM]:
        former, tail, loop, n, last, m, end = record[elementwise.FORMER : elementwise.TAIL_TAIL + 1]
        assert record[BLOCK_DIM] == 1 or former % elementwise.GRAIN == 0
        assert ((n - 1) * loop + last, (m - 1) * loop + end) == (former, tail)
        assert 0 < last <= loop
        assert 0 < end <= loop
        assert loop * ITEMSIZE[dtype] % platform.vector_bytes == 0


@given(st.integers(0, 10**8), platforms())
def test_elementwise_is_near_its_bound(n, platform):
    tiling = planned(ELEMENTWISE, tiling_spec("elementwise", [(n,)], "float32"), platform)
    most, few = tiling.record[elementwise.FORMER], n * 4 < platform.vector_cores * elementwise.LEAST
    assert most - ELEMENTWISE.lower_bound(tiling.args, ()) < (elementwise.GRAIN if not few else elementwise.LEAST)


# ---- broadcast ----


@given(broadcasts(), DTYPES, platforms())
def test_broadcast(inputs, dtype, platform):
    tiling = planned(BROADCAST, tiling_spec("broadcast", inputs, dtype), platform)
    record, arrays = tiling.record, [np.arange(math.prod(shape)).reshape(shape) for shape in inputs]
    whole = np.stack([array.ravel() for array in np.broadcast_arrays(*arrays)])
    tiles = list(BROADCAST.tiles(tiling.args, (), record))
    check(BROADCAST, tiling, tiles, (whole.shape[1],))
    rank = record[broadcast.COLLAPSED]
    extents = record[broadcast.EXTENTS : broadcast.EXTENTS + rank]
    for tile in tiles:
        index = np.array(np.unravel_index(np.arange(tile.begin[0], tile.end[0]), extents))
        for k, array in enumerate(arrays):
            strides = record[broadcast.STRIDES + k * broadcast.MOST_RANK :][:rank]
            assert (array.ravel()[np.array(strides) @ index] == whole[k, tile.begin[0] : tile.end[0]]).all()


@given(broadcasts(), DTYPES, platforms())
def test_a_unit_of_broadcast_is_aligned_and_fits(inputs, dtype, platform):
    tiling = planned(BROADCAST, tiling_spec("broadcast", inputs, dtype), platform)
    record, block = tiling.record, max(platform.block_bytes // ITEMSIZE[dtype], 1)
    if record[BLOCK_DIM]:
        inner, extent, factor = record[broadcast.OUTPUT + cutting.INNER :][:3]
        assert inner > 1 or factor == extent or factor % block == 0
        innermost = record[broadcast.EXTENTS + record[broadcast.COLLAPSED] - 1]
        padded = -(-(factor if inner == 1 else innermost) // block) * block
        held = padded if inner == 1 else padded * (inner // innermost) * factor
        assert record[broadcast.USED] == held * tiling.args[broadcast.LIVE] <= platform.ub


def test_neighbours_that_the_same_inputs_repeat_are_one_axis():
    spec = tiling_spec("broadcast", [(8, 4, 1, 1, 16), (8, 4, 3, 5, 16)])
    record = plan(BROADCAST, spec, A2).record
    assert record[broadcast.COLLAPSED] == 3
    assert record[broadcast.EXTENTS : broadcast.EXTENTS + 3] == (32, 15, 16)
    assert record[broadcast.STRIDES : broadcast.STRIDES + 3] == (16, 0, 1)


# ---- reduce ----


def kept_and_gone(shape, axes):
    gone = {axis % len(shape) for axis in axes}
    kept = [axis for axis in range(len(shape)) if axis not in gone]
    return kept, sorted(gone)


@given(reductions(), DTYPES, platforms())
@example(((), []), "float16", A2)
@example(((4, 0, 3), [1]), "float16", A2)
@example(((0, 4), [1]), "float16", A2)
def test_reduce(drawn, dtype, platform):
    shape, axes = drawn
    tiling = planned(REDUCE, tiling_spec("reduce", [shape], dtype, capacity=8), platform, axes)
    record = tiling.record
    kept, gone = kept_and_gone(shape, axes)
    x = np.random.default_rng(0).integers(-9, 9, shape).transpose(*kept, *gone)
    flat = x.reshape(math.prod(shape[i] for i in kept), math.prod(shape[i] for i in gone))
    tiles = list(REDUCE.tiles(tiling.args, axes, record))
    if flat.shape[0]:
        check(REDUCE, tiling, tiles, flat.shape, axes)
    else:
        assert tiling.block_dim == 0
    groups = max(record[reduce.GROUPS], 1)
    partial = np.zeros((groups, flat.shape[0]), dtype=np.int64)
    for tile in tiles:
        rows, columns = (slice(begin, end) for begin, end in zip(tile.begin, tile.end, strict=True))
        group = 0 if groups == 1 else tile.begin[1] // max(_unit(record, reduce.R) * record[reduce.PER_GROUP], 1)
        partial[min(group, groups - 1), rows] += flat[rows, columns].sum(1)
    assert (partial.sum(0) == x.sum(tuple(range(len(kept), len(shape)))).ravel()).all()


def _unit(record, at):
    return record[at + cutting.INNER] * record[at + cutting.FACTOR]


@given(reductions(), DTYPES, platforms())
def test_a_unit_of_reduce_fits_and_its_partial_sums_do_too(drawn, dtype, platform):
    shape, axes = drawn
    tiling = planned(REDUCE, tiling_spec("reduce", [shape], dtype, capacity=8), platform, axes)
    record, item = tiling.record, ITEMSIZE[dtype]
    if record[BLOCK_DIM]:
        tail = reduce.R if record[reduce.COLLAPSED] % 2 == 0 else reduce.A
        inner, extent, factor = record[tail + cutting.INNER :][:3]
        assert inner > 1 or factor == extent or factor * item % platform.block_bytes == 0
    for tile in REDUCE.tiles(tiling.args, axes, record):
        a, r = (end - begin for begin, end in zip(tile.begin, tile.end, strict=True))
        assert a * r * (2 * item + reduce.FLOAT) + a * (item + reduce.FLOAT) <= record[reduce.USED] <= platform.ub
    if record[reduce.GROUPS] > 1:
        assert tiling.workspace >= record[reduce.GROUPS] * record[reduce.A] * reduce.FLOAT
        assert tiling.workspace % platform.block_bytes == 0
    else:
        assert tiling.workspace == 0


@given(reductions(), platforms())
def test_a_reduction_does_not_depend_on_how_its_axes_are_named(drawn, platform):
    shape, axes = drawn
    spec = tiling_spec("reduce", [shape], capacity=8)
    other = [axis % len(shape) for axis in reversed(axes)]
    ours, theirs = (plan(REDUCE, spec, platform, "host-value", some) for some in (axes, other))
    assert ours.record == theirs.record


@given(reductions(), st.integers(0, 8))
def test_axes_of_size_1_change_nothing(drawn, where):
    shape, axes = drawn
    assume(len(shape) < 8)
    where = min(where, len(shape))
    wider = (*shape[:where], 1, *shape[where:])
    moved = [axis % len(shape) + (axis % len(shape) >= where) for axis in axes]
    records = [plan(REDUCE, tiling_spec("reduce", [s], capacity=8), A2, "host-value", v).record for s, v in ((shape, axes), (wider, moved))]
    assert records[0] == records[1]


REALISTIC = [
    ((8, 512, 4096), [2]),
    ((8, 512, 4096), [1]),
    ((8, 512, 4096), [0, 1]),
    ((4096, 4096), [0, 1]),
    ((30, 100_000), [1]),
    ((2, 128, 128, 8), [0, 1, 3]),
    ((64, 32, 1024, 7), [1, 2]),
    ((1, 1_000_000), [1]),
    ((1_000_000, 3), [0]),
]


@pytest.mark.parametrize("name", PLATFORMS)
@pytest.mark.parametrize(("shape", "axes"), REALISTIC)
def test_a_realistic_reduction_is_near_its_bound(shape, axes, name):
    platform = platform_named(name)
    tiling = plan(REDUCE, tiling_spec("reduce", [shape], capacity=8), platform, "host-value", axes)
    busiest = max(loads(REDUCE, tiling.args, axes, tiling.record))
    assert busiest <= 1.25 * REDUCE.lower_bound(tiling.args, axes)


# ---- matmul ----


@given(MATMULS, CUBE, platforms(), st.booleans(), st.booleans(), st.booleans())
def test_matmul(sizes, dtype, platform, transposed, bias, split):
    m, n, k = sizes
    inputs = [(m, k), (k, n), (n,)][: 3 if bias else 2]
    spec = tiling_spec("matmul", inputs, dtype, transposed=transposed, split_k=split)
    tiling = planned(MATMUL, spec, platform)
    record = tiling.record
    tiles = list(MATMUL.tiles(tiling.args, (), record))
    rng = np.random.default_rng(0)
    left, right = rng.integers(-5, 5, (m, k)), rng.integers(-5, 5, (k, n))
    if m and n:
        check(MATMUL, tiling, tiles, (m, n, k)) if m * n * k <= 10**6 else None
    parts = np.zeros((max(record[matmul.PARTS_K], 1), m, n), dtype=np.int64)
    for tile in tiles:
        rows, columns, some = (slice(begin, end) for begin, end in zip(tile.begin, tile.end, strict=True))
        parts[tile.begin[2] // max(record[matmul.SINGLE_K], 1), rows, columns] += left[rows, some] @ right[some, columns]
    assert (parts.sum(0) == left @ right).all()
    assert (record[matmul.PARTS_K] <= 1) | split
    assert tiling.workspace == (4 * m * n * record[matmul.PARTS_K] if record[matmul.PARTS_K] > 1 else 0)


@st.composite
def cubes(draw):
    """Real platforms, and some with small memories."""
    platform = platform_named(draw(SOCS))
    if draw(st.booleans()):
        small = st.sampled_from([2048, 4096, 8192])
        sizes = {name: draw(small) for name in ("l0a_bytes", "l0b_bytes", "l0c_bytes")}
        platform = attrs.evolve(platform, **sizes, l1_bytes=platform.l1_reserved + draw(st.integers(17_000, 40_000)))
    return platform


def in_l1(record, item, bias):
    a, b = record[matmul.DEPTH_A1] * record[matmul.BASE_M], record[matmul.DEPTH_B1] * record[matmul.BASE_N]
    return item * (record[matmul.BASE_K] * (a + b) + bias * record[matmul.BASE_N])


def test_the_bias_has_room_in_l1_too():
    spec = tiling_spec("matmul", [(512, 4096), (4096, 4096), (4096,)])
    for room in range(100_000, 200_000, 500):
        assert in_l1(plan(MATMUL, spec, attrs.evolve(A2, l1_bytes=room + A2.l1_reserved)).record, 2, bias=True) <= room


@settings(max_examples=200)
@given(LARGE, CUBE, cubes(), st.booleans())
def test_a_block_of_matmul_fits_everywhere(sizes, dtype, p, bias):
    m, n, k = sizes
    item = ITEMSIZE[dtype]
    record = plan(MATMUL, tiling_spec("matmul", [(m, k), (k, n), (n,)][: 3 if bias else 2], dtype), p).record
    base_m, base_n, base_k = record[matmul.BASE_M : matmul.BASE_K + 1]
    db_a, db_b, db_c = record[matmul.DB_L0A : matmul.DB_L0C + 1]
    assert base_m * base_n * 4 * db_c <= p.l0c_bytes
    assert base_m * base_k * item * db_a <= p.l0a_bytes
    assert base_k * base_n * item * db_b <= p.l0b_bytes
    assert in_l1(record, item, bias) <= p.l1
    assert record[matmul.DEPTH_A1] == 2 * record[matmul.STEP_KA] * record[matmul.STEP_M]
    assert record[matmul.DEPTH_B1] == 2 * record[matmul.STEP_KB] * record[matmul.STEP_N]
    assert base_m % p.fractal == base_n % p.fractal == base_k * item % p.block_bytes == 0
    assert record[BLOCK_DIM] <= p.cube_cores


@settings(max_examples=300)
@given(LARGE, CUBE, SOCS, st.booleans())
def test_matmul_fills_the_waves_at_least_as_the_default_block_does(sizes, dtype, name, transposed):
    m, n, k = sizes
    p = platform_named(name)
    tiling = plan(MATMUL, tiling_spec("matmul", [(m, k), (k, n)], dtype, transposed=transposed), p)
    blocks = tiling.record[matmul.BLOCKS_M] * tiling.record[matmul.BLOCKS_N] * tiling.record[matmul.PARTS_K]
    ours, default = (matmul.wave_efficiency(count, p.cube_cores) for count in (blocks, matmul.default_blocks(tiling.args)))
    assert ours >= default


SMALL = [(m, n, k) for m in (1, 16, 48, 100, 256) for n in (16, 80, 256, 400) for k in (64,)]


@pytest.mark.parametrize(("m", "n", "k"), SMALL)
def test_matmul_is_near_the_best_block_of_all(m, n, k):
    """Brute force: every block that fits, on four cores, at the price that `choose` minimises."""
    platform = attrs.evolve(A2, cube_cores=4)
    tiling = plan(MATMUL, tiling_spec("matmul", [(m, k), (k, n)], split_k=0), platform)
    a, record = tiling.args, tiling.record

    def time(tall, wide):
        return -(-(-(-m // tall) * -(-n // wide)) // 4) * matmul.cost(a, tall, wide)

    fits = [(tall, wide) for tall in range(16, 513, 16) for wide in range(16, 513, 16) if tall * wide * 4 <= platform.l0c_bytes]
    assert time(record[matmul.BASE_M], record[matmul.BASE_N]) <= 1.34 * min(time(*block) for block in fits)


# ---- cutting: brute force ----


@given(st.integers(1, 6), st.integers(1, 60), st.integers(1, 6), st.integers(1, 9))
def test_pieces_end_soon(outer, extent, least, cores):
    """Against every number of pieces: at most a third later than the best, and never later than the fewest."""
    least = min(least, extent)
    found = cutting.pieces(outer, extent, least, extent, 1, cores, cutting.ROUNDS)

    def ends(count):
        return -(-outer * count // cores) * -(-extent // count)

    assert -(-extent // found) <= -(-extent // least)
    assert ends(found) <= ends(least)
    assert ends(found) <= 4 / 3 * min(map(ends, range(least, extent + 1)))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 60), st.sampled_from([1, 4, 8]), st.integers(1, 9))
@example([2, 9], 10, 8, 1)
def test_a_cut_fits_its_room_and_covers_its_axes(extents, room, align, cores):
    assume(room >= align and math.prod(extents) <= 2000)
    out = [math.prod(extents), 0, 0, 0, 0, *extents]
    held = cutting.cut(out, 0, 5, len(extents) - 1, 1, align, 1, room, 1, cores, cutting.ROUNDS)
    _, inner, extent, factor, units = out[:5]
    innermost = extents[-1] if inner > 1 or extent != extents[-1] else factor
    padded = -(-max(innermost, 1) // align) * align
    whole = padded * (inner // extents[-1]) * max(factor, 1) if inner > 1 else padded
    assert whole <= held <= room
    if math.prod(extents):
        cells = [cell for number in range(units) for cell in range(*cutting.unit(out, 0, number))]
        assert cells == list(range(math.prod(extents)))


# ---- bad input ----


@pytest.mark.parametrize(
    ("op", "args", "platform", "values", "says"),
    [
        ("reduce", ([(1,) * 9],), {}, (), r"rank 9 of shape \(1, 1, .*, at most 8"),
        ("reduce", ([(4, 5)],), {}, (0, 2), r"axes\[1\] = 2 is out of range for rank 2; allowed: -2 to 2 - 1"),
        ("reduce", ([(4, 5)],), {}, (-3,), r"axes\[0\] = -3 is out of range for rank 2"),
        ("reduce", ([(4, 5)],), {}, (1, 0, -1), r"axes\[2\] = -1 names an axis that an earlier one names"),
        ("reduce", ([(4, 5)],), {}, (5, 5), r"axes\[0\] = 5 is out of range"),
        ("reduce", ([(4, 500)],), {"ub_bytes": 8548}, (1,), "UB is too small for one row: 230 bytes needed, 100 available"),
        ("reduce", ([(4, 5)],), {}, (0,) * 9, "9 values of 'axes', more than the spec's capacity of 8"),
        ("elementwise", ([(4, 5)],), {"ub_bytes": 9000}, None, "UB is too small for one repeat .*: 1024 bytes needed, 552 available"),
        ("elementwise", ([(4, 5), (5,)],), {}, None, r"\(4, 5\) and \(5,\) differ"),
        ("broadcast", ([(4, 5)],), {"ub_bytes": 8500}, None, "UB is too small for one row: 128 bytes needed, 52 available"),
        ("broadcast", ([(4, 5), (4,)],), {}, None, "have the sizes 4 and 5 on one axis"),
        ("broadcast", ([(4, 5), (4, 0)],), {}, None, "have the sizes 5 and 0 on one axis"),
        ("broadcast", ([(1,) * 9],), {}, None, "rank 9, at most 8"),
        ("broadcast", ([(1,)] * 5,), {}, None, "5 inputs, 1 to 4 allowed"),
        ("matmul", ([(4, 5), (4, 5)],), {}, None, r"needed \(M, K\), \(K, N\)"),
        ("matmul", ([(4, 5), (5, 6), (5,)],), {}, None, "a bias of 5 for 6 columns"),
        ("matmul", ([(4, 5), (5, 6)], "int64"), {}, None, "int64 has 8 bytes; .* at most 4"),
        ("matmul", ([(4, 5), (5, 6)],), {"l0b_bytes": 512}, None, "L0 is too small .*: 1024 bytes needed, L0A 65536, L0B 512"),
        ("matmul", ([(400, 50), (50, 600)],), {"l1_bytes": 1256}, None, "L1 is too small .* 1000 available"),
    ],
)
def test_bad_input_is_refused_with_its_numbers(op, args, platform, values, says):
    with pytest.raises(TilingError, match=says):
        plan(operator_named(op), tiling_spec(op, *args, capacity=8), attrs.evolve(A2, **platform), "host-shape", values)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: platform_named("910B9"), "unknown SoC '910B9' .did you mean '910B.'.*; known: 910B1, 910B2"),
        (lambda: operator_named("redcue"), "did you mean 'reduce'"),
        (lambda: tiling_spec("reduce", [(4, -1)]), r"shape \(4, -1\) has a size below 0"),
        (lambda: tiling_spec("reduce", [(4,)], "float17"), "unknown dtype 'float17' .did you mean 'float16'"),
        (lambda: tiling_spec("reduce", [(4,)], ["int8", "int8"]), "1 shapes and 2 dtypes"),
        (lambda: from_bytes(b"1234567"), "a multiple of 8 bytes; got 7"),
        (lambda: plan(MATMUL, tiling_spec("matmul", [(1, 1)] * 2), A2, "aicpu"), "matmul cannot be tiled 'aicpu'; it can: host-shape"),
        (
            lambda: plan(REDUCE, tiling_spec("reduce", [(4,)]), A2, "host-value"),
            "needs the values of 'axes' on the host; .*: device-metadata",
        ),
        (lambda: Tiler(placement="in_kernel"), "did you mean 'in-kernel'"),
        (lambda: Tiler(placement={"redcue": "aicpu"}), "did you mean 'reduce'"),
    ],
)
def test_misuse_is_refused(call, says):
    with pytest.raises(TilingError, match=says):
        call()


def test_a_fault_leaves_nothing_else_in_the_record():
    a = REDUCE.read(tiling_spec("reduce", [(4, 5)], capacity=8), A2)
    a[0] = 1
    out = [0] * REDUCE.length(a)
    REDUCE.derive(a, [7], out)
    assert out[FAULT] == reduce.NO_AXIS
    assert not any(out[:FAULT] + out[AT + 1 :])


# ---- every operator ----


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_well_described(name):
    """Constants of its module say where its arguments and fields are, under their names in capitals."""
    op = operator_named(name)
    module = sys.modules[op.derive.__module__]
    alone = all((other.args, other.fields) == (op.args, op.fields) for other in module.OPERATORS)
    assert op.name == name
    assert op.args[0].name == "count"
    assert (HEADER[BLOCK_DIM].name, HEADER[KEY].name, HEADER[WORKSPACE].name) == ("block_dim", "key", "workspace")
    for fields in (op.args, op.header, op.row):
        at = 0
        for field in fields:
            constant = vars(module).get(field.name.upper()) if alone else None
            assert type(constant) is not int or constant == at, f"{name}: {field.name} is at {at}, its constant says {constant}"
            at += field.size
    assert set(op.placements) <= set(PLACEMENTS)
    assert f"struct {name}_tiling {{\n    int64_t block_dim;" in op.c_struct()


# ---- placements, cache, policy ----

SPEC = tiling_spec("reduce", [(8, 512, 4096)], capacity=8)


@pytest.mark.parametrize("placement", ["in-kernel", "device-metadata", "aicpu"])
def test_what_the_device_derives_is_launched_for_the_worst_case(placement):
    worst = worst_case(REDUCE, SPEC, A2)
    unknown, known = (plan(REDUCE, SPEC, A2, placement, values) for values in (None, [0]))
    for tiling in (unknown, known):
        assert (tiling.block_dim, tiling.workspace, tiling.length) == (40, worst.workspace, worst.length)
    assert unknown.record == ()
    assert known.record == plan(REDUCE, SPEC, A2, "host-value", [0]).record


def test_plans_are_kept_by_spec_and_values():
    tiler = Tiler(kept=2)
    first = tiler.tile(SPEC, [0])
    assert tiler.tile(tiling_spec("reduce", [(8, 512, 4096)], capacity=8), (0,)) is first
    assert tiler.tile(SPEC, [1]).record != first.record
    assert tiler.tile(SPEC).record == ()
    assert tiler.tile(SPEC, [0]) == first
    assert tiler.tile(SPEC, [0]) is not first


def test_a_tilings_spec_is_a_key():
    one, other = (tiling_spec("matmul", [(4, 5), (5, 6)], "int8", **attributes) for attributes in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert one == other
    assert hash(one) == hash(other)
    assert one != tiling_spec("matmul", [(4, 5), (5, 6)], "int8", a=1, b=3)


@given(
    st.sampled_from(sorted(OPERATORS)), st.booleans(), st.dictionaries(st.sampled_from(sorted(PLACEMENTS)), st.floats(0, 1)), st.booleans()
)
def test_auto_never_synchronises_where_another_placement_exists(name, known, priced, aicpu):
    op, platform = operator_named(name), attrs.evolve(A2, aicpus=6 if aicpu else 0)
    chosen = choose(op, platform, known, priced)
    assert chosen != "host-value"
    assert chosen == "host-shape" or (op.values and not known and chosen in op.placements)
    assert aicpu or chosen != "aicpu"


def test_auto_synchronises_only_where_nothing_else_is_left():
    assert choose(attrs.evolve(REDUCE, placements=("host-value",)), A2, known=False) == "host-value"
    assert choose(attrs.evolve(REDUCE, placements=("host-value", "aicpu")), attrs.evolve(A2, aicpus=0), known=False) == "host-value"
    assert choose(attrs.evolve(REDUCE, placements=("host-value", "aicpu")), A2, known=False) == "aicpu"


def test_the_simulator_prices_placements():
    """Steps as the published case has them, with the operator before the last one: see the price file's own tests."""
    found = {name: round(seconds * 1e3, 3) for name, seconds in steps_s("longcat-flash-b8-4k", "reduce_sum").items()}
    assert found == {"host-shape": 45.0, "host-value": 77.38, "in-kernel": 45.002, "device-metadata": 45.006, "aicpu": 45.025}
    with pytest.raises(CostUnknown, match="did you mean 'reduce_sum'"):
        steps_s("longcat-flash-b8-4k", "reduce_sun")


def test_auto_asks_the_simulator():
    by_order, by_price = Tiler(), Tiler(prices="longcat-flash-b8-4k", priced_as={"reduce": "reduce_sum"})
    assert (by_order.tile(SPEC).placement, by_price.tile(SPEC).placement) == ("device-metadata", "in-kernel")
    assert by_price.placements == {"reduce": "in-kernel"}
    assert by_price.tile(SPEC, [0]).placement == "host-shape"


def test_a_placement_is_named_for_all_or_each():
    assert Tiler(placement="aicpu").tile(SPEC).placement == "aicpu"
    tiler = Tiler(placement={"reduce": "in-kernel"})
    assert tiler.tile(SPEC).placement == "in-kernel"
    assert tiler.tile(tiling_spec("elementwise", [(4,)])).placement == "host-shape"


def test_an_operator_of_ones_own_replaces_or_extends():
    twice = attrs.evolve(ELEMENTWISE, name="twice")
    lone = attrs.evolve(REDUCE, placements=("host-value",))
    tiler = Tiler(operators=[twice, lone])
    assert tiler.tile(tiling_spec("twice", [(9,)])).op == "twice"
    with pytest.raises(TilingError, match="needs the values"):
        tiler.tile(SPEC)


def test_hook_ovsdk_make_tiler_makes_and_extends():
    class Mine:
        placements: dict[str, str] = {}  # noqa: RUF012

        def __init__(self, inner):
            self.tile = inner.tile

    class Plugin:
        @hookimpl
        def ovsdk_make_tiler(self, name, options):
            return Mine(Tiler(**options)) if name == "mine" else None

    manager = plugin_manager([Plugin()])
    assert make("tiler", "mine", {"platform": "910B2"}, plugins=manager).tile(SPEC).block_dim == 48
    assert make("tiler", "auto", {"platform": "910B3"}, plugins=manager).tile(SPEC).block_dim == 40
    with pytest.raises(ConfigError, match="unknown option of tiler 'auto' 'platfrom'"):
        make("tiler", "auto", {"platfrom": "910B3"}, plugins=manager)


# ---- platforms ----


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_platform_says_where_its_figures_come_from(name):
    platform = PLATFORMS[name]
    assert platform.source
    assert 0 < platform.ub < platform.ub_bytes
    assert 0 < platform.l1 < platform.l1_bytes
    assert platform.ub % platform.block_bytes == 0
    assert platform_named(f"Ascend{name}") is platform


def test_a_file_replaces_figures(tmp_path):
    toml, whole = tmp_path / "half.toml", tmp_path / "whole.json"
    toml.write_text('name = "half"\nbase = "910B3"\nvector_cores = 20\n')
    assert load_platform(toml) == attrs.evolve(A2, name="half", vector_cores=20)
    whole.write_text(json.dumps(attrs.asdict(A2)))
    assert load_platform(whole) == A2
    assert Tiler(str(toml)).tile(SPEC).block_dim == 20


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("p.toml", 'base = "910B3"\nvector_core = 2', "unknown key 'vector_core' .did you mean 'vector_cores'"),
        ("p.toml", 'base = "910B3"\nvector_cores = "2"', "vector_cores is a number of at least 0; got '2'"),
        ("p.toml", 'base = "910B3"\nvector_cores = -2', "vector_cores is a number of at least 0; got -2"),
        ("p.toml", 'name = "x"', "no cube_cores, vector_cores, .*; give it, or a `base`"),
        ("p.toml", 'base = "910X"', "unknown SoC '910X'"),
        ("p.toml", "=", "neither TOML nor JSON"),
        ("p.json", "[1]", r"a table of figures; got \[1\]"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, file, text, says):
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(TilingError, match=says):
        load_platform(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TilingError, match="cannot be read: No such file"):
        load_platform(tmp_path / "none.toml")


# ---- the table of Ascend operators ----


def test_the_table_says_which_operators_need_values():
    assert len(table()) == 134
    assert [row.op for row in table() if row.sinks] == [
        "fused_infer_attention_score",
        "incre_flash_attention",
        "nsa_compress_attention_infer",
    ]
    (reduce_sum,) = find("ReduceSum")
    assert (reduce_sum.op, [one.name for one in reduce_sum.inputs], reduce_sum.tiling) == ("reduce_sum", ["axes"], "HOST")
    assert find("tile")[0].inputs[0].constant


def test_the_table_is_the_shared_one(shared):
    from importlib.resources import files

    assert (files("ovsdk.tiling") / "value_depend_ops.tsv").read_text() == (shared / "data/value_depend_ops.tsv").read_text()


HEAD = "repo\top\tinput:ValueDepend\ttiling placement (TilingInputsDataDependency)"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], ":1: the columns are repo.*got nothing"),
        ([HEAD.replace("op", "oq")], ":1: the columns"),
        ([HEAD, "a\tb\t-"], ":2: 4 columns"),
        ([HEAD, "a\tb\t-\t-", "a\tb\t-\tNPU"], ":3: 4 columns, the last one of HOST, AICPU, -"),
        ([HEAD, "a\tb\tx:MAYBE\t-"], ":2: an input is NAME:OPTIONAL or NAME:REQUIRED; got 'x:MAYBE'"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(lines, says):
    with pytest.raises(TilingError, match=says):
        parse(lines)


def test_an_operator_that_is_not_in_the_table_is_told_so():
    with pytest.raises(TilingError, match=r"'reduce_sun' in the table .did you mean 'reduce_sum'"):
        find("reduce_sun")


# ---- pictures, imports ----


def test_a_picture_has_a_line_a_core_and_the_bound():
    tiling = plan(MATMUL, tiling_spec("matmul", [(8, 7168), (7168, 7168)]), A2)
    lines = explain(MATMUL, tiling).splitlines()
    assert "20 tiles of m x n x k on 20 of 20 cores; the busiest does 10304, 1.027 of the lower bound 10036" in lines[2]
    assert len(lines) == 3 + 20
    assert lines[3].endswith("0:8 x 0:368 x 0:7168")
    assert all(line[5 + 27] in "|" or "|" in line for line in lines[3:])


def test_a_picture_of_what_is_not_known_says_how_to_see_it():
    assert "give the values to see it" in explain(REDUCE, plan(REDUCE, SPEC, A2, "in-kernel"))
    assert "nothing to do" in explain(ELEMENTWISE, plan(ELEMENTWISE, tiling_spec("elementwise", [(0,)]), A2))


def test_tiling_imports_no_torch_and_no_numpy():
    code = "import sys, ovsdk.tiling as t; [t.operator_named(n) for n in t.OPERATORS]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "numpy", "triton", "pluggy"} & set(done.stdout.split()) <= {"pluggy"}


@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "elementwise"])  # which takes any number of inputs
@pytest.mark.parametrize("shapes", [(), ((8, 16),) * 20], ids=["none", "twenty"])
def test_a_wrong_number_of_inputs_is_a_tiling_error(name, shapes):
    with pytest.raises(TilingError, match=name):
        plan(operator_named(name), tiling_spec(name, shapes, capacity=4), platform_named("910B3"), values=(1,))
