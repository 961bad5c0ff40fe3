"""One case on the NPU of this process, an emulated one: operators that take what a price file says, host work of the same file.

    python _ascend_case.py PLACEMENT POSITION DEPTH STEPS      one JSON object: step times in ns; copies and synchronisations a step

The host's work is Python that keeps the GIL until the time that the file gives is over: stages, and around each operator its
enqueue. Everything between is real: the loop, the backend, torch_npu with its task queue and streams. The operator of the source
text knows its axes (`host-shape`), reads them on the host (`host-value`: it waits for the device), reads them itself (`in-kernel`),
comes behind one that reads them (`device-metadata`), or behind the AICPU (`aicpu`).
"""

from __future__ import annotations

import importlib
import importlib.resources
import itertools
import json
import sys
import time
from typing import Any

import numpy

import ovsdk
from ovsdk import CLOSED, Answer, Ask, Launch
from ovsdk.backends.ascend import emulator
from ovsdk.backends.ascend.emulator.figures import figures
from ovsdk.backends.sim import load_prices

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PROFILE, OP = "longcat-flash-b8-4k", "reduce_sum"
PLAYS = {"embed": "aclnnSin", "attention": "aclnnCos", "moe": "aclnnExp", OP: "aclnnReduceSum", "sample": "aclnnTanh"}
"""Operator of the file -> the small torch operator that plays it; the emulated NPU gives it the file's time."""
METADATA = "aclnnFloor"
"""Plays the operator that computes a tiling on the device."""
WARM = 5


def spin(until_ns: int) -> None:
    """Host work: Python until then."""
    while time.perf_counter_ns() < until_ns:
        pass


class Priced:
    """The file's host work, in integer ns."""

    def __init__(self, prices: Any) -> None:
        features = prices.launches["decode"].features
        self.stages = {name: int(prices.stages[name].value(features, float) * 1e3) for name in ("plan", "prepare", "retire")}
        op = prices.ops[OP]
        self.enqueue, self.tiling = int(op.host.value({}, float) * 1e3), int(op.placements["host-value"].tiling.value({}, float) * 1e3)

    def stage(self, name: str) -> None:
        """Spend a stage's time."""
        spin(time.perf_counter_ns() + self.stages[name])


class Model:
    """On the device. `step` enqueues the operators of the launch in their order."""

    def __init__(self, names: list[str], priced: Priced, placement: str, device: str) -> None:
        import torch

        self.names, self.priced, self.placement = names, priced, placement
        self.axes = torch.tensor([1], device=device)
        self.play = {"embed": torch.sin, "attention": torch.cos, "moe": torch.exp, "sample": torch.tanh}

    def reduce(self, x: Any) -> Any:
        """The operator whose tiling depends on the values of its axes."""
        axis = 1
        if self.placement == "host-value":
            axis = self.axes.item()  # THE SYNC
            spin(time.perf_counter_ns() + self.priced.tiling)
        if self.placement == "device-metadata":
            self.enqueue(x.floor)
        self.enqueue(x.sum, axis)

    def enqueue(self, operator: Any, *arguments: Any) -> None:
        """Launch an operator; that takes as long as the file says."""
        begin_ns = time.perf_counter_ns()
        operator(*arguments)
        spin(begin_ns + self.priced.enqueue)

    def step(self, x: Any) -> Any:
        """float32[8, 4] in, the same out."""
        for name in self.names:
            if name == OP:
                self.reduce(x)
            else:
                self.enqueue(self.play[name], x)
        return x


class Engine:
    """Scheduler and executor."""

    def __init__(self, names: list[str], priced: Priced, placement: str, steps: int) -> None:
        self.names, self.priced, self.placement, self.steps = names, priced, placement, steps
        self.retired_ns: list[int] = []
        self.began_ns = 0

    def open(self, npu: Any) -> None:
        """Put the model on the device."""
        names, priced, placement = self.names, self.priced, self.placement
        self.model = npu.load(lambda device: Model(names, priced, placement, device))

    def plan(self, ask: Ask) -> int | Answer:
        """A batch, `steps` times."""
        if ask.step == self.steps:
            return CLOSED
        self.began_ns = self.began_ns or time.perf_counter_ns()
        self.priced.stage("plan")
        return ask.step

    def prepare(self, step: int, batch: int) -> tuple[Any, ...]:
        """Inputs that the device needs."""
        self.priced.stage("prepare")
        return (numpy.full((8, 4), batch, numpy.float32),)

    def launch(self, step: int, inputs: tuple[Any, ...]) -> Launch:
        """One step."""
        return Launch("decode", fn=self.model.step, inputs=inputs)

    def retire(self, step: int, batch: int, result: Any) -> None:
        """Check that it is this step's result, and do the rest."""
        assert (result == batch).all(), (step, result)
        self.priced.stage("retire")
        self.retired_ns.append(time.perf_counter_ns())


def price_file(placement: str, position: int) -> dict[str, Any]:
    """The shipped file, with the operator at that position of the launch (negative: where it is) and its tiling so placed."""
    file: dict[str, Any] = toml.loads((importlib.resources.files("ovsdk") / "profiles" / f"{PROFILE}.toml").read_text())
    file["op"][OP]["tiling"] = placement
    if position >= 0:
        names = [op.name for op in load_prices(file).launches["decode"].ops if op.name != OP]
        file["launch"]["decode"]["ops"] = [*names[:position], OP, *names[position:]]
    return file


def measure(placement: str, position: int, depth: int, steps: int) -> dict[str, Any]:
    """Run it."""
    prices = load_prices(price_file(placement, position))
    npu = emulator.activate()
    figures(prices, PLAYS, {"batch": 8}).apply(npu)
    metadata = prices.ops[OP].placements["device-metadata"].op
    assert metadata is not None
    npu.latency(METADATA, metadata.device.value({}, float))
    engine = Engine([op.name for op in prices.launches["decode"].ops], Priced(prices), placement, steps + WARM)
    with ovsdk.open_backend("ascend:0", syncs="count") as backend, npu.trace() as trace:
        report = ovsdk.run(engine, engine, backend, depth=depth)
    tasks = [task.name for task in trace.get().tasks if task.enqueued_ns >= engine.began_ns]
    ends = engine.retired_ns[WARM : len(engine.retired_ns) - depth]  # the last ones find no step behind them
    return {
        "steps_ns": [b - a for a, b in itertools.pairwise(ends)],
        "copies": {name: tasks.count(name) / engine.steps for name in ("memcpy_h2d", "memcpy_d2h")},
        "syncs": {f"{sync.launch} {sync.file}:{sync.line}": count / engine.steps for sync, count in backend.syncs.found.items()},
        "report": str(report),
    }


def sync_line() -> int:
    """Where the model reads its axes."""
    with open(__file__) as file:
        return next(number for number, text in enumerate(file, 1) if text.rstrip().endswith("# THE SYNC"))


if __name__ == "__main__":
    placement, *numbers = sys.argv[1:]
    print(json.dumps(measure(placement, *map(int, numbers))))
