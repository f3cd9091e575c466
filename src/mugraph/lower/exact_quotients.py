"""Quotients that functions which jump are computed of: correctly rounded, so that 41 / 41 is 1 on every target.

A product with a reciprocal is rounded twice (41 * (1 / 41) is less than 1 in fp32), which is no more than rounding elsewhere, and
one bin less where `floor` reads it. Roots and logarithms are NaN of what is less than 0, as x / 41 - y would be where x is 41 y.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import IntEnum

from mugraph.ir.elementary import JUMPS
from mugraph.ir.ops import TRUTH, operator
from mugraph.lower.scalar_expressions import Apply, Constant, Expression, Source
from mugraph.lower.tile_form import Elementwise, Kernel, Reduce, Scan, Statement

_JUMPING = frozenset(operator(name).scalar for name in (*JUMPS, TRUTH, "less", "equal", "asin", "acos", "acosh", "atanh"))
"""Functions that jump, to NaN some of them, wherever that is."""
_EXPONENTIALS = frozenset(operator(name).scalar for name in ("exp", "exp2", "sigmoid"))
"""Functions that are more than 0 whatever they are of, and seldom a number that sums make 0 with others."""
_SUMS = frozenset(operator(name).scalar for name in ("add", "sub"))
_PRODUCT, _QUOTIENT = (operator(name).scalar for name in ("mul", "div"))
EXACT_QUOTIENT = "({0} / ({1}))"
"""A division that every target rounds to the nearest, and takes for no product with a reciprocal."""
_LARGEST_DIVISOR = 1 << 24


class Need(IntEnum):
    """How much an expression is read by what jumps."""

    NONE = 0
    SIGN = 1
    """Less than 0 there is no result, and quotients have the right sign."""
    SUM = 2
    """The same of a sum of it and others: what is to be 0 must be."""
    VALUE = 3
    """Anything that is computed of it may jump."""


_ENDING = {
    **{operator(name).scalar: Need.SIGN for name in ("sqrt", "log", "log2", "pow")},
    operator("log1p").scalar: Need.SUM,
}
"""Functions that are NaN of numbers less than 0, or than -1, and what their operands are needed for."""


def with_exact_quotients(kernel: Kernel, outside: Mapping[str, Need]) -> tuple[Kernel, Mapping[str, Need]]:
    """The kernel with divisions in the place of products with reciprocals of whole numbers in all that functions which jump are
    computed of, whether directly or through a buffer, and what its buffers are needed for; `outside` says it of its outputs."""
    needs = dict(outside)
    while (more := _with_sources(kernel, needs)) != needs:
        needs = more

    def exact(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(_exact(statement, needs) for statement in statements)

    return replace(kernel, before=exact(kernel.before), body=exact(kernel.body), after=exact(kernel.after)), needs


def _with_sources(kernel: Kernel, needs: Mapping[str, Need]) -> dict[str, Need]:
    """What buffers are needed for, by what those are that are computed of them."""
    found = dict(needs)
    for statement in kernel.statements:
        need = needs.get(statement.target.buffer, Need.NONE)
        if isinstance(statement, Elementwise | Reduce | Scan):
            read = [(statement.sources[index].buffer, each) for index, each in _sources(statement.expression, need)]
        else:
            read = [(tile.buffer, need) for tile in statement.sources]
        for buffer, each in read:
            found[buffer] = max(each, found.get(buffer, Need.NONE))
    return found


def _sources(expression: Expression, need: Need) -> Iterator[tuple[int, Need]]:
    """The sources of an expression, and what they are needed for."""
    match expression:
        case Source(index):
            yield index, need
        case Apply(_, arguments):
            for part in arguments:
                yield from _sources(part, _of_operands(expression, need))


def _of_operands(whole: Apply, need: Need) -> Need:
    """What the operands of an expression are needed for if that is what it is needed for itself."""
    if whole.template in _JUMPING or need is Need.VALUE:
        return Need.VALUE
    if whole.template in _EXPONENTIALS or (need is Need.SIGN and _is_square(whole)):
        return Need.NONE
    if whole.template in _ENDING:
        return max(need, _ENDING[whole.template])
    if whole.template in _SUMS and need is Need.SIGN and not _adds_no_sign(whole):
        return Need.SUM
    return need


def _is_square(whole: Apply) -> bool:
    return whole.template == operator("square").scalar or (whole.template == _PRODUCT and len(set(whole.arguments)) == 1)


def _adds_no_sign(whole: Apply) -> bool:
    """Whether a sum is that of something and a number which is not negative, as under the roots of norms."""
    numbers = [each.value for each in whole.arguments if isinstance(each, Constant)]
    return whole.template == operator("add").scalar and any(number >= 0 for number in numbers)


def _exact(statement: Statement, needs: Mapping[str, Need]) -> Statement:
    if not isinstance(statement, Elementwise | Reduce | Scan):
        return statement
    return replace(statement, expression=_quotients(statement.expression, needs.get(statement.target.buffer, Need.NONE)))


def _quotients(expression: Expression, need: Need) -> Expression:
    """The expression with exact quotients where they are needed."""
    if not isinstance(expression, Apply):
        return expression
    counts = need >= Need.SUM
    arguments = tuple(_quotients(part, _of_operands(expression, need)) for part in expression.arguments)
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
