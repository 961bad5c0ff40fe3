"""The emulator's shared libraries, built with g++ on first use into ovsdk's cache.

Everything there is named by what it was made from: an object file by its text, the headers of ours in it, the flags, compiler
and torch version; a library by its objects. So nothing is built twice, and a new source, compiler or torch makes new files beside
the old. A library has CANN's name (SONAME); torch_npu finds it because it is loaded already (see `activate`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path

import attrs

from ....cache import cache_folder
from ....errors import ConfigError
from . import symbols

SOURCES = Path(__file__).parent / "src"
FLAGS = ("-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
OWN = ("-std=c++17",)
OPERATORS, COMPILER = "operators*.cpp", "compiler.cpp"
"""Sources of libraries other than libascendcl.so, which has all the rest."""
EMPTY = ("libge_runner.so", "libgraph.so", "libacl_tdt_channel.so", "libhccl.so")
"""Libraries that torch_npu names and needs nothing of."""
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


@attrs.frozen
class Library:
    """A shared library to be made of `sources`, with its SONAME. `link` are libraries and options of the linker."""

    name: str
    sources: tuple[Path, ...]
    compile: tuple[str, ...] = OWN
    link: tuple[str, ...] = ()


def build() -> list[Path]:
    """Build what is not built yet; the libraries in the order in which they must be loaded.

    Raises ConfigError without g++, torch or torch_npu, and where g++ fails.
    """
    with _alone():
        runtime = _runtime()
        small = [*(Library(name, ()) for name in EMPTY), Library("libacl_op_compiler.so", (SOURCES / COMPILER,))]
        return [runtime, *map(_shared, small), _shared(_operators(runtime))]


def runtime_objects() -> list[Path]:
    """The object files of libascendcl.so without its stubs."""
    others = {file for pattern in (OPERATORS, COMPILER) for file in SOURCES.glob(pattern)}
    return _objects(tuple(sorted(set(SOURCES.glob("*.cpp")) - others)), OWN)


def _runtime() -> Path:
    objects = runtime_objects()
    wheel = symbols.installed_wheel()
    if wheel is None:
        raise ConfigError("torch_npu is not installed here, and the emulated NPU is for it: pip install torch-npu==2.13.0")
    stubs = _written("stubs.cpp", '#include "runtime.h"\n' + "".join(map(_stub, symbols.missing(wheel, *objects))))
    return _linked("libascendcl.so", [*objects, *_objects((stubs,), OWN)], ("-lpthread",))


def _stub(name: str) -> str:
    """A function that says its name and fails. It needs no headers, and its parameters do not matter to the caller."""
    calls = f'return emu::not_emulated("{name}");'
    return f'extern "C" __attribute__((visibility("default"))) int {name}() {{ {calls} }}\n'


def _operators(runtime: Path) -> Library:
    torch = _folder("torch")
    headers = (f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", "-D_GLIBCXX_USE_CXX11_ABI=1", "-Wno-unused-parameter")
    libraries = (str(runtime), f"-L{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib")
    sources = tuple(sorted(SOURCES.glob(OPERATORS)))
    # They only call ATen: optimised as the rest is they would compile for half as long again, and run as fast.
    return Library("libopapi.so", sources, ("-std=c++20", "-O1", *headers), libraries if sources else ())


def _shared(library: Library) -> Path:
    return _linked(library.name, _objects(library.sources, library.compile), library.link)


# ---- steps: each gives the path of a file that is named by what it was made from ----


def _objects(sources: Sequence[Path], flags: Sequence[str]) -> list[Path]:
    """g++ runs in threads, all else here: an import hook may be what builds, and then no other thread can import."""
    arguments = [*FLAGS, *flags, f"-I{SOURCES}", "-c"]
    places = [_place(f"{source.stem}.o", *_texts(source), *arguments) for source in sources]
    todo = [(place, [*arguments, str(source)]) for place, source in zip(places, sources, strict=True) if not place.exists()]
    if todo:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(_made, *zip(*todo, strict=True)))
    return places


def _texts(source: Path) -> list[str]:
    """The text of a source and of all headers of ours that it includes."""
    files = [source]
    for file in files:  # grows
        files += [header for header in map(SOURCES.joinpath, INCLUDE.findall(file.read_text())) if header not in files]
    return [file.read_text() for file in files]


def _linked(name: str, objects: Sequence[Path], link: Sequence[str]) -> Path:
    parts = [str(part) for part in (*objects, *link)]
    folder = _place(name.removesuffix(".so"), name, *parts)
    folder.mkdir(parents=True, exist_ok=True)
    to = folder / name
    return to if to.exists() else _made(to, ["-shared", f"-Wl,-soname,{name}", "-Wl,--no-undefined", *parts, "-lc"])


def _written(name: str, text: str) -> Path:
    to = _place(name, text)
    if not to.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text)
    return to


def _made(to: Path, arguments: Sequence[str]) -> Path:
    """Run g++; the file appears whole or not at all."""
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = to.with_name(f"{to.name}.{os.getpid()}.part")
    done = subprocess.run([_compiler(), *arguments, "-o", str(partial)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"g++ cannot build {to.name} of the emulated NPU:\n{done.stderr[-4000:]}")
    partial.replace(to)
    return to


def _place(name: str, *made_from: str) -> Path:
    """Where the file belongs that has this name and is made from that, by this compiler, for this torch."""
    key = hashlib.sha256("\0".join((_compiler_version(), _torch_version(), *made_from)).encode()).hexdigest()[:16]
    return _cache() / f"{key}-{name}"


def _cache() -> Path:
    return cache_folder() / "emulated-npu"


@contextmanager
def _alone() -> Iterator[None]:
    """One process builds at a time; the others wait and find it done."""
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder(package: str) -> Path:
    spec = PathFinder.find_spec(package)  # no import hooks: one of them may be what builds
    if spec is None or spec.origin is None:
        raise ConfigError(f"{package} is not installed here, and the emulated NPU needs it: pip install torch==2.13.0 torch-npu==2.13.0")
    return Path(spec.origin).parent


def _compiler() -> str:
    return os.environ.get("CXX") or "g++"


@cache
def _torch_version() -> str:
    return version("torch")


@cache
def _compiler_version() -> str:
    found = shutil.which(_compiler())
    if found is None:
        raise ConfigError(
            f"the emulated NPU is built with {_compiler()!r} on first use, and there is none here: install g++, or name one in CXX"
        )
    return subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
