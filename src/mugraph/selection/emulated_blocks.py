"""The printed text of a candidate's kernels where their GPU is not: blocks of each, run here at full size, against float64.

Proofs speak of the muGraph, and comparisons with float64 of a stand-in compiled for this host. Neither reads the text that a GPU
would run. So a few blocks of each kernel's grid are run as they are printed, by an emulator of the machine: the first, the last
and some others. They must write the elements that are theirs and no other ones, within the rounding errors of the type. All of
them read standard normal numbers, and the first of them small and large ones, too: what is stored in fewer bits than it needs
looks right while it is neither.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from mugraph.errors import BudgetExceeded, CompilationFailed, MugraphError
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType, fp8_codes, fp8_numbers
from mugraph.ir.evaluate import block_slices, evaluate_block, loop_nodes
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Shape, Value
from mugraph.ir.ops import apply_call, is_contraction, operator
from mugraph.lower.tile_form import Tile
from mugraph.results.data import SpotCheck
from mugraph.runtime import Executable
from mugraph.selection.block_errors import BlockErrors
from mugraph.selection.inputs import runner
from mugraph.support.deadline import Deadline
from mugraph.targets.emulator import Emulator, Memory, emulator_of
from mugraph.targets.machine import Launched
from mugraph.verifier.block_samples import BlockAxis, Placed, block_axes, is_dear
from mugraph.verifier.deviations import Measure
from mugraph.verifier.doubt import DoubtArithmetic, Doubted, asked, chooses
from mugraph.verifier.float_checks import InputKind, Runner, random_inputs
from mugraph.verifier.float_report import TOLERANCES
from mugraph.verifier.reference import spread
from mugraph.verifier.samples import Places

_SECONDS = 1.0
"""For the blocks of one candidate's kernels, shared evenly by these, ..."""
_KINDS = 4
"""... and as long as so many blocks of a kernel are expected to take: the first of `_chosen`, which are of different kinds."""
_LONGEST = 5.0
"""A block that is expected to take longer, its kernel's tensors copied for it, is not begun."""
_BLOCKS = 8
"""Of each kernel, at most."""
_KINDS_OF_INPUTS = tuple(map(InputKind, (1.0, 1e-3, 1e3)))
"""Standard normal numbers, which all blocks of `_chosen` read; and the ends of the scales of the comparison with float64, ..."""
_AGAIN = 2
"""... which so many of them read at most, or the first alone where several take longer than a kernel's share of the seconds."""
_NUDGES = 3
"""So often numbers are moved by up to an ulp of fp32, before a kernel that errs more than its stand-in is called wrong."""


def spot_check(
    executable: Executable, seed: int = 0, deadline: Deadline | None = None, program: Graph | None = None
) -> SpotCheck | None:
    """Run blocks of every generated kernel on normal inputs; None where there is nothing to run, or the machine is here.

    A kernel that reads another's result reads it as its stand-in on this host computes it. It errs where its error is above
    the tolerance of the coarsest type it computes in and more than 10 times the stand-in's on the same elements, and than what
    rounding errors in what is read would change: relative to the largest value of the output, or of a line of the block's
    elements. Where the `program` that the kernels compute takes long on this host, the stand-in computes what the blocks read and
    write alone, and everything else that they could read is NaN.
    """
    emulator = emulator_for(executable)
    if emulator is None:
        return None
    check = _Check(executable, emulator, seed, deadline or Deadline(None), program)
    check.run()
    return check.report()


def emulator_for(executable: Executable) -> Emulator | None:
    """What blocks of the printed kernels are run by; None where there are none, or their machine is here."""
    machine = executable.machine
    return None if machine.available or not executable.launches else emulator_of(machine)


class _FaultFound(Exception):
    """What is wrong with a kernel."""


@dataclass
class _Check:
    executable: Executable
    emulator: Emulator
    seed: int
    deadline: Deadline
    program: Graph | None
    kind: InputKind = _KINDS_OF_INPUTS[0]
    values: dict[Value, _Held] = field(default_factory=dict)
    """What the kernels read of inputs of that kind, and their stand-ins make, rounded to the types in the muGraph."""
    blocks: dict[int, Sequence[int]] = field(default_factory=dict)
    """Those of each kernel that were run on standard normal inputs, by its node."""
    compared: dict[InputKind, None] = field(default_factory=dict)
    """The kinds of inputs for which some results were compared, in their order."""
    ran: int = 0
    errors: list[float] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    fault: str = ""
    where: list[str] = field(default_factory=list)

    @property
    def graph(self) -> Graph:
        return self.executable.graph

    def report(self) -> SpotCheck:
        blocks = sum(math.prod(self._body(index).grid) for index in self.executable.launches)
        return SpotCheck(
            self.emulator.title,
            self.ran,
            blocks,
            max(self.errors, default=None),
            "; ".join(self.missed),
            self.fault,
            "; ".join(self.where),
            tuple(kind.scale for kind in self.compared),
        )

    def run(self) -> None:
        try:
            self._look_at_the_clock()
            self.emulator.prepare(self.executable.sources)
        except MugraphError as error:
            self.missed.append(str(error))
            return
        for kind in _KINDS_OF_INPUTS:
            if kind.standard or (self.ran and not self.fault):
                self._run_on(kind)

    def _run_on(self, kind: InputKind) -> None:
        """Run blocks of the kernels on inputs of a kind, until one of them shows a fault."""
        at = "" if kind.standard else f"at {kind}: "
        try:
            self._look_at_the_clock()
            self.kind, self.values = kind, self._values(kind)
        except MugraphError as error:
            self.missed.append(f"{at}{error}")
            return
        for index, launch in self.executable.launches.items():
            try:
                self._run_kernel(index, launch, _SECONDS / len(self.executable.launches))
            except (CompilationFailed, _FaultFound) as error:
                self.fault = f"{at}{error}"
                return
            except MugraphError as error:
                self.missed.append(f"{at}{launch.kernel.name}: {error}")

    def _look_at_the_clock(self) -> None:
        """Raise BudgetExceeded once it is too late to begin anything."""
        if self.deadline.passed:
            raise BudgetExceeded("the budget ended")

    def _run_kernel(self, index: int, launch: Launched, seconds: float) -> None:
        """Run blocks of a kernel, as many as fit some `seconds`, or those of different kinds, and count them once they are
        compared; of inputs that are not standard normal the first of those alone. Raises _FaultFound, BudgetExceeded, and what
        the emulator raises."""
        if self.kind.standard:
            self._run_blocks(index, launch, _chosen(self._body(index).grid, self.seed), seconds, _KINDS)
        elif index in self.blocks:
            self._run_blocks(index, launch, self.blocks[index][:_AGAIN], seconds / len(_KINDS_OF_INPUTS), 1)

    def _run_blocks(self, index: int, launch: Launched, blocks: Sequence[int], seconds: float, least: int) -> None:
        """Run some of these `blocks` of a kernel and compare them: as many as fit some `seconds`, or about `least`."""
        body, name = self._body(index), launch.kernel.name
        graph = self.graph
        tensors = [graph.tensor(value) for value in (*launch.inputs, *launch.outputs)]
        copied = sum(tensor.elements * self.emulator.runs_as(tensor.dtype).bytes for tensor in tensors)
        one = _block_seconds(body, self.emulator)
        longest = one + copied * self.emulator.seconds_per_byte
        if longest > _LONGEST:
            self.missed.append(f"{name}: one of its blocks would take about {longest:.0f} s with its tensors")
            return
        if not self.deadline.allows(longest):
            raise BudgetExceeded("the budget ended")
        inputs = [self._stored(launch, value) for value in launch.inputs]
        outputs = [_unwritten(graph.tensor(value).elements, self._type(value)) for value in launch.outputs]
        self._look_at_the_clock()
        left, limit = self.deadline.remaining, max(seconds, (least - 1) * one)
        limit = limit if left is None else min(limit, left)
        ran = self.emulator.run_blocks(launch.kernel, self.executable.sources, [*inputs, *outputs], blocks, limit)
        if self.emulator.findings:
            first, *more = self.emulator.findings
            raise _FaultFound(f"{first}{f', and {len(more)} findings more' if more else ''}")
        orders = [launch.orders.get(value) for value in launch.outputs]
        stored = [memory if order is None else order.restored(memory) for order, memory in zip(orders, outputs, strict=True)]
        strangers = [np.asarray(memory != _NEVER[memory.itemsize]) for memory in stored]
        for number, (place, window) in enumerate(launch.results):
            value, exact = launch.outputs[place], self._exact(index, number, blocks[:ran])
            _expect_written(name, number, windowed(strangers[place], window), exact)
            results, own = (windowed(array, window) for array in (stored[place], self.values[value].numbers.reshape(-1)))
            self._compare(index, number, value, results, own, exact)
        for place, others in enumerate(strangers):
            if count := int(np.sum(others)):
                those = ", ".join(map(str, blocks[:ran]))
                raise _FaultFound(
                    f"{name}: {count} elements of output {place} that belong to other blocks are written by {those}"
                )
        if self.kind.standard:
            self.ran += ran
            self.blocks[index] = blocks[:ran]
            self.where.append(f"{name} {_places_text(blocks[:ran], body.grid)}")

    def _values(self, kind: InputKind) -> dict[Value, _Held]:
        """What the kernels read of inputs of a kind, and make, by their stand-ins on this host."""
        graph, (placed, others, run) = self.graph, self.stand_in
        inputs = [Value(index) for index, node in enumerate(graph.nodes) if node.is_input]
        arrays = random_inputs(placed.graph, self.seed, kind.scale)
        made = run(*arrays)
        return {
            value: _Held(array, dims, placed.places, graph.tensor(value).shape)
            for value, array, dims in zip((*inputs, *others), (*arrays, *made), (*placed.inputs, *placed.outputs), strict=True)
        }

    @cached_property
    def stand_in(self) -> tuple[Placed, Sequence[Value], Runner]:
        """The muGraph at what the blocks need, the values that it gives, and what computes them on this host."""
        graph = self.graph
        inputs = [Value(index) for index, node in enumerate(graph.nodes) if node.is_input]
        touched = (value for launch in self.executable.launches.values() for value in (*launch.inputs, *launch.outputs))
        others = tuple(dict.fromkeys(value for value in touched if value not in inputs))
        axes = block_axes(self.program, graph) if self.program is not None and is_dear(self.program) else []
        placed = Placed.of(replace(graph, outputs=others), axes, functools.partial(self._needed, others))
        return placed, others, runner(Executable(placed.graph, self.executable.machine.stand_in))

    def _needed(self, values: Sequence[Value], dims: Sequence[int | None], axis: BlockAxis) -> Array:
        """Which blocks along an axis, dimension `dims[i]` of `values[i]`, have something that the blocks that are run write."""
        needed = {0}
        places = dict(zip(values, dims, strict=True))
        for index, launch in self.executable.launches.items():
            node, body = self.graph.nodes[index], self._body(index)
            for number, (place, _) in enumerate(launch.results):
                dim, shape = places[launch.outputs[place]], node.outputs[number].shape
                if shape != self.graph.tensor(launch.outputs[place]).shape:
                    return np.arange(axis.blocks)
                if dim is not None:
                    blocks = (_index(block, body.grid) for block in _chosen(body.grid, self.seed))
                    parts = (block_slices(body, number, block, shape)[dim] for block in blocks)
                    needed.update(*(range(part.start // axis.slices, -(-part.stop // axis.slices)) for part in parts))
        return np.array(sorted(needed))

    def _exact(self, index: int, number: int, blocks: Sequence[int]) -> list[_Part]:
        """What the blocks make of an output in float64, and where it belongs; raises BudgetExceeded at the end of the budget."""
        node, body = self.graph.nodes[index], self._body(index)
        operands = [self._operand(value) for value in node.inputs]
        shape = node.outputs[number].shape
        parts = []
        for block in blocks:
            self._look_at_the_clock()
            at = _index(block, body.grid)
            with np.errstate(all="ignore"):
                made = _block(body, at, operands)[number]
            parts.append(_Part(block, block_slices(body, number, at, shape), np.asarray(made)))
        return parts

    def _compare(self, index: int, number: int, value: Value, results: Memory, own: Array, exact: Sequence[_Part]) -> None:
        """Raise _FaultFound where results of a kernel, the `value` in memory, err by more than rounding to the types that it
        computes in explains, relative to the largest that its stand-in's `own` have, or to the largest of a line of a block."""
        dtype, what = self._type(value), f"{self.executable.launches[index].kernel.name}: output {number}"
        tolerance = max(TOLERANCES[self.emulator.runs_as(each)] for each in _types(self._body(index)))
        largest = Measure.of(own, dtype).largest or 1.0
        compared = [part for part in exact if dtype.holds(part.values).any()]
        if not compared and self.kind.standard:
            self.missed.append(f"{what} has no finite value to compare for normal inputs")
        for part in compared:
            made, theirs = _decoded(results[part.place], dtype), own[part.place]
            errors = BlockErrors.of(part.values, made, theirs, dtype, largest, tolerance)
            if errors.whole.error < math.inf and self.kind.standard:
                self.errors.append(errors.whole.error)
            if errors.fault:
                theirs = self._farthest(index, number, part, theirs)
                if BlockErrors.of(part.values, made, theirs, dtype, largest, tolerance).fault:
                    raise _FaultFound(f"{what} errs in block {part.block} by {errors.fault}")
            self.compared[self.kind] = None

    def _farthest(self, index: int, number: int, part: _Part, own: Array) -> Array:
        """Of the stand-in's results for a block and those in float64 of numbers with rounding errors of fp32, the farthest from
        exact ones: where a sum of terms that cancel divides, the stand-in may be ten times as near as others by chance."""
        node, body = self.graph.nodes[index], self._body(index)
        if chooses(body) or DType.FP64 in _types(body):
            return own
        with suppress(BudgetExceeded), np.errstate(all="ignore"):
            operands = [self._operand(value) for value in node.inputs]
            for seed in range(_NUDGES):
                self._look_at_the_clock()
                made = evaluate_block(body, _index(part.block, body.grid), operands, _Nudging(seed))[number]
                farther = np.isfinite(made) & (np.abs(made - part.values) > np.abs(own - part.values))
                own = np.where(farther, made, own)
        return own

    def _operand(self, value: Value) -> Array:
        """A value that a body reads: in memory, or a view of one that is; raises BudgetExceeded at the end of the budget."""
        self._look_at_the_clock()
        if value in self.values:
            return self.values[value].numbers
        node = self.graph.nodes[value.node]
        call = apply_call(node.op, [self.graph.tensor(each) for each in node.inputs], dict(node.attributes))
        made: Array = operator(node.op).compute(FloatArithmetic(), call, [self._operand(each) for each in node.inputs])
        return made

    def _stored(self, launch: Launched, value: Value) -> Memory:
        """An operand as it lies in device memory; raises BudgetExceeded at the end of the budget."""
        self._look_at_the_clock()
        memory = self.values[value].memory(self._type(value))
        order = launch.orders.get(value)
        return np.ascontiguousarray(memory if order is None else order.stored(memory))

    def _type(self, value: Value) -> DType:
        return self.emulator.runs_as(self.graph.tensor(value).dtype)

    def _body(self, index: int) -> Graph:
        body = self.graph.nodes[index].body
        assert body is not None, "generated kernels are printed from bodies"
        return body


@dataclass(frozen=True)
class _Held:
    """A tensor of a shape, of which numbers are known at some places of axes that are `dims` of it."""

    known: Array
    dims: Sequence[int | None]
    places: Places
    shape: Shape

    @cached_property
    def numbers(self) -> Array:
        """All of it, 0 elsewhere."""
        return spread(self.known, self.dims, self.places, self.shape)

    def memory(self, dtype: DType) -> Memory:
        """Its bits in a type, a NaN elsewhere."""
        known = _encoded(self.known.reshape(-1), dtype).reshape(self.known.shape)
        return spread(known, self.dims, self.places, self.shape, _NEVER[known.itemsize]).reshape(-1)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a block makes of an output: where it belongs, and its values in float64."""

    block: int
    place: tuple[slice, ...]
    values: Array


def _block(body: Graph, at: tuple[int, ...], operands: Sequence[Array]) -> list[Array]:
    """The outputs of a block in float64, NaN where rounding may decide a comparison either way."""
    if not chooses(body):
        return evaluate_block(body, at, operands, _Widening())
    margin = max(TOLERANCES[dtype] for dtype in _types(body))
    exact = [Doubted(array, exact=True) for array in operands]
    return [asked(output) for output in evaluate_block(body, at, exact, DoubtArithmetic(margin))]


class _Widening(FloatArithmetic):
    """float64 of arrays of any type, of which only the parts that are read are converted."""

    def view(self, x: Array, move: Callable[[Array], Array]) -> Array:
        return np.asarray(move(x), np.float64)


class _Nudging(_Widening):
    """The same of numbers that are up to an ulp of fp32 off, but for whole ones, which may be places or truths."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = np.random.default_rng([seed, 0xE44])

    def view(self, x: Array, move: Callable[[Array], Array]) -> Array:
        exact = super().view(x, move)
        return np.where(exact == np.rint(exact), exact, exact * (1 + self.rng.uniform(-(2.0**-23), 2.0**-23, exact.shape)))


def _types(body: Graph) -> set[DType]:
    return {tensor.dtype for node in body.nodes for tensor in node.outputs}


def _index(block: int, grid: Sequence[int]) -> tuple[int, ...]:
    """Where a block stands along each dimension of its grid."""
    return tuple(int(place) for place in np.unravel_index(block, grid))


def _chosen(grid: Sequence[int], seed: int) -> list[int]:
    """Blocks of a grid, those first that differ most: the first and the last, two inside of it, of which one has odd places and
    one even ones, the other corners, and one somewhere along an edge for each dimension; then others."""
    rng = np.random.default_rng([seed, 0xB10C])
    ends = [(0, count - 1) for count in grid]
    inside = [[int(rng.integers(max(1, count // 2))) for count in grid] for _ in range(_BLOCKS)]
    odd, even = ([_inner(count, first, rng) for count in grid] for first in (1, 2))
    corners = [*itertools.product(*ends)]
    edges = [
        [*corner[:dim], int(rng.integers(count)), *corner[dim + 1 :]]
        for dim, count in enumerate(grid)
        for corner in (corners[int(rng.integers(len(corners)))],)
    ]
    places = [corners[0], corners[-1], odd, even, *corners[1:-1], *edges, *inside]
    numbers = [int(np.ravel_multi_index(tuple(place), tuple(grid))) if grid else 0 for place in places]
    return list(dict.fromkeys(numbers))[:_BLOCKS]


def _places_text(blocks: Sequence[int], grid: Sequence[int]) -> str:
    """Where blocks stand in their grid, in words."""
    if math.prod(grid) == 1:
        return "in its one block"
    places = blocks if len(grid) == 1 else [_index(block, grid) for block in blocks]
    return f"at {', '.join(map(str, places))} of {' x '.join(map(str, grid))}"


def _inner(count: int, first: int, rng: np.random.Generator) -> int:
    """A place between both ends of so many, an even number of places behind `first`; an end if there is none."""
    between = range(first, count - 1, 2)
    return int(rng.choice(between)) if between else first % 2 * (count > 1)


def _block_seconds(body: Graph, emulator: Emulator) -> float:
    """About how long one block takes."""
    inside, seconds = loop_nodes(body), 0.0
    for index, node in enumerate(body.nodes):
        operands = [body.tensor(value) for value in node.inputs]
        work = sum(tensor.elements for tensor in (*operands, *node.outputs))
        if is_contraction(node.op):
            work += node.output.elements * operands[0].shape[-1]
        tiles = 1 if node.body is None else len(node.body.nodes)
        times = body.loop if index in inside else 1
        seconds += times * tiles * (work * emulator.seconds_per_operation + emulator.seconds_per_tile)
    return seconds


def _expect_written(kernel: str, number: int, written: Array, exact: Sequence[_Part]) -> None:
    """Raise _FaultFound unless blocks have written what is theirs, which is taken from what is written; NaN may look as if it
    was not."""
    for part in exact:
        missing = int(np.sum(~written[part.place] & np.isfinite(part.values)))
        if missing:
            raise _FaultFound(f"{kernel}: block {part.block} leaves {missing} of its elements of output {number} unwritten")
        written[part.place] = False


def windowed(memory: Array, window: Tile) -> Array:
    """The elements of a memory in a window of it, which may be written to."""
    strides = [stride * memory.itemsize for stride in window.strides]
    return np.lib.stride_tricks.as_strided(memory[window.start.constant :], window.shape, strides)


_WORDS: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_NEVER = {1: np.uint8(0xFF), 2: np.uint16(0xFFFF), 4: np.uint32(0xFFFFFFFF)}
"""What outputs hold where nothing was written, by the bytes of an element: a NaN, or no boolean."""


_BYTES = {DType.BOOL: np.uint8, DType.INT8: np.int8, DType.UINT8: np.uint8}
"""How NumPy holds types of one byte."""
_HIGH_HALF = int(np.array([1], np.uint32).view(np.uint16)[0])
"""Where the upper half of 32 bits lies: in the second 16 of them, unless the last byte comes first."""


def _unwritten(elements: int, dtype: DType) -> Memory:
    return np.full(elements, _NEVER[dtype.bytes], _WORDS[dtype.bytes])


def _encoded(values: Array, dtype: DType) -> Memory:
    """The bits of numbers of a type, in one dimension."""
    if dtype.is_fp8:
        return fp8_codes(dtype, values)
    if dtype in _BYTES:
        return np.asarray(values, _BYTES[dtype]).view(np.uint8)
    if dtype is DType.BF16:
        return np.ascontiguousarray(np.asarray(values, np.float32).view(np.uint16)[_HIGH_HALF::2])
    return (
        np.asarray(values, np.float16).view(np.uint16) if dtype is DType.FP16 else np.asarray(values, np.float32).view(np.uint32)
    )


def _decoded(memory: Memory, dtype: DType) -> Array:
    """Numbers of a type from their bits."""
    if dtype.is_fp8:
        return fp8_numbers(dtype, memory.view(np.uint8))
    if dtype in _BYTES:
        return memory.view(_BYTES[dtype])
    if dtype is DType.BF16:
        return np.asarray((memory.astype(np.uint32) << 16).view(np.float32))
    return memory.view(np.float16 if dtype is DType.FP16 else np.float32)
