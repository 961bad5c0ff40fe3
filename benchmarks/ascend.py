"""The source text's case on an EMULATED NPU, through the real torch_npu: what overlap hides there, and what a synchronisation costs.

Device 45 ms and exposed host work 34 ms a step, as in `longcat-flash-b8-4k`: serial 79 ms, with overlap 45 ms. Then the operator whose
tiling depends on values: its axes are read on the host, where it comes first, in the middle or before the last operator. Each is
compared with the formula T = D + s + max(0, h_after - d_after) and with the simulator at the same price file. The emulated NPU takes
the file's times; what is measured is the loop, the backend, torch_npu's task queue and this machine's clocks. No accelerator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from _ascend_case import OP, price_file, sync_line
from _table import Row, Section, alternate, main, median

from ovsdk.backends.sim import load_prices
from ovsdk.backends.sim.lower import lower
from ovsdk.plugins import plugin_manager
from ovsdk.simulation import simulate

HERE = Path(__file__).parent
TARGET = 3.0
"""Percent."""
Case = tuple[str, int, int]
"""Placement, position of the operator (-1: as the file has it), depth."""
POSITIONS = {"first": 1, "in the middle": 29, "before the last operator": 57}
CASES: dict[str, Case] = {
    "depth 1": ("host-shape", -1, 1),
    "depth 2": ("host-shape", -1, 2),
    **{f"depth 2, axes read {where}": ("host-value", position, 2) for where, position in POSITIONS.items()},
}
ELSEWHERE: dict[str, Case] = {
    f"{placement}, {where}": (placement, position, 2)
    for placement in ("in-kernel", "device-metadata", "aicpu")
    for where, position in POSITIONS.items()
}
ROUNDS, STEPS = {False: 3, True: 1}, {False: 30, True: 12}


def run_case(placement: str, position: int, depth: int, steps: int) -> dict[str, Any]:
    """One run on the emulated NPU, in a process of its own. Raises CalledProcessError, with what it said."""
    case = [sys.executable, str(HERE / "_ascend_case.py"), placement, *map(str, (position, depth, steps))]
    command = [sys.executable, "-m", "ovsdk", "emulate", "--", *case]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def formula_ms(placement: str, position: int, depth: int) -> float:
    """What a step takes, in ms, from the prices alone.

    Without a synchronisation: the sum of exposed host and device at depth 1, the larger of the two from depth 2 on. With one:
    D + s + max(0, h_after - d_after), with s from the drained stream to the operator's begin, h_after what the lane does from its
    enqueue to the next step's first, d_after the device's work from the operator on.
    """
    prices = load_prices(price_file(placement, position))
    rows = lower(prices, "decode", {}, tilings={OP: placement}).rows
    at = [op.name for op in prices.launches["decode"].ops].index(OP)  # a placement with an operator of its own has no sync
    stages = sum(prices.stage_ns(name, {"batch": 8}) for name in ("plan", "prepare", "retire"))
    device, first, own, latency_ns = sum(row.device_ns for row in rows), rows[0], rows[at], prices.machine.latency_ns
    if placement != "host-value":
        d2h = prices.hardware.d2h
        exposed = stages + first.host_ns + first.launcher_ns + latency_ns + (d2h.latency_ns if d2h else 0)
        return (exposed + device if depth == 1 else max(device, stages + sum(row.host_ns for row in rows))) / 1e6
    visible = own.sync_ns + own.host_ns + own.launcher_ns + latency_ns
    lane = sum(row.host_ns for row in rows[at + 1 :]) + stages + first.host_ns
    return (device + visible + max(0, lane - sum(row.device_ns for row in rows[at:]))) / 1e6


def simulated_ms(placement: str, position: int, depth: int) -> float:
    """What the simulator says of it."""
    report = simulate(plugin_manager(), price_file(placement, position), "decode", depth=depth, steps=24)
    assert report.step_s is not None
    return report.step_s * 1e3


def rows(name: str, runs: list[dict[str, Any]], expected_ms: float, predicted_ms: float) -> Iterator[Row]:
    """Of one case: what a step takes, how far that is from what was expected, copies and synchronisations."""
    measured = median(f"{name}: step, EMULATED NPU", [ns / 1e6 for run in runs for ns in run["steps_ns"]], "ms")
    assert measured.value is not None
    yield measured
    for what, ms in {"the formula": expected_ms, "the simulator": predicted_ms}.items():
        yield Row(f"{name}: {what}", ms, "ms")
        yield Row(f"{name}: EMULATED NPU against {what}", abs(measured.value / ms - 1) * 100, "%", TARGET)
    reads = sum(count for place, count in runs[-1]["syncs"].items() if place.endswith(f"_ascend_case.py:{sync_line()}"))
    others = sum(count for place, count in runs[-1]["syncs"].items() if place.startswith("decode ")) - reads
    for direction in ("memcpy_h2d", "memcpy_d2h"):
        extra = reads if direction == "memcpy_d2h" else 0  # each reading of the axes is a copy of its own
        yield Row(f"{name}: {direction} a step, without the axes", runs[-1]["copies"][direction] - extra, "", 1)
    yield Row(f"{name}: synchronisations a step found at the line that reads the axes", reads, "")
    yield Row(f"{name}: other synchronisations a step in launches", others, "", 0)


def measure(cases: Mapping[str, Case], quick: bool) -> Iterator[Row | str]:
    """These cases, by turns."""
    variants: dict[str, Callable[[], dict[str, Any]]] = {name: partial(run_case, *case, STEPS[quick]) for name, case in cases.items()}
    results = alternate(variants, ROUNDS[quick])
    yield f"{ROUNDS[quick]} alternating runs of {STEPS[quick]} steps each, after one of each that is dropped, each without its first steps"
    yield f"the last report: {[*results.values()][-1][-1]['report']}"
    for name, runs in results.items():
        yield from rows(name, runs, formula_ms(*cases[name]), simulated_ms(*cases[name]))


SECTIONS = {
    "a": Section("the source text's case, EMULATED NPU", partial(measure, CASES)),
    "b": Section("its tiling computed elsewhere: nothing waits, EMULATED NPU", partial(measure, ELSEWHERE)),
}

if __name__ == "__main__":
    sys.exit(main(__doc__, SECTIONS))
