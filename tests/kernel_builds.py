"""That the Triton kernels compile for a GPU, which need not be there. In a process of its own by test_tiling_kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ovsdk.tiling.kernels import grouped_matmul, reduce, split_kv

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    **dict.fromkeys(["x", "w", "y", "q", "k", "v", "out"], "*bf16"),
    **dict.fromkeys(["a", "axes", "group_list", "lengths", "record"], "*i64"),
    **dict.fromkeys(["partial", "part", "top_of", "sum_of"], "*fp32"),
    **dict.fromkeys(["count", "groups", "M", "N", "K", "EXPERTS", "sequences", "HEADS", "CACHE", "GROUP", "DIM"], "i32"),
    "scale": "fp32",
}
SUM = {"PROGRAMS": 132, "KEPT": 64, "GONE": 64}
GROUPED = {"PROGRAMS": 132, "BM": 64, "BN": 64, "BK": 32}
DECODE = {"KV_BLOCK": 512, "PROGRAMS": 132, "G": 16, "D": 128}
ONES = {"sequences": 1, "HEADS": 1, "GROUP": 1}
"""What Triton makes a constant of its own accord: integers that are 1."""
CASES = {
    "sum": (reduce._sum, SUM),
    "sum over one axis": (reduce._sum, {**SUM, "count": 1}),
    "add groups": (reduce._add_groups, SUM),
    "pairs": (grouped_matmul._grouped, {**GROUPED, "KIND": 2}),
    "one group": (grouped_matmul._grouped, {**GROUPED, "KIND": 0, "groups": 1, "EXPERTS": 1}),
    "work by a table": (split_kv._work, {**DECODE, "READ": True, "TILE": 64}),
    "work of one row": (split_kv._work, {**DECODE, **ONES, "READ": False, "TILE": 64}),
    "join by a table": (split_kv._join, {**DECODE, "READ": True}),
    "join of one row": (split_kv._join, {**DECODE, **ONES, "READ": False}),
}


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("case", CASES)
def test_a_kernel_compiles(case: str) -> None:
    kernel, constants = CASES[case]
    assert "ptx" in built(kernel, constants).asm


def built(kernel: Any, constants: Mapping[str, Any]) -> Any:
    names: list[str] = kernel.arg_names
    signature = {name: "constexpr" if name in constants else TYPES[name] for name in names}
    return triton.compile(ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}), target=HOPPER)
