"""What is tiled, and what a tiling is: values, without a thought about any operator.

A tiling is a RECORD of int64: HEADER, the operator's own fields, then, for operators with a table, rows of equal length. Its length is
known from the spec alone, so that a device can write it into memory that the host has allocated before.
On a fault the record is 0 everywhere but in FAULT and AT.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import TilingError, guess

HOST_SHAPE, HOST_VALUE, IN_KERNEL, DEVICE_METADATA, AICPU = "host-shape", "host-value", "in-kernel", "device-metadata", "aicpu"
PLACEMENTS: Mapping[str, str] = {
    HOST_SHAPE: "on the host, from what it has: shapes, attributes, values that never were on the device",
    HOST_VALUE: "on the host, after a copy of the values and a synchronisation with the stream",
    IN_KERNEL: "in the kernel, which reads the values itself; every core is launched",
    DEVICE_METADATA: "by a small operator on the device, whose table the kernel reads; every core is launched",
    AICPU: "on the device's AICPU, by the same function compiled for it",
}
"""Where a tiling may be computed."""


class Field(NamedTuple):
    """A named part of an argument vector, of a record, or of a table's row: `size` int64."""

    name: str
    about: str
    size: int = 1


BLOCK_DIM, KEY, WORKSPACE, FAULT, AT = range(5)
HEADER = (
    Field("block_dim", "cores that have work; 0: nothing to launch"),
    Field("key", "which variant of the kernel"),
    Field("workspace", "bytes of global memory that the kernel needs"),
    Field("fault", "0, or the number of the first constraint that failed"),
    Field("at", "what failed it: the index of a value, or the operator's number"),
)
"""Begins every record."""

ITEMSIZE: Mapping[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "float32": 4,
    "int32": 4,
    "float64": 8,
    "int64": 8,
}
"""Bytes of an element by dtype."""


class TilingSpec(NamedTuple):
    """What is to be tiled, as far as the host knows it. Hashable: the key of a cache. Made by `tiling_spec`, which checks it."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    attributes: tuple[tuple[str, int], ...] = ()
    """Sorted by name."""
    capacity: int = 0
    """Most values that the value input will have; 0: the operator's tiling does not depend on values."""

    def attribute(self, name: str, default: int) -> int:
        """The attribute of that name, or the default."""
        for known, value in self.attributes:
            if known == name:
                return value
        return default

    def inputs(self, *names: str) -> tuple[tuple[int, ...], ...]:
        """The shapes, one for each of these inputs. Raises TilingError for more or less."""
        if len(self.shapes) != len(names):
            seen = ", ".join(map(str, self.shapes)) or "none"
            raise TilingError(f"{self.op}: {len(self.shapes)} shapes ({seen}); needed: {len(names)}, of {' and '.join(names)}")
        return self.shapes


def tiling_spec(
    op: str, shapes: Iterable[Sequence[int]], dtypes: str | Iterable[str] = "float16", capacity: int = 0, **attributes: int
) -> TilingSpec:
    """A spec of an operator on these inputs; one dtype is that of all. Raises TilingError for sizes below 0 and unknown dtypes."""
    sizes = tuple(tuple(map(int, shape)) for shape in shapes)
    names = (dtypes,) * len(sizes) if isinstance(dtypes, str) else tuple(dtypes)
    if len(names) != len(sizes):
        raise TilingError(f"{op}: {len(sizes)} shapes and {len(names)} dtypes; give one dtype for each shape, or one for all")
    for name in names:
        itemsize(name)
    for shape in sizes:
        if any(size < 0 for size in shape):
            raise TilingError(f"{op}: shape {shape} has a size below 0")
    return TilingSpec(op, sizes, names, tuple(sorted((name, int(value)) for name, value in attributes.items())), capacity)


def itemsize(dtype: str) -> int:
    """Bytes of an element. Raises TilingError for an unknown dtype."""
    if dtype not in ITEMSIZE:
        raise TilingError(f"unknown dtype {dtype!r}{guess(dtype, ITEMSIZE)}; allowed: {', '.join(ITEMSIZE)}")
    return ITEMSIZE[dtype]


class Tiling(NamedTuple):
    """How an operator is cut. Where the device computes it, `record` is empty, and the other numbers are those of the worst case."""

    op: str
    placement: str
    block_dim: int
    """Cores to launch."""
    key: int
    workspace: int
    """Bytes."""
    record: tuple[int, ...]
    args: tuple[int, ...]
    """What the derivation was given, or will be on the device."""
    length: int
    """int64 that the record has, or will have."""

    def to_bytes(self) -> bytes:
        """The record as the device reads it: little-endian int64."""
        return struct.pack(f"<{len(self.record)}q", *self.record)


def from_bytes(data: bytes) -> tuple[int, ...]:
    """The record that `Tiling.to_bytes` gave, or that a device wrote. Raises TilingError if it is not whole."""
    if len(data) % 8:
        raise TilingError(f"a record is a multiple of 8 bytes; got {len(data)}")
    return struct.unpack(f"<{len(data) // 8}q", data)


def offsets(fields: Sequence[Field]) -> dict[str, int]:
    """Where each field begins, in int64."""
    found, at = {}, 0
    for field in fields:
        found[field.name] = at
        at += field.size
    return found


def length(fields: Sequence[Field]) -> int:
    """int64 of all fields together."""
    return sum(field.size for field in fields)


def c_struct(name: str, fields: Sequence[Field]) -> str:
    """The fields as a C struct of int64_t."""
    sized = [f"    int64_t {field.name}{f'[{field.size}]' if field.size > 1 else ''};  // {field.about}" for field in fields]
    return "\n".join([f"struct {name} {{", *sized, "};"])
