"""Planning late: what it gives back of the time that a new request waits, and that it costs no throughput.

One device, always a full batch, requests that join the next step (Poisson arrivals, one a step). Simulated, not measured: D is the
device's time a step, S the host's (plan .5, prepare .2, launch .1, retire .2 of it). A request's first token comes with
the step that it joins:

    depth 1          (D + S) / 2 + way + D + retire         way = plan + prepare + launch
    depth 2, asap    D / 2 + (D - retire) + D + retire
    depth 2, late    D / 2 + 1.2 * way + D + retire

The first is half an interval between plans, then the way to the device, the device, the result. Values are means over
runs with different seeds, and their spread is the half width of the 95 % interval.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from _table import Row, Section, main

import ovsdk
from ovsdk.intervals import interval
from ovsdk.joining import Joining
from ovsdk.metrics import with_latency
from ovsdk.report import Report
from ovsdk.saturated import Priced
from ovsdk.workloads import Poisson, admission, workload

CASES = ((200.0, 10.0), (45.0, 10.0), (45.0, 34.0))
"""D and S in ms."""
RUNS = ((1, "asap"), (2, "asap"), (2, "late"))
PARTS = {"plan": 0.5, "prepare": 0.2, "launch": 0.1, "retire": 0.2}
WITHIN_MS = 3.0
"""How far a mean may lie above its closed form: late planning begins after 8 steps."""


def run(device_ms: float, host_ms: float, depth: int, plan_when: str, requests: int, seed: int, driver: str = "inline") -> Report:
    """One simulated run, with latencies."""
    stages = {f"{stage}_us": 1e3 * host_ms * share for stage, share in PARTS.items()}
    prices = {"schema": 1, "name": "one device", "source": "invented", "stage": stages, "launch": {"step": {"device_us": 1e3 * device_ms}}}
    items = workload(Poisson(1e3 / device_ms), requests, seed, output="fixed:1")
    scheduler = Joining(requests, "step")
    with ovsdk.open_backend("sim", prices=prices) as device:
        report = ovsdk.run(
            scheduler, Priced(), device, depth=depth, driver=driver, plan_when=plan_when, log=True, admission=admission(items, lambda i: i)
        )
    return with_latency(report, scheduler.served, {item.id: item.at_s for item in items})


def expected_ms(device_ms: float, host_ms: float, depth: int, plan_when: str) -> float:
    """Mean TTFT in closed form: see above. Late planning never is later than the device's end or earlier than asap."""
    retire, way = PARTS["retire"] * host_ms, (1 - PARTS["retire"]) * host_ms
    if depth == 1:
        return (device_ms + host_ms) / 2 + way + device_ms + retire
    wait = device_ms - retire if plan_when == "asap" else min(1.2 * way, device_ms - retire)
    return device_ms / 2 + wait + device_ms + retire


def measure(quick: bool) -> Iterator[Row | str]:
    """TTFT and step time of every case."""
    yield "simulated, not measured; closed form: see the head of this file"
    for device_ms, host_ms in CASES:
        for depth, plan_when in RUNS:
            reports = [run(device_ms, host_ms, depth, plan_when, 200 if quick else 2000, seed) for seed in range(2 if quick else 5)]
            yield from _rows(
                f"D={device_ms:g} S={host_ms:g}, depth {depth} {plan_when}",
                reports,
                expected_ms(device_ms, host_ms, depth, plan_when),
                quick,
            )


def _rows(name: str, reports: Sequence[Report], expected: float, quick: bool) -> Iterator[Row]:
    means, tails = ([1e3 * report.latency["ttft_s"][key] for report in reports] for key in ("mean", "p99"))
    of_mean, of_tail, of_step = (interval(values) for values in (means, tails, [1e3 * report.step_s for report in reports]))
    yield Row(f"{name}: TTFT", of_mean.mean, "ms", None if quick else expected + WITHIN_MS, of_mean.high - of_mean.mean)
    yield Row(f"{name}: TTFT, closed form", expected, "ms")
    yield Row(f"{name}: TTFT, 99th percentile", of_tail.mean, "ms", None, of_tail.high - of_tail.mean)
    yield Row(f"{name}: step", of_step.mean, "ms", None, of_step.high - of_step.mean)


SECTIONS = {"ttft": Section("time to first token of requests that join a full batch, simulated", measure)}

if __name__ == "__main__":
    sys.exit(main(__doc__, SECTIONS))
