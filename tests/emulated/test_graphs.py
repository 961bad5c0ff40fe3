"""Captured launches compute the tokens of eager ones, at any depth; and the tokens show it where an instance is shared by steps."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_npu  # noqa: F401 (torch.npu)

import ovsdk
from ovsdk.backends._streams import Flight
from ovsdk.backends.ascend import emulator
from ovsdk.backends.ascend.graphs import Graphs, host_task
from ovsdk.errors import ConfigError
from ovsdk.models.causal_lm import CausalLM

from ..test_models import MAX_LEN, SLOTS, scheduler, tokens_of, write_model

STEPS = 14
LEVEL = torch.npu.get_task_queue_enable()
captures = pytest.mark.skipif(LEVEL == 2, reason="torch_npu cannot capture at task-queue level 2")


@pytest.fixture(autouse=True)
def slow() -> Iterator[None]:
    """A device that is slower than the host, so that launches really are in flight together."""
    device = emulator.active()
    assert device is not None, "run it under `ovsdk emulate`"
    device.latency("*", 1000)
    yield
    device.clear_latencies()


class Model:
    def __init__(self, device: str) -> None:
        self.state = torch.zeros(4, dtype=torch.int64, device=device)
        self.calls = 0

    def step(self, x: Any, scale: int = 3) -> Any:
        self.state.copy_(self.state * scale + x)
        return {"tokens": self.state + 1, "double": (self.state * 2, "plain")}

    def waits(self, x: Any) -> Any:
        self.state.add_(int((x * 2)[0].item()))
        return {"tokens": self.state + 1}

    def forks(self, x: Any) -> Any:
        """Half of the work on a side stream, joined before it returns."""
        compute, side = torch.npu.current_stream(), torch.npu.Stream()
        side.wait_stream(compute)
        with torch.npu.stream(side):
            half = x * 5
        y = self.state * 3
        compute.wait_stream(side)
        self.state.copy_(y + half)
        return {"tokens": self.state + 1}

    def scaled(self, x: Any, scale: int) -> Any:
        """The scale is a host value of the operator, as a list of lengths would be."""
        factor = torch.empty_like(x)
        host_task(lambda scale: factor.fill_(scale), scale=scale)
        self.state.copy_(self.state * factor + x)
        return {"tokens": self.state + 1}


class Engine:
    def __init__(self, method: str, graph: Callable[[int], Any], host: Callable[[int], dict[str, Any]]) -> None:
        self.method, self.graph, self.host = method, graph, host

    def open(self, backend: Any) -> None:
        self.model = backend.load(Model)

    def prepare(self, step: int, batch: int) -> Any:
        return np.full(4, batch % 7, np.int64)

    def launch(self, step: int, inputs: Any) -> ovsdk.Launch:
        return ovsdk.Launch("decode", fn=getattr(self.model, self.method), inputs=inputs, graph=self.graph(step), host=self.host(step))


class Numbers:
    def __init__(self) -> None:
        self.results = list[Any]()

    def plan(self, ask: Any) -> Any:
        return ask.step if ask.step < STEPS else ovsdk.CLOSED

    def retire(self, step: int, batch: int, result: Any) -> None:
        self.results.append(result["tokens"].tolist())


def run(
    method: str = "step",
    *,
    depth: int = 2,
    driver: str = "inline",
    graph: Callable[[int], Any] = lambda step: "decode",
    host: Callable[[int], dict[str, Any]] = lambda step: {},
    **options: Any,
) -> tuple[list[Any], list[str]]:
    """The tokens of a run, and what its report says of graphs."""
    numbers = Numbers()
    with ovsdk.open_backend("ascend", **options) as npu:
        report = ovsdk.run(numbers, Engine(method, graph, host), npu, depth=depth, driver=driver)
    return numbers.results, [note for note in report.notes if note.startswith("graph ")]


def eagerly(method: str = "step", **options: Any) -> list[Any]:
    tokens, notes = run(method, depth=1, graphs="off", **options)
    assert notes == []
    return tokens


# ---- tokens ----


@pytest.mark.parametrize("driver", ["inline", "threads"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("method", ["step", "forks"])
def test_tokens_are_those_of_eager_launches(method: str, depth: int, driver: str) -> None:
    tokens, notes = run(method, depth=depth, driver=driver)
    assert tokens == eagerly(method)
    if LEVEL == 2:
        assert notes == [
            (
                f"graph decode 'decode': {STEPS} x eager: torch_npu cannot capture at task-queue level 2: "
                "set TASK_QUEUE_ENABLE=1, or open the backend with task_queue=1"
            )
        ]
    else:
        assert notes[0].startswith(f"graph decode 'decode': {STEPS - max(2, depth)} replays of {max(2, depth)} instances")


@captures
@pytest.mark.parametrize("depth", [2, 3])
def test_one_instance_for_all_steps_gives_wrong_tokens(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    """The test of the test: the next step's inputs arrive while the instance still reads this one's.

    The stream would notice, for the number that a launch sends along is overwritten, too; so it is made to look away.
    """
    monkeypatch.setattr(Graphs, "_grows", lambda self, known: not known.ring)
    monkeypatch.setattr(Flight, "proven", lambda self: True)
    tokens, _ = run(depth=depth)
    assert tokens != eagerly()
    tokens, _ = run(depth=1)
    assert tokens == eagerly()


@captures
def test_keys_take_turns() -> None:
    """Instances of three keys share memory for what is in between, not for what comes out."""
    tokens, notes = run(graph=lambda step: step % 3)
    assert tokens == eagerly()
    assert len(notes) == 3


@captures
def test_a_small_llama_replays_its_decodes(tmp_path: Path) -> None:
    """The executor of `models` as it is: its keys are a bucket of the prefix and what is sampled with."""
    device = emulator.active()
    assert device is not None
    device.clear_latencies()  # it has some thousands of operators
    folder, answers = write_model(tmp_path), []
    for graphs in ("off", "require"):
        plans = scheduler()
        with ovsdk.open_backend("ascend", graphs=graphs) as npu:
            report = ovsdk.run(plans, CausalLM(folder, slots=SLOTS, max_len=MAX_LEN), npu, depth=2)
        answers.append(tokens_of(plans))
    assert answers[0] == answers[1]
    replays = [int(count) for count in re.findall(r"graph decode .*?: (\d+) replays", "\n".join(report.notes))]
    assert len(replays) == 3
    assert sum(replays) > 20


# ---- host values ----


@captures
def test_host_values_that_change_are_not_replayed() -> None:
    def host(step: int) -> dict[str, Any]:
        return {"scale": 2 if step == 9 else 3}

    tokens, notes = run(host=host)
    assert tokens == eagerly(host=host)
    assert "1 x eager: host values scale differ from those captured" in notes[0]


def test_host_tasks_are_updated() -> None:
    def host(step: int) -> dict[str, Any]:
        return {"scale": 2 + step % 5}

    tokens, notes = run("scaled", depth=3, host=host)
    assert tokens == eagerly("scaled", host=host)
    if LEVEL != 2:
        assert notes[0].startswith(f"graph decode 'decode': {STEPS - 3} replays of 3 instances")


@captures
def test_a_host_task_that_is_not_updated_gives_wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    from ovsdk.backends.ascend.graphs import Graph

    monkeypatch.setattr(Graph, "update", lambda self, host: None)
    tokens, _ = run("scaled", host=lambda step: {"scale": 2 + step % 5})
    assert tokens != eagerly("scaled", host=lambda step: {"scale": 2 + step % 5})


# ---- eager, and why ----


@captures
def test_a_launch_that_waits_cannot_be_captured() -> None:
    tokens, notes = run("waits")
    assert tokens == eagerly("waits")
    assert notes[0].startswith(f"graph decode 'decode': {STEPS} x eager: capture failed: ")


@captures
def test_keys_beyond_the_limit_are_eager() -> None:
    tokens, notes = run(graph=lambda step: step % 3, graph_keys=2)
    assert tokens == eagerly()
    assert notes[-1].startswith("graph other keys: 4 x eager: there are 2 keys already")


@pytest.mark.parametrize("method", ["waits", *(["step"] if LEVEL == 2 else [])])
def test_required_graphs_fail_the_run(method: str) -> None:
    with pytest.raises(ovsdk.StepError) as failed:
        run(method, graphs="require")
    assert isinstance(failed.value.__cause__, ConfigError)
    assert "graphs='require' forbids" in str(failed.value)


@captures
def test_another_shape_under_a_key_is_refused() -> None:
    class Growing(Engine):
        def prepare(self, step: int, batch: int) -> Any:
            return np.full(4 if step < 6 else 1, batch, np.int64)

    with ovsdk.open_backend("ascend") as npu, pytest.raises(ovsdk.StepError, match="promises equal shapes"):
        ovsdk.run(Numbers(), Growing("step", lambda step: "decode", lambda step: {}), npu)


# ---- what stays ----


@captures
def test_graphs_stay_for_the_next_run_and_go_with_the_backend() -> None:
    before = torch.npu.memory_allocated()
    with ovsdk.open_backend("ascend") as npu:
        engine = Engine("step", lambda step: "decode", lambda step: {})
        engine.open(npu)
        engine.open = lambda backend: None  # type: ignore[method-assign] # one model for both runs
        first, second = (ovsdk.run(Numbers(), engine, npu) for _ in range(2))
        replays = [re.findall(r"(\d+) replays of (\d+) instances", " ".join(report.notes)) for report in (first, second)]
    assert replays[0] == [(str(STEPS - 2), "2")]
    ((count, instances),) = replays[1]
    assert (int(count) >= STEPS, instances) == (True, "2")
    gc.collect()
    assert torch.npu.memory_allocated() <= before
