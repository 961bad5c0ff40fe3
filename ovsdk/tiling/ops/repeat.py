"""Repeat and gather by counts: rows of the output dealt out to the cores, by how many each row of the input gives.

repeat    row i of x stands `counts[i]` times in the output (repeat_interleave)
gather    the first `counts[i]` rows of block i of x stand in the output, block after block (padded to packed; tokens of experts)

The output is allocated for `capacity` rows. Its rows are cut into `slices` of `chunk` bytes, and unit u is slice u % slices of row
u // slices. Core p does the units from `first` up to `end`; `source` and `skip` say where it begins: output row first // slices is number
`skip` of what input row (or block) `source` gives. Rows are cut further than UB asks for only where they are too few for all cores.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from math import prod

from ...errors import TilingError
from ..operator import Args, Operator, Record, Tile, Values
from ..platform import Platform
from ..spec import AICPU, AT, BLOCK_DIM, DEVICE_METADATA, FAULT, HOST_VALUE, IN_KERNEL, Field, TilingSpec, itemsize
from .integers import parts, up

ROUNDS = 8
"""Units that each core has at least, as far as rows can be cut: then no core has over 1/8 more than its share."""

COUNT, INPUTS, INNER, ITEM, CAPACITY, MOST, BUFFER, BLOCK, LINE, CORES = range(10)
ARGS = (
    Field("count", "values of `counts`"),
    Field("inputs", "rows of x; blocks of it, for gather"),
    Field("inner", "bytes of a row"),
    Field("item", "bytes of an element"),
    Field("capacity", "rows of the output, at most"),
    Field("most", "that one of the counts may be"),
    Field("buffer", "bytes of UB for one copy: there are two"),
    Field("block", "bytes that copies are aligned to"),
    Field("line", "bytes of the shortest contiguous read at full speed"),
    Field("cores", "vector cores"),
)

TOTAL, SLICES, CHUNK, UNITS, TABLE = 5, 6, 7, 8, 9
FIELDS = (
    Field("total", "rows of the output"),
    Field("slices", "of a row"),
    Field("chunk", "bytes of a slice; the last one may be shorter"),
    Field("units", "slices of all rows"),
)
FIRST, END, SOURCE, SKIP, WIDTH = range(5)
TABLE_ROW = (
    Field("first", "unit of the core"),
    Field("end", "unit behind its last"),
    Field("source", "row, or block, of x that gives the row of the first unit"),
    Field("skip", "rows that it gives before that"),
)

WRONG_COUNT, NO_COUNT, OVERFLOW = 1, 2, 3
FAULTS = {
    WRONG_COUNT: "{count} counts for {inputs} rows; one for each is allowed",
    NO_COUNT: "counts[{at}] = {value}; allowed: 0 to {most}",
    OVERFLOW: "the counts make {at} rows, the output has room for {capacity}",
}


def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """The record of the counts `v`."""
    if check(a, v, out) == 0:
        slice_rows(a, out)
        place(a, v, out)


def check(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> int:
    """Rows of the output; or the first constraint that fails."""
    total = 0
    if a[COUNT] != a[INPUTS]:
        out[FAULT], out[AT] = WRONG_COUNT, a[COUNT]
        return WRONG_COUNT
    for i in range(a[COUNT]):
        if v[i] < 0 or v[i] > a[MOST]:
            out[FAULT], out[AT] = NO_COUNT, i
            return NO_COUNT
        total += v[i]
    if total > a[CAPACITY]:
        out[FAULT], out[AT] = OVERFLOW, total
        return OVERFLOW
    out[TOTAL] = total
    return 0


def slice_rows(a: Sequence[int], out: MutableSequence[int]) -> None:
    """How rows are cut, so that a slice fits its buffer and all cores have work."""
    least = max(parts(a[INNER], a[BUFFER]), 1)
    most = max(parts(a[INNER], a[LINE]), least)
    wanted = parts(ROUNDS * a[CORES], max(out[TOTAL], 1))
    out[CHUNK] = up(parts(a[INNER], min(max(wanted, least), most)), a[BLOCK])
    out[SLICES] = parts(a[INNER], max(out[CHUNK], 1))
    out[UNITS] = out[TOTAL] * out[SLICES]
    out[BLOCK_DIM] = min(out[UNITS], a[CORES])


def place(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """Units of each core, and where they begin in x. Cores without units begin, and end, behind the last."""
    source, begin = 0, 0
    for p in range(a[CORES]):
        at = TABLE + p * WIDTH
        out[at + FIRST] = min(p * out[UNITS] // max(out[BLOCK_DIM], 1), out[UNITS])
        out[at + END] = min((p + 1) * out[UNITS] // max(out[BLOCK_DIM], 1), out[UNITS])
        row = out[at + FIRST] // max(out[SLICES], 1)
        while source < a[COUNT] and begin + v[source] <= row:
            begin += v[source]
            source += 1
        out[at + SOURCE] = source
        out[at + SKIP] = row - begin


# ---- on the host ----


def read(spec: TilingSpec, platform: Platform) -> list[int]:
    """The arguments. repeat: shape (rows, ...), attribute out_rows; gather: shape (blocks, rows, ...). Raises TilingError."""
    (shape,) = spec.inputs("x")
    gather = spec.op == "gather"
    if len(shape) < 1 + gather:
        raise TilingError(f"{spec.op}: shape {shape}; allowed: {'(blocks, rows, ...)' if gather else '(rows, ...)'}")
    rows = prod(shape[:2]) if gather else shape[0]
    capacity = spec.attribute("out_rows", rows)
    item = itemsize(spec.dtypes[0])
    inner = prod(shape[1 + gather :]) * item
    buffer = platform.ub // 2 // platform.block_bytes * platform.block_bytes
    if buffer == 0:
        raise TilingError(f"{spec.op}: UB is too small for one row: {2 * platform.block_bytes} bytes needed, {platform.ub} available")
    most = shape[1] if gather else capacity
    return [0, shape[0], inner, item, capacity, most, buffer, platform.block_bytes, platform.line_bytes, platform.vector_cores]


def lower_bound(a: Args, values: Values) -> int:
    """Bytes that the busiest core must write."""
    return parts(sum(values) * a[INNER], a[CORES])


def tiles(a: Args, values: Values, record: Record) -> Iterator[Tile]:  # noqa: ARG001
    """Boxes of (row of the output, byte of it)."""
    slices, chunk = record[SLICES], record[CHUNK]
    for p in range(record[BLOCK_DIM]):
        first, end = record[TABLE + p * WIDTH :][:2]
        for unit in range(first, end):
            row, begin = unit // slices, unit % slices * chunk
            stop = min(begin + chunk, a[INNER])
            yield Tile(p, (row, begin), (row + 1, stop), stop - begin)


def _operator(name: str, about: str) -> Operator:
    return Operator(
        name=name,
        about=about,
        args=ARGS,
        fields=FIELDS,
        row=TABLE_ROW,
        values="counts",
        placements=(HOST_VALUE, DEVICE_METADATA, IN_KERNEL, AICPU),
        faults=FAULTS,
        derive=derive,
        read=read,
        rows=lambda a: a[CORES],
        cores=lambda a: a[CORES],
        outputs=lambda a: a[CAPACITY] * a[INNER] // a[ITEM],
        lower_bound=lower_bound,
        tiles=tiles,
        axes=("row", "byte"),
    )


OPERATORS = (
    _operator("repeat", "each row as often as its count says"),
    _operator("gather", "of each block as many rows as its count says, packed"),
)
