"""Comparisons, choices and booleans of PyTorch, in the operators of the table.

What PyTorch has as a boolean is a number here that is 0 or 1. Of comparisons the table has `less` and `equal`; with NaN neither
holds, so that "at most" is "less or equal", and not the contrary of "greater".
"""

from __future__ import annotations

import math
from typing import Any

from mugraph.ir.dtypes import DType
from mugraph.ir.program import ProgramTensor

Tensor = ProgramTensor
Operand = ProgramTensor | int | float


def tensor_of(x: Operand, beside: Tensor) -> Tensor:
    """An operand as a tensor of the program of another one. Infinities and NaN are the quotients 1 / 0, -1 / 0 and 0 / 0, and
    -0.0 is 0 with the sign of -1."""
    if isinstance(x, Tensor):
        return x
    if is_negative_zero(x):
        return beside.program.constant(0).apply("copysign", beside.program.constant(-1))
    if math.isfinite(x):
        return beside.program.constant(float(x) if isinstance(x, bool) else x)
    return infinite(x, beside)


def is_negative_zero(number: float) -> bool:
    """Whether a number is -0.0, which no exact constant is."""
    return number == 0 and math.copysign(1, number) < 0


def infinite(number: float, beside: Tensor) -> Tensor:
    """An infinity, or NaN."""
    sign = 0 if math.isnan(number) else 1 if number > 0 else -1
    return beside.program.constant(sign).apply("infinity")


def _applied(op: str, *operands: Operand) -> Tensor:
    beside = next(x for x in operands if isinstance(x, Tensor))
    first, *others = (tensor_of(x, beside) for x in operands)
    return first.apply(op, *others)


def less(x: Operand, y: Operand) -> Tensor:
    """1 where x < y, else 0."""
    return _applied("less", x, y)


def greater(x: Operand, y: Operand) -> Tensor:
    """1 where x > y, else 0."""
    return less(y, x)


def equal(x: Operand, y: Operand) -> Tensor:
    """1 where x = y, else 0."""
    return _applied("equal", x, y)


def not_equal(x: Operand, y: Operand) -> Tensor:
    """0 where x = y, else 1."""
    return 1 - equal(x, y)


def at_most(x: Operand, y: Operand) -> Tensor:
    """1 where x <= y, else 0."""
    return less(x, y) + equal(x, y)


def at_least(x: Operand, y: Operand) -> Tensor:
    """1 where x >= y, else 0."""
    return less(y, x) + equal(x, y)


def select(condition: Operand, x: Operand, y: Operand) -> Tensor:
    """x where the condition is not 0, else y."""
    return _applied("select", condition, x, y)


def masked_fill(x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """The value where the mask is not 0, else x."""
    return select(mask, value, x)


def is_boolean(x: Tensor) -> bool:
    """Whether a tensor is known to be 0 or 1 everywhere."""
    node, operands = x.program.node(x), [Tensor(x.program, value) for value in x.program.node(x).inputs]
    # by name: operators whose results are 0 or 1, which no column says
    if x.dtype is DType.BOOL or node.op in ("less", "equal", "truth"):
        return True
    if x.number is not None:
        return x.number.value in (0, 1)
    # by name: what keeps such numbers as they are, and how the others are put together of them
    match node.op:
        case "reshape" | "transpose" | "repeat" | "cast" | "max" | "mul" | "maximum":
            return all(map(is_boolean, operands))
        case "sub":
            one = operands[0].number
            return one is not None and one.value == 1 and is_boolean(operands[1])
        case "add":
            return _at_most_of(*operands)
        case "select":
            return all(map(is_boolean, operands[1:]))
    return False


def _at_most_of(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are whether one is less than another and whether it equals that, of which one holds at most."""
    nodes = x.program.node(x), y.program.node(y)
    together = {node.op: set(node.inputs) for node in nodes}
    # by name: x <= y is put together of these two
    return together.keys() == {"less", "equal"} and together["less"] == together["equal"]


def truth(x: Operand) -> Operand:
    """1 where a number is not 0, else 0."""
    if not isinstance(x, Tensor):
        return int(x != 0)
    return x if is_boolean(x) else x.apply("truth")


def logical_not(x: Tensor) -> Tensor:
    """1 where a number is 0, else 0."""
    return 1 - x if is_boolean(x) else equal(x, 0)


def logical_and(x: Operand, y: Operand) -> Operand:
    """Whether both are not 0."""
    return truth(x) * truth(y)


def logical_or(x: Operand, y: Operand) -> Operand:
    """Whether one of them is not 0."""
    first, second = truth(x), truth(y)
    if isinstance(first, Tensor):
        return first.maximum(second)
    return second.maximum(first) if isinstance(second, Tensor) else max(first, second)


def logical_xor(x: Operand, y: Operand) -> Tensor:
    """Whether one of them is not 0, and the other is."""
    return not_equal(truth(x), truth(y))


def any_of(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether an element is not 0."""
    known = truth(x)
    assert isinstance(known, Tensor)
    return known.amax(dim, keepdim)


def all_of(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether no element is 0."""
    return 1 - logical_not(x).amax(dim, keepdim)


def sign(x: Tensor) -> Tensor:
    """1, 0 or -1; 0 for NaN."""
    return less(0, x) - less(x, 0)


def isnan(x: Tensor) -> Tensor:
    """Whether a number is none: NaN alone does not equal itself."""
    return not_equal(x, x)


def isinf(x: Tensor) -> Tensor:
    """Whether a number is infinite."""
    return equal(x.apply("abs"), math.inf)


def isfinite(x: Tensor) -> Tensor:
    """Whether a number is neither infinite nor NaN."""
    return less(x.apply("abs"), math.inf)


def nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Numbers in the place of NaN and infinities."""
    largest = x.dtype.largest
    x = select(isnan(x), nan or 0, x)
    x = select(equal(x, -math.inf), -largest if neginf is None else neginf, x)
    return select(equal(x, math.inf), largest if posinf is None else posinf, x)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """The value for what is at most the threshold; at 0 it is no relu, which keeps -0.0."""
    return select(at_most(x, threshold), value, x)


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """0 for what is at most so large."""
    return select(at_most(x.apply("abs"), lambd), 0, x)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Numbers so much nearer to 0, and 0 for those that are nearer anyway."""
    return select(less(lambd, x.apply("abs")), x - sign(x) * lambd, x * 0)


def xlogy(x: Operand, y: Operand) -> Tensor:
    """x log(y), and 0 where x is 0, unless y is NaN."""
    beside = x if isinstance(x, Tensor) else y
    assert isinstance(beside, Tensor)
    x, y = tensor_of(x, beside), tensor_of(y, beside)
    return select(isnan(y), math.nan, select(equal(x, 0), 0, x * y.apply("log")))
