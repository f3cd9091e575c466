"""How a function is cut: calls of which nothing is found together are tried in smaller programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.devices import Device, device_for
from mugraph.devices.device import NOT_MEASURED
from mugraph.errors import InvalidInput, UnsupportedOperator
from mugraph.frontend import record
from mugraph.frontend.partitioning.library import LibraryKernel, linear_layers
from mugraph.frontend.partitioning.partition import Piece, partition
from mugraph.frontend.recording.recorded_graph import recorded_graph
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.pieces import predicted_cost
from mugraph.pieces.piece_optimizer import GraphsByForm, Optimizer
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.piece_outcomes import PieceOutcome
from mugraph.pieces.plan import Plan, _with_layers_of_lost, plans
from mugraph.pieces.predicted_cost import Saving, share_saved
from mugraph.pieces.products_apart import ProductsApart, large_layers
from mugraph.pieces.shares import Share, size_of
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.benchmarking import Duel
from mugraph.selection.structure_key import form_of
from mugraph.selection.whole_programs import superoptimize_program
from mugraph.support.deadline import Deadline
from pieces.clocks import Clock

CACHED, WIDTH = 24, 8


def decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, gain: torch.Tensor
) -> torch.Tensor:
    """A query, normalised, over cached keys and a new one."""
    q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1) * gain for x in (q, k))
    keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
    return (q @ keys.transpose(2, 3)).softmax(-1) @ values


def after_a_chain(q: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """The same after a chain of more operators."""
    for _ in range(12):
        q = torch.tanh(q * q + 1)
    return decode(q, *others)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of a budget are those of a machine with nothing else to do."""
    monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: 1.0)
    monkeypatch.setattr("mugraph.devices.host.slowdown", lambda: 1.0)
    for module in ("devices.host", "pieces.library_ways", "pieces.products_apart"):
        monkeypatch.setattr(f"mugraph.{module}.slowdown_of_calls", lambda: 1.0)


@pytest.fixture
def saved_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operator of a piece is predicted to save as much."""
    monkeypatch.setattr(Optimizer, "_saving", lambda self, piece: Saving(1e-6 * size_of(piece), 0.5, 2e-6 * size_of(piece)))


def recorded(function: Callable[..., object] = decode) -> fx.GraphModule:
    """The ATen graph of a function of what a query is decoded with, with shapes."""
    one, many = (torch.randn(1, 2, rows, WIDTH) for rows in (1, CACHED))
    with torch.no_grad():
        module: fx.GraphModule = make_fx(function, tracing_mode="fake")(one, one, one, many, many, torch.randn(WIDTH))
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
        self.given: list[float] = []

    def _tried(self, piece: Piece, budget: float | None, graphs: Mapping[tuple[object, ...], Graph], again: bool) -> PieceOutcome:
        self.asked.append(names(piece))
        self.given.append(budget or 0.0)
        if self.refused <= names(piece):
            return PieceOutcome(None, "there is nothing")
        return super()._tried(piece, 0.0 if (budget or 0.0) < self.hurry else budget, graphs, again)


def planned(optimizer: Optimizer, budget: float = 120.0, function: Callable[..., object] = decode) -> Plan:
    """The plan of a function."""
    (plan,) = plans(recorded(function), "cpu", optimizer, Deadline(budget))
    return plan


def test_a_program_of_everything_is_tried_first() -> None:
    optimizer = Choosy({"nothing"})
    (piece,) = planned(optimizer).partition.pieces
    assert {"cat", "_softmax"} < names(piece)
    assert len(optimizer.asked) == 1


def test_want_of_time_at_one_size_says_nothing_of_others() -> None:
    graphs: GraphsByForm = {}
    (hurried,) = plans(recorded(), "cpu", Choosy({"nothing"}, hurry=1e9), Deadline(20.0), graphs)
    assert not hurried.partition.pieces
    assert not graphs
    (plan,) = plans(recorded(), "cpu", Choosy({"nothing"}), Deadline(120.0), graphs)
    assert plan.partition.pieces
    assert graphs


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
    whole, attention = {"rsqrt", "cat"}, {"cat", "_softmax"}
    optimizer = Choosy(whole, hurry=25.0)
    plan = planned(optimizer, 60.0, after_a_chain)
    given = [
        seconds
        for asked, seconds in zip(optimizer.asked, optimizer.given, strict=True)
        if asked & (attention | whole) == attention
    ]
    assert given[0] < 25.0 < given[1]
    assert any(attention <= names(piece) for piece in plan.partition.pieces)


@pytest.mark.usefixtures("saved_alike")
def test_what_small_pieces_leave_is_for_larger_ones() -> None:
    optimizer = Choosy({"rsqrt", "cat"})
    planned(optimizer, 100.0)
    whole, norms, attention = optimizer.given[0], optimizer.given[1], optimizer.given[-1]
    assert "rsqrt" in optimizer.asked[1]
    assert "cat" in optimizer.asked[-1]
    assert norms < 0.5 * whole < 0.9 * whole < attention


def apart(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A short program on few elements, and a longer one on many."""
    return (x * x).sum(-1), torch.tanh(y * y + 1).sum(-1) * 2


@pytest.mark.usefixtures("saved_alike")
@pytest.mark.parametrize("slowdown", [1.0, 20.0])
def test_something_small_comes_first_also_on_a_machine_too_busy_for_all(monkeypatch: pytest.MonkeyPatch, slowdown: float) -> None:
    monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: slowdown)
    optimizer = Choosy({"sum"})
    pieces = partition(recorded_graph(record(apart, (torch.randn(4, 8), torch.randn(256, 64)))).module.graph).pieces
    optimizer.outcomes(pieces, {}, Deadline(60.0))
    assert len(optimizer.asked) == len(pieces) == 2
    assert " ".join(sorted(optimizer.asked[0])) == "mul sum"
    assert optimizer.given[0] == pytest.approx(60.0 if slowdown > 1 else 60.0 * 2 / 7, abs=1.0)


def test_what_moves_the_most_bytes_comes_behind_something_small_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small one is proved soon; the others come by their bytes, and by their operators only where there is time for all."""

    def three(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * x).sum(-1), torch.tanh(y * y + 1).sum(-1) * 2, torch.exp(z - 1).sum(-1) * 2

    inputs = torch.randn(4, 8), torch.randn(256, 64), torch.randn(64, 64)
    pieces = partition(recorded_graph(record(three, inputs)).module.graph).pieces
    for slowdown, order in ((1.0, "mul exp tanh"), (5.0, "mul tanh exp"), (35.0, "mul tanh exp")):
        monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda slowdown=slowdown: slowdown)
        optimizer = Choosy({"sum"})
        optimizer.outcomes(pieces, {}, Deadline(60.0))
        named = [next(name for name in ("exp", "tanh", "mul") if name in asked) for asked in optimizer.asked]
        assert " ".join(named) == order


def shifted(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A large product beside a sum, and a longer program on few elements."""
    return x @ w + 1, torch.tanh(y * y + 1).sum(-1) * 2


@pytest.mark.parametrize("slowdown", [1.0, 20.0])
def test_of_which_little_is_predicted_to_be_saved_comes_last(monkeypatch: pytest.MonkeyPatch, slowdown: float) -> None:
    """However few operators it has, and however many bytes it moves."""
    monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: slowdown)
    on_a_small_machine(monkeypatch)
    optimizer = Choosy({"sum"})
    inputs = (torch.ones(256, 8192), torch.ones(8192, 256), torch.ones(256, 64))
    optimizer.outcomes(partition(recorded_graph(record(shifted, inputs)).module.graph).pieces, {}, Deadline(60.0))
    assert [("mm" in asked or "matmul" in asked) for asked in optimizer.asked] == [False, True]


def test_attention_is_not_taken_to_save_nothing() -> None:
    """PyTorch's call of it is predicted as a program is, which says nothing of what one saves."""
    inputs = tuple(torch.ones(1, 8, rows, 64) for rows in (1, 512, 512))
    module = recorded_graph(record(torch.nn.functional.scaled_dot_product_attention, inputs)).module
    (piece,) = partition(module.graph).pieces
    assert share_saved(piece.nodes, device_for("cpu")) == 1.0


@pytest.mark.parametrize("changed", [("__version__", "1.0"), ("get_num_threads", lambda: 99)], ids=["version", "threads"])
def test_what_was_dropped_beside_other_calls_of_pytorch_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, changed: tuple[str, object]
) -> None:
    """A result that is kept says of which PyTorch, with how many threads, its kernels were too slow to be proved."""
    inputs = (torch.ones(256, 64), torch.ones(64, 256), torch.ones(256, 64))
    piece = partition(recorded_graph(record(shifted, inputs)).module.graph).pieces[0]
    optimizer = Optimizer(PieceOptions(cache="off"))
    before = optimizer._settings(piece, None, False)["rival"]
    assert before == optimizer._settings(piece, None, False)["rival"]
    monkeypatch.setattr(torch, *changed)
    assert optimizer._settings(piece, None, False)["rival"] != before


@pytest.mark.usefixtures("saved_alike")
def test_a_piece_ends_after_its_part_once_something_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: 4.0)
    share = Share.of(Deadline(60.0), 0.25)
    assert share.budget == pytest.approx(20.0, abs=0.1)
    assert share.enough == pytest.approx(15.0, abs=0.1)
    asked: list[float] = []

    def superoptimized(*program: object, enough: float, **settings: object) -> None:
        asked.append(enough)
        raise UnsupportedOperator("nothing")

    monkeypatch.setattr("mugraph.pieces.piece_optimizer.superoptimize_program", superoptimized)
    pieces = partition(recorded_graph(record(apart, (torch.randn(4, 8), torch.randn(256, 64)))).module.graph).pieces
    Optimizer(PieceOptions(profile=False, cache="off", pack=False)).outcomes(pieces, {}, Deadline(60.0))
    assert asked == [pytest.approx(60.0 * 2 / 7, abs=1.0), pytest.approx(60.0, abs=1.0)]


def test_what_was_found_is_compared_while_there_is_time_for_the_graph() -> None:
    """Not only for the pieces that were tried together."""
    optimizer, whole = Choosy({"cat"}), Deadline(120.0)
    plans(recorded(), "cpu", optimizer, whole)
    assert len(optimizer.asked) > 1
    assert all(share.budget is not None and share.budget < 120.0 for share in optimizer._shares.values())
    assert all(share.until is whole for share in optimizer._shares.values())


def test_what_there_was_no_time_for_is_begun_when_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is looked at before, and it is not taken for what was tried."""
    asked: list[bool] = []

    def superoptimized(*program: object, unfinished: bool, **settings: object) -> None:
        asked.append(unfinished)
        raise UnsupportedOperator("nothing")

    monkeypatch.setattr("mugraph.pieces.piece_optimizer.superoptimize_program", superoptimized)
    pieces = partition(recorded_graph(record(apart, (torch.randn(4, 8), torch.randn(256, 64)))).module.graph).pieces
    optimizer = Optimizer(PieceOptions(profile=False, cache="off", pack=False), serving=True)
    late = optimizer.outcomes(pieces, {}, Deadline(0.0))
    assert not asked
    assert all(outcome.ran_out and not outcome.runs and "the time ran out" in outcome.reason for outcome in late)
    found = optimizer.outcomes(pieces, {}, Deadline(60.0))
    assert asked == [True, True], "as what earlier processes had no time for either is, where it is tried first"
    assert not any(outcome.ran_out for outcome in found)


SQUARES = (lambda x: (x * x).sum(-1), (torch.randn(4, 8),))


@pytest.mark.parametrize(
    ("hurried", "why"),
    [
        (None, "the time ran out before its kernels were compared"),
        (Duel(2, 2, 1.37, cut_short=True), "before it was clear whether its kernels are faster than torch (1.37x in 2 rounds)"),
    ],
    ids=["not compared", "in two rounds"],
)
def test_what_there_was_too_little_time_to_compare_is_compared_for_another_graph(
    monkeypatch: pytest.MonkeyPatch, hurried: Duel | None, why: str
) -> None:
    """Without a second search."""
    duels = iter([hurried, Duel(rounds=20, won=20, speedup=1.37)])
    monkeypatch.setattr(Optimizer, "duel", lambda *_: next(duels))
    pieces = partition(recorded_graph(record(*SQUARES)).module.graph).pieces
    optimizer, until = Optimizer(PieceOptions(cache="off", seed=3, pack=False)), Deadline(60.0)
    (before,) = optimizer.outcomes(pieces, {}, until)
    assert before.uncompared
    assert not before.runs
    assert not before.ran_out, "its muGraph was found"
    assert why in before.reason
    assert optimizer.outcomes(pieces, {}, Deadline(30.0), until=until) == [before], "of the same graph"
    monkeypatch.setattr("mugraph.pieces.piece_optimizer.superoptimize_program", None)
    (compared,) = optimizer.outcomes(pieces, {}, Deadline(60.0))
    assert compared.runs
    assert compared.result is before.result


CUT_SHORT: dict[str, Any] = {"gain_left": 0.5, "settled": False, "exhausted": False, "exhausted_what": "nothing"}
CLEAR, UNCLEAR = Duel(rounds=20, won=20, speedup=1.5), Duel(rounds=20, won=10, speedup=1.0)


def planned_twice(
    monkeypatch: pytest.MonkeyPatch, search: Callable[..., Superoptimized], duel: Callable[..., Duel | None]
) -> tuple[fx.GraphModule, Plan]:
    """`SQUARES`, whose program was searched before, and its plan with time left."""
    monkeypatch.setattr("mugraph.pieces.piece_optimizer.superoptimize_program", search)
    monkeypatch.setattr(Optimizer, "duel", duel)
    monkeypatch.setattr("mugraph.pieces.shares._LEAST_SECONDS", 1.0)
    optimizer = Optimizer(PieceOptions(cache="off", seed=3, pack=False))
    module = recorded_graph(record(*SQUARES)).module
    (piece,) = partition(module.graph).pieces
    optimizer.outcomes([piece], {}, Deadline(20.0))
    (plan,) = plans(module, "cpu", optimizer, Deadline(60.0))
    return module, plan


@pytest.mark.parametrize(
    ("search", "recalled", "beside_torch", "beside_earlier", "searched", "replaced"),
    [
        (CUT_SHORT, False, CLEAR, CLEAR, 2, True),
        (CUT_SHORT, False, CLEAR, UNCLEAR, 2, False),
        (CUT_SHORT, False, CLEAR, None, 2, False),
        (CUT_SHORT, False, UNCLEAR, CLEAR, 2, False),
        (CUT_SHORT, True, CLEAR, CLEAR, 1, False),
        (CUT_SHORT | {"settled": True}, False, CLEAR, CLEAR, 1, False),
        (CUT_SHORT | {"exhausted": True}, False, CLEAR, CLEAR, 1, False),
        (CUT_SHORT | {"gain_left": 0.1}, False, CLEAR, CLEAR, 1, False),
        (CUT_SHORT | {"gain_left": None}, False, CLEAR, CLEAR, 1, False),
    ],
    ids=["faster", "not faster", "not compared", "slower than PyTorch", "kept", "settled", "exhausted", "little", "unknown"],
)
def test_what_is_left_of_the_time_is_for_kernels_whose_search_it_cut_short(
    monkeypatch: pytest.MonkeyPatch,
    search: dict[str, Any],
    recalled: bool,
    beside_torch: Duel,
    beside_earlier: Duel | None,
    searched: int,
    replaced: bool,
) -> None:
    """Others replace them where these beat PyTorch's calls, and them."""
    found: list[Superoptimized] = []
    anew: list[bool] = []

    def superoptimized(*program: Any, **settings: Any) -> Superoptimized:
        anew.append(settings.pop("anew"))
        result = superoptimize_program(*program, **settings)
        result.report = replace(result.report, search=result.report.search | search, recalled=recalled)
        if found:  # kernels of other sources
            monkeypatch.setattr(type(result.executable), "digest", property(lambda own: str(id(own))))
        found.append(result)
        return result

    def duel(_: Optimizer, piece: Piece, result: Superoptimized, module: Any, rival: str, until: Deadline) -> Duel | None:
        earlier = f"{found[0].executable.digest} with {found[0].executable.packed_bytes}"
        if rival != earlier:
            return CLEAR if result is found[0] else beside_torch
        x = SQUARES[1][0]
        (got,) = module()(x)
        torch.testing.assert_close(got, SQUARES[0](x))
        return beside_earlier

    _, plan = planned_twice(monkeypatch, superoptimized, duel)
    assert anew == [False, True][:searched]
    assert [*plan.results.values()] == [found[1 if replaced else 0]]


def test_kernels_stay_where_another_search_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Superoptimized] = []

    def superoptimized(*program: Any, **settings: Any) -> Superoptimized:
        if settings.pop("anew"):
            raise InvalidInput("no more")
        result = superoptimize_program(*program, **settings)
        result.report = replace(result.report, search=result.report.search | CUT_SHORT)
        found.append(result)
        return result

    module, plan = planned_twice(monkeypatch, superoptimized, lambda *_: CLEAR)
    assert [*plan.results.values()] == found
    x = SQUARES[1][0]
    torch.testing.assert_close(plan.spliced(module)(x)[0], SQUARES[0](x))


@pytest.mark.parametrize("serving", [False, True])
def test_calls_wait_for_better_kernels_until_half_of_the_budget(monkeypatch: pytest.MonkeyPatch, serving: bool) -> None:
    ends: list[float | None] = []

    class Searched(Optimizer):
        def searched_on(self, pieces: Sequence[Piece], graphs: Any, deadline: Deadline) -> list[PieceOutcome]:
            ends.append(deadline.budget)
            return super().searched_on(pieces, graphs, deadline)

    monkeypatch.setattr(Optimizer, "duel", lambda *_: CLEAR)
    monkeypatch.setattr(PieceOutcome, "may_save", 0.5)
    plans(
        recorded_graph(record(*SQUARES)).module,
        "cpu",
        Searched(PieceOptions(cache="off", pack=False), serving=serving),
        Deadline(60.0),
    )
    assert ends == [30.0 if serving else 60.0]


def test_what_was_searched_with_most_of_the_time_is_not_searched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what has the form of what is known from other sizes."""
    monkeypatch.setattr(Optimizer, "duel", lambda *_: CLEAR)
    monkeypatch.setattr(PieceOutcome, "may_save", 0.5)
    optimizer = Optimizer(PieceOptions(cache="off", seed=3, pack=False))
    (piece,) = partition(recorded_graph(record(*SQUARES)).module.graph).pieces
    (outcome,) = optimizer.outcomes([piece], {}, Deadline(60.0))
    assert outcome.result is not None
    monkeypatch.setattr("mugraph.pieces.piece_optimizer.superoptimize_program", None)
    assert optimizer.cut_short([piece], {}) == [piece]
    assert optimizer.searched_on([piece], {}, Deadline(50.0)) == [outcome]
    known = {form_of(piece.program): outcome.result.graph}
    assert optimizer.cut_short([piece], known) == []
    assert optimizer.searched_on([piece], known, Deadline(600.0)) == [outcome]


def test_what_lost_in_few_rounds_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Optimizer, "duel", lambda *_: Duel(2, 0, 0.8, cut_short=True))
    pieces = partition(recorded_graph(record(*SQUARES)).module.graph).pieces
    (lost,) = Optimizer(PieceOptions(cache="off", seed=3, pack=False)).outcomes(pieces, {}, Deadline(60.0))
    assert not lost.wants_time
    assert "not clearly faster than torch (0.80x)" in lost.reason


@pytest.mark.parametrize(
    ("stage", "graph", "kept", "budget"),
    [(60.0, 60.0, 4.0, 56.0), (60.0, 60.0, 100.0, 45.0), (10.0, 60.0, 4.0, 10.0), (59.0, 60.0, 4.0, 56.0)],
    ids=["the last piece", "at most a quarter", "there is enough", "nearly the last"],
)
def test_time_is_kept_for_the_duel_of_a_piece(
    monkeypatch: pytest.MonkeyPatch, stage: float, graph: float, kept: float, budget: float
) -> None:
    Clock(monkeypatch)
    share = Share.of(Deadline(stage), 1.0, Deadline(graph), kept)
    assert share.budget == pytest.approx(budget, abs=0.1)
    assert share.enough == pytest.approx(budget, abs=0.1)
    assert share.until.remaining == graph


def test_what_is_kept_for_a_duel_is_what_calls_are_predicted_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, slowdown=2.0)
    monkeypatch.setattr("mugraph.devices.host.slowdown_of_calls", lambda: 2.0)
    asked: list[float] = []

    def superoptimized(*program: object, budget: float, **settings: object) -> None:
        asked.append(budget)
        raise UnsupportedOperator("nothing")

    monkeypatch.setattr("mugraph.pieces.piece_optimizer.superoptimize_program", superoptimized)
    (piece,) = partition(recorded_graph(record(*SQUARES)).module.graph).pieces
    for call, options in ((0.0, {}), (0.25, {}), (0.25, {"keep": "all"}), (0.25, {"profile": False})):
        monkeypatch.setattr("mugraph.pieces.piece_optimizer.saving", lambda *_, call=call: Saving(call, 1.0, call))
        Optimizer(PieceOptions(cache="off", pack=False, **options)).outcomes([piece], {}, Deadline(60.0))
    assert asked == [pytest.approx(seconds, abs=0.5) for seconds in (58.0, 52.0, 60.0, 60.0)]


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Four equal layers, with what no kernels run between them, and another one."""
    for _ in range(4):
        x = torch.sort(x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1)).values
    return torch.softmax(x @ w, -1) * 2


def test_what_equal_pieces_are_predicted_to_save_is_predicted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted, asked = list[int](), list[float]()
    own = predicted_cost.saving

    def counted(nodes: Sequence[fx.Node], device: Device) -> Saving:
        predicted.append(len(nodes))
        return own(nodes, device)

    def superoptimized(*program: object, budget: float, **settings: object) -> None:
        asked.append(budget)
        raise UnsupportedOperator("nothing")

    monkeypatch.setattr("mugraph.pieces.piece_optimizer.saving", counted)
    monkeypatch.setattr("mugraph.pieces.piece_optimizer.superoptimize_program", superoptimized)
    pieces = partition(recorded_graph(record(layers, (torch.randn(4, 16), torch.randn(16, 8)))).module.graph).pieces
    optimizer = Optimizer(PieceOptions(cache="off", pack=False))
    optimizer.outcomes(pieces, {}, Deadline(60.0))
    of_each = [optimizer._saving(piece) for piece in pieces]
    distinct = {optimizer.key(piece) for piece in pieces}
    assert len(pieces) > len(distinct) == len(asked) == len(predicted)
    assert of_each == [own(piece.nodes, device_for("cpu")) for piece in pieces]


def test_a_piece_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (piece, *_) = partition(recorded_graph(record(apart, (torch.randn(4, 8), torch.randn(256, 64)))).module.graph).pieces
    optimizer = Optimizer(PieceOptions(profile=False, cache="off"))
    name = optimizer.key(piece)
    monkeypatch.setattr("mugraph.pieces.piece_optimizer.digest", None)
    assert optimizer.key(piece) == name


class Gated(torch.nn.Module):
    """A gated MLP behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.rms_norm(x, (32,))
        result: torch.Tensor = self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))
        return result


def lost() -> tuple[fx.GraphModule, Plan]:
    """The MLP, of whose programs none has kernels."""
    graph = recorded_graph(record(Gated(), (torch.randn(2, 32),))).module
    whole = partition(graph.graph)
    assert whole.pieces
    return graph, Plan(whole.without(whole.pieces, "nothing"), {}, lost=dict.fromkeys(whole.pieces, "nothing"))


def test_linear_layers_of_programs_that_came_to_nothing_are_the_librarys() -> None:
    graph, plan = lost()
    found = _with_layers_of_lost(plan, "cpu", Optimizer(PieceOptions(profile=False, cache="off")), Deadline(60.0))
    assert len(found.partition.library) == 3
    assert not {left.node for left in found.partition.left} & {node for each in found.partition.library for node in each.nodes}
    inputs = [torch.randn(node.meta["val"].shape) for node in graph.graph.nodes if node.op == "placeholder"]
    run = found.spliced(graph)
    with torch.no_grad():
        for _ in range(3):  # weights are packed in the second call
            torch.testing.assert_close(run(*inputs), graph(*inputs), rtol=1e-4, atol=1e-4)


def test_of_these_layers_only_those_are_taken_that_are_faster() -> None:
    _, plan = lost()
    optimizer = Optimizer(PieceOptions(cache="off"))
    assert optimizer.library is not None
    with mock.patch.object(optimizer.library, "faster", lambda kernels, *_: tuple(kernels)[:1]):
        assert len(_with_layers_of_lost(plan, "cpu", optimizer, Deadline(60.0)).partition.library) == 1
    unpacked = Optimizer(PieceOptions(cache="off", pack=False))
    assert _with_layers_of_lost(plan, "cpu", unpacked, Deadline(60.0)) is plan


class Bent(torch.nn.Module):
    """A large product of some rows, and what reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1024, 8192), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = torch.nn.functional.linear(x, self.weight)
        return torch.tanh(product * 0.5) * product


def on_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are predicted of a machine on which the product is a large one."""
    unmeasured = replace(device_for("cpu"), products={}, library_products=NOT_MEASURED.library)
    small = replace(unmeasured, memory_bandwidth=3e10, cache_bandwidth=1e11, matmul_flops={DType.FP32: 2e11})
    for module in ("products_apart", "piece_optimizer"):
        monkeypatch.setattr(f"mugraph.pieces.{module}.device_for", lambda target: small)


def apart_of(
    rows: int, seconds: tuple[float, float], monkeypatch: pytest.MonkeyPatch, budget: float = 60.0, **options: Any
) -> ProductsApart:
    """The products that are in no program, where PyTorch and the library take so many times what is predicted."""
    on_a_small_machine(monkeypatch)
    monkeypatch.setattr("mugraph.pieces.products_apart.seconds_of_calls", lambda nodes, device: 1.0)
    monkeypatch.setattr("mugraph.pieces.library_ways._measured", lambda kernel, deadline: seconds)
    graph = recorded_graph(record(Bent(), (torch.ones(rows, 8192),))).module.graph
    whole, layers = partition(graph), linear_layers(graph.nodes, "cpu")
    optimizer = Optimizer(PieceOptions(cache="off", **options))
    apart = ProductsApart.of(large_layers(layers, whole.pieces, optimizer), optimizer, Deadline(budget))
    assert {layer.product for layer in apart.library} | apart.by_torch <= {layer.product for layer in layers}
    return apart


@pytest.mark.parametrize(
    ("rows", "seconds", "where"),
    [
        (1024, (1.3, 1.0), "library"),
        (1024, (1.0, 1.0), "torch"),
        (1024, (4.0, 3.0), "program"),
        (16, (1.3, 1.0), "program"),
    ],
    ids=["packed weights are faster", "PyTorch is as fast", "both are far from what the machine can", "few rows"],
)
def test_large_products_that_kernels_would_not_make_faster_are_in_no_program(
    monkeypatch: pytest.MonkeyPatch, rows: int, seconds: tuple[float, float], where: str
) -> None:
    apart = apart_of(rows, seconds, monkeypatch)
    assert (len(apart.library), len(apart.by_torch)) == {"library": (1, 0), "torch": (0, 1), "program": (0, 0)}[where]
    refused = apart.within(())
    assert (len(refused.library), len(refused.by_torch)) == (0, len(apart.library) + len(apart.by_torch))


def test_large_products_that_there_is_no_time_to_time_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with one takes longer than its calls do."""
    apart = apart_of(1024, (4.0, 3.0), monkeypatch, budget=0.0)
    assert (len(apart.library), len(apart.by_torch)) == (0, 1)


@pytest.mark.parametrize("options", [{"profile": False}, {"keep": "all"}, {"pack": False}], ids=str)
def test_products_stay_in_programs_where_nothing_is_timed(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    assert apart_of(1024, (1.3, 1.0), monkeypatch, **options) == ProductsApart()


@pytest.mark.parametrize("known", [False, True], ids=["timed now", "known"])
def test_something_small_is_searched_before_large_products_are_timed(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """What reads a product, which is shorter than a norm; unless the times of all products are known."""
    on_a_small_machine(monkeypatch)
    done: list[str] = []

    def timed(kernel: LibraryKernel, deadline: Deadline) -> tuple[float, float]:
        done.append("timed")
        return 1e-3, 1e-4

    def tried(piece: Piece, *_: object) -> PieceOutcome:
        done.append(" ".join(sorted(names(piece))))
        return PieceOutcome(None, "there is nothing")

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return bent(x), torch.nn.functional.rms_norm(y, (64,))

    monkeypatch.setattr("mugraph.pieces.library_ways._measured", timed)
    bent, optimizer = Bent(), Optimizer(PieceOptions(cache="off"))
    graph = recorded_graph(record(both, (torch.ones(1024, 8192), torch.ones(16, 64)))).module
    layers = linear_layers(graph.graph.nodes, "cpu")
    assert large_layers(layers, partition(graph.graph).pieces, optimizer) == layers
    if known:
        assert optimizer.library is not None
        optimizer.library.faster(layers, Deadline(60.0), lambda event: None)
    with mock.patch.object(optimizer, "_tried", tried):
        plans(graph, "cpu", optimizer, Deadline(60.0))
    assert done[:2] == (["timed", "mul tanh"] if known else ["mul tanh", "timed"])
    assert done.count("timed") == done.count("rms_norm") == 1


def test_what_stands_around_products_of_pytorch_is_cut_without_them() -> None:
    graph = recorded_graph(record(Bent(), (torch.ones(1024, 8192),))).module.graph
    (product,) = (layer.product for layer in linear_layers(graph.nodes, "cpu"))
    assert any(product in piece.nodes for piece in partition(graph).pieces)
    whole = partition(graph, by_torch=frozenset({product}))
    assert [names(piece) for piece in whole.pieces if "tanh" in names(piece)] == [{"mul", "tanh"}]
    assert not any(product in piece.nodes for piece in whole.pieces)
    assert product in {left.node for left in whole.left}


def test_a_plan_is_cut_around_products_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    apart: list[ProductsApart] = []

    def found(layers: Sequence[LibraryKernel], *_: object) -> ProductsApart:
        layers = linear_layers(graph.graph.nodes, "cpu")  # not only large ones
        apart.append(ProductsApart(tuple(layers[:1]), frozenset(layer.product for layer in layers[1:])))
        return apart[-1]

    monkeypatch.setattr(ProductsApart, "of", found)
    graph = recorded_graph(record(Gated(), (torch.randn(2, 32),))).module
    optimizer = Optimizer(PieceOptions(cache="off"))
    with mock.patch.object(optimizer, "_tried", return_value=PieceOutcome(None, "there is nothing")):
        (plan,) = plans(graph, "cpu", optimizer, Deadline(60.0))
    assert apart[0].library[0].product in {each.product for each in plan.partition.library}
    assert not any(apart[0].by_torch & set(piece.nodes) for piece in (*plan.partition.pieces, *plan.lost))
    inputs = [torch.randn(node.meta["val"].shape) for node in graph.graph.nodes if node.op == "placeholder"]
    run = plan.spliced(graph)
    with torch.no_grad():
        for _ in range(3):  # weights are packed in the second call
            torch.testing.assert_close(run(*inputs), graph(*inputs), rtol=1e-4, atol=1e-4)
