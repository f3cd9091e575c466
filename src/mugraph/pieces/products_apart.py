"""Large products that are not searched: linear layers at which PyTorch, or the library with packed weights, is about as fast as
the machine multiplies, in programs of which next to nothing is predicted to be saved.

Kernels of such programs would be as fast at best, after a comparison with float64 and a proof that take many of their calls. What
stands around the products is cut and searched without them: a norm in front, rotary embeddings, the gate behind two of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import fx

from mugraph.devices import device_for
from mugraph.devices.host import slowdown_of_calls
from mugraph.frontend.partitioning.library import LibraryKernel
from mugraph.frontend.partitioning.partition import Piece
from mugraph.pieces.piece_optimizer import Optimizer
from mugraph.pieces.predicted_cost import arithmetic_intensity, seconds_of_calls
from mugraph.support.deadline import Deadline

_READING = 0.1
"""The part of the time of multiplying that reading the operands may take: a library's product of fewer rows, as of 32, was slower
than one of ours by a quarter, while from 128 rows on both took the same within 2 % (4096 x 4096, AVX-512 with bf16)."""
_NEAR = 1.5
"""So many times what is predicted of the machine a product may take: one of a type that the library converts takes longer."""


@dataclass(frozen=True, slots=True)
class ProductsApart:
    """Linear layers that are in no program."""

    library: tuple[LibraryKernel, ...] = ()
    """Those that the library has, with what follows them."""
    by_torch: frozenset[fx.Node] = frozenset()
    """The products of others, which PyTorch makes."""

    def within(self, fitting: Collection[LibraryKernel]) -> ProductsApart:
        """The same where only `fitting` layers may have packed weights: PyTorch makes the other products."""
        others = frozenset(layer.product for layer in self.library if layer not in fitting)
        return ProductsApart(tuple(layer for layer in self.library if layer in fitting), self.by_torch | others)

    @classmethod
    def of(cls, large: Sequence[LibraryKernel], optimizer: Optimizer, deadline: Deadline) -> ProductsApart:
        """Those of some large layers (see `large_layers`), as they are timed here, and those that there is no time to time: their
        programs would have none either."""
        library = optimizer.library
        if library is None or not large:
            return cls()
        faster = library.faster(large, deadline, optimizer.tell)
        device, as_fast = device_for(optimizer.options.target), []
        for layer in large:
            seconds, needed = library.known_seconds(layer), seconds_of_calls([layer.product], device)
            if seconds is None or min(seconds) <= _NEAR * needed * slowdown_of_calls():
                as_fast.append(layer)
        packed = tuple(layer for layer in as_fast if layer in faster)
        return cls(packed, frozenset(layer.product for layer in as_fast if layer not in packed))


def large_layers(layers: Sequence[LibraryKernel], pieces: Sequence[Piece], optimizer: Optimizer) -> tuple[LibraryKernel, ...]:
    """The linear layers of a graph that is cut into pieces which may be in no program; none where nothing is timed."""
    if optimizer.library is None or not optimizer.measures:
        return ()
    in_vain = {node for piece in pieces if optimizer.saves_little(piece) for node in piece.nodes}
    device = device_for(optimizer.options.target)
    return tuple(
        layer
        for layer in layers
        if layer.product in in_vain and layer.ends is None and arithmetic_intensity(layer.product, device) * _READING >= 1
    )
