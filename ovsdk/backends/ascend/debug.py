"""Debug mode: a launch that leaves work on a side stream which the compute stream does not wait for is an error.

Its result may be right today and wrong tomorrow. Streams are told apart by torch_npu's tracer (events) and by a dispatch mode
(operators), which cost some 20 us an operator; the tracer stays switched on until the process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import SchedulerProtocolError
from ...types import Launch
from .._forks import Forks
from .._streams import Flight, Runner


class _Now(threading.local):
    """What this thread's launch does; None outside of launches."""

    forks: Forks | None = None


_now = _Now()


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator, and on which stream it is launched."""

    def __init__(self, npu: Any, forks: Forks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._npu, self._forks = npu, forks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._forks.worked(self._npu.current_stream().npu_stream)
        return func(*args, **(kwargs or {}))


@cache
def _listen() -> None:
    """Have torch_npu's tracer tell of events, once and for good."""
    import torch_npu
    from torch_npu.utils import _npu_trace as trace

    trace.register_callback_for_npu_event_record(lambda event, stream: _tell("recorded", event, stream), "ovsdk")
    trace.register_callback_for_npu_event_wait(lambda event, stream: _tell("waited", event, stream), "ovsdk")
    torch_npu._C._activate_npu_trace(0)


def _tell(what: str, event: int, stream: int) -> None:
    if _now.forks is not None:
        getattr(_now.forks, what)(event, stream)


def joined(runner: Runner, npu: Any) -> Runner:
    """The same runner; its launches raise SchedulerProtocolError if they end with a side stream that was not joined."""
    _listen()

    def run(launch: Launch, fn: Callable[..., Any], flight: Flight) -> Any:
        main, _now.forks = npu.current_stream(), Forks()
        try:
            with _Operators(npu, _now.forks):
                outputs = runner(launch, fn, flight)
            left = _now.forks.open(main.npu_stream)
        finally:
            _now.forks = None
        if left or npu.current_stream() != main:
            raise SchedulerProtocolError(
                f"launch {launch.kind!r} ends with {f'work on {len(left)} side streams' if left else 'another stream current'}: its "
                "function must join what it forks, with torch.npu.current_stream().wait_stream(side), and put the current stream back"
            )
        return outputs

    return run
