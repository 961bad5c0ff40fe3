"""A launch row by row: what lane, launcher, stream and AICPU did for each, by the law of `maxplus`, a row a call.

The recurrence carries a few times through a launch and forgets the rest. Where spans are wanted it goes through the launch again,
from the same times; that is slow, but what comes back with the same times need not be gone through twice: see `Ahead`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .columns import STREAMS, SYNC, WAITS
from .maxplus import State
from .rows import NO_SYNC, Program, Row


class Passage(NamedTuple):
    """When a row went through, in ns. What a `servers.Task` tells has the same name here."""

    row: Row
    title: str
    """Of its stream."""
    blocked_ns: int
    """The lane comes to it; with a sync it waits from here to `freed_ns`."""
    freed_ns: int
    taken_ns: int
    """It leaves the task queue."""
    ready_ns: int
    """It may begin, as far as the launcher is concerned."""
    begin_ns: int
    end_ns: int


def passages(program: Program, state: State, titles: Sequence[str]) -> Iterator[Passage]:
    """Move the state through a launch that the lane begins to enqueue at `state.times[0]`. `titles`: of streams, by `Row.stream`."""
    machine, times, ends = state.machine, state.times, list[int]()
    for row in program.rows:
        place, blocked_ns = STREAMS + row.stream, times[0]
        synced = row.sync_ns != NO_SYNC
        freed_ns = max(blocked_ns, times[1], times[place]) + row.sync_ns if synced else blocked_ns
        state.of.advance(
            times, ends, machine.latency_ns, (row.host_ns,), (row.launcher_ns,), (row.device_ns,), (row.aicpu_ns,), (row.sync_ns,),
            (place,), (SYNC * synced + WAITS * len(row.waits),), row.waits, state.rings, state.at, state.task, machine.device,
        )  # fmt: skip
        ends.append(times[place])
        launched_ns = times[1]
        yield Passage(
            row,
            titles[row.stream],
            blocked_ns,
            freed_ns,
            launched_ns - row.launcher_ns,
            launched_ns + machine.latency_ns,
            times[place] - row.device_ns,
            times[place],
        )
