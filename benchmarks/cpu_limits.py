"""What a call on a CPU takes at least: reading what it must read once, and its products as the library multiplies.

Both are measured as contestants are, in the same process. `reading`: all threads together sum up memory of as many bytes as the
program's inputs and outputs have (`mugraph.devices.roofline`), so that what stays in a cache between calls is read from there.
`products`: a call for each product of the program, in the library's fastest way: PyTorch's own, or oneDNN's with a weight that
was packed before. Which of the two binds a case, the description of this machine says: the one that takes longer at the rates
there. Fused kernels may take less time than the library's products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from contestants import Call
from mugraph.devices import device_for
from mugraph.devices.roofline import arithmetic_seconds, compulsory_bytes, memory_seconds
from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.host.thread_pool import load_thread_pool
from mugraph.ir import GraphBuilder, Level
from mugraph.ir.graph import Graph, Node, owner_of
from mugraph.ir.ops import is_contraction
from mugraph.results.data import Report
from mugraph.runtime import build
from mugraph.runtime.benchmarking import quickest
from mugraph.selection.inputs import random_tensors, traceable
from mugraph.selection.problems import function_problem
from mugraph.targets.cpu.compiler import find_compiler, load_shared
from mugraph.targets.cpu.printer import header
from mugraph.targets.cpu.products import STREAM_AHEAD, WIDE_AHEAD

READING, PRODUCTS = "reading", "products"
FUNCTION = "function"
_PIECE = 8
"""Vectors that a thread adds side by side."""
_ALIGNMENT = 64
_READER = f"""
typedef struct {{ const fp32_t *memory; long pieces, ahead, sum; }} reading;

static void read_share(void *data)
{{
    reading *p = data;
    long first, last;
    share(p->pieces, &first, &last);
    vec sums[{_PIECE}] = {{0}};
    for (long piece = first; piece < last; ++piece)
#pragma GCC unroll {_PIECE}
        for (long v = 0; v < {_PIECE}; ++v) {{
            const fp32_t *at = p->memory + ({_PIECE} * piece + v) * LANES;
            __builtin_prefetch((const char *)at + p->ahead, 0, 2);
            sums[v] += load_fp32(at);
        }}
    long sum = 0;
    for (long v = 0; v < {_PIECE}; ++v)
        for (long lane = 0; lane < LANES; ++lane)
            sum += (long)sums[v][lane];
    __atomic_fetch_add(&p->sum, sum, __ATOMIC_RELAXED);
}}

long read_all(const fp32_t *memory, long pieces, long ahead)
{{
    reading p = {{memory, pieces, ahead, 0}};
    launch(read_share, &p, pieces > 1);
    return p.sum;
}}
"""


def what_ran(report: Report) -> str:
    """What a call of a result runs: the function, or kernels, the library's products in them and PyTorch's calls beside them."""
    if not report.found or report.coverage is None:
        return FUNCTION
    coverage = report.coverage
    parts = {"kernels": coverage.mugraphs, "library": coverage.library, "PyTorch": coverage.torch}
    return " + ".join(name for name, amount in parts.items() if amount.bytes)


@dataclass(frozen=True, slots=True)
class Limits:
    """Calls that do what each call of a program must, by name, and the name of those it is bound by."""

    calls: Mapping[str, Call]
    bound: str


def limits(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Limits | None:
    """What a call of a module takes at least; None for what is no program as a whole."""
    try:
        problem = function_problem(trace(module, inputs), module, inputs)
    except MugraphError:
        return None
    program, device = problem.program, device_for("cpu")
    products = list(_products(program, problem.constants))
    calls: dict[str, Call] = {READING: reading(compulsory_bytes(program))}
    calls |= {PRODUCTS: lambda: [product() for product in products]} if products else {}
    by_arithmetic = arithmetic_seconds(program, device) > memory_seconds(program, device)
    return Limits(calls, PRODUCTS if by_arithmetic else READING)


def reading(size: int) -> Call:
    """Calls in which all threads together read so many bytes once, rounded up to whole pieces. They are numbers in fp32, each of
    them 1, of which calls give the sum. Lines are asked for as far ahead as products do that, whichever takes less time."""
    read, lanes = _reader()
    pieces = -(-size // (4 * lanes * _PIECE))
    memory = np.ones(pieces * lanes * _PIECE + _ALIGNMENT // 4, np.float32)
    aligned = memory[-memory.ctypes.data % _ALIGNMENT // 4 :]
    ways = [partial(_read, read, aligned, pieces, ahead) for ahead in (STREAM_AHEAD, WIDE_AHEAD)]
    return ways[quickest(ways)]


def _read(read: Callable[[int, int, int], int], memory: NDArray[Any], pieces: int, ahead: int) -> int:
    return read(memory.ctypes.data, pieces, ahead)


@cache
def _reader() -> tuple[Callable[[int, int, int], int], int]:
    """What reads memory, at an address and in so many pieces, asking for lines so many bytes ahead; and the lanes of a vector."""
    load_thread_pool()
    lanes = find_compiler().vectors.lanes
    function = load_shared("\n".join((f"#define LANES {lanes}", header("prelude"), _READER))).read_all
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long], ctypes.c_long
    return function, lanes


def _products(program: Graph, constants: Collection[str]) -> Iterator[Call]:
    """A call of each product of a program, its weights `constants`, in the library's fastest way."""
    weights = program.with_constants(constants).constants
    for node in program.nodes:
        if is_contraction(node.op):
            alone = _alone(program, node)
            names = alone.input_names
            packed = [name for name, value in zip(names, node.inputs, strict=True) if owner_of(program, value).node in weights]
            tensors = traceable(alone, random_tensors(alone, seed=0))
            ways = [partial(build(graph), *tensors) for graph in dict.fromkeys((alone, alone.with_constants(packed)))]
            yield ways[quickest(ways)]


def _alone(program: Graph, node: Node) -> Graph:
    """The kernel graph of one operator of a program."""
    builder = GraphBuilder(Level.KERNEL)
    tensors = [program.tensor(value) for value in node.inputs]
    operands = [builder.input(f"x{number}", tensor.shape, tensor.dtype) for number, tensor in enumerate(tensors)]
    return builder.build([builder.add(node.op, *operands, **dict(node.attributes))])
