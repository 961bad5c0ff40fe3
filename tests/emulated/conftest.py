"""These files run on the emulated NPU, in a child of the test that names them: see tests/emulation.py."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ovsdk.backends.ascend import emulator

if emulator.ENVIRONMENT not in os.environ:
    collect_ignore_glob = ["*.py"]


@pytest.fixture
def npu() -> Iterator[emulator.Emulator]:
    """What controls the emulated NPU: no task takes time, nothing fails, unless the test says so."""
    npu = emulator.activate()
    yield npu
    npu.timed(True)
    npu.clear_latencies()
    npu.reset()
