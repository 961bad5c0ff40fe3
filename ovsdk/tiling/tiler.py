"""Tilings at run time: where each is computed, by policy, and plans that are kept.

`auto` never synchronises where another placement exists: on the host if the host has the values, else on the device, and there the
placement with which the simulator's steps are shortest, or the first of PREFERENCE. HOST_VALUE is what is left to an operator that has
nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CostUnknown, TilingError, guess
from .operator import OPERATORS, Operator, WorstCase, operator_named, plan, worst_case
from .platform import DEFAULT, Platform, load_platform, platform_named
from .spec import AICPU, DEVICE_METADATA, HOST_SHAPE, HOST_VALUE, IN_KERNEL, PLACEMENTS, Tiling, TilingSpec

AUTO = "auto"
PREFERENCE = (DEVICE_METADATA, IN_KERNEL, AICPU)
"""On the device, without prices: metadata works in eager mode and in graphs, on every kind of device; AICPU only on some NPUs."""


def choose(op: Operator, platform: Platform, known: bool, steps_s: Mapping[str, float] | None = None) -> str:
    """The placement that `auto` takes. `known`: the host has the values. `steps_s`: seconds of a step with each placement, see below."""
    if known or not op.values:
        return HOST_SHAPE
    possible = [name for name in PREFERENCE if name in op.placements and (name != AICPU or platform.aicpus)]
    priced = [name for name in possible if name in (steps_s or {})]
    if steps_s and priced:
        return min(priced, key=steps_s.__getitem__)
    return possible[0] if possible else HOST_VALUE


def steps_s(prices: Any, op: str, kind: str = "", depth: int = 2, steps: int = 16) -> dict[str, float]:
    """Seconds of a step in the steady state with each placement that a price file lists for its operator `op`. Simulated.

    `prices`, `kind`: as for `ovsdk.simulation.simulate`. Raises CostUnknown if the file has no such operator.
    """
    from ..backends.sim.prices import load_prices  # only where prices are asked for
    from ..plugins import plugin_manager
    from ..simulation import simulate

    priced, manager = load_prices(prices), plugin_manager()
    if op not in priced.ops:
        raise CostUnknown(f"no price for operator {op!r}{guess(op, priced.ops)}; priced: {', '.join(sorted(priced.ops))}")
    reports = {name: simulate(manager, priced, kind, depth=depth, steps=steps, tilings={op: name}) for name in priced.ops[op].placements}
    return {name: report.step_s for name, report in reports.items() if report.step_s is not None}


class Tiler:
    """Cuts kernels for one platform. A framework's own is anything with `tile` and `placements`; it may as well hold one of these.

    `platform`: a name, a file (.toml, .json) or a Platform. `placement`: `auto`, or one for all operators, or a mapping by operator.
    `prices`: a price file that `auto` asks the simulator with; `priced_as`: operator -> its name there, where that differs.
    `operators`: more of them, or others in place of those of this package. `kept`: most plans that are kept.
    """

    def __init__(
        self,
        platform: str | Path | Platform = DEFAULT,
        placement: str | Mapping[str, str] = AUTO,
        prices: Any = None,
        priced_as: Mapping[str, str] | None = None,
        operators: Iterable[Operator] = (),
        kept: int = 4096,
    ) -> None:
        self.platform = find_platform(platform)
        self.placements: dict[str, str] = {}
        """Operator -> where it was tiled last: for a Report."""
        self._own = {one.name: one for one in operators}
        self._wanted = {name: _known(placement) for name in self.known} if isinstance(placement, str) else self._each(placement)
        self._prices, self._priced_as = prices, dict(priced_as or {})
        self._steps_s: dict[str, Mapping[str, float]] = {}
        self._kept = functools.lru_cache(kept)(self._plan)

    @property
    def known(self) -> tuple[str, ...]:
        """Names of the operators."""
        return tuple(dict.fromkeys((*OPERATORS, *self._own)))

    def tile(self, spec: TilingSpec, values: Sequence[int] | None = None) -> Tiling:
        """The tiling of `spec`. `values`: those of its value input, if the host has them; a plan is kept for each.

        Raises TilingError, see `operator.plan`.
        """
        return self._kept(spec, None if values is None else tuple(values))

    def worst_case(self, spec: TilingSpec) -> WorstCase:
        """What to allocate, whatever the values."""
        return worst_case(self.operator(spec.op), spec, self.platform)

    def operator(self, name: str) -> Operator:
        """The operator of that name: one that was given, or this package's. Raises TilingError."""
        return self._own.get(name) or operator_named(name)

    def _plan(self, spec: TilingSpec, values: tuple[int, ...] | None) -> Tiling:
        op = self.operator(spec.op)
        placement = self._placement(op, values is not None)
        self.placements[op.name] = placement
        return plan(op, spec, self.platform, placement, values)

    def _placement(self, op: Operator, known: bool) -> str:
        wanted = self._wanted.get(op.name, AUTO)
        if wanted != AUTO:
            return wanted
        return choose(op, self.platform, known, self._simulated(op) if op.values and not known else None)

    def _simulated(self, op: Operator) -> Mapping[str, float] | None:
        if self._prices is None:
            return None
        if op.name not in self._steps_s:
            self._steps_s[op.name] = steps_s(self._prices, self._priced_as.get(op.name, op.name))
        return self._steps_s[op.name]

    def _each(self, placements: Mapping[str, str]) -> dict[str, str]:
        for name in placements:
            if name not in self.known:
                raise TilingError(f"a placement for operator {name!r}{guess(name, self.known)}; known: {', '.join(self.known)}")
        return {name: _known(placement) for name, placement in placements.items()}


def find_platform(platform: str | Path | Platform) -> Platform:
    """A Platform, from a row's name or a file (.toml, .json). Raises TilingError."""
    if isinstance(platform, Platform):
        return platform
    return load_platform(platform) if Path(platform).suffix in (".toml", ".json") else platform_named(str(platform))


def _known(placement: str) -> str:
    if placement != AUTO and placement not in PLACEMENTS:
        raise TilingError(f"unknown placement {placement!r}{guess(placement, PLACEMENTS)}; allowed: {AUTO}, {', '.join(PLACEMENTS)}")
    return placement
