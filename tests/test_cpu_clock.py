"""The clock of the `cpu` backend, several threads at it, and what its capabilities say of the machine."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from ovsdk.backends._cpu_device import SWITCH_S
from ovsdk.backends._link import CpuFuture, Link
from ovsdk.backends._wire import Channel
from ovsdk.backends.cpu import CpuBackend
from ovsdk.errors import BackendProtocolError, ConfigError, DeviceError
from ovsdk.types import Launch, Resident

from .desk import Desk, call, open_pipe

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the device need not import this file


@pytest.fixture(scope="module")
def device() -> Iterator[CpuBackend]:
    with CpuBackend() as backend:
        yield backend


@pytest.fixture(scope="module")
def desk(device: CpuBackend) -> Resident:
    return device.load(Desk)


@pytest.fixture
def fresh() -> Iterator[CpuBackend]:
    with CpuBackend() as backend:
        yield backend


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    """The name of a pipe that `Desk.wait_for` waits for."""
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


def test_a_signal_is_level_triggered_and_closed_with_its_backend(fresh: CpuBackend) -> None:
    flag = fresh.clock.signal()
    assert not flag.is_set()
    flag.clear()
    for _ in range(3):
        flag.set()
    fresh.clock.wait((), flag, None)
    assert flag.is_set()
    fresh.clock.wait((), flag, None)  # set stays set
    flag.clear()
    assert not flag.is_set()
    fresh.close()
    flag.set()
    flag.clear()
    assert flag.is_set()
    fresh.clock.wait((), flag, None)


def test_a_full_pipe_is_a_set_signal(monkeypatch: pytest.MonkeyPatch, fresh: CpuBackend) -> None:
    """Where there is no eventfd."""
    monkeypatch.delattr(os, "eventfd")
    flag = fresh.clock.signal()
    for _ in range(20_000):
        flag.set()
    assert flag.is_set()
    flag.clear()
    assert not flag.is_set()


def test_a_signal_from_another_thread_ends_a_wait(fresh: CpuBackend, pipe: str) -> None:
    flag, desk = fresh.clock.signal(), fresh.load(Desk)
    blocked = fresh.stream().submit(Launch("block", fn=desk.wait_for, inputs=(pipe,)))
    thread = threading.Thread(target=flag.set)
    thread.start()
    fresh.clock.wait((blocked,), flag, None)
    thread.join()
    assert flag.is_set()
    assert not blocked.done()
    open_pipe(pipe)
    assert blocked.result() == "go"


def test_a_passed_deadline_gives_the_time_and_no_more(fresh: CpuBackend, pipe: str) -> None:
    desk, clock = fresh.load(Desk), fresh.clock
    blocked = fresh.stream().submit(Launch("block", fn=desk.wait_for, inputs=(pipe,)))
    for ahead_ns in (-1, 0, 100_000, 3_000_000):
        deadline_ns = clock.now_ns() + ahead_ns
        assert clock.wait((blocked,), None, deadline_ns) >= deadline_ns
        assert clock.wait((), clock.signal(), deadline_ns) >= deadline_ns
        assert not blocked.done()
    open_pipe(pipe)
    assert blocked.result() == "go"


def test_lap_reads_the_clock(device: CpuBackend) -> None:
    before = device.clock.now_ns()
    assert before <= device.clock.lap(0, 0, None) <= device.clock.lap(1, 0, {"batch": 1}) <= device.clock.now_ns()


def test_a_signal_of_another_clock_is_refused(device: CpuBackend) -> None:
    with pytest.raises(ConfigError, match=r"clock\.signal\(\)"):
        device.clock.wait((), threading.Event(), None)


class Polled:
    """A foreign future that cannot call back: done when looked at for the third time."""

    def __init__(self) -> None:
        self.looks = 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks >= 3

    def result(self) -> int:
        return self.looks


def test_foreign_futures_are_waited_for_too(device: CpuBackend, desk: Resident) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool, CpuBackend() as other:
        futures = [
            device.stream().submit(Launch("echo", fn=desk.echo)),
            pool.submit(len, "abc"),
            Polled(),
            other.stream().submit(Launch("other", fn=len, inputs=("abc",))),
        ]
        device.clock.wait(futures, None, None)
        assert all(future.done() for future in futures)


class Late(concurrent.futures.Future[int]):
    """Done by another thread, once somebody waits for its callback."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.Thread(target=self.set_result, args=(1,))

    def add_done_callback(self, fn: Any) -> None:
        super().add_done_callback(fn)
        self.thread.start()


HOUR_NS = 3_600_000_000_000


def test_a_foreign_callback_wakes_the_wait(device: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovsdk.backends._link.SLICE_NS", HOUR_NS)  # so nothing else would
    for _ in range(20):
        future = Late()
        device.clock.wait((future,), None, None)
        assert future.done()
        future.thread.join()


def test_whoever_reads_an_answer_wakes_the_thread_that_waits_for_it(fresh: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread reads the answer after the waiting one has looked and before it sleeps, with nothing else to wake it."""
    monkeypatch.setattr("ovsdk.backends._link.SLICE_NS", HOUR_NS)
    sleep, stolen = Link._sleep, []

    def steal() -> None:
        while not future.done():
            pass
        stolen.append(future)

    def late_sleep(link: Link, *args: Any) -> bool:
        thread = threading.Thread(target=steal)
        thread.start()
        thread.join()
        return sleep(link, *args)

    future = fresh.stream().submit(Launch("note", fn=fresh.load(Desk).note, inputs=(1,)))
    with monkeypatch.context() as patch:
        patch.setattr(Link, "_sleep", late_sleep)
        patch.setattr(Link, "pump", _seldom(Link.pump))
        fresh.clock.wait((future,), None, None)
    assert stolen == [future]
    assert future.result() == 0


def _seldom(pump: Any) -> Any:
    """Reading that finds nothing the first time, as if it had come too early."""
    looks = itertools.count()
    return lambda link, mine=None: pump(link, mine) if next(looks) else None


def test_many_threads_wait_for_one_launch_each(fresh: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovsdk.backends._link.SLICE_NS", HOUR_NS)
    desk = fresh.load(Desk)
    waiting = [fresh.stream().submit(Launch("note", fn=desk.note, inputs=(n,))) for n in range(400)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda mine: [future.result() for future in mine], [waiting[k::4] for k in range(4)]))
    assert sorted(answer for some in answers for answer in some) == list(range(400))


def test_ctrl_c_in_the_middle_of_a_submit_mixes_up_no_answers(fresh: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    desk = fresh.load(Desk)
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fresh.stream().submit(Launch("never", fn=desk.note, inputs=(1,)))
    futures = [fresh.stream().submit(Launch("echo", fn=desk.echo, inputs=(n,))) for n in range(3)]
    assert [future.result()[0][0] for future in futures] == [0, 1, 2]


def test_an_answer_to_nothing_is_the_backends_fault(fresh: CpuBackend) -> None:
    """A launch that forges a frame with a number of its own."""

    def forge() -> None:
        from _ovsdk_device import _wire  # type: ignore[import-not-found]

        channel = next(found for found in __import__("gc").get_objects() if isinstance(found, _wire.Channel))
        channel.send(channel.frame(_wire.pack((True, 0), _wire.tensors), 99))

    with pytest.raises(BackendProtocolError, match="launch number 99, which is not in flight"):
        call(fresh, forge)


def test_one_thread_submits_while_another_waits(fresh: CpuBackend) -> None:
    desk, ready = fresh.load(Desk), deque[CpuFuture]()

    def submit() -> None:
        for n in range(500):
            ready.append(fresh.stream().submit(Launch("echo", fn=desk.echo, inputs=(n,))))

    thread = threading.Thread(target=submit)
    thread.start()
    seen = []
    while len(seen) < 500:
        if ready:
            seen.append(ready.popleft().result()[0][0])
    thread.join()
    assert seen == list(range(500))


# ---- the machine ----


def test_facts_and_capabilities_are_true() -> None:
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    for pin in (True, False):
        with CpuBackend(pin=pin, threads=3) as backend:
            facts = backend.capabilities.facts
            there = call(backend, lambda: (os.getpid(), os.environ["OMP_NUM_THREADS"], sys.path, getattr(os, "sched_getaffinity", None)))
            assert (facts["pid"], str(facts["threads"]), sys.path) == there[:3]
            assert facts["threads"] == 3
            assert call(backend, sys.getswitchinterval) == pytest.approx(SWITCH_S)
            assert facts["pinned"] == (pin and len(allowed) > 1 and hasattr(os, "sched_setaffinity"))
            assert list(facts["cores"]) == (allowed[1:] if facts["pinned"] else allowed)
            if there[3]:
                assert call(backend, os.sched_getaffinity, 0) == set(facts["cores"])
            assert backend.capabilities.can["parallel"] is True or len(allowed) == 1
            assert {backend.capabilities.can[name] for name in ("asynchronous", "executes", "wall_clock")} == {True}
    assert (sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else allowed) == allowed  # the host is not pinned


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_counts_its_threads_on_the_device(threads: int) -> None:
    pytest.importorskip("torch")
    with CpuBackend(threads=threads) as backend:
        loaded = backend.load(_torch_desk)
        assert call(backend, loaded.count) == threads


def _torch_desk(_: str) -> Any:
    import torch

    torch.set_num_threads(7)  # a model's own idea, which the device's option overrules

    class TorchDesk:
        def count(self) -> int:
            return torch.get_num_threads()

    return TorchDesk()


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": 1.5},
        {"threads": True},
        {"pin": "yes"},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"load_timeout_s": "1"},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ConfigError, match=rf"{name} is .*got {value!r}"):
        CpuBackend(**options)


def test_a_start_does_not_import_what_it_does_not_need(device: CpuBackend) -> None:
    with CpuBackend() as backend:
        loaded = backend.stream().submit(Launch("modules", fn=eval, inputs=("list(__import__('sys').modules)",))).result()
    assert not {"numpy", "torch", "attrs", "attr", "cloudpickle", "ovsdk"} & set(loaded)


def test_two_clocks_would_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.perf_counter_ns
    monkeypatch.setattr(time, "perf_counter_ns", lambda: real() + 3_600_000_000_000)
    with pytest.raises(DeviceError, match="clocks of host and device"):
        CpuBackend()
