"""What PyTorch makes of attention on a GPU, in graphs: the attention that it is."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from mugraph.frontend.operators.torch_casts import note_roundings
from mugraph.frontend.partitioning.partition import partition
from mugraph.frontend.rewriting.graph_passes import ready_to_cut, with_attention

aten = torch.ops.aten
SHAPE = (2, 4, 16, 32)
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "flash": (aten._scaled_dot_product_flash_attention.default, ()),
    "flash, causal": (aten._scaled_dot_product_flash_attention.default, (0.0, True)),
    "efficient": (aten._scaled_dot_product_efficient_attention.default, (None, False)),
    "efficient, causal": (aten._scaled_dot_product_efficient_attention.default, (None, False, 0.0, True)),
    "cuDNN": (aten._scaled_dot_product_cudnn_attention.default, (None, True)),
}


def graph_of(name: str, result: int = 0, dropped: float = 0.0) -> fx.GraphModule:
    """exp(attention(q, k, v)), as PyTorch has it on a GPU."""
    target, more = CALLS[name]
    graph = fx.Graph()
    with FakeTensorMode():
        like = torch.empty(SHAPE)
    inputs = []
    for tensor in "qkv":
        inputs.append(graph.placeholder(tensor))
        inputs[-1].meta["val"] = like
    kwargs: dict[str, Any] = {"scale": 0.25} | ({"dropout_p": dropped} if dropped else {})
    call = graph.call_function(target, (*inputs, *more), kwargs)
    call.meta["val"] = (like,) * len(target._schema.returns)
    taken = graph.call_function(operator.getitem, (call, result))
    taken.meta["val"] = like
    made = graph.call_function(aten.exp.default, (taken,))
    made.meta["val"] = like
    graph.output((made,))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize("name", CALLS)
def test_it_is_attention_and_a_program(name: str) -> None:
    module = ready_to_cut(graph_of(name))
    q, k, v = torch.randn(3, *SHAPE).unbind()
    (result,) = module(q, k, v)
    torch.testing.assert_close(result, F.scaled_dot_product_attention(q, k, v, is_causal="causal" in name, scale=0.25).exp())
    note_roundings(module.graph)
    cut = partition(module.graph, "cpu")
    assert [node.target for piece in cut.pieces for node in piece.nodes] == [aten.scaled_dot_product_attention.default]


def test_what_else_is_read_or_dropped_stays() -> None:
    for module in (graph_of("cuDNN", result=1), graph_of("flash", dropped=0.5)):
        assert with_attention(module) is module
