"""The operators of the emulated NPU: see tests/emulated/test_operators.py."""

from __future__ import annotations

import sys

import pytest

from .emulation import emulated, needs_emulator, run_emulated

pytestmark = needs_emulator


@pytest.mark.parametrize("level", [1, 2])
def test_operators(level: int) -> None:
    """torch_npu plans an operator in the calling thread at levels 0 and 1, and in its queue's at level 2."""
    run_emulated("test_operators.py", task_queue=level)


AFTERWARDS = """
import torch, torch_npu
x = torch.arange(5.0).npu()
try:
    torch.searchsorted(x, x).cpu()
except RuntimeError:
    pass
print("READ", (x + 1).cpu())
"""


@pytest.mark.parametrize("level", [0, 1])
def test_nothing_is_read_from_a_device_that_has_refused_an_operator(level: int) -> None:
    """torch_npu raises the refusal once; what its queue drops from then on would be read as whatever was in memory."""
    done = emulated(sys.executable, "-c", AFTERWARDS, task_queue=level)
    assert done.returncode != 0
    assert "READ" not in done.stdout
    assert "SearchSorted" in done.stderr


def test_an_operator_of_the_graph_engine_is_refused_by_name() -> None:
    """torch_npu takes those where it finds no aclnn operator. Its queue has no way back from the error: a process of its own."""
    done = emulated(sys.executable, "-c", "import torch, torch_npu; torch.ones(3, device='npu').std(); torch.npu.synchronize()")
    assert done.returncode != 0
    assert "emulated NPU: ReduceMeanD (an operator of the graph engine, for want of an aclnn one) is not emulated" in done.stderr
