"""Virtual time for the drivers, and the device in it: a FIFO server per stream.

The host is no process here: the driver's own code runs between two calls of the clock, in no time, and the time that a
stage costs passes in its `lap`, after its body. So what a stage submits is *staged* and enters the device when the lap
has passed. While the clock passes time it pumps the kernel, where the device works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import SimulationError
from ...interfaces import Future, Signal
from ...ledger import NAMES
from ...types import Launch
from .kernel import Body, Event, Kernel, Queue, get
from .prices import Prices

NO_STEP = -1
"""The step of a launch that no stage submitted (a warm-up in `Executor.open`): its draws are keyed by it."""

Call = Callable[[], Any]
Enter = Callable[[int], None]
"""Enter the device as a launch of that step."""
Resolve = Callable[[Launch], Call]


class VirtualClock:
    """See `Clock`. Time is the kernel's; one pumps, whoever waits."""

    def __init__(self, kernel: Kernel, prices: Prices, seed: int) -> None:
        self.kernel, self.prices, self.seed = kernel, prices, seed
        self._staged: list[Enter] = []

    def now_ns(self) -> int:
        """Virtual ns since the backend was opened."""
        return self.kernel.now_ns

    def price_ns(self, stage: int, step: int, features: Mapping[str, float] | None) -> int:
        """What a stage costs; `features` None: what an ask without a batch costs. Raises CostUnknown."""
        if features is None:
            return self.prices.stage_ns("ask", {}, self.seed, step)
        return self.prices.stage_ns(NAMES[stage], features, self.seed, step)

    def lap(self, stage: int, step: int, features: Mapping[str, float] | None) -> int:
        """Let the stage's price pass, then let in what its body has submitted. Raises CostUnknown."""
        staged = self.take_staged()
        self.kernel.run_until(self.kernel.now_ns + self.price_ns(stage, step, features))
        self.let_in(staged, step)
        return self.kernel.now_ns

    def stage(self, enter: Enter) -> None:
        """Keep what is to enter the device when the running stage has passed."""
        self._staged.append(enter)

    def take_staged(self) -> list[Enter]:
        """What has been staged since this was last called: what a stage submitted, if called right after its body."""
        staged, self._staged = self._staged, []
        return staged

    def let_in(self, staged: list[Enter], step: int) -> None:
        """Let what was staged enter the device, as that step's."""
        for enter in staged:
            enter(step)

    def signal(self) -> Signal:
        """An event of the kernel."""
        return Event("signal")

    def wait(self, futures: Sequence[Future], signal: Signal | None, deadline_ns: int | None) -> int:
        """See `Clock.wait`. Raises Deadlock if what is waited for can never come, SimulationError if it can never come in virtual time."""
        self.let_in(self.take_staged(), NO_STEP)

        def waits() -> bool:
            return not ((futures and all(f.done() for f in futures)) or (signal is not None and signal.is_set()))

        in_time = self.kernel.run_while(waits, deadline_ns)
        if not in_time or (waits() and self.kernel.next_ns() is None):
            self._refuse_foreign(futures)
        if not in_time:
            raise self.kernel.deadlock(_describe(futures, signal))
        return self.kernel.now_ns

    def _refuse_foreign(self, futures: Sequence[Future]) -> None:
        for future in futures:
            if not isinstance(future, SimFuture) and not future.done():
                raise SimulationError(
                    f"the executor's own {future!r:.100} is not done at {self.kernel.now_ns} ns, and nothing in virtual time can"
                    " complete it any more; on sim return a Launch, or a Future that is done when the simulated work it stands for is"
                )


class SimFuture:
    """Handle of a simulated launch. `span_ns`: when it ran, None until it is done."""

    __slots__ = ("_callbacks", "_clock", "_error", "_value", "span_ns")

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._callbacks = clock, []  # type: VirtualClock, list[Callable[[SimFuture], Any]]
        self._error: Exception | None = None
        self._value: Any = None
        self.span_ns: tuple[int, int] | None = None

    def done(self) -> bool:
        """See `Future.done`."""
        return self.span_ns is not None

    def result(self) -> Any:
        """See `Future.result`; lets virtual time pass until it is done."""
        if self.span_ns is None:
            self._clock.wait((self,), None, None)
        if self._error is not None:
            raise self._error
        return self._value

    def add_done_callback(self, callback: Callable[[SimFuture], Any]) -> None:
        """Call `callback(self)` when this is done; now, if it is."""
        if self.span_ns is None:
            self._callbacks.append(callback)
        else:
            callback(self)

    def compute(self, call: Call) -> None:
        """Take what the call gives, or what it raises. Nobody sees it before `finish`."""
        try:
            self._value = call()
        except Exception as error:
            self._error = error

    def finish(self, begin_ns: int, end_ns: int) -> None:
        """It ran from `begin_ns` to now."""
        self.span_ns = (begin_ns, end_ns)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class SimStream:
    """FIFO of one server: a launch begins when it has entered and the one before has ended, and takes its price."""

    def __init__(self, name: str, clock: VirtualClock, resolve: Resolve) -> None:
        self._clock, self._resolve = clock, resolve
        self._queue = Queue(name=name)
        clock.kernel.spawn(f"stream {name}", self._serve(), server=True)

    def submit(self, launch: Launch) -> SimFuture:
        """See `Stream.submit`. Raises CostUnknown for a launch that has no price."""
        clock = self._clock
        clock.prices.launch_ns(launch.kind, launch.features)  # who submits it is told, not who waits for it
        future, call = SimFuture(clock), self._resolve(launch)

        def enter(step: int) -> None:
            self._queue.offer((future, call, clock.prices.launch_ns(launch.kind, launch.features, clock.seed, step)))

        clock.stage(enter)
        return future

    def _serve(self) -> Body:
        kernel, take = self._clock.kernel, get(self._queue)
        while True:
            future, call, price_ns = yield take
            begin_ns = kernel.now_ns
            future.compute(call)
            yield price_ns
            future.finish(begin_ns, kernel.now_ns)


def _describe(futures: Sequence[Future], signal: Signal | None) -> str:
    missing = sum(not future.done() for future in futures)
    what = [f"{missing} of {len(futures)} futures"] * bool(futures)
    what += ["a signal (in virtual time requests come only at times given beforehand: AdmissionQueue(arrivals), then close it)"] * bool(
        signal
    )
    return f"the host waits, with no deadline, for {' or '.join(what) or 'nothing'}"
