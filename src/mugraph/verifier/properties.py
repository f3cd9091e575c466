"""Properties of operators: equations a prover may use, written as text such as `relu(relu(x)) == relu(x)`.

Variables stand for tensors of any shape; `sum` and `max` reduce over any axes, along which a variable that also stands outside
the reduction is constant: `sum(x * y) == sum(x) * y`. Conditions come last: `relu(c * x) == c * relu(x) if c > 0`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from mugraph.errors import InvalidInput
from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.ops import OPERATORS, Call
from mugraph.ir.scalar import Scalar

REDUCTIONS = ("sum", "max")
_BINARY: Mapping[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}


@dataclass(frozen=True, slots=True)
class Expression:
    """A variable or constant (no `args`), or an operator of the table applied to expressions."""

    op: str
    args: tuple[Expression, ...] = ()
    name: str = ""
    value: Scalar | None = None

    def walk(self, inside: bool = False) -> Iterator[tuple[Expression, bool]]:
        """Every subexpression, and whether it stands inside a reduction."""
        yield self, inside
        for arg in self.args:
            yield from arg.walk(inside or self.op in REDUCTIONS)


@dataclass(frozen=True, slots=True)
class Property:
    """An equation that holds for all tensors, of which those in `positive` have positive elements only.

    `constant` are the variables that must not vary along the axes of the equation's reductions.
    """

    text: str
    left: Expression
    right: Expression
    positive: frozenset[str]
    constant: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Property:
        """Read an equation. Raises InvalidInput where it is malformed or float64 shows that it does not hold."""
        equation, _, condition = text.partition(" if ")
        try:
            compared = ast.parse(equation.strip(), mode="eval").body
        except SyntaxError:
            raise InvalidInput(f"property {text!r} is no equation; write it like 'relu(relu(x)) == relu(x)'") from None
        if not isinstance(compared, ast.Compare) or len(compared.ops) != 1 or not isinstance(compared.ops[0], ast.Eq):
            raise InvalidInput(f"property {text!r} is no equation of two sides; write it like 'relu(relu(x)) == relu(x)'")
        sides = _read(compared.left, text), _read(compared.comparators[0], text)
        found = cls(text, *sides, _positive(condition, text), _outside_reductions(*sides))
        found._check()
        return found

    @property
    def variables(self) -> frozenset[str]:
        """The names that stand for tensors."""
        return frozenset(part.name for side in (self.left, self.right) for part, _ in side.walk() if part.name)

    @property
    def reduces(self) -> bool:
        """Whether a reduction occurs."""
        return any(part.op in REDUCTIONS for side in (self.left, self.right) for part, _ in side.walk())

    def operators(self, side: Expression) -> frozenset[str]:
        """The operators of one side."""
        return frozenset(part.op for part, _ in side.walk() if part.args)

    def _check(self) -> None:
        """Evaluate both sides in float64 where they are finite; an equation that is finite nowhere is refused too."""
        rng = np.random.default_rng(0)
        seen = False
        for scale, width in ((0.5, 8), (2.0, 5)):
            values = {}
            for name in sorted(self.variables):
                drawn = rng.normal(0, scale, (6, 1 if name in self.constant else width))
                values[name] = np.abs(drawn) if name in self.positive else drawn
            with np.errstate(all="ignore"):
                left, right = np.broadcast_arrays(*(_value(side, values, width) for side in (self.left, self.right)))
            finite = np.isfinite(left) & np.isfinite(right)
            seen = seen or bool(finite.any())
            if not np.allclose(left[finite], right[finite], rtol=1e-9, atol=1e-9):
                raise InvalidInput(f"property {self.text!r} does not hold: float64 shows a difference at random points")
        if not seen:
            raise InvalidInput(f"property {self.text!r} is undefined at every point that was tried")


def _read(node: ast.expr, text: str) -> Expression:
    match node:
        case ast.Name(id=name):
            return Expression("variable", name=name)
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return Expression("constant", value=Scalar.of(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Expression("mul", (_read(operand, text), Expression("constant", value=Scalar.of(-1))))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return Expression(_BINARY[type(op)], (_read(left, text), _read(right, text)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if _arity(name) == len(args):
            return Expression(name, tuple(_read(arg, text) for arg in args))
    raise InvalidInput(
        f"property {text!r}: {ast.unparse(node)!r} is no tensor expression; use + - * /, numbers, names, and elementwise "
        "operators of the table, sum and max with the right number of arguments"
    )


def _arity(name: str) -> int | None:
    row = OPERATORS.get(name)
    return row.arity if row is not None and (row.elementwise or name in REDUCTIONS) else None


def _positive(condition: str, text: str) -> frozenset[str]:
    names = [part.strip() for part in condition.split(" and ")] if condition else []
    for part in names:
        if not part.endswith("> 0") or not part.removesuffix("> 0").strip().isidentifier():
            raise InvalidInput(f"property {text!r}: condition {part!r} is not of the form 'x > 0'")
    return frozenset(part.removesuffix("> 0").strip() for part in names)


def _outside_reductions(*sides: Expression) -> frozenset[str]:
    parts = [entry for side in sides for entry in side.walk()]
    if not any(inside for _, inside in parts):
        return frozenset()
    return frozenset(part.name for part, inside in parts if part.name and not inside)


def _value(expression: Expression, values: Mapping[str, Array], width: int) -> Array:
    if expression.name:
        return values[expression.name]
    if expression.value is not None:
        return np.full((1, 1), float(expression.value))
    arrays = [_value(arg, values, width) for arg in expression.args]
    arith = FloatArithmetic()
    if expression.op in REDUCTIONS:
        reduced = np.broadcast_to(arrays[0], (len(arrays[0]), width))
        # by name: texts of properties have these two reductions
        return arith.sum(reduced, 1) if expression.op == "sum" else arith.max(reduced, 1)
    call = Call(expression.op, tuple(array.shape for array in arrays), {})
    result: Array = OPERATORS[expression.op].compute(arith, call, arrays)
    return result


LAWS = (
    "x + y == y + x",
    "x + (y + z) == (x + y) + z",
    "x * y == y * x",
    "x * (y * z) == (x * y) * z",
    "(x + y) * z == x * z + y * z",
    "x * (y / z) == x * y / z",
    "x / y / z == x / (y * z)",
    "(x + y) / z == x / z + y / z",
    "x * 1 == x",
    "x + 0 == x",
    "exp(x + y) == exp(x) * exp(y)",
    "sqrt(x * y) == sqrt(x) * sqrt(y) if x > 0 and y > 0",
    "sum(x + y) == sum(x) + sum(y)",
    "sum(x * y) == sum(x) * y",
    "sum(x / y) == sum(x) / y",
)
"""A_eq (paper, Table 2) over tensors, with units; sums over several axes and their order are the prover's own."""

KNOWN = (
    "relu(relu(x)) == relu(x)",
    "relu(c * x) == c * relu(x) if c > 0",
    "relu(x) - relu(-x) == x",
    "abs(abs(x)) == abs(x)",
    "abs(-x) == abs(x)",
    "abs(x * y) == abs(x) * abs(y)",
    "abs(x) == relu(x) + relu(-x)",
    "silu(x) == x * sigmoid(x)",
    "sigmoid(x) == 1 / (1 + exp(-x))",
    "sigmoid(-x) == 1 - sigmoid(x)",
    "tanh(-x) == -tanh(x)",
    "tanh(x) == 2 * sigmoid(2 * x) - 1",
    "log(exp(x)) == x",
    "exp(log(x)) == x if x > 0",
    "log(x * y) == log(x) + log(y) if x > 0 and y > 0",
    "max(x + y) == max(x) + y",
    "max(c * x) == c * max(x) if c > 0",
    "max(relu(x)) == relu(max(x))",
    "max(exp(x)) == exp(max(x))",
    "max(tanh(x)) == tanh(max(x))",
    "max(sigmoid(x)) == sigmoid(max(x))",
)
"""What is known of the operators of the table outside LAX."""


@cache
def known_properties() -> tuple[tuple[Property, ...], tuple[Property, ...]]:
    """The laws of arithmetic, and the properties of operators outside LAX."""
    return tuple(map(Property.parse, LAWS)), tuple(map(Property.parse, KNOWN))
