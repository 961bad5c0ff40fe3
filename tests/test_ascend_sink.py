"""The switch that sinks tilings to the AICPU: set where every gate is open, refused at each with a remedy. Without CANN none has sunk."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ovsdk.backends.ascend.emulator import SOCS
from ovsdk.backends.ascend.sink import GATES, OPTION, Own, Sink, switch
from ovsdk.tiling.table import table

from .emulation import run_emulated

NPU = {"soc": "Ascend910B3", "cann": "9.1.0", "emulated": False}
ATTENTION = "FusedInferAttentionScore"
MINE = Own("MyAdd", aicpu=True, fused=True)


def config(mode: Any = "max-autotune", **options: Any) -> Any:
    """What the gates see of a torchair.CompilerConfig."""
    options = options or {"tiling_schedule_optimize": False}
    return SimpleNamespace(mode=SimpleNamespace(value=mode), experimental_config=SimpleNamespace(**options))


def is_set(config: Any) -> bool:
    return bool(getattr(config.experimental_config, "tiling_schedule_optimize", False))


def asked(operator: str | Own = ATTENTION, on: Any = None, *, static: bool = True, **facts: Any) -> tuple[bool, Sink]:
    on = config() if on is None else on
    sink = switch(on, [operator], static=static, facts={**NPU, **facts})
    return is_set(on), sink


@pytest.mark.parametrize("operator", [ATTENTION, "incre_flash_attention", "nsa_compress_attention_infer", MINE])
@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend910B4", "Ascend910_9391"])
def test_where_all_gates_are_open_it_is_set(operator: str | Own, soc: str) -> None:
    assert asked(operator, soc=soc) == (True, Sink((operator if isinstance(operator, str) else operator.name,), ()))


CLOSED: dict[str, tuple[Callable[[], tuple[bool, Sink]], str]] = {
    "torchair": (lambda: asked(on=config(frozen_parameter=True)), "has no experimental_config.tiling_schedule_optimize: give a torchair"),
    "mode": (lambda: asked(on=config("reduce-overhead")), "in mode 'reduce-overhead' .* set config.mode = 'max-autotune'"),
    "static": (lambda: asked(static=False), "dynamic=False, or .*mark_static"),
    "SoC": (lambda: asked(soc="Ascend310P3"), "Ascend310P3 does not sink .* tile by device-metadata"),
    "GE": (lambda: asked(emulated=True), "an emulated NPU has none; run it on an NPU with CANN"),
    "AICPU": (lambda: asked("ReduceSum"), "the tiling of ReduceSum is registered for the host alone.* keep them on the host, or tile by"),
    "fused": (lambda: asked(Own("MyAdd", aicpu=True, fused=False)), "MyAdd is not fused .*KERNEL_TASK_TYPE_DEFAULT"),
}


def test_every_gate_has_a_case() -> None:
    assert [gate.name for gate in GATES] == list(CLOSED)


@pytest.mark.parametrize("gate", CLOSED)
def test_each_gate_alone_keeps_it_off_and_says_what_to_do(gate: str) -> None:
    closed, told = CLOSED[gate]
    is_on, sink = closed()
    assert (is_on, sink.operators, len(sink.refusals)) == (False, (), 1)
    assert re.search(told, sink.refusals[0]), sink.refusals[0]


@pytest.mark.parametrize("facts", [{"cann": None}, {"cann": ""}, {"soc": "Ascend950PR_9599"}, {"soc": "Ascend910A"}])
def test_unknown_or_missing_is_closed(facts: dict[str, Any]) -> None:
    assert asked(**facts)[0] is False


def test_no_facts_are_closed() -> None:
    sink = switch(config(), [ATTENTION], static=True, facts={})
    assert (sink.operators, len(sink.refusals)) == ((), 2)


def test_an_operator_that_sinks_is_enough_and_the_others_are_told() -> None:
    on = config()
    sink = switch(on, ["ReduceSum", ATTENTION, "MatMul", "Tile", "Add"], static=True, facts=NPU)
    assert is_set(on)
    assert sink.operators == (ATTENTION,)
    assert [word in told for word, told in zip(("ReduceSum", "Tile", "MatMul, Add"), sink.refusals, strict=True)] == [True] * 3


def test_what_the_graph_lacks_is_told_once() -> None:
    sink = switch(config("npugraph_ex"), [ATTENTION, "IncreFlashAttention"], static=False, facts=NPU)
    assert len(sink.refusals) == 2


def test_a_refusal_changes_nothing() -> None:
    for before in (True, False):
        on = config(tiling_schedule_optimize=before)
        assert switch(on, ["ReduceSum"], static=True, facts=NPU).operators == ()
        assert is_set(on) is before


def test_operators_that_sink_are_those_of_the_table() -> None:
    on = config()
    names = {row.op for row in table()}
    assert set(switch(on, sorted(names), static=True, facts=NPU).operators) == {row.op for row in table() if row.sinks}


def test_only_known_kinds_of_the_emulators_socs_sink() -> None:
    """Atlas A2 and A3; not the 310P, nor the 950."""
    assert [soc for soc in SOCS if asked(soc=soc)[0]] == ["Ascend910B3", "Ascend910_9391"]


# ---- torchair's own configuration ----


@pytest.fixture
def torchair(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The configuration of the wheel's torchair, without the rest, which loads libraries of CANN."""
    monkeypatch.setitem(os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        pytest.skip("torchair comes with torch_npu: pip install torch-npu==2.13.0")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torchair needs torch")
    bare = ModuleType("torchair")
    bare.__path__ = [str(Path(spec.origin).parent / "dynamo/torchair")]
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchair"}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    sys.modules["torchair"] = bare
    yield importlib.import_module("torchair.configs.compiler_config")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchair"]:
        del sys.modules[name]


def passed_on(config: Any) -> str | None:
    """What GE is told, or None: nothing."""
    option: str | None = config.as_dict()[0].get("ge.tiling_schedule_optimize")
    return option


def test_torchair_passes_the_switch_on_to_ge(torchair: Any) -> None:
    on = torchair.CompilerConfig()
    assert passed_on(on) == "0"
    assert switch(on, [ATTENTION], static=True, facts=NPU) == Sink((ATTENTION,), ())
    assert passed_on(on) == "1"


@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_in_other_modes_torchair_passes_nothing_on(torchair: Any, mode: str) -> None:
    """So a switch would be of no effect, and that is told."""
    on = torchair.CompilerConfig()
    on.mode = mode
    sink = switch(on, [ATTENTION], static=True, facts=NPU)
    assert f"in mode '{mode}'" in sink.refusals[0]
    on.experimental_config.tiling_schedule_optimize = True
    assert passed_on(on) is None


def test_the_option_is_where_we_say(torchair: Any) -> None:
    names = [name for name, _ in torchair.unsupport_aclgraphconfig_list]
    assert OPTION in names


# ---- on the emulated NPU ----


@pytest.mark.timeout(900)
def test_on_the_emulated_npu() -> None:
    run_emulated("test_sink.py")
