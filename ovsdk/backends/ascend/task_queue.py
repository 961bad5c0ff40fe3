"""torch_npu's task queue: the host thread between Python and the stream of a device (TASK_QUEUE_ENABLE 0, 1, 2), and its end.

Seen in torch_npu 2.13.0. An error in the queue ends it, and nothing brings it back: not `restart_device`, not another level. The
next launch raises the error, once; later ones are dropped without a word. Without the queue (level 0) the process can go on.
But to change the level torch_npu waits for the queue to be empty, holding the interpreter, and what was launched while the
queue ended may lie in it for ever, once in a hundred times. So a thread of its own first waits for the same, without the
interpreter; if that does not come back, this process is done with the device. All devices of a process have one level.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from ...errors import ConfigError, DeviceLost

LEVELS = (0, 1, 2)
END_S = 0.5
"""How long a queue that has met an error may take to end: it writes a trace of its stack before."""
ended: dict[int, str] = {}
"""Device -> why its queue has ended in this process."""
_stuck: set[int] = set()
"""Devices whose queue has ended and cannot be left."""


def choose(npu: Any, device: int, level: Any) -> None:
    """Set the level for this process; None: leave it.

    Raises ConfigError for a level that does not exist or cannot be had any more; DeviceLost if no device can.
    """
    if device in _stuck:
        raise DeviceLost(
            f"npu:{device} cannot be opened in this process any more, its task queue has ended: {ended[device]}; start a new one"
        )
    if level is None:
        return
    if level not in LEVELS or isinstance(level, bool):
        raise ConfigError(f"task_queue is torch_npu's task-queue level, 0, 1 or 2, or None: as TASK_QUEUE_ENABLE has it; got {level!r}")
    if level and device in ended:
        raise ConfigError(f"task_queue={level} cannot be had in this process, where it ended: {ended[device]}; start a new process")
    npu.set_task_queue_enable(level)


def go_without(npu: Any, device: int, why: str, stream: Any = None) -> None:
    """Launch without the queue from now on, if launches on the stream (None: the current one) show that it has ended."""
    if not npu.get_task_queue_enable():
        return
    _launch(npu, stream)  # raises the error if nobody has been told yet, or has the queue meet it
    time.sleep(END_S / 5)
    if _lives(_launch(npu, stream)):
        return
    ended[device] = why
    if not _empties(npu, device):
        _stuck.add(device)
        return
    with contextlib.suppress(RuntimeError):
        npu.set_task_queue_enable(0)
    npu.set_task_queue_enable(0)


def _launch(npu: Any, stream: Any) -> Any:
    """An event that was recorded just now; None if that raised."""
    event = npu.Event()
    try:
        event.record(*[stream] * (stream is not None))
    except RuntimeError:
        return None
    return event


def _lives(event: Any) -> bool:
    """Whether the queue has recorded an event. One that was dropped is never there; only those recorded before an error lie."""
    try:
        return event is not None and _until(event.query)
    except RuntimeError:
        return False


def _empties(npu: Any, device: int) -> bool:
    """Whether the queue is empty, as torch_npu sees it when it synchronises."""

    def wait() -> None:
        with contextlib.suppress(RuntimeError):  # the device's; the queue has been looked at by then
            npu.synchronize(device)

    thread = threading.Thread(target=wait, name="torch_npu-queue", daemon=True)
    thread.start()
    thread.join(END_S)
    return not thread.is_alive()


def _until(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + END_S
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(1e-3)
    return True
