"""Field arithmetic in which roots obey more laws than the error bounds know of: tests without a bound."""

from __future__ import annotations

import math

import numpy as np

from mugraph.algebra.fields import FieldPair, FieldValue
from mugraph.verifier.free import MaximaArithmetic


class LawfulArithmetic(MaximaArithmetic):
    """Roots that are multiplicative and square back on squares.

    `radicands` counts the elements roots were taken of; `all_squares` says whether all of them were squares.
    """

    def __init__(self, pair: FieldPair, *, omega: int, seed: int, mirrored: bool) -> None:
        super().__init__(pair, omega=omega, seed=seed, mirrored=mirrored)
        self.radicands = 0
        self.all_squares = True

    def sqrt(self, x: FieldValue) -> FieldValue:
        root = super().sqrt(x)
        squares = self.mul(root, root)
        self.radicands += math.prod(x.shape)
        for ours, theirs in ((squares.known_p, x.known_p), (squares.q, x.q)):
            if ours is not None and theirs is not None and not np.array_equal(ours, theirs):
                self.all_squares = False
        return root
