"""Operators, and launches of operators, as a price file has them: sections [op.NAME] and [launch.KIND].

An operator inherits from [op.default] what it does not say itself. A launch is a list of their names, in the order of
their enqueue, with `{ repeat = n, ops = [...] }` inside it to any depth; or with `device_us` one operator that costs the
host nothing. `waits` are names too: each means the latest operator of that name before, in the same launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from ...errors import ProfileError, guess
from .price import Affine, Features, Price, read_price
from .reading import Entry, listed

HOST_SHAPE, HOST_VALUE, IN_KERNEL, DEVICE_METADATA, AICPU = "host-shape", "host-value", "in-kernel", "device-metadata", "aicpu"
PLACEMENTS: Mapping[str, tuple[str, ...]] = {
    HOST_SHAPE: ("tiling_us",),
    HOST_VALUE: ("tiling_us",),
    IN_KERNEL: ("device_us",),
    DEVICE_METADATA: ("device_us", "op"),
    AICPU: ("aicpu_us", "device_us"),
}
"""Where a tiling is computed -> what that may add to its operator."""
OWN, H2D, D2H = "", "h2d", "d2h"
"""Streams with a fixed meaning: the one that a launch was submitted to, and the engines that copy inputs and results."""
DEFAULT = "default"
MOST_OPS, MOST_LEVELS = 1_000_000, 32
"""Operators of a launch, and levels of `ops` in it: what goes beyond is a slip, or a list that contains itself."""

NOTHING = Affine("", 0.0)
COSTS = ("host_us", "tiling_us", "launcher_us", "device_us", "aicpu_us")


@attrs.frozen
class Placement:
    """What a placement adds to its operator; `op` is one that goes before it."""

    tiling: Price = NOTHING
    device: Price = NOTHING
    aicpu: Price = NOTHING
    op: Op | None = None


@attrs.frozen
class Op:
    """An operator. `placement` is the one of its `placements` that is not chosen otherwise; `waits` are names."""

    name: str
    host: Price = NOTHING
    tiling: Price = NOTHING
    launcher: Price = NOTHING
    device: Price = NOTHING
    aicpu: Price = NOTHING
    value_bytes: Price = NOTHING
    stream: str = OWN
    waits: tuple[str, ...] = ()
    placement: str = HOST_SHAPE
    placements: Mapping[str, Placement] = attrs.field(factory=lambda: {HOST_SHAPE: Placement()})


@attrs.frozen
class Graph:
    """What a replay costs the host: one enqueue for all kernels, and for each operator in `update` one of its own."""

    host: Price = NOTHING
    tiling: Price = NOTHING
    launcher: Price = NOTHING
    update: frozenset[str] = frozenset()
    each: Price = NOTHING


@attrs.frozen
class LaunchPrice:
    """A launch kind: its operators in the order of their enqueue, with default features."""

    features: Features
    ops: tuple[Op, ...]
    inputs_bytes: Price | None = None
    """None: nothing is copied to the device."""
    result_bytes: Price = NOTHING
    graph: Graph | None = None


def read_ops(entry: Entry) -> dict[str, Op]:
    """The operators of section [op] by name. Raises ProfileError."""
    tables = entry.table()
    default = tables.pop(DEFAULT, entry.at(DEFAULT, {})).table((*COSTS, "source"))
    default.pop("source", None)
    for name in {H2D, D2H} & tables.keys():
        tables[name].wrong(f"the name of an operator, not {name!r}, which is a copy's")
    return {name: _read_op(name, table, default) for name, table in tables.items()}


def read_launch(kind: str, entry: Entry, ops: Mapping[str, Op]) -> LaunchPrice:
    """A launch of those operators. Raises ProfileError."""
    keys = entry.table(("features", "ops", "device_us", "inputs_bytes", "result_bytes", "graph", "source"))
    features = keys["features"].table() if "features" in keys else {}
    if ("ops" in keys) == ("device_us" in keys):
        raise ProfileError(f"{entry.place}: a launch has either ops or device_us; got {listed(keys)}")
    flat = tuple(_flat(keys["ops"], ops)) if "ops" in keys else (Op(kind, device=read_price(keys["device_us"])),)
    return LaunchPrice(
        features={name: number.number() for name, number in features.items()},
        ops=flat,
        inputs_bytes=read_price(keys["inputs_bytes"], "bytes") if "inputs_bytes" in keys else None,
        result_bytes=_price(keys, "result_bytes", "bytes"),
        graph=_read_graph(keys["graph"], flat) if "graph" in keys else None,
    )


def _read_op(name: str, entry: Entry, default: Mapping[str, Entry]) -> Op:
    own = entry.table((*COSTS, "value_bytes", "stream", "waits", "tiling", "placement", "source"))
    keys = {**default, **own}
    if "device_us" not in keys:
        raise ProfileError(f"{entry.place}: the key 'device_us' is missing, here and in op.default; got {listed(map(repr, own))}")
    placements = _read_placements(name, own["placement"], default) if "placement" in own else {HOST_SHAPE: Placement()}
    return Op(
        name,
        **_costs(keys),
        value_bytes=_price(keys, "value_bytes", "bytes"),
        stream=_read_stream(own["stream"]) if "stream" in own else OWN,
        waits=tuple(wait.text() for wait in own["waits"].list("a list of operators")) if "waits" in own else (),
        placement=_read_tiling(own, entry, placements),
        placements=placements,
    )


def _read_tiling(own: Mapping[str, Entry], entry: Entry, placements: Mapping[str, Placement]) -> str:
    """The placement in force: the one that is named, or host-shape where that is listed."""
    if "tiling" in own:
        return str(own["tiling"].choice(placements, "placement of this operator"))
    if HOST_SHAPE not in placements:
        raise ProfileError(f"{entry.place}: the key 'tiling' is missing, and {HOST_SHAPE} is not listed; listed: {listed(placements)}")
    return HOST_SHAPE


def _read_stream(entry: Entry) -> str:
    return entry.text() if entry.value not in (OWN, H2D, D2H) else entry.wrong("the name of a stream that is no copy engine")


def _read_placements(name: str, entry: Entry, default: Mapping[str, Entry]) -> dict[str, Placement]:
    return {
        placement: _read_placement(f"{name}.metadata", table.table(PLACEMENTS[placement]), default)
        for placement, table in entry.table(PLACEMENTS).items()
    }


def _read_placement(before: str, keys: Mapping[str, Entry], default: Mapping[str, Entry]) -> Placement:
    op = keys["op"].table(COSTS, needed=("device_us",)) if "op" in keys else None
    return Placement(
        tiling=_price(keys, "tiling_us"),
        device=_price(keys, "device_us"),
        aicpu=_price(keys, "aicpu_us"),
        op=Op(before, **_costs({**default, **op})) if op is not None else None,
    )


def _costs(keys: Mapping[str, Entry]) -> dict[str, Any]:
    return {key.removesuffix("_us"): _price(keys, key) for key in COSTS}


def _price(keys: Mapping[str, Entry], key: str, unit: str = "us") -> Price:
    return read_price(keys[key], unit) if key in keys else NOTHING


def _read_graph(entry: Entry, ops: tuple[Op, ...]) -> Graph:
    keys = entry.table(("host_us", "tiling_us", "launcher_us", "update", "update_us", "source"), needed=("host_us",))
    names = {op.name: op for op in ops}
    update = keys["update"].list("a list of operators of this launch") if "update" in keys else []
    return Graph(
        host=_price(keys, "host_us"),
        tiling=_price(keys, "tiling_us"),
        launcher=_price(keys, "launcher_us"),
        update=frozenset(_known(name, names).name for name in update),
        each=_price(keys, "update_us"),
    )


# ---- ops = [...] ----


def _flat(entry: Entry, ops: Mapping[str, Op]) -> Iterator[Op]:
    """The operators of a list, repeats written out; what each waits for must have come before."""
    seen = set[str]()
    for before, name in enumerate(_names(entry, 0)):
        op = _known(name, ops)
        for earlier in op.waits:
            if earlier not in seen:
                raise ProfileError(f"{name.place}: {op.name!r} waits for {earlier!r}{guess(earlier, seen)}, which does not come before it")
        if before == MOST_OPS:
            entry.wrong(f"at most {MOST_OPS} operators, repeats counted")
        seen.add(op.name)
        yield op


def _names(entry: Entry, level: int) -> Iterator[Entry]:
    if level > MOST_LEVELS:
        raise ProfileError(f"{entry.place[:200]}: ops are nested deeper than {MOST_LEVELS} levels; does a list contain itself?")
    for item in entry.list("a list of names of operators and { repeat = n, ops = [...] }", least=1):
        if isinstance(item.value, str):
            yield item
        else:
            keys = item.table(("repeat", "ops"), needed=("repeat", "ops"))
            for _ in range(keys["repeat"].count(1)):
                yield from _names(keys["ops"], level + 1)


def _known(entry: Entry, ops: Mapping[str, Op]) -> Op:
    op = ops.get(entry.text())
    if op is None:
        raise ProfileError(f"{entry.place}: unknown operator {entry.value!r}{guess(entry.value, ops)}; known: {listed(ops)}")
    return op


def streams_of(launches: Iterable[LaunchPrice]) -> tuple[str, ...]:
    """The names of streams, the launch's own first, the copy engine of the inputs last if there are any."""
    names = dict.fromkeys(op.stream for launch in launches for op in launch.ops)
    names.pop(OWN, None)
    return (OWN, *names, *[H2D] * any(launch.inputs_bytes is not None for launch in launches))
