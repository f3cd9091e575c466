"""The CPU target: header-free C with vector extensions, blocks of the grid as tasks over threads."""

from mugraph.targets.cpu.printer import print_program
from mugraph.targets.cpu.source import Vectors

__all__ = ["Vectors", "print_program"]
