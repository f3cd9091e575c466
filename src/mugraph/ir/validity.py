"""muGraph validity, Definition 2.1 of the paper, as a checker.

`check` takes nothing on trust: it infers every tensor again from the operator table and compares. Passes are tested
by checking what they return, and graphs from files are checked before anything else looks at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mugraph.errors import ExceedsMemory, InvalidGraph, ShapeMismatch, UnsupportedOperator
from mugraph.ir.graph import ACCUMULATORS, Graph, Level, Tensor, Value, attributes_of
from mugraph.ir.liveness import peak_bytes
from mugraph.ir.ops import GRAPH_DEFINED, Scope, apply_call, operator
from mugraph.ir.text import format_node

_MAX_GRID = 3
_MAX_DIMS = 32
_MAX_ELEMENTS = 2**48
"""Of a tensor: no machine holds more, and machine words count them."""


class MemoryLimits(Protocol):
    """What clause 2 asks of a device; `mugraph.devices.Device` has it."""

    @property
    def name(self) -> str: ...
    @property
    def device_memory_bytes(self) -> int: ...
    @property
    def shared_memory_bytes(self) -> int: ...
    @property
    def operands_in_place(self) -> bool: ...
    @property
    def register_bytes(self) -> int: ...
    @property
    def resident_threads(self) -> int: ...
    @property
    def threads_per_block_max(self) -> int: ...


def check(graph: Graph, device: MemoryLimits | None = None) -> None:
    """Raise InvalidGraph, naming clause, level and node, unless the muGraph and all bodies in it are valid.

    Clause 2 is checked where a device is given. Of a block or thread graph on its own, what its iterators read is
    not known and so not compared.
    """
    _check_graph(graph, None, device)


def _check_graph(graph: Graph, operands: Sequence[Tensor] | None, device: MemoryLimits | None) -> None:
    _check_extent(graph)
    for index in range(len(graph.nodes)):
        _check_references(graph, index)
        _check_operator(graph, index, operands)
    _check_outputs(graph)
    if device is not None:
        _check_memory(graph, device)
    if graph.level is not Level.KERNEL:
        _check_paths(graph)
    for index, node in enumerate(graph.nodes):
        if node.body is not None:
            _check_graph(node.body, [graph.tensor(value) for value in node.inputs], device)
            _check_results(graph, index, node.body)


def _specification(graph: Graph, why: str, index: int | None = None) -> InvalidGraph:
    return InvalidGraph(_violation("clause 1 (operator specification)", graph, why, index))


def _violation(clause: str, graph: Graph, why: str, index: int | None = None) -> str:
    node = "" if index is None else f", node `{format_node(graph, index)}`"
    return f"{clause}, {graph.level} level{node}: {why}"


# --- clause 1: every operator matches its specification ----------------------------------------------------------------


def _check_extent(graph: Graph) -> None:
    """Grid, block and loop are there at the levels that have them, and at least 1."""
    for name, sizes, level in (("grid", graph.grid, Level.BLOCK), ("block", graph.block, Level.THREAD)):
        if sizes and graph.level is not level:
            raise _specification(graph, f"only a {level} graph has {name} dimensions")
        if len(sizes) > _MAX_GRID or any(size < 1 for size in sizes):
            raise _specification(graph, f"{name} dimensions {list(sizes)}: at most {_MAX_GRID}, each at least 1")
    if graph.loop < 1 or (graph.level is Level.KERNEL and graph.loop != 1):
        raise _specification(graph, f"a for-loop of {graph.loop} iterations")


def _check_references(graph: Graph, index: int) -> None:
    for value in graph.nodes[index].inputs:
        if not 0 <= value.node < index or not 0 <= value.output < len(graph.nodes[value.node].outputs):
            raise _specification(
                graph, f"node {index} ({graph.nodes[index].op}) reads {tuple(value)}, which no earlier node makes"
            )


def _check_operator(graph: Graph, index: int, operands: Sequence[Tensor] | None) -> None:
    node = graph.nodes[index]
    if node.attributes != attributes_of(dict(node.attributes)):
        raise _specification(graph, "attributes are not sorted by name, or one is there twice", index)
    for tensor in node.outputs:
        _check_tensor(graph, index, tensor)
    if node.op == GRAPH_DEFINED:
        _check_body(graph, index)
        return
    if node.body is not None:
        raise _specification(graph, f"{node.op} has a body; only {GRAPH_DEFINED} may", index)
    inputs = [graph.tensor(value) for value in node.inputs]
    if node.is_iterator:
        if inputs:
            raise _specification(graph, "an input iterator reads an operand of the level above, not a value", index)
        if operands is None:
            return
        inputs = [_operand(graph, index, operands)]
    _compare(graph, index, _inferred(graph, index, inputs))


def _check_tensor(graph: Graph, index: int, tensor: Tensor) -> None:
    if any(size < 1 for size in tensor.shape):
        raise _specification(graph, f"shape {list(tensor.shape)} has an empty dimension", index)
    if len(tensor.shape) > _MAX_DIMS or tensor.elements > _MAX_ELEMENTS:
        raise _specification(graph, f"no machine holds a tensor of shape {list(tensor.shape)}", index)
    if tensor.level is not graph.level:
        raise _specification(graph, f"its output is a {tensor.level} tensor", index)
    if tensor.layout is not None and sorted(tensor.layout.order) != list(range(len(tensor.shape))):
        raise _specification(graph, f"layout {list(tensor.layout.order)} is not an order of its dimensions", index)


def _operand(graph: Graph, index: int, operands: Sequence[Tensor]) -> Tensor:
    number = graph.nodes[index].get("operand")
    if not isinstance(number, int) or not 0 <= number < len(operands):
        raise _specification(graph, f"reads operand {number} of {len(operands)}", index)
    return operands[number]


def _inferred(graph: Graph, index: int, inputs: Sequence[Tensor]) -> Tensor:
    node = graph.nodes[index]
    attributes = dict(node.attributes)
    call = apply_call(node.op, inputs, attributes, Scope(graph.grid or graph.block, graph.loop))
    try:
        row = operator(node.op)
        if graph.level not in row.levels:
            raise _specification(graph, f"{node.op} cannot stand at {graph.level} level", index)
        return row.infer(call, inputs, graph.level)
    except (ShapeMismatch, UnsupportedOperator) as error:
        raise _specification(graph, str(error), index) from None


def _compare(graph: Graph, index: int, inferred: Tensor) -> None:
    outputs = [(tensor.shape, tensor.dtype) for tensor in graph.nodes[index].outputs]
    if outputs != [(inferred.shape, inferred.dtype)]:
        raise _specification(graph, f"its operands make {inferred}", index)


def _check_body(graph: Graph, index: int) -> None:
    body = graph.nodes[index].body
    if body is None:
        raise _specification(graph, f"{GRAPH_DEFINED} without a body", index)
    if body.level is not graph.level.inner:
        raise _specification(graph, f"a {body.level} graph cannot be the body of a node of a {graph.level} graph", index)


def _check_results(graph: Graph, index: int, body: Graph) -> None:
    """A graph-defined operator returns what its body saves."""
    made = [(tensor.shape, tensor.dtype) for tensor in body.output_tensors]
    if [(tensor.shape, tensor.dtype) for tensor in graph.nodes[index].outputs] != made:
        saved = ", ".join(map(str, body.output_tensors))
        raise _specification(graph, f"its body saves {saved}", index)


def _check_outputs(graph: Graph) -> None:
    if not graph.outputs:
        raise _specification(graph, "the graph has no outputs")
    for value in graph.outputs:
        if not 0 <= value.node < len(graph.nodes) or not 0 <= value.output < len(graph.nodes[value.node].outputs):
            raise _specification(graph, f"output {tuple(value)} is no value of the graph")
    names = graph.input_names
    if len(set(names)) != len(names):
        raise _specification(graph, f"inputs {', '.join(names)} do not have names of their own")


# --- clause 2: tensors fit the memory of their level -------------------------------------------------------------------


def _check_memory(graph: Graph, device: MemoryLimits) -> None:
    needed, where, limit = _memory_demand(graph, device)
    if needed > limit:
        why = f"its tensors need {needed} bytes of {where}, and {device.name} has {limit}"
        raise ExceedsMemory(_violation("clause 2 (memory)", graph, why))
    threads = _threads(graph)
    if graph.level is Level.THREAD and threads > device.threads_per_block_max:
        why = f"{threads} threads in a block, and {device.name} allows {device.threads_per_block_max}"
        raise ExceedsMemory(_violation("clause 2 (memory)", graph, why))


def _memory_demand(graph: Graph, device: MemoryLimits) -> tuple[int, str, int]:
    """(bytes needed, name of the memory, bytes there are) for one graph."""
    match graph.level:
        case Level.KERNEL:
            return peak_bytes(graph), "device memory", device.device_memory_bytes
        case Level.BLOCK:
            return peak_bytes(graph, device.operands_in_place), "shared memory", device.shared_memory_bytes
        case Level.THREAD:
            resident = min(_threads(graph), device.resident_threads)
            return peak_bytes(graph) * resident, "registers", device.register_bytes


def _threads(graph: Graph) -> int:
    threads = 1
    for size in graph.block:
        threads *= size
    return threads


# --- clause 3: one iterator, one accumulator, one saver on every path ----------------------------------------------------


def _check_paths(graph: Graph) -> None:
    """Iterators are the only values without inputs that depend on the operands, so each path has one; the rest is counted."""
    _check_savers(graph)
    if graph.loop == 1 and not any(node.op in ACCUMULATORS for node in graph.nodes):
        return
    counts, most = _accumulators_on_paths(graph), _most_accumulators(graph)
    for index in sorted(graph.needed()):
        node = graph.nodes[index]
        if node.op in ACCUMULATORS and most[index] > 1:
            raise _path_violation(graph, index, "is the second for-loop accumulator on a path")
        if len(counts[index]) > 1:
            raise _path_violation(graph, index, "joins paths that passed a for-loop accumulator with paths that did not")
        if node.is_saver and counts[index] == {0}:
            raise _path_violation(graph, index, "saves a value that passed no for-loop accumulator")


def _check_savers(graph: Graph) -> None:
    for index, node in enumerate(graph.nodes):
        if any(graph.nodes[value.node].is_saver for value in node.inputs):
            raise _path_violation(graph, index, "reads an output saver; a path ends at the saver it passes")
        if node.is_saver and Value(index) not in graph.outputs:
            raise _path_violation(graph, index, "saves a value that is not an output")
    for value in graph.outputs:
        if not graph.nodes[value.node].is_saver:
            raise _path_violation(graph, value.node, "is an output and passed no output saver")


def _accumulators_on_paths(graph: Graph) -> list[set[int]]:
    """For each node, the numbers of accumulators on the paths that lead from iterators through it."""
    counts: list[set[int]] = []
    for node in graph.nodes:
        before: set[int] = {0} if node.is_iterator else set()
        before.update(*(counts[value.node] for value in node.inputs))
        counts.append({count + (node.op in ACCUMULATORS) for count in before})
    return counts


def _most_accumulators(graph: Graph) -> list[int]:
    """For each node, the most accumulators on a path that leads through it, whether from an iterator or from a constant."""
    most: list[int] = []
    for node in graph.nodes:
        most.append(max((most[value.node] for value in node.inputs), default=0) + (node.op in ACCUMULATORS))
    return most


def _path_violation(graph: Graph, index: int, why: str) -> InvalidGraph:
    return InvalidGraph(_violation("clause 3 (one iterator, one accumulator, one saver on every path)", graph, why, index))
