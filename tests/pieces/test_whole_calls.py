"""What whole calls of functions in pieces showed: a later process looks at what the same kernels give and times none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mugraph
from mugraph.frontend.partitioning.partition import Left, Partition
from mugraph.pieces import cutting, piece_optimizer, whole_calls
from mugraph.pieces.data import CutGraph
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.partitioned import Partitioned
from mugraph.pieces.piece_duels import torch_here
from mugraph.pieces.plan import Plan
from mugraph.pieces.whole_calls import KIND, KeptCalls
from mugraph.results.coverage import Amount, Coverage, LeftCalls
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER, BaselineComparison
from mugraph.runtime.benchmarking import Duel, Spread
from mugraph.selection.own_function import OwnCall
from mugraph.support.store import Store

SPREAD = Spread(1e-3, 0.9e-3, 1.2e-3)
WON = Duel(rounds=20, won=20, speedup=2.0, ours=SPREAD, theirs=Spread(2e-3, 1.9e-3, 2.1e-3))
LOST = Duel(rounds=20, won=2, speedup=0.5, ours=SPREAD, theirs=SPREAD)
INPUTS = (torch.randn(8, 16), torch.randn(16, 24))


def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.logcumsumexp(0) @ w, -1)


def other(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.logcumsumexp(0) @ w, -1)


def of_the_same_name() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.logcumsumexp(0) @ w, -1)

    return normalised


SAME_NAME = of_the_same_name()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often both were looked at, timed, and timed part by part."""
    counts = dict.fromkeys(("difference", "timed_coverage"), 0)

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(cutting, name)

        def call(*given: Any, **settings: Any) -> Any:
            counts[name] += 1
            return function(*given, **settings)

        return call

    for name in counts:
        monkeypatch.setattr(cutting, name, counted(name))
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: Duel(rounds=20, won=20, speedup=2.0))
    return counts


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[Duel], list[Duel]]:
    """Has comparisons with the function end as they are told; gives those that were made."""

    def made(outcome: Duel) -> list[Duel]:
        fought = list[Duel]()

        def beside(*_: Any, **settings: Any) -> BaselineComparison:
            fought.append(outcome)
            return BaselineComparison({EAGER: outcome})

        monkeypatch.setattr(OwnCall, "beside", beside)
        return fought

    return made


def optimized(store: Store, fn: Callable[..., Any] = normalised, inputs: Any = INPUTS, **settings: Any) -> Superoptimized:
    opt: Superoptimized = mugraph.superoptimize(fn, inputs, budget=120.0, cache=store, seed=3, **settings)
    torch.testing.assert_close(opt(*inputs), fn(*inputs), rtol=1e-5, atol=1e-5)
    return opt


def test_calls_that_won_are_looked_at_again_and_not_timed(
    calls: dict[str, int], ends: Callable[[Duel], list[Duel]], tmp_path: Path
) -> None:
    fought, store = ends(WON), Store(tmp_path)
    first, again = optimized(store), optimized(store)
    assert len(fought) == 1
    assert calls == {"difference": 2, "timed_coverage": 1}
    assert first.found
    assert again.found
    assert again.report.comparison == first.report.comparison
    assert again.report.original_latency == 2e-3
    assert again.report.coverage == first.report.coverage
    assert again.report.coverage is not None
    assert again.report.coverage.time_share


def test_calls_that_lost_are_not_made_again(calls: dict[str, int], ends: Callable[[Duel], list[Duel]], tmp_path: Path) -> None:
    fought, store = ends(LOST), Store(tmp_path)
    first, again = optimized(store), optimized(store)
    assert len(fought) == 1
    assert calls == {"difference": 1, "timed_coverage": 0}
    assert not first.found
    assert not again.found
    assert again.own is normalised
    assert again.report.comparison == first.report.comparison
    assert again.report.coverage == first.report.coverage
    assert again.report.coverage is not None
    assert "not clearly faster than the function" in again.report.coverage.left[0].reason


def test_kernels_that_gave_the_same_before_are_looked_at_all_the_same(
    calls: dict[str, int], ends: Callable[[Duel], list[Duel]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends(WON)
    store, outputs = Store(tmp_path), Partitioned.outputs
    assert optimized(store).found
    monkeypatch.setattr(Partitioned, "outputs", lambda self, inputs: tuple(each + 1e-2 for each in outputs(self, inputs)))
    again = optimized(store)
    assert not again.found
    assert again.own is normalised


@pytest.mark.parametrize(
    ("change", "fights"),
    [
        ({}, 1),
        ({"fn": other}, 2),
        ({"fn": SAME_NAME}, 2),
        ({"inputs": (INPUTS[0], INPUTS[1].t().contiguous().t())}, 2),
        ({"baselines": True}, 2),
    ],
    ids=["nothing", "another function", "one on another line", "other strides", "more rivals"],
)
@pytest.mark.usefixtures("calls")
def test_what_differs_is_timed(change: dict[str, Any], fights: int, ends: Callable[[Duel], list[Duel]], tmp_path: Path) -> None:
    fought, store = ends(WON), Store(tmp_path)
    optimized(store)
    optimized(store, **change)
    assert len(fought) == fights


@pytest.mark.parametrize("here", [("2.0", "1"), ("2.1", "2")], ids=["threads", "torch"])
@pytest.mark.usefixtures("calls")
def test_another_number_of_threads_or_pytorch_is_timed(
    here: tuple[str, str], ends: Callable[[Duel], list[Duel]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fought, store = ends(WON), Store(tmp_path)
    for each in (("2.0", "2"), here, here):
        monkeypatch.setattr(whole_calls, "torch_here", lambda each=each: each)
        optimized(store)
    assert len(fought) == 2


@pytest.mark.parametrize(
    ("outcome", "fights"),
    [(Duel(3, 3, 1.1, SPREAD, SPREAD, cut_short=True), 2), (Duel(20, 20, 2.0, SPREAD, SPREAD, cut_short=True), 1)],
    ids=["in the lead", "clear all the same"],
)
@pytest.mark.usefixtures("calls")
def test_what_time_ended_is_timed_again_unless_it_is_clear(
    outcome: Duel, fights: int, ends: Callable[[Duel], list[Duel]], tmp_path: Path
) -> None:
    fought, store = ends(outcome), Store(tmp_path)
    optimized(store)
    optimized(store)
    assert len(fought) == fights


@pytest.mark.parametrize("damaged", [{}, {"comparison": {}, "coverage": None}, {"comparison": 3, "coverage": []}])
@pytest.mark.usefixtures("calls")
def test_documents_that_are_none_are_made_anew(
    damaged: dict[str, Any], ends: Callable[[Duel], list[Duel]], tmp_path: Path
) -> None:
    fought, store = ends(WON), Store(tmp_path)
    optimized(store)
    (entry,) = [each for each in store.entries() if each.kind == KIND]
    store.put(KIND, entry.key, damaged)
    assert optimized(store).found
    assert len(fought) == 2


@pytest.mark.parametrize(
    ("document", "serving", "recalled"),
    [
        ({"fastest": 1}, False, 1),
        ({"fastest": 2}, False, None),
        ({"fastest": 1, "serving": True}, False, None),
        ({"fastest": 1, "serving": True}, True, 1),
    ],
    ids=["kept", "of more", "kept beside a model", "beside a model again"],
)
def test_what_is_recalled(document: dict[str, Any], serving: bool, recalled: int | None, tmp_path: Path) -> None:
    kept = KeptCalls(Store(tmp_path), "key", serving)
    kept.store.put(KIND, "key", document)
    assert kept.recall(lambda found: (0, 1)[found["fastest"]]) == recalled


def test_another_version_makes_calls_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = [KeptCalls.of(Store(tmp_path), "cpu", torch.fx.Graph(), []).key]
    monkeypatch.setattr(whole_calls, "__version__", "another")
    keys.append(KeptCalls.of(Store(tmp_path), "cpu", torch.fx.Graph(), []).key)
    assert keys[0] != keys[1]


def test_what_products_may_be_rounded_to_is_another_pytorch() -> None:
    before, precise = torch.get_float32_matmul_precision(), torch_here()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch_here() != precise
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch_here()[:2] == precise[:2]


def test_which_layout_is_the_fastest_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opt = mugraph.superoptimize(normalised, INPUTS, budget=120.0, profile=False, cache="off", seed=3)
    assert isinstance(opt, Partitioned)
    calls = [node for node in opt.cut.recorded.module.graph.nodes if node.op == "call_function"]
    plans = [Plan(Partition((), tuple(Left(node, "", 0) for node in calls)), {}, layout) for layout in Layout]
    results = [Partitioned(CutGraph(opt.cut.recorded, plan), opt.report, "cpu") for plan in plans]
    asked = list[int]()

    def quickest(sides: Any) -> int:
        asked.append(len(sides))
        return 1

    monkeypatch.setattr(cutting, "quickest", quickest)
    for _ in range(2):
        assert cutting._fastest(results, INPUTS, Store(tmp_path)) is results[1]
    assert asked == [2]


def test_times_of_parts_are_of_what_was_divided_just_so() -> None:
    def coverage(reason: str, seconds: float | None = None) -> Coverage:
        left = LeftCalls("sort", reason, 1, Amount(8, 0, seconds))
        return Coverage(Amount(16, 4, seconds), Amount(0, 0, seconds), (left,))

    showed = cutting._Showed(BaselineComparison({}), coverage("no operator", 1e-3))
    for now, shown in ((coverage("no operator"), showed.coverage), (coverage("no time"), coverage("no time"))):
        result: Any = SimpleNamespace(report=SimpleNamespace(coverage=now))
        assert showed.covered(result) == shown


def test_the_place_of_calls_names_graph_kernels_and_question(tmp_path: Path) -> None:
    opt = mugraph.superoptimize(normalised, INPUTS, budget=120.0, profile=False, cache="off", seed=3)
    assert isinstance(opt, Partitioned)
    graph, plan = opt.cut.recorded.module.graph, opt.cut.plan
    store = Store(tmp_path)
    keys = [
        KeptCalls.of(store, "cpu", graph, [plan]).key,
        KeptCalls.of(store, "cpu", graph, [plan.without_kernels("they lose")]).key,
        KeptCalls.of(store, "cpu", graph, [plan, plan]).key,
        KeptCalls.of(store, "cpu", graph, [plan], "asked").key,
        KeptCalls.of(store, "cuda:sm_90", graph, [plan]).key,
    ]
    assert len({*keys}) == len(keys)
    assert KeptCalls.of(store, "cpu", graph, [plan]).key == keys[0]
