"""Faults under the backend `ascend`, on the emulated NPU, at every level of torch_npu's task queue; and that the process ends in order."""

from __future__ import annotations

import sys

import pytest

from .emulation import emulated, run_emulated

LOST = """
import numpy, torch
from ovsdk import Launch, StepError, open_backend, run
from ovsdk.backends.ascend import emulator
from tests.toys import Count

npu = emulator.activate()

class Engine:
    def prepare(self, step, batch):
        if step == 3:
            npu.lose()
        return numpy.full(8, batch, numpy.float32)

    def launch(self, step, inputs):
        return Launch("double", fn=lambda x: x + x, inputs=inputs)

try:
    with open_backend("ascend", timeout_s=20) as device:
        run(Count(9), Engine(), device)
except StepError as error:
    print(type(error.__cause__).__name__, error.__cause__.code)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_fault_is_the_right_error_and_the_next_backend_works(level: int) -> None:
    run_emulated("test_faults.py", task_queue=level)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", [0, 1])
def test_a_process_whose_device_was_lost_ends_in_order(level: int) -> None:
    """To free pinned memory then would end it with SIGABRT."""
    done = emulated(sys.executable, "-c", LOST, task_queue=level)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("DeviceLost 507010\n")
