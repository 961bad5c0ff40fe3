"""Every driver, one protocol: the direct loop as oracle, one decision trace whatever the timing, launch ahead, drain."""

from __future__ import annotations

import importlib
import queue
import sys
import threading
import time

import pytest

import ovsdk
from ovsdk import FINISHED, IDLE, WAIT, AdmissionQueue, ConfigError, Launch, StepError, hookimpl, open_backend, run, threads
from ovsdk.backends.thread import ThreadBackend

from .toys import EMULATED, Amending, Count, Echo, Failing, Finisher, Hasher, Moody, Scripted, direct, direct_asks, double, hashed

DRIVERS = ("inline", "threads")
driver_module, ovsdk_run = (importlib.import_module(f"ovsdk.{name}") for name in ("driver", "run"))


@pytest.fixture(params=["thread", *(name for name, _ in EMULATED)])
def device(request):
    with open_backend(request.param, timeout_s=20.0) as backend:
        yield backend


def called(launch):
    return launch.fn(*launch.inputs, **launch.host)


# ---- the oracle ----


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_decision_trace_is_the_direct_loops(device, driver, depth):
    expected, actual = Count(25), Count(25)
    direct(expected, Echo(), depth, called)
    run(actual, Echo(), device, depth=depth, driver=driver)
    assert actual.trace == expected.trace
    assert actual.seen == expected.seen


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_idle_wait_arrivals_and_aborts_change_nothing_in_that(device, driver, depth, seed):
    expected, actual = Moody(seed=seed), Moody(seed=seed)
    direct_asks(expected, Hasher(), depth, Scripted(seed), called)
    run(actual, Hasher(), device, depth=depth, driver=driver, admission=Scripted(seed))
    assert actual.trace == expected.trace
    assert {line[-1] for line in actual.trace} & {IDLE, WAIT}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("moves", [0, 1, 2, 3, 4, 5, 7, 11])
def test_a_run_can_be_driven_to_its_end_after_any_move(device, driver, depth, moves):
    expected, actual = Moody(seed=2), Moody(seed=2)
    direct_asks(expected, Hasher(), depth, Scripted(2), called)
    with ovsdk.start(actual, Hasher(), device, depth=depth, driver=driver, admission=Scripted(2)) as going:
        for _ in range(moves):
            going.advance()
        going.driver.drive()
        assert going.advance() is FINISHED
    assert actual.trace == expected.trace


def test_a_driver_with_moves_of_its_own_makes_them_in_a_whole_run_too(device, monkeypatch):
    class Counting(driver_module.Driver):
        made = 0

        def advance(self, timeout_s=None):
            self.made += 1
            return super().advance(timeout_s)

    monkeypatch.setattr(ovsdk_run, "Driver", Counting)
    with ovsdk.start(Count(5), Echo(), device) as going:
        going.driver.drive()
        assert going.driver.made > 5 * 5


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_amend_gives_one_trace_on_both_drivers(device, depth):
    traces = []
    for driver in DRIVERS:
        scheduler = Amending(seed=3)
        run(scheduler, Finisher(), device, depth=depth, driver=driver, admission=Scripted(3))
        traces.append(scheduler.trace)
    assert traces[0] == traces[1]


def test_amend_is_called_when_every_earlier_step_has_retired(device):
    order = []

    class Spy(Count):
        def amend(self, step, batch):
            order.append(("amend", step, len(self.seen)))
            return batch

    run(Spy(8), Finisher(), device, depth=3)
    assert order == [("amend", k, k) for k in range(8)]


def test_the_result_of_a_step_with_two_launches_is_a_tuple(device):
    class Two(Echo):
        def launch(self, step, inputs):
            return (super().launch(step, inputs), Launch("more", fn=double, inputs=(inputs,)))

    scheduler = Count(3)
    run(scheduler, Two(), device)
    assert [result for _, _, result in scheduler.seen] == [(2, 2), (4, 4), (6, 6)]


# ---- launch ahead ----


class Ahead:
    """A device whose step k is done only once step k+1 has been launched: a driver that launches late never finishes."""

    def __init__(self, steps):
        self.steps, self.launched = steps, -1

    def prepare(self, step, batch):
        return step

    def launch(self, step, inputs):
        self.launched = step
        return _Later(self, step)


class _Later:
    def __init__(self, device, step):
        self.device, self.step = device, step

    def done(self):
        return self.device.launched > self.step or self.step == self.device.steps - 1

    def result(self):
        return self.step


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_launch_of_the_next_step_never_needs_the_result_of_this_one(device, driver, depth):
    scheduler = Count(12)
    run(scheduler, Ahead(12), device, depth=depth, driver=driver)
    assert [step for step, _, _ in scheduler.seen] == list(range(12))


def test_a_driver_that_launches_late_fails_that_test():
    with ThreadBackend(timeout_s=0.05) as device, pytest.raises(StepError, match="not done after"):
        run(Count(3), Ahead(3), device, depth=1)


class Waited:
    """A future that is done once somebody has waited for it."""

    ready = False

    def done(self):
        return self.ready

    def result(self):
        return 0


def test_inline_launches_the_next_step_before_it_first_waits_for_this_one(device):
    order, real = [], device.clock.wait

    def wait(futures, signal, deadline_ns):
        order.append("wait")
        futures[0].ready = True
        return real(futures, signal, deadline_ns)

    class Spy(Echo):
        def launch(self, step, inputs):
            order.append(step)
            return Waited()

    device.clock.wait = wait
    run(Count(6), Spy(), device, depth=2)
    assert order == [0, 1, "wait", 2, "wait", 3, "wait", 4, "wait", 5, "wait", "wait"]


def hand_overs(scheduler, executor, device, depth):
    spans = []
    watch = type("Watch", (), {"ovsdk_observers": hookimpl(lambda self: [spans.append])})
    device.plugins = ovsdk.plugin_manager([watch()])
    run(scheduler, executor, device, driver="threads", depth=depth)
    return [span.step for span in spans if span.what == "hand-over"]


@pytest.mark.parametrize(("worth_ns", "some"), [(0, True), (10**12, False)])
def test_a_hand_over_is_acknowledged_where_planning_takes_longer_than_that(device, monkeypatch, worth_ns, some):
    monkeypatch.setattr(threads, "WAKE_NS", worth_ns)
    assert bool(hand_overs(Count(8), Echo(), device, 3)) is some


def wakes_while_executing(device, monkeypatch, worth_ns):
    """For each wake that the execution thread gives with steps to execute before it, how many those are."""
    both, given = threading.Event(), []

    class Input(queue.SimpleQueue):
        def put(self, item):
            super().put(item)
            if self.qsize() == 2 or item is None:
                both.set()

        def get(self, *how):
            both.wait()  # the execution thread finds two steps, or the end
            return super().get(*how)

    class Wakes(threads.ThreadsDriver):
        def _tell(self):
            if not self._told:
                given.append(self.input_queue.qsize())
            super()._tell()

    monkeypatch.setattr(threads, "WAKE_NS", worth_ns)
    monkeypatch.setattr(sys.modules["ovsdk.run"], "ThreadsDriver", Wakes)
    maker = type("Maker", (), {"ovsdk_make_queue": hookimpl(lambda self, name, options: made(name, options))})

    def made(name, options):
        return (Input() if options["role"] == "input" else queue.SimpleQueue()) if name == "watched" else None

    device.plugins = ovsdk.plugin_manager([maker()])
    run(Count(2), Echo(), device, driver="threads", depth=2, queue="watched")
    return given


@pytest.mark.parametrize(("worth_ns", "wakes"), [(-1, [1, 0]), (10**12, [0])])
def test_a_short_execution_wakes_the_scheduling_thread_once_for_all(device, monkeypatch, worth_ns, wakes):
    """Two steps wait to be executed: it hears of both at once if they take less time than a wake, and else of each."""
    assert wakes_while_executing(device, monkeypatch, worth_ns) == wakes


# ---- errors, drain, abandon ----


def boom(value):
    if value == 4:
        raise ZeroDivisionError("on the device")
    return value


class Abandon:
    @hookimpl
    def ovsdk_step_failed(self):
        return "abandon"


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("stage", ["prepare", "launch", "device"])
def test_a_failing_step_stops_the_run_after_earlier_steps_have_retired(device, driver, stage):
    scheduler, executor = Failing(10), failing_in(stage)
    with pytest.raises(StepError, match=f"step 3 failed in {stage}: ZeroDivisionError: on the device; batch: 4") as caught:
        run(scheduler, executor, device, depth=3, driver=driver)
    assert (caught.value.step, caught.value.stage, caught.value.batch) == (3, stage, 4)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert [step for step, _, _ in scheduler.seen] == [0, 1, 2]
    assert scheduler.failed == []
    assert executor.closed == 1


def failing_in(stage):
    executor = Echo(boom) if stage == "device" else Echo()
    if stage != "device":
        good = getattr(executor, stage)
        setattr(executor, stage, lambda step, batch: (boom(batch), good(step, batch))[1])
    return executor


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("stage", ["prepare", "launch", "device"])
def test_abandon_calls_fail_in_place_of_retire_in_step_order(driver, depth, stage):
    with open_backend("thread", plugins=[Abandon()]) as device:
        scheduler = Failing(8)
        order = []
        scheduler.retire = lambda step, batch, result: order.append(step)
        scheduler.fail = lambda step, batch, error: order.append((step, batch, type(error)))
        run(scheduler, failing_in(stage), device, depth=depth, driver=driver)
    assert order == [0, 1, 2, (3, 4, ZeroDivisionError), 4, 5, 6, 7]


def test_abandon_needs_a_scheduler_that_has_fail():
    with open_backend("thread", plugins=[Abandon()]) as device, pytest.raises(StepError, match="step 3"):
        run(Count(8), Echo(boom), device)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_plan_that_raises_still_retires_what_is_in_flight(device, driver):
    class Bad(Count):
        def plan(self, ask):
            if ask.step == 4:
                raise KeyError("no such request")
            return super().plan(ask)

    scheduler = Bad(10)
    with pytest.raises(StepError, match="step 4 failed in plan: KeyError"):
        run(scheduler, Echo(), device, depth=3, driver=driver)
    assert [step for step, _, _ in scheduler.seen] == [0, 1, 2, 3]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_retire_that_raises_is_the_last_call_of_the_scheduler(device, driver):
    class Bad(Count):
        def retire(self, step, batch, result):
            super().retire(step, batch, result)
            if step == 2:
                raise ValueError("cannot")

    scheduler = Bad(10)
    with pytest.raises(StepError, match="step 2 failed in retire: ValueError: cannot"):
        run(scheduler, Echo(), device, depth=3, driver=driver)
    assert [step for step, _, _ in scheduler.seen] == [0, 1, 2]


def test_errors_of_later_steps_ride_along(device):
    with pytest.raises(StepError, match="step 0 failed") as caught:
        run(Count(6), Echo(always), device, depth=3)
    assert [later.step for later in caught.value.later] == [1, 2]


def always(value):
    raise OSError(f"batch {value}")


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("answer", "says"),
    [(None, "plan returned None"), (WAIT, "WAIT .* with nothing in flight")],
)
def test_a_plan_may_not_answer_that(device, driver, answer, says):
    class Bad(Count):
        def plan(self, ask):
            return answer

    with pytest.raises(ovsdk.SchedulerProtocolError, match=says):
        run(Bad(1), Echo(), device, driver=driver)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("work", [None, 7, (), "launch"])
def test_a_launch_may_not_return_that(device, driver, work):
    class Bad(Echo):
        def launch(self, step, inputs):
            return work

    with pytest.raises(ovsdk.SchedulerProtocolError, match="must return a Launch"):
        run(Count(1), Bad(), device, driver=driver)


# ---- idle, arrivals, close ----


class Server:
    """Serves what arrives; IDLE otherwise."""

    def __init__(self):
        self.waiting, self.served, self.asks = [], [], []

    def plan(self, ask):
        self.asks.append(ask)
        self.waiting += ask.arrivals
        return self.waiting.pop(0) if self.waiting else IDLE

    def retire(self, step, batch, result):
        self.served.append((batch, result))


@pytest.mark.parametrize("driver", DRIVERS)
def test_idle_without_admission_ends_the_run(device, driver):
    assert run(Server(), Echo(), device, driver=driver).steps == 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_arrivals_from_another_thread_wake_a_sleeping_run(device, driver):
    scheduler, admission = Server(), AdmissionQueue()
    asked, ask = threading.Event(), scheduler.plan
    scheduler.plan = lambda a: (ask(a), asked.set())[0]

    def client():
        asked.wait(20)
        for request in range(3):
            admission.put(request)
        admission.close()

    thread = threading.Thread(target=client)
    thread.start()
    run(scheduler, Echo(), device, driver=driver, admission=admission)
    thread.join()
    assert scheduler.served == [(0, 0), (1, 2), (2, 4)]


@pytest.mark.parametrize("driver", DRIVERS)
def test_timed_arrivals_come_by_themselves(device, driver):
    scheduler, admission = Server(), AdmissionQueue([(0.002, "b"), (0.0, "a")])
    admission.close()
    run(scheduler, Echo(), device, driver=driver, admission=admission)
    assert [batch for batch, _ in scheduler.served] == ["a", "b"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_close_drains_what_is_in_flight(device, driver):
    scheduler = Count(10**9)
    with ovsdk.start(scheduler, Echo(), device, depth=3, driver=driver) as going:
        retire = scheduler.retire
        scheduler.retire = None
        going.driver.stages._retire = lambda step, batch, result: (retire(step, batch, result), step == 5 and going.close())
        while going.advance() is not FINISHED:
            pass
    assert [step for step, _, _ in scheduler.seen] == list(range(len(scheduler.seen)))
    assert len(scheduler.seen) in range(6, 10)
    assert going.result().steps == len(scheduler.seen)


def test_an_admission_queue_refuses_after_close():
    admission = AdmissionQueue()
    admission.close()
    with pytest.raises(ConfigError, match="closed before 'x' was put"):
        admission.put("x")
    with pytest.raises(ConfigError, match="closed"):
        admission.abort("x")


# ---- a loop of your own ----


def test_advance_answers_blocked_when_its_patience_ends(device):
    if device.name == "ascend":
        pytest.skip("a function runs on the host while it launches: one that waits there is no device that does")
    gate = threading.Event()
    with ovsdk.start(Count(1), Echo(lambda value: gate.wait(20)), device) as going:
        answers = [going.advance(0) for _ in range(8)]
        gate.set()
        while going.advance() is not FINISHED:
            pass
    assert answers[-1] is ovsdk.BLOCKED
    assert going.result().steps == 1


@pytest.mark.parametrize("driver", DRIVERS)
def test_asyncio_can_drive(device, driver):
    import asyncio

    async def serve(going):
        while (progress := going.advance(0)) is not FINISHED:
            await asyncio.sleep(0 if progress is ovsdk.MOVED else 1e-4)

    scheduler = Count(20)
    with ovsdk.start(scheduler, Echo(), device, driver=driver) as going:
        asyncio.run(serve(going))
    assert going.result().steps == len(scheduler.seen) == 20


def test_result_before_the_end_is_refused(device):
    with ovsdk.start(Count(1), Echo(), device) as going, pytest.raises(ConfigError, match="not finished"):
        going.result()


# ---- an engine's own future ----


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_engine_may_return_its_own_future(device, driver):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:

        class Own(Echo):
            def launch(self, step, inputs):
                return pool.submit(hashed, inputs)

        scheduler = Count(15)
        run(scheduler, Own(), device, driver=driver)
    assert [result for _, _, result in scheduler.seen] == [hashed(k + 1) for k in range(15)]


# ---- Ctrl-C ----


@pytest.mark.parametrize("driver", DRIVERS)
def test_ctrl_c_drains_and_raises(device, driver):
    import signal

    class Interrupted(Count):
        def retire(self, step, batch, result):
            super().retire(step, batch, result)
            if step == 3:
                signal.raise_signal(signal.SIGINT)

    scheduler, executor = Interrupted(10**9), Echo()
    with pytest.raises(KeyboardInterrupt):
        run(scheduler, executor, device, depth=2, driver=driver)
    assert [step for step, _, _ in scheduler.seen] == list(range(len(scheduler.seen)))
    assert len(scheduler.seen) in (4, 5, 6)
    assert executor.closed == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_second_ctrl_c_raises_at_once(device, driver):
    import signal

    class Interrupted(Count):
        def plan(self, ask):
            if ask.step == 2:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return super().plan(ask)

    scheduler = Interrupted(10**9)
    with pytest.raises(KeyboardInterrupt):
        run(scheduler, Echo(), device, driver=driver)
    assert len(scheduler.trace) == 2


def test_ctrl_c_inside_the_executor_of_threads_reaches_the_caller(device):
    class Exiting(Echo):
        def prepare(self, step, batch):
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        run(Count(2), Exiting(), device, driver="threads")


# ---- bad input ----


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"depth": 0}, "at least 1"),
        ({"driver": "thread"}, "did you mean 'threads'"),
        ({"driver": "threads", "queue": "nowhere"}, "no plugin knows a queue called 'nowhere'"),
    ],
)
def test_bad_options_say_what_is_allowed(device, options, says):
    with pytest.raises(ConfigError, match=says):
        run(Count(1), Echo(), device, **options)


def test_objects_without_the_methods_are_refused(device):
    with pytest.raises(ConfigError, match="no scheduler: it has no method 'retire'"):
        run(type("Half", (), {"plan": print})(), Echo(), device)
    with pytest.raises(ConfigError, match="no executor: it has no method 'prepare'"):
        run(Count(1), object(), device)


def test_a_device_that_never_answers_is_a_timeout():
    gate = threading.Event()
    with ThreadBackend(timeout_s=0.01) as device:
        with pytest.raises(StepError, match=r"step 0 failed in device: DeviceTimeout: .* larger timeout_s") as caught:
            run(Count(3), Echo(lambda value: gate.wait(20)), device)
        gate.set()
    assert isinstance(caught.value.__cause__, ovsdk.DeviceTimeout)


def test_load_that_raises_says_so_and_closes_nothing_it_did_not_open(device):
    class Loads(Echo):
        def open(self, backend):
            backend.load(always)

    executor = Loads()
    with pytest.raises(OSError, match=r"batch (cpu|npu:0)"):
        run(Count(1), executor, device)
    assert executor.closed == 0


def test_no_thread_is_left_after_a_run():
    before = threading.active_count()
    with ThreadBackend() as device:
        run(Count(5), Echo(), device, driver="threads")
    assert threading.active_count() == before


def test_the_threads_driver_runs_prepare_and_launch_elsewhere(device):
    where = {}

    class Spy(Echo):
        def prepare(self, step, batch):
            where["prepare"] = threading.current_thread().name
            return batch

    class SpyScheduler(Count):
        def plan(self, ask):
            where["plan"] = threading.current_thread()
            return super().plan(ask)

    run(SpyScheduler(2), Spy(), device, driver="threads")
    assert where == {"prepare": "ovsdk-execution", "plan": threading.main_thread()}


def test_spans_cover_every_stage_of_every_step(device):
    spans = []

    class Watch:
        @hookimpl
        def ovsdk_observers(self):
            return [spans.append]

    with open_backend("thread", plugins=[Watch()]) as watched:
        run(Count(4), Echo(), watched, spans=False)
    names = [(s.what, s.step) for s in spans if s.lane == "host"]
    assert {("plan", k) for k in range(4)} | {("prepare", k) for k in range(4)} | {("retire", k) for k in range(4)} <= set(names)
    assert [s.step for s in spans if s.lane == "device"] == [0, 1, 2, 3]
    assert all(s.begin_ns <= s.end_ns for s in spans)
    assert time.perf_counter_ns() >= spans[-1].end_ns


def test_a_report_says_what_its_backend_wants_said(device, monkeypatch):
    monkeypatch.setattr(type(device), "notes", ["an EMULATED device"], raising=False)
    assert "an EMULATED device" in str(run(Count(3), Echo(), device))


def test_a_report_says_where_the_executors_tiler_computed_its_tilings(device):
    class Tiled(Echo):
        tiler = ovsdk.make("tiler", "auto", {"placement": {"reduce": "in-kernel"}})

        def prepare(self, step, batch):
            self.tiler.placements["reduce"] = "in-kernel"
            return super().prepare(step, batch)

    report = run(Count(3), Tiled(), device)
    assert report.as_dict()["tilings"] == {"reduce": "in-kernel"}
    assert "tiling of reduce in-kernel" in str(report)
    assert run(Count(3), Echo(), device).tilings == {}


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_backend_is_told_of_a_run_and_may_mark_its_stages(device, driver):
    told = []

    def mark(stage, call):
        def marked(step):
            told.append((stage, step))
            return call(step)

        return marked

    device.begin, device.mark = told.append, mark
    run(Count(2), Echo(), device, depth=2, driver=driver)
    stages = [entry for entry in told if isinstance(entry, tuple)]
    assert told[0] == 2
    assert {stage for stage, _ in stages} == {"plan", "prepare", "launch", "retire"}
    assert [step for stage, step in stages if stage == "launch"] == [0, 1]
