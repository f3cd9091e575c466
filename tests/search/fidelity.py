"""What Algorithm 1 and the closure engine find for one kernel under one schedule, in a form that can be compared."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.devices import device_for
from mugraph.ir import Graph
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import ACCUMULATORS, VIEWS, Node
from mugraph.ir.ops import Scope, apply_call, operator
from mugraph.search.axes import AxisProgram, axis_program
from mugraph.search.closure import Closure, Limits, Saturation, TinyInputs
from mugraph.search.context import Context
from mugraph.search.emission import Output, Schedule, emit_block
from mugraph.search.enumeration.engine import Enumerator
from mugraph.search.enumeration.kernel import ScheduledKernel
from mugraph.search.enumeration.options import EnumerationOptions
from mugraph.search.enumeration.schedules import BlockSchedule
from mugraph.search.extraction import ExtractionLimits, Extractor
from mugraph.search.tiers import Tier

PARTS = 2
"""Blocks of the one grid dimension, and iterations of the for-loop."""

Digest = bytes
Edge = tuple[str, bool, tuple[Digest, ...], Digest]
"""An operator by the values it reads and makes: name, whether inside the loop, operands, result."""

Signature = frozenset[Edge]


@dataclass(frozen=True)
class Family:
    """Schedules of one kernel in which the grid cuts one axis and the for-loop another (None: no loop), for all operands."""

    grid_axis: int
    loop_axis: int | None

    def schedule(self, axes: AxisProgram) -> BlockSchedule:
        """The family's schedule for all inputs of a program."""
        slots = [term.slots for _, term in sorted(axes.loads(), key=lambda load: load[1].source)]
        dims = [{slot[0]: dim for dim, slot in enumerate(of_input) if slot} for of_input in slots]
        imaps = tuple((dim.get(self.grid_axis),) for dim in dims)
        fmaps = tuple(None if self.loop_axis is None else dim.get(self.loop_axis) for dim in dims)
        return BlockSchedule((PARTS,), 1 if self.loop_axis is None else PARTS, imaps, fmaps)

    def loop_extents(self, axes: AxisProgram) -> frozenset[int]:
        """A block's size of the axis that the for-loop cuts."""
        if self.loop_axis is None:
            return frozenset()
        return frozenset({axes.sizes[self.loop_axis] // (PARTS if self.loop_axis == self.grid_axis else 1)})


def families(program: Graph) -> list[Family]:
    """The grid on each axis of the output, the for-loop on each axis or absent."""
    axes = axis_program(program)
    ((term, _),) = axes.outputs
    loops = [None, *range(len(axes.sizes))]
    return [Family(grid, loop) for grid, loop in itertools.product(sorted(axes.terms[term].axes), loops)]


@dataclass(frozen=True)
class BlockKernel:
    """A block graph, and which program input each of its operands is."""

    body: Graph
    sources: tuple[int, ...]


class Exclusion(StrEnum):
    """What Algorithm 1 generates and the closure engine leaves out on purpose."""

    RAW_CONCATENATION = "an operand is concatenated as it was read"
    PARTIAL_CONCATENATION = "partial results of iterations are put side by side, to be reduced after the loop"
    OUTER_PRODUCT = "an elementwise operator widens both of its operands"


def exclusions(body: Graph, loop_extents: frozenset[int]) -> frozenset[Exclusion]:
    """The excluded constructs in a block graph; `loop_extents` are a block's sizes of the axes that the for-loop cuts."""
    found = set()
    for node in body.nodes:
        operands = [body.tensor(value) for value in node.inputs]
        if node.op == "accumulate" and node["combine"] == "concat":
            dim = node["dim"]
            assert isinstance(dim, int)
            if body.nodes[node.inputs[0].node].op == "input_iterator":
                found.add(Exclusion.RAW_CONCATENATION)
            elif node.output.shape[dim] not in loop_extents:
                found.add(Exclusion.PARTIAL_CONCATENATION)
        elif operator(node.op).elementwise and all(tensor.elements < node.output.elements for tensor in operands):
            found.add(Exclusion.OUTER_PRODUCT)
    return frozenset(found)


# --- the two engines ---------------------------------------------------------------------------------------------------


def by_algorithm_1(
    program: Graph, schedules: Sequence[BlockSchedule], operators: int, also: tuple[str, ...] = ()
) -> dict[BlockSchedule, list[BlockKernel]]:
    """The verified block graphs over all inputs that Algorithm 1 generates under each schedule.

    `also` are operators to enumerate beside the usual ones; up to one view is free, as views are to the closure.
    """
    limit = operators + any(name in VIEWS for name in also)
    options = EnumerationOptions(max_block_operators=limit, operators=("matmul", "sum", *also))
    enumerator = Enumerator(program, device_for("cpu"), options)
    operands = tuple(range(len(program.inputs())))
    found = {}
    for schedule in schedules:
        graphs = enumerator.run(ScheduledKernel(operands, schedule)).graphs
        bodies = [node.body for graph in graphs for node in graph.kernels()]
        found[schedule] = [BlockKernel(body, operands) for body in bodies if body is not None and _size(body) <= operators]
    return found


def _size(body: Graph) -> int:
    """Iterators and operators; views, constants and savers do not count."""
    return sum(node.op not in VIEWS | {"constant", "output_saver"} for node in body.nodes)


def by_closure(program: Graph, family: Family, operators: int) -> list[BlockKernel]:
    """The block graphs of all recipes of the closure with that loop axis, under the family's schedule."""
    arith, inputs = FieldArithmetic(seed=3), TinyInputs(3)
    axes = axis_program(program)
    closure = Closure(axes, Context.of(axes, family.loop_axis), Tier.FULL)
    Saturation(closure, arith, inputs, Limits()).run()
    assert closure.saturated
    extractor = Extractor(closure, lambda edge: 1.0)
    limits = ExtractionLimits(operators, derivations=10**6, expansions=10**6)
    recipes = [recipe for goal in closure.goals[0] for _, recipe in extractor.derivations((goal,), limits)]
    assert limits.complete
    schedule = Schedule(((family.grid_axis, PARTS),), 1 if family.loop_axis is None else PARTS)
    tensors = [node.output for node in program.inputs()]
    output = Output(axes.outputs[0][1], program.output_tensors[0].dtype)
    found = []
    for recipe in recipes:
        if family.grid_axis in recipe.parallel_axes:
            sources = tuple(leaf.source for leaf in recipe.leaves)
            body = emit_block(recipe, schedule, axes.sizes, [tensors[source] for source in sources], [output])
            found.append(BlockKernel(body, sources))
    return [kernel for kernel in found if _size(kernel.body) <= operators]


# --- graphs by their values ----------------------------------------------------------------------------------------------


def signature(kernel: BlockKernel, inputs: Sequence[FieldValue], arith: FieldArithmetic) -> Signature:
    """A block graph up to the order of nodes, commutativity and views."""
    body = kernel.body
    inside = loop_nodes(body)
    values: list[list[FieldValue]] = []
    digests: list[Digest] = []
    edges: set[Edge] = set()
    for index, node in enumerate(body.nodes):
        operands = [values[value.node] for value in node.inputs]
        if node.op == "input_iterator":
            operand = node["operand"]
            assert isinstance(operand, int)
            values.append(_tiles(body, node, inputs[kernel.sources[operand]], index in inside))
        else:
            values.append(_results(body, node, operands, index in inside, arith))
        if node.op in VIEWS:
            digests.append(digests[node.inputs[0].node])
            continue
        digests.append(_digest(values[-1]))
        if node.op not in ("constant", "output_saver"):
            edges.add(_edge(node, [digests[value.node] for value in node.inputs], digests[-1], index in inside))
    return frozenset(edges)


def _edge(node: Node, operands: list[Digest], result: Digest, inside: bool) -> Edge:
    """A product of a tensor with itself is its square; operands are sorted where their order means nothing."""
    name = f"accumulate {node['combine']}" if node.op == "accumulate" else node.op
    if node.op == "mul" and operands[0] == operands[1]:
        name, operands = "square", operands[:1]
    if operator(node.op).commutative:
        operands = sorted(operands)
    if node.op == "concat_matmul":
        operands = [operand for pair in sorted(zip(operands[:2], operands[2:], strict=True)) for operand in pair]
    return name, inside, tuple(operands), result


def _results(body: Graph, node: Node, operands: list[list[FieldValue]], inside: bool, arith: FieldArithmetic) -> list[FieldValue]:
    """One value per block and, inside the loop, per iteration (blocks outermost)."""
    blocks = int(np.prod(body.grid))
    if node.op == "output_saver":
        return operands[0]
    call = apply_call(node.op, [body.tensor(value) for value in node.inputs], dict(node.attributes), Scope(body.grid, body.loop))
    compute = operator(node.op).compute
    if node.op in ACCUMULATORS:
        return [compute(arith, call, operands[0][b * body.loop : (b + 1) * body.loop]) for b in range(blocks)]
    count = blocks * (body.loop if inside else 1)
    # constants feed both phases, and have the same value everywhere
    return [compute(arith, call, [values[i] if len(values) > i else values[0] for values in operands]) for i in range(count)]


def _tiles(body: Graph, node: Node, value: FieldValue, inside: bool) -> list[FieldValue]:
    imap, fmap = node["imap"], node["fmap"]
    assert isinstance(imap, tuple)
    cuts = [*zip(body.grid, imap, strict=True)]
    if inside:
        cuts.append((body.loop, fmap if isinstance(fmap, int) else None))
    tiles = []
    for part in itertools.product(*(range(count) for count, _ in cuts)):

        def cut(array: np.ndarray, part: tuple[int, ...] = part) -> np.ndarray:
            for (count, dim), position in zip(cuts, part, strict=True):
                if dim is not None:
                    array = np.split(array, count, axis=dim)[position]
            return array

        tiles.append(FieldValue(cut(value.p), None if value.q is None else cut(value.q)))
    return tiles


def _digest(values: Sequence[FieldValue]) -> Digest:
    """The elements of every block and iteration in ascending order: the same for every view of a tensor."""
    return b"|".join(np.sort(value.p, axis=None).tobytes() for value in values)


def signatures(program: Graph, kernels: Sequence[BlockKernel]) -> dict[Signature, BlockKernel]:
    """The kernels by their signature, one for each."""
    arith = FieldArithmetic(seed=11)
    rng = np.random.default_rng(11)
    inputs = [arith.random(node.output.shape, rng) for node in program.inputs()]
    return {signature(kernel, inputs, arith): kernel for kernel in kernels}
