"""Table (c): how soon a launch begins on an idle device, and what submitting costs the host.

From just before `submit` on the host to the begin that the device stamps, on one clock. The device has slept before each.
Beside `cpu`: a device thread of this process, which copies nothing, and a child process behind a plain `multiprocessing.Pipe`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy
from _on_device import Sleeper
from _pipe_device import pipe_device
from _table import Row, alternate, median, tail

import ovsdk
from ovsdk import Launch

IDLE_S = 0.002
"""Long enough for a device to have fallen asleep."""
INPUTS: dict[str, tuple[Any, ...]] = {"no input": (), "1 MiB of input": (numpy.zeros(1 << 20, numpy.uint8),)}
ROUNDS = {False: 300, True: 100}


class Start(NamedTuple):
    """Of one launch, in us."""

    submit_us: float
    latency_us: float


def start(stream: Any, launch: Launch) -> Start:
    """Submit a launch to a device that is idle."""
    time.sleep(IDLE_S)
    begin_ns = time.perf_counter_ns()
    future = stream.submit(launch)
    submitted_ns = time.perf_counter_ns()
    future.result()
    return Start((submitted_ns - begin_ns) / 1e3, (future.span_ns[0] - begin_ns) / 1e3)


def variants(devices: Mapping[str, Any]) -> dict[str, Callable[[], Start]]:
    """Each device with each input."""
    takes = {name: device.load(Sleeper).take for name, device in devices.items()}
    return {
        f"{name}, {title}": partial(start, device.stream(), Launch("take", fn=takes[name], inputs=inputs))
        for title, inputs in INPUTS.items()
        for name, device in devices.items()
    }


def measure(quick: bool) -> Iterator[Row | str]:
    """Single launches, all kinds by turns."""
    with ovsdk.open_backend("cpu") as cpu, ovsdk.open_backend("thread") as thread, pipe_device(cpu.capabilities.facts["cores"]) as pipe:
        starts = alternate(variants({"cpu": cpu, "thread": thread, "multiprocessing.Pipe": pipe}), ROUNDS[quick])
    yield f"{ROUNDS[quick]} alternating launches of each kind on an idle device, after one of each that is dropped"
    for name, runs in starts.items():
        yield median(f"{name}: launch to start", [start.latency_us for start in runs], "us")
        yield tail(f"{name}: launch to start", [start.latency_us for start in runs], "us")
        yield median(f"{name}: submit", [start.submit_us for start in runs], "us")
