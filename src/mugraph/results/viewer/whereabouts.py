"""Where boxes of a muGraph are in the printed sources, and back, as far as names tell: functions of kernels, buffers of tensors.

Sources in C and CUDA do not say which statement belongs to which operator, for one may do the work of several. What they do have
is the name of each kernel, and the names of the buffers that its tensors lie in. Sources in Triton have a variable for a node.
A kernel whose block graph was rewritten before it was lowered has other nodes than the drawing, which lead to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from mugraph.ir.graph import Graph
from mugraph.lower.tile_form import Kernel
from mugraph.results.data import Result
from mugraph.results.viewer.environment import highlighted
from mugraph.results.viewer.labels import Labels
from mugraph.targets.triton.kernel import TileKernel

_MOST = 12
"""Lines that one box lists."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """What a box is in the sources: words, and the ids of lines with their numbers. `more` lines are not listed."""

    words: str
    lines: tuple[tuple[str, int], ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """A function of a source file; its lines are counted from 1, and `last` is one of them."""

    file: str
    name: str
    first: int
    last: int


def function(sources: Mapping[str, str], name: str) -> SourceFunction | None:
    """Where the function of the kernel called `name` is defined; None where no file defines it."""
    begins = re.compile(rf"(?:def |[^\s#/].*\b){name}(?:_blocks)?\(.*[^;]$")
    for file, text in sources.items():
        lines = text.splitlines()
        for number, line in enumerate(lines, start=1):
            if begins.match(line):
                return SourceFunction(file, name, number, number + _rest(lines[number:]))
    return None


def _rest(lines: list[str]) -> int:
    """How many lines a function has below its first: to the brace that closes it, or to the next line that is not indented."""
    count = 0
    for number, line in enumerate(lines, start=1):
        if line.startswith("}"):
            return number
        if line.strip():
            if not line.startswith((" ", "\t", ")", "{")):
                return count
            count = number
    return count


class Whereabouts:
    """The places of the boxes of a result's pictures by their ids, and the way back from lines.

    The kernel graph's boxes are called `kernels-N`, those of the block graph of node N `block-N-M`.
    """

    def __init__(self, opt: Result) -> None:
        self._sources = opt.sources
        self._files = {file: number for number, file in enumerate(opt.sources, start=1)}
        self._back: dict[tuple[str, int], str] = {}
        self._targets: set[tuple[str, int]] = set()
        self.places: dict[str, SourcePlace] = {}
        """By the ids of boxes."""
        if not opt.found:
            return
        for index, launch in opt.executable.placement.launches.items():
            found = function(opt.sources, launch.kernel.name)
            if found is not None:
                self._kernel(index, found)
                if launch.body != opt.graph.nodes[index].body:
                    continue
                if isinstance(launch.kernel, Kernel):
                    self._buffers(index, found, launch.kernel, Labels(launch.body))
                elif isinstance(launch.kernel, TileKernel):
                    self._variables(index, found, launch.body)

    def source(self, file: str) -> Markup:
        """A source in colours. Lines that boxes lead to have ids; those where a function or buffer begins lead back to a box."""
        lines = highlighted(file, self._sources[file]).split("\n")
        return Markup("\n").join(self._line(file, number, Markup(line)) for number, line in enumerate(lines, start=1))

    def _kernel(self, index: int, found: SourceFunction) -> None:
        words = f"In {found.file} it is {found.name}, lines {found.first} to {found.last}:"
        self._place(f"kernels-{index}", found.file, words, [found.first])
        self._back[found.file, found.first] = f"kernels-{index}"

    def _buffers(self, index: int, found: SourceFunction, kernel: Kernel, labels: Labels) -> None:
        lines = self._sources[found.file].splitlines()[: found.last]
        for value, tile in kernel.tensors:
            box = f"block-{index}-{value.node}"
            named = re.compile(rf"\b{tile.buffer}\b")
            own = [number for number, line in enumerate(lines, start=1) if number > found.first and named.search(line)]
            if own and box not in self.places and not labels.is_folded(value.node):
                self._place(box, found.file, f"It lies in {tile.buffer}, which {found.file} names in", own)
                self._back.setdefault((found.file, own[0]), box)

    def _variables(self, index: int, found: SourceFunction, body: Graph) -> None:
        lines = self._sources[found.file].splitlines()[: found.last]
        for node in range(len(body.nodes)):
            named = re.compile(rf"\s+(?!part_)\w+_{node} = ")
            own = [number for number, line in enumerate(lines, start=1) if number > found.first and named.match(line)]
            if own and not Labels(body).is_folded(node):
                self._place(f"block-{index}-{node}", found.file, f"In {found.file} it is a variable of its own, set in", own)
                self._back.setdefault((found.file, own[0]), f"block-{index}-{node}")

    def _place(self, box: str, file: str, words: str, lines: list[int]) -> None:
        self._targets.update((file, line) for line in lines[:_MOST])
        shown = tuple((self._id(file, line), line) for line in lines[:_MOST])
        self.places[box] = SourcePlace(words, shown, max(0, len(lines) - _MOST))

    def _id(self, file: str, line: int) -> str:
        return f"source-{self._files[file]}-{line}"

    def _line(self, file: str, number: int, line: Markup) -> Markup:
        if (file, number) not in self._targets:
            return line
        back = self._back.get((file, number))
        if back is None:
            return Markup('<span id="{}">{}</span>').format(self._id(file, number), line)
        return Markup('<a id="{}" href="#{}" title="to its box">{}</a>').format(self._id(file, number), back, line)
