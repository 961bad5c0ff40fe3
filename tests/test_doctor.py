"""`ovsdk doctor`: what it says of machines that are written down, what it reads of this one, its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovsdk.backends.ascend import doctor, machine
from ovsdk.backends.ascend.doctor import ABSENT, CHANGE, FINE, NOTE, diagnose
from ovsdk.cli import built_in
from ovsdk.cli import doctor as command

from .emulation import emulated

LAPTOP = machine.Machine(
    environ={"OMP_NUM_THREADS": "2"}, packages={}, python="3.11.7", cores=8, switch_s=0.005, why_not="no CANN", device="no CANN"
)
SERVER = machine.Machine(
    environ={"OMP_NUM_THREADS": "8", "ASCEND_HOME_PATH": "/opt/cann", "CPU_AFFINITY_CONF": "2"},
    packages={"torch": "2.13.0+cpu", "torch_npu": "2.13.0"},
    python="3.11.7",
    driver="25.5.0",
    nodes=("/dev/davinci0",),
    cann="8.5.0",
    device={"soc": "Ascend910B3", "cann": "8.5.0", "devices": 8, "pinned": True, "can": {"asynchronous": True}},
    cores=192,
    governor="performance",
    switch_s=0.005,
)


def states(seen: machine.Machine) -> dict[str, str]:
    return {finding.name: finding.state for finding in diagnose(seen).findings}


def with_(seen: machine.Machine, **environ: str) -> machine.Machine:
    return attrs.evolve(seen, environ={**seen.environ, **environ})


# ---- verdicts ----


def test_nothing_is_wrong_with_a_good_server() -> None:
    assert set(states(SERVER).values()) == {FINE}
    assert str(diagnose(SERVER)) == "an NPU is here; to change: nothing"
    assert not diagnose(SERVER).bad


def test_a_laptop_lacks_an_npu_and_needs_no_change() -> None:
    found = states(LAPTOP)
    assert {name for name, state in found.items() if state == ABSENT} == {"torch", "torch_npu", "CANN", "driver", "backend ascend"}
    assert CHANGE not in found.values()
    assert not diagnose(LAPTOP).bad


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"device": "libascendcl.so was not found"}, "backend ascend"),
        ({"device": {"can": {"asynchronous": "ASCEND_LAUNCH_BLOCKING=1"}}}, "asynchronous launches"),
        ({"device": {"pinned": False}}, "pinned memory"),
        ({"cores": 1}, "cores"),
        ({"quota": 1.5}, "cores"),
    ],
)
def test_what_must_be_changed_on_a_server(change: dict[str, object], name: str) -> None:
    diagnosis = diagnose(attrs.evolve(SERVER, **change))
    assert name in {finding.name for finding in diagnosis.changes}
    assert diagnosis.bad
    assert name in str(diagnosis)


@pytest.mark.parametrize(
    ("variable", "value", "state"),
    [
        ("ASCEND_LAUNCH_BLOCKING", "1", CHANGE),
        ("PYTORCH_NO_NPU_MEMORY_CACHING", "1", CHANGE),
        ("TASK_QUEUE_ENABLE", "0", NOTE),
        ("TASK_QUEUE_ENABLE", "1", FINE),
        ("TASK_QUEUE_ENABLE", "2", NOTE),
        ("CPU_AFFINITY_CONF", "0", NOTE),
        ("CPU_AFFINITY_CONF", "1,npu0:0-3", FINE),
        ("OMP_NUM_THREADS", "192", NOTE),
        ("OMP_NUM_THREADS", "many", NOTE),
        ("ASCEND_HOME_PATH", "", NOTE),
        ("ASCEND_GLOBAL_LOG_LEVEL", "1", NOTE),
        ("PER_STREAM_QUEUE", "1", NOTE),
        ("TORCH_NPU_SANITIZER", "1", NOTE),
        ("MULTI_STREAM_MEMORY_REUSE", "3", FINE),
        ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", FINE),
    ],
)
def test_variables_and_what_they_do(variable: str, value: str, state: str) -> None:
    assert states(with_(SERVER, **{variable: value}))[variable] == state


def test_unset_variables_are_judged_by_what_holds_then() -> None:
    bare = attrs.evolve(SERVER, environ={})
    assert {name for name, state in states(bare).items() if state == NOTE} == {"CPU_AFFINITY_CONF", "OMP_NUM_THREADS", "ASCEND_HOME_PATH"}
    seen = {finding.name: finding.seen for finding in diagnose(bare).findings}
    assert seen["TASK_QUEUE_ENABLE"] == "1 (unset)"
    assert seen["OMP_NUM_THREADS"] == "unset"


def test_autoload_must_be_off_where_torch_npu_cannot_be_imported() -> None:
    """Else every `import torch` fails in this environment."""
    broken = attrs.evolve(LAPTOP, packages=SERVER.packages)
    assert states(broken)["TORCH_DEVICE_BACKEND_AUTOLOAD"] == CHANGE
    assert states(with_(broken, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))["TORCH_DEVICE_BACKEND_AUTOLOAD"] == FINE
    assert states(SERVER)["TORCH_DEVICE_BACKEND_AUTOLOAD"] == FINE


def test_an_emulated_device_is_called_so() -> None:
    emulated = attrs.evolve(LAPTOP, packages=SERVER.packages, why_not=None, device={"emulated": True, "cann": "8.5.0", "pinned": True})
    diagnosis = diagnose(emulated)
    assert diagnosis.npu
    assert str(diagnosis) == "an EMULATED NPU is here; to change: nothing"
    assert {f.name: f.seen for f in diagnosis.findings}["CANN"] == "emulated, as 8.5.0"
    assert diagnose(with_(emulated, ASCEND_LAUNCH_BLOCKING="1")).bad


names = st.sampled_from([variable.name for variable in doctor.VARIABLES])
machines = st.builds(
    machine.Machine,
    environ=st.dictionaries(names, st.sampled_from(["", "0", "1", "2", "x", "1,npu0:0-1"])),
    packages=st.dictionaries(st.sampled_from(["torch", "torch_npu"]), st.sampled_from(["2.13.0", "2.13.0+cu128", "2.6"])),
    python=st.just("3.12.1"),
    driver=st.sampled_from([None, "24.1"]),
    nodes=st.sampled_from([(), ("/dev/davinci0",)]),
    cann=st.sampled_from([None, "8.5.0"]),
    why_not=st.sampled_from([None, "because"]),
    device=st.one_of(
        st.just("because"), st.fixed_dictionaries({"devices": st.just(1)}, optional={"pinned": st.booleans(), "emulated": st.booleans()})
    ),
    cores=st.integers(1, 300),
    quota=st.sampled_from([None, 0.5, 4.0]),
    governor=st.sampled_from([None, "powersave", "performance"]),
    switch_s=st.sampled_from([1e-6, 0.005, 1.0]),
    gil=st.booleans(),
)


@given(machines)
def test_whatever_is_not_fine_comes_with_what_to_do(seen: machine.Machine) -> None:
    diagnosis = diagnose(seen)
    for finding in diagnosis.findings:
        assert finding.state in (FINE, NOTE, CHANGE, ABSENT)
        assert bool(finding.remedy) == (finding.state in (NOTE, CHANGE))
        assert finding.seen
    assert diagnosis.bad == (diagnosis.npu and any(f.state == CHANGE for f in diagnosis.findings))
    assert json.loads(json.dumps(diagnosis.as_dict()))["summary"] == str(diagnosis)


@given(machines)
def test_without_an_npu_nothing_of_it_is_missed(seen: machine.Machine) -> None:
    found = states(attrs.evolve(seen, driver=None, nodes=(), device="no NPU"))
    assert {found[name] for name in ("torch_npu", "CANN", "driver", "backend ascend")} <= {FINE, ABSENT}


# ---- what is read ----


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "reason", lambda environ, root: "not today")


def test_files_of_driver_and_cann_are_read(tmp_path: Path, nobody_asks: None) -> None:
    write(tmp_path / "usr/local/Ascend/driver/version.info", "Version=24.1.rc1\nascendhal_version=7.35.19\n")
    write(tmp_path / "usr/local/Ascend/ascend-toolkit/latest/x86_64-linux/ascend_toolkit_install.info", "package_name=x\nversion=8.2.RC1\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "150000 100000\n")
    write(tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    write(tmp_path / "dev/davinci0", "")
    write(tmp_path / "dev/davinci_manager", "")
    seen = machine.here({}, tmp_path)
    assert (seen.driver, seen.cann, seen.quota, seen.governor) == ("24.1.rc1", "8.2.RC1", 1.5, "powersave")
    assert seen.nodes == (str(tmp_path / "dev/davinci0"),)
    assert seen.npu
    assert seen.device == seen.why_not == "not today"


def test_the_sourced_cann_comes_before_the_usual_places(tmp_path: Path, nobody_asks: None) -> None:
    write(tmp_path / "usr/local/Ascend/cann/x86_64-linux/ascend_toolkit_install.info", "version=8.5.0\n")
    write(tmp_path / "mine/x86_64-linux/ascend_toolkit_install.info", "version=9.1.0\n")
    assert machine.here({}, tmp_path).cann == "8.5.0"
    assert machine.here({"ASCEND_HOME_PATH": str(tmp_path / "mine")}, tmp_path).cann == "9.1.0"


def test_an_empty_machine_has_nothing(tmp_path: Path, nobody_asks: None) -> None:
    write(tmp_path / "sys/fs/cgroup/cpu.max", "max 100000\n")
    seen = machine.here({}, tmp_path)
    assert (seen.driver, seen.cann, seen.quota, seen.governor, seen.nodes) == (None, None, None, None, ())
    assert not seen.npu


def test_the_environment_is_that_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/environ").exists():
        pytest.skip("this system does not tell a process's first environment")
    monkeypatch.setenv("OVSDK_SET_LATER", "1")
    assert "OVSDK_SET_LATER" not in machine.started_with()
    assert os.environ.keys() >= machine.started_with().keys() - {"TORCH_DEVICE_BACKEND_AUTOLOAD"}


def test_a_device_that_does_not_open_is_told_by_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    assert machine.ask() == "the process that asked ended with 1"


def test_reading_a_machine_imports_no_torch() -> None:
    """torch_npu may end the process that imports it, and torch is not needed to say so."""
    program = (
        "import sys; from ovsdk.backends.ascend import machine; machine.ask = lambda: {}; machine.here(); "
        "sys.exit(sum(name in sys.modules for name in ('torch', 'torch_npu')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# ---- the command ----


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`ovsdk doctor` on a machine that is written down: its exit code and what it prints."""

    def run(seen: machine.Machine, *args: str) -> tuple[int, str]:
        monkeypatch.setattr(command, "here", lambda: seen)
        with pytest.raises(SystemExit) as ended:
            built_in("doctor")(list(args))
        return ended.value.code, capsys.readouterr().out

    return run


BLOCKED = with_(SERVER, ASCEND_LAUNCH_BLOCKING="1")


@pytest.mark.parametrize(("seen", "code"), [(SERVER, 0), (LAPTOP, 0), (BLOCKED, 1), (with_(LAPTOP, ASCEND_LAUNCH_BLOCKING="1"), 0)])
def test_it_fails_only_for_an_npu_that_is_here(run: Run, seen: machine.Machine, code: int) -> None:
    ended, page = run(seen)
    assert ended == code
    assert str(diagnose(seen)) in page
    ended, page = run(seen, "--json")
    assert ended == code
    assert json.loads(page) == diagnose(seen).as_dict()


def test_the_page_says_what_to_do(run: Run) -> None:
    page = " ".join(run(BLOCKED)[1].split())
    assert "CHANGE ASCEND_LAUNCH_BLOCKING unset it: with it nothing overlaps" in page
    assert "device 0 soc Ascend910B3, cann 8.5.0, devices 8" in page


@pytest.mark.timeout(900)
def test_on_the_emulated_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is really asked, by torch_npu in a child process."""
    monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", "1")
    done = emulated(sys.executable, "-m", "ovsdk", "doctor", "--json", soc="Ascend910B3")
    assert done.returncode == 1, done.stdout + done.stderr
    page = json.loads(done.stdout)
    assert page["summary"] == "an EMULATED NPU is here; to change: asynchronous launches, ASCEND_LAUNCH_BLOCKING"
    seen = {check["name"]: check["seen"] for check in page["checks"]}
    assert "soc Ascend910B3" in seen["device 0"]
    assert seen["pinned memory"] == "yes"
