"""Products too large for a CPU, found, proved and compared for a GPU that is not here, in seconds of processor time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mugraph

pytestmark = [pytest.mark.slow, pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")]
SIZE, BUDGET, PROCESSOR_SECONDS = 8192, 60, 30

PRODUCTS: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "plain": (lambda x, w: x @ w.to(x.dtype), "xw"),
    "a sum of two": (lambda x, y, w: x @ w.to(x.dtype) + y @ w.to(x.dtype), "xxw"),
    "with bias and GELU": (lambda x, w, b: torch.nn.functional.gelu(x @ w.to(x.dtype) + b), "xwb"),
}
TYPES = {
    "fp16": (torch.float16, torch.float16),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "weights of fp8": (torch.bfloat16, torch.float8_e4m3fn),
}


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_8192_cubed_are_found_and_compared(name: str, types: str, tmp_path: Path) -> None:
    (function, kinds), (inner, weights) = PRODUCTS[name], TYPES[types]
    shapes = {"x": ((SIZE, SIZE), inner), "w": ((SIZE, SIZE), weights), "b": ((SIZE,), inner)}
    inputs = tuple(torch.randn(shapes[kind][0], dtype=inner).to(shapes[kind][1]) for kind in kinds)
    begun = time.process_time()
    opt = mugraph.superoptimize(function, inputs, target="cuda:sm_90", budget=BUDGET, cache="off")
    assert time.process_time() - begun < PROCESSOR_SECONDS
    assert opt.found
    floats = opt.best.certificate.floats
    assert floats is not None
    assert floats.stable
    assert [each.outputs for each in floats.blocks] == [(0,), (1,)]
    assert all(4 <= each.chosen < each.blocks for each in floats.blocks)
    saved = mugraph.load(opt.save(tmp_path / "out")).best.certificate.floats
    assert saved == floats
