"""`ovsdk simulate PROFILE`: what a price file says a step takes, at several depths, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from .. import pictures
from ..backends.sim.prices import Prices, load_prices
from ..critical import critical_path
from ..driver import LANES
from ..errors import ConfigError, refuse
from ..late import PLAN_WHEN
from ..plugins import PluginManager
from ..report import Report
from ..simulation import Requests, batch_of, figures, simulate
from .output import console, number, print_json, print_table
from .requests import ARRIVALS, EXECUTOR, OUTPUT, PROMPT, REQUESTS, SCHEDULER, requests_ms


def command(
    context: typer.Context,
    profile: str = typer.Argument(help="Name of a shipped profile, or path of a price file (.toml)."),
    depth: list[int] = typer.Option([1, 2], "--depth", help="Most steps in flight; several: --depth 1 2 3."),  # noqa: B008
    driver: str = typer.Option("inline", "--driver", help=f"One of {', '.join(LANES)}."),
    plan_when: str = typer.Option("asap", "--plan-when", help=f"One of {', '.join(PLAN_WHEN)}: see ovsdk.late."),
    tiling: list[str] = typer.Option(  # noqa: B008
        [], "--tiling", metavar="OP=PLACEMENT", help="Where an operator's tiling is computed; several: --tiling A=aicpu B=in-kernel."
    ),
    graph: bool | None = typer.Option(
        None, "--graph/--no-graph", help="Launches of kinds that have a graph are replays of it, or none are; left out: as launched."
    ),
    steps: int = typer.Option(64, "--steps", help="Steps to simulate at each depth."),
    kind: str = typer.Option("", "--kind", help="The launch kind to repeat, where the profile has several."),
    arrivals: str = typer.Option("", "--arrivals", metavar="TEXT", help=ARRIVALS),
    requests: int = typer.Option(200, "--requests", help="How many come."),
    output: str = typer.Option("fixed:16", "--output", help=OUTPUT),
    seed: int = typer.Option(0, "--seed", help="Seed of prices and arrivals that are drawn."),
    prompt: str = typer.Option("fixed:1024", "--prompt", help=PROMPT),
    scheduler: str = typer.Option("saturated", "--scheduler", help=SCHEDULER),
    executor: str = typer.Option("", "--executor", help=EXECUTOR),
    plot: Path | None = typer.Option(None, "--plot", "--png", help="Write the timelines to this PNG file."),  # noqa: B008
    perfetto: Path | None = typer.Option(None, "--perfetto", help="Write the last depth's timeline for ui.perfetto.dev."),  # noqa: B008
    width: int = typer.Option(100, "--width", help="Width of the text pictures."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Simulate a price file at several depths: step time, throughput, where the device idles. Simulated, not measured."""
    manager: PluginManager = context.obj
    if driver not in LANES:
        refuse("driver", driver, LANES)
    prices = load_profile(manager, profile)
    options: dict[str, Any] = {"driver": driver, "plan_when": plan_when, "graph": graph, "steps": steps, "seed": seed}
    options |= {
        "tilings": dict(map(_placed, tiling)),
        "scheduler": scheduler,
        "executor": executor,
        "requests": Requests(arrivals, requests, output, prompt) if arrivals else None,
    }
    reports = [simulate(manager, prices, kind, depth=d, **options) for d in depth]
    rows = [figures(report, batch_of(prices, kind)) for report in reports]
    if plot is not None:
        pictures.png([(r._title(), r._shown()) for r in reports], plot, f"{profile}, simulated")
    if perfetto is not None:
        reports[-1].perfetto(perfetto)
    if as_json:
        print_json({"profile": profile, "driver": driver, "simulated": True, "source": prices.source, "runs": rows})
    else:
        show(profile, prices, rows, reports, width)
        for written in (plot, perfetto):
            if written is not None:
                print(f"wrote {written}")


def load_profile(manager: PluginManager, profile: str) -> Prices:
    """The price file of that name or path; names are looked up through the hook `ovsdk_prices` first."""
    return load_prices(manager.one("ovsdk_prices", f"price file {profile!r}", name=profile) or profile)


def _placed(text: str) -> tuple[str, str]:
    op, equals, placement = text.partition("=")
    if not (op and equals and placement):
        raise ConfigError(f"a tiling is OP=PLACEMENT, as in --tiling reduce_sum=aicpu; got {text!r}")
    return op, placement


def show(profile: str, prices: Prices, rows: Sequence[Mapping[str, Any]], reports: Sequence[Report], width: int = 100) -> None:
    """Table, idle by cause, and the timelines on one scale."""
    print(f"{profile}: simulated, not measured. Source of the prices: {prices.source or 'not stated'}")
    seen = REQUESTS.values() if "requests" in rows[0] else ()
    columns = [">depth", ">ms/step", ">tokens/s", ">speedup", ">latency, ms", ">device busy", *seen]
    print_table(columns, [_cells(r, rows[0]) for r in rows])
    for r in rows:
        print(f"depth {r['depth']}: {r['overlap']}")
    for how in dict.fromkeys(r["computed"] for r in rows):
        print(f"computed {how} (depth {', '.join(str(r['depth']) for r in rows if r['computed'] == how)})")
    print_table(["device idle for", *(f">depth {r['depth']}" for r in rows)], _idle(rows))
    if reports[-1].steps > 1:
        print(f"depth {reports[-1].depth}: {critical_path(reports[-1]._shown())}")
    console().print(pictures.text([(report._title(), report._shown()) for report in reports], width), soft_wrap=True)


def _cells(r: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    speedup = f"{first['step_ms'] / r['step_ms']:.2f}x" if r["step_ms"] else "-"
    times = number(r["step_ms"], 3), number(r["tokens_per_s"], 2), speedup, number(r["latency_ms"], 3)
    seen = [number(ms, 3) for ms in requests_ms(r)] if "requests" in r else []
    return [str(r["depth"]), *times, f"{r['device_busy']:.1%}", *seen]


def _idle(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line a cause, in the order of the first run that has it: share of each run."""
    causes = dict.fromkeys(cause for r in rows for cause in r["idle"])
    lines = [[cause, *(f"{r['idle'].get(cause, 0.0):.1%}" for r in rows)] for cause in causes]
    return [*lines, ["all together", *(f"{sum(r['idle'].values()):.1%}" for r in rows)]]
