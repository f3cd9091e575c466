"""Graphs that sum and take maxima along an axis of symbolic size, as graphs of a capacity that hold any smaller size.

A graph that PyTorch recorded with a symbol for one size is run at a larger one: the axis has one number of *slots* everywhere, of
which the first hold the elements and the others hold anything. Calls that do the same to every slice
(`mugraph.frontend.symbolic_sizes.symbolic_axis`) need nothing for that. What reduces the axis reads `where(held, x, neutral)`
instead of x, so that no other slot reaches a result, whatever it holds; a concatenation that appends to the axis chooses the
places behind the last element. Inputs that are summed as they are need no choice if the others of their slots are 0, which
callers see to. Which slots are held says an input of booleans, so that one graph serves every size up to its capacity.
docs/theory.md has the theorem ("Any size from slots").
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from mugraph.frontend.rewriting.node_traits import mutates
from mugraph.frontend.symbolic_sizes.axes import Axis, SizeMatters, dim_of, symbols_of
from mugraph.frontend.symbolic_sizes.equations import Equation
from mugraph.frontend.symbolic_sizes.slice_rules import Call
from mugraph.frontend.symbolic_sizes.slots import MaskedGraph, Place, Slots
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_call, check_one_symbol

_aten = torch.ops.aten
_APPENDED = 4
"""Elements that are appended to an axis by one call at most: each is a choice of its own."""


def masked(graph: fx.Graph, tensors: dict[str, Any] | torch.nn.Module, watched: Collection[fx.Node] = ()) -> MaskedGraph:
    """The graph of ATen calls as one of a capacity. `tensors` has what its `get_attr` nodes name.

    Who runs it sees to it that no mask of attention in `watched` hides every key of a query. Nodes have their tensors without
    data in `meta["val"]`; sizes from 2 on are spoken of. Raises SizeMatters, naming the call, where it does something along the
    axis that no rule knows, or where sizes are anything else than sizes.
    """
    check_one_symbol(graph)
    for zeroes in (True, False):  # of what sums inputs and does nothing else, masks say what is held
        masking = _Masking(graph, watched, zeroes)
        with _disable_current_modes(), torch.no_grad():  # Dynamo's, whose tensors without data are others
            for node in graph.nodes:
                masking.add(node)
        if masking.slots:
            return masking.result(tensors)
    raise SizeMatters("nothing is reduced along the axis")


def _more(size: Any) -> int | None:
    """How much a size is larger than the symbol; None for sizes that are none of that kind."""
    if not isinstance(size, torch.SymInt) or not (symbols := symbols_of(size)):
        return None
    more = size.node.expr - next(iter(symbols))
    return int(more) if more.is_Integer and more >= 0 else None


def _is_extent(size: Any) -> bool:
    return _more(size) is not None


def _place(value: Any) -> Place | None:
    """Where a tensor has the axis; raises SizeMatters for sizes that are not the symbol and a number more."""
    axis = dim_of(value) if isinstance(value, torch.Tensor) else None
    if axis is None:
        return None
    more = _more(value.shape[axis])
    if more is None:
        raise SizeMatters(f"a size of [{', '.join(map(str, value.shape))}] is not the symbol and a number more")
    return Place(axis, more)


class _Masking:
    """A masked graph that is being put together."""

    def __init__(self, original: fx.Graph, watched: Collection[fx.Node], zeroes: bool) -> None:
        self.graph, self.watched, self.zeroes = fx.Graph(), watched, zeroes
        self.copies: dict[fx.Node, fx.Node] = {}
        self.slots: dict[Slots, fx.Node] = {}
        self.counts: dict[int, fx.Node] = {}
        self.zero_behind: dict[fx.Node, frozenset[int]] = {}
        """Nodes of the original whose other slots are 0, unless all of the row is NaN, if those of these inputs are."""
        self.zeroed: set[int] = set()
        """Inputs of which that is asked."""
        self.first_results: set[fx.Node] = set()
        """Nodes of the original with several results, the first of which is what stands for them."""
        self.inputs: list[Place | None] = []
        self.outputs: list[Place | None] = []
        self._placed: list[fx.Node] = []
        """The inputs, in order."""

    def add(self, node: fx.Node) -> None:
        """Add what stands for a node of the original."""
        match node.op:
            case "placeholder":
                self._add_input(node)
            case "get_attr":
                if symbols_of(node.meta.get("val")):
                    raise SizeMatters(f"{node.target} has a size that varies")
                self.copies[node] = self.graph.node_copy(node)
            case "call_function":
                self._add_call(node)
            case "output":
                self._add_output(node)
            case _:
                raise SizeMatters(f"{node.op} {node.target}: nothing is known of it")

    def result(self, tensors: dict[str, Any] | torch.nn.Module) -> MaskedGraph:
        """The graph, to which nothing is added any more."""
        module = fx.GraphModule(tensors, self._in_order())
        places = tuple(self.inputs), tuple(self.slots), tuple(self.counts), tuple(self.outputs)
        return MaskedGraph(*places, frozenset(self.zeroed), module)

    def _in_order(self) -> fx.Graph:
        """The graph with all inputs before everything else, and those of slots before those of counts."""
        ordered, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        inputs = [*self._placed, *self.slots.values(), *self.counts.values()]
        for node in (*inputs, *(node for node in self.graph.nodes if node.op != "placeholder")):
            copies[node] = ordered.node_copy(node, copies.__getitem__)
        return ordered

    def _add_input(self, node: fx.Node) -> None:
        value: Any = node.meta.get("val")
        place = _place(value)
        if self.zeroes and place is not None and value.is_floating_point():
            self.zero_behind[node] = frozenset({len(self.inputs)})
        self.inputs.append(place)
        self.copies[node] = self.graph.node_copy(node)
        self._placed.append(self.copies[node])

    def _add_output(self, node: fx.Node) -> None:
        if not isinstance(node.args[0], (tuple, list)):
            raise SizeMatters("it does not return a tuple")
        for result in node.args[0]:
            value = result.meta.get("val") if isinstance(result, fx.Node) else result
            if not isinstance(value, torch.Tensor):
                raise SizeMatters(f"it returns a {type(value).__name__}")
            self.outputs.append(_place(value))
        self.graph.node_copy(node, self.copies.__getitem__)

    def _add_call(self, node: fx.Node) -> None:
        if node.target is operator.getitem and node.args[0] in self.first_results:
            self.copies[node] = self.copies[node.all_input_nodes[0]]
            return
        name = name_of(node)
        if mutates(node) and node.target is not _aten.detach_.default:  # of which memory is another here
            raise SizeMatters(f"{name}: it changes a tensor")
        try:
            check_call(node, _is_extent)
        except SizeMatters:
            rule = _RULES.get(name)
            if rule is None:
                raise
            call = Call.of(node)
            call.check_numbers(_is_extent)
            rule(self, call)
            return
        if _is_extent(node.meta.get("val")):
            self.copies[node] = self._count_of_slots()
            return
        self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        if name in KEEP_ZEROS and node.all_input_nodes[0] in self.zero_behind:
            self.zero_behind[node] = self.zero_behind[node.all_input_nodes[0]]

    # what rules put in ----------------------------------------------------------------------------------------------------

    def call(self, target: Callable[..., Any], *arguments: Any, **options: Any) -> fx.Node:
        """A further call, of nodes of this graph."""
        made = self.graph.call_function(target, arguments, options)
        values = fx.map_arg((arguments, options), lambda node: node.meta["val"])
        mode = next(value.fake_mode for value in tree_leaves(values) if isinstance(value, FakeTensor))
        with mode:
            made.meta["val"] = target(*values[0], **values[1])
        return made

    def appended(self, slots: Slots, added: fx.Node, before: fx.Node, whole: torch.Tensor, dim: int) -> fx.Node:
        """A tensor like `whole`: what is `added` in the slots, and elsewhere what was there `before`, in as many slots."""
        made = self.graph.call_function(_aten.where.self, (self._mask(slots, whole, dim), added, before))
        made.meta["val"] = whole
        return made

    def held(self, source: fx.Node, neutral: float) -> fx.Node:
        """An operand of a call, with a number in the place of whatever other slots hold; itself where it has no axis."""
        value, copy = source.meta["val"], self.copies[source]
        if dim_of(value) is None:
            return copy
        if neutral == 0 and source in self.zero_behind:
            self.zeroed |= self.zero_behind[source]
            return copy
        if not value.is_floating_point():
            raise SizeMatters("numbers are reduced that are no floating-point numbers")
        return self.only_held(copy, neutral)

    def only_held(self, x: fx.Node, neutral: float) -> fx.Node:
        """A tensor of this graph that has the axis, with a number in the place of whatever other slots hold."""
        place = _place(x.meta["val"])
        assert place is not None
        mask = self._mask(Slots(None, place.more), x.meta["val"], place.dim)
        return self.call(_aten.where.ScalarOther, mask, x, neutral)

    def count(self, source: fx.Node) -> fx.Node:
        """The size of the axis in a tensor that has it, as a vector of one number of fp32."""
        value = source.meta["val"]
        place = _place(value)
        assert place is not None
        if place.more not in self.counts:
            self.counts[place.more] = self._input(f"count_{len(self.counts)}", value.new_empty((1,), dtype=torch.float32))
        return self.counts[place.more]

    def _count_of_slots(self) -> fx.Node:
        """How many slots there are, which is what every size of the axis is."""
        for node, place in zip(self._placed, self.inputs, strict=True):
            if place is not None:
                return self.call(_aten.sym_size.int, node, place.dim)
        raise SizeMatters("no input has the axis")

    def _mask(self, slots: Slots, like: torch.Tensor, dim: int) -> fx.Node:
        if slots not in self.slots:
            value = like.new_empty((like.shape[dim],), dtype=torch.bool)
            self.slots[slots] = self._input(f"slots_{len(self.slots)}", value)
        mask = self.slots[slots]
        for _ in range(like.dim() - 1 - dim):
            mask = self.call(_aten.unsqueeze.default, mask, -1)
        return mask

    def _input(self, name: str, value: torch.Tensor) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node


_Rule = Callable[[_Masking, Call], None]
"""Puts what stands for a call that reduces the axis, or appends to it, into a graph; raises SizeMatters where it cannot."""
_MOVES = (
    "view reshape _unsafe_view unsqueeze squeeze clone contiguous alias detach _to_copy to expand permute t transpose numpy_T"
)
KEEP_ZEROS = frozenset(_MOVES.split())
"""Calls that move elements, or change their type: what is 0 stays so."""


def _refused(call: Call, why: str) -> SizeMatters:
    return SizeMatters(f"{name_of(call.node)}: {why}")


def _node(call: Call, name: str) -> fx.Node:
    """An operand that is one tensor."""
    source = call[name]
    assert isinstance(source, fx.Node), name
    return source


def _replaced(masking: _Masking, call: Call, operands: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """The same call of other operands."""
    node = call.node
    copy = masking.graph.node_copy(node, lambda source: operands.get(source) or masking.copies[source])
    masking.copies[node] = copy
    return copy


def _is_along(call: Call, axis: Axis, dims: Any) -> bool:
    """Whether dimensions that a call names, or all where it names none, have the axis among them."""
    given = [dims] if isinstance(dims, int) else list(dims or ())
    return axis is not None and (not given or axis in [dim % call.rank("self") for dim in given])


def _reduced(masking: _Masking, call: Call, neutral: float) -> None:
    """A reduction over dimensions among which the axis is, to whose result a number makes no difference."""
    source = _node(call, "self")
    if not _is_along(call, call.axis("self"), call.arguments.get("dim")) or symbols_of(call.result):
        raise _refused(call, "it does not reduce the axis")
    _replaced(masking, call, {source: masking.held(source, neutral)})


def _averaged(masking: _Masking, call: Call) -> None:
    """A mean: the sum, of fp32 for smaller types, divided by how many there are."""
    source, axis = _node(call, "self"), call.axis("self")
    dims, result = call.arguments.get("dim"), call.result
    if axis is None or not _is_along(call, axis, dims) or symbols_of(result):
        raise _refused(call, "it does not reduce the axis")
    rank = call.rank("self")
    given = [dim % rank for dim in ([dims] if isinstance(dims, int) else dims or range(rank))]
    tensor = source.meta["val"]
    others = math.prod(int(tensor.shape[dim]) for dim in given if dim != axis)
    keep = bool(call.arguments.get("keepdim", False))
    wide = torch.float64 if torch.float64 in (tensor.dtype, result.dtype) else torch.float32
    total = masking.call(_aten.sum.dim_IntList, masking.held(source, 0.0), given, keep, dtype=wide)
    count = masking.count(source)
    if wide is torch.float64:  # of a number and a vector, PyTorch takes the vector's type
        count = masking.call(_aten._to_copy.default, count, dtype=wide)
    mean = masking.call(_aten.div.Tensor, total, count)
    if others > 1:
        mean = masking.call(_aten.div.Tensor, mean, others)
    if mean.meta["val"].dim() != result.dim():  # a single number
        mean = masking.call(_aten.view.default, mean, [])
    if mean.meta["val"].dtype is not result.dtype:
        mean = masking.call(_aten._to_copy.default, mean, dtype=result.dtype)
    masking.copies[call.node] = mean


def _normalized(masking: _Masking, call: Call) -> None:
    """A softmax along the axis: what is not held has no weight."""
    source = _node(call, "self")
    if not _is_along(call, call.axis("self"), call["dim"]):
        raise _refused(call, "it does not act along the axis")
    _replaced(masking, call, {source: masking.held(source, -math.inf)})
    # by name: of the softmaxes of ATen, those with a logarithm are not 0 where nothing is held
    if "log" not in name_of(call.node):
        masking.zero_behind[call.node] = frozenset()


def name_of(node: fx.Node) -> str:
    """The name of an operator of ATen, for all of its overloads; "" for other calls."""
    return str(node.target.overloadpacket.__name__) if isinstance(node.target, torch._ops.OpOverload) else ""


def _contracted(masking: _Masking, call: Call, left: str, right: str) -> None:
    """A product over the axis: both factors are 0 where nothing is held, for neither may be infinite there."""
    ours, theirs = call.tensor(left), call.tensor(right)
    assert ours is not None
    assert theirs is not None
    if (call.axis(left), call.axis(right)) != (ours.dim() - 1, max(theirs.dim() - 2, 0)) or symbols_of(call.result):
        raise _refused(call, "the axis is not what it sums over")
    factors = _node(call, left), _node(call, right)
    _replaced(masking, call, {factor: masking.held(factor, 0.0) for factor in factors})


def _einsum(masking: _Masking, call: Call) -> None:
    """`einsum` that sums over the axis, which has one letter of its own."""
    equation = Equation.of(call["equation"], call.axes("tensors"))
    if equation is None or symbols_of(call.result):
        raise _refused(call, "the axis is not what it sums over")
    if len(equation.axis) != 1 or equation.has_diagonal:
        raise _refused(call, "the axis has several letters, or is on a diagonal")
    _replaced(masking, call, {node: masking.held(node, 0.0) for node in call["tensors"]})


def _appended(masking: _Masking, call: Call) -> None:
    """A concatenation that appends a few elements to the axis: each is chosen in the place behind those before it."""
    tensors: list[fx.Node] = list(call["tensors"])
    dim = call["dim"] % call.result.dim()
    before = _place(tensors[0].meta["val"])
    if len(tensors) != 2 or before is None or before.dim != dim or _place(tensors[1].meta["val"]) is not None:
        raise _refused(call, "it joins tensors along the axis, other than a few elements behind its last")
    first, more = before.more, int(tensors[1].meta["val"].shape[dim])
    if more > _APPENDED:
        raise _refused(call, f"it appends {more} elements to the axis, and {_APPENDED} are followed at most")
    whole, added = masking.copies[tensors[0]], masking.copies[tensors[1]]
    for number in range(more):
        one = added if more == 1 else masking.call(_aten.slice.Tensor, added, dim, number, number + 1)
        whole = masking.appended(Slots(first + number, first + number + 1), one, whole, call.result, dim)
    masking.copies[call.node] = whole
    if tensors[0] in masking.zero_behind:
        masking.zero_behind[call.node] = masking.zero_behind[tensors[0]]


def _attended(masking: _Masking, call: Call) -> None:
    """Attention over keys along the axis. With a mask that nobody watches it stays one call, so that rows of which every key is
    hidden stay 0."""
    names = [name for name in ("query", "key", "value") if call.tensor(name) is not None]
    axes = [None if (axis := call.axis(name)) is None else axis - call.rank(name) for name in names]
    mask = call.arguments.get("attn_mask")
    if axes != [None, -2, -2] or symbols_of(call.result):
        raise _refused(call, "the axis is not that of its keys and values")
    if call["is_causal"] or call.arguments.get("dropout_p", 0) != 0:
        raise _refused(call, "it is causal, or draws random numbers")
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in call.node.users if _is_several(call)):
        raise _refused(call, "the sums of its rows are read")
    if mask is not None and dim_of(mask.meta["val"]) != mask.meta["val"].dim() - 1:
        raise _refused(call, "its mask does not have the axis as its last dimension")
    if mask is not None and mask not in masking.watched:
        _attended_with_mask(masking, call, mask)
        return
    masking.copies[call.node] = _spelled_out(masking, call, mask)
    if _is_several(call):
        masking.first_results.add(call.node)


def _is_several(call: Call) -> bool:
    """Whether a call gives sums of rows as well."""
    return isinstance(call.node.meta["val"], (tuple, list))


def _attended_with_mask(masking: _Masking, call: Call, mask: fx.Node) -> None:
    hidden = False if mask.meta["val"].dtype is torch.bool else -math.inf
    operands = {node: masking.held(node, 0.0) for node in (_node(call, "key"), _node(call, "value"))}
    operands[mask] = masking.only_held(masking.copies[mask], hidden)
    _replaced(masking, call, operands)


def _spelled_out(masking: _Masking, call: Call, mask: fx.Node | None) -> fx.Node:
    """Attention as products and a softmax over the keys that are held; a mask hides no row of them."""
    query, key, value = (_node(call, name) for name in ("query", "key", "value"))
    copy, shape = masking.copies[query], query.meta["val"].shape
    groups, width = _groups(call), shape[-1]
    if groups > 1:  # the queries of heads that share keys are simply more queries
        grouped = [*shape[:-3], shape[-3] // groups, groups * shape[-2], width]
        contiguous = masking.call(_aten.clone.default, copy, memory_format=torch.contiguous_format)
        copy = masking.call(_aten.view.default, contiguous, grouped)
    scale = call.arguments.get("scale")
    scaled = masking.call(_aten.mul.Tensor, copy, 1 / math.sqrt(width) if scale is None else scale)
    across = masking.call(_aten.transpose.int, masking.copies[key], -2, -1)
    scores = masking.call(_aten.matmul.default, scaled, across)
    if mask is not None:
        scores = _with_mask(masking, scores, masking.copies[mask], shape)
    shown = masking.only_held(scores, -math.inf)
    weights = masking.call(_aten.softmax.int, shown, -1)
    if weights.meta["val"].dtype is not value.meta["val"].dtype:  # a mask may be of a wider type
        weights = masking.call(_aten._to_copy.default, weights, dtype=value.meta["val"].dtype)
    mixed = masking.call(_aten.matmul.default, weights, masking.held(value, 0.0))
    return masking.call(_aten.view.default, mixed, [*shape[:-1], value.meta["val"].shape[-1]]) if groups > 1 else mixed


def _with_mask(masking: _Masking, scores: fx.Node, mask: fx.Node, shape: Sequence[int]) -> fx.Node:
    """Scores with a mask for queries of a `shape`, whose heads may be more queries in the scores."""
    own, alike = scores.meta["val"].shape, all(size == 1 for size in mask.meta["val"].shape[:-1][-2:])
    if not alike:
        scores = masking.call(_aten.view.default, scores, [*shape[:-1], -1])
    if mask.meta["val"].dtype is torch.bool:
        hidden = masking.call(_aten.where.ScalarOther, mask, scores, -math.inf)
    else:
        hidden = masking.call(_aten.add.Tensor, scores, mask)
    return hidden if alike else masking.call(_aten.view.default, hidden, [*own[:-1], -1])


def _groups(call: Call) -> int:
    """How many heads of queries share one of keys."""
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    assert query is not None
    assert key is not None
    assert value is not None
    batches = [tuple(tensor.shape[:-2]) for tensor in (query, key, value)]
    if batches[1] != batches[2] or len(batches[0]) != len(batches[1]) or batches[0][:-1] != batches[1][:-1]:
        raise _refused(call, "its operands have different batches")
    if batches[0] == batches[1]:
        return 1
    if not (call.arguments.get("enable_gqa", False) or _is_several(call)):
        raise _refused(call, "its operands have different heads")
    return int(batches[0][-1]) // int(batches[1][-1])


def _rules() -> dict[str, _Rule]:
    """By the name of an operator of ATen, what stands for calls of it that reduce the axis."""
    by_rule: Sequence[tuple[_Rule, str]] = (
        (partial(_reduced, neutral=0.0), "sum"),
        (partial(_reduced, neutral=-math.inf), "amax logsumexp"),
        (partial(_reduced, neutral=math.inf), "amin"),
        (_averaged, "mean"),
        (_normalized, "softmax _softmax log_softmax _log_softmax"),
        (partial(_contracted, left="self", right="other"), "matmul"),
        (partial(_contracted, left="self", right="mat2"), "mm bmm"),
        (partial(_contracted, left="self", right="vec"), "mv"),
        (partial(_contracted, left="mat1", right="mat2"), "addmm"),
        (partial(_contracted, left="batch1", right="batch2"), "baddbmm"),
        (_einsum, "einsum"),
        (_appended, "cat"),
        (_attended, "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu"),
    )
    return {name: rule for rule, names in by_rule for name in names.split()}


_RULES = _rules()
