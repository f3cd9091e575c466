"""Graphs with two symbolic sizes of which one is a batch: whether calls do the same to every sample, whatever the other size is.

At each number in the place of the other size such a graph has one symbol, and `mugraph.frontend.symbolic_sizes.symbolic_axis` has
rules for its calls. These look at no size but for views, of which the sizes before the axis are divided by each other: where the
other size stands as often before the axis as it did, it makes no difference to them which number that is (docs/theory.md, "A
batch beside a length").
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx

from mugraph.frontend.operators.torch_casts import tensors_of
from mugraph.frontend.symbolic_sizes.axes import Axis, SizeMatters, symbols_of
from mugraph.frontend.symbolic_sizes.merged_rows import expression_of
from mugraph.frontend.symbolic_sizes.one_symbol import OneSymbol
from mugraph.frontend.symbolic_sizes.slice_rules import Call, keeps_order
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_slices, with_sizes

_OTHER = 53
"""What stands for the other size, of which no rule knows."""


def check_samples(graph: fx.Graph, batch: Any) -> None:
    """Raise SizeMatters, naming the call, unless a graph with two symbolic sizes treats all slices along that of `batch` alike,
    whatever the other size is. Nodes have their tensors without data in `meta["val"]`; sizes from 2 on are spoken of."""
    made, copies, sizes = fx.Graph(), dict[fx.Node, fx.Node](), _OneSize(batch)
    for node in with_sizes(graph).nodes:
        copies[node] = made.node_copy(node, copies.__getitem__)
        copies[node].meta["val"] = sizes.value(node.meta.get("val"))
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            _check_sizes(node, batch)
    check_slices(made)


def batch_dim(tensor: torch.Tensor, batch: Any) -> Axis:
    """The dimension of a tensor that is as large as the batch; raises SizeMatters where it has several samples' in one."""
    dims = [dim for dim, size in enumerate(tensor.shape) if batch in symbols_of(size)]
    if not dims:
        return None
    if len(dims) > 1 or expression_of(tensor.shape[dims[0]]) != batch:
        raise SizeMatters(f"a tensor of shape [{', '.join(map(str, tensor.shape))}] does not have the batch as one dimension")
    return dims[0]


class _OneSize:
    """Values with a number in the place of every size but the batch."""

    def __init__(self, batch: Any) -> None:
        self.batch, self._symbol = batch, OneSymbol()

    def value(self, value: Any) -> Any:
        """What stands for a value."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.value, value))
        if isinstance(value, torch.Tensor):
            return self._symbol.like(value, [self._size(size) for size in value.shape])
        if isinstance(value, torch.SymFloat | torch.SymBool):
            return self._symbol.size  # a number that depends on a size, which no call may read
        return self._size(value) if isinstance(value, torch.SymInt) else value

    def _size(self, size: Any) -> Any:
        found = symbols_of(size)
        if not found:
            return int(size)
        if self.batch not in found:
            return int(size.node.expr.subs(dict.fromkeys(found, _OTHER)))
        factor = size.node.expr / self.batch
        if not factor.is_Integer:
            raise SizeMatters(f"a size is {size}, and neither a number of samples nor without the batch")
        return int(factor) * self._symbol.size


def _check_sizes(node: fx.Node, batch: Any) -> None:
    """Raise SizeMatters where a rule could look at the size that is not the batch: at a number that depends on it, or at what
    stands before the axis in a view."""
    call = Call.of(node)
    call.check_numbers(lambda size: True)
    if not keeps_order(node):
        return
    before = [_sizes_before(tensor, batch) for tensor in (call.tensor("self"), *tensors_of(node)) if tensor is not None]
    if any(other != before[0] for other in before):
        raise SizeMatters(f"{node.name}: a size that varies moves across the batch, or merges with another")


def _sizes_before(tensor: torch.Tensor, batch: Any) -> Counter[Any] | None:
    """The sizes with symbols that stand before the batch in a tensor; None of one without it."""
    formulas = [expression_of(size) for size in tensor.shape]
    place = next((dim for dim, size in enumerate(tensor.shape) if batch in symbols_of(size)), None)
    if place is None:
        return None
    return Counter(formula for formula, size in zip(formulas[:place], tensor.shape, strict=False) if symbols_of(size))
