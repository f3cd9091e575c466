"""How results lie in memory: as the function's own do in the example call, as whoever calls it may ask for views of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mugraph.frontend import trace
from mugraph.runtime import build

IMAGES = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
ROWS = torch.randn(2, 5, 8)


def heads(x: torch.Tensor) -> torch.Tensor:
    split = x.view(2, 5, 2, 4).transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(split, split, split)


def turned_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.transpose(0, 1).exp(), x.transpose(0, 1).exp()


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: (x * 2).sigmoid(), IMAGES),
        (lambda x: torch.nn.functional.group_norm(x, 3), IMAGES),
        (lambda x: {"half": x.half(), "sum": x.sum(1)}, IMAGES),
        (lambda x: (x * 2).permute(2, 0, 1), ROWS),
        (lambda x: x[:1].transpose(0, 2).tanh(), ROWS),
        (heads, ROWS),
        (turned_twice, ROWS),
    ],
    ids=["images", "norm", "dict", "permuted", "size one", "attention", "equal"],
)
def test_results_lie_as_those_of_the_function(fn: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    traced = trace(fn, (x,))
    ours, wanted = traced.call(build(traced.graph), x), fn(x)
    torch.testing.assert_close(ours, wanted, check_stride=True, rtol=1e-3, atol=1e-3)
    results = torch.utils._pytree.tree_leaves(ours)
    assert len({result.data_ptr() for result in results}) == len(results)


def test_results_lie_as_those_of_the_example_however_arguments_do() -> None:
    traced = trace(lambda x: x * 2, (IMAGES,))
    assert traced.call(build(traced.graph), IMAGES.contiguous()).stride() == IMAGES.stride()


def test_results_that_do_not_fill_their_memory_are_contiguous() -> None:
    traced = trace(lambda x: (x * 2)[..., ::2], (ROWS,))
    assert traced.call(build(traced.graph), ROWS).is_contiguous()


def test_what_lies_in_that_order_is_not_copied_but_for_equal_results() -> None:
    """As results of PyTorch's own calls do."""
    results = trace(turned_twice, (ROWS,)).results
    made = ROWS.transpose(0, 1).exp()
    first, second = results.unflatten([made])
    assert first is made
    assert second is not made
    assert second.stride() == made.stride()
    assert second.data_ptr() != made.data_ptr()
    assert results.unflatten([made.contiguous()])[0].stride() == made.stride()
