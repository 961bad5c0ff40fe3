"""The host's end of a device process: launches out, answers in, and one place to sleep until something comes.

    answer n belongs to launch n      the device works in order; a number that is passed over was never sent
    who reads wakes the others        any waiting thread may read any answer; it then wakes every other sleeper
    no thread of its own              what has come is read by whoever asks or waits, unpickled by whoever wants it
    a lost device fails all           every launch in flight, at once, and every later one

Locks: `_rx` reads and hands out answers, `_tx` sends; whoever takes both takes `_rx` first. No user code runs in either.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal as signals
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import BackendProtocolError, ConfigError, DeviceError, DeviceLost, DeviceMemoryExhausted, DeviceTimeout
from ..interfaces import Future, Signal
from ._cpu_device import HELLO, Failure
from ._fd_signal import FdSignal
from ._wire import CHUNK, Channel, Frame, Packed

SLICE_NS = 500_000_000
"""No sleep is longer: a device whose socket a grandchild holds open is still found dead within a second."""
PAUSE_NS = (50_000, 1_000_000)
"""First and longest pause between two looks at a foreign future that cannot call back."""
CLOSE_S = 1.0
"""How long a device may take to leave before it is killed."""


class RemoteTraceback(Exception):
    """The text of a traceback in the device process: the `__cause__` of what a launch raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class CpuFuture:
    """Handle of one launch on a device process. `kind` names it; `span_ns` is (begin, end) there, None while not done."""

    __slots__ = ("_frame", "_outcome", "kind", "link", "number", "span_ns")

    def __init__(self, link: Link, kind: str, number: int) -> None:
        self.link, self.kind, self.number = link, kind, number
        self.span_ns: tuple[int, int] | None = None
        self._frame: Frame | None = None
        self._outcome: tuple[bool, Any] | None = None

    def arrive(self, frame: Frame) -> None:
        """Take the answer as it came."""
        self.span_ns = (frame.begin_ns, frame.end_ns)
        self._frame = frame

    def lose(self, error: DeviceLost) -> None:
        """No answer will come."""
        self._outcome = (False, error)

    @property
    def settled(self) -> bool:
        """Whether the outcome is here, as far as anybody has read."""
        return self._frame is not None or self._outcome is not None

    def done(self) -> bool:
        """See `Future.done`. Reads what has come, never waits."""
        if not self.settled:
            self.link.pump()
        return self.settled

    def result(self) -> Any:
        """The value, or raise what the launch raised, with the device's traceback as its cause.

        DeviceError: the outcome cannot be sent, or it was SystemExit or the like. DeviceMemoryExhausted: a MemoryError.
        DeviceLost. DeviceTimeout: the device answered nothing for `timeout_s`; ask again to wait longer.
        """
        if not self.settled:
            self.link.await_answer(self, self.link.timeout_s)
        ok, value = self._open()
        if ok:
            return value
        raise value.with_traceback(None)  # or each call would make the same traceback longer

    @property
    def error(self) -> BaseException | None:
        """What `result` raises; None if it returns a value, or is not done."""
        ok, value = self._open() if self.done() else (True, None)
        return None if ok else value

    def _open(self) -> tuple[bool, Any]:
        with self.link.opening:
            if self._outcome is None:
                assert self._frame is not None
                self._outcome, self._frame = _outcome(self.kind, self._frame), None
            return self._outcome


def _outcome(kind: str, frame: Frame) -> tuple[bool, Any]:
    try:
        ok, value = frame.value()
    except Exception as error:
        lost = DeviceError(f"launch {kind!r} gave a result that cannot be unpickled here: {error}")
        lost.__cause__ = error
        return False, lost
    return (True, value) if ok else (False, _raised(kind, value))


def _raised(kind: str, failure: Failure) -> BaseException:
    data, says, trace = failure
    remote = RemoteTraceback(trace)
    if data is None:
        return _because(DeviceError(f"launch {kind!r} {says}"), remote)
    try:
        error: BaseException = pickle.loads(data)
    except Exception as why:  # many a class with an __init__ of its own does not come back
        return _because(DeviceError(f"launch {kind!r} {says}, which cannot be unpickled here: {why}"), remote)
    _because(error, remote)
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error):
        return _because(
            DeviceMemoryExhausted(f"launch {kind!r} found no memory on the device: {error}; make batches or caches smaller"), error
        )
    if not isinstance(error, Exception):
        return _because(DeviceError(f"launch {kind!r} raised {error!r}: a launch cannot end a process"), error)
    return error


def _because(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


class Link:
    """A running device process, seen from the host. `timeout_s`: longest silence while a launch is waited for."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, timeout_s: float) -> None:
        self.process, self.timeout_s = process, timeout_s
        self.lost, self.answered = "", 0
        """Why the device is gone, if it is; answers so far."""
        self.opening = threading.RLock()
        """Held while an answer is unpickled, so that it is unpickled once."""
        self._channel, self._in_flight, self._sent = channel, deque[CpuFuture](), HELLO + 1
        self._rx, self._tx = threading.Lock(), threading.Lock()
        self._sleepers: list[FdSignal] = []
        self._spare: list[FdSignal] = []
        self._end = weakref.finalize(self, _end, os.getpid(), process, channel)

    def greeted(self) -> CpuFuture:
        """The future of the answer that comes unasked, once, when the device is ready."""
        hello = CpuFuture(self, "start", HELLO)
        self._in_flight.append(hello)
        return hello

    def submit(self, kind: str, packed: Packed, ahead: int = 0) -> CpuFuture:
        """Send a message (`ahead`: 0 or AHEAD) and return at once. Raises DeviceLost; DeviceMemoryExhausted for want of shared memory."""
        try:
            with self._tx:
                if self.lost:
                    raise DeviceLost(self.lost)
                future = CpuFuture(self, kind, self._sent)
                self._sent += 1
                frame = self._channel.frame(packed, future.number, ahead)
                self._in_flight.append(future)
                self._channel.send(frame)
            return future
        except MemoryError as error:
            raise DeviceMemoryExhausted(f"launch {kind!r} cannot send its inputs: {error}") from error
        except ConnectionError:
            self.pump()
            raise DeviceLost(self.lost) from None

    def pump(self, mine: FdSignal | None = None) -> None:
        """Read what has come and hand it out, without waiting. Other sleepers than `mine` are woken."""
        with self._rx:
            if self.lost:
                return
            before = self.answered
            if self._read() < 0:
                self._lose(_epitaph(self.process))
            elif self._channel.backlog:
                self._flush()
            if self.answered == before and not self.lost:
                return
        self._wake(mine)

    def _wake(self, mine: FdSignal | None) -> None:
        for sleeper in tuple(self._sleepers):
            if sleeper is not mine:
                sleeper.set()

    def _read(self) -> int:
        """Hand out all that has come. As `Channel.fill`: 0, or -1 if the device has gone."""
        while (got := self._channel.fill()) > 0:
            while (frame := self._channel.take()) is not None:
                self._hand_out(frame)
            if got < CHUNK:
                return 0
        return got

    def _hand_out(self, frame: Frame) -> None:
        self.answered += 1
        while self._in_flight:
            future = self._in_flight.popleft()
            if future.number == frame.number:  # else Ctrl-C came between the two steps of `submit`, and nobody has that future
                return future.arrive(frame)
        raise BackendProtocolError(f"device process {self.process.pid} answered launch number {frame.number}, which is not in flight")

    def _flush(self) -> None:
        with self._tx, contextlib.suppress(ConnectionError):  # reading will find the end, behind the last answers
            self._channel.flush()

    def _lose(self, why: str) -> None:
        with self._tx:
            self.lost = self.lost or why
            while self._in_flight:
                self._in_flight.popleft().lose(DeviceLost(self.lost))

    def await_answer(self, future: CpuFuture, silence_s: float) -> None:
        """Wait until `future` is settled. Raises DeviceTimeout if the device answers nothing at all for `silence_s`."""
        while not future.settled:
            before = self.answered
            self.wait((future,), None, time.perf_counter_ns() + int(silence_s * 1e9))
            if not future.settled and self.answered == before:
                raise DeviceTimeout(
                    f"device process {self.process.pid} has not answered for {silence_s} s while {future.kind!r} was waited for; "
                    "raise timeout_s (load_timeout_s) if it may take that long, else close the backend: that ends the process"
                )

    def wait(self, futures: Sequence[Future], signal: Signal | None, deadline_ns: int | None) -> int:
        """See `Clock.wait`."""
        if signal is not None and not isinstance(signal, FdSignal):
            raise ConfigError(f"a signal for this wait has to come from this backend's clock.signal(); got {signal!r}")
        with self._sleeper() as mine:
            own = [f for f in futures if isinstance(f, CpuFuture) and f.link is self]
            foreign = [f for f in futures if f not in own]
            patience = _patience(foreign, mine)
            while True:
                self.pump(mine)
                now_ns, done = time.perf_counter_ns(), all(f.settled for f in own) and all(f.done() for f in foreign)
                if (futures and done) or (deadline_ns is not None and now_ns >= deadline_ns):
                    return now_ns
                left_ns = next(patience) if deadline_ns is None else min(next(patience), deadline_ns - now_ns)
                if self._sleep(mine, signal, left_ns):
                    return time.perf_counter_ns()

    def _sleep(self, mine: FdSignal, signal: FdSignal | None, left_ns: int) -> bool:
        """Until something comes; whether that was the signal."""
        poll = select.poll()
        poll.register(mine.fd, select.POLLIN)
        if not self.lost and self._channel.fileno() >= 0:
            poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._channel.backlog else 0))
        if signal is not None:
            if signal.fd < 0:
                return True
            poll.register(signal.fd, select.POLLIN)
        if left_ns < 1_000_000:  # poll counts in whole ms
            time.sleep(left_ns / 1e9)
        ready = [fd for fd, _ in poll.poll(left_ns // 1_000_000)]
        if mine.fd in ready:
            mine.clear()
        if not ready and self.process.poll() is not None:
            self._bury()
        return signal is not None and signal.fd in ready

    def _bury(self) -> None:
        """The process is dead, though somebody holds its end of the connection: its last answers are the last."""
        self.pump()
        with self._rx:
            self._lose(_epitaph(self.process))
        self._wake(None)

    @contextlib.contextmanager
    def _sleeper(self) -> Iterator[FdSignal]:
        """What others wake this thread with; a late wake only makes the next sleeper look once more."""
        try:
            mine = self._spare.pop()
        except IndexError:
            mine = FdSignal()
        self._sleepers.append(mine)
        try:
            yield mine
        finally:
            self._sleepers.remove(mine)
            self._spare.append(mine)

    def end(self, why: str) -> None:
        """End the process, whatever it does; what is in flight is lost. Twice is fine."""
        with self._rx:
            self._lose(why)
            self._end()
        self._wake(None)
        while self._spare:
            self._spare.pop().close()


def _patience(foreign: Sequence[Future], mine: FdSignal) -> Iterator[int]:
    """How long each sleep may last. Foreign futures that can call back wake `mine`, others are looked at."""
    pause_ns = longest_ns = SLICE_NS
    for future in foreign:
        call_back = getattr(future, "add_done_callback", None)
        if call_back is not None:
            call_back(lambda _: mine.set())
        else:
            pause_ns, longest_ns = PAUSE_NS
    while True:
        yield pause_ns
        pause_ns = min(2 * pause_ns, longest_ns)


def _epitaph(process: subprocess.Popen[bytes]) -> str:
    """How the device process came to its end; one that only closed its connection is ended."""
    try:
        code = process.wait(CLOSE_S / 2)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"device process {process.pid} closed its connection and was killed; close the backend and open it again"
    if code >= 0:
        how = f"ended with exit code {code}"
    else:
        name = next((known.name for known in signals.Signals if known == -code), f"signal {-code}")
        how = f"was killed by {name}" + (" (perhaps the kernel, out of memory)" if code == -signals.SIGKILL else "")
    return f"device process {process.pid} {how}; close the backend and open it again"


def _end(owner: int, process: subprocess.Popen[bytes], channel: Channel) -> None:
    """Leave nothing behind. In a fork of the host only its own copies are given back: the device belongs to the host."""
    if os.getpid() == owner:
        channel.shutdown()
        try:
            process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    channel.close()
