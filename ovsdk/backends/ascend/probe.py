"""Whether the backend `ascend` can be opened here, or why not and what to do: from files and metadata, without importing torch.

An `import torch_npu` that finds no CANN fails in ways that a process does not get over, and so does any `import torch` beside
it, which imports torch_npu by itself. So nothing is imported to find out. What is looked at, in this order: the system, the
two packages and whether they fit, a runtime (CANN's or the emulated one), the driver.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

RUNTIME = "libascendcl.so"
CANN = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/nnrt/latest")
"""Where CANN is installed unless told otherwise, below the root."""
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
EMULATED = "OVSDK_EMULATE"
"""Set by `ovsdk emulate`: the emulated runtime is loaded right before torch is."""
EMULATE = "without an NPU run it as `ovsdk emulate -- COMMAND`"


def reason(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str | None:
    """None if `open_backend("ascend")` should work here, else what is missing and the remedy, in one line."""
    found = EMULATED in environ or runtime_is_loaded()
    return _system() or _packages() or (None if found else _cann(environ, root) or _driver(root))


def runtime_is_loaded() -> bool:
    """Whether this process already has an ACL runtime, CANN's or the emulated one."""
    try:
        return RUNTIME in Path("/proc/self/maps").read_text()
    except OSError:
        return False


def _system() -> str | None:
    return None if sys.platform == "linux" else f"CANN and the emulated runtime are for Linux, this is {sys.platform}"


def _packages() -> str | None:
    torch, torch_npu = _version("torch"), _version("torch_npu")
    if torch is None or torch_npu is None:
        missing = " and ".join(name for name, version in (("torch", torch), ("torch_npu", torch_npu)) if version is None)
        return f"{missing} not installed: pip install 'ovsdk[ascend]' in an environment without CUDA's torch"
    wanted, local = _wanted_torch(), torch.partition("+")[2]
    if local.startswith(("cu", "rocm", "xpu")):
        return f"torch {torch} is built for another accelerator, and torch_npu refuses it: install the CPU build of torch {wanted or ''}"
    if wanted and not _fits(torch, wanted):
        return f"torch_npu {torch_npu} needs torch {wanted}, but torch {torch} is installed: pip install 'torch{wanted}'"
    return None


def _cann(environ: Mapping[str, str], root: Path) -> str | None:
    if any((folder / RUNTIME).is_file() for folder in _loader_folders(environ)):
        return None
    beside = "" if environ.get(AUTOLOAD) == "0" else f". Until then set {AUTOLOAD}=0, or every `import torch` in this environment fails"
    for home in filter(None, (environ.get("ASCEND_HOME_PATH"), *(str(root / place) for place in CANN))):
        if any((Path(home) / lib / RUNTIME).is_file() for lib in ("lib64", "aarch64-linux/lib64", "x86_64-linux/lib64")):
            return f"CANN is in {home} but not on the loader's path: source {home}/set_env.sh (or {home}/../set_env.sh) first{beside}"
    return (
        f"no CANN runtime ({RUNTIME}) on LD_LIBRARY_PATH or in {root / CANN[0]}: install CANN and source its set_env.sh; {EMULATE}{beside}"
    )


def _driver(root: Path) -> str | None:
    if any((root / "dev").glob("davinci[0-9]*")):
        return None
    looked = root / "dev/davinci*"
    return f"CANN is here, but no NPU ({looked}): install Ascend's driver and firmware, or give the container its device; {EMULATE}"


def _loader_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    return (Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder)


@functools.cache  # a probe runs whenever a backend is opened, and what is installed does not change under a process
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _wanted_torch() -> str | None:
    """The version of torch that torch_npu says it needs, such as `==2.13.0.*`."""
    requirements = importlib.metadata.requires("torch_npu") or ()
    found = (re.match(r"torch\s*\(?\s*([=<>!~][^;)]*)", line) for line in requirements)
    return next((match[1].strip() for match in found if match), None)


def _fits(version: str, wanted: str) -> bool:
    """Whether a version meets `==X.Y.Z` or `==X.Y.Z.*`, which is what torch_npu's releases ask for; other forms are left to torch_npu."""
    match = re.fullmatch(r"==\s*([\d.]+?)(\.\*)?", wanted)
    if match is None:
        return True
    public = version.partition("+")[0]
    return public == match[1] or (match[2] is not None and public.startswith(match[1] + ".")) or public.startswith(match[1] + ".post")
