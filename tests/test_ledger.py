"""The ledger, exhausted: every reachable state, every legal and illegal move, and the 12-line loop as oracle."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk.errors import ConfigError, DriverError
from ovsdk.ledger import (
    AMEND,
    CLOSED,
    DEVICE,
    FINISHED,
    IDLE,
    LAUNCH,
    NEED_ARRIVAL,
    NEED_DEVICE,
    OPEN,
    ORDER,
    PLAN,
    PREPARE,
    RETIRE,
    STAGES,
    STATES,
    WAIT,
    Ledger,
)

HOST = (PLAN, PREPARE, LAUNCH, AMEND, RETIRE)


def snapshot(led):
    return tuple(led.begun), tuple(led.ended), led.state


def restored(cls, depth, state, amends=True):
    led = cls(depth, amends)
    led.begun, led.ended, led.state = list(state[0]), list(state[1]), state[2]
    return led


def shifted(state):
    """The same state with steps counted from the last retired one."""
    zero = state[1][RETIRE]
    return tuple(b - zero for b in state[0]), tuple(e - zero for e in state[1]), state[2]


def moves(rich):
    """Every move there is, legal or not: (name, function of a ledger)."""
    yield from ((f"begin {s}", lambda led, s=s: led.begin(s)) for s in STAGES)
    yield from ((f"end {s}", lambda led, s=s: led.end(s)) for s in STAGES)
    yield from ((f"decline {s}", lambda led, s=s: led.decline(s)) for s in ((OPEN, IDLE, WAIT, CLOSED) if rich else (CLOSED,)))
    if rich:
        yield f"end {LAUNCH} amend", lambda led: led.end(LAUNCH, amend=True)
        yield "wake", lambda led: led.wake()


def chain_holds(led):
    b, e = led.begun, led.ended
    order = all(e[s] <= b[s] for s in STAGES) and all(b[s] <= e[s - 1] for s in STAGES[1:])
    alone = sum(b[s] > e[s] for s in (PLAN, AMEND, RETIRE)) <= 1
    asked = b[PLAN] == e[PLAN] or not led.amends or led.in_flight == 0 or e[AMEND] > e[RETIRE]
    lag = b[RETIRE] == e[RETIRE] or led.state != OPEN or b[RETIRE] - 1 + led.depth <= e[PLAN]
    amend = b[AMEND] == e[AMEND] or b[AMEND] - 1 <= e[RETIRE]
    launch = b[LAUNCH] == e[LAUNCH] or b[LAUNCH] - 1 <= e[AMEND]
    return order and alone and asked and lag and amend and launch and b[PLAN] <= e[RETIRE] + led.depth


def explore(cls, depth, rich, amends=None):
    """Breadth first over all states up to a shift. Returns (states, transitions); asserts the law in each."""
    amends = rich if amends is None else amends
    start = snapshot(cls(depth))
    seen, todo, edges = {start}, deque([start]), 0
    while todo:
        state = todo.popleft()
        led = restored(cls, depth, state, amends)
        assert chain_holds(led), led
        assert led.next() == reference_next(led), led
        if one_lane(led):
            assert begun_next(cls, depth, state, amends) == begun_after(cls, depth, state, amends), led
        assert lanes_begin_alike(cls, depth, state, amends), led
        if not amends:
            assert what_follows_is_known(cls, depth, state), led
        assert ends_alike(cls, depth, state, amends)
        progress = False
        for name, move in moves(rich):
            led = restored(cls, depth, state, amends)
            try:
                move(led)
            except DriverError:
                assert snapshot(led) == state, f"refused {name} changed the ledger"
                continue
            edges += 1
            progress = progress or name != "wake"
            following = shifted(snapshot(led))
            if following not in seen:
                seen.add(following)
                todo.append(following)
        led = restored(cls, depth, state, amends)
        rest = led.next() in (FINISHED, NEED_ARRIVAL) and led.in_flight == 0
        assert progress or rest, f"deadlock: {led}"
        assert led.next() != NEED_DEVICE or can_progress(led), f"waits for a device that has nothing: {led}"
    return len(seen), edges


def one_lane(led):
    """Whether a driver with one lane may ask what to begin: it is in the middle of no stage."""
    return all(led.begun[s] == led.ended[s] for s in HOST)


def ends_alike(cls, depth, state, amends):
    """Whether `ending(stage)` leaves what `end(stage)` does, for each stage that has begun."""
    for stage in [s for s in STAGES if state[0][s] > state[1][s]]:
        checked, unchecked = restored(cls, depth, state, amends), restored(cls, depth, state, amends)
        checked.end(stage)
        unchecked.ending(stage)()
        if snapshot(checked) != snapshot(unchecked):
            return False
    return True


def begun(cls, depth, state, amends, begin):
    """What `begin` says of a ledger in that state, and what it leaves."""
    led = restored(cls, depth, state, amends)
    return begin(led), led.asks, snapshot(led)


def begun_next(cls, depth, state, amends):
    return begun(cls, depth, state, amends, lambda led: led.begin_next())


def begun_after(cls, depth, state, amends):
    """The same by `next` and `begin`."""
    return begun(cls, depth, state, amends, lambda led: led.begin_first(ORDER))


def lanes_begin_alike(cls, depth, state, amends):
    """Whether `begin_turn` and `begin_launch` do what `begin_first` does, for a lane that is in the middle of none of its stages."""
    rests = [begun == ended for begun, ended in zip(*state[:2], strict=True)]
    pairs = {
        (PLAN, RETIRE): lambda led: led.begin_turn(),
        (LAUNCH,): lambda led: LAUNCH if led.begin_launch() else led.next_of((LAUNCH,)),
    }
    return all(
        begun(cls, depth, state, amends, quick) == begun(cls, depth, state, amends, lambda led, own=own: led.begin_first(own))
        for own, quick in pairs.items()
        if all(rests[stage] for stage in own) and not (amends and PLAN in own)
    )


def what_follows_is_known(cls, depth, state):
    """What `Driver.drive` does not ask the ledger: what has waited for the device retires; on one lane a plan is prepared and launched."""
    led = restored(cls, depth, state, False)
    if led.begun[DEVICE] > led.ended[DEVICE] and led.next_of((PLAN, RETIRE)) == NEED_DEVICE and led.begun[PLAN] == led.ended[PLAN]:
        led.end(DEVICE)
        if led.next_of((PLAN, RETIRE)) != RETIRE and led.begun[RETIRE] == led.ended[RETIRE]:
            return False
    led = restored(cls, depth, state, False)
    if not one_lane(led) or led.ended[LAUNCH] < led.ended[PLAN] or led.next() != PLAN:
        return True
    followed = []
    for stage in (PLAN, PREPARE, LAUNCH):
        followed.append(led.next())
        led.begin(stage)
        led.end(stage)
    return followed == [PLAN, PREPARE, LAUNCH]


def can_progress(led):
    return any(b > e for b, e in zip(led.begun, led.ended, strict=True))


def reference_next(led):
    """`next` said the slow way."""
    ready = [s for s in ORDER if led.may_begin(s)]
    if ready:
        return ready[0]
    if led.begun[PLAN] > led.ended[RETIRE]:
        return NEED_DEVICE
    return FINISHED if led.state == CLOSED else NEED_ARRIVAL


@pytest.mark.parametrize("depth", range(1, 7))
def test_every_plain_state_keeps_the_chain_and_none_is_a_deadlock(depth):
    states, edges = explore(Ledger, depth, rich=False)
    assert states > 6 * depth
    assert edges >= states


@pytest.mark.parametrize("depth", range(1, 5))
def test_every_state_with_idle_wait_and_amend_keeps_the_chain_and_none_is_a_deadlock(depth):
    assert explore(Ledger, depth, rich=True)[0] > 12 * depth
    assert explore(Ledger, depth, rich=True, amends=False)[0] > explore(Ledger, depth, rich=False)[0]


def views(cls, depth, answers, amend):
    """Answers given so far -> every (steps retired, steps amended) that the next ask was seen to have. One each, or timing leaks in."""
    start = (snapshot(cls(depth)), "")
    seen, todo, found = {start}, deque([start]), {}
    while todo:
        state, history = todo.popleft()
        for following in histories(cls, depth, state, history, amend):
            if len(following[1]) <= answers and following not in seen:
                seen.add(following)
                todo.append(following)
        led = restored(cls, depth, state, amend)
        if led.begun[PLAN] > led.ended[PLAN]:
            batches = [x for x in history if x in "AB"]
            found.setdefault(history, set()).add((led.ended[RETIRE], batches[: led.ended[AMEND]].count("A")))
    return found


def histories(cls, depth, state, history, amend):
    """Legal moves, with what they add to the history of answers: A and B batches (A has an amend), I, W, C, w(ake)."""
    batches = [x for x in history if x in "AB"]
    for stage in STAGES:
        yield from attempt(cls, depth, state, history, amend, "", lambda led, s=stage: led.begin(s))
    for stage in (PREPARE, AMEND, DEVICE, RETIRE):
        yield from attempt(cls, depth, state, history, amend, "", lambda led, s=stage: led.end(s))
    launched = state[1][LAUNCH]
    if launched < len(batches):
        late = batches[launched] == "A"
        yield from attempt(cls, depth, state, history, amend, "", lambda led: led.end(LAUNCH, amend=late))
    for letter in "AB" if amend else "B":
        yield from attempt(cls, depth, state, history, amend, letter, lambda led: led.end(PLAN))
    for letter, answer in zip("IWC", (IDLE, WAIT, CLOSED), strict=True):
        yield from attempt(cls, depth, state, history, amend, letter, lambda led, a=answer: led.decline(a))
    yield from attempt(cls, depth, state, history, amend, "w", lambda led: led.wake())


def attempt(cls, depth, state, history, amend, letter, move):
    led = restored(cls, depth, state, amend)
    try:
        move(led)
    except DriverError:
        return
    yield snapshot(led), history + letter


@pytest.mark.parametrize(
    ("depth", "answers", "amend"), [(1, 5, True), (2, 5, True), (3, 4, True), (4, 4, False), (2, 7, False), (3, 6, False)]
)
def test_what_an_ask_sees_is_a_function_of_earlier_answers(depth, answers, amend):
    found = views(Ledger, depth, answers, amend)
    assert len(found) > 2 ** (answers - 1)
    assert {history: seen for history, seen in found.items() if len(seen) > 1} == {}


class RetiresEarly(Ledger):
    """Mutant: no fixed lag; a step retires as soon as its device is done."""

    def may_begin(self, stage):
        if stage == RETIRE:
            free = all(self.begun[s] == self.ended[s] for s in (PLAN, AMEND, RETIRE))
            return free and self.begun[RETIRE] < self.ended[DEVICE]
        return super().may_begin(stage)


class WokenInFlight(Ledger):
    """Mutant: an arrival wakes an idle run although steps are in flight."""

    def wake(self):
        if self.state != IDLE or self.begun[PLAN] != self.ended[PLAN]:
            raise DriverError("not idle")
        self.state = OPEN


class AsksBeforeAmend(Ledger):
    """Mutant: a plan need not wait for the amend that is due."""

    def may_begin(self, stage):
        amends, self.amends = self.amends, False
        try:
            return super().may_begin(stage)
        finally:
            self.amends = amends


class LaunchesPastAmend(Ledger):
    """Mutant: launch(k+1) does not wait for amend(k)."""

    def may_begin(self, stage):
        if stage == LAUNCH:
            return self.begun[LAUNCH] == self.ended[LAUNCH] < self.ended[PREPARE]
        return super().may_begin(stage)


class Overfull(Ledger):
    """Mutant: one step too many in flight."""

    def may_begin(self, stage):
        if stage == PLAN and all(self.begun[s] == self.ended[s] for s in (PLAN, AMEND, RETIRE)):
            return self.state == OPEN and self.begun[PLAN] <= self.ended[RETIRE] + self.depth
        return super().may_begin(stage)


@pytest.mark.parametrize(("mutant", "amend"), [(RetiresEarly, False), (WokenInFlight, False), (AsksBeforeAmend, True)])
def test_a_ledger_that_lets_timing_in_is_caught(mutant, amend):
    found = views(mutant, 2, 5, amend)
    assert any(len(seen) > 1 for seen in found.values())


@pytest.mark.parametrize("mutant", [RetiresEarly, LaunchesPastAmend, Overfull])
def test_a_ledger_that_breaks_the_chain_is_caught(mutant):
    with pytest.raises(AssertionError):
        explore(mutant, 3, rich=True)


@pytest.mark.parametrize("depth", [0, -1, 1.5, "2", None, True])
def test_depth_must_be_a_positive_int(depth):
    with pytest.raises(ConfigError, match="at least 1"):
        Ledger(depth)


def test_a_run_without_amends_refuses_one():
    led = Ledger(1)
    for stage in (PLAN, PREPARE):
        led.begin(stage)
        led.end(stage)
    led.begin(LAUNCH)
    with pytest.raises(DriverError, match="no amend stage"):
        led.end(LAUNCH, amend=True)
    assert led.ended[LAUNCH] == 0


def test_states_and_stages_are_named_in_the_repr():
    led = Ledger(2)
    led.begin(PLAN)
    assert repr(led) == "<Ledger depth=2 open plan=0/1 prepare=0/0 launch=0/0 amend=0/0 device=0/0 retire=0/0>"
    assert len(STATES) == 4


def drive(led, steps):
    """One host lane: what is begun is ended at once; the trace of stages begun."""
    trace = []
    while (stage := led.next()) != FINISHED:
        if stage == NEED_DEVICE:
            led.end(DEVICE)
            continue
        step = led.begin(stage)
        if stage == PLAN and step >= steps:
            led.decline(CLOSED)
            continue
        trace.append((stage, step, led.ended[RETIRE]))
        led.end(stage)
    return trace


def direct(depth, steps):
    """The whole idea in 12 lines: what the ledger must do on one lane."""
    flight, k, trace, retired = deque(), 0, [], 0
    while k < steps or flight:
        while k < steps and len(flight) < depth:
            trace += [(PLAN, k, retired), (PREPARE, k, retired), (LAUNCH, k, retired)]
            flight.append(k)
            k += 1
        step = flight.popleft()
        trace.append((RETIRE, step, retired))
        retired += 1
    return trace


@settings(deadline=None, max_examples=50)
@given(depth=st.integers(1, 8), steps=st.integers(0, 30))
def test_on_one_lane_the_ledger_is_the_direct_loop(depth, steps):
    assert drive(Ledger(depth), steps) == direct(depth, steps)
