"""Programs written by hand: what each method means, and the normal form."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mugraph.errors import InvalidInput, ShapeMismatch, UnsupportedOperator
from mugraph.ir import DType
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Shape
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.readings import readings
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.ir.text import format_graph
from mugraph.ir.validity import check

Array = npt.NDArray[Any]


def written(function: Callable[..., ProgramTensor], *shapes: Shape) -> Program:
    """The program of a function of inputs X0, X1, ..."""
    program = Program()
    program.output(function(*(program.input(f"X{i}", shape) for i, shape in enumerate(shapes))))
    return program


def operators(function: Callable[..., ProgramTensor], *shapes: Shape) -> list[str]:
    """The operators of a function's graph, without inputs and constants."""
    return [node.op for node in written(function, *shapes).graph.nodes if node.op not in ("input", "constant")]


def same_graph(first: Callable[..., ProgramTensor], second: Callable[..., ProgramTensor], *shapes: Shape) -> bool:
    return format_graph(written(first, *shapes).graph) == format_graph(written(second, *shapes).graph)


MEANINGS: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Shape, ...]]] = [
    (lambda x, y: x + y, np.add, ((2, 3), (3,))),
    (lambda x, y: x - y, np.subtract, ((2, 3), (2, 1))),
    (lambda x, y: x * y, np.multiply, ((2, 3), (2, 3))),
    (lambda x, y: x / y, np.divide, ((2, 3), (2, 3))),
    (lambda x: 2 + x, lambda x: 2 + x, ((3,),)),
    (lambda x: 2 - x, lambda x: 2 - x, ((3,),)),
    (lambda x: x - 0.25, lambda x: x - 0.25, ((3,),)),
    (lambda x: 2 * x, lambda x: 2 * x, ((3,),)),
    (lambda x: x / 3, lambda x: x / 3, ((3,),)),
    (lambda x: np.float32(2) * x, lambda x: 2 * x, ((3,),)),
    (lambda x: np.int64(2) - x, lambda x: 2 - x, ((3,),)),
    (lambda x: 3 / x, lambda x: 3 / x, ((3,),)),
    (lambda x: -x, lambda x: -x, ((3,),)),
    (lambda x: x**0, lambda x: np.ones_like(x), ((3,),)),
    (lambda x: x**1, lambda x: x, ((3,),)),
    (lambda x: x**5, lambda x: x**5, ((3,),)),
    (lambda x: x**-2, lambda x: x**-2, ((3,),)),
    (lambda x: x**0.5, np.sqrt, ((3,),)),
    (lambda x: x**2.5, lambda x: x**2.5, ((3,),)),
    (lambda x: x**-0.5, lambda x: x**-0.5, ((3,),)),
    (lambda x: x.exp(), np.exp, ((3,),)),
    (lambda x: x.sqrt(), np.sqrt, ((3,),)),
    (lambda x: x.rsqrt(), lambda x: 1 / np.sqrt(x), ((3,),)),
    (lambda x: x.square(), np.square, ((3,),)),
    (lambda x: x.silu(), lambda x: x / (1 + np.exp(-x)), ((3,),)),
    (lambda x: x.sigmoid(), lambda x: 1 / (1 + np.exp(-x)), ((3,),)),
    (lambda x: (x - 1).relu(), lambda x: np.clip(x - 1, 0, None), ((9,),)),
    (lambda x: x.tanh(), np.tanh, ((3,),)),
    (lambda x: x.apply("log"), np.log, ((3,),)),
    (lambda x: x.cast("fp64"), lambda x: x, ((3,),)),
    (lambda x, y: x @ y, np.matmul, ((2, 3), (3, 4))),
    (lambda x, y: x @ y, np.matmul, ((5, 2, 3), (3, 4))),
    (lambda x, y: x @ y, np.matmul, ((3,), (3, 4))),
    (lambda x, y: x @ y, np.matmul, ((2, 3), (3,))),
    (lambda x, y: x @ y, np.matmul, ((3,), (3,))),
    (lambda x, y: x @ y, np.matmul, ((3,), (5, 3, 4))),
    (lambda x: x.sum(), np.sum, ((2, 3),)),
    (lambda x: x.sum(-1), lambda x: x.sum(-1), ((2, 3),)),
    (lambda x: x.sum((0, -1), keepdim=True), lambda x: x.sum((0, 2), keepdims=True), ((2, 3, 4),)),
    (lambda x: x.mean((0, 1)), lambda x: x.mean((0, 1)), ((2, 3, 4),)),
    (lambda x: x.mean(1, keepdim=True), lambda x: x.mean(1, keepdims=True), ((2, 1, 4),)),
    (lambda x: x.amax(0), lambda x: x.max(0), ((2, 3),)),
    (lambda x: x.softmax(-1), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True), ((2, 3),)),
    (lambda x: x.reshape(3, -1), lambda x: x.reshape(3, -1), ((2, 6),)),
    (lambda x: x.reshape((4, 3)), lambda x: x.reshape(4, 3), ((2, 6),)),
    (lambda x: x.permute(2, 0, -2), lambda x: x.transpose(2, 0, 1), ((2, 3, 4),)),
    (lambda x: x.transpose(0, -1), lambda x: x.swapaxes(0, -1), ((2, 3, 4),)),
    (lambda x: x.unsqueeze(-1), lambda x: x[..., None], ((2, 3),)),
    (lambda x: x.unsqueeze(0), lambda x: x[None], ((2, 3),)),
    (lambda x: x.squeeze(1), lambda x: x[:, 0], ((2, 1, 3),)),
    (lambda x: x.repeat(-1, 3), lambda x: np.tile(x, (1, 3)), ((2, 3),)),
    (lambda x: x.expand(4, 2, -1), lambda x: np.broadcast_to(x, (4, 2, 3)), ((1, 3),)),
    (lambda x: x.expand((2, 3)), lambda x: x, ((2, 3),)),
]


@pytest.mark.parametrize(("function", "meaning", "shapes"), MEANINGS, ids=range(len(MEANINGS)))
def test_each_method_means_what_numpy_means(
    function: Callable[..., ProgramTensor], meaning: Callable[..., Array], shapes: tuple[Shape, ...]
) -> None:
    inputs = [np.random.default_rng(seed).uniform(0.5, 2.0, shape) for seed, shape in enumerate(shapes)]
    graph = written(function, *shapes).graph
    check(graph)
    (result,) = evaluate(graph, inputs, FloatArithmetic())
    expected = meaning(*inputs)
    assert graph.output_tensors[0].shape == np.shape(expected)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_gelu_is_the_exact_one() -> None:
    (result,) = evaluate(written(lambda x: x.gelu(), (2,)).graph, [np.array([1.0, -2.0])], FloatArithmetic())
    np.testing.assert_allclose(result, [0.8413447460685429, -0.04550026389635842], rtol=1e-12)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x, y: x / 8, lambda x, y: x * 0.125),
        (lambda x, y: x * (1 / y), lambda x, y: x / y),
        (lambda x, y: (1 / y) * x, lambda x, y: x / y),
        (lambda x, y: x * y.rsqrt(), lambda x, y: x / y.sqrt()),
        (lambda x, y: x * (2 / y), lambda x, y: (x * 2) / y),
        (lambda x, y: x * x + y, lambda x, y: x.square() + y),
        (lambda x, y: x * 3 * 2, lambda x, y: x * 6),
        (lambda x, y: 3 * (x * 2), lambda x, y: 6 * x),
        (lambda x, y: x + 1 * y + 0, lambda x, y: x + y),
        (lambda x, y: (2 / y) * 3 + x, lambda x, y: 6 / y + x),
        (lambda x, y: x - 0.5, lambda x, y: x + -0.5),
        (lambda x, y: x.permute(0, 1), lambda x, y: x),
        (lambda x, y: x.reshape(6).reshape(3, 2).reshape(2, 3).exp(), lambda x, y: x.exp()),
        (lambda x, y: x.reshape(6).reshape(3, 2), lambda x, y: x.reshape(3, 2)),
        (lambda x, y: x.cast("fp32").expand(2, 3).repeat(0, 1), lambda x, y: x),
        (lambda x, y: x.sum((), keepdim=True), lambda x, y: x),
    ],
)
def test_two_spellings_give_one_graph(first: Callable[..., ProgramTensor], second: Callable[..., ProgramTensor]) -> None:
    assert same_graph(first, second, (2, 3), (2, 3))


def test_equal_subexpressions_are_one_node() -> None:
    assert operators(lambda x, y: (x + y).exp() / (y + x).exp().sum(-1, keepdim=True), (2, 3), (2, 3)) == [
        "add",
        "exp",
        "sum",
        "div",
    ]
    assert operators(lambda x, y: (x - y) * (y - x), (2, 3), (2, 3)) == ["sub", "sub", "mul"]


def test_constants_are_folded_exactly() -> None:
    program = Program()
    third = program.constant(1) / 3
    values = [
        third + third,
        third - 1,
        third * third,
        third.square(),
        program.constant(2).sqrt(),
        program.constant(2).sqrt() * program.constant(8).sqrt(),
        program.constant(8).rsqrt(),
        program.constant(2) ** -3,
        2 / third,
        program.constant(np.float32(0.5)),
        program.constant(np.int64(7)),
        program.constant(Fraction(2, 7)),
    ]
    assert [str(value.number) for value in values] == [
        "2/3",
        "-2/3",
        "1/9",
        "1/9",
        "sqrt(2)",
        "4",
        "sqrt(1/8)",
        "1/8",
        "6",
        "1/2",
        "7",
        "2/7",
    ]


def test_what_cannot_be_folded_stays_a_node() -> None:
    program = Program()
    assert (program.constant(2).sqrt() + 1).number is None
    assert program.constant(1).exp().number is None
    assert program.constant(-1).sqrt().number is None


def test_scalars_take_the_dtype_of_the_tensor() -> None:
    program = Program()
    x = program.input("X", (2, 3), "bf16")
    program.output(x * 0.5 + 1)
    assert {node.output.dtype for node in program.graph.nodes} == {DType.BF16}


def test_reductions_over_dimensions_of_size_1_are_nothing() -> None:
    assert operators(lambda x: x.sum(1, keepdim=True).exp(), (2, 1)) == ["exp"]


def test_softmax_subtracts_the_row_maximum() -> None:
    assert operators(lambda x: x.softmax(-1), (2, 3)) == ["max", "sub", "exp", "sum", "div"]


def test_dead_nodes_vanish_and_unused_inputs_stay() -> None:
    program = Program()
    x, _, z = (program.input(name, (2,)) for name in "XYZ")
    x.exp().tanh()
    program.output(z.exp(), x)
    assert [node.op for node in program.graph.nodes] == ["input", "input", "input", "exp"]
    assert program.graph.input_names == ("X", "Y", "Z")
    assert program.graph.outputs == ((3, 0), (0, 0))
    assert without_dead_nodes(program.graph) == program.graph


def test_shape_dtype_and_repr_of_a_tensor() -> None:
    x = Program().input("X", (2, 3), DType.FP16)
    assert (x.shape, x.dtype, x.number) == ((2, 3), DType.FP16, None)
    assert repr(x.exp()) == "ProgramTensor(exp: fp16[2, 3])"


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: x @ x, ShapeMismatch, r"matmul\(\[2, 3\], \[2, 3\]\): inner dimensions 3 and 2 differ"),
        (lambda x: x + x.reshape(3, 2), ShapeMismatch, "shapes do not broadcast"),
        (lambda x: x.sum(2), InvalidInput, r"dimension 2 of a tensor of shape \[2, 3\]: use one from -2 to 1"),
        (lambda x: x.sum().sum(1), InvalidInput, r"dimension 1 of a tensor of shape \[\]: use one from -1 to 0"),
        (lambda x: x.reshape(4, -1), InvalidInput, r"cannot reshape 6 elements to \[4, -1\]"),
        (lambda x: x.reshape(5), ShapeMismatch, r"cannot reshape to \[5\]"),
        (lambda x: x.squeeze(0), ShapeMismatch, "cannot reshape"),
        (lambda x: x.reshape(-2, -3), ShapeMismatch, r"cannot reshape to \[-2, -3\]"),
        (lambda x: x.sum("a"), InvalidInput, "dimension 'a' is no whole number"),
        (lambda x: x**257, InvalidInput, "power 257: at most power 256"),
        (lambda x: x.program.output(3), InvalidInput, "3 is no tensor of a program"),
        (lambda x: x.program.input("Y", 4), InvalidInput, "input 'Y' of shape 4: give a name and a sequence of sizes"),
        (lambda x: x.program.input("Y", (2.0, 3)), InvalidInput, "size 2.0 is no whole number"),
        (lambda x: x.expand(4, 3), InvalidInput, r"cannot expand shape \[2, 3\] to \[4, 3\]; only dimensions of size 1 grow"),
        (lambda x: x.expand(3), InvalidInput, "cannot expand"),
        (lambda x: x**0.3, InvalidInput, "power 0.3: only integer and half-integer exponents can be verified"),
        (lambda x: x / 0, InvalidInput, "division by the constant 0"),
        (lambda x: x * float("inf"), InvalidInput, "the constant inf is not finite"),
        (lambda x: x * "2", InvalidInput, "'2' is neither a tensor of the program nor a real number"),
        (lambda x: x.apply("cube"), UnsupportedOperator, "'cube' is not in the operator table"),
        (lambda x: x + Program().input("Y", (2, 3)), InvalidInput, "tensors of two different programs cannot be combined"),
        (lambda x: x.program.input("X0", (2, 3)), InvalidInput, "the program has an input called 'X0' already"),
        (
            lambda x: x.program.input("Y", (2, 0)),
            InvalidInput,
            r"input 'Y' of shape \[2, 0\]: every dimension must have at least",
        ),
        (lambda x: x.program.input("Y", (2,), "int4"), InvalidInput, "unknown dtype 'int4'"),
    ],
)
def test_mistakes_are_named(function: Callable[[ProgramTensor], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        written(function, (2, 3))


def test_a_program_without_outputs_is_no_graph() -> None:
    with pytest.raises(InvalidInput, match=r"the program has no output; call program.output\(tensor\)"):
        _ = Program().graph


def test_rounding_is_an_operator_and_what_it_keeps_is_none() -> None:
    program = Program()
    x, half = program.input("x", (2, 4)), program.input("h", (2, 4), "fp16")
    assert x.rounded("bf16").dtype is DType.FP32
    assert program.node(x.rounded("bf16")).op == "round_bf16"
    assert x.rounded("fp32").value == x.value
    assert x.rounded("bf16").rounded("bf16").value == x.rounded("bf16").value
    assert program.node(x.rounded("bf16").rounded("fp16")).op == "round_fp16"
    assert half.cast("fp32").transpose(0, 1).rounded("fp16").value == half.cast("fp32").transpose(0, 1).value
    assert program.node((half * 3).rounded("fp16")).op == "round_fp16"
    assert half.rounded("bf16").dtype is DType.FP32


def test_constants_are_rounded_exactly() -> None:
    program = Program()
    assert str(program.constant(0.1).rounded("fp16").number) == "819/8192"
    assert str(program.constant(0.1).rounded("bf16").number) == "205/2048"
    with pytest.raises(InvalidInput, match="the constant 100000 is infinite in fp16"):
        program.constant(100000).rounded("fp16")


def test_constants_that_were_read_as_other_numbers_are_listed() -> None:
    program = Program()
    x = program.input("x", (4,))
    program.output(x * 0.1 * 10 + 0.5, (x * Fraction(1, 3)).exp() + 1e-5, x * Fraction(1, 100000))
    assert readings(program.graph) == (("1/100000", 1e-5), ("1/10", 0.1))
    assert graph_from_json(graph_to_json(program.graph)) == program.graph
    assert readings(graph_from_json(graph_to_json(program.graph))) == ()


def test_an_equal_constant_that_was_read_later_is_listed_too() -> None:
    program = Program()
    x = program.input("x", (4,))
    program.output(x * Fraction(1, 10) + 1, x.exp() * 0.1)
    assert readings(program.graph) == (("1/10", 0.1),)
