"""Options of the backend."""

from __future__ import annotations

import pytest

from mugraph.errors import InvalidInput
from mugraph.outcomes import Options


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fast": True}, r"unknown option 'fast'.*use target, budget, keep"),
        ({"keep": "some"}, "use one of faster, all"),
        ({"cache": "often"}, "unknown cache mode"),
        ({"sizes": -1}, "option sizes=-1"),
    ],
)
def test_options_are_checked(options: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        Options.of(options)
