"""Loops that one might write in place of the drivers: what ovsdk is compared with, in cost and in what they hide.

All plan until CLOSED, with fixed lag and no other answers, and retire in order; none handles an error, an arrival or a
deadline. All but `launch_late` launch ahead, two steps in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from ovsdk import CLOSED, Ask
from ovsdk.interfaces import Future

DEPTH = 2

Loop = Callable[[Any, Any, Any], None]
"""Given a scheduler, an executor and a stream."""


def direct(scheduler: Any, executor: Any, stream: Any) -> None:
    """The whole idea in twelve lines, in one thread."""
    flight: deque[tuple[int, Any, Future]] = deque()
    for step in count():
        batch = scheduler.plan(Ask(step, step, 0.0))
        if batch is CLOSED:
            break
        launch = executor.launch(step, executor.prepare(step, batch))
        flight.append((step, batch, stream.submit(launch)))
        if len(flight) == DEPTH:
            done, batch, future = flight.popleft()
            scheduler.retire(done, batch, future.result())
    for done, batch, future in flight:
        scheduler.retire(done, batch, future.result())


@contextlib.contextmanager
def _worker(work: Callable[[Any], object], inputs: queue.Queue[Any]) -> Iterator[None]:
    """A thread that does `work` with each item, up to a None."""

    def loop() -> None:
        for item in iter(inputs.get, None):
            work(item)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        inputs.put(None)
        thread.join()


def two_threads(scheduler: Any, executor: Any, stream: Any) -> None:
    """Scheduling thread, execution thread, two `queue.Queue`s: launches ahead, so everything is there but the ledger."""
    inputs: queue.Queue[Any] = queue.Queue()
    outputs: queue.Queue[Any] = queue.Queue()

    def execute(item: tuple[int, Any]) -> None:
        step, batch = item
        launch = executor.launch(step, executor.prepare(step, batch))
        outputs.put((step, batch, stream.submit(launch)))

    def retire() -> None:
        step, batch, future = outputs.get()
        scheduler.retire(step, batch, future.result())

    with _worker(execute, inputs):
        for step in count():
            batch = scheduler.plan(Ask(step, step, 0.0))
            if batch is CLOSED:
                break
            inputs.put((step, batch))
            if step + 1 >= DEPTH:
                retire()
        for _ in range(min(step, DEPTH - 1)):
            retire()


def launch_late(scheduler: Any, executor: Any, stream: Any) -> None:
    """Plans and prepares the next step while this one runs, but hands it over only once this one's result is there.

    The execution thread is woken while the scheduling thread goes on to compute, waits for the GIL until that one blocks,
    and so hides nothing: a serial loop with two threads.
    """
    inputs: queue.Queue[Any] = queue.Queue()
    outputs: queue.Queue[Any] = queue.Queue()

    def execute(item: tuple[int, Any, Any]) -> None:
        step, batch, prepared = item
        outputs.put((step, batch, stream.submit(executor.launch(step, prepared)).result()))

    with _worker(execute, inputs):
        for step in count():
            batch = scheduler.plan(Ask(step, step, 0.0))
            if batch is CLOSED:
                break
            prepared = executor.prepare(step, batch)
            done = outputs.get() if step else None
            inputs.put((step, batch, prepared))
            if done is not None:
                scheduler.retire(*done)
        if step:
            scheduler.retire(*outputs.get())


def on_asyncio(scheduler: Any, executor: Any, stream: Any) -> None:
    """An event loop that plans and retires; `run_in_executor` prepares and launches, in a pool of one thread."""

    def execute(step: int, batch: Any) -> Future:
        launch = executor.launch(step, executor.prepare(step, batch))
        return stream.submit(launch)  # type: ignore[no-any-return]

    async def loop() -> None:
        flight: deque[tuple[int, Any, asyncio.Future[Future]]] = deque()
        going = asyncio.get_running_loop()
        for step in count():
            batch = scheduler.plan(Ask(step, step, 0.0))
            if batch is CLOSED:
                break
            flight.append((step, batch, going.run_in_executor(pool, execute, step, batch)))
            if len(flight) == DEPTH:
                await retire(*flight.popleft())
        for item in flight:
            await retire(*item)

    async def retire(step: int, batch: Any, launched: asyncio.Future[Future]) -> None:
        scheduler.retire(step, batch, (await launched).result())

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(loop())
