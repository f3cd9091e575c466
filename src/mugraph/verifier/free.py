"""Field arithmetic under the free semantics (docs/theory.md): what is not LAX is a random function, and maxima nest."""

from __future__ import annotations

from typing import Any

import numpy as np

from mugraph.algebra.fields import FieldValue, Hashes, NestingArithmetic
from mugraph.ir.arithmetic import Array


class MaximaArithmetic(NestingArithmetic):
    """A maximum is a random function of the elements it is taken over, in any order.

    An element that is itself a maximum stands for its own elements: so maxima of parts make up the maximum of the whole,
    and leaving out an element shows. The maximum of one element is that element.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._maxima = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        """Hashes of the maxima so far, sorted, and beside each the sum of the hashes of its elements."""

    def max(self, x: FieldValue, axis: int) -> FieldValue:
        if x.shape[axis] == 1:
            return x
        elements = np.asarray(np.add.reduce(self._elements(x), axis=axis, keepdims=True))
        maxima = self.random_values(elements)
        self._note(self.hashes("max", maxima), elements)
        return maxima

    def _elements(self, x: FieldValue) -> Array:
        """What each element adds to a maximum: a hash of itself or, if it is a maximum, what its own elements add."""
        hashes = self.hashes("max", x)
        known, sums = self._maxima
        if not len(known):
            return hashes
        places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
        return np.where(known[places] == hashes, sums[places], hashes)

    def _note(self, maxima: Hashes, elements: Hashes) -> None:
        known, sums = self._maxima
        known, first = np.unique(np.concatenate([known, maxima.reshape(-1)]), return_index=True)
        self._maxima = known, np.concatenate([sums, elements.reshape(-1)])[first]


class FreeArithmetic(MaximaArithmetic):
    """`sqrt` and opaque functions are random functions of their argument, and so is an exponential of what passed through an
    exponential: nothing is assumed but that equals give equals."""

    def sqrt(self, x: FieldValue) -> FieldValue:
        return self.opaque("sqrt", x)
