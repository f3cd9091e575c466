"""The target that nobody named: what the example inputs lie on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mugraph.targets.gpu import common_target, on_their_gpu


@contextmanager
def target_of_inputs(target: str | None, example_inputs: Any) -> Iterator[str]:
    """The target that was named, or else that of the example inputs, whose GPU is PyTorch's current one meanwhile.

    `example_inputs` are positional arguments or, as a mapping, keyword arguments, or None. Arrays of NumPy and tensors without
    values are for the CPU. Raises InvalidInput for tensors on several devices, TargetUnavailable for a device without a target.
    """
    if target is not None:
        yield target
        return
    tensors = _tensors_of(example_inputs)
    found = common_target(tensors)
    with on_their_gpu(tensors):
        yield found


def _tensors_of(example_inputs: Any) -> list[Any]:
    """The tensors of PyTorch among example inputs that have values, those inside containers too."""
    if example_inputs is None or "torch" not in sys.modules:
        return []
    from torch import Tensor

    from mugraph.frontend.calls.objects import leaves_of

    leaves = leaves_of(dict(example_inputs) if isinstance(example_inputs, Mapping) else example_inputs)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.device.type != "meta"]
