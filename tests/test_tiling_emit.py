"""Derivations written in C++: they compute what Python computes, and what C++ would compute otherwise is refused."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import random
import re
import shutil
import subprocess
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovsdk.errors import ConfigError, OvsdkError, TilingError
from ovsdk.tiling import OPERATORS, Operator, operator_named, platform_named, tiling_spec
from ovsdk.tiling.emit import TARGETS, compiled, header, tree, write
from ovsdk.tiling.emit.compiled import build
from ovsdk.tiling.spec import AICPU, BLOCK_DIM, FAULT, KEY, WORKSPACE

from . import emitted

CANN = Path(__file__).parent / "cann"
"""Declarations of ours, in place of CANN's headers."""
STRICT = ("-std=c++17", "-Wall", "-Wextra", "-Werror")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
SMALL = st.integers(0, 40)
VALUES = st.lists(st.integers(-1000, 1000) | st.sampled_from([77, 78]), max_size=12)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is built here is not kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVSDK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def both(name: str, derive: Callable[..., None], length: int) -> Callable[[Sequence[int], Sequence[int]], tuple[list[int], list[int]]]:
    """What Python and what C++ write."""
    native = compiled(name, derive)

    def run(a: Sequence[int], v: Sequence[int]) -> tuple[list[int], list[int]]:
        expected, got = [0] * length, [0] * length
        derive(a, v, expected)
        native(a, v, got)
        return expected, got

    return run


# ---- the subset ----


@needs_compiler
def test_everything_in_the_subset_is_the_same_in_cpp() -> None:
    run = both("emitted", emitted.derive, 17)

    @given(VALUES, SMALL, SMALL)
    def same(v: list[int], x: int, y: int) -> None:
        expected, got = run([len(v), x, y], v)
        assert got == expected

    same()


PROGRAMS = 40


def expression(rng: random.Random, names: Sequence[str], depth: int) -> str:
    """A random expression whose value stays below 2**40 in size."""
    leaf = rng.choice([*names, str(rng.randint(0, 50)), f"v[{rng.randint(0, 3)}]", f"a[{rng.randint(0, 2)}]"])
    if depth == 0:
        return leaf
    x, y, z = (expression(rng, names, depth - 1) for _ in range(3))
    forms = [
        f"{x} + {y}",
        f"{x} - ({y})",
        f"({x}) * {leaf}",
        f"abs({x}) // (abs({y}) + 1)",
        f"abs({x}) % (abs({y}) + 1)",
        f"({x} if {y} < {z} else {leaf})",
        f"max({x}, {y})",
        f"min({x}, {y}, {z})",
        f"-({x})",
        f"({x} if {y} < {leaf} <= {z} or not {leaf} else {z})",
        f"({y} == {z} and {x} != {leaf})",
    ]
    return rng.choice(forms)


def block(rng: random.Random, depth: int, loops: tuple[str, ...], indent: str) -> str:
    """Random statements over the locals x, y, z, which may be assigned anywhere."""
    return "".join(indent + statement(rng, depth, loops, indent) for _ in range(rng.randint(1, 3)))


def statement(rng: random.Random, depth: int, loops: tuple[str, ...], indent: str) -> str:
    names = ("x", "y", "z", *loops)
    value, inner = expression(rng, names, 2), indent + "    "
    kind = rng.choice(["assign", "assign", "update", "store"] + (["if", "for", "while", "leave"] if depth else []))
    if kind == "assign":
        return f"{rng.choice('xyz')} = ({value}) * 1 if abs({value}) < 1000000 else {rng.randint(0, 9)}\n"
    if kind == "update":
        return f"{rng.choice('xyz')} {rng.choice(['+=', '-='])} abs({value}) % 1009\n"
    if kind == "store":
        return f"out[{rng.randint(0, 2)}] = {value}\n"
    if kind == "if":
        orelse = f"{indent}else:\n{block(rng, depth - 1, loops, inner)}" if rng.random() < 0.5 else ""
        return f"if {value}:\n{block(rng, depth - 1, loops, inner)}{orelse}"
    if kind == "for":
        name = f"i{depth}{len(loops)}"
        bounds = rng.choice(["{}", "1, {}", "{}, -1, -2", "0, {}, abs(x) % 3 + 1"]).format(f"abs({value}) % 6")
        return f"for {name} in range({bounds}):\n{block(rng, depth - 1, (*loops, name), inner)}"
    if kind == "while":
        turns = f"w{depth}"
        body = block(rng, depth - 1, (), inner)
        return f"{turns} = 0\n{indent}while {turns} < 4 and {value} != 1:\n{body}{inner}{turns} += 1\n"
    return f"if {value} > 20:\n{inner}{'break' if loops and rng.random() < 0.7 else 'return x'}\n"


def program(seed: int) -> str:
    """A module with PROGRAMS random functions and a `derive` that runs them all."""
    rng = random.Random(seed)
    head = "from __future__ import annotations\nfrom collections.abc import MutableSequence, Sequence\n\n"
    types = "a: Sequence[int], v: Sequence[int], out: MutableSequence[int]"
    functions = [
        f"def f{i}({types}) -> int:\n    x, y, z = 1, a[0], 3\n{block(rng, 3, (), '    ')}    return x * 3 + y * 5 + z\n\n"
        for i in range(PROGRAMS)
    ]
    calls = "".join(f"    out[{3 + i}] = f{i}(a, v, out)\n" for i in range(PROGRAMS))
    return head + "\n".join(functions) + f"\ndef derive({types}) -> None:\n{calls}"


def load(folder: Path, text: str) -> ModuleType:
    path = folder / f"random_{abs(hash(text))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_compiler
@pytest.mark.parametrize("seed", [1, pytest.param(random.randrange(10**9), id="drawn")])
def test_random_programs_are_the_same_in_cpp(seed: int, tmp_path: Path) -> None:
    module = load(tmp_path, program(seed))
    run = both("random", module.derive, 3 + PROGRAMS)
    rng = random.Random(seed)
    for _ in range(50):
        a, v = [rng.randint(-9, 60) for _ in range(3)], [rng.randint(-300, 300) for _ in range(4)]
        expected, got = run(a, v)
        assert got == expected, f"seed {seed}, a {a}, v {v}, functions {[i - 3 for i in range(len(got)) if got[i] != expected[i]]}"


# ---- what is refused ----

SIGNATURE = "a: Sequence[int], v: Sequence[int], out: MutableSequence[int]"
OUTSIDE = {
    "x = 1.5": "values are integers",
    "x = 'a'": "values are integers",
    "x = a[0] / 2": "operators are",
    "x = a[0] ** 2": "operators are",
    "x = a[0] << 2": "operators are",
    "x = ~a[0]": "operators before a value are",
    "x = a[-1]": "counted from 0",
    "x = a[BACK]": "counted from 0",
    "x = -a[0] // 2": "rounds",
    "x = a[0] % BACK": "rounds",
    "x = a[0] or a[1]": "give one of them",
    "x = a[1:2]": "expressions are",
    "x = [i for i in range(3)]": "expressions are",
    "x = (1, 2)": "expressions are",
    "x = a": "is an array",
    "x = len(v)": "no plain function",
    "x = unknown": "unknown is no local",
    "x = a.count": "expressions are",
    "x = helper(a[0], 1)": "takes 1",
    "x = helper(n=a[0])": "calls are name",
    "x = nothing(out)": "gives no value",
    "x = max(a[0])": "min and max take two",
    "x = range(3)": "range stands in a for alone",
    "x = a[0] is a[1]": "comparisons are",
    "x = 9223372036854775808": "over 64 bits",
    "a[0] = 1": "only read",
    "scribble(a)": "only read",
    "scribble(out[0])": "stands an array",
    "out[0] = scribble(out) + out[1]": "line of its own|its own line",
    "out[0] += scribble(out)": "its own line",
    "x = 1 < scribble(out) < 3": "computed once",
    "x, y = 1": "unpacking is",
    "x, y = 1, 2\n    x, y = y, x": "may not use what it assigns",
    "x = y = a[0]": "several targets",
    "x: int": "begins with a value",
    "x = [0] * 0": "an element or more",
    "x = [1] * 4": "made as",
    "if a[0]:\n        x = [0] * 4\n    out[0] = x[1]": "before all its uses",
    "for i in range(3):\n        pass\n    out[0] = i": "none after its loop",
    "for i in range(3):\n        i = 2": "variable of a loop",
    "for i in range(3):\n        for i in range(2):\n            pass": "taken around",
    "for i in v:\n        pass": "loops are",
    "for i, j in range(3):\n        pass": "one variable",
    "for i in range(0, 3, 0):\n        pass": "not 0",
    "for i in range(3, 0, -a[0]):\n        pass": "not 0",
    "for i in range(3):\n        pass\n    else:\n        pass": "no else",
    "while True:\n        break\n    else:\n        pass": "no else",
    "try:\n        pass\n    finally:\n        pass": "statements are",
    "assert a[0]": "statements are",
    "raise ValueError": "statements are",
    "del out[0]": "statements are",
    "def inner() -> int:\n        return 1": "statements are",
    "return 1": "annotated",
    "a[0]": "is a call",
    "min = 3": "something else in C",
    "new = 1\n    new_ = 2": "another name",
    "x = endless(a[0])": "calls itself",
    "x = open_end(a[0])": "on every way",
    "x = loose(a[0])": "is annotated as",
    "x = defaulted(a[0])": "defaults",
    "x = cached(a[0])": "no plain function",
}
AROUND = f"""
import functools
from collections.abc import MutableSequence, Sequence

BACK = -1


def helper(n: int) -> int:
    return n


def nothing(out: MutableSequence[int]) -> None:
    out[0] = 1


def scribble(out: MutableSequence[int]) -> int:
    out[1] = 1
    return 0


def endless(n: int) -> int:
    return endless(n)


def open_end(n: int) -> int:
    if n > 1:
        return 1


def loose(n) -> int:
    return n


def defaulted(n: int = 1) -> int:
    return n


@functools.cache
def cached(n: int) -> int:
    return n


def derive({SIGNATURE}) -> None:
    """


@pytest.mark.parametrize("body", OUTSIDE)
def test_what_is_outside_the_subset_is_refused_with_its_line(body: str, tmp_path: Path) -> None:
    module = load(tmp_path, AROUND + body + "\n")
    with pytest.raises(ConfigError, match=OUTSIDE[body]) as refused:
        header("outside", module.derive)
    assert re.match(r".*\.py:\d+: ", str(refused.value))


def test_the_line_is_that_of_the_fault(tmp_path: Path) -> None:
    module = load(tmp_path, AROUND + "out[0] = 1\n    out[1] = 2 / 1\n")
    with pytest.raises(ConfigError, match=rf":{AROUND.count(chr(10)) + 2}: .*2 / 1"):
        header("outside", module.derive)


@pytest.mark.parametrize("head", ["a: Sequence[int], v: Sequence[int]", "a: list[int], v: Sequence[int], out: MutableSequence[int]"])
def test_a_derivation_has_one_signature(head: str, tmp_path: Path) -> None:
    module = load(tmp_path, f"from collections.abc import MutableSequence, Sequence\n\n\ndef derive({head}) -> None:\n    pass\n")
    with pytest.raises(ConfigError, match="its signature is"):
        header("outside", module.derive)


@pytest.mark.parametrize("callable_", [len, lambda a, v, out: None, print])
def test_only_plain_functions_are_written(callable_: Callable[..., None]) -> None:
    with pytest.raises(ConfigError, match="plain function"):
        header("outside", callable_)


def test_a_builtin_means_what_it_means_in_python(tmp_path: Path) -> None:
    module = load(tmp_path, AROUND + "out[0] = max(a[0], 1)\n")
    vars(module)["max"] = module.helper
    with pytest.raises(ConfigError, match="a max of its own"):
        header("outside", module.derive)


def test_a_number_of_two_modules_is_one_number(tmp_path: Path) -> None:
    module = load(tmp_path, "ROWS = 3\n\n\ndef rows(n: int) -> int:\n    return n * ROWS\n")
    other = load(tmp_path, AROUND.replace("BACK = -1", "ROWS = 4") + "out[0] = rows(ROWS)\n")
    vars(other)["rows"] = module.rows
    with pytest.raises(ConfigError, match="in another module"):
        header("outside", other.derive)


def test_functions_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    module = load(tmp_path, AROUND.replace("def derive(", "def derived(") + "out[0] = helper(1)\n")
    other = load(tmp_path, AROUND.replace("return n\n", "return n + 1\n", 1) + "derived(a, v, out)\n    out[1] = helper(1)\n")
    vars(other)["derived"] = module.derived
    with pytest.raises(ConfigError, match="another function of this name"):
        header("outside", other.derive)


@pytest.mark.parametrize(("old", "new"), [("= 1", "= 2"), ("out[0]", "out[1]"), ("out[0]", "a[0]"), ("derive", "derived")])
def test_a_source_that_was_changed_since_is_refused(old: str, new: str, tmp_path: Path) -> None:
    module = load(tmp_path, AROUND + "out[0] = 1\n")
    header("outside", module.derive)
    path = Path(str(module.__file__))
    path.write_text(path.read_text().replace(old, new) + "# longer\n")
    with pytest.raises(ConfigError, match="was changed after it was imported"):
        header("outside", module.derive)


def test_words_of_cpp_are_respelled(tmp_path: Path) -> None:
    text = header("words", load(tmp_path, AROUND + "new = a[0]\n    for int in range(new):\n        out[int] = new\n").derive)
    assert "int64_t new_ = a[0];" in text
    assert "out[int_] = new_;" in text


# ---- the operators ----

SIZES = st.sampled_from([0, 1, 2, 3, 7, 16, 60, 128, 1000, 4096])
DTYPES = st.sampled_from(["float16", "float32", "int8"])
NEAR = st.integers(-9, 9)


def shape(least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """No larger than memories are: Python's integers have no end, those of C++ do."""
    sizes = st.lists(SIZES, min_size=least, max_size=most).map(tuple)
    return sizes.filter(lambda chosen: math.prod(max(size, 1) for size in chosen) < 2**44)


@st.composite
def groups(draw: st.DrawFn) -> tuple[Any, list[int]]:
    """A group_list that fits x, or nearly does."""
    counts, kind = draw(st.lists(SIZES, max_size=9)), draw(st.integers(0, 2))
    lists = {0: [sum(counts[: i + 1]) for i in range(len(counts))], 1: counts, 2: [n for pair in enumerate(counts) for n in pair]}
    shapes = [(sum(counts) + draw(st.sampled_from([0, 0, 5])), 64), (max(len(counts), 1), 64, draw(SIZES))]
    spec = tiling_spec("grouped_matmul", shapes, "float16", capacity=20, list_type=kind, padded=draw(st.integers(0, 1)))
    return spec, lists[kind] + draw(st.sampled_from([[], [], [3, -1]]))


@st.composite
def lengths(draw: st.DrawFn) -> tuple[Any, list[int]]:
    """Sequence lengths in a cache of 5000."""
    values = draw(st.lists(st.integers(0, 5000) | SIZES | NEAR, max_size=20))
    heads, group = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([1, 4, 32]))
    shapes = [(len(values), heads * group, 64), (len(values), 5000, heads, 64)]
    how = draw(st.sampled_from([{}, {"whole": 1}, {"exact": 1}, {"kv_block": 64}]))
    return tiling_spec("split_kv", shapes, "float16", capacity=32, **how), values


@st.composite
def counted(draw: st.DrawFn, op: str) -> tuple[Any, list[int]]:
    """Counts of rows, of which a few are too large or negative."""
    values = draw(st.lists(st.integers(0, 7) | NEAR, max_size=20))
    size = (len(values), draw(SIZES)) if op == "repeat" else (len(values), 7, draw(SIZES))
    return tiling_spec(op, [size], draw(DTYPES), capacity=32, **{"capacity_rows": 0} if op == "gather" else {}), values


def cases(op: str) -> st.SearchStrategy[tuple[Any, list[int]]]:
    """Specs of an operator with values, right and wrong ones."""
    ints = st.lists(NEAR | SIZES, max_size=8)
    return {
        "elementwise": st.tuples(shape(0, 4).flatmap(lambda s: st.just(tiling_spec(op, [s, s], "float16"))), st.just([])),
        "broadcast": st.tuples(shape(1, 6).map(lambda s: tiling_spec(op, [s, (*s[:-1], 1), s[-1:]], "float16")), st.just([])),
        "reduce": st.tuples(st.builds(lambda s, d: tiling_spec(op, [s], d, capacity=8), shape(0, 8), DTYPES), ints),
        "matmul": st.tuples(st.builds(lambda m, n, k: tiling_spec(op, [(m, k), (k, n)], "float16"), SIZES, SIZES, SIZES), st.just([])),
        "grouped_matmul": groups(),
        "split_kv": lengths(),
        "repeat": counted("repeat"),
        "gather": counted("gather"),
        "range": st.tuples(st.builds(lambda n: tiling_spec(op, [(n,)], "float32", capacity=3), SIZES), st.lists(NEAR, max_size=4)),
        "topk": st.tuples(
            st.builds(lambda s, d: tiling_spec(op, [s], d, capacity=1), shape(1, 3), DTYPES), st.lists(NEAR | SIZES, max_size=2)
        ),
    }[op]


@st.composite
def arguments(draw: st.DrawFn, op: Operator) -> tuple[list[int], list[int]]:
    """What a derivation is given: `a` and `v`, on devices of many sizes."""
    spec, values = draw(cases(op.name))
    cores = draw(st.sampled_from([1, 3, 20, 48]))
    platform = platform_named("910B3")
    small = {"ub_bytes": draw(st.sampled_from([9000, 20000, platform.ub_bytes])), "cube_cores": cores, "vector_cores": cores}
    a = op.read(spec, attrs.evolve(platform, **small))
    a[0] = len(values)
    return a, values


@needs_compiler
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_has_the_same_records_in_cpp(name: str) -> None:
    op, faults = operator_named(name), set[bool]()
    native = compiled(name, op.derive)

    @settings(max_examples=100)
    @given(arguments(op))
    def same(case: tuple[list[int], list[int]]) -> None:
        a, v = case
        expected, got = [0] * op.length(a), array("q", bytes(8 * op.length(a)))
        op.derive(a, v, expected)
        native(array("q", a), array("q", v), got)
        assert list(got) == expected
        faults.add(expected[FAULT] != 0)

    same()
    assert False in faults, "no case was right, so little was compared"


@needs_compiler
def test_cpp_has_no_warnings(tmp_path: Path) -> None:
    for name in OPERATORS:
        (tmp_path / f"{name}.h").write_text(header(name, operator_named(name).derive))
    source = tmp_path / "all.cpp"
    source.write_text("".join(f'#include "{name}.h"\n' for name in OPERATORS))
    assert subprocess.run(["g++", *STRICT, "-fsyntax-only", str(source)], check=False).returncode == 0


# ---- trees ----


def emit(name: str, target: str, folder: Path) -> Path:
    write(operator_named(name), target, folder)
    return folder


@needs_cmake
@needs_compiler
def test_the_library_builds(tmp_path: Path) -> None:
    emit("split_kv", "cpp", tmp_path)
    subprocess.run(["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "b"), "-DBUILD_SHARED_LIBS=ON"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "b")], check=True, capture_output=True)
    library = ctypes.CDLL(str(next((tmp_path / "b").glob("libovsdk_split_kv.*"))))
    op = operator_named("split_kv")
    a = op.read(tiling_spec("split_kv", [(3, 8, 64), (3, 4096, 1, 64)], "float16", capacity=3), platform_named("910B3"))
    a[0], v = 3, [4000, 0, 17]
    got, expected = (ctypes.c_int64 * op.length(a))(), [0] * op.length(a)
    library.ovsdk_split_kv_tiling((ctypes.c_int64 * len(a))(*a), (ctypes.c_int64 * 3)(*v), got)
    op.derive(a, v, expected)
    assert list(got) == expected
    in_c = subprocess.run(["gcc", "-std=c99", "-fsyntax-only", "-x", "c", str(tmp_path / "ovsdk_split_kv.h")], check=False)
    assert in_c.returncode == 0


DEPENDENT = [name for name in OPERATORS if AICPU in operator_named(name).placements]


def shared(folder: Path, *sources: Path, options: Sequence[str] = ()) -> ctypes.CDLL:
    """A library of C++ sources, with our declarations in place of CANN's."""
    to = folder / "test.so"
    subprocess.run(["g++", *STRICT, "-fPIC", "-shared", f"-I{CANN}", *options, "-x", "c++", *map(str, sources), "-o", str(to)], check=True)
    return ctypes.CDLL(str(to))


SINK = """
#include "ovsdk_{op}_tiling.h"
extern "C" uint32_t sink(
    const int64_t *a, int64_t as, const int64_t *numbers, const int64_t *v, int64_t vs, int64_t *record, int64_t *launch)
{{
    gert::TilingContext context{{}};
    context.attributes.list.items.assign(a, a + as);
    context.attributes.numbers.assign(numbers, numbers + 4);
    context.values = {{vs < 0 ? nullptr : v, vs}};
    const auto status = optiling::{type}Tiling(&context);
    for (size_t i = 0; i < context.data.size() && static_cast<int64_t>(i) < numbers[0]; ++i) record[i] = context.data[i];
    launch[0] = context.cores, launch[1] = static_cast<int64_t>(context.key), launch[2] = static_cast<int64_t>(context.workspace);
    return status;
}}
"""
SYSTEM_WORKSPACE = 4096
"""What our declarations say that CANN itself needs."""


def words(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(len(values), 1))(*values)


@needs_compiler
@pytest.mark.parametrize("name", ["reduce", "split_kv"])
def test_the_sink_sources_tile_as_python_does(name: str, tmp_path: Path) -> None:
    op, folder = operator_named(name), emit(name, "aicpu", tmp_path)
    host = folder / "op_host" / f"ovsdk_{name}"
    kind = "Ovsdk" + name.title().replace("_", "")
    (host / "sink.cpp").write_text(SINK.format(op=name, type=kind))
    (kernel,) = (folder / "op_kernel").rglob("*.cpp")
    library = shared(tmp_path, *sorted(host.glob("*.cpp")), kernel)

    @settings(max_examples=50)
    @given(arguments(op), st.booleans())
    def same(case: tuple[list[int], list[int]], compiling: bool) -> None:
        (a, v), expected = case, [0] * op.length(case[0])
        record, launch = words(expected), words([0, 0, 0])
        worst = [op.length(a), op.cores(a), op.workspace(a), op.outputs(a)]
        status = library.sink(words(a), len(a), words(worst), words(v), -1 if compiling else len(v), record, launch)
        if not compiling:
            op.derive(a, v, expected)
            assert list(record[: len(expected)]) == expected
            assert (status != 0) == (expected[FAULT] != 0)
        asked = (op.cores(a), 0, op.workspace(a)) if compiling else (max(expected[BLOCK_DIM], 1), expected[KEY], expected[WORKSPACE])
        if status == 0:
            assert tuple(launch) == (asked[0], asked[1], asked[2] + SYSTEM_WORKSPACE)

    same()


@needs_compiler
@pytest.mark.parametrize("name", DEPENDENT)
def test_the_direct_launch_tiles_as_python_does(name: str, tmp_path: Path) -> None:
    op, folder = operator_named(name), emit(name, "aicpu", tmp_path)
    library = shared(tmp_path, folder / "direct" / f"ovsdk_{name}.aicpu")

    class Launch(ctypes.Structure):
        _fields_ = (
            ("arguments", ctypes.POINTER(ctypes.c_int64)),
            ("values", ctypes.POINTER(ctypes.c_int64)),
            ("count", ctypes.c_int64),
            ("record", ctypes.POINTER(ctypes.c_int64)),
            ("length", ctypes.c_int64),
        )

    @settings(max_examples=50)
    @given(arguments(op))
    def same(case: tuple[list[int], list[int]]) -> None:
        (a, v), expected = case, [0] * op.length(case[0])
        record = words([-1] * len(expected))
        launch = Launch(words([99, *a[1:]]), words(v), len(v), record, len(expected))
        assert getattr(library, f"ovsdk_{name}_tile")(ctypes.byref(launch)) == 0
        op.derive(a, v, expected)
        assert list(record) == expected

    same()


@needs_compiler
def test_the_launch_of_the_direct_kernel_parses(tmp_path: Path) -> None:
    folder = emit("reduce", "aicpu", tmp_path) / "direct"
    launches = re.compile(r"(\w+)<<<([^>]*)>>>\(")
    text, found = launches.subn(r"launched(\1, \2, ", (folder / "ovsdk_reduce.asc").read_text())
    assert found == 2
    source = folder / "parsed.cpp"
    declared = "template <typename K, typename... A> void launched(K, int, void *, void *, A...) {}\n"
    source.write_text(
        declared + text.replace("launched(ovsdk_reduce_kernel, cores", "launched(ovsdk_reduce_kernel, static_cast<int>(cores)")
    )
    subprocess.run(["g++", *STRICT, "-fsyntax-only", f"-I{CANN}", str(source)], check=True)


@needs_cmake
def test_cmake_names_files_that_are_there(tmp_path: Path) -> None:
    emit("reduce", "aicpu", tmp_path)
    configure = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "b"), f"-DCMAKE_MODULE_PATH={CANN / 'cmake'}"]
    said = subprocess.run(configure, check=True, capture_output=True, text=True).stdout
    assert "called npu_op_device_tiling_library cust_opmaster;SHARED;ovsdk_reduce/ovsdk_reduce_tiling.cpp" in said
    assert {"cust_opapi", "cust_op_proto", "cust_optiling", "cust_opmaster", "ascendc_kernels"} <= set(re.findall(r"\w+", said))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_tree_has_no_place_left_open(name: str, target: str) -> None:
    op = operator_named(name)
    if target == AICPU and name not in DEPENDENT:
        with pytest.raises(TilingError, match="no tiling for the AICPU"):
            tree(op, target)
        return
    texts = tree(op, target)
    assert not [path for path, text in texts.items() if "OP" in path or re.search(r"\$(?!ENV)[a-z_]+\b(?!})", text.replace("$<", ""))]
    says = texts.get("README.md", "None of this has been compiled with CANN")
    assert "None of this has been compiled with CANN" in says


def test_write_gives_what_it_wrote_and_refuses_to_overwrite(tmp_path: Path) -> None:
    op = operator_named("reduce")
    files = write(op, "cpp", tmp_path)
    assert {path.relative_to(tmp_path).as_posix(): path.read_text() for path in files} == tree(op, "cpp")
    assert write(op, "cpp", tmp_path) == files
    files[0].write_text("mine")
    with pytest.raises(ConfigError, match="another text"):
        write(op, "cpp", tmp_path)
    assert files[0].read_text() == "mine"


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(OvsdkError, match=r"no target 'ccp' \(did you mean 'cpp'\?\)"):
        tree(operator_named("reduce"), "ccp")


# ---- compiled ----


@needs_compiler
def test_lists_are_written_as_arrays_are() -> None:
    op = operator_named("reduce")
    a = op.read(tiling_spec("reduce", [(3, 5, 7)], "float32", capacity=3), platform_named("910B3"))
    a[0], out, flat = 1, [0] * op.length(a), array("q", bytes(8 * op.length(a)))
    native = compiled("reduce", op.derive)
    native(a, [-1], out)
    native(array("q", a), array("q", [-1]), flat)
    assert out == list(flat)
    assert out[BLOCK_DIM] > 0


def test_no_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="'no-such-compiler' does not run here; install g"):
        compiled("reduce", operator_named("reduce").derive)


@needs_compiler
def test_what_was_built_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build("int x;", "again")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: pytest.fail("it was built twice"))
    assert build("int x;", "again") == first


@needs_compiler
def test_what_the_compiler_says_is_told() -> None:
    with pytest.raises(ConfigError, match=r"(?s)cannot build the tiling .*-broken\.so.*error"):
        build("no C++", "broken")
