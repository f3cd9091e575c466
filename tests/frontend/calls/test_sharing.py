"""Results that share memory: they are made by views of one tensor, whatever kernels compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.frontend.partitioning.partition import partition
from mugraph.frontend.partitioning.splice import spliced
from mugraph.frontend.rewriting.graph_passes import viewed, with_views_of_results, without_copies
from mugraph.runtime import build

Function = Callable[..., tuple[torch.Tensor, ...]]


def recorded(fn: Function, *inputs: torch.Tensor) -> fx.GraphModule:
    with torch.no_grad():
        module: fx.GraphModule = make_fx(fn, tracing_mode="fake")(*inputs)
    return module


def normal(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def a_tensor_and_a_view(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = normal(x) @ w
    heads = product.view(4, 4, 16)
    return product, (heads * heads).sum(-1).sqrt(), heads


def two_views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = normal(x) @ w
    heads, turned = product.view(4, 4, 16), product.t()
    return heads.softmax(-1), heads, turned, turned @ x


def a_view_of_a_view(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = normal(x) @ w
    heads = product.view(4, 4, 16).transpose(0, 1)
    return heads, heads.unsqueeze(0), (heads * heads).sum(-1)


def parts(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = normal(x) @ w
    first, second = product.chunk(2, dim=-1)
    return product, first, second, second.sum(-1)


@pytest.mark.parametrize("fn", [a_tensor_and_a_view, two_views, a_view_of_a_view, parts], ids=lambda fn: str(fn.__name__))
def test_a_change_of_one_result_shows_in_those_that_share_its_memory(fn: Function) -> None:
    inputs = (torch.randn(4, 32), torch.randn(32, 64) / 6)
    module = with_views_of_results(recorded(fn, *inputs))
    found = partition(module.graph)
    assert found.pieces
    run = spliced(module, found, {piece: build(piece.program) for piece in found.pieces})
    for changed in range(len(fn(*inputs))):
        ours, wanted = run(*inputs), fn(*inputs)
        for results in (ours, wanted):
            results[changed].mul_(2.0)
        torch.testing.assert_close(list(ours), list(wanted), rtol=1e-4, atol=1e-4)
        assert [result.stride() for result in ours] == [result.stride() for result in wanted]


def test_a_change_of_a_view_of_an_argument_shows_in_it_though_a_program_reads_the_view() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.t()
        return turned, (turned * 2).exp().sum(1) @ w

    inputs = (torch.randn(4, 32), torch.randn(32, 64))
    module = with_views_of_results(recorded(fn, *inputs))
    (piece,) = (found := partition(module.graph)).pieces
    assert all(viewed(node) is None for node in piece.outputs)
    results = spliced(module, found, {piece: build(piece.program)})(*inputs)
    results[0].mul_(2.0)
    torch.testing.assert_close(inputs[0].t(), results[0], rtol=0, atol=0)


def test_results_with_memory_of_their_own_change_nothing() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x @ w
        return product.t(), product + 1, product.clone()

    module = recorded(fn, torch.randn(4, 32), torch.randn(32, 64))
    assert with_views_of_results(module) is module


def test_schemas_say_what_is_a_view() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.view(-1), x.chunk(2)[0], x.clone(), x.relu(), x.t().unsqueeze(0)

    module = recorded(fn, torch.randn(4, 4))
    views = {str(node) for node in module.graph.nodes if viewed(node) is not None}
    assert views == {"view", "split", "getitem", "getitem_1", "t", "unsqueeze"}


def clones(fn: Function, *inputs: torch.Tensor) -> int:
    """How many clones are left of a function."""
    module = recorded(fn, *inputs)
    fewer = without_copies(module)
    torch.testing.assert_close(list(fewer(*inputs)), list(fn(*inputs)), rtol=0, atol=0)
    return sum(node.target is torch.ops.aten.clone.default for node in fewer.graph.nodes)


def test_clones_that_calls_only_compute_with_are_left_out() -> None:
    x = torch.randn(4, 8)
    assert clones(lambda x: ((x * 2).clone() + 1, x.clone().view(32).exp()), x) == 0
    assert clones(lambda x: (x.clone().t().clone() @ x,), x) == 0


def test_clones_that_are_returned_or_brought_into_another_layout_stay() -> None:
    x = torch.randn(4, 8)
    assert clones(lambda x: (x.clone(),), x) == 1
    assert clones(lambda x: (x, x.clone().view(32)[4:]), x) == 1
    assert clones(lambda x: (x.t().clone(memory_format=torch.contiguous_format) + 1,), x) == 1
    assert clones(lambda x: (x.clone().add_(1), x + 1), x) == 1


def test_clones_that_carry_out_a_conjugation_or_a_sign_stay() -> None:
    """A conjugate is a mark on the memory until it is copied, and so is the sign of its imaginary part."""
    x = torch.randn(4, 8)
    assert clones(lambda x: (torch.view_as_real(torch.fft.rfft(x).conj().resolve_conj()) + 1,), x) == 1
    assert clones(lambda x: (torch.fft.rfft(x).conj().imag.clone().view(torch.int32) + 1,), x) == 1
    assert clones(lambda x: (torch.view_as_real(torch.fft.rfft(x).clone()) + 1,), x) == 0
