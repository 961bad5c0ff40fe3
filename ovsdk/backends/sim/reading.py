"""Reading a price file strictly: an `Entry` is a value and where it stands, so whatever is wrong is said with both.

What is read is a TOML file, or a mapping with the structure of one. Nothing is guessed, coerced or passed over: an unknown
key is refused with the nearest known one, a number is a finite int or float and never a bool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import attrs

from ...errors import ProfileError, guess


@attrs.frozen
class Entry:
    """A value, the file that it is in, and its key path there; "" is the whole file. Every method raises ProfileError."""

    value: Any
    file: str
    path: str = ""

    @property
    def place(self) -> str:
        """How an error names it."""
        return f"{self.file}: {self.path}" if self.path else self.file

    def wrong(self, allowed: str) -> NoReturn:
        """Refuse the value, saying what is allowed."""
        raise ProfileError(f"{self.place}: got {self.value!r}; allowed: {allowed}")

    def at(self, key: str, value: Any) -> Entry:
        """The value under a key of this table."""
        return Entry(value, self.file, f"{self.path}.{key}" if self.path else key)

    def table(self, allowed: Iterable[str] | None = None, needed: Iterable[str] = ()) -> dict[str, Entry]:
        """The entries of a table by key: none but the `allowed` (None: any), all of the `needed`."""
        if not isinstance(self.value, Mapping):
            self.wrong("a table")
        for key in self.value:
            if not isinstance(key, str):
                Entry(key, self.file, self.path).wrong("keys that are text")
            if allowed is not None and key not in allowed:
                raise ProfileError(f"{self.place}: unknown key {key!r}{guess(key, allowed)}; allowed: {listed(allowed)}")
        for key in needed:
            if key not in self.value:
                got = ", ".join(map(repr, self.value)) or "no keys"
                raise ProfileError(f"{self.place}: the key {key!r} is missing; got {got}")
        return {key: self.at(key, value) for key, value in self.value.items()}

    def list(self, what: str, least: int = 0) -> list[Entry]:
        """The entries of a list of `what`, at least so many."""
        if not isinstance(self.value, (list, tuple)) or len(self.value) < least:
            self.wrong(what)
        return [Entry(value, self.file, f"{self.path}[{i}]") for i, value in enumerate(self.value)]

    def text(self) -> str:
        """A text."""
        return self.value if isinstance(self.value, str) else self.wrong("text")

    def flag(self) -> bool:
        """True or false."""
        return self.value if isinstance(self.value, bool) else self.wrong("true or false")

    def number(self) -> float:
        """A finite number."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.wrong("a finite number")
        return float(value)

    def amount(self, unit: str = "microseconds") -> float:
        """A finite number of that unit, at least 0."""
        number = self.number()
        return number if number >= 0 else self.wrong(f"{unit}, at least 0")

    def count(self, least: int) -> int:
        """An int, at least `least`."""
        value = self.value
        return value if type(value) is int and value >= least else self.wrong(f"a whole number, at least {least}")

    def choice(self, allowed: Iterable[Any], what: str) -> Any:
        """One of `allowed`."""
        if isinstance(self.value, bool) or self.value not in allowed:
            near = guess(self.value, allowed) if isinstance(self.value, str) else ""
            raise ProfileError(f"{self.place}: unknown {what} {self.value!r}{near}; allowed: {listed(map(str, allowed))}")
        return self.value


def listed(names: Iterable[str]) -> str:
    """Names in order, for a message."""
    return ", ".join(sorted(names)) or "none"
