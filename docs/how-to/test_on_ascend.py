"""Tests of an engine, for an NPU or for `ovsdk emulate -- pytest test_on_ascend.py`."""

from collections.abc import Iterator

import numpy as np
import pytest

import ovsdk

STEPS = 12


class Model:
    """Lives on the device. Each step builds on what the step before left there."""

    def __init__(self, device: str) -> None:
        import torch

        self.state = torch.zeros(4, dtype=torch.int64, device=device)

    def step(self, x):
        self.state.copy_((self.state * 3 + x) % 1009)
        return self.state + 1


class Engine:
    def open(self, backend) -> None:
        self.model = backend.load(Model)

    def prepare(self, step, batch):
        return np.full(4, batch, np.int64)

    def launch(self, step, inputs):
        return ovsdk.Launch("step", fn=self.model.step, inputs=inputs, graph="step")


class Scheduler:
    def __init__(self) -> None:
        self.tokens: list[list[int]] = []

    def plan(self, ask):
        return ask.step if ask.step < STEPS else ovsdk.CLOSED

    def retire(self, step, batch, result) -> None:
        self.tokens.append(result.tolist())


def tokens(backend, depth: int) -> list[list[int]]:
    scheduler = Scheduler()
    print(ovsdk.run(scheduler, Engine(), backend, depth=depth))
    return scheduler.tokens


@pytest.fixture
def npu() -> Iterator[ovsdk.Backend]:
    try:
        device = ovsdk.open_backend("ascend", syncs="refuse")
    except ovsdk.BackendUnavailable as why:
        pytest.skip(str(why))
    with device:
        yield device


def test_tokens_are_those_of_the_cpu_at_any_depth(npu) -> None:
    with ovsdk.open_backend("cpu") as cpu:
        expected = tokens(cpu, 1)
    for depth in (1, 2, 3):
        assert tokens(npu, depth) == expected
