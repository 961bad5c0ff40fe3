"""The points of a sweep: axes, as people write them, and their product.

    AXIS  = NAME=ITEM,ITEM,...          depth=1..4          driver=inline,threads      tiling.reduce_sum=host-value,aicpu
    ITEM  = WORD | NUMBER | FIRST..LAST | FIRST..LAST:BY    both ends belong to a range; BY is 1 if left out

    depth driver plan_when seed graph   how it is run; graph=on,off: whether launches that have a graph are replays of it
    tiling.OP                           short for op.OP.tiling
    level                               short for machine.queue.level
    KEY.PATH                            any other key of the price file, as in op.reduce_sum.placement.aicpu.aicpu_us=5,50..200:25

A point is a mapping from axis to value. Values of an axis are distinct and in the order in which they are written; the
last axis turns fastest. Decimals are exact: 0..1:0.1 has eleven values, and 0.3 is one of them.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from .backends.sim.hardware import LEVELS
from .driver import LANES
from .errors import ConfigError, refuse
from .late import PLAN_WHEN

Value = int | float | str
Point = Mapping[str, Value]
Axes = Mapping[str, tuple[Value, ...]]

MOST = 1_000_000
"""Points of a grid, at most: more is a slip of the pen, and would fill the memory before the first one runs."""
SETTINGS = ("depth", "driver", "graph", "plan_when", "seed")
"""Axes that say how it is run. All others are keys of the price file."""
GRAPH = {"on": True, "off": False}
PRICED = ("machine", "stage", "launch", "op")
"""Sections of a price file that can be swept."""
TILING, LEVEL = "tiling.", "level"

_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::({_NUMBER}))?")
_PLAIN = re.compile(_NUMBER)


def parse_axes(written: Iterable[str]) -> Axes:
    """Axes from `NAME=VALUES` texts. Raises ConfigError for a text that is none, an empty range, an axis given twice."""
    axes: dict[str, tuple[Value, ...]] = {}
    for text in written:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise ConfigError(f"an axis is NAME=VALUES, as in depth=1..4 or driver=inline,threads; got {text!r}")
        if name in axes:
            raise ConfigError(f"the axis {name!r} is given twice; write its values after one '=', with commas")
        axes[name] = parse_values(values, text)
    size = math.prod(map(len, axes.values()))
    if size > MOST:
        raise ConfigError(f"{size} points are too many to sweep; allowed: at most {MOST}. Widen the steps of a range: FIRST..LAST:BY")
    return axes


def parse_values(text: str, where: str = "") -> tuple[Value, ...]:
    """The distinct values of a comma-separated list of items. Raises ConfigError for an empty item or range."""
    items = text.split(",")
    if "" in items:
        raise ConfigError(f"{where or text!r}: a value is missing beside a comma")
    return tuple(dict.fromkeys(value for item in items for value in _item(item, where or text)))


def _item(item: str, where: str) -> Iterable[Value]:
    if ".." in item:
        return _range(item, where)
    return [_number(Fraction(item))] if _PLAIN.fullmatch(item) else [item]


def _range(item: str, where: str) -> Iterable[Value]:
    found = _RANGE.fullmatch(item)
    if found is None:
        raise ConfigError(f"{where}: a range is FIRST..LAST or FIRST..LAST:BY, of numbers, as in 1..4 or 50..200:25; got {item!r}")
    first, last, by = (Fraction(number or 1) for number in found.groups())
    if by <= 0 or first > last:
        raise ConfigError(f"{where}: the range {item!r} is empty: it goes up from FIRST to LAST, by more than 0")
    steps = (last - first) // by
    if steps >= MOST:
        raise ConfigError(f"{where}: the range {item!r} has {steps + 1} values; allowed: at most {MOST}. Widen its steps: FIRST..LAST:BY")
    return (_number(first + i * by) for i in range(steps + 1))


def _number(number: Fraction) -> int | float:
    return int(number) if number.denominator == 1 else float(number)


def points(axes: Axes) -> Iterator[dict[str, Value]]:
    """Every combination of values; one empty point if there is no axis."""
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


# ---- what an axis may be ----


def check_axes(axes: Axes, profile: Mapping[str, Any]) -> None:
    """Refuse what no run can have: an unknown axis, a value that the axis cannot take. `profile` is a price file's content."""
    for name, values in axes.items():
        allowed = _allowed(name, profile)
        for value in values:
            allowed(value)


def _allowed(name: str, profile: Mapping[str, Any]) -> Callable[[Value], None]:
    if name in _CHECKS:
        return _CHECKS[name]
    if name.startswith(TILING):
        return _placement(name, profile)
    locate(name, profile)
    return lambda value: None  # the price file's own grammar knows what its key may be


def _one_of(name: str, allowed: Sequence[Value]) -> Callable[[Value], None]:
    def check(value: Value) -> None:
        if value not in allowed:
            refuse(name, value, map(str, allowed))

    return check


def _whole(name: str, least: int | None = None) -> Callable[[Value], None]:
    def check(value: Value) -> None:
        if not isinstance(value, int) or (least is not None and value < least):
            raise ConfigError(f"{name} is a whole number{'' if least is None else f', at least {least}'}; got {value!r}")

    return check


_CHECKS: Mapping[str, Callable[[Value], None]] = {
    "depth": _whole("depth", 1),
    "driver": _one_of("driver", tuple(LANES)),
    "graph": _one_of("graph", tuple(GRAPH)),
    "plan_when": _one_of("plan_when", PLAN_WHEN),
    "seed": _whole("seed"),
    LEVEL: _one_of("task queue level", LEVELS),
}
"""Axis -> what refuses a value that it cannot take."""


def _placement(name: str, profile: Mapping[str, Any]) -> Callable[[Value], None]:
    op, ops = name.removeprefix(TILING), profile.get("op", {})
    if op not in ops:
        refuse("operator with a tiling", op, (known for known, table in ops.items() if "placement" in table))
    return _one_of(f"placement of {op!r}", tuple(ops[op].get("placement", ())))


def settings(point: Point) -> dict[str, Any]:
    """What of a point is not in the price file: how it is run, as `ovsdk.simulation.simulate` takes it."""
    return {name: GRAPH[str(value)] if name == "graph" else value for name, value in point.items() if name in SETTINGS}


def priced(profile: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """The price file's content with what a point changes in it. `profile` is left as it is."""
    changed = copy.deepcopy(dict(profile))
    for name, value in point.items():
        if name not in SETTINGS:
            *tables, key = locate(name, profile)
            table = changed
            for part in tables:
                table = table.setdefault(part, {})
            table[key] = value
    return changed


def locate(name: str, profile: Mapping[str, Any]) -> tuple[str, ...]:
    """The key path of an axis in the price file. A key may be new if its table is there: defaults can be swept too.

    Raises ConfigError naming the nearest axis.
    """
    if name == LEVEL:
        return ("machine", "queue", "level")
    if name.startswith(TILING):
        return ("op", name.removeprefix(TILING), "tiling")
    known = {".".join(path): path for path in _paths({key: profile[key] for key in PRICED if key in profile})}
    table, dot, key = name.rpartition(".")
    if name in known:
        return known[name]
    if not dot or table not in known:
        tilings = (f"{TILING}{op}" for op, prices in profile.get("op", {}).items() if "placement" in prices)
        refuse("axis", name, [*_CHECKS, *tilings, *(path for path, keys in known.items() if not isinstance(_at(profile, keys), Mapping))])
    return (*known[table], key)


def _paths(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, Mapping):
            yield from _paths(value, (*above, key))


def _at(profile: Mapping[str, Any], path: Iterable[str]) -> Any:
    value: Any = profile
    for key in path:
        value = value[key]
    return value
