"""What is claimed of iterations without effect, on random muGraphs, beside what float64 makes of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import iteration_values
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import ACCUMULATORS, Graph, Node
from mugraph.ir.ops import LOWEST
from mugraph.lower import Launch, lower, skipped_iterations
from mugraph.lower.check import check
from mugraph.lower.phases import Phase, phases
from mugraph.lower.skipped_iterations import is_neutral as changes_nothing
from mugraph.lower.skipped_iterations import with_skips
from mugraph.testing.mugraphs import random_mugraph

GRAPHS = 250
NUMBERS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 2.0)


def is_neutral(node: Node, operands: list[Array]) -> bool:
    """Whether an accumulator stays as it is."""
    if node.op == "accumulate_rescaled":
        return bool((operands[0] == 0).all() and (operands[1] <= float(LOWEST)).all())
    neutral = {"sum": 0.0, "max": -math.inf}.get(str(node["combine"]))
    return neutral is not None and bool((operands[0] == neutral).all())


def accumulated(launch: Launch, inputs: dict[int, Array]) -> Iterator[tuple[Node, list[Array]]]:
    """Every accumulator of the iterations and what it meets in one."""
    body, when = launch.body, phases(launch.body)
    with np.errstate(all="ignore"):
        values = iteration_values(body, inputs, FloatArithmetic())
    for node in body.nodes:
        behind = node.op == "accumulate" and node["combine"] != "concat" and when[node.inputs[0].node] is not Phase.BODY
        if node.op in ACCUMULATORS and not behind:
            yield node, [values[value] for value in node.inputs]


def claims(graph: Graph, rng: np.random.Generator) -> Iterator[bool]:
    """For each tile that may tell, whether the numbers of an iteration that it tells of have no effect."""
    for launch in lower(graph).values():
        kernel = with_skips(launch, graph).kernel
        check(kernel)
        for skip in kernel.skips:
            inputs = {load.node: np.abs(rng.standard_normal(load.tile.shape)) + 0.1 for load in launch.kernel.loads}
            inputs |= {load.node: np.full(load.tile.shape, skip.value) for load in launch.kernel.loads if load.tile == skip.tile}
            yield all(is_neutral(node, operands) for node, operands in accumulated(launch, inputs))


def test_random_mugraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for tiles that are factors, or beside no product: what is claimed does not hang on whether it pays."""
    monkeypatch.setattr(
        skipped_iterations, "_candidates", lambda body, loads: [load for load in loads if load.phase is Phase.BODY]
    )
    draw, rng = random.Random(0), np.random.default_rng(0)
    found = [claim for _ in range(GRAPHS) for claim in claims(random_mugraph(draw, 2), rng)]
    assert len(found) > 10
    assert all(found)


def claims_whatever_others_are(graph: Graph, rng: np.random.Generator) -> Iterator[bool]:
    """For each input of a kernel of which iterations may read 0, whether others have no say in what has no effect then."""
    for launch in lower(graph).values():
        for zero in launch.kernel.inputs:
            if changes_nothing(launch, {zero}):
                inputs = {load.node: rng.choice(NUMBERS, load.tile.shape) for load in launch.kernel.loads}
                behind = [load for load in launch.kernel.loads if load.tile.buffer == zero and load.phase is Phase.BODY]
                inputs |= {load.node: np.zeros(load.tile.shape) for load in behind}
                yield all(is_neutral(node, operands) for node, operands in accumulated(launch, inputs))


def test_random_mugraphs_that_read_zeros_beside_anything() -> None:
    draw, rng = random.Random(1), np.random.default_rng(1)
    found = [claim for _ in range(GRAPHS) for claim in claims_whatever_others_are(random_mugraph(draw, 2), rng)]
    assert len(found) > 10
    assert all(found)
