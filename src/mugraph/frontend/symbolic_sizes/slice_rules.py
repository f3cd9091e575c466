"""What operators of ATen do along an axis of symbolic size: a rule for each that does nothing there."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from mugraph.frontend.operators.torch_casts import name_of, tensors_of
from mugraph.frontend.symbolic_sizes.axes import (
    Axis,
    SizeMatters,
    dim_of,
    multiple,
    shape_text,
    stretches_of,
    symbols_of,
)
from mugraph.frontend.symbolic_sizes.equations import Equation

_SIZES = frozenset({"size", "shape", "sizes"})
"""Arguments that may be multiples of the symbol."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator: its arguments by their names in the schema, defaults included."""

    node: fx.Node
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, node: fx.Node) -> Call:
        assert isinstance(node.target, torch._ops.OpOverload)
        parameters = node.target._schema.arguments
        given = dict(zip((parameter.name for parameter in parameters), node.args, strict=False)) | node.kwargs
        return cls(node, {each.name: given.get(each.name, each.default_value) for each in parameters})

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def check_numbers(self, is_size: Callable[[Any], bool]) -> None:
        """Raise SizeMatters where a number depends on the size that is none of a shape, or none that `is_size`."""
        for name, argument in self.arguments.items():
            for leaf in tree_leaves(argument):
                if isinstance(leaf, fx.Node) and leaf.meta.get("val") is None:
                    raise SizeMatters(f"nothing is known of its argument {name}")
                number = leaf.meta["val"] if isinstance(leaf, fx.Node) else leaf
                if isinstance(number, torch.Tensor | list | tuple) or not symbols_of(number):
                    continue
                if name not in _SIZES or not is_size(number):
                    raise SizeMatters(f"its argument {name} depends on the size")

    def tensor(self, name: str) -> torch.Tensor | None:
        """An operand that is one tensor."""
        source = self.arguments.get(name)
        value = source.meta.get("val") if isinstance(source, fx.Node) else None
        return value if isinstance(value, torch.Tensor) else None

    def axis(self, name: str) -> Axis:
        """The axis in an operand; None where there is no such operand, too."""
        tensor = self.tensor(name)
        return None if tensor is None else dim_of(tensor)

    def axes(self, name: str) -> list[Axis]:
        """The axis in each of the tensors that an operand lists."""
        return [dim_of(tensor) for source in self[name] for tensor in _tensors_of(source)]

    def rank(self, name: str) -> int:
        tensor = self.tensor(name)
        assert tensor is not None, name
        return tensor.dim()

    @property
    def operands(self) -> list[torch.Tensor]:
        """All operands that are tensors."""
        return [tensor for source in self.node.all_input_nodes for tensor in tensors_of(source)]

    @property
    def stretches(self) -> int:
        """The stretches of the axis in all operands that have it; raises SizeMatters where these differ."""
        sources = [source for source in self.node.all_input_nodes if any(dim_of(each) is not None for each in tensors_of(source))]
        counts = {stretches_of(source) for source in sources}
        if len(counts) > 1:
            raise SizeMatters("its operands have slices in different orders")
        return counts.pop() if counts else 1

    @property
    def result(self) -> torch.Tensor:
        """The first result."""
        return tensors_of(self.node)[0]

    def without(self, *names: str) -> None:
        """Raise SizeMatters where one of these operands has the axis."""
        for name in names:
            if any(symbols_of(tensor.shape) for leaf in tree_leaves(self.arguments.get(name)) for tensor in _tensors_of(leaf)):
                raise SizeMatters(f"its operand {name} has the axis")


Rule = Callable[[Call], Axis]
"""Where the results of a call have the axis; raises SizeMatters where it does something along it."""


def _one(axes: Iterable[Axis]) -> Axis:
    """The place that all operands send the axis to."""
    places = {*axes} - {None}
    if len(places) > 1:
        raise SizeMatters("the axis stands in different dimensions of its operands")
    return places.pop() if places else None


def _aligned(tensors: Iterable[torch.Tensor], rank: int) -> Axis:
    """The axis after broadcasting: the last dimensions fall on each other."""
    return _one(rank - tensor.dim() + axis for tensor in tensors if (axis := dim_of(tensor)) is not None)


def _pointwise(call: Call) -> Axis:
    return _aligned(call.operands, call.result.dim())


def _constant(call: Call) -> Axis:
    """Filled with one number: whatever shape it has, all slices are alike."""
    return dim_of(call.result)


def in_order(call: Call) -> Axis:
    """The elements in their order, in another shape."""
    if call.axis("self") is None:
        return None
    regrouped(call)
    return dim_of(call.result)


def regrouped(call: Call) -> int:
    """The stretches of the axis when the elements stand in another shape: there are as many of them, times what stands before the
    axis, as there were. Raises SizeMatters where that is no way to number slices."""
    operand, result = call.tensor("self"), call.result
    assert operand is not None
    axis, place = dim_of(operand), dim_of(result)
    if axis is None:
        return 1
    if place is not None and 0 not in result.shape[:place]:
        stretches, rest = divmod(math.prod(operand.shape[:axis]) * call.stretches, math.prod(result.shape[:place]))
        times = multiple(result.shape[place])
        if not rest and (stretches == 1 or (0 < stretches <= times and times % stretches == 0)):
            return int(stretches)
    raise SizeMatters(f"the axis does not stay whole from {shape_text(operand)} to {shape_text(result)}")


def _expanded(call: Call) -> Axis:
    operand = call.tensor("self")
    assert operand is not None
    return dim_of(call.result) if dim_of(operand) is None else _aligned([operand], call.result.dim())


def _permuted(call: Call) -> Axis:
    axis, order = call.axis("self"), [dim % call.rank("self") for dim in call["dims"]]
    return None if axis is None else order.index(axis)


def _transposed(call: Call) -> Axis:
    rank = call.rank("self")
    first, second = (dim % rank for dim in (call.arguments.get("dim0", 0), call.arguments.get("dim1", 1 if rank > 1 else 0)))
    axis = call.axis("self")
    return {first: second, second: first}.get(axis, axis) if axis is not None else None


def _reversed(call: Call) -> Axis:
    axis = call.axis("self")
    return None if axis is None else call.rank("self") - 1 - axis


def _along(call: Call, name: str = "dim", removes: bool = False) -> Axis:
    """Something done along dimensions that the call names; with none it is done along all."""
    axis, given = call.axis("self"), call.arguments.get(name)
    dims = [given] if isinstance(given, int) else list(given or ())
    if axis is None:
        return None
    dims = [dim % call.rank("self") for dim in dims]
    if not dims or axis in dims:
        raise SizeMatters("it acts along the axis")
    gone = removes and not call.arguments.get("keepdim", False)
    return axis - sum(dim < axis for dim in dims) if gone else axis


def _sliced(call: Call) -> Axis:
    """Positions of a dimension; of the axis all of them, which `x[:, 0]` is recorded to take of dimension 0."""
    is_whole = call["start"] in (None, 0) and call["end"] in (None, sys.maxsize) and call["step"] == 1
    return call.axis("self") if is_whole else _along(call)


def _last(call: Call, operand: str, count: int, *others: str) -> Axis:
    """Something done along the last dimensions, as many as `count`, with `others` that are the same for all slices."""
    call.without(*others)
    axis = call.axis(operand)
    if axis is not None and axis >= call.rank(operand) - count:
        raise SizeMatters("it acts along the axis")
    return axis


def _normalized(call: Call) -> Axis:
    return _last(call, "input", len(call["normalized_shape"]), "weight", "bias")


def _padded(call: Call) -> Axis:
    return _last(call, "self", len(call["pad"]) // 2)


def _sampled(call: Call, operand: str, *others: str) -> Axis:
    """Something done to each sample of a batch, which is dimension 0."""
    call.without(*others)
    if call.axis(operand) not in (None, 0):
        raise SizeMatters("the axis is not the one of its samples")
    return call.axis(operand)


def _convolved(call: Call) -> Axis:
    if call.rank("input") != call.rank("weight"):
        raise SizeMatters("it has no dimension of samples")
    return _sampled(call, "input", "weight", "bias")


def _group_normalized(call: Call) -> Axis:
    return _sampled(call, "input", "weight", "bias")


def _batch_normalized(call: Call) -> Axis:
    if call.arguments.get("training", False):
        raise SizeMatters("it normalizes over the axis")
    return _sampled(call, "input", "weight", "bias", "running_mean", "running_var")


def _without_drops(call: Call) -> Axis:
    if call["train"] and call["p"] != 0:
        raise SizeMatters("it draws random numbers")
    return call.axis("input")


def _joined(call: Call, stacked: bool) -> Axis:
    axes = call.axes("tensors")
    if {*axes} == {None}:
        return None
    dim = call["dim"] % call.result.dim()
    axis = _one(axes)
    if None in axes or axis is None or (axis == dim and not stacked):
        raise SizeMatters("it joins tensors along the axis")
    return axis + (stacked and dim <= axis)


def _product(call: Call, left: str, right: str, *added: str) -> Axis:
    """A matrix product of batches of matrices, a vector being a row on the left and a column on the right."""
    (ours, place), (theirs, other) = ((call.tensor(name), call.axis(name)) for name in (left, right))
    assert ours is not None
    assert theirs is not None
    columns = int(theirs.dim() > 1)  # behind the rows of a result
    rank = max(ours.dim(), theirs.dim(), 2) - (ours.dim() == 1) - (theirs.dim() == 1)
    places: list[Axis] = []
    if place is not None:
        if place == ours.dim() - 1:
            raise SizeMatters("it sums over the axis")
        places.append(rank - columns - (ours.dim() - 1 - place))
    if other is not None:
        if other == max(theirs.dim() - 2, 0):
            raise SizeMatters("it sums over the axis")
        behind = theirs.dim() - 1 - other  # of a batch, past the row that a vector on the left does not have
        places.append(rank - 1 - (behind - (ours.dim() == 1 and behind > 0)))
    more = [tensor for name in added if (tensor := call.tensor(name)) is not None]
    return _one([*places, _aligned(more, rank)])


def _added_product(call: Call, left: str, right: str) -> Axis:
    return _product(call, left, right, "self")


def _linear(call: Call) -> Axis:
    return _last(call, "input", 1, "weight", "bias")


def _contracted(call: Call) -> Axis:
    """`einsum` with a letter for each dimension."""
    equation = Equation.of(call["equation"], call.axes("tensors"))
    if equation is None:
        raise SizeMatters("its equation does not name the dimensions of its result")
    if not equation.axis:
        return None
    if len(equation.axis) > 1 or not equation.axis <= {*equation.result}:
        raise SizeMatters("it sums over the axis, or has it under two letters")
    if equation.has_diagonal:
        raise SizeMatters("it takes a diagonal along the axis")
    (letter,) = equation.axis
    return equation.result.index(letter)


def _attended(call: Call) -> Axis:
    """Scaled dot-product attention: what stands before its last two dimensions are batches."""
    if call.arguments.get("dropout_p", 0) != 0:
        raise SizeMatters("it draws random numbers")
    names = [name for name in ("query", "key", "value", "attn_mask") if call.tensor(name) is not None]
    grouped = 1 if call.arguments.get("enable_gqa", False) else 0
    for name in names:
        _last(call, name, 2 + grouped)
    tensors = [tensor for name in names if (tensor := call.tensor(name)) is not None]
    return _aligned(tensors, call.result.dim())


def _interleaved(call: Call) -> Axis:
    """Each position of a dimension several times in a row."""
    call.without("repeats")
    return _along(call)


def _tiled(call: Call) -> Axis:
    """The whole several times along each dimension, of which there may be new ones in front."""
    axis, times = call.axis("self"), call["repeats"]
    if axis is None:
        return None
    place: int = len(times) - call.rank("self") + axis
    if times[place] != 1:
        raise SizeMatters("it acts along the axis")
    return place


def _looked_up(call: Call) -> Axis:
    call.without("weight")
    return call.axis("indices")


def _selected(call: Call) -> Axis:
    call.without("index")
    return _along(call)


def _gathered(call: Call) -> Axis:
    (table, place), (index, other) = ((call.tensor(name), call.axis(name)) for name in ("self", "index"))
    assert table is not None
    assert index is not None
    if place is None and other is None:
        return None
    if place is None or place != other or table.shape[place] != index.shape[place]:
        raise SizeMatters("table and index do not have the axis in the same dimension")
    return _along(call)


def _indexed(call: Call) -> Axis:
    """A table, at the places of one tensor of integers."""
    call.without("self")
    indices = call["indices"]
    if len(indices) != 1 or not (tensors := _tensors_of(indices[0])) or tensors[0].dtype in (torch.bool, torch.uint8):
        raise SizeMatters("it is no lookup in a table")
    return dim_of(tensors[0])


_BY_RULE: Sequence[tuple[Rule, str]] = (
    (in_order, "view reshape _unsafe_view unsqueeze squeeze flatten unflatten view_as reshape_as"),
    (in_order, "clone contiguous alias detach _to_copy to lift_fresh_copy lift_fresh type_as"),
    (_constant, "full zeros ones new_full new_zeros new_ones full_like zeros_like ones_like"),
    (_expanded, "expand expand_as"),
    (_permuted, "permute"),
    (_reversed, "numpy_T"),
    (_transposed, "t transpose"),
    (partial(_along, removes=True), "sum mean amax amin any all prod nansum logsumexp argmax argmin std var std_mean var_mean"),
    (partial(_along, removes=True), "linalg_vector_norm norm max min aminmax select unbind"),
    (_along, "softmax _softmax log_softmax _log_softmax cumsum cumprod logcumsumexp"),
    (_sliced, "slice"),
    (_along, "narrow split split_with_sizes unsafe_split chunk unsafe_chunk sort topk glu"),
    (partial(_along, name="dims"), "flip roll"),
    (_interleaved, "repeat_interleave"),
    (_tiled, "repeat"),
    (partial(_last, operand="self", count=1), "avg_pool1d max_pool1d adaptive_avg_pool1d"),
    (partial(_last, operand="self", count=2), "tril triu avg_pool2d max_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d"),
    (partial(_last, operand="self", count=3), "avg_pool3d max_pool3d adaptive_avg_pool3d _adaptive_avg_pool3d"),
    (partial(_joined, stacked=False), "cat"),
    (partial(_joined, stacked=True), "stack"),
    (_padded, "constant_pad_nd pad"),
    (_normalized, "layer_norm native_layer_norm rms_norm _fused_rms_norm"),
    (_group_normalized, "group_norm native_group_norm"),
    (_batch_normalized, "batch_norm _native_batch_norm_legit_no_training"),
    (_without_drops, "dropout feature_dropout"),
    (_convolved, "conv1d conv2d conv3d convolution"),
    (partial(_product, left="self", right="other"), "matmul"),
    (partial(_product, left="self", right="mat2"), "mm bmm"),
    (partial(_product, left="self", right="vec"), "mv"),
    (partial(_added_product, left="mat1", right="mat2"), "addmm"),
    (partial(_added_product, left="batch1", right="batch2"), "baddbmm"),
    (_linear, "linear"),
    (_contracted, "einsum"),
    (_attended, "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu"),
    (_looked_up, "embedding"),
    (_selected, "index_select"),
    (_gathered, "gather"),
    (_indexed, "index"),
    (_pointwise, "where broadcast_tensors"),
)
_RULES = {name: rule for rule, names in _BY_RULE for name in names.split()}
"""By the name of an operator of ATen, for all of its overloads. What is elementwise needs no entry."""


def rule_of(target: torch._ops.OpOverload) -> Rule:
    """The rule of an operator; raises SizeMatters where there is none."""
    name, tags = target.overloadpacket.__name__, target.tags
    if name in _RULES and not target._schema.is_mutable:
        return _RULES[name]
    elementwise = torch.Tag.pointwise in tags and (name.endswith("_") or not target._schema.is_mutable)
    if torch.Tag.nondeterministic_seeded in tags:
        raise SizeMatters("it draws random numbers")
    if elementwise:
        return _pointwise
    raise SizeMatters("it is not known to do the same to every slice")


def keeps_order(node: fx.Node) -> bool:
    """Whether a call of ATen gives the elements of its operand in their order, in another shape."""
    return _RULES.get(name_of(node)) is in_order


def _tensors_of(operand: Any) -> list[torch.Tensor]:
    return tensors_of(operand) if isinstance(operand, fx.Node) else []
