"""Calls that are no sums over an axis of any size: what agrees whatever stands for them does, and nothing else is equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mugraph import Dim, verify
from mugraph.checker import Status
from mugraph.checker.all_sizes import examine_document
from mugraph.checker.sum_orders import orders_of_outputs
from mugraph.sizes.cutoff_certificates import certificate_of
from mugraph.sizes.cutoff_links import check_programs
from mugraph.sizes.cutoff_proofs import Question
from mugraph.verifier import Verdict

Fn = Callable[..., Any]
N = Dim("n", 1, 1000)
X, W = torch.randn(3, 4), torch.randn(4, 2)
TWO, OTHER = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])
COLUMNS: Any = {0: {1: N}, 1: {0: N}}


def asked(left: Fn, right: Fn, *inputs: torch.Tensor, dynamic: Any = None) -> Verdict:
    return verify(left, right, inputs or (torch.randn(3, 2),), dynamic=dynamic or {0: {0: N}}, seed=1)


def shifted_softmax(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True) @ w


def softmax(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) @ w


def normalized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)) @ w


def normalized_last(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w) * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def normalized_otherwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w) * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-4)


EQUAL: dict[str, tuple[Fn, Fn]] = {
    "softmax": (shifted_softmax, softmax),
    "norm": (normalized, normalized_last),
    "softmax of sums": (lambda x, w: torch.softmax(x * x.sum(-1, keepdim=True), -1) @ w * 2,
                        lambda x, w: 2 * (torch.softmax(x * x.sum(-1, keepdim=True), -1) @ w)),
    "logsumexp": (lambda x, w: (x @ w) * torch.logsumexp(x, -1, keepdim=True),
                  lambda x, w: (x * torch.logsumexp(x, -1, keepdim=True)) @ w),
}  # fmt: skip


@pytest.mark.parametrize("case", EQUAL)
def test_what_agrees_whatever_stands_for_calls_does_at_all_sizes_and_has_a_certificate(case: str) -> None:
    options: dict[str, Any] = {"max_error": 2**-40, "seed": 1, "properties": (), "for_all_weights": False}
    question = Question.of(verify, EQUAL[case], (X, W), COLUMNS, None, options)
    answer = question.answer()
    assert answer.verdict.equivalent, answer.verdict
    document = certificate_of(question, answer, max_error=2**-40, seed=1)
    assert document["parts"][-1]["cuts"]
    assert {part.status for part in examine_document(document, seed=1).parts.values()} == {Status.CHECKED}
    check_programs(question, document, orders_of_outputs)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda x: x.amax(0), lambda x: x.amin(0)),
        (lambda x: x.amax(0), lambda x: 2 * x.amax(0)),
        (lambda x: (x * TWO).amax(0), lambda x: (x * OTHER).amax(0)),
        (lambda x: (x + 1.0).amax(0), lambda x: (x + 1.5).amax(0)),
        (lambda x: x.amax(0) * ((x.shape[0] - 2) * (x.shape[0] - 3)), lambda x: 0 * x.amax(0)),
        (lambda x: x.amax(0) + x.sum(0), lambda x: x.amax(0) + x.mean(0)),
        (lambda x: (x * x.shape[0]).amax(0), lambda x: (x * x.shape[0] * 1 + 1).amax(0)),
    ],
)
def test_other_calls_are_others(left: Fn, right: Fn) -> None:
    assert asked(left, right).outcome == "different"


def test_positions_are_what_they_are_in_both() -> None:
    def numbered(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(x), dtype=torch.float32)[:, None]

    assert asked(lambda x: (x * numbered(x)).sum(0), lambda x: (numbered(x) * (1 * x)).sum(0) * 1).equivalent
    assert asked(lambda x: (x * numbered(x)).sum(0), lambda x: (x * (numbered(x) + 1)).sum(0)).outcome == "different"
    assert asked(lambda x: x.flip(0) + x, lambda x: x + x.flip(0) * 1).equivalent
    assert asked(lambda x: x.flip(0) * x, lambda x: (x * x).flip(0)).outcome == "different"


def test_norms_that_differ_in_a_number_differ() -> None:
    assert asked(normalized, normalized_otherwise, X, W, dynamic=COLUMNS).outcome == "different"


def test_what_agrees_for_what_the_calls_give_alone_is_undecided() -> None:
    verdict = asked(lambda x: (2 * x).amax(0), lambda x: 2 * x.amax(0))
    assert verdict.outcome == "undecided"
    assert "whatever stands there" in verdict.reason


def test_numbers_of_two_types_are_undecided() -> None:
    def wide(x: torch.Tensor) -> torch.Tensor:
        return (x.double() * 2).sum(0).float()

    verdict = asked(wide, wide)
    assert verdict.outcome == "undecided"
    assert "of one type they should all be" in verdict.reason


def test_random_numbers_are_no_calls_that_inputs_stand_for() -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.sum(0))

    assert asked(dropped, dropped).equivalent is not True
