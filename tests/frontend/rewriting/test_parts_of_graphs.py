"""Parts of tensors in torch graphs: splits become slices, and concatenations lose what has no elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import mugraph
from mugraph.frontend.partitioning.partition import partition
from mugraph.frontend.rewriting.graph_passes import ready_to_cut, with_padding_in_convolutions, with_slices, without_empty_parts

X = torch.arange(48.0).reshape(4, 12)


def recorded(fn: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    module: fx.GraphModule = make_fx(fn, tracing_mode="fake")(*inputs)
    return module


def calls(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def same(module: fx.GraphModule, fn: Callable[..., Any], *inputs: torch.Tensor) -> None:
    for got, wanted in zip(module(*inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
        assert got.dtype == wanted.dtype
        assert got.stride() == wanted.stride()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: [*x.chunk(3, -1)[::2]],
        lambda x: [*x.split([5, 4, 3], 1)],
        lambda x: [*x.split(5, 1)],
        lambda x: [x.unbind(0)[1] + x.unbind(0)[-1]],
        lambda x: [part * 2 for part in x.chunk(2)],
    ],
)
def test_each_part_is_a_view_by_itself(fn: Callable[..., Any]) -> None:
    module = with_slices(recorded(fn, X))
    assert not any("split" in call or "unbind" in call or "getitem" in call for call in calls(module))
    same(module, fn, X)


def test_a_graph_without_splits_is_left_alone() -> None:
    module = recorded(lambda x: [x + 1], X)
    assert with_slices(module) is module
    assert without_empty_parts(module) is module


@pytest.mark.parametrize(
    ("fn", "left"),
    [
        (lambda x: [torch.cat([x, x[:, :0], x], 1)], 2),
        (lambda x: [torch.cat([torch.empty(0), x])], 1),
        (lambda x: [torch.cat([x[:0], x[:0]])], 2),
        (lambda x: [torch.cat([x[:0].double(), x])], 2),
    ],
)
def test_what_has_no_elements_is_left_out(fn: Callable[..., Any], left: int) -> None:
    module = without_empty_parts(recorded(fn, X))
    (join,) = (node for node in module.graph.nodes if "cat" in str(node.target))
    assert len(join.args[0]) == left
    same(module, fn, X)


def test_a_product_is_not_computed_for_each_of_many_parts() -> None:
    def gates(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        i, f, g, o = (x @ w).chunk(4, -1)
        return o.sigmoid() * torch.tanh(f.sigmoid() * c + i.sigmoid() * g.tanh())

    module = ready_to_cut(recorded(gates, torch.randn(4, 16), torch.randn(16, 32), torch.randn(4, 8)))
    found = partition(module.graph)
    assert [sum(node.op == "matmul" for node in piece.program.nodes) for piece in found.pieces] in ([1, 0], [0])


IMAGE = torch.randn(2, 3, 8, 9)


@pytest.mark.parametrize(
    ("pad", "options", "merged"),
    [
        ((1, 1, 1, 1), {}, True),
        ((2, 2, 1, 1), {"dilation": 2, "stride": (2, 1)}, True),
        ((1, 1), {"padding": (1, 0)}, True),
        ((1, 1, 0, 0, 0, 0), {}, False),
        ((0, 1, 0, 1), {"stride": 2}, False),
        ((1, 1, -1, -1), {}, False),
        ((3, 3, 3, 3), {}, False),
        ((1, 1, 1, 1), {"padding": (2, 2)}, False),
    ],
)
def test_zeros_around_an_image_are_padding(pad: tuple[int, ...], options: dict[str, Any], merged: bool) -> None:
    def convolved(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [torch.conv2d(torch.nn.functional.pad(x, pad), w, **options)]

    weight = torch.randn(4, 3, 3, 3)
    module = with_padding_in_convolutions(recorded(convolved, IMAGE, weight))
    assert any("pad" in call for call in calls(module)) is not merged
    for got, wanted in zip(module(IMAGE, weight), convolved(IMAGE, weight), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_other_borders_of_images_stay() -> None:
    weight = torch.randn(4, 3, 3, 3)

    def ones(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [torch.conv2d(torch.nn.functional.pad(x, (1, 1, 1, 1), value=1.0), w)]

    def read_twice(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
        return [torch.conv2d(padded, w), padded * 2]

    for function in (ones, read_twice):
        module = with_padding_in_convolutions(recorded(function, IMAGE, weight))
        assert any("pad" in call for call in calls(module))
        for got, wanted in zip(module(IMAGE, weight), function(IMAGE, weight), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_gated_unit_is_one_piece() -> None:
    def unit(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        gate, up = (x @ w).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    module = ready_to_cut(recorded(unit, torch.randn(4, 16), torch.randn(16, 32)))
    (piece,) = partition(module.graph).pieces
    assert {"matmul", "silu", "mul"} <= {node.op for node in piece.program.kernels()}


def test_a_function_of_parts_is_one_program() -> None:
    def turned(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        heads = (x @ w).view(6, 2, 8)
        first, second = heads.chunk(2, -1)
        return heads * cos + torch.cat([-second, first], -1) * sin

    inputs = (torch.randn(6, 16), torch.randn(16, 16), torch.randn(6, 1, 8), torch.randn(6, 1, 8))
    opt = mugraph.superoptimize(turned, inputs, profile=False, cache="off", budget=20)
    assert opt.is_one_program
    assert opt.found
    torch.testing.assert_close(opt(*inputs), turned(*inputs), rtol=1e-4, atol=1e-5)
