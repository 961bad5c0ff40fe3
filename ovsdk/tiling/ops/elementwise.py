"""Elementwise: one shape, cut flat. After opbase's elementwise tiling in idea.

Each core has `former` elements, the last one `tail`; it goes through them in loops of `ub_former`. `former` is a multiple of GRAIN
elements, so no core is more than GRAIN - 1 elements above the lower bound, unless fewer cores are worth their launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableSequence, Sequence

from ...errors import TilingError
from ..operator import Operator, Tile
from ..platform import Platform
from ..spec import AT, BLOCK_DIM, FAULT, KEY, Field, TilingSpec, itemsize
from .integers import parts, up

GRAIN = 512
"""A core's share is a multiple of so many elements."""
LEAST = 4096
"""Bytes below which a core is not worth its launch."""

COUNT, N, ITEM, LIVE, CORES, UB, VECTOR = range(7)
ARGS = (
    Field("count", "always 0: no values"),
    Field("n", "elements"),
    Field("item", "bytes of the smallest element"),
    Field("live", "bytes in UB for each element: all buffers, twice for double buffering"),
    Field("cores", "vector cores"),
    Field("ub", "bytes of UB of one of them"),
    Field("vector", "bytes of one repeat of the vector unit"),
)

FORMER, TAIL, UB_FORMER, FORMER_LOOPS, FORMER_TAIL, TAIL_LOOPS, TAIL_TAIL = range(5, 12)
FIELDS = (
    Field("former", "elements of each core but the last"),
    Field("tail", "elements of the last core"),
    Field("ub_former", "elements of each loop but a core's last"),
    Field("former_loops", "loops of each core but the last"),
    Field("former_tail", "elements of their last loop"),
    Field("tail_loops", "loops of the last core"),
    Field("tail_tail", "elements of its last loop"),
)

NO_ROOM = 1
FAULTS = {NO_ROOM: "UB is too small for one repeat of the vector unit: {at} bytes needed, {ub} available"}


def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:  # noqa: ARG001
    """The record of an elementwise operator."""
    repeat = max(a[VECTOR] // a[ITEM], 1)
    loop = a[UB] // a[LIVE] // repeat * repeat
    if loop == 0:
        out[FAULT] = NO_ROOM
        out[AT] = a[LIVE] * repeat
    elif a[N] > 0:
        share(a, out, loop)


def share(a: Sequence[int], out: MutableSequence[int], loop: int) -> None:
    """Elements of the cores and of their loops."""
    n = a[N]
    former = up(parts(n, min(a[CORES], parts(n * a[ITEM], LEAST))), GRAIN)
    cores = parts(n, former)
    tail = n - (cores - 1) * former
    former = former if cores > 1 else n
    out[BLOCK_DIM] = cores
    out[KEY] = a[ITEM]
    out[FORMER] = former
    out[TAIL] = tail
    out[UB_FORMER] = loop
    out[FORMER_LOOPS] = parts(former, loop)
    out[FORMER_TAIL] = former - (out[FORMER_LOOPS] - 1) * loop
    out[TAIL_LOOPS] = parts(tail, loop)
    out[TAIL_TAIL] = tail - (out[TAIL_LOOPS] - 1) * loop


# ---- on the host ----


def read(spec: TilingSpec, platform: Platform) -> list[int]:
    """The arguments; the output has the first dtype, attribute `scratch` is bytes of temporaries for each element.

    Raises TilingError for shapes that differ: see `broadcast`.
    """
    shape = spec.shapes[0] if spec.shapes else ()
    for other in spec.shapes[1:]:
        if other != shape:
            raise TilingError(f"elementwise: shapes {shape} and {other} differ; give equal ones, or use broadcast")
    sizes = [itemsize(dtype) for dtype in spec.dtypes] or [1]
    live = 2 * (sum(sizes) + sizes[0]) + spec.attribute("scratch", 0)
    return [0, math.prod(shape), min(sizes), live, platform.vector_cores, platform.ub, platform.vector_bytes]


def tiles(a: Sequence[int], v: Sequence[int], record: Sequence[int]) -> Iterator[Tile]:  # noqa: ARG001
    """Each loop of each core, as a range of elements."""
    for core in range(record[BLOCK_DIM]):
        first = core * record[FORMER]
        last = min(first + record[FORMER], a[N])
        for begin in range(first, last, record[UB_FORMER]):
            end = min(begin + record[UB_FORMER], last)
            yield Tile(core, (begin,), (end,), end - begin)


ELEMENTWISE = Operator(
    name="elementwise",
    about="one output element for each input element: inputs of one shape",
    args=ARGS,
    fields=FIELDS,
    attributes={"scratch": "bytes of temporaries in UB for each element"},
    faults=FAULTS,
    derive=derive,
    read=read,
    cores=lambda a: a[CORES],
    outputs=lambda a: a[N],
    lower_bound=lambda a, v: parts(a[N], a[CORES]),
    tiles=tiles,
    axes=("elements",),
)
OPERATORS = (ELEMENTWISE,)
