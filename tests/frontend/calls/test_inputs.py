"""What an input is: every argument and captured tensor is one of its own, and of the examples only shapes stay in a program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch, UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.calls.calling import Positional, structure_of
from mugraph.frontend.calls.pytree import Traced
from pairwise import pairwise

from ..agreement import random, run

X, Y, Z, W = random(4, 4, seed=1), random(4, 4, seed=2), random(4, 4, seed=3), random(4, 4, seed=4)
NUMBER = torch.tensor(2.0, dtype=torch.float64)
MEMORY = random(8, 8, seed=5)


def called(traced: Traced, *args: Any, **kwargs: Any) -> Any:
    return traced.call(lambda *tensors: run(traced.graph, tensors), *args, **kwargs)


def assert_like_eager(traced: Traced, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    ours, theirs = tree_leaves(called(traced, *args, **kwargs)), tree_leaves(fn(*args, **kwargs))
    for got, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, wanted.detach() if isinstance(wanted, torch.Tensor) else wanted, rtol=1e-12, atol=1e-12)


# --- calls that are not like the example ---------------------------------------------------------------------------------


def attention(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(a @ b, -1)


def captured(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ W + b


def in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = a @ b
    y += a
    return y


def nested(a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    return {"difference": a - b, "rest": [a.t() @ b, 3]}


CALLS: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "one tensor twice": (X, X),
    "two tensors": (X, Z),
    "two tensors, turned": (Z, X),
    "what is captured": (W, X),
    "what is captured, twice": (W, W),
    "a view and its base": (X, X.t()),
    "transposed": (X.t(), Y.t()),
    "parts of one memory": (MEMORY[:4, :4], MEMORY[4:, 4:]),
    "parts that overlap": (MEMORY[:4, :4], MEMORY[1:5, 1:5]),
    "every other element": (MEMORY[::2, ::2], MEMORY[1::2, ::2]),
    "expanded rows": (X[:1].expand(4, 4), Y),
    "expanded columns": (X[:, :1].expand(4, 4), Y[:, 1:2].expand(4, 4)),
    "an expanded number": (NUMBER.expand(4, 4), X),
    "windows": (MEMORY.flatten().as_strided((4, 4), (1, 1)), X),
    "gradients asked for": (X.clone().requires_grad_(), nn.Parameter(Y.clone())),
    "conjugate's imaginary part": (torch.complex(X, Y).conj().imag, Y),
    "large and small": (X * 1e100, Y * 1e-100),
}
EXAMPLES = {"one tensor": (X, X), "two": (X, Y), "transposed": (X.t(), X), "expanded": (X[:1].expand(4, 4), X[:1].expand(4, 4))}


@pytest.fixture(scope="module")
def traces() -> Callable[..., Traced]:
    @functools.cache
    def traced(fn: Callable[..., Any], example: str) -> Traced:
        return trace(fn, EXAMPLES[example])

    return traced


@pairwise(example=list(EXAMPLES), fn=[attention, captured, in_place, nested], call=list(CALLS))
def test_calls_unlike_the_example(traces: Callable[..., Traced], fn: Any, example: str, call: str) -> None:
    assert_like_eager(traces(fn, example), fn, *CALLS[call])


@pytest.mark.parametrize(
    ("fn", "examples", "calls"),
    [
        (lambda d: d["a"] - d["b"], ({"a": X, "b": X},), ({"b": Y, "a": Z},)),
        (lambda p: p[0] - p[1], ([X, X],), ([Y, Z],)),
        (lambda *p: p[0] - p[1], (X, X), (Y, Z)),
        (lambda x, number: x * number, (X, NUMBER), (Y, NUMBER + 1)),
        (lambda x, number: x * number, (X, X), (Y, Z)),
    ],
)
def test_containers_and_numbers_in_tensors(fn: Any, examples: Any, calls: Any) -> None:
    assert_like_eager(trace(fn, examples), fn, *calls)


def test_keywords_in_another_order() -> None:
    def difference(**named: torch.Tensor) -> torch.Tensor:
        return named["a"] - named["b"]

    traced = trace(difference, {"a": X, "b": X})
    assert_like_eager(traced, difference, b=Y, a=Z)


# --- what a function captures ---------------------------------------------------------------------------------------------


class Tied(nn.Module):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False).double(), nn.Linear(4, 4, bias=False).double()
        self.b.weight = self.a.weight
        self.plain = torch.ones(4, dtype=torch.float64)
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.b(self.a(x))
        return product * self.scale + self.plain


def test_tied_weights_are_one_input_and_may_change_together() -> None:
    model = Tied()
    traced = trace(model, X)
    assert len(traced.sources) == 3
    model.a.weight = model.b.weight = nn.Parameter(W.clone())
    assert_like_eager(traced, model, X)


def untied(model: Tied) -> None:
    model.b.weight = nn.Parameter(W.clone())


def untied_as_a_module(model: Tied) -> None:
    model.b = nn.Linear(4, 4, bias=False).double()


def of_another_shape(model: Tied) -> None:
    model.scale = torch.ones(1, dtype=torch.float64)


def of_another_dtype(model: Tied) -> None:
    model.plain = torch.ones(4)


def removed(model: Tied) -> None:
    del model.plain


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (untied, InvalidInput, "a.weight and b.weight were one tensor when the function was traced"),
        (untied_as_a_module, InvalidInput, "a.weight and b.weight were one tensor"),
        (
            of_another_shape,
            ShapeMismatch,
            r"tensor scale of the function is torch.float64 \[1\], optimized for torch.float64 \[4\]",
        ),
        (of_another_dtype, ShapeMismatch, r"tensor plain of the function is torch.float32 \[4\]"),
        (removed, InvalidInput, "plain was a tensor when the function was traced, and is none now"),
    ],
)
def test_what_no_longer_holds_is_named(change: Callable[[Tied], None], error: type[MugraphError], words: str) -> None:
    model = Tied()
    traced = trace(model, X)
    change(model)
    with pytest.raises(error, match=words):
        traced.flatten((X,), {})


@dataclass
class Holder:
    weight: torch.Tensor

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_tensors_that_are_replaced_are_seen() -> None:
    holder, table, weight = Holder(X), {"w": [X]}, X

    def closure(x: torch.Tensor) -> torch.Tensor:
        return x @ weight

    def default(x: torch.Tensor, w: torch.Tensor = X) -> torch.Tensor:
        return x @ w

    def keyword(x: torch.Tensor, *, w: torch.Tensor = X) -> torch.Tensor:
        return x @ w

    functions = [holder.apply, lambda x: x @ table["w"][0], closure, default, keyword]
    traces = [trace(fn, (X,)) for fn in functions]
    holder.weight = table["w"][0] = weight = Y
    default.__defaults__ = (Y,)
    assert keyword.__kwdefaults__ is not None
    keyword.__kwdefaults__["w"] = Y
    for traced, fn in zip(traces, functions, strict=True):
        assert_like_eager(traced, fn, X)
        torch.testing.assert_close(called(traced, X), X @ Y)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * W.sum().item(),
        lambda x: x * float(NUMBER),
        lambda x: x * NUMBER.tolist(),
        lambda x: x * W.numpy()[0, 0],
        lambda x: x if torch.equal(W, W) else -x,
        lambda x: x if torch.equal(x, W) else -x,
        lambda x: x if torch.allclose(x, x) else -x,
        lambda x: x if NUMBER > 1 else -x,
        lambda x: x if bool((x == x).all()) else -x,
        lambda x: torch.add(x, x, alpha=NUMBER),  # type: ignore[call-overload]
        lambda x: x.sum(int(NUMBER) - 1),
        lambda x: x if x.data_ptr() else -x,
    ],
)
def test_values_of_tensors_do_not_become_part_of_a_program(fn: Any) -> None:
    with pytest.raises((UnsupportedOperator, InvalidInput)):
        trace(fn, (X,))


def test_sizes_are_an_argument_like_any_other() -> None:
    traced = trace(lambda x, options: x.reshape(options["sizes"]) * 2, (X, {"sizes": torch.Size([2, 8])}))
    assert torch.equal(called(traced, Y, {"sizes": torch.Size([2, 8])}), Y.reshape(2, 8) * 2)
    with pytest.raises(InvalidInput, match=r"sizes was .*2, 8.* when optimized, not .*8, 2"):
        traced.flatten((Y, {"sizes": torch.Size([8, 2])}), {})


def test_whether_gradients_are_asked_for_is_no_input() -> None:
    fn = lambda x: x if x.requires_grad else -x  # noqa: E731
    assert torch.equal(called(trace(fn, (X.clone().requires_grad_(),)), Y), -Y)


def test_a_function_that_asks_for_strides_relies_on_them() -> None:
    traced = trace(lambda x: x * 2 if x.is_contiguous() else x * 3, (X,))
    assert torch.equal(called(traced, Y), Y * 2)
    with pytest.raises(InvalidInput, match=r"x has strides \[1, 4\], optimized for \[4, 1\]"):
        traced.flatten((Y.t(),), {})


def _halved(x: torch.Tensor, flat: Callable[[torch.Tensor], torch.Tensor], change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    y = x / 2
    change(flat(y))
    return y


@pytest.mark.parametrize(
    "flat",
    [
        lambda y: y.reshape(16),
        lambda y: torch.reshape(input=y, shape=(-1,)),
        torch.Tensor.flatten,
        torch.ravel,
        torch.Tensor.contiguous,
        lambda y: y.to(memory_format=torch.contiguous_format),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_what_is_changed_through_a_copy_that_strides_decide_about_relies_on_them(flat: Any, turned: bool) -> None:
    for change in (lambda z: z.mul_(3), lambda z: torch.nn.functional.relu(z, inplace=True)):
        fn = functools.partial(_halved, flat=flat, change=change)
        example, other = (X.t(), X) if turned else (X, X.t())
        traced = trace(fn, (example,))
        assert_like_eager(traced, fn, example)
        with pytest.raises(InvalidInput, match=r"x has strides .* returns or changes depends on them"):
            traced.flatten((other,), {})


@pytest.mark.parametrize(
    "change",
    [
        lambda z: z.mul_(3),
        lambda z: z.__imul__(3),
        lambda z: torch.mul(z, 3, out=z),
        lambda z: z.__setitem__(0, z[1]),
        lambda z: torch.nn.functional.relu(z, inplace=True),
        lambda z: torch.nn.functional.leaky_relu(z, 0.1, True),
    ],
)
def test_tensors_without_versions_are_watched_too(change: Any) -> None:
    with torch.inference_mode():
        fn = functools.partial(_halved, flat=torch.Tensor.flatten, change=change)
        traced = trace(fn, (X,))
        assert_like_eager(traced, fn, X)
        with pytest.raises(InvalidInput, match=r"x has strides .* returns or changes depends on them"):
            traced.flatten((X.t(),), {})
        read = lambda x: (x / 2).flatten().sum(0, True)  # noqa: E731
        assert_like_eager(trace(read, (X,)), read, X.t())


def test_what_is_changed_or_copied_by_itself_does_not_rely_on_strides() -> None:
    def changed_before(x: torch.Tensor) -> torch.Tensor:
        y = x / 2
        y.mul_(3)
        return y.reshape(16).to(torch.float64) + x.reshape(16)

    traced = trace(changed_before, (X,))
    assert_like_eager(traced, changed_before, X.t())


class Settings:
    """An object as functions get their numbers in."""

    def __init__(self, by: float) -> None:
        self.by, self.itself = by, self
        self.more: dict[str, list[Any]] = {"shifts": [1.0, {2}]}


def test_an_object_that_changed_is_refused_by_the_name_of_what_did() -> None:
    settings = Settings(2.0)
    fn = lambda x, settings: x * settings.by + settings.more["shifts"][0]  # noqa: E731
    traced = trace(fn, (X, settings))
    assert_like_eager(traced, fn, Y, settings)
    assert_like_eager(traced, fn, Y, Settings(2.0))
    changes: list[tuple[Callable[[Settings], Any], str]] = [
        (lambda own: setattr(own, "by", 3.0), "settings.by was 2.0 when optimized, not 3.0"),
        (lambda own: setattr(own, "by", 2), "settings.by was 2.0 when optimized, not 2;"),
        (lambda own: own.more["shifts"].append(1), r"settings.more\['shifts'\] was 'a list of 2'"),
        (lambda own: own.more["shifts"][1].add(3), r"settings.more\['shifts'\]\[1\] was frozenset"),
        (lambda own: setattr(own, "other", 1), "settings was .*'other'"),
    ]
    for change, words in changes:
        own = Settings(2.0)
        change(own)
        with pytest.raises(InvalidInput, match=words):
            traced.flatten((Y, own), {})
    settings.by = 4.0  # the object of the example itself
    with pytest.raises(InvalidInput, match=r"settings.by was 2.0 when optimized, not 4.0"):
        traced.flatten((Y, settings), {})


class Slotted:
    """An object without attributes of its own."""

    __slots__ = ("weight",)

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight


def test_tensors_in_objects_that_nobody_looks_into_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"argument holder of .* holds tensors in a Slotted"):
        trace(lambda holder, x: holder.weight + x, (Slotted(X), Y))
    with pytest.raises(InvalidInput, match="returns a Slotted, into which PyTorch does not look"):
        trace(lambda x: (x + 1, Slotted(x)), (X,))


# --- results that share memory -----------------------------------------------------------------------------------------------


def shared(tensors: list[torch.Tensor]) -> list[tuple[bool, bool]]:
    """Of each pair of tensors, whether they are one, and whether they lie in one memory."""
    pairs = [(one, other) for index, one in enumerate(tensors) for other in tensors[:index]]
    return [(one is other, one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()) for one, other in pairs]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x + 1, x + 1),
        lambda x: (lambda y: (y, y))(x + 1),
        lambda x: (lambda y: (y, y.t(), y.view(16), y.t()[None]))(x + 1),
        lambda x: (lambda y: (y.t(), y))(x + 1),
        lambda x: (x, x + 0),
        lambda x: [x, x.t(), x.view(2, 8), x.expand(3, 4, 4)],
        lambda x: {"a": x.clone(), "b": x, "c": x * 1},
        lambda x: (x.contiguous(), x.reshape(16)),
        lambda x: (x[None], (x + 1)[None]),
        lambda x: W.t(),
        lambda x: (W, x @ W),
        lambda x: (torch.nn.functional.dropout(x, 0.5, training=False), x + 1),
        lambda x: (lambda y: (y, torch.nn.functional.dropout(y, 0.0)))(x + 1),
    ],
)
def test_results_share_memory_as_in_eager_pytorch(fn: Any) -> None:
    traced = trace(fn, (X,))
    assert_like_eager(traced, fn, Y)
    ours, theirs = tree_leaves(called(traced, Y)), tree_leaves(fn(Y))
    assert shared([*ours, Y, W]) == shared([*theirs, Y, W])


def test_two_views_of_what_is_not_returned_are_refused() -> None:
    with pytest.raises(InvalidInput, match="returns 2 views of one tensor; return clones"):
        trace(lambda x: (lambda y: (y.view(16), y.t()))(x + 1), (X,))


def test_views_of_arguments_rely_on_strides() -> None:
    traced = trace(lambda x: (x.reshape(16), x + 1), (X,))
    with pytest.raises(InvalidInput, match="x has strides"):
        traced.flatten((X.t(),), {})


def test_a_saved_structure_copies_equal_results() -> None:
    traced = trace(lambda x: (x + 1, x + 1), (X,))
    structure = structure_of(traced, 1)
    assert structure == {"tuple": [{"output": 0}, {"copy": 0}]}
    first, second = Positional(traced.graph, structure).unflatten([X])
    assert first is X
    assert second is not X
    with pytest.raises(InvalidInput, match="a view of another, or of an argument, cannot be saved"):
        structure_of(trace(lambda x: (lambda y: (y, y.t()))(x + 1), (X,)), 2)
