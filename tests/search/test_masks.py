"""Masks whose values are known: what tiles they leave, which sketches leave out the others, and what the search makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from mugraph import Program
from mugraph.devices import device_for
from mugraph.errors import InvalidInput
from mugraph.ir import DType, Graph
from mugraph.search import SearchResult, SearchSpace, search
from mugraph.search.closure.tiers import Tier
from mugraph.search.constraints import EVERYTHING
from mugraph.search.driver import Search
from mugraph.search.scheduling.masks import Mask
from mugraph.selection.inputs import hidden_elements
from mugraph.selection.problems import program_problem
from mugraph.selection.whole_programs import OptimizationSettings

TOKENS = 256


def masked_attention(keys: int = TOKENS) -> Graph:
    """softmax(q @ k.T + mask) @ v."""
    program = Program()
    q, k, v = (program.input(name, (4, size, 32), DType.FP32) for name, size in zip("qkv", (TOKENS, keys, keys), strict=True))
    program.output((q @ k.transpose(-2, -1) + program.input("mask", (TOKENS, keys), DType.FP32)).softmax(-1) @ v)
    return program.graph


def causal() -> np.ndarray:
    """Where a causal mask hides."""
    return np.triu(np.ones((TOKENS, TOKENS), bool), 1)


def found(hidden: dict[str, np.ndarray], target: str = "cpu", loops: Sequence[int] | None = None) -> SearchResult:
    """What the search proposes as one kernel."""
    space = SearchSpace(kernels=1, loops=loops)
    return search(masked_attention(), device_for(target), budget=20.0, space=space, hidden=hidden)


@pytest.mark.parametrize("shape", [(24, 36), (2, 3, 24, 36)])
def test_the_share_of_tiles_that_are_not_hidden(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.random(shape) < 0.9
    mask = Mask(hidden)
    flat = hidden.reshape(-1, 24, 36)
    for rows, columns in ((1, 1), (4, 6), (24, 36), (8, 12), (3, 2)):
        tiles = flat.reshape(-1, rows, 24 // rows, columns, 36 // columns).all(axis=(0, 2, 4))
        assert mask.share(rows, columns) == pytest.approx(1 - tiles.mean())
    assert mask.share(5, 6) == 1.0
    assert Mask(np.ones((8, 8), bool)).share(2, 2) == 0.0


def test_known_masks_make_loops_over_tiles_cheaper() -> None:
    plain, masked = found({}), found({"mask": causal()})
    assert plain.candidates[0].graph.kernels()[0].body is not None
    (kernel,) = masked.candidates[0].graph.kernels()
    assert kernel.body is not None
    assert kernel.body.loop > 1
    assert masked.candidates[0].cost < 0.8 * plain.candidates[0].cost
    costs = {candidate.graph: candidate.cost for candidate in plain.candidates}
    assert all(candidate.cost <= costs.get(candidate.graph, math.inf) for candidate in masked.candidates)


def test_nothing_changes_without_hidden_tiles() -> None:
    plain = [(candidate.graph, candidate.cost) for candidate in found({}).candidates]
    for hidden in (
        {"mask": np.zeros((TOKENS, TOKENS), bool)},
        {"q": np.ones((4, TOKENS, 32), bool)},
        {"mask": np.ones((3, 3), bool)},
    ):
        assert [(candidate.graph, candidate.cost) for candidate in found(hidden).candidates] == plain


def test_no_plan_is_below_the_roofline_where_iterations_are_left_out() -> None:
    tile = np.arange(TOKENS) // 16
    apart = tile[:, None] != tile
    run = Search(masked_attention(), device_for("cpu"), hidden={"mask": apart})
    best = min(plan.seconds for plan in run.plans.single(run.axes, Tier.OPAQUE_SUMS, run.produces))
    rooflines = [run.plans.roofline, replace(run.plans.roofline, running=1.0)]
    masked, unmasked = (roofline.of(run.axes, run.produces) for roofline in rooflines)
    assert masked <= best < unmasked


def test_devices_whose_kernels_run_every_iteration_pay_for_it() -> None:
    plain, masked = (found(hidden, "triton:sm_90") for hidden in ({}, {"mask": causal()}))
    assert [candidate.cost for candidate in plain.candidates] == [candidate.cost for candidate in masked.candidates]


def test_inputs_that_hide_something() -> None:
    program = masked_attention()
    q, k, v = (torch.randn(4, TOKENS, 32) for _ in range(3))
    mask = torch.full((TOKENS, TOKENS), -math.inf).triu(1)
    (hidden,) = hidden_elements(program, [q, k, v, mask]).items()
    assert hidden[0] == "mask"
    assert (hidden[1] == causal()).all()
    assert not hidden_elements(program, [q, k, v, torch.zeros(TOKENS, TOKENS)])
    assert [*hidden_elements(program, [each.numpy() for each in (q, k, v, mask)])] == ["mask"]
    mask[0, 0], k[0, 0, 0] = math.nan, math.nan
    for given in ([q, k, v, mask], [each.numpy() for each in (q, k, v, mask)]):
        (hidden,) = hidden_elements(program, given).items()
        assert (hidden[1] == causal()).all()


def test_weights_are_looked_at_without_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing every element takes several times as long as the least of them."""
    inputs = [torch.randn(4, TOKENS, 32) for _ in range(3)]
    monkeypatch.setattr(torch.Tensor, "__eq__", lambda *_: pytest.fail("compared element by element"))
    assert not hidden_elements(masked_attention(), [*inputs, torch.zeros(TOKENS, TOKENS)])


def test_kept_results_are_of_the_masks_they_were_found_for() -> None:
    program, settings = masked_attention(), OptimizationSettings()
    problem = program_problem(program, None)
    keys = [settings.key(problem, EVERYTHING, hidden) for hidden in ({}, {"mask": causal()}, {"mask": ~causal()})]
    assert all(keys[i] != keys[j] for i in range(3) for j in range(i))
    assert settings.key(problem, EVERYTHING, {"mask": causal()}) == keys[1]


def test_an_input_without_values_is_refused_by_name() -> None:
    inputs = [torch.randn(node.output.shape) for node in masked_attention().inputs()]
    with pytest.raises(InvalidInput, match="argument k is on meta and has no numbers"):
        hidden_elements(masked_attention(), [inputs[0], inputs[1].to("meta"), *inputs[2:]])
