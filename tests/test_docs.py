"""The documentation is true: what it lists is what there is, and its programs run."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import ovsdk
from ovsdk import errors, hookspecs

DOCS = Path(__file__).parents[1] / "docs"
WORDS = [
    *("Request", "Batch", "Step", "Row", "Stage", "Ask", "Phase", "Depth", "Lag", "Launch", "Stream", "Event", "Future", "Queue"),
    *("Admission queue", "Lane", "Server", "Idle", "Bubble", "Overrun", "Tiling", "Placement", "Price", "Capability", "Settled"),
]
BOXES = ("tutorial", "how-to", "explanation", "reference")
PROGRAMS = sorted(p for p in DOCS.rglob("*.py") if p.name != "conf.py" and "_build" not in p.parts)


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


# ---- hooks ----

HOOKS: dict[str, Callable[..., Any]] = {name: value for name, value in vars(hookspecs).items() if name.startswith("ovsdk_")}


def hooks_in(text: str) -> dict[str, tuple[list[str], str]]:
    """What a page says of each hook: its arguments and who answers."""
    pattern = re.compile(r"^### `(ovsdk_\w+)\((.*)\)`\n\n(All|One owner|First)\. ", re.MULTILINE)
    return {name: (arguments.split(", ") if arguments else [], answers) for name, arguments, answers in pattern.findall(text)}


def hooks_of(specs: dict[str, Callable[..., Any]]) -> dict[str, tuple[list[str], str]]:
    """The same, of the hook specifications."""
    return {name: (list(inspect.signature(spec).parameters), answers_of(spec)) for name, spec in specs.items()}


def answers_of(spec: Callable[..., Any]) -> str:
    if spec.ovsdk_spec["firstresult"]:  # type: ignore[attr-defined]
        return "First"
    return "One owner" if "One owner." in (spec.__doc__ or "") else "All"


def test_every_hook_is_documented_with_its_arguments_and_answers() -> None:
    assert hooks_in(page("reference/hooks.md")) == hooks_of(HOOKS)


@pytest.mark.parametrize(
    ("documented", "real"),
    [
        ("ovsdk_make_queue(name, options)", "ovsdk_make_queue(name, capacity)"),
        ("ovsdk_prices(name)", "ovsdk_price(name)"),
        ("`\n\nOne owner. Make the queue", "`\n\nAll. Make the queue"),
    ],
)
def test_a_wrong_page_of_hooks_is_noticed(documented: str, real: str) -> None:
    wrong = page("reference/hooks.md").replace(documented, real)
    assert hooks_in(wrong) != hooks_of(HOOKS)


def test_every_hook_specification_says_what_it_is_for() -> None:
    assert [name for name, spec in HOOKS.items() if not (spec.__doc__ or "").strip()] == []


# ---- errors ----


def error_classes() -> list[type[BaseException]]:
    return [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, BaseException)]


def tree_of(classes: Iterable[type[BaseException]]) -> set[str]:
    """Each class as `Parent > Class (Builtin)`, as the page's indented tree has it."""
    lines = set()
    for cls in classes:
        ours = [base.__name__ for base in cls.__bases__ if base.__module__ == "ovsdk.errors"]
        builtin = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins" and base is not Exception]
        lines.add(" > ".join([*ours, cls.__name__]) + "".join(f" ({name})" for name in builtin))
    return lines


def tree_in(text: str) -> set[str]:
    lines, above = set(), dict[int, str]()
    for indent, line in re.findall(r"^((?:  )+)([A-Z]\w+(?: \(\w+\))?)$", text, re.MULTILINE):
        above[len(indent)] = line.split()[0]
        parent = above.get(len(indent) - 2)
        lines.add(f"{parent} > {line}" if parent else line)
    return lines


def test_the_tree_of_errors_is_the_real_one() -> None:
    assert tree_in(page("reference/errors.md")) == tree_of(error_classes())


def test_every_error_has_a_row_that_says_what_to_do() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| .{20,} \|$", page("reference/errors.md"), re.MULTILINE)
    assert sorted(rows) == sorted(cls.__name__ for cls in error_classes())


# ---- words, interfaces, boxes ----


def test_the_glossary_has_every_word() -> None:
    words = re.findall(r"^([A-Z][\w ]+)$", page("reference/glossary.md").split("```{glossary}")[1].split("```")[0], re.MULTILINE)
    assert words == WORDS


def test_the_interfaces_page_shows_every_public_name_that_is_no_error() -> None:
    shown = set(re.findall(r"auto(?:class|function):: ovsdk\.(\w+)", page("reference/interfaces.md")))
    public = {name for name in ovsdk.__all__ if inspect.isclass(value := getattr(ovsdk, name)) or inspect.isfunction(value)}
    assert shown == public - {cls.__name__ for cls in error_classes()}


@pytest.mark.parametrize("box", BOXES)
def test_every_page_of_a_box_is_in_its_index(box: str) -> None:
    listed = page(f"{box}/index.md").split("```{toctree}")[1].split("```")[0].split("\n\n")[1].split()
    assert sorted(listed) == sorted(p.stem for p in (DOCS / box).glob("*.md") if p.stem != "index")
    assert f"({box}/index.md)" in page("index.md")


# ---- programs ----


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.relative_to(DOCS).as_posix())
def test_program_is_shown_and_runs(program: Path, tmp_path: Path) -> None:
    """Each file is included by a page of its folder, and runs in an empty folder without a warning."""
    assert any(f"{{literalinclude}} {program.name}" in p.read_text() for p in program.parent.glob("*.md"))
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_tutorial_shows_its_true_output(tmp_path: Path) -> None:
    """All but the two measured lines is the same on every machine. To renew: python first_pipeline.py > first_pipeline.out"""
    done = subprocess.run(
        [sys.executable, str(DOCS / "tutorial/first_pipeline.py")], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    actual, shown = done.stdout.splitlines(), page("tutorial/first_pipeline.out").splitlines()
    assert actual[2:] == shown[2:]
    for depth, lines in enumerate(zip(actual[:2], shown[:2], strict=True), 1):
        assert all(re.match(rf"20 steps in [\d.]+ m?s on cpu, depth {depth}, inline: [\d.]+ ms/step, device busy", line) for line in lines)


class Trace:
    """A scheduler that notes each plan with the results that it has seen, and an executor to go with it."""

    def __init__(self, steps: int) -> None:
        self.steps, self.seen, self.trace = steps, [], []

    def plan(self, ask: Any) -> Any:
        self.trace.append((ask.step, tuple(self.seen)))
        return ovsdk.CLOSED if ask.step == self.steps else f"batch {ask.step}"

    def retire(self, step: int, batch: Any, result: Any) -> None:
        self.seen.append((step, batch, result))

    def prepare(self, step: int, batch: str) -> str:
        return batch

    def launch(self, step: int, inputs: str) -> ovsdk.Launch:
        return ovsdk.Launch("shout", fn=str.upper, inputs=inputs)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_library_decides_as_the_twelve_lines_do(depth: int) -> None:
    spec = importlib.util.spec_from_file_location("direct_loop", DOCS / "explanation/direct_loop.py")
    assert spec is not None
    assert spec.loader is not None
    direct_loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(direct_loop)
    with ovsdk.open_backend("thread") as device:
        expected, actual = Trace(7), Trace(7)
        direct_loop.overlap(expected, expected, device.stream(), depth)
        ovsdk.run(actual, actual, device, depth=depth)
    assert actual.trace == expected.trace
    assert actual.seen == expected.seen
    assert actual.trace[-1][1] == tuple((k, f"batch {k}", f"BATCH {k}") for k in range(8 - depth))


def test_it_is_twelve_lines() -> None:
    code = page("explanation/direct_loop.py").split("def overlap")[1].splitlines()[1:]
    assert len([line for line in code if line.strip()]) == 12
