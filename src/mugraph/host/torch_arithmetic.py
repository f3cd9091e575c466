"""The arithmetic of PyTorch: pre-defined kernels computed by torch's own operators, in the tensors' own types and places."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Shape
from mugraph.ir.ops import ROUNDINGS
from mugraph.ir.scalar import Scalar


class TorchArithmetic:
    """`mugraph.ir.arithmetic.Arithmetic` on tensors of one device; constants have rank 0, no device and never widen a result."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch

    def constant(self, value: Scalar) -> Any:
        return self.torch.tensor(float(value), dtype=self.torch.float64)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def sub(self, x: Any, y: Any) -> Any:
        return x - y

    def mul(self, x: Any, y: Any) -> Any:
        return x * y

    def div(self, x: Any, y: Any) -> Any:
        return x / y

    def exp(self, x: Any) -> Any:
        return x.exp()

    def sqrt(self, x: Any) -> Any:
        return x.sqrt()

    def sum(self, x: Any, axis: int) -> Any:
        return x.sum(axis, keepdim=True)

    def max(self, x: Any, axis: int) -> Any:
        return x.amax(axis, keepdim=True)

    def matmul(self, x: Any, y: Any) -> Any:
        common = self.torch.promote_types(x.dtype, y.dtype)
        return self.torch.matmul(x.to(common), y.to(common))

    def opaque(self, name: str, *xs: Any) -> Any:
        """The function of the same name in torch or torch.nn.functional; roundings are casts there and back."""
        x = xs[0]
        if name in _OF_BITS:
            return _OF_BITS[name](x)
        if name in _CHOICES:
            common = functools.reduce(self.torch.promote_types, (y.dtype for y in xs if y.dim()), self.torch.float16)
            return _CHOICES[name](self.torch, *self._together(xs)).to(common)
        for narrow, rounding in ROUNDINGS.items():
            if name == rounding:
                return x.to(getattr(self.torch, narrow.torch_name)).to(x.dtype)
        function = getattr(self.torch, name, None) or getattr(self.torch.nn.functional, name)
        return function(*self._together(xs))

    def view(self, x: Any, move: Callable[[Array], Array]) -> Any:
        return _moved(move(_as_array(_Moving(self.torch, x))))

    def join(self, xs: Sequence[Any], combine: Callable[[Sequence[Array]], Array]) -> Any:
        return _moved(combine([_as_array(_Moving(self.torch, self._beside(x, xs[0]))) for x in xs]))

    def _together(self, xs: Sequence[Any]) -> list[Any]:
        """Constants on the device of the others."""
        device = next((x.device for x in xs if x.dim()), xs[0].device)
        return [x if x.dim() or x.device == device else x.to(device) for x in xs]

    def _beside(self, x: Any, first: Any) -> Any:
        """A tensor with the type and place of another; of a constant only its value is taken, so that nothing is copied."""
        if x.device == first.device:
            return x.to(first.dtype)
        return self.torch.full((), float(x), dtype=first.dtype, device=first.device)


_CHOICES: Mapping[str, Callable[..., Any]] = {
    "less": lambda torch, x, y: torch.lt(x, y),
    "equal": lambda torch, x, y: torch.eq(x, y),
    "truth": lambda torch, x: x != 0,
    "select": lambda torch, condition, x, y: torch.where(condition != 0, x, y),
    "infinity": lambda torch, x: x / 0,
}
"""Functions that torch has in other words, as they are with booleans there."""


_OF_BITS: Mapping[str, Callable[[Any], Any]] = {"high_nibble": lambda x: x >> 4, "low_nibble": lambda x: x & 15}
"""Functions of whole numbers, which are tensors of integers there."""


class _Moving:
    """A tensor as moves of data see it: by the protocol through which NumPy's functions take arrays of others."""

    def __init__(self, torch: ModuleType, tensor: Any) -> None:
        self.torch, self.tensor = torch, tensor

    @property
    def shape(self) -> Shape:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return int(self.tensor.dim())

    def reshape(self, shape: Sequence[int]) -> _Moving:
        return _Moving(self.torch, self.tensor.reshape(tuple(shape)))

    def transpose(self, permutation: Sequence[int]) -> _Moving:
        return _Moving(self.torch, self.tensor.permute(tuple(permutation)))

    def __getitem__(self, place: Any) -> _Moving:
        return _Moving(self.torch, self.tensor[place])

    def __array_function__(self, function: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        move = _MOVES.get(function)
        return NotImplemented if move is None else _Moving(self.torch, move(self.torch, *args, **kwargs))


def _as_array(moving: _Moving) -> Array:
    return cast("Array", moving)  # moves use no more of NumPy's than that


def _moved(moving: Any) -> Any:
    return moving.tensor


_MOVES: Mapping[Any, Callable[..., Any]] = {
    np.tile: lambda torch, x, times: x.tensor.repeat(*times),
    np.broadcast_to: lambda torch, x, shape: x.tensor.expand(shape),
    np.flip: lambda torch, x, axis: x.tensor.flip(axis),
    np.concatenate: lambda torch, parts, axis: torch.cat([part.tensor for part in parts], dim=axis),
    np.stack: lambda torch, parts, axis: torch.stack([part.tensor for part in parts], dim=axis),
}
"""The functions of NumPy that move data without computing, by what does the same in torch."""
