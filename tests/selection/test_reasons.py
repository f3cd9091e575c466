"""Why a function runs as it is: results say that the time ran out where it did, and nothing of it where it sufficed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mugraph
from mugraph.cli.output import _nothing_found, result_json
from mugraph.results.data import Rejection, Report
from mugraph.runtime.baselines import EAGER, BaselineComparison
from mugraph.runtime.benchmarking import Duel
from mugraph.selection.reasons import NOTHING_FASTER, out_of_time, why_as_it_is

ENDED = Report(False, {"exhausted": True, "exhausted_what": "all kernels"}, 0, (), 0.0, 0.0, 0.0, 0.0, None, 0)
HURRIED = replace(ENDED, search={"exhausted": False, "exhausted_what": "nothing"})
REJECTED = replace(HURRIED, proposed=1, rejected=(Rejection("float", "it overflows", None),))
LED = Duel(2, 2, 1.37, cut_short=True)


def compared(duel: Duel) -> Report:
    """A report of calls that were timed beside the function's."""
    return replace(HURRIED, proposed=3, comparison=BaselineComparison({EAGER: duel}))


@pytest.mark.parametrize(
    ("report", "proved", "limited", "words"),
    [
        (ENDED, 0, True, NOTHING_FASTER),
        (HURRIED, 0, True, "the time ran out before a muGraph was found"),
        (HURRIED, 0, False, NOTHING_FASTER),
        (HURRIED, 2, True, NOTHING_FASTER),
        (replace(HURRIED, proposed=3), 0, True, "the time ran out before one of its 3 muGraphs was proved"),
        (REJECTED, 0, True, NOTHING_FASTER),
        (replace(REJECTED, search=HURRIED.search | {"left_to_pieces": True}), 0, True, "before it was searched as a whole"),
        (replace(HURRIED, interrupted=True), 0, True, "the search was interrupted"),
        (compared(Duel(20, 10, 1.0)), 1, True, NOTHING_FASTER),
        (compared(LED), 1, True, "the time ran out before it was clear whether its kernels are faster than the function"),
    ],
)
def test_the_reason_is_the_time_where_it_ran_out(report: Report, proved: int, limited: bool, words: str) -> None:
    assert words in why_as_it_is(report, proved, limited)


def test_a_program_that_cannot_be_divided_says_that_its_time_ran_out() -> None:
    """It said that nothing clearly faster was found, also as JSON."""
    opt = mugraph.superoptimize(lambda x: (x * x).sum(-1), (torch.randn(4, 8),), budget=0.0, profile=False, cache="off")
    assert not opt.found
    why = out_of_time("a muGraph was found")
    assert [calls["reason"] for calls in result_json(opt)["coverage"]["left"]] == [why]
    assert why in _nothing_found(opt)
