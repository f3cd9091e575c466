"""From a torch graph of ATen operators to a kernel graph of pre-defined operators.

Precision (docs/verification.md): muGraphs compute in fp32 at least, whatever the program's casts in between say. So casts are
dropped, but for those that round (`mugraph.frontend.operators.roundings`), and an output is stored as the dtype PyTorch gives it.
Sometimes that is not enough, and then every cast to a wider type stays: where an output has a width that a tensor of the program
without casts lost (fp32 from bf16 inputs), where something is rounded, of which the rest may be what counts, and where fp64 is
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from mugraph.errors import MugraphError, UnsupportedOperator
from mugraph.frontend.operators.aten import ROWS, Rule
from mugraph.frontend.operators.choices import truth
from mugraph.frontend.operators.operand_types import as_converted, misread
from mugraph.frontend.operators.torch_casts import (
    DTYPES,
    INTEGERS,
    computes_stored,
    draws_random_numbers,
    name_of,
    note_roundings,
    noted,
    rounded_operands,
    rounds,
)
from mugraph.frontend.source_lines import line_of_node
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.scalar import Scalar

ROW = "mugraph row"
"""Where a node says which row it is, if that is not its operator's."""
CHECKS = frozenset({"_assert_tensor_metadata"})
"""Operators that only check what the trace knows."""
_CHOOSING = frozenset({"where", "masked_fill", "lt", "le", "gt", "ge", "eq", "ne"})
"""Operators that take numbers that are not finite."""
_NOT_COMPUTED = "this part of the operator's result is not computed; use the others"
_VALUES_OUT_OF_TENSORS = frozenset({"item", "_local_scalar_dense", "nonzero"})


@dataclass(frozen=True, slots=True)
class Signature:
    """What the placeholders of a torch graph are: program inputs (name by placeholder, in order) or known numbers.

    A number that is not finite is a float, which rows for comparisons and choices take as it is.
    """

    inputs: Mapping[str, str]
    numbers: Mapping[str, Scalar | float]


def convert(
    graph: torch.fx.Graph, signature: Signature, outputs: Sequence[torch.fx.Node], rows: Mapping[str, Rule] = ROWS
) -> tuple[Graph, list[int]]:
    """The kernel graph that computes `outputs`, and the number of its output that each of them is; `rows` are the table.

    Raises UnsupportedOperator, naming the operator and the line of Python that called it.
    """
    if not noted(graph):
        note_roundings(graph, signature.numbers)
    dtypes = [_dtype(node) for node in outputs]
    program, values = _program(graph, signature, rows, widening=False)
    if _needs_widths(graph, _lost_widths(values), dtypes):
        program, values = _program(graph, signature, rows, widening=True)
    tensors = [_computed(node, values[node]) for node in outputs]
    stored = [tensor.cast(dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    distinct = {tensor.value: tensor for tensor in stored}
    program.output(*distinct.values())
    return program.graph, [list(distinct).index(tensor.value) for tensor in stored]


def _needs_widths(graph: torch.fx.Graph, lost: Set[int], outputs: Sequence[DType]) -> bool:
    """Whether tensors must be as wide as PyTorch has them, given the widths that the program without casts lost."""
    if DType.FP64.bytes in lost or any(dtype.bytes >= width for width in lost for dtype in outputs):
        return True
    return any(rounds(node) or rounded_operands(node) is not None for node in graph.nodes)


def _dtype(node: torch.fx.Node) -> DType:
    """The element type PyTorch gives a tensor."""
    if not isinstance(node.meta["val"], torch.Tensor):
        raise UnsupportedOperator(_at(node, "it gives a number that is read from a tensor; keep it in the tensor"))
    dtype = node.meta["val"].dtype
    if dtype not in DTYPES:
        known = "floating-point (of fp8: e4m3fn, e5m2), boolean, int8 and uint8 tensors"
        raise UnsupportedOperator(_at(node, f"it gives a tensor of {dtype}; only {known} are supported"))
    return DTYPES[dtype]


def _program(
    graph: torch.fx.Graph, signature: Signature, rows: Mapping[str, Rule], widening: bool
) -> tuple[Program, Mapping[torch.fx.Node, Any]]:
    """The program of a graph, without outputs yet, and the value of each node in it."""
    program = Program()
    values: dict[torch.fx.Node, Any] = {}
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for placeholder, name in signature.inputs.items():
        node = placeholders[placeholder]
        shape, dtype = tuple(node.meta["val"].shape), INTEGERS.get(node.meta["val"].dtype)
        values[node] = program.input(name, shape, _dtype(node) if dtype is None else dtype)
    for placeholder, number in signature.numbers.items():
        values[placeholders[placeholder]] = program.constant(number) if isinstance(number, Scalar) else number
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node) not in CHECKS:
            operands = _rounded_operands(node, _wide_operands(node, values) if widening else values)
            value = _apply(node, operands, rows)
            value = _widened(node, value) if widening else value
            values[node] = value.rounded(_dtype(node)) if rounds(node) and isinstance(value, ProgramTensor) else value
    return program, values


def _computed(node: torch.fx.Node, value: Any) -> ProgramTensor:
    if not isinstance(value, ProgramTensor):
        raise UnsupportedOperator(_at(node, _NOT_COMPUTED))
    return value


def _lost_widths(values: Mapping[torch.fx.Node, Any]) -> set[int]:
    """Bytes of the elements of those tensors that PyTorch has in a wider type than the program."""
    tensors = [
        (node, value)
        for node, value in values.items()
        if isinstance(value, ProgramTensor) and value.number is None and value.dtype.is_floating
    ]
    return {_dtype(node).bytes for node, value in tensors if _dtype(node).bytes > value.dtype.bytes}


def _apply(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any], rows: Mapping[str, Rule]) -> Any:
    _check(node, rows)
    if any(values[source] is None for source in node.all_input_nodes):
        raise UnsupportedOperator(_at(node, _NOT_COMPUTED))
    arguments: Any = torch.fx.map_arg(as_converted(node, node.args), values.__getitem__)
    options: Any = torch.fx.map_arg(as_converted(node, node.kwargs), values.__getitem__)
    try:
        value = rows[_row_of(node)](*arguments, **options)
    except MugraphError as error:
        raise type(error)(_at(node, str(error))) from None
    if isinstance(value, ProgramTensor) and value.number is None:  # of numbers the type does not count, but where it is boolean
        return truth(value) if _dtype(node) is DType.BOOL else value
    return truth(value) if isinstance(value, ProgramTensor) and node.meta["val"].dtype is torch.bool else value


def only_chosen_or_compared(node: torch.fx.Node) -> bool:
    """Whether a value is read by comparisons and choices alone."""
    return all(user.op == "call_function" and name_of(user) in _CHOOSING for user in node.users)


def _row_of(node: torch.fx.Node) -> str:
    return str(node.meta.get(ROW, name_of(node)))


def _check(node: torch.fx.Node, rows: Mapping[str, Rule]) -> None:
    """Refuse operators without a row, in words that fit the reason it has none, and numbers that wrap around."""
    if (stored := computes_stored(node)) is not None:
        how = f"{stored} and rounds to it" if stored.is_fp8 else "whole numbers of 8 bits, modulo 256"
        why = f"it computes {how}; convert to a floating-point type before, as x.to(torch.float32)"
        raise UnsupportedOperator(_at(node, why))
    if why := misread(node):
        raise UnsupportedOperator(_at(node, why))
    if _row_of(node) in rows:
        return
    if draws_random_numbers(node):
        raise UnsupportedOperator(_at(node, "it draws random numbers; pass them as an input, or call model.eval() for dropout"))
    if name_of(node) in _VALUES_OUT_OF_TENSORS:
        raise UnsupportedOperator(_at(node, "the program would depend on the values of a tensor; keep them in tensors"))
    raise UnsupportedOperator(_at(node, "no such operator in the table; leave it outside the optimized function"))


def _wide_operands(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> dict[torch.fx.Node, Any]:
    """What a call reads, as wide as what it gives if none of it is: PyTorch casts first, as sum(dtype=...) does."""
    read = {source: values[source] for source in node.all_input_nodes}
    tensors = {source: value for source, value in read.items() if isinstance(value, ProgramTensor)}
    given = node.meta.get("val")
    wanted = DTYPES.get(given.dtype) if isinstance(given, torch.Tensor) else None
    if wanted is None or any(tensor.dtype.bytes >= wanted.bytes for tensor in tensors.values()):
        return read
    return {**read, **{source: tensor.cast(wanted) for source, tensor in tensors.items()}}


def _rounded_operands(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Mapping[torch.fx.Node, Any]:
    """What a call reads, rounded where its argument `dtype` says so."""
    narrow = rounded_operands(node)
    if narrow is None:
        return values
    return {source: values[source].rounded(narrow) for source in node.all_input_nodes}


def _widened(node: torch.fx.Node, value: Any) -> Any:
    """The value as wide as PyTorch has it."""
    if not isinstance(value, ProgramTensor) or value.number is not None:
        return value
    dtype = _dtype(node)
    return value.cast(dtype) if dtype.bytes > value.dtype.bytes else value


def _at(node: torch.fx.Node, why: str) -> str:
    place = line_of_node(node)
    namespace = getattr(node.target, "namespace", "torch")
    return f"operator {namespace}.{name_of(node)}{f' ({place})' if place else ''}: {why}"
