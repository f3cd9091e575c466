"""torch.compile(backend="mugraph"): convolutions and linear layers as library kernels, with the weights that models have now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from mugraph.errors import InvalidInput
from mugraph.integrations import whole_graph
from mugraph.integrations.torch_compile import Compiled, compilations
from mugraph.pieces import piece_duels, piece_optimizer
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.packed_weights import _LAYERS
from mugraph.pieces.piece_options import PieceOptions
from mugraph.runtime.benchmarking import Duel
from packed_first import packed_first


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    compilations.clear()
    piece_optimizer.optimizer.cache_clear()
    monkeypatch.setattr("mugraph.pieces.library_ways.Library.is_faster", lambda library, kernel, deadline: True)
    monkeypatch.setattr("mugraph.pieces.library_ways.Library.layouts", lambda library, kernel, deadline: tuple(Layout))
    monkeypatch.setattr(whole_graph, "duel", lambda *sides, **settings: Duel(rounds=20, won=20, speedup=2.0))
    yield
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], dynamic: bool | None = None, **options: Any) -> Callable[..., Any]:
    given = {"keep": "faster", "budget": 10.0, "strict": True, **options}
    function: Callable[..., Any] = torch.compile(fn, backend="mugraph", dynamic=dynamic, options=given)
    return function


def last() -> Compiled:
    return compilations[-1]


def layers() -> list[list[str]]:
    return [[node.name for node in kernel.nodes] for kernel in last().partition.library]


class Tied(nn.Module):
    """Linear layers, of which two share their weights, and something between them that is no program."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.logcumsumexp(self.first(x), 0))  # type: ignore[no-any-return]


def test_weights_are_packed_once_and_again_when_they_change(caplog: pytest.LogCaptureFixture) -> None:
    model = Tied().eval()
    fast = compiled(model)
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="mugraph"):
        for _ in range(3):
            x = torch.randn(64, 48)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
        assert len(layers()) == 2
        assert last().packed_bytes == 48 * 48 * 4
        assert "2 library kernels run as kernels (0 MiB of packed weights)" in caplog.text
        place = model.first.weight.data_ptr()
        assert len([packed for (known, _), packed in _LAYERS.items() if known[0] == place]) == 1
        model.first.weight.mul_(2)
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-4)
        model.first.weight = nn.Parameter(torch.randn(48, 48))
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("grown", [nn.Linear(48, 40), nn.Linear(48, 40, bias=False)])
def test_any_number_of_rows_reads_the_same_packed_weights(grown: nn.Linear) -> None:
    model = nn.Sequential(grown, nn.GELU()).eval()
    fast = compiled(lambda x: torch.logcumsumexp(model(x), 0), dynamic=True, sizes=0)
    with torch.no_grad():
        for rows in (64, 7, 64, 1, 130):
            x = torch.randn(rows, 48)
            torch.testing.assert_close(fast(x), torch.logcumsumexp(model(x), 0), rtol=1e-5, atol=1e-4)
            if rows == 130:
                torch.testing.assert_close(
                    fast(x[None].expand(2, -1, -1)[1]), torch.logcumsumexp(model(x), 0), rtol=1e-5, atol=1e-4
                )
    assert any(each.partition.library for each in compilations)


def test_what_comes_anew_in_every_call_is_not_packed() -> None:
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.logcumsumexp(nn.functional.linear(x, w), 0)

    x, w = torch.randn(64, 48), torch.randn(40, 48)
    with torch.no_grad():
        torch.testing.assert_close(compiled(product)(x, w), product(x, w), rtol=1e-5, atol=1e-4)
    assert layers() == []


class Normalized(nn.Module):
    """Two programs with equal weights, and something between them that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.once(torch.logcumsumexp(self.once(x), 0))

    def once(self, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)) @ self.weight


def test_weights_that_kernels_pack_are_counted_once_for_each_way() -> None:
    model, x = Normalized().eval(), torch.randn(8, 64)
    with torch.no_grad(), packed_first():
        torch.testing.assert_close(compiled(model, keep="all", pack=True)(x), model(x), rtol=1e-4, atol=1e-4)
    found = last()
    packed = [found.results[piece].executable.packed_weights for piece in found.partition.pieces]
    assert len(packed) == 2
    assert not found.partition.library
    assert found.packed_bytes == sum(packed[0].values()) == 64 * 64 * 4
    assert "run as kernels (0 MiB of packed weights)" in str(found)


def test_nothing_is_packed_where_that_was_asked_for() -> None:
    model, x = Tied().eval(), torch.randn(64, 48)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, pack=False)(x), model(x), rtol=1e-5, atol=1e-5)
    assert layers() == []
    assert last().packed_bytes == 0
    with pytest.raises(InvalidInput, match="pack=1"):
        PieceOptions.of({"pack": 1})


def test_packed_weights_leave_memory_for_others(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("mugraph.pieces.packed_memory.free_memory", lambda: 4 * 4 * 48 * 64)
    first, second = nn.Linear(48, 64).requires_grad_(False), nn.Linear(64, 128).requires_grad_(False)

    def apart(x: torch.Tensor) -> torch.Tensor:  # so that no program has both
        return torch.logcumsumexp(second(torch.logcumsumexp(first(x), 0)), 0)

    x, fast = torch.randn(64, 48), compiled(apart)
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="mugraph"):
        torch.testing.assert_close(fast(x), apart(x), rtol=1e-5, atol=1e-4)
    assert len(layers()) == 1
    assert "1 of 2 weights are not packed: their 0 MiB would be too much" in caplog.text


def test_convolutions_take_their_norms_along() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(16, 8, 3)
    ).eval()
    fast, x = compiled(model), torch.randn(2, 3, 20, 20)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        model[1].get_buffer("running_mean").add_(1)
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(layers()) == 2
    assert len(layers()[0]) > 2


def test_a_program_that_the_library_beats_is_cut_at_its_linear_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands around the layers is still one kernel each."""
    against = piece_duels.against

    def beaten(piece: Any, result: Any, module: Any, until: Any) -> Any:
        outcome = against(piece, result, module, until)
        contractions = any("linear" in node.name or "addmm" in node.name or "mm" in node.name for node in piece.nodes)
        return type(outcome)(rounds=20, won=0, speedup=0.5) if contractions else type(outcome)(rounds=20, won=20, speedup=2.0)

    monkeypatch.setattr(piece_optimizer, "against", beaten)
    norm, up, gate = nn.RMSNorm(48), nn.Linear(48, 96), nn.Linear(48, 96)

    def gated(x: torch.Tensor) -> torch.Tensor:
        x = norm(x)
        product: torch.Tensor = nn.functional.silu(gate(x)) * up(x)
        return product + 1

    x = torch.randn(64, 48)
    fast = compiled(gated, budget=60.0)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), gated(x), rtol=1e-5, atol=1e-5)
    assert len(layers()) == 2
    assert len(last().partition.pieces) == 2
    assert last().partition.left == () or all(not left.work.bytes for left in last().partition.left)
