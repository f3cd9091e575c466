"""Passes over torch graphs before they are cut into pieces.

`concrete` makes of a graph with symbolic sizes the one it is at sizes that are known. `ready_to_cut` applies all others:
`with_attention` makes the calls that PyTorch has of attention on a GPU the one that they stand for;
`without_empty_parts` leaves out what concatenations have nothing of, `with_padding_in_convolutions` zeros around images,
`without_copies` copies of which nobody can tell; `with_known_masks` makes masks and biases of positions alone buffers, and
`with_masks_of_numbers` attention's boolean masks numbers;
`with_views_of_results` makes results that share memory views, which nothing else reads, of one tensor or input; `with_slices`
makes each part of a tensor that is split a call of its own; `with_arrangements` (`arrangements.py`) makes concatenations of
equal blocks of one tensor calls of one operator.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_aggregate

from mugraph.frontend.operators.attention import is_boolean_mask, mask_of
from mugraph.frontend.operators.torch_casts import arguments_of_call, lazy_module
from mugraph.frontend.rewriting.arrangements import with_arrangements
from mugraph.frontend.rewriting.constants import with_known_masks
from mugraph.frontend.rewriting.node_traits import SPLITS, mutates

Number = int | float | bool


def ready_to_cut(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls as it is cut into pieces."""
    module = with_masks_of_numbers(with_known_masks(with_padding_in_convolutions(without_empty_parts(with_attention(module)))))
    return with_arrangements(with_slices(with_views_of_results(without_copies(module))))


def numbers_of(module: fx.GraphModule) -> tuple[int, ...] | None:
    """Which arguments of a graph are numbers that decide all its sizes; None where its tensors have sizes of other origin.

    () for a graph whose sizes are all fixed. None also where a number is no integer: equal ones (0.0 and -0.0) may differ.
    """
    placeholders = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    if any(isinstance(value, (torch.SymFloat, torch.SymBool)) for value in placeholders):
        return None
    numbers = tuple(index for index, value in enumerate(placeholders) if isinstance(value, torch.SymInt))
    given = {str(placeholders[index].node.expr) for index in numbers}
    tensors = [value for value in placeholders if isinstance(value, torch.Tensor)]
    needed = {symbol for tensor in tensors for symbol in _symbols(tensor)}
    return numbers if needed <= given else None


def concrete(module: fx.GraphModule, arguments: Sequence[Any]) -> fx.GraphModule:
    """The graph of `module` for the sizes, strides and numbers of these arguments, which tensors with other contents may follow.

    What the graph computes of sizes becomes constants. The arguments are those of `module`. Raises what torch raises for sizes
    that the graph cannot have, or that depend on the contents of tensors.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    given = iter(arguments)
    with torch.no_grad(), FakeTensorMode() as mode:
        for node in module.graph.nodes:
            if node.op == "output":
                graph.output(fx.map_arg(node.args[0], copies.__getitem__))
                continue
            if node.op == "placeholder":
                value: Any = next(given)
            elif node.op == "get_attr":
                value = getattr(module, node.target)
            else:
                value = _computed(node, copies)
            if isinstance(value, torch.Tensor) and node.op != "call_function":
                value = mode.from_tensor(value, static_shapes=True)
            known = isinstance(value, Number)
            if node.op == "call_function" and known:
                copies[node] = value
                continue
            copy = graph.node_copy(node, copies.__getitem__)
            copy.meta["val"] = value
            copies[node] = value if known else copy
    return lazy_module(module, graph)


def _computed(node: fx.Node, copies: dict[fx.Node, Any]) -> Any:
    """What a call gives for tensors without data."""

    def value(source: fx.Node) -> Any:
        copy = copies[source]
        return copy.meta["val"] if isinstance(copy, fx.Node) else copy

    arguments: Any = fx.map_arg(node.args, value)
    options: Any = fx.map_arg(node.kwargs, value)
    assert callable(node.target), "calls of modules and methods are no ATen calls"
    return node.target(*arguments, **options)


def _symbols(tensor: torch.Tensor) -> Iterator[str]:
    """The symbols in a tensor's sizes, strides and offset."""
    for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset()):
        if isinstance(size, torch.SymInt):
            yield from map(str, size.node.expr.free_symbols)


def with_views_of_results(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls in which results that share memory, also with its inputs, are made by calls of their own from what
    they are views of."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results = list(dict.fromkeys(output.all_input_nodes))
    owners = {node: owner_of(node) for node in results}
    count = Counter(owners.values())
    shared = {owner for owner in count if count[owner] > 1 or owner.op != "call_function"}
    views = [node for node in results if owners[node] is not node and owners[node] in shared]
    if not views:
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(module.graph, copies)
    again: dict[fx.Node, fx.Node] = {}

    def made_again(node: fx.Node) -> fx.Node:
        source = viewed(node)
        if source is None:
            return copies[node]
        if node not in again:
            made_again(source)
            again[node] = graph.node_copy(node, lambda read: again.get(read, copies[read]))
        return again[node]

    returned = {node: made_again(node) if node in views else copies[node] for node in results}
    graph.output(fx.map_arg(output.args[0], returned.__getitem__))
    for node in reversed(list(copies.values())):
        if node.op == "call_function" and not node.users and viewed(node) is not None:
            graph.erase_node(node)
    return lazy_module(module, graph)


def without_copies(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls without the clones, as dropout is at inference, that calls only compute with.

    Where a call changes its operands all stay, and so do clones that are returned, or views of which are.
    """
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    copied = {node: node.args[0] for node in calls if _is_plain_clone(node) and not _is_returned(node)}
    if not copied or any(map(mutates, calls)):
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        source = copied.get(node)
        copies[node] = copies[source] if isinstance(source, fx.Node) else graph.node_copy(node, copies.__getitem__)
    return lazy_module(module, graph)


def _is_plain_clone(node: fx.Node) -> bool:
    """Whether a call copies a tensor as it lies.

    A copy of a conjugate does not: it has the conjugated numbers in memory, which its source is only marked to stand for, and
    calls such as `view_as_real` take none that is marked. So it is with the sign of a conjugate's imaginary part.
    """
    if node.target is not _aten.clone.default or not isinstance(node.args[0], fx.Node):
        return False
    given, read = (each.meta.get("val") for each in (node, node.args[0]))
    return isinstance(given, torch.Tensor) and isinstance(read, torch.Tensor) and _lies(given) == _lies(read)


def _lies(tensor: torch.Tensor) -> tuple[tuple[int, ...], bool, bool]:
    """The strides of a tensor, and whether its memory has conjugates, or numbers of the other sign."""
    return tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _is_returned(node: fx.Node) -> bool:
    """Whether a tensor, or one that may share its memory, is a result."""
    return any(user.op != "call_function" or (_may_share(user) and _is_returned(user)) for user in node.users)


def _may_share(node: fx.Node) -> bool:
    """Whether a call may give memory of its operands, as its schema says, or as it does without a word."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    aliases = any(argument.alias_info is not None for argument in node.target._schema.arguments)
    return aliases or node.target.overloadpacket in _SHARE_SILENTLY


def viewed(node: fx.Node) -> fx.Node | None:
    """The operand that an ATen call gives a view of; None for a tensor with memory of its own, as far as schemas tell."""
    if node.target is operator.getitem:
        producer = node.args[0]
        return producer if isinstance(producer, fx.Node) and viewed(producer) is not None else None
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target.is_view:
        return None
    arguments = node.target._schema.arguments
    position = next(position for position, argument in enumerate(arguments) if argument.alias_info is not None)
    operand = node.args[position] if position < len(node.args) else node.kwargs.get(arguments[position].name)
    return operand if isinstance(operand, fx.Node) else None


def owner_of(node: fx.Node) -> fx.Node:
    """What a tensor is, after all, a view of."""
    while (source := viewed(node)) is not None:
        node = source
    return node


def copy_returned(graph: fx.Graph, placeholders: Collection[str]) -> None:
    """Change a graph so that it returns copies of these placeholders: whoever is given one may write to it."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    for node in output.all_input_nodes:
        if owner_of(node).name in placeholders:
            with graph.inserting_before(output):
                copied = graph.call_function(_aten.clone.default, (node,))
            copied.meta.update(node.meta)
            output.replace_input_with(node, copied)


_aten = torch.ops.aten
_SHARE_SILENTLY = frozenset({_aten._unsafe_view, _aten.dropout, _aten.feature_dropout, _aten.alpha_dropout})
"""Operators that may give their operand, or its memory, although their schemas do not say so."""


def without_empty_parts(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls whose concatenations have no operands without elements, as fresh caches are."""
    shortened = {node: full for node in module.graph.nodes if (full := _without_empty(node))}
    if not shortened:
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in shortened:
            _, dim = arguments_of_call(node)
            copies[node].args, copies[node].kwargs = ([copies[tensor] for tensor in shortened[node]], dim), {}
    return lazy_module(module, graph)


def _without_empty(node: fx.Node) -> list[fx.Node]:
    """The operands of a concatenation that have elements, where some have none; none of calls that stay as they are."""
    if node.target is not _aten.cat.default:
        return []
    tensors, _ = arguments_of_call(node)
    full = [tensor for tensor in tensors if not _is_empty(tensor)]
    same = all(tensor.meta["val"].dtype == node.meta["val"].dtype for tensor in full)  # what is empty may widen the others
    return full if same and len(full) < len(tensors) else []


def _is_empty(node: fx.Node) -> bool:
    """Whether a tensor is known to have no elements."""
    shape = node.meta["val"].shape
    return any(isinstance(size, int) and size == 0 for size in shape)


def with_masks_of_numbers(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls in which masks of attention are added to scores: 0, or -inf where a boolean hides a key."""
    masked = [node for node in module.graph.nodes if is_boolean_mask(mask_of(node))]
    if not masked:
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        mask = mask_of(node) if node in masked else None
        if mask is not None:
            shown, query = mask.meta["val"], node.args[0].meta["val"]
            numbers = graph.call_function(_aten.where.Scalar, (copies[mask], 0.0, -math.inf))
            numbers.meta["val"] = query.new_empty(shown.shape, dtype=torch.get_default_dtype())
            if query.dtype is not torch.get_default_dtype():
                numbers = graph.call_function(_aten._to_copy.default, (numbers,), {"dtype": query.dtype})
                numbers.meta["val"] = query.new_empty(shown.shape)
            copies[node] = graph.node_copy(node, {**copies, mask: numbers}.__getitem__)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return lazy_module(module, graph)


def with_padding_in_convolutions(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls whose convolutions pad images themselves, where zeros were put around these by calls of their own,
    as many before as behind."""
    padding = {node: sizes for node in module.graph.nodes if (sizes := _padding_with_border(node)) is not None}
    if not padding or any(mutates(node) for node in module.graph.nodes if node.op == "call_function"):
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in padding:
            bordered, weight, bias, stride, _, *others = arguments_of_call(copies[node])
            copies[node].args, copies[node].kwargs = (bordered.args[0], weight, bias, stride, padding[node], *others), {}
    for node in padding:
        border = copies[node.args[0]]
        if not border.users and border in graph.nodes:
            graph.erase_node(border)
    return lazy_module(module, graph)


def _padding_with_border(node: fx.Node) -> list[int] | None:
    """The padding of a convolution together with the zeros around what it reads; None where these are no padding of its."""
    if node.target is not _aten.convolution.default:
        return None
    border, weight, _, stride, padding, dilation, transposed, *_ = arguments_of_call(node)
    if transposed or not isinstance(border, fx.Node) or border.target is not _aten.constant_pad_nd.default:
        return None
    _, pad, value = arguments_of_call(border)
    rank = len(stride)
    sides = [(before, behind) for before, behind in zip(pad[::2], pad[1::2], strict=True)]
    plain = value == 0 and len(sides) <= rank and all(isinstance(size, int) for size in (*pad, *padding))
    if not plain or any(before != behind or before < 0 for before, behind in sides):
        return None
    own = list(padding) * (rank if len(padding) == 1 else 1)
    around = [before for before, _ in reversed(sides)]
    sizes = [size + more for size, more in zip(own, [0] * (rank - len(around)) + around, strict=True)]
    steps = list(dilation) * (rank if len(dilation) == 1 else 1)
    windows = [(size - 1) * step + 1 for size, step in zip(weight.meta["val"].shape[2:], steps, strict=True)]
    return sizes if all(size < window for size, window in zip(sizes, windows, strict=True)) else None


def with_slices(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls in which each part of a tensor that is split is a view by a call of its own, beside its readers."""
    if not any(node.target in SPLITS and _is_taken_apart(node) for node in module.graph.nodes):
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        producer = node.args[0] if node.target is getitem else None
        if isinstance(producer, fx.Node) and producer.target in SPLITS and _is_taken_apart(producer):
            copies[node] = _part_call(graph, copies, producer, int(node.args[1]))
            copies[node].meta = dict(node.meta)
        elif not (node.target in SPLITS and _is_taken_apart(node)):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return lazy_module(module, graph)


def _is_taken_apart(node: fx.Node) -> bool:
    """Whether what a call gives is of known shapes, and only single ones of it are read."""
    parts = node.meta.get("val")
    known = isinstance(parts, (tuple, list)) and all(isinstance(size, int) for part in parts for size in part.shape)
    return known and all(user.target is getitem for user in node.users)


def _part_call(graph: fx.Graph, copies: dict[fx.Node, fx.Node], split: fx.Node, number: int) -> fx.Node:
    """The call that gives one part of a tensor that is split."""
    arguments = arguments_of_call(split)
    source, dim, parts = arguments[0], arguments[-1], split.meta["val"]
    if split.target is _aten.unbind.int:
        return graph.call_function(_aten.select.int, (copies[source], dim, number % len(parts)))
    ends = [0, *itertools.accumulate(int(part.shape[dim]) for part in parts)]
    number %= len(parts)
    return graph.call_function(_aten.slice.Tensor, (copies[source], dim, ends[number], ends[number + 1]))


_ON_GPUS = frozenset(
    {
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_flash_attention.default,
    }
)
"""Operators that PyTorch makes of attention on a GPU, whose first result is that of `scaled_dot_product_attention`."""


def with_attention(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls in which attention is `scaled_dot_product_attention` on a GPU too, where nothing else is read of it.

    With dropout the calls stay.
    """
    attended = {node: given for node in module.graph.nodes if (given := _attention_alone(node)) is not None}
    if not attended:
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        given = attended.get(node)
        if given is not None:
            operands = (given["query"], given["key"], given["value"], given.get("attn_bias"), 0.0, given["is_causal"])
            copies[node] = graph.call_function(
                _aten.scaled_dot_product_attention.default,
                fx.map_arg(operands, copies.__getitem__),
                {"scale": given["scale"]},
            )
            copies[node].meta = dict(node.meta) | {"val": node.meta["val"][0]}
        elif node.target is getitem and node.args[0] in attended:
            copies[node] = copies[node.args[0]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return lazy_module(module, graph)


def _attention_alone(node: fx.Node) -> dict[str, Any] | None:
    """The arguments, by name, of a call of attention on a GPU of which the first result is all that is read, and that drops
    nothing; None for every other node."""
    if node.target not in _ON_GPUS or not all(user.target is getitem and user.args[1] == 0 for user in node.users):
        return None
    names = (argument.name for argument in node.target._schema.arguments)
    given = dict(zip(names, arguments_of_call(node), strict=True))
    return given if given["dropout_p"] == 0 else None


def on_device(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """A graph of calls with the tensors that it holds, and those that its calls make of none, on another device."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    tensors = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            tensors[str(node.target)] = attrgetter(str(node.target))(module).to(device)
        node.args, node.kwargs = map_aggregate(
            (node.args, node.kwargs), lambda part: device if isinstance(part, torch.device) else part
        )
    return fx.GraphModule(tensors, graph)
