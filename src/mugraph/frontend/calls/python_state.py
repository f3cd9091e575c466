"""The Python state that a function reads beside its arguments and tensors: numbers, texts, flags, and who is called.

Where this is recorded it stands in a program as it was. It is found by names: what the code of the function, of the methods of
its objects and modules, and of the functions that these call names, is looked at there.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from mugraph.frontend.calls.code_read import CodeRead, is_descriptor, members_by_users, reads_by_itself
from mugraph.frontend.calls.origins import (
    CONTAINERS,
    PLAIN_VALUES,
    READ_ERRORS,
    Origin,
    attribute_of,
    is_looked_into,
    is_users,
    modules_reached,
    present_of,
    reader,
    steps_of,
)
from mugraph.frontend.calls.pytree import same_value
from mugraph.frontend.calls.unchanged import Unchanged

FORWARD = "forward"
GONE = object()
"""In the place of what is not there any more."""
_NO_MEMBERS = frozenset({FORWARD, "__dict__", "__weakref__"})
"""Of classes: the `forward` that a module has belongs to the kind of a call, and the others are what any class has."""
_MOST = 4096
"""Objects through which values are looked for, once for a recording."""
_DEEPEST = 64
"""Steps from where a walk begins: lists of nodes of which each has the next are no settings."""
_RENEWALS = 8
"""How often equal objects in the place of those of then are taken for these: some are made anew for each call."""
_OF_MODULES = frozenset(vars(torch.nn.Module()))
"""What every module has for attributes."""
_OPEN_OF_PYTHON = frozenset({"types", "argparse", "functools"})
"""Modules of Python's own whose classes programs keep settings in, or functions."""

Found = tuple[Any, Origin]


class ReachedModules:
    """The modules that a function is, is a method of or reaches by a name, in an object or in a container (`reached`), also in
    one that a module has for an attribute or by a `forward` of its own; and all modules in these."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        found, every, without = modules_reached(fn), dict[int, torch.nn.Module](), set[int]()
        for outer, _ in found:  # of which there are more and more
            for module in outer.modules():
                if id(module) not in every:
                    every[id(module)] = module
                    for value, way in attributes_beside(module):
                        if id(value) not in without:  # modules share settings
                            inside = modules_reached(value, way)
                            found += inside
                            without.update(() if inside else (id(value),))
        self.reached = [module for module, _ in found]
        self.modules = tuple(every.values())
        self._held = [(module._modules, tuple(module._modules.values())) for module in self.modules if module._modules]
        self._read = reader([origin for _, origin in found])

    def are_there(self) -> bool:
        """Whether the same names lead to the same modules, and these hold the same ones."""
        try:
            same = all(map(operator.is_, self._read(), self.reached))
        except READ_ERRORS:
            return False
        return same and all(tuple(held.values()) == modules for held, modules in self._held)


def attributes_beside(module: torch.nn.Module) -> list[Found]:
    """The containers, objects and functions that a module has for attributes and that are looked into, and what was put in the
    place of its `forward`, with the way to each."""
    held = vars(module)
    looked = [name for name in held.keys() - _OF_MODULES if name == FORWARD or is_opened(held[name])]
    return [(held[name], Origin.of_attribute(module, name)) for name in looked]


@functools.lru_cache(maxsize=1024)
def _is_opened_kind(kind: type) -> bool:
    """Whether objects of a class are looked into: no tensors and modules, no numbers, none of ours, and of Python's own only what
    keeps settings."""
    if issubclass(kind, (*CONTAINERS, FunctionType, MethodType, functools.partial)):
        return True
    plain = issubclass(kind, (*PLAIN_VALUES, torch.Tensor, torch.nn.Module, type, ModuleType, BuiltinFunctionType, enum.Enum))
    package = kind.__module__.partition(".")[0]
    own = package in sys.stdlib_module_names and kind.__module__ not in _OPEN_OF_PYTHON
    return not (plain or own) and package != __name__.partition(".")[0] and is_users(kind.__module__)


def is_opened(value: Any) -> bool:
    """Whether a value is an object, a function or a container that is looked into for what it holds."""
    return _is_opened_kind(type(value)) and is_looked_into(value)  # type: ignore[arg-type]  # classes have hashes


class PythonState:
    """The numbers, texts, flags and functions that a function and its modules read beside the arguments, as they were when this
    was made.

    A function that is recorded is recorded with these. What it changes itself, as a counter of its calls, is none of them once
    `settle` was called behind the recording.
    """

    def __init__(self, fn: Callable[..., Any], modules: Sequence[torch.nn.Module]) -> None:
        self._modules = tuple(modules)
        while isinstance(fn, functools.partial):  # whose arguments each call is compared with
            fn = fn.func
        beside = [found for module in modules for found in attributes_beside(module)]
        code, functions = _code_of([(fn, Origin.at("", fn)), *beside], set(map(type, modules)))
        roots = [(fn, Origin.at("", fn)), *((value, way) for value, way in beside if way.name in code.names)]
        roots += _of_classes(modules, code.names)
        self._any_by_modules = len(roots) > 1
        roots += [(function, Origin.at("", function)) for function in functions]
        found = [*_values(roots, code), *_members(set(map(type, modules)), code.names)]
        self._reached = [(value, origin) for value, origin in found if origin.names is None]
        self._present = [(value, origin) for value, origin in found if origin.names is not None]
        may_get_more = {kind: _may_get_more(kind, code) for kind in set(map(type, modules))}
        self._open = [number for number, module in enumerate(modules) if may_get_more[type(module)]]
        self._names = code.names
        self._held = [
            (number, name, value)
            for number, module in enumerate(modules)
            for name, value in _attributes_of(module, code.names)
            if not is_opened(value) and not isinstance(value, (torch.Tensor, torch.nn.Module))
        ]
        self._renewals = _RENEWALS
        self._unchanged: Unchanged | None = None
        self._begin()

    def changed(self, modules: Sequence[torch.nn.Module]) -> str | None:
        """The name of one that is another now, where these are the modules; None where all are what they were."""
        same_modules = modules is self._modules or tuple(modules) == self._modules
        unchanged = self._unchanged  # once: other threads may look anew
        if same_modules and unchanged is not None and unchanged():
            return None
        if len(modules) != len(self._modules) or (self._any_by_modules and not same_modules):
            return "a module"
        other = self._other(modules)
        if other is None and same_modules and self._renewals:
            self._renewals -= 1
            look = self._look()
            other = self._other(modules)  # others may have set it before the look
            if other is None:
                self._unchanged = look
        return other

    def _other(self, modules: Sequence[torch.nn.Module]) -> str | None:
        """The name of one that is another now, by what all of them are."""
        for number, name, value in self._held:
            if _differ(getattr(modules[number], name, GONE), value):
                return name
        for number, present in zip(self._open, self._present_in_modules, strict=True):
            for name in present_of(self._names, modules[number]) - present:
                return name
        try:
            read = self._read()
        except READ_ERRORS:
            return "something that it reached"
        for now, (value, origin) in zip(read, (*self._reached, *self._present), strict=True):
            if origin.names is None and _differ(now, value):
                return origin.name
            for later in now - value if origin.names is not None else ():
                return str(later)
        return None

    def settle(self) -> None:
        """Leave out what is another now."""
        now = ((held, getattr(self._modules[held[0]], held[1], GONE)) for held in self._held)
        self._held = [held for held, value in now if not _differ(value, held[2])]
        self._reached = [(value, origin) for value, origin in self._reached if not _differ(_now(origin), value)]
        self._add_kept()
        self._present = [(value, origin) for _, origin in self._present if (value := _now(origin)) is not GONE]
        self._begin()

    def _add_kept(self) -> None:
        """Add what properties gave since then and keep, for others may set it; a counter is none of these."""
        for number, present in zip(self._open, self._present_in_modules, strict=True):
            module = self._modules[number]
            self._held += [(number, name, value) for name, value in _kept(module, present_of(self._names, module) - present)]
        for present, origin in self._present:
            if origin.whole is not None and (whole := _now(origin.whole)) is not GONE:
                for name, value in _kept(whole, present_of(self._names, whole) - present):
                    way = Origin(f"{origin.name}.{name}", functools.partial(attribute_of, name), origin.whole)
                    self._reached.append((value, way))

    def _begin(self) -> None:
        """Take what is there now for what was there then."""
        self._present_in_modules = [present_of(self._names, self._modules[number]) for number in self._open]
        self._read = reader([origin for _, origin in (*self._reached, *self._present)])
        self._unchanged = self._look()

    def _look(self) -> Unchanged | None:
        """Where all ways lead to now, so that later calls have to ask for no more than whether they still do."""
        held = [(self._modules[number], name) for number, name, _ in self._held]
        try:
            ways = [origin for _, origin in (*self._reached, *self._present)]
            return Unchanged(ways, held, (self._modules[number] for number in self._open))
        except READ_ERRORS:
            return None


def _code_of(roots: Iterable[Found], kinds: set[type]) -> tuple[CodeRead, list[FunctionType]]:
    """What the functions that some values lead to and the methods of what they hold name; and those of the latter that are
    users'."""
    walk, met = _Walk(), list[FunctionType]()
    read, methods = [*roots], dict[int, FunctionType]()
    while True:
        for value, _, opened in walk(read):
            if isinstance(value, FunctionType):
                met.append(value)
            elif opened:
                kinds.add(type(value))
        code = CodeRead.of(met, kinds)
        fresh = [method for method in code.methods if id(method) not in methods and is_users(method.__module__)]
        if not fresh:
            return code, list(methods.values())
        methods |= {id(method): method for method in fresh}
        read = [(method, Origin.at("", method)) for method in fresh]


def _values(roots: Iterable[Found], code: CodeRead) -> Iterator[Found]:
    """What code reads by names of its own where some values lead, with the way to each: what is not looked into, how many parts
    containers have, and of which classes objects are. An object that two ways lead to is itself at the end of the second."""
    kinds = set[type]()
    for value, way, opened in _Walk(code)(roots):
        if not way.is_named or isinstance(value, (torch.Tensor, torch.nn.Module, ModuleType)):
            continue
        if not opened or isinstance(value, (FunctionType, MethodType, functools.partial)):
            yield value, way
        elif isinstance(value, CONTAINERS):
            yield len(value), Origin(way.name, len, way)
        else:
            kinds.add(type(value))
            yield type(value), Origin(way.name, type, way)
            if _may_get_more(type(value), code):
                yield _present(code.names, value, way)
    yield from _members(kinds, code.names)


class _Walk:
    """A walk through objects, functions and containers, each of which is opened once; with `code` along attributes that it reads
    alone."""

    def __init__(self, code: CodeRead | None = None) -> None:
        self.code = code
        self._met: dict[int, Any] = {}

    def __call__(self, roots: Iterable[Found]) -> Iterator[tuple[Any, Origin, bool]]:
        """What some values lead to, with the way there, and whether it was opened here."""
        waiting = deque((value, way, 0) for value, way in roots)
        while waiting:
            value, way, depth = waiting.popleft()
            is_new = id(value) not in self._met and len(self._met) < _MOST and depth < _DEEPEST
            opened = is_new and is_opened(value)
            yield value, way, opened
            if opened:
                self._met[id(value)] = value
                waiting.extend((part, to_part, depth + 1) for part, to_part in self._parts(value, way))

    def _parts(self, value: Any, way: Origin) -> Iterator[Found]:
        of_all = self.code is None or self.code.reads_all or reads_by_itself(type(value))
        for name, part, step in (*steps_of(value), *_steps_to_classes(value, self.code)):
            found = part, Origin(".".join(filter(None, (way.name, name))), step, way)
            if of_all or self.code is None or (attribute := found[1].attribute) is None or attribute in self.code.names:
                yield found


def _steps_to_classes(value: Any, code: CodeRead | None) -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """The attributes that an object has of its class, and that code names."""
    if code is None or isinstance(value, (FunctionType, MethodType, functools.partial, *CONTAINERS)):
        return
    for name in _plain_members(type(value), code.names) - getattr(value, "__dict__", {}).keys():
        yield name, getattr(value, name, None), functools.partial(attribute_of, name)


def _plain_members(kind: type, names: frozenset[str]) -> set[str]:
    """The names of what users' classes have for attributes of their instances, which are no methods."""
    named = ((name, members[name]) for members in members_by_users(kind) for name in names & members.keys())
    return {name for name, member in named if not name.startswith("__") and not is_descriptor(member)}


def _members(kinds: Iterable[type], names: frozenset[str]) -> Iterator[Found]:
    """The methods and properties of users' classes that code names, with the way to each."""
    for base in {base for kind in kinds for base in kind.__mro__ if is_users(base.__module__)}:
        whole = Origin.at("", vars(base))
        yield _present(names, vars(base), whole)
        for name in sorted(names & vars(base).keys() - _NO_MEMBERS):
            if is_descriptor(vars(base)[name]):
                yield vars(base)[name], Origin(name, operator.itemgetter(name), whole)


def _present(names: frozenset[str], whole: Any, way: Origin) -> Found:
    """Of which names an object, or a class, has attributes by itself."""
    return present_of(names, whole), Origin(way.name, functools.partial(present_of, names), way)


def _may_get_more(kind: type, code: CodeRead) -> bool:
    """Whether code would read attributes that an object of a class gets later: those in the place of methods of its class, and
    any where code asks for what need not be there."""
    named = (members[name] for members in members_by_users(kind) for name in code.names & members.keys() - _NO_MEMBERS)
    return code.may_miss or any(map(is_descriptor, named))


def _attributes_of(module: torch.nn.Module, names: frozenset[str]) -> Iterator[Found | tuple[str, Any]]:
    """The attributes of a module, and what it has of its class, that code names, and None for parameters and buffers that are
    registered without being there."""
    own = vars(module)
    for registered in (module._parameters, module._buffers):
        yield from ((name, None) for name in sorted(names.intersection(registered.keys())) if registered[name] is None)
    for name in sorted((names & own.keys()) | (_plain_members(type(module), names) - _OF_MODULES)):
        if name not in _OF_MODULES and name != FORWARD:
            yield name, own[name] if name in own else getattr(module, name, GONE)


def _of_classes(modules: Sequence[torch.nn.Module], names: frozenset[str]) -> Iterator[Found]:
    """The containers and objects that modules have of their classes, with the way to each."""
    for module in modules:
        for name in _plain_members(type(module), names) - vars(module).keys() - _OF_MODULES:
            if is_opened(value := getattr(module, name, None)):
                yield value, Origin.of_attribute(module, name)


def _kept(whole: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """What an object keeps of properties of these names; tensors and modules are looked at elsewhere."""
    for name in sorted(names):
        is_kept = isinstance(inspect.getattr_static(type(whole), name, None), functools.cached_property)
        value = vars(whole).get(name, GONE) if is_kept else GONE
        if value is not GONE and not isinstance(value, (torch.Tensor, torch.nn.Module)):
            yield name, value


def _now(origin: Origin) -> Any:
    try:
        return origin.read()
    except READ_ERRORS:
        return GONE


def _differ(now: Any, then: Any) -> bool:
    """Whether a value is another one. Of objects that another way leads to, too, the parts are looked at there alone, so that
    one that is merely equal is another."""
    if now is then:
        return False
    if type(then) is tuple:
        return type(now) is not tuple or len(now) != len(then) or any(map(_differ, now, then))
    return (is_opened(then) and not isinstance(then, MethodType)) or not same_value(now, then)
