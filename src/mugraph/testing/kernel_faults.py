"""Faults planted in the text of generated CUDA kernels: what a code generator could forget, one place at a time.

Each is tried on the CPU emulator, which has to notice it: by a finding, or by a wrong result. A few plants are no faults and
nothing can notice them: a barrier between statements whose threads touch the same elements, a swizzle that only exchanges terms
of one sum, or a running maximum replaced by any other number that is used in its place throughout. Accesses of these kernels do
not depend on data: a barrier that the emulator misses in no order of the warps is one that no two threads need.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.lower.memory import lifetimes
from mugraph.lower.tile_form import Kernel, Memory
from mugraph.runtime import Executable
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.cuda.nvrtc import SOURCE_NAME
from mugraph.testing.mugraph_runs import LARGEST_ERROR, relative_error


@dataclass(frozen=True, slots=True)
class Plant:
    """A fault of some kind, the line of the kernels' text it changes, and the text with it."""

    kind: str
    line: str
    text: str


@dataclass(frozen=True, slots=True)
class FaultTrials:
    """What became of the faults of one kind: places there are, faults tried, and the lines of those that went unnoticed."""

    places: int
    tried: int
    unnoticed: tuple[str, ...]


def planted(graph: Graph, machine: Cuda) -> dict[str, list[Plant]]:
    """Every fault that has a place in the kernels of a graph, by kind; nothing is run."""
    found: dict[str, list[Plant]] = {}
    for plant in itertools.chain.from_iterable(_planted(graph, machine, apart) for apart in (False, True)):
        found.setdefault(plant.kind, []).append(plant)
    return dict(sorted(found.items()))


def try_faults(graph: Graph, inputs: Sequence[Any], machine: Cuda, most: int) -> dict[str, FaultTrials]:
    """Faults of each kind in the kernels of a graph of 16-bit tensors, up to `most` of a kind, evenly spread over the text.

    Raises AssertionError when the kernels are not right and clean without a fault.
    """
    exact = evaluate(graph, [tensor.double().numpy() for tensor in inputs], FloatArithmetic())

    def noticed(plant: Plant | None) -> bool:
        return any(_noticed(graph, inputs, exact, machine, plant, seed) for seed in _ORDERS)

    assert not noticed(None), "the kernels themselves are not right and clean"
    found: dict[str, FaultTrials] = {}
    for kind, of_kind in planted(graph, machine).items():
        chosen = of_kind[:: math.ceil(len(of_kind) / most)]
        escaped = tuple(plant.line for plant in chosen if not noticed(plant))
        found[kind] = FaultTrials(len(of_kind), len(chosen), escaped)
    return found


def _planted(graph: Graph, machine: Cuda, apart: bool) -> Iterator[Plant]:
    """Barriers are taken from kernels as they are, other faults planted where an access that misses its buffer hits no other.

    With buffers apart, a barrier between statements that only share bytes would be needless.
    """
    on = EmulatedCuda(machine, apart=apart)
    kernels = [launch.kernel for launch in on.lower(graph).values()]
    return (plant for plant in plants(kernels, on.print(kernels)[SOURCE_NAME]) if (plant.kind == "barrier") != apart)


_ORDERS = (1, 0, 2, 3)
"""Seeds of the orders in which warps take turns, until one shows the fault: a cell does not remember all of its readers."""


def _noticed(graph: Graph, inputs: Sequence[Any], exact: Sequence[Any], machine: Cuda, plant: Plant | None, seed: int) -> bool:
    """Whether the emulator finds a fault in the graph's kernels, or in their results, with or without a fault in their text."""
    apart = plant is None or plant.kind != "barrier"
    on = EmulatedCuda(machine, seed, edit=lambda printed: plant.text if plant else printed, apart=apart)
    results = [result.double().numpy() for result in Executable(graph, on)(*inputs)]
    return bool(on.findings) or not relative_error(results, exact) < LARGEST_ERROR[graph.inputs()[0].output.dtype]


def plants(kernels: Sequence[Kernel], text: str) -> Iterator[Plant]:
    """Every fault of every kind that has a place in the text."""
    for kind, pattern, replacement in (*_REMOVED, *_STRIDES, _SWIZZLE):
        for match in re.finditer(pattern, text):
            if not _is_idle(text[: match.end()]) and not _is_summed(text, match):
                line = text[text.rfind("\n", 0, match.end()) + 1 :].partition("\n")[0].strip()
                yield Plant(kind, line, text[: match.start()] + match.expand(replacement) + text[match.end() :])
    for first, second in _alive_together(kernels):
        yield Plant("overlap", f"{second} where {first} lies", _placed_alike(text, first, second))


_KEPT = r"(?:\s*total\[[^;]*;)*\s*\{\s*\w+\[i\]\[r\] = "
"""What stands behind a shuffle whose result every lane keeps for itself."""
_REMOVED = (
    ("barrier", r"__syncthreads\(\);", ""),
    ("wait", r"cp_async_wait<\d+>\(\);", ""),
    ("wait", r"mbarrier_wait\([^;]*\);", ""),
    ("wait", r"wgmma_wait<\d+>\(\);", ""),
    ("wait", r"wgmma_wait<1>", "wgmma_wait<2>"),
    ("count", r"mbarrier_init\(left \+ stage, (\d+)\)", "mbarrier_init(left + stage, 1)"),
    ("fence", r"(?:proxy|wgmma)_fence\(\);", ""),
    ("count", r"mbarrier_arrive_expect\(count, (\d+)\)", r"mbarrier_arrive_expect(count, \1 - 16)"),
    ("mask", r"if \(m < \d+ && n < \d+\)", ""),
    ("mask", r"if \(m < \d+\)", ""),
    ("mask", r"if \(wanted < \d+( && [^)]*)?\)", ""),
    ("mask", r"if \(lane % 4 == 0 && m < \d+\)", "if (lane % 4 == 0)"),
    ("shuffle", r"(total(?:\[i\]\[r\])?) = \1 \+ shfl_xor\(\1, \d+\);", ""),
    # A maximum that one lane stores may be that of its own elements alone: it is the one that all others use, too.
    ("shuffle", r"total\[i\]\[r\] = max\(total\[i\]\[r\], shfl_xor\(total\[i\]\[r\], \d\)\);(?=" + _KEPT + ")", ""),
    ("lanes", r"(fragment_of_sums<\w+>\([^;]*), (\w+\[\w\]\[[^;]*?\]), ([^;]*)\);", r"\1, \3, \2);"),
    ("mask", r"e = thread; e < (\d+);", r"e = thread; e < \1 + blockDim.x;"),
)
_AT = r"(?:Swizzle<\d, \d, \d>::at\()?"
_ROWS = r"(e < (\d+); e \+= \d+\) \{\s*const int row = e / (?!\2,)[^;]*;\s*cp_async<16(?:, \d+)?>\(slot \+ \d+ \+ " + _AT + ")"
_STRIDES = (
    # Factors of one row are read and written at row 0 alone, whatever the stride: those are left out.
    ("layout", _ROWS + r"(\d+) \* row", r"\1(\3 - 8) * row"),
    ("layout", r"(ldmatrix(?:_transposed)?<\d>\(\w+\[\w\], [^;]*? )(\d+) \* \((?!min\([^;]*, 0\))", r"\1(\2 + 8) * ("),
    ("layout", r"(load_run<\w+, (\d+)>\(\w+, x\d \+ )", r"\1\2 + "),
)
_SWIZZLE = ("swizzle", r"Swizzle<(\d), (\d), (\d)>(?!::at\([^;]*\(min\([^;,]*, 0\)\))", r"Swizzle<\1, \2, \3 + 1>")
"""Nor are swizzles of one row, which lies as it would without any."""


def _is_idle(text: str) -> bool:
    """Whether the text ends in a mask that is always true: bands of rows that divide the rows."""
    mask = re.search(r"m = band \* (\d+) \+ r;\s*if \(m < (\d+)\)\Z", text)
    return mask is not None and int(mask[2]) % int(mask[1]) == 0


def _is_summed(text: str, match: re.Match[str]) -> bool:
    """Whether a swizzle only changes the order in which a reduction takes the elements of a row."""
    loop, along = text.rfind("float total", 0, match.start()), re.match(r"::at\([^;]*\b(i\d)\)", text[match.end() :])
    return along is not None and re.search(rf"for \(int {along[1]} = [^}}]*\Z", text[loop : match.start()]) is not None


def _alive_together(kernels: Sequence[Kernel]) -> Iterator[tuple[str, str]]:
    """Pairs of shared buffers that hold data at the same time, the declarations of which name them."""
    for kernel in kernels:
        alive = lifetimes(kernel.before, kernel.body, kernel.after)
        shared = [b.name for b in kernel.buffers if b.memory is Memory.SHARED and b.name in alive]
        for first, second in itertools.combinations(shared, 2):
            # A statement may write its result over a source that nothing reads later.
            if max(alive[first].first, alive[second].first) < min(alive[first].last, alive[second].last):
                yield first, second


def _placed_alike(text: str, first: str, second: str) -> str:
    """The second buffer moved to where the first one lies."""
    taken, moved = (re.search(rf"const {name} = \(\w+ \*\)\(shared_memory\(\) \+ (\d+)\)", text) for name in (first, second))
    assert taken is not None
    assert moved is not None
    return text[: moved.start(1)] + taken[1] + text[moved.end(1) :]
