"""Products of 16-bit tensors on a CPU, in fp32 and rounded: what a CPU has no instructions for, PyTorch multiplies one by one.

It sums in fp32, too, so that they mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NARROW = (torch.float16, torch.bfloat16)
_NAMES = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "_addmm_activation")


def _overloads() -> Iterator[tuple[Any, tuple[Any, bool]]]:
    """Each way to call a product, with the one that returns a new tensor, and whether the first operand is written into."""
    for name in _NAMES:
        pure = getattr(torch.ops.aten, name)
        yield pure.default, (pure.default, False)
        yield pure.out, (pure.default, False)
        if hasattr(torch.ops.aten, f"{name}_"):
            yield getattr(torch.ops.aten, f"{name}_").default, (pure.default, True)


_PRODUCTS = dict(_overloads())


class WideProducts(TorchDispatchMode):
    """While it is entered, products of tensors of one 16-bit type on the CPU are computed in fp32 and rounded to that type.

    That holds under inference mode, too, which does not take `@` and `einsum` apart by itself, and for results that are written
    into a tensor of their shape and type.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated by torch

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func not in _PRODUCTS:
            return self._in_parts(func, types, args, given)
        pure, in_place = _PRODUCTS[func]
        target = args[0] if in_place else given.pop("out", None)
        written = [] if target is None else [target]
        tensors = [each for each in (*args, *written) if isinstance(each, torch.Tensor)]
        types_of = {tensor.dtype for tensor in tensors}
        if len(types_of) != 1 or not types_of <= set(_NARROW) or any(tensor.device.type != "cpu" for tensor in tensors):
            return func(*args, **(kwargs or {}))
        wide = pure(*(each.float() if isinstance(each, torch.Tensor) else each for each in args), **given)
        if target is None:
            return wide.to(tensors[0].dtype)
        return target.copy_(wide) if target.shape == wide.shape else func(*args, **(kwargs or {}))

    def _in_parts(self, func: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """An operator that is made of others as these, as it reaches no mode outside of inference mode.

        Tensors of other kinds, as nested ones, may have a way of their own to compute it.
        """
        nested = (isinstance(each, torch.Tensor) and each.is_nested for each in tree_leaves((args, kwargs)))
        if not torch.is_inference_mode_enabled() or any(types) or any(nested):
            return func(*args, **kwargs)
        with self:
            made = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if made is NotImplemented else made
