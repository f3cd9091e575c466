"""Field arithmetic under the free semantics (docs/theory.md): what is not LAX is a random function, and maxima nest."""

from __future__ import annotations

from typing import Any

import numpy as np

from mugraph.algebra.fields import FieldValue, NestingArithmetic
from mugraph.algebra.modular import Residues
from mugraph.ir.arithmetic import Array
from mugraph.ir.ops import LOWEST
from mugraph.ir.scalar import Scalar
from mugraph.verifier.variables import Maxima, Numbers, RandomFunction, pattern


class MaximaArithmetic(NestingArithmetic):
    """Random functions of the residue modulo p, and maxima that are random functions of the set of their elements.

    Values are drawn as arguments are met, so that graphs which are to be compared are evaluated by one such arithmetic; which
    values those are depends on the order. The maximum of equal elements is that element. What passed through an exponential
    before a maximum did so after it.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rng = np.random.default_rng(self.seed)
        self._least: FieldValue | None = None
        self._functions: dict[str, RandomFunction] = {}
        self._maxima = {known: Maxima(self.variables, residues) for known, residues in ((True, _modulo_p), (False, _modulo_q))}

    def variables(self, count: int) -> FieldValue:
        """A vector of fresh random values."""
        return self.random((count,), self._rng)

    def constant(self, value: Scalar) -> FieldValue:
        """A number; the least one of maxima is a variable, since graphs that agree whatever it is agree for what it is."""
        if value is not LOWEST:
            return super().constant(value)
        if self._least is None:
            self._least = self.view(self.variables(1), lambda residues: residues.reshape(()))
        return self._least

    @property
    def pattern(self) -> tuple[str, ...]:
        """Which arguments of functions, and which elements and values of maxima, have been the same so far."""
        met = [self._functions[name].met for name in sorted(self._functions)] + [maxima.met for maxima in self._maxima.values()]
        return tuple(pattern(residues) for residues in met)

    def opaque(self, name: str, x: FieldValue) -> FieldValue:
        if name not in self._functions:
            self._functions[name] = RandomFunction(self.variables)
        return self._functions[name](x.p)

    def max(self, x: FieldValue, axis: int) -> FieldValue:
        if (x.known_p is None and x.q is None) or x.shape[axis] == 1:
            return x
        maxima = self._maxima[x.known_p is not None]
        rows = np.moveaxis(_modulo_q(x) if x.known_p is None else x.p, axis, -1)
        numbers = np.expand_dims(maxima.numbers(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1]), axis)
        first = self.view(x, lambda residues: np.take(residues, [0], axis))
        if (numbers < 0).all():
            return first
        values = maxima.values(numbers)
        return FieldValue(_chosen(numbers, first.known_p, values.known_p), _chosen(numbers, first.q, values.q))


def _modulo_p(value: FieldValue) -> Residues:
    return value.p


def _modulo_q(value: FieldValue) -> Residues:
    assert value.q is not None
    return value.q


def _chosen(numbers: Numbers, elements: Residues | None, values: Residues | None) -> Array | None:
    """Maxima of sets with a number, and elements of those without; None where elements have no residues."""
    return None if elements is None or values is None else np.where(numbers < 0, elements, values)


class FreeArithmetic(MaximaArithmetic):
    """`sqrt` and opaque functions are random functions of their argument, and so is an exponential of what passed through an
    exponential: nothing is assumed but that equals give equals."""

    def sqrt(self, x: FieldValue) -> FieldValue:
        return self.opaque("sqrt", x)
