"""Graphs: a launch with a graph key runs as it is at first, is captured behind that, and is replayed from then on.

    an instance is its own     each has static inputs, outputs and task handles, and is written to only when the launch that used
                               it last is done. A key has as many as launches are in flight and takes them in turn (step mod
                               depth), so neither inputs, outputs nor updates of one step ever wait for another
    the first run is eager     its result is the step's. Capturing runs the function a second time and executes nothing, so
                               a capture that fails costs time, never a result
    one memory                 intermediates of all instances of a stream share one pool, for they replay in one FIFO; outputs are kept
    nothing is baked in unseen host values are those of the capture, unless a `host_task` updates them: a launch with others runs
                               eagerly. Arrays of another shape break the promise of the key and are refused

A function under a key must change what lives on the device in place (a replay writes to the same memory each time) and
may not wait for the device. Why a launch ran eagerly is told in the report; `require` makes it an error.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import numpy

from ...errors import ConfigError, DeviceTimeout, refuse
from ...types import Launch
from .._host import POLL_S

MODES = ("off", "on", "require")
"""off: every launch is eager. on: keys are captured where possible. require: a launch with a key that cannot be is an error."""
KEYS = 32
"""Keys captured by default; later ones run eagerly."""
Call = Callable[[str, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]


def plainly(_kind: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a launch's function, and no more."""
    return fn(*args, **kwargs)


class Task(NamedTuple):
    """Operators of a graph that take host values, updated before a replay that has others."""

    names: tuple[str, ...]
    call: Callable[..., None]
    handle: Any


class _Capture(threading.local):
    going: tuple[Any, list[Task]] | None = None
    """torch.npu and the tasks so far of the capture that goes on in this thread; None: there is none."""


_capture = _Capture()


def host_task(call: Callable[..., None], **host: Any) -> None:
    """In a launch's function: call `call(**host)`, which puts operators on the stream that take host values (a list of lengths).

    Each name must be one of `Launch.host`. Where the launch is captured, the operators become one task group, and `call` is
    called again with the values of later launches before their replay, so it must put the same operators on the stream, with
    the same outputs (an `out=` form). Elsewhere, on any backend, it is a plain call.
    """
    if _capture.going is None:
        call(**host)
        return
    npu, tasks = _capture.going
    stream = npu.current_stream()
    npu.graph_task_group_begin(stream)
    call(**host)
    tasks.append(Task(tuple(host), call, npu.graph_task_group_end(stream)))


class Graph:
    """One instance of a captured launch."""

    def __init__(self, npu: Any, graph: Any, inputs: Any, outputs: Any, host: Mapping[str, Any], tasks: list[Task]) -> None:
        self._npu, self._graph, self._host, self._tasks = npu, graph, host, tasks
        self.inputs, self.outputs = inputs, outputs
        """Where the next launch's inputs are to be sent, and what the function returned, on the device."""
        self.used_by: Any = None
        """The future of the launch that used it last."""

    @property
    def busy(self) -> bool:
        """Whether that launch may still read or write what is this instance's."""
        if self.used_by is not None and self.used_by.done():
            self.used_by = None  # and its result may go
        return self.used_by is not None

    def stale(self, host: Mapping[str, Any]) -> list[str]:
        """Names of host values that differ from this instance's and that no task updates."""
        updated = {name for task in self._tasks for name in task.names}
        return sorted(self._changed(host) - updated)

    def update(self, host: Mapping[str, Any]) -> None:
        """Put updates of the tasks whose host values have changed on the current stream, which the replay must wait for."""
        changed, stream = self._changed(host), self._npu.current_stream()
        self._host = {name: value for name, value in self._host.items() if name not in changed}  # unknown, should an update fail
        for task in self._tasks:
            if not changed.isdisjoint(task.names):
                with _updating(self._npu, stream, task.handle):
                    task.call(**{name: host[name] for name in task.names})
        self._host = {**self._host, **deepcopy({name: host[name] for name in changed})}

    def replay(self) -> Any:
        """Put the graph on the current stream; returns its outputs, which the replay writes."""
        self._graph.replay()
        return self.outputs

    def reset(self) -> None:
        """Give the graph back."""
        self.outputs = None
        self._graph.reset()

    def _changed(self, host: Mapping[str, Any]) -> set[str]:
        names = self._host.keys() | host.keys()
        return {name for name in names if not (name in host and name in self._host and _equal(host[name], self._host[name]))}


class _Key:
    """What is known of a key: its instances, the next one to use first, and its account."""

    def __init__(self, name: str, layout: Hashable) -> None:
        self.name, self.layout = name, layout
        self.ring: deque[Graph] = deque()
        self.refusal = ""
        """Why it is never captured again."""
        self.capture_ns = self.reserved = 0
        self.replays, self.eager = 0, Counter[str]()

    def facts(self) -> dict[str, Any]:
        """For `Capabilities.facts` and the report."""
        return {
            "instances": len(self.ring),
            "capture_ms": self.capture_ns / 1e6,
            "reserved_mb": self.reserved / 2**20,
            "replays": self.replays,
            "eager": dict(self.eager),
        }

    def note(self) -> str:
        """A line of the report."""
        cost = f"{self.capture_ns / 1e6:.1f} ms and {self.reserved / 2**20:.1f} MiB to capture"
        parts = [f"{self.replays} replays of {len(self.ring)} instances ({cost})"] if self.ring else []
        return f"graph {self.name}: {'; '.join([*parts, *(f'{count} x eager: {why}' for why, count in self.eager.items())])}"


class Graphs:
    """The graphs of one device. All methods on the launching thread.

    npu: torch.npu. instances: how many a key gets before its first replay, best the depth; it gets more if all are busy.
    call(kind, fn, args, kwargs) calls a launch's function. timeout_s: the most that a capture waits for the device.
    Raises ConfigError for an unknown mode, or counts below 1.
    """

    def __init__(
        self, npu: Any, mode: str = "on", *, keys: int = KEYS, instances: int = 2, timeout_s: float = 300.0, call: Call = plainly
    ) -> None:
        if mode not in MODES:
            refuse("graphs", mode, MODES)
        if keys < 1 or instances < 1:
            raise ConfigError(f"graph keys and instances of each must be at least 1; got {keys!r} and {instances!r}")
        self.mode, self.instances, self.timeout_s = mode, instances, timeout_s
        self._npu, self._most, self._call = npu, keys, call
        self._known: dict[Hashable, _Key] = {}
        self._pools: dict[Any, Any] = {}
        self._beyond = _Key("other keys", None)
        self._beyond.refusal = f"there are {keys} keys already, which is the limit (graph_keys)"

    def run(self, launch: Launch, fn: Callable[..., Any], flight: Any) -> Any:
        """A runner: see `_streams.Runner`. Raises ConfigError where a key's promise of equal shapes is broken, or with `require`."""
        known = self._key(launch, flight) if launch.graph is not None and self.mode != "off" else None
        grows = known is not None and self._grows(known)
        graph = None if known is None or grows else self._taken(known, launch)
        if graph is not None:
            flight.send(graph.inputs, partial(graph.update, launch.host))
            graph.used_by = flight.future
            return graph.replay()
        flight.send()
        args, kwargs = flight.arguments()
        outputs = self._call(launch.kind, fn, args, kwargs)
        if known is not None and grows:
            self._capture(known, launch, flight, partial(fn, *args, **kwargs))
        return outputs

    def facts(self) -> dict[str, dict[str, Any]]:
        """Key -> instances, capture time, memory, replays and eager launches by reason."""
        return {known.name: known.facts() for known in self._all()}

    def notes(self) -> tuple[str, ...]:
        """For the report: a line a key."""
        return tuple(known.note() for known in self._all() if known.replays or known.eager)

    def reset(self) -> None:
        """Begin to count anew: a new run begins. Graphs stay."""
        for known in self._all():
            known.replays, known.eager = 0, Counter()

    def close(self) -> None:
        """Give all graphs back; the device has finished with them."""
        for known in self._known.values():
            for graph in known.ring:
                graph.reset()
        self._known.clear()

    def _all(self) -> list[_Key]:
        return [*self._known.values(), self._beyond]

    def _key(self, launch: Launch, flight: Any) -> _Key:
        """What is known of a launch's key, noted if it is new."""
        key = (self._npu.current_stream(), launch.graph, launch.fn)
        try:
            known = self._known.get(key)
        except TypeError as error:
            raise ConfigError(f"launch {launch.kind!r}: a graph key must be hashable, as a tuple of plain values is: {error}") from error
        if known is None and len(self._known) >= self._most:
            return self._beyond
        if known is None:
            known = self._known[key] = _Key(f"{launch.kind} {launch.graph!r}", flight.layout)
        if known.layout != flight.layout:
            raise ConfigError(
                f"launch {launch.kind!r}: graph key {launch.graph!r} promises equal shapes, but its inputs were {known.layout} "
                f"and are {flight.layout}: put what differs into the key"
            )
        return known

    def _grows(self, known: _Key) -> bool:
        """Whether a launch of a key runs eagerly, to be captured behind that if it can be."""
        return bool(known.refusal) or len(known.ring) < self.instances or known.ring[0].busy

    def _taken(self, known: _Key, launch: Launch) -> Graph | None:
        """The instance to replay for a launch; None: it runs eagerly."""
        stale = known.ring[0].stale(launch.host)
        if stale:
            self._eager(known, f"host values {', '.join(stale)} differ from those captured, and no host_task updates them")
            return None
        known.ring.rotate(-1)
        known.replays += 1
        return known.ring[-1]

    def _capture(self, known: _Key, launch: Launch, flight: Any, call: Callable[[], Any]) -> None:
        """Add an instance, captured behind a launch that has just run eagerly, or say why there is none."""
        why = known.refusal or self._refusal() or self._captured(known, launch, flight, call)
        if why:
            known.refusal = why
            self._eager(known, why)

    def _refusal(self) -> str:
        if self._npu.get_task_queue_enable() != 2:
            return ""
        return "torch_npu cannot capture at task-queue level 2: set TASK_QUEUE_ENABLE=1, or open the backend with task_queue=1"

    def _captured(self, known: _Key, launch: Launch, flight: Any, call: Callable[[], Any]) -> str:
        """Why it could not be captured, or "". Raises DeviceTimeout if the device has not done its work in time."""
        began_ns, graph, tasks, stream = time.perf_counter_ns(), self._npu.NPUGraph(), list[Task](), self._npu.current_stream()
        self._await(stream, began_ns)
        if stream not in self._pools:
            self._pools[stream] = self._npu.graph_pool_handle()
        _capture.going = self._npu, tasks
        try:
            # "thread_local": other threads may query events meanwhile. On entry torch_npu empties its cache.
            host = deepcopy(dict(launch.host))  # the caller may change its lists in place
            with self._npu.graph(graph, pool=self._pools[stream], stream=stream, capture_error_mode="thread_local"):
                before = self._npu.memory_reserved()
                outputs = call()
                known.reserved += self._npu.memory_reserved() - before
        except Exception as error:
            return f"capture failed: {(str(error) or repr(error)).splitlines()[0]}"
        finally:
            _capture.going = None
        known.capture_ns += time.perf_counter_ns() - began_ns
        known.ring.append(Graph(self._npu, graph, flight.sent, outputs, host, tasks))
        known.ring[-1].used_by = flight.future
        return ""

    def _await(self, stream: Any, began_ns: int) -> None:
        """Entering a capture waits for the device, without a deadline: so wait before, with one."""
        event, pause_s = self._npu.Event(), POLL_S[0]
        event.record(stream)
        while not event.query():
            if time.perf_counter_ns() - began_ns > self.timeout_s * 1e9:
                raise DeviceTimeout(f"what was launched before a capture was not done after {self.timeout_s} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S[1])

    def _eager(self, known: _Key, why: str) -> None:
        if self.mode == "require":
            raise ConfigError(f"graph {known.name} runs eagerly, which graphs='require' forbids: {why}")
        known.eager[why] += 1


@contextlib.contextmanager
def _updating(npu: Any, stream: Any, handle: Any) -> Iterator[None]:
    """One task's update: all that comes to the stream meanwhile is part of it, and the stream is free again however it ends.

    So nothing may be collected meanwhile: pinned memory that is freed records an event on the stream that has copied it.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        npu.graph_task_update_begin(stream, handle)
        try:
            yield
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of an update that is half there
                npu.graph_task_update_end(stream)
            raise
        npu.graph_task_update_end(stream)
    finally:
        if collecting:
            gc.enable()


def _equal(one: Any, other: Any) -> bool:
    """Whether two host values are known to be the same."""
    if isinstance(one, numpy.ndarray) or isinstance(other, numpy.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and numpy.array_equal(one, other)
    try:
        return type(one) is type(other) and bool(one == other)
    except ValueError:  # a container of arrays
        return False
