"""Formulas of tensors: as people write them, parentheses where needed, names where they would grow long."""

from __future__ import annotations

import mugraph
from mugraph.ir.formulas import formulas
from viewer.results import discovered


def written(program: mugraph.Program) -> str:
    """The formula of a program's first output."""
    graph = program.graph
    names = [str(node.get("name", f"%{index}")) for index, node in enumerate(graph.nodes)]
    (value, *_) = graph.outputs
    return formulas(graph, names)[value.node][value.output].text


def test_sums_and_quotients_are_put_in_parentheses_where_they_must_be() -> None:
    program = mugraph.Program()
    x, y = program.input("x", (4, 8)), program.input("y", (4, 8))
    program.output((x - (y + x)) * (x / y) / (y * y.exp()))
    assert written(program) == "(x - (y + x)) · (x / y) / (y · exp(y))"


def test_reductions_say_over_how_many_elements() -> None:
    program = mugraph.Program()
    x, w = program.input("x", (4, 8)), program.input("w", (8, 2))
    program.output((x @ w) / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    assert written(program) == "sum(8, x · w) / sqrt(sum(8, x · x) · (1/8) + 1/100000)"


def test_negative_constants_are_no_subtraction() -> None:
    program = mugraph.Program()
    x = program.input("x", (4, 8))
    program.output(x * -2)
    assert written(program) == "x · (-2)"


def test_long_formulas_name_what_is_in_them() -> None:
    program = mugraph.Program()
    y = x = program.input("x", (4, 8))
    for _ in range(40):
        y = (y * x + x).exp()
    program.output(y)
    assert len(written(program)) < 130
    assert "%" in written(program)


def test_what_a_kernel_makes_has_the_formula_of_its_body() -> None:
    graph = discovered("lora")
    (value,) = graph.outputs
    names = [str(node.get("name", f"%{index}")) for index, node in enumerate(graph.nodes)]
    assert formulas(graph, names)[value.node][0].text == "sum(64, x · w) + sum(16, sum(64, x · a) · b)"
