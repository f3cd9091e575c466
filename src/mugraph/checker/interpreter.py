"""What a saved graph computes, over any domain: blocks and iterations are run one by one, as the paper's section 2 says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from mugraph.checker.operators import OPERATORS
from mugraph.checker.saved_files import Json, Rejected
from mugraph.checker.tensors import Array, Domain, DomainTensor, Raw, common_scale, first, joined, moved, plain, scaled


def run(graph: Json, inputs: Sequence[Raw], domain: Domain) -> list[Raw]:
    """The outputs of a kernel graph, of the shapes that it records, for `inputs` of those of its input nodes, in order.

    Raises Rejected naming an operator that does not exist or does not fit.
    """
    remaining = iter(inputs)
    values: dict[tuple[int, int], DomainTensor] = {}
    for index, node in enumerate(graph["nodes"]):
        if node["op"] == "input":
            values[index, 0] = plain(next(remaining))
        else:
            _store(values, index, _node(node, [values[i, j] for i, j in node["inputs"]], domain))
    return [values[i, j].raw for i, j in graph["outputs"]]


def _store(values: dict[tuple[int, int], DomainTensor], index: int, results: Sequence[DomainTensor]) -> None:
    values.update({(index, number): result for number, result in enumerate(results)})


def _node(node: Json, operands: list[DomainTensor], domain: Domain) -> list[DomainTensor]:
    if "body" in node:
        return _grid(node["body"], operands, domain)
    try:
        return [OPERATORS[node["op"]].computed(node["attributes"], operands, domain)]
    except (ValueError, TypeError, IndexError) as error:
        raise Rejected(f"operator {node['op']} does not fit its operands ({error})") from None


# --- graph-defined operators -------------------------------------------------------------------------------------------


def _grid(body: Json, operands: list[DomainTensor], domain: Domain) -> list[DomainTensor]:
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
            level = {o: joined([level[(*o, i)] for i in range(grid[position])], dim, domain) for o in outer}
        results.append(level[()])
    return results


def _block(body: Json, block: tuple[int, ...], operands: list[DomainTensor], domain: Domain) -> list[DomainTensor]:
    nodes = body["nodes"]
    accumulators = [index for index, node in enumerate(nodes) if node["op"].startswith("accumulate")]
    inside = _ancestors(nodes, [i for index in accumulators for i, _ in nodes[index]["inputs"]])
    history: dict[tuple[int, int], list[DomainTensor]] = {}
    for iteration in range(body["loop"] if accumulators else 0):
        values: dict[tuple[int, int], DomainTensor] = {}
        for index in sorted(inside):
            _step(body, index, values, operands, (*block, iteration), domain)
        for key, value in values.items():
            history.setdefault(key, []).append(value)
    after: dict[tuple[int, int], DomainTensor] = {}
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
    values: dict[tuple[int, int], DomainTensor],
    operands: list[DomainTensor],
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


def _tile(body: Json, attributes: Json, operands: list[DomainTensor], part: tuple[int, ...], domain: Domain) -> DomainTensor:
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

    return moved(operands[attributes["operand"]], cut, domain)


def _accumulated(body: Json, index: int, histories: list[list[DomainTensor]], domain: Domain) -> DomainTensor:
    node = body["nodes"][index]
    scale = common_scale([x.scale for x in histories[0]])
    stacks = [domain.move([value.raw for value in history], np.stack) for history in histories]
    if node["op"] == "accumulate_rescaled":
        terms, shifts = stacks
        common = domain.row_function("max", shifts, 0)
        rescaled = domain.multiply(terms, domain.exp(domain.subtract(shifts, common)))
        return scaled(first(domain.sum(rescaled, 0), domain), scale, domain)
    match node["attributes"]["combine"]:
        case "sum":
            return scaled(first(domain.sum(stacks[0], 0), domain), scale, domain)
        case "concat":
            return scaled(joined(histories[0], node["attributes"]["dim"], domain).raw, scale, domain)
        case "max" if body["loop"] == 1 or not _varies(body["nodes"], node["inputs"][0][0]):
            return histories[0][0]  # the maximum of equals
        case "max":
            return plain(first(domain.row_function("max", stacks[0], 0), domain))
    raise Rejected(f"accumulate: unknown combination {node['attributes']['combine']!r}")


def _varies(nodes: list[Json], index: int) -> bool:
    """Whether a node's value depends on the iteration."""
    iterators = (nodes[i]["attributes"] for i in _ancestors(nodes, [index]) if nodes[i]["op"] == "input_iterator")
    return any(attributes["fmap"] is not None for attributes in iterators)
