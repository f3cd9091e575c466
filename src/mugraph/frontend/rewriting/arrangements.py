"""Concatenations of equal blocks of one tensor, such as the halves that a rotary embedding exchanges, as calls of one operator.

`with_arrangements` makes them calls of `mugraph.frontend.rewriting.permuted_blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.frontend.operators.torch_casts import arguments_of_call, lazy_module
from mugraph.frontend.rewriting.node_traits import mutates
from mugraph.frontend.rewriting.permuted_blocks import TINY_MATRIX, Blocks, arranged

_aten = torch.ops.aten
_MADE_OF = frozenset({_aten.slice.Tensor, _aten.split.Tensor, _aten.neg.default, getitem})
"""Calls that blocks are made by."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What a concatenation makes of one tensor: `blocks` of the `count` equal ones that `source` has along `dim`."""

    source: fx.Node
    dim: int
    count: int
    blocks: Blocks

    def matrix(self) -> torch.Tensor:
        """The matrix [blocks of the result, blocks of the source] that does it, with the source's dtype and device."""
        like = self.source.meta["val"]
        with _disable_current_modes():  # Dynamo's, under which tensors have no data
            matrix = torch.zeros(len(self.blocks), self.count, dtype=like.dtype, device=like.device)
            for row, (sign, number) in enumerate(self.blocks):
                matrix[row, number] = sign
        return matrix


def with_arrangements(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls with `arranged` in the place of concatenations of equal blocks of one tensor.

    The matrices, of at most `TINY_MATRIX` elements, become buffers of the module. Other concatenations stay, and so does what
    follows a call that changes an operand, for that may be the tensor.
    """
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    tensors = {str(node.target): attrgetter(str(node.target))(module) for node in module.graph.nodes if node.op == "get_attr"}
    matrices: dict[tuple[object, ...], fx.Node] = {}
    functional = True
    for node in module.graph.nodes:
        functional = functional and not mutates(node)
        found = arrangement_of(node) if functional else None
        if found is None:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            continue
        matrix = found.matrix()
        key = (matrix.dtype, matrix.device, found.count, found.blocks)
        if key not in matrices:
            tensors[name := f"block_matrix_{len(matrices)}"] = matrix
            matrices[key] = graph.get_attr(name)
            matrices[key].meta["val"] = matrix
        copies[node] = graph.call_function(arranged, (copies[found.source], matrices[key], found.dim, found.blocks))
        copies[node].meta = dict(node.meta)
    if not matrices:
        return module
    for node in reversed(list(graph.nodes)):
        if node.target in _MADE_OF and not node.users:
            graph.erase_node(node)
    return lazy_module(tensors, graph)


def arrangement_of(node: fx.Node) -> Arrangement | None:
    """What a call of `cat` makes of equal blocks of one tensor; None for every other call."""
    if node.target is not _aten.cat.default:
        return None
    operands, dim = arguments_of_call(node)
    parts = [_part(operand, dim) for operand in operands]
    first = parts[0]
    if first is None or not first.span:
        return None
    size, whole = len(first.span), first.source.meta["val"].shape[dim]
    count = whole // size
    blocks: list[tuple[int, int]] = []
    for part in parts:
        if part is None or part.source is not first.source or len(part.span) != size or part.span.start % size:
            return None
        blocks.append((part.sign, part.span.start // size))
    if count * size != whole or count == 1 or count * len(blocks) > TINY_MATRIX:
        return None
    return Arrangement(first.source, dim % first.source.meta["val"].dim(), count, tuple(blocks))


@dataclass(frozen=True, slots=True)
class _Part:
    """The elements `span` of a tensor along a dimension, times `sign`."""

    sign: int
    source: fx.Node
    span: range


def _part(node: fx.Node, dim: int) -> _Part | None:
    """The part along `dim` of a floating-point tensor of known shape that a node is."""
    if node.target is _aten.neg.default:
        (operand,) = arguments_of_call(node)
        part = _part(operand, dim)
        return None if part is None else replace(part, sign=-part.sign)
    if node.target is _aten.slice.Tensor:
        source, along, start, stop, step = arguments_of_call(node)
    elif node.target is getitem:
        split: Any = node.args[0]
        number: Any = node.args[1]
        if split.target is not _aten.split.Tensor:
            return None
        source, size, along = arguments_of_call(split)
        start, stop, step = number * size, (number + 1) * size, 1
    else:
        return None
    tensor = source.meta["val"]
    known = all(isinstance(size, int) for size in (*tensor.shape, start or 0, stop or 0))
    if not known or not tensor.is_floating_point() or (along - dim) % tensor.dim() or step != 1:
        return None
    return _Part(1, source, range(tensor.shape[dim])[start:stop])
