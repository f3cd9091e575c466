"""What becomes of the pieces of torch graphs: each distinct program is optimized once, and kept where its kernels beat torch."""

from __future__ import annotations

import functools
import logging
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.devices import device_for
from mugraph.devices.host import seconds_when_busy
from mugraph.devices.targets import target_row
from mugraph.errors import LeftToPyTorch, MugraphError, TargetUnavailable
from mugraph.frontend.partitioning.library import LibraryKernel
from mugraph.frontend.partitioning.partition import Piece
from mugraph.frontend.partitioning.splice import as_torch
from mugraph.ir.graph import Graph
from mugraph.pieces.example_tensors import memory_reused
from mugraph.pieces.kept_joins import KeptJoins
from mugraph.pieces.library_ways import Library, layers_of, weights_of, with_packed_weights
from mugraph.pieces.piece_duels import against, by_kernels, description_of, examples_of, recorded_tensor, torch_here
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.piece_outcomes import PieceOutcome
from mugraph.pieces.predicted_cost import Saving, not_predicted_to_pay, saving
from mugraph.pieces.shares import Share, fraction_of, is_scarce, size_of
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime import Executable
from mugraph.runtime.benchmarking import Duel, in_turns, raised_as_they_were, still_counts, while_serving
from mugraph.selection.reasons import out_of_time, why_not_faster, why_nothing
from mugraph.selection.structure_key import form_of
from mugraph.selection.whole_programs import (
    Elsewhere,
    OptimizationSettings,
    superoptimize_program,
    superoptimize_program_elsewhere,
)
from mugraph.support.deadline import NO_LIMIT, Deadline
from mugraph.support.progress import ProgressCallback, silent
from mugraph.support.store import Store, digest_of
from mugraph.support.user_warnings import warn_user
from mugraph.targets.machine import machine_for
from mugraph.verifier.certificate import digest

_log = logging.getLogger("mugraph.torch_compile")
KIND = "duel"
_WORTH_SEARCHING = 0.25
"""Pieces that kernels run are searched on where such a part of their time may be saved at best."""

_RIVAL = "PyTorch's calls"
"""What kernels of a piece are to beat where both are timed."""

_DUEL_CALLS = 4
"""Calls of kernels that a duel takes at least, PyTorch's being about as long: each side is warm before it is timed."""

_COMPARED_SECONDS, _COMPARED_CALLS = 1.0, 16
"""Seconds of a quiet machine that are kept for a duel of a piece, and for how many of PyTorch's calls there is time at least
(three of each side that warm it up, five rounds)."""

_LITTLE = 0.02
"""Pieces of which so small a part is predicted to be saved at best, as large products beside a sum, come behind the others."""


GraphsByForm = dict[tuple[object, ...], Graph]
"""By the form of a program, the muGraph that was best for it at some sizes."""
_Known = Mapping[tuple[object, ...], Graph]


@dataclass(slots=True, eq=False)
class Untested:
    """A result that was kept, and used after a glance."""

    program: Graph
    document: Mapping[str, Any]
    wanted: OptimizationSettings
    wrong: str | None = None
    """What speaks against it by all tests, "" if nothing does; None before they are done."""


class Optimizer:
    """Programs optimized under the same options, each once in a process."""

    def __init__(
        self,
        options: PieceOptions,
        tell: ProgressCallback = silent,
        elsewhere: Elsewhere | None = None,
        serving: bool = False,
    ) -> None:
        """`serving` says that who compiles waits for a model: proofs of results that were kept are not repeated before these are
        used (see `untested`), and what an earlier process had too little time for is not tried again with as much."""
        self.options = options
        self.tell = tell
        """Who is told how far it is."""
        self.elsewhere = elsewhere
        """What searches for programs that nothing is kept of; None where it is done here."""
        self.interrupted = False
        self._decisions = 0
        """How often something was searched or timed that was not kept."""
        self._serving = serving
        self._untested: weakref.WeakKeyDictionary[Executable, Untested] = weakref.WeakKeyDictionary()
        """Results that were only glanced at, by their kernels."""
        packs = options.pack and machine_for(options.target).available and target_row(options.target).tensors == "cpu"
        self.library = Library(options.target, Store.of(options.cache), options.background) if packs else None
        """What library kernels take on this CPU; None where weights are not packed."""
        self._keys: weakref.WeakKeyDictionary[Piece, str] = weakref.WeakKeyDictionary()
        self._savings: weakref.WeakKeyDictionary[fx.Graph, Saving] = weakref.WeakKeyDictionary()
        """By the calls of pieces as a graph of their own, which equal pieces share."""
        self._outcomes: dict[str, PieceOutcome] = {}
        self._refused: Superoptimized | None = None
        self._shares: dict[str, Share] = {}
        """What each piece was given when it was tried last."""
        self._hurried: dict[str, Deadline] = {}
        """The pieces of which no more than the first muGraph was wanted, as others waited, with the deadline of their graph: for
        another one more may be wanted."""
        self._one_at_a_time = threading.Lock()

    @property
    def results(self) -> tuple[Superoptimized, ...]:
        """The results of the distinct programs so far, also of those that torch runs all the same."""
        return tuple(outcome.result for outcome in self._outcomes.values() if outcome.result is not None)

    def results_of(self, pieces: Iterable[Piece]) -> tuple[Superoptimized, ...]:
        """The results of the distinct programs among pieces so far, also of those that torch runs all the same."""
        found = (self._outcomes.get(key) for key in dict.fromkeys(map(self.key, pieces)))
        return tuple(outcome.result for outcome in found if outcome is not None and outcome.result is not None)

    @property
    def measures(self) -> bool:
        """Whether what runs is what was timed to be the fastest here."""
        timed = self.options.profile and self.options.keep == "faster"
        return timed and machine_for(self.options.target).available

    @property
    def kept_joins(self) -> KeptJoins | None:
        """The larger programs of graphs that earlier processes tried; None where these are tried anew."""
        return KeptJoins(Store.of(self.options.cache), self.options.budget) if self.waited_for else None

    def may_go_on(self, pieces: Iterable[Piece]) -> bool:
        """Whether a later process may find more of some pieces that were decided about, or whether the search was interrupted."""
        return self.interrupted or any(self._outcomes[self.key(piece)].wants_time for piece in pieces)

    @property
    def waited_for(self) -> bool:
        """Whether calls of a model wait: Ctrl-C ends everything, and what an earlier process had too little time for is not tried
        again with as much. Elsewhere what was found until Ctrl-C is wanted."""
        return self._serving and self.elsewhere is None

    def untested(self, results: Iterable[Superoptimized]) -> list[Untested]:
        """The results that are to be tested while they are used."""
        kernels = dict.fromkeys(result.executable for result in results)
        return [self._untested[each] for each in kernels if each in self._untested]

    def _drop_wrong(self) -> None:
        """Leave what a test spoke against, in whichever graph, to PyTorch."""
        for key, outcome in [*self._outcomes.items()]:
            tested = None if outcome.result is None else self._untested.get(outcome.result.executable)
            if tested is not None and tested.wrong:
                self._outcomes[key] = PieceOutcome(None, f"kernels that were kept are wrong: {tested.wrong}")

    def refuse(self, whole: Superoptimized) -> None:
        """Leave a program to PyTorch that was searched as a whole, with as much time as there is here."""
        self._refused = whole

    @memory_reused()
    def outcomes(
        self,
        pieces: Sequence[Piece],
        graphs: _Known,
        deadline: Deadline,
        *,
        once: bool = False,
        decided: Callable[[Mapping[Piece, PieceOutcome]], None] | None = None,
        until: Deadline | None = None,
        hurried: Container[Piece] = (),
    ) -> list[PieceOutcome]:
        """What becomes of each of a graph's pieces; raises MugraphError in strict mode where one cannot be optimized.

        A program whose form is in `graphs` is scheduled as the muGraph there, and not measured. They come as `_in_order` has
        them, and share the time by what they take and may save (`fraction_of`); where it is scarce, the others come before what
        is more than the first muGraph of one. Unless only `once`, what is left of the time is for pieces whose time ran out,
        those first that move the most bytes.
        `decided` is told after each program that kernels run what is known of pieces by then. What was found is compared with
        PyTorch's calls `until` another deadline, that of everything that is done about the graph.
        """
        self._drop_wrong()
        keys = [*map(self.key, pieces)]
        distinct, often = dict(zip(keys, pieces, strict=True)), Counter(keys)

        def by_bytes(key: str) -> int:
            return -often[key] * _bytes_of_inputs(distinct[key])

        unknown = self._in_order({key: distinct[key] for key in distinct if key not in self._outcomes}, by_bytes, deadline)
        worth = {key: often[key] * max(0.0, self._saving(distinct[key]).seconds) for key in unknown}
        scarce, whole = len(unknown) > 1 and is_scarce(deadline, len(unknown)), deadline if until is None else until
        for number, key in enumerate(unknown):  # what small ones leave is for large ones
            fraction = fraction_of(key, unknown[number:], distinct, worth)
            share = Share.of(deadline, fraction, until, self._seconds_of_duel(distinct[key]))
            if scarce or distinct[key] in hurried:
                share, self._hurried[key] = share.of_the_first, whole
            self._try(key, distinct[key], share, graphs)
            if decided is not None and self._outcomes[key].runs and number + 1 < len(unknown):
                known = zip(pieces, map(self._outcomes.get, keys), strict=True)
                decided({piece: outcome for piece, outcome in known if outcome is not None})
        needy = [key for key in distinct if self._outcomes[key].wants_time and not once]
        still_hurried = [key for key in needy if self._hurried.get(key) is whole]
        self._try_again(sorted(needy, key=by_bytes), distinct, graphs, deadline, until, still_hurried)
        return [self._outcomes[key] for key in keys]

    def seconds_given(self, piece: Piece) -> float | None:
        """The seconds that a piece had when it was tried last; None for as many as it wanted."""
        return self._share_of(piece).budget

    def as_kept(self, pieces: Mapping[Piece, float | None], deadline: Deadline) -> Iterator[tuple[Piece, PieceOutcome | None]]:
        """What was known or kept of each piece, in whatever order, where no more seconds than these are given to it; None behind
        which none comes: of this one, or of a part of it, something had to be found out, as in `outcomes`."""
        self._drop_wrong()
        for number, (piece, seconds) in enumerate(pieces.items()):
            before, key = self._decisions, self.key(piece)
            self._try(key, piece, Share.of(deadline, 1 / (len(pieces) - number)).of_at_most(seconds), {})
            yield piece, self._outcomes[key] if self._decisions == before else None

    @memory_reused()
    def searched_on(self, pieces: Sequence[Piece], graphs: _Known, deadline: Deadline) -> list[PieceOutcome]:
        """What becomes of pieces that were decided about, where what is left of the time is for those that kernels run and whose
        search it had cut short: others run them where these are clearly faster.

        Those come first that may save the most seconds in a call of the graph, by what they must read and write. A program whose
        form is in `graphs` is not searched.
        """
        distinct, often = {self.key(piece): piece for piece in pieces}, Counter(map(self.key, pieces))
        short = [self.key(piece) for piece in self.cut_short(distinct.values(), graphs)]
        short.sort(key=lambda key: -often[key] * self._outcomes[key].seconds_to_save)
        self._try_again(short, distinct, graphs, deadline)
        return [self._outcomes[self.key(piece)] for piece in pieces]

    def cut_short(self, pieces: Iterable[Piece], graphs: _Known) -> list[Piece]:
        """The pieces that kernels run, and that are searched on where there is time."""
        asked = (piece for piece in pieces if self.measures or self.key(piece) in self._hurried)
        short = (piece for piece in asked if self._outcomes[self.key(piece)].may_save >= _WORTH_SEARCHING)
        return [piece for piece in short if form_of(piece.program) not in graphs]

    def _try_again(
        self,
        keys: list[str],
        pieces: Mapping[str, Piece],
        graphs: _Known,
        deadline: Deadline,
        until: Deadline | None = None,
        hurried: Container[str] = (),
    ) -> None:
        """Try pieces, by name, with equal parts of what is left of the time; the last ones leave theirs where that is too little
        for those before them. Of the `hurried` no more than the first muGraph is wanted."""
        while keys:
            more = Share.of(deadline, 1 / len(keys), until, self._seconds_of_duel(pieces[keys[0]]))
            more = more.of_the_first if keys[0] in hurried else more
            if self._may_tell_more(keys[0], more):
                self._try(keys[0], pieces[keys[0]], more, graphs, again=True)
                keys.pop(0)
            else:
                keys.pop()  # which leaves more to the others

    def _in_order(self, pieces: Mapping[str, Piece], by_bytes: Callable[[str], int], deadline: Deadline) -> list[str]:
        """The names of pieces in the order in which they are searched: small ones first, or on a machine too busy for all of them
        those that move the most bytes in a call of the graph, behind a small one, with which something is proved soon; last those
        of which little is predicted to be saved."""
        little = {key for key, piece in pieces.items() if self.saves_little(piece)}
        if not is_scarce(deadline, len(pieces)):
            return sorted(pieces, key=lambda key: (key in little, size_of(pieces[key])))
        small = self.smallest(pieces.values())
        return sorted(pieces, key=lambda key: (key in little, pieces[key] not in small, by_bytes(key)))

    def smallest(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The smallest of the pieces of which something is predicted to be saved; none where there is none."""
        worthwhile = (piece for piece in pieces if not self.saves_little(piece))
        return sorted(worthwhile, key=lambda piece: (size_of(piece), _bytes_of_inputs(piece)))[:1]

    def saves_little(self, piece: Piece) -> bool:
        """Whether kernels of a piece are predicted to save next to nothing beside PyTorch's calls."""
        return self._saving(piece).share < _LITTLE

    def _saving(self, piece: Piece) -> Saving:
        """What kernels of a piece are predicted to save at best of a call."""
        if piece.torch_graph not in self._savings:
            self._savings[piece.torch_graph] = saving(piece.nodes, device_for(self.options.target))
        return self._savings[piece.torch_graph]

    def key(self, piece: Piece) -> str:
        """What the outcome of a piece is known by."""
        if piece not in self._keys:
            self._keys[piece] = digest_of(digest(piece.program), *self._rivals(piece), *self._weights(piece))
        return self._keys[piece]

    def _try(self, key: str, piece: Piece, share: Share, graphs: _Known, again: bool = False) -> None:
        """Optimize a piece whose outcome is not known, or `again`."""
        with self._one_at_a_time:
            if key in self._outcomes and (self.interrupted or not again):
                return
            if self.interrupted:
                self._outcomes[key] = PieceOutcome(None, "the search was interrupted before it")
                return
            before, self._shares[key] = self._outcomes.get(key), share
            tried = before is not None and not before.late
            with _disable_current_modes():  # Dynamo's, under which tensors have no data
                self._outcomes[key] = self._tried(piece, share.budget, graphs, tried)

    def _may_tell_more(self, key: str, share: Share) -> bool:
        """Whether a piece that wants time has more in a share than it had: to be compared, that of another graph."""
        before = self._shares[key]
        return share.until is not before.until if self._outcomes[key].uncompared else share.exceeds(before)

    def _tried(self, piece: Piece, budget: float | None, graphs: _Known, again: bool) -> PieceOutcome:
        """What becomes of a piece; one that kernels run keeps them where another search of it fails."""
        known = self._outcomes.get(self.key(piece))
        outcome = self._searched(piece, known, budget, graphs, again)
        return known if known is not None and known.runs and outcome.result is None else outcome

    def _searched(
        self, piece: Piece, known: PieceOutcome | None, budget: float | None, graphs: _Known, again: bool
    ) -> PieceOutcome:
        try:
            if known is not None and known.uncompared and known.result is not None:
                return self._compared(piece, known.result)
            refused = self._refused
            if refused is not None and _nameless(piece.program) == _nameless(refused.program):
                return PieceOutcome(None, why_nothing(refused.report, len(refused.candidates)))
            if budget == 0.0:
                return PieceOutcome(None, out_of_time("it was searched"), late=True)
            runs = known is not None and known.runs
            result = self._optimized(piece, budget, graphs.get(form_of(piece.program)), again, runs)
            if result.report.interrupted:
                if self.waited_for:  # who presses Ctrl-C while a model compiles wants his program to end
                    raise KeyboardInterrupt
                self.interrupted = True
            return self._faster(piece, known, result) if known is not None and runs else self._compared(piece, result)
        except Exception as error:  # one piece's failure is no reason to lose the others
            if self.options.strict:
                raise
            if isinstance(error, TargetUnavailable):
                warn_user(f"PyTorch runs what kernels were to run: {error}", LeftToPyTorch)
            elif not isinstance(error, MugraphError):
                _log.warning("optimizing a piece failed; please report this", exc_info=True)
            return PieceOutcome(None, f"{type(error).__name__}: {error}")

    def _optimized(self, piece: Piece, budget: float | None, like: Graph | None, again: bool, anew: bool) -> Superoptimized:
        wanted = self._settings(piece, like, again) | {"anew": anew}
        optimized, untested = superoptimize_program, list[Mapping[str, Any]]()
        if self.elsewhere is not None:
            optimized = functools.partial(superoptimize_program_elsewhere, elsewhere=self.elsewhere)
        elif self.measures:
            optimized = functools.partial(superoptimize_program, timed_rival=functools.partial(self._seconds_of_torch, piece))
        postpone = untested.append if self._serving else None
        result = optimized(piece.program, budget=budget, tell=self.tell, postpone=postpone, **wanted)
        self._decisions += not result.report.recalled
        for document in untested:
            self._untested[result.executable] = Untested(piece.program, document, OptimizationSettings(**wanted))
        return result

    def _settings(self, piece: Piece, like: Graph | None, again: bool) -> dict[str, Any]:
        """Those of `OptimizationSettings` for a piece."""
        options, profile = self.options, self.options.profile and like is None
        return {
            "target": options.target,
            "seed": options.seed,
            "evidence": options.evidence,
            "profile": profile,
            "max_error": options.max_error,
            "cache": options.cache,
            "like": () if like is None else (like,),
            "space": options.space,
            "workers": options.workers,
            "pack": self.library is not None,
            "constants": self._weights(piece),
            "asked": options.budget if self._serving else None,
            "enough": self._share_of(piece).enough,
            "unfinished": self.waited_for and not again,
            "rival": ", ".join((_RIVAL, *torch_here())) if self.measures else "the program",
        }

    def _share_of(self, piece: Piece) -> Share:
        """What a piece was given when it was tried last; no limit where it was not."""
        return self._shares.get(self.key(piece), Share(None, None))

    def _compared(self, piece: Piece, result: Superoptimized) -> PieceOutcome:
        """What becomes of a piece of which a result was found: torch runs it all the same where that is not slower."""
        if not result.found:
            return PieceOutcome(result, why_nothing(result.report, len(result.candidates)))
        if self.options.keep == "all" or not self.options.profile:
            return PieceOutcome(result)
        if not result.executable.machine.available:
            cost = result.best.cost
            return PieceOutcome(
                result, "" if cost is None else not_predicted_to_pay(piece.nodes, cost, device_for(self.options.target))
            )
        until = self._share_of(piece).until
        layers = self._layers_of(piece, until)
        found = self.duel(
            piece, result, lambda: with_packed_weights(piece, layers) if layers else as_torch(piece), str(len(layers)), until
        )
        reason = why_not_faster(found, "torch with packed weights" if layers else "torch")
        return PieceOutcome(result, reason, uncompared=found is None or found.undecided)

    def _faster(self, piece: Piece, known: PieceOutcome, result: Superoptimized) -> PieceOutcome:
        """What becomes of a piece that kernels run and that was searched on: those of a result run it where they beat PyTorch's
        calls as well, and are clearly faster than those that ran it, or predicted to be where nothing is measured."""
        before, until = known.result, self._share_of(piece).until
        assert before is not None, "kernels run it"
        if not result.found or result.executable.digest == before.executable.digest:
            return known
        outcome = self._compared(piece, result)
        if not outcome.runs:
            return known
        if not self.measures:
            return outcome if _predicted(result) < _predicted(before) else known
        found = self.duel(piece, result, functools.partial(by_kernels, piece, before), description_of(before), until)
        return outcome if found is not None and found.clear else known

    def _seconds_of_duel(self, piece: Piece) -> float:
        """What comparing kernels of a piece with PyTorch's calls takes on this machine, as busy as it is, by prediction."""
        if not self.measures:
            return 0.0
        return seconds_when_busy(_COMPARED_SECONDS, _COMPARED_CALLS * self._saving(piece).calls)

    def _seconds_of_torch(self, piece: Piece) -> float:
        """Seconds of a call of a piece as PyTorch makes it by default, of a few."""
        machine = machine_for(self.options.target)
        with torch.no_grad(), raised_as_they_were(), examples_of(piece) as tensors:
            timed = machine.timed(functools.partial(as_torch(piece).forward, *tensors))
            [[seconds]] = in_turns([timed.run], rounds=1, clock=timed.clock)
        return seconds / timed.times

    def _weights(self, piece: Piece) -> tuple[str, ...]:
        """The inputs of a piece's program that are matrices of weights, which kernels may have packed."""
        return () if self.library is None else weights_of(piece)

    def _rivals(self, piece: Piece) -> list[str]:
        """The linear layers of a piece that the library could have."""
        return [] if self.library is None else [str(piece.nodes.index(layer.product)) for layer in layers_of(piece)]

    def _layers_of(self, piece: Piece, until: Deadline) -> list[LibraryKernel]:
        """The linear layers of a piece that have packed weights where PyTorch runs it best, as far as there is time to see."""
        library = self.library
        return [] if library is None else [each for each in layers_of(piece) if library.is_faster(each, until)]

    def duel(
        self, piece: Piece, result: Superoptimized, module: Callable[[], fx.GraphModule], rival: str, until: Deadline = NO_LIMIT
    ) -> Duel | None:
        """The kernels against a module that does the same, as `rival` says, as measured now or in an earlier call; None where
        there is no time for a round of it.

        The module is made only where it is measured now. What there was too little time for is not kept.
        """
        store = Store.of(self.options.cache)
        strides = str([recorded_tensor(node).stride() for node in piece.inputs])
        here = (repr(device_for(self.options.target)), *torch_here())
        key = digest_of(
            digest(piece.program), strides, result.executable.digest, rival, str(result.executable.packed_bytes), *here
        )
        record = store.get(KIND, key)
        if record is not None and still_counts(record, self.options.background):
            with suppress(KeyError, TypeError, ValueError):  # a document that is none: it is measured again
                return Duel.from_json(record)
        if until.passed or not until.allows(_DUEL_CALLS * (result.best.latency or 0.0)):
            return None
        self._decisions += 1
        outcome = against(piece, result, module(), until)
        if not outcome.cut_short:
            store.put(KIND, key, while_serving(outcome.to_json(), self.options.background))
        return outcome


def _nameless(program: Graph) -> list[tuple[object, ...]]:
    """What programs share that are the same but for the names of their inputs."""
    nodes = [(node.op, node.inputs, node.outputs, dict(node.attributes) | {"name": "", "constant": 0}) for node in program.nodes]
    return [*nodes, program.outputs]


def _predicted(result: Superoptimized) -> float:
    """Predicted seconds of a call; infinite where nothing was predicted."""
    return math.inf if result.best.cost is None else result.best.cost


def _bytes_of_inputs(piece: Piece) -> int:
    return sum(node.output.bytes for node in piece.program.inputs())


@functools.cache
def optimizer(options: PieceOptions, tell: ProgressCallback = silent, elsewhere: Elsewhere | None = None) -> Optimizer:
    """The optimizer of this process for these options, for models that are to be served."""
    return Optimizer(options, tell, elsewhere, serving=True)
