"""What of a budget pieces have: more where they run often and save much, and something of each before more of any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import mugraph
from mugraph.errors import UnsupportedOperator
from mugraph.frontend import record
from mugraph.frontend.partitioning.partition import Piece, partition
from mugraph.frontend.recording.recorded_graph import recorded_graph
from mugraph.ir.graph import Graph
from mugraph.pieces import whole_or_pieces
from mugraph.pieces.piece_optimizer import Optimizer
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.piece_outcomes import PieceOutcome
from mugraph.pieces.shares import Share, first_seconds, least_seconds
from mugraph.results.superoptimized import Superoptimized
from mugraph.selection.whole_programs import superoptimize_program
from mugraph.support.deadline import Deadline
from pieces.clocks import Clock


class Given(Optimizer):
    """Finds nothing, in `seconds` of a clock, and notes the share of each piece by the name of one of its operators."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        super().__init__(PieceOptions(profile=False, cache="off", pack=False))
        self.clock, self.seconds = clock, seconds
        self.given: dict[str, Share] = {}

    def _tried(self, piece: Piece, budget: float | None, graphs: Mapping[tuple[object, ...], Graph], again: bool) -> PieceOutcome:
        self.given[str(piece.nodes[-1].target).split(".")[1]] = self._share_of(piece)
        self.clock.now += self.seconds
        return PieceOutcome(None, "there is nothing")


def pieces_of(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Piece, ...]:
    return partition(recorded_graph(record(function, inputs)).module.graph).pieces


@pytest.mark.parametrize("often", [1, 32])
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
def test_what_runs_often_has_more(monkeypatch: pytest.MonkeyPatch, often: int, first: bool) -> None:
    """Of as many operators on as many elements; both have their part of what is shared by operators."""

    def function(one: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        lone = [] if first else [(one * one).sum(-1)]
        many = [(other * other).amax(-1) for other in others]
        return [*many, (one * one).sum(-1)] if first else [*lone, *many]

    pieces = pieces_of(function, *torch.randn(1 + often, 4, 8))
    assert len(pieces) == 1 + often
    optimizer = Given(Clock(monkeypatch))
    optimizer.outcomes(pieces, {}, Deadline(100.0))
    given = next(iter(optimizer.given.values())).enough
    assert given == pytest.approx(50.0 if often == 1 else 25.0 + 50.0 * (32 if first else 1) / 33)


def four(*inputs: torch.Tensor) -> list[torch.Tensor]:
    """Four programs that have nothing in common, of two to five operators."""
    one, two, three, last = inputs
    return [
        (one * one).sum(-1),
        (two * two + 1).amax(-1),
        (three.exp() * three + 1).amin(-1),
        (last.tanh() * last + 1).exp().mean(-1),
    ]


@pytest.mark.parametrize("slowdown", [1.0, 6.0])
def test_something_of_each_comes_before_more_of_any_in_a_scarce_time(monkeypatch: pytest.MonkeyPatch, slowdown: float) -> None:
    """And what there is time for is a part as ever."""
    clock = Clock(monkeypatch, slowdown)
    pieces = pieces_of(four, *torch.randn(4, 4, 8))
    optimizer = Given(clock, seconds=slowdown)
    optimizer.outcomes(pieces, {}, Deadline(60.0))
    given = [share.enough for share in optimizer.given.values()]
    assert len(given) == 4
    scarce = 4 * least_seconds() > 60.0
    assert scarce == (slowdown > 1)
    assert all(enough is not None and (enough == first_seconds() if scarce else enough > 2 * first_seconds()) for enough in given)


def test_what_is_tried_again_in_a_scarce_time_ends_with_something_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves is for what else is done about the graph."""
    clock = Clock(monkeypatch, slowdown=7.0)
    shares: dict[str, list[Share]] = {}

    class Late(Given):
        def _tried(self, piece: Piece, *args: Any) -> PieceOutcome:
            super()._tried(piece, *args)
            shares.setdefault(self.key(piece), []).append(self._share_of(piece))
            return PieceOutcome(None, "the time ran out", late=sum(map(len, shares.values())) == 1)

    pieces = pieces_of(lambda x, y: ((x * x).sum(-1), (y * y + 1).amax(-1)), *torch.randn(2, 4, 8))
    Late(clock).outcomes(pieces, {}, Deadline(60.0))
    again = [more for _, *later in shares.values() for more in later]
    assert [share.enough for share in again] == [first_seconds()]


def test_what_was_hurried_for_one_graph_is_not_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which were given no more than the first muGraph of what there had been no time for before, however much they had."""
    given: list[Share] = []

    class Late(Given):
        def _tried(self, piece: Piece, *args: Any) -> PieceOutcome:
            given.append(self._share_of(piece))
            return PieceOutcome(None, "the time ran out", late=True)

    pieces = pieces_of(lambda x: (x * x).sum(-1), torch.randn(4, 8))
    optimizer, whole, other = Late(Clock(monkeypatch)), Deadline(60.0), Deadline(60.0)
    optimizer.outcomes(pieces, {}, Deadline(10.0), until=whole, hurried=pieces)
    optimizer.outcomes(pieces, {}, Deadline(20.0), until=whole)
    optimizer.outcomes(pieces, {}, Deadline(40.0), until=other)
    assert [share.enough for share in given] == [first_seconds(), first_seconds(), 40.0]


def test_a_lone_piece_has_all_the_time_however_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = Given(Clock(monkeypatch, slowdown=20.0))
    optimizer.outcomes(pieces_of(lambda x: (x * x).sum(-1), torch.randn(4, 8)), {}, Deadline(60.0))
    assert [share.enough for share in optimizer.given.values()] == [60.0]


def stream(x: torch.Tensor) -> torch.Tensor:
    """A stream [rows, width] through twelve layers of attention to itself and a norm, of 14 operators each."""
    for _ in range(12):
        x = x + torch.softmax(x @ x.T, -1) @ x
        x = x / (x.square().mean(-1, keepdim=True) + 1).sqrt()
    return x


def test_a_long_stream_has_its_first_piece_before_a_tenth_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its whole, of which tests have no bound, is searched when its pieces have come to nothing."""
    clock = Clock(monkeypatch)
    begun, asked = clock.now, list[tuple[str, float]]()

    def piece(program: Graph, *given: Any, budget: float, **settings: Any) -> Superoptimized:
        asked.append(("piece", clock.now - begun))
        clock.now += 1.0
        raise UnsupportedOperator("nothing")

    def whole(problem: Any, settings: Any, limit: Deadline, *given: Any) -> Superoptimized:
        asked.append((f"whole of {len(problem.program.kernels())}", clock.now - begun))
        clock.now += limit.remaining or 0.0
        raise UnsupportedOperator("nothing")

    monkeypatch.setattr("mugraph.pieces.piece_optimizer.superoptimize_program", piece)
    monkeypatch.setattr(whole_or_pieces, "superoptimized", whole)
    with torch.no_grad(), pytest.raises(UnsupportedOperator, match="nothing"):
        mugraph.superoptimize(stream, (torch.randn(8, 16),), budget=60.0, profile=False, cache="off", pack=False)
    (first, seconds), *_, (last, _) = asked
    assert (first, last) == ("piece", "whole of 168")
    assert seconds < 6.0


@pytest.mark.parametrize(("slowdown", "begins_with"), [(1.0, "whole"), (10.0, "pieces")])
def test_a_whole_for_which_a_busy_machine_has_no_time_comes_behind_its_pieces(
    monkeypatch: pytest.MonkeyPatch, slowdown: float, begins_with: str
) -> None:
    """Of 200 random programs on such a machine three had kernels as a whole, the longest of 94 operators."""
    Clock(monkeypatch, slowdown)
    asked: list[str] = []

    def refused(name: str) -> Callable[..., Superoptimized]:
        def ask(*given: Any, **settings: Any) -> Superoptimized:
            asked.append(name)
            raise UnsupportedOperator("nothing")

        return ask

    monkeypatch.setattr("mugraph.pieces.cutting.superoptimized_in_pieces", refused("pieces"))
    monkeypatch.setattr(whole_or_pieces, "superoptimized", refused("whole"))
    weights = [torch.randn(16, 16) for _ in range(8)]

    def normed(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh((x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1)) @ weight)
        return x

    with torch.no_grad(), pytest.raises(UnsupportedOperator, match="nothing"):
        mugraph.superoptimize(normed, (torch.randn(8, 16), *weights), budget=20.0, profile=False, cache="off", pack=False)
    assert asked[0] == begins_with


def test_what_is_predicted_to_be_faster_takes_the_place_of_what_was_found_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is measured; and only there, of what the search may be better."""
    costs: list[float] = []

    def superoptimized(*program: Any, anew: bool, **settings: Any) -> Superoptimized:
        result = superoptimize_program(*program, anew=anew, **settings)
        cut_short = {"gain_left": 0.5, "settled": False, "exhausted": False, "exhausted_what": "nothing"}
        result.report = replace(result.report, search=result.report.search | cut_short)
        costs.append(1e-6 if anew and len(costs) % 2 else 2e-6)
        result.best = replace(result.best, cost=costs[-1])
        monkeypatch.setattr(type(result.executable), "digest", property(lambda own: str(id(own))))
        return result

    monkeypatch.setattr("mugraph.pieces.piece_optimizer.superoptimize_program", superoptimized)
    optimizer = Optimizer(PieceOptions(profile=False, cache="off", seed=3, pack=False))
    pieces = pieces_of(lambda x, y: ((x * x).sum(-1), (y * y + 1).amax(-1)), *torch.randn(2, 4, 8))
    monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: 1000.0)
    before = optimizer.outcomes(pieces, {}, Deadline(60.0))
    assert [outcome.runs for outcome in before] == [True, True]
    assert optimizer.cut_short(pieces, {}) == [*pieces]
    monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: 1.0)
    after = optimizer.searched_on(pieces, {}, Deadline(600.0))
    assert [outcome.result is earlier.result for outcome, earlier in zip(after, before, strict=True)] == [
        cost == 2e-6 for cost in costs[2:]
    ]
    assert set(costs[2:]) == {1e-6, 2e-6}
    assert optimizer.cut_short(pieces, {}) == [*pieces]
    unhurried = Optimizer(PieceOptions(profile=False, cache="off", seed=3, pack=False))
    unhurried.outcomes(pieces, {}, Deadline(600.0))
    assert unhurried.cut_short(pieces, {}) == []
