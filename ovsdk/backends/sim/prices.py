"""Prices: what a host stage and a launch cost in virtual time. From a price file (TOML, schema 1) or a mapping like it.

    schema = 1
    name   = "mine"
    source = "where the figures come from"
    [stage]                         # host time; a stage that is not listed has no price
    plan_us = 12000                 # also prepare_us, launch_us, amend_us, retire_us
    ask_us  = 0                     # a plan that gave no batch; 0 if left out
    [launch.decode]                 # Launch.kind
    features  = { batch = 8 }       # defaults; a Launch overrides
    device_us = 45000               # in this form of the simulator a launch is one operator

A price is one of

    45000                                               us
    { us = 9960, per = { batch = 5 } }                  affine: us + 5 * batch
    { by = "kv_tokens", at = [[8192, 400], [32768, 640]] }  linear between the points, refused outside them
    { quantiles = [[0.05, 870], [0.5, 900], [0.99, 1010]] } drawn: the inverse distribution function, linear between,
                                                        the first and last value beyond
    a Python callable(features) -> us                   in a mapping only; it must be a function of its argument alone

and gives ns: us * 1000 in double precision, rounded half to even. A draw is a function of (seed, price, step) alone, never
of the order of calls: runs with the same seed share their random numbers, whatever else differs (common random numbers).
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import importlib.resources
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn, Protocol

import attrs

from ...errors import CostUnknown, ProfileError, SimulationError, guess, refuse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1
STAGES = ("plan", "prepare", "launch", "amend", "retire", "ask")
LATER = {
    "machine": "section [machine]",
    "op": "section [op]",
    "calibration": "section [calibration]",
    "ops": "a launch of several operators (ops)",
}
"""What schema 1 defines and this form of the simulator cannot price yet."""

Features = Mapping[str, float]
Points = tuple[tuple[float, float], ...]


class Price(Protocol):
    """A cost. `where` is its key path in the price file, and the name of its random stream."""

    @property
    def where(self) -> str: ...

    def us(self, features: Features, seed: int, step: int) -> float:
        """Microseconds. Raises CostUnknown for a feature that is not there or outside a table."""
        ...


@attrs.frozen
class Affine:
    """`fixed + sum(per[f] * f)`; a plain number is one with an empty `per`."""

    where: str
    fixed: float
    per: Mapping[str, float] = attrs.field(factory=dict)

    def us(self, features: Features, seed: int, step: int) -> float:
        """See `Price.us`."""
        us = self.fixed
        for name, rate in self.per.items():
            us += rate * _feature(self.where, features, name)
        return us


@attrs.frozen
class Table:
    """Linear between points (feature, us); outside them nothing is known."""

    where: str
    by: str
    at: Points

    def us(self, features: Features, seed: int, step: int) -> float:
        """See `Price.us`."""
        x, low, high = _feature(self.where, features, self.by), self.at[0][0], self.at[-1][0]
        if not low <= x <= high:
            raise CostUnknown(f"{self.where} is priced for {self.by} from {low:g} to {high:g}; got {x:g}: add a point to `at`")
        return _between(self.at, x)


@attrs.frozen
class Quantiles:
    """Drawn from points (probability, us) of an inverse distribution function."""

    where: str
    at: Points

    def us(self, features: Features, seed: int, step: int) -> float:
        """See `Price.us`."""
        return _between(self.at, uniform(seed, self.where, step))


@attrs.frozen
class Computed:
    """A Python function of the features."""

    where: str
    function: Callable[[Features], float]

    def us(self, features: Features, seed: int, step: int) -> float:
        """See `Price.us`. What the function raises is raised."""
        return self.function(features)


@attrs.frozen
class LaunchPrice:
    """What a launch kind costs on the device, with default features."""

    features: Features
    device: Price


@attrs.frozen
class Prices:
    """A price file. `stages` by name (see `STAGES`), `launches` by `Launch.kind`."""

    name: str
    source: str
    stages: Mapping[str, Price]
    launches: Mapping[str, LaunchPrice]

    def stage_ns(self, stage: str, features: Features, seed: int = 0, step: int = 0) -> int:
        """Host time of a stage in ns. Raises CostUnknown if there is no price or no such feature."""
        price = self.stages.get(stage)
        if price is None:
            raise CostUnknown(f"no price for stage {stage!r}: add {stage}_us to [stage]; priced: {_listed(self.stages)}")
        return _ns(price, features, seed, step)

    def launch_ns(self, kind: str, features: Features, seed: int = 0, step: int = 0) -> int:
        """Device time of a launch in ns. Raises CostUnknown if there is no price or no such feature."""
        launch = self.launches.get(kind)
        if launch is None:
            raise CostUnknown(f"no price for launch kind {kind!r}{guess(kind, self.launches)}; priced: {_listed(self.launches)}")
        return _ns(launch.device, {**launch.features, **features}, seed, step)


def load_prices(source: str | Path | Mapping[str, Any] | Prices | None) -> Prices:
    """Prices from the name of a shipped profile, the path of a .toml file, or a mapping with the structure of one.

    Raises ConfigError for an unknown name; ProfileError for a file that cannot be read or breaks the grammar.
    """
    if isinstance(source, Prices):
        return source
    if isinstance(source, Mapping):
        return _prices(source, "prices")
    if isinstance(source, Path) or (isinstance(source, str) and source.endswith(".toml")):
        return _read(Path(source))
    if source not in shipped():
        refuse("price profile (also allowed: the path of a .toml file, a mapping)", source, shipped())
    return _parse((_profiles() / f"{source}.toml").read_bytes(), f"{source}.toml")


def shipped() -> tuple[str, ...]:
    """The names of the profiles in the package."""
    return tuple(sorted(entry.name[: -len(".toml")] for entry in _profiles().iterdir() if entry.name.endswith(".toml")))


def _profiles() -> Any:
    return importlib.resources.files("ovsdk") / "profiles"


def uniform(seed: int, stream: str, step: int) -> float:
    """A number in [0, 1), a function of its arguments: the splitmix64 sequence of that seed and stream at position `step`.

    splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, as published by Vigna.
    """
    return (_mix(_origin(seed, stream) + (step + 1) * _GOLDEN) >> 11) * 2.0**-53


_MASK, _GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15


@functools.lru_cache(maxsize=1024)
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
        raise CostUnknown(f"{where} needs the feature {name!r}{guess(name, features)}; given: {_listed(features)}")
    if not isinstance(value, Real) or not math.isfinite(value):
        raise SimulationError(f"{where} is priced by the feature {name!r}, a finite number; got {value!r}")
    return float(value)


def _ns(price: Price, features: Features, seed: int, step: int) -> int:
    us: Any = price.us(features, seed, step)
    if not isinstance(us, (float, Real)) or not 0 <= float(us) < math.inf:  # float is a Real, but found much faster
        raise SimulationError(f"{price.where} came out as {us!r} us at step {step} with {dict(features)!r}; allowed: finite, at least 0")
    return round(float(us) * 1000)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


# ---- grammar: each reader is given a value and where it stands, file first ----


def _read(path: Path) -> Prices:
    try:
        return _parse(path.read_bytes(), path.name)
    except OSError as error:
        raise ProfileError(f"price file {str(path)!r} cannot be read: {error.strerror}") from error


def _parse(toml: bytes, file: str) -> Prices:
    try:
        table = tomllib.loads(toml.decode())
    except ValueError as error:  # of the encoding or of the syntax
        raise ProfileError(f"price file {file!r} is not TOML: {error}") from error
    return _prices(table, file)


def _prices(value: Mapping[str, Any], file: str) -> Prices:
    _keys(value, file, ("schema", "name", "source", "stage", "launch"), needed=("schema",))
    if value["schema"] != SCHEMA or isinstance(value["schema"], bool):
        _wrong(f"{file}: schema", value["schema"], f"{SCHEMA}, the one that this version reads")
    stage = _table(value.get("stage", {}), f"{file}: stage", [f"{name}_us" for name in STAGES])
    launch = _table(value.get("launch", {}), f"{file}: launch")
    return Prices(
        name=_text(value.get("name", file.removesuffix(".toml")), f"{file}: name"),
        source=_text(value.get("source", ""), f"{file}: source"),
        stages={key[: -len("_us")]: _price(price, file, f"stage.{key}") for key, price in {"ask_us": 0, **stage}.items()},
        launches={kind: _launch(one, file, f"launch.{kind}") for kind, one in launch.items()},
    )


def _launch(value: Any, file: str, where: str) -> LaunchPrice:
    table = _table(value, f"{file}: {where}", ("features", "device_us"), needed=("device_us",))
    features = _table(table.get("features", {}), f"{file}: {where}.features")
    return LaunchPrice(
        features={name: _finite(number, f"{file}: {where}.features.{name}") for name, number in features.items()},
        device=_price(table["device_us"], file, f"{where}.device_us"),
    )


def _price(value: Any, file: str, where: str) -> Price:
    place = f"{file}: {where}"
    if callable(value):
        return Computed(where, value)
    if not isinstance(value, Mapping):
        return Affine(where, _us(value, place))
    if "quantiles" in value:
        return _quantiles(value, place, where)
    if "by" in value or "at" in value:
        _keys(value, place, ("by", "at"), needed=("by", "at"))
        return Table(where, _text(value["by"], f"{place}.by"), _points(value["at"], f"{place}.at"))
    _keys(value, place, ("us", "per", "by", "at", "quantiles"), needed=("us",))
    per = _table(value.get("per", {}), f"{place}.per")
    return Affine(where, _us(value["us"], f"{place}.us"), {name: _us(rate, f"{place}.per.{name}") for name, rate in per.items()})


def _quantiles(value: Mapping[str, Any], place: str, where: str) -> Quantiles:
    _keys(value, place, ("quantiles",), needed=())
    points = _points(value["quantiles"], f"{place}.quantiles")
    if not 0 <= points[0][0] <= points[-1][0] <= 1:
        _wrong(f"{place}.quantiles", value["quantiles"], "probabilities from 0 to 1")
    if any(us > later for (_, us), (_, later) in itertools.pairwise(points)):
        _wrong(f"{place}.quantiles", value["quantiles"], "a quantile not below the one before")
    return Quantiles(where, points)


def _points(value: Any, where: str) -> Points:
    if not isinstance(value, (list, tuple)) or len(value) < 2 or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in value):
        _wrong(where, value, "two or more points [x, us]")
    points = tuple((_finite(x, f"{where}[{i}][0]"), _us(us, f"{where}[{i}][1]")) for i, (x, us) in enumerate(value))
    if any(x >= later for (x, _), (later, _) in itertools.pairwise(points)):
        _wrong(where, value, "points with x strictly increasing")
    return points


def _table(value: Any, where: str, allowed: Iterable[str] | None = None, needed: Iterable[str] = ()) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _wrong(where, value, "a table")
    _keys(value, where, allowed, needed)
    return value


def _keys(value: Mapping[str, Any], where: str, allowed: Iterable[str] | None, needed: Iterable[str]) -> None:
    for key in value:
        if not isinstance(key, str):
            _wrong(where, key, "keys that are text")
        if allowed is not None and key not in allowed:
            _wrong_key(where, key, allowed)
    for key in needed:
        if key not in value:
            raise ProfileError(f"{where}: the key {key!r} is missing; got {', '.join(map(repr, value)) or 'no keys'}")


def _wrong_key(where: str, key: str, allowed: Iterable[str]) -> NoReturn:
    if key in LATER:
        raise ProfileError(
            f"{where}: {LATER[key]} is part of schema {SCHEMA}, but not supported yet: this version prices stages and launches of"
            f" one operator. Leave {key!r} out and give each launch its whole device_us"
        )
    raise ProfileError(f"{where}: unknown key {key!r}{guess(key, allowed)}; allowed: {_listed(allowed)}")


def _text(value: Any, where: str) -> str:
    return value if isinstance(value, str) else _wrong(where, value, "text")


def _finite(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        _wrong(where, value, "a finite number")
    return float(value)


def _us(value: Any, where: str) -> float:
    us = _finite(value, where)
    return us if us >= 0 else _wrong(where, value, "microseconds, at least 0")


def _wrong(where: str, seen: Any, allowed: str) -> NoReturn:
    raise ProfileError(f"{where}: got {seen!r}; allowed: {allowed}")
