"""What Algorithm 1 and the closure engine find for one kernel under one schedule, in a form that can be compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.devices import device_for
from mugraph.ir import Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import ACCUMULATORS, VIEWS, Node, Value
from mugraph.ir.ops import Scope, apply_call, operator
from mugraph.search.algorithm1.engine import Enumerator
from mugraph.search.algorithm1.kernel import ScheduledKernel
from mugraph.search.algorithm1.options import BlockSchedule, EnumerationOptions
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.loop_insertion import Fmaps, loops_to_some_end, with_loop, worthwhile
from mugraph.search.closure.saturation import Closure, Limits, Saturation
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier
from mugraph.search.scheduling.emission import KernelOutput, Schedule, emit_block

PARTS = 2
"""Blocks of the one grid dimension, and iterations of the for-loop."""

Digest = bytes
Edge = tuple[str, bool, tuple[Digest, ...], Digest]
"""An operator by the values it reads and makes: name, whether inside the loop, operands, result."""

Signature = frozenset[Edge]


@dataclass(frozen=True)
class Family:
    """Schedules of one kernel in which the grid cuts one axis, and the for-loop one (None: no loop), of some operands or all."""

    grid_axis: int
    loop_axis: int | None

    def schedules(self, axes: AxisProgram) -> list[BlockSchedule]:
        """The family's schedules: operands that have the loop axis are cut along it or read whole, and one at least is cut."""
        slots = [term.slots for _, term in sorted(axes.loads(), key=lambda load: load[1].source)]
        dims = [{slot[0]: dim for dim, slot in enumerate(of_input) if slot} for of_input in slots]
        imaps = tuple((dim.get(self.grid_axis),) for dim in dims)
        if self.loop_axis is None:
            return [BlockSchedule((PARTS,), 1, imaps, (None,) * len(dims))]
        choices = ({dim[self.loop_axis], None} if self.loop_axis in dim else {None} for dim in dims)
        return [BlockSchedule((PARTS,), PARTS, imaps, fmaps) for fmaps in itertools.product(*choices) if any_cut(fmaps)]

    def loop_extents(self, axes: AxisProgram) -> frozenset[int]:
        """A block's size of the axis that the for-loop cuts."""
        if self.loop_axis is None:
            return frozenset()
        return frozenset({axes.sizes[self.loop_axis] // (PARTS if self.loop_axis == self.grid_axis else 1)})


def any_cut(fmaps: tuple[int | None, ...]) -> bool:
    """Whether the for-loop cuts some operand."""
    return any(fmap is not None for fmap in fmaps)


def families(program: Graph) -> list[Family]:
    """The grid on each axis of the output, the for-loop on each axis or absent, where parts are equal."""
    axes = axis_program(program)
    ((term, _),) = axes.outputs
    loops = [None, *range(len(axes.sizes))]
    pairs = itertools.product(sorted(axes.terms[term].axes), loops)
    return [Family(grid, loop) for grid, loop in pairs if grid != loop or axes.sizes[grid] % PARTS**2 == 0]


@dataclass(frozen=True)
class BlockKernel:
    """A block graph, and which program input each of its operands is."""

    body: Graph
    sources: tuple[int, ...]


class Exclusion(StrEnum):
    """What Algorithm 1 generates and the closure engine leaves out on purpose."""

    PARTIAL_CONCATENATION = "partial results of iterations are put side by side, to be reduced after the loop"
    OUTER_PRODUCT = "an elementwise operator joins operands each of which varies where the other does not"
    INVARIANT_SUM = "what is the same in every iteration is summed over them"
    RECOMPUTATION = "one tensor is computed twice, in different ways"
    PRODUCT_OF_PARTIAL_SUM = "iterations multiply their partial sums, beside a product of slices"


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


def by_closure(program: Graph, family: Family, operators: int, listed: bool = False) -> list[BlockKernel]:
    """The block graphs of all sketches of the closure with that loop axis, under the family's schedules.

    As in Algorithm 1, each operand is read in one way, and at least one is cut. `listed` are those that the search lists.
    """
    arith, inputs = FieldArithmetic(seed=3), TinyInputs(3)
    axes = axis_program(program)
    closure = Closure(axes, Context.of(axes, None), Tier.FULL)
    Saturation(closure, arith, inputs, Limits()).run()
    assert closure.saturated
    if family.loop_axis is not None:
        closure = with_loop(closure, family.loop_axis, worthwhile(axes, family.loop_axis) if listed else Fmaps.ALL)
    extractor = Extractor(closure, lambda edge: 1.0)
    limits = ExtractionLimits(operators, derivations=10**6, expansions=10**6)
    sketches = [sketch for goal in closure.goals[0] for _, sketch in extractor.derivations((goal,), limits)]
    assert limits.complete
    schedule = Schedule((((family.grid_axis,), PARTS),), 1 if family.loop_axis is None else PARTS)
    tensors = [node.output for node in program.inputs()]
    output = KernelOutput(axes.outputs[0][1], program.output_tensors[0].dtype)
    found = []
    for sketch in sketches:
        wanted = reads_once(sketch) and (loops_to_some_end(sketch) or not listed)
        if wanted and family.grid_axis in sketch.parallel_axes:
            sources = tuple(leaf.source for leaf in sketch.leaves)
            body = emit_block(sketch, schedule, axes.sizes, [tensors[source] for source in sources], [output])
            found.append(BlockKernel(body, sources))
    return [kernel for kernel in found if _size(kernel.body) <= operators]


def reads_once(sketch: Sketch) -> bool:
    """Whether each operand is read in one way, and some are cut by the for-loop, if there is one."""
    axis, loads = sketch.loop_axis, [step for step in sketch.steps if step.leaf is not None]
    cut = axis is None or any(axis in step.axes and not step.whole for step in loads)
    return cut and len({step.leaf for step in loads}) == len(loads)


# --- graphs by their values ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """A kernel up to the order of nodes, commutativity and views, and the excluded constructs in it."""

    signature: Signature
    exclusions: frozenset[Exclusion]


def descriptions(
    program: Graph, kernels: Sequence[BlockKernel], loop_extents: frozenset[int]
) -> dict[Signature, tuple[Description, Graph]]:
    """The kernels by their signature, of each the one with fewest exclusions: a product over an axis of one element, say, is the
    elementwise product that it equals. `loop_extents` are a block's sizes of the axes the for-loop cuts."""
    arith = FieldArithmetic(seed=11)
    rng = np.random.default_rng(11)
    inputs = [arith.random(node.output.shape, rng) for node in program.inputs()]
    found: dict[Signature, tuple[Description, Graph]] = {}
    for kernel in kernels:
        description = Reader(kernel, inputs, arith, loop_extents).read()
        known = found.get(description.signature)
        if known is None or len(description.exclusions) < len(known[0].exclusions):
            found[description.signature] = (description, kernel.body)
    return found


class Reader:
    """Runs all blocks and iterations of a kernel and describes its edges by the values on them."""

    def __init__(
        self, kernel: BlockKernel, inputs: Sequence[FieldValue], arith: FieldArithmetic, loop_extents: frozenset[int]
    ) -> None:
        self.body, self.sources, self.inputs, self.arith = kernel.body, kernel.sources, inputs, arith
        self.loop_extents = loop_extents
        self.inside = loop_nodes(self.body)
        self.blocks = int(np.prod(self.body.grid))
        self.values: list[list[FieldValue]] = []
        self.digests: list[Digest] = []
        self.looped: list[bool] = []
        """Whether each node's value changes from iteration to iteration."""

    def read(self) -> Description:
        """The description of the kernel."""
        edges: set[Edge] = set()
        excluded: set[Exclusion] = set()
        for index, node in enumerate(self.body.nodes):
            self.values.append(self.tiles(index, node) if node.op == "input_iterator" else self.results(index, node))
            operand_looped = any(self.looped[value.node] for value in node.inputs)
            self.looped.append(index in self.inside and (operand_looped or node.get("fmap") is not None))
            self.digests.append(self.digests[node.inputs[0].node] if node.op in VIEWS else _digest(self.values[-1]))
            if node.op not in VIEWS | {"constant", "output_saver"}:
                edges.add(self.edge(index, node))
                excluded.update(self.exclusions(node))
        if len({(inside, result) for _, inside, _, result in edges}) < len(edges):
            excluded.add(Exclusion.RECOMPUTATION)
        return Description(frozenset(edges), frozenset(excluded))

    def edge(self, index: int, node: Node) -> Edge:
        """A product of a tensor with itself is its square; operands are sorted where their order means nothing."""
        operands = [self.digests[value.node] for value in node.inputs]
        name = f"accumulate {node['combine']}" if node.op == "accumulate" else node.op
        if node.op == "matmul" and self.body.tensor(node.inputs[0]).shape[-1] == 1:
            name = "mul"
        if name == "mul" and operands[0] == operands[1]:
            name, operands = "square", operands[:1]
        if name == "concat_matmul":
            operands = [operand for pair in sorted(zip(operands[:2], operands[2:], strict=True)) for operand in pair]
        elif name in ("add", "mul"):
            operands = sorted(operands)
        return name, index in self.inside, tuple(operands), self.digests[-1]

    def exclusions(self, node: Node) -> Iterator[Exclusion]:
        """The exclusions that a node falls under by itself."""
        combine = node.get("combine")
        if combine == "concat":
            dim = node["dim"]
            assert isinstance(dim, int)
            if node.output.shape[dim] not in self.loop_extents:
                yield Exclusion.PARTIAL_CONCATENATION
        elif combine == "sum" and not self.looped[node.inputs[0].node]:
            yield Exclusion.INVARIANT_SUM
        elif node.op == "concat_matmul":
            pairs = zip(node.inputs[:2], node.inputs[2:], strict=True)
            if len({sum(self.looped[value.node] for value in pair) for pair in pairs}) == 2:
                yield Exclusion.PRODUCT_OF_PARTIAL_SUM
        elif len(node.inputs) == 2 and operator(node.op).elementwise:
            left, right = (self.extent(value) for value in node.inputs)
            if not (left <= right or right <= left):
                yield Exclusion.OUTER_PRODUCT

    def extent(self, value: Value) -> frozenset[int]:
        """Where a tensor varies: its dimensions, counted from the last as -1, and 0 for the for-loop."""
        shape = self.body.tensor(value).shape
        dims = {dim - len(shape) for dim, size in enumerate(shape) if size > 1}
        return frozenset(dims | {0}) if self.looped[value.node] else frozenset(dims)

    def results(self, index: int, node: Node) -> list[FieldValue]:
        """One value per block and, inside the loop, per iteration (blocks outermost)."""
        body, loop = self.body, self.body.loop
        operands = [self.values[value.node] for value in node.inputs]
        if node.op == "output_saver":
            return operands[0]
        scope = Scope(body.grid, loop)
        call = apply_call(node.op, [body.tensor(value) for value in node.inputs], dict(node.attributes), scope)
        compute = operator(node.op).compute
        if node.op in ACCUMULATORS:
            return [compute(self.arith, call, operands[0][b * loop : (b + 1) * loop]) for b in range(self.blocks)]
        count = self.blocks * (loop if index in self.inside else 1)
        # a constant feeds both phases and has the same value everywhere, however often it was computed
        return [compute(self.arith, call, [values[i % len(values)] for values in operands]) for i in range(count)]

    def tiles(self, index: int, node: Node) -> list[FieldValue]:
        """What an iterator reads in every block and, inside the loop, in every iteration."""
        operand, imap, fmap = node["operand"], node["imap"], node["fmap"]
        assert isinstance(operand, int)
        assert isinstance(imap, tuple)
        cuts = [*zip(self.body.grid, imap, strict=True)]
        if index in self.inside:
            cuts.append((self.body.loop, fmap if isinstance(fmap, int) else None))
        parts = itertools.product(*(range(count) for count, _ in cuts))
        value = self.inputs[self.sources[operand]]
        return [self.arith.view(value, partial(_cut, cuts=cuts, part=part)) for part in parts]


def _cut(array: Array, cuts: Sequence[tuple[int, int | None]], part: tuple[int, ...]) -> Array:
    for (count, dim), position in zip(cuts, part, strict=True):
        if dim is not None:
            array = np.split(array, count, axis=dim)[position]
    return array


def _digest(values: Sequence[FieldValue]) -> Digest:
    """The elements of every block and iteration in ascending order: the same for every view of a tensor."""
    return b"|".join(np.sort(value.p, axis=None).tobytes() for value in values)
