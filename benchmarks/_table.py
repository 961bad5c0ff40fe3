"""What every benchmark here shares: how runs alternate, what is told of them, and how it is printed.

runs alternate                          A, B, A, B, ...; the first round warms up and is dropped
a value is the median of its runs       spread is half the distance of the quartiles: a row of its own in JSON
a target is the most that is allowed    `ok` is None where there is none
nothing is faster than possible         a time below its ideal is a wrong measurement: refused, never reported
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

RESOLUTION_NS = max(1.0, time.get_clock_info("perf_counter").resolution * 1e9)
FEWEST = 100
"""A 99th percentile of fewer values than that is their highest, and is called so."""


class Impossible(Exception):
    """A result that no correct measurement can give."""


class Row(NamedTuple):
    """One line of a table. `value` is None for what was not measured; the name says why."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    spread: float | None = None

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.value is not None and self.value <= self.target


Measure = Callable[[bool], Iterable["Row | str"]]
"""Given whether it shall be quick, gives rows, and remarks that are printed below them."""


class Section(NamedTuple):
    """A table: what it shows, and what measures it."""

    title: str
    measure: Measure


# ---- statistics ----


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which that share of the values lies, linear between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(name: str, values: Sequence[float], unit: str, target: float | None = None) -> Row:
    """The row of what was measured several times."""
    spread = (quantile(values, 0.75) - quantile(values, 0.25)) / 2
    return Row(name, quantile(values, 0.5), unit, target, spread)


def tail(name: str, values: Sequence[float], unit: str, target: float | None = None) -> Row:
    """The row of the 99th percentile."""
    if len(values) < FEWEST:
        return Row(f"{name}, highest of {len(values)}", max(values), unit, target)
    return Row(f"{name}, 99th percentile of {len(values)}", quantile(values, 0.99), unit, target)


def refuse_faster(name: str, value_ns: float, ideal_ns: float) -> None:
    """Raise Impossible for a time below its ideal by more than the clock's resolution."""
    if value_ns < ideal_ns - RESOLUTION_NS:
        times = f"{value_ns / 1e6:.6f} ms beats the ideal, {ideal_ns / 1e6:.6f} ms"
        raise Impossible(f"{name}: {times}: the measurement is wrong, and nothing is reported")


def alternate(variants: Mapping[str, Callable[[], T]], rounds: int, before: Callable[[], object] = dict) -> dict[str, list[T]]:
    """Call each in turn, `rounds` times and once before that is dropped; what each gave, by name. `before` begins each round."""
    results: dict[str, list[T]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        before()
        for name, variant in variants.items():
            result = variant()
            if number:
                results[name].append(result)
    return results


# ---- printing ----


def machine() -> str:
    """Where this is measured, in a line."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    parts = (
        f"{usable_cores()} of {os.cpu_count()} cores",
        f"{platform.system()} {platform.machine()}",
        f"{platform.python_implementation()} {platform.python_version()}{'' if gil else ' without GIL'}",
        f"switch interval {sys.getswitchinterval() * 1e3:g} ms",
        f"clock {RESOLUTION_NS:g} ns",
        load(),
    )
    return f"machine: {', '.join(parts)}"


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> str:
    """The load average of the last 1, 5 and 15 minutes: other work disturbs what is measured."""
    return "load average " + " ".join(f"{part:.2f}" for part in os.getloadavg())


def as_json(rows: Iterable[Row]) -> dict[str, Any]:
    """The rows as one JSON object; a spread follows its value as a row."""
    return {"rows": [fields(row) for one in rows for row in _with_spread(one)]}


def _with_spread(row: Row) -> Iterator[Row]:
    yield row
    if row.spread is not None:
        yield Row(f"{row.name}, spread", row.spread, row.unit)


def fields(row: Row) -> dict[str, Any]:
    """A row for JSON."""
    value = None if row.value is None else round(row.value, 4)
    return {"name": row.name, "value": value, "unit": row.unit, "target": row.target, "ok": row.ok}


def line(row: Row, width: int) -> str:
    """A row for people, its name in a column that wide."""
    value = f"{'' if row.value is None else f'{row.value:.3f}':>11}"
    spread = f"{'' if row.spread is None else f'± {row.spread:.3f}':>10}"
    target = "" if row.target is None else f"at most {row.target:g}  {'ok' if row.ok else 'MISSED'}"
    return f"{row.name:<{width}}{value} {spread}  {row.unit:<6}{target}".rstrip()


def show(rows: Sequence[Row]) -> str:
    """A table for people."""
    width = max((len(row.name) for row in rows), default=0)
    return "\n".join(line(row, width) for row in rows)


# ---- the command ----


def main(about: str | None, sections: Mapping[str, Section], arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 0: all targets met; 1: one is missed, or a result was refused; 2: misuse."""
    options = _options(about, sections, arguments)
    say = sys.stderr if options.json else sys.stdout
    rows: list[Row] = []
    print(machine(), file=say)
    try:
        for key in options.only:
            measured, remarks = _measured(sections[key], options.quick)
            rows += measured
            print(f"\n({key}) {sections[key].title}", *remarks, show(measured), sep="\n", file=say, flush=True)
    except Impossible as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    print(f"\nafter it: {load()}", file=say)
    if options.json:
        print(json.dumps(as_json(rows)))
    return int(any(row.ok is False for row in rows))


def _measured(section: Section, quick: bool) -> tuple[list[Row], list[str]]:
    given = list(section.measure(quick))
    return [part for part in given if isinstance(part, Row)], [part for part in given if isinstance(part, str)]


def _options(about: str | None, sections: Mapping[str, Section], arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, tables on stderr")
    parser.add_argument("--quick", action="store_true", help="few repeats: shows that it works, not how fast")
    known = "; ".join(f"{key}: {section.title}" for key, section in sections.items())
    parser.add_argument("--only", default=",".join(sections), metavar="KEY,...", help=f"only some tables ({known})")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    unknown = [key for key in options.only if key not in sections]
    if unknown:
        parser.error(f"--only: {', '.join(map(repr, unknown))} unknown; there are {', '.join(sections)}")
    return options
