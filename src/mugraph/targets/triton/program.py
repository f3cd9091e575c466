"""The Python file of a muGraph: its kernels, the function that runs them, and a run on random inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mugraph.ir.graph import Graph, Value
from mugraph.targets.triton.block import kernel_lines
from mugraph.targets.triton.expressions import HELPERS
from mugraph.targets.triton.host import host_lines, torch_type
from mugraph.targets.triton.kernel import TileKernel, value_names

_HEADER = '''\
"""Triton kernels of a muGraph, and `run`, which computes it.

Run this file on a machine with a GPU, or anywhere in Triton's interpreter: TRITON_INTERPRET=1 python {name}.
A tile of [1, 12, 64] is a tensor of [16, 64]: dimensions of size 1 are left out, others padded to powers of two.
"""

import torch
import triton
import triton.language as tl
'''

_MAIN = """\
if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for result in run(*(torch.randn(shape, device=device).to(dtype) for shape, dtype in INPUTS)):
        print(list(result.shape), result.dtype, "mean", result.float().mean().item())
"""


def print_program(kernels: Sequence[TileKernel], name: str) -> str:
    """The text of the file `name` for all kernels of one kernel graph; raises UnsupportedOperator for what Triton cannot say."""
    graph = kernels[0].program
    definitions = ["\n".join(kernel_lines(kernel)) + "\n" for kernel in kernels]
    run = "\n".join(host_lines(graph, {kernel.index: kernel for kernel in kernels})) + "\n"
    helpers = [text for function, text in HELPERS.items() if any(calls(function, body) for body in (*definitions, run))]
    return "\n\n".join([_HEADER.format(name=name), *helpers, *definitions, run, _inputs(graph), _MAIN])


def calls(function: str, body: str) -> bool:
    """Whether a text calls a function of its own module."""
    return re.search(rf"(?<![\w.]){function}\(", body) is not None


def _inputs(graph: Graph) -> str:
    """Shapes and types of the inputs, in order."""
    names = value_names(graph)
    rows = [
        f"    ({node.output.shape}, {torch_type(node.output)}),  # {names[Value(index)]}"
        for index, node in enumerate(graph.nodes)
        if node.is_input
    ]
    return "\n".join(["INPUTS = [", *rows, "]\n"])
