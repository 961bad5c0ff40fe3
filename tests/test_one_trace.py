"""One decision trace: every backend, every driver, 200 random timings, with IDLE, WAIT, late arrivals and aborts."""

from __future__ import annotations

import pytest

from ovsdk import AdmissionQueue, Launch, hookimpl, open_backend, read_log, run, stages
from ovsdk.backends.sim.backend import SimBackend
from ovsdk.driver import Driver, done
from ovsdk.ledger import AMEND, DEVICE, LAUNCH, PLAN, PREPARE, RETIRE, Ledger

from .toys import EMULATED, Amending, Finisher, Hasher, Moody, Scripted, direct_asks

WILD = {"quantiles": [[0.0, 0], [0.5, 40], [0.9, 400], [1.0, 9000]]}
"""A price that is drawn anew for every step: stages of nothing to 9 ms."""
PRICES = {
    "schema": 1,
    "stage": dict.fromkeys(("plan_us", "prepare_us", "launch_us", "amend_us", "retire_us"), WILD),
    "launch": {"hash": {"device_us": WILD}, "finish": {"device_us": WILD}},
}
BACKENDS = [("thread", {}), ("cpu", {}), ("sim", {"prices": PRICES}), ("sim", {"prices": PRICES, "execute": True}), *EMULATED]
DRIVERS = ("inline", "threads")


def expected(depth, seed):
    scheduler = Moody(seed=seed)
    direct_asks(scheduler, Hasher(), depth, Scripted(seed), lambda launch: launch.fn(**launch.host))
    return scheduler.trace


def actual(backend, depth, driver, seed, **options):
    scheduler = Moody(seed=seed)
    run(scheduler, Hasher(), backend, depth=depth, driver=driver, admission=Scripted(seed), **options)
    return scheduler.trace


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_200_random_timings_give_one_trace(driver, depth):
    traces, spans = set(), set()
    for timing in range(200):
        with open_backend("sim", prices=PRICES, seed=timing) as backend:
            traces.add(repr(actual(backend, depth, driver, seed=5)))
            spans.add(backend.clock.now_ns())
    assert traces == {repr(expected(depth, 5))}
    assert len(spans) > 150


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("name", "options"), BACKENDS)
def test_every_backend_and_driver_takes_the_direct_loops_decisions(name, options, driver):
    with open_backend(name, **options) as backend:
        for depth in (1, 2, 3, 4):
            for seed in range(4):
                assert actual(backend, depth, driver, seed) == expected(depth, seed)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_amend_gives_one_trace_on_every_backend_and_driver(depth):
    traces = []
    for name, options in BACKENDS:
        with open_backend(name, **options) as backend:
            for driver in DRIVERS:
                scheduler = Amending(seed=2)
                run(scheduler, Finisher(), backend, depth=depth, driver=driver, admission=Scripted(2))
                traces.append(scheduler.trace)
    assert all(trace == traces[0] for trace in traces)
    assert len(traces[0]) > 30


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run under two real threads on a device process, with arrivals in real time: its log's path and its trace."""
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    admission = AdmissionQueue((i / 3000, f"r{i}") for i in range(40))
    admission.close()
    scheduler = Moody(steps=40, seed=1)
    with open_backend("cpu") as backend:
        run(scheduler, Hasher(), backend, depth=3, driver="threads", admission=admission, log=path)
    assert any(ask.arrivals for ask in read_log(path).asks)
    return path, scheduler.trace


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("name", "options"), BACKENDS)
def test_a_log_recorded_under_threads_replays_to_one_trace_everywhere(recorded, name, options, driver):
    path, trace = recorded
    scheduler = Moody(steps=40, seed=1)
    with open_backend(name, **options) as backend:
        report = run(scheduler, Hasher(), backend, depth=3, driver=driver, replay=path)
    assert scheduler.trace == trace
    assert not [note for note in report.notes if "differs" in note]


class Abandon:
    @hookimpl
    def ovsdk_step_failed(self):
        return "abandon"


def sometimes(value):
    if value[1] % 5 == 0:
        raise ValueError(f"no luck with {value[1]}")
    return value[1] * 3


class Unlucky(Hasher):
    def launch(self, step, inputs):
        return Launch("hash", fn=sometimes, host={"value": inputs}, stub=lambda: sometimes(inputs))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_abandoned_steps_change_no_decision_elsewhere(depth):
    traces = []
    for name, options in BACKENDS:
        with open_backend(name, plugins=[Abandon()], **options) as backend:
            for driver in DRIVERS:
                scheduler = Moody(seed=6)
                run(scheduler, Unlucky(), backend, depth=depth, driver=driver, admission=Scripted(6))
                traces.append(scheduler.trace)
    assert all(trace == traces[0] for trace in traces)
    assert len(traces[0]) > 30


class NoFixedLag(Ledger):
    """Mutant: a step retires as soon as its device is done."""

    def may_begin(self, stage):
        if stage == RETIRE:
            return self.begun[PLAN] == self.ended[PLAN] and self.begun[RETIRE] == self.ended[RETIRE] < self.ended[DEVICE]
        return super().may_begin(stage)

    def begin_next(self):
        stage = self.next_of((LAUNCH, AMEND, PREPARE, RETIRE, PLAN))
        if stage >= 0:
            self.begin(stage)
        return stage


class Hasty(Driver):
    """A driver that takes what the device has done whenever it comes by, as many engines do."""

    def advance(self, timeout_s=None):
        oldest = self.stages.oldest()
        if self.ledger.begun[DEVICE] > self.ledger.ended[DEVICE] and done(oldest.futures):
            self.stages.collect(oldest)
        return super().advance(timeout_s)


def test_without_fixed_lag_timing_decides(monkeypatch):
    monkeypatch.setattr(stages, "Ledger", NoFixedLag)
    monkeypatch.setattr(SimBackend, "drivers", {"inline": Hasty})
    traces = set()
    for timing in range(40):
        with open_backend("sim", prices=PRICES, seed=timing) as backend:
            traces.add(repr(actual(backend, 3, "inline", seed=5)))
    assert len(traces) > 30
