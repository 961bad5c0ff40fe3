"""Small schedulers, executors and devices for tests. No torch, no clock of their own."""

from __future__ import annotations

import hashlib
import os
from collections import deque

from ovsdk import CLOSED, IDLE, WAIT, Answer, Ask, Launch

EMULATED = [("ascend:0", {})] if "OVSDK_EMULATE" in os.environ else []
"""One backend more for tests of every backend, where they run on the emulated NPU: see tests/emulation.py."""


def mix(*values):
    """A number that depends on everything given."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=6).digest(), "big")


class Count:
    """`steps` batches, each its own number; keeps what it saw."""

    def __init__(self, steps):
        self.steps, self.seen, self.failed, self.trace = steps, [], [], []

    def plan(self, ask):
        self.trace.append((ask.step, len(self.seen)))
        return ask.step + 1 if ask.step < self.steps else CLOSED

    def retire(self, step, batch, result):
        self.seen.append((step, batch, result))


class Failing(Count):
    """The same, and it can take failed steps."""

    def fail(self, step, batch, error):
        self.failed.append((step, batch, error))


class Echo:
    """Launches a function of the batch on the device. `fn` must be a module-level function where the device is remote."""

    def __init__(self, fn=None):
        self.fn, self.opened, self.closed = fn or double, 0, 0

    def open(self, backend):
        self.opened += 1

    def close(self):
        self.closed += 1

    def prepare(self, step, batch):
        return batch

    def launch(self, step, inputs):
        fn, value = self.fn, inputs
        return Launch("echo", fn=fn, host={"value": value}, features={"batch": 1}, stub=lambda: fn(value))


def double(value):
    return value * 2


def hashed(value):
    return mix("device", value)


class Moody:
    """A scheduler whose every answer depends on all it has seen: any other order of events gives another trace.

    It answers with batches, IDLE and WAIT as its hash says, and closes after `steps` batches.
    """

    def __init__(self, steps=30, seed=0):
        self.steps, self.state, self.trace, self.in_flight = steps, seed, [], 0

    def plan(self, ask):
        self.state = mix(self.state, ask.number, ask.step, ask.arrivals, ask.aborts, ask.now_s)
        answer = self._answer(ask)
        self.trace.append((ask.number, ask.step, ask.arrivals, ask.aborts, ask.now_s, answer))
        self.in_flight += not isinstance(answer, Answer)
        return answer

    def _answer(self, ask):
        mood = self.state % 10
        if ask.step >= self.steps or ask.number > 20 * self.steps:
            return CLOSED
        if mood == 0:
            return IDLE
        if mood in (1, 2) and self.in_flight:
            return WAIT
        return ("batch", self.state)

    def retire(self, step, batch, result):
        self.in_flight -= 1
        self.state = mix(self.state, step, batch, result)

    def fail(self, step, batch, error):
        self.in_flight -= 1
        self.state = mix(self.state, step, batch, type(error).__name__)


class Amending(Moody):
    """The same, with late inputs."""

    def amend(self, step, batch):
        self.state = mix(self.state, "amend", step)
        return self.state


class Hasher:
    """The executor of Moody: the device hashes the batch."""

    def prepare(self, step, batch):
        return batch

    def launch(self, step, inputs):
        return Launch("hash", fn=hashed, host={"value": inputs}, features={"batch": 1}, stub=lambda: hashed(inputs))


class Finisher(Hasher):
    """With a second launch."""

    def finish(self, step, inputs, late):
        return Launch("finish", fn=hashed, host={"value": late}, features={"batch": 1}, stub=lambda: hashed(late))


class Scripted:
    """Arrivals and aborts by number of the ask, the same whatever the timing: an admission for tests."""

    signal = None

    def __init__(self, seed=0, asks=2000):
        self.seed, self.asks, self.next = seed, asks, 0

    def take(self, number, step, now_s):
        self.next = number + 1
        roll = mix("arrival", self.seed, number)
        arrivals = tuple(f"r{number}.{i}" for i in range(roll % 3)) if roll % 5 == 0 else ()
        return Ask(number, step, number / 8, arrivals, (f"r{number - 7}.0",) if roll % 11 == 0 else ())

    def ready(self, now_s):
        return self.next < self.asks

    def exhausted(self):
        return self.next >= self.asks

    def next_s(self):
        return None


def direct(scheduler, executor, depth, call):
    """The whole idea in 12 lines, for schedulers that answer batches and CLOSED: the oracle of every driver."""
    flight, k, more = deque(), 0, True
    while True:
        while more and len(flight) < depth:
            if (batch := scheduler.plan(Ask(k, k, 0.0))) is CLOSED:
                more = False
                break
            flight.append((k, batch, executor.launch(k, executor.prepare(k, batch))))
            k += 1
        if not flight:
            return
        step, batch, launch = flight.popleft()
        scheduler.retire(step, batch, call(launch))


def direct_asks(scheduler, executor, depth, admission, call):
    """The same with IDLE, WAIT and arrivals by ask."""
    flight, k, asks, more = deque(), 0, 0, True
    while True:
        while more and len(flight) < depth:
            answer = scheduler.plan(admission.take(asks, k, 0.0))
            asks += 1
            if answer is CLOSED:
                more = False
            if answer is IDLE and not flight:
                continue
            if isinstance(answer, Answer):
                break
            flight.append((k, answer, executor.launch(k, executor.prepare(k, answer))))
            k += 1
        if not flight:
            return
        step, batch, launch = flight.popleft()
        scheduler.retire(step, batch, call(launch))
