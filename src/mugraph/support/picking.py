"""Items of a sequence by their numbers, as fast as Python knows how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any


def picked(numbers: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that gives a tuple of the items of these numbers: `itemgetter`, which makes none of less than two."""
    match tuple(numbers):
        case ():
            return lambda items: ()
        case (number,):
            return lambda items: (items[number],)
        case several:
            return itemgetter(*several)
