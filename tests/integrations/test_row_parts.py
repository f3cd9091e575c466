"""Graphs at any batch and length where only parts do the same to every row: these run in chunks of rows, the rest by PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from frontend.symbolic_sizes.test_merged_rows import NOT_OF_ROWS
from integrations.test_rows import ALL, compiled, rows
from mugraph.frontend.symbolic_sizes.row_parts import RowPart, row_parts
from mugraph.integrations import covered_graph, graph_sizes
from mugraph.integrations.graph_sizes import _shares
from mugraph.integrations.torch_compile import compilations

pytestmark = pytest.mark.usefixtures("first_found")

Function = Callable[..., Any]
SHAPES = [(2, 2), (2, 3), (3, 2), (7, 5), (5, 7), (4, 16), (16, 4), (13, 20), (2, 61)]


class Decoder(nn.Module):
    """A decoder layer: rows up to attention, and from there on."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.RMSNorm(16, eps=1e-5), nn.RMSNorm(16, eps=1e-5)
        self.qkv = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(3))
        self.out, self.up, self.gate = nn.Linear(16, 16), nn.Linear(16, 48, bias=False), nn.Linear(16, 48, bias=False)
        self.down = nn.Linear(48, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (linear(y).unflatten(-1, (2, 8)).transpose(1, 2) for linear in self.qkv)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.behind(x)
        moved: torch.Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + moved


def assert_right(fast: Function, fn: Function, batch: int, length: int, width: int = 16) -> None:
    with torch.inference_mode():
        x = torch.randn(batch, length, width)
        torch.testing.assert_close(fast(x), fn(x), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_decoder_layer_runs_at_any_batch_and_length() -> None:
    model = Decoder().eval()
    fast = compiled(model, ALL | {"budget": 300.0})
    with torch.inference_mode():
        fast(rows(20, 30, 16))
    done, draw = list(compilations), random.Random(0)
    with_kernels = [made for made in done if made.partition.pieces]
    assert len(with_kernels) == 2 * 5, ("both parts at 4, 16, 64, 256 and 1,024 rows", [*map(str, done)])
    assert all(made.partition.byte_share == 1.0 for made in with_kernels)
    for _ in range(20):
        assert_right(fast, model, draw.randint(2, 40), draw.randint(2, 50))
    assert list(compilations) == done, "nothing is compiled again"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[RowPart]:
    """The parts of the graphs that are compiled; these run in chunks by PyTorch, however long it takes."""
    found: list[RowPart] = []

    def noted(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[RowPart]]:
        made = row_parts(module)
        found.extend(made[1])
        return made

    monkeypatch.setattr(graph_sizes, "row_parts", noted)
    monkeypatch.setattr(graph_sizes, "optimized", lambda options, module, *rest: module)
    monkeypatch.setattr(covered_graph, "medians", lambda calls, *rest: dict.fromkeys(calls, 1e-6) | {"general": 1.0})
    return found


def assert_right_in_chunks(fn: Function, width: int = 8) -> None:
    fast = compiled(fn)
    with torch.inference_mode():
        fast(rows(6, 10, width))
    for batch, length in SHAPES:
        assert_right(fast, fn, batch, length, width)


NAMES = [name for name in NOT_OF_ROWS if name != "a size as a number"]


# `test_compared_graph.py` has all of them in compiled graphs by day
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in NAMES[::3])) for name in NAMES])
def test_what_is_not_of_rows_stands_between_parts(name: str, parts: list[RowPart]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = F.rms_norm(x, (8,)) * 2
        return NOT_OF_ROWS[name](y).relu() + 1

    assert_right_in_chunks(fn)
    assert parts


def test_calls_between_parts_may_skip_some(parts: list[RowPart]) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp() / 4
        z = y.cumsum(1)
        late = torch.softmax(y, -1) + x
        return (z * 2 + y).softmax(-1).cumsum(0) + late, late.relu(), z, y.flip(1).relu()

    assert_right_in_chunks(fn)
    assert len(parts) == 3


def test_results_share_memory_as_before(parts: list[RowPart]) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.cumsum(1)
        z = y.relu() * 2
        return y, y.flatten(0, 1), z, z.cumsum(0).relu(), x.unsqueeze(0)

    assert_right_in_chunks(fn)
    assert len(parts) == 2
    fast = compiled(fn)
    with torch.inference_mode():
        x = rows(6, 10, 8)
        made = fast(x)
        assert made[0].data_ptr() == made[1].data_ptr()
        assert made[4].data_ptr() == x.data_ptr()


def test_results_of_a_part_that_share_memory_are_pytorchs(parts: list[RowPart]) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.cumsum(1).relu() * 2
        return y, y.flatten(0, 1)

    assert_right_in_chunks(fn)
    fast = compiled(fn)
    with torch.inference_mode():
        whole, flat = fast(rows(6, 10, 8))
        assert whole.data_ptr() == flat.data_ptr()


def test_random_numbers_are_those_of_the_graph(parts: list[RowPart]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.cumsum(1).relu() * 2
        return (y + torch.rand_like(y)) * torch.rand_like(x)

    fast = compiled(fn)
    with torch.inference_mode():
        x = rows(6, 10, 8)
        fast(x)
        torch.manual_seed(1)
        wanted = fn(x)
        torch.manual_seed(1)
        torch.testing.assert_close(fast(x), wanted)


def test_layers_alike_are_one_form(parts: list[RowPart]) -> None:
    model = nn.Sequential(*(Decoder() for _ in range(3))).eval()
    assert_right_in_chunks(model, 16)
    assert [len({part.form for part in parts}), len(parts)] == [3, 4]
    numbers = [sum(node.op == "call_function" for node in part.module.graph.nodes) for part in parts]
    assert numbers[1] == numbers[2] > numbers[0]


@pytest.mark.parametrize("place", ["a row of what varies", "a place that a size decides"])
def test_what_a_part_reads_of_one_row_is_given_to_it(place: str, parts: list[RowPart]) -> None:
    table = torch.randn(100, 8)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1).relu() * (x[0, 0] if place == "a row of what varies" else table[x.shape[1] - 1])

    assert_right_in_chunks(fn)
    (part,) = parts
    assert "select" not in part.module.code


def test_who_calls_while_a_part_gets_kernels_waits_for_none(parts: list[RowPart], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled for a call that is made meanwhile, neither of this part nor of the next."""
    specialized: list[torch.fx.GraphModule] = []

    def planned(options: Any, module: torch.fx.GraphModule, *rest: Any) -> SimpleNamespace:
        specialized.append(module)
        before = len(specialized)
        assert_right(fast, fn, 2, 2, 8)
        assert len(specialized) == before
        return SimpleNamespace(partition=SimpleNamespace(pieces=(), library=()))

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.exp().cumsum(1) * 2).relu()

    monkeypatch.setattr(graph_sizes, "planned", planned)
    fast = compiled(fn)
    with torch.inference_mode():
        fast(rows(2, 2, 8))
    assert len(parts) == len(specialized) == 2


def test_what_is_read_late_is_not_computed_ahead(parts: list[RowPart]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x
        for factor in range(2, 6):
            y = (y + (x * factor).sin()).cumsum(1)
        return y

    assert_right_in_chunks(fn)
    assert [len(part.outputs) for part in parts] == [1] * 4


def test_parts_that_are_given_both_sizes_in_one_dimension_are_pytorchs(parts: list[RowPart]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        mixed = (x * 2).flatten(0, 1).cumsum(0)
        return (mixed.relu() * 2).view(x.shape) + x.exp()

    assert_right_in_chunks(fn)
    assert len(parts) == 2


def test_parts_with_more_weights_have_more_of_a_budget() -> None:
    def part(form: str, *shapes: tuple[int, ...]) -> Any:
        graph = torch.fx.Graph()
        inputs = [graph.placeholder(f"x{number}") for number in range(len(shapes))]
        for node, shape in zip(inputs, shapes, strict=True):
            node.meta["val"] = torch.empty(shape)
        return SimpleNamespace(form=form, inputs=inputs)

    shares = _shares(10.0, [part("norm", (8,)), part("linear", (8, 7)), part("linear", (8, 7))])
    assert shares == pytest.approx({"norm": 10 * (1 / 2 + 1 / 8) / 2, "linear": 10 * (1 / 2 + 7 / 8) / 2}, rel=1e-2)
    assert _shares(None, [part("norm", (8,))]) == {"norm": None}
