"""Certificates for all sizes: whether two programs are one at every size of ranges, by tests at a few (docs/theory.md,
"Cutoffs").

A certificate has both programs with names for sizes, for each part of the ranges: where a dimension has size 1, and from 2 on.
The checker counts for itself at how many sizes they must be equal, makes both programs at each of these sizes again, and tests
them in fields of its own choice. Parts of few sizes may have programs at each, and no names. That the programs are those of
two functions, nothing in a certificate can say.
"""

from __future__ import annotations

import itertools
import math
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugraph.checker.checks import Part, Status, check_record, examined, naming, tested_again
from mugraph.checker.form import check_shapes, graph_of
from mugraph.checker.saved_files import Json, Rejected, Undecided, graph_digest, read_object
from mugraph.checker.size_templates import document_at
from mugraph.checker.sizes_form import declared_in
from mugraph.checker.sum_orders import Conditions, conditions_of
from mugraph.checker.zero_divisors import has_value

PARTS = ("form", "cutoffs", "programs", "record")
"""What a certificate consists of, in the order in which it is checked."""
Sizes = tuple[int, ...]
Ranges = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class SizesReport:
    """What the checker found out by itself: how many tests agreed, at how many sizes, with the largest bound of one of them,
    which is at most `max_error` where it is `reached`; and what is claimed of which sizes."""

    rounds: int
    sizes: int
    error_bound: float
    max_error: float
    claim: str

    @property
    def reached(self) -> bool:
        return self.error_bound <= self.max_error


@dataclass(frozen=True, slots=True)
class SizesExamination:
    """What became of each of the PARTS, the certificate as it was read, and the report where none was refused."""

    parts: dict[str, Part]
    document: Json | None
    report: SizesReport | None


def examine_sizes(
    path: Path, *, rounds: int | None = None, seed: int | None = None, tell: Callable[[str], None] = lambda line: None
) -> SizesExamination:
    """Check a certificate for all sizes in a file, part by part, as `examine` does a folder. Raises nothing that a file can
    cause."""
    parts = _nothing()
    try:
        with examined(parts, "form"):
            document = read_object(path)
    except Rejected:
        return SizesExamination(parts, None, None)
    return examine_document(document, rounds=rounds, seed=seed, tell=tell)


def examine_document(
    document: Json, *, rounds: int | None = None, seed: int | None = None, tell: Callable[[str], None] = lambda line: None
) -> SizesExamination:
    """The same of what is in a file."""
    parts, rng = _nothing(), random.Random(secrets.randbits(64) if seed is None else seed)
    try:
        report = _examined(document, parts, rounds, rng, tell)
    except Rejected:
        return SizesExamination(parts, document, None)
    return SizesExamination(parts, document, report)


def _nothing() -> dict[str, Part]:
    return {part: Part(Status.NOT_CHECKED, "what comes before it was refused") for part in PARTS}


def _examined(
    document: Json, parts: dict[str, Part], rounds: int | None, rng: random.Random, tell: Callable[[str], None]
) -> SizesReport:
    with examined(parts, "form"):
        declared = declared_in(document)
        names, max_error, bound = [*declared], document["max_error"], document["error_bound"]
        if not 0 <= bound <= max_error < 1:
            raise Rejected("error_bound is not within max_error")
        _check_tests(document)
        if document["claim"] != claim_of(document["dimensions"], bound):
            raise Rejected("the claim is not what follows from dimensions and error_bound")
        ranges = [_ranges(part, declared) for part in document["parts"]]
        if ranges != parts_of(declared.values()):
            raise Rejected("its parts do not make up the ranges of its dimensions")
    parts["form"] = Part(Status.CHECKED, f"{len(ranges)} parts make up the ranges of {', '.join(names)}")
    with examined(parts, "cutoffs"):
        said = [
            _conditions(part, dict(zip(names, of, strict=True)), _inputs(document, part))
            for part, of in zip(document["parts"], ranges, strict=True)
        ]
        for part, of, conditions in zip(document["parts"], ranges, said, strict=True):
            _check_sizes(part, dict(zip(names, of, strict=True)), conditions)
    counted = [name for part in document["parts"] for name in part["cutoffs"] or ()]
    told = f"counted again of {', '.join(dict.fromkeys(counted))}" if counted else "every size is tested"
    parts["cutoffs"] = Part(Status.CHECKED, f"{told}; a test at each size that decides")
    total, worst, count = 0, 0.0, sum(len(part["tests"]) for part in document["parts"])
    with examined(parts, "programs"):
        for part, conditions in zip(document["parts"], said, strict=True):
            for test in part["tests"]:
                tests, error = _tested(_inputs(document, part), part, conditions, test, rounds, rng, tell)
                total, worst = total + tests, max(worst, error)
        if worst > max_error:
            raise Undecided(f"tests agreed, with a bound of {worst:.3g}; the certificate asks for {max_error:.3g}")
    parts["programs"] = Part(Status.CHECKED, f"equal at all {count} sizes that are tested, {total} tests")
    with examined(parts, "record"):
        with naming("tests: certificate"):
            bounds = [_recorded(test["certificate"]) for part in document["parts"] for test in part["tests"]]
        if max(bounds) != bound:
            raise Rejected("error_bound is not the largest of its tests")
    parts["record"] = Part(Status.CHECKED, "the verifier's own tests, as recorded, are of one piece; no verdict rests on them")
    return SizesReport(total, count, worst, max_error, claim_of(document["dimensions"], worst))


def _check_tests(document: Json) -> None:
    """Raise Rejected for a test of which it is not recorded that it was passed with the error that the certificate asks for."""
    for test in (test for part in document["parts"] for test in part["tests"]):
        if test["certificate"].get("accepted") is not True:
            raise Rejected("tests: certificate: accepted is not true")
        if test["certificate"].get("max_error") != document["max_error"]:
            raise Rejected("max_error is not that of the tests")


# --- what a certificate is for -----------------------------------------------------------------------------------------


def claim_of(dimensions: Sequence[Json], error_bound: float) -> str:
    """What is claimed of the two programs."""
    ranges = " and ".join(map(_range_text, dimensions))
    mantissa, exponent = math.frexp(error_bound)
    most = f"2^{exponent - (mantissa == 0.5)}" if error_bound else "0"
    return (
        f"for all sizes within the declared ranges, {ranges}, the two programs are one function of real numbers wherever both "
        f"are defined; a pair that is not passes with probability at most {most}"
    )


def _range_text(dimension: Json) -> str:
    step = dimension["multiple_of"]
    return f"{dimension['name']} from {dimension['low']} to {dimension['high']}" + (
        f" by multiples of {step}" if step > 1 else ""
    )


def parts_of(declared: Sequence[range] | Any) -> list[Ranges]:
    """What the ranges of dimensions are in parts, each of which has size 1 alone of a dimension, or sizes from 2 on."""
    halves = [[part for part in (range(of.start, min(of.stop, 2), of.step), _from_two(of)) if part] for of in declared]
    return [*itertools.product(*halves)]


def _from_two(of: range) -> range:
    return range(of.start if of.start > 1 else of.start + of.step, of.stop, of.step)


def _ranges(part: Json, declared: Mapping[str, range]) -> Ranges:
    """The sizes of each dimension that a part is for."""
    said = {name: step for name, (_, _, step) in part["ranges"].items()}
    if [*said.items()] != [(name, of.step) for name, of in declared.items()]:
        raise Rejected("parts: ranges are of other dimensions, or in other steps")
    return tuple(range(low, high + 1, step) for low, high, step in part["ranges"].values())


# --- at which sizes ----------------------------------------------------------------------------------------------------


def _conditions(part: Json, ranges: Mapping[str, range], inputs: Sequence[Sequence[int | str]]) -> Conditions | None:
    """What the theorem asks of a part, whose programs take these inputs; None where every size is to be tested. Raises Undecided
    where nothing is known."""
    if part["cutoffs"] is None:
        if part["left"] is not None or part["right"] is not None:
            raise Rejected("a part has programs left or right with names for sizes, and no cutoffs")
        if part["cuts"]:
            raise Rejected("a part has cuts, and no cutoffs")
        return None
    names = [name for name, of in ranges.items() if len(of) > 1]
    if [*part["cutoffs"]] != names:
        raise Rejected("cutoffs are not those of the dimensions that vary")
    if part["left"] is None or part["right"] is None:
        raise Rejected("a part has cutoffs, and no program left or right with names for sizes")
    for side in ("left", "right"):
        with naming(f"the program {side} with names for sizes"):
            taken = [node["outputs"][0]["shape"] for node in part[side]["nodes"] if node["op"] == "input"]
        if taken != [[size if size in names else _only(size, ranges) for size in shape] for shape in inputs]:
            raise Rejected(f"the program {side} with names for sizes takes inputs of other shapes than inputs and cuts say")
    conditions = conditions_of(part["left"], part["right"], names)
    if not (conditions.same or conditions.positive or conditions.analytic):
        raise Undecided("they divide by a sum that may be 0, and are no analytic functions")
    return conditions


def _only(size: int | str, ranges: Mapping[str, range]) -> int:
    """A number, or the one size that a dimension has in a part."""
    return ranges[size].start if isinstance(size, str) else size


def _check_sizes(part: Json, ranges: Mapping[str, range], conditions: Conditions | None) -> None:
    """Raise Rejected unless there is a test at each size that decides, and nowhere else."""
    chosen = [_deciding(name, of, part["cutoffs"], conditions) for name, of in ranges.items()]
    if any([*test["sizes"]] != [*ranges] for test in part["tests"]):
        raise Rejected("tests: sizes are of other dimensions")
    sizes = [tuple(test["sizes"].values()) for test in part["tests"]]
    if math.prod(map(len, chosen)) != len(sizes) or sizes != [*itertools.product(*chosen)]:
        raise Rejected("tests are at other sizes than those that its cutoffs say")


def _deciding(name: str, of: range, cutoffs: Json | None, conditions: Conditions | None) -> range:
    """The sizes of a dimension that decide; raises Rejected where a certificate has fewer, or smaller ones."""
    if cutoffs is None or conditions is None or name not in cutoffs:
        return of
    first, count = cutoffs[name]["first"], cutoffs[name]["count"]
    least, needed = conditions.cutoffs[name]
    if first < least or count < needed:
        raise Rejected(
            f"the cutoff of {name} is {count} sizes from {first} on; these programs need {needed} sizes from {least} on"
        )
    from_first = of[max(0, -(-(first - of.start) // of.step)) :][:count]
    return from_first if len(from_first) == count else of


# --- the programs there ------------------------------------------------------------------------------------------------


def _inputs(document: Json, part: Json) -> list[list[int | str]]:
    """The shapes of the inputs of a part's programs: arguments, what stands for calls in both, and what functions bring along."""
    count = len(document["arguments"])
    return [*document["inputs"][:count], *part["cuts"], *document["inputs"][count:]]


def _tested(
    inputs: Sequence[Sequence[int | str]],
    part: Json,
    conditions: Conditions | None,
    test: Json,
    rounds: int | None,
    rng: random.Random,
    tell: Callable[[str], None],
) -> tuple[int, float]:
    """How many tests of one size agreed, and the bound that follows."""
    sizes, certificate = test["sizes"], test["certificate"]
    where = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    shapes = [[sizes[size] if isinstance(size, str) else size for size in shape] for shape in inputs]
    with naming(f"tests: at {where}"):
        graphs = [_program(part[side], test[side], sizes, shapes, side) for side in ("left", "right")]
        for side in ("left", "right"):
            if certificate.get(side) != graph_digest(test[side]):
                raise Rejected(f"its program {side} is not the one that its certificate speaks of")
        tell(f"at {where}")
        with naming("its certificate"):
            found = tested_again(graphs[0], graphs[1], certificate, rounds, rng, tell)
        doubtful = conditions is not None and not conditions.same and not conditions.positive
        if doubtful and not all(has_value(graph, rng) for graph in graphs):
            raise Undecided("they may have a value nowhere, so that nothing follows for other sizes")
        return found


def _program(template: Json | None, document: Json, sizes: Mapping[str, int], shapes: Sequence[Sequence[int]], side: str) -> Json:
    """The program of a test, which is what the one with names for sizes is there, if there is one, and takes such inputs."""
    if template is not None and document_at(template, sizes) != document:
        raise Rejected(f"its program {side} is not what the program with names for sizes is there")
    graph = graph_of(document, f"its program {side}")
    check_shapes(graph, f"its program {side}")
    if [node["attributes"]["shape"] for node in graph["nodes"] if node["op"] == "input"] != shapes:
        raise Rejected(f"its program {side} takes inputs of other shapes than inputs and cuts say")
    return graph


def _recorded(certificate: Json) -> float:
    """The bound of a test's own record, which is of one piece."""
    check_record(certificate)
    return float(certificate["error_bound"])
