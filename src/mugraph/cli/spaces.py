"""From the options of a command to the part of the search space that they ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from mugraph.errors import InvalidInput
from mugraph.search import SearchSpace

_MAP = re.compile(r"\s*([\w.]+)\s*\{(.*)\}\s*")
T = TypeVar("T")


def space_of(
    kernels: int | None, block_operators: int | None, grids: str | None, loops: str | None, maps: Sequence[str]
) -> SearchSpace:
    """The space that `--kernels 1 --grids 128,8x16 --loops 1,16 --map 'x{i<->1}'` asks for; raises InvalidInput."""
    named: dict[str, str] = {}
    for text in maps:
        match = _MAP.fullmatch(text)
        if match is None or match[1] in named:
            raise InvalidInput(f"--map {text}: write each input once, with its map in braces, as in 'x{{x<->phi, i<->1}}'")
        named[match[1]] = match[2]
    return SearchSpace(kernels, block_operators, _listed("--grids", grids, _grid), _listed("--loops", loops, int), named)


def _listed(option: str, text: str | None, one: Callable[[str], T]) -> list[T] | None:
    """The members of a list written with commas."""
    if text is None:
        return None
    try:
        return [one(word) for word in text.split(",")]
    except ValueError:
        form = "8x16,128" if option == "--grids" else "1,16"
        raise InvalidInput(f"{option} {text}: write whole numbers with commas between them, as in {form}") from None


def _grid(word: str) -> tuple[int, ...]:
    return tuple(int(count) for count in word.split("x"))
