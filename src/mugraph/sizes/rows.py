"""Two dimensions that stand side by side, as a batch and a length do, of functions that do the same to every row.

Then a call with `b` and `s` of them has the rows of a call with 1 and `b * s`: tensors are views of each other, and one range of
sizes is enough (docs/theory.md, "Rows of two sizes").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.sizes.dims import Dim

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Rows:
    """Two dimensions, of which `first` stands before `second`, and where they are.

    `places` has the arguments that have both, by position or name, and the first of their two dimensions; `results` has that of
    each tensor that is returned, None where it has rows in one dimension, or none.
    """

    first: Dim
    second: Dim
    places: tuple[tuple[int | str, int], ...]
    results: tuple[int | None, ...]

    @property
    def dim(self) -> Dim:
        """How many rows there are."""
        first, second = self.dims
        name = f"{first.name} x {second.name}"
        return Dim(name, first.low * second.low, first.high * second.high, first.multiple_of * second.multiple_of)

    @property
    def dims(self) -> tuple[Dim, Dim]:
        """The first and the second."""
        return self.first, self.second

    def check(self, sizes: Sequence[int]) -> None:
        """Raise ShapeMismatch for two sizes that were not declared, and InvalidInput for another number of them."""
        if len(sizes) != 2:
            raise InvalidInput(f"sizes of {self.first.name} and {self.second.name} are two numbers")
        self.first.check(sizes[0])
        self.second.check(sizes[1])

    def count(self, sizes: Sequence[int]) -> int:
        """How many rows two sizes have; raises what `check` raises."""
        self.check(sizes)
        return sizes[0] * sizes[1]

    def merged(self, sizes: tuple[int, int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with one of the first dimension and all rows in the second, contiguous ones as views; raises ShapeMismatch
        where one does not have these sizes, and InvalidInput where there is none."""
        positional, named = list(args), dict(kwargs)
        for argument, place in self.places:
            given: Any = named if isinstance(argument, str) else positional
            if argument not in (named if isinstance(argument, str) else range(len(positional))):
                raise InvalidInput(f"argument {argument!r} has {self.first.name} and {self.second.name}, and is not in the call")
            given[argument] = _reshaped(given[argument], place, sizes, (1, sizes[0] * sizes[1]))
        return positional, named

    def parted(self, sizes: tuple[int, int], made: Any) -> Any:
        """What is returned for merged arguments, as the function returns it for those of a call."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        tensors, structure = tree_flatten(made)
        merged = 1, sizes[0] * sizes[1]
        pairs = zip(tensors, self.results, strict=True)
        return tree_unflatten(
            [each if place is None else _reshaped(each, place, merged, sizes) for each, place in pairs], structure
        )

    def to_json(self) -> dict[str, Any]:
        """The dimensions and their places in results; those in arguments stand beside it."""
        return {"first": self.first.to_json(), "second": self.second.to_json(), "results": list(self.results)}

    @classmethod
    def of_json(cls, record: Mapping[str, Any], inputs: Sequence[int | None]) -> Self:
        """What was written, for calls with one tensor per input of a program, which have the second dimension at `inputs`. Raises
        KeyError, TypeError, ValueError and InvalidInput for what is malformed."""
        first, second = (Dim.of_json(record[name]) for name in ("first", "second"))
        results = tuple(None if place is None else int(place) for place in record["results"])
        if any(place is not None and place < 0 for place in results):
            raise ValueError("rows have two dimensions side by side")
        return cls(first, second, (), results).with_inputs(inputs)

    def with_inputs(self, inputs: Sequence[int | None]) -> Self:
        """These for calls with one tensor per input, which have the second dimension at `inputs`; raises ValueError where one has
        none before it."""
        places = tuple((number, place - 1) for number, place in enumerate(inputs) if place is not None)
        if any(place < 0 for _, place in places):
            raise ValueError("rows have two dimensions side by side")
        return replace(self, places=places)

    def places_in(self, dynamic: Sequence[tuple[int | str, int]]) -> list[tuple[int | str, int, Dim]]:
        """Where arguments of a function have both dimensions, of which the second is at these places."""
        return [(argument, place - 1 + more, dim) for argument, place in dynamic for more, dim in enumerate(self.dims)]


def _reshaped(tensor: torch.Tensor, place: int, sizes: tuple[int, int], wanted: tuple[int, int]) -> torch.Tensor:
    """A tensor with two other sizes from a dimension on, and the same elements in their order."""
    shape = tuple(getattr(tensor, "shape", ()))
    if shape[place : place + 2] != sizes:
        raise ShapeMismatch(f"a tensor of shape {list(shape)} does not have sizes {sizes[0]} and {sizes[1]} from {place} on")
    return tensor.reshape(*shape[:place], *wanted, *shape[place + 2 :])
