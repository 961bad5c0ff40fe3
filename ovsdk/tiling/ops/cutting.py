"""Cutting a space of several axes, row-major, into units: the innermost axes whole, a `factor` of the next one.

So a unit is a range of the flat space that never crosses the axes outside it: a copy with one stride. Written in the subset of derivations.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

from ..spec import Field
from .integers import parts, up

TOTAL, INNER, EXTENT, FACTOR, UNITS = range(5)
"""Fields of a cut space, from where it begins in a record."""
ROUNDS = 4
"""How many numbers of rounds of the cores are tried: the fewest that there can be, and 1, 3, 6 more."""
SHARES = 4
"""Axes are whole while that leaves so many units for each core."""


def space(name: str, what: str) -> tuple[Field, ...]:
    """The fields of a cut space."""
    return (
        Field(f"{name}_total", f"elements of {what}"),
        Field(f"{name}_inner", "elements of the axes that are whole in a unit"),
        Field(f"{name}_extent", "size of the axis that is cut"),
        Field(f"{name}_factor", "how much of it is in a unit"),
        Field(f"{name}_units", f"units of {what}"),
    )


def cut(
    out: MutableSequence[int],
    at: int,
    extents: int,
    axis: int,
    step: int,
    align: int,
    times: int,
    room: int,
    shortest: int,
    cores: int,
    rounds: int,
) -> int:
    """Write the space at out[at], whose TOTAL is there; its axes are out[extents + axis], axis - step, and so on. Elements of a unit.

    The innermost axis is padded to `align`, and so counted in `room`, which no unit exceeds. Each unit is wanted `times` times, by as many
    tasks. Axes are whole while that leaves SHARES units for each core; the next is cut into pieces not below `shortest`.
    """
    inner = 1
    held = 1
    share = min(room, max(parts(out[at + TOTAL] * times, SHARES * cores), shortest))
    while axis >= step and out[extents + axis] > 0 and up(out[extents + axis], align) * held <= share:
        inner = inner * out[extents + axis]
        held = held * up(out[extents + axis], align)
        align = 1
        axis = axis - step
    extent = out[extents + axis]
    outer = max(out[at + TOTAL] // max(inner * extent, 1), 1)
    longest = max(room // held // align * align, align)
    least = max(parts(extent, longest), 1)
    most = max(extent // up(parts(shortest, held), align), least)
    factor = min(up(parts(extent, pieces(outer * times, extent, least, most, align, cores, rounds)), align), extent)
    out[at + INNER] = inner
    out[at + EXTENT] = extent
    out[at + FACTOR] = factor
    out[at + UNITS] = outer * max(parts(extent, max(factor, 1)), 1)
    return held * up(max(factor, 1), align)


def pieces(outer: int, extent: int, least: int, most: int, align: int, cores: int, rounds: int) -> int:
    """Into how many pieces to cut an axis of which there are `outer`: the one of a few numbers, each filling whole rounds of the cores,
    with which the last core ends soonest; of equal ones the smallest."""
    first = parts(outer * least, cores)
    best = least
    ends = first * up(parts(extent, least), align)
    for i in range(rounds):
        length = max(up(parts(extent, min(max((first + i * (i + 1) // 2) * cores // outer, least), most)), align), 1)
        count = max(parts(extent, length), 1)
        end = parts(outer * count, cores) * length
        if end < ends:
            ends = end
            best = count
    return best


def unit(record: Sequence[int], at: int, number: int) -> tuple[int, int]:
    """The range of the flat space that is unit `number`. On the host alone."""
    inner, extent, factor = record[at + INNER], record[at + EXTENT], record[at + FACTOR]
    count = max(parts(extent, max(factor, 1)), 1)
    begin = number // count * extent + number % count * factor
    return begin * inner, min(begin + factor, (number // count + 1) * extent) * inner
