"""mstx ranges around the stages of a run, so that MindStudio shows them beside what the device did.

A range opens when a stage's work begins and closes when it has ended, on the thread that does it; observers of spans are told
too late for that. mstx does nothing unless a profiler listens. The range of a launch stage is put on the compute stream, too,
where it shows what of the device's time belongs to which step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Work = Callable[[int], None]
"""The work of a stage, given its step."""
ON_DEVICE = "launch"


def marker(mstx: Any, stream: Any = None) -> Callable[[str, Work], Work]:
    """`mark(stage, work)`: the same work inside a range "ovsdk STAGE STEP". mstx: `torch_npu.npu.mstx`; stream: the compute stream."""

    def mark(stage: str, work: Work) -> Work:
        begin = (stream,) if stage == ON_DEVICE and stream is not None else ()

        def marked(step: int) -> None:
            opened = mstx.range_start(f"ovsdk {stage} {step}", *begin)
            try:
                work(step)
            finally:
                mstx.range_end(opened)

        return marked

    return mark
