"""The wire between host and device process: shared memory, frames, and a socket that is full."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk.backends import _wire
from ovsdk.backends._send import keeping_gil
from ovsdk.backends._wire import LARGE, Arena, Channel, by_value, nameless_file, pack, plain
from ovsdk.backends.cpu import CpuBackend
from ovsdk.errors import DeviceMemoryExhausted
from ovsdk.types import Launch

from .desk import call, same, trees

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the device need not import this file


@pytest.fixture(scope="module")
def device() -> Iterator[CpuBackend]:
    with CpuBackend() as backend:
        yield backend


@settings(max_examples=60)
@given(puts=st.lists(st.lists(st.integers(0, 5000), min_size=1, max_size=3), max_size=30), lag=st.integers(0, 4))
def test_an_arena_gives_back_what_was_put(puts: list[list[int]], lag: int) -> None:
    fd = nameless_file()
    writer, reader = Arena(fd), Arena(os.dup(fd))
    held: deque[tuple[int, list[bytes]]] = deque()

    def take() -> None:
        at, parts = held.popleft()
        assert reader.take(at, map(len, parts)) == parts

    for n, sizes in enumerate(puts):
        parts = [bytes([(n + k) % 251]) * size for k, size in enumerate(sizes)]
        held.append((writer.put(parts), parts))
        if len(held) > lag:
            take()
    while held:
        take()
    writer.close()
    reader.close()


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_an_arena_uses_a_segment_again_once_it_has_been_taken(lag: int) -> None:
    fd = nameless_file()
    writer, reader = Arena(fd), Arena(os.dup(fd))
    places = [writer.put([b"x" * 5000]) for _ in range(lag)]
    for n in range(500):
        places.append(writer.put([bytes([n % 251]) * 5000]))
        assert len(reader.take(places[n], [5000])[0]) == 5000
    assert len(set(places)) == lag + 1
    writer.close()
    reader.close()


@pytest.mark.parametrize("size", [LARGE - 1, LARGE])
def test_what_is_large_stays_out_of_the_pickle(size: int) -> None:
    body, buffers = pack([np.zeros(size, np.uint8)], by_value)
    assert (len(body) < 1000, [len(b) for b in buffers]) == ((True, [size]) if size == LARGE else (False, []))


@contextlib.contextmanager
def channels() -> Iterator[tuple[Channel, Channel]]:
    left, right = socket.socketpair()
    to_right, to_left = nameless_file(), nameless_file()
    ends = Channel(left, Arena(to_right), Arena(to_left)), Channel(right, Arena(os.dup(to_left)), Arena(os.dup(to_right)))
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


@settings(max_examples=40)
@given(values=st.lists(trees, min_size=1, max_size=8), chunk=st.integers(1, 200))
def test_frames_survive_any_cutting_of_the_stream(values: list[Any], chunk: int) -> None:
    with channels() as (left, right), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_wire, "CHUNK", chunk)
        came = []
        for n, value in enumerate(values):
            left.send(left.frame(pack(value, by_value), n, -n, n * n))
            while right.fill() > 0:
                while (frame := right.take()) is not None:
                    came.append(frame)
    assert [(f.number, f.begin_ns, f.end_ns) for f in came] == [(n, -n, n * n) for n in range(len(values))]
    assert same([f.value() for f in came], values)


def test_a_channel_whose_other_end_does_not_read_keeps_the_rest_in_order() -> None:
    with channels() as (left, right):
        sent, seen = 0, []
        while not left.backlog or sent % 50:
            left.send(left.frame(pack(None, by_value), sent))
            sent += 1
        while len(seen) < sent:
            left.flush()
            assert right.fill() > 0
            while (frame := right.take()) is not None:
                seen.append(frame.number)
        assert seen == list(range(sent))
        assert not left.backlog


def test_both_ends_see_the_end_of_a_connection() -> None:
    with channels() as (left, right):
        right.send(right.frame(pack("last", by_value), 1))
        right.shutdown()
        assert left.fill() > 0
        assert (left.fill(), right.fill()) == (-1, -1)
        last, after = left.next(), left.next()
        assert last is not None
        assert (last.value(), after) == ("last", None)
        with pytest.raises(ConnectionError):
            left.send(left.frame(pack(None, by_value), 0))


def test_no_shared_memory_is_memory_exhausted_and_harms_nothing(device: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full)
        with pytest.raises(DeviceMemoryExhausted, match=r"launch 'huge' cannot send its inputs: no shared memory .*No space"):
            device.stream().submit(Launch("huge", fn=len, inputs=np.zeros(64 << 20, np.uint8)))
    assert call(device, len, np.zeros(64 << 20, np.uint8)) == 64 << 20


# ---- a send keeps the GIL ----


def lets_go(send: Callable[[bytes, int], int], drain: Callable[[], object]) -> bool:
    """Whether a thread that waits for the GIL gets it during one of many sends. The interpreter itself takes it from nobody."""
    went, gate = [], threading.Lock()

    def wait_for_the_gil() -> None:
        with gate:
            went.append(True)

    for _ in range(200):
        gate.acquire()
        waiting = threading.Thread(target=wait_for_the_gil)
        waiting.start()
        gate.release()
        for _ in range(100):
            send(b"x", socket.MSG_DONTWAIT)
        if went and went.pop():
            return True
        waiting.join()
        went.clear()
        drain()
    return False


@pytest.fixture
def hour_long_turns() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.parametrize(("keeps", "seen"), [(True, False), (False, True)])
def test_a_launch_is_sent_before_any_other_thread_goes_on(hour_long_turns: None, keeps: bool, seen: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert lets_go(keeping_gil(ours) if keeps else ours.send, lambda: theirs.recv(1000)) is seen


def test_a_send_that_cannot_be_done_says_so_as_the_socket_does() -> None:
    ours, theirs = socket.socketpair()
    send = keeping_gil(ours)
    assert send(bytearray(b"abc"), socket.MSG_DONTWAIT) == 3
    with pytest.raises(BlockingIOError):
        deque(iter(lambda: send(b"x" * 10_000, socket.MSG_DONTWAIT), None), maxlen=0)
    theirs.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send(b"x", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    ours.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        send(b"x", socket.MSG_DONTWAIT)


# ---- what is pickled plainly ----


class Number(int):
    """Like an atom, but a class of somebody's."""


@pytest.mark.parametrize(
    ("value", "is_plain"),
    [
        *[(value, True) for value in (1, 1.5, True, None, "x", b"x", 1j, np.arange(3), np.zeros((2, 2), np.float32))],
        *[(value, False) for value in (Number(1), [1], (1,), {}, len, Number, np.array([None]), np.ma.array([1]), np.float64(1))],
    ],
)
def test_only_values_that_name_nobody_s_code_are_pickled_plainly(value: Any, is_plain: bool) -> None:
    assert plain((1, value)) is is_plain
