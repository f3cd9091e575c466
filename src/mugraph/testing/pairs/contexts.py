"""Places in programs at which an elementwise function may stand: what is true of two functions is true of them there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mugraph.testing.pairs.pair import Function, Pair, Shape, Truth, pair, register

Placed = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class PairContext:
    """`place(h)` is a function of tensors of `shapes(arity)` around the elementwise function `h` of `arity` tensors."""

    name: str
    place: Callable[[Function], Placed]
    shapes: Callable[[int], tuple[Shape, ...]]


def _bare(h: Function) -> Placed:
    return h


def _of_a_product(h: Function) -> Placed:
    return lambda w, x, *rest: h(x @ w, *rest)


def _into_a_product(h: Function) -> Placed:
    return lambda w, *rest: h(*rest) @ w


def _summed(h: Function) -> Placed:
    return lambda *rest: h(*rest).sum(-1)


def _residual(h: Function) -> Placed:
    return lambda scale, x, *rest: x + h(x, *rest) * scale


def _second_output(h: Function) -> Placed:
    return lambda *rest: (rest[0] * 2, h(*rest))


def _of_a_biased_row(h: Function) -> Placed:
    return lambda bias, x, *rest: h(x + bias, *rest)


def _of_a_scaled_column(h: Function) -> Placed:
    return lambda column, x, *rest: h(x * column, *rest)


CONTEXTS = (
    PairContext("a vector", _bare, lambda arity: ((7,),) * arity),
    PairContext("a matrix", _bare, lambda arity: ((3, 4),) * arity),
    PairContext("a batch of one", _bare, lambda arity: ((1, 2, 5),) * arity),
    PairContext("of a product", _of_a_product, lambda arity: ((4, 5), (3, 4), *((3, 5),) * (arity - 1))),
    PairContext("into a product", _into_a_product, lambda arity: ((4, 2), *((3, 4),) * arity)),
    PairContext("summed", _summed, lambda arity: ((2, 3),) * arity),
    PairContext("residual", _residual, lambda arity: ((4,), *((2, 4),) * arity)),
    PairContext("the second output", _second_output, lambda arity: ((3, 2),) * arity),
    PairContext("of a biased row", _of_a_biased_row, lambda arity: ((5,), *((2, 5),) * arity)),
    PairContext("of a scaled column", _of_a_scaled_column, lambda arity: ((3, 1), *((3, 3),) * arity)),
)


def elementwise(construct: str, truth: Truth, name: str, left: Function, right: Function, *, most: int = len(CONTEXTS)) -> None:
    """Register the family of two elementwise functions at their first `most` places."""

    def make() -> Iterator[Pair]:
        arity = len(inspect.signature(left).parameters)
        for context in CONTEXTS[:most]:
            yield pair(truth, context.name, context.place(left), context.place(right), *context.shapes(arity))

    register(name, construct, make)
