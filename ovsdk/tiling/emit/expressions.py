"""Expressions of the subset, written as C++17 that computes the same 64-bit integers.

What could mean something else in C++ is refused: a negative operand of // or % and a negative index, as far as the text shows them;
`and` and `or` of integers for their value; a call that writes arrays beside another read of one; a loop's variable after its loop.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, NoReturn

from .reading import BUILTINS, LARGEST, Function, Kind, Unit, refuse

TERNARY, OR, AND, EQUAL, ORDER, ADD, MULTIPLY, UNARY, ATOM = range(9)
"""How tightly C++ binds what was written."""
Text = tuple[str, int]

BINARY: dict[type[ast.operator], tuple[str, int]] = {
    ast.Add: ("+", ADD),
    ast.Sub: ("-", ADD),
    ast.Mult: ("*", MULTIPLY),
    ast.FloorDiv: ("/", MULTIPLY),
    ast.Mod: ("%", MULTIPLY),
}
COMPARE: dict[type[ast.cmpop], tuple[str, int]] = {
    ast.Eq: ("==", EQUAL),
    ast.NotEq: ("!=", EQUAL),
    ast.Lt: ("<", ORDER),
    ast.LtE: ("<=", ORDER),
    ast.Gt: (">", ORDER),
    ast.GtE: (">=", ORDER),
}
BOOLEAN: dict[type[ast.boolop], tuple[str, int]] = {ast.And: ("&&", AND), ast.Or: ("||", OR)}
ARITHMETIC = (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
"""Nodes of an expression whose value is known when compiled, if all its names are."""
FIXED, GROWN = "fixed", "grown"
"""Local arrays: of a size known when compiled, and of one known when run."""


def at_least(text: Text, level: int) -> str:
    """What was written, in parentheses if it does not bind as tightly as that."""
    return text[0] if text[1] >= level else f"({text[0]})"


def narrow(node: ast.expr) -> bool:
    """Whether C++ would compute it in fewer bits than 64."""
    if isinstance(node, ast.IfExp):
        return narrow(node.body) and narrow(node.orelse)
    return isinstance(node, (ast.Constant, ast.Compare, ast.BoolOp)) or (isinstance(node, ast.UnaryOp) and narrow(node.operand))


def boolean(node: ast.expr) -> bool:
    """Whether it is True or False."""
    if isinstance(node, ast.BoolOp):
        return all(map(boolean, node.values))
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, ast.Compare) or (isinstance(node, ast.Constant) and isinstance(node.value, bool))


class Expressions:
    """Writes the expressions of one function, in the order of its text: names become known as the statements are written.

    `arrays` and `numbers` are the names that hold arrays and integers so far, `loops` the variables of the loops around.
    """

    def __init__(self, function: Function, unit: Unit) -> None:
        self.function, self.unit = function, unit
        self.arrays: dict[str, object] = {name: kind for name, kind in function.parameters.items() if kind is not Kind.INT}
        self.numbers = {name for name, kind in function.parameters.items() if kind is Kind.INT}
        self.loops: list[str] = []

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        """Raise the ConfigError for this node."""
        refuse(self.function.file, node, why)

    def value(self, node: ast.expr) -> Text:
        """An expression, for its value."""
        writer = EXPRESSIONS.get(type(node))
        if writer is None:
            self.refuse(node, "expressions are integers, names, elements, + - * // %, comparisons, and, or, not, if-else and calls")
        return writer(self, node)

    def truth(self, node: ast.expr) -> Text:
        """A condition: there `and`, `or` and `not` may have integers."""
        if isinstance(node, ast.BoolOp):
            operator, level = BOOLEAN[type(node.op)]
            return f" {operator} ".join(at_least(self.truth(operand), EQUAL) for operand in node.values), level
        return self.value(node)

    def both(self, node: ast.BoolOp) -> Text:
        """`and` and `or`, for their value."""
        return self.truth(node) if boolean(node) else self.refuse(node, "of integers, `and` and `or` give one of them: compare them")

    # ---- names and arrays ----

    def literal(self, node: ast.Constant) -> Text:
        """An integer."""
        if not isinstance(node.value, int):
            self.refuse(node, "values are integers")
        return (str(int(node.value)), ATOM) if node.value <= LARGEST else self.refuse(node, "it has over 64 bits")

    def name(self, node: ast.Name) -> Text:
        """A local, a parameter, a loop's variable or a named integer."""
        if node.id in self.arrays:
            self.refuse(node, f"{node.id} is an array, and here stands an integer")
        if node.id not in self.numbers and node.id not in self.loops and node.id not in self.unit.constants:
            self.refuse(node, f"{node.id} has no value here; a loop's variable has none after its loop")
        return node.id, ATOM

    def element(self, node: ast.Subscript, write: bool = False) -> str:
        """An element of an array, to be read or written."""
        if not isinstance(node.value, ast.Name) or node.value.id not in self.arrays:
            self.refuse(node, "only arrays have elements")
        if write and self.arrays[node.value.id] is Kind.READ:
            self.refuse(node, f"{node.value.id} is a Sequence: it is only read")
        if self.negative(node.slice):
            self.refuse(node, "an index is counted from 0")
        return f"{node.value.id}[{self.value(node.slice)[0]}]"

    def fixed(self, node: ast.expr) -> int | None:
        """The number that an expression of numbers and named integers is; None where it depends on more."""
        inner, constants = list(ast.walk(node)), self.unit.constants
        plain = all(isinstance(one, ARITHMETIC) for one in inner)
        if not plain or any(one.id not in constants for one in inner if isinstance(one, ast.Name)):
            return None
        return int(eval(compile(ast.Expression(node), self.function.file, "eval"), {"__builtins__": {}}, dict(constants)))

    def negative(self, node: ast.expr) -> bool:
        """Whether the text shows that it is, or may be."""
        return (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)) or (self.fixed(node) or 0) < 0

    # ---- operators ----

    def arithmetic(self, node: ast.BinOp) -> Text:
        """+ - * // %, in 64 bits."""
        operator, level = self.binary(node, node.op)
        for operand in (node.left, node.right):
            self.not_negative(node.op, operand)
        left, right = self.value(node.left), self.value(node.right)
        wide = f"int64_t({left[0]})" if narrow(node.left) and narrow(node.right) else at_least(left, level)
        return f"{wide} {operator} {at_least(right, level + 1)}", level

    def binary(self, node: ast.AST, operator: ast.operator) -> Text:
        """The operator's sign and level."""
        return BINARY.get(type(operator)) or self.refuse(node, "operators are + - * // %")

    def not_negative(self, operator: ast.operator, operand: ast.expr) -> None:
        """Refuse a negative operand where C++ rounds the other way."""
        if isinstance(operator, (ast.FloorDiv, ast.Mod)) and self.negative(operand):
            self.refuse(operand, "C++ rounds // and % of a negative number the other way: divide what is not negative")

    def comparison(self, node: ast.Compare) -> Text:
        """A comparison, or a chain of them."""
        operands = [node.left, *node.comparators]
        if any(map(self.writes, operands[1:-1])):
            self.refuse(node, "the middle of a chain is computed once: give what writes an array a name first")
        pairs = [self.compared(*pair) for pair in zip(operands, node.ops, operands[1:], strict=False)]
        return pairs[0] if len(pairs) == 1 else (" && ".join(pair[0] for pair in pairs), AND)

    def compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Text:
        """One comparison."""
        sign, level = COMPARE.get(type(operator)) or self.refuse(left, "comparisons are == != < <= > >=")
        return f"{at_least(self.value(left), ADD)} {sign} {at_least(self.value(right), ADD)}", level

    def unary(self, node: ast.UnaryOp) -> Text:
        """- and `not`."""
        if isinstance(node.op, ast.Not):
            return f"!{at_least(self.truth(node.operand), ATOM)}", UNARY
        if not isinstance(node.op, ast.USub):
            self.refuse(node, "operators before a value are - and not")
        return f"-{at_least(self.value(node.operand), ATOM)}", UNARY

    def choice(self, node: ast.IfExp) -> Text:
        """`x if c else y`."""
        test, yes, no = self.truth(node.test), self.value(node.body), self.value(node.orelse)
        return f"{at_least(test, OR)} ? {at_least(yes, OR)} : {at_least(no, OR)}", TERNARY

    # ---- calls ----

    def call(self, node: ast.Call, used: bool = True) -> Text:
        """A call of a function of the derivation, or of min, max, abs."""
        if not isinstance(node.func, ast.Name) or node.keywords:
            self.refuse(node, "calls are name(values)")
        if node.func.id in BUILTINS:
            return self.builtin(node, node.func.id)
        callee = self.callee(node) or self.refuse(node, f"{node.func.id} is no function of the derivation")
        if len(node.args) != len(callee.parameters):
            self.refuse(node, f"{callee.name} takes {len(callee.parameters)} values")
        if used and callee.result == "void":
            self.refuse(node, f"{callee.name} gives no value")
        arguments = [self.argument(value, kind) for value, kind in zip(node.args, callee.parameters.values(), strict=True)]
        return f"{callee.spelled}({', '.join(arguments)})", ATOM

    def builtin(self, node: ast.Call, name: str) -> Text:
        """min and max of two or more, abs of one."""
        values = [self.value(argument)[0] for argument in node.args]
        if name == "range" or (len(values) != 1 if name == "abs" else len(values) < 2):
            self.refuse(node, "abs takes one value, min and max take two or more, range stands in a for alone")
        text = values[-1] if name != "abs" else f"abs({values[0]})"
        for value in reversed(values[:-1]):
            text = f"{name}({value}, {text})"
        return text, ATOM

    def argument(self, node: ast.expr, kind: Kind) -> str:
        """What a parameter of that kind is given."""
        if kind is Kind.INT:
            return self.value(node)[0]
        if not isinstance(node, ast.Name) or node.id not in self.arrays:
            self.refuse(node, "here stands an array, whole")
        held = self.arrays[node.id]
        if held is Kind.READ and kind is Kind.WRITE:
            self.refuse(node, f"{node.id} is a Sequence: it is only read")
        return f"{node.id}.data()" if held is GROWN else node.id

    def callee(self, node: ast.AST) -> Function | None:
        """The function of the derivation that a node calls, if it does."""
        return self.unit.functions.get(node.func.id) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None

    def writes(self, node: ast.AST) -> bool:
        """Whether a node, or anything in it, is a call that may write an array."""
        called = map(self.callee, ast.walk(node))
        return any(callee is not None and callee.writes for callee in called)

    def ordered(self, expression: ast.expr) -> None:
        """Refuse a call that writes arrays beside anything else that may read them: C++ leaves open which comes first."""
        touching = [node for node in ast.walk(expression) if isinstance(node, ast.Subscript) or self.callee(node)]
        writing = [node for node in touching if (callee := self.callee(node)) is not None and callee.writes]
        inside = {id(node) for call in writing[:1] for node in ast.walk(call)}
        if writing and (len(writing) > 1 or not {id(node) for node in touching} <= inside):
            self.refuse(writing[0], "it may write an array that the rest of the line reads: give it its own line")


EXPRESSIONS: dict[type[ast.expr], Callable[[Expressions, Any], Text]] = {
    ast.Constant: Expressions.literal,
    ast.Name: Expressions.name,
    ast.Subscript: lambda writer, node: (writer.element(node), ATOM),
    ast.BinOp: Expressions.arithmetic,
    ast.BoolOp: Expressions.both,
    ast.Compare: Expressions.comparison,
    ast.UnaryOp: Expressions.unary,
    ast.IfExp: Expressions.choice,
    ast.Call: Expressions.call,
}
