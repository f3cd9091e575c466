"""Options of the backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.pieces.piece_options import PieceOptions
from mugraph.results.data import Rejection, Report
from mugraph.selection.reasons import why_nothing


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fast": True}, r"unknown option 'fast'.*use target, budget, keep"),
        ({"keep": "some"}, "use one of faster, all"),
        ({"cache": "often"}, "unknown cache mode"),
        ({"sizes": -1}, "option sizes=-1"),
        ({"budget": "20"}, "budget is a number of seconds, at least 0, not '20'"),
        ({"budget": -1.0}, "budget is a number of seconds"),
        ({"seed": "x"}, "seed is an integer"),
        ({"max_error": 2}, "max_error must lie between 0 and 1, not 2"),
        ({"strict": "no"}, "option strict='no': use True or False"),
    ],
)
def test_options_are_checked(options: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        PieceOptions.of(options)


REPORT = Report(False, {"exhausted": True, "exhausted_what": "all kernels"}, 0, (), 0.0, 0.0, 0.0, 0.0, None, 0)
UNFINISHED = replace(REPORT, search={"exhausted": False, "exhausted_what": "nothing"})


@pytest.mark.parametrize(
    ("report", "proved", "words"),
    [
        (REPORT, 0, "there are no kernels that are better: all kernels"),
        (REPORT, 2, "slower than its operators one by one"),
        (UNFINISHED, 0, "the time ran out before a muGraph was found"),
        (replace(REPORT, proposed=3), 0, "the time ran out before one of its 3 muGraphs was proved"),
        (replace(REPORT, proposed=3, rejected=(Rejection("float", "it overflows", None),)), 0, "passed; float: it overflows"),
    ],
)
def test_why_there_are_no_kernels_is_said(report: Report, proved: int, words: str) -> None:
    assert words in why_nothing(report, proved)


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(TargetUnavailable, match="unknown target 'gpu'; use cpu"):
        PieceOptions.of({"target": "gpu"})
