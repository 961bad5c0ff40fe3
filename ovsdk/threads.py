"""The two-thread driver, the source text's form: a scheduling thread, an execution thread, two queues between them.

    scheduling thread (the caller's)                 execution thread
    plan -> input_queue ---------------------------> prepare, launch
    retire <- wait for the Future <- output_queue <- the step with its Future; never waits for the device

`depth` batches are submitted ahead, and *launched*: planning ahead but launching late hides nothing. It is for host
work that lets go of the GIL; otherwise the two threads take turns and `inline` is faster.

The ledger is shared without a lock: each counter has one writer (see ledger.py). A step put on a queue belongs to the
thread that takes it. After a put the scheduling thread waits for the execution thread to have taken the step: a woken
thread waits up to a switch interval (5 ms) for the GIL, and that wait would be on the critical path. Where it would
block anyway that still pays, by the way from here to its wait. It does not where steps take less time than an
acknowledgement, judged by how long this thread has just computed without a wait.

The execution thread, too, wakes the other one only where that is worth its cost: for each step that it hands back if
steps take it longer than a wake, otherwise when it is about to sleep. A thread woken before can only wait for the GIL.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from .driver import SchedulingLane, sooner
from .interfaces import Queue
from .ledger import AMEND, DEVICE, LAUNCH, PREPARE
from .stages import Stages, Step
from .types import BLOCKED, MOVED, Progress

WAKE_NS = 50_000
"""What it costs to wake the other thread and wait for it: 54 us in the median, measured with two threads on two cores."""
ACK_S = 1.0
"""Longest wait for an acknowledgement; it is an optimisation, so a late one is no error."""


class ThreadsDriver(SchedulingLane):
    """Two host threads. `input_queue` and `output_queue`: any Queue; each holds at most `depth` steps."""

    def __init__(self, stages: Stages, input_queue: Queue, output_queue: Queue) -> None:
        super().__init__(stages)
        self._there = stages.moves("execution")
        self.input_queue, self.output_queue = input_queue, output_queue
        self._given = self._got = self._came_back = self._taken_back = 0
        """How much was put on either queue, and taken from it: who counts need not ask a queue that is empty. One writer each."""
        self._resumed_ns = self.clock.now_ns()
        """When the scheduling thread last came back from a wait or a hand-over."""
        self._prepared: deque[Step] = deque()
        self._idle, self._wanted, self._taken = True, False, threading.Lock()
        """Whether the execution thread sleeps, or is about to; whether it is to say that it has taken a step; how it says so."""
        self._told, self._took_ns = True, 0
        """Whether the scheduling thread was told of all that was handed back; the longest recent execution of a step."""
        self._thread = threading.Thread(target=self._execute, name="ovsdk-execution", daemon=True)
        self._thread.start()

    # ---- scheduling thread ----

    def _hand_over(self, number: int, amended: bool = False) -> None:
        step, begin_ns = self.stages.steps[number % self.ledger.depth], self.clock.now_ns()
        step.amending = amended
        self._given += 1
        if self._idle and begin_ns - self._resumed_ns >= WAKE_NS:
            self._put_and_wait(step, begin_ns)
        else:
            self.input_queue.put(step)
            self._resumed_ns = begin_ns

    def _put_and_wait(self, step: Step, begin_ns: int) -> None:
        self._taken.acquire(blocking=False)
        self._wanted = True
        self.input_queue.put(step)
        self._taken.acquire(timeout=ACK_S)
        self._resumed_ns = self.clock.now_ns()
        if self.stages.emit is not None:
            self.stages.emit((self.lane, "hand-over", step.number, begin_ns, self._resumed_ns))

    def _take_back(self) -> None:
        while self._taken_back < self._came_back:
            self._taken_back += 1
            item: Any = self.output_queue.get()
            if isinstance(item, BaseException):
                raise item
            item.launched = True

    def _need_device(self, timeout_s: float | None) -> Progress:
        """Wait for the oldest step's futures; where they have not come back yet, for the output queue."""
        if self.stages.oldest().launched and self.ledger.begun[DEVICE] > self.ledger.ended[DEVICE]:
            return super()._need_device(timeout_s)
        return self._need_output(timeout_s)

    def _wait_device(self, step: Step, timeout_s: float | None) -> tuple[int | None, int | None]:
        waited = super()._wait_device(step, timeout_s)
        self._resumed_ns = self.clock.now_ns()
        return waited

    def _sleep(self, next_s: float | None, timeout_s: float | None) -> Progress:
        slept = super()._sleep(next_s, timeout_s)
        self._resumed_ns = self.clock.now_ns()
        return slept

    def _need_output(self, timeout_s: float | None) -> Progress:
        self.signal.clear()
        if self._taken_back < self._came_back:
            self._take_back()
            return MOVED
        begin_ns = self.clock.now_ns()
        end_ns = self._resumed_ns = self.clock.wait((), self.signal, sooner(None, begin_ns, timeout_s))
        if self.stages.emit is not None:
            self.stages.emit((self.lane, "wait launch", self.ledger.ended[DEVICE], begin_ns, end_ns))
        return MOVED if self.signal.is_set() else BLOCKED

    # ---- execution thread ----

    def _execute(self) -> None:
        try:
            for step in iter(self._next, None):
                self._run(step)
        except BaseException as error:  # raised again on the scheduling thread
            self._give_back(error)
            self.signal.set()

    def _next(self) -> Step | None:
        """The next step to execute, acknowledged; None at the end. Before it sleeps it tells the scheduling thread."""
        begin_ns = self.clock.now_ns()
        if self._got == self._given:
            self._idle = True
            self._tell()
        step: Step | None = self.input_queue.get()
        self._idle = False
        self._got += 1
        if self._wanted:
            self._wanted = False
            self._taken.release()
        if self.stages.emit is not None and step is not None:
            self.stages.emit(("execution", "wait batch", step.number, begin_ns, self.clock.now_ns()))
        return step

    def _run(self, step: Step) -> None:
        """Do what a step was handed over for; then launch what may now be launched: it may have waited for an amend."""
        begin_ns = self.clock.now_ns()
        if step.amending:
            step.amending = False
            self._finish(step)
            self._hand_back(step)
        else:
            self.ledger.begun[PREPARE] += 1  # it was handed over, so it is planned
            self._there[PREPARE]()
            self._prepared.append(step)
        while self._prepared and self.ledger.begin_launch():
            self._there[LAUNCH]()
            self._hand_back(self._prepared.popleft())
        self._took_ns = max(self.clock.now_ns() - begin_ns, self._took_ns - (self._took_ns >> 4))

    def _finish(self, step: Step) -> None:
        begin_ns = self.clock.now_ns()
        self.stages.finish(step.number)
        self.stages.settle(AMEND)
        if self.stages.emit is not None:
            self.stages.emit(("execution", "finish", step.number, begin_ns, self.clock.now_ns()))

    def _hand_back(self, step: Step) -> None:
        self._give_back(step)
        self._told = False
        if self._took_ns >= WAKE_NS:
            self._tell()

    def _give_back(self, item: Step | BaseException) -> None:
        self.output_queue.put(item)
        self._came_back += 1

    def _tell(self) -> None:
        """Wake the scheduling thread for what was handed back."""
        if not self._told:
            self._told = True
            self.signal.set()

    def shut(self) -> None:
        """End the execution thread once it has done what it was given."""
        if self._thread.is_alive():
            self._given += 1
            self.input_queue.put(None)
            self._thread.join()
