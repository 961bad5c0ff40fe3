"""Rows of a sweep, kept: a JSONL file that is only ever appended to, a line a row, under a key that says what it is the result of.

A writer that is stopped leaves at most one torn line. It is skipped when the file is read, and ended before more is
written. A line goes out in one write, so several sweeps may share a file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .cache import cache_folder
from .errors import ConfigError, SimulationError

Row = Mapping[str, Any]
Keep = Callable[[str, Row], None]
"""Writes a row under its key."""


def cached_file(name: str) -> Path:
    """The file for a price profile of that name, in the cache folder."""
    return cache_folder() / "sweeps" / f"{name.replace(os.sep, '_') or 'unnamed'}.jsonl"


def digest(value: Any) -> str:
    """A short name for plain data. Raises ConfigError for anything else: a function has no content to go by."""
    try:
        text = json.dumps(value, sort_keys=True)
    except TypeError as error:
        raise ConfigError(f"results can be kept of what is plain data only: {error}") from error
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@functools.cache
def source_digest() -> str:
    """A digest of ovsdk's own source: what another simulator gave is no result of this one."""
    total = hashlib.blake2b(digest_size=12)
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        total.update(file.read_bytes())
    return total.hexdigest()


def read_results(file: Path, say: Callable[[str], None] = lambda text: None) -> dict[str, Row]:
    """Key -> row, of the last line that has it; `say` is told of torn lines. Raises ConfigError for a file that is no such file."""
    try:
        lines = [line for line in file.read_bytes().splitlines() if line] if file.is_file() else []
    except OSError as error:
        raise ConfigError(f"results cannot be read from {str(file)!r}: {error.strerror}; name another file with --resume") from error
    entries = [_entry(line) for line in lines]
    if len(lines) > 1 and not any(entries):
        raise ConfigError(f"{str(file)!r} holds no results of a sweep; name another file with --resume")
    if torn := entries.count(None):
        say(f"{file}: {torn} torn line{'' if torn == 1 else 's'} skipped; what was on them runs again")
    return dict(filter(None, entries))


def _entry(line: bytes) -> tuple[str, Row] | None:
    try:
        entry = json.loads(line)
        return str(entry["key"]), dict(entry["row"])
    except (ValueError, TypeError, KeyError):
        return None


@contextlib.contextmanager
def writing(file: Path) -> Iterator[Keep]:
    """Append to a file, which is made with its folder if it is not there.

    Raises ConfigError if it cannot be opened; what is given raises SimulationError if it cannot write: the disk is full.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = open(file, "ab+", buffering=0)
    except OSError as error:
        raise ConfigError(f"results cannot be kept in {str(file)!r}: {error.strerror}; name another file with --resume") from error
    with stream:
        yield functools.partial(_append, stream, file)


def _append(stream: Any, file: Path, key: str, row: Row) -> None:
    line = json.dumps({"key": key, "row": row}).encode() + b"\n"
    try:
        if _torn(stream):
            line = b"\n" + line
        written = stream.write(line)
        if written != len(line):
            raise OSError(0, f"{written} of {len(line)} bytes could be written")
    except OSError as error:
        raise SimulationError(
            f"results cannot be kept in {str(file)!r}: {error.strerror}; make room and run the same again: it goes on from there"
        ) from error


def _torn(stream: Any) -> bool:
    """Whether the last line has no end."""
    if stream.seek(0, os.SEEK_END) == 0:
        return False
    stream.seek(-1, os.SEEK_END)
    return bool(stream.read(1) != b"\n")
