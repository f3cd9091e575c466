"""Keys that are shared out among blocks: in as many parts as fill one wave of a GPU's multiprocessors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.search import search

GROUPS = 16
"""Of GQA at batch 8: two heads of keys each."""


@pytest.mark.parametrize(("multiprocessors", "parts"), [(66, 4), (132, 8)])
def test_split_keys_fill_one_wave(multiprocessors: int, parts: int) -> None:
    program = trace(WORKLOADS["gqa"].function(), WORKLOADS["gqa"].inputs(8, "bf16", "full")).graph
    device = replace(device_for("cuda:sm_90"), multiprocessors=multiprocessors)
    of_keys, combining = search(program, device).candidates[0].graph.kernels()
    assert of_keys.body is not None
    assert combining.body is not None
    assert math.prod(of_keys.body.grid) == GROUPS * parts
    assert GROUPS * parts <= multiprocessors < GROUPS * 2 * parts
