"""The workspace between kernels: what lies in it, for how long, and that nothing is overwritten before its last reader ran."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lower.graphs import chain_of_kernels, elementwise_kernel
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.graph import VIEWS
from mugraph.lower import needed_nodes
from mugraph.lower.workspace import ALIGNMENT, plan_workspace

BYTES = 64 * 256 * DType.FP32.bytes


@pytest.mark.parametrize(("count", "buffers"), [(1, 0), (2, 1), (3, 2), (6, 2), (9, 2)])
def test_a_chain_needs_two_buffers_however_long_it_is(count: int, buffers: int) -> None:
    found = plan_workspace(chain_of_kernels(count))
    assert (found.bytes, found.bound, len(found.offsets)) == (buffers * BYTES, buffers * BYTES, count - 1)


def test_what_a_later_kernel_reads_again_keeps_its_bytes() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    first = value = elementwise_kernel(kernel, "exp", [kernel.input("X", (64, 256), DType.FP32)])
    for _ in range(3):
        value = elementwise_kernel(kernel, "tanh", [value])
    found = plan_workspace(kernel.build([elementwise_kernel(kernel, "add", [value, first])]))
    assert found.bytes == 3 * BYTES


@pytest.mark.parametrize("view", [False, True])
def test_outputs_and_what_they_are_views_of_have_memory_of_their_own(view: bool) -> None:
    kernel = GraphBuilder(Level.KERNEL)
    made = elementwise_kernel(kernel, "exp", [kernel.input("X", (64, 256), DType.FP32)])
    again = elementwise_kernel(kernel, "tanh", [made])
    shown = kernel.add("transpose", made, permutation=(1, 0)) if view else made
    assert not plan_workspace(kernel.build([again, shown])).offsets


def test_a_tensor_lives_as_long_as_the_library_reads_a_view_of_it() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    made = elementwise_kernel(kernel, "exp", [kernel.input("X", (64, 256), DType.FP32)])
    turned = kernel.add("transpose", made, permutation=(1, 0))
    others = elementwise_kernel(kernel, "tanh", [elementwise_kernel(kernel, "tanh", [made])])
    found = plan_workspace(kernel.build([kernel.add("matmul", turned, others)]))
    assert found.bytes == 3 * BYTES


def random_kernels(rng: random.Random) -> Graph:
    """Kernels of one and two operands of several sizes, products of the library and views, outputs at random."""
    kernel = GraphBuilder(Level.KERNEL)
    values = [kernel.input(f"x{size}", (size, size), DType.FP32) for size in (2, 4, 40)]
    for _ in range(rng.randint(3, 14)):
        value = rng.choice(values[-5:])
        alike = [other for other in values if kernel.tensor(other).shape == kernel.tensor(value).shape]
        match rng.randrange(5):
            case 0:
                values.append(kernel.add("transpose", value, permutation=(1, 0)))
            case 1:
                values.append(kernel.add("matmul", value, rng.choice(alike)))
            case 2:
                values.append(kernel.add("relu", value))
            case 3:
                values.append(elementwise_kernel(kernel, "mul", [value, rng.choice(alike)]))
            case _:
                values.append(elementwise_kernel(kernel, "tanh", [value]))
    return kernel.build(rng.sample(values[3:], rng.randint(1, 2)))


@pytest.mark.parametrize("seed", range(200))
def test_nothing_is_overwritten_before_its_last_reader_ran(seed: int) -> None:
    """Run on the names of values alone: each byte of the workspace remembers who wrote it last."""
    graph = random_kernels(random.Random(seed))
    found = plan_workspace(graph)
    written = np.full(found.bytes, -1)
    for index in needed_nodes(graph):
        for value in graph.nodes[index].inputs:
            while graph.nodes[value.node].op in VIEWS:
                (value,) = graph.nodes[value.node].inputs
            if value in found.offsets:
                offset = found.offsets[value]
                assert (written[offset : offset + graph.tensor(value).bytes] == value.node).all()
        if Value(index) in found.offsets:
            offset = found.offsets[Value(index)]
            assert offset % ALIGNMENT == 0
            read = [found.offsets.get(value) for value in graph.nodes[index].inputs]
            assert offset not in read, "a kernel writes over what it reads"
            written[offset : offset + graph.tensor(Value(index)).bytes] = index
    assert found.bytes >= found.bound
