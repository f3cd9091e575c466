"""First calls of sizes at which a library runs parts of a function, made before anybody waits for them.

oneDNN writes code for each shape that it meets, in 0.1 to 0.6 ms for each of the linear layers and activations of a call, and
keeps the latest 1,024 of these for the process. Nothing makes it do so but a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.support.deadline import Deadline

_MOST, _SECONDS = 128, 1.0
"""Sizes that are called, the smallest first, and in how many seconds: of more shapes the library would forget the first."""

Run = Callable[..., Any]


def is_of_the_library(target: str) -> bool:
    """Whether oneDNN runs what PyTorch is asked for beside kernels of a target."""
    return target == "cpu"  # by name: PyTorch asks other libraries on GPUs


def call_each_once(runs: Mapping[int, Run], arguments: Callable[[int], tuple[Sequence[Any], Mapping[str, Any]]]) -> None:
    """Call what runs each size, with the arguments of an example at that size. The first of them is called twice: weights are
    packed when they come the second time. A call that fails is left to whoever makes it: of an example nobody asked for any."""
    sizes, limit = sorted(runs)[:_MOST], Deadline(_SECONDS)
    with _disable_current_modes(), torch.no_grad():
        for size in (*sizes[:1], *sizes):
            if limit.passed:
                break
            with suppress(Exception):  # as whole numbers that are divided by the example's zeros
                args, kwargs = arguments(size)
                runs[size](*args, **kwargs)
