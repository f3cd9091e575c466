"""From a finished prefix of Algorithm 1 to a muGraph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Level, Node, Tensor, Value
from mugraph.search.algorithm1.block import BlockPlan
from mugraph.search.algorithm1.construct import Application


@dataclass(frozen=True, slots=True)
class Launch:
    """A graph-defined kernel operator: the positions of its operands in the kernel prefix, and its block graph."""

    operands: tuple[int, ...]
    plan: BlockPlan


KernelOperator = Application | Launch


def kernel_graph(
    inputs: Sequence[Node], constants: Sequence[Node], operators: Sequence[KernelOperator], outputs: Sequence[tuple[int, DType]]
) -> Graph:
    """The kernel graph of a prefix; positions count inputs, constants, and then what each operator makes."""
    builder = GraphBuilder(Level.KERNEL)
    values = [builder.append(node) for node in (*inputs, *constants)]
    for operator in operators:
        if isinstance(operator, Application):
            operands = [values[position] for position in operator.inputs]
            values.append(builder.add(operator.op, *operands, **dict(operator.attributes)))
        else:
            operands = [values[position] for position in operator.operands]
            body = block_graph(operator.plan, [builder.tensor(value) for value in operands], constants)
            values.extend(builder.graph_defined(body, operands))
    return builder.build([_as_dtype(builder, values[position], dtype) for position, dtype in outputs])


def block_graph(plan: BlockPlan, sources: Sequence[Tensor], constants: Sequence[Node]) -> Graph:
    """The block graph of a plan over device tensors `sources`; constants it does not read are left out."""
    schedule = plan.schedule
    builder = GraphBuilder(Level.BLOCK, grid=schedule.grid, loop=schedule.loop)
    values: dict[int, Value] = {}
    for operand, (source, imap, fmap) in enumerate(zip(sources, schedule.imaps, schedule.fmaps, strict=True)):
        values[operand] = builder.iterator(operand, source, imap, fmap)
    read = {position for application in plan.applications for position in application.inputs}
    for index, constant in enumerate(constants):
        if len(sources) + index in read:
            values[len(sources) + index] = builder.append(constant)
    for position, application in enumerate(plan.applications, len(sources) + len(constants)):
        operands = [values[operand] for operand in application.inputs]
        values[position] = builder.add(application.op, *operands, **dict(application.attributes))
    return builder.build([builder.add("output_saver", values[saved.position], omap=saved.omap) for saved in plan.saved])


def _as_dtype(builder: GraphBuilder, value: Value, dtype: DType) -> Value:
    return value if builder.tensor(value).dtype is dtype else builder.add("cast", value, dtype=dtype)
