"""What tests and benchmarks tell the emulated NPU: how long things take, what fails and when; and what it did.

Times here are microseconds (`_us`), as in price files; in the trace and in spans they are ns of CLOCK_MONOTONIC, which is what
`time.perf_counter_ns` reads on Linux. Nothing here is a measurement: begin and end of a task are what its price says.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import attrs

from ....errors import ConfigError, refuse
from ....timeline import DEVICE as DEVICE_LANE
from ....timeline import Timeline
from ....types import SERVER, Span
from .figures import figures

COPIES = ("memcpy_h2d", "memcpy_d2h", "memcpy_d2d")
DEVICE, AICPU = 0, 1
"""Where a price is: `Where` of src/prices.h."""
OPERATOR = "aclnn"
"""How the names of operators begin."""
MARKERS = ("event_record", "event_wait", "value_write", "value_wait", "block_freed")
LOST = 507010
"""ACL code: the device's heartbeat is gone."""


class Task(NamedTuple):
    """A task that has run. Times in ns; `begin_ns` and `end_ns` are emulated, `real_ns` is when this machine was done with it."""

    name: str
    device: int
    stream: int
    """-1: a copy or fill without a stream."""
    graph: int
    """Number of the graph whose replay it is part of, else 0."""
    error: int
    """ACL code with which it failed, else 0."""
    size: int
    """Elements of an operator's output, bytes of a copy."""
    enqueued_ns: int
    begin_ns: int
    end_ns: int
    real_ns: int

    @property
    def late_ns(self) -> int:
        """How long after its end the machine was done with it: of the order of a body's real time if it can keep up."""
        return self.real_ns - self.end_ns


class Record(ctypes.Structure):
    """`Record` of src/trace.h."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        *((name, ctypes.c_int32) for name in ("device", "stream", "graph", "error")),
        *((name, ctypes.c_int64) for name in ("size", "enqueued_ns", "begin_ns", "end_ns", "real_ns")),
    )


@attrs.frozen
class Trace:
    """What the emulated devices did."""

    tasks: tuple[Task, ...]

    def named(self, name: str) -> tuple[Task, ...]:
        """The tasks of that name, in the order in which they ended."""
        return tuple(task for task in self.tasks if task.name == name)

    def spans(self, step: int = -1) -> tuple[Span, ...]:
        """For `ovsdk.timeline`: a row a stream, `server emulated npu:0 stream 3`; events and tasks without a duration left out."""
        return tuple(_span(task, step) for task in self.tasks if task.end_ns > task.begin_ns and task.name not in MARKERS)

    def timeline(self, device: int = 0) -> Timeline:
        """What one device did, on its own: operators on the lane `device`, all else on its streams' rows. `step` is the stream.

        All of it is virtual. `ovsdk.pictures.text([("EMULATED NPU", timeline)])` shows it.
        """
        tasks = [task for task in self.tasks if task.device == device]
        spans = tuple(
            span._replace(lane=DEVICE_LANE if task.name.startswith(OPERATOR) else span.lane, step=task.stream)
            for task in tasks
            for span in Trace((task,)).spans()
        )
        begin, end = min((s.begin_ns for s in spans), default=0), max((s.end_ns for s in spans), default=0)
        return Timeline(spans, begin, end, virtual=True)


def _span(task: Task, step: int) -> Span:
    return Span(f"{SERVER}emulated npu:{task.device} stream {task.stream}", task.name, step, task.begin_ns, task.end_ns)


class Emulator:
    """The emulated NPU of this process: see `activate`."""

    def __init__(self, library: ctypes.CDLL, options: Any) -> None:
        self._library, self.options = library, options
        library.emu_price.argtypes = (
            *(ctypes.c_int, ctypes.c_char_p, ctypes.c_double, ctypes.c_double),
            *(ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_double)),
        )
        library.emu_set.argtypes = (ctypes.c_char_p, ctypes.c_int64)
        library.emu_fault.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int, ctypes.c_int)
        library.emu_trace_read.argtypes = (ctypes.POINTER(Record), ctypes.c_int64)
        for name in ("emu_calls", "emu_trace_size", "emu_trace_read", "emu_used_bytes"):
            getattr(library, name).restype = ctypes.c_int64

    def __repr__(self) -> str:
        return f"<EMULATED NPU: {self.options}>"

    # ---- time ----

    def latency(
        self,
        name: str,
        us: float | None = None,
        *,
        each_us: float = 0.0,
        at: Sequence[tuple[int, float]] = (),
        aicpu_us: float | None = None,
    ) -> None:
        """What a task takes, by its name: an aclnn operator, `memcpy_h2d` and the like, or "*" for all other operators.

        `us + each_us * size`, or linear between the points `at` (size, us), refused outside them; the size of an operator is
        the number of elements of its output, of a copy its bytes. `math.inf`: it never ends (`reset` ends it).
        `aicpu_us`, if given, goes before, on the AICPU's workers. Raises ConfigError for a price below 0 or a table out of order.
        """
        if at and (us is not None or [x for x, _ in at] != sorted({x for x, _ in at})):
            raise ConfigError(f"a latency is us, or points `at` with strictly increasing sizes; got us={us!r}, at={list(at)!r}")
        if us is not None or at or each_us:
            self._price(DEVICE, name, us or 0.0, each_us, at)
        if aicpu_us is not None:
            self._price(AICPU, name, aicpu_us, 0.0, ())

    def copies(self, direction: str, latency_us: float, gb_per_s: float) -> None:
        """What a copy takes: `memcpy_h2d`, `memcpy_d2h` (an engine each, one copy at a time) or `memcpy_d2d` (on the cores)."""
        if direction not in COPIES:
            refuse("copy", direction, COPIES)
        self._price(DEVICE, direction, latency_us, 1e-3 / gb_per_s, ())

    def _price(self, where: int, name: str, us: float, each_us: float, at: Sequence[tuple[int, float]]) -> None:
        if min(us, each_us, *(y for _, y in at), 0.0) < 0 or any(map(math.isnan, (us, each_us))):
            raise ConfigError(f"the latency of {name!r} is below 0: us={us!r}, each_us={each_us!r}, at={list(at)!r}")
        sizes = (ctypes.c_int64 * len(at))(*(x for x, _ in at))
        times = (ctypes.c_double * len(at))(*(y * 1e3 for _, y in at))
        self._library.emu_price(where, name.encode(), us * 1e3, each_us * 1e3, len(at), sizes, times)

    def prices(self, prices: Any, operators: Mapping[str, str], features: Mapping[str, float] | None = None) -> None:
        """Take the figures of a price file that `ovsdk.backends.sim.prices.load_prices` has read: see `figures`."""
        figures(prices, operators, features).apply(self)

    def hang(self, name: str) -> None:
        """The next tasks of that name never end: `reset` ends them."""
        self.latency(name, math.inf)

    def clear_latencies(self) -> None:
        """Nothing takes time any more."""
        self._library.emu_clear_prices()

    def timed(self, on: bool) -> None:
        """False: record only. Tasks take no time whatever their prices."""
        self._set("timed", on)

    def machine(self, **settings: int | bool) -> None:
        """`launch_latency_ns`, `aicpu_workers`, `shared_cores` (do kernels of several streams slow each other down?),
        `queue_capacity` (tasks of a stream before an enqueue blocks), `lead_ns` (see src/stream.h)."""
        for name, value in settings.items():
            if name in ("timed", "trace"):
                raise ConfigError(f"{name} is set by the method of that name")
            self._set(name, value)

    def _set(self, name: str, value: int | bool) -> None:
        if self._library.emu_set(name.encode(), int(value)):
            raise ConfigError(f"the emulated NPU has no setting {name!r}: see Emulator.machine")

    # ---- memory ----

    def poison(self) -> None:
        """Replace torch_npu's caching allocator by one that fills a block with 0xff as soon as nobody may use it any more.

        After `import torch_npu` and before the first tensor on a device: raises ConfigError otherwise. A tensor that is used on
        another stream and freed without `record_stream`, or an early overwritten one, then gives NaN or -1, not what is left
        of it. For a test of lifetimes only: without a cache torch_npu can tell nothing of memory (`memory_allocated` and the
        like must not be called), graphs give no memory back to each other.
        """
        torch_npu: Any = sys.modules.get("torch_npu")
        if torch_npu is None:
            raise ConfigError("blocks are poisoned by an allocator for torch_npu: import it first")
        allocator = torch_npu.npu.NPUPluggableAllocator(self._library._name, "emu_block_allocate", "emu_block_free")
        try:
            torch_npu.npu.change_current_allocator(allocator)
        except RuntimeError as error:
            raise ConfigError("blocks can be poisoned only from the start: there has been a tensor on the device already") from error
        tracing = importlib.import_module("torch_npu.utils._npu_trace")
        tracing.register_callback_for_npu_record_stream(self._record_stream, "emulated NPU: poison")
        torch_npu._C._activate_npu_trace(0)
        atexit.register(self._library.emu_blocks_stay)  # Python frees the last tensors when torch_npu is gone

    def _record_stream(self, block: int, stream: int) -> None:
        self._library.emu_block_used(ctypes.c_void_p(block), ctypes.c_void_p(stream))

    # ---- faults ----

    def fault(self, name: str, code: int = LOST, *, after: int = 0, sticky: bool = False, on_device: bool = False) -> None:
        """Make a call fail on purpose, once, after `after` calls that do not.

        `name` is an ACL function, or a task as the trace names it: then its enqueue fails or, `on_device`, its execution, which
        stops its stream. `sticky` takes the whole device: every call on it returns the code until `reset`.
        """
        if code == 0:
            raise ConfigError("a fault needs the ACL code that it returns, and 0 is success")
        self._library.emu_fault(name.encode(), code, after, sticky, on_device)

    def lose(self, device: int = 0, code: int = LOST) -> None:
        """The device is lost, now."""
        if self._library.emu_lose(device, code):
            raise ConfigError(f"there is no emulated device {device}")

    def reset(self, device: int = 0) -> None:
        """Drop what the device has to do, forget its error and those of its streams; no fault is set any more."""
        self._library.emu_clear_faults()
        if self._library.emu_reset(device):
            raise ConfigError(f"there is no emulated device {device}")

    # ---- what it did ----

    @contextmanager
    def trace(self) -> Iterator[_Growing]:
        """Record tasks inside the `with`; afterwards `.get()` gives the Trace."""
        self._library.emu_trace_clear()
        self._set("trace", True)
        growing = _Growing(self)
        try:
            yield growing
        finally:
            self._set("trace", False)
            growing.last = self.read_trace()

    def read_trace(self) -> Trace:
        """What has been recorded so far."""
        records = (Record * self._library.emu_trace_size())()
        read = self._library.emu_trace_read(records, len(records))
        return Trace(tuple(_task(record) for record in records[:read]))

    def calls(self, api: str) -> int:
        """How often an ACL function was called."""
        return int(self._library.emu_calls(api.encode()))

    def used_bytes(self, device: int = 0) -> int:
        """Device memory that is allocated: torch's caching allocator holds it in segments."""
        return int(self._library.emu_used_bytes(device))

    def streams(self, device: int = 0) -> int:
        """Streams that the device has."""
        return int(self._library.emu_streams(device))


class _Growing:
    """A trace that is being recorded, or was."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self.last: Trace | None = None

    def get(self) -> Trace:
        """The tasks so far, all of them once the `with` has ended."""
        return self.last if self.last is not None else self._emulator.read_trace()


def _task(record: Record) -> Task:
    fields = {name: getattr(record, name) for name in Task._fields}
    return Task(**{**fields, "name": record.name.decode()})
