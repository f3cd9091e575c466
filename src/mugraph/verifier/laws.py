"""Field arithmetic in which roots and maxima obey more laws than the error bound knows of: tests without a bound."""

from __future__ import annotations

import math

import numpy as np

from mugraph.algebra.fields import FieldPair, FieldValue, Hashes, NestingArithmetic


class LawfulArithmetic(NestingArithmetic):
    """Roots that square back on squares, and maxima of maxima.

    A maximum is a random function of the elements it is taken over, in any order, where an element that is itself a maximum
    stands for its own elements: so maxima of parts make up the maximum of the whole, and leaving out an element shows.
    `radicands` counts the elements roots were taken of; `all_squares` says whether all of them were squares.
    """

    def __init__(self, pair: FieldPair, *, omega: int, seed: int, mirrored: bool) -> None:
        super().__init__(pair, omega=omega, seed=seed, mirrored=mirrored)
        self.radicands = 0
        self.all_squares = True
        self._maxima = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))

    def sqrt(self, x: FieldValue) -> FieldValue:
        root = super().sqrt(x)
        squares = self.mul(root, root)
        self.radicands += math.prod(x.shape)
        for ours, theirs in ((squares.known_p, x.known_p), (squares.q, x.q)):
            if ours is not None and theirs is not None and not np.array_equal(ours, theirs):
                self.all_squares = False
        return root

    def max(self, x: FieldValue, axis: int) -> FieldValue:
        if x.shape[axis] == 1:
            return x
        elements = np.asarray(np.add.reduce(self._elements(x), axis=axis, keepdims=True))
        maxima = self.random_values(elements)
        known, sums = self._maxima
        known = np.concatenate([known, self.hashes("max", maxima).reshape(-1)])
        order = np.argsort(known)
        self._maxima = known[order], np.concatenate([sums, elements.reshape(-1)])[order]
        return maxima

    def _elements(self, x: FieldValue) -> Hashes:
        """What each element adds to a maximum: a hash of itself or, if it is a maximum, what its own elements add."""
        hashes = self.hashes("max", x)
        known, sums = self._maxima
        if not len(known):
            return hashes
        places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
        return np.where(known[places] == hashes, sums[places], hashes)
