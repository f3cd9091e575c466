"""Kernels on a GPU against the same kernels on the emulator; skipped where PyTorch sees no GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
import torch

import mugraph
from lower.graphs import chain_of_kernels
from mugraph.devices import resolved
from mugraph.ir import DType, Graph
from mugraph.lower.tensor_maps import TensorMap
from mugraph.runtime import Executable, build
from mugraph.targets.cuda.emulator import emulate
from mugraph.targets.cuda.nvrtc import compile_cubin
from mugraph.targets.launch import LaunchShape, LoadedKernel
from mugraph.targets.machine import machine_for
from targets.cuda.kernels import (
    BOX_WORDS,
    COLUMNS,
    DEPTH,
    GROUP_DEPTH,
    GROUP_ROWS,
    LEFT_MATRIX,
    MATMUL_SHAPE,
    ROW_COUNT,
    ROW_ELEMENTS,
    SHARED_MATRICES,
    TF32_SHAPE,
    VALID_ROWS,
    SharedMatrix,
    box_shape,
    copied_box,
    copied_rows,
    matmul,
    root_mean_square,
    tf32_matmul,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU")

HAS_TENSOR_MAPS = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
ELEMENTS = {"fp32_t": torch.float32, "fp16_t": torch.float16, "bf16_t": torch.bfloat16}


def load(source: str, kernel: str, shape: LaunchShape) -> LoadedKernel:
    major, minor = torch.cuda.get_device_capability()
    return LoadedKernel(compile_cubin(source, f"sm_{major}{minor}"), kernel, shape)


def product_inputs(element: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator) for shape in ((VALID_ROWS, DEPTH), (DEPTH, COLUMNS)))
    return left.to(ELEMENTS[element]), right.to(ELEMENTS[element])


def test_the_gpu_that_is_here_is_a_target() -> None:
    machine = machine_for("cuda")
    assert machine.available
    (x,) = (torch.randn(node.output.shape, device="cuda") for node in chain_of_kernels(2, (64, 256)).inputs())
    (y,) = build(chain_of_kernels(2, (64, 256)), resolved("cuda"))(x)
    assert y.device == x.device


@pytest.mark.parametrize("element", ["fp16_t", "bf16_t"])
def test_matrix_units_agree_with_the_emulator(element: str) -> None:
    left, right = product_inputs(element)
    emulated = torch.empty(VALID_ROWS, COLUMNS)
    operands = [tensor.view(torch.uint16).numpy() for tensor in (left, right)]
    emulate(matmul(element), "matmul", MATMUL_SHAPE, operands, [emulated.numpy()])
    on_gpu = [tensor.cuda() for tensor in (left, right)]
    result = torch.full((VALID_ROWS, COLUMNS), float("nan"), device="cuda")
    load(matmul(element), "matmul", MATMUL_SHAPE)(*(tensor.data_ptr() for tensor in (*on_gpu, result)))
    torch.testing.assert_close(result.cpu(), emulated, rtol=1e-5, atol=1e-4)


def test_tf32_agrees_with_the_emulator() -> None:
    generator = torch.Generator().manual_seed(2)
    operands = [torch.randn(shape, generator=generator) for shape in ((16, 8), (8, 8), (16, 8))]
    emulated, result = torch.empty(16, 8), torch.full((16, 8), float("nan"), device="cuda")
    emulate(tf32_matmul(), "matmul", TF32_SHAPE, [operand.numpy() for operand in operands], [emulated.numpy()])
    on_gpu = [operand.cuda() for operand in operands]
    load(tf32_matmul(), "matmul", TF32_SHAPE)(*(tensor.data_ptr() for tensor in (*on_gpu, result)))
    torch.testing.assert_close(result.cpu(), emulated, rtol=1e-5, atol=1e-5)


WIDENING = """
extern "C" __global__ void widen(const @T *codes, float *numbers) { numbers[threadIdx.x] = to_float(codes[threadIdx.x]); }
"""


@pytest.mark.parametrize(("element", "kind"), [("e4m3fn_t", torch.float8_e4m3fn), ("e5m2_t", torch.float8_e5m2)])
def test_numbers_of_fp8_are_widened_as_pytorch_does(element: str, kind: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    on_gpu, result = codes.cuda(), torch.empty(256, device="cuda")
    load(WIDENING.replace("@T", element), "widen", LaunchShape((1,), 256, 0))(on_gpu.data_ptr(), result.data_ptr())
    torch.testing.assert_close(result.cpu(), codes.view(kind).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.skipif(not HAS_TENSOR_MAPS, reason="tensor maps are of compute capability 9.0 or later")
@pytest.mark.parametrize(("row_bytes", "box"), [(128, (12, 64)), (64, (16, 32)), (32, (9, 16))])
@pytest.mark.parametrize(("column", "row"), [(0, 0), (8, 5), (80, 15), (-8, -2), (200, 40)])
def test_boxes_arrive_as_on_the_emulator(row_bytes: int, box: tuple[int, int], column: int, row: int) -> None:
    x = torch.randn(20, 96, generator=torch.Generator().manual_seed(3)).half()
    shape = box_shape(TensorMap("x", DType.FP16, 20, 88, 96, box))
    source, emulated = copied_box(row_bytes, box, column, row), torch.zeros(BOX_WORDS, dtype=torch.float16)
    emulate(source, "copied_box", shape, [x.view(torch.uint16).numpy()], [emulated.view(torch.uint16).numpy()])
    on_gpu, result = x.cuda(), torch.full((BOX_WORDS,), float("nan"), dtype=torch.float16, device="cuda")
    load(source, "copied_box", shape)(on_gpu.data_ptr(), result.data_ptr())
    assert torch.equal(result.cpu().view(torch.int16), emulated.view(torch.int16))


@pytest.mark.parametrize("element", ELEMENTS)
def test_reductions_and_conversions_agree_with_the_emulator(element: str) -> None:
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(1)).to(ELEMENTS[element])
    shape = LaunchShape((4,), 96, 12)
    emulated = torch.empty(4, dtype=x.dtype)
    arrays = [(t.view(torch.uint16) if t.element_size() == 2 else t).numpy() for t in (x, emulated)]
    emulate(root_mean_square(element), "root_mean_square", shape, arrays[:1], arrays[1:])
    on_gpu, result = x.cuda(), torch.empty(4, dtype=x.dtype, device="cuda")
    load(root_mean_square(element), "root_mean_square", shape)(on_gpu.data_ptr(), result.data_ptr())
    torch.testing.assert_close(result.cpu(), emulated, rtol=1e-6 if element == "fp32_t" else 0, atol=0)


hopper = pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs sm_90")
warp_groups = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9, reason="wgmma is an instruction of sm_90 alone"
)


@hopper
def test_bulk_copies_arrive_whole() -> None:
    x = torch.randn(2, ROW_COUNT, ROW_ELEMENTS, device="cuda")
    result = torch.full((2, ROW_ELEMENTS), float("nan"), device="cuda")
    load(copied_rows(), "sum_rows", LaunchShape((2,), 64, 2048))(x.data_ptr(), result.data_ptr())
    torch.testing.assert_close(result, x.sum(1))


def group_factors(matrix: SharedMatrix, element: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Random factors for a warp group, of which the right one is as wide as a matrix in shared memory."""
    left, right = torch.randn(GROUP_ROWS, GROUP_DEPTH), torch.randn(GROUP_DEPTH, matrix.columns)
    return left.to(ELEMENTS[element]), right.to(ELEMENTS[element])


@warp_groups
@pytest.mark.parametrize("element", ["fp16_t", "bf16_t"])
@pytest.mark.parametrize("matrix", SHARED_MATRICES, ids=str)
def test_warp_groups_find_matrices_where_the_emulator_does(matrix: SharedMatrix, element: str) -> None:
    left, right = group_factors(matrix, element)
    image = torch.from_numpy(matrix.image(right.view(torch.uint16).numpy())).cuda()
    on_gpu, result = left.cuda(), torch.full((GROUP_ROWS, matrix.columns), float("nan"), device="cuda")
    launch = load(matrix.kernel(element), "group_product", matrix.shape)
    launch(*(tensor.data_ptr() for tensor in (on_gpu, image, result)))
    torch.testing.assert_close(result.cpu(), left.float() @ right.float(), rtol=1e-4, atol=1e-3)


@warp_groups
@pytest.mark.parametrize("element", ["fp16_t", "bf16_t"])
@pytest.mark.parametrize("matrix", SHARED_MATRICES, ids=str)
def test_warp_groups_find_left_factors_where_the_emulator_does(matrix: SharedMatrix, element: str) -> None:
    left, right = group_factors(matrix, element)
    images = [
        torch.from_numpy(place.image(factor.contiguous().view(torch.uint16).numpy())).cuda()
        for place, factor in ((LEFT_MATRIX, left.T), (matrix, right))
    ]
    result = torch.full((GROUP_ROWS, matrix.columns), float("nan"), device="cuda")
    launch = load(matrix.kernel_beside_left(element), "group_product", matrix.shape_beside_left)
    launch(*(tensor.data_ptr() for tensor in (*images, result)))
    torch.testing.assert_close(result.cpu(), left.float() @ right.float(), rtol=1e-4, atol=1e-3)


def test_a_launch_can_be_captured_into_a_cuda_graph() -> None:
    left, right = (tensor.cuda() for tensor in product_inputs("bf16_t"))
    result = torch.zeros(VALID_ROWS, COLUMNS, device="cuda")
    kernel = load(matmul("bf16_t"), "matmul", MATMUL_SHAPE)
    addresses = [tensor.data_ptr() for tensor in (left, right, result)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*addresses)
    torch.cuda.synchronize()
    assert not result.any(), "capturing runs nothing"
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(result, left.float() @ right.float(), rtol=1e-2, atol=1e-2)
    left.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert not result.any()


def test_a_thread_that_has_used_the_gpu_for_nothing_can_launch() -> None:
    left, right = (tensor.cuda() for tensor in product_inputs("bf16_t"))
    result = torch.zeros(VALID_ROWS, COLUMNS, device="cuda")
    kernel = load(matmul("bf16_t"), "matmul", MATMUL_SHAPE)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(kernel, *(tensor.data_ptr() for tensor in (left, right, result))).result()
    torch.cuda.synchronize()
    torch.testing.assert_close(result, left.float() @ right.float(), rtol=1e-2, atol=1e-2)


BACKENDS = ["cuda", pytest.param("triton", marks=pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not here"))]


def built(graph: Graph, backend: str) -> Executable:
    major, _ = torch.cuda.get_device_capability()
    return build(graph, f"{backend}:sm_{major}0")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_may_be_captured_without_one_before(backend: str) -> None:
    executable = built(chain_of_kernels(3, (64, 256)), backend)
    x = torch.randn(64, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = executable(x)
    x.copy_(torch.linspace(-1, 1, x.numel(), device="cuda").view(x.shape))
    graph.replay()
    torch.testing.assert_close(y, x.tanh().exp().sigmoid(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_as_a_cuda_graph_computes_what_the_result_computes(backend: str) -> None:
    major, _ = torch.cuda.get_device_capability()
    opt = mugraph.superoptimize(rms_norm, tuple(map(torch.Tensor.cpu, rms_norm_inputs())), f"{backend}:sm_{major}0")
    graphed = opt.graphed()
    first, second = rms_norm_inputs(), rms_norm_inputs()
    results = graphed(*first), graphed(*second)
    for inputs, result in zip((first, second), results, strict=True):
        torch.testing.assert_close(result, opt(*inputs))
        torch.testing.assert_close(result, rms_norm(*inputs), rtol=1e-3, atol=1e-3)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))) @ w


def rms_norm_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 256, device="cuda"), torch.randn(256, 128, device="cuda")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("backend", BACKENDS)
def test_kernels_run_where_their_tensors_are(backend: str) -> None:
    executable = built(chain_of_kernels(2, (64, 256)), backend)
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        x = torch.randn(64, 256, device=device)
        (y,) = executable(x)
        assert y.device == x.device
        torch.testing.assert_close(y, x.tanh().exp(), rtol=1e-4, atol=1e-4)
