"""Choices at the least cost against trying all of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mugraph.errors import InvalidGraph
from mugraph.lower import choices
from mugraph.lower.choices import MOST_COSTS, Relation, choose, narrowed

Instance = tuple[dict[str, Sequence[int]], list[Relation[int]]]


def cost_of(choice: Mapping[str, int], relations: Sequence[Relation[int]]) -> float | None:
    """The cost of a choice, None where a relation forbids it."""
    costs = [relation.costs.get(tuple(choice[name] for name in relation.variables)) for relation in relations]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def first_of_the_cheapest(options: Mapping[str, Sequence[int]], relations: Sequence[Relation[int]]) -> dict[str, int] | None:
    """By trying all: in the order of the variables' names, the first one's options change last."""
    names = sorted(options)
    choices = [dict(zip(names, choice, strict=True)) for choice in itertools.product(*(options[name] for name in names))]
    allowed = [(cost, choice) for choice in choices if (cost := cost_of(choice, relations)) is not None]
    return min(allowed, key=lambda pair: pair[0])[1] if allowed else None


def random_instance(seed: int, variables: int, most_options: int, relations: int) -> Instance:
    generator = random.Random(seed)
    options: dict[str, Sequence[int]] = {f"t{n}": range(generator.randint(1, most_options)) for n in range(variables)}
    found = []
    for _ in range(relations):
        names = tuple(generator.sample(list(options), generator.choice((1, 2, 2, 3))))
        combinations = itertools.product(*(options[name] for name in names))
        found.append(Relation(names, {c: generator.randint(-3, 9) for c in combinations if generator.random() < 0.8}))
    return options, found


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_the_cheapest_or_there_is_none(seed: int) -> None:
    options, relations = random_instance(seed, variables=5, most_options=4, relations=5)
    first = first_of_the_cheapest(options, relations)
    if first is None:
        with pytest.raises(InvalidGraph, match="no choice of layouts"):
            choose(options, relations)
    else:
        assert choose(options, relations) == first


def test_instances_are_of_both_kinds_and_have_choices_of_equal_cost() -> None:
    instances = [random_instance(seed, 5, 4, 5) for seed in range(40)]
    firsts = [first_of_the_cheapest(*instance) for instance in instances]
    assert None in firsts
    assert sum(first is not None and first != last_of_the_cheapest(*i) for first, i in zip(firsts, instances, strict=True)) > 5


def last_of_the_cheapest(options: Mapping[str, Sequence[int]], relations: Sequence[Relation[int]]) -> dict[str, int] | None:
    return first_of_the_cheapest({name: tuple(reversed(offered)) for name, offered in options.items()}, relations)


@pytest.mark.parametrize("seed", range(10))
def test_the_order_in_which_variables_and_relations_come_decides_nothing(seed: int) -> None:
    """Nor the order of a relation's variables, nor which relation has how much of a cost."""
    options, relations = random_instance(seed, variables=9, most_options=5, relations=12)
    relations = [relation for relation in relations if len(relation.costs) > len(relations)]
    chosen, generator = choose(options, relations), random.Random(seed)
    for _ in range(5):
        names = generator.sample(list(options), len(options))
        parts = [part for relation in relations for part in in_two_parts(turned(relation, generator), generator)]
        generator.shuffle(parts)
        assert choose({name: options[name] for name in names}, parts) == chosen


def turned(relation: Relation[int], generator: random.Random) -> Relation[int]:
    """The relation with its variables in another order."""
    order = generator.sample(range(len(relation.variables)), len(relation.variables))
    costs = {tuple(combination[place] for place in order): cost for combination, cost in relation.costs.items()}
    return Relation(tuple(relation.variables[place] for place in order), costs)


def in_two_parts(relation: Relation[int], generator: random.Random) -> tuple[Relation[int], Relation[int]]:
    """Two relations that cost together what one does, in fractions that floating-point numbers have not exactly."""
    part = {combination: generator.randrange(10) / 10 for combination in relation.costs}
    rest = {combination: cost - part[combination] for combination, cost in relation.costs.items()}
    return replace(relation, costs=part), replace(relation, costs=rest)


def test_costs_that_differ_by_rounding_alone_are_equal() -> None:
    tenths = [Relation(("a",), {(0,): 0.1, (1,): 0.3}), Relation(("a",), {(0,): 0.2, (1,): 0.0})]
    assert 0.1 + 0.2 > 0.3
    assert choose({"a": [0, 1]}, tenths) == {"a": 0}
    assert choose({"a": [1, 0]}, tenths) == {"a": 1}


def test_what_is_free_everywhere_takes_the_first_options() -> None:
    assert choose({"b": "xy", "a": "zy"}, [Relation(("a", "b"), {("z", "y"): 1.0, ("y", "x"): 1.0})]) == {"a": "z", "b": "y"}
    assert choose({"b": "xy", "a": "zy"}, []) == {"a": "z", "b": "x"}
    assert choose({}, []) == {}


def test_combinations_of_options_that_are_not_offered_do_not_count() -> None:
    relations = [Relation(("a", "b"), {(0, 0): 5.0, (7, 0): 0.0, (0, 7): 0.0})]
    assert choose({"a": [0, 1], "b": [0, 1]}, relations) == {"a": 0, "b": 0}


def test_thirty_tensors_of_six_layouts_are_settled() -> None:
    """Costs as layouts have them: most pairs of equal layouts are free, conversions cost, a few tensors are fixed."""
    generator = random.Random(1)
    options: dict[str, Sequence[int]] = {f"t{n}": range(6) for n in range(30)}
    names = list(options)
    relations = [Relation((name,), {(generator.randrange(6),): 0.0}) for name in names[::10]]
    for _ in range(38):
        pair = tuple(generator.sample(names, 2))
        costs = {c: 0.0 if c[0] == c[1] else float(generator.randint(1, 9)) for c in itertools.product(range(6), repeat=2)}
        relations.append(Relation(pair, costs))
    chosen = choose(options, relations)
    found = cost_of(chosen, relations)
    assert found is not None
    for name in names:
        for other in options[name]:
            changed = cost_of(chosen | {name: other}, relations)
            assert changed is None or changed >= found


@pytest.mark.parametrize("seed", range(10))
def test_all_options_are_offered_where_few_variables_meet(seed: int) -> None:
    options, relations = random_instance(seed, variables=5, most_options=4, relations=5)
    assert narrowed(options, [relation.variables for relation in relations]) == options


def test_variables_that_all_meet_in_one_relation_are_offered_their_first_options() -> None:
    """More than an array of NumPy has dimensions."""
    options = {f"t{n}": range(8) for n in range(70)}
    offered = narrowed(options, [tuple(options)])
    assert MOST_COSTS / 2 < math.prod(map(len, offered.values())) <= MOST_COSTS
    assert all(first[0] == 0 for first in offered.values())
    costs = {combination: -float(sum(combination)) for combination in itertools.product(*offered.values())}
    assert choose(offered, [Relation(tuple(offered), costs)]) == {name: options[-1] for name, options in offered.items()}


def test_variables_that_meet_in_pairs_are_offered_what_small_tables_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "MOST_TOTALS", 1 << 8)
    options, generator = {f"t{n}": range(8) for n in range(12)}, random.Random(1)
    pairs = list(itertools.combinations(options, 2))
    offered = narrowed(options, pairs)
    assert 1 << 7 < math.prod(map(len, offered.values())) <= 1 << 8
    assert list(offered) == list(options)
    for _ in range(5):
        names = generator.sample(list(options), len(options))
        turned_pairs = [generator.sample(pair, 2) for pair in generator.sample(pairs, len(pairs))]
        assert narrowed({name: options[name] for name in names}, turned_pairs) == offered


def test_no_table_is_larger_than_it_was_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is offered to begin with: variables of one option decide nothing of the order."""
    monkeypatch.setattr(choices, "MOST_TOTALS", 64)
    sizes: list[int] = []
    spread = choices._Table.spread

    def measured(table: choices._Table, variables: Sequence[str]) -> Any:
        sizes.append(math.prod(len(offered[name]) for name in variables))
        return spread(table, variables)

    monkeypatch.setattr(choices._Table, "spread", measured)
    for seed in range(20):
        generator = random.Random(seed)
        options: dict[str, Sequence[int]] = {f"t{n}": range(generator.randint(1, 8)) for n in range(12)}
        pairs = [tuple(generator.sample(list(options), 2)) for _ in range(24)]
        offered = narrowed(options, pairs)
        every = [dict.fromkeys(itertools.product(*(offered[name] for name in pair)), 1.0) for pair in pairs]
        choose(offered, [Relation(pair, costs) for pair, costs in zip(pairs, every, strict=True)])
    assert 32 < max(sizes) <= 64
