"""Products of 16-bit tensors on a CPU, in fp32 and rounded: what a CPU has no instructions for, PyTorch multiplies one by one.

It sums in fp32, too, so that they mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NARROW = (torch.float16, torch.bfloat16)
_PRODUCTS = frozenset(
    getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "_addmm_activation")
)


class WideProducts(TorchDispatchMode):
    """While it is entered, products of tensors of one 16-bit type on the CPU are computed in fp32 and rounded to that type.

    But for those that write into a tensor that is given, and what inference mode does not take apart (`@`, `einsum`).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated by torch

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        narrow = {tensor.dtype for tensor in tensors if tensor.device.type == "cpu"}
        if func not in _PRODUCTS or len(narrow) != 1 or not narrow <= set(_NARROW):
            return func(*args, **given)
        (dtype,) = narrow
        wide = [each.float() if isinstance(each, torch.Tensor) else each for each in args]
        return func(*wide, **given).to(dtype)
