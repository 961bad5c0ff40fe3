"""`ovsdk tile`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
import re

import pytest

from ovsdk.cli import main
from ovsdk.tiling import OPERATORS


def ovsdk(capsys, *args):
    """Exit code, stdout and stderr of one call."""
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    out = capsys.readouterr()
    return stopped.value.code or 0, out.out, out.err


def tiled(capsys, *args):
    code, out, err = ovsdk(capsys, "tile", *args, "--json")
    assert code == 0, err
    return json.loads(out)


def test_help_lists_every_operator_and_the_other_commands(capsys):
    _, out, _ = ovsdk(capsys, "tile", "--help")
    assert all(re.search(rf"\b{name} ", out) for name in (*OPERATORS, "ops", "emit"))
    assert "Of each input: 8x512x4096" in ovsdk(capsys, "tile", "reduce", "--help")[1]


def test_without_values_it_is_launched_for_the_worst_case(capsys):
    found = tiled(capsys, "reduce", "8x512x4096")
    assert (found["placement"], found["block_dim"], found["record"], found["makespan"]) == ("device-metadata", 40, None, None)
    assert found["workspace"] == found["worst_case"]["workspace"]
    assert "is written by the device: give the values" in ovsdk(capsys, "tile", "reduce", "8x512x4096")[1]


def test_with_values_it_is_shown_whole(capsys):
    found = tiled(capsys, "reduce", "8x512x4096", "--values", "-1", "--soc", "910B2")
    assert (found["placement"], found["block_dim"], found["soc"]) == ("host-shape", 48, "910B2")
    assert 1 <= found["makespan"] / found["lower_bound"] < 1.05
    assert len(found["record"]) == found["length"]
    code, out, _ = ovsdk(capsys, "tile", "reduce", "8x512x4096", "--values", "-1,0")
    assert code == 0
    assert re.search(r"^extents +1 8 512 4096 0 0 0 0 0 ", out, re.MULTILINE)


def test_a_placement_is_an_option(capsys):
    found = tiled(capsys, "reduce", "64x64", "--values", "0", "--placement", "aicpu")
    assert (found["placement"], found["block_dim"], found["record"][0]) == ("aicpu", 40, 2)
    priced = tiled(capsys, "reduce", "64x64", "--prices", "longcat-flash-b8-4k", "--priced-as", "reduce_sum")
    assert priced["placement"] == "in-kernel"


def test_explain_has_a_line_a_core(capsys):
    code, out, _ = ovsdk(capsys, "tile", "matmul", "8x7168", "7168x7168", "--explain")
    assert code == 0
    assert "20 tiles of m x n x k on 20 of 20 cores" in out
    assert len(re.findall(r"^ +\d+ #+", out, re.MULTILINE)) == 20


def test_attributes_dtypes_and_several_inputs(capsys):
    found = tiled(capsys, "matmul", "16x8192", "8192x16", "16", "--dtype", "float16", "--dtype", "float16", "--dtype", "float32")
    split = tiled(capsys, "matmul", "16x8192", "8192x16", "--attr", "split_k=0")
    assert (found["block_dim"], split["block_dim"]) == (16, 1)
    assert tiled(capsys, "broadcast", "4x1x8", "scalar")["block_dim"] == 1
    assert tiled(capsys, "elementwise", "0x3")["block_dim"] == 0


def test_a_table_of_rows_is_told(capsys):
    code, out, _ = ovsdk(capsys, "tile", "repeat", "4x64", "--values", "1,0,2,3", "--attr", "out_rows=8")
    assert code == 0
    assert re.search(r"and a table of \d+ rows: ", out)


def test_a_platform_file_is_a_soc(capsys, tmp_path):
    file = tmp_path / "half.toml"
    file.write_text('name = "half"\nbase = "910B3"\nvector_cores = 20\n')
    found = tiled(capsys, "reduce", "8x512x4096", "--soc", str(file))
    assert (found["soc"], found["block_dim"]) == ("half", 20)


def test_a_plugin_s_tiler_and_operator(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import attrs\n"
        "from ovsdk import hookimpl\n"
        "from ovsdk.tiling import Tiler, operator_named\n"
        "@hookimpl\n"
        "def ovsdk_make_tiler(name, options):\n"
        "    twice = attrs.evolve(operator_named('elementwise'), name='twice')\n"
        "    return Tiler(**options, operators=[twice]) if name == 'mine' else None\n"
    )
    code, out, _ = ovsdk(capsys, "--plugin", str(file), "tile", "twice", "64x64", "--tiler", "mine", "--json")
    assert code == 0
    assert json.loads(out)["op"] == "twice"


def test_operators_that_need_values_are_listed(capsys):
    rows = json.loads(ovsdk(capsys, "tile", "ops", "--json")[1])["ops"]
    assert len(rows) == 134
    one = json.loads(ovsdk(capsys, "tile", "ops", "ReduceSum", "--json")[1])["ops"]
    assert one == [{"repo": "ops-math", "op": "reduce_sum", "inputs": [{"name": "axes", "constant": False}], "tiling": "HOST"}]
    assert "134 operators; the tiling of 3 may sink" in ovsdk(capsys, "tile", "ops")[1]
    assert "multiples (constant)" in ovsdk(capsys, "tile", "ops", "tile")[1]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["redcue", "8"], "no tiling for operator 'redcue' .did you mean 'reduce'"),
        (["reduce", "8x4", "--values", "-3"], r"axes\[0\] = -3 is out of range for rank 2"),
        (["reduce", "8x4", "--values", "a"], "--values is integers with commas between them"),
        (["reduce", "8y4"], "a shape is sizes with an x between them"),
        (["reduce", "8x4", "--attr", "x"], "an attribute is NAME=INT"),
        (["matmul", "8x4", "4x8", "--attr", "split=0"], "no attribute 'split' .did you mean 'split_k'.*; it has: transposed .1: both"),
        (["reduce", "8x4", "--attr", "capacity=3"], "reduce has no attribute 'capacity'; it has: none"),
        (["reduce", "8x4", "--dtype", "float17"], "did you mean 'float16'"),
        (["reduce", "8x4", "--soc", "910B9"], "unknown SoC '910B9'"),
        (["reduce", "8x4", "--soc", "none.toml"], "cannot be read"),
        (["reduce", "8x4", "--placement", "in_kernel"], "did you mean 'in-kernel'"),
        (["reduce", "8x4", "--placement", "host-value"], "needs the values of 'axes' on the host"),
        (["matmul", "8x4", "4x8", "--placement", "aicpu"], "matmul cannot be tiled 'aicpu'"),
        (["reduce", "8x4", "--tiler", "mine"], "no plugin knows a tiler called 'mine'"),
        (["reduce", "8x4", "--prices", "longcat-flash-b8-4k"], "no price for operator 'reduce'"),
        (["ops", "reduce_sun"], "did you mean 'reduce_sum'"),
        (["reduce"], "Missing argument"),
    ],
)
def test_misuse_exits_with_2_and_says_what_is_allowed(capsys, args, says):
    code, _, err = ovsdk(capsys, "tile", *args)
    assert code == (1 if "no price" in says else 2)
    assert re.search(says, err)
