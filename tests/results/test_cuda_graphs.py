"""Results as CUDA graphs, without a GPU; what is captured and replayed is checked on a stub of the driver (runtime/cuda)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lower.graphs import rms_norm_linear
from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.frontend.calls.calling import Positional
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime import build

torch = pytest.importorskip("torch")


def result(target: str) -> Superoptimized:
    """What a search might have returned, without its evidence."""
    graph, unknown = rms_norm_linear(), cast("Any", None)
    return Superoptimized(graph, unknown, (), unknown, build(graph, target), Positional.of(graph), target)


def test_a_result_for_a_cpu_is_no_cuda_graph() -> None:
    with pytest.raises(InvalidInput, match="a result for cpu is no CUDA graph; call it as it is, or optimize for a GPU"):
        result("cpu").graphed()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_nothing_is_loaded_or_captured() -> None:
    pytest.importorskip("cuda.core", reason="kernels are compiled with cuda-core; pip install 'mugraph[cuda]'")
    opt = result("cuda:sm_90")
    for call in (opt.graphed, opt.executable.load):
        with pytest.raises(TargetUnavailable, match="needs an NVIDIA GPU to run"):
            call()
