"""Whether two functions compute the same, of which only parts are programs: answers that are right, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional as F

import mugraph
from mugraph.errors import InvalidInput
from mugraph.verifier import Certificate


class Pair(NamedTuple):
    """Two functions, example inputs, and the outcome."""

    one: Callable[..., Any]
    other: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    outcome: str


def floats(*shapes: tuple[int, ...]) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def looked_up() -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 7, (4,)), torch.randn(7, 8), torch.randn(8, 5), torch.randn(8, 5)


def appended(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache[:2] = x * 2
    return cache.exp()


def appended_otherwise(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache[:2] = x + x
    return cache.exp()


def appended_elsewhere(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache[1:3] = x + x
    return cache.exp()


MASKS = [torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(shift).bool(), -torch.inf) for shift in (1, 2)]
EQUAL, DIFFERENT, UNDECIDED = "equivalent", "different", "undecided"

PAIRS = {
    "around a sum along rows": Pair(
        lambda x, y: ((x + y) * 2).logcumsumexp(0) * 3,
        lambda x, y: (x * 2 + y * 2).logcumsumexp(0) * 3,
        floats((4, 8), (4, 8)),
        EQUAL,
    ),
    "a number that is read from a tensor": Pair(
        lambda x: (x - x.max().item()).exp() * 2, lambda x: 2 * (x - x.max().item()).exp(), floats((4, 8)), EQUAL
    ),
    "another number that is read from a tensor": Pair(
        lambda x: (x - x.max().item()).exp(), lambda x: (x - x.min().item()).exp(), floats((4, 8)), DIFFERENT
    ),
    "numbers found by a mask": Pair(lambda x: x[x > 0] * 2, lambda x: x[x > 0] * 2, floats((4, 8)), UNDECIDED),
    "a variance of one number": Pair(lambda x: x.var(-1) * 0, lambda x: 0 * x.sum(-1), floats((4, 1)), UNDECIDED),
    "twice a variance of one number": Pair(lambda x: x.var(-1) * 2, lambda x: x.var(-1) + x.var(-1), floats((4, 1)), UNDECIDED),
    "a variance of one number beside one of 8 bits": Pair(
        lambda x, y: (x + y.float()).var(-1) * 2,
        lambda x, y: 2 * (x + y.float()).var(-1),
        lambda: (torch.randn(4, 1), torch.ones(4, 1).to(torch.float8_e4m3fn)),
        UNDECIDED,
    ),
    "a function of lengths below 1": Pair(
        lambda x: (1 - x.norm(dim=-1)).sqrt().logcumsumexp(0) * 2,
        lambda x: 2 * (1 - x.norm(dim=-1)).sqrt().logcumsumexp(0),
        floats((4, 64)),
        EQUAL,
    ),
    "another operand": Pair(
        lambda x, y: ((x + y) * 2).logcumsumexp(0) * 3,
        lambda x, y: (x * 2 + y).logcumsumexp(0) * 3,
        floats((4, 8), (4, 8)),
        DIFFERENT,
    ),
    "another dimension": Pair(lambda x: x.logcumsumexp(0), lambda x: x.logcumsumexp(1), floats((4, 4)), DIFFERENT),
    "an operator by another": Pair(lambda x: x.logcumsumexp(0)[-1], lambda x: x.logsumexp(0), floats((4, 8)), UNDECIDED),
    "linear in what is unknown": Pair(
        lambda i, t, v, w: t[i] @ v + t[i] @ w, lambda i, t, v, w: t[i] @ (v + w), looked_up, EQUAL
    ),
    "other rows": Pair(lambda i, t, v, w: t[i] @ v, lambda i, t, v, w: t[i.flip(0)] @ v, looked_up, DIFFERENT),
    "integers out of numbers": Pair(
        lambda x, y: (x * y + x).argmax(1), lambda x, y: (x * (y + 1)).argmax(1), floats((6, 5), (6, 5)), EQUAL
    ),
    "other integers": Pair(lambda x: x.argmax(1), lambda x: x.argmin(1), floats((6, 5)), DIFFERENT),
    "integers that rounding decides": Pair(
        lambda x: (x.logcumsumexp(1) - x.exp().cumsum(1).log())[:, 1:-1].argmax(1),
        lambda x: (x.exp().cumsum(1).log() - x.logcumsumexp(1))[:, 1:-1].argmax(1),
        floats((6, 64)),
        UNDECIDED,
    ),
    "parts put together": Pair(
        lambda x, y: torch.cat([x + y, y - x]).exp(), lambda x, y: torch.cat([y + x, -(x - y)]).exp(), floats((3,), (3,)), EQUAL
    ),
    "parts in another order": Pair(
        lambda x, y: torch.cat([x, y]).exp(), lambda x, y: torch.cat([y, x]).exp(), floats((3,), (3,)), DIFFERENT
    ),
    "several results": Pair(lambda x: x.topk(2).values * 2, lambda x: x.topk(2).values + x.topk(2).values, floats((3, 6)), EQUAL),
    "another result of several": Pair(
        lambda x: x.sort(-1).indices, lambda x: x.sort(-1, descending=True).indices, floats((3, 6)), DIFFERENT
    ),
    "random numbers": Pair(lambda x: F.dropout(x), lambda x: F.dropout(x), floats((3, 6)), UNDECIDED),
    "what was never written": Pair(
        lambda x: torch.empty_like(x) + x,
        lambda x: torch.empty_like(x) + x,
        floats((3, 6)),
        UNDECIDED,
    ),
    "a chain": Pair(
        lambda x, w: ((x @ w + x @ w).logcumsumexp(0) @ w).logcumsumexp(1),
        lambda x, w: ((2 * x @ w).logcumsumexp(0) @ w).logcumsumexp(1),
        floats((4, 4), (4, 4)),
        EQUAL,
    ),
    "a chain with a mistake in its middle": Pair(
        lambda x, w: ((x @ w + x @ w).logcumsumexp(0) @ w).logcumsumexp(1),
        lambda x, w: ((3 * x @ w).logcumsumexp(0) @ w).logcumsumexp(1),
        floats((4, 4), (4, 4)),
        DIFFERENT,
    ),
    "what is changed": Pair(appended, appended_otherwise, floats((4, 3), (2, 3)), EQUAL),
    "what is changed elsewhere": Pair(appended, appended_elsewhere, floats((4, 3), (2, 3)), DIFFERENT),
    "a change that one does not make": Pair(
        appended, lambda cache, x: torch.cat([x * 2, cache[2:]]).exp(), floats((4, 3), (2, 3)), DIFFERENT
    ),
    "two masks that hide": Pair(
        lambda x: (x + MASKS[0]).softmax(-1), lambda x: (x + MASKS[1]).softmax(-1), floats((4, 4)), DIFFERENT
    ),
    "comparisons": Pair(
        lambda x, y: torch.where(x + y > y + x - 1, x, y),
        lambda x, y: torch.where(y + x > x + y - 1, x, y),
        floats((4,), (4,)),
        EQUAL,
    ),
    "another structure": Pair(lambda x: x.logcumsumexp(0), lambda x: (x.logcumsumexp(0),), floats((4,)), DIFFERENT),
    "another type": Pair(lambda x: x.logcumsumexp(0), lambda x: x.logcumsumexp(0).argmax(), floats((4,)), DIFFERENT),
    "a constant of one": Pair(
        lambda x: x.logcumsumexp(0) * torch.tensor([1.0, 2.0]).sum(), lambda x: x.logcumsumexp(0) * 3, floats((4,)), EQUAL
    ),
    "masked by an argument": Pair(
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        lambda q, m: (q @ q.transpose(-2, -1) / 2 + m).softmax(-1) @ q,
        floats((1, 3, 4), (3, 3)),
        UNDECIDED,
    ),
    "attention that sees one key more": Pair(
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda q: (q @ q.transpose(-2, -1) / 2 + torch.full((4, 4), -torch.inf).triu(2)).softmax(-1) @ q,
        floats((1, 4, 4)),
        DIFFERENT,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_answers_are_right_and_certificates_are_read_back(name: str) -> None:
    pair = PAIRS[name]
    torch.manual_seed(2)
    verdict = mugraph.verify(pair.one, pair.other, pair.inputs(), seed=11)
    assert verdict.outcome == pair.outcome, verdict.reason
    if verdict.equivalent:
        assert verdict.error_bound is not None
        assert verdict.error_bound < 2**-38
    assert (verdict.counterexample is not None) is (pair.outcome == DIFFERENT)
    written = verdict.certificate.to_json()
    assert Certificate.from_json(json.loads(json.dumps(written))).to_json() == written
    swapped = mugraph.verify(pair.other, pair.one, pair.inputs(), seed=12)
    assert swapped.outcome == pair.outcome, swapped.reason


def test_what_was_taken_for_granted_is_said() -> None:
    pair = PAIRS["around a sum along rows"]
    verdict = mugraph.verify(pair.one, pair.other, {"x": torch.randn(4, 8), "y": torch.randn(4, 8)})
    assert verdict.question == (
        "for all values of x, y, and of the tensors that both functions bring along; "
        "what PyTorch computes by logcumsumexp of equal operands is equal"
    )
    assert verdict.certificate.to_json()["accepted"]


def test_an_undecided_question_says_why_the_functions_are_not_compared_as_wholes() -> None:
    large = torch.full((4, 4), -1e9).triu(1)
    verdict = mugraph.verify(lambda x: (x + MASKS[0]).softmax(-1), lambda x: (x + large).softmax(-1), floats((4, 4))())
    assert verdict.outcome == UNDECIDED
    assert "part by part, for tensor" in verdict.reason
    assert "holds infinities" in verdict.reason


def test_weights_of_one_function_have_their_values() -> None:
    weight = torch.tensor([2.0, 2.0, 2.0])
    verdict = mugraph.verify(lambda x: x.sort(0).values * weight, lambda x: (x + x).sort(0).values, (torch.randn(4, 3),))
    assert verdict.outcome == UNDECIDED  # that sorting keeps factors is not known
    same = mugraph.verify(lambda x: x.sort(0).values * weight, lambda x: x.sort(0).values * 2, (torch.randn(4, 3),))
    assert same.outcome == EQUAL
    assert "their present values" in same.question


def test_programs_and_all_weights_are_refused_as_ever() -> None:
    with pytest.raises(mugraph.MugraphError, match="logcumsumexp"):
        mugraph.verify(lambda x: x.logcumsumexp(0), lambda x: x.logcumsumexp(0), floats((4,))(), for_all_weights=True)
    program = mugraph.Program()
    program.output(program.input("x", (4,)).exp())
    with pytest.raises(mugraph.MugraphError, match="logcumsumexp"):
        mugraph.verify(program, lambda x: x.logcumsumexp(0), floats((4,))())
    with pytest.raises(InvalidInput, match="cannot"):
        mugraph.verify(3, lambda x: x.logcumsumexp(0), floats((4,))())  # type: ignore[arg-type]


def test_tests_of_proofs_in_pieces_are_counted() -> None:
    def softmax_twice(x: torch.Tensor, w: torch.Tensor) -> Any:
        for _ in range(2):
            x = torch.softmax(x @ w, -1)
        return torch.linalg.inv(x)

    def sums_first(x: torch.Tensor, w: torch.Tensor) -> Any:
        for _ in range(2):
            e = torch.exp(x @ w)
            x = e / e.sum(-1, keepdim=True)
        return torch.linalg.inv(x)

    verdict = mugraph.verify(softmax_twice, sums_first, (torch.randn(4, 4), torch.randn(4, 4)))
    assert verdict.equivalent
    assert verdict.certificate.tests_run > 0
    read = Certificate.from_json(verdict.certificate.to_json())
    assert read.error_bound == verdict.certificate.error_bound
