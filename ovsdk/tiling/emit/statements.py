"""Statements of the subset, and a whole function, written as C++17."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .expressions import FIXED, GROWN, Expressions
from .reading import Function, Unit, bound, mentioned
from .scopes import scopes

INDENT = "    "


def write(function: Function, unit: Unit) -> str:
    """The function in C++. Raises ConfigError, with file and line, for what is outside the subset."""
    return _Statements(function, unit).text()


class _Statements:
    def __init__(self, function: Function, unit: Unit) -> None:
        self.function, self.scopes, self.say = function, scopes(function), Expressions(function, unit)
        self.say.numbers.update(self.scopes.at_head)

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        self.say.refuse(node, why)

    # ---- the function ----

    def text(self) -> str:
        node, doc = self.function.node, ast.get_docstring(self.function.node)
        body = node.body if doc is None else node.body[1:]
        if self.function.result != "void" and not _returns(body):
            self.refuse(node, "a function that gives a value returns one on every way to its end")
        comment = [f"// {line}".rstrip(" \\") for line in (doc or "").splitlines()]
        head = f"OVSDK_FUNCTION {self.function.result} {self.function.spelled}({', '.join(self.parameters())})"
        local = [f"{INDENT}int64_t {name} = 0;" for name in self.scopes.at_head]
        return "\n".join([*comment, head, "{", *local, *self.block(body), "}"]) + "\n"

    def parameters(self) -> list[str]:
        used = {name for statement in self.function.node.body for name in mentioned(statement)}
        typed = {name: f"{kind.value} {name}".replace("* ", " *") for name, kind in self.function.parameters.items()}
        return [text if name in used else f"[[maybe_unused]] {text}" for name, text in typed.items()]

    def block(self, statements: Sequence[ast.stmt]) -> list[str]:
        return [INDENT + line for statement in statements for line in self.statement(statement)]

    def statement(self, node: ast.stmt) -> list[str]:
        for expression in ast.iter_child_nodes(node):
            if isinstance(expression, ast.expr) and expression is not getattr(node, "annotation", None):
                self.say.ordered(expression)
        return STATEMENTS[type(node)](self, node)

    # ---- assignments ----

    def assign(self, node: ast.Assign) -> list[str]:
        if isinstance(node.targets[0], ast.Tuple):
            return self.unpack(node, node.targets[0])
        if len(node.targets) > 1 and not isinstance(node.value, (ast.Constant, ast.Name)):
            self.refuse(node, "several targets take a number or a name: give the value a name first")
        return [self.store(target, node.value, node) for target in node.targets]

    def annotated(self, node: ast.AnnAssign) -> list[str]:
        return [self.store(node.target, node.value, node)] if node.value else self.refuse(node, "a local begins with a value")

    def unpack(self, node: ast.Assign, target: ast.Tuple) -> list[str]:
        values = node.value.elts if isinstance(node.value, ast.Tuple) else []
        if len(values) != len(target.elts) or len(node.targets) > 1:
            self.refuse(node, "unpacking is x, y = one value for each")
        if mentioned(node.value) & mentioned(target):
            self.refuse(node, "values of an unpacking may not use what it assigns: assign one after the other")
        return [self.store(one, value, node) for one, value in zip(target.elts, values, strict=True)]

    def store(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> str:
        if isinstance(target, ast.Subscript):
            return f"{self.say.element(target, write=True)} = {self.say.value(value)[0]};"
        if not isinstance(target, ast.Name) or target.id in self.say.arrays:
            self.refuse(node, "targets are integers and elements of arrays")
        declares = target.id in self.scopes.declaring.get(id(node), ())
        if isinstance(value, ast.BinOp) and isinstance(value.left, ast.List):
            return self.array(target.id, value, declares)
        text = self.say.value(value)[0]
        self.say.numbers.add(target.id)
        return f"{'int64_t ' if declares else ''}{target.id} = {text};"

    def array(self, name: str, value: ast.BinOp, declares: bool) -> str:
        if not declares or not isinstance(value.op, ast.Mult) or ast.unparse(value.left) != "[0]":
            self.refuse(value, "a local array is made as [0] * size, before all its uses")
        size, text = self.say.fixed(value.right), self.say.value(value.right)[0]
        if size is not None and size < 1:
            self.refuse(value, "an array has an element or more")
        self.say.arrays[name] = GROWN if size is None else FIXED
        return f"std::vector<int64_t> {name}(max(0, {text}));" if size is None else f"int64_t {name}[{text}] = {{}};"

    def update(self, node: ast.AugAssign) -> list[str]:
        sign, _ = self.say.binary(node, node.op)
        self.say.not_negative(node.op, node.value)
        if isinstance(node.target, ast.Subscript) and self.say.writes(node.value):
            self.refuse(node, "the call may write the element before it is read: give it its own line")
        return [f"{self.updated(node.target)} {sign}= {self.say.value(node.value)[0]};"]

    def updated(self, target: ast.expr) -> str:
        return self.say.element(target, write=True) if isinstance(target, ast.Subscript) else self.say.value(target)[0]

    # ---- the others ----

    def call(self, node: ast.Expr) -> list[str]:
        if not isinstance(node.value, ast.Call):
            self.refuse(node, "a line of its own is a call")
        return [f"{self.say.call(node.value, used=False)[0]};"]

    def give(self, node: ast.Return) -> list[str]:
        if (node.value is None) != (self.function.result == "void"):
            self.refuse(node, "what it returns is not what it is annotated with")
        return [f"return {self.say.value(node.value)[0]};" if node.value else "return;"]

    def branch(self, node: ast.If) -> list[str]:
        lines = [f"if ({self.say.truth(node.test)[0]}) {{", *self.block(node.body)]
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            first, *rest = self.statement(node.orelse[0])
            return [*lines, f"}} else {first}", *rest]
        return [*lines, *(["} else {", *self.block(node.orelse)] if node.orelse else []), "}"]

    def repeat(self, node: ast.While) -> list[str]:
        self.no_else(node)
        return [f"while ({self.say.truth(node.test)[0]}) {{", *self.block(node.body), "}"]

    def no_else(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            self.refuse(node, "a loop has no else")

    # ---- for ----

    def loop(self, node: ast.For) -> list[str]:
        self.no_else(node)
        name, (begin, end, step, fixed) = self.variable(node), self.bounds(node)
        stop, pace = self.unused(f"{name}_end"), self.unused(f"{name}_step")
        self.say.loops.append(name)
        body = self.block(node.body)
        self.say.loops.pop()
        once = "" if fixed else f", {pace} = {step}"
        move = {"1": f"++{name}", "-1": f"--{name}"}.get(step, f"{name} += {pace if once else step}")
        goes_on = f"{name} {'>' if step.startswith('-') else '<'} {stop}"
        return [f"for (int64_t {name} = {begin}, {stop} = {end}{once}; {goes_on}; {move}) {{", *body, "}"]

    def variable(self, node: ast.For) -> str:
        name = node.target.id if isinstance(node.target, ast.Name) else self.refuse(node, "a loop has one variable")
        if name in self.say.loops or name in self.function.parameters:
            self.refuse(node, f"{name} is taken around this loop: take another name")
        return name

    def bounds(self, node: ast.For) -> tuple[str, str, str, bool]:
        """Begin, end, step, and whether the step is known when compiled. Python computes all three once."""
        call = node.iter
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "range" and not call.keywords and 1 <= len(call.args) <= 3):
            self.refuse(node, "loops are `for name in range(...)`")
        texts = [self.say.value(argument)[0] for argument in call.args]
        begin, end = ("0", texts[0]) if len(texts) == 1 else (texts[0], texts[1])
        return begin, end, *(self.step(call.args[2], texts[2]) if len(texts) > 2 else ("1", True))

    def step(self, node: ast.expr, text: str) -> tuple[str, bool]:
        fixed = self.say.fixed(node)
        if fixed == 0 or (fixed is None and self.say.negative(node)):
            self.refuse(node, "a step is positive, or a number known when compiled, and not 0")
        return (text, False) if fixed is None else (str(fixed), True)

    def unused(self, name: str) -> str:
        """That name, or one near it that the function does not have."""
        return self.unused(name + "_") if name in bound(self.function.node) | set(self.function.parameters) else name


def _returns(block: Sequence[ast.stmt]) -> bool:
    """Whether a block never runs past its end."""
    last = block[-1] if block else None
    if isinstance(last, ast.If):
        return _returns(last.body) and _returns(last.orelse)
    return isinstance(last, ast.Return)


STATEMENTS: dict[type[ast.stmt], Callable[[_Statements, Any], list[str]]] = {
    ast.Assign: _Statements.assign,
    ast.AnnAssign: _Statements.annotated,
    ast.AugAssign: _Statements.update,
    ast.Expr: _Statements.call,
    ast.If: _Statements.branch,
    ast.For: _Statements.loop,
    ast.While: _Statements.repeat,
    ast.Return: _Statements.give,
    ast.Pass: lambda _writer, _node: [";"],
    ast.Break: lambda _writer, _node: ["break;"],
    ast.Continue: lambda _writer, _node: ["continue;"],
}
