"""Products of tiles with sums in float32, also in Triton's interpreter.

The interpreter keeps bfloat16 as bits in uint16, and its `dot` multiplies those (triton 3.9, runtime/interpreter.py, create_dot): there,
and there alone, tiles are made float32 before.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
# Triton's values have no types that a checker knows, and triton itself ships none.
from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def dot(left, right):
    """left @ right, in float32 without TF32."""
    if INTERPRETED:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")
