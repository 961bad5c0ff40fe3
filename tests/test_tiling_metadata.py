"""Tilings by torch operators: the host's record number for number, and never a wait for the device.

`NoSync` refuses what a real device would have to wait for; it watches real values, fake ones and none at all (meta), for each sees
something that the others do not. Simulated, not measured: no device is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk.errors import TilingError
from ovsdk.tiling.operator import operator_named
from ovsdk.tiling.platform import PLATFORMS
from ovsdk.tiling.spec import FAULT, tiling_spec

from .emulation import run_emulated as check_emulated
from .tiling_draws import EVERY, Case, damaged, split_kv

torch = pytest.importorskip("torch", reason="the torch forms need torch: pip install 'ovsdk[torch]'")
metadata = pytest.importorskip("ovsdk.tiling.metadata", reason="the torch forms need torch")
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402


class Waits(Exception):
    """The host would wait for the device here, or send it something."""


READS = torch.Tag.data_dependent_output
GROWS = torch.Tag.dynamic_output_shape
FROM_HOST = {"aten::lift_fresh", "aten::lift", "aten::_to_copy", "aten::copy_"}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class NoSync(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Every tensor counts as one on the device. Raises Waits for an operator whose result the host must read, or whose shape depends on
    values; for a mask as an index; for tensors made of what the host has, and for copies between devices.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, tensors = func._schema.name, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        masks = name in INDEXING and any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
        crosses = name in FROM_HOST and (name.startswith("aten::lift") or bool((kwargs or {}).get("device")))
        if masks or crosses or READS in func.tags or (GROWS in func.tags and name not in INDEXING) or len({t.device for t in tensors}) > 1:
            raise Waits(f"{func}: {[tuple(t.shape) for t in tensors]}")
        return func(*args, **(kwargs or {}))


Form = Callable[[Tensor], Any]
Make = Callable[[str], Form]
"""Prepares a form for a device: then it may copy."""


def really(make: Make, values: Tensor) -> None:
    form = make("cpu")
    with NoSync():
        form(values)


def faked(make: Make, values: Tensor) -> None:
    with FakeTensorMode() as mode:
        form, fake = make("cpu"), mode.from_tensor(values)
        with NoSync():
            form(fake)


def on_meta(make: Make, values: Tensor) -> None:
    form, nothing = make("meta"), values.to("meta")
    with NoSync():
        form(nothing)


WAYS = (really, faked, on_meta)


# ---- the record ----


def check_equal(case: Case, dtype: Any) -> None:
    form = metadata.prepare(case.op, case.op.read(case.spec, case.platform), "cpu")
    record = form(torch.tensor(case.values, dtype=dtype))
    assert (record.dtype, record.device.type) == (torch.int64, "cpu")
    assert record.tolist() == case.derived()


@pytest.mark.parametrize("name", EVERY)
def test_the_record_is_the_host_s(name: str) -> None:
    @given(EVERY[name], st.sampled_from([torch.int32, torch.int64]))
    def check(case: Case, dtype: Any) -> None:
        check_equal(case, dtype)

    check()


@given(st.one_of([damaged(case) for case in EVERY.values()]))
def test_the_record_of_a_fault_is_the_host_s(case: Case) -> None:
    check_equal(case, torch.int64)


@given(st.one_of(list(EVERY.values())))
def test_a_form_is_prepared_once(case: Case) -> None:
    """Values of one step leave nothing behind for the next."""
    form = metadata.prepare(case.op, case.op.read(case.spec, case.platform), "cpu")
    first, zeros = torch.tensor(case.values, dtype=torch.int64), torch.zeros(len(case.values), dtype=torch.int64)
    before = form(first).tolist()
    form(zeros)
    assert form(first).tolist() == before


# ---- no synchronisation ----


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EVERY)
def test_no_form_waits_for_the_device(name: str, way: Callable[[Make, Tensor], None]) -> None:
    @settings(max_examples=20)
    @given(damaged(EVERY[name]))
    def check(case: Case) -> None:
        a = case.op.read(case.spec, case.platform)
        way(lambda device: metadata.prepare(case.op, a, device), torch.tensor(case.values, dtype=torch.int64))

    check()


WAITING: dict[str, Form] = {
    "item": lambda v: v.sum().item(),
    "int": lambda v: torch.arange(int(v[0]), device=v.device),
    "if": lambda v: v if v[0] > 0 else -v,
    "tolist": lambda v: v.tolist(),
    "numpy": lambda v: np.asarray(v),
    "iterate": lambda v: [int(one) for one in v],
    "range": lambda v: v[: v[0]],
    "mask": lambda v: v[v > 1],
    "assign by mask": lambda v: v.clone().__setitem__(v > 1, 0),
    "put by mask": lambda v: v.clone().index_put_((v > 1,), v[:1]),
    "nonzero": lambda v: v.nonzero(),
    "where": lambda v: torch.where(v > 1),
    "masked_select": lambda v: v.masked_select(v > 1),
    "unique": lambda v: v.unique(),
    "repeat_interleave": lambda v: v.repeat_interleave(v),
    "bincount": lambda v: v.bincount(),
    "equal": lambda v: torch.equal(v, v + 1),
    "from a list": lambda v: v + torch.tensor([1, 2, 3], device=v.device),
    "from a number": lambda v: v + torch.tensor(1),
    "to the host": lambda v: v.to("cpu").sum(),
}
"""Whatever would wait, as a form could do it."""


@pytest.mark.parametrize("what", WAITING)
def test_what_waits_is_noticed(what: str) -> None:
    """By one of the three at least."""
    noticed = 0
    for way in WAYS:
        try:
            way(lambda _: WAITING[what], torch.tensor([1, 2, 3]))
        except (Waits, RuntimeError, NotImplementedError, TypeError, ValueError):
            noticed += 1
    assert noticed


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_wait_is_let_through(way: Callable[[Make, Tensor], None]) -> None:
    seen: list[int] = []

    def form(v: Tensor) -> Tensor:
        seen.append(len(v))
        return torch.where(v > 1, v, 0).cumsum(0)[v.clamp(max=2)] + v.new_full((), 7) + v[0]

    way(lambda _: form, torch.tensor([1, 2, 3]))
    assert seen == [3]


@pytest.mark.timeout(900)
def test_on_the_emulated_npu() -> None:
    """There it is torch_npu's own tracer that is asked."""
    check_emulated("test_tiling_forms.py", task_queue=1)


# ---- refusals ----


def test_operators_without_a_form_are_refused() -> None:
    op = operator_named("elementwise")
    with pytest.raises(TilingError, match=r"elementwise has no torch form .* split_kv"):
        metadata.prepare(op, op.read(tiling_spec("elementwise", [(8,)]), PLATFORMS["910B3"]), "cpu")


@given(split_kv(exact=1))
def test_the_exact_search_is_refused(case: Case) -> None:
    with pytest.raises(TilingError, match="exact=1 is a search"):
        metadata.prepare(case.op, case.args, "cpu")


def test_a_record_of_a_fault_launches_nothing() -> None:
    op, spec = operator_named("split_kv"), tiling_spec("split_kv", [(2, 8, 64), (2, 100, 1, 64)], capacity=2)
    form = metadata.prepare(op, op.read(spec, PLATFORMS["910B3"]), "cpu")
    record = form(torch.tensor([7, 101]))
    assert record[FAULT] == 2
    assert record.abs().sum() == 2 + 1  # and AT: the second length
