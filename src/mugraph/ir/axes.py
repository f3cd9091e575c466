"""Logical axes of a program: which dimensions of which tensors run together.

Dimensions are unified through the operators, and a reshape refines a dimension into a product of axes. In terms of
its axes a program is size-free: tensors are functions on sets of axes, views disappear, and every remaining operator is
elementwise, a contraction or a reduction. The search works on this form, so one search serves all sizes.

When one tensor is needed along two different axes at once (`x @ x.T`), the conflicting operand is read a second time
under fresh axes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from mugraph.errors import UnsupportedOperator
from mugraph.ir.definitions import spelled_out
from mugraph.ir.graph import Graph, Node, Shape, Value
from mugraph.ir.index_maps import Index, IndexMaps, Structure, contraction_maps, elementwise_maps
from mugraph.ir.ops import Call, is_reduction, is_scan, operator
from mugraph.ir.scalar import Scalar

Slots = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor, the axes it is the product of, slowest varying first (none for size 1)."""

AxisSet = frozenset[int]

AxisGroup = tuple[int, ...]
"""Axes that one dimension of a grid cuts together, of which a tensor has one at most."""


def cut_dim(slots: Slots, group: AxisGroup) -> int | None:
    """The dimension of a tensor in which one of some axes varies slowest: what equal parts of that axis cut; None without any."""
    return next((dim for dim, slot in enumerate(slots) if slot and slot[0] in group), None)


@dataclass(frozen=True, slots=True)
class Term:
    """One operation of a program in axis form.

    `op` is 'load' (`source` = index of the program input, `slots` = how its dimensions read as axes), 'constant'
    (`scalar`), 'contract' or 'sum' or 'max' (over `reduced`), a scan (along the one axis of `reduced`, which its result
    has), or an elementwise row of the operator table. `axes` are the axes the result depends on.
    """

    op: str
    inputs: tuple[int, ...]
    axes: AxisSet
    reduced: AxisSet = frozenset()
    source: int = -1
    slots: Slots = ()
    scalar: Scalar | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it is an exact number."""
        return self.op == "constant"  # by name: a term of this form, not a row


@dataclass(frozen=True)
class AxisProgram:
    """A program in axis form: `terms` in topological order, `outputs` as (term, slots), `sizes` of the axes.

    `finer` are further sets of axes that may be reduced together. The outputs of a `projective` program are wanted only up
    to a common factor per row, which its kernels choose and export (`mugraph.search.partition.splits`).
    """

    terms: tuple[Term, ...]
    outputs: tuple[tuple[int, Slots], ...]
    sizes: tuple[int, ...]
    finer: frozenset[AxisSet] = frozenset()
    projective: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.terms, self.outputs, self.sizes, self.finer, self.projective))

    def __reduce__(self) -> tuple[type[AxisProgram], tuple[object, ...]]:
        """What travels between processes: not the hash, because strings hash differently in each of them."""
        return AxisProgram, (self.terms, self.outputs, self.sizes, self.finer, self.projective)

    def loads(self) -> Iterator[tuple[int, Term]]:
        """The terms that read program inputs."""
        return ((index, term) for index, term in enumerate(self.terms) if term.op == "load")

    @property
    def reductions(self) -> frozenset[AxisSet]:
        """The sets of axes that some operation reduces together."""
        return self.finer | {term.reduced for term in self.terms if term.reduced and not is_scan(term.op)}

    @property
    def scanned(self) -> AxisSet:
        """The axes along which some scan runs: to it their positions are no equals."""
        return frozenset[int]().union(*(term.reduced for term in self.terms if is_scan(term.op)))

    @cached_property
    def structure(self) -> AxisProgram:
        """The program without its sizes, which is all that closures depend on."""
        return self.with_sizes((0,) * len(self.sizes))

    def with_sizes(self, sizes: tuple[int, ...]) -> AxisProgram:
        """The program with axes of other sizes."""
        return replace(self, sizes=sizes)


_MOST_COPIES = 256
"""Operators that are computed again under fresh axes: each may have operands of that kind, and chains of them double."""

_MOST_AXES = getattr(np, "MAXDIMS", 64) - 2
"""NumPy's dimensions, but for those of a for-loop and of parts: every axis is one of the tiny tensors that are compared."""


_OPS: dict[Structure, str | None] = {Structure.REDUCTION: None, Structure.VIEW: "view"}
"""What terms are called that are made of operators with such a structure, besides elementwise ones; None: as these are."""


class _Conflict(Exception):
    """One tensor would carry the same axis on two of its dimensions."""


Factors = tuple[int, ...]


@dataclass
class _Unifier:
    """Union-find over factors of dimensions; a factor may also be refined into a product of factors."""

    sizes: list[int] = field(default_factory=list)
    bound: dict[int, Factors] = field(default_factory=dict)

    def fresh(self, size: int) -> Factors:
        if size == 1:
            return ()
        self.sizes.append(size)
        return (len(self.sizes) - 1,)

    def resolve(self, factors: Factors) -> Factors:
        result: list[int] = []
        for factor in factors:
            result.extend(self.resolve(self.bound[factor]) if factor in self.bound else (factor,))
        return tuple(result)

    def unify(self, left: Factors, right: Factors, where: str) -> None:
        """Make two factor lists of equal product the same, refining where one boundary falls inside a factor."""
        pending, other = list(self.resolve(left)), list(self.resolve(right))
        while pending and other:
            a, b = pending.pop(0), other.pop(0)
            if a == b:
                continue
            if self.sizes[a] > self.sizes[b]:
                pending, other, a, b = other, pending, b, a
            if self.sizes[b] % self.sizes[a]:
                raise UnsupportedOperator(
                    f"{where}: a dimension of size {self.sizes[b]} does not regroup along {self.sizes[a]}; "
                    "keep reshapes to splits and merges of whole dimensions"
                )
            rest = self.fresh(self.sizes[b] // self.sizes[a])
            self.bound[b] = (a, *rest)
            other[:0] = rest
            pending, other = list(self.resolve(tuple(pending))), list(self.resolve(tuple(other)))

    def snapshot(self) -> tuple[int, dict[int, Factors]]:
        return len(self.sizes), dict(self.bound)

    def restore(self, state: tuple[int, dict[int, Factors]]) -> None:
        del self.sizes[state[0] :]
        self.bound = dict(state[1])


@dataclass
class _Draft:
    """A term whose axes are still factors; `dims` are the factors of each dimension, `support` those it depends on."""

    op: str
    inputs: tuple[int, ...]
    dims: tuple[Factors, ...]
    support: Factors
    reduced: Factors = ()
    source: int = -1
    scalar: Scalar | None = None


class _Analysis:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.unifier = _Unifier()
        self.drafts: list[_Draft] = []
        self.of_value: dict[Value, int] = {}
        self.checked = 0
        """How many factors were bound when all drafts were last seen to be without conflict."""
        self.input_index = {Value(i): n for n, i in enumerate(i for i, node in enumerate(graph.nodes) if node.is_input)}

    def run(self) -> AxisProgram:
        for index, node in enumerate(self.graph.nodes):
            self.of_value[Value(index)] = self.visit(Value(index), node)
        return self.finish()

    def visit(self, value: Value, node: Node) -> int:
        """Add the node on its operands' drafts; on a conflict, with a copy of one operand under fresh axes."""
        operands = [self.of_value[v] for v in node.inputs]
        state, count = self.unifier.snapshot(), len(self.drafts)
        attempts: list[int | None] = [None, *reversed(range(len(operands)))]
        for copied in attempts:
            try:
                chosen = list(operands)
                if copied is not None:
                    chosen[copied] = self.copy(node.inputs[copied])
                result = self.add(value, node, chosen)
                self.check_distinct(count)
                return result
            except _Conflict:
                self.unifier.restore(state)
                del self.drafts[count:]
        raise UnsupportedOperator(f"{node.op}: one operand would need the same axis on two dimensions (a diagonal)")

    def copy(self, value: Value) -> int:
        """The computation of `value` once more, from inputs read under fresh axes."""
        copied: list[int] = []
        stack = [(value, False)]
        while stack:
            value, operands_copied = stack.pop()
            node = self.graph.nodes[value.node]
            if operands_copied:
                first = len(copied) - len(node.inputs)
                copied[first:] = [self.add(value, node, copied[first:])]
                continue
            if len(self.drafts) > len(self.graph.nodes) + _MOST_COPIES:
                raise UnsupportedOperator(
                    f"{node.op}: tensors are needed along so many axes at once that more than {_MOST_COPIES} operators would be "
                    "computed again; search the program in parts"
                )
            stack.append((value, True))
            stack.extend((operand, False) for operand in reversed(node.inputs))
        return copied.pop()

    def check_distinct(self, new: int) -> None:
        """Raise _Conflict where a draft has an axis twice: one of those from `new` on, or any if axes were put together."""
        together = len(self.unifier.bound)
        for draft in self.drafts[new if together == self.checked else 0 :]:
            flat = [factor for dim in draft.dims for factor in self.unifier.resolve(dim)]
            if len(flat) != len(set(flat)):
                raise _Conflict
        self.checked = together

    def push(self, draft: _Draft) -> int:
        self.drafts.append(draft)
        return len(self.drafts) - 1

    def add(self, value: Value, node: Node, operands: Sequence[int]) -> int:
        row = operator(node.op)
        if node.is_input:
            factors = tuple(self.unifier.fresh(size) for size in node.output.shape)
            flat = tuple(f for dim in factors for f in dim)
            return self.push(_Draft("load", (), factors, flat, source=self.input_index[value]))
        if node.is_constant:
            scalar = node["value"]
            assert isinstance(scalar, Scalar)
            return self.push(_Draft("constant", (), (), (), scalar=scalar))
        shapes = tuple(self.graph.tensor(v).shape for v in node.inputs)
        if row.products:
            return self.contractions(row.products, shapes, operands, node)
        if row.structure is Structure.SCAN:
            draft = self.drafts[operands[0]]
            return self.push(_Draft(node.op, tuple(operands), draft.dims, draft.support, draft.dims[node.integer("dim")]))
        if node.body is not None or not (row.elementwise or row.structure in _OPS):
            raise UnsupportedOperator(f"operator {node.op!r} cannot stand in a program to be searched")
        maps = row.index_maps(Call(node.op, shapes, dict(node.attributes)), node.output.shape)
        where = f"{node.op} to {list(node.output.shape)}" if row.structure is Structure.VIEW else node.op
        return self.applied(_OPS.get(row.structure, node.op) or node.op, maps, operands, where)

    def contractions(
        self, products: Sequence[tuple[int, int]], shapes: Sequence[Shape], operands: Sequence[int], node: Node
    ) -> int:
        """The products of pairs of operands, added up."""
        shape, sums = node.output.shape, []
        for left, right in products:
            maps = contraction_maps([(0, 1)])([shapes[left], shapes[right]], shape)
            sums.append(self.applied("contract", maps, [operands[left], operands[right]], node.op))
        return functools.reduce(lambda a, b: self.applied("add", elementwise_maps([shape, shape], shape), [a, b], node.op), sums)

    def applied(self, op: str, maps: IndexMaps | None, operands: Sequence[int], where: str) -> int:
        """An operation at all points of its index maps, whose iterators become factors: those of operands put together."""
        assert maps is not None
        drafts = [self.drafts[i] for i in operands]
        factors: dict[int, Factors] = {}
        for draft, indices in zip(drafts, maps.operands, strict=True):
            for dim, index in zip(draft.dims, indices, strict=True):
                digits = maps.whole(index)
                if digits is None:
                    raise UnsupportedOperator(
                        f"{where}: a dimension of size {self.size(dim)} does not regroup; "
                        "keep reshapes to splits and merges of whole dimensions"
                    )
                if len(digits) == 1:
                    self.meet(factors, digits[0], dim, where)
                elif digits:
                    parts = tuple(f for digit in digits for f in self.factors(factors, digit, maps))
                    self.unifier.unify(dim, parts, where)
        dims = tuple(self.index_factors(factors, maps, index) for index in maps.result)
        reduced = tuple(f for iterator in sorted(maps.reduced) for f in factors.get(iterator, ()))
        return self.push(_Draft(op, tuple(operands), dims, _together(drafts), reduced=reduced))

    def size(self, dim: Factors) -> int:
        return math.prod(self.unifier.sizes[f] for f in self.unifier.resolve(dim))

    def meet(self, factors: dict[int, Factors], iterator: int, dim: Factors, where: str) -> None:
        """A dimension that an iterator runs over: the first gives it its factors, others are made the same."""
        if iterator in factors:
            self.unifier.unify(factors[iterator], dim, where)
        else:
            factors[iterator] = dim

    def factors(self, factors: dict[int, Factors], iterator: int, maps: IndexMaps) -> Factors:
        return factors.setdefault(iterator, self.unifier.fresh(maps.sizes[iterator]))

    def index_factors(self, factors: dict[int, Factors], maps: IndexMaps, index: Index) -> Factors:
        digits = maps.whole(index)
        assert digits is not None, "results are written at every position once"
        return tuple(f for digit in digits for f in self.factors(factors, digit, maps))

    def finish(self) -> AxisProgram:
        """Number the axes, drop views and what no output needs, and share equal terms."""
        roots = [self.of_value[value] for value in self.graph.outputs]
        terms, done = _Terms(self.unifier), dict[int, int]()
        for index in operands_first(roots, self.largest_first):
            draft = self.drafts[index]
            done[index] = terms.of_draft(draft, tuple(done[operand] for operand in draft.inputs))
        outputs = tuple((done[root], terms.slots(self.drafts[root].dims)) for root in roots)
        sizes = terms.sizes()
        if len(sizes) > _MOST_AXES:
            raise UnsupportedOperator(
                f"the program has dimensions of {len(sizes)} kinds, more than the {_MOST_AXES} that can be told apart; search it "
                "in parts"
            )
        return maxima_together(AxisProgram(tuple(terms.terms), outputs, sizes))

    def largest_first(self, index: int) -> list[int]:
        """The operands of a draft, those of most dimensions first: axes have the order of tensors that have all, and not that
        of a mask or a scale beside one, which would turn products round."""
        return sorted(self.drafts[index].inputs, key=lambda operand: -len(self.drafts[operand].dims))


@dataclass
class _Terms:
    """The terms of a program, equal ones once, and its axes, numbered as they are met."""

    unifier: _Unifier
    terms: list[Term] = field(default_factory=list)
    known: dict[Term, int] = field(default_factory=dict)
    number: dict[int, int] = field(default_factory=dict)
    """Of each factor its axis."""

    def axes(self, factors: Factors) -> tuple[int, ...]:
        """The axes of factors."""
        return tuple(self.number.setdefault(factor, len(self.number)) for factor in self.unifier.resolve(factors))

    def slots(self, dims: Iterable[Factors]) -> Slots:
        """The axes of each dimension."""
        return tuple(map(self.axes, dims))

    def sizes(self) -> tuple[int, ...]:
        """The size of every axis so far."""
        return tuple(self.unifier.sizes[factor] for factor in self.number)

    def intern(self, term: Term) -> int:
        """The number of a term, which is that of its equal if there is one."""
        if term not in self.known:
            self.known[term] = len(self.terms)
            self.terms.append(term)
        return self.known[term]

    def of_draft(self, draft: _Draft, inputs: tuple[int, ...]) -> int:
        """The term of an operation on other terms; of a view the term that it views."""
        if draft.op == "view":
            return inputs[0]
        if draft.op == "load":
            slots = self.slots(draft.dims)
            return self.intern(Term("load", (), frozenset(self.axes(draft.support)), source=draft.source, slots=slots))
        # by name: constants are terms without operands
        if draft.op == "constant":
            return self.intern(Term("constant", (), frozenset(), scalar=draft.scalar))
        depends = frozenset[int]().union(*(self.terms[i].axes for i in inputs))
        reduced = frozenset(self.axes(draft.reduced))
        if is_scan(draft.op):
            return self.of_scan(draft.op, inputs, depends, reduced)
        if reduced:
            return self.of_reduction(draft.op, inputs, depends, reduced)
        if is_reduction(draft.op):
            return inputs[0]
        return self.intern(Term("mul" if draft.op == "contract" else draft.op, inputs, depends))

    def of_scan(self, op: str, inputs: tuple[int, ...], depends: AxisSet, along: AxisSet) -> int:
        """A scan along one axis, which its operand depends on; along none, each element is its own."""
        if len(along) > 1:
            raise UnsupportedOperator(f"{op} along a dimension that is regrouped; keep reshapes apart from it")
        if not along <= depends:
            raise UnsupportedOperator(f"{op} along a dimension in which all elements are the same; multiply by positions")
        return self.intern(Term(op, inputs, depends, along)) if along else inputs[0]

    def of_reduction(self, op: str, inputs: tuple[int, ...], depends: AxisSet, reduced: AxisSet) -> int:
        """A reduction over axes of which the operand may be independent: those count as a factor (or vanish)."""
        sizes = self.sizes()
        absent = math.prod(sizes[axis] for axis in reduced - depends)
        partial = [i for i in inputs if not reduced <= self.terms[i].axes]
        if op == "contract" and partial:
            product = self.intern(Term("mul", inputs, depends))
            return self.of_reduction("sum", (product,), depends, reduced)
        result = inputs[0]
        if reduced & depends:
            result = self.intern(Term(op, inputs, depends - reduced, reduced & depends))
        # by name: of the reductions, a sum alone counts elements that are the same
        if op == "sum" and absent > 1:
            factor = self.intern(Term("constant", (), frozenset(), scalar=Scalar.of(absent)))
            result = self.intern(Term("mul", (result, factor), self.terms[result].axes))
        return result


def operands_first(roots: Iterable[int], operands: Callable[[int], Sequence[int]]) -> list[int]:
    """What `roots` are made from, and they themselves, each once and after its operands; however long the chains are."""
    placed: dict[int, None] = {}
    for root in roots:
        stack = [(root, iter(operands(root)))]
        while stack:
            index, rest = stack[-1]
            for operand in rest:
                if operand not in placed:
                    stack.append((operand, iter(operands(operand))))
                    break
            else:
                placed[index] = None
                stack.pop()
    return list(placed)


def _together(drafts: Sequence[_Draft]) -> Factors:
    """The factors that some draft depends on, each once: a tensor may be an operand of any number of others."""
    return tuple(dict.fromkeys(factor for draft in drafts for factor in draft.support))


def axis_program(graph: Graph) -> AxisProgram:
    """The axis form of a kernel graph of pre-defined operators.

    Raises UnsupportedOperator for reshapes that do not respect dimensions, for diagonals, where too much would have to be read
    again under other axes, and where there are too many axes.
    """
    return _Analysis(spelled_out(graph)).run()


def maxima_together(program: AxisProgram) -> AxisProgram:
    """The program with a maximum over all axes at once where nobody reads the maxima over some of them.

    No algebra needs these, and they can be taken in as many orders as there are axes: a pool's are three.
    """
    readers = Counter(itertools.chain((term for term, _ in program.outputs), *(term.inputs for term in program.terms)))
    terms: list[Term] = []
    for term in program.terms:
        # by name: sums over some axes at once are what products with the others are found from
        if term.op == "max" and terms[term.inputs[0]].op == "max" and readers[term.inputs[0]] == 1:
            inner = terms[term.inputs[0]]
            term = replace(term, inputs=inner.inputs, reduced=term.reduced | inner.reduced)
        terms.append(term)
    return pruned(replace(program, terms=tuple(terms)))


def pruned(program: AxisProgram) -> AxisProgram:
    """The program without terms its outputs do not need."""
    needed: set[int] = set()
    stack = [term for term, _ in program.outputs]
    while stack:
        index = stack.pop()
        if index not in needed:
            needed.add(index)
            stack.extend(program.terms[index].inputs)
    kept = sorted(needed)
    moved = {old: new for new, old in enumerate(kept)}
    terms = tuple(replace(program.terms[i], inputs=tuple(moved[j] for j in program.terms[i].inputs)) for i in kept)
    return replace(program, terms=terms, outputs=tuple((moved[term], slots) for term, slots in program.outputs))
