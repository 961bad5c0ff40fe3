"""A simulated run of full batches without its loop, where that is exact; else the run, and why.

What a scheduler does that always has the same batch is known beforehand, so the times of its run are a function of prices alone. The
Report says how they were computed, and every reason why not sooner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from .backends.sim.backend import SimBackend
from .backends.sim.maxplus import Config, refuse
from .backends.sim.whole import Batches, config, most_spans, whole
from .driver import LANES
from .errors import OvsdkError
from .plugins import PluginManager
from .report import Report
from .run import SPANS, run
from .saturated import Priced, Saturated

WATCHING = ("ovsdk_run_started", "ovsdk_observers", "ovsdk_step_failed", "ovsdk_run_finished")
"""Hooks that are told of a run as it goes."""


def soonest(
    planner: Any,
    engine: Any,
    backend: Any,
    *,
    depth: int,
    driver: str,
    plan_when: str,
    plugins: PluginManager,
    servers: bool = True,
    **more: Any,
) -> Report:
    """What `ovsdk.run` reports of this run on `sim`, and raises. `more` are other arguments of it.

    servers     False: no span of a server need be told; no figure needs them, and most spans are theirs
    """
    batches = _batches(planner, engine)
    late, comes = plan_when != "asap", "admission" in more
    try:
        if type(backend) is not SimBackend or driver not in LANES or type(depth) is not int or depth < 1:
            why: tuple[str, ...] = ("nothing is known of such a run",)
        else:
            asked = config(backend, batches, depth, driver, decides=batches is None, idle=comes, arrivals=comes, late=late)
            why = (*refuse(asked), *_watched(plugins, asked))
            if batches is not None and not why:
                return attrs.evolve(whole(backend, batches, asked, driver, servers), computed="by recurrence")
    except OvsdkError as error:  # the run meets it too, and says in which step
        why = (str(error),)
    report = run(planner, engine, backend, depth=depth, driver=driver, plan_when=plan_when, plugins=plugins, **more)
    return attrs.evolve(report, computed="; ".join(filter(None, [report.computed, f"the run by events: {', '.join(why)}"])))


def _batches(planner: Any, engine: Any) -> Batches | None:
    """What is run, if that is known beforehand."""
    known = type(planner) is Saturated and type(engine) is Priced
    return Batches(planner.steps, planner.batch.kind, planner.batch.features) if known else None


def _watched(plugins: PluginManager, config: Config) -> Iterator[str]:
    """Who wants to see the run as it goes."""
    for hook in WATCHING:
        for implementation in getattr(plugins.hook, hook).get_hookimpls():
            yield f"plugin {implementation.plugin_name!r} is told of it ({hook})"
    if most_spans(config) > SPANS:
        yield f"it may have more than the {SPANS} spans that a run keeps"
