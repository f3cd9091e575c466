"""Triton kernels that compute as many slices as a launch says: the bits of those for all, and nothing touched behind."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from mugraph.errors import CompilationFailed, UnsupportedOperator
from mugraph.ir import DType, Graph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.runtime import Executable
from mugraph.sizes.sliced_kernels import SlicedKernels, example_inputs
from sizes.test_sliced_kernels import added, dot_products, norm_linear, split_k, turned, two_kernels
from sizes.test_sliced_kernels import attention as heads
from targets.cuda.test_first_slices import attended, doubled, linear, softmax
from targets.test_cuda import ERRORS

pytest.importorskip("triton", reason="kernels are interpreted and compiled by Triton; pip install 'mugraph[triton]'")

from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.targets.triton.machine import SOURCE_NAME, TritonMachine

CASES: dict[str, tuple[Graph, tuple[int | None, ...]]] = {
    "every block has all rows": (norm_linear(24, (1, 2)), (0, None)),
    "a grid along rows": (norm_linear(24, (3, 1)), (0, None)),
    "a grid along both": (norm_linear(20, (2, 5)), (0, None)),
    "rows one by one": (norm_linear(12, (12, 1)), (0, None)),
    "a prime number of rows": (norm_linear(13, (1, 1)), (0, None)),
    "bf16": (norm_linear(24, (2, 1), DType.BF16), (0, None)),
    "dot products of fp16": (dot_products(7, DType.FP16), (0, None)),
    "few numbers a row": (softmax(24, 7, 2), (0,)),
    "one number a row": (doubled(24, 1, 1), (0,)),
    "a table that is cut as rows are": (added(24, 3), (0, None)),
    "two kernels": (two_kernels(12), (1, None)),
    "parts of k": (split_k(6), (0, None)),
    "halves beside each other": (turned(8, 2), (0, None)),
    "heads of several samples": (heads(6, 2), (0, 0, 0)),
    "heads of a sample": (heads(6, 6), (0, 0, 0)),
    "an epilogue": (linear(40, 128, 96, (2, 2), 2, DType.FP16), (0, None, 0)),
    "attention of rows": (attended(64, 2), (0, None, None)),
}
RAGGED = [name for name in CASES if name not in ("rows one by one", "heads of a sample")]


def sliced(name: str, edit: Callable[[str], str] = str) -> tuple[InterpretedTriton, Executable, SlicedKernels]:
    """The interpreter, a graph's kernels, and those for its first slices."""
    graph, dims = CASES[name]
    machine = InterpretedTriton(TritonMachine.described("triton:sm_90"), edit)
    executable = Executable(graph, machine)
    number, dim = next((number, dim) for number, dim in enumerate(dims) if dim is not None)
    capacity = graph.inputs()[number].output.shape[dim]
    return machine, executable, SlicedKernels(executable, dims, (dims[0],) * len(graph.outputs), capacity)


@pytest.mark.parametrize("name", CASES)
def test_first_slices_have_the_bits_of_all(name: str) -> None:
    """At corners of sizes, with NaN behind the inputs; reads outside of operands are errors."""
    machine, executable, kernels = sliced(name)
    example = example_inputs(executable.graph)
    exact = evaluate(executable.graph, [tensor.double().numpy() for tensor in example], FloatArithmetic())
    for made, wanted in zip(executable(*example), exact, strict=True):
        tolerance = ERRORS[executable.graph.output_tensors[0].dtype] * float(np.abs(wanted).max())
        np.testing.assert_allclose(made.double().numpy(), wanted, rtol=0, atol=2 * tolerance)
    assert kernels.agree_with(executable, example)
    assert machine.findings == []


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_whole_slices_need_no_masks(name: str) -> None:
    _, _, kernels = sliced(name)
    assert ("held = " in kernels.sources[SOURCE_NAME]) == (name in RAGGED)


_MASK = re.compile(r"\((?:[^()]|\([^()]*\))* < (?:held|\d+ \* slices|slices)\)(?:\[[^\]]*\])?")
"""What is true of elements for which there is memory."""


def without_masks(function: str) -> Callable[[str], str]:
    """An edit of a text whose loads or stores are not kept from what lies behind the last slice."""

    def edit(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join(_MASK.sub("True", line) if f"tl.{function}(" in line else line for line in lines)

    return edit


@pytest.mark.parametrize("name", RAGGED)
def test_masks_that_are_missing_are_seen(name: str) -> None:
    _, executable, kernels = sliced(name, without_masks("load"))
    given = kernels.first(kernels.capacity - 1, example_inputs(executable.graph))
    with pytest.raises(CompilationFailed, match="lie in no operand"):
        kernels(*given)
    machine, _, kernels = sliced(name, without_masks("store"))
    kernels(*given)
    assert machine.findings
    assert "writes outside of its outputs" in machine.findings[0]


def test_rows_are_compared_where_they_are_a_dimension() -> None:
    """Masks that are alike along rows leave loads of several elements at once."""
    for name, rows in (("a grid along both", True), ("an epilogue", True), ("attention of rows", True)):
        _, _, kernels = sliced(name)
        guarded = [line for line in kernels.sources[SOURCE_NAME].splitlines() if _MASK.search(line)]
        assert guarded
        assert all("< held)" in line for line in guarded) == rows, name


def test_what_is_not_computed_slice_by_slice_is_refused() -> None:
    machine = InterpretedTriton(TritonMachine.described("triton:sm_90"))
    with pytest.raises(UnsupportedOperator, match="one by one"):
        SlicedKernels(Executable(turned(8, 2, mixed=True), machine), (0, None), (0,), 8)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_kernels_compile(architecture: str) -> None:
    machine = TritonMachine.described(f"triton:{architecture}")
    for name in ("a grid along both", "few numbers a row", "an epilogue", "two kernels"):
        graph, dims = CASES[name]
        executable = Executable(graph, machine)
        kernels = SlicedKernels(executable, dims, (dims[0],), graph.inputs()[0].output.shape[dims[0] or 0])
        for launch in kernels.launches.values():
            assert machine.compiled(launch.kernel, kernels.sources).shared_bytes <= machine.shared_bytes
