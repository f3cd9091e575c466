"""Quotients that functions which jump are computed of: correctly rounded, so that 41 / 41 is 1 on every target.

A product with a reciprocal is rounded twice (41 * (1 / 41) is less than 1 in fp32), which is no more than rounding elsewhere, and
one bin less where `floor` reads it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from mugraph.ir.elementary import JUMPS
from mugraph.ir.ops import TRUTH, operator
from mugraph.lower.scalar_expressions import Apply, Constant, Expression, Source, subexpressions
from mugraph.lower.tile_form import Elementwise, Kernel, Reduce, Scan, Statement

_JUMPING = frozenset(operator(name).scalar for name in (*JUMPS, TRUTH, "less", "equal"))
_PRODUCT, _QUOTIENT = (operator(name).scalar for name in ("mul", "div"))
EXACT_QUOTIENT = "({0} / ({1}))"
"""A division that every target rounds to the nearest, and takes for no product with a reciprocal."""
_LARGEST_DIVISOR = 1 << 24


def with_exact_quotients(kernel: Kernel) -> Kernel:
    """The kernel with divisions in the place of products with reciprocals of whole numbers in all that functions which jump are
    computed of, whether directly or through a buffer."""
    read: frozenset[str] = frozenset()
    while (more := read.union(*(_read_exactly(statement, read) for statement in kernel.statements))) != read:
        read = more

    def exact(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(_exact(statement, read) for statement in statements)

    return replace(kernel, before=exact(kernel.before), body=exact(kernel.body), after=exact(kernel.after))


def _read_exactly(statement: Statement, read: Set[str]) -> set[str]:
    """The buffers that a statement computes of what jumps, or of what is in the buffers `read`."""
    if statement.target.buffer in read:
        return {tile.buffer for tile in statement.sources}
    if not isinstance(statement, Elementwise | Reduce | Scan):
        return set()
    jumps = [part for part in subexpressions(statement.expression) if isinstance(part, Apply) and part.template in _JUMPING]
    sources = [part for jump in jumps for part in subexpressions(jump) if isinstance(part, Source)]
    return {statement.sources[source.index].buffer for source in sources}


def _exact(statement: Statement, read: Set[str]) -> Statement:
    if not isinstance(statement, Elementwise | Reduce | Scan):
        return statement
    return replace(statement, expression=_quotients(statement.expression, statement.target.buffer in read))


def _quotients(expression: Expression, counts: bool) -> Expression:
    """The expression with exact quotients, where it `counts` or is an operand of what jumps."""
    if not isinstance(expression, Apply):
        return expression
    arguments = tuple(_quotients(part, counts or expression.template in _JUMPING) for part in expression.arguments)
    if counts and expression.template == _QUOTIENT:
        return Apply(EXACT_QUOTIENT, arguments)
    if counts and expression.template == _PRODUCT:
        for factor, other in (arguments, arguments[::-1]):
            if isinstance(factor, Constant) and (divisor := _reciprocal_of(factor.value)):
                return Apply(EXACT_QUOTIENT, (other, Constant(float(divisor))))
    return Apply(expression.template, arguments)


def _reciprocal_of(number: float) -> int:
    """The whole number whose reciprocal a number is, if that is not exact in binary; 0 where there is none."""
    whole = round(1 / number) if abs(number) * _LARGEST_DIVISOR >= 1 else 0
    return whole if abs(whole) & (abs(whole) - 1) and 1 / whole == number else 0
