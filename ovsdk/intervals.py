"""Confidence intervals of simulated and measured means. What varies must be independent; two ways to get it so:

    replicas      runs with different seeds: one value a run
    batch means   one long run: neighbouring steps are alike, so its steady state is cut into 20 batches, and the means of
                  long batches are nearly independent (Law, Simulation Modeling and Analysis, section 9.5.3)

Both are Student's t over n values: mean +- t(n - 1) * s / sqrt(n). It supposes that the values are about normal, which
means are. Runs that are compared should share their seeds; then take the interval of the differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import attrs

from .errors import ConfigError
from .timeline import Timeline

BATCHES = 20


@attrs.frozen
class Interval:
    """A mean and the bounds that hold the true one with probability `level`, of `count` values; infinite bounds: one value."""

    mean: float
    low: float
    high: float
    count: int
    level: float

    def __str__(self) -> str:
        return f"{self.mean:.6g} ± {self.high - self.mean:.2g}"


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of independent values. Raises ConfigError without values, and for a level that is not between 0 and 1."""
    if not values or not 0 < level < 1:
        raise ConfigError(f"an interval needs values, and a level between 0 and 1; got {len(values)} values, level={level!r}")
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return Interval(mean, -math.inf, math.inf, 1, level)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    half = student(count - 1, level) * spread
    return Interval(mean, mean - half, mean + half, count, level)


def step_interval(timeline: Timeline, level: float = 0.95) -> Interval:
    """Seconds a step in the steady state of one run, by batch means. Raises ConfigError with fewer than 2 steps a batch."""
    times = [(later - sooner) / 1e9 for sooner, later in pairwise(timeline.steady_ns)]
    size = len(times) // BATCHES
    if size < 2:
        raise ConfigError(f"{len(times)} steady steps are too few for {BATCHES} batches of at least 2: run longer, or several seeds")
    first = len(times) - size * BATCHES
    return interval([math.fsum(times[k : k + size]) / size for k in range(first, len(times), size)], level)


def student(freedom: int, level: float) -> float:
    """The t that |T| stays below with probability `level`, by bisection of `student_within`."""
    low, high = 0.0, 1.0
    while student_within(freedom, high) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_within(freedom, middle) < level else (low, middle)
    return high


def student_within(freedom: int, t: float) -> float:
    """P(|T| < t) for an integer number of degrees of freedom: Abramowitz and Stegun 26.7.3 and 26.7.4, exact."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    total, term = 0.0, math.cos(angle) if odd else 1.0
    for k in range(2 + odd, freedom + 1, 2):
        total, term = total + term, term * square * (k - 1) / k
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
