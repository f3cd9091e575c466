"""Which names the code of functions reads, that of the methods of objects and modules among it, as far as code shows it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from mugraph.frontend.calls.origins import is_users, names_in

_UNNAMED_METHODS = frozenset({"forward", "__call__", "__getitem__", "__getattr__", "__getattribute__"})
"""Methods that are called without a name of theirs."""
_BY_TEXT = frozenset({"getattr", "hasattr", "attrgetter"})
"""Functions that read attributes whose names are texts."""
_OF_ALL = frozenset({"vars", "__dict__", "asdict", "astuple"})
"""Names by which code reads all attributes of an object."""
_MAY_MISS = _BY_TEXT | {"AttributeError", "Exception", "BaseException"}
"""Names by which code reads attributes that need not be there."""


@dataclass(frozen=True, slots=True)
class CodeRead:
    """What functions and those methods of classes, and of their bases, name that code of these names."""

    names: frozenset[str]
    """Globals and attributes, and texts where code reads attributes by texts."""
    methods: tuple[FunctionType, ...]
    """The methods that were looked at."""
    reads_all: bool
    """Whether users' code reads all attributes of some object."""
    may_miss: bool
    """Whether users' code may ask for attributes that are not there."""

    @classmethod
    def of(cls, functions: Iterable[FunctionType], kinds: Iterable[type]) -> CodeRead:
        """What these functions and the methods of these classes name."""
        by_name: dict[str, list[FunctionType]] = {}
        for base in {base for kind in kinds for base in kind.__mro__}:
            for name, member in vars(base).items():
                if isinstance(method := _within(member), FunctionType):
                    by_name.setdefault(name, []).append(method)
        read = [*functions]
        named = _UNNAMED_METHODS.union(*map(_names, read))
        looked, methods = set[str](), list[FunctionType]()
        while fresh := (named & by_name.keys()) - looked:
            looked |= fresh
            found = [method for name in fresh for method in by_name[name]]
            methods += found
            named = named.union(*map(_names, found))
        by_users = (names_in(function.__code__) for function in (*read, *methods) if is_users(function.__module__))
        ours = frozenset[str]().union(*by_users)
        return cls(named, tuple(methods), not _OF_ALL.isdisjoint(ours), not _MAY_MISS.isdisjoint(ours))


def reads_by_itself(kind: type) -> bool:
    """Whether a class finds attributes in a way of its own, so that names in code need not be those of attributes."""
    return any("__getattr__" in members or "__getattribute__" in members for members in members_by_users(kind))


def members_by_users(kind: type) -> Iterator[Mapping[str, Any]]:
    """What users' classes hold, of a class and its bases."""
    return (vars(base) for base in kind.__mro__ if is_users(base.__module__))


def is_descriptor(member: Any) -> bool:
    """Whether something in a class gives instances something else, as methods and properties do."""
    return hasattr(type(member), "__get__")


def _within(member: Any) -> Any:
    """The function of a property or method as a class holds it; what is neither is itself."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, functools.cached_property):
        return member.func
    found = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
    return inspect.unwrap(found) if isinstance(found, FunctionType) else found


def _names(function: FunctionType) -> frozenset[str]:
    names = names_in(function.__code__)
    return names if _BY_TEXT.isdisjoint(names) else names.union(_texts(function.__code__))


def _texts(code: CodeType) -> Iterator[str]:
    """The names in the texts that code writes down, as in `attrgetter("config.scale")`."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _texts(constant)
        elif isinstance(constant, str) and constant.replace(".", "").isidentifier():
            yield from constant.split(".")
