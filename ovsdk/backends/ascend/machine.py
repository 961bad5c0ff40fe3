"""What can be read of this machine without importing torch or torch_npu: a `Machine`, all that `doctor` judges.

Versions come from package metadata and from files that drivers and CANN leave; the device is asked in a child process, for an
import of torch_npu may fail in ways that a process does not survive. Everything read is a value, so a test can write a machine down.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from .probe import CANN, reason

ASK_S = 120.0
"""How long the child process may take to open the device: importing torch and torch_npu takes some 3 s."""
PACKAGES = ("torch", "torch_npu")


@attrs.frozen(kw_only=True)
class Machine:
    """One machine as it is now. None: there is no such thing here."""

    environ: Mapping[str, str]
    packages: Mapping[str, str]
    """Version of each that is installed of PACKAGES."""
    python: str
    driver: str | None = None
    """Version of the NPU's driver."""
    nodes: tuple[str, ...] = ()
    """Device files of NPUs."""
    cann: str | None = None
    """Version of CANN."""
    why_not: str | None = None
    """Why the backend `ascend` cannot be opened; None: it can."""
    device: Mapping[str, Any] | str = "not asked"
    """What device 0 says of itself (`Capabilities.facts`, and more), or why it did not answer."""
    cores: int
    """Cores that this process may use."""
    quota: float | None = None
    """Cores' worth of time that its container may use."""
    governor: str | None = None
    """How the first core's frequency is chosen."""
    switch_s: float
    """How long a Python thread may keep the interpreter from another."""
    gil: bool = True

    @property
    def emulated(self) -> bool:
        """Whether the device is ovsdk's emulator."""
        return isinstance(self.device, Mapping) and bool(self.device.get("emulated"))

    @property
    def npu(self) -> bool:
        """Whether there is an NPU, or what passes for one."""
        return bool(self.driver or self.nodes) or isinstance(self.device, Mapping)


def here(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Machine:
    """This machine, and the environment that this process was started with; `root` is where files are looked for."""
    environ = started_with() if environ is None else environ
    why_not = reason(environ, root)
    return Machine(
        environ=environ,
        packages={name: version for name in PACKAGES if (version := _version(name))},
        python=platform.python_version(),
        driver=_said(root.glob("usr/local/Ascend/driver/version.info"), r"^[Vv]ersion\s*=\s*(\S+)"),
        nodes=tuple(sorted(str(path) for path in root.glob("dev/davinci[0-9]*"))),
        cann=_said(_cann_files(environ, root), r"^version\s*=\s*(\S+)"),
        why_not=why_not,
        device=ask() if why_not is None else why_not,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        quota=_quota(root / "sys/fs/cgroup/cpu.max"),
        governor=_said([root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"], r"^(\S+)"),
        switch_s=sys.getswitchinterval(),
        gil=getattr(sys, "_is_gil_enabled", lambda: True)(),
    )


def started_with() -> Mapping[str, str]:
    """The environment at the start, before ovsdk or anybody else has set what they need."""
    try:
        raw = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    return dict(os.fsdecode(entry).split("=", 1) for entry in raw.split(b"\0") if b"=" in entry)


def ask(timeout_s: float = ASK_S) -> Mapping[str, Any] | str:
    """What device 0 tells a child process that opens it, or why it told nothing."""
    program = f"from {__name__} import tell; tell()"
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"opening the device took longer than {timeout_s:g} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return (done.stderr.strip().splitlines() or [f"the process that asked ended with {done.returncode}"])[-1]
    told: Mapping[str, Any] = json.loads(lines[-1])
    return told


def tell() -> None:
    """In the child process: open device 0 and print what it says, as one line of JSON."""
    from ...plugins import open_backend

    with open_backend("ascend") as npu:
        import torch

        facts = {**npu.capabilities.facts, "can": npu.capabilities.can, "devices": torch.accelerator.device_count()}
        facts["pinned"] = torch.empty(1, pin_memory=True).is_pinned()
    print(json.dumps(facts, default=str))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cann_files(environ: Mapping[str, str], root: Path) -> Iterable[Path]:
    """Where CANN says its version: in $ASCEND_HOME_PATH, else in the usual folders."""
    home = environ.get("ASCEND_HOME_PATH")
    folders = [Path(home)] if home else [root / place for place in CANN]
    return (file for folder in folders for file in sorted(folder.glob("*-linux/ascend_*_install.info")))


def _said(files: Iterable[Path], pattern: str) -> str | None:
    """What the first file that can be read says."""
    for file in files:
        try:
            match = re.search(pattern, file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        except OSError:
            continue
        if match:
            return match[1]
    return None


def _quota(file: Path) -> float | None:
    """Cores from a cgroup's "QUOTA PERIOD", both in microseconds; None: "max", or no such file."""
    text = _said([file], r"^(\d+ \d+)")
    if text is None:
        return None
    quota, period = map(int, text.split())
    return quota / period
