"""Calling a program like the function it came from: arguments in, structures out, and words for calls that do not fit."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch

import mugraph
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend import trace
from mugraph.frontend.calls import pytree
from mugraph.frontend.calls.calling import Positional, structure_of
from mugraph.frontend.calls.pytree import Traced

from ..agreement import assert_agrees, random

X, Y = random(3, 4, seed=1), random(3, 4, seed=2)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def scaled(x: torch.Tensor, y: torch.Tensor, scale: float = 2.0, *, flip: bool = False) -> torch.Tensor:
    return (y - x if flip else x - y) * scale


RESULTS: list[Any] = [
    lambda x, y: x + y,
    lambda x, y: (x + y,),
    lambda x, y: [x, x + y, x - y],
    lambda x, y: {"sum": x + y, "parts": (x * 2, [y * 3])},
    lambda x, y: (x + y, None, 3, "text"),
    lambda x, y: Pair(x * y, x + 1),
    lambda x, y: (x + y, x + y, y + x),
    lambda x, y: (x + y, x.shape, {"size": y.size()}),
]


@pytest.mark.parametrize("fn", RESULTS)
def test_results_have_the_structure_of_the_functions(fn: Any) -> None:
    assert_agrees(fn, X, Y)


def test_a_result_that_occurs_twice_is_computed_once() -> None:
    traced = trace(lambda x, y: (x + y, x * y, y + x), (X, Y))
    assert len(traced.graph.outputs) == 2
    first, product, second = traced.unflatten([X, Y])
    assert (first is X, product is Y) == (True, True)
    assert second is not X, "two tensors in PyTorch: a change of one must not show in the other"
    assert torch.equal(second, X)


def test_a_structure_can_be_saved() -> None:
    traced = trace(lambda x, y: {"a": x + y, "b": [x * y, None, x.shape]}, (X, Y))
    restored = Positional(traced.graph, structure_of(traced, 2))
    given = {"a": "sum", "b": ["product", None, tuple(X.shape)]}
    assert restored.unflatten(["sum", "product"]) == traced.unflatten(["sum", "product"]) == given


def test_sizes_are_returned_as_sizes() -> None:
    optimized = mugraph.superoptimize(lambda x: (x.shape, x * 2), (X,), budget=5.0, profile=False, cache="off")
    assert type(optimized(X)[0]) is torch.Size


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, Y), {}),
        ((X, Y, 3.0), {}),
        ((X,), {"y": Y}),
        ((), {"y": Y, "x": X, "scale": 0.5}),
        ((X, Y), {"flip": True}),
    ],
)
def test_positional_keyword_and_default_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert assert_agrees(scaled, *args, **kwargs).graph.input_names == ("x", "y")


def test_containers_of_tensors_are_arguments_too() -> None:
    def total(batch: dict[str, Any], *rest: torch.Tensor) -> torch.Tensor:
        left, right = batch["pair"]
        sum: torch.Tensor = left + right + batch["bias"] + rest[0]
        return sum

    traced = assert_agrees(total, {"pair": (X, Y), "bias": X[0]}, Y)
    assert traced.graph.input_names == ("batch.pair.0", "batch.pair.1", "batch.bias", "rest.0")


def test_functions_without_a_signature_have_numbered_arguments() -> None:
    assert assert_agrees(torch.mul, X, Y).graph.input_names == ("argument0", "argument1")


def test_a_lone_tensor_and_a_mapping_are_example_inputs() -> None:
    assert trace(lambda x: x.exp(), X).graph.input_names == ("x",)
    assert trace(scaled, {"x": X, "y": Y}).graph.input_names == ("x", "y")


@pytest.fixture(scope="module")
def traced() -> Traced:
    return trace(scaled, (X, Y))


def test_a_call_may_name_its_arguments(traced: Traced) -> None:
    assert traced.flatten((X,), {"y": Y})[1] is Y
    assert traced.flatten((X, Y, 2.0), {"flip": False})[0] is X


def test_gradients_are_left_behind(traced: Traced) -> None:
    tensors = traced.flatten((X.clone().requires_grad_(), Y), {})
    assert not any(tensor.requires_grad for tensor in tensors)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "words"),
    [
        ((X, Y[:2]), {}, ShapeMismatch, r"argument y is torch.float64 \[2, 4\], optimized for torch.float64 \[3, 4\]"),
        ((X.float(), Y), {}, ShapeMismatch, r"argument x is torch.float32 \[3, 4\], optimized for torch.float64"),
        ((X, Y, 3.0), {}, InvalidInput, "argument scale was 2.0 when optimized, not 3.0"),
        ((X, Y), {"flip": True}, InvalidInput, "argument flip was False"),
        ((X, 1.0), {}, InvalidInput, "argument y must be a torch tensor, not float"),
        (
            (X, [Y]),
            {},
            InvalidInput,
            "argument y consists of other parts now: call with the same .* optimized: x, y, scale, flip",
        ),
        (
            (X, Y, Y),
            {},
            InvalidInput,
            r"^argument scale was 2.0 when optimized, not a Tensor of torch.float64 \[3, 4\]; optimize again$",
        ),
        ((X, Y, "long\n" * 99), {}, InvalidInput, r"not .long\\n.{60,90}\.\.\.; optimize again$"),
        ((X,), {}, InvalidInput, "missing a required argument: 'y'"),
        ((X, Y), {"alpha": 1}, InvalidInput, "unexpected keyword argument 'alpha'"),
    ],
)
def test_a_call_that_does_not_fit_is_told_why(traced: Traced, args: Any, kwargs: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        traced.flatten(args, kwargs)


def test_positional_calls_of_tensors_are_checked_too() -> None:
    traced = trace(lambda x, y: x + y, (X, Y))
    with pytest.raises(InvalidInput, match="argument y must be a torch tensor"):
        traced.flatten((X, 2.0), {})
    with pytest.raises(InvalidInput, match="too many positional"):
        traced.flatten((X, Y, X), {})


class Merging(torch.nn.Module):
    """As models of transformers are: a name that is not given is set by what calls `forward`, which takes any arguments."""

    def inner(self, x: torch.Tensor, y: torch.Tensor | None = None, scale: float | None = None) -> torch.Tensor:
        return x

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return scaled_sum(*args, **{**kwargs, "scale": kwargs.get("scale") or 3.0})

    forward.__signature__ = inspect.signature(inner)  # type: ignore[attr-defined]


def scaled_sum(x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
    return x * scale if y is None else (x + y) * scale


def test_arguments_are_positional_where_the_call_gives_them_so() -> None:
    assert_agrees(Merging(), X)
    assert_agrees(Merging(), x=X)
    assert_agrees(Merging(), X, y=Y)
    assert_agrees(Merging(), y=Y, x=X)


def before_others(x: torch.Tensor, y: torch.Tensor = Y, /, z: float = 2.0, *more: torch.Tensor, w: float = 1.0) -> torch.Tensor:
    return sum(more, start=x * z + y * w)


def test_defaults_of_all_kinds_of_parameters_are_given() -> None:
    assert_agrees(before_others, X)
    assert_agrees(before_others, X, w=3.0)
    assert_agrees(before_others, X, Y, z=3.0)
    assert_agrees(before_others, X, Y, 3.0, X, Y)


def test_calls_by_position_need_no_binding_while_default_values_are_those_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled_again(x: torch.Tensor, scale: float = 0.5, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x * scale if mask is None else x * mask

    def chosen(x: torch.Tensor, scales: list[float] = [2.0]) -> torch.Tensor:  # noqa: B006  # which may change
        return x * scales[0]

    calls = [trace(each, (X,)) for each in (scaled_again, chosen)]
    bound: list[object] = []
    bind = pytree._bind

    def told(fn: Any, *others: Any) -> inspect.BoundArguments:
        bound.append(fn)
        return bind(fn, *others)

    monkeypatch.setattr(pytree, "_bind", told)
    assert [each.flatten((X,), {})[0] is X for each in calls] == [True, True]
    assert bound == [chosen]
    assert [each.plain((X,), {}) is None for each in calls] == [False, True]
    with pytest.raises(ShapeMismatch, match="argument x"):
        calls[0].flatten((X[:1],), {})
    scaled_again.__defaults__ = (0.25, None)
    with pytest.raises(InvalidInput, match=r"argument scale was 0\.5 when optimized, not 0\.25"):
        calls[0].flatten((X,), {})
    assert chosen.__defaults__ is not None
    chosen.__defaults__[0][0] = 3.0
    with pytest.raises(InvalidInput, match="argument scales"):
        calls[1].flatten((X,), {})


def test_keywords_of_a_partial_that_are_changed_in_place_are_others() -> None:
    def scaled_by(x: torch.Tensor, scale: float = 2.0, **more: float) -> torch.Tensor:
        return x * scale + sum(more.values())

    def added_to(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x + w

    inner = partial(scaled_by, scale=0.5)
    vars(inner)["told"] = True  # or those outside of it would be put together with it
    named, nested, empty = partial(scaled_by, scale=0.5), partial(inner), partial(scaled_by)
    calls = [trace(each, (X,)) for each in (named, nested, empty)]
    assert [each.flatten((X,), {})[0] is X for each in calls] == [True, True, True]
    assert [len(each.plain((X,), {}) or ()) for each in calls] == [1, 1, 1]
    named.keywords["scale"] = inner.keywords["scale"] = 0.25
    for each in calls[:2]:
        assert each.plain((X,), {}) is None
        with pytest.raises(InvalidInput, match=r"argument scale was 0\.5 when optimized, not 0\.25"):
            each.flatten((X,), {})
    named.keywords["scale"] = 0.5
    assert calls[0].flatten((X,), {})[0] is X
    del named.keywords["scale"]
    empty.keywords["shift"] = 1.0
    with pytest.raises(InvalidInput, match=r"argument scale was 0\.5 when optimized, not 2\.0"):
        calls[0].flatten((X,), {})
    with pytest.raises(InvalidInput, match="call with the same arguments as when optimized"):
        calls[2].flatten((X,), {})
    shifted = partial(scaled_by, shift=1.0)
    call = assert_agrees(shifted, X)
    shifted.keywords["shift"] = 3.0
    with pytest.raises(InvalidInput, match=r"argument shift was 1\.0 when optimized, not 3\.0"):
        call.flatten((X,), {})
    held = partial(added_to, w=Y)
    traced = trace(held, (X,))
    assert traced.flatten((X,), {})[1] is Y
    held.keywords["w"] = X
    assert traced.flatten((X,), {})[1] is X


def test_empty_default_values_that_are_filled_or_replaced_are_others() -> None:
    """No leaf stands in an empty list, so that a call by position has as many tensors as the example has leaves."""

    def sum_with(x: torch.Tensor, more: list[float] = []) -> torch.Tensor:  # noqa: B006  # which may change
        return x + sum(more)

    def sum_of(x: torch.Tensor, more: tuple[float, ...] = ()) -> torch.Tensor:
        return x + sum(more)

    calls = [trace(each, (X,)) for each in (sum_with, sum_of)]
    assert [each.flatten((X,), {})[0] is X for each in calls] == [True, True]
    assert sum_with.__defaults__ is not None
    sum_with.__defaults__[0].append(3.0)
    sum_of.__defaults__ = ((3.0,),)
    for each in calls:
        assert each.plain((X,), {}) is None
        with pytest.raises(InvalidInput, match="argument more consists of other parts now"):
            each.flatten((X,), {})
