"""Normal forms: what the axioms identify, what they keep apart, and the bookkeeping around them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.algebra import Algebra, Expr, ExpressionTooLarge

from .rewriting import Tree, build, closure, nodes, rewrites, terms_of_size, trees


@pytest.fixture
def algebra() -> Algebra:
    return Algebra()


def test_axioms_that_relate_reductions_products_and_quotients(algebra: Algebra) -> None:
    x, y, z = map(algebra.variable, "xyz")
    assert algebra.mul(x, algebra.add(y, z)) == algebra.add(algebra.mul(z, x), algebra.mul(y, x))
    assert algebra.div(algebra.div(x, y), z) == algebra.div(x, algebra.mul(z, y))
    assert algebra.mul(algebra.div(x, y), z) == algebra.div(algebra.mul(z, x), y)
    assert algebra.sum(6, x) == algebra.sum(2, algebra.sum(3, x))
    assert algebra.sum(1, x) == x
    assert algebra.mul(algebra.sum(2, x), algebra.sum(3, y)) == algebra.sum(6, algebra.mul(x, y))
    assert algebra.mul(algebra.exp(x), algebra.exp(y)) == algebra.exp(algebra.add(y, x))
    assert algebra.mul(algebra.sqrt(x), algebra.sqrt(y)) == algebra.sqrt(algebra.mul(y, x))
    assert algebra.sub(x, y) == algebra.add(x, algebra.mul(algebra.constant("-1"), y))


def test_nothing_else_is_identified(algebra: Algebra) -> None:
    x, y, z = map(algebra.variable, "xyz")
    assert algebra.sum(2, x) != algebra.add(x, x)
    assert algebra.mul(algebra.sqrt(x), algebra.sqrt(x)) != x
    assert algebra.div(algebra.mul(x, y), y) != x
    assert algebra.div(y, algebra.div(x, z)) != algebra.div(algebra.mul(y, z), x)
    assert algebra.div(x, algebra.sum(2, y)) != algebra.sum(2, algebra.div(x, y))
    assert algebra.exp(algebra.sum(2, x)) != algebra.sum(2, algebra.exp(x))
    assert algebra.opaque("f", x, y) != algebra.opaque("f", y, x)
    assert algebra.opaque("f", x) != algebra.opaque("g", x)
    assert algebra.constant("2") != algebra.variable("2")
    assert algebra.sub(x, x) != algebra.sub(y, y)


def test_the_primes_of_atoms_do_not_mix_with_factors_of_reductions(algebra: Algebra) -> None:
    x, y = algebra.variable("x"), algebra.variable("y")
    assert algebra.sum(2, y) != algebra.sum(3, x)
    assert len({algebra.mul(algebra.variable(f"v{i}"), y) for i in range(200)}) == 200


def test_format_names_every_part(algebra: Algebra) -> None:
    x, w, d = algebra.variable("x"), algebra.variable("w"), algebra.constant("1/64")
    square = algebra.sum(64, algebra.mul(x, x))
    norm = algebra.div(algebra.sum(64, algebra.mul(x, w)), algebra.sqrt(algebra.mul(d, square)))
    assert algebra.format(norm) == "sum(64, x*w)/(sqrt(sum(64, x*x*(1/64))))"
    assert algebra.format(algebra.add(x, algebra.add(w, x))) == "2 x + w"
    assert algebra.format(algebra.opaque("silu", algebra.exp(x))) == "silu(exp(x))"


def test_expressions_beyond_the_limit_are_refused() -> None:
    algebra = Algebra(max_terms=8)
    power = algebra.add(algebra.variable("x"), algebra.variable("y"))
    for _ in range(6):
        power = algebra.mul(power, algebra.add(algebra.variable("x"), algebra.variable("y")))
    assert len(algebra.forms.terms[power]) == 8
    with pytest.raises(ExpressionTooLarge, match="more than 8 monomials"):
        algebra.mul(power, algebra.add(algebra.variable("x"), algebra.variable("y")))
    with pytest.raises(ExpressionTooLarge):
        algebra.div(algebra.div(algebra.variable("x"), power), power)


def test_products_end_when_the_time_is_over() -> None:
    algebra = Algebra()
    total = algebra.add(algebra.variable("x"), algebra.variable("y"))
    algebra.forms.deadline = 0.0
    with pytest.raises(ExpressionTooLarge, match="in time"):
        algebra.mul(total, total)
    algebra.forms.deadline = math.inf
    assert len(algebra.forms.terms[algebra.mul(total, total)]) == 3


@pytest.mark.parametrize("n", [0, -3])
def test_a_reduction_needs_elements(algebra: Algebra, n: int) -> None:
    with pytest.raises(ValueError, match="positive number of elements"):
        algebra.sum(n, algebra.variable("x"))


@settings(max_examples=300)
@given(trees(8))
def test_no_axiom_changes_the_normal_form(tree: Tree) -> None:
    algebra = Algebra()
    expected = build(algebra, tree)
    for changed in rewrites(tree, unit_reductions=True):
        assert build(algebra, changed) == expected


@given(trees(4), trees(4), st.sampled_from((2, 3, 6)))
def test_every_constructor_increases_the_size(left: Tree, right: Tree, n: int) -> None:
    algebra = Algebra()
    x, y = build(algebra, left), build(algebra, right)

    def grows(result: Expr, *args: Expr) -> bool:
        return all(algebra.size(result) > algebra.size(arg) > 0 for arg in args)

    for binary in (algebra.add, algebra.sub, algebra.mul, algebra.div):
        assert grows(binary(x, y), x, y)
    assert grows(algebra.opaque("pair", x, y), x, y)
    for unary in (algebra.exp, algebra.sqrt):
        assert grows(unary(x), x)
    assert grows(algebra.sum(n, x), x)


@given(trees(5), trees(3))
def test_exact_division_undoes_multiplication(left: Tree, right: Tree) -> None:
    algebra = Algebra()
    x, y = build(algebra, left), build(algebra, right)
    assert algebra.division.ratio(algebra.mul(x, y), y) == x
    assert algebra.division.difference(algebra.add(x, y), y) == x


def test_division_refuses_what_does_not_divide(algebra: Algebra) -> None:
    x, y, z, w = map(algebra.variable, "xyzw")
    ratio, difference = algebra.division.ratio, algebra.division.difference
    xz_xw, yz_yw = (algebra.mul(v, algebra.add(z, w)) for v in (x, y))
    assert ratio(xz_xw, algebra.add(x, x)) is None
    assert ratio(yz_yw, algebra.add(x, y)) is None
    assert ratio(algebra.add(xz_xw, yz_yw), algebra.add(x, y)) == algebra.add(z, w)
    assert ratio(algebra.sum(2, x), x) is None
    assert ratio(algebra.div(x, y), x) is None
    assert ratio(x, algebra.mul(x, y)) is None
    assert difference(x, y) is None
    assert difference(algebra.add(x, y), algebra.add(x, x)) is None
    assert difference(algebra.add(x, y), algebra.add(x, z)) is None


@given(trees(3), trees(3), trees(3))
def test_monomials_that_differ_only_inside_stay_ordered(first: Tree, second: Tree, third: Tree) -> None:
    """The order behind interning and long division must be compatible with products, at any depth."""
    algebra = Algebra()
    u, v, w = (build(algebra, tree) for tree in (first, second, third))
    one = algebra.variable("x")
    wraps: tuple[Callable[[Expr], Expr], ...] = (
        lambda e: algebra.div(one, e),
        lambda e: algebra.mul(one, algebra.sqrt(e)),
        lambda e: algebra.mul(one, algebra.exp(e)),
    )
    terms = [wrap(e) for wrap in wraps for e in (u, v)]
    total = reduce(algebra.add, terms)
    for factor in (wrap(w) for wrap in wraps):
        product = algebra.mul(total, factor)
        assert product == reduce(algebra.add, (algebra.mul(term, factor) for term in reversed(terms)))
        assert algebra.division.ratio(product, total) == factor
    assert algebra.div(total, w) == reduce(algebra.add, (algebra.div(term, w) for term in terms))


def _joined(group: list[Tree], extra: int) -> bool:
    """Whether rewriting through terms with `extra` more nodes connects all of `group`."""
    reached = closure(group[0], max(map(nodes, group)) + extra, limit=3000)
    return all(tree in reached for tree in group)


def test_equal_normal_forms_of_all_small_terms_are_joined_by_axioms() -> None:
    """The converse of invariance, exhaustively: no two terms are identified without a chain of axioms."""
    algebra = Algebra()
    groups: dict[Expr, list[Tree]] = {}
    for size in range(1, 6):
        for tree in terms_of_size(size, ("x", "y"), (2,)):
            groups.setdefault(build(algebra, tree), []).append(tree)
    shared = [group for group in groups.values() if len(group) > 1]
    assert len(shared) > 100
    assert all(_joined(group, extra=0) or _joined(group, extra=2) for group in shared)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(trees(10))
def test_no_axiom_changes_the_normal_form_of_large_terms(tree: Tree) -> None:
    algebra = Algebra()
    expected = build(algebra, tree)
    for changed in rewrites(tree, unit_reductions=True):
        assert build(algebra, changed) == expected
