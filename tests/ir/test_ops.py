"""The operator table, row by row: shapes, meaning in floats against plain NumPy, dtypes, errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mugraph.errors import ShapeMismatch, UnsupportedOperator
from mugraph.ir import DType, Level, Scalar, Tensor
from mugraph.ir.arithmetic import broadcast_shape
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import AttributeValue, Shape
from mugraph.ir.ops import OPERATORS, Kind, Scope, apply_call, flops, operator

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One application of an operator and what it must give."""

    op: str
    shapes: tuple[Shape, ...]
    result: Shape
    meaning: Callable[..., npt.NDArray[Any]]
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    flops: int = 0


def sum_of_groups(x: Array) -> Array:
    return np.stack([x[:, 0:3].sum(1), x[:, 3:6].sum(1)], axis=1)


def _root(x: Array) -> Array:
    return np.where(x < 0, np.nan, np.abs(x) ** 0.5)


def _log(x: Array) -> Array:
    return np.where(x < 0, np.nan, np.log(np.abs(x)))


CASES = [
    Case("matmul", ((2, 3), (3, 4)), (2, 4), lambda x, y: np.einsum("ik,kj->ij", x, y), flops=2 * 2 * 3 * 4),
    Case("matmul", ((5, 2, 3), (3, 4)), (5, 2, 4), lambda x, y: np.einsum("bik,kj->bij", x, y), flops=2 * 5 * 2 * 3 * 4),
    Case(
        "matmul", ((5, 1, 2, 3), (6, 3, 4)), (5, 6, 2, 4), lambda x, y: np.einsum("baik,akj->baij", x.repeat(6, 1), y), flops=1440
    ),
    Case(
        "concat_matmul",
        ((2, 3), (2, 4), (3, 5), (4, 5)),
        (2, 5),
        lambda w, x, y, z: np.einsum("ik,kj->ij", np.hstack([w, x]), np.vstack([y, z])),
        flops=2 * 2 * 5 * 7,
    ),
    Case("sum", ((2, 6),), (2, 1), lambda x: x.sum(1, keepdims=True), {"dim": 1, "size": 6}, flops=12),
    Case("sum", ((2, 6),), (2, 2), sum_of_groups, {"dim": 1, "size": 3}, flops=12),
    Case("sum", ((6, 2),), (6, 2), lambda x: x, {"dim": 0, "size": 1}, flops=12),
    Case("max", ((2, 6),), (2, 1), lambda x: x.max(1, keepdims=True), {"dim": 1, "size": 6}, flops=12),
    Case("cumsum", ((2, 7),), (2, 7), lambda x: x.cumsum(1), {"dim": 1}, flops=14),
    Case("cumsum", ((5, 1, 3),), (5, 1, 3), lambda x: x.cumsum(0), {"dim": 0}, flops=15),
    Case("cumsum_back", ((2, 7),), (2, 7), lambda x: x[:, ::-1].cumsum(1)[:, ::-1], {"dim": 1}, flops=14),
    Case("cumprod", ((6, 2),), (6, 2), lambda x: x.cumprod(0), {"dim": 0}, flops=12),
    Case("cumprod", ((6, 1),), (6, 1), lambda x: x, {"dim": 1}, flops=6),
    Case("cumprod_back", ((3, 4, 5),), (3, 4, 5), lambda x: x[:, ::-1].cumprod(1)[:, ::-1], {"dim": 1}, flops=60),
    Case(
        "max",
        ((4, 3),),
        (2, 3),
        lambda x: np.stack([np.maximum(x[0], x[1]), np.maximum(x[2], x[3])]),
        {"dim": 0, "size": 2},
        flops=12,
    ),
    Case("add", ((2, 3), (3,)), (2, 3), lambda x, y: x + y, flops=6),
    Case("sub", ((2, 1), (3,)), (2, 3), lambda x, y: x - y, flops=6),
    Case("mul", ((2, 3), ()), (2, 3), lambda x, y: x * y, flops=6),
    Case("div", ((2, 3), (2, 3)), (2, 3), lambda x, y: x * (1 / y), flops=24),
    Case("exp", ((2, 3),), (2, 3), lambda x: np.vectorize(math.exp)(x), flops=90),
    Case("square", ((2, 3),), (2, 3), lambda x: x**2, flops=6),
    Case("sqrt", ((2, 3),), (2, 3), lambda x: x**0.5, flops=36),
    Case("silu", ((2, 3),), (2, 3), lambda x: x / (1 + np.exp(-x)), flops=120),
    Case("sigmoid", ((2, 3),), (2, 3), lambda x: (1 + np.tanh(x / 2)) / 2, flops=120),
    Case("relu", ((2, 3),), (2, 3), lambda x: (x + np.abs(x)) / 2, flops=6),
    Case("gelu", ((2, 3),), (2, 3), lambda x: np.vectorize(lambda v: v * math.erfc(-v / math.sqrt(2)) / 2)(x), flops=120),
    Case("tanh", ((2, 3),), (2, 3), lambda x: 1 - 2 / (np.exp(2 * x) + 1), flops=120),
    Case("log", ((2, 3),), (2, 3), lambda x: np.vectorize(math.log)(x), flops=120),
    Case("maximum", ((2, 3), (3,)), (2, 3), np.maximum, flops=6),
    Case("abs", ((2, 3),), (2, 3), lambda x: np.maximum(x, -x), flops=6),
    Case("less", ((2, 3), (3,)), (2, 3), lambda x, y: (x < y) * 1.0, flops=6),
    Case("equal", ((2, 3), ()), (2, 3), lambda x, y: 1.0 - (x < y) - (x > y), flops=6),
    Case("truth", ((2, 3),), (2, 3), np.ones_like, flops=6),
    Case("select", ((2, 1), (3,), ()), (2, 3), lambda c, x, y: np.broadcast_to(x, (2, 3)), flops=6),
    Case("infinity", ((2, 3),), (2, 3), lambda x: x * math.inf, flops=6),
    Case("sin", ((2, 3),), (2, 3), lambda x: np.exp(1j * x).imag, flops=120),
    Case("cos", ((2, 3),), (2, 3), lambda x: np.exp(1j * x).real, flops=120),
    Case("tan", ((2, 3),), (2, 3), lambda x: np.sin(x) / np.cos(x), flops=240),
    Case("asin", ((2, 3),), (2, 3), lambda x: np.arctan2(x, _root(1 - x * x)), flops=120),
    Case("acos", ((2, 3),), (2, 3), lambda x: np.arctan2(_root(1 - x * x), x), flops=120),
    Case("atan", ((2, 3),), (2, 3), lambda x: np.angle(1 + 1j * x), flops=150),
    Case("sinh", ((2, 3),), (2, 3), lambda x: (np.exp(x) - np.exp(-x)) / 2, flops=300),
    Case("cosh", ((2, 3),), (2, 3), lambda x: (np.exp(x) + np.exp(-x)) / 2, flops=210),
    Case("asinh", ((2, 3),), (2, 3), lambda x: np.log(x + np.sqrt(x * x + 1)), flops=300),
    Case("acosh", ((2, 3),), (2, 3), lambda x: np.log(x + _root(x * x - 1)), flops=300),
    Case("atanh", ((2, 3),), (2, 3), lambda x: _log((1 + x) / (1 - x)) / 2, flops=180),
    Case("exp2", ((2, 3),), (2, 3), lambda x: np.exp(x * math.log(2)), flops=90),
    Case("expm1", ((2, 3),), (2, 3), lambda x: np.exp(x) - 1, flops=120),
    Case("log2", ((2, 3),), (2, 3), lambda x: np.log(x) / math.log(2), flops=120),
    Case("log1p", ((2, 3),), (2, 3), lambda x: np.log(1 + x), flops=120),
    Case("erf", ((2, 3),), (2, 3), lambda x: 1 - np.vectorize(math.erfc)(x), flops=120),
    Case("erfc", ((2, 3),), (2, 3), lambda x: 1 - np.vectorize(math.erf)(x), flops=270),
    Case("floor", ((2, 3),), (2, 3), lambda x: x - x % 1, flops=6),
    Case("ceil", ((2, 3),), (2, 3), lambda x: x + -x % 1, flops=6),
    Case("trunc", ((2, 3),), (2, 3), lambda x: x.astype(int), flops=6),
    Case("round", ((2, 3),), (2, 3), lambda x: np.vectorize(round)(x), flops=6),
    Case("atan2", ((2, 3), (3,)), (2, 3), lambda y, x: np.angle(x + 1j * y), flops=150),
    Case("fmod", ((2, 3), (3,)), (2, 3), lambda x, y: x - (x / y).astype(int) * y, flops=120),
    Case("pow", ((2, 3), (3,)), (2, 3), lambda x, y: np.exp(y * np.log(x)), flops=360),
    Case("copysign", ((2, 3), (3,)), (2, 3), lambda x, y: np.broadcast_to(x, (2, 3)), flops=6),
    Case("round_fp16", ((2, 3),), (2, 3), lambda x: x.astype(np.float16), flops=12),
    Case(
        "round_bf16",
        ((2, 3),),
        (2, 3),
        lambda x: np.round(x * 2.0 ** (7 - np.floor(np.log2(x)))) * 2.0 ** (np.floor(np.log2(x)) - 7),
        flops=12,
    ),
    Case("round_fp32", ((2, 3),), (2, 3), lambda x: x.astype(np.float32), flops=12),
    Case("reshape", ((2, 6),), (3, 4), lambda x: np.array(x.ravel().tolist()).reshape(3, 4), {"shape": (3, 4)}),
    Case("transpose", ((2, 3, 4),), (4, 2, 3), lambda x: np.einsum("abc->cab", x), {"permutation": (2, 0, 1)}),
    Case("repeat", ((2, 3),), (2, 6), lambda x: np.hstack([x, x]), {"dim": 1, "times": 2}),
    Case("slice", ((2, 7),), (2, 3), lambda x: x[:, 1:7:2], {"dim": 1, "start": 1, "size": 3, "step": 2}),
    Case("slice", ((4, 2),), (4, 2), lambda x: x[::-1], {"dim": 0, "start": 3, "size": 4, "step": -1}),
    Case("concat", ((2, 3), (2, 1), (2, 3)), (2, 7), lambda x, y, z: np.hstack([x, y, z]), {"dim": 1}),
    Case("cast", ((2, 3),), (2, 3), lambda x: x, {"dtype": DType.BF16}),
    Case("cast", ((2, 3),), (2, 3), np.ones_like, {"dtype": DType.BOOL}),
    Case("constant", (), (), lambda: np.array(0.125), {"value": Scalar.of(0.125), "dtype": DType.FP32}),
]

BY_EVALUATION = {"input", "input_iterator", "output_saver", "accumulate", "accumulate_rescaled"}
"""Rows whose meaning is that of a whole graph: tests/ir/test_evaluate.py."""


def positive(shape: Shape, seed: int) -> Array:
    return np.random.default_rng(seed).uniform(0.5, 3.0, shape)


def tensors(shapes: Sequence[Shape], dtype: DType = DType.FP32) -> list[Tensor]:
    return [Tensor(shape, dtype) for shape in shapes]


def test_every_row_is_tested() -> None:
    elsewhere = {"index_select", "high_nibble", "low_nibble"}  # tests/ir/test_lookups.py, tests/runtime/test_whole_weights.py
    assert {case.op for case in CASES} | BY_EVALUATION | elsewhere == set(OPERATORS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}{list(case.shapes)}")
def test_shape_meaning_and_cost_of_each_row(case: Case) -> None:
    row, operands = operator(case.op), tensors(case.shapes)
    call = apply_call(case.op, operands, case.attributes)
    inferred = row.infer(call, operands, Level.KERNEL)
    values = [positive(shape, seed) for seed, shape in enumerate(case.shapes)]
    computed = row.compute(FloatArithmetic(), call, values)
    assert inferred.shape == case.result == computed.shape
    np.testing.assert_allclose(computed, case.meaning(*values), rtol=1e-12)
    assert flops(call, inferred.shape) == case.flops


@pytest.mark.parametrize("name", [name for name, row in OPERATORS.items() if row.commutative])
def test_commutative_rows_commute(name: str) -> None:
    x, y = positive((2, 3), 1), positive((2, 3), 2)
    call = apply_call(name, tensors([(2, 3), (2, 3)]), {})
    compute = operator(name).compute
    np.testing.assert_array_equal(compute(FloatArithmetic(), call, [x, y]), compute(FloatArithmetic(), call, [y, x]))


def test_opaque_elementwise_rows_have_a_float_reference() -> None:
    unary = [row for row in OPERATORS.values() if row.kind is Kind.OPAQUE and row.elementwise and row.arity == 1]
    assert all(row.reference is not None for row in unary)


def test_the_papers_table_1_is_there() -> None:
    named = {row.paper for row in OPERATORS.values()}
    table = [
        "InIter",
        "OutSaver",
        "Matmul",
        "Sum",
        "EwAdd",
        "EwMul",
        "EwDiv",
        "EwExp",
        "Repeat",
        "Reshape",
        "Sqr",
        "Sqrt",
        "SiLU",
        "Accum",
    ]
    assert named >= set(table)


@pytest.mark.parametrize(
    ("dtypes", "result"),
    [
        ((DType.BF16, DType.BF16), DType.BF16),
        ((DType.BF16, DType.FP32), DType.FP32),
        ((DType.FP16, DType.BF16), DType.FP32),
    ],
)
def test_dtypes_promote(dtypes: tuple[DType, DType], result: DType) -> None:
    operands = [Tensor((4,), dtype) for dtype in dtypes]
    assert operator("add").infer(apply_call("add", operands, {}), operands, Level.KERNEL).dtype is result


def test_scalars_of_rank_0_do_not_promote() -> None:
    operands = [Tensor((4,), DType.BF16), Tensor((), DType.FP32)]
    assert operator("mul").infer(apply_call("mul", operands, {}), operands, Level.KERNEL).dtype is DType.BF16


def test_cast_decides_the_dtype() -> None:
    operands = tensors([(4,)])
    call = apply_call("cast", operands, {"dtype": DType.FP16})
    assert operator("cast").infer(call, operands, Level.BLOCK) == Tensor((4,), DType.FP16, Level.BLOCK)


GRID = Scope((2, 3), 4)
ERRORS: list[tuple[str, tuple[Shape, ...], dict[str, AttributeValue], str]] = [
    ("add", ((2,), (3,)), {}, r"add\(\[2\], \[3\]\): shapes do not broadcast"),
    ("add", ((2,),), {}, "add takes 2 operands, not 1"),
    ("matmul", ((2,), (2, 3)), {}, "matmul needs at least two dimensions on each side"),
    ("matmul", ((2, 3), (4, 2)), {}, r"matmul\(\[2, 3\], \[4, 2\]\): inner dimensions 3 and 4 differ"),
    ("matmul", ((2, 2, 3), (3, 3, 2)), {}, "batch dimensions do not broadcast"),
    ("concat_matmul", ((2, 3), (4, 3), (3, 5), (3, 5)), {}, r"the two products have shapes \[2, 5\] and \[4, 5\]"),
    ("sum", ((4, 6),), {"dim": 1, "size": 4}, "dimension 1 does not divide into groups of 4"),
    ("sum", ((4, 6),), {"dim": 1, "size": 0}, "dimension 1 does not divide into groups of 0"),
    ("sum", ((4, 6),), {"dim": 2, "size": 1}, r"sum: dimension 2 of an operand of shape \[4, 6\]"),
    ("sum", ((4, 6),), {"size": 1}, "sum: attribute 'dim' is missing"),
    ("max", ((4, 6),), {"dim": "last", "size": 1}, "max: attribute 'dim' must be an integer, not 'last'"),
    ("cumsum", ((4, 6),), {"dim": 2}, r"cumsum: dimension 2 of an operand of shape \[4, 6\]"),
    ("cumprod_back", ((4, 6),), {}, "cumprod_back: attribute 'dim' is missing"),
    ("cumsum", ((4, 6), (4, 6)), {"dim": 0}, "cumsum takes 1 operands, not 2"),
    ("reshape", ((4, 6),), {"shape": (5, 5)}, r"reshape\(\[4, 6\]\): cannot reshape to \[5, 5\]"),
    ("reshape", ((4, 6),), {"shape": 24}, "reshape: attribute 'shape' must be a tuple of integers, not 24"),
    ("transpose", ((4, 6),), {"permutation": (0, 0)}, r"\[0, 0\] is not a permutation of its dimensions"),
    ("repeat", ((4, 6),), {"dim": 0, "times": 0}, "cannot repeat 0 times"),
    ("constant", (), {"value": Scalar.of(1), "dtype": "fp32"}, "constant: attribute 'dtype' must be a dtype, not 'fp32'"),
    ("input_iterator", ((4, 6),), {"operand": 0, "imap": (0,), "fmap": None}, "imap must name a dimension or none"),
    ("input_iterator", ((4, 6),), {"operand": 0, "imap": (1, 0), "fmap": None}, r"dimension 0 of \[4, 6\] does not .* into 3"),
    ("input_iterator", ((4, 6),), {"operand": 0, "imap": (0, 1), "fmap": 0}, r"dimension 0 of \[4, 6\] does not divide into 4"),
    ("input_iterator", ((4, 6),), {"operand": 0, "imap": (2, None), "fmap": None}, r"maps to dimension 2 of \[4, 6\]"),
    ("output_saver", ((4, 6),), {"omap": (0, None)}, "every grid dimension must map to a data dimension of the output"),
    ("output_saver", ((4, 6),), {"omap": (0,)}, "omap must name a dimension or none for each of 2 grid dims"),
    ("accumulate", ((4, 6),), {"combine": "mean"}, "unknown accumulator 'mean'; use sum, max or concat"),
    ("accumulate", ((4, 6),), {"combine": "concat"}, "accumulate: attribute 'dim' must be an integer"),
    ("accumulate_rescaled", ((4, 1), (4, 6)), {}, "the exponent shift must broadcast to the accumulated tensor"),
    ("accumulate_rescaled", ((4, 6), (6,)), {}, "and have its rank; reshape it"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "attributes", "error"), ERRORS)
def test_operands_outside_a_rows_specification_are_refused(
    op: str, shapes: tuple[Shape, ...], attributes: dict[str, AttributeValue], error: str
) -> None:
    operands = tensors(shapes)
    with pytest.raises(ShapeMismatch, match=error):
        operator(op).infer(apply_call(op, operands, attributes, GRID), operands, Level.BLOCK)


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "result"),
    [
        ("input_iterator", (4, 24), {"operand": 0, "imap": (0, 1), "fmap": 1}, (2, 2)),
        ("input_iterator", (6, 24), {"operand": 0, "imap": (0, 0), "fmap": None}, (1, 24)),
        ("input_iterator", (4, 24), {"operand": 0, "imap": (None, None), "fmap": 0}, (1, 24)),
        ("output_saver", (4, 6), {"omap": (1, 0)}, (12, 12)),
        ("output_saver", (4, 6), {"omap": (0, 0)}, (24, 6)),
        ("accumulate", (4, 6), {"combine": "sum"}, (4, 6)),
        ("accumulate", (4, 6), {"combine": "concat", "dim": 1}, (4, 24)),
    ],
)
def test_shapes_follow_grid_and_loop(op: str, shape: Shape, attributes: dict[str, AttributeValue], result: Shape) -> None:
    operands = tensors([shape])
    assert operator(op).infer(apply_call(op, operands, attributes, GRID), operands, Level.BLOCK).shape == result


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="operator 'cube' is not in the operator table"):
        operator("cube")


SPECIAL = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0])


@pytest.mark.parametrize(("op", "meaning"), [("less", lambda x, y: x < y), ("equal", lambda x, y: x == y)], ids=["less", "equal"])
def test_no_comparison_holds_with_what_is_no_number(op: str, meaning: Callable[[float, float], bool]) -> None:
    x, y = np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size)
    wanted = [float(meaning(one, other)) for one, other in zip(x.tolist(), y.tolist(), strict=True)]
    np.testing.assert_array_equal(FloatArithmetic().opaque(op, x, y), wanted)


def test_a_choice_takes_nothing_of_what_it_does_not_choose() -> None:
    condition = np.array([0.0, 1.0, -0.0, math.nan, -math.inf, 0.5])
    chosen = FloatArithmetic().opaque("select", condition, SPECIAL, np.full(6, 7.0))
    np.testing.assert_array_equal(chosen, [7, math.inf, 7, 0, 0, 1])
    np.testing.assert_array_equal(FloatArithmetic().opaque("truth", condition), [0, 1, 0, 1, 1, 1])


def test_infinities_have_the_sign_of_what_they_are_made_of() -> None:
    np.testing.assert_array_equal(
        FloatArithmetic().opaque("infinity", np.array([2.0, -1.0, 0.0])), [math.inf, -math.inf, math.nan]
    )


@pytest.mark.parametrize(
    ("op", "attributes", "dtype"),
    [
        ("square", {}, DType.FP32),
        ("sum", {"dim": 0, "size": 2}, DType.FP32),
        ("transpose", {"permutation": (1, 0)}, DType.BOOL),
        ("reshape", {"shape": (6,)}, DType.BOOL),
        ("cast", {"dtype": DType.FP16}, DType.FP16),
        ("accumulate", {"combine": "concat", "dim": 0}, DType.BOOL),
        ("accumulate", {"combine": "sum"}, DType.FP32),
        ("accumulate", {"combine": "max"}, DType.FP32),
    ],
)
def test_what_is_computed_of_booleans_is_none(op: str, attributes: dict[str, AttributeValue], dtype: DType) -> None:
    operands = tensors([(2, 3)], DType.BOOL)
    assert operator(op).infer(apply_call(op, operands, attributes), operands, Level.KERNEL).dtype is dtype


def test_booleans_do_not_widen_what_they_are_combined_with() -> None:
    operands = [Tensor((2, 3), DType.BOOL), Tensor((2, 3), DType.FP16)]
    assert operator("mul").infer(apply_call("mul", operands, {}), operands, Level.KERNEL).dtype is DType.FP16


def test_arrays_of_more_dimensions_than_numpy_broadcasts() -> None:
    x, y = np.zeros((1,) * 40 + (3,)), np.zeros((2,) + (1,) * 40)
    assert broadcast_shape(x.shape, y.shape, (), (3,)) == (x + y).shape
    with pytest.raises(ValueError, match=r"\(3,\), \(2,\) do not broadcast"):
        broadcast_shape((3,), (2,))
