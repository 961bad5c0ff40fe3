"""The simulation kernel against SimPy, to the nanosecond; its own rules one by one.

Networks of bounded channels with one producer and one consumer each, and events that are set once, take the same times
whatever the order of ties (Kahn networks), so two engines must agree on every completion of every process.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk.backends.sim import kernel as kernel_module
from ovsdk.backends.sim.kernel import BEGIN, NEVER, Event, Kernel, Process, Queue, first, get, put, sleep, wait
from ovsdk.errors import ConfigError, Deadlock, SimulationError

Program = list[tuple[Any, ...]]
Trace = dict[int, list[Any]]


def run_ours(capacities: Sequence[int], programs: Sequence[Program], kernel: Kernel | None = None) -> Trace:
    """When each operation of each process was done, on our kernel."""
    kernel = kernel or Kernel()
    queues, events = [Queue(c) for c in capacities], [Event() for _ in range(3)]
    trace: Trace = {i: [] for i in range(len(programs))}
    verbs: dict[str, Callable[..., Any]] = {
        "sleep": lambda ns: ns,
        "put": lambda c: put(queues[c], c),
        "get": lambda c: get(queues[c]),
        "wait": lambda e: wait(events[e]),
        "get or sleep": lambda c, ns: first(get(queues[c]), sleep(ns)),
        "put or sleep": lambda c, ns: first(put(queues[c], c), sleep(ns)),
    }

    def body(i: int) -> Iterator[Any]:
        for name, *arguments in programs[i]:
            if name == "set":
                events[arguments[0]].set()
                continue
            value = yield verbs[name](*arguments)
            trace[i].append((kernel.now_ns, value[0] if " or " in name else None))

    for i in range(len(programs)):
        kernel.spawn(f"p{i}", body(i), server=True)
    kernel.run()
    return trace


def run_simpy(capacities: Sequence[int], programs: Sequence[Program]) -> Trace:
    """The same on SimPy."""
    simpy = pytest.importorskip("simpy", reason="the oracle of the kernel is SimPy: pip install simpy")
    env = simpy.Environment()
    queues, events = [simpy.Store(env, c) for c in capacities], [env.event() for _ in range(3)]
    trace: Trace = {i: [] for i in range(len(programs))}

    def either(one: Any, other: Any) -> Iterator[Any]:
        yield one | other
        if one.triggered:
            return 0
        one.cancel()
        return 1

    def body(i: int) -> Iterator[Any]:
        for name, *arguments in programs[i]:
            index = None
            if name == "set":
                if not events[arguments[0]].triggered:
                    events[arguments[0]].succeed()
                continue
            if name == "sleep":
                yield env.timeout(arguments[0])
            elif name == "put":
                yield queues[arguments[0]].put(0)
            elif name == "get":
                yield queues[arguments[0]].get()
            elif name == "wait":
                yield events[arguments[0]]
            elif name == "get or sleep":
                index = yield from either(queues[arguments[0]].get(), env.timeout(arguments[1]))
            else:
                index = yield from either(queues[arguments[0]].put(0), env.timeout(arguments[1]))
            trace[i].append((env.now, index))

    for i in range(len(programs)):
        env.process(body(i))
    env.run()
    return trace


@st.composite
def networks(draw: Any) -> tuple[list[int], list[Program]]:
    """Two to four processes; channels between any two of them; short durations, so that many things happen at once."""
    count = draw(st.integers(2, 4))
    process = st.integers(0, count - 1)
    channels = draw(st.lists(st.tuples(process, process, st.integers(1, 3)), min_size=1, max_size=5))
    programs = []
    for i in range(count):
        ops: list[st.SearchStrategy[Any]] = [
            st.tuples(st.just("sleep"), st.integers(0, 4)),
            st.tuples(st.sampled_from(["set", "wait"]), st.integers(0, 2)),
        ]
        ops += [st.just(("put", c)) for c, (producer, _, _) in enumerate(channels) if producer == i]
        ops += [st.just(("get", c)) for c, (_, consumer, _) in enumerate(channels) if consumer == i]
        programs.append(draw(st.lists(st.one_of(ops), max_size=10)))
    return [capacity for _, _, capacity in channels], programs


@settings(max_examples=300)
@given(networks())
def test_networks_take_the_times_of_simpy(network: tuple[list[int], list[Program]]) -> None:
    assert run_ours(*network) == run_simpy(*network)


def test_every_small_producer_and_consumer_takes_the_times_of_simpy() -> None:
    def programs(op: str) -> list[Program]:
        ops: list[tuple[Any, ...]] = [("sleep", 1), ("sleep", 2), (op, 0)]
        return [list(p) for n in range(4) for p in itertools.product(ops, repeat=n)]

    pairs = list(itertools.product(programs("put"), programs("get")))
    assert len(pairs) == 40 * 40
    for pair in pairs:
        assert run_ours([1], pair) == run_simpy([1], pair), pair


@pytest.mark.parametrize("seed", range(40))
def test_alternatives_take_the_times_of_simpy(seed: int) -> None:
    """`first`, too: durations of 40 random bits, so that no two things race at one instant."""
    rng = random.Random(seed)

    def ns() -> int:
        return rng.getrandbits(40)

    ops: list[list[Callable[[], tuple[Any, ...]]]] = [
        [lambda: ("sleep", ns()), lambda: ("put", 0), lambda: ("put or sleep", 0, ns()), lambda: ("get or sleep", 1, ns())],
        [lambda: ("sleep", ns()), lambda: ("get", 0), lambda: ("get or sleep", 0, ns()), lambda: ("put", 2)],
        [lambda: ("sleep", ns()), lambda: ("put", 1), lambda: ("get or sleep", 2, ns()), lambda: ("put or sleep", 1, ns())],
    ]
    for _ in range(25):
        programs = [[rng.choice(choices)() for _ in range(15)] for choices in ops]
        assert run_ours([1, 2, 1], programs) == run_simpy([1, 2, 1], programs)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=30), st.integers(1, 4))
def test_a_bounded_queue_takes_the_times_of_its_recurrence(durations: list[tuple[int, int]], capacity: int) -> None:
    """P_i = max(P_{i-1} + c_i, S_{i-D}); S_i = max(P_i, E_{i-1}); E_i = S_i + g_i."""
    done, begin, end = 0, [], 0
    for i, (c, g) in enumerate(durations):
        done = max(done + c, begin[i - capacity] if i >= capacity else 0)
        begin.append(max(done, end))
        end = begin[i] + g
    producer = [op for c, _ in durations for op in (("sleep", c), ("put", 0))]
    consumer = [op for _, g in durations for op in (("get", 0), ("sleep", g))]
    assert run_ours([capacity], [producer, consumer])[1][-1][0] == end


# ---- ties ----


class Exhaust:
    """A chooser that takes another way at each run, until it has taken every one."""

    def __init__(self) -> None:
        self.way: list[list[int]] = []
        self.at = 0

    def __call__(self, candidates: Sequence[Process]) -> int:
        if self.at == len(self.way):
            self.way.append([0, len(candidates)])
        self.at += 1
        return self.way[self.at - 1][0]

    def next_way(self) -> bool:
        self.at = 0
        while self.way and self.way[-1][0] + 1 == self.way[-1][1]:
            self.way.pop()
        if self.way:
            self.way[-1][0] += 1
        return bool(self.way)


def every_way(run: Callable[[Kernel], Any]) -> list[Any]:
    chooser, outcomes = Exhaust(), []
    while True:
        outcomes.append(run(Kernel(chooser)))
        if not chooser.next_way():
            return outcomes


def test_no_order_of_ties_changes_the_times_of_a_network() -> None:
    programs: list[Program] = [
        [("sleep", 1), ("put", 0), ("put", 0), ("set", 0)],
        [("get", 0), ("sleep", 1), ("put", 1), ("get", 0)],
        [("sleep", 1), ("wait", 0), ("get", 1), ("sleep", 1)],
    ]
    outcomes = every_way(lambda kernel: run_ours([1, 1], programs, kernel))
    assert len(outcomes) > 10
    assert all(outcome == run_simpy([1, 1], programs) for outcome in outcomes)


def test_a_chooser_reaches_every_order_of_sleepers_and_of_those_who_are_woken() -> None:
    def race(how: Callable[[Event], Any]) -> Callable[[Kernel], tuple[str, ...]]:
        def run(kernel: Kernel) -> tuple[str, ...]:
            order, event = [], Event()

            def body(name: str) -> Iterator[Any]:
                yield how(event)
                order.append(name)

            def opens() -> Iterator[Any]:
                yield 1
                event.set()

            for name in "abc":
                kernel.spawn(name, body(name))
            kernel.spawn("opens", opens())
            kernel.run()
            return tuple(order)

        return run

    for how in (lambda _: 5, wait):
        outcomes = every_way(race(how))
        assert set(outcomes) == set(itertools.permutations("abc"))
        assert race(how)(Kernel()) == ("a", "b", "c")  # without a chooser: first come, first served


def collect(*waits: Any) -> list[int]:
    """The order in which processes that sleep as given go on."""
    kernel, order = Kernel(), []

    def body(i: int, verb: Any) -> Iterator[Any]:
        yield verb
        order.append(i)

    for i, verb in enumerate(waits):
        kernel.spawn(str(i), body(i, verb))
    kernel.run()
    return order


def test_what_ends_comes_before_what_begins_and_then_priority_counts() -> None:
    assert collect(sleep(3, BEGIN), sleep(3), sleep(3, BEGIN, -1), sleep(3, priority=1), sleep(2, BEGIN), 3) == [4, 1, 5, 3, 2, 0]


def test_a_chooser_is_not_asked_between_phases_or_priorities():
    def run(kernel):
        order = []

        def body(name, verb):
            yield verb
            order.append(name)

        for name, verb in (("begins", sleep(5, BEGIN)), ("ends", 5), ("ends, too", 5), ("ends last", sleep(5, priority=1))):
            kernel.spawn(name, body(name, verb))
        kernel.run()
        return tuple(order)

    assert {outcome[2:] for outcome in every_way(run)} == {("ends last", "begins")}


def test_a_hand_over_at_one_instant_does_not_touch_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, there, back = Kernel(), Queue(1), Queue(1)
    got = []

    def ping() -> Iterator[Any]:
        for i in range(100):
            yield put(there, i)
            got.append((yield get(back)))

    def pong() -> Iterator[Any]:
        while True:
            yield put(back, (yield get(there)) * 2)

    def no_push(*_: Any) -> None:
        raise AssertionError("a hop of no time went through the heap")

    monkeypatch.setattr(kernel_module.heapq, "heappush", no_push)
    kernel.spawn("ping", ping())
    kernel.spawn("pong", pong(), server=True)
    kernel.run()
    assert got == [2 * i for i in range(100)]
    assert kernel.now_ns == 0


# ---- first ----


def test_first_takes_the_first_that_can_be_done_and_leaves_no_trace() -> None:
    kernel, queue, event, seen = Kernel(), Queue(1, "q"), Event(), []

    def chooses() -> Iterator[Any]:
        event.set()
        seen.append((yield first(get(queue), wait(event), wait(event))))  # can be done at once: the second
        event.clear()
        seen.append((yield first(wait(event), wait(event), get(queue), 7)))  # nothing comes: the sleep
        seen.append((yield first(get(queue), sleep(10**9))))  # the item comes first
        seen.append((yield get(queue)))

    def feeds() -> Iterator[Any]:
        yield 10
        event.set()
        yield put(queue, "a")
        yield put(queue, "b")

    kernel.spawn("chooses", chooses())
    kernel.spawn("feeds", feeds())
    kernel.run()
    assert seen == [(1, None), (3, None), (0, "a"), "b"]
    assert kernel.now_ns == 10, "a withdrawn sleep moved the clock"
    assert len(queue) == 0


def test_a_withdrawn_put_puts_nothing() -> None:
    kernel, queue = Kernel(), Queue(1)
    queue.offer("full")

    def body() -> Iterator[Any]:
        assert (yield first(put(queue, "late"), 5)) == (1, None)
        assert (yield get(queue)) == "full"

    kernel.spawn("p", body())
    kernel.run()
    assert len(queue) == 0


# ---- from outside ----


def ticks(kernel: Kernel, times: list[int], step_ns: int = 10) -> Iterator[Any]:
    while True:
        yield step_ns
        times.append(kernel.now_ns)


def test_run_until_runs_what_ends_there_and_nothing_that_begins_there() -> None:
    kernel, times, begun = Kernel(), list[int](), []

    def begins() -> Iterator[Any]:
        yield sleep(20, BEGIN)
        begun.append(kernel.now_ns)

    kernel.spawn("ticks", ticks(kernel, times))
    kernel.spawn("begins", begins())
    kernel.run_until(20)
    assert (kernel.now_ns, times, begun) == (20, [10, 20], [])
    kernel.run_until(25)
    assert (kernel.now_ns, times, begun) == (25, [10, 20], [20])
    kernel.run_until(3)
    assert kernel.now_ns == 25, "time went back"


def test_run_while_stops_with_its_condition_its_time_or_when_nothing_is_left() -> None:
    kernel, times = Kernel(), list[int]()
    kernel.spawn("ticks", ticks(kernel, times), server=True)
    assert kernel.run_while(lambda: len(times) < 3)
    assert (kernel.now_ns, kernel.next_ns()) == (30, 40)
    assert kernel.run_while(lambda: len(times) < 100, until_ns=45)
    assert (kernel.now_ns, len(times)) == (45, 4)
    assert kernel.run_while(lambda: False, until_ns=60)
    assert kernel.now_ns == 45
    empty = Kernel()
    assert not empty.run_while(lambda: True)
    assert empty.run_while(lambda: True, until_ns=5)
    assert (empty.now_ns, empty.next_ns(), empty.step()) == (5, None, False)


def test_ended_is_set_when_a_process_returns() -> None:
    kernel, times = Kernel(), []

    def short() -> Iterator[Any]:
        yield 5

    def joins(other: Process) -> Iterator[Any]:
        yield wait(other.ended)
        times.append(kernel.now_ns)

    kernel.spawn("joins", joins(kernel.spawn("short", short())))
    assert kernel.step() is True
    kernel.run()
    assert times == [5]


# ---- what goes wrong ----


def test_a_deadlock_names_who_waits_for_what() -> None:
    kernel, full, empty, event = Kernel(), Queue(1, "input"), Queue(2, "output"), Event("woken")
    full.offer(0)

    def puts() -> Iterator[Any]:
        yield 3
        yield put(full, 1)

    def gets() -> Iterator[Any]:
        yield first(get(empty), wait(event))

    kernel.spawn("planner", puts())
    kernel.spawn("executor", gets())
    with pytest.raises(Deadlock) as caught:
        kernel.run()
    assert str(caught.value) == (
        "nothing can happen any more at 3 ns of virtual time: planner waits for put 'input';"
        " executor waits for the first of (get 'output', wait 'woken')"
    )


def test_a_server_that_waits_is_no_deadlock() -> None:
    kernel = Kernel()

    def serve() -> Iterator[Any]:
        yield get(Queue())

    kernel.spawn("server", serve(), server=True)
    kernel.run()
    assert kernel.next_ns() is None


@pytest.mark.parametrize("bad", [-1, 1.5, None, "5", True, first(-1), sleep(-3)])
def test_a_process_that_yields_nonsense_is_named(bad: Any) -> None:
    kernel = Kernel()

    def body() -> Iterator[Any]:
        yield bad

    kernel.spawn("muddled", body())
    with pytest.raises(SimulationError, match=r"<Process muddled> sleeps .* ns; allowed: an int of at least 0"):
        kernel.run()
    kernel.run()  # it is gone


def test_what_a_process_raises_comes_out_of_the_pump_and_the_others_go_on() -> None:
    kernel, times = Kernel(), list[int]()

    def breaks() -> Iterator[Any]:
        yield 15
        raise KeyError("mine")

    kernel.spawn("ticks", ticks(kernel, times), server=True)
    kernel.spawn("breaks", breaks())
    with pytest.raises(KeyError, match="mine"):
        kernel.run_until(50)
    kernel.run_until(30)
    assert times == [10, 20, 30]


def test_a_queue_of_no_room_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"capacity of queue 'q'.*at least 1.*got 0"):
        Queue(0, "q")


# ---- calls at a time ----


def test_a_call_comes_at_its_time_in_the_order_of_asking_and_before_what_begins_there() -> None:
    kernel, seen = Kernel(), list[tuple[str, int]]()

    def body() -> Iterator[Any]:
        yield sleep(5, BEGIN)
        seen.append(("begins", kernel.now_ns))

    kernel.spawn("body", body())
    for name, time_ns in (("late", 9), ("first", 5), ("second", 5)):
        kernel.at(time_ns, lambda name=name: seen.append((name, kernel.now_ns)))  # type: ignore[misc]
    assert kernel.next_ns() == 0
    kernel.run()
    assert seen == [("first", 5), ("second", 5), ("begins", 5), ("late", 9)]


def test_a_chooser_chooses_among_calls_too() -> None:
    seen = list[str]()
    kernel = Kernel(lambda processes: len(processes) - 1)
    for name in "abc":
        kernel.at(3, lambda name=name: seen.append(name))  # type: ignore[misc]
    kernel.run()
    assert (seen, kernel.now_ns) == (["c", "b", "a"], 3)


def test_time_passes_at_once_only_where_nothing_happens() -> None:
    kernel, seen = Kernel(), list[int]()

    def body() -> Iterator[Any]:
        yield 1

    assert kernel.pass_until(4)
    assert kernel.pass_until(2)
    assert kernel.now_ns == 4
    kernel.at(7, lambda: seen.append(kernel.now_ns))
    assert kernel.pass_until(6)
    assert not kernel.pass_until(7)
    assert not kernel.pass_until(NEVER)
    assert (kernel.now_ns, seen) == (6, [])
    kernel.run_until(7)
    assert seen == [7]
    assert kernel.pass_until(8)
    assert not kernel.pass_until(NEVER)
    kernel.spawn("ready", body())
    assert not kernel.pass_until(9)
