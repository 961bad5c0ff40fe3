"""Runs of requests, for the commands that have them: what their options say, what is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ARRIVALS = "Requests in place of full batches: poisson:RATE or bursts:RATE,ON,OFF (a second, seconds), or a run log or trace."
OUTPUT = "Tokens of an answer, where none were recorded: fixed:N, uniform:LOW,HIGH, geometric:MEAN, lognormal:MEDIAN,SIGMA."
PROMPT = "Tokens of a prompt, in the same way; for schedulers that prefill."
SCHEDULER = "Who decides: saturated; slots, which prefills and decodes requests in slots; or one that a plugin makes."
EXECUTOR = "An executor that a plugin makes; left out: the one that goes with the scheduler."
REQUESTS = {"ttft_ms": ">TTFT, ms", "ttft_p99_ms": ">TTFT p99", "tpot_ms": ">TPOT, ms"}
"""Column in a file -> in a table: mean and 99th percentile of the time to first token, mean time per output token."""


def requests_ms(row: Mapping[str, Any]) -> tuple[float | None, ...]:
    """What REQUESTS names, of `ovsdk.simulation.figures`. Requests with one token have no time per output token."""
    ttft, tpot = row["requests"].get("ttft_s", {}), row["requests"].get("tpot_s", {})
    return tuple(law[key] * 1e3 if law else None for law, key in ((ttft, "mean"), (ttft, "p99"), (tpot, "mean")))
