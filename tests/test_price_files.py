"""The structure of a price file: what is read, and what is refused, with its place, the value seen and what is allowed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from ovsdk.backends.sim.hardware import Copy
from ovsdk.backends.sim.host import Gil, Share
from ovsdk.backends.sim.lower import lower
from ovsdk.backends.sim.operators import MOST_OPS
from ovsdk.backends.sim.prices import Calibration, load_prices, shipped
from ovsdk.backends.sim.rows import Machine
from ovsdk.errors import ProfileError

WHOLE = """
schema = 1
name   = "whole"
source = "invented"
[machine]
source = "a data sheet"
cores  = 8
gil    = { switch_us = 5000, handoff_us = 8, overshoot_us = 0.5, share = { plan = 0.5, prepare = { gil = 0.2, parts = 9, native = true } } }
queue  = { level = 2, task = 40, device = 10 }
h2d    = { latency_us = 8,  gb_per_s = 20 }
d2h    = { latency_us = 30, gb_per_s = 12.5, pinned = false }
launch_latency_us = 10
aicpu_workers = 4
streams = "shared"
[stage]
plan_us = 12
source  = "a profile"
[launch.decode]
features = { batch = 8, kv_tokens = 4096 }
ops = ["a", { repeat = 2, ops = ["b", { repeat = 3, ops = ["a"] }] }]
inputs_bytes = { by = "batch", at = [[1, 64], [64, 4096]] }
[launch.decode.graph]
host_us = 7
source  = "a measurement"
[launch.copy]
features  = { batch = 8, kv_tokens = 1 }
device_us = 3
[op.default]
launcher_us = 2
device_us = 1
[op.a]
source = "another"
[op.b]
device_us = 5
stream = "side"
[calibration]
trace_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
self_replay = 0.004
held_out = -0.007
"""


def mapping(**changes: Any) -> dict[str, Any]:
    return {"schema": 1, "launch": {"d": {"ops": ["a"]}}, "op": {"a": {"device_us": 1}}, **changes}


def launch(**keys: Any) -> dict[str, Any]:
    return mapping(launch={"d": {"ops": ["a"], **keys}})


def op(**keys: Any) -> dict[str, Any]:
    return mapping(op={"a": {"device_us": 1, **keys}})


def machine(**keys: Any) -> dict[str, Any]:
    return mapping(machine=keys)


# ---- what is read ----


def test_every_section_is_read(tmp_path: Path) -> None:
    path = tmp_path / "whole.toml"
    path.write_text(WHOLE)
    prices = load_prices(path)
    assert prices.machine == Machine(level=2, task=40, device=10, latency_ns=10_000, streams=3, aicpu_workers=4)
    assert (prices.host.cores, prices.host.gil) == (8, Gil(switch_ns=5_000_000, handoff_ns=8_000, overshoot_ns=500))
    assert prices.host.shares == {"plan": Share(0.5), "prepare": Share(0.2, 9, native=True)}
    assert (prices.hardware.h2d, prices.hardware.d2h) == (Copy(8_000, 20.0), Copy(30_000, 12.5, pinned=False))
    assert prices.hardware.shared
    assert prices.streams == ("", "side", "h2d")
    assert [o.name for o in prices.launches["decode"].ops] == ["a", "b", "a", "a", "a", "b", "a", "a", "a"]
    assert prices.features == {"batch": 8}, "what the launches agree on"
    assert prices.calibration == Calibration("0123456789abcdef" * 4, self_replay=0.004, held_out=-0.007)
    assert prices.sources == {
        "machine": "a data sheet",
        "stage": "a profile",
        "launch.decode.graph": "a measurement",
        "op.a": "another",
    }


def test_what_is_left_out_costs_nothing_and_never_binds() -> None:
    prices = load_prices(mapping())
    assert prices.machine == Machine(level=0)
    assert (prices.host.gil, prices.host.cores, prices.hardware.h2d, prices.hardware.d2h) == (None, None, None, None)
    assert prices.calibration == Calibration()
    assert [(row.host_ns, row.launcher_ns, row.device_ns) for row in lower(prices, "d", {}).rows] == [(0, 0, 1000)]


def test_a_copy_takes_its_latency_and_a_byte_a_ns_for_each_gb_per_s() -> None:
    assert [Copy(8_000, 20.0).ns(size) for size in (0, 32, 20_000_000)] == [8_000, 8_002, 1_008_000]


def test_the_file_of_the_reference_is_read_as_it_is_and_is_the_shipped_one(shared: Path) -> None:
    given, ours = load_prices(shared / "data" / "longcat-flash-b8-4k.toml"), load_prices("longcat-flash-b8-4k")
    assert (given.name, given.machine, given.host) == (ours.name, ours.machine, ours.host)
    assert (given.stages, given.ops, given.launches) == (ours.stages, ours.ops, ours.launches)


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_profile_says_where_its_figures_come_from_and_lowers(name: str) -> None:
    prices = load_prices(name)
    assert "invented" in prices.source
    for kind, priced in prices.launches.items():
        for graph in (False, True):
            program = lower(prices, kind, {}, graph=graph)
            assert len([row for row in program.rows if row.op in prices.ops]) == len(priced.ops)


# ---- what is refused ----

LOOP: list[Any] = ["a"]
LOOP.append({"repeat": 1, "ops": LOOP})

CASES = [
    # sections
    (mapping(machines={}), "prices", "unknown key 'machines' (did you mean 'machine'?); allowed: calibration, launch, machine, name, op,"),
    (mapping(op=3), "prices: op", "got 3; allowed: a table"),
    # launches
    (launch(device_us=3), "prices: launch.d", "a launch has either ops or device_us; got device_us, ops"),
    (launch(op=["a"]), "prices: launch.d", "unknown key 'op' (did you mean 'ops'?)"),
    (launch(ops="a"), "prices: launch.d.ops", "got 'a'; allowed: a list of names of operators and { repeat = n, ops = [...] }"),
    (launch(ops=[]), "prices: launch.d.ops", "got []; allowed: a list"),
    (launch(ops=["a", 3]), "prices: launch.d.ops[1]", "got 3; allowed: a table"),
    (launch(ops=["a", "atention"]), "prices: launch.d.ops[1]", "unknown operator 'atention'; known: a"),
    (
        launch(ops=[{"repeat": 2, "ops": ["a", "aa"]}]),
        "prices: launch.d.ops[0].ops[1]",
        "unknown operator 'aa' (did you mean 'a'?); known: a",
    ),
    (launch(ops=["default"]), "prices: launch.d.ops[0]", "unknown operator 'default'; known: a"),
    (launch(ops=[{"ops": ["a"]}]), "prices: launch.d.ops[0]", "the key 'repeat' is missing; got 'ops'"),
    (launch(ops=[{"repeat": 2, "op": "a"}]), "prices: launch.d.ops[0]", "unknown key 'op' (did you mean 'ops'?); allowed: ops, repeat"),
    (launch(ops=[{"repeat": 0, "ops": ["a"]}]), "prices: launch.d.ops[0].repeat", "got 0; allowed: a whole number, at least 1"),
    (launch(ops=[{"repeat": 2.0, "ops": ["a"]}]), "prices: launch.d.ops[0].repeat", "got 2.0"),
    (launch(ops=[{"repeat": 2, "ops": []}]), "prices: launch.d.ops[0].ops", "got []"),
    (launch(ops=LOOP), "prices: launch.d.ops[1].ops[1].ops", "ops are nested deeper than 32 levels; does a list contain itself?"),
    (launch(inputs_bytes=-1), "prices: launch.d.inputs_bytes", "got -1; allowed: bytes, at least 0"),
    (launch(inputs_bytes={"us": 1}), "prices: launch.d.inputs_bytes", "unknown key 'us'; allowed: at, by, bytes, per, quantiles"),
    (launch(inputs_bytes=64), "prices", "launch.d.inputs_bytes is a copy: add h2d = { latency_us = ..., gb_per_s = ... } to [machine]"),
    (launch(result_bytes=0), "prices", "launch.d.result_bytes is a copy: add d2h"),
    # graphs
    (launch(graph={}), "prices: launch.d.graph", "the key 'host_us' is missing"),
    (launch(graph={"host_us": 1, "device_us": 1}), "prices: launch.d.graph", "unknown key 'device_us'"),
    (launch(graph={"host_us": 1, "update": ["b"]}), "prices: launch.d.graph.update[0]", "unknown operator 'b'; known: a"),
    (launch(graph={"host_us": 1, "update": "a"}), "prices: launch.d.graph.update", "got 'a'; allowed: a list of operators of this launch"),
    # operators
    (op(device_us=-1), "prices: op.a.device_us", "got -1; allowed: microseconds, at least 0"),
    (mapping(op={"a": {}}), "prices: op.a", "the key 'device_us' is missing, here and in op.default; got none"),
    (mapping(op={"default": {"device_us": -2}, "a": {}}), "prices: op.default.device_us", "got -2"),
    (mapping(op={"default": {"stream": "s"}, "a": {"device_us": 1}}), "prices: op.default", "unknown key 'stream'"),
    (op(hots_us=1), "prices: op.a", "unknown key 'hots_us' (did you mean 'host_us'?); allowed: aicpu_us, device_us, host_us, launcher_us"),
    (op(stream=""), "prices: op.a.stream", "got ''; allowed: the name of a stream that is no copy engine"),
    (op(stream="h2d"), "prices: op.a.stream", "got 'h2d'"),
    (op(stream=1), "prices: op.a.stream", "got 1; allowed: text"),
    (op(waits="b"), "prices: op.a.waits", "got 'b'; allowed: a list of operators"),
    (op(waits=["b"]), "prices: launch.d.ops[0]", "'a' waits for 'b', which does not come before it"),
    (op(waits=["a"]), "prices: launch.d.ops[0]", "'a' waits for 'a', which does not come before it"),
    (mapping(op={"a": {"device_us": 1}, "h2d": {"device_us": 1}}), "prices: op.h2d", "which is a copy's"),
    # placements
    (op(tiling="aicpu"), "prices: op.a.tiling", "unknown placement of this operator 'aicpu'; allowed: host-shape"),
    (op(tiling=3), "prices: op.a.tiling", "unknown placement of this operator 3"),
    (op(placement={"aicpu": {}}), "prices: op.a", "the key 'tiling' is missing, and host-shape is not listed; listed: aicpu"),
    (
        op(placement={"ai-cpu": {}}),
        "prices: op.a.placement",
        "unknown key 'ai-cpu' (did you mean 'aicpu'?); allowed: aicpu, device-metadata, h",
    ),
    (op(placement={"host-shape": {"device_us": 1}}), "prices: op.a.placement.host-shape", "unknown key 'device_us'; allowed: tiling_us"),
    (op(placement={"host-shape": 3}), "prices: op.a.placement.host-shape", "got 3; allowed: a table"),
    (
        op(placement={"host-shape": {}, "device-metadata": {"op": {"host_us": 1}}}),
        "prices: op.a.placement.device-metadata.op",
        "the key 'device_us' is missing; got 'host_us'",
    ),
    (op(placement={"host-shape": {}, "host-value": {}}), "prices", "op.a.placement.host-value is a copy: add d2h"),
    # the machine
    (machine(core=8), "prices: machine", "unknown key 'core' (did you mean 'cores'?)"),
    (machine(cores=0), "prices: machine.cores", "got 0; allowed: a whole number, at least 1"),
    (machine(cores=1.5), "prices: machine.cores", "got 1.5"),
    (machine(cores=True), "prices: machine.cores", "got True"),
    (machine(gil=True), "prices: machine.gil", "got True; allowed: a table"),
    (machine(gil={"handoff_us": 1}), "prices: machine.gil", "the key 'switch_us' is missing"),
    (machine(gil={"switch_us": 0}), "prices: machine.gil.switch_us", "got 0; allowed: microseconds, at least 0.001"),
    (machine(gil={"switch_us": 1, "share": {"plans": 1}}), "prices: machine.gil.share", "unknown key 'plans' (did you mean 'plan'?)"),
    (machine(gil={"switch_us": 1, "share": {"plan": 2}}), "prices: machine.gil.share.plan", "got 2; allowed: a share, from 0 to 1"),
    (machine(gil={"switch_us": 1, "share": {"plan": {"gil": 1, "parts": 0}}}), "prices: machine.gil.share.plan.parts", "got 0"),
    (machine(queue={"levels": 1}), "prices: machine.queue", "unknown key 'levels' (did you mean 'level'?); allowed: device, level, task"),
    (machine(queue={"level": 3}), "prices: machine.queue.level", "unknown task queue level 3; allowed: 0, 1, 2"),
    (machine(queue={"level": True}), "prices: machine.queue.level", "unknown task queue level True"),
    (machine(queue={"task": 0}), "prices: machine.queue.task", "got 0; allowed: a whole number, at least 1"),
    (machine(queue={"device": -1}), "prices: machine.queue.device", "got -1"),
    (machine(h2d={"latency_us": 1}), "prices: machine.h2d", "the key 'gb_per_s' is missing; got 'latency_us'"),
    (machine(h2d={"latency_us": 1, "gb_per_s": 0}), "prices: machine.h2d.gb_per_s", "got 0; allowed: GB/s, more than 0"),
    (machine(d2h={"latency_us": -1, "gb_per_s": 1}), "prices: machine.d2h.latency_us", "got -1"),
    (machine(d2h={"latency_us": 1, "gb_per_s": 1, "pinned": 1}), "prices: machine.d2h.pinned", "got 1; allowed: true or false"),
    (machine(launch_latency_us="10"), "prices: machine.launch_latency_us", "got '10'; allowed: a finite number"),
    (machine(aicpu_workers=0), "prices: machine.aicpu_workers", "got 0"),
    (
        machine(streams="share"),
        "prices: machine.streams",
        "unknown way of streams 'share' (did you mean 'shared'?); allowed: beside, shared",
    ),
    # the rest
    (mapping(calibration={"self_reply": 1}), "prices: calibration", "unknown key 'self_reply' (did you mean 'self_replay'?)"),
    (mapping(calibration={"held_out": "1 %"}), "prices: calibration.held_out", "got '1 %'; allowed: a finite number"),
    (mapping(calibration={"trace_sha256": "abc"}), "prices: calibration.trace_sha256", "got 'abc'; allowed: the SHA-256 of a file, 64"),
    (op(source=3), "prices: op.a.source", "got 3; allowed: text"),
]


@pytest.mark.parametrize(("content", "place", "why"), CASES)
def test_a_wrong_file_is_refused_with_place_value_and_what_is_allowed(content: dict[str, Any], place: str, why: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load_prices(content)
    assert str(caught.value).startswith(place)
    assert why in str(caught.value)


def test_what_the_wrong_files_are_made_of_is_right() -> None:
    """Every case is wrong for its own reason alone."""
    for right in (
        mapping(),
        launch(),
        op(),
        machine(),
        mapping(calibration={}),
        op(source="x"),
        launch(graph={"host_us": 1, "update": ["a"]}),
    ):
        assert load_prices(right).launches["d"].ops[0].name == "a"


def test_a_launch_of_too_many_operators_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovsdk.backends.sim.operators.MOST_OPS", 100)
    many = launch(ops=[{"repeat": 10**12, "ops": ["a"]}])
    with pytest.raises(ProfileError, match=r"prices: launch.d.ops: got .*; allowed: at most 100 operators, repeats counted"):
        load_prices(many)
    assert len(load_prices(launch(ops=[{"repeat": 100, "ops": ["a"]}])).launches["d"].ops) == 100 < MOST_OPS


def test_reading_changes_nothing_in_a_mapping() -> None:
    content = launch(features={"batch": 8}, ops=["a", {"repeat": 2, "ops": ["a"]}])
    before = copy.deepcopy(content)
    assert load_prices(content).launches["d"].features == {"batch": 8}
    assert content == before
