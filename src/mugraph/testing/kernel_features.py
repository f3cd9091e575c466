"""Which features of schedules a lowered kernel has: what a check of generated kernels has exercised."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from mugraph.devices.products import COLUMNS, ROWS, WARP
from mugraph.lower.fragments import holds_rows, on_matrix_units, warp_tiles
from mugraph.lower.register_reductions import reduction_into
from mugraph.lower.tensor_maps import tensor_maps
from mugraph.lower.tile_form import Kernel, Matmul, Tile
from mugraph.lower.warp_groups import held_registers, uses_warp_groups


def features(kernels: Iterable[Kernel]) -> list[str]:
    """The names of the features that at least one kernel has, in the order of `FEATURES`; several kernels are one too."""
    all_kernels = list(kernels)
    found = [name for name, has in FEATURES.items() if any(map(has, all_kernels))]
    return [*found, *(["several kernels"] if len(all_kernels) > 1 else [])]


def _is_replicated(kernel: Kernel) -> bool:
    """Whether blocks along some dimension of the grid read the same part of an input."""
    cut = {name: _grid_steps(kernel, name) for name in kernel.inputs}
    wide = [dim for dim, count in enumerate(kernel.grid) if count > 1]
    return any(steps and not all(any(step[dim] for step in steps) for dim in wide) for steps in cut.values())


def _grid_steps(kernel: Kernel, buffer: str) -> list[tuple[int, ...]]:
    """How far the windows of a buffer move along each dimension of the grid."""
    unmoved = (0,) * len(kernel.grid)
    windows = (*(tile for s in kernel.statements for tile in s.sources), *(staged.source for staged in kernel.staged))
    return [tile.start.grid or unmoved for tile in windows if tile.buffer == buffer]


def _is_padded(kernel: Kernel) -> bool:
    """Whether the tiles of a matrix unit reach beyond a product, or its values of k end within one."""
    for product in kernel.statements:
        if isinstance(product, Matmul) and on_matrix_units(product):
            split = warp_tiles(product.target.shape, kernel.threads // WARP)
            covered = (split.bands * split.down * ROWS, split.panels * split.across * COLUMNS)
            if covered != product.target.shape[-2:] or product.left.shape[-1] % 16:
                return True
    return False


def _tiles(kernel: Kernel) -> Iterable[Tile]:
    for statement in kernel.statements:
        yield from (statement.target, *statement.sources)
        if isinstance(statement, Matmul) and statement.panels is not None:
            yield from (tile for tile in (statement.panels.left, statement.panels.right) if tile is not None)


FEATURES: Mapping[str, Callable[[Kernel], bool]] = {
    "loop": lambda kernel: kernel.loop > 1,
    "grid": lambda kernel: math.prod(kernel.grid) > 1,
    "split grid": lambda kernel: sum(count > 1 for count in kernel.grid) > 1,
    "replicas": _is_replicated,
    "padding": _is_padded,
    "ring": lambda kernel: kernel.ring is not None,
    "staged inputs": lambda kernel: bool(kernel.staged),
    "bulk copies": lambda kernel: kernel.ring is not None and kernel.ring.bulk,
    "tensor maps": lambda kernel: bool(tensor_maps(kernel)),
    "warp groups": uses_warp_groups,
    "lag": lambda kernel: kernel.ring is not None and kernel.ring.lag > 0,
    "producer warp": lambda kernel: kernel.ring is not None and kernel.ring.producer,
    "swizzle": lambda kernel: any(tile.swizzle is not None for tile in _tiles(kernel)),
    "sums in registers": lambda kernel: held_registers(kernel) > 0,
    "reductions in registers": lambda kernel: any(reduction_into(kernel, buffer.name) for buffer in kernel.buffers),
    "scores in registers": holds_rows,
    "matrix units": lambda kernel: any(isinstance(s, Matmul) and on_matrix_units(s) for s in kernel.statements),
    "TF32": lambda kernel: any(isinstance(s, Matmul) and on_matrix_units(s) and s.tf32 for s in kernel.statements),
    "vector units": lambda kernel: any(isinstance(s, Matmul) and not on_matrix_units(s) for s in kernel.statements),
}
