"""Which calls of a function the same kernels answer: kinds of arguments, and of what is around a call; and one way to call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.nn.modules.module as _of_all_modules
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.objects import flat, leaves_of, parts_of
from mugraph.frontend.calls.python_state import FORWARD, GONE, ReachedModules

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


def surroundings(around: ReachedModules) -> Kind:
    """What decides besides the arguments what PyTorch computes: autocasting, the type of new tensors, of which classes modules
    are, and of each what it computes, whether it trains, and its hooks, and those that all modules have."""
    casts = tuple(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None for device in ("cpu", "cuda"))
    hooks = (*_of_all_modules._global_forward_hooks, None, *_of_all_modules._global_forward_pre_hooks)
    return (*casts, torch.get_default_dtype(), hooks, *map(type, around.reached), *map(_state_of_module, around.modules))


@dataclass(frozen=True, slots=True, eq=False)
class _Itself:
    """An object that is equal to itself alone, whatever it says; methods are those of one object, however often it is asked."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Itself):
            return False
        return other.value is self.value or (type(self.value) is MethodType and bool(other.value == self.value))

    def __hash__(self) -> int:
        return hash(self.value) if type(self.value) is MethodType else id(self.value)


def _state_of_module(module: torch.nn.Module) -> Kind:
    forward = module.__dict__.get(FORWARD, GONE)
    forward = getattr(type(module), FORWARD, None) if forward is GONE else _Itself(forward)
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
    traced = torch._C._get_tracing_state() is not None  # by torch.jit.trace
    if transformed or traced or torch._C._len_torch_dispatch_stack() > 0 or functions_are_watched():
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


def all_by_one(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """A call with all arguments by position, or all by name, where the function can be called so."""
    try:
        example = example_of(fn, args, kwargs)
    except InvalidInput:  # some only have a place and others a name, or it does not say which there are
        return args, kwargs
    return ((), example) if isinstance(example, dict) else (example, {})


def example_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
    """The arguments as `superoptimize` takes them: all by position, or all by name."""
    if not kwargs:
        return tuple(args)
    if not args:
        return dict(kwargs)
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except ValueError:
        raise InvalidInput("it does not say which arguments it has; give all by position, or all by name") from None
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(f"{getattr(fn, '__name__', type(fn).__name__)} takes {signature}: {error}") from None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if all(signature.parameters[name].kind in by_name for name in bound.arguments):
        return dict(bound.arguments)
    if bound.kwargs:
        raise InvalidInput("arguments that only have a place are beside others that only have a name")
    return bound.args
