"""What a call takes at least: memory is read once, products are the library's, and what is longer counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

import cpu_limits
from mugraph.results.coverage import Amount, Coverage, LeftCalls
from mugraph.results.data import Report


@pytest.mark.parametrize("size", [1, 4096, 1 << 20, (1 << 22) + 4])
def test_all_of_the_memory_is_read_once(size: int) -> None:
    read = cpu_limits.reading(size)()
    assert size <= 4 * read <= size + 4 * 16 * 8
    assert cpu_limits.reading(size)() == read


class Scores(nn.Module):
    """A linear layer, and scores of its rows with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[8, 8] of [8, 32]."""
        rows = self.linear(x)
        scores: torch.Tensor = rows @ rows.T
        return scores.relu()


class Chosen(nn.Module):
    """No program."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As many elements as are positive."""
        return x[x > 0]


def limits_of(module: nn.Module, *inputs: torch.Tensor) -> cpu_limits.Limits:
    found = cpu_limits.limits(module.eval(), inputs)
    assert found is not None
    return found


def test_limits_are_of_all_products_of_a_program() -> None:
    found = limits_of(Scores(), torch.randn(8, 32))
    assert found.calls.keys() == {"reading", "products"}
    assert [[tuple(tensor.shape) for tensor in results] for results in found.calls["products"]()] == [[(8, 16)], [(8, 8)]]
    assert 4 * found.calls["reading"]() >= 4 * (8 * 32 + 16 * 32 + 16 + 8 * 8)


def test_weights_are_packed_where_that_is_the_fastest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def last(ways: list[Any]) -> int:
        sizes.append(len(ways))
        return len(ways) - 1

    monkeypatch.setattr(cpu_limits, "quickest", last)
    products = limits_of(Scores(), torch.randn(8, 32)).calls["products"]
    assert sizes == [2, 1, 2]  # the linear layer, the scores, reading
    assert len(products()) == 2


def test_what_has_no_products_is_bound_by_reading_and_no_program_by_nothing() -> None:
    assert limits_of(nn.Softmax(-1), torch.randn(8, 32)).calls.keys() == {"reading"}
    assert cpu_limits.limits(Chosen(), (torch.randn(8, 32),)) is None


@pytest.mark.parametrize(("rows", "bound"), [(1, "reading"), (512, "products")])
def test_products_of_few_rows_are_bound_by_reading(monkeypatch: pytest.MonkeyPatch, rows: int, bound: str) -> None:
    monkeypatch.setattr(cpu_limits, "quickest", lambda ways: 0)
    assert limits_of(nn.Linear(512, 512), torch.randn(rows, 512)).bound == bound


@pytest.mark.parametrize(
    ("found", "coverage", "ran"),
    [
        (True, Coverage(Amount(8, 8), Amount(), ()), "kernels"),
        (
            True,
            Coverage(Amount(8, 8), Amount(4, 4), (LeftCalls("aten.sort", "", 1, Amount(2, 0)),)),
            "kernels + library + PyTorch",
        ),
        (False, Coverage(Amount(), Amount(), (LeftCalls("the function", "", 1, Amount(8, 8)),)), "function"),
        (False, None, "function"),
    ],
)
def test_what_ran_is_what_has_bytes(found: bool, coverage: Coverage | None, ran: str) -> None:
    assert cpu_limits.what_ran(cast(Report, SimpleNamespace(found=found, coverage=coverage))) == ran
