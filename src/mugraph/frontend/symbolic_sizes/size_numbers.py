"""Numbers that are polynomials in sizes that vary: their degrees, and at which sizes they are 0 or change their sign."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mugraph.frontend.symbolic_sizes.axes import SizeMatters


@dataclass(frozen=True, slots=True)
class SizeNumber:
    """A polynomial in the sizes of dimensions, by their names."""

    degrees: Mapping[str, int]
    positive: bool
    """Whether it is larger than 0 at all sizes from 1 on, as all of its coefficients are."""
    vanishing: Mapping[str, frozenset[int]]
    """Of one that may not be positive and has one size in it, the whole numbers at and next to its roots."""

    @classmethod
    def of(cls, value: torch.SymInt, names: Mapping[Any, str]) -> SizeNumber:
        """A number that PyTorch computes of symbols with `names`; raises SizeMatters for one that is no polynomial in these."""
        polynomial = value.node.expr.as_poly(*names)
        if polynomial is None or value.node.expr.free_symbols - {*names}:
            raise SizeMatters(f"{value} is no polynomial in the sizes")
        degrees = dict.fromkeys(names.values(), 0)
        for symbol, name in names.items():
            degrees[name] += int(max(polynomial.degree(symbol), 0))  # of 0 it is less than any number
        positive = all(number > 0 for number in polynomial.coeffs())
        varying = [name for name, degree in degrees.items() if degree]
        vanishing = {} if positive or len(varying) != 1 else {varying[0]: _around_roots(polynomial)}
        return cls(degrees, positive, vanishing)


def _around_roots(polynomial: Any) -> frozenset[int]:
    roots = polynomial.exclude().real_roots(multiple=False)
    return frozenset(size for root, _ in roots for size in _around(root))


def _around(root: Any) -> set[int]:
    below, above = (int(end(root)) for end in (math.floor, math.ceil))
    return {below, above} if below < above else {below - 1, below, below + 1}
