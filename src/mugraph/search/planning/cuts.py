"""All ways to cut one derivation into launches: which of its tensors are stored in device memory.

A cut is a set of stored tensors. Each is made by a launch of its own from the inputs and the stored tensors nearest to it, and
the outputs are made by one more launch or by one each; what is not stored is computed again wherever it is needed. Cuts are
enumerated with their roofline, and all cuts that store some tensors are left out together where those alone cost too much.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from mugraph.ir.ops import OPERATORS
from mugraph.search.axes import AxisProgram, Slots, Term, pruned
from mugraph.search.closure.context import bits
from mugraph.search.planning.roofline import Roofline, elements

Group = tuple[int, ...]
"""Terms that one launch makes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A derivation, the `groups` of its terms that launches make, in order, and their roofline `floor` in seconds."""

    program: AxisProgram
    groups: tuple[Group, ...]
    floor: float

    def part(self, group: Group, stored: dict[int, tuple[int, Slots]]) -> AxisProgram:
        """The program of one launch; `stored` tells sources and dimensions of the terms that earlier ones made."""
        program = self.program
        loads = {
            index: Term("load", (), program.terms[index].axes, source=source, slots=slots)
            for index, (source, slots) in stored.items()
        }
        terms = tuple(loads.get(index, term) for index, term in enumerate(program.terms))
        final = tuple((term, slots) for term, slots in program.outputs if term in group)
        kept = tuple((term, stored_slots(program, term)) for term in group)
        return in_normal_order(pruned(replace(program, terms=terms, outputs=final or kept)))


def in_normal_order(program: AxisProgram) -> AxisProgram:
    """The program with its terms in an order that depends on what they compute alone, and equal terms once.

    Parts that different derivations have in common are then the same program, and searched once.
    """
    digests: list[str] = []
    for term in program.terms:
        operands = [digests[i] for i in term.inputs]
        operands = sorted(operands) if _commutes(term) else operands
        what = (term.op, sorted(term.axes), sorted(term.reduced), term.slots, str(term.scalar), operands)
        digests.append(hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest())
    terms: list[Term] = []
    known: dict[Term, int] = {}
    moved: dict[int, int] = {}

    def place(index: int) -> int:
        if index not in moved:
            term = program.terms[index]
            operands = sorted(term.inputs, key=digests.__getitem__) if _commutes(term) else term.inputs
            placed = replace(term, inputs=tuple(map(place, operands)))
            if placed not in known:
                known[placed] = len(terms)
                terms.append(placed)
            moved[index] = known[placed]
        return moved[index]

    outputs = tuple((place(term), slots) for term, slots in program.outputs)
    return replace(program, terms=tuple(terms), outputs=outputs)


def _commutes(term: Term) -> bool:
    return term.op == "contract" or (term.op in OPERATORS and OPERATORS[term.op].commutative)


def stored_slots(program: AxisProgram, term: int) -> Slots:
    """Dimensions of a stored tensor: its axes."""
    return tuple((axis,) for axis in sorted(program.terms[term].axes))


@dataclass
class CutSpace:
    """The cuts of one derivation whose outputs are `produces`; `pruned` counts what their rooflines excluded."""

    program: AxisProgram
    roofline: Roofline
    produces: tuple[int, ...]
    pruned: int = 0
    _visited: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _floors: dict[tuple[Group, int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program, roofline = self.program, self.roofline
        dtypes = {
            term: roofline.tensor_of(source).dtype for (term, _), source in zip(program.outputs, self.produces, strict=True)
        }
        self.outputs = tuple(dtypes)
        self.transfers = [
            roofline.reading(term.source)
            if term.op == "load"
            else roofline.transfer(elements(program, index), dtypes.get(index, roofline.dtype))
            for index, term in enumerate(program.terms)
        ]
        self.computes = [roofline.compute(program, term, alone=False) for term in program.terms]
        self.computes_alone = [roofline.compute(program, term, alone=True) for term in program.terms]
        self.before = _ancestors(program)

    def cuts(self, launches: int, bound: Callable[[], float]) -> Iterator[Cut]:
        """Every cut into 2 to `launches` launches whose roofline is below `bound()` seconds when it is reached."""
        points = self.cut_points()
        sources = {term.source: self.transfers[i] for i, term in self.program.loads()}
        least = sum(sources.values()) + sum(self.transfers[i] for i in self.outputs)
        compute = sum(self.computes_alone)
        for finals in self.final_groups():
            stack: list[tuple[Group, int, float]] = [((), 0, least)]
            while stack:
                stored, position, memory = stack.pop()
                count = len(stored) + len(finals)
                if count > launches:
                    continue
                if self.roofline.seconds(memory, compute, count) >= bound():
                    self.pruned += 1
                    continue
                if count > 1:
                    yield from self.cut(stored, finals, bound())
                for index, point in enumerate(points[position:], start=position + 1):
                    stack.append(((*stored, point), index, memory + 2 * self.transfers[point]))

    def cut(self, stored: Group, finals: tuple[Group, ...], bound: float) -> Iterator[Cut]:
        """The cut at `stored`, if each of these tensors is read and its roofline is low enough."""
        groups = tuple(sorted((*((term,) for term in stored), *finals), key=max))
        mask = sum(1 << term for term in stored)
        visits = [self.visit(group, mask) for group in groups]
        read = 0
        for _, loads in visits:
            read |= loads
        if mask & ~read:
            return
        floor = sum(self.floor(group, *visit) for group, visit in zip(groups, visits, strict=True))
        if floor >= bound:
            self.pruned += 1
        else:
            yield Cut(self.program, groups, floor)

    def cut_points(self) -> Group:
        """Terms worth storing, smallest first: what is computed, is no output, and depends on axes.

        A term that is only read to apply a function to each element is left out: its image has the same size, and stored in
        its place it leaves less to be done again. Not so a contraction, which a library can do if that is all of a launch.
        """
        users: dict[int, list[Term]] = {}
        for term in self.program.terms:
            for operand in term.inputs:
                users.setdefault(operand, []).append(term)
        points = [
            index
            for index, term in enumerate(self.program.terms)
            if term.op not in ("load", "constant") and term.axes and index not in self.outputs
            if term.op == "contract" or len(users[index]) > 1 or not self.maps_elements(users[index][0])
        ]
        return tuple(sorted(points, key=self.transfers.__getitem__))

    def maps_elements(self, term: Term) -> bool:
        """Whether a term applies a function to each element of one tensor; constants may take part in it."""
        tensors = {operand for operand in term.inputs if self.program.terms[operand].op != "constant"}
        return len(tensors) == 1 and not term.reduced

    def final_groups(self) -> list[tuple[Group, ...]]:
        """The outputs in one launch, and in a launch each."""
        together: tuple[Group, ...] = (self.outputs,)
        apart = tuple((term,) for term in self.outputs)
        return [together] if together == apart else [together, apart]

    def visit(self, group: Group, stored: int) -> tuple[int, int]:
        """Masks of the terms that a launch computes and of those it reads."""
        computed = read = 0
        for term in group:
            more_computed, more_read = self._visit(term, stored & self.before[term])
            computed, read = computed | more_computed, read | more_read
        return computed, read

    def _visit(self, term: int, stored: int) -> tuple[int, int]:
        known = self._visited.get((term, stored))
        if known is not None:
            return known
        computed, read = 1 << term, 0
        for operand in self.program.terms[term].inputs:
            if stored >> operand & 1 or self.program.terms[operand].op == "load":
                read |= 1 << operand
            else:
                more_computed, more_read = self._visit(operand, stored & self.before[operand])
                computed, read = computed | more_computed, read | more_read
        self._visited[term, stored] = computed, read
        return computed, read

    def floor(self, group: Group, computed: int, read: int) -> float:
        """The roofline of one launch; an input that is read in several ways counts once."""
        key = (group, computed, read)
        if key not in self._floors:
            loads = self.program.terms
            tensors = {(loads[i].source, -1 if loads[i].op == "load" else i): i for i in bits(read)}
            memory = sum(self.transfers[i] for i in (*tensors.values(), *group))
            terms = [i for i in bits(computed) if self.program.terms[i].op != "constant"]
            computes = self.computes_alone if len(terms) == 1 else self.computes
            self._floors[key] = self.roofline.seconds(memory, sum(computes[i] for i in terms))
        return self._floors[key]


def _ancestors(program: AxisProgram) -> list[int]:
    """For each term the mask of the terms it depends on."""
    masks: list[int] = []
    for term in program.terms:
        mask = 0
        for operand in term.inputs:
            mask |= masks[operand] | 1 << operand
        masks.append(mask)
    return masks
