"""What a torch_npu wheel needs from CANN's libraries at load time, read from its ELF files, against what the emulator defines.

Pure Python: 64-bit little-endian ELF, the dynamic symbols of a library, all symbols of an object file. A wheel that links a
function which is not emulated still loads: the build gives it a stub that says its name and fails (see `build`).

    $ python -m ovsdk.backends.ascend.emulator.symbols [FOLDER OF torch_npu]
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

CORE = ("_C*.so", "lib/libtorch_npu.so", "lib/libtensorpipe.so", "lib/libnpu_profiler.so")
"""Loaded by `import torch_npu`. Its other libraries are loaded by what is not emulated: ATB and torchair."""
CANN = re.compile(r"(acl|rt[A-Z]|Msprof|Hccl|hccl|ge[A-Z])")
"""How the names of CANN's C functions begin."""
SYMBOLS, DYNAMIC_SYMBOLS = 2, 11
"""Types of sections, as ELF numbers them."""


class Symbol(NamedTuple):
    """A global symbol; `defined` here, or needed from elsewhere."""

    name: str
    defined: bool


def symbols(file: Path) -> frozenset[Symbol]:
    """The global symbols of a library (dynamic ones) or an object file. Raises ValueError for what is no 64-bit ELF file."""
    data = file.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{str(file)!r} is no 64-bit little-endian ELF file: it begins with {data[:6]!r}")
    sections = list(_sections(data))
    kinds = {kind for kind, *_ in sections}
    wanted = DYNAMIC_SYMBOLS if DYNAMIC_SYMBOLS in kinds else SYMBOLS
    tables = [(at, size, sections[link]) for kind, link, at, size in sections if kind == wanted]
    return frozenset(symbol for at, size, names in tables for symbol in _table(data, at, size, names[2]))


def _sections(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Type, linked section, offset and size of each section."""
    (at,) = struct.unpack_from("<Q", data, 40)
    each, count = struct.unpack_from("<HH", data, 58)
    for i in range(count):
        _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", data, at + i * each)
        yield kind, link, offset, size


def _table(data: bytes, at: int, size: int, names: int) -> Iterator[Symbol]:
    for name, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[at : at + size]):
        if info >> 4 and name:  # not local
            start = names + name
            yield Symbol(data[start : data.index(b"\0", start)].decode(), section != 0)


def defined(*files: Path) -> frozenset[str]:
    """What the files define between them."""
    return frozenset(symbol.name for file in files for symbol in symbols(file) if symbol.defined)


def linked(wheel: Path) -> frozenset[str]:
    """The CANN functions that the core libraries of an installed torch_npu need at load time. `wheel` is its folder."""
    files = [file for pattern in CORE for file in sorted(wheel.glob(pattern))]
    needed = {symbol.name for file in files for symbol in symbols(file) if not symbol.defined}
    return frozenset(filter(CANN.match, needed - defined(*files)))


def missing(wheel: Path, *emulated: Path) -> tuple[str, ...]:
    """What the wheel links and the emulator's own objects do not define, sorted: a call of it fails with its name."""
    return tuple(sorted(linked(wheel) - defined(*emulated)))


def installed_wheel() -> Path | None:
    """The folder of the installed torch_npu, found without importing it."""
    spec = PathFinder.find_spec("torch_npu")
    return Path(spec.origin).parent if spec and spec.origin else None


def main() -> None:
    """Print what the wheel links, each name with whether it is emulated."""
    from .build import runtime_objects  # imports this module

    wheel = Path(sys.argv[1]) if len(sys.argv) > 1 else installed_wheel()
    if wheel is None:
        sys.exit("torch_npu is not installed here: name the folder of one")
    stubs = missing(wheel, *runtime_objects())
    print(f"{wheel}: {len(linked(wheel))} CANN functions linked, {len(stubs)} of them not emulated (a call fails and says so):")
    print("\n".join(stubs))


if __name__ == "__main__":
    main()
