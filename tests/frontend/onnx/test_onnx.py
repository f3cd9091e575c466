"""ONNX models as programs: the onnx package's own test cases of every operator with a row, and what is refused in which words."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest

import mugraph
from mugraph.cli import main
from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch, UnsupportedOperator
from mugraph.frontend.onnx import from_onnx, weights
from mugraph.frontend.onnx.rows import ROWS
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program
from mugraph.runtime import build

onnx = pytest.importorskip("onnx", reason="pip install mugraph[onnx]")
helper, numpy_helper = import_module("onnx.helper"), import_module("onnx.numpy_helper")
reference_module = import_module("onnx.reference")

TRIED_BELOW = ("Equal", "Not")
"""Operators without a case of numbers in an opset that can be read."""
TOLERANCE = {1: 0, 2: 2e-2, 4: 1e-4, 8: 1e-6}
"""By bytes of an element: the cases' results were rounded to it."""
REFUSALS = (
    "is of type", "is constant", "must have at least one element", "over no axis", "training mode", "not one finite number",
    "must be known beforehand", "opset 7 or later", "it rounds to a type", "operand 0 is left out", "before opset 13",
    "without elements", "too much to search",
)  # fmt: skip


def cases() -> dict[str, list[Any]]:
    """The onnx package's cases of one node, by operator, for the operators with a row."""
    package = import_module("onnx.backend.test.case.node")
    wanted = {name.lower() for name in ROWS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in iter_modules(package.__path__):
            if module.name.replace("_", "") in wanted:
                import_module(f"{package.__name__}.{module.name}")
    found: dict[str, list[Any]] = {name: [] for name in ROWS}
    for case in package._NodeTestCases:
        if len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type in ROWS:
            found[case.model.graph.node[0].op_type].append(case)
    return found


@pytest.fixture(scope="module")
def node_cases() -> dict[str, list[Any]]:
    return cases()


@pytest.mark.parametrize("name", ROWS)
def test_an_operator_gives_what_the_cases_of_the_standard_give(name: str, node_cases: dict[str, list[Any]]) -> None:
    converted, refused = 0, list[str]()
    for case in node_cases[name]:
        for inputs, outputs in case.data_sets:
            given = dict(zip((value.name for value in case.model.graph.input), map(array, inputs), strict=False))
            fixed = {key: value for key, value in given.items() if known_beforehand(name, key, value)}
            try:
                program = from_onnx(case.model, fixed=fixed)
            except MugraphError as error:
                refused.append(f"{case.name}: {error}")
                continue
            operands = [np.asarray(value, np.float64) for key, value in given.items() if key not in fixed]
            results = evaluate(program.graph, operands, FloatArithmetic(np.float64))
            for got, wanted in zip(results, map(array, outputs), strict=True):
                tolerance = TOLERANCE[wanted.dtype.itemsize]
                np.testing.assert_allclose(got, wanted.astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=case.name)
                assert got.shape == wanted.shape
            converted += 1
    assert converted or name in TRIED_BELOW, f"no case of the operator can be converted: {refused}"
    assert [refusal for refusal in refused if not any(words in refusal for words in REFUSALS)] == []


def test_comparisons_choices_and_booleans_together() -> None:
    """x where it equals y or is less than none of two, and minus infinity elsewhere; with NaN, none of these holds."""
    nodes = [
        helper.make_node("Equal", ["x", "y"], ["same"]),
        helper.make_node("Less", ["x", "y"], ["less"]),
        helper.make_node("Not", ["less"], ["not_less"]),
        helper.make_node("And", ["not_less", "m"], ["kept"]),
        helper.make_node("Or", ["kept", "same"], ["shown"]),
        helper.make_node("Where", ["shown", "x", "hidden"], ["z"]),
        helper.make_node("Cast", ["x"], ["nonzero"], to=onnx.TensorProto.BOOL),
    ]
    kinds = {"x": onnx.TensorProto.FLOAT, "y": onnx.TensorProto.FLOAT, "m": onnx.TensorProto.BOOL}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, kind, [6]) for name, kind in kinds.items()],
        [
            helper.make_tensor_value_info(name, kind, [6])
            for name, kind in (
                ("z", onnx.TensorProto.FLOAT),
                ("shown", onnx.TensorProto.BOOL),
                ("nonzero", onnx.TensorProto.BOOL),
            )
        ],
        [numpy_helper.from_array(np.float32(-np.inf), "hidden")],
    )
    program = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    assert [str(tensor.dtype) for tensor in program.graph.output_tensors] == ["fp32", "bool", "bool"]
    nan, inf = np.nan, np.inf
    x, y, m = np.array([1.0, 2, nan, inf, 0, -1]), np.array([1.0, 1, 1, nan, 3, -2]), np.array([0.0, 1, 1, 0, 1, 0])
    z, shown, nonzero = evaluate(program.graph, [x, y, m], FloatArithmetic(np.float64))
    assert shown.tolist() == [1, 1, 1, 0, 0, 0]
    np.testing.assert_array_equal(z, [1, 2, nan, -inf, -inf, -inf])
    assert nonzero.tolist() == [1, 1, 1, 1, 0, 1]


def array(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)


def known_beforehand(operator: str, name: str, value: np.ndarray[Any, Any]) -> bool:
    """Whether an input is to be a constant: shapes, axes, and the numbers that rows take."""
    if operator == "CastLike":
        return name == "like"
    if value.dtype.kind == "b":
        return operator not in ("Where", "And", "Or", "Xor", "Not")
    return value.dtype.kind in "iu" or (operator in ("Clip", "Pow", "Dropout", "Pad") and value.size == 1 and name != "x")


def model(
    nodes: Sequence[Any],
    inputs: dict[str, Any],
    initializers: dict[str, Any] | None = None,
    opset: int = 18,
    output: Sequence[Any] = ("any", "size"),
) -> Any:
    """A model of float32 tensors with one output `y`; `inputs` and `output` are shapes."""
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, float32, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", float32, list(output))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (initializers or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


WEIGHT = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)


def layer(rows: int | str = 4) -> Any:
    """RMS normalisation and a linear layer, its shape computed on the way as exporters do."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "last"], ["mean"], keepdims=1),
        helper.make_node("Add", ["mean", "epsilon"], ["shifted"]),
        helper.make_node("Sqrt", ["shifted"], ["root"]),
        helper.make_node("Div", ["x", "root"], ["normal"]),
        helper.make_node("MatMul", ["normal", "weight"], ["product"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "parts"], ["split"], axis=0),
        helper.make_node("Reshape", ["product", "split"], ["y"], name="heads"),
    ]
    constants = {
        "last": np.array([-1]), "epsilon": np.array([1e-5], np.float32), "weight": WEIGHT, "zero": np.array([0]),
        "parts": np.array([2, -1]),
    }  # fmt: skip
    return model(nodes, {"x": [rows, 16]}, constants, output=(rows, 2, 16))


def reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    normal = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    result: np.ndarray[Any, Any] = (normal @ WEIGHT).reshape(len(x), 2, -1)
    return result


def test_a_model_with_weights_runs_as_kernels() -> None:
    program = from_onnx(layer())
    assert program.graph.input_names == ("x", "weight")
    x = np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)
    (output,) = build(program.graph)(x, *weights(layer()).values())
    np.testing.assert_allclose(output, reference(x), rtol=1e-4, atol=1e-4)


def test_open_dimensions_need_a_size() -> None:
    program = from_onnx(layer("batch"), sizes={"batch": 3})
    assert program.graph.output_tensors[0].shape == (3, 2, 16)
    with pytest.raises(InvalidInput, match=r"input x has an open dimension 'batch'; give sizes=\{'batch': ...\}"):
        from_onnx(layer("batch"))


def test_a_dimension_without_a_name_is_called_by_its_place() -> None:
    unnamed = model([helper.make_node("Relu", ["x"], ["y"])], {"x": [None, "columns", None]}, output=[None, "columns", 4])
    program = from_onnx(unnamed, sizes={"x[0]": 2, "columns": 3, "x[2]": 4})
    assert program.graph.output_tensors[0].shape == (2, 3, 4)
    with pytest.raises(InvalidInput, match=r"input x has an open dimension 'x\[2\]'; give sizes=\{'x\[2\]': ...\}"):
        from_onnx(unnamed, sizes={"x[0]": 2, "columns": 3})


@pytest.mark.parametrize("names", ["batches", "", "y[0]"])
def test_only_open_dimensions_of_inputs_have_a_size_to_give(names: str) -> None:
    with pytest.raises(InvalidInput, match=rf"sizes names '{re.escape(names)}', which is no open dimension; those are batch"):
        from_onnx(layer("batch"), sizes={"batch": 3, names: 4})


@pytest.mark.parametrize("option", ["sizes", "fixed"])
def test_options_that_are_no_mappings_are_refused(option: str) -> None:
    wrong: dict[str, Any] = {option: 4}
    with pytest.raises(InvalidInput, match=f"{option} is of type int; give a dictionary by name"):
        from_onnx(layer("batch"), **wrong)


@pytest.mark.parametrize("declared", [[4, 9], [4], [4, 8, 1], ["rows", 9], ["rows", "rows"]])
def test_an_output_declared_with_another_shape_is_refused(declared: list[Any]) -> None:
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    with pytest.raises(ShapeMismatch, match=r"output y is declared with shape \[4.* but computed with \[4, 8\]; correct"):
        from_onnx(model(relu, {"x": ["rows", 8]}, output=declared), sizes={"rows": 4})
    assert from_onnx(model(relu, {"x": ["rows", 8]}, output=["rows", "wide"]), sizes={"rows": 4})


def test_a_file_is_optimized_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "layer.onnx"
    onnx.save(layer(), str(file))
    assert main(["optimize", str(file), "--no-profile", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"]
    assert main(["optimize", str(file), "--batch", "2"]) == 2
    assert "--batch applies to built-in workloads" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("node", "opset", "output"),
    [
        (helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0), 13, [4]),
        (helper.make_node("ReduceSum", ["x"], ["y"], axes=[-1]), 11, [4, 1]),
        (helper.make_node("Unsqueeze", ["x"], ["y"], axes=[0, -1]), 11, [1, 4, 6, 1]),
        (helper.make_node("Softmax", ["x"], ["y"], axis=-1), 11, [4, 6]),
        (helper.make_node("Clip", ["x"], ["y"], min=0.5), 10, [4, 6]),
        (helper.make_node("Transpose", ["x"], ["y"]), 9, [6, 4]),
    ],
)
def test_meanings_of_earlier_opsets(node: Any, opset: int, output: list[int]) -> None:
    earlier = model([node], {"x": [4, 6]}, opset=opset, output=output)
    x = np.random.default_rng(2).standard_normal((4, 6))
    (got,) = evaluate(from_onnx(earlier).graph, [x], FloatArithmetic(np.float64))
    (wanted,) = reference_module.ReferenceEvaluator(earlier).run(None, {"x": x.astype(np.float32)})
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert got.shape == wanted.shape


def node(op: str, *constants: str, results: Sequence[str] = ("y",), **attributes: Any) -> Any:
    return helper.make_node(op, ["x", *constants], list(results), **attributes)


PARTS: dict[str, tuple[int, Any, dict[str, Any], tuple[int, ...]]] = {
    "reflected": (18, node("Pad", "a", mode="reflect"), {"a": [0, 2, 1, 0, 1, 3]}, (2, 4, 5)),
    "the border again": (18, node("Pad", "a", mode="edge"), {"a": [1, 2, 0, 0, 3, 1]}, (2, 4, 5)),
    "wrapped round": (19, node("Pad", "a", mode="wrap"), {"a": [1, 2, 0, 0, 3, 1]}, (2, 4, 5)),
    "zeros along some axes": (18, node("Pad", "a", "", "b"), {"a": [1, 0, 2, 3], "b": [-1, 0]}, (2, 4, 5)),
    "a number": (13, node("Pad", "a", "b"), {"a": [0, 2, 1, 0], "b": np.float32(1.5)}, (4, 5)),
    "from an attribute": (10, node("Pad", mode="constant", pads=[0, 2, 1, 0], value=0.5), {}, (4, 5)),
    "slices before opset 10": (9, node("Slice", starts=[-3, 1], ends=[9, -1], axes=[1, 0]), {}, (4, 5)),
    "slices beyond both ends": (13, node("Slice", "a", "b", "c", "d"), {
        "a": [9, -9], "b": [-9, 9], "c": [1, 0], "d": [-2, 3]}, (4, 5)),
    "slices of the first axes": (13, node("Slice", "a", "b"), {"a": [1], "b": [3]}, (4, 5)),
    "as many parts as results": (11, node("Split", results=("z", "y"), axis=1), {}, (3, 6)),
    "a smaller last part": (18, node("Split", results=("z", "w", "y"), axis=-1, num_outputs=3), {}, (3, 7)),
    "parts of sizes": (11, node("Split", results=("z", "y"), axis=0, split=[1, 3]), {}, (4, 6)),
    "one position": (13, node("Gather", "a", axis=1), {"a": np.int64(-2)}, (3, 5)),
    "positions in runs": (13, node("Gather", "a", axis=1), {"a": [[4, 2, 0], [1, 1, 3]]}, (3, 5)),
    "beside constants": (13, node("Concat", "a", "x", axis=-1), {"a": np.full((1, 1), 2, np.float32)}, (1, 5)),
    "largest of dilated windows": (12, node("MaxPool", kernel_shape=[3], dilations=[2], strides=[2], pads=[1, 2]), {}, (1, 2, 9)),
    "largest of as many windows": (12, node("MaxPool", kernel_shape=[2, 4], auto_pad="SAME_LOWER"), {}, (1, 2, 5, 6)),
    "means of uneven borders": (11, node("AveragePool", kernel_shape=[3, 2], pads=[0, 1, 2, 0]), {}, (2, 2, 5, 6)),
    "means with the border": (
        11, node("AveragePool", kernel_shape=[3, 2], pads=[1, 1, 2, 0], count_include_pad=1), {}, (2, 2, 5, 6)),
    "running sums": (14, node("CumSum", "a"), {"a": np.int64(-2)}, (3, 4, 2)),
    "running sums of what was before": (14, node("CumSum", "a", exclusive=1), {"a": np.int32(1)}, (3, 7)),
    "running sums of what is behind": (11, node("CumSum", "a", exclusive=1, reverse=1), {"a": np.int64(0)}, (5, 2)),
    "running sums of one element, which is left out": (14, node("CumSum", "a", exclusive=1), {"a": np.int64(1)}, (3, 1)),
    "means of tiles": (11, node("AveragePool", kernel_shape=[2, 3], strides=[2, 3]), {}, (2, 2, 4, 6)),
}  # fmt: skip
"""The opset, a node, its constants, and the shape of x."""


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_those_of_the_reference(name: str) -> None:
    opset, written, constants, shape = PARTS[name]
    tried = model([written], {"x": list(shape)}, constants, opset, output=["size"] * len(shape))
    del tried.graph.output[0].type.tensor_type.shape.dim[:]
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    (wanted,) = reference_module.ReferenceEvaluator(tried).run(None, {"x": x})
    tried.graph.output[0].type.tensor_type.shape.dim.extend(
        onnx.TensorShapeProto.Dimension(dim_value=size) for size in wanted.shape
    )
    (got,) = evaluate(from_onnx(tried).graph, [x.astype(np.float64)], FloatArithmetic(np.float64))
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_borders_may_be_cut_off_and_added_at_once(mode: Any) -> None:
    """Which ONNX's reference does not compute: what is cut off is no part of the border on the other side."""
    program = from_onnx(model([node("Pad", "a", mode=mode)], {"x": [4, 6]}, {"a": [0, -2, 1, 3]}, 18, output=(5, 7)))
    x = np.random.default_rng(4).standard_normal((4, 6))
    (got,) = evaluate(program.graph, [x], FloatArithmetic(np.float64))
    np.testing.assert_array_equal(got, np.pad(x[:, 2:], [(0, 1), (0, 3)], mode))


def test_there_is_a_window_for_every_step() -> None:
    """As the standard defines SAME_UPPER: of 5 elements in steps of 2, three windows."""
    pool = node("MaxPool", kernel_shape=[2], strides=[2], auto_pad="SAME_UPPER")
    program = from_onnx(model([pool], {"x": [1, 1, 5]}, opset=12, output=(1, 1, 3)))
    (got,) = evaluate(program.graph, [np.array([[[3.0, 1, 2, 5, -4]]])], FloatArithmetic(np.float64))
    assert got.tolist() == [[[3, 5, -4]]]


@pytest.mark.parametrize(
    ("written", "constants", "words"),
    [
        (node("Pad", "a", mode="reflect"), {"a": [0, 5, 0, 0]}, r"a border of 5 and 0 elements of 5 by mode 'reflect'"),
        (node("Slice", "a", "b"), {"a": [3], "b": [2]}, "a part of a tensor without elements"),
        (node("Gather", "x"), {}, r"Gather: .*operand 1 of shape \[4, 5\] is fp32; places are named by integers"),
        (node("Gather", "a", axis=0), {"a": [0, 3, 1, 2, 0, 0, 3, 3] * 4}, "gather at most 16 runs"),
        (node("Concat", "a", axis=0), {"a": np.array([[1, 2, 3, 4, 5]])}, "a constant that is not one finite number"),
        (node("MaxPool", kernel_shape=[9]), {}, "windows of 1 dimensions of shape"),
        (node("CumSum", "x"), {}, "operand 1 is computed from inputs"),
        (node("CumSum", "a"), {"a": [0, 1]}, r"a sum that runs along the axes \[0, 1\]; it runs along one"),
    ],
)
def test_parts_that_cannot_be_converted_are_refused(written: Any, constants: dict[str, Any], words: str) -> None:
    with pytest.raises(MugraphError, match=words):
        from_onnx(model([written], {"x": [4, 5]}, constants, 13))


def looked_up(*nodes: Any, kind: int) -> Any:
    """A model of a table x [6, 5] and integers a [2, 3]."""
    inputs = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [6, 5]),
        helper.make_tensor_value_info("a", kind, [2, 3]),
    ]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3, 5])
    graph = helper.make_graph([*nodes], "looked_up", inputs, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


@pytest.mark.parametrize(("kind", "dtype"), [(6, np.int32), (7, np.int64)])
def test_places_may_be_an_input(kind: int, dtype: Any) -> None:
    gather = helper.make_node("Gather", ["x", "a"], ["rows"], axis=0)
    tried = looked_up(gather, helper.make_node("Tanh", ["rows"], ["y"]), kind=kind)
    x, a = np.random.default_rng(5).standard_normal((6, 5)).astype(np.float32), np.array([[0, -1, 5], [3, 3, -6]], dtype)
    (wanted,) = reference_module.ReferenceEvaluator(tried).run(None, {"x": x, "a": a})
    (got,) = mugraph.superoptimize(from_onnx(tried), budget=5, profile=False, cache="off").executable(x, a)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_integers_that_something_else_reads_are_refused() -> None:
    gather = helper.make_node("Gather", ["x", "a"], ["rows"], axis=0)
    cast = helper.make_node("Cast", ["a"], ["number"], to=onnx.TensorProto.FLOAT)
    tried = looked_up(
        gather, cast, helper.make_node("ReduceSum", ["number"], ["sum"]), helper.make_node("Add", ["rows", "sum"], ["y"]), kind=7
    )
    with pytest.raises(MugraphError, match=r"input a is of type INT64; .* integers that only Gather reads places from"):
        from_onnx(tried)


def test_the_package_offers_it() -> None:
    assert isinstance(mugraph.from_onnx(layer()), Program)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (
            helper.make_node("Hardmax", ["x"], ["y"], name="top"),
            r"operator Hardmax \(node top\): no such operator in the table",
        ),
        (helper.make_node("RandomNormalLike", ["x"], ["y"]), "operator RandomNormalLike: it draws random numbers"),
        (helper.make_node("Reshape", ["x", "x"], ["y"]), "operator Reshape: operand 1 is computed from inputs"),
        (helper.make_node("Softmax", ["x"], ["y"], axis=0), "before opset 13"),
        (helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.INT64), "operator Cast: it rounds to a type that is not"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(node: Any, words: str) -> None:
    with pytest.raises(UnsupportedOperator, match=words):
        from_onnx(model([node], {"x": [4, 4]}, opset=12))


def test_operators_of_other_domains_are_refused() -> None:
    custom = model([helper.make_node("Attention", ["x"], ["y"], domain="com.example")], {"x": [4]})
    custom.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedOperator, match=r"operator Attention: it is of domain com\.example"):
        from_onnx(custom)


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"there is no file .*missing\.onnx"):
        from_onnx(tmp_path / "missing.onnx")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\xff" * 20)
    with pytest.raises(InvalidInput, match=r"damaged\.onnx is not valid ONNX"):
        from_onnx(damaged)


@pytest.mark.parametrize(("name", "text"), [("m.json", "{"), ("m.onnxtxt", "hello"), ("m.textproto", "hello")])
@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
def test_text_formats_that_are_no_models_are_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=rf"{name} is not valid ONNX"):
        from_onnx(tmp_path / name)


def test_what_is_no_file_and_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*: Is a directory"):
        from_onnx(tmp_path)
    with pytest.raises(InvalidInput, match=r"a model is a file or an onnx\.ModelProto, not int"):
        from_onnx(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "values"),
    [
        (helper.make_node("Add", ["x", "w"], ["y"]), np.ones((3, 8), np.float32)),
        (helper.make_node("Mul", ["x", "w"], ["y"]), np.full((1, 3), 2)),
        (helper.make_node("Expand", ["x", "w"], ["y"]), np.array([3, 8])),
        (helper.make_node("Squeeze", ["x", "w"], ["y"]), np.array([9])),
        (helper.make_node("Unsqueeze", ["x", "w"], ["y"]), np.array([9])),
        (helper.make_node("Unsqueeze", ["x", "w"], ["y"]), np.array([0, -4])),
        (helper.make_node("Reshape", ["x", "w"], ["y"]), np.array([4, 8, 0])),
        (helper.make_node("Tile", ["x", "w"], ["y"]), np.array([3])),
        (helper.make_node("Flatten", ["x"], ["y"], axis=9), None),
        (helper.make_node("Softmax", ["x"], ["y"], axis=7), None),
        (helper.make_node("LayerNormalization", ["x", "w"], ["y"], axis=2), np.ones((4, 8), np.float32)),
        (helper.make_node("Gemm", ["x", "w"], ["y"]), np.ones((2, 8, 3), np.float32)),
    ],
)
def test_shapes_and_axes_that_do_not_fit_are_refused(node: Any, values: Any) -> None:
    given = {} if values is None else {"w": values}
    with pytest.raises(ShapeMismatch, match=f"operator {node.op_type}: "):
        from_onnx(model([node], {"x": [4, 8]}, given))


def test_only_inputs_without_a_value_can_be_fixed() -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    with_default = model([product], {"x": [4, 16], "w": [16, 32]}, {"w": WEIGHT})
    for name in ("w", "typo"):
        with pytest.raises(InvalidInput, match=f"fixed names '{name}', which is no input without a value; those are x"):
            from_onnx(with_default, fixed={name: WEIGHT})


def test_sparse_weights_are_refused() -> None:
    values = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 9]), "places"), [16, 32])
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    initialized = model([product], {"x": [4, 16]})
    initialized.graph.sparse_initializer.append(sparse)
    constant = model([helper.make_node("Constant", [], ["w"], sparse_value=sparse), product], {"x": [4, 16]})
    for refused in (initialized, constant):
        with pytest.raises(UnsupportedOperator, match=r"w is sparse; make it dense"):
            from_onnx(refused)


def test_opsets_that_the_package_does_not_know_are_refused() -> None:
    newest = import_module("onnx.defs").onnx_opset_version()
    relu = helper.make_node("Relu", ["x"], ["y"])
    assert from_onnx(model([relu], {"x": [4, 4]}, opset=newest))
    with pytest.raises(InvalidInput, match=f"opset {newest + 1}, and the onnx package knows operators up to opset {newest}"):
        from_onnx(model([relu], {"x": [4, 4]}, opset=newest + 1))


def test_old_opsets_are_refused() -> None:
    with pytest.raises(InvalidInput, match="opset 6; convert it to opset 7 or later"):
        from_onnx(model([helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, opset=6))


def cast_model(*nodes: Any, kind: int) -> Any:
    x = helper.make_tensor_value_info("x", kind, [4, 8])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 8])
    return helper.make_model(helper.make_graph(list(nodes), "casts", [x], [y]), opset_imports=[helper.make_opsetid("", 21)])


def test_casts_that_come_back_round() -> None:
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    there, back = helper.make_node("Cast", ["x"], ["h"], to=half), helper.make_node("Cast", ["h"], ["w"], to=single)
    rest = helper.make_node("Sub", ["x", "w"], ["y"])
    program = from_onnx(cast_model(there, back, rest, kind=single))
    assert [node.op for node in program.graph.nodes] == ["input", "round_fp16", "sub"]
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    (result,) = evaluate(program.graph, [x], FloatArithmetic(np.float32))
    np.testing.assert_array_equal(result, x - x.astype(np.float16).astype(np.float32))
    assert np.abs(result).max() > 1e-5


def test_fp32_between_fp16_tensors_is_free() -> None:
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=single),
        helper.make_node("Softmax", ["wide"], ["weights"]),
        helper.make_node("Cast", ["weights"], ["narrow"], to=half),
        helper.make_node("Mul", ["narrow", "x"], ["product"]),
        helper.make_node("Cast", ["product"], ["y"], to=single),
    ]
    program = from_onnx(cast_model(*nodes, kind=half))
    assert not any(node.op.startswith("round") for node in program.graph.nodes)


def test_a_cast_to_the_type_of_one_number_rounds() -> None:
    nodes = [
        helper.make_node("CastLike", ["x", "like"], ["half"]),
        helper.make_node("Cast", ["half"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    for like in (np.float16(1), np.float32(1)):
        program = from_onnx(model(nodes, {"x": (3, 4)}, {"like": like}, output=(3, 4)))
        (rounded,) = evaluate(program.graph, [x.astype(np.float64)], FloatArithmetic())
        np.testing.assert_array_equal(rounded, x.astype(like.dtype).astype(np.float64))
    computed = [helper.make_node("Neg", ["one"], ["like"]), *nodes]
    with pytest.raises(UnsupportedOperator, match="a constant which other nodes compute; use Cast"):
        from_onnx(model(computed, {"x": (3, 4)}, {"one": np.float16(1)}, output=(3, 4)))
