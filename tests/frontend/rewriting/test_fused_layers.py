"""Calls of whole transformer layers, written out: what PyTorch's own kernels give, and programs where there was one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import mugraph
from mugraph.frontend.rewriting.fused_layers import DECOMPOSED_LAYERS
from mugraph.integrations.torch_compile import compilations

aten = torch.ops.aten
WIDTH, HEADS, LENGTH = 16, 4, 6
PADDED = torch.arange(LENGTH) >= torch.tensor([[4], [LENGTH]])
CAUSAL = torch.ones(LENGTH, LENGTH).triu(1).bool()
MASKS = {
    "none": (None, None),
    "causal": (CAUSAL, 0),
    "of keys": (PADDED, 1),
    "all keys": (PADDED | torch.tensor([[False], [True]]), 1),
    "both": ((PADDED[:, None, None, :] | CAUSAL).expand(2, HEADS, LENGTH, LENGTH), 2),
    "floats": (torch.zeros(LENGTH, LENGTH).masked_fill(CAUSAL, -torch.inf), 0),
}


def weights(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) / 4 for shape in shapes]


PROJECTIONS = weights((3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,))


@pytest.mark.parametrize("keys", [LENGTH, None], ids=["cross", "self"])
@pytest.mark.parametrize("options", [(True, True), (True, False), (False, True)], ids=["mean", "heads", "none"])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_is_that_of_the_kernel(mask: str, options: tuple[bool, bool], keys: int | None) -> None:
    query, other = weights((2, LENGTH, WIDTH), (2, LENGTH, WIDTH))
    operands = (query, query, query) if keys is None else (query, other, other)
    operator = aten._native_multi_head_attention.default
    arguments = (*operands, WIDTH, HEADS, *PROJECTIONS, MASKS[mask][0], *options, MASKS[mask][1])
    wanted, probabilities = operator(*arguments)
    got, ours = DECOMPOSED_LAYERS[operator](*arguments)
    torch.testing.assert_close(got, wanted, equal_nan=True)
    if options[0]:
        torch.testing.assert_close(ours, probabilities, equal_nan=True)
    else:
        assert ours is None


@pytest.mark.parametrize("use_gelu", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("mask", ["none", "causal", "of keys"])
def test_an_encoder_layer_is_that_of_the_kernel(mask: str, norm_first: bool, use_gelu: bool) -> None:
    (x,) = weights((2, LENGTH, WIDTH))
    rest = weights(*4 * [(WIDTH,)], (32, WIDTH), (32,), (WIDTH, 32), (WIDTH,))
    operator = aten._transformer_encoder_layer_fwd.default
    arguments = (x, WIDTH, HEADS, *PROJECTIONS, use_gelu, norm_first, 1e-5, *rest, *MASKS[mask])
    torch.testing.assert_close(DECOMPOSED_LAYERS[operator](*arguments), operator(*arguments))


def test_an_empty_batch_is_one() -> None:
    operator = aten._native_multi_head_attention.default
    query = torch.empty(0, LENGTH, WIDTH)
    result, probabilities = DECOMPOSED_LAYERS[operator](query, query, query, WIDTH, HEADS, *PROJECTIONS)
    assert result.shape == query.shape
    assert probabilities.shape == (0, LENGTH, LENGTH)


class Attention(nn.Module):
    """PyTorch's own module, called with one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        """Heads put together, and the probabilities."""
        return self.attention(x, x, x)


@pytest.mark.parametrize("make", [lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), Attention])
def test_modules_of_pytorch_are_more_than_one_call(make: Any) -> None:
    module = make().eval()
    (x,) = weights((2, LENGTH, WIDTH))
    torch._dynamo.reset()
    with torch.inference_mode():
        compiled: Any = torch.compile(module, backend="mugraph", options={"budget": 2})
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    products = {aten.linear.default, aten.addmm.default}
    assert products & {node.target for node in compilations[-1].partition.traits}
    found = mugraph.superoptimize(module, (x,), budget=2, cache="off")
    torch.testing.assert_close(found(x), module(x), rtol=1e-4, atol=1e-5)
