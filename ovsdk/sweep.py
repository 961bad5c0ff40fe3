"""Many simulated runs: every point of a grid, on all cores or on a cluster. What has been run is kept, and not run twice.

    for index, row in sweep(setup, points, results=file): ...       as they finish

A row is kept under a digest of all that it depends on: the price file's content, the point, scheduler, executor, plugins,
and ovsdk itself. So a sweep that was stopped, however it was stopped, goes on where it was, and one whose profile has
changed begins anew. A point that fails says so in its row; it is not kept, so it is tried again the next time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from .backends.sim.prices import load_prices
from .engines import Say, run_on
from .grid import Axes, Point, check_axes, priced, settings
from .plugins import plugin_manager
from .results import Row, digest, read_results, source_digest, writing
from .simulation import Requests, batch_of, figures, simulate

Evaluate = Callable[["Setup", Point], Row]
Task = tuple[int, Point]
"""A point and its index in the grid."""
NOWHERE = Path(os.devnull)
"""Where results go that shall not be kept."""


@attrs.frozen
class Setup:
    """What all points of a sweep share. It can be sent to another process."""

    profile: Mapping[str, Any]
    """Content of a price file."""
    kind: str = ""
    steps: int = 64
    scheduler: str = "saturated"
    executor: str = ""
    requests: Requests | None = None
    plugins: tuple[str, ...] = ()
    """Paths of one-off plugin files."""


def check(profile: Mapping[str, Any], axes: Axes) -> None:
    """Refuse axes of which no point could run. The numbers that a key of the price file may be are an interval, so its ends tell.

    Raises ConfigError and ProfileError.
    """
    check_axes(axes, profile)
    for axis, values in axes.items():
        numbers = [value for value in values if not isinstance(value, str)]
        for value in (*(value for value in values if isinstance(value, str)), *([min(numbers), max(numbers)] if numbers else [])):
            load_prices(priced(profile, {axis: value}))


def evaluate(setup: Setup, point: Point) -> Row:
    """Run one point: its `point` and figures. Whatever the run raises is the point's `error`; only Ctrl-C and the like come out."""
    try:
        prices = load_prices(priced(setup.profile, point))
        report = simulate(
            plugin_manager(setup.plugins), prices, setup.kind, steps=setup.steps,
            scheduler=setup.scheduler, executor=setup.executor, requests=setup.requests, servers=False, **settings(point),
        )  # fmt: skip
        return {"point": dict(point), **figures(report, batch_of(prices, setup.kind))}
    except Exception as error:
        return {"point": dict(point), "error": f"{type(error).__name__}: {error}"}


def sweep(
    setup: Setup,
    points: Sequence[Point],
    *,
    results: Path = NOWHERE,
    engine: str = "local",
    jobs: int | None = None,
    address: str = "",
    run_one: Evaluate = evaluate,
    say: Say = lambda text: None,
) -> Iterator[tuple[int, Row]]:
    """(Index of a point, its row), as they finish; first those that `results` has already.

    results     file to keep rows in and to take them from, see `ovsdk.results`
    engine      where they run: see `ovsdk.engines`. "ray" and "dask" use the cluster at `address`, or start a local one
    jobs        processes; None: all cores, but only this process for few points
    run_one     gives a point's row; what several processes run must be a module's function

    Raises ConfigError for a package that is missing and a file that cannot be used, SimulationError for a full disk.
    """
    names, kept = keys(setup, points), read_results(results, say)
    yield from ((i, kept[name]) for i, name in enumerate(names) if name in kept)
    todo = [(i, point) for i, point in enumerate(points) if names[i] not in kept]
    found = run_on(engine, functools.partial(_task, run_one, setup), todo, jobs, address, say)
    with writing(results) as keep:
        for i, row in found:
            if "error" not in row:
                keep(names[i], row)
            yield i, row


def keys(setup: Setup, points: Sequence[Point]) -> list[str]:
    """The name of each point's row: a digest of all that it depends on. Raises ConfigError for a profile that is not plain data."""
    named = (*setup.plugins, *([setup.requests.arrivals] if setup.requests else []))
    files = [Path(file).read_text(encoding="utf-8") for file in named if Path(file).is_file()]
    common = digest([attrs.asdict(setup), files, plugin_manager(setup.plugins).origin, source_digest()])
    return [digest([common, dict(point)]) for point in points]


def _task(run_one: Evaluate, setup: Setup, task: Task) -> tuple[int, Row]:
    return task[0], run_one(setup, task[1])
