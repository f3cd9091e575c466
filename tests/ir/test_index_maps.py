"""Index maps say what operators compute: gathered by its maps, every operator of the table gives what its row computes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import AttributeValue, Graph, Level, Shape
from mugraph.ir.index_maps import Affine, IndexMaps, Structure
from mugraph.ir.ops import OPERATORS, Call, Operator, flops, index_maps_of

Case = tuple[str, tuple[Shape, ...], dict[str, AttributeValue]]

VIEWS: list[Case] = [
    ("reshape", ((4, 6),), {"shape": (2, 2, 2, 3)}),
    ("reshape", ((2, 6),), {"shape": (4, 3)}),
    ("reshape", ((1, 6, 1),), {"shape": (3, 2)}),
    ("reshape", ((6,),), {"shape": (1, 6, 1)}),
    ("reshape", ((3, 1, 4),), {"shape": (3, 1, 2, 2)}),
    ("transpose", ((2, 3, 4),), {"permutation": (2, 0, 1)}),
    ("repeat", ((2, 3),), {"dim": 1, "times": 4}),
    ("repeat", ((1, 3),), {"dim": 0, "times": 4}),
    ("cast", ((2, 3),), {"dtype": DType.FP32}),
]
CONTRACTIONS: list[Case] = [
    ("matmul", ((2, 3), (3, 4)), {}),
    ("matmul", ((5, 2, 3), (3, 4)), {}),
    ("matmul", ((5, 1, 2, 3), (1, 6, 3, 4)), {}),
    ("matmul", ((1, 3), (3, 1)), {}),
    ("concat_matmul", ((2, 3), (2, 4), (3, 5), (4, 5)), {}),
]
REDUCTIONS: list[Case] = [
    (op, ((2, 12, 3),), {"dim": 1, "size": size}) for op in ("sum", "max") for size in (1, 3, 12)
]  # fmt: skip
ELEMENTWISE: list[Case] = [
    (row.name, ((2, 1, 3), (4, 3), (3,))[: row.arity], {}) for row in OPERATORS.values() if row.elementwise
]  # fmt: skip


CASES = [*VIEWS, *CONTRACTIONS, *REDUCTIONS, *ELEMENTWISE]


def maps_of(case: Case) -> tuple[Operator, Call, IndexMaps, Shape]:
    op, shapes, attributes = case
    row, call = OPERATORS[op], Call(op, shapes, attributes)
    maps = row.index_maps(call, row.shape(call))
    assert maps is not None
    return row, call, maps, row.shape(call)


def positions(indices: tuple[Affine | None, ...], points: list[np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any], ...]:
    """Where each dimension is read, for an array of all points."""
    assert all(index is not None for index in indices)
    return tuple(
        index.offset + sum((points[iterator] * stride for iterator, stride in index.terms), np.zeros_like(points[0]))
        for index in indices
        if index is not None
    )


def gathered(maps: IndexMaps, arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The element of each operand at every point of the iteration space."""
    points = list(np.indices((*maps.sizes, 1)))
    return [array[positions(indices, points)] for array, indices in zip(arrays, maps.operands, strict=True)]


@pytest.mark.parametrize(
    "case", [*VIEWS, *CONTRACTIONS, *REDUCTIONS, *ELEMENTWISE], ids=lambda case: f"{case[0]}{case[1]}{case[2]}"
)
def test_maps_say_what_a_row_computes(case: Case) -> None:
    row, call, maps, out = maps_of(case)
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(0.5, 2.0, shape) for shape in case[1]]
    expected = np.broadcast_to(row.compute(FloatArithmetic(), call, arrays), out)
    points = list(np.indices((*maps.sizes, 1)))
    where = positions(maps.result, points)
    at_points = gathered(maps, arrays)
    computed = np.full(out, -np.inf) if row.name == "max" else np.zeros(out)
    if row.structure is Structure.CONTRACTION:
        for left, right in row.products:
            pair = contraction(row, maps, left, right)
            np.add.at(computed, where, np.where(pair, at_points[left] * at_points[right], 0.0))
    elif row.structure is Structure.REDUCTION:
        (np.maximum if row.name == "max" else np.add).at(computed, where, at_points[0])
    else:
        flat = Call(call.op, tuple(value.shape for value in at_points), call.attributes)
        values = at_points[0] if row.structure is Structure.VIEW else row.compute(FloatArithmetic(), flat, at_points)
        computed[where] = values
    np.testing.assert_allclose(computed, expected, rtol=1e-12)


def contraction(row: Operator, maps: IndexMaps, left: int, right: int) -> np.ndarray[Any, Any]:
    """The points that belong to one product: where the iterators that only other products sum over stand at their start."""
    inner = {term[0] for operand in (left, right) for index in maps.operands[operand] if index for term in index.terms}
    points = list(np.indices((*maps.sizes, 1)))
    together: np.ndarray[Any, Any] = np.all(
        [points[iterator] == 0 for iterator in maps.reduced - inner] or [np.ones_like(points[0], bool)], axis=0
    )
    return together


@pytest.mark.parametrize(
    "case", [*VIEWS, *CONTRACTIONS, *REDUCTIONS, *ELEMENTWISE], ids=lambda case: f"{case[0]}{case[1]}{case[2]}"
)
def test_every_element_of_the_result_is_written(case: Case) -> None:
    _, _, maps, out = maps_of(case)
    written = np.zeros(out, dtype=bool)
    written[positions(maps.result, list(np.indices((*maps.sizes, 1))))] = True
    assert written.all()


def test_every_operator_has_maps_but_leaves_and_the_boundaries_of_blocks() -> None:
    without = {row.name for row in OPERATORS.values() if row.maps is None}
    assert without == {"input", "constant", "input_iterator", "output_saver"}
    assert {OPERATORS[name].structure for name in without} == {Structure.LEAF, Structure.BOUNDARY}


def test_a_regrouping_across_dimensions_is_no_affine_index() -> None:
    _, _, maps, _ = maps_of(("reshape", ((2, 4, 6),), {"shape": (2, 6, 4)}))
    assert [index is None for index in maps.operands[0]] == [False, True, True]
    assert maps.carried(0, 0) == 0
    assert maps.carried(0, 1) is None


def test_parts_are_carried_along_other_dimensions_only() -> None:
    _, _, part, out = maps_of(("slice", ((4, 6),), {"dim": 1, "start": 0, "size": 3, "step": 1}))
    assert out == (4, 3)
    assert [part.carried(0, dim) for dim in range(2)] == [0, None]
    _, _, joined, out = maps_of(("concat", ((4, 6), (4, 1), (4, 2)), {"dim": 1}))
    assert out == (4, 9)
    assert [[joined.carried(number, dim) for dim in range(2)] for number in range(3)] == [[0, None]] * 3
    assert not joined.reduced


def test_what_is_carried() -> None:
    _, _, matmul, _ = maps_of(("matmul", ((5, 2, 3), (3, 4)), {}))
    assert [matmul.carried(0, dim) for dim in range(3)] == [0, 1, None]
    assert [matmul.carried(1, dim) for dim in range(2)] == [None, 2]
    assert len(matmul.reduced) == 1
    _, _, groups, _ = maps_of(("sum", ((2, 12),), {"dim": 1, "size": 3}))
    assert [groups.carried(0, dim) for dim in range(2)] == [0, None]
    whole = groups.whole(groups.operands[0][1])
    assert whole is not None
    assert [groups.sizes[iterator] for iterator in whole] == [4, 3]
    assert groups.whole(Affine(((0, 1),), 2)) is None


def test_operations_are_counted_at_points() -> None:
    counted: list[tuple[Case, int]] = [
        (("matmul", ((5, 2, 3), (3, 4)), {}), 2 * 5 * 2 * 3 * 4),
        (("concat_matmul", ((2, 3), (2, 4), (3, 5), (4, 5)), {}), 2 * 2 * 5 * (3 + 4)),
        (("sum", ((2, 12),), {"dim": 1, "size": 3}), 24),
        (("exp", ((2, 12),), {}), 15 * 24),
        (("accumulate", ((2, 3),), {"combine": "concat", "dim": 0}), 6),
        (("reshape", ((2, 3),), {"shape": (6,)}), 0),
    ]
    for case, count in counted:
        _, call, _, out = maps_of(case)
        assert flops(call, out) == count


def test_the_maps_of_a_node() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (2, 3), DType.FP32)
    product = builder.add("matmul", x, builder.input("w", (3, 4), DType.FP32))
    graph: Graph = builder.build([product])
    maps = index_maps_of(graph.nodes[-1], [(2, 3), (3, 4)])
    assert maps is not None
    assert math.prod(maps.sizes) == 24
    assert index_maps_of(graph.nodes[0], []) is None
