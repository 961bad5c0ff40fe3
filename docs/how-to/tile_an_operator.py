"""RMSNorm of the first `n` rows, where `n` is in device memory: an operator of one's own, with one derivation for every placement."""

from collections.abc import MutableSequence, Sequence

from ovsdk.tiling import Field, Operator, Tile, Tiler, tiling_spec
from ovsdk.tiling.explain import explain
from ovsdk.tiling.spec import AT, BLOCK_DIM, FAULT

COUNT, ROWS, ROW_BYTES, CORES, UB = range(5)  # where the arguments are; a[COUNT] is the number of values, always first
PER_CORE = 5  # the first field of the record behind the header
NOT_ONE, TOO_MANY, NO_ROOM = 1, 2, 3


def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """Integers only: this text is also emitted as C++."""
    if a[COUNT] != 1:
        out[FAULT] = NOT_ONE
        out[AT] = a[COUNT]
    elif v[0] < 0 or v[0] > a[ROWS]:
        out[FAULT] = TOO_MANY
    elif 3 * a[ROW_BYTES] > a[UB]:
        out[FAULT] = NO_ROOM
        out[AT] = 3 * a[ROW_BYTES]
    elif v[0] > 0:
        out[PER_CORE] = (v[0] + a[CORES] - 1) // a[CORES]
        out[BLOCK_DIM] = (v[0] + out[PER_CORE] - 1) // out[PER_CORE]


def read(spec, platform):
    """The arguments, from what the host knows."""
    (rows, columns) = spec.shapes[0]
    return [0, rows, 4 * columns, platform.vector_cores, platform.ub]


def tiles(_a, v, record):
    """Who does what: for pictures and tests."""
    for row in range(v[0]):
        yield Tile(row // record[PER_CORE], (row,), (row + 1,), 1)


RMS_NORM = Operator(
    name="rms_norm",
    about="RMSNorm of the first n rows: x, n",
    args=(
        Field("count", "values"),
        Field("rows", "that x has"),
        Field("row_bytes", "in float32"),
        Field("cores", "vector cores"),
        Field("ub", "bytes"),
    ),
    fields=(Field("per_core", "rows of a core"),),
    values="n",
    placements=("host-value", "device-metadata", "in-kernel", "aicpu"),
    attributes={},
    faults={
        NOT_ONE: "one value is needed, n; got {at}",
        TOO_MANY: "n = {value} of {rows} rows",
        NO_ROOM: "UB is too small for a row, its square and the result: {at} bytes needed, {ub} available",
    },
    derive=derive,
    read=read,
    cores=lambda a: a[CORES],
    outputs=lambda a: a[ROWS] * a[ROW_BYTES] // 4,
    lower_bound=lambda a, v: -(-v[0] // a[CORES]),
    tiles=tiles,
    axes=("rows",),
)

tiler = Tiler("910B3", operators=[RMS_NORM])
spec = tiling_spec("rms_norm", [(4096, 5120)], capacity=1)

launched = tiler.tile(spec)  # n is on the device: what to launch with, whatever it is
assert (launched.placement, launched.block_dim, launched.record) == ("device-metadata", 40, ())

known = tiler.tile(spec, values=[1000])  # n is known to the host: nothing waits for the device
assert (known.placement, known.block_dim) == ("host-shape", 40)
print(explain(RMS_NORM, known, [1000]))
print(RMS_NORM.c_struct())
