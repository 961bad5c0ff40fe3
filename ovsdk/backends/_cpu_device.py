"""What runs in the device process of the `cpu` backend: take a message, do it, answer; one at a time, in order.

    every message has one answer    (True, value) or (False, failure), with the ns at which it began and ended
    nothing a launch raises ends the process; only the end of the connection, or of the parent, does
    between two launches there is as little as possible: pack and send the answer, begin; a thread of its own
    reads and unpickles messages, while a launch runs. The answer is packed before the next launch may change it

The process ignores SIGINT: Ctrl-C belongs to the host, which drains. It leaves without `atexit` functions.
It imports nothing of the package but `_wire`; torch and numpy come in with what the user sends.
"""

from __future__ import annotations

import _thread
import gc
import io
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ._wire import AHEAD, PROTOCOL, Arena, Channel, Dumps, Frame, Packed, by_value, pack, tensors

GRACE_S = 0.2
"""How long the main thread has to flush and leave by itself after the host has gone."""

FLUSH_S = 0.01
"""How often an idle device tries again to send what the host has not taken yet."""

SWITCH_S = 50e-6
"""How long the thread that reads messages waits for a launch that computes in Python to let go of the GIL. Usual are 5 ms, and
then a message that comes during such a launch is read after it."""

HELLO = 0
"""Number of the answer that a device gives unasked when it is ready; messages are numbered from the next one."""

Failure = tuple[bytes | None, str, str]
"""The pickled exception, None if there is none or it cannot be pickled; what happened, in words; the traceback's text."""


class Device:
    """Objects that live here, and what may be asked of them through `channel`. `threads` is torch's thread count."""

    def __init__(self, channel: Channel, threads: int) -> None:
        self._channel, self._threads = channel, threads
        self._dumps: Dumps = pickle.dumps
        self._residents: dict[int, Any] = {}
        self._asked: dict[str, Callable[..., Any]] = {"call": _call, "method": self._method, "load": self._load}

    def answer(self, message: Frame | Opened) -> bytes:
        """Do what a message asks and return the frame that answers it. Raises nothing."""
        begin = time.perf_counter_ns()
        try:
            asked, *given = message.value()
            if self._dumps is pickle.dumps and "torch" in sys.modules:
                self._meet_torch()
            begin = time.perf_counter_ns()
            value = self._asked[asked](*given)
            end = time.perf_counter_ns()
            return self._channel.frame(_pack_value(value, self._dumps), message.number, begin, end)
        except BaseException as error:  # SystemExit too: the process is the host's to end
            return self._channel.frame(pack((False, _failure(error)), pickle.dumps), message.number, begin, time.perf_counter_ns())

    def _method(self, key: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return getattr(self._residents[key], name)(*args, **kwargs)

    def _load(self, key: int, build: Callable[[str], Any]) -> list[str] | None:
        built = self._residents[key] = build("cpu")
        gc.collect()
        gc.freeze()  # weights and modules stay: the collector need not look through them between launches
        return public_names(built)

    def _meet_torch(self) -> None:
        """Before the first launch that finds torch here: its thread count belongs to a thread, so it is set in this one."""
        self._dumps = tensors
        sys.modules["torch"].set_num_threads(self._threads)


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def public_names(built: Any) -> list[str] | None:
    """Names that may be methods of `built`; None if its class answers names that it does not list."""
    kind: Any = type(built)
    if hasattr(kind, "__getattr__") and kind.__dir__ is object.__dir__:
        return None
    held = getattr(built, "__dict__", {})

    def may_be_called(name: str) -> bool:
        found = getattr(kind, name, None) or held.get(name)
        return callable(found) or hasattr(found, "__get__") or (found is None and name not in held)

    return [name for name in dir(built) if not name.startswith("_") and may_be_called(name)]


class _Unsendable(Exception):
    """A result that pickling refused."""


_NOTHING: Packed = (pickle.dumps((True, None), protocol=PROTOCOL), [])
"""Packed once: what keeps its results on the device returns None, and then packing is a third of the time between two launches."""


def _pack_value(value: Any, dumps: Dumps) -> Packed:
    if value is None:
        return _NOTHING
    try:
        return pack((True, value), dumps)
    except Exception:  # perhaps something of the host's __main__: that travels by value
        try:
            return pack((True, value), by_value)
        except Exception as error:
            raise _Unsendable(f"returned {_title(type(value))}, which cannot be sent to the host: {error}") from error


def _failure(error: BaseException) -> Failure:
    import traceback

    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next  # the first frame is `answer`
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if isinstance(error, _Unsendable):
        return None, str(error), text
    says = f"raised {_title(type(error))}: {_said(error)}"
    try:
        return by_value(error, protocol=PROTOCOL), says, text
    except Exception as why:
        return None, f"{says}, which cannot be sent to the host: {why}", text


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as why:
        return f"(its text cannot be had: {type(why).__name__})"


def _title(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _watch(fd: int, parent: int) -> None:
    """End this process soon after the connection has ended, or the parent has; a busy main thread cannot."""
    poll = select.poll()
    poll.register(fd, 0)  # only the end of the connection is reported
    while not poll.poll(1000) and os.getppid() == parent:
        pass
    time.sleep(GRACE_S)
    os._exit(0)


class Opened:
    """A message whose value was unpickled before its turn."""

    def __init__(self, frame: Frame) -> None:
        self.number, self._error = frame.number, None
        try:
            self._value = frame.value()
        except Exception as error:
            self._error = error

    def value(self) -> Any:
        """See `Frame.value`."""
        if self._error is not None:
            raise self._error
        return self._value

    _error: Exception | None


class Inbox:
    """Messages in the order in which they came. A thread of its own reads them: while a launch runs, not after it."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._come, self._some = channel, deque[Frame | Opened | None](), _thread.allocate_lock()
        _thread.start_new_thread(self._read, ())

    def next(self) -> Frame | Opened | None:
        """Wait for the next message; None once the other end has gone. Meanwhile what could not be sent yet is sent."""
        while not self._come:
            if self._channel.backlog:
                self._channel.flush()
            self._some.acquire(timeout=FLUSH_S if self._channel.backlog else -1)
        return self._come.popleft()

    def _read(self) -> None:
        while (frame := self._channel.next()) is not None:
            self._put(Opened(frame) if frame.begin_ns == AHEAD else frame)
            del frame
        self._put(None)

    def _put(self, message: Frame | Opened | None) -> None:
        self._come.append(message)
        try:
            self._some.release()
        except RuntimeError:
            pass  # nobody waits


def serve(channel: Channel, device: Device) -> None:
    """Answer messages until the other end has gone. Raises ConnectionError if it goes during an answer."""
    inbox = Inbox(channel)
    while (message := inbox.next()) is not None:
        channel.send(device.answer(message))
        del message  # or its inputs would live until the next launch


def main(sock: int, incoming: int, outgoing: int, parent: int, cores: Iterable[int], threads: int) -> None:
    """Be the device at the other end of `sock`. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    for fd in (sock, incoming, outgoing):
        os.set_inheritable(fd, False)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a launch prints is seen before the device ends
    channel = Channel(socket.socket(fileno=sock), Arena(outgoing), Arena(incoming))
    os.register_at_fork(after_in_child=channel.close)  # a fork of the device must not keep the connection alive
    _thread.start_new_thread(_watch, (sock, parent))
    now = time.perf_counter_ns()
    try:
        channel.send(channel.frame(pack((True, None), pickle.dumps), HELLO, now, now))
        serve(channel, Device(channel, threads))
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass  # the host has gone
    os._exit(0)
