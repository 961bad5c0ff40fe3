"""The backend `ascend`: the common tests of all backends and its own on the emulated NPU, and what it says where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ovsdk.backends.ascend import probe
from ovsdk.errors import DeviceError, DeviceLost, DeviceMemoryExhausted, DeviceTimeout

from .emulation import PYTEST, emulated

FILES = [f"tests/{name}.py" for name in ("emulated/test_ascend", "test_drivers", "test_one_trace", "test_models")]
SMOLLM2 = "tests/test_identical_tokens.py"
"""At one level: it takes its time."""
OF_ALL = "ascend or amend_gives or abandoned_steps"
"""Tests with the backend's name, and those that have all backends in one."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_all_that_a_backend_must_do_is_done_at_every_level_of_the_task_queue(level: int) -> None:
    command = (sys.executable, "-m", "pytest", *PYTEST, "--timeout=300", "-k", OF_ALL, *FILES, *[SMOLLM2][: level == 1])
    done = emulated(*command, task_queue=level, memory_gb=6)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-4_000:]}"
    assert re.search(r"^\d{3} passed, 1 skipped", done.stdout, re.MULTILINE), done.stdout[-4_000:]


RUN = """
import sys
import numpy, torch, torch_npu
from ovsdk import Launch, open_backend, run
from ovsdk.backends import _streams
from tests.toys import Count

class Engine:
    def prepare(self, step, batch):
        return numpy.full(8, batch, numpy.float32)

    def launch(self, step, inputs):
        return Launch("double", fn=lambda x: x + x, inputs=inputs)

class Deaf:
    def __init__(self, event): self.record, self.query = event.record, event.query
    def wait(self, stream): pass

if "deaf" in sys.argv:  # mutant: nothing waits for the inputs
    events = _streams.DeviceStream._events
    _streams.DeviceStream._events = lambda self: events(self)._replace(arrived=Deaf(torch.npu.Event()))
scheduler = Count(6)
with open_backend("ascend", timeout_s=20) as npu:
    print(run(scheduler, Engine(), npu, depth=3))
print([float(result[0]) for _, _, result in scheduler.seen])
"""
RIGHT = "[2.0, 4.0, 6.0, 8.0, 10.0, 12.0]"


@pytest.mark.timeout(900)
def test_torch_npus_sanitizer_has_nothing_to_say_of_our_transfers_and_something_of_a_mutant() -> None:
    clean, mutant = (emulated("env", "TORCH_NPU_SANITIZER=1", sys.executable, "-c", RUN, *words) for words in ((), ("deaf",)))
    assert RIGHT in clean.stdout, clean.stderr
    assert "CSAN" not in clean.stdout + clean.stderr
    assert "CSAN detected a possible data race" in mutant.stdout + mutant.stderr


@pytest.mark.timeout(900)
def test_launch_blocking_is_told_as_the_reason_why_nothing_overlaps() -> None:
    done = emulated("env", "ASCEND_LAUNCH_BLOCKING=1", sys.executable, "-c", RUN)
    assert RIGHT in done.stdout, done.stderr
    assert "overlap not effective: ascend is not asynchronous: ASCEND_LAUNCH_BLOCKING=1 makes every launch wait" in done.stdout


# ---- where there is no NPU ----

CANN_SO = "lib64/libascendcl.so"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Versions of packages, for the test to set; no runtime is loaded."""
    versions: dict[str, str | None] = {"torch": "2.13.0+cpu", "torch_npu": "2.13.0"}
    monkeypatch.setattr(probe, "_version", lambda package: versions[package])
    monkeypatch.setattr(probe, "_wanted_torch", lambda: "==2.13.0.*")
    monkeypatch.setattr(probe, "runtime_is_loaded", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")
    return versions


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


@pytest.mark.parametrize(
    ("torch", "torch_npu", "says"),
    [
        (None, None, r"torch and torch_npu not installed: pip install 'ovsdk\[ascend\]'"),
        ("2.13.0", None, "^torch_npu not installed"),
        ("2.14.1+cpu", "2.13.0", "torch_npu 2.13.0 needs torch ==2.13.0.*, but torch 2.14.1.* is installed: pip install"),
        ("2.13.0+cu130", "2.13.0", "built for another accelerator, and torch_npu refuses it: install the CPU build"),
    ],
)
def test_packages_that_do_not_fit(bare: dict[str, str | None], tmp_path: Path, torch: str, torch_npu: str, says: str) -> None:
    bare.update(torch=torch, torch_npu=torch_npu)
    assert re.search(says, probe.reason({}, tmp_path) or "")


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.0.post1"])
def test_packages_that_fit(version: str) -> None:
    assert probe._fits(version, "==2.13.0.*")
    assert not probe._fits(version, "==2.1.*")
    assert probe._fits(version, ">=2")  # left to torch_npu


def test_no_runtime_one_off_the_path_and_no_device(bare: dict[str, str | None], tmp_path: Path) -> None:
    home = tmp_path / "usr/local/Ascend/ascend-toolkit/latest"
    loaded = {"LD_LIBRARY_PATH": f"/nowhere{os.pathsep}{home}/lib64"}
    assert re.search(
        "no CANN runtime.*`ovsdk emulate -- COMMAND`.*set TORCH_DEVICE_BACKEND_AUTOLOAD=0, or every", probe.reason({}, tmp_path) or ""
    )
    assert "AUTOLOAD" not in (probe.reason({probe.AUTOLOAD: "0"}, tmp_path) or "")
    touch(home / CANN_SO)
    assert re.search(f"CANN is in {home} but not on the loader's path: source {home}/set_env.sh", probe.reason({}, tmp_path) or "")
    assert re.search("CANN is here, but no NPU .*driver and firmware", probe.reason(loaded, tmp_path) or "")
    touch(tmp_path / "dev/davinci0")
    assert probe.reason(loaded, tmp_path) is None


def test_the_emulated_runtime_will_do_and_so_will_one_that_is_loaded(
    bare: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe.reason({probe.EMULATED: "{}"}, tmp_path) is None
    monkeypatch.setattr(probe, "runtime_is_loaded", lambda: True)
    assert probe.reason({}, tmp_path) is None
    bare["torch_npu"] = None
    assert probe.reason({}, tmp_path)


def test_elsewhere_it_is_for_linux(bare: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "for Linux, this is darwin" in (probe.reason({}, tmp_path) or "")


OPEN = """
import sys
from ovsdk import BackendUnavailable, open_backend
try:
    open_backend("ascend:0")
except BackendUnavailable as error:
    print(error, "torch" in sys.modules, "torch_npu" in sys.modules)
"""


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_opening_without_cann_gives_reason_and_remedy_in_one_message_and_imports_nothing(autoload: str) -> None:
    try:
        metadata.version("torch_npu")
    except metadata.PackageNotFoundError:
        pytest.skip("needs torch_npu: pip install torch-npu==2.13.0")
    if "LD_LIBRARY_PATH" in os.environ or Path("/usr/local/Ascend").exists():
        pytest.skip("there may be a CANN here")
    environ = {key: value for key, value in os.environ.items() if key != probe.EMULATED} | {probe.AUTOLOAD: autoload}
    done = subprocess.run([sys.executable, "-c", OPEN], capture_output=True, text=True, env=environ, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert "backend 'ascend' cannot be opened here" in done.stdout
    assert "no CANN runtime (libascendcl.so)" in done.stdout
    assert "source its set_env.sh; without an NPU run it as `ovsdk emulate -- COMMAND`" in done.stdout
    assert ("set TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stdout) is (autoload == "1")
    assert done.stdout.rstrip().endswith("False False")


# ---- errors ----

ASYNCHRONOUS = """The Inner error is reported as above. The process exits for this inner error, and the current working \
operator name is aclnnAdd.
Since the operator is called asynchronously, the stacktrace may be inaccurate. If you want to get the accurate stacktrace, please set
[ERROR] 2026-11-29-18:18:33 (PID:1998, Device:0, RankID:-1) ERR00100 PTA call acl api failed."""
CALLED = """query:../NPUEvent.cpp:82 NPU function error: acl::AclQueryEventRecordedStatus(event_, &currStatus), error code is {code}
[ERROR] 2026-11-29-18:18:29 (PID:1901, Device:0, RankID:-1) ERR00100 PTA call acl api failed
[Error]: Something. 
        Rectify the fault based on the error information in the ascend log."""  # noqa: W291
KINDS = [
    (RuntimeError(CALLED.format(code=507010)), DeviceLost, 507010),
    (RuntimeError(CALLED.format(code=507014)), DeviceTimeout, 507014),
    (RuntimeError(CALLED.format(code=207001)), DeviceMemoryExhausted, 207001),
    (RuntimeError(CALLED.format(code=507899)), DeviceError, 507899),
    (RuntimeError(ASYNCHRONOUS), DeviceLost, None),
    (RuntimeError("FORCE STOP, [ERROR] 2026"), DeviceLost, None),
    (type("OutOfMemoryError", (RuntimeError,), {})("NPU out of memory. Tried to allocate 1 GiB"), DeviceMemoryExhausted, None),
]


@pytest.mark.parametrize(("raised", "kind", "code"), KINDS, ids=[f"{kind.__name__}-{code}" for _, kind, code in KINDS])
def test_what_torch_npu_raises_is_understood(raised: Exception, kind: type[DeviceError], code: int | None) -> None:
    from ovsdk.backends.ascend.acl_errors import understand

    ours = understand("launch 'x'", raised)
    assert (type(ours), getattr(ours, "code", 0)) == (kind, code)
    assert str(ours).startswith("launch 'x': ")
    assert not re.search(r"PID|Rectify|stacktrace|\n", str(ours))


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), KeyError("x"), NotImplementedError("aten::foo"), RecursionError()])
def test_what_is_not_the_devices_fault_stays_what_it_is(error: Exception) -> None:
    from ovsdk.backends.ascend.acl_errors import understand

    assert understand("launch 'x'", error) is error
