"""The emulated device functions, one by one, against NumPy and PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mugraph.targets.cuda.emulator import emulate
from mugraph.targets.launch import LaunchShape
from targets.cuda.kernels import TF32_SHAPE, tf32_matmul

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

Array = npt.NDArray[np.generic]


def run(body: str, parameters: str, inputs: list[Array], output: Array, threads: int = 32, blocks: int = 1) -> None:
    """Run a kernel body with `i`, the number of its thread in the grid, and check that nothing is wrong with it."""
    source = f'extern "C" __global__ void k({parameters}) {{ const int i = blockIdx.x * blockDim.x + threadIdx.x; {body} }}'
    shown = emulate(source, "k", LaunchShape((blocks,), threads, 4096), inputs, [output])
    assert shown.findings == ()


EVERY_16_BITS = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)


@pytest.mark.parametrize(("element", "dtype"), [("fp16_t", torch.float16), ("bf16_t", torch.bfloat16)])
def test_every_16_bit_number_widens_as_in_pytorch(element: str, dtype: torch.dtype) -> None:
    wide = np.empty(1 << 16, np.float32)
    run("y[i] = to_float(x[i]);", f"const {element} *x, float *y", [EVERY_16_BITS.numpy()], wide, 1024, 64)
    np.testing.assert_array_equal(wide, EVERY_16_BITS.view(dtype).float().numpy())


@pytest.mark.parametrize(("element", "dtype"), [("fp16_t", torch.float16), ("bf16_t", torch.bfloat16)])
def test_narrowing_rounds_to_nearest_even_as_in_pytorch(element: str, dtype: torch.dtype) -> None:
    """Each 16-bit number, the midpoint to the next, and the floats beside the midpoint."""
    exact = EVERY_16_BITS.view(dtype).float()
    middle = ((exact + exact.roll(-1)) / 2).nan_to_num(0, float("inf"), float("-inf"))
    beside = [middle.nextafter(torch.tensor(end)) for end in (1e38, -1e38)]
    values = torch.cat([exact.nan_to_num(1.5), middle, *beside])
    narrow = np.empty(values.numel(), np.uint16)
    run("y[i] = from_float<T>(x[i]);".replace("T", element), f"const float *x, {element} *y", [values.numpy()], narrow, 1024, 256)
    np.testing.assert_array_equal(narrow, values.to(dtype).view(torch.uint16).numpy())


def test_pairs_hold_the_lower_address_in_the_lower_half() -> None:
    y = np.empty(32, np.uint32)
    run("y[i] = pack<bf16_t>(1.0f, -2.0f);", "unsigned *y", [], y)
    assert {int(value) for value in y} == {0xC000_3F80}
    z = np.empty(64, np.float32)
    halves = "y[2 * i] = low_half<fp16_t>(p); y[2 * i + 1] = high_half<fp16_t>(p);"
    run(f"const unsigned p = pack<fp16_t>(i, -i); {halves}", "float *y", [], z)
    np.testing.assert_array_equal(z, np.stack([np.arange(32), -np.arange(32)], 1).ravel())


@pytest.mark.parametrize("mask", [1, 5, 16, 31])
def test_shuffles_exchange_lanes(mask: int) -> None:
    x, y = np.random.default_rng(0).standard_normal(32).astype(np.float32), np.empty(32, np.float32)
    run(f"y[i] = shfl_xor(x[i], {mask});", "const float *x, float *y", [x], y)
    np.testing.assert_array_equal(y, x[np.arange(32) ^ mask])


@pytest.mark.parametrize("matrices", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_hands_out_rows_or_columns(matrices: int, transposed: bool) -> None:
    x = np.arange(64 * matrices, dtype=np.uint16)
    y = np.empty((32, matrices, 2), np.uint16)
    function = "ldmatrix_transposed" if transposed else "ldmatrix"
    body = f"""
        unsigned short *s = (unsigned short *)shared_memory();
        for (int e = i; e < {x.size}; e += 32) s[e] = x[e];
        __syncwarp();
        unsigned part[{matrices}];
        {function}<{matrices}>(part, s + i % {8 * matrices} * 8);
        for (int m = 0; m < {matrices}; ++m) y[{matrices} * i + m] = part[m];
    """
    run(body, "const unsigned short *x, unsigned *y", [x], y)
    tiles = x.reshape(matrices, 8, 8)
    tiles = tiles.transpose(0, 2, 1) if transposed else tiles
    np.testing.assert_array_equal(y, tiles.reshape(matrices, 32, 2).transpose(1, 0, 2))


@pytest.mark.parametrize(("element", "dtype"), [("fp16_t", torch.float16), ("bf16_t", torch.bfloat16)])
def test_mma_adds_the_product_of_fragments(element: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(shape, generator=generator).to(dtype) for shape in ((16, 16), (16, 8)))
    start = torch.randn(16, 8, generator=generator)
    y = np.empty((16, 8), np.float32)
    body = """
        const int g = i / 4, p = i % 4 * 2;
        unsigned a[4], b[2];
        for (int w = 0; w < 4; ++w) {
            const T *from = left + (g + w % 2 * 8) * 16 + p + w / 2 * 8;
            a[w] = from[0].bits | (unsigned)from[1].bits << 16;
        }
        for (int w = 0; w < 2; ++w) b[w] = right[(p + 8 * w) * 8 + g].bits | (unsigned)right[(p + 8 * w + 1) * 8 + g].bits << 16;
        float sum[4];
        for (int e = 0; e < 4; ++e) sum[e] = start[(g + e / 2 * 8) * 8 + p + e % 2];
        mma_m16n8k16<T>(sum, a, b);
        for (int e = 0; e < 4; ++e) y[(g + e / 2 * 8) * 8 + p + e % 2] = sum[e];
    """.replace("T ", f"{element} ").replace("<T>", f"<{element}>")
    operands = [left.view(torch.uint16).numpy(), right.view(torch.uint16).numpy(), start.numpy()]
    run(body, f"const {element} *left, const {element} *right, const float *start, float *y", operands, y)
    np.testing.assert_allclose(y, (start.double() + left.double() @ right.double()).numpy(), atol=1e-5)


def test_tf32_keeps_ten_bits_and_rounds_halves_away_from_zero() -> None:
    step = 2.0**-10
    kept = np.array([1 + step, -(1 + step), 1e-30, np.inf, -np.inf, 0.0, 6e-8, 65504.0], np.float32)
    halves = np.array([1 + step / 2, -(1 + step / 2), 1 + 1.5 * step, 1 + 0.49 * step], np.float32)
    x = np.concatenate([kept, halves, [np.float32(3.4028235e38), np.float32(np.nan)]]).astype(np.float32)
    y = np.empty_like(x)
    run(f"if (i < {len(x)}) y[i] = as_float(to_tf32(x[i]));", "const float *x, float *y", [x], y)
    assert (y[: len(x) - 1].view(np.uint32) & 0x1FFF == 0).all()
    np.testing.assert_allclose(y[:8], kept, rtol=2.0**-11)
    np.testing.assert_array_equal(y[8:13], [1 + step, -(1 + step), 1 + 2 * step, 1, np.inf])
    assert np.isnan(y[13])


def test_mma_in_tf32_adds_the_product_of_fragments() -> None:
    generator = torch.Generator().manual_seed(1)
    left, right, start = (torch.randn(shape, generator=generator) for shape in ((16, 8), (8, 8), (16, 8)))
    arrays, y = [operand.numpy() for operand in (left, right, start)], np.empty((16, 8), np.float32)
    assert emulate(tf32_matmul(), "matmul", TF32_SHAPE, arrays, [y]).findings == ()
    np.testing.assert_allclose(y, (start.double() + left.double() @ right.double()).numpy(), atol=1e-2)
    emulate(tf32_matmul(rounded="as_bits"), "matmul", TF32_SHAPE, arrays, [y])
    assert np.isnan(y).all(), "what a matrix unit makes of bits that TF32 does not have is not specified"


def test_absent_copies_are_zeros_and_present_ones_land_in_order() -> None:
    x = np.arange(128, dtype=np.float32)
    y = np.empty(128, np.float32)
    body = """
        float *s = (float *)shared_memory();
        cp_async<16>(s + 4 * i, x + 4 * i, i % 2 == 0);
        cp_async_commit();
        cp_async_commit();
        cp_async_wait<1>();
        for (int e = 0; e < 4; ++e) y[4 * i + e] = s[4 * i + e];
    """
    run(body, "const float *x, float *y", [x], y)
    np.testing.assert_array_equal(y.reshape(32, 4), np.where(np.arange(32)[:, None] % 2 == 0, x.reshape(32, 4), 0))


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
}


def test_mathematical_functions() -> None:
    x = torch.linspace(0.1, 3, 32)
    y = np.empty(32 * len(FUNCTIONS), np.float32)
    run(
        "".join(f"y[{32 * n} + i] = {name}(x[i]); " for n, name in enumerate(FUNCTIONS)),
        "const float *x, float *y",
        [x.numpy()],
        y,
    )
    for name, found in zip(FUNCTIONS, y.reshape(-1, 32), strict=True):
        np.testing.assert_allclose(found, FUNCTIONS[name](x.double()).numpy(), rtol=1e-6, err_msg=name)
