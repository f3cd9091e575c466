"""The slow obvious oracle: terms as nested tuples, rewritten by the paper's axioms one step at a time.

Nothing here knows of normal forms. `("add", x, y)`, `("sum", n, x)`, `("silu", x)` are terms, and a string
is an input, or the constant `-1`. The opaque functions are `silu` (one argument) and `pair` (two).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from hypothesis import strategies as st

from mugraph.algebra import Algebra, Expr

Tree = str | tuple["str | int | Tree", ...]

BINARY = ("add", "mul", "div", "pair")
UNARY = ("exp", "sqrt", "silu")

# A_eq (paper, Table 2) over metavariables `?x`; axioms that compute with integers are in `_reduction_steps`.
AXIOMS: tuple[tuple[Tree, Tree], ...] = (
    (("add", "?x", "?y"), ("add", "?y", "?x")),
    (("mul", "?x", "?y"), ("mul", "?y", "?x")),
    (("add", "?x", ("add", "?y", "?z")), ("add", ("add", "?x", "?y"), "?z")),
    (("mul", "?x", ("mul", "?y", "?z")), ("mul", ("mul", "?x", "?y"), "?z")),
    (("add", ("mul", "?x", "?z"), ("mul", "?y", "?z")), ("mul", ("add", "?x", "?y"), "?z")),
    (("add", ("div", "?x", "?z"), ("div", "?y", "?z")), ("div", ("add", "?x", "?y"), "?z")),
    (("mul", "?x", ("div", "?y", "?z")), ("div", ("mul", "?x", "?y"), "?z")),
    (("div", ("div", "?x", "?y"), "?z"), ("div", "?x", ("mul", "?y", "?z"))),
    (("sum", "?i", ("add", "?x", "?y")), ("add", ("sum", "?i", "?x"), ("sum", "?i", "?y"))),
    (("sum", "?i", ("mul", "?x", "?y")), ("mul", ("sum", "?i", "?x"), "?y")),
    (("sum", "?i", ("div", "?x", "?y")), ("div", ("sum", "?i", "?x"), "?y")),
    (("mul", ("exp", "?x"), ("exp", "?y")), ("exp", ("add", "?x", "?y"))),
    (("mul", ("sqrt", "?x"), ("sqrt", "?y")), ("sqrt", ("mul", "?x", "?y"))),
)


def operands(tree: Tree) -> tuple[Tree, ...]:
    """The direct subterms."""
    if isinstance(tree, str):
        return ()
    return tuple(part for part in tree[1:] if not isinstance(part, int))


def nodes(tree: Tree) -> int:
    """Number of operators and inputs."""
    return 1 + sum(map(nodes, operands(tree)))


def subterms(tree: Tree) -> Iterator[Tree]:
    """The term and everything inside it."""
    yield tree
    for part in operands(tree):
        yield from subterms(part)


def rewrites(tree: Tree, unit_reductions: bool = False) -> Iterator[Tree]:
    """Everything one axiom, in either direction and at any position, turns `tree` into.

    `x -> sum(1, x)`, which applies everywhere, is used on request only.
    """
    for left, right in AXIOMS:
        for source, target in ((left, right), (right, left)):
            bindings: dict[str, Tree | int] = {}
            if _match(source, tree, bindings):
                yield _substitute(target, bindings)
    yield from _reduction_steps(tree)
    if unit_reductions:
        yield ("sum", 1, tree)
    if isinstance(tree, tuple):
        for position, part in enumerate(tree[1:], start=1):
            if not isinstance(part, int):
                for changed in rewrites(part, unit_reductions):
                    yield (*tree[:position], changed, *tree[position + 1 :])


def closure(tree: Tree, max_nodes: int, limit: int) -> set[Tree]:
    """Terms equal to `tree`, reached through terms of at most `max_nodes` nodes; about `limit` of them."""
    found = {tree}
    waiting = [tree]
    while waiting and len(found) < limit:
        following = []
        for current in waiting:
            for changed in rewrites(current):
                if changed not in found and nodes(changed) <= max_nodes:
                    found.add(changed)
                    following.append(changed)
        waiting = following
    return found


def build(algebra: Algebra, tree: Tree) -> Expr:
    """The normal form of a term, made by the public constructors."""
    if isinstance(tree, str):
        return algebra.constant(tree) if tree == "-1" else algebra.variable(tree)
    args = [build(algebra, part) for part in operands(tree)]
    constructors: dict[str, Callable[..., Expr]] = {
        "add": algebra.add,
        "mul": algebra.mul,
        "div": algebra.div,
        "exp": algebra.exp,
        "sqrt": algebra.sqrt,
    }
    match tree:
        case ("sum", int(n), *_):
            return algebra.sum(n, *args)
        case (str(op), *_) if op in constructors:
            return constructors[op](*args)
        case (str(op), *_):
            return algebra.opaque(op, *args)
    raise AssertionError(tree)


def terms_of_size(size: int, leaves: tuple[str, ...], factors: tuple[int, ...]) -> list[Tree]:
    """Every term with exactly `size` nodes."""
    if size == 1:
        return list(leaves)
    below = terms_of_size(size - 1, leaves, factors)
    found: list[Tree] = [(op, x) for op in UNARY for x in below]
    found += [("sum", n, x) for n in factors for x in below]
    for left in range(1, size - 1):
        xs, ys = terms_of_size(left, leaves, factors), terms_of_size(size - 1 - left, leaves, factors)
        found += [(op, x, y) for op in BINARY for x, y in itertools.product(xs, ys)]
    return found


def trees(max_leaves: int = 6) -> st.SearchStrategy[Tree]:
    """Random terms over a few inputs, with reductions that factor."""
    leaf: st.SearchStrategy[Tree] = st.sampled_from("xyz")

    def grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        return st.one_of(
            st.tuples(st.sampled_from(("add", "add", "mul", "mul", "div", "pair")), inner, inner),
            st.tuples(st.sampled_from(UNARY), inner),
            st.tuples(st.just("sum"), st.sampled_from((2, 3, 4, 6)), inner),
        )

    return st.recursive(leaf, grow, max_leaves=max_leaves)


def _match(pattern: Tree | int, tree: Tree | int, bindings: dict[str, Tree | int]) -> bool:
    if isinstance(pattern, str) and pattern.startswith("?"):
        return bindings.setdefault(pattern, tree) == tree
    if isinstance(pattern, tuple) and isinstance(tree, tuple):
        pairs = zip(pattern, tree, strict=False)
        return len(pattern) == len(tree) and all(_match(part, found, bindings) for part, found in pairs)
    return pattern == tree


def _substitute(pattern: Tree | int, bindings: dict[str, Tree | int]) -> Tree:
    if isinstance(pattern, str):
        value = bindings.get(pattern, pattern)
        assert not isinstance(value, int)
        return value
    assert isinstance(pattern, tuple)
    operator, *parts = pattern
    return (operator, *(bindings[part] if part == "?i" else _substitute(part, bindings) for part in parts))


def _reduction_steps(tree: Tree) -> Iterator[Tree]:
    """x = sum(1, x), from right to left, and sum(i, sum(j, x)) = sum(i * j, x)."""
    match tree:
        case ("sum", int(n), part) if not isinstance(part, int):
            if n == 1:
                yield part
            for i in range(2, n):
                if n % i == 0:
                    yield ("sum", i, ("sum", n // i, part))
            match part:
                case ("sum", int(inner), rest):
                    yield ("sum", n * inner, rest)
