"""What a saved graph computes, over any domain: blocks and iterations are run one by one, as the paper's section 2 says.

A domain computes with tensors of its own; all it must do is listed in `Domain`. Square roots distribute over products
(docs/theory.md): a `Tensor` remembers what it is a product of, and roots are taken of the factors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mugraph.checker.files import Json, Rejected

Array = npt.NDArray[Any]
Raw = Any
"""A tensor of a domain."""

ROUNDINGS = frozenset({"round_fp16", "round_bf16", "round_fp32"})
"""Elementwise functions that a program rounds by; in a field they are functions like any other."""
FUNCTIONS = frozenset({"silu", "sigmoid", "relu", "gelu", "tanh", "log", "abs"}) | ROUNDINGS
"""Elementwise functions of which nothing is assumed."""
LEAST = {"lowest": -Fraction(2**128 - 2**104)}
"""What a maximum may be over besides its elements: the least number of fp32, for which a domain may take a variable."""
_MOST_FACTORS = 6


class Domain(Protocol):
    """What can be done with the tensors of a domain; pairs broadcast as in NumPy, reductions keep the axis with size 1.

    With `roots_factor`, the root of a product is computed as the product of roots, otherwise only constants are taken out.
    """

    @property
    def roots_factor(self) -> bool: ...

    def number(self, value: Fraction) -> Raw: ...
    def least(self, value: Fraction) -> Raw:
        """The number that a maximum is over besides its elements, or a variable: what holds whatever it is holds for that one."""

    def root(self, value: Fraction) -> Raw:
        """The square root of a positive number."""

    def add(self, x: Raw, y: Raw) -> Raw: ...
    def subtract(self, x: Raw, y: Raw) -> Raw: ...
    def multiply(self, x: Raw, y: Raw) -> Raw: ...
    def divide(self, x: Raw, y: Raw) -> Raw: ...
    def exp(self, x: Raw) -> Raw: ...
    def sum(self, x: Raw, axis: int) -> Raw: ...
    def function(self, name: str, x: Raw) -> Raw: ...
    def row_function(self, name: str, x: Raw, axis: int) -> Raw:
        """A function of all elements along an axis, in any order."""

    def move(self, xs: Sequence[Raw], move: Callable[[list[Array]], Array]) -> Raw:
        """Rearrange the elements of tensors."""

    def shape(self, x: Raw) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a domain, which is scale * product(over) / product(under)."""

    raw: Raw
    over: tuple[Raw, ...]
    under: tuple[Raw, ...] = ()
    scale: Fraction = Fraction(1)


def plain(raw: Raw) -> Tensor:
    """A tensor that is no known product."""
    return Tensor(raw, (raw,))


def run(graph: Json, inputs: Sequence[Raw], domain: Domain) -> list[Raw]:
    """The outputs of a kernel graph. Raises Rejected naming an operator that does not exist or does not fit."""
    remaining = iter(inputs)
    values: dict[tuple[int, int], Tensor] = {}
    for index, node in enumerate(graph["nodes"]):
        if node["op"] == "input":
            values[index, 0] = plain(next(remaining))
        else:
            _store(values, index, _node(node, [values[i, j] for i, j in node["inputs"]], domain))
    return [values[i, j].raw for i, j in graph["outputs"]]


def _store(values: dict[tuple[int, int], Tensor], index: int, results: Sequence[Tensor]) -> None:
    values.update({(index, number): result for number, result in enumerate(results)})


def _node(node: Json, operands: list[Tensor], domain: Domain) -> list[Tensor]:
    if "body" in node:
        return _grid(node["body"], operands, domain)
    try:
        return [_operator(node["op"], node["attributes"], operands, domain)]
    except (ValueError, TypeError, IndexError) as error:
        raise Rejected(f"operator {node['op']} does not fit its operands ({error})") from None


# --- graph-defined operators -------------------------------------------------------------------------------------------


def _grid(body: Json, operands: list[Tensor], domain: Domain) -> list[Tensor]:
    """All blocks, and their outputs put together: along each grid dimension, in the dimension that omap names."""
    grid = body["grid"] or body["block"]
    parts = {block: _block(body, block, operands, domain) for block in itertools.product(*map(range, grid))}
    savers = [body["nodes"][i] for i, _ in body["outputs"]]
    results = []
    for number, saver in enumerate(savers):
        level = {block: outputs[number] for block, outputs in parts.items()}
        for position in reversed(range(len(grid))):
            dim = saver["attributes"]["omap"][position]
            outer = itertools.product(*map(range, grid[:position]))
            level = {o: _joined([level[(*o, i)] for i in range(grid[position])], dim, domain) for o in outer}
        results.append(level[()])
    return results


def _joined(parts: list[Tensor], dim: int, domain: Domain) -> Tensor:
    """Tensors one after the other along a dimension; if all are products of as many factors, so is the whole."""
    if len(parts) == 1:
        return parts[0]

    def whole(raws: list[Raw]) -> Raw:
        shapes = [domain.shape(part.raw) for part in parts]
        return domain.move(raws, lambda arrays: np.concatenate(list(map(np.broadcast_to, arrays, shapes)), axis=dim))

    raw = whole([part.raw for part in parts])
    if len({(len(part.over), len(part.under), part.scale) for part in parts}) > 1:
        return plain(raw)
    over, under = (tuple(whole(list(raws)) for raws in zip(*factors, strict=True)) for factors in _factors(parts))
    return Tensor(raw, over, under, parts[0].scale)


def _factors(parts: list[Tensor]) -> tuple[list[tuple[Raw, ...]], list[tuple[Raw, ...]]]:
    return [part.over for part in parts], [part.under for part in parts]


def _block(body: Json, block: tuple[int, ...], operands: list[Tensor], domain: Domain) -> list[Tensor]:
    nodes = body["nodes"]
    accumulators = [index for index, node in enumerate(nodes) if node["op"].startswith("accumulate")]
    inside = _ancestors(nodes, [i for index in accumulators for i, _ in nodes[index]["inputs"]])
    history: dict[tuple[int, int], list[Tensor]] = {}
    for iteration in range(body["loop"] if accumulators else 0):
        values: dict[tuple[int, int], Tensor] = {}
        for index in sorted(inside):
            _step(body, index, values, operands, (*block, iteration), domain)
        for key, value in values.items():
            history.setdefault(key, []).append(value)
    after: dict[tuple[int, int], Tensor] = {}
    for index in sorted(_ancestors(nodes, [i for i, _ in body["outputs"]])):
        if index in accumulators:
            after[index, 0] = _accumulated(body, index, [history[i, j] for i, j in nodes[index]["inputs"]], domain)
        elif index not in inside or all(nodes[i]["op"] != "input_iterator" for i in _ancestors(nodes, [index])):
            _step(body, index, after, operands, (*block, 0), domain)
    return [after[i, j] for i, j in body["outputs"]]


def _ancestors(nodes: list[Json], start: list[int]) -> set[int]:
    """The nodes that `start` depends on, itself included; an accumulator stands for what it accumulated."""
    found: set[int] = set()
    stack = list(start)
    while stack:
        index = stack.pop()
        if index not in found:
            found.add(index)
            stack.extend(i for i, _ in nodes[index]["inputs"])
    return found


def _step(
    body: Json,
    index: int,
    values: dict[tuple[int, int], Tensor],
    operands: list[Tensor],
    part: tuple[int, ...],
    domain: Domain,
) -> None:
    node = body["nodes"][index]
    if node["op"] == "input_iterator":
        values[index, 0] = _tile(body, node["attributes"], operands, part, domain)
    elif node["op"] == "output_saver":
        ((i, j),) = node["inputs"]
        values[index, 0] = values[i, j]
    else:
        _store(values, index, _node(node, [values[i, j] for i, j in node["inputs"]], domain))


def _tile(body: Json, attributes: Json, operands: list[Tensor], part: tuple[int, ...], domain: Domain) -> Tensor:
    """The part of an operand that a block reads in an iteration: imap and fmap say which dimensions are cut."""
    counts = [*(body["grid"] or body["block"]), body["loop"]]
    dims = [*attributes["imap"], attributes["fmap"]]

    def cut(array: Array) -> Array:
        for count, dim, position in zip(counts, dims, part, strict=True):
            if dim is not None:
                size, rest = divmod(array.shape[dim], count)
                if rest:
                    raise Rejected(f"input_iterator: dimension {dim} of {list(array.shape)} does not divide by {count}")
                array = array[(slice(None),) * dim + (slice(position * size, (position + 1) * size),)]
        return array

    return _moved(operands[attributes["operand"]], cut, domain)


def _accumulated(body: Json, index: int, histories: list[list[Tensor]], domain: Domain) -> Tensor:
    node = body["nodes"][index]
    scale = _common([x.scale for x in histories[0]])
    stacks = [domain.move([value.raw for value in history], np.stack) for history in histories]
    if node["op"] == "accumulate_rescaled":
        terms, shifts = stacks
        common = domain.row_function("max", shifts, 0)
        rescaled = domain.multiply(terms, domain.exp(domain.subtract(shifts, common)))
        return _scaled(_first(domain.sum(rescaled, 0), domain), scale, domain)
    match node["attributes"]["combine"]:
        case "sum":
            return _scaled(_first(domain.sum(stacks[0], 0), domain), scale, domain)
        case "concat":
            joined = _joined(histories[0], node["attributes"]["dim"], domain)
            return _scaled(joined.raw, scale, domain)
        case "max" if body["loop"] == 1 or not _varies(body["nodes"], node["inputs"][0][0]):
            return histories[0][0]  # the maximum of equals
        case "max":
            return plain(_first(domain.row_function("max", stacks[0], 0), domain))
    raise Rejected(f"accumulate: unknown combination {node['attributes']['combine']!r}")


def _varies(nodes: list[Json], index: int) -> bool:
    """Whether a node's value depends on the iteration."""
    iterators = (nodes[i]["attributes"] for i in _ancestors(nodes, [index]) if nodes[i]["op"] == "input_iterator")
    return any(attributes["fmap"] is not None for attributes in iterators)


def _first(raw: Raw, domain: Domain) -> Raw:
    return domain.move([raw], lambda arrays: arrays[0][0])


# --- operators ---------------------------------------------------------------------------------------------------------


def _operator(op: str, attributes: Json, xs: list[Tensor], domain: Domain) -> Tensor:
    raws = [x.raw for x in xs]
    match op:
        case "constant":
            return _constant(attributes["value"]["exact"], domain)
        case "cast":
            return xs[0]
        case "add":
            return _sum(xs[0], xs[1], domain)
        case "sub":
            return _scaled(domain.subtract(*raws), _common([x.scale for x in xs]), domain)
        case "mul":
            return _product(xs[0], xs[1], domain)
        case "square":
            return _product(xs[0], xs[0], domain)
        case "div":
            return _quotient(xs[0], xs[1], domain)
        case "exp":
            return plain(domain.exp(raws[0]))
        case "sqrt":
            return _root(xs[0], domain)
        case "matmul":
            return _matmul(xs[0], xs[1], domain)
        case "concat_matmul":
            return _sum(_matmul(xs[0], xs[2], domain), _matmul(xs[1], xs[3], domain), domain)
        case "sum":
            return _scaled(_reduced(op, raws[0], attributes["dim"], attributes["size"], domain), xs[0].scale, domain)
        case "max":
            return plain(_reduced(op, raws[0], attributes["dim"], attributes["size"], domain, attributes.get("least")))
        case "reshape":
            return _moved(xs[0], lambda array: array.reshape(attributes["shape"]), domain)
        case "transpose":
            return _moved(xs[0], lambda array: array.transpose(attributes["permutation"]), domain)
        case "repeat":
            times, dim = attributes["times"], attributes["dim"]
            return _moved(xs[0], lambda array: np.concatenate([array] * times, axis=dim), domain)
        case _ if op in FUNCTIONS:
            return plain(domain.function(op, raws[0]))
    raise Rejected(f"unknown operator {op!r}")


def _constant(text: str, domain: Domain) -> Tensor:
    root = "sqrt(" in text
    number = Fraction(text.replace("sqrt(", "").replace(")", ""))
    if not root:
        return Tensor(domain.number(number), (), (), number)
    raw = domain.root(abs(number))
    return plain(raw if number >= 0 else domain.multiply(domain.number(Fraction(-1)), raw))


def _product(x: Tensor, y: Tensor, domain: Domain) -> Tensor:
    raw = domain.multiply(x.raw, y.raw)
    return _limited(Tensor(raw, (*x.over, *y.over), (*x.under, *y.under), x.scale * y.scale))


def _quotient(x: Tensor, y: Tensor, domain: Domain) -> Tensor:
    raw = domain.divide(x.raw, y.raw)
    return _limited(Tensor(raw, (*x.over, *y.under), (*x.under, *y.over), x.scale / y.scale)) if y.scale else plain(raw)


def _scaled(raw: Raw, scale: Fraction, domain: Domain) -> Tensor:
    """A sum of multiples by one constant is that multiple of a sum."""
    if scale == 1 or scale <= 0:
        return plain(raw)
    return Tensor(raw, (domain.multiply(raw, domain.number(1 / scale)),), (), scale)


def _common(scales: Sequence[Fraction]) -> Fraction:
    return scales[0] if len({*scales}) == 1 else Fraction(1)


def _limited(tensor: Tensor) -> Tensor:
    return tensor if tensor.scale and len(tensor.over) + len(tensor.under) <= _MOST_FACTORS else plain(tensor.raw)


def _root(x: Tensor, domain: Domain) -> Tensor:
    """sqrt(c x y / z) is sqrt(c) sqrt(x) sqrt(y) / sqrt(z) for a constant c that is not negative, or sqrt(c) sqrt(x y / z)."""
    if x.scale < 0 or (x.scale == 0 and not domain.roots_factor):
        return plain(domain.function("sqrt", x.raw))
    result = domain.root(x.scale)
    if not domain.roots_factor:
        if not x.over and not x.under:
            return plain(result)
        rest = domain.multiply(x.raw, domain.number(1 / x.scale))
        return plain(domain.multiply(result, domain.function("sqrt", rest)))
    for factor in x.over:
        result = domain.multiply(result, domain.function("sqrt", factor))
    for factor in x.under:
        result = domain.divide(result, domain.function("sqrt", factor))
    return plain(result)


def _sum(x: Tensor, y: Tensor, domain: Domain) -> Tensor:
    return _scaled(domain.add(x.raw, y.raw), _common([x.scale, y.scale]), domain)


def _matmul(x: Tensor, y: Tensor, domain: Domain) -> Tensor:
    rows = domain.move([x.raw], lambda arrays: arrays[0][..., :, :, None])
    columns = domain.move([y.raw], lambda arrays: arrays[0][..., None, :, :])
    products = domain.multiply(rows, columns)
    total = domain.sum(products, len(domain.shape(products)) - 2)
    return _scaled(domain.move([total], lambda arrays: arrays[0][..., 0, :]), x.scale * y.scale, domain)


def _reduced(op: str, raw: Raw, dim: int, size: int, domain: Domain, least: str | None = None) -> Raw:
    shape = domain.shape(raw)
    groups = (*shape[:dim], shape[dim] // size, size, *shape[dim + 1 :])
    grouped = domain.move([raw], lambda arrays: arrays[0].reshape(groups))
    if least is not None:
        one = (*groups[: dim + 1], 1, *groups[dim + 2 :])
        grouped = domain.move(
            [grouped, domain.least(LEAST[least])],
            lambda arrays: np.concatenate([arrays[0], np.broadcast_to(arrays[1], one)], axis=dim + 1),
        )
    reduced = domain.sum(grouped, dim + 1) if op == "sum" else domain.row_function("max", grouped, dim + 1)
    return domain.move([reduced], lambda arrays: np.squeeze(arrays[0], dim + 1))


def _moved(x: Tensor, move: Callable[[Array], Array], domain: Domain) -> Tensor:
    raw = domain.move([x.raw], lambda arrays: move(arrays[0]))
    if len(x.over) == 1 and not x.under and x.over[0] is x.raw:
        return plain(raw)
    shape = domain.shape(x.raw)

    def factor(part: Raw) -> Raw:
        return domain.move([part], lambda arrays: move(np.broadcast_to(arrays[0], shape)))

    return Tensor(raw, tuple(map(factor, x.over)), tuple(map(factor, x.under)), x.scale)
