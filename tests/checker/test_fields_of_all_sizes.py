"""Every field of a certificate for all sizes: what is put in its place is refused by name, or says nothing that is relied on."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mugraph.checker import Status
from mugraph.checker.all_sizes import SizesExamination, claim_of, examine_document
from mugraph.checker.saved_files import graph_digest
from mugraph.checker.size_templates import document_at
from mugraph.checker.sum_orders import conditions_of
from mugraph.ir.serialize import graph_from_json
from mugraph.testing.named_sizes import NAME, Template, Writer, template_of_function
from mugraph.testing.summed_functions import WIDTH
from mugraph.verifier.random_tests import verify_graphs

Json = dict[str, Any]
Function = Callable[[Any, Any, Any], Any]
MAX_ERROR = 2**-40
FREE = {
    "version": "which mugraph wrote it",
    "parts.tests.certificate.seed": "the checker draws by itself",
    "parts.tests.certificate.redraws": "the checker draws by itself",
    "parts.tests.certificate.rounds.draw": "the checker draws by itself",
    "parts.tests.certificate.semantics.": "what the verifier assumed, in words",
    "parts.tests.certificate.version": "which mugraph wrote it",
    "parts.tests.certificate.axes": "where the checker cuts, if it finds that it may",
    "parts.tests.certificate.difference": "which of its own ways to compare the checker takes",
    "parts.tests.certificate.theorem_2": "what another theorem says",
    "parts.tests.certificate.floats": "floating point says nothing of real numbers",
}
"""Fields on which no verdict rests, by how they begin, and why."""
_BESIDE = {
    "dimensions": ("input", "claim"),
    "error_bound": ("claim",),
    "max_error": ("error_bound",),
    "count": ("cutoff",),
    "first": ("cutoff",),
    "tests": ("tests",),
}
"""What a field is compared with, or is called."""
_DIGESTS = ("parts.tests.certificate.left", "parts.tests.certificate.right")
_OF_CUTS = ("places", "inputs", "arguments", "parts.cuts")
"""Fields that say what an input is."""
VALUES: tuple[Any, ...] = (None, -1, 0, 7, "x", [])


def without_names(function: Function) -> Template:
    """A function of one row [1, WIDTH] and a matrix as a program."""
    writer = Writer()
    row, w = writer.input("x", (1, WIDTH)), writer.input("w", (WIDTH, WIDTH))
    return {"nodes": writer.nodes, "outputs": [[function(row, 1, w).number, 0]]}


def product(x: Any, y: Any, w: Any) -> Any:
    return ((x * y) @ w).sum(0, keepdim=True)


def product_last(x: Any, y: Any, w: Any) -> Any:
    return (2 * x * y).sum(0, keepdim=True) @ w / 2


def passed(sizes: Json, programs: list[Template]) -> Json:
    """A test of two programs at some sizes."""
    left, right = (document_at(program, sizes) for program in programs)
    verdict = verify_graphs(graph_from_json(left), graph_from_json(right), max_error=MAX_ERROR, seed=1)
    assert verdict.equivalent
    record = json.loads(json.dumps(verdict.certificate.to_json()))
    return {"sizes": sizes, "left": left, "right": right, "certificate": record}


@functools.cache
def _certificate(cut: bool) -> Json:
    programs = [template_of_function(each) for each in (product, product_last)]
    rows = [without_names(each) for each in (product, product_last)] if cut else programs
    cutoffs = conditions_of(programs[0], programs[1], [NAME]).cutoffs
    first, count = cutoffs[NAME]
    part: Json = {"cuts": [], "cutoffs": None, "left": None, "right": None}
    counted = {"cutoffs": {NAME: {"first": first, "count": count}}, "left": programs[0], "right": programs[1]}
    parts = [
        {**part, "ranges": {NAME: [1, 1, 1]}, "tests": [passed({NAME: 1}, rows)]},
        {
            **part, **counted, "ranges": {NAME: [2, 99, 1]}, "cuts": [[NAME, WIDTH]] if cut else [],
            "tests": [passed({NAME: size}, programs) for size in range(2, 2 + count)],
        },
    ]  # fmt: skip
    dimensions = [{"name": NAME, "low": 1, "high": 99, "multiple_of": 1}]
    bound = max(test["certificate"]["error_bound"] for each in parts for test in each["tests"])
    arguments = 1 if cut else 2
    return {
        "format": 1, "claim": claim_of(dimensions, bound), "version": "0.1.0", "dimensions": dimensions,
        "places": [[number, 0, NAME] for number in range(arguments)],
        "inputs": [*[[NAME, WIDTH]] * arguments, [WIDTH, WIDTH]], "arguments": [[number] for number in range(arguments)],
        "max_error": MAX_ERROR, "error_bound": bound, "parts": parts,
    }  # fmt: skip


def certificate(cut: bool = False) -> Json:
    """One of a sum of products of rows, in which the second rows are an argument, or stand for a call."""
    return copy.deepcopy(_certificate(cut))


def examined(document: Json, name: str = "") -> SizesExamination:
    """With the digests of its programs made anew, as who tampers with it can, unless that is what was done to it."""
    for holder in [*_dicts(document)] if name not in _DIGESTS else ():
        if isinstance(holder.get("certificate"), dict):
            holder["certificate"] |= {side: graph_digest(holder.get(side, {})) for side in ("left", "right")}
    return examine_document(document, rounds=1, seed=1)


def _dicts(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dicts(each)


def fields(value: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The name of every field, what holds it, and its key there; elements of lists have no names of their own."""
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        here = name if isinstance(value, list) else f"{name}.{key}".removeprefix(".")
        yield here, value, key
        if isinstance(each, dict | list):
            yield from fields(each, here)


NAMES = [*dict.fromkeys(name for name, _, _ in fields(_certificate(False)))]


def refusal(found: SizesExamination) -> str:
    """Why a certificate is not accepted."""
    return next(part.reason for part in found.parts.values() if part.status is not Status.CHECKED)


@pytest.mark.parametrize("cut", [False, True], ids=["arguments", "cut"])
def test_what_is_not_tampered_with_is_accepted(cut: bool) -> None:
    found = examined(certificate(cut))
    assert {part.status for part in found.parts.values()} == {Status.CHECKED}


def names_field(name: str, reason: str) -> bool:
    """Whether a reason names a field, or what it stands in; of what stands in programs, the program."""
    entries = name.split(".")
    words = [each.removesuffix("s") for each in entries if each not in ("parts", "tests")] or ["part"]
    return any(each in reason for each in (*words, *_BESIDE.get(entries[0], ()), *_BESIDE.get(entries[-1], ())))


def is_another_program(document: Json, cut: bool) -> bool:
    """Whether what was changed is a program that is as equal as before, by the verifier's own tests."""
    changed = [test[side] for part in document["parts"] for test in part["tests"] for side in ("left", "right")]
    before = [test[side] for part in certificate(cut)["parts"] for test in part["tests"] for side in ("left", "right")]
    pairs = [(one, other) for one, other in zip(changed, before, strict=True) if one != other]
    return all(verify_graphs(*map(graph_from_json, pair), seed=2).equivalent for pair in pairs) and bool(pairs)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_refused_by_name_or_is_of_no_account(name: str) -> None:
    free = any(name == start or name.startswith(f"{start.removesuffix('.')}.") for start in FREE)
    said, others = set[str](), 0
    for cut in (False, True) if name in _OF_CUTS else (False,):
        of_name = [place for place, (each, _, _) in enumerate(fields(_certificate(cut))) if each == name]
        for place in {*of_name[:1], *of_name[-1:]}:
            for other in VALUES:
                document = certificate(cut)
                _, holder, key = [*fields(document)][place]
                if type(holder[key]) is type(other) and holder[key] == other:
                    continue
                holder[key] = copy.deepcopy(other)
                others += 1
                found = examined(document, name)
                if found.report is None:
                    said.add(refusal(found))
                else:
                    assert free or is_another_program(document, cut), (name, other)
                    assert found.report.claim.startswith(certificate(cut)["claim"].split(";")[0])
    assert others
    assert free or said
    assert free or [each for each in said if not names_field(name, each)] == []
