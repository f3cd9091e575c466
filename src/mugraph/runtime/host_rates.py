"""What this host reaches: bytes a second that kernels read, and products by rows, of a library and of generated kernels.

One core alone is timed by the time of the processor that calls take, which other work on the machine disturbs least; all cores
together by the clock, the best of a few calls. Products are of sizes at which weights come from the last cache. What comes out
has the form of a row of `mugraph/devices/cpu.json`; costs read it from the user's store (`mugraph.devices.measured_host`).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from functools import partial
from typing import Any

from mugraph.devices.device import RightFactor
from mugraph.devices.host import kernel_threads
from mugraph.errors import TargetUnavailable
from mugraph.host.arrays import torch_arrays
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Level, Tensor
from mugraph.runtime.executable import build

_READ = 4096, 4096
"""Of a tensor of fp32 that kernels sum up by rows: 64 MiB, more than a core has caches of its own."""
_READ_BLOCKS = 64
_DEPTH, _COLUMNS = 2048, 1024
_BLOCKS = 2
"""Of kernels, which have a part of the columns each: searches find such kernels for one core."""
_MATRICES = 32
"""Of a batch of right factors, as large together as a single one: each has a sixteenth of the depth and half of the columns."""
_LIBRARY_ROWS = (1, 16, 64, 512)
_BATCH_ROWS = (16, 64, 128)
"""Of each left matrix of a batch: what copying the right one takes beyond multiplying shows by fewer rows."""
_KERNEL_ROWS = {RightFactor.PACKED: (16, 128), RightFactor.PLAIN: (16, 64)}
_TYPES = {DType.FP32: "float32", DType.BF16: "bfloat16"}
"""By what PyTorch calls them."""
_ROUNDS = 5
_Product = tuple[RightFactor, str, DType, int]
"""What is multiplied by, who multiplies, in which type, and of how many rows."""


def measured_host() -> dict[str, Any]:
    """The rates of this host; takes some seconds, of which compiling kernels has most where they are not kept. Raises
    TargetUnavailable without PyTorch or a compiler."""
    try:
        import torch
    except ModuleNotFoundError:
        raise TargetUnavailable("rates of this host are measured beside PyTorch's products: pip install torch") from None
    threads = kernel_threads()
    reads, products = _reading(torch), dict(_products(torch))
    with _threads(torch, threads):
        together = min(_seconds(reads, time.perf_counter) for _ in range(2 * _ROUNDS))
    seconds: dict[_Product, list[float]] = {product: [] for product in products}
    alone: list[float] = []
    with _threads(torch, 1):
        for call in (reads, *products.values()):
            call()
        for _ in range(_ROUNDS):
            alone.append(_seconds(reads, time.process_time))
            for product, call in products.items():
                seconds[product].append(_seconds(call, time.process_time))
    size = _READ[0] * _READ[1] * DType.FP32.bytes
    per_core = size / statistics.median(alone)
    load = f", at a load of {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return {
        "about": f"measured {date.today().isoformat()}, {threads} threads{load}",
        "memory": {"bandwidth_per_core": per_core, "bandwidth_most": max(per_core, size / together)},
        **_rates({product: statistics.median(each) for product, each in seconds.items()}),
    }


def _rates(seconds: dict[_Product, float]) -> dict[str, Any]:
    """Of each type the highest rate, and of each kind of product its shares of that by rows."""
    flops = {product: 2.0 * product[-1] * _DEPTH * _COLUMNS / each for product, each in seconds.items()}
    most = {dtype: max(rate for product, rate in flops.items() if product[2] is dtype) for dtype in {each[2] for each in flops}}
    kinds: dict[str, Any] = {}
    for (by, who, dtype, rows), rate in flops.items():
        kinds.setdefault(str(by), {}).setdefault(who, {}).setdefault(str(dtype), {})[str(rows)] = round(rate / most[dtype], 4)
    return {"matmul_flops_per_core": {str(dtype): most[dtype] for dtype in _TYPES if dtype in most}, "products": kinds}


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    before = clock()
    call()
    return clock() - before


@contextmanager
def _threads(torch: Any, count: int) -> Iterator[None]:
    """That many threads for calls of PyTorch and of kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _reading(torch: Any) -> Callable[[], object]:
    """A call that reads a tensor and writes next to nothing."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(_READ_BLOCKS,))
    x = kernel.input("x", _READ, DType.FP32)
    rows = block.iterator(0, kernel.tensor(x), (0,), None)
    sums = block.add("sum", rows, dim=1, size=_READ[1])
    body = block.build([block.add("output_saver", sums, omap=(0,))])
    executable, numbers = build(kernel.build(kernel.graph_defined(body, [x]))), _filled(torch, _READ, DType.FP32)
    return partial(executable, numbers)


def _products(torch: Any) -> Iterator[tuple[_Product, Callable[[], object]]]:
    """The products that there are here, each as a call, its weights packed where they are to be."""
    arrays = torch_arrays()
    for dtype in _TYPES:
        weight = _filled(torch, (_DEPTH, _COLUMNS), dtype)
        lefts = {rows: _filled(torch, (rows, _DEPTH), dtype) for rows in {*_LIBRARY_ROWS, *sum(_KERNEL_ROWS.values(), ())}}
        packs = arrays.packs(Tensor((_DEPTH, _COLUMNS), dtype))
        packed = arrays.pack(weight) if packs else None
        for rows in _LIBRARY_ROWS:
            yield (RightFactor.PLAIN, "library", dtype, rows), partial(torch.matmul, lefts[rows], weight)
            if packs:
                yield (RightFactor.PACKED, "library", dtype, rows), partial(arrays.packed_product, lefts[rows], packed)
        for by, counts in _KERNEL_ROWS.items():
            for rows in counts:
                yield (by, "kernels", dtype, rows), partial(build(_product(rows, dtype, by)), lefts[rows], weight)
        keys = _filled(torch, (_MATRICES, _COLUMNS // 2, _DEPTH // 16), dtype)
        for rows in _BATCH_ROWS:
            queries = _filled(torch, (_MATRICES, rows, _DEPTH // 16), dtype)
            yield (RightFactor.BATCHED, "library", dtype, rows), partial(torch.matmul, queries, keys.transpose(1, 2))
            yield (RightFactor.BATCHED, "kernels", dtype, rows), partial(build(_scores(rows, dtype)), queries, keys)


def _product(rows: int, dtype: DType, by: RightFactor) -> Graph:
    """A product as a kernel."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(_BLOCKS,))
    x, w = kernel.input("x", (rows, _DEPTH), dtype), kernel.input("w", (_DEPTH, _COLUMNS), dtype)
    factors = [block.iterator(0, kernel.tensor(x), (None,), None), block.iterator(1, kernel.tensor(w), (1,), None)]
    body = block.build([block.add("output_saver", block.add("matmul", *factors), omap=(1,))])
    graph = kernel.build(kernel.graph_defined(body, [x, w]))
    return graph.with_constants(["w"]) if by is RightFactor.PACKED else graph


def _scores(rows: int, dtype: DType) -> Graph:
    """Products with each matrix of a batch, as of queries and keys, as a kernel."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(_BLOCKS,))
    shapes = {"q": (_MATRICES, rows, _DEPTH // 16), "k": (_MATRICES, _COLUMNS // 2, _DEPTH // 16)}
    q, k = (kernel.input(name, shape, dtype) for name, shape in shapes.items())
    queries, keys = (block.iterator(number, kernel.tensor(each), (0,), None) for number, each in enumerate((q, k)))
    scores = block.add("matmul", queries, block.add("transpose", keys, permutation=(0, 2, 1)))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", scores, omap=(0,))]), [q, k]))


def _filled(torch: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """A tensor of ones, whose pages are there."""
    return torch.ones(shape, dtype=getattr(torch, _TYPES[dtype]))
