"""Section [machine] of a price file: host, queues, copy engines and device. What is left out costs nothing and never binds."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .host import Gil, HostModel, Share
from .reading import Entry
from .rows import Machine

LEVELS = (0, 1, 2)
BESIDE, SHARED = STREAMS = ("beside", "shared")
"""What kernels on several streams do to each other: nothing, or n at once run at 1/n of their speed."""
STAGES = ("plan", "prepare", "launch", "amend", "retire", "ask")
"""Host stages that have a price; an ask is a plan that gave no batch."""


@attrs.frozen
class Copy:
    """A copy engine. Without `pinned` memory there is none: the lane waits for the stream and copies itself."""

    latency_ns: int
    gb_per_s: float
    pinned: bool = True

    def ns(self, size: float) -> int:
        """How long that many bytes take: a GB/s is a byte a ns."""
        return self.latency_ns + round(size / self.gb_per_s)


@attrs.frozen
class Hardware:
    """What launches run on. `rows` is what concerns rows alone, its number of streams left open."""

    host: HostModel = attrs.field(factory=HostModel)
    rows: Machine = attrs.field(factory=lambda: Machine(level=0))
    h2d: Copy | None = None
    d2h: Copy | None = None
    shared: bool = False
    """Whether kernels of several streams share the device's cores."""


def read_hardware(entry: Entry) -> Hardware:
    """Raises ProfileError."""
    keys = entry.table(("cores", "gil", "queue", "h2d", "d2h", "launch_latency_us", "aicpu_workers", "streams", "source"))
    return Hardware(
        host=_read_host(keys),
        rows=_read_rows(keys),
        h2d=_read_copy(keys["h2d"]) if "h2d" in keys else None,
        d2h=_read_copy(keys["d2h"]) if "d2h" in keys else None,
        shared="streams" in keys and keys["streams"].choice(STREAMS, "way of streams") == SHARED,
    )


def _read_rows(keys: Mapping[str, Entry]) -> Machine:
    """Without a queue the lane launches itself."""
    queue = keys["queue"].table(("level", "task", "device")) if "queue" in keys else {}
    found = {key: one.choice(LEVELS, "task queue level") if key == "level" else one.count(1) for key, one in queue.items()}
    if "queue" not in keys:
        found["level"] = 0
    if "aicpu_workers" in keys:
        found["aicpu_workers"] = keys["aicpu_workers"].count(1)
    if "launch_latency_us" in keys:
        found["latency_ns"] = _ns(keys["launch_latency_us"])
    return Machine(**found)


def _read_copy(entry: Entry) -> Copy:
    keys = entry.table(("latency_us", "gb_per_s", "pinned"), needed=("latency_us", "gb_per_s"))
    rate = keys["gb_per_s"].number()
    return Copy(
        _ns(keys["latency_us"]),
        rate if rate > 0 else keys["gb_per_s"].wrong("GB/s, more than 0"),
        keys["pinned"].flag() if "pinned" in keys else True,
    )


def _read_host(keys: Mapping[str, Entry]) -> HostModel:
    gil = keys["gil"].table(("switch_us", "handoff_us", "overshoot_us", "share"), needed=("switch_us",)) if "gil" in keys else None
    return HostModel(
        gil=None if gil is None else _read_gil(gil),
        cores=keys["cores"].count(1) if "cores" in keys else None,
        shares={stage: _read_share(share) for stage, share in gil["share"].table(STAGES).items()} if gil and "share" in gil else {},
    )


def _read_gil(keys: Mapping[str, Entry]) -> Gil:
    switch_ns = _ns(keys["switch_us"])
    if switch_ns < 1:
        keys["switch_us"].wrong("microseconds, at least 0.001")
    return Gil(switch_ns=switch_ns, **{f"{key}_ns": _ns(keys[f"{key}_us"]) for key in ("handoff", "overshoot") if f"{key}_us" in keys})


def _read_share(entry: Entry) -> Share:
    """The share of a stage's time with the GIL, or { gil, parts, native } as `Share` has them."""
    if not isinstance(entry.value, Mapping):
        return Share(_part(entry))
    keys = entry.table(("gil", "parts", "native"), needed=("gil",))
    return Share(
        _part(keys["gil"]),
        keys["parts"].count(1) if "parts" in keys else 1,
        "native" in keys and keys["native"].flag(),
    )


def _part(entry: Entry) -> float:
    part = entry.number()
    return part if 0 <= part <= 1 else entry.wrong("a share, from 0 to 1")


def _ns(entry: Entry) -> int:
    return round(entry.amount() * 1000)
