"""Levels of the calls of a torch graph, which never fall along a path: calls of one level may be a piece.

A level rises where a path enters or leaves what programs can express, where a contraction needs the whole of an earlier one, and
where a second exponential would follow a first. Calls are then moved to where the fewest bytes cross from level to level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import fx

from mugraph.frontend.operators.torch_casts import draws_random_numbers
from mugraph.frontend.rewriting.node_traits import Contraction, Traits, alone, bytes_of

_FEW_PARTS = 2
"""Parts of a product that a piece computes one by one, as gated linear units have two."""

Path = tuple[frozenset[Contraction], int]
"""What the paths to a call pass on its level: contractions, and at most how many exponentials."""


def levels_of(calls: Sequence[fx.Node], traits: Mapping[fx.Node, Traits]) -> dict[fx.Node, int]:
    """The level of every call, given in topological order; `traits` are those of the calls that programs can express."""
    levels = _Levels(calls, traits)
    levels.begin()
    levels.postpone(levels.movable)
    views = [node for node in levels.movable if not (traits[node].computes or traits[node].looks_up)]
    levels.advance_where_it_saves_traffic(views)
    levels.postpone(views)
    return levels.at


class _Levels:
    """Levels while they are being decided."""

    def __init__(self, calls: Sequence[fx.Node], traits: Mapping[fx.Node, Traits]) -> None:
        self.calls, self.traits = calls, traits
        self.at: dict[fx.Node, int] = {}
        self.movable = [node for node in calls if node in traits and not traits[node].pinned and alone(node)]

    def begin(self) -> None:
        """As early as possible; where parts begin a level, they stay."""
        paths: dict[fx.Node, Path] = {}
        staying: set[fx.Node] = set()
        random = 0
        for node in self.calls:
            level = self._earliest(node)
            if node in self.traits:
                path = self._path(node, level, paths)
                if path is None:
                    staying.update([node] * self.traits[node].moves)
                    level, path = level + 1, (frozenset(self.traits[node].contractions), self.traits[node].exponentials)
                paths[node] = path
            elif draws_random_numbers(node):  # two such calls never change places
                level = random = max(level, random)
            self.at[node] = level
        self.movable = [node for node in self.movable if node not in staying]

    def postpone(self, nodes: Sequence[fx.Node]) -> None:
        """Move `nodes`, in topological order, to the level of those that read them."""
        for node in reversed(nodes):
            users = [self.at[user] - self._crossing(node, user) for user in node.users if user in self.at]
            self.at[node] = max(self.at[node], min(users, default=0))

    def advance_where_it_saves_traffic(self, views: Iterable[fx.Node]) -> None:
        """Move elementwise calls back to the level of what they read, unless more bytes crossed levels then.

        Views, which cost nothing, go first, so as not to stand between a call and what it reads.
        """
        looks = set(views)
        for node in self.movable:
            earliest, level = self._earliest(node), self.at[node]
            if node in looks:
                self.at[node] = earliest
                continue
            sources = [source for source in node.all_input_nodes if source in self.traits]
            if self.traits[node].reduces or all(self.at[source] != earliest for source in sources):
                continue
            before = self._traffic(node)
            self.at[node] = earliest
            if self._traffic(node) > before:
                self.at[node] = level

    def _earliest(self, node: fx.Node) -> int:
        sources = (source for source in node.all_input_nodes if source in self.at)
        return max((self.at[source] + self._crossing(source, node) for source in sources), default=0)

    def _crossing(self, source: fx.Node, user: fx.Node) -> int:
        return (source in self.traits) != (user in self.traits)

    def _path(self, node: fx.Node, level: int, paths: Mapping[fx.Node, Path]) -> Path | None:
        """What the paths to `node` pass on `level`, itself included; None when it must not stand there."""
        own = self.traits[node]
        before = [paths[source] for source in node.all_input_nodes if source in paths and self.at[source] == level]
        contractions = frozenset[Contraction]().union(*(path[0] for path in before))
        exponentials = own.exponentials + max((path[1] for path in before), default=0)
        if not all(first.feeds(later) for first in contractions for later in own.contractions):
            return None
        if own.reduces and not own.contractions and any(first.batch == 1 for first in contractions):
            return None  # a row of a product is spread over all blocks
        if own.exponentials and exponentials > 1:
            return None
        if own.moves and (exponentials or (contractions and self._divides(node))):
            return None  # a product for each part, or a softmax of which each part needs the whole
        return contractions.union(own.contractions), exponentials

    def _divides(self, node: fx.Node) -> bool:
        """Whether a tensor that a call takes apart or puts together has more than a few parts."""
        beside = [user for source in node.all_input_nodes for user in source.users]
        parts = sum(user in self.traits and self.traits[user].moves for user in beside)
        return max(len(node.all_input_nodes), parts) > _FEW_PARTS

    def _traffic(self, node: fx.Node) -> int:
        """Bytes written and read across levels of a call's result and operands."""
        return sum(bytes_of(tensor) * self._crossings(tensor) for tensor in {node, *node.all_input_nodes})

    def _crossings(self, tensor: fx.Node) -> int:
        """How often a tensor is read on levels other than its own, and one more if it must be written for that."""
        readers = {self.at.get(user, -1) for user in tensor.users} - {self.at.get(tensor, -2)}
        return len(readers) + (bool(readers) and tensor in self.at)
