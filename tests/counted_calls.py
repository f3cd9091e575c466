"""How many calls of Python's functions something makes: what is done anew, with no clock."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType


def counted_calls(run: Callable[[], object]) -> Counter[str]:
    """Calls of mugraph's functions in this thread, by file and name, while something runs."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, arg: object) -> None:
        _, inside, file = frame.f_code.co_filename.partition("/mugraph/")
        if event == "call" and inside:
            found[f"{file}:{frame.f_code.co_qualname}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


def more_in_the_first(run: Callable[[], object], other: Callable[[], object]) -> Counter[str]:
    """What the first call makes more of than a later one, each after the `other`, which has been called before."""
    for _ in range(3):
        other()
    first = counted_calls(run)
    for each in (other, run, other):
        each()
    return first - counted_calls(run)
