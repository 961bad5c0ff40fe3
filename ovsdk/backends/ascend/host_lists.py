"""Operators that take a list on the host (lengths, axes, ends of groups) in launches under a graph key: tiled anew for each step.

Such an operator is tiled when it is put on a stream, and a captured one keeps the list and the tiling of its capture. So:

    lens = HostList(tiler, tiling_spec("split_kv", shapes, capacity=batch))                            # once
    Launch("decode", fn=model.decode, graph=("decode", batch), host={"lens": lens(kv_lens)}, ...)       # each step
    host_task(lambda lens: attend(query, cache, lens.values, lens.tiling, out=out), lens=lens)          # in model.decode

    tiled before the launch     a list that cannot be tiled raises where it is given, and nothing is on a stream yet: an operator
                                that fails in the middle of an update leaves its task half replaced
    in memory of the worst case `worst` says how much, whatever the list: a captured graph has fixed outputs and workspaces
    beside the graph            `graphs` updates on the stream that copies inputs, while `compute` is busy with the step before;
                                only tasks whose list has changed; and only an instance that nothing in flight uses
    without a wait              nothing here is read from the device
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import attrs

from ...errors import TilingError
from ...tiling import Tiler, Tiling, TilingSpec, WorstCase


class Listed(NamedTuple):
    """A step's list with its tiling: a value of `Launch.host`."""

    values: tuple[int, ...]
    tiling: Tiling

    def __deepcopy__(self, memo: dict[int, Any]) -> Listed:
        """Itself: it cannot change, and a record may have thousands of numbers."""
        return self


@attrs.frozen
class HostList:
    """The host list of one operator. Raises TilingError if no list decides that operator's tiling, or the spec is not one of it."""

    tiler: Tiler
    spec: TilingSpec
    """With the most values that a list will have as its capacity."""
    worst: WorstCase = attrs.field(init=False)
    """What to allocate once: workspace in bytes, elements of the output, int64 of the record."""

    @worst.default
    def _worst(self) -> WorstCase:
        if not self.tiler.operator(self.spec.op).values:
            raise TilingError(f"{self.spec.op} takes no list: shapes alone decide its tiling, so a captured one stays right")
        return self.tiler.worst_case(self.spec)

    def __call__(self, values: Iterable[int]) -> Listed:
        """The list of a step, tiled. Raises TilingError, with the constraint that failed and its numbers."""
        listed = tuple(map(int, values))
        return Listed(listed, self.tiler.tile(self.spec, listed))
