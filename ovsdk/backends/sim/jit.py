"""The recurrence compiled with numba, where that is installed (`ovsdk[fast]`): the same lines, some forty times as fast.

It pays for long chains that have been `typed`, and for few replicas; to compile takes a second or two, once a process.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from typing import Any

import numpy as np

from ...errors import ConfigError
from . import vector
from .columns import Columns
from .maxplus import Arithmetic, recurrence, rewritten

FEW = 200
"""Fewer replicas go faster one by one in compiled code; more of them go faster in numpy, which need not turn the columns."""
DURATIONS, SHARED = ("host", "launcher", "device", "aicpu", "sync"), ("stream", "note", "waits")
SMALL, LARGE = {"stream": np.uint32}, {"stream": np.uint64}
"""What columns are made of, if not of int32 or int64. A place in `times` that is never negative saves a comparison a row."""


def available() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


def ints() -> Arithmetic:
    """One chain, compiled. Raises ConfigError without numba."""
    if not available():
        raise ConfigError("numba is not installed; pip install 'ovsdk[fast]', or use maxplus.INTS, which needs nothing")
    return Arithmetic(_one, rings=lambda rows, places: (_zeros(rows, places), _zeros(rows)))


def arrays(replicas: int) -> Arithmetic:
    """That many replicas: a few one after another in compiled code, where numba is installed; otherwise in lockstep, see `vector`."""
    if replicas >= FEW or not available():
        return vector.ARRAYS
    return vector.ARRAYS._replace(
        advance=functools.partial(_all, replicas),
        rings=lambda rows, places: (_zeros(replicas, rows, places), _zeros(replicas, rows)),
    )


def typed(columns: Columns) -> Columns:
    """The columns as the compiled law reads them soonest: of 32 bits each where they fit, for long ones have to be fetched from memory.

    The law takes lists too, and converts them each time.
    """
    given: dict[str, Any] = {name: np.asarray(getattr(columns, name), np.int64) for name in (*DURATIONS, *SHARED)}
    narrow = all(column.max(initial=0) < 1 << 31 for column in given.values())
    return columns._replace(**{name: column.astype(_kind(name, narrow)) for name, column in given.items()})


def _kind(name: str, narrow: bool) -> type[np.integer[Any]]:
    return SMALL.get(name, np.int32) if narrow else LARGE.get(name, np.int64)


def _typed(name: str, column: Any) -> Any:
    return column if isinstance(column, np.ndarray) else np.asarray(column, _kind(name, False))


def _zeros(*shape: int) -> Any:
    return np.zeros(shape, np.int64)


class _ByIndex(ast.NodeTransformer):
    """`for x, y in zip(xs, ys)` becomes `for row in range(len(xs))`, which numba makes a faster loop of: two thirds of the time."""

    def visit_For(self, node: ast.For) -> ast.For:
        if not (isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name) and node.iter.func.id == "zip"):
            return node
        header = ast.parse(f"for row in range(len({ast.unparse(node.iter.args[0])})): pass").body[0]
        assert isinstance(header, ast.For)
        assert isinstance(node.target, ast.Tuple)
        row: ast.expr = ast.Name("row", ast.Load())
        taken = [
            ast.Assign([name], ast.Subscript(column, row, ast.Load()))
            for name, column in zip(node.target.elts, node.iter.args, strict=True)
        ]
        header.body = [*taken, *node.body]
        return header


@functools.cache
def _law() -> Any:
    import numba  # takes half a second

    return numba.njit(rewritten(recurrence(max), _ByIndex(), top=max), nogil=True)


@functools.cache
def _law_of_many() -> Any:
    import numba

    law = _law()

    def each(
        times: Any, ends: Any, latency: int, hosts: Any, launchers: Any, devices: Any, aicpus: Any, syncs: Any,
        streams: Any, notes: Any, waits: Any, rings: Any, at: Any, task: int, places: int,
    ) -> None:  # fmt: skip
        for i in range(len(times)):
            law(
                times[i], ends[i], latency, hosts[i], launchers[i], devices[i], aicpus[i], syncs[i],
                streams, notes, waits, rings[i], at[i], task, places,
            )  # fmt: skip

    return numba.njit(each, nogil=True)


def _one(times: list[Any], ends: list[Any], latency: int, *rest: Any) -> None:
    columns = map(_typed, (*DURATIONS, *SHARED), rest)
    now, kept = np.array(times, np.int64), _zeros(len(ends))
    _law()(now, kept, latency, *columns, *rest[8:])
    times[:], ends[:] = now.tolist(), kept  # 64 bits: a column that they meet may have 32


def _all(replicas: int, times: list[Any], ends: list[Any], latency: int, *rest: Any) -> None:
    durations = [np.broadcast_to(np.ascontiguousarray(np.transpose(column), np.int64), (replicas, len(column))) for column in rest[:5]]
    now, kept = np.empty((replicas, len(times)), np.int64), _zeros(replicas, len(ends))
    for place, time in enumerate(times):
        now[:, place] = time
    _law_of_many()(now, kept, latency, *durations, *map(_typed, SHARED, rest[5:8]), *rest[8:])
    times[:], ends[:] = now.T.copy(), kept.T.copy()
