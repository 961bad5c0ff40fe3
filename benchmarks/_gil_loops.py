"""Two-thread loops as data, and two ways to run them: on real threads, and in virtual time on a simulated host.

A program is what one thread does, operation after operation. Both ways do the same programs, so their times may be
compared: a difference is the model's, not the loop's.

    serial         one thread: compute S, then the device for D
    launch late    plans the next step while one runs, but hands it over only once that one's result is there
    launch ahead   two steps in the device's queue: hands the next one over, then waits for the result of the one before
    woken          a thread is woken while another computes

The device is a thread that sleeps for D: it needs the GIL to take a step and to give its result back, and not between.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ovsdk.backends.sim.host import Host, HostModel, Piece, Thread
from ovsdk.backends.sim.kernel import Body, Kernel, Queue, get, put, sleep

Op = tuple[str, str]
"""What to do, and with which queue, or under which name to note the time."""
Program = Sequence[Op]
Stamps = dict[str, list[int]]
"""Name -> ns at which it was noted."""

COMPUTE, DEVICE = ("compute", ""), ("device", "")
TO_DEVICE, FROM_DEVICE = "input_queue", "output_queue"
PUT, GET = ("put", TO_DEVICE), ("get", FROM_DEVICE)
BEGUN, DONE = ("stamp", "begun"), ("stamp", "done")
RUN = [BEGUN, DEVICE, DONE]


def device(steps: int) -> list[Op]:
    """The device's thread."""
    return [("get", TO_DEVICE), *RUN, ("put", FROM_DEVICE)] * steps


def serial(steps: int) -> list[list[Op]]:
    """No overlap, no threads."""
    return [[COMPUTE, *RUN] * steps]


def launch_late(steps: int) -> list[list[Op]]:
    """The next step is planned in time, and launched late."""
    return [[COMPUTE, PUT, *[COMPUTE, GET, PUT] * (steps - 1), GET], device(steps)]


def launch_ahead(steps: int) -> list[list[Op]]:
    """Two pre-submitted steps, then one for each result."""
    return [[*[COMPUTE, PUT] * 2, *[GET, COMPUTE, PUT] * (steps - 2), GET, GET], device(steps)]


def woken(times: int) -> list[list[Op]]:
    """Wakes the other and computes; then blocks until the other has started."""
    there = [("get", TO_DEVICE), ("stamp", "started"), ("put", FROM_DEVICE)]
    return [[("stamp", "woken"), PUT, COMPUTE, ("stamp", "blocked"), GET] * times, there * times]


def on_threads(programs: Sequence[Program], compute: Callable[[], Any], device_s: float) -> Stamps:
    """Run each program on a thread of its own, the first on the caller's."""
    queues = {name: queue.SimpleQueue[None]() for name in (TO_DEVICE, FROM_DEVICE)}
    stamps: Stamps = {}
    acts: Mapping[str, Callable[[str], Callable[[], Any]]] = {
        "compute": lambda _: compute,
        "device": lambda _: partial(time.sleep, device_s),
        "put": lambda name: partial(queues[name].put, None),
        "get": lambda name: queues[name].get,
        "stamp": lambda name: partial(_note, stamps.setdefault(name, []), time.perf_counter_ns),
    }
    first, *others = [[acts[what](name) for what, name in program] for program in programs]
    threads = [threading.Thread(target=_do, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    _do(first)
    for thread in threads:
        thread.join()
    return stamps


def simulated(programs: Sequence[Program], model: HostModel, compute_ns: int, device_ns: int) -> Stamps:
    """Run each program as a thread of a simulated host."""
    kernel = Kernel()
    host, stamps = Host(kernel, model), Stamps()
    queues = {name: Queue(name=name) for name in (TO_DEVICE, FROM_DEVICE)}
    acts: Mapping[str, Callable[[Thread, str], Body]] = {
        "compute": lambda thread, _: thread.compute([Piece(compute_ns)]),
        "device": lambda thread, _: thread.block(sleep(device_ns)),
        "put": lambda thread, name: thread.block(put(queues[name], None)),
        "get": lambda thread, name: thread.block(get(queues[name])),
        "stamp": lambda _, name: _stamp(stamps.setdefault(name, []), kernel),
    }

    def body(thread: Thread, program: Program) -> Body:
        yield from thread.take()
        for what, name in program:
            yield from acts[what](thread, name)
        thread.let_go()

    for number, program in reversed(list(enumerate(programs))):
        kernel.spawn(f"thread {number}", body(host.thread(f"thread {number}"), program))
    kernel.run()
    return stamps


def _do(acts: Sequence[Callable[[], Any]]) -> None:
    for act in acts:
        act()


def _note(times: list[int], now_ns: Callable[[], int]) -> None:
    times.append(now_ns())


def _stamp(times: list[int], kernel: Kernel) -> Body:
    times.append(kernel.now_ns)
    yield from ()
