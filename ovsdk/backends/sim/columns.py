"""A program by columns, as the recurrence reads it: a list of host times, a list of launcher times, ... in place of rows.

A column of durations may also hold an array a row, an element a replica: then one pass simulates all of them.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import SimulationError
from .operators import D2H, H2D
from .rows import NO_SYNC, Program

SYNC, KEPT, WAITS = 1, 2, 4
"""What `Columns.note` says of a row, added up: it syncs; its end is kept; WAITS times the number of rows that it waits for."""
COPIES = (H2D, D2H)
"""Rows of that name copy; the others are operators."""
STREAMS = 2
"""Where the streams begin in a vector of times: H, L, E[0], E[1], ..."""


class Columns(NamedTuple):
    """A program. Of each row its times in ns, its stream as a place in the vector of times, and what else it does."""

    kind: str
    host: Any
    launcher: Any
    device: Any
    aicpu: Any
    sync: Any
    stream: Sequence[int]
    note: Sequence[int]
    waits: Sequence[int]
    """Places among the kept ends, row after row."""
    kept: int
    """How many ends are kept: of rows that another one waits for, and of the first and last operator on each stream."""
    first: tuple[tuple[int, int], ...]
    """Of the first operator on each stream: its place among the kept, and its number."""
    last: tuple[int, ...]
    """The places of the last ones."""
    counts: tuple[tuple[int, int], ...]
    """How many rows are on which stream."""
    d2h: Any
    """0, or what copying the results takes: in no replica 0 then."""


def columns(program: Program) -> Columns:
    """A program by columns. Raises SimulationError for one without operators, a negative time, or a wait for a later row."""
    _check(program)
    rows = program.rows
    operators = [(row.stream, number) for number, row in enumerate(rows) if row.op not in COPIES]
    first, last = dict(reversed(operators)), dict(operators)
    numbers = sorted({*first.values(), *last.values(), *itertools.chain.from_iterable(row.waits for row in rows)})
    places = {number: place for place, number in enumerate(numbers)}
    return Columns(
        kind=program.kind,
        host=[row.host_ns for row in rows],
        launcher=[row.launcher_ns for row in rows],
        device=[row.device_ns for row in rows],
        aicpu=[row.aicpu_ns for row in rows],
        sync=[max(row.sync_ns, 0) for row in rows],
        stream=[STREAMS + row.stream for row in rows],
        note=[SYNC * (row.sync_ns != NO_SYNC) + KEPT * (number in places) + WAITS * len(row.waits) for number, row in enumerate(rows)],
        waits=[places[number] for row in rows for number in row.waits],
        kept=len(places),
        first=tuple((places[number], number) for number in first.values()),
        last=tuple(places[number] for number in last.values()),
        counts=tuple(Counter(STREAMS + row.stream for row in rows).items()),
        d2h=program.d2h_ns,
    )


def _check(program: Program) -> None:
    operators = sum(row.op not in COPIES for row in program.rows)
    if not operators or program.d2h_ns < 0:
        seen = f"{operators} operators and {program.d2h_ns} ns of d2h"
        raise SimulationError(f"launch {program.kind!r} has {seen}; allowed: at least 1 operator and 0 ns")
    for number, row in enumerate(program.rows):
        if min(row.host_ns, row.launcher_ns, row.device_ns, row.aicpu_ns, row.stream, row.sync_ns - NO_SYNC) < 0:
            raise SimulationError(f"row {number} of launch {program.kind!r}: times and stream are ints of at least 0; got {row!r}")
        if not all(0 <= other < number for other in row.waits):
            raise SimulationError(
                f"row {number} of launch {program.kind!r} waits for rows {row.waits}; allowed: earlier rows of this launch"
            )


class Same:
    """A program as a key, by identity: to hash 500 rows takes longer than to simulate them."""

    __slots__ = ("program",)

    def __init__(self, program: Program | Columns) -> None:
        self.program = program

    def __hash__(self) -> int:
        return id(self.program)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.program is other.program


def columns_of(program: Program | Columns) -> Columns:
    """The same, remembered for the last 256 programs."""
    return program if isinstance(program, Columns) else _remembered(Same(program))


@functools.lru_cache(maxsize=256)
def _remembered(same: Same) -> Columns:
    assert isinstance(same.program, Program)
    return columns(same.program)
