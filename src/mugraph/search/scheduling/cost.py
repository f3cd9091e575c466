"""The cost model: predicted seconds of a recipe under schedules on a described device.

A roofline with three roofs (device memory, cache, arithmetic), the idle multiprocessors of a grid that does not
divide evenly, and fixed costs per launch and loop iteration. It ranks candidates; measurement decides. All
schedules of a recipe are costed at once, as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np

from mugraph.devices import Device
from mugraph.ir.dtypes import DType
from mugraph.ir.liveness import live_ranges
from mugraph.ir.ops import OPERATORS, Call
from mugraph.search.axes import AxisSet, Slots
from mugraph.search.closure.recipe import Recipe, Step
from mugraph.search.scheduling.emission import Output
from mugraph.search.scheduling.space import Floats, Schedules

GENERATED_EFFICIENCY = 0.6
"""Share of the device's matmul rate that generated kernels reach on skinny tiles."""

_ACCUMULATORS = frozenset({"accumulate", "accumulate_max", "rescale", "concat", "carry"})
"""Steps that become accumulators of the block graph."""

NOT_HIDDEN = 0.1
"""Share of the work under the lower roofs that the slowest one does not hide."""


class _Space(NamedTuple):
    """Points a step works on or a tensor has in one block: those over `axes`.

    `cut`: of the loop axis only one iteration's tile; `repeated`: anew in every iteration. A sum over the iterations is
    cut and not repeated where its tiles are still to be summed.
    """

    axes: AxisSet
    cut: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A device tensor a kernel reads or writes: axes, dimensions, bytes per element, and whether in every iteration."""

    space: _Space
    slots: Slots
    width: int


class RecipeCost:
    """A recipe's cost as a function of schedules; the i-th load is of dtype `sources[i]`, the i-th goal saved as `outputs[i]`."""

    def __init__(self, recipe: Recipe, sources: tuple[DType, ...], outputs: tuple[Output, ...], device: Device) -> None:
        self.recipe, self.sources, self.outputs, self.device = recipe, sources, outputs, device
        loads = [step for step in recipe.steps if step.leaf is not None]
        self.transfers = (
            *(
                _Transfer(_Space(step.axes, step.in_loop, step.in_loop), leaf.slots, dtype.bytes)
                for step, leaf, dtype in zip(loads, recipe.leaves, sources, strict=True)
            ),
            *(
                _Transfer(_Space(recipe.steps[goal].axes), output.slots, output.dtype.bytes)
                for goal, output in zip(recipe.goals, outputs, strict=True)
            ),
        )

    @cached_property
    def dtypes(self) -> list[DType]:
        """Element type of every step: that of its widest operand."""
        loaded = iter(self.sources)
        dtypes: list[DType] = []
        for step in self.recipe.steps:
            tensors = [dtypes[i] for i in step.inputs if self.recipe.steps[i].op != "constant"]
            if step.leaf is not None:
                dtypes.append(next(loaded))
            else:
                dtypes.append(reduce(DType.promote, tensors) if tensors else self.outputs[0].dtype)
        return dtypes

    @cached_property
    def compute(self) -> dict[_Space, float]:
        """Seconds of arithmetic per point of each index space, if every multiprocessor worked on it."""
        seconds: dict[_Space, float] = {}
        spaces = _spaces(self.recipe)
        for step, dtype in zip(self.recipe.steps, self.dtypes, strict=True):
            space, flops = _work(step, [spaces[i] for i in step.inputs])
            rate = self.device.vector_flops
            if step.op in ("contract", "concat_contract"):
                rate = GENERATED_EFFICIENCY * self.device.matmul_flops[dtype]
            if flops:
                seconds[space] = seconds.get(space, 0.0) + flops / rate
        return seconds

    def seconds(self, schedules: Schedules) -> Floats:
        """Predicted run times of the kernel."""
        device, blocks, rounds = self.device, schedules.blocks, schedules.rounds(self.device.multiprocessors)
        memory, traffic = schedules.shared((self.transfers, device), self.transferred)
        compute = np.zeros_like(schedules.loop)
        for space, each in self.compute.items():
            compute = compute + each * schedules.points(*space)
        roofs = [memory / device.memory_bandwidth, blocks * traffic / device.cache_bandwidth, blocks * compute]
        slowest = np.maximum.reduce(roofs)
        hidden = sum(roofs) - slowest
        idle = rounds * device.multiprocessors / blocks
        iteration = device.iteration_seconds * sum(step.in_loop for step in self.recipe.steps)
        result: Floats = idle * (slowest + NOT_HIDDEN * hidden) + (device.launch_seconds + rounds * schedules.loop * iteration)
        return result

    def transferred(self, schedules: Schedules) -> tuple[Floats, Floats]:
        """Bytes through device memory, and bytes through the cache per block; the same for many recipes."""
        memory = traffic = np.zeros_like(schedules.loop)
        for transfer in self.transfers:
            waste = self.waste(transfer, schedules)
            memory = memory + waste * (schedules.whole(transfer.space.axes) * transfer.width)
            traffic = traffic + waste * (schedules.points(*transfer.space) * transfer.width)
        return memory, traffic

    def waste(self, transfer: _Transfer, schedules: Schedules) -> Floats:
        """How much more than its bytes a transfer costs because its innermost contiguous runs are short."""
        run = schedules.run(transfer.slots, transfer.space.cut) * transfer.width
        total = schedules.whole(transfer.space.axes) * transfer.width
        result: Floats = np.maximum(1.0, np.minimum(self.device.vector_bytes, total) / run) ** self.device.short_run_exponent
        return result

    def memory(self, schedules: Schedules) -> Floats:
        """Peak bytes of block-level tensors, as `mugraph.ir.liveness.peak_bytes` counts those of the block graph."""
        peak = np.zeros_like(schedules.loop)
        for live in self.live_sets:
            peak = np.maximum(peak, sum(width * schedules.tile(space.axes, space.cut) for space, width in live))
        return peak

    @cached_property
    def live_sets(self) -> tuple[_LiveSet, ...]:
        """What is live together at some operator and is not part of what is live at another."""
        return _live_sets(self.recipe, tuple(self.dtypes), self.outputs, self.device.operands_in_place)


@lru_cache(maxsize=1 << 14)
def recipe_cost(recipe: Recipe, sources: tuple[DType, ...], outputs: tuple[Output, ...], device: Device) -> RecipeCost:
    """The cost model of a recipe, which knows no sizes: the same for every search that meets the recipe."""
    return RecipeCost(recipe, sources, outputs, device)


@dataclass(frozen=True, slots=True)
class _BlockNode:
    """A node of the block graph that a recipe becomes: what it makes, bytes per point, and the nodes whose memory it reads."""

    space: _Space
    width: int
    reads: tuple[int, ...]
    in_loop: bool = False
    accumulates: bool = False


_LiveSet = tuple[tuple[_Space, float], ...]
"""Bytes per point of each index space that tensors take at one moment."""


@lru_cache(maxsize=1 << 14)
def _live_sets(recipe: Recipe, dtypes: tuple[DType, ...], outputs: tuple[Output, ...], in_place: bool) -> tuple[_LiveSet, ...]:
    nodes = _block_nodes(recipe, dtypes, outputs, in_place)
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


def _block_nodes(recipe: Recipe, dtypes: Sequence[DType], outputs: Sequence[Output], in_place: bool) -> list[_BlockNode]:
    """The nodes `mugraph.search.scheduling.emission` makes of a recipe; views and savers own nothing and only read."""
    nodes: list[_BlockNode] = []
    owner: dict[int, int] = {}
    spaces = _spaces(recipe)
    for index, step in enumerate(recipe.steps):
        reads = tuple(owner[i] for i in step.inputs)
        owner[index] = len(nodes)
        if step.leaf is not None:
            nodes.append(_BlockNode(spaces[index], 0 if in_place else dtypes[index].bytes, reads, step.in_loop))
        elif step.op == "constant":
            nodes.append(_BlockNode(spaces[index], 0, reads, step.in_loop))
        elif step.op == "carry" and _is_view(recipe.steps[step.inputs[0]]):
            (owner[index],) = reads
        elif step.op in ("sum", "max"):
            left = spaces[step.inputs[0]]
            for axis in sorted(step.reduced):
                left = left._replace(axes=left.axes - {axis})
                nodes.append(_BlockNode(left, _computed_bytes(dtypes[index]), reads, step.in_loop))
                reads = (len(nodes) - 1,)
            owner[index] = len(nodes) - 1
        else:
            nodes.append(_BlockNode(spaces[index], _computed_bytes(dtypes[index]), reads, step.in_loop, step.op in _ACCUMULATORS))
    for goal, output in zip(recipe.goals, outputs, strict=True):
        _save(nodes, owner[goal], spaces[goal].axes, dtypes[goal], output)
    return nodes


def _save(nodes: list[_BlockNode], result: int, axes: AxisSet, dtype: DType, output: Output) -> None:
    """Repeat a result along the axes it lacks, cast it, and read it once more: the saver."""
    for axis in (axis for slot in output.slots for axis in slot if axis not in axes):
        axes |= {axis}
        nodes.append(_BlockNode(_Space(axes), _computed_bytes(dtype), (result,)))
        result = len(nodes) - 1
    if dtype is not output.dtype:
        nodes.append(_BlockNode(_Space(axes), _computed_bytes(output.dtype), (result,)))
        result = len(nodes) - 1
    nodes.append(_BlockNode(_Space(frozenset()), 0, (result,)))


def _computed_bytes(dtype: DType) -> int:
    """Bytes of an element that a block computes."""
    return max(dtype.bytes, DType.FP32.bytes)


def _spaces(recipe: Recipe) -> list[_Space]:
    """The points of every step's result."""
    spaces: list[_Space] = []
    for step in recipe.steps:
        operands = [spaces[i] for i in step.inputs]
        summed = step.op in ("accumulate", "accumulate_max", "rescale")
        unsummed = summed or (step.op != "concat" and any(x.cut and recipe.loop_axis in x.axes for x in operands))
        spaces.append(_Space(step.axes, step.in_loop or (unsummed and recipe.loop_axis in step.axes), step.in_loop))
    return spaces


def _is_view(load: Step) -> bool:
    """Whether an operand is carried past the loop as it lies: its dimensions are not split into axes first."""
    return load.leaf is not None and all(len(slot) <= 1 for slot in load.leaf.slots)


def _work(step: Step, operands: Sequence[_Space]) -> tuple[_Space, float]:
    """The points one step works on, and its operations per point."""
    space = _Space(step.axes | step.reduced, any(x.cut for x in operands), step.in_loop)
    match step.op:
        case "load" | "constant" | "carry" | "concat":
            return space, 0.0
        case "contract" | "concat_contract":
            return space, 2.0
        case "accumulate" | "accumulate_max" | "rescale":
            return operands[0], 4.0 if step.op == "rescale" else 1.0
        case "sum" | "max":
            return space, 1.0
    return space, float(OPERATORS[step.op].flops(Call(step.op, (), {}), (1,)))
