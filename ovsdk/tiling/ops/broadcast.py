"""Elementwise over inputs that are broadcast against each other. After opbase's broadcast tiling in idea.

Neighbouring axes that the same inputs repeat become one, axes of size 1 go. What remains is cut like any space (see `cutting`); unit after
unit goes to a core. An input has the stride 0 on an axis that it repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableSequence, Sequence

from ...errors import TilingError
from ..operator import Operator, Tile
from ..platform import Platform
from ..spec import AT, BLOCK_DIM, FAULT, KEY, Field, TilingSpec, itemsize
from .cutting import ROUNDS, TOTAL, UNITS, cut, space, unit
from .integers import parts

MOST_RANK = 8
MOST_INPUTS = 4

COUNT, INPUTS, RANK, DIMS, SIZES, ITEM, LIVE, CORES, UB, BLOCK, LINE = 0, 1, 2, 3, 11, 43, 44, 45, 46, 47, 48
ARGS = (
    Field("count", "always 0: no values"),
    Field("inputs", "how many"),
    Field("rank", "of the output"),
    Field("dims", "sizes of the output; 1 behind `rank`", MOST_RANK),
    Field("sizes", "sizes of each input, aligned right to those of the output", MOST_INPUTS * MOST_RANK),
    Field("item", "bytes of the smallest element"),
    Field("live", "bytes in UB for each element of the output: all buffers, twice for double buffering"),
    Field("cores", "vector cores"),
    Field("ub", "bytes of UB of one of them"),
    Field("block", "bytes that copies are aligned to"),
    Field("line", "bytes of the shortest contiguous read at full speed"),
)

COLLAPSED, EXTENTS, STRIDES, OUTPUT, USED, PER_CORE = 5, 6, 14, 46, 51, 52
FIELDS = (
    Field("collapsed", "axes after collapsing"),
    Field("extents", "their sizes", MOST_RANK),
    Field("strides", "of each input on each of them, in elements; 0 where it is repeated", MOST_INPUTS * MOST_RANK),
    *space("out", "the output"),
    Field("used", "bytes of UB that a unit needs"),
    Field("per_core", "units of a core, one after another; core c begins with unit c * per_core"),
)

NO_ROOM = 1
FAULTS = {NO_ROOM: "UB is too small for one row: {at} bytes needed, {ub} available"}


def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:  # noqa: ARG001
    """The record of a broadcast operator."""
    block = max(a[BLOCK] // a[ITEM], 1)
    room = a[UB] // a[LIVE] // block * block
    if room == 0:
        out[FAULT] = NO_ROOM
        out[AT] = a[LIVE] * block
        return
    total = collapse(a, out)
    if total == 0:
        return
    shortest = min(max(a[LINE] // a[ITEM], block), room)
    held = cut(out, OUTPUT, EXTENTS, out[COLLAPSED] - 1, 1, block, 1, room, shortest, a[CORES], ROUNDS)
    out[USED] = held * a[LIVE]
    out[PER_CORE] = parts(out[OUTPUT + UNITS], a[CORES])
    out[BLOCK_DIM] = parts(out[OUTPUT + UNITS], out[PER_CORE])
    out[KEY] = out[COLLAPSED]


def collapse(a: Sequence[int], out: MutableSequence[int]) -> int:
    """EXTENTS and STRIDES; the number of elements of the output."""
    repeats = [0] * MOST_RANK
    total = 1
    axes = 0
    before = 0 - 1
    for axis in range(a[RANK]):
        size = a[DIMS + axis]
        if size != 1:
            total = total * size
            now = 0
            for at in range(SIZES + axis, SIZES + axis + a[INPUTS] * MOST_RANK, MOST_RANK):
                now = 2 * now + (1 if a[at] == 1 else 0)
            if now != before:
                axes = axes + 1
                out[EXTENTS + axes - 1] = 1
                repeats[axes - 1] = now
                before = now
            out[EXTENTS + axes - 1] = out[EXTENTS + axes - 1] * size
    if axes == 0:
        axes = 1
        out[EXTENTS] = 1
    step(a, axes, repeats, out)
    out[COLLAPSED] = axes
    out[OUTPUT + TOTAL] = total
    return total


def step(a: Sequence[int], axes: int, repeats: Sequence[int], out: MutableSequence[int]) -> None:
    """STRIDES: the last input has the lowest bit of `repeats`."""
    bit = 1
    for k in range(a[INPUTS] - 1, 0 - 1, 0 - 1):
        stride = 1
        for i in range(axes - 1, 0 - 1, 0 - 1):
            if repeats[i] // bit % 2 == 0:
                out[STRIDES + k * MOST_RANK + i] = stride
                stride = stride * out[EXTENTS + i]
        bit = 2 * bit


# ---- on the host ----


def read(spec: TilingSpec, platform: Platform) -> list[int]:
    """The arguments; the output has the first dtype, attribute `scratch` is bytes of temporaries for each element.

    Raises TilingError for too many inputs, a rank over the limit, sizes that cannot be broadcast.
    """
    if not 1 <= len(spec.shapes) <= MOST_INPUTS:
        raise TilingError(f"broadcast: {len(spec.shapes)} inputs, 1 to {MOST_INPUTS} allowed")
    rank = max(map(len, spec.shapes))
    if rank > MOST_RANK:
        raise TilingError(f"broadcast: rank {rank}, at most {MOST_RANK}")
    behind = (1,) * (MOST_RANK - rank)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in spec.shapes]
    dims: list[int] = []
    sizes: list[int] = []
    for column in zip(*aligned, strict=True):
        size = max(column) if min(column) else 0
        for other in column:
            if other != 1 and other != size:
                raise TilingError(f"broadcast: shapes {', '.join(map(str, spec.shapes))} have the sizes {other} and {size} on one axis")
        dims.append(size)
    for shape in aligned:
        sizes += shape + behind
    sizes += [1] * (MOST_INPUTS * MOST_RANK - len(sizes))
    items = [itemsize(dtype) for dtype in spec.dtypes]
    live = 2 * (sum(items) + items[0]) + spec.attribute("scratch", 0)
    figures = (platform.vector_cores, platform.ub, platform.block_bytes, platform.line_bytes)
    return [0, len(aligned), rank, *dims, *behind, *sizes, min(items), live, *figures]


def tiles(a: Sequence[int], v: Sequence[int], record: Sequence[int]) -> Iterator[Tile]:  # noqa: ARG001
    """Each unit, as a range of elements of the output."""
    for number in range(record[OUTPUT + UNITS]):
        first, last = unit(record, OUTPUT, number)
        yield Tile(number // record[PER_CORE], (first,), (last,), last - first)


def numel(a: Sequence[int]) -> int:
    """Elements of the output."""
    return math.prod(a[DIMS : DIMS + MOST_RANK])


BROADCAST = Operator(
    name="broadcast",
    about="one output element for each combination: inputs that are broadcast against each other",
    args=ARGS,
    fields=FIELDS,
    attributes={"scratch": "bytes of temporaries in UB for each element"},
    faults=FAULTS,
    derive=derive,
    read=read,
    cores=lambda a: a[CORES],
    outputs=numel,
    lower_bound=lambda a, v: parts(numel(a), a[CORES]),
    tiles=tiles,
    axes=("elements",),
)
OPERATORS = (BROADCAST,)
