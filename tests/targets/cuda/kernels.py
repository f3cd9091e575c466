"""CUDA kernels written by hand, to try the compiler and the emulator with.

`matmul` uses all of a tensor-core kernel's machinery: a pipeline of asynchronous copies, swizzled shared memory,
`ldmatrix`, `mma`, a masked edge. Its faults are what a code generator could get wrong, each one a change to its text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mugraph.lower.tensor_maps import TensorMap
from mugraph.targets.launch import LaunchShape

ROWS, DEPTH, COLUMNS = 16, 160, 96
"""Sizes of `matmul`: rows fewer than a tile for 13 of them, five tiles of depth, three blocks of columns."""
VALID_ROWS = 13
_TILE_DEPTH, _TILE_COLUMNS, _STAGES = 32, 32, 3
_LEFT_BYTES = ROWS * _TILE_DEPTH * 2
_STAGE_BYTES = _LEFT_BYTES + _TILE_DEPTH * _TILE_COLUMNS * 2

MATMUL_SHAPE = LaunchShape(grid=(COLUMNS // _TILE_COLUMNS,), threads=64, shared_bytes=_STAGES * _STAGE_BYTES)

_MATMUL = """
#define STAGES @STAGES
#define STEPS @STEPS

/* 16-byte chunk `chunk` of row `row`, rows of 64 bytes: two rows share the 128 bytes that the banks cover. */
INLINE int swizzled(int row, int chunk) { return 64 * row + 16 * (chunk ^ (row >> 1 & 3)); }

INLINE void fetch(unsigned char *stage, const @T *left, const @T *right, int step)
{
    const int thread = threadIdx.x;
    {
        const int row = thread / 4, chunk = thread % 4;
        const @T *from = left + row * @DEPTH + step * 32 + chunk * 8;
        cp_async<16>(stage + swizzled(row, chunk), from, row < @VALID);
    }
    for (int part = 0; part < 2; ++part) {
        const int row = thread / 4 + 16 * part, chunk = thread % 4;
        const @T *from = right + (step * 32 + row) * @COLUMNS + blockIdx.x * 32 + chunk * 8;
        cp_async<16>(stage + @LEFT_BYTES + swizzled(row, chunk), from);
    }
}

extern "C" __global__ void __launch_bounds__(64) matmul(const @T *left, const @T *right, float *product)
{
    unsigned char *const memory = shared_memory();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[2][4] = {};
    for (int step = 0; step < STAGES - 1; ++step) {
        fetch(memory + step * @STAGE_BYTES, left, right, step);
        cp_async_commit();
    }
    for (int step = 0; step < STEPS; ++step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < STEPS)
            fetch(memory + (step + STAGES - 1) % STAGES * @STAGE_BYTES, left, right, step + STAGES - 1);
        cp_async_commit();
        const unsigned char *const a = memory + step % STAGES * @STAGE_BYTES;
        const unsigned char *const b = a + @LEFT_BYTES;
        for (int inner = 0; inner < 2; ++inner) {
            unsigned left_part[4], right_part[4];
            ldmatrix<4>(left_part, a + swizzled(lane % 16, 2 * inner + lane / 16));
            ldmatrix_transposed<4>(right_part, b + swizzled(16 * inner + lane % 16, 2 * warp + lane / 16));
            mma_m16n8k16<@T>(sum[0], left_part, {right_part[0], right_part[1]});
            mma_m16n8k16<@T>(sum[1], left_part, {right_part[2], right_part[3]});
        }
    }
    for (int half = 0; half < 2; ++half)
        for (int part = 0; part < 4; ++part) {
            const int row = lane / 4 + part / 2 * 8;
            const int column = blockIdx.x * 32 + warp * 16 + half * 8 + lane % 4 * 2 + part % 2;
            if (row < @VALID)
                product[row * @COLUMNS + column] = sum[half][part];
        }
}
"""

_REDUCTION = """
/* The root mean square of each row of 96 numbers, by one block of 96 threads a row. */
extern "C" __global__ void __launch_bounds__(96) root_mean_square(const @T *x, @T *y)
{
    float *const partial = (float *)shared_memory();
    const float value = to_float(x[blockIdx.x * 96 + threadIdx.x]);
    float sum = value * value;
    for (int mask = 16; mask > 0; mask /= 2)
        sum += shfl_xor(sum, mask);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        y[blockIdx.x] = from_float<@T>(sqrt((partial[0] + partial[1] + partial[2]) / 96.0f));
}
"""

ROW_COUNT, ROW_ELEMENTS = 5, 64
"""Sizes of `copied_rows`."""

_COPIED_ROWS = """
/* The sum of 5 rows of 64 numbers, by one block of 64 threads for each such sum. Rows pass through two slots. */
extern "C" __global__ void __launch_bounds__(64) sum_rows(const float *x, float *y)
{
    float *const s = (float *)shared_memory();
    mbarrier_t *const full = (mbarrier_t *)(s + 128);
    const auto fetch = [&](int row) {
        const int slot = row % 2;
        mbarrier_arrive_expect(full + slot, 256);
        bulk_copy(s + 64 * slot, x + (blockIdx.x * 5 + row) * 64, 256, full + slot);
    };
    if (threadIdx.x == 33) {
        for (int slot = 0; slot < 2; ++slot)
            mbarrier_init(full + slot, 1);
        proxy_fence();
        fetch(0);
        fetch(1);
    }
    __syncthreads(); /* set up */
    float sum = 0;
    for (int row = 0; row < 5; ++row) {
        mbarrier_wait(full + row % 2, row / 2 % 2);
        sum += s[64 * (row % 2) + threadIdx.x];
        __syncthreads(); /* read */
        if (threadIdx.x == 33 && row + 2 < 5)
            fetch(row + 2);
    }
    y[blockIdx.x * 64 + threadIdx.x] = sum;
}
"""

GROUP_ROWS, GROUP_DEPTH = 64, 64
"""Sizes of `group_product`: the rows of a warp group, four steps of k."""

_GROUP_PRODUCT = """
/* out[64, N] = left[64, 64] @ a matrix that `image` holds byte by byte as it lies in shared memory. */
extern "C" __global__ void __launch_bounds__(128) group_product(const @T *left, const unsigned *image, float *out)
{
    unsigned char *const memory = shared_memory();
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    for (int word = thread; word < @WORDS; word += 128)
        store_words<1>(memory + 4 * word, {{image[word]}});
    proxy_fence();
    __syncthreads();
    float sum[@N / 8][4] = {};
    unsigned parts[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int row = 16 * warp + lane / 4 + part % 2 * 8, k = 16 * step + lane % 4 * 2 + part / 2 * 8;
            parts[step][part] = left[row * 64 + k].bits | left[row * 64 + k + 1].bits << 16;
        }
    wgmma_registers(sum);
    wgmma_registers(parts);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
        wgmma_m64k16<@T, @N, @FIRST>(sum, parts[step], wgmma_matrix<@W>(memory + @AT, @LEADING, @STRIDE));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_registers(sum);
#pragma unroll
    for (int j = 0; j < @N / 8; ++j)
#pragma unroll
        for (int h = 0; h < 4; ++h)
            out[(16 * warp + lane / 4 + h / 2 * 8) * @N + 8 * j + lane % 4 * 2 + h % 2] = sum[j][h];
}
"""

_LEFT_IN_REGISTERS = _GROUP_PRODUCT[_GROUP_PRODUCT.index("    unsigned parts") : _GROUP_PRODUCT.index("    wgmma_registers(sum)")]
_GROUP_PRODUCT_IN_SHARED = (
    _GROUP_PRODUCT.replace(_LEFT_IN_REGISTERS, "")
    .replace("const @T *left", "const unsigned *left")
    .replace(
        "    proxy_fence();",
        "    for (int word = thread; word < @LEFT_WORDS; word += 128)\n"
        "        store_words<1>(memory + @LEFT_START + 4 * word, {{left[word]}});\n    proxy_fence();",
    )
    .replace("    wgmma_registers(parts);\n", "")
    .replace("parts[step]", "wgmma_matrix<128>(memory + @LEFT_START + 32 * step, 16, 1024)")
)
"""The same where the left factor lies in shared memory as well, `left` being its image: rows of 128 bytes along k."""


@dataclass(frozen=True, slots=True)
class SharedMatrix:
    """A right factor [64, columns] of 16-bit elements as warp groups read it, in rows of `swizzle` bytes along n or k."""

    columns: int
    columns_first: bool
    swizzle: int

    @property
    def shape(self) -> LaunchShape:
        return LaunchShape((1,), threads=128, shared_bytes=GROUP_DEPTH * self.columns * 2)

    @property
    def shape_beside_left(self) -> LaunchShape:
        """With room for a left factor behind the matrix, from a multiple of 1024 bytes on."""
        return replace(self.shape, shared_bytes=self.left_start + GROUP_ROWS * GROUP_DEPTH * 2)

    @property
    def left_start(self) -> int:
        return -(-self.shape.shared_bytes // 1024) * 1024

    def image(self, matrix: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
        """The matrix as it lies in shared memory: row by row of blocks of rows, chunks of 8 elements exchanged in each row."""
        wide = self.swizzle // 2
        rows = matrix if self.columns_first else matrix.T
        blocks = rows.reshape(rows.shape[0], -1, wide).swapaxes(0, 1).reshape(-1, wide // 8, 8)
        number = np.arange(len(blocks)) * self.swizzle // 128
        chunks = np.arange(wide // 8)[None, :] ^ (number % (wide // 8))[:, None]
        return np.take_along_axis(blocks, chunks[:, :, None], 1).ravel()

    def kernel(self, element: str) -> str:
        """The text of `group_product` for this matrix, the left factor in registers."""
        return self._filled(_GROUP_PRODUCT, element)

    def kernel_beside_left(self, element: str) -> str:
        """The same with the left factor in shared memory."""
        return self._filled(_GROUP_PRODUCT_IN_SHARED, element)

    def _filled(self, template: str, element: str) -> str:
        block = (GROUP_DEPTH if self.columns_first else self.columns) * self.swizzle
        along = f"32 * step / {self.swizzle} * {block} + 32 * step % {self.swizzle}"
        values = {
            "T": element,
            "N": self.columns,
            "FIRST": str(self.columns_first).lower(),
            "W": self.swizzle,
            "WORDS": GROUP_DEPTH * self.columns // 2,
            "AT": f"16 * {self.swizzle} * step" if self.columns_first else along,
            "LEADING": block if self.columns_first else 16,
            "STRIDE": 8 * self.swizzle,
            "LEFT_START": self.left_start,
            "LEFT_WORDS": GROUP_ROWS * GROUP_DEPTH // 2,
        }
        return _filled(template, values)


LEFT_MATRIX = SharedMatrix(GROUP_ROWS, False, 128)
"""How the left factor of `kernel_beside_left` lies: as a right one of as many columns, transposed."""


SHARED_MATRICES = (
    *(
        SharedMatrix(columns, True, swizzle)
        for columns in (16, 32, 64, 128)
        for swizzle in (32, 64, 128)
        if swizzle <= 2 * columns
    ),
    *(SharedMatrix(columns, False, swizzle) for columns in (8, 16, 32, 64, 128) for swizzle in (32, 64, 128)),
)


def matmul(element: str) -> str:
    """product[VALID_ROWS, COLUMNS] = left[VALID_ROWS, DEPTH] @ right[DEPTH, COLUMNS]; `element` is `fp16_t` or `bf16_t`."""
    values = {
        "STAGES": _STAGES,
        "STEPS": DEPTH // _TILE_DEPTH,
        "STAGE_BYTES": _STAGE_BYTES,
        "LEFT_BYTES": _LEFT_BYTES,
        "DEPTH": DEPTH,
        "COLUMNS": COLUMNS,
        "VALID": VALID_ROWS,
    }
    return _filled(_MATMUL, values | {"T": element})


def root_mean_square(element: str) -> str:
    """A reduction over threads and warps; `element` is `fp32_t`, `fp16_t` or `bf16_t`."""
    return _filled(_REDUCTION, {"T": element})


def copied_rows() -> str:
    """y[b, :] = sum over r of x[b, r, :], x of ROW_COUNT rows of ROW_ELEMENTS numbers, by bulk copies (sm_90 or later)."""
    return _COPIED_ROWS


def changed(source: str, old: str, new: str) -> str:
    """The source with its only `old` replaced: a fault planted in a kernel."""
    assert source.count(old) == 1, f"{source.count(old)} occurrences of {old!r}"
    return source.replace(old, new)


def _filled(template: str, values: dict[str, object]) -> str:
    for name in sorted(values, key=len, reverse=True):
        template = template.replace(f"@{name}", str(values[name]))
    return template


TF32_SHAPE = LaunchShape((1,), 32, 16)


def tf32_matmul(rounded: str = "to_tf32") -> str:
    """y = start + left @ right by one instruction, left [16, 8], right [8, 8], with the function that makes bits of numbers."""
    return f"""
extern "C" __global__ void matmul(const float *left, const float *right, const float *start, float *y)
{{
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned a[4], b[2];
    for (int w = 0; w < 4; ++w) a[w] = {rounded}(left[(g + w % 2 * 8) * 8 + t + w / 2 * 4]);
    for (int w = 0; w < 2; ++w) b[w] = {rounded}(right[(t + w * 4) * 8 + g]);
    float sum[4];
    for (int e = 0; e < 4; ++e) sum[e] = start[(g + e / 2 * 8) * 8 + 2 * t + e % 2];
    mma_m16n8k8(sum, a, b);
    for (int e = 0; e < 4; ++e) y[(g + e / 2 * 8) * 8 + 2 * t + e % 2] = sum[e];
}}
"""


BOX_WORDS = 1024


def box_shape(matrix: TensorMap) -> LaunchShape:
    """How `copied_box` is launched for a matrix in its only input."""
    return LaunchShape((1,), 64, 2 * BOX_WORDS + 64, ((0, matrix),))


def copied_box(row_bytes: int, box: tuple[int, int], column: int, row: int) -> str:
    """y[BOX_WORDS] = a box of rows of so many bytes from a column and a row on, as it arrives, and 0 (sm_90 or later)."""
    return f"""
extern "C" __global__ void copied_box(const fp16_t *x, fp16_t *y, TENSOR_MAP map)
{{
    fp16_t *const s = (fp16_t *)shared_memory();
    mbarrier_t *const full = (mbarrier_t *)(s + {BOX_WORDS});
    if (threadIdx.x / 32 == 0 && elected()) {{
        mbarrier_init(full, 1);
        proxy_fence();
        mbarrier_arrive_expect(full, {box[0] * row_bytes});
        box_copy(s, map, {column}, {row}, full);
    }}
    __syncthreads();
    mbarrier_wait(full, 0);
    for (int i = threadIdx.x; i < {BOX_WORDS}; i += 64)
        y[i] = i < {box[0] * row_bytes // 2} ? s[i] : fp16_t{{0}};
}}
"""
