"""What the benchmark of rounded products compares: the same kernels, of which one set may fuse products with sums."""

from __future__ import annotations

import pytest
from benchmarks.rounded_products import FUSED, ROUNDED, both, wrong

from lower.graphs import attention
from mugraph.lower import construct
from mugraph.runtime import Executable
from mugraph.targets.triton.machine import Triton

GRAPH = construct(attention(queries=4, keys=128, width=32, loop=2))


def test_cuda_kernels_differ_in_what_keeps_products_rounded() -> None:
    pytest.importorskip("cuda.core", reason="kernels are compiled by NVRTC; pip install 'mugraph[cuda]'")
    built = both(GRAPH, "cuda:sm_90")
    texts = {which: "".join(executable.sources.values()) for which, executable in built.items()}
    assert "rounded(" in texts[ROUNDED]
    assert texts[FUSED] == texts[ROUNDED].replace("rounded(", "(")
    assert all(figures.registers > 0 for executable in built.values() for figures in executable.resources)


def test_triton_fuses_more_products_where_it_may() -> None:
    pytest.importorskip("triton", reason="kernels are compiled by Triton; pip install 'mugraph[triton]'")

    def fused(executable: Executable) -> int:
        machine = executable.machine
        assert isinstance(machine, Triton)
        kernels = (launch.kernel for launch in machine.lower(GRAPH).values())
        return sum(machine.compiled(kernel, executable.sources).handle.asm["ptx"].count("fma.rn") for kernel in kernels)

    built = both(GRAPH, "triton:sm_90")
    assert "enable_fp_fusion=False" in built[ROUNDED].sources["kernels.py"]
    assert "enable_fp_fusion" not in built[FUSED].sources["kernels.py"]
    assert fused(built[FUSED]) > fused(built[ROUNDED])


def test_only_what_is_kept_has_to_be_right() -> None:
    variants = {ROUNDED: {"right": True}, FUSED: {"right": False}}
    assert not wrong([{"variants": variants}])
    assert wrong([{"variants": {**variants, ROUNDED: {"right": False}}}])
