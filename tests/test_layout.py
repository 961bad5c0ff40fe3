"""The rules of the house, read from the source: who may import whom, how long things are, what is never written.

A rule takes one `Source` and returns its offenders. Each is shown to catch a small wrong source and to pass a right one.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]


class Source(NamedTuple):
    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def at(self, node: ast.stmt | ast.expr | ast.excepthandler, what: str) -> str:
        return f"{self.path}:{node.lineno}: {what}"


def sources(folder: str) -> list[Source]:
    return [Source(p.relative_to(ROOT).as_posix(), p.read_text()) for p in sorted((ROOT / folder).rglob("*.py"))]


# ---- who imports whom ----


def imports(source: Source) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Everything that a file imports, wherever in it, as absolute dotted names: `from .a import b` in ovsdk/c.py is ovsdk.a.b."""
    package = Path(source.path).parent.parts
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = ".".join((*base, *filter(None, [node.module])))
            yield from ((node, f"{prefix}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node, arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def within(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


CORE = (
    "errors",
    "types",
    "interfaces",
    "ledger",
    "stages",
    "queues",
    "log",
    "spans",
    "timeline",
    "pictures",
    "report",
    "driver",
    "late",
    "threads",
    "run",
    "hookspecs",
)
OWN_IMPORTS = {
    "errors": (),
    "types": (),
    "interfaces": ("types",),
    "ledger": ("errors",),
    **dict.fromkeys((*CORE[4:], "plugins"), CORE),
    "run": (*CORE, "plugins"),
}
"""File of the core -> what of ours it may import. The core knows no backend, no model and no command line."""


def core_imports(source: Source) -> list[str]:
    """The core imports downwards: see OWN_IMPORTS."""
    allowed = OWN_IMPORTS.get(source.path.removeprefix("ovsdk/").removesuffix(".py"))
    if allowed is None:
        return []
    mine = ((node, name.removeprefix("ovsdk.")) for node, name in imports(source) if within(name, ["ovsdk"]))
    return [source.at(node, f"may not import {name}") for node, name in mine if not within(name, allowed)]


def backend_imports(source: Source) -> list[str]:
    """Backends never import each other, but the shared `_torch`, `_wire`, `_host`; nor the command line, models or serving."""
    if not source.path.startswith("ovsdk/backends/"):
        return []
    me = Path(source.path).relative_to("ovsdk/backends").parts[0].removesuffix(".py")
    offenders = []
    for node, name in imports(source):
        backend = name.split(".")[2] if name.startswith("ovsdk.backends.") else me
        foreign = backend != me and not backend.startswith("_")
        if foreign or within(name, ["ovsdk.cli", "ovsdk.models", "ovsdk.serving"]):
            offenders.append(source.at(node, f"may not import {name}"))
    return offenders


HOMES = {
    ("torch", "torch_npu", "transformers", "safetensors", "tokenizers", "gguf"): (
        "ovsdk/models/",
        "ovsdk/backends/_torch.py",
        "ovsdk/backends/_tensors.py",
        "ovsdk/backends/cuda.py",
        "ovsdk/backends/ascend/",
        "ovsdk/tiling/metadata.py",
        "ovsdk/tiling/kernels/",
    ),
    ("pluggy",): ("ovsdk/hookspecs.py", "ovsdk/plugins.py"),
    ("typer", "click"): ("ovsdk/cli/",),
    ("pytest", "hypothesis"): ("ovsdk/testing/",),
}
"""Packages that only some files may name, so that the rest works, and starts fast, without them."""


def homes(source: Source) -> list[str]:
    """A package with a home is imported there alone."""
    return [
        source.at(node, f"only {', '.join(places)} may import {name}")
        for node, name in imports(source)
        for packages, places in HOMES.items()
        if within(name, packages) and not source.path.startswith(places)
    ]


# ---- how it is written ----

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body without its docstring; 0 for a stub, which has no thought to measure."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    stub = all(isinstance(statement, ast.Expr) and ast.unparse(statement) == "..." for statement in body)
    return 0 if stub else (body[-1].end_lineno or 0) - body[0].lineno + 1


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(source.tree) if isinstance(node, Function))


def one_subject(source: Source) -> list[str]:
    """A file over 400 lines has two subjects, a function over 60 two thoughts."""
    lines = source.text.count("\n")
    long_file = [f"{source.path}: {lines} lines, at most 400"] if lines > 400 else []
    return long_file + [source.at(f, f"{f.name} has {body_lines(f)} lines, at most 60") for f in functions(source) if body_lines(f) > 60]


def documented(source: Source) -> list[str]:
    """Every module, and every public class and function in it, has a docstring."""
    public = [n for n in source.tree.body if isinstance(n, (ast.ClassDef, *Function)) and not n.name.startswith(("_", "test_"))]
    missing = [source.at(node, f"{node.name} has no docstring") for node in public if not ast.get_docstring(node)]
    return missing if ast.get_docstring(source.tree) else [f"{source.path}: no docstring", *missing]


def nothing_swallowed(source: Source) -> list[str]:
    """No handler for every exception does nothing, and none is suppressed wholesale."""
    broad = {"None", "Exception", "BaseException"}
    idle = {"pass", "continue", "..."}

    def swallows(node: ast.AST) -> bool:
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "None"
            return caught in broad and {ast.unparse(statement) for statement in node.body} <= idle
        return (
            isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress") and not broad.isdisjoint(map(ast.unparse, node.args))
        )

    return [source.at(node, "swallows every exception") for node in ast.walk(source.tree) if swallows(node)]


def finished(source: Source) -> list[str]:
    """Nothing is left to do in the source, and no path of one machine is in it."""
    pattern = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b|(?<![\w.])/(?:tmp|work|root|home)/")
    return [f"{source.path}:{i}: {line.strip()[:80]}" for i, line in enumerate(source.text.splitlines(), 1) if pattern.search(line)]


# ---- how it is tested ----


def shown(source: Source) -> list[str]:
    """A test asserts, expects an exception, or calls what does."""
    checks = re.compile(r"raises|warns|assert|check|verify|run_state_machine|run_emulated|fail")

    def shows(node: ast.AST) -> bool:
        return isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and bool(checks.search(ast.unparse(node.func))))

    tests = [f for f in functions(source) if f.name.startswith("test")]
    return [source.at(f, f"{f.name} asserts nothing") for f in tests if not any(map(shows, ast.walk(f)))]


def no_sleep(source: Source) -> list[str]:
    """Time is injected, or waited for on a condition."""
    calls = (n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "time.sleep")
    return [source.at(node, "sleeps") for node in (*calls, *(node for node, name in imports(source) if name == "time.sleep"))]


# ---- the rules, and sources that break them ----

HEAD = '"""Law."""\n'


class Rule(NamedTuple):
    check: Callable[[Source], list[str]]
    folders: tuple[str, ...]
    wrong: tuple[Source, ...]
    right: Source


RULES = (
    Rule(
        core_imports,
        ("ovsdk",),
        (
            Source("ovsdk/ledger.py", "from .types import Launch"),
            Source("ovsdk/types.py", "def f():\n    from ovsdk import errors"),
            Source("ovsdk/interfaces.py", "import ovsdk.errors"),
            Source("ovsdk/driver.py", "from .backends import thread"),
        ),
        Source("ovsdk/ledger.py", "from .errors import DriverError\nimport math"),
    ),
    Rule(
        backend_imports,
        ("ovsdk",),
        (
            Source("ovsdk/backends/cpu.py", "from .thread import ThreadBackend"),
            Source("ovsdk/backends/cpu.py", "from . import thread"),
            Source("ovsdk/backends/sim/lanes.py", "from ..cpu import CpuBackend"),
            Source("ovsdk/backends/cpu.py", "from ..cli import main"),
        ),
        Source("ovsdk/backends/sim/lanes.py", "from .kernel import Kernel\nfrom .._host import Signal\nfrom ...ledger import Ledger"),
    ),
    Rule(
        homes,
        ("ovsdk",),
        (
            Source("ovsdk/types.py", "import torch.nn"),
            Source("ovsdk/backends/cpu.py", "def f():\n    from torch import Tensor"),
            Source("ovsdk/backends/cpu.py", "importlib.import_module('torch')"),
            Source("ovsdk/driver.py", "import pluggy"),
        ),
        Source("ovsdk/models/llm.py", "import torch\nfrom transformers import AutoTokenizer"),
    ),
    Rule(
        one_subject,
        ("ovsdk", "examples", "benchmarks"),
        (Source("a.py", "#\n" * 401), Source("a.py", "def f():\n" + "    x = 1\n" * 61)),
        Source("a.py", 'def f():\n    """' + "\n" * 99 + '"""\n' + "    x = 1\n" * 60),
    ),
    Rule(
        documented,
        ("ovsdk", "examples/ovsdk-example", "benchmarks"),
        (Source("a.py", "x = 1"), Source("a.py", HEAD + "def f(): return 1"), Source("a.py", HEAD + "class C: x = 1")),
        Source("a.py", HEAD + "def _f(): return 1"),
    ),
    Rule(
        nothing_swallowed,
        ("ovsdk", "tests", "examples", "benchmarks"),
        (
            Source("a.py", "try: f()\nexcept Exception: pass"),
            Source("a.py", "try: f()\nexcept: ..."),
            Source("a.py", "for x in y:\n    try: f()\n    except BaseException: continue"),
            Source("a.py", "with contextlib.suppress(Exception): f()"),
        ),
        Source("a.py", "try: f()\nexcept Exception: raise\ntry: f()\nexcept KeyError: pass"),
    ),
    Rule(
        finished,
        ("ovsdk", "tests", "examples", "benchmarks", "docs"),
        (Source("a.py", "# TO" + "DO: later"), Source("a.py", "open('/" + "tmp/x')")),
        Source("a.py", "x = 'docs/tmp/x'"),
    ),
    Rule(shown, ("tests", "examples"), (Source("a.py", "def test_f():\n    f()"),), Source("a.py", "def test_f():\n    assert f()")),
    Rule(
        no_sleep,
        ("tests", "examples"),
        (Source("a.py", "time." + "sleep(1)"), Source("a.py", "from time import sleep")),
        Source("a.py", "clock.wait(1)"),
    ),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.check.__name__)
def test_rule_is_kept(rule: Rule) -> None:
    offenders = [offender for folder in rule.folders for source in sources(folder) for offender in rule.check(source)]
    assert not offenders, f"{rule.check.__doc__}\n" + "\n".join(offenders)


MUTANTS = [pytest.param(r.check, wrong, id=f"{r.check.__name__}-{i}") for r in RULES for i, wrong in enumerate(r.wrong)]


@pytest.mark.parametrize(("check", "wrong"), MUTANTS)
def test_rule_catches_what_is_wrong(check: Callable[[Source], list[str]], wrong: Source) -> None:
    assert check(wrong)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.check.__name__)
def test_rule_passes_what_is_right(rule: Rule) -> None:
    assert rule.check(rule.right) == []


# ---- the whole package ----


def too_long(lengths: list[int]) -> str:
    """Why these bodies are too long together, or ''. The bounds are those of the best packages that we know (pluggy, h11, trio)."""
    median = statistics.median(lengths)
    within_20 = sum(length <= 20 for length in lengths) / len(lengths)
    return "" if median <= 5 and within_20 >= 0.9 else f"median {median} lines (at most 5), {within_20:.0%} within 20 (at least 90 %)"


def test_functions_are_short() -> None:
    bodies = {source.at(f, f.name): body_lines(f) for source in sources("ovsdk") for f in functions(source) if body_lines(f)}
    longest = sorted(bodies.items(), key=lambda item: -item[1])[:30]
    assert not too_long(list(bodies.values())), "\n".join(f"{lines:3d} {where}" for where, lines in longest)


@pytest.mark.parametrize("lengths", [[6, 6, 6], [1] * 8 + [21] * 2])
def test_long_functions_are_noticed(lengths: list[int]) -> None:
    assert too_long(lengths)


def test_short_functions_pass() -> None:
    assert too_long([1] * 9 + [60]) == ""


@pytest.mark.parametrize("figure", ["79", "101.27", "177.78"])
def test_no_expected_figure_is_in_the_package(figure: str) -> None:
    """The published result is computed from prices, never written down where it could be printed from."""
    pattern = re.compile(rf"(?<![\d.]){re.escape(figure)}(?:\.0+)?(?![\d.]*\d)")
    files = [p for p in (ROOT / "ovsdk").rglob("*") if p.suffix in (".py", ".toml")]
    assert files
    assert [str(p.relative_to(ROOT)) for p in files if pattern.search(p.read_text())] == []
    assert pattern.search(f"x = {figure}")
    assert not pattern.search(f"x = 1{figure}5")
