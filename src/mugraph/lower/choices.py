"""Choices that constrain each other, made together at the least cost: a 0/1 integer linear program (paper, section 6).

Each variable takes one of a few options. A relation ties variables together: it lists the combinations of their options
that are allowed, with the cost of each. Of all choices that every relation allows, the one with the least sum of costs is taken.

What is printed follows from the choice, and a saved muGraph must be printed alike everywhere, so there is no doubt about which
one it is: costs are whole numbers, and of choices that cost the same the first is taken, by the names of the variables and the
order of their options. No two choices have the same *total*, their cost times the number of choices and their place among all.

The least total is found by eliminating one variable after the other: all tables that speak of it are added up, and
become a table of the other variables, of the least that it takes with each combination of them. Relations of most kernels speak
of few variables each, as a statement has few tiles, so tables stay small: a solver of integer programs takes longer. Where many
variables meet, tables would take all memory, so `narrowed` offers fewer options before costs are looked at.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mugraph.errors import InvalidGraph

Option = TypeVar("Option", bound=Hashable)

_UNIT = 1e-6
"""Costs are rounded to multiples of this: those of layouts are sums of wavefronts and of a ten-thousandth for an element."""
MOST_COSTS = 1 << 10
"""Combinations of options of one relation: the cost of each takes a tenth of a millisecond, more where tiles are many."""
MOST_TOTALS = 1 << 16
"""Entries of a table that is added up: milliseconds, and megabytes."""


@dataclass(frozen=True, slots=True)
class Relation(Generic[Option]):
    """The allowed combinations of options of `variables`, in their order, and what each costs; no other is allowed."""

    variables: tuple[str, ...]
    costs: Mapping[tuple[Option, ...], float]


def narrowed(options: Mapping[str, Sequence[Option]], meeting: Iterable[Collection[str]]) -> dict[str, Sequence[Option]]:
    """The options, but only the first ones of some variables where too many meet in relations, so that tables stay small.

    `meeting` are the variables of each relation. Of those in a table that is too large, the one with most options loses the later
    half of them. The order in which variables and relations come decides nothing.
    """
    offered = {name: options[name] for name in sorted(options)}
    relations = sorted({tuple(sorted(names)) for names in meeting})
    while too_many := _too_many({name: len(offered[name]) for name in offered}, relations):
        widest = max(too_many, key=lambda name: len(offered[name]))
        offered[widest] = offered[widest][: -(-len(offered[widest]) // 2)]
    return {name: offered[name] for name in options}


def _too_many(sizes: Mapping[str, int], relations: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The variables of a relation, or of a table, with too many combinations; () where there is none."""
    tables = ((MOST_TOTALS, (*others, name)) for name, others in _eliminations(sizes, relations))
    for most, names in itertools.chain(((MOST_COSTS, names) for names in relations), tables):
        if math.prod(sizes[name] for name in names) > most:
            return names
    return ()


def choose(options: Mapping[str, Sequence[Option]], relations: Sequence[Relation[Option]]) -> dict[str, Option]:
    """One option per variable such that every relation allows it and the sum of their costs is least.

    It depends on nothing but the options of each variable, in their order, and the sums of what relations cost. Raises
    InvalidGraph when no choice satisfies all relations.
    """
    places = _least({name: len(options[name]) for name in options}, _tables(options, relations))
    chosen = {name: options[name][places[name]] for name in options}
    if not all(tuple(chosen[name] for name in relation.variables) in relation.costs for relation in relations):
        names = ", ".join(sorted({name for relation in relations for name in relation.variables}))
        raise InvalidGraph(f"no choice of layouts satisfies every statement that touches {names}")
    return chosen


@dataclass(frozen=True, slots=True)
class _Table:
    """Totals of a part of all relations, a Python integer for each combination of the options of some variables."""

    variables: tuple[str, ...]
    totals: NDArray[Any]
    """An axis for each variable, of the length of its options."""

    def spread(self, variables: Sequence[str]) -> NDArray[Any]:
        """The totals with an axis for each of these variables, of length 1 for those that they do not depend on."""
        own = [name for name in variables if name in self.variables]
        totals = self.totals.transpose([self.variables.index(name) for name in own])
        return np.expand_dims(totals, [axis for axis, name in enumerate(variables) if name not in self.variables])


def _tables(options: Mapping[str, Sequence[Option]], relations: Sequence[Relation[Option]]) -> list[_Table]:
    """The places of choices, as a table for each variable that has one, and the relations' costs; all totals are different."""
    tables, choices = [], 1
    free = {name for name in options if len(options[name]) > 1}
    for name in sorted(free, reverse=True):
        tables.append(_Table((name,), np.array([choices * place for place in range(len(options[name]))], dtype=object)))
        choices *= len(options[name])
    costs = [{combination: round(cost / _UNIT) for combination, cost in relation.costs.items()} for relation in relations]
    forbidden = 1 + 2 * sum(max(map(abs, cost.values()), default=0) for cost in costs)  # more than choices differ by otherwise
    for relation, cost in zip(relations, costs, strict=True):
        places = [{option: place for place, option in enumerate(options[name])} for name in relation.variables]
        axes = [axis for axis, name in enumerate(relation.variables) if name in free]
        totals = np.full([len(places[axis]) for axis in axes], forbidden * choices, dtype=object)
        for combination, units in cost.items():
            if all(option in known for option, known in zip(combination, places, strict=True)):
                totals[tuple(places[axis][combination[axis]] for axis in axes)] = units * choices
        tables.append(_Table(tuple(relation.variables[axis] for axis in axes), totals))
    return tables


def _least(sizes: Mapping[str, int], tables: Sequence[_Table]) -> dict[str, int]:
    """The place of each variable's option in the choice of the least total; `sizes` are how many options they have."""
    eliminated = []
    for name, others in _eliminations(sizes, [table.variables for table in tables]):
        of_it = [table for table in tables if name in table.variables]
        totals = functools.reduce(np.add, [table.spread((*others, name)) for table in of_it])
        eliminated.append((name, others, totals.argmin(axis=-1)))
        least = np.asarray(np.minimum.reduce(totals, axis=-1), dtype=object)
        tables = [*(table for table in tables if name not in table.variables), _Table(others, least)]
    places = dict.fromkeys(sizes, 0)
    for name, others, best in reversed(eliminated):
        places[name] = int(best[tuple(places[other] for other in others)])
    return places


def _eliminations(sizes: Mapping[str, int], tables: Sequence[Collection[str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The order in which variables of several options are eliminated, each with those that tables speak of beside it by then.

    `tables` are the variables of each. The next one is always that whose elimination leaves the smallest table.
    """
    beside: dict[str, set[str]] = {name: set() for name in sizes if sizes[name] > 1}
    for names in tables:
        free = beside.keys() & names
        for name in free:
            beside[name] |= free - {name}
    while beside:
        name = min(beside, key=lambda one: (math.prod(sizes[other] for other in beside[one]), one))
        others = beside.pop(name)
        yield name, tuple(sorted(others))
        for other in others:
            beside[other] = (beside[other] | others) - {name, other}
