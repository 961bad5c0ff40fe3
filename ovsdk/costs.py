"""What overlap costs: rows run for requests that had already stopped, slots and memory held longer. Only what was told is priced.

With `depth` steps in flight a stop (an end-of-sequence token, a stop string, an abort) is known depth - 1 steps late, and its
request has that many rows too many. Each figure needs an input of its own and is left out without it: none is guessed.

    rows             surplus rows: counted by the scheduler (`overruns`); else steps * rows_per_step * stop_rate * (depth - 1)
    row_share        rows / (steps * rows_per_step)
    device_s         rows * row_us: device time that they took
    slot_s           rows * step time: slots held by requests that had stopped, in slot-seconds
    held_bytes       slot_s * kv_bytes_per_row / makespan: memory that they kept, on average over the run
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from .errors import ConfigError, refuse
from .report import Report

INPUTS = {
    "rows_per_step": "rows in a step, on average",
    "stop_rate": "share of rows whose request stops there unforeseen, 0 to 1; for schedulers that count no overruns",
    "row_us": "device microseconds that one row adds to a step; in a step that reads weights only, 0",
    "kv_bytes_per_row": "bytes of KV cache that one request holds",
}
"""Every input with what it means."""


def overlap_costs(report: Report, inputs: Mapping[str, float] | None = None) -> dict[str, float]:
    """The figures above that these inputs allow. Raises ConfigError for an unknown input and for a value that cannot be."""
    given = dict(inputs or {})
    for name, value in given.items():
        if name not in INPUTS:
            refuse("input of the costs of overlap", name, INPUTS)
        if not (math.isfinite(value) and value >= 0) or (name == "stop_rate" and value > 1):
            raise ConfigError(f"{name} is {INPUTS[name]}: a number of at least 0; got {value!r}")
    rows = _rows(report, given)
    return {} if rows is None else {"rows": rows, **_priced(report, rows, given)}


def _rows(report: Report, given: Mapping[str, float]) -> float | None:
    if report.overruns is not None:
        return report.overruns
    if {"stop_rate", "rows_per_step"} <= given.keys():
        return report.steps * given["rows_per_step"] * given["stop_rate"] * (report.depth - 1)
    return None


def _priced(report: Report, rows: float, given: Mapping[str, float]) -> dict[str, float]:
    slot_s, priced = rows * (report.step_s or 0.0), dict[str, float]()
    if report.steps and given.get("rows_per_step"):
        priced["row_share"] = rows / (report.steps * given["rows_per_step"])
    if "row_us" in given:
        priced["device_s"] = rows * given["row_us"] / 1e6
    priced["slot_s"] = slot_s
    if "kv_bytes_per_row" in given and report.makespan_s:
        priced["held_bytes"] = slot_s * given["kv_bytes_per_row"] / report.makespan_s
    return priced
