"""Sizes without useful divisors: searched as they are, computed right, and named where padding is predicted to help."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
import torch

from mugraph.devices import device_for
from mugraph.ir import Graph
from mugraph.ir.program import Program
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import build
from mugraph.runtime.executable import Executable
from mugraph.search import Options, search
from mugraph.search.driver import Search
from mugraph.search.partition.padding import Padding, factors, worthwhile_paddings
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda

from .programs import attention, finished, outputs, random_inputs, rmsnorm

H100 = device_for("cuda:sm_90")


def gate(n: int) -> Graph:
    """An elementwise function of one long vector."""
    p = Program()
    x = p.input("gate", (n,))
    return finished(p, x.silu() * x)


def paddings(program: Graph) -> list[Padding]:
    """What is worth padding in the best plan of a program."""
    run = Search(program, H100)
    seconds = min((candidate.cost for candidate in run.run().candidates), default=math.inf)
    return list(worthwhile_paddings(run.axes, program.input_names, run.plans, (-1,), seconds))


def test_a_prime_vector_had_better_be_padded() -> None:
    (padding,) = paddings(gate(20_011))
    assert (padding.size, padding.padded) == (20_011, 20_032)
    assert padding.padded_seconds < 0.9 * padding.seconds
    assert "dimension 0 of gate has size 20011, a prime, which cannot be cut into useful parts" in str(padding)


def test_a_prime_vector_that_no_block_holds_is_not_found_a_kernel_and_the_padding_says_why() -> None:
    (padding,) = paddings(gate(1_000_003))
    assert math.isinf(padding.seconds)
    assert "cannot be cut into parts that fit a block: padded to 1000064" in str(padding)


@pytest.mark.parametrize("n", [1_048_576, 1_000_064, 7])
def test_sizes_with_divisors_and_small_ones_are_left_alone(n: int) -> None:
    assert paddings(gate(n)) == []


def test_the_divisors_are_named() -> None:
    padding = Padding("dimension 0 of x", 4097, 4160, 2e-5, 1e-5)
    assert "4097 = 17 x 241" in str(padding)
    assert "10 us instead of 20 us" in str(padding)


@pytest.mark.parametrize("n", [2, 11, 12, 97, 4097, 50257, 1_000_003])
def test_factors_multiply_to_the_number(n: int) -> None:
    assert math.prod(factors(n)) == n
    assert all(n % factor == 0 and len(factors(factor)) == 1 for factor in factors(n))


@pytest.mark.parametrize("program", [rmsnorm(5, 7, 11), attention(3, 13, 7)], ids=["rmsnorm", "attention"])
def test_programs_of_prime_sizes_are_computed_right(program: Graph) -> None:
    found = search(program, device_for("cpu")).candidates
    assert found
    (wanted,) = outputs(program)
    for candidate in found:
        np.testing.assert_allclose(outputs(candidate.graph)[0], wanted, rtol=1e-8)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
@pytest.mark.parametrize("program", [rmsnorm(5, 7, 11), attention(3, 13, 7)], ids=["rmsnorm", "attention"])
def test_kernels_of_prime_sizes_run_right(program: Graph) -> None:
    inputs, (wanted,) = random_inputs(program), outputs(program)
    tensors = [torch.from_numpy(array).float() for array in inputs]
    best, *_ = search(program, device_for("cpu")).candidates
    (result,) = build(construct(best.graph), "cpu")(*tensors)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)
    best, *_ = search(program, H100).candidates
    on = EmulatedCuda(Cuda("sm_90", 200_000))
    (result,) = Executable(construct(best.graph), on)(*tensors)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert on.findings == []


def test_advice_does_not_depend_on_the_time_for_finer_tiers_and_changes_no_report() -> None:
    p = Program()
    x, y, w = p.input("x", (4, 20011)), p.input("y", (4, 20011)), p.input("w", (20011,))
    graph = finished(p, (x + y) * w)
    hurried = search(graph, H100, options=Options(finer_tier_seconds=0.0)).report
    assert not hurried.exhausted
    assert hurried.paddings == search(graph, H100).report.paddings != []
