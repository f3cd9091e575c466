"""Lookups: shapes, meaning, errors, and programs without them."""

import numpy as np
import pytest

import mugraph
from mugraph.devices.roofline import compulsory_bytes
from mugraph.errors import IndexOutOfRange, ShapeMismatch, UnsupportedOperator
from mugraph.ir.cores import bytes_read, core_of, cores_of, ranges
from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.ops import Call, operator
from mugraph.ir.parts import objection
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.ir.text import parse_graph
from mugraph.verifier.float_checks import random_inputs


def looked_up(dim: int = 0, negative: str = "refused", dtype: str = "int64") -> Graph:
    """Twice what integers [2, 3] name in a table [10, 8] along a dimension."""
    program = mugraph.Program()
    table, places = program.input("table", (10, 8)), program.input("places", (2, 3), dtype)
    program.output(table.apply("index_select", places, dim=dim, negative=negative) * 2)
    return program.graph


def test_shape_meaning_and_maps_of_the_row() -> None:
    row, call = operator("index_select"), Call("index_select", ((4, 9, 5), (2, 3)), {"dim": 1, "negative": "wrapped"})
    table, places = np.random.default_rng(0).standard_normal((4, 9, 5)), np.array([[0, -1, 8], [3, -9, 3]])
    found = row.compute(FloatArithmetic(), call, [table, places.astype(np.float64)])
    np.testing.assert_array_equal(found, table[:, places])
    assert row.shape(call) == found.shape == (4, 2, 3, 5)
    maps = row.index_maps(call, found.shape)
    assert maps is not None
    assert [maps.carried(0, dim) for dim in range(3)] == [0, None, 3]
    with pytest.raises(ShapeMismatch, match="negative is 'clipped'"):
        row.shape(Call("index_select", ((4, 9, 5), (2, 3)), {"dim": 1, "negative": "clipped"}))


@pytest.mark.parametrize(("negative", "wrong"), [("refused", 10), ("refused", -1), ("wrapped", -11), ("wrapped", 10)])
def test_integers_out_of_range_are_errors(negative: str, wrong: int) -> None:
    places = np.zeros((2, 3))
    places[1, 2] = wrong
    with pytest.raises(IndexError, match=rf"index_select: index {wrong} at \[1, 2\] is out of range") as caught:
        evaluate(looked_up(0, negative), [np.ones((10, 8)), places], FloatArithmetic())
    assert isinstance(caught.value, IndexOutOfRange)


def test_integers_are_for_lookups_alone() -> None:
    program = mugraph.Program()
    table, places = program.input("table", (10, 8)), program.input("places", (2, 3), "int64")
    for op in ("square", "abs", "sigmoid"):
        with pytest.raises(UnsupportedOperator, match=rf"{op}: operand 0 of shape \[2, 3\] is int64"):
            places.apply(op)
    with pytest.raises(UnsupportedOperator, match=r"cast: operand 0 of shape \[2, 3\] is int64"):
        places.apply("cast", dtype=DType.FP32)
    with pytest.raises(UnsupportedOperator, match=r"operand 1 .* is fp32; places are named by integers"):
        table.apply("index_select", table, dim=0, negative="refused")
    program.output(places)
    with pytest.raises(UnsupportedOperator, match="integers are read by index_select alone, and are no output"):
        _ = program.graph


def test_graphs_with_lookups_are_read_back() -> None:
    graph = looked_up(1, "wrapped", "int32")
    assert parse_graph(str(graph)) == graph
    assert graph_from_json(graph_to_json(graph)) == graph


def test_equal_lookups_are_one_input_of_the_core() -> None:
    program = mugraph.Program()
    table, first, second = (
        program.input("table", (10, 8)),
        program.input("first", (3,), "int64"),
        program.input("second", (3,), "int64"),
    )
    rows = [table.apply("index_select", places, dim=0, negative="refused") for places in (first, second, first)]
    program.output(rows[0] * rows[2] + rows[1])
    cores = cores_of(program.graph)
    assert cores is not None
    assert cores.cores[0].input_names == ("table[first]", "table[second]")
    assert cores.around(cores.cores[0]) == program.graph
    assert cores.realisable
    arrays = random_inputs(program.graph, 0)
    (whole,) = evaluate(program.graph, arrays, FloatArithmetic())
    (part,) = evaluate(cores.cores[0], cores.inputs(arrays), FloatArithmetic())
    np.testing.assert_array_equal(whole, part)


def test_tables_that_others_read_stay_inputs() -> None:
    program = mugraph.Program()
    table, places = program.input("table", (10, 8)), program.input("places", (3,), "int64")
    program.output(table.apply("index_select", places, dim=0, negative="refused") @ table.transpose(0, 1))
    cores = cores_of(program.graph)
    assert cores is not None
    assert cores.cores[0].input_names == ("table", "table[places]")
    assert not cores.realisable


def test_what_a_program_computes_is_not_looked_up() -> None:
    program = mugraph.Program()
    table, places = program.input("table", (10, 8)), program.input("places", (3,), "int64")
    program.output((table * 2).apply("index_select", places, dim=0, negative="refused") * 3)
    with pytest.raises(UnsupportedOperator, match="index_select of a tensor that the program computes"):
        core_of(program.graph)
    assert "pass the table as an input" in objection(program.graph)


def test_bytes_of_a_table_are_those_of_the_rows() -> None:
    graph = looked_up()
    rows, places = 2 * 3 * 8 * 4, 2 * 3 * 8
    assert bytes_read(graph) == rows + places
    assert compulsory_bytes(graph) == rows + places + rows


@pytest.mark.parametrize(("negative", "least"), [("refused", 0), ("wrapped", -10)])
def test_random_integers_are_places_in_the_table(negative: str, least: int) -> None:
    graph = looked_up(0, negative)
    assert ranges(graph) == {1: (least, 10)}
    places = random_inputs(graph, 3)[1]
    assert places.min() == least
    assert places.max() == 9
    np.testing.assert_array_equal(places, np.floor(places))
