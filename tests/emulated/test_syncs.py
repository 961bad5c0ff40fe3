"""What torch_npu's tracer tells of, at the task-queue level that this process has: every wait, at the line that waits, and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_npu  # noqa: F401 (torch.npu)

import ovsdk
from ovsdk.backends.ascend.syncs import Syncs
from ovsdk.errors import DeviceError, SchedulerProtocolError

HERE = "test_syncs.py"


@pytest.fixture(scope="module")
def y() -> Any:
    return torch.ones(4, 4).npu()


@pytest.fixture(scope="module")
def pinned() -> Any:
    return torch.empty(4, 4, pin_memory=True)


def item(y: Any, pinned: Any) -> None:
    (y + y)[0, 0].item()


def to_list(y: Any, pinned: Any) -> None:
    (y + y).tolist()


def to_host(y: Any, pinned: Any) -> None:
    (y + y).cpu()


def truth(y: Any, pinned: Any) -> None:
    assert (y == y)[0, 0]


def blocking_copy(y: Any, pinned: Any) -> None:
    pinned.copy_(y + y)


def pageable_copy(y: Any, pinned: Any) -> None:
    torch.ones(3).npu()


def of_stream(y: Any, pinned: Any) -> None:
    torch.npu.current_stream().synchronize()


def of_event(y: Any, pinned: Any) -> None:
    torch.npu.current_stream().record_event().synchronize()


def of_device(y: Any, pinned: Any) -> None:
    torch.npu.synchronize()


WAITS: list[tuple[Callable[..., None], str]] = [
    *((fn, "stream") for fn in (item, to_list, to_host, truth, blocking_copy, pageable_copy, of_stream)),
    (of_event, "event"),
    (of_device, "device"),
]


@pytest.mark.parametrize(("fn", "waited_for"), WAITS, ids=lambda case: getattr(case, "__name__", case))
def test_every_wait_is_told_at_its_line(y: Any, pinned: Any, fn: Callable[..., None], waited_for: str) -> None:
    found = Syncs("count")
    found.call("decode", fn, (y, pinned), {})
    line = inspect.getsourcelines(fn)[1] + 1
    (sync,) = found.found
    assert (sync.launch, sync.waited_for, sync.line, sync.function) == ("decode", waited_for, line, fn.__name__)
    assert sync.file.endswith(HERE)


def asynchronous(y: Any, pinned: Any) -> None:
    z = torch.mm(y + y, y)
    pinned.copy_(z, non_blocking=True)
    event = torch.npu.Event()
    event.record()
    event.query()
    torch.npu.Stream().wait_event(event)
    z.record_stream(torch.npu.current_stream())
    torch.empty(3, device="npu").zero_()


def test_what_does_not_wait_is_not_told(y: Any, pinned: Any) -> None:
    found = Syncs("refuse")
    found.call("decode", asynchronous, (y, pinned), {})
    torch.npu.synchronize()
    assert found.notes() == ()


def test_an_error_that_the_tracer_loses_is_called_so(y: Any) -> None:
    """A trait of torch_npu 2.13.0. If this fails, the tracer keeps errors now: then it may be on by default."""
    with pytest.raises(DeviceError, match="syncs='off'"):
        Syncs("count").call("decode", lambda: torch.mm(y + y, (y + y)[:2]), (), {})


# ---- in a run ----


class Model:
    def __init__(self, device: str) -> None:
        self.state = torch.zeros(4, dtype=torch.int64, device=device)

    def clean(self, x: Any) -> Any:
        self.state.copy_(self.state * 3 + x)
        return self.state + 1

    def dirty(self, x: Any) -> Any:
        if x[0].item() == 2:
            self.state.zero_()
        return self.clean(x)


DIRTY = inspect.getsourcelines(Model.dirty)[1] + 1


class Engine:
    def __init__(self, method: str) -> None:
        self.method = method

    def open(self, backend: Any) -> None:
        self.model = backend.load(Model)

    def prepare(self, step: int, batch: int) -> Any:
        return np.full(4, batch, np.int64)

    def launch(self, step: int, inputs: Any) -> ovsdk.Launch:
        return ovsdk.Launch("decode", fn=getattr(self.model, self.method), inputs=inputs)


class Numbers:
    def __init__(self, steps: int) -> None:
        self.steps, self.results = steps, list[Any]()

    def plan(self, ask: Any) -> Any:
        return ask.step if ask.step < self.steps else ovsdk.CLOSED

    def retire(self, step: int, batch: int, result: Any) -> None:
        self.results.append(result.tolist())


def run(method: str, syncs: str, steps: int = 6) -> ovsdk.Report:
    with ovsdk.open_backend("ascend", syncs=syncs) as npu:
        return ovsdk.run(Numbers(steps), Engine(method), npu, depth=2)


def test_the_report_says_how_many_and_where() -> None:
    notes = [note for note in run("dirty", "count").notes if "synchronisations" in note]
    assert len(notes) == 1
    assert notes[0].startswith("6 host synchronisations in ")
    assert f"{HERE}:{DIRTY} in dirty (6 x stream, decode)" in notes[0]


def test_nothing_is_said_where_nothing_waits_or_nobody_looks() -> None:
    for report in (run("clean", "refuse"), run("dirty", "off")):
        assert not any("synchronisation" in note for note in report.notes)


def test_a_refused_wait_ends_the_run_at_its_line() -> None:
    with pytest.raises(SchedulerProtocolError, match=rf"{HERE}:{DIRTY} in dirty"):
        run("dirty", "refuse")


@pytest.mark.parametrize("graph", [None, "clean"])
def test_submitting_never_waits(graph: Any) -> None:
    """Not only the function: nothing between `submit` and its return waits for the device, replays included."""
    found = Syncs("count")
    with ovsdk.open_backend("ascend") as npu:
        model, stream = npu.load(Model), npu.stream()
        launch = ovsdk.Launch("decode", fn=model.clean, inputs=np.arange(4), graph=graph)
        for _ in range(3):
            stream.submit(launch).result()  # a capture waits
        results = [found.call("submit", stream.submit, (launch,), {}).result().tolist() for _ in range(6)]
    assert found.notes() == ()
    assert len(set(map(tuple, results))) == len(results)
