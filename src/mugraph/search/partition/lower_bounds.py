"""Lower bounds of launches: each tensor crosses device memory once, contractions run at the best rate there is, and functions are
applied to every element.

No kernel the cost model (`mugraph.search.scheduling.cost_table`) knows for a derivation is predicted to be faster, so what such a
bound prunes could not have won.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mugraph.algebra.linearity import is_linear
from mugraph.devices import Device
from mugraph.devices.device import ProductRate
from mugraph.ir.axes import AxisProgram, AxisSet, Term
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Tensor
from mugraph.ir.ops import OPERATORS
from mugraph.search.closure.sketch import Sketch, sums
from mugraph.search.scheduling.cost_table import NOT_HIDDEN
from mugraph.search.work_model import operations

LIBRARY_EFFICIENCY = 0.8
"""Share of the device's matmul rate a vendor library reaches (MKL and oneDNN: 0.84 to 0.91 at 2048 cubed), unless the device's
description knows better (`Device.library_products`)."""

LIBRARY_FULL_ROWS = 32
"""Rows (and columns) from which a library reaches that share; below, in proportion (MKL at 8 rows: 0.18)."""

_LIBRARY = ProductRate.of(LIBRARY_EFFICIENCY, LIBRARY_FULL_ROWS)

LIBRARY_DEPTH = 64
"""Of the inner dimension of a product that a kernel of a GPU's library takes in one iteration of its own loop."""

_LIBRARY_TENSORS = 3
"""That a library's product reads and writes."""


def best_efficiency(device: Device) -> float:
    """Share of the device's matmul rate that no product exceeds."""
    rates = (device.library_products, *(each.library for each in device.products.values()))
    shares = (rate.best for by_dtype in rates for rate in by_dtype.values())
    return max(device.product_efficiency, LIBRARY_EFFICIENCY, *shares)


def library_iterations(depth: int, device: Device) -> float:
    """Seconds that a library's product spends between the steps along its inner dimension of size `depth`.

    None on a CPU, where a step is as long as the caches allow.
    """
    return 0.0 if device.operands_in_place else math.ceil(depth / LIBRARY_DEPTH) * device.iteration_seconds


def library_efficiency(device: Device, dtype: DType, rows: int, columns: int, batch: int = 1) -> float:
    """Share of the device's matmul rate that a library reaches on a product of so many rows and columns, whichever it calls rows:
    less on few, unless it multiplies elements of `dtype` one by one. Those of all products of a `batch` count, unless rates were
    measured, which are those of the rows of each."""
    rate = device.library_products.get(dtype)
    each = 1 if rate is None else batch
    rate, (fewer, more) = rate or _LIBRARY, sorted((rows / each, columns / each))
    return rate.of_rows(fewer) * min(1.0, more / rate.first)


def library_seconds(
    device: Device,
    dtype: DType,
    rows: int,
    columns: int,
    depth: int,
    work: float,
    moved: float,
    scattered: float = 0.0,
    batch: int = 1,
) -> float:
    """Predicted seconds of a library's product of elements of `dtype`: so many rows and columns (those of all products of a
    `batch`), `depth` terms each, `work` operations and `moved` bytes. A CPU's library copies factors of bf16 first whose
    matrices are `scattered`, in so many bytes, among those of the same batch."""
    memory = moved / device.memory_bandwidth
    rate = device.matmul_flops.get(dtype, device.matmul_flops[DType.FP32])
    compute = work / (library_efficiency(device, dtype, rows, columns, batch) * rate)
    slowest, other = max(memory, compute), min(memory, compute)
    copies = device.operands_in_place and dtype is DType.BF16
    copying = 2 * scattered / device.memory_bandwidth if copies else 0.0
    return slowest + NOT_HIDDEN * other + copying + library_iterations(depth, device) + device.launch_seconds


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds of memory traffic, arithmetic and launches on a device; products are of what is read, or of elements of `dtype`.

    Kernels run at least a share `running` of the iterations of their loops: masks hide the others.
    """

    device: Device
    dtype: DType
    tensor_of: Callable[[int], Tensor]
    running: float = 1.0

    def seconds(self, memory: float, compute: float, launches: int = 1) -> float:
        """All launches together; `memory` and `compute` are sums of their seconds. Never more than the sum of each one's."""
        return max(memory, compute) + NOT_HIDDEN * min(memory, compute) + launches * self.device.launch_seconds

    def least(self, memory: float, tensors: int) -> float:
        """No muGraph takes less that reads and writes so many tensors, in `memory` seconds of device memory.

        What one generated kernel of a GPU moves passes through the last cache, too. A library's product, which the cost model
        has at the rate of memory alone, has three tensors; with more of them it is one launch of two.
        """
        drawn = self.running * memory * self.device.memory_bandwidth / self.device.cache_bandwidth
        generated = self.seconds(memory, 0.0 if self.device.operands_in_place else drawn)
        return min(generated, self.seconds(memory, 0.0, launches=1 if tensors <= _LIBRARY_TENSORS else 2))

    def transfer(self, elements: int, dtype: DType) -> float:
        """Reading or writing a device tensor once."""
        return elements * dtype.bytes / self.device.memory_bandwidth

    def reading(self, source: int) -> float:
        """Reading a program input or an intermediate once."""
        tensor = self.tensor_of(source)
        return self.transfer(tensor.elements, tensor.dtype)

    def compute(self, program: AxisProgram, term: Term, alone: bool) -> float:
        """The arithmetic of one term; only contractions count. A library may do one that has a launch `alone`."""
        if term.op != "contract":
            return 0.0
        factors = [program.terms[operand].axes for operand in term.inputs]
        work = self.operations(program, term.axes | term.reduced, factors) / self.device.product_efficiency
        if alone:
            work = min(work, flops(program, term) / self.library_efficiency(program, term))
        return self.running * work / self.product_rate(term.source for _, term in program.loads())

    def operations(self, program: AxisProgram, axes: AxisSet, factors: Sequence[AxisSet]) -> float:
        """What a product over `axes` of two factors counts for in kernels, which read each of their elements once at least: those
        of the smaller one as the right factor's, whichever it is."""
        points = math.prod(program.sizes[axis] for axis in axes)
        smaller, larger = sorted(math.prod(program.sizes[axis] for axis in each) for each in factors)
        reading = (smaller + self.device.product_left * larger) * self.device.operations_of_reading
        return points * self.device.operations_of_sums + reading

    def product_rate(self, sources: Iterable[int]) -> float:
        """The highest rate of products of some program inputs and intermediates, and of what is computed of these."""
        return self.device.best_product_rate((self.tensor_of(source).dtype for source in sources), self.dtype)

    def function(self, program: AxisProgram, term: Term) -> float:
        """The arithmetic of one term that every kernel with this operator does at each point; 0 of all others."""
        if not is_function(program, term):
            return 0.0
        points = math.prod(program.sizes[axis] for axis in term.axes)
        return self.running * points * operations(term.op) / self.device.vector_flops

    def library_efficiency(self, program: AxisProgram, product: Term) -> float:
        """Share of the device's matmul rate a library reaches on one product: less on few rows or columns."""
        left, right = (program.terms[i].axes & product.axes for i in product.inputs)
        rows, columns, batch = (math.prod(program.sizes[axis] for axis in axes) for axes in (left, right, left & right))
        return library_efficiency(self.device, self.dtype, rows, columns, batch)

    def of(self, program: AxisProgram, produces: tuple[int, ...], libraries: bool = False) -> float:
        """The program in one launch; with `libraries`, as if they did its contractions for nothing but the time they take."""
        alone = libraries or sum(bool(term.inputs) for term in program.terms) == 1
        compute = sum(self.compute(program, term, alone) for term in program.terms)
        return self.seconds(self.memory(program, produces), compute)

    def of_launches(self, program: AxisProgram, sketch: Sketch, produces: tuple[int, ...], efficiency: float) -> float:
        """No two launches or more that a derivation is cut into take less; products run at most at `efficiency`."""
        read = sum(map(self.reading, {leaf.source for leaf in sketch.leaves}))
        work = sum(
            min(
                self.operations(program, axes, factors) / self.device.product_efficiency,
                2.0 * math.prod(program.sizes[axis] for axis in axes) / efficiency,
            )
            for axes, factors in _products(sketch)
        )
        compute = self.running * work / self.product_rate(leaf.source for leaf in sketch.leaves)
        return self.seconds(read + self.writing(program, produces), compute, launches=2)

    def memory(self, program: AxisProgram, produces: tuple[int, ...]) -> float:
        """Reading each of a program's inputs and writing its outputs once."""
        return sum(map(self.reading, {term.source for _, term in program.loads()})) + self.writing(program, produces)

    def writing(self, program: AxisProgram, produces: tuple[int, ...]) -> float:
        """Writing each of a program's outputs once."""
        dtypes = (self.tensor_of(source).dtype for source in produces)
        return sum(
            self.transfer(elements(program, term), dtype) for (term, _), dtype in zip(program.outputs, dtypes, strict=False)
        )


@lru_cache(maxsize=1 << 14)
def _products(sketch: Sketch) -> tuple[tuple[AxisSet, tuple[AxisSet, AxisSet]], ...]:
    """The axes that each product of a derivation runs over, and those of its factors."""
    found: list[tuple[AxisSet, tuple[AxisSet, AxisSet]]] = []
    for step in sketch.steps:
        if step.op in ("contract", "concat_contract"):
            operands = [sketch.steps[operand].axes for operand in step.inputs]
            pairs = zip(operands[: len(operands) // 2], operands[len(operands) // 2 :], strict=True)
            found += [(step.axes | axes, pair) for axes, pair in zip(sums(step.op, step.reduced, operands), pairs, strict=True)]
    return tuple(found)


def is_function(program: AxisProgram, term: Term) -> bool:
    """Whether a term is an elementwise operator that is linear in none of its operands, nor in several together.

    A for-loop may apply others once to a sum of slices, which has fewer points than the term.
    """
    if term.op not in OPERATORS or not OPERATORS[term.op].elementwise or not term.inputs:
        return False
    tensors = [position for position, operand in enumerate(term.inputs) if not program.terms[operand].is_constant]
    some = itertools.chain.from_iterable(itertools.combinations(tensors, count) for count in range(1, len(tensors) + 1))
    return not any(is_linear(term.op, positions) for positions in some)


def flops(program: AxisProgram, product: Term) -> float:
    """Operations of a contraction."""
    return 2.0 * math.prod(program.sizes[axis] for axis in product.axes | product.reduced)


def elements(program: AxisProgram, term: int) -> int:
    """Elements of a term's tensor."""
    return math.prod(program.sizes[axis] for axis in program.terms[term].axes)
