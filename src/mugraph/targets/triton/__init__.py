"""The Triton target: one readable Python file of Triton kernels for GPUs of sm_80 and later."""

from mugraph.targets.triton.kernel import TileKernel, TileLaunch, tile_launches
from mugraph.targets.triton.source import print_program

__all__ = ["TileKernel", "TileLaunch", "print_program", "tile_launches"]
