"""What requests saw of a run: when they came, when their tokens came. Functions of a run's log and its spans alone.

A scheduler reads no clock, so it tells *when* in the run's own words: a request came with an ask, its tokens with steps
(see Served; the Outputs of `ovsdk.models.SlotScheduler` are that already). The log says when an ask was, the spans when
a step had retired, on any backend:

    arrived    when it came, where the caller knows; else when the ask that brought it was made
    planned    begin of the plan of the step that gave its first token
    first,     end of the retire of the steps that gave its first and its last token
    last
    queued = planned - arrived      TTFT = first - arrived      TPOT = (last - first) / (tokens - 1)
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import attrs

from .errors import ConfigError
from .log import RunLog, encode
from .report import Report
from .timeline import Timeline

PERCENTILES = (50, 90, 99)


class Served(Protocol):
    """What a scheduler tells of a request, all of it a function of the log."""

    @property
    def id(self) -> Hashable:
        """Unique in a run."""

    @property
    def arrived(self) -> int:
        """Number of the ask that brought it; -1: it was there from the start."""

    @property
    def steps(self) -> Sequence[int]:
        """The step that gave each of its tokens, in order; none: it was never served."""


class Times(NamedTuple):
    """A request's way through a run, in seconds since the run began."""

    id: Hashable
    arrived_s: float
    planned_s: float
    first_s: float
    last_s: float
    tokens: int

    @property
    def queued_s(self) -> float:
        """Until it was planned."""
        return self.planned_s - self.arrived_s

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None with one token."""
        return (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def total_s(self) -> float:
        """From its arrival to its last token."""
        return self.last_s - self.arrived_s


def request_times(
    served: Iterable[Served], log: RunLog, timeline: Timeline, arrived_s: Mapping[Hashable, float] | None = None
) -> tuple[Times, ...]:
    """The times of all requests that got a token. `arrived_s`, by id: when they came, which may be before an ask saw them.

    Raises ConfigError if the timeline does not hold the whole run, for an ask that is not in the log, and for a request
    that is said to have come after the ask that brought it.
    """
    _refuse_partial(timeline)
    known = arrived_s or {}
    return tuple(_times(request, _arrived_s(request, log, known), timeline) for request in served if request.steps)


def _times(request: Served, arrived_s: float, timeline: Timeline) -> Times:
    first, last = request.steps[0], request.steps[-1]
    planned = _span_s(timeline, first, "plan")[0]
    return Times(
        request.id, arrived_s, planned, _span_s(timeline, first, "retire")[1], _span_s(timeline, last, "retire")[1], len(request.steps)
    )


def _arrived_s(request: Served, log: RunLog, known: Mapping[Hashable, float]) -> float:
    if request.arrived >= len(log.asks):
        raise ConfigError(
            f"request {request.id!r} came with ask {request.arrived}, but the log has {len(log.asks)}: give the log of that run"
        )
    asked_s = 0.0 if request.arrived < 0 else log.asks[request.arrived].now_s
    came_s = known.get(request.id, asked_s)
    if came_s > asked_s:
        raise ConfigError(f"request {request.id!r} is said to have come at {came_s} s, after the ask that brought it, at {asked_s} s")
    return came_s


def _span_s(timeline: Timeline, step: int, stage: str) -> tuple[float, float]:
    span = timeline.stages.get(step, {}).get(stage)
    if span is None:
        raise ConfigError(f"the timeline has no {stage} of step {step}: run with spans=True, and give the spans of that run")
    return (span.begin_ns - timeline.begin_ns) / 1e9, (span.end_ns - timeline.begin_ns) / 1e9


def _refuse_partial(timeline: Timeline) -> None:
    if timeline.spans and 0 not in timeline.stages:
        first = min(timeline.stages, default=0)
        raise ConfigError(f"the timeline begins with step {first}; older spans were dropped: run with spans= a number that holds them all")


def latency(times: Sequence[Times], end_s: float) -> dict[str, Any]:
    """Plain numbers of a run that took `end_s`: requests, throughput, and mean and percentiles of queueing, TTFT and TPOT.

    A percentile is linear between the two nearest values. What no request has (TPOT with one token each) is left out.
    """
    series = {
        "queued_s": [request.queued_s for request in times],
        "ttft_s": [request.ttft_s for request in times],
        "tpot_s": [request.tpot_s for request in times if request.tpot_s is not None],
        "total_s": [request.total_s for request in times],
    }
    tokens = sum(request.tokens for request in times)
    return {
        "requests": len(times),
        "tokens": tokens,
        "requests_per_s": len(times) / end_s if end_s else 0.0,
        "tokens_per_s": tokens / end_s if end_s else 0.0,
        **{name: summary(values) for name, values in series.items() if values},
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles."""
    ordered = sorted(values)
    return {"mean": sum(ordered) / len(ordered), **{f"p{share}": percentile(ordered, share) for share in PERCENTILES}}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` per cent of the ordered values lie below, linear between the two nearest."""
    place = share / 100 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def with_latency(report: Report, served: Iterable[Served], arrived_s: Mapping[Hashable, float] | None = None) -> Report:
    """The report with `latency`. Raises ConfigError as `request_times`, and if the run kept no log or no spans."""
    if report.log is None or report.timeline is None:
        raise ConfigError("latencies need the run's log and its spans: run with log=True and spans=True")
    return attrs.evolve(report, latency=latency(request_times(served, report.log, report.timeline, arrived_s), report.makespan_s))


def mean_in_system(served: Iterable[Served], log: RunLog, timeline: Timeline, arrived_s: Mapping[Hashable, float] | None = None) -> float:
    """L: how many requests were in the system, on average over the run, counted along the spans.

    A request that got no token is not counted. By Little's law it is the arrival rate times the mean of `Times.total_s`:
    the other way to the same number.
    """
    served = [request for request in served if request.steps]
    leaving = Counter(request.steps[-1] for request in served)
    moves = [(_arrived_s(request, log, arrived_s or {}), 1) for request in served]
    moves += [((span.end_ns - timeline.begin_ns) / 1e9, -leaving[span.step]) for span in timeline.spans if span.what == "retire"]
    area = inside = last_s = 0.0
    for at_s, change in sorted(moves):
        area += inside * (at_s - last_s)
        inside, last_s = inside + change, at_s
    end_s = (timeline.end_ns - timeline.begin_ns) / 1e9
    return (area + inside * (end_s - last_s)) / end_s


def digest(log: RunLog, timeline: Timeline) -> str:
    """A fingerprint of all that a run decided, computed and took: equal for two simulated runs with the same seed.

    Raises ConfigError for a result or a request that a run log cannot keep.
    """
    told = hashlib.blake2b(digest_size=16)
    for part in (
        *map(encode, log.asks),
        *map(encode, sorted(log.results.items())),
        timeline.begin_ns,
        *map(list, timeline.spans),
        timeline.end_ns,
    ):
        told.update(json.dumps(part).encode() + b"\n")
    return told.hexdigest()
