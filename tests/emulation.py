"""Run test files on the emulated NPU: a child pytest under `ovsdk emulate`, one process a file, for a start takes seconds.

A process that has imported torch_npu cannot forget it, so the files lie in tests/emulated/, where only the child collects them;
a test beside this file runs each, and fails with what the child said.

    pytestmark = needs_emulator

    @pytest.mark.parametrize("level", (0, 1, 2))
    def test_streams(level):
        run_emulated("test_streams.py", task_queue=level)
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTEST = ("-q", "-p", "no:cacheprovider", "-o", "filterwarnings=", "--timeout=60", "--timeout-method=thread")
"""torch_npu warns of much; what the parent counts as an error is none here. A call of it that hangs no signal ends."""


def why_not() -> str:
    """Why nothing can be emulated here, or ''."""
    if not sys.platform.startswith("linux"):
        return f"the emulated NPU is for Linux; this is {sys.platform}"
    if missing := [name for name in ("torch", "torch_npu") if importlib.util.find_spec(name) is None]:
        return f"the emulated NPU needs {' and '.join(missing)}: pip install torch==2.13.0 torch-npu==2.13.0"
    if shutil.which(os.environ.get("CXX") or "g++") is None:
        return "the emulated NPU is built with g++, which is not here"
    return ""


needs_emulator = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(900)]
"""A module's `pytestmark`. The first call on a machine builds the emulator, which takes minutes."""


def emulated(*command: str, timeout_s: float = 800, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command under `ovsdk emulate`; `task_queue=1` is `--task-queue 1`, `poison=True` is `--poison`.

    Skips the test that calls it where nothing can be emulated.
    """
    if reason := why_not():
        pytest.skip(reason)
    flags = [word for name, value in options.items() for word in _flag(name, value)]
    words = [sys.executable, "-m", "ovsdk", "emulate", *flags, "--", *command]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)


def _flag(name: str, value: object) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    return [option] if value is True else [option, str(value)]


def run_emulated(*files: str, timeout_s: float = 800, **options: object) -> None:
    """Run files of tests/emulated/, or with a `/` of this repository, in one child pytest on the emulated NPU; it fails as they do."""
    paths = [str(ROOT / file if "/" in file else ROOT / "tests" / "emulated" / file) for file in files]
    done = emulated(sys.executable, "-m", "pytest", *PYTEST, *paths, timeout_s=timeout_s, **options)
    assert done.returncode == 0, f"{files} with {options}:\n{done.stdout[-20_000:]}\n{done.stderr[-4_000:]}"
    assert "EMULATED NPU" in done.stderr
