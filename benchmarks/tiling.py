"""How good tilings are, and what they cost on the host: the longest core over its lower bound, and CPU time of a plan.

Quality is counted, not measured: a bound is what no tiling can undercut, in the operator's own unit of work. Times are CPU time of this
process. No device is here: what the torch forms cost on one is not told, only how many torch operators they are.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from _table import Row, Section, alternate, main, median

from ovsdk.errors import ConfigError
from ovsdk.tiling import Operator, Platform, Tiler, TilingSpec, operator_named, plan, platform_named, tiling_spec
from ovsdk.tiling.emit import compiled
from ovsdk.tiling.operator import loads, run
from ovsdk.tiling.ops import grouped_matmul as gmm
from ovsdk.tiling.ops import matmul
from ovsdk.tiling.ops.integers import parts

SEED = 7
DRAWS = {False: 200, True: 20}
ROUNDS = {False: 11, True: 2}
CALLS = {False: 100, True: 10}

# ---- quality ----


def over_bound(op: Operator, spec: TilingSpec, platform: Platform, values: Sequence[int] = ()) -> float:
    """The longest core in lower bounds; 1 where there is nothing to do."""
    a = [len(values), *op.read(spec, platform)[1:]]
    bound = op.lower_bound(a, values)
    return max(loads(op, a, values, run(op, a, values))) / bound if bound else 1.0


def ratios(name: str, values: Sequence[float], target: float | None = None) -> Iterator[Row]:
    """The mean of some ratios, and the worst, which has the target."""
    yield Row(f"{name}: mean", sum(values) / len(values), "x")
    yield Row(f"{name}: worst of {len(values)}", max(values), "x", target)


LENGTHS: dict[str, Callable[[random.Random], list[int]]] = {
    "32 uniform 1..8k": lambda draw: [draw.randint(1, 8192) for _ in range(32)],
    "1 x 128k + 31 x 1k": lambda draw: [131_072, *(draw.randint(512, 1536) for _ in range(31))],
    "48 zipf": lambda draw: [min(65_536, int(512 / (1 - draw.random()))) for _ in range(48)],
}
"""What sequences may be in a batch: drawn, as far as they are not all alike."""
ONE_PASS, EXACT = 1.15, 1.10


def decode_spec(count: int, heads: int = 1, exact: int = 0) -> TilingSpec:
    """Flash-decode of so many sequences, 8 query rows for a KV head; few heads are the hardest case, for there are few blocks."""
    return tiling_spec("split_kv", [(count, 8 * heads, 128), (count, 131_072, heads, 128)], capacity=count, exact=exact)


def split_kv(quick: bool) -> Iterator[Row | str]:
    """The one pass, which the device does too, and the exact search."""
    op, hard = operator_named("split_kv"), {"910B1": (ONE_PASS, EXACT), "910B3": (ONE_PASS, EXACT), "950": (None, None)}
    yield f"{DRAWS[quick]} draws, 1 KV head, blocks of 512 tokens; an exact ratio over 1 is the grain of the blocks, not the search's"
    for name, draw_lengths in LENGTHS.items():
        for soc, targets in hard.items():
            draw, platform = random.Random(SEED), platform_named(soc)
            draws = [draw_lengths(draw) for _ in range(DRAWS[quick])]
            for how, exact in (("one pass", 0), ("exact", 1)):
                found = [over_bound(op, decode_spec(len(one), exact=exact), platform, one) for one in draws]
                yield from ratios(f"{name}, {platform.cube_cores} cores, {how}", found, targets[exact])
            if soc == "910B1":
                yield from ratios(
                    f"{name}, {platform.cube_cores} cores, a sequence a core", [one_each(one, platform.cube_cores) for one in draws]
                )


def one_each(lengths: Sequence[int], cores: int) -> float:
    """What there would be without a split: sequence after sequence to core after core."""
    found = [sum(parts(length, 64) for length in lengths[core::cores]) for core in range(cores)]
    return max(found) * cores / sum(found)


COUNTS: dict[str, Callable[[random.Random], list[int]]] = {
    "even, 64 experts": lambda draw: [draw.randint(96, 160) for _ in range(64)],
    "skewed, 64 experts": lambda draw: [int(8 / (1 - draw.random())) % 4096 for _ in range(64)],
    "decode, 256 experts, most empty": lambda draw: [draw.choice([0, 0, 0, 1, 2, 5]) for _ in range(256)],
}
"""Rows that a router may give to each expert."""


def grouped_matmul(quick: bool) -> Iterator[Row | str]:
    """By tiles, as they are dealt out; and by blocks of the cube unit, which also counts what is at the edges of tiles."""
    op, platform, draw = operator_named("grouped_matmul"), platform_named("910B3"), random.Random(SEED)
    yield f"{DRAWS[quick]} draws, 4096 columns, {platform.cube_cores} cores; 'by itself': no next group fills a group's last wave"
    for name, draw_counts in COUNTS.items():
        found = [dealt(op, draw_counts(draw), platform) for _ in range(DRAWS[quick])]
        yield from ratios(f"{name}: tiles", [one.tiles for one in found], 1.05)
        yield from ratios(f"{name}: tiles, each by itself", [one.apart for one in found])
        yield from ratios(f"{name}: blocks of the cube unit", [one.blocks for one in found])


class Dealt(NamedTuple):
    """The longest core over lower bounds."""

    tiles: float
    apart: float
    blocks: float


def dealt(op: Operator, counts: Sequence[int], platform: Platform) -> Dealt:
    """Of a grouped matmul with groups of so many rows."""
    spec = tiling_spec("grouped_matmul", [(sum(counts), 4096), (len(counts), 4096, 4096)], capacity=len(counts))
    a = [len(counts), *op.read(spec, platform)[1:]]
    record, cores = run(op, a, counts), platform.cube_cores
    held = [0] * cores
    for tile in op.tiles(a, counts, record):
        held[tile.core] += 1
    groups = [parts(count, record[gmm.BASE_M]) * record[gmm.TILES_N] for count in counts]
    best = parts(sum(groups), cores)
    return Dealt(max(held) / best, sum(parts(tiles, cores) for tiles in groups) / best, over_bound(op, spec, platform, counts))


MATMULS = [(m, n, k) for m in (1, 16, 128, 300, 1024, 4096, 8192) for n in (256, 1536, 4096, 11_008) for k in (128, 4096)]


def others(_quick: bool) -> Iterator[Row | str]:
    """Operators that shapes decide, reduce over every set of axes, and those with a scalar or counts."""
    platform, draw = platform_named("910B3"), random.Random(SEED)
    op = operator_named("matmul")
    waves = [shares(op, tiling_spec("matmul", [(m, k), (k, n)]), platform) for m, n, k in MATMULS]
    yield f"{platform.name}; matmuls of {len(MATMULS)} sizes; the default block is 128 x 256"
    yield Row("matmul: wave efficiency of the default block over ours, worst", max(theirs / ours for ours, theirs in waves), "x", 1.0)
    yield Row("matmul: wave efficiency, mean", sum(ours for ours, _ in waves) / len(waves), "share")
    yield Row("matmul: wave efficiency of the default block, mean", sum(theirs for _, theirs in waves) / len(waves), "share")
    for name, cases in other_cases(draw).items():
        yield from ratios(name, [over_bound(operator_named(spec.op), spec, platform, values) for spec, values in cases])


def shares(op: Operator, spec: TilingSpec, platform: Platform) -> tuple[float, float]:
    """Wave efficiency of a matmul's blocks, and what the default block's would be."""
    a = op.read(spec, platform)
    record, cores = run(op, a, ()), platform.cube_cores
    blocks = record[matmul.BLOCKS_M] * record[matmul.BLOCKS_N] * record[matmul.PARTS_K]
    return matmul.wave_efficiency(blocks, cores), matmul.wave_efficiency(matmul.default_blocks(a), cores)


Cases = list[tuple[TilingSpec, list[int]]]


def other_cases(draw: random.Random) -> dict[str, Cases]:
    """Specs with values, 2 MiB of output and more: less is not worth all cores."""
    shapes = [(draw.randint(8, 64), draw.randint(64, 512), draw.randint(2048, 4096)) for _ in range(100)]
    counts = [[draw.choice([0, 1, 2, 8]) for _ in range(draw.randint(64, 512))] for _ in range(100)]
    sets = [[axis for axis in range(3) if mask >> axis & 1] for mask in range(1, 8)]
    repeated = [tiling_spec("repeat", [(len(one), 7168)], capacity=len(one), out_rows=sum(one)) for one in counts]
    return {
        "elementwise": [(tiling_spec("elementwise", [shape]), []) for shape in shapes],
        "broadcast": [(tiling_spec("broadcast", [shape, (1, *shape[1:])]), []) for shape in shapes],
        "reduce, every set of axes": [(tiling_spec("reduce", [shape], capacity=3), axes) for shape in shapes[:30] for axes in sets],
        "repeat": list(zip(repeated, counts, strict=True)),
        "range": [(tiling_spec("range", [(10**7,)], "int64", 3), [0, draw.randint(10**6, 10**7), 1]) for _ in range(100)],
        "topk of few rows, without merging": [
            (tiling_spec("topk", [(rows, 151_936)], "float32", 1), [k]) for rows in (1, 8, 40, 64) for k in (1, 50, 1000)
        ],
    }


# ---- host time ----


def cpu_us(call: Callable[[], object], count: int) -> float:
    """CPU time of one call, of `count` in a row."""
    gc.collect()
    begin = time.process_time_ns()
    for _ in range(count):
        call()
    return (time.process_time_ns() - begin) / count / 1e3


class Timed(NamedTuple):
    """Something to time, and the most that it may take."""

    call: Callable[[], object]
    target_us: float | None = None


def speed(quick: bool) -> Iterator[Row | str]:
    """Plans that no cache has; then the cache, and C++."""
    calls = {**plans(), **in_cpp()}
    timed = {name: functools.partial(cpu_us, one.call, CALLS[quick]) for name, one in calls.items()}
    yield f"{ROUNDS[quick]} alternating runs of {CALLS[quick]} calls each; nothing is cached but where it says so"
    for name, found in alternate(timed, ROUNDS[quick]).items():
        yield median(name, found, "us", calls[name].target_us)
    if not in_cpp():
        yield Row("C++: no compiler is here", None, "us")


def plans() -> dict[str, Timed]:
    """In Python."""
    platform, draw, tiler = platform_named("910B3"), random.Random(SEED), Tiler("910B3")
    lengths, counts = [draw.randint(1, 8192) for _ in range(256)], [draw.randint(0, 256) for _ in range(64)]
    short = [draw.randint(1, 1024) for _ in range(256)]
    of = {
        "elementwise": (tiling_spec("elementwise", [(64, 4096)]), None, 20.0),
        "broadcast": (tiling_spec("broadcast", [(64, 16, 4096), (16, 1)]), None, 20.0),
        "matmul": (tiling_spec("matmul", [(512, 4096), (4096, 4096)]), None, 20.0),
        "reduce, axes known": (tiling_spec("reduce", [(64, 512, 128)], capacity=3), [1], None),
        "split-KV, 256 sequences": (decode_spec(256, 8), lengths, 200.0),
        "split-KV, 256 short sequences of one head": (decode_spec(256), short, 200.0),
        "split-KV exact, 256 sequences": (decode_spec(256, 8, exact=1), lengths, None),
        "grouped matmul, 64 experts": (tiling_spec("grouped_matmul", [(sum(counts), 64), (64, 64, 4096)], capacity=64), counts, None),
    }
    kept = tiling_spec("matmul", [(512, 4096), (4096, 4096)])
    tiler.tile(kept)
    found = {
        f"{name}: Python": Timed(functools.partial(plan, operator_named(spec.op), spec, platform, values=values), target)
        for name, (spec, values, target) in of.items()
    }
    return {**found, "a plan that is kept": Timed(functools.partial(tiler.tile, kept), 2.0)}


@functools.cache
def in_cpp() -> dict[str, Timed]:
    """The same text compiled, on values that lie in an array; none without a compiler."""
    op, draw = operator_named("split_kv"), random.Random(SEED)
    values, found = array("q", [draw.randint(1, 8192) for _ in range(256)]), {}
    for name, exact in (("split-KV", 0), ("split-KV exact", 1)):
        a = array("q", [256, *op.read(decode_spec(256, 8, exact), platform_named("910B3"))[1:]])
        try:
            derive = compiled(op.name, op.derive)
        except ConfigError:
            return {}
        size = 8 * op.length(a)
        found[f"{name}, 256 sequences: C++"] = Timed(functools.partial(_fresh, derive, a, values, size), 10.0)
    return found


def _fresh(derive: Callable[[Any, Any, Any], None], a: array[int], values: array[int], size: int) -> None:
    derive(a, values, array("q", bytes(size)))


# ---- torch forms ----


def forms(quick: bool) -> Iterator[Row | str]:
    """How many torch operators a record takes, for each is a launch in eager mode; and their CPU time on the CPU."""
    try:
        import torch

        from ovsdk.tiling.metadata import prepare
    except ImportError:
        yield Row("torch: not installed (pip install 'ovsdk[torch]')", None, "us")
        return
    torch.set_num_threads(1)
    platform, draw = platform_named("910B3"), random.Random(SEED)
    yield f"torch {torch.__version__} on the CPU, one thread: not what a device would take"
    cases = {
        "reduce, 3 axes known only there": (tiling_spec("reduce", [(64, 512, 128)], capacity=3), [1]),
        "split-KV, 256 sequences": (decode_spec(256, 8), [draw.randint(1, 8192) for _ in range(256)]),
        "grouped matmul, 64 experts": (tiling_spec("grouped_matmul", [(64 * 100, 64), (64, 64, 4096)], capacity=64), [100] * 64),
        "repeat, 256 rows": (tiling_spec("repeat", [(256, 7168)], capacity=256, out_rows=512), [2] * 256),
        "range": (tiling_spec("range", [(10**6,)], "int64", 3), [0, 10**6, 1]),
        "topk": (tiling_spec("topk", [(8, 151_936)], capacity=1), [50]),
    }
    for name, (spec, values) in cases.items():
        op = operator_named(spec.op)
        form, on_device = prepare(op, op.read(spec, platform), "cpu"), torch.tensor(values)
        yield Row(f"{name}: torch operators", torch_operators(lambda form=form, v=on_device: form(v)), "")
        timed = {name: functools.partial(cpu_us, functools.partial(form, on_device), CALLS[quick])}
        yield median(f"{name}: CPU time on the CPU", alternate(timed, ROUNDS[quick])[name], "us")


def torch_operators(call: Callable[[], object]) -> int:
    """How many operators torch dispatches; views of memory, which launch nothing, are not counted."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        found = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            views = any(arg.alias_info is not None and not arg.alias_info.is_write for arg in func._schema.arguments)
            self.found += not views
            return func(*args, **(kwargs or {}))

    with Count() as count, torch.no_grad():
        call()
    return count.found


SECTIONS = {
    "a": Section("split-KV: the longest core over the lower bound", split_kv),
    "b": Section("grouped matmul: the longest core over the lower bound", grouped_matmul),
    "c": Section("other operators: waves, and the longest core over the lower bound", others),
    "d": Section("CPU time of a plan on the host", speed),
    "e": Section("torch forms for device-metadata", forms),
}

if __name__ == "__main__":
    sys.exit(main(__doc__, SECTIONS))
