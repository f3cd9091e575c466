"""Equal programs pass, near misses fail, and what cannot be decided is not called equivalent."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import LARGE
from mugraph.errors import InvalidInput, UndefinedInField
from mugraph.ir import DType, Graph, GraphBuilder, Level, Scalar, Value
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program, ProgramTensor
from mugraph.verifier import by_random_tests, random_tests, recheck, verify_graphs
from mugraph.verifier.bounds import difference_of
from mugraph.verifier.semantics import Semantics
from mugraph.verifier.trials import Trials

from .graphs import (
    FP32,
    attention,
    fused_rmsnorm,
    linear_with_bias,
    online_attention,
    overlap,
    overlap_of_quotients,
    program,
    rmsnorm,
)

MATRIX, VECTOR = (4, 4), (4,)


def power(x: ProgramTensor, exponent: int) -> ProgramTensor:
    result = x
    for bit in bin(exponent)[3:]:
        result = result.square()
        if bit == "1":
            result = result * x
    return result


def scaled(number: int | float | Scalar) -> Graph:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", VECTOR, FP32)
    return kernel.build([kernel.add("mul", x, kernel.constant(number, FP32))])


def first_prime(seed: int) -> int:
    """The p of the first test that a seed draws for the graphs of another constant."""
    return by_random_tests(scaled(3), scaled(5), seed=seed).certificate.rounds[0].p


def two_outputs(*order: int) -> Graph:
    written = Program()
    x = written.input("x", MATRIX)
    outputs = [x.exp(), x.square()]
    written.output(*(outputs[number] for number in order))
    return written.graph


def concatenated_product() -> Graph:
    """(W || X) (Y || Z) in one operator."""
    kernel = GraphBuilder(Level.KERNEL)
    values = [kernel.input(name, MATRIX, FP32) for name in "wxyz"]
    return kernel.build([kernel.add("concat_matmul", *values)])


def tiled_product(k_of_x: int | None = 1, k_of_w: int | None = 0, omap: tuple[int, ...] = (0, 1)) -> Graph:
    """X W over a 2 x 2 grid with a loop over the inner dimension; other maps give graphs that compute something else."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", MATRIX, FP32), kernel.input("w", MATRIX, FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2, 2), loop=2)
    xs = block.iterator(0, kernel.tensor(x), (0, None), k_of_x)
    ws = block.iterator(1, kernel.tensor(w), (None, 1), k_of_w)
    total = block.add("accumulate", block.add("matmul", xs, ws), combine="sum")
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=omap)]), [x, w]))


Pair = Callable[[], tuple[Graph, Graph]]


def both(left: Callable[..., ProgramTensor], right: Callable[..., ProgramTensor], *shapes: tuple[int, ...]) -> Pair:
    return lambda: (program(left, *shapes), program(right, *shapes))


EQUAL: dict[str, Pair] = {
    "distributivity": both(lambda x, y, w: (x + y) @ w, lambda x, y, w: x @ w + y @ w, MATRIX, MATRIX, MATRIX),
    "associativity": both(lambda x, y, w: (x @ y) @ w, lambda x, y, w: x @ (y @ w), MATRIX, MATRIX, MATRIX),
    "division after the product": both(
        lambda x, w: (x / x.sum(-1, keepdim=True)) @ w, lambda x, w: (x @ w) / x.sum(-1, keepdim=True), MATRIX, MATRIX
    ),
    "transposed product": both(
        lambda x, y: (x @ y).transpose(0, 1), lambda x, y: y.transpose(0, 1) @ x.transpose(0, 1), MATRIX, MATRIX
    ),
    "roots of products": both(lambda x, y: (x * y).sqrt(), lambda x, y: x.sqrt() * y.sqrt(), VECTOR, VECTOR),
    "roots of quotients": both(lambda x, y: (x / (y * 4)).sqrt(), lambda x, y: x.sqrt() / y.sqrt() * 0.5, VECTOR, VECTOR),
    "roots of means": both(
        lambda x, w: x / ((x * x / 12).sum(-1, keepdim=True) * w).sqrt(),
        lambda x, w: x * Scalar.parse("sqrt(12)") / (x * x).sum(-1, keepdim=True).sqrt() / w.sqrt(),
        MATRIX,
        (4, 1),
    ),
    "sums of exponents": both(lambda x, y: (x + y).exp(), lambda x, y: x.exp() * y.exp(), VECTOR, VECTOR),
    "shifted softmax": both(
        lambda x, c: (x - c).exp() / (x - c).exp().sum(-1, keepdim=True),
        lambda x, c: x.exp() / x.exp().sum(-1, keepdim=True),
        MATRIX,
        (4, 1),
    ),
    "softmax with and without the maximum": both(
        lambda x: (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True),
        lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        MATRIX,
    ),
    "equal arguments of an opaque function": both(
        lambda x, y, w: ((x + y) @ w).silu(), lambda x, y, w: (x @ w + y @ w).silu(), MATRIX, MATRIX, MATRIX
    ),
    "concatenated product": lambda: (
        program(lambda w, x, y, z: w @ y + x @ z, MATRIX, MATRIX, MATRIX, MATRIX),
        concatenated_product(),
    ),
    "tiles": lambda: (program(lambda x, w: x @ w, MATRIX, MATRIX), tiled_product()),
    "square of an irrational constant": lambda: (
        program(lambda x: x * Scalar.parse("sqrt(1/128)") * Scalar.parse("sqrt(1/128)"), VECTOR),
        scaled(1 / 128),
    ),
    "casts": both(lambda x, w: (x.cast(DType.FP64) @ w.cast(DType.FP64)).cast(FP32), lambda x, w: x @ w, MATRIX, MATRIX),
    "fused RMSNorm": lambda: (rmsnorm(), fused_rmsnorm()),
    "RMSNorm by other tiles": lambda: (fused_rmsnorm(blocks=4, loop=2), fused_rmsnorm(blocks=1, loop=12)),
    "attention with rescaled accumulators": lambda: (attention(), online_attention(loop=4)),
    "squares of roots": both(
        lambda x, y: x.sqrt() * x.sqrt() + y / y.sqrt() / y.sqrt(), lambda x, y: x + 1 + 0 * y, (64,), (64,)
    ),
    "conjugate roots": both(lambda x, y: 1 / (x.sqrt() - y.sqrt()), lambda x, y: (x.sqrt() + y.sqrt()) / (x - y), VECTOR, VECTOR),
    "squares of roots in functions": both(
        lambda x, y: ((x * x + y).sqrt() * (x * x + y).sqrt() - y).exp().silu(), lambda x, y: (x * x).exp().silu(), VECTOR, VECTOR
    ),
    "maxima of maxima": both(
        lambda x: x.amax(-1), lambda x: x.reshape(4, 2, 2).amax(-1, keepdim=True).amax(1, keepdim=True).reshape(4), MATRIX
    ),
    "exponentials of exponentials": both(lambda x, y: (x * y).exp().exp(), lambda x, y: (y * x).exp().exp(), VECTOR, VECTOR),
    "two outputs": lambda: (two_outputs(0, 1), two_outputs(0, 1)),
}

DIFFERENT: dict[str, Pair] = {
    "swapped division": both(lambda x, y: x / y, lambda x, y: y / x, VECTOR, VECTOR),
    "swapped subtraction": both(lambda x, y: x - y, lambda x, y: y - x, VECTOR, VECTOR),
    "swapped factors": both(lambda x, y: x @ y, lambda x, y: y @ x, MATRIX, MATRIX),
    "swapped inputs": both(lambda x, y: x + 2 * y, lambda x, y: y + 2 * x, VECTOR, VECTOR),
    "transposed square input": both(lambda x, y: x @ y, lambda x, y: x @ y.transpose(0, 1), MATRIX, MATRIX),
    "sum over the other dimension": both(
        lambda x: x / x.sum(-1, keepdim=True), lambda x: x / x.sum(-1, keepdim=True).transpose(0, 1), MATRIX
    ),
    "sum instead of mean": both(lambda x: x.sum(-1), lambda x: x.mean(-1), MATRIX),
    "maximum instead of sum": both(lambda x: x.sum(-1), lambda x: x.amax(-1), MATRIX),
    "another opaque function": both(lambda x: x.silu(), lambda x: x.gelu(), VECTOR),
    "an opaque function left out": both(lambda x: x.relu(), lambda x: x, VECTOR),
    "roots of sums": both(lambda x, y: (x + y).sqrt(), lambda x, y: x.sqrt() + y.sqrt(), VECTOR, VECTOR),
    "a scaled exponent": both(lambda x: (2 * x).exp(), lambda x: x.exp() * 2, VECTOR),
    "x and x**227": both(lambda x: x, lambda x: power(x, 227), VECTOR),
    "1 and 228": lambda: (scaled(1), scaled(228)),
    "a constant off by one": lambda: (scaled(Scalar.parse("1/4096")), scaled(Scalar.parse("1/4097"))),
    "a constant off by the default prime": lambda: (scaled(3), scaled(3 + LARGE.p)),
    "a constant off by the first prime drawn": lambda: (scaled(3), scaled(3 + first_prime(seed=0))),
    "a rounded constant": lambda: (scaled(Scalar.parse("1/3")), scaled(Scalar.parse("333333333/1000000000"))),
    "swapped outputs": lambda: (two_outputs(0, 1), two_outputs(1, 0)),
    "a dropped scale": lambda: (rmsnorm(), fused_rmsnorm(scale=False)),
    "a wrong accumulator": lambda: (rmsnorm(), fused_rmsnorm(squares="max")),
    "blocks put in each other's place": lambda: (program(lambda x, w: x @ w, MATRIX, MATRIX), tiled_product(omap=(1, 0))),
}


DEFINED_APART: dict[str, Pair] = {
    "roots of opposite differences": both(lambda x, y: (x - y).sqrt(), lambda x, y: (y - x).sqrt(), VECTOR, VECTOR),
    "opposite roots of opposite differences": both(lambda x, y: (x - y).sqrt(), lambda x, y: (y - x).sqrt() * -1, VECTOR, VECTOR),
    "roots of opposite multiples": both(lambda x, y: (x * y * 3).sqrt(), lambda x, y: (x * y * -3).sqrt(), VECTOR, VECTOR),
}
"""Where one has a value, the other has none, but for inputs of which both are 0."""


@pytest.mark.parametrize("name", DEFINED_APART)
@pytest.mark.parametrize("seed", [0, 1])
def test_programs_that_are_defined_at_other_inputs_are_not_called_equivalent(name: str, seed: int) -> None:
    verdict = verify_graphs(*DEFINED_APART[name](), seed=seed)
    assert verdict.outcome == "undecided"
    assert not verdict.certificate.agreed


@pytest.mark.parametrize("name", EQUAL)
def test_equal_programs_pass(name: str) -> None:
    left, right = EQUAL[name]()
    verdict = verify_graphs(left, right)
    assert verdict.outcome == "equivalent", verdict.reason
    assert verdict.equivalent is True
    assert verdict.counterexample is None
    assert verdict.certificate.accepted


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("seed", [0, 1])
def test_near_misses_fail(name: str, seed: int) -> None:
    left, right = DIFFERENT[name]()
    verdict = verify_graphs(left, right, seed=seed)
    assert verdict.outcome == "different"
    assert verdict.equivalent is False
    assert verdict.counterexample is not None
    assert not verdict.certificate.accepted
    assert verdict.error_bound is None


def test_a_counterexample_can_be_checked_by_hand() -> None:
    left, right = rmsnorm(), fused_rmsnorm(scale=False)
    found = verify_graphs(left, right).counterexample
    assert found is not None
    assert found.inputs is not None
    assert found.index is not None
    values = [evaluate(graph, found.inputs, FloatArithmetic())[found.output or 0][found.index] for graph in (left, right)]
    assert (found.left, found.right) == pytest.approx(values)
    assert found.left != pytest.approx(found.right)
    assert str(list(found.index)) in str(found)


def test_the_first_differing_output_is_named() -> None:
    written = [Program(), Program()]
    for number, prog in enumerate(written):
        x = prog.input("x", VECTOR)
        prog.output(x + 1, x * 2 if number else x * 3)
    found = verify_graphs(written[0].graph, written[1].graph).counterexample
    assert found is not None
    assert found.output == 1


@pytest.mark.parametrize(
    ("left", "right", "complaint"),
    [
        (program(lambda x: x, (4,)), program(lambda x, y: x + y, (4,), (4,)), "1 inputs, the other 2"),
        (program(lambda x: x.sum(0), (4, 3)), program(lambda x: x.sum(0), (5, 3)), "input 0 has shape [4, 3]"),
        (program(lambda x: x, (4, 3)), program(lambda x: x.transpose(0, 1), (4, 3)), "output 0 has shape"),
        (two_outputs(0), two_outputs(0, 1), "1 outputs, the other 2"),
    ],
)
def test_different_signatures_are_different_programs(left: Graph, right: Graph, complaint: str) -> None:
    verdict = verify_graphs(left, right)
    assert verdict.outcome == "different"
    assert complaint in str(verdict.counterexample)


def test_rational_programs_get_a_bound_below_what_was_asked() -> None:
    for max_error in (2**-20, 2**-40, 2**-200):
        verdict = verify_graphs(*EQUAL["division after the product"](), max_error=max_error)
        assert verdict.error_bound is not None
        assert 0 < verdict.error_bound <= max_error
    assert verdict.reason == ""


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 6, 12]), st.integers(1, 5), st.booleans())
def test_tilings_never_matter_and_dropped_scales_always_do(blocks: int, loop: int, rows: int, scale: bool) -> None:
    verdict = verify_graphs(rmsnorm(rows), fused_rmsnorm(rows, blocks=blocks, loop=loop, scale=scale))
    assert verdict.equivalent == scale


def test_operands_brought_past_a_loop_are_not_maxima() -> None:
    verdict = verify_graphs(program(lambda x, w, b: x @ w + b, (3, 40), (40, 4), (4,)), linear_with_bias(loop=20))
    assert verdict.error_bound is not None
    assert verdict.equivalent


@pytest.mark.parametrize(
    ("name", "culprit"),
    [
        ("fused RMSNorm", "sqrt"),
        ("roots of quotients", "sqrt"),
        ("roots of means", "sqrt"),
        ("squares of roots", "sqrt"),
        ("maxima of maxima", "max"),
        ("conjugate roots", "sqrt"),
        ("squares of roots in functions", "sqrt"),
        ("shifted softmax", "exp"),
        ("attention with rescaled accumulators", "max"),
        ("equal arguments of an opaque function", "silu"),
        ("softmax with and without the maximum", "max"),
        ("exponentials of exponentials", "exp"),
    ],
)
def test_bounds_hold_whatever_function_stands_outside_the_theorem(name: str, culprit: str) -> None:
    certificate = verify_graphs(*EQUAL[name]()).certificate
    assert certificate.error_bound is not None
    assert certificate.error_bound <= 2**-40
    assert culprit in dict(certificate.semantics)


def test_many_exponentials_have_a_bound_where_both_take_the_same_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 rows, each with a sum of its own: products of all of them have more terms than any field tells apart.

    A kernel that holds all of it has no pieces.
    """
    monkeypatch.setattr(random_tests, "in_pieces", lambda *asked: None)
    left, right = (program(of, (2000, 5), (2000, 5)) for of in (overlap, overlap_of_quotients))
    assert difference_of(left, right).rounds_for(2**-40) is None
    verdict = verify_graphs(left, right)
    assert verdict.equivalent
    assert verdict.error_bound is not None
    assert verdict.error_bound <= 2**-40
    assert dict(verdict.certificate.semantics)["exp"].startswith("a random function")
    for wrong in (
        lambda x, y: overlap_of_quotients(x, y) + 1e-9 * x.sum(),
        lambda x, y: overlap_of_quotients(x, y * (1 + 1e-9)),
        lambda x, y: overlap_of_quotients(x * (1 + 1e-9), y),
    ):
        assert not verify_graphs(left, program(wrong, (2000, 5), (2000, 5))).equivalent


def test_certificates_say_that_rescaled_sums_are_what_their_definition_says() -> None:
    """Each of them over a loop of its own; under no semantics are they functions like others."""

    def averages(divided_first: bool) -> Graph:
        kernel = GraphBuilder(Level.KERNEL)
        rows = [kernel.input(f"x{index}", (1, 64), FP32) for index in range(7)]
        block = GraphBuilder(Level.BLOCK, grid=(1,), loop=4)
        tiles = [block.iterator(index, kernel.tensor(row), (0,), 1) for index, row in enumerate(rows)]
        above: list[Value] = []
        below: list[Value] = []
        for tile in tiles[1:]:
            top = block.add("max", tile, dim=1, size=16)
            weights = block.add("exp", block.add("sub", tile, top))
            for sums, terms in ((above, block.add("mul", weights, tiles[0])), (below, weights)):
                sums.append(block.add("accumulate_rescaled", block.add("sum", terms, dim=1, size=16), top))
        product = functools.partial(functools.reduce, functools.partial(block.add, "mul"))
        if divided_first:
            result = product([block.add("div", *pair) for pair in zip(above, below, strict=True)])
        else:
            result = block.add("div", product(above), product(below))
        return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), rows))

    verdict = by_random_tests(averages(divided_first=True), averages(divided_first=False))
    assert verdict.equivalent
    meant = dict(verdict.certificate.semantics)
    assert meant["exp"].startswith("a random function")
    assert meant["accumulate_rescaled"] == "a sum of products with exp, as the operator is defined"


UNBOUNDED: dict[str, tuple[Pair, str]] = {
    "both laws of roots": (
        both(lambda x, y: (x * y).sqrt() * x.sqrt(), lambda x, y: y.sqrt() * x, VECTOR, VECTOR),
        "take the roots of products in the same way",
    ),
    "roots of roots": (
        both(lambda x: x.sqrt().sqrt() * x.sqrt().sqrt(), lambda x: x.sqrt(), VECTOR),
        "a root of what is no square",
    ),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_what_is_equal_by_other_laws_says_why_no_bound_is_stated(name: str) -> None:
    pair, why = UNBOUNDED[name]
    verdict = verify_graphs(*pair())
    assert verdict.outcome == "undecided"
    assert verdict.certificate.agreed
    assert verdict.error_bound is None
    assert verdict.certificate.difference is None
    assert re.match(r"undecided: agrees in \d\d tests, for which no bound can be stated: ", verdict.reason)
    assert why in verdict.reason
    assert "no error is claimed" in verdict.certificate.claim
    assert "sqrt" in dict(verdict.certificate.semantics)


def test_more_radicands_than_choices_leave_the_question_open() -> None:
    left = program(lambda x: (x.sqrt() * x.sqrt()).amax(-1), (2, 40))
    verdict = verify_graphs(left, program(lambda x: x.amax(-1), (2, 40)))
    assert verdict.outcome == "undecided"
    assert "neither float64 nor high precision shows a difference" in verdict.reason
    assert "roots are taken of more than 4 different numbers" in verdict.reason


def test_another_size_of_a_parallel_axis_is_not_tested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate is the one that tests would give, as repeating them shows."""
    verify_graphs(rmsnorm(4, 24, 8), fused_rmsnorm(4, 24, 8, loop=4))

    def test(trials: Trials) -> None:
        raise AssertionError("nothing is to be tested")

    with monkeypatch.context() as patched:
        patched.setattr(Trials, "test", test)
        larger = rmsnorm(40, 24, 80), fused_rmsnorm(40, 24, 80, blocks=10, loop=4)
        verdict = verify_graphs(*larger)
        with pytest.raises(AssertionError, match="nothing is to be tested"):
            verify_graphs(rmsnorm(4, 48, 8), fused_rmsnorm(4, 48, 8, loop=4))
        with pytest.raises(AssertionError, match="nothing is to be tested"):
            verify_graphs(*larger, seed=1)
        with pytest.raises(AssertionError, match="nothing is to be tested"):
            recheck(verdict.certificate, *larger)
    assert verdict.equivalent
    recheck(verdict.certificate, *larger)


def test_a_budget_that_ends_early_leaves_the_question_open() -> None:
    verdict = verify_graphs(*EQUAL["distributivity"](), max_error=2**-200, budget=0)
    assert not verdict.equivalent
    assert verdict.counterexample is None
    assert "budget" in verdict.reason
    assert verdict.error_bound is not None
    assert verdict.error_bound > 2**-200


def test_programs_without_a_meaning_in_the_field_stay_undecided() -> None:
    graph, other = (program(lambda x, factor=factor: x * factor / (x - x), VECTOR) for factor in (2, 3))
    verdict = verify_graphs(graph, other)
    assert verdict.outcome == "undecided"
    assert verdict.counterexample is None
    assert verdict.reason.startswith("undecided")


def test_laws_that_fields_do_not_model_are_named_as_such() -> None:
    left, right = program(lambda x: (-x).tanh(), (64,)), program(lambda x: -x.tanh(), (64,))
    verdict = verify_graphs(left, right)
    assert verdict.outcome == "undecided"
    assert verdict.equivalent is None
    assert "neither float64 nor high precision shows a difference" in verdict.reason


def test_fresh_seeds_are_drawn_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields that are known beforehand could be what the programs differ by."""
    monkeypatch.undo()
    pair = EQUAL["distributivity"]()
    first, other = (by_random_tests(*pair, max_error=2**-bits).certificate for bits in (40, 41))
    assert first.seed != other.seed
    recheck(first, *pair)
    recheck(other, *pair)


def test_a_constant_made_of_the_primes_of_a_seed_is_no_zero_under_it() -> None:
    """What a seed draws depends on the graphs, so that a graph made of what it drew for others is told apart."""
    constant = 1
    for _ in range(4):
        left, right = program(lambda x: x, (4,)), program(lambda x, c=constant: x + c, (4,))
        verdict = verify_graphs(left, right, seed=0)
        assert verdict.outcome == "different"
        (made,) = by_random_tests(left, right, seed=0).certificate.rounds
        assert constant % made.p
        constant *= made.p


def weights(alike: bool, columns: int = 64) -> Graph:
    """SiLU of a softmax, times a matrix; unless `alike`, the sum has another term."""
    kernel = Program()
    x, w = kernel.input("x", (2, columns)), kernel.input("w", (columns, 2))
    above = (x * 2).exp() if alike else (x + x).exp() + 1
    kernel.output((above / above.sum(-1, keepdim=True)).silu() @ w)
    return kernel.graph


def test_functions_of_fractions_of_exponentials_have_a_bound() -> None:
    kernel = Program()
    x, w = kernel.input("x", (2, 64)), kernel.input("w", (64, 2))
    above = (x - x.amax(-1, keepdim=True)).exp().square()
    kernel.output((above / above.sum(-1, keepdim=True)).silu() @ w)
    verdict = by_random_tests(weights(alike=True), kernel.graph)
    assert verdict.equivalent
    assert verdict.certificate.difference is not None
    assert verdict.certificate.difference.alike
    recheck(verdict.certificate, weights(alike=True), kernel.graph)
    assert verify_graphs(weights(alike=True), weights(alike=False)).outcome == "different"


def test_a_draw_that_tells_other_arguments_apart_is_no_test() -> None:
    trials = Trials(weights(True), weights(True), Semantics.FREE, FieldFamily(33), 0, count=True, alike=True)
    assert trials.test() is None
    assert trials.pattern is not None
    assert trials.test() is None
    trials.pattern = ("another",)
    with pytest.raises(UndefinedInField, match="coincide in one of the draws"):
        trials.test()
    assert len(trials.rounds) == 2


def test_seeds_change_the_draws_and_repeat_them() -> None:
    pair = EQUAL["tiles"]()
    first, again, other = (verify_graphs(*pair, seed=seed).certificate.rounds for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_max_error_must_be_a_probability() -> None:
    with pytest.raises(InvalidInput, match="max_error"):
        verify_graphs(*EQUAL["tiles"](), max_error=0)
