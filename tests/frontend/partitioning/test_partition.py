"""The partitioner: which calls become one program, and that pieces and rest together still compute the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.frontend.operators.torch_casts import lazy_module
from mugraph.frontend.partitioning.partition import Known, Partition, Piece, partition, piece_of
from mugraph.frontend.partitioning.splice import spliced
from mugraph.frontend.rewriting.arrangements import with_arrangements
from mugraph.runtime import build
from mugraph.testing.torch_functions import random_function
from pairwise import first_by_day

Function = Callable[..., Any]


def recorded(fn: Function, *inputs: torch.Tensor, mode: Literal["fake", "symbolic"] = "fake") -> fx.GraphModule:
    """The function's ATen graph with shapes, as Dynamo gives it to a backend."""
    with torch.no_grad():
        module: fx.GraphModule = make_fx(fn, tracing_mode=mode)(*inputs)
    return module


def split(fn: Function, *inputs: torch.Tensor) -> Partition:
    """The partition of a function, after a check that running it by pieces changes nothing."""
    module = with_arrangements(recorded(fn, *inputs))
    found = partition(module.graph)
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert sorted(map(str, calls)) == sorted([str(n) for p in found.pieces for n in p.nodes] + [str(x.node) for x in found.left])
    again = spliced(module, found, {piece: build(piece.program) for piece in found.pieces})
    for got, wanted in zip(flat(again(*inputs)), flat(module(*inputs)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        assert got.stride() == wanted.stride()
    return found


def flat(outputs: Any) -> list[torch.Tensor]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def computing(piece: Piece) -> list[str]:
    """The operators of a piece's program that are no views."""
    return [node.op for node in piece.program.kernels()]


def rms(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) / 4


def mlp(x: torch.Tensor, gain: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    normal = rms(x, gain)
    return x + (torch.nn.functional.silu(normal @ gate.t()) * (normal @ up.t())) @ down.t()


MLP = (randn(4, 32), randn(32), randn(96, 32), randn(96, 32), randn(32, 96))


def test_a_product_that_needs_the_whole_of_another_begins_a_piece() -> None:
    first, second = split(mlp, *MLP).pieces
    assert computing(first).count("matmul") == 2
    assert computing(first)[-1] == "mul", "the gate is computed where its factors are"
    assert len(first.outputs) == 1
    assert computing(second) == ["matmul", "add"], "the residual is added where its term is computed"


def test_a_normalisation_goes_with_the_product_that_reads_it() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return rms(x @ w + x, gain) @ v

    first, second = split(layers, randn(4, 32), randn(32, 32), randn(32), randn(32, 64)).pieces
    assert computing(first) == ["matmul", "add"]
    assert "sqrt" in computing(second)


def test_equal_layers_are_equal_programs() -> None:
    def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return mlp(torch.i0(mlp(x, *weights[:4])), *weights[4:])

    pieces = split(layers, *MLP, *(randn(*w.shape) for w in MLP[1:])).pieces
    assert len(pieces) == 4
    assert pieces[0].program is pieces[2].program, "it is converted once"
    assert pieces[1].program is pieces[3].program
    assert pieces[0].torch_graph is pieces[2].torch_graph
    copies = pieces[2].copies
    assert [copies[node].target for node in pieces[2].nodes] == [node.target for node in pieces[2].nodes]


def test_a_graph_that_is_cut_again_is_not_converted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = with_arrangements(recorded(mlp, *MLP))
    known = Known()
    before = partition(module.graph, known=known)
    for module_of_calls in ("partitioning.partition", "rewriting.node_traits"):
        monkeypatch.setattr(f"mugraph.frontend.{module_of_calls}.program_of", None)
    again = partition(module.graph, known=known)
    assert [piece.nodes for piece in again.pieces] == [piece.nodes for piece in before.pieces]
    assert all(one.program is other.program for one, other in zip(before.pieces, again.pieces, strict=True))


def test_equal_calls_on_tensors_that_lie_otherwise_keep_graphs_of_their_own() -> None:
    def both(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x @ w).relu() * 2.0, (y @ w).relu() * 2.0

    one, other = (recorded(both, randn(8, 8), y, randn(8, 8)) for y in (randn(8, 8), randn(8, 8).T))
    assert len({id(piece.torch_graph) for piece in pieces_apart(one)}) == 1
    assert len({id(piece.torch_graph) for piece in pieces_apart(other)}) == 2


def pieces_apart(module: fx.GraphModule) -> list[Piece]:
    """The calls behind each product as a piece."""
    calls, known = [node for node in module.graph.nodes if node.op == "call_function"], Known()
    return [piece_of(calls[start : start + 3], 0, known) for start in (0, 3)]


def test_layers_that_differ_in_a_number_or_an_operand_are_different_programs() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for number in (2.0, 3.0):
            x = torch.i0(torch.softmax(x * number, -1) @ w)
        return torch.i0(torch.softmax(x * x, -1) @ w)

    programs = [piece.program for piece in split(layers, randn(4, 32), randn(32, 32)).pieces]
    assert len(programs) == len(set(programs)) == 3


def test_a_module_between_passes_is_written_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = recorded(rms, *MLP[:2]).graph
    with monkeypatch.context() as patched:
        patched.setattr(fx.Graph, "python_code", None)
        module = lazy_module({}, graph)
    torch.testing.assert_close(module.forward(*MLP[:2]), rms(*MLP[:2]))


def test_attention_stays_whole() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v

    (piece,) = split(attention, randn(2, 8, 16), randn(2, 64, 16), randn(2, 64, 16)).pieces
    assert computing(piece).count("matmul") == 2
    (piece,) = split(torch.nn.functional.scaled_dot_product_attention, *(randn(1, 2, 8, 16) for _ in range(3))).pieces
    assert computing(piece).count("matmul") == 2


def test_a_product_through_a_narrow_tensor_stays_whole() -> None:
    def lora(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x @ w + x @ a @ b

    (piece,) = split(lora, randn(4, 64), randn(64, 32), randn(64, 4), randn(4, 32)).pieces
    assert computing(piece).count("matmul") == 3


def test_a_large_group_is_divided_where_it_branches() -> None:
    def projections(x: torch.Tensor, gain: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        normal = rms(x, gain)
        return [normal @ w + normal @ a @ b for w, a, b in zip(weights[::3], weights[1::3], weights[2::3], strict=True)]

    weights = [randn(*shape) for _ in range(2) for shape in ((64, 32), (64, 4), (4, 32))]
    norm, first, second = split(projections, randn(4, 64), randn(64), *weights).pieces
    assert "matmul" not in computing(norm)
    assert computing(first) == computing(second) == ["matmul", "matmul", "matmul", "add"]


def test_a_large_group_is_divided_before_its_branches_join() -> None:
    def gated(x: torch.Tensor, gain: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        turned = [w.t() for w in weights]  # views that come before what the branches share
        normal = rms(x, gain)
        gate, up = (normal @ w + normal @ a @ b for w, a, b in zip(turned[::3], turned[1::3], turned[2::3], strict=True))
        return torch.nn.functional.silu(gate) * up

    weights = [randn(*shape) for _ in range(2) for shape in ((32, 64), (4, 64), (32, 4))]
    pieces = split(gated, randn(4, 64), randn(64), *weights).pieces
    assert [computing(piece).count("matmul") for piece in pieces] == [0, 3, 3]


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def test_the_halves_of_queries_are_exchanged_where_attention_reads_them() -> None:
    def attention(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *angles: torch.Tensor) -> torch.Tensor:
        q = (x @ w).view(1, 4, 2, 16).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(rotated(q, *angles), k, v)

    keys, angle = (1, 2, 8, 16), (4, 16)
    inputs = (randn(4, 32), randn(32, 32), randn(*keys), randn(*keys), randn(*angle), randn(*angle))
    projection, scores = split(attention, *inputs).pieces
    assert computing(projection) == ["matmul"]
    assert computing(scores).count("matmul") == 3, "of queries with the exchange, of queries with keys, and of those with values"


def test_keys_whose_halves_are_exchanged_are_a_piece() -> None:
    def keys(x: torch.Tensor, w: torch.Tensor, past: torch.Tensor, *angles: torch.Tensor) -> torch.Tensor:
        return torch.cat((past, rotated(x @ w, *angles)), 0)

    projection, rotation = split(keys, randn(4, 32), randn(32, 16), randn(3, 16), randn(16), randn(16)).pieces
    assert computing(projection) == ["matmul"], "its kernel would need every element twice"
    assert sorted(computing(rotation)) == ["add", "concat", "matmul", "mul", "mul"]


def test_a_view_that_others_read_too_is_no_result_of_a_piece() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor) -> list[torch.Tensor]:
        flat = x.view(4, 32)
        return [rms(flat, gain) @ w, torch.i0(flat)]

    found = split(layers, randn(2, 2, 32), randn(32, 16), randn(32))
    (piece,) = found.pieces
    assert len(piece.outputs) == 1
    assert any("a view of what others read too" in reason for reason in found.reasons())


def test_two_exponentials_on_a_path_are_in_two_pieces() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.softmax(x @ w, -1) * w.sum(), -1)

    for piece in split(twice, randn(8, 8), randn(8, 8)).pieces:
        assert computing(piece).count("exp") <= 1


def test_the_rest_keeps_its_reasons() -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.i0(rms(x, w[0]) @ w)[ids]

    found = split(mixed, randn(8, 16), randn(16, 16), torch.tensor([1, 2]))
    reasons = "\n".join(found.reasons())
    assert "aten.i0.default: operator aten.i0" in reasons
    assert "aten.index.Tensor: a cheap last step on what others read too" in reasons
    assert 0 < found.byte_share < 1
    assert found.without(found.pieces, "unwanted").byte_share == 0


def test_a_lone_product_that_arithmetic_bounds_and_a_lone_view_stay_with_torch() -> None:
    assert split(torch.matmul, randn(64, 64), randn(64, 64)).pieces == ()
    assert split(lambda x: x.t(), randn(8, 8)).pieces == ()


def test_a_lone_product_that_memory_bounds_is_a_piece() -> None:
    (piece,) = split(torch.matmul, randn(1, 64), randn(64, 64)).pieces
    assert computing(piece) == ["matmul"]


def test_products_of_one_tensor_are_one_piece() -> None:
    def projections(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        hidden = torch.i0(x)
        return [hidden.view(2, 32) @ weight.t() for weight in weights]

    (piece,) = split(projections, randn(1, 2, 32), randn(16, 32), randn(8, 32), randn(8, 32)).pieces
    assert computing(piece) == ["matmul", "matmul", "matmul"]
    assert len(piece.outputs) == 3


def test_more_products_of_one_tensor_than_are_searched_are_pieces_of_their_own() -> None:
    def projections(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        return [x @ weight for weight in weights]

    pieces = split(projections, randn(2, 32), *(randn(32, 8) for _ in range(5))).pieces
    assert [computing(piece) for piece in pieces] == [["matmul"]] * 5


def test_a_last_step_on_what_is_read_outside_is_left_outside() -> None:
    def rotary(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        y = rms(x, gain) @ w
        return y * angles + torch.logcumsumexp(y, -1)

    product, steps = split(rotary, randn(4, 32), randn(32, 16), randn(32), randn(16)).pieces
    assert len(product.outputs) == 1
    assert [node.name for node in steps.nodes] == ["mul_2", "add_1"]


def test_shapes_that_vary_stay_with_torch() -> None:
    module = recorded(mlp, *MLP, mode="symbolic")
    found = partition(module.graph)
    assert found.pieces == ()
    assert any("varies" in reason for reason in found.reasons())


def test_what_follows_a_mutation_stays_with_torch_and_in_order() -> None:
    def mutating(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = rms(x, gain) @ w
        torch.ops.aten.mul_.Tensor(x, 2.0)
        return before, rms(x, gain) @ w

    module = recorded(mutating, randn(4, 32), randn(32, 16), randn(32))
    found = partition(module.graph)
    assert len(found.pieces) == 1
    again = spliced(module, found, {piece: build(piece.program) for piece in found.pieces})
    x, w, gain = randn(4, 32), randn(32, 16), randn(32)
    for got, wanted in zip(again(x.clone(), w, gain), mutating(x.clone(), w, gain), strict=True):
        torch.testing.assert_close(got, wanted)


def test_random_numbers_are_drawn_in_the_order_of_the_graph() -> None:
    def drawing(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        late = torch.ops.aten.bernoulli.default(torch.sigmoid(rms(torch.i0(x), gain) @ w))
        early = torch.ops.aten.bernoulli.default(torch.sigmoid(x))
        result: torch.Tensor = late @ w.t() + early
        return result

    inputs = (randn(4, 32), randn(32, 16), randn(32))
    module = recorded(drawing, *inputs)
    found = partition(module.graph)
    again = spliced(module, found, {piece: build(piece.program) for piece in found.pieces})
    torch.manual_seed(1)
    wanted = module(*inputs)
    torch.manual_seed(1)
    torch.testing.assert_close(again(*inputs), wanted)


HEADS = randn(1, 2, 4, 8)
DECODER_CALLS: dict[str, Function] = {
    "mm": lambda x: x[0, 0] @ x[0, 1].t(),
    "bmm": lambda x: torch.bmm(x[0], x[0].transpose(1, 2)),
    "addmm": lambda x: torch.addmm(x[0, 0, 0, :4], x[0, 0], x[0, 1].t()),
    "arithmetic": lambda x: -(x + 1.0 - x * 2.0) / (x.pow(2) + 1.0),
    "statistics": lambda x: x.mean(-1) + x.sum(-1) * torch.rsqrt(x.square().mean(-1) + 1e-6) - (x * x).sum(-1).sqrt(),
    "exponentials": lambda x: torch.exp(x) + torch.sigmoid(x) + torch.nn.functional.silu(x),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (8,)),
    "rotary embedding": lambda x: x * 0.5 + torch.cat((-x[..., 4:], x[..., :4]), -1) * 0.25,
    "slice and select": lambda x: x[:, 1:, ::2].select(1, 0),
    "cache": lambda x: torch.cat((x, x * 2.0), -2) @ x.transpose(-1, -2),
    "views": lambda x: x.reshape(2, 32).view(2, 4, 8).permute(1, 0, 2).unsqueeze(0).squeeze(0).transpose(0, 1) + 1.0,
    "repeated heads": lambda x: x[:, :, None].expand(1, 2, 3, 4, 8).reshape(1, 6, 4, 8).clone() @ x[:, :1].transpose(-1, -2),
    "casts": lambda x: (x.to(torch.float64).square().mean(-1, keepdim=True).to(torch.float32) + 1.0) * x,
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
    "causal attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    "masked attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=x[:, :, :, :4]),
    "filled scores": lambda x: torch.softmax((x @ x.transpose(-1, -2)).masked_fill(x[..., :4] > 9.0, -torch.inf), -1) @ x,
}
"""What decoder layers call, some of which programs cannot express."""


@pytest.mark.parametrize("name", DECODER_CALLS)
def test_what_decoders_call_is_taken_or_left_with_a_reason(name: str) -> None:
    def layer(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [DECODER_CALLS[name](torch.sigmoid(x @ w)), rms(x @ w, w[0])]

    found = split(layer, HEADS, randn(8, 8))
    assert found.pieces
    assert all(left.reason for left in found.left)


@pytest.mark.parametrize("largest", [1, 4])
@pytest.mark.parametrize("seed", first_by_day(range(25), 8))
def test_random_graphs_are_unchanged_by_being_split(seed: int, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.frontend.partitioning.partition.LARGEST", largest)
    torch.manual_seed(seed)
    split(random_function(seed), randn(8, 8), randn(8, 8), randn(8, 8))
