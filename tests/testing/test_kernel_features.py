"""Features of lowered kernels, on kernels that are known to have them."""

from __future__ import annotations

from lower.graphs import attention, rms_norm_linear
from mugraph.devices import Engines
from mugraph.ir import DType, Graph
from mugraph.lower import cooperative, lower
from mugraph.lower.tile_form import Kernel
from mugraph.testing.kernel_features import FEATURES, features


def kernel_of(graph: Graph, engines: Engines | None = None) -> Kernel:
    (launch,) = lower(graph).values()
    return cooperative(launch.kernel, 100_000, engines=engines or Engines())


def test_a_kernel_has_the_features_of_its_schedule() -> None:
    graph = rms_norm_linear(rows=8, inner=512, columns=128, grid=2, loop=2, dtype=DType.BF16)
    threads, bulk = kernel_of(graph), kernel_of(graph, Engines(bulk_row_bytes=128))
    common = {
        "loop",
        "grid",
        "replicas",
        "padding",
        "ring",
        "swizzle",
        "sums in registers",
        "reductions in registers",
        "matrix units",
    }
    assert set(features([threads])) == common | {"staged inputs"}
    assert set(features([bulk])) == common | {"staged inputs", "bulk copies"}


def test_blocks_that_share_nothing_are_no_replicas() -> None:
    assert "replicas" not in features([kernel_of(attention(queries=16, keys=64, width=32, loop=2, dtype=DType.BF16))])
    assert "replicas" in features([kernel_of(rms_norm_linear(grid=2))])
    assert "grid" not in features([kernel_of(rms_norm_linear(grid=1))])


def test_several_kernels_are_a_feature() -> None:
    kernel = kernel_of(rms_norm_linear(rows=4, inner=32, columns=8, grid=1, loop=1))
    assert set(features([kernel])) < set(FEATURES)
    assert features([kernel, kernel]) == [*features([kernel]), "several kernels"]
