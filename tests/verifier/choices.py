"""Pairs of programs with comparisons and choices, equal and not, for the verifier and for the checker."""

from __future__ import annotations

import math
from collections.abc import Callable

from mugraph.frontend.operators.choices import at_most, equal, greater, infinite, less, logical_not, select, sign
from mugraph.ir import Graph
from mugraph.ir.program import ProgramTensor

from .graphs import program

Function = Callable[..., ProgramTensor]
Pair = tuple[Function, Function, tuple[tuple[int, ...], ...]]
"""Two functions of tensors, and their shapes."""

TWO, THREE = ((3, 4), (3, 4)), ((3, 4), (3, 4), (3, 4))
MASKED = ((2, 6), (6, 4), (2, 4))


def hidden(scores: ProgramTensor, mask: ProgramTensor) -> ProgramTensor:
    return select(mask, infinite(-math.inf, scores), scores)


def attended(scores: ProgramTensor) -> ProgramTensor:
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


EQUAL: dict[str, Pair] = {
    **{
        f"{name} of what is written in other ways": (
            lambda x, y, f=name: (x * y + x).apply(f) * 2,
            lambda x, y, f=name: 2 * ((y + 1) * x).apply(f),
            TWO,
        )
        for name in ("sin", "floor", "round", "log2", "acosh", "erfc")
    },
    **{
        f"{name} of what is written in other ways": (
            lambda x, y, f=name: (x * y + x).apply(f, x + y),
            lambda x, y, f=name: ((y + 1) * x).apply(f, y + x),
            TWO,
        )
        for name in ("atan2", "fmod", "pow", "copysign")
    },
    "operands written in other ways": (lambda x, y: less(2 * (x + y), x - y), lambda x, y: less(2 * x + 2 * y, x - y), TWO),
    "greater is less the other way": (lambda x, y: greater(x, y), lambda x, y: less(y, x), TWO),
    "branches written in other ways": (
        lambda c, x, y: select(c, x * y + x, y),
        lambda c, x, y: select(c, x * (y + 1), y),
        THREE,
    ),
    "a factor of a choice moved past a product": (
        lambda x, w, c: (x @ w) * select(c, 1 / c, c) * 3,
        lambda x, w, c: (3 * x) @ w * select(c, 1 / c, c),
        MASKED,
    ),
    "broadcast before and after": (
        lambda c, x: select(c.repeat(0, 3), x, 0).sum(0),
        lambda c, x: select(c, x, 0).sum(0),
        ((1, 4), (3, 4)),
    ),
    "of reshaped tensors": (
        lambda x, y: less(x.reshape(3, 2, 2), y.reshape(3, 2, 2)).reshape(3, 4),
        lambda x, y: less(x, y),
        TWO,
    ),
    "shares of what is not hidden": (
        lambda x, w, m: attended(hidden(x @ w, m)) * 2,
        lambda x, w, m: (hidden(x @ w, m).exp() * 2) / hidden(x @ w, m).exp().sum(-1, keepdim=True),
        MASKED,
    ),
    "exponentials in comparisons": (
        lambda x, y: less((x.tanh() + y.tanh()).exp(), y),
        lambda x, y: less(x.tanh().exp() * y.tanh().exp(), y),
        TWO,
    ),
    "comparisons of quotients": (lambda x, y: equal(1 / x + 1 / y, x), lambda x, y: equal((x + y) / (x * y), x), TWO),
    "signs added up": (lambda x, y: sign(x) + sign(y), lambda x, y: less(0, y) - less(y, 0) - less(x, 0) + less(0, x), TWO),
}


DIFFERENT: dict[str, Pair] = {
    **{
        f"{one} for {other}": (lambda x, y, one=one: (x * y).apply(one), lambda x, y, other=other: (x * y).apply(other), TWO)
        for one, other in (("sin", "cos"), ("floor", "ceil"), ("floor", "trunc"), ("round", "floor"), ("log2", "log1p"))
    },
    **{
        f"operands of {name} exchanged": (lambda x, y, f=name: x.apply(f, y), lambda x, y, f=name: y.apply(f, x), TWO)
        for name in ("atan2", "fmod", "pow", "copysign")
    },
    "whole parts of sums": (lambda x, y: (x + y).apply("floor"), lambda x, y: x.apply("floor") + y.apply("floor"), TWO),
    "operands exchanged": (lambda x, y: less(x, y), lambda x, y: less(y, x), TWO),
    "operands of one exchanged among many": (
        lambda x, y: less(x, y) + less(x * x, y),
        lambda x, y: less(x, y) + less(y, x * x),
        TWO,
    ),
    "branches exchanged": (lambda c, x, y: select(c, x, y), lambda c, x, y: select(c, y, x), THREE),
    "condition and branch exchanged": (lambda c, x, y: select(c, x, y), lambda c, x, y: select(x, c, y), THREE),
    "strict and not": (lambda x, y: less(x, y), lambda x, y: at_most(x, y), TWO),
    "the contrary with NaN": (lambda x, y: at_most(x, y), lambda x, y: logical_not(less(y, x)), TWO),
    "equal for less": (lambda x, y: equal(x, y), lambda x, y: less(x, y), TWO),
    "a product for a choice": (lambda c, x, y: select(c, x, y), lambda c, x, y: c * x + (1 - c) * y, THREE),
    "a condition forgotten": (
        lambda x, y: less(x, y) * less(0, x),
        lambda x, y: less(x, y),
        TWO,
    ),
    "a number beside the other": (lambda x, y: less(x, y + 1), lambda x, y: less(x, y + 2), TWO),
    "a comparison of one row only": (
        lambda x, y: less(x, y).sum(0),
        lambda x, y: less(x.sum(0), y.sum(0)),
        TWO,
    ),
    "the mask of another row": (
        lambda x, w, m: attended(hidden(x @ w, m)),
        lambda x, w, m: attended(hidden(x @ w, m.reshape(1, 8).reshape(4, 2).transpose(0, 1))),
        MASKED,
    ),
    "another infinity": (
        lambda c, x: select(c, infinite(math.inf, x), x),
        lambda c, x: select(c, infinite(-math.inf, x), x),
        TWO,
    ),
    "hidden before and after exponentials": (
        lambda x, m: attended(hidden(x, m)),
        lambda x, m: select(m, infinite(-math.inf, x), attended(x)),
        TWO,
    ),
}


def graphs(pair: Pair) -> tuple[Graph, Graph]:
    left, right, shapes = pair
    return program(left, *shapes), program(right, *shapes)
