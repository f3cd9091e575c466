"""Decoding in `torch.compile` with a batch and a cache that vary: attention runs in kernels at every pair of sizes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mugraph.frontend.symbolic_sizes.masked_parts import MaskedPart
from mugraph.integrations.batched_run import BatchedRun
from mugraph.integrations.torch_compile import compilations

from .networks import Decoder


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    compilations.clear()
    chosen: dict[str, Any] = {"budget": 60.0, "keep": "all", "strict": True, **options}
    run: Callable[..., Any] = torch.compile(fn, backend="mugraph", options=chosen)
    return run


def marked(batch: int, keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, k, v = torch.randn(batch, 1, 32), torch.randn(batch, 2, keys, 8), torch.randn(batch, 2, keys, 8)
    for tensor in (x, k, v):
        torch._dynamo.mark_dynamic(tensor, 0)
    for tensor in (k, v):
        torch._dynamo.mark_dynamic(tensor, 2)
    return x, k, v


def test_any_batch_at_any_length_runs_without_compiling_again(caplog: pytest.LogCaptureFixture) -> None:
    model = Decoder().eval()
    fast = compiled(model)
    with torch.inference_mode(), caplog.at_level(logging.INFO, logger="mugraph.torch_compile"):
        made = list[int]()
        for batch, keys in ((5, 9), (8, 20), (32, 3), (37, 4), (2, 3), (3, 100), (7, 64), (9, 65), (31, 2), (41, 16), (6, 777)):
            given = marked(batch, keys)
            torch.testing.assert_close(fast(*given), model(*given), rtol=1e-4, atol=1e-5)
            made.append(len(compilations))
        assert "1 parts of a graph reduce a symbolic size" in caplog.text
        assert made[3] == made[-1], "kernels for 2, 8 and 32 samples, and for rows of up to 128, serve all other calls"
        assert sum(done.partition.byte_share == 1.0 for done in compilations) >= 3


def test_kernels_for_all_batches_share_one_budget() -> None:
    part: Any = SimpleNamespace(at=lambda size: size, places=(0,))
    shares: list[float] = []

    def made(part: MaskedPart, share: float) -> Callable[..., Any]:
        shares.append(share)
        return tuple

    BatchedRun(part, made, compared=True)
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize(
    ("seconds", "batch", "by_pytorch"), [(1e-4, 2, 0), (5e-3, 2, 0), (1e-4, 7, 0), (5e-3, 7, 1), (1e-4, 1, 1)]
)
def test_several_chunks_run_where_they_are_faster_than_one_call(
    monkeypatch: pytest.MonkeyPatch, seconds: float, batch: int, by_pytorch: int
) -> None:
    """One chunk was compared when its kernels were made, and a batch below all chunks has none."""
    calls: list[str] = []
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def run(name: str, seconds: float) -> Callable[..., Any]:
        def called(x: torch.Tensor) -> list[torch.Tensor]:
            calls.append(name)
            now[0] += seconds
            return [x * 2]

        return called

    original = run("original", 1e-3)
    part: Any = SimpleNamespace(at=lambda size: SimpleNamespace(original=original), places=(0,), results=(0,), strides=[None])
    batched = BatchedRun(part, lambda *_: run("chunk", seconds), compared=True)
    x = torch.randn(batch, 3)
    for _ in range(2):
        calls.clear()
        torch.testing.assert_close(batched(x)[0], x * 2)
    assert calls.count("original") == by_pytorch
    assert ("chunk" in calls) is not bool(by_pytorch)


def test_masks_of_samples_are_looked_at_in_their_chunks() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    fast = compiled(attend)
    with torch.inference_mode():
        for batch, keys in ((5, 9), (3, 40), (8, 17)):
            q, k = torch.randn(batch, 2, 1, 8), torch.randn(batch, 2, keys, 8)
            mask = torch.rand(batch, 1, 1, keys) > 0.3
            mask[batch - 1] = False  # a row of which nothing is seen
            for tensor in (q, k, mask):
                torch._dynamo.mark_dynamic(tensor, 0)
            torch._dynamo.mark_dynamic(k, 2)
            torch._dynamo.mark_dynamic(mask, 3)
            torch.testing.assert_close(fast(q, k, mask), attend(q, k, mask), rtol=1e-4, atol=1e-5)
    assert any(done.partition.pieces for done in compilations)


@pytest.mark.parametrize("mix", [lambda x: x.flip(0), lambda x: x - x.mean(0, keepdim=True), lambda x: x.cumsum(0)])
def test_samples_that_are_mixed_are_in_no_kernels(mix: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def mixed(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(mix(q @ k.transpose(-1, -2)), -1) @ k

    fast = compiled(mixed, budget=5.0)
    with torch.inference_mode():
        for batch, keys in ((3, 7), (5, 11)):
            q, k = torch.randn(batch, 1, 8), torch.randn(batch, keys, 8)
            for tensor in (q, k):
                torch._dynamo.mark_dynamic(tensor, 0)
            torch._dynamo.mark_dynamic(k, 1)
            torch.testing.assert_close(fast(q, k), mixed(q, k), rtol=1e-4, atol=1e-5)
    assert not any(done.partition.pieces for done in compilations)
