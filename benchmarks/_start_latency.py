"""Table (c): how soon a launch begins on an idle device, and what submitting costs the host.

From just before `submit` on the host to the begin that the device stamps, on one clock. The device has slept before each.
Beside `cpu`: a device thread of this process, which copies nothing, and a child process behind a plain `multiprocessing.Pipe`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy
from _on_device import Sleeper, answer_begins
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


def on_backend(stream: Any, launch: Launch) -> Start:
    """Submit a launch to a backend that is idle."""
    time.sleep(IDLE_S)
    begin_ns = time.perf_counter_ns()
    future = stream.submit(launch)
    submitted_ns = time.perf_counter_ns()
    future.result()
    return Start((submitted_ns - begin_ns) / 1e3, (future.span_ns[0] - begin_ns) / 1e3)


def on_pipe(connection: Any, inputs: tuple[Any, ...]) -> Start:
    """Send the same to a process that waits at the other end of a pipe."""
    time.sleep(IDLE_S)
    begin_ns = time.perf_counter_ns()
    connection.send(inputs)
    submitted_ns = time.perf_counter_ns()
    return Start((submitted_ns - begin_ns) / 1e3, (connection.recv() - begin_ns) / 1e3)


@contextlib.contextmanager
def _pipe(cores: tuple[int, ...]) -> Iterator[Any]:
    """A connection to a child process on those cores."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=answer_begins, args=(theirs, cores))
    process.start()
    try:
        ours.recv()
        yield ours
    finally:
        ours.send(None)
        process.join()
        ours.close()
        theirs.close()


def variants(cpu: Any, thread: Any, pipe: Any) -> dict[str, Callable[[], Start]]:
    """Each device with each input."""
    devices = {"cpu": cpu, "thread": thread}
    takes = {name: device.load(Sleeper).take for name, device in devices.items()}
    found: dict[str, Callable[[], Start]] = {}
    for title, inputs in INPUTS.items():
        for name, device in devices.items():
            found[f"{name}, {title}"] = partial(on_backend, device.stream(), Launch("take", fn=takes[name], inputs=inputs))
        found[f"multiprocessing.Pipe, {title}"] = partial(on_pipe, pipe, inputs)
    return found


def measure(quick: bool) -> Iterator[Row | str]:
    """Single launches, all kinds by turns."""
    with contextlib.ExitStack() as opened:
        cpu, thread = (opened.enter_context(ovsdk.open_backend(name)) for name in ("cpu", "thread"))
        cores = cpu.capabilities.facts["cores"] if hasattr(os, "sched_setaffinity") else ()
        starts = alternate(variants(cpu, thread, opened.enter_context(_pipe(cores))), ROUNDS[quick])
    yield f"{ROUNDS[quick]} alternating launches of each kind on an idle device, after one of each that is dropped"
    for name, runs in starts.items():
        yield median(f"{name}: launch to start", [start.latency_us for start in runs], "us")
        yield tail(f"{name}: launch to start", [start.latency_us for start in runs], "us")
        yield median(f"{name}: submit", [start.submit_us for start in runs], "us")
