"""Pairs of programs with maxima, equal and not, for the verifier and for the checker."""

from __future__ import annotations

from collections.abc import Callable

from mugraph.ir import Graph, GraphBuilder, Level
from mugraph.ir.program import ProgramTensor

from .graphs import FP32, program

Function = Callable[..., ProgramTensor]
Pair = tuple[Function, Function, tuple[int, ...]]
"""Two functions of one tensor, and its shape."""


def doubled(x: ProgramTensor, times: int) -> ProgramTensor:
    """The maximum over a row and itself, over and over: what counts repetitions modulo a power of two forgets the row."""
    for _ in range(times):
        x = x.reshape(-1, 1).repeat(1, 2).amax(-1)
    return x


def all_but_one(x: ProgramTensor) -> ProgramTensor:
    """Of n numbers the n maxima of n - 1 of them."""
    (count,) = x.shape
    return x.repeat(0, count - 1).reshape(count, count - 1).amax(-1)


def shifted(x: ProgramTensor, shift: ProgramTensor) -> ProgramTensor:
    """Exponentials after a shift, without the sum that would make up for it."""
    return (x - shift).exp()


EQUAL: dict[str, Pair] = {
    "repeated rows": (lambda x: x.repeat(1, 3).amax(-1), lambda x: x.amax(-1), (2, 5)),
    "one element repeated": (lambda x: x.reshape(6, 1).repeat(1, 7).amax(-1), lambda x: x, (6,)),
    "64 times doubled": (lambda x: doubled(x, 64), lambda x: x, (3,)),
    "64 times doubled maxima": (lambda x: doubled(x.amax(-1), 64), lambda x: x.amax(-1), (3, 4)),
    "transposed": (lambda x: x.transpose(0, 1).reshape(12).amax(0), lambda x: x.reshape(12).amax(0), (3, 4)),
    "rows, then columns": (lambda x: x.amax(0).amax(-1), lambda x: x.amax(-1).amax(0), (3, 4)),
    "maxima of overlapping parts": (lambda x: all_but_one(x).amax(-1), lambda x: x.amax(-1), (9,)),
    "a maximum of maxima of all": (lambda x: x.amax(-1, keepdim=True).repeat(1, 3).amax(-1), lambda x: x.amax(-1), (3, 4)),
    "in an exponent": (
        lambda x: shifted(x, x.repeat(1, 2).amax(-1, keepdim=True)),
        lambda x: shifted(x, x.reshape(3, 2, 2).amax(-1).amax(-1, keepdim=True)),
        (3, 4),
    ),
    "equal exponentials": (lambda x: x.exp().reshape(4, 1).repeat(1, 2).amax(-1), lambda x: x.exp(), (4,)),
    "of quotients": (lambda x: (1 / x).repeat(1, 2).amax(-1) - x, lambda x: (1 / x).amax(-1) - x, (4, 4)),
    "equal quotients": (lambda x: (1 / x).reshape(4, 1).repeat(1, 2).amax(-1) * x, lambda x: x / x, (4,)),
    "inside a function": (lambda x: x.repeat(1, 2).amax(-1).silu(), lambda x: x.amax(-1).silu(), (3, 4)),
    "of functions": (lambda x: x.silu().repeat(1, 2).amax(-1), lambda x: x.silu().amax(-1), (3, 4)),
    "of squares of roots of maxima": (
        lambda x: (x.amax(-1).sqrt() * x.amax(-1).sqrt()).amax(-1),
        lambda x: x.reshape(8).amax(-1),
        (2, 4),
    ),
}

DIFFERENT: dict[str, Pair] = {
    "64 times doubled": (lambda x: doubled(x, 64), lambda x: x + x, (3,)),
    "64 times doubled, another": (lambda x: doubled(x, 64), lambda x: x.amax(0, keepdim=True).repeat(0, 3), (3,)),
    "64 times doubled products": (lambda x: doubled(x, 64), lambda x: doubled(x * x, 64), (3,)),
    "one of many left out": (all_but_one, lambda x: x.amax(0, keepdim=True).repeat(0, 64), (64,)),
    "one of two left out": (all_but_one, lambda x: x.amax(0, keepdim=True).repeat(0, 2), (2,)),
    "half left out": (lambda x: x.reshape(2, 4).amax(-1), lambda x: x.amax(0, keepdim=True).repeat(0, 2), (8,)),
    "elements and their maximum": (lambda x: x.amax(-1, keepdim=True).repeat(1, 4), lambda x: x, (3, 4)),
    "sums of maxima": (lambda x: x.repeat(1, 2).reshape(3, 2, 4).amax(-1).sum(-1), lambda x: x.amax(-1), (3, 4)),
    "a product of maxima": (lambda x: (x * x).amax(-1), lambda x: x.amax(-1) * x.amax(-1), (3, 4)),
    "maxima of negatives": (lambda x: (-x).amax(-1), lambda x: -x.amax(-1), (3, 4)),
    "another shift": (
        lambda x: shifted(x, x.amax(-1, keepdim=True)),
        lambda x: shifted(x, x.reshape(3, 2, 2).amax(-1).repeat(1, 2)),
        (3, 4),
    ),
    "one column less in the shift": (
        lambda x: shifted(x, all_but_one(x)),
        lambda x: shifted(x, x.amax(0, keepdim=True).repeat(0, 9)),
        (9,),
    ),
    "of roots": (
        lambda x: (x.amax(-1).sqrt() * x.amax(-1).sqrt()).amax(-1),
        lambda x: x.amax(-1).sum(-1),
        (2, 4),
    ),
}


def graphs(pair: Pair) -> tuple[Graph, Graph]:
    """The kernel graphs of a pair."""
    left, right, shape = pair
    return program(left, shape), program(right, shape)


def maxima_in_a_loop(rows: int, columns: int, loop: int, *, part: int = 1) -> Graph:
    """Maxima of rows, by a loop over a `part` of the columns: tile by tile, then of the tiles' maxima."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (rows, columns), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(rows, part), loop=loop)
    tile = block.iterator(0, kernel.tensor(x), (0, 1), 1)
    partial = block.add("max", tile, dim=1, size=columns // loop // part)
    result = block.add("output_saver", block.add("accumulate", partial, combine="max"), omap=(0, 1))
    return kernel.build(kernel.graph_defined(block.build([result]), [x]))
