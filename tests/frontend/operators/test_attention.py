"""Masked and causal attention in pieces: as PyTorch computes it, also where a mask hides every key of a query."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.devices import device_for
from mugraph.errors import UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.operators import attention as attention_module
from mugraph.frontend.operators.attention import causal_mask, hides_a_row
from mugraph.frontend.partitioning.partition import Partition, partition
from mugraph.frontend.partitioning.splice import Kernels, runnable, spliced
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import build
from mugraph.search import search
from mugraph.selection.inputs import runner
from mugraph.verifier.float_checks import float_check

Function = Callable[..., Any]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) / 2


class Counted:
    """Kernels that count their runs."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels, self.runs = kernels, 0

    def __call__(self, *tensors: torch.Tensor) -> Any:
        self.runs += 1
        return self.kernels(*tensors)


def compare(fn: Function, *inputs: torch.Tensor, kernels: bool = True) -> Partition:
    """Run `fn` by its one piece, which `kernels` compute, and compare it with PyTorch."""
    with torch.no_grad():
        module = make_fx(fn, tracing_mode="fake")(*inputs)
    found = partition(module.graph)
    (piece,) = found.pieces
    counted = Counted(build(piece.program))
    got, wanted = spliced(module, found, {piece: counted})(*inputs), fn(*inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert got.stride() == wanted.stride()
    assert counted.runs == kernels
    return found


QUERIES, KEYS, VALUES = randn(2, 4, 3, 8), randn(2, 4, 5, 8), randn(2, 4, 5, 8)
GROUPED_KEYS, GROUPED_VALUES = randn(2, 2, 5, 8), randn(2, 2, 5, 8)
VISIBLE = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
HIDING = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)


def additive(visible: torch.Tensor) -> torch.Tensor:
    return torch.where(visible, 0.0, -math.inf)


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q * 1.5, k, v, attn_mask=mask, enable_gqa=k.shape[1] != q.shape[1])


LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    "mask",
    [VISIBLE, additive(VISIBLE), torch.where(HIDING, 0.0, LOWEST), randn(3, 5), randn(2, 1, 3, 5), randn(2, 4, 1, 5)],
)
@pytest.mark.parametrize(("keys", "values"), [(KEYS, VALUES), (GROUPED_KEYS, GROUPED_VALUES)])
def test_masked_attention_is_a_piece(keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> None:
    compare(masked, QUERIES, keys, values, mask)


@pytest.mark.parametrize("mask", [HIDING, additive(HIDING)])
def test_torch_runs_a_piece_whose_mask_hides_a_row(mask: torch.Tensor) -> None:
    compare(masked, QUERIES, KEYS, VALUES, mask, kernels=False)
    assert masked(QUERIES, KEYS, VALUES, mask)[:, :, 1].eq(0).all(), "what makes the row special"


@pytest.mark.parametrize("mask", [additive(VISIBLE), additive(HIDING)])
def test_a_mask_added_to_scores_is_an_operand_like_any_other(mask: torch.Tensor) -> None:
    def spelled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) + mask, -1) @ v

    compare(spelled, QUERIES, KEYS, VALUES, mask)


@pytest.mark.slow
def test_a_hidden_key_may_have_any_score() -> None:
    """Kernels that shifted scores and mask apart would lose the keys that are seen; the comparison with float64 rejects such."""
    queries, keys, values = randn(2, 4, 3, 8), randn(2, 4, 64, 8), randn(2, 4, 64, 8)
    mask = additive(torch.rand(3, 64) < 0.5)
    mask[:, :2] = torch.tensor([0.0, -math.inf])
    keys[..., 1, :] = 1e4 * queries[..., 0, :]
    with torch.no_grad():
        module = make_fx(masked, tracing_mode="fake")(queries, keys, values, mask)
    (piece,) = partition(module.graph).pieces
    wanted = masked(queries, keys, values, mask)
    compared = 0
    for candidate in search(piece.program, device_for("cpu")).candidates:
        executable = build(construct(candidate.graph))
        if float_check(runner(executable), piece.program).stable:
            (got,) = executable(queries, keys, values, mask)
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared


def test_a_mask_that_is_computed_stays_outside_and_is_looked_at() -> None:
    def moved(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return masked(q, k, v, (mask * 2.0).expand(2, 1, 3, 5))

    found = compare(moved, QUERIES, KEYS, VALUES, additive(VISIBLE))
    assert "aten.expand.default: it makes a mask, which is looked at before attention runs" in found.reasons()
    compare(moved, QUERIES, KEYS, VALUES, additive(HIDING), kernels=False)


@pytest.mark.parametrize("lengths", [(5, 5), (3, 5), (7, 5), (1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_attention_is_a_piece(lengths: tuple[int, int], dtype: torch.dtype) -> None:
    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 1.5, k, v, is_causal=True)

    queries, keys = lengths
    tensors = [randn(1, 2, length, 8).to(dtype) for length in (queries, keys, keys)]
    with torch.no_grad():
        module = make_fx(causal, tracing_mode="fake")(*tensors)
    found = partition(module.graph)
    (piece,) = found.pieces
    got = spliced(module, found, {piece: build(piece.program)})(*tensors)
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got, causal(*tensors), rtol=tolerance, atol=tolerance)


def test_two_causal_attentions_in_one_piece_share_the_mask() -> None:
    def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        first = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return first + F.scaled_dot_product_attention(q * 2.0, k, v, is_causal=True)

    found = compare(twice, KEYS, KEYS, VALUES)
    assert len(found.pieces[0].causal_masks) == 1


def test_layers_look_at_their_mask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[torch.Tensor] = []

    def looking(mask: torch.Tensor) -> bool:
        looked.append(mask)
        return hides_a_row(mask)

    def layers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return masked(torch.i0(masked(q, k, v, mask)), k, v, mask)

    monkeypatch.setattr("mugraph.frontend.partitioning.splice.hides_a_row", looking)
    mask = additive(VISIBLE)
    with torch.no_grad():
        module = make_fx(layers, tracing_mode="fake")(QUERIES, KEYS, VALUES, mask)
    found = partition(module.graph)
    assert len(found.pieces) == 2
    kernels = {piece: Counted(build(piece.program)) for piece in found.pieces}
    run = spliced(module, found, kernels)
    torch.testing.assert_close(run(QUERIES, KEYS, VALUES, mask), layers(QUERIES, KEYS, VALUES, mask), rtol=1e-4, atol=1e-4)
    assert len(looked) == 1
    hiding = additive(HIDING)
    torch.testing.assert_close(run(QUERIES, KEYS, VALUES, hiding), layers(QUERIES, KEYS, VALUES, hiding), rtol=1e-4, atol=1e-4)
    assert [counted.runs for counted in kernels.values()] == [1, 1]
    (piece, _) = found.pieces
    alone = runnable(piece, kernels[piece])(*[QUERIES, KEYS, VALUES, mask])
    torch.testing.assert_close(alone[0], masked(QUERIES, KEYS, VALUES, mask), rtol=1e-4, atol=1e-4)


def test_layers_share_the_causal_mask() -> None:
    first, again = (causal_mask((3, 5), torch.float32, torch.device("cpu")) for _ in range(2))
    assert first is again
    assert not hides_a_row(first)


def test_a_program_of_ones_own_has_nobody_to_look_at_its_mask() -> None:
    with pytest.raises(UnsupportedOperator, match=r"masked attention, which is 0 .* write softmax\(scores \+ mask\)"):
        trace(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), (KEYS, KEYS, KEYS, randn(5, 5)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The masks that a GPU was asked of, which none is here."""
    masks: list[torch.Tensor] = []
    usual = attention_module._hides_a_row

    def noted(mask: torch.Tensor) -> bool:
        masks.append(mask)
        return usual(mask)

    monkeypatch.setattr(attention_module, "_hides_a_row", noted)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return masks


def test_a_gpu_is_asked_once_of_a_mask_and_again_when_it_changed(asked: list[torch.Tensor]) -> None:
    watched, mask = attention_module._Watched(), torch.zeros(4, 4)
    assert [watched.hides_a_row(mask), watched.hides_a_row(mask)] == [False, False]
    assert len(asked) == 1
    mask[2] = -torch.inf
    assert [watched.hides_a_row(mask), watched.hides_a_row(mask)] == [True, True]
    assert len(asked) == 2
    mask.data = torch.zeros(4, 4)
    assert not watched.hides_a_row(mask)
    asked.clear()
    with torch.inference_mode():  # nobody counts the changes of such tensors
        mask = torch.zeros(2, 2)
        assert [watched.hides_a_row(mask), watched.hides_a_row(mask)] == [False, False]
    assert len(asked) == 2


def test_what_was_said_of_a_mask_goes_with_it(asked: list[torch.Tensor]) -> None:
    watched, mask = attention_module._Watched(), torch.zeros(2, 2)
    watched.hides_a_row(mask)
    asked.clear()
    before = len(watched._known)
    del mask
    assert (before, len(watched._known)) == (1, 0)


def test_nothing_is_asked_while_a_cuda_graph_is_captured(asked: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    watched, known, unknown = attention_module._Watched(), torch.zeros(2, 2), torch.zeros(2, 2)
    assert not watched.hides_a_row(known)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not watched.hides_a_row(known)
    assert watched.hides_a_row(unknown), "PyTorch runs the piece then"
    assert len(asked) == 1
