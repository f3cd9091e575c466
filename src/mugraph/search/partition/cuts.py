"""All ways to cut one derivation into launches: which of its tensors are stored in device memory.

A cut is a set of stored tensors, and how they and the outputs are shared out among launches. A launch makes its tensors from the
inputs and the stored tensors that other launches made; what is not stored is computed again wherever it is needed. Cuts are
enumerated with their roofline, and all cuts that store some tensors are left out together where those alone cost too much.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mugraph.ir.axes import AxisProgram, Slots, Term, operands_first, pruned
from mugraph.ir.ops import OPERATORS
from mugraph.search.closure.context import bits
from mugraph.search.partition.lower_bounds import Roofline, elements

SHARED_OUT = 6
"""Up to so many stored tensors and outputs, all ways to share them out among launches are tried."""

_STORED = 4
"""Up to so many tensors are stored between however few launches, some of which then make several."""

Group = tuple[int, ...]
"""Terms that one launch makes."""

Launch = tuple[frozenset[object], frozenset[object]]
"""What a launch makes and what it reads."""

Key = frozenset[Launch]


@dataclass(frozen=True, slots=True)
class Cut:
    """A derivation, the `groups` of its terms that launches make, in order, and their roofline `floor` in seconds.

    Other launches read those that are `stored`: an output that is not is computed again. Cuts of several derivations have the
    same `key` if their launches make the same tensors from the same.
    """

    program: AxisProgram
    groups: tuple[Group, ...]
    floor: float
    key: Key = frozenset()
    stored: Group = ()

    def part(self, group: Group, stored: dict[int, tuple[int, Slots]]) -> AxisProgram:
        """The program of one launch; `stored` tells sources and dimensions of the terms that earlier ones made."""
        program = self.program
        loads = {
            index: Term("load", (), program.terms[index].axes, source=source, slots=slots)
            for index, (source, slots) in stored.items()
            if index not in group and not repeats(program, index, slots)
        }
        terms = tuple(loads.get(index, term) for index, term in enumerate(program.terms))
        return in_normal_order(pruned(replace(program, terms=terms, outputs=tuple(self.made_by(group)))))

    def made_by(self, group: Group) -> Iterator[tuple[int, Slots]]:
        """What a launch writes, and with which dimensions: outputs of the program, then tensors stored for other launches."""
        yield from ((term, slots) for term, slots in self.program.outputs if term in group)
        final = {term for term, _ in self.program.outputs}
        yield from ((term, stored_slots(self.program, term)) for term in group if term not in final)


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

    def operands_of(index: int) -> Sequence[int]:
        term = program.terms[index]
        return sorted(term.inputs, key=digests.__getitem__) if _commutes(term) else term.inputs

    for index in operands_first((term for term, _ in program.outputs), operands_of):
        placed = replace(program.terms[index], inputs=tuple(moved[i] for i in operands_of(index)))
        if placed not in known:
            known[placed] = len(terms)
            terms.append(placed)
        moved[index] = known[placed]
    outputs = tuple((moved[term], slots) for term, slots in program.outputs)
    return replace(program, terms=tuple(terms), outputs=outputs)


def _commutes(term: Term) -> bool:
    return term.op == "contract" or (term.op in OPERATORS and OPERATORS[term.op].commutative)


def most_stored(launches: int) -> int:
    """How many tensors cuts into up to so many launches store: a few, and one for each launch but the last."""
    return max(launches - 1, _STORED)


def stored_slots(program: AxisProgram, term: int) -> Slots:
    """Dimensions of a stored tensor: its axes."""
    return tuple((axis,) for axis in sorted(program.terms[term].axes))


def repeats(program: AxisProgram, term: int, slots: Slots) -> bool:
    """Whether a tensor of dimensions `slots` has axes that a term lacks: readers in the term's place would have them, too."""
    return any(axis not in program.terms[term].axes for slot in slots for axis in slot)


@dataclass
class CutSpace:
    """The cuts of one derivation whose outputs are `produces`; `pruned` counts what their rooflines excluded.

    `digests` tell what tensors its terms are, whatever derivation they are of; without them every term is a tensor of its own.
    Rooflines count its functions where it is `one_of_all` derivations, each of which is cut: launches are searched for all of
    theirs, and one with fewer functions is a launch of another derivation.
    """

    program: AxisProgram
    roofline: Roofline
    produces: tuple[int, ...]
    digests: Sequence[object] = ()
    one_of_all: bool = False
    pruned: int = 0
    _visited: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _floors: dict[tuple[Group, int, int], float] = field(default_factory=dict)
    _related: dict[Group, bool] = field(default_factory=dict)
    _launches: dict[tuple[Group, int], Launch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program, roofline = self.program, self.roofline
        dtypes = {
            term: roofline.tensor_of(source).dtype for (term, _), source in zip(program.outputs, self.produces, strict=True)
        }
        self.outputs = tuple(dtypes)
        self.digests = self.digests or range(len(program.terms))
        self.transfers = [
            roofline.reading(term.source)
            if term.op == "load"
            else roofline.transfer(elements(program, index), dtypes.get(index, roofline.dtype))
            for index, term in enumerate(program.terms)
        ]
        functions = [roofline.function(program, term) if self.one_of_all else 0.0 for term in program.terms]
        self.computes, self.computes_alone = (
            [roofline.compute(program, term, alone) + own for term, own in zip(program.terms, functions, strict=True)]
            for alone in (False, True)
        )
        self.computing = [term for term, seconds in enumerate(self.computes) if seconds]
        computed = sum(1 << index for index, term in enumerate(program.terms) if term.op != "load" and not term.is_constant)
        self.computed_operands = [_mask(term.inputs) & computed for term in program.terms]
        self.before = _ancestors(program)
        self.tensors = sum(1 << index for index, term in enumerate(program.terms) if not term.is_constant)

    def cuts(self, launches: int, bound: Callable[[], float], numbers: range | None = None) -> Iterator[Cut]:
        """Every cut into 2 to `launches` launches whose roofline is below `bound()` seconds when it is reached.

        Cuts store as many tensors as `numbers` says, by default up to `most_stored`.
        """
        compute = sum(self.computes_alone)
        numbers = range(most_stored(launches) + 1) if numbers is None else numbers
        for memory, stored in self.families(numbers.stop - 1):
            if self.roofline.seconds(memory, compute, 2) >= bound():
                self.pruned += 1
                return
            if len(stored) not in numbers:
                continue
            if self.roofline.seconds(memory, self.compute(stored), 2) >= bound():
                self.pruned += 1
                continue
            for groups in self.groupings(stored, launches, bound()):
                yield from self.cut(stored, groups, bound())

    def families(self, most: int) -> Iterator[tuple[float, Group]]:
        """The sets of up to `most` stored tensors, each with the seconds of traffic that all its cuts have: the least first.

        A set is followed by those with the next tensor added to it, and put in the place of its last one.
        """
        transfers = {point: self.transfers[point] * (1 if point in self.outputs else 2) for point in self.cut_points()}
        points = sorted(transfers, key=transfers.__getitem__)
        sources = {term.source: self.transfers[i] for i, term in self.program.loads()}
        least = sum(sources.values()) + sum(self.transfers[i] for i in self.outputs)
        families: list[tuple[float, tuple[int, ...]]] = [(least, ())]
        while families:
            memory, places = heapq.heappop(families)
            yield memory, tuple(points[place] for place in places)
            following = places[-1] + 1 if places else 0
            if following == len(points):
                continue
            others = [(*places[:-1], following)] if places else []
            for family in [*others, (*places, following)] if len(places) < most else others:
                heapq.heappush(families, (least + sum(transfers[points[place]] for place in family), family))

    def compute(self, stored: Group) -> float:
        """Seconds of doing each term once where nothing else is stored.

        A product is alone in a launch only if it is written, and everything that it multiplies is read.
        """
        read = _mask(stored)
        written = read | _mask(self.outputs)

        def alone(term: int) -> bool:
            return bool(written >> term & 1) and not self.computed_operands[term] & ~read

        return sum((self.computes_alone if alone(term) else self.computes)[term] for term in self.computing)

    def groupings(self, stored: Group, launches: int, bound: float) -> Iterator[tuple[Group, ...]]:
        """The ways to share out the stored tensors and the outputs among 2 to `launches` launches, below `bound` seconds.

        A launch makes several of them if it would read or compute something in common; where there are too many to try
        all ways, the outputs are made in one launch or in one each, and the stored tensors in one each.
        """
        mask, floors = _mask(stored), dict[Group, float]()

        def floor(group: Group) -> float:
            if group not in floors:
                together = group == self.outputs or self.related(group)
                floors[group] = self.floor(group, *self.visit(group, mask & ~_mask(group))) if together else math.inf
            return floors[group]

        made = tuple(dict.fromkeys((*stored, *self.outputs)))
        if len(made) <= SHARED_OUT:
            ways: Iterable[tuple[Group, ...]] = self.shared_out(made, launches, floor, bound)
        else:
            alone = tuple((term,) for term in stored if term not in self.outputs)
            apart = tuple((term,) for term in self.outputs)
            ways = dict.fromkeys(((*alone, self.outputs), (*alone, *apart)))
        return (groups for groups in ways if 1 < len(groups) <= launches)

    def shared_out(
        self, made: Group, launches: int, floor: Callable[[Group], float], bound: float
    ) -> Iterator[tuple[Group, ...]]:
        """All ways to divide terms among up to so many launches that are together below `bound` seconds."""
        if not made:
            yield ()
        elif launches:
            first, *others = made
            counts = range(len(made)) if launches > 1 else (len(others),)
            for beside in itertools.chain.from_iterable(itertools.combinations(others, count) for count in counts):
                group = (first, *beside)
                if (seconds := floor(group)) >= bound:
                    self.pruned += seconds < math.inf
                    continue
                rest = tuple(term for term in others if term not in beside)
                for groups in self.shared_out(rest, launches - 1, floor, bound - seconds):
                    yield (group, *groups)

    def related(self, group: Group) -> bool:
        """Whether the tensors of a launch hang together by what they are computed from."""
        if len(group) > 1 and group not in self._related:
            self._related[group] = self._hang_together(group)
        return len(group) == 1 or self._related[group]

    def _hang_together(self, group: Group) -> bool:
        rest = [self.before[term] | 1 << term for term in group]
        reached = rest.pop()
        while near := [mask for mask in rest if mask & reached & self.tensors]:
            rest = [mask for mask in rest if not mask & reached & self.tensors]
            for mask in near:
                reached |= mask
        return not rest

    def cut(self, stored: Group, groups: tuple[Group, ...], bound: float) -> Iterator[Cut]:
        """The cut with these launches, if other launches read each stored tensor and its roofline is low enough."""
        mask = _mask(stored)
        visits = {group: self.visit(group, mask & ~_mask(group)) for group in groups}
        reads, read = {group: loads for group, (_, loads) in visits.items()}, 0
        for loads in reads.values():
            read |= loads
        if mask & ~read or (order := _in_order(reads)) is None:
            return
        floor = sum(self.floor(group, *visit) for group, visit in visits.items())
        if floor >= bound:
            self.pruned += 1
        else:
            yield Cut(self.program, order, floor, self._key(reads), stored)

    def _key(self, reads: dict[Group, int]) -> Key:
        """What launches make, and what they read: program inputs by their dimensions, stored tensors by what they are."""
        return frozenset(self._launch(group, loads) for group, loads in reads.items())

    def _launch(self, group: Group, loads: int) -> Launch:
        if (group, loads) not in self._launches:
            made, read = (self.digests[term] for term in group), (self._read(term) for term in bits(loads))
            self._launches[group, loads] = frozenset(made), frozenset(read)
        return self._launches[group, loads]

    def _read(self, term: int) -> object:
        load = self.program.terms[term]
        return (load.source, load.slots) if load.op == "load" else self.digests[term]

    def cut_points(self) -> Group:
        """Terms worth reading back, smallest first: what is computed, depends on axes, and others are made from.

        A term that is only read to apply a function to each element is left out: its image has the same size, and stored in
        its place it leaves less to be done again. Not so a contraction, which a library can do if that is all of a launch.
        An output that repeats a term along other axes is not read in its place.
        """
        repeated = {term for term, slots in self.program.outputs if repeats(self.program, term, slots)}
        users: dict[int, list[Term]] = {}
        for term in self.program.terms:
            for operand in term.inputs:
                users.setdefault(operand, []).append(term)
        points = [
            index
            for index, term in enumerate(self.program.terms)
            if term.inputs and term.axes and index in users and index not in repeated
            if term.op == "contract" or len(users[index]) > 1 or not self.maps_elements(users[index][0])
        ]
        return tuple(sorted(points, key=self.transfers.__getitem__))

    def maps_elements(self, term: Term) -> bool:
        """Whether a term applies a function to each element of one tensor; constants may take part in it."""
        tensors = {operand for operand in term.inputs if not self.program.terms[operand].is_constant}
        return len(tensors) == 1 and not term.reduced

    def visit(self, group: Group, stored: int) -> tuple[int, int]:
        """Masks of the terms that a launch computes and of those it reads."""
        computed = read = 0
        for term in group:
            key = (term, stored & self.before[term])
            more_computed, more_read = self._visited.get(key) or self._visit(*key)
            computed, read = computed | more_computed, read | more_read
        return computed, read

    def _visit(self, term: int, stored: int) -> tuple[int, int]:
        """The masks of one term; those that it waits for are found first."""
        waiting = [(term, stored)]
        while waiting:
            term, stored = key = waiting[-1]
            inner = [
                (operand, stored & self.before[operand])
                for operand in self.program.terms[term].inputs
                if not (stored >> operand & 1 or self.program.terms[operand].op == "load")
            ]
            missing = [each for each in inner if each not in self._visited]
            if missing:
                waiting += missing
                continue
            computed, read = 1 << term, 0
            for operand in self.program.terms[term].inputs:
                if stored >> operand & 1 or self.program.terms[operand].op == "load":
                    read |= 1 << operand
            for each in inner:
                computed, read = computed | self._visited[each][0], read | self._visited[each][1]
            self._visited[key] = computed, read
            waiting.pop()
        return self._visited[key]

    def floor(self, group: Group, computed: int, read: int) -> float:
        """The roofline of one launch; an input that is read in several ways counts once."""
        key = (group, computed, read)
        if key not in self._floors:
            loads = self.program.terms
            tensors = {(loads[i].source, -1 if loads[i].op == "load" else i): i for i in bits(read)}
            memory = sum(self.transfers[i] for i in (*tensors.values(), *group))
            terms = [i for i in bits(computed) if not self.program.terms[i].is_constant]
            computes = self.computes_alone if len(terms) == 1 else self.computes
            self._floors[key] = self.roofline.seconds(memory, sum(computes[i] for i in terms))
        return self._floors[key]


@lru_cache(maxsize=1 << 12)
def _mask(terms: Group) -> int:
    return sum(1 << term for term in terms)


def _in_order(reads: dict[Group, int]) -> tuple[Group, ...] | None:
    """Launches in an order in which each reads what earlier ones made, as early as its terms allow; None if there is none."""
    waiting, order = sorted(reads, key=max), []
    while waiting:
        unmade = sum(map(_mask, waiting))
        ready = next((group for group in waiting if not reads[group] & unmade), None)
        if ready is None:
            return None
        waiting.remove(ready)
        order.append(ready)
    return tuple(order)


def _ancestors(program: AxisProgram) -> list[int]:
    """For each term the mask of the terms it depends on."""
    masks: list[int] = []
    for term in program.terms:
        mask = 0
        for operand in term.inputs:
            mask |= masks[operand] | 1 << operand
        masks.append(mask)
    return masks
