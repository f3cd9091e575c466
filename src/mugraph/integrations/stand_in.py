"""What stands in the place of a function, method or module, and is looked at and changed as that is."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from torch import nn

from mugraph.results.data import Shared


class StandIn(Shared):
    """Has the attributes of `fn` beside its own. Those of a module are set and deleted in it, where its `forward` reads them."""

    fn: Callable[..., Any]

    @property
    def __code__(self) -> CodeType:
        """The code of the function, for which `torch.export` asks of a module's `forward`."""
        code: CodeType = self.fn.__code__
        return code

    def __getattr__(self, name: str) -> Any:
        """What the function, or the module, has besides: `optimized.parameters()`."""
        if name.startswith("_") or "fn" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.fn, name)

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
        """Whether an attribute is one of the module that this stands in the place of, and none of its own."""
        own = self.__dict__
        return not name.startswith("_") and name not in own and isinstance(own.get("fn"), nn.Module)
