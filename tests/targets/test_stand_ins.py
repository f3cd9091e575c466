"""Stand-ins for kernels of a GPU, on this host: they compute what the kernels would, to the last rounded factor."""

from __future__ import annotations

import pytest
import torch

from lower.graphs import attention
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.runtime import Executable
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.targets.triton.machine import Triton

ROWS, DEPTH, COLUMNS = 16, 32, 24
TORCH_TYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


def difference(dtype: DType, read_twice: bool, given: DType | None = None) -> Graph:
    """`(x * g) @ w - x @ w`: where g is nearly 1 it is made of the bits that rounding x * g takes. A sum may read x * g, too.

    x is `given` in another type.
    """
    kernel = GraphBuilder(Level.KERNEL)
    x, g = kernel.input("X", (ROWS, DEPTH), given or dtype), kernel.input("G", (DEPTH,), dtype)
    w = kernel.input("W", (DEPTH, 2 * COLUMNS), dtype)
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=2)
    xs, gs = (block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate((x, g)))
    ws = block.iterator(2, kernel.tensor(w), (None,), 1)
    xs = xs if given is None else block.add("cast", xs, dtype=dtype)
    scaled = block.add("mul", xs, gs)
    change = block.add("sub", block.add("matmul", scaled, ws), block.add("matmul", xs, ws))
    results = [block.add("accumulate", change, combine="concat", dim=1)]
    if read_twice:
        results.append(block.add("sum", scaled, dim=1, size=DEPTH))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", r, omap=(0,)) for r in results]), [x, g, w]))


def numbers(dtype: DType) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(ROWS, DEPTH, generator=generator), torch.randn(DEPTH, 2 * COLUMNS, generator=generator)
    g = 1 + torch.finfo(TORCH_TYPES[dtype]).eps * torch.ones(DEPTH)
    x, g, w = (tensor.to(TORCH_TYPES[dtype]) for tensor in (x, g, w))
    return x, g, w


def deviation(result: torch.Tensor, other: torch.Tensor) -> float:
    return float((result.double() - other.double()).abs().max() / other.double().abs().max())


def check_stand_in(machine: EmulatedCuda | InterpretedTriton, dtype: DType, read_twice: bool) -> None:
    graph, inputs = difference(dtype, read_twice), numbers(dtype)
    result, *_ = Executable(graph, machine)(*inputs)
    stand_in, *_ = Executable(graph, machine.stand_in)(*inputs)
    x, g, w = (tensor.double() for tensor in inputs)
    assert deviation(result, (x * g) @ w - x @ w) > 0.05, "nothing was rounded"
    assert deviation(stand_in, result) < 0.01


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
@pytest.mark.parametrize("read_twice", [False, True])
def test_a_stand_in_rounds_what_the_matrix_units_of_cuda_kernels_round(dtype: DType, read_twice: bool) -> None:
    check_stand_in(EmulatedCuda(Cuda.of("cuda:sm_90")), dtype, read_twice)


@pytest.mark.parametrize("read_twice", [False, True])
def test_a_stand_in_rounds_what_triton_kernels_round(read_twice: bool) -> None:
    check_stand_in(InterpretedTriton(Triton.of("triton:sm_90")), DType.FP16, read_twice)


def test_exponentials_are_rounded_to_fp16_on_their_way_into_a_product() -> None:
    """They are summed up, too, as they are in fp32."""
    graph = attention(queries=16, keys=64, width=16, dtype=DType.FP16)
    machine = Cuda.of("cuda:sm_90").stand_in
    (launch,) = machine.lower(graph).values()
    rounded = [buffer for buffer in launch.kernel.buffers if buffer.name.startswith("rounded")]
    assert sorted(buffer.dtype for buffer in rounded) == [DType.FP16, DType.FP32]


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, -1])
def test_not_a_number_stays_so_in_tf32(bits: int) -> None:
    """Whatever its bits: those that a GPU makes are all ones, and would become 0 by rounding up."""
    x, g, w = numbers(DType.FP16)
    x = x.float()
    x[3, 5] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    x[4, 7] = torch.inf
    graph = difference(DType.FP16, read_twice=False, given=DType.FP32)
    for machine in (Cuda.of("cuda:sm_90").stand_in, InterpretedTriton(Triton.of("triton:sm_90"))):
        (result,) = Executable(graph, machine)(x, g, w)
        assert result[3:5].isnan().all()
        assert result[:3].isfinite().all()
