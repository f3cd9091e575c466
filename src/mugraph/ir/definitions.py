"""Operators that others define: a norm of rows, a product with a transposed factor, whatever programs can spell out.

Such a row is a function on tensors of programs, as one would write it by hand. Its shapes, its meaning under every arithmetic,
its abstract expression and its cost are those of the operators that it is made of. Programs keep the operator as one node: so it
is printed, saved and checked, and library kernels compute it so. Whatever looks for muGraphs or proves them reads the program
spelled out, and may take it apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from mugraph.errors import InvalidInput
from mugraph.ir.arithmetic import Abstraction, Arithmetic
from mugraph.ir.editing import Edit, Site, edited
from mugraph.ir.evaluate import evaluate
from mugraph.ir.graph import AttributeValue, Graph, Level, Shape, Value, attributes_of
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import OPERATORS, Call, Kind, Operator, operator
from mugraph.ir.program import Program, ProgramTensor

Definition = Callable[..., ProgramTensor]
"""What an operator computes of its operands, in that order, and of its attributes, by name."""


def defined(
    name: str, arity: int, definition: Definition, attributes: tuple[str, ...] = (), paper: str | None = None
) -> Operator:
    """The row of an operator that `definition` spells out; it has all of `attributes`, and stands in kernel graphs."""

    def spelled(call: Call) -> Graph:
        return _spelled(definition, call.shapes, attributes_of({name: call.attributes[name] for name in attributes}))

    def compute(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
        return evaluate(spelled(call), xs, arith)[0]

    def express(algebra: Abstraction[Any], call: Call, xs: Sequence[Any]) -> Any:
        return _expression(algebra, spelled(call), xs)

    def shape(call: Call) -> Shape:
        return spelled(call).output_tensors[0].shape

    return Operator(
        name,
        None,
        arity,
        Kind.DEFINED,
        Structure.DEFINED,
        frozenset({Level.KERNEL}),
        shape,
        compute,
        express,
        attributes=attributes,
        definition=spelled,
    )


def spelled_out(graph: Graph) -> Graph:
    """A kernel graph with every operator that others define replaced by these; the same graph where there is none."""
    edits: dict[int, Edit] = {}
    for index, node in enumerate(graph.nodes):
        row = OPERATORS.get(node.op)
        if row is not None and row.definition is not None:
            shapes = tuple(graph.tensor(value).shape for value in node.inputs)
            edits[index] = functools.partial(_placed, row.definition(Call(node.op, shapes, dict(node.attributes))))
    return spelled_out(edited(graph, edits)) if edits else graph  # definitions may use other such operators


@functools.lru_cache(maxsize=1024)
def _spelled(definition: Definition, shapes: tuple[Shape, ...], attributes: tuple[tuple[str, AttributeValue], ...]) -> Graph:
    program = Program()
    operands = [program.input(f"x{number}", shape) for number, shape in enumerate(shapes)]
    result = definition(*operands, **dict(attributes))
    if not isinstance(result, ProgramTensor):
        raise InvalidInput(f"the definition of an operator gives a {type(result).__name__}; it gives one tensor of its program")
    program.output(result)
    return program.graph


def _placed(definition: Graph, site: Site) -> Value:
    """The nodes of a definition in the place of an operator, on its operands and in the type of its result."""
    builder, operands = site.builder, iter(site.operands)
    values: dict[Value, Value] = {}
    for index, node in enumerate(definition.nodes):
        inputs = [values[value] for value in node.inputs]
        values[Value(index)] = next(operands) if node.is_input else builder.add(node.op, *inputs, **dict(node.attributes))
    result, dtype = values[definition.outputs[0]], site.node.output.dtype
    return result if builder.tensor(result).dtype is dtype else builder.add("cast", result, dtype=dtype)


def _expression(algebra: Abstraction[Any], graph: Graph, xs: Sequence[Any]) -> Any:
    expressions: dict[Value, Any] = {}
    operands = iter(xs)
    for index, node in enumerate(graph.nodes):
        if node.is_input:
            expressions[Value(index)] = next(operands)
            continue
        call = Call(node.op, tuple(graph.tensor(value).shape for value in node.inputs), dict(node.attributes))
        expressions[Value(index)] = operator(node.op).express(algebra, call, [expressions[value] for value in node.inputs])
    return expressions[graph.outputs[0]]
