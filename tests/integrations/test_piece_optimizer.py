"""Options of the backend."""

from __future__ import annotations

import pytest

from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.integrations.piece_optimizer import PieceOptions


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


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(TargetUnavailable, match="unknown target 'gpu'; use one of cpu"):
        PieceOptions.of({"target": "gpu"})
