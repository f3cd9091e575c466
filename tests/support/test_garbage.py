"""Old objects and collections of garbage."""

from __future__ import annotations

import gc
import weakref

import pytest

from mugraph.support.garbage import old_objects_frozen


class Cycle:
    """Something that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


pytestmark = pytest.mark.usefixtures("nothing_frozen")


def _freed(reference: weakref.ref[Cycle]) -> bool:
    gc.collect()
    return reference() is None


def test_collections_look_at_new_objects_alone() -> None:
    old = weakref.ref(Cycle())
    with old_objects_frozen():
        new = weakref.ref(Cycle())
        assert _freed(new)
        assert not _freed(old)
    assert _freed(old)
    assert gc.get_freeze_count() == 0


def test_what_others_have_frozen_stays_frozen() -> None:
    old = weakref.ref(Cycle())
    gc.freeze()
    with old_objects_frozen():
        pass
    assert not _freed(old)
