"""Where each local of a function is declared in C++: Python has one scope a function, C++ one a block.

A local is declared by its first assignment where that dominates every use: when no use stands outside the assignment's block or
before it. Any other is declared at the head of the function, as 0. A loop's variable belongs to its loop alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import attrs

from .reading import Function, bound, mentioned, refuse

Place = tuple[tuple[int, int], ...]
"""A statement: (block, index in the block) of every statement around it and of itself, outermost first."""


@attrs.frozen
class Scopes:
    """`at_head` are the locals to declare at the head; `declaring` gives, for a statement's id, the locals that it declares."""

    at_head: tuple[str, ...]
    declaring: dict[int, frozenset[str]]


def scopes(function: Function) -> Scopes:
    """Scopes of a function's locals. Raises ConfigError where a name is both a local and a loop's variable."""
    seen: dict[str, list[tuple[Place, ast.stmt]]] = {}
    for place, statement, name in _occurrences(function.node.body, ()):
        seen.setdefault(name, []).append((place, statement))
    locals_ = sorted(_assigned(function) - set(function.parameters))
    homes = {name: _home(name, seen[name]) for name in locals_}
    declaring: dict[int, set[str]] = {}
    for name, home in homes.items():
        if home is not None:
            declaring.setdefault(id(home), set()).add(name)
    return Scopes(tuple(name for name in locals_ if homes[name] is None), {key: frozenset(names) for key, names in declaring.items()})


def _assigned(function: Function) -> set[str]:
    """Names that are assigned other than by a loop."""
    loops = [node for node in ast.walk(function.node) if isinstance(node, ast.For)]
    of_loops = {name for loop in loops for name in bound(loop.target)}
    stores = [node for node in ast.walk(function.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    targets = {id(node) for loop in loops for node in ast.walk(loop.target)}
    for node in stores:
        if id(node) not in targets and node.id in of_loops:
            refuse(function.file, node, f"{node.id} is the variable of a loop: take another name")
    return {node.id for node in stores if id(node) not in targets}


def _home(name: str, seen: Sequence[tuple[Place, ast.stmt]]) -> ast.stmt | None:
    """The assignment that declares it: the first statement, in the innermost block around all uses, that has it at all."""
    places = [place for place, _ in seen]
    depth = _common(places)
    first = min(place[depth][1] for place in places)
    here = [statement for place, statement in seen if len(place) == depth + 1 and place[depth][1] == first]
    return here[0] if here and _assigns(here[0], name) else None


def _common(places: Sequence[Place]) -> int:
    """The depth of the innermost block that is around all of them."""
    depth = 0
    while all(len(place) > depth + 1 for place in places) and len({(place[depth], place[depth + 1][0]) for place in places}) == 1:
        depth += 1
    return depth


def _assigns(statement: ast.stmt, name: str) -> bool:
    """Whether a statement gives it a value that does not depend on it."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    assigned = {name for target in targets for name in bound(target)}
    return name in assigned and statement.value is not None and name not in mentioned(statement.value)


def _occurrences(block: Sequence[ast.stmt], around: Place) -> Iterator[tuple[Place, ast.stmt, str]]:
    """Every name in a block and those inside it, with the innermost statement that has it."""
    for index, statement in enumerate(block):
        place = (*around, (id(block[0]), index))
        inner = [child for field in ("body", "orelse") if (child := getattr(statement, field, None))]
        nested = {id(node) for child in inner for kid in child for node in ast.walk(kid)}
        own = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and id(node) not in nested]
        yield from ((place, statement, node.id) for node in own)
        for child in inner:
            yield from _occurrences(child, place)
