"""Choices that constrain each other, made together at the least cost: a 0/1 integer linear program (paper, section 6).

Each variable takes one of a few options. A relation ties variables together: it lists the combinations of their options
that are allowed, with the cost of each. The program has an unknown x in {0, 1} per option and y in [0, 1] per combination,

    minimize    sum of cost[r, c] * y[r, c]
    subject to  sum over o of x[v, o] = 1                                             for each variable v,
                sum over the combinations c of r with option o for v of y[r, c] = x[v, o]   for each v of r and each o,

and HiGHS solves it to proved optimality. Once x is integral, y has nothing left to choose.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mugraph.errors import InvalidGraph, TargetUnavailable

Option = TypeVar("Option", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Relation(Generic[Option]):
    """The allowed combinations of options of `variables`, in their order, and what each costs; no other is allowed."""

    variables: tuple[str, ...]
    costs: Mapping[tuple[Option, ...], float]


def choose(options: Mapping[str, Sequence[Option]], relations: Sequence[Relation[Option]]) -> dict[str, Option]:
    """One option per variable such that every relation allows it and the sum of their costs is least.

    Raises InvalidGraph when no choice satisfies all relations, TargetUnavailable without the solver.
    """
    free = [name for name in options if len(options[name]) > 1]
    if not free and all(tuple(options[v][0] for v in relation.variables) in relation.costs for relation in relations):
        return {name: options[name][0] for name in options}
    return _solve(options, relations)


def _solve(options: Mapping[str, Sequence[Option]], relations: Sequence[Relation[Option]]) -> dict[str, Option]:
    highs = _solver()
    chosen = {name: [highs.addBinary() for _ in options[name]] for name in options}
    for unknowns in chosen.values():
        highs.addConstr(sum(unknowns) == 1)
    for relation in relations:
        allowed = [(c, cost) for c, cost in relation.costs.items() if _possible(c, relation, options)]
        combinations = [(c, highs.addVariable(lb=0, ub=1, obj=cost)) for c, cost in allowed]
        for position, name in enumerate(relation.variables):
            for option, unknown in zip(options[name], chosen[name], strict=True):
                agreeing = [y for combination, y in combinations if combination[position] == option]
                highs.addConstr(sum(agreeing) - unknown == 0)
    highs.minimize()
    if highs.modelStatusToString(highs.getModelStatus()) != "Optimal":
        names = ", ".join(sorted({name for relation in relations for name in relation.variables}))
        raise InvalidGraph(f"no choice of layouts satisfies every statement that touches {names}")
    values = {name: [highs.variableValue(unknown) for unknown in unknowns] for name, unknowns in chosen.items()}
    return {name: options[name][max(range(len(solution)), key=solution.__getitem__)] for name, solution in values.items()}


def _possible(combination: tuple[Option, ...], relation: Relation[Option], options: Mapping[str, Sequence[Option]]) -> bool:
    return all(option in options[name] for option, name in zip(combination, relation.variables, strict=True))


def _solver() -> Any:
    try:
        import highspy
    except ImportError:
        raise TargetUnavailable("choosing layouts needs the HiGHS solver; run `pip install 'mugraph[cuda]'`") from None
    untyped: Any = highspy
    highs = untyped.Highs()
    highs.silent()
    return highs
