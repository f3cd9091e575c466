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
        waiting = [(needed, budget)]
        while waiting:
            nodes, left = waiting[-1]
            if self._settled(nodes, left):
                waiting.pop()
                continue
            node = nodes.bit_length() - 1
            rest = nodes ^ 1 << node
            fewest, missing = left + 1, False
            for operands, count in self._choices[node]:
                if self._settled(rest | operands, left - count):
                    fewest = min(fewest, count + self._known[rest | operands][0])
                else:
                    waiting.append((rest | operands, left - count))
                    missing = True
            if not missing:
                waiting.pop()
                self._known[nodes] = fewest, fewest <= left
        return self._known[needed][0]

    def _settled(self, needed: Nodes, budget: int) -> bool:
        """Whether what is known of the needed nodes is exact, or above the budget; or all that will be known."""
        known = self._known.get(needed)
        if known is None:
            known = self._known[needed] = self._made_for(needed).bit_count(), False
        fewest, exact = known
        return exact or fewest > budget or len(self._known) > _MOST_SETS

    def completions(self, needed: Nodes, budget: int, most: int) -> int:
        """How many derivations of the needed nodes have at most `budget` operators; more than `most` where too many to count."""
        counted: dict[tuple[Nodes, int], int] = {}

        def known(key: tuple[Nodes, int]) -> int | None:
            if self.within(*key) > key[1]:
                return 0
            return counted.get(key) if key[0] else 1

        waiting = [(needed, budget)]
        while waiting:
            nodes, left = key = waiting[-1]
            if known(key) is None:
                node = nodes.bit_length() - 1
                rest = nodes ^ 1 << node
                total = 0
                for (operands, spent), times in self._ways[node].items():
                    completions = known(next_key := (rest | operands, left - spent))
                    if completions is None:
                        if len(counted) > most:
                            return most + 1
                        waiting.append(next_key)
                        break
                    total += times * completions
                else:
                    counted[key] = total
                    waiting.pop()
            else:
                waiting.pop()
        return known((needed, budget)) or 0
