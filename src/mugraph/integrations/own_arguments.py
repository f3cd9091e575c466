"""Arguments of calls for work that others do than the caller, who may write to them meanwhile, or who is not to be written to.

Copies lie as what they were made of does. Of what is copied in a call for work behind it there is little, as the call waits for
that: what is left is read where it lies, and watched while it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.pieces.cutting import contradiction
from mugraph.support.forking import lock_of_process

_ALIGNED = 64
"""Copies lie like what they were made of up to so many bytes, which is what kernels may ask of addresses."""
_MOST_BYTES = 1 << 26
"""What copies for work behind calls take in a process at a time, at most: to make them takes some ten milliseconds."""

MOST_TRIES = 8
"""Comparisons that somebody disturbs who writes to arguments are made so often."""


def copies_of(arguments: Sequence[Any]) -> list[Any]:
    """Arguments with memory of their own: tensors lie in it as they do in theirs, side by side, spread or one over the other."""
    copied = _copied(_memories(filter(_is_plain, arguments)))
    return [_clone(each) if isinstance(each, torch.Tensor) and not _is_plain(each) else copied(each) for each in arguments]


class OwnArguments:
    """The arguments of a call (`given`) for work that may be done behind it: as they are, or `copied`."""

    def __init__(self, given: Sequence[Any], copied: Collection[int] = ()) -> None:
        """`copied` are the numbers of those that nobody else has."""
        self.given = given
        self._copied = copied
        self._bytes = 0

    @classmethod
    def copied(cls, arguments: Sequence[Any]) -> OwnArguments:
        """With memory of their own as far as there is room for it, the smallest first: not for parameters, which only training
        writes to, nor for what lies on a GPU or is more than elements in memory."""
        own = {number for number, each in enumerate(arguments) if _is_plain(each) and each.device.type == "cpu"}
        parameters = [each for each in arguments if isinstance(each, torch.nn.Parameter) and _is_plain(each)]
        memories = _memories(arguments[number] for number in own)
        for parameter in parameters:  # whatever else lies in its memory
            memories.pop(_address(parameter), None)
        with _choosing, _disable_current_modes(), torch.no_grad():
            left = _MOST_BYTES - sum(other._bytes for other in _alive)
            taken = dict[int, _Memory]()
            for address, memory in sorted(memories.items(), key=lambda item: item[1].bytes):
                left -= memory.bytes
                if left < 0:
                    break
                taken[address] = memory
            numbers = {number for number in own if _address(arguments[number]) in taken}
            copy = _copied(taken)
            made = cls([copy(each) if number in numbers else each for number, each in enumerate(arguments)], numbers)
            made._bytes = sum(memory.bytes for memory in taken.values())
            _alive.add(made)
        return made

    def contradiction(self, wanted: Callable[..., Any], got: Callable[..., Any]) -> str | None:
        """What speaks against `got` as what returns the same for them as `wanted` does, as `contradiction` says it; "" if nothing
        does, and None where they changed while both were called."""
        before = self._versions()
        usual = wanted(*self.given)
        wrong = contradiction(usual, got(*self.given))
        if wrong and (self._versions() != before or contradiction(usual, wanted(*self.given))):
            return None
        return wrong

    def _versions(self) -> list[int]:
        """Numbers that differ once PyTorch has written to one that is not a copy: those of inference mode have none."""
        shared = (each for number, each in enumerate(self.given) if number not in self._copied)
        return [each._version for each in shared if isinstance(each, torch.Tensor) and not each.is_inference()]


_alive = weakref.WeakSet[OwnArguments]()
"""Those with copies that somebody still has."""
_choosing = lock_of_process()


@dataclass(slots=True)
class _Memory:
    """The bytes of a storage between which some tensors lie."""

    storage: torch.UntypedStorage
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.begin


def _memories(tensors: Iterable[torch.Tensor]) -> dict[int, _Memory]:
    """By address what tensors lie in."""
    found = dict[int, _Memory]()
    # Parts of an array of NumPy's may begin alike and end one before the other.
    for tensor in sorted(tensors, key=_storage_bytes):
        (begin, end), address = _span(tensor), _address(tensor)
        known = found.get(address)
        if known is not None:
            begin, end = min(begin, known.begin), max(end, known.end)
        found[address] = _Memory(tensor.untyped_storage(), begin, end)
    return found


def _copied(memories: dict[int, _Memory]) -> Callable[[Any], Any]:
    """What copies tensors that lie in some memory, each of which is copied once; it returns everything else as it is."""
    copies = dict[int, torch.Tensor]()

    def copied(argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return argument
        address = _address(argument)
        memory = memories[address]
        begin = memory.begin - memory.begin % _ALIGNED
        if address not in copies:
            taken = torch.empty(0, dtype=torch.uint8, device=argument.device)
            copies[address] = taken.set_(memory.storage, begin, (memory.end - begin,)).clone()  # type: ignore[call-overload]  # strides are optional
        offset = argument.storage_offset() - begin // argument.element_size()
        copy = torch.empty(0, dtype=argument.dtype, device=argument.device)
        copy.set_(copies[address].untyped_storage(), offset, argument.shape, argument.stride())
        return copy.requires_grad_(argument.requires_grad)

    return copied


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _is_plain(argument: Any) -> bool:
    """Whether an argument is a tensor that is nothing but elements in memory."""
    if type(argument) not in (torch.Tensor, torch.nn.Parameter) or argument.layout is not torch.strided:
        return False
    return not (argument.is_conj() or argument.is_neg())


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its memory that a tensor lies between."""
    begin = int(tensor.storage_offset()) * tensor.element_size()
    if not tensor.numel():
        return begin, begin
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()
