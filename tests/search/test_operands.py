"""A block that holds all of a tensor needed along two axes reads it once."""

from __future__ import annotations

import numpy as np

from mugraph.devices import device_for
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program
from mugraph.search import search

from .programs import finished, random_inputs


def product_and_itself() -> Graph:
    """x @ w + x: x along the axis that is summed up, and along that of the output's columns."""
    p = Program()
    x, w = p.input("x", (2, 3)), p.input("w", (3, 3))
    return finished(p, x @ w + x)


def test_a_tensor_needed_along_two_axes_is_read_once_where_a_block_holds_all_of_it() -> None:
    program = product_and_itself()
    found = [candidate.graph for candidate in search(program, device_for("cpu")).candidates]
    single = [graph for graph in found if len(graph.kernels()) == 1]
    reads = {len(kernel.inputs): kernel for graph in single for kernel in graph.kernels()}
    assert 2 in reads
    inputs = random_inputs(program)
    (wanted,) = evaluate(program, inputs, FloatArithmetic())
    for graph in found:
        np.testing.assert_allclose(evaluate(graph, inputs, FloatArithmetic())[0], wanted, rtol=1e-9)


def test_nothing_is_read_twice_in_the_same_way() -> None:
    for candidate in search(product_and_itself(), device_for("cpu")).candidates:
        for kernel in candidate.graph.kernels():
            if kernel.body is not None:
                loads = [node for node in kernel.body.nodes if node.op == "input_iterator"]
                ways = [(read, n["imap"], n["fmap"]) for read, n in zip(kernel.inputs, loads, strict=True)]
                assert len(set(ways)) == len(ways)


def test_what_is_computed_of_what_is_read_once_is_computed_once() -> None:
    p = Program()
    x, w = p.input("x", (4, 3)), p.input("w", (3, 3))
    program = finished(p, (x.exp() @ w) / x.exp())
    exponentials = [
        sum(node.op == "exp" for node in kernel.body.nodes)
        for candidate in search(program, device_for("cpu")).candidates
        if len(candidate.graph.kernels()) == 1
        for kernel in candidate.graph.kernels()
        if kernel.body is not None and len(kernel.inputs) == 2
    ]
    assert set(exponentials) == {1}
