"""Matmul: (M, K) x (K, N), cut into blocks of the output, and of K where the output has too few. After TCubeTiling in fields and bounds.

A block of `base_m` x `base_n` outputs is kept in L0C while K goes by in steps of `base_k`. Block after block goes to the cores in turn, so
no core has more than one above another. Which block: of some heights the one whose rounds end soonest, a block taking as long as its
multiplications or its reads from L2, whichever is longer; never one that fills the rounds of the cores less than the default block does.
The time is the cube unit's: `fractal` x `fractal` outputs and a step of `c0` elements of K are a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence

from ...errors import TilingError
from ..operator import Operator, Tile
from ..platform import Platform
from ..spec import AT, BLOCK_DIM, FAULT, KEY, WORKSPACE, Field, TilingSpec, itemsize
from .integers import parts, up

FLOAT = 4
"""Bytes of an output in L0C and of a partial sum."""
STEP = 128
"""Bytes of K in a step, if L0A and L0B have room for two of them."""
SHORT, LONG = 128, 256
"""Sides of the default block; the long one is N, or M where both inputs are transposed."""
LEAST_K = 512
"""Elements of K below which its parts are not made."""
HEIGHTS = 5
"""Heights that are tried: the edge of the cube unit's block, and each the double of the one before."""

COUNT, M, N, K, ITEM, TRANSPOSED, BIAS, SPLIT, CORES, L1, L0A, L0B, L0C, FRACTAL, C0, RATE = range(16)
ARGS = (
    Field("count", "always 0: no values"),
    Field("m", "rows of the output"),
    Field("n", "columns of the output"),
    Field("k", "what is summed over"),
    Field("item", "bytes of an element of the inputs"),
    Field("transposed", "1: both inputs are stored transposed"),
    Field("bias", "bytes of an element of the bias; 0: none"),
    Field("split", "1: K may be cut too"),
    Field("cores", "cube cores"),
    Field("l1", "bytes"),
    Field("l0a", "bytes"),
    Field("l0b", "bytes"),
    Field("l0c", "bytes"),
    Field("fractal", "edge of the cube unit's block, in elements"),
    Field("c0", "elements of K that it takes in a cycle"),
    Field("rate", "bytes that a core reads from L2 in a cycle"),
)

SINGLE_M, SINGLE_N, SINGLE_K, BASE_M, BASE_N, BASE_K = range(5, 11)
DEPTH_A1, DEPTH_B1, STEP_M, STEP_N, STEP_KA, STEP_KB, DB_L0A, DB_L0B, DB_L0C, ORDER = range(11, 21)
BLOCKS_M, BLOCKS_N, PARTS_K = range(21, 24)
FIELDS = (
    Field("single_m", "rows of a core's block"),
    Field("single_n", "columns of it"),
    Field("single_k", "elements of K that a core sums over for it"),
    Field("base_m", "rows in L0A and L0C at once"),
    Field("base_n", "columns in L0B and L0C at once"),
    Field("base_k", "elements of K in L0A and L0B at once"),
    Field("depth_a1", "steps of A in L1"),
    Field("depth_b1", "steps of B in L1"),
    Field("step_m", "base_m in one read into L1"),
    Field("step_n", "base_n in one read into L1"),
    Field("step_ka", "base_k of A in one read into L1"),
    Field("step_kb", "base_k of B in one read into L1"),
    Field("db_l0a", "buffers in L0A"),
    Field("db_l0b", "buffers in L0B"),
    Field("db_l0c", "buffers in L0C"),
    Field("order", "0: the columns of a row of blocks, then the next row"),
    Field("blocks_m", "blocks of the output, down"),
    Field("blocks_n", "blocks of the output, across"),
    Field("parts_k", "parts of K; block b, part p is number p * blocks_m * blocks_n + b, and goes to core number % block_dim"),
)

NO_L0, NO_L1 = 1, 2
FAULTS = {
    NO_L0: "L0 is too small for one block of {fractal} x {fractal} x {c0}: {at} bytes needed, L0A {l0a}, L0B {l0b}, L0C {l0c}",
    NO_L1: "L1 is too small for two steps of A and of B, and the bias: {at} bytes needed, {l1} available",
}


def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:  # noqa: ARG001
    """The record of a matmul."""
    least = max(a[FRACTAL] * a[C0] * a[ITEM] * 2, 1)
    if min(a[L0A], a[L0B]) < least or a[L0C] < a[FRACTAL] * a[FRACTAL] * FLOAT:
        fail(NO_L0, max(least, a[FRACTAL] * a[FRACTAL] * FLOAT), out)
    elif a[M] > 0 and a[N] > 0:
        choose(a, out)
        split(a, out)
        feed(a, out)


def fail(fault: int, at: int, out: MutableSequence[int]) -> None:
    """A record with nothing but a fault."""
    for i in range(PARTS_K + 1):
        out[i] = 0
    out[FAULT] = fault
    out[AT] = at


def choose(a: Sequence[int], out: MutableSequence[int]) -> None:
    """The block of the output: the default one, or a better one."""
    edge = a[FRACTAL]
    cores = a[CORES]
    step = 2 * a[C0] * a[ITEM]
    tallest = min(a[L0A] // step // edge * edge, up(a[M], edge))
    widest = min(a[L0B] // step // edge * edge, up(a[N], edge))
    default(a, tallest, widest, out)
    blocks = out[BLOCKS_M] * out[BLOCKS_N]
    rounds = parts(blocks, cores)
    best = rounds * cost(a, out[BASE_M], out[BASE_N])
    height = edge
    for _i in range(HEIGHTS):
        down = parts(a[M], min(height, tallest))
        tall = up(parts(a[M], down), edge)
        least = parts(a[N], max(min(widest, a[L0C] // (FLOAT * tall) // edge * edge), edge))
        wide = up(parts(a[N], max(parts(down * least, cores) * cores // down, least)), edge)
        across = parts(a[N], wide)
        turns = parts(down * across, cores)
        time = turns * cost(a, tall, wide)
        if time < best and down * across * rounds >= blocks * turns and tall * wide * FLOAT <= a[L0C]:
            best = time
            out[BASE_M] = tall
            out[BASE_N] = wide
            out[BLOCKS_M] = down
            out[BLOCKS_N] = across
        if height >= tallest:
            break
        height = 2 * height


def default(a: Sequence[int], tallest: int, widest: int, out: MutableSequence[int]) -> None:
    """The default block, as much of it as there is room for."""
    edge = a[FRACTAL]
    out[BASE_M] = min(LONG if a[TRANSPOSED] == 1 else SHORT, tallest)
    room = max(a[L0C] // (FLOAT * out[BASE_M]) // edge * edge, edge)
    out[BASE_N] = min(SHORT if a[TRANSPOSED] == 1 else LONG, min(widest, room))
    out[BASE_M] = min(out[BASE_M], max(a[L0C] // (FLOAT * out[BASE_N]) // edge * edge, edge))
    out[BLOCKS_M] = parts(a[M], out[BASE_M])
    out[BLOCKS_N] = parts(a[N], out[BASE_N])


def cost(a: Sequence[int], tall: int, wide: int) -> int:
    """Time of a block for a step of C0 elements of K, in cycles times RATE: of its multiplications, or of its reads from L2."""
    return max(tall // a[FRACTAL] * (wide // a[FRACTAL]) * a[RATE], (tall + wide) * a[C0] * a[ITEM])


def split(a: Sequence[int], out: MutableSequence[int]) -> None:
    """Parts of K, where blocks are too few for half of the cores; and who does what."""
    blocks = out[BLOCKS_M] * out[BLOCKS_N]
    count = 1
    if a[SPLIT] == 1 and 2 * blocks <= a[CORES] and a[K] >= 2 * LEAST_K:
        count = min(a[CORES] // blocks, a[K] // LEAST_K)
    length = up(parts(a[K], count), a[C0])
    out[PARTS_K] = max(parts(a[K], max(length, 1)), 1)
    out[SINGLE_K] = length if out[PARTS_K] > 1 else a[K]
    out[BLOCK_DIM] = min(blocks * out[PARTS_K], a[CORES])
    out[WORKSPACE] = out[PARTS_K] * a[M] * a[N] * FLOAT if out[PARTS_K] > 1 else 0
    out[KEY] = 4 * a[TRANSPOSED] + 2 * (1 if a[BIAS] > 0 else 0) + (1 if out[PARTS_K] > 1 else 0)


def feed(a: Sequence[int], out: MutableSequence[int]) -> None:
    """Steps of K, and what is kept of them in L0 and L1: everywhere two, so that one is read while the other is used."""
    tall = out[BASE_M]
    wide = out[BASE_N]
    double = 2 * a[ITEM]
    room = a[L1] - a[BIAS] * wide
    base = min(min(STEP // a[ITEM], a[L0A] // (double * tall)), min(a[L0B] // (double * wide), max(room, 0) // (double * (tall + wide))))
    base = min(base // a[C0] * a[C0], max(up(out[SINGLE_K], a[C0]), a[C0]))
    if base == 0:
        fail(NO_L1, double * (tall + wide) * a[C0] + a[BIAS] * wide, out)
        return
    steps = min(room // (double * base * (tall + wide)), max(parts(out[SINGLE_K], base), 1))
    out[SINGLE_M] = tall
    out[SINGLE_N] = wide
    out[BASE_K] = base
    out[STEP_M] = 1
    out[STEP_N] = 1
    out[STEP_KA] = steps
    out[STEP_KB] = steps
    out[DEPTH_A1] = 2 * steps
    out[DEPTH_B1] = 2 * steps
    out[DB_L0A] = 2
    out[DB_L0B] = 2
    out[DB_L0C] = 2 if 2 * tall * wide * FLOAT <= a[L0C] else 1


# ---- on the host ----


def read(spec: TilingSpec, platform: Platform) -> list[int]:
    """The arguments, of the shapes (M, K) and (K, N) as multiplied, and of (N,) if there is a bias.

    Attributes: `transposed` (both inputs are stored so) and `split_k` (0: never cut K, for sums in one order whatever the cores).
    Raises TilingError for shapes that do not fit and for an element of more than 4 bytes.
    """
    (m, k), (n, bias) = _sizes(spec)
    item = itemsize(spec.dtypes[0])
    if item > FLOAT:
        raise TilingError(f"matmul: {spec.dtypes[0]} has {item} bytes; the cube unit multiplies elements of at most {FLOAT}")
    what = [0, m, n, k, item, spec.attribute("transposed", 0), bias, spec.attribute("split_k", 1)]
    sizes = (platform.l1, platform.l0a_bytes, platform.l0b_bytes, platform.l0c_bytes)
    return [*what, platform.cube_cores, *sizes, platform.fractal, platform.block_bytes // item, platform.l2_rate]


def _sizes(spec: TilingSpec) -> tuple[tuple[int, ...], tuple[int, int]]:
    ranks = [len(shape) for shape in spec.shapes]
    if ranks not in ([2, 2], [2, 2, 1]) or spec.shapes[0][1] != spec.shapes[1][0]:
        raise TilingError(f"matmul: shapes {', '.join(map(str, spec.shapes))}; needed (M, K), (K, N) and at most a bias (N,)")
    if len(ranks) == 3 and spec.shapes[2][0] != spec.shapes[1][1]:
        raise TilingError(f"matmul: a bias of {spec.shapes[2][0]} for {spec.shapes[1][1]} columns")
    return spec.shapes[0], (spec.shapes[1][1], itemsize(spec.dtypes[2]) if len(ranks) == 3 else 0)


def cycles(a: Sequence[int], m: int, n: int, k: int) -> int:
    """What a block costs the cube unit."""
    return parts(m, a[FRACTAL]) * parts(n, a[FRACTAL]) * parts(k, a[C0])


def default_blocks(a: Sequence[int]) -> int:
    """Blocks of the output if it were cut by the default block."""
    tall, wide = (LONG, SHORT) if a[TRANSPOSED] == 1 else (SHORT, LONG)
    return parts(a[M], tall) * parts(a[N], wide)


def wave_efficiency(blocks: int, cores: int) -> float:
    """Share of the rounds of the cores in which there is a block: 1 for none at all."""
    return blocks / (cores * parts(blocks, cores)) if blocks else 1.0


def tiles(a: Sequence[int], v: Sequence[int], record: Sequence[int]) -> Iterator[Tile]:  # noqa: ARG001
    """Each part of K of each block, as a box in M x N x K."""
    blocks = record[BLOCKS_M] * record[BLOCKS_N]
    for number in range(blocks * record[PARTS_K]):
        part, (down, across) = number // blocks, divmod(number % blocks, record[BLOCKS_N])
        begin = (down * record[SINGLE_M], across * record[SINGLE_N], part * record[SINGLE_K])
        size = (record[SINGLE_M], record[SINGLE_N], record[SINGLE_K])
        end = tuple(min(first + more, most) for first, more, most in zip(begin, size, a[M : K + 1], strict=True))
        yield Tile(number % record[BLOCK_DIM], begin, end, cycles(a, *(last - first for first, last in zip(begin, end, strict=True))))


MATMUL = Operator(
    name="matmul",
    about="matrix multiplication: (M, K), (K, N), and a bias (N,) or none",
    args=ARGS,
    fields=FIELDS,
    attributes={"transposed": "1: both inputs are stored transposed", "split_k": "0: K is never cut, so sums have one order"},
    faults=FAULTS,
    derive=derive,
    read=read,
    cores=lambda a: a[CORES],
    outputs=lambda a: a[M] * a[N],
    lower_bound=lambda a, v: parts(cycles(a, a[M], a[N], a[K]), a[CORES]),
    tiles=tiles,
    axes=("m", "n", "k"),
)
OPERATORS = (MATMUL,)
