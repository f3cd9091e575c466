"""The arithmetic of PyTorch: pre-defined kernels computed by torch's own operators, in the tensors' own types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType
from mugraph.ir.ops import ROUNDINGS
from mugraph.ir.scalar import Scalar

_TORCH_NAMES = {DType.FP16: "float16", DType.BF16: "bfloat16", DType.FP32: "float32"}


class TorchArithmetic:
    """`mugraph.ir.arithmetic.Arithmetic` on CPU tensors; constants have rank 0 and never widen a result."""

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

    def opaque(self, name: str, x: Any) -> Any:
        """The function of the same name in torch or torch.nn.functional; roundings are casts there and back."""
        for narrow, rounding in ROUNDINGS.items():
            if name == rounding:
                return x.to(getattr(self.torch, _TORCH_NAMES[narrow])).to(x.dtype)
        function = getattr(self.torch, name, None) or getattr(self.torch.nn.functional, name)
        return function(x)

    def view(self, x: Any, move: Callable[[Array], Array]) -> Any:
        return self._moved([x], lambda arrays: move(arrays[0]))

    def join(self, xs: Sequence[Any], combine: Callable[[Sequence[Array]], Array]) -> Any:
        return self._moved([x.to(xs[0].dtype) for x in xs], combine)

    def _moved(self, xs: Sequence[Any], move: Callable[[Sequence[Array]], Array]) -> Any:
        """Move data in NumPy without copying it there and back; the bits of bf16, which NumPy lacks, pass as integers."""
        dtype = xs[0].dtype
        foreign = dtype is self.torch.bfloat16
        arrays = [(x.view(self.torch.int16) if foreign else x).numpy() for x in xs]
        result = self.torch.from_numpy(np.asarray(move(arrays)))
        return result.view(dtype) if foreign else result
