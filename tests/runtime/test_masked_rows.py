"""Rows that are -inf over a whole tile, as masks make them: derived maxima shift exponents and never make NaN of them."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph import Program
from mugraph.devices import device_for
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import build
from mugraph.search import search


@pytest.mark.parametrize("masked", [slice(0, 128), slice(64, 256), slice(250, 256)])
def test_every_way_to_compute_a_masked_softmax_is_right(masked: slice) -> None:
    program = Program()
    scores, values = program.input("scores", (2, 8, 256)), program.input("values", (2, 256, 16))
    program.output(scores.softmax(-1) @ values)
    generator = np.random.default_rng(0)
    s, v = (generator.standard_normal(shape).astype(np.float32) for shape in ((2, 8, 256), (2, 256, 16)))
    s[..., masked] = -np.inf
    weights = np.exp(s.astype(np.float64))
    wanted = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    found = search(program.graph, device_for("cpu")).candidates
    graphs = [candidate.graph for candidate in found]
    assert any(node.op == "accumulate_rescaled" for graph in graphs for _, node in graph.walk())
    for graph in graphs:
        (got,) = build(construct(graph))(s, v)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
