"""Running a traced program and the PyTorch function it came from side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from mugraph.frontend.calls.pytree import Traced
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers away from 0 and from each other, positive and negative, in float64."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def positive(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers between 0.5 and 1.5 in float64."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def run(graph: Graph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The graph's outputs in float64, as torch tensors."""
    arrays = [tensor.detach().to(torch.float64).resolve_neg().numpy() for tensor in tensors]
    return [torch.from_numpy(np.array(array)) for array in evaluate(graph, arrays, FloatArithmetic())]


def assert_agrees(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Traced:
    """Trace `fn` and check that the program gives what it gives: numbers, shapes, dtypes and structure."""
    from mugraph.frontend.recording.torch_trace import recorded_call, traced

    found = traced(recorded_call(fn, args, kwargs))
    with torch.no_grad():
        wanted, structure = tree_flatten(fn(*args, **kwargs))
    got, got_structure = tree_flatten(found.call(lambda *tensors: run(found.graph, tensors), *args, **kwargs))
    assert got_structure == structure
    for theirs, ours in zip(wanted, got, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours, theirs.to(torch.float64), rtol=1e-12, atol=1e-12)
        else:
            assert ours == theirs
    return found
