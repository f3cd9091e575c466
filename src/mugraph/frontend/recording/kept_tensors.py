"""Tensors that a function keeps while it is recorded, in attributes, lists and dicts that it reaches: caches, maps of attention.

What is kept while tensors have no data is of no use to anyone: it is taken back. A result keeps nothing, so that a function is
refused whose calls leave something of their arguments, or of what earlier calls left. Tables and weights that are made of
nothing but constants and other weights are made again by every call, and may be kept by the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from mugraph.frontend.calls.origins import CACHE, holders

_MISSING = object()
_SAME = frozenset({"to", "type_as", "contiguous", "detach", "clone", "cpu", "cuda", "float", "double", "half", "bfloat16"})
"""Functions whose result has the numbers of their first operand, where type and device are its own."""
_OF_THE_FIRST = frozenset({"to", "type_as"})
"""Functions whose further operands give a type and a device alone."""
_FILLED = frozenset({"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"})
"""Functions whose result has the shape of their operand alone."""


class Made:
    """Of which tensors those that a function makes were made."""

    def __init__(self, arguments: Sequence[torch.Tensor], owned: Sequence[torch.Tensor]) -> None:
        self._sources: dict[int, frozenset[int] | None] = {id(tensor): frozenset({id(tensor)}) for tensor in owned}
        self._sources |= {id(tensor): None for tensor in arguments}
        self._same: dict[int, int] = {}
        self._alive: list[torch.Tensor] = [*arguments, *owned]  # no other tensor may take their identity
        self._written = False

    def note(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """A call that the function makes."""
        name = getattr(func, "__name__", "")
        operands = _tensors((args, kwargs))
        read = operands[:1] if name in _OF_THE_FIRST else [] if name in _FILLED else operands
        sources = self._union(read)
        writes = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or kwargs.get("out") is not None
        self._written |= writes and sources is None  # perhaps through a view, of what may be kept
        for tensor in [*_tensors(result), *(operands if writes else ())]:
            if writes or not any(tensor is operand for operand in operands):
                self._alive.append(tensor)
                self._sources[id(tensor)] = sources
                self._same.pop(id(tensor), None)
                if name in _SAME and tensor.dtype is operands[0].dtype and tensor.device == operands[0].device:
                    self._same[id(tensor)] = self._whole(operands[0])

    def own(self, tensor: torch.Tensor) -> None:
        """Take a tensor for one that the function has, and was made of none."""
        self._alive.append(tensor)
        self._sources[id(tensor)] = frozenset({id(tensor)})

    def is_same(self, tensor: torch.Tensor, other: Any) -> bool:
        """Whether a tensor is another one, or has all its numbers."""
        return tensor is other or (isinstance(other, torch.Tensor) and self._whole(tensor) == self._whole(other))

    def sources(self, tensors: Sequence[torch.Tensor]) -> frozenset[int] | None:
        """The tensors, by identity, that some were made of that a function had; None where that may be arguments."""
        return None if self._written else self._union(tensors)

    def _whole(self, tensor: torch.Tensor) -> int:
        return self._same.get(id(tensor), id(tensor))

    def _union(self, tensors: Sequence[torch.Tensor]) -> frozenset[int] | None:
        found = frozenset[int]()
        for tensor in tensors:
            sources = self._sources.get(id(tensor), frozenset({id(tensor)}) if _has_data(tensor) else None)
            if sources is None:
                return None
            found |= sources
        return found


def _has_data(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class Held:
    """What the objects that some values lead to hold now."""

    def __init__(self, roots: Sequence[Any]) -> None:
        all_found = [(path, holder) for root in roots for path, holder in holders(root)]
        self._caches = [holder for _, holder in all_found if isinstance(holder, CACHE)]
        found = [(path, holder) for path, holder in all_found if not isinstance(holder, CACHE)]
        modules = [(path, module) for path, module in found if isinstance(module, torch.nn.Module)]
        states = [(path, state) for path, module in modules for state in (module._buffers, module._parameters)]
        self._holders = [(path, holder, _contents(holder)) for path, holder in (*found, *states)]
        self._misses: list[int] = []

    def looked_at_again(self) -> None:
        """Take what is held now for what was held before."""
        self._misses = [cache.cache_info().misses for cache in self._caches]
        self._holders = [(path, holder, _contents(holder)) for path, holder, _ in self._holders]

    def taken_back(self, made: Made, instead: Callable[[Any], Any]) -> list[str]:
        """The places where tensors are kept that no result would make again; objects in which any are kept hold again what they
        held, and results of calls that were cached are forgotten. `instead` gives what stood for a tensor in the meantime."""
        kept: dict[str, list[torch.Tensor]] = {}
        replaced = set[int]()
        for cache, misses in zip(self._caches, self._misses, strict=True):
            if cache.cache_info().misses != misses:
                cache.cache_clear()
        for path, holder, before in self._holders:
            contents = _contents(holder)
            new = {name: value for name, value in contents.items() if _is_new(value, before.get(name, _MISSING))}
            for name, value in new.items():
                left = [instead(leaf) for leaf in _tensors(before.get(name))]
                tensors = _tensors(value)
                if len(left) != len(tensors) or not all(map(made.is_same, tensors, left)):
                    kept[".".join(filter(None, (path, str(name))))] = tensors
                    replaced.update(map(id, left))
            if new:
                _put_back(holder, before)
        found = {place: made.sources(tensors) for place, tensors in kept.items()}
        return [place for place, sources in found.items() if sources is None or not replaced.isdisjoint(sources)]


def _contents(holder: Any) -> dict[Any, Any]:
    if isinstance(holder, list):
        return dict(enumerate(holder))
    return dict(holder) if isinstance(holder, dict) else dict(vars(holder))


def _is_new(value: Any, before: Any) -> bool:
    return value is not before and bool(_tensors(value))


def _put_back(holder: Any, before: dict[Any, Any]) -> None:
    if isinstance(holder, list):
        holder[:] = before.values()
        return
    contents = holder if isinstance(holder, dict) else vars(holder)
    contents.clear()
    contents.update(before)
