"""GenerateNextKernelOperator of Algorithm 1: every kernel graph of pre-defined and graph-defined operators.

The first operators of kernel graphs are the work items: what follows each of them is independent of the others.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mugraph.algebra import Algebra, Expr, Oracle
from mugraph.devices import Device
from mugraph.ir.graph import Graph, Level, Shape, Value
from mugraph.ir.ops import GRAPH_DEFINED, apply_call, operator
from mugraph.search.algorithm1.block import BlockGenerator, BlockLimits, BlockPlan
from mugraph.search.algorithm1.candidates import BlockLaunch, KernelOperator, kernel_graph
from mugraph.search.algorithm1.construct import (
    LOWEST,
    Application,
    Constructor,
    ExpressionCheck,
    Rank,
    Rules,
    TensorPhase,
    TensorType,
    TypeId,
    Types,
)
from mugraph.search.algorithm1.options import (
    BlockSchedule,
    EnumerationOptions,
    block_operators_for,
    block_schedules,
    grids_for,
    loops_for,
    operators_for,
)
from mugraph.search.closure.tiers import Make

_ABOVE_ALL_ROWS = 1 << 30
_REMEMBERED_PLANS, _REMEMBERED_BLOCKS = 1 << 10, 1 << 12
"""At most so many block graphs of the same tiles, and so many kinds of tiles, are remembered."""
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

_Launch = Callable[[BlockPlan, Sequence[TensorType]], None]


class _Blocks(NamedTuple):
    """The block graphs that some tiles can be read by, with the types that are saved, and how many prefixes they took."""

    plans: Sequence[tuple[BlockPlan, Sequence[TensorType]]]
    states: int


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
        self.constants = tuple(dict.fromkeys(node for node in program.nodes if node.is_constant))
        make, leaves, targets = self._abstraction()
        self.expressions = ExpressionCheck(make, operators_for(program, options))
        self.goals = [(tensor.shape, expr) for tensor, expr in zip(program.output_tensors, targets, strict=True)]
        self.interned = Types()
        self.constructor = Constructor(self.interned, Rules(self.expressions, Level.KERNEL))
        self.block_rules: dict[int, Rules] = {}
        self._known_blocks: dict[Hashable, _Blocks] = {}
        self.widths = [node.output.dtype.bytes for node in (*self.inputs, *self.constants)]
        self.computed_width = max(tensor.dtype.bytes for tensor in program.output_tensors)
        self.grids, self.loops = grids_for(program, options), loops_for(program, options)
        self.limits = BlockLimits(
            block_operators_for(program, options),
            options.max_block_outputs or len(program.outputs),
            device.shared_memory_bytes,
            options.dead_tensor_bound,
            options.completion_bound,
        )
        self.types = [
            self.interned.intern(
                TensorType(node.output.shape, expr, TensorPhase.CONSTANT if node.is_constant else TensorPhase.AFTER)
            )
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

    def _abstraction(self) -> tuple[Make, list[Expr], list[Expr]]:
        """What makes abstract expressions, None for what is pruned; those of the leaves and of the outputs."""
        leaves = [*self.inputs, *self.constants]
        if not self.options.expression_check:
            return _unchecked, [_ANY] * len(leaves), [_ANY] * len(self.program.outputs)
        algebra = Algebra()
        expressions = program_expressions(self.program, algebra)
        oracle = Oracle(algebra, [expressions[value] for value in self.program.outputs])
        of_leaves = [expressions[Value(self.program.nodes.index(node))] for node in leaves]
        return oracle.compose, of_leaves, [expressions[v] for v in self.program.outputs]

    def _rules(self, loop: int) -> Rules:
        """The rules for operators of block graphs with a for-loop of so many iterations."""
        if loop not in self.block_rules:
            self.block_rules[loop] = Rules(self.expressions, Level.BLOCK, loop)
        return self.block_rules[loop]

    # the kernel prefix -----------------------------------------------------------------------------------------------

    def _generate_next(self, last: Rank, remaining: int) -> None:
        self._visit()
        self._complete()
        if remaining:
            for item in self._next(last):
                self._add(item, remaining)

    def _next(self, last: Rank) -> Iterator[WorkItem]:
        """Every operator, pre-defined or graph-defined under a schedule, that ranks above `last`."""
        yield from self.constructor.extensions(self.types, last)
        tensors = [position for position, tensor in enumerate(self.types) if self._type(tensor).phase is not TensorPhase.CONSTANT]
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
        if self._in_vain(item, remaining):
            return

        def launch(plan: BlockPlan, results: Sequence[TensorType]) -> None:
            shapes = (saved.shape for saved in plan.saved)
            made = [self.interned.intern(result._replace(shape=shape)) for result, shape in zip(results, shapes, strict=True)]
            self._extend(BlockLaunch(item.operands, plan), item.rank, made, remaining)

        self._generate_block_graphs(item, remaining, launch)

    def _in_vain(self, item: ScheduledKernel, remaining: int) -> bool:
        """Whether `item`, the last operator there may be, leaves a tensor unread that is no output."""
        if remaining > 1 or not self.limits.dead_tensor_bound:
            return False
        left = self._unread().difference(item.operands)
        return any(self._type(self.types[position])[:2] not in self.goals for position in left)

    def _generate_block_graphs(self, item: ScheduledKernel, remaining: int, launch: _Launch) -> None:
        """Launch every block graph that `item` may have.

        They depend on the tiles that are read, on the grid and on the for-loop alone, and are generated once for each of these.
        """
        schedule = item.schedule
        tiles = [self._tile(schedule, number, position) for number, position in enumerate(item.operands)]
        iterator_bytes = self._iterator_bytes(item.operands, tiles)
        key = tuple(tiles), schedule.grid, schedule.loop, iterator_bytes, remaining > 1
        known = self._known_blocks.get(key)
        if known is not None:
            self.states += known.states
            for plan, results in known.plans:
                launch(replace(plan, schedule=schedule), results)
            return
        generated: list[tuple[BlockPlan, Sequence[TensorType]]] = []
        types = Types()

        def found(plan: BlockPlan, results: Sequence[TensorType]) -> None:
            if len(generated) <= _REMEMBERED_PLANS:
                generated.append((plan, results))
            launch(plan, results)

        def useful(tensor: TensorType, shape: Shape) -> bool:
            return remaining > 1 or not self.limits.prunes or (shape, tensor.expr) in self.goals

        leaves = [types.intern(leaf) for leaf in (*tiles, *map(self._type, self.types[len(self.inputs) : self.given]))]
        constructor = Constructor(types, self._rules(schedule.loop))
        generator = BlockGenerator(constructor, schedule, leaves, self.limits, self._check_time, useful, found)
        try:
            generator.run(iterator_bytes)
        finally:
            self.states += generator.states
        if len(generated) <= _REMEMBERED_PLANS:
            self._remember(key, _Blocks(generated, generator.states))

    def _remember(self, key: Hashable, blocks: _Blocks) -> None:
        if len(self._known_blocks) >= _REMEMBERED_BLOCKS:
            self._known_blocks.clear()
        self._known_blocks[key] = blocks

    def _tile(self, schedule: BlockSchedule, number: int, position: int) -> TensorType:
        source = self._type(self.types[position])
        uncut = TensorPhase.INVARIANT if schedule.fmaps[number] is None else TensorPhase.LOOP
        return TensorType(schedule.tile(number, source.shape), source.expr, uncut if schedule.loop > 1 else TensorPhase.AFTER)

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
        unread = self._unread()
        known = [self._type(tensor) for tensor in self.types]
        matching = [[i for i in computed if (known[i].shape, known[i].expr) == goal] for goal in self.goals]
        dtypes = [tensor.dtype for tensor in self.program.output_tensors]
        for chosen in itertools.product(*matching):
            if unread <= set(chosen):
                outputs = list(zip(chosen, dtypes, strict=True))
                self.found(kernel_graph(self.inputs, self.constants, self.operators, outputs))

    def _unread(self) -> set[int]:
        """What the prefix makes and nothing in it reads."""
        return set(range(self.given, len(self.types))).difference(*map(_operands, self.operators))


def program_expressions(program: Graph, algebra: Algebra) -> dict[Value, Expr]:
    """The abstract expression of every value of a kernel graph of pre-defined operators (paper, Table 1)."""
    expressions: dict[Value, Expr] = {}
    for index, node in enumerate(program.nodes):
        assert node.op != GRAPH_DEFINED
        if node.is_input:
            expressions[Value(index)] = algebra.variable(str(node["name"]))
        else:
            call = apply_call(node.op, [program.tensor(value) for value in node.inputs], dict(node.attributes))
            expressions[Value(index)] = operator(node.op).express(algebra, call, [expressions[v] for v in node.inputs])
    return expressions


def _operands(added: KernelOperator) -> tuple[int, ...]:
    return added.inputs if isinstance(added, Application) else added.operands


def _unchecked(op: str, args: tuple[Expr, ...], n: int) -> Expr:
    return _ANY
