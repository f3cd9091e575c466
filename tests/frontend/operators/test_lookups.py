"""Lookups of PyTorch functions: rows, refusals, and the programs that they join."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import mugraph
from mugraph.errors import UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.partitioning.partition import partition
from mugraph.integrations.torch_compile import compilations
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic

TABLE = torch.randn(10, 8)
PLACES = torch.tensor([[3, 0, 9], [9, 1, 4]])


@pytest.mark.parametrize(
    ("function", "table", "places"),
    [
        (lambda table, places: torch.nn.functional.embedding(places, table) * 2, TABLE, PLACES),
        (lambda table, places: torch.nn.functional.embedding(places, table, padding_idx=0) * 2, TABLE, PLACES.int()),
        (lambda table, places: torch.index_select(table, -1, places) * 2, TABLE, torch.tensor([7, 0, 0])),
        (lambda table, places: table[places] * 2, TABLE, PLACES - 10),
        (lambda table, places: table[:, places] * 2, TABLE, torch.tensor([-8, 7])),
    ],
)
def test_lookups_mean_what_they_mean_in_pytorch(function: Callable[..., Any], table: torch.Tensor, places: torch.Tensor) -> None:
    program = trace(function, (table, places)).graph
    assert [node.op for node in program.nodes if not (node.is_input or node.is_constant)] == ["index_select", "mul"]
    (found,) = evaluate(program, [table.double().numpy(), places.numpy()], FloatArithmetic())
    torch.testing.assert_close(torch.from_numpy(found), function(table.double(), places))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda table, places: table[places, places] * 2, "indexed by several tensors"),
        (lambda table, places: table * places[:, :1].float().sum(), "int64"),
    ],
)
def test_other_uses_of_integers_are_refused(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(UnsupportedOperator, match=why):
        trace(function, (TABLE, PLACES))


class Embeddings(torch.nn.Module):
    """What BERT begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.kinds = (torch.nn.Embedding(rows, 64) for rows in (1000, 32, 2))
        self.norm = torch.nn.LayerNorm(64)
        self.places = torch.nn.Buffer(torch.arange(32)[None])

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        """[batch, length] integers to [batch, length, 64]."""
        places = self.places[:, : ids.shape[1]]
        normalised: torch.Tensor = self.norm(self.words(ids) + self.kinds(kinds) + self.positions(places))
        return normalised


def test_a_block_of_embeddings_is_one_piece_of_what_surrounds_it() -> None:
    model, ids, kinds = Embeddings().eval(), torch.randint(0, 1000, (2, 20)), torch.randint(0, 2, (2, 20))
    with torch.no_grad():
        found = partition(make_fx(model, tracing_mode="fake", _allow_non_fake_inputs=True)(ids, kinds).graph)
    (piece,) = found.pieces
    assert sum(node.op == "index_select" for node in piece.program.nodes) == 3
    assert not any("embedding" in str(left.node.target) for left in found.left)
    rows = 3 * 2 * 20 * 64 * 4
    assert piece.work.bytes < 2 * rows  # of the tables only what is looked up


def test_what_is_looked_up_is_read_on_each_level_anew() -> None:
    """As in decoders: what the first norm reads is what the products behind it are added to."""

    def block(table: torch.Tensor, ids: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.embedding(ids, table)
        y = torch.nn.functional.layer_norm(x, (64,)) @ left
        return x + torch.softmax(y, -1) @ right

    given = torch.randn(1000, 64), torch.randint(0, 1000, (2, 20)), torch.randn(64, 256), torch.randn(256, 64)
    graph = make_fx(block, tracing_mode="fake", _allow_non_fake_inputs=True)(*given).graph
    found = partition(graph)
    assert not any("embedding" in str(left.node.target) for left in found.left)
    graph.lint()
    result = mugraph.superoptimize(block, given, budget=20, profile=False, cache="off")
    torch.testing.assert_close(result(*given), block(*given), rtol=1e-3, atol=1e-4)


def test_a_model_of_embeddings_runs_as_kernels() -> None:
    model, ids, kinds = Embeddings().eval(), torch.randint(0, 1000, (2, 20)), torch.randint(0, 2, (2, 20))
    with torch.no_grad():
        result = mugraph.superoptimize(model, (ids, kinds), budget=20, profile=False, cache="off")
        assert result.report.coverage is not None
        assert result.report.coverage.byte_share > 0.9
        torch.testing.assert_close(result(ids, kinds), model(ids, kinds), rtol=1e-4, atol=1e-5)
        ids[1, 3] = 1000
        with pytest.raises(IndexError, match="index 1000 at"):
            result(ids, kinds)


def test_functions_leave_lookups_to_pytorch_for_gpus() -> None:
    model, ids, kinds = Embeddings().eval(), torch.randint(0, 1000, (2, 20)), torch.randint(0, 2, (2, 20))
    result = mugraph.superoptimize(model, (ids, kinds), target="cuda:sm_90", budget=30, profile=False, cache="off")
    coverage = result.report.coverage
    assert coverage is not None
    assert coverage.pieces == 1
    assert {calls.reason for calls in coverage.left if calls.operator == "embedding"} == {"kernels of GPUs read no integers"}


def test_torch_compile_runs_lookups_as_kernels() -> None:
    model, ids, kinds = Embeddings().eval(), torch.randint(0, 1000, (2, 20)), torch.randint(0, 2, (2, 20))
    compilations.clear()
    with torch.no_grad():
        compiled: Any = torch.compile(model, backend="mugraph", options={"budget": 10, "profile": False})
        torch.testing.assert_close(compiled(ids, kinds), model(ids, kinds), rtol=1e-4, atol=1e-5)
    (found,) = compilations
    (piece,) = found.partition.pieces
    assert sum(node.op == "index_select" for node in piece.program.nodes) == 3
    assert piece in found.results
