"""Graphs of torch.compile of fixed sizes: whole calls by kernels and by PyTorch decide, once, where pieces won one by one."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.frontend.partitioning.partition import Left, Partition
from mugraph.integrations import optimized_graph, trained_graph, whole_graph
from mugraph.integrations.torch_compile import Compiled, compilations
from mugraph.integrations.whole_graph import Original, Outcome, WholeGraph
from mugraph.pieces import piece_optimizer, whole_calls
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.plan import Plan
from mugraph.runtime import Executable
from mugraph.runtime.benchmarking import Duel, duel
from mugraph.support.deadline import Deadline
from mugraph.support.store import Store

from .networks import Mlp

WON, LOST = Duel(rounds=20, won=20, speedup=2.0), Duel(rounds=20, won=2, speedup=0.5)
LEADING = Duel(rounds=8, won=5, speedup=1.1)
X = torch.randn(4, 32)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every piece of a graph is the faster one by itself."""
    fresh_process()
    compilations.clear()
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: WON)
    yield
    torch._dynamo.reset()


def fresh_process() -> None:
    """Forget what a process knows, but not what it kept."""
    torch._dynamo.reset()
    piece_optimizer.optimizer.cache_clear()


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    given = {"keep": "faster", "budget": 60.0, "strict": True, "pack": False, "cache": "off", **options}
    function: Callable[..., Any] = torch.compile(fn, backend="mugraph", options=given)
    return function


def last() -> Compiled:
    return compilations[-1]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[Duel], list[Duel]]:
    """Has duels of whole calls end as they are told; gives those that were fought."""

    def made(outcome: Duel) -> list[Duel]:
        fought = list[Duel]()

        def decided(ours: Callable[[], Any], theirs: Callable[[], Any], **settings: Any) -> Duel:
            ours()
            theirs()
            fought.append(outcome)
            return outcome

        monkeypatch.setattr(whole_graph, "duel", decided)
        return fought

    return made


def test_pytorch_runs_a_graph_whose_calls_are_slow_though_each_piece_won(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, run = types.SimpleNamespace(now=0.0), Executable.__call__

    def slow(self: Executable, *arrays: Any) -> list[Any]:
        made.now += 1.0
        return run(self, *arrays)

    def by_hand(ours: Callable[[], Any], theirs: Callable[[], Any], **settings: Any) -> Duel:
        return duel(ours, theirs, 0.0, **settings | {"clock": lambda: made.now})

    monkeypatch.setattr(Executable, "__call__", slow)
    monkeypatch.setattr(whole_graph, "duel", by_hand)
    model = nn.Sequential(Mlp(), Mlp()).eval()
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="mugraph"):
        fast = compiled(model)
        assert torch.equal(fast(X), model(X))
        calls = made.now
        fast(X)
    assert made.now == calls > 0
    assert last().partition.pieces == ()
    assert last().results == {}
    assert "torch runs a graph: calls by its kernels are not clearly faster (0.00 times as fast as PyTorch)" in caplog.text


def test_kernels_run_a_graph_whose_calls_are_faster(ends: Callable[[Duel], list[Duel]]) -> None:
    fought, model = ends(WON), nn.Sequential(Mlp(), Mlp()).eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(X), model(X), rtol=1e-5, atol=1e-5)
    assert len(fought) == 1
    assert last().partition.pieces


@pytest.mark.parametrize(
    ("outcome", "kernels", "stands"),
    [
        (Outcome(WON), True, True),
        (Outcome(LOST), False, True),
        (Outcome(LEADING), False, True),
        (Outcome(Duel(8, 5, 1.1, cut_short=True)), True, False),
        (Outcome(Duel(20, 20, 2.0, cut_short=True)), True, True),
        (Outcome(Duel(1, 0, 0.9, cut_short=True)), False, False),
        (Outcome(None), True, False),
        (Outcome(None, "tensor 0"), False, True),
    ],
    ids=["won", "lost", "not clearly", "cut short in the lead", "clear all the same", "cut short behind", "unknown", "wrong"],
)
def test_what_outcomes_decide(outcome: Outcome, kernels: bool, stands: bool) -> None:
    """What each piece won stays where there was no time to see otherwise, and then a later process looks again."""
    assert (outcome.reason == "") is kernels
    assert outcome.stands is stands
    if stands:
        assert Outcome.from_json(outcome.to_json()).reason == outcome.reason


@pytest.mark.parametrize("outcome", [WON, LOST], ids=["won", "lost"])
def test_a_later_process_measures_nothing(
    outcome: Duel, ends: Callable[[Duel], list[Duel]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, model, pieces, threads = Store(tmp_path), Mlp().eval(), list[int](), "1"
    monkeypatch.setattr(whole_calls, "torch_here", lambda: ("2", threads))
    fought = ends(outcome)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(model, cache=store)(X), model(X), rtol=1e-5, atol=1e-5)
            pieces.append(len(last().partition.pieces))
            fresh_process()
            with monkeypatch.context() as patch:
                patch.setattr(WholeGraph, "_measured", lambda *_: pytest.fail("it was measured before"))
                compiled(model, cache=store)(X)
            pieces.append(len(last().partition.pieces))
            fresh_process()
            threads = "7"
    assert len(fought) == 2, "with as many threads as there were once"
    assert [number > 0 for number in pieces] == [outcome is WON] * 4


def test_what_time_ended_is_compared_again(ends: Callable[[Duel], list[Duel]], tmp_path: Path) -> None:
    fought, model = ends(Duel(2, 2, 1.1, cut_short=True)), Mlp().eval()
    with torch.no_grad():
        for _ in range(2):
            compiled(model, cache=Store(tmp_path))(X)
            assert last().partition.pieces
            fresh_process()
    assert len(fought) == 2


def test_kernels_that_give_something_else_are_left_for_good(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, ends: Callable[[Duel], list[Duel]]
) -> None:
    fought, spliced, model = ends(WON), Plan.spliced, Mlp().eval()

    def wrong(self: Plan, *given: Any, **named: Any) -> fx.GraphModule:
        module = spliced(self, *given, **named)
        forward = module.forward
        module.forward = lambda *tensors: tuple(each + 1.0 for each in forward(*tensors))
        return module

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(Plan, "spliced", wrong)
        assert torch.equal(compiled(model, cache=Store(tmp_path))(X), model(X))
    assert last().partition.pieces == ()
    assert "kernels of a graph give something else than PyTorch, which runs it; please report this: tensor 0" in caplog.text
    fresh_process()
    caplog.clear()
    with torch.no_grad():
        assert torch.equal(compiled(model, cache=Store(tmp_path))(X), model(X))
    assert "give something else than PyTorch" in caplog.text
    assert fought == []


def test_kernels_that_raise_are_left_to_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: Callable[[Duel], list[Duel]]
) -> None:
    ends(WON)
    monkeypatch.setattr(Plan, "spliced", lambda self, module, **_: failing(module))
    model = Mlp().eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, strict=False)(X), model(X), rtol=1e-5, atol=1e-5)
    assert "optimizing a graph failed, torch runs it" in caplog.text


def failing(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of as many arguments that raises."""

    def forward(*tensors: Any) -> Any:
        raise ZeroDivisionError("a defect")

    broken = fx.GraphModule(module, module.graph)
    broken.forward = forward
    return broken


def graph_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    return make_fx(fn)(*inputs)


def whole(fn: Callable[..., Any], *inputs: torch.Tensor) -> WholeGraph:
    graph = graph_of(fn, *inputs)
    return WholeGraph(PieceOptions(cache="off"), graph, Original(graph))


def after(fn: Callable[..., Any], x: torch.Tensor, step: Callable[[torch.Tensor], torch.Tensor]) -> fx.GraphModule:
    return graph_of(lambda x: step(fn(x)), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_hangs_on_roundings_says_nothing_of_kernels(dtype: torch.dtype) -> None:
    """PyTorch itself gives something else where an argument is rounded the other way."""
    x = torch.rand(64, dtype=dtype) + 0.1
    steep = 3e3 / torch.finfo(dtype).eps

    def jumping(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * steep)

    def smooth(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    for function, wrong in ((jumping, False), (smooth, True)):
        graph = whole(function, x)
        assert not graph._difference(graph.ready, [x], function(x))
        assert bool(graph._difference(after(function, x, torch.neg), [x], function(x))) is wrong


def test_where_memory_is_short_a_difference_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_graph, "free_memory", lambda: 8)

    def jumping(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * 1e10)

    x = torch.rand(64)
    graph = whole(jumping, x)
    assert graph._difference(after(jumping, x, torch.neg), [x], jumping(x))
    assert graph._measured(graph.ready, Deadline(None)) == Outcome(None), "nor is there any for arguments"


def test_what_pytorch_does_not_take_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_graph, "duel", lambda *_, **settings: pytest.fail("it is not compared"))
    graph = whole(torch.linalg.cholesky, torch.eye(8))
    assert graph._measured(graph.ready, Deadline(None)) == Outcome(None)


@pytest.mark.parametrize(("budget", "fights"), [(None, 1), (1e9, 1), (10.0, 0)])
def test_calls_that_would_end_late_are_not_begun(
    budget: float | None, fights: int, ends: Callable[[Duel], list[Duel]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_graph, "seconds_of_calls", lambda *_: 1e4)
    monkeypatch.setattr(whole_graph, "slowdown", lambda: 1.0)
    fought, graph = ends(WON), whole(torch.exp, X)
    assert graph._measured(graph.ready, Deadline(budget)) == Outcome(WON if fights else None)
    assert len(fought) == fights


def test_pieces_leave_some_time_for_whole_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_graph, "seconds_of_calls", lambda *_: 0.25)
    for module in ("mugraph.devices.host", "mugraph.pieces.whole_calls"):
        monkeypatch.setattr(f"{module}.slowdown", lambda: 1.0)
    assert whole(torch.exp, X).before_calls(Deadline(100.0)).budget == pytest.approx(97.0, abs=0.1)
    assert whole(torch.exp, X).before_calls(Deadline(10.0)).budget == pytest.approx(8.75, abs=0.1), "five calls"
    assert whole(torch.exp, X).before_calls(Deadline(4.0)).budget == pytest.approx(3.6, abs=0.1)


def test_a_model_is_compared_with_its_own_weights_and_other_arguments() -> None:
    weight, x, positions = nn.Parameter(torch.randn(32, 8)), torch.randn(4, 32), torch.arange(4)
    graph = graph_of(lambda w, x, at: (x @ w)[at], weight, x, positions)
    with WholeGraph(PieceOptions(), graph, Original.of(graph, [weight, x, positions], [0]))._examples() as arguments:
        assert arguments[0] is weight
        assert (arguments[1].shape, arguments[1].stride()) == (x.shape, x.stride())
        assert not torch.equal(arguments[1], x)
        assert torch.equal(arguments[2], torch.zeros(4, dtype=torch.long))


def test_tensors_without_data_are_no_weights() -> None:
    fake = FakeTensorMode().from_tensor(torch.ones(3))
    assert Original.of(graph_of(torch.exp, torch.ones(3)), [fake], [0]).held == {}


@pytest.mark.parametrize(
    ("fn", "options", "compared"),
    [
        (torch.exp, {}, True),
        (torch.exp, {"keep": "all"}, False),
        (torch.exp, {"profile": False}, False),
        (torch.exp, {"background": True}, False),
        (torch.exp, {"target": "cuda:sm_90"}, False),
        (lambda x: torch.nn.functional.dropout(x, 0.5), {}, False),
        (lambda x: x + torch.rand_like(x), {}, False),
    ],
)
def test_which_graphs_are_compared(fn: Callable[..., Any], options: dict[str, Any], compared: bool) -> None:
    graph = graph_of(fn, X)
    assert (WholeGraph.compared(PieceOptions(**options), graph, Original(graph)) is not None) is compared


def test_graphs_with_effects_are_not_compared() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.ops._c10d_functional.all_reduce.default, (graph.placeholder("x"), "sum", "0")))
    effects, plain = fx.GraphModule({}, graph), graph_of(torch.exp, X)
    assert WholeGraph.compared(PieceOptions(), plain, Original(effects)) is None
    assert WholeGraph.compared(PieceOptions(), effects, Original(plain)) is None


def test_graphs_are_compared_that_take_tensors_of_fixed_sizes_in_memory_alone() -> None:
    symbolic = make_fx(torch.exp, tracing_mode="symbolic")(torch.randn(4, 32))
    sparse = graph_of(torch.exp, X)
    (argument,) = (node for node in sparse.graph.nodes if node.op == "placeholder")
    argument.meta["val"] = torch.eye(4).to_sparse()
    number = graph_of(torch.exp, X)
    (argument,) = (node for node in number.graph.nodes if node.op == "placeholder")
    argument.meta["val"] = 3
    assert [WholeGraph.compared(PieceOptions(), graph, Original(graph)) for graph in (symbolic, sparse, number)] == [None] * 3


def test_what_a_call_writes_to_is_not_compared(ends: Callable[[Duel], list[Duel]]) -> None:
    fought = ends(LOST)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x @ w, -1)
        x.mul_(2)
        return y

    x, w = torch.randn(4, 32), torch.randn(32, 16)
    ours, theirs = x.clone(), x.clone()
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(ours, w), function(theirs, w), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, theirs)
    assert fought == []
    assert last().partition.pieces


def test_the_graphs_of_a_step_are_compared_as_a_step_alone(
    ends: Callable[[Duel], list[Duel]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_graph, "duel", lambda *_, **settings: LOST)
    fought, model = ends(LOST), nn.Linear(32, 8)
    compiled(model, budget=5.0)(X).sum().backward()
    assert fought == []


def test_which_of_several_plans_is_the_fastest_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graph = graph_of(lambda x: torch.exp(x) * 2, X)
    left = tuple(Left(node, "", 0) for node in graph.graph.nodes if node.op == "call_function")
    plans = [Plan(Partition((), left), {}, layout) for layout in Layout]
    options, asked = PieceOptions(cache=Store(tmp_path)), list[int]()

    def quickest(sides: Any) -> int:
        asked.append(len(sides))
        return 1

    monkeypatch.setattr(optimized_graph, "quickest", quickest)
    chosen = [optimized_graph._fastest(graph, plans, options) for _ in range(2)]
    assert chosen == [plans[1], plans[1]]
    assert asked == [2]
    monkeypatch.setattr(whole_calls, "torch_here", functools.partial(tuple, ("2", "64")))
    optimized_graph._fastest(graph, plans, options)
    assert asked == [2, 2]


def test_which_plan_was_the_fastest_beside_a_model_is_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graph = graph_of(lambda x: torch.exp(x) * 2, X)
    left = tuple(Left(node, "", 0) for node in graph.graph.nodes if node.op == "call_function")
    plans = [Plan(Partition((), left), {}, layout) for layout in Layout]
    found = iter((1, 0))
    monkeypatch.setattr(optimized_graph, "quickest", lambda sides: next(found))
    serving, alone = (PieceOptions(cache=Store(tmp_path), background=background) for background in (True, False))
    chosen = [optimized_graph._fastest(graph, plans, options) for options in (serving, serving, alone, serving)]
    assert [plans.index(plan) for plan in chosen] == [1, 1, 0, 0]
