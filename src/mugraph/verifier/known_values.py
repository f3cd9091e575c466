"""Inputs that are no variables: tensors with one value each, as exact numbers in the fields of a test and in its error bound.

Two functions may bring different tensors along (weights, masks, tables). Asked of these very tensors, the question is whether
the programs agree for all values of the other inputs; every float64 is an integer times a power of two, so it has exact residues.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from mugraph.algebra.fields import FieldPair, FieldValue
from mugraph.algebra.modular import Residues, multiply
from mugraph.errors import InvalidInput
from mugraph.ir.arithmetic import Array
from mugraph.verifier.degree_bounds import Fraction, PolynomialBound

Known = Mapping[int, Array]
"""Values of inputs by number: float64 arrays of the inputs' shapes."""

NOTHING: Known = MappingProxyType({})

_MANTISSA = 53


def check_known(known: Known) -> None:
    """Raises InvalidInput for values that are no numbers."""
    for number, array in known.items():
        if not np.isfinite(array).all():
            raise InvalidInput(f"the tensor given for input {number} holds infinities or NaN, which no test can compute with")


def residues(array: Array, pair: FieldPair) -> FieldValue:
    """The exact numbers of a float64 array, modulo both primes."""
    mantissas, exponents = _exact(array)
    return FieldValue(*(_scaled(mantissas, exponents, modulus) for modulus in (pair.p, pair.q)))


def magnitude(array: Array) -> Fraction:
    """Bounds of the elements as fractions with one denominator, a power of two."""
    mantissas, exponents = _exact(array)
    denominator = max(0, -int(exponents.min(initial=0)))
    bits = np.where(mantissas == 0, -denominator, np.frexp(mantissas.astype(np.float64))[1] + exponents)
    ids = np.broadcast_to(np.int64(0), array.shape)
    return Fraction(ids, PolynomialBound(bits=denominator + int(bits.max(initial=-denominator))), constant=1 << denominator)


def _exact(array: Array) -> tuple[Residues, Residues]:
    """Integers and exponents of two whose products are the elements, the integers odd or zero."""
    fractions, exponents = np.frexp(np.asarray(array, np.float64))
    mantissas = (fractions * 2.0**_MANTISSA).astype(np.int64)
    lowest = mantissas & -mantissas
    shift = np.where(mantissas == 0, 0, np.frexp(lowest.astype(np.float64))[1] - 1)
    return mantissas >> shift, np.where(mantissas == 0, 0, exponents.astype(np.int64) - _MANTISSA + shift)


def _scaled(mantissas: Residues, exponents: Residues, modulus: int) -> Residues:
    distinct, places = np.unique(exponents, return_inverse=True)
    powers = np.array([pow(2, int(exponent), modulus) for exponent in distinct], np.int64)
    return multiply(mantissas % modulus, powers[places].reshape(exponents.shape), np.array(modulus))
