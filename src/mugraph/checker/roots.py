"""Tests in which sqrt(x)**2 is x: true roots of squares modulo p, with both signs of every root (docs/theory.md).

Roots of products are not products of roots here, and exponentials are functions like others. Together, these laws would
make sqrt(x**2) equal to x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

import numpy as np

from mugraph.checker.fields import Fields, Residues, Undefined
from mugraph.checker.files import Rejected

MOST = 4
"""Different radicands in one evaluation."""
REDRAWS = 160
"""Draws that may be thrown away, since radicands must be squares."""


@dataclass(slots=True)
class Signs:
    """One choice of a sign for each radicand, in the order in which they were met."""

    chosen: dict[int, int] = field(default_factory=dict)

    def of(self, radicand: int) -> int:
        if radicand not in self.chosen and len(self.chosen) == MOST:
            raise Rejected(f"graph.json: roots of more than {MOST} different numbers: their squares cannot be checked")
        return self.chosen.setdefault(radicand, 1)

    def all(self) -> Iterator[None]:
        """Go through all choices; what is met after a sign that changed is met anew."""
        yield
        while self.chosen:
            radicand, sign = self.chosen.popitem()
            if sign == 1:
                self.chosen[radicand] = -1
                yield


@dataclass(frozen=True, slots=True)
class RootedFields(Fields):
    """Residues modulo p alone."""

    signs: Signs = field(default_factory=Signs)
    roots_factor: ClassVar[bool] = False

    def number(self, value: Fraction) -> Residues:
        return Residues(Fields.number(self, value).p, None)

    def root(self, value: Fraction) -> Residues:
        return Residues(Fields.root(self, value).p, None)

    def exp(self, x: Residues) -> Residues:
        return self.function("exp", x)

    def function(self, name: str, x: Residues) -> Residues:
        if name != "sqrt":
            return Fields.function(self, name, x)
        roots = np.empty(x.p.size, object)
        roots[:] = [self.square_root(radicand) for radicand in x.p.flat]
        return Residues(roots.reshape(x.p.shape), None)

    def square_root(self, radicand: int) -> int:
        p = self.primes.p
        sign = self.signs.of(radicand)
        root = pow(radicand, (p + 1) // 4, p)
        if radicand == 0 or root * root % p != radicand:
            raise Undefined(f"{radicand} is no square modulo {p}")
        return sign * root % p

    def values(self, arguments: list[str], shape: Sequence[int]) -> Residues:
        return Residues(Fields.values(self, arguments, tuple(shape)).p, None)
