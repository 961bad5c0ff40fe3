"""A launch's arrays in one block of memory, so that they cross to the device, or back, as one copy. Imports numpy alone.

    aligned              in a block each array begins at a multiple of 512 bytes, as copy engines and kernels like it
    a block is leased    it belongs to whoever holds its `Lease`: the launch that sends it, and the arrays that `Staging` has
                         handed out. With the last holder gone it goes back to its pool, whatever ended the launch; a launch
                         holds its leases until the host has seen that the device is done with it and has taken the result
    so there are few     a pool has as many blocks as launches are in flight, and one more for the step being prepared
    nobody is surprised  a block that somebody still looks into on the device is not used again (`Block.looked_at`)

Arrays are looked for in dicts, lists and tuples; everything else is a plain value and passes through.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..errors import ConfigError

ALIGN = 512
SMALLEST = 4096
"""Bytes of the smallest block; others are a power of two."""
DTYPES = frozenset(
    ["bool", *(f"{kind}{8 << n}" for kind in ("int", "uint") for n in range(4)), "float16", "float32", "float64", "complex64", "complex128"]
)
"""What of numpy's dtypes a device can have."""

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class Slot(NamedTuple):
    """Where an array lies in a block: `offset` and `nbytes` of its memory, dtype by torch's and numpy's common name."""

    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    def within(self, octets: Array, dtype: DTypeLike | None = None) -> Array:
        """The array, as a view of a block's memory (uint8), with numpy's dtype where it is not of that name."""
        view: Array = np.ndarray(self.shape, dtype or self.dtype, octets, self.offset)
        return view


class Block(Protocol):
    """Memory in pairs: pinned on the host, and as much on the device."""

    host: Array
    """uint8."""

    def looked_at(self) -> bool:
        """Whether anybody but the block itself has a view of its device memory."""
        ...


class Lease:
    """The right to use a block; there is no other way to it. Give it up by letting go of it."""

    __slots__ = ("__weakref__", "_pool", "block", "used")

    def __init__(self, block: Any, pool: Pool) -> None:
        self.block, self.used, self._pool = block, 0, pool
        """`used`: bytes handed out so far, from the block's beginning."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """numpy's protocol: an array made of a lease holds it."""
        return self.block.host.__array_interface__  # type: ignore[no-any-return]

    def reserve(self, nbytes: int, align: int = ALIGN) -> int:
        """The offset of so many bytes more, or -1 if there is no room."""
        offset = aligned(self.used, align)
        if offset + nbytes > len(self.block.host):
            return -1
        self.used = offset + nbytes
        return offset

    def __del__(self) -> None:
        self._pool.give_back(self.block)


class Pool:
    """Blocks of some sizes, and all that were ever made until `clear`. `make(nbytes)` makes one. Any thread."""

    def __init__(self, make: Callable[[int], Block]) -> None:
        self._make = make
        self._free: defaultdict[int, deque[Block]] = defaultdict(deque)
        self.made = 0
        """Blocks made since the beginning."""

    def lease(self, nbytes: int) -> Lease:
        """A block of at least so many bytes. Raises what `make` raises."""
        size = max(SMALLEST, 1 << (nbytes - 1).bit_length())
        return Lease(self._found(size) or self._new(size), self)

    def give_back(self, block: Block) -> None:
        """For leases: nobody has the block any more, but for those who look into it."""
        self._free[len(block.host)].append(block)

    def clear(self) -> None:
        """Let the blocks go that nobody has."""
        self._free.clear()

    def _found(self, size: int) -> Block | None:
        """The first free block of a size that nobody looks into."""
        free = self._free[size]
        for _ in range(len(free)):
            try:
                block = free.popleft()
            except IndexError:  # another thread has taken it
                break
            if not block.looked_at():
                return block
            free.append(block)
        return None

    def _new(self, size: int) -> Block:
        self.made += 1
        return self._make(size)


def aligned(nbytes: int, align: int = ALIGN) -> int:
    """The next multiple of `align`."""
    return -(-nbytes // align) * align


class Part(NamedTuple):
    """An array to be sent: its dtype by torch's and numpy's common name, and its values as numpy sees them (bfloat16 as int16)."""

    dtype: str
    values: Array


def numpy_part(value: Any) -> Part | None:
    """A numpy array as a Part, None for anything else. Raises ConfigError for a dtype that no device has."""
    if not isinstance(value, np.ndarray):
        return None
    return Part(_known(value.dtype), value)


@functools.cache
def _known(dtype: np.dtype[Any]) -> str:
    """The dtype's name, which numpy takes its time to make."""
    if dtype.name not in DTYPES:
        raise ConfigError(f"an array of dtype {dtype} cannot be on a device: pass it as `host`; allowed: {', '.join(sorted(DTYPES))}")
    name: str = dtype.name
    return name


class _Hole:
    """Stands in a tree for an array."""

    def __repr__(self) -> str:
        return "array"


HOLE = _Hole()


def mapped(fn: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with `fn` applied to what is not a dict, list or tuple (a NamedTuple stays one)."""
    if isinstance(tree, Mapping):
        return {key: mapped(fn, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [mapped(fn, value) for value in tree]
        return items if isinstance(tree, list) else type(tree)._make(items) if hasattr(tree, "_make") else tuple(items)
    return fn(tree)


def taken_out(tree: Any, found: Callable[[Any], T | None]) -> tuple[Any, list[T]]:
    """The tree with HOLE for what `found` finds, and what it gave for each, in order."""
    parts: list[T] = []

    def leaf(value: Any) -> Any:
        part = found(value)
        if part is None:
            return value
        parts.append(part)
        return HOLE

    return mapped(leaf, tree), parts


def filled(tree: Any, values: Iterable[Any]) -> Any:
    """The tree with its holes filled, in order."""
    rest = iter(values)
    return mapped(lambda value: next(rest) if value is HOLE else value, tree)


class Parcel:
    """Inputs that are to be sent: a tree with holes, and the parts that fill them."""

    def __init__(self, inputs: Any, found: Callable[[Any], Part | None]) -> None:
        self.tree, self.parts = taken_out(inputs, found)

    @property
    def layout(self) -> str:
        """All of the inputs but the values of their arrays, for comparing."""
        return repr(filled(self.tree, (f"{part.dtype}{list(part.values.shape)}" for part in self.parts)))

    def load(self, pool: Pool) -> tuple[Lease, list[Slot]]:
        """Put the parts where they can be sent from: into the lease that some of them lie in already, else into a new one."""
        staged = next(filter(None, (holder(part.values) for part in self.parts)), None)
        slots = None if staged is None else self._slots(staged)
        if staged is None or slots is None:
            staged = pool.lease(sum(aligned(part.values.nbytes) for part in self.parts))
            slots = self._slots(staged)
        assert slots is not None
        self.write(staged, slots)
        return staged, slots

    def write(self, lease: Lease, slots: Iterable[Slot]) -> None:
        """Copy the parts to their slots, but for those that lie there already."""
        for part, slot in zip(self.parts, slots, strict=True):
            if not _may_stay(part.values, lease) or place(part.values, lease) != slot.offset:
                slot.within(lease.block.host, part.values.dtype.newbyteorder("="))[...] = part.values

    def _slots(self, lease: Lease) -> list[Slot] | None:
        """A slot for each part, those that lie in the lease where they are; None if there is no room for the others."""
        slots = []
        for dtype, values in self.parts:
            offset = place(values, lease) if _may_stay(values, lease) else lease.reserve(values.nbytes)
            if offset < 0:
                return None
            slots.append(Slot(offset, values.nbytes, dtype, values.shape))
        return slots


def _may_stay(array: Array, lease: Lease) -> bool:
    """Whether an array lies in a lease as the device wants it."""
    plain = array.flags.c_contiguous and array.dtype.isnative
    return holder(array) is lease and plain and place(array, lease) % array.itemsize == 0


def holder(array: Array) -> Lease | None:
    """The lease that an array's memory belongs to."""
    root = getattr(array.base, "base", None)
    return root if type(root) is Lease else None


def place(array: Array, lease: Lease) -> int:
    """Where in its lease an array begins."""
    return int(array.__array_interface__["data"][0] - lease.__array_interface__["data"][0])


class Staging:
    """Where a step's input arrays are made, so that they need not be copied once more: pinned memory of the backend's.

    `backend.staging(step)` gives it to `Executor.prepare`. What does not fit lies in common memory, and the next step gets more room.
    """

    def __init__(self, lease: Lease, grow: Callable[[int], None]) -> None:
        self._lease, self._grow, self._wanted = lease, grow, 0
        self._octets = np.asarray(lease)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array whose values are not set. Raises ConfigError for a dtype that no device has."""
        kind, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)
        name = _known(kind)
        nbytes = math.prod(shape) * kind.itemsize
        self._wanted = aligned(self._wanted) + nbytes
        offset = self._lease.reserve(nbytes)
        if offset >= 0:
            return Slot(offset, nbytes, name, shape).within(self._octets, kind)
        self._grow(self._wanted)
        return np.empty(shape, kind)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        """The same, filled with zeros."""
        array = self.empty(shape, dtype)
        array[...] = 0
        return array
