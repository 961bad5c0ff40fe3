"""What a derivation is made of: its function, those that it calls and the named integers that they use, read from their source.

A name means what Python takes it for: it is looked up in the module of the function that uses it, so helpers and constants
may be imported. A callee stands before its callers. Everything outside the subset is refused with its file and line.
"""

from __future__ import annotations

import ast
import enum
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import NoReturn

import attrs

from ...errors import ConfigError

BUILTINS = frozenset({"range", "min", "max", "abs"})
"""What a derivation may call besides its own functions."""
_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr continue default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int int64_t long mutable namespace new
    noexcept not not_eq nullptr operator or or_eq private protected public register return short signed sizeof static std struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile while xor xor_eq
"""
WORDS = frozenset(_WORDS.split())
"""Words that mean something else in C++."""
LARGEST = 2**63 - 1
STATEMENTS = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return),
    *(ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.Pass),
)


class Kind(enum.Enum):
    """What a parameter is: its type in C++."""

    INT = "int64_t"
    READ = "const int64_t*"
    WRITE = "int64_t*"


KINDS = {
    "int": Kind.INT,
    "bool": Kind.INT,
    "Sequence[int]": Kind.READ,
    "MutableSequence[int]": Kind.WRITE,
    "list[int]": Kind.WRITE,
}
RESULTS = {"int": "int64_t", "bool": "int64_t", "None": "void"}


@attrs.frozen
class Function:
    """A function in the subset. `globals`: the names of its module; `result`: its type in C++."""

    python: FunctionType
    node: ast.FunctionDef
    file: str
    globals: Mapping[str, object]
    parameters: Mapping[str, Kind]
    result: str

    @property
    def name(self) -> str:
        """Its name in Python."""
        return self.node.name

    @property
    def spelled(self) -> str:
        """Its name in C++."""
        return f"{self.name}_" if self.name in WORDS else self.name

    @property
    def writes(self) -> bool:
        """Whether it may write into an array of its caller."""
        return Kind.WRITE in self.parameters.values()

    def callee(self, name: str) -> FunctionType | None:
        """The Python function that it calls so; None where the name is no function's."""
        found = self.globals.get(name)
        return found if isinstance(found, FunctionType) else None

    def constant(self, name: str) -> int | None:
        """The integer of its module that has this name, if one has."""
        found = self.globals.get(name)
        return int(found) if isinstance(found, int) else None


@attrs.frozen
class Unit:
    """All functions that a derivation needs, a callee before its callers, and the integers that they name."""

    functions: Mapping[str, Function]
    constants: Mapping[str, int]

    @property
    def entry(self) -> Function:
        """The derivation itself."""
        return list(self.functions.values())[-1]


def refuse(file: str, node: ast.AST, why: str) -> NoReturn:
    """Raise the ConfigError that names file and line, shows the source and says what may stand there instead."""
    shown = ast.unparse(node).splitlines()[0]
    raise ConfigError(f"{file}:{getattr(node, 'lineno', 1)}: a tiling derivation cannot have `{shown[:100]}`: {why}")


def read(derive: Callable[..., None]) -> Unit:
    """The unit of `derive(a, v, out)`. Raises ConfigError for what is outside the subset of names, calls and signatures."""
    functions: dict[str, Function] = {}
    constants: dict[str, int] = {}
    _collect(derive, functions, constants, ())
    unit = Unit(functions, _in_order(constants, functions.values()))
    if tuple(unit.entry.parameters.values()) != (Kind.READ, Kind.READ, Kind.WRITE) or unit.entry.result != "void":
        refuse(unit.entry.file, unit.entry.node, "its signature is (a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None")
    return unit


def _in_order(constants: Mapping[str, int], functions: Iterable[Function]) -> dict[str, int]:
    """The constants as their modules have them."""
    order = dict.fromkeys(name for function in functions for name in function.globals)
    return {name: constants[name] for name in order if name in constants}


def _collect(python: Callable[..., object], functions: dict[str, Function], constants: dict[str, int], callers: tuple[str, ...]) -> None:
    known = functions.get(getattr(python, "__name__", ""))
    if known is not None and known.python is python:
        return
    function = parse(python)
    _check(function)
    if function.name in callers:
        refuse(function.file, function.node, f"it calls itself ({' > '.join((*callers, function.name))}): write a loop")
    if known is not None:
        refuse(function.file, function.node, f"{known.file}:{known.node.lineno} has another function of this name: rename one")
    for node in names(function):
        _name(function, node, functions, constants, (*callers, function.name))
    functions[function.name] = function


def _check(function: Function) -> None:
    """Refuse statements outside the subset, and a module that hides a builtin."""
    for statement in (inner for line in function.node.body for inner in ast.walk(line) if isinstance(inner, ast.stmt)):
        if not isinstance(statement, STATEMENTS):
            refuse(function.file, statement, "statements are assignments, calls, if, for in range, while, break, continue, pass and return")
    for hidden in sorted(BUILTINS & set(function.globals)):
        refuse(function.file, function.node, f"its module has a {hidden} of its own, which C++ would not call: rename it")


def _name(function: Function, node: ast.Name, functions: dict[str, Function], constants: dict[str, int], callers: tuple[str, ...]) -> None:
    callee, number = function.callee(node.id), function.constant(node.id)
    if callee is not None:
        _collect(callee, functions, constants, callers)
    elif number is None:
        refuse(function.file, node, f"{node.id} is no local, no integer and no plain function of the module")
    elif constants.setdefault(_free(function.file, node, node.id), number) != number:
        refuse(function.file, node, f"{node.id} is {number} here and {constants[node.id]} in another module: rename one")
    elif abs(number) > LARGEST:
        refuse(function.file, node, f"{node.id} = {number} has over 64 bits")


def names(function: Function) -> Iterator[ast.Name]:
    """The names in its body that belong to its module."""
    own = bound(function.node) | set(function.parameters) | BUILTINS
    inside = (node for statement in function.node.body for node in _expressions(statement))
    return (node for node in inside if isinstance(node, ast.Name) and node.id not in own)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """All nodes of a statement but annotations, which mean nothing at run time."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for field, child in _children(node) if field != "annotation"]


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield field, child


def bound(node: ast.AST) -> set[str]:
    """The names that are assigned anywhere in it."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}


def mentioned(node: ast.AST) -> set[str]:
    """The names that stand anywhere in it."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def parse(python: Callable[..., object]) -> Function:
    """The source of a plain function. Raises ConfigError where there is none, and for what its head may not have."""
    if not isinstance(python, FunctionType) or python.__closure__ or python.__name__ == "<lambda>":
        raise ConfigError(f"{python!r} is not a plain function of a module, so it cannot be written in C++: define it with `def`")
    file = python.__code__.co_filename
    try:
        lines, first = inspect.getsourcelines(python)
    except OSError as absent:
        raise ConfigError(f"the source of {python.__qualname__} ({file}) is not there, so it cannot be written in C++") from absent
    node = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(node, ast.FunctionDef) or not _is_source(node, python):
        raise ConfigError(f"{file}:{first}: the source of {python.__qualname__} was changed after it was imported: start Python anew")
    ast.increment_lineno(node, first - 1)
    _respell(file, node)
    return Function(python, node, file, python.__globals__, _parameters(file, node), _result(file, node))


def _is_source(node: ast.FunctionDef, python: FunctionType) -> bool:
    """Whether that is the function that runs: its text is read from disk, where somebody may have written since."""
    found = compile(ast.Module([node], []), "", "exec", dont_inherit=True).co_consts
    return any(_content(code) == _content(python.__code__) for code in found if isinstance(code, CodeType))


def _content(code: CodeType) -> tuple[object, ...]:
    constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
    return code.co_name, code.co_code, code.co_names, code.co_varnames, constants


def _respell(file: str, node: ast.FunctionDef) -> None:
    """Locals and parameters that are words of C++ get an underscore at their end, as functions do."""
    own = bound(node) | {argument.arg for argument in node.args.args}
    for argument in node.args.args:
        argument.arg = _spelled(file, argument, argument.arg, own)
    for inner in (inner for statement in node.body for inner in _expressions(statement)):
        if isinstance(inner, ast.Name) and inner.id in own:
            inner.id = _spelled(file, inner, inner.id, own)


def _spelled(file: str, node: ast.AST, name: str, own: set[str]) -> str:
    spelled = f"{name}_" if name in WORDS else name
    return _free(file, node, spelled) if spelled == name or spelled not in own else refuse(file, node, f"{spelled} is another name here")


def _parameters(file: str, node: ast.FunctionDef) -> dict[str, Kind]:
    plain = ast.arguments([], node.args.args, None, [], [], None, [])
    if node.decorator_list or ast.dump(plain) != ast.dump(node.args):
        refuse(file, node, "decorators, defaults, keyword-only and starred parameters are outside the subset")
    return {argument.arg: _kind(file, argument) for argument in node.args.args}


def _kind(file: str, argument: ast.arg) -> Kind:
    kind = KINDS.get(ast.unparse(argument.annotation) if argument.annotation else "")
    return kind or refuse(file, argument, f"a parameter is annotated as one of {', '.join(KINDS)}")


def _result(file: str, node: ast.FunctionDef) -> str:
    result = RESULTS.get(ast.unparse(node.returns) if node.returns else "")
    return result or refuse(file, node, f"a result is annotated as one of {', '.join(RESULTS)}")


def _free(file: str, node: ast.AST, name: str) -> str:
    return refuse(file, node, f"`{name}` means something else in C++: take another name") if name in WORDS | BUILTINS else name
