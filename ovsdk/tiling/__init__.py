"""Tiling: how a kernel's work is cut, where that is computed, and what it costs there. Torch is not imported here.

spec = tiling_spec("reduce", [(8, 512, 4096)], "float16", capacity=8)
Tiler("910B3").tile(spec)                        # by policy on the device: what to launch with
Tiler("910B3").tile(spec, values=[-1])           # with its record
"""

from .operator import OPERATORS, Operator, Tile, WorstCase, loads, operator_named, plan, worst_case
from .platform import Platform, load_platform, platform_named
from .spec import PLACEMENTS, Field, Tiling, TilingSpec, c_struct, from_bytes, tiling_spec
from .tiler import Tiler, choose, steps_s

__all__ = [
    "OPERATORS",
    "PLACEMENTS",
    "Field",
    "Operator",
    "Platform",
    "Tile",
    "Tiler",
    "Tiling",
    "TilingSpec",
    "WorstCase",
    "c_struct",
    "choose",
    "from_bytes",
    "load_platform",
    "loads",
    "operator_named",
    "plan",
    "platform_named",
    "steps_s",
    "tiling_spec",
    "worst_case",
]
