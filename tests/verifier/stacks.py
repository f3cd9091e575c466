"""Layers of attention upon each other, as they are written and as a muGraph has them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from mugraph.ir import Graph
from mugraph.ir.program import ProgramTensor

from .graphs import program

ROWS, WIDTH = 3, 4

Layer = Callable[..., ProgramTensor]


def as_written(x: ProgramTensor, g: ProgramTensor, w: ProgramTensor, v: ProgramTensor) -> ProgramTensor:
    """Attention of normalised rows to themselves, added to the rows."""
    y = x / ((x * x).sum(-1, keepdim=True) / WIDTH).sqrt() * g
    weights = ((y @ w) @ y.transpose(0, 1)).exp()
    return x + (weights / weights.sum(-1, keepdim=True)) @ (y @ v)


def rewritten(x: ProgramTensor, g: ProgramTensor, w: ProgramTensor, v: ProgramTensor) -> ProgramTensor:
    """The same: divided by the root, and by the sum, after products of matrices."""
    root = ((x * x).sum(-1, keepdim=True) / WIDTH).sqrt()
    y = x * g
    weights = (((y @ w) / root) @ (y.transpose(0, 1) / root.transpose(0, 1))).exp()
    return x + (weights @ ((y @ v) / root)) / weights.sum(-1, keepdim=True)


def halved(x: ProgramTensor, g: ProgramTensor, w: ProgramTensor, v: ProgramTensor) -> ProgramTensor:
    """Another function, which is near."""
    return rewritten(x, g, w, v * Fraction(1, 2))


def stacked(*layers: Layer) -> Graph:
    """One layer upon the other, each with weights of its own."""

    def function(x: ProgramTensor, *weights: ProgramTensor) -> ProgramTensor:
        for number, layer in enumerate(layers):
            x = layer(x, *weights[3 * number : 3 * number + 3])
        return x

    shapes = ((WIDTH,), (WIDTH, WIDTH), (WIDTH, WIDTH))
    return program(function, (ROWS, WIDTH), *(shapes * len(layers)))


def _of_root(x: ProgramTensor) -> ProgramTensor:
    root = x.sqrt()
    return root * root


def _rows(first: ProgramTensor, second: ProgramTensor) -> ProgramTensor:
    return first.slice(0, 0, 1) + second.slice(0, 1, 1)


def _sliced(x: ProgramTensor) -> ProgramTensor:
    squared = _of_root(x)
    return _rows((x * x).sqrt(), squared)


def _sliced_and_wrong(x: ProgramTensor) -> ProgramTensor:
    same = (x + x) / 2
    return _rows(same, (x * x).sqrt())


SLICED = program(_sliced, (2, WIDTH)), program(_sliced_and_wrong, (2, WIDTH))
"""|x| against x in one row, where the square of a root of x, which both equal where it has a value, is needed of the other."""
