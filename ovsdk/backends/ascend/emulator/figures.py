"""Figures for the emulated NPU in one value: what `ovsdk emulate` passes to child processes, and what a price file comes to.

A price file prices operators of a model by names of its own, and by features of a launch; the emulator prices aclnn operators
by their names. So each priced operator is given the aclnn operator that plays it, and is priced for one set of features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ....errors import ConfigError, refuse

H2D, D2H = "memcpy_h2d", "memcpy_d2h"


@attrs.frozen
class Figures:
    """What tasks take and what the machine has; each mapping may be empty. See `Emulator.latency`, `.copies`, `.machine`."""

    latencies: Mapping[str, tuple[float, float]] = attrs.field(factory=dict)
    """Name of a task -> us on the cores, us on the AICPU before."""
    copies: Mapping[str, tuple[float, float]] = attrs.field(factory=dict)
    """Name of a copy -> latency in us, GB/s."""
    machine: Mapping[str, int] = attrs.field(factory=dict)

    def apply(self, emulator: Any) -> None:
        """Set them all."""
        for name, (us, aicpu_us) in self.latencies.items():
            emulator.latency(name, us, aicpu_us=aicpu_us)
        for name, (latency_us, gb_per_s) in self.copies.items():
            emulator.copies(name, latency_us, gb_per_s)
        emulator.machine(**self.machine)


def figures(prices: Any, operators: Mapping[str, str], features: Mapping[str, float] | None = None) -> Figures:
    """The figures of `prices`, which `ovsdk.backends.sim.prices.load_prices` has read.

    `operators`: name in the price file -> aclnn operator that plays it. `features` beside the defaults that all launch kinds
    share. An operator has the placement in force: its device and AICPU time count, host and tiling times are torch_npu's own
    here. Raises ConfigError for an unknown or drawn price and two that one aclnn operator should play; CostUnknown as prices do.
    """
    for name in operators:
        if name not in prices.ops:
            refuse("operator of the price file", name, prices.ops)
    if len(set(operators.values())) < len(operators):
        raise ConfigError(f"one aclnn operator cannot have two prices; got {dict(operators)!r}")
    known = {**prices.features, **(features or {})}
    hardware = prices.hardware
    machine = {"launch_latency_ns": hardware.rows.latency_ns, "aicpu_workers": hardware.rows.aicpu_workers}
    machine |= {"queue_capacity": hardware.rows.device, "shared_cores": int(hardware.shared)}
    engines = {H2D: hardware.h2d, D2H: hardware.d2h}
    return Figures(
        latencies={aclnn: _times(prices.ops[name], known) for name, aclnn in operators.items()},
        copies={name: (engine.latency_ns / 1e3, engine.gb_per_s) for name, engine in engines.items() if engine is not None},
        machine=machine,
    )


def _times(op: Any, features: Mapping[str, float]) -> tuple[float, float]:
    placement = op.placements[op.placement]
    return _us(op.device, features) + _us(placement.device, features), _us(op.aicpu, features) + _us(placement.aicpu, features)


def _us(price: Any, features: Mapping[str, float]) -> float:
    if price.drawn:
        raise ConfigError(f"{price.where} is drawn, and the emulated NPU takes a number: name another price, or set Emulator.latency")
    return float(price.value(features, lambda _: 0.0))
