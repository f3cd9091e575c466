"""Kernels on the CPU emulator: right results from right kernels, and every planted fault reported."""

from __future__ import annotations

import shutil

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mugraph.errors import CompilationFailed, InvalidInput
from mugraph.targets.cuda.emulator import Emulation, Fault, emulate, toolchain
from mugraph.targets.launch import LaunchShape
from targets.cuda.kernels import COLUMNS, DEPTH, MATMUL_SHAPE, VALID_ROWS, changed, matmul, root_mean_square

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

ELEMENTS = {"fp32_t": torch.float32, "fp16_t": torch.float16, "bf16_t": torch.bfloat16}
WARP = LaunchShape((1,), threads=32, shared_bytes=1024)


def array_of(tensor: torch.Tensor) -> npt.NDArray[np.generic]:
    """The tensor's memory; 16-bit types as unsigned integers, for NumPy has no bf16."""
    return (tensor.view(torch.uint16) if tensor.element_size() == 2 else tensor).numpy()


def run_matmul(source: str, element: str = "bf16_t", seed: int = 0) -> tuple[Emulation, float]:
    """What running a variant of `matmul` showed, and its largest error."""
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(shape, generator=generator).to(ELEMENTS[element]) for shape in ((VALID_ROWS, DEPTH), (DEPTH, COLUMNS))
    )
    product = np.empty((VALID_ROWS, COLUMNS), np.float32)
    shown = emulate(source, "matmul", MATMUL_SHAPE, [array_of(left), array_of(right)], [product], seed)
    return shown, float(np.abs(product - (left.double() @ right.double()).numpy()).max())


@pytest.mark.parametrize("element", ["fp16_t", "bf16_t"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_pipelined_tensor_core_product_is_exact_to_fp32_and_clean(element: str, seed: int) -> None:
    shown, error = run_matmul(matmul(element), element, seed)
    assert shown.findings == ()
    assert shown.bank_conflicts == 0 < shown.matrices
    assert error < 1e-4


FAULTS: dict[str, tuple[str, str, Fault]] = {
    "no barrier": ("__syncthreads();", "", Fault.RACE),
    "no wait": ("cp_async_wait<STAGES - 2>();", "", Fault.IN_FLIGHT),
    "a wait for too few": ("cp_async_wait<STAGES - 2>", "cp_async_wait<STAGES - 1>", Fault.IN_FLIGHT),
    "stages that overlap": ("(step + STAGES - 1) % STAGES *", "(step + STAGES - 1) % (STAGES - 1) *", Fault.RACE),
    "no mask on a store": ("if (row < 13)\n                product", "product", Fault.OUT_OF_BOUNDS),
    "no mask on a copy": (", row < 13)", ")", Fault.OUT_OF_BOUNDS),
    "copies from odd elements": ("right + (step", "right + 1 + (step", Fault.MISALIGNED),
    "half of a tile fetched": ("part < 2; ++part", "part < 1; ++part", Fault.UNINITIALIZED),
    "half of the columns": ("half < 2; ++half", "half < 1; ++half", Fault.UNWRITTEN),
    "a store into an input": ("product[row", "((float *)left)[row", Fault.INPUT_WRITTEN),
    "a barrier that some skip": ("__syncthreads();", "if (warp == 0 || step > 0) __syncthreads();", Fault.DIVERGENCE),
    "a far address": ("product[row", "product[1ll << 40 | row", Fault.OUT_OF_BOUNDS),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_reported_by_kind(name: str) -> None:
    old, new, fault = FAULTS[name]
    shown, _ = run_matmul(changed(matmul("bf16_t"), old, new))
    assert fault in {finding.fault for finding in shown.findings}


def test_a_missing_barrier_is_reported_even_where_the_result_is_right() -> None:
    """Thread 63 comes last to the barrier and goes on first, so here thread 0 never overwrites what it reads too early."""
    source = """
    extern "C" __global__ void k(const float *x, float *y) {
        float *s = (float *)shared_memory();
        s[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 63) y[0] = s[0];
        @
        if (threadIdx.x == 0) s[0] = -1;
    }"""
    for barrier, faults in (("__syncthreads();", []), ("", [Fault.RACE])):
        y = np.empty(1, np.float32)
        shown = emulate(source.replace("@", barrier), "k", LaunchShape((1,), 64, 256), [np.ones(64, np.float32)], [y])
        assert y == 1
        assert [finding.fault for finding in shown.findings] == faults


def test_a_swizzle_read_differently_than_written_shows_in_the_result_and_the_banks() -> None:
    plain = changed(
        matmul("bf16_t"), "a + swizzled(lane % 16, 2 * inner + lane / 16)", "a + 64 * (lane % 16) + 32 * inner + lane / 16 * 16"
    )
    shown, error = run_matmul(plain)
    assert error > 1
    assert shown.bank_conflicts > 0


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_reduction_over_warps_and_its_conversions(element: str) -> None:
    x = torch.randn(4, 96).to(ELEMENTS[element])
    y = torch.empty(4, dtype=ELEMENTS[element])
    shown = emulate(root_mean_square(element), "root_mean_square", LaunchShape((4,), 96, 12), [array_of(x)], [array_of(y)])
    assert shown.findings == ()
    torch.testing.assert_close(
        y, x.double().square().mean(1).sqrt().to(y.dtype), rtol=1e-6 if element == "fp32_t" else 1e-2, atol=0
    )


def run_on_a_warp(body: str, values: npt.NDArray[np.float32]) -> tuple[Emulation, npt.NDArray[np.float32]]:
    """Run `body`, which reads x[32] and writes y[32], with one warp."""
    source = f'extern "C" __global__ void k(const float *x, float *y) {{ const int i = threadIdx.x; {body} }}'
    y = np.empty(32, np.float32)
    return emulate(source, "k", WARP, [values], [y]), y


RAMP = np.arange(32, dtype=np.float32)


@pytest.mark.parametrize(
    ("order", "clean"),
    [("__syncwarp();", True), ("__syncthreads();", True), ("shfl_xor(1.0f, 1);", False), ("", False)],
)
def test_only_barriers_order_accesses(order: str, clean: bool) -> None:
    shown, y = run_on_a_warp(f"float *s = (float *)shared_memory(); s[i] = x[i]; {order} y[i] = s[i ^ 1];", RAMP)
    assert (shown.findings == ()) == clean
    if clean:
        np.testing.assert_array_equal(y, RAMP.reshape(16, 2)[:, ::-1].ravel())


@pytest.mark.parametrize("readers", ["i == 0", "i == 5", "i < 2", "i % 2", "i == 0 || i == 31", "true"])
def test_a_write_races_with_any_reader_but_the_writer_itself(readers: str) -> None:
    body = f"""
        float *s = (float *)shared_memory();
        if (i == 5) s[0] = x[0];
        __syncwarp();
        float seen = 0;
        if ({readers}) seen = s[0];
        shfl_xor(seen, 1);
        if (i == 5) s[0] = 1;
        y[i] = seen;
    """
    shown, _ = run_on_a_warp(body, RAMP)
    assert (shown.findings == ()) == (readers == "i == 5")


def test_the_compiler_s_own_linker_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "float *s = (float *)shared_memory();\ns[i] = x[i];\ny[i] = s[31 - i];\n"
    shown, _ = run_on_a_warp(body, RAMP)
    monkeypatch.setattr(toolchain, "_linker", tuple)
    again, _ = run_on_a_warp(f"{body} ", RAMP)  # another text, which is linked anew
    assert again.findings == shown.findings
    assert {finding.line for finding in again.findings} == {2, 3}


def test_blocks_are_not_ordered() -> None:
    source = 'extern "C" __global__ void k(float *y) { if (threadIdx.x == 0) y[0] = blockIdx.x; }'
    one, two = (emulate(source, "k", LaunchShape((blocks,), 32, 0), [], [np.empty(1, np.float32)]) for blocks in (1, 2))
    assert one.findings == ()
    assert [(finding.fault, finding.block) for finding in two.findings] == [(Fault.RACE, 1)]


def test_shared_memory_holds_nothing_of_the_block_before() -> None:
    source = """
    extern "C" __global__ void k(float *y) {
        float *s = (float *)shared_memory();
        if (blockIdx.x == 0) s[threadIdx.x] = 1;
        y[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
    }"""
    shown = emulate(source, "k", LaunchShape((2,), 32, 128), [], [np.empty(64, np.float32)])
    (finding,) = shown.findings
    assert (finding.fault, finding.block, finding.count) == (Fault.UNINITIALIZED, 1, 32)


def test_a_finding_names_kernel_line_place_and_threads() -> None:
    body = "float *s = (float *)shared_memory();\ns[i] = x[i];\ny[i] = s[31 - i];"
    shown, _ = run_on_a_warp(body, RAMP)
    race = next(finding for finding in shown.findings if finding.fault is Fault.RACE and finding.line == 2)
    assert (race.kernel, race.place, race.bytes, race.block, race.barriers) == ("k", "shared memory", 4, 0, 0)
    assert race.other == 31 - race.thread
    assert str(race).startswith(
        f"k, line 2: thread {race.thread} of block 0, after 0 barriers, at byte {4 * race.thread} of shared"
    )


def test_what_no_launch_can_have_is_refused() -> None:
    source = 'extern "C" __global__ void k(float *y) { y[threadIdx.x] = 0; }'
    y = np.empty(64, np.float32)
    with pytest.raises(InvalidInput, match="whole warps"):
        emulate(source, "k", LaunchShape((1,), 48, 0), [], [y])
    with pytest.raises(InvalidInput, match="contiguous"):
        emulate(source, "k", WARP, [], [y[::2]])
    with pytest.raises(InvalidInput, match="'other'"):
        emulate(source, "other", WARP, [], [y])
    with pytest.raises(CompilationFailed, match="nonsense"):
        emulate("nonsense", "k", WARP, [], [y])


def test_shared_memory_outside_every_buffer_is_out_of_bounds() -> None:
    source = """
    extern "C" __global__ void k(const float *x, float *y) {
        float *s = (float *)shared_memory();
        s[threadIdx.x] = x[threadIdx.x];
        y[threadIdx.x] = s[threadIdx.x];
    }"""
    y = np.empty(32, np.float32)
    whole, halves, short, late = {"a": (0, 128)}, {"a": (0, 64), "b": (64, 64)}, {"a": (0, 124)}, {"a": (4, 124)}
    for regions, count in (({}, 0), (whole, 0), (halves, 0), (short, 1), (late, 1)):
        shown = emulate(source, "k", WARP, [RAMP], [y], regions=regions)
        assert [finding.count for finding in shown.findings] == [count] * 2 * count
        assert {finding.fault for finding in shown.findings} <= {Fault.OUT_OF_BOUNDS}


def test_findings_name_the_buffers_in_shared_memory() -> None:
    source = """
    extern "C" __global__ void k(float *y) {
        float *s = (float *)shared_memory();
        y[threadIdx.x] = s[threadIdx.x] + s[32] + s[64];
    }"""
    regions = {"first": (0, 128), "second": (128, 64), "third": (128, 32)}
    shown = emulate(source, "k", WARP, [], [np.empty(32, np.float32)], regions=regions)
    assert [(finding.fault, finding.place) for finding in shown.findings] == [
        (Fault.UNINITIALIZED, "shared memory (first)"),
        (Fault.UNINITIALIZED, "shared memory (second or third)"),
        (Fault.OUT_OF_BOUNDS, "shared memory"),
    ]


@pytest.mark.parametrize(
    ("index", "expected"), [("i", 1), ("0", 1), ("i * 2", 2), ("i * 32", 32), ("i * 33", 1), ("i / 2 * 32", 16)]
)
def test_wavefronts_are_those_of_the_busiest_bank(index: str, expected: int) -> None:
    """Two accesses at these places, and one that neighbouring lanes make together."""
    source = f"""
    extern "C" __global__ void k(const float *x, float *y) {{
        float *s = (float *)shared_memory();
        const int i = threadIdx.x;
        s[i] = x[i];
        __syncthreads();
        y[i] = *(volatile float *)(s + ({index})) + *(volatile float *)(s + ({index}));
    }}"""
    y, shape = np.empty(32, np.float32), LaunchShape((1,), 32, 8192)
    assert emulate(source, "k", shape, [RAMP], [y], count_wavefronts=True).wavefronts == 1 + 2 * expected
    assert emulate(source, "k", shape, [RAMP], [y]).wavefronts == 0


def test_wide_accesses_go_in_groups_of_128_bytes() -> None:
    source = """
    extern "C" __global__ void k(float *y) {
        float *s = (float *)shared_memory();
        const int i = threadIdx.x;
        store_words<4>(s + 4 * i, words<4>{{1, 2, 3, 4}});
        y[i] = 0;
    }"""
    shown = emulate(source, "k", LaunchShape((2,), 32, 512), [], [np.empty(32, np.float32)], count_wavefronts=True)
    assert shown.wavefronts == 2 * 4


NUMBERS = 'extern "C" __global__ void numbers(fp32_t *out) { if (threadIdx.x == 0) out[blockIdx.x] = blockIdx.x; }'


def test_some_blocks_of_a_grid_run_and_write_what_is_theirs() -> None:
    grid, numbers = LaunchShape((6,), threads=32, shared_bytes=0), np.empty(6, np.float32)
    shown = emulate(NUMBERS, "numbers", grid, [], [numbers], blocks=[4, 1])
    assert (shown.blocks, shown.findings) == (2, ())
    np.testing.assert_array_equal(numbers, [np.nan, 1, np.nan, np.nan, 4, np.nan])
    whole = emulate(NUMBERS, "numbers", grid, [], [numbers])
    assert whole.blocks == 6
    np.testing.assert_array_equal(numbers, range(6))


def test_no_block_but_the_first_is_begun_when_time_is_over() -> None:
    grid, numbers = LaunchShape((6,), threads=32, shared_bytes=0), np.empty(6, np.float32)
    shown = emulate(NUMBERS, "numbers", grid, [], [numbers], blocks=[3, 0], seconds=1e-9)
    assert (shown.blocks, shown.findings) == (1, ())
    np.testing.assert_array_equal(numbers, [np.nan, np.nan, np.nan, 3, np.nan, np.nan])


def test_blocks_that_a_grid_does_not_have_are_refused() -> None:
    grid, numbers = LaunchShape((6,), threads=32, shared_bytes=0), np.empty(6, np.float32)
    with pytest.raises(InvalidInput, match=r"a grid of 6 blocks has none of the numbers \[6\]"):
        emulate(NUMBERS, "numbers", grid, [], [numbers], blocks=[6])
