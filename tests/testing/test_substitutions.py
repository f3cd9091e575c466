"""Substitutions keep the meaning, all of them are used, and what they lead to is found to its end and costed as one would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from mugraph.devices import device_for
from mugraph.errors import UnsupportedOperator
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program
from mugraph.search import search
from mugraph.testing.forms import CASES, Case
from mugraph.testing.substitution_costs import Costs, as_graph, best_rewriting, kernels_of
from mugraph.testing.substitutions import RULES, RewriteSaturation, RewriteTerms, Rule, State, state_of
from mugraph.verifier import verify_graphs

DEVICE = device_for("cuda:sm_90")
SMALL = 512
"""What sizes of programs are divided by: 8, 2 and 1 are left."""
MOST = 60


def saturation(case: Case, divisor: int = SMALL, limit: int = 10_000, rules: tuple[Rule, ...] = RULES) -> RewriteSaturation:
    terms = RewriteTerms()
    return RewriteSaturation(terms, state_of(case.graph(case.written, divisor), terms), lambda state: 0.0, limit, rules)


def graph_of(case: Case, terms: RewriteTerms, state: State, divisor: int = SMALL) -> Graph:
    shapes = [tuple(-(-size // divisor) for size in shape) for shape in case.shapes]
    return as_graph(terms, state, shapes, case.dtype)


def agree(case: Case, rules: tuple[Rule, ...] = RULES) -> Iterator[bool]:
    """Whether each program that rules lead to computes what the written one does, in float64."""
    program = case.graph(case.written, SMALL)
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.5, 1.5, node.output.shape) for node in program.inputs()]
    expected = evaluate(program, inputs, FloatArithmetic())
    found = saturation(case, limit=MOST, rules=rules)
    for _, state in found.states():
        results = evaluate(graph_of(case, found.terms, state), inputs, FloatArithmetic())
        yield all(
            np.allclose(np.reshape(result, np.shape(wanted)), wanted, rtol=1e-9)
            for result, wanted in zip(results, expected, strict=True)
        )


@pytest.mark.parametrize("name", CASES)
def test_every_program_computes_what_the_first_one_does(name: str) -> None:
    assert all(agree(CASES[name]))


def test_a_rule_that_is_wrong_would_be_seen() -> None:
    def exchanged(terms: RewriteTerms, number: int) -> Iterator[int]:
        left, right = terms[number].operands if terms[number].op == "matmul" else (number, number)
        if terms.shape(left) == terms.shape(right) and left != right:
            yield terms.matmul(right, left)

    assert not all(agree(CASES["two products"], (exchanged,)))


@pytest.mark.parametrize(
    "name", ["two pairs of products", "a centred product", "a chain with a scale inside", "gates before and after"]
)
def test_every_program_is_proved_equal_to_the_first_one(name: str) -> None:
    case = CASES[name]
    program = case.graph(case.written, SMALL)
    found = saturation(case, limit=12)
    for _, state in found.states():
        assert verify_graphs(program, graph_of(case, found.terms, state)).equivalent


def test_every_rule_is_used_by_some_program() -> None:
    used = Counter[str]()
    for case in CASES.values():
        found = saturation(case, limit=MOST)
        for _, state in found.states():
            for number in found.terms.reachable(state):
                used.update(rule.__name__ for rule in RULES if any(new != number for new in rule(found.terms, number)))
    assert used.keys() == {rule.__name__ for rule in RULES}


def test_a_chain_of_four_products_has_five_forms() -> None:
    """The Catalan number of its length: all of them, each once."""
    found = saturation(CASES["a chain of four"])
    states = [state for _, state in found.states()]
    assert len(states) == len(set(states)) == 5
    assert found.saturated


def test_what_is_cut_short_says_so() -> None:
    found = saturation(CASES["two pairs of products"], limit=3)
    assert len(list(found.states())) == 3
    assert not found.saturated


def test_transposes_are_pushed_to_the_inputs() -> None:
    terms = RewriteTerms()
    x, y = terms.made("input", (), 0, (2, 3)), terms.made("input", (), 1, (3, 4))
    product = terms.sum(terms.unary("exp", terms.matmul(x, y)), 1)
    turned = terms.transposed(product)
    assert terms.formula(turned) == "sum0(exp((x1.T @ x0.T)))"
    assert terms.shape(turned) == (1, 2)
    assert terms.transposed(turned) == product


def test_sums_and_products_do_not_know_the_order_of_their_operands() -> None:
    terms = RewriteTerms()
    x, y, z = (terms.made("input", (), number, (2, 2)) for number in range(3))
    assert terms.add(x, terms.add(y, z)) == terms.add(terms.add(z, x), y)
    assert terms.mul(terms.constant(1), x) == x


def test_operators_without_a_rule_are_refused() -> None:
    program = Program()
    program.output(program.input("x", (2, 4, 8)).sum(-1))
    with pytest.raises(UnsupportedOperator, match="no matrix"):
        state_of(program.graph, RewriteTerms())
    program = Program()
    program.output(program.input("x", (4, 8)).amax(-1, keepdim=True))
    with pytest.raises(UnsupportedOperator, match="max"):
        state_of(program.graph, RewriteTerms())


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_waits_for_itself(name: str) -> None:
    found = saturation(CASES[name], limit=MOST)
    terms = found.terms
    for _, state in found.states():
        groups = kernels_of(terms, state)
        of = {number: place for place, group in enumerate(groups) for number in group}
        assert sorted(of) == sorted(n for n in terms.reachable(state) if terms[n].op not in ("input", "constant", "transpose"))
        reads = {
            place: {of[operand] for number in group for operand in terms[number].operands if operand in of} - {place}
            for place, group in enumerate(groups)
        }
        while reads:
            ready = [place for place, needed in reads.items() if not needed & reads.keys()]
            assert ready
            for place in ready:
                del reads[place]
        products = [group for group in groups if any(terms[number].op in ("matmul", "concat_matmul") for number in group)]
        assert all(len(group) == 1 for group in products)


def test_elementwise_operators_are_fused_and_products_are_not() -> None:
    case = CASES["products under a function"]
    terms = RewriteTerms()
    state = state_of(case.graph(case.written), terms)
    assert sorted(map(len, kernels_of(terms, state))) == [1, 1, 2]


@pytest.mark.parametrize("name", ["two products", "a product that is subtracted", "a centred product"])
def test_no_program_takes_less_than_its_bound(name: str) -> None:
    case = CASES[name]
    terms = RewriteTerms()
    start = state_of(case.graph(case.written), terms)
    costs = Costs(terms, DEVICE, case.shapes, case.dtype)
    for bound, state in RewriteSaturation(terms, start, costs.bound, 8).states():
        assert bound <= costs.seconds(state)


def test_products_with_one_left_factor_are_one_where_that_is_cheaper() -> None:
    """Copying narrow right factors side by side costs little beside reading a large left factor once less."""
    program = Program()
    x, a, b = (program.input(name, shape) for name, shape in (("x", (65536, 4096)), ("a", (4096, 16)), ("b", (4096, 16))))
    program.output(x @ a, x @ b)
    terms = RewriteTerms()
    state = state_of(program.graph, terms)
    costs = Costs(terms, DEVICE, [(65536, 4096), (4096, 16), (4096, 16)], program.graph.output_tensors[0].dtype)
    assert costs.seconds(state) < 2 * costs.product(65536, 16, 4096)


@pytest.mark.parametrize("name", ["two products", "a centred product", "a residual before a thin product", "linear attention"])
def test_the_search_is_no_worse_than_rewriting(name: str) -> None:
    graph = CASES[name].graph(CASES[name].written)
    rival = best_rewriting(graph, DEVICE, 1000)
    assert rival.saturated
    assert min(candidate.cost for candidate in search(graph, DEVICE).candidates) <= rival.seconds * (1 + 1e-9)


def test_a_product_with_a_row_of_sums_is_as_cheap_as_by_a_library_kernel() -> None:
    """A vector has no columns: its product is a contraction all the same, and was only found as elements and their sum."""
    case = CASES["the sum of a product's rows"]
    found = search(case.graph(case.written), DEVICE).candidates
    rival = best_rewriting(case.graph(case.written), DEVICE, 1000)
    assert min(candidate.cost for candidate in found) <= rival.seconds * (1 + 1e-9)
    small = search(case.graph(case.written, 4), DEVICE).candidates
    assert all(verify_graphs(case.graph(case.written, 4), candidate.graph).equivalent for candidate in small)
