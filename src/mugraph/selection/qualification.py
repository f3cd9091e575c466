"""From muGraphs the search proposes to muGraphs worth running: compiled, measured, proved, checked against float64.

Measuring comes before proving, because proving at full size takes seconds: the fastest are proved first, and only as
many as are kept. What was not proved is never returned. Within a budget one of the first proposals is proved before the search
goes on, and where most of a budget is spent without that, one before the careful measurement, which would be for nothing if no
proof ended in time.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mugraph.devices import device_for
from mugraph.devices.host import available_cores
from mugraph.errors import BudgetExceeded, MugraphError
from mugraph.ir.graph import Graph
from mugraph.lower.thread_graphs import construct
from mugraph.results.data import Rejection, SpotCheck
from mugraph.runtime import Executable, build
from mugraph.runtime.baselines import BaselineComparison
from mugraph.runtime.packed_operands import pages_reused
from mugraph.selection.contestants import Contestant, Proved, called_once, fastest_first, measured, one_of_each, reordered
from mugraph.selection.emulated_blocks import emulator_for, spot_check
from mugraph.selection.evidence import Evidence, judged, suffices, why_dropped
from mugraph.selection.inputs import runner
from mugraph.selection.lowered_order import LoweredProposal, by_lowered
from mugraph.selection.own_function import OwnCall
from mugraph.selection.packed_proposals import LOOKED_AT, dequantizing, may_dequantize
from mugraph.selection.racing import race
from mugraph.selection.stages import Stage, Stages
from mugraph.selection.structure_key import form_of, one_of_each_work
from mugraph.support.deadline import Deadline
from mugraph.support.progress import ProgressCallback
from mugraph.support.seeds import seed_or_fresh
from mugraph.support.stopping import passed_on
from mugraph.targets.machine import machine_for
from mugraph.verifier import FloatReport, Verdict, float_check
from mugraph.verifier.block_samples import BlockSample
from mugraph.verifier.certificate import Tests
from mugraph.verifier.definedness import undefined_operator
from mugraph.verifier.float_checks import LATE, Runner, kinds

_COMPILED = 16
"""Proposals that are compiled and timed roughly, best predicted cost first."""
_FIRST = 2
"""Proposals that are compiled before the search goes on."""
_FINALISTS = 5
"""Proposals that are timed carefully before proving."""
KEPT = 3
"""Proposals that are proved, fastest first."""
_PROVING_SECONDS = 10.0
"""No further proof starts after this time once one candidate is kept: big programs do not wait for the runners-up."""
_HOPELESS = 3.0
"""The original program is not timed carefully when one run of it takes this many times as long as a candidate's."""
_CAREFUL_ROUNDS = 20
_LEAST_CALLS = 4
"""Of each candidate in a careful measurement, so that it is warm and timed once, but for the longest."""
_COSTLY, _TOO_SLOW = 0.02, 1.5
"""Seconds of a call from which on, before proving takes many of them, one of the rival is timed; what takes more than so many
times as long is not proved."""
_LATE = 0.75
"""With less than this part of a budget left after the rough measurement, a proof comes before the careful one."""
_MEASURING_SECONDS = 3.0
"""After this time no further round of measurements starts."""
_LOWERING_SHARE = 0.1
"""Of what is left of the budget, for the order of proposals that nothing measures."""
_COMPILING_SHARE, _MEASURING_SHARE = 0.3, 0.2
"""Of what is left of the budget."""


@dataclass
class Qualifier(Stages):
    """The stages that one program's proposals go through, with the times and rejections for the report."""

    program: Graph
    target: str
    deadline: Deadline
    progress: ProgressCallback
    seed: int | None
    max_error: float
    evidence: Evidence
    baseline: Runner | None
    """The user's own function, whose rounding errors and range are the measure for candidates."""
    constants: Collection[str] = ()
    """Names of the inputs that do not change between calls, which kernels have packed where that was measured to be faster."""
    most: int = KEPT
    """How many proposals are proved."""
    rival: Callable[[], float] | None = None
    """Times a call of what kernels are to beat, in seconds; None where the program itself is that."""
    sampling_seed: int = field(init=False)
    """Of everything that is random but proofs, whose certificates record their own."""
    seconds: dict[Stage, float] = field(default_factory=lambda: {"compile": 0.0, "measure": 0.0, "verify": 0.0})
    rejected: list[Rejection] = field(default_factory=list)
    interrupted: bool = False
    """Whether Ctrl-C ended a stage before its end."""
    tried: dict[Graph, Proved | None] = field(default_factory=dict)
    """What came of the proofs that were tried, by muGraph."""
    longest_proof: float = 0.0
    """Seconds."""
    longest_compilation: float = 0.0
    """Seconds of as many proposals as there are cores."""
    seconds_of_rival: float | None = None
    """Of a call, as it was timed last."""
    compiled: dict[Graph, Contestant | Rejection] = field(default_factory=dict)
    """What was made of proposals, by their muGraphs."""
    lowered: dict[Graph, LoweredProposal] = field(default_factory=dict)
    """What proposals were lowered to for their order, by their muGraphs."""
    undefined: dict[object, str] = field(default_factory=dict)
    """Where proposals have no result although the program has one, by their forms; "" where they have."""

    def __post_init__(self) -> None:
        self.sampling_seed = seed_or_fresh(self.seed)

    def original(self) -> Contestant:
        """The program itself, run operator by operator; raises TargetUnavailable where no kernels can be compiled."""
        with self.timed("compile"):
            _ = machine_for(self.target).parameters  # of which a C compiler tells; the program itself may need none
            return Contestant(self.program, None, build(self.program, self.target))

    def compile(self, proposals: Sequence[tuple[Graph, float]], most: int | None = None) -> list[Contestant]:
        """Thread graphs and kernels for the first `most` proposals, or `_COMPILED`: (muGraph, predicted seconds), best first; of
        a few one of each work. With weights of few bits those that read them packed have half of the places, and come first."""
        most = _COMPILED if most is None else most
        chosen = dequantizing(proposals, self.target, self.constants)[: most // 2] if self.looked_at > _COMPILED else []
        others = (proposal for number, proposal in enumerate(proposals) if number not in chosen)
        first = self._defined([proposals[number] for number in chosen])
        taken = list(itertools.islice(itertools.chain(first, self._defined(others)), most))
        return self._compiled(taken if most > _FIRST else one_of_each_work(taken))

    @pages_reused()
    def first_proved(self, proposals: Sequence[tuple[Graph, float]], inputs: Sequence[Any]) -> list[Contestant]:
        """A few of the first proposals, compiled and roughly timed, of which the fastest is proved if that ends in time."""
        ranked = self._promising(self._roughly_ranked(self.compile(proposals, most=_FIRST), inputs), inputs)
        self.prove(ranked, most=1)
        return ranked

    def end_after(self, seconds: float) -> None:
        """End so many seconds after the start, unless that is later than the end, or nothing is proved."""
        if self.proved and (self.deadline.budget is None or seconds < self.deadline.budget):
            self.deadline = replace(self.deadline, budget=seconds)

    @property
    def may_prove_another(self) -> bool:
        """Whether half of what is left is as long as compiling and measuring were and the longest proof, or nothing is proved."""
        another = self.seconds["compile"] + self.seconds["measure"] + self.longest_proof
        return not self.interrupted and (not self.proved or self.deadline.allows(2 * another))

    @property
    def proved(self) -> list[Proved]:
        """What was proved so far."""
        return [proved for proved in self.tried.values() if proved is not None]

    @property
    def looked_at(self) -> int:
        """As many proposals as are worth looking at."""
        return LOOKED_AT if may_dequantize(self.program, self.constants) else _COMPILED

    @pages_reused()
    def compile_and_prove(self, proposals: Sequence[tuple[Graph, float]], most: int | None = None) -> list[Proved]:
        """The first few proposals that compile and are proved, at most `most`: where nothing is measured, those behind them are
        not needed. What was proved before is, where none of these is."""
        kept: list[Proved] = []
        enough = Deadline(_PROVING_SECONDS)
        wanted = self.most if most is None else most
        tried = itertools.islice(self._defined([*self._by_lowered(proposals[:_COMPILED]), *proposals[_COMPILED:]]), _COMPILED)
        while some := list(itertools.islice(tried, wanted - len(kept))):
            kept += self.prove(self._compiled(some, unpacked=True))
            if self.interrupted or self.deadline.passed or (kept and enough.passed):
                break
        return kept or self.proved

    def _by_lowered(self, proposals: Sequence[tuple[Graph, float]]) -> list[tuple[Graph, float]]:
        """The proposals in the order of what their lowered kernels are predicted to take, if that is known in time."""
        with self.timed("compile"):
            limit = Deadline(self.share(_LOWERING_SHARE))
            return by_lowered(proposals, machine_for(self.target), device_for(self.target), limit, self.lowered)

    def _compiled(self, proposals: Sequence[tuple[Graph, float]], unpacked: bool = False) -> list[Contestant]:
        """None are begun that the deadline would cut off if they take as long as those before, nor, once something is proved, if
        it would cut off a proof of them."""
        compiled: list[Contestant] = []
        limit, longest = Deadline(self.share(_COMPILING_SHARE)), 0.0
        if self.proved:
            longest = self.longest_compilation + self.longest_proof
        cores = available_cores()
        with self.stage("compile"), ThreadPoolExecutor(cores) as threads:  # the C compiler is a process of its own
            for start in range(0, len(proposals), cores):
                hurried = limit.passed or self.interrupted
                if self.deadline.passed or not self.deadline.allows(longest) or (compiled and hurried):
                    break
                self.tell("compile", f"candidate {start + 1} of {len(proposals)}", start / len(proposals))
                begun = self.deadline.elapsed
                build_one = passed_on(functools.partial(self._built, unpacked=unpacked))
                for built in threads.map(build_one, proposals[start : start + cores]):
                    if isinstance(built, Contestant):
                        compiled.append(built)
                    elif not any(built is before for before in self.rejected):
                        self.rejected.append(built)
                taken = self.deadline.elapsed - begun
                longest, self.longest_compilation = max(longest, taken), max(self.longest_compilation, taken)
        return compiled

    @pages_reused()
    def rank_and_prove(self, compiled: Sequence[Contestant], inputs: Sequence[Any]) -> list[Proved]:
        """What of the compiled proposals is proved, fastest first; what was proved before, where none of them is."""
        failed = {graph for graph, proved in self.tried.items() if proved is None}
        left = [entry for entry in compiled if entry.graph not in failed]
        rough = self._promising(self._roughly_ranked(left, inputs), inputs)
        if not self.proved and self.deadline.budget is not None and not self.deadline.allows(_LATE * self.deadline.budget):
            early = self.prove(rough, most=1)
            if self.interrupted:
                return early
        # ranked, it may have given its place to itself with unpacked weights, which is to be proved, too
        return self.prove(self._carefully_ranked(rough, inputs)) or self.proved

    def rank(self, compiled: Sequence[Contestant], inputs: Sequence[Any]) -> list[Contestant]:
        """Fastest first: the front runners by a careful measurement, the rest by a rough one."""
        return self._carefully_ranked(self._roughly_ranked(compiled, inputs), inputs)

    def _roughly_ranked(self, compiled: Sequence[Contestant], inputs: Sequence[Any]) -> list[Contestant]:
        """Fastest first by a race of a few calls; behind them those for which there was no time."""
        lap = functools.partial(self._lap, inputs, Deadline(self.share(_MEASURING_SHARE)))
        return race(compiled, lap, _FINALISTS)

    def _lap(self, inputs: Sequence[Any], limit: Deadline, entries: Sequence[Contestant], bursts: int) -> list[Contestant]:
        """The first of the entries timed one after the other, as many as there is time for: within the budget at least one that
        was not timed before."""
        timed: list[Contestant] = []
        longest = 0.0
        with self.stage("measure"):
            self.tell("measure", f"{len(entries)} candidates")
            for entry in entries:
                enough = limit.passed and (timed or math.isfinite(entry.latency))
                if enough or self.interrupted or self.deadline.passed or not self.deadline.allows(longest):
                    break
                begun = self.deadline.elapsed
                timed += measured([entry], inputs, rounds=bursts)
                if len(timed) > 1:  # now: what both have packed alike was packed once
                    timed[-2].executable.forget_weights()
                longest = max(longest, self.deadline.elapsed - begun)
            if timed:
                timed[-1].executable.forget_weights()
        return timed

    def _promising(self, ranked: Sequence[Contestant], inputs: Sequence[Any]) -> list[Contestant]:
        """Those whose calls were not measured to take far longer than the rival's, fastest first; the others are named among the
        rejections, those that would be timed carefully once both were timed a second time, for a stall delays a single call."""
        promising, left = list[Contestant](), list(ranked)
        with self.stage("measure"):
            while left:
                entry, again = left[0], len(ranked) - len(left) < _FINALISTS
                ratio = self._over_rival(entry)
                if ratio > _TOO_SLOW and again:
                    (entry,) = measured([entry], inputs, rounds=1)
                    entry.executable.forget_weights()
                    self.seconds_of_rival = None
                    ratio = self._over_rival(entry)
                if ratio > _TOO_SLOW:
                    why = f"a call takes {ratio:.1f} times as long as what it is to beat"
                    self.rejected.append(Rejection("measure", why, entry.cost))
                    self.tried[entry.graph] = None
                else:
                    promising.append(entry)
                left.pop(0)
        return [*fastest_first(promising), *left]

    def _over_rival(self, entry: Contestant) -> float:
        """How many times as long as the rival an entry takes at least; 0 where its calls are short, or were not measured, and
        where there is nothing to save: it is proved, or the budget is spent."""
        if self.rival is None or not _COSTLY <= entry.least < math.inf:
            return 0.0
        if self.tried.get(entry.graph) is not None or self.deadline.passed:
            return 0.0
        if self.seconds_of_rival is None:
            self.tell("measure", "a call of what kernels are to beat")
            self.seconds_of_rival = self.rival()
        return entry.least / self.seconds_of_rival

    def _carefully_ranked(self, rough: Sequence[Contestant], inputs: Sequence[Any]) -> list[Contestant]:
        """Fastest first, the front runners of a rough measurement by many calls, with their weights packed and as they are.

        As they were where no time is left, or Ctrl-C ended the measurement before.
        """
        if self.interrupted or self.deadline.passed:
            return list(rough)
        finalists: list[Contestant] = []  # none where Ctrl-C ends the stage before
        with self.stage("measure"):
            best = [entry for entry in rough[:_FINALISTS] if math.isfinite(entry.latency)]
            with ThreadPoolExecutor(available_cores()) as threads:
                unpacked = [*threads.map(passed_on(self._unpacked), (entry for entry in best if entry.executable.packs))]
            timed = self._carefully([*best, *unpacked], inputs)
            finalists = one_of_each(fastest_first(timed))
        known = {entry.graph.with_constants(()) for entry in finalists}
        return [*finalists, *(entry for entry in rough if entry.graph.with_constants(()) not in known)]

    def _unpacked(self, entry: Contestant) -> Contestant:
        """The same muGraph with all weights where they lie."""
        graph = entry.graph.with_constants(())
        return Contestant(graph, entry.cost, build(graph, self.target))

    def prove(self, ranked: Sequence[Contestant], most: int | None = None) -> list[Proved]:
        """The first few, at most `most`, that agree with float64 and are equivalent to the program, in the order given.

        Once there is one, no proof is begun that the deadline would cut off if it takes as long as those before. What was proved
        before is not proved again, and is among them however late it is.
        """
        most = 1 if self.interrupted else self.most if most is None else most
        enough, found = Deadline(_PROVING_SECONDS), 0
        with self.stage("verify"):
            for entry in ranked:
                if found == most:
                    break
                if entry.graph not in self.tried:
                    some = any(self.tried.values())
                    if self.deadline.passed or (some and (enough.passed or not self.deadline.allows(self.longest_proof))):
                        continue
                    begun = self.deadline.elapsed
                    hopeless = self._has_no_time_for(entry, ranked)
                    self.tried[entry.graph] = None if hopeless else self._proved(entry, f"candidate {found + 1}")
                    self.longest_proof = max(self.longest_proof, self.deadline.elapsed - begun)
                found += self.tried[entry.graph] is not None
        proofs = ((entry, self.tried.get(entry.graph)) for entry in ranked)
        return [replace(proved, entry=entry) for entry, proved in proofs if proved is not None][:most]

    def _has_no_time_for(self, entry: Contestant, others: Sequence[Contestant]) -> bool:
        """Whether the budget ends before the calls of the comparison with float64 would: of all kinds of inputs, and one of the
        original, as quick as the quickest of the entry was, or of those that were measured. Says so among the rejections."""
        quickest = [each.least for each in (entry, *others) if math.isfinite(each.least)]
        if not (quickest and entry.executable.machine.available):
            return False
        seconds = (1 + len(list(kinds()))) * (entry.least if math.isfinite(entry.least) else min(quickest))
        if seconds < self.share(1.0):
            return False
        why = f"the budget ends before the comparison with float64 would, whose calls take {seconds:.1f} s; raise it"
        self.rejected.append(Rejection("float", why, entry.cost, unfinished=True))
        return True

    def settle(self, kept: Sequence[Proved], original: Contestant, inputs: Sequence[Any]) -> tuple[list[Proved], Contestant]:
        """The kept ones, fastest first, and the original, all timed in the same rounds.

        As they are where less is left of the budget than the original may take without being hopeless, and where there is a
        budget and nothing to compare the original with.
        """
        entries = [proved.entry for proved in kept]
        if not entries and self.deadline.budget is not None:
            return [], original
        needed = _HOPELESS * min((entry.latency for entry in entries if math.isfinite(entry.latency)), default=0.0)
        with self.stage("measure"):
            if not (self.deadline.passed or self.interrupted) and self.deadline.allows(needed):
                self.tell("measure", "the verified candidates and the original program")
                original = called_once(original, inputs)
                if entries and original.latency > _HOPELESS * min(entry.latency for entry in entries):
                    entries = self._carefully(entries, inputs)
                else:
                    *entries, original = self._carefully([*entries, original], inputs)
        return reordered(kept, entries), original

    def settle_among(self, kept: Sequence[Proved], inputs: Sequence[Any]) -> list[Proved]:
        """The kept ones, fastest first, timed in the same rounds; as they are where there is one or no time."""
        entries = [proved.entry for proved in kept]
        with self.stage("measure"):
            if len(entries) > 1 and not (self.deadline.passed or self.interrupted):
                self.tell("measure", "the verified candidates")
                entries = self._carefully(entries, inputs)
        return reordered(kept, entries)

    def compared(self, result: Callable[..., Any], own: OwnCall, compiled: bool) -> BaselineComparison | None:
        """Whole calls of a result beside those of the user's function; None where Ctrl-C ended that."""
        with self.stage("measure"):
            tell = functools.partial(self.tell, "compare")
            tell("the result's calls and the function's own" + (", also compiled by PyTorch" if compiled else ""))
            return own.beside(result, machine_for(self.target), self.deadline, compiled=compiled, tell=tell)
        return None

    def as_it_is(self, original: Contestant) -> Proved:
        """The original program with its evidence, whatever its own error against float64 is; it is not measured after Ctrl-C."""
        floats: FloatReport | None = None
        certificate = self._verdict(original).certificate
        with self.stage("verify"), suppress(BudgetExceeded):
            floats = None if self.interrupted else self.floats(original)
        return Proved(original, certificate, floats)

    def contradicted(self, entry: Contestant, seconds: float) -> str:
        """What is wrong with a muGraph, by as many tests of its proof as fit the time, at least one; empty if nothing."""
        verdict = self._verdict(entry, seconds)
        return "" if verdict.certificate.tests in (Tests.AGREED, Tests.UNFINISHED) else verdict.reason

    def _defined(self, proposals: Iterable[tuple[Graph, float]]) -> Iterator[tuple[Graph, float]]:
        """The proposals that have a result where the program has one; of each form of the others, the first is reported."""
        for graph, cost in proposals:
            form = form_of(graph)
            if form not in self.undefined and (undefined := undefined_operator(self.program, graph, self.sampling_seed)):
                self.rejected.append(Rejection("float", f"undefined where the program is not: {undefined}", cost))
                self.undefined[form] = undefined
            if not self.undefined.setdefault(form, ""):
                yield graph, cost

    def built(self, graph: Graph, cost: float, unpacked: bool = False) -> Contestant:
        """Thread graphs and kernels for one muGraph; raises what lowering, printing and compiling raise."""
        known = self.lowered.get(graph)
        fused = construct(graph) if known is None else known.graph
        if self.constants and not unpacked:
            marked = fused.with_constants(self.constants)
            packing = build(marked, self.target)
            if packing.packs:
                return Contestant(marked, cost, packing)
        launches = None if known is None else known.launches
        return Contestant(fused, cost, Executable(fused, machine_for(self.target), launches=launches))

    def _built(self, proposal: tuple[Graph, float], unpacked: bool) -> Contestant | Rejection:
        graph, cost = proposal
        known = self.compiled.get(graph)
        if isinstance(known, Contestant):
            return replace(known, cost=cost)
        if known is None:
            try:
                known = self.built(graph, cost, unpacked)
            except MugraphError as error:
                known = Rejection("compile", str(error), cost)
            self.compiled[graph] = known
        return known

    def _proved(self, entry: Contestant, name: str) -> Proved | None:
        """The entry with its evidence; None, with the reason among the rejections, when it fails or the budget ends."""
        self.tell("verify", f"{name} against float64")
        try:
            floats = self.floats(entry, complete=False)
        except BudgetExceeded as error:
            self.rejected.append(Rejection("float", str(error), entry.cost, unfinished=True))
            return None
        if not floats.stable:
            self.rejected.append(Rejection("float", floats.reason, entry.cost))
            return None
        emulator = emulator_for(entry.executable)
        work = "proof at full size" if emulator is None else f"proof, and kernels on the {emulator.title}"
        self.tell("verify", f"{name}, {work}")
        with ThreadPoolExecutor(1) as beside:  # what runs the text is a compiler and compiled code
            running = beside.submit(passed_on(self.spot_checked), entry)
            verdict = self._verdict(entry)
            checked = running.result()
        if not suffices(verdict, self.evidence):
            unfinished = verdict.certificate.tests is Tests.UNFINISHED
            self.rejected.append(Rejection("verify", why_dropped(verdict), entry.cost, unfinished))
            return None
        if checked is not None and checked.fault:
            self.rejected.append(Rejection("text", checked.fault, entry.cost))
            return None
        if verdict.equivalent:
            self.tell("proved", name)
        return Proved(entry, verdict.certificate, floats, checked)

    def spot_checked(self, entry: Contestant) -> SpotCheck | None:
        """What the printed text does here where its machine is not; None for targets that run here."""
        return spot_check(entry.executable, self.sampling_seed, self.deadline, self.program)

    def floats(self, entry: Contestant, *, complete: bool = True, brief: bool = False) -> FloatReport:
        """The float check of the kernels, or of their stand-ins on this host where the target cannot run here: at some blocks
        where all take long, which the user's function cannot be asked for.

        Raises BudgetExceeded where the deadline passes before it ends; stand-ins are not compiled behind it.
        """
        machine = entry.executable.machine
        if self.deadline.passed:
            raise BudgetExceeded(LATE)
        sample = None if machine.available else BlockSample.of(self.program, entry.graph)
        program, graph = (self.program, entry.graph) if sample is None else (sample.program, sample.graph)
        executable = entry.executable if machine.available else Executable(graph, machine.stand_in)
        found = float_check(
            runner(executable),
            program,
            baseline=self.baseline if sample is None else None,
            seed=self.sampling_seed,
            graph=None if brief else graph,
            budget=self.deadline.remaining,  # of what the stand-in's compiler has left
            complete=complete,
            brief=brief,
        )
        return found if sample is None else sample.reported(found)

    def _verdict(self, entry: Contestant, seconds: float = math.inf) -> Verdict:
        """What tests show of an entry; where those without a bound are to count, it is looked at in high precision, too."""
        left = self.deadline.remaining
        budget = min(seconds, math.inf if left is None else left)
        return judged(self.program, entry.graph, self.evidence, max_error=self.max_error, seed=self.seed, budget=budget)

    def _carefully(self, entries: Sequence[Contestant], inputs: Sequence[Any]) -> list[Contestant]:
        """The entries timed in many interleaved rounds, in their order; as they are if not even one round is affordable."""
        seconds = self.share(_MEASURING_SHARE)
        warmup_and_round = _LEAST_CALLS * sum(entry.latency for entry in entries if math.isfinite(entry.latency))
        if not entries or warmup_and_round > seconds:
            return list(entries)
        return measured(entries, inputs, _CAREFUL_ROUNDS, limit=min(_MEASURING_SECONDS, seconds))
