"""Flash-decode: the KV blocks of all rows cut over the cores, by the lengths of the sequences.

A row is a sequence and one of its KV heads, `row = sequence * heads + head`, with ceil(length / kv_block) blocks. Rows and their blocks
stand in one line; core p works from its cut (row, block) to the next core's. Rows without blocks stand there, too: their core writes 0.
A cut is known by its position: the cost of everything before it.

one pass    each cut at the end of a block next to its share of the cost; the best of TRIALS, which differ by parts of a block
exact       the least longest core that cuts of this line can have; for the host, and as the judge of the one pass
whole       cuts between rows only: a row's sum has one order whatever else is in the batch, as with FlashAttention's num_splits=1

A row that lies over several cores has a part on each. The parts have consecutive slots in the workspace, each `group` rows of head_dim
outputs, a maximum and a sum in float32; the core on which the row begins joins them. Per part that is 3 % of the traffic of a block of 512
tokens at a group of 8, so a block is never too little to give away.

The cost of a block is that of the fused attention operators of CANN: 6 for 16 query rows, 10 for 64 tokens (ours in text).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence

from ...errors import TilingError
from ..operator import Args, Operator, Record, Tile, Values
from ..platform import Platform
from ..spec import AICPU, AT, BLOCK_DIM, DEVICE_METADATA, FAULT, HOST_VALUE, IN_KERNEL, KEY, WORKSPACE, Field, TilingSpec
from .integers import parts

FLOAT = 4
"""Bytes of a partial output."""
QUERY_ROWS, QUERY_COST = 16, 6
TOKENS, TOKENS_COST = 64, 10
TRIALS = 4
"""Of the one pass: all shares moved by 0, 1/4, -1/2 and -1/4 of a block. With the first alone the worst of 200 draws is 3 % longer."""
PLENTY = 32
"""Blocks a core from which on one trial is enough: no core has more than its share and a block, which is 3 % of it."""

COUNT, SEQUENCES, HEADS, GROUP, HEAD_DIM, CACHE, KV_BLOCK, CORES, WHOLE, EXACT = range(10)
ARGS = (
    Field("count", "lengths"),
    Field("sequences", "in the batch"),
    Field("heads", "KV heads"),
    Field("group", "query rows that share a KV head"),
    Field("head_dim", "elements of a head"),
    Field("cache", "most tokens of a sequence"),
    Field("kv_block", "tokens of a block"),
    Field("cores", "cube cores"),
    Field("whole", "1: rows are not split"),
    Field("exact", "1: the least longest core, by search"),
)

ROWS, SPLITS, SLOTS, TABLE = 5, 6, 7, 8
FIELDS = (
    Field("rows", "sequences times KV heads"),
    Field("splits", "rows that lie over several cores"),
    Field("slots", "parts of them, in the workspace"),
)
ROW, BLOCK, END_ROW, END_BLOCK, SLOT, JOIN_SLOT, JOIN_PARTS, COST, WIDTH = range(9)
TABLE_ROW = (
    Field("row", "where the core begins"),
    Field("block", ""),
    Field("end_row", "where the next one does"),
    Field("end_block", ""),
    Field("slot", "of the first part that the core writes; a second part takes the next"),
    Field("join_slot", "of the first part of end_row, if end_row begins on this core and ends on another"),
    Field("join_parts", "parts of end_row for this core to join; 0: none"),
    Field("cost", "of the core's blocks"),
)
"""64 bytes a core: what one scalar load of global memory brings."""

WRONG_COUNT, NOT_CACHED = 1, 2
FAULTS = {
    WRONG_COUNT: "{count} lengths for {sequences} sequences; one for each is allowed",
    NOT_CACHED: "lengths[{at}] = {value} is not in the cache, which holds {cache} tokens of a sequence; allowed: 0 to {cache}",
}


def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """The record of sequences with `v` tokens in the cache."""
    ends = [0] * (a[COUNT] + 1)
    cuts = [0] * (TRIALS * (a[CORES] + 1))
    measure(a, v, ends, out)
    if out[FAULT] == 0 and a[COUNT] > 0:
        unit = ends[a[COUNT] - 1] if a[WHOLE] == 1 else block_cost(a)
        first = spread(a, ends, unit, cuts)
        if a[EXACT] == 1:
            tighten(a, ends, unit, cuts, first)
        place(a, ends, unit, cuts, first, out)
        share_rows(a, out)


def block_cost(a: Sequence[int]) -> int:
    """Of a full block."""
    return QUERY_COST * parts(a[GROUP], QUERY_ROWS) + TOKENS_COST * parts(a[KV_BLOCK], TOKENS)


def measure(a: Sequence[int], v: Sequence[int], ends: MutableSequence[int], out: MutableSequence[int]) -> None:
    """The cost up to the end of each sequence, and behind them more than any share; or a fault."""
    if a[COUNT] != a[SEQUENCES]:
        out[FAULT], out[AT] = WRONG_COUNT, a[COUNT]
        return
    size, heads, cache, query = a[KV_BLOCK], a[HEADS], a[CACHE], QUERY_COST * parts(a[GROUP], QUERY_ROWS)
    total = 0
    for b in range(a[COUNT]):
        length = v[b]
        if length < 0 or length > cache:
            out[FAULT], out[AT] = NOT_CACHED, b
            return
        total += heads * ((length + size - 1) // size * query + (length + TOKENS - 1) // TOKENS * TOKENS_COST)
        ends[b] = total
    ends[a[COUNT]] = 4 * total + 4 * block_cost(a)


def spread(a: Sequence[int], ends: Sequence[int], unit: int, cuts: MutableSequence[int]) -> int:
    """One pass for each trial: positions of all cuts; where in `cuts` those of the best trial are."""
    step = block_cost(a)
    trials = TRIALS if ends[a[COUNT] - 1] < PLENTY * step * a[CORES] else 1
    best, shortest = 0, try_cuts(a, ends, unit, 0, cuts, 0)
    for trial in range(1, trials):
        first = trial * (a[CORES] + 1)
        longest = try_cuts(a, ends, unit, step * ((trial + 2) % TRIALS) // TRIALS - step // 2, cuts, first)
        if longest < shortest:
            best, shortest = first, longest
    return best


def try_cuts(a: Sequence[int], ends: Sequence[int], unit: int, shift: int, cuts: MutableSequence[int], first: int) -> int:
    """Each cut next to its share, moved by `shift`; the cost of the longest core."""
    total, cores = ends[a[COUNT] - 1], a[CORES]
    b, cut, longest = 0, 0, 0
    for p in range(1, cores):
        target = max(p * total // cores + shift, 0)
        while ends[b] <= target:
            b += 1
        before = cut
        cut = boundary(a, ends, unit, b, target, 1) if b < a[COUNT] else total
        cuts[first + p] = cut
        longest = max(longest, cut - before)
    cuts[first + cores] = total
    return max(longest, total - cut)


def boundary(a: Sequence[int], ends: Sequence[int], unit: int, b: int, target: int, nearest: int) -> int:
    """The position of a block's end next to `target`, or before it, which lies in sequence b."""
    begin = ends[b - 1] if b > 0 else 0
    row = (ends[b] - begin) // a[HEADS]
    inside = (target - begin) % row
    start = inside // unit * unit
    cost = min(unit, row - start)
    up = nearest == 1 and 2 * (inside - start) > cost
    return target - inside + start + (cost if up else 0)


def tighten(a: Sequence[int], ends: Sequence[int], unit: int, cuts: MutableSequence[int], first: int) -> None:
    """Bisect for the least longest core: between the lower bound and what the one pass has."""
    low, high = bound(a, ends, unit), 0
    for p in range(a[CORES]):
        high = max(high, cuts[first + p + 1] - cuts[first + p])
    while low < high:
        middle = (low + high) // 2
        if fill(a, ends, unit, middle, cuts, first) == 1:
            high = middle
        else:
            low = middle + 1
    fill(a, ends, unit, low, cuts, first)


def bound(a: Sequence[int], ends: Sequence[int], unit: int) -> int:
    """What the longest core cannot undercut: an equal share, and the dearest block."""
    dearest, begin = parts(ends[a[COUNT] - 1], a[CORES]), 0
    for b in range(a[COUNT]):
        dearest = max(dearest, min(unit, (ends[b] - begin) // a[HEADS]))
        begin = ends[b]
    return dearest


def fill(a: Sequence[int], ends: Sequence[int], unit: int, most: int, cuts: MutableSequence[int], first: int) -> int:
    """Fill core after core up to a cost of `most`; 1 if all of it has found a place."""
    b, cut = 0, 0
    for p in range(1, a[CORES] + 1):
        target = cut + most
        while ends[b] <= target:
            b += 1
        cut = boundary(a, ends, unit, b, target, 0) if b < a[COUNT] else ends[a[COUNT] - 1]
        cuts[first + p] = cut
    return 1 if b == a[COUNT] else 0


def place(a: Sequence[int], ends: Sequence[int], unit: int, cuts: Sequence[int], first: int, out: MutableSequence[int]) -> None:
    """Row and block of each cut; the first core begins with what stands first, the last one ends with what stands last."""
    out[ROWS] = a[COUNT] * a[HEADS]
    b = 0
    for p in range(a[CORES]):
        at = TABLE + p * WIDTH
        if p > 0:
            out[at + ROW] = out[at - WIDTH + END_ROW]
            out[at + BLOCK] = out[at - WIDTH + END_BLOCK]
        cut = cuts[first + p + 1]
        while ends[b] <= cut:
            b += 1
        out[at + COST] = cut - cuts[first + p]
        out[at + END_ROW] = out[ROWS]
        if b < a[COUNT]:
            inside = cut - (ends[b - 1] if b > 0 else 0)
            row = (ends[b] - (ends[b - 1] if b > 0 else 0)) // a[HEADS]
            out[at + END_ROW] = b * a[HEADS] + inside // row
            out[at + END_BLOCK] = inside % row // unit


def share_rows(a: Sequence[int], out: MutableSequence[int]) -> None:
    """Slots for the parts of rows that lie over several cores, and who joins them; what is launched with."""
    out[BLOCK_DIM] = 1
    joining = TABLE
    for p in range(a[CORES]):
        at = TABLE + p * WIDTH
        out[at + SLOT] = out[SLOTS]
        if out[at + COST] > 0:
            out[BLOCK_DIM] = p + 1
            if out[at + BLOCK] > 0:
                out[SLOTS] += 1
                out[joining + JOIN_PARTS] += 1
            if out[at + END_BLOCK] > 0 and (out[at + BLOCK] == 0 or out[at + END_ROW] > out[at + ROW]):
                joining = at
                out[at + JOIN_SLOT] = out[SLOTS]
                out[at + JOIN_PARTS] = 1
                out[SLOTS] += 1
                out[SPLITS] += 1
    out[KEY] = 1 if out[SPLITS] > 0 else 0
    out[WORKSPACE] = out[SLOTS] * slot_bytes(a)


def slot_bytes(a: Sequence[int]) -> int:
    """Bytes of a part: outputs, maximum and sum of each of its query rows."""
    return a[GROUP] * (a[HEAD_DIM] + 2) * FLOAT


# ---- on the host ----


def read(spec: TilingSpec, platform: Platform) -> list[int]:
    """The arguments from shapes (sequences, [tokens,] heads, head_dim) and (sequences, cache, KV heads, head_dim).

    Attributes: kv_block (default 512), whole, exact. Raises TilingError.
    """
    query, cache = spec.inputs("query", "cache")
    if len(query) not in (3, 4) or len(cache) != 4 or query[0] != cache[0] or query[-1] != cache[-1]:
        raise TilingError(f"split_kv: shapes {query} and {cache}; allowed: (b, [t,] h, d) and (b, s, h_kv, d)")
    kv_heads, block = cache[2], spec.attribute("kv_block", 512)
    if kv_heads < 1 or query[-2] % kv_heads:
        raise TilingError(f"split_kv: {query[-2]} query heads for {kv_heads} KV heads; allowed: a multiple")
    if block < 1 or block % TOKENS:
        raise TilingError(f"split_kv: kv_block = {block}; allowed: a multiple of {TOKENS}")
    group = query[-2] // kv_heads * (query[1] if len(query) == 4 else 1)
    how = (spec.attribute("whole", 0), spec.attribute("exact", 0))
    return [0, query[0], kv_heads, group, query[-1], cache[1], block, platform.cube_cores, *how]


def lower_bound(a: Args, values: Values) -> int:
    """In the unit of a block's cost."""
    ends, out = [0] * (a[COUNT] + 1), [0] * TABLE
    measure(a, values, ends, out)
    return bound(a, ends, ends[-2] if a[WHOLE] else block_cost(a)) if a[COUNT] and not out[FAULT] else 0


def tiles(a: Args, values: Values, record: Record) -> Iterator[Tile]:
    """Boxes of (row, block): of each core one for each row that it has blocks of."""
    for p in range(a[CORES]):
        row, block, end_row, end_block = record[TABLE + p * WIDTH :][:4]
        for at in range(row, end_row + (end_block > 0)):
            length = values[at // a[HEADS]]
            begin = block if at == row else 0
            end = end_block if at == end_row else parts(length, a[KV_BLOCK])
            if begin < end:
                tokens = min(length, end * a[KV_BLOCK]) - begin * a[KV_BLOCK]
                yield Tile(p, (at, begin), (at + 1, end), tokens_cost(a, tokens))


def tokens_cost(a: Args, tokens: int) -> int:
    """Of the blocks that hold so many tokens."""
    return parts(tokens, a[KV_BLOCK]) * QUERY_COST * parts(a[GROUP], QUERY_ROWS) + parts(tokens, TOKENS) * TOKENS_COST


OPERATORS = (
    Operator(
        name="split_kv",
        about="flash-decode: KV blocks over cores, by the lengths of the sequences",
        args=ARGS,
        fields=FIELDS,
        row=TABLE_ROW,
        values="actual_seq_lens",
        placements=(HOST_VALUE, DEVICE_METADATA, IN_KERNEL, AICPU),
        faults=FAULTS,
        derive=derive,
        read=read,
        rows=lambda a: a[CORES],
        cores=lambda a: a[CORES],
        workspace=lambda a: 2 * (a[CORES] - 1) * slot_bytes(a),
        outputs=lambda a: a[SEQUENCES] * a[HEADS] * a[GROUP] * a[HEAD_DIM],
        lower_bound=lower_bound,
        tiles=tiles,
        axes=("row", "block"),
    ),
)
