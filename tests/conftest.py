"""For every test: no network, no device plugin that starts by itself, and nothing left behind."""

from __future__ import annotations

import os
import signal

# Read when torch or transformers is first imported, so set before any test module is.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0", TOKENIZERS_PARALLELISM="false")

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

# Examples are drawn anew each run here, and are the same each run in CI; no test is failed for being slow.
hypothesis.settings.register_profile("local", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("local"), derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

SHARED = Path(__file__).parents[2] / "shared"


# A shell starts a background job with SIGINT ignored, and then no Ctrl-C of a test would arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def shared() -> Path:
    """The folder of data that may lie beside this repository: profiler traces and the like."""
    if not SHARED.is_dir():
        pytest.skip("needs the folder 'shared' beside the repository, which is not there")
    return SHARED


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package of that name. It imports torch_npu where that is installed, which fails without a runtime: so it does not find it."""
    if "torch_npu" not in sys.modules:
        monkeypatch.setitem(sys.modules, "torch_npu", None)
    return pytest.importorskip("transformers", reason="needs transformers: pip install 'ovsdk[llm]'")


def child_pids() -> set[int]:
    """Ids of this process's children. Linux tells them in a file a thread; elsewhere psutil looks through all processes."""
    if not Path("/proc/self/task").is_dir():
        return {child.pid for child in psutil.Process().children()}
    return {pid for task in os.listdir("/proc/self/task") for pid in children_of_thread(task)}


def children_of_thread(task: str) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    except FileNotFoundError:  # that thread has just ended, and its children belong to another one now
        return []


def name_child(pid: int) -> str:
    """The command line of a child, '' for the standard library's own, which lives as long as this process."""
    try:
        line = " ".join(psutil.Process(pid).cmdline())
    except psutil.ZombieProcess:
        line = "ended, but never waited for"
    return "" if "multiprocessing.resource_tracker" in line or "multiprocessing.forkserver" in line else f"process {pid} ({line})"


class Watch:
    """Notes which threads and children there are, and names those that have come since. Ended but unwaited children count."""

    def __init__(self) -> None:
        self.threads, self.pids = set(threading.enumerate()), child_pids()

    def left_behind(self) -> list[str]:
        """Children, and threads that are ours or would keep the interpreter alive, that were not there before."""
        threads = [repr(t) for t in threading.enumerate() if t not in self.threads and (not t.daemon or t.name.startswith("ovsdk"))]
        return threads + list(filter(None, map(name_child, child_pids() - self.pids)))


@pytest.fixture(autouse=True)
def watch() -> Iterator[Watch]:
    """Fail a test that leaves a thread or a child process behind."""
    watch = Watch()
    yield watch
    leaked = watch.left_behind()
    assert not leaked, f"left behind: {', '.join(leaked)}"
