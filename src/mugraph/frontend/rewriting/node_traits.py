"""Operators of a torch graph as the partitioner sees them: which can be part of a program, what they do there, what they cost.

Nothing is decided by an operator's name: each call is converted alone (`mugraph.frontend.operators.conversion`), and its traits
are read off the operators of the table it becomes. What cannot be converted stays with torch, for the reason the frontend gives.
Bytes and operations are counted by the operator table too; those of the other calls by PyTorch's own formulas, or as one
operation for each element they give.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_aggregate
from torch.utils.flop_counter import flop_registry

from mugraph.errors import MugraphError
from mugraph.frontend.operators.aten import ROWS
from mugraph.frontend.operators.attention import WATCHED_ROWS
from mugraph.frontend.operators.conversion import ROW, Signature, convert
from mugraph.frontend.operators.torch_casts import DTYPES, INTEGERS, is_rounding_cast, tensor_of, tensors_of, text_of_tensor
from mugraph.frontend.rewriting.constants import KNOWN_MASKS
from mugraph.frontend.rewriting.permuted_blocks import ARRANGED_ROWS, TINY_MATRIX, arranged
from mugraph.ir.cores import bytes_read, has_lookups
from mugraph.ir.graph import Graph, Node
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import OPERATORS, Kind, Operator, flops_of, is_reduction, is_scan
from mugraph.ir.parts import has_parts

_GATHERING = frozenset({"embedding", "index", "index_select", "gather"})
"""Operators that read of their first operand only what they give."""
_VIEWS = frozenset({"_unsafe_view"})
"""Operators that give their operand's memory although their schema does not say so."""


@dataclass(frozen=True, slots=True)
class CallWork:
    """Bytes read and written, each tensor once, and floating-point operations."""

    bytes: int = 0
    flops: int = 0


def work_of_call(node: fx.Node) -> CallWork:
    """What a call costs when torch runs it alone; views, and parts of several results, cost nothing."""
    return CallWork() if _is_free(node) else CallWork(bytes_of_call(node), _flops_of_call(node, tensors_of(node)))


def bytes_of_call(node: fx.Node) -> int:
    """Bytes that a call reads and writes when torch runs it alone."""
    if _is_free(node):
        return 0
    gathers = _name(node) in _GATHERING
    read = [node if gathers and source is node.args[0] else source for source in node.all_input_nodes]
    return sum(map(bytes_of, (*read, node)))


def _is_free(node: fx.Node) -> bool:
    """Whether a call gives no tensor of its own: views, and parts of several results."""
    view = getattr(node.target, "is_view", False) or _name(node) in _VIEWS
    return view or node.target is operator.getitem or not tensors_of(node)


def _name(node: fx.Node) -> str | None:
    return getattr(getattr(node.target, "overloadpacket", None), "__name__", None)


def work_of_program(program: Graph, tensors: Iterable[fx.Node]) -> CallWork:
    """What kernels that compute `program` cost at least, `tensors` being its inputs and outputs; of tables that is what they look
    up."""
    whole = sum(node.output.bytes for node in program.inputs())
    return CallWork(sum(map(bytes_of, tensors)) - whole + bytes_read(program), flops_of(program))


def share(taken: Iterable[int], rest: Iterable[int]) -> float:
    """The part that `taken` is of everything; 0 of nothing."""
    ours = sum(taken)
    return ours / max(ours + sum(rest), 1)


def _flops_of_call(node: fx.Node, given: list[torch.Tensor]) -> int:
    """Operations of a call; 0 where none are on floats, and where sizes vary."""
    operands = [tensor for source in node.all_input_nodes for tensor in tensors_of(source)]
    if not all(tensor.dtype.is_floating_point for tensor in given) or not all(map(is_static, (*operands, *given))):
        return 0
    if len(given) == 1 and len(operands) == len(node.all_input_nodes):
        with contextlib.suppress(MugraphError):
            return flops_of(program_of(isolated([node], [node])[0])[0])
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return sum(tensor.numel() for tensor in given[:1])
    arguments, options = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    return int(formula(*arguments, **options, out_val=node.meta["val"]))


_ROWS = {**ROWS, **WATCHED_ROWS, **KNOWN_MASKS, **ARRANGED_ROWS}
_MOVING = frozenset({Structure.VIEW, Structure.LEAF, Structure.BOUNDARY})
"""Structures of operators that compute nothing."""
_BOTTLENECK = 4
"""Two contractions in a row stay together where the second's inner dimension is at most the first's over this."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """A matrix product: its inner dimension, how many products run side by side, and the rows and columns of each."""

    inner: int
    batch: int
    rows: int
    columns: int

    @property
    def flops(self) -> int:
        """Operations of all products that run side by side."""
        return 2 * self.batch * self.rows * self.columns * self.inner

    def feeds(self, later: Contraction) -> bool:
        """Whether one kernel can sensibly compute `later` from this: in a common batch, or through a narrow tensor.

        Otherwise every block of the later product would need the whole of the earlier one.
        """
        side_by_side = max(1, later.batch // self.batch)  # as heads are, of which the tensor between them has all
        return self.batch == later.batch > 1 or _BOTTLENECK * side_by_side * later.inner <= self.inner


@dataclass(frozen=True, slots=True)
class Traits:
    """What a call does: the contractions in it, whether it reduces, its exponentials, whether it computes at all, whether it
    takes tensors apart or puts them together, whether something runs along a dimension in it, whether it looks something up,
    and whether it is linear in each tensor, up to a constant."""

    contractions: tuple[Contraction, ...] = ()
    reduces: bool = False
    exponentials: int = 0
    computes: bool = False
    parts: bool = False
    scans: bool = False
    looks_up: bool = False
    linear: bool = False

    @property
    def moves(self) -> bool:
        """Whether it does nothing but to take tensors apart or to put them together."""
        return self.parts and not self.computes

    @property
    def pinned(self) -> bool:
        """Whether moving the call to another kernel changes more than what is read and written."""
        return bool(self.contractions) or self.exponentials > 0


SPLITS = frozenset(
    {
        torch.ops.aten.split.Tensor,
        torch.ops.aten.split_with_sizes.default,
        torch.ops.aten.chunk.default,
        torch.ops.aten.unbind.int,
        torch.ops.aten.unsafe_split.Tensor,
        torch.ops.aten.unsafe_split_with_sizes.default,
        torch.ops.aten.unsafe_chunk.default,
    }
)
"""Calls that give several views of one tensor."""


class Inspector:
    """The traits of calls on one kind of device (`cpu`, `cuda`), each kind of call converted once; lookups and scans are part of
    programs where kernels have them."""

    def __init__(
        self, device: str, lookups: bool = True, scans: bool = True, known: dict[str, Traits | str] | None = None
    ) -> None:
        """`known` is what an earlier inspector of the same kind found out, by kind of call, and gets what this one does."""
        self.device, self.lookups, self.scans = device, lookups, scans
        self._known: dict[str, Traits | str] = {} if known is None else known

    def inspect(self, node: fx.Node) -> Traits | str:
        """The traits of a call, or why it stays with torch."""
        if node.target is operator.getitem:
            producer = node.args[0]
            taken = isinstance(producer, fx.Node) and isinstance(self.inspect(producer), Traits)
            return Traits() if taken else "part of a result that stays with torch"
        complaint = _complaint(node, self.device)
        if complaint is not None:
            return complaint
        key = _key(node)
        if key not in self._known:
            self._known[key] = self._runnable(_converted(node))
        found = self._known[key]
        return self._looking_up(node, found) if isinstance(found, Traits) else found

    def _looking_up(self, node: fx.Node, traits: Traits) -> Traits | str:
        """The traits of a call, unless it reads integers otherwise than kernels of the device do."""
        tensors = [tensor for tensor in map(tensor_of, node.all_input_nodes) if tensor is not None]
        integers = next((tensor.dtype for tensor in tensors if tensor.dtype in INTEGERS), None)
        if integers is not None and not traits.looks_up:
            return f"a tensor in it is {integers}"
        if not traits.looks_up:
            return traits
        if not self.lookups:
            return "kernels of GPUs read no integers"
        computed = (isinstance(self.inspect(source), Traits) for source in node.all_input_nodes if source.op == "call_function")
        return "it looks up what kernels compute" if any(computed) else traits

    def _runnable(self, found: Traits | str) -> Traits | str:
        """The traits of a call, if kernels of this kind of device can have all that is in it."""
        if isinstance(found, Traits) and found.scans and not self.scans:
            return "running sums and products are kernels of the CPU alone"
        return found


def isolated(nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> tuple[fx.Graph, list[fx.Node]]:
    """The nodes, in topological order, as a graph of their own with placeholders x0, x1, ...; and what they stand for."""
    inputs, graph = inputs_of(nodes), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for number, source in enumerate(inputs):
        copies[source] = graph.placeholder(f"x{number}")
        copies[source].meta["val"] = source.meta["val"]
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return graph, inputs


def inputs_of(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """What calls read of others, in order."""
    inside = set(nodes)
    return list(dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside))


def program_of(graph: fx.Graph) -> tuple[Graph, list[int]]:
    """The kernel graph of an isolated graph, and which of its outputs each output is. Raises UnsupportedOperator.

    After the inputs of the graph come causal masks, if there are any (see `mugraph.frontend.operators.attention`).
    """
    (result,) = (node for node in graph.nodes if node.op == "output")
    names = {node.name: node.name for node in graph.nodes if node.op == "placeholder"}
    return convert(graph, Signature(names, {}), list(result.args[0]), _ROWS)


def computing_operators(program: Graph) -> int:
    """How many operators of a kernel graph compute something."""
    return sum(OPERATORS[node.op].structure not in _MOVING for node in program.kernels())


def described(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> str:
    """Calls as a text that is the same for those that `isolated` makes the same graph of: by number, with the row and rounding
    that are written into them, and tensors by how they lie."""
    names = {node: f"%{number}" for number, node in enumerate((*inputs, *nodes))}
    calls = (
        f"{names[node]} {node.target} {fx.map_arg((node.args, node.kwargs), names.__getitem__)} {_text_of_result(node)} "
        f"{node.meta.get(ROW)} {is_rounding_cast(node)}"
        for node in nodes
    )
    return "\n".join((*map(_text_of_result, inputs), *calls, " ".join(names[node] for node in outputs)))


def _text_of_result(node: fx.Node) -> str:
    """What a node gives, as far as it is known without data."""
    value = node.meta.get("val")
    return str(map_aggregate(value, lambda part: text_of_tensor(part) if isinstance(part, torch.Tensor) else part))


def alone(node: fx.Node) -> bool:
    """Whether a call gives one tensor, as opposed to several or a part of several, which stay together."""
    return tensor_of(node) is not None and node.target is not operator.getitem


def bytes_of(node: fx.Node) -> int:
    """Bytes of the tensor that a node gives, sizes that vary as they were when recorded; 0 where it is none."""
    tensor = tensor_of(node)
    return 0 if tensor is None else math.prod(map(_recorded, tensor.shape)) * tensor.element_size()


def mutates(node: fx.Node) -> bool:
    """Whether a call writes to one of its operands, or may: nothing is known of operators that run other graphs."""
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _complaint(node: fx.Node, device: str) -> str | None:
    """What keeps a call out of programs whatever its operator is."""
    if not (isinstance(node.target, torch._ops.OpOverload) or node.target is arranged) or mutates(node):
        return "it is no function of tensors alone"
    if node.target in SPLITS:
        return "it gives several views of one tensor at once"
    for source in [*node.all_input_nodes, node]:
        for tensor in _read_parts(source):
            if not isinstance(tensor, torch.Tensor):
                return "it depends on a number that is computed or varies"
            if tensor.dtype not in DTYPES and (source is node or tensor.dtype not in INTEGERS):
                return f"a tensor in it is {tensor.dtype}"
            if free_unbacked_symbols(tensor):
                return "its shape depends on the values of a tensor"
            if not is_static(tensor):
                return "its shape varies; torch.compile(dynamic=False) optimizes every size on its own"
            if source is node and not all(isinstance(stride, int) for stride in tensor.stride()):
                return "how its result lies varies"  # kernels would have to lay it out by numbers that no piece is given
            if tensor.device.type != device or tensor.layout is not torch.strided:
                return f"its tensors are {tensor.layout} on {tensor.device}"
    return None


def _read_parts(node: fx.Node) -> list[Any]:
    """What a node gives: a value or, of several, those that somebody reads."""
    value = node.meta.get("val")
    if not isinstance(value, (tuple, list)):
        return [value]
    if any(use.target is not operator.getitem for use in node.users):
        return list(value)
    return [value[use.args[1]] for use in node.users if use.users]  # type: ignore[index]


def _recorded(size: int | torch.SymInt) -> int:
    """A size as it was when recorded, without promising anything of it; 0 where nobody knew."""
    return size if isinstance(size, int) else size.node.hint or 0


def is_static(tensor: torch.Tensor) -> bool:
    """Whether the tensor's shape is known."""
    return all(isinstance(size, int) for size in tensor.shape)


def _key(node: fx.Node) -> str:
    """What the conversion of a call depends on."""

    def described(source: fx.Node) -> str:
        tensor = source.meta["val"]
        return f"{tensor.dtype}{list(tensor.shape)}"

    arguments = fx.map_arg((node.args, node.kwargs), described)
    numbers = [use.args[1] for use in node.users if use.target is operator.getitem]
    return f"{node.target} {arguments} {_text_of_result(node)} {numbers}"


def _converted(node: fx.Node) -> Traits | str:
    parts = [use for use in node.users if use.users] if tensor_of(node) is None else []
    if tensor_of(node) is None and not (parts and all(use.target is operator.getitem for use in node.users)):
        return "it gives several tensors at once"
    try:
        program, _ = program_of(isolated([node, *parts], parts or [node])[0])
    except MugraphError as error:
        return str(error)
    return _traits(program)


def _traits(program: Graph) -> Traits:
    contractions: list[Contraction] = []
    rows = [(node, OPERATORS[node.op]) for node in program.kernels()]
    scans = any(is_scan(node.op) for node in program.nodes)
    reduces = scans or any(is_reduction(node.op) for node in program.nodes)
    for node, row in rows:
        for left, _ in row.products:
            shape = program.tensor(node.inputs[left]).shape
            if math.prod(shape) <= TINY_MATRIX:
                reduces = True
            else:
                *batch, height, width = node.output.shape
                contractions.append(Contraction(shape[-1], math.prod(batch), height, width))
    exponentials = sum(row.kind is Kind.EXPONENTIATION for _, row in rows)
    computes, parts = any(row.structure not in _MOVING for _, row in rows), has_parts(program)
    looks_up = has_lookups(program)
    linear = all(_is_linear(node, row) for node, row in rows)
    return Traits(tuple(contractions), reduces or (computes and parts), exponentials, computes, parts, scans, looks_up, linear)


def _is_linear(node: Node, row: Operator) -> bool:
    """Whether an operator is linear in each of its operands, and none is there twice, as in a square."""
    squares = row.elementwise and len(set(node.inputs)) < max(len(node.inputs), 2)
    return row.kind is Kind.DATA or (row.kind is Kind.MULTILINEAR and not squares)
