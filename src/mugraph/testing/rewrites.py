"""Rewrites that keep the meaning: the axioms A_eq of the paper (its Table 2) read over tensors, and other tiles.

A verifier must accept every one of them. Rules match on the graph as it is rebuilt, so that a pass over a graph applies many
at once, each to what the ones before have left; bodies of kernels are rewritten like programs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mugraph.errors import MugraphError
from mugraph.ir.editing import Site, edited, with_counts, without_dead_nodes
from mugraph.ir.graph import Graph, Node, Shape, Tensor, Value
from mugraph.ir.validity import check

_RATE = 0.4
"""The chance that an operator to which some rule applies is rewritten in one pass."""

Rule = Callable[[Site], Value | None]
"""The node in other words, or None where the rule does not apply."""


def rewritten(graph: Graph, rng: np.random.Generator) -> Graph:
    """The kernel graph with some operators, in it and in its kernels, replaced by what an axiom makes equal."""
    result = _pass(graph, rng, ())
    check(result)
    return result


def retiled(graph: Graph, rng: np.random.Generator) -> Graph | None:
    """The kernel graph with one grid dimension or loop of one kernel cut into more or fewer parts.

    None where the choice that was drawn does not divide, or leaves other outputs, such as more partial results.
    """
    kernels = [index for index, node in enumerate(graph.nodes) if node.body is not None]
    if not kernels:
        return None
    chosen = int(rng.choice(kernels))
    node = graph.nodes[chosen]
    assert node.body is not None
    counts = [*node.body.grid, node.body.loop]
    position, factor = int(rng.integers(len(counts))), int(rng.choice([2, 3]))
    more = rng.random() < 0.5
    counts[position] = counts[position] * factor if more else counts[position] // factor
    if 0 in counts:
        return None
    try:
        body = with_counts(node.body, tuple(counts[:-1]), counts[-1], [graph.tensor(value) for value in node.inputs])
        result = edited(graph, {chosen: lambda site: site.builder.graph_defined(body, site.operands)[0]})
        check(result)
    except MugraphError:
        return None
    same = [t.shape for t in body.output_tensors] == [t.shape for t in node.outputs]
    return result if same else None


def _pass(graph: Graph, rng: np.random.Generator, sources: tuple[Tensor, ...]) -> Graph:
    def edit(site: Site) -> Value:
        if site.node.body is not None:
            tensors = tuple(site.builder.tensor(value) for value in site.operands)
            return site.builder.graph_defined(_pass(site.node.body, rng, tensors), site.operands)[0]
        if rng.random() < _RATE:
            for number in rng.permutation(len(RULES)):
                found = RULES[int(number)](site)
                if found is not None:
                    return found
        return site.copy()

    return without_dead_nodes(edited(graph, dict.fromkeys(range(len(graph.nodes)), edit), sources))


# --- rules -------------------------------------------------------------------------------------------------------------


def _made_by(site: Site, value: Value, *ops: str) -> Node | None:
    """The node that makes a value, if it is one of these operators."""
    node = site.builder.nodes[value.node]
    return node if node.op in ops else None


def _shape(site: Site, value: Value) -> Shape:
    return site.builder.tensor(value).shape


def _commute(site: Site) -> Value | None:
    """x + y = y + x, x y = y x."""
    return site.copy(operands=site.operands[::-1]) if site.node.op in ("add", "mul") else None


def _associate(site: Site) -> Value | None:
    """(x y) z = x (y z), for sums, products and matrix products."""
    op = site.node.op
    if op not in ("add", "mul", "matmul"):
        return None
    left = _made_by(site, site.operands[0], op)
    if left is None:
        return None
    (x, y), z = left.inputs, site.operands[1]
    if op == "matmul" and len({len(_shape(site, value)) for value in (x, y, z)}) > 1:
        return None
    return site.builder.add(op, x, site.builder.add(op, y, z))


def _distribute(site: Site) -> Value | None:
    """(x + y) z = x z + y z, for products, quotients and matrix products."""
    op = site.node.op
    total = _made_by(site, site.operands[0], "add", "sub") if op in ("mul", "div", "matmul") else None
    if total is None or (op == "matmul" and len({_shape(site, value) for value in total.inputs}) > 1):
        return None
    x, y = (site.builder.add(op, part, site.operands[1]) for part in total.inputs)
    return site.builder.add(total.op, x, y)


def _factor(site: Site) -> Value | None:
    """x z + y z = (x + y) z."""
    if site.node.op not in ("add", "sub"):
        return None
    x, y = (_made_by(site, value, "mul", "div", "matmul") for value in site.operands)
    if x is None or y is None or x.op != y.op or x.inputs[1] != y.inputs[1]:
        return None
    if x.op == "matmul" and _shape(site, x.inputs[0]) != _shape(site, y.inputs[0]):
        return None
    return site.builder.add(x.op, site.builder.add(site.node.op, x.inputs[0], y.inputs[0]), x.inputs[1])


def _multiply_fraction(site: Site) -> Value | None:
    """x (y / z) = x y / z."""
    quotient = _made_by(site, site.operands[1], "div") if site.node.op == "mul" else None
    if quotient is None:
        return None
    y, z = quotient.inputs
    return site.builder.add("div", site.builder.add("mul", site.operands[0], y), z)


def _divide_product(site: Site) -> Value | None:
    """(x y) / z = x (y / z)."""
    product = _made_by(site, site.operands[0], "mul") if site.node.op == "div" else None
    if product is None:
        return None
    x, y = product.inputs
    return site.builder.add("mul", x, site.builder.add("div", y, site.operands[1]))


def _divide_twice(site: Site) -> Value | None:
    """(x / y) / z = x / (y z)."""
    quotient = _made_by(site, site.operands[0], "div") if site.node.op == "div" else None
    if quotient is None:
        return None
    x, y = quotient.inputs
    return site.builder.add("div", x, site.builder.add("mul", y, site.operands[1]))


def _sum_twice(site: Site) -> Value | None:
    """A sum or maximum of n is one of n / k of k."""
    size = site.node.get("size")
    if site.node.op not in ("sum", "max") or not isinstance(size, int):
        return None
    factor = next((k for k in (2, 3) if size % k == 0 and size > k), None)
    if factor is None:
        return None
    dim = site.node["dim"]
    first = site.builder.add(site.node.op, site.operands[0], dim=dim, size=size // factor)
    return site.builder.add(site.node.op, first, dim=dim, size=factor)


def _sum_scaled(site: Site) -> Value | None:
    """sum(x y) = sum(x) y and sum(x / y) = sum(x) / y, where y is the same for all that is summed."""
    scaled = _made_by(site, site.operands[0], "mul", "div") if site.node.op == "sum" else None
    dim = site.node.get("dim")
    if scaled is None or not isinstance(dim, int):
        return None
    x, y = scaled.inputs
    behind = len(_shape(site, site.operands[0])) - dim
    constant = behind > len(_shape(site, y)) or _shape(site, y)[-behind] == 1
    if not constant or _shape(site, x) != _shape(site, site.operands[0]):
        return None
    return site.builder.add(scaled.op, site.copy(operands=(x,)), y)


def _matmul_scaled(site: Site) -> Value | None:
    """(x y) @ w = (x @ w) y and (x / y) @ w = (x @ w) / y, where y has one element per row."""
    scaled = _made_by(site, site.operands[0], "mul", "div") if site.node.op == "matmul" else None
    if scaled is None:
        return None
    x, y = scaled.inputs
    per_row = not _shape(site, y) or _shape(site, y)[-1] == 1
    if not per_row or _shape(site, x) != _shape(site, site.operands[0]):
        return None
    return site.builder.add(scaled.op, site.builder.add("matmul", x, site.operands[1]), y)


def _exponent_sum(site: Site) -> Value | None:
    """exp(x + y) = exp(x) exp(y), exp(x - y) = exp(x) / exp(y)."""
    total = _made_by(site, site.operands[0], "add", "sub") if site.node.op == "exp" else None
    if total is None:
        return None
    x, y = (site.builder.add("exp", part) for part in total.inputs)
    return site.builder.add("mul" if total.op == "add" else "div", x, y)


def _exponent_product(site: Site) -> Value | None:
    """exp(x) exp(y) = exp(x + y), exp(x) / exp(y) = exp(x - y)."""
    if site.node.op not in ("mul", "div"):
        return None
    x, y = (_made_by(site, value, "exp") for value in site.operands)
    if x is None or y is None:
        return None
    return site.builder.add("exp", site.builder.add("add" if site.node.op == "mul" else "sub", *x.inputs, *y.inputs))


def _root_product(site: Site) -> Value | None:
    """sqrt(x y) = sqrt(x) sqrt(y), sqrt(x / y) = sqrt(x) / sqrt(y)."""
    product = _made_by(site, site.operands[0], "mul", "div") if site.node.op == "sqrt" else None
    if product is None:
        return None
    x, y = (site.builder.add("sqrt", part) for part in product.inputs)
    return site.builder.add(product.op, x, y)


def _square(site: Site) -> Value | None:
    """The square of x is x x."""
    return site.builder.add("mul", site.operands[0], site.operands[0]) if site.node.op == "square" else None


def _subtract(site: Site) -> Value | None:
    """x - y = x + (-1) y."""
    if site.node.op != "sub":
        return None
    minus_one = site.builder.constant(-1, site.node.output.dtype)
    return site.builder.add("add", site.operands[0], site.builder.add("mul", site.operands[1], minus_one))


def _neutral(site: Site) -> Value | None:
    """x = (3 x) / 3."""
    if site.node.op not in ("add", "sub", "mul", "div", "matmul", "exp", "sum"):
        return None
    three = site.builder.constant(3, site.node.output.dtype)
    return site.builder.add("div", site.builder.add("mul", site.copy(), three), three)


def _transpose_product(site: Site) -> Value | None:
    """x @ y = (y^T @ x^T)^T, for matrices."""
    if site.node.op != "matmul" or any(len(_shape(site, value)) != 2 for value in site.operands):
        return None
    y, x = (site.builder.add("transpose", value, permutation=(1, 0)) for value in reversed(site.operands))
    return site.builder.add("transpose", site.builder.add("matmul", y, x), permutation=(1, 0))


def _matmul_as_sum(site: Site) -> Value | None:
    """x @ y is the sum of the products of x's columns and y's rows, for matrices."""
    if site.node.op != "matmul" or any(len(_shape(site, value)) != 2 for value in site.operands):
        return None
    (rows, inner), (_, columns) = (_shape(site, value) for value in site.operands)
    x = site.builder.add("reshape", site.operands[0], shape=(rows, inner, 1))
    y = site.builder.add("reshape", site.operands[1], shape=(1, inner, columns))
    total = site.builder.add("sum", site.builder.add("mul", x, y), dim=1, size=inner)
    return site.builder.add("reshape", total, shape=(rows, columns))


def _concatenate_products(site: Site) -> Value | None:
    """w @ y + x @ z is the product of (w x) and (y over z)."""
    if site.node.op != "add":
        return None
    first, second = (_made_by(site, value, "matmul") for value in site.operands)
    if first is None or second is None or _shape(site, site.operands[0]) != _shape(site, site.operands[1]):
        return None
    (w, y), (x, z) = first.inputs, second.inputs
    return site.builder.add("concat_matmul", w, x, y, z)


RULES: tuple[Rule, ...] = (
    _commute, _associate, _distribute, _factor, _multiply_fraction, _divide_product, _divide_twice, _sum_twice,
    _sum_scaled, _matmul_scaled, _exponent_sum, _exponent_product, _root_product, _square, _subtract, _neutral,
    _transpose_product, _matmul_as_sum, _concatenate_products,
)  # fmt: skip
"""Every rule, for tests that each of them occurs."""
