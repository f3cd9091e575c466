"""The products of warp groups by inline PTX: one instruction a size and type, whose operands are as many as its sums."""

from __future__ import annotations

from mugraph.lower.warp_groups import SIZES

_TYPES = {"fp16_t": "f16", "bf16_t": "bf16"}


def wgmma_products() -> str:
    """CUDA C++ text: the specializations of `wgmma_m64k16`."""
    return "\n".join(
        _product(columns, element, columns_first) for columns in SIZES for element in _TYPES for columns_first in (False, True)
    )


def _product(columns: int, element: str, columns_first: bool) -> str:
    sums = columns // 2
    outputs = ", ".join(f"%{number}" for number in range(sums))
    left = ", ".join(f"%{sums + number}" for number in range(4))
    kind = _TYPES[element]
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
    operands = f"{{{outputs}}}, {{{left}}}, %{sums + 4}, 1, 1, 1, {int(columns_first)}"
    changed = ", ".join(f'"+f"(sum[{number // 4}][{number % 4}])' for number in range(sums))
    read = ", ".join(f'"r"(left[{number}])' for number in range(4))
    flag = str(columns_first).lower()
    return f"""template <>
INLINE void wgmma_m64k16<{element}, {columns}, {flag}>(float (&sum)[{columns // 8}][4], const unsigned (&left)[4], matrix_t right)
{{
    asm volatile("{instruction} {operands};"
                 : {changed}
                 : {read}, "l"(right.bits) : "memory");
}}"""
