"""Results in words: times with units that fit, bounds as powers of two."""

from __future__ import annotations

from dataclasses import replace

import pytest

import mugraph
from mugraph.describe import bound_text, gpu_figures, seconds_text
from mugraph.verifier import verify_graphs


@pytest.mark.parametrize(
    ("seconds", "words"), [(90.0, "90 s"), (1.0, "1 s"), (0.0025, "2.5 ms"), (3.21e-6, "3.21 us"), (1e-9, "0.001 us")]
)
def test_times_have_the_unit_that_fits(seconds: float, words: str) -> None:
    assert seconds_text(seconds) == words


def test_bounds_are_powers_of_two_or_say_why_there_is_none() -> None:
    program = mugraph.Program()
    program.output(program.input("x", (4, 8)).exp())
    certificate = verify_graphs(program.graph, program.graph).certificate
    assert bound_text(replace(certificate, error_bound=2.0**-41)).endswith("at most 2^-41")
    assert bound_text(replace(certificate, error_bound=0.0)) == "a wrong graph cannot pass"
    assert bound_text(replace(certificate, error_bound=None, reason="no bound: because")) == "no bound: because"


def test_only_gpu_targets_have_figures_of_gpu_kernels() -> None:
    program = mugraph.Program()
    program.output(program.input("x", (4, 8)).exp())
    assert gpu_figures(mugraph.superoptimize(program, profile=False)) == ()
