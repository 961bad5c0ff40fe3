"""The run log: what it keeps comes back, and it replays to the same decisions on every driver; stamping by step does not."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ovsdk
from ovsdk import AdmissionQueue, Ask, ConfigError, ReplayDiverged, RunLog, read_log, run
from ovsdk.backends.thread import ThreadBackend
from ovsdk.log import Replay, decode, encode, same

from .toys import Hasher, Moody, Scripted


@attrs.frozen
class Thing:
    name: str
    parts: tuple = ()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.builds(Thing, st.text(), inner.map(lambda v: (v,)))
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(VALUES)
def test_what_is_encoded_comes_back(value):
    assert decode(encode(value)) == value
    assert type(decode(encode(value))) is type(value)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(1.5), np.zeros((0, 2)), np.array(7)])
def test_arrays_come_back_with_dtype_and_shape(array):
    back = decode(encode(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back, array)


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(ConfigError, match="cannot keep a object"):
        encode(object())


def test_a_class_in_a_log_must_be_a_value(tmp_path):
    with pytest.raises(TypeError, match="not an attrs class"):
        decode({"!": "attrs", "as": "subprocess:Popen", "fields": {}})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A log of a run under real threads, with arrivals of their own time, and the trace of its decisions."""
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    admission = AdmissionQueue((i / 4000, f"r{i}") for i in range(30))
    admission.close()
    scheduler = Moody(steps=40, seed=8)
    with ThreadBackend() as device:
        report = run(scheduler, Hasher(), device, depth=3, driver="threads", admission=admission, log=path)
    assert report.steps == len(read_log(path).results)
    return path, scheduler.trace, report.log


def test_a_file_holds_what_the_report_holds(recorded):
    path, _, log = recorded
    read = read_log(path)
    assert read.asks == log.asks
    assert read.results == log.results


@pytest.mark.parametrize("driver", ["inline", "threads"])
def test_a_log_recorded_under_threads_replays_to_the_same_trace(recorded, driver):
    path, trace, _ = recorded
    scheduler = Moody(steps=40, seed=8)
    with ThreadBackend() as device:
        report = run(scheduler, Hasher(), device, depth=3, driver=driver, replay=path)
    assert scheduler.trace == trace
    assert report.notes == ()


class StampedByStep(Replay):
    """Mutant: hands out arrivals by the step that they were seen at, as if each step were asked for once."""

    def take(self, number, step, now_s):
        asks = [ask for ask in self.log.asks if ask.step == step]
        self._next = number + 1
        if number >= len(self.log.asks):
            return None
        fresh = step not in getattr(self, "seen", set())
        self.seen = {*getattr(self, "seen", set()), step}
        merged = tuple(r for ask in asks for r in ask.arrivals) if fresh else ()
        return Ask(number, step, asks[0].now_s if asks else 0.0, merged, ())


def test_stamping_by_step_is_caught(recorded):
    path, trace, _ = recorded
    scheduler, log = Moody(steps=40, seed=8), read_log(path)
    with ThreadBackend() as device:
        run(scheduler, Hasher(), device, depth=3, admission=StampedByStep(log))
    assert scheduler.trace != trace


def test_a_scheduler_that_decides_otherwise_is_told(recorded):
    path, _, _ = recorded
    with ThreadBackend() as device, pytest.raises(ReplayDiverged, match="decides by more than asks and results"):
        run(Moody(steps=40, seed=9), Hasher(), device, depth=3, replay=path)


def test_a_device_that_computes_otherwise_is_noted_and_the_log_decides(recorded):
    path, trace, _ = recorded
    log = read_log(path)
    scheduler = Moody(steps=40, seed=8)

    class Wrong(Hasher):
        def launch(self, step, inputs):
            return ovsdk.Launch("hash", fn=len, inputs=((),))

    with ThreadBackend() as device:
        report = run(scheduler, Wrong(), device, depth=3, replay=log)
    assert scheduler.trace == trace
    assert report.notes == ("step 0 is the first whose computed result differs from the replayed log's",)


def test_a_replay_brings_its_own_arrivals():
    with ThreadBackend() as device, pytest.raises(ConfigError, match="leave out admission"):
        run(Moody(), Hasher(), device, replay=RunLog(2), admission=Scripted())


def test_a_replay_at_another_depth_is_refused(recorded):
    with ThreadBackend() as device, pytest.raises(ConfigError, match="recorded at depth 3; replay it at that depth, not at 2"):
        run(Moody(), Hasher(), device, replay=recorded[0])


def test_a_last_line_cut_short_is_left_out_and_a_broken_one_is_refused(recorded, tmp_path):
    path, _, _ = recorded
    lines = path.read_text().splitlines()
    cut = tmp_path / "cut.jsonl"
    cut.write_text("\n".join([*lines[:5], lines[5][:20]]))
    assert len(read_log(cut).asks) + len(read_log(cut).results) == 4
    cut.write_text("\n".join([*lines[:3], "{]", *lines[3:]]))
    with pytest.raises(ConfigError, match="line 4"):
        read_log(cut)
    cut.write_text("")
    with pytest.raises(ConfigError, match="empty"):
        read_log(cut)


def test_same_tells_arrays_apart():
    assert same({"a": np.arange(3)}, {"a": np.arange(3)})
    assert not same({"a": np.arange(3)}, {"a": np.arange(3.0)})
