"""Calling compiled muGraphs: array kinds, checks, mixed kernel graphs, threads, saved sources."""

from __future__ import annotations

import random
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from lower.graphs import attention, chain_of_kernels, rms_norm_linear
from lower.test_workspace import random_kernels
from mugraph.errors import InvalidInput, ShapeMismatch, TargetUnavailable
from mugraph.host.arrays import torch_arrays
from mugraph.host.numpy_arrays import NUMPY
from mugraph.ir import DType, Graph, GraphBuilder, Level, Scalar, Tensor
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower import construct
from mugraph.runtime import Executable, build
from mugraph.targets.cpu.machine import Cpu
from threads import at_once

FP32 = DType.FP32


def normal_inputs(graph: Graph, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]


def reference(graph: Graph, inputs: list[Array]) -> list[Array]:
    return evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())


@pytest.fixture(scope="module")
def norm() -> Executable:
    return build(rms_norm_linear())


def test_numpy_in_numpy_out(norm: Executable) -> None:
    inputs = normal_inputs(norm.graph)
    (result,) = norm(*inputs)
    assert type(result) is np.ndarray
    np.testing.assert_allclose(result, reference(norm.graph, inputs)[0], rtol=1e-4, atol=1e-5)


def test_arrays_mapped_from_files_are_read(norm: Executable, tmp_path: Path) -> None:
    x, g, w = normal_inputs(norm.graph)
    np.save(tmp_path / "w.npy", w)
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    np.testing.assert_array_equal(norm(x, g, mapped)[0], norm(x, g, w)[0])


def test_torch_in_torch_out(norm: Executable) -> None:
    torch = pytest.importorskip("torch")
    inputs = normal_inputs(norm.graph)
    (result,) = norm(*map(torch.from_numpy, inputs))
    np.testing.assert_array_equal(result.numpy(), norm(*inputs)[0])


@pytest.mark.parametrize(("dtype", "error"), [(DType.FP64, 1e-15), (FP32, 2e-7)])
def test_constants_of_predefined_operators_are_as_precise_as_tensors(dtype: DType, error: float) -> None:
    """Whatever type of its own PyTorch gives to tensors of Python's numbers."""
    torch = pytest.importorskip("torch")
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (4,), dtype)
    graph = kernel.build([kernel.add("mul", x, kernel.constant(Scalar.of(Fraction(99, 100)), dtype))])
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        (result,) = build(graph)(torch.ones(4, dtype=torch.float64 if dtype is DType.FP64 else torch.float32))
    finally:
        torch.set_default_dtype(usual)
    np.testing.assert_allclose(result.numpy(), 0.99, rtol=error)


def test_inputs_that_are_not_contiguous_are_copied(norm: Executable) -> None:
    torch = pytest.importorskip("torch")
    inputs = normal_inputs(norm.graph)
    expected = norm(*inputs)[0]
    np.testing.assert_array_equal(norm(*map(np.asfortranarray, inputs))[0], expected)
    strided = [torch.from_numpy(np.ascontiguousarray(array.T)).permute(*reversed(range(array.ndim))) for array in inputs]
    np.testing.assert_array_equal(norm(*strided)[0].numpy(), expected)


def test_tensors_that_are_negated_when_they_are_read_are_right(norm: Executable) -> None:
    torch = pytest.importorskip("torch")
    x, *others = map(torch.from_numpy, normal_inputs(norm.graph))
    np.testing.assert_array_equal(norm(torch._neg_view(x), *others)[0], norm(-x, *others)[0])


def test_zeros_without_memory_are_read_as_zeros(norm: Executable) -> None:
    torch = pytest.importorskip("torch")
    x, g, w = map(torch.from_numpy, normal_inputs(norm.graph))
    without_memory = torch._efficientzerotensor(g.shape)
    assert without_memory.data_ptr() == 0
    torch.testing.assert_close(norm(x, without_memory, w)[0], torch.zeros(x.shape[0], w.shape[1]))


def test_tensors_that_are_not_dense_are_refused(norm: Executable) -> None:
    torch = pytest.importorskip("torch")
    x, g, w = map(torch.from_numpy, normal_inputs(norm.graph))
    with pytest.raises(InvalidInput, match=r"'W' is torch\.sparse_coo; pass a dense tensor"):
        norm(x, g, w.to_sparse())


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_without_dimensions_stay_so(library: str) -> None:
    arrays = NUMPY if library == "numpy" else torch_arrays()
    scalar = Tensor((), FP32)
    assert arrays.from_numpy(np.full((1,), 3, np.float32).sum(), scalar).shape == ()
    assert arrays.from_numpy(np.ones((), np.float32), scalar).shape == ()


def test_a_wrong_shape_names_the_input(norm: Executable) -> None:
    x, g, w = normal_inputs(norm.graph)
    with pytest.raises(ShapeMismatch, match=r"'W' has shape \[32, 47\].*\[32, 48\]"):
        norm(x, g, w[:, 1:])


def test_a_wrong_dtype_names_the_input(norm: Executable) -> None:
    x, g, w = normal_inputs(norm.graph)
    with pytest.raises(InvalidInput, match=r"'G' is float64.*fp32"):
        norm(x, g.astype(np.float64), w)


def test_a_wrong_number_or_kind_of_inputs(norm: Executable) -> None:
    x, g, _ = normal_inputs(norm.graph)
    with pytest.raises(InvalidInput, match=r"expected 3 inputs \(X, G, W\), got 2"):
        norm(x, g)
    with pytest.raises(InvalidInput, match="not list, ndarray"):
        norm(x, g, [1.0])


def test_bf16_needs_torch() -> None:
    executable = build(rms_norm_linear(dtype=DType.BF16))
    with pytest.raises(InvalidInput, match="pass torch tensors"):
        executable(*normal_inputs(executable.graph))


def test_other_targets_are_refused() -> None:
    with pytest.raises(TargetUnavailable, match="tpu"):
        build(rms_norm_linear(), "tpu")


def mixed_graph() -> Graph:
    """Views, library kernels and two compiled kernels, the second reading the first's transposed result."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = kernel.input("x", (6, 10), FP32), kernel.input("y", (10, 4), FP32)
    product = kernel.add("matmul", x, y)
    scaled = kernel.add("mul", product, kernel.constant(0.5, FP32))
    first = GraphBuilder(Level.BLOCK, grid=(2,))
    value = first.add("tanh", first.iterator(0, kernel.tensor(scaled), (0,), None))
    (bounded,) = kernel.graph_defined(first.build([first.add("output_saver", value, omap=(0,))]), [scaled])
    turned = kernel.add("transpose", bounded, permutation=(1, 0))
    second = GraphBuilder(Level.BLOCK, grid=(2,))
    left = second.iterator(0, kernel.tensor(turned), (0,), None)
    right = second.iterator(1, kernel.tensor(x), (None,), None)
    saved = second.add("output_saver", second.add("matmul", left, right), omap=(0,))
    (mixed,) = kernel.graph_defined(second.build([saved]), [turned, x])
    total = kernel.add("sum", mixed, dim=1, size=10)
    return kernel.build([mixed, turned, kernel.add("reshape", total, shape=(2, 2)), kernel.add("cast", x, dtype=DType.FP16)])


def test_kernel_graphs_may_mix_compiled_and_library_kernels() -> None:
    torch = pytest.importorskip("torch")
    graph = mixed_graph()
    executable = build(graph)
    inputs = normal_inputs(graph)
    results = executable(*inputs)
    assert results[3].dtype == np.float16
    for result, expected in zip(results, reference(graph, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5)
    for result, other in zip(executable(*map(torch.from_numpy, inputs)), results, strict=True):
        np.testing.assert_allclose(result.numpy(), other, rtol=1e-5, atol=1e-6)


def test_a_graph_without_kernels_of_its_own_needs_no_compiler() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (3, 5), FP32)
    executable = build(kernel.build([kernel.add("max", x, dim=1, size=5)]))
    assert executable.sources == {}
    array = normal_inputs(executable.graph)[0]
    np.testing.assert_array_equal(executable(array)[0], array.max(axis=1, keepdims=True))


def test_sums_of_products_that_lie_in_different_orders_are_right() -> None:
    """GCC 12 left out the stores of the second product, whose addresses it computed from those of the first."""
    kernel = GraphBuilder(Level.KERNEL)
    shapes = {"A": (17, 40), "B": (8, 17), "S": (1, 40), "C": (40, 17), "D": (17, 8)}
    inputs = [kernel.input(name, shape, DType.FP16) for name, shape in shapes.items()]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    a, b, s, c, d = (block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate(inputs))
    columns = block.add("transpose", block.add("mul", a, s), permutation=(1, 0))
    first = block.add("matmul", columns, block.add("transpose", b, permutation=(1, 0)))
    weights = block.add("exp", block.add("sub", d, block.add("max", d, dim=0, size=17)))
    total = block.add("add", first, block.add("matmul", c, weights))
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(0,))]), inputs))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float16) for shape in shapes.values()]
    (result,) = Executable(construct(graph), Cpu())(*arrays)
    (exact,) = evaluate(graph, [array.astype(np.float64) for array in arrays], FloatArithmetic())
    np.testing.assert_allclose(result, exact, rtol=2e-3, atol=2e-2)


def test_calls_from_several_threads_do_not_disturb_each_other() -> None:
    executable = build(attention())
    cases = [normal_inputs(executable.graph, seed) for seed in range(4)]
    expected = [executable(*case)[0] for case in cases]

    def call(number: int) -> None:
        for _ in range(50):
            np.testing.assert_array_equal(executable(*cases[number])[0], expected[number])

    at_once(call, range(len(cases)))


def test_online_softmax_survives_scores_that_overflow_exp() -> None:
    executable = build(attention())
    inputs = normal_inputs(executable.graph)
    inputs[0] *= 1000
    (result,) = executable(*inputs)
    np.testing.assert_allclose(result, reference(executable.graph, inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16, DType.FP16])
def test_library_kernels_compute_every_operator_with_torch(dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    kernel = GraphBuilder(Level.KERNEL)
    x, y = kernel.input("x", (4, 6), dtype), kernel.input("y", (1, 6), dtype)
    values = [kernel.add(op, x, y) for op in ("add", "sub", "mul", "div")]
    values += [kernel.add(op, x) for op in ("exp", "square", "silu", "sigmoid", "relu", "gelu", "tanh", "abs")]
    values += [kernel.add(op, kernel.add("square", x)) for op in ("sqrt", "log")]
    values += [kernel.add(op, x, dim=1, size=3) for op in ("sum", "max")]
    values += [kernel.add("repeat", x, dim=0, times=2), kernel.add("mul", x, kernel.constant(0.5, dtype))]
    values += [kernel.add("concat_matmul", x, x, *[kernel.add("transpose", x, permutation=(1, 0))] * 2)]
    graph = kernel.build(values)
    kind = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16, DType.FP16: torch.float16}[dtype]
    inputs = [torch.from_numpy(array).abs().add(0.5).to(kind) for array in normal_inputs(graph)]
    expected = reference(graph, [tensor.double().numpy() for tensor in inputs])
    for result, exact in zip(build(graph)(*inputs), expected, strict=True):
        assert result.dtype is kind
        np.testing.assert_allclose(
            result.double().numpy(), exact, rtol=1e-4 if dtype is FP32 else 5e-2, atol=2e-2 if dtype is not FP32 else 1e-5
        )


def test_outputs_share_no_memory_with_inputs_or_each_other() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (4, 6), FP32)
    seen = builder.add("reshape", builder.add("reshape", x, shape=(24,)), shape=(6, 4))
    squared = builder.add("square", x)
    turned = builder.add("reshape", squared, shape=(2, 12))
    run = build(builder.build([x, seen, squared, turned, squared]))
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = [data, *run(data)]
    for index, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[:index])
    np.testing.assert_array_equal(arrays[2], data.reshape(6, 4))
    np.testing.assert_array_equal(arrays[5], data**2)


def test_views_that_only_the_library_reads_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = GraphBuilder(Level.KERNEL)
    x, w = builder.input("x", (4, 6), FP32), builder.input("w", (8, 6), FP32)
    turned = builder.add("transpose", w, permutation=(1, 0))
    product = builder.add("matmul", x, turned)
    run = build(builder.build([product, builder.add("transpose", product, permutation=(1, 0))]))
    inputs = normal_inputs(run.graph)
    contiguous = mock.Mock(side_effect=NUMPY.contiguous)
    monkeypatch.setattr(NUMPY, "contiguous", contiguous)
    first, second = run(*inputs)
    np.testing.assert_allclose(first, inputs[0] @ inputs[1].T, rtol=1e-5)
    np.testing.assert_array_equal(second, first.T)
    assert second.flags.c_contiguous
    assert (6, 8) not in [call.args[0].shape for call in contiguous.call_args_list]


def test_what_stands_for_other_tensors_is_refused(norm: Executable) -> None:
    """Kernels read memory: traced, mapped and differentiated tensors have none of their own, or more to them than it."""
    torch = pytest.importorskip("torch")
    from torch.autograd import forward_ad
    from torch.fx.experimental.proxy_tensor import make_fx

    x, *others = map(torch.from_numpy, normal_inputs(norm.graph))

    def derivative() -> None:
        with torch.no_grad(), forward_ad.dual_level():
            norm(forward_ad.make_dual(x, x), *others)  # type: ignore[no-untyped-call]

    calls = {
        "cannot be traced": lambda: make_fx(lambda x: norm(x, *others)[0])(x),
        "kernels cannot be traced": lambda: torch.jit.trace(lambda x: norm(x, *others)[0], x),
        "a FakeTensor has no values": lambda: make_fx(lambda x: norm(x, *others)[0], tracing_mode="fake")(x),
        "cannot be mapped": lambda: torch.vmap(lambda x: norm(x, *others)[0])(x[None]),
        "no derivative": derivative,
    }
    for message, call in calls.items():
        with pytest.raises(InvalidInput, match=message):
            call()
    with torch.no_grad(), forward_ad.dual_level():
        torch.testing.assert_close(norm(torch.nn.Parameter(x), *others), norm(x, *others))


def test_inputs_like_those_of_an_earlier_call_are_recognized_and_no_others() -> None:
    """What is recognized is not read again: whatever reading refuses or copies must not be."""
    torch = pytest.importorskip("torch")
    from torch.autograd import forward_ad

    executable = build(rms_norm_linear())
    x, g, w = map(torch.from_numpy, normal_inputs(executable.graph))
    assert executable.recognized((x, g, w)) is None
    (expected,) = executable(x, g, w)
    for again in ((x, g, w), (x.clone(), g.clone(), w.clone())):
        outputs = executable.recognized(again)
        assert outputs is not None
        torch.testing.assert_close(outputs[0], expected, rtol=0, atol=0)
    others = {
        "negated": torch._neg_view(x),
        "without memory": torch._efficientzerotensor(x.shape),
        "sparse": x.to_sparse(),
        "transposed": x.T.contiguous().T,
        "strided": torch.stack([x, x], -1)[..., 0],
        "of another type": x.double(),
        "of another shape": x[1:],
        "elsewhere": x.to("meta"),
        "a parameter": torch.nn.Parameter(x),
        "with a gradient": x.clone().requires_grad_(),
        "NumPy's": x.numpy(),
        "no array": [1.0],
    }
    for what, other in others.items():
        assert executable.recognized((other, g, w)) is None, what
    assert executable.recognized((x, g)) is None
    assert executable.recognized((x, g, w, w)) is None
    seen = []

    def within(y: Any) -> Any:
        seen.append(executable.recognized((x, g, w)))
        return y.sum()

    torch.vmap(within)(x)
    torch.func.grad(within)(x)
    torch.jit.trace(within, x, check_trace=False)
    with torch.no_grad(), forward_ad.dual_level():
        seen.append(executable.recognized((forward_ad.make_dual(x, x), g, w)))  # type: ignore[no-untyped-call]
    assert seen == [None] * 4
    with torch.inference_mode():
        executable(x, g, w)
        assert executable.recognized((x, g, w)) is not None
    for _ in range(20):
        executable(torch._neg_view(x), g, w)
        executable(x.clone().requires_grad_(), g, w)
    assert executable.recognized((x, g, w)) is not None
    assert len(executable._recognized) == 2


def test_between_six_kernels_two_buffers_are_needed_at_most() -> None:
    """By what NumPy says that it allocates, beside the output and little else."""
    graph = chain_of_kernels(6, (256, 256))
    executable, inputs = build(graph), normal_inputs(graph)
    (expected,) = reference(graph, inputs)
    executable(*inputs)
    tracemalloc.start()
    try:
        (result,) = executable(*inputs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert 3 * result.nbytes <= peak < 3.1 * result.nbytes


def test_equal_kernels_are_compiled_once() -> None:
    graph = chain_of_kernels(7)  # of three kinds
    executable, inputs = build(graph), normal_inputs(graph)
    names = [kernel.name for kernel in executable.kernels]
    assert names == ["kernel_1", "kernel_2", "kernel_3", "kernel_1", "kernel_2", "kernel_3", "kernel_1"]
    assert all(executable.sources["kernels.c"].count(f"const kernel {name} = ") == 1 for name in names)
    np.testing.assert_allclose(executable(*inputs)[0], reference(graph, inputs)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("seed", range(12))
def test_kernels_library_calls_and_views_between_each_other(seed: int, library: str) -> None:
    torch = pytest.importorskip("torch")
    graph = random_kernels(random.Random(seed))
    inputs = [array / 4 for array in normal_inputs(graph)]
    executable = build(graph)
    arrays = inputs if library == "numpy" else list(map(torch.from_numpy, inputs))
    first = executable(*arrays)
    for results in (executable(*arrays), first):
        for result, expected in zip(results, reference(graph, inputs), strict=True):
            np.testing.assert_allclose(result if library == "numpy" else result.numpy(), expected, rtol=1e-3, atol=1e-4)
