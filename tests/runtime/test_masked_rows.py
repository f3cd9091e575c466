"""Rows that are -inf over a tile or a whole, as masks make them: every candidate gives what the program gives, NaN included."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch

from mugraph import Program
from mugraph.devices import device_for
from mugraph.ir import DType, Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.text import parse_graph
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.targets.triton.machine import Triton
from mugraph.verifier.vectorized_eval import evaluate_batched

TORCH = {DType.FP32: torch.float32, DType.FP16: torch.float16, DType.BF16: torch.bfloat16}
TOLERANCE = {DType.FP32: 1e-4, DType.FP16: 2e-2, DType.BF16: 1e-1}
Write = Callable[[Program, DType], int]
Run = Callable[[Graph], Callable[[Sequence[torch.Tensor]], Sequence[Array]]]


def softmax(program: Program, dtype: DType) -> int:
    """Of scores, times values."""
    scores, values = program.input("scores", (2, 4, 64), dtype), program.input("values", (2, 64, 16), dtype)
    program.output(scores.softmax(-1) @ values)
    return 0


def masked_attention(program: Program, dtype: DType, normalised: bool = False) -> int:
    """With a mask as a further input, and with the norms of queries and keys divided out."""
    shapes = {"q": (2, 4, 16), "k": (2, 32, 16), "v": (2, 32, 16), "mask": (4, 32)}
    q, k, v, mask = (program.input(name, shape, dtype) for name, shape in shapes.items())
    if normalised:
        q, k = (x / ((x * x).sum(-1, keepdim=True) / 16 + 0.01).sqrt() for x in (q, k))
    program.output((q @ k.transpose(-2, -1) * 0.25 + mask).softmax(-1) @ v)
    return 3


def normalised_attention(program: Program, dtype: DType) -> int:
    return masked_attention(program, dtype, normalised=True)


def exponentials_alone(program: Program, dtype: DType) -> int:
    """A row that is hidden is not a number here: the program itself subtracts -inf from -inf."""
    scores = program.input("scores", (4, 64), dtype)
    program.output((scores - scores.amax(-1, keepdim=True)).exp())
    return 0


def distances(program: Program, dtype: DType) -> int:
    """No exponential at all, and the maxima themselves as a result."""
    scores, weights = program.input("scores", (4, 64), dtype), program.input("weights", (64, 8), dtype)
    largest = scores.amax(-1, keepdim=True)
    program.output((scores - largest).relu() @ weights, largest)
    return 0


PROGRAMS: Mapping[str, Write] = {
    each.__name__: each for each in (softmax, masked_attention, normalised_attention, exponentials_alone, distances)
}


def cases(graph: Graph, masked: int) -> dict[str, list[torch.Tensor]]:
    """Inputs whose input number `masked` is -inf at the start, in the middle, at the end or all of its first rows, and more."""
    rng = np.random.default_rng(0)
    normal = [torch.from_numpy(rng.standard_normal(node.output.shape)).to(TORCH[node.output.dtype]) for node in graph.inputs()]
    size = normal[masked].shape[-1]

    def filled(part: slice, value: float) -> list[torch.Tensor]:
        tensors = [tensor.clone() for tensor in normal]
        tensors[masked][..., :2, part] = value
        return tensors

    scattered = [tensor.clone() for tensor in normal]
    scattered[masked][torch.from_numpy(rng.random(scattered[masked].shape) < 0.7)] = -np.inf
    return {
        "start": filled(slice(0, size // 2), -np.inf),
        "middle": filled(slice(size // 4, 3 * size // 4), -np.inf),
        "end": filled(slice(size // 2, size), -np.inf),
        "last": filled(slice(size - 1, size), -np.inf),
        "hidden": filled(slice(0, size), -np.inf),
        "lowest": filled(slice(0, size), float(torch.finfo(normal[masked].dtype).min)),
        "inf": filled(slice(3, 4), np.inf),
        "nan": filled(slice(3, 4), np.nan),
        "scattered": scattered,
    }


def expect_definedness(name: str, dtype: DType, target: str, run: Run, most: int | None = None) -> list[Graph]:
    """All candidates (or the first `most`) give what the program gives on every case."""
    program = Program()
    masked = PROGRAMS[name](program, dtype)
    found = [candidate.graph for candidate in search(program.graph, device_for(target)).candidates][:most]
    for number, graph in enumerate(found):
        runs = run(graph)
        for case, tensors in cases(program.graph, masked).items():
            with np.errstate(all="ignore"):
                wanted = evaluate(program.graph, [tensor.double().numpy() for tensor in tensors], FloatArithmetic())
                got = runs(tensors)
            for result, exact in zip(got, wanted, strict=True):
                largest = TOLERANCE[dtype]
                close = np.isclose(np.asarray(result, np.float64), exact, rtol=largest, atol=largest, equal_nan=True)
                assert close.all(), f"candidate {number}, {case}"
    return found


def meaning(graph: Graph) -> Callable[[Sequence[torch.Tensor]], Sequence[Array]]:
    """Both evaluators, one after the other, which agree in what is a number."""

    def run(tensors: Sequence[torch.Tensor]) -> Sequence[Array]:
        arrays = [tensor.double().numpy() for tensor in tensors]
        one_by_one, at_once = (each(graph, arrays, FloatArithmetic()) for each in (evaluate, evaluate_batched))
        for first, second in zip(one_by_one, at_once, strict=True):
            np.testing.assert_allclose(first, second, rtol=1e-9)
        return one_by_one

    return run


def on_cpu(graph: Graph) -> Callable[[Sequence[torch.Tensor]], Sequence[Array]]:
    executable = build(construct(graph))
    return lambda tensors: [result.double().numpy() for result in executable(*tensors)]


def on(machine: InterpretedTriton | EmulatedCuda) -> Run:
    def run(graph: Graph) -> Callable[[Sequence[torch.Tensor]], Sequence[Array]]:
        executable = Executable(construct(graph), machine)
        return lambda tensors: [result.double().numpy() for result in executable(*tensors)]

    return run


def triton() -> Run:
    pytest.importorskip("triton", reason="the interpreter is Triton's; pip install 'mugraph[triton]'")
    return on(InterpretedTriton(Triton("sm_90", device_for("cuda:sm_90").shared_memory_bytes)))


def cuda() -> Run:
    if shutil.which("g++") is None:
        pytest.skip("the emulator compiles kernels with g++")
    device = device_for("cuda:sm_90")
    return on(EmulatedCuda(Cuda("sm_90", device.shared_memory_bytes, engines=device.engines)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_candidate_means_what_the_program_means(name: str) -> None:
    graphs = expect_definedness(name, DType.FP32, "cpu", meaning)
    if name == "softmax":
        assert any(node.op == "accumulate_rescaled" for graph in graphs for _, node in graph.walk())
        assert any(sum(node.body is not None for node in graph.nodes) > 1 for graph in graphs), "split keys"


@pytest.mark.parametrize("name", ["softmax", "exponentials_alone", "distances"])
def test_every_candidate_computes_it_on_the_cpu(name: str) -> None:
    expect_definedness(name, DType.FP32, "cpu", on_cpu)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16, DType.FP16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_candidate_of_every_type_on_the_cpu(name: str, dtype: DType) -> None:
    expect_definedness(name, dtype, "cpu", on_cpu)


def test_triton_computes_it() -> None:
    expect_definedness("distances", DType.FP32, "triton:sm_90", triton(), 1)


def test_cuda_computes_it() -> None:
    expect_definedness("softmax", DType.FP32, "cuda:sm_90", cuda(), 2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_candidate_computes_it_on_triton(name: str, dtype: DType) -> None:
    expect_definedness(name, dtype, "triton:sm_90", triton())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_candidate_computes_it_on_cuda(name: str, dtype: DType) -> None:
    expect_definedness(name, dtype, "cuda:sm_90", cuda())


HIDDEN = """
kernel_graph {
  x: fp32[4, 32] = input
  %1: fp32[4, 1] = block_graph(x) grid(x=4) loop(i=2) {
    | %0: fp32[1, 16] = input_iterator(x) {x<->0, i<->1}
    | %1: fp32[1, 16] = square(%0)
    | %2: fp32[1, 16] = sub(%0, %1)
    | %3: fp32[1, 1] = max(%2) dim=1 size=16 LEAST
      %4: fp32[1, 1] = accumulate(%3) combine=max
      %5: fp32[4, 1] = output_saver(%4) {x<->0}
    return %5
  }
  return %1
}
"""
"""The maximum of a row over all iterations, straight into its accumulator."""


@pytest.mark.parametrize("least", ["least=lowest", ""])
@pytest.mark.parametrize("machine", ["cpu", "cuda", "triton"])
def test_a_row_that_is_hidden_in_every_iteration_has_the_least_maximum(machine: str, least: str) -> None:
    graph = parse_graph(HIDDEN.replace("LEAST", least))
    x = torch.full((4, 32), -torch.inf)
    x[1, 20] = 2.0
    run = {"cpu": lambda: on_cpu, "cuda": cuda, "triton": triton}[machine]()
    (wanted,) = evaluate(graph, [x.double().numpy()], FloatArithmetic())
    (got,) = run(graph)([x])
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert np.isfinite(got).all() == bool(least)
