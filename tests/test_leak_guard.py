"""The guard in conftest.py that fails a test which leaves a thread or a child process behind, on things left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest


@pytest.mark.parametrize(("name", "daemon"), [("straggler", False), ("ovsdk-device", True)])
def test_names_a_thread(watch: Any, name: str, daemon: bool) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name=name, daemon=daemon)
    thread.start()
    assert [name in leak for leak in watch.left_behind()] == [True]
    end.set()
    thread.join()
    assert watch.left_behind() == []


def test_names_a_child_even_when_it_has_ended_but_was_not_waited_for(watch: Any) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert [f"process {child.pid}" in leak for leak in watch.left_behind()] == [True]
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        child.stdout.read()
        assert [f"process {child.pid}" in leak for leak in watch.left_behind()] == [True]
    assert watch.left_behind() == []


def test_ignores_daemon_threads_of_others(watch: Any) -> None:
    end = threading.Event()
    threading.Thread(target=end.wait, daemon=True).start()
    assert watch.left_behind() == []
    end.set()
