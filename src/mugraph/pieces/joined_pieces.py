"""Larger programs in the place of several steps of a graph that is cut, where their kernels are faster than these.

The steps are those that rules cut (`mugraph.frontend.partitioning.partition`) and that were decided about: programs that run as
kernels, the library's linear layers, PyTorch's calls. They stay wherever a larger program is not found, in time, or does not win.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from mugraph.devices import device_for
from mugraph.errors import MugraphError
from mugraph.frontend.operators.torch_casts import draws_random_numbers
from mugraph.frontend.partitioning.library import LibraryKernel, linear_layers
from mugraph.frontend.partitioning.partition import Known, Left, Partition, Piece, piece_of
from mugraph.frontend.partitioning.splice import Step, as_torch, can_run, nodes_of, spliced
from mugraph.ir.parts import objection
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.joining import DECISIVE, WORTH, Join, Joining
from mugraph.pieces.packed_weights import packed
from mugraph.pieces.piece_duels import description_of, torch_here
from mugraph.pieces.piece_optimizer import GraphsByForm, Optimizer
from mugraph.pieces.piece_outcomes import PieceOutcome
from mugraph.pieces.predicted_cost import KnownForms, Measured, PredictedCost
from mugraph.results.superoptimized import Superoptimized
from mugraph.search.long_programs import LONGEST
from mugraph.selection.reasons import why_not_faster
from mugraph.support.deadline import Deadline
from mugraph.support.store import digest_of

_log = logging.getLogger("mugraph.torch_compile")
_ROUNDS = 3
"""Times that steps are joined: with what was joined before, and without what was in vain."""
_AHEAD, _AHEAD_MOST = 0.25, 0.8
"""The part of the budget for what comes before the steps: it may be in vain. It is larger, up to the most, where that is
predicted to save as much of a call of the graph, and the most where it is all of the graph: little is left for the steps then."""
_PART = 0.5
"""The part of what is left of it for each round."""
_SECONDS = 20.0
"""Seconds for what comes before the steps where the budget has no limit."""
_LEAST = 5.0
"""Seconds of a round if all before took less: no round takes longer than that."""

_WORTH_TRYING, _WORTH_MORE = 0.4, 4.0
"""Larger programs are tried where the part of a call of the graph that they are predicted to save is so many seconds of the
budget: to try one takes some ten times as long. What more is worth waiting for than the first muGraph of one. Of 40 seconds these
are a hundredth and a tenth."""

_PACKED_ON = "cpu"
"""The kind of device whose library has linear layers with packed weights."""

Outcomes = Mapping[Piece, PieceOutcome]


@dataclass
class Joiner:
    """Joins steps of one graph by an optimizer."""

    graph: fx.Graph
    optimizer: Optimizer
    calls: Known = field(default_factory=Known)
    refused: set[frozenset[fx.Node]] = field(default_factory=set)
    """Calls that need not be tried as one program again."""
    known: KnownForms = field(default_factory=KnownForms)
    """What programs were predicted to take."""
    searched: set[frozenset[fx.Node]] = field(default_factory=set, init=False)
    """The calls of larger programs that were searched as one."""
    _parts: dict[Piece, float] = field(default_factory=dict, init=False)
    """The part of a call of the graph that larger pieces which were proposed are predicted to save, equal ones together."""
    _last: tuple[Partition, Joining] | None = field(default=None, init=False)

    def joins(self, traits: Container[fx.Node]) -> bool:
        """Whether anything is joined: only where it can be seen which steps are faster, and where calls without `traits` may draw
        random numbers, steps keep their order."""
        return self.optimizer.measures and not any(draws_random_numbers(node) and node not in traits for node in self.graph.nodes)

    def ahead(self, whole: Partition, graphs: GraphsByForm, deadline: Deadline) -> tuple[Piece, ...]:
        """Larger pieces that kernels run, and that are predicted to take less than half of the time of what rules cut.

        What they are made of need not be searched then. What there was no time for is proposed again.
        """
        proposed = [*self.proposed(whole, {}, DECISIVE)]
        seconds = deadline.share(min(_AHEAD_MOST, max(_AHEAD, self._worth_ahead(proposed))))
        made = self._searched(proposed, graphs, Deadline(_SECONDS if seconds is None else seconds), deadline)
        lost = {piece: outcome for piece, outcome in made.items() if not outcome.runs}
        self._refuse({piece: each.reason for piece, each in lost.items() if not each.wants_time})
        return tuple(piece for piece, outcome in made.items() if outcome.runs)

    def joined(
        self, whole: Partition, outcomes: Outcomes, graphs: GraphsByForm, deadline: Deadline
    ) -> tuple[Partition, Outcomes]:
        """The partition and what became of its pieces, with larger ones where these are faster.

        `outcomes` has what became of the pieces so far, and `graphs` is as in `Optimizer.outcomes`. Where earlier processes
        had as much time for the graph, what they did not try is not tried.
        """
        kept, graph, tried = self.optimizer.kept_joins, self._name_of(whole), set[str]()
        before = None if kept is None else kept.tried(graph)
        for _ in range(_ROUNDS):
            proposed = self._tried_before(self.proposed(whole, outcomes), before)
            if not proposed or deadline.passed or self.optimizer.interrupted:
                break
            as_long = max(deadline.elapsed, _LEAST)
            seconds = deadline.share(_PART)
            end = Deadline(as_long if seconds is None else min(seconds, as_long))
            made = self._searched([*proposed], graphs, end, deadline)
            whys = {piece: self._objection(piece, made[piece], proposed[piece], outcomes, deadline) for piece in proposed}
            won = [piece for piece, why in whys.items() if not why]
            self._refuse({piece: why for piece, why in whys.items() if why})
            whole = _without_lost(whole, outcomes, {node for piece in won for node in piece.nodes}).with_joined(won)
            lost = [piece for piece in whole.pieces if piece in outcomes and not outcomes[piece].runs]
            while not can_run(self.graph, whole):  # what lost for now waits for what was joined around it
                piece = lost.pop()
                whole = whole.without([piece], outcomes[piece].reason)
            outcomes = {**outcomes, **{piece: made[piece] for piece in won}}
            tried |= {self.optimizer.key(piece) for piece in proposed if made[piece].result is not None}
        if kept is not None and before is None and not self.optimizer.interrupted:
            kept.keep(graph, tried)
        return whole, outcomes

    def _name_of(self, whole: Partition) -> str:
        """What a graph that is cut, and the machine, are known by."""
        here = repr(device_for(self.optimizer.options.target)), *torch_here()
        return digest_of(*map(self.optimizer.key, whole.pieces), *here)

    def _tried_before(
        self, proposed: Mapping[Piece, tuple[Step, ...]], before: Container[str] | None
    ) -> Mapping[Piece, tuple[Step, ...]]:
        """Of larger pieces those that were tried, if that is known; others are refused."""
        if before is None:
            return proposed
        untried = [piece for piece in proposed if self.optimizer.key(piece) not in before]
        self._refuse(dict.fromkeys(untried, "earlier processes had no time for it either; a larger budget may find kernels"))
        return {piece: steps for piece, steps in proposed.items() if piece not in untried}

    def proposed(self, whole: Partition, outcomes: Outcomes, worth: float = WORTH) -> dict[Piece, tuple[Step, ...]]:
        """Larger pieces that are predicted to save more than that part of their time, and the steps that each is to replace.

        Pieces that `outcomes` has no kernels for count as calls of PyTorch. Larger ones that save next to nothing of a call of
        the graph, equal ones together, are left out.
        """
        if not self.joins(whole.traits):
            return {}
        decided = _without_lost(whole, outcomes, set(self.graph.nodes))
        joining = self._joining(decided)
        candidates = joining.candidates(self.refused, worth)
        while True:
            best = joining.best(candidates)
            pieces = {join: self._piece(joining, join) for join in best}
            if None not in pieces.values():
                break
            candidates = [join for join in candidates if pieces.get(join, join) is not None]
        found = {piece: join for join, piece in pieces.items() if piece is not None}
        return {piece: joining.steps_of(found[piece].group) for piece in self._worthwhile(found, joining.seconds)}

    def _worthwhile(self, found: Mapping[Piece, Join], seconds: float) -> list[Piece]:
        """The larger pieces that are worth their time, of a graph a call of which takes `seconds`: equal ones are searched once,
        and what they save together is what counts. All where time has no limit."""
        budget, saved = self.optimizer.options.budget, dict[str, float]()
        for piece, join in found.items():
            key = self.optimizer.key(piece)
            saved[key] = saved.get(key, 0.0) + join.saving / seconds
        self._parts.update({piece: saved[self.optimizer.key(piece)] for piece in found})
        return [piece for piece in found if budget is None or self._parts[piece] * budget >= _WORTH_TRYING]

    def _worth_ahead(self, pieces: Sequence[Piece]) -> float:
        """The part of a call of the graph that larger pieces which were proposed are predicted to save together; all where one is
        all of it."""
        calls = sum(node.op == "call_function" for node in self.graph.nodes)
        if any(len(piece.nodes) == calls for piece in pieces):
            return 1.0
        return sum({self.optimizer.key(piece): self._parts[piece] for piece in pieces}.values())

    def _hurried(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Those of larger pieces of which no more than the first muGraph is wanted, as calls of a model wait."""
        budget = self.optimizer.options.budget
        if budget is None or not self.optimizer.waited_for:
            return []
        return [piece for piece in pieces if self._parts[piece] * budget < _WORTH_MORE]

    def _joining(self, whole: Partition) -> Joining:
        """The steps of a partition; those that were looked at last, where it is still the same and nothing was timed since."""
        cost = self._cost(whole)
        if self._last is None or self._last[0] is not whole or self._last[1].cost != cost:
            self._last = whole, Joining.of(self.graph, whole, cost)
        return self._last[1]

    def _cost(self, whole: Partition) -> PredictedCost:
        return PredictedCost(device_for(self.optimizer.options.target), whole.traits, self._measured(whole), self.known)

    def _measured(self, whole: Partition) -> dict[fx.Node, Measured]:
        """What linear layers take that the library or PyTorch runs, as far as that was measured."""
        library = self.optimizer.library
        if library is None:
            return {}
        by_library = {kernel.product: kernel for kernel in whole.library if kernel.geometry is None}
        by_torch = linear_layers((left.node for left in whole.left), _PACKED_ON)
        times = {kernel.product: library.known_seconds(kernel) for kernel in (*by_library.values(), *by_torch)}
        known = ((product, seconds) for product, seconds in times.items() if seconds is not None)
        return {product: Measured(seconds[product in by_library], min(seconds)) for product, seconds in known}

    def _piece(self, joining: Joining, join: Join) -> Piece | None:
        """The piece that units would be; None where they are no program, or one that is better searched in parts."""
        nodes = joining.nodes_of(join.group)
        level = max(step.level for number in join.group for step in joining.units[number].steps)
        try:
            piece = piece_of(nodes, level, self.calls)
        except MugraphError:
            piece = None
        if piece is None or objection(piece.program) or len(piece.program.kernels()) > LONGEST:
            self.refused.add(frozenset(nodes))
            return None
        return piece

    def _searched(
        self, pieces: Sequence[Piece], graphs: GraphsByForm, deadline: Deadline, until: Deadline
    ) -> dict[Piece, PieceOutcome]:
        """What becomes of larger pieces, compared by `until`; that one cannot be optimized is no error, in strict mode either."""
        try:
            found = self.optimizer.outcomes(pieces, graphs, deadline, until=until, hurried=self._hurried(pieces))
            made = dict(zip(pieces, found, strict=True))
        except Exception as error:
            if len(pieces) <= 1:
                _log.debug("a larger program is not tried", exc_info=True)
                return dict.fromkeys(pieces, PieceOutcome(None, f"{type(error).__name__}: {error}"))
            first = Deadline(deadline.share(0.5))  # one that fails is no reason to lose the others
            half = len(pieces) // 2
            return self._searched(pieces[:half], graphs, first, until) | self._searched(pieces[half:], graphs, deadline, until)
        self.searched |= {frozenset(piece.nodes) for piece, outcome in made.items() if outcome.result is not None}
        return made

    def _objection(
        self, piece: Piece, outcome: PieceOutcome, steps: tuple[Step, ...], outcomes: Outcomes, deadline: Deadline
    ) -> str:
        """Why a piece does not replace steps; "" where its kernels beat these."""
        if outcome.result is None or not outcome.runs:
            return outcome.reason
        rival = _Rival(piece, steps, outcomes)
        try:
            found = self.optimizer.duel(piece, outcome.result, rival.module, rival.description, deadline)
        except Exception as error:  # there is what runs without it
            _log.warning("comparing a piece with smaller ones failed; please report this", exc_info=True)
            return f"{type(error).__name__}: {error}"
        return why_not_faster(found, "what they would replace")

    def _refuse(self, lost: Mapping[Piece, str]) -> None:
        for piece, why in lost.items():
            _log.info("%d calls that were predicted to be faster as one program stay apart: %s", len(piece.nodes), why)
            self.refused.add(frozenset(piece.nodes))


@dataclass(frozen=True)
class _Rival:
    """The steps that a piece would replace, in its own graph."""

    piece: Piece
    steps: tuple[Step, ...]
    outcomes: Outcomes

    def module(self) -> fx.GraphModule:
        """The steps as they run."""
        copies = self.piece.copies
        pieces = {step.of_copies(copies): self._result(step).executable for step in self.steps if isinstance(step, Piece)}
        layers = [step.of_copies(copies) for step in self.steps if isinstance(step, LibraryKernel)]
        left = [replace(step, node=copies[step.node]) for step in self.steps if isinstance(step, Left)]
        whole = Partition(tuple(pieces), tuple(left), tuple(layers))
        kernels = {piece: executable.with_own_weights() for piece, executable in pieces.items()}
        return spliced(as_torch(self.piece), whole, kernels, {layer: packed(layer, Layout.CONTIGUOUS) for layer in layers})

    @property
    def description(self) -> str:
        """What its time depends on, beside the program."""
        position = {node: number for number, node in enumerate(self.piece.nodes)}
        parts = []
        for step in self.steps:
            by = ""
            if isinstance(step, Piece):
                by = description_of(self._result(step))
            parts.append(f"{type(step).__name__} {by} {[position[node] for node in nodes_of(step)]}")
        return "; ".join(sorted(parts))

    def _result(self, piece: Piece) -> Superoptimized:
        result = self.outcomes[piece].result
        assert result is not None, "kernels run it"
        return result


def _without_lost(whole: Partition, outcomes: Outcomes, nodes: Container[fx.Node]) -> Partition:
    """The partition with the pieces that no kernels run, and that have some of the calls, left to PyTorch."""
    for piece in whole.pieces:
        if piece in outcomes and not outcomes[piece].runs and any(node in nodes for node in piece.nodes):
            whole = whole.without([piece], outcomes[piece].reason)
    return whole
