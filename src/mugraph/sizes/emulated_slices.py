"""Kernels that compute first slices, where their machine is not: blocks of them on its emulator, beside those for all slices.

On such a host nothing of a range of sizes runs. What is saved there is compared as a whole where it is loaded and can run
(`mugraph.sizes.sliced_kernels`); here the blocks are run that decide whether a number of slices may be an argument: those with
the last rows of a call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mugraph.errors import MugraphError
from mugraph.ir.dtypes import DType
from mugraph.lower.counted_slices import FirstSlices
from mugraph.lower.phases import Phase
from mugraph.lower.tile_form import Kernel, Matmul, Reduce
from mugraph.runtime import Executable
from mugraph.support.deadline import Deadline
from mugraph.targets.emulator import Emulator, emulator_of
from mugraph.targets.machine import Launched

_LONGEST = 20.0
"""Seconds that all blocks are expected to take at most; kernels that take longer are not looked at, and not used."""

Bits = npt.NDArray[np.unsignedinteger[Any]]


def agree_in_blocks(
    executable: Executable, launches: Mapping[int, Launched], sources: Mapping[str, str], capacity: int, deadline: Deadline
) -> bool:
    """Whether kernels that compute first slices of `capacity` compute in their last blocks, at a few numbers of slices, just what
    those of an executable do, and touch nothing behind: False, too, where that cannot be seen here, or in time."""
    emulator = emulator_of(executable.machine)
    if emulator is None:
        return False
    counts = sorted({1, capacity // 2 + 1, max(capacity - 1, 1)})
    sliced = [index for index, launch in launches.items() if emulator.form(launch.kernel).slices is not None]
    seconds = _seconds(emulator, [launches[index] for index in sliced], len(counts))
    if seconds > _LONGEST or not deadline.allows(seconds):
        return False
    pairs = [
        _Pair(emulator, executable.launches[index], executable.sources, launches[index], sources, capacity) for index in sliced
    ]
    try:
        return all(not deadline.passed and pair.agrees(executable, count) for pair in pairs for count in counts)
    except MugraphError:  # nothing of this runs here
        return False


def _seconds(emulator: Emulator, launches: Sequence[Launched], counts: int) -> float:
    """About how long the blocks take in all: two of each kernel at each number of slices, by both."""
    total = 0.0
    for form in (emulator.form(launch.kernel) for launch in launches):
        copied = sum(form.buffer(name).bytes for name in (*form.inputs, *form.outputs))
        total += 2 * counts * (copied * emulator.seconds_per_byte + 2 * _block_seconds(form, emulator))
    return total


def _block_seconds(form: Kernel, emulator: Emulator) -> float:
    """About how long a block takes."""
    seconds = 0.0
    for phase in Phase:
        for statement in form.of_phase(phase):
            work = math.prod(statement.target.shape)
            if isinstance(statement, Matmul | Reduce) and statement.sources:
                work *= statement.sources[0].shape[-1]
            times = form.loop if phase is Phase.BODY else 1
            seconds += times * (work * emulator.seconds_per_operation + emulator.seconds_per_tile)
    return seconds


class _Pair:
    """A kernel for all slices, and the one that computes the first of them."""

    def __init__(
        self,
        emulator: Emulator,
        whole: Launched,
        sources_of_whole: Mapping[str, str],
        first: Launched,
        sources: Mapping[str, str],
        capacity: int,
    ) -> None:
        self.emulator, self.whole, self.first, self.capacity = emulator, whole, first, capacity
        self.sources_of_whole, self.sources = sources_of_whole, sources
        self.form = emulator.form(first.kernel)

    @property
    def slices(self) -> FirstSlices:
        """How the second one computes slices."""
        assert self.form.slices is not None
        return self.form.slices

    def agrees(self, executable: Executable, count: int) -> bool:
        """Whether the last blocks of both make the same of the rows of so many slices, and nothing is touched that is not
        there."""
        slices, emulator = self.slices, self.emulator
        names = [name for name in self.form.inputs if name != slices.count]
        types = [emulator.runs_as(executable.graph.tensor(value).dtype) for value in self.whole.inputs]
        inputs = {
            name: _numbers(dtype, self.form.buffer(name).elements, number)
            for number, (name, dtype) in enumerate(zip(names, types, strict=True))
        }
        outputs, held = ({name: self._blank(executable, name, some) for name in self.form.outputs} for some in (None, count))
        cut = {name: array[: count * slices.elements(name)] if name in slices.ends else array for name, array in inputs.items()}
        cut[slices.count] = np.array([count], np.int64)
        whole_blocks, blocks = self._blocks(self.form.grid, count), self._blocks(self._grid(count), count)
        if not blocks:
            return False
        emulator.run_blocks(
            self.whole.kernel, self.sources_of_whole, [*inputs.values(), *outputs.values()], whole_blocks, math.inf
        )
        emulator.run_blocks(
            self.first.kernel, self.sources, [*(cut[name] for name in self.form.inputs), *held.values()], blocks, math.inf
        )
        return not emulator.findings and all(self._same(outputs, held, count))

    def _same(self, outputs: Mapping[str, Bits], held: Mapping[str, Bits], count: int) -> Iterator[bool]:
        """For each output whether the rows of the slices are alike."""
        for name, value in zip(self.form.outputs, self.first.outputs, strict=True):
            size, order = self.slices.elements(name), self.first.orders.get(value)
            theirs, ours = outputs[name], held[name]
            if name in self.slices.ends:
                yield np.array_equal(theirs[: len(ours)], ours)
                continue
            if order is not None:
                theirs, ours = order.restored(theirs), order.restored(ours)
            rows = np.arange(len(ours)) % (self.capacity * size) // size < count
            yield np.array_equal(theirs[rows], ours[rows])

    def _grid(self, count: int) -> tuple[int, ...]:
        """That of a launch for so many slices."""
        slices, grid = self.slices, [*self.form.grid]
        if slices.dim is not None:
            grid[slices.dim] = slices.begun(count, grid[slices.dim])
        return tuple(grid)

    def _blocks(self, grid: Sequence[int], count: int) -> list[int]:
        """The first and the last block of a grid that have the last rows; none where the grid has none that has."""
        slices, ends = self.slices, ([0] * len(grid), [size - 1 for size in grid])
        if slices.dim is not None:
            last = (count * slices.rows - 1) // slices.step
            if last >= grid[slices.dim]:
                return []
            for place in ends:
                place[slices.dim] = last
        return list(dict.fromkeys(int(np.ravel_multi_index(place, tuple(grid))) if grid else 0 for place in ends))

    def _blank(self, executable: Executable, name: str, count: int | None) -> Bits:
        """Memory for an output: of all slices, or of those that a launch has."""
        value = self.first.outputs[self.form.outputs.index(name)]
        dtype, elements = self.emulator.runs_as(executable.graph.tensor(value).dtype), self.form.buffer(name).elements
        if count is not None and name in self.slices.ends:
            elements = count * self.slices.elements(name)
        return np.zeros(elements, _WORDS[dtype.bytes])


_WORDS: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def _numbers(dtype: DType, elements: int, seed: int) -> Bits:
    """Bits of normal numbers of a type, and of small whole ones of types of one byte."""
    rng = np.random.default_rng(seed)
    if dtype.bytes == 1:
        return rng.integers(2, size=elements, dtype=np.uint8)
    values = rng.standard_normal(elements, np.float32)
    if dtype is DType.FP16:
        return values.astype(np.float16).view(np.uint16)
    return values.view(np.uint32) if dtype.bytes == 4 else (values.view(np.uint32) >> 16).astype(np.uint16)
