"""Graphs of `torch.compile` at any size: in chunks from the first call on, where slices are independent, and right."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from mugraph.errors import CompilationFailed
from mugraph.integrations.background import Turn
from mugraph.integrations.covered_graph import CoveredGraph, Run
from mugraph.integrations.graph_axis import GraphAxis
from mugraph.integrations.torch_compile import compilations
from mugraph.sizes.chunk_plans import Chunk, ChunkPlan, Costs

ALL: dict[str, Any] = {"budget": 120.0, "keep": "all", "strict": True}


class Block(nn.Module):
    """A norm, a perceptron, and attention between the positions of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(x.shape[0], 3, 2, 8).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], 3, 16)
        return x + F.gelu(self.out(attended))


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    compilations.clear()
    run: Callable[..., Any] = torch.compile(fn, backend="mugraph", options={**ALL, **options})
    return run


def batch(*shape: int) -> torch.Tensor:
    x = torch.randn(*shape)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def test_a_range_that_is_marked_has_one_graph_and_sizes_beyond_it_are_right() -> None:
    """`mark_dynamic(min=, max=)` bounds Dynamo's symbol: any size in it runs by kernels made at the first call."""
    model = nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 24), nn.SiLU()).eval()
    fast, begun = compiled(model), counters["stats"]["unique_graphs"]
    with torch.inference_mode():
        first = torch.randn(20, 16)
        torch._dynamo.mark_dynamic(first, 0, min=2, max=24)
        torch.testing.assert_close(fast(first), model(first), rtol=1e-4, atol=1e-5)
        done = compilations.in_all
        assert any(made.partition.pieces for made in compilations), "kernels"
        for size in (2, 5, 17, 23, 24):
            x = torch.randn(size, 16)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        assert compilations.in_all == done
        assert counters["stats"]["unique_graphs"] - begun == 1
        for size in (25, 60, 1):
            x = torch.randn(size, 16)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        assert counters["stats"]["unique_graphs"] - begun > 1, "of other sizes, which the range leaves out"


def test_kernels_compute_first_slices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 24), nn.SiLU()).eval()
    fast = compiled(model)
    with torch.no_grad():
        fast(batch(20, 16))
        monkeypatch.setattr(
            Costs, "plan", lambda self, size: ChunkPlan((Chunk(0, min(each for each in (8, 32) if each > size)),), 1.0)
        )
        for where in ("graph_axis.GraphAxis.resized", "graph_axis.GraphAxis.cut"):  # nothing is padded, and nothing put together
            monkeypatch.setattr(f"mugraph.integrations.{where}", None)
        for size in (3, 5, 7, 9, 25, 31):
            x = batch(size, 16)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_model_runs_at_any_size_without_being_compiled_again() -> None:
    model = Block().eval()
    fast = compiled(model)
    with torch.inference_mode():
        x = batch(20, 3, 16)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
        first = len(compilations)
        assert first == 4, "the graph, and sizes 2, 8 and 32"
        assert [bool(done.partition.pieces) for done in compilations][1:] == [True] * 3
        for size in random.Random(0).choices(range(2, 65), k=60):
            x = torch.randn(size, 3, 16)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
        assert len(compilations) == first
        x = torch.randn(100, 3, 16)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
        assert len(compilations) == first + 1, "128 as well"


def test_the_first_position_of_each_sample_may_be_read() -> None:
    model = nn.Linear(16, 16).eval()

    def pooled(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(model(x[:, 0]))

    fast = compiled(pooled)
    with torch.inference_mode():
        fast(batch(7, 3, 16))
        first = len(compilations)
        for size in (2, 3, 5, 6, 7, 7, 7):
            x = torch.randn(size, 3, 16)
            torch.testing.assert_close(fast(x), pooled(x), rtol=1e-5, atol=1e-5)
        assert len(compilations) == first


class Gated(nn.Module):
    """A gated perceptron, whose left factor may be computed of two products in shared memory."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up = nn.RMSNorm(64), nn.Linear(64, 160, bias=False), nn.Linear(64, 160, bias=False)
        self.down = nn.Linear(160, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        changed: torch.Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + changed


def test_a_factor_of_several_computed_tiles_is_no_error() -> None:
    model = nn.Sequential(Gated(), Gated()).eval()
    fast = compiled(model)
    with torch.inference_mode():
        x = torch.randn(8, 64)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_size_gets_kernels_at_its_first_call_and_none_does_at_its_third(caplog: pytest.LogCaptureFixture) -> None:
    w = torch.randn(16, 24)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax(x @ w, -1)
        return y, y.sum(-1)

    fast = compiled(fn)
    with torch.inference_mode(), caplog.at_level(logging.INFO, logger="mugraph.torch_compile"):
        for size in (8, 5, 5, 5, 5, 3):
            x = batch(size, 16) if size == 8 else torch.randn(size, 16)
            for ours, theirs in zip(fast(x), fn(x), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert "keep coming" not in caplog.text
    assert len(compilations) == 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x - x.mean(0)).exp(),
        lambda x: x.exp() / x.shape[0],
        lambda x: x.exp().cumsum(0),
        lambda x: x.flip(0).exp(),
        lambda x: torch.softmax(x, 0),
        lambda x: (x @ x.T).exp(),
        lambda x: x.exp() + torch.arange(x.shape[0])[:, None],
        lambda x: x.exp()[: x.shape[0] // 2],
        lambda x: F.batch_norm(x, None, None, training=True).exp(),
        lambda x: x.exp() + (torch.rand(8) < 2),
        lambda x: (y := x.exp(), y.view(-1, 4)),
    ],
)
def test_what_is_not_independent_runs_as_before(fn: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    fast = compiled(fn, sizes=2)
    with torch.inference_mode(), caplog.at_level(logging.INFO, logger="mugraph.torch_compile"):
        for size in (6, 9, 4, 6, 7, 6, 6):
            x = batch(size, 8) if size == 9 else torch.randn(size, 8)
            torch.testing.assert_close(fast(x), fn(x), rtol=1e-4, atol=1e-5)
    assert "to cover others" not in caplog.text


def test_conditions_on_the_size_are_those_of_other_graphs() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) * (2 if x.shape[0] == 7 else 3 if x.shape[0] % 5 == 0 else 1)

    torch._dynamo.reset()
    fast: Any = torch.compile(fn, backend="mugraph", dynamic=True, options=ALL)
    with torch.inference_mode():
        for size in (4, 7, 10, 6, 9, 7, 15, 8, 7):
            x = torch.randn(size, 16)
            torch.testing.assert_close(fast(x), fn(x), rtol=1e-5, atol=1e-5)


# --- plans, without torch.compile ------------------------------------------------------------------------------------

AXIS = GraphAxis(1, ((0, 0),), ((0, 2), None))


def general(x: torch.Tensor, size: int) -> list[torch.Tensor]:
    return [x.repeat_interleave(2, 0), torch.ones(3)]


class Specializer:
    """Makes runs for one size, and remembers for which and with how many slices they are called."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.called: list[int] = []

    def __call__(self, arguments: Sequence[Any], budget: float | None) -> Run:
        size = arguments[1]
        self.made.append(size)

        def run(x: torch.Tensor, given: int) -> list[torch.Tensor]:
            assert x.shape[0] == given == size
            self.called.append(size)
            return general(x, given)

        return run


def test_chunks_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mugraph.integrations.covered_graph.medians", lambda calls, *rest: dict.fromkeys(calls, 1) | {"general": 1e9}
    )
    make = Specializer()
    graph = CoveredGraph(general, make, AXIS, limit=4)
    for size in range(2, 40):
        x = torch.randn(size, 3)
        make.called.clear()
        doubled, ones = graph(x, size)
        assert torch.equal(doubled, x.repeat_interleave(2, 0))
        assert torch.equal(ones, torch.ones(3))
        assert make.called
    assert make.made == [2, 8, 32]


def test_results_have_the_strides_of_their_shapes_behind_dimensions_of_one_element() -> None:
    graph = CoveredGraph(general, Specializer(), AXIS, limit=4)
    whole = torch.randn(1, 8, 4)
    part = graph._first(whole, (1, 1), 5)
    assert part.stride() == (20, 4, 1)
    assert torch.equal(part, whole[:, :5])


def test_only_so_many_sizes_are_optimized_and_failures_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    make = Specializer()
    graph = CoveredGraph(general, make, AXIS, limit=2)
    x = torch.randn(500, 3)
    assert torch.equal(graph(x, 500)[0], general(x, 500)[0])
    assert make.made == [2, 8]

    def fail(arguments: Sequence[Any], budget: float | None) -> Run:
        raise ZeroDivisionError("a defect")

    broken = CoveredGraph(general, fail, AXIS, limit=2)
    for _ in range(3):
        assert torch.equal(broken(x, 500)[0], general(x, 500)[0])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(ZeroDivisionError):
        CoveredGraph(general, fail, AXIS, limit=2, strict=True)(x, 500)


def test_what_there_is_runs_on_where_another_size_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "mugraph.integrations.covered_graph.medians", lambda calls, *rest: dict.fromkeys(calls, 1) | {"general": 1e9}
    )
    make = Specializer()

    def fails_at_32(arguments: Sequence[Any], budget: float | None) -> Run:
        if arguments[1] == 32:
            raise CompilationFailed("a defect")
        return make(arguments, budget)

    graph = CoveredGraph(general, fails_at_32, AXIS, limit=4)
    for size in (20, 500, 33, 7):
        make.called.clear()
        x = torch.randn(size, 3)
        assert torch.equal(graph(x, size)[0], general(x, size)[0])
        assert {*make.called} <= {2, 8}
        assert make.called
    assert make.made == [2, 8]
    assert "those of 2 are kept" in caplog.text
    assert len(caplog.records) == 1


def test_the_sizes_that_a_call_asks_for_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(spent))
    monkeypatch.setattr("mugraph.support.deadline.time", clock)
    make = Specializer()

    def spend(arguments: Sequence[Any], budget: float | None) -> Run:
        assert budget is not None
        spent.append(budget)
        return make(arguments, budget)

    CoveredGraph(general, spend, AXIS, limit=4, budget=8000.0)(torch.randn(100, 3), 100)
    assert make.made == [2, 8, 32, 128]
    assert spent == pytest.approx([4000, 2000, 1000, 1000], abs=30)


def test_only_so_many_sizes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.integrations.covered_graph._REMEMBERED", 5)
    graph = CoveredGraph(general, Specializer(), AXIS, limit=2)
    for size in [*range(2, 20), 3]:
        x = torch.randn(size, 3)
        assert torch.equal(graph(x, size)[0], x.repeat_interleave(2, 0))
        assert len(graph.runs) <= 5


def test_what_is_slower_than_the_general_graph_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mugraph.integrations.covered_graph.medians", lambda calls, *rest: dict.fromkeys(calls, 9) | {"general": 1}
    )
    make = Specializer()
    graph = CoveredGraph(general, make, AXIS, limit=4)
    graph(torch.randn(5, 3), 5)
    assert make.called == []


def test_sizes_without_kernels_are_no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick PyTorch's calls of them seem to be; what the general graph takes there counts, and no size is tried twice."""
    monkeypatch.setattr(
        "mugraph.integrations.covered_graph.medians", lambda calls, *rest: dict.fromkeys(calls, 1.0) | {"general": 1e9}
    )
    make, tried = Specializer(), list[int]()

    def of_8_alone(arguments: Sequence[Any], budget: float | None) -> Run | None:
        tried.append(arguments[1])
        return make(arguments, budget) if arguments[1] == 8 else None

    graph = CoveredGraph(general, of_8_alone, AXIS, limit=8)
    for size in (40, 3, 40, 9, 8, 30):
        x = torch.randn(size, 3)
        assert torch.equal(graph(x, size)[0], general(x, size)[0])
    assert tried == [2, 8, 32]
    assert [*graph.table] == [8]
    assert {*graph.costs.own} == {2, 8, 32}
    assert make.called

    asked = list[int]()
    none = CoveredGraph(general, lambda arguments, budget: asked.append(arguments[1]), AXIS, limit=8, ahead=4)
    for size in (20, 3, 80):
        x = torch.randn(size, 3)
        assert torch.equal(none(x, size)[0], general(x, size)[0])
        assert none.runs[size] is general
    assert asked == [128, 32, 8, 2], "no larger one is asked for by a size below those that were tried"
    assert none.table == {}


def test_graphs_that_share_a_turn_wait_for_one_of_them() -> None:
    turn, make = Turn(), Specializer()
    other = CoveredGraph(general, make, AXIS, limit=1, turn=turn)
    x = torch.randn(4, 3)

    def meanwhile(arguments: Sequence[Any], budget: float | None) -> Run:
        assert torch.equal(other(x, 4)[0], general(x, 4)[0])
        assert make.made == []
        return Specializer()(arguments, budget)

    CoveredGraph(general, meanwhile, AXIS, limit=1, strict=True, turn=turn)(x, 4)
    other(x, 4)
    assert make.made == [2]
