"""The table of what kernels should do on a GPU: bytes, chains and shares of kernels that can be counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from benchmarks.gpu_expected import chain, in_flight, issue_share, main, rows, table

from mugraph.devices import device_for
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import construct
from mugraph.lower.tile_form import Kernel
from mugraph.targets.cuda.machine import Cuda

H100 = device_for("cuda:sm_90")


def product(columns: int, loop: int) -> Graph:
    """x @ w of 16 x 1024 x columns, 64 columns a block."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (16, 1024), DType.BF16), kernel.input("w", (1024, columns), DType.BF16)
    block = GraphBuilder(Level.BLOCK, grid=(columns // 64,), loop=loop)
    rows, weight = block.iterator(0, kernel.tensor(x), (None,), 1), block.iterator(1, kernel.tensor(w), (1,), 0)
    total = block.add("accumulate", block.add("matmul", rows, weight), combine="sum")
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(1,))]), [x, w]))


def lowered(graph: Graph) -> Kernel:
    (launch,) = Cuda.described("cuda:sm_90").lower(construct(graph)).values()
    return launch.kernel


@pytest.mark.parametrize("loop", [1, 4])
def test_chains_and_bytes_of_a_product_are_those_of_its_ring(loop: int) -> None:
    kernel = lowered(product(8192, loop))
    assert kernel.ring is not None
    assert chain(kernel) == 1024 // 16
    assert in_flight(kernel, H100) == (kernel.ring.stages - 1) * kernel.ring.slot * DType.BF16.bytes
    assert in_flight(replace(kernel, grid=(1000,), resident=2), H100) == 2 * in_flight(kernel, H100)


def test_a_kernel_without_a_ring_has_a_vector_of_each_thread_on_its_way() -> None:
    kernel = replace(lowered(product(8192, 4)), ring=None)
    assert in_flight(kernel, H100) == 16 * kernel.threads


def test_steps_of_a_loop_take_issue_slots() -> None:
    (one,), (many,) = ([n.body for n in product(8192, loop).kernels() if n.body is not None] for loop in (1, 64))
    assert 0 < issue_share(one, H100) < issue_share(many, H100) < 1


def test_rows_stand_beside_the_bound_which_no_prediction_goes_below() -> None:
    found = list(rows("gated-mlp", 1, "cuda:sm_90"))
    assert all(0 < row.bound < row.predicted and math.isfinite(row.issue_share) for row in found)
    header, rule, *lines = table(found)
    assert len(lines) == len(found)
    assert all(line.count("|") == header.count("|") == rule.count("|") for line in lines)


@pytest.mark.parametrize("target", ["cpu", "triton:sm_90", "cuda:sm_77"])
def test_other_targets_than_those_of_cuda_are_refused(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--targets", target])
    assert target in capsys.readouterr().err
