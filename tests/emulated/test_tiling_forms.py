"""The torch forms of tilings on the emulated NPU: the host's record, and torch_npu's tracer tells of no wait. Emulated, not hardware."""

from __future__ import annotations

import random

import pytest
import torch
import torch_npu  # noqa: F401 (torch.npu)

from ovsdk.backends.ascend.syncs import Syncs
from ovsdk.tiling import metadata
from ovsdk.tiling.operator import operator_named, run
from ovsdk.tiling.platform import PLATFORMS
from ovsdk.tiling.spec import TilingSpec, tiling_spec

B3 = PLATFORMS["910B3"]
draw = random.Random(7)
COUNTS = [draw.choice([0, 1, 17, 129]) for _ in range(16)]
ENDS = [sum(COUNTS[: g + 1]) for g in range(16)]
PAIRS = [number for pair in enumerate(COUNTS) for number in pair]
CASES: dict[str, tuple[TilingSpec, list[int]]] = {
    "reduce": (tiling_spec("reduce", [(4, 100, 300)], capacity=3), [-1, 0]),
    "split_kv": (tiling_spec("split_kv", [(33, 16, 64), (33, 4096, 2, 64)], capacity=33), [draw.randint(0, 4096) for _ in range(33)]),
    "split_kv whole": (tiling_spec("split_kv", [(3, 8, 64), (3, 4096, 1, 64)], capacity=3, whole=1), [4096, 0, 700]),
    "ends": (tiling_spec("grouped_matmul", [(ENDS[-1], 64), (16, 64, 4096)], capacity=16, list_type=0), ENDS),
    "counts": (tiling_spec("grouped_matmul", [(ENDS[-1], 64), (16, 64, 4096)], capacity=16), COUNTS),
    "pairs": (tiling_spec("grouped_matmul", [(ENDS[-1], 64), (16, 64, 4096)], capacity=32, list_type=2), PAIRS),
    "repeat": (tiling_spec("repeat", [(16, 7168)], capacity=16, out_rows=ENDS[-1]), COUNTS),
    "gather": (tiling_spec("gather", [(16, 129, 64)], capacity=16), COUNTS),
    "range": (tiling_spec("range", [(9999,)], "int64", 3), [7, -5000, -3]),
    "topk": (tiling_spec("topk", [(3, 40_000)], capacity=1), [50]),
}


def waits(form: metadata.Form, values: torch.Tensor) -> tuple[torch.Tensor, tuple[str, ...]]:
    """What a form gives as a launch, and what the tracer told of."""
    found = Syncs("count")
    record = found.call("tiling", form, (values,), {})
    return record, found.notes()


@pytest.mark.parametrize("name", CASES)
def test_a_form_gives_the_record_and_never_waits(name: str) -> None:
    spec, values = CASES[name]
    op = operator_named(spec.op)
    a = op.read(spec, B3)
    form, on_device = metadata.prepare(op, a, "npu"), torch.tensor(values).npu()
    for _ in range(2):  # the first call of an operator may do more
        record, notes = waits(form, on_device)
        assert notes == ()
        assert record.cpu().tolist() == run(op, [len(values), *a[1:]], values)


def test_a_form_that_waits_is_told_of() -> None:
    _, notes = waits(lambda v: v + int(v[0]), torch.tensor([1, 2]).npu())
    assert len(notes) == 1
    assert "test_tiling_forms.py" in notes[0]
