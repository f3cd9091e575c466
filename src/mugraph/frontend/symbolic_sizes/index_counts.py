"""How often a tensor's elements are summed over axes of varying size: at how many sizes equality has to be tested to hold at all.

A *local* element is any function of elements of inputs that have its own indices along these axes, the same one at every size.
Sums and products of local elements over the axes, and numbers made of sizes, are counted; other functions of them are not known
to be decided by a few sizes (docs/theory.md, "Cutoffs"). Counts may be too large, which costs tests; none may be too small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mugraph.frontend.symbolic_sizes.axes import SizeMatters

Size = int | str
"""Of a dimension: a number, or the name of a dimension whose size varies."""
Counts = Mapping[str, int]
"""By the name of a dimension whose size varies; 0 for those that are left out."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Bounds on a sum of terms, for every element of a tensor: a term is a local element, summed over indices, times numbers."""

    order: Counts = field(default_factory=dict)
    """Indices that a term is summed over, plus the degree of its number in the size."""
    varies: frozenset[int] = frozenset()
    """Dimensions along which elements may differ."""
    positive: bool = False
    """Whether elements are known to be larger than 0 wherever they are defined, at every size."""

    @property
    def is_local(self) -> bool:
        """Whether nothing is summed, and no number has a size in it."""
        return not any(self.order.values())

    def __mul__(self, other: Sums) -> Sums:
        names = {**self.order, **other.order}
        order = {name: self.order.get(name, 0) + other.order.get(name, 0) for name in names}
        return Sums(order, self.varies | other.varies, self.positive and other.positive)

    def __or__(self, other: Sums) -> Sums:
        """The sum of both, or one or the other by the element."""
        names = {**self.order, **other.order}
        order = {name: max(self.order.get(name, 0), other.order.get(name, 0)) for name in names}
        return Sums(order, self.varies | other.varies, self.positive and other.positive)

    def power(self, exponent: int) -> Sums:
        """The product of so many, with these bounds."""
        return replace(self, order={name: count * exponent for name, count in self.order.items()})

    def moved(self, places: Mapping[int, int]) -> Sums:
        """With other dimensions, by where they were; along those that are left out elements do not differ."""
        return replace(self, varies=frozenset(places[dim] for dim in self.varies if dim in places))

    def regrouped(self, groups: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Sums:
        """With other dimensions, in groups of those that stand for each other: along which of them is not followed."""
        return replace(self, varies=frozenset(place for ours, its in groups if not self.varies.isdisjoint(ours) for place in its))

    def summed(self, dim: int, size: Size) -> Sums:
        """Summed over a dimension."""
        total = replace(self, varies=self.varies - {dim})
        return total * Sums({size: 1}, positive=True) if isinstance(size, str) else total


ONE = Sums(positive=True)


@dataclass(frozen=True, slots=True)
class Quotient:
    """Bounds on elements that are one sum divided by another, which is 1 where it would be local."""

    top: Sums = ONE
    bottom: Sums = ONE
    everywhere: bool = True
    """Whether no sum that is divided by, on the way to it either, may be 0 where local elements are defined."""

    @classmethod
    def local(cls, varies: Iterable[int], positive: bool = False) -> Quotient:
        """Bounds on local elements."""
        return cls(Sums(varies=frozenset(varies), positive=positive))

    @property
    def is_local(self) -> bool:
        """Whether elements are functions of elements of inputs with their indices."""
        return self.top.is_local and self.bottom is ONE

    def __add__(self, other: Quotient) -> Quotient:
        top = self.top * other.bottom | other.top * self.bottom
        return Quotient(top, _product(self.bottom, other.bottom), self.everywhere and other.everywhere)

    def __sub__(self, other: Quotient) -> Quotient:
        return self + replace(other, top=replace(other.top, positive=False))

    def __mul__(self, other: Quotient) -> Quotient:
        bottom = _product(self.bottom, other.bottom)
        return Quotient(self.top * other.top, bottom, self.everywhere and other.everywhere)

    def __truediv__(self, other: Quotient) -> Quotient:
        everywhere = self.everywhere and other.everywhere
        if other.top.is_local:
            return Quotient(self.top * other.top * other.bottom, self.bottom, everywhere)
        bottom = _product(self.bottom, other.top)
        return Quotient(self.top * other.bottom, bottom, everywhere and other.top.positive)

    def __or__(self, other: Quotient) -> Quotient:
        """One or the other by the element."""
        none = self.bottom is ONE and other.bottom is ONE
        bottom = ONE if none else self.bottom | other.bottom
        return Quotient(self.top | other.top, bottom, self.everywhere and other.everywhere)

    def signed(self) -> Quotient:
        """The same with signs that are not known."""
        return replace(self, top=replace(self.top, positive=False))

    def along(self, dim: int) -> Quotient:
        """The same, which may differ along a dimension, too."""
        return self._with(lambda each: replace(each, varies=each.varies | {dim}))

    def moved(self, places: Mapping[int, int]) -> Quotient:
        """As `Sums.moved`."""
        return self._with(lambda each: each.moved(places))

    def regrouped(self, groups: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Quotient:
        """As `Sums.regrouped`."""
        return self._with(lambda each: each.regrouped(groups))

    def _with(self, change: Callable[[Sums], Sums]) -> Quotient:
        return Quotient(change(self.top), self.bottom if self.bottom is ONE else change(self.bottom), self.everywhere)

    def summed(self, sizes: Mapping[int, Size]) -> Quotient:
        """Summed over dimensions, of which it has the sizes; raises SizeMatters where there is no common denominator of as many
        factors at every size."""
        top, bottom = self.top, self.bottom
        for dim, size in sizes.items():
            if dim in bottom.varies:
                if isinstance(size, str):
                    raise SizeMatters(f"it sums over {size} what is divided by another sum at each index of it")
                top, bottom = top * bottom.power(max(size, 1) - 1), bottom.power(max(size, 1))
                bottom = replace(bottom, varies=bottom.varies - {dim})
            top = top.summed(dim, size)
        return Quotient(top, bottom, self.everywhere)


def _product(one: Sums, other: Sums) -> Sums:
    """Of denominators."""
    return one if other is ONE else other if one is ONE else one * other


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Of a dimension: two outputs that are equal at `count` sizes of at least `first` are equal at all sizes from 1 on."""

    first: int = 1
    count: int = 1

    def __or__(self, other: Cutoff) -> Cutoff:
        """What does for other outputs, too."""
        return Cutoff(max(self.first, other.first), max(self.count, other.count))


def cutoffs(left: Quotient, right: Quotient, shape: Sequence[Size]) -> dict[str, Cutoff]:
    """For each dimension of varying size those of two outputs of one shape.

    Of several dimensions, each size that one of them is tested at goes with each of the others.
    """
    order = (left.top * right.bottom | right.top * left.bottom).order
    free = [size for size in shape if isinstance(size, str)]
    return {name: Cutoff(max(free.count(name), 1), 1 + order.get(name, 0)) for name in {**order, **dict.fromkeys(free)}}
