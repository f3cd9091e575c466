"""What machines that run a GPU's kernels on this host have in common, so that their results and faults can be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mugraph.runtime.arrays import Arrays, torch_arrays
from mugraph.runtime.machine import Machine, Timed


class Imitation:
    """Runs what `machine` prints, on CPU tensors of PyTorch."""

    machine: Machine

    @property
    def available(self) -> bool:
        """Always: it runs here."""
        return True

    @property
    def stand_in(self) -> Machine:
        """That of the machine."""
        return self.machine.stand_in

    def print(self, kernels: Sequence[Any]) -> dict[str, str]:
        """What the machine prints."""
        return self.machine.print(kernels)

    def arrays(self, inputs: Sequence[Any]) -> Arrays:
        """CPU tensors of PyTorch."""
        return torch_arrays()

    def moved(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs themselves."""
        return list(inputs)

    def timed(self, call: Callable[[], object]) -> Timed:
        """The call itself; its time says nothing of a GPU."""
        return Timed(call)
