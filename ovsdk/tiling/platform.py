"""What a kernel is cut for: cores, memories and alignments of an accelerator. One table; no other file has a figure of a device.

Sources. Ascend: cores and sizes from `SoCInfo` and `AICoreSpec` of the runtime's own configuration, hicann/runtime
src/platform/platform_config/*.ini; what the runtime and the compiler keep for themselves (256 B of UB and of L1; 8 KiB of UB unless
a kernel is compiled with `--cce-disable-asc-reserved-ubuf`) and the line of L2, 512 B: the asc-devkit guide, "NPU architecture 2201".
CUDA: the CUDA C++ programming guide, technical specifications of compute capability 9.0, and NVIDIA's H200 data sheet.
Read, not measured: nothing here was run on an NPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ..errors import TilingError, guess

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KIB, MIB = 1024, 1024 * 1024


@attrs.frozen
class Platform:
    """One accelerator. Sizes in bytes."""

    name: str
    cube_cores: int
    """Cores that multiply matrices (AIC; on CUDA, SMs)."""
    vector_cores: int
    """Cores for everything else (AIV; on CUDA, SMs; where one core does both, the same)."""
    aicpus: int
    """CPU cores on the device that may run tiling functions; 0: none."""
    ub_bytes: int
    """Unified buffer of a vector core; on CUDA, shared memory of a block."""
    ub_reserved: int
    l1_bytes: int
    l1_reserved: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int
    bias_bytes: int
    l2_bytes: int
    block_bytes: int = 32
    """Alignment of a copy into UB and L1."""
    line_bytes: int = 512
    """Shortest contiguous read of global memory at full speed: a line of L2."""
    vector_bytes: int = 256
    """One repeat of the vector unit."""
    fractal: int = 16
    """Edge of the cube unit's blocks, in elements: fractal x fractal outputs and `block_bytes` of K are one cycle."""
    l2_rate: int = 110
    """Bytes that a core reads from L2 in a cycle."""
    source: str = ""

    @property
    def ub(self) -> int:
        """Bytes of UB that a tiling may use."""
        return self.ub_bytes - self.ub_reserved

    @property
    def l1(self) -> int:
        """Bytes of L1 that a tiling may use."""
        return self.l1_bytes - self.l1_reserved


A2_RESERVED, A2_L1_RESERVED = 8 * KIB + 256, 256
A2 = {
    "aicpus": 6,
    "ub_bytes": 192 * KIB,
    "ub_reserved": A2_RESERVED,
    "l1_bytes": 512 * KIB,
    "l1_reserved": A2_L1_RESERVED,
    "l0a_bytes": 64 * KIB,
    "l0b_bytes": 64 * KIB,
    "l0c_bytes": 128 * KIB,
    "bias_bytes": KIB,
    "l2_bytes": 192 * MIB,
}
"""What the parts of NPU architecture 2201 (A2 and A3) have in common."""
ROWS = (
    Platform("910B1", 24, 48, **A2, source="Ascend910B1.ini"),
    Platform("910B2", 24, 48, **A2, source="Ascend910B2.ini"),
    Platform("910B3", 20, 40, **A2, source="Ascend910B3.ini"),
    Platform("910B4", 20, 40, **A2 | {"l2_bytes": 96 * MIB}, source="Ascend910B4.ini"),
    Platform("910_93", 24, 48, **A2, source="Ascend910_9391.ini: one die of an A3"),
    Platform(
        "310P",
        8,
        15,
        aicpus=7,
        ub_bytes=256 * KIB,
        ub_reserved=A2_RESERVED,
        l1_bytes=1024 * KIB,
        l1_reserved=A2_L1_RESERVED,
        l0a_bytes=64 * KIB,
        l0b_bytes=64 * KIB,
        l0c_bytes=256 * KIB,
        bias_bytes=0,
        l2_bytes=16 * MIB,
        l2_rate=114,
        source="Ascend310P3.ini: 8 AI cores and 7 vector cores; what is reserved, and the line: taken from 2201",
    ),
    Platform(
        "950",
        36,
        72,
        aicpus=8,
        ub_bytes=248 * KIB,
        ub_reserved=256,
        l1_bytes=512 * KIB,
        l1_reserved=A2_L1_RESERVED,
        l0a_bytes=64 * KIB,
        l0b_bytes=64 * KIB,
        l0c_bytes=256 * KIB,
        bias_bytes=4 * KIB,
        l2_bytes=128 * MIB,
        l2_rate=100,
        source="Ascend950PR_9599.ini, whose UB of 256 KiB is told without the 8 KiB; other 950s have fewer cores; the line: of 2201",
    ),
    Platform(
        "h200",
        132,
        132,
        aicpus=0,
        ub_bytes=228 * KIB,
        ub_reserved=KIB,
        l1_bytes=228 * KIB,
        l1_reserved=KIB,
        l0a_bytes=64 * KIB,
        l0b_bytes=64 * KIB,
        l0c_bytes=128 * KIB,
        bias_bytes=0,
        l2_bytes=50 * MIB,
        block_bytes=16,
        line_bytes=128,
        vector_bytes=128,
        l2_rate=64,
        source="CUDA, compute capability 9.0: UB, L1: the shared memory of an SM; L0A, L0B, L0C: its registers; l2_rate: assumed",
    ),
)
PLATFORMS: Mapping[str, Platform] = {row.name: row for row in ROWS}
"""Every row by name."""
DEFAULT = "910B3"


def platform_named(name: str = DEFAULT) -> Platform:
    """The platform of that name; "Ascend910B3" and "910b3" mean 910B3. Raises TilingError."""
    found = PLATFORMS.get(name) or _BY_ALIAS.get(name.lower().removeprefix("ascend"))
    if found is None:
        raise TilingError(f"unknown SoC {name!r}{guess(name, PLATFORMS)}; known: {', '.join(PLATFORMS)}; or give a file: see load_platform")
    return found


def load_platform(file: str | Path) -> Platform:
    """A platform from a file, TOML or JSON: its `name`, and `base`, a row of the table from which it takes what it does not say.

        name = "910B3-half"
        base = "910B3"
        vector_cores = 20

    Without `base` every figure is needed. Raises TilingError for a file that cannot be read, an unknown key, a figure that is none.
    """
    path = Path(file)
    given = _read(path)
    base = attrs.asdict(platform_named(str(given.pop("base")))) if "base" in given else {}
    known = {field.name: field for field in attrs.fields(Platform)}
    for key, value in given.items():
        if key not in known:
            raise TilingError(f"{path.name}: unknown key {key!r}{guess(key, known)}; allowed: base, {', '.join(known)}")
        if key not in ("name", "source") and (type(value) is not int or value < 0):
            raise TilingError(f"{path.name}: {key} is a number of at least 0; got {value!r}")
    missing = [field.name for field in known.values() if field.default is attrs.NOTHING and field.name not in base | given]
    if missing:
        raise TilingError(f"{path.name}: no {', '.join(missing)}; give it, or a `base` from: {', '.join(PLATFORMS)}")
    return Platform(**base | given)


_BY_ALIAS = {row.name.lower(): row for row in ROWS}


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        found = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except OSError as error:
        raise TilingError(f"platform file {str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TilingError(f"platform file {str(path)!r} is neither TOML nor JSON: {error}") from error
    if not isinstance(found, dict):
        raise TilingError(f"platform file {str(path)!r} is a table of figures; got {found!r}")
    return found
