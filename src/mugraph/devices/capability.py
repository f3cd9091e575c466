"""Which GPUs run machine code for which architecture: compute capabilities, and the variants of architectures.

Code for `sm_100` runs on compute capability 10.0 and later ones of the same major version, and so does code for `sm_100f`, which
may have instructions of that family; code for `sm_100a` may have those of 10.0 alone, and runs nowhere else (CUDA C++ Programming
Guide, "Compute Capabilities"; PTX ISA, `.target`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mugraph.errors import InvalidInput

_ARCHITECTURE = re.compile(r"sm_(\d+)(\d)([af]?)")


class Capability(NamedTuple):
    """The compute capability of a GPU."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Architecture(NamedTuple):
    """What machine code is for: the least compute capability that has all of its instructions, and whether no other has."""

    least: Capability
    alone: bool

    @classmethod
    def of(cls, name: str) -> Architecture:
        """The architecture called `sm_90`, `sm_90a`, `sm_100f`, ...; raises InvalidInput for another name."""
        match = _ARCHITECTURE.fullmatch(name)
        if match is None:
            raise InvalidInput(f"{name!r} is no architecture of a GPU; write it as in sm_90, sm_90a or sm_100f")
        return cls(Capability(int(match[1]), int(match[2])), match[3] == "a")

    def runs_on(self, gpu: Capability) -> bool:
        """Whether a GPU runs such code."""
        return gpu == self.least or (not self.alone and gpu.major == self.least.major and gpu.minor > self.least.minor)

    def __str__(self) -> str:
        """What such code needs."""
        later = "" if self.alone else f" or a later {self.least.major}.x"
        return f"compute capability {self.least}{later}"
