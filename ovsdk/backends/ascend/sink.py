"""The switch of torchair that lets an operator's tiling sink to the device's AICPU, and the gates before it.

In a graph that GE runs, an operator whose tiling depends on values on the device makes the host wait for them, unless its tiling is
registered for the AICPU as well and sinks. torchair's name for that is `CompilerConfig.experimental_config.tiling_schedule_optimize`
(False); in mode "max-autotune" alone it becomes GE's compile option `ge.tiling_schedule_optimize`, "1" or "0". torchair does not look
whether anything can sink: where a gate is closed, GE tiles on the host without a word. So all gates are in one table, GATES.

From torchair's Python files in torch_npu 2.13.0 and from GE's public documents. Neither has been run: GE is part of CANN. Not looked at,
because only GE can: whether the device can update tasks of both kinds of cores (GE asks the runtime), and operators in a scope of
`torchair.scope.op_never_timeout`, which do not sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ...errors import TilingError
from ...tiling.table import find

OPTION = "experimental_config.tiling_schedule_optimize"
MODE = "max-autotune"
SOCS = ("Ascend910B", "Ascend910_93")
"""How the names of the SoCs begin that sink: Atlas A2 and A3. For the 950 CANN's documents contradict each other."""


class Own(NamedTuple):
    """An operator that is not in ovsdk's table, such as one of yours (`ovsdk tile emit OP --target aicpu`)."""

    name: str
    aicpu: bool
    """Whether its tiling is registered for the AICPU: `TILING_ON_AICPU`, or `DEVICE_IMPL_OP_OPTILING` in a library of its own."""
    fused: bool
    """Whether its kernel uses cube and vector cores."""


class Sink(NamedTuple):
    """What became of the switch: it is set if there is something in `operators`."""

    operators: tuple[str, ...]
    """Whose tiling sinks, as far as can be seen before GE compiles the graph."""
    refusals: tuple[str, ...]
    """Why the others' does not, and what to do."""


class Around(NamedTuple):
    """What the gates look at besides the operator."""

    offered: bool
    """Whether the configuration has the option."""
    mode: str
    static: bool
    soc: str
    ge: bool
    """Whether there is a graph engine."""


class Gate(NamedTuple):
    """A condition, and what is said where it does not hold: filled in from `around` and `operator`."""

    name: str
    holds: Callable[[Around, Own], bool]
    refusal: str


GATES = (
    Gate(
        "torchair",
        lambda around, operator: around.offered,
        f"this configuration has no {OPTION}: give a torchair.CompilerConfig, that of torch_npu 2.13 for one",
    ),
    Gate(
        "mode",
        lambda around, operator: around.mode == MODE,
        f"in mode {{around.mode!r}} torchair does not pass the option on, for no graph of GE is made: set config.mode = {MODE!r}, or keep "
        "the mode and tile by device-metadata, or update host lists (`host_lists`)",
    ),
    Gate(
        "static",
        lambda around, operator: around.static,
        "only static graphs sink, and this one has dynamic shapes: compile with dynamic=False, or with dynamic=True and "
        "torch._dynamo.mark_static on every tensor, so that nothing but lists of lengths changes",
    ),
    Gate(
        "SoC",
        lambda around, operator: around.soc.startswith(SOCS),
        "{around.soc} does not sink tilings as far as is known (Atlas A2 and A3 do): tile by device-metadata or in-kernel",
    ),
    Gate(
        "GE",
        lambda around, operator: around.ge,
        "there is no graph engine (GE) here: it is part of CANN, and an emulated NPU has none; run it on an NPU with CANN",
    ),
    Gate(
        "AICPU",
        lambda around, operator: operator.aicpu,
        "the tiling of {operator.name} is registered for the host alone, and waits for its values: keep them on the host, or tile by "
        "device-metadata or in-kernel; `ovsdk tile ops` shows which operators sink",
    ),
    Gate(
        "fused",
        lambda around, operator: operator.fused or not operator.aicpu,
        "{operator.name} is not fused (cube and vector cores in one kernel), and GE sinks no others: declare its kernel as a mixed one "
        "(KERNEL_TASK_TYPE_DEFAULT)",
    ),
)
"""All must hold for the tiling of an operator to sink."""


def switch(config: Any, operators: Iterable[str | Own], *, static: bool, facts: Mapping[str, Any]) -> Sink:
    """Set the switch in torchair's `config` if the tiling of one of these operators can sink; else leave `config` as it is.

    operators: those of the graph, by their names in GE or in ovsdk's table. static: whether no shape in it is dynamic. facts: of
    `Capabilities`. Nothing is raised: what is refused is told.
    """
    around, known = _around(config, static, facts), {one: _known(one) for one in operators}
    refused = {own.name: _refusals(around, own) for own in known.values() if own is not None}
    sinking = tuple(name for name, why in refused.items() if not why)
    if sinking:
        config.experimental_config.tiling_schedule_optimize = True
    told = dict.fromkeys(why for each in refused.values() for why in each)
    return Sink(sinking, (*told, *_unknown([str(one) for one, own in known.items() if own is None])))


def _around(config: Any, static: bool, facts: Mapping[str, Any]) -> Around:
    mode = getattr(config, "mode", "")
    return Around(
        hasattr(getattr(config, "experimental_config", None), OPTION.rpartition(".")[2]),
        str(getattr(mode, "value", mode)),
        static,
        str(facts.get("soc", "an unknown SoC")),
        bool(facts.get("cann")) and not facts.get("emulated"),
    )


def _known(operator: str | Own) -> Own | None:
    """What is known of an operator. Those of the table that sink are attention: products and softmax in one kernel."""
    if isinstance(operator, Own):
        return operator
    try:
        sinks = any(row.sinks for row in find(operator))
    except TilingError:  # not in the table
        return None
    return Own(operator, aicpu=sinks, fused=sinks)


def _refusals(around: Around, operator: Own) -> list[str]:
    return [gate.refusal.format(around=around, operator=operator) for gate in GATES if not gate.holds(around, operator)]


def _unknown(names: list[str]) -> tuple[str, ...]:
    if not names:
        return ()
    either = "Either it needs none, and nobody waits; or it is newer or your own, then give it as Own(name, aicpu=..., fused=...)"
    return (f"not in the table of operators whose tiling needs values: {', '.join(names)}. {either}",)
