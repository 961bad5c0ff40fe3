"""One price: what something costs, as a number or as a rule that gives one. In a price file it is one of

    45000                                               us
    { us = 9960, per = { batch = 5 } }                  affine: us + 5 * batch
    { by = "kv_tokens", at = [[8192, 400], [32768, 640]] }  linear between the points, refused outside them
    { quantiles = [[0.05, 870], [0.5, 900], [0.99, 1010]] } drawn: the inverse distribution function, linear between,
                                                        the first and last value beyond
    a Python callable(features) -> us                   in a mapping only; it must be a function of its argument alone

and gives ns: us * 1000 in double precision, rounded half to even. An amount of bytes is written in the same way, with
`bytes` in place of `us`. A draw is a function of (seed, who draws, step) alone, never of the order of calls: runs with the
same seed share their random numbers, whatever else differs (common random numbers).
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Protocol

import attrs

from ...errors import CostUnknown, SimulationError, guess
from .reading import Entry, listed

Features = Mapping[str, float]
Points = tuple[tuple[float, float], ...]
Draw = Callable[[str], float]
"""Gives the random number in [0, 1) of a price, by its `where`."""
MOST_KEPT = 4096
"""Results that are kept: with features that never recur there would be no end to them."""


class Price(Protocol):
    """A cost. `where` is its key path in the price file."""

    drawn: bool
    """Whether it is another one each time."""

    @property
    def where(self) -> str: ...

    @property
    def needs(self) -> tuple[str, ...] | None:
        """The features that it depends on; None: any may matter."""
        ...

    def value(self, features: Features, draw: Draw) -> float:
        """Microseconds, or bytes. Raises CostUnknown for a feature that is not there or outside a table."""
        ...


@attrs.frozen
class Affine:
    """`fixed + sum(per[f] * f)`; a plain number is one with an empty `per`."""

    drawn = False
    where: str
    fixed: float
    per: Mapping[str, float] = attrs.field(factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """See `Price.needs`."""
        return tuple(self.per)

    def value(self, features: Features, draw: Draw) -> float:
        """See `Price.value`."""
        value = self.fixed
        for name, rate in self.per.items():
            value += rate * _feature(self.where, features, name)
        return value


@attrs.frozen
class Table:
    """Linear between points (feature, us); outside them nothing is known."""

    drawn = False
    where: str
    by: str
    at: Points

    @property
    def needs(self) -> tuple[str, ...]:
        """See `Price.needs`."""
        return (self.by,)

    def value(self, features: Features, draw: Draw) -> float:
        """See `Price.value`."""
        x, low, high = _feature(self.where, features, self.by), self.at[0][0], self.at[-1][0]
        if not low <= x <= high:
            raise CostUnknown(f"{self.where} is priced for {self.by} from {low:g} to {high:g}; got {x:g}: add a point to `at`")
        return _between(self.at, x)


@attrs.frozen
class Quantiles:
    """Drawn from points (probability, us) of an inverse distribution function."""

    drawn = True
    needs = ()
    where: str
    at: Points

    def value(self, features: Features, draw: Draw) -> float:
        """See `Price.value`."""
        return _between(self.at, draw(self.where))


@attrs.frozen
class Computed:
    """A Python function of the features."""

    drawn = False
    needs = None
    where: str
    function: Callable[[Features], float]

    def value(self, features: Features, draw: Draw) -> float:
        """See `Price.value`. What the function raises is raised."""
        return self.function(features)


def amount(price: Price, features: Features, draw: Draw) -> float:
    """The price in its unit. Raises CostUnknown as `Price.value`; SimulationError if it is none: not finite, or under 0."""
    value: Any = price.value(features, draw)
    if not isinstance(value, (float, Real)) or not 0 <= float(value) < math.inf:  # float is a Real, but found much faster
        raise SimulationError(f"{price.where} came out as {value!r} with {dict(features)!r}; allowed: finite, at least 0")
    return float(value)


def nanoseconds(price: Price, features: Features, draw: Draw) -> int:
    """A price in us as ns. Raises what `amount` raises."""
    return round(amount(price, features, draw) * 1000)


def common_needs(prices: list[Price]) -> tuple[str, ...] | None:
    """The features that any of the prices depends on."""
    needs: dict[str, None] = {}
    for price in prices:
        if price.needs is None:
            return None
        needs.update(dict.fromkeys(price.needs))
    return tuple(needs)


def feature_key(needs: tuple[str, ...] | None, features: Features) -> tuple[Any, ...]:
    """What is equal where features give equal prices. Its parts may be unhashable where a feature is no number."""
    return tuple(sorted(features.items())) if needs is None else tuple(map(features.get, needs))


class Kept:
    """A price in ns with what it gave remembered, as long as it is not drawn. `defaults` are features that need not be given."""

    def __init__(self, price: Price, seed: int = 0, defaults: Features | None = None) -> None:
        self._price, self._seed, self._defaults = price, seed, defaults or {}
        self._needs = () if price.drawn else price.needs
        self._kept: dict[tuple[Any, ...], int] = {}

    @property
    def constant_ns(self) -> int | None:
        """What it always is; None if that depends on anything."""
        return self.ns({}, 0) if not self._price.drawn and self._price.needs == () else None

    def ns(self, features: Features, step: int) -> int:
        """What it is for these features in that step. Raises what `amount` raises."""
        needs = self._needs
        key = feature_key(None, features) if needs is None else tuple(map(features.get, needs))
        try:
            known = self._kept.get(key)
        except TypeError:  # a feature that is no number; the price says so
            known = None
        return self._priced(key, features, step) if known is None else known

    def _priced(self, key: tuple[Any, ...], features: Features, step: int) -> int:
        ns = nanoseconds(self._price, {**self._defaults, **features}, drawing(self._seed, step))
        if not self._price.drawn:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = ns
        return ns


# ---- draws ----


def drawing(seed: int, step: int, who: str = "") -> Draw:
    """The draws of one step, for one of several things that share a price: `who` it is."""
    return lambda where: uniform(seed, where + who, step)


def uniform(seed: int, stream: str, step: int) -> float:
    """A number in [0, 1), a function of its arguments: the splitmix64 sequence of that seed and stream at position `step`.

    splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, as published by Vigna.
    """
    return (_mix(_origin(seed, stream) + (step + 1) * _GOLDEN) >> 11) * 2.0**-53


_MASK, _GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15


@functools.lru_cache(maxsize=1 << 16)
def _origin(seed: int, stream: str) -> int:
    key = int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little")
    return _mix(key ^ _mix(seed * _GOLDEN))


def _mix(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _between(points: Points, x: float) -> float:
    right = bisect.bisect_left(points, (x,))
    if right == 0 or right == len(points):
        return points[min(right, len(points) - 1)][1]
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    share = (x - x0) / (x1 - x0)
    return y0 * (1 - share) + y1 * share  # exact at both ends, never below both


def _feature(where: str, features: Features, name: str) -> float:
    value: Any = features.get(name)
    if value is None:
        raise CostUnknown(f"{where} needs the feature {name!r}{guess(name, features)}; given: {listed(features)}")
    if not isinstance(value, Real) or not math.isfinite(value):
        raise SimulationError(f"{where} is priced by the feature {name!r}, a finite number; got {value!r}")
    return float(value)


# ---- grammar ----


def read_price(entry: Entry, unit: str = "us") -> Price:
    """The price that stands there, in us or bytes. Raises ProfileError."""
    value, where = entry.value, entry.path
    if callable(value):
        return Computed(where, value)
    if not isinstance(value, Mapping):
        return Affine(where, entry.amount(UNITS[unit]))
    if "quantiles" in value:
        return _read_quantiles(entry, unit)
    if "by" in value or "at" in value:
        keys = entry.table(("by", "at"), needed=("by", "at"))
        return Table(where, keys["by"].text(), _read_points(keys["at"], unit))
    keys = entry.table((unit, "per", "by", "at", "quantiles"), needed=(unit,))
    per = keys["per"].table() if "per" in keys else {}
    return Affine(where, keys[unit].amount(UNITS[unit]), {name: rate.amount(UNITS[unit]) for name, rate in per.items()})


UNITS = {"us": "microseconds", "bytes": "bytes"}


def _read_quantiles(entry: Entry, unit: str) -> Quantiles:
    quantiles = entry.table(("quantiles",))["quantiles"]
    points = _read_points(quantiles, unit)
    if not 0 <= points[0][0] <= points[-1][0] <= 1:
        quantiles.wrong("probabilities from 0 to 1")
    if any(value > later for (_, value), (_, later) in itertools.pairwise(points)):
        quantiles.wrong("a quantile not below the one before")
    return Quantiles(entry.path, points)


def _read_points(entry: Entry, unit: str) -> Points:
    allowed = f"two or more points [x, {unit}]"
    if not all(isinstance(point.value, (list, tuple)) and len(point.value) == 2 for point in entry.list(allowed, least=2)):
        entry.wrong(allowed)
    pairs = [point.list("a point") for point in entry.list(allowed)]
    points = tuple((x.number(), value.amount(UNITS[unit])) for x, value in pairs)
    if any(x >= later for (x, _), (later, _) in itertools.pairwise(points)):
        entry.wrong("points with x strictly increasing")
    return points
