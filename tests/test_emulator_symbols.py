"""What a torch_npu wheel links, against what the emulator has: a new wheel fails with a list, not with a crash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ovsdk.backends.ascend.emulator import symbols
from ovsdk.backends.ascend.emulator.build import EMPTY, runtime_objects

from .emulation import emulated, needs_emulator

pytestmark = needs_emulator

LINKED = 84
"""In torch_npu 2.13.0; 2.14.0 has the same, 2.12.0 fewer, 2.5 to 2.9 others too (read from their files, not run)."""
NAMES = """
    MsprofGetHashId MsprofRegisterCallback MsprofReportAdditionalInfo MsprofReportApi MsprofReportCompactInfo MsprofSysCycleTime
    aclGetTensorDescDimV2 aclmdlFinalizeDump aclmdlInitDump aclmdlSetDump aclrtBinaryGetFunction aclrtBinaryLoadFromData
    aclrtDeviceEnablePeerAccess aclrtDeviceGetBareTgid aclrtFreePhysical aclrtGetFunctionAddr aclrtMallocPhysical aclrtMapMem
    aclrtMemExportToShareableHandle aclrtMemImportFromShareableHandle aclrtMemSetPidToShareableHandle aclrtReleaseMemAddress
    aclrtReserveMemAddress aclrtResetEvent aclrtUnmapMem rtDevBinaryRegister rtFunctionRegister rtGetC2cCtrlAddr rtKernelLaunch
"""
NOT_EMULATED = tuple(NAMES.split())
"""Profiling, dumps, memory mapped by hand, kernels in binary form: a call says its name and fails."""


def wheel() -> Path:
    found = symbols.installed_wheel()
    assert found is not None
    return found


def test_the_installed_wheel_links_nothing_new() -> None:
    assert len(symbols.linked(wheel())) == LINKED
    missing = symbols.missing(wheel(), *runtime_objects())
    assert missing == tuple(sorted(NOT_EMULATED))


def test_a_wheel_that_links_more_is_told_with_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = symbols.linked(wheel())
    monkeypatch.setattr(symbols, "linked", lambda _: needed | {"aclrtBrandNew"})
    assert set(symbols.missing(wheel(), *runtime_objects())) - set(NOT_EMULATED) == {"aclrtBrandNew"}


@pytest.mark.skipif(shutil.which("nm") is None, reason="compares with binutils' nm, which is not here")
@pytest.mark.parametrize("file", ["lib/libtensorpipe.so", "lib/libnpu_profiler.so"])
def test_the_reader_sees_what_nm_sees(file: str) -> None:
    listed = subprocess.run(["nm", "-D", "--without-symbol-versions", wheel() / file], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in listed.splitlines()]
    seen = {symbols.Symbol(words[-1], words[-2] not in ("U", "w", "v")) for words in lines if words[-2] not in ("t", "d", "b", "r")}
    assert symbols.symbols(wheel() / file) == seen


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(ValueError, match=r"text\.so.* is no 64-bit"):
        symbols.symbols(tmp_path / "text.so")


CALL = """
import ctypes, sys
from ovsdk.backends.ascend import emulator
library = emulator.activate()._library
for name in sys.argv[1:]:
    print(name, getattr(library, name)(), flush=True)
"""


def test_a_function_that_is_not_emulated_says_so_and_never_succeeds() -> None:
    done = emulated(sys.executable, "-c", CALL, *NOT_EMULATED)
    assert done.stdout.splitlines() == [f"{name} 200001" for name in NOT_EMULATED]
    said = [line for line in done.stderr.splitlines() if line.startswith("emulated NPU: ")]
    assert said == [f"emulated NPU: {name} is not emulated" for name in NOT_EMULATED]


def test_libraries_that_are_empty_are_needed_for_their_names_alone() -> None:
    assert symbols.linked(wheel()).isdisjoint({name.removesuffix(".so") for name in EMPTY})
    assert not any(name.startswith(("Hccl", "ge")) for name in symbols.linked(wheel()))
