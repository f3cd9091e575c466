"""Whether kernels run a function as one program or in pieces: which of the two is searched, and what of a budget each has."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mugraph.devices import device_for
from mugraph.errors import InvalidInput, MugraphError, UnsupportedOperator
from mugraph.ir.cores import has_lookups
from mugraph.ir.graph import Graph
from mugraph.ir.ops import GRAPH_DEFINED, is_contraction, is_scan
from mugraph.ir.parts import has_parts, objection
from mugraph.pieces.shares import seconds_of_whole
from mugraph.results.coverage import of_program
from mugraph.results.superoptimized import Superoptimized
from mugraph.search.long_programs import LONG
from mugraph.selection.problems import ExampleInputs, Problem, function_problem
from mugraph.selection.reasons import out_of_time
from mugraph.selection.whole_programs import OptimizationSettings, superoptimized
from mugraph.support.deadline import Deadline
from mugraph.support.progress import ProgressCallback
from mugraph.verifier import is_beyond_tests

if TYPE_CHECKING:
    from mugraph.frontend.recording.torch_trace import RecordedCall

_FOR_THE_WHOLE = 0.6
"""The part of a budget for a program with parts of tensors, or of more than _SHORT operators, as a whole: where nothing is found,
its pieces have the rest."""
_SHORT = 24
_FOR_A_LONG_WHOLE = 0.3
"""That part for one of more than LONG operators: every candidate has the kernels of many segments to be compiled and proved."""
_WHOLE = 4
"""Contractions of a program with parts of tensors, beyond which its pieces are searched one by one."""


@dataclass(frozen=True, slots=True)
class FunctionSearch:
    """A recorded call of a function to be optimized, with its example inputs, and how."""

    call: RecordedCall
    inputs: ExampleInputs
    settings: OptimizationSettings
    deadline: Deadline
    tell: ProgressCallback

    def optimized(self, like: Superoptimized | None) -> Superoptimized:
        """The function by kernels for all of it or for the programs in it, which are to be like those of a result in pieces.

        Raises InvalidInput and UnsupportedOperator for what is no program, where pieces are not asked for.
        """
        if like is not None and self._divisible:
            return self._in_pieces(UnsupportedOperator("it was fastest in pieces"), like)
        try:
            problem = problem_of_call(self.call, self.inputs)
            if self._divisible and (why := _better_divided(problem.program, self.settings.target)):
                raise UnsupportedOperator(why)
        except (InvalidInput, UnsupportedOperator) as refusal:
            if not self._divisible:
                raise
            return self._in_pieces(refusal)
        if not self._divisible or not _may_be_divided(problem.program):
            return superoptimized(problem, self.settings, self.deadline, self.tell)
        if why := self._too_little_time(problem.program) or self._beyond_proof(problem.program):
            return self._in_pieces_first(problem, why)
        return self._as_a_whole_first(problem)

    @property
    def _divisible(self) -> bool:
        """Whether pieces may be searched: not for a muGraph's form or another engine."""
        return not self.settings.like and self.settings.search == "closure"

    def _too_little_time(self, program: Graph) -> str:
        """Why a program as a whole would come to nothing in its part of the budget, busy as the machine is; "" of others."""
        operators, seconds = len(program.kernels()), self.deadline.share(_share_of_whole(program))
        if operators <= _SHORT or seconds is None or seconds >= seconds_of_whole(operators):
            return ""
        return f"there is too little time for its {operators} operators together"

    def _beyond_proof(self, program: Graph) -> str:
        """Why little is likely to be proved of a long program as a whole, whose search, compilation and proofs would take most of
        the time that its pieces need; "" of others."""
        operators = len(program.kernels())
        doubtful = self.settings.evidence == "bounded" and operators > LONG and is_beyond_tests(program, self.settings.max_error)
        return f"tests of its {operators} operators together have no bound" if doubtful else ""

    def _in_pieces_first(self, problem: Problem, why: str) -> Superoptimized:
        """What is found of the pieces of a program; else of the whole, with what they leave of the time."""
        with suppress(InvalidInput, UnsupportedOperator):  # what is no reason to lose the whole
            pieces = self._in_pieces(UnsupportedOperator(why))
            if pieces.found or pieces.report.interrupted or self.deadline.passed:
                return pieces
        return superoptimized(problem, self.settings, self.deadline, self.tell)

    def _as_a_whole_first(self, problem: Problem) -> Superoptimized:
        """What is found of the whole program in its part of the budget; else of its pieces; else the whole, with the rest."""
        divided, share = replace(self.settings, divisible=True), _share_of_whole(problem.program)
        whole = superoptimized(problem, divided, Deadline(self.deadline.share(share)), self.tell)
        if (whole.found and not _mostly_as_it_is(whole)) or whole.report.interrupted:
            return whole
        if self.deadline.passed:
            return _without_time_for_pieces(whole)
        with suppress(InvalidInput, UnsupportedOperator):  # what is no reason to lose the whole: it calls the function
            if (pieces := self._in_pieces(whole)).found:
                return pieces
        if whole.report.search.get("left_to_pieces") and not self.deadline.passed:
            return superoptimized(problem, self.settings, self.deadline, self.tell)
        return whole

    def _in_pieces(self, whole: MugraphError | Superoptimized, like: Superoptimized | None = None) -> Superoptimized:
        """The function with kernels for the programs in it, those of `like` at other sizes: as a `whole` it is not searched, or
        nothing was found of it."""
        from mugraph.pieces.cutting import superoptimized_in_pieces

        results = () if like is None else like.results
        return superoptimized_in_pieces(self.call, self.inputs, self.settings, self.deadline, self.tell, whole, results)


def problem_of_call(call: RecordedCall, example_inputs: ExampleInputs) -> Problem:
    """The problem that a recorded call is; raises InvalidInput and UnsupportedOperator for what is no program."""
    from mugraph.frontend.recording.torch_trace import traced

    return function_problem(traced(call), call.fn, example_inputs)


def _better_divided(program: Graph, target: str) -> str:
    """Why the program of a function had better be searched in pieces, which those without parts of tensors, lookups and scans
    never are; or ""."""
    device = device_for(target)
    if has_lookups(program) and not device.operands_in_place:
        return "kernels of GPUs read no integers"
    if any(is_scan(node.op) for node in program.nodes) and not device.scans:
        return "running sums and products are kernels of the CPU alone"
    contractions = sum(is_contraction(node.op) for node in program.nodes)
    if has_parts(program) and contractions > _WHOLE:
        return f"it has parts of tensors, and {contractions} contractions"
    return objection(program)


def _may_be_divided(program: Graph) -> bool:
    """Whether there may be kernels for pieces of a program where there are none for the whole: around products, which a library
    may be faster at, and around parts of tensors."""
    return has_parts(program) or any(is_contraction(node.op) for node in program.nodes)


def _share_of_whole(program: Graph) -> float:
    """The part of a budget for a program as a whole, if its pieces may have the rest."""
    operators = len(program.kernels())
    if operators > LONG:
        return _FOR_A_LONG_WHOLE
    return _FOR_THE_WHOLE if has_parts(program) or operators > _SHORT else 1.0


def _without_time_for_pieces(whole: Superoptimized) -> Superoptimized:
    """What was found of a program as a whole; where it is out of the search's reach, it says that its pieces may be within it."""
    if not whole.found and whole.report.search.get("refused"):
        coverage = of_program(whole.program, None, out_of_time("its pieces were searched"))
        whole.report = replace(whole.report, coverage=coverage)
    return whole


def _mostly_as_it_is(whole: Superoptimized) -> bool:
    """Whether most kernels of what was found in segments are single operators of the program, as where time was short."""
    kernels = whole.graph.kernels()
    return whole.report.search.get("segments", 0) > 0 and 2 * sum(node.op != GRAPH_DEFINED for node in kernels) > len(kernels)
