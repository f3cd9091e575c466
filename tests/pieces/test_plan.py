"""How a function is cut: calls of which nothing is found together are tried in smaller programs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.frontend.partition import Piece, partition
from mugraph.ir.graph import Graph
from mugraph.pieces.piece_optimizer import Optimizer, PieceOptions, PieceOutcome
from mugraph.pieces.plan import Plan, plans
from mugraph.support.deadline import Deadline

CACHED, WIDTH = 24, 8


def decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, gain: torch.Tensor
) -> torch.Tensor:
    """A query, normalised, over cached keys and a new one."""
    q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1) * gain for x in (q, k))
    keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
    return (q @ keys.transpose(2, 3)).softmax(-1) @ values


def recorded() -> fx.GraphModule:
    """Its ATen graph with shapes."""
    one, many = (torch.randn(1, 2, rows, WIDTH) for rows in (1, CACHED))
    with torch.no_grad():
        module: fx.GraphModule = make_fx(decode, tracing_mode="fake")(one, one, one, many, many, torch.randn(WIDTH))
    return module


def names(piece: Piece) -> set[str]:
    """The operators of its calls."""
    return {str(node.target).split(".")[1] for node in piece.nodes}


class Choosy(Optimizer):
    """Finds nothing of programs with some operators together; of others what there is, if they get more time than a `hurry`."""

    def __init__(self, refused: set[str], hurry: float = 0.0) -> None:
        super().__init__(PieceOptions(profile=False, cache="off", seed=3, pack=False))
        self.refused, self.hurry = refused, hurry
        self.asked: list[set[str]] = []

    def _tried(self, piece: Piece, budget: float | None, graphs: Mapping[tuple[object, ...], Graph]) -> PieceOutcome:
        self.asked.append(names(piece))
        if self.refused <= names(piece):
            return PieceOutcome(None, "there is nothing")
        return super()._tried(piece, 0.0 if (budget or 0.0) < self.hurry else budget, graphs)


def planned(optimizer: Optimizer, budget: float = 120.0) -> Plan:
    """The plan of it."""
    (plan,) = plans(recorded(), "cpu", optimizer, Deadline(budget))
    return plan


def test_a_program_of_everything_is_tried_first() -> None:
    optimizer = Choosy({"nothing"})
    (piece,) = planned(optimizer).partition.pieces
    assert {"cat", "_softmax"} < names(piece)
    assert len(optimizer.asked) == 1


def test_what_comes_before_parts_is_a_program_of_its_own() -> None:
    whole = {"cat", "_softmax", "rsqrt"} & names(partition(recorded().graph).pieces[0])
    plan = planned(Choosy(whole))
    assert {frozenset(names(piece) & whole) for piece in plan.partition.pieces} == {
        frozenset({"rsqrt"}),
        frozenset({"cat", "_softmax"}),
    }
    assert not plan.lost


def test_calls_that_move_parts_stay_if_nothing_else_helps() -> None:
    plan = planned(Choosy({"cat"}))
    assert {"_softmax"} in [names(piece) & {"cat", "_softmax"} for piece in plan.partition.pieces]
    assert {str(left.node.target).split(".")[1] for left in plan.partition.left} >= {"cat"}


def test_a_part_that_only_lacked_time_gets_more_before_it_is_taken_apart() -> None:
    whole = {"rsqrt", "cat"}
    optimizer = Choosy(whole, hurry=45.0)
    plan = planned(optimizer, 80.0)
    attention = {"cat", "_softmax"}
    assert [asked & (attention | whole) for asked in optimizer.asked].count(attention) == 2
    assert any(attention <= names(piece) for piece in plan.partition.pieces)
