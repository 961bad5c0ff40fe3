"""The emulated NPU: its streams, events, graphs, times and faults, through the real torch_npu; and the ways to get it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import attrs
import pytest

from ovsdk.backends.ascend import emulator
from ovsdk.backends.ascend.emulator import Figures, Options, build, figures
from ovsdk.backends.sim.prices import load_prices
from ovsdk.errors import ConfigError, CostUnknown

from .emulation import emulated, needs_emulator, run_emulated

PYTHON = sys.executable


def on_emulator(function):
    """A test that needs the emulator itself."""
    for mark in needs_emulator:
        function = mark(function)
    return function


# ---- test files that run on it ----

STREAMS, GRAPHS, ERRORS = "test_streams.py", "test_replays.py", "test_errors.py"


@on_emulator
@pytest.mark.parametrize(("level", "files"), [(0, (STREAMS, GRAPHS, ERRORS)), (1, (STREAMS, GRAPHS)), (2, (STREAMS,))])
def test_it_at_each_level_of_the_task_queue(level: int, files: tuple[str, ...]) -> None:
    """Graphs cannot be captured at level 2; a fault is raised by the call that has it at level 0 alone."""
    run_emulated(*files, task_queue=level, devices=2)


@on_emulator
def test_its_time() -> None:
    run_emulated("test_time.py")


@on_emulator
def test_lifetimes() -> None:
    run_emulated("test_poison.py", task_queue=1, poison=True)


# ---- ways to it ----


@on_emulator
def test_a_command_runs_with_its_exit_code_and_is_told_once() -> None:
    done = emulated("sh", "-c", "echo $TORCH_DEVICE_BACKEND_AUTOLOAD $TASK_QUEUE_ENABLE; exit 7", task_queue=2)
    assert (done.returncode, done.stdout) == (7, "0 2\n")
    assert done.stderr.count("EMULATED NPU (1 x Ascend910B3, 2 GB each") == 1


@on_emulator
def test_a_command_that_is_not_there_is_misuse() -> None:
    done = emulated("no-such-command-here")
    assert done.returncode == 2
    assert "no command 'no-such-command-here'" in done.stderr


LOADED = "import sys; print(any('ovsdk' in name for name in sys.modules), 'torch' in sys.modules)"


@on_emulator
def test_a_python_that_imports_no_torch_is_left_alone(tmp_path: Path) -> None:
    assert emulated(PYTHON, "-c", LOADED).stdout == "False False\n"


@on_emulator
def test_looking_for_torch_is_not_importing_it() -> None:
    find = "import importlib.util, sys; print(importlib.util.find_spec('torch') is not None, 'ovsdk' in sys.modules)"
    assert emulated(PYTHON, "-c", find).stdout == "True False\n"


@on_emulator
def test_the_sitecustomize_that_was_there_is_imported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = emulated(PYTHON, "-c", "import sys; print(sys.modules['sitecustomize'].__file__)")
    assert done.stdout == f"mine\nmine\n{tmp_path}/sitecustomize.py\n"  # by `ovsdk emulate` and by its command


ACTIVATED = """
from ovsdk.backends.ascend import emulator
assert emulator.active() is None
npu = emulator.activate()
assert emulator.activate() is npu is emulator.active()
try:
    emulator.activate(emulator.Options(devices=5))
except emulator.ConfigError as error:
    print(error)
print(npu)
"""


@on_emulator
def test_a_process_has_one_emulated_machine() -> None:
    done = emulated(PYTHON, "-c", ACTIVATED, devices=3, soc="Ascend310P3")
    assert "emulated already" in done.stdout.splitlines()[0]
    assert "devices=3" in done.stdout.splitlines()[1]
    assert "Ascend310P3" in done.stdout.splitlines()[1]


def test_it_must_come_before_torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", sys)
    with pytest.raises(ConfigError, match="torch_npu is imported already"):
        emulator.activate()


def test_options_survive_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    priced = Figures({"aclnnMm": (5.0, 1.0)}, {"memcpy_h2d": (1.0, 2.0)}, {"lead_ns": 3})
    options = Options(devices=2, task_queue=1, poison=True, figures=priced)
    for name, value in options.environment().items():
        monkeypatch.setenv(name, value)
    restored = emulator._inherited()
    assert json.dumps(attrs.asdict(restored)) == json.dumps(attrs.asdict(options))
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0].endswith("emulator/site")


@pytest.mark.parametrize("wrong", [{"devices": 0}, {"devices": 9}, {"memory_gb": 0}, {"task_queue": 3}, {"cube_cores": 0}])
def test_machines_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Options(**wrong)


# ---- building ----


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path))
    build._compiler_version.cache_clear()
    try:
        with pytest.raises(ConfigError, match="no-such-compiler"):
            build.build()
    finally:
        build._compiler_version.cache_clear()


@on_emulator
def test_what_does_not_compile_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path))
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text("int f() { return nothing_of_that_name; }")
    with pytest.raises(ConfigError, match="nothing_of_that_name"):
        build._shared(build.Library("libwrong.so", (wrong,)))
    assert [file.name for file in (tmp_path / "emulated-npu").iterdir()] == []


@on_emulator
def test_a_library_is_named_by_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path))
    source = tmp_path / "right.cpp"
    source.write_text('extern "C" int one() { return 1; }')
    library = build.Library("libright.so", (source,))
    first = build._shared(library)
    stamp = first.stat().st_mtime_ns
    assert build._shared(library) == first
    assert first.stat().st_mtime_ns == stamp
    source.write_text('extern "C" int one() { return 2; }')
    assert build._shared(library) != first


# ---- figures of a price file ----

PRICES = {
    "schema": 1,
    "machine": {"h2d": {"latency_us": 8, "gb_per_s": 20}, "launch_latency_us": 10, "aicpu_workers": 3, "streams": "shared"},
    "launch": {"decode": {"features": {"kv_tokens": 100}, "ops": ["attention", "reduce", "drawn"]}},
    "op": {
        "attention": {"device_us": {"by": "kv_tokens", "at": [[0, 10], [200, 30]]}, "aicpu_us": 2},
        "reduce": {"device_us": 5, "tiling": "in-kernel", "placement": {"in-kernel": {"device_us": 1.5}}},
        "drawn": {"device_us": {"quantiles": [[0.1, 1], [0.9, 2]]}},
    },
}


def test_a_price_file_prices_the_operators_that_play_its_own() -> None:
    found = figures(load_prices(PRICES), {"attention": "aclnnMm", "reduce": "aclnnReduceSum"})
    assert found.latencies == {"aclnnMm": (20.0, 2.0), "aclnnReduceSum": (6.5, 0.0)}
    assert found.copies == {"memcpy_h2d": (8.0, 20.0)}
    assert found.machine == {"launch_latency_ns": 10_000, "aicpu_workers": 3, "queue_capacity": 1024, "shared_cores": 1}
    assert figures(load_prices(PRICES), {"attention": "aclnnMm"}, {"kv_tokens": 200}).latencies == {"aclnnMm": (30.0, 2.0)}


@pytest.mark.parametrize(
    ("operators", "says"),
    [
        ({"atention": "aclnnMm"}, "did you mean 'attention'"),
        ({"drawn": "aclnnMm"}, "drawn"),
        ({"attention": "a", "reduce": "a"}, "two prices"),
    ],
)
def test_prices_that_cannot_be_played_are_refused(operators: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        figures(load_prices(PRICES), operators)


def test_features_outside_a_table_are_refused() -> None:
    with pytest.raises(CostUnknown, match="kv_tokens"):
        figures(load_prices(PRICES), {"attention": "aclnnMm"}, {"kv_tokens": 500})


PRICED = "from ovsdk.backends.ascend import emulator; print(emulator.activate().options.figures)"


@on_emulator
def test_prices_reach_child_processes() -> None:
    done = emulated(PYTHON, "-c", PRICED, prices="longcat-flash-b8-4k", operator="sample=aclnnArgMax", latency="aclnnAdd=3")
    assert "'aclnnArgMax': [1700.0, 0.0]" in done.stdout
    assert "'aclnnAdd': [3.0, 0.0]" in done.stdout


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"prices": "longcat-flash-b8-4k"}, "--prices needs --operator"),
        ({"latency": "aclnnAdd"}, "NAME=VALUE"),
        ({"latency": "a=b"}, "microseconds"),
    ],
)
@on_emulator
def test_figures_that_are_none_are_misuse(flags: dict[str, str], says: str) -> None:
    done = emulated(PYTHON, "-c", "", **flags)
    assert done.returncode == 2
    assert says in done.stderr
