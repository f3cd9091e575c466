"""The paper's six workloads through the whole path: found in one kernel, verified, right to float64 in fp32 and bf16.

At full size attention may come in two, one of which combines parts of the keys: predictions, and times, are level on a CPU.
"""

from __future__ import annotations

from typing import Any

import pytest

import mugraph
from mugraph.frontend.workloads import WORKLOADS, workload

torch = pytest.importorskip("torch")

TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
CASES = [(name, norm) for name in WORKLOADS for norm in (("rms", "layer") if name == "qknorm" else (None,))]


def relative_error(got: Any, wanted: Any) -> float:
    """Largest difference, relative to the largest entry."""
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


def check(name: str, norm: str | None, dtype: str, batch: int, size: str) -> mugraph.Superoptimized:
    """Optimize a workload and compare what its candidates compute with the function in float64 on the same numbers."""
    work = workload(name)
    function, inputs = work.function(norm=norm), work.inputs(batch=batch, dtype=dtype, size=size)
    opt = mugraph.superoptimize(function, inputs, profile=False)
    assert opt.certificate.accepted
    assert len(opt.graph.kernels()) <= (2 if size == "full" and name in ("gqa", "qknorm") else 1)
    wanted = function(*(tensor.double() for tensor in inputs))
    assert relative_error(opt(*inputs), wanted) < TOLERANCE[dtype]
    return opt


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("name", "norm"), CASES)
def test_small(name: str, norm: str | None, dtype: str) -> None:
    check(name, norm, dtype, batch=2, size="small")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("name", "norm"), CASES)
def test_full_size(name: str, norm: str | None, dtype: str, batch: int) -> None:
    check(name, norm, dtype, batch, size="full")
