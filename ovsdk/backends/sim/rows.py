"""What a launch is made of in the simulator: a row per operator. `kernel` and `maxplus` share this and nothing else.

Times are ns. H is the launching lane, L the task-queue thread (torch_npu's launcher, native: it needs no GIL), E[s] the
end of the work on stream s, all of them times. Row i of a run does, in this order:

    sync      H = max(H, L, E[s]) + sync_ns           a host-value tiling: wait for the stream, copy the values, tile
    enqueue   H = H + host_ns                         then H = max(H, taken[i - task])    while the task queue is full
    launch    T = max(H, L, begun[i - device])        while the device queue is full
              L = T + launcher_ns,  taken[i] = T
    device    S = max(L + latency_ns, E[s], every event it waits for) + aicpu_ns
              begun[i] = S,  E[s] = S + device_ns,  and it records its event at E[s]

`taken[j]` is when row j left the task queue, `begun[j]` when row j left its stream's device queue; rows are counted over
the whole run, for the device queue by stream. Without a task queue (level 0) the lane launches itself: lowering then adds
the launcher's time to host_ns, and L = H. When the last row of a launch on each stream has ended, its results are copied,
by the one engine that copies results, in launch order: done = engine = max(engine, ends) + d2h_ns.

A static prefix of each row is a function of the launch alone, so a launch is a max-plus map of (H, L, E) as long as no
queue binds.
"""

from __future__ import annotations

from typing import NamedTuple

NO_SYNC = -1


class Row(NamedTuple):
    """One operator of a launch, priced and lowered. All times in ns, >= 0."""

    op: str
    host_ns: int
    """On the launching lane: enqueue; with task-queue level 0 and 1 tiling too; with level 0 the launcher's part too."""
    launcher_ns: int
    """On the task-queue thread; with level 2 tiling too; 0 with level 0."""
    device_ns: int
    stream: int = 0
    sync_ns: int = NO_SYNC
    """Not NO_SYNC: the lane first waits for the stream, then spends this (D2H of the values, then tiling)."""
    aicpu_ns: int = 0
    """Between the row's inputs being ready and its begin, on the device's AICPU."""
    waits: tuple[int, ...] = ()
    """Indices of earlier rows of this launch whose end it waits for, on other streams."""


class Program(NamedTuple):
    """A launch lowered: its rows in enqueue order, and the copy of its results."""

    kind: str
    rows: tuple[Row, ...]
    d2h_ns: int = 0
    """From the end of its last row until the host may have the result."""


class Machine(NamedTuple):
    """What rows run on, as far as the recurrence sees it."""

    level: int = 1
    """torch_npu's TASK_QUEUE_ENABLE: 0 no queue, 1 queue, 2 queue and tiling on its thread."""
    task: int = 4096
    """Rows that the task queue holds."""
    device: int = 1024
    """Rows that the device queue of a stream holds."""
    latency_ns: int = 0
    """From the launcher's end to the earliest begin on the device."""
    streams: int = 1
    aicpu_workers: int = 1
