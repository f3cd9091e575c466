"""Tensors that a function brings along, as every call of what runs in its place reads them: by the names that lead to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.calls.origins import READ_ERRORS, Origin
from mugraph.support.user_warnings import warn_of_gradient

_TENSOR = "a tensor of the function"


@dataclass(frozen=True, slots=True)
class CapturedSource:
    """A tensor that a function brings along: a parameter or buffer of a module, or one that it closes over.

    A call gives it as it is now, of the shape and dtype it had when the function was traced. Raises ShapeMismatch where it is
    of another, InvalidInput where the names that led to it (`origins`) lead to no tensor or no longer to one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    origins: tuple[Origin, ...]
    constant: bool = False
    """Whether it is the same tensor for ever, so that calls with tensors on another device may have a copy there."""
    computed: bool = False
    """Whether the function computes it of no tensor, or writes it down: saved results bring its value along."""

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, origins: Sequence[Origin], computed: bool = False) -> CapturedSource:
        """The source of `tensor`, which `origins` lead to; without any, it is this one for ever."""
        ways = tuple(origins) or (Origin.at(name, tensor),)
        return cls(name, tuple(tensor.shape), tensor.dtype, ways, constant=not origins, computed=computed and not origins)

    def __call__(self) -> torch.Tensor:
        """The tensor, without its gradient."""
        return without_gradient(self.tensor(), _TENSOR)

    def tensor(self) -> torch.Tensor:
        """The tensor as the function has it."""
        return self._one_of(map(self._end, self.origins))

    def checked(self, values: Iterator[Any]) -> torch.Tensor:
        """The tensor without its gradient, where its ways lead to the next of these values."""
        return without_gradient(self._one_of(values), _TENSOR)

    def _one_of(self, values: Iterator[Any]) -> torch.Tensor:
        """The value that all ways lead to, in their order."""
        first, *others = self.origins
        tensor = next(values)
        if not isinstance(tensor, torch.Tensor):
            raise _ended(first)
        for other in others:
            value = next(values)
            if not isinstance(value, torch.Tensor):
                raise _ended(other)
            if value is not tensor:
                raise InvalidInput(
                    f"{first.name} and {other.name} were one tensor when the function was traced, and are two now; optimize again"
                )
        if tensor.shape != self.shape or tensor.dtype is not self.dtype:
            raise another_kind(f"tensor {self.name} of the function", tensor, self.shape, self.dtype)
        return tensor

    @staticmethod
    def _end(origin: Origin) -> Any:
        try:
            return origin.read()
        except READ_ERRORS:
            raise _ended(origin) from None


def _ended(origin: Origin) -> InvalidInput:
    return InvalidInput(f"{origin.name} was a tensor when the function was traced, and is none now; optimize again")


def without_gradient(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """The tensor's values alone. Warns (GradientsDropped) where a gradient is asked for that no kernel gives."""
    if not tensor.requires_grad:
        return tensor
    if torch.is_grad_enabled():
        warn_of_gradient(what)
    return tensor.detach()


def another_kind(what: str, tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None) -> ShapeMismatch:
    """The error that names a tensor which is of another shape or dtype than was traced."""
    has, wanted = f"{tensor.dtype} {list(tensor.shape)}", f"{dtype} {list(shape)}"
    return ShapeMismatch(f"{what} is {has}, optimized for {wanted}; optimize again for other inputs")
