"""Families about what is no value: which tensor was captured, which argument is meant, how outputs are arranged, their types."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from mugraph.testing.pairs.pair import Function, Pair, Shape, Truth, family, pair, tensors

EQUAL, DIFFERENT, PART, NEARLY, EMPTY, READING = Truth

WEIGHTS: tuple[Shape, ...] = ((4, 3), (4, 4), (4, 1))


class _Scaled(torch.nn.Module):
    """A module whose weight is a buffer."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def _as_parameter(weight: torch.Tensor) -> Function:
    layer = torch.nn.Linear(weight.shape[0], weight.shape[1], bias=False)
    layer.weight = torch.nn.Parameter(weight.T.contiguous(), requires_grad=False)
    return layer


def _as_default(weight: torch.Tensor) -> Function:
    def fn(x: torch.Tensor, w: torch.Tensor = weight) -> torch.Tensor:
        return x @ w

    return fn


def _in_a_list(weight: torch.Tensor) -> Function:
    weights = [weight]
    return lambda x: x @ weights[0]


CAPTURES: dict[str, Callable[[torch.Tensor], Function]] = {
    "a closure": lambda weight: lambda x: x @ weight,
    "a parameter": _as_parameter,
    "a buffer": _Scaled,
    "a default": _as_default,
    "a partial": lambda weight: functools.partial(lambda w, x: x @ w, weight),
    "a list": _in_a_list,
}
"""Functions x @ weight that hold their weight in different ways."""


def _other(weight: torch.Tensor) -> torch.Tensor:
    return weight.flip(0) + 0.5


def _one_element(weight: torch.Tensor) -> torch.Tensor:
    changed = weight.clone()
    changed[-1, -1] += 1
    return changed


def _one_ulp(weight: torch.Tensor) -> torch.Tensor:
    changed = weight.clone()
    changed[0, 0] = torch.nextafter(changed[0, 0], torch.tensor(10.0))
    return changed


def _captured(change: Callable[[torch.Tensor], torch.Tensor], truth: Truth, **options: Any) -> Iterator[Pair]:
    for shape in WEIGHTS:
        (weight,) = tensors(shape)
        for note, hold in CAPTURES.items():
            made = pair(truth, f"{note} of {shape}", hold(weight), hold(change(weight)), (2, 4), **options)
            yield replace(made, by_values=not options)


@family("captured weights")
def the_same_weight() -> Iterator[Pair]:
    yield from _captured(lambda weight: weight, EQUAL)


@family("captured weights")
def a_copy_of_the_weight() -> Iterator[Pair]:
    yield from _captured(torch.clone, EQUAL)


@family("captured weights")
def another_weight() -> Iterator[Pair]:
    yield from _captured(_other, DIFFERENT)


@family("captured weights")
def a_weight_of_one_other_element() -> Iterator[Pair]:
    yield from _captured(_one_element, DIFFERENT)


@family("captured weights")
def a_weight_one_ulp_apart() -> Iterator[Pair]:
    yield from _captured(_one_ulp, DIFFERENT)


@family("captured weights")
def another_weight_asked_for_all_weights() -> Iterator[Pair]:
    yield from _captured(_other, EQUAL, for_all_weights=True)


@family("captured weights")
def one_weight_held_in_two_ways() -> Iterator[Pair]:
    for shape in WEIGHTS:
        (weight,) = tensors(shape)
        for note, hold in list(CAPTURES.items())[1:]:
            yield pair(EQUAL, f"a closure and {note} of {shape}", CAPTURES["a closure"](weight), hold(weight), (2, 4))
            yield pair(
                DIFFERENT,
                f"a closure and another weight in {note} of {shape}",
                CAPTURES["a closure"](weight),
                hold(_other(weight)),
                (2, 4),
            )


@family("captured weights")
def a_transposed_copy() -> Iterator[Pair]:
    for n in (2, 3, 4):
        (weight,) = tensors((n, n))
        turned = weight.T.contiguous()
        yield pair(EQUAL, f"turned back, {n}", lambda x, w=weight: x @ w, lambda x, w=turned: x @ w.T, (2, n))
        yield pair(DIFFERENT, f"not turned back, {n}", lambda x, w=weight: x @ w, lambda x, w=turned: x @ w, (2, n))
        yield pair(DIFFERENT, f"a view, {n}", lambda x, w=weight: x @ w, lambda x, w=weight.T: x @ w, (2, n))


@family("captured weights")
def two_weights_exchanged() -> Iterator[Pair]:
    for n in (2, 3, 5):
        first, second = tensors((n, n), (n, n))
        left = functools.partial(lambda a, b, x, y: x @ a + y @ b, first, second)
        yield pair(
            DIFFERENT, f"exchanged, {n}", left, functools.partial(lambda a, b, x, y: x @ a + y @ b, second, first), (2, n), (2, n)
        )
        yield pair(
            EQUAL,
            f"read in the other order, {n}",
            left,
            functools.partial(lambda b, a, x, y: y @ b + x @ a, second, first),
            (2, n),
            (2, n),
        )
        yield pair(
            DIFFERENT,
            f"one of them twice, {n}",
            left,
            functools.partial(lambda a, b, x, y: x @ a + y @ b, first, first),
            (2, n),
            (2, n),
        )
        yield pair(
            EQUAL,
            f"an equal second, {n}",
            left,
            functools.partial(lambda a, b, x, y: x @ a + y @ b, first, second.clone()),
            (2, n),
            (2, n),
        )


@family("captured weights")
def an_argument_and_a_captured_tensor() -> Iterator[Pair]:
    """The example of the argument is the tensor that the other function captures."""
    for shape in WEIGHTS:
        x, weight = tensors((2, 4), shape)
        for note, example in (("the same", weight), ("an equal one", weight.clone())):
            yield Pair(
                f"{note}, {shape}", lambda x, w: x @ w, lambda x, w, c=weight: x @ c + 0 * w.sum(), (x, example), DIFFERENT
            )


@family("captured weights")
def weights_of_known_values() -> Iterator[Pair]:
    for n in (2, 4):
        yield pair(EQUAL, f"ones, {n}", lambda x, w=torch.ones(n): x * w, lambda x: x, (3, n))
        yield pair(EQUAL, f"zeros, {n}", lambda x, w=torch.zeros(n): x + w, lambda x: x, (3, n))
        yield pair(EQUAL, f"the unit matrix, {n}", lambda x, w=torch.eye(n): x @ w, lambda x: x, (3, n))
        yield pair(DIFFERENT, f"a permutation, {n}", lambda x, w=torch.eye(n).flip(0): x @ w, lambda x: x, (3, n))
        yield pair(DIFFERENT, f"nearly ones, {n}", lambda x, w=torch.ones(n) + 2**-20: x * w, lambda x: x, (3, n))


@family("captured weights")
def weights_used_by_other_algebra() -> Iterator[Pair]:
    for n in (2, 3, 5):
        w, v = tensors((n, 4), (4, n))
        for name, other, truth in (("itself", v, EQUAL), ("another", v + 1, DIFFERENT), ("a copy", v.clone(), EQUAL)):
            yield pair(
                truth,
                f"{name}, {n}",
                functools.partial(lambda w, v, x: (x @ w) @ v, w, v),
                functools.partial(lambda w, v, x: x @ (w @ v), w, other),
                (3, n),
            )
        made = pair(
            EQUAL,
            f"for all weights, {n}",
            functools.partial(lambda w, v, x: (x @ w) @ v, w, v),
            functools.partial(lambda w, v, x: x @ (w @ v), w + 1, v + 1),
            (3, n),
            for_all_weights=True,
        )
        yield replace(made, by_values=False)
        made = pair(
            DIFFERENT,
            f"for all weights, another function, {n}",
            functools.partial(lambda w, v, x: (x @ w) @ v, w, v),
            functools.partial(lambda w, v, x: x @ (w @ v) * 2, w, v),
            (3, n),
            for_all_weights=True,
        )
        yield replace(made, by_values=False)


@family("captured weights")
def layers_and_their_copies() -> Iterator[Pair]:
    makers: dict[str, Callable[[], torch.nn.Module]] = {
        "Linear": lambda: torch.nn.Linear(4, 3),
        "LayerNorm": lambda: torch.nn.LayerNorm(4),
        "two layers": lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)),
    }
    for note, make in makers.items():
        torch.manual_seed(1)
        layer, other = make().eval(), make().eval()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(torch.linspace(0.1, 1, parameter.numel()).reshape(parameter.shape))
        yield pair(EQUAL, f"{note}: itself", layer, layer, (2, 4))
        yield pair(EQUAL, f"{note}: a copy", layer, copy.deepcopy(layer), (2, 4))
        yield pair(DIFFERENT, f"{note}: another", layer, other, (2, 4))
        yield replace(
            pair(EQUAL, f"{note}: another, for all weights", layer, other, (2, 4), for_all_weights=True), by_values=False
        )


@family("captured weights")
def captured_numbers() -> Iterator[Pair]:
    def scaled(by: float) -> Function:
        return lambda x: x * by

    for by, other in ((2.0, 3.0), (0.5, -0.5), (1.0, 1.0 + 2**-52), (1e-30, 2e-30)):
        yield pair(DIFFERENT, f"{by} and {other}", scaled(by), scaled(other), (3,))
        yield pair(EQUAL, f"{by} twice", scaled(by), lambda x, by=by: x + x * (by - 1) if by in (2.0, 0.5) else x * by, (3,))


# --- arguments ---------------------------------------------------------------------------------------------------------


def _aliased(truth: Truth, note: str, left: Function, right: Function, shape: Shape, how: str) -> Pair:
    (x,) = tensors(shape)
    second = {"one tensor": x, "a view": x.view(shape), "an equal tensor": x.clone()}[how]
    return Pair(f"{note}, {how}", left, right, (x, second), truth)


ALIASES = ("one tensor", "a view", "an equal tensor")


@family("aliasing")
def a_difference_of_aliased_examples() -> Iterator[Pair]:
    for how in ALIASES:
        for shape in ((3,), (2, 4)):
            yield _aliased(DIFFERENT, f"{shape}", lambda a, b: a - b, lambda a, b: a * 0 + b * 0, shape, how)
            yield _aliased(EQUAL, f"{shape} in order", lambda a, b: a - b, lambda a, b: -(b - a), shape, how)


@family("aliasing")
def a_square_of_aliased_examples() -> Iterator[Pair]:
    for how in ALIASES:
        yield _aliased(DIFFERENT, "product", lambda a, b: a * b, lambda a, b: a * a + 0 * b, (3, 2), how)
        yield _aliased(DIFFERENT, "product of matrices", lambda a, b: a @ b, lambda a, b: b @ a, (3, 3), how)
        yield _aliased(EQUAL, "commuted", lambda a, b: a * b, lambda a, b: b * a, (3, 2), how)


@family("aliasing")
def attention_of_aliased_examples() -> Iterator[Pair]:
    for how in ALIASES:
        yield _aliased(
            DIFFERENT,
            "attention",
            lambda a, b: torch.softmax(a @ b, -1) @ a,
            lambda a, b: torch.softmax(a @ a, -1) @ b,
            (4, 4),
            how,
        )
        yield _aliased(
            DIFFERENT, "an argument ignored", lambda a, b: torch.exp(a) + b, lambda a, b: torch.exp(b) + b, (4, 4), how
        )
        yield _aliased(
            DIFFERENT, "arguments exchanged", lambda a, b: torch.exp(a) + b, lambda a, b: torch.exp(b) + a, (4, 4), how
        )


@family("aliasing")
def aliased_examples_in_containers() -> Iterator[Pair]:
    (x,) = tensors((3,))
    for note, inputs in (("a list", ([x, x],)), ("a tuple", ((x, x),)), ("a list of copies", ([x, x.clone()],))):
        yield Pair(f"{note}, different", lambda xs: xs[0] - xs[1], lambda xs: 0 * xs[0] + 0 * xs[1], inputs, DIFFERENT)
        yield Pair(f"{note}, equal", lambda xs: xs[0] - xs[1], lambda xs: -xs[1] + xs[0], inputs, EQUAL)
    yield Pair("a dict, different", lambda xs: xs["a"] - xs["b"], lambda xs: xs["b"] - xs["a"], ({"a": x, "b": x},), DIFFERENT)


def _minus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x - y


def _minus_backwards(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x - y


def _minus_of_any(**named: torch.Tensor) -> torch.Tensor:
    return named["x"] - named["y"]


def _minus_by_keyword(*, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x - y


def _minus_renamed(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return y - x


@family("keywords")
def keywords_in_another_order() -> Iterator[Pair]:
    x, y = tensors((3, 2), (3, 2))
    inputs = {"x and y": {"x": x, "y": y}, "y and x": {"y": y, "x": x}, "one tensor": {"x": x, "y": x}}
    for note, given in inputs.items():
        for other in (_minus_backwards, _minus_of_any, _minus_by_keyword):
            yield Pair(f"{note}, {other.__name__}", _minus, other, given, EQUAL)
        yield Pair(f"{note}, renamed", _minus, _minus_renamed, given, DIFFERENT)


@family("keywords")
def keywords_that_are_numbers() -> Iterator[Pair]:
    (x,) = tensors((2, 3))
    for scale in (2, 3.0):
        given = {"x": x, "scale": scale}
        yield Pair(f"used, {scale}", lambda x, scale: x * scale, lambda scale, x: scale * x, given, EQUAL)
        yield Pair(f"ignored, {scale}", lambda x, scale: x * scale, lambda scale, x: x * 1, given, DIFFERENT)
        yield Pair(f"another, {scale}", lambda x, scale: x * scale, lambda scale, x: x * (scale + 1), given, DIFFERENT)


@family("keywords")
def positions_and_names() -> Iterator[Pair]:
    """Positional arguments go by position, whatever their names are."""
    x, y = tensors((4,), (4,))
    yield Pair("other names", _minus, lambda a, b: a - b, (x, y), EQUAL)
    yield Pair("exchanged names", _minus, _minus_backwards, (x, y), DIFFERENT)
    yield Pair("exchanged names and roles", _minus, _minus_renamed, (x, y), EQUAL)
    yield Pair("any number", _minus, lambda *xs: xs[0] - xs[1], (x, y), EQUAL)
    yield Pair("any number backwards", _minus, lambda *xs: xs[1] - xs[0], (x, y), DIFFERENT)


# --- outputs -----------------------------------------------------------------------------------------------------------


@family("structures")
def leaves_that_are_no_tensors() -> Iterator[Pair]:
    for ours, theirs in ((3, 4), (3, 3), (None, 0), ("a", "b"), ("a", "a"), (1.5, 1.25), (None, None)):
        truth = EQUAL if ours == theirs else DIFFERENT
        yield pair(truth, f"{ours!r} and {theirs!r}", lambda x, c=ours: (2 * x, c), lambda x, c=theirs: (x + x, c), (3,))
        yield pair(
            truth,
            f"{ours!r} and {theirs!r} in a dict",
            lambda x, c=ours: {"y": 2 * x, "n": c},
            lambda x, c=theirs: {"y": x + x, "n": c},
            (3,),
        )


@family("structures")
def names_of_outputs() -> Iterator[Pair]:
    for shape in ((3,), (2, 2)):
        yield pair(DIFFERENT, f"another key {shape}", lambda x: {"a": 2 * x}, lambda x: {"b": 2 * x}, shape)
        yield pair(EQUAL, f"the same key {shape}", lambda x: {"a": 2 * x}, lambda x: {"a": x + x}, shape)
        yield pair(
            DIFFERENT, f"keys exchanged {shape}", lambda x: {"a": 2 * x, "b": x * x}, lambda x: {"b": 2 * x, "a": x * x}, shape
        )


@family("structures")
def containers_of_outputs() -> Iterator[Pair]:
    arrangements: dict[str, Function] = {
        "alone": lambda y, z: y + z,
        "a tuple of one": lambda y, z: (y + z,),
        "a list of one": lambda y, z: [y + z],
        "a tuple": lambda y, z: (y, z),
        "a list": lambda y, z: [y, z],
        "nested": lambda y, z: ((y,), z),
        "nested otherwise": lambda y, z: (y, (z,)),
        "exchanged": lambda y, z: (z, y),
        "the first twice": lambda y, z: (y, y),
        "three": lambda y, z: (y, z, y),
    }
    for first in arrangements:
        for second in list(arrangements)[list(arrangements).index(first) :]:
            truth = EQUAL if first == second else DIFFERENT
            yield pair(
                truth,
                f"{first} and {second}",
                lambda x, a=arrangements[first]: a(2 * x, x * x),
                lambda x, a=arrangements[second]: a(x + x, x**2),
                (3,),
            )


@family("structures")
def one_of_several_outputs() -> Iterator[Pair]:
    for count in (2, 3, 5):
        for wrong in range(count):
            yield pair(
                DIFFERENT,
                f"number {wrong} of {count}",
                lambda x, n=count: [x * (i + 1) for i in range(n)],
                lambda x, n=count, w=wrong: [x * (i + 1) + (x * 1e-6 if i == w else 0) for i in range(n)],
                (4,),
            )


@family("structures")
def shapes_of_outputs() -> Iterator[Pair]:
    yield pair(DIFFERENT, "keepdim", lambda x: x.sum(-1), lambda x: x.sum(-1, keepdim=True), (3, 4))
    yield pair(DIFFERENT, "flattened", lambda x: 2 * x, lambda x: (2 * x).reshape(-1), (3, 4))
    yield pair(DIFFERENT, "a batch of one", lambda x: 2 * x, lambda x: (2 * x)[None], (3, 4))
    yield pair(DIFFERENT, "a column", lambda x: x.sum(0), lambda x: x.sum(0)[:, None], (3, 1))


TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@family("types")
def types_of_outputs() -> Iterator[Pair]:
    for dtype in TYPES:
        for other in TYPES:
            truth = EQUAL if dtype == other else DIFFERENT
            made = pair(truth, f"{dtype} and {other}", lambda x, t=dtype: (2 * x).to(t), lambda x, t=other: (x + x).to(t), (3, 2))
            yield replace(made, by_values=False)


@family("types")
def a_type_of_one_of_two_outputs() -> Iterator[Pair]:
    for other in (torch.float16, torch.bfloat16, torch.float64):
        made = pair(DIFFERENT, f"{other}", lambda x: (2 * x, x * x), lambda x, t=other: (2 * x, (x * x).to(t)), (3,))
        yield replace(made, by_values=False)
