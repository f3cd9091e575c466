"""Elementary functions on every target, over all of fp32 and where they have no value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mugraph.ir import DType, GraphBuilder, Level, Value
from mugraph.ir.elementary import FUNCTIONS, Elementary
from mugraph.ir.ops import TRUTH
from mugraph.ir.program import Program
from mugraph.lower import construct
from mugraph.runtime.executable import Executable
from mugraph.testing.mugraph_runs import machine_of

from .test_choices import SPECIAL, TARGETS, kernels_of

Points = npt.NDArray[np.float32]
OF_ONE = [function for function in FUNCTIONS if function.arity == 1]
OF_TWO = [function for function in FUNCTIONS if function.arity == 2]
EXACT = {"floor", "ceil", "trunc", "round", "fmod", "copysign"}


def everywhere(count: int) -> Points:
    """Numbers of all sizes and both signs, whole and half ones, others near 1, and what is no number."""
    sizes = [np.logspace(-37, 38, count), np.arange(40) / 2, np.linspace(0.5, 1.5, count), np.linspace(-1, 1, 65)]
    ends = [
        8388607.5,
        8388608,
        16777217,
        3.4e38,
        88.72,
        88.73,
        89.4,
        127.5,
        149.5,
        1e-40,
        12799.5,
        12801,
        1e6,
        math.nan,
        math.inf,
    ]
    half = np.concatenate([*sizes, ends])
    points = np.concatenate([half, -half]).astype(np.float32)
    return np.resize(points, (-(-points.size // 64), 64))


def pairs(rows: int) -> tuple[Points, Points]:
    """Of special numbers every pair, and random ones of all sizes."""
    rng = np.random.default_rng(0)
    known = np.array([*SPECIAL, 0.3, 2, 3, -3, 0.5, 1e10, 7, -0.1], np.float32)
    special = np.array(list(itertools.product(known, known)), np.float32).T
    sizes = rng.choice(everywhere(200).reshape(-1), (2, rows * 64 - special.shape[1]))
    x, y = np.concatenate([special, sizes], axis=1).reshape(2, rows, 64)
    return x, y


def compare(functions: list[Elementary], target: str, *points: Points) -> None:
    """Kernels of all functions against float64: within a few units in the last place, and no number where that has none."""
    program = Program()
    inputs = [program.input(name, points[0].shape) for name in "xy"[: len(points)]]
    program.output(*(inputs[0].apply(function.name, *inputs[1:]) for function in functions))
    _, executable = kernels_of(program.graph, target)
    results = executable(*map(torch.from_numpy, points))
    for function, result in zip(functions, results, strict=True):
        got, wide = result.double().numpy(), function.reference(*(x.astype(np.float64) for x in points))
        with np.errstate(over="ignore"):
            exact = wide.astype(np.float32).astype(np.float64)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(exact), function.name)
        normal = np.isfinite(exact) & (np.abs(exact) >= np.finfo(np.float32).tiny)
        np.testing.assert_allclose(got[normal], exact[normal], rtol=0 if function.name in EXACT else 6e-7, err_msg=function.name)
        tiny = np.isfinite(exact) & ~normal
        np.testing.assert_allclose(got[tiny], exact[tiny], rtol=0, atol=2e-38, err_msg=function.name)
        infinite = np.isinf(exact)
        np.testing.assert_array_equal(got[infinite], exact[infinite], function.name)
    assert not getattr(executable.machine, "findings", [])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("functions", [OF_ONE[:10], OF_ONE[10:]], ids=["first", "others"])
def test_functions_of_one_operand(functions: list[Elementary], target: str) -> None:
    compare(functions, target, everywhere(3000 if target == "cpu" else 300))


@pytest.mark.parametrize("target", TARGETS)
def test_functions_of_two_operands(target: str) -> None:
    compare(OF_TWO, target, *pairs(400 if target == "cpu" else 40))


@pytest.mark.parametrize("target", TARGETS)
def test_signs_of_zeros_count_where_angles_and_signs_are_taken(target: str) -> None:
    x, y = np.array([0.0, 0.0, -0.0, -0.0], np.float32), np.array([0.0, -0.0, 0.0, -0.0], np.float32)
    program = Program()
    inputs = [program.input(name, (4,)) for name in "xy"]
    program.output(*(inputs[0].apply(name, inputs[1]) for name in ("atan2", "copysign")))
    angle, signed = kernels_of(program.graph, target)[1](torch.from_numpy(x), torch.from_numpy(y))
    np.testing.assert_allclose(angle, np.arctan2(x, y), rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(signed.numpy()), [False, True, False, True])


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_among_the_operands(target: str) -> None:
    x = everywhere(20)
    program = Program()
    given = program.input("x", x.shape)
    numbers: list[tuple[str, float]] = [("fmod", 0.3), ("atan2", -1.0), ("pow", 3.5), ("pow", -2.0), ("copysign", -3.0)]
    program.output(
        *(given.apply(name, program.constant(number)) for name, number in numbers),
        *(program.constant(abs(number)).apply(name, given) for name, number in numbers),
    )
    results: list[Any] = kernels_of(program.graph, target)[1](torch.from_numpy(x))
    rows = {function.name: function.reference for function in OF_TWO}
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        wanted = [rows[name](wide, np.float64(np.float32(number))) for name, number in numbers]
        wanted += [rows[name](np.float64(np.float32(abs(number))), wide) for name, number in numbers]
        for result, exact in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, np.broadcast_to(exact, x.shape).astype(np.float32), rtol=6e-7, atol=2e-38)


@pytest.mark.parametrize("target", TARGETS)
def test_whole_quotients_are_whole_where_functions_jump(target: str) -> None:
    """41 times the reciprocal of 41 is less than 1 in fp32, and 41 / 41 is not."""
    whole = np.arange(-60, 60, dtype=np.float32).reshape(6, 20)
    divisors = np.array([[3.0], [7.0], [41.0], [47.0], [55.0], [82.0]], np.float32)
    program = Program()
    x, y, times = program.input("x", whole.shape), program.input("y", (6, 1)), program.input("times", whole.shape)
    program.output((x / 41).apply("floor") * 2, (x * y / y).apply("floor") * 2, times.apply("equal", x / 41) * 2)
    given = (whole * 41, divisors, whole)
    results = kernels_of(program.graph, target)[1](*map(torch.from_numpy, given))
    np.testing.assert_array_equal(results[0], whole * 2)
    np.testing.assert_array_equal(results[1], whole * 41 * 2)
    np.testing.assert_array_equal(results[2], np.full_like(whole, 2))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "others", "wanted"), [(TRUTH, (), 0.0), ("atan2", (-1.0,), math.pi)])
def test_differences_of_whole_quotients_are_zero_where_functions_jump(
    name: str, others: tuple[float, ...], wanted: float, target: str
) -> None:
    """At 0: a number less is an angle of -pi."""
    whole = np.arange(-60, 60, dtype=np.float32).reshape(6, 20)
    program = Program()
    x, times = (program.input(name, whole.shape) for name in ("x", "times"))
    program.output((x / 41 - times).apply(name, *map(program.constant, others)) * 2)
    (results,) = kernels_of(program.graph, target)[1](torch.from_numpy(41 * whole), torch.from_numpy(whole))
    np.testing.assert_allclose(results, np.full_like(whole, 2 * wanted), rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_whole_quotients_are_whole_where_functions_of_another_kernel_jump(target: str) -> None:
    whole = np.arange(256, dtype=np.float32).reshape(4, 64)
    kernel = GraphBuilder(Level.KERNEL)
    operands = [kernel.input(name, whole.shape, DType.FP32) for name in "xy"]

    def made(make: Callable[[GraphBuilder, list[Value]], Value], *values: Value) -> Value:
        block = GraphBuilder(Level.BLOCK, grid=(2,))
        read = [block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate(values)]
        (result,) = kernel.graph_defined(block.build([block.add("output_saver", make(block, read), omap=(0,))]), values)
        return result

    by_number = made(lambda b, xs: b.add("mul", *xs, b.constant(1 / 41, DType.FP32)), operands[0])
    by_tensor = made(lambda b, xs: b.add("div", *xs), *operands)
    floors = [made(lambda b, xs: b.add("floor", *xs), quotient) for quotient in (by_number, by_tensor)]
    results = Executable(construct(kernel.build(floors)), machine_of(target))
    for result in results(torch.from_numpy(41 * whole), torch.full(whole.shape, 41.0)):
        np.testing.assert_array_equal(result, whole)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "others"), [("sqrt", (0.0, 0.0)), ("log", (0.0, -math.inf)), ("log1p", (-1.0, -math.inf)), ("acos", (1.0, 0.0))]
)
def test_differences_of_whole_quotients_are_in_the_domains_that_end_at_them(
    name: str, others: tuple[float, float], target: str
) -> None:
    """A number that is less than 0, or more than 1, by a rounding has no root, logarithm or angle."""
    end, wanted = others
    whole = np.arange(1, 121, dtype=np.float32).reshape(6, 20)
    program = Program()
    x, y, times = (program.input(name, whole.shape) for name in ("x", "y", "times"))
    by_number, by_tensor = ((quotient - times + end).apply(name) * 2 for quotient in (x / 41, x / y))
    program.output(by_number, by_tensor)
    arrays = 41 * whole, np.full_like(whole, 41), whole
    for results in kernels_of(program.graph, target)[1](*map(torch.from_numpy, arrays)):
        np.testing.assert_array_equal(results, np.full_like(whole, 2 * wanted))


@pytest.mark.parametrize("target", TARGETS)
def test_whole_roots_are_whole_where_functions_jump(target: str) -> None:
    """Approximate square roots of squares may be less than they are."""
    whole = np.arange(240, dtype=np.float32).reshape(12, 20)
    program = Program()
    x, times = program.input("x", whole.shape), program.input("times", whole.shape)
    program.output(x.apply("sqrt").apply("floor") * 2, times.apply("equal", x.apply("sqrt")) * 2)
    roots, hits = kernels_of(program.graph, target)[1](torch.from_numpy(whole * whole), torch.from_numpy(whole))
    np.testing.assert_array_equal(roots, whole * 2)
    np.testing.assert_array_equal(hits, np.full_like(whole, 2))


@pytest.mark.parametrize("target", TARGETS)
def test_differences_of_equal_products_are_zero(target: str) -> None:
    """One that is put into an instruction with the difference, and not rounded, differs from the other by its rounding."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 8, 64)).astype(np.float32)
    program = Program()
    left, right = program.input("x", x.shape), program.input("y", x.shape)
    program.output(left * right - (left * right).apply("abs"), (left * right).apply("less", left * right) * 2)
    differences, less = kernels_of(program.graph, target)[1](torch.from_numpy(x), torch.from_numpy(y))
    np.testing.assert_array_equal(np.asarray(differences)[x * y > 0], 0)
    np.testing.assert_array_equal(less, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_roots_of_subnormal_numbers_are_none_themselves(target: str) -> None:
    x = np.logspace(-44, -38, 64).astype(np.float32).reshape(4, 16)
    program = Program()
    program.output(program.input("x", x.shape).apply("sqrt") * 2)
    (roots,) = kernels_of(program.graph, target)[1](torch.from_numpy(x))
    np.testing.assert_allclose(roots, 2 * np.sqrt(x.astype(np.float64)), rtol=3e-7)
