"""The scheduler and executor of a price file: always the same full batch, work that is only priced.

What a policy-free simulation runs: how long does a step take when there is always a next one? Both come in through the
hooks, as "saturated" and "priced".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .errors import ConfigError
from .types import CLOSED, Answer, Ask, Launch


@attrs.frozen
class PricedBatch:
    """A batch that is nothing but what prices it."""

    kind: str
    features: Mapping[str, float]


class Saturated:
    """`steps` times the same batch: a launch of `kind` with `features`. Raises ConfigError unless steps >= 1."""

    def __init__(self, steps: int = 64, kind: str = "decode", features: Mapping[str, float] | None = None) -> None:
        if steps < 1:
            raise ConfigError(f"a saturated run has at least 1 step; got steps={steps!r}")
        self.steps, self.batch = steps, PricedBatch(kind, dict(features or {}))

    def plan(self, ask: Ask) -> PricedBatch | Answer:
        """The batch, until there have been `steps` of it."""
        return self.batch if ask.step < self.steps else CLOSED

    def retire(self, step: int, batch: PricedBatch, result: Any) -> None:
        """Nothing follows from a result."""


class Priced:
    """Launches what a PricedBatch names; on a device that executes, it does nothing there."""

    _batch: PricedBatch | None = None

    def prepare(self, step: int, batch: PricedBatch) -> PricedBatch:
        """Nothing but what the price file says."""
        return batch

    def launch(self, step: int, inputs: PricedBatch) -> Launch:
        """One launch of the batch's kind."""
        if inputs is not self._batch:
            self._batch, self._launch = inputs, Launch(inputs.kind, fn=nothing, features=inputs.features)
        return self._launch


def nothing() -> None:
    """What a priced launch computes."""
