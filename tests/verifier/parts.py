"""Pairs of programs with slices and concatenations, equal and not, for the verifier and for the checker."""

from __future__ import annotations

from collections.abc import Callable

from mugraph.ir import Graph
from mugraph.ir.program import ProgramTensor

from .graphs import program

Function = Callable[..., ProgramTensor]
Pair = tuple[Function, Function, tuple[tuple[int, ...], ...]]
"""Two functions of tensors, and their shapes."""

ONE, TWO, MATRICES = ((4, 6),), ((4, 6), (4, 6)), ((4, 6), (6, 4))
STACK = ((3, 2, 4), (3, 2, 4))


def joined(*parts: ProgramTensor, dim: int = 1) -> ProgramTensor:
    return parts[0].program.concat(parts, dim)


def rolled(x: ProgramTensor, by: int = 3, dim: int = 1) -> ProgramTensor:
    return joined(x.slice(dim, by, x.shape[dim] - by), x.slice(dim, 0, by), dim=dim)


def flipped(x: ProgramTensor, dim: int = 1) -> ProgramTensor:
    return x.slice(dim, x.shape[dim] - 1, x.shape[dim], -1)


def padded(x: ProgramTensor, before: int = 1, behind: int = 1) -> ProgramTensor:
    zero = x.program.constant(0)
    first, last = ([zero.expand(x.shape[0], width)] if width else [] for width in (before, behind))
    return joined(*first, x, *last)


def shares(x: ProgramTensor, dim: int = 1) -> ProgramTensor:
    return x.exp() / x.exp().sum(dim, keepdim=True)


def halves(x: ProgramTensor, dim: int = 1) -> tuple[ProgramTensor, ProgramTensor]:
    half = x.shape[dim] // 2
    return x.slice(dim, 0, half), x.slice(dim, half, half)


EQUAL: dict[str, Pair] = {
    "halves put together": (lambda x: joined(*halves(x)), lambda x: x * 1, ONE),
    "turned round twice": (lambda x: rolled(rolled(x, 2), 4) * 2, lambda x: x + x, ONE),
    "backwards twice": (lambda x: flipped(flipped(x)).square(), lambda x: x.square(), ONE),
    "every other element, and the others": (
        lambda x: x.slice(1, 0, 3, 2).sum(1) + x.slice(1, 1, 3, 2).sum(1),
        lambda x: x.sum(1),
        ONE,
    ),
    "a slice of a sum": (lambda x, y: (x + y).slice(1, 1, 3), lambda x, y: x.slice(1, 1, 3) + y.slice(1, 1, 3), TWO),
    "columns of a product": (lambda x, w: (x @ w).slice(1, 1, 2), lambda x, w: x @ w.slice(1, 1, 2), MATRICES),
    "rows of a product": (lambda x, w: (x @ w).slice(0, 3, 2, -2), lambda x, w: x.slice(0, 3, 2, -2) @ w, MATRICES),
    "a product in two parts": (
        lambda x, w: x @ w,
        lambda x, w: x.slice(1, 0, 2) @ w.slice(0, 0, 2) + x.slice(1, 2, 4) @ w.slice(0, 2, 4),
        MATRICES,
    ),
    "a product of both backwards": (lambda x, w: x @ w, lambda x, w: flipped(x) @ flipped(w, 0), MATRICES),
    "zeros in a product": (
        lambda x, w: padded(x) @ joined(w.slice(0, 0, 1), w, w.slice(0, 2, 1), dim=0),
        lambda x, w: x @ w,
        MATRICES,
    ),
    "functions of parts": (
        lambda x, y: joined(x, y).silu().sum(1),
        lambda x, y: x.silu().sum(1) + y.silu().sum(1),
        TWO,
    ),
    "a softmax over two tensors": (
        lambda x, y: shares(joined(x, y)),
        lambda x, y: joined(x.exp(), y.exp()) / (x.exp().sum(1, keepdim=True) + y.exp().sum(1, keepdim=True)),
        TWO,
    ),
    "a softmax of shifted parts": (
        lambda x: joined(*(shares(part) for part in halves(x))),
        lambda x: joined(*(shares(part + 1) for part in halves(x))),
        ONE,
    ),
    "a maximum in two parts": (
        lambda x: x.amax(1),
        lambda x: halves(x)[0].amax(1).maximum(halves(x)[1].amax(1)),
        ONE,
    ),
    "a root of parts": (
        lambda x, y: joined(4 * x, 4 * y).sqrt(),
        lambda x, y: joined(x.sqrt(), y.sqrt()) * 2,
        TWO,
    ),
    "rectified multiples of parts": (
        lambda x, y: joined(2 * x, 2 * y).relu(),
        lambda x, y: joined(x.relu(), y.relu()) * 2,
        TWO,
    ),
    "a slice of the batch, for all": (
        lambda z, x: z + x.slice(0, 0, 1),
        lambda z, x: x.slice(0, 0, 1).repeat(0, 4) + z,
        TWO,
    ),
    "rows beside rows": (
        lambda x, y: joined(x, y, dim=1).sum(1) * 3,
        lambda x, y: (3 * x).sum(1) + y.sum(1) * 3,
        TWO,
    ),
    "batches of parts": (
        lambda x, y: joined(x, y, dim=1).exp().slice(1, 2, 2),
        lambda x, y: y.exp(),
        STACK,
    ),
    "heads, and positions in heads": (
        lambda x: joined(*reversed(halves(x.reshape(4, 3, 2), 2)), dim=2).reshape(4, 6),
        lambda x: flipped(x.reshape(4, 3, 2), 2).reshape(4, 6),
        ONE,
    ),
    "sums of groups of two": (
        lambda x: x.reshape(4, 3, 2).sum(2),
        lambda x: x.slice(1, 0, 3, 2) + x.slice(1, 1, 3, 2),
        ONE,
    ),
}

DIFFERENT: dict[str, Pair] = {
    "halves exchanged": (lambda x: joined(*halves(x)), lambda x: joined(*reversed(halves(x))), ONE),
    "a start off by one": (lambda x: x.slice(1, 1, 4).sum(1), lambda x: x.slice(1, 2, 4).sum(1), ONE),
    "another start of rows": (lambda x, w: x.slice(0, 0, 2) @ w, lambda x, w: x.slice(0, 1, 2) @ w, MATRICES),
    "another step": (lambda x: x.slice(1, 0, 2, 2), lambda x: x.slice(1, 0, 2, 3), ONE),
    "forwards and backwards": (lambda x: x.slice(1, 1, 4), lambda x: x.slice(1, 4, 4, -1), ONE),
    "another dimension": (lambda x: rolled(x, 1, 0), lambda x: rolled(x, 1, 1), ((4, 4),)),
    "turned round too far": (lambda x: rolled(x, 2), lambda x: rolled(x, 4), ONE),
    "a part left out of a sum": (lambda x: x.sum(1), lambda x: x.slice(1, 0, 5).sum(1), ONE),
    "a part twice in a sum": (
        lambda x: x.sum(1),
        lambda x: x.slice(1, 0, 4).sum(1) + x.slice(1, 3, 3).sum(1),
        ONE,
    ),
    "a part twice in a concatenation": (lambda x, y: joined(x, y), lambda x, y: joined(x, x), TWO),
    "parts in another order": (lambda x, y: joined(x, y), lambda x, y: joined(y, x), TWO),
    "parts along another dimension": (
        lambda x, y: joined(x, y, dim=0),
        lambda x, y: joined(x, y, dim=1).reshape(8, 4),
        ((4, 4), (4, 4)),
    ),
    "one row for all, and all rows": (lambda z, x: z + x.slice(0, 0, 1), lambda z, x: z + x, TWO),
    "another row for all": (lambda z, x: z + x.slice(0, 0, 1), lambda z, x: z + x.slice(0, 3, 1), TWO),
    "all rows but one are the first": (
        lambda x: joined(x.slice(0, 0, 1).repeat(0, 3), x.slice(0, 3, 1), dim=0),
        lambda x: x * 1,
        ONE,
    ),
    "the mean of a part of a batch": (lambda x: x - x.slice(0, 0, 2).sum(0) / 2, lambda x: x - x.sum(0) / 4, ONE),
    "a softmax over a part": (
        lambda x: shares(x).slice(1, 0, 3),
        lambda x: shares(x.slice(1, 0, 3)),
        ONE,
    ),
    "a softmax of two and two of one": (
        lambda x, y: shares(joined(x, y)),
        lambda x, y: joined(shares(x), shares(y)),
        TWO,
    ),
    "a softmax whose parts are shifted apart": (
        lambda x: shares(x),
        lambda x: shares(joined(halves(x)[0] + 1, halves(x)[1])),
        ONE,
    ),
    "a product whose parts do not meet": (
        lambda x, w: x @ w,
        lambda x, w: x.slice(1, 0, 3) @ w.slice(0, 3, 3) + x.slice(1, 3, 3) @ w.slice(0, 0, 3),
        MATRICES,
    ),
    "a product of one backwards": (lambda x, w: x @ w, lambda x, w: flipped(x) @ w, MATRICES),
    "an operand without the axis": (
        lambda x, y: joined(x, y.slice(0, 0, 1).repeat(0, 4)),
        lambda x, y: joined(x, y),
        TWO,
    ),
    "zeros on the other side": (lambda x: padded(x, 2, 0), lambda x: padded(x, 0, 2), ONE),
    "a border that is no zero": (lambda x: padded(x), lambda x: padded(x + 1) - 1, ONE),
    "a maximum over a part": (lambda x: x.amax(1), lambda x: x.slice(1, 0, 5).amax(1), ONE),
    "a maximum with a border": (lambda x: padded(x).amax(1), lambda x: x.amax(1), ONE),
    "a rectified multiple of one part": (
        lambda x, y: joined(2 * x, -2 * y).relu(),
        lambda x, y: joined(x.relu(), (-y).relu()) * 2 + joined(x, y) * 0 + joined(0 * x, y.relu()),
        TWO,
    ),
    "roots of parts with other signs": (
        lambda x, y: joined(x * x, y).sqrt(),
        lambda x, y: joined(x, y.sqrt()),
        TWO,
    ),
    "parts of a batch exchanged": (
        lambda x, y: joined(x, y, dim=1).slice(1, 1, 2),
        lambda x, y: joined(y, x, dim=1).slice(1, 1, 2),
        STACK,
    ),
    "heads exchanged for positions": (
        lambda x: flipped(x.reshape(4, 3, 2), 1).reshape(4, 6),
        lambda x: flipped(x.reshape(4, 3, 2), 2).reshape(4, 6),
        ONE,
    ),
    "a transposed part": (
        lambda x: x.slice(0, 0, 2).slice(1, 0, 2),
        lambda x: x.slice(0, 0, 2).slice(1, 0, 2).transpose(0, 1),
        ONE,
    ),
    "the sum of one part, as often": (
        lambda x: x.slice(0, 0, 2).sum(0) * 2,
        lambda x: x.sum(0),
        ONE,
    ),
}


def graphs(pair: Pair) -> tuple[Graph, Graph]:
    """The programs of a pair."""
    left, right, shapes = pair
    return program(left, *shapes), program(right, *shapes)
