"""The generated file by itself: `run` launches the kernels and computes the rest with PyTorch, without mugraph."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lower.graphs import chain_of_kernels, rms_norm_linear
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Value
from mugraph.targets.triton import print_program, tile_launches

pytest.importorskip("triton", reason="the file imports it; pip install 'mugraph[triton]'")

SCRIPT = """
import sys
import numpy as np
import torch
import kernels

with np.load("inputs.npz") as saved:
    results = kernels.run(*(torch.from_numpy(saved[name]) for name in saved.files))
np.savez("results.npz", *(result.numpy() for result in results))
assert not any(name.startswith("mugraph") for name in sys.modules)
"""


def every_pre_defined_kernel(*names: str) -> Graph:
    """Views, reductions, products and elementwise operators between two generated kernels, the second on a transposed view."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = (kernel.input(name, shape, DType.FP32) for name, shape in zip(names, [(6, 10), (10, 6)], strict=True))
    product = kernel.add("matmul", x, y)
    both = kernel.add("concat_matmul", x, product, y, product)
    scaled = kernel.add("mul", kernel.add("silu", both), kernel.constant(0.5, DType.FP32))
    (bounded,) = kernel.graph_defined(elementwise_block(kernel, scaled, "tanh"), [scaled])
    turned = kernel.add("transpose", bounded, permutation=(1, 0))
    (exponentials,) = kernel.graph_defined(elementwise_block(kernel, turned, "exp"), [turned])
    largest = kernel.add("max", exponentials, dim=1, size=3)
    repeated = kernel.add("repeat", kernel.add("sum", kernel.add("relu", largest), dim=0, size=2), dim=1, times=3)
    halves = kernel.add("cast", kernel.add("reshape", repeated, shape=(9, 2)), dtype=DType.FP16)
    return kernel.build([halves, exponentials, kernel.add("abs", turned)])


def elementwise_block(kernel: GraphBuilder, operand: Value, op: str) -> Graph:
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    value = block.add(op, block.iterator(0, kernel.tensor(operand), (0,), None))
    return block.build([block.add("output_saver", value, omap=(0,))])


@pytest.mark.parametrize("names", [("x", "y"), ("kernel_7", "part")], ids=["plain names", "words of the text"])
def test_the_file_computes_the_graph_without_mugraph(names: tuple[str, str], tmp_path: Path) -> None:
    expect_computed(every_pre_defined_kernel(*names), tmp_path)


def test_kernels_in_one_workspace_disturb_no_tensor(tmp_path: Path) -> None:
    expect_computed(chain_of_kernels(6, (4, 20)), tmp_path)


def test_a_file_that_tunes_itself_computes_the_same(tmp_path: Path) -> None:
    """Where there is no GPU it has its first configuration, which is that of the plain file."""
    expect_computed(rms_norm_linear(rows=5, inner=48, columns=40), tmp_path, tuned=True)
    expect_computed(every_pre_defined_kernel("stages", "tuned"), tmp_path, tuned=True)


def expect_computed(graph: Graph, tmp_path: Path, tuned: bool = False) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]
    source = print_program([replace(each.kernel, tuned=tuned) for each in tile_launches(graph).values()], "kernels.py")
    (tmp_path / "kernels.py").write_text(source)
    np.savez(tmp_path / "inputs.npz", *inputs)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "results.npz") as saved:
        results = [saved[name] for name in saved.files]
    exact = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    for result, reference, tensor in zip(results, exact, graph.output_tensors, strict=True):
        assert result.dtype == (np.float16 if tensor.dtype is DType.FP16 else np.float32)
        np.testing.assert_allclose(result, reference, rtol=2e-3 if tensor.dtype is DType.FP16 else 1e-5, atol=1e-5)
