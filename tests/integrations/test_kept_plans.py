"""Graphs of torch.compile are cut as an earlier process cut them, where all that this rested on is as it was, and else anew."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mugraph.integrations import background, optimized_graph
from mugraph.integrations.torch_compile import Compiled, compilations
from mugraph.integrations.whole_graph import WholeGraph
from mugraph.pieces import kept_plans, piece_optimizer
from mugraph.pieces.library_ways import Library
from mugraph.pieces.plan import plans
from mugraph.runtime.benchmarking import Duel
from mugraph.support.store import Store

from .networks import Mlp

WON, LOST = Duel(rounds=20, won=20, speedup=2.0), Duel(rounds=20, won=2, speedup=0.5)
X, TOKENS = torch.randn(4, 32), torch.randint(50, (6,))


class Small(nn.Module):
    """Two programs that take little time to be searched, and what PyTorch runs between them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.after(torch.sort(self.before(x) + 1).values * 2)
        return result


class Looked(nn.Module):
    """Rows of a table are read by programs on several levels, each of which looks them up."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.small = nn.Embedding(50, 32), Small()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table(tokens)
        result: torch.Tensor = rows + self.small(rows)
        return result


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every piece of a graph is the faster one by itself, and whole calls are not timed."""
    fresh_process()
    compilations.clear()
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: WON)
    monkeypatch.setattr(WholeGraph, "compared", lambda *_: None)
    yield
    torch._dynamo.reset()


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls the graphs have that were cut."""
    made = list[int]()

    def counted(module: torch.fx.GraphModule, *given: Any, **named: Any) -> Any:
        made.append(len(module.graph.nodes))
        return plans(module, *given, **named)

    monkeypatch.setattr(optimized_graph, "plans", counted)
    return made


def fresh_process() -> None:
    """Forget what a process knows, but not what it kept."""
    torch._dynamo.reset()
    piece_optimizer.optimizer.cache_clear()


def compiled(fn: Callable[..., Any], store: Store, **options: Any) -> Callable[..., Any]:
    given = {"budget": 60.0, "strict": True, "pack": False, "cache": store, **options}
    function: Callable[..., Any] = torch.compile(fn, backend="mugraph", options=given)
    return function


def answered(model: nn.Module, store: Store, x: torch.Tensor = X, **options: Any) -> Compiled:
    """What became of a model that another process compiles, after a look at what it gives."""
    fresh_process()
    with torch.inference_mode():
        torch.testing.assert_close(compiled(model, store, **options)(x), model(x), rtol=1e-4, atol=1e-4)
    return compilations[-1]


def texts(done: Compiled) -> list[str]:
    """What is where, in words."""
    cut = done.partition
    pieces = [f"{[node.name for node in piece.nodes]} on {piece.level}" for piece in cut.pieces]
    library = [f"{[node.name for node in kernel.nodes]} on {kernel.level}" for kernel in cut.library]
    left = sorted(f"{each.node.name} on {each.level}: {each.reason}" for each in cut.left)
    return [*pieces, *library, *left]


@pytest.mark.parametrize(("model", "x"), [(nn.Sequential(Small(), Mlp()), X), (Looked(), TOKENS)], ids=["layers", "lookups"])
def test_a_later_process_cuts_nothing(model: nn.Module, x: torch.Tensor, cuts: list[int], tmp_path: Path) -> None:
    first, later = (answered(model.eval(), Store(tmp_path), x) for _ in range(2))
    assert len(cuts) == 1
    assert first.partition.pieces
    assert texts(later) == texts(first)
    assert all(result.report.recalled for result in later.results.values())


def test_lookups_that_are_repeated_are_part_of_the_plan(tmp_path: Path) -> None:
    """Else the test above shows nothing of them."""
    answered(Looked().eval(), Store(tmp_path), TOKENS)
    assert plan_of(Store(tmp_path))[1]["repeated"]


def test_a_graph_that_was_changed_otherwise_is_kept_by_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Store(tmp_path)

    def changing(module: torch.fx.GraphModule, *given: Any, **named: Any) -> Any:
        made = plans(module, *given, **named)
        call = next(node for node in module.graph.nodes if node.op == "call_function")
        with module.graph.inserting_after(call):
            module.graph.call_function(torch.ops.aten.neg.default, (call,))
        return made

    with monkeypatch.context() as patch:
        patch.setattr(optimized_graph, "plans", changing)
        answered(Small().eval(), store)
    assert not [each for each in store.entries() if each.kind == kept_plans.KIND]


class Tripled(Small):
    """A graph of as many calls, which multiplies by another number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.after(torch.sort(self.before(x) + 1).values * 3)
        return result


def test_graphs_of_as_many_calls_have_plans_of_their_own(cuts: list[int], tmp_path: Path) -> None:
    for model in (Small(), Tripled(), Small(), Tripled()):
        answered(model.eval(), Store(tmp_path))
    assert len(cuts) == 2


def test_other_weights_are_cut_alike_and_give_their_own_results(cuts: list[int], tmp_path: Path) -> None:
    answered(Small().eval(), Store(tmp_path))
    answered(Small().eval(), Store(tmp_path))
    assert len(cuts) == 1


def plan_of(store: Store) -> tuple[str, dict[str, Any]]:
    """The key of the only plan, and the plan."""
    (entry,) = (each for each in store.entries() if each.kind == kept_plans.KIND)
    document = store.get(kept_plans.KIND, entry.key)
    assert document is not None
    return entry.key, document


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"keep": "all"}},
        {"options": {"budget": 61.0}},
        {"options": {"budget": None}},
        {"options": {"max_error": 2**-30}},
        {"model": Small(48)},
        {"dtype": torch.bfloat16},
        {"here": ("2.0", "2", "highest")},
        {"version": "0.0"},
        {"files": "others"},
    ],
    ids=str,
)
def test_what_differs_is_cut_anew(
    change: dict[str, Any], cuts: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = Small().eval()
    answered(model, Store(tmp_path))
    if "here" in change:  # PyTorch's version, its threads, and what products are rounded to
        monkeypatch.setattr(kept_plans, "torch_here", lambda: change["here"])
    if "version" in change:
        monkeypatch.setattr(kept_plans, "__version__", change["version"])
    if "files" in change:
        monkeypatch.setattr(kept_plans, "package_digest", lambda: change["files"])
    fresh_process()
    dtype = change.get("dtype", torch.float32)
    with torch.inference_mode():
        x = torch.randn(4, change.get("model", model).after.weight.numel()).to(dtype)
        compiled(change.get("model", model).to(dtype), Store(tmp_path), **change.get("options", {}))(x)
    assert len(cuts) == 2


def test_with_less_time_it_is_cut_as_it_was_with_more(cuts: list[int], tmp_path: Path) -> None:
    model = Small().eval()
    for budget in (60.0, 30.0):
        answered(model, Store(tmp_path), budget=budget)
    assert len(cuts) == 1


@pytest.mark.parametrize("kind", ["result", "duel", "plan"])
def test_what_a_plan_rests_on_must_be_there(kind: str, cuts: list[int], tmp_path: Path) -> None:
    store, model = Store(tmp_path), Small().eval()
    answered(model, store)
    store.remove(kind)
    answered(model, store)
    answered(model, store)
    assert len(cuts) == 2


def test_where_a_duel_ends_otherwise_now_the_graph_is_cut_anew(
    cuts: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, model = Store(tmp_path), Small().eval()
    assert answered(model, store).partition.pieces
    store.remove("duel")
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: LOST)
    for _ in range(2):
        assert not answered(model, store).partition.pieces
    assert len(cuts) == 2


def test_where_other_layers_are_timed_the_graph_is_cut_anew(
    cuts: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, model = Store(tmp_path), Mlp().eval()
    for _ in range(2):
        answered(model, store, pack=True)
    assert len(cuts) == 1
    assert plan_of(store)[1]["timed"] == 2
    store.remove("library")
    answered(model, store, pack=True)
    assert len(cuts) == 2


def changed(document: dict[str, Any], change: str) -> Any:
    (first, *rest), numbers = document["pieces"], [number for _, _, those in document["left"] for number in those]
    level, key, nodes = first
    return {
        "nothing": {},
        "of another form": {**dict.fromkeys(document, 3), "budget": 60.0},
        "texts": {**dict.fromkeys(document, "?"), "budget": 60.0},
        "of a call too few": {**document, "pieces": rest},
        "of a call twice": {**document, "pieces": [first, first, *rest]},
        "of no node": {**document, "pieces": [[level, key, [*nodes, 10**6]], *rest]},
        "of another program": {**document, "pieces": [[level, "0" * 64, nodes], *rest]},
        "in another order": {**document, "pieces": [[level, key, nodes[::-1]], *rest]},
        "of an input": {**document, "left": [*document["left"], ["why", 0, [0]]]},
        "with an input twice": {**document, "repeated": [[0, nodes]]},
        "with calls twice": {**document, "repeated": [[nodes[0], nodes]]},
        "with other ways": {**document, "others": numbers or nodes[:1]},
        "with other library kernels": {**document, "library": [[0, nodes[:1], [], [], []]]},
    }[change]


@pytest.mark.parametrize(
    "change",
    [
        *("nothing", "of another form", "texts", "of a call too few", "of a call twice", "of no node", "of another program"),
        *(
            "in another order",
            "of an input",
            "with an input twice",
            "with calls twice",
            "with other ways",
            "with other library kernels",
        ),
    ],
)
def test_plans_that_are_none_of_a_graph_are_not_followed(
    change: str, cuts: list[int], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    store, model = Store(tmp_path), Small().eval()
    first = answered(model, store)
    key, document = plan_of(store)
    store.put(kept_plans.KIND, key, changed(document, change))
    with caplog.at_level(logging.INFO, logger="mugraph"):
        assert texts(answered(model, store)) == texts(first)
    assert "a graph is cut anew" in caplog.text
    assert len(cuts) == 2
    kept = plan_of(store)[1] | {"given": document["given"]}  # seconds of programs are what was left of a budget
    assert kept == json.loads(json.dumps(document)), "the plan that is made then is kept"


class Scaled(nn.Module):
    """PyTorch multiplies elements, and draws numbers twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.sort(torch.sort(x).values * self.scale).values
        return result - 2 * torch.rand_like(x) + torch.rand_like(x)


def in_library(document: dict[str, Any], name: str, names: list[str]) -> dict[str, Any]:
    """The plan, with a call that PyTorch makes for a kernel of the library."""
    number = names.index(name)
    left = [[why, level, [each for each in those if each != number]] for why, level, those in document["left"]]
    return {**document, "left": left, "library": [[0, [number], [], [], []]]}


def later(document: dict[str, Any], name: str, names: list[str]) -> dict[str, Any]:
    """The plan, with a call behind all others that do not read its result."""
    number = names.index(name)
    left = [[why, level, [each for each in those if each != number]] for why, level, those in document["left"]]
    return {**document, "left": [*left, ["why", 100, [number]]]}


@pytest.mark.parametrize(("name", "change"), [("mul_tensor", in_library), ("rand_like_default", later)])
def test_plans_by_which_calls_would_give_something_else_are_not_followed(
    name: str, change: Callable[..., Any], cuts: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names, of = list[str](), kept_plans.KeptPlan.of

    def noting(graph: torch.fx.Graph, *given: Any) -> Any:
        names[:] = [node.name for node in graph.nodes]
        return of(graph, *given)

    monkeypatch.setattr(kept_plans.KeptPlan, "of", noting)
    store, model, x, given = Store(tmp_path), Scaled(), torch.randn(4, 4), []
    for number in range(3):
        fresh_process()
        with torch.inference_mode():
            torch.manual_seed(1)
            given.append(compiled(model, store)(x))
        if number == 0:
            key, document = plan_of(store)
            store.put(kept_plans.KIND, key, change(document, name, names))
    assert len(cuts) == 2
    torch.testing.assert_close(given[1], given[0])
    torch.testing.assert_close(given[2], given[0])


def test_kernels_that_are_wrong_here_are_in_no_plan(
    cuts: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plan is no evidence: kernels are looked at before they run, as ever."""
    store, model = Store(tmp_path), Small().eval()
    answered(model, store)
    for entry in [each for each in store.entries() if each.kind == "result"]:
        document = store.get("result", entry.key)
        assert document is not None
        store.put("result", entry.key, {**document, "sources": "0" * 64})
    with caplog.at_level(logging.INFO, logger="mugraph"):
        answered(model, store)
    assert "its muGraph gives other sources now" in caplog.text
    assert len(cuts) == 2


@pytest.mark.parametrize("options", [{"background": True, "strict": False}, {"cache": "off"}, {"cache": "force"}], ids=str)
def test_who_asks_for_something_else_cuts_by_himself(
    options: dict[str, Any], cuts: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path))
    store, model = Store(tmp_path), Small().eval()
    answered(model, store)
    before = plan_of(store)
    fresh_process()
    with torch.inference_mode():
        compiled(model, store, **options)(X)
        assert background.wait(300.0)
    assert len(cuts) == 2
    key, document = plan_of(store)
    assert (key, document | {"given": before[1]["given"]}) == before


def test_what_more_time_may_change_is_kept_by_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuts: list[int]) -> None:
    """A piece that there was no time to compare is compared by the next process."""
    store, model, none = Store(tmp_path), Small().eval(), Duel(rounds=2, won=2, speedup=1.2, cut_short=True)
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: none)
    answered(model, store)
    assert not [each for each in store.entries() if each.kind == kept_plans.KIND]
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: WON)
    assert answered(model, store).partition.pieces
    answered(model, store)
    assert len(cuts) == 2


def test_what_pytorch_runs_is_said_by_later_processes_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: LOST)
    monkeypatch.setattr(Library, "is_faster", lambda *_: False)
    said = []
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="mugraph.torch_compile"):
            answered(Small().eval(), Store(tmp_path))
        said.append([text for text in caplog.messages if "stays with torch" in text])
    assert said[0] == said[1] != []
