"""Which functions are one masked graph at every size of a dimension, and why others are not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.sizes.capacities import capacities
from mugraph.sizes.dims import Declared, Dim
from mugraph.sizes.masked_functions import MaskedFunction, masked_function

KEYS = Dim("keys", 1, 30)
ROWS = 6
WEIGHT = torch.randn(8, 8)


def made(fn: Callable[..., Any], *inputs: torch.Tensor, dim: Dim = KEYS) -> MaskedFunction:
    """The function on examples, whose dimensions of size ROWS vary."""
    places = {number: [place for place, size in enumerate(each.shape) if size == ROWS] for number, each in enumerate(inputs)}
    declared = Declared.of({number: dict.fromkeys(found, dim) for number, found in places.items() if found})
    return masked_function(fn, declared, inputs, {})


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: torch.Tensor) -> dict[str, torch.Tensor]:
    k, v = torch.cat([k, new], 1), torch.cat([v, new], 1)
    return {"y": F.scaled_dot_product_attention(q, k, v) @ WEIGHT, "k": k}


EXAMPLE = torch.randn(2, 1, 8), torch.randn(2, ROWS, 8), torch.randn(2, ROWS, 8), torch.randn(2, 1, 8)


@pytest.fixture(scope="module")
def found() -> MaskedFunction:
    return made(decode, *EXAMPLE)


def test_calls_are_put_into_the_graph_and_taken_out(found: MaskedFunction) -> None:
    assert found.claim.startswith("for every size from 1 to 30 of keys: ")
    assert 1 in found.sizes
    runner = found.runner(32)
    for size in (1, 2, 29, 30):
        q, k, v, new = torch.randn(2, 1, 8), torch.randn(2, size, 8), torch.randn(2, size, 8), torch.randn(2, 1, 8)
        there, inputs = found.flatten((q, k, v, new), {})
        assert there == size
        torch.testing.assert_close(found.unflatten(runner(size, inputs)), decode(q, k, v, new))


def test_results_that_are_the_same_of_one_element_are_compared_one_by_one() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.mean(0), (x * x).sum(0), x.amax(0)

    found = made(both, torch.randn(ROWS, 8))
    for size in (1, 4):
        x = torch.randn(size, 8)
        torch.testing.assert_close(found.unflatten(found.runner(9)(size, [x])), both(x))


def test_what_a_function_brings_along_is_read_as_it_is_then() -> None:
    weight = torch.randn(8)
    scaled = made(lambda x: (x * weight).sum(0), torch.randn(ROWS, 8))
    x = torch.randn(4, 8)
    weight.mul_(2)
    torch.testing.assert_close(scaled.unflatten(scaled.runner(9)(4, [x])), (x * weight).sum(0))


@pytest.mark.parametrize("fn", [lambda x: x.log().sum(0), lambda x: x.sqrt().mean(0), lambda x: (x * 3).log2().amax(0)])
def test_functions_of_positive_numbers_are_masked(fn: Callable[..., Any]) -> None:
    """Of others they give NaN, with masks and without."""
    found = made(fn, torch.rand(ROWS, 8) + 1)
    x = torch.rand(4, 8) + 1
    torch.testing.assert_close(found.unflatten(found.runner(9)(4, [x])), fn(x))


def test_random_numbers_of_others_stay_what_they_are() -> None:
    state = torch.random.get_rng_state()
    made(lambda x: x.exp().sum(0), torch.ones(ROWS, 8))
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("shapes", "error", "match"),
    [
        (((2, 1, 8), (2, 31, 8), (2, 31, 8), (2, 1, 8)), ShapeMismatch, "keys has size 31, declared from 1 to 30"),
        (((2, 1, 8), (2, 0, 8), (2, 0, 8), (2, 1, 8)), ShapeMismatch, "keys has size 0, declared from 1 to 30"),
        (((2, 1, 8), (2, 4, 8), (2, 5, 8), (2, 1, 8)), ShapeMismatch, "keys has sizes 4, 5 in one call"),
        (((2, 1, 8), (3, 4, 8), (2, 4, 8), (2, 1, 8)), ShapeMismatch, r"input 1 is .*wanted is .* of \[2, 4, 8\]"),
        (((2, 1, 8), (2,), (2,), (2, 1, 8)), ShapeMismatch, "no dimension for keys"),
        (((2, 1, 8), (2, 4, 8), (2, 4, 8)), InvalidInput, "structure of the example call"),
    ],
)
def test_calls_that_do_not_fit_say_why(
    found: MaskedFunction, shapes: tuple[tuple[int, ...], ...], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        found.flatten(tuple(map(torch.randn, shapes)), {})


@pytest.mark.parametrize(
    ("fn", "match"),
    [
        (lambda x: x.sum(0) if x.shape[0] != 7 else x.amax(0), "cannot be recorded with a symbol"),
        (lambda x: x.sum(0) * (2 if x.shape[0] == 1 else 1), "size 1 is another|cannot be recorded"),
        (lambda x: x.sum(0) / x.shape[0], "depends on the size"),
        (lambda x: x.flip(0).cumsum(0).sum(0), "acts along the axis"),
        (lambda x: x.exp(), "nothing is reduced"),
        (lambda x: x.mul_(2).sum(0), "it changes a tensor"),
        (lambda x: (x.sum(0), x), "returns views of tensors"),
        (lambda x: (x.sum(0), x.T), "returns views of tensors"),
        (lambda x: (x.sum(0), 3), "something else than tensors"),
        (lambda x: (x.sum(0), x.shape[0]), "."),
        (lambda x: (x + torch.rand_like(x)).sum(0), "random"),
        (lambda x: torch.cat([x[:, :2].T, torch.ones(2, 1)], 1).reshape(-1, 2).sum(0), "does not stay whole"),
    ],
)
def test_what_depends_on_the_size_otherwise_is_refused(fn: Callable[..., Any], match: str) -> None:
    with pytest.raises(SizeMatters, match=match):
        made(fn, torch.randn(ROWS, 8))


def test_named_arguments_come_in_any_order() -> None:
    x, w = torch.randn(ROWS, 8), torch.randn(8)
    declared = Declared.of({"x": {0: Dim("keys", 1, 30)}})
    found = masked_function(lambda x, w: (x.softmax(0) * w).sum(0), declared, (), {"x": x, "w": w})
    for named in ({"x": x, "w": w}, {"w": w, "x": x}):
        size, given = found.flatten((), named)
        assert size == ROWS
        assert [each is other for each, other in zip(given, (w, x), strict=True)] == [True, True]


@pytest.mark.parametrize("more", [0, 1, 3])
@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 31), (1, 32), (1, 33), (5, 100), (90, 100), (1, 4096), (700, 1000)])
def test_capacities_hold_all_sizes_and_are_not_far_apart(low: int, high: int, more: int) -> None:
    sizes = list(capacities(low, high, more, 32))
    assert sizes == sorted(set(sizes), reverse=True)
    assert high <= sizes[0] <= max(1.25 * high, high + 4)
    assert all(low <= size for size in sizes)
    assert all(2.7 * (smaller + more) >= larger + more for larger, smaller in pairwise(sizes))


@pytest.mark.parametrize("brings", [False, True])
def test_each_program_is_recorded_once(monkeypatch: pytest.MonkeyPatch, brings: bool) -> None:
    """The function and the recorded calls at each size that is compared, and the masked ones; what a function is seen to bring
    along is an input the first time."""
    weight = torch.randn(8) if brings else 2
    real, seen = torch.export.export, list[bool]()

    def export(*given: Any, **named: Any) -> Any:
        seen.append("dynamic_shapes" in named)
        return real(*given, **named)

    monkeypatch.setattr(torch.export, "export", export)
    declared = Declared.of({0: {1: Dim("keys", 1, 64)}})
    found = masked_function(lambda x: x.softmax(1) * weight, declared, (torch.randn(8, 8, 1),), {})
    assert seen.count(True) == 1
    assert seen.count(False) == 1 + 2 * len(found.sizes)
