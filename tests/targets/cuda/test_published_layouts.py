"""Fragments and shared matrices of the emulator beside the layouts that NVIDIA publishes for the same instructions.

The numbers are those of CuTe's headers (CUTLASS, `include/cute/atom/mma_traits_sm80.hpp` and `mma_traits_sm90_gmma.hpp`): a
layout takes a thread and a value that it holds to the number of an element of the instruction's matrix, column by column; a right
factor counts as [n, k]. Nothing here follows from a formula of ours.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from mugraph.lower.layouts import swizzle_of
from mugraph.lower.places import Swizzle
from mugraph.lower.warp_accesses import fragment_places
from mugraph.targets.cuda.emulator import emulate
from mugraph.targets.launch import LaunchShape
from targets.cuda.kernels import GROUP_DEPTH, GROUP_ROWS, SHARED_MATRICES, SharedMatrix, changed

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Published:
    """Sizes and strides, fastest first, of threads and of the values that each holds."""

    threads: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, int], ...]

    def elements(self) -> Numbers:
        """The number of the element that each thread holds as each value, [threads, values]."""
        return _numbers(self.threads)[:, None] + _numbers(self.values)


def _numbers(modes: tuple[tuple[int, int], ...]) -> Numbers:
    found = np.zeros(1, np.int64)
    for size, stride in modes:
        found = (np.arange(size)[:, None] * stride + found).ravel()
    return found


SUMS = Published(((4, 32), (8, 1)), ((2, 16), (2, 8)))
"""SM80_16x8_Row, of all instructions of 16 x 8."""
OF_16_BITS = Published(((4, 32), (8, 1)), ((2, 16), (2, 8), (2, 128))), Published(((4, 16), (8, 1)), ((2, 8), (2, 64)))
"""Left and right factor of SM80_16x8x16 in 16 bits."""
OF_TF32 = Published(((4, 16), (8, 1)), ((2, 8), (2, 64))), Published(((4, 8), (8, 1)), ((2, 32),))
"""Left and right factor of SM80_16x8x8 in TF32."""
OF_GROUPS = Published(((4, 128), (8, 1), (4, 16)), ((2, 64), (2, 8), (2, 512)))
"""ALayout_64x16: a left factor of warp groups in registers."""


def sums_of_groups(columns: int) -> Published:
    """CLayout_64xN."""
    return Published(((4, 128), (8, 1), (4, 16)), ((2, 64), (2, 8), (columns // 8, 512)))


SWIZZLES = {128: (3, 4, 3), 64: (2, 4, 3), 32: (1, 4, 3)}
"""By bytes of a row, those of Layout_K_SW128_Atom and its like, and of Layout_MN_...: bits, the lowest of them, and how far above
are those that they are exchanged with; of bytes."""


def test_layouts_are_read_as_the_headers_say() -> None:
    """Thread 5 of the 32 is (1, 1), and value 3 is (1, 1): row 1 + 8, column 2 + 1."""
    assert SUMS.elements()[5, 3] == 32 + 1 + 16 + 8 == 16 * 3 + 9
    for layout, size in ((SUMS, 128), (OF_16_BITS[0], 256), (OF_16_BITS[1], 128), (OF_TF32[0], 128), (OF_TF32[1], 64)):
        assert sorted(layout.elements().ravel()) == list(range(size))


def test_costs_look_where_lanes_hold_their_sums() -> None:
    assert fragment_places((16, 8), (1, 16)).T.tolist() == SUMS.elements().tolist()


MMA = """
extern "C" __global__ void product(const unsigned *left, const unsigned *right, const float *start, float *out)
{
    const int lane = threadIdx.x;
    float sum[4];
    unsigned a[4], b[2];
    for (int w = 0; w < 4; ++w) a[w] = left[4 * lane + w];
    for (int w = 0; w < 2; ++w) b[w] = right[2 * lane + w];
    for (int w = 0; w < 4; ++w) sum[w] = start[4 * lane + w];
    INSTRUCTION(sum, a, b);
    for (int w = 0; w < 4; ++w) out[4 * lane + w] = sum[w];
}
"""


@emulated
@pytest.mark.parametrize(
    ("instruction", "depth", "element", "factors"),
    [
        ("mma_m16n8k16<fp16_t>", 16, "fp16_t", OF_16_BITS),
        ("mma_m16n8k16<bf16_t>", 16, "bf16_t", OF_16_BITS),
        ("mma_m16n8k8", 8, "fp32_t", OF_TF32),
    ],
)
def test_fragments_of_a_warp(instruction: str, depth: int, element: str, factors: tuple[Published, Published]) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.integers(-9, 9, (16, depth)), rng.integers(-9, 9, (8, depth))  # small whole numbers: sums are exact
    start = rng.integers(-99, 99, (16, 8))
    operands = (stored(held(matrix, layout), element) for matrix, layout in zip((left, right), factors, strict=True))
    words = [operand.view(np.uint32).ravel() for operand in operands]
    out = np.empty((32, 4), np.float32)
    inputs = [*words, held(start, SUMS).astype(np.float32).ravel()]
    shown = emulate(MMA.replace("INSTRUCTION", instruction), "product", LaunchShape((1,), 32, 0), inputs, [out])
    assert shown.findings == ()
    np.testing.assert_array_equal(out, held(start + left @ right.T, SUMS))


def held(matrix: npt.NDArray[np.int64], layout: Published) -> npt.NDArray[np.int64]:
    """What each thread holds of a matrix, [threads, values]."""
    return matrix.ravel(order="F")[layout.elements()]


def stored(numbers: npt.NDArray[np.int64], element: str) -> npt.NDArray[np.unsignedinteger]:
    """The bits of small whole numbers in a type, which has all of them."""
    if element == "fp16_t":
        return numbers.astype(np.float16).view(np.uint16)
    words = numbers.astype(np.float32).view(np.uint32)
    return (words >> 16).astype(np.uint16) if element == "bf16_t" else words


@emulated
@pytest.mark.parametrize("element", ["fp16_t", "bf16_t"])
@pytest.mark.parametrize("matrix", SHARED_MATRICES, ids=str)
def test_fragments_of_a_warp_group(matrix: SharedMatrix, element: str) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.integers(-9, 9, (GROUP_ROWS, GROUP_DEPTH)), rng.integers(-9, 9, (GROUP_DEPTH, matrix.columns))
    place = "((step * 128 + thread) * 4 + part) * 2"
    source = changed(matrix.kernel(element), "left[row * 64 + k].bits", f"left[{place}].bits")
    source = changed(source, "left[row * 64 + k + 1].bits", f"left[{place} + 1].bits")
    start = source.index("out[(16 * warp")
    source = source[:start] + f"out[thread * {matrix.columns // 2} + 4 * j + h] = sum[j][h];\n}}\n"
    steps = [held(left[:, k : k + 16], OF_GROUPS) for k in range(0, GROUP_DEPTH, 16)]
    operands = [stored(np.stack(steps), element).ravel(), in_shared_memory(matrix, stored(right, element))]
    out = np.empty((128, matrix.columns // 2), np.float32)
    assert emulate(source, "group_product", matrix.shape, operands, [out]).findings == ()
    np.testing.assert_array_equal(out, held(left @ right, sums_of_groups(matrix.columns)))


def in_shared_memory(matrix: SharedMatrix, numbers: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.uint16]:
    """A right factor [k, n] of 16 bits as published atoms of 8 rows have it, in rows of `swizzle` bytes along n or along k; atoms
    stand one behind another along the rows' number first."""
    rows = numbers if matrix.columns_first else numbers.T
    count, wide = len(rows), matrix.swizzle // 2
    bits, lowest, above = SWIZZLES[matrix.swizzle]
    image = np.zeros(rows.size, np.uint16)
    for (row, column), number in np.ndenumerate(rows):
        place = 2 * (column // wide * count * wide + row * wide + column % wide)
        place ^= (place >> above) & ((1 << bits) - 1 << lowest)
        image[place // 2] = number
    return image


@pytest.mark.parametrize("matrix", SHARED_MATRICES, ids=str)
def test_matrices_of_warp_groups_lie_as_published_atoms_do(matrix: SharedMatrix) -> None:
    """What descriptors are tested with, on the emulator and on hardware."""
    numbers = np.arange(GROUP_DEPTH * matrix.columns, dtype=np.uint16).reshape(GROUP_DEPTH, matrix.columns)
    np.testing.assert_array_equal(matrix.image(numbers), in_shared_memory(matrix, numbers))


@pytest.mark.parametrize("row_bytes", SWIZZLES)
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_swizzles_of_layouts_are_the_published_ones(row_bytes: int, element_bytes: int) -> None:
    bits, lowest, above = SWIZZLES[row_bytes]
    assert swizzle_of(row_bytes, element_bytes) == Swizzle(bits, lowest - int(math.log2(element_bytes)), above)
