"""Where the tensors that a function brings along come from: by which names it reaches them, now and whenever it is called.

A function reaches tensors through its closure, the globals it names, its default arguments, the object it is a method of, what
`functools.partial` holds, and the parameters, buffers and attributes of modules; and from there through lists, tuples, dicts,
objects and other functions. A tensor that is reached by two names is one tensor only as long as nobody replaces one of them.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

READ_ERRORS = (LookupError, AttributeError, ValueError, TypeError)
"""What `Origin.read` raises where its way has ended."""
_MOST = 20_000
"""Steps into objects; what lies beyond is known as it was, and not by name."""
_FEW = 256
"""Objects through which modules are looked for, which calls wait for."""
_SMALL = 32
"""Parts of a container of which each is looked at."""
_WAYS = 4
"""Ways to one object that are followed."""
_LIBRARIES = frozenset({"builtins", "torch", "numpy"})
"""Packages whose modules, functions and objects are not looked into: no program's constants lie there."""
CACHE = functools._lru_cache_wrapper
"""Functions that remember what they returned."""
CONTAINERS = (list, tuple, Mapping)
PLAIN_VALUES = (str, bytes, int, float, complex, type(None))
_PLAIN = (*PLAIN_VALUES, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Origin:
    """A way to a tensor: `read` goes it anew, and raises one of `READ_ERRORS` where it has ended."""

    name: str
    step: Callable[[Any], Any]
    """From what `whole` leads to to what this leads to; from None where there is none."""
    whole: Origin | None = None
    through: frozenset[int] = frozenset()
    """The objects on the way, by identity, so that no way goes in circles."""

    @classmethod
    def at(cls, name: str, value: Any) -> Origin:
        """The way to a value that is there for ever."""
        return cls(name, lambda _: value)

    @classmethod
    def of_attribute(cls, whole: Any, name: str) -> Origin:
        """The way to an attribute of an object that is there for ever."""
        return cls(name, functools.partial(attribute_of, name), cls.at("", whole))

    @property
    def attribute(self) -> str | None:
        """The attribute that the last step asks an object or module for; None where it is no such step."""
        step = self.step
        return step.args[0] if isinstance(step, functools.partial) and step.func is attribute_of else None

    @property
    def names(self) -> frozenset[str] | None:
        """The names that the last step looks for attributes of; None where it is no such step."""
        step = self.step
        return step.args[0] if isinstance(step, functools.partial) and step.func is present_of else None

    @property
    def is_named(self) -> bool:
        """Whether the last step has a name of its own; functions without defaults have None in the place of a container."""
        return self.whole is not None and self.name != self.whole.name

    def read(self) -> Any:
        """What the way leads to now."""
        return self.step(None if self.whole is None else self.whole.read())


def quick_reader(way: Origin) -> Callable[[], Any]:
    """A call that goes one way; it raises what `Origin.read` raises."""
    whole = way.whole
    if whole is None or whole.whole is not None:
        return way.read
    return functools.partial(way.step, whole.read())  # what a way begins with is there for ever


def reader(ways: Sequence[Origin]) -> Callable[[], list[Any]]:
    """A call that goes several ways, the parts that they share once; it raises what `Origin.read` raises."""
    steps: list[tuple[int, Callable[[Any], Any]]] = []
    places: dict[int, int] = {}

    def place(way: Origin) -> int:
        if id(way) not in places:
            whole = 0 if way.whole is None else place(way.whole)
            steps.append((whole, way.step))
            places[id(way)] = len(steps)
        return places[id(way)]

    ends = [place(way) for way in ways]

    def read() -> list[Any]:
        values: list[Any] = [None]
        for whole, step in steps:
            values.append(step(values[whole]))
        return [values[end] for end in ends]

    return read


_Step = tuple[str, Any, Callable[[Any], Any]]
"""The name of a part, the part, and how it is had of the whole; without a name it goes by that of the whole."""


def origins(fn: Callable[..., Any]) -> dict[int, list[Origin]]:
    """By the identity (`id`) of each tensor that `fn` reaches, the ways to it, shortest first."""
    found: dict[int, list[Origin]] = {}
    for value, origin in _reached(fn):
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), []).append(origin)
    return found


def likely_captured(fn: Callable[..., Any]) -> list[torch.Tensor]:
    """The tensors that `fn` may capture where it is traced with stand-ins for what modules register, if it is one: those that it
    reaches in another way, too. None where some are not on the CPU, where stand-ins for them would take memory."""
    registering = {id(module) for module in fn.modules()} if isinstance(fn, torch.nn.Module) else set[int]()
    found: dict[int, torch.Tensor] = {}
    for value, origin in _reached(fn):
        if type(value) in (torch.Tensor, torch.nn.Parameter) and origin.whole is not None:
            holder = origin.whole.read()
            if id(holder) not in registering or not _registers(holder, value):
                found[id(value)] = value
    return list(found.values()) if all(tensor.device.type == "cpu" for tensor in found.values()) else []


def _registers(module: torch.nn.Module, tensor: torch.Tensor) -> bool:
    return any(tensor is each for each in (*module._parameters.values(), *module._buffers.values()))


def modules_reached(fn: Any, way: Origin | None = None) -> list[tuple[torch.nn.Module, Origin]]:
    """The modules that a function calls by a name of its own, through attributes of objects or containers, with the way to each:
    what it is or is a method of, and what its closure and globals hold. What modules hold is not looked into. `way` is as in
    `values_reached`."""
    return [(value, origin) for value, origin in _near(fn, is_looked_into, way) if isinstance(value, torch.nn.Module)]


def _near(fn: Any, is_open: Callable[[Any], bool], root: Origin | None = None) -> Iterator[tuple[Any, Origin]]:
    """What a function reaches without going through modules, nor through more than `_FEW` objects, which are all `is_open`."""
    met: dict[int, Any] = {}
    waiting: deque[tuple[Any, Origin]] = deque([(fn, root or Origin.at("", fn))])
    while waiting and len(met) < _FEW:
        value, origin = waiting.popleft()
        yield value, origin
        if id(value) not in met and not isinstance(value, (torch.nn.Module, torch.Tensor, *_PLAIN)) and is_open(value):
            met[id(value)] = value
            for name, part, step in steps_of(value):
                waiting.append((part, Origin(".".join(filter(None, (origin.name, name))), step, origin)))


def is_looked_into(value: Any) -> bool:
    """Whether a container is small, or one of modules; what is none is looked into."""
    if not isinstance(value, CONTAINERS) or len(value) <= _SMALL:
        return True
    parts = value.values() if isinstance(value, Mapping) else value
    return any(isinstance(part, torch.nn.Module) for part in itertools.islice(parts, _SMALL))


def holders(value: Any) -> list[tuple[str, Any]]:
    """The lists, dicts, objects with attributes and caches of functions that a value leads to, each once, with the name of a way
    there."""
    found = {id(each): (origin.name, each) for each, origin in _reached(value) if _holds(each)}
    return list(found.values())


def _holds(value: Any) -> bool:
    if isinstance(value, (list, dict, torch.nn.Module, CACHE)):
        return True
    plain = isinstance(value, (torch.Tensor, type, ModuleType, FunctionType, MethodType, functools.partial))
    return not plain and hasattr(value, "__dict__") and is_users(type(value).__module__)


def _reached(fn: Any) -> Iterator[tuple[Any, Origin]]:
    """What `fn` reaches, with the way there, shortest first."""
    visits: Counter[int] = Counter()
    alive: list[Any] = []  # methods are made whenever they are asked for: no other object may take their identity
    waiting: deque[tuple[Any, Origin]] = deque([(fn, Origin.at("", fn))])
    while waiting and visits.total() < _MOST:
        value, origin = waiting.popleft()
        if isinstance(value, torch.Tensor):
            yield value, origin
        elif id(value) not in origin.through and visits[id(value)] < _WAYS:
            visits[id(value)] += 1
            alive.append(value)
            yield value, origin
            waiting.extend(_parts(value, origin))


def _parts(value: Any, origin: Origin) -> Iterator[tuple[Any, Origin]]:
    """What lies directly in `value`."""
    through = origin.through | {id(value)}
    for name, part, step in steps_of(value):
        if not isinstance(part, _PLAIN):
            path = ".".join(filter(None, (origin.name, name)))
            yield part, Origin(path, step, origin, through)


def steps_of(value: Any) -> Iterable[_Step]:
    if isinstance(value, torch.nn.Module):
        return _of_module(value)
    if isinstance(value, FunctionType):
        return _of_function(value) if is_users(value.__module__) else ()
    if isinstance(value, MethodType):
        return _unnamed(value, "__self__", "__func__")
    if isinstance(value, functools.partial):
        return _unnamed(value, "func", "args", "keywords")
    if isinstance(value, Mapping):
        return [(str(key), value[key], operator.itemgetter(key)) for key in [*value] if isinstance(key, (str, int))]
    if isinstance(value, (list, tuple)):
        return [(str(number), part, operator.itemgetter(number)) for number, part in enumerate(value)]
    if isinstance(value, (type, ModuleType)) or not is_users(type(value).__module__):
        return ()
    attributes = [(name, getattr(value, name, None), functools.partial(attribute_of, name)) for name in _attributes(value)]
    return [*attributes, *(_unnamed(value, "__call__") if callable(value) else ())]


def _unnamed(value: Any, *attributes: str) -> list[_Step]:
    return [("", getattr(value, name), operator.attrgetter(name)) for name in attributes]


def _of_module(module: torch.nn.Module) -> Iterator[_Step]:
    """A module's tensors and submodules by the names of its state, then its other attributes, and what `forward` names."""
    held = (*module._parameters, *module._buffers, *module._modules)
    others = (name for name in vars(module) if not name.startswith("_"))
    for name in (*held, *others):
        step = _of_parameters if name in module._parameters else _of_buffers if name in module._buffers else attribute_of
        yield name, getattr(module, name, None), functools.partial(step, name)
    yield from _unnamed(module, "forward")


def _of_function(function: FunctionType) -> Iterator[_Step]:
    for number, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)):
        try:
            yield name, cell.cell_contents, functools.partial(cell_of, number)
        except ValueError:  # not yet assigned
            continue
    named = names_in(function.__code__)
    for name in sorted(named & function.__globals__.keys()):
        yield from _of_global(name, function.__globals__[name], named)
    yield from _unnamed(function, "__defaults__", "__kwdefaults__", "__dict__")


def _of_global(name: str, value: Any, names: frozenset[str]) -> Iterator[_Step]:
    """A global of a function; of a Python module those attributes that the function names."""
    if not isinstance(value, ModuleType):
        yield name, value, functools.partial(global_of, name)
    elif is_users(value.__name__):
        for attribute in sorted(names & vars(value).keys()):
            yield f"{name}.{attribute}", vars(value)[attribute], functools.partial(global_attribute_of, name, attribute)


def names_in(code: CodeType) -> frozenset[str]:
    """The globals and attributes that a function names, and the functions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*map(names_in, inner))


def is_users(module: str | None) -> bool:
    """Whether what a module of this name defines is looked into."""
    return (module or "builtins").partition(".")[0] not in _LIBRARIES


def _attributes(value: Any) -> Iterator[str]:
    yield from [*getattr(value, "__dict__", ())]  # which reading may add to
    yield from _slots(type(value))


def _slots(kind: type) -> Iterator[str]:
    """The slots of a class, by the names that objects have them by."""
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            is_private = slot.startswith("__") and not slot.endswith("__") and base.__name__.strip("_")
            yield f"_{base.__name__.lstrip('_')}{slot}" if is_private else slot


def dictionaries_of(whole: Any) -> list[Mapping[str, Any]]:
    """What holds the attributes of an object itself, a module with its parameters and buffers; a class gives its own."""
    if isinstance(whole, Mapping):
        return [whole]
    own = [getattr(whole, "__dict__", {})]
    return [*own, whole._parameters, whole._buffers] if isinstance(whole, torch.nn.Module) else own


def open_slots(names: frozenset[str], whole: Any) -> frozenset[str]:
    """The slots of these names that have no value."""
    return frozenset(slot for slot in names.intersection(_slots(type(whole))) if not hasattr(whole, slot))


def present_of(names: frozenset[str], whole: Any) -> frozenset[str]:
    """Those of the names that an object has attributes of by itself."""
    slots = names.intersection(_slots(type(whole))) - open_slots(names, whole)
    return slots.union(*(names.intersection(held.keys()) for held in dictionaries_of(whole)))


def attribute_of(name: str, whole: Any) -> Any:
    return getattr(whole, name)


def _of_parameters(name: str, module: torch.nn.Module) -> Any:
    """A parameter of a module, without the search through all that a module has, where it is still one."""
    parameter = module._parameters.get(name)
    return getattr(module, name) if parameter is None else parameter


def _of_buffers(name: str, module: torch.nn.Module) -> Any:
    """A buffer, in the same way."""
    buffer = module._buffers.get(name)
    return getattr(module, name) if buffer is None else buffer


def cell_of(number: int, function: Any) -> Any:
    return function.__closure__[number].cell_contents


def global_of(name: str, function: Any) -> Any:
    return function.__globals__[name]


def global_attribute_of(name: str, attribute: str, function: Any) -> Any:
    return getattr(function.__globals__[name], attribute)
