"""An operator: one derivation of its tiling, and what is needed to place, check and judge it. A value, found by name.

The derivation is written in a subset of Python that is also emitted as C++ (`ovsdk tile emit`), so that host and device run one text:

    def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None

`a`: the arguments, `a[0]` is len(v); `v`: the values; `out`: the record, all 0. It never raises: on a fault it writes FAULT and AT alone.
In the subset: int64 with + - * // % (no negative operand of // and %), comparisons, and/or/not, `x if c else y`, min, max, abs, loops
over `range`, while, if, break, continue, return; int locals, `[0] * N` for a constant N, indexing; other functions in the subset, named
int constants.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from importlib import import_module
from typing import NamedTuple, cast

import attrs

from ..errors import TilingError, guess
from .platform import Platform
from .spec import (
    AT,
    BLOCK_DIM,
    FAULT,
    HEADER,
    HOST_SHAPE,
    HOST_VALUE,
    KEY,
    WORKSPACE,
    Field,
    Tiling,
    TilingSpec,
    c_struct,
    length,
)

Derive = Callable[[Sequence[int], Sequence[int], MutableSequence[int]], None]
Args = Sequence[int]
Values = Sequence[int]
Record = Sequence[int]


class Tile(NamedTuple):
    """What one core does in one go: a box [begin, end) in the operator's space, and what it costs there."""

    core: int
    begin: tuple[int, ...]
    end: tuple[int, ...]
    cost: int


class WorstCase(NamedTuple):
    """What holds for every value that the input may have: for capture, tiling sink and metadata."""

    block_dim: int
    workspace: int
    """Bytes."""
    length: int
    """int64 of the record."""
    outputs: int
    """Elements of the output."""


@attrs.frozen(kw_only=True, eq=False)
class Operator:
    """An operator's tiling. `read` and what follows it run on the host alone; `derive` runs anywhere."""

    name: str
    about: str
    args: tuple[Field, ...]
    """What `a` holds; the first is `count`."""
    fields: tuple[Field, ...]
    """Of the record, after HEADER."""
    row: tuple[Field, ...] = ()
    """Of the table, where there is one."""
    values: str = ""
    """Name of the input whose values decide; empty: shapes decide."""
    placements: tuple[str, ...] = (HOST_SHAPE,)
    """Those that it has; HOST_SHAPE it always has, for a host may have the values."""
    faults: Mapping[int, str]
    """Number of a constraint -> what to say when it failed. May name arguments and fields of one int, {at}, and {value}, which is v[at]."""
    attributes: Mapping[str, str] | None = None
    """Attribute -> what it means. None: not told, and not checked."""
    derive: Derive
    read: Callable[[TilingSpec, Platform], list[int]]
    """The arguments, with a[0] = 0. Raises TilingError for what shapes, dtypes and attributes alone forbid."""
    rows: Callable[[Args], int] = lambda a: 0
    """Rows of the table: the most that there can be."""
    cores: Callable[[Args], int]
    """Cores of the platform."""
    workspace: Callable[[Args], int] = lambda a: 0
    """Bytes of workspace that no values exceed. Not asked for where shapes decide."""
    outputs: Callable[[Args], int]
    """Elements of the output that no values exceed."""
    lower_bound: Callable[[Args, Values], int]
    """What no tiling's busiest core can undercut, in the unit of `Tile.cost`."""
    tiles: Callable[[Args, Values, Record], Iterable[Tile]]
    """Who does what: the boxes cover the operator's space once."""
    axes: tuple[str, ...]
    """Names of the dimensions of that space."""

    header: tuple[Field, ...] = attrs.field(init=False, default=attrs.Factory(lambda self: HEADER + self.fields, takes_self=True))
    """The fields of a record before its table."""
    begin: int = attrs.field(init=False, default=attrs.Factory(lambda self: length(self.header), takes_self=True))
    """Where the table begins, in int64."""
    width: int = attrs.field(init=False, default=attrs.Factory(lambda self: length(self.row), takes_self=True))
    """int64 of a row of the table."""

    def length(self, a: Args) -> int:
        """int64 of a record for these arguments."""
        return self.begin + (self.rows(a) * self.width if self.width else 0)

    def c_struct(self) -> str:
        """The record as C structs: the header, and a row of the table if there is one."""
        row = [c_struct(f"{self.name}_row", self.row)] if self.row else []
        return "\n\n".join([c_struct(f"{self.name}_tiling", self.header), *row])


OPERATORS: Mapping[str, str] = {
    "elementwise": "elementwise",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "matmul": "matmul",
    "grouped_matmul": "grouped_matmul",
    "split_kv": "split_kv",
    "repeat": "repeat",
    "gather": "repeat",
    "topk": "topk_range",
    "range": "topk_range",
}
"""Name of an operator -> its file in `ops`, which has OPERATORS, a tuple."""


@functools.cache
def operator_named(name: str) -> Operator:
    """The operator of that name. Raises TilingError."""
    if name not in OPERATORS:
        raise TilingError(f"no tiling for operator {name!r}{guess(name, OPERATORS)}; known: {', '.join(OPERATORS)}")
    (found,) = (one for one in import_module(f"{__package__}.ops.{OPERATORS[name]}").OPERATORS if one.name == name)
    return cast(Operator, found)


def run(op: Operator, a: Args, values: Values) -> list[int]:
    """The record of these arguments, whose a[0] is len(values). Raises TilingError naming the constraint that failed."""
    out = [0] * op.length(a)
    op.derive(a, values, out)
    if out[FAULT]:
        raise TilingError(f"{op.name}: {_told(op, a, values, out)}")
    return out


def plan(op: Operator, spec: TilingSpec, platform: Platform, placement: str = HOST_SHAPE, values: Values | None = None) -> Tiling:
    """The tiling of `spec`. Where values decide and are not given, what the host launches with until the device has derived its own.

    Raises TilingError: no such placement for this operator, values missing on the host or more than `spec.capacity`, a constraint failed.
    """
    if placement != HOST_SHAPE and placement not in op.placements:
        possible = (HOST_SHAPE, *(name for name in op.placements if name != HOST_SHAPE))
        raise TilingError(f"{op.name} cannot be tiled {placement!r}{guess(placement, possible)}; it can: {', '.join(possible)}")
    a = _read(op, spec, platform)
    if not op.values:
        record = run(op, a, ())
        return Tiling(op.name, placement, record[BLOCK_DIM], record[KEY], record[WORKSPACE], tuple(record), tuple(a), len(record))
    if values is None:
        return _unknown(op, a, placement)
    _refuse_too_many(op, spec, values)
    a[0] = len(values)
    record = run(op, a, values)
    on_host = placement in (HOST_SHAPE, HOST_VALUE)
    launched = (record[BLOCK_DIM], record[WORKSPACE]) if on_host else (op.cores(a), op.workspace(a))
    return Tiling(op.name, placement, launched[0], record[KEY], launched[1], tuple(record), tuple(a), len(record))


def worst_case(op: Operator, spec: TilingSpec, platform: Platform) -> WorstCase:
    """What to allocate before the values are known; without values, what the tiling needs."""
    a = _read(op, spec, platform)
    if not op.values:
        record = run(op, a, ())
        return WorstCase(record[BLOCK_DIM], record[WORKSPACE], len(record), op.outputs(a))
    return WorstCase(op.cores(a), op.workspace(a), op.length(a), op.outputs(a))


def loads(op: Operator, a: Args, values: Values, record: Record) -> list[int]:
    """Cost of each core of the platform, in the unit of `lower_bound`."""
    found = [0] * op.cores(a)
    for tile in op.tiles(a, values, record):
        found[tile.core] += tile.cost
    return found


def _read(op: Operator, spec: TilingSpec, platform: Platform) -> list[int]:
    if spec.attributes and op.attributes is not None:
        _refuse_unknown(op.name, spec, op.attributes)
    return op.read(spec, platform)


def _refuse_unknown(op: str, spec: TilingSpec, known: Mapping[str, str]) -> None:
    for name, _ in spec.attributes:
        if name not in known:
            told = ", ".join(f"{one} ({about})" for one, about in known.items())
            raise TilingError(f"{op} has no attribute {name!r}{guess(name, known)}; it has: {told or 'none'}")


def _unknown(op: Operator, a: list[int], placement: str) -> Tiling:
    if placement in (HOST_SHAPE, HOST_VALUE):
        raise TilingError(f"{op.name} tiled {placement!r} needs the values of {op.values!r} on the host; allowed without: {_device(op)}")
    return Tiling(op.name, placement, op.cores(a), 0, op.workspace(a), (), tuple(a), op.length(a))


def _device(op: Operator) -> str:
    return ", ".join(name for name in op.placements if name not in (HOST_SHAPE, HOST_VALUE))


def _refuse_too_many(op: Operator, spec: TilingSpec, values: Values) -> None:
    if len(values) > spec.capacity:
        raise TilingError(f"{op.name}: {len(values)} values of {op.values!r}, more than the spec's capacity of {spec.capacity}")


def _told(op: Operator, a: Args, values: Values, out: Record) -> str:
    at, numbers = out[AT], dict[str, int]()
    for field, number in zip(_flat(op.args), a, strict=True):
        numbers[field] = number
    value = values[at] if 0 <= at < len(values) else at
    return op.faults[out[FAULT]].format(**numbers, at=at, value=value)


def _flat(fields: Iterable[Field]) -> list[str]:
    return [field.name if field.size == 1 else f"{field.name}{i}" for field in fields for i in range(field.size)]
