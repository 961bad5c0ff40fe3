"""A derivation as one C++17 header, the same text on host and AICPU.

Local arrays stand on the stack; those of a size known only when run are vectors, which a GPU or an AI Core does not have.
"""

from __future__ import annotations

from collections.abc import Callable

from .reading import read
from .statements import write

PRELUDE = """\
// What stands before every function; a compiler for a device may need its own words here.
#ifndef OVSDK_FUNCTION
#define OVSDK_FUNCTION inline
#endif

namespace ovsdk_{name} {{

OVSDK_FUNCTION constexpr int64_t min(int64_t x, int64_t y) {{ return y < x ? y : x; }}
OVSDK_FUNCTION constexpr int64_t max(int64_t x, int64_t y) {{ return x < y ? y : x; }}
OVSDK_FUNCTION constexpr int64_t abs(int64_t x) {{ return x < 0 ? -x : x; }}
"""


def header(name: str, derive: Callable[..., None]) -> str:
    """`ovsdk_<name>::<derive>(a, v, out)` and all that it needs. Raises ConfigError, with file and line, for what is outside the subset."""
    unit = read(derive)
    constants = "\n".join(f"constexpr int64_t {constant} = {number};" for constant, number in unit.constants.items())
    functions = [write(function, unit) for function in unit.functions.values()]
    parts = [_head(name, derive, functions), PRELUDE.format(name=name), constants + "\n" if constants else "", *functions]
    return "\n".join(part for part in parts if part) + f"\n}}  // namespace ovsdk_{name}\n"


def _head(name: str, derive: Callable[..., None], functions: list[str]) -> str:
    made = f"// The tiling of {name}: {derive.__module__}.{derive.__qualname__}, written in C++17 by `ovsdk tile emit`. Change it there.\n"
    vector = "#include <vector>\n" if any("std::vector" in text for text in functions) else ""
    return f"{made}#pragma once\n\n#include <cstdint>\n{vector}"
