"""Sizes that nobody marked: by default, and with `dynamic=True`, kernels run any of them once Dynamo has made its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from integrations.test_compared_graph import Layer, Prompt, assert_right
from integrations.test_rows import compiled
from mugraph.integrations.torch_compile import compilations

ALL: dict[str, Any] = {"budget": 20.0, "keep": "all", "strict": True}


def prompt(length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(50, (1, length)),)


def tokens(batch: int, keys: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 1, 16), *(torch.randn(batch, 2, keys, 8) for _ in range(2))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("made", "arguments", "sizes"),
    [
        (Prompt, prompt, [(20,), (33,), (7,), (61,), (48,), (33,), (20,), (2,)]),
        (Layer, tokens, [(1, 40), (1, 41), (1, 42), (1, 43), (1, 90), (1, 40), (1, 3)]),
        (Layer, tokens, [(5, 40), (6, 41), (3, 42), (7, 80), (9, 33), (3, 42), (3, 7)]),
    ],
    ids=["prompt", "tokens", "tokens of a batch"],
)
def test_nothing_waits_behind_the_graphs_of_dynamo(
    made: Callable[[], torch.nn.Module], arguments: Callable[..., tuple[torch.Tensor, ...]], sizes: Any, dynamic: bool | None
) -> None:
    """One graph where everything varies, and by default one for the first sizes and one for all: later calls compile nothing."""
    model = made().eval()
    fast = compiled(model, ALL, dynamic)
    wanted = 1 if dynamic else 2
    begun = counters["stats"]["unique_graphs"]
    with torch.inference_mode():
        for each in sizes[:wanted]:
            assert_right(fast, model, *arguments(*each))
        done = compilations.in_all
        of_any_size = list(compilations)[wanted - 1 :]  # behind that of the first sizes
        assert any(made.partition.pieces for made in of_any_size), "kernels, from the first call of the graph on"
        for each in sizes[wanted:]:
            assert_right(fast, model, *arguments(*each))
    assert counters["stats"]["unique_graphs"] - begun == wanted
    assert compilations.in_all == done, "no size waits for kernels of its own"
