"""The slot scheduler of a workload on priced launches: a request has a slot from its prefill to its last token.

    ovsdk simulate prices.toml --scheduler slots --arrivals poisson:20 --prompt fixed:512 --output geometric:64

A price file needs two launches for it: `prefill`, once for each prompt, and `decode`, once a step for all who go on. Both, and the
stages, may be priced by the features batch, tokens and kv_tokens. Nothing is computed: every answer is as long as its item says.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from .models.slots import OUTPUTS, Batch, Output, SlotScheduler
from .saturated import nothing
from .types import Answer, Ask, Launch
from .workloads import slot_request


class Slotted(SlotScheduler):
    """Serves items of a workload as they come, `slots` at a time, with at most `prefills` new ones a step."""

    def __init__(self, slots: int = 8, prefills: int = 1) -> None:
        super().__init__(slots=slots, prefills=prefills, closed=False)

    @property
    def served(self) -> list[Output]:
        """See `ovsdk.metrics.Served`."""
        return list(self.outputs.values())

    def plan(self, ask: Ask) -> Batch | Answer:
        """See `SlotScheduler.plan`."""
        return super().plan(ask._replace(arrivals=tuple(map(slot_request, ask.arrivals))))


class SlotLaunches:
    """The executor: a launch for each prefill, then one for the decode. On a device that executes, it does nothing there."""

    def prepare(self, step: int, batch: Batch) -> Batch:
        """Nothing but what the price file says."""
        return batch

    def launch(self, step: int, inputs: Batch) -> Launch | tuple[Launch, ...]:
        """See `Batch.launches`."""
        launches = tuple(_launches(inputs))
        return launches if len(launches) > 1 else launches[0]


def _launches(batch: Batch) -> Iterator[Launch]:
    for row in batch.prefills:
        yield _launch("prefill", Batch(prefills=(row,)), 1)
    if batch.decodes:
        yield _launch("decode", Batch(decodes=batch.decodes), 1 + max(row.slot for row in batch.decodes))


def _launch(kind: str, part: Batch, rows: int) -> Launch:
    return Launch(kind, fn=nothing, features=part.features, stub=partial(_output, rows))


def _output(rows: int) -> dict[str, list[Any]]:
    """A token for each row, and nothing else that a model would say of it."""
    return dict(zip(OUTPUTS, ([1] * rows, [0.0] * rows, [()] * rows, [()] * rows), strict=True))
