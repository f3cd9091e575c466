"""The products of warp groups by inline PTX: one instruction a size and type, whose operands are as many as its sums."""

from __future__ import annotations

import itertools

from mugraph.lower.warp_groups import SIZES

_TYPES = {"fp16_t": "f16", "bf16_t": "bf16"}


def wgmma_products() -> str:
    """CUDA C++ text: the specializations of `wgmma_m64k16`, with the left factor in registers and in shared memory."""
    return "\n".join(_product(*each) for each in itertools.product(SIZES, _TYPES, (False, True), (False, True)))


def _product(columns: int, element: str, columns_first: bool, left_in_registers: bool) -> str:
    sums, kind = columns // 2, _TYPES[element]
    parts = [f"left[{number}]" for number in range(4)] if left_in_registers else ["left.bits"]
    outputs, left = _operands(0, sums), _operands(sums, len(parts))
    first = f"{{{left}}}" if left_in_registers else left
    transposed = f"{int(columns_first)}" if left_in_registers else f"0, {int(columns_first)}"
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
    operands = f"{{{outputs}}}, {first}, {_operands(sums + len(parts), 1)}, 1, 1, 1, {transposed}"
    changed = ", ".join(f'"+f"(sum[{number // 4}][{number % 4}])' for number in range(sums))
    read = ", ".join(f'"{"r" if left_in_registers else "l"}"({part})' for part in parts)
    factor = "const unsigned (&left)[4]" if left_in_registers else "matrix_t left"
    name = f"wgmma_m64k16<{element}, {columns}, {str(columns_first).lower()}>"
    return f"""template <>
INLINE void {name}(float (&sum)[{columns // 8}][4], {factor}, matrix_t right)
{{
    asm volatile("{instruction} {operands};"
                 : {changed}
                 : {read}, "l"(right.bits) : "memory");
}}"""


def _operands(first: int, count: int) -> str:
    return ", ".join(f"%{number}" for number in range(first, first + count))
