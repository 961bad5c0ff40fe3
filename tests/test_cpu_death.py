"""How a device process ends: killed, stuck, closed, forgotten, orphaned. Nothing hangs and nothing is left."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from ovsdk.backends._link import CpuFuture
from ovsdk.backends._wire import LARGE
from ovsdk.backends.cpu import CpuBackend
from ovsdk.errors import ConfigError, DeviceLost, DeviceTimeout
from ovsdk.types import Launch

from .desk import Desk, alive, call, env, open_pipe

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the device need not import this file
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(scope="module")
def device() -> Iterator[CpuBackend]:
    with CpuBackend() as backend:
        yield backend


@pytest.fixture
def fresh() -> Iterator[CpuBackend]:
    with CpuBackend() as backend:
        yield backend


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    """The name of a pipe that `Desk.wait_for` waits for."""
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


@contextlib.contextmanager
def outlived(pid: int) -> Iterator[None]:
    """The process, nobody's child here, ends soon after the body."""
    fd = os.pidfd_open(pid)
    try:
        yield
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(20_000), f"process {pid} is still there"
    finally:
        os.close(fd)


def check_lost(backend: CpuBackend, futures: list[CpuFuture], how: str) -> None:
    """Everything that may be asked of a backend whose device is gone says so, at once."""
    if futures:
        backend.clock.wait(futures, None, None)
    for future in futures:
        assert future.done()
        with pytest.raises(DeviceLost, match=how):
            future.result()
        assert isinstance(future.error, DeviceLost)
    for _ in range(2):
        with pytest.raises(DeviceLost, match=how):
            backend.stream().submit(Launch("later", fn=len, inputs=("abc",)))
    with pytest.raises(DeviceLost, match=how):
        backend.load(Desk)
    assert backend.clock.wait((), None, backend.clock.now_ns()) > 0
    backend.close()
    backend.close()


def test_a_killed_device_is_lost_with_everything_in_flight(fresh: CpuBackend, pipe: str) -> None:
    desk = fresh.load(Desk)
    ended = fresh.stream().submit(Launch("ended", fn=desk.echo))
    futures = [fresh.stream().submit(Launch("block", fn=desk.wait_for, inputs=(pipe,))) for _ in range(3)]
    fresh.clock.wait((ended,), None, None)
    os.kill(fresh.capabilities.facts["pid"], signal.SIGKILL)
    check_lost(fresh, futures, "killed by SIGKILL .*open it again")
    assert ended.result() == ((), {})


def test_a_device_that_ends_itself_is_lost_with_its_exit_code(fresh: CpuBackend) -> None:
    answered = fresh.stream().submit(Launch("last", fn=len, inputs=("abc",)))
    check_lost(fresh, [fresh.stream().submit(Launch("end", fn=os._exit, inputs=(3,)))], "ended with exit code 3")
    assert answered.result() == 3  # what was answered before is not lost


def test_submit_alone_finds_the_device_dead(fresh: CpuBackend) -> None:
    os.kill(fresh.capabilities.facts["pid"], signal.SIGKILL)
    os.waitid(os.P_PID, fresh.capabilities.facts["pid"], os.WEXITED | os.WNOWAIT)
    with pytest.raises(DeviceLost, match="SIGKILL"):
        fresh.stream().submit(Launch("late", fn=len, inputs=("abc",)))
    check_lost(fresh, [], "SIGKILL")


@linux
def test_a_fork_of_the_device_does_not_hide_its_death(fresh: CpuBackend) -> None:
    def fork() -> int:
        pid = os.fork()
        if not pid:
            signal.pause()
        return pid

    grandchild = call(fresh, fork)
    try:
        os.kill(fresh.capabilities.facts["pid"], signal.SIGKILL)
        check_lost(fresh, [], "SIGKILL") if _lost(fresh) else pytest.fail("not lost")
    finally:
        os.kill(grandchild, signal.SIGKILL)


def _lost(backend: CpuBackend) -> bool:
    os.waitid(os.P_PID, backend.capabilities.facts["pid"], os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(DeviceLost):
        backend.stream().submit(Launch("late", fn=len, inputs=("abc",)))
        return False
    return True


def test_waiting_finds_a_dead_device_though_its_connection_is_open(fresh: CpuBackend) -> None:
    """A grandchild that holds the socket, and no at-fork hook to close it: the process table tells."""

    def hold() -> int:
        link = next(fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}") and "socket" in os.readlink(f"/proc/self/fd/{fd}"))
        return subprocess.Popen(["sleep", "60"], pass_fds=(link,), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid

    if sys.platform != "linux":
        pytest.skip("looks into /proc")
    grandchild = call(fresh, hold)
    try:
        blocked = fresh.stream().submit(Launch("block", fn=signal.pause))
        os.kill(fresh.capabilities.facts["pid"], signal.SIGKILL)
        check_lost(fresh, [blocked], "SIGKILL")
    finally:
        os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize(
    "stuck", [signal.pause, lambda: exec("while True: pass"), lambda: __import__("re").match("(a+)+$", "a" * 64 + "b")]
)
def test_close_ends_a_device_that_is_stuck(stuck: Callable[[], Any]) -> None:
    """In a system call, in Python, and in C that keeps the GIL."""
    backend = CpuBackend()
    future = backend.stream().submit(Launch("stuck", fn=stuck))
    backend.close()
    assert not alive(backend.capabilities.facts["pid"])
    check_lost(backend, [future], "the cpu backend is closed")


def test_an_idle_device_leaves_by_itself() -> None:
    with CpuBackend() as backend:
        call(backend, print, "said", end="")
    assert backend._link.process.returncode == 0


def test_ctrl_c_is_the_hosts_alone(device: CpuBackend) -> None:
    pid = device.capabilities.facts["pid"]
    assert os.getpgid(pid) != os.getpgid(0)
    os.kill(pid, signal.SIGINT)
    assert call(device, len, "abc") == 3


def test_a_device_that_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no interpreter' >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(DeviceLost, match=r"did not start, see its error output: .*exit code 7"):
        CpuBackend()
    assert "no interpreter" in capfd.readouterr().err
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ConfigError, match=r"sys\.executable"):
        CpuBackend()


def test_a_launch_that_takes_too_long_is_a_timeout_and_may_still_come(pipe: str) -> None:
    with CpuBackend(timeout_s=0.05, load_timeout_s=30) as backend:
        desk = backend.load(Desk)
        future = backend.stream().submit(Launch("block", fn=desk.wait_for, inputs=(pipe,)))
        with pytest.raises(DeviceTimeout, match=r"0\.05 s while 'block' was waited for"):
            future.result()
        open_pipe(pipe, "late")
        backend.clock.wait((future,), None, None)
        assert future.result() == "late"


# ---- nothing is left ----


def resources() -> tuple[int, list[str]]:
    """How many descriptors this process has, and its children."""
    return len(os.listdir("/proc/self/fd")), Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@linux
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_devices_leave_nothing() -> None:
    with CpuBackend() as backend:  # what the first one imports stays open
        call(backend, len, np.zeros(LARGE))
    before, shm = resources(), set(os.listdir("/dev/shm"))

    def open_and_close(n: int) -> None:
        with CpuBackend(pin=False) as backend:
            backend.clock.signal()
            if n % 10 == 0:
                call(backend, len, np.zeros(LARGE))

    with ThreadPoolExecutor(2) as threads:  # to start one takes a core most of the time
        assert len(list(threads.map(open_and_close, range(1000)))) == 1000
    assert resources() == before
    assert set(os.listdir("/dev/shm")) <= shm


@linux
def test_a_forgotten_device_ends() -> None:
    backend = CpuBackend()
    pid, gone = backend.capabilities.facts["pid"], weakref.ref(backend)
    backend.stream().submit(Launch("forgotten", fn=signal.pause))
    del backend
    gc.collect()
    assert gone() is None
    assert not alive(pid)


HOST = """
import os, signal, sys
from ovsdk.backends.cpu import CpuBackend
from ovsdk.types import Launch
backend = CpuBackend()
future = backend.stream().submit(Launch("stuck", fn=signal.pause))
print(backend.capabilities.facts["pid"], flush=True)
"""


def host(rest: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOST + rest], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env())


@linux
@pytest.mark.parametrize("rest", ["", "sys.exit(3)", "os.abort()", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_no_device_outlives_its_host(rest: str) -> None:
    """However the host ends. It waits for a line first, so that we have hold of its device."""
    with host("sys.stdin.readline()\n" + rest) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        with outlived(pid):
            process.communicate("go\n")


@linux
def test_no_device_outlives_its_host_though_a_fork_of_the_host_lives() -> None:
    """The fork holds a copy of the connection, so only the parent's id tells the device."""
    with host("child = os.fork()\nif not child: signal.pause()\nprint(child, flush=True)\nsys.stdin.readline()\nos._exit(0)") as process:
        assert process.stdout is not None
        pid, fork = (int(process.stdout.readline()) for _ in range(2))
        try:
            with outlived(pid):
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
        finally:
            os.kill(fork, signal.SIGKILL)


@linux
def test_a_fork_of_the_host_does_not_end_the_device() -> None:
    rest = """
child = os.fork()
if not child: sys.exit(0)
os.waitpid(child, 0)
backend.close() if backend.stream().submit(Launch("late", fn=len, inputs=("abc",))) and not future.done() else sys.exit(1)
"""
    with host(rest) as process:
        assert process.wait(30) == 0
