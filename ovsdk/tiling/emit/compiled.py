"""A derivation compiled for this host: g++ on first use, kept in ovsdk's cache under a name made of its text, flags and compiler.

Called with the interpreter's lock held: what takes microseconds is not worth giving it away, and getting it back may take milliseconds.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from array import array
from collections.abc import Callable, MutableSequence, Sequence
from functools import cache
from pathlib import Path

from ...cache import cache_folder
from ...errors import ConfigError
from .header import header
from .reading import read

FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared")
ENTRY = '\nextern "C" void derive(const int64_t *a, const int64_t *v, int64_t *out)\n{{\n    ovsdk_{name}::{derive}(a, v, out);\n}}\n'
INT64 = "q"
Derive = Callable[[Sequence[int], Sequence[int], MutableSequence[int]], None]


def compiled(name: str, derive: Derive) -> Derive:
    """The same function in C++: `derive(a, v, out)`, fastest on `array("q", ...)`, which it reads and writes in place.

    It trusts its arguments: lengths are not checked, and a division by 0 ends the process. Raises ConfigError for what is outside the
    subset, and where there is no C++ compiler.
    """
    library = ctypes.PyDLL(str(build(header(name, derive) + ENTRY.format(name=name, derive=read(derive).entry.spelled), name)))
    function = library.derive
    function.argtypes, function.restype = (ctypes.c_void_p,) * 3, None

    def run(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
        numbers, values, record = words(a), words(v), words(out)
        function(numbers.buffer_info()[0], values.buffer_info()[0], record.buffer_info()[0])
        if record is not out:
            out[:] = record

    return run


def words(values: Sequence[int]) -> array[int]:
    """Values side by side in memory: themselves if they are so already."""
    return values if isinstance(values, array) and values.typecode == INT64 else array(INT64, values)


def build(text: str, name: str) -> Path:
    """A shared library of this C++ text, built unless it is there. Raises ConfigError without a compiler, and where it fails."""
    key = hashlib.sha256("\0".join((text, *FLAGS, _version(_compiler()))).encode()).hexdigest()[:16]
    to = cache_folder() / "tiling" / f"{key}-{name}.so"
    if not to.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent) as folder:
            _make(text, Path(folder), to)
    return to


def _make(text: str, folder: Path, to: Path) -> None:
    """Run the compiler; the library appears whole or not at all."""
    source, made = folder / "tiling.cpp", folder / "tiling.so"
    source.write_text(text.replace("#pragma once\n", ""))
    done = subprocess.run([_compiler(), *FLAGS, str(source), "-o", str(made)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{_compiler()} cannot build the tiling {to.name}:\n{done.stderr[-4000:]}")
    made.replace(to)


def _compiler() -> str:
    return os.environ.get("CXX") or "g++"


@cache
def _version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as absent:
        raise ConfigError(
            f"no C++ compiler: {compiler!r} does not run here; install g++ or set CXX, or tile in Python, which gives the same records"
        ) from absent
