"""mstx ranges around stages: opened before the work and closed after it, whatever it does. mstx is played here."""

from __future__ import annotations

from typing import Any

import pytest

from ovsdk.backends.ascend.marks import marker


class Mstx:
    """Notes what is opened and closed."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def range_start(self, *arguments: Any) -> int:
        self.log.append(arguments)
        return len(self.log)

    def range_end(self, number: int) -> None:
        self.log.append(number)


def test_the_work_lies_inside_its_range() -> None:
    mstx = Mstx()
    mark = marker(mstx, "compute")
    plan, launch = (mark(stage, lambda step, stage=stage: mstx.log.append((stage, step, "work"))) for stage in ("plan", "launch"))
    plan(3)
    launch(3)
    assert mstx.log == [
        *[("ovsdk plan 3",), ("plan", 3, "work"), 1],
        *[("ovsdk launch 3", "compute"), ("launch", 3, "work"), 4],
    ]


def test_a_range_is_closed_behind_work_that_fails() -> None:
    mstx = Mstx()

    def fails(step: int) -> None:
        raise KeyError(step)

    with pytest.raises(KeyError):
        marker(mstx)("retire", fails)(1)
    assert mstx.log == [("ovsdk retire 1",), 1]
