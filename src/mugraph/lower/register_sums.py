"""Sums of products in registers: what a loop adds to stays in the fragments of the matrix units until the loop ends."""

from __future__ import annotations

from dataclasses import replace

from mugraph.lower.expressions import Constant, Source
from mugraph.lower.fragments import WARP, stays_in_registers
from mugraph.lower.lowered import Buffer, Elementwise, Kernel, Matmul, Memory, Statement, Tile


def with_register_sums(kernel: Kernel) -> Kernel:
    """The kernel with every accumulator that only products on matrix units add to in registers, copied out after the loop."""
    for buffer in kernel.buffers:
        products = _products_into(kernel, buffer)
        if products:
            kernel = _in_registers(kernel, buffer, products[0].target)
    return kernel


def _products_into(kernel: Kernel, buffer: Buffer) -> list[Matmul]:
    """All that touches a buffer inside the loop, where those are products that the threads' registers can hold."""
    if buffer.memory is not Memory.SHARED or not all(map(_is_zero_fill, _touching(kernel.before, buffer))):
        return []
    products: list[Matmul] = []
    for statement in _touching(kernel.body, buffer):
        adds = isinstance(statement, Matmul) and statement.accumulate and buffer.name not in _read(statement)
        if not adds or not isinstance(statement, Matmul) or not stays_in_registers(statement, kernel.threads // WARP):
            return []
        products.append(statement)
    return products if len({product.target for product in products}) == 1 else []


def _touching(statements: tuple[Statement, ...], buffer: Buffer) -> list[Statement]:
    return [s for s in statements if buffer.name == s.target.buffer or buffer.name in _read(s)]


def _read(statement: Statement) -> set[str]:
    return {tile.buffer for tile in statement.sources}


def _is_zero_fill(statement: Statement) -> bool:
    return isinstance(statement, Elementwise) and not statement.sources and statement.expression == Constant(0.0)


def _in_registers(kernel: Kernel, buffer: Buffer, target: Tile) -> Kernel:
    held = replace(target, buffer=f"{buffer.name}_held")

    def moved(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(replace(s, target=held) if s.target.buffer == buffer.name else s for s in statements)

    return replace(
        kernel,
        buffers=(*kernel.buffers, replace(buffer, name=held.buffer, memory=Memory.REGISTERS)),
        before=moved(kernel.before),
        body=moved(kernel.body),
        after=(Elementwise(target, (held,), Source(0)), *kernel.after),
    )
