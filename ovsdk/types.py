"""Values that pass between a user's objects, the drivers and the backends. Frozen; no behaviour but construction."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import attrs


class Answer(enum.Enum):
    """What `Scheduler.plan` may return instead of a batch."""

    IDLE = "no work now: ask again after the next retire, or when something arrives"
    WAIT = "there is work, but it needs the result of a step in flight"
    CLOSED = "no more work, ever"

    def __repr__(self) -> str:
        return self.name


IDLE, WAIT, CLOSED = Answer.IDLE, Answer.WAIT, Answer.CLOSED


class Progress(enum.Enum):
    """What one `Driver.advance` did."""

    MOVED = "one move was made"
    BLOCKED = "nothing could be done before the timeout"
    FINISHED = "the run is over"

    def __repr__(self) -> str:
        return self.name


MOVED, BLOCKED, FINISHED = Progress.MOVED, Progress.BLOCKED, Progress.FINISHED


class Ask(NamedTuple):
    """One call of `plan`. All that a decision may depend on besides earlier results; a run log holds it."""

    number: int
    """Counts calls of `plan` from 0: several asks may concern one step (after IDLE or WAIT)."""
    step: int
    """The step that a batch returned now becomes."""
    now_s: float
    """Seconds since the run began, on the backend's clock: the only time that a policy may read."""
    arrivals: tuple[Any, ...] = ()
    """Requests that came since the last ask, in order."""
    aborts: tuple[Any, ...] = ()
    """What `AdmissionQueue.abort` was given since the last ask, in order."""


@attrs.frozen
class Method:
    """A method of an object that lives on a device: what `resident.name` gives, for `Launch.fn`."""

    resident: int
    name: str


RESIDENT_KEYS = itertools.count(1)
"""One for all backends, so that no backend takes another's object for its own."""


class Resident:
    """Handle of an object that `Backend.load` built on a device. `resident.method` names a method for `Launch.fn`.

    `names`, where the backend knows them, makes a misspelt method an AttributeError at once.
    """

    __slots__ = ("_key", "_names")

    def __init__(self, key: int, names: frozenset[str] | None = None) -> None:
        self._key, self._names = key, names

    def __getattr__(self, name: str) -> Method:
        if name.startswith("__") or (self._names is not None and name not in self._names):
            known = "" if self._names is None else f"; it has: {', '.join(sorted(self._names))}"
            raise AttributeError(f"the object on the device has no method {name!r}{known}")
        return Method(self._key, name)

    def __repr__(self) -> str:
        return f"Resident({self._key!r})"


def _tuple_or_mapping(inputs: Any) -> tuple[Any, ...] | Mapping[str, Any]:
    return inputs if isinstance(inputs, (tuple, Mapping)) else (inputs,)


@attrs.frozen(kw_only=True, eq=False)
class Launch:
    """What goes on a stream. A device calls `fn(*inputs, **host)`; the simulator prices `kind` and `features`.

    Raises nothing itself: a backend refuses what it cannot run, naming the launch.
    """

    kind: str = attrs.field(kw_only=False)
    """What the price file and the timeline call it."""
    fn: Method | Callable[..., Any]
    """`resident.method`, or any function the device can run (on `cpu`: one that cloudpickle can send)."""
    inputs: tuple[Any, ...] | Mapping[str, Any] = attrs.field(default=(), converter=_tuple_or_mapping)
    """Pytrees of numpy arrays or torch tensors, sent to the device: a tuple is positional, a mapping is by keyword."""
    host: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain values handed to `fn` by keyword, untouched."""
    graph: Any = None
    """None, or a key that promises equal shapes, so that a backend may capture and replay."""
    features: Mapping[str, float] = attrs.field(factory=dict)
    """Numbers that price it: batch, kv_tokens, ..."""
    stub: Callable[[], Any] | None = None
    """Gives the output where `fn` is not run (`sim` without `execute`); never sent to a device."""


def bind(launch: Launch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that `launch.fn` is to be called with."""
    inputs = launch.inputs
    if isinstance(inputs, Mapping):
        return (), {**inputs, **launch.host}
    return inputs, dict(launch.host)


@attrs.frozen
class Capabilities:
    """What a backend can do: each name is True, or the reason why not. `facts` describe the device.

    Names in use: `asynchronous` (submit returns before the work is done), `executes` (calls `fn`),
    `wall_clock` (time is real), `parallel` (an eager model runs beside Python host code).
    """

    can: Mapping[str, Literal[True] | str]
    facts: Mapping[str, Any] = attrs.field(factory=dict)


TILING_SYNC = "tiling sync"
"""A span inside a launch: the launching lane waits for the device, for an operator whose tiling depends on values there."""
WAIT_GIL = "wait GIL"
"""A span inside a stage: its lane has work and another has the interpreter. Simulated; on a real machine nobody can tell."""
SERVER = "server "
"""Begins the lane names of native servers (task queue, copy engines, AICPU, streams): neither host nor device time."""

SpanFields = tuple[str, str, int, int, int]
"""A Span's fields. Drivers pass these on, for to make a Span costs as much as a stage, and most are never looked at."""


class Span(NamedTuple):
    """Something that took time on a lane: a stage of a step, a wait, or a launch on the device. Times are the clock's ns."""

    lane: str
    """`host`, or `scheduling` and `execution`; `device` for launches; `server ...`, see SERVER."""
    what: str
    """A stage name or `finish`; `ask` or `idle ask` (a plan that gave no batch); `hand-over`, `wait device`, `wait arrival`,
    `wait launch` (for the execution lane), `wait batch` (for the scheduling lane), `wait late`, `tiling sync`, `wait GIL`; on the device
    a launch's kind, on a server an operator."""
    step: int
    begin_ns: int
    end_ns: int
