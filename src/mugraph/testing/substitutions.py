"""Rewriting to saturation, a rival of the search: programs that substitutions of operators lead to, as in TASO (SOSP'19).

A program is a tuple of terms that are interned, so equal ones are one. Sums and products of any number of elementwise operands
are kept as sorted operands, quotients as products with reciprocals and transposes at the inputs: commutativity, associativity
of elementwise operators and the rules of transposes hold by construction. The other rules are applied one by one, each to a
term wherever it stands, until no new program comes up ("saturated") or a limit is reached.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mugraph.errors import UnsupportedOperator
from mugraph.ir.graph import Graph, Node, Shape, Value
from mugraph.ir.ops import OPERATORS
from mugraph.ir.scalar import Scalar

State = tuple[int, ...]
"""A program: the terms that are its outputs."""


@dataclass(frozen=True, slots=True)
class RewriteTerm:
    """An operator on terms; `detail` is the number of an input, the value of a constant, or the dimension of a sum.

    Every term is a matrix: vectors are rows, numbers have one row and one column. Sizes of 1 broadcast.
    """

    op: str
    operands: tuple[int, ...]
    detail: int | Scalar | None
    shape: tuple[int, int]


class RewriteTerms:
    """Interned terms, and how to make more in normal form."""

    def __init__(self) -> None:
        self.terms: list[RewriteTerm] = []
        self.numbers: dict[RewriteTerm, int] = {}

    def __getitem__(self, number: int) -> RewriteTerm:
        return self.terms[number]

    def shape(self, number: int) -> tuple[int, int]:
        """Rows and columns of a term."""
        return self.terms[number].shape

    def made(self, op: str, operands: Sequence[int], detail: int | Scalar | None, shape: tuple[int, int]) -> int:
        """The number of a term."""
        term = RewriteTerm(op, tuple(operands), detail, shape)
        if term not in self.numbers:
            self.numbers[term] = len(self.terms)
            self.terms.append(term)
        return self.numbers[term]

    def constant(self, value: Scalar | int) -> int:
        """A number."""
        return self.made("constant", (), Scalar.of(value), (1, 1))

    def flat(self, op: str, operands: Sequence[int]) -> int:
        """A sum (`add`) or product (`mul`) of any number of operands, those of operands of the same kind among them."""
        found: list[int] = []
        for operand in operands:
            found += self.terms[operand].operands if self.terms[operand].op == op else [operand]
        if len(found) == 1:
            return found[0]
        shapes = [self.shape(operand) for operand in found]
        return self.made(op, sorted(found), None, (max(s[0] for s in shapes), max(s[1] for s in shapes)))

    def add(self, *operands: int) -> int:
        """A sum."""
        return self.flat("add", operands)

    def mul(self, *operands: int) -> int:
        """A product of elements, without factors of one."""
        one = self.constant(1)
        kept = [operand for operand in operands if operand != one]
        return self.flat("mul", kept or [one])

    def unary(self, op: str, operand: int) -> int:
        """A function of elements; `reciprocal` is one."""
        return self.made(op, (operand,), None, self.shape(operand))

    def matmul(self, left: int, right: int) -> int:
        """A matrix product."""
        return self.made("matmul", (left, right), None, (self.shape(left)[0], self.shape(right)[1]))

    def sum(self, operand: int, dim: int) -> int:
        """The sum of all rows (0) or columns (1)."""
        rows, columns = self.shape(operand)
        if (rows, columns)[dim] == 1:
            return operand
        return self.made("sum", (operand,), dim, (1, columns) if dim == 0 else (rows, 1))

    def transposed(self, number: int) -> int:
        """Rows for columns, pushed to the inputs."""
        term = self.terms[number]
        operands = [self.transposed(operand) for operand in term.operands] if term.op != "transpose" else []
        match term.op:
            case "transpose":
                return term.operands[0]
            case "matmul":
                return self.matmul(operands[1], operands[0])
            case "concat_matmul":
                return self.concat_matmul((operands[2], operands[0]), (operands[3], operands[1]))
            case "sum":
                assert isinstance(term.detail, int)
                return self.sum(operands[0], 1 - term.detail)
            case "constant":
                return number
            case "input":
                return self.made("transpose", (number,), None, term.shape[::-1])
            case "add" | "mul":
                return self.flat(term.op, operands)
        return self.unary(term.op, operands[0])

    def concat_matmul(self, first: tuple[int, int], second: tuple[int, int]) -> int:
        """[left | left'] times [right over right']: the sum of two products as one."""
        (left, right), (other_left, other_right) = sorted((first, second))
        shape = self.shape(left)[0], self.shape(right)[1]
        return self.made("concat_matmul", (left, other_left, right, other_right), None, shape)

    def with_operands(self, number: int, operands: Sequence[int]) -> int:
        """The term over other operands of the same shapes."""
        term = self.terms[number]
        if tuple(operands) == term.operands:
            return number
        match term.op:
            case "add" | "mul":
                return self.flat(term.op, operands)
            case "transpose":
                return self.transposed(operands[0])
        return self.made(term.op, operands, term.detail, term.shape)

    def replaced(self, state: State, old: int, new: int) -> State:
        """A program with a term replaced wherever it stands, but for where it stands in the new one."""
        known = {old: new}

        def visit(number: int) -> int:
            if number not in known:
                known[number] = number  # an input of itself it cannot be
                known[number] = self.with_operands(number, [visit(operand) for operand in self.terms[number].operands])
            return known[number]

        return tuple(visit(number) for number in state)

    def reachable(self, state: State) -> list[int]:
        """All terms of a program, operands first."""
        found: dict[int, None] = {}

        def visit(number: int) -> None:
            if number not in found:
                for operand in self.terms[number].operands:
                    visit(operand)
                found[number] = None

        for number in state:
            visit(number)
        return list(found)

    def formula(self, number: int) -> str:
        """A term as one would write it."""
        term = self.terms[number]
        operands = [self.formula(operand) for operand in term.operands]
        match term.op:
            case "input":
                return f"x{term.detail}"
            case "constant":
                return str(term.detail)
            case "transpose":
                return f"{operands[0]}.T"
            case "add" | "mul" | "matmul":
                return f"({ {'add': ' + ', 'mul': ' * ', 'matmul': ' @ '}[term.op].join(operands) })"
            case "concat_matmul":
                return f"([{operands[0]} | {operands[1]}] @ [{operands[2]} / {operands[3]}])"
            case "sum":
                return f"sum{term.detail}({operands[0]})"
        return f"{term.op}({operands[0]})"


# --- from programs -----------------------------------------------------------------------------------------------------


def state_of(graph: Graph, terms: RewriteTerms) -> State:
    """A program of matrices and vectors as terms; raises UnsupportedOperator for one with other operators."""
    values: dict[Value, int] = {}
    inputs = 0
    for index, node in enumerate(graph.nodes):
        operands = [values[value] for value in node.inputs]
        if node.is_input:
            values[Value(index)] = terms.made("input", (), inputs, as_matrix(node.output.shape))
            inputs += 1
        else:
            values[Value(index)] = _term(node, operands, terms)
    return tuple(values[value] for value in graph.outputs)


def as_matrix(shape: Shape) -> tuple[int, int]:
    """The rows and columns of a tensor of two dimensions or fewer."""
    if len(shape) > 2:
        raise UnsupportedOperator(f"a tensor of shape {list(shape)} is no matrix")
    rows, columns = (1,) * (2 - len(shape)) + tuple(shape)
    return rows, columns


def _term(node: Node, operands: Sequence[int], terms: RewriteTerms) -> int:
    match node.op:
        case "constant":
            value = node["value"]
            assert isinstance(value, Scalar)
            return terms.constant(value)
        case "add" | "mul":
            return terms.flat(node.op, operands)
        case "sub":
            return terms.add(operands[0], terms.mul(terms.constant(-1), operands[1]))
        case "div":
            return terms.mul(operands[0], terms.unary("reciprocal", operands[1]))
        case "matmul":
            return terms.matmul(*operands)
        case "transpose" if node.integers("permutation") == (1, 0):
            return terms.transposed(operands[0])
        case "sum" if len(node.output.shape) == 2 and node.output.shape[node.integer("dim")] == 1:
            return terms.sum(operands[0], node.integer("dim"))
        case _ if node.op in OPERATORS and OPERATORS[node.op].elementwise and len(operands) == 1:
            return terms.unary(node.op, operands[0])
    raise UnsupportedOperator(f"no substitution knows {node.op}")


# --- rules -------------------------------------------------------------------------------------------------------------

Rule = Callable[[RewriteTerms, int], Iterator[int]]
"""What a term may be replaced by."""


def _others(operands: Sequence[int], position: int) -> list[int]:
    return [operand for place, operand in enumerate(operands) if place != position]


def associated(terms: RewriteTerms, number: int) -> Iterator[int]:
    """(x y) z = x (y z), of matrix products."""
    if terms[number].op != "matmul":
        return
    left, right = terms[number].operands
    if terms[left].op == "matmul":
        x, y = terms[left].operands
        yield terms.matmul(x, terms.matmul(y, right))
    if terms[right].op == "matmul":
        x, y = terms[right].operands
        yield terms.matmul(terms.matmul(left, x), y)


def distributed(terms: RewriteTerms, number: int) -> Iterator[int]:
    """(x + y) z = x z + y z and z (x + y) = z x + z y, of matrix products; what is repeated along k scales the other's sum."""
    if terms[number].op != "matmul":
        return
    left, right = terms[number].operands
    for total in (left, right):
        operands = terms[total].operands if terms[total].op == "add" else ()
        for position, operand in enumerate(operands):
            parts = (operand, terms.add(*_others(operands, position)))
            yield terms.add(*(_product(terms, x, right) if total == left else _product(terms, left, x) for x in parts))


def _product(terms: RewriteTerms, left: int, right: int) -> int:
    """A matrix product of factors that may broadcast along k."""
    inner = max(terms.shape(left)[1], terms.shape(right)[0])
    if terms.shape(left)[1] == terms.shape(right)[0]:
        return terms.matmul(left, right)
    if terms.shape(left)[1] < inner:
        return terms.mul(left, terms.sum(right, 0))
    return terms.mul(terms.sum(left, 1), right)


def distributed_elements(terms: RewriteTerms, number: int) -> Iterator[int]:
    """x (y + z) = x y + x z, of elements."""
    term = terms[number]
    for position, factor in enumerate(term.operands if term.op == "mul" else ()):
        if terms[factor].op == "add":
            rest = _others(term.operands, position)
            yield terms.add(*(terms.mul(*rest, part) for part in terms[factor].operands))


def factored(terms: RewriteTerms, number: int) -> Iterator[int]:
    """x z + y z = (x + y) z and z x + z y = z (x + y), of matrix products."""
    for first, second, rest in _pairs(terms, number):
        if terms[first].op == terms[second].op == "matmul":
            (a, b), (c, d) = terms[first].operands, terms[second].operands
            if b == d and terms.shape(a) == terms.shape(c):
                yield terms.add(terms.matmul(terms.add(a, c), b), *rest)
            if a == c and terms.shape(b) == terms.shape(d):
                yield terms.add(terms.matmul(a, terms.add(b, d)), *rest)


def concatenated(terms: RewriteTerms, number: int) -> Iterator[int]:
    """w y + x z = [w | x] times [y over z]."""
    for first, second, rest in _pairs(terms, number):
        if terms[first].op == terms[second].op == "matmul" and terms.shape(first) == terms.shape(second):
            (a, b), (c, d) = terms[first].operands, terms[second].operands
            yield terms.add(terms.concat_matmul((a, b), (c, d)), *rest)


def factored_elements(terms: RewriteTerms, number: int) -> Iterator[int]:
    """x y + x z = x (y + z), of elements; x alone is x times one."""
    for first, second, rest in _pairs(terms, number):
        factors, others = (terms[each].operands if terms[each].op == "mul" else (each,) for each in (first, second))
        for common in dict.fromkeys(factors):
            if common in others:
                left, right = (_others(group, group.index(common)) for group in (factors, others))
                yield terms.add(terms.mul(common, terms.add(terms.mul(*left), terms.mul(*right))), *rest)


def _pairs(terms: RewriteTerms, number: int) -> Iterator[tuple[int, int, list[int]]]:
    """Two operands of a sum and the others."""
    operands = terms[number].operands if terms[number].op == "add" else ()
    for second in range(len(operands)):
        for first in range(second):
            rest = [operand for place, operand in enumerate(operands) if place not in (first, second)]
            yield operands[first], operands[second], rest


def scales_out(terms: RewriteTerms, number: int) -> Iterator[int]:
    """(s x) y = s (x y) for what is the same along k, and (x t) y = x (t y) for what is the same along the rows or columns."""
    if terms[number].op != "matmul":
        return
    left, right = terms[number].operands
    for side, dim in ((left, 1), (right, 0)):
        inner = terms.shape(side)[dim]
        for position, factor in enumerate(terms[side].operands if terms[side].op == "mul" else ()):
            rest = terms.mul(*_others(terms[side].operands, position))
            if terms.shape(rest)[dim] != inner:
                continue
            if terms.shape(factor)[dim] == 1:
                yield terms.mul(factor, terms.matmul(rest, right) if dim == 1 else terms.matmul(left, rest))
            if terms.shape(factor)[1 - dim] == 1 and terms.shape(rest) == terms.shape(side):
                turned = terms.transposed(factor)
                moved = (rest, terms.mul(turned, right)) if dim == 1 else (terms.mul(left, turned), rest)
                yield terms.matmul(*moved)


def scales_in(terms: RewriteTerms, number: int) -> Iterator[int]:
    """s (x y) = (s x) y for what has one column, s (x y) = x (s y) for what has one row."""
    operands = terms[number].operands if terms[number].op == "mul" else ()
    for position, product in enumerate(operands):
        if terms[product].op != "matmul":
            continue
        left, right = terms[product].operands
        for factor in dict.fromkeys(_others(operands, position)):
            rest = list(_others(operands, position))
            rest.remove(factor)
            rows, columns = terms.shape(factor)
            if columns == 1 and rows in (1, terms.shape(left)[0]):
                yield terms.mul(terms.matmul(terms.mul(factor, left), right), *rest)
            if rows == 1 and columns in (1, terms.shape(right)[1]):
                yield terms.mul(terms.matmul(left, terms.mul(factor, right)), *rest)


def sums_in(terms: RewriteTerms, number: int) -> Iterator[int]:
    """The sum of a sum, of a scaled matrix, and of a matrix product's rows or columns."""
    if terms[number].op != "sum":
        return
    (operand,), dim = terms[number].operands, terms[number].detail
    assert isinstance(dim, int)
    inner = terms[operand]
    if inner.op == "add":
        yield terms.add(*(_summed(terms, part, dim, inner.shape[dim]) for part in inner.operands))
    elif inner.op == "mul":
        for position, factor in enumerate(inner.operands):
            rest = terms.mul(*_others(inner.operands, position))
            if terms.shape(factor)[dim] == 1 and terms.shape(rest)[dim] == inner.shape[dim]:
                yield terms.mul(factor, terms.sum(rest, dim))
    elif inner.op == "matmul":
        left, right = inner.operands
        yield terms.matmul(left, terms.sum(right, 1)) if dim == 1 else terms.matmul(terms.sum(left, 0), right)


def _summed(terms: RewriteTerms, number: int, dim: int, size: int) -> int:
    """The sum of a term as often as it is repeated to `size`."""
    return terms.sum(number, dim) if terms.shape(number)[dim] == size else terms.mul(terms.constant(size), number)


def sums_out(terms: RewriteTerms, number: int) -> Iterator[int]:
    """What `sums_in` does, backwards: of scaled sums, of products with sums, and of sums of equal shapes."""
    term = terms[number]
    if term.op == "matmul":
        left, right = term.operands
        if terms[right].op == "sum" and terms[right].detail == 1:
            yield terms.sum(terms.matmul(left, terms[right].operands[0]), 1)
        if terms[left].op == "sum" and terms[left].detail == 0:
            yield terms.sum(terms.matmul(terms[left].operands[0], right), 0)
    for position, part in enumerate(term.operands if term.op == "mul" else ()):
        dim = terms[part].detail
        rest = _others(term.operands, position)
        if terms[part].op == "sum" and isinstance(dim, int) and all(terms.shape(other)[dim] == 1 for other in rest):
            yield terms.sum(terms.mul(*rest, terms[part].operands[0]), dim)
    for first, second, others in _pairs(terms, number):
        (a, b), dim = (terms[first], terms[second]), terms[first].detail
        if a.op == b.op == "sum" and isinstance(dim, int) and b.detail == dim:
            x, y = a.operands[0], b.operands[0]
            if terms.shape(x) == terms.shape(y):
                yield terms.add(terms.sum(terms.add(x, y), dim), *others)


RULES: tuple[Rule, ...] = (
    associated,
    distributed,
    distributed_elements,
    factored,
    factored_elements,
    concatenated,
    scales_out,
    scales_in,
    sums_in,
    sums_out,
)


# --- saturation --------------------------------------------------------------------------------------------------------


@dataclass
class RewriteSaturation:
    """The programs that rules lead to, those that `bound` makes out to be cheapest first, up to `limit` of them."""

    terms: RewriteTerms
    start: State
    bound: Callable[[State], float]
    limit: int
    rules: tuple[Rule, ...] = RULES
    saturated: bool = field(default=False, init=False)
    """Whether all of them were visited."""

    def states(self) -> Iterator[tuple[float, State]]:
        """Every program with its bound, each once."""
        seen = {self.start}
        waiting = [(self.bound(self.start), 0, self.start)]
        visited = 0
        while waiting and visited < self.limit:
            bound, _, state = heapq.heappop(waiting)
            visited += 1
            yield bound, state
            for following in self.following(state):
                if following not in seen:
                    seen.add(following)
                    heapq.heappush(waiting, (self.bound(following), len(seen), following))
        self.saturated = not waiting

    def following(self, state: State) -> Iterator[State]:
        """The programs that one rule makes of one term."""
        for number in self.terms.reachable(state):
            for rule in self.rules:
                for new in rule(self.terms, number):
                    if new != number:
                        yield self.terms.replaced(state, number, new)
