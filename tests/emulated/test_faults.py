"""Faults of the emulated NPU under the backend `ascend`: each the right error before its deadline, no hang, and then a backend that works.

An error in torch_npu's task queue ends it for the process, so each fault strikes a forked child of its own.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_npu

from ovsdk import Launch, StepError, hookimpl, open_backend, run
from ovsdk.backends.ascend import task_queue
from ovsdk.backends.ascend.emulator import LOST, Emulator, activate
from ovsdk.errors import DeviceError, DeviceLost, DeviceMemoryExhausted, DeviceTimeout

from ..toys import Count, Failing

assert torch_npu
LEVEL = int(os.environ.get("TASK_QUEUE_ENABLE", "1"))
AICORE, DRIVER = 507015, 507899
STEP = 5
"""Retired when the fault strikes."""
CHILD_S = 40.0


def in_child(test: Callable[[Emulator], None]) -> None:
    """Run a test in a forked child, which has not touched the device yet. It fails with what the child printed."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            faulthandler.dump_traceback_later(CHILD_S * 0.9)  # where it hangs, if it does
            test(activate())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + CHILD_S
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
        signal.sigtimedwait([signal.SIGCHLD], 0.05)
    if ended == (0, 0):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pytest.fail(f"the child was not done after {CHILD_S} s")
    assert ended[1] == 0


class Model:
    def __init__(self, device: str) -> None:
        self.ones = torch.ones(8, device=device)

    def add(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.ones


class Engine:
    def open(self, backend: Any) -> None:
        self.model = backend.load(Model)

    def prepare(self, step: int, batch: int) -> Any:
        return np.full(8, batch, np.float32)

    def launch(self, step: int, inputs: Any) -> Launch:
        return Launch("add", fn=self.model.add, inputs=inputs)


class Striking(Count):
    """Has something happen when step STEP retires."""

    strike: Callable[[], None]

    def retire(self, step: int, batch: int, result: Any) -> None:
        super().retire(step, batch, result)
        if step == STEP:
            self.strike()


def right(scheduler: Count) -> list[int]:
    """The steps that retired, each of which has the right result."""
    assert [result[0] for _, _, result in scheduler.seen] == [batch + 1.0 for _, batch, _ in scheduler.seen]
    return [step for step, _, _ in scheduler.seen]


def struck(strike: Callable[[], Any], depth: int, timeout_s: float = 20.0) -> DeviceError:
    """The error of a run that is struck; what has retired before is right, and the backend closes."""
    scheduler = Striking(12)
    scheduler.strike = strike
    with open_backend("ascend:0", timeout_s=timeout_s) as device, pytest.raises(StepError) as caught:
        run(scheduler, Engine(), device, depth=depth)
    assert right(scheduler) == list(range(caught.value.step))
    assert STEP < caught.value.step <= STEP + depth
    error = caught.value.__cause__
    assert isinstance(error, DeviceError)
    return error


def works(depth: int) -> None:
    """A backend that is opened now gives right results, or in one case of a hundred says at once that it takes a new process."""
    scheduler = Count(5)
    if 0 in task_queue._stuck:
        with pytest.raises(DeviceLost, match="npu:0 cannot be opened in this process any more"):
            open_backend("ascend:0")
        return
    with open_backend("ascend:0", timeout_s=20) as device:
        report = run(scheduler, Engine(), device, depth=depth)
    assert right(scheduler) == [0, 1, 2, 3, 4]
    assert ("without torch_npu's task queue" in str(report)) is (device.capabilities.facts["task_queue"] != LEVEL)


FAULTS: dict[str, tuple[dict[str, Any], int]] = {
    "copy": ({"name": "aclrtMemcpyAsync"}, DRIVER),
    "copy on the device": ({"name": "memcpy_h2d", "on_device": True}, DRIVER),
    "copy back on the device": ({"name": "memcpy_d2h", "on_device": True}, DRIVER),
    "launch": ({"name": "aclnnAdd"}, AICORE),
    "kernel": ({"name": "aclnnAdd", "on_device": True}, AICORE),
    "event": ({"name": "aclrtRecordEvent", "after": 2}, DRIVER),
    "lost in a call": ({"name": "aclrtMemcpyAsync", "sticky": True}, LOST),
    "lost in a kernel": ({"name": "aclnnAdd", "sticky": True, "on_device": True}, LOST),
}
ONE_LAUNCH = ("copy", "launch")
"""Without the task queue these are errors of the launch that made them, not of the device."""


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_the_right_error_and_the_next_backend_works(fault: str, depth: int) -> None:
    def test(npu: Emulator) -> None:
        options, code = FAULTS[fault]
        error = struck(lambda: npu.fault(code=code, **options), depth)
        lost = bool(LEVEL) or fault not in ONE_LAUNCH
        assert isinstance(error, DeviceLost) is lost, error
        assert error.code in (code, None)
        assert str(code) in str(error) or "counts as done" in str(error)
        npu.reset()  # what gets a lost device back
        works(depth)

    in_child(test)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_device_that_is_lost_in_mid_run(depth: int) -> None:
    def test(npu: Emulator) -> None:
        error = struck(npu.lose, depth)
        assert isinstance(error, DeviceLost)
        assert error.code == LOST
        with pytest.raises(DeviceLost, match="restarting it did not help: start a new process"):
            open_backend("ascend:0")
        npu.reset()
        works(depth)

    in_child(test)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stream_that_never_finishes_is_a_timeout(depth: int) -> None:
    def test(npu: Emulator) -> None:
        error = struck(lambda: npu.hang("aclnnAdd"), depth, timeout_s=0.3)
        assert isinstance(error, DeviceTimeout)
        assert "larger timeout_s" in str(error)
        npu.clear_latencies()  # the next one does not hang; this one still does
        works(depth)

    in_child(test)


def test_no_memory_at_load_and_at_launch_is_said_and_passes() -> None:
    def test(npu: Emulator) -> None:
        with open_backend("ascend:0", timeout_s=20) as device:
            with pytest.raises(DeviceMemoryExhausted, match=r"load.*no memory left.*Tried to allocate"):
                device.load(lambda where: torch.empty(1 << 40, dtype=torch.uint8, device=where))
            launch = Launch("big", fn=lambda: torch.empty(1 << 40, dtype=torch.uint8, device="npu:0"))
            with pytest.raises(MemoryError, match="launch 'big'"):
                device.stream().submit(launch).result()
            scheduler = Count(5)
            run(scheduler, Engine(), device)
            assert right(scheduler) == [0, 1, 2, 3, 4]
        works(2)

    in_child(test)


class Abandon:
    @hookimpl
    def ovsdk_step_failed(self) -> str:
        return "abandon"


@pytest.mark.skipif(LEVEL > 0, reason="with the task queue on a failed launch is the end of the device")
def test_a_launch_that_failed_may_be_abandoned_and_its_device_goes_on() -> None:
    def test(npu: Emulator) -> None:
        scheduler = Failing(12)
        with open_backend("ascend:0", timeout_s=20, plugins=[Abandon()]) as device:
            npu.fault("aclnnAdd", AICORE, after=4)
            run(scheduler, Engine(), device)
        assert [(step, type(error).__name__) for step, _, error in scheduler.failed] == [(4, "DeviceError")]
        assert right(scheduler) == [step for step in range(12) if step != 4]

    in_child(test)


@pytest.mark.skipif(LEVEL == 0, reason="there is no task queue")
def test_a_task_queue_that_has_ended_cannot_be_asked_for_again() -> None:
    def test(npu: Emulator) -> None:
        struck(lambda: npu.fault("aclnnAdd", AICORE), 2)
        with pytest.raises((ValueError, DeviceLost), match=r"cannot be .* in this process.* ended: .*aclnnAdd"):
            open_backend("ascend:0", task_queue=1)

    in_child(test)


def test_an_error_that_nobody_asks_for_is_found_while_waiting() -> None:
    """One launch, nothing after it: the future finds the error by itself, long before its deadline."""

    def test(npu: Emulator) -> None:
        with open_backend("ascend:0", timeout_s=1000) as device:
            model = device.load(Model)
            npu.fault("memcpy_d2h", DRIVER, on_device=True)
            future = device.stream().submit(Launch("add", fn=model.add, inputs=(np.ones(8, np.float32),)))
            with pytest.raises(DeviceLost):
                future.result()
            with pytest.raises(DeviceLost):
                device.stream().submit(Launch("add", fn=model.add, inputs=(np.ones(8, np.float32),)))

    in_child(test)
