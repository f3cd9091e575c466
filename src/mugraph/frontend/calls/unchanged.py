"""Whether ways still lead to the very objects that they led to, asked in one look at all: what a call of many can wait for."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

from mugraph.frontend.calls.origins import (
    READ_ERRORS,
    Origin,
    attribute_of,
    cell_of,
    dictionaries_of,
    global_attribute_of,
    global_of,
    open_slots,
    present_of,
)

_Look = tuple[Callable[..., Any], Any, Any]
"""A function, an object and what is asked of it, as an attribute or a key."""
_FOR_EVER = frozenset({"__self__", "__func__", "func", "args"})
"""Attributes without a name of methods and partial functions that nobody can set."""
_ASKED: tuple[Callable[..., Any], ...] = (getattr, operator.getitem)


class Unchanged:
    """What all steps of some ways gave when this was made, each once however many ways go there.

    Raises one of `READ_ERRORS` where a way has ended, and LookupError for a way with a step that this does not know.
    """

    def __init__(self, ways: Sequence[Origin], more: Sequence[tuple[Any, str]] = (), sized: Iterable[Any] = ()) -> None:
        """`more` are further attributes, each an object and a name; `sized` are objects that must get no further ones."""
        looks: dict[tuple[Any, ...], _Look] = {}
        values: dict[int, Any] = {}
        for way in ways:
            for step in _with_whole(way):
                if id(step) not in values:
                    whole = None if step.whole is None else values[id(step.whole)]
                    values[id(step)] = step.step(whole)
                    looks |= {(ask, id(asked), key): (ask, asked, key) for ask, asked, key in _looks(step, whole)}
        for asked, name in more:
            ask, place, key = _look_at(asked, name)
            looks[ask, id(place), key] = (ask, place, key)
        looks |= {(len, id(held), None): (len, held, None) for whole in sized for held in dictionaries_of(whole)}
        self._sized = [asked for ask, asked, _ in looks.values() if ask is len]
        self._lengths = list(map(len, self._sized))
        self._keyed = [held for held in self._sized if type(held) in (dict, MappingProxyType)]
        self._last_keys = self._newest_keys()
        self._looks: list[tuple[Callable[..., Any], list[Any], list[Any], list[Any]]] = []
        for kind in _ASKED:
            objects = [asked for ask, asked, _ in looks.values() if ask is kind]
            keys = [key for ask, _, key in looks.values() if ask is kind]
            self._looks.append((kind, objects, keys, list(map(kind, objects, keys))))

    def __len__(self) -> int:
        """How much is asked."""
        return len(self._sized) + sum(len(gave) for *_, gave in self._looks)

    def __call__(self) -> bool:
        """Whether all of them give the same objects now."""
        try:
            same = all(all(map(operator.is_, map(ask, asked, keys), gave)) for ask, asked, keys, gave in self._looks)
        except READ_ERRORS:
            return False
        return same and list(map(len, self._sized)) == self._lengths and self._newest_keys() == self._last_keys

    def _newest_keys(self) -> list[Any]:
        """The last key of each dictionary, which is another where one has come and another has gone."""
        return list(map(next, map(reversed, self._keyed), itertools.repeat(None)))


def _with_whole(way: Origin) -> Iterator[Origin]:
    """The steps of a way, from its beginning."""
    if way.whole is not None:
        yield from _with_whole(way.whole)
    yield way


def _looks(way: Origin, whole: Any) -> list[_Look]:
    """What the last step of a way asks, where something else may be given later."""
    step = way.step
    if way.whole is None:
        return []  # what a way begins with is there for ever
    if step in (len, type):
        return [(len, whole, None) if step is len else (getattr, whole, "__class__")]
    if isinstance(step, functools.partial):
        return _looks_of_partial(step, whole)
    reduced: Any = step.__reduce__()  # of itemgetter and attrgetter
    kind, keys = reduced
    if kind is operator.itemgetter:
        return [] if type(whole) is tuple else [(operator.getitem, whole, *keys)]
    if keys == ("__call__",):
        return [(getattr, type(whole), "__call__")]
    return [] if _FOR_EVER.issuperset(keys) else [_look_at(whole, *keys)]


def _look_at(whole: Any, name: str) -> _Look:
    """What asks for an attribute: where an object has it by itself, its dictionary, which runs no code of its class."""
    for own in dictionaries_of(whole):
        if type(own) is dict and name in own and own[name] is getattr(whole, name, None):
            return operator.getitem, own, name
    return getattr, whole, name


def _looks_of_partial(step: functools.partial[Any], whole: Any) -> list[_Look]:
    match step.func, step.args:
        case (func, (str(name),)) if func is attribute_of:
            return [_look_at(whole, name)]
        case (func, (int(number),)) if func is cell_of:
            return [(getattr, whole.__closure__[number], "cell_contents")]
        case (func, (str(name),)) if func is global_of:
            return [(operator.getitem, whole.__globals__, name)]
        case (func, (frozenset() as names,)) if func is present_of and not open_slots(names, whole):
            return [(len, held, None) for held in dictionaries_of(whole)]
        case (func, (str(name), str(attribute))) if func is global_attribute_of:
            return [(operator.getitem, whole.__globals__, name), (getattr, whole.__globals__[name], attribute)]
    raise LookupError(step)
