"""What the workspace between kernels is worth: a chain of six kernels with it, and with an allocation for each tensor.

    python benchmarks/workspace.py [--seconds 12]

Prints, for tensors of several sizes, the median of the ratios of pairs of calls, whose order alternates, with quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from unittest import mock

import torch

from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower.workspace import plan_workspace
from mugraph.runtime import Executable, build, call_plan

SHAPES = ((64, 64), (256, 256), (1024, 1024), (4096, 2048))
OPERATORS = ("tanh", "exp", "sigmoid", "tanh", "exp", "sigmoid")


def chain(shape: tuple[int, int]) -> Graph:
    """Elementwise kernels of two blocks, each of which reads the result of the one before."""
    kernel = GraphBuilder(Level.KERNEL)
    value = kernel.input("X", shape, DType.FP32)
    for operator in OPERATORS:
        block = GraphBuilder(Level.BLOCK, grid=(2,))
        result = block.add(operator, block.iterator(0, kernel.tensor(value), (0,), None))
        (value,) = kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), [value])
    return kernel.build([value])


def pairs(shape: tuple[int, int], seconds: float) -> list[tuple[float, float]]:
    """Seconds of calls with the workspace and without, next to each other, for as long as that."""
    graph, x = chain(shape), torch.randn(shape)
    calls = [build(graph), planned_without(build(graph))]
    outputs = [call(x)[0] for call in calls]
    assert torch.equal(*outputs)
    found: list[tuple[float, float]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        times = [0.0, 0.0]
        for number in (0, 1) if len(found) % 2 else (1, 0):
            before = time.perf_counter()
            calls[number](x)
            times[number] = time.perf_counter() - before
        found.append((times[0], times[1]))
    return found


def planned_without(executable: Executable) -> Executable:
    """The executable with its call planned with memory of its own for each tensor."""
    workspace = replace(plan_workspace(executable.graph), offsets={}, bytes=0, bound=0)
    with mock.patch.object(call_plan, "plan_workspace", return_value=workspace):
        executable(*(torch.randn(node.output.shape) for node in executable.graph.inputs()))
    return executable


def main() -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="for each shape")
    seconds = parser.parse_args().seconds
    for shape in SHAPES:
        found = pairs(shape, seconds)
        low, median, high = statistics.quantiles(without / with_it for with_it, without in found)
        needed = plan_workspace(chain(shape)).bytes
        ratios = f"{median:.2f} times as long without it ({low:.2f} to {high:.2f}, {len(found)} pairs)"
        print(f"{shape}: {needed} bytes of workspace; {ratios}")


if __name__ == "__main__":
    main()
