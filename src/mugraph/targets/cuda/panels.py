"""Where a product that streams finds its factors: in the slot in use, or, of one that does not stream, the panel's part."""

from __future__ import annotations

from mugraph.lower.tile_form import Matmul, Panels
from mugraph.targets.c_text import scaled
from mugraph.targets.cuda.source import KernelText


def write_panel_pointers(text: KernelText, product: Matmul, panels: Panels) -> None:
    """Wait for the next panel of a product over the pointers `a` and `b`; declare `a_panel` and `b_panel`."""
    text.line("next_panel();")
    for name, tile, place in (("a", product.left, panels.left), ("b", product.right, panels.right)):
        where = name if place is None else f"slot + {place.start.constant}"
        text.line(f"const {text.dtype(place or tile)}_t *const {name}_panel = {where};")


def panel_offsets(product: Matmul, panels: Panels) -> dict[str, str]:
    """Where panel number `panel` begins in a factor that does not stream; part of the place, which may be swizzled."""
    factors = (("a", product.left, panels.left, -1), ("b", product.right, panels.right, -2))
    return {name: scaled(tile.strides[dim] * panels.depth, "panel") for name, tile, place, dim in factors if place is None}
