"""Products of warp groups, emulated: matrices as they lie in shared memory, and what runs beside the threads."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from mugraph.errors import CompilationFailed
from mugraph.lower.warp_groups import SIZES
from mugraph.targets.cuda.emulator import Emulation, Fault, emulate
from mugraph.targets.cuda.nvrtc import compile_cubin
from targets.cuda.kernels import GROUP_DEPTH, GROUP_ROWS, LEFT_MATRIX, SHARED_MATRICES, SharedMatrix, changed

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

ELEMENTS = {"fp16_t": torch.float16, "bf16_t": torch.bfloat16}
PLAIN = SharedMatrix(64, True, 128)


def run(matrix: SharedMatrix, source: str, element: str = "bf16_t", seed: int = 0) -> tuple[Emulation, float]:
    """What running a variant of the kernel showed, and its largest error."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(GROUP_ROWS, GROUP_DEPTH, generator=generator).to(ELEMENTS[element])
    right = torch.randn(GROUP_DEPTH, matrix.columns, generator=generator).to(ELEMENTS[element])
    image = matrix.image(right.view(torch.uint16).numpy())
    out = np.empty((GROUP_ROWS, matrix.columns), np.float32)
    operands = [left.view(torch.uint16).numpy(), image]
    shown = emulate(source, "group_product", matrix.shape, operands, [out], seed)
    return shown, float(np.abs(out - (left.double() @ right.double()).numpy()).max())


@pytest.mark.parametrize("matrix", SHARED_MATRICES, ids=str)
def test_products_of_every_layout(matrix: SharedMatrix) -> None:
    element = "fp16_t" if matrix.columns_first else "bf16_t"
    shown, error = run(matrix, matrix.kernel(element), element)
    assert shown.findings == ()
    assert error < 1e-4


def assert_noticed(shown: Emulation, error: float, fault: Fault | None) -> None:
    """Assert that a planted fault is a finding of its kind, or, where it has none, makes the product wrong."""
    if fault is None:
        assert not error < 0.1
    else:
        assert fault in {finding.fault for finding in shown.findings}


def beside_left(matrix: SharedMatrix, source: str, element: str = "bf16_t") -> tuple[Emulation, float]:
    """The same of a kernel whose left factor lies in shared memory, too."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(GROUP_ROWS, GROUP_DEPTH, generator=generator).to(ELEMENTS[element])
    right = torch.randn(GROUP_DEPTH, matrix.columns, generator=generator).to(ELEMENTS[element])
    images = [LEFT_MATRIX.image(left.T.contiguous().view(torch.uint16).numpy()), matrix.image(right.view(torch.uint16).numpy())]
    out = np.empty((GROUP_ROWS, matrix.columns), np.float32)
    shown = emulate(source, "group_product", matrix.shape_beside_left, images, [out])
    return shown, float(np.abs(out - (left.double() @ right.double()).numpy()).max())


@pytest.mark.parametrize("matrix", SHARED_MATRICES, ids=str)
def test_left_factors_in_shared_memory(matrix: SharedMatrix) -> None:
    element = "bf16_t" if matrix.columns_first else "fp16_t"
    shown, error = beside_left(matrix, matrix.kernel_beside_left(element), element)
    assert shown.findings == ()
    assert error < 1e-4


LEFT_FAULTS: dict[str, tuple[str, str, Fault | None]] = {
    "no proxy fence": ("proxy_fence();", "", Fault.UNFENCED),
    "no wait": ("wgmma_wait<0>();", "", None),
    "a write before the wait": (
        "wgmma_commit();",
        "wgmma_commit(); if (thread == 0) store_words<1>(memory + 8192, {{0u}});",
        Fault.IN_FLIGHT,
    ),
    "another swizzle": ("wgmma_matrix<128>(memory + 8192", "wgmma_matrix<64>(memory + 8192", None),
    "another stride": ("16, 1024)", "16, 512)", None),
    "another matrix for each warp": ("8192 + 32 * step", "8192 + 32 * (warp ^ step)", Fault.DISAGREEMENT),
}


@pytest.mark.parametrize("name", LEFT_FAULTS)
def test_faults_in_left_factors_are_reported_or_give_wrong_results(name: str) -> None:
    old, new, fault = LEFT_FAULTS[name]
    shown, error = beside_left(PLAIN, changed(PLAIN.kernel_beside_left("bf16_t"), old, new))
    assert_noticed(shown, error, fault)


@pytest.mark.parametrize("columns", SIZES)
def test_products_of_every_size_compile_without_spills(columns: int) -> None:
    pytest.importorskip("cuda.core")
    matrix = next(matrix for matrix in SHARED_MATRICES if matrix.columns == columns)
    for source in (matrix.kernel("bf16_t"), matrix.kernel_beside_left("bf16_t")):
        compiled = compile_cubin(source, "sm_90")
        assert compiled.resources["group_product"].spill_bytes == 0


def test_other_architectures_lack_the_unit() -> None:
    pytest.importorskip("cuda.core")
    for architecture in ("sm_80", "sm_100"):
        with pytest.raises(CompilationFailed, match="rejected"):
            compile_cubin(PLAIN.kernel("bf16_t"), architecture)


FAULTS: dict[str, tuple[str, str, Fault | None]] = {
    "no proxy fence": ("proxy_fence();", "", Fault.UNFENCED),
    "no barrier": ("__syncthreads();", "", Fault.RACE),
    "no fence of registers": ("wgmma_fence();", "", Fault.REGISTERS),
    "no commit": ("wgmma_commit();", "", None),
    "no wait": ("wgmma_wait<0>();", "", None),
    "a wait for too few": ("wgmma_wait<0>", "wgmma_wait<1>", None),
    "a write before the wait": (
        "wgmma_commit();",
        "wgmma_commit(); if (thread == 0) store_words<1>(memory, {{0u}});",
        Fault.IN_FLIGHT,
    ),
    "another thread writes behind its own wait": (
        "wgmma_wait<0>();",
        "wgmma_wait<0>(); if (thread == 1) store_words<1>(memory, {{0u}});",
        Fault.RACE,
    ),
    "a part of the left factor is overwritten": ("wgmma_commit();", "wgmma_commit(); parts[1][0] = 0x3f803f80;", None),
    "another swizzle": ("wgmma_matrix<128>", "wgmma_matrix<64>", None),
    "another stride": ("8192, 1024)", "8192, 512)", None),
    "rows along the other dimension": ("64, true>", "64, false>", None),
    "beyond shared memory": ("memory + 16 * 128 * step", "memory + 32 * 128 * step", Fault.OUT_OF_BOUNDS),
    "a warp that does not come": ("    wgmma_fence();", "    if (warp == 3) return; wgmma_fence();", Fault.DIVERGENCE),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_reported_by_kind_or_give_wrong_results(name: str) -> None:
    old, new, fault = FAULTS[name]
    shown, error = run(PLAIN, changed(PLAIN.kernel("bf16_t"), old, new))
    assert_noticed(shown, error, fault)
