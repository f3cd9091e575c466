"""Which neighbouring steps of a graph that is cut should be one program, by what they are predicted to take.

Programs, linear layers of the library and calls that PyTorch makes are candidates together where they are connected. Of all
choices of candidates that share no step and do not wait for each other, the one that is predicted to save the most seconds is
found by dynamic programming along an order in which the steps can run. What decides in the end is what kernels take
(`mugraph.pieces.joined_pieces`).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from torch import fx

from mugraph.frontend.partitioning.library import LibraryKernel
from mugraph.frontend.partitioning.partition import LARGEST, Left, Partition, Piece
from mugraph.frontend.partitioning.splice import Step, in_order, nodes_of
from mugraph.frontend.rewriting.node_traits import Traits
from mugraph.pieces.predicted_cost import PredictedCost

WORTH = 0.1
"""The part of their time that steps must be predicted to save together: kernels that save less are hardly told from others."""
DECISIVE = 0.5
"""The part from which on the steps themselves are not searched where kernels run the larger program."""
_UNITS = 4
"""Steps that are joined at once; what was joined may be joined with others again."""
_CALLS = 48
"""Calls in one program: closures of more are seldom saturated."""
_TRIED = 32
"""Connected groups that are looked at for each step that they begin with."""
_CHOICES = 16
"""Choices of candidates that are kept along the way."""

Group = tuple[int, ...]
"""Steps that would be one program, by number, in order."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Steps that stay together in any case: one that computes something, and the views that it alone reads."""

    steps: tuple[Step, ...]
    nodes: tuple[fx.Node, ...]
    """Their calls, in the order of the graph."""
    seconds: float
    joinable: bool
    products: int
    """How many there are in its calls."""


@dataclass(frozen=True, slots=True)
class Join:
    """Units, by number, that would be one program, and the seconds that this is predicted to save."""

    group: Group
    saving: float


class Choice(NamedTuple):
    """Candidates that go together, and what they save."""

    saving: float
    joins: tuple[Join, ...]


@dataclass(frozen=True)
class Joining:
    """The steps of a graph that is cut, and what they are predicted to take."""

    units: Sequence[Unit]
    """In an order in which they can run."""
    cost: PredictedCost
    position: Mapping[fx.Node, int]
    """Of calls in the graph."""
    savings: dict[Group, float] = field(default_factory=dict)
    """What groups are predicted to save, so far."""

    @classmethod
    def of(cls, graph: fx.Graph, whole: Partition, cost: PredictedCost) -> Joining:
        """The steps of a partition of a graph."""
        position = {node: index for index, node in enumerate(graph.nodes)}
        steps = in_order(graph, whole)
        members: dict[int, list[Step]] = {}
        for number, home in enumerate(_homes(steps, whole.traits)):
            members.setdefault(home, []).append(steps[number])
        units = [_unit(members[home], steps[home], cost, position) for home in sorted(members)]
        return cls(units, cost, position)

    @cached_property
    def seconds(self) -> float:
        """What a call of the graph is predicted to take, those of its calls included that no program can express."""
        return sum(unit.seconds if unit.joinable else self.cost.of_calls(unit.nodes) for unit in self.units)

    @cached_property
    def readers(self) -> list[list[int]]:
        """The units that read what each makes, in order."""
        home = {node: number for number, unit in enumerate(self.units) for node in unit.nodes}
        found = [{home[user] for node in unit.nodes for user in node.users if user in home} for unit in self.units]
        return [sorted(readers - {number}) for number, readers in enumerate(found)]

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """The units that each reads or is read by, in order."""
        found = [set(readers) for readers in self.readers]
        for number, readers in enumerate(self.readers):
            for reader in readers:
                found[reader].add(number)
        return [sorted(each) for each in found]

    @cached_property
    def connected(self) -> list[Group]:
        """Connected groups of units that may be one program."""
        return [group for first in range(len(self.units)) for group in self._connected(first)]

    def steps_of(self, group: Group) -> tuple[Step, ...]:
        """The steps of units, in order."""
        return tuple(step for number in group for step in self.units[number].steps)

    def nodes_of(self, group: Group) -> tuple[fx.Node, ...]:
        """The calls of units, in the order of the graph."""
        nodes = (node for number in group for node in self.units[number].nodes)
        return tuple(sorted(nodes, key=self.position.__getitem__))

    def candidates(self, refused: Collection[frozenset[fx.Node]] = (), worth: float = WORTH) -> list[Join]:
        """Groups that are predicted to save more than that part of their time, and are none of the `refused` calls."""
        found = (self._join(group, worth) for group in self.connected)
        return [join for join in found if join is not None and frozenset(self.nodes_of(join.group)) not in refused]

    def best(self, candidates: Sequence[Join]) -> list[Join]:
        """Of the candidates those that together save the most, share no unit, and do not wait for each other."""
        beginning: dict[int, list[Join]] = {}
        for join in candidates:
            beginning.setdefault(join.group[0], []).append(join)
        choices: dict[frozenset[int], Choice] = {frozenset(): Choice(0.0, ())}
        for first in range(len(self.units)):
            following: dict[frozenset[int], Choice] = {}
            for taken, choice in choices.items():
                for extended, more in self._extended(taken, choice, beginning.get(first, ())):
                    known = following.get(extended - {first})
                    if known is None or more.saving > known.saving:
                        following[extended - {first}] = more
            choices = dict(sorted(following.items(), key=lambda item: -item[1].saving)[:_CHOICES])
        return list(max(choices.values(), key=lambda choice: choice.saving).joins)

    def _extended(self, taken: frozenset[int], choice: Choice, joins: Sequence[Join]) -> Iterator[tuple[frozenset[int], Choice]]:
        """The choice without and with each of some candidates, and the units that are taken then."""
        yield taken, choice
        for join in joins:
            groups = [*(each.group for each in choice.joins), join.group]
            if taken.isdisjoint(join.group) and self.run_in_order(groups):
                yield taken | set(join.group), Choice(choice.saving + join.saving, (*choice.joins, join))

    def run_in_order(self, groups: Sequence[Group]) -> bool:
        """Whether units can run one after the other where those of each group are one, given that they can without the last."""
        group_of = {number: group for group in groups for number in group}
        last = groups[-1]
        seen, ahead = set(last), [reader for number in last for reader in self.readers[number] if reader not in last]
        furthest = max(number for group in groups if group[-1] > last[0] for number in group)
        while ahead:
            number = ahead.pop()
            if number in last:
                return False
            if number in seen or number > furthest:
                continue
            together = group_of.get(number, (number,))
            seen.update(together)
            ahead += [reader for member in together for reader in self.readers[member] if reader not in together]
        return True

    def _connected(self, first: int) -> Iterator[Group]:
        """Connected groups of units from `first` on, small ones first, that may be one program."""
        if not self.units[first].joinable:
            return
        groups: list[Group] = [(first,)]
        seen: set[Group] = {(first,)}
        for group in groups:
            for number in {each: None for member in group for each in self.neighbours[member]}:
                larger = tuple(sorted({*group, number}))
                if number < first or larger in seen or len(seen) > _TRIED or not self._fits(larger):
                    continue
                seen.add(larger)
                if len(larger) < _UNITS:
                    groups.append(larger)
                if self.run_in_order([larger]):
                    yield larger

    def _fits(self, group: Group) -> bool:
        """Whether units may be one program, and it is not too large."""
        units = [self.units[number] for number in group]
        few = sum(unit.products for unit in units) <= LARGEST and sum(len(unit.nodes) for unit in units) <= _CALLS
        return few and all(unit.joinable for unit in units)

    def _join(self, group: Group, worth: float) -> Join | None:
        """A group with what it saves, unless that is too little, or one of its units adds too little to what the others save."""
        saving = self._saving(group)
        if saving <= worth * sum(self.units[number].seconds for number in group):
            return None
        without = ((number, tuple(other for other in group if other != number)) for number in group if len(group) > 2)
        adds = (saving - self._saving(others) > worth * self.units[number].seconds for number, others in without)
        return Join(group, saving) if all(adds) else None

    def _saving(self, group: Group) -> float:
        """Seconds that one program is predicted to save."""
        if group not in self.savings:
            apart = sum(self.units[number].seconds for number in group)
            self.savings[group] = apart - self.cost.of_program(self.nodes_of(group))
        return self.savings[group]


def _homes(steps: Sequence[Step], traits: Mapping[fx.Node, Traits]) -> list[int]:
    """The step that each stays with: one of several results with the call that gives them, a view with its only reader."""
    home = {node: number for number, step in enumerate(steps) for node in nodes_of(step)}
    homes = list(range(len(steps)))
    for number, step in reversed([*enumerate(steps)]):
        if not isinstance(step, Left) or not _may_join(step, traits):
            continue
        if step.node.target is operator.getitem:
            homes[number] = home[step.node.all_input_nodes[0]]
        elif not traits[step.node].computes:
            readers = {home.get(user) for user in step.node.users}
            (only,) = readers if len(readers) == 1 else (None,)
            if only is not None and _may_join(steps[only], traits):
                homes[number] = only
        home[step.node] = homes[number]
    return homes


def _may_join(step: Step, traits: Mapping[fx.Node, Traits]) -> bool:
    """Whether a step can be part of a larger program: no images or experts of the library, and nothing that computes something of
    parts of tensors, as convolutions do; calls that only take parts or put them together can."""
    if isinstance(step, Piece) and (step.images or step.image_results):
        return False
    if isinstance(step, LibraryKernel) and (step.geometry is not None or step.ends is not None):
        return False
    return all(node in traits and (traits[node].moves or not traits[node].parts) for node in nodes_of(step))


def _unit(steps: Sequence[Step], main: Step, cost: PredictedCost, position: Mapping[fx.Node, int]) -> Unit:
    nodes = sorted((node for step in steps for node in nodes_of(step)), key=position.__getitem__)
    joinable = all(_may_join(step, cost.traits) for step in steps)
    seconds = 0.0 if not joinable else cost.of_program(nodes) if isinstance(main, Piece) else _of_library(main, nodes, cost)
    products = sum(len(cost.traits[node].contractions) for node in nodes if node in cost.traits)
    return Unit(tuple(steps), tuple(nodes), seconds, joinable, products)


def _of_library(step: Step, nodes: Sequence[fx.Node], cost: PredictedCost) -> float:
    """Seconds of PyTorch's calls, or of a library's kernel, which takes what follows a product along."""
    return cost.of_calls([step.product] if isinstance(step, LibraryKernel) else nodes)
