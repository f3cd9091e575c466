"""What stands in the place of a function, method or module, and is looked at and changed as that is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, MethodType
from typing import Any

from torch import nn

from mugraph.results.data import Shared

_GIVE_THE_MODULE = frozenset(
    {
        *("apply", "requires_grad_", "share_memory", "to_empty", "train", "eval"),
        *("to", "type", "cpu", "cuda", "ipu", "mtia", "xpu", "bfloat16", "double", "float", "half"),
    }
)
"""Methods of modules that return the module itself."""


class StandIn(Shared):
    """Has the attributes of `fn` beside its own. Those of a module are set and deleted in it, where its `forward` reads them, and
    methods of it that return the module return what stands in its place."""

    fn: Callable[..., Any]

    @property
    def __code__(self) -> CodeType:
        """The code of the function, for which `torch.export` asks of a module's `forward`."""
        code: CodeType = self.fn.__code__
        return code

    def __getattr__(self, name: str) -> Any:
        """What the function, or the module, has besides: `optimized.parameters()`."""
        fn = self.__dict__.get("fn")
        if fn is None or (name.startswith("_") and not self._is_of_module(name)):
            raise AttributeError(name)
        value = getattr(fn, name)
        if name in _GIVE_THE_MODULE and isinstance(value, MethodType) and isinstance(fn, nn.Module):
            return functools.partial(self._in_its_place, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if self._is_of_module(name):
            setattr(self.fn, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_of_module(name):
            delattr(self.fn, name)
        else:
            super().__delattr__(name)

    def _is_of_module(self, name: str) -> bool:
        """Whether an attribute is one of the module that this stands in the place of, and none of its own: private ones are where
        the module has such a one."""
        module = self.__dict__.get("fn")
        if not isinstance(module, nn.Module) or name.startswith("__") or name in self.__dict__ or hasattr(type(self), name):
            return False
        return not name.startswith("_") or hasattr(module, name)

    def _in_its_place(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a method of the module returns, or this where that is the module."""
        returned = method(*args, **kwargs)
        return self if returned is self.fn else returned
