"""Objects that hold tensors in attributes, as arguments and results of functions."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mugraph
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.calls.objects import OpenObject, flat, opened


class Layer:
    """Keys and values, as caches have them."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys, self.values, self.is_initialized = keys, values, True


class Cache:
    """A class that PyTorch's trees do not know."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers, self.offloading, self.kind = layers, False, None

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)


def cache(rows: int = 6) -> Cache:
    return Cache([Layer(torch.randn(rows, 8), torch.randn(rows, 8)) for _ in range(2)])


def attended(x: torch.Tensor, held: Cache) -> torch.Tensor:
    for layer in held:
        x = x + torch.softmax(x @ layer.keys.T, -1) @ layer.values
    return x


def projected(x: torch.Tensor) -> tuple[torch.Tensor, Cache]:
    return x * 2.0, Cache([Layer(torch.relu(x), x.exp()), Layer(x + 1.0, x.sigmoid())])


def test_an_object_is_made_anew_of_its_leaves() -> None:
    held = cache()
    leaves, structure = flat((held, torch.Size([2, 3])))
    assert [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)] == [None, True, True, False, torch.Size([2, 3])]
    made, size = torch.utils._pytree.tree_unflatten(leaves, structure)
    assert type(made) is Cache
    assert made is not held
    assert size == torch.Size([2, 3])
    assert made.layers[1].values is held.layers[1].values
    assert flat((cache(), torch.Size([2, 3])))[1] == structure


def test_what_is_no_plain_object_with_tensors_stays_as_it_is() -> None:
    class Slotted:
        __slots__ = ("held",)
        held: torch.Tensor

    class Numbers:
        def __init__(self) -> None:
            self.scale = 2.0

    class Keyed(dict[str, torch.Tensor]):
        pass

    slotted, numbers, keyed, linear = Slotted(), Numbers(), Keyed(x=torch.ones(1)), torch.nn.Linear(2, 2)
    slotted.held = torch.ones(1)
    for value in (slotted, numbers, keyed, linear):
        assert opened(value) is value
    assert isinstance(opened(cache()), OpenObject)


def test_results_are_objects_of_the_functions_class() -> None:
    x = torch.randn(6, 8)
    opt = mugraph.superoptimize(projected, (x,), budget=60)
    y, held = opt(x)
    wanted, expected = projected(x)
    assert type(held) is Cache
    assert [type(layer) for layer in held] == [Layer, Layer]
    assert held.layers[0].is_initialized
    assert held.kind is None
    torch.testing.assert_close(y, wanted)
    for ours, theirs in zip(held, expected, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys)
        torch.testing.assert_close(ours.values, theirs.values)


def test_a_result_with_an_object_is_not_saved(tmp_path: Path) -> None:
    opt = mugraph.superoptimize(projected, (torch.randn(6, 8),), budget=60, profile=False)
    with pytest.raises(InvalidInput, match="an output of type Cache cannot be saved"):
        opt.save(tmp_path / "saved")


def test_arguments_are_read_out_of_objects() -> None:
    x = torch.randn(4, 8)
    opt = mugraph.superoptimize(attended, (x, cache()), budget=60, profile=False)
    for _ in range(2):
        held = cache()
        torch.testing.assert_close(opt(x, held), attended(x, held), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(opt(x, held=held), attended(x, held), rtol=1e-4, atol=1e-4)
    with pytest.raises(ShapeMismatch, match=r"argument held\.layers\.0\.keys is torch.float32 \[5, 8\], optimized for"):
        opt(x, cache(rows=5))
    other = cache()
    other.offloading = True
    with pytest.raises(InvalidInput, match=r"argument held\.offloading was False when optimized, not True"):
        opt(x, other)
    other.more = 1  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match="call with the same arguments as when optimized"):
        opt(x, other)


def test_two_functions_are_equal_on_objects() -> None:
    def scaled(x: torch.Tensor, held: Cache) -> Cache:
        return Cache([Layer(layer.keys * 2.0 * x, layer.values) for layer in held])

    def added(x: torch.Tensor, held: Cache) -> Cache:
        return Cache([Layer(layer.keys * x + x * layer.keys, layer.values) for layer in held])

    def tripled(x: torch.Tensor, held: Cache) -> Cache:
        return Cache([Layer(layer.keys * 3.0 * x, layer.values) for layer in held])

    inputs = (torch.randn(6, 8), cache())
    assert mugraph.verify(scaled, added, inputs).equivalent
    assert mugraph.verify(scaled, tripled, inputs).equivalent is False


def test_attributes_that_are_changed_are_refused() -> None:
    def appended(x: torch.Tensor, held: Cache) -> torch.Tensor:
        held.layers[0].keys = torch.cat([held.layers[0].keys[4:], x])
        return attended(x, held)

    held = cache()
    keys = held.layers[0].keys
    with pytest.raises(InvalidInput, match=r"appended changes the list, dict or object that held\.layers\.0\.keys is in"):
        mugraph.superoptimize(appended, (torch.randn(4, 8), held), budget=60)
    assert held.layers[0].keys is keys


def test_tensors_in_objects_are_changed_by_calls_and_not_by_the_search() -> None:
    def moved(x: torch.Tensor, held: Cache) -> torch.Tensor:
        place = held.layers[0].values[0, 0].long()
        held.layers[0].values.add_(1.0)
        held.layers[0].keys.index_copy_(0, place[None], x[:1])  # beyond the last row from the seventh call on
        return attended(x, held)

    held = cache()
    held.layers[0].values.fill_(0.0)
    before = copy.deepcopy(held)
    x = torch.randn(4, 8)
    opt = mugraph.superoptimize(moved, (x, held), budget=60)
    for ours, theirs in zip(held, before, strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
    for _ in range(3):
        torch.testing.assert_close(opt(x, held), moved(x, before), rtol=1e-4, atol=1e-4)
        for ours, theirs in zip(held, before, strict=True):
            torch.testing.assert_close(ours.keys, theirs.keys)
            torch.testing.assert_close(ours.values, theirs.values)


@pytest.mark.parametrize("way", ["twice", "in itself"])
def test_an_object_in_two_places_is_refused(way: str) -> None:
    held: Any = cache()
    if way == "in itself":
        held.layers[0].cache = held
    with pytest.raises(InvalidInput, match="that holds tensors stands in two places, or in itself; pass copies"):
        mugraph.superoptimize(lambda x, pair: x + pair[0].layers[0].keys, (torch.randn(6, 8), [held, held]), budget=60)


def test_the_decorator_takes_objects() -> None:
    optimized = mugraph.optimize(attended)
    x = torch.randn(4, 8)
    for rows in (6, 7, 6):
        held = cache(rows)
        torch.testing.assert_close(optimized(x, held), attended(x, held), rtol=1e-4, atol=1e-4)
    assert "of 2 kinds of calls" in repr(optimized)
