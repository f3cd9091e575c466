"""Masked graphs: at every size up to their capacity the values of the original, whatever lies behind the elements."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mugraph.frontend.recording.export import recorded_at_all_sizes
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.masked_axis import masked
from mugraph.frontend.symbolic_sizes.slots import MaskedGraph, Slots
from mugraph.sizes.capacities import AtCapacity
from pairwise import first_by_day

KEYS = 6
"""The size of the axis in examples: no other dimension has it."""
CAPACITY = 16
Fn = Callable[..., Any]


def keys(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def masked_of(fn: Fn, *inputs: torch.Tensor, watched: Sequence[int] = ()) -> MaskedGraph:
    """The masked graph of a function, whose inputs have the axis where their size is KEYS; masks among them may be watched."""
    dim = torch.export.Dim("keys", min=1, max=4096)
    places = {number: {place: dim for place, size in enumerate(each.shape) if size == KEYS} for number, each in enumerate(inputs)}
    program = recorded_at_all_sizes(fn, inputs, {}, {number: found for number, found in places.items() if found})
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    return masked(program.graph, {}, [placeholders[number] for number in watched])


def at(size: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [keys(*(size if each == KEYS else each for each in x.shape), dtype=x.dtype) for x in inputs]


Q, K, V, NEW = keys(1, 4, 1, 8), keys(1, 2, KEYS, 8), keys(1, 2, KEYS, 8), keys(1, 2, 1, 8)
X, Y = keys(KEYS, 5), keys(KEYS, 5)


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = torch.cat([k, new], 2), torch.cat([v, new * 2], 2)
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True), k


def rotated(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = k.chunk(2, -1)
    turned = k * cos + torch.cat([-second, first], -1) * sin
    return torch.softmax(q @ turned.transpose(-1, -2), -1) @ k


CASES: dict[str, tuple[Fn, tuple[torch.Tensor, ...]]] = {
    "sum": (lambda x: x.exp().sum(0), (X,)),
    "sum of all": (lambda x: x.sum(), (X,)),
    "mean": (lambda x: x - x.mean(0, keepdim=True), (X,)),
    "mean of all": (lambda x: x.mean(), (X,)),
    "mean of several": (lambda x: x.mean((0, 1)), (X,)),
    "largest and least": (lambda x: x.amax(0) - x.amin(0), (X,)),
    "logsumexp": (lambda x: x.logsumexp(0), (X,)),
    "softmax": (lambda x: x.softmax(0), (X,)),
    "log_softmax": (lambda x: x.log_softmax(0), (X,)),
    "gram": (lambda x, y: x.T @ y.reciprocal(), (X, Y)),
    "product with a vector": (lambda x, y: x.T @ y[:, 0], (X, Y)),
    "added product": (lambda x, y: torch.addmm(torch.ones(5, 5, dtype=x.dtype), x.T, y), (X, Y)),
    "einsum": (lambda x, y: torch.einsum("nd,ne->de", x.log(), y), (X, Y)),
    "norm": (lambda x: x / x.pow(2).sum(0, keepdim=True).sqrt(), (X,)),
    "decode": (decode, (Q, K, V, NEW)),
    "attention of two queries": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (keys(2, 2, 8), K[0], V[0])),
    "attention with a scale": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5), (keys(2, 2, 8), K[0], V[0])),
    "attention with a mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), (keys(1, 2, 2, 8), K, V, keys(2, KEYS))
    ),
    "attention with a boolean mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0.5), (keys(1, 2, 2, 8), K, V, keys(2, KEYS))
    ),
    "attention spelled out": (
        lambda q, k, v: torch.softmax((q @ k.transpose(-1, -2)) / 3, -1) @ v, (keys(2, 1, 8), keys(2, KEYS, 8), keys(2, KEYS, 8))
    ),
    "rotated keys": (rotated, (keys(2, 1, 8), keys(2, KEYS, 8), keys(KEYS, 8), keys(KEYS, 8))),
    "three appended": (lambda x, y: torch.cat([x, y]).softmax(0), (X, keys(3, 5))),
    "appended twice": (lambda x, y: torch.cat([torch.cat([x, y]), y + 1]).softmax(0), (X, keys(1, 5))),
    "in two steps": (lambda x, y: (x - x.amax(0)).exp().sum(0) + y.mean(0), (X, Y)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_are_the_function_s_at_every_size_whatever_lies_behind(name: str) -> None:
    fn, inputs = CASES[name]
    graph = masked_of(fn, *inputs)
    runner = AtCapacity(graph, CAPACITY, graph.module, torch.device("cpu"))
    for size in (1, 2, 3, 7, 13, CAPACITY - 1, CAPACITY):
        given = at(size, inputs)
        wanted = fn(*given)
        assert runner.ignores_other_slots(size, given)
        for ours, theirs in zip(runner(size, given), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, equal_nan=True)  # logarithms of negative numbers


@pytest.mark.parametrize("shape", [(1, KEYS), (3, KEYS), (2, 1, 3, KEYS), (4, 1, KEYS), (2, 1, 1, KEYS)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bool])
def test_attention_with_a_mask_that_is_watched_is_spelled_out(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True)

    inputs = keys(2, 4, 3, 8), keys(2, 2, KEYS, 8), keys(2, 2, KEYS, 8), keys(*shape).to(dtype)
    graph = masked_of(attend, *inputs, watched=[3])
    assert not [node for node in graph.module.graph.nodes if "attention" in str(node.target)]
    runner = AtCapacity(graph, CAPACITY, graph.module, torch.device("cpu"))
    for size in (1, 2, 7, CAPACITY):
        q, k, v, mask = at(size, inputs)
        mask = (torch.rand(mask.shape) < 0.7) if dtype is torch.bool else torch.where(mask > 1.0, -math.inf, mask)
        mask[..., -1] = 0.0 if mask.is_floating_point() else True  # a key that every query sees
        assert runner.ignores_other_slots(size, [q, k, v, mask])
        torch.testing.assert_close(runner(size, [q, k, v, mask])[0], attend(q, k, v, mask), rtol=1e-9, atol=1e-9)


def test_a_watched_mask_of_a_wider_type_leaves_attention_its_own() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m)

    inputs = *(keys(1, 2, rows, 8).bfloat16() for rows in (3, KEYS, KEYS)), keys(3, KEYS).float()
    graph = masked_of(attend, *inputs, watched=[3])
    (result,) = AtCapacity(graph, CAPACITY, graph.module, torch.device("cpu"))(7, given := at(7, inputs))
    torch.testing.assert_close(result, attend(*given), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["sum", "mean", "largest and least", "softmax", "gram", "decode", "attention spelled out"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_act_as_they_do_in_the_function(name: str, number: float) -> None:
    fn, inputs = CASES[name]
    graph = masked_of(fn, *inputs)
    runner = AtCapacity(graph, CAPACITY, graph.module, torch.device("cpu"))
    for place in (0, 4, 8):
        given = at(9, inputs)
        for each, held in zip(given, graph.inputs, strict=True):
            if held is not None:
                each.select(held.dim, place)[..., 0] = number
        wanted = fn(*given)
        for ours, theirs in zip(runner(9, given), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_a_mean_of_small_numbers_counts_them_exactly() -> None:
    graph = masked_of(lambda x: x.mean(0), X.bfloat16())
    runner = AtCapacity(graph, 400, graph.module, torch.device("cpu"))
    (mean,) = runner(257, [torch.ones(257, 5, dtype=torch.bfloat16)])  # 257 is 256 in bf16
    assert mean.dtype is torch.bfloat16
    assert mean.tolist() == [1.0] * 5


def test_slots_say_where_something_is_appended_and_what_is_held() -> None:
    graph = masked_of(decode, Q, K, V, NEW)
    assert graph.slots == (Slots(0, 1), Slots(None, 1))
    assert graph.more == 1
    held = AtCapacity(graph, 4, graph.module, torch.device("cpu")).arguments(2, at(2, (Q, K, V, NEW)))[4:]
    assert [each.tolist() for each in held] == [[False, False, True, False, False], [True, True, True, False, False]]


@pytest.mark.parametrize(
    ("name", "zeroed"),
    [
        ("attention spelled out", {2}),  # of keys, scores are masked
        ("decode", {2}),
        ("attention with a boolean mask", {1, 2}),
        ("gram", {0}),  # 1 / 0 is no neutral element
        ("in two steps", {1}),
        ("sum of all", set()),  # of which nobody else would say how much is held
        ("softmax", set()),
    ],
)
def test_inputs_that_are_summed_as_they_are_are_not_chosen_from(name: str, zeroed: set[int]) -> None:
    fn, inputs = CASES[name]
    graph = masked_of(fn, *inputs)
    assert graph.zeroed == zeroed
    assert graph.slots, "something says what is held"
    placeholders = [node for node in graph.module.graph.nodes if node.op == "placeholder"]
    for number in zeroed:
        assert not [user for user in placeholders[number].users if "ScalarOther" in str(user.target)]
    given = AtCapacity(graph, CAPACITY, graph.module, torch.device("cpu")).arguments(7, at(7, inputs), behind=math.nan)
    for number, (tensor, place) in enumerate(zip(given, graph.inputs, strict=False)):
        if place is not None:
            behind = tensor.narrow(place.dim, 7, CAPACITY - 7)
            assert bool((behind == 0).all()) if number in zeroed else bool(behind.isnan().all())


def test_what_has_to_be_0_and_is_not_would_reach_a_result() -> None:
    fn, inputs = CASES["attention spelled out"]
    graph = masked_of(fn, *inputs)
    anything = replace(graph, zeroed=frozenset())
    runner = AtCapacity(anything, CAPACITY, graph.module, torch.device("cpu"))
    assert not runner.ignores_other_slots(7, at(7, inputs))


def test_what_an_interrupted_call_has_copied_does_not_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) + x.amax(0)

    graph = masked_of(both, X)
    assert graph.zeroed == {0}
    runner = AtCapacity(graph, CAPACITY, graph.module, torch.device("cpu"))
    runner(3, at(3, [X]))
    copy = torch.Tensor.copy_

    def interrupted(memory: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        copy(memory, given)
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(torch.Tensor, "copy_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner(9, at(9, [X]))
    given = at(2, [X])
    torch.testing.assert_close(runner(2, given)[0], both(*given), rtol=1e-9, atol=1e-9)


REFUSED: dict[str, Fn] = {
    "a size as a number": lambda x: x.sum(0) / x.shape[0],
    "a root of a size": lambda x: x.sum(0) * x.shape[0] ** -0.5,
    "a variance": lambda x: x.var(0),
    "a deviation": lambda x: x.std(0, correction=0),
    "a running sum": lambda x: x.cumsum(0).sum(0),
    "a product of all": lambda x: x.prod(0),
    "the other way round": lambda x: x.flip(0).softmax(0),
    "rolled": lambda x: (x.roll(1, 0) * x).sum(0),
    "the place of the largest": lambda x: x.argmax(0),
    "the largest and its place": lambda x: x.max(0).values,
    "sorted": lambda x: x.sort(0).values.sum(0),
    "a median": lambda x: x.median(0).values,
    "positions": lambda x: (x + torch.arange(x.shape[0])[:, None]).sum(0),
    "the last": lambda x: (x * x[-1:]).sum(0),
    "all but the first": lambda x: x[1:].sum(0),
    "the first three": lambda x: x[:3].sum(0),
    "every other": lambda x: x[::2].sum(0),
    "pooled": lambda x: F.avg_pool1d(x.T, 3, 1, 1).sum(-1),
    "padded": lambda x: F.pad(x, (0, 0, 0, 2), value=1.0).sum(0),
    "something before": lambda x: torch.cat([torch.ones(1, 5, dtype=x.dtype), x]).sum(0),
    "twice": lambda x: torch.cat([x, x]).sum(0),
    "many behind": lambda x: torch.cat([x, torch.ones(9, 5, dtype=x.dtype)]).sum(0),
    "in one dimension with another": lambda x: x.reshape(-1).softmax(0),
    "a mask by position": lambda x: (x @ x.T).tril().sum(),
    "the products of all pairs": lambda x: (x @ x.T).softmax(-1),
    "a norm over it": lambda x: F.layer_norm(x.T, (x.shape[0],)),
    "causal attention": lambda x: F.scaled_dot_product_attention(x[None, :1], x[None], x[None], is_causal=True),
    "dropped keys": lambda x: F.scaled_dot_product_attention(x[None, :1], x[None], x[None], dropout_p=0.5),
    "random numbers": lambda x: (x + torch.rand_like(x)).sum(0),
    "whole numbers": lambda x: (x > 0).sum(0),
    "an argument changed": lambda x: x.mul_(2).sum(0),
    "weights changed": lambda x: x.softmax(0).mul_(x.exp()).T @ x,
    "a size returned": lambda x: (x.sum(0), x.shape[0]),
    "nothing reduced": lambda x: x.exp(),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_size_otherwise_is_refused(name: str) -> None:
    with pytest.raises(Exception) as refused:  # noqa: PT011 -- by PyTorch where a size is asked about, or by a rule
        masked_of(REFUSED[name], X)
    assert isinstance(refused.value, SizeMatters) or "keys" in str(refused.value) or "size" in str(refused.value)


Pair = tuple[torch.Tensor, torch.Tensor]
STEPS: tuple[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Pair], ...] = (
    lambda a, b, z: (a.sigmoid(), b),
    lambda a, b, z: (a - a.mean(0, keepdim=True), b),
    lambda a, b, z: (torch.softmax(a, 0), b),
    lambda a, b, z: (a @ z.T @ z, b),
    lambda a, b, z: (a, b * a.amax(0)),
    lambda a, b, z: (a @ (a.T @ b), b),
    lambda a, b, z: (torch.cat([a, z[:1]]), torch.cat([b, z[1:2]])),
    lambda a, b, z: (a / a.pow(2).sum(0, keepdim=True).sqrt(), b),
    lambda a, b, z: (a.log_softmax(0) + b, b),
    lambda a, b, z: (torch.where(a > b, a, 1 / b), b),
    lambda a, b, z: (a - a.logsumexp(0), F.layer_norm(b, (5,))),
    lambda a, b, z: (a, (b.T.contiguous() * 2).T + a.amin(0)),
    lambda a, b, z: (F.scaled_dot_product_attention(z[None, :1], a[None], b[None])[0] + a, b),
    lambda a, b, z: (torch.einsum("nd,ne->de", a, b).sum(0) + b, b),
)


SEEDS = (3, 6, 12, 15, 1, 2, *(seed for seed in range(16) if seed not in (3, 6, 12, 15, 1, 2)))
OF_THE_DAY = 6
"""With every step in one of them, and numbers that are none in four."""


def steps_of(draw: random.Random) -> list[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Pair]]:
    return draw.choices(STEPS, k=draw.randint(2, 6))


def test_random_functions_of_the_day_have_every_step() -> None:
    assert {step for seed in SEEDS[:OF_THE_DAY] for step in steps_of(random.Random(seed))} == set(STEPS)


@pytest.mark.parametrize("seed", first_by_day(SEEDS, OF_THE_DAY))
def test_random_functions_have_their_values_at_every_size(seed: int) -> None:
    draw = random.Random(seed)
    steps = steps_of(draw)

    def fn(a: torch.Tensor, b: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for step in steps:
            a, b = step(a, b, z)
        return a, b.sum(0), a.T @ b

    z = keys(3, 5)
    graph = masked_of(fn, X, Y, z)
    runner = AtCapacity(graph, CAPACITY, graph.module, torch.device("cpu"))
    for size in (1, 2, 7, CAPACITY):
        a, b = torch.randn(2, size, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if seed % 3 == 0:
            a[size // 2, 1] = draw.choice([math.nan, math.inf, -math.inf])
        assert runner.ignores_other_slots(size, [a, b, z])
        for ours, theirs in zip(runner(size, [a, b, z]), fn(a, b, z), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8, equal_nan=True)
