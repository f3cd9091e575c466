"""What holds for every test: seeds are fixed, and nothing is recalled from earlier runs unless a test has its own store."""

from __future__ import annotations

import os

import pytest

from mugraph.support import seeds

os.environ["MUGRAPH_CACHE"] = "off"


@pytest.fixture(autouse=True)
def _fixed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure can be repeated."""
    monkeypatch.setattr(seeds, "fresh_seed", lambda: 0)
