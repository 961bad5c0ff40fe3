"""Rows by events: an independent simulation of the law in `ovsdk.backends.sim.rows`, the judge of its recurrence.

A lane enqueues, a launcher launches, each stream executes; queues are places that rows occupy. Nothing here computes a maximum
of times but by waiting. `Twists` are what a recurrence cannot know: resources shared in no fixed order, and events from outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from ovsdk.backends.sim.fixed import Stages
from ovsdk.backends.sim.kernel import Body, Event, Kernel, Queue, get, put, wait
from ovsdk.backends.sim.rows import Machine, Program, Row


def pool(size: int | None) -> Queue | None:
    """That many of something; None: plenty."""
    if size is None:
        return None
    queue = Queue()
    for _ in range(size):
        queue.offer(None)
    return queue


def using(what: Queue | None, ns: int) -> Body:
    """Spend time with one out of a pool."""
    if what is not None:
        yield get(what)
    yield ns
    if what is not None:
        what.offer(None)


@attrs.define
class Job:
    row: Row
    awaited: list[Event]
    launched: Event = attrs.Factory(Event)
    ended: Event = attrs.Factory(Event)
    ready_ns: int = 0
    begin_ns: int = 0
    end_ns: int = 0


@attrs.frozen(kw_only=True)
class Twists:
    """Pools that are shared in order of request (None: plenty), and what comes from outside."""

    host: int | None = None
    device: int | None = None
    aicpu: int | None = None
    copies: int | None = 1
    arrivals: Sequence[int] = ()
    """When each step's request arrives; its plan waits for it."""
    aborted_ns: int | None = None
    """From then on steps have no rows but their first."""
    fails: int | None = None
    """This step's result is an error: there is no plan after it."""
    eager: bool = False
    """Retire whenever a result is there, and plan otherwise."""


class Device:
    """Launcher, streams, queues of one machine."""

    def __init__(self, machine: Machine, twists: Twists = Twists()) -> None:
        self.machine, self.kernel = machine, Kernel()
        self.host, self.cores = pool(twists.host), pool(twists.device)
        self.aicpu, self.copies = pool(twists.aicpu), pool(twists.copies)
        self.room, self.tasks = Queue(machine.task), Queue()
        self.places = [Queue(machine.device) for _ in range(machine.streams)]
        self.work = [Queue() for _ in range(machine.streams)]
        self.last: Job | None = None
        self.last_on: dict[int, Job] = {}
        self.kernel.spawn("launcher", self.launcher(), server=True)
        for number in range(machine.streams):
            self.kernel.spawn(f"stream {number}", self.stream(number), server=True)

    def enqueue(self, program: Program) -> Body:
        """What the lane does for a launch; returns its jobs."""
        jobs: list[Job] = []
        for row in program.rows:
            if row.sync_ns >= 0:
                yield from self.synchronise(row)
            yield from using(self.host, row.host_ns)
            job = Job(row, [jobs[number].ended for number in row.waits])
            jobs.append(job)
            self.last = self.last_on[row.stream] = job
            if self.machine.level:
                yield put(self.room, None)
                self.tasks.offer(job)
            else:
                yield put(self.places[row.stream], None)
                self.launched(job)
        return jobs

    def synchronise(self, row: Row) -> Body:
        if self.last is not None:
            yield wait(self.last.launched)
        if row.stream in self.last_on:
            yield wait(self.last_on[row.stream].ended)
        yield row.sync_ns

    def launcher(self) -> Body:
        while True:
            job = yield get(self.tasks)
            yield put(self.places[job.row.stream], None)
            yield get(self.room)
            yield job.row.launcher_ns
            self.launched(job)

    def launched(self, job: Job) -> None:
        job.ready_ns = self.kernel.now_ns + self.machine.latency_ns
        job.launched.set()
        self.work[job.row.stream].offer(job)

    def stream(self, number: int) -> Body:
        while True:
            job = yield get(self.work[number])
            yield max(0, job.ready_ns - self.kernel.now_ns)
            for event in job.awaited:
                yield wait(event)
            yield from using(self.aicpu if job.row.aicpu_ns else None, job.row.aicpu_ns)
            yield get(self.places[number])
            job.begin_ns = self.kernel.now_ns
            yield from using(self.cores, job.row.device_ns)
            job.end_ns = self.kernel.now_ns
            job.ended.set()

    def copy(self, jobs: list[Job], d2h_ns: int, done: Event) -> Body:
        for job in jobs:
            yield wait(job.ended)
        if d2h_ns:
            yield from using(self.copies, d2h_ns)
        done.set()


def launches(programs: Sequence[Program], gaps: Sequence[int], machine: Machine) -> list[tuple[int, int, int]]:
    """A lane that waits for nothing: after each gap a launch. Of each: its lane's time after it, its begin and its end on the device."""
    device, found = Device(machine), []

    def lane() -> Body:
        for program, gap in zip(programs, gaps, strict=True):
            yield gap
            jobs = yield from device.enqueue(program)
            found.append((device.kernel.now_ns, jobs))

    device.kernel.spawn("lane", lane())
    device.kernel.run()
    return [(lane_ns, min(job.begin_ns for job in jobs), max(job.end_ns for job in jobs)) for lane_ns, jobs in found]


class Whole:
    """A run of `depth` steps in flight on one host lane or two."""

    def __init__(
        self, programs: Sequence[Program], stages: Sequence[Stages], depth: int, machine: Machine, two: bool, twists: Twists
    ) -> None:
        self.programs, self.stages, self.depth, self.two, self.twists = list(programs), stages, depth, two, twists
        self.device = Device(machine, twists)
        self.handed, self.done = Queue(), [Event() for _ in programs]
        self.launched: list[int] = []
        self.retired: list[int] = []
        self.device.kernel.spawn("scheduling", self.scheduling())
        self.device.kernel.spawn("execution", self.execution(), server=True)
        self.device.kernel.run()

    def scheduling(self) -> Body:
        planned, count = 0, len(self.programs)
        while len(self.retired) < count:
            oldest = len(self.retired)
            early = self.twists.eager and oldest < planned and self.done[oldest].is_set()
            if planned < count and planned < oldest + self.depth and not early:
                yield from self.plan(planned)
                planned += 1
            else:
                yield wait(self.done[oldest])
                yield from using(self.device.host, self.stages[oldest].retire)
                self.retired.append(self.device.kernel.now_ns)
                count = planned if oldest == self.twists.fails else count

    def plan(self, number: int) -> Body:
        now_ns, twists = self.device.kernel.now_ns, self.twists
        if twists.arrivals:
            yield max(0, twists.arrivals[number] - now_ns)
        if twists.aborted_ns is not None and now_ns >= twists.aborted_ns:
            self.programs[number] = self.programs[number]._replace(rows=self.programs[number].rows[:1])
        yield from using(self.device.host, self.stages[number].plan)
        if self.two:
            self.handed.offer(number)
        else:
            yield from self.execute(number)

    def execution(self) -> Body:
        while True:
            number = yield get(self.handed)
            yield from self.execute(number)

    def execute(self, number: int) -> Body:
        yield from using(self.device.host, self.stages[number].prepare)
        yield from using(self.device.host, self.stages[number].launch)
        jobs = yield from self.device.enqueue(self.programs[number])
        self.launched.append(self.device.kernel.now_ns)
        self.device.kernel.spawn(f"copy {number}", self.device.copy(jobs, self.programs[number].d2h_ns, self.done[number]))


def whole(
    programs: Sequence[Program], stages: Sequence[Stages], depth: int, machine: Machine, two: bool = False, twists: Twists = Twists()
) -> list[int]:
    """When each step has retired."""
    return Whole(programs, stages, depth, machine, two, twists).retired


def on_simpy(programs: Sequence[Program], gaps: Sequence[int], machine: Machine) -> list[tuple[int, int, int]]:
    """What `launches` gives, by SimPy's processes, stores and events."""
    import simpy

    env = simpy.Environment()
    room, tasks = simpy.Store(env, machine.task), simpy.Store(env)
    places = [simpy.Store(env, machine.device) for _ in range(machine.streams)]
    work = [simpy.Store(env) for _ in range(machine.streams)]
    found: list[tuple[int, list[Any]]] = []

    def lane() -> Iterator[Any]:
        last, last_on = None, {}
        for program, gap in zip(programs, gaps, strict=True):
            yield env.timeout(gap)
            jobs: list[Any] = []
            for row in program.rows:
                if row.sync_ns >= 0:
                    yield env.all_of([e for e in (last, last_on.get(row.stream)) if e is not None])
                    yield env.timeout(row.sync_ns)
                yield env.timeout(row.host_ns)
                job = {"row": row, "launched": env.event(), "ended": env.event(), "awaited": [jobs[n]["ended"] for n in row.waits]}
                jobs.append(job)
                last, last_on[row.stream] = job["launched"], job["ended"]
                if machine.level:
                    yield room.put(None)
                    yield tasks.put(job)
                else:
                    yield places[row.stream].put(None)
                    launched(job)
            found.append((env.now, jobs))

    def launched(job: Any) -> None:
        job["ready"] = env.timeout(machine.latency_ns)
        job["launched"].succeed()
        work[job["row"].stream].put(job)

    def launcher() -> Iterator[Any]:
        while True:
            job = yield tasks.get()
            yield places[job["row"].stream].put(None)
            yield room.get()
            yield env.timeout(job["row"].launcher_ns)
            launched(job)

    def stream(number: int) -> Iterator[Any]:
        while True:
            job = yield work[number].get()
            yield env.all_of([job["ready"], *job["awaited"]])
            yield env.timeout(job["row"].aicpu_ns)
            yield places[number].get()
            job["begin"] = env.now
            yield env.timeout(job["row"].device_ns)
            job["end"] = env.now
            job["ended"].succeed()

    for body in (lane(), launcher(), *map(stream, range(machine.streams))):
        env.process(body)
    env.run()
    return [(lane_ns, min(job["begin"] for job in jobs), max(job["end"] for job in jobs)) for lane_ns, jobs in found]
