"""Objects that hold tensors in attributes, as nodes of PyTorch's trees: caches of models, batches, states.

PyTorch's trees end where an object's class is not registered. Here objects of plain classes, which have attributes in `__dict__`
and nothing else, are looked into where tensors are in them, and are made anew from other tensors: an object of the same class
that has the same attributes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import GetAttrKey, KeyEntry, TreeSpec, register_pytree_node, tree_flatten, tree_leaves, tree_map

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.origins import is_users

Kinds = tuple[type, ...]
_MOST = 4096
"""Parts of an object that are compared whenever it is an argument."""


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """What tells objects apart but for what they hold: their class, and the names of their attributes in order."""

    kind: type
    names: tuple[str, ...]

    def made(self, values: Iterable[Any]) -> Any:
        """An object with these values of its attributes."""
        made: Any = object.__new__(self.kind)
        vars(made).update(zip(self.names, values, strict=True))
        return made


@dataclass(frozen=True, slots=True)
class OpenObject:
    """An object as a node of PyTorch's trees: of its leaves the tree makes the object itself."""

    kind: ObjectKind
    values: tuple[Any, ...]


def _with_keys(node: OpenObject) -> tuple[list[tuple[KeyEntry, Any]], ObjectKind]:
    return [(GetAttrKey(name), value) for name, value in zip(node.kind.names, node.values, strict=True)], node.kind


register_pytree_node(
    OpenObject,
    lambda node: (list(node.values), node.kind),
    lambda values, kind: kind.made(values),
    flatten_with_keys_fn=_with_keys,
)


def opened(value: Any, kinds: Kinds = (torch.Tensor,)) -> Any:
    """The value with nodes in the place of objects that hold something of these kinds.

    Raises InvalidInput for an object that holds itself, or stands in two places: what is made anew would be two objects.
    """
    return _Opening(kinds).opened(value)


def flat(value: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves and structure of a value with its objects opened; sizes are leaves, of which PyTorch would make tuples again."""
    return tree_flatten(opened(value), is_leaf=is_size)


def leaves_of(value: Any) -> Sequence[Any]:
    """The leaves of a value with its objects opened."""
    return flat(value)[0]


def has_objects(structure: TreeSpec) -> bool:
    """Whether a structure has objects that were opened."""
    return structure.type is OpenObject or any(map(has_objects, structure.children()))


def parts_of(value: Any) -> tuple[tuple[str, Any], ...]:
    """What an object of a plain class holds, however deep in containers and other such objects, with the way there: what may
    become something else while the object stays the same. At most the first _MOST parts; () for anything else."""
    return tuple(itertools.islice(_parts(value, "", ()), _MOST)) if _is_plain(value) else ()


def _parts(value: Any, name: str, around: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """The parts, in an order that is the same for equal ones; `around` are the objects that this one is in."""
    if id(value) in around:
        return
    around = (*around, id(value))
    if _is_plain(value):
        attributes = sorted(vars(value))
        yield name, (type(value), tuple(attributes))
        for attribute in attributes:
            yield from _parts(vars(value)[attribute], f"{name}.{attribute}", around)
    elif type(value) in (list, tuple):
        yield name, f"a {type(value).__name__} of {len(value)}"
        for number, part in enumerate(value):
            yield from _parts(part, f"{name}[{number}]", around)
    elif type(value) is dict:
        yield name, f"a dict of {list(value)}"
        for key, part in value.items():
            yield from _parts(part, f"{name}[{key!r}]", around)
    else:
        yield name, frozenset(value) if type(value) is set else value


class _Opening:
    """Objects that were opened, each of which may stand in one place only."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self._met: dict[int, Any] = {}
        self._opening: set[int] = set()
        """Those of which not all attributes were looked at yet."""
        self._within_itself: set[int] = set()
        """Those that hold themselves."""

    def opened(self, value: Any) -> Any:
        """The value with nodes in the place of objects."""
        return tree_map(self._of_leaf, value, is_leaf=is_size)

    def _of_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, self.kinds) or not _is_plain(leaf):
            return leaf
        if id(leaf) in self._opening:
            self._within_itself.add(id(leaf))
            return leaf
        if id(leaf) in self._met:
            raise _stands_twice(leaf)
        self._met[id(leaf)] = leaf
        self._opening.add(id(leaf))
        names = tuple(sorted(vars(leaf)))
        values = tuple(self.opened(vars(leaf)[name]) for name in names)
        self._opening.discard(id(leaf))
        if any(isinstance(inner, self.kinds) for inner in tree_leaves(values)):
            if id(leaf) in self._within_itself:
                raise _stands_twice(leaf)
            return OpenObject(ObjectKind(type(leaf), names), values)
        del self._met[id(leaf)]
        return leaf


def _stands_twice(value: Any) -> InvalidInput:
    return InvalidInput(f"a {type(value).__name__} that holds tensors stands in two places, or in itself; pass copies")


def is_size(value: Any) -> bool:
    """Whether a value is the sizes of a tensor, of which PyTorch's `tree_unflatten` would make a plain tuple."""
    return isinstance(value, torch.Size) and all(type(size) is int for size in value)


def _is_plain(value: Any) -> bool:
    """Whether an object is its class and its attributes, and can be made anew of these."""
    kind = type(value)
    own = hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value)
    special = any(vars(each).get(name) for each in kind.__mro__[:-1] for name in ("__new__", "__slots__"))
    return own and not special and is_users(kind.__module__)
