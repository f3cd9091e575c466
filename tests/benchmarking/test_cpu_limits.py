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


def test_limits_are_of_all_products_of_a_program() -> None:
    found = cpu_limits.limits(Scores().eval(), (torch.randn(8, 32),))
    assert found.keys() == {"reading", "products"}
    assert [[tuple(tensor.shape) for tensor in results] for results in found["products"]()] == [[(8, 16)], [(8, 8)]]
    assert 4 * found["reading"]() >= 4 * (8 * 32 + 16 * 32 + 16 + 8 * 8)


def test_weights_are_packed_where_that_is_the_fastest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def last(ways: list[Any]) -> int:
        sizes.append(len(ways))
        return len(ways) - 1

    monkeypatch.setattr(cpu_limits, "quickest", last)
    products = cpu_limits.limits(Scores().eval(), (torch.randn(8, 32),))["products"]
    assert sizes == [2, 1, 2]  # the linear layer, the scores, reading
    assert len(products()) == 2


def test_what_has_no_products_is_bound_by_reading_and_no_program_by_nothing() -> None:
    assert cpu_limits.limits(nn.Softmax(-1), (torch.randn(8, 32),)).keys() == {"reading"}
    assert cpu_limits.limits(Chosen(), (torch.randn(8, 32),)) == {}


def test_the_longer_of_two_is_what_a_call_is_bound_by() -> None:
    assert cpu_limits.share_of_limit({"reading": 2.0, "products": 1.0}, 4.0) == ("reading", 0.5)
    assert cpu_limits.share_of_limit({"reading": 2.0, "products": 5.0}, 4.0) == ("products", 1.25)


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
