"""Functions in pieces on another device than they were recorded on: what their graphs hold and make lies where tensors do."""

from __future__ import annotations

import torch
from torch import fx

import mugraph
from mugraph.frontend.rewriting.graph_passes import on_device

META = torch.device("meta")


def test_what_a_graph_holds_and_makes_is_moved() -> None:
    graph = fx.Graph()
    x, held = graph.placeholder("x"), graph.get_attr("held")
    zeros = graph.call_function(torch.ops.aten.zeros.default, ([3],), {"device": torch.device("cpu")})
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (x, held)), zeros))
    module = fx.GraphModule({"held": torch.ones(3)}, graph)
    total, made = on_device(module, META)(torch.ones(3, device=META))
    assert total.device == made.device == META
    assert all(tensor.device.type == "cpu" for tensor in module(torch.ones(3)))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    x = x.cumsum(0)
    first, second = x.chunk(2, -1)
    return torch.exp(x * cos + torch.cat([-second, first], -1) * sin)


def test_matrices_that_arrange_blocks_lie_where_tensors_do() -> None:
    inputs = torch.randn(64, 128) / 8, torch.randn(64, 128), torch.randn(64, 128)
    opt = mugraph.superoptimize(rotated, inputs, "cuda:sm_90", budget=30.0)
    assert not opt.is_one_program
    held = dict(opt.run.named_buffers())  # type: ignore[attr-defined]
    assert held, "the turned halves are a product with a matrix"
    there = opt._run_on([torch.empty(64, 128, device=META)])  # type: ignore[attr-defined]
    assert {tensor.device for tensor in dict(there.named_buffers()).values()} == {META}
    assert there is opt._run_on([torch.empty((), device="cpu"), torch.empty(64, 128, device=META)])  # type: ignore[attr-defined]
    assert opt._run_on([torch.empty(64, 128)]) is opt.run  # type: ignore[attr-defined]
