"""The third-party package under examples/, from its source. CI installs its wheel and runs the package's own tests on that."""

from __future__ import annotations

from pathlib import Path

import pytest

import ovsdk

FOLDER = Path(__file__).parents[1] / "examples" / "ovsdk-example"


@pytest.mark.parametrize("driver", ["inline", "threads"])
def test_it_works_as_a_one_off_plugin_file(driver: str) -> None:
    manager = ovsdk.plugin_manager([FOLDER / "ovsdk_example.py"])
    scheduler = ovsdk.make("scheduler", "shortest-first", {"jobs": {"long": 3, "short": 1}}, plugins=manager)
    report = ovsdk.run(scheduler, "count", "thread", driver=driver, queue="ring", plugins=manager)
    assert scheduler.done == ["short", "long"]
    assert report.steps == 4


def test_without_it_its_names_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVSDK_PLUGINS", "")
    with pytest.raises(ovsdk.ConfigError, match="no plugin knows a scheduler called 'shortest-first'"):
        ovsdk.make("scheduler", "shortest-first")


def test_its_entry_point_names_its_module() -> None:
    project = (FOLDER / "pyproject.toml").read_text()
    assert '[project.entry-points.ovsdk]\nexample = "ovsdk_example"' in project
    assert 'only-include = ["ovsdk_example.py"]' in project
