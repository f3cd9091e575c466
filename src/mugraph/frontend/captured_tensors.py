"""Tensors that functions bring along: which of two functions' are one tensor, or equal bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SIGN_READERS = frozenset({"atan2", "copysign", "signbit"})
"""Operators that tell -0.0 from 0."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A tensor that a function brings along: the input of its graph, and the value it has now."""

    name: str
    input: int
    tensor: Any

    @property
    def memory(self) -> tuple[Any, ...]:
        """What two tensors have in common exactly if they are one."""
        tensor = self.tensor
        return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def has_negative_zeros(tensor: Any) -> bool:
    """Whether a tensor holds -0.0."""
    from mugraph.frontend.operators.torch_casts import widened  # which imports PyTorch, as whoever has a tensor has

    return bool(tensor.is_floating_point() and ((tensor == 0) & widened(tensor).signbit()).any())


def classes_of_equal(left: Sequence[Captured], right: Sequence[Captured]) -> list[tuple[list[Captured], list[Captured]]]:
    """The tensors of both sides in classes of equal ones."""
    classes: list[tuple[list[Captured], list[Captured]]] = []
    for number, captured in ((number, captured) for number, side in enumerate((left, right)) for captured in side):
        known = next((members for members in classes if _equal((*members[0], *members[1])[0], captured)), None)
        if known is None:
            known = ([], [])
            classes.append(known)
        known[number].append(captured)
    return classes


def _equal(first: Captured, second: Captured) -> bool:
    """Whether two tensors are equal in dtype, shape and every bit: NaN equals itself, and 0.0 is not -0.0."""
    import torch

    if first.memory == second.memory:
        return True
    one, other = first.tensor, second.tensor
    if (one.dtype, one.shape) != (other.dtype, other.shape) or one.is_meta or other.is_meta:
        return False
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return torch.equal(*(tensor.cpu().resolve_neg().contiguous().view(bits) for tensor in (one, other)))
