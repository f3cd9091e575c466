"""How the kernels of a result were lowered, pass by pass: the tile form to begin with, and what each pass changed of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from mugraph.results.data import Result

_AROUND = 1
"""Lines that stay the same and are shown before and after those that changed."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a kernel's text: `mark` is "+" where a pass adds it, "-" where it takes it away, "…" where lines are left out."""

    mark: str
    text: str


@dataclass(frozen=True, slots=True)
class PassView:
    """A pass, and the lines that it changed among others; of the first one, all lines of the kernel."""

    name: str
    lines: tuple[Line, ...]
    changed: int


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel, the passes that changed it, and the names of those that did not."""

    name: str
    passes: tuple[PassView, ...]
    idle: tuple[str, ...]


def lowered_kernels(opt: Result) -> Iterator[LoweredKernel]:
    """Every generated kernel of a result, as `mugraph explain` tells it."""
    stages: dict[str, list[tuple[str, str]]] = {}
    for kernel, name, text in opt.executable.machine.explain(opt.graph):
        stages.setdefault(kernel, []).append((name, text))
    for kernel, passes in stages.items():
        first, *others = passes
        views = [PassView(first[0], tuple(Line("", line) for line in first[1].splitlines()), 0)]
        idle: list[str] = []
        before = first[1]
        for name, text in others:
            if text == before:
                idle.append(name)
                continue
            lines = tuple(_changes(before, text))
            views.append(PassView(name, lines, sum(line.mark in ("+", "-") for line in lines)))
            before = text
        yield LoweredKernel(kernel, tuple(views), tuple(idle))


def _changes(before: str, after: str) -> Iterator[Line]:
    differences = difflib.unified_diff(before.splitlines(), after.splitlines(), n=_AROUND, lineterm="")
    for line in list(differences)[2:]:  # after the names of the two files
        yield Line("…", "") if line.startswith("@@") else Line(line[0].strip(), line[1:])
