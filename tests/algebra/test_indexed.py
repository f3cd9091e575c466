"""Expressions with axes: what their sums bind, against examples, the true axioms, and every way a term can be part of another."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.algebra import Expr, IndexedAlgebra, IndexedOracle, Meeting

ROW, COLUMN, BOTH = 1, 2, 3
PRIMES = (2, 3)
S_ROW, S_COLUMN = PRIMES

Tree = str | tuple["str | int | Tree", ...]
"""An input, or an operator and its operands; a sum has its factor first."""
INPUTS = {"x": BOTH, "y": BOTH, "r": ROW, "c": COLUMN, "k": 0}


def fresh() -> IndexedAlgebra:
    return IndexedAlgebra(PRIMES)


def built(algebra: IndexedAlgebra, tree: Tree) -> Expr:
    if isinstance(tree, str):
        return algebra.variable(tree, INPUTS[tree])
    op, *operands = tree
    n = operands.pop(0) if op in ("sum", "opaque:max") else 1
    assert isinstance(op, str)
    assert isinstance(n, int)
    return algebra.apply(op, tuple(built(algebra, operand) for operand in operands if not isinstance(operand, int)), n)


SCORES: Tree = ("sum", S_ROW, ("mul", "x", "r"))
NORM: Tree = ("div", "x", ("sqrt", ("sum", S_ROW, ("mul", "x", "x"))))
SOFTMAX: Tree = ("div", ("exp", "x"), ("sum", S_ROW, ("exp", "x")))

# (E, E_O, whether E can become part of E_O)
EXAMPLES: tuple[tuple[Tree, Tree, bool], ...] = (
    ("x", SCORES, True),
    (("mul", "x", "r"), SCORES, True),
    # each of two factors that vary along the axis is summed with the other, or not at all
    (("mul", ("sum", S_ROW, "x"), "r"), SCORES, False),
    (("sum", S_ROW, "x"), SCORES, False),
    (("mul", ("sum", S_ROW, "x"), ("sum", S_ROW, "r")), SCORES, False),
    # but a factor that does not vary may stand inside or outside
    (("sum", S_ROW, "x"), ("sum", S_ROW, ("mul", "x", "c")), True),
    (("mul", ("sum", S_ROW, "x"), "c"), ("sum", S_ROW, ("mul", "x", "c")), True),
    # a sum over one axis is no step towards one over another
    (("sum", S_COLUMN, "x"), SCORES, False),
    # the free factor and the one under the root are told apart
    (("mul", "x", "x"), NORM, True),
    (("sum", S_ROW, "x"), NORM, False),
    (("div", "x", ("sqrt", ("mul", "x", "x"))), NORM, False),
    # what is nested is bound by sums around it
    (("exp", "x"), SOFTMAX, True),
    (("sum", S_ROW, ("exp", "x")), SOFTMAX, True),
    (("exp", ("sum", S_ROW, "x")), SOFTMAX, False),
    (("opaque:max", S_ROW, "x"), ("sub", "x", ("opaque:max", S_ROW, "x")), True),
    (("opaque:max", S_COLUMN, "x"), ("sub", "x", ("opaque:max", S_ROW, "x")), False),
)


@pytest.mark.parametrize(("part", "target", "expected"), EXAMPLES, ids=str)
def test_examples(part: Tree, target: Tree, expected: bool) -> None:
    algebra = fresh()
    assert IndexedOracle(algebra, [built(algebra, target)]).admits(built(algebra, part)) is expected


def test_without_axes_a_sum_moves_past_everything() -> None:
    """What the axes forbid the paper's expressions allow."""
    algebra = fresh()
    x, r = algebra.variable("x"), algebra.variable("r")
    assert algebra.mul(algebra.sum(S_ROW, x), r) == algebra.sum(S_ROW, algebra.mul(x, r))


def varies(tree: Tree) -> int:
    """The axes along which a term varies, read off the term."""
    if isinstance(tree, str):
        return INPUTS[tree]
    axes = 0
    for operand in tree[1:]:
        axes |= 0 if isinstance(operand, int) else varies(operand)
    bound = tree[1] if tree[0] in ("sum", "opaque:max") else 1
    assert isinstance(bound, int)
    return axes & ~sum(1 << axis for axis, prime in enumerate(PRIMES) if bound % prime == 0)


LEAVES = st.sampled_from(sorted(INPUTS))


def grown(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    binary = st.tuples(st.sampled_from(("add", "mul", "div")), inner, inner)
    unary = st.tuples(st.sampled_from(("sqrt", "exp", "opaque:silu")), inner)
    sums = st.tuples(st.sampled_from(("sum", "opaque:max")), st.sampled_from(PRIMES), inner)
    return binary | unary | sums.filter(lambda t: varies(t[2]) != varies(t))


TREES = st.recursive(LEAVES, grown, max_leaves=5)


@given(TREES)
def test_an_expression_varies_along_the_axes_of_its_tensor(tree: Tree) -> None:
    algebra = fresh()
    assert algebra.free(built(algebra, tree)) == varies(tree)


def parts(tree: Tree) -> list[Tree]:
    if isinstance(tree, str):
        return [tree]
    return [tree, *(part for operand in tree[1:] if not isinstance(operand, int) for part in parts(operand))]


@given(TREES)
def test_every_part_of_a_term_is_admitted(tree: Tree) -> None:
    algebra = fresh()
    oracle = IndexedOracle(algebra, [built(algebra, tree)])
    assert all(oracle.admits(built(algebra, part)) for part in parts(tree))


@given(TREES, TREES, TREES, st.sampled_from(PRIMES))
def test_sums_move_past_what_does_not_vary(x: Tree, y: Tree, z: Tree, n: int) -> None:
    """sum(x y) = sum(x) y and sum(x / y) = sum(x) / y where y does not vary; sums are additive and commute."""
    algebra = fresh()
    e, f, g = (built(algebra, tree) for tree in (x, y, z))
    axis = algebra.axes_of(n)
    if not varies(y) & axis:
        assert algebra.sum(n, algebra.mul(e, f)) == algebra.mul(algebra.sum(n, e), f)
        assert algebra.sum(n, algebra.div(e, f)) == algebra.div(algebra.sum(n, e), f)
    assert algebra.sum(n, algebra.add(e, g)) == algebra.add(algebra.sum(n, e), algebra.sum(n, g))
    assert algebra.sum(S_ROW, algebra.sum(S_COLUMN, e)) == algebra.sum(S_COLUMN, algebra.sum(S_ROW, e))


@settings(deadline=None, max_examples=50)
@given(TREES)
def test_compose_agrees_with_constructing_and_placing(tree: Tree) -> None:
    """Placements of compounds are derived from those of their operands: none is missing, none too many."""
    algebra = fresh()
    target = built(algebra, tree)
    oracle, placing = IndexedOracle(algebra, [target]), IndexedOracle(algebra, [target])
    known = list(dict.fromkeys(built(algebra, part) for part in parts(tree)))[:6]
    unary = [(op, (x,), 1) for op in ("exp", "sqrt", "opaque:silu") for x in known]
    sums = [(op, (x,), n) for op in ("sum", "opaque:max") for x in known for n in (*PRIMES, S_ROW * S_COLUMN)]
    pairs = [(op, args, 1) for op in ("add", "sub", "mul", "div") for args in itertools.product(known, repeat=2)]
    for op, args, n in [*unary, *sums, *pairs]:
        compound = algebra.apply(op, args, n)
        expected = placing.placements(compound)
        assert oracle.compose(op, args, n) == (compound if expected else None)
        assert oracle.placements(compound) == expected


@settings(deadline=None, max_examples=100)
@given(TREES)
def test_whatever_is_admitted_may_meet(tree: Tree) -> None:
    """No operator is refused for its operands' places that the test of its result admits."""
    algebra = fresh()
    target = built(algebra, tree)
    oracle = IndexedOracle(algebra, [target])
    meeting = Meeting(algebra, oracle)
    known = list(dict.fromkeys(built(algebra, part) for part in parts(tree)))[:6]
    known += [e for e in (oracle.compose("sum", (x,), n) for x in known for n in PRIMES) if e is not None]
    for x, y in itertools.product(known, repeat=2):
        for op in ("add", "sub", "mul", "div"):
            if oracle.compose(op, (x, y)) is not None:
                assert meeting.possible(x, y, op, swapped=False)
                assert meeting.possible(y, x, op, swapped=True)
                assert meeting.places(x).mine & meeting.places(y).theirs


def test_functions_of_two_arguments_meet_only_in_their_atoms() -> None:
    algebra = fresh()
    x, y, z = (algebra.variable(name, BOTH) for name in "xyz")
    oracle = IndexedOracle(algebra, [algebra.sum(S_ROW, algebra.mul(algebra.opaque("sub", x, y), algebra.opaque("add", x, z)))])
    meeting = Meeting(algebra, oracle)
    assert meeting.possible(x, y, "sub", swapped=False)
    assert not meeting.possible(x, y, "sub", swapped=True)
    assert meeting.possible(y, x, "sub", swapped=True)
    assert meeting.possible(x, z, "add", swapped=False)
    assert meeting.possible(z, x, "add", swapped=False)  # which of them is the first is a matter of numbers
    assert not meeting.places(y).mine & meeting.places(z).theirs


def test_a_root_is_no_part_of_one_that_no_value_completes() -> None:
    """sum(u) times sum(u u u) is told from sum(u u) squared no more than before, but sum(u) alone does not divide sum(u u)."""
    algebra = fresh()
    u = algebra.variable("u", BOTH)
    squares = algebra.sum(S_ROW, algebra.mul(u, u))
    oracle = IndexedOracle(algebra, [algebra.div(u, algebra.sqrt(squares))])
    assert oracle.compose("sqrt", (squares,)) is not None
    assert not oracle.admits(algebra.sqrt(algebra.sum(S_ROW, u)))
