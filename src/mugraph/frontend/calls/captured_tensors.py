"""Tensors that a function brings along, as every call of what runs in its place reads them: by the names that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.calls.origins import READ_ERRORS, Origin, quick_reader
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
    device: torch.device | None = None
    """Where it lies, where what the function does may depend on that."""
    strides: tuple[int, ...] | None = None
    """Those that it has, where what the function does may depend on them."""
    no_gradient: bool = False
    """Whether it has no gradient, and what the function does may depend on that."""

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, origins: Sequence[Origin], computed: bool = False) -> CapturedSource:
        """The source of `tensor`, which `origins` lead to; without any, it is this one for ever."""
        ways = tuple(origins) or (Origin.at(name, tensor),)
        return cls(name, tuple(tensor.shape), tensor.dtype, ways, constant=not origins, computed=computed and not origins)

    @classmethod
    def of_asked(
        cls, name: str, tensor: torch.Tensor, origins: Sequence[Origin], by_strides: bool, by_gradient: bool = False
    ) -> CapturedSource:
        """The source of a tensor of which not the numbers matter, while what the function does depends on what kind of tensor it
        is, and, with `by_strides`, on how it lies, with `by_gradient` on its having no gradient. One without data lies on any
        device."""
        device = None if tensor.device.type == "meta" else tensor.device
        strides = tuple(tensor.stride()) if by_strides else None
        ways = tuple(origins) or (Origin.at(name, tensor),)
        return cls(name, tuple(tensor.shape), tensor.dtype, ways, device=device, strides=strides, no_gradient=by_gradient)

    def __call__(self) -> torch.Tensor:
        """The tensor, without its gradient."""
        return without_gradient(self.tensor(), _TENSOR)

    def tensor(self) -> torch.Tensor:
        """The tensor as the function has it."""
        return self._one_of(ends_of([self]))

    def checked(self, values: Iterator[Any]) -> torch.Tensor:
        """The tensor without its gradient, where its ways lead to the next of these values."""
        return without_gradient(self._one_of(values), _TENSOR)

    def expect(self) -> None:
        """Raise what a call raises, unless its ways lead to a tensor which lies as it did."""
        tensor = self.tensor()
        if self.device is not None and tensor.device != self.device:
            where = f"on {self.device} when the function was traced, and is on {tensor.device} now"
            raise InvalidInput(f"{self.name} was {where}; optimize again")
        if self.strides is not None and not lies_alike(tensor, self.strides):
            what = f"{self.name} has strides {list(tensor.stride())}, optimized for {list(self.strides)}"
            raise InvalidInput(f"{what}, which the function may ask for; make it contiguous, or optimize again")
        if self.no_gradient and tensor.grad is not None:
            what = f"{self.name} had no gradient when the function was traced, which asks for it, and has one now"
            raise InvalidInput(f"{what}; set it to None, or optimize again")

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


def kinds(sources: Sequence[CapturedSource]) -> Callable[[], bool]:
    """A call that looks, in less than a microsecond for one, whether each source leads to a tensor as it was. Where it says no,
    `CapturedSource.expect` says what is wrong."""
    entries = [
        (quick_reader(first), [*map(quick_reader, others)], source) for source in sources for first, *others in [source.origins]
    ]

    def are_still() -> bool:
        try:
            for read, others, source in entries:
                tensor, device, strides = read(), source.device, source.strides
                if tensor.shape != source.shape or tensor.dtype is not source.dtype:
                    return False
                if (device is not None and tensor.device != device) or (source.no_gradient and tensor.grad is not None):
                    return False
                if (strides is not None and not lies_alike(tensor, strides)) or any(other() is not tensor for other in others):
                    return False
        except READ_ERRORS:
            return False
        return True

    return are_still


def ends_of(sources: Iterable[CapturedSource]) -> Iterator[Any]:
    """What all ways of sources lead to, in order; raises InvalidInput, naming the way that has ended."""
    for origin in (origin for source in sources for origin in source.origins):
        try:
            yield origin.read()
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


def lies_alike(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides, but for dimensions of size 1."""
    have = tensor.stride()
    if have == strides:  # which takes a fraction of the time
        return True
    return all(size == 1 or own == wanted for size, own, wanted in zip(tensor.shape, have, strides, strict=True))
