"""Spans as intervals of time: what a launch tells, what a lane does at each instant, what several cover, what two have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .interfaces import Future
from .types import SERVER, TILING_SYNC, Span

NO_SERVERS: Mapping[str, Any] = {}


def told(kind: str, future: Future, lane: str) -> Iterator[tuple[str, str, int, int]]:
    """What a launch's future tells of where it was: (lane, what, begin, end).

    Every future may have `span_ns`, when it was on the device. The simulator's know more: `spans`, operator by operator on
    the device; `sync_spans`, while the launching lane waited for the device to compute a tiling; `server_spans`, on others.
    """
    span_ns: tuple[int, int] | None = getattr(future, "span_ns", None)
    busy = [(begin, end) for _, begin, end in getattr(future, "spans", ())] or ([] if span_ns is None else [span_ns])
    for begin, end in merged(sorted(busy)):
        yield "device", kind, begin, end
    for _, begin, end in getattr(future, "sync_spans", ()):
        yield lane, TILING_SYNC, begin, end
    for server, spans in getattr(future, "server_spans", NO_SERVERS).items():
        yield from ((f"{SERVER}{server}", op, begin, end) for op, begin, end in spans)


def merged(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Spans in order of begin, those that touch as one."""
    last: tuple[int, int] | None = None
    for begin, end in spans:
        if last is None or begin > last[1]:
            if last is not None:
                yield last
            last = begin, end
        else:
            last = last[0], max(last[1], end)
    if last is not None:
        yield last


def flatten(spans: Iterable[Span]) -> list[Span]:
    """What one lane does at each instant: of the spans around it the one that began last, cut where another begins or ends."""
    pieces: list[Span] = []
    stack: list[Span] = []
    now = 0
    for span in sorted(spans, key=lambda s: (s.begin_ns, -s.end_ns)):
        _unwind(stack, now, span.begin_ns, pieces)
        stack.append(span)
        now = span.begin_ns
    _unwind(stack, now, max((span.end_ns for span in stack), default=0), pieces)
    return pieces


def _unwind(stack: list[Span], now: int, until: int, pieces: list[Span]) -> None:
    """Add what the open spans do from `now` to `until`, the top one first; drop those that have ended."""
    while stack and now < until:
        top = stack[-1]
        end = min(top.end_ns, until)
        if now < end:
            pieces.append(top if now == top.begin_ns and end == top.end_ns else top._replace(begin_ns=now, end_ns=end))
            now = end
        if top.end_ns <= until:
            stack.pop()


def union(spans: Sequence[Span]) -> list[tuple[int, int, Span | None]]:
    """Begin, end and first span of each stretch without a gap. `spans` are in order of begin."""
    merged: list[tuple[int, int, Span | None]] = []
    for span in spans:
        if merged and span.begin_ns <= merged[-1][1]:
            begin, end, first = merged[-1]
            merged[-1] = begin, max(end, span.end_ns), first
        else:
            merged.append((span.begin_ns, span.end_ns, span))
    return merged


def common(spans: Sequence[Span], busy: Sequence[tuple[int, int]]) -> int:
    """Time that two lists of disjoint, ordered times have in common."""
    total = i = 0
    for span in spans:
        while i < len(busy) and busy[i][1] <= span.begin_ns:
            i += 1
        k = i
        while k < len(busy) and busy[k][0] < span.end_ns:
            total += min(busy[k][1], span.end_ns) - max(busy[k][0], span.begin_ns)
            k += 1
    return total
