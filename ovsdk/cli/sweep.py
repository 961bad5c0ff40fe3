"""`ovsdk sweep PROFILE --over AXIS=VALUES ...`: a price file at every point of a grid, in virtual time."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import pareto
from ..engines import ENGINES
from ..errors import ConfigError
from ..grid import Axes, Point, parse_axes, points
from ..plugins import PluginManager
from ..results import Row, cached_file
from ..simulation import Requests, read_profile
from ..sweep import Setup, check, sweep
from .output import number, print_json, print_table, shaped
from .requests import ARRIVALS, EXECUTOR, OUTPUT, PROMPT, REQUESTS, SCHEDULER, requests_ms

INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell has it."""
LONG = 100
"""Rows of a table for people, at most; a longer one has the front and what failed."""
FIGURES = ("step_ms", "tokens_per_s", "latency_ms", "device_busy")


@attrs.define
class Swept:
    """A sweep and what came of it so far."""

    profile: str
    axes: Axes
    points: Sequence[Point]
    found: dict[int, Row] = attrs.field(factory=dict)
    """Index of a point -> its row."""
    interrupted: bool = False

    @property
    def rows(self) -> list[Row]:
        """In the order of the grid."""
        return [row for _, row in sorted(self.found.items())]

    @property
    def failed(self) -> int:
        """Points that have no figures."""
        return sum("error" in row for row in self.rows)


def command(
    context: typer.Context,
    profile: str = typer.Argument(help="Name of a shipped profile, or path of a price file (.toml)."),
    over: list[str] = typer.Option(  # noqa: B008
        ...,
        "--over",
        metavar="AXIS=VALUES",
        help="Axes of the grid: depth=1..4 driver=inline,threads tiling.OP=aicpu,in-kernel KEY.PATH=5,50..200:25",
    ),
    steps: int = typer.Option(64, "--steps", help="Steps to simulate at each point."),
    kind: str = typer.Option("", "--kind", help="The launch kind to repeat, where the profile has several."),
    arrivals: str = typer.Option("", "--arrivals", metavar="TEXT", help=ARRIVALS),
    requests: int = typer.Option(200, "--requests", help="How many come."),
    output: str = typer.Option("fixed:16", "--output", help=OUTPUT),
    prompt: str = typer.Option("fixed:1024", "--prompt", help=PROMPT),
    scheduler: str = typer.Option("saturated", "--scheduler", help=SCHEDULER),
    executor: str = typer.Option("", "--executor", help=EXECUTOR),
    resume: Path | None = typer.Option(None, "--resume", metavar="FILE", help="Where results are kept and taken from; else in the cache."),  # noqa: B008
    jobs: int | None = typer.Option(None, "--jobs", help="Processes; all cores if left out, but one for few points."),
    engine: str = typer.Option("local", "--engine", help=f"Where it runs: {', '.join(ENGINES)}."),
    address: str = typer.Option("", "--address", help="Of a running cluster; else a local one is started."),
    plot: Path | None = typer.Option(None, "--plot", help="Write throughput against latency, with the Pareto front, to this PNG file."),  # noqa: B008
    csv_file: Path | None = typer.Option(None, "--csv", help="Write the rows to this CSV file."),  # noqa: B008
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Simulate a price file at every point of a grid: table, Pareto front, break-even. Simulated, not measured."""
    manager: PluginManager = context.obj
    content, axes = read_profile(profile, manager), parse_axes(over)
    check(content, axes)
    files = context.parent.params.get("_plugin", ()) if context.parent else ()
    served = Requests(arrivals, requests, output, prompt) if arrivals else None
    setup = Setup(content, kind, steps, scheduler, executor, served, tuple(map(str, files)))
    swept, results = Swept(profile, axes, list(points(axes))), resume or cached_file(str(content.get("name", profile)))
    run(swept, setup, results=results, engine=engine, jobs=jobs, address=address)
    if as_json:
        print_json(as_dict(swept, content, results))
    else:
        show(swept, content, results)
    write(swept, plot, csv_file)
    if swept.interrupted or swept.failed:
        raise typer.Exit(INTERRUPTED if swept.interrupted else 1)


def run(swept: Swept, setup: Setup, **options: Any) -> None:
    """Fill in the rows. Ctrl-C ends it with those that there are."""
    console = shaped(Console(stderr=True, markup=False, highlight=False))
    with _progress(console, len(swept.points)) as done:
        try:
            for i, row in sweep(setup, swept.points, say=console.print, **options):
                swept.found[i] = row
                done()
        except KeyboardInterrupt:
            swept.interrupted = True


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Any]:
    columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("points"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("sweep", total=total)
        yield lambda: bar.advance(task)


# ---- what is told of it ----


def as_dict(swept: Swept, profile: Mapping[str, Any], results: Path) -> dict[str, Any]:
    """All of it for JSON."""
    rows, best = swept.rows, pareto.front(swept.rows)
    return {
        "profile": swept.profile,
        "simulated": True,
        "source": profile.get("source", ""),
        "axes": {axis: list(values) for axis, values in swept.axes.items()},
        "points": len(swept.points),
        "rows": [{**row, "front": i in best} for i, row in enumerate(rows)],
        "failed": swept.failed,
        "interrupted": swept.interrupted,
        "deeper_is_slower": [one._asdict() for one in pareto.deeper_is_slower(rows)],
        "break_even": [one._asdict() for one in pareto.break_even(rows, swept.axes)],
        "results": str(results),
    }


def show(swept: Swept, profile: Mapping[str, Any], results: Path) -> None:
    """Table, front, what stands out, for people."""
    rows = swept.rows
    print(f"{swept.profile}: simulated, not measured. Source of the prices: {profile.get('source') or 'not stated'}")
    _table(swept, pareto.front(rows))
    for line in (*map(_slower, pareto.deeper_is_slower(rows)), *map(str, pareto.break_even(rows, swept.axes))):
        print(line)
    if swept.failed:
        print(f"{swept.failed} of {len(rows)} points failed; they run again the next time")
    if swept.interrupted:
        print(f"interrupted after {len(rows)} of {len(swept.points)} points; the same command goes on there (results in {results})")


def _table(swept: Swept, best: set[int]) -> None:
    rows = swept.rows
    shown = [i for i, row in enumerate(rows) if len(rows) <= LONG or i in best or "error" in row]
    seen = REQUESTS.values() if any("requests" in row for row in rows) else ()
    figures = [">ms/step", ">tokens/s", ">latency, ms", ">device busy", *seen, "idle most for"]
    lines = [[*rows[i]["point"].values(), *_cells(rows[i], len(figures)), "* front" if i in best else ""] for i in shown]
    print_table([*(f">{axis.rpartition('.')[2]}" for axis in swept.axes), *figures, ""], lines)
    rest = "" if len(shown) == len(rows) else f"; the other {len(rows) - len(shown)} are not shown: --csv or --json has them"
    print(f"* no other point has more throughput at no more latency: {len(best)} of {len(rows)}{rest}")


def _slower(one: pareto.Slower) -> str:
    return f"deeper is slower: {pareto.name(one.point)}: {one.step_ms:.3f} ms, at depth {one.shallower} {one.shallower_ms:.3f} ms"


def _cells(row: Row, columns: int) -> list[str]:
    if "error" in row:
        return ["failed", *[""] * (columns - 2), str(row["error"])]
    most = max(row["idle"].items(), key=lambda item: item[1], default=None)
    times = number(row["step_ms"], 3), number(row["tokens_per_s"], 2), number(row["latency_ms"], 3), f"{row['device_busy']:.1%}"
    seen = [number(ms, 3) for ms in requests_ms(row)] if "requests" in row else []
    return [*times, *seen, f"{most[0]} {most[1]:.1%}" if most else "nothing"]


def write(swept: Swept, plot: Path | None, csv_file: Path | None) -> None:
    """The files that were asked for. Raises ConfigError for one that cannot be written."""
    try:
        if csv_file is not None:
            write_csv(swept, csv_file)
        if plot is not None and swept.rows:
            pareto.png(swept.rows, swept.axes, plot, f"{swept.profile}, simulated")
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename!r}: {error.strerror}; the results are kept, so the same command is quick"
        ) from error


def write_csv(swept: Swept, file: Path) -> None:
    """A column an axis, a figure, what requests saw, a cause of idle (its share of the time), the front, the error; a line a row."""
    rows, best = swept.rows, pareto.front(swept.rows)
    causes = dict.fromkeys(cause for row in rows for cause in row.get("idle", ()))
    seen = tuple(REQUESTS) if any("requests" in row for row in rows) else ()
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*swept.axes, *FIGURES, *seen, *(f"idle.{cause}" for cause in causes), "front", "error"])
        for i, row in enumerate(rows):
            times = requests_ms(row) if "requests" in row else [None] * len(seen)
            idle = (row.get("idle", {}).get(cause, 0.0) for cause in causes)
            writer.writerow([*row["point"].values(), *map(row.get, FIGURES), *times, *idle, int(i in best), row.get("error", "")])
