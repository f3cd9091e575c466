"""The subexpression oracle against examples, a rewriting closure, and constructive witnesses."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.algebra import Algebra, Expr, Oracle
from mugraph.algebra.normal_form import ABSENT, Term
from mugraph.errors import UnsupportedOperator

from .rewriting import UNARY, Tree, build, closure, nodes, rewrites, subterms, terms_of_size, trees

POWER: Tree = ("mul", ("add", "x", "y"), ("add", "x", "y"))
RMSNORM: Tree = ("div", ("sum", 6, ("mul", ("mul", "x", "g"), "w")), ("sqrt", ("sum", 6, ("mul", "x", "x"))))

# (E, E_O, whether E is an abstract subexpression of E_O)
EXAMPLES: tuple[tuple[Tree, Tree, bool], ...] = (
    # the paper's example: X*Z + Y*Z
    (("mul", "x", "y"), ("add", ("mul", "x", "z"), ("mul", "y", "z")), False),
    (("add", "x", "y"), ("add", ("mul", "x", "z"), ("mul", "y", "z")), True),
    # multiplicities count
    (("add", "x", "x"), "x", False),
    (("add", "x", "x"), ("mul", ("add", "x", "x"), "y"), True),
    (("add", "x", "x"), ("mul", ("add", "x", "y"), "z"), False),
    (("add", "x", "x"), POWER, True),  # (x + x) * y + x * x + y * y
    (("add", ("mul", "x", "y"), ("mul", "x", "y")), POWER, True),
    (("add", "x", "y"), POWER, True),
    # reductions: any factor may be split off, none may be made from additions
    (("sum", 2, "x"), ("sum", 6, "x"), True),
    (("sum", 4, "x"), ("sum", 6, "x"), False),
    ("x", ("sum", 2, "x"), True),
    (("sum", 2, "x"), ("add", "x", "x"), False),
    (("add", "x", "x"), ("sum", 2, "x"), False),
    (("sum", 2, ("mul", "x", "w")), RMSNORM, True),
    (("mul", ("sum", 2, "x"), "w"), RMSNORM, True),
    (("sum", 2, ("sqrt", ("mul", "x", "x"))), RMSNORM, False),
    # square roots are never undone, and radicands divide as whole expressions
    ("x", ("sqrt", "x"), True),
    (("sqrt", "x"), ("sqrt", ("mul", "x", "y")), True),
    (("sqrt", "x"), ("sqrt", ("sum", 2, "x")), False),
    (("sqrt", "x"), ("sqrt", ("div", "x", "y")), False),
    (("sqrt", "x"), ("sqrt", ("sum", 2, ("mul", "x", "y"))), True),
    (("sqrt", "x"), ("sqrt", ("add", "x", "y")), False),
    (("sqrt", ("add", "x", "y")), ("sqrt", POWER), True),
    (("sqrt", ("mul", "x", "x")), "x", False),
    ("x", ("mul", ("sqrt", "x"), ("sqrt", "y")), True),
    # exponentials split their exponent by addition only
    (("exp", "x"), ("exp", ("add", "x", "y")), True),
    (("exp", "x"), ("exp", ("sum", 2, "x")), False),
    (("exp", "x"), ("exp", ("mul", "x", "y")), False),
    ("y", ("mul", ("exp", "x"), ("exp", "y")), True),
    # denominators: one whole expression each, divided exactly, never cancelled
    ("y", ("div", "x", "y"), True),
    (("mul", "y", "z"), ("div", ("div", "x", "y"), "z"), True),
    (("div", "a", "y"), ("div", "a", ("sum", 2, "y")), False),
    (("div", "a", "y"), ("div", "a", ("div", "y", "z")), False),
    (("div", "a", "y"), ("div", "a", ("sum", 2, ("mul", "y", "z"))), True),
    (("sum", 2, ("div", "a", "y")), ("sum", 6, ("div", "a", "y")), True),
    (("div", "x", "z"), ("div", ("add", "x", "y"), "z"), True),
    (("div", "a", ("add", "x", "y")), ("div", "a", POWER), True),
    (("div", "y", "x"), ("div", "y", ("div", "x", "z")), False),
    (("div", "x", "z"), ("div", "y", ("div", "x", "z")), True),
    (("mul", "x", "y"), ("div", "x", "y"), False),
    # opaque functions: every argument is a level, the atom is one piece
    ("x", ("silu", "x"), True),
    (("silu", "x"), ("silu", ("mul", "x", "y")), False),
    (("mul", "x", "y"), ("mul", "z", ("silu", ("mul", "x", "y"))), True),
    ("x", ("pair", "x", "y"), True),
    ("y", ("pair", "x", "y"), True),
    (("mul", "x", "y"), ("pair", "x", "y"), False),
    (("pair", "y", "x"), ("pair", "x", "y"), False),
    (("add", "x", "y"), ("pair", "z", ("exp", ("silu", ("mul", "z", ("add", "x", "y"))))), True),
)


@pytest.mark.parametrize(("e", "target", "expected"), EXAMPLES, ids=str)
def test_examples(e: Tree, target: Tree, expected: bool) -> None:
    algebra = Algebra()
    oracle = Oracle(algebra, [build(algebra, target)])
    assert oracle.admits(build(algebra, e)) is expected


def test_any_of_several_targets_admits() -> None:
    algebra = Algebra()
    x, y, z = map(algebra.variable, "xyz")
    oracle = Oracle(algebra, [algebra.mul(x, y), algebra.exp(z)])
    assert [oracle.admits(e) for e in (algebra.mul(x, y), z, algebra.mul(x, z))] == [True, True, False]
    assert not Oracle(algebra, []).admits(x)


def test_compose_rejects_large_results_without_building_them() -> None:
    algebra = Algebra(max_terms=64)
    x, y = algebra.variable("x"), algebra.variable("y")
    power = algebra.add(x, y)
    for _ in range(60):
        power = algebra.mul(power, algebra.add(x, y))
    target = algebra.add(algebra.div(x, power), algebra.sqrt(power))
    oracle = Oracle(algebra, [target])
    built = len(algebra.forms.terms)
    root, quotient = algebra.sqrt(power), algebra.div(x, power)
    assert oracle.compose("mul", (power, power)) is None
    assert oracle.compose("mul", (root, root)) is None
    assert oracle.compose("mul", (quotient, quotient)) is None
    assert oracle.compose("div", (quotient, power)) is None
    assert oracle.compose("sub", (quotient, power)) is None
    assert len(algebra.forms.terms) == built
    assert oracle.compose("add", (quotient, root)) == target


def test_compose_builds_nothing_when_the_parts_embed_only_apart() -> None:
    algebra = Algebra()
    x, y, z, u, v = map(algebra.variable, "xyzuv")
    target = algebra.add(algebra.mul(x, algebra.mul(y, u)), algebra.mul(x, algebra.mul(z, v)))
    oracle, total = Oracle(algebra, [target]), algebra.add(y, z)
    built = len(algebra.forms.terms)
    assert oracle.compose("mul", (x, total)) is None
    assert oracle.compose("add", (algebra.mul(x, y), algebra.mul(x, z))) is None
    assert len(algebra.forms.terms) == built + 2


def test_compose_rejects_opaque_atoms_that_occur_elsewhere_only() -> None:
    algebra = Algebra()
    x = algebra.variable("x")
    oracle = Oracle(algebra, [algebra.opaque("silu", x)])
    algebra.opaque("relu", x)
    assert oracle.compose("opaque:relu", (x,)) is None
    assert oracle.compose("opaque:silu", (x,)) == algebra.opaque("silu", x)


def test_compose_refuses_operators_it_does_not_know() -> None:
    algebra = Algebra()
    x = algebra.variable("x")
    with pytest.raises(UnsupportedOperator, match="'tanh' on 1 operands"):
        Oracle(algebra, [x]).compose("tanh", (x,))


def _compositions(known: list[Expr]) -> list[tuple[str, tuple[Expr, ...], int]]:
    unary = [(op, (x,), 1) for op in ("exp", "sqrt", "opaque:silu") for x in known]
    reductions = [("sum", (x,), n) for n in (1, 2, 3, 6) for x in known]
    pairs = itertools.product(("add", "sub", "mul", "div", "opaque:pair"), itertools.product(known, repeat=2))
    return [*unary, *reductions, *((op, args, 1) for op, args in pairs)]


def _construct(algebra: Algebra, op: str, args: tuple[Expr, ...], n: int) -> Expr:
    if op == "sum":
        return algebra.sum(n, *args)
    if op.startswith("opaque:"):
        return algebra.opaque(op.removeprefix("opaque:"), *args)
    result: Expr = getattr(algebra, op)(*args)
    return result


def _check_compose(target: Tree, rounds: int, width: int) -> int:
    """Saturate, deciding every composition also by construction and search; the number of results."""
    algebra = Algebra()
    goal = build(algebra, target)
    incremental, searching = Oracle(algebra, [goal]), Oracle(algebra, [goal])
    known = [build(algebra, leaf) for leaf in sorted({t for t in subterms(target) if isinstance(t, str)})]
    for _ in range(rounds):
        for op, args, n in _compositions(known[:width]):
            result = incremental.compose(op, args, n)
            built = _construct(algebra, op, args, n)
            assert result == (built if searching.admits(built) else None)
            assert incremental.embeddings(built) == searching.embeddings(built)
            if result is not None and result not in known:
                known.append(result)
    return len(known)


@pytest.mark.parametrize(
    "target",
    [
        RMSNORM,
        POWER,
        ("add", ("mul", "x", "y"), ("mul", "-1", ("mul", "z", "y"))),
        ("div", ("sum", 6, ("mul", ("exp", "x"), "v")), ("sum", 6, ("exp", "x"))),
        (
            "mul",
            ("silu", ("sum", 6, ("mul", "x", "w"))),
            ("pair", "x", ("sqrt", ("mul", ("add", "x", "w"), "x"))),
        ),
        ("div", ("exp", ("add", "x", ("div", "y", "x"))), ("mul", ("add", "x", "y"), ("add", "x", "y"))),
    ],
    ids=str,
)
def test_compose_agrees_with_constructing_and_searching(target: Tree) -> None:
    assert _check_compose(target, rounds=3, width=40) > 5


@given(trees(5))
def test_compose_agrees_on_random_targets(target: Tree) -> None:
    _check_compose(target, rounds=2, width=6)


@dataclass(frozen=True, slots=True)
class Universe:
    """All terms up to a size with their classes under A_eq and the relation that A_sub generates on them."""

    trees: list[Tree]
    parent: dict[Tree, Tree]

    @classmethod
    def of(cls, max_nodes: int) -> Universe:
        every = [tree for size in range(1, max_nodes + 1) for tree in terms_of_size(size, ("x", "y"), (2,))]
        universe = cls(every, {tree: tree for tree in every})
        for tree in every:
            for changed in rewrites(tree):
                if changed in universe.parent:
                    universe.parent[universe.find(tree)] = universe.find(changed)
        return universe

    def find(self, tree: Tree) -> Tree:
        """The representative of the class of `tree`."""
        root = tree
        while self.parent[root] != root:
            root = self.parent[root]
        while self.parent[tree] != root:
            self.parent[tree], tree = root, self.parent[tree]
        return root

    def below(self) -> dict[Tree, set[Tree]]:
        """The classes related to each class: subterms of its members, transitively."""
        direct: dict[Tree, set[Tree]] = defaultdict(set)
        for tree in self.trees:
            direct[self.find(tree)] |= {self.find(part) for part in subterms(tree)}
        related: dict[Tree, set[Tree]] = {}
        for root in direct:
            reached, waiting = {root}, [root]
            while waiting:
                new = direct[waiting.pop()] - reached
                reached |= new
                waiting += new
            related[root] = reached
        return related


def _compare_exhaustively(universe_nodes: int, query_nodes: int) -> tuple[int, int, list[tuple[Tree, Tree]]]:
    """How many pairs of small terms are missed, how many agree, and those that only the oracle relates."""
    universe, algebra = Universe.of(universe_nodes), Algebra()
    related = universe.below()
    small = {universe.find(tree): tree for tree in universe.trees if nodes(tree) <= query_nodes}
    expressions = {root: build(algebra, tree) for root, tree in small.items()}
    missed, agreed, extra = 0, 0, []
    for target, target_expr in expressions.items():
        oracle = Oracle(algebra, [target_expr])
        for root, expr in expressions.items():
            admitted, derived = oracle.admits(expr), root in related[target]
            agreed += admitted and derived
            missed += derived and not admitted
            if admitted and not derived:
                extra.append((small[root], small[target]))
    return missed, agreed, extra


def _derivable(e: Tree, target: Tree, extra: int, limit: int) -> bool:
    """Whether a term equal to `e` is part of one equal to `target`, rewriting within `extra` more nodes."""
    max_nodes = max(nodes(e), nodes(target)) + extra
    equal = closure(e, max_nodes, limit)
    return any(part in equal for tree in closure(target, max_nodes, limit) for part in subterms(tree))


def test_all_small_terms_against_the_relation_generated_by_the_axioms() -> None:
    missed, agreed, extra = _compare_exhaustively(universe_nodes=5, query_nodes=4)
    assert missed == 0
    assert agreed > 1000
    assert [pair for pair in extra if not _derivable(*pair, extra=4, limit=20_000)] == []


@given(trees(6))
def test_every_subterm_of_every_rewriting_is_admitted(target: Tree) -> None:
    algebra = Algebra()
    oracle = Oracle(algebra, [build(algebra, target)])
    parts = {part for tree in closure(target, nodes(target) + 3, limit=60) for part in subterms(tree)}
    assert all(oracle.admits(build(algebra, part)) for part in parts)


def _monomial_as_steps(algebra: Algebra, multiplier: Term, e: Expr) -> Expr:
    """`multiplier * e` by public constructors, checking that every part is an expression on its own."""
    forms = algebra.forms
    monomial = forms.monomials[multiplier]
    for child in forms.levels(forms.children(multiplier)):
        assert all(forms.monomials[term].proper for term, _ in forms.terms[child])
    for atom in forms.factor_atoms(monomial.atoms):
        constructor = {"variable": algebra.variable, "constant": algebra.constant}.get(atom.kind)
        e = algebra.mul(e, constructor(atom.name) if constructor else algebra.opaque(atom.name, *atom.args))
    if monomial.exponent != ABSENT:
        e = algebra.mul(e, algebra.exp(monomial.exponent))
    if monomial.radicand != ABSENT:
        e = algebra.mul(e, algebra.sqrt(monomial.radicand))
    if monomial.denominator != ABSENT:
        e = algebra.div(e, monomial.denominator)
    return algebra.sum(monomial.factor, e)


def _check_witnesses(target: Tree, e: Tree) -> None:
    """Each embedding must be a derivation: multiplier steps, then one addition, reach the level exactly."""
    algebra = Algebra()
    oracle, expr = Oracle(algebra, [build(algebra, target)]), build(algebra, e)
    for multiplier, level in oracle.embeddings(expr):
        reached = _monomial_as_steps(algebra, multiplier, expr)
        rest = algebra.division.difference(level, reached)
        assert rest is not None
        assert rest == ABSENT or algebra.add(reached, rest) == level


def mutations() -> st.SearchStrategy[tuple[Tree, Tree]]:
    """A random target and a query near it: a subterm of a rewriting, sometimes under one more operator."""

    @st.composite
    def draw_pair(draw: st.DrawFn) -> tuple[Tree, Tree]:
        target = draw(trees(6))
        rewritten = draw(st.sampled_from(sorted(closure(target, nodes(target) + 2, limit=30), key=str)))
        part = draw(st.sampled_from(sorted(set(subterms(rewritten)), key=str)))
        wrap = draw(st.sampled_from((None, "add", "mul", "div", "sum", *UNARY)))
        match wrap:
            case None:
                return target, part
            case "add" | "mul" | "div":
                return target, (wrap, part, draw(st.sampled_from("xyz")))
            case "sum":
                return target, ("sum", draw(st.sampled_from((2, 3))), part)
        return target, (wrap, part)

    return draw_pair()


@settings(max_examples=400, deadline=None)
@given(mutations())
def test_every_admission_has_a_derivation(pair: tuple[Tree, Tree]) -> None:
    _check_witnesses(*pair)


@pytest.mark.slow
@settings(max_examples=20_000, deadline=None)
@given(mutations())
def test_every_admission_has_a_derivation_at_length(pair: tuple[Tree, Tree]) -> None:
    _check_witnesses(*pair)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(mutations())
def test_random_queries_against_the_closure(pair: tuple[Tree, Tree]) -> None:
    """Whatever is admitted is derivable by rewriting, if necessary through larger terms."""
    target, e = pair
    algebra = Algebra()
    if not Oracle(algebra, [build(algebra, target)]).admits(build(algebra, e)):
        assert not _derivable(e, target, extra=3, limit=300)
        return
    bounds = ((1, 300), (3, 3000), (4, 30_000), (6, 200_000))
    assert any(_derivable(e, target, extra, limit) for extra, limit in bounds)


@pytest.mark.slow
def test_all_medium_terms_against_the_relation_generated_by_the_axioms() -> None:
    missed, agreed, extra = _compare_exhaustively(universe_nodes=6, query_nodes=5)
    assert missed == 0
    assert agreed > 9_000
    assert [pair for pair in extra if not _derivable(*pair, extra=4, limit=50_000)] == []
