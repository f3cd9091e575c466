"""What the text of Triton kernels depends on of a GPU: lanes of a warp, its matrix units, room for copies that are under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mugraph.ir.dtypes import DType
from mugraph.lower.tile_form import Matmul
from mugraph.targets.triton.tensors import Padding

_LEAST_DEPTH = 16
"""Values of k from which on `tl.dot` takes factors of any type."""
_SIXTEEN_BITS = frozenset({DType.FP16, DType.BF16})


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a multiprocessor, as Triton's compiler uses them."""

    lanes: int
    """Threads of a warp."""
    types: frozenset[DType]
    """Of the factors that matrix units multiply; other products are threads'."""
    least: int
    """Rows and columns of the smallest product of matrix units: Triton pads factors to them by itself where this is 1."""
    tf32: bool
    """Whether they multiply in TF32."""
    pipelined_bytes: int
    """What copies of the coming iterations' tiles may take of shared memory together."""
    unread: frozenset[DType] = frozenset()
    """Element types that Triton does not read there."""

    def rounds_factors(self, product: Matmul) -> bool:
        """Whether `tl.dot` multiplies the factors of a product as narrow as it may: without TF32, fp32 takes its place."""
        return is_dot(product) and (self.tf32 or not product.tf32)

    def factor_type(self, product: Matmul) -> DType:
        """The type that factors of a product have in registers."""
        return DType.FP32 if product.tf32 else product.dtype


NVIDIA = Units(lanes=32, types=_SIXTEEN_BITS, least=1, tf32=True, pipelined_bytes=128 * 1024)
"""Any of them: all multiprocessors have more shared memory than copies may take. Threads multiply factors of fp32."""

_BEFORE_FP8 = replace(NVIDIA, unread=frozenset({DType.E4M3}))
"""Of compute capability 8.0, which has no conversions from fp8."""

AMD: Mapping[str, Units] = {
    "gfx942": Units(lanes=64, types=_SIXTEEN_BITS | {DType.FP32}, least=16, tf32=False, pipelined_bytes=32 * 1024),
    "gfx950": Units(lanes=64, types=_SIXTEEN_BITS | {DType.FP32}, least=16, tf32=False, pipelined_bytes=80 * 1024),
    "gfx1100": Units(lanes=32, types=_SIXTEEN_BITS, least=16, tf32=False, pipelined_bytes=32 * 1024),
}
"""By architecture. Matrix units multiply 16 rows and columns (CDNA's, the MFMA instructions, 32 too; RDNA's are WMMA). Those of
gfx942 know a TF32, which later ones lack: none is asked for it. Copies may take half of the shared memory of a block."""


def is_dot(product: Matmul) -> bool:
    """Whether `tl.dot` multiplies the factors of a lowered product."""
    *_, rows, columns = product.target.shape
    return has_dot(rows, columns, product.left.shape[-1])


def has_dot(rows: int, columns: int, depth: int) -> bool:
    """Whether `tl.dot` takes factors of such sizes."""
    return rows > 1 and columns > 1 and Padding().size(depth) >= _LEAST_DEPTH


def units_of(architecture: str) -> Units:
    """The units of an architecture such as `sm_90` or `gfx942`."""
    return AMD.get(architecture, _BEFORE_FP8 if architecture == "sm_80" else NVIDIA)
