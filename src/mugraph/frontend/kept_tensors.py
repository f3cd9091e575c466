"""Tensors that a function keeps while it is recorded, in attributes, lists and dicts that it reaches: caches, maps of attention.

A result does not keep them, and what is kept while tensors have no data is of no use to anyone: it is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from mugraph.frontend.origins import holders

_MISSING = object()


class Held:
    """What the objects that some values lead to hold now."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self._holders = [(path, holder, _contents(holder)) for root in roots for path, holder in holders(root)]

    def taken_back(self) -> list[str]:
        """The places where tensors are kept that were not there, each of which holds again what it held."""
        places: list[str] = []
        for path, holder, before in self._holders:
            kept = [name for name, value in _contents(holder).items() if _is_new(value, before.get(name, _MISSING))]
            places += [".".join(filter(None, (path, str(name)))) for name in kept]
            if kept and isinstance(holder, list):
                holder[:] = before.values()
            for name in kept if not isinstance(holder, list) else ():
                _put_back(holder if isinstance(holder, dict) else vars(holder), name, before.get(name, _MISSING))
        return places


def _contents(holder: Any) -> dict[Any, Any]:
    if isinstance(holder, list):
        return dict(enumerate(holder))
    return dict(holder) if isinstance(holder, dict) else dict(vars(holder))


def _is_new(value: Any, before: Any) -> bool:
    return value is not before and any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))


def _put_back(contents: dict[Any, Any], name: Any, before: Any) -> None:
    if before is _MISSING:
        del contents[name]
    else:
        contents[name] = before
