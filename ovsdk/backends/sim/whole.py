"""A whole run of full batches without a loop, where `maxplus.refuse` has nothing against it: `fixed`, with all that its launches tell.

    why = refuse(config(...))       why the loop is needed; nothing
    report = whole(...)             then this is what the loop would have reported, to the nanosecond and span by span

But for waits that take no time: those of the loop are told or not as its events happen to come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ...driver import LANES
from ...ledger import LAUNCH, PLAN, PREPARE, RETIRE
from ...report import Report
from ...spans import told
from ...types import SERVER, Span
from . import fixed
from .ahead import Known
from .backend import SimBackend
from .device import SimFuture
from .fixed import Stages, Times
from .lanes import APART
from .maxplus import Config
from .operators import D2H
from .rows import NO_SYNC, Program
from .servers import title

_new = tuple.__new__  # Span(...) takes twice as long
OWN_STREAM = "compute"
"""Where drivers launch."""


@attrs.frozen
class Batches:
    """`steps` times the same full batch: a launch of `kind` with `features`."""

    steps: int
    kind: str
    features: Mapping[str, float]


def config(backend: SimBackend, batches: Batches | None, depth: int, driver: str, **more: Any) -> Config:
    """What `maxplus.refuse` must know of a run; `more` are other fields of Config. No batches: a scheduler decides as it goes.

    Raises what lowering a launch raises.
    """
    prices, clock = backend.prices, backend.clock
    program = None if batches is None else clock.lowering.program(batches.kind, batches.features, 0, bool(clock.graph))
    return Config(
        programs=[] if batches is None or program is None else [program] * batches.steps,
        depth=depth,
        machine=prices.machine,
        lanes=len(LANES[driver]),
        cores=prices.host.cores,
        gil=prices.host.gil is not None,
        shared_cores=prices.hardware.shared,
        drawn=batches is not None and clock.lowering.drawn(batches.kind),
        **more,
    )


def most_spans(config: Config) -> int:
    """More spans a run of one launch cannot have: of a row on its stream, on the task queue and on the device, and of what else it does."""
    rows = config.programs[0].rows if config.programs else ()
    return len(config.programs) * (12 + sum(3 + (row.aicpu_ns > 0) + (row.sync_ns != NO_SYNC) for row in rows))


def whole(backend: SimBackend, batches: Batches, config: Config, driver: str, servers: bool = True) -> Report:
    """The report of that run; with what servers did, or sooner without. Raises CostUnknown for what has no price."""
    clock, steps = backend.clock, len(config.programs)
    ask_ns, begin_ns = clock.price_ns(PLAN, steps, None), clock.now_ns()
    stages = list(_stages(backend, batches))
    times = fixed.simulate(config.programs, stages, config.depth, driver=driver, machine=config.machine, ask_ns=ask_ns, begin_ns=begin_ns)
    notes = (f"two host lanes, {APART}",) if driver == "threads" else ()
    return fixed.report(times, Detail(backend, config.programs[0], fixed.LANES[driver][1], servers).spans, notes)


def _stages(backend: SimBackend, batches: Batches) -> Iterator[Stages]:
    """Their prices, step by step: they may be drawn."""
    for step in range(batches.steps):
        yield Stages(*(backend.clock.price_ns(stage, step, batches.features) for stage in (PLAN, PREPARE, LAUNCH, RETIRE)))


class Detail:
    """What a launch tells in each step, as its future would: of servers too, or not. `lane` launches."""

    def __init__(self, backend: SimBackend, program: Program, lane: str, servers: bool) -> None:
        machine, names = backend.prices.machine, backend.prices.streams
        self._clock, self._lane, self._servers, self._d2h_ns = backend.clock, lane, servers, program.d2h_ns
        self._known = Known(program._replace(d2h_ns=0), machine, tuple(title(name or OWN_STREAM) for name in names))
        self._told: dict[tuple[int, ...], list[tuple[str, str, int, int]]] = {}

    def spans(self, times: Times, number: int) -> Iterator[Span]:
        """Of that step."""
        since_ns, *rest = times.entries[number]
        entry = (0, *(max(0, time - since_ns) for time in rest))
        told = self._told.get(entry) or self._tell(entry)
        yield from [_new(Span, (lane, what, number, since_ns + begin, since_ns + end)) for lane, what, begin, end in told]
        if self._d2h_ns and self._servers:
            done_ns = times.trips[number].done_ns
            yield Span(f"{SERVER}{D2H}", self._known.program.kind, number, done_ns - self._d2h_ns, done_ns)

    def _tell(self, entry: tuple[int, ...]) -> list[tuple[str, str, int, int]]:
        future = SimFuture(self._clock, self._known.program, OWN_STREAM, None, None)
        future.known, future.entry, future.done_ns = self._known, entry, self._clock.now_ns()
        found = told(future.program.kind, future, self._lane)
        self._told[entry] = [fields for fields in found if self._servers or not fields[0].startswith(SERVER)]
        return self._told[entry]
