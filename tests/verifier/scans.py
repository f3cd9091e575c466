"""Pairs of programs with running sums and products, equal and not, for the verifier and for the checker."""

from __future__ import annotations

from collections.abc import Callable

from mugraph.ir import Graph
from mugraph.ir.program import ProgramTensor

from .graphs import program
from .parts import flipped, joined, padded

Function = Callable[..., ProgramTensor]
Pair = tuple[Function, Function, tuple[tuple[int, ...], ...]]
"""Two functions of tensors, and their shapes."""

ONE, TWO, ROWS, CUBE = ((4, 6),), ((4, 6), (4, 6)), ((4, 6), (4, 1)), ((3, 4, 5),)


def running(x: ProgramTensor, dim: int = 1, op: str = "cumsum") -> ProgramTensor:
    return x.apply(op, dim=dim)


def exclusive(x: ProgramTensor) -> ProgramTensor:
    return padded(running(x.slice(1, 0, x.shape[1] - 1)), 1, 0)


def in_turn(x: ProgramTensor, combined: Callable[[ProgramTensor, ProgramTensor], ProgramTensor]) -> ProgramTensor:
    """The scan along dimension 1 spelled out."""
    found = [x.slice(1, 0, 1)]
    for position in range(1, x.shape[1]):
        found.append(combined(found[-1], x.slice(1, position, 1)))
    return joined(*found)


EQUAL: dict[str, Pair] = {
    "a sum spelled out": (running, lambda x: in_turn(x, lambda a, b: a + b), ONE),
    "a product spelled out": (lambda x: running(x, op="cumprod"), lambda x: in_turn(x, lambda a, b: a * b), ONE),
    "sums of sums": (lambda x, y: running(x + y), lambda x, y: running(x) + running(y), TWO),
    "products of products": (
        lambda x, y: running(x * y, op="cumprod"),
        lambda x, y: running(x, op="cumprod") * running(y, op="cumprod"),
        TWO,
    ),
    "a factor of each row": (lambda x, y: running(x * y), lambda x, y: running(x) * y, ROWS),
    "backwards between flips": (lambda x: flipped(running(flipped(x))), lambda x: running(x, op="cumsum_back"), ONE),
    "a product backwards": (
        lambda x: flipped(running(flipped(x), op="cumprod")),
        lambda x: running(x, op="cumprod_back"),
        ONE,
    ),
    "backwards is what is left of all": (
        lambda x: running(x, op="cumsum_back"),
        lambda x: x.sum(1, keepdim=True) - running(x) + x,
        ONE,
    ),
    "without the own element": (exclusive, lambda x: running(x) - x, ONE),
    "one after the other along two dimensions": (
        lambda x: running(running(x, 1), 0),
        lambda x: running(running(x, 0), 1),
        ONE,
    ),
    "transposed": (lambda x: running(x.transpose(0, 1), 0).transpose(0, 1), running, ONE),
    "functions of it": (lambda x: running(2 * x).silu(), lambda x: (2 * running(x)).silu(), ONE),
    "the last is the sum": (lambda x: running(x).slice(1, 5, 1), lambda x: x.sum(1, keepdim=True), ONE),
    "of a cube": (lambda x: running(x * 3, 1) * x, lambda x: running(x, 1) * x * 3, CUBE),
}


DIFFERENT: dict[str, Pair] = {
    "the other direction": (running, lambda x: running(x, op="cumsum_back"), ONE),
    "the other dimension": (running, lambda x: running(x, 0), ((4, 4),)),
    "the other dimension of a cube": (lambda x: running(x, 1), lambda x: running(x, 2), CUBE),
    "with and without the own element": (running, exclusive, ONE),
    "one position later": (running, lambda x: joined(running(x).slice(1, 1, 5), x.sum(1, keepdim=True)), ONE),
    "a product for a sum": (running, lambda x: running(x, op="cumprod"), ONE),
    "a product in the other direction": (
        lambda x: running(x, op="cumprod"),
        lambda x: running(x, op="cumprod_back"),
        ONE,
    ),
    "the whole sum everywhere": (running, lambda x: x.sum(1, keepdim=True).repeat(1, 6), ONE),
    "begun again halfway": (
        running,
        lambda x: joined(running(x.slice(1, 0, 3)), running(x.slice(1, 3, 3))),
        ONE,
    ),
    "a factor of each element moved out": (lambda x, y: running(x * y), lambda x, y: running(x) * y, TWO),
    "products of sums": (lambda x, y: running(x * y), lambda x, y: running(x) * running(y), TWO),
    "a summand of each row moved out": (lambda x, y: running(x + y), lambda x, y: running(x) + y, ROWS),
    "along rows put together": (
        running,
        lambda x: running(x.reshape(1, 24)).reshape(4, 6),
        ONE,
    ),
    "turned once": (lambda x: running(flipped(x)), lambda x: running(x, op="cumsum_back"), ONE),
    "twice": (lambda x: running(running(x)), running, ONE),
}


def graphs(pair: Pair) -> tuple[Graph, Graph]:
    left, right, shapes = pair
    return program(left, *shapes), program(right, *shapes)
