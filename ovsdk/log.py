"""A run's log: all that its decisions were a function of. It replays to the same decisions on every driver and backend.

Per ask: number, step, arrivals, aborts and `now_s`; per step: the result that its `retire` was given. As a file: JSON
lines, a header first. JSON has no tuples, bytes, arrays or objects, so those are tagged: `{"!": kind, ...}`.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import attrs

from .errors import ConfigError, ReplayDiverged
from .interfaces import Signal
from .types import Ask

SCHEMA = 1


@attrs.define
class RunLog:
    """Asks in order and results by step, in memory and, where `path` is given, line by line on disk. `depth` is the run's."""

    depth: int = 0
    asks: list[Ask] = attrs.field(factory=list)
    results: dict[int, Any] = attrs.field(factory=dict)
    path: Path | None = None
    _file: IO[str] | None = attrs.field(default=None, init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if self.path is not None:
            self._file = open(self.path, "w", encoding="utf-8")
            self._write({"ovsdk_log": SCHEMA, "depth": self.depth})

    def ask(self, ask: Ask) -> None:
        """Note an ask, before it is answered."""
        self.asks.append(ask)
        if self._file:
            self._write({"ask": [encode(field) for field in ask]})

    def retire(self, step: int, result: Any) -> None:
        """Note what a step's `retire` is given. Raises ConfigError if the result cannot be written."""
        self.results[step] = result
        if self._file:
            self._write({"step": step, "result": encode(result)})

    def close(self) -> None:
        """Finish the file. Twice is fine."""
        if self._file:
            self._file.close()
            self._file = None

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line) + "\n")


def read_log(path: str | Path) -> RunLog:
    """The log in a file. Raises ConfigError for a file that is not one; a last line cut short by a crash is left out."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    log = RunLog()
    for number, line in enumerate(lines, 1):
        try:
            _read_line(log, json.loads(line), number) if line else None
        except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
            if number == len(lines):
                break
            raise ConfigError(f"{path}, line {number}: not a line of an ovsdk run log ({error}): {line[:80]!r}") from error
    if not lines[0]:
        raise ConfigError(f"{path}: empty, not an ovsdk run log")
    return log


def _read_line(log: RunLog, line: Any, number: int) -> None:
    if number == 1:
        if line["ovsdk_log"] != SCHEMA:
            raise ValueError(f"schema {line['ovsdk_log']!r}, this version reads {SCHEMA}")
        log.depth = line["depth"]
    elif "ask" in line:
        log.asks.append(Ask(*(decode(field) for field in line["ask"])))
    else:
        log.results[line["step"]] = decode(line["result"])


class Replay:
    """The admission of a replayed run: asks come from the log, and when they are used up the run closes."""

    signal: Signal | None = None

    def __init__(self, log: RunLog) -> None:
        self.log, self._next = log, 0

    def take(self, number: int, step: int, now_s: float) -> Ask | None:
        """See `Admission.take`. Raises ReplayDiverged if this ask concerned another step when it was recorded."""
        if number >= len(self.log.asks):
            return None
        ask, self._next = self.log.asks[number], number + 1
        if (ask.number, ask.step) != (number, step):
            raise ReplayDiverged(
                f"ask {number} concerns step {step} here and step {ask.step} in the log: "
                "the scheduler decides by more than asks and results, or is not the one that was recorded"
            )
        return ask

    def ready(self, now_s: float) -> bool:
        """Whether the log has another ask."""
        return self._next < len(self.log.asks)

    def exhausted(self) -> bool:
        """Whether it has none."""
        return self._next >= len(self.log.asks)

    def next_s(self) -> None:
        """Replays do not wait."""


def encode(value: Any) -> Any:
    """A JSON value that `decode` turns back. Raises ConfigError for a type that cannot be kept."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {"!": "dict", "items": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"!": "tuple", "items": [encode(v) for v in value], "as": _named(type(value)) if type(value) is not tuple else None}
    if isinstance(value, bytes):
        return {"!": "bytes", "base64": base64.b64encode(value).decode()}
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return {"!": "numpy", "dtype": value.dtype.str, "shape": list(value.shape), "base64": base64.b64encode(value.tobytes()).decode()}
    if attrs.has(type(value)):
        return {
            "!": "attrs",
            "as": _named(type(value)),
            "fields": {a.name: encode(getattr(value, a.name)) for a in attrs.fields(type(value))},
        }
    raise ConfigError(
        f"a run log cannot keep a {type(value).__name__} ({value!r:.80}); results and requests may be made of numbers, strings, bytes, "
        "lists, tuples, dicts, numpy arrays and attrs classes"
    )


def same(one: Any, other: Any) -> bool:
    """Whether a log could not tell two values apart."""
    return bool(encode(one) == encode(other))


def decode(value: Any) -> Any:
    """The value that `encode` was given."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    return _DECODERS[value["!"]](value) if isinstance(value, dict) else value


def _tuple(value: Mapping[str, Any]) -> Any:
    items = [decode(v) for v in value["items"]]
    return _class(value["as"])(*items) if value["as"] else tuple(items)


def _numpy(value: Mapping[str, Any]) -> Any:
    import numpy

    array = numpy.frombuffer(base64.b64decode(value["base64"]), dtype=value["dtype"]).reshape(value["shape"]).copy()
    return array if value["shape"] else array[()]


def _attrs(value: Mapping[str, Any]) -> Any:
    cls = _class(value["as"])
    return cls(**{a.alias: decode(value["fields"][a.name]) for a in attrs.fields(cls) if a.init})


_DECODERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "dict": lambda value: {decode(k): decode(v) for k, v in value["items"]},
    "tuple": _tuple,
    "bytes": lambda value: base64.b64decode(value["base64"]),
    "numpy": _numpy,
    "attrs": _attrs,
}


def _named(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and (attrs.has(found) or issubclass(found, tuple))):
        raise TypeError(f"{name} is not an attrs class or a named tuple")
    return found
