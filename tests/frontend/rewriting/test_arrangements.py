"""Blocks of tensors in another order: which concatenations are, and that programs compute what torch does."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.frontend.rewriting.arrangements import Arrangement, arrangement_of, with_arrangements
from mugraph.frontend.rewriting.node_traits import isolated, program_of
from mugraph.frontend.rewriting.permuted_blocks import arranged
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic

Function = Callable[[torch.Tensor], torch.Tensor]


def recorded(fn: Function, x: torch.Tensor) -> fx.GraphModule:
    module: fx.GraphModule = make_fx(fn, tracing_mode="fake")(x)
    return module


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def found_in(fn: Function, x: torch.Tensor) -> list[Arrangement]:
    return [found for node in calls(recorded(fn, x)) if (found := arrangement_of(node)) is not None]


X = torch.arange(2 * 4 * 8, dtype=torch.float32).reshape(2, 4, 8) - 20
ROTATED = ((-1, 1), (1, 0))

ARRANGEMENTS: dict[str, tuple[Function, int, tuple[tuple[int, int], ...]]] = {
    "slices": (lambda x: torch.cat((-x[..., 4:], x[..., :4]), -1), 2, ROTATED),
    "chunks": (lambda x: torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), dim=2), 2, ROTATED),
    "bounds from the end": (lambda x: torch.cat((-x[..., -4:], x[..., :-4]), -1), 2, ROTATED),
    "negated twice": (lambda x: torch.cat((-x[:, 2:].neg(), x[:, :2]), 1), 1, ((1, 1), (1, 0))),
    "the first dimension": (lambda x: torch.cat((x[1:], -x[:1])), 0, ((1, 1), (-1, 0))),
    "one half twice": (lambda x: torch.cat((x[:, :2], x[:, :2]), 1), 1, ((1, 0), (1, 0))),
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_equal_blocks_of_one_tensor_become_one_call(name: str) -> None:
    fn, dim, blocks = ARRANGEMENTS[name]
    (found,) = found_in(fn, X)
    assert (found.dim, found.count, found.blocks) == (dim, 2, blocks)
    module = with_arrangements(recorded(fn, X))
    (call,) = calls(module)
    assert call.target is arranged
    torch.testing.assert_close(module(X), fn(X), rtol=0, atol=0)
    program, _ = program_of(isolated([call], [call])[0])
    (got,) = evaluate(program, [X.double().numpy(), found.matrix().double().numpy()], FloatArithmetic(np.float64))
    np.testing.assert_array_equal(got, fn(X).numpy())


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cat((-x[..., 4:], (x + 1)[..., :4]), -1),  # of two tensors
        lambda x: torch.cat((-x[..., 3:], x[..., :3]), -1),  # not equal
        lambda x: torch.cat((x[..., 2:6], x[..., :4]), -1),  # not aligned
        lambda x: torch.cat((x[..., 4:], x[..., :4]), 1),  # concatenated along another dimension
        lambda x: torch.cat((x[..., 1::2], x[..., ::2]), -1),  # not contiguous
        lambda x: torch.cat(x.chunk(4, -1)[::-1], -1),  # a matrix of sixteen elements
        lambda x: torch.cat((x, x), -1),  # whole
        lambda x: torch.cat((x.int()[..., 4:], x.int()[..., :4]), -1),  # integers
        lambda x: torch.cat((x[..., 4:], x.exp()[..., :4]), -1),
    ],
)
def test_other_concatenations_stay_as_they_are(fn: Function) -> None:
    module = recorded(fn, X)
    assert found_in(fn, X) == []
    assert with_arrangements(module) is module


def test_halves_that_are_read_elsewhere_too_are_still_there() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        first, second = x[..., :4], x[..., 4:]
        return torch.cat((-second, first), -1) + torch.cat((first.exp(), second), -1)

    module = with_arrangements(recorded(fn, X / 9))
    torch.testing.assert_close(module(X / 9), fn(X / 9), rtol=0, atol=0)
    assert [call.target for call in calls(module)].count(arranged) == 1


def test_blocks_of_a_tensor_that_is_changed_are_left_as_they_were() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        negated, first = -x[..., 4:], x[..., :4]
        torch.ops.aten.mul_.Tensor(x, 2.0)
        return torch.cat((negated, first), -1)

    module = recorded(fn, X)
    torch.testing.assert_close(with_arrangements(module)(X.clone()), fn(X.clone()), rtol=0, atol=0)


def test_calls_that_do_the_same_share_a_matrix() -> None:
    def rotate(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((-x[..., 4:], x[..., :4]), -1)

    module = with_arrangements(recorded(lambda x: rotate(rotate(x)) + torch.cat((x[..., 4:], x[..., :4]), -1), X))
    assert sorted(name for name, _ in module.named_buffers()) == ["block_matrix_0", "block_matrix_1"]
    assert [call.target for call in calls(module)].count(arranged) == 3


@pytest.mark.parametrize("seed", range(12))
def test_random_concatenations_are_unchanged(seed: int) -> None:
    draw = random.Random(seed)
    shape = [draw.choice((1, 2, 4, 6)) for _ in range(3)]
    dim = draw.randrange(3)

    def part(x: torch.Tensor) -> torch.Tensor:
        size = max(shape[dim] // 2, 1)
        start = draw.choice((0, size, draw.randrange(shape[dim])))
        taken = x.narrow(dim, min(start, shape[dim] - size), size)
        return -taken if draw.random() < 0.5 else taken

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for _ in range(draw.choice((1, 2, 2, 3)))], dim)

    x = torch.randn(shape)
    module = recorded(fn, x)
    torch.testing.assert_close(with_arrangements(module)(x), module(x), rtol=0, atol=0)
