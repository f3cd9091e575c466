"""Scores in registers: what one product makes and another multiplies, as attention does, never leaves the lanes that hold it.

The sums of two neighbouring 16 x 8 tiles lie in a warp as the left factor of 16 values of k does. So where each warp holds whole
rows of the first product, these and what elementwise statements make of them need no shared memory, and the second product takes
its left factor from there, rounded to its type. Four lanes hold a row: for its sum and its maximum they meet by shuffles, and one
of them stores it.

Every warp is to have rows: the block gets as many warps as there are bands of 16 rows, four or eight. Few rows, as of one new
token, have no such split: there several warps hold each row of the scores, and all of them read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mugraph.devices.products import DEPTH, ROWS, WARP
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.lower.fragments import on_matrix_units, row_bands, takes_left_from_registers
from mugraph.lower.rescaled_sums import with_rescaled_sums
from mugraph.lower.scalar_expressions import Source
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.tiles import same_elements, same_sizes, with_unit_dimensions
from mugraph.lower.touched_tiles import reads_target, touching
from mugraph.lower.warp_groups import held_registers, tiles_of

_Loops = TypeVar("_Loops", Elementwise, Reduce)

_WARPS = (4, 8)
"""Of a block that holds rows: with fewer of them too few copies are on their way, with more each has too few registers."""
_MOST_REGISTERS = 160
"""Of a lane, for all that lies in fragments at once. Of 64 for the scores and 128 for a result and its rescaled sum NVRTC 13.0
spills 700 bytes; of 32 and 128 none. Where the product adds to the sum, 64 and 64 spill 324 bytes as warps load right factors,
and none where groups read these from shared memory."""
_MOST_OF_WARPS = 224
"""The same of warps that load right factors, which have scores three times: beside themselves, their weights in 16 bits and the
factors that as many values of k take. Of 64 for the scores and 64 for a result and its rescaled sum, NVRTC 13.0 spills 40 to 124
bytes on sm_80 and sm_100; of 56 and 64 up to 60; of 64 and 32, of 48 and 64 and of 32 and 128 none."""


def with_register_scores(kernel: Kernel, grouped: bool = False) -> Kernel:
    """The kernel with the left factors of its products in registers, as far as each warp can hold whole rows of them.

    `grouped`: what a result would take that is added to a sum instead is left for scores, as groups alone have room for it.
    """
    for product in kernel.statements:
        if isinstance(product, Matmul) and not takes_left_from_registers(kernel, product) and (found := _scores(kernel, product)):
            held = found.in_registers()
            rescaled = with_rescaled_sums(held)
            kernel = rescaled if _has_room(rescaled if grouped else held, product.left, grouped) else kernel
    return kernel


def _has_room(kernel: Kernel, scores: Tile, grouped: bool) -> bool:
    """Whether no lane of a kernel holds more in fragments, its scores among it, than it has registers for."""
    held, split = held_registers(kernel), tiles_of(kernel, scores)
    return held <= _MOST_REGISTERS and (grouped or held + 2 * split.down * split.across * 4 <= _MOST_OF_WARPS)


def can_take_left(kernel: Kernel, product: Matmul) -> bool:
    """Whether every warp holds whole rows of a product's left factor in registers, and takes the same rows of the target."""
    if product.tf32 or not on_matrix_units(product) or product.left.shape[:-1] != product.target.shape[:-1]:
        return False
    left, target = tiles_of(kernel, product.left), tiles_of(kernel, product.target)
    alike = (left.down, left.bands, left.batch, left.warps) == (target.down, target.bands, target.batch, target.warps)
    in_registers = kernel.buffer(product.right.buffer).memory is not Memory.REGISTERS
    return alike and target.panels == 1 and holds_whole_rows(kernel, product.left) and in_registers


def holds_whole_rows(kernel: Kernel, tile: Tile) -> bool:
    """Whether one warp holds all of each row of a tile in registers, and whole fragments of it."""
    split = tiles_of(kernel, tile)
    return split.panels == 1 and tile.shape[-1] % DEPTH == 0 and split.busy * WARP <= kernel.threads


def _scores(kernel: Kernel, product: Matmul) -> _Scores | None:
    """What would lie in registers of the left factor of a product; None where no product makes it, or it cannot."""
    left, target, right = product.left, product.target.shape, kernel.buffer(product.right.buffer)
    warps = _warps_for(target)
    multiplies = on_matrix_units(product) and not product.tf32 and right.memory is not Memory.REGISTERS
    if warps is None or not multiplies or left.shape[:-1] != target[:-1] or left.shape[-1] % DEPTH:
        return None
    if row_bands(left.shape, warps) is None or row_bands(target, warps) is None:
        return None
    parts = (kernel.before, kernel.body, kernel.after) if kernel.loop > 1 else (kernel.statements,)
    scores = _Scores(kernel, product, next(part for part in parts if product in part), warps * WARP)
    return scores if scores.take(left) and scores.start_with_a_product() and scores.leaves_others_alone() else None


def _warps_for(target: Shape) -> int | None:
    """Warps of a block that has enough of them for all rows of a target, or as many as there may be; None for too few rows."""
    *batch, rows, _ = target
    bands = math.prod(batch) * -(-rows // ROWS)
    return next((warps for warps in _WARPS if warps // 2 < min(bands, _WARPS[-1]) <= warps), None)


@dataclass(slots=True)
class _Scores:
    """The tiles, by their buffers, that statements of a `part` of a kernel make of a product and `product` multiplies."""

    kernel: Kernel
    product: Matmul
    part: tuple[Statement, ...]
    threads: int
    tiles: dict[str, Tile] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """The shape of all of them: matrices, rows, columns."""
        return self.product.left.shape

    def take(self, tile: Tile) -> bool:
        """Add a tile and what it is made of, as far as these can lie in registers; whether it can."""
        if tile.buffer in self.tiles:
            return same_elements(tile, self.tiles[tile.buffer])
        users = self.users(tile.buffer)
        if not self.may_move(tile.buffer) or not all(user in self.part and self.alike(user, tile) for user in users):
            return False
        made = [user for user in users if user.target.buffer == tile.buffer]
        if len(made) != 1 or made[0] is not users[0] or reads_target(made[0]):
            return False
        self.tiles[tile.buffer] = tile
        for source in made[0].sources if isinstance(made[0], Elementwise) else ():
            if same_sizes(source.shape, self.shape):
                self.take(with_unit_dimensions(source, self.shape))
        return True

    def users(self, name: str) -> list[Statement]:
        """All statements that touch a buffer, in their order."""
        return touching(self.kernel.statements, name)

    def may_move(self, name: str) -> bool:
        """Whether a buffer is the block's own, of just these elements."""
        buffer = self.kernel.buffer(name)
        return buffer.memory is not Memory.DEVICE and buffer.elements == math.prod(self.shape)

    def alike(self, statement: Statement, tile: Tile) -> Statement | None:
        """A statement that touches a tile, in the dimensions of all; None where lanes that hold rows could not run it."""
        match statement:
            case Matmul():
                makes = self.is_made_by(statement, tile)
                takes = statement.left == tile and (statement == self.product or _takes_alike(statement, self.product))
                others = [statement.right, statement.left if makes else statement.target]
                return statement if makes != takes and all(other.buffer != tile.buffer for other in others) else None
            case Elementwise() if statement.combine is None and same_sizes(statement.target.shape, self.shape):
                mapped = _with_dimensions(statement, self.shape, self.shape)
                return mapped if _touches_alone(tile, (mapped.target, *mapped.sources)) else None
            case Reduce() if same_sizes(statement.sources[0].shape, self.shape) and _same_rows(statement, self.shape):
                reduced = _with_dimensions(statement, self.shape[:-1], self.shape)
                apart = reduced.target.buffer != tile.buffer
                return reduced if apart and _touches_alone(tile, reduced.sources) else None
        return None

    def is_made_by(self, statement: Matmul, tile: Tile) -> bool:
        """Whether a product makes a tile, of the same matrices but for other dimensions of size 1."""
        target = statement.target
        if statement.accumulate or not on_matrix_units(statement) or not same_sizes(target.shape, self.shape):
            return False
        return target.shape[-2:] == self.shape[-2:] and same_elements(with_unit_dimensions(target, self.shape), tile)

    def start_with_a_product(self) -> bool:
        """Whether a product makes one of the tiles."""
        return any(isinstance(s, Matmul) and s.target.buffer in self.tiles for s in self.part)

    def leaves_others_alone(self) -> bool:
        """Whether the rest of what lies in registers can be shared out by rows, among as many threads."""
        held = [b.name for b in self.kernel.buffers if b.memory is Memory.REGISTERS and b.name not in self.tiles]
        targets = {tile.shape for name in held for user in self.users(name) for tile in (user.target,) if tile.buffer == name}
        alike = {self.kernel.threads, self.threads} if any(map(self.took_before, self.kernel.statements)) else {self.threads}
        return len(alike) == 1 and all(row_bands(shape, self.threads // WARP) is not None for shape in targets)

    def took_before(self, statement: Statement) -> bool:
        """Whether a product takes its left factor from registers already."""
        return isinstance(statement, Matmul) and takes_left_from_registers(self.kernel, statement)

    def in_registers(self) -> Kernel:
        """The kernel with these tiles in registers."""
        moved = (
            replace(b, memory=Memory.REGISTERS, dtype=DType.FP32) if b.name in self.tiles else b for b in self.kernel.buffers
        )
        return replace(
            self.kernel,
            threads=self.threads,
            buffers=tuple(moved),
            before=self.changed(self.kernel.before),
            body=self.changed(self.kernel.body),
            after=self.changed(self.kernel.after),
        )

    def changed(self, statements: Iterable[Statement]) -> tuple[Statement, ...]:
        """Statements with the tiles as lanes hold them; what was computed once is not computed for its sum again."""
        return tuple(self.read_again(self.held(statement)) for statement in statements)

    def held(self, statement: Statement) -> Statement:
        """A statement in the dimensions of all, if it touches one of the tiles."""
        for tile in (statement.target, *statement.sources):
            if tile.buffer in self.tiles:
                alike = self.alike(statement, self.tiles[tile.buffer])
                assert alike is not None
                return alike
        return statement

    def read_again(self, statement: Statement) -> Statement:
        """A reduction of what an earlier statement computes of the same sources, not written since: it reads the result."""
        if not isinstance(statement, Reduce) or statement.expression == Source(0) or statement not in map(self.held, self.part):
            return statement
        part = [self.held(s) for s in self.part]
        for earlier in reversed(part[: part.index(statement)]):
            held = earlier.target.buffer in self.tiles and earlier.sources == statement.sources
            if held and isinstance(earlier, Elementwise) and earlier.expression == statement.expression:
                return replace(statement, sources=(earlier.target,), expression=Source(0))
            if any(tile.buffer == earlier.target.buffer for tile in statement.sources):
                break
        return statement


def _takes_alike(statement: Matmul, product: Matmul) -> bool:
    """Whether another product takes its left factor as a product does."""
    same = (statement.left, statement.tf32, statement.dtype) == (product.left, False, product.dtype)
    return same and statement.target.shape == product.target.shape and on_matrix_units(statement)


def _with_dimensions(statement: _Loops, target: Shape, shape: Shape) -> _Loops:
    """A statement whose target and sources have other dimensions of size 1."""
    sources = tuple(with_unit_dimensions(source, shape) for source in statement.sources)
    return replace(statement, target=with_unit_dimensions(statement.target, target), sources=sources)


def _touches_alone(tile: Tile, among: Iterable[Tile]) -> bool:
    """Whether some tiles are `tile`, and none is another window of its buffer."""
    found = [other for other in among if other.buffer == tile.buffer]
    return bool(found) and all(same_elements(other, tile) for other in found)


def _same_rows(reduction: Reduce, shape: Shape) -> bool:
    """Whether a reduction takes the last dimension of a shape, which its sources have with other dimensions of size 1."""
    return reduction.sources[0].shape[-1] == shape[-1] and same_sizes(reduction.target.shape, shape[:-1])
