"""A certificate as a page tells it: what was claimed and tested in words, the fields, the float errors (paper, section 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mugraph.ir.graph import Graph
from mugraph.results.data import Candidate
from mugraph.results.summary import bound_text, outcome_text, spot_check_text
from mugraph.verifier import Certificate, FloatReport
from mugraph.verifier.bounds import Difference, Terms
from mugraph.verifier.certificate import power_of_two
from mugraph.verifier.float_report import TOLERANCES


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a list: what it is about, and what there is to say."""

    term: str
    text: str


@dataclass(frozen=True, slots=True)
class FloatRow:
    """The errors on one kind of inputs, relative to the output's largest value; `own` is the original program's."""

    inputs: str
    errors: str
    own: str
    beyond: bool
    """Whether an error is above the tolerance of its type, so that the original's own was what it was compared with."""


def facts(candidate: Candidate, program: Graph) -> list[Fact]:
    """What a certificate says, and what running printed kernels showed, in the order in which one would ask."""
    return list(_facts(candidate, program))


def float_rows(report: FloatReport) -> list[FloatRow]:
    """One row for each kind of inputs that was compared with float64."""
    return [
        FloatRow(entry.inputs, _errors(entry.errors), _errors(entry.baseline or ()), entry.exceeds(report.dtypes))
        for entry in report.scales
    ]


def tolerances_text(report: FloatReport) -> str:
    """The errors that are never called unstable."""
    dtypes = dict.fromkeys(report.dtypes)
    return ", ".join(f"{TOLERANCES[dtype]:g} in {dtype}" for dtype in dtypes)


def _facts(candidate: Candidate, program: Graph) -> Iterator[Fact]:
    certificate = candidate.certificate
    yield Fact("Answer", outcome_text(certificate))
    yield Fact("Shown", certificate.claim)
    asked = f"asked for: at most {power_of_two(certificate.max_error)}"
    yield Fact("Error bound", f"{bound_text(certificate)} ({asked})")
    yield Fact("Tests", _tests_text(certificate))
    if certificate.pieces:
        yield Fact("Pieces", _pieces_text(certificate))
    if certificate.axes:
        yield Fact("Slices", _axes_text(certificate, program))
    if certificate.readings:
        yield Fact("Constants", "; ".join(f"{written!r} was read as {constant}" for constant, written in certificate.readings))
    if candidate.spot_check is not None:
        yield Fact("Printed kernels", spot_check_text(candidate.spot_check))
    if certificate.difference is not None:
        yield from _difference_facts(certificate.difference)
    for name, meaning in certificate.semantics:
        yield Fact(f"Meaning of {name}", meaning)
    yield Fact("Graphs", f"sha256 {certificate.left} (the program) and {certificate.right} (the muGraph)")


def _tests_text(certificate: Certificate) -> str:
    if certificate.untested:
        return "none: the muGraph is the program"
    count = certificate.tests_run
    thrown = f"; {certificate.redraws} draws were thrown away, where a denominator vanished or a radicand was no square"
    return (
        f"{count} test{'s' * (count != 1)} on random inputs over a random pair of prime fields, from seed {certificate.seed}"
        f"{thrown if certificate.redraws else ''}"
    )


def _pieces_text(certificate: Certificate) -> str:
    tested = sum(not piece.certificate.untested for piece in certificate.pieces)
    over = f"; {certificate.passed_over} more tries were in vain" if certificate.passed_over else ""
    return (
        f"{len(certificate.pieces)} pairs of tensors, one of each graph, each proved with those below it as inputs; "
        f"{tested} took tests, the others are computed alike{over}"
    )


def _axes_text(certificate: Certificate, program: Graph) -> str:
    words = []
    for axis in certificate.axes:
        inputs = zip(program.input_names, axis.inputs, strict=False)
        places = [f"dimension {dim} of {name}" for name, dim in inputs if dim is not None]
        words.append(f"the axis of size {axis.size} ({', '.join(places)})")
    ran = "" if certificate.pieces else "; the tests ran on one slice"
    added = ", which they add up in part," if any(axis.sums for axis in certificate.axes) else ""
    return f"both graphs do the same to all slices along {' and '.join(words)}{added}{ran}"


def _difference_facts(difference: Difference) -> Iterator[Fact]:
    yield Fact("Size of a difference", f"the two graphs could differ by {_terms_text(difference.output)}")
    for function in difference.functions:
        meeting = "could meet in all tests" if difference.alike else "could meet"
        count = f"{function.pairs:,} pair{'s' * (function.pairs != 1)} of arguments {meeting}"
        yield Fact(f"Random function {function.name}", f"{count}, which differ by {_terms_text(function.argument)}")
    paper = difference.theorem_2()
    says = f"{paper:.1e}" if paper < 1 else "above 1: it says nothing"
    yield Fact("The paper's bound", f"of its Theorem 2, for one test with fields of this size: {says}")


def _terms_text(terms: Terms) -> str:
    polynomial = f"degree {terms.degree:,}, coefficients that sum to at most 2^{terms.bits:,}"
    if terms.exponent_degree == 0:
        return f"a fraction whose numerator has {polynomial}"
    exponents = f"exponents of degree {terms.exponent_degree:,} and 2^{terms.exponent_bits:,}"
    return f"a sum of {power_of_two(terms.terms)} exponentials with {exponents}, factors of {polynomial}"


def _errors(errors: tuple[float, ...]) -> str:
    return ", ".join("not finite" if math.isinf(error) else f"{error:.1e}" if error else "0" for error in errors)
