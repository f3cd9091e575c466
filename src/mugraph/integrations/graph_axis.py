"""Where graphs of `torch.compile` have an axis along which slices are independent, and their arguments and results in parts.

The axis is of one symbolic size, or of the rows of two that stand side by side everywhere, as those of a batch and of a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from mugraph.frontend.rewriting.graph_passes import owner_of
from mugraph.frontend.rewriting.node_traits import mutates
from mugraph.frontend.symbolic_sizes.axes import SizeMatters, axis_of
from mugraph.frontend.symbolic_sizes.merged_rows import merged_rows, pairs_of_results
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_slices, with_sizes

_SMALLEST = 2
"""PyTorch makes graphs of their own for sizes 0 and 1."""


@dataclass(frozen=True, slots=True)
class GraphAxis:
    """Where a graph's arguments and results have the axis: `number` is the argument that is its size.

    Of rows, `second` is the argument that is the size of the second of their two dimensions, and `pairs` says which results have
    two. Parts of them are of two dimensions, too: so many times two rows.
    """

    number: int
    inputs: tuple[tuple[int, int], ...]
    """Numbers and dimensions of the arguments that have it."""
    outputs: tuple[tuple[int, int] | None, ...]
    """By result, its dimension and how many elements of it a slice has."""
    second: int | None = None
    pairs: tuple[bool, ...] = ()

    @classmethod
    def of(cls, module: fx.GraphModule, numbers: Sequence[int]) -> GraphAxis:
        """The axis of a graph of ATen calls, whose arguments `numbers` decide all sizes.

        Raises SizeMatters, which says why, where slices along it are not independent.
        """
        if len(numbers) not in (1, 2):
            raise SizeMatters(f"{len(numbers)} sizes vary")
        graph = with_sizes(module.graph)
        if any(mutates(node) for node in graph.nodes if node.op == "call_function"):
            raise SizeMatters("a call changes a tensor")
        followed = graph if len(numbers) == 1 else merged_rows(graph)
        check_slices(followed)
        originals = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
        placeholders = [node.meta.get("val") for node in followed.nodes if node.op == "placeholder"]
        if not all(originals[number].node.expr.is_symbol for number in numbers):
            raise SizeMatters("no argument is the size itself")
        inputs = tuple(
            (number, dim)
            for number, value in enumerate(placeholders)
            if isinstance(value, torch.Tensor) and (dim := axis_of(value)) is not None
        )
        ordered = _in_order(originals, inputs, numbers)
        sizes = [originals[number].node.expr for number in ordered]
        for number, dim in inputs:
            if [_expression(size) for size in originals[number].shape[dim : dim + len(sizes)]] != sizes:
                raise SizeMatters("an argument has several elements for each slice")
            if not originals[number].is_contiguous():
                raise SizeMatters("an argument is not contiguous")
        results = _results(graph)
        places = tuple(map(_place, _results(followed)))
        if not all(result.is_contiguous() for result, place in zip(results, places, strict=True) if place is not None):
            raise SizeMatters("a result is not contiguous")
        if len(numbers) == 1:
            return cls(numbers[0], inputs, places)
        firsts = iter(pairs_of_results(graph, followed))
        pairs = tuple(result is not None and next(firsts) is not None for result in results)
        return cls(ordered[0], inputs, places, ordered[1], pairs)

    @property
    def of_rows(self) -> bool:
        """Whether it is that of the rows of two dimensions."""
        return self.second is not None

    @property
    def smallest(self) -> int:
        """The smallest size that calls have: two of each dimension."""
        return _SMALLEST * _SMALLEST if self.of_rows else _SMALLEST

    def size(self, arguments: Sequence[Any]) -> int:
        """The size in a call."""
        number: int = arguments[self.number]
        return number if self.second is None else number * int(arguments[self.second])

    def resized(self, arguments: Sequence[Any], size: int) -> list[Any]:
        """Arguments of another size, their slices repeated or left out."""
        made = self._sized(arguments, size)
        for number, dim in self.inputs:
            whole = self._rows(arguments[number], dim)
            rows = torch.arange(size, device=whole.device) % whole.shape[dim]
            made[number] = self._paired(whole.index_select(dim, rows), dim, size)
        return made

    def cut(self, arguments: Sequence[Any], start: int, size: int) -> list[Any]:
        """The slices from `start` on, contiguous where dimensions before theirs would be strided."""
        made = self._sized(arguments, size)
        for number, dim in self.inputs:
            part = self._rows(arguments[number], dim).narrow(dim, start, size)
            made[number] = self._paired(part if dim == 0 else part.contiguous(), dim, size)
        return made

    def flat(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Results of a part, with one dimension along the axis."""
        if self.second is None:
            return outputs
        pairs = zip(outputs, self.outputs, self.pairs, strict=True)
        return [output.flatten(place[0], place[0] + 1) if place and paired else output for output, place, paired in pairs]

    def shaped(self, arguments: Sequence[Any], outputs: list[Any]) -> list[Any]:
        """Results with one dimension along the axis as those of a call."""
        if self.second is None:
            return outputs
        sizes = arguments[self.number], arguments[self.second]
        pairs = zip(outputs, self.outputs, self.pairs, strict=True)
        return [output.unflatten(place[0], sizes) if place and paired else output for output, place, paired in pairs]

    def _sized(self, arguments: Sequence[Any], size: int) -> list[Any]:
        made = list(arguments)
        made[self.number] = size if self.second is None else size // _SMALLEST
        if self.second is not None:
            made[self.second] = _SMALLEST
        return made

    def _rows(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return tensor if self.second is None else tensor.flatten(dim, dim + 1)

    def _paired(self, tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        if self.second is None:
            return tensor
        return tensor.view(*tensor.shape[:dim], size // _SMALLEST, _SMALLEST, *tensor.shape[dim + 1 :])


def _in_order(originals: Sequence[Any], inputs: Sequence[tuple[int, int]], numbers: Sequence[int]) -> list[int]:
    """The arguments that are sizes, in the order in which arguments have these."""
    if len(numbers) == 1:
        return list(numbers)
    number, dim = inputs[0]
    symbols = [_expression(size) for size in originals[number].shape[dim : dim + 2]]
    if not all(originals[each].node.expr in symbols for each in numbers):
        raise SizeMatters("an argument has both sizes in one dimension")
    return sorted(numbers, key=lambda each: symbols.index(originals[each].node.expr))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _results(graph: fx.Graph) -> list[Any]:
    """What a graph returns, without data; raises SizeMatters unless that is a tuple of tensors that share no memory."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    if not isinstance(output.args[0], (tuple, list)):
        raise SizeMatters("it does not return a tuple")
    owners = [owner_of(node) for node in output.args[0] if isinstance(node, fx.Node)]
    if len({*owners}) < len(owners):
        raise SizeMatters("results share memory")
    return [node.meta.get("val") if isinstance(node, fx.Node) else node for node in output.args[0]]


def _place(result: Any) -> tuple[int, int] | None:
    """Where a result has the axis; raises SizeMatters for what is no tensor."""
    if not isinstance(result, torch.Tensor):
        if result is None:
            return None
        raise SizeMatters(f"it returns a {type(result).__name__}")
    dim = axis_of(result)
    if dim is None:
        return None
    size: Any = result.shape[dim]
    return dim, int(size.node.expr.as_coeff_Mul()[0])
