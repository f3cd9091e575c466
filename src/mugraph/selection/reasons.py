"""Why nothing of what was searched for runs, in words: the time ran out, nothing is better, nothing passed."""

from __future__ import annotations

from mugraph.results.data import Report
from mugraph.runtime.baselines import EAGER
from mugraph.runtime.benchmarking import Duel

NOTHING_FASTER = "nothing clearly faster was found"
"""Why a function runs as it is where the time sufficed."""


def out_of_time(until: str) -> str:
    """Why a program whose time ran out before something runs without kernels."""
    return f"the time ran out before {until}; a larger budget may find kernels"


def why_not_faster(found: Duel | None, rival: str) -> str:
    """Why kernels that were timed beside a `rival` do not run, or were not for want of time (None); "" where they are clearly
    faster."""
    if found is None:
        return out_of_time("its kernels were compared with what they would replace")
    if found.clear:
        return ""
    times = f"{found.speedup:.2f}x"
    if found.undecided:
        rounds = f"{found.rounds} round{'s' * (found.rounds != 1)}"
        return f"the time ran out before it was clear whether its kernels are faster than {rival} ({times} in {rounds})"
    return f"its kernels are not clearly faster than {rival} ({times})"


def ran_out(report: Report, proved: int) -> bool:
    """Whether a program for which so many muGraphs were proved has no kernels for want of time."""
    if proved or report.search.get("refused"):
        return False
    if report.rejected:
        return any(each.unfinished for each in report.rejected)
    return bool(report.proposed) or not report.exhausted


def why_nothing(report: Report, proved: int) -> str:
    """Why a program for which so many muGraphs were proved runs without kernels."""
    if ran_out(report, proved):
        until = f"one of its {report.proposed} muGraphs was proved" if report.proposed else "a muGraph was found"
        return out_of_time(until)
    if proved:
        return "its kernels are slower than its operators one by one"
    if report.rejected:
        stage = report.rejected[0]
        return f"none of its {report.proposed} muGraphs passed; {stage.stage}: {stage.reason}"
    return f"there are no kernels that are better: {report.exhausted_what}"


def why_as_it_is(report: Report, proved: int, limited: bool) -> str:
    """Why a function runs as it is, for which so many muGraphs were proved, within a budget if the time was `limited`."""
    found = report.baselines.get(EAGER)
    if found is not None:
        return why_not_faster(found, "the function") if found.undecided else NOTHING_FASTER
    if report.interrupted:
        return "the search was interrupted before anything clearly faster was found"
    if limited and report.search.get("left_to_pieces"):
        return out_of_time("it was searched as a whole")
    return why_nothing(report, proved) if limited and ran_out(report, proved) else NOTHING_FASTER
