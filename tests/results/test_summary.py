"""Results in words: times with units that fit, bounds as powers of two."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import mugraph
from mugraph.ir import DType
from mugraph.results.summary import bound_text, floats_text, seconds_text
from mugraph.verifier import FloatReport, verify_graphs
from mugraph.verifier.float_report import ScaleError


@pytest.mark.parametrize(
    ("seconds", "words"), [(90.0, "90 s"), (1.0, "1 s"), (0.0025, "2.5 ms"), (3.21e-6, "3.21 us"), (1e-9, "0.001 us")]
)
def test_times_have_the_unit_that_fits(seconds: float, words: str) -> None:
    assert seconds_text(seconds) == words


def test_bounds_are_powers_of_two_or_say_why_there_is_none() -> None:
    program, other = mugraph.Program(), mugraph.Program()
    program.output(program.input("x", (4, 8)) * 2)
    x = other.input("x", (4, 8))
    other.output(x + x)
    assert bound_text(verify_graphs(program.graph, program.graph).certificate) == "there was nothing to prove"
    certificate = verify_graphs(program.graph, other.graph).certificate
    assert bound_text(replace(certificate, error_bound=2.0**-41)).endswith("at most 2^-41")
    assert bound_text(replace(certificate, error_bound=1.3 * 2.0**-41)).endswith("at most 2^-40")
    assert bound_text(replace(certificate, error_bound=0.0)) == "the tests compute both graphs exactly"
    assert bound_text(replace(certificate, error_bound=None, reason="no bound: because")) == "no bound: because"


def test_errors_are_the_worst_finite_ones_and_inputs_beyond_the_range_are_named() -> None:
    normal, large = ScaleError(1.0, (2e-4,), (4e-4,)), ScaleError(10.0, (3e-4,))
    huge = ScaleError(1000.0, (math.inf,), (math.inf,))
    assert floats_text(FloatReport(True, "", (normal, large), (DType.FP16,))).splitlines() == [
        "largest error against float64, relative to the output: 2.0e-04, 0.5 times the original program's own",
        "of 2 kinds of inputs the worst is input scale 10: 3.0e-04",
    ]
    lines = floats_text(FloatReport(True, "", (normal, large, huge), (DType.FP16,))).splitlines()
    assert lines[1] == "of 3 kinds of inputs the worst is input scale 10: 3.0e-04"
    assert lines[2] == "not finite for input scale 1000, where the original program's own is not either"
    lost = ScaleError(1e-3, (1.0,), (0.5,))
    assert floats_text(FloatReport(True, "", (normal, lost), (DType.FP16,))).splitlines()[1] == (
        "of 2 kinds of inputs the worst is input scale 0.001: 1.0e+00, the original program's own 5.0e-01"
    )
    only = replace(huge, baseline=(1.0,))
    assert floats_text(FloatReport(False, "why", (only,), (DType.FP16,))).splitlines()[1:] == ["not finite for input scale 1000"]


def test_nothing_is_to_blame_for_an_error_of_0() -> None:
    report = FloatReport(True, "", (ScaleError(1.0, (1e-4,), (1e-4,)),), (DType.FP16,), "exp of shape [4] turns errors")
    assert floats_text(report).splitlines()[-1] == "most of it: exp of shape [4] turns errors"
    exact = replace(report, scales=(ScaleError(1.0, (0.0,), (0.0,)),))
    assert "most of it" not in floats_text(exact)


def test_only_gpu_targets_have_figures_of_gpu_kernels() -> None:
    program = mugraph.Program()
    program.output(program.input("x", (4, 8)).exp())
    assert mugraph.superoptimize(program, profile=False).executable.resources == ()
