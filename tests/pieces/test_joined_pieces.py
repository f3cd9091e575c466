"""Larger programs in the place of several steps: they win or all stays as it was, and graphs compute what they did."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.devices import device_for
from mugraph.errors import UnsupportedOperator
from mugraph.frontend.partitioning.library import LibraryKernel, mark_constant
from mugraph.frontend.partitioning.partition import Partition, Piece, partition
from mugraph.frontend.partitioning.splice import as_torch, can_run, nodes_of, spliced
from mugraph.ir.graph import Graph
from mugraph.pieces import cutting, joined_pieces, piece_duels, piece_optimizer
from mugraph.pieces.data import CutGraph
from mugraph.pieces.joined_pieces import Joiner
from mugraph.pieces.kept_joins import KIND, KeptJoins
from mugraph.pieces.library_ways import Library
from mugraph.pieces.piece_optimizer import Optimizer
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.piece_outcomes import PieceOutcome
from mugraph.pieces.plan import Plan, _Cutter, plans
from mugraph.pieces.shares import first_seconds
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime import build
from mugraph.runtime.benchmarking import Duel
from mugraph.support.deadline import NO_LIMIT, Deadline
from mugraph.support.store import Store
from mugraph.testing.torch_functions import random_function

Function = Callable[..., Any]
WON, LOST = Duel(rounds=20, won=20, speedup=2.0), Duel(rounds=20, won=10, speedup=1.0)


def recorded(fn: Function, *inputs: torch.Tensor) -> fx.GraphModule:
    """The ATen graph of a function, with shapes."""
    with torch.no_grad():
        module: fx.GraphModule = make_fx(fn, tracing_mode="fake")(*inputs)
    return module


def summed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product that rules cut from the sum of its columns, and its largest element."""
    return (x @ w / 2).sum(1, keepdim=True) * 1.5


INPUTS = torch.randn(8, 64), torch.randn(64, 32)


class Decided(Optimizer):
    """Times nothing: kernels beat PyTorch, and larger programs what they would replace, or not."""

    def __init__(
        self,
        joined: Duel | Exception | None,
        refused: int = 1 << 30,
        kept: KeptJoins | None = None,
        budget: float | None = None,
        serving: bool = False,
    ) -> None:
        options = PieceOptions(keep="all", profile=False, cache="off", seed=3, pack=False, budget=budget)
        super().__init__(options, serving=serving)
        self.kept = kept
        self.verdict, self.refused = joined, refused
        self.rivals: list[fx.GraphModule] = []
        self.asked: list[int] = []

    @property
    def measures(self) -> bool:
        return True

    @property
    def kept_joins(self) -> KeptJoins | None:
        return self.kept

    def duel(
        self, piece: Piece, result: Superoptimized, module: Callable[[], fx.GraphModule], rival: str, until: Deadline = NO_LIMIT
    ) -> Duel | None:
        self.rivals.append(module())
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    def _tried(self, piece: Piece, budget: float | None, graphs: Mapping[tuple[object, ...], Graph], again: bool) -> PieceOutcome:
        self.asked.append(len(piece.nodes))
        if len(piece.nodes) >= self.refused:
            return PieceOutcome(None, "there is nothing")
        return super()._tried(piece, budget, graphs, again)


def planned(optimizer: Optimizer, fn: Function = summed, inputs: tuple[torch.Tensor, ...] = INPUTS) -> Plan:
    """The plan of a function, after a check that it computes it."""
    module = recorded(fn, *inputs)
    (plan,) = plans(module, "cpu", optimizer, Deadline(60.0))
    for got, wanted in zip(flat(plan.spliced(module)(*inputs)), flat(fn(*inputs)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    return plan


def flat(outputs: Any) -> list[torch.Tensor]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def operators(plan: Plan) -> list[set[str]]:
    """The operators of each piece, views left out."""
    return [{str(node.target).split(".")[1] for node in piece.nodes} for piece in plan.partition.pieces]


def test_a_product_and_a_sum_are_one_program_where_it_wins() -> None:
    optimizer = Decided(WON)
    assert operators(planned(optimizer)) == [{"mm", "div", "sum", "mul"}]
    (rival,) = optimizer.rivals
    torch.testing.assert_close(rival(*INPUTS)[0], summed(*INPUTS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("optimizer", "larger", "words"),
    [
        (Decided(WON), 1, "is by rules; of larger programs in the place of several, 1 were searched"),
        (Decided(LOST), 1, "is by rules; of larger programs in the place of several, 1 were searched"),
        (Decided(WON, refused=4), 0, "is by rules; of larger programs in the place of several, 0 were searched"),
        (Optimizer(PieceOptions(keep="all", profile=False, cache="off", seed=3, pack=False)), None, "was not searched"),
    ],
    ids=["won", "lost", "not found", "not looked for"],
)
def test_the_report_says_whether_larger_programs_were_searched(optimizer: Optimizer, larger: int | None, words: str) -> None:
    plan = planned(optimizer)
    assert plan.larger == larger
    graph: Any = None  # no part of the report
    covered = cutting._report(CutGraph(graph, plan), optimizer, Deadline(60.0), 0).exhausted_what
    assert covered == f"each of {len(plan.partition.pieces)} distinct programs by itself; where they begin and end {words}"


def test_steps_are_put_together_only_to_be_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: LOST)
    ((piece, result),) = planned(Decided(WON)).results.items()
    made: list[str] = []
    for rival in ("one", "one", "another", "one"):
        optimizer = Optimizer(PieceOptions(cache="on"))  # of another process, which knows what is kept

        def steps(rival: str = rival) -> fx.GraphModule:
            made.append(rival)
            return as_torch(piece)

        assert optimizer.duel(piece, result, steps, rival) == LOST
    assert made == ["one", "another"]


@pytest.mark.parametrize(("calls", "compared"), [(3, False), (5, True)])
def test_no_duel_begins_that_cannot_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, compared: bool
) -> None:
    """Each side is called twice at least; what an earlier process measured takes no time."""
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: WON)
    ((piece, result),) = planned(Decided(WON)).results.items()
    result.best = replace(result.best, latency=100.0)

    def duel() -> Duel | None:
        module = functools.partial(as_torch, piece)
        return Optimizer(PieceOptions(cache="on")).duel(piece, result, module, "torch", Deadline(100.0 * calls))

    assert duel() == (WON if compared else None)
    Optimizer(PieceOptions(cache="on")).duel(piece, result, functools.partial(as_torch, piece), "torch")
    assert duel() == WON


def test_no_duel_of_kernels_that_were_not_timed_begins_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor against what PyTorch makes of linear layers that there was no time to look at."""
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: WON)
    ((piece, result),) = planned(Decided(WON)).results.items()
    result.best = replace(result.best, latency=None)
    optimizer, module = Optimizer(PieceOptions(cache="off")), functools.partial(as_torch, piece)
    assert optimizer.duel(piece, result, module, "torch", Deadline(0.0)) is None
    assert optimizer.duel(piece, result, module, "torch", Deadline(100.0)) == WON


def test_a_duel_that_time_cut_short_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that ended before the time did, as another round would not have."""
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path))
    ((piece, result),) = planned(Decided(WON)).results.items()
    cut_short = replace(LOST, cut_short=True)
    outcomes = iter([cut_short, WON])
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: next(outcomes))
    for outcome in (cut_short, WON, WON):
        found = Optimizer(PieceOptions(cache="on")).duel(piece, result, functools.partial(as_torch, piece), "torch")
        assert found == outcome


def test_a_duel_behind_the_deadline_is_one_round() -> None:
    ((piece, result),) = planned(Decided(WON)).results.items()
    outcome = piece_duels.against(piece, result, as_torch(piece), Deadline(0.0))
    assert (outcome.rounds, outcome.cut_short) == (1, True)


@pytest.mark.parametrize(
    "optimizer",
    [Decided(LOST), Decided(RuntimeError("a defect")), Decided(None), Decided(WON, refused=4)],
    ids=["lost", "failed", "not compared", "not found"],
)
def test_what_rules_cut_stays_where_a_larger_program_does_not_win(optimizer: Decided) -> None:
    plan = planned(optimizer)
    assert operators(plan) == [{"mm", "div"}, {"sum", "mul"}]
    assert not plan.lost
    assert max(optimizer.asked) == 4, "it was tried"


def test_later_processes_try_what_the_first_did_with_as_much_time(tmp_path: Path) -> None:
    first, store = Decided(WON, kept=KeptJoins(Store(tmp_path), 40.0)), Store(tmp_path)
    whole = operators(planned(first))
    assert operators(planned(Decided(WON, kept=first.kept))) == whole == [{"mm", "div", "sum", "mul"}]
    (entry,) = store.entries()
    store.put(entry.kind, entry.key, {"budget": 40.0, "tried": []})  # as where no time was left for it
    later = Decided(WON, kept=KeptJoins(store, 40.0))
    assert operators(planned(later)) == [{"mm", "div"}, {"sum", "mul"}]
    assert max(later.asked) == 2, "no larger one was tried"
    assert operators(planned(Decided(WON, kept=KeptJoins(store, 80.0)))) == whole, "with more time it is"


@pytest.mark.parametrize(
    "record",
    [{}, {"budget": "long", "tried": []}, {"budget": 40.0, "tried": 3}, {"budget": 39.0, "tried": []}],
    ids=["empty", "no number", "no list", "less time"],
)
def test_lists_that_are_none_or_of_less_time_hold_nothing_back(tmp_path: Path, record: dict[str, Any]) -> None:
    store = Store(tmp_path)
    store.put(KIND, "graph", record)
    assert KeptJoins(store, 40.0).tried("graph") is None
    store.put(KIND, "graph", {"budget": None, "tried": ["a"]})
    assert KeptJoins(store, 40.0).tried("graph") == KeptJoins(store, None).tried("graph") == frozenset("a")


def test_only_who_waits_for_a_model_is_held_to_what_was_tried() -> None:
    options = PieceOptions(cache="off")
    assert Optimizer(options, serving=True).kept_joins is not None
    assert Optimizer(options).kept_joins is None
    assert Optimizer(options, elsewhere=lambda *asked: {}, serving=True).kept_joins is None


LARGE = torch.randn(64, 512), torch.randn(512, 512) / 16


def test_what_is_predicted_to_be_much_faster_comes_before_what_rules_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PieceOutcome, "may_save", 0.0)  # it is not searched on
    optimizer = Decided(LOST)
    assert operators(planned(optimizer, inputs=LARGE)) == [{"mm", "div", "sum", "mul"}]
    assert optimizer.asked == [4], "nothing else is searched"
    assert optimizer.rivals == []


def test_what_rules_cut_is_searched_where_nothing_comes_of_that() -> None:
    optimizer = Decided(WON, refused=4)
    assert operators(planned(optimizer, inputs=LARGE)) == [{"mm", "div"}, {"sum", "mul"}]
    assert sorted(optimizer.asked) == [2, 2, 4], "once"


def test_the_programs_of_a_graph_are_those_that_it_is_cut_into() -> None:
    optimizer = Decided(LOST)
    plan = planned(optimizer)
    assert len(optimizer.results) == 3, "the larger one was searched, too"
    of_graph = optimizer.results_of((*plan.partition.pieces, *plan.lost))
    assert [*of_graph] == [plan.results[piece] for piece in plan.partition.pieces]


def test_attention_is_joined_though_its_operator_can_draw_random_numbers() -> None:
    def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).sum() * summed(x, w)

    module = recorded(attended, *(torch.randn(1, 2, 8, 16) for _ in range(3)), *INPUTS)
    assert Joiner(module.graph, Decided(WON)).proposed(partition(module.graph), {}, worth=-10.0)


@pytest.mark.parametrize("late", [True, False])
def test_what_there_was_no_time_for_ahead_is_proposed_again(late: bool) -> None:
    class Outcome(PieceOutcome):
        @property
        def ran_out(self) -> bool:
            return late

    class Nothing(Decided):
        def _tried(self, piece: Piece, budget: float | None, *args: Any) -> PieceOutcome:
            assert budget is not None
            assert 0.7 * 60.0 < budget <= 0.8 * 60.0, "what comes first may be in vain, but is all that there is"
            return Outcome(None, "nothing was found")

    module = recorded(summed, *LARGE)
    joiner, whole = Joiner(module.graph, Nothing(WON)), partition(module.graph)
    assert joiner.ahead(whole, {}, Deadline(60.0)) == ()
    assert bool(joiner.proposed(whole, {})) == late


def test_what_comes_ahead_has_as_large_a_part_of_the_time_as_it_saves() -> None:
    def beside(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return summed(x, w), w.sort(-1).values

    given: list[float] = []

    class Noting(Decided):
        def _tried(self, piece: Piece, budget: float | None, *args: Any) -> PieceOutcome:
            assert budget is not None
            given.append(budget)
            return PieceOutcome(None, "nothing was found")

    module = recorded(beside, *LARGE)
    joiner = Joiner(module.graph, Noting(WON))
    assert joiner.ahead(partition(module.graph), {}, Deadline(60.0)) == ()
    (saved,) = joiner._parts.values()
    assert 0.25 < saved < 0.75
    assert given == [pytest.approx(60.0 * saved, rel=0.2)]


@pytest.mark.parametrize(
    ("seconds", "joined"), [((1e-3, 1e-6), True), ((1e-3, 1e-3), False), ((2e-6, 2e-6), False), (None, True)]
)
def test_linear_layers_are_priced_as_measured(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float] | None, joined: bool
) -> None:
    """What PyTorch takes long for, and the library would not, is tried with what reads it; unless both are as slow, or fast."""
    monkeypatch.setattr(Library, "known_seconds", lambda self, kernel: seconds)
    optimizer = Decided(WON)
    optimizer.library = Library("cpu", Store.of("off"))
    module = recorded(lambda x, w: (x @ w).softmax(-1), torch.randn(64, 256), torch.randn(256, 256))
    weight = [node for node in module.graph.nodes if node.op == "placeholder"][1]
    mark_constant(weight)
    assert bool(Joiner(module.graph, optimizer).proposed(partition(module.graph), {})) == joined


def test_those_whose_time_ran_out_come_before_what_may_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: 1.0)

    class OutOfTime(PieceOutcome):
        @property
        def ran_out(self) -> bool:
            return True

    class Late(Decided):
        def _tried(self, piece: Piece, *args: Any, **kwargs: Any) -> PieceOutcome:
            self.asked.append(len(piece.nodes))
            return OutOfTime(None, "no time")

    optimizer = Late(WON)
    assert planned(optimizer).partition.pieces == ()
    assert optimizer.asked[:5] == [2, 2, 2, 2, 4], "one of them with more of its part, and with all that is left"


def test_what_was_joined_stays_while_the_rest_is_cut_again() -> None:
    def beside(x: torch.Tensor, w: torch.Tensor, q: torch.Tensor, keys: torch.Tensor) -> list[torch.Tensor]:
        normal = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1)
        return [summed(x, w), (normal @ torch.cat([keys, q], 0).t()).softmax(-1)]

    class Apart(Decided):
        def _tried(self, piece: Piece, *args: Any, **kwargs: Any) -> PieceOutcome:
            tangled = {"cat", "rsqrt"} <= {str(node.target).split(".")[1] for node in piece.nodes}
            return PieceOutcome(None, "there is nothing") if tangled else super()._tried(piece, *args, **kwargs)

    found = operators(planned(Apart(WON), beside, (*LARGE, torch.randn(2, 16), torch.randn(6, 16))))
    assert {"mm", "div", "sum", "mul"} in found
    assert len(found) > 1
    assert not any({"cat", "rsqrt"} <= names for names in found)


@pytest.mark.parametrize("seed", range(15))
def test_random_graphs_are_cut_around_what_is_joined(seed: int) -> None:
    torch.manual_seed(seed)
    fn, inputs = random_function(seed), [torch.randn(8, 8) / 4 for _ in range(3)]
    module = recorded(fn, *inputs)
    cutter = _Cutter(module.graph, "cpu", device_for("cpu"))
    cutter.joined = tuple(Joiner(module.graph, Decided(WON)).proposed(cutter.cut(()), {}, worth=-10.0))
    whole = cutter.cut(())
    again = spliced(module, whole, {piece: build(piece.program) for piece in whole.pieces})
    for got, wanted in zip(again(*inputs), module(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_what_was_joined_has_its_calls_before_the_library() -> None:
    """A linear layer of what was joined may be asked for, too: what ran for a while may be found wrong."""
    module = recorded(summed, *LARGE)
    cutter = _Cutter(module.graph, "cpu", device_for("cpu"))
    cutter.joined = tuple(Joiner(module.graph, Decided(WON)).proposed(cutter.cut(()), {}))
    (product,) = (node for node in module.graph.nodes if "mm" in node.name)
    whole = cutter.cut([LibraryKernel(product)])
    assert whole.library == ()
    assert [piece.nodes for piece in whole.pieces] == [piece.nodes for piece in cutter.joined]
    assert can_run(module.graph, whole)


def test_that_a_larger_program_cannot_be_optimized_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = Decided(WON)
    outcomes = optimizer.outcomes

    def strict(pieces: list[Piece], *args: Any, **kwargs: Any) -> list[PieceOutcome]:
        if any(len(piece.nodes) == 4 for piece in pieces):
            raise UnsupportedOperator("of all together")
        return outcomes(pieces, *args, **kwargs)

    monkeypatch.setattr(optimizer, "outcomes", strict)
    assert operators(planned(optimizer)) == [{"mm", "div"}, {"sum", "mul"}]


def test_a_larger_program_that_cannot_be_optimized_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        return [summed(x, w), (y @ v / 3).amax(1, keepdim=True) * 1.5]

    optimizer = Decided(WON)
    outcomes = optimizer.outcomes

    def strict(pieces: list[Piece], *args: Any, **kwargs: Any) -> list[PieceOutcome]:
        if any({"mm", "amax"} <= {str(node.target).split(".")[1] for node in piece.nodes} for piece in pieces):
            raise UnsupportedOperator("of all together")
        return outcomes(pieces, *args, **kwargs)

    monkeypatch.setattr(optimizer, "outcomes", strict)
    found = operators(planned(optimizer, two, (*INPUTS, torch.randn(8, 64), torch.randn(64, 48))))
    assert {"mm", "div", "sum", "mul"} in found
    assert {"amax", "mul"} in found


def test_a_piece_that_lost_may_be_part_of_a_larger_one() -> None:
    optimizer = Decided(WON)
    module = recorded(summed, *INPUTS)
    whole = partition(module.graph)
    outcomes = {piece: PieceOutcome(None, "it is slow") for piece in whole.pieces}
    joined, more = Joiner(module.graph, optimizer).joined(whole, outcomes, {}, Deadline(60.0))
    (piece,) = joined.pieces
    assert len(piece.nodes) == 4
    assert more[piece].runs
    assert joined.left == ()


def test_a_piece_that_lost_and_lies_around_what_is_joined_can_be_tried_again_only_if_the_graph_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joined_pieces, "_LEAST", 60.0)

    def around(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, c: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        narrow, product = x @ w, torch.i0(a) @ c
        return [(narrow.t() @ v) * product, torch.relu(narrow @ product * 2)]

    class Through(Decided):
        def _tried(self, piece: Piece, *args: Any, **kwargs: Any) -> PieceOutcome:
            found = [node.name for node in piece.nodes] == ["mm", "mm_3", "mul_1", "relu"]
            return super()._tried(piece, *args, **kwargs) if found else PieceOutcome(None, "no time")

    sizes = (512, 512), (512, 8), (8, 16), (16, 1024), (512, 1024)
    module = recorded(around, *(torch.randn(size) / 8 for size in sizes))
    whole = partition(module.graph)
    lost = {piece: PieceOutcome(None, "no time") for piece in whole.pieces}
    joined, outcomes = Joiner(module.graph, Through(WON)).joined(whole, lost, {}, Deadline(60.0))
    assert [len(piece.nodes) for piece in joined.pieces if outcomes[piece].runs] == [4]
    assert can_run(module.graph, joined)


def test_what_pytorch_runs_between_two_steps_keeps_them_apart() -> None:
    def around(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        product = x @ w / 2
        return product.sum(1, keepdim=True) + torch.i0(product)

    for piece in planned(Decided(WON), around).partition.pieces:
        assert {"mm", "add"} - {str(node.target).split(".")[1] for node in piece.nodes}


def test_several_results_and_changes_in_place_are_kept() -> None:
    def changing(x: torch.Tensor, w: torch.Tensor, cache: torch.Tensor) -> list[torch.Tensor]:
        product = x @ w / 2
        total = product.sum(1, keepdim=True)
        torch.ops.aten.add_.Tensor(cache, total)
        return [total, product, cache * 2]

    inputs = (*INPUTS, torch.randn(8, 1))
    module = recorded(changing, *inputs)
    (plan,) = plans(module, "cpu", Decided(WON), Deadline(60.0))
    ours, theirs = ([tensor.clone() for tensor in inputs] for _ in range(2))
    for got, wanted in zip([*plan.spliced(module)(*ours), *ours], [*changing(*theirs), *theirs], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert [len(piece.outputs) for piece in plan.partition.pieces] == [2]


def test_where_random_numbers_are_drawn_nothing_changes_places() -> None:
    def drawing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        drawn: torch.Tensor = torch.ops.aten.bernoulli.default(torch.sigmoid(x[:, :1]))
        return summed(x, w) * drawn

    module = recorded(drawing, *INPUTS)
    joiner = Joiner(module.graph, Decided(WON))
    assert joiner.proposed(partition(module.graph), {}, worth=-10.0) == {}


def test_convolutions_are_not_joined() -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        image = torch.nn.functional.conv1d(x[None], kernel).squeeze(0)
        return image.sum(-1, keepdim=True) * summed(x, w)

    module = recorded(mixed, *INPUTS, torch.randn(8, 8, 3))
    whole = partition(module.graph)
    proposed = Joiner(module.graph, Decided(WON)).proposed(whole, {}, worth=-10.0)
    assert proposed
    for steps in proposed.values():
        assert "aten.convolution.default" not in {str(node.target) for step in steps for node in nodes_of(step)}


def test_parts_of_tensors_are_joined() -> None:
    """Calls that put parts together, which rules left to PyTorch, and halves of a tensor."""

    def rotated(x: torch.Tensor, w: torch.Tensor, wave: torch.Tensor) -> torch.Tensor:
        product = x @ w / 2
        turned = torch.cat((-product[:, 16:], product[:, :16]), 1)
        return (product * wave + turned * wave.flip(1)).sum(1, keepdim=True)

    inputs = (*INPUTS, torch.randn(8, 32))
    module = recorded(rotated, *inputs)
    joiner, whole = Joiner(module.graph, Decided(WON)), partition(module.graph)
    while proposed := joiner.proposed(whole, {}, worth=-10.0):
        whole = whole.with_joined(proposed)
    assert "aten.cat.default" in {str(node.target) for piece in whole.pieces for node in piece.nodes}
    again = spliced(module, whole, {piece: build(piece.program) for piece in whole.pieces})
    torch.testing.assert_close(again(*inputs), rotated(*inputs), rtol=1e-4, atol=1e-4)


def test_equal_layers_are_joined_alike() -> None:
    def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.i0(summed(x, w) + x)
        return x

    module = recorded(layers, torch.randn(8, 64), *(torch.randn(64, 64) for _ in range(3)))
    joiner = Joiner(module.graph, Decided(WON))
    pieces = [*joiner.proposed(partition(module.graph), {})]
    assert len(pieces) == 3
    assert len({id(piece.program) for piece in pieces}) == 1, "it is converted once"


def beside_a_large_product(layers: int) -> fx.GraphModule:
    """Small programs that would be faster together, all equal, beside a product that takes hundreds of times as long as one."""

    def fn(large: torch.Tensor, x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for w in weights:
            x = torch.i0(summed(x, w) + x)
        return torch.i0(large) @ large, x

    return recorded(fn, torch.randn(1024, 1024), torch.randn(8, 64), *(torch.randn(64, 64) for _ in range(layers)))


@pytest.mark.parametrize(
    ("layers", "budget", "tried"), [(1, 40.0, False), (1, 4000.0, True), (1, None, True), (30, 40.0, True), (30, 1.0, False)]
)
def test_what_saves_next_to_nothing_of_a_call_is_not_worth_its_time(layers: int, budget: float | None, tried: bool) -> None:
    """By what equal ones save together, as they are searched once, and by how much time there is."""
    module = beside_a_large_product(layers)
    joiner = Joiner(module.graph, Decided(WON, budget=budget))
    pieces = joiner.proposed(partition(module.graph), {})
    assert len(pieces) == (layers if tried else 0)


@pytest.mark.parametrize(("budget", "serving", "hurried"), [(40.0, True, True), (4000.0, True, False), (40.0, False, False)])
def test_calls_wait_for_no_more_than_the_first_of_what_saves_little(
    monkeypatch: pytest.MonkeyPatch, budget: float, serving: bool, hurried: bool
) -> None:
    monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: 1.0)
    module = beside_a_large_product(30)
    optimizer = Decided(WON, budget=budget, serving=serving)
    joiner, whole = Joiner(module.graph, optimizer), partition(module.graph)
    lost = {piece: PieceOutcome(None, "it is slow") for piece in whole.pieces}
    piece, *_ = joiner.proposed(whole, lost)
    joiner.joined(whole, lost, {}, Deadline(600.0))
    enough = optimizer._share_of(piece).enough
    assert enough is not None
    assert (enough <= first_seconds()) == hurried


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_are_unchanged_by_whatever_is_joined(seed: int) -> None:
    torch.manual_seed(seed)
    fn, inputs = random_function(seed), [torch.randn(8, 8) / 4 for _ in range(3)]
    module = recorded(fn, *inputs)
    joiner, whole = Joiner(module.graph, Decided(WON)), partition(module.graph)
    while proposed := joiner.proposed(whole, {}, worth=-10.0):  # also what is predicted to be slower
        whole = whole.with_joined(proposed)
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert sorted(map(str, calls)) == sorted(str(node) for step in steps_of(whole) for node in nodes_of(step))
    again = spliced(module, whole, {piece: build(piece.program) for piece in whole.pieces})
    for got, wanted in zip(again(*inputs), module(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def steps_of(whole: Partition) -> list[Any]:
    """All steps of a partition."""
    return [*whole.pieces, *whole.library, *whole.left]
