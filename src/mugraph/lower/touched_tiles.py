"""The tiles that statements read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Reduce, Scan, Statement, Tile


def reads_target(statement: Statement) -> bool:
    """Whether a statement needs the old content of its target."""
    match statement:
        case Elementwise():
            return statement.combine is not None
        case Scan():
            return False
        case Reduce() | Matmul():
            return statement.accumulate


def touches_registers(kernel: Kernel, statement: Statement) -> bool:
    """Whether fragments of matrix units, or rows of these, and not runs of elements, decide which thread touches what."""
    return any(kernel.buffer(tile.buffer).memory.in_registers for tile in (statement.target, *statement.sources))


def touching(statements: Iterable[Statement], name: str) -> list[Statement]:
    """The statements that read or write a buffer, in their order."""
    return [s for s in statements if any(tile.buffer == name for tile in (s.target, *s.sources))]


def with_tiles(statement: Statement, change: Callable[[Tile], Tile]) -> Statement:
    """The statement with every tile changed; places of panels stay."""
    if isinstance(statement, Matmul):
        made = statement.dequantized
        made = None if made is None else replace(made, sources=tuple(map(change, made.sources)))
        target, left, right = map(change, (statement.target, statement.left, statement.right))
        return replace(statement, target=target, left=left, right=right, dequantized=made)
    return replace(statement, target=change(statement.target), sources=tuple(map(change, statement.sources)))
