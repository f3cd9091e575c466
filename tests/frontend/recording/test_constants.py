"""What a function computes of no tensor: masks, positions, tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mugraph
from mugraph.errors import NotAProgram
from mugraph.frontend import trace
from mugraph.verifier import Outcome

from ..agreement import assert_agrees, random, run

Q, K, V = (random(2, 3, 6, 4, seed=seed) for seed in range(3))
X, Y = random(6, 8, seed=3), random(6, 8, seed=4)


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.mT / 2


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (Q, K, V)),
    "causal, more keys": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (Q[..., :3, :], K, V)
    ),
    "booleans": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(6, 6, dtype=torch.bool).tril()), (Q, K, V)
    ),
    "a window": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=(torch.arange(6)[:, None] - torch.arange(6)[None]).abs() < 2
        ),
        (Q, K, V),
    ),
    "ALiBi": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=-(torch.arange(6)[:, None] - torch.arange(6)[None]).abs().double() / 4
        ),
        (Q, K, V),
    ),
    "a diagonal of more than 255": (
        lambda x, y: x @ torch.eye(300, dtype=torch.float64)[:8, :8] + y.masked_fill(torch.eye(300, 8)[-6:] > 0, 0), (X, Y)
    ),
    "grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        (random(2, 6, 6, 4), K, V),
    ),
    "filled with -inf": (
        lambda q, k, v: scores(q, k).masked_fill(torch.ones(6, 6).triu(1) > 0, -math.inf).softmax(-1) @ v, (Q, K, V)
    ),
    "chosen with -inf": (
        lambda q, k, v: torch.where(torch.ones(6, 6).tril() > 0, scores(q, k), -math.inf).softmax(-1) @ v, (Q, K, V)
    ),
    "chosen, -inf first": (
        lambda q, k, v: torch.where(torch.ones(6, 6).triu(1) > 0, -math.inf, scores(q, k)).softmax(-1) @ v, (Q, K, V)
    ),
    "filled with a number": (lambda x: x.masked_fill(torch.arange(8) > 4, 2.5), (X,)),
    "chosen from a number and infinity": (lambda x: torch.where(torch.arange(8) > 4, x, math.inf), (X,)),
    "chosen from two": (lambda x, y: torch.where(torch.arange(8) > 4, x, y), (X, Y)),
    "lower triangle": (lambda x: torch.tril(x), (X,)),
    "upper triangle": (lambda x: torch.triu(x, 2).exp(), (X,)),
    "positions": (lambda x: x * torch.arange(8, dtype=torch.float64), (X,)),
    "a number": (lambda x: x * torch.full((), 3.0, dtype=torch.float64), (X,)),
    "ones": (lambda x: x + torch.ones(6, 1, dtype=torch.float64), (X,)),
    "frequencies": (lambda x: x * (10000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)).cos(), (X,)),
    "cosine similarity": (lambda x, y: F.cosine_similarity(x, y, -1), (X, Y)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_computed_of_no_tensor_is_a_constant(name: str) -> None:
    fn, inputs = FUNCTIONS[name]
    assert_agrees(fn, *inputs)


def test_equal_constants_are_one_input() -> None:
    def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        once = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(once, k, v, is_causal=True)

    assert trace(twice, (Q, K, V)).graph.input_names == ("q", "k", "v", "constant_0")


@pytest.mark.parametrize(
    "fn",
    [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(6, 6, dtype=torch.bool)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.full((6, 6), -math.inf, dtype=torch.float64)),
    ],
)
def test_a_mask_that_hides_a_row_is_none_that_a_program_has(fn: Callable[..., Any]) -> None:
    with pytest.raises(NotAProgram, match="masked attention"):
        trace(fn, (Q, K, V))


def test_masks_that_are_inputs_may_hide_rows() -> None:
    with pytest.raises(NotAProgram, match="masked attention"):
        trace(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), (Q, K, V, random(6, 6)))


def test_random_numbers_are_no_constants() -> None:
    with pytest.raises(NotAProgram, match="random"):
        trace(lambda x: x * torch.rand(8, dtype=torch.float64), (X,))


def test_what_is_not_chosen_must_be_finite() -> None:
    """The one difference to PyTorch, and where it is: 0 times infinity."""
    traced = trace(lambda x: torch.tril(x), (X,))
    tensors = traced.flatten((X.clone().index_fill(1, torch.tensor([7]), math.inf),), {})
    (result,) = run(traced.graph, tensors)
    assert torch.isnan(result[0, 7])
    assert torch.equal(result[:, :7], torch.tril(X)[:, :7])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_only_where_they_are_chosen(number: float) -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(8) > 4, x, number)

    traced = trace(chosen, (X,))
    (result,) = run(traced.graph, traced.flatten((X,), {}))
    torch.testing.assert_close(torch.as_tensor(result), chosen(X), equal_nan=True)


def test_numbers_are_infinite_where_the_type_of_the_result_has_them_so() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.where(torch.arange(8) > 4, x, -1e9)
        return torch.where(torch.arange(8) < 2, torch.where(torch.arange(8) > 6, 1e9, hidden), hidden.masked_fill(soon(), 0.5))

    x = X.half()
    traced = trace(chosen, (x,))
    (result,) = run(traced.graph, traced.flatten((x,), {}))
    torch.testing.assert_close(torch.as_tensor(result).half(), chosen(x))
    assert chosen(x)[0, 0] == -math.inf


GIVEN = torch.arange(8) < 5


def early() -> torch.Tensor:
    return torch.arange(8) < 2


def soon() -> torch.Tensor:
    return torch.arange(8) < 5


CHAINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "-inf, then 0": lambda x: x.masked_fill(soon(), -math.inf).masked_fill(early(), 0.0),
    "-inf, then what it was": lambda x: torch.where(early(), x, x.masked_fill(soon(), -math.inf)),
    "-inf, then infinity": lambda x: x.masked_fill(soon(), -math.inf).masked_fill(early(), math.inf),
    "infinity, then -inf": lambda x: torch.where(soon(), math.inf, x).masked_fill(early(), -math.inf),
    "-inf added, then a number": lambda x: torch.where(early(), 1.5, x + torch.zeros(8).masked_fill(soon(), -math.inf)),
    "-inf twice": lambda x: x.masked_fill(soon(), -math.inf).masked_fill(early(), -math.inf),
    "-inf by a mask that is captured, then 0": lambda x: x.masked_fill(GIVEN, -math.inf).masked_fill(early(), 0.0),
    "divided by what may be 0": lambda x: torch.where(torch.arange(8) > 0, x / torch.arange(8.0), 0.0),
    "rows of which all is hidden": lambda x: (
        x.masked_fill((torch.arange(6) < 3)[:, None], -math.inf).softmax(-1).masked_fill((torch.arange(6) < 3)[:, None], 0.0)
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_is_infinite_is_not_there_where_a_later_mask_hides_it(name: str) -> None:
    traced = trace(CHAINS[name], (X,))
    with np.errstate(invalid="ignore"):
        (result,) = run(traced.graph, traced.flatten((X,), {}))
    torch.testing.assert_close(torch.as_tensor(result), CHAINS[name](X), equal_nan=True)


def test_masks_that_hide_one_after_the_other_are_added() -> None:
    assert [node.op for node in trace(CHAINS["-inf twice"], (X,)).graph.nodes].count("add") == 2


def test_causal_attention_is_the_softmax_that_one_writes() -> None:
    def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT * 0.5).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -math.inf).softmax(-1) @ v

    verdict = mugraph.verify(FUNCTIONS["causal"][0], by_hand, tuple(t.float() for t in (Q, K, V)))
    assert verdict.outcome is Outcome.EQUIVALENT


def test_kernels_of_causal_attention(tmp_path: Any) -> None:
    inputs = tuple(tensor.float() for tensor in (Q, K, V))
    opt = mugraph.superoptimize(FUNCTIONS["causal"][0], inputs, profile=False)
    assert opt.found
    wanted = FUNCTIONS["causal"][0](*inputs)
    torch.testing.assert_close(opt(*inputs), wanted, rtol=1e-5, atol=1e-5)
    again = mugraph.load(opt.save(tmp_path / "causal"))
    torch.testing.assert_close(again(*inputs), wanted, rtol=1e-5, atol=1e-5)


def test_constants_lie_where_the_tensors_of_a_call_do_and_parameters_where_they_are() -> None:
    layer = torch.nn.Linear(4, 4, bias=False)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, layer.weight) + torch.linspace(0, 1, 4).exp()

    traced = trace(shifted, (torch.randn(3, 4),))
    x, weight, constant = traced.flatten((torch.randn(3, 4),), {})
    assert {tensor.device.type for tensor in (x, weight, constant)} == {"cpu"}
    elsewhere = torch.empty(3, 4, device="meta")
    for _ in range(2):
        x, weight, copy = traced.flatten((elsewhere,), {})
        assert (x.device.type, weight.device.type, copy.device.type, copy.shape) == ("meta", "cpu", "meta", constant.shape)
    assert traced.captured_beside((elsewhere,))[1] is copy
    assert traced.captured[1].device.type == "cpu"
