"""Random functions give equals for equals and nothing else; maxima nest, miss nothing, and count nothing."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import P_BITS, FieldPair, FieldValue
from mugraph.ir.arithmetic import Array
from mugraph.verifier import semantics
from mugraph.verifier.semantics import FreeArithmetic


def drawn() -> FieldPair:
    return FieldFamily(34).draw(np.random.default_rng(0))


def elements(arith: FreeArithmetic, *shape: int) -> FieldValue:
    return arith.random(shape, np.random.default_rng(1))


def test_free_functions_give_equals_for_equals_and_nothing_else() -> None:
    arith = FreeArithmetic(drawn(), seed=3)
    x = arith.random((100,), np.random.default_rng(0))
    y = arith.view(x, lambda residues: residues[::-1])
    for function in (arith.sqrt, lambda value: arith.opaque("silu", value), lambda value: arith.exp(arith.exp(value))):
        image, mirrored = function(x), function(y)
        np.testing.assert_array_equal(image.p[::-1], mirrored.p)
        assert len(set(image.p.tolist())) == 100
        assert max(image.p.tolist()) < 1 << P_BITS
    root = arith.sqrt(x)
    assert (arith.mul(root, root).p != x.p).all()


def test_free_maxima_depend_on_all_elements_in_any_order() -> None:
    arith = FreeArithmetic(drawn(), seed=3)
    x = arith.random((3, 40), np.random.default_rng(0))
    whole = arith.max(x, 1).p
    shuffled = arith.max(arith.view(x, lambda residues: residues[:, ::-1]), 1).p
    np.testing.assert_array_equal(whole, shuffled)
    assert (arith.max(arith.view(x, lambda residues: residues[:, 1:]), 1).p != whole).all()


def test_maxima_of_parts_make_up_the_maximum_of_the_whole() -> None:
    arith = FreeArithmetic(drawn(), seed=3)
    x = elements(arith, 3, 24)
    whole = arith.max(x, 1).p
    for parts in (2, 6, 24):
        shape = (3, parts, 24 // parts)
        tiles = FieldValue(x.p.reshape(shape), None if x.q is None else x.q.reshape(shape))
        partial = arith.view(arith.max(tiles, 2), lambda residues: residues[..., 0][:, ::-1])
        np.testing.assert_array_equal(arith.max(partial, 1).p, whole)


def test_an_element_left_out_or_changed_shows_and_one_taken_twice_does_not() -> None:
    arith = FreeArithmetic(drawn(), seed=3)
    x = elements(arith, 3, 24)
    whole = arith.max(x, 1).p
    for change in (
        lambda residues: residues[:, 1:],
        lambda residues: np.concatenate([residues[:, 1:], residues[:, :1] + 1], axis=1),
    ):
        assert (arith.max(arith.view(x, change), 1).p != whole).all()
    for times in (2, 3, 64):
        repeated = arith.view(x, functools.partial(np.repeat, repeats=times, axis=1))
        np.testing.assert_array_equal(arith.max(repeated, 1).p, whole)


@pytest.mark.parametrize("count", [2, 4096, 100_000])
def test_sets_that_differ_in_one_element_have_other_maxima(count: int) -> None:
    arith = FreeArithmetic(drawn(), seed=3)
    x = elements(arith, count + 1)
    maxima = [arith.max(taken(arith, x, rows), 0).p.item() for rows in near(count)]
    assert len(set(maxima)) == len(maxima)


def taken(arith: FreeArithmetic, x: FieldValue, places: Array) -> FieldValue:
    """Elements of a vector."""
    return arith.view(x, lambda residues: residues[places])


def near(count: int) -> list[Array]:
    """Indices below `count`, and the same with one left out, replaced and added."""
    all_of_them = np.arange(count)
    return [all_of_them, all_of_them[1:], np.append(all_of_them[1:], count), np.append(all_of_them, count)]


def test_maxima_of_maxima_many_times_over_forget_nothing() -> None:
    """A hash that adds up what elements contribute modulo a power of two is zero after as many doublings as it has bits."""
    arith = FreeArithmetic(drawn(), seed=3)
    x = elements(arith, 5)
    doubled = x
    for _ in range(70):
        doubled = arith.max(arith.view(doubled, lambda residues: np.stack([residues, residues], axis=1)), 1)
        doubled = arith.view(doubled, lambda residues: residues[:, 0])
    np.testing.assert_array_equal(doubled.p, x.p)
    assert doubled.q is not None
    assert x.q is not None
    np.testing.assert_array_equal(doubled.q, x.q)


def test_what_passed_through_an_exponential_did_so_after_a_maximum() -> None:
    """Otherwise one law would hold of exponentials of some elements, and another of those of others."""
    arith = FreeArithmetic(drawn(), seed=3)
    assert arith.max(arith.exp(elements(arith, 3, 4)), 1).q is None
    assert arith.max(elements(arith, 3, 4), 1).q is not None


def test_maxima_of_what_is_known_modulo_one_prime_are_known_modulo_that_one() -> None:
    arith = FreeArithmetic(drawn(), seed=3)
    exponents = FieldValue(None, elements(arith, 3, 4).q)
    maxima = arith.max(exponents, 1)
    assert maxima.known_p is None
    assert maxima.q is not None
    assert maxima.shape == (3, 1)


def test_the_maximum_of_one_element_is_that_element() -> None:
    arith = FreeArithmetic(drawn(), seed=3)
    x = elements(arith, 3, 1)
    np.testing.assert_array_equal(arith.max(x, 1).p, x.p)


@dataclass(frozen=True)
class Atom:
    """A variable, a function of a sum, or the maximum of a set of sums of two elements at least."""

    name: str
    parts: frozenset[Any] = frozenset()


def total(*sums: frozenset[tuple[Atom, int]]) -> frozenset[tuple[Atom, int]]:
    """A sum of atoms, each with how often it occurs."""
    return frozenset(sum((Counter(dict(part)) for part in sums), Counter[Atom]()).items())


def largest(elements: Iterable[frozenset[tuple[Atom, int]]]) -> frozenset[tuple[Atom, int]]:
    """The maximum, in which elements that are maxima stand for their own elements."""
    found: set[frozenset[tuple[Atom, int]]] = set()
    for element in elements:
        ((atom, times), *rest) = element
        found |= atom.parts if atom.name == "max" and times == 1 and not rest else {element}
    return found.pop() if len(found) == 1 else total(frozenset({(Atom("max", frozenset(found)), 1)}))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["max", "max", "add", "silu"]), st.lists(st.integers(0, 60), min_size=1, max_size=6))))
def test_values_agree_exactly_where_formal_values_do(steps: list[tuple[str, list[int]]]) -> None:
    """Each step takes some of the values before it. The oracle computes with sets and sums of names."""
    arith = FreeArithmetic(drawn(), seed=3)
    x = elements(arith, 5)
    values = [taken(arith, x, np.array([i])) for i in range(5)]
    formal = [frozenset({(Atom(f"x{i}"), 1)}) for i in range(5)]
    for op, places in steps:
        chosen = [place % len(values) for place in places]
        if op == "max":
            values.append(arith.max(arith.join([values[i] for i in chosen], np.concatenate), 0))
            formal.append(largest(formal[i] for i in chosen))
        elif op == "add":
            values.append(arith.add(values[chosen[0]], values[chosen[-1]]))
            formal.append(total(formal[chosen[0]], formal[chosen[-1]]))
        else:
            values.append(arith.opaque(op, values[chosen[0]]))
            formal.append(frozenset({(Atom(op, frozenset({formal[chosen[0]]})), 1)}))
    for (ours, known), (theirs, other) in itertools.combinations(zip(values, formal, strict=True), 2):
        assert (ours.p.item() == theirs.p.item()) == (known == other)
        assert ours.agrees_with(theirs) == (known == other)


def test_products_of_the_same_factors_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semantics, "_REMEMBERED", 1)
    arith, rng = FreeArithmetic(drawn()), np.random.default_rng(0)
    x, y = arith.random((4, 6), rng), arith.random((6, 5), rng)
    copied = FieldValue(x.p.copy(), None if x.q is None else x.q.copy())
    first = arith.matmul(x, y)
    assert arith.matmul(copied, y) is first
    assert arith.matmul(copied._replace(q=None), y) is not first, "a factor of which less is known"
    changed = x.p.copy()
    changed[3, 5] += 1
    again = arith.matmul(x._replace(known_p=changed), y)
    assert not np.array_equal(again.p, first.p)
    np.testing.assert_array_equal(again.p[:3], first.p[:3])
