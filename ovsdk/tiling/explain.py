"""A tiling to look at: who does what on which core, as text. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence

from .operator import Operator, Tile, loads
from .spec import PLACEMENTS, Tiling

WIDTH = 28
"""Characters of the longest bar."""
SHOWN = 2
"""Tiles of a core that are told apart; of more, the first and the last."""


def explain(op: Operator, tiling: Tiling, values: Sequence[int] = ()) -> str:
    """What is launched, and if the record is known, a line a core: its load as a bar, and its tiles as ranges of the operator's space.

    The bar of a core that does exactly the lower bound ends at the mark `|`.
    """
    head = [f"{op.name}, tiling {tiling.placement}: {PLACEMENTS[tiling.placement]}", _launched(tiling)]
    if not tiling.record:
        return "\n".join([*head, f"the record, {tiling.length} int64, is written by the device: give the values to see it"])
    tiles = list(op.tiles(tiling.args, values, tiling.record))
    if not tiles:
        return "\n".join([*head, "nothing to do"])
    return "\n".join([*head, *_cores(op, tiling, values, tiles)])


def _launched(tiling: Tiling) -> str:
    return f"launched on {tiling.block_dim} cores, key {tiling.key}, {tiling.workspace} bytes of workspace"


def _cores(op: Operator, tiling: Tiling, values: Sequence[int], tiles: Sequence[Tile]) -> list[str]:
    cost = loads(op, tiling.args, values, tiling.record)
    bound = op.lower_bound(tiling.args, values)
    most = max(max(cost), bound, 1)
    mine: dict[int, list[Tile]] = {}
    for tile in tiles:
        mine.setdefault(tile.core, []).append(tile)
    ratio = f", {max(cost) / bound:.3f} of the lower bound {bound}" if bound else ""
    summary = f"{len(tiles)} tiles of {' x '.join(op.axes)} on {len(mine)} of {len(cost)} cores; the busiest does {max(cost)}{ratio}"
    return [summary, *(f"{core:4d} {_bar(cost[core], bound, most)} {_told(some)}" for core, some in sorted(mine.items()))]


def _bar(cost: int, bound: int, most: int) -> str:
    mark = round(bound / most * WIDTH)
    filled = round(cost / most * WIDTH)
    return "".join("|" if at == mark else "#" if at < filled else " " for at in range(WIDTH + 1))


def _told(tiles: Sequence[Tile]) -> str:
    few = tiles if len(tiles) <= SHOWN else (tiles[0], tiles[-1])
    between = f" ... {len(tiles) - 2} more ... " if len(tiles) > SHOWN else ", "
    return between.join(map(_box, few))


def _box(tile: Tile) -> str:
    return " x ".join(f"{begin}:{end}" for begin, end in zip(tile.begin, tile.end, strict=True))
