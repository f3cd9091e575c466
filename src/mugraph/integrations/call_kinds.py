"""Which calls of a function the same kernels answer: kinds of arguments, and of what is around a call."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.modules.module as _of_all_modules
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from mugraph.frontend.calls.objects import flat, leaves_of, parts_of
from mugraph.frontend.calls.origins import (
    CONTAINERS,
    PLAIN_VALUES,
    READ_ERRORS,
    Origin,
    functions_reached,
    is_looked_into,
    modules_reached,
    names_read,
    reader,
    values_reached,
)
from mugraph.frontend.calls.pytree import same_value

Kind = tuple[Any, ...]
_VALUES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""The classes of tensors that hold numbers."""


def kind_of_call(args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Mapping[int | str, Mapping[int, Any]]) -> Kind:
    """The kind of the arguments: shapes, dtypes, devices and, unless contiguous, strides of tensors; values of everything else.

    Sizes of `dynamic` dimensions, by argument and position, do not count. Raises TypeError for a value without a hash.
    """
    positional = (_kind_of(value, dynamic.get(number, {})) for number, value in enumerate(args))
    named = ((name, _kind_of(kwargs[name], dynamic.get(name, {}))) for name in sorted(kwargs))
    kind = (*positional, *named)
    hash(kind)
    return kind


class ReachedModules:
    """The modules that a function is, is a method of or reaches by a name or in a container (`reached`), also in one that a
    module has for an attribute or by a `forward` of its own; and all modules in these."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        found, every = modules_reached(fn), dict[int, torch.nn.Module]()
        for outer, _ in found:  # of which there are more and more
            for module in outer.modules():
                if id(module) not in every:
                    every[id(module)] = module
                    for value, way in attributes_beside(module):
                        found += modules_reached(value, way)
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


_PLAIN = frozenset((bool, *PLAIN_VALUES))
_OF_MODULES = frozenset(vars(torch.nn.Module()))
"""What every module has for attributes."""


def attributes_beside(module: torch.nn.Module) -> list[tuple[Any, Origin]]:
    """The containers that a module has for attributes and that are looked into, and what was put in the place of its `forward`,
    with the way to each."""
    held = vars(module)
    own = ((name, held[name]) for name in held.keys() - _OF_MODULES if type(held[name]) not in _PLAIN)
    looked = (each for each in own if each[0] == _FORWARD or (isinstance(each[1], CONTAINERS) and is_looked_into(each[1])))
    return [(value, Origin.of_attribute(module, name)) for name, value in looked]


_FORWARD = "forward"


class PythonState:
    """The numbers, texts and flags that a function and its modules read beside the arguments, as they were when this was made.

    A function that is recorded is recorded with these. What it changes itself, as a counter of its calls, is none of them once
    `settle` was called behind the recording.
    """

    def __init__(self, fn: Callable[..., Any], modules: Sequence[torch.nn.Module]) -> None:
        beside = [found for module in modules for found in attributes_beside(module)]
        forwards = (value for value, way in beside if way.name == _FORWARD)
        functions = itertools.chain.from_iterable(map(functions_reached, (fn, *forwards)))
        named = names_read(functions, set(map(type, modules)))
        self._modules = tuple(modules)
        by_modules = [values_reached(value, way) for value, way in beside if way.name in named]
        self._any_by_modules = any(by_modules)
        self._reached = [*values_reached(fn), *itertools.chain.from_iterable(by_modules)]
        self._read = reader([origin for _, origin in self._reached])
        self._held = [
            (number, name, value)
            for number, module in enumerate(modules)
            for name, value in vars(module).items()
            if name in named and isinstance(value, PLAIN_VALUES) and name != "training"  # which `surroundings` has
        ]

    def changed(self, modules: Sequence[torch.nn.Module]) -> str | None:
        """The name of one that is another now, where these are the modules; None where all are what they were."""
        if len(modules) != len(self._modules) or (self._any_by_modules and tuple(modules) != self._modules):
            return "a module"
        for number, name, value in self._held:
            if (now := modules[number].__dict__.get(name, _GONE)) is not value and _differ(now, value):
                return name
        if not self._reached:
            return None
        try:
            read = self._read()
        except READ_ERRORS:
            return "something that it reached"
        for now, (value, origin) in zip(read, self._reached, strict=True):
            if now is not value and _differ(now, value):
                return origin.name
        return None

    def settle(self) -> None:
        """Leave out what is another now."""
        now = ((held, self._modules[held[0]].__dict__.get(held[1], _GONE)) for held in self._held)
        self._held = [held for held, value in now if not _differ(value, held[2])]
        self._reached = [(value, origin) for value, origin in self._reached if not _differ(_now(origin), value)]
        self._read = reader([origin for _, origin in self._reached])


_GONE = object()
"""In the place of what is not there any more."""


def _now(origin: Origin) -> Any:
    try:
        return origin.read()
    except READ_ERRORS:
        return _GONE


def _differ(now: Any, then: Any) -> bool:
    return now is not then and not same_value(now, then)


def surroundings(around: ReachedModules) -> Kind:
    """What decides besides the arguments what PyTorch computes: autocasting, the type of new tensors, of which classes modules
    are, and of each what it computes, whether it trains, and its hooks, and those that all modules have."""
    casts = tuple(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None for device in ("cpu", "cuda"))
    hooks = (*_of_all_modules._global_forward_hooks, None, *_of_all_modules._global_forward_pre_hooks)
    return (*casts, torch.get_default_dtype(), hooks, *map(type, around.reached), *map(_state_of_module, around.modules))


@dataclass(frozen=True, slots=True, eq=False)
class _Itself:
    """An object that is equal to itself alone, whatever it says."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _state_of_module(module: torch.nn.Module) -> Kind:
    forward = module.__dict__.get(_FORWARD, _GONE)
    forward = getattr(type(module), _FORWARD, None) if forward is _GONE else _Itself(forward)
    held, after, before = module._modules, module._forward_hooks, module._forward_pre_hooks
    if held or after or before:
        return (forward, module.training, *map(type, held.values()), *after, *before)
    return forward, module.training  # of most modules, in every call


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[torch.Tensor]:
    """The tensors among the arguments, those inside containers too."""
    if not kwargs and all(type(arg) is torch.Tensor for arg in args):  # the usual call, without a walk
        return args
    return [leaf for leaf in leaves_of((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]


def asks_for_gradients(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether gradients are recorded, and one of the tensors requires one."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def stands_for_others(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors have no numbers that kernels could read: traced, mapped, with tangents, or of classes of their own; or
    somebody watches what is done to them."""
    transformed = torch._C._functorch.maybe_current_level() is not None
    if transformed or torch._C._len_torch_dispatch_stack() > 0 or functions_are_watched():
        return True
    return forward_ad._current_level >= 0 or any(type(tensor) not in _VALUES for tensor in tensors)


def functions_are_watched() -> bool:
    """Whether a mode of somebody's sees calls of torch functions, and may do something else in their place."""
    if not torch._C._len_torch_function_stack():
        return False
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _kind_of(value: Any, dims: Mapping[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        free = {position % value.dim() for position in dims} if value.dim() else set()
        sizes = tuple(None if position in free else size for position, size in enumerate(value.shape))
        return (sizes, value.dtype, value.device, None if free or value.is_contiguous() else value.stride())
    if type(value) in (tuple, list):
        return (type(value), *(_kind_of(part, {}) for part in value))
    if type(value) is dict:
        return (dict, *((key, _kind_of(part, {})) for key, part in value.items()))
    leaves, structure = flat(value)
    if len(leaves) != 1 or leaves[0] is not value:
        return (repr(structure), *(_kind_of(leaf, {}) for leaf in leaves))
    if parts := parts_of(value):
        return (type(value), *((name, _kind_of(part, {})) for name, part in parts))
    return (type(value), repr(value) if isinstance(value, (float, complex)) else value)  # 0.0 is not -0.0, and NaN is itself
