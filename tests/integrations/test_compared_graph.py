"""Graphs that are cut into parts for any size: what runs which class of sizes, and that all are right from the first call on."""

from __future__ import annotations

import functools
import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from frontend.symbolic_sizes.test_merged_rows import NOT_OF_ROWS
from integrations.test_rows import compiled
from mugraph.integrations import background, compared_graph, covered_graph, graph_sizes, own_arguments, sized_graph
from mugraph.integrations.background import Comparison, Turn
from mugraph.integrations.compared_graph import ComparedGraph
from mugraph.integrations.covered_graph import CoveredGraph
from mugraph.integrations.graph_axis import GraphAxis
from mugraph.integrations.masked_run import Decision
from mugraph.integrations.own_arguments import MOST_TRIES
from mugraph.integrations.sized_graph import RecurringSizes, SizedGraph, UncutGraph
from mugraph.integrations.torch_compile import compilations
from mugraph.pieces import piece_optimizer
from mugraph.runtime.benchmarking import Duel, duel

pytestmark = pytest.mark.usefixtures("first_found")

Run = Callable[..., Any]
ALL: dict[str, Any] = {"budget": 300.0, "keep": "all", "strict": True}


class Layer(nn.Module):
    """A layer of a decoder, which attends to what came before: in a prompt, or in a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.RMSNorm(16, eps=1e-5), nn.RMSNorm(16, eps=1e-5)
        self.qkv, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor, *cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.qkv(self.before(x)).chunk(3, -1))
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=not cache).transpose(1, 2).flatten(2))
        y = self.behind(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), k, v


class Prompt(nn.Module):
    """Two layers over all of a prompt, whose last position is read."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers, self.head = nn.Embedding(50, 16), nn.ModuleList(Layer() for _ in range(2)), nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.words(ids)
        kept: list[torch.Tensor] = []  # which Dynamo follows, as it does not follow `list[torch.Tensor]()`
        for layer in self.layers:
            x, *pair = layer(x)
            kept += pair
        return self.head(x[:, -1:]), *kept


# --- what runs which sizes, without torch.compile --------------------------------------------------------------------


class Clock:
    """Seconds that calls say that they take: the same on every machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def run(self, seconds: Callable[[int], float], add: float = 1.0) -> Run:
        """A graph of one tensor and its size, that takes so many seconds."""

        def call(x: torch.Tensor, size: int) -> list[torch.Tensor]:
            self.now += seconds(size)
            return [x + add]

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (compared_graph, sized_graph):
        monkeypatch.setattr(module, "duel", functools.partial(duel, clock=lambda: made.now))
    monkeypatch.setattr(compared_graph, "_SECONDS", 0.0)
    return made


def compared(cut: Run, whole: Run, calls: Run | None = None, strict: bool = False) -> ComparedGraph:
    return ComparedGraph(cut, whole, (1,), calls, strict)


class Later:
    """Work that calls of a graph leave to others."""

    def __init__(self) -> None:
        self.work: list[Any] = []

    def __call__(self, work: Any) -> None:
        self.work.append(work)

    def do(self) -> None:
        while self.work:
            self.work.pop()(None)


def recurring(
    graph: ComparedGraph | UncutGraph, special: Run, made: list[int], later: Later, limit: int = 8, faster: bool = True
) -> RecurringSizes:
    def specialized(arguments: Sequence[Any]) -> Run:
        made.append(arguments[1])
        return special

    return RecurringSizes(graph, specialized, limit, later, faster)


def call(graph: ComparedGraph | RecurringSizes, size: int) -> None:
    x = torch.randn(size, 3)
    assert torch.equal(graph(x, size)[0], x + 1)


def test_parts_that_are_slower_as_a_whole_lose_the_classes_in_which_they_are(clock: Clock) -> None:
    graph = compared(clock.run(lambda size: 3.0 if size < 16 else 1.0), clock.run(lambda size: 2.0))
    for size in (9, 20, 15, 31, 2):
        call(graph, size)
    assert {bits: decision.faster for bits, decision in graph.decided.items()} == {(4,): False, (5,): True, (2,): False}
    before = clock.now
    call(graph, 12)
    call(graph, 17)
    assert clock.now - before == 2.0 + 1.0, "as a whole, and by parts"


def test_parts_that_lose_to_the_calls_of_pytorch_run_nothing_whatever_the_whole_takes(clock: Clock) -> None:
    cut, whole = clock.run(lambda size: 2.0), clock.run(lambda size: 3.0)
    graph = compared(cut, whole, clock.run(lambda size: 1.0))
    call(graph, 9)
    assert not graph.decided[4,].faster
    assert [each.speedup for each in graph.duels[4,]] == [1.5, 0.5]
    faster = compared(cut, whole, clock.run(lambda size: 4.0))
    call(faster, 9)
    assert faster.decided[4,].faster


@pytest.mark.parametrize(("parts", "uses"), [(3.0, 3), (1.0, 32)])
def test_a_size_that_keeps_coming_gets_kernels_and_no_call_waits(parts: float, uses: int, clock: Clock) -> None:
    """Where the graph runs as a whole at the third call, however often a duel called it, and where parts do after 32."""
    later, made = Later(), list[int]()
    graph = compared(clock.run(lambda size: parts), clock.run(lambda size: 2.0))
    sizes = recurring(graph, clock.run(lambda size: 0.5), made, later)
    for _ in range(uses - 1):
        call(sizes, 9)
    assert later.work == []
    call(sizes, 9)
    before = clock.now
    call(sizes, 9)
    assert made == [], "nothing was made for these calls"
    assert clock.now - before >= min(parts, 2.0)
    later.do()
    assert made == [9]
    before = clock.now
    call(sizes, 9)
    assert clock.now - before == 0.5
    assert sizes.duels[9,].speedup == min(parts, 2.0) / 0.5
    before = clock.now
    call(sizes, 10)
    assert clock.now - before == min(parts, 2.0), "another size of the class runs as before"


@pytest.mark.parametrize("parts", [3.0, 1.0])
def test_kernels_for_a_size_that_are_not_clearly_faster_do_not_serve(parts: float, clock: Clock) -> None:
    later, made = Later(), list[int]()
    usual = min(parts, 2.0)
    graph = compared(clock.run(lambda size: parts), clock.run(lambda size: 2.0))
    sizes = recurring(graph, clock.run(lambda size: usual), made, later)
    for _ in range(40):
        call(sizes, 9)
        later.do()
    assert made == [9], "they are made once"
    assert sizes.runs[9,] is sizes.general
    assert not sizes.duels[9,].clear


def test_kernels_for_a_size_that_return_something_else_do_not_serve(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    later = Later()
    graph = compared(clock.run(lambda size: 3.0), clock.run(lambda size: 2.0))
    sizes = recurring(graph, clock.run(lambda size: 0.1, add=1.01), [], later)
    for _ in range(5):
        call(sizes, 9)
        later.do()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert not sizes.duels


def test_kernels_for_a_size_that_raise_do_not_serve(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def broken(x: torch.Tensor, size: int) -> Any:
        raise ZeroDivisionError("a defect")

    later = Later()
    sizes = recurring(compared(clock.run(lambda size: 3.0), clock.run(lambda size: 2.0)), broken, [], later)
    for _ in range(5):
        call(sizes, 9)
        later.do()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_only_so_many_sizes_that_keep_coming_get_kernels(clock: Clock) -> None:
    later, made = Later(), list[int]()
    graph = compared(clock.run(lambda size: 3.0), clock.run(lambda size: 2.0))
    sizes = recurring(graph, clock.run(lambda size: 0.5), made, later, limit=2)
    for size in (9, 10, 11) * 4:
        call(sizes, size)
        later.do()
    assert made == [9, 10]


def whole(clock: Clock, seconds: float = 2.0) -> UncutGraph:
    return UncutGraph(clock.run(lambda size: seconds), (1,))


@pytest.mark.parametrize("special", [0.5, 2.0])
def test_a_graph_without_parts_waits_for_no_kernels_of_a_size(special: float, clock: Clock) -> None:
    """They are made for its third call, behind it, and serve where they are faster."""
    later, made = Later(), list[int]()
    sizes = recurring(whole(clock), clock.run(lambda size: special), made, later)
    for _ in range(3):
        before = clock.now
        call(sizes, 9)
        assert clock.now - before == 2.0
    assert made == []
    assert len(later.work) == 1
    later.do()
    assert made == [9]
    before = clock.now
    call(sizes, 9)
    assert clock.now - before == special
    assert sizes.duels[9,].clear == (special == 0.5)


def test_kernels_that_are_to_be_kept_serve_unless_they_are_wrong(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    later = Later()
    slow = recurring(whole(clock), clock.run(lambda size: 3.0), [], later, faster=False)
    wrong = recurring(whole(clock), clock.run(lambda size: 1.0, add=1.01), [], later, faster=False)
    for _ in range(3):
        call(slow, 9)
        call(wrong, 9)
    later.do()
    for sizes, seconds in ((slow, 3.0), (wrong, 2.0)):
        before = clock.now
        call(sizes, 9)
        assert clock.now - before == seconds
    assert [record.levelname for record in caplog.records] == ["ERROR"]


class Writer:
    """A caller who writes to what it gave, while somebody calls kernels with it."""

    def __init__(self, clock: Clock) -> None:
        self.cache, self.writes = torch.zeros(9, 3), True
        self._run = clock.run(lambda size: 0.5)

    def kernels(self, x: torch.Tensor, size: int) -> list[torch.Tensor]:
        if self.writes:
            self.cache.add_(1)
        made: list[torch.Tensor] = self._run(x, size)
        return made

    def call(self, graph: RecurringSizes | ComparedGraph) -> None:
        assert torch.equal(graph(self.cache, 9)[0], self.cache + 1)


def test_kernels_are_compared_on_arguments_of_their_own(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    later, writer = Later(), Writer(clock)
    sizes = recurring(whole(clock), writer.kernels, [], later)
    for _ in range(3):
        writer.call(sizes)
    later.do()
    assert sizes.runs[9,] == writer.kernels
    assert caplog.records == []


def test_arguments_that_change_while_kernels_are_compared_are_no_contradiction(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are too large to be copied: kernels are compared again when the size keeps coming, and made once."""
    monkeypatch.setattr(own_arguments, "_MOST_BYTES", 0)
    later, made, writer = Later(), list[int](), Writer(clock)
    sizes = recurring(whole(clock), writer.kernels, made, later)
    for calls in (3, 2):
        for _ in range(calls):
            assert later.work == []
            writer.call(sizes)
        later.do()
        before = clock.now
        writer.call(sizes)
        assert clock.now - before == 2.0, "what ran it before"
    writer.writes = False
    for _ in range(2):
        writer.call(sizes)
    later.do()
    before = clock.now
    writer.call(sizes)
    assert clock.now - before == 0.5
    assert made == [9]
    assert caplog.records == []


def test_comparisons_that_are_always_disturbed_end(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_arguments, "_MOST_BYTES", 0)
    later, writer = Later(), Writer(clock)
    sizes = recurring(whole(clock), writer.kernels, [], later)
    compared_often = 0
    for _ in range(10 * MOST_TRIES):
        writer.call(sizes)
        compared_often += len(later.work)
        later.do()
    assert compared_often == MOST_TRIES
    assert sizes.runs[9,] is sizes.general


def test_parts_are_compared_in_the_background_on_arguments_of_their_own(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    later, writer = Later(), Writer(clock)
    graph = ComparedGraph(writer.kernels, clock.run(lambda size: 2.0), (1,), turn=Turn(later))
    for _ in range(2):
        writer.call(graph)
        later.do()
    assert graph.decided[4,].faster
    assert caplog.records == []


def test_arguments_that_change_while_parts_are_compared_are_no_contradiction(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_arguments, "_MOST_BYTES", 0)
    later, writer = Later(), Writer(clock)
    graph = ComparedGraph(writer.kernels, clock.run(lambda size: 2.0), (1,), turn=Turn(later))
    for _ in range(3):
        writer.call(graph)
        later.do()
    assert not graph.decided
    writer.writes = False
    for _ in range(2):
        writer.call(graph)
        later.do()
    assert graph.decided[4,].faster
    assert caplog.records == []


def test_a_class_is_looked_at_again_behind_calls(clock: Clock) -> None:
    """By work that no other process is started for."""
    later = Later()
    seconds = iter([3.0] * 200)
    graph = ComparedGraph(clock.run(lambda size: next(seconds, 1.0)), clock.run(lambda size: 2.0), (1,), turn=Turn(None, later))
    call(graph, 9)
    assert not graph.decided[4,].faster
    assert later.work == [], "the first call of a class compares"
    for _ in seconds:
        pass
    for _ in range(Decision(True).until + 5):
        before = clock.now
        call(graph, 9)
        assert clock.now - before == 2.0, "as was decided"
    (work,) = later.work
    assert isinstance(work, Comparison)
    later.do()
    before = clock.now
    call(graph, 9)
    assert clock.now - before == 1.0


@pytest.mark.parametrize("strict", [False, True])
def test_parts_that_return_something_else_run_nothing(strict: bool, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    graph = compared(clock.run(lambda size: 0.1, add=1.01), clock.run(lambda size: 2.0), strict=strict)
    for size in (9, 9, 50):
        call(graph, size)
    assert not graph.decided
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_parts_that_raise_run_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def broken(x: torch.Tensor, size: int) -> Any:
        raise ZeroDivisionError("a defect")

    graph = compared(broken, clock.run(lambda size: 2.0))
    for size in (9, 9, 50):
        call(graph, size)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(ZeroDivisionError):
        compared(broken, clock.run(lambda size: 2.0), strict=True)(torch.randn(9, 3), 9)


# --- in torch.compile ------------------------------------------------------------------------------------------------


def marked(tensor: torch.Tensor, *dims: int) -> torch.Tensor:
    for dim in dims:
        torch._dynamo.mark_dynamic(tensor, dim)
    return tensor


def assert_right(fast: Run, model: Run, *given: torch.Tensor) -> None:
    for ours, theirs in zip(fast(*given), model(*given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture
def pieces_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts have kernels, however fast these are beside PyTorch on this machine: whole graphs are what is compared."""
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: Duel(rounds=20, won=20, speedup=2.0))


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_prompt_of_any_length_runs_by_kernels_from_the_first_call_on(dynamic: bool | None) -> None:
    model = Prompt().eval()
    fast, draw = compiled(model, ALL, dynamic), random.Random(0)
    with torch.inference_mode():
        first = torch.randint(50, (1, 20))
        assert_right(fast, model, first if dynamic else marked(first, 1))
        done = list(compilations)
        rows = [made for made in done if made.partition.pieces and made.partition.byte_share > 0.9]
        assert len(rows) >= 3, "kernels for all three parts of rows"
        for length in (2, 3, 7, 61, 79, 80, *(draw.randint(2, 80) for _ in range(20))):
            assert_right(fast, model, torch.randint(50, (1, length)))
        assert list(compilations) == done, "nothing is compiled for a length that is new"
        assert_right(fast, model, torch.randint(50, (1, 1)))  # a graph of its own


NAMES = [name for name in NOT_OF_ROWS if name != "a size as a number"]


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        # by day the one or the other, in turns
        pytest.param(name, dim, marks=[pytest.mark.slow] * (dim != number % 2))
        for number, name in enumerate(NAMES)
        for dim in (0, 1)
    ],
)
def test_what_is_not_of_slices_stands_between_parts(name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts run in chunks by PyTorch, along either dimension, whatever stands between them."""

    def at_size(axis: GraphAxis, options: Any, module: torch.fx.GraphModule, *rest: Any) -> Run:
        def run(*arguments: Any) -> Any:
            called.append(axis.size(arguments))
            return module(*arguments)

        return run

    called = list[int]()
    monkeypatch.setattr(graph_sizes, "optimized", lambda options, module, *rest: module)
    monkeypatch.setattr(graph_sizes, "_in_slices", at_size)
    monkeypatch.setattr(covered_graph, "medians", lambda calls, *rest: dict.fromkeys(calls, 1e-6) | {"general": 1.0})
    linear = nn.Linear(8, 8)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return NOT_OF_ROWS[name](F.silu(linear(x))).relu() + 1

    fast = compiled(fn, ALL)
    with torch.inference_mode():
        for size in (20, 3, 4, 7, 16, 31, 61, 130, 5):
            x = torch.randn(*((size, 6) if dim == 0 else (6, size)), 8)
            torch.testing.assert_close(fast(marked(x, dim)), fn(x), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert called or (name, dim) == ("instances", 1), "what comes before those is read as one row of all samples"


def test_tokens_of_any_batch_over_any_cache_run_by_kernels_from_the_first_call_on() -> None:
    model = Layer().eval()
    fast, draw = compiled(model, ALL), random.Random(0)

    def given(batch: int, keys: int) -> list[torch.Tensor]:
        return [torch.randn(batch, 1, 16), *(torch.randn(batch, 2, keys, 8) for _ in range(2))]

    with torch.inference_mode():
        x, k, v = given(9, 70)
        assert_right(fast, model, marked(x, 0), marked(k, 0, 2), marked(v, 0, 2))
        for batch, keys in ((9, 71), (2, 2)):
            assert_right(fast, model, *given(batch, keys))
        done = len(compilations)
        for batch, keys in ((3, 7), (7, 40), *((draw.randint(2, 9), draw.randint(2, 80)) for _ in range(10))):
            assert_right(fast, model, *given(batch, keys))
        assert len(compilations) == done


@pytest.mark.usefixtures("pieces_win")
def test_a_graph_that_is_cut_is_compared_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each class of lengths, whoever wins; parts have kernels, and PyTorch's calls as a whole have none."""
    found = list[ComparedGraph]()

    class Noted(ComparedGraph):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.append(self)

    monkeypatch.setattr(graph_sizes, "ComparedGraph", Noted)
    model = Prompt().eval()
    fast = compiled(model, ALL | {"keep": "faster"})
    with torch.inference_mode():
        for length in (20, 31, 33, 5):
            ids = torch.randint(50, (1, length))
            assert_right(fast, model, marked(ids, 1) if length == 20 else ids)
    (graph,) = found
    assert sorted(graph.duels) == [(3,), (5,), (6,)]
    for faster in (True, False):
        for decision in graph.decided.values():
            decision.faster, decision.until = faster, 1000
        with torch.inference_mode():
            for length in (4, 17, 47, 63):
                assert_right(fast, model, torch.randint(50, (1, length)))


@pytest.mark.usefixtures("pieces_win")
def test_a_length_that_keeps_coming_gets_kernels_behind_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wins: what is made is proved, compared with what ran the length, and in place or not."""
    found = list[RecurringSizes]()

    class Noted(RecurringSizes):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.append(self)

    monkeypatch.setattr(graph_sizes, "RecurringSizes", Noted)
    monkeypatch.setattr(sized_graph, "_USES_BY_PARTS", 3)
    model = Prompt().eval()
    fast = compiled(model, ALL | {"keep": "faster"})
    with torch.inference_mode():
        assert_right(fast, model, marked(torch.randint(50, (1, 20)), 1))
        done = compilations.in_all
        for _ in range(4):
            assert_right(fast, model, torch.randint(50, (1, 20)))
        (graph,) = found
        assert background.wait(300.0)
        assert compilations.in_all > done
        assert [*graph.duels] == [(20,)] == [*graph.runs]
        assert (graph.runs[20,] is not graph.general) == graph.duels[20,].clear
        for length in (20, 20, 21, 5):
            assert_right(fast, model, torch.randint(50, (1, length)))


def test_a_size_of_a_graph_without_parts_gets_kernels_behind_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes kernels is the thread of the background, and all calls are right."""
    searching, makers = threading.Event(), list[str]()
    behind = graph_sizes._behind_calls

    def made(*given: Any) -> Run:
        makers.append(threading.current_thread().name)
        assert searching.wait(300)
        return behind(*given)

    monkeypatch.setattr(graph_sizes, "_behind_calls", made)
    fast = compiled(ranked, {"keep": "all", "budget": 300.0, "profile": False})
    with torch.inference_mode():
        for size in (9, 9, 9, 9, 4):
            x = torch.randn(size, 8)
            torch.testing.assert_close(fast(marked(x, 0)), ranked(x))
        searching.set()
        assert background.wait(300.0)
        assert makers == ["mugraph-background"]
        done = compilations.in_all
        assert compilations[-1].partition.pieces, "kernels for the size"
        for size in (9, 9, 4):
            x = torch.randn(size, 8)
            torch.testing.assert_close(fast(x), ranked(x))
        assert compilations.in_all == done


def ranked(x: torch.Tensor) -> torch.Tensor:
    """Rows in the order of their sums: no function of slices, and without weights."""
    return torch.softmax(x[x.sum(-1).argsort()].exp() / x.shape[0], -1)


def written(x: torch.Tensor) -> torch.Tensor:
    """Writes to what it is given."""
    y = ranked(x)
    x.add_(1)
    return y


def drawn(x: torch.Tensor) -> torch.Tensor:
    """Draws random numbers."""
    return ranked(x) + 0 * torch.rand(8)


@pytest.mark.parametrize(
    ("fn", "options", "kind"),
    [
        (ranked, {}, RecurringSizes),
        (written, {}, RecurringSizes),  # a graph that returns what the argument holds afterwards
        (ranked, {"strict": True}, SizedGraph),
        (drawn, {}, SizedGraph),
    ],
)
def test_sizes_that_can_be_compared_get_kernels_behind_calls(
    fn: Run, options: dict[str, Any], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[type]()
    for each in (RecurringSizes, SizedGraph):
        monkeypatch.setattr(graph_sizes, each.__name__, functools.partial(noted, made, each))
    fast = compiled(fn, {"keep": "all", "budget": 5.0, "profile": False, **options})
    with torch.inference_mode():
        x = torch.randn(9, 8)
        wanted = fn(x.clone())
        torch.testing.assert_close(fast(marked(x, 0)), wanted)
    assert made == [kind]


def noted(made: list[type], kind: type, *given: Any) -> Any:
    made.append(kind)
    return kind(*given)


def test_graphs_that_draw_random_numbers_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Any]()
    monkeypatch.setattr(graph_sizes, "ComparedGraph", lambda *given: made.append(given))
    linear = nn.Linear(8, 8)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = linear(x).relu()
        return (y + torch.rand_like(y)).cumsum(0)

    fast = compiled(fn, ALL | {"keep": "faster"})
    with torch.inference_mode():
        x = marked(torch.randn(6, 8), 0)
        fast(x)
        torch.manual_seed(1)
        wanted = fn(x)
        torch.manual_seed(1)
        torch.testing.assert_close(fast(x), wanted)
    assert made == []


def test_what_has_no_weights_is_not_cut(caplog: pytest.LogCaptureFixture) -> None:
    fast = compiled(lambda x: (x.exp() * 2).cumsum(0), ALL)
    with torch.inference_mode(), caplog.at_level(logging.INFO, logger="mugraph.torch_compile"):
        x = marked(torch.randn(6, 8), 0)
        torch.testing.assert_close(fast(x), (x.exp() * 2).cumsum(0))
    assert "parts of a graph do the same to every row" not in caplog.text


def test_the_first_slices_of_the_largest_size_leave_out_the_next_smaller_one() -> None:
    made = list[int]()

    def run(arguments: Sequence[Any], budget: float | None) -> Run:
        made.append(arguments[1])
        return lambda x, size: [x * 2]

    axis = GraphAxis(1, ((0, 0),), ((0, 1),))
    graph = CoveredGraph(lambda x, size: [x * 2], run, axis, limit=8, ahead=4)
    for size in (20, 61, 128):
        x = torch.randn(size, 3)
        assert torch.equal(graph(x, size)[0], x * 2)
    assert made == [128, 32, 8, 2], "the largest first, and up to four times the size"
