"""The switch for tiling sink on the emulated NPU: refused, for it has no graph engine; and the whole of torchair needs CANN to load."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch  # noqa: F401 (before torch_npu: activates the emulator)
import torch_npu  # noqa: F401 (torchair is in it)

import ovsdk


def test_an_emulated_npu_sinks_nothing() -> None:
    config = SimpleNamespace(mode="max-autotune", experimental_config=SimpleNamespace(tiling_schedule_optimize=False))
    with ovsdk.open_backend("ascend") as npu:
        sink = npu.sink(config, ["FusedInferAttentionScore"], static=True)
    assert sink.operators == ()
    (told,) = sink.refusals  # the SoC and all else would do
    assert "an emulated NPU has none" in told
    assert config.experimental_config.tiling_schedule_optimize is False


def test_torchair_as_a_whole_cannot_be_imported_without_cann() -> None:
    """So GE graphs are not run here. If this fails, torchair loads now: then try its CompilerConfig as it is."""
    with pytest.raises(ImportError):
        importlib.import_module("torch_npu.dynamo.torchair")
