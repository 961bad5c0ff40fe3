"""Value-dependent tilings on the host: executed by their records alone against numpy, and judged by brute force and lower bounds."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ovsdk.errors import TilingError
from ovsdk.tiling.operator import Args, Record, Tile, loads, plan, worst_case
from ovsdk.tiling.operator import operator_named as operator
from ovsdk.tiling.ops import grouped_matmul as gmm
from ovsdk.tiling.ops import repeat as rep
from ovsdk.tiling.ops import split_kv as kv
from ovsdk.tiling.ops import topk_range as few
from ovsdk.tiling.ops.integers import parts, up
from ovsdk.tiling.platform import PLATFORMS
from ovsdk.tiling.spec import AT, BLOCK_DIM, DEVICE_METADATA, FAULT, HOST_VALUE, KEY, WORKSPACE, TilingSpec, tiling_spec

from . import tiling_draws as draws
from .tiling_draws import OURS, Case, damaged, good

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))  # as for a script that runs there
bench = importlib.import_module("tiling")
B3 = PLATFORMS["910B3"]
cases = st.one_of(list(OURS.values()))
Array = Any


def table(record: Record, at: int, width: int, rows: int) -> list[tuple[int, ...]]:
    return [tuple(record[at + i * width : at + (i + 1) * width]) for i in range(rows)]


# ---- every operator: tiles cover its space once, within cores and worst case ----


def space(case: Case) -> list[int]:
    """What is to be covered: the length of each row."""
    a, v = case.args, case.values
    rows = {
        "split_kv": lambda: [parts(length, a[kv.KV_BLOCK]) for length in v for _ in range(a[kv.HEADS])],
        "grouped_matmul": lambda: [a[gmm.COLUMNS]] * sum(gmm.length(a, v, g) for g in range(gmm.groups(a))),
        "repeat": lambda: [a[rep.INNER]] * sum(v),
        "gather": lambda: [a[rep.INNER]] * sum(v),
        "range": lambda: [len(range(*v))],
        "topk": lambda: [a[few.COLUMNS] if v[0] else 0] * a[few.ROWS],
    }
    return rows[case.op.name]()


def uncovered(lengths: Sequence[int], tiles: Sequence[Tile]) -> str:
    """Which row the tiles do not cover exactly once; or ''. A tile of one axis lies in row 0."""
    found: list[list[tuple[int, int]]] = [[] for _ in lengths]
    for _, begin, end, _ in tiles:
        for row in range(begin[0], end[0]) if len(begin) > 1 else [0]:
            found[row].append((begin[-1], end[-1]))
    for row, (length, pieces) in enumerate(zip(lengths, found, strict=True)):
        edges = [0, *(edge for piece in sorted(pieces) for edge in piece), length]
        if any(edges[i] != edges[i + 1] for i in range(0, len(edges), 2)) or any(begin >= end for begin, end in pieces):
            return f"row {row} of {length}: {sorted(pieces)}"
    return ""


@given(cases)
def test_tiles_cover_the_space_once(case: Case) -> None:
    assume(good(case))
    record = case.derived()
    tiles = list(case.op.tiles(case.args, case.values, record))
    assert not uncovered(space(case), tiles)
    assert all(0 <= tile.core < record[BLOCK_DIM] <= case.op.cores(case.args) for tile in tiles)


@pytest.mark.parametrize("tiles", [[], [(0, 2)], [(0, 3), (3, 3)], [(0, 2), (1, 3)], [(0, 3), (0, 3)], [(1, 3)], [(0, 1), (2, 3)]], ids=str)
def test_what_is_not_covered_once_is_noticed(tiles: list[tuple[int, int]]) -> None:
    assert uncovered([3], [Tile(0, (0, begin), (1, end), 1) for begin, end in tiles])
    assert not uncovered([3, 0], [Tile(0, (0, 1), (1, 3), 1), Tile(0, (0,), (1,), 1)])


@given(cases)
def test_no_tiling_exceeds_the_worst_case_or_beats_the_bound(case: Case) -> None:
    assume(good(case))
    a, record, worst = case.args, case.derived(), worst_case(case.op, case.spec, case.platform)
    assert record == case.derived()
    assert len(record) == worst.length == case.op.length(a)
    assert 0 <= record[WORKSPACE] <= worst.workspace
    assert record[BLOCK_DIM] <= worst.block_dim == case.op.cores(a)
    assert max(loads(case.op, a, case.values, record)) >= case.op.lower_bound(a, case.values)


@given(st.one_of([damaged(one) for one in OURS.values()]))
def test_a_fault_leaves_nothing_else_and_says_its_numbers(case: Case) -> None:
    record = case.derived()
    if record[FAULT]:
        assert not any(number for i, number in enumerate(record) if i not in (FAULT, AT))
        with pytest.raises(TilingError, match=rf"^{case.op.name}: .*\d") as raised:
            plan(case.op, case.spec._replace(capacity=99), case.platform, HOST_VALUE, case.values)
        assert "{" not in str(raised.value)
    else:
        tiling = plan(case.op, case.spec._replace(capacity=max(case.spec.capacity, 1)), case.platform, HOST_VALUE, case.values)
        assert tiling.block_dim == record[BLOCK_DIM]


@pytest.mark.parametrize(
    ("spec", "values", "message"),
    [
        (tiling_spec("split_kv", [(2, 8, 128), (2, 4096, 1, 128)], capacity=2), [7, 4097], r"lengths\[1\] = 4097 .* holds 4096 tokens"),
        (tiling_spec("split_kv", [(2, 8, 128), (2, 4096, 1, 128)], capacity=2), [-1, 7], r"lengths\[0\] = -1 .* allowed: 0 to 4096"),
        (tiling_spec("split_kv", [(2, 8, 128), (2, 4096, 1, 128)], capacity=2), [7], r"1 lengths for 2 sequences"),
        (tiling_spec("grouped_matmul", [(9, 4), (2, 4, 8)], capacity=4), [4, 4], r"groups have 8 rows together, x has 9"),
        (tiling_spec("grouped_matmul", [(9, 4), (2, 4, 8)], capacity=4), [4, 6], r"groups have 10 rows together, x has 9"),
        (tiling_spec("grouped_matmul", [(9, 4), (2, 4, 8)], capacity=4, padded=1), [4, 6], r"groups have 10 rows together, x has 9"),
        (tiling_spec("grouped_matmul", [(9, 4), (3, 4, 8)], capacity=4, list_type=0), [4, 3, 9], r"group_list\[1\] = 3: .* descend"),
        (tiling_spec("grouped_matmul", [(9, 4), (2, 4, 8)], capacity=4, list_type=2), [0, 4, 2, 5], r"group_list\[2\] = 2 is no expert"),
        (tiling_spec("grouped_matmul", [(9, 4), (2, 4, 8)], capacity=4, list_type=2), [0, 4, 1], r"pairs has 3 values"),
        (tiling_spec("grouped_matmul", [(9, 4), (2, 4, 8)], capacity=4), [3, 3, 3], r"allowed: 4, and one for each of 2 experts"),
        (tiling_spec("repeat", [(2, 8)], capacity=2), [1, 2], r"make 3 rows, the output has room for 2"),
        (tiling_spec("gather", [(2, 5, 8)], capacity=2), [1, 6], r"counts\[1\] = 6; allowed: 0 to 5"),
        (tiling_spec("range", [(10,)], "int64", 3), [0, 11, 1], r"range has 11 elements, .* room for 10"),
        (tiling_spec("range", [(10,)], "int64", 3), [0, 11, 0], r"delta is 0"),
        (tiling_spec("range", [(10,)], "int64", 3), [0, 2**61, 1], r"value 1 of range, 2305843009213693952, is beyond"),
        (tiling_spec("topk", [(4, 100)], capacity=1), [101], r"k = 101 of rows with 100 columns"),
        (tiling_spec("topk", [(4, 100_000)], capacity=1), [50_000], r"UB is too small for k: \d+ bytes needed, \d+ available"),
    ],
    ids=lambda value: value.op if isinstance(value, TilingSpec) else None,
)
def test_values_that_cannot_be_are_refused_with_their_numbers(spec: TilingSpec, values: list[int], message: str) -> None:
    with pytest.raises(TilingError, match=message):
        plan(operator(spec.op), spec, B3, HOST_VALUE, values)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "message"),
    [
        ("split_kv", [(2, 9, 128), (2, 64, 2, 128)], {}, r"9 query heads for 2 KV heads"),
        ("split_kv", [(2, 8, 128), (3, 64, 2, 128)], {}, r"shapes \(2, 8, 128\) and \(3, 64, 2, 128\)"),
        ("split_kv", [(2, 8, 128), (2, 64, 2, 128)], {"kv_block": 100}, r"kv_block = 100; allowed: a multiple of 64"),
        ("grouped_matmul", [(2, 8), (2, 9, 8)], {}, r"shapes \(2, 8\) and \(2, 9, 8\)"),
        ("grouped_matmul", [(2, 8), (2, 8, 8)], {"list_type": 3}, r"list_type 3; allowed: 0 ends"),
        ("repeat", [()], {}, r"repeat: shape \(\)"),
        ("gather", [(3,)], {}, r"gather: shape \(3,\)"),
        ("range", [(3, 3)], {}, r"range: shapes"),
        ("topk", [()], {}, r"topk: shape \(\)"),
    ],
)
def test_shapes_that_cannot_be_are_refused(op: str, shapes: Any, attributes: dict[str, int], message: str) -> None:
    with pytest.raises(TilingError, match=message):
        operator(op).read(tiling_spec(op, shapes, **attributes), B3)


# ---- flash-decode ----


def attend(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Unnormalised output, maximum and sum of one row: (group, d), (tokens, d), (tokens, d)."""
    scores = q @ k.T
    most = scores.max(1)
    weights = np.exp(scores - most[:, None])
    return weights @ v, most, weights.sum(1)


def join(pieces: Sequence[tuple[Array, Array, Array]]) -> Array:
    """What the pieces of a row give together."""
    most = np.max([piece[1] for piece in pieces], axis=0)
    scales = [np.exp(piece[1] - most) for piece in pieces]
    total = sum(scale[:, None] * piece[0] for scale, piece in zip(scales, pieces, strict=True))
    return total / sum(scale * piece[2] for scale, piece in zip(scales, pieces, strict=True))[:, None]


def flash_decode(a: Args, lengths: Sequence[int], record: Record, q: Array, k: Array, v: Array) -> Array:
    """As cores would do it: they know their row of the table, and each writes where it says. NaN where nobody has written."""
    out = np.full(q.shape, math.nan)
    slots: dict[int, Any] = {}
    rows = table(record, kv.TABLE, kv.WIDTH, a[kv.CORES])
    for row, block, end_row, end_block, slot, *_ in rows:
        for at in range(row, end_row + (end_block > 0)):
            tokens = lengths[at // a[kv.HEADS]]
            first = block * a[kv.KV_BLOCK] if at == row else 0
            last = min(end_block * a[kv.KV_BLOCK], tokens) if at == end_row else tokens
            assert np.isnan(out[at]).all()
            if tokens == 0:
                out[at] = 0
            elif first < last:
                piece = attend(q[at], k[at, first:last], v[at, first:last])
                if (first, last) == (0, tokens):
                    out[at] = join([piece])
                else:
                    assert slot not in slots
                    slots[slot] = piece
                    slot += 1
    for _, _, end_row, _, _, first, count, _ in rows:
        if count:
            out[end_row] = join([slots.pop(first + i) for i in range(count)])
    assert not slots
    return out


@given(draws.split_kv() | draws.split_kv(exact=1), st.integers(0, 9))
def test_flash_decode_by_its_record_is_softmax(case: Case, seed: int) -> None:
    a, lengths, random = case.args, case.values, np.random.default_rng(seed)
    rows, most, d = len(lengths) * a[kv.HEADS], max([*lengths, 1]), 3
    q, (k, v) = random.normal(size=(rows, 2, d)), random.normal(size=(2, rows, most, d))
    record = case.derived()
    got = flash_decode(a, lengths, record, q, k, v)
    for row in range(rows):
        n = lengths[row // a[kv.HEADS]]
        weights = np.exp(q[row] @ k[row, :n].T)
        wanted = weights @ v[row, :n] / weights.sum(1, keepdims=True) if n else np.zeros((2, d))
        np.testing.assert_allclose(got[row], wanted, atol=1e-9)
    found = table(record, kv.TABLE, kv.WIDTH, a[kv.CORES])
    assert record[kv.SPLITS] == sum(row[kv.JOIN_PARTS] > 0 for row in found) <= max(a[kv.CORES] - 1, 0)
    assert record[kv.SLOTS] == sum(row[kv.JOIN_PARTS] for row in found)
    assert not any(row[kv.COST] for row in found[record[BLOCK_DIM] :])
    assert record[KEY] == (record[kv.SPLITS] > 0) <= 1 - a[kv.WHOLE]


def blocks(case: Case) -> list[int]:
    """Costs of the blocks in line, as the module's docstring has them; of whole rows, where they are not split."""
    a = case.args
    rows = [
        [6 * parts(a[kv.GROUP], 16) + 10 * parts(min(a[kv.KV_BLOCK], length - s), 64) for s in range(0, length, a[kv.KV_BLOCK])]
        for length in case.values
        for _ in range(a[kv.HEADS])
    ]
    return [sum(row) for row in rows if row] if a[kv.WHOLE] else [cost for row in rows for cost in row]


def makespan(case: Case) -> int:
    return max(loads(case.op, case.args, case.values, case.derived()))


def least(costs: Sequence[int], cores: int) -> int:
    """The least longest core of all ways to cut the line."""
    cuts = (cut for count in range(min(cores, max(len(costs), 1))) for cut in itertools.combinations(range(1, len(costs)), count))
    return min(max(sum(costs[i:j]) for i, j in itertools.pairwise((0, *cut, len(costs)))) for cut in cuts)


@given(draws.split_kv(), st.integers(0, 1))
def test_the_record_and_the_tiles_tell_the_costs(case: Case, exact: int) -> None:
    case = case._replace(spec=case.spec._replace(attributes=tuple(sorted({**dict(case.spec.attributes), "exact": exact}.items()))))
    costs, found = blocks(case), loads(case.op, case.args, case.values, case.derived())
    assert sum(found) == sum(costs)
    assert found == [row[kv.COST] for row in table(case.derived(), kv.TABLE, kv.WIDTH, case.args[kv.CORES])]
    assert case.op.lower_bound(case.args, case.values) == max([parts(sum(costs), case.args[kv.CORES]), *costs], default=0)


@given(draws.split_kv())
def test_one_pass_has_no_core_over_its_share_and_a_block(case: Case) -> None:
    costs = blocks(case)
    assert makespan(case) <= sum(costs) / case.args[kv.CORES] + max(costs, default=0) + 1


def small(lengths: list[int], cores: int, exact: int, whole: int) -> Case:
    spec = tiling_spec("split_kv", [(len(lengths), 1, 8), (len(lengths), 512, 1, 8)], capacity=9, kv_block=128, exact=exact, whole=whole)
    return Case(operator("split_kv"), spec, attrs.evolve(B3, cube_cores=cores), lengths)


@given(st.lists(st.integers(0, 512), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 1))
def test_exact_is_brute_force(lengths: list[int], cores: int, whole: int) -> None:
    exact, fast = small(lengths, cores, 1, whole), small(lengths, cores, 0, whole)
    best = least(blocks(exact), cores) if any(lengths) else 0
    assert makespan(exact) == best <= makespan(fast)
    assert exact.op.lower_bound(exact.args, lengths) <= best


def test_a_row_is_summed_in_one_order_whatever_else_is_there() -> None:
    """whole=1: no row is split, so its sum does not depend on the batch."""
    spec = tiling_spec("split_kv", [(40, 8, 128), (40, 4096, 1, 128)], capacity=40, whole=1)
    record = plan(operator("split_kv"), spec, B3, HOST_VALUE, [4096, *[17] * 39]).record
    assert (record[kv.SPLITS], record[kv.SLOTS], record[WORKSPACE]) == (0, 0, 0)
    assert not any(row[kv.BLOCK] or row[kv.END_BLOCK] for row in table(record, kv.TABLE, kv.WIDTH, 20))


# ---- grouped matmul ----


def multiply(a: Args, record: Record, x: Array, weights: Array) -> Array:
    """As cores would do it; each element of the result is added to once."""
    out = np.zeros((len(x), weights.shape[2]), int)
    base, single, wide = record[gmm.BASE_M], record[gmm.SINGLE_N], record[gmm.TILES_N]
    groups = table(record, gmm.TABLE, gmm.WIDTH, record[gmm.GROUPS])
    for p in range(record[BLOCK_DIM]):
        for expert, start, rows, tile in groups:
            for t in range((p - tile) % record[BLOCK_DIM], parts(rows, base) * wide, record[BLOCK_DIM]):
                r, c = t // wide * base, t % wide * single
                end = start + min(r + base, rows)
                out[start + r : end, c : c + single] += x[start + r : end] @ weights[expert, :, c : c + single]
    return out


@given(draws.grouped_matmul(), st.integers(0, 9))
def test_grouped_matmul_by_its_record_is_the_product_of_each_group(case: Case, seed: int) -> None:
    a, record, random = case.args, case.derived(), np.random.default_rng(seed)
    x, weights = random.integers(-9, 9, (a[gmm.ROWS], 2)), random.integers(-9, 9, (a[gmm.EXPERTS], 2, a[gmm.COLUMNS]))
    wanted, start = np.zeros((len(x), a[gmm.COLUMNS]), int), 0
    for g in range(gmm.groups(a)):
        expert, end = case.values[2 * g] if a[gmm.LIST_TYPE] == gmm.PAIRS else g, start + gmm.length(a, case.values, g)
        wanted[start:end] = x[start:end] @ weights[expert]
        start = end
    np.testing.assert_array_equal(multiply(a, record, x, weights), wanted)
    assert record[gmm.TOTAL] == start


@given(draws.grouped_matmul())
def test_no_core_has_two_tiles_more_than_another(case: Case) -> None:
    record = case.derived()
    counts = [0] * max(record[BLOCK_DIM], 1)
    for tile in case.op.tiles(case.args, case.values, record):
        counts[tile.core] += 1
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == record[gmm.TILES]


@given(draws.grouped_matmul() | draws.grouped_matmul(most=8000))
def test_tiles_fit_and_are_the_widest_that_leave_enough(case: Case) -> None:
    a, record = case.args, case.derived()
    assert record[gmm.BASE_M] % a[gmm.STEP_M] == record[gmm.SINGLE_N] % a[gmm.STEP_N] == 0
    assert 0 < record[gmm.BASE_M] <= a[gmm.TALLEST]
    assert record[gmm.BASE_M] * a[gmm.STEP_N] * 4 <= case.platform.l0c_bytes
    bands = sum(parts(gmm.length(a, case.values, g), record[gmm.BASE_M]) for g in range(gmm.groups(a)))
    most = parts(a[gmm.COLUMNS], a[gmm.STEP_N])

    enough = [s for s in range(1, most + 1) if bands * parts(most, s) >= gmm.WAVES * a[gmm.CORES]]
    assert record[gmm.SINGLE_N] == max(enough, default=1) * a[gmm.STEP_N]


# ---- repeat and gather ----


def copied(a: Args, record: Record, counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """What each output byte's slice is a copy of, in order of the output: (input row or block, which of its rows, begin)."""
    found: dict[int, tuple[int, int, int]] = {}
    for first, end, source, skip in table(record, rep.TABLE, rep.WIDTH, a[rep.CORES]):
        for unit in range(first, end):
            if unit > first and unit % record[rep.SLICES] == 0:
                skip += 1
            while skip >= counts[source]:
                source, skip = source + 1, 0
            assert unit not in found
            found[unit] = (source, skip, unit % record[rep.SLICES] * record[rep.CHUNK])
    return [found[unit] for unit in sorted(found)]


@given(draws.repeat())
def test_repeat_and_gather_by_their_record(case: Case) -> None:
    a, record, counts = case.args, case.derived(), case.values
    begins = range(0, a[rep.INNER], max(record[rep.CHUNK], 1))
    wanted = [(source, number, begin) for source, count in enumerate(counts) for number in range(count) for begin in begins]
    assert copied(a, record, counts) == wanted
    assert record[rep.CHUNK] <= a[rep.BUFFER]
    assert record[rep.CHUNK] % a[rep.BLOCK] == 0
    sizes = [end - first for first, end, *_ in table(record, rep.TABLE, rep.WIDTH, a[rep.CORES])]
    assert max(sizes[: record[BLOCK_DIM]], default=0) - min(sizes[: record[BLOCK_DIM]], default=0) <= 1
    assert not any(sizes[record[BLOCK_DIM] :])


@given(draws.repeat())
def test_repeat_has_no_core_far_over_its_share(case: Case) -> None:
    a, record = case.args, case.derived()
    share, padding = parts(record[rep.TOTAL] * a[rep.INNER], a[rep.CORES]), parts(record[rep.UNITS] * a[rep.BLOCK], a[rep.CORES])
    longest = max(loads(case.op, a, case.values, record))
    assert longest <= share + max(share // 8, min(a[rep.LINE], a[rep.INNER])) + padding + a[rep.BLOCK]


# ---- range and top-k ----


@given(draws.range_())
def test_range_by_its_record(case: Case) -> None:
    record = case.derived()
    found: list[int] = []
    for p in range(record[BLOCK_DIM]):
        length = record[few.PER_CORE] if p < record[BLOCK_DIM] - 1 else record[few.TAIL]
        assert 0 < length <= record[few.PER_CORE]
        found += [record[few.START] + i * record[few.DELTA] for i in range(p * record[few.PER_CORE], p * record[few.PER_CORE] + length)]
    assert found == list(range(*case.values))
    assert record[few.PER_CORE] % case.args[few.ALIGN] == 0


def search(a: Args, record: Record, x: Array) -> Array:
    """As cores would do it: the best of each part by passes of `chunk`, then the best of the parts."""
    k, best = record[few.K], {}
    for task in range(record[few.TASKS]):
        row, begin = task // record[few.PARTS], task % record[few.PARTS] * record[few.PART_COLUMNS]
        part = x[row, begin : begin + record[few.PART_COLUMNS]]
        found = np.empty(0, int)
        for at in range(0, len(part), record[few.CHUNK]):
            found = np.sort(np.concatenate([found, part[at : at + record[few.CHUNK]]]))[::-1][:k]
        best[task] = found
    merged = [np.concatenate([best[row * record[few.PARTS] + i] for i in range(record[few.PARTS])]) for row in range(len(x))]
    return np.array([np.sort(one)[::-1][:k] for one in merged]).reshape(len(x), k)


@given(draws.topk().filter(lambda case: case.args[few.COLUMNS] <= 1000 or case.args[few.ROWS] <= 3), st.integers(0, 9))
def test_topk_by_its_record(case: Case, seed: int) -> None:
    assume(good(case) and case.values[0])
    a, record = case.args, case.derived()
    x = np.random.default_rng(seed).integers(-(10**6), 10**6, (a[few.ROWS], a[few.COLUMNS]))
    np.testing.assert_array_equal(search(a, record, x), np.sort(x, 1)[:, ::-1][:, : case.values[0]])
    assert (2 * record[few.K_HELD] + record[few.CHUNK]) * (a[few.ITEM] + few.INDEX) <= a[few.UB]
    assert record[few.CHUNK] > 0
    assert record[KEY] == (record[few.PARTS] > 1) == (record[WORKSPACE] > 0)


@given(draws.topk())
def test_topk_has_the_parts_with_the_shortest_longest_core(case: Case) -> None:
    assume(good(case) and case.values[0])
    a, record = case.args, case.derived()
    block = max(a[few.BLOCK] // a[few.ITEM], 1)

    def ends(count: int) -> int:
        size = up(parts(a[few.COLUMNS], count), block)
        merging = parts(a[few.ROWS], a[few.CORES]) * count * record[few.K_HELD] if count > 1 else 0
        return parts(a[few.ROWS] * parts(a[few.COLUMNS], size), a[few.CORES]) * size + merging

    best = min(range(1, a[few.CORES] + 1), key=ends)
    assert record[few.PART_COLUMNS] == up(parts(a[few.COLUMNS], best), block)
    assert record[few.PARTS] == 1 or record[few.PART_COLUMNS] >= case.values[0]


# ---- quality ----


@pytest.mark.parametrize("section", ["split_kv", "grouped_matmul", "others"])
def test_draws_of_the_benchmark_are_within_their_targets(section: str) -> None:
    """Counted, not measured: the same on every machine."""
    rows = [row for row in getattr(bench, section)(True) if not isinstance(row, str)]
    aimed = [row for row in rows if row.target is not None]
    assert aimed
    assert [row for row in aimed if not row.ok] == []
    assert all(row.value >= 1 for row in rows if row.unit == "x" and "default" not in row.name)


# ---- without values ----


@pytest.mark.parametrize("name", ["split_kv", "grouped_matmul", "repeat", "topk"])
def test_the_device_is_launched_for_the_worst_case(name: str) -> None:
    shapes = {"split_kv": [(4, 8, 64), (4, 640, 2, 64)], "grouped_matmul": [(9, 4), (4, 4, 8)], "repeat": [(4, 8)], "topk": [(4, 80)]}
    op, spec = operator(name), tiling_spec(name, shapes[name], capacity=4)
    tiling, worst = plan(op, spec, B3, DEVICE_METADATA), worst_case(op, spec, B3)
    assert (tiling.block_dim, tiling.workspace, tiling.length) == worst[:3]
    with pytest.raises(TilingError, match="needs the values of"):
        plan(op, spec, B3, HOST_VALUE)


# ---- the judges notice wrong records ----


def unnoticed(record: list[int], places: Sequence[int], judge: Callable[[list[int]], object]) -> list[int]:
    """Of some places those where a number that is 1 too large changes nothing for the judge, and raises nothing."""
    right, found = judge(record), []
    for place in places:
        wrong = [number + (i == place) for i, number in enumerate(record)]
        try:
            found += [place] if np.array_equal(judge(wrong), right, equal_nan=True) else []  # type: ignore[arg-type]
        except (AssertionError, KeyError, IndexError, ValueError):
            continue
    return found


def places(at: int, width: int, rows: int, fields: Sequence[int]) -> list[int]:
    return [at + row * width + field for row in range(rows) for field in fields]


def test_wrong_flash_decode_records_are_noticed() -> None:
    case = small([300, 0, 511, 130], 3, 0, 0)
    q, (k, v) = np.ones((5, 1, 2)), np.random.default_rng(0).normal(size=(2, 5, 512, 2))
    record, lengths = case.derived(), [*case.values, 0]
    wrong = places(kv.TABLE, kv.WIDTH, 3, range(kv.COST))
    slots = [kv.TABLE + kv.SLOT, kv.TABLE + kv.JOIN_SLOT, kv.TABLE + 2 * kv.WIDTH + kv.JOIN_SLOT]  # of cores that write or join nothing
    assert unnoticed(record, wrong, lambda record: flash_decode(case.args, lengths, record, q, k, v)) == slots


def test_wrong_grouped_matmul_records_are_noticed() -> None:
    spec = tiling_spec("grouped_matmul", [(50, 2), (3, 2, 40)], capacity=2, padded=1)
    case, random = Case(operator("grouped_matmul"), spec, B3, [17, 23]), np.random.default_rng(0)
    x, weights = random.integers(1, 9, (50, 2)), random.integers(1, 9, (3, 2, 40))
    wrong = places(gmm.TABLE, gmm.WIDTH, 2, [gmm.EXPERT, gmm.START, gmm.LENGTH])
    assert unnoticed(case.derived(), wrong, lambda record: multiply(case.args, record, x, weights)) == []


def test_wrong_repeat_records_are_noticed() -> None:
    case = Case(operator("repeat"), tiling_spec("repeat", [(3, 8)], capacity=3, out_rows=99), B3, [9, 0, 90])
    wrong = places(rep.TABLE, rep.WIDTH, 9, [rep.FIRST, rep.END, rep.SOURCE, rep.SKIP])
    assert unnoticed(case.derived(), wrong, lambda record: copied(case.args, record, case.values)) == []
