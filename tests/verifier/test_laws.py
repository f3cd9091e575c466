"""Roots say whether they square back."""

from __future__ import annotations

import numpy as np

from mugraph.algebra.families import FieldFamily
from mugraph.verifier.root_semantics import LawfulArithmetic


def arithmetic(seed: int = 0) -> LawfulArithmetic:
    rng = np.random.default_rng(seed)
    pair = FieldFamily(33).draw(rng, count=False)
    return LawfulArithmetic(pair, omega=pair.root(rng), seed=seed, mirrored=False)


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
