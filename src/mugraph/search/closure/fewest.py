"""The fewest operators that make a set of tensors, and in how many ways: no dead ends where derivations are enumerated.

An enumeration that decides the largest needed tensor first never needs a decided one again. What is left to do then depends
on the tensors still needed alone, so their fewest operators, and the number of ways to go on, are found once for each such set
(docs/theory.md, "Listing derivations").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Nodes = int
"""A set of nodes as bits; the operands of a node have smaller numbers."""

_MOST_SETS = 200_000


class FewestOperators:
    """Lower bounds on the operators of derivations; exact up to the budget asked for, until too many sets are known."""

    def __init__(self, choices: Sequence[Sequence[tuple[Nodes, int]]]) -> None:
        """`choices[node]` are the ways to make a node: its operands, and 1 or 0 for an operator that counts or does not."""
        self._ways = [Counter(ways) for ways in choices]
        self._choices = [sorted(ways) for ways in self._ways]
        self._unavoidable: list[Nodes] = []
        for node, ways in enumerate(self._choices):
            self._unavoidable.append(self._common(node, ways))
        self._known: dict[Nodes, tuple[int, bool]] = {0: (0, True)}
        """A lower bound, and whether it is exact."""

    def _common(self, node: int, ways: Sequence[tuple[Nodes, int]]) -> Nodes:
        """The nodes that every derivation of a node makes by an operator that counts."""
        counts = all(count for _, count in ways)
        below = [self._made_for(operands) for operands, _ in ways]
        common = below[0] if below else 0
        for made in below:
            common &= made
        return common | (counts << node)

    def _made_for(self, needed: Nodes) -> Nodes:
        made = 0
        while needed:
            lowest = needed & -needed
            made |= self._unavoidable[lowest.bit_length() - 1]
            needed ^= lowest
        return made

    def within(self, needed: Nodes, budget: int) -> int:
        """The fewest operators that make the needed nodes if these are at most `budget`, else more than the budget."""
        known = self._known.get(needed)
        if known is None:
            known = self._known[needed] = self._made_for(needed).bit_count(), False
        fewest, exact = known
        if exact or fewest > budget or len(self._known) > _MOST_SETS:
            return fewest
        node = needed.bit_length() - 1
        rest = needed ^ 1 << node
        fewest = min(
            (count + self.within(rest | operands, budget - count) for operands, count in self._choices[node]),
            default=budget + 1,
        )
        self._known[needed] = fewest, fewest <= budget
        return fewest

    def completions(self, needed: Nodes, budget: int, most: int) -> int:
        """How many derivations of the needed nodes have at most `budget` operators; more than `most` where too many to count."""
        counted: dict[tuple[Nodes, int], int] = {}

        def count(needed: Nodes, budget: int) -> int:
            if self.within(needed, budget) > budget:
                return 0
            if not needed:
                return 1
            key = needed, budget
            if key not in counted:
                if len(counted) > most:
                    return most + 1
                node = needed.bit_length() - 1
                rest = needed ^ 1 << node
                ways = self._ways[node].items()
                counted[key] = sum(times * count(rest | operands, budget - spent) for (operands, spent), times in ways)
            return counted[key]

        return count(needed, budget)
