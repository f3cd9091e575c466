"""Random functions give equals for equals and nothing else; maxima nest and miss nothing."""

from __future__ import annotations

import numpy as np

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import P_BITS, FieldPair, FieldValue
from mugraph.verifier.free import FreeArithmetic


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


def test_an_element_left_out_or_taken_twice_shows() -> None:
    arith = FreeArithmetic(drawn(), seed=3)
    x = elements(arith, 3, 24)
    whole = arith.max(x, 1).p
    for change in (lambda residues: residues[:, 1:], lambda residues: np.concatenate([residues, residues[:, :1]], axis=1)):
        assert (arith.max(arith.view(x, change), 1).p != whole).all()


def test_the_maximum_of_one_element_is_that_element() -> None:
    arith = FreeArithmetic(drawn(), seed=3)
    x = elements(arith, 3, 1)
    np.testing.assert_array_equal(arith.max(x, 1).p, x.p)
