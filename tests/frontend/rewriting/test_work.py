"""What calls cost: bytes and floating-point operations, by the operator table or by PyTorch's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.frontend.partitioning.partition import partition
from mugraph.frontend.rewriting.node_traits import CallWork, work_of_call


def calls(fn: Callable[..., Any], *inputs: torch.Tensor) -> dict[str, fx.Node]:
    """The calls that `fn` makes, by the last of each name."""
    with torch.no_grad():
        graph = make_fx(fn, tracing_mode="fake")(*inputs).graph
    return {node.name: node for node in graph.nodes if node.op == "call_function"}


def test_a_product_reads_its_factors_and_writes_its_result() -> None:
    product = calls(torch.matmul, torch.randn(4, 8), torch.randn(8, 16))["mm"]
    assert work_of_call(product) == CallWork(bytes=4 * (4 * 8 + 8 * 16 + 4 * 16), flops=2 * 4 * 8 * 16)


def test_views_cost_nothing() -> None:
    found = calls(lambda x: x.t().chunk(2)[0].unsqueeze(0), torch.randn(4, 8))
    assert {work_of_call(node) for node in found.values()} == {CallWork()}


def test_a_lookup_reads_what_it_gives_and_no_more_of_the_table() -> None:
    table, ids = torch.randn(1000, 8), torch.tensor([3, 5])
    for lookup in (lambda x, i: torch.nn.functional.embedding(i, x), lambda x, i: x[i], lambda x, i: x.index_select(0, i)):
        (node,) = calls(lookup, table, ids).values()
        assert work_of_call(node).bytes == ids.nbytes + 2 * table[ids].nbytes


def test_what_programs_cannot_express_is_counted_by_pytorch() -> None:
    x, kernel = torch.randn(1, 2, 8, 8), torch.randn(4, 2, 3, 3)
    convolution = calls(torch.nn.functional.conv2d, x, kernel)["convolution"]
    assert work_of_call(convolution).flops == 2 * (4 * 6 * 6) * (2 * 3 * 3)
    assert work_of_call(calls(torch.lgamma, x)["lgamma"]).flops == x.numel()


def test_shares_count_pieces_and_the_rest() -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(torch.sigmoid(x @ w))

    with torch.no_grad():
        found = partition(make_fx(mixed, tracing_mode="fake")(torch.randn(4, 8), torch.randn(8, 16)).graph)
    (piece,), (left,) = found.pieces, found.left
    assert piece.work.bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert left.work == CallWork(bytes=2 * 4 * 4 * 16, flops=4 * 16)
    assert found.byte_share == piece.work.bytes / (piece.work.bytes + left.work.bytes)
    assert found.flop_share == piece.work.flops / (piece.work.flops + left.work.flops)


def test_sizes_that_vary_count_as_they_were_recorded() -> None:
    with torch.no_grad():
        graph = make_fx(lambda x: torch.lgamma(x), tracing_mode="symbolic")(torch.randn(4, 8)).graph
    (node,) = (node for node in graph.nodes if node.op == "call_function")
    assert work_of_call(node) == CallWork(bytes=2 * 4 * 4 * 8, flops=0)
