"""What programs of `mugraph.testing.substitutions` take: one library kernel for a matrix product, elementwise operators fused.

Kernels are costed as the search costs its own. Elementwise operators and sums that feed each other are fused as far as the
search finds it to pay, with the best schedules there are; a matrix product is one library kernel, and several with one left
factor are one with concatenated right factors where that is cheaper. Concatenations are copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mugraph.devices import Device
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Level, Shape, Value
from mugraph.ir.ops import OPERATORS, is_contraction
from mugraph.search import search
from mugraph.testing.substitutions import RewriteSaturation, RewriteTerms, State, state_of

_GIVEN = ("input", "constant", "transpose")


@dataclass
class Costs:
    """Seconds of programs on a device, whose inputs have these shapes."""

    terms: RewriteTerms
    device: Device
    shapes: Sequence[Shape]
    dtype: DType
    known: dict[object, float] = field(default_factory=dict)
    """Of kernels, by what they compute."""

    def seconds(self, state: State) -> float:
        """What a program takes."""
        groups = kernels_of(self.terms, state)
        products = [number for group in groups for number in group if is_contraction(self.terms[number].op)]
        fused = sum(self.fused(state, group) for group in groups if not set(group) <= set(products))
        return fused + self.products(products)

    def bound(self, state: State) -> float:
        """What a program takes at least: launches, and traffic or arithmetic of each kernel at the device's full rates."""
        groups = kernels_of(self.terms, state)
        products = {self.terms[group[0]].operands[0] for group in groups if self.terms[group[0]].op == "matmul"}
        merged = sum(self.terms[group[0]].op == "matmul" for group in groups) - len(products)
        launches = (len(groups) - merged) * self.device.launch_seconds
        rate = self.device.product_rate(self.dtype, self.dtype, self.dtype)
        arithmetic = sum(self.flops(number) for group in groups for number in group) / rate
        traffic = max(
            (self.traffic(state, group) for group in groups if not is_contraction(self.terms[group[0]].op)), default=0.0
        )
        return launches + max(arithmetic, traffic)

    def flops(self, number: int) -> float:
        """Of a matrix product; nothing for other terms."""
        term = self.terms[number]
        lefts = [term.operands[left] for left, _ in OPERATORS[term.op].products] if is_contraction(term.op) else []
        return sum(2.0 * math.prod(term.shape) * self.terms.shape(left)[1] for left in lefts)

    def traffic(self, state: State, group: Sequence[int]) -> float:
        """Seconds to read what a fused kernel reads, and to write what it makes."""
        read, made = _borders(self.terms, state, group)
        elements = sum(math.prod(self.terms.shape(number)) for number in (*read, *made))
        return elements * self.dtype.bytes / self.device.memory_bandwidth

    # kernels ---------------------------------------------------------------------------------------------------------

    def fused(self, state: State, group: Sequence[int]) -> float:
        """Elementwise operators and sums: one kernel, or as many as are best."""
        _, made = _borders(self.terms, state, group)
        return self.remembered((*made, "fused", *group), lambda: as_graph(self.terms, made, self.shapes, self.dtype, group))

    def products(self, products: Sequence[int]) -> float:
        """All matrix products of a program."""
        by_left: dict[int, list[int]] = {}
        total = 0.0
        for number in products:
            if self.terms[number].op == "matmul":
                by_left.setdefault(self.terms[number].operands[0], []).append(number)
            else:
                total += self.concatenated_sum(number)
        for together in by_left.values():
            alone = sum(self.product(*self.sizes(number)) for number in together)
            total += min(alone, self.concatenated(together)) if len(together) > 1 else alone
        return total

    def sizes(self, number: int) -> tuple[int, int, int]:
        """Rows, columns and k of a matrix product."""
        (rows, columns), term = self.terms.shape(number), self.terms[number]
        return rows, columns, sum(self.terms.shape(left)[1] for left in term.operands[: len(term.operands) // 2])

    def product(self, rows: int, columns: int, inner: int) -> float:
        """One library kernel."""

        def graph() -> Graph:
            builder = GraphBuilder(Level.KERNEL)
            left, right = builder.input("x", (rows, inner), self.dtype), builder.input("y", (inner, columns), self.dtype)
            return builder.build([builder.add("matmul", left, right)])

        return self.remembered(("product", rows, columns, inner), graph)

    def concatenated(self, together: Sequence[int]) -> float:
        """Products with one left factor as one: a copy of the right factors side by side, whose columns are read as they lie."""
        rows, _, inner = self.sizes(together[0])
        columns = sum(self.sizes(number)[1] for number in together)
        return self.copy(inner * columns) + self.product(rows, columns, inner)

    def concatenated_sum(self, number: int) -> float:
        """The sum of two products as one: copies of the left factors side by side, and of the right ones."""
        rows, columns, inner = self.sizes(number)
        return self.copy(rows * inner) + self.copy(inner * columns) + self.product(rows, columns, inner)

    def copy(self, elements: int) -> float:
        """A kernel that reads and writes so many elements."""
        return self.device.launch_seconds + 2 * elements * self.dtype.bytes / self.device.memory_bandwidth

    def remembered(self, key: object, graph: Callable[[], Graph]) -> float:
        """Predicted seconds of what a graph does."""
        if key not in self.known:
            found = search(graph(), self.device)
            self.known[key] = min((candidate.cost for candidate in found.candidates), default=math.inf)
        return self.known[key]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The best program that substitutions lead to: its outputs as formulas, and as a graph."""

    formulas: tuple[str, ...]
    graph: Graph
    seconds: float
    states: int
    """Programs that were looked at."""
    saturated: bool
    """Whether there are no others."""


def best_rewriting(program: Graph, device: Device, limit: int) -> Rewritten:
    """The best of the first `limit` programs that rewriting of a program of matrices and vectors leads to."""
    terms, tensors = RewriteTerms(), [node.output for node in program.inputs()]
    start = state_of(program, terms)
    costs = Costs(terms, device, [tensor.shape for tensor in tensors], tensors[0].dtype)
    saturation = RewriteSaturation(terms, start, costs.bound, limit)
    best, seconds, states = start, costs.seconds(start), 0
    for bound, state in saturation.states():
        states += 1
        if bound < seconds and (found := costs.seconds(state)) < seconds:
            best, seconds = state, found
    graph = as_graph(terms, best, costs.shapes, costs.dtype)
    return Rewritten(tuple(map(terms.formula, best)), graph, seconds, states, saturation.saturated)


# --- partition ---------------------------------------------------------------------------------------------------------


def kernels_of(terms: RewriteTerms, state: State) -> list[list[int]]:
    """The terms of each kernel of a program: products alone, others with those they feed, if no kernel then waits for itself."""
    group_of: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    needs: dict[int, set[int]] = {}
    """For each group all groups that it waits for."""
    for number in terms.reachable(state):
        term = terms[number]
        if term.op in _GIVEN:
            continue
        group_of[number], groups[number] = number, [number]
        read = {group_of[operand] for operand in term.operands if operand in group_of}
        needs[number] = read.union(*(needs[each] for each in read))
        if is_contraction(term.op):
            continue
        for other in sorted(read):
            own = group_of[number]
            if other != own and not is_contraction(terms[other].op) and not _between(other, own, needs):
                for member in groups[other]:
                    group_of[member] = own
                groups[own] = sorted(groups.pop(other) + groups[own])
                gone = needs.pop(other)
                needs = {each: (waits - {other}) | ({own} if other in waits else set()) for each, waits in needs.items()}
                needs[own] |= gone
                needs[own] -= {other, own}
                needs = {each: waits | needs[own] if own in waits else waits for each, waits in needs.items()}
    return list(groups.values())


def _between(first: int, last: int, needs: dict[int, set[int]]) -> bool:
    """Whether a third group waits for one and is waited for by the other."""
    return any(first in needs[each] for each in needs[last] if each not in (first, last))


def _borders(terms: RewriteTerms, state: State, group: Sequence[int]) -> tuple[list[int], list[int]]:
    """What a kernel reads, and which of its terms others read or the program returns."""
    inside = set(group)
    read = dict.fromkeys(operand for number in group for operand in terms[number].operands if operand not in inside)
    wanted = {operand for number in terms.reachable(state) if number not in inside for operand in terms[number].operands}
    made = [number for number in group if number in wanted or number in state]
    return [number for number in read if terms[number].op != "constant"], made


# --- graphs ------------------------------------------------------------------------------------------------------------


def as_graph(
    terms: RewriteTerms, made: Sequence[int], shapes: Sequence[Shape], dtype: DType, within: Sequence[int] | None = None
) -> Graph:
    """Terms as a program: the whole of it, or what one kernel does, whose inputs are then all terms that are not `within` it."""
    builder = GraphBuilder(Level.KERNEL)
    given = dict[int, Value]()
    if within is None:
        given = {number: _input(builder, terms, number, shapes, dtype) for number in _inputs(terms, len(shapes))}
    return _Written(terms, builder, shapes, dtype, None if within is None else set(within), given).run(made)


def _inputs(terms: RewriteTerms, count: int) -> list[int]:
    """The terms of the inputs, in their order."""
    found = {term.detail: number for number, term in enumerate(terms.terms) if term.op == "input"}
    return [found[number] for number in range(count)]


def _input(builder: GraphBuilder, terms: RewriteTerms, number: int, shapes: Sequence[Shape], dtype: DType) -> Value:
    """An input of a program as a matrix."""
    detail = terms[number].detail
    assert isinstance(detail, int)
    value = builder.input(f"x{detail}", shapes[detail], dtype)
    return value if len(shapes[detail]) == 2 else builder.add("reshape", value, shape=terms.shape(number))


@dataclass
class _Written:
    """Terms as operators of a graph under construction."""

    terms: RewriteTerms
    builder: GraphBuilder
    shapes: Sequence[Shape]
    dtype: DType
    within: set[int] | None
    values: dict[int, Value]

    def run(self, made: Sequence[int]) -> Graph:
        return self.builder.build([self.value(number) for number in made])

    def value(self, number: int) -> Value:
        if number not in self.values:
            self.values[number] = self.written(number)
        return self.values[number]

    def written(self, number: int) -> Value:
        term, add = self.terms[number], self.builder.add
        if term.op == "constant":
            assert term.detail is not None
            return self.builder.constant(term.detail, self.dtype)
        if term.op == "transpose":
            return add("transpose", self.value(term.operands[0]), permutation=(1, 0))
        if self.within is not None and number not in self.within:
            if term.op == "input":
                return _input(self.builder, self.terms, number, self.shapes, self.dtype)
            return self.builder.input(f"t{number}", term.shape, self.dtype)
        if term.op in ("add", "mul"):
            return self.combined(term.op, term.operands)
        operands = [self.value(operand) for operand in term.operands]
        match term.op:
            case "reciprocal":
                return add("div", self.builder.constant(1, self.dtype), operands[0])
            case "sum":
                assert isinstance(term.detail, int)
                size = self.terms.shape(term.operands[0])[term.detail]
                return add("sum", operands[0], dim=term.detail, size=size)
            case "concat_matmul":
                return add("add", add("matmul", operands[0], operands[2]), add("matmul", operands[1], operands[3]))
        return add(term.op, *operands)

    def combined(self, op: str, operands: Sequence[int]) -> Value:
        """A sum or product of several: differences and quotients where terms are taken off or divided by."""
        plain = [number for number in operands if self.opposite(op, number) is None]
        first, *others = plain or operands
        value = self.value(first)
        for number in others:
            value = self.builder.add(op, value, self.value(number))
        for number in operands if plain else ():
            other = self.opposite(op, number)
            if other is not None:
                value = self.builder.add("sub" if op == "add" else "div", value, self.value(other))
        return value

    def opposite(self, op: str, number: int) -> int | None:
        """What a term takes off in a sum, or divides by in a product."""
        term = self.terms[number]
        if op == "mul":
            return term.operands[0] if term.op == "reciprocal" and self.is_inside(number) else None
        minus = self.terms.constant(-1)
        if term.op != "mul" or minus not in term.operands or not self.is_inside(number):
            return None
        rest = list(term.operands)
        rest.remove(minus)
        return rest[0] if len(rest) == 1 else None

    def is_inside(self, number: int) -> bool:
        return self.within is None or number in self.within
