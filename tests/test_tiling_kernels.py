"""The Triton kernels, in processes of their own: whether Triton interprets is decided when it is first imported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, which is not installed: pip install triton"),
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which is not installed: pip install torch"),
    pytest.mark.slow,
]


def check_file(name: str, folder: Path, **environment: str) -> None:
    """Run a file of tests; fail with what it said."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "--import-mode=importlib",
        str(HERE / name),
    ]
    everywhere = {**os.environ, "TRITON_CACHE_DIR": str(folder), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    everywhere.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, env={**everywhere, **environment}, cwd=HERE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_kernels_are_right_in_the_interpreter(tmp_path: Path) -> None:
    check_file("kernel_cases.py", tmp_path, TRITON_INTERPRET="1")


@pytest.mark.skipif(sys.platform != "linux", reason="triton compiles on Linux alone")
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    check_file("kernel_builds.py", tmp_path)
