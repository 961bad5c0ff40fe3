"""What `open_backend("ascend:0")` makes: one NPU through torch_npu, on its own three streams.

torch_npu launches through a task queue of its own, see `task_queue`. Behind an error in it an event counts as having happened that
never did, which is why launches bring a number back (`_streams`), and `Event.elapsed_time` first waits for the queue to be
empty, so times are asked of the runtime itself (seen in 2.13.0).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # before torch comes in: it would import torch_npu, come what may

from ...errors import BackendUnavailable, ConfigError, DeviceLost
from ...types import Capabilities
from .._torch import Accelerator, TorchBackend
from . import task_queue as queue
from .acl_errors import understand
from .chips import on_chip
from .debug import joined
from .emulator import active
from .graphs import KEYS, Graphs
from .marks import marker
from .probe import reason
from .sink import Own, Sink, switch
from .syncs import Syncs


class AscendBackend(TorchBackend):
    """One NPU.

    device: its index, the number in "ascend:0".
    timeout_s: most that a launch may take; load_timeout_s: a load, together with the launches before it.
    task_queue: torch_npu's task-queue level for this process, 0, 1 or 2; None: as TASK_QUEUE_ENABLE has it.
    cube_cores, vector_cores: how many its launches may use; None: all.
    graphs, graph_keys: whether launches with a graph key are captured and replayed, and how many keys are: see `graphs.Graphs`.
    syncs: what to do about launches that make the host wait: "off", "count", "warn" or "refuse", see `syncs.Syncs`.
    marks: mstx ranges around the stages of a run, for MindStudio.
    debug: a launch that leaves a side stream unjoined fails; slow.
    Raises BackendUnavailable where there is no NPU to be had; ConfigError for an option out of range; DeviceLost if the NPU does
    not answer.
    """

    name = "ascend"

    def __init__(
        self,
        device: int = 0,
        *,
        timeout_s: float = 300.0,
        load_timeout_s: float = 900.0,
        task_queue: int | None = None,
        cube_cores: int | None = None,
        vector_cores: int | None = None,
        graphs: str = "on",
        graph_keys: int = KEYS,
        syncs: str = "off",
        marks: bool = False,
        debug: bool = False,
    ) -> None:
        npu = _torch_npu()
        _check_device(npu, device)
        _check_seconds(timeout_s=timeout_s, load_timeout_s=load_timeout_s)
        queue.choose(npu, device, task_queue)
        self._npu, self._cores = npu, {"cube_num": cube_cores, "vector_num": vector_cores}
        self.syncs = Syncs(syncs)
        self.graphs = Graphs(npu, graphs, keys=graph_keys, timeout_s=timeout_s, call=self.syncs.call)
        accelerator = Accelerator("npu", npu, _elapsed_ms(), understand, **_sanitized())
        with npu.device(device):
            opening = partial(super().__init__, accelerator, device, timeout_s=timeout_s, load_timeout_s=load_timeout_s)
            _meet(npu, device, opening)
            try:
                self._limit()
                self.runner = joined(self.graphs.run, npu) if debug else self.graphs.run
                self.mark = marker(npu.mstx, self.stream().compute) if marks else None
                self.capabilities = Capabilities(_can(), _facts(npu, device))
            except BaseException:
                self.close()
                raise

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report must say beside its figures."""
        emulated = ("EMULATED NPU: times are those that the emulator was told, not a device's",) if active() else ()
        ended = tuple(f"without torch_npu's task queue (level 0), which ended in this process: {why}" for why in queue.ended.values())
        return (*emulated, *ended, *self.syncs.notes(), *self.graphs.notes())

    def begin(self, depth: int) -> None:
        """A run of that depth begins: what is counted for its report is counted anew."""
        self.graphs.instances = max(2, depth)
        self.graphs.reset()
        self.syncs.reset()

    def sink(self, config: Any, operators: Iterable[str | Own], *, static: bool) -> Sink:
        """Let tilings of a GE graph sink to the AICPU where this device can; says which, and why others do not: see `sink.switch`."""
        return switch(config, operators, static=static, facts=self.capabilities.facts)

    def close(self) -> None:
        """See `TorchBackend.close`."""
        if self._closed:
            return
        if self.lost is None and any(self._cores.values()):
            self._npu.reset_stream_limit(self.stream().compute)
        super().close()
        if self.lost is not None:
            queue.go_without(self._npu, self.index, str(self.lost), self.stream().compute)
        self.graphs.close()

    def _limit(self) -> None:
        """Let launches have so many cores only."""
        limits = {name: cores for name, cores in self._cores.items() if cores is not None}
        if not limits:
            return
        has = self._npu.get_device_limit(self.index)
        for name, cores in limits.items():
            most = has[name.replace("num", "core_num")]
            if not isinstance(cores, int) or isinstance(cores, bool) or not 1 <= cores <= most:
                raise ConfigError(f"{name.replace('num', 'cores')} is an int from 1 to {most}, what npu:{self.index} has; got {cores!r}")
        self._npu.set_stream_limit(self.stream().compute, **limits)


def _torch_npu() -> Any:
    """`torch.npu`, from torch_npu."""
    why = reason()
    if why is not None:
        raise BackendUnavailable("ascend", {"ascend": why})
    try:
        import torch_npu
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendUnavailable("ascend", {"ascend": f"torch_npu cannot be imported: {error}"}) from error
    return torch_npu.npu


def _check_device(npu: Any, device: Any) -> None:
    count = npu.device_count()
    if not isinstance(device, int) or isinstance(device, bool) or not 0 <= device < count:
        raise ConfigError(f"device is the index of an NPU, 0 to {count - 1} here, as in open_backend('ascend:0'); got {device!r}")


def _check_seconds(**seconds: Any) -> None:
    for name, value in seconds.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e9:
            raise ConfigError(f"{name} is a time in seconds, more than 0 and less than 1e9; got {value!r}")


def _meet(npu: Any, device: int, opening: Callable[[], None]) -> None:
    """Open a device. One that does not answer is restarted, once: what it has to do is aborted, and its streams are made anew."""
    try:
        opening()
    except (RuntimeError, DeviceLost) as error:
        try:
            queue.go_without(npu, device, str(error))
            npu.stop_device(device)
            npu.restart_device(device, rebuild_all_resources=True)
            opening()
        except (RuntimeError, DeviceLost) as again:
            ours = understand(f"opening npu:{device}", again)
            raise DeviceLost(f"{ours}; restarting it did not help: start a new process, or see what `npu-smi info` says of it") from error


def _sanitized() -> dict[str, Callable[[Any], object]]:
    """torch_npu's sanitizer believes a `synchronize`, which returns at once here: the event has happened."""
    on = os.environ.get("TORCH_NPU_SANITIZER", "") not in ("", "0")
    return {"tell_seen": lambda event: event.synchronize()} if on else {}


def _can() -> Mapping[str, Any]:
    blocking = os.environ.get("ASCEND_LAUNCH_BLOCKING", "") not in ("", "0")
    return {
        "asynchronous": "ASCEND_LAUNCH_BLOCKING=1 makes every launch wait for the device; unset it" if blocking else True,
        "executes": True,
        "wall_clock": True,
        "parallel": True,
    }


def _facts(npu: Any, device: int) -> Mapping[str, Any]:
    properties, cores = npu.get_device_properties(device), npu.get_device_limit(device)
    return {
        "device": f"npu:{device}",
        "emulated": active() is not None,
        "soc": properties.name,
        "cube_cores": cores["cube_core_num"],
        "vector_cores": cores["vector_core_num"],
        "memory_bytes": properties.total_memory,
        **on_chip(properties.name),
        "task_queue": npu.get_task_queue_enable(),
        "cann": npu.utils.get_cann_version(),
    }


@cache
def _elapsed_ms() -> Callable[[Any, Any], float]:
    """aclrtEventElapsedTime without torch_npu's wait for its queue."""
    elapsed = ctypes.CDLL("libascendcl.so").aclrtEventElapsedTime
    elapsed.argtypes = (ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p)

    def between(begin: Any, end: Any) -> float:
        milliseconds = ctypes.c_float()
        error = elapsed(ctypes.byref(milliseconds), begin.npu_event, end.npu_event)
        if error:
            raise RuntimeError(f"NPU function error: aclrtEventElapsedTime, error code is {error}")
        return milliseconds.value

    return between
