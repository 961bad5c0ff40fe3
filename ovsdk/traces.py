"""Traces: requests that came once, read from public LLM traces and run logs. FORMATS is the list of what can be read."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from .errors import ConfigError
from .log import read_log


class Item(NamedTuple):
    """A request to come. `at_s` is in seconds since the run began, lengths in tokens; a length of 0 is not known."""

    id: int
    at_s: float
    prompt: int
    output: int


@attrs.frozen
class Recorded:
    """What came once, in order of arrival."""

    name: str
    recorded: tuple[Item, ...] = attrs.field(repr=False)

    def items(self, seed: int) -> Iterator[Item]:
        """See `ovsdk.workloads.Arrivals`; the same for every seed."""
        return iter(self.recorded)


_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d+)?(?:Z|([+-])(\d\d):(\d\d))?")


def _date_s(text: str) -> float:
    """Seconds, to the 100 ns that the Azure traces have; `datetime` keeps us."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no date like 2023-11-16 18:15:46.6805900")
    date, time, fraction, sign, hours, minutes = match.groups()
    whole = (datetime.fromisoformat(f"{date} {time}") - datetime(2000, 1, 1)) / timedelta(seconds=1)
    zone = int(f"{sign}1") * (int(hours) * 3600 + int(minutes) * 60) if sign else 0
    return whole - zone + float(fraction or 0)


class Format(NamedTuple):
    """Columns (or JSON keys) of a kind of trace."""

    name: str
    time: str
    prompt: str
    output: str
    seconds: Callable[[Any], float]


FORMATS = (
    Format("ovsdk", "at_s", "prompt_tokens", "output_tokens", float),
    Format("Azure LLM inference trace 2023, 2024", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_s),
    Format("BurstGPT", "Timestamp", "Request tokens", "Response tokens", float),
    Format("Mooncake (ms; JSON lines or CSV)", "timestamp", "input_length", "output_length", lambda ms: float(ms) / 1e3),
)
"""Traces that can be read, by their columns; other columns are left alone. Sources: the README files of Azure/AzurePublicDataset,
HPMLL/BurstGPT and kvcache-ai/Mooncake."""


def read_trace(path: str | Path) -> Recorded:
    """The arrivals in a file: a run log, or a trace in one of FORMATS, with times counted from its first request.

    A run log's times are those of the asks that first saw a request, and its lengths those of `prompt` and `max_tokens`, where requests
    have them; Items are kept as they were.
    Raises ConfigError for another file, and for a row that is not a request, naming its line.
    """
    text = Path(path).read_text(encoding="utf-8-sig")
    if text.startswith('{"ovsdk_log"'):
        return Recorded(str(path), _logged(path))
    rows: list[Mapping[str, Any]] = _json_lines(path, text) if text.startswith("{") else list(csv.DictReader(text.splitlines()))
    if not rows:
        raise ConfigError(f"{path}: no requests in it; a trace has a header and a line for each request")
    format_ = _format(path, rows[0])
    read = sorted((_request(path, format_, line, row) for line, row in enumerate(rows, 1)), key=lambda item: item.at_s)
    return Recorded(str(path), tuple(item._replace(id=number, at_s=item.at_s - read[0].at_s) for number, item in enumerate(read)))


def write_trace(path: str | Path, items: Iterable[Item]) -> None:
    """Write items as CSV with the columns of the format "ovsdk", which `read_trace` gives back from the first arrival on."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FORMATS[0][1:4])
        writer.writerows((repr(item.at_s), item.prompt, item.output) for item in items)


def _json_lines(path: str | Path, text: str) -> list[Mapping[str, Any]]:
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON lines: {error}") from error


def _format(path: str | Path, row: Mapping[str, Any]) -> Format:
    for format_ in FORMATS:
        if {format_.time, format_.prompt, format_.output} <= row.keys():
            return format_
    known = "".join(f"\n  {f.time}, {f.prompt}, {f.output}  ({f.name})" for f in FORMATS)
    raise ConfigError(f"{path}: its columns are {', '.join(map(repr, row))}; a trace has (case matters):{known}")


def _request(path: str | Path, format_: Format, line: int, row: Mapping[str, Any]) -> Item:
    try:
        item = Item(line, format_.seconds(row[format_.time]), int(row[format_.prompt]), int(row[format_.output]))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}, request {line}: {error}; a request has {', '.join(format_[1:4])}") from error
    if item.prompt < 1 or item.output < 1 or not math.isfinite(item.at_s):
        raise ConfigError(f"{path}, request {line}: {dict(row)!r:.200}; lengths are at least 1: leave failed requests out")
    return item


def _logged(path: str | Path) -> tuple[Item, ...]:
    arrivals = ((ask.now_s, request) for ask in read_log(path).asks for request in ask.arrivals)
    return tuple(_asked(number, now_s, request) for number, (now_s, request) in enumerate(arrivals))


def _asked(number: int, now_s: float, request: Any) -> Item:
    if isinstance(request, Item):
        return request._replace(id=number)
    prompt = getattr(request, "prompt", ())
    return Item(number, now_s, len(prompt) if isinstance(prompt, Sized) else 0, getattr(request, "max_tokens", 0))
