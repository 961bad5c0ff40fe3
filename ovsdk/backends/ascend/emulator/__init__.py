"""An emulated NPU: the unmodified torch_npu wheel on an ACL runtime of our own, for machines without an Ascend device.

    from ovsdk.backends.ascend import emulator
    npu = emulator.activate()            # before torch_npu is imported; or: ovsdk emulate -- COMMAND...
    import torch, torch_npu
    npu.latency("aclnnMatmul", 900)      # an operator takes 900 us

It shows what torch_npu does with streams, events, copies and memory, and what a program makes of it. It is no evidence about
CANN, drivers, hardware, speed or numerics: every output says EMULATED NPU. HCCL is not emulated.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

import attrs

from ....errors import ConfigError
from .control import LOST, Emulator, Task, Trace
from .figures import Figures, figures
from .importing import Around

__all__ = ["LOST", "Emulator", "Figures", "Options", "Task", "Trace", "activate", "active", "figures"]

ENVIRONMENT, TOLD = "OVSDK_EMULATE", "OVSDK_EMULATE_TOLD"
"""JSON of `Options` for child processes; whether the banner has been shown to the user of this process's parents."""
TASK_QUEUE, AUTOLOAD = "TASK_QUEUE_ENABLE", "TORCH_DEVICE_BACKEND_AUTOLOAD"
SITE = Path(__file__).parent / "site"
"""Has the `sitecustomize` that activates the emulator in child processes."""
SOCS = ("Ascend910B3", "Ascend910_9391", "Ascend310P3", "Ascend950PR_9599")
"""Tried with torch_npu 2.13.0; any other name is passed on."""

_active: Emulator | None = None


@attrs.frozen(kw_only=True)
class Options:
    """The emulated machine. `memory_gb` is of each device; a core count is what `get_device_limit` starts from."""

    devices: int = attrs.field(default=1, validator=[attrs.validators.ge(1), attrs.validators.le(8)])
    memory_gb: float = attrs.field(default=2.0, validator=attrs.validators.gt(0))
    cube_cores: int = attrs.field(default=20, validator=attrs.validators.ge(1))
    vector_cores: int = attrs.field(default=40, validator=attrs.validators.ge(1))
    soc: str = SOCS[0]
    cann: str = "8.5.0"
    task_queue: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.in_((0, 1, 2))))
    """torch_npu's TASK_QUEUE_ENABLE; None: as the environment has it, else torch_npu's default, 1."""
    poison: bool = False
    """See `Emulator.poison`: done when torch_npu has been imported."""
    figures: Figures = attrs.field(factory=Figures)
    """Set from the start."""

    def environment(self) -> dict[str, str]:
        """The variables with which a Python process emulates this machine when it imports torch."""
        queue = {} if self.task_queue is None else {TASK_QUEUE: str(self.task_queue)}
        path = filter(None, (str(SITE), os.environ.get("PYTHONPATH")))
        return {ENVIRONMENT: json.dumps(attrs.asdict(self)), AUTOLOAD: "0", "PYTHONPATH": os.pathsep.join(path), **queue}


def active() -> Emulator | None:
    """The emulated NPU of this process, or None."""
    return _active


def activate(options: Options | None = None) -> Emulator:
    """Make this process's NPUs emulated ones, and return what controls them. A second call returns the same.

    `options` default to those of `ovsdk emulate`, if this process runs under it. Builds the emulator on first use (a minute).
    Raises ConfigError if torch_npu is imported already, is not installed, or the emulator cannot be built; and for options
    other than those in force.
    """
    global _active
    options = options or _inherited()
    if _active is not None:
        if options != _active.options:
            raise ConfigError(f"the NPU of this process is emulated already, with {_active.options}; asked for {options}")
        return _active
    if "torch_npu" in sys.modules:
        raise ConfigError("torch_npu is imported already, on whatever runtime there is: activate the emulated NPU before that")
    _set_environment(options)
    _active = Emulator(_load(options), options)
    options.figures.apply(_active)
    if options.poison:
        Around("torch_npu", after=_active.poison).watch()
    _tell(options)
    return _active


def _inherited() -> Options:
    text = os.environ.get(ENVIRONMENT)
    fields = json.loads(text) if text else {}
    return Options(**{**fields, "figures": Figures(**fields["figures"])}) if fields else Options()


def _set_environment(options: Options) -> None:
    """torch_npu reads these when it is imported. It must not be imported by torch: that would be before its libraries are."""
    os.environ.setdefault(AUTOLOAD, "0")
    if options.task_queue is not None:
        os.environ[TASK_QUEUE] = str(options.task_queue)


def _load(options: Options) -> ctypes.CDLL:
    """Load all libraries: torch_npu's own references find them by their SONAMEs. They stay until the process ends."""
    from .build import build

    runtime, *others = build()
    library = ctypes.CDLL(str(runtime))
    memory, soc, cann = ctypes.c_int64(round(options.memory_gb * 2**30)), options.soc.encode(), options.cann.encode()
    library.emu_configure(options.devices, memory, options.cube_cores, options.vector_cores, soc, cann)
    for other in others:
        ctypes.CDLL(str(other))
    return library


def _tell(options: Options) -> None:
    if TOLD not in os.environ:
        os.environ[TOLD] = "1"
        print(banner(options), file=sys.stderr, flush=True)


def banner(options: Options) -> str:
    """What every user of the emulated NPU is told, once."""
    what = f"{options.devices} x {options.soc}, {options.memory_gb:g} GB each, CANN {options.cann}"
    return f"EMULATED NPU ({what}): no hardware, no CANN; nothing measured on it says how fast an NPU is."
