"""Where tensors lie: what is said of them is what the kernels do, at each level and for each target."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from lower.graphs import attention, chain_of_kernels, normalised_scores, rms_norm_linear
from lower.test_device_layouts import chain
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.graph import VIEWS
from mugraph.ir.text import parse_graph
from mugraph.lower import construct
from mugraph.lower.tile_form import Kernel, Memory, Tile
from mugraph.runtime import build
from mugraph.runtime.placement import Placement, placement_of
from mugraph.targets.cpu import Vectors
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.machine import Machine

GRAPHS: dict[str, Callable[[], Graph]] = {
    "rms norm": lambda: construct(rms_norm_linear(16, 256, 128, dtype=DType.FP16)),
    "attention": lambda: construct(attention(queries=16, keys=128, width=32, dtype=DType.FP16)),
    "scores": lambda: construct(normalised_scores(dtype=DType.FP16)),
    "chain": chain_of_kernels,
    "transposed between kernels": lambda: chain(transposed=True),
}


def machines() -> list[Machine]:
    return [Cpu(Vectors(lanes=8, registers=16)), Cuda.described("cuda:sm_80"), Cuda.described("cuda:sm_90")]


def placed(graph: Graph, machine: Machine) -> Placement:
    return placement_of(graph, machine.lower(graph))


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", GRAPHS)
def test_the_text_is_the_graph_and_the_record_is_json(name: str, number: int) -> None:
    graph = GRAPHS[name]()
    found = placed(graph, machines()[number])
    assert parse_graph(str(found)) == graph
    record = found.to_json()
    assert json.loads(json.dumps(record)) == record
    assert record == placed(graph, machines()[number]).to_json(), "it is the same every time"


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", GRAPHS)
def test_tensors_lie_where_statements_read_and_write_them(name: str, number: int) -> None:
    """Every tile of a statement is one of a tensor's places or of no tensor's buffer, and no place is of another's making."""
    for launch in placed(GRAPHS[name](), machines()[number]).launches.values():
        kernel: Kernel = launch.kernel
        used = {(tile.buffer, _elements(tile)) for s in kernel.statements for tile in (s.target, *s.sources)}
        for value, tile in kernel.tensors:
            node = launch.body.nodes[value.node]
            assert tile.buffer in {buffer.name for buffer in kernel.buffers}
            assert math.prod(tile.shape) == launch.body.tensor(value).elements
            if node.op not in (*VIEWS, "cast", "input_iterator"):
                assert (tile.buffer, _elements(tile)) in used


def _elements(tile: Tile) -> frozenset[int]:
    """Places of a tile's elements in its buffer, in the first block and iteration."""
    places = np.full(1, tile.start.constant)
    for size, stride in zip(tile.shape, tile.strides, strict=True):
        places = np.add.outer(places, np.arange(size) * stride).reshape(-1)
    return frozenset((places if tile.swizzle is None else tile.swizzle(places)).tolist())


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", ["rms norm", "attention", "scores"])
def test_every_tensor_of_a_block_has_a_place_or_is_computed_where_it_is_read(name: str, number: int) -> None:
    text = str(placed(GRAPHS[name](), machines()[number]))
    inside = [line for line in text.splitlines() if re.match(r"    [| ] %", line) and "output_saver" not in line]
    assert len(inside) >= 8
    for line in inside:
        assert re.search(r"// (device memory|shared memory|fp\d+ in registers|computed where it is read|a view)", line), line


def test_a_gpu_pads_or_swizzles_and_keeps_sums_in_registers() -> None:
    found = placed(GRAPHS["attention"](), Cuda.described("cuda:sm_90"))
    ((_, launch),) = found.launches.items()
    memories = {launch.kernel.buffer(tile.buffer).memory for _, tile in launch.kernel.tensors}
    assert memories == {Memory.DEVICE, Memory.SHARED, Memory.REGISTERS}
    assert any(tile.swizzle is not None for _, tile in launch.kernel.tensors)
    (kernel,) = found.to_json()["kernels"]
    ends = [buffer["offset"] + buffer["bytes"] for buffer in kernel["buffers"] if buffer["memory"] == "shared"]
    assert max(ends) == kernel["shared_bytes"]
    assert f"a block has {kernel['shared_bytes']} bytes of shared memory" in str(found)


def with_row_sums() -> Graph:
    """A product summed over a loop, and the sums of its rows."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(1,), loop=2)
    inputs = [kernel.input(name, shape, DType.FP16) for name, shape in (("x", (16, 64)), ("w", (64, 32)))]
    x, w = (block.iterator(number, kernel.tensor(value), (None,), 1 - number) for number, value in enumerate(inputs))
    product = block.add("accumulate", block.add("matmul", x, w), combine="sum")
    saved = [block.add("output_saver", block.add("sum", product, dim=1, size=32), omap=(0,))]
    return kernel.build(kernel.graph_defined(block.build(saved), inputs))


def test_what_moves_has_all_its_places_in_order() -> None:
    """A sum that others read otherwise than it is held is copied out of registers; a factor passes through the ring."""
    held = r"accumulate\(%\d+\).*// fp32 in registers"
    text = str(placed(with_row_sums(), Cuda.described("cuda:sm_90")))
    assert re.search(held + r", then shared memory, fp32 from byte \d+, strides", text)
    text = str(placed(GRAPHS["rms norm"](), Cuda.described("cuda:sm_90")))
    assert re.search(held + "$", text, re.MULTILINE)
    assert re.search(r"%2: .* = input_iterator\(W\).*// device memory, .* then shared memory, 5 slots from byte 0, strides", text)


def test_a_tensor_between_kernels_says_its_order_and_its_byte() -> None:
    text = str(placed(chain(transposed=True), Cuda.described("cuda:sm_90")))
    (line,) = (line for line in text.splitlines() if "workspace from byte 0" in line)
    rows, columns = map(int, re.search(r"fp\d+\[(\d+), (\d+)\] = block_graph", line).groups())  # type: ignore[union-attr]  # it is there
    assert f"as [{rows}, {columns}], strides (1, {rows})" in line


def test_what_the_library_makes_and_what_is_a_view_are_said_to_be_so() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 4), DType.FP32)
    turned = kernel.add("transpose", x, permutation=(1, 0))
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    tile = block.iterator(0, kernel.tensor(turned), (0,), None)
    (made,) = kernel.graph_defined(block.build([block.add("output_saver", block.add("exp", tile), omap=(0,))]), [turned])
    graph = kernel.build([kernel.add("matmul", x, made)])
    memories = [entry["memory"] for entry in placed(graph, Cpu()).to_json()["tensors"]]
    assert memories == ["input", "view", "workspace", "library"]


def test_bodies_that_are_rewritten_before_they_are_lowered_are_shown_as_they_were_lowered() -> None:
    graph = rms_norm_linear()
    found = placed(graph, Cpu(Vectors(lanes=8, registers=16)))
    first, below = str(found).split("// kernel_3 as it was rewritten before it was lowered\n")
    assert parse_graph(first) == graph
    assert parse_graph(below) == construct(graph).nodes[3].body
    (kernel,) = found.to_json()["kernels"]
    assert "body" in kernel


def test_kernels_that_nothing_needs_have_no_place() -> None:
    graph = chain_of_kernels(3)
    found = placed(graph.with_nodes(graph.nodes, (Value(1),)), Cpu())
    assert [entry["value"] for entry in found.to_json()["tensors"]] == [[0, 0], [1, 0]]
    assert "workspace" not in str(found)


def test_an_executable_says_where_its_tensors_lie() -> None:
    executable = build(chain_of_kernels(6))
    assert executable.placement.to_json()["workspace"] == {"bytes": 131072, "bound": 131072}
