"""Products beside cuBLAS: what the variants of a kernel lack, and that they compute the same without it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from benchmarks.gpu_products import FEW_ROWS, ROWS, best_kernel, case_of, cases, summary, without_lag, without_parts

from mugraph.frontend import trace
from mugraph.ir import DType, Graph
from mugraph.lower.check import check
from mugraph.lower.tile_form import Kernel
from mugraph.targets.cuda.emulated import EmulatedCuda
from targets.test_cuda import ERRORS, emulated
from targets.test_lagging_rings import GRAPHS as LAGGING
from targets.test_lagging_rings import MACHINE
from targets.test_parts_of_panels import GRAPHS as PARTED

TARGET = "cuda:sm_90:h200"


def lowered(graph: Graph) -> Kernel:
    (launch,) = MACHINE.lower(graph).values()
    return launch.kernel


def changed(graph: Graph, change: Any) -> EmulatedCuda:
    """The emulator of kernels that lack something."""
    (launch,) = MACHINE.lower(graph).values()
    text = MACHINE.print([change(launch.kernel)])["kernels.cu"]
    return EmulatedCuda(MACHINE, edit=lambda printed: text)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
@pytest.mark.parametrize(
    ("graph", "change"), [(LAGGING["two groups"], without_lag), (PARTED["two parts"][0], without_parts)], ids=["lag", "parts"]
)
def test_kernels_are_right_without_what_variants_lack(graph: Graph, change: Any) -> None:
    kernel = lowered(graph)
    assert change(kernel) != kernel
    check(change(kernel))
    assert change(change(kernel)) == change(kernel)
    on = changed(graph, change)
    assert emulated(graph, on) < ERRORS[DType.BF16]
    assert on.findings == []
    printed = MACHINE.print([kernel])["kernels.cu"]
    assert on.edit(printed) != printed


def test_cases_are_all_rows_of_both_sizes_and_norms_of_few() -> None:
    found = cases(TARGET)
    assert len(found) == 2 * len(ROWS) + len(FEW_ROWS)
    assert {case["rows"] for case in found if case["what"] != "rmsnorm"} == {*ROWS}
    function, (x, weight) = case_of("256x512", 3)
    assert (x.shape, weight.shape, x.dtype) == ((3, 256), (256, 512), torch.bfloat16)
    assert function(x, weight).shape == (3, 512)


def test_the_kernel_is_one_of_our_own() -> None:
    function, inputs = case_of("1024x1024", 64)
    graph, predicted = best_kernel(trace(function, inputs).graph, TARGET)
    assert predicted > 0
    assert all(node.body is not None for node in graph.kernels())


def test_figures_are_times_or_what_the_compiler_says() -> None:
    entry = {"what": "64x64", "rows": 8, "cold": None, "variants": {"as described": {"kernels": [{"registers": 32}]}}}
    assert summary([entry]) == {"64x64, 8 rows": {"as described": [32]}}
    assert summary([{**entry, "cold": {"PyTorch": 1.5e-6}}]) == {"64x64, 8 rows": {"PyTorch": 1.5}}
