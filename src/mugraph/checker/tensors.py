"""Tensors of any domain, and what is computed with them: fields, floating point, sizes of formal expressions.

A domain computes with tensors of its own; all it must do is listed in `Domain`. Square roots distribute over products
(docs/theory.md): a `DomainTensor` remembers what it is a product of, and roots are taken of the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Raw = Any
"""A tensor of a domain."""

LEAST = {"lowest": -Fraction(2**128 - 2**104)}
"""What a maximum may be over besides its elements: the least number of fp32, for which a domain may take a variable."""
_MOST_FACTORS = 6


class Domain(Protocol):
    """What can be done with the tensors of a domain; pairs broadcast as in NumPy, reductions keep the axis with size 1.

    With `roots_factor`, the root of a product is computed as the product of roots, otherwise only constants are taken out.
    """

    @property
    def roots_factor(self) -> bool: ...

    def number(self, value: Fraction) -> Raw: ...
    def least(self, value: Fraction) -> Raw:
        """The number that a maximum is over besides its elements, or a variable: what holds whatever it is holds for that one."""

    def root(self, value: Fraction) -> Raw:
        """The square root of a positive number."""

    def add(self, x: Raw, y: Raw) -> Raw: ...
    def subtract(self, x: Raw, y: Raw) -> Raw: ...
    def multiply(self, x: Raw, y: Raw) -> Raw: ...
    def divide(self, x: Raw, y: Raw) -> Raw: ...
    def exp(self, x: Raw) -> Raw: ...
    def sum(self, x: Raw, axis: int) -> Raw: ...
    def function(self, name: str, *xs: Raw) -> Raw:
        """A function of one tensor, or of several that broadcast, in their order."""

    def row_function(self, name: str, x: Raw, axis: int) -> Raw:
        """A function of all elements along an axis, in any order."""

    def move(self, xs: Sequence[Raw], move: Callable[[list[Array]], Array]) -> Raw:
        """Rearrange the elements of tensors."""

    def shape(self, x: Raw) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class DomainTensor:
    """A tensor of a domain, which is scale * product(over) / product(under)."""

    raw: Raw
    over: tuple[Raw, ...]
    under: tuple[Raw, ...] = ()
    scale: Fraction = Fraction(1)


def plain(raw: Raw) -> DomainTensor:
    """A tensor that is no known product."""
    return DomainTensor(raw, (raw,))


def joined(parts: list[DomainTensor], dim: int, domain: Domain) -> DomainTensor:
    """Tensors one after the other along a dimension; if all are products of as many factors, so is the whole."""
    if len(parts) == 1:
        return parts[0]

    def whole(raws: list[Raw]) -> Raw:
        shapes = [domain.shape(part.raw) for part in parts]
        return domain.move(raws, lambda arrays: np.concatenate(list(map(np.broadcast_to, arrays, shapes)), axis=dim))

    raw = whole([part.raw for part in parts])
    if len({(len(part.over), len(part.under), part.scale) for part in parts}) > 1:
        return plain(raw)
    over, under = (tuple(whole(list(raws)) for raws in zip(*factors, strict=True)) for factors in _factors(parts))
    return DomainTensor(raw, over, under, parts[0].scale)


def _factors(parts: list[DomainTensor]) -> tuple[list[tuple[Raw, ...]], list[tuple[Raw, ...]]]:
    return [part.over for part in parts], [part.under for part in parts]


def first(raw: Raw, domain: Domain) -> Raw:
    """The first along the first axis: shape [n, ...] becomes [...]."""
    return domain.move([raw], lambda arrays: arrays[0][0])


def constant(text: str, domain: Domain) -> DomainTensor:
    """The number that is written as `text`."""
    root = "sqrt(" in text
    number = Fraction(text.replace("sqrt(", "").replace(")", ""))
    if not root:
        return DomainTensor(domain.number(number), (), (), number)
    raw = domain.root(abs(number))
    return plain(raw if number >= 0 else domain.multiply(domain.number(Fraction(-1)), raw))


def product(x: DomainTensor, y: DomainTensor, domain: Domain) -> DomainTensor:
    """x y."""
    raw = domain.multiply(x.raw, y.raw)
    return _limited(DomainTensor(raw, (*x.over, *y.over), (*x.under, *y.under), x.scale * y.scale))


def quotient(x: DomainTensor, y: DomainTensor, domain: Domain) -> DomainTensor:
    """x / y."""
    raw = domain.divide(x.raw, y.raw)
    return _limited(DomainTensor(raw, (*x.over, *y.under), (*x.under, *y.over), x.scale / y.scale)) if y.scale else plain(raw)


def scaled(raw: Raw, scale: Fraction, domain: Domain) -> DomainTensor:
    """A sum of multiples by one constant is that multiple of a sum."""
    if scale == 1 or scale <= 0:
        return plain(raw)
    return DomainTensor(raw, (domain.multiply(raw, domain.number(1 / scale)),), (), scale)


def common_scale(scales: Sequence[Fraction]) -> Fraction:
    """The factor that all have; 1 where they differ."""
    return scales[0] if len({*scales}) == 1 else Fraction(1)


def _limited(tensor: DomainTensor) -> DomainTensor:
    return tensor if tensor.scale and len(tensor.over) + len(tensor.under) <= _MOST_FACTORS else plain(tensor.raw)


def root(x: DomainTensor, domain: Domain) -> DomainTensor:
    """sqrt(c x y / z) is sqrt(c) sqrt(x) sqrt(y) / sqrt(z) for a constant c that is not negative, or sqrt(c) sqrt(x y / z)."""
    if x.scale < 0 or (x.scale == 0 and not domain.roots_factor):
        return plain(domain.function("sqrt", x.raw))
    result = domain.root(x.scale)
    if not domain.roots_factor:
        if not x.over and not x.under:
            return plain(result)
        rest = domain.multiply(x.raw, domain.number(1 / x.scale))
        return plain(domain.multiply(result, domain.function("sqrt", rest)))
    for factor in x.over:
        result = domain.multiply(result, domain.function("sqrt", factor))
    for factor in x.under:
        result = domain.divide(result, domain.function("sqrt", factor))
    return plain(result)


def added(x: DomainTensor, y: DomainTensor, domain: Domain) -> DomainTensor:
    """x + y."""
    return scaled(domain.add(x.raw, y.raw), common_scale([x.scale, y.scale]), domain)


def multiplied(x: DomainTensor, y: DomainTensor, domain: Domain) -> DomainTensor:
    """The product of matrices x [..., rows, k] and y [..., k, columns], of shape [..., rows, columns]."""
    rows = domain.move([x.raw], lambda arrays: arrays[0][..., :, :, None])
    columns = domain.move([y.raw], lambda arrays: arrays[0][..., None, :, :])
    products = domain.multiply(rows, columns)
    total = domain.sum(products, len(domain.shape(products)) - 2)
    return scaled(domain.move([total], lambda arrays: arrays[0][..., 0, :]), x.scale * y.scale, domain)


def reduced(op: str, raw: Raw, dim: int, size: int, domain: Domain, least: str | None = None) -> Raw:
    """The sum or maximum of every `size` neighbours along `dim`, which is n / size long in the result where it was n."""
    shape = domain.shape(raw)
    groups = (*shape[:dim], shape[dim] // size, size, *shape[dim + 1 :])
    grouped = domain.move([raw], lambda arrays: arrays[0].reshape(groups))
    if least is not None:
        one = (*groups[: dim + 1], 1, *groups[dim + 2 :])
        grouped = domain.move(
            [grouped, domain.least(LEAST[least])],
            lambda arrays: np.concatenate([arrays[0], np.broadcast_to(arrays[1], one)], axis=dim + 1),
        )
    reduced = domain.sum(grouped, dim + 1) if op == "sum" else domain.row_function("max", grouped, dim + 1)
    return domain.move([reduced], lambda arrays: np.squeeze(arrays[0], dim + 1))


def moved(x: DomainTensor, move: Callable[[Array], Array], domain: Domain) -> DomainTensor:
    """The elements of a tensor in other places, and of its factors."""
    raw = domain.move([x.raw], lambda arrays: move(arrays[0]))
    if len(x.over) == 1 and not x.under and x.over[0] is x.raw:
        return plain(raw)
    shape = domain.shape(x.raw)

    def factor(part: Raw) -> Raw:
        return domain.move([part], lambda arrays: move(np.broadcast_to(arrays[0], shape)))

    return DomainTensor(raw, tuple(map(factor, x.over)), tuple(map(factor, x.under)), x.scale)
