"""A torch accelerator as a backend: memory and tensors here, order and ownership in `_streams`, blocks in `_staging`.

A function's device tensors come back as numpy arrays, those of a dtype that numpy lacks as torch tensors; all else as it is.
Reusable: the accelerator is a parameter. The seam to graphs and to what watches launches is `_streams.Runner`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor

from ..errors import DeviceLost
from ..types import Capabilities, Launch, Resident
from ._host import HostClock
from ._residents import Residents
from ._staging import DTYPES, SMALLEST, Array, Lease, Part, Pool, Slot, Staging, filled, numpy_part, taken_out
from ._streams import CLOSE_S, DeviceStream, Runner, Sent, Streams, eager


@attrs.frozen
class Accelerator:
    """What torch has for a kind of device."""

    name: str
    """torch's name of the device type: "npu"."""
    module: Any
    """`torch.npu`, `torch.cuda`: Stream, Event."""
    elapsed_ms: Callable[[Any, Any], float]
    """Milliseconds between two timing events that have happened; waits for nothing."""
    understand: Callable[[str, Exception], Exception]
    """Our error for what torch raised, given what was being done; the same exception if it is not the device's. DeviceLost if
    nothing that was launched before will come back."""
    tell_seen: Callable[[Any], object] = attrs.field(default=lambda _event: None)
    """Told of an event that the host has seen happen; for a sanitizer, which does not know of `Event.query`."""


VIEWS = 16
"""Layouts of which a block keeps the views."""


class DeviceBlock:
    """Pinned memory, as much on the device, and views of it that have been made before."""

    def __init__(self, device: str, nbytes: int) -> None:
        self.pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        self.device = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.host: Array = self.pinned.numpy()
        self.foreign = True
        """Its memory may still be in use by what was launched before: new memory, or a block that somebody has looked into."""
        self._storage = self.device.untyped_storage()
        self._views: dict[tuple[Slot, ...], list[Tensor]] = {}
        self._holders = self._count()

    def views(self, slots: tuple[Slot, ...]) -> list[Tensor]:
        """A new device tensor for each slot: whoever keeps one is noticed."""
        if slots not in self._views:
            others = self._count() - self._holders
            if len(self._views) == VIEWS:
                self._views.clear()
            self._views[slots] = [_view(self.device, slot) for slot in slots]
            self._holders = self._count() - others
        return [view.detach() for view in self._views[slots]]

    def looked_at(self) -> bool:
        """See `Block.looked_at`."""
        return self._count() != self._holders

    def _count(self) -> int:
        return int(torch._C._storage_Use_Count(self._storage._cdata))


def _view(memory: Tensor, slot: Slot) -> Tensor:
    return memory[slot.offset : slot.offset + slot.nbytes].view(getattr(torch, slot.dtype)).view(slot.shape)


def _host_array(octets: Array, slot: Slot) -> Any:
    if slot.dtype in DTYPES:
        return slot.within(octets)
    kind = getattr(torch, slot.dtype)
    return torch.from_numpy(octets[slot.offset : slot.offset + slot.nbytes]).view(kind).view(slot.shape)


def _octets(tensor: Tensor) -> Tensor:
    """Its bytes, in a row."""
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor.reshape(-1).view(torch.uint8)


def _slot(lease: Lease, tensor: Tensor) -> Slot:
    """Room for a tensor right behind what the lease has."""
    return Slot(lease.reserve(tensor.nbytes, 1), tensor.nbytes, _name(tensor), tuple(tensor.shape))


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def tensor_part(value: Any) -> Part | None:
    """A dense tensor of the host as a Part, None for anything else."""
    if not isinstance(value, Tensor) or value.device.type != "cpu" or value.layout is not torch.strided:
        return None
    plain, name = value.detach().resolve_conj().resolve_neg(), _name(value)
    return Part(name, (plain if name in DTYPES else plain.view(_SAME_SIZE[plain.element_size()])).numpy())


_SAME_SIZE = {1: torch.uint8, 2: torch.int16}
"""For dtypes that numpy lacks: one that it has."""


_STRANDED: list[Pool] = []
"""Blocks that a device which does not answer may still touch. To free pinned memory then, torch_npu asks the device, and what that
answers ends the process (seen in 2.13)."""


_IDLE: defaultdict[str, deque[Streams]] = defaultdict(deque)
"""Device -> streams that no backend uses: torch has 32 a device and hands them out in turn, each with memory of its own."""


LOOK_S = (50e-6, 200e-6)
"""First and longest pause between two looks at a launch: a look takes 10 us."""


class _Box(NamedTuple):
    """Hides what a load has built from those who look for tensors to copy."""

    open: Callable[[], Any]


class _Been(threading.local):
    """Whether a thread has been at the device: its runtime wants to be told once a thread."""

    here = False


class TorchBackend:
    """One device of an accelerator. A context manager; closing twice is fine.

    timeout_s: the most that a launch may take, load_timeout_s: a load together with the launches before it.
    Raises DeviceLost if the device does not answer.
    """

    name: str
    capabilities: Capabilities

    def __init__(self, accelerator: Accelerator, index: int, *, timeout_s: float, load_timeout_s: float) -> None:
        self.accelerator, self.index = accelerator, index
        self.device = f"{accelerator.name}:{index}"
        self.timeout_s, self.load_timeout_s = timeout_s, load_timeout_s
        self.clock, self.residents = HostClock(LOOK_S), Residents()
        self.pool = Pool(self._block)
        self.runner: Runner = eager
        self.lost: DeviceLost | None = None
        """Why nothing in flight will ever come back."""
        self._been, self._closed = _Been(), False
        self._room = SMALLEST
        self._staged: tuple[int, Staging] | None = None
        self._streams: dict[str, DeviceStream] = {}
        self.stream()

    def stream(self, name: str = "compute") -> DeviceStream:
        """See `Backend.stream`. Each has three streams of the accelerator."""
        if name not in self._streams:
            idle, new = _IDLE[self.device], self.accelerator.module.Stream
            streams = idle.popleft() if idle else Streams(*(new(device=self.index) for _ in range(3)))
            self._streams[name] = DeviceStream(self, streams)
        return self._streams[name]

    def load(self, build: Callable[[str], Any]) -> Resident:
        """See `Backend.load`: `build` runs with the compute stream current, and what it has launched is waited for.

        Raises what `build` raises; DeviceMemoryExhausted; DeviceLost; DeviceTimeout after `load_timeout_s`.
        """

        def boxed() -> _Box:
            built = build(self.device)
            return _Box(lambda: built)

        stream = self.stream()
        future = stream.submit(Launch("load", fn=boxed))
        stream.wait(future, self.load_timeout_s)
        return self.residents.add(future.result().open())

    def staging(self, step: int) -> Staging:
        """Where `Executor.prepare` may make the input arrays of a step, so that they are sent from where they are."""
        if self._staged is None or self._staged[0] != step:
            self._staged = None  # so that its block is free for this step
            self._staged = step, Staging(self.pool.lease(self._room), self._grow)
        return self._staged[1]

    def _block(self, nbytes: int) -> DeviceBlock:
        with self.stream().compute:  # memory of this stream, see DeviceStream.claim
            return DeviceBlock(self.device, nbytes)

    def _grow(self, nbytes: int) -> None:
        self._room = max(self._room, nbytes)

    def close(self) -> None:
        """Wait for launches in flight, some seconds at most, and give memory, streams and residents back. Twice is fine."""
        if self._closed:
            return
        deadline_ns = time.perf_counter_ns() + int(min(CLOSE_S, self.timeout_s) * 1e9)
        drained = [stream.drain(deadline_ns) for stream in self._streams.values()]
        self._closed, self._staged = True, None
        if all(drained):
            self.pool.clear()
            _IDLE[self.device].extend(stream.streams for stream in self._streams.values())
        else:
            _STRANDED.append(self.pool)
        self.residents.clear()

    # ---- for streams ----

    def streams(self) -> tuple[DeviceStream, ...]:
        """All of this backend's."""
        return tuple(self._streams.values())

    def enter(self) -> None:
        """Raise DeviceLost if nothing can be launched."""
        if self._closed:
            raise DeviceLost(f"the {self.name} backend is closed")
        if self.lost is not None:
            raise DeviceLost(str(self.lost), self.lost.code) from self.lost

    def arrive(self, stream: DeviceStream) -> None:
        """Tell the runtime, once a thread, which device this thread is about."""
        if not self._been.here:
            with stream.compute:
                self._been.here = True

    def fault(self, what: str, error: Exception) -> Exception:
        """Our error for what was raised while launching; it is the end if the device is lost."""
        ours = self.accelerator.understand(what, error)
        if ours is not error:
            ours.__cause__ = error
        if isinstance(ours, DeviceLost):
            self.lost = self.lost or ours
        return ours

    def lose(self, what: str, error: Exception) -> None:
        """The device told of an error of something that had been launched."""
        ours = self.fault(what, error)
        if self.lost is None:
            self.lost = DeviceLost(f"{ours}; nothing in flight will come back", getattr(ours, "code", None))
            self.lost.__cause__ = error

    def pack(self, stream: DeviceStream, outputs: Any, number: Tensor) -> tuple[Any, Sent]:
        """Put the device tensors in what a function returned, and `number`, side by side in a block: to be copied as one.

        The widest elements come first, so that each tensor lies at a multiple of their size without gaps.
        """
        tree, tensors = taken_out(outputs, self.on_device)
        tensors.append(number)
        order = sorted(range(len(tensors)), key=lambda i: -tensors[i].itemsize)
        lease = self.pool.lease(sum(tensor.nbytes for tensor in tensors))
        stream.claim(lease.block, stream.compute)
        slots = {i: _slot(lease, tensors[i]) for i in order}
        torch.cat([_octets(tensors[i]) for i in order], out=lease.block.device[: lease.used])
        return tree, (lease, tuple(slots[i] for i in range(len(tensors))))

    def unpack(self, tree: Any, lease: Lease, slots: tuple[Slot, ...]) -> Any:
        """What `pack` was given, of arrays in memory of their own; its block has been copied to the host."""
        octets = lease.block.host[: lease.used].copy()
        return filled(tree, [_host_array(octets, slot) for slot in slots])

    def part(self, value: Any) -> Part | None:
        """An array to be sent."""
        return numpy_part(value) or tensor_part(value)

    def on_device(self, value: Any) -> Tensor | None:
        """A tensor to be brought back."""
        return value if isinstance(value, Tensor) and value.device.type == self.accelerator.name else None

    def __enter__(self) -> TorchBackend:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
