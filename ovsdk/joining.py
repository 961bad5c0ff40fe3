"""A scheduler of a workload on priced launches: who has come joins the next step, and gets a token a step until done.

What a latency study of a price file runs where no model is at hand; `ovsdk.saturated.Priced` is the executor for it. How
long an answer is is known beforehand, so nothing is overrun, and a place is free as soon as its last step is planned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import attrs

from .errors import ConfigError
from .saturated import PricedBatch
from .traces import Item
from .types import CLOSED, IDLE, Answer, Ask


@attrs.frozen
class Joined:
    """A request that has joined: see `ovsdk.metrics.Served`."""

    id: int
    arrived: int
    steps: range


class Joining:
    """Serves `count` items of a workload, then closes. `served` has them in the order in which they joined.

    places      most requests in a step; None: no limit
    full        True: each step is a full batch of other work that they join, priced by `features` alone.
                False: a step is only they, priced with the feature `batch`, and without any the device has no work

    Raises ConfigError unless count and places are at least 1.
    """

    def __init__(
        self, count: int, kind: str = "decode", features: Mapping[str, float] | None = None, places: int | None = None, full: bool = True
    ) -> None:
        if count < 1 or (places is not None and places < 1):
            raise ConfigError(f"count and places are at least 1; got count={count!r}, places={places!r}")
        self.served: list[Joined] = []
        self._count, self._places, self._full = count, places, full
        self._batch = PricedBatch(kind, dict(features or {}))
        self._waiting: deque[tuple[Item, int]] = deque()
        self._stops: list[int] = []
        """For each request that has joined and is not done: the step after its last."""

    def plan(self, ask: Ask) -> PricedBatch | Answer:
        """A batch while there is a request in it, or the batch is full anyway."""
        self._waiting += ((item, ask.number) for item in ask.arrivals)
        self._stops = [stop for stop in self._stops if stop > ask.step]
        while self._waiting and (self._places is None or len(self._stops) < self._places):
            self._join(*self._waiting.popleft(), ask.step)
        if not self._stops and len(self.served) == self._count:
            return CLOSED
        if self._full:
            return self._batch
        return PricedBatch(self._batch.kind, {**self._batch.features, "batch": len(self._stops)}) if self._stops else IDLE

    def retire(self, step: int, batch: PricedBatch, result: object) -> None:
        """Nothing follows from a result."""

    def _join(self, item: Item, ask: int, step: int) -> None:
        steps = range(step, step + item.output)
        self.served.append(Joined(item.id, ask, steps))
        self._stops.append(steps.stop)
