"""Overlap scheduling in twelve lines. The library's ledger takes the same decisions; a test compares the two."""

from collections import deque
from itertools import count

from ovsdk import CLOSED, Ask


def overlap(scheduler, executor, stream, depth):
    flight = deque()
    for step in count():
        batch = scheduler.plan(Ask(number=step, step=step, now_s=0.0))
        if batch is CLOSED:
            break
        launch = executor.launch(step, executor.prepare(step, batch))
        flight.append((step, batch, stream.submit(launch)))
        if len(flight) == depth:
            step, batch, future = flight.popleft()
            scheduler.retire(step, batch, future.result())
    for step, batch, future in flight:
        scheduler.retire(step, batch, future.result())
