"""The built-in backends, scheduler, executor, queue, tiler and price files, offered through the hooks as any plugin's.

A table of names; what they name is imported when it is made.
"""

from __future__ import annotations

import importlib
import inspect
import queue
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ConfigError, refuse
from .hookspecs import hookimpl

BACKENDS = {
    "ascend": "ovsdk.backends.ascend.backend:AscendBackend",
    "cpu": "ovsdk.backends.cpu:CpuBackend",
    "thread": "ovsdk.backends.thread:ThreadBackend",
    "sim": "ovsdk.backends.sim.backend:SimBackend",
}
SCHEDULERS = {"saturated": "ovsdk.saturated:Saturated", "slots": "ovsdk.slotted:Slotted"}
EXECUTORS = {"priced": "ovsdk.saturated:Priced", "slots": "ovsdk.slotted:SlotLaunches"}
TILERS = {"auto": "ovsdk.tiling.tiler:Tiler"}
QUEUES: Mapping[str, Callable[[], Any]] = {"simple": queue.SimpleQueue, "bounded": queue.Queue}


def create(table: Mapping[str, str], what: str, name: str, options: Mapping[str, Any]) -> Any:
    """Import and call what `table` says for `name`, or None if it is not there. Raises ConfigError for an unknown option."""
    if name not in table:
        return None
    module, _, attribute = table[name].partition(":")
    factory = getattr(importlib.import_module(module), attribute)
    allowed = inspect.signature(factory).parameters
    for option in options:
        if option not in allowed:
            refuse(f"option of {what} {name!r}", option, allowed)
    return factory(**options)


@hookimpl
def ovsdk_probe_backends() -> Mapping[str, str | None]:
    """`ascend` needs an NPU, the others nothing but Python."""
    from .backends.ascend import probe

    return {**dict.fromkeys(BACKENDS), "ascend": probe.reason()}


@hookimpl
def ovsdk_open_backend(name: str, index: int, options: Mapping[str, Any]) -> Any:
    """See `BACKENDS`: all but `ascend` have one device."""
    if name == "ascend":
        return create(BACKENDS, "backend", name, {"device": index, **options})
    if index and name in BACKENDS:
        raise ConfigError(f"backend {name!r} has one device, 0; got index {index}")
    return create(BACKENDS, "backend", name, options)


@hookimpl
def ovsdk_make_scheduler(name: str, options: Mapping[str, Any]) -> Any:
    """See `SCHEDULERS`."""
    return create(SCHEDULERS, "scheduler", name, options)


@hookimpl
def ovsdk_make_executor(name: str, options: Mapping[str, Any]) -> Any:
    """See `EXECUTORS`."""
    return create(EXECUTORS, "executor", name, options)


@hookimpl
def ovsdk_make_queue(name: str) -> Any:
    """See `QUEUES`: the standard library's, bounded by the ledger."""
    return QUEUES[name]() if name in QUEUES else None


@hookimpl
def ovsdk_make_tiler(name: str, options: Mapping[str, Any]) -> Any:
    """See `TILERS`."""
    return create(TILERS, "tiler", name, options)
