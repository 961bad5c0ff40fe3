"""Blocks, parcels, times and forks of accelerators, without one: laws, and what leaves them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ovsdk.backends._device_time import DeviceTime
from ovsdk.backends._forks import Forks
from ovsdk.backends._staging import ALIGN, SMALLEST, Lease, Parcel, Pool, Slot, Staging, filled, holder, mapped, numpy_part
from ovsdk.errors import ConfigError

from .desk import arrays, plain, same, strided


class Block:
    """Memory of a device that is not there."""

    def __init__(self, nbytes: int) -> None:
        self.host, self.viewers = np.full(nbytes, 0xEE, np.uint8), 0

    def looked_at(self) -> bool:
        return self.viewers > 0


class Pair(NamedTuple):
    left: Any
    right: Any


trees = st.recursive(
    plain | arrays | strided,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=6,
)


def sent(parcel: Parcel, pool: Pool) -> tuple[Lease, list[Slot], Any]:
    """A parcel as the device would see it: views of the block."""
    lease, slots = parcel.load(pool)
    return lease, slots, filled(parcel.tree, [slot.within(lease.block.host) for slot in slots])


# ---- parcels ----


@given(trees)
def test_a_tree_arrives_as_it_was_sent(tree: Any) -> None:
    parcel = Parcel(tree, numpy_part)
    lease, slots, arrived = sent(parcel, Pool(Block))
    assert same(arrived, tree)
    assert all(slot.offset % ALIGN == 0 for slot in slots)
    assert all(one.offset + one.nbytes <= other.offset for one, other in itertools.pairwise(slots))
    assert all(slot.offset + slot.nbytes <= len(lease.block.host) for slot in slots)


@given(trees, trees)
def test_a_layout_is_all_but_the_values_of_arrays(one: Any, other: Any) -> None:
    def shape(tree: Any) -> Any:
        return mapped(lambda value: (str(value.dtype), value.shape) if isinstance(value, np.ndarray) else value, tree)

    equal = Parcel(one, numpy_part).layout == Parcel(other, numpy_part).layout
    assert equal is (repr(shape(one)) == repr(shape(other)))
    assert Parcel(one, numpy_part).layout == Parcel(mapped(np.copy if isinstance(one, np.ndarray) else lambda v: v, one), numpy_part).layout


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.zeros(1, "M8[s]"), np.zeros(1, [("a", "i4")])])
def test_what_no_device_has_is_refused(array: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be on a device: pass it as `host`; allowed: bool, complex128"):
        Parcel({"x": array}, numpy_part)


def test_foreign_byte_order_arrives_as_the_devices() -> None:
    _, _, arrived = sent(Parcel(np.arange(5, dtype=">i4"), numpy_part), Pool(Block))
    assert arrived.tolist() == [0, 1, 2, 3, 4]
    assert arrived.dtype == np.int32


# ---- staging ----


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["int64", "bool", "float32"]), st.booleans()), max_size=8), st.data())
def test_staged_arrays_are_sent_from_where_they_are(asked: list[tuple[int, str, bool]], data: st.DataObject) -> None:
    pool = Pool(Block)
    staging = Staging(pool.lease(SMALLEST), lambda nbytes: None)
    made = [staging.empty(size, dtype) if staged else np.empty(size, dtype) for size, dtype, staged in asked]
    for array in made:
        array[...] = data.draw(st.integers(0, 1))
    _, _, arrived = sent(Parcel(tuple(made), numpy_part), pool)
    assert same(arrived, tuple(made))
    for array, view, (_, _, staged) in zip(made, arrived, asked, strict=True):
        assert np.shares_memory(array, view) is (staged and array.size > 0)
    assert pool.made == 1 if any(staged for *_, staged in asked) else 2


def test_a_view_of_a_staged_array_stays_where_it_is_unless_the_device_could_not_read_it_there() -> None:
    pool = Pool(Block)
    staged = Staging(pool.lease(SMALLEST), lambda nbytes: None).zeros(64, "uint8")
    staged[:] = np.arange(64)
    views = (staged[8:16].view("int64"), staged[3:11].view("int64"), staged[::2])
    lease, _, arrived = sent(Parcel(views, numpy_part), pool)
    assert lease is holder(staged)
    assert [np.shares_memory(view, here) for view, here in zip(views, arrived, strict=True)] == [True, False, False]
    assert same(arrived, tuple(map(np.copy, views)))


def test_what_does_not_fit_lies_elsewhere_and_the_next_step_gets_more_room() -> None:
    pool, room = Pool(Block), [SMALLEST]
    staging = Staging(pool.lease(room[0]), room.append)
    small, big = staging.zeros(8, "int64"), staging.zeros((SMALLEST, 2), "int8")
    assert (holder(small) is not None, holder(big) is not None) == (True, False)
    assert room[-1] == ALIGN + 2 * SMALLEST
    lease, _, arrived = sent(Parcel((small, big), numpy_part), pool)
    assert lease is not holder(small)  # one copy: both go by a larger block
    assert same(arrived, (small, big))
    again = Staging(pool.lease(room[-1]), room.append)
    assert holder(again.zeros(8, "int64")) is holder(again.zeros((SMALLEST, 2), "int8"))


def test_a_staging_refuses_what_no_device_has() -> None:
    with pytest.raises(ConfigError, match="dtype object cannot be on a device"):
        Staging(Pool(Block).lease(1), print).empty(3, object)


# ---- blocks ----


class Blocks(RuleBasedStateMachine):
    """A block belongs to whoever holds its lease or looks into it; there are no more than were needed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.leases, self.looking, self.most = Pool(Block), list[Lease](), list[Block](), 0

    @rule(nbytes=st.sampled_from([1, SMALLEST, SMALLEST + 1, 3 * SMALLEST]))
    def lease(self, nbytes: int) -> None:
        taken = [lease.block for lease in self.leases]
        self.leases.append(self.pool.lease(nbytes))
        block = self.leases[-1].block
        assert len(block.host) >= nbytes
        assert not any(block is other for other in taken)
        assert not any(block is other for other in self.looking)
        self.most = max(self.most, len(self.leases) + len(self.looking))

    @rule(which=st.integers(0, 9), keeps=st.booleans())
    def let_go(self, which: int, keeps: bool) -> None:
        if self.leases:
            block = self.leases.pop(which % len(self.leases)).block
            if keeps:
                block.viewers += 1
                self.looking.append(block)

    @rule()
    def look_away(self) -> None:
        if self.looking:
            self.looking.pop().viewers -= 1

    @invariant()
    def few(self) -> None:
        assert self.pool.made <= 3 * max(self.most, 1)  # three sizes


TestBlocks = Blocks.TestCase


def test_a_lease_lives_as_long_as_an_array_of_it() -> None:
    pool = Pool(Block)
    array = Staging(pool.lease(1), print).zeros(4, "int8")
    part = array[1:3]
    del array
    assert pool.lease(1).block is not holder(part).block  # type: ignore[union-attr]
    del part
    first = pool.lease(1)
    assert pool.made == 2
    assert pool.lease(1).block is not first.block
    assert pool.made == 2


# ---- device time ----


@given(st.lists(st.tuples(*[st.integers(0, 3000)] * 5), min_size=1, max_size=20), st.floats(-1e-4, 1e-4), st.integers(-(10**9), 10**9))
def test_launches_are_placed_within_causality_whatever_the_clocks_drift(
    launches: list[tuple[int, int, int, int, int]], drift: float, offset: int
) -> None:
    """Times in us. The device's clock is offset and drifts; each launch is submitted, begins, ends and is seen, in this order."""

    def device_ns(host_ns: int) -> float:
        return offset + host_ns * (1 + drift)

    now, last, time = 0, 0, DeviceTime(lambda one, other: (other - one) / 1e6, device_ns(0), 0)
    for idle, latency, busy, until_seen, _ in launches:
        submitted = now + idle * 1000
        begin = submitted + latency * 1000
        end = begin + busy * 1000
        seen = end + until_seen * 1000
        placed = time.place(device_ns(begin), device_ns(end), submitted, seen)
        assert max(submitted, last) <= placed[0] <= placed[1] <= seen
        slack = 2 + 2 * abs(drift) * end
        assert abs((placed[1] - placed[0]) - (end - begin)) <= slack
        assert abs(placed[0] - begin) <= slack
        now, last = seen, placed[1]


def test_an_anchor_that_is_off_is_forgotten_at_the_first_contradiction() -> None:
    time = DeviceTime(lambda one, other: (other - one) / 1e6, 0, 10_000_000)  # 10 ms late
    assert time.place(1_000_000, 3_000_000, 500_000, 3_200_000) == (1_200_000, 3_200_000)
    assert time.place(4_000_000, 5_000_000, 3_900_000, 5_100_000) == (4_100_000, 5_100_000)


# ---- forks ----

Move = tuple[str, int, int]


def unjoined(moves: Sequence[Move]) -> set[int]:
    """The oracle: a graph of everything that happens, and what can be reached from stream 0's last."""
    last: dict[int, int] = {}
    edges: dict[int, list[int]] = {}
    events: dict[int, int] = {}
    work: list[tuple[int, int]] = []
    for node, (what, event, stream) in enumerate(moves):
        edges[node] = [last[stream]] if stream in last else []
        if what == "worked":
            work.append((node, stream))
        elif what == "recorded":
            events[event] = node
        elif event in events:
            edges[node].append(events[event])
        last[stream] = node
    seen, stack = set[int](), [last[0]] if 0 in last else []
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += edges[node]
    return {stream for node, stream in work if node not in seen}


@given(st.lists(st.tuples(st.sampled_from(["worked", "recorded", "waited"]), st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_open_forks_are_those_that_cannot_be_reached(moves: list[Move]) -> None:
    forks = Forks()
    for what, event, stream in moves:
        forks.worked(stream) if what == "worked" else getattr(forks, what)(event, stream)
    assert forks.open(0) == unjoined(moves)
