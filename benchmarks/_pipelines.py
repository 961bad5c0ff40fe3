"""Models for SimPy and for our kernel: of batches, in the idiom of each; of operators, the same generators for both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ovsdk.backends.sim import kernel
from ovsdk.backends.sim.fixed import Stages
from ovsdk.backends.sim.rows import Machine, Program

Body = Iterator[Any]


class Engine(NamedTuple):
    """An event simulator. `sleep`, `put` and `get` make what a process yields; `run` gives the time at the end."""

    spawn: Callable[[Body], Any]
    run: Callable[[], int]
    queue: Callable[[int], Any]
    sleep: Callable[[int], Any]
    put: Callable[[Any, Any], Any]
    get: Callable[[Any], Any]


def ours() -> Engine:
    """The kernel of `ovsdk.backends.sim`."""
    world = kernel.Kernel()

    def run() -> int:
        world.run()
        return world.now_ns

    return Engine(lambda body: world.spawn("process", body, server=True), run, kernel.Queue, int, kernel.put, kernel.get)


def simpy() -> Engine:
    """SimPy. Raises ImportError where it is not installed."""
    import simpy

    env = simpy.Environment()

    def run() -> int:
        env.run()
        return int(env.now)

    return Engine(
        env.process,
        run,
        lambda capacity: simpy.Store(env, capacity),
        env.timeout,
        lambda queue, item: queue.put(item),
        lambda queue: queue.get(),
    )


def batches_ours(host: Sequence[int], device: Sequence[int]) -> int:
    """A host and a device with a queue of two batches between them, as one writes it for our kernel; when it ends."""
    world, queue = kernel.Kernel(), kernel.Queue(2)

    def produce() -> Body:
        for number, ns in enumerate(host):
            yield ns
            yield kernel.put(queue, number)

    def consume() -> Body:
        take = kernel.get(queue)
        for ns in device:
            yield take
            yield ns

    world.spawn("host", produce())
    world.spawn("device", consume())
    world.run()
    return world.now_ns


def batches_simpy(host: Sequence[int], device: Sequence[int]) -> int:
    """The same as one writes it for SimPy."""
    import simpy

    env = simpy.Environment()
    queue = simpy.Store(env, 2)

    def produce() -> Body:
        for number, ns in enumerate(host):
            yield env.timeout(ns)
            yield queue.put(number)

    def consume() -> Body:
        for ns in device:
            yield queue.get()
            yield env.timeout(ns)

    env.process(produce())
    env.process(consume())
    env.run()
    return int(env.now)


def operators(engine: Engine, programs: Sequence[Program], stages: Stages, depth: int, machine: Machine) -> int:
    """Launches operator by operator on one lane, at a depth; when the last step has retired."""
    _, _, _, sleep, put, get = engine
    tasks, work, done = engine.queue(machine.task), engine.queue(machine.device), engine.queue(depth)

    def lane() -> Body:
        for number in range(len(programs) + depth - 1):
            if number < len(programs):
                yield sleep(stages.plan + stages.prepare + stages.launch)
                for row in programs[number].rows:
                    yield sleep(row.host_ns)
                    yield put(tasks, row)
                yield put(tasks, None)
            if number >= depth - 1:
                yield get(done)
                yield sleep(stages.retire)

    def launcher() -> Body:
        while True:
            row = yield get(tasks)
            if row is not None:
                yield sleep(row.launcher_ns)
            yield put(work, row)

    def stream() -> Body:
        while True:
            row = yield get(work)
            if row is None:
                yield put(done, None)
            else:
                yield sleep(row.device_ns)

    for body in (lane(), launcher(), stream()):
        engine.spawn(body)
    return engine.run()
