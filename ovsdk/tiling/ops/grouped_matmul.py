"""Grouped matmul: the tiles of all groups' products dealt out to the cores, by the list of groups.

Rows of x belong to groups, one after another; each group is multiplied by the weight of its expert. A group's product has
ceil(rows / base_m) times tiles_n tiles of base_m rows and single_n columns, row by row; tiles of all groups have consecutive numbers.
Core p does the tiles p, p + block_dim, ...: the tail of one group and the head of the next share a wave, and no core has two tiles more
than another. `tile` of an entry is the number of its first tile, so that a core finds its tiles of a group without those before it.

group_list, by `list_type`: 0 the end of each group in x, 1 the rows of each, 2 pairs of expert and rows.
base_m is an even part of the rows of a mean group. A wide tile reads x less often, but wide tiles are few, and not alike at the edges of
groups: so they are as wide as leaves WAVES to a core, one step at least. The widest that fills 85 % of the last wave, as in the grouped
matmul of CANN, made the longest core up to 1.7 times longer in our draws, counting multiplications and reads. All text is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence

from ...errors import TilingError
from ..operator import Args, Operator, Record, Tile, Values
from ..platform import Platform
from ..spec import AICPU, AT, BLOCK_DIM, DEVICE_METADATA, FAULT, HOST_VALUE, IN_KERNEL, Field, TilingSpec
from .integers import parts, up

ENDS, COUNTS, PAIRS = range(3)
"""What a group_list may hold."""
WAVES = 64
"""Tiles of a core from which on they are made wider."""
MOST_M, MOST_N = 128, 256
"""Rows of a tile, and columns of a step, at most: what matmuls of CANN begin with."""
ACCUMULATOR = 4
"""Bytes of an element of L0C."""

COUNT, ROWS, EXPERTS, COLUMNS, LIST_TYPE, PADDED, MOST_GROUPS, TALLEST, STEP_M, STEP_N, CORES = range(11)
ARGS = (
    Field("count", "values of `group_list`"),
    Field("rows", "of x"),
    Field("experts", "weights"),
    Field("columns", "of a weight"),
    Field("list_type", "0: ends, 1: counts, 2: pairs of expert and count"),
    Field("padded", "1: the groups may end before the rows of x do"),
    Field("most_groups", "entries that the table has room for"),
    Field("tallest", "rows of a tile, at most"),
    Field("step_m", "rows of a tile are a multiple of it"),
    Field("step_n", "columns of a tile are a multiple of it: what fits L0C"),
    Field("cores", "cube cores"),
)

GROUPS, TOTAL, TILES, BASE_M, SINGLE_N, TILES_N, TABLE = range(5, 12)
FIELDS = (
    Field("groups", "entries of the table"),
    Field("total", "rows of all groups"),
    Field("tiles", "of all groups"),
    Field("base_m", "rows of a tile"),
    Field("single_n", "columns of a tile"),
    Field("tiles_n", "tiles side by side"),
)
EXPERT, START, LENGTH, TILE, WIDTH = range(5)
TABLE_ROW = (
    Field("expert", "whose weight"),
    Field("start", "the group's first row of x"),
    Field("length", "its rows"),
    Field("tile", "number of its first tile"),
)

TOO_MANY, NO_LENGTH, NO_EXPERT, NO_SUM, ODD = range(1, 6)
FAULTS = {
    TOO_MANY: "a group_list of {count} values has too many groups; allowed: {most_groups}, and one for each of {experts} experts",
    NO_LENGTH: "group_list[{at}] = {value}: a group has 0 to {rows} rows, and ends do not descend",
    NO_EXPERT: "group_list[{at}] = {value} is no expert; allowed: 0 to {experts} - 1",
    NO_SUM: "the groups have {at} rows together, x has {rows}; allowed: as many, or fewer with padded=1",
    ODD: "a group_list of pairs has {count} values; allowed: an even number",
}


def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """The record of the groups `v`."""
    fault = check(a, v, out)
    if fault != 0:
        out[FAULT] = fault
    else:
        place(a, v, out)
        deal(a, out)


def groups(a: Sequence[int]) -> int:
    """Entries of the list."""
    return a[COUNT] // 2 if a[LIST_TYPE] == PAIRS else a[COUNT]


def length(a: Sequence[int], v: Sequence[int], g: int) -> int:
    """Rows of group g."""
    if a[LIST_TYPE] == PAIRS:
        return v[2 * g + 1]
    return v[g] - v[g - 1] if a[LIST_TYPE] == ENDS and g > 0 else v[g]


def check_count(a: Sequence[int]) -> int:
    """What is wrong with the number of values; or 0."""
    if a[LIST_TYPE] == PAIRS and a[COUNT] % 2 == 1:
        return ODD
    return TOO_MANY if groups(a) > a[MOST_GROUPS] or (a[LIST_TYPE] != PAIRS and groups(a) > a[EXPERTS]) else 0


def check(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> int:
    """The first constraint that fails, with what failed it in AT; or 0."""
    fault = check_count(a)
    if fault != 0:
        return fault
    total = 0
    for g in range(groups(a)):
        at = 2 * g + 1 if a[LIST_TYPE] == PAIRS else g
        if v[at] < 0 or v[at] > a[ROWS] or length(a, v, g) < 0:
            out[AT] = at
            return NO_LENGTH
        if a[LIST_TYPE] == PAIRS and (v[2 * g] < 0 or v[2 * g] >= a[EXPERTS]):
            out[AT] = 2 * g
            return NO_EXPERT
        total += length(a, v, g)
    if total > a[ROWS] or (total < a[ROWS] and a[PADDED] == 0):
        out[AT] = total
        return NO_SUM
    return 0


def place(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """Experts and rows of the groups; how many rows a tile has."""
    start, filled = 0, 0
    for g in range(groups(a)):
        at = TABLE + g * WIDTH
        rows = length(a, v, g)
        out[at + EXPERT] = v[2 * g] if a[LIST_TYPE] == PAIRS else g
        out[at + START] = start
        out[at + LENGTH] = rows
        start += rows
        filled += 1 if rows > 0 else 0
    out[GROUPS] = groups(a)
    out[TOTAL] = start
    mean = max(parts(start, max(filled, 1)), 1)
    out[BASE_M] = up(parts(mean, parts(mean, a[TALLEST])), a[STEP_M])


def deal(a: Sequence[int], out: MutableSequence[int]) -> None:
    """Number the tiles, once their width is known."""
    bands = 0
    for g in range(out[GROUPS]):
        bands += parts(out[TABLE + g * WIDTH + LENGTH], out[BASE_M])
    steps = widest(a, bands)
    out[SINGLE_N] = steps * a[STEP_N]
    out[TILES_N] = parts(a[COLUMNS], out[SINGLE_N])
    out[TILES] = bands * out[TILES_N]
    out[BLOCK_DIM] = min(out[TILES], a[CORES])
    tile = 0
    for g in range(out[GROUPS]):
        at = TABLE + g * WIDTH
        out[at + TILE] = tile
        tile += parts(out[at + LENGTH], out[BASE_M]) * out[TILES_N]


def widest(a: Sequence[int], bands: int) -> int:
    """Steps of the widest tile of which each core has WAVES; else 1."""
    most = parts(a[COLUMNS], a[STEP_N])
    needed = parts(WAVES * a[CORES], max(bands, 1))
    return max((most - 1) // (needed - 1) if needed > 1 else most, 1)


# ---- on the host ----


def read(spec: TilingSpec, platform: Platform) -> list[int]:
    """The arguments from shapes (rows, k) and (experts, k, columns); attributes: list_type (default 1), padded. Raises TilingError."""
    x, weights = spec.inputs("x", "weights")
    kind = spec.attribute("list_type", COUNTS)
    if len(x) != 2 or len(weights) != 3 or x[1] != weights[1]:
        raise TilingError(f"grouped_matmul: shapes {x} and {weights}; allowed: (rows, k) and (experts, k, columns)")
    if kind not in (ENDS, COUNTS, PAIRS):
        raise TilingError(f"grouped_matmul: list_type {kind}; allowed: 0 ends, 1 counts, 2 pairs of expert and count")
    edge, accumulators = platform.fractal, platform.l0c_bytes // ACCUMULATOR
    step = min(accumulators // MOST_M // edge * edge, MOST_N)
    if step < edge:
        raise TilingError(f"grouped_matmul: L0C holds {accumulators} accumulators; a tile of {MOST_M} x {edge} needs {MOST_M * edge}")
    most_groups = spec.capacity // 2 if kind == PAIRS else spec.capacity
    padded = spec.attribute("padded", 0)
    return [0, x[0], weights[0], weights[2], kind, padded, most_groups, MOST_M, edge, step, platform.cube_cores]


def lower_bound(a: Args, values: Values) -> int:
    """Blocks of the cube unit that the busiest core must compute."""
    bands = sum(parts(length(a, values, g), a[STEP_M]) for g in range(groups(a)))
    return parts(bands * parts(a[COLUMNS], a[STEP_M]), a[CORES])


def tiles(a: Args, values: Values, record: Record) -> Iterator[Tile]:  # noqa: ARG001
    """Boxes of (row of x, column)."""
    base, single, wide = record[BASE_M], record[SINGLE_N], record[TILES_N]
    for g in range(record[GROUPS]):
        _, start, rows, first = record[TABLE + g * WIDTH :][:WIDTH]
        for tile in range(parts(rows, base) * wide):
            down, right = tile // wide * base, tile % wide * single
            end = (start + min(down + base, rows), min(right + single, a[COLUMNS]))
            blocks = parts(end[0] - start - down, a[STEP_M]) * parts(end[1] - right, a[STEP_M])
            yield Tile((first + tile) % record[BLOCK_DIM], (start + down, right), end, blocks)


OPERATORS = (
    Operator(
        name="grouped_matmul",
        about="products of groups of rows with the weights of their experts, by the list of groups",
        args=ARGS,
        fields=FIELDS,
        row=TABLE_ROW,
        values="group_list",
        placements=(HOST_VALUE, DEVICE_METADATA, IN_KERNEL, AICPU),
        faults=FAULTS,
        derive=derive,
        read=read,
        rows=lambda a: a[MOST_GROUPS],
        cores=lambda a: a[CORES],
        outputs=lambda a: a[ROWS] * a[COLUMNS],
        lower_bound=lower_bound,
        tiles=tiles,
        axes=("row", "column"),
    ),
)
