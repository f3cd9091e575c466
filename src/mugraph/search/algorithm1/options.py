"""What Algorithm 1 enumerates: its limits, the checks of the paper's Table 4 that can be switched off, and schedules.

A schedule is a grid and a for-loop range, and how both cut each operand: imaps and fmaps (paper, section 2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mugraph.ir.graph import FREE, Graph, Shape, Value
from mugraph.ir.ops import OPERATORS, Kind, Operator
from mugraph.ir.text import LOOP_NAME, axis_name
from mugraph.search.constraints import EVERYTHING, SearchSpace

_LARGEST_POWER = 256


@dataclass(frozen=True, slots=True)
class EnumerationOptions:
    """What is enumerated, and which checks prune it.

    A kernel makes up to `max_block_outputs` tensors; None stands for as many as the program has outputs.

    Every iterator and every operator of a block graph counts against `max_block_operators`; constants and savers do not.
    `grids` are the grid dimensions to try (`()` is a single block) and `loops` the for-loop ranges (1 is no loop);
    None stands for one-dimensional grids and loops by the powers of two that divide a dimension of the inputs.
    `operators` are enumerated beside those of the program and the elementwise LAX ones.
    `time_limit` is in seconds; a run that meets it says so in its report. Graphs lie in the `space` besides (`within`).
    """

    max_block_operators: int = 11
    max_kernel_operators: int = 1
    max_block_outputs: int | None = None
    grids: tuple[tuple[int, ...], ...] | None = None
    loops: tuple[int, ...] | None = None
    operators: tuple[str, ...] = ("matmul", "sum")
    expression_check: bool = True
    """Prune what is no abstract subexpression of the program (line `Subexpr` of ConstructOp)."""
    dead_tensor_bound: bool = True
    """Not in the paper: prune prefixes with more unread tensors than the operators left could still read."""
    completion_bound: bool = True
    """Not in the paper: prune prefixes with an unread tensor that the operators left cannot lead to anything worth saving."""
    processes: int = 1
    time_limit: float = math.inf
    seed: int = 0
    space: SearchSpace = EVERYTHING

    def within(self, space: SearchSpace) -> EnumerationOptions:
        """The same with the limits of a space, where it has any."""
        return replace(
            self,
            max_kernel_operators=space.kernels or self.max_kernel_operators,
            max_block_operators=space.block_operators or self.max_block_operators,
            grids=self.grids if space.allowed_grids is None else space.allowed_grids,
            loops=self.loops if space.loops is None else tuple(space.loops),
            space=space,
        )


def operators_for(program: Graph, options: EnumerationOptions) -> tuple[Operator, ...]:
    """The rows to enumerate, in the order of the table: that order is the type's place in the rank."""
    vocabulary = {node.op for node in program.nodes} - FREE
    wanted = vocabulary | set(options.operators) | {"accumulate"}
    return tuple(row for row in OPERATORS.values() if row.name in wanted or (row.elementwise and row.kind is not Kind.OPAQUE))


def block_operators_for(program: Graph, options: EnumerationOptions) -> int:
    """How many operators of a block graph are enumerated.

    A space counts as the paper does, without operators that read a constant; so there may be as many of these as the program has.
    """
    if options.space.block_operators is None:
        return options.max_block_operators
    constants = {Value(index) for index, node in enumerate(program.nodes) if node.is_constant}
    return options.max_block_operators + sum(not constants.isdisjoint(node.inputs) for node in program.nodes)


def grids_for(program: Graph, options: EnumerationOptions) -> tuple[tuple[int, ...], ...]:
    """The grids to enumerate."""
    return options.grids if options.grids is not None else ((), *((count,) for count in _powers_of_two(program)))


def loops_for(program: Graph, options: EnumerationOptions) -> tuple[int, ...]:
    """The for-loop ranges to enumerate."""
    return options.loops if options.loops is not None else (1, *_powers_of_two(program))


def _powers_of_two(program: Graph) -> tuple[int, ...]:
    sizes = {size for node in program.inputs() for size in node.output.shape}
    powers = (1 << exponent for exponent in range(1, _LARGEST_POWER.bit_length()))
    return tuple(power for power in powers if any(size % power == 0 for size in sizes))


Map = tuple[int | None, ...]
"""The data dimension of each grid dimension; None where every block reads the whole operand."""


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """Grid and for-loop of a block graph, and how each operand is cut: by the grid (`imaps`), by the loop (`fmaps`)."""

    grid: tuple[int, ...]
    loop: int
    imaps: tuple[Map, ...]
    fmaps: tuple[int | None, ...]

    def tile(self, operand: int, shape: Shape) -> Shape:
        """What one block sees of an operand in one iteration."""
        sizes = list(shape)
        for count, dim in (*zip(self.grid, self.imaps[operand], strict=True), (self.loop, self.fmaps[operand])):
            if dim is not None:
                sizes[dim] //= count
        return tuple(sizes)

    def named(self, operand: int) -> dict[str, int | None]:
        """How an operand is cut, by the names of grid dimensions and of the for-loop if there is one."""
        named = {axis_name(place): dim for place, dim in enumerate(self.imaps[operand])}
        return named if self.loop == 1 else {**named, LOOP_NAME: self.fmaps[operand]}


def block_schedules(shapes: Sequence[Shape], grids: Sequence[tuple[int, ...]], loops: Sequence[int]) -> Iterator[BlockSchedule]:
    """Every schedule of operands of these shapes in which each grid dimension and the loop cut some operand evenly."""
    for grid, loop in itertools.product(grids, loops):
        counts = grid if loop == 1 else (*grid, loop)
        for cuts in itertools.product(*(_cuts(shape, counts) for shape in shapes)):
            if all(any(cut[position] is not None for cut in cuts) for position in range(len(counts))):
                imaps = tuple(cut[: len(grid)] for cut in cuts)
                fmaps = tuple(cut[-1] if loop > 1 else None for cut in cuts)
                yield BlockSchedule(grid, loop, imaps, fmaps)


def _cuts(shape: Shape, counts: Sequence[int]) -> list[Map]:
    """All ways to give each count a dimension (or none) so that every dimension divides evenly."""
    dims = [None, *range(len(shape))]
    return [cut for cut in itertools.product(dims, repeat=len(counts)) if _divides(shape, counts, cut)]


def _divides(shape: Shape, counts: Sequence[int], cut: Map) -> bool:
    sizes = list(shape)
    for count, dim in zip(counts, cut, strict=True):
        if dim is None:
            continue
        if sizes[dim] % count:
            return False
        sizes[dim] //= count
    return True
