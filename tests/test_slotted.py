"""The slot scheduler on priced launches, judged by the same scheduler with the model's own executor, of which nothing is computed."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from ovsdk import open_backend, run
from ovsdk.cli import main
from ovsdk.errors import ConfigError, CostUnknown
from ovsdk.metrics import with_latency
from ovsdk.models import CausalLM, SlotScheduler
from ovsdk.plugins import plugin_manager
from ovsdk.simulation import Requests, simulate
from ovsdk.sweep import Setup, evaluate
from ovsdk.workloads import Poisson, admission, workload

PRICES: dict[str, Any] = {
    "schema": 1,
    "machine": {"queue": {"level": 1}, "d2h": {"latency_us": 30, "gb_per_s": 20}},
    "stage": {
        "plan_us": {"us": 500, "per": {"batch": 20}},
        "prepare_us": {"us": 300, "per": {"tokens": 1}},
        "launch_us": 40,
        "retire_us": 400,
    },
    "launch": {
        "prefill": {"device_us": {"us": 1000, "per": {"tokens": 12}}},
        "decode": {"features": {"batch": 4, "tokens": 4, "kv_tokens": 512}, "device_us": {"us": 5000, "per": {"kv_tokens": 0.5}}},
    },
}
ASKED = Requests("poisson:30", 80, output="geometric:8", prompt="uniform:4,60")


@pytest.mark.parametrize(("depth", "driver", "plan_when"), [(1, "inline", "asap"), (2, "threads", "asap"), (3, "inline", "late")])
def test_it_takes_the_times_of_the_model_s_executor(depth: int, driver: str, plan_when: str) -> None:
    found = simulate(plugin_manager(), PRICES, depth=depth, driver=driver, plan_when=plan_when, seed=3, scheduler="slots", requests=ASKED)
    items = workload(Poisson(30), 80, 3, prompt="uniform:4,60", output="geometric:8")
    scheduler, setting = SlotScheduler(slots=4, closed=False), {"depth": depth, "driver": driver, "plan_when": plan_when}
    with open_backend("sim", prices=PRICES) as sim:
        report = run(scheduler, CausalLM("not needed", slots=4), sim, log=True, admission=admission(items), **setting)  # type: ignore[arg-type]
    expected = with_latency(report, scheduler.outputs.values(), {item.id: item.at_s for item in items})
    assert attrs.evolve(found, log=None, computed="") == attrs.evolve(expected, log=None, computed="")
    assert found.latency is not None
    assert (found.latency["requests"], found.latency["tokens"]) == (80, sum(item.output for item in items))


def test_a_sweep_has_it_too() -> None:
    row = evaluate(Setup(PRICES, scheduler="slots", requests=ASKED), {"depth": 2, "launch.decode.device_us": 4000})
    assert row["requests"]["requests"] == 80
    assert "a scheduler decides as it goes" in row["computed"]


def test_the_command_line_has_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    stage = "\n".join(f"{name} = 100" for name in ("plan_us", "prepare_us", "launch_us", "retire_us"))
    file.write_text(f"schema = 1\n[stage]\n{stage}\n[launch.prefill]\ndevice_us = 900\n[launch.decode]\ndevice_us = 500\n")
    options = ["--scheduler", "slots", "--arrivals", "poisson:50", "--requests", "20", "--output", "fixed:4", "--prompt", "fixed:9"]
    with pytest.raises(SystemExit) as exited:
        main(["simulate", str(file), "--depth", "2", *options, "--json"])
    assert exited.value.code == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["requests"]["requests"], row["requests"]["tokens"]) == (20, 80)


@pytest.mark.parametrize(
    ("prices", "requests", "error", "match"),
    [
        (PRICES, None, ConfigError, "'slots' serves requests: say when they come"),
        (PRICES, attrs.evolve(ASKED, arrivals="poisson:3000"), ConfigError, "the queue grows without bound"),
        ({**PRICES, "launch": {"decode": {"device_us": 5}}}, ASKED, CostUnknown, "no price for launch kind 'prefill'; priced: decode"),
        ({**PRICES, "launch": {"prefill": {"device_us": 5}}}, ASKED, CostUnknown, "no price for launch kind 'decode'"),
    ],
)
def test_what_it_cannot_serve_is_refused(prices: Any, requests: Requests | None, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        simulate(plugin_manager(), prices, scheduler="slots", requests=requests)
