"""`ovsdk simulate PROFILE`: what a price file says a step takes, at several depths, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from .. import pictures
from ..backends.sim.prices import Prices, load_prices
from ..driver import LANES
from ..errors import ConfigError, refuse
from ..plugins import PluginManager, make, open_backend
from ..report import Report
from ..run import run
from .output import console, print_json, print_table


def command(
    context: typer.Context,
    profile: str = typer.Argument(help="Name of a shipped profile, or path of a price file (.toml)."),
    depth: list[int] = typer.Option([1, 2], "--depth", help="Most steps in flight; several: --depth 1 2 3."),  # noqa: B008
    driver: str = typer.Option("inline", "--driver", help=f"One of {', '.join(LANES)}."),
    steps: int = typer.Option(64, "--steps", help="Steps to simulate at each depth."),
    kind: str = typer.Option("", "--kind", help="The launch kind to repeat, where the profile has several."),
    seed: int = typer.Option(0, "--seed", help="Seed of prices that are drawn."),
    scheduler: str = typer.Option("saturated", "--scheduler", help="A scheduler that a plugin makes."),
    executor: str = typer.Option("priced", "--executor", help="An executor that a plugin makes."),
    png: Path | None = typer.Option(None, "--png", help="Write the timelines to this PNG file."),  # noqa: B008
    perfetto: Path | None = typer.Option(None, "--perfetto", help="Write the last depth's timeline for ui.perfetto.dev."),  # noqa: B008
    width: int = typer.Option(100, "--width", help="Width of the text pictures."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Simulate a price file at several depths: step time, throughput, where the device idles. Simulated, not measured."""
    manager: PluginManager = context.obj
    if driver not in LANES:
        refuse("driver", driver, LANES)
    prices = load_profile(manager, profile)
    launched = _kind(prices, kind)
    reports = [
        simulate(manager, prices, launched, depth=d, driver=driver, steps=steps, seed=seed, scheduler=scheduler, executor=executor)
        for d in depth
    ]
    batch = prices.launches[launched].features.get("batch")
    rows = [row(report, batch) for report in reports]
    if png is not None:
        pictures.png([(r._title(), r._shown()) for r in reports], png, f"{profile}, simulated")
    if perfetto is not None:
        reports[-1].perfetto(perfetto)
    if as_json:
        print_json({"profile": profile, "driver": driver, "simulated": True, "source": prices.source, "runs": rows})
    else:
        show(profile, prices, rows, reports, width)
        for written in (png, perfetto):
            if written is not None:
                print(f"wrote {written}")


def load_profile(manager: PluginManager, profile: str) -> Prices:
    """The price file of that name or path; names are looked up through the hook `ovsdk_prices` first."""
    return load_prices(manager.one("ovsdk_prices", f"price file {profile!r}", name=profile) or profile)


def simulate(
    manager: PluginManager,
    prices: Prices,
    kind: str,
    *,
    depth: int,
    driver: str = "inline",
    steps: int = 64,
    seed: int = 0,
    scheduler: str = "saturated",
    executor: str = "priced",
) -> Report:
    """One run in virtual time."""
    options = {"steps": steps, "kind": kind, "features": prices.launches[kind].features} if scheduler == "saturated" else {}
    planner = make("scheduler", scheduler, options, plugins=manager)
    engine = make("executor", executor, plugins=manager)
    with open_backend("sim", plugins=manager, prices=prices, seed=seed) as backend:
        return run(planner, engine, backend, depth=depth, driver=driver, plugins=manager)


def row(report: Report, batch: float | None) -> dict[str, Any]:
    """The figures of one run; `tokens_per_s` where a step's batch size is known, one token a row."""
    step_s = report.step_s
    return {
        "depth": report.depth,
        "step_ms": None if step_s is None else round(step_s * 1e3, 6),
        "tokens_per_s": round(batch / step_s, 2) if batch and step_s else None,
        "device_busy": report.device_busy,
        "idle": report.idle,
        "overlap": str(report.overlap),
    }


def show(profile: str, prices: Prices, rows: list[dict[str, Any]], reports: list[Report], width: int = 100) -> None:
    """Table, idle by cause, and the timelines on one scale."""
    print(f"{profile}: simulated, not measured. Source of the prices: {prices.source or 'not stated'}")
    print_table([">depth", ">ms/step", ">tokens/s", ">speedup", ">device busy", "idle for"], [_cells(r, rows[0]) for r in rows])
    for r in rows:
        print(f"depth {r['depth']}: {r['overlap']}")
    console().print(pictures.text([(report._title(), report._shown()) for report in reports], width), soft_wrap=True)


def _cells(r: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    idle = ", ".join(f"{cause} {share:.1%}" for cause, share in r["idle"].items() if share >= 0.0005)
    speedup = f"{first['step_ms'] / r['step_ms']:.2f}x" if r["step_ms"] else "-"
    return [str(r["depth"]), _number(r["step_ms"], 3), _number(r["tokens_per_s"], 2), speedup, f"{r['device_busy']:.1%}", idle or "nothing"]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _kind(prices: Prices, kind: str) -> str:
    if not kind and len(prices.launches) == 1:
        return next(iter(prices.launches))
    if not kind:
        raise ConfigError(
            f"this profile has {len(prices.launches)} launch kinds; choose one with --kind: {', '.join(sorted(prices.launches))}"
        )
    return kind if kind in prices.launches else refuse("launch kind", kind, prices.launches)
