"""The oracle that mutants are judged by: exact where it can be, and never fooled by undefined values or overflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mugraph.ir.graph import Value
from mugraph.ir.program import ProgramTensor
from mugraph.testing import agree
from mugraph.testing.oracle import modulo_prime
from verifier.graphs import attention, fused_rmsnorm, online_attention, program, rmsnorm

Function = Callable[..., ProgramTensor]
VECTOR = (4,)


def softmax(x: ProgramTensor, shift: ProgramTensor) -> ProgramTensor:
    weights = (x - shift).exp()
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda x, y: (x + y) * x, lambda x, y: x * x + y * x),
        (lambda x, y: x.apply("div", y).apply("mul", y), lambda x, y: x),
        (lambda x, y: softmax(x, y.sum(-1, keepdim=True)), lambda x, y: softmax(x, x.amax(-1, keepdim=True))),
        (lambda x, y: softmax(x, x.amax(-1, keepdim=True) ** 99), lambda x, y: softmax(x, y.sum(-1, keepdim=True))),
        (lambda x, y: softmax(x, (x.amax(-1, keepdim=True) * 30) ** 227), lambda x, y: softmax(x, y.sum(-1, keepdim=True))),
        (lambda x, y: (x * 2 + y).relu(), lambda x, y: (x + y / 2).relu() * 2),
        (lambda x, y: (x**227) ** 227 * y / 3, lambda x, y: (x**227) ** 226 * x**226 * (y * x) / 3),
    ],
)
def test_equal_functions_agree(left: Function, right: Function) -> None:
    assert agree(program(left, VECTOR, VECTOR), program(right, VECTOR, VECTOR))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda x, y: x - y, lambda x, y: y - x),
        (lambda x, y: x * 3, lambda x, y: x * (3 + 10**-9)),
        (lambda x, y: (x**227) ** 227 + y, lambda x, y: (x**227) ** 227 + y * 2),
        (lambda x, y: (x + y + 10).sqrt(), lambda x, y: (x + y + 10 + 10**-9).sqrt()),
        (lambda x, y: (x.square() + 1).sqrt(), lambda x, y: (x.square() * -1 - 1).sqrt()),
        (lambda x, y: softmax(x, x.amax(-1, keepdim=True)), lambda x, y: x.exp()),
    ],
)
def test_different_functions_do_not_agree(left: Function, right: Function) -> None:
    assert not agree(program(left, VECTOR, VECTOR), program(right, VECTOR, VECTOR))


def test_nothing_is_said_of_exponentials_without_end() -> None:
    tower = program(lambda x, y: softmax(x, ((x.amax(-1, keepdim=True) + 3) ** 227) ** 227), VECTOR, VECTOR)
    assert not agree(tower, tower)


def test_kernels_are_evaluated_block_by_block() -> None:
    assert agree(rmsnorm(), fused_rmsnorm())
    assert agree(attention(), online_attention())
    assert not agree(rmsnorm(), fused_rmsnorm(scale=False))


def test_numbers_without_dimensions_stay_exact() -> None:
    def function(number: int) -> Function:
        return lambda x, y: (x**227) ** 227 + x.program.constant(number).apply("square").apply("square").apply("square")

    left, right, other = (program(function(number), VECTOR, VECTOR) for number in (10**6, -(10**6), 10**6 + 1))
    assert agree(left, right)
    assert not agree(left, other)


def test_quotients_that_no_output_reads_have_no_say() -> None:
    graph = program(lambda x, y: y / (x - x), (2, 2), (2, 2))
    inputs = [np.full((2, 2), number, object) for number in (3, 4)]
    assert modulo_prime(graph, inputs) is None
    made = modulo_prime(replace(graph, outputs=(Value(1),)), inputs)
    assert made is not None
    assert (made[0] == 4).all()
