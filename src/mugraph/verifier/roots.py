"""Field arithmetic in which sqrt(a)**2 is a: true roots of squares, with both signs of each (docs/theory.md).

Programs that agree for every choice of signs agree whatever the signs are, so in particular for the roots that are not
negative. sqrt(x**2) is x for one sign and -x for the other: it is neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mugraph.algebra.fields import FieldPair, FieldValue
from mugraph.algebra.modular import multiply, square_root
from mugraph.errors import MugraphError, UndefinedInField
from mugraph.ir.scalar import Scalar
from mugraph.verifier.free import FreeArithmetic

MOST_RADICANDS = 4
"""Different radicands of one evaluation: there are 2**4 choices of signs, and about as many draws until all are squares."""


class TooManyRadicands(MugraphError):
    """A program takes roots of more different numbers than choices of signs can be tried for."""


@dataclass(slots=True)
class Signs:
    """A choice of sign for each radicand, in the order in which they were met: False at first."""

    chosen: dict[int, bool] = field(default_factory=dict)

    def of(self, radicand: int) -> bool:
        """The sign of the root of a residue."""
        if radicand not in self.chosen and len(self.chosen) == MOST_RADICANDS:
            raise TooManyRadicands(f"roots are taken of more than {MOST_RADICANDS} different numbers")
        return self.chosen.setdefault(radicand, False)

    def advance(self) -> bool:
        """Go to the next choice; False after the last. What follows the sign that changes is met anew."""
        while self.chosen:
            radicand, sign = self.chosen.popitem()
            if not sign:
                self.chosen[radicand] = True
                return True
        return False


class RootedArithmetic(FreeArithmetic):
    """Residues modulo p alone, and roots by `signs`; exponentials are random functions, too.

    Raises UndefinedInField where a radicand is no square, and TooManyRadicands.
    """

    def __init__(self, pair: FieldPair, *, omega: int, seed: int, signs: Signs) -> None:
        super().__init__(pair, omega=omega, seed=seed)
        self.signs = signs

    def constant(self, value: Scalar) -> FieldValue:
        return FieldValue(super().constant(value).p, None)

    def variables(self, count: int) -> FieldValue:
        return FieldValue(super().variables(count).p, None)

    def sqrt(self, x: FieldValue) -> FieldValue:
        radicands, places = np.unique(x.p, return_inverse=True)
        signs = [self.signs.of(int(radicand)) for radicand in radicands]
        roots = square_root(radicands, self._p)
        if not np.array_equal(multiply(roots, roots, self._p), radicands) or not radicands.all():
            raise UndefinedInField("a root of what is no square; draw other fields and inputs")
        return FieldValue(np.where(signs, self._p - roots, roots)[places].reshape(x.p.shape), None)
