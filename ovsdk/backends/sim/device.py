"""Virtual time for the drivers, and what they hold of the device in it: streams to submit to, and futures.

The host is no process here: the driver's own code runs between two calls of the clock, in no time, and the time that a
stage costs passes in its `lap`, after its body. So what a stage submits is *staged*; when the lap has passed the lane
enqueues it row by row, which takes its own time, and blocks where a queue is full or a tiling needs values. While the
clock passes time it pumps the kernel, where the device works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...errors import SimulationError
from ...interfaces import Future, Signal
from ...ledger import NAMES
from ...types import Launch
from .ahead import Ahead, reasons
from .host import Host, HostLane
from .kernel import NEVER, Body, Event, Kernel
from .lower import NO_TILINGS, Lowering
from .price import Features, Kept
from .prices import Prices
from .rows import Program
from .servers import Again, Call, Device, Flight, FreeLane, Lane, Times

NO_STEP = -1
"""The step of a launch that no stage submitted (a warm-up in `Executor.open`): its draws are keyed by it."""
NO_FEATURES: Mapping[str, float] = {}

Resolve = Callable[[Launch], Call | None]


class VirtualClock:
    """See `Clock`. Time is the kernel's; one pumps, whoever waits.

    tilings     operator -> placement, in place of the price file's
    graph       whether launches of a kind that has a graph are replays; None: those that carry a graph key
    copies      whether results are read when their copy begins, as arrays are; else they are only handed on
    by_events   whether the device works by events even where it need not
    """

    def __init__(
        self,
        kernel: Kernel,
        prices: Prices,
        seed: int,
        tilings: Mapping[str, str] = NO_TILINGS,
        graph: bool | None = None,
        copies: bool = False,
        by_events: bool = True,
    ) -> None:
        self.kernel, self.prices, self.seed, self.graph, self.copies = kernel, prices, seed, graph, copies
        self.host, self.lowering = Host(kernel, prices.host), Lowering(prices, seed, tilings)
        self.device = Device(kernel, prices, self.host)
        crowded = prices.machine.level > 0 and prices.host.cores == 1
        self._thread = self.host.thread("host")
        self._lane: Lane | None = HostLane(self._thread) if crowded else None
        priced = {name: Kept(price, seed, prices.features) for name, price in prices.stages.items()}
        self.priced, self._ask = [priced.get(name) for name in NAMES], priced["ask"]
        self.constant_ns = [None if price is None else price.constant_ns for price in self.priced]
        self.staged: list[Flight] = []
        """What has been submitted and is to be enqueued when the running stage has passed."""
        self._why = ["as asked"] if by_events else list(reasons(prices))
        self._ahead: Ahead | None = None

    @property
    def computed(self) -> str:
        """How it is found out what launches do."""
        return f"launches by events: {'; '.join(self._why)}" if self._why else "launches by recurrence"

    def open_stream(self, name: str) -> None:
        """There will be launches on a stream of that name. Raises SimulationError as `by_events`."""
        self.device.stream(name)
        if self._ahead is not None:
            self.by_events("they go to several streams")
        elif not self._why:
            self._ahead = Ahead(self.kernel, self.prices, name)

    def by_events(self, why: str) -> None:
        """From now on let the device work by events. Raises SimulationError if it is at work."""
        if self._ahead is not None and not self._ahead.idle:
            raise SimulationError(f"launches are under way, and later ones need events ({why}): open the backend with by_events=True")
        self._ahead = None
        self._why = list(dict.fromkeys([*self._why, why]))

    @property
    def alone(self) -> bool:
        """Whether the host's one lane has a core of its own."""
        return self._lane is None

    def now_ns(self) -> int:
        """Virtual ns since the backend was opened."""
        return self.kernel.now_ns

    def price_ns(self, stage: int, step: int, features: Mapping[str, float] | None) -> int:
        """What a stage costs; `features` None: what an ask without a batch costs. Raises CostUnknown."""
        price = self._ask if features is None else self.priced[stage]
        if price is None:
            return self.prices.stage_ns(NAMES[stage], NO_FEATURES)  # raises
        return price.ns(features or NO_FEATURES, step)

    def lap(self, stage: int, step: int, features: Mapping[str, float] | None) -> int:
        """Let the stage's price pass, then enqueue what its body has submitted. Raises CostUnknown."""
        price_ns = self.constant_ns[stage]
        if features is None or price_ns is None:
            price_ns = self.price_ns(stage, step, features)
        if self._lane is not None:
            self._drive(self._lane.work(price_ns))
        elif price_ns:
            self.kernel.run_until(self.kernel.now_ns + price_ns)
        if self.staged:
            self.enqueue_staged(step)
        return self.kernel.now_ns

    def enqueue_staged(self, step: int) -> None:
        """Enqueue what was staged, from the host's lane, which that may take time."""
        kernel, ahead, staged = self.kernel, self._ahead, self.staged
        self.staged = []
        for flight in staged:
            if ahead is None:
                self._drive(self.device.enqueue(flight, step, self._lane or FREE))
            elif (until_ns := ahead.enqueue(flight, step)) > kernel.now_ns and not kernel.pass_until(until_ns):
                kernel.run_until(until_ns)

    def take_staged(self) -> list[Flight]:
        """What has been staged since this was last called: what a stage submitted, if called right after its body."""
        staged, self.staged = self.staged, []
        return staged

    def enter(self, staged: list[Flight], step: int, lane: Lane | None = None) -> Body:
        """Enqueue what was staged, as that step's, from that lane; to be run by it. It ends with the last enqueue."""
        for flight in staged:
            if self._ahead is None:
                yield from self.device.enqueue(flight, step, lane or FREE)
            elif (until_ns := self._ahead.enqueue(flight, step)) > self.kernel.now_ns:
                yield until_ns - self.kernel.now_ns

    def signal(self) -> Signal:
        """An event of the kernel."""
        return Event("signal")

    def wait(self, futures: Sequence[Future], signal: Signal | None, deadline_ns: int | None) -> int:
        """See `Clock.wait`. Raises Deadlock if what is waited for can never come, SimulationError if it can never come in virtual time."""
        if self.staged:
            self._drive(self.enter(self.take_staged(), NO_STEP, self._lane or FREE))
        if self._ahead is not None:
            self._ahead.ring()
        waits = _until_all(futures, signal)
        in_time = self.kernel.run_while(waits, deadline_ns)
        if not in_time or (waits() and self.kernel.next_ns() is None):
            self._refuse_foreign(futures)
        if not in_time:
            raise self.kernel.deadlock(_describe(futures, signal))
        return self.kernel.now_ns

    def _drive(self, body: Body) -> None:
        """Do what a lane does in the caller's own time. A free lane only lets time pass and waits for events: nothing needs a process."""
        kernel = self.kernel
        if self._lane is not None:
            self._until(kernel.spawn("host lane", body).ended)
            self._thread.let_go()  # another driver's lanes may be the next
            return
        for verb in body:
            if isinstance(verb, int):
                kernel.run_until(kernel.now_ns + verb)
            else:
                self._until(verb[1])

    def _until(self, event: Event) -> None:
        if not self.kernel.run_while(lambda: not event.is_set()):
            raise self.kernel.deadlock(f"the launching lane waits for {event.name!r}")

    def _refuse_foreign(self, futures: Sequence[Future]) -> None:
        for future in futures:
            if not isinstance(future, SimFuture) and not future.done():
                raise SimulationError(
                    f"the executor's own {future!r:.100} is not done at {self.kernel.now_ns} ns, and nothing in virtual time can"
                    " complete it any more; on sim return a Launch, or a Future that is done when the simulated work it stands for is"
                )


FREE = FreeLane()


class SimFuture(Flight):
    """Handle of a simulated launch. The host may have the result when it is done; where it has been can be asked for then."""

    def __init__(self, clock: VirtualClock, program: Program, stream: str, call: Call | None, again: Again | None) -> None:
        self.program, self.stream, self.call, self.copies, self.again = program, stream, call, clock.copies, again  # one call less a launch
        self._clock = clock

    def done(self) -> bool:
        """See `Future.done`. What takes no time has not begun at its end until its call has been made."""
        return self.done_ns <= self._clock.kernel.now_ns and self.call is None

    def result(self) -> Any:
        """See `Future.result`; lets virtual time pass until it is done."""
        if self.call is not None or self.done_ns > self._clock.kernel.now_ns:
            self._clock.wait((self,), None, None)
        if self.error is not None:
            raise self.error
        return self.value

    def add_done_callback(self, callback: Callable[[SimFuture], Any]) -> None:
        """Call `callback(self)` when this is done; now, if it is."""
        if self.done():
            callback(self)
            return
        self.callbacks += (callback,)
        if self.done_ns != NEVER:
            self._clock.kernel.at(self.done_ns, self.land)

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From the first begin of an operator on the device to the last end; None until the future is done."""
        spans = self.spans
        return (min(begin for _, begin, _ in spans), max(end for _, _, end in spans)) if spans else None

    @property
    def spans(self) -> list[Times]:
        """(name, begin, end) of each operator on the device, in ns, in the order of enqueue; empty until the future is done."""
        return self.operators() if self.done() else []

    @property
    def sync_spans(self) -> list[Times]:
        """(operator, begin, end), in ns: when the launching lane was blocked for values to tile by; empty until it is done."""
        return self.syncs() if self.done() else []

    @property
    def server_spans(self) -> dict[str, list[Times]]:
        """Server -> what it did for this launch: "stream NAME", "task queue", "aicpu", "h2d", "d2h"; empty until it is done."""
        return self.served(self._clock.device.latency_ns) if self.done() else {}

    def land(self) -> None:
        """See `Flight.land`."""
        self.done_ns = self._clock.kernel.now_ns
        callbacks, self.callbacks = self.callbacks, ()
        for callback in callbacks:
            callback(self)


class SimStream:
    """FIFO of launches: each begins when it has been enqueued and the one before has ended."""

    def __init__(self, name: str, clock: VirtualClock, resolve: Resolve) -> None:
        self._name, self._clock, self.resolve = name, clock, resolve
        self._launch: Launch | None = None
        clock.open_stream(name)

    def submit(self, launch: Launch) -> SimFuture:
        """See `Stream.submit`. Raises CostUnknown for a launch that has no price, ConfigError for one that cannot be a graph."""
        clock = self._clock
        if launch is not self._launch or launch.features != self._features:
            self._lower(launch)
        future = SimFuture(clock, self._program, self._name, self.resolve(launch), self._again)
        clock.staged.append(future)
        return future

    def _lower(self, launch: Launch) -> None:
        """Who submits what has no price is told, not who waits for it. The same launch again need not be lowered again."""
        lowering, kind, features = self._clock.lowering, launch.kind, launch.features
        graph = launch.graph is not None if self._clock.graph is None else self._clock.graph
        self._program = lowering.program(kind, features, NO_STEP, graph)
        self._again = partial(_of_step, lowering, kind, features, graph) if lowering.drawn(kind) else None
        self._launch, self._features = launch, dict(features)


def _of_step(lowering: Lowering, kind: str, features: Features, graph: bool, step: int) -> Program:
    return lowering.program(kind, features, step, graph)


def _until_all(futures: Sequence[Future], signal: Signal | None) -> Callable[[], bool]:
    """Whether one has to go on waiting. A single future is what drivers wait for in every step."""
    if len(futures) == 1 and signal is None:
        done = futures[0].done
        return lambda: not done()
    return lambda: not ((futures and all(f.done() for f in futures)) or (signal is not None and signal.is_set()))


def _describe(futures: Sequence[Future], signal: Signal | None) -> str:
    missing = sum(not future.done() for future in futures)
    what = [f"{missing} of {len(futures)} futures"] * bool(futures)
    what += ["a signal (in virtual time requests come only at times given beforehand: AdmissionQueue(arrivals), then close it)"] * bool(
        signal
    )
    return f"the host waits, with no deadline, for {' or '.join(what) or 'nothing'}"
