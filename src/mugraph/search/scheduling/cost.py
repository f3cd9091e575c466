"""The cost model of one sketch on a described device, as far as it depends on neither sizes nor schedules.

What the kernel transfers, computes and keeps in a block's memory are sums over *index spaces*, with coefficients that
are read off the sketch. `mugraph.search.scheduling.cost_table` makes seconds and bytes of them, for schedules at real sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np

from mugraph.devices import Device
from mugraph.ir.axes import AxisSet, Slots
from mugraph.ir.dtypes import DType
from mugraph.ir.liveness import live_ranges
from mugraph.ir.ops import OPERATORS, is_reduction
from mugraph.ir.scalar import Scalar
from mugraph.search.closure.sketch import Sketch, Step, sums
from mugraph.search.scheduling.emission import Dims, KernelOutput, dims_of, is_turned
from mugraph.search.scheduling.space import CutAxes, cuttable_together

PRODUCTS = frozenset({"contract", "concat_contract"})
"""Steps that are products."""

_MINUS_ONE = Scalar.of(-1)

_MOVING = frozenset({"carry", "concat"})
"""Steps that compute nothing."""

_ACCUMULATORS = frozenset({"accumulate", "accumulate_max", "rescale", "concat", "carry"})
"""Steps that become accumulators of the block graph."""


class IndexSpace(NamedTuple):
    """Points a step works on or a tensor has in one block: those over `axes`.

    `cut`: of the loop axis only one iteration's tile; `repeated`: anew in every iteration. A sum over the iterations is
    cut and not repeated where its tiles are still to be summed.
    """

    axes: AxisSet
    cut: bool = False
    repeated: bool = False

    def loop_power(self, loop_axis: int | None) -> int:
        """A block works through its tile of `axes` times the loop count to this power: a part of it, all, or all repeatedly."""
        return int(self.repeated) - int(self.cut and loop_axis in self.axes)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A device tensor a kernel reads or writes: axes, dimensions, bytes per element, and whether in every iteration."""

    space: IndexSpace
    slots: Slots
    width: int


class SketchCost:
    """What a sketch's cost consists of; the i-th load is of dtype `sources[i]`, the i-th goal saved as `outputs[i]`."""

    def __init__(self, sketch: Sketch, sources: tuple[DType, ...], outputs: tuple[KernelOutput, ...], device: Device) -> None:
        self.sketch, self.sources, self.outputs, self.device = sketch, sources, outputs, device
        loads = [step for step in sketch.steps if step.leaf is not None]
        self.transfers = (
            *(
                Transfer(IndexSpace(step.axes, step.in_loop and not step.whole, step.in_loop), leaf.slots, dtype.bytes)
                for step, leaf, dtype in zip(loads, sketch.leaves, sources, strict=True)
            ),
            *(
                Transfer(IndexSpace(sketch.steps[goal].axes), output.slots, output.dtype.bytes)
                for goal, output in zip(sketch.goals, outputs, strict=True)
            ),
        )

    @cached_property
    def dtypes(self) -> list[DType]:
        """Element type of every step: that of its widest operand, or what fp8 is computed in."""
        loaded = iter(self.sources)
        dtypes: list[DType] = []
        for step in self.sketch.steps:
            tensors = [dtypes[i] for i in step.inputs if not self.sketch.steps[i].is_constant]
            if step.leaf is not None:
                dtypes.append(next(loaded))
            else:
                widest = reduce(DType.promote, tensors) if tensors else self.outputs[0].dtype
                dtypes.append(widest.of_arithmetic if widest.is_fp8 and step.op not in _MOVING else widest)
        return dtypes

    @cached_property
    def compute(self) -> dict[IndexSpace, float]:
        """Seconds of arithmetic per point of each index space, if every multiprocessor worked on it."""
        seconds: dict[IndexSpace, float] = {}
        spaces = spaces_of(self.sketch)
        for step, dtype in zip(self.sketch.steps, self.dtypes, strict=True):
            work, rate = _work(step, [spaces[i] for i in step.inputs]), self.device.vector_flops
            if step.op in PRODUCTS:
                rate = self.device.product_efficiency * self._product_rate(step, dtype)
                for right in self._computed_rights(step):
                    space = spaces[right]._replace(repeated=step.in_loop)
                    seconds[space] = seconds.get(space, 0.0) + self.device.computed_factor_seconds.get(dtype, 0.0)
                work = self._product_work(step, work, spaces)
            for space, flops in work:
                seconds[space] = seconds.get(space, 0.0) + flops / rate
        return seconds

    def _product_work(self, product: Step, sums: list[_Work], spaces: Sequence[IndexSpace]) -> list[_Work]:
        """The work of a product, whose factors each block reads that multiplies them, in each iteration that does."""
        reading = self.device.operations_of_reading
        if not reading:
            return sums
        weights = self._weights(product)
        factors = [
            (spaces[i]._replace(repeated=product.in_loop), reading if i in weights else reading * self.device.product_left)
            for i in product.inputs
        ]
        return [*factors, *((space, self.device.operations_of_sums) for space, _ in sums)]

    def _weights(self, product: Step) -> list[int]:
        """Of each two factors the one that alone is loaded, else that on the right."""
        steps = self.sketch.steps
        return [
            left if steps[left].leaf is not None and steps[right].leaf is None else right
            for left, right in self._factors(product)
        ]

    def _computed_rights(self, product: Step) -> list[int]:
        """The right factors of a product that the block computes."""
        if not self.device.computed_factor_seconds:
            return []
        steps = self.sketch.steps
        return [right for _, right in self._factors(product) if steps[right].leaf is None and steps[right].op not in _MOVING]

    def _factors(self, product: Step) -> list[tuple[int, int]]:
        """The left and the right factor of each matmul that a product becomes."""
        half = len(product.inputs) // 2
        pairs = list(zip(product.inputs[:half], product.inputs[half:], strict=True))
        if half == 1 and is_turned(self._dims[product.inputs[0]], self._dims[product.inputs[1]], product.reduced):
            return [(right, left) for left, right in pairs]
        return pairs

    @cached_property
    def _dims(self) -> list[Dims]:
        """The axes of the dimensions of every step."""
        return dims_of(self.sketch.steps)

    def _product_rate(self, product: Step, dtype: DType) -> float:
        """Computed factors of fp16 go in TF32, but for exponentials, which safe softmax keeps below 1, and what is chosen of
        numbers of fp16 (`lower/narrowing.py`). Of sums of several products it is the lowest rate."""
        steps = self.sketch.steps
        in_fp16 = all(steps[i].op == "exp" or _is_in_fp16(steps, i) for i in product.inputs)
        if dtype is DType.FP16 and self.device.tf32_flops is not None and not in_fp16:
            return self.device.tf32_flops
        types = [self.dtypes[i] if steps[i].leaf is not None else dtype for i in product.inputs]
        half = len(types) // 2
        return min(self.device.product_rate(*pair, dtype) for pair in zip(types[:half], types[half:], strict=True))

    @cached_property
    def cut_axes(self) -> CutAxes:
        """What the dimensions of the grid may cut (of each tensor equal parts are contiguous), and the loop's axis."""
        tensors = [transfer.slots for transfer in self.transfers]
        groups = (group for group in self.sketch.grid_axes if cuttable_together(group, tensors))
        return tuple(groups), self.sketch.loop_axis

    @cached_property
    def steps_in_loop(self) -> int:
        """Steps that every iteration takes."""
        return sum(step.in_loop for step in self.sketch.steps)

    @cached_property
    def live_sets(self) -> tuple[LiveSet, ...]:
        """What is live together at some operator and is not part of what is live at another."""
        return _live_sets(self.sketch, tuple(self.dtypes), self.outputs, self.device.operands_in_place)


def _is_in_fp16(steps: Sequence[Step], index: int) -> bool:
    """Whether lowering knows that fp16 has the numbers of a step where it has those that are loaded."""
    step = steps[index]
    if step.scalar is not None and step.is_constant:
        return DType.FP16.has(float(step.scalar))
    if step.op == "mul":  # by name: by -1 it negates
        others = [i for i in step.inputs if steps[i].scalar != _MINUS_ONE]
        return len(others) < len(step.inputs) and all(_is_in_fp16(steps, i) for i in others)
    if step.op in _MOVING:
        return all(_is_in_fp16(steps, i) for i in step.inputs)
    picked = [step.inputs[place] for place in OPERATORS[step.op].picks] if step.op in OPERATORS else []
    return step.leaf is not None or (bool(picked) and all(_is_in_fp16(steps, i) for i in picked))


@dataclass(frozen=True, slots=True)
class _BlockNode:
    """A node of the block graph that a sketch becomes: what it makes, bytes per point, and the nodes whose memory it reads."""

    space: IndexSpace
    width: int
    reads: tuple[int, ...]
    in_loop: bool = False
    accumulates: bool = False


LiveSet = tuple[tuple[IndexSpace, float], ...]
"""Bytes per point of each index space that tensors take at one moment."""


@lru_cache(maxsize=1 << 14)
def _live_sets(
    sketch: Sketch, dtypes: tuple[DType, ...], outputs: tuple[KernelOutput, ...], in_place: bool
) -> tuple[LiveSet, ...]:
    nodes = _block_nodes(sketch, dtypes, outputs, in_place)
    accumulators = [index for index, node in enumerate(nodes) if node.accumulates]
    inside = [index for index, node in enumerate(nodes) if node.in_loop]
    births, deaths = (np.array(ends) for ends in live_ranges([node.reads for node in nodes], accumulators, inside))
    spaces = list(dict.fromkeys(node.space for node in nodes))
    widths = np.zeros((len(nodes), len(spaces)))
    for index, node in enumerate(nodes):
        widths[index, spaces.index(node.space)] = node.width
    instants = np.arange(len(nodes))[:, None]
    totals = np.unique(((births <= instants) & (instants <= deaths)) @ widths, axis=0)
    within = (totals[:, None] <= totals[None, :]).all(axis=2)  # of itself, too
    widest = totals[within.sum(axis=1) == 1]
    return tuple(tuple((space, width) for space, width in zip(spaces, row, strict=True) if width) for row in widest)


def _block_nodes(sketch: Sketch, dtypes: Sequence[DType], outputs: Sequence[KernelOutput], in_place: bool) -> list[_BlockNode]:
    """The nodes `mugraph.search.scheduling.emission` makes of a sketch; views and savers own nothing and only read."""
    nodes: list[_BlockNode] = []
    owner: dict[int, int] = {}
    spaces = spaces_of(sketch)
    for index, step in enumerate(sketch.steps):
        reads = tuple(owner[i] for i in step.inputs)
        owner[index] = len(nodes)
        if step.leaf is not None:
            nodes.append(_BlockNode(spaces[index], 0 if in_place else dtypes[index].bytes, reads, step.in_loop))
        elif step.is_constant:
            nodes.append(_BlockNode(spaces[index], 0, reads, step.in_loop))
        elif step.op == "carry" and _is_view(sketch.steps[step.inputs[0]]):
            (owner[index],) = reads
        elif is_reduction(step.op):
            left = spaces[step.inputs[0]]
            for axis in sorted(step.reduced):
                left = left._replace(axes=left.axes - {axis})
                nodes.append(_BlockNode(left, _computed_bytes(dtypes[index]), reads, step.in_loop))
                reads = (len(nodes) - 1,)
            owner[index] = len(nodes) - 1
        else:
            nodes.append(_BlockNode(spaces[index], _computed_bytes(dtypes[index]), reads, step.in_loop, step.op in _ACCUMULATORS))
    for goal, output in zip(sketch.goals, outputs, strict=True):
        _save(nodes, owner[goal], spaces[goal].axes, dtypes[goal], output)
    return nodes


def _save(nodes: list[_BlockNode], result: int, axes: AxisSet, dtype: DType, output: KernelOutput) -> None:
    """Repeat a result along the axes it lacks, cast it, and read it once more: the saver."""
    for axis in (axis for slot in output.slots for axis in slot if axis not in axes):
        axes |= {axis}
        nodes.append(_BlockNode(IndexSpace(axes), _computed_bytes(dtype), (result,)))
        result = len(nodes) - 1
    if dtype is not output.dtype:
        nodes.append(_BlockNode(IndexSpace(axes), _computed_bytes(output.dtype), (result,)))
        result = len(nodes) - 1
    nodes.append(_BlockNode(IndexSpace(frozenset()), 0, (result,)))


def _computed_bytes(dtype: DType) -> int:
    """Bytes of an element that a block computes."""
    return max(dtype.bytes, DType.FP32.bytes)


def spaces_of(sketch: Sketch) -> list[IndexSpace]:
    """The points of the result of every step."""
    spaces: list[IndexSpace] = []
    for step in sketch.steps:
        operands = [spaces[i] for i in step.inputs]
        # by name: steps that combine iterations element by element; concatenation is the other way of the accumulator row
        summed = step.op in ("accumulate", "accumulate_max", "rescale")
        # by name: as above
        unsummed = summed or (step.op != "concat" and any(x.cut and sketch.loop_axis in x.axes for x in operands))
        cut = sketch.loop_axis in step.axes and not step.whole and (step.in_loop or unsummed)
        spaces.append(IndexSpace(step.axes, cut, step.in_loop))
    return spaces


def _is_view(load: Step) -> bool:
    """Whether an operand is carried past the loop as it lies: its dimensions are not split into axes first."""
    return load.leaf is not None and all(len(slot) <= 1 for slot in load.leaf.slots)


_Work = tuple[IndexSpace, float]
"""The points of an index space, and operations per point."""


def _work(step: Step, operands: Sequence[IndexSpace]) -> list[_Work]:
    """The points one step works on, and its operations per point; of concatenations' product, those of the two it consists of."""
    space = IndexSpace(step.axes | step.reduced, any(x.cut for x in operands), step.in_loop)
    # by name: steps that are not elementwise reduce sets of axes or lead out of the for-loop, as no single row does
    match step.op:
        case "load" | "constant" | "carry" | "concat":
            return []
        case "contract" | "concat_contract":
            summed = sums(step.op, step.reduced, [x.axes for x in operands])
            return [(space._replace(axes=step.axes | axes), 2.0) for axes in summed]
        case "accumulate" | "accumulate_max" | "rescale":
            return [(operands[0], 4.0 if step.op == "rescale" else 1.0)]
        case "sum" | "max":
            return [(space, 1.0)]
    return [(space, float(OPERATORS[step.op].cost))]
