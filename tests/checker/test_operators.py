"""The checker's table of operators and mugraph's say the same, row by row, though neither is made from the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import mugraph
from mugraph.checker import Rejected, check_folder
from mugraph.checker.operators import OPERATORS as CHECKED
from mugraph.checker.operators import function
from mugraph.ir.ops import OPERATORS, Call, opaque
from mugraph.ir.scans import SCANS

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5)
"""What functions of several operands are compared at: ties, and what is no finite number."""


def test_both_tables_have_the_same_operators() -> None:
    assert CHECKED.keys() == OPERATORS.keys()


@pytest.mark.parametrize("name", CHECKED)
def test_rows_agree(name: str) -> None:
    row, checked = OPERATORS[name], CHECKED[name]
    assert checked.levels == tuple(level for level in ("kernel", "block", "thread") if level in {str(at) for at in row.levels})
    assert checked.operands == (0 if name == "input_iterator" else row.arity)  # it reads an operand of its parent
    assert checked.variadic == row.variadic
    assert checked.attributes == {*row.attributes}
    assert checked.optional == {*row.optional}
    assert (checked.function is None) == (row.reference is None)
    if checked.function is not None and row.reference is not None:
        rng = np.random.default_rng(0)
        xs = [rng.normal(size=100) if row.arity == 1 else rng.choice(SPECIAL, 100) for _ in range(row.arity)]
        xs = [np.abs(x) if name == "log" else x for x in xs]
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(checked.function(*xs), row.reference(*xs), rtol=1e-12)


@pytest.mark.parametrize("name", [name for name, row in OPERATORS.items() if row.maps is not None])
def test_dimensions_go_where_the_index_maps_say(name: str) -> None:
    known: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any]]] = {
        "matmul": (((5, 2, 3), (3, 4)), {}),
        "concat_matmul": (((2, 3), (2, 4), (3, 5), (4, 5)), {}),
        "sum": (((2, 12, 5),), {"dim": 1, "size": 3}),
        "max": (((2, 12, 5),), {"dim": 1, "size": 3}),
        "reshape": (((2, 12, 5),), {"shape": (2, 3, 4, 5)}),
        "transpose": (((2, 3, 4),), {"permutation": (2, 0, 1)}),
        "repeat": (((2, 3),), {"dim": 1, "times": 4}),
        "slice": (((2, 12, 5),), {"dim": 1, "start": 2, "size": 3, "step": 4}),
        "concat": (((2, 3, 5), (2, 4, 5)), {"dim": 1}),
        "index_select": (((4, 9, 5), (2, 3)), {"dim": 1, "negative": "wrapped"}),
        "accumulate": (((2, 3),), {"combine": "sum"}),
        "accumulate_rescaled": (((2, 3), (2, 1)), {}),
        **dict.fromkeys(SCANS, (((2, 12, 5),), {"dim": 1})),
        "select": (((4, 1), (3,), (4, 3)), {}),
    }
    shapes, attributes = known.get(name, (((4, 3), (3,))[: OPERATORS[name].arity], {}))
    row, carried = OPERATORS[name], CHECKED[name].carried
    call = Call(name, shapes, attributes)
    out = row.shape(call)
    maps = row.index_maps(call, out)
    assert maps is not None
    assert carried is not None
    assert out == CHECKED[name].shape({"grid": [], "block": [], "loop": 1}, attributes, shapes)
    for number, shape in enumerate(shapes):
        for dim, size in enumerate(shape):
            if size > 1:
                assert carried(attributes, shapes, number, dim, out) == maps.carried(number, dim)


def test_an_operator_without_a_row_of_the_checker_is_named(tmp_path: Path) -> None:
    softsign = opaque("softsign", "({0} / (1.0f + abs({0})))", lambda x: x / (1.0 + np.abs(x)), cost=6)
    with mock.patch.dict(OPERATORS, softsign=softsign):
        program = mugraph.Program()
        x, w = program.input("x", (8, 64)), program.input("w", (64, 128))
        program.output((x @ w).apply("softsign"))
        mugraph.superoptimize(program, profile=False).save(tmp_path / "result")
    assert "softsign" in json.dumps(json.loads((tmp_path / "result" / "graph.json").read_text()))
    with pytest.raises(Rejected, match=r"unknown operator 'softsign'.*src/mugraph/checker/operators.py"):
        check_folder(tmp_path / "result")
    with mock.patch.dict(CHECKED, softsign=function("softsign", lambda x: x / (1 + np.abs(x)))):
        assert check_folder(tmp_path / "result").error_bound is not None
