"""Functions over an axis of any size in two ways that users write: which are called equal, and that none with a mistake is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mugraph import Dim, verify
from mugraph.checker import Status
from mugraph.checker.all_sizes import examine_document
from mugraph.checker.saved_files import graph_digest
from mugraph.checker.sum_orders import orders_of_outputs
from mugraph.frontend.symbolic_sizes import cut_pairs
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.sizes.cutoff_certificates import certificate_of
from mugraph.sizes.cutoff_links import check_programs
from mugraph.sizes.cutoff_proofs import Question
from mugraph.verifier import Verdict

Fn = Callable[[torch.Tensor], torch.Tensor]
N, FROM_TWO = Dim("n", 1, 1000), Dim("n", 2, 1000)
OPTIONS: dict[str, Any] = {"max_error": 2**-40, "seed": 1, "properties": (), "for_all_weights": False}


def asked(left: Fn, right: Fn, dim: Dim = N) -> Verdict:
    """The verdict on functions of a tensor whose last dimension has any size."""
    return verify(left, right, (torch.randn(2, 4),), dynamic={0: {1: dim}}, seed=1)


def mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1, keepdim=True)


def squares(x: torch.Tensor) -> torch.Tensor:
    return mean(x * x) + 1e-5


def spread(x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return mean((x - mean(x)) ** 2) + eps


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],))


def shifted(x: torch.Tensor) -> torch.Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def shifted_by_values(x: torch.Tensor) -> torch.Tensor:
    powers = (x - x.max(-1, keepdim=True).values).exp()
    return powers / powers.sum(-1, keepdim=True)


EQUAL: dict[str, tuple[Fn, Fn]] = {
    "rsqrt": (lambda x: x * torch.rsqrt(squares(x)), lambda x: x / torch.sqrt(squares(x))),
    "one over a root": (lambda x: x * torch.rsqrt(squares(x)), lambda x: x * (1 / torch.sqrt(squares(x)))),
    "reciprocal": (lambda x: x * torch.rsqrt(squares(x)), lambda x: x * squares(x).sqrt().reciprocal()),
    "power": (lambda x: x * torch.rsqrt(squares(x)), lambda x: x * squares(x).pow(-0.5)),
    "root as a power": (lambda x: x / torch.sqrt(squares(x)), lambda x: x / squares(x) ** 0.5),
    "mean of squares": (lambda x: x * torch.rsqrt(squares(x)),
                        lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-5)),
    "rms norm": (lambda x: F.rms_norm(x, (x.shape[-1],), eps=1e-5), lambda x: x * torch.rsqrt(squares(x))),
    "norm": (lambda x: x / x.norm(dim=-1, keepdim=True), lambda x: x / (x * x).sum(-1, keepdim=True).sqrt()),
    "maximum": (lambda x: x.amax(-1), lambda x: -(-x).amin(-1)),
    "minimum": (lambda x: x.amin(-1), lambda x: -(-x).amax(-1)),
    "maximum with places": (lambda x: x.max(-1).values, lambda x: x.amax(-1)),
    "minimum with places": (lambda x: x.min(-1).values, lambda x: -(-x).max(-1)[0]),
    "softmax": (lambda x: torch.softmax(x, -1), shifted),
    "softmax as it is": (shifted, lambda x: x.exp() / x.exp().sum(-1, keepdim=True)),
    "softmax with places": (lambda x: torch.softmax(x, -1), shifted_by_values),
    "softmax of sums": (lambda x: torch.softmax(2 * (x * x.sum(-1, keepdim=True)), -1),
                        lambda x: torch.softmax(x * (2 * x.sum(-1, keepdim=True)), -1)),
    "mean": (lambda x: x.mean(-1), lambda x: x.sum(-1) / x.shape[-1]),
    "variance": (lambda x: x.var(-1, unbiased=False), lambda x: mean((x - mean(x)) ** 2)[:, 0]),
    "variance at once": (lambda x: x.var(-1, unbiased=False), lambda x: (x * x).mean(-1) - x.mean(-1) ** 2),
    "deviation": (lambda x: x.std(-1, unbiased=False), lambda x: x.var(-1, unbiased=False).sqrt()),
    "layer norm": (layer_norm, lambda x: (x - mean(x)) * torch.rsqrt(spread(x))),
    "layer norm by variance": (layer_norm, lambda x: (x - mean(x)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)),
    "layer norm at once": (layer_norm, lambda x: (x - mean(x)) * torch.rsqrt(mean(x * x) - mean(x) ** 2 + 1e-5)),
    "log of a sum": (lambda x: torch.logsumexp(x, -1), lambda x: x.exp().sum(-1).log()),
    "log of softmax": (lambda x: torch.log_softmax(x, -1), lambda x: x - torch.logsumexp(x, -1, keepdim=True)),
    "function of a sum": (lambda x: torch.relu(x.sum(-1)), lambda x: torch.relu((2 * x).sum(-1) / 2)),
    "exponential of a sum": (lambda x: x.sum(-1).exp(), lambda x: (x * 1).sum(-1).exp() * 1),
    "sigmoid": (lambda x: torch.sigmoid(x.sum(-1)), lambda x: 1 / (1 + torch.exp(-x.sum(-1)))),
    "silu": (lambda x: F.silu(x.mean(-1)), lambda x: x.mean(-1) * torch.sigmoid(x.sum(-1) / x.shape[-1])),
    "one after the other": (lambda x: layer_norm(layer_norm(x)),
                            lambda x: (y := layer_norm(x) - mean(layer_norm(x))) / spread(y).sqrt()),
}  # fmt: skip
UNDECIDED: dict[str, tuple[Fn, Fn]] = {
    "square of a root": (lambda x: x * torch.rsqrt(squares(x)) * torch.rsqrt(squares(x)), lambda x: x / squares(x)),
    "root of a quotient": (lambda x: x * torch.rsqrt(squares(x)), lambda x: x * torch.sqrt(1 / squares(x))),
    "maximum of doubles": (lambda x: (2 * x).amax(-1), lambda x: 2 * x.amax(-1)),
    "logarithm shifted": (lambda x: torch.logsumexp(x, -1),
                          lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1).log() + x.amax(-1)),
    "logarithm of a quotient": (lambda x: torch.log_softmax(x, -1), lambda x: torch.softmax(x, -1).log()),
    "number that Python divides": (lambda x: x.mean(-1), lambda x: x.sum(-1) * (1 / x.shape[-1])),
}  # fmt: skip
"""Equal, by laws that no sum has: of roots, maxima, logarithms and rounded numbers."""
MISTAKES: dict[str, tuple[Fn, Fn]] = {
    "rsqrt: eps": (lambda x: x * torch.rsqrt(squares(x)), lambda x: x / torch.sqrt(squares(x) + 1e-5)),
    "rsqrt: eps outside": (lambda x: x * torch.rsqrt(squares(x)), lambda x: x / (torch.sqrt(mean(x * x)) + 1e-5)),
    "rsqrt: no inverse": (lambda x: x * torch.rsqrt(squares(x)), lambda x: x * torch.sqrt(squares(x))),
    "power: exponent": (lambda x: x * torch.rsqrt(squares(x)), lambda x: x * squares(x).pow(-1.5)),
    "power: sign": (lambda x: x / torch.sqrt(squares(x)), lambda x: x / squares(x) ** -0.5),
    "mean of squares: sum": (lambda x: x * torch.rsqrt(squares(x)),
                             lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-5)),
    "rms norm: eps": (lambda x: F.rms_norm(x, (x.shape[-1],)), lambda x: x * torch.rsqrt(squares(x))),
    "norm: mean": (lambda x: x / x.norm(dim=-1, keepdim=True), lambda x: x / mean(x * x).sqrt()),
    "maximum: sign inside": (lambda x: x.amax(-1), lambda x: -x.amin(-1)),
    "maximum: sign outside": (lambda x: x.amax(-1), lambda x: (-x).amin(-1)),
    "minimum: maximum": (lambda x: x.amin(-1), lambda x: x.amax(-1)),
    "softmax: scale": (lambda x: torch.softmax(x, -1), lambda x: shifted(2 * x)),
    "softmax of sums: scale": (lambda x: torch.softmax(2 * (x * x.sum(-1, keepdim=True)), -1),
                               lambda x: torch.softmax(x * x.sum(-1, keepdim=True), -1)),
    "mean: number": (lambda x: x.mean(-1), lambda x: x.sum(-1) / 4),
    "variance: unbiased": (lambda x: x.var(-1, unbiased=False), lambda x: (x - mean(x)).square().sum(-1) / (x.shape[-1] + 1)),
    "variance: sign": (lambda x: x.var(-1, unbiased=False), lambda x: (x * x).mean(-1) + x.mean(-1) ** 2),
    "layer norm: eps": (layer_norm, lambda x: (x - mean(x)) * torch.rsqrt(spread(x, 1e-4))),
    "layer norm: eps outside": (layer_norm, lambda x: (x - mean(x)) / (spread(x, 0).sqrt() + 1e-5)),
    "layer norm: mean left out": (layer_norm, lambda x: x * torch.rsqrt(spread(x))),
    "layer norm: sign": (layer_norm, lambda x: (x - mean(x)) * torch.rsqrt(mean(x * x) + mean(x) ** 2 + 1e-5)),
    "log of a sum: mean": (lambda x: torch.logsumexp(x, -1), lambda x: x.exp().mean(-1).log()),
    "function of a sum: factor": (lambda x: torch.relu(x.sum(-1)), lambda x: torch.relu((2 * x).sum(-1))),
    "sigmoid: sign": (lambda x: torch.sigmoid(x.sum(-1)), lambda x: 1 / (1 + torch.exp(x.sum(-1)))),
    "silu: another operand": (lambda x: F.silu(x.mean(-1)), lambda x: x.mean(-1) * torch.sigmoid(x.sum(-1))),
    "one after the other: once": (lambda x: layer_norm(layer_norm(x)), layer_norm),
}  # fmt: skip


BY_DAY = (
    *("power", "norm", "maximum", "minimum with places", "softmax with places", "variance", "layer norm at once"),
    *("log of softmax", "function of a sum", "sigmoid"),
)
"""Cases of every construct, of which certificates are written and read again in every run."""


def question_of(case: str) -> Question:
    dim = FROM_TWO if case == "sigmoid" else N  # at size 1, where nothing is put in other words, laws show it and no tests
    return Question.of(verify, EQUAL[case], (torch.randn(2, 4),), {0: {1: dim}}, None, OPTIONS)


@pytest.mark.parametrize("case", [case for case in EQUAL if case not in BY_DAY])
def test_the_same_in_other_words_is_equal_at_every_size(case: str) -> None:
    answer = question_of(case).answer()
    assert answer.verdict.equivalent, answer.verdict


@pytest.mark.parametrize("case", [case if case in BY_DAY else pytest.param(case, marks=pytest.mark.slow) for case in EQUAL])
def test_the_same_in_other_words_has_a_certificate(case: str) -> None:
    question = question_of(case)
    answer = question.answer()
    assert answer.verdict.equivalent, answer.verdict
    document = certificate_of(question, answer, max_error=2**-40, seed=1)
    found = examine_document(document, seed=1)
    assert {name: part.reason for name, part in found.parts.items() if part.status is not Status.CHECKED} == {}
    check_programs(question, document, orders_of_outputs)


@pytest.mark.parametrize("case", UNDECIDED)
def test_what_only_laws_of_other_functions_make_equal_is_undecided(case: str) -> None:
    assert asked(*UNDECIDED[case]).outcome == "undecided"


@pytest.mark.parametrize("case", MISTAKES)
def test_with_a_mistake_it_is_another_function(case: str) -> None:
    assert asked(*MISTAKES[case]).outcome == "different"


def test_a_variance_over_one_number_less_is_equal_from_two_on() -> None:
    def divided(x: torch.Tensor) -> torch.Tensor:
        return (x - mean(x)).square().sum(-1) / (x.shape[-1] - 1)

    assert asked(lambda x: x.var(-1), divided, FROM_TWO).equivalent
    assert asked(lambda x: x.var(-1), lambda x: divided(x) * 2, FROM_TWO).outcome == "different"


def test_a_wrong_guess_makes_nothing_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands that are equal at sizes up to 4 alone, and others, taken for those of one call."""

    def vanishing(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[-1]
        return x.sum(-1) * ((n - 1) * (n - 2) * (n - 3) * (n - 4))

    monkeypatch.setattr(cut_pairs, "_are_alike", lambda ours, theirs: True)
    verdict = asked(lambda x: torch.relu(x.sum(-1)), lambda x: torch.relu(x.sum(-1) + vanishing(x)))
    assert verdict.outcome == "different"
    assert verdict.sizes[-1] == {"n": 5}
    assert asked(lambda x: x.exp().amax(-1), lambda x: x.square().amax(-1)).outcome == "different"


def test_a_certificate_without_operands_is_none_of_the_functions() -> None:
    """Programs that take the results of calls with other operands, and are equal whatever these are."""
    question = Question.of(verify, EQUAL["mean of squares"], (torch.randn(2, 4),), {0: {1: N}}, None, OPTIONS)
    document = certificate_of(question, question.answer(), max_error=2**-40, seed=1)
    part = document["parts"][-1]
    assert part["cuts"]
    for program in (part["left"], part["right"], *(test[side]["graph"] for test in part["tests"] for side in ("left", "right"))):
        assert len(program["outputs"]) == 2
        del program["outputs"][1:]
    for test in part["tests"]:
        test["certificate"] |= {"axes": [], **{side: graph_digest(test[side]) for side in ("left", "right")}}
    assert examine_document(document, seed=1).report is not None
    with pytest.raises(SizeMatters, match="gives other tensors"):
        check_programs(question, document, orders_of_outputs)


def test_arguments_by_name_may_stand_in_any_order_and_be_called_as_what_stands_for_calls() -> None:
    def left(y: torch.Tensor, cut_0: torch.Tensor) -> torch.Tensor:
        return torch.relu((y * cut_0).sum(-1))

    def right(cut_0: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu((y * cut_0 * 2).sum(-1) / 2)

    examples = {"y": torch.randn(2, 4), "cut_0": torch.randn(1, 4)}
    question = Question.of(verify, (left, right), examples, {"y": {1: N}, "cut_0": {1: N}}, None, OPTIONS)
    answer = question.answer()
    assert answer.verdict.equivalent, answer.verdict
    document = certificate_of(question, answer, max_error=2**-40, seed=1)
    assert document["arguments"] == [["cut_0"], ["y"]]
    assert examine_document(document, seed=1).report is not None
    check_programs(question, document, orders_of_outputs)


@pytest.mark.parametrize("kept", ["sum", "logsumexp", "amax", "var"])
def test_a_dimension_of_a_scalar_is_none(kept: str) -> None:
    options = {"correction": 0} if kept == "var" else {}

    def scalar(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = getattr(torch, kept)(x.sum(), 0, **options)
        return made

    assert asked(scalar, lambda x: scalar(2 * x / 2)).equivalent


def test_where_both_are_defined_is_said_of_the_functions_and_not_of_what_stands_for_their_calls() -> None:
    def restricted(x: torch.Tensor) -> torch.Tensor:
        return x.amax(-1) + x.sum(-1).log() - x.sum(-1).log()

    verdict = verify(restricted, lambda x: x.amax(-1), (torch.randn(2, 2),), dynamic={0: {1: FROM_TWO}}, seed=1)
    assert verdict.equivalent
    assert "sum(x) > 0" in verdict.domain


def test_calls_that_refuse_random_numbers_are_not_asked_what_is_alike() -> None:
    def left(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.linalg.cholesky(a).sum() + torch.relu(x.sum(-1))
        return made

    def right(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.linalg.cholesky(a).sum() + torch.relu(2 * x.sum(-1) / 2)
        return made

    assert verify(left, right, (torch.randn(2, 4), 4 * torch.eye(3)), dynamic={0: {1: N}}, seed=1).outcome == "undecided"
