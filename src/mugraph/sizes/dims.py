"""Dimensions of which a range of sizes is declared, and where they stand among the arguments of a function."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self, Union

from mugraph.errors import InvalidInput, ShapeMismatch

if TYPE_CHECKING:
    import torch

_KNOWN = 2048
"""Sizes that are planned before they are called: with the plans of more a result would be made noticeably later."""

Sizes = tuple[int, ...]
"""One size for each declared dimension, in the order of their names."""

_REMEDY = "declare dimensions by argument and position, as in {0: {0: Dim('batch', 1, 64)}}"


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of size `low` to `high`, both included; dimensions of one name have the same size in every call.

    Its sizes are multiples of `multiple_of`, and so are both ends. Where `low` is 0 calls may have nothing of it, as of an empty
    batch: the function itself answers these. Raises InvalidInput for what is no such range.
    """

    name: str
    low: int
    high: int
    multiple_of: int = 1

    def __post_init__(self) -> None:
        numbers = isinstance(self.low, int) and isinstance(self.high, int)
        if not (numbers and 0 <= self.low <= self.high and self.high >= 1):
            raise InvalidInput(
                f"dimension {self.name} ranges from {self.low!r} to {self.high!r}; use 0 <= low <= high, and high from 1 on"
            )
        step = self.multiple_of
        if not (isinstance(step, int) and step >= 1) or self.low % step or self.high % step:
            raise InvalidInput(
                f"dimension {self.name} ranges from {self.low} to {self.high} by multiples of {step!r}; use a number from 1 on "
                "that divides both ends"
            )

    @property
    def sizes(self) -> range:
        """All of them, in order."""
        return range(self.low, self.high + 1, self.multiple_of)

    @property
    def said(self) -> str:
        """The range in a sentence, behind `every size`."""
        multiples = f" that is a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"from {self.low} to {self.high} of {self.name}{multiples}"

    @property
    def short(self) -> str:
        """The range in a list."""
        return f"{self.name} {self.low}..{self.high}" + (f" by {self.multiple_of}" if self.multiple_of > 1 else "")

    def below(self, number: int) -> int:
        """The largest multiple that is no larger than a number, which may be beyond `high`, and no smaller than `low`."""
        return max(number // self.multiple_of * self.multiple_of, self.low)

    def at_least(self, number: int) -> int:
        """The smallest size that is no smaller than a number, which may be beyond `high`."""
        return max(-(-number // self.multiple_of) * self.multiple_of, self.low)

    def middle(self, low: int, high: int) -> int | None:
        """A size between two: so many multiples that they are a power of two where there is one, or have as few digits in base
        two as there can be."""
        middle = _middle(low // self.multiple_of, high // self.multiple_of)
        return None if middle is None else middle * self.multiple_of

    def check(self, size: int) -> None:
        """Raise ShapeMismatch for a size that was not declared."""
        if not self.low <= size <= self.high:
            raise ShapeMismatch(
                f"dimension {self.name} has size {size}, declared from {self.low} to {self.high}; declare a wider range"
            )
        if size % self.multiple_of:
            raise ShapeMismatch(
                f"dimension {self.name} has size {size}, declared as a multiple of {self.multiple_of} from {self.low} to "
                f"{self.high}; pad it, or declare a number that divides all sizes"
            )

    def to_json(self) -> dict[str, Any]:
        """What a document says of it."""
        return asdict(self)

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> Self:
        """What was written; documents of before say nothing of multiples. Raises KeyError and InvalidInput for what is none."""
        return cls(str(record["name"]), record["low"], record["high"], record.get("multiple_of", 1))


def known_sizes(dims: Iterable[Dim]) -> Iterator[Sizes]:
    """All sizes of some dimensions, if these are so few that calls of each are planned before there is one; else none."""
    ranges = [dim.sizes for dim in dims]
    return itertools.product(*ranges) if math.prod(map(len, ranges)) <= _KNOWN else iter(())


def primes_among(sizes: Iterable[int], unit: int) -> list[int]:
    """Those of some multiples of a unit that are a prime number of it."""
    counts = ((size, size // unit) for size in sizes)
    return [size for size, count in counts if count > 1 and all(count % divisor for divisor in range(2, count))]


def _middle(low: int, high: int) -> int | None:
    """A number between two, a power of two where there is one, or one with as few digits in base two as there can be."""
    if high - low < 2:
        return None
    aim = math.sqrt(low * high)
    if low < (power := 1 << round(math.log2(aim))) < high:
        return power
    for digits in range(high.bit_length(), -1, -1):
        step = 1 << digits
        inside = [size for size in (int(aim) // step * step, (int(aim) // step + 1) * step) if low < size < high]
        if inside:
            return min(inside, key=lambda size: abs(math.log(size / aim)))
    return None


Dynamic = Mapping[int | str, Mapping[int, Dim]]
"""For arguments, by position or name, which of their dimensions are dynamic."""
Declaration = Mapping[int | str, Mapping[int, Union[Dim, "torch.export.Dim"]]]
"""The same as users give it."""


def declared_dims(dynamic: Declaration) -> Dynamic:
    """What a user declares, with dimensions of `torch.export` as such of ours. Raises InvalidInput, naming what was given, for
    anything but mappings of arguments to mappings of positions to dimensions with two ends."""
    return {argument: _dims_of(argument, dims) for argument, dims in _mapping("dynamic", dynamic, int, str).items()}


def _dims_of(argument: int | str, dims: Any) -> dict[int, Dim]:
    name = f"dynamic[{argument!r}]"
    return {position: _dim_of(f"{name}[{position}]", dim) for position, dim in _mapping(name, dims, int).items()}


def _mapping(name: str, given: Any, *keys: type) -> Mapping[Any, Any]:
    """A mapping whose keys are of these types."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{name} is {given!r}, and no mapping; {_REMEDY}")
    for key in given:
        if type(key) not in keys:
            raise InvalidInput(f"{name} has {key!r} for a key; {_REMEDY}")
    return given


def _dim_of(name: str, given: Any) -> Dim:
    if isinstance(given, Dim):
        return given
    export = sys.modules.get("torch.export")  # whoever gives one of its dimensions has loaded it
    if export is None or not isinstance(given, export.Dim):
        raise InvalidInput(f"{name} is {given!r}, and no Dim; {_REMEDY}")
    own, low, high = given.__name__, given.min, given.max
    if type(given) is not export.Dim:
        raise InvalidInput(
            f"{name} is {own}, which PyTorch derives from another dimension; declare its own range, as in "
            f"Dim('size', {low}, {high}, multiple_of=...)"
        )
    if not isinstance(high, int):
        raise InvalidInput(f"{name} is {own}, which has no largest size; give max= to torch.export.Dim")
    return Dim(own, low, high)


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
    def of(cls, declaration: Declaration) -> Declared:
        """Raises InvalidInput for what is none (`declared_dims`), for a declaration of nothing, or of one name with two
        ranges."""
        dims: dict[str, Dim] = {}
        dynamic = declared_dims(declaration)
        for dim in (dim for of_argument in dynamic.values() for dim in of_argument.values()):
            if dims.setdefault(dim.name, dim) != dim:
                raise InvalidInput(f"dimension {dim.name} is declared with two ranges; give each range a name of its own")
        if not dims:
            raise InvalidInput("no dimension is dynamic; declare one, or leave dynamic out")
        return cls(dynamic, dims)

    def from_one(self) -> Declared:
        """What is declared of calls that have something of every dimension."""
        if not may_be_empty(self.dynamic):
            return self
        return Declared.of(
            {
                argument: {place: replace(dim, low=max(dim.low, dim.multiple_of)) for place, dim in dims.items()}
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
                raise ShapeMismatch(
                    f"dimension {dim.name} is {size} in argument {argument!r} and {sizes[dim.name]} before it; calls have one "
                    f"size {dim.said}"
                )
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
            if shape is None or not hasattr(tensor, "numel"):  # as a NumPy array
                raise InvalidInput(f"argument {argument!r} has dynamic dimensions and is no tensor but a {type(tensor).__name__}")
            named: dict[int, str] = {}
            for position, dim in dims.items():
                if not -len(shape) <= position < len(shape):
                    raise InvalidInput(f"argument {argument!r} of shape {list(shape)} has no dimension {position}")
                if (name := named.setdefault(position % len(shape), dim.name)) != dim.name:
                    raise InvalidInput(
                        f"dimension {position} of argument {argument!r} is {name} and {dim.name}; give it one name"
                    )
                yield argument, tensor, position, dim

    def bytes_at(self, sizes: Mapping[str, int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Bytes of the arguments with declared dimensions, where some of these have other `sizes`, by name."""
        taken: dict[int | str, int] = {}
        of_dims = {
            (argument, position % tensor.dim()): (tensor, dim) for argument, tensor, position, dim in self.places(args, kwargs)
        }
        for (argument, position), (tensor, dim) in of_dims.items():
            before, own = taken.get(argument, tensor.numel() * tensor.element_size()), tensor.shape[position]
            taken[argument] = before // max(own, 1) * sizes.get(dim.name, own)
        return sum(taken.values())

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
