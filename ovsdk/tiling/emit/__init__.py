"""An operator's derivation for where no Python runs: `ovsdk tile emit`. Its C++ is written from its source text, see `header`.

The files around it are templates: a tree for each target, in which OP stands for the operator's name. They are our own text, after the
public documentation of CANN's interfaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

from ...errors import ConfigError, TilingError, guess
from ..operator import Operator
from ..spec import AICPU, BLOCK_DIM, FAULT, length
from .compiled import compiled
from .header import header
from .reading import read

__all__ = ["TARGETS", "compiled", "header", "tree", "write"]

TARGETS: Mapping[str, str] = {
    "cpp": "a C++17 library with a C interface, for any host",
    "aicpu": "CANN sources for the device's AICPU: a custom operator with tiling sink, and a direct launch; not compiled with CANN by us",
}
TEMPLATES = Path(__file__).parent / "templates"
ROWS = 512
"""Rows of the table for which a record has room in a kernel's tiling data. The emitted README says where to change it."""


def write(op: Operator, target: str, folder: Path) -> list[Path]:
    """Write the sources of `target` for this operator into `folder`; their paths.

    Raises TilingError for an unknown target, and for one that the operator has no use for; ConfigError, with file and line, where its
    derivation is outside the subset, and where `folder` has one of the files with another text: nothing is written then.
    """
    texts = {folder / path: text for path, text in tree(op, target).items()}
    for path, text in texts.items():
        if path.exists() and path.read_text() != text:
            raise ConfigError(f"{path} is there with another text: remove it, or write into another folder")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(texts)


def tree(op: Operator, target: str) -> dict[str, str]:
    """Path -> text of every file that `write` would write."""
    if target not in TARGETS:
        raise TilingError(f"no target {target!r}{guess(target, TARGETS)}; allowed: {', '.join(TARGETS)}")
    if target == AICPU and AICPU not in op.placements:
        raise TilingError(
            f"{op.name} has no tiling for the AICPU: no values on the device decide it; its placements: {', '.join(op.placements)}"
        )
    names, folder = _names(op), TEMPLATES / target
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {path.replace("OP", op.name): Template(text).substitute(names) for path, text in found.items()}


def _names(op: Operator) -> dict[str, str]:
    """What a template may name."""
    fixed, row = length(op.header), length(op.row)
    return {
        "op": op.name,
        "type": "Ovsdk" + "".join(word.capitalize() for word in op.name.split("_")),
        "derive": read(op.derive).entry.spelled,
        "header": header(op.name, op.derive),
        "values": op.values,
        "of_values": f" of `{op.values}`, a[0] of them" if op.values else ", none",
        "structs": op.c_struct(),
        "arguments": _arguments(op),
        "argument_count": str(length(op.args)),
        "length": f"{fixed} of its head" + (f", then rows of {row}" if row else ""),
        "capacity": str(fixed + ROWS * row),
        "fault_word": str(FAULT),
        "block_dim_word": str(BLOCK_DIM),
    }


def _arguments(op: Operator) -> str:
    """An enumeration of where each argument stands."""
    at, lines = 0, []
    for field in op.args:
        lines.append(f"    {op.name.upper()}_{field.name.upper()} = {at}, /* {field.about} */")
        at += field.size
    return "\n".join([f"enum ovsdk_{op.name}_argument {{", *lines, f"    {op.name.upper()}_ARGUMENTS = {at}", "};"])
