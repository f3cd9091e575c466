"""Parts of a graph with symbolic sizes that reduce one of them, each a graph of its own that can be masked.

In a decoder whose cache of keys and values grows, these are the attentions. A part is connected calls on tensors with symbolic
sizes; calls whose results of such a size the graph returns stay outside, for they are written at their size anyway. Sizes that
PyTorch gave different symbols are one size in a part: whoever runs it looks whether they are. What is made of positions alone, as
the masks of padded batches are, stays outside, too: parts read it, all layers the same. Whoever runs a part looks at the masks of
attention, as for other programs (`mugraph.frontend.operators.attention`).
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.frontend.operators.attention import mask_of
from mugraph.frontend.operators.torch_casts import tensors_of
from mugraph.frontend.rewriting.graph_passes import owner_of
from mugraph.frontend.rewriting.node_traits import mutates
from mugraph.frontend.symbolic_sizes.axes import Axis, SizeMatters, symbols_of, varies
from mugraph.frontend.symbolic_sizes.batch_axis import batch_dim, check_samples
from mugraph.frontend.symbolic_sizes.masked_axis import KEEP_ZEROS, masked, name_of
from mugraph.frontend.symbolic_sizes.slots import MaskedGraph

_HINT = 61
"""The size at which a part is recorded with a symbol, no more common than others."""

_log = logging.getLogger("mugraph.torch_compile")

T = TypeVar("T")
Run = Callable[..., Sequence[torch.Tensor]]


class Part(Protocol):
    """Calls of a graph, what they read, and what others read of them."""

    @property
    def nodes(self) -> tuple[fx.Node, ...]: ...
    @property
    def inputs(self) -> tuple[fx.Node, ...]: ...
    @property
    def outputs(self) -> tuple[fx.Node, ...]: ...


@dataclass(frozen=True, slots=True, eq=False)
class MaskedPart:
    """Calls of a graph, what they read, what others read of them, and them as graphs of one symbolic size."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    original: fx.GraphModule
    masked: MaskedGraph
    masks: tuple[int, ...]
    """Which of the inputs mask attention: the masked graph holds only where none of them hides a row."""

    @property
    def strides(self) -> list[tuple[int, ...] | None]:
        """How each result lies; None where that depends on a size, and is contiguous."""
        return [_strides(node.meta["val"]) for node in self.outputs]

    @property
    def form(self) -> str:
        """What parts share that do the same to tensors of the same shapes and types but for the size, with results that lie
        alike."""
        kinds = [_kind(node) for node in self.original.graph.nodes if node.op == "placeholder"]
        return "\n".join([self.original.code, *kinds, str(self.strides)])


@dataclass(frozen=True, slots=True, eq=False)
class BatchedPart:
    """Calls of a graph with a batch and a length that do the same to every sample, and can be masked at every batch.

    `smallest` is a masked part for a batch of two; `inputs` and `outputs` are those of all.
    """

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    batch: Any
    """Its symbol."""
    places: tuple[Axis, ...]
    """The dimension that each input has of the batch."""
    results: tuple[Axis, ...]
    smallest: MaskedPart

    def at(self, size: int) -> MaskedPart:
        """The part for a batch; raises SizeMatters where it cannot be masked."""
        part = _part([*self.nodes], _positions(self.nodes[0].graph), {self.batch: size})
        if part.masked.places != self.smallest.masked.places:
            raise SizeMatters(f"it is masked in another way at {size} samples")
        return part

    @property
    def strides(self) -> list[tuple[int, ...] | None]:
        """How each result lies; None where that depends on a size, and is contiguous."""
        return self.smallest.strides

    @property
    def form(self) -> str:
        """As that of a masked part."""
        return f"{self.smallest.form}\n{self.places} {self.results}"


def batched_parts(module: fx.GraphModule) -> list[BatchedPart]:
    """The parts of a graph of ATen calls with several symbolic sizes that can be masked along others than one, which is a batch;
    none of a graph that changes tensors."""
    symbols = {symbol for node in module.graph.nodes for symbol in symbols_of(node.meta.get("val"))}
    if len(symbols) < 2:
        return []
    found = (_followed_parts(module, partial(_batched_part, batch), {batch: 2}) for batch in sorted(symbols, key=str))
    return next((parts for parts in found if parts), [])


def masked_parts(module: fx.GraphModule) -> list[MaskedPart]:
    """The parts of a graph of ATen calls that can be masked, in order; none of a graph that changes tensors."""
    return _followed_parts(module, _part, {})


def _followed_parts(
    module: fx.GraphModule, made: Callable[[list[fx.Node], Mapping[fx.Node, int]], T], fixed: Mapping[Any, int]
) -> list[T]:
    """What is made of connected calls on tensors of other symbolic sizes than those that are `fixed`."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    if any(mutates(node) for node in calls):
        return []
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    position = _positions(module.graph)
    outside = _of_positions(module.graph.nodes)
    parts: list[T] = []
    for nodes in _connected([node for node in calls if node not in outside and _is_followed(node, output, fixed)]):
        try:
            parts.append(made(nodes, position))
        except SizeMatters as reason:
            _log.debug("%s stays with torch at sizes that vary: %s", nodes[0].name, reason)
    return parts


def computes_elsewhere(module: fx.GraphModule, parts: Sequence[Part]) -> bool:
    """Whether calls outside of the parts compute tensors of symbolic sizes, not of positions alone, and do more than move and
    join elements."""
    others = {node for part in parts for node in part.nodes} | _of_positions(module.graph.nodes)
    calls = (node for node in module.graph.nodes if node.op == "call_function" and node not in others)
    return any(varies(node) and (name := name_of(node)) and name != "cat" and name not in KEEP_ZEROS for node in calls)


def with_parts(module: fx.GraphModule, parts: Sequence[Part], runs: Sequence[Run]) -> fx.GraphModule:
    """A graph with calls of `runs`, from the inputs of each part to its outputs, in the place of the parts."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    inside = {node for part in parts for node in part.nodes}
    before: dict[fx.Node, list[int]] = {}
    for number, part in enumerate(parts):
        before.setdefault(_first_reader(part.nodes, module.graph.nodes), []).append(number)
    for node in module.graph.nodes:
        for number in before.get(node, ()):
            _call(graph, copies, parts[number], runs[number])
        if node not in inside:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(module, graph)


def _call(graph: fx.Graph, copies: dict[fx.Node, fx.Node], part: Part, run: Run) -> None:
    def masked_part(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:  # whose name torch writes into the code of the graph
        return run(*tensors)

    results = graph.call_function(masked_part, tuple(copies[node] for node in part.inputs))
    results.meta["val"] = tuple(node.meta["val"] for node in part.outputs)
    for number, node in enumerate(part.outputs):
        copies[node] = graph.call_function(operator.getitem, (results, number))
        copies[node].meta = dict(node.meta)


def _kind(node: fx.Node) -> str:
    value = node.meta["val"]
    return f"{value.dtype} {value.device} {['n' if symbols_of(size) else size for size in value.shape]}"


def _of_positions(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The calls that read no floating-point tensors but those that such calls make."""
    found = set[fx.Node]()
    for node in nodes:
        if node.op == "call_function" and all(source in found or _is_whole(source) for source in node.all_input_nodes):
            found.add(node)
    return found


def _is_whole(node: fx.Node) -> bool:
    """Whether a node is given from outside, and is no floating-point tensor."""
    return node.op != "call_function" and not any(tensor.is_floating_point() for tensor in tensors_of(node))


def _is_followed(node: fx.Node, output: fx.Node, fixed: Mapping[Any, int]) -> bool:
    """Whether a call is on tensors of symbolic sizes that are not fixed, and gives none of these that the graph returns."""
    call = node.all_input_nodes[0] if node.target is operator.getitem else node
    if not isinstance(call.target, torch._ops.OpOverload):  # as what runs a part of the graph already
        return False
    grows = partial(_grows, fixed=fixed)
    if not tensors_of(node) or (grows(node) and output in node.users):
        return False
    return grows(node) or any(map(grows, node.all_input_nodes)) or _takes_out(node, grows)


def _takes_out(node: fx.Node, grows: Callable[[fx.Node], bool]) -> bool:
    """Whether a call takes one of the results of a call on tensors of symbolic sizes."""
    return node.target is operator.getitem and any(map(grows, node.all_input_nodes[0].all_input_nodes))


def _grows(node: fx.Node, fixed: Mapping[Any, int]) -> bool:
    """Whether a size of a tensor that a node gives is symbolic, and not fixed."""
    return any(symbols_of(tensor.shape) - fixed.keys() for tensor in tensors_of(node))


def _positions(graph: fx.Graph) -> dict[fx.Node, int]:
    return {node: number for number, node in enumerate(graph.nodes)}


def _connected(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Nodes grouped by who reads whom, each group in order."""
    groups: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        joined = [node]
        for group in {id(groups[source]): groups[source] for source in node.all_input_nodes if source in groups}.values():
            joined = group + joined
        groups |= dict.fromkeys(joined, joined)
    order = {node: number for number, node in enumerate(nodes)}
    return [sorted(group, key=order.__getitem__) for group in {id(group): group for group in groups.values()}.values()]


def _first_reader(nodes: Iterable[fx.Node], graph: Iterable[fx.Node]) -> fx.Node:
    """The first node outside that reads one of these."""
    inside = set(nodes)
    readers = {user for node in inside for user in node.users} - inside
    return next(node for node in graph if node in readers)


def _batched_part(batch: Any, nodes: list[fx.Node], position: Mapping[fx.Node, int]) -> BatchedPart:
    """Connected calls as a part with a batch; raises SizeMatters where they are none."""
    part = _part(nodes, position, {batch: 2})
    check_samples(_as_recorded(nodes, part.outputs), batch)
    places, results = (tuple(batch_dim(node.meta["val"], batch) for node in each) for each in (part.inputs, part.outputs))
    if not any(place is not None for place in places) or None in results:
        raise SizeMatters("not all of it has the batch")
    return BatchedPart(tuple(nodes), part.inputs, part.outputs, batch, places, results, part)


def _as_recorded(nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.Graph:
    """Calls as a graph of their own, with the tensors and sizes that they have."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in copies:  # those inside stand before their readers
                copies[source] = graph.placeholder(source.name)
                copies[source].meta["val"] = source.meta.get("val")
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return graph


def _part(nodes: list[fx.Node], position: Mapping[fx.Node, int], fixed: Mapping[Any, int] = MappingProxyType({})) -> MaskedPart:
    """Connected calls as a part, with numbers in the place of symbols that are fixed; raises SizeMatters where they are none."""
    inside = set(nodes)
    inputs = [*dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside)]
    outputs = [node for node in nodes if not node.users.keys() <= inside]
    tensors = [node for node in inputs if tensors_of(node)]
    if not outputs or max(map(position.__getitem__, inputs)) >= position[_first_reader(nodes, position)]:
        raise SizeMatters("what is computed in between reads some of it")
    if not all(len(tensors_of(node)) == 1 and isinstance(node.meta["val"], torch.Tensor) for node in (*tensors, *outputs)):
        raise SizeMatters("several results at once go in or out")
    if any(owner_of(node) not in inside for node in outputs):
        raise SizeMatters("a result shares memory with what is read")
    if any(_strides(node.meta["val"]) is None and not node.meta["val"].is_contiguous() for node in outputs):
        raise SizeMatters("a result of symbolic size is not contiguous")
    try:
        original = _with_one_symbol(nodes, inputs, outputs, fixed)
    except RuntimeError as error:  # as of a view that contiguous tensors have not
        raise SizeMatters(f"it cannot be recorded alone: {error}") from None
    masking = {mask_of(node) for node in nodes}
    masks = tuple(number for number, node in enumerate(tensors) if node in masking)
    placeholders = [node for node in original.graph.nodes if node.op == "placeholder"]
    graph = masked(original.graph, original, {placeholders[number] for number in masks})
    return MaskedPart(tuple(nodes), tuple(tensors), tuple(outputs), original, graph, masks)


def _with_one_symbol(
    nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], fixed: Mapping[Any, int]
) -> fx.GraphModule:
    """Calls as a graph of their own, recorded again with one symbol for all sizes that vary and are not fixed."""
    graph, copies, environment = fx.Graph(), dict[fx.Node, Any](), ShapeEnv()
    with _disable_current_modes(), torch.no_grad(), FakeTensorMode(shape_env=environment) as mode:
        for node in inputs:
            if tensors_of(node):
                copies[node] = graph.placeholder(f"x{len(copies)}")
                copies[node].meta["val"] = _recorded(node, mode, len(copies), fixed)
        for node in inputs:
            if not tensors_of(node):
                copies[node] = _size(node, graph, copies, fixed)
        for node in nodes:
            arguments = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
            copies[node] = copy = graph.create_node(node.op, node.target, *arguments)  # named after what it does: see `form`
            values = fx.map_arg((copy.args, copy.kwargs), lambda source: source.meta["val"])
            copy.meta["val"] = copy.target(*values[0], **values[1])  # type: ignore[operator]
    graph.output(tuple(copies[node] for node in outputs))
    if environment.guards:
        raise SizeMatters("it asks about its size")
    return fx.GraphModule({}, graph)


def _recorded(node: fx.Node, mode: FakeTensorMode, number: int, fixed: Mapping[Any, int]) -> torch.Tensor:
    """A tensor without data of the one symbolic size where a node has one."""
    value = node.meta["val"]
    sizes = [_with_numbers(size, fixed) for size in value.shape]
    if sum(size is None for size in sizes) > 1:
        raise SizeMatters("a tensor has several sizes that vary")
    shape = [_HINT if size is None else size for size in sizes]
    dims = [DimDynamic.DUCK if size is None else DimDynamic.STATIC for size in sizes]
    with _disable_current_modes():
        real = torch.empty(shape, dtype=value.dtype, device=value.device)
    return mode.from_tensor(real, source=ConstantSource(f"x{number}"), symbolic_context=StatelessSymbolicContext(dims))


def _with_numbers(size: Any, fixed: Mapping[Any, int]) -> int | None:
    """A size with numbers in the place of fixed symbols; None where it varies still. Raises SizeMatters where it is of both."""
    found = symbols_of(size)
    if not found <= fixed.keys():
        if found & fixed.keys():
            raise SizeMatters(f"a size is {size}, of a batch and of what varies beside it")
        return None
    return int(size.node.expr.subs(dict(fixed))) if found else int(size)


def _strides(value: torch.Tensor) -> tuple[int, ...] | None:
    """How a tensor lies; None where that depends on a size."""
    return None if symbols_of(value.stride()) else tuple(int(stride) for stride in value.stride())


def _size(node: fx.Node, graph: fx.Graph, copies: dict[fx.Node, Any], fixed: Mapping[Any, int]) -> fx.Node | int:
    """A size that is computed outside, as one of an input or a number; raises SizeMatters where none has it."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt) and (number := _with_numbers(value, fixed)) is not None:
        return number
    for source, copy in copies.items():
        tensors = tensors_of(source)
        axes = [dim for dim, size in enumerate(tensors[0].shape) if symbols_of(size) - fixed.keys()] if tensors else []
        axis = axes[0] if len(axes) == 1 else None
        if isinstance(value, torch.SymInt) and axis is not None and str(tensors[0].shape[axis]) == str(value):
            size = graph.call_function(torch.ops.aten.sym_size.int, (copy, axis))
            size.meta["val"] = copy.meta["val"].shape[axis]
            return size
    raise SizeMatters("a number that is computed outside goes in")
