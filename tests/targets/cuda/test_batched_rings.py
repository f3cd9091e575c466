"""Products of several matrices in a block pass through the ring, too: right on the emulator, and noticed where they are not."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from mugraph.devices import resolved
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import construct
from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.runtime import Executable, build
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

TYPES = {DType.FP16: (torch.float16, 2e-3), DType.BF16: (torch.bfloat16, 1e-2)}


def heads(count: int, *, rows: int = 8, keys: int = 128, width: int = 64, loop: int = 2, dtype: DType = DType.FP16) -> Graph:
    """Scores of `count` heads in a block, and a function of them times values: keys along k, values beside it."""
    kernel = GraphBuilder(Level.KERNEL)
    q, k, v = (
        kernel.input(name, shape, dtype)
        for name, shape in (("q", (2 * count, rows, width)), ("k", (2 * count, keys, width)), ("v", (2 * count, keys, width)))
    )
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
    queries = block.iterator(0, kernel.tensor(q), (0,), None)
    their_keys, values = (block.iterator(number, kernel.tensor(value), (0,), 1) for number, value in ((1, k), (2, v)))
    scores = block.add("matmul", queries, block.add("transpose", their_keys, permutation=(0, 2, 1)))
    weights = block.add("tanh", scores)
    total = block.add("accumulate", block.add("matmul", weights, values), combine="sum")
    return construct(kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(0,))]), [q, k, v])))


def inputs(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    dtype, _ = TYPES[graph.inputs()[0].output.dtype]
    return [(torch.randn(node.output.shape, generator=generator) / 4).to(dtype) for node in graph.inputs()]


def error(result: torch.Tensor, given: list[torch.Tensor]) -> float:
    q, k, v = (tensor.double() for tensor in given)
    exact = (q @ k.mT).tanh() @ v
    return float((result.double() - exact).abs().max() / exact.abs().max())


def lowered(graph: Graph, machine: Cuda) -> Kernel:
    (launch,) = machine.lower(graph).values()
    return launch.kernel


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("count", "rows"), [(2, 8), (4, 8), (2, 16), (2, 24)])
def test_products_of_several_matrices_stream(count: int, rows: int, dtype: DType, architecture: str) -> None:
    graph, machine = heads(count, rows=rows, dtype=dtype), Cuda.of(f"cuda:{architecture}")
    kernel = lowered(graph, machine)
    products = [statement for statement in kernel.statements if isinstance(statement, Matmul)]
    assert len(products) == 2
    assert kernel.ring is not None
    assert all(product.panels is not None and product.target.shape[-3] == count for product in products)
    given = inputs(graph)
    for seed in (0, 1):
        emulated = EmulatedCuda(machine, apart=True, seed=seed)
        (result,) = Executable(graph, emulated)(*given)
        assert emulated.findings == []
        assert error(result, given) < TYPES[dtype][1]


@pytest.mark.parametrize("change", [("__syncthreads();", ""), ("cp_async_wait<", "cp_async_wait<1 + "), ("batch / 1 % 2", "0")])
def test_faults_in_them_are_noticed(change: tuple[str, str]) -> None:
    graph = heads(2)
    given = inputs(graph)
    emulated = EmulatedCuda(Cuda.of("cuda:sm_90"), edit=lambda text: text.replace(*change))
    (result,) = Executable(graph, emulated)(*given)
    assert emulated.findings or not error(result, given) < 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU")
@pytest.mark.parametrize("count", [2, 4])
def test_a_gpu_computes_what_the_emulator_does(count: int) -> None:
    graph = heads(count)
    given = inputs(graph)
    (result,) = build(graph, resolved("cuda"))(*(tensor.cuda() for tensor in given))
    assert error(result.cpu(), given) < TYPES[DType.FP16][1]


def test_sums_that_registers_do_not_hold_have_no_ring() -> None:
    assert lowered(heads(24), Cuda.of("cuda:sm_90")).ring is None


@pytest.mark.parametrize("count", [2, 4])
def test_they_fit_registers(count: int) -> None:
    pytest.importorskip("cuda.core", reason="kernels are compiled by NVRTC; pip install 'mugraph[cuda]'")
    for figures in Executable(heads(count, keys=256, width=128), Cuda.of("cuda:sm_90")).resources:
        assert figures.spill_bytes == 0


def test_warp_groups_and_boxes_leave_them_to_threads() -> None:
    """Both know one matrix alone."""
    machine = Cuda.of("cuda:sm_90")
    kernel = lowered(heads(2, rows=64), replace(machine, engines=replace(machine.engines, tensor_maps=True)))
    products = [statement for statement in kernel.statements if isinstance(statement, Matmul)]
    assert kernel.ring is not None
    assert not kernel.ring.bulk
    assert not any(product.panels.grouped or product.panels.boxed for product in products if product.panels is not None)
