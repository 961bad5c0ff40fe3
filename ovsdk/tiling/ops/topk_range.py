"""Operators whose work depends on scalars in device memory: range(start, limit, delta), and the k of top-k.

range    `length` elements start + i * delta, for the output's `capacity` at most; core p writes `block` of them, the last core `tail`
top-k    the k largest of each row. Rows too few for the cores are cut into `parts` of `part_columns`, each part's k best go to the
         workspace, and one core for each row merges them; the number of parts is the one with the shortest longest core, merging included

A part is searched in passes of `chunk` elements: so many fit UB beside k values with their indices, for this pass and the best so far.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from math import prod

from ...errors import TilingError
from ..operator import Args, Operator, Record, Tile, Values
from ..platform import Platform
from ..spec import AICPU, AT, BLOCK_DIM, DEVICE_METADATA, FAULT, HOST_VALUE, IN_KERNEL, KEY, WORKSPACE, Field, TilingSpec, itemsize
from .integers import parts, up

COUNT = 0

# ---- range ----

CAPACITY, ALIGN, RANGE_CORES = 1, 2, 3
RANGE_ARGS = (
    Field("count", "values: start, limit, delta"),
    Field("capacity", "elements that the output has room for"),
    Field("align", "elements that a core's part is a multiple of: a line of memory"),
    Field("cores", "vector cores"),
)
LENGTH, PER_CORE, TAIL, START, DELTA = range(5, 10)
RANGE_FIELDS = (
    Field("length", "elements"),
    Field("block", "elements of a core"),
    Field("tail", "elements of the last core that has any"),
    Field("start", "the first element"),
    Field("delta", "between two of them"),
)
NOT_THREE, TOO_FAR, NO_DELTA, TOO_LONG = 1, 2, 3, 4
FARTHEST = 2**60
"""Numbers beyond it might overflow."""
RANGE_FAULTS = {
    NOT_THREE: "range has {count} values; allowed: start, limit, delta",
    TOO_FAR: "value {at} of range, {value}, is beyond 2**60 or -2**60",
    NO_DELTA: "delta is 0; allowed: anything else",
    TOO_LONG: "range has {at} elements, the output has room for {capacity}",
}


def derive_range(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """The record of a range of (start, limit, delta)."""
    if a[COUNT] != 3:
        out[FAULT] = NOT_THREE
    elif max(abs(v[0]), abs(v[1]), abs(v[2])) > FARTHEST:
        out[FAULT], out[AT] = TOO_FAR, 0 if abs(v[0]) > FARTHEST else 1 if abs(v[1]) > FARTHEST else 2
    elif v[2] == 0:
        out[FAULT], out[AT] = NO_DELTA, 2
    else:
        way = v[1] - v[0] if v[2] > 0 else v[0] - v[1]
        length = parts(max(way, 0), abs(v[2]))
        if length > a[CAPACITY]:
            out[FAULT], out[AT] = TOO_LONG, length
        else:
            share_range(a, length, out)
            out[START], out[DELTA] = v[0], v[2]


def share_range(a: Sequence[int], length: int, out: MutableSequence[int]) -> None:
    """Equal parts, but for the last."""
    out[LENGTH] = length
    out[PER_CORE] = up(parts(length, a[RANGE_CORES]), a[ALIGN])
    out[BLOCK_DIM] = parts(length, max(out[PER_CORE], 1))
    out[TAIL] = length - max(out[BLOCK_DIM] - 1, 0) * out[PER_CORE]


def read_range(spec: TilingSpec, platform: Platform) -> list[int]:
    """The arguments from the shape (capacity,) of the output. Raises TilingError."""
    if len(spec.shapes) != 1 or len(spec.shapes[0]) != 1:
        raise TilingError(f"range: shapes {spec.shapes}; allowed: one of (capacity,)")
    return [0, spec.shapes[0][0], max(platform.line_bytes // itemsize(spec.dtypes[0]), 1), platform.vector_cores]


def range_tiles(a: Args, values: Values, record: Record) -> Iterator[Tile]:  # noqa: ARG001
    """Boxes of (element,)."""
    for p in range(record[BLOCK_DIM]):
        begin = p * record[PER_CORE]
        end = min(begin + record[PER_CORE], record[LENGTH])
        yield Tile(p, (begin,), (end,), end - begin)


def range_bound(a: Args, values: Values) -> int:
    """Elements that the busiest core must write."""
    start, limit, delta = values
    return parts(len(range(start, limit, delta)), a[RANGE_CORES])


# ---- top-k ----

ROWS, COLUMNS, ITEM, UB, BLOCK, CORES = range(1, 7)
INDEX = 4
"""Bytes of an index."""
TOPK_ARGS = (
    Field("count", "values: k"),
    Field("rows", "of x"),
    Field("columns", "of a row"),
    Field("item", "bytes of an element"),
    Field("ub", "bytes of UB of a core"),
    Field("block", "bytes that copies are aligned to"),
    Field("cores", "vector cores"),
)
K, K_HELD, PARTS, PART_COLUMNS, TASKS, CHUNK = range(5, 11)
TOPK_FIELDS = (
    Field("k", ""),
    Field("k_held", "k, rounded up to what copies are aligned to"),
    Field("parts", "of a row"),
    Field("part_columns", "of a part; the last may have fewer"),
    Field("tasks", "parts of all rows; core p does those from p * tasks // block_dim on"),
    Field("chunk", "elements of a pass"),
)
NOT_ONE, NO_K, NO_ROOM = 1, 2, 3
TOPK_FAULTS = {
    NOT_ONE: "top-k has {count} values; allowed: k",
    NO_K: "k = {value} of rows with {columns} columns; allowed: 0 to {columns}",
    NO_ROOM: "UB is too small for k: {at} bytes needed, {ub} available",
}


def derive_topk(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """The record of a top-k of which k is `v[0]`."""
    if a[COUNT] != 1:
        out[FAULT] = NOT_ONE
    elif v[0] < 0 or v[0] > a[COLUMNS]:
        out[FAULT] = NO_K
    else:
        block = max(a[BLOCK] // a[ITEM], 1)
        held = up(v[0], block)
        needed = (2 * held + block) * (a[ITEM] + INDEX)
        if needed > a[UB]:
            out[FAULT], out[AT] = NO_ROOM, needed
        elif v[0] > 0:
            out[K], out[K_HELD] = v[0], held
            out[CHUNK] = (a[UB] - 2 * held * (a[ITEM] + INDEX)) // (a[ITEM] + INDEX) // block * block
            share_topk(a, block, out)


def share_topk(a: Sequence[int], block: int, out: MutableSequence[int]) -> None:
    """How many parts a row has, and what follows from it."""
    best, least = 1, topk_cost(a, block, out[K_HELD], 1)
    for count in range(2, a[CORES] + 1):
        cost = topk_cost(a, block, out[K_HELD], count)
        if cost < least:
            best, least = count, cost
    out[PART_COLUMNS] = up(parts(a[COLUMNS], best), block)
    out[PARTS] = parts(a[COLUMNS], out[PART_COLUMNS])
    out[TASKS] = a[ROWS] * out[PARTS]
    out[BLOCK_DIM] = min(out[TASKS], a[CORES])
    if out[PARTS] > 1:
        out[KEY] = 1
        out[WORKSPACE] = out[TASKS] * out[K_HELD] * (a[ITEM] + INDEX)


def topk_cost(a: Sequence[int], block: int, held: int, count: int) -> int:
    """Elements that the longest core reads, with those of merging, where rows have so many parts."""
    columns = up(parts(a[COLUMNS], count), block)
    merged = parts(a[ROWS], a[CORES]) * count * held if count > 1 else 0
    return parts(a[ROWS] * parts(a[COLUMNS], columns), a[CORES]) * columns + merged


def read_topk(spec: TilingSpec, platform: Platform) -> list[int]:
    """The arguments from a shape (..., columns). Raises TilingError."""
    (shape,) = spec.inputs("x")
    if not shape:
        raise TilingError("topk: shape (); allowed: one dimension or more")
    item = itemsize(spec.dtypes[0])
    return [0, prod(shape[:-1]), shape[-1], item, platform.ub, platform.block_bytes, platform.vector_cores]


def topk_bound(a: Args, values: Values) -> int:
    """Elements that the busiest core must read."""
    return parts(a[ROWS] * a[COLUMNS], a[CORES]) if values[0] else 0


def topk_tiles(a: Args, values: Values, record: Record) -> Iterator[Tile]:  # noqa: ARG001
    """Boxes of (row, column)."""
    dim, tasks = record[BLOCK_DIM], record[TASKS]
    for p in range(dim):
        for task in range(p * tasks // dim, (p + 1) * tasks // dim):
            row, begin = task // record[PARTS], task % record[PARTS] * record[PART_COLUMNS]
            end = min(begin + record[PART_COLUMNS], a[COLUMNS])
            yield Tile(p, (row, begin), (row + 1, end), end - begin)


OPERATORS = (
    Operator(
        name="range",
        about="start, start + delta, ... before limit",
        args=RANGE_ARGS,
        fields=RANGE_FIELDS,
        values="start, limit, delta",
        placements=(HOST_VALUE, DEVICE_METADATA, IN_KERNEL, AICPU),
        faults=RANGE_FAULTS,
        derive=derive_range,
        read=read_range,
        cores=lambda a: a[RANGE_CORES],
        outputs=lambda a: a[CAPACITY],
        lower_bound=range_bound,
        tiles=range_tiles,
        axes=("element",),
    ),
    Operator(
        name="topk",
        about="the k largest of each row",
        args=TOPK_ARGS,
        fields=TOPK_FIELDS,
        values="k",
        placements=(HOST_VALUE, DEVICE_METADATA, IN_KERNEL, AICPU),
        faults=TOPK_FAULTS,
        derive=derive_topk,
        read=read_topk,
        cores=lambda a: a[CORES],
        workspace=lambda a: a[ROWS] * up(a[COLUMNS], max(a[BLOCK] // a[ITEM], 1)) * (a[ITEM] + INDEX),
        outputs=lambda a: a[ROWS] * a[COLUMNS],
        lower_bound=topk_bound,
        tiles=topk_tiles,
        axes=("row", "column"),
    ),
)
