"""Results in words: what the command line and the viewer both say of bounds, errors, times and GPU kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mugraph.results.data import Candidate, SpotCheck
from mugraph.results.words import seconds_text as seconds_text
from mugraph.verifier import Certificate, FloatReport, Outcome, Verdict
from mugraph.verifier.certificate import at_most, power_of_two


def outcome_text(certificate: Certificate) -> str:
    """What a certificate says of a muGraph, in the words of verdicts; rounding is no part of it."""
    match certificate.outcome:
        case Outcome.EQUIVALENT if certificate.untested:
            return "the program itself, as it was written"
        case Outcome.EQUIVALENT:
            return "equivalent to the program in exact arithmetic, at full size"
        case Outcome.DIFFERENT:
            return "DIFFERENT from the program"
        case Outcome.UNDECIDED if certificate.agreed:
            return "not proved equivalent to the program, but all tests agree"
    return "NOT shown to be equivalent to the program"


def bound_text(certificate: Certificate) -> str:
    """A certificate's error bound."""
    if certificate.untested:
        return "there was nothing to prove"
    if certificate.error_bound is None:
        return certificate.reason
    return passing_text(certificate.error_bound)


def passing_text(error_bound: float) -> str:
    """The probability that tests accept a wrong graph."""
    if error_bound == 0:
        return "the tests compute both graphs exactly"
    return f"a wrong graph would pass with probability at most {power_of_two(error_bound)}"


def some_wrong_text(error_bound: float | None) -> str:
    """The probability that tests accepted one of several muGraphs that is wrong; None where one has no bound."""
    if error_bound is None:
        return "no error bound is claimed"
    return f"one of them is wrong with probability at most {at_most(error_bound)}"


def verdict_lines(verdict: Verdict) -> list[str]:
    """What follows the answer to whether two functions are one program: the rest of its line, and lines below it."""
    if not verdict.equivalent:
        return [f": {verdict.reason.removeprefix('undecided: ')}", *_conditions(verdict)]
    proved = f"; by {', '.join(verdict.properties)}, and for the rest" if verdict.properties else ";"
    return [f"{proved} {bound_text(verdict.certificate)}", *_conditions(verdict)]


def _conditions(verdict: Verdict) -> Iterator[str]:
    if verdict.question:
        yield f"asked: {verdict.question}"
    if verdict.domain:
        yield f"only where both are defined: {verdict.domain}"
    for constant, written in verdict.certificate.readings:
        yield f"the constant {written!r} was read as {constant}"


def floats_text(floats: FloatReport) -> str:
    """What the comparison with float64 found, in two to five lines."""
    ratio = "" if floats.error_ratio is None else f", {floats.error_ratio:.1f} times the original program's own"
    lines = [f"largest error against float64, relative to the output: {floats.max_relative_error:.1e}{ratio}"]
    finite = [entry for entry in floats.scales if math.isfinite(max(entry.errors))]
    if finite:
        worst = max(finite, key=lambda entry: max(entry.errors))
        own = f", the original program's own {max(worst.baseline or ()):.1e}" if worst.exceeds(floats.dtypes) else ""
        lines.append(f"of {len(floats.scales)} kinds of inputs the worst is {worst.inputs}: {max(worst.errors):.1e}{own}")
    if beyond := [entry.inputs for entry in floats.scales if entry not in finite]:
        allowed = ", where the original program's own is not either" if floats.stable else ""
        lines.append(f"not finite for {' and '.join(beyond)}{allowed}")
    if floats.sampled:
        lines.append(sample_text(floats))
    if floats.blamed and floats.max_relative_error > 0:
        lines.append(f"most of it: {floats.blamed}")
    return "\n".join(lines)


def sample_text(floats: FloatReport) -> str:
    """What was compared where it was not all elements of all outputs; empty where it was."""
    if floats.blocks:
        return _blocks_text(floats)
    told = []
    for entry in floats.sampled:
        counts = zip(entry.compared or (), floats.elements, strict=True)
        numbers = [f"{some:,} of {whole:,}" for some, whole in counts]
        outputs = "the output" if len(numbers) == 1 else "outputs 0, 1, ..."
        told.append(f"for {entry.inputs}, {', '.join(numbers)} elements of {outputs}")
    others = " and where results are farthest from the original program's own; for other inputs all elements"
    return f"compared with float64: {'; '.join(told)}{others}" if told else ""


def _blocks_text(floats: FloatReport) -> str:
    """What was compared where the kernels' stand-ins computed some blocks of the outputs alone."""
    axes = (f"{each.chosen:,} of {each.blocks:,} blocks along {_dims_text(each.outputs)}" for each in floats.blocks)
    counts = zip(floats.elements_computed, floats.elements, strict=True)
    numbers = ", ".join(f"{some:,} of {whole:,}" for some, whole in counts)
    fewer = [
        f"{', '.join(f'{some:,}' for some in entry.compared or ())} for {entry.inputs}"
        for entry in floats.scales
        if entry.compared != floats.elements_computed
    ]
    elements = f"{numbers} elements" + (f", of which {' and '.join(fewer)}" if fewer else "")
    return f"compared with float64: {' and '.join(axes)}, which the muGraph computes as it computes all: {elements}"


def _dims_text(dims: Sequence[int | None]) -> str:
    """Which dimension of each output is meant."""
    if len(dims) == 1:
        return f"dimension {dims[0]} of the output"
    return "dimensions " + ", ".join(f"{dim} of output {number}" for number, dim in enumerate(dims) if dim is not None)


def compared_text(candidate: Candidate) -> str:
    """What the errors against float64 are those of, where it is not the kernels themselves; empty where it is."""
    return (
        "" if candidate.spot_check is None else "these are the errors of the same muGraph compiled for a CPU, in the GPU's place"
    )


def spot_check_text(check: SpotCheck) -> str:
    """What running blocks of the printed kernels without their machine showed, or why that was not done, in one line."""
    missed = f"not run on the {check.on}: {check.missed}"
    if not check.ran:
        return f"the printed kernels were {missed}"
    where = f" ({check.where})" if check.where else ""
    ran = f"{check.ran} of {check.blocks} blocks of the printed kernels{where} were run on the {check.on}"
    if check.largest_error is None:
        return f"{ran}: no fault, but nothing was compared: {check.missed}"
    others = " and ".join(f"{scale:g}" for scale in check.scales if scale != 1)
    again = f", the first of them at input scales {others} too" if others else ""
    return f"{ran}{again}: no fault, largest error {check.largest_error:.1e}" + (f"; {missed}" if check.missed else "")
