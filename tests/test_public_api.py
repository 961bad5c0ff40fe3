"""The shop window: what `import ovsdk` gives, and what it must not cost."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

import ovsdk

NEVER = (
    *("torch", "torch_npu", "transformers", "matplotlib", "rich", "typer", "click", "numpy", "numba", "cattrs", "hypothesis", "pytest"),
    *("difflib", "email", "asyncio", "multiprocessing", "concurrent", "tomllib", "tomli"),
)
"""None of these is needed to plan and to drive; a process that imports ovsdk pays for none of them. Below: slow parts of the standard
library (`email` comes with importlib.metadata). The milliseconds are in benchmarks/import_time.py."""


def imported_by(code: str) -> set[str]:
    """Top-level names of the modules in a fresh interpreter after `code`."""
    probe = f"{code}\nimport json, sys; print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-I", "-c", probe], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_import_is_light() -> None:
    assert imported_by("import ovsdk") & set(NEVER) == set()


def test_the_light_check_sees_a_heavy_import() -> None:
    assert "numpy" in imported_by("import ovsdk, numpy")


def test_opening_the_simulator_needs_no_torch() -> None:
    assert "torch" not in imported_by("import ovsdk; ovsdk.open_backend('sim', prices='longcat-flash-b8-4k').close()")


@pytest.mark.parametrize("name", ovsdk.__all__)
def test_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(ovsdk, name)
    documented = value if inspect.isclass(value) or inspect.isroutine(value) else type(value)
    assert (documented.__doc__ or "").strip(), f"ovsdk.{name} has no docstring"


def test_all_lists_exactly_what_is_public() -> None:
    public = {name for name, value in vars(ovsdk).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert set(ovsdk.__all__) >= public - {"annotations"}
    assert len(ovsdk.__all__) == len(set(ovsdk.__all__))


def test_version_is_the_package_s() -> None:
    from importlib.metadata import version

    assert ovsdk.__version__ == version("ovsdk")
