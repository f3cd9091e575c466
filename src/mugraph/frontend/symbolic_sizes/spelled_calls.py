"""Calls over axes of varying size in other words, of which more is counted: one row for each operator of ATen.

Each row is an equation of real functions whose right side has a value wherever the left has one (docs/theory.md, "Cutoffs").
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from mugraph.frontend.symbolic_sizes.slice_rules import Call

_ATEN = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes calls into a graph, before a node of it."""

    graph: fx.Graph
    before: fx.Node

    def __call__(self, target: Callable[..., Any], *arguments: Any) -> fx.Node:
        """One more call, which has what it gives without data."""
        with self.graph.inserting_before(self.before):
            made = self.graph.call_function(target, arguments)
        values: Any = fx.map_arg(arguments, lambda node: node.meta["val"])
        made.meta["val"] = target(*values)
        return made


Row = Callable[[Writer, Call], fx.Node | None]
"""What a call gives, in other words; None where there are none."""


def spelled(graph: fx.Graph, node: fx.Node) -> bool:
    """Put other words in the place of a call; whether there are any."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
        return False
    row, call = ROWS.get(node.target.overloadpacket.__name__), Call.of(node)
    if row is None or not all(tensor.is_floating_point() for tensor in call.operands) or call.arguments.get("dtype") is not None:
        return False
    made = row(Writer(graph, node), call)
    if made is None:
        return False
    parts = _parts(node)
    for part in parts or [node]:
        part.replace_all_uses_with(made)
    for each in (*parts, node):
        graph.erase_node(each)
    return True


def _parts(node: fx.Node) -> list[fx.Node]:
    """The users of a call that gives several tensors, each of which takes one of them."""
    return [user for user in node.users if user.target is operator.getitem]


# roots and exponentials ---------------------------------------------------------------------------------------------------


def _inverse_root(write: Writer, call: Call) -> fx.Node:
    return write(_ATEN.reciprocal.default, write(_ATEN.sqrt.default, call["self"]))


def _half_power(write: Writer, call: Call) -> fx.Node | None:
    """x^(k + 1/2) = x^k sqrt(x)"""
    exponent = call["exponent"]
    if not isinstance(exponent, float) or not math.isfinite(exponent) or exponent % 1 != 0.5:
        return None
    if exponent == -0.5:
        return _inverse_root(write, call)
    root = write(_ATEN.sqrt.default, call["self"])
    whole = math.floor(exponent)
    return root if whole == 0 else write(_ATEN.mul.Tensor, write(_ATEN.pow.Tensor_Scalar, call["self"], whole), root)


def _logistic(write: Writer, call: Call) -> fx.Node:
    powers = write(_ATEN.exp.default, write(_ATEN.neg.default, call["self"]))
    return write(_ATEN.reciprocal.default, write(_ATEN.add.Tensor, powers, 1))


def _weighted_by_logistic(write: Writer, call: Call) -> fx.Node:
    return write(_ATEN.mul.Tensor, call["self"], _logistic(write, call))


def _log_of_sum(write: Writer, x: fx.Node, dims: Sequence[int], keepdim: bool) -> fx.Node:
    return write(_ATEN.log.default, write(_ATEN.sum.dim_IntList, write(_ATEN.exp.default, x), dims, keepdim))


def _log_of_exponentials(write: Writer, call: Call) -> fx.Node:
    return _log_of_sum(write, call["self"], _dims(call), call["keepdim"])


def _log_of_shares(write: Writer, call: Call) -> fx.Node:
    return write(_ATEN.sub.Tensor, call["self"], _log_of_sum(write, call["self"], _dims(call), True))


# maxima -------------------------------------------------------------------------------------------------------------------


def _largest(write: Writer, x: fx.Node, dims: Sequence[int], keepdim: bool) -> fx.Node:
    """A maximum with the dimensions that it is over, in order, which are left out after it."""
    made = write(_ATEN.amax.default, x, [*dims], True)
    return made if keepdim else write(_ATEN.squeeze.dims, made, [*dims])


def _least(write: Writer, x: fx.Node, dims: Sequence[int], keepdim: bool) -> fx.Node:
    return write(_ATEN.neg.default, _largest(write, write(_ATEN.neg.default, x), dims, keepdim))


def _maximum(write: Writer, call: Call) -> fx.Node | None:
    x, dims = call["self"], _dims(call)
    return None if call.node.args == (x, dims, True) else _largest(write, x, dims, call["keepdim"])


def _minimum(write: Writer, call: Call) -> fx.Node:
    return _least(write, call["self"], _dims(call), call["keepdim"])


def _with_places(made: Callable[[Writer, fx.Node, Sequence[int], bool], fx.Node]) -> Row:
    """The same of operators that give positions, too, if nobody reads these, or take two tensors, if they do not."""

    def row(write: Writer, call: Call) -> fx.Node | None:
        read = [part.args[1] for part in _parts(call.node) if part.users]
        if "other" in call.arguments or ("dim" in call.arguments and any(read)):
            return None
        return made(write, call["self"], _dims(call), bool(call.arguments.get("keepdim", False)))

    return row


# means and variances ------------------------------------------------------------------------------------------------------


def _centred(write: Writer, x: fx.Node, dims: Sequence[int]) -> fx.Node:
    return write(_ATEN.sub.Tensor, x, write(_ATEN.mean.dim, x, [*dims], True))


def _squared(write: Writer, x: fx.Node) -> fx.Node:
    return write(_ATEN.mul.Tensor, x, x)


def _over_root(write: Writer, x: fx.Node, of: fx.Node, dims: Sequence[int], eps: float) -> fx.Node:
    """x over the root of a mean square and a number."""
    squares = write(_ATEN.mean.dim, _squared(write, of), [*dims], True)
    return write(_ATEN.div.Tensor, x, write(_ATEN.sqrt.default, write(_ATEN.add.Tensor, squares, eps)))


def _variance(write: Writer, call: Call) -> fx.Node | None:
    x, dims = call["self"], _dims(call)
    correction = call.arguments.get("correction")
    less = (1 if call.arguments.get("unbiased", True) else 0) if correction is None else correction
    squares = _squared(write, _centred(write, x, dims))
    keepdim = bool(call.arguments.get("keepdim", False))
    if less == 0:
        return write(_ATEN.mean.dim, squares, dims, keepdim)
    if less % 1:
        return None
    count: Any = 1
    for dim in dims:
        size = x.meta["val"].shape[dim]
        count = write(operator.mul, count, write(_ATEN.sym_size.int, x, dim)) if isinstance(size, torch.SymInt) else count * size
    if not isinstance(count, fx.Node):
        return None
    return write(_ATEN.div.Tensor, write(_ATEN.sum.dim_IntList, squares, dims, keepdim), write(operator.sub, count, int(less)))


def _deviation(write: Writer, call: Call) -> fx.Node | None:
    made = _variance(write, call)
    return None if made is None else write(_ATEN.sqrt.default, made)


def _length(write: Writer, call: Call) -> fx.Node | None:
    if call["ord"] != 2:
        return None
    return write(_ATEN.sqrt.default, write(_ATEN.sum.dim_IntList, _squared(write, call["self"]), _dims(call), call["keepdim"]))


def _scaled(write: Writer, x: fx.Node, call: Call) -> fx.Node:
    """With the weight and the bias that a call has."""
    weight, bias = call.arguments.get("weight"), call.arguments.get("bias")
    scaled = x if weight is None else write(_ATEN.mul.Tensor, x, weight)
    return scaled if bias is None else write(_ATEN.add.Tensor, scaled, bias)


def _layer_norm(write: Writer, call: Call) -> fx.Node:
    x, dims = call["input"], [*range(call.rank("input"))][-len(call["normalized_shape"]) :]
    centred = _centred(write, x, dims)
    return _scaled(write, _over_root(write, centred, centred, dims, call["eps"]), call)


def _rms_norm(write: Writer, call: Call) -> fx.Node:
    x, dims = call["input"], [*range(call.rank("input"))][-len(call["normalized_shape"]) :]
    dtype = x.meta["val"].dtype
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps if call["eps"] is None else call["eps"]
    return _scaled(write, _over_root(write, x, x, dims, eps), call)


def _dims(call: Call) -> list[int]:
    """The dimensions that a reduction names, or all, in order."""
    rank, given = call.rank("self"), call.arguments.get("dim")
    named = [given] if isinstance(given, int) else given
    return sorted({dim % rank for dim in named}) if named and rank else [*range(rank)]


ROWS: dict[str, Row] = {
    "rsqrt": _inverse_root,
    "pow": _half_power,
    "sigmoid": _logistic,
    "silu": _weighted_by_logistic,
    "logsumexp": _log_of_exponentials,
    "log_softmax": _log_of_shares,
    "_log_softmax": _log_of_shares,
    "amax": _maximum,
    "amin": _minimum,
    "max": _with_places(_largest),
    "min": _with_places(_least),
    "var": _variance,
    "std": _deviation,
    "linalg_vector_norm": _length,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
"""By the name of an operator of ATen, for all of its overloads."""
