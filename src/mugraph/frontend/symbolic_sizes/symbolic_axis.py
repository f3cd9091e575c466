"""Whether recorded calls do the same to every slice along an axis of symbolic size, whatever the size.

A graph that PyTorch recorded with a symbol for one size is the function at all sizes that its guards allow. `check_slices` walks
it with a rule for each operator: where a call carries the axis, and that it does nothing along it. Operators without a rule are
refused, and so is everything else that the symbol decides: numbers, positions, sizes that are no multiple of it. docs/theory.md
has the theorem ("Any size from slices").
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from mugraph.errors import MugraphError
from mugraph.frontend.operators.torch_casts import tensors_of
from mugraph.frontend.symbolic_sizes.equations import Equation

Axis = int | None
"""The dimension that a tensor has of the axis, if any. Its size is c times the symbol s, in m stretches (`stretches_of`) with
equally many elements of each slice: index i of it is of slice i // (c / m) % s."""
_STRETCHES = "stretches"
"""In the `meta` of a node, how many stretches its tensors have; one where nothing is said."""


class SizeMatters(MugraphError):
    """A function whose results at one size are not made of slices of its results at others; the message says why."""


def check_slices(graph: fx.Graph) -> None:
    """Raise SizeMatters, naming the call, unless a graph with one symbolic size treats all slices along that axis alike.

    Nodes have their tensors without data in `meta["val"]`. Sizes from 2 on are spoken of: PyTorch takes for granted that a
    symbol is neither 0 nor 1.
    """
    check_one_symbol(graph)
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            for tensor in tensors_of(node):
                axis_of(tensor)
        elif node.op == "call_function":
            check_call(node, _is_multiple)
        elif node.op == "output":
            if any(symbols_of(source.meta.get("val")) and not tensors_of(source) for source in node.all_input_nodes):
                raise SizeMatters("a number that depends on the size is returned")
            if any(stretches_of(source) > 1 for source in node.all_input_nodes):
                raise SizeMatters("slices are no neighbours in what is returned")
        else:
            raise SizeMatters(f"{node.op} {node.target}: nothing is known of it")


def check_one_symbol(graph: fx.Graph) -> None:
    """Raise SizeMatters unless one size of a graph is symbolic, whatever multiples of it there are."""
    symbols = {symbol for node in graph.nodes for symbol in symbols_of(node.meta.get("val"))}
    if len(symbols) != 1:
        raise SizeMatters(f"the recorded calls have {len(symbols)} symbolic sizes, and one is wanted")


def with_sizes(graph: fx.Graph) -> fx.Graph:
    """A copy of a graph in which calls that compute sizes of sizes have them in `meta["val"]`, too."""
    copies: dict[fx.Node, fx.Node] = {}
    copy = fx.Graph()
    for node in graph.nodes:
        made = copies[node] = copy.node_copy(node, copies.__getitem__)
        if node.op == "call_function" and node.meta.get("val") is None and not isinstance(node.target, torch._ops.OpOverload):
            arguments = fx.map_arg(made.args, lambda source: source.meta.get("val"))
            if not made.kwargs and any(isinstance(leaf, torch.SymInt) for leaf in tree_leaves(arguments)):
                made.meta["val"] = node.target(*arguments)
    return copy


def axis_of(tensor: torch.Tensor) -> Axis:
    """The dimension of a tensor whose size is a multiple of the symbol; raises SizeMatters for two of them, or other sizes."""
    axis = dim_of(tensor)
    if axis is not None and not _is_multiple(tensor.shape[axis]):
        raise SizeMatters(f"a size of {_text(tensor)} is no multiple of the symbol")
    return axis


def dim_of(tensor: torch.Tensor) -> Axis:
    """The dimension of a tensor whose size has a symbol; raises SizeMatters for two of them."""
    dims = [dim for dim, size in enumerate(tensor.shape) if symbols_of(size)]
    if len(dims) > 1:
        raise SizeMatters(f"a tensor of shape {_text(tensor)} has the axis in {len(dims)} dimensions")
    return dims[0] if dims else None


def stretches_of(node: fx.Node) -> int:
    """Of how many stretches the axis is put together in the tensors of a checked node; in each, slices stand in order."""
    stretches: int = node.meta.get(_STRETCHES, 1)
    return stretches


def check_call(node: fx.Node, is_size: Callable[[Any], bool]) -> None:
    """Raise SizeMatters, naming the call, unless it treats all slices along the axis alike.

    `is_size` says which sizes with a symbol may stand in shapes. Of the operands' sizes it holds.
    """
    try:
        _check_call(node, is_size)
    except SizeMatters as error:
        raise SizeMatters(f"{_name(node)}: {error}") from None


def _check_call(node: fx.Node, is_size: Callable[[Any], bool]) -> None:
    value = node.meta.get("val")
    if node.target is operator.getitem:
        node.meta[_STRETCHES] = stretches_of(node.args[0])  # type: ignore[arg-type]
        return
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return  # its readers say whether they may read it
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in ("aten", "prims"):
        raise SizeMatters("it is no operator of ATen")
    call = Call.of(node)
    call.check_numbers(is_size)
    results = tensors_of(node)
    varies = node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags  # from call to call
    if not varies and not any(symbols_of(tensor) for tensor in (*call.operands, *results)):
        return
    if value is None and not varies and not node.users:  # a check of types
        return
    if node.target.namespace == "prims":  # whose names do not mean what ATen's do
        raise SizeMatters("it is no operator of ATen")
    rule = _rule(node.target)
    if not results:
        raise SizeMatters("it gives no tensor")
    axis = rule(call)
    for tensor in results:
        if dim_of(tensor) != axis and not _is_empty(tensor):
            raise SizeMatters(f"the axis comes out in another dimension of {_text(tensor)} than it should")
        if axis is not None and not _is_empty(tensor) and not is_size(tensor.shape[axis]):
            raise SizeMatters(f"a size of {_text(tensor)} is none that is followed")
    node.meta[_STRETCHES] = _regrouped(call) if rule is _in_order else call.stretches


def _is_empty(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no elements at any size, as what an operator leaves out has."""
    return any(type(size) is int and not size for size in tensor.shape)


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


def _in_order(call: Call) -> Axis:
    """The elements in their order, in another shape."""
    if call.axis("self") is None:
        return None
    _regrouped(call)
    return dim_of(call.result)


def _regrouped(call: Call) -> int:
    """The stretches of the axis when the elements stand in another shape: there are as many of them, times what stands before the
    axis, as there were. Raises SizeMatters where that is no way to number slices."""
    operand, result = call.tensor("self"), call.result
    assert operand is not None
    axis, place = dim_of(operand), dim_of(result)
    if axis is None:
        return 1
    if place is not None and 0 not in result.shape[:place]:
        stretches, rest = divmod(math.prod(operand.shape[:axis]) * call.stretches, math.prod(result.shape[:place]))
        times = _multiple(result.shape[place])
        if not rest and (stretches == 1 or (0 < stretches <= times and times % stretches == 0)):
            return int(stretches)
    raise SizeMatters(f"the axis does not stay whole from {_text(operand)} to {_text(result)}")


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
    (_in_order, "view reshape _unsafe_view unsqueeze squeeze flatten unflatten view_as reshape_as"),
    (_in_order, "clone contiguous alias detach _to_copy to lift_fresh_copy lift_fresh type_as"),
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


def _rule(target: torch._ops.OpOverload) -> Rule:
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
    return _RULES.get(_name(node)) is _in_order


def _tensors_of(operand: Any) -> list[torch.Tensor]:
    return tensors_of(operand) if isinstance(operand, fx.Node) else []


def varies(node: fx.Node) -> bool:
    """Whether a size of a tensor that a node gives is symbolic."""
    return any(symbols_of(tensor.shape) for tensor in tensors_of(node))


def symbols_of(value: Any) -> frozenset[Any]:
    """The symbols in a number, or in the sizes of tensors."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return frozenset(value.node.expr.free_symbols)
    sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else value if isinstance(value, (tuple, list)) else ()
    return frozenset(symbol for size in sizes for symbol in symbols_of(size))


def _is_multiple(size: Any) -> bool:
    """Whether a size is a number times the symbol."""
    return isinstance(size, torch.SymInt) and _multiple(size) > 0


def _multiple(size: Any) -> int:
    """How many times the symbol a size is that has it; 0 where it is no whole number of times."""
    (symbol,) = size.node.expr.free_symbols
    factor = size.node.expr / symbol
    return int(factor) if factor.is_Integer and factor > 0 else 0


def _text(tensor: torch.Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _name(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return str(getattr(packet or node.target, "__name__", node.target))
