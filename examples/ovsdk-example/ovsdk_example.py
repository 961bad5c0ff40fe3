"""A plugin for ovsdk: a scheduler, `shortest-first`, an executor to try it with, `count`, and a queue, `ring`.

The hooks at the end are all that ovsdk asks of a plugin. They make objects; the objects do the work.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Any

import attrs

from ovsdk import IDLE, Launch, hookimpl
from ovsdk.errors import ConfigError, refuse


@attrs.frozen
class Batch:
    """The jobs that one step serves, and those of them that it ends. `features` is what a simulator prices."""

    jobs: tuple[str, ...]
    last: tuple[str, ...]

    @property
    def features(self) -> Mapping[str, float]:
        """How many jobs."""
        return {"batch": len(self.jobs)}


class ShortestFirst:
    """Serves the `slots` jobs that have least left. `jobs`: name -> steps that it takes; more may arrive as such pairs.

    A job's end is known when its last step is planned, so no step is planned in vain, at any depth.
    Raises ConfigError for a job that takes no step.
    """

    def __init__(self, jobs: Mapping[str, int], slots: int = 1) -> None:
        self.slots, self.left = slots, dict[str, int]()
        self.done: list[str] = []
        """Names in the order in which the jobs ended."""
        for name, steps in jobs.items():
            self._admit(name, steps)

    def plan(self, ask: Any) -> Any:
        """See `ovsdk.interfaces.Scheduler`."""
        for name, steps in ask.arrivals:
            self._admit(name, steps)
        served = sorted(self.left, key=lambda name: (self.left[name], name))[: self.slots]
        if not served:
            return IDLE
        last = tuple(name for name in served if self.left[name] == 1)
        self.left = {name: steps - (name in served) for name, steps in self.left.items() if name not in last}
        return Batch(tuple(served), last)

    def retire(self, step: int, batch: Batch, result: Any) -> None:
        """See `ovsdk.interfaces.Scheduler`."""
        self.done += batch.last

    def _admit(self, name: str, steps: int) -> None:
        if steps < 1:
            raise ConfigError(f"job {name!r} takes {steps!r} steps; a job takes at least 1")
        self.left[name] = steps


class Count:
    """An executor whose device counts the jobs of a step: the smallest there is."""

    def prepare(self, step: int, batch: Batch) -> int:
        """See `ovsdk.interfaces.Executor`."""
        return len(batch.jobs)

    def launch(self, step: int, inputs: int) -> Launch:
        """See `ovsdk.interfaces.Executor`."""
        return Launch("count", fn=int, inputs=inputs, features={"batch": inputs})


class Ring:
    """A bounded FIFO in one list that counts what goes through it. Any threads may share it.

    `puts` and `gets` count; `most` is the largest number of items that were in it at once. `put` raises `queue.Full`
    rather than wait: ovsdk never puts more than `capacity`, so a full ring is a bug and shall be seen.
    """

    def __init__(self, capacity: int) -> None:
        self._items: list[Any] = [None] * capacity
        self._changed = threading.Condition()
        self.puts = self.gets = self.most = 0

    def put(self, item: Any) -> None:
        """Append an item. Raises `queue.Full`."""
        with self._changed:
            if self.puts - self.gets == len(self._items):
                raise queue.Full
            self._items[self.puts % len(self._items)] = item
            self.puts += 1
            self.most = max(self.most, self.puts - self.gets)
            self._changed.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item, waiting up to `timeout` seconds if `block`. Raises `queue.Empty`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.puts > self.gets, timeout if block else 0):
                raise queue.Empty
            slot, self.gets = self.gets % len(self._items), self.gets + 1
            item, self._items[slot] = self._items[slot], None
            return item


@hookimpl
def ovsdk_make_scheduler(name: str, options: Mapping[str, Any]) -> ShortestFirst | None:
    """Offer `shortest-first`, with the options `jobs` and `slots`."""
    if name != "shortest-first":
        return None
    for option in options:
        if option not in ("jobs", "slots"):
            refuse("option of scheduler 'shortest-first'", option, ("jobs", "slots"))
    return ShortestFirst(**options)


@hookimpl
def ovsdk_make_executor(name: str) -> Count | None:
    """Offer `count`."""
    return Count() if name == "count" else None


@hookimpl
def ovsdk_make_queue(name: str, options: Mapping[str, Any]) -> Ring | None:
    """Offer `ring`. ovsdk says in `options` how many items it must hold."""
    return Ring(options["capacity"]) if name == "ring" else None
