"""Element types of tensors."""

from __future__ import annotations

from enum import StrEnum

from mugraph.errors import InvalidInput


class DType(StrEnum):
    """Floating-point element type of a tensor; the value is its name in text, JSON and on the command line."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    FP64 = "fp64"

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return _BYTES[self]

    @classmethod
    def parse(cls, text: str) -> DType:
        """The type called `text`; raises InvalidInput with the known names otherwise."""
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(cls)
            raise InvalidInput(f"unknown dtype {text!r}; use one of {known}") from None

    def promote(self, other: DType) -> DType:
        """The result type of an operator on both, as in PyTorch (fp16 with bf16 gives fp32)."""
        if self is other:
            return self
        if {self, other} == {DType.FP16, DType.BF16}:
            return DType.FP32
        return max(self, other, key=lambda dtype: dtype.bytes)


_BYTES = {DType.FP16: 2, DType.BF16: 2, DType.FP32: 4, DType.FP64: 8}
