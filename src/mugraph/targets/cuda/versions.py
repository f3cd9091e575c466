"""NVIDIA's packages that compile and launch kernels: which versions the tests have run with."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

TESTED = {"cuda-core": (1, 2), "cuda-bindings": (13, 5), "nvidia-cuda-nvrtc": (13, 0)}
"""The latest minor version of each; the extra `cuda` ends before the next major one, which may take away what is called here."""


def minor_version(text: str) -> tuple[int, int]:
    """The first two numbers of a version such as `13.0.88` or `13.1rc1`; raises ValueError for a text without any."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?", text)
    if numbers is None:
        raise ValueError(f"{text!r} is no version")
    return int(numbers[1]), int(numbers[2] or 0)


def untested() -> dict[str, str]:
    """The packages that are installed in a version later than the tests have run with, and that version."""
    later: dict[str, str] = {}
    for name, tested in TESTED.items():
        with suppress(PackageNotFoundError, ValueError):
            if minor_version(installed := version(name)) > tested:
                later[name] = installed
    return later
