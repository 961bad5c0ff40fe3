"""A launch becomes rows. The only place that knows levels, placements and graphs; `kernel` and `maxplus` see rows.

    level            0: the lane does host + tiling + launcher, and nothing is left to the task queue's thread;
                     1: host + tiling | launcher;  2: host | tiling + launcher
    host-shape       tiling_us more
    host-value       a sync: the lane waits for the stream, copies value_bytes to the host, then does all of the tiling
    in-kernel        device_us more
    device-metadata  an operator more, before this one on the same stream
    aicpu            aicpu_us more, between the operator's inputs being ready and its begin
    graph            the first row carries the enqueue of all, the others cost the host nothing; but an operator in `update`
                     has its task updated before each replay: update_us and its tiling_us. A host-value tiling is refused:
                     the lane would wait for a graph that waits for the lane
    inputs           a row on the copy engine's stream, for which the first row of each other stream waits
    result           `d2h_ns` after the last row
    pageable memory  a row that does nothing but sync: torch_npu waits for the stream, and the lane copies

A draw belongs to (seed, step) and to the n-th use of an operator in a launch kind: one operator more changes no other draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import ConfigError, refuse
from .operators import D2H, H2D, HOST_VALUE, LaunchPrice, Op
from .price import MOST_KEPT, Features, Price, amount, common_needs, drawing, feature_key, nanoseconds
from .prices import Prices
from .rows import NO_SYNC, Program, Row

NO_TILINGS: Mapping[str, str] = {}


def lower(
    prices: Prices,
    kind: str,
    features: Features,
    *,
    seed: int = 0,
    step: int = 0,
    tilings: Mapping[str, str] = NO_TILINGS,
    graph: bool = False,
) -> Program:
    """The rows of a launch. `tilings`: operator -> placement; `graph`: as a replay, if the kind has one.

    Raises CostUnknown for what has no price, ConfigError for a placement that is not listed, or that a graph cannot hold.
    """
    for op, placement in tilings.items():
        check_tiling(prices, op, placement)
    return _Launch(prices, kind, features, seed, step, tilings, graph).program()


def check_tiling(prices: Prices, op: str, placement: str) -> None:
    """Raise ConfigError unless that operator may have that placement."""
    if op not in prices.ops:
        refuse("operator in tilings", op, prices.ops)
    if placement not in prices.ops[op].placements:
        refuse(f"placement of {op!r} (allowed are those of op.{op}.placement)", placement, prices.ops[op].placements)


def enqueue(level: int, host: int, tiling: int, launcher: int) -> tuple[int, int]:
    """What of an operator's host work the lane does, and what the task queue's thread, at a level of the queue."""
    return ((host + tiling + launcher, 0), (host + tiling, launcher), (host, tiling + launcher))[level]


class Lowering:
    """Lowers launches at one price file and one choice of tilings; what is not drawn is lowered once and kept.

    Raises ConfigError for a tiling that is not listed.
    """

    def __init__(self, prices: Prices, seed: int = 0, tilings: Mapping[str, str] = NO_TILINGS) -> None:
        for op, placement in tilings.items():
            check_tiling(prices, op, placement)
        self.prices, self.seed, self.tilings = prices, seed, dict(tilings)
        self._kept: dict[Any, Program] = {}
        self._known: dict[str, tuple[bool, tuple[str, ...] | None]] = {}

    def drawn(self, kind: str) -> bool:
        """Whether each launch of that kind has other rows. Raises CostUnknown."""
        return self._facts(kind)[0]

    def program(self, kind: str, features: Features, step: int, graph: bool = False) -> Program:
        """See `lower`."""
        drawn, needs = self._facts(kind)
        if drawn:
            return self._lower(kind, features, step, graph)
        key = kind, graph, feature_key(needs, features) if needs or needs is None else ()
        try:
            program = self._kept.get(key)
        except TypeError:  # a feature that is no number; lowering says so
            return self._lower(kind, features, step, graph)
        return program or self._keep(key, self._lower(kind, features, step, graph))

    def _lower(self, kind: str, features: Features, step: int, graph: bool) -> Program:
        return lower(self.prices, kind, features, seed=self.seed, step=step, tilings=self.tilings, graph=graph)

    def _keep(self, key: Any, program: Program) -> Program:
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[key] = program
        return program

    def _facts(self, kind: str) -> tuple[bool, tuple[str, ...] | None]:
        if kind not in self._known:
            found = list(_prices_of(self.prices.launch(kind)))
            self._known[kind] = any(price.drawn for price in found), common_needs(found)
        return self._known[kind]


def all_prices(op: Op) -> Iterator[Price]:
    """All that an operator may cost, at any placement."""
    yield from (op.host, op.tiling, op.launcher, op.device, op.aicpu, op.value_bytes)
    for placement in op.placements.values():
        yield from (placement.tiling, placement.device, placement.aicpu, *(all_prices(placement.op) if placement.op else ()))


def _prices_of(launch: LaunchPrice) -> Iterator[Price]:
    """All that a launch may cost, whatever is chosen."""
    yield from filter(None, (launch.inputs_bytes, launch.result_bytes))
    if launch.graph is not None:
        yield from (launch.graph.host, launch.graph.tiling, launch.graph.launcher, launch.graph.each)
    for op in {op.name: op for op in launch.ops}.values():
        yield from all_prices(op)


class _Launch:
    """One launch on its way into rows."""

    def __init__(
        self, prices: Prices, kind: str, features: Features, seed: int, step: int, tilings: Mapping[str, str], graph: bool
    ) -> None:
        self.prices, self.kind, self.seed, self.step, self.tilings = prices, kind, seed, step, tilings
        self.launch = prices.launch(kind)
        self.features = {**self.launch.features, **features}
        self.graph = self.launch.graph if graph else None
        self.level, self.h2d, self.d2h = prices.machine.level, prices.hardware.h2d, prices.hardware.d2h
        self.rows: list[Row] = []
        self.latest: dict[str, int] = {}  # operator -> its last row so far
        self.streams: dict[int, None] = {}  # with rows of operators
        self.uses: Counter[str] = Counter()
        self.kept: dict[str, tuple[Row, ...]] = {}

    def program(self) -> Program:
        """All of it."""
        self._copy_in()
        first = len(self.rows)
        for op in self.launch.ops:
            self._add(op)
        if self.graph is not None:
            self._replay(first)
        d2h_ns = self._copy_out()
        return Program(self.kind, tuple(self.rows), d2h_ns)

    # ---- operators ----

    def _add(self, op: Op) -> None:
        for row in self._rows_of(op):
            self._append(row, op.waits)
        self.latest[op.name] = len(self.rows) - 1

    def _append(self, row: Row, waits: tuple[str, ...] = ()) -> None:
        found = {self.latest[name] for name in waits}
        if row.stream not in self.streams:
            self.streams[row.stream] = None
            found.update([0] * self._copies_in)
        others = tuple(sorted(index for index in found if self.rows[index].stream != row.stream))
        self.rows.append(row._replace(waits=others) if others else row)

    def _rows_of(self, op: Op) -> tuple[Row, ...]:
        """Its row, after that of an operator that its placement needs. The same each time, unless a price is drawn."""
        rows = self.kept.get(op.name)
        if rows is None:
            rows = self._priced(op, f" of {self.kind}.{op.name}[{self.uses[op.name]}]")
            self.uses[op.name] += 1
            if not any(price.drawn for price in all_prices(op)):
                self.kept[op.name] = rows
        return rows

    def _priced(self, op: Op, who: str) -> tuple[Row, ...]:
        chosen = self.tilings.get(op.name, op.placement)
        placement, ns = op.placements[chosen], self._ns(who)
        tiling, sync = ns(op.tiling) + ns(placement.tiling), NO_SYNC
        if chosen == HOST_VALUE:
            self._refuse_in_graph(op)
            sync, tiling = self._copied(op.value_bytes, who) + tiling, 0
        host, launcher = self._enqueue(op, tiling, ns)
        stream = self.prices.streams.index(op.stream)
        row = Row(op.name, host, launcher, ns(op.device) + ns(placement.device), stream, sync, ns(op.aicpu) + ns(placement.aicpu))
        before = [self._priced(placement.op, who)[0]._replace(stream=stream)] if placement.op else []
        return (*before, row)

    def _ns(self, who: str = "") -> Callable[[Price], int]:
        draw = drawing(self.seed, self.step, who)
        return lambda price: nanoseconds(price, self.features, draw)

    def _enqueue(self, op: Op, tiling: int, ns: Callable[[Price], int]) -> tuple[int, int]:
        if self.graph is None:
            return enqueue(self.level, ns(op.host), tiling, ns(op.launcher))
        return enqueue(self.level, ns(self.graph.each), tiling, 0) if op.name in self.graph.update else (0, 0)

    def _replay(self, first: int) -> None:
        """Let the first operator's row carry the enqueue of all."""
        assert self.graph is not None
        ns, row = self._ns(f" of {self.kind}"), self.rows[first]
        host, launcher = enqueue(self.level, ns(self.graph.host), ns(self.graph.tiling), ns(self.graph.launcher))
        self.rows[first] = row._replace(host_ns=host + row.host_ns, launcher_ns=launcher + row.launcher_ns)

    def _refuse_in_graph(self, op: Op) -> None:
        if self.graph is not None:
            others = ", ".join(sorted(set(op.placements) - {HOST_VALUE})) or "none is listed"
            raise ConfigError(
                f"launch {self.kind!r} as a graph: operator {op.name!r} has its tiling at {HOST_VALUE}, a synchronisation, which no graph"
                f" can hold; run it without graph, or place that tiling elsewhere: {others}"
            )

    # ---- copies ----

    @property
    def _copies_in(self) -> bool:
        return self.launch.inputs_bytes is not None and self.h2d is not None and self.h2d.pinned

    def _copy_in(self) -> None:
        if self.launch.inputs_bytes is not None and self.h2d is not None:
            ns = self.h2d.ns(amount(self.launch.inputs_bytes, self.features, drawing(self.seed, self.step)))
            row = Row(H2D, 0, 0, ns, self.prices.streams.index(H2D)) if self.h2d.pinned else Row(H2D, 0, 0, 0, sync_ns=ns)
            self.rows.append(row)

    def _copy_out(self) -> int:
        if self.d2h is None:
            return 0
        ns = self._copied(self.launch.result_bytes)
        if self.d2h.pinned:
            return ns
        *others, last = self.streams
        self.rows += [Row(D2H, 0, 0, 0, stream, sync_ns=0) for stream in others]
        self.rows.append(Row(D2H, 0, 0, 0, last, sync_ns=ns))
        return 0

    def _copied(self, size: Price, who: str = "") -> int:
        """How long that many bytes take to the host; a file with something to copy has an engine."""
        assert self.d2h is not None
        return self.d2h.ns(amount(size, self.features, drawing(self.seed, self.step, who)))
