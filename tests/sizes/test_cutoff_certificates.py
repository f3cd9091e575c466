"""Certificates for all sizes: what is proved is written down, the checker repeats it, and what was tampered with is refused."""

from __future__ import annotations

import copy
import functools
import json
import math
import operator
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from mugraph import Dim, verify
from mugraph.checker import Status
from mugraph.checker.all_sizes import SizesExamination, claim_of, examine_document, examine_sizes
from mugraph.checker.saved_files import graph_digest
from mugraph.checker.size_templates import document_at
from mugraph.checker.sum_orders import orders_of_outputs
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.sizes.cutoff_certificates import certificate_of
from mugraph.sizes.cutoff_links import check_programs
from mugraph.sizes.cutoff_proofs import Question

Json = dict[str, Any]
Fn = Callable[..., Any]
OPTIONS: Json = {"max_error": 2**-40, "seed": 1, "properties": (), "for_all_weights": False}
N, M, EIGHTS = Dim("n", 1, 1000), Dim("m", 2, 64), Dim("n", 8, 4096, multiple_of=8)


def proved(left: Fn, right: Fn, *inputs: Any, dynamic: Any = None) -> tuple[Question, Json]:
    """What is asked of two functions, by default of any number of rows, and the certificate that they are equal."""
    question = Question.of(verify, (left, right), inputs, dynamic or {0: {0: N}}, None, OPTIONS)
    answer = question.answer()
    assert answer.verdict.equivalent, answer.verdict
    return question, certificate_of(question, answer, max_error=2**-40, seed=1)


def examined(document: Any) -> SizesExamination:
    return examine_document(document, seed=1)


def spread(x: torch.Tensor) -> torch.Tensor:
    """Mean squares of differences from the mean."""
    return ((x - x.mean(0)) ** 2).mean(0)


def spread_at_once(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(0) / x.shape[0] - (x.sum(0) / x.shape[0]) ** 2


@pytest.fixture(scope="module")
def certificate() -> Json:
    return proved(spread, spread_at_once, torch.randn(3, 2))[1]


def test_a_certificate_lists_what_was_shown_and_is_accepted(certificate: Json, tmp_path: Path) -> None:
    assert certificate["dimensions"] == [{"name": "n", "low": 1, "high": 1000, "multiple_of": 1}]
    assert certificate["places"] == [[0, 0, "n"]]
    assert certificate["inputs"] == [["n", 2]]
    one, more = certificate["parts"]
    assert (one["ranges"], one["cutoffs"]) == ({"n": [1, 1, 1]}, None)
    assert more["ranges"] == {"n": [2, 1000, 1]}
    cutoff = more["cutoffs"]["n"]
    assert [test["sizes"]["n"] for test in more["tests"]] == [*range(2, 2 + cutoff["count"])]
    assert all(round["p"] > round["q"] for test in more["tests"] for round in test["certificate"]["rounds"])
    assert certificate["claim"].startswith("for all sizes within the declared ranges, n from 1 to 1000, the two programs are one")
    assert certificate["claim"].endswith(f"at most 2^{math.ceil(math.log2(certificate['error_bound']))}")
    (tmp_path / "file.json").write_text(json.dumps(certificate))
    found = examine_sizes(tmp_path / "file.json")
    assert {part.status for part in found.parts.values()} == {Status.CHECKED}
    assert found.report is not None
    assert found.report.reached
    assert found.report.sizes == 1 + cutoff["count"]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def divided_last(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(q @ k.transpose(-1, -2) / 2)
    return powers @ v / powers.sum(-1, keepdim=True)


QUERIES = torch.randn(2, 1, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 4)
CASES: dict[str, tuple[Fn, Fn, tuple[Any, ...], Any]] = {
    "attention": (attention, divided_last, QUERIES, {0: {0: M}, 1: {0: M, 1: N}, 2: {0: M, 1: N}}),
    "multiples": (spread, spread_at_once, (torch.randn(8, 2),), {0: {0: EIGHTS}}),
    "few": (spread, spread_at_once, (torch.randn(3, 2),), {0: {0: Dim("n", 3, 6)}}),
    "pairs": (lambda x: x @ x.T + x.sum(0), lambda x: x.sum(0) + x @ x.T * 1, (torch.randn(2, 2),), {0: {0: Dim("n", 2, 2)}}),
    "rows": (lambda x: torch.relu(x) * 2, lambda x: 2 * torch.relu(x), (torch.randn(3, 2),), {0: {0: N}}),
    "squares": (lambda x: (x @ x.T) ** 2, lambda x: (x @ x.T) * (x @ x.T), (torch.randn(3, 2),), {0: {0: N}}),
    "doubtful": (lambda x: x / x.sum(0), lambda x: (2 * x) / (2 * x).sum(0), (torch.randn(3, 2),), {0: {0: N}}),
    "mean of both": (lambda x: x.mean((0, 1)), lambda x: x.mean(0).mean(0), (torch.randn(3, 4, 2),), {0: {0: N, 1: M}}),
    "norm": (
        lambda x: torch.nn.functional.layer_norm(x, (2,)).sum(0), lambda x: (1 * torch.nn.functional.layer_norm(x, (2,))).sum(0),
        (torch.randn(3, 2),), {0: {0: N}},
    ),
    "numbers": (
        lambda scale, x, more: x.sum(0) * scale + more["by"][0], lambda scale, x, more: (scale * x).sum(0) + more["by"][0],
        (2.5, torch.randn(3, 2), {"by": [torch.randn(2), None]}), {1: {0: N}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_certificates_are_accepted_with_and_without_their_functions(case: str) -> None:
    left, right, inputs, dynamic = CASES[case]
    question, document = proved(left, right, *inputs, dynamic=dynamic)
    found = examined(document)
    assert {name: part.reason for name, part in found.parts.items() if part.status is not Status.CHECKED} == {}
    check_programs(question, document, orders_of_outputs)


def test_programs_of_other_functions_are_refused(certificate: Json) -> None:
    for left, right in (
        (spread, lambda x: spread_at_once(x) * 2),
        (lambda x: spread(x) if x.shape[0] != 700 else x[0], spread_at_once),
    ):
        question = Question.of(verify, (left, right), (torch.randn(3, 2),), {0: {0: N}}, None, OPTIONS)
        with pytest.raises(SizeMatters):
            check_programs(question, certificate, orders_of_outputs)


def test_a_function_that_is_these_programs_at_their_sizes_alone_is_refused(certificate: Json) -> None:
    sizes = [test["sizes"]["n"] for test in certificate["parts"][1]["tests"]]

    def other(x: torch.Tensor) -> torch.Tensor:
        product: Any = functools.reduce(operator.mul, [x.shape[0] - size for size in sizes])
        made: torch.Tensor = spread(x) * (product + 1)
        return made

    question = Question.of(verify, (other, spread_at_once), (torch.randn(3, 2),), {0: {0: N}}, None, OPTIONS)
    with pytest.raises(SizeMatters, match="its program is another one"):
        check_programs(question, certificate, orders_of_outputs)


# --- tampered certificates ---------------------------------------------------------------------------------------------


def renewed(document: Json) -> Json:
    """With the digests of its programs made anew, and the claim."""
    for part in document["parts"]:
        for test in part["tests"]:
            test["certificate"] |= {side: graph_digest(test[side]) for side in ("left", "right")}
    document["claim"] = claim_of(document["dimensions"], document["error_bound"])
    return document


def fewer_sizes(document: Json) -> None:
    part = document["parts"][1]
    part["cutoffs"]["n"]["count"] -= 1
    part["tests"].pop()


def smaller_cutoff(document: Json) -> None:
    document["parts"][1]["cutoffs"]["n"]["count"] -= 1


def another_range(document: Json) -> None:
    document["dimensions"][0]["high"] = 5000


def part_left_out(document: Json) -> None:
    del document["parts"][0]


def half_a_range(document: Json) -> None:
    document["parts"][1]["ranges"]["n"] = [500, 1000, 1]


def untested_size(document: Json) -> None:
    del document["parts"][1]["tests"][0]


def another_size(document: Json) -> None:
    part = document["parts"][1]
    test = part["tests"][-1]
    test["sizes"]["n"] += 1
    for side in ("left", "right"):
        test[side] = document_at(part[side], test["sizes"])


def scaled(graph: Json, value: Json) -> None:
    """Multiply the output of a graph, or of what has names for sizes, by a constant."""
    (node, _), count = graph["outputs"][0], len(graph["nodes"])
    outputs = graph["nodes"][node]["outputs"]
    number = {"op": "constant", "inputs": [], "outputs": [{"shape": [], "dtype": "fp32"}]}
    graph["nodes"].append({**number, "attributes": {"value": value, "dtype": {"dtype": "fp32"}}})
    graph["nodes"].append({"op": "mul", "inputs": [[node, 0], [count, 0]], "outputs": outputs, "attributes": {}})
    graph["outputs"] = [[count + 1, 0]]


def another_program_at_one_size(document: Json) -> None:
    """Both are the same there, and others than at all sizes."""
    for side in ("left", "right"):
        scaled(document["parts"][1]["tests"][1][side]["graph"], {"exact": "2"})


def another_program_at_all_sizes(document: Json) -> None:
    for part in document["parts"]:
        for test in part["tests"]:
            scaled(test["right"]["graph"], {"exact": "2"})
        if part["right"] is not None:
            scaled(part["right"], {"exact": "2"})


def another_program_elsewhere(document: Json) -> None:
    """A number that is 1 at all sizes that are tested, and at no other."""
    part = document["parts"][1]
    powers = {0: Fraction(1)}
    for test in part["tests"]:
        size = test["sizes"]["n"]
        powers = {
            power: powers.get(power - 1, Fraction(0)) - size * powers.get(power, Fraction(0)) for power in range(len(powers) + 1)
        }
    powers[0] += 1
    value = {"terms": [[str(number), {"n": power} if power else {}] for power, number in powers.items()]}
    scaled(part["right"], value)
    for test in part["tests"]:
        test["right"] = document_at(part["right"], test["sizes"])


def another_input(document: Json) -> None:
    document["inputs"] = [[3, 2]]


def no_names(document: Json) -> None:
    document["parts"][1] |= {"cutoffs": None, "left": None, "right": None}


def smaller_error(document: Json) -> None:
    document["error_bound"] /= 2


def larger_promise(document: Json) -> None:
    document["max_error"] = document["parts"][1]["tests"][0]["certificate"]["max_error"] = 2**-60


def newer(document: Json) -> None:
    document["format"] = 2


def more_entries(document: Json) -> None:
    document["note"] = ""


TAMPERED: dict[Callable[[Json], None], str] = {
    fewer_sizes: "the cutoff of n is",
    smaller_cutoff: "the cutoff of n is",
    another_range: "its parts do not make up the ranges",
    part_left_out: "its parts do not make up the ranges",
    half_a_range: "its parts do not make up the ranges",
    untested_size: "tests are at other sizes",
    another_size: "tests are at other sizes",
    another_program_at_one_size: "is not what the program with names for sizes is there",
    another_program_at_all_sizes: "found by evaluation",
    another_program_elsewhere: "the cutoff of n is",
    another_input: "places are not those at which inputs have names",
    no_names: "tests are at other sizes",
    smaller_error: "error_bound is not the largest",
    larger_promise: "error_bound is not within",
    newer: "newer than 1",
    more_entries: "none of a certificate for all sizes",
}


def renamed(value: Any, names: Json) -> Any:
    """The same with others in the place of these words."""
    if isinstance(value, dict):
        return {key: renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("names", [{"n": "m", "m": "n"}, {"n": 2}], ids=["exchanged", "a number"])
def test_programs_whose_inputs_have_other_sizes_elsewhere_are_refused(names: Json) -> None:
    """Where one size decides, they have the shapes that the certificate says at that size."""
    dynamic = {0: {0: N}, 1: {0: Dim("m", 1, 1000)}}
    inputs = torch.randn(3, 2), torch.randn(5, 2)
    _, document = proved(lambda x, y: (x * 2, y * 2), lambda x, y: (2 * x, 2 * y), *inputs, dynamic=dynamic)
    part = document["parts"][-1]
    part |= {side: renamed(part[side], names) for side in ("left", "right")}
    found = examined(document)
    assert found.report is None
    assert "takes inputs of other shapes" in found.parts["cutoffs"].reason


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda tamper: tamper.__name__)
def test_what_was_tampered_with_is_refused(certificate: Json, tamper: Callable[[Json], None]) -> None:
    document = copy.deepcopy(certificate)
    tamper(document)
    found = examined(renewed(document))
    assert found.report is None
    (refused,) = [part for part in found.parts.values() if part.status is Status.REFUSED]
    assert TAMPERED[tamper] in refused.reason


def test_another_claim_is_refused(certificate: Json) -> None:
    document = copy.deepcopy(certificate)
    document["claim"] = document["claim"].replace("1 to 1000", "1 to 9999")
    found = examined(document)
    assert "claim" in found.parts["form"].reason


def test_whatever_stands_in_a_certificate_raises_nothing(certificate: Json) -> None:
    """Any leaf is put in the place of any other: what is accepted claims the same of the same programs."""
    draw, accepted = random.Random(3), 0
    for _ in range(60):
        document = copy.deepcopy(certificate)
        places = [*leaves(document)]
        holder, key = draw.choice(places)
        other, its = draw.choice(places)
        holder[key] = draw.choice([other[its], None, -1, 0, "n", [], {}, 2**70, True])
        found = examine_document(document, rounds=1, seed=1)
        if found.parts["record"].status is Status.CHECKED:
            accepted += 1
            assert document["claim"] == certificate["claim"]
            assert [part["cutoffs"] for part in document["parts"]] == [part["cutoffs"] for part in certificate["parts"]]
    assert accepted < 30


def leaves(value: Any) -> Any:
    """Where single values stand: what holds each, and its key."""
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(each, dict | list) and each:
            yield from leaves(each)
        else:
            yield value, key
