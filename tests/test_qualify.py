"""Which proposals are compiled at all."""

from __future__ import annotations

from mugraph.deadline import Deadline
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.progress import silent
from mugraph.qualify import Qualifier


def lengths(*, of_factors: bool) -> Graph:
    """sqrt(x * x) in one kernel, as such or as sqrt(x) * sqrt(x)."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 64), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    tile = block.iterator(0, kernel.tensor(x), (0,), None)
    if of_factors:
        root = block.add("sqrt", tile)
        result = block.add("mul", root, root)
    else:
        result = block.add("sqrt", block.add("square", tile))
    saved = block.add("output_saver", result, omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x]))


def test_undefined_proposals_take_no_place_among_those_compiled() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 64), DType.FP32)
    program = kernel.build([kernel.add("sqrt", kernel.add("square", x))])
    qualifier = Qualifier(program, "cpu", Deadline(None), silent, 0, 2**-40, None)
    undefined, sound = lengths(of_factors=True), lengths(of_factors=False)
    compiled = qualifier.compile([*[(undefined, 1.0)] * 20, (sound, 2.0)])
    assert [entry.cost for entry in compiled] == [2.0]
    (rejection,) = qualifier.rejected
    assert rejection.stage == "float"
    assert "sqrt of shape" in rejection.reason
    assert "has no result" in rejection.reason


def test_where_nothing_is_measured_no_more_is_compiled_than_is_kept() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 64), DType.FP32)
    program = kernel.build([kernel.add("sqrt", kernel.add("square", x))])
    qualifier = Qualifier(program, "cpu", Deadline(None), silent, 0, 2**-40, None)
    wrong, sound, never = kernel.build([kernel.add("sqrt", x)]), lengths(of_factors=False), lengths(of_factors=True)
    kept = qualifier.compile_and_prove([(wrong, 0.5), *((sound, cost) for cost in (1.0, 2.0, 3.0)), (never, 4.0), (sound, 5.0)])
    assert [proved.entry.cost for proved in kept] == [1.0, 2.0, 3.0]
    assert [rejection.cost for rejection in qualifier.rejected] == [0.5]
