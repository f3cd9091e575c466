"""GenerateNextKernelOperator of Algorithm 1: every kernel graph of pre-defined and graph-defined operators.

The first operators of kernel graphs are the work items: what follows each of them is independent of the others.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mugraph.algebra import Algebra, Expr, Oracle
from mugraph.devices import Device
from mugraph.ir.graph import Graph, Level, Shape, Value
from mugraph.ir.ops import GRAPH_DEFINED, apply_call, operator
from mugraph.search.algorithm1.block import BlockGenerator, BlockLimits, BlockPlan
from mugraph.search.algorithm1.construct import LOWEST, Application, Constructor, Phase, Rank, TensorType, TypeId, Types
from mugraph.search.algorithm1.emission import KernelOperator, Launch, kernel_graph
from mugraph.search.algorithm1.options import EnumerationOptions, grids_for, loops_for, operators_for
from mugraph.search.algorithm1.schedules import BlockSchedule, block_schedules
from mugraph.search.closure.tiers import Tier, TierAlgebra

_ABOVE_ALL_ROWS = 1 << 30
_STATES_PER_LOOK_AT_THE_CLOCK = 256
_ANY = Expr(0)
"""The one expression of all tensors when the expression check is off."""


@dataclass(frozen=True, slots=True)
class ScheduledKernel:
    """A graph-defined operator before its block graph is generated."""

    operands: tuple[int, ...]
    schedule: BlockSchedule

    @property
    def rank(self) -> Rank:
        """Its place in canonical order: above the pre-defined operators on the same operands, schedules telling types apart."""
        return tuple(sorted(self.operands, reverse=True)), (_ABOVE_ALL_ROWS, str(self.schedule)), self.operands


WorkItem = Application | ScheduledKernel


class TimeLimitReached(Exception):
    """The enumeration met its deadline."""


class KernelGenerator:
    """Generates the kernel graphs of one program; `found` takes each one that has the program's outputs.

    `deadline` is a value of `time.perf_counter`. `states` counts the prefixes visited at both levels.
    """

    def __init__(
        self,
        program: Graph,
        device: Device,
        options: EnumerationOptions,
        found: Callable[[Graph], None],
        deadline: float = math.inf,
    ) -> None:
        self.program, self.device, self.options, self.found, self.deadline = program, device, options, found, deadline
        self.states = 0
        self.inputs = program.inputs()
        self.constants = tuple(dict.fromkeys(node for node in program.nodes if node.op == "constant"))
        self.rows = operators_for(program, options)
        self.algebra, leaves, targets = self._abstraction()
        self.goals = [(tensor.shape, expr) for tensor, expr in zip(program.output_tensors, targets, strict=True)]
        self.interned = Types()
        self.constructors: dict[tuple[Level, int], Constructor] = {}
        self.widths = [node.output.dtype.bytes for node in (*self.inputs, *self.constants)]
        self.computed_width = max(tensor.dtype.bytes for tensor in program.output_tensors)
        self.grids, self.loops = grids_for(program, options), loops_for(program, options)
        self.limits = BlockLimits(
            options.max_block_operators, options.max_block_outputs, device.shared_memory_bytes, options.dead_tensor_bound
        )
        self.types = [
            self.interned.intern(TensorType(node.output.shape, expr, Phase.CONSTANT if node.op == "constant" else Phase.AFTER))
            for node, expr in zip((*self.inputs, *self.constants), leaves, strict=True)
        ]
        self.given = len(self.types)
        self.operators: list[KernelOperator] = []

    def items(self) -> list[WorkItem]:
        """Every first operator."""
        return list(self._next(LOWEST))

    def run(self, item: WorkItem) -> None:
        """Generate the kernel graphs that begin with `item`; raises TimeLimitReached at the deadline."""
        self._check_time()
        self._add(item, self.options.max_kernel_operators)

    # expressions -----------------------------------------------------------------------------------------------------

    def _abstraction(self) -> tuple[TierAlgebra, list[Expr], list[Expr]]:
        """Constructors of abstract expressions that give None for what is pruned; those of the leaves and of the outputs."""
        leaves = [*self.inputs, *self.constants]
        if not self.options.expression_check:
            return TierAlgebra(Tier.FULL, frozenset(), _unchecked), [_ANY] * len(leaves), [_ANY] * len(self.program.outputs)
        algebra = Algebra()
        expressions = program_expressions(self.program, algebra)
        oracle = Oracle(algebra, [expressions[value] for value in self.program.outputs])
        of_leaves = [expressions[Value(self.program.nodes.index(node))] for node in leaves]
        return TierAlgebra(Tier.FULL, frozenset(), oracle.compose), of_leaves, [expressions[v] for v in self.program.outputs]

    def _constructor(self, level: Level, loop: int = 1) -> Constructor:
        key = (level, loop)
        if key not in self.constructors:
            self.constructors[key] = Constructor(self.interned, self.algebra, self.rows, level, loop)
        return self.constructors[key]

    # the kernel prefix -----------------------------------------------------------------------------------------------

    def _generate_next(self, last: Rank, remaining: int) -> None:
        self._visit()
        self._complete()
        if remaining:
            for item in self._next(last):
                self._add(item, remaining)

    def _next(self, last: Rank) -> Iterator[WorkItem]:
        """Every operator, pre-defined or graph-defined under a schedule, that ranks above `last`."""
        yield from self._constructor(Level.KERNEL).extensions(self.types, last)
        tensors = [position for position, tensor in enumerate(self.types) if self._type(tensor).phase is not Phase.CONSTANT]
        for count in range(1, min(len(tensors), self.options.max_block_operators) + 1):
            for operands in itertools.combinations(tensors, count):
                shapes = [self._type(self.types[position]).shape for position in operands]
                schedules = filter(self._asked_for(operands), block_schedules(shapes, self.grids, self.loops))
                scheduled = (ScheduledKernel(operands, schedule) for schedule in schedules)
                yield from (item for item in scheduled if item.rank > last)

    def _asked_for(self, operands: tuple[int, ...]) -> Callable[[BlockSchedule], bool]:
        """Whether the space lets a schedule cut the program's inputs among these operands as it does."""
        inputs = [(number, self.program.input_names[o]) for number, o in enumerate(operands) if o < len(self.inputs)]
        return lambda schedule: all(self.options.space.cuts(name, schedule.named(number)) for number, name in inputs)

    def _add(self, item: WorkItem, remaining: int) -> None:
        """Generate what follows `item`, `remaining` kernel operators being left with it."""
        if isinstance(item, Application):
            self._extend(item, item.rank, [item.result], remaining)
            return
        operands, schedule = item.operands, item.schedule
        tiles = [self._tile(schedule, number, position) for number, position in enumerate(operands)]
        leaves = [*map(self.interned.intern, tiles), *self.types[len(self.inputs) : self.given]]

        def launch(plan: BlockPlan, results: list[TypeId]) -> None:
            made = [
                self.interned.intern(self._type(result)._replace(shape=saved.shape))
                for result, saved in zip(results, plan.saved, strict=True)
            ]
            self._extend(Launch(operands, plan), item.rank, made, remaining)

        def useful(tensor: TypeId, shape: Shape) -> bool:
            return remaining > 1 or not self.limits.dead_tensor_bound or (shape, self._type(tensor).expr) in self.goals

        constructor = self._constructor(Level.BLOCK, schedule.loop)
        generator = BlockGenerator(constructor, schedule, leaves, self.limits, self._visit, useful, launch)
        generator.run(self._iterator_bytes(operands, tiles))

    def _tile(self, schedule: BlockSchedule, number: int, position: int) -> TensorType:
        source = self._type(self.types[position])
        uncut = Phase.INVARIANT if schedule.fmaps[number] is None else Phase.LOOP
        return TensorType(schedule.tile(number, source.shape), source.expr, uncut if schedule.loop > 1 else Phase.AFTER)

    def _iterator_bytes(self, operands: tuple[int, ...], tiles: list[TensorType]) -> int:
        """Shared memory for the tiles of the operands; none where blocks read them in place."""
        if self.device.operands_in_place:
            return 0
        return sum(math.prod(tile.shape) * self.widths[position] for position, tile in zip(operands, tiles, strict=True))

    def _extend(self, added: KernelOperator, rank: Rank, made: list[TypeId], remaining: int) -> None:
        """Add one operator to the prefix if device memory holds what it makes, go on, and take it away again."""
        self.operators.append(added)
        self.types.extend(made)
        self.widths.extend([self.computed_width] * len(made))
        if self._device_bytes() <= self.device.device_memory_bytes:
            self._generate_next(rank, remaining - 1)
        self.operators.pop()
        del self.types[-len(made) :], self.widths[-len(made) :]

    def _device_bytes(self) -> int:
        shapes = (self._type(tensor).shape for tensor in self.types)
        return sum(math.prod(shape) * width for shape, width in zip(shapes, self.widths, strict=True))

    def _type(self, tensor: TypeId) -> TensorType:
        return self.interned.known[tensor]

    def _visit(self) -> None:
        self.states += 1
        if self.states % _STATES_PER_LOOK_AT_THE_CLOCK == 0:
            self._check_time()

    def _check_time(self) -> None:
        if time.perf_counter() > self.deadline:
            raise TimeLimitReached

    # complete graphs -------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Report the prefix as a graph for every choice of tensors that have the outputs' shapes and expressions.

        Every operator must be needed: of what the prefix makes, at most the outputs are unread.
        """
        computed = range(self.given, len(self.types))
        read = {position for added in self.operators for position in _operands(added)}
        unread = {position for position in computed if position not in read}
        known = [self._type(tensor) for tensor in self.types]
        matching = [[i for i in computed if (known[i].shape, known[i].expr) == goal] for goal in self.goals]
        dtypes = [tensor.dtype for tensor in self.program.output_tensors]
        for chosen in itertools.product(*matching):
            if unread <= set(chosen):
                outputs = list(zip(chosen, dtypes, strict=True))
                self.found(kernel_graph(self.inputs, self.constants, self.operators, outputs))


def program_expressions(program: Graph, algebra: Algebra) -> dict[Value, Expr]:
    """The abstract expression of every value of a kernel graph of pre-defined operators (paper, Table 1)."""
    expressions: dict[Value, Expr] = {}
    for index, node in enumerate(program.nodes):
        assert node.op != GRAPH_DEFINED
        if node.op == "input":
            expressions[Value(index)] = algebra.variable(str(node["name"]))
        else:
            call = apply_call(node.op, [program.tensor(value) for value in node.inputs], dict(node.attributes))
            expressions[Value(index)] = operator(node.op).express(algebra, call, [expressions[v] for v in node.inputs])
    return expressions


def _operands(added: KernelOperator) -> tuple[int, ...]:
    return added.inputs if isinstance(added, Application) else added.operands


def _unchecked(op: str, args: tuple[Expr, ...], n: int) -> Expr:
    return _ANY
