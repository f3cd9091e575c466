"""The text of one kernel as it grows: lines and names, masks and addresses, expressions, tiles in other dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mugraph.ir.graph import Shape
from mugraph.lower.phases import Phase
from mugraph.lower.scalar_expressions import PRODUCT, Apply, Constant, Expression, Source
from mugraph.lower.tile_form import Tile
from mugraph.targets.c_text import index_terms, sum_of
from mugraph.targets.triton.expressions import unwrapped, write_expression
from mugraph.targets.triton.tensors import (
    Padding,
    TileText,
    View,
    aligned,
    along,
    axis_of,
    inside,
    is_sorted,
    product_of,
    sizes,
)

TensorName = tuple[int, Shape]
"""The number of a tensor's node in the printed muGraph, and its shape there."""


@dataclass(slots=True)
class KernelText:
    """The lines of each part of a kernel."""

    padding: Padding = field(default_factory=Padding)
    lines: dict[Phase, list[str]] = field(default_factory=lambda: {phase: [] for phase in Phase})
    places: set[int] = field(default_factory=set)
    """Sizes of the ranges 0, 1, ... that addresses are made of."""
    ragged: set[int] = field(default_factory=set)
    """Sizes that masks tell from their padding."""
    names: set[str] = field(default_factory=set)
    """Those of tiles."""
    parts: int = 0
    """Parts of expressions that have names."""

    def line(self, phase: Phase, text: str, shape: Shape | None = None) -> None:
        """Append one line, with the shape of the tile that it makes."""
        self.lines[phase].append(text if shape is None else f"{text}  # {list(shape)}")

    def define(self, phase: Phase, name: str, text: str, shape: Shape) -> TileText:
        """Give a tile a name, or another value to a name."""
        self.names.add(name)
        self.line(phase, f"{name} = {unwrapped(text)}", shape)
        return TileText(name, shape)

    def named(self, phase: Phase, text: str) -> str:
        """Give a part of an expression a name."""
        name = f"part_{self.parts}"
        self.parts += 1
        self.line(phase, f"{name} = {unwrapped(text)}")
        return name

    def ranges(self) -> list[str]:
        """What addresses and masks are made of."""
        ranges = sorted(self.places | set(map(self.padding.size, self.ragged)))
        return [
            *(f"i{size} = tl.arange(0, {size})" for size in ranges),
            *(f"{inside(size)} = {self.padding.place(size)} < {size}" for size in sorted(self.ragged)),
        ]

    def mask(self, shape: Shape, only: Sequence[int] | None = None) -> str:
        """`Padding.mask`, with what it is made of."""
        self.ragged.update(self.padding.ragged_axes(shape, only).values())
        return self.padding.mask(shape, only)

    def without_padding(self, tile: TileText, dim: int, neutral: str = "0.0") -> TileText:
        """The tile with `neutral` in the padding behind dimension `dim`."""
        size = tile.shape[dim]
        if self.padding.size(size) == size or (tile.zero_padded and neutral == "0.0"):
            return tile
        elements = self.mask(tile.shape, [axis_of(tile.shape, dim)])
        return replace(tile, text=f"tl.where({elements}, {tile.wide}, {neutral})", narrow=None)

    def address(self, tile: Tile, pointer: str) -> str:
        """The addresses of the elements of a window of device memory."""
        dims = [(size, stride) for size, stride in zip(tile.shape, tile.strides, strict=True) if size > 1]
        terms = [pointer, *index_terms(tile.start, iteration="step")]
        for axis, (size, stride) in enumerate(dims):
            self.places.add(self.padding.size(size))
            numbers = along(self.padding.place(size), axis, len(dims))
            terms.append(numbers if stride == 1 else f"{numbers} * {stride}")
        return sum_of(terms)

    def expression(self, phase: Phase, expression: Expression, sources: Sequence[TileText], shape: Shape) -> TileText:
        """An expression over sources that broadcast to `shape`; one source alone keeps its type."""
        spread = tuple(max((source.shape[dim] for source in sources), default=1) for dim in range(len(shape)))
        if expression == Source(0) and sizes(spread) == sizes(shape):
            return replace(sources[0], shape=shape)
        texts = [aligned(source.wide, source.shape, spread) for source in sources]
        if isinstance(expression, Apply) and expression.template == PRODUCT and not _has_number(expression):
            expression = replace(expression, template=product_of(spread))
        text = write_expression(expression, texts, lambda part: self.named(phase, part))
        if sizes(spread) == sizes(shape):
            return TileText(text, shape)
        name = text if text.isidentifier() else self.named(phase, text)
        return TileText(f"tl.broadcast_to({aligned(name, spread, shape)}, {self.padding.held(shape)})", shape)

    # tiles in other dimensions ---------------------------------------------------------------------------------------

    def viewed(self, phase: Phase, text: TileText, view: View, shape: Shape, name: TensorName | None = None) -> TileText:
        """A tensor as a tile of `shape`, which is called by what it is in the muGraph, if it is a tensor there."""
        in_order = self._permuted(phase, text, view.before, None)
        cut = self._reshaped(phase, in_order, view.sizes, name if is_sorted(view.after) else None)
        return replace(self._permuted(phase, cut, view.after, name), shape=shape)

    def _permuted(self, phase: Phase, tile: TileText, order: Sequence[int], name: TensorName | None) -> TileText:
        if is_sorted(order):
            return tile
        shape = tuple(sizes(tile.shape)[axis] for axis in order)
        text = f"tl.trans({tile.text})" if len(order) == 2 else f"tl.permute({tile.text}, {tuple(order)})"
        return replace(tile, text=self._view_named(phase, "transpose", text, name), shape=shape)

    def _reshaped(self, phase: Phase, tile: TileText, shape: Shape, name: TensorName | None) -> TileText:
        """A tile in another shape without dimensions of size 1: element by element where padding would move inwards."""
        if sizes(tile.shape) == shape:
            return replace(tile, shape=shape)
        if self.padding.keeps_order(tile.shape, shape):
            text = self._view_named(phase, "reshape", f"tl.reshape({tile.text}, {self.padding.held(shape)})", name)
            return replace(tile, text=text, shape=shape)
        held, wanted_held = self.padding.held(tile.shape), self.padding.held(shape)
        self.places.update(wanted_held)
        numbers = self.named(phase, self.padding.element_numbers(shape))
        places = self.named(phase, self.padding.places_of(numbers, tile.shape))
        flat, wanted = math.prod(held), math.prod(wanted_held)
        gathered = f"tl.gather(tl.reshape({tile.wide}, ({flat},)), tl.reshape({places}, ({wanted},)), 0)"
        return TileText(self._view_named(phase, "reshape", f"tl.reshape({gathered}, {wanted_held})", name), shape)

    def _view_named(self, phase: Phase, kind: str, text: str, name: TensorName | None) -> str:
        if name is None:
            return self.named(phase, text)
        node, shape = name
        own = f"{kind}_{node}"
        return self.named(phase, text) if own in self.names else self.define(phase, own, text, shape).text


def _has_number(expression: Apply) -> bool:
    return any(isinstance(argument, Constant) for argument in expression.arguments)
