"""One run of a price file in virtual time, and its figures. Simulated, not measured."""

from __future__ import annotations

import copy
import functools
import importlib.resources
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from .backends.sim.prices import Prices, load_prices
from .errors import ConfigError, refuse
from .loopless import soonest
from .plugins import PluginManager, make, open_backend
from .report import Report
from .saturated import Priced, Saturated

if TYPE_CHECKING:
    from .traces import Item
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_profile(profile: str, manager: PluginManager) -> Mapping[str, Any]:
    """The content of the price file of that name or path, checked; the hook `ovsdk_prices` is asked for it first.

    Raises ConfigError for an unknown name, ProfileError for a file that cannot be read or breaks the grammar.
    """
    source = manager.one("ovsdk_prices", f"price file {profile!r}", name=profile) or profile
    load_prices(source)  # all that may be wrong with it is said here
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    if isinstance(source, Prices):
        raise ConfigError(
            f"the plugin of price file {profile!r} gives Prices, in which no key can be changed; let it give a path or a mapping"
        )
    file = Path(source) if str(source).endswith(".toml") else importlib.resources.files("ovsdk") / "profiles" / f"{source}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def kind_of(prices: Prices, kind: str = "") -> str:
    """The launch kind to repeat: `kind`, or the only one there is. Raises ConfigError for an unknown one, and for none of several."""
    if not kind and len(prices.launches) == 1:
        return next(iter(prices.launches))
    if not kind:
        listed = ", ".join(sorted(prices.launches))
        raise ConfigError(f"this profile has {len(prices.launches)} launch kinds; choose one with --kind: {listed}")
    return kind if kind in prices.launches else refuse("launch kind", kind, prices.launches)


def batch_of(prices: Prices, kind: str = "") -> float | None:
    """Rows of a step, where the profile says so: of launches of `kind`, or of the only kind there is."""
    launches = [launch for name, launch in prices.launches.items() if kind in ("", name)]
    return launches[0].features.get("batch") if len(launches) == 1 else None


@attrs.frozen
class Requests:
    """Requests that come while it runs, in place of a batch that is always full.

    Each gets a token a step once it has joined. A step has the feature `batch`: how many are in it, at most as many as the
    profile says a batch has. A scheduler of your own is given them as `ovsdk.traces.Item`.
    """

    arrivals: str
    """See `ovsdk.workloads.parse_arrivals`."""
    count: int = 200
    output: str = "fixed:16"
    """Tokens of an answer, where they were not recorded: see `ovsdk.workloads.length`."""
    prompt: str = "fixed:1024"
    """Tokens of a prompt, in the same way; for schedulers that prefill."""


EXECUTORS = {"slots": "slots"}
"""Scheduler -> the executor that goes with it, where that is not "priced"."""
SLOTS = 8
"""Of the slot scheduler, where the profile does not say how many rows a batch has."""


def simulate(
    manager: PluginManager,
    prices: Prices | Mapping[str, Any] | str,
    kind: str = "",
    *,
    depth: int = 2,
    driver: str = "inline",
    plan_when: str = "asap",
    graph: bool | None = None,
    tilings: Mapping[str, str] | None = None,
    seed: int = 0,
    steps: int = 64,
    scheduler: str = "saturated",
    executor: str = "",
    requests: Requests | None = None,
    servers: bool = True,
) -> Report:
    """One run, of `steps` full batches or of `requests`. A scheduler other than "saturated" decides itself what it launches.

    An executor that is not named is the one that goes with the scheduler.

    It is computed as soon as it can be without a change to any time: `Report.computed` says how, and why not sooner. Without `servers`
    what these did is not told where that takes time; no figure needs it.

    Raises ConfigError for what cannot be run: more `requests` a second than can be served, too.
    """
    priced = load_prices(prices)
    setting: dict[str, Any] = {"depth": depth, "driver": driver, "plan_when": plan_when, "plugins": manager, "servers": servers}
    options = _options(scheduler, priced, kind, steps)
    planner = make("scheduler", scheduler, options, plugins=manager)
    engine = make("executor", executor or EXECUTORS.get(scheduler, "priced"), plugins=manager)

    def go(planner: Any, engine: Any, **more: Any) -> Report:
        with open_backend("sim", plugins=manager, prices=priced, seed=seed, graph=graph, tilings=tilings) as backend:
            return soonest(planner, engine, backend, **setting, **more)

    if requests is None:
        return go(planner, engine) if scheduler != "slots" else _refuse_without_requests()
    items, rate = _items(requests, seed)
    if scheduler == "saturated":
        _refuse_unbounded(items, rate, options["features"].get("batch", 1), go(planner, engine))
        planner = _joining(items, options)
    elif scheduler == "slots":
        _refuse_unbounded(items, rate, options["slots"], go(_decodes(priced, steps), Priced()))
    return _serve(items, planner, functools.partial(go, engine=engine))


def _options(scheduler: str, prices: Prices, kind: str, steps: int) -> dict[str, Any]:
    if scheduler == "saturated":
        return _saturated(prices, kind, steps)
    if scheduler != "slots":
        return {}
    prices.launch("prefill")  # who has no price for one is told now
    return {"slots": int(prices.launch("decode").features.get("batch", SLOTS))}


def _decodes(prices: Prices, steps: int) -> Saturated:
    """Full batches of the slot scheduler, none of them with a prefill: more than that cannot be served."""
    return Saturated(**_saturated(prices, "decode", steps))


def _refuse_without_requests() -> NoReturn:
    raise ConfigError("the scheduler 'slots' serves requests: say when they come, as in --arrivals poisson:20")


def _saturated(prices: Prices, kind: str, steps: int) -> dict[str, Any]:
    launched = kind_of(prices, kind)
    return {"steps": steps, "kind": launched, "features": prices.launches[launched].features}


def _items(requests: Requests, seed: int) -> tuple[tuple[Item, ...], float]:
    """What comes, and how many a second in the long run; 0 for a record, which has no long run."""
    from . import workloads  # imports numpy, which is slow

    arrivals = workloads.parse_arrivals(requests.arrivals)
    rate = getattr(arrivals, "mean_rate", getattr(arrivals, "rate", 0.0))
    return workloads.workload(arrivals, requests.count, seed, prompt=requests.prompt, output=requests.output), rate


def _refuse_unbounded(items: Sequence[Item], rate: float, places: float, saturated: Report) -> None:
    """How many requests a second can be served is known from a run with full batches."""
    from .workloads import refuse_unbounded, service_rate

    refuse_unbounded(rate, service_rate(int(places), statistics.mean(item.output for item in items), saturated.step_s or math.inf))


def _joining(items: Sequence[Item], options: Mapping[str, Any]) -> Any:
    """The scheduler of these requests, with as many places as a full batch has."""
    from .joining import Joining

    places = int(options["features"].get("batch", 1))
    return Joining(len(items), options["kind"], options["features"], places, full=False)


def _serve(items: Sequence[Item], planner: Any, go: Callable[..., Report]) -> Report:
    """A run in which these come. Latencies are those of the requests that the scheduler tells of: `served`, see `ovsdk.metrics`."""
    from .metrics import with_latency
    from .workloads import admission

    report = go(planner, log=True, admission=admission(items, lambda item: item))
    served = getattr(planner, "served", None)
    return report if served is None else with_latency(report, served, {item.id: item.at_s for item in items})


def figures(report: Report, batch: float | None = None) -> dict[str, Any]:
    """The figures of one run. `tokens_per_s` where a step's batch size is known, one token a row.

    `latency_ms`: from the begin of a step's plan to the end of its retire; the median. More depth makes it longer.
    `requests`, of a run that had some: what they saw, see `ovsdk.metrics.latency`.
    """
    step_s, seen = report.step_s, report.latency
    tokens_per_s = batch / step_s if batch and step_s else None
    return {
        "depth": report.depth,
        "step_ms": None if step_s is None else round(step_s * 1e3, 6),
        "tokens_per_s": _round(seen["tokens_per_s"] if seen else tokens_per_s),
        "latency_ms": _latency_ms(report),
        "device_busy": report.device_busy,
        "idle": report.idle,
        "overlap": str(report.overlap),
        "computed": report.computed,
        **({} if seen is None else {"requests": seen}),
    }


def _round(number: float | None) -> float | None:
    return None if number is None else round(number, 2)


def _latency_ms(report: Report) -> float | None:
    stages = report.timeline.stages.values() if report.timeline is not None else ()
    taken = [step["retire"].end_ns - step["plan"].begin_ns for step in stages if "plan" in step and "retire" in step]
    return statistics.median(taken) / 1e6 if taken else None
