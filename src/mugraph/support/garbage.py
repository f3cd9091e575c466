"""Collections of garbage that do not look at what was there before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def old_objects_frozen() -> Iterator[None]:
    """Within, collections look at newer objects alone: of a model that PyTorch has traced there are a million older ones.

    Where somebody has frozen objects already, which would not be told from these afterwards, nothing changes.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
