"""What these benchmarks run in other processes and threads. The device imports this file, so it imports little."""

from __future__ import annotations

import os
import time
from typing import Any

SPIN_NS = 400_000
"""A sleep ends some 80 us late, more on a busy machine: so much before the deadline this device begins to look at the clock."""


class Sleeper:
    """A device whose launches take the time that they are told. `device` is what `Backend.load` gives."""

    def __init__(self, device: str) -> None:
        self.device = device

    def work(self, duration_ns: int) -> None:
        """Take that time, and a microsecond more at most if nobody disturbs."""
        until_ns = time.perf_counter_ns() + duration_ns
        if duration_ns > SPIN_NS:
            time.sleep((duration_ns - SPIN_NS) / 1e9)
        while time.perf_counter_ns() < until_ns:
            pass

    def rest(self, duration_ns: int) -> None:
        """Sleep that long, and some 80 us more, without the GIL until the end: for a device that shares it with the host."""
        time.sleep(duration_ns / 1e9)

    def take(self, *inputs: Any) -> None:
        """Nothing, with inputs that have come."""


class Torch:
    """Not a model: sets how many threads torch uses in the thread that it is made in, for torch counts by thread."""

    def __init__(self, threads: int, device: str) -> None:
        import torch

        torch.set_num_threads(threads)
        self.threads, self.device = threads, device


def serve(connection: Any, cores: tuple[int, ...]) -> None:
    """Be the device at the other end of a `multiprocessing.Pipe`: answer each call with its begin and end in ns; None ends it."""
    if cores:
        os.sched_setaffinity(0, cores)
    device = Sleeper("cpu")
    connection.send("ready")
    while (call := connection.recv()) is not None:
        name, inputs = call
        begin_ns = time.perf_counter_ns()
        getattr(device, name)(*inputs)
        connection.send((begin_ns, time.perf_counter_ns()))
