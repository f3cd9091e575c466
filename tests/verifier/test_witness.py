"""Witnesses are found wherever programs differ, hold when they are replayed, and are never given for equal programs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from mugraph.ir.graph import Graph
from mugraph.ir.program import ProgramTensor
from mugraph.testing.rewrites import rewritten
from mugraph.verifier import counterexamples as module
from mugraph.verifier.certainty import Enclosed
from mugraph.verifier.counterexamples import find_witness
from mugraph.verifier.enclosures import NotEnclosed
from mugraph.verifier.points import Point

from .graphs import attention, fused_rmsnorm, online_attention, program, rmsnorm

Function = Callable[[ProgramTensor], ProgramTensor]
Pair = tuple[Function, Function]
SHAPE = (4, 8)


def pair_of(functions: Pair, shape: tuple[int, ...] = SHAPE) -> tuple[Graph, Graph]:
    return program(functions[0], shape), program(functions[1], shape)


def steps(x: ProgramTensor) -> ProgramTensor:
    """Zero for x < -10, and positive above -1: a field sees the difference in one of a thousand draws."""
    product = x - x + 1
    for i in range(1, 11):
        product = product * (((x + i) * (x + i)).sqrt() + x + i)
    return product


DIFFERENT: dict[str, Pair] = {
    "a factor": (lambda x: x * 2, lambda x: x * 3),
    "a product of sums with roots": (steps, lambda x: x * 0),
    "negative numbers only": (lambda x: (x * x).sqrt(), lambda x: x * 1),
    "large numbers only": (lambda x: x + (x - 1000).apply("relu"), lambda x: x * 1),
    "between two constants only": (lambda x: (x - 2).apply("relu") * (2.01 - x).apply("relu"), lambda x: x - x),
    "two forms of GELU": (
        lambda x: x.apply("gelu"),
        lambda x: 0.5 * x * (1 + (0.7978845608 * (x + 0.044715 * x * x * x)).apply("tanh")),
    ),
    "beyond the range of float64": (lambda x: (x * 1000).exp(), lambda x: (x * 1000).exp() + 1),
    "a maximum of magnitudes": (lambda x: x.amax(-1), lambda x: (x * x).sqrt().amax(-1)),
    "a sum and its elements": (lambda x: x.sum(-1) * x.sum(-1), lambda x: (x * x).sum(-1)),
    "a logarithm of nothing": (lambda x: x + 0 * (0 - x.exp()).apply("log"), lambda x: x * 1),
    "a division by nothing": (lambda x: x * 1, lambda x: x / (x - x)),
}


def small(number: float) -> dict[str, Pair]:
    """Programs that differ by a number beside x, under a root, and in a logarithm."""
    return {
        f"{number} beside x": (lambda x: (x + number) - x, lambda x: x - x),
        f"{number} under a root": (lambda x: (x * x + number).sqrt(), lambda x: (x * x).sqrt()),
        f"{number} in a logarithm": (lambda x: (x.exp() + number).apply("log"), lambda x: x * 1),
    }


DIFFERENT |= small(1e-9) | small(1e-30) | small(1e-60)
EQUAL: dict[str, Pair] = {
    "cancellation": (lambda x: (x + 1e8) - 1e8, lambda x: x * 1),
    "cancellation of everything": (lambda x: (x + 1e300) - 1e300, lambda x: x * 1),
    "thirds": (lambda x: x / 3 * 3, lambda x: x * 1),
    "two forms of the variance": (
        lambda x: (x * x).mean(-1) - x.mean(-1) * x.mean(-1),
        lambda x: ((x - x.mean(-1, keepdim=True)) * (x - x.mean(-1, keepdim=True))).mean(-1),
    ),
    "roots of two forms of the variance": (
        lambda x: ((x * x).mean(-1) - x.mean(-1) * x.mean(-1)).sqrt(),
        lambda x: ((x - x.mean(-1, keepdim=True)) * (x - x.mean(-1, keepdim=True))).mean(-1).sqrt(),
    ),
    "softmax": (
        lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        lambda x: (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True),
    ),
    "logarithms of sums": (
        lambda x: x.exp().sum(-1, keepdim=True).apply("log"),
        lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True).apply("log") + x.amax(-1, keepdim=True),
    ),
    "huge exponentials": (lambda x: (x * 1000).exp() * (x * -1000).exp(), lambda x: x - x + 1),
    "a hyperbolic tangent": (lambda x: x.apply("tanh"), lambda x: 2 * (2 * x).apply("sigmoid") - 1),
    "a conjugate root": (lambda x: 1 / ((x * x + 1).sqrt() - x), lambda x: (x * x + 1).sqrt() + x),
    "a root squared": (lambda x: x.sqrt() * x.sqrt(), lambda x: x * 1),
    "an exponential of a logarithm": (lambda x: x.apply("log").exp(), lambda x: x * 1),
    "reciprocals": (lambda x: 1 / (1 / x), lambda x: x * 1),
    "a softplus": (
        lambda x: (1 + x.exp()).apply("log"),
        lambda x: (1 + (0 - x.apply("abs")).exp()).apply("log") + x.apply("relu"),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_are_found_and_can_be_replayed(name: str) -> None:
    left, right = pair_of(DIFFERENT[name])
    found = find_witness(left, right, seed=5)
    assert found is not None
    assert found.replay(left, right)
    assert not found.replay(left, left)
    assert found.inputs is not None
    assert found.inputs[0].shape == SHAPE
    assert found.left_text != found.right_text
    assert found.left_text in str(found)


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("seed", [0, 1])
def test_equal_programs_have_no_witness(name: str, seed: int) -> None:
    left, right = pair_of(EQUAL[name])
    assert find_witness(left, right, seed=seed) is None
    assert find_witness(right, left, seed=seed) is None


def test_neither_have_rewritten_programs_nor_other_tiles() -> None:
    rng = np.random.default_rng(0)
    for graph in (rmsnorm(), fused_rmsnorm(), attention(), online_attention(loop=4)):
        assert find_witness(graph, rewritten(graph, rng), seed=1) is None
    assert find_witness(rmsnorm(), fused_rmsnorm(), seed=1) is None
    assert find_witness(attention(), online_attention(loop=4), seed=1) is None


def test_kernels_that_differ_are_told_apart() -> None:
    left, right = rmsnorm(), fused_rmsnorm(scale=False)
    found = find_witness(left, right, seed=0)
    assert found is not None
    assert found.inputs is not None
    assert [array.shape for array in found.inputs] == [(4, 12), (12,), (12, 8)]
    assert found.replay(left, right)


def test_values_beyond_the_range_of_floats_are_infinite() -> None:
    sizes = [float(Enclosed(sign * Fraction(10) ** 400)) for sign in (1, -1)]
    assert sizes == [math.inf, -math.inf]


def test_signatures_are_witnesses_without_inputs() -> None:
    left, right = program(lambda x: x.sum(0), (4, 3)), program(lambda x: x.sum(0), (5, 3))
    found = find_witness(left, right, seed=0)
    assert found is not None
    assert found.inputs is None
    assert found.replay(left, right)
    assert not found.replay(left, left)
    assert found.to_json() == {"text": "input 0 has shape [4, 3] in one and [5, 3] in the other"}


def test_fixed_inputs_keep_their_values() -> None:
    left = program(lambda x, m: x + m.apply("relu"), (4, 4), (4, 4))
    right = program(lambda x, m: x * 1, (4, 4), (4, 4))
    mask = -np.ones((4, 4))
    assert find_witness(left, right, seed=0, fixed={1: mask}) is None
    mask[2, 1] = 3.0
    found = find_witness(left, right, seed=0, fixed={1: mask})
    assert found is not None
    assert found.index == (2, 1)
    assert found.inputs is not None
    np.testing.assert_array_equal(found.inputs[1], mask)
    written = json.loads(json.dumps(found.to_json()))
    assert written["inputs"][1]["fixed"]
    assert "values" not in written["inputs"][1]


def test_the_record_gives_the_inputs_exactly() -> None:
    left, right = program(lambda x, y: x @ y, (8, 6), (6, 4)), program(lambda x, y: x @ y * 1.5, (8, 6), (6, 4))
    found = find_witness(left, right, seed=0)
    assert found is not None
    record = json.loads(json.dumps(found.to_json()))
    read = []
    for entry in record["inputs"]:
        distinct = np.asarray([float.fromhex(value) for value in entry["values"]]).reshape(entry["distinct"])
        read.append(np.broadcast_to(distinct, entry["shape"]))
    assert found.inputs is not None
    for array, other in zip(read, found.inputs, strict=True):
        np.testing.assert_array_equal(array, other)
    point = Point(record["recipe"]["kind"], record["recipe"]["seed"], record["recipe"]["number"])
    again = point.inputs([found_node.output for found_node in program(lambda x, y: x @ y, (1, 6), (6, 1)).inputs()], {})
    np.testing.assert_array_equal(np.broadcast_to(again[0], (8, 6)), found.inputs[0])
    place = tuple(found.index or ())
    product = sum(float(read[0][place[0], k]) * float(read[1][k, place[1]]) for k in range(6))
    assert float(record["left"]) == pytest.approx(product)
    assert float(record["right"]) == pytest.approx(1.5 * product)


def test_time_ends_the_search() -> None:
    left, right = rmsnorm(4, 4096, 8), fused_rmsnorm(4, 4096, 8, blocks=2, loop=16)
    assert find_witness(left, right, seed=0, deadline=time.monotonic()) is None


def test_functions_without_enclosures_have_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = pair_of(DIFFERENT["two forms of GELU"])

    def first(*_: object) -> None:
        raise NotEnclosed("no enclosure of 'gelu' is known")

    monkeypatch.setattr(module, "first", first)
    assert find_witness(left, right, seed=0) is None
