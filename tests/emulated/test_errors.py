"""Errors on purpose: of a call, of a task, of the device; and that everything works again after a reset.

Without the task queue, so that a call's error is raised by the call; what the backend makes of errors is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_npu  # noqa: F401 (torch.npu)

from ovsdk.backends.ascend.emulator import LOST, Emulator
from ovsdk.errors import ConfigError


def fine() -> bool:
    x = torch.ones(8, device="npu")
    host = torch.empty(8, pin_memory=True)
    host.copy_(x + x, non_blocking=True)
    torch.npu.synchronize()
    return host.tolist() == [2.0] * 8


def copy() -> None:
    torch.empty(8, pin_memory=True).copy_(torch.ones(8, device="npu"), non_blocking=True)


def add() -> None:
    x = torch.ones(8, device="npu")
    x + x


CALLS: dict[str, Callable[[], object]] = {
    "aclrtMemcpyAsyncWithCondition": copy,
    "memcpy_d2h": copy,
    "aclnnAdd": add,
    "aclrtRecordEvent": lambda: torch.npu.Event().record(),
    "aclrtSynchronizeStreamWithTimeout": lambda: torch.npu.current_stream().synchronize(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_fails_once_with_its_code(npu: Emulator, name: str) -> None:
    assert fine()
    npu.fault(name, 507899)
    with pytest.raises(RuntimeError, match="507899"):
        CALLS[name]()
    assert fine()


def test_torch_npu_tries_an_allocation_again(npu: Emulator) -> None:
    npu.fault("aclrtMallocAlign32", 207001)
    assert torch.empty(1 << 26, device="npu").numel() == 1 << 26
    assert fine()


def test_the_message_names_the_function_and_the_emulator(npu: Emulator) -> None:
    npu.fault("aclrtRecordEvent", 507899)
    with pytest.raises(RuntimeError, match="EMULATED NPU: aclrtRecordEvent returned 507899"):
        CALLS["aclrtRecordEvent"]()


def test_a_fault_strikes_after_so_many_calls(npu: Emulator) -> None:
    npu.fault("aclnnAdd", 507899, after=3)
    for _ in range(3):
        add()
    with pytest.raises(RuntimeError, match="507899"):
        add()
    assert fine()


def test_a_task_that_fails_stops_its_stream_and_no_other(npu: Emulator) -> None:
    assert fine()
    one, two = torch.npu.Stream(), torch.npu.Stream()
    x = torch.ones(8, device="npu")
    torch.npu.synchronize()
    npu.fault("aclnnAdd", 507015, on_device=True)
    with torch.npu.stream(one):
        x + x
        with pytest.raises(RuntimeError, match="507015"):
            one.synchronize()
        with pytest.raises(RuntimeError, match="507015"):
            x + x
    with torch.npu.stream(two):
        assert (x + x).cpu().tolist() == [2.0] * 8
    npu.reset()
    one.synchronize()
    assert fine()


def test_a_record_behind_a_failed_task_is_no_success(npu: Emulator) -> None:
    npu.latency("aclnnAdd", 30_000)  # so that the record is enqueued before the task fails
    npu.fault("aclnnAdd", 507015, after=1, on_device=True)
    add()
    add()
    done = torch.npu.Event()
    done.record()
    with pytest.raises(RuntimeError, match="507015"):
        done.synchronize()
    with pytest.raises(RuntimeError, match="507015"):
        done.query()


def test_a_sticky_fault_takes_the_device_until_it_is_reset(npu: Emulator) -> None:
    assert fine()
    torch.npu.empty_cache()
    event = torch.npu.Event()
    event.record()
    npu.fault("aclnnAdd", LOST, sticky=True)
    with pytest.raises(RuntimeError, match=str(LOST)):
        add()
    for call in (event.query, event.record, torch.npu.synchronize, lambda: torch.empty(1 << 26, device="npu")):
        with pytest.raises(RuntimeError, match=str(LOST)):
            call()
    npu.reset()
    assert fine()


def test_who_waits_is_woken_when_the_device_is_lost(npu: Emulator) -> None:
    npu.hang("aclnnAdd")
    add()
    event = torch.npu.Event()
    event.record()
    assert not event.query()
    npu.lose()
    for call in (event.synchronize, torch.npu.synchronize, event.query):
        with pytest.raises(RuntimeError, match=str(LOST)):
            call()
    npu.clear_latencies()
    npu.reset()
    assert fine()


def test_a_task_that_never_ends_is_ended_by_a_reset(npu: Emulator) -> None:
    npu.hang("aclnnAdd")
    add()
    event = torch.npu.Event()
    event.record()
    assert not event.query()
    npu.clear_latencies()
    npu.reset()
    assert event.query()
    assert fine()


def test_the_other_device_is_not_lost(npu: Emulator) -> None:
    other = torch.ones(4, device="npu:1")
    npu.lose(0)
    with torch.npu.device(1):
        assert (other + other).cpu().tolist() == [2.0] * 4
    npu.reset(0)
    assert fine()


def test_an_operator_that_throws_is_a_failed_kernel(npu: Emulator, capfd: pytest.CaptureFixture[str]) -> None:
    """An index out of range: on a real NPU it is not checked, or an exception of a core."""
    table, index = torch.ones(3, 2, device="npu"), torch.tensor([7]).npu()
    torch.nn.functional.embedding(index, table)
    with pytest.raises(RuntimeError, match="507015"):
        torch.npu.synchronize()
    assert "emulated NPU: aclnn" in capfd.readouterr().err
    npu.reset()
    assert fine()


def test_a_fault_without_a_code_and_a_device_that_is_not_there_are_refused(npu: Emulator) -> None:
    with pytest.raises(ConfigError, match="0 is success"):
        npu.fault("aclnnAdd", 0)
    for call in (npu.lose, npu.reset):
        with pytest.raises(ConfigError, match="no emulated device 5"):
            call(5)
