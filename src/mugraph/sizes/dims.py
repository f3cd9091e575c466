"""Dimensions of which a range of sizes is declared, and where they stand among the arguments of a function."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mugraph.errors import InvalidInput, ShapeMismatch

if TYPE_CHECKING:
    import torch

_KNOWN = 2048
"""Sizes that are planned before they are called: with the plans of more a result would be made noticeably later."""

Sizes = tuple[int, ...]
"""One size for each declared dimension, in the order of their names."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of size `low` to `high`, both included; dimensions of one name have the same size in every call.

    Where `low` is 0 calls may have nothing of it, as of an empty batch: the function itself answers these.
    """

    name: str
    low: int
    high: int

    def __post_init__(self) -> None:
        numbers = isinstance(self.low, int) and isinstance(self.high, int)
        if not (numbers and 0 <= self.low <= self.high and self.high >= 1):
            raise InvalidInput(
                f"dimension {self.name} ranges from {self.low!r} to {self.high!r}; use 0 <= low <= high, and high from 1 on"
            )

    def check(self, size: int) -> None:
        """Raise ShapeMismatch for a size that was not declared."""
        if not self.low <= size <= self.high:
            raise ShapeMismatch(
                f"dimension {self.name} has size {size}, declared from {self.low} to {self.high}; declare a wider range"
            )


def known_sizes(dims: Iterable[Dim]) -> Iterator[Sizes]:
    """All sizes of some dimensions, if these are so few that calls of each are planned before there is one; else none."""
    ranges = [range(dim.low, dim.high + 1) for dim in dims]
    return itertools.product(*ranges) if math.prod(map(len, ranges)) <= _KNOWN else iter(())


Dynamic = Mapping[int | str, Mapping[int, Dim]]
"""For arguments, by position or name, which of their dimensions are dynamic."""


def may_be_empty(dynamic: Dynamic) -> bool:
    """Whether size 0 is declared of a dimension."""
    return any(dim.low == 0 for dims in dynamic.values() for dim in dims.values())


@dataclass(frozen=True, slots=True)
class Declared:
    """The dimensions that were declared of a function's arguments."""

    dynamic: Dynamic
    dims: Mapping[str, Dim]
    """All of them, by name."""

    @classmethod
    def of(cls, dynamic: Dynamic) -> Declared:
        """Raises InvalidInput for a declaration of nothing, or of one name with two ranges."""
        dims: dict[str, Dim] = {}
        for dim in (dim for of_argument in dynamic.values() for dim in of_argument.values()):
            if dims.setdefault(dim.name, dim) != dim:
                raise InvalidInput(f"dimension {dim.name} is declared with two ranges; give each range a name of its own")
        if not dims:
            raise InvalidInput("no dimension is dynamic; declare one, or use mugraph.superoptimize")
        return cls(dynamic, dims)

    def from_one(self) -> Declared:
        """What is declared of calls that have something of every dimension."""
        if not may_be_empty(self.dynamic):
            return self
        return Declared.of(
            {
                argument: {place: replace(dim, low=max(dim.low, 1)) for place, dim in dims.items()}
                for argument, dims in self.dynamic.items()
            }
        )

    def only(self, name: str) -> Declared:
        """What is declared of one of the dimensions."""
        of_name = {
            argument: {place: dim for place, dim in dims.items() if dim.name == name} for argument, dims in self.dynamic.items()
        }
        return Declared.of({argument: dims for argument, dims in of_name.items() if dims})

    def sizes_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sizes:
        """The sizes of the declared dimensions; raises ShapeMismatch where they are out of range or disagree."""
        sizes: dict[str, int] = {}
        for argument, tensor, position, dim in self.places(args, kwargs):
            size = int(tensor.shape[position])
            dim.check(size)
            if sizes.setdefault(dim.name, size) != size:
                raise ShapeMismatch(f"dimension {dim.name} is {size} in argument {argument!r} and {sizes[dim.name]} before it")
        return tuple(sizes[name] for name in self.dims)

    def resized(self, sizes: Sizes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments repeated or cut to other sizes; raises what `places` raises."""
        chosen = dict(zip(self.dims, sizes, strict=True))
        positional, named = list(args), dict(kwargs)
        for argument, _, position, dim in self.places(args, kwargs):
            if isinstance(argument, str):
                named[argument] = repeated(named[argument], position, chosen[dim.name])
            else:
                positional[argument] = repeated(positional[argument], position, chosen[dim.name])
        return tuple(positional), named

    def places(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[int | str, Any, int, Dim]]:
        """Argument, tensor, position and declaration of every dynamic dimension of a call."""
        for argument, dims in self.dynamic.items():
            if argument not in (kwargs if isinstance(argument, str) else range(len(args))):
                given = ", ".join(map(repr, (*range(len(args)), *kwargs))) or "none"
                remedy = "name it in `dynamic` as calls give it, by position or by name"
                raise InvalidInput(f"argument {argument!r} has dynamic dimensions and is not among a call's, {given}; {remedy}")
            tensor = kwargs[argument] if isinstance(argument, str) else args[argument]
            shape = getattr(tensor, "shape", None)
            if shape is None:
                raise InvalidInput(f"argument {argument!r} has dynamic dimensions and is no tensor but a {type(tensor).__name__}")
            for position, dim in dims.items():
                if not -len(shape) <= position < len(shape):
                    raise InvalidInput(f"argument {argument!r} of shape {list(shape)} has no dimension {position}")
                yield argument, tensor, position, dim

    def listed(self, table: Sequence[Mapping[str, int]]) -> list[Sizes]:
        """Sizes that are given by name, each once; raises InvalidInput and ShapeMismatch for what are none."""
        if not table:
            raise InvalidInput("an empty table; list at least one size")
        for sizes in table:
            if sizes.keys() != self.dims.keys():
                names = ", ".join(sizes), ", ".join(self.dims)
                raise InvalidInput(f"the table gives sizes of {names[0]}; the dynamic dimensions are {names[1]}")
            for name, size in sizes.items():
                self.dims[name].check(size)
        return list(dict.fromkeys(tuple(sizes[name] for name in self.dims) for sizes in table))


def repeated(tensor: torch.Tensor, position: int, size: int) -> torch.Tensor:
    """The tensor repeated or cut to a size along one dimension."""
    import torch

    return tensor.index_select(position, torch.arange(size, device=tensor.device) % tensor.shape[position])
