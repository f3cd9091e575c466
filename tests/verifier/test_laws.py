"""Maxima nest and miss nothing; roots say whether they square back."""

from __future__ import annotations

import numpy as np

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import FieldValue
from mugraph.verifier.laws import LawfulArithmetic


def arithmetic(seed: int = 0) -> LawfulArithmetic:
    rng = np.random.default_rng(seed)
    pair = FieldFamily(33).draw(rng, count=False)
    return LawfulArithmetic(pair, omega=pair.root(rng), seed=seed, mirrored=False)


def elements(arith: LawfulArithmetic, *shape: int) -> FieldValue:
    return arith.random(shape, np.random.default_rng(1))


def test_maxima_of_parts_make_up_the_maximum_of_the_whole() -> None:
    arith = arithmetic()
    x = elements(arith, 3, 24)
    whole = arith.max(x, 1).p
    for parts in (2, 6, 24):
        shape = (3, parts, 24 // parts)
        tiles = FieldValue(x.p.reshape(shape), None if x.q is None else x.q.reshape(shape))
        partial = arith.view(arith.max(tiles, 2), lambda residues: residues[..., 0][:, ::-1])
        np.testing.assert_array_equal(arith.max(partial, 1).p, whole)


def test_an_element_left_out_or_taken_twice_shows() -> None:
    arith = arithmetic()
    x = elements(arith, 3, 24)
    whole = arith.max(x, 1).p
    for change in (lambda residues: residues[:, 1:], lambda residues: np.concatenate([residues, residues[:, :1]], axis=1)):
        assert (arith.max(arith.view(x, change), 1).p != whole).all()


def test_the_maximum_of_one_element_is_that_element() -> None:
    arith = arithmetic()
    x = elements(arith, 3, 1)
    np.testing.assert_array_equal(arith.max(x, 1).p, x.p)


def test_roots_of_squares_square_back_and_others_are_noticed() -> None:
    arith = arithmetic()
    x = arith.random((50,), np.random.default_rng(1), q=False)
    squares = arith.mul(x, x)
    root = arith.sqrt(squares)
    np.testing.assert_array_equal(arith.mul(root, root).p, squares.p)
    assert arith.all_squares
    assert arith.radicands == 50
    arith.sqrt(x)
    assert not arith.all_squares
