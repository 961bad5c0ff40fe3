"""What the rows of a sweep say together: which are worth having, where more depth is slower, where a price breaks even.

Throughput is tokens a second, or steps where a profile does not say how many rows a step has. Latency is a step's, from
its plan to its retirement: depth buys throughput with it, until the device is full. In a run of requests it is the mean
time to first token.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .grid import LEVEL, SETTINGS, Axes, Point
from .optional import need
from .results import Row

SAME = 1e-9
"""Relative difference below which two step times are the same."""


def throughput(row: Row) -> float | None:
    """Tokens a second, or steps a second; None for a row without figures."""
    if row.get("tokens_per_s") is not None:
        return float(row["tokens_per_s"])
    return 1e3 / row["step_ms"] if row.get("step_ms") else None


def latency(row: Row) -> float | None:
    """Milliseconds; None for a row without figures."""
    seen = row.get("requests")
    return seen["ttft_s"]["mean"] * 1e3 if seen and "ttft_s" in seen else row.get("latency_ms")


def front(rows: Sequence[Row]) -> set[int]:
    """Indices of the rows that no other beats: none has at least the throughput and at most the latency, and one of them better."""
    known = [(latency(row) or 0.0, -(throughput(row) or 0.0), i) for i, row in enumerate(rows) if _known(row)]
    best: tuple[float, float] = (math.inf, math.inf)
    kept = set()
    for waits, slowness, i in sorted(known):
        if slowness < best[1] or (waits, slowness) == best:
            best = (waits, slowness)
            kept.add(i)
    return kept


def _known(row: Row) -> bool:
    return latency(row) is not None and throughput(row) is not None


# ---- depth ----


class Slower(NamedTuple):
    """A point whose step takes longer than the same point's at a smaller depth."""

    point: Point
    step_ms: float
    shallower: int
    """The smaller depth."""
    shallower_ms: float


def deeper_is_slower(rows: Sequence[Row]) -> list[Slower]:
    """Points that are slower than the fastest of those with less depth and all else equal. Launches that synchronise can make them so."""
    found = []
    for alike in _groups(rows, "depth").values():
        best, *deeper = sorted(alike, key=lambda row: row["point"]["depth"])
        for row in deeper:
            if row["step_ms"] > best["step_ms"] * (1 + SAME):
                found.append(Slower(row["point"], row["step_ms"], best["point"]["depth"], best["step_ms"]))
            best = min(best, row, key=lambda row: row["step_ms"])
    return found


def _groups(rows: Sequence[Row], *without: str) -> dict[Any, list[Row]]:
    """Rows with figures that have all of these axes, by the rest of their point."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        if row.get("step_ms") and all(axis in row["point"] for axis in without):
            rest = tuple((axis, value) for axis, value in row["point"].items() if axis not in without)
            groups.setdefault(rest, []).append(row)
    return groups


# ---- break-even ----


class BreakEven(NamedTuple):
    """Where two alternatives take equally long as one price grows."""

    axis: str
    """The price."""
    between: tuple[str, str]
    at: Point
    """The rest of the point."""
    price: float | None
    """None: nowhere in the range."""
    faster: str
    """The alternative that is faster below the price; all along, if there is none."""

    def __str__(self) -> str:
        where = "".join(f", {axis} {value}" for axis, value in self.at.items())
        told = (
            f"{self.price:g}, {self.faster} is faster below" if self.price is not None else f"none swept, {self.faster} is faster all along"
        )
        return f"break-even of {self.axis} between {' and '.join(self.between)}{where}: {told}"


def break_even(rows: Sequence[Row], axes: Axes) -> list[BreakEven]:
    """Prices at which two alternatives take equally long, where one price and one choice of words (a placement) are swept.

    Linear between the two prices beside it: exact where the step time is, so let the range narrow down on it. That there is
    none is said of a fixed alternative, one whose step time does not depend on the price.
    """
    prices = [axis for axis, values in axes.items() if axis not in (*SETTINGS, LEVEL) and len(values) > 1 and not _words(values)]
    choices = [axis for axis, values in axes.items() if len(values) > 1 and _words(values)]
    if len(prices) != 1 or len(choices) != 1:
        return []
    return [
        found
        for rest, alike in _groups(rows, prices[0], choices[0]).items()
        for pair in itertools.combinations(axes[choices[0]], 2)
        for found in _crossings(
            prices[0], (str(pair[0]), str(pair[1])), dict(rest), *(_curve(alike, prices[0], choices[0], one) for one in pair)
        )
    ]


def _words(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _curve(rows: Sequence[Row], price: str, choice: str, value: Any) -> dict[float, float]:
    """Price -> step time, of one alternative."""
    return {row["point"][price]: row["step_ms"] for row in rows if row["point"][choice] == value}


def _crossings(
    axis: str, between: tuple[str, str], at: Point, one: Mapping[float, float], other: Mapping[float, float]
) -> Iterator[BreakEven]:
    fixed = 1 in (len(set(one.values())), len(set(other.values())))
    ahead = [(price, other[price] - one[price]) for price in sorted(one.keys() & other.keys())]
    differing = [(price, ms) for price, ms in ahead if abs(ms) > SAME * one[price]]
    crossings = [(a, b) for a, b in itertools.pairwise(differing) if (a[1] > 0) != (b[1] > 0)]
    for (low, low_ms), (high, high_ms) in crossings:
        equal = next((price for price, _ in ahead if low < price < high), None)
        yield BreakEven(axis, between, at, _zero(low, low_ms, high, high_ms) if equal is None else equal, between[low_ms < 0])
    if differing and fixed and not crossings:
        yield BreakEven(axis, between, at, None, between[differing[0][1] < 0])


def _zero(x0: float, y0: float, x1: float, y1: float) -> float:
    return x0 + (x1 - x0) * y0 / (y0 - y1)


# ---- picture ----

SHOWN = 12
"""Points of the front that are named in the picture; more would hide each other."""


def png(rows: Sequence[Row], axes: Axes, path: str | os.PathLike[str], title: str) -> None:
    """Throughput against latency, a mark a row, the front joined and named. Raises ConfigError without matplotlib."""
    figure = need("matplotlib.figure", "a PNG", "pip install 'ovsdk[plot]'").Figure(figsize=(9, 6), dpi=150, layout="constrained")
    panel, shown = figure.subplots(), [row for row in rows if _known(row)]
    best = sorted((rows[i] for i in front(rows)), key=lambda row: latency(row) or 0.0)
    panel.scatter(*_places(shown), s=22, color="#bbbbbb", label="points")
    panel.plot(*_places(best), "o-", color="#4477aa", label="Pareto front")
    for row in best[:: max(1, -(-len(best) // SHOWN))]:
        named = {axis: value for axis, value in row["point"].items() if len(axes[axis]) > 1}
        panel.annotate(name(named), (latency(row), throughput(row)), xytext=(6, -10), textcoords="offset points", fontsize=7)
    waits = "mean time to first token" if any("requests" in row for row in shown) else "latency of a step"
    tokens = all(row["tokens_per_s"] is not None for row in shown)
    panel.set(xlabel=f"{waits} (ms)", ylabel=f"{'tokens' if tokens else 'steps'}/s", title=title)
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.legend(frameon=False)
    figure.savefig(path, format="png")


def _places(rows: Sequence[Row]) -> tuple[list[float | None], list[float | None]]:
    return [latency(row) for row in rows], [throughput(row) for row in rows]


def name(point: Point) -> str:
    """A point in a few words: an axis is named by the end of its path."""
    return ", ".join(f"{axis.rpartition('.')[2]}={value}" for axis, value in point.items())
