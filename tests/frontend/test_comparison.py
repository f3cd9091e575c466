"""What two functions are compared on: arguments by place, captured tensors by identity or value, outputs with their structure."""

from __future__ import annotations

import copy
import functools
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import register_dataclass, tree_leaves

from mugraph.api import verify
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.calls.pytree import places_of_tensors
from mugraph.frontend.comparison import Comparison, compared
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program

GENERATOR = torch.Generator().manual_seed(11)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


X, Y, Z = random(3, 4), random(3, 4), random(3, 4)
W, V = random(4, 4), random(4, 4)
W_AGAIN, W_NAN = W.clone(), W.clone()
W_NAN[0, 0] = torch.nan
ZERO, MINUS_ZERO = torch.zeros(4, dtype=torch.float64), -torch.zeros(4, dtype=torch.float64)
ONES, ONES_AGAIN, TWOS = (torch.full((4,), value, dtype=torch.float64) for value in (1.0, 1.0, 2.0))
MEMORY = random(8, 4)
LIST = [W, V]
TABLE: dict[str, Any] = {"w": W, "v": [V]}


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


Other = namedtuple("Other", "first second")  # another class with the same fields


@dataclass
class Record:
    value: torch.Tensor
    count: int


register_dataclass(Record)


def linear(seed: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, 4, bias=bias).double()


class Scaled(nn.Module):
    """A parameter, a buffer, one that is not saved, a tensor that is neither, and modules in containers."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, seed: int, tied: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([linear(seed), linear(seed + 1)])
        if tied:
            self.layers[1].weight = self.layers[0].weight
        self.register_buffer("scale", ONES.clone())
        self.register_buffer("shift", TWOS.clone(), persistent=False)
        self.plain = ONES * 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale + self.shift * self.plain


class Swapped(Scaled):
    """The same tensors, of which two that are equal at first change places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale + self.plain * self.shift


class Affine:
    """An object with a tensor, to be called or by a method."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def default(x: torch.Tensor, w: torch.Tensor = W) -> torch.Tensor:
    return x @ w


def default_again(x: torch.Tensor, w: torch.Tensor = W_AGAIN) -> torch.Tensor:
    return x @ w


def other_default(x: torch.Tensor, w: torch.Tensor = V) -> torch.Tensor:
    return x @ w


def keyword_only(*, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x - y


def keyword_only_turned(*, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x - y


def all_keywords(**named: torch.Tensor) -> torch.Tensor:
    return named["x"] - named["y"]


def all_positions(*given: torch.Tensor) -> torch.Tensor:
    return given[0] - given[1]


def product(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x @ w


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y += 1
    return y


MODEL, TIED = Scaled(0), Scaled(0, tied=True)
FIRST, SECOND = nn.LayerNorm(4).double(), nn.LayerNorm(4).double()


def both_norms(x: torch.Tensor) -> torch.Tensor:
    return x * FIRST.weight + x * 2 * SECOND.weight


def both_norms_turned(x: torch.Tensor) -> torch.Tensor:
    return x * SECOND.weight + x * 2 * FIRST.weight


Case = tuple[str, Callable[..., Any], Callable[..., Any], Any]

SAME: list[Case] = [
    ("a closure on one tensor", lambda x: x @ W, lambda x: x @ W, (X,)),
    ("a closure on equal tensors", lambda x: x @ W, lambda x: x @ W_AGAIN, (X,)),
    ("equal with NaN", lambda x: x @ W_NAN, lambda x, w=W_NAN.clone(): x @ w, (X,)),
    ("a module and itself", MODEL, MODEL, (X,)),
    ("a module and its copy", MODEL, copy.deepcopy(MODEL), (X,)),
    ("modules made alike", Scaled(3), Scaled(3), (X,)),
    ("a module and a closure over it", MODEL, lambda x: MODEL(x), (X,)),
    ("a module and its method", MODEL, MODEL.forward, (X,)),
    ("buffers multiplied in another order", Scaled(3), Swapped(3), (X,)),
    ("a module in a list in a closure", lambda x, m=None: [MODEL][0](x), MODEL, (X,)),
    ("a default argument and a closure", default, lambda x: x @ W, (X,)),
    ("equal default arguments", default, default_again, (X,)),
    ("a default argument that is given", default, other_default, (X, V)),
    ("partial on one tensor", functools.partial(product, W), lambda x: x @ W, (X,)),
    ("partial by keyword", functools.partial(default, w=V), other_default, (X,)),
    ("partial and a default argument", functools.partial(product, W_AGAIN), default, (X,)),
    ("bound methods", Affine(W).apply, Affine(W_AGAIN).apply, (X,)),
    ("objects that are called", Affine(W), Affine(W_AGAIN).apply, (X,)),
    ("a list of tensors in a closure", lambda x: x @ LIST[0] @ LIST[1], lambda x: x @ W @ V, (X,)),
    ("a table of tensors in a closure", lambda x: x @ TABLE["w"] @ TABLE["v"][0], lambda x: x @ W @ V, (X,)),
    ("one tensor captured twice, its copy once", lambda x: x @ W + x @ W_AGAIN, lambda x: 2 * (x @ W), (X,)),
    ("two copies against one", lambda x: x @ W - x @ W_AGAIN, lambda x: 0 * (x @ W), (X,)),
    ("keywords in another order", lambda x, y: x - y, lambda y, x: x - y, {"x": X, "y": Y}),
    ("keywords given in another order", lambda x, y: x - y, lambda y, x: x - y, {"y": Y, "x": X}),
    ("keyword-only arguments", keyword_only, keyword_only_turned, {"x": X, "y": Y}),
    ("any keywords", all_keywords, keyword_only, {"y": Y, "x": X}),
    ("any positions", all_positions, lambda x, y: x - y, (X, Y)),
    ("other names at the same positions", lambda x, y: x - y, lambda a, b: a - b, (X, Y)),
    ("one example for two arguments", lambda a, b: a @ b, lambda x, y: x @ y, (W, W)),
    ("an argument that is also captured", lambda a: a @ W, lambda a: a @ W_AGAIN, (W,)),
    ("a nested dict", lambda d: d["a"] - d["b"]["c"], lambda d: -d["b"]["c"] + d["a"], ({"a": X, "b": {"c": Y}},)),
    ("a list in an argument", lambda p: p[0] - p[1], lambda p: -p[1] + p[0], ([X, Y],)),
    ("a named tuple in an argument", lambda p: p.first - p.second, lambda p: -p[1] + p[0], (Pair(X, Y),)),
    ("an argument that is not read", lambda x, y: x, lambda x, y: x + 0, (X, Y)),
    ("one result twice, and two results", lambda x: (x + 1, x + 1), lambda x: (lambda y: (y, y))(1 + x), (X,)),
    ("dicts filled in another order", lambda x: {"a": x + 1, "b": x}, lambda x: {"b": x, "a": 1 + x}, (X,)),
    ("numbers beside tensors", lambda x: (2 * x, 3), lambda x: (x + x, 3), (X,)),
    ("None beside tensors", lambda x: (2 * x, None), lambda x: (x + x, None), (X,)),
    ("NaN beside tensors", lambda x: (2 * x, float("nan")), lambda x: (x + x, float("nan")), (X,)),
    ("named tuples", lambda x: Pair(x, x + x), lambda x: Pair(x, 2 * x), (X,)),
    ("dataclasses", lambda x: Record(x + x, 2), lambda x: Record(2 * x, 2), (X,)),
    ("changes in place on the way", in_place, lambda x: 2 * x + 1, (X,)),
    ("a number and a literal", lambda x: x * 0.5, lambda x: x * torch.tensor(0.5, dtype=torch.float64), (X,)),
    ("views of an argument", lambda x: x.t(), lambda x: x.permute(1, 0), (X,)),
    ("tied weights", TIED, lambda x: TIED(x), (X,)),
    ("a captured transpose", lambda x: x @ W.t(), lambda x, w=W.clone(): x @ w.t(), (X,)),
]  # fmt: skip

NOW: list[Case] = [
    ("a captured number and a number", lambda x: x * TWOS, lambda x: 2 * x, (X,)),
    ("ones that are left out", lambda x: x * ONES, lambda x: x, (X,)),
    ("equal norms that change places", both_norms, both_norms_turned, (X,)),
    ("a tensor of ones, once and twice", lambda x: x * ONES, lambda x: x * ONES_AGAIN * ONES_AGAIN, (X,)),
    ("zeros and minus zeros", lambda x: x + ZERO, lambda x: x + MINUS_ZERO, (X,)),
]

DIFFERENT: list[Case] = [
    ("closures on other tensors", lambda x: x @ W, lambda x: x @ V, (X,)),
    ("modules with other weights", linear(1), linear(2), (X,)),
    ("modules with another bias", linear(1), nn.Sequential(linear(1, bias=False)), (X,)),
    ("other default arguments", default, other_default, (X,)),
    ("a default argument that is not the closure's", default, lambda x: x @ V, (X,)),
    ("partials on other tensors", functools.partial(product, W), functools.partial(product, V), (X,)),
    ("methods of objects with other tensors", Affine(W).apply, Affine(V).apply, (X,)),
    ("other places of a list", lambda x: x @ LIST[0], lambda x: x @ LIST[1], (X,)),
    ("buffers of other values", lambda x: x * ONES, lambda x: x * TWOS, (X,)),
    ("tied and untied", TIED, MODEL, (X,)),
    ("captured transposed", lambda x: x @ W, lambda x: x @ W.t(), (X,)),
    ("an argument and a tensor captured that is its example", lambda a: a @ W, lambda a: a @ a, (W,)),
    ("positions turned", lambda x, y: x - y, lambda y, x: x - y, (X, Y)),
    ("one example, arguments turned", lambda a, b: a @ b, lambda a, b: b @ a, (W, W)),
    ("one example, one argument read twice", lambda a, b: a @ b, lambda a, b: a @ a, (W, W)),
    ("views of one memory as examples", lambda a, b: a @ b, lambda a, b: b @ a, (MEMORY[:4], MEMORY[4:])),
    ("keywords turned", lambda x, y: x - y, lambda x, y: y - x, {"x": X, "y": Y}),
    ("keys turned in a nested dict", lambda d: d["a"] - d["b"], lambda d: d["b"] - d["a"], ({"a": X, "b": Y},)),
    ("results in another order", lambda x: (x, x + 1), lambda x: (x + 1, x), (X,)),
    ("one result twice, and another", lambda x: (lambda y: (y, y))(x + 1), lambda x: (x + 1, x + 2), (X,)),
    ("another, and one result twice", lambda x: (x + 1, x + 2), lambda x: (lambda y: (y, y))(x + 1), (X,)),
    ("dicts with values exchanged", lambda x: {"a": x, "b": x + 1}, lambda x: {"b": x, "a": x + 1}, (X,)),
]

STRUCTURE: list[Case] = [
    ("another number beside", lambda x: (2 * x, 3), lambda x: (2 * x, 4), (X,)),
    ("an integer and a float", lambda x: (2 * x, 3), lambda x: (2 * x, 3.0), (X,)),
    ("a truth value and an integer", lambda x: (2 * x, True), lambda x: (2 * x, 1), (X,)),
    ("zero and minus zero", lambda x: (2 * x, 0.0), lambda x: (2 * x, -0.0), (X,)),
    ("None and nothing", lambda x: (2 * x, None), lambda x: (2 * x,), (X,)),
    ("a tensor and a number", lambda x: (2 * x, x.sum()), lambda x: (2 * x, 3.0), (X,)),
    ("other keys", lambda x: {"a": 2 * x}, lambda x: {"b": 2 * x}, (X,)),
    ("keys of other types", lambda x: {1: 2 * x}, lambda x: {True: 2 * x}, (X,)),
    ("a tuple and a list", lambda x: (2 * x, x), lambda x: [2 * x, x], (X,)),
    ("a tensor and a tuple of it", lambda x: 2 * x, lambda x: (2 * x,), (X,)),
    ("a tuple and a named tuple", lambda x: (x, 2 * x), lambda x: Pair(x, 2 * x), (X,)),
    ("named tuples of two classes", lambda x: Pair(x, 2 * x), lambda x: Other(x, 2 * x), (X,)),
    ("dataclasses with other numbers", lambda x: Record(x, 1), lambda x: Record(x, 2), (X,)),
    ("nested otherwise", lambda x: ((x, x + 1), x), lambda x: (x, (x + 1, x)), (X,)),
    ("one result more", lambda x: (x, x), lambda x: (x, x, x), (X,)),
    ("another dtype", lambda x: 2 * x, lambda x: (2 * x).float(), (X,)),
    ("a narrower dtype", lambda x: (2 * x).half(), lambda x: (2 * x).bfloat16(), (X,)),
    ("another shape", lambda x: 2 * x, lambda x: (2 * x)[None], (X,)),
    ("a shape that broadcasts", lambda x: x.sum(0), lambda x: x.sum(0, keepdim=True), (X,)),
]


def outcome(comparison: Comparison) -> str:
    if comparison.mismatch is not None:
        return "structure"
    for answer, present in (("same", {}), ("now", comparison.present)):
        left, right = (computed(graph, present) for graph in (comparison.left, comparison.right))
        if all(np.allclose(*pair, equal_nan=True) for pair in zip(left, right, strict=True)):
            return answer
    return "different"


def computed(graph: Graph, known: Mapping[int, Array]) -> list[Array]:
    """What a graph gives for random inputs, but for those that are known."""
    generator = np.random.default_rng(5)
    inputs = [generator.standard_normal(node.output.shape) for node in graph.inputs()]
    return evaluate(graph, [known.get(number, value) for number, value in enumerate(inputs)], FloatArithmetic())


@pytest.mark.parametrize(
    ("wanted", "case"),
    [
        pytest.param(wanted, case, id=case[0])
        for wanted, cases in {"same": SAME, "now": NOW, "different": DIFFERENT, "structure": STRUCTURE}.items()
        for case in cases
    ],
)
def test_what_is_compared(wanted: str, case: Case) -> None:
    """The answer is right, and the graphs compute what the functions compute."""
    _, left, right, examples = case
    comparison = compared(left, right, examples)
    assert outcome(comparison) == wanted
    if comparison.mismatch is None:
        assert_computes(comparison, left, right, examples)


def assert_computes(comparison: Comparison, left: Any, right: Any, examples: Any) -> None:
    args, kwargs = ((), examples) if isinstance(examples, dict) else (examples, {})
    given = dict(zip(places_of_tensors(args, kwargs), tree_leaves((args, kwargs)), strict=True))
    inputs = [given[place].numpy() for place in comparison.arguments] + list(comparison.present.values())
    assert comparison.left.input_names == comparison.right.input_names
    assert set(comparison.fixed) <= set(comparison.present) == set(range(len(given), len(inputs)))
    for fn, graph in ((left, comparison.left), (right, comparison.right)):
        got = evaluate(graph, inputs, FloatArithmetic())
        for ours, theirs in zip(got, tensors_of(fn(*args, **kwargs)), strict=True):
            np.testing.assert_allclose(np.broadcast_to(ours, theirs.shape), theirs.detach().numpy(), atol=1e-12)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of a result, those of dicts by their keys."""
    if isinstance(value, dict):
        return [tensor for key in sorted(value) for tensor in tensors_of(value[key])]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors_of(part)]
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# --- programs, weights, words ---------------------------------------------------------------------------------------------


def program(names: str, first: str, second: str) -> Program:
    p = Program()
    inputs = {name: p.input(name, (3, 4), "fp64") for name in names}
    p.output(inputs[first] - inputs[second])
    return p


def test_programs_are_compared_by_position_and_by_name_if_asked() -> None:
    left, right = program("xy", "x", "y"), program("yx", "x", "y")
    by_position = compared(left, right)
    assert outcome(by_position) == "different"
    assert by_position.question == "for all values of the arguments x, y (by position: x with y, y with x)"
    assert outcome(compared(left, right, (X, Y))) == "different"
    by_name = compared(left, right, {"x": X, "y": Y})
    assert outcome(by_name) == "same"
    assert by_name.question == "for all values of the arguments x, y"


def test_a_program_and_a_function() -> None:
    difference = program("ab", "a", "b")
    assert outcome(compared(difference, lambda x, y: x - y, (X, Y))) == "same"
    assert outcome(compared(difference.graph, lambda x, y: [x - y], (X, Y))) == "same"
    assert outcome(compared(difference, lambda b, a: a - b, {"a": X, "b": Y})) == "same"
    assert outcome(compared(difference, lambda x, y: (x - y, 3), (X, Y))) == "structure"
    single = compared(difference, lambda x, y: x - y, (X.float(), Y.float()))
    assert single.mismatch == "one takes a as fp64[3, 4], the other as fp32[3, 4]"


@pytest.mark.parametrize(
    ("left", "right", "examples", "error", "words"),
    [
        (program("xy", "x", "y"), lambda x: x, (X,), InvalidInput, "give the program 2 tensors, .* by these names: x, y"),
        (program("xy", "x", "y"), lambda x, z: x, {"x": X, "z": X}, InvalidInput, "by these names: x, y"),
        (program("xy", "x", "y"), lambda x, y: x, (X, W), ShapeMismatch, r"input y has shape \[3, 4\], the example \[4, 4\]"),
        (3, lambda x: x, (X,), InvalidInput, "cannot compare a int"),
        (lambda x: x, lambda x: x, None, InvalidInput, "give example_inputs"),
    ],
)
def test_subjects_that_cannot_be_compared(left: Any, right: Any, examples: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        compared(left, right, examples)


def test_for_all_weights_asks_another_question() -> None:
    left, right = linear(1), linear(2)
    assert outcome(compared(left, right, (X,))) == "different"
    comparison = compared(left, right, (X,), for_all_weights=True)
    assert outcome(comparison) == "same"
    assert dict(comparison.fixed) == {}
    assert comparison.question.endswith("and of all captured tensors, which correspond by name: weight, bias")


def test_weights_of_other_names_correspond_by_order() -> None:
    comparison = compared(lambda x: x @ W, lambda x: x @ V, (X,), for_all_weights=True)
    assert outcome(comparison) == "same"
    assert comparison.question.endswith("which correspond by order: W = V")
    assert outcome(compared(lambda x: x @ W @ V, lambda x: x @ V @ W, (X,), for_all_weights=True)) == "different"


def test_a_weight_that_one_function_leaves_out_is_an_input_all_the_same() -> None:
    comparison = compared(linear(1), linear(1, bias=False), (X,), for_all_weights=True)
    assert outcome(comparison) == "different"
    assert comparison.right.input_names == ("input", "weight", "bias")


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (lambda x: x @ W, lambda x: x * ONES, r"W \(torch.float64 \[4, 4\]\) of one function cannot be ONES"),
        (lambda x: x @ W + ONES, lambda x: x @ V, r"one function captures .*, the other V; give them the same names"),
    ],
)
def test_weights_that_cannot_correspond(left: Any, right: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        compared(left, right, (X,), for_all_weights=True)


def test_the_question_says_what_is_fixed_and_what_is_one() -> None:
    comparison = compared(lambda x: x @ W * ONES, lambda x: x @ W_AGAIN * TWOS, (X,))
    assert comparison.question == (
        "for all values of the argument x and of the captured tensor W = W_AGAIN, which both functions have; "
        "ONES, TWOS have their present values"
    )
    assert comparison.present_question.endswith("with the present values of the captured tensors W = W_AGAIN, ONES, TWOS")
    assert [match.how for match in comparison.matched] == ["value"]
    assert comparison.left.input_names == ("x", "W", "ONES", "TWOS")
    np.testing.assert_array_equal(comparison.fixed[3], TWOS.numpy())


def test_norms_that_are_the_same_modules_stay_apart() -> None:
    assert [match.how for match in compared(both_norms, both_norms_turned, (X,)).matched] == ["identity", "identity"]


# --- results as they are stored -----------------------------------------------------------------------------------------

WIDE = X.float()
STORED: list[tuple[Callable[..., Any], Callable[..., Any], torch.Tensor]] = [
    (lambda x: x.half(), lambda x: x.half() * 1, WIDE),
    (lambda x: x.half().t(), lambda x: x.t().half(), WIDE),
    (lambda x: (x.half(), x.half() + 0), lambda x: (x.half() + 0, x.half()), WIDE),
    (lambda x: x.float(), lambda x: x.float() * 1, X),
]


@pytest.mark.parametrize(("left", "right", "example"), STORED)
def test_a_result_that_is_cast_and_one_that_is_read_after_the_cast_are_the_same_numbers(
    left: Callable[..., Any], right: Callable[..., Any], example: torch.Tensor
) -> None:
    for ours, theirs in zip(tree_leaves(left(example)), tree_leaves(right(example)), strict=True):
        assert torch.equal(ours, theirs)
    assert verify(left, right, (example,), seed=1).outcome == "equivalent"


def test_stored_results_that_differ_are_different() -> None:
    verdict = verify(lambda x: x.half(), lambda x: x.bfloat16().half(), (WIDE,), seed=1)
    assert verdict.outcome == "different"


def test_where_nothing_is_rounded_results_are_real_numbers() -> None:
    """Precision is free there: nothing is written into the graphs that neither function says."""
    comparison = compared(lambda x: (x * 2).half(), lambda x: (x + x).half(), (WIDE,))
    assert not [node.op for graph in (comparison.left, comparison.right) for node in graph.nodes if "round" in node.op]


# --- tensors that hold no numbers ---------------------------------------------------------------------------------------

MASK = torch.full((3, 4), -torch.inf, dtype=torch.float64)


def test_a_mask_that_only_one_function_has_is_refused() -> None:
    """(x + MASK) - MASK is x for all real masks, and NaN for this one."""
    for tensor in (MASK, torch.full((3, 4), torch.nan, dtype=torch.float64)):
        with pytest.raises(InvalidInput, match="tensor t holds infinities or NaN"):
            compared(lambda x, t=tensor: (x + t) - t, lambda x: x, (X,))


def test_a_mask_that_both_functions_have_stands_for_real_numbers() -> None:
    question = compared(lambda x: (x + MASK) - MASK, lambda x: x + 0 * MASK, (X,)).question
    assert question.endswith("MASK, which both functions have (real numbers, not the infinities or NaN that MASK holds now)")
    assert "infinities" not in compared(lambda x: x + W, lambda x: W + x, (W,)).question


def test_the_sign_of_a_zero_that_only_one_function_has_is_in_no_proof() -> None:
    def signed(zero: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: torch.copysign(x, zero)

    with pytest.raises(InvalidInput, match=r"tensor zero holds -0\.0, whose sign is no part of proofs"):
        compared(signed(MINUS_ZERO), signed(ZERO), (X,))
    assert verify(signed(MINUS_ZERO), signed(ZERO), (X,), seed=1).outcome == "different"
    assert verify(signed(MINUS_ZERO), signed(MINUS_ZERO.clone()), (X,), seed=1).outcome == "equivalent"
    assert verify(lambda x: x + MINUS_ZERO, lambda x: x * 1, (X,), seed=1).outcome == "equivalent"


def test_sums_of_exponentials_are_not_shown_to_differ_from_themselves() -> None:
    direct = verify(torch.logaddexp, lambda x, y: (x.exp() + y.exp()).log(), (X, Y), seed=1)
    assert direct.outcome != "different", "they are equal, also where both operands are"
