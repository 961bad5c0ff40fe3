"""Tiling on the device by torch operators: the record that `derive` gives, number for number, without a synchronisation.

    form = prepare(operator("split_kv"), a, "npu:0")     # once: this may copy to the device
    record = form(lengths)                               # each step: a tensor of int64 on the device, of the length that the spec gives

A form uses arithmetic, comparisons, cumsum, index_select, minima and maxima, and where: on every torch device, in eager mode and in a
captured graph. It never reads a tensor on the host, has none as a condition or a size, and takes nothing from the host: sizes come from
the arguments and from the number of values. Values that cannot be make a record of FAULT and AT alone, with nothing to launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import compress, product
from typing import cast

import torch
from torch import Tensor

from ..errors import TilingError
from .operator import Args, Operator
from .ops import grouped_matmul as gmm
from .ops import reduce as red
from .ops import repeat as rep
from .ops import split_kv as kv
from .ops import topk_range as few
from .ops.integers import parts
from .spec import DEVICE_METADATA, FAULT

Number = int | Tensor
Form = Callable[[Tensor], Tensor]
"""Values of any integer dtype on the device -> the record there."""
LARGE = 2**62


def prepare(op: Operator, a: Args, device: torch.device | str) -> Form:
    """The form of an operator for arguments `a`, but for the number of values: that is the tensor's. Raises TilingError if it has none."""
    make = FORMS.get(op.name)
    if make is None or DEVICE_METADATA not in op.placements:
        raise TilingError(f"{op.name} has no torch form for {DEVICE_METADATA!r}; those that have: {', '.join(sorted(FORMS))}")
    form = make(op, a, torch.device(device))
    return lambda values: form(values.reshape(-1).to(torch.int64))


# ---- numbers and records ----


def ceil_div(x: Number, by: Number) -> Tensor:
    """How many parts of size `by` hold x. One of them is a tensor."""
    return cast(Tensor, (x + (by - 1)) // by)


def align(x: Tensor, to: int) -> Tensor:
    """x, rounded up to a multiple."""
    return ceil_div(x, to) * to


def before(x: Tensor) -> Tensor:
    """0, and all of x but its last."""
    return torch.cat([x.new_zeros(1), x])[:-1]


def reached(ends: Tensor, position: Tensor) -> Tensor:
    """How many of some ascending numbers are not above each position. Not searchsorted, for which torch_npu may need the graph engine."""
    return (ends <= position[..., None]).sum(-1)


def count_up(like: Tensor, begin: int, end: int, step: int = 1) -> Tensor:
    """begin, begin + step, ..., before end, where `like` is."""
    return torch.arange(begin, end, step, dtype=torch.int64, device=like.device)


def header(like: Tensor, block_dim: Number, key: Number, workspace: Number, *own: Number) -> Tensor:
    """The header of a record without a fault."""
    numbers = (block_dim, key, workspace, 0, 0, *own)
    return torch.stack([one if isinstance(one, Tensor) else like.new_full((), one) for one in numbers])


def failed(like: Tensor, fault: int, at: int, length: int) -> Tensor:
    """The record of a fault that the number of values shows."""
    return torch.nn.functional.pad(torch.stack([like.new_full((), fault), like.new_full((), at)]), (FAULT, length - FAULT - 2))


def checked(record: Tensor, fault: Tensor, at: Tensor) -> Tensor:
    """The record; or, where `fault` is not 0, that of the fault."""
    empty = torch.nn.functional.pad(torch.stack([fault, at]), (FAULT, len(record) - FAULT - 2))
    return torch.where(fault > 0, empty, record)


def first_fault(faults: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """The first of some faults that is not 0, and its `at`; else 0 and 0."""
    none = len(faults)
    if none == 0:
        return faults.new_zeros(()), faults.new_zeros(())
    index = count_up(faults, 0, none).masked_fill(faults == 0, none).min().reshape(1)
    found = torch.nn.functional.pad(torch.stack([faults, at]), (0, 1)).index_select(1, index)
    return found[0, 0], found[1, 0]


# ---- reduce: axes have few values, so all records are there before ----


def reduce_form(op: Operator, a: Args, device: torch.device) -> Form:
    """A table of the records of all sets of axes."""
    rank = a[red.RANK]
    table = torch.tensor([_reduced(op, a, chosen) for chosen in product((0, 1), repeat=rank)], dtype=torch.int64, device=device)
    return partial(_reduce, rank, table)


def _reduced(op: Operator, a: Args, chosen: tuple[int, ...]) -> list[int]:
    axes = list(compress(range(len(chosen)), chosen))
    out = [0] * op.length(a)
    op.derive([len(axes), *a[1:]], axes, out)
    return out


def _reduce(rank: int, table: Tensor, v: Tensor) -> Tensor:
    axes = v + (v < 0) * rank
    here = axes[:, None] == count_up(v, 0, rank)
    index = (here.any(0) * 2 ** count_up(v, rank - 1, -1, -1)).sum()
    record = table.index_select(0, index.reshape(1))[0]
    twice = (here.cumsum(0) > 1).logical_and(here).any(1)
    out = (axes < 0) | (axes >= rank)
    faults = (twice * red.TWICE).masked_fill(out, red.NO_AXIS)
    fault, at = first_fault(faults, count_up(v, 0, len(v)))
    return checked(record, fault, at)


# ---- flash-decode ----


def split_kv_form(op: Operator, a: Args, _: torch.device) -> Form:
    """The one pass. Raises TilingError for the exact search, whose length depends on the values."""
    if a[kv.EXACT]:
        raise TilingError("split_kv with exact=1 is a search, for the host; device-metadata has the one pass: give exact=0")
    return partial(split_kv, op, a)


def split_kv(op: Operator, a: Args, v: Tensor) -> Tensor:
    """See ops/split_kv.py: all cuts at once, by the sequences' cumulated costs."""
    count, heads, cache = len(v), a[kv.HEADS], a[kv.CACHE]
    if count != a[kv.SEQUENCES]:
        return failed(v, kv.WRONG_COUNT, count, op.length(a))
    if not count:
        return v.new_zeros(op.length(a))
    n = v.clamp(0, cache)
    query = kv.QUERY_COST * parts(a[kv.GROUP], kv.QUERY_ROWS)
    ends = (heads * (ceil_div(n, a[kv.KV_BLOCK]) * query + ceil_div(n, kv.TOKENS) * kv.TOKENS_COST)).cumsum(0)
    unit = ends[-1].clamp(min=1) if a[kv.WHOLE] else ends.new_full((), kv.block_cost(a))
    cuts = _best_cuts(a, ends, unit)
    row, inside, _ = _found(a, ends, cuts[1:])
    record = _shared_rows(a, cuts, row, inside // unit * (row < a[kv.SEQUENCES] * heads))
    faults = (n != v) * kv.NOT_CACHED
    return checked(record, *first_fault(faults, count_up(v, 0, count)))


def _best_cuts(a: Args, ends: Tensor, unit: Tensor) -> Tensor:
    """Positions of the cuts of the trial whose longest core is shortest."""
    cores, step, total = a[kv.CORES], kv.block_cost(a), ends[-1:]
    trial = count_up(ends, 0, kv.TRIALS)[:, None]
    moved = step * ((trial + 2) % kv.TRIALS) // kv.TRIALS - step // 2
    target = (count_up(ends, 1, cores) * total // cores + moved).clamp(min=0)
    row, inside, row_cost = _found(a, ends, target)
    start = inside // unit * unit
    cost = torch.minimum(row_cost - start, unit)
    cut = torch.where(row < len(ends) * a[kv.HEADS], target - inside + start + cost * (2 * (inside - start) > cost), total)
    cuts = torch.cat([cut.new_zeros(kv.TRIALS, 1), cut, total.expand(kv.TRIALS, 1)], 1)
    longest = cuts.diff(dim=1).amax(1, keepdim=True)
    useless = (total >= kv.PLENTY * step * cores) & (trial > 0)
    best = (longest * kv.TRIALS + trial).masked_fill(useless, LARGE).min() % kv.TRIALS
    return cuts.index_select(0, best.reshape(1))[0]


def _found(a: Args, ends: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The row that a position lies in, the position in that row, and the cost of the row. Behind all of it: the number of rows."""
    b = reached(ends, position)
    known = b.clamp(max=len(ends) - 1)
    begin = before(ends)[known]
    cost = ((ends[known] - begin) // a[kv.HEADS]).clamp(min=1)
    row = b * a[kv.HEADS] + (position - begin) // cost * (b < len(ends))
    return row, (position - begin) % cost, cost


def _shared_rows(a: Args, cuts: Tensor, end_row: Tensor, end_block: Tensor) -> Tensor:
    """The record without faults: slots of the parts of rows that lie over several cores, and who joins them."""
    cost, row, block = cuts.diff(), before(end_row), before(end_block)
    works = cost > 0
    head = works & (block > 0)
    tail = works & (end_block > 0) & ((block == 0) | (end_row > row))
    pieces = head.long() + tail.long()
    slot = pieces.cumsum(0) - pieces
    joined = 1 + (head & (row == end_row[:, None])).sum(1)
    table = torch.stack([row, block, end_row, end_block, slot, tail * (slot + head), tail * joined, cost], 1)
    splits, slots = tail.sum(), pieces.sum()
    block_dim = (works * count_up(cuts, 1, len(cuts))).max().clamp(min=1)
    first = header(cuts, block_dim, (splits > 0).long(), slots * kv.slot_bytes(a), a[kv.SEQUENCES] * a[kv.HEADS], splits, slots)
    return torch.cat([first, table.reshape(-1)])


# ---- grouped matmul ----


def grouped_matmul(op: Operator, a: Args, v: Tensor) -> Tensor:
    """See ops/grouped_matmul.py."""
    pairs = a[gmm.LIST_TYPE] == gmm.PAIRS
    wrong = gmm.check_count([len(v), *a[1:]])
    if wrong:
        return failed(v, wrong, 0, op.length(a))
    values, experts = (v[1::2], v[::2]) if pairs else (v, count_up(v, 0, len(v)))
    known, expert = values.clamp(0, a[gmm.ROWS]), experts.clamp(0, a[gmm.EXPERTS] - 1)
    rows = known - before(known) if a[gmm.LIST_TYPE] == gmm.ENDS else known
    record = _dealt(op, a, expert, rows.clamp(min=0))
    faults = ((experts != expert) * gmm.NO_EXPERT).masked_fill((values != known) | (rows < 0), gmm.NO_LENGTH)
    step = 2 if pairs else 1
    at = count_up(v, 0, len(v), step) + (faults == gmm.NO_LENGTH) * (step - 1)
    fault, at = first_fault(faults, at)
    total = rows.sum()
    no_sum = (total > a[gmm.ROWS]) | (total < a[gmm.ROWS] * (1 - a[gmm.PADDED]))
    late = (fault == 0) & no_sum
    return checked(record, fault.masked_fill(late, gmm.NO_SUM), torch.where(late, total, at))


def _dealt(op: Operator, a: Args, expert: Tensor, rows: Tensor) -> Tensor:
    """The record without faults."""
    total, filled = rows.sum(), (rows > 0).sum().clamp(min=1)
    mean = ceil_div(total, filled).clamp(min=1)
    base = align(ceil_div(mean, ceil_div(mean, a[gmm.TALLEST])), a[gmm.STEP_M])
    bands = ceil_div(rows, base)
    single = _widest(a, bands.sum()) * a[gmm.STEP_N]
    wide = ceil_div(a[gmm.COLUMNS], single)
    tiles = bands * wide
    count = tiles.sum()
    first = header(rows, count.clamp(max=a[gmm.CORES]), 0, 0, len(rows), total, count, base, single, wide)
    table = torch.stack([expert, rows.cumsum(0) - rows, rows, tiles.cumsum(0) - tiles], 1).reshape(-1)
    return torch.nn.functional.pad(torch.cat([first, table]), (0, op.length(a) - len(first) - len(table)))


def _widest(a: Args, bands: Tensor) -> Tensor:
    """Steps of the widest tile of which each core has enough; else 1."""
    most = parts(a[gmm.COLUMNS], a[gmm.STEP_N])
    less = ceil_div(gmm.WAVES * a[gmm.CORES], bands.clamp(min=1)) - 1
    return ((most - 1) // less.clamp(min=1)).masked_fill(less == 0, most).clamp(min=1)


# ---- repeat and gather ----


def repeat(op: Operator, a: Args, v: Tensor) -> Tensor:
    """See ops/repeat.py."""
    if len(v) != a[rep.INPUTS]:
        return failed(v, rep.WRONG_COUNT, len(v), op.length(a))
    n = v.clamp(0, a[rep.MOST])
    total = n.sum()
    late = total > a[rep.CAPACITY]
    fault, at = first_fault((n != v) * rep.NO_COUNT, count_up(v, 0, len(v)))
    late = late & (fault == 0)
    record = _units(a, n, total)
    return checked(record, fault.masked_fill(late, rep.OVERFLOW), torch.where(late, total, at))


def _units(a: Args, n: Tensor, total: Tensor) -> Tensor:
    """The record without faults."""
    cores, inner = a[rep.CORES], a[rep.INNER]
    least = max(parts(inner, a[rep.BUFFER]), 1)
    most = max(parts(inner, a[rep.LINE]), least)
    wanted = ceil_div(rep.ROUNDS * cores, total.clamp(min=1)).clamp(least, most)
    chunk = align(ceil_div(inner, wanted), a[rep.BLOCK])
    slices = ceil_div(inner, chunk.clamp(min=1))
    units = total * slices
    dim = units.clamp(max=cores)
    cut = torch.minimum(count_up(n, 0, cores + 1) * units // dim.clamp(min=1), units)
    row = cut[:-1] // slices.clamp(min=1)
    ends = n.cumsum(0)
    source = reached(ends, row)
    skip = row - torch.cat([n.new_zeros(1), ends])[source]
    table = torch.stack([cut[:-1], cut[1:], source, skip], 1)
    return torch.cat([header(n, dim, 0, 0, total, slices, chunk, units), table.reshape(-1)])


# ---- range and top-k ----


def range_(op: Operator, a: Args, v: Tensor) -> Tensor:
    """See ops/topk_range.py."""
    if len(v) != 3:
        return failed(v, few.NOT_THREE, 0, op.length(a))
    known = v.clamp(-few.FARTHEST, few.FARTHEST)
    start, limit, delta = known.unbind()
    way = torch.where(delta > 0, limit - start, start - limit)
    length = ceil_div(way.clamp(min=0), delta.abs().clamp(min=1))
    share = align(ceil_div(length, a[few.RANGE_CORES]), a[few.ALIGN])
    dim = ceil_div(length, share.clamp(min=1))
    tail = length - (dim - 1).clamp(min=0) * share
    record = header(v, dim, 0, 0, length, share, tail, start, delta)
    no_delta, too_long = (delta == 0) * few.NO_DELTA, (length > a[few.CAPACITY]) * few.TOO_LONG
    faults = torch.cat([(known != v) * few.TOO_FAR, no_delta.reshape(1), too_long.reshape(1)])
    at = torch.cat([count_up(v, 0, 3), v.new_full((1,), 2), length.reshape(1)])
    return checked(record, *first_fault(faults, at))


def topk(op: Operator, a: Args, v: Tensor) -> Tensor:
    """See ops/topk_range.py."""
    if len(v) != 1:
        return failed(v, few.NOT_ONE, 0, op.length(a))
    k = v.clamp(0, a[few.COLUMNS])
    block, pair = max(a[few.BLOCK] // a[few.ITEM], 1), a[few.ITEM] + few.INDEX
    held = align(k, block)
    needed = (2 * held + block) * pair
    chunk = (a[few.UB] - 2 * held * pair).clamp(min=0) // pair // block * block
    record = _searched(a, block, k, held, chunk)
    fault = ((needed > a[few.UB]) * few.NO_ROOM).masked_fill(k != v, few.NO_K)[0]
    return checked(record, fault, needed[0] * (fault == few.NO_ROOM))


def _searched(a: Args, block: int, k: Tensor, held: Tensor, chunk: Tensor) -> Tensor:
    """The record without faults; all are tensors of one number. Nothing is to be searched for a k of 0."""
    rows, columns, cores, pair = a[few.ROWS], a[few.COLUMNS], a[few.CORES], a[few.ITEM] + few.INDEX
    count = count_up(k, 1, cores + 1)
    size = align(ceil_div(columns, count), block).clamp(min=1)
    merged = parts(rows, cores) * count * held * (count > 1)
    cost = ceil_div(rows * ceil_div(columns, size), cores) * size + merged
    best = (cost * cores + (count - 1)).min() % cores + 1
    size = align(ceil_div(columns, best), block).clamp(min=1)
    count = ceil_div(columns, size)
    tasks, several = rows * count, (count > 1).long()
    work = several * tasks * held[0] * pair
    record = header(k, tasks.clamp(max=cores), several, work, k[0], held[0], count, size, tasks, chunk[0])
    return record * (k > 0)


FORMS: Mapping[str, Callable[[Operator, Args, torch.device], Form]] = {
    "reduce": reduce_form,
    "split_kv": split_kv_form,
    "grouped_matmul": lambda op, a, _: partial(grouped_matmul, op, a),
    "repeat": lambda op, a, _: partial(repeat, op, a),
    "gather": lambda op, a, _: partial(repeat, op, a),
    "range": lambda op, a, _: partial(range_, op, a),
    "topk": lambda op, a, _: partial(topk, op, a),
}
"""Operator -> what prepares its form."""
