"""What torch_npu does not tell of a chip: its on-chip memory, by architecture. Sizes in bytes, from CANN's public guides."""

from __future__ import annotations

from collections.abc import Mapping

KIB = 1024
A2 = {"ub_bytes": 192 * KIB, "l1_bytes": 512 * KIB, "l0a_bytes": 64 * KIB, "l0b_bytes": 64 * KIB, "l0c_bytes": 128 * KIB}
"""NPU architecture 2201: Atlas A2 and A3."""
CHIPS: Mapping[str, Mapping[str, int]] = {"Ascend910B": A2, "Ascend910_93": A2}
"""Beginning of a SoC's name -> its on-chip memory, as far as we know it."""


def on_chip(soc: str) -> Mapping[str, int]:
    """UB of a vector core, L1 and L0 of a cube core; empty for a chip that is not in the table."""
    return next((sizes for name, sizes in CHIPS.items() if soc.startswith(name)), {})
