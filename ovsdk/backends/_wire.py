"""Messages between a host process and its device process: frames over a socket, large data through shared memory.

A frame is a head, a pickle and nothing else, unless it carries much: then pickle and out-of-band buffers lie in one
segment of shared memory and the frame holds their sizes. Laws:

    no send blocks           what the socket does not take at once waits in an outbox, in order
    one writer, one reader   each direction has its own `Arena`; segments are taken in the order in which they were put
    nothing has a name       the memory is a file that is already unlinked: it ends with the last process that has it
    the reader owns a copy   arrays never look into shared memory, so either side may keep or change what it got

The device process imports this file without the rest of the package: it costs 10 ms there, not 100.
"""

from __future__ import annotations

import copyreg
import functools
import io
import mmap
import os
import pickle
import socket
import struct
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

LARGE = 32 << 10
"""Buffers and pickles of so many bytes go through shared memory. Up to here the socket is no slower (measured), and holds several."""
ALIGN = 64
CHUNK = 1 << 16
PROTOCOL = 5
ATOMS = frozenset((bool, bytes, complex, float, int, str, type(None)))

_HEAD = struct.Struct("<IIQQqq")  # bytes that follow, parts in shared memory, where; number, begin and end
AHEAD = 1
"""In place of a begin, in a message to the device: it may be unpickled there before its turn."""
_FREE, _BUSY = 0, 1
_NOW = socket.MSG_DONTWAIT
_QUIET = _NOW | getattr(socket, "MSG_NOSIGNAL", 0)  # a host that restored SIGPIPE must not die of a dead device


Send = Callable[["bytes | bytearray", int], int]
"""As `socket.send`: data and flags; how much was taken. Raises as it does."""
Packed = tuple[bytes, list[memoryview]]
"""A pickled value and its out-of-band buffers, which are still the sender's memory."""


class Frame(NamedTuple):
    """A message that has come, copied out of shared memory but not yet unpickled. An answer has the number of what it answers."""

    number: int
    begin_ns: int
    end_ns: int
    body: bytes | bytearray
    buffers: Sequence[bytearray]

    def value(self) -> Any:
        """Unpickle it. Raises whatever unpickling raises."""
        return pickle.loads(self.body, buffers=self.buffers)


def _reduce_tensor(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, getattr(torch, "Tensor", ())):
        return NotImplemented
    from ovsdk.backends._tensors import reduce

    return reduce(value)  # type: ignore[arg-type]


class _Tensors(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _reduce_tensor(value)


@functools.cache
def _by_value() -> type[pickle.Pickler]:
    import cloudpickle

    pickler = cloudpickle.Pickler
    own = {kind: reduce for kind, reduce in dict(pickler.dispatch_table).items() if copyreg.dispatch_table.get(kind) is not reduce}

    class ByValue(pickler):  # type: ignore[misc, valid-type]
        @property
        def dispatch_table(self) -> dict[type, Any]:
            """Cloudpickle's own has the same items, but is a ChainMap: a slow answer to the question about each array."""
            return {**copyreg.dispatch_table, **own}

        def reducer_override(self, value: Any) -> Any:
            if not isinstance(value, (types.FunctionType, type)):
                return _reduce_tensor(value)
            if (value.__module__ or "").partition(".")[0] == "numpy":
                return NotImplemented  # what each array names: by reference, and cloudpickle takes its time to find that out
            return super().reducer_override(value)

    return ByValue


class Dumps(Protocol):
    """As `pickle.dumps`, which is the fastest of them, but sends torch tensors as slow copies."""

    def __call__(self, value: Any, /, *, protocol: int, buffer_callback: Callable[[pickle.PickleBuffer], bool]) -> bytes: ...


def plain(values: Iterable[Any]) -> bool:
    """Whether `pickle.dumps` is right for each: numbers, text, arrays of them. It takes a fraction of the time that `by_value` takes."""
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    for value in values:  # noqa: SIM110  # a generator takes longer
        if type(value) not in ATOMS and (type(value) is not array or value.dtype.hasobject):
            return False
    return True


def tensors(value: Any, /, **how: Any) -> bytes:
    """Pickle with torch tensors as buffers."""
    return _dump(_Tensors, value, how)


def by_value(value: Any, /, **how: Any) -> bytes:
    """The same, and functions and classes of `__main__`, lambdas and closures travel by value: cloudpickle's way."""
    return _dump(_by_value(), value, how)


def _dump(pickler: type[pickle.Pickler], value: Any, how: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    pickler(file, **how).dump(value)
    return file.getvalue()


def pack(value: Any, dumps: Dumps) -> Packed:
    """Pickle a value, leaving large buffers aside. Raises whatever pickling raises."""
    buffers: list[memoryview] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < LARGE:
            return True
        buffers.append(view)
        return False

    return dumps(value, protocol=PROTOCOL, buffer_callback=in_band), buffers


def nameless_file() -> int:
    """A descriptor of a file in memory that has no name (on systems without memfd: a temporary file, unlinked)."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ovsdk")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _room(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class Arena:
    """Shared memory of one direction: a file that only grows, cut in segments of a power of two bytes.

    A segment begins with its state, one byte. Segments are freed in the order in which they were put, so if the oldest
    of a size is busy then all of that size are, and a new one is cut.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._size, self._end = fd, 0, 0
        self._map: mmap.mmap | None = None
        self._cut: dict[int, deque[int]] = {}
        self._fence = threading.Lock()

    def put(self, parts: Sequence[bytes | memoryview]) -> int:
        """Copy `parts` into a free segment and return where it is. Raises MemoryError if the file cannot grow."""
        at, memory = self._claim(ALIGN + sum(_room(len(part)) for part in parts))
        memory[at] = _BUSY
        at_part = at + ALIGN
        for part in parts:
            memory[at_part : at_part + len(part)] = part
            at_part += _room(len(part))
        return at

    def take(self, at: int, sizes: Iterable[int]) -> list[bytearray]:
        """Copy the parts out of the segment and free it."""
        sizes = tuple(sizes)
        memory = self._reach(at + ALIGN + sum(map(_room, sizes)))
        parts, at_part = [], at + ALIGN
        with self._fence, memoryview(memory) as view:
            for size in sizes:
                parts.append(bytearray(view[at_part : at_part + size]))
                at_part += _room(size)
        with self._fence:  # taking the lock again keeps this store behind the copies on every kind of processor
            memory[at] = _FREE
        return parts

    def _claim(self, size: int) -> tuple[int, mmap.mmap]:
        size = 1 << (size - 1).bit_length()
        cut = self._cut.setdefault(size, deque())
        memory = self._reach(self._end)
        if cut and memory[cut[0]] == _FREE:
            cut.rotate(-1)
            return cut[-1], memory
        memory = self._reach(self._end + size)
        cut.append(self._end)
        self._end += size
        return cut[-1], memory

    def _reach(self, end: int) -> mmap.mmap:
        """The file, mapped at least up to `end`."""
        if self._map is None or end > self._size:
            try:
                fresh = self._remap(end)
            except OSError as error:
                raise MemoryError(f"no shared memory for {end} bytes: {error}") from error
            if self._map is not None:
                self._map.close()
            self._map, self._size = fresh, len(fresh)
        return self._map

    def _remap(self, end: int) -> mmap.mmap:
        """The whole file, mapped. Only the writer ever finds it too short, and makes it longer."""
        size = os.fstat(self._fd).st_size
        if size < max(end, 1):
            size = max(end, 2 * size, 1 << 20)
            os.ftruncate(self._fd, size)
        return mmap.mmap(self._fd, size)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self._fd)


class Channel:
    """One end of the wire. Sending and receiving may be done by two threads, each of them by one at a time. `send`: if not the socket's."""

    def __init__(self, sock: socket.socket, outgoing: Arena, incoming: Arena, send: Send | None = None) -> None:
        self._sock, self._outgoing, self._incoming, self._send = sock, outgoing, incoming, send or sock.send
        self._outbox, self._inbox, self._read = bytearray(), b"", 0
        self._chunk = memoryview(bytearray(CHUNK))

    @property
    def backlog(self) -> bool:
        """Whether something waits for the socket to take it: then call `flush` once it is writable."""
        return bool(self._outbox)

    def fileno(self) -> int:
        return self._sock.fileno()

    def frame(self, packed: Packed, number: int, begin_ns: int = 0, end_ns: int = 0) -> bytes:
        """The bytes that carry a message, to be sent next. What is large is in shared memory then: MemoryError if it has no room."""
        body, buffers = packed
        if not buffers and len(body) < LARGE:
            return _HEAD.pack(len(body), 0, 0, number, begin_ns, end_ns) + body
        parts: list[bytes | memoryview] = [body, *buffers]
        at = self._outgoing.put(parts)
        sizes = struct.pack(f"<{len(parts)}Q", *map(len, parts))
        return _HEAD.pack(len(sizes), len(parts), at, number, begin_ns, end_ns) + sizes

    def send(self, frame: bytes) -> None:
        """Send a frame and return at once. Raises ConnectionError if the other end has gone."""
        if self._outbox:
            self._outbox += frame
            self.flush()
        elif (taken := self._offer(frame)) < len(frame):
            self._outbox += frame[taken:]

    def flush(self) -> None:
        """Let the socket take what it can. Raises ConnectionError if the other end has gone."""
        while self._outbox and (taken := self._offer(self._outbox)):
            del self._outbox[:taken]

    def _offer(self, data: bytes | bytearray) -> int:
        try:
            return self._send(data, _QUIET)
        except BlockingIOError:
            return 0

    def fill(self, flags: int = _NOW) -> int:
        """Read what has come, up to CHUNK bytes: how many, 0 for none, -1 once the other end has gone."""
        try:
            got = self._sock.recv_into(self._chunk, 0, flags)
        except BlockingIOError:
            return 0
        except ConnectionError:
            return -1
        self._inbox, self._read = self._inbox[self._read :] + bytes(self._chunk[:got]), 0
        return got or -1

    def take(self) -> Frame | None:
        """The oldest message that has come whole, or None."""
        begin = self._read + _HEAD.size
        if len(self._inbox) < begin:
            return None
        length, count, at, number, begin_ns, end_ns = _HEAD.unpack_from(self._inbox, self._read)
        if len(self._inbox) < begin + length:
            return None
        self._read = begin + length
        body = self._inbox[begin : begin + length]
        if not count:
            return Frame(number, begin_ns, end_ns, body, ())
        pickled, *buffers = self._incoming.take(at, struct.unpack(f"<{count}Q", body))
        return Frame(number, begin_ns, end_ns, pickled, buffers)

    def next(self) -> Frame | None:
        """Wait for the oldest message; None once the other end has gone."""
        while (frame := self.take()) is None:
            if self.fill(0) < 0:
                return None
        return frame

    def shutdown(self) -> None:
        """End the connection for both processes, whoever else may hold a copy of the socket."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end has gone already

    def close(self) -> None:
        """Give back socket and memory; other processes keep theirs."""
        self._sock.close()
        self._outgoing.close()
        self._incoming.close()
