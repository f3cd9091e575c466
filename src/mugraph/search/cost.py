"""The cost model: predicted seconds of a recipe under schedules on a described device.

A roofline with three roofs (device memory, cache, arithmetic), the idle multiprocessors of a grid that does not
divide evenly, and fixed costs per launch and loop iteration. It ranks candidates; measurement decides. All
schedules of a recipe are costed at once, as arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mugraph.devices import Device
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Tensor
from mugraph.ir.ops import OPERATORS, Call
from mugraph.search.axes import AxisSet, Slots
from mugraph.search.recipe import Recipe, Step

Floats = npt.NDArray[np.float64]

GENERATED_EFFICIENCY = 0.6
"""Share of the device's matmul rate that generated kernels reach on skinny tiles."""

NOT_HIDDEN = 0.1
"""Share of the work under the lower roofs that the slowest one does not hide."""


@dataclass(frozen=True)
class Schedules:
    """Many schedules at once: for each cut axis the number of blocks along it, and the for-loop counts (all of one length)."""

    parts: dict[int, Floats]
    loop: Floats

    @property
    def blocks(self) -> Floats:
        """Thread blocks of each schedule."""
        product = np.ones_like(self.loop)
        for count in self.parts.values():
            product = product * count
        return product


@dataclass(frozen=True, slots=True)
class _Work:
    """Operations of one step: `flops` per point of `space`; matmul-unit work or vector work."""

    space: AxisSet
    flops: float
    matmul: bool
    in_loop: bool


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A device tensor a kernel reads or writes: axes, dimensions, bytes per element, and whether in every iteration."""

    axes: AxisSet
    slots: Slots
    width: int
    in_loop: bool


class RecipeCost:
    """Everything of a recipe's cost that does not depend on the schedule, computed once."""

    def __init__(
        self,
        recipe: Recipe,
        sizes: Sequence[int],
        sources: Sequence[Tensor],
        outputs: Sequence[Slots],
        dtype: DType,
        device: Device,
    ) -> None:
        self.recipe, self.sizes, self.device, self.dtype = recipe, sizes, device, dtype
        self.work = [work for step in recipe.steps if (work := _work(recipe, step)) is not None]
        loads = [step for step in recipe.steps if step.leaf is not None]
        self.reads = [
            _Transfer(step.axes, step.leaf.slots, tensor.dtype.bytes, step.in_loop)
            for step, tensor in zip(loads, sources, strict=True)
            if step.leaf is not None
        ]
        self.writes = [
            _Transfer(recipe.steps[g].axes, slots, dtype.bytes, False) for g, slots in zip(recipe.goals, outputs, strict=True)
        ]

    def points(self, axes: AxisSet, schedules: Schedules, in_loop: bool) -> Floats:
        """Points of an index space per block: all iterations of an in-loop step together."""
        count = np.full_like(schedules.loop, math.prod(self.sizes[axis] for axis in axes))
        for axis in axes & schedules.parts.keys():
            count = count / schedules.parts[axis]
        return count * schedules.loop if in_loop and self.recipe.loop_axis not in axes else count

    def tile_bytes(self, step: Step, schedules: Schedules) -> Floats:
        """Bytes of a step's result inside one block."""
        width = self.dtype.bytes if step.leaf is not None else max(self.dtype.bytes, DType.FP32.bytes)
        size = self.points(step.axes, schedules, False) * width
        return size / schedules.loop if step.in_loop and self.recipe.loop_axis in step.axes else size

    def memory(self, schedules: Schedules) -> Floats:
        """Peak bytes of block-level tensors, each alive from its step to its last use."""
        steps = self.recipe.steps
        last = {index: index for index in range(len(steps))}
        for index, step in enumerate(steps):
            for operand in step.inputs:
                last[operand] = index
        last.update(dict.fromkeys(self.recipe.goals, len(steps)))
        live = peak = np.zeros_like(schedules.loop)
        sizes = [self.tile_bytes(step, schedules) for step in steps]
        for index in range(len(steps)):
            live = live + sizes[index]
            peak = np.maximum(peak, live)
            for operand, end in last.items():
                if end == index:
                    live = live - sizes[operand]
        return peak

    def seconds(self, schedules: Schedules) -> Floats:
        """Predicted run times of the kernel."""
        device, blocks = self.device, schedules.blocks
        matmul = vector = memory = traffic = np.zeros_like(schedules.loop)
        for work in self.work:
            flops = blocks * work.flops * self.points(work.space, schedules, work.in_loop)
            if work.matmul:
                matmul = matmul + flops
            else:
                vector = vector + flops
        compute = matmul / (GENERATED_EFFICIENCY * device.matmul_flops[self.dtype]) + vector / device.vector_flops
        for transfer in (*self.reads, *self.writes):
            waste = self.waste(transfer, schedules)
            memory = memory + waste * math.prod(self.sizes[axis] for axis in transfer.axes) * transfer.width
            traffic = traffic + waste * blocks * self.points(transfer.axes, schedules, transfer.in_loop) * transfer.width
        rounds = np.ceil(blocks / device.multiprocessors)
        idle = rounds * device.multiprocessors / blocks
        roofs = [memory / device.memory_bandwidth, traffic / device.cache_bandwidth, compute]
        slowest = np.maximum.reduce(roofs)
        hidden = sum(roofs) - slowest
        iteration = device.iteration_seconds * sum(step.in_loop for step in self.recipe.steps)
        overhead = device.launch_seconds + rounds * schedules.loop * iteration
        result: Floats = idle * (slowest + NOT_HIDDEN * hidden) + overhead
        return result

    def waste(self, transfer: _Transfer, schedules: Schedules) -> Floats:
        """How much more than its bytes a transfer costs because its innermost contiguous runs are short."""
        run = np.full_like(schedules.loop, transfer.width)
        whole = np.ones_like(schedules.loop, dtype=bool)
        for slot in reversed(transfer.slots):
            for axis in reversed(slot):
                parts = schedules.parts.get(axis, np.ones_like(schedules.loop))
                if transfer.in_loop and axis == self.recipe.loop_axis:
                    parts = parts * schedules.loop
                run = np.where(whole, run * self.sizes[axis] / parts, run)
                whole = whole & (parts == 1)
        total = math.prod(self.sizes[axis] for axis in transfer.axes) * transfer.width
        result: Floats = np.maximum(1.0, min(self.device.vector_bytes, total) / run) ** self.device.short_run_exponent
        return result


def _work(recipe: Recipe, step: Step) -> _Work | None:
    space = step.axes | step.reduced
    match step.op:
        case "load" | "constant" | "carry" | "concat":
            return None
        case "contract" | "concat_contract":
            return _Work(space, 2.0, True, step.in_loop)
        case "accumulate" | "accumulate_max" | "rescale":
            return _Work(recipe.steps[step.inputs[0]].axes, 4.0 if step.op == "rescale" else 1.0, False, True)
        case "sum" | "max":
            return _Work(space, 1.0, False, step.in_loop)
    call = Call(step.op, (), {})
    return _Work(space, float(OPERATORS[step.op].flops(call, (1,))), False, step.in_loop)
