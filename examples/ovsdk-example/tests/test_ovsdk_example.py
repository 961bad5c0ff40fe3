"""The plugin, as installed: ovsdk finds it, makes its objects by name, and runs them."""

from __future__ import annotations

import queue
from importlib.metadata import version

import pytest

import ovsdk
import ovsdk_example
from ovsdk_example import Ring, ShortestFirst

JOBS = {"long": 4, "short": 1, "middle": 2}


def test_the_entry_point_is_found() -> None:
    manager = ovsdk.plugin_manager()
    assert manager.get_plugin("example") is ovsdk_example
    assert manager.origin["example"] == f"ovsdk-example {version('ovsdk-example')}"


@pytest.mark.parametrize("driver", ["inline", "threads"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_all_jobs_end_shortest_first_at_every_depth(driver: str, depth: int) -> None:
    scheduler = ovsdk.make("scheduler", "shortest-first", {"jobs": JOBS})
    report = ovsdk.run(scheduler, "count", "thread", depth=depth, driver=driver, queue="ring")
    assert scheduler.done == ["short", "middle", "long"]
    assert report.steps == sum(JOBS.values())


def test_both_queues_carry_every_step_and_never_more_than_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    rings = []
    monkeypatch.setattr(ovsdk_example, "Ring", lambda capacity: rings.append(Ring(capacity)) or rings[-1])
    scheduler = ovsdk.make("scheduler", "shortest-first", {"jobs": JOBS})
    report = ovsdk.run(scheduler, "count", "thread", depth=2, driver="threads", queue="ring")
    assert len(rings) == 2
    assert [ring.puts >= report.steps for ring in rings] == [True, True]
    assert all(ring.most <= 2 for ring in rings)


def test_slots_are_filled_with_what_has_least_left() -> None:
    scheduler = ShortestFirst(JOBS, slots=2)
    batches = []
    while (answer := scheduler.plan(ovsdk.Ask(len(batches), len(batches), 0.0))) is not ovsdk.IDLE:
        batches.append(answer.jobs)
    assert batches == [("short", "middle"), ("middle", "long"), ("long",), ("long",), ("long",)]


def test_jobs_may_arrive() -> None:
    scheduler = ShortestFirst({})
    assert scheduler.plan(ovsdk.Ask(0, 0, 0.0)) is ovsdk.IDLE
    assert scheduler.plan(ovsdk.Ask(1, 0, 0.0, (("late", 1),))).jobs == ("late",)


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(ovsdk.ConfigError, match="did you mean 'slots'"):
        ovsdk.make("scheduler", "shortest-first", {"jobs": JOBS, "slot": 2})


def test_a_job_of_no_steps_is_refused() -> None:
    with pytest.raises(ovsdk.ConfigError, match="at least 1"):
        ShortestFirst({"nothing": 0})


def test_a_ring_is_a_bounded_queue_that_counts() -> None:
    ring = Ring(2)
    ring.put("a")
    ring.put("b")
    with pytest.raises(queue.Full):
        ring.put("c")
    assert (ring.get(), ring.get(False)) == ("a", "b")
    with pytest.raises(queue.Empty):
        ring.get(timeout=0)
    assert (ring.puts, ring.gets, ring.most) == (2, 2, 2)
