"""Where a product that streams finds its factors: in the slot in use, or, of one that does not stream, the panel's part."""

from __future__ import annotations

from mugraph.lower.lowered import Matmul, Panels
from mugraph.targets.cuda.source import KernelText
from mugraph.targets.source import scaled, sum_of


def write_panel_pointers(text: KernelText, product: Matmul, panels: Panels) -> None:
    """Wait for panel number `panel` of a product over the pointers `a` and `b`; declare `a_panel` and `b_panel`."""
    text.line("next_panel();")
    for name, tile, place, inner in (("a", product.left, panels.left, -1), ("b", product.right, panels.right, -2)):
        if place is not None:
            text.line(f"const {text.dtype(place)}_t *const {name}_panel = slot + {place.start.constant};")
        else:
            moved = scaled(tile.strides[inner] * panels.depth, "panel")
            text.line(f"const {text.dtype(tile)}_t *const {name}_panel = {sum_of([name, moved])};")
