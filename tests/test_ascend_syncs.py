"""Host synchronisations in launches: counted, placed, warned of, refused. Here the tracer is played, under emulation it is torch_npu's."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovsdk.backends.ascend import syncs
from ovsdk.backends.ascend.syncs import HostSyncWarning, Syncs, heard
from ovsdk.errors import ConfigError, DeviceError, SchedulerProtocolError

from .emulation import run_emulated


@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_on_the_emulated_npu(level: int) -> None:
    run_emulated("test_syncs.py", task_queue=level)


def waits(*kinds: str) -> int:
    for kind in kinds:
        heard(kind)  # the line that a note must name
    return len(kinds)


LINE = waits.__code__.co_firstlineno + 2


def deaf() -> None:
    """In place of torch_npu's tracer."""


def listener(mode: str) -> Syncs:
    return Syncs(mode, deaf)


def call(found: Syncs, *kinds: str, launch: str = "decode") -> Any:
    return found.call(launch, waits, kinds, {})


def test_a_wait_is_told_with_its_line() -> None:
    found = listener("count")
    assert call(found) == 0
    assert found.notes() == ()
    assert call(found, "stream", "stream", "device") == 3
    (note,) = found.notes()
    assert note.startswith("3 host synchronisations in 2 launches: ")
    assert f"test_ascend_syncs.py:{LINE} in waits (2 x stream, decode)" in note
    assert f"test_ascend_syncs.py:{LINE} in waits (1 x device, decode)" in note


@given(st.lists(st.tuples(st.sampled_from(["prefill", "decode"]), st.lists(st.sampled_from(syncs.KINDS), max_size=3)), max_size=8))
def test_none_is_lost_and_none_is_made_up(launches: list[tuple[str, list[str]]]) -> None:
    found = listener("count")
    for launch, kinds in launches:
        call(found, *kinds, launch=launch)
    expected = Counter((launch, kind) for launch, kinds in launches for kind in kinds)
    assert Counter({(sync.launch, sync.waited_for): count for sync, count in found.found.items()}) == expected
    assert found.launches == len(launches)
    assert bool(found.notes()) == bool(expected)
    found.reset()
    assert (found.launches, found.notes()) == (0, ())


def test_only_a_launch_on_the_same_thread_is_blamed() -> None:
    found = listener("count")
    heard("stream")

    def launch() -> None:
        other = threading.Thread(target=waits, args=("device",))
        other.start()
        other.join()

    found.call("decode", launch, (), {})
    assert found.notes() == ()


def test_a_launch_within_a_launch_keeps_its_own() -> None:
    outer, inner = listener("count"), listener("count")

    def launch() -> None:
        heard("event")
        call(inner, "stream")
        heard("event")

    outer.call("outer", launch, (), {})
    assert [(sync.launch, sync.waited_for) for sync in inner.found.elements()] == [("decode", "stream")]
    assert [(sync.launch, sync.waited_for) for sync in outer.found.elements()] == [("outer", "event")] * 2


def test_native_code_has_no_line() -> None:
    found = listener("count")
    found.call("decode", heard, ("stream",), {})
    assert found.notes() == ("1 host synchronisations in 1 launches: native code that the launch calls (1 x stream, decode)",)


def test_a_refused_wait_fails_its_launch_and_names_the_line() -> None:
    found = listener("refuse")
    assert call(found) == 0
    with pytest.raises(SchedulerProtocolError, match=rf"test_ascend_syncs.py:{LINE} in waits .*non_blocking=True"):
        call(found, "stream")
    assert found.found.total() == 1


def test_a_warning_points_at_the_line_and_comes_once_a_run() -> None:
    found = listener("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            call(found, "stream")
        found.reset()
        call(found, "stream")
    assert [(one.category, one.lineno) for one in seen] == [(HostSyncWarning, LINE)] * 2
    assert all(one.filename == __file__ for one in seen)
    assert found.found.total() == 1


def test_what_the_launch_raises_is_raised_and_what_it_waited_for_is_kept() -> None:
    found = listener("count")

    def launch() -> None:
        heard("stream")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        found.call("decode", launch, (), {})
    assert found.found.total() == 1


@pytest.mark.parametrize(("text", "raised"), [("error return without exception set", DeviceError), ("something else", SystemError)])
def test_an_error_that_the_tracer_lost_is_called_so(text: str, raised: type[Exception]) -> None:
    def launch() -> None:
        raise SystemError(text)

    with pytest.raises(raised, match=text if raised is SystemError else "syncs='off'"):
        listener("count").call("decode", launch, (), {})


def test_many_places_are_counted_and_the_most_frequent_told() -> None:
    found = listener("count")
    for i in range(8):
        exec(compile(f"def fn():\n    heard('stream')\nfor _ in range({i + 1}): found.call('decode', fn, (), {{}})", f"file{i}.py", "exec"))
    (note,) = found.notes()
    assert "file7.py:2 in fn (8 x stream, decode)" in note
    assert "file2.py" not in note
    assert note.endswith("; and 3 other places")


def test_off_listens_to_nothing() -> None:
    def tracer() -> None:
        raise AssertionError("the tracer was switched on")

    found = Syncs("off", tracer)
    assert call(found, "stream") == 1
    assert found.notes() == ()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown syncs 'wran'.*did you mean 'warn'"):
        Syncs("wran", deaf)
