"""Calls that were recorded at two sizes, with a symbol in their place: what operators ask of it must hold at every size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx

from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.one_symbol import OneSymbol
from mugraph.sizes.symbolic_calls import check_calls

Planted = Callable[[Callable[[int], bool]], torch._ops.OpOverload]


@pytest.fixture
def planted() -> Iterator[Planted]:
    """An elementwise operator of ATen that PyTorch does not have, which gives its operand's shape where a question about its rows
    is answered with yes, and another shape elsewhere."""
    library: Any = torch.library.Library("aten", "FRAGMENT")  # type: ignore[no-untyped-call]  # PyTorch says no types

    def plant(question: Callable[[int], bool]) -> torch._ops.OpOverload:
        def shaped(x: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(x) if question(x.shape[0]) else x.new_empty(1)

        library.define("planted_by_a_test(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
        library.impl("planted_by_a_test", shaped, "Meta")
        return torch.ops.aten.planted_by_a_test.default

    yield plant
    library._destroy()


def called_at(operator: torch._ops.OpOverload, rows: int) -> fx.GraphModule:
    """A call with tensors of so many rows."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(rows, 4, device="meta")
    y = graph.call_function(operator, (x,))
    y.meta["val"] = operator(x.meta["val"])
    graph.output((y,))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    "question",
    [
        lambda n: n < 100,
        lambda n: n > 3,
        lambda n: 4 * n != 400,
        lambda n: n % 3 != 0,
        lambda n: n * n <= 5000,
        lambda n: 2 * n >= 8,
    ],
    ids=["below 100", "above 3", "not 100", "no multiple of 3", "squared", "twice"],
)
def test_an_operator_that_does_something_else_at_other_sizes_is_found(planted: Planted, question: Callable[[int], bool]) -> None:
    """It does the same at both sizes that are recorded, and at the number that stands for the symbol."""
    operator = planted(question)
    said = r"planted_by_a_test: it (asks whether .*, which is not so at all sizes|makes something else of sizes from \d+)"
    with pytest.raises(SizeMatters, match=said):
        check_calls(called_at(operator, 5), 5, called_at(operator, 7), 7)


@pytest.mark.parametrize("question", [lambda n: n >= 2, lambda n: 3 * n > 5, lambda n: n != 0], ids=["from 2", "thrice", "not 0"])
def test_what_holds_at_every_size_may_be_asked(planted: Planted, question: Callable[[int], bool]) -> None:
    operator = planted(question)
    axes = check_calls(called_at(operator, 5), 5, called_at(operator, 7), 7)
    assert [*axes.values()][:2] == [0, 0]


@pytest.mark.parametrize("high", [2, 3, 8, 99, 100])
def test_what_holds_in_the_range_may_be_asked(planted: Planted, high: int) -> None:
    operator = planted(lambda n: n < 100)
    graphs = called_at(operator, 5), 5, called_at(operator, 7), 7
    if high < 100:
        assert [*check_calls(*graphs, high).values()][:2] == [0, 0]
    else:
        with pytest.raises(SizeMatters, match="it makes something else of sizes from 100 to 100 than of from 2 to 99"):
            check_calls(*graphs, high)


@pytest.mark.parametrize("question", [lambda n: n < 100, lambda n: 2 < n < 50, lambda n: n == 61])
def test_what_is_asked_may_make_no_difference(question: Callable[[int], bool]) -> None:
    """As the size of a batch by which PyTorch chooses a library."""
    symbol, asked = OneSymbol(), list[bool]()

    def asks(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        asked.append(bool(question(x.shape[0])))
        return torch.relu(x).reshape(-1), 2 * x.shape[0]

    made, number = symbol.called(asks, (symbol.like(torch.empty(1), (symbol.size, 4)),), {})
    assert {*asked} == {False, True}
    assert [str(size) for size in (*made.shape, number)] == [f"4*{symbol.size}", f"2*{symbol.size}"]
    assert bool(symbol.size < 100), "asks for the first time: it was not narrowed before"


def test_an_answer_narrows_no_question_behind_it() -> None:
    """Fewer than 100 or not, which makes no difference, and then fewer than 200 or not, which does."""
    symbol = OneSymbol()
    x = symbol.like(torch.empty(1), (symbol.size, 4))
    symbol.called(lambda x: x * 2 if x.shape[0] < 100 else x * 3, (x,), {})
    with pytest.raises(SizeMatters, match="makes something else of sizes"):
        symbol.called(lambda x: x * 2 if x.shape[0] < 200 else x.sum(0), (x,), {})


def test_as_many_answers_as_sizes_are_too_many() -> None:
    symbol = OneSymbol()
    x = symbol.like(torch.empty(1), (symbol.size,))
    with pytest.raises(SizeMatters, match="it asks whether"):
        symbol.called(lambda x: next(x for size in range(2, 80) if x.shape[0] <= size), (x,), {})
