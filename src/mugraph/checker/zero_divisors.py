"""Whether a graph divides by zero whatever its inputs are: it has no value then, so that nothing can be said of its outputs.

Where a proof has new inputs in the place of tensors, its tests do not meet what the graphs themselves divide by. So the graphs
are looked at here: divisors that are positive for all real inputs, by a rule for each operator, are never zero. What has other
divisors is evaluated in fields, where zero is no matter of rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np

from mugraph.checker import residue_fields
from mugraph.checker.function_properties import outputs
from mugraph.checker.operators import ROUNDINGS
from mugraph.checker.residue_fields import Fields, Residues, Undefined
from mugraph.checker.saved_files import Json
from mugraph.checker.tensors import Array

_DRAWS = 3
_DRAWS_FOR_SQUARES = 24
"""Draws among which one is looked for in which all radicands are squares."""
_FEW = 6
_DRAWS_OF_MANY = 4
"""Of more radicands than `_FEW` there is hardly a draw of squares: so many are looked at, before there is one."""
_TURNS = (0, 1, -1)
"""Inputs are any numbers, squares, or squares times -1, in turns."""
_MODULUS = 840
"""Primes are -1 modulo it, so that 2, 3, 5 and 7 have their roots."""

UNKNOWN, _NOT_NEGATIVE, POSITIVE = range(3)
"""What is known of all elements of a tensor, wherever it has a value: the more, the larger."""


def divides_by_zero(graph: Json, rng: random.Random) -> bool:
    """Whether a kernel graph divides by zero in every draw; one that does not for some inputs, with small probability only."""
    doubtful = _with_doubtful_divisors(graph)
    return doubtful is not None and not (_has_value(doubtful, rng) and _has_value_by_properties(doubtful, rng))


# --- signs -------------------------------------------------------------------------------------------------------------


def _with_doubtful_divisors(graph: Json) -> Json | None:
    """The graph of what divides by numbers that may not be positive, and of what that needs; None where nothing does."""
    nodes = graph["nodes"]
    needed = ancestors(nodes, {i for i, _ in graph["outputs"]})
    found = {index for index in _doubtful(graph, [])[0] if index in needed}
    if not found:
        return None
    kept = sorted(ancestors(nodes, found) | {index for index, node in enumerate(nodes) if node["op"] == "input"})
    place = {index: number for number, index in enumerate(kept)}
    left = [{**nodes[index], "inputs": [[place[i], j] for i, j in nodes[index]["inputs"]]} for index in kept]
    return {**graph, "nodes": left, "outputs": [[place[index], 0] for index in sorted(found)]}


def ancestors(nodes: Sequence[Json], start: set[int]) -> set[int]:
    """The nodes that `start` depends on, itself included."""
    found = {*start}
    for index in reversed(range(len(nodes))):
        if index in found:
            found.update(i for i, _ in nodes[index]["inputs"])
    return found


def _doubtful(graph: Json, operands: Sequence[int]) -> tuple[list[int], list[int]]:
    """The nodes of a graph that may divide by zero, and what is known of its outputs; `operands` are those of a body."""
    known: dict[tuple[int, int], int] = {}
    found = []
    for index, node in enumerate(graph["nodes"]):
        reads = [known[i, j] for i, j in node["inputs"]]
        if "body" in node:
            inside, results = _doubtful(node["body"], reads)
            doubtful = bool(inside)
        else:
            results = [sign_of(node, reads, operands)]
            doubtful = node["op"] == "div" and reads[1] < POSITIVE
        if doubtful:
            found.append(index)
        known.update({(index, number): sign for number, sign in enumerate(results)})
    return found, [known[i, j] for i, j in graph["outputs"]]


def sign_of(node: Json, reads: Sequence[int], operands: Sequence[int] = ()) -> int:
    """What is known of the elements of a node, from what is of those it reads, and of the `operands` of the body it stands
    in."""
    op, attributes = node["op"], node["attributes"]
    if op == "constant":
        number = Fraction(attributes["value"]["exact"].replace("sqrt(", "").replace(")", ""))
        return POSITIVE if number > 0 else UNKNOWN if number else _NOT_NEGATIVE
    if op == "input_iterator":
        return operands[int(attributes["operand"])]
    if op == "mul" and node["inputs"][0] == node["inputs"][1]:
        return max(reads[0], _NOT_NEGATIVE)
    return _SIGNS[op](reads) if op in _SIGNS else UNKNOWN


def _least(reads: Sequence[int]) -> int:
    return min(reads)


def _first(reads: Sequence[int]) -> int:
    return reads[0]


def _total(reads: Sequence[int]) -> int:
    return max(reads) if min(reads) else UNKNOWN


def _at_least_zero(reads: Sequence[int]) -> int:
    return max(reads[0], _NOT_NEGATIVE)


def _quotient(reads: Sequence[int]) -> int:
    return reads[0] if reads[1] else UNKNOWN


_SIGNS: dict[str, Callable[[Sequence[int]], int]] = {
    **dict.fromkeys(("exp", "sigmoid"), lambda reads: POSITIVE),
    **dict.fromkeys(("square", "sqrt", "abs", "relu"), _at_least_zero),
    **dict.fromkeys(("mul", "matmul", "concat_matmul", "concat"), _least),
    **dict.fromkeys(("sum", "max", "accumulate", "accumulate_rescaled", "output_saver", "index_select"), _first),
    **dict.fromkeys(("reshape", "transpose", "repeat", "slice", "cast"), _first),
    "add": _total,
    "maximum": max,
    "div": _quotient,
    **dict.fromkeys(ROUNDINGS, lambda reads: min(reads[0], _NOT_NEGATIVE)),
}
"""What is known of results from what is known of operands; of those of other operators, nothing."""


def has_value(graph: Json, rng: random.Random) -> bool:
    """Whether nothing is divided by zero in one of a few draws, in which exponentials of sums are products."""
    return any(_is_defined(graph, _drawn(Fields, rng), rng, properties=False) for _ in range(_DRAWS))


# --- fields ------------------------------------------------------------------------------------------------------------


class _PoweredRoots(Fields):
    """Residues with one root for each number, x**((p + 1) / 4): roots of products are products, and squares have theirs."""

    def function(self, name: str, *xs: Residues) -> Residues:
        if name != "sqrt":
            return Fields.function(self, name, *xs)
        (x,) = xs
        p, q = (None if part is None else _powers(part, prime) for part, prime in zip((x.p, x.q), self.primes, strict=False))
        assert p is not None
        squares = [root * root % self.primes.p == radicand for root, radicand in zip(p.flat, x.p.flat, strict=True)]
        self.met.setdefault("sqrt", []).extend(map(int, squares))
        return Residues(p, q)

    @property
    def squares(self) -> list[bool]:
        """Of all numbers that roots were taken of, whether they are squares."""
        return list(map(bool, self.met.get("sqrt", [])))


def _powers(x: Array, prime: int) -> Array:
    roots = np.empty(x.size, object)
    roots[:] = [pow(value, (prime + 1) // 4, prime) for value in x.flat]
    return roots.reshape(x.shape)


def _has_value(graph: Json, rng: random.Random) -> bool:
    """Whether a graph has a value in a draw in which all roots square back or, where there is no such draw, in every draw.

    Where one does not, a divisor that is zero need not be, and one that is not zero may be.
    """
    defined, of_squares = list[bool](), 0
    for number in range(_DRAWS_FOR_SQUARES):
        domain = _drawn(_PoweredRoots, rng)
        defined.append(_is_defined(graph, domain, rng, properties=False, turn=_TURNS[number % len(_TURNS)]))
        if all(domain.squares):
            if defined[-1]:
                return True
            of_squares += 1
        many = len(domain.squares) > _FEW and len(defined) >= _DRAWS_OF_MANY
        if of_squares == _DRAWS or (many and not of_squares):
            break
    return not of_squares and all(defined)


def _has_value_by_properties(graph: Json, rng: random.Random) -> bool:
    """The same where functions have their properties."""
    return any(_is_defined(graph, _drawn(Fields, rng), rng, properties=True) for _ in range(_DRAWS))


Domain = TypeVar("Domain", bound=Fields)


def _drawn(kind: type[Domain], rng: random.Random) -> Domain:
    return kind(residue_fields.draw(rng, _MODULUS, count=False), rng.randbytes(32))


def _is_defined(graph: Json, domain: Fields, rng: random.Random, *, properties: bool, turn: int = 0) -> bool:
    drawn = [domain.random(node["attributes"]["shape"], rng) for node in graph["nodes"] if node["op"] == "input"]
    if turn:
        drawn = [domain.multiply(domain.number(Fraction(turn)), domain.multiply(each, each)) for each in drawn]
    try:
        outputs(graph, drawn, domain, properties)
    except Undefined:
        return False
    return True
