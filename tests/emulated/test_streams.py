"""Streams, events, copies, memory and devices of the emulated NPU, through the real torch_npu at the task-queue level of this process."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest
import torch
import torch_npu

from ovsdk.backends.ascend.emulator import Emulator

MS = 1_000_000


def test_a_pinned_copy_is_asynchronous_and_takes_its_price(npu: Emulator) -> None:
    npu.copies("memcpy_d2h", 50_000, 1)
    device = torch.arange(8.0).to("npu")
    host = torch.full((8,), -1.0, pin_memory=True)
    torch.npu.synchronize()
    with npu.trace() as trace:
        host.copy_(device, non_blocking=True)
        done = torch.npu.Event()
        done.record()
        assert not done.query()
        assert host.tolist() == [-1.0] * 8
        torch.npu.synchronize()
    assert done.query()
    assert host.tolist() == list(range(8))
    (copy,) = trace.get().named("memcpy_d2h")
    assert copy.end_ns - copy.begin_ns == 50 * MS + 32


def test_an_asynchronous_copy_reads_when_it_is_its_turn(npu: Emulator) -> None:
    npu.copies("memcpy_h2d", 50_000, 1)
    host = torch.full((8,), 1.0, pin_memory=True)
    device = torch.empty(8, device="npu")
    torch.npu.synchronize()
    device.copy_(host, non_blocking=True)
    host.fill_(2.0)  # too early: what a staging block must be protected from
    torch.npu.synchronize()
    assert device.cpu().tolist() == [2.0] * 8


def test_a_copy_to_pageable_memory_blocks(npu: Emulator) -> None:
    npu.latency("memcpy_d2h", 5000)
    host = torch.full((8,), -1.0)
    host.copy_(torch.ones(8, device="npu"), non_blocking=True)
    assert host.tolist() == [1.0] * 8


def test_pinned_and_device_memory_are_told_apart() -> None:
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert not torch.empty(4).is_pinned()


def test_a_stream_waits_for_an_event_of_another(npu: Emulator) -> None:
    npu.latency("aclnnAdd", 3000)
    npu.machine(lead_ns=0)
    x = torch.ones(8, device="npu")
    one, two = torch.npu.Stream(), torch.npu.Stream()
    torch.npu.synchronize()
    with npu.trace() as trace:
        with torch.npu.stream(one):
            a = x + x
            done = one.record_event()
        two.wait_event(done)
        with torch.npu.stream(two):
            b = a + x
        torch.npu.synchronize()
    npu.machine(lead_ns=100_000)
    first, second = trace.get().named("aclnnAdd")
    timeline = trace.get().timeline()
    assert [(span.what, span.step) for span in timeline.launched] == [("aclnnAdd", first.stream), ("aclnnAdd", second.stream)]
    assert timeline.virtual
    assert second.begin_ns >= first.end_ns
    assert first.stream != second.stream
    assert b.cpu().tolist() == [3.0] * 8


def test_an_event_that_was_never_recorded_is_done() -> None:
    assert torch.npu.Event().query()


def test_timing_events_measure_emulated_time(npu: Emulator) -> None:
    npu.latency("aclnnAdd", 30_000)
    x = torch.ones(8, device="npu")
    begin, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    x.add(x)  # the records are enqueued while this runs
    begin.record()
    for _ in range(3):
        x.add(x)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(90.0, abs=0.01)


def test_a_host_function_runs_in_its_turn(npu: Emulator) -> None:
    npu.latency("aclnnAdds", 3000)
    seen: list[str] = []
    stream = torch.npu.Stream()
    with npu.trace() as trace:
        with torch.npu.stream(stream):
            torch.ones(8, device="npu").add(1.0)
            torch_npu.npu._launch_host_func(stream, lambda _: seen.append(threading.current_thread().name), None)
        stream.synchronize()
    assert len(seen) == 1
    assert seen[0] != threading.main_thread().name
    assert [task.name for task in trace.get().tasks if task.name in ("aclnnAdds", "callback", "host_function")][-1] != "aclnnAdds"


def test_streams_come_from_a_pool_of_32() -> None:
    streams = [torch.npu.Stream() for _ in range(33)]
    assert streams[0].npu_stream == streams[32].npu_stream
    assert len({stream.npu_stream for stream in streams}) == 32


def test_what_does_not_fit_is_out_of_memory(npu: Emulator) -> None:
    free, total = torch.npu.mem_get_info()
    assert total == npu.options.memory_gb * 2**30
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(total, dtype=torch.uint8, device="npu")
    held = torch.empty(free // 2, dtype=torch.uint8, device="npu")
    assert npu.used_bytes() >= held.numel()
    del held
    torch.npu.empty_cache()
    assert npu.used_bytes() < total // 4


def test_devices_are_separate(npu: Emulator) -> None:
    assert torch.npu.device_count() == npu.options.devices == 2
    other = torch.full((4,), 2.0, device="npu:1")
    assert (other + other).cpu().tolist() == [4.0] * 4
    assert torch.ones(4, device="npu:0").to("npu:1").cpu().tolist() == [1.0] * 4
    assert npu.used_bytes(1) > 0


def test_core_limits_are_kept() -> None:
    assert torch.npu.get_device_limit(0) == {"cube_core_num": 20, "vector_core_num": 40}
    stream = torch.npu.Stream()
    torch.npu.set_stream_limit(stream, 4, 8)
    assert torch.npu.get_stream_limit(stream) == {"cube_core_num": 4, "vector_core_num": 8}
    torch.npu.reset_stream_limit(stream)
    assert torch.npu.get_stream_limit(stream) == {"cube_core_num": 20, "vector_core_num": 40}


def test_many_threads_get_right_results() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        streams = [torch.npu.Stream() for _ in range(3)]
        for i in range(60):
            host = torch.arange(seed + i % 7 + 1).pin_memory()
            with torch.npu.stream(streams[0]):
                x = host.to("npu", non_blocking=True)
                ready = streams[0].record_event()
            streams[1].wait_event(ready)
            with torch.npu.stream(streams[1]):
                y = x + x
                x.record_stream(streams[1])
                ready = streams[1].record_event()
            streams[2].wait_event(ready)
            with torch.npu.stream(streams[2]):
                out = y.to("cpu", non_blocking=True)
                y.record_stream(streams[2])
                done = streams[2].record_event()
            done.synchronize()
            if not torch.equal(out, 2 * torch.arange(seed + i % 7 + 1)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


TOUCH = """
import ctypes, torch, torch_npu
x = torch.ones(4, device="npu")
torch.npu.synchronize()
print("touching", flush=True)
print(ctypes.c_float.from_address(x.data_ptr()).value)
"""


def test_the_host_cannot_touch_device_memory_and_children_are_emulated_too() -> None:
    done = subprocess.run([sys.executable, "-c", TOUCH], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("touching\n")
    assert done.returncode == -11  # SIGSEGV
    assert "EMULATED NPU (" not in done.stderr  # told once, by the parent


def test_what_is_not_emulated_fails_with_its_name(npu: Emulator, capfd: pytest.CaptureFixture[str]) -> None:
    library = npu._library
    assert library.aclrtMallocPhysical(None, ctypes.c_size_t(1), None, 0) == 200001
    assert "aclrtMallocPhysical is not emulated" in capfd.readouterr().err
