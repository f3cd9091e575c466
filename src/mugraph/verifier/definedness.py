"""Whether a muGraph has a result wherever the program has one, seen on one slice: sqrt(x) * sqrt(x) is no kernel for sqrt(x * x).

The laws by which graphs are found and proved speak of inputs at which both are defined. What is undefined elsewhere fails the
comparison with float64, but only after it was compiled, measured and proved; a slice shows it in milliseconds, where signs
leave a doubt.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.cores import cores_of
from mugraph.ir.dtypes import DType
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.verifier.float_checks import random_inputs
from mugraph.verifier.parallel_axes import shared_slice
from mugraph.verifier.rounding import operator_errors
from mugraph.verifier.signs import total
from mugraph.verifier.vectorized_eval import evaluate_batched

_MANY = 64
"""Elements of an input that normal numbers hardly ever give one sign."""


def undefined_operator(program: Graph, graph: Graph, seed: int = 0) -> str:
    """What of a muGraph has no result for normal inputs at which the program has one, in words; empty if nothing was seen."""
    if total(graph):
        return ""
    if (cores := cores_of(program, graph)) is not None:
        program, graph = cores.cores
    cut = shared_slice(program, graph)
    for inputs in _points(cut.left, seed):
        if not _defined(cut.right, inputs) and _defined(cut.left, inputs):
            return str(operator_errors(cut.right, inputs, DType.FP64)[0])
    return ""


def _points(graph: Graph, seed: int) -> Iterator[list[Array]]:
    """One point, or several where slices are so small that all their elements may be positive."""
    normal = [array.astype(np.float64) for array in random_inputs(graph, seed)]
    yield normal
    if min((array.size for array in normal), default=0) < _MANY:
        yield [-array for array in normal]
        another = [array.astype(np.float64) for array in random_inputs(graph, seed + 1)]
        yield another
        yield [-array for array in another]


def _defined(graph: Graph, inputs: list[Array]) -> bool:
    with np.errstate(all="ignore"):
        return not any(np.isnan(output).any() for output in evaluate_batched(graph, inputs, FloatArithmetic(np.float64)))
