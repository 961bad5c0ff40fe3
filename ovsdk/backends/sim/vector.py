"""The recurrence over numpy arrays: replicas and grids in lockstep, an element each, by the same lines as one chain.

Columns may hold an array a row, `(rows, replicas)` in all; a plain number is the same in every replica. Needs no compiler:
with a thousand replicas the time of a row is numpy's, not Python's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from .columns import STREAMS, Columns
from .maxplus import NEVER, Arithmetic, Matrix, State, recurrence, through
from .rows import Machine


def _latest(times: Iterable[Any]) -> Any:
    return functools.reduce(np.maximum, times)


def _earliest(times: Iterable[Any]) -> Any:
    return functools.reduce(np.minimum, times)


ARRAYS = Arithmetic(recurrence(np.maximum), _latest, _earliest)
"""int64 arrays of one shape, and ints."""


def matrices(launches: Columns, machine: Machine) -> list[Matrix]:
    """Launches that differ in durations alone, `(rows, launches)` a column, collapsed in one pass; `d2h` is an int or `(launches,)`.

    For launches that come once each: one by one, to collapse them would take longer than to run them.
    """
    streams = machine.streams
    state = State(Machine(latency_ns=machine.latency_ns, streams=streams), bounded=False, of=ARRAYS)
    state.times = [np.where(np.arange(STREAMS + streams) == place, 0, NEVER)[:, np.newaxis] for place in range(STREAMS + streams)]
    begins, ends = through(launches, state)
    tables = np.array(np.broadcast_arrays(*state.times, *begins, *ends)).transpose(2, 0, 1).tolist()  # (launch, row, column)
    copies = np.broadcast_to(launches.d2h, len(tables)).tolist()
    return [Matrix(rows, launches.counts, d2h, launches.kind) for rows, d2h in zip(tables, copies, strict=True)]
