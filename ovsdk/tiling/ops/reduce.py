"""Reduce over axes that are values: ReduceSum and its kin.

The shape is collapsed: axes of size 1 go, neighbours that are both kept, or both reduced, become one. What remains alternates, kept first
(with a size of 1 if need be): A R, A R A, A R A R, ...; so `i % 2` says what axis i is, and `rank % 2` whether the innermost is kept.
The kept axes span the space A, the reduced ones the space R, both row-major. Each is cut into units: the innermost axes whole, a
`factor` of the next one, so a unit is a range of A (or R) that never crosses the axes outside. A task is a unit of A with one group of the
units of R; tasks go to cores in runs of `per_core`. More than one group: partial sums in the workspace, added up by a second stage.

In UB at once: two buffers of a unit's elements, one copy of them in float32, and for each kept element an accumulator and an output.
After the ATVC and opbase reductions in idea; the algorithm and its text are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableSequence, Sequence

from ...errors import TilingError
from ..operator import Operator, Tile
from ..platform import Platform
from ..spec import AICPU, AT, BLOCK_DIM, DEVICE_METADATA, FAULT, HOST_SHAPE, HOST_VALUE, IN_KERNEL, KEY, WORKSPACE, Field, TilingSpec
from ..spec import itemsize as bytes_of
from .cutting import ROUNDS, TOTAL, UNITS, cut, pieces, space, unit
from .integers import parts, up

MOST_RANK = 8
FLOAT = 4
"""Bytes of an accumulator and of a partial sum."""
GRAIN = 4096
"""Bytes of input below which a core is not worth a share of a reduction."""

PAYS = 32
"""Elements of R that stand against one partial sum at least: it is written and read again."""

COUNT, RANK, DIMS, ITEM, CORES, UB, BLOCK, LINE = 0, 1, 2, 10, 11, 12, 13, 14
ARGS = (
    Field("count", "values of `axes`"),
    Field("rank", "of the input"),
    Field("dims", "sizes of the input; 1 behind `rank`", MOST_RANK),
    Field("item", "bytes of an element"),
    Field("cores", "vector cores"),
    Field("ub", "bytes of UB of one of them"),
    Field("block", "bytes that copies are aligned to"),
    Field("line", "bytes of the shortest contiguous read at full speed"),
)

COLLAPSED, EXTENTS, A, R, USED, GROUPS, PER_GROUP, PER_CORE = 5, 6, 15, 20, 25, 26, 27, 28
FIELDS = (
    Field("collapsed", "axes after collapsing; even: the innermost is reduced"),
    Field("extents", "their sizes: kept, reduced, kept, ...", MOST_RANK + 1),
    *space("a", "A"),
    *space("r", "R"),
    Field("used", "bytes of UB that a unit needs"),
    Field("groups", "cores that share the reduction of one unit of A; each but 1 adds a partial sum to the workspace"),
    Field("per_group", "units of R that one of them does, one after another"),
    Field("per_core", "tasks of a core; task t is unit t // groups of A, group t % groups"),
)
NO_AXIS, TWICE, NO_ROOM = 1, 2, 3
FAULTS = {
    NO_AXIS: "axes[{at}] = {value} is out of range for rank {rank}; allowed: -{rank} to {rank} - 1",
    TWICE: "axes[{at}] = {value} names an axis that an earlier one names",
    NO_ROOM: "UB is too small for one row: {at} bytes needed, {ub} available",
}


def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """The record of a reduction over the axes `v`."""
    reduced = [0] * MOST_RANK
    fault = mark(a, v, reduced, out)
    if fault == 0:
        collapse(a, reduced, out)
        fault = place(a, out)
    if fault != 0:
        fail(fault, out[AT], out)


def fail(fault: int, at: int, out: MutableSequence[int]) -> int:
    """A record with nothing but a fault."""
    for i in range(PER_CORE + 1):
        out[i] = 0
    out[FAULT] = fault
    out[AT] = at
    return fault


def mark(a: Sequence[int], v: Sequence[int], reduced: MutableSequence[int], out: MutableSequence[int]) -> int:
    """1 for each axis that is reduced; or a fault, with the index of the axis in AT."""
    for i in range(a[COUNT]):
        axis = v[i] + a[RANK] if v[i] < 0 else v[i]
        out[AT] = i
        if axis < 0 or axis >= a[RANK]:
            return NO_AXIS
        if reduced[axis] == 1:
            return TWICE
        reduced[axis] = 1
    out[AT] = 0
    return 0


def collapse(a: Sequence[int], reduced: Sequence[int], out: MutableSequence[int]) -> int:
    """EXTENTS and COLLAPSED: axis i is kept where i is even, reduced where it is odd."""
    last, kept, gone = 0, 1, 1
    out[EXTENTS] = 1
    for i in range(a[RANK]):
        size = a[DIMS + i]
        if reduced[i] == 1:
            gone = gone * size
        else:
            kept = kept * size
        if size != 1:
            if last % 2 != reduced[i]:
                last = last + 1
                out[EXTENTS + last] = 1
            out[EXTENTS + last] = out[EXTENTS + last] * size
    if gone == 0:
        last = nothing(kept, out)
    elif last == 0:
        last = spread(out)
    out[A + TOTAL] = kept
    out[R + TOTAL] = gone
    out[COLLAPSED] = last + 1
    return last


def nothing(kept: int, out: MutableSequence[int]) -> int:
    """Sums of nothing: A R with the sizes `kept`, 0."""
    for i in range(MOST_RANK + 1):
        out[EXTENTS + i] = 0
    out[EXTENTS] = kept
    return 1


def spread(out: MutableSequence[int]) -> int:
    """Nothing is reduced: A alone becomes A R A with the sizes 1, 1, A, for its reads are contiguous."""
    out[EXTENTS + 2] = out[EXTENTS]
    out[EXTENTS] = 1
    out[EXTENTS + 1] = 1
    return 2


def place(a: Sequence[int], out: MutableSequence[int]) -> int:
    """Units, groups, cores; or NO_ROOM with the bytes that are needed in AT."""
    block = max(a[BLOCK] // a[ITEM], 1)
    line = max(a[LINE] // a[ITEM], block)
    moved = 2 * a[ITEM] + FLOAT
    kept = a[ITEM] + FLOAT
    last = out[COLLAPSED] - 1
    innermost = max(out[EXTENTS + last], 1)
    tail = out[COLLAPSED] % 2
    room = a[UB] - block * kept
    least = block * moved + (block if tail == 1 else 1) * kept
    if room < least:
        out[AT] = least + block * kept
        return NO_ROOM
    row = 1 if tail == 1 else up(min(innermost, line), block)
    if row * moved + kept > room:
        row = block
    room = room // (row * moved + kept)
    if out[A + TOTAL] == 0:
        return 0
    held = cut(out, A, EXTENTS, last - 1 + tail, 2, block if tail == 1 else 1, 1, room, line if tail == 1 else 1, a[CORES], ROUNDS)
    room = (a[UB] - up(held, block) * kept) // (held * moved)
    groups = 1
    if well_spread(out[A + UNITS], a[CORES]) == 1:
        length = cut(out, R, EXTENTS, last - tail, 2, 1 if tail == 1 else block, out[A + UNITS], room, room, 1, 0)
    else:
        least = max(max(GRAIN // (held * a[ITEM]), row), PAYS)
        length = cut(out, R, EXTENTS, last - tail, 2, 1 if tail == 1 else block, out[A + UNITS], room, least, a[CORES], ROUNDS)
        most = max(min(out[R + UNITS], out[R + TOTAL] // least), 1)
        groups = pieces(out[A + UNITS], out[R + UNITS], 1, most, 1, a[CORES], ROUNDS)
    out[USED] = held * length * moved + up(held, block) * kept
    assign(a, out, groups)
    return 0


def well_spread(units: int, cores: int) -> int:
    """1 where at most 15 % of the cores' rounds are empty: then a reduction is not worth splitting."""
    return 1 if units * 100 >= up(units, cores) * 85 else 0


def assign(a: Sequence[int], out: MutableSequence[int], groups: int) -> None:
    """Groups of units of R, tasks of cores, and what is launched with."""
    out[PER_GROUP] = parts(out[R + UNITS], groups)
    out[GROUPS] = parts(out[R + UNITS], out[PER_GROUP])
    tasks = out[A + UNITS] * out[GROUPS]
    out[PER_CORE] = parts(tasks, a[CORES])
    out[BLOCK_DIM] = parts(tasks, out[PER_CORE])
    out[KEY] = 2 * out[COLLAPSED] + (1 if out[GROUPS] > 1 else 0)
    out[WORKSPACE] = out[GROUPS] * up(out[A + TOTAL] * FLOAT, a[BLOCK]) if out[GROUPS] > 1 else 0


# ---- on the host ----


def read(spec: TilingSpec, platform: Platform) -> list[int]:
    """The arguments. Raises TilingError for a rank over the limit."""
    (shape,) = spec.inputs("x")
    rank = len(shape)
    if rank > MOST_RANK:
        raise TilingError(f"reduce: rank {rank} of shape {shape}, at most {MOST_RANK}")
    item = bytes_of(spec.dtypes[0])
    ones = (1,) * (MOST_RANK - rank)
    return [0, rank, *shape, *ones, item, platform.vector_cores, platform.ub, platform.block_bytes, platform.line_bytes]


def numel(a: Sequence[int]) -> int:
    """Elements of the input: no output has more."""
    return math.prod(a[DIMS : DIMS + MOST_RANK])


def workspace(a: Sequence[int]) -> int:
    """Partial sums at most: one for PAYS elements; a unit for each task, of which a bad spread has below 7 rounds and those of `pieces`."""
    tasks = (7 + ROUNDS * (ROUNDS - 1) // 2) * a[CORES]
    unit = a[UB] // (3 * a[ITEM] + 2 * FLOAT)
    return min(numel(a) // PAYS, tasks * unit) * FLOAT + tasks * a[BLOCK]


def lower_bound(a: Sequence[int], v: Sequence[int]) -> int:  # noqa: ARG001
    """Elements that the busiest core must read."""
    return parts(numel(a), a[CORES])


def tiles(a: Sequence[int], v: Sequence[int], record: Sequence[int]) -> Iterator[Tile]:  # noqa: ARG001
    """Each unit of A with each of R, as a box in A x R."""
    groups, per_group, per_core = record[GROUPS], record[PER_GROUP], record[PER_CORE]
    for task in range(record[A + UNITS] * groups):
        begin, end = unit(record, A, task // groups)
        for one in range(task % groups * per_group, min((task % groups + 1) * per_group, record[R + UNITS])):
            first, last = unit(record, R, one)
            yield Tile(task // per_core, (begin, first), (end, last), (end - begin) * (last - first))


REDUCE = Operator(
    name="reduce",
    about="reduce over axes that are values (ReduceSum): x, axes",
    args=ARGS,
    fields=FIELDS,
    values="axes",
    placements=(HOST_SHAPE, HOST_VALUE, DEVICE_METADATA, IN_KERNEL, AICPU),
    attributes={},
    faults=FAULTS,
    derive=derive,
    read=read,
    cores=lambda a: a[CORES],
    workspace=workspace,
    outputs=numel,
    lower_bound=lower_bound,
    tiles=tiles,
    axes=("kept", "reduced"),
)
OPERATORS = (REDUCE,)
