"""Calls from several threads at once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def at_once(call: Callable[[Argument], Result], arguments: Collection[Argument]) -> list[Result]:
    """What a function returns for each of the arguments, called in as many threads; raises what the first of them raises."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(call, arguments))
