"""Degrees and coefficient sizes really bound the polynomials of a program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import is_prime
from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import Graph, GraphBuilder, Level, Scalar
from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program, ProgramTensor
from mugraph.search import search
from mugraph.verifier import degree_bounds
from mugraph.verifier.bounds import Difference, Function, Terms, difference_of
from mugraph.verifier.degree_bounds import Fraction as Bounds
from mugraph.verifier.degree_bounds import Magnitudes
from mugraph.verifier.parallel_axes import shared_slice
from mugraph.verifier.random_tests import is_beyond_tests
from mugraph.verifier.root_semantics import Factored
from mugraph.verifier.semantics import Semantics, beyond_rational
from mugraph.verifier.vectorized_eval import evaluate_batched

from .graphs import FP32, attention, fused_rmsnorm, online_attention, program, rmsnorm


class ExactArithmetic(FloatArithmetic):
    """Fractions in arrays of objects."""

    def constant(self, value: Scalar) -> Array:
        return np.array(value.value, dtype=object)


def bounds(left: Graph, right: Graph) -> Difference:
    difference = difference_of(left, right)
    assert difference is not None
    return difference


def magnitudes(graph: Graph) -> tuple[Magnitudes, Bounds]:
    """What a graph of one output applies, and the bounds of that output."""
    noted = Magnitudes()
    arith = Factored(noted)
    inputs = [arith.atom(noted.input(node.output.shape)) for node in graph.inputs()]
    return noted, evaluate_batched(graph, inputs, arith)[0].value


FUNCTIONS: dict[str, tuple[Callable[..., ProgramTensor], Callable[..., ProgramTensor]]] = {
    "products": (lambda x, y: (x @ y) @ x, lambda x, y: x * y),
    "constants": (lambda x, y: x * Fraction(7, 30) + y * Fraction(-5, 12), lambda x, y: x * Fraction(9, 7) - 1000),
    "quotients": (lambda x, y: x / y + y / x, lambda x, y: (x * Fraction(1, 3)) / (y * y)),
    "sums of quotients": (lambda x, y: (x / y) @ x, lambda x, y: ((x / y).sum(-1, keepdim=True) * 5) / y),
    "nested quotients": (lambda x, y: 1 / (1 / x + y), lambda x, y: (x / (x / y + 1)).sum(0, keepdim=True) + y),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reduced_numerators_stay_within_the_bounds(name: str) -> None:
    left, right = (program(function, (2, 2), (2, 2)) for function in FUNCTIONS[name])
    bound = bounds(left, right).output
    rng = np.random.default_rng(0)
    largest, checked = 3, 0
    for _ in range(200):
        inputs = [np.vectorize(Fraction, otypes=[object])(rng.integers(1, largest + 1, (2, 2))) for _ in range(2)]
        try:
            ours, theirs = (evaluate_batched(graph, inputs, ExactArithmetic(object))[0] for graph in (left, right))
        except ZeroDivisionError:
            continue
        for element in (ours - theirs).flat:
            assert abs(Fraction(element).numerator) <= 2**bound.bits * largest**bound.degree
            checked += 1
    assert checked > 100


@pytest.mark.parametrize(("layers", "beyond"), [(1, False), (2, True)])
def test_programs_of_too_large_degrees_have_no_bound_beside_anything(layers: int, beyond: bool) -> None:
    torch = pytest.importorskip("torch")

    def attended(x: Any) -> Any:
        for _ in range(layers):
            x = torch.softmax(x @ x.T, -1) @ x
            x = x / ((x * x).mean(-1, keepdim=True) + 1).sqrt()
        return x

    graph, other = (trace(fn, (torch.randn(4, 16),)).graph for fn in (attended, lambda x: attended(x * 1.0)))
    assert is_beyond_tests(graph) is beyond
    for semantics in Semantics.FREE, Semantics.PROPERTIES, Semantics.ROOTS:
        bounded = difference_of(graph, other, semantics=semantics).rounds_for(2**-40) is not None
        assert not (beyond and bounded)


def _no_slices(*sides: Any, **given: Any) -> Any:
    raise AssertionError("slices were looked for, which takes long")


def test_of_a_long_program_no_slices_are_looked_for_to_see_that_it_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one of 94 operators that had taken 1.4 s of a core, before anything was searched."""

    def stream(x: ProgramTensor, w: ProgramTensor) -> ProgramTensor:
        for _ in range(10):
            scores = (x @ w).exp()
            x = x + scores / scores.sum(-1, keepdim=True)
            x = x / ((x * x).sum(-1, keepdim=True) + 1)
        return x

    graph = program(stream, (4, 16), (16, 16))
    assert 60 < len(graph.kernels()) <= 100
    monkeypatch.setattr("mugraph.verifier.random_tests.shared_slice", _no_slices)
    assert is_beyond_tests(graph)


def test_what_has_a_bound_in_full_size_needs_no_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.verifier.random_tests.shared_slice", _no_slices)
    assert not is_beyond_tests(program(lambda x, y: x * y + x / y, (4, 16), (4, 16)))


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (40, 5)])
def test_denominators_are_told_apart_by_both_factors(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-3, 4, shape) for _ in range(2))
    numbers = degree_bounds._told_apart(left, right)
    assert numbers.shape == shape
    pairs = [*zip(left.flat, right.flat, strict=True)]
    alike = dict(zip(pairs, numbers.flat, strict=True))
    assert len(set(pairs)) == len({*alike.values()}) == len(alike)
    assert [alike[pair] for pair in pairs] == [*numbers.flat]


def test_degrees_of_simple_programs() -> None:
    cube, line = program(lambda x: x * x * x, (2,)), program(lambda x: x, (2,))
    assert bounds(cube, line).output.degree == 3
    assert bounds(program(lambda x: 1 / x, (2,)), line).output.degree == 2
    quotients = program(lambda x, y: (x / y).sum(0), (5,), (5,))
    assert bounds(quotients, program(lambda x, y: y.sum(0), (5,), (5,))).output.degree == 6


def test_coefficients_count_terms_and_constants() -> None:
    zero = program(lambda x: x - x, (1, 1024))
    total = bounds(program(lambda x: x.sum(-1, keepdim=True) * 3, (1, 1024)), zero).output
    assert math.log2(3 * 1024) <= total.bits <= 16


def test_denominators_common_to_a_sum_count_once() -> None:
    rows = program(lambda x, w: (x / x.sum(-1, keepdim=True)) @ w, (3, 64), (64, 5))
    assert magnitudes(rows)[1].denominator.degree == 1
    columns = program(lambda x, w: (x / x.sum(0, keepdim=True)) @ w, (3, 64), (64, 5))
    assert magnitudes(columns)[1].denominator.degree == 64
    halves = program(lambda x: (x / x.reshape(2, 8).sum(-1, keepdim=True).repeat(1, 8).reshape(16)).sum(0), (16,))
    assert magnitudes(halves)[1].denominator.degree <= 16


def test_denominators_of_equal_bounds_are_not_taken_for_equal() -> None:
    def function(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        return x / x.sum(-1, keepdim=True) + y / y.sum(-1, keepdim=True)

    assert magnitudes(program(function, (3, 4), (3, 4)))[1].denominator.degree == 2


def test_divisions_by_the_same_elements_have_one_denominator() -> None:
    def same(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        total = x.sum(-1, keepdim=True)
        return ((x + y) / total).transpose(0, 1) - y.transpose(0, 1) / total.reshape((1, 3))

    def turned(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        total = x.sum(-1, keepdim=True)
        return (x + y) / total - y / total.reshape((1, 3))

    def of_other_rows(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        return x / x.sum(-1, keepdim=True) - y / x.sum(0, keepdim=True)

    def of_a_sum(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        total = x.sum(-1, keepdim=True)
        return x / total - y / (total + total)

    assert magnitudes(program(same, (3, 3), (3, 3)))[1].denominator.degree == 1
    for function in (turned, of_other_rows, of_a_sum):
        assert magnitudes(program(function, (3, 3), (3, 3)))[1].denominator.degree == 2


def test_exponentials_are_counted() -> None:
    difference = bounds(attention(queries=1, keys=8), online_attention(queries=1, keys=8))
    assert difference.exponentials
    assert difference.output.terms == 2 * 8 * 8, "one of 8 in a numerator times one of 8 in the other's denominator"
    exponents, _ = magnitudes(program(lambda x: (x / 3).exp() * (x * x).exp(), (2,)))
    assert exponents.exponent is not None
    assert exponents.exponent.numerator.degree == 2
    assert exponents.exponent.constant == 3


def test_functions_are_counted_and_their_values_are_variables() -> None:
    noted, result = magnitudes(program(lambda x, y: (x @ y).silu() * (x @ y).sum(-1, keepdim=True).silu(), (2, 3), (3, 5)))
    assert noted.functions["silu"].count == 12
    assert result.numerator.degree == 2
    assert noted.functions["silu"].argument.numerator.degree == 2


def test_pairs_of_maxima_are_those_of_the_theorem() -> None:
    """Two graphs with n = 2 maxima together, of at most m = 6 elements: (n (n - 1) / 2 + n**2) m + n."""
    difference = bounds(program(lambda x: x.amax(-1), (1, 6)), program(lambda x: x.amax(-1) * 2, (1, 6)))
    assert [(function.name, function.pairs) for function in difference.functions] == [("max", (1 + 4) * 6 + 2)]


def test_maxima_are_elements_or_variables() -> None:
    """The maximum of equal elements is that element, with all it is made of."""
    noted, largest = magnitudes(program(lambda x, y: (x * x * x / (3 * y)).amax(-1), (2, 4), (2, 4)))
    assert largest.numerator.degree == 3
    assert largest.denominator.degree == 1
    assert largest.constant * 2**largest.denominator.bits >= 3
    assert noted.functions["max"].argument.numerator.degree == 3
    _, exponentials = magnitudes(program(lambda x: x.exp().amax(-1), (2, 4)))
    assert exponentials.numerator.exponentials == 1


def test_elements_of_maxima_are_followed_through_operators_and_roots() -> None:
    for function in (lambda x: x + 1, lambda x: x * x.sqrt(), lambda x: x.sqrt() * x.sqrt()):
        noted, _ = magnitudes(program(lambda x, function=function: function(x.amax(-1)).amax(-1), (3, 4)))
        assert noted.functions["max"].arguments == 12
    noted, _ = magnitudes(program(lambda x: x.amax(-1).silu().amax(-1), (3, 4)))
    assert noted.functions["max"].arguments == 4


def test_no_set_has_more_elements_than_there_are() -> None:
    def doubled(x: ProgramTensor) -> ProgramTensor:
        for _ in range(64):
            x = x.reshape(-1, 1).repeat(1, 2).amax(-1)
        return x

    noted, _ = magnitudes(program(doubled, (3,)))
    assert noted.functions["max"].arguments <= 64 * 6


def test_roots_are_taken_of_factors() -> None:
    noted, _ = magnitudes(program(lambda x, y: ((x + 1) * (y + 1) / 12).sqrt(), (1,), (1,)))
    assert noted.functions["sqrt"].count == 2
    assert noted.functions["sqrt"].argument.numerator.degree == 1
    assert noted.root_primes == {2, 3}


def test_long_loops_do_not_blow_up_the_degree() -> None:
    loop = 40
    kernel = GraphBuilder(Level.KERNEL)
    x, y = (kernel.input(name, (loop,), FP32) for name in "xy")
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=loop)
    quotient = block.add("div", *(block.iterator(number, kernel.tensor(x), (None,), 0) for number in (0, 1)))
    saved = block.add("output_saver", block.add("accumulate", quotient, combine="sum"), omap=(0,))
    tiled = kernel.build(kernel.graph_defined(block.build([saved]), [x, y]))
    whole = program(lambda x, y: (x / y).sum(0, keepdim=True), (loop,), (loop,))
    exact = bounds(whole, whole).output.degree
    assert exact == 2 * loop
    assert exact <= bounds(tiled, tiled).output.degree <= 4 * exact


RATIONAL = Terms(degree=1000, bits=3000)
EXPONENTIAL = Terms(degree=3, bits=30, terms=10**6, exponent_degree=2, exponent_bits=20)


@pytest.mark.parametrize("output", [RATIONAL, EXPONENTIAL])
def test_more_rounds_and_larger_errors_are_monotone(output: Terms) -> None:
    difference = Difference(output, (), FieldFamily(38), 1)
    errors = [difference.error_bound(rounds) for rounds in range(1, 20)]
    assert all(later < earlier for earlier, later in itertools.pairwise(errors) if earlier < 1)
    wanted = difference.rounds_for(2**-40)
    assert wanted is not None
    assert difference.error_bound(wanted) <= 2**-40 < difference.error_bound(wanted - 1)


def test_every_quantity_counts() -> None:
    family = FieldFamily(38)
    error = Difference(EXPONENTIAL, (), family, 1).error_per_draw
    for name in ("degree", "bits", "terms", "exponent_degree", "exponent_bits"):
        larger = replace(EXPONENTIAL, **{name: 100 * getattr(EXPONENTIAL, name)})
        assert Difference(larger, (), family, 1).error_per_draw > error, name
    assert Difference(EXPONENTIAL, (), family, 4).error_per_draw > error
    assert Difference(EXPONENTIAL, (Function("silu", 10**6, RATIONAL),), family, 1).error_per_draw > error


def test_rounds_that_are_alike_are_misled_by_one_pair() -> None:
    """Of many pairs each test may be misled by another, unless it is the same one in all of them."""
    of_each = Terms(degree=1, bits=7, terms=100, exponent_degree=1, exponent_bits=2)
    functions = (Function("silu", 10**6, of_each),)
    each, alike = (Difference(EXPONENTIAL, functions, FieldFamily(33), 1, None, alike) for alike in (False, True))
    assert each.error_bound(20) == 1.0
    output, one = (Difference(terms, (), FieldFamily(33), 1).error_per_draw for terms in (EXPONENTIAL, of_each))
    assert alike.error_bound(20) == pytest.approx(math.comb(24, 4) * (output**20 + 10**6 * one**20))
    assert alike.error_bound(21) < alike.error_bound(20)


def test_hopeless_sizes_give_no_bound_instead_of_a_wrong_one() -> None:
    for hopeless in (Terms(10**400, 10**400), replace(EXPONENTIAL, terms=1 << 50), replace(EXPONENTIAL, bits=10**9)):
        difference = Difference(hopeless, (), FieldFamily(38), 1)
        assert difference.error_per_draw == 1.0
        assert difference.rounds_for(2**-40) is None


def test_the_papers_bound_is_above_one_where_ours_is_not() -> None:
    difference = bounds(attention(keys=64), attention(keys=64))
    assert difference.error_per_draw < 1 < difference.theorem_2()


def test_constants_without_exact_roots_in_any_family_have_variables_for_roots() -> None:
    graph = program(lambda x: x * Scalar.parse("sqrt(3000009/1000033)"), (2,))
    difference = difference_of(graph, graph)
    assert difference.root_variables == (1000003, 1000033)
    assert difference.output.degree == 3
    assert difference.family.modulus == 24


def test_operators_outside_the_theory_are_found_at_every_level() -> None:
    assert beyond_rational(rmsnorm()) == {"sqrt"}
    assert beyond_rational(fused_rmsnorm(squares="max")) == {"sqrt", "max"}
    assert beyond_rational(attention()) == {"exp"}
    assert beyond_rational(online_attention()) == {"exp", "max", "accumulate_rescaled"}
    assert beyond_rational(program(lambda x: x * Scalar.parse("sqrt(2)"), (2,))) == {"sqrt"}
    assert beyond_rational(program(lambda x: x / x.sum(0), (2,))) == frozenset()


def test_sparse_polynomials_vanish_at_no_more_roots_of_unity_than_their_norms_allow() -> None:
    """Step (iii) of the theorem's proof, counted out: pairs (p, omega) at which a polynomial of degree below q vanishes."""
    q, smallest = 31, 1 << 9
    primes = [p for p in range(q + 1, 20000, q) if is_prime(p) and p > smallest]
    powers = []
    for p in primes:
        omega = next(root for root in (pow(base, (p - 1) // q, p) for base in range(2, p)) if root != 1)
        roots = [pow(omega, exponent, p) for exponent in range(1, q)]
        powers.append(np.array([[pow(root, exponent, p) for exponent in range(q)] for root in roots]))
    rng = np.random.default_rng(0)
    most, vanished = 0.0, 0
    for _ in range(300):
        polynomial = np.zeros(q, np.int64)
        polynomial[rng.choice(q, 5, replace=False)] = rng.integers(-20, 21, 5)
        if not polynomial.any():
            continue
        found = sum(int(np.count_nonzero(table @ polynomial % p == 0)) for p, table in zip(primes, powers, strict=True))
        allowed = (q - 1) * math.log2(np.abs(polynomial).sum()) / math.log2(smallest)
        assert found <= allowed
        most, vanished = max(most, found / allowed), vanished + found
    assert vanished > 100
    assert most > 0.1, "the bound is within reach"


def test_kernels_for_all_keys_of_gqa_have_a_bound() -> None:
    """At full size, maxima of parts of rows and their least number leave enough fields: 10 tests, as for the program."""
    torch = pytest.importorskip("torch")
    workload = WORKLOADS["gqa"]
    graph = trace(
        workload.function(), [torch.empty(shape, dtype=torch.float16) for shape in workload.shapes(size="full").values()]
    ).graph
    own = shared_slice(graph, graph)
    rounds = bounds(own.left, own.right).rounds_for(2**-40)
    result = search(graph, device_for("cuda:sm_90"), budget=20)
    candidates = [candidate.graph for candidate in result.candidates[:4]]
    assert any("least=lowest" in str(candidate) for candidate in candidates)
    for candidate in candidates:
        sliced = shared_slice(graph, candidate)
        difference = difference_of(sliced.left, sliced.right)
        assert difference is not None
        assert difference.rounds_for(2**-40) == rounds == 10


def test_the_longer_evaluation_takes_the_more_fields_are_listed_for_fewer_tests() -> None:
    """Slices of a batch do not change what may be missed in a draw, but how long one takes."""

    def softmax(batch: int) -> Difference:
        program = Program()
        x = program.input("x", (batch, 512))
        program.output(x.softmax(-1))
        return difference_of(program.graph, program.graph)

    small, large = softmax(1), softmax(4096)
    assert small.output == large.output
    assert large.family.q_bits < small.family.q_bits
    rounds = [each.rounds_for(2**-40) for each in (large, small)]
    assert rounds[0] is not None
    assert rounds[1] is not None
    assert rounds[0] < rounds[1]
