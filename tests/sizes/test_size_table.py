"""What a table of sizes takes to make: which sizes are searched, how, and how much is compiled and proved for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mugraph
from mugraph.devices import device_for
from mugraph.errors import InvalidInput
from mugraph.frontend import trace
from mugraph.lower.thread_graphs import construct
from mugraph.search import Proposal, search
from mugraph.selection.qualification import Qualifier
from mugraph.selection.structure_key import form_of, of_forms
from mugraph.sizes.chunk_plans import Costs
from mugraph.sizes.dims import Dim
from mugraph.sizes.dynamic_results import DynamicSuperoptimized
from mugraph.sizes.range_search import superoptimized_for_sizes
from mugraph.sizes.size_table import SizeTable
from mugraph.sizes.sliced_functions import SlicedFunction
from mugraph.sizes.sliced_kernels import InPart
from mugraph.support.deadline import Deadline

GENERATOR = torch.Generator().manual_seed(0)
BATCH = Dim("batch", 1, 64)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


W = drawn(24, 40)


def norm_linear(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)) @ W.to(x.dtype)


Made = list[tuple[int, dict[str, Any]]]


def table_of(made: Made, dim: Dim = BATCH, **settings: Any) -> DynamicSuperoptimized:
    """A result for sizes of norm_linear, of which it is noted for which size what was asked."""

    def noted(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], **asked: Any) -> mugraph.Superoptimized:
        made.append((len(args[0]), asked))
        result: mugraph.Superoptimized = mugraph.superoptimize(fn, args, **asked)
        return result

    dynamic: dict[int | str, dict[int, Dim]] = {0: {0: dim}}
    settings = {"profile": False, "cache": "off", **settings}
    return superoptimized_for_sizes(noted, norm_linear, ((drawn(4, 24),), {}), dynamic, None, None, settings)


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[tuple[Any, ...]]:
    """The arguments of calls of a method, which does what it did."""
    calls: list[tuple[Any, ...]] = []
    real = getattr(kind, name)

    def call(self: Any, *given: Any, **named: Any) -> Any:
        calls.append(given)
        return real(self, *given, **named)

    monkeypatch.setattr(kind, name, call)
    return calls


@pytest.fixture
def slow_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """No size is added for being slow, whatever the clock says."""
    for times in ("_TIMES", "_TIMES_GAINING"):
        monkeypatch.setattr(f"mugraph.sizes.size_table.{times}", 0.0)


@pytest.mark.parametrize("times", [0.5, 0.9], ids=["gains", "gains little"])
def test_sizes_are_added_for_longer_while_they_gain(filled: Any, monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """As measured: the size that was added takes so many times what it took before."""
    opt, _ = filled
    table, asked, expected = SizeTable(opt, (drawn(4, 24),), {}, Deadline(None)), list[bool](), list[float]()

    def missing(self: SizeTable) -> int | None:
        asked.append(self._gained)
        expected.append(self._making)
        return 8 if len(asked) == 1 else None

    def settle(self: SizeTable) -> None:
        monkeypatch.setattr(opt, "costs", Costs({8: times}, chunk=10.0))

    for name in ("_improve_all", "_take_over"):
        monkeypatch.setattr(SizeTable, name, lambda *given: None)
    spent = iter(range(0, 800, 8))
    monkeypatch.setattr(SizeTable, "_spent", property(lambda self: next(spent)))
    monkeypatch.setattr(SizeTable, "_fill_freely", lambda *given: None)
    monkeypatch.setattr(SizeTable, "settle", lambda self: monkeypatch.setattr(opt, "costs", Costs({8: 1.0}, chunk=10.0)))
    monkeypatch.setattr(SizeTable, "_missing", missing)
    monkeypatch.setattr(SizeTable, "_take_over", lambda *given: monkeypatch.setattr(SizeTable, "settle", settle))
    table.fill()
    assert asked == [False, times < 0.7]
    assert expected == [3.0, 8.0], "three muGraphs are compiled where eight were for the smallest size"


@pytest.fixture(scope="module")
def filled() -> tuple[DynamicSuperoptimized, Made]:
    made: Made = []
    with pytest.MonkeyPatch.context() as patch:
        for times in ("_TIMES", "_TIMES_GAINING"):
            patch.setattr(f"mugraph.sizes.size_table.{times}", 0.0)
        return table_of(made), made


def test_a_range_is_two_searches_and_what_takes_over_their_forms(filled: tuple[DynamicSuperoptimized, Made]) -> None:
    opt, made = filled
    assert [size for size, _ in made] == [64, 1, 4], "both ends, then one between"
    assert [asked.get("compiled") for _, asked in made] == [None, 8, 3]
    assert all(asked["candidates"] == 1 for _, asked in made)
    likes = [asked["like"] if isinstance(asked["like"], list) else [asked["like"]] for _, asked in made]
    assert likes[:2] == [[None], [opt.table[64,]]]
    forms = [form_of(each.graph) for each in likes[2]]
    assert len(forms) == len({*forms}), "each form once, in one search"
    assert {*forms} == {form_of(opt.table[size,].graph) for size in (1, 64)}
    for size in (1, 2, 7, 9, 33, 63, 64):
        x = drawn(size, 24)
        torch.testing.assert_close(opt(x), norm_linear(x.double()).float(), rtol=1e-5, atol=1e-5)


def test_what_is_compiled_and_proved_of_a_size_is_few(monkeypatch: pytest.MonkeyPatch, slow_are_left: None) -> None:
    built, proved = (counted(monkeypatch, Qualifier, name) for name in ("_built", "_verdict"))
    made: Made = []
    opt = table_of(made, Dim("batch", 4, 64))
    assert [*opt.table] == [(64,), (4,)], "which computes first slices alone, timed in between"
    assert len(proved) == len(made) == 2
    assert len(built) == 2, "where nothing is timed, what is proved alone"


def test_what_was_asked_to_be_compiled_is_not_exceeded(slow_are_left: None) -> None:
    made: Made = []
    table_of(made, Dim("batch", 4, 16), compiled=1, candidates=2)
    assert {(asked.get("compiled", 1), asked["candidates"]) for _, asked in made} == {(1, 2)}


def test_sizes_far_apart_are_added_where_first_slices_have_no_kernels(
    monkeypatch: pytest.MonkeyPatch, slow_are_left: None
) -> None:
    monkeypatch.setattr("mugraph.sizes.sliced_kernels.sliced_kernels", lambda *given: None)
    made: Made = []
    table_of(made, Dim("batch", 4, 64))
    assert [size for size, _ in made] == [64, 4, 16]


def test_slow_sizes_are_added_while_all_take_less_than_twice_the_largest(
    filled: tuple[DynamicSuperoptimized, Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    opt, _ = filled
    table = SizeTable(opt, (drawn(4, 24),), {}, Deadline(None))
    slow = Costs({4: 1.0, 64: 2.0}, parts={4: {1: 1.0, 4: 1.0}, 64: {1: 2.0, 32: 1.0, 64: 1.0}}, alone={1: 1.0})
    monkeypatch.setattr(opt, "costs", slow)
    assert table._missing() == 16, "nothing is known of the largest"
    spent = opt.times.making
    table._largest, table._making = spent, 0.9 * spent
    assert table._missing() == 16
    table._making = 1.1 * spent
    assert table._missing() is None
    table._making, table._recalled = 0.9 * spent, 0.2 * spent
    assert table._missing() is None, "what an earlier process made counts"
    table._gained = True
    assert table._missing() is None, "kernels for the largest compute first slices"
    with monkeypatch.context() as patch:
        patch.setitem(opt.table, (16,), opt.table[4,])
        patch.setattr(opt, "costs", Costs({4: 1.0, 16: 1.4, 64: 2.0}, padding=1.0, alone={1: 1.0}))
        assert table._missing() == 32, "nothing computes these, and what was added last gained"
        table._making = 3.1 * spent
        assert table._missing() is None
    monkeypatch.delitem(opt.table, (4,))
    assert table._missing() == 4, "further apart than anything is known of"
    monkeypatch.setitem(opt.table, (16,), SimpleNamespace(found=False))
    assert table._missing() == 8, "half of what has no kernels"


def test_a_few_slices_of_a_large_size_that_are_slow_have_kernels_for_as_few(
    filled: tuple[DynamicSuperoptimized, Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of those that are slow, not of all sizes between its neighbours."""
    opt, _ = filled
    table = SizeTable(opt, (drawn(4, 24),), {}, Deadline(None))
    monkeypatch.delitem(opt.table, (4,))
    monkeypatch.delitem(opt.table, (1,))
    monkeypatch.setitem(opt.table, (2,), opt.table[64,])
    parts = {64: {2: 0.15, 6: 0.2, 7: 7 / 64, 64: 1.0}}
    monkeypatch.setattr(opt, "costs", Costs({2: 2.0, 64: 64.0}, chunk=9.0, parts=parts))
    assert opt.costs.ratio(6) < 0.5
    assert min(map(opt.costs.ratio, range(7, 65))) == 1.0
    assert table._missing() == BATCH.middle(2, 7) == 4


@pytest.mark.parametrize(
    ("computes_first", "pieced", "others"),
    [(True, True, [1, 2]), (False, True, [1, 4]), (False, False, [1])],
    ids=["first slices", "no first slices", "one program"],
)
def test_sizes_that_are_searched_beside_the_largest(
    filled: tuple[DynamicSuperoptimized, Made],
    monkeypatch: pytest.MonkeyPatch,
    computes_first: bool,
    pieced: bool,
    others: list[int],
) -> None:
    opt, _ = filled
    table = SizeTable(opt, (drawn(4, 24),), {}, Deadline(None))
    monkeypatch.setattr(SizeTable, "_may_be_pieced", property(lambda self: pieced))
    monkeypatch.setattr(opt, "in_part", {16: InPart(len, opt.in_part[64].kernels if computes_first else None, {})})
    assert table._other_anchors(1, 16) == others
    assert table._other_anchors(16, 16) == []


def test_what_a_result_is_put_together_of_is_asked_once(
    filled: tuple[DynamicSuperoptimized, Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    opt, _ = filled
    asked = counted(monkeypatch, SlicedFunction, "is_acted_on_by")
    table = SizeTable(opt, (drawn(4, 24),), {}, Deadline(None))
    first = table._by_what_they_run()
    assert len(asked) == 3
    assert table._by_what_they_run() == first
    assert len(asked) == 3
    monkeypatch.setitem(opt.table, (4,), opt.table[4,].with_best(opt.table[4,].best))
    table._by_what_they_run()
    assert asked[3:] == [(opt.table[4,].graph,)], "another result"


def test_no_form_is_tried_twice_at_a_size(filled: tuple[DynamicSuperoptimized, Made], monkeypatch: pytest.MonkeyPatch) -> None:
    opt, _ = filled
    table = SizeTable(opt, (drawn(4, 24),), {}, Deadline(None))
    monkeypatch.setattr(SizeTable, "_filled", lambda self, size, likes: opt.table[size,])
    tried = counted(monkeypatch, SizeTable, "_filled")
    monkeypatch.setattr(opt, "costs", Costs({4: 1.0, 64: 2.0}, alone={1: 0.5}))
    assert not table._improve(1), "it is faster by itself"
    assert tried == []
    forms = iter(range(9))
    monkeypatch.setattr("mugraph.sizes.size_table._form", lambda result: next(forms))
    monkeypatch.setattr(opt, "costs", Costs({4: 1.0, 64: 2.0}, alone={1: 1.5}))
    monkeypatch.setattr(SizeTable, "_is_faster", lambda self, *given: False)
    assert not table._improve(1)
    assert [size for size, _ in tried] == [1]
    monkeypatch.setattr("mugraph.sizes.size_table._form", lambda result: 0)
    table._forms_of[1] = {0}
    assert not table._improve(1)
    assert [size for size, _ in tried] == [1]


# --- searches for forms ------------------------------------------------------------------------------------------------


def candidates(rows: int) -> list[Proposal]:
    return search(trace(norm_linear, (drawn(rows, 24),)).graph, device_for("cpu")).candidates


def test_the_best_of_each_form_comes_before_others() -> None:
    program, found = trace(norm_linear, (drawn(24, 24),)).graph, candidates(24)
    by_form: dict[object, list[Proposal]] = {}
    for each in found:
        by_form.setdefault(form_of(construct(each.graph)), []).append(each)
    (one, *_), (two, *_) = sorted(by_form.values(), key=len, reverse=True)[:2]
    likes = [construct(each.graph) for each in (two, one)]
    assert of_forms(found, likes, program) == [two, one]
    assert of_forms(found, likes[1:], program) == [one]
    others = [each for each in found if each is not two]
    assert of_forms(found, likes[:1], program, most=3) == [two, *others[:2]]
    assert of_forms(found, [program], program) == []
    without = [each for each in found if each not in by_form[form_of(likes[0])]]
    assert of_forms(without, likes[:1], program) == without[:3]


@pytest.mark.parametrize("budget", [None, 600.0])
def test_a_search_for_forms_ends_once_it_has_them(monkeypatch: pytest.MonkeyPatch, budget: float | None) -> None:
    gains: list[float] = []

    def searched(*given: Any, **named: Any) -> Any:
        gains.append(named["options"].least_gain)
        return search(*given, **named)

    like = mugraph.superoptimize(norm_linear, (drawn(8, 24),), profile=False)
    monkeypatch.setattr("mugraph.selection.proposals.closure_search", searched)
    made = mugraph.superoptimize(norm_linear, (drawn(9, 24),), profile=False, cache="off", like=[like], budget=budget)
    assert gains == [1.0]
    assert form_of(made.graph) == form_of(like.graph)


@pytest.mark.parametrize("wanted", [0, True, 1.5])
def test_nothing_to_compile_is_refused(wanted: Any) -> None:
    with pytest.raises(InvalidInput, match="compile at least one"):
        mugraph.superoptimize(norm_linear, (drawn(4, 24),), compiled=wanted)
    with pytest.raises(InvalidInput, match="compile at least one"):
        mugraph.superoptimize(norm_linear, (drawn(4, 24),), compiled=wanted, dynamic={0: {0: BATCH}})


def test_so_many_are_compiled_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    built = counted(monkeypatch, Qualifier, "_built")
    made = mugraph.superoptimize(norm_linear, (drawn(4, 24),), cache="off", compiled=2, budget=600.0)
    assert len(built) == 2
    assert made.report.proposed == 2
    assert math.isfinite(made.best.cost or math.inf)


def test_no_more_are_compiled_than_asked_for_whatever_the_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    x, settings = drawn(24, 24), dict[str, Any](cache="off", budget=600.0)
    forms = {form_of(graph): graph for graph in (construct(each.graph) for each in candidates(24))}
    another = mugraph.superoptimize(torch.softmax, (drawn(4, 8), 1), profile=False)
    likes = list(forms.values())
    built = counted(monkeypatch, Qualifier, "_built")
    for like, most in ((likes, 2), ([another.graph], 1), ([another.graph, *likes[:2]], 1)):
        built.clear()
        mugraph.superoptimize(norm_linear, (x,), like=like, compiled=most, **settings)
        assert len(built) == most
    found = candidates(24)
    assert [form_of(construct(each.graph)) for each in of_forms(found, likes, another.graph, most=2)] == [*forms][:2]
    assert of_forms(found, [another.graph], trace(norm_linear, (x,)).graph, most=1) == found[:1]


def test_no_more_are_compiled_than_asked_for_by_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    built = counted(monkeypatch, Qualifier, "_built")
    made = mugraph.superoptimize(lambda x: torch.softmax(x, -1), (drawn(4, 8),), cache="off", search="enumerate", compiled=1)
    assert made.report.proposed > len(built) == 1


def test_a_result_in_pieces_is_no_form_among_several() -> None:
    pieces = mugraph.superoptimize(lambda x: torch.sort(norm_linear(x)).values, (drawn(4, 24),), profile=False, cache="off")
    assert not pieces.is_one_program
    graph = trace(norm_linear, (drawn(4, 24),)).graph
    with pytest.raises(InvalidInput, match="give a result in pieces alone"):
        mugraph.superoptimize(norm_linear, (drawn(4, 24),), like=[graph, pieces])
    with pytest.raises(InvalidInput, match="not a int"):
        mugraph.superoptimize(norm_linear, (drawn(4, 24),), like=[graph, 3])  # type: ignore[list-item]
