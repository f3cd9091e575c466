"""How a function is called that is one masked graph at every size of a dimension: what calls take, and what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_structure, tree_unflatten

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.symbolic_sizes.slots import Place, SlotPlaces
from mugraph.sizes.dims import Dim, repeated


@dataclass(frozen=True, slots=True)
class MaskedCalls:
    """Calls with any size of `dim`, and where inputs and outputs have it."""

    dim: Dim
    graph: SlotPlaces
    inputs: tuple[torch.Tensor, ...]
    """Those of an example call, in the order of the graph."""
    structure: TreeSpec
    """Of its arguments, the named ones in the order of their names."""
    results: TreeSpec
    takes_tensors: bool = field(init=False)
    """Whether calls are with tensors one by one, whose structure need not be looked at in each."""

    def __post_init__(self) -> None:
        one_by_one = tree_structure((self.inputs, {}))
        object.__setattr__(self, "takes_tensors", self.structure == one_by_one)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, list[torch.Tensor]]:
        """The size and the inputs of a call; raises InvalidInput and ShapeMismatch for what is none of this function."""
        given, structure = list(args), self.structure
        if kwargs or not self.takes_tensors or len(given) != len(self.inputs):
            given, structure = tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
        if structure != self.structure or not all(isinstance(each, torch.Tensor) for each in given):
            raise InvalidInput(f"call with {len(self.inputs)} tensors in the structure of the example call")
        sizes = {tensor.shape[place.dim] for tensor, place in self._varying(given)}
        if len(sizes) != 1:
            raise ShapeMismatch(f"dimension {self.dim.name} has sizes {', '.join(map(str, sorted(sizes)))} in one call")
        (size,) = sizes
        self.dim.check(size)
        for number, (tensor, place, example) in enumerate(zip(given, self.graph.inputs, self.inputs, strict=True)):
            wanted = shape_at(example.shape, place, size)
            if tuple(tensor.shape) != wanted or tensor.dtype is not example.dtype:
                raise ShapeMismatch(
                    f"input {number} is {tensor.dtype} of shape {list(tensor.shape)}, wanted is {example.dtype} of {list(wanted)}"
                )
        return size, given

    def unflatten(self, outputs: Sequence[torch.Tensor]) -> Any:
        """What the function returns."""
        if self.results.is_leaf():
            return outputs[0]
        return tree_unflatten(list(outputs), self.results)

    def resized(self, size: int) -> list[torch.Tensor]:
        """The inputs of the example call, repeated or cut to a size."""
        return [
            tensor if place is None else repeated(tensor, place.dim, size)
            for tensor, place in zip(self.inputs, self.graph.inputs, strict=True)
        ]

    def _varying(self, inputs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, Place]]:
        if len(inputs) != len(self.graph.inputs):
            raise InvalidInput(f"call with {len(self.graph.inputs)} tensors")
        varying = [(tensor, place) for tensor, place in zip(inputs, self.graph.inputs, strict=True) if place is not None]
        if any(tensor.dim() <= place.dim for tensor, place in varying):
            raise ShapeMismatch(f"an input has no dimension for {self.dim.name}")
        return varying


def shape_at(shape: Sequence[int], place: Place | None, size: int) -> tuple[int, ...]:
    """The shape of a tensor at a size of the axis."""
    return tuple(shape) if place is None else (*shape[: place.dim], size + place.more, *shape[place.dim + 1 :])
