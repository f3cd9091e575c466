"""What machine code computes of quotients, roots, roundings and exponentials: Triton compiles for GPUs that are not here, and its
interpreter approximates what they approximate."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("triton", reason="kernels are compiled by Triton; pip install 'mugraph[triton]'")

from lower.graphs import attention, rms_norm_linear
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.lower import construct
from mugraph.targets.triton.approximations import exponential, flushed, quotient, root
from mugraph.targets.triton.machine import SOURCE_NAME, Triton
from runtime.test_roundings import rounding_graph

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
LOG_2_IN_TWO_PARTS = "0fBF318000", "0f395E8083"
FUSED_OR_NOT = re.compile(r"\b(?:mul|add|sub)\.f32\b")
"""A sum or product without a rounding mode: the assembler may put the two into one instruction."""


def elementwise(make: Callable[[GraphBuilder, Value, Value], Value]) -> Graph:
    """A kernel of two blocks that makes a tile of the tiles of x and y, all [4, 64]."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(2,))
    operands = [kernel.input(name, (4, 64), DType.FP32) for name in "xy"]
    x, y = (block.iterator(number, kernel.tensor(each), (0,), None) for number, each in enumerate(operands))
    body = block.build([block.add("output_saver", make(block, x, y), omap=(0,))])
    return construct(kernel.build(kernel.graph_defined(body, operands)))


def ptx(graph: Graph, architecture: str = "sm_90") -> str:
    machine = Triton.of(f"triton:{architecture}")
    (launch,) = machine.lower(graph).values()
    return str(machine.compiled(launch.kernel, machine.print([launch.kernel])).handle.asm["ptx"])


def text(graph: Graph) -> str:
    machine = Triton.of("triton:sm_90")
    return machine.print([launch.kernel for launch in machine.lower(graph).values()])[SOURCE_NAME]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_quotients_are_correctly_rounded_where_functions_jump_and_roots_everywhere(architecture: str) -> None:
    jumps = ptx(elementwise(lambda b, x, y: b.add("floor", b.add("div", x, b.add("sqrt", y)))), architecture)
    assert "div.rn.f32" in jumps
    assert "sqrt.rn.f32" in jumps
    assert "div.full" not in jumps
    assert "approx" not in jumps
    smooth = ptx(elementwise(lambda b, x, y: b.add("tanh", b.add("div", x, b.add("sqrt", y)))), architecture)
    assert "div.full.f32" in smooth
    assert "sqrt.rn.f32" in smooth


def test_quotients_are_correctly_rounded_under_roots_where_what_is_0_may_become_less() -> None:
    def under(name: str, make: Callable[[GraphBuilder, Value, Value], Value]) -> bool:
        """Whether the quotient of x and y, of which an operand of a function is made, is rounded correctly."""
        source = text(elementwise(lambda b, x, y: b.add(name, make(b, b.add("div", x, y), y))))
        return "tl.div_rn(" in source

    assert under("sqrt", lambda b, q, y: b.add("sub", q, y))
    assert under("sqrt", lambda b, q, y: b.add("add", q, y))
    assert under("log1p", lambda b, q, y: q)
    assert not under("sqrt", lambda b, q, y: q)
    assert under("sqrt", lambda b, q, y: b.add("sub", y, b.add("square", q)))
    assert not under(
        "sqrt", lambda b, q, y: b.add("add", b.add("sum", b.add("square", q), dim=1, size=64), b.constant(1e-5, DType.FP32))
    )
    assert not under("sqrt", lambda b, q, y: b.add("add", q, b.constant(1e-5, DType.FP32)))
    assert not under("log", lambda b, q, y: b.add("sum", b.add("exp", b.add("sub", q, y)), dim=1, size=64))
    assert not under("log1p", lambda b, q, y: b.add("exp", q))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "graph",
    [
        rounding_graph("round_fp16", 8),
        rounding_graph("round_bf16", 8),
        elementwise(lambda b, x, y: b.add("sub", b.add("mul", x, y), b.add("abs", b.add("mul", x, y)))),
        rms_norm_linear(rows=16, inner=256, columns=64, dtype=DType.FP16),
    ],
    ids=["round_fp16", "round_bf16", "difference", "rmsnorm"],
)
def test_products_are_rounded_before_sums_read_them(graph: Graph, architecture: str) -> None:
    machine_code = ptx(graph, architecture)
    assert "mul.rn.f32" in machine_code
    assert not FUSED_OR_NOT.search(machine_code)
    assert "fma." not in machine_code


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exponents_are_reduced_in_two_parts_but_in_a_softmax(architecture: str) -> None:
    alone = ptx(elementwise(lambda b, x, y: b.add("mul", b.add("exp", x), y)), architecture)
    assert all(part in alone for part in LOG_2_IN_TWO_PARTS)
    assert len(re.findall(r"ex2\.approx\.ftz\.f32", alone)) == len(re.findall(r"ex2\.", alone)) > 0
    softmax = ptx(attention(), architecture)
    assert not any(part in softmax for part in LOG_2_IN_TWO_PARTS)
    assert "ex2.approx.f32" in softmax


def test_exponents_less_the_maximum_of_others_are_reduced() -> None:
    def less_the_maximum(exponent: Callable[[GraphBuilder, Value, Value], Value]) -> str:
        def make(b: GraphBuilder, x: Value, y: Value) -> Value:
            return b.add("exp", b.add("sub", exponent(b, x, y), b.add("max", x, dim=1, size=64)))

        return text(elementwise(make))

    def times(factor: float) -> Callable[[GraphBuilder, Value, Value], Value]:
        return lambda b, x, y: b.add("mul", x, b.constant(factor, DType.FP32))

    assert "tl.exp(" in less_the_maximum(lambda b, x, y: x)
    for larger in (lambda b, x, y: y, times(2.0), times(-1.0)):
        assert "tl.exp(" not in less_the_maximum(larger)


def test_functions_that_functions_of_the_text_call_are_in_it() -> None:
    source = text(elementwise(lambda b, x, y: b.add("mul", b.add("erfc", x), y)))
    assert "def erfc(x):" in source
    assert "def exp(x):" in source
    assert "def floor(x):" not in source


def test_subnormal_operands_of_floor_are_not_taken_for_zero() -> None:
    machine_code = ptx(elementwise(lambda b, x, y: b.add("mul", b.add("floor", x), y)))
    assert "cvt.rmi.ftz.f32.f32" in machine_code, "floor of this version of Triton takes subnormal numbers as they are"
    assert "setp.lt.f32" in machine_code


def test_the_interpreter_errs_as_gpus_may() -> None:
    """No more than the instructions, NVIDIA says, and not always less: else nothing would be noticed."""
    x = np.logspace(-44, 38, 5001).astype(np.float32)
    y = np.full_like(x, 41)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for approximate, exact in (
            (quotient(x * y, y), (x * y).astype(np.float64) / y),
            (root(x), np.sqrt(x.astype(np.float64))),
        ):
            normal = (exact > np.finfo(np.float32).tiny) & np.isfinite(exact)
            error = np.abs(approximate[normal] / exact[normal] - 1)
            assert 2**-24 < error.max() < 2**-22
        special = np.array([0, -0.0, np.inf, np.nan, -1], np.float32)
        np.testing.assert_array_equal(root(special), np.sqrt(special))
        pairs = np.array(np.meshgrid(special, special), np.float32).reshape(2, -1)
        np.testing.assert_array_equal(quotient(*pairs), pairs[0] / pairs[1])
    whole = np.arange(1, 240, dtype=np.float32)
    assert (root(whole * whole) < whole).any()
    exponents = np.linspace(-87, 88, 5001).astype(np.float32)
    error = np.abs(exponential(exponents) / np.exp(exponents.astype(np.float64)) - 1)
    assert 3e-6 < error.max() < 5e-6
    np.testing.assert_array_equal(flushed(np.floor)(np.array([-1e-40, -0.5, 1e-40], np.float32)), [0, -1, 0])
