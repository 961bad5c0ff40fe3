"""The Ascend operators whose inputs decide by value: a table of facts, `value_depend_ops.tsv`, and its typed loader.

Read from the operators' own registrations in hicann/ops-math and hicann/ops-nn (August 2026) and hicann/ops-transformer (November 2025):
which inputs are declared ValueDepend, and where `TilingInputsDataDependency` lets their tiling be computed. Newer operators are not in it.
An operator has a row for each registration that differs; a name of an input that was not found is "?".
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterable
from typing import Literal, NamedTuple, cast

from ..errors import TilingError, guess

FILE = "value_depend_ops.tsv"
COLUMNS = ("repo", "op", "input:ValueDepend", "tiling placement (TilingInputsDataDependency)")
NEEDS = ("OPTIONAL", "REQUIRED")
WHERE = ("HOST", "AICPU", "-")


class Input(NamedTuple):
    """An input whose value the operator depends on. `constant`: it must be one when the graph is compiled (ValueDepend REQUIRED)."""

    name: str
    constant: bool


class ValueDepend(NamedTuple):
    """An operator of the table."""

    repo: str
    op: str
    inputs: tuple[Input, ...]
    """Empty: a data dependency of the tiling is declared, but no ValueDepend was found."""
    tiling: Literal["HOST", "AICPU"] | None
    """Where the tiling may be computed, besides the host for AICPU; None: not declared."""

    @property
    def sinks(self) -> bool:
        """Whether its tiling may sink to the device's AICPU."""
        return self.tiling == "AICPU"


@functools.cache
def table() -> tuple[ValueDepend, ...]:
    """Every row, in the order of the file."""
    text = (importlib.resources.files(__package__) / FILE).read_text(encoding="utf-8")
    return parse(text.splitlines())


def find(name: str) -> tuple[ValueDepend, ...]:
    """The rows of one operator: "reduce_sum", or its name in a graph, "ReduceSum". Raises TilingError for one that is not in the table."""
    found = tuple(row for row in table() if _plain(row.op) == _plain(name))
    if not found:
        names = {row.op for row in table()}
        raise TilingError(
            f"no value-dependent Ascend operator {name!r} in the table{guess(name, names)}: its tiling needs no values, or it is newer "
            "than the table; `ovsdk tile ops` lists all"
        )
    return found


def parse(lines: Iterable[str]) -> tuple[ValueDepend, ...]:
    """Rows of a file like this one. Raises TilingError, with the line, for one that is not."""
    cells = [line.split("\t") for line in lines]
    if not cells or tuple(cells[0]) != COLUMNS:
        raise TilingError(f"{FILE}:1: the columns are {', '.join(COLUMNS)}; got {', '.join(cells[0]) if cells else 'nothing'}")
    return tuple(_row(number, row) for number, row in enumerate(cells[1:], 2))


def _row(number: int, row: list[str]) -> ValueDepend:
    if len(row) != len(COLUMNS) or row[3] not in WHERE:
        raise TilingError(f"{FILE}:{number}: {len(COLUMNS)} columns, the last one of {', '.join(WHERE)}; got {row!r}")
    inputs = () if row[2] == "-" else tuple(_input(number, one) for one in row[2].split(";"))
    return ValueDepend(row[0], row[1], inputs, None if row[3] == "-" else cast(Literal["HOST", "AICPU"], row[3]))


def _input(number: int, text: str) -> Input:
    name, _, needs = text.rpartition(":")
    if not name or needs not in NEEDS:
        raise TilingError(f"{FILE}:{number}: an input is NAME:OPTIONAL or NAME:REQUIRED; got {text!r}")
    return Input(name, needs == "REQUIRED")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
