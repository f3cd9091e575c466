"""Choices at the least cost against trying all of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import pytest

from mugraph.errors import InvalidGraph
from mugraph.lower.choices import Relation, choose

pytest.importorskip("highspy", reason="choices are made by the HiGHS solver")

Instance = tuple[dict[str, Sequence[int]], list[Relation[int]]]


def cost_of(choice: Mapping[str, int], relations: Sequence[Relation[int]]) -> float | None:
    """The cost of a choice, None where a relation forbids it."""
    costs = [relation.costs.get(tuple(choice[name] for name in relation.variables)) for relation in relations]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def least_cost(options: Mapping[str, Sequence[int]], relations: Sequence[Relation[int]]) -> float | None:
    choices = (dict(zip(options, choice, strict=True)) for choice in itertools.product(*options.values()))
    return min((cost for choice in choices if (cost := cost_of(choice, relations)) is not None), default=None)


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
    least = least_cost(options, relations)
    if least is None:
        with pytest.raises(InvalidGraph, match="no choice of layouts"):
            choose(options, relations)
    else:
        assert cost_of(choose(options, relations), relations) == least


def test_instances_are_of_both_kinds() -> None:
    least = [least_cost(*random_instance(seed, 5, 4, 5)) for seed in range(40)]
    assert None in least
    assert len(set(least)) > 3


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
