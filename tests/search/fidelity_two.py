"""What Algorithm 1 and cuts of derivations find as two kernels of one block each, in a form that can be compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mugraph.algebra.fields import FieldArithmetic
from mugraph.devices import device_for
from mugraph.ir import Graph
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import evaluate
from mugraph.ir.graph import Level
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.search.algorithm1.engine import Enumerator
from mugraph.search.algorithm1.options import EnumerationOptions
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.saturation import Closure, Limits, Saturation
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier
from mugraph.search.partition.cuts import Cut, stored_slots
from mugraph.search.partition.variants import as_program
from mugraph.search.scheduling.emission import KernelOutput, Schedule, emit_block

from .fidelity import BlockKernel, Exclusion, Reader, Signature

Plan = frozenset[Signature]
"""Two kernels by the values on their edges, the device tensor between them included."""


def plans_of_algorithm_1(program: Graph, operators: int) -> dict[Plan, frozenset[Exclusion]]:
    """The verified graphs of exactly two graph-defined kernels of one block, with the exclusions that occur in them."""
    options = EnumerationOptions(max_block_operators=operators, max_kernel_operators=2, grids=((),), loops=(1,))
    enumerator = Enumerator(program, device_for("cpu"), options)
    found: dict[Plan, frozenset[Exclusion]] = {}
    for graph in itertools.chain.from_iterable(enumerator.run(item).graphs for item in enumerator.items):
        kernels = graph.kernels()
        if [kernel.op for kernel in kernels] == [GRAPH_DEFINED] * 2:
            plan, exclusions = _described(program, graph)
            found[plan] = exclusions
    return found


def plans_of_closures(program: Graph, operators: int) -> set[Plan]:
    """Every derivation of the program cut at every tensor, both parts searched like the whole."""
    axes = axis_program(program)
    found = set()
    for derived in dict.fromkeys([axes, *(as_program(sketch, axes) for sketch in _sketches(axes, 2 * operators))]):
        outputs = {term for term, _ in derived.outputs}
        for term, made in enumerate(derived.terms):
            if made.op not in ("load", "constant") and term not in outputs:
                for graph in _cut(program, derived, term, operators):
                    found.add(_described(program, graph)[0])
    return found


def _sketches(axes: AxisProgram, operators: int) -> list[Sketch]:
    closure = Closure(axes, Context.of(axes, None), Tier.FULL)
    Saturation(closure, FieldArithmetic(seed=3), TinyInputs(3), Limits()).run()
    assert closure.saturated
    limits = ExtractionLimits(operators, derivations=10**6, expansions=10**6)
    extractor = Extractor(closure, lambda edge: 1.0)
    sketches = [sketch for goal in closure.goals[0] for _, sketch in extractor.derivations((goal,), limits)]
    assert limits.complete
    return sketches


def _cut(program: Graph, derived: AxisProgram, term: int, operators: int) -> Iterator[Graph]:
    """The graphs that store `term`; the second kernel reads it."""
    source, slots = len(program.inputs()), stored_slots(derived, term)
    cut = Cut(derived, ((term,), (derived.outputs[0][0],)), 0.0)
    first = cut.part((term,), {})
    second = cut.part((derived.outputs[0][0],), {term: (source, slots)})
    dtype = program.output_tensors[0].dtype
    for makes, reads in itertools.product(_sketches(first, operators), _sketches(second, operators)):
        if source in {leaf.source for leaf in reads.leaves}:
            yield _graph(
                program, derived, (makes, KernelOutput(slots, DType.FP32)), (reads, KernelOutput(derived.outputs[0][1], dtype))
            )


def _graph(program: Graph, derived: AxisProgram, *kernels: tuple[Sketch, KernelOutput]) -> Graph:
    builder = GraphBuilder(Level.KERNEL)
    values = [builder.append(node) for node in program.inputs()]
    for sketch, output in kernels:
        operands = [values[leaf.source] for leaf in sketch.leaves]
        body = emit_block(sketch, Schedule(), derived.sizes, [builder.tensor(value) for value in operands], [output])
        values.extend(builder.graph_defined(body, operands))
    return builder.build(values[-1:])


def _described(program: Graph, graph: Graph) -> tuple[Plan, frozenset[Exclusion]]:
    """The two kernels of a graph, each described over the device tensors it reads."""
    arith = FieldArithmetic(seed=11)
    rng = np.random.default_rng(11)
    inputs = [arith.random(node.output.shape, rng) for node in program.inputs()]
    described = []
    for kernel in graph.kernels():
        assert kernel.body is not None
        operands = evaluate(replace(graph, outputs=kernel.inputs), inputs, arith)
        block = BlockKernel(kernel.body, tuple(range(len(operands))))
        described.append(Reader(block, operands, arith, frozenset()).read())
    plan = frozenset(description.signature for description in described)
    return plan, frozenset[Exclusion]().union(*(description.exclusions for description in described))
