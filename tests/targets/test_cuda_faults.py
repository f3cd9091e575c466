"""Faults planted in generated CUDA: every one shows on the CPU, as a finding of the emulator or a wrong result."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from lower.graphs import attention, rms_norm_linear
from lower.test_staging import normed_twice
from mugraph.ir import DType, Graph
from mugraph.lower.register_reductions import reduction_of
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from targets.plants import sound
from targets.test_cuda import ERRORS, emulated

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

GRAPHS = {
    "norm": rms_norm_linear(rows=8, inner=256, columns=72, grid=3, loop=2, dtype=DType.BF16),
    "attention": attention(queries=12, keys=192, width=64, loop=3, dtype=DType.FP16),
    "vector units": rms_norm_linear(rows=8, inner=512, columns=256, grid=2, loop=2, dtype=DType.FP32),
}
CLEAN = EmulatedCuda(Cuda("sm_90", 100_000))
APART = replace(CLEAN, apart=True)


def kernel_text(graph: Graph, machine: EmulatedCuda = CLEAN) -> str:
    """The text of the only kernel of a graph, without the functions before it."""
    (text,) = sound(graph, machine.machine, machine.apart).sources.values()
    return text[text.index('extern "C" __global__') :]


def is_caught(graph: Graph, old: str, new: str, occurrence: int = 0, clean: EmulatedCuda = CLEAN) -> bool:
    """Whether replacing one occurrence of `old` in the kernel shows."""
    return shows(graph, replaced(kernel_text(graph, clean), old, new, occurrence), clean)


def replaced(kernel: str, old: str, new: str, occurrence: int = 0) -> str:
    *before, after = kernel.split(old, occurrence + 1)
    assert len(before) == occurrence + 1, f"the kernel has no {old!r} number {occurrence}"
    return old.join(before) + new + after


def shows(graph: Graph, changed: str, clean: EmulatedCuda = CLEAN) -> bool:
    """Whether another text in the place of the kernel's gives a finding or a wrong result."""
    kernel = kernel_text(graph, clean)
    machine = replace(clean, edit=lambda text: text.replace(kernel, changed), findings=[])
    error = emulated(graph, machine, lowered=sound(graph, clean.machine, clean.apart))
    dtype = graph.inputs()[0].output.dtype
    return bool(machine.findings) or not error < ERRORS[dtype]


def first(pattern: str, kernel: str) -> re.Match[str]:
    match = re.search(pattern, kernel, re.DOTALL)
    assert match is not None, f"the kernel has nothing like {pattern}"
    return match


def copied_out(kernel: Kernel) -> str:
    """The buffer that the results of the only reduction in registers are stored in behind the loop."""
    (copy,) = (s for s in kernel.after if isinstance(s, Elementwise) and reduction_of(kernel, s) is not None)
    return copy.target.buffer


NEEDLESS = re.compile(r"__syncthreads\(\);(?=\s*\{[^}]*float total = \w+_held;\s*total)")
"""The barrier before results of a reduction are stored where the loop has had a factor of its product."""


@pytest.mark.parametrize("name", GRAPHS)
def test_every_removed_barrier(name: str) -> None:
    kernel = kernel_text(GRAPHS[name])
    needless = [match.start() for match in NEEDLESS.finditer(kernel)] if name == "vector units" else []
    places = [match.start() for match in re.finditer(r"__syncthreads\(\);", kernel)]
    assert len(places) >= 2
    for number, place in enumerate(places):
        assert is_caught(GRAPHS[name], "__syncthreads();", "", number) == (place not in needless), f"barrier {number}"


def test_a_barrier_is_needless_where_results_lie_in_a_panel_that_was_left() -> None:
    """The eight results take the first row's values of k from 0 to 7, which threads read for panel 0 alone. They have met before
    each of the seven panels behind it, so that none reads them any more. Passes see buffers and not panels, and have the threads
    meet once again. Where the last panel's values lie, they must."""
    graph = GRAPHS["vector units"]
    text, (kernel,) = kernel_text(graph), sound(graph, CLEAN.machine, CLEAN.apart).kernels
    (product,) = (s for s in kernel.body if isinstance(s, Matmul))
    results, panels = copied_out(kernel), product.panels
    assert panels is not None
    assert kernel.buffer(results).offset == kernel.buffer(product.left.buffer).offset
    assert kernel.buffer(results).elements <= panels.depth < product.left.shape[-1]
    place = first(rf"{results} = [^;]*shared_memory\(\) \+ (\d+)", text)
    late = int(place[1]) + 4 * (product.left.shape[-1] - panels.depth)
    moved = text.replace(place[0], place[0].replace(place[1], str(late)))
    assert not shows(graph, moved)
    for places, caught in ((text, False), (moved, True)):
        without, count = NEEDLESS.subn("", places)
        assert count == 1
        assert [shows(graph, without, replace(CLEAN, seed=seed)) for seed in range(3)] == [caught] * 3


@pytest.mark.parametrize("name", GRAPHS)
def test_a_wait_for_too_few_copies(name: str) -> None:
    wait = first(r"cp_async_wait<(\d)>", kernel_text(GRAPHS[name]))
    assert is_caught(GRAPHS[name], wait[0], f"cp_async_wait<{int(wait[1]) + 1}>")


@pytest.mark.parametrize("name", GRAPHS)
def test_live_buffers_that_overlap(name: str) -> None:
    # Of what is staged an element is read by the thread that would write its place: the test of staged inputs has its faults.
    # Nor is it a fault where what is stored behind the loop lies where only the loop has something.
    (kernel,) = sound(GRAPHS[name], CLEAN.machine, CLEAN.apart).kernels
    late = {s.target.buffer for s in kernel.after} - {s.target.buffer for s in (*kernel.before, *kernel.body)}
    found = re.findall(r"((\w+) = \(\w+ \*\)\(shared_memory\(\) \+) (\d+)", kernel_text(GRAPHS[name]))
    places = {int(offset): lies for lies, buffer, offset in found if not buffer.startswith("staged") and buffer not in late}
    assert len(places) > 1
    for below, offset in itertools.pairwise(sorted(places)[:5]):
        assert is_caught(GRAPHS[name], f"{places[offset]} {offset})", f"{places[offset]} {below})"), f"buffer at {offset}"


def test_what_is_stored_behind_the_loop_over_what_is_read_there() -> None:
    graph = GRAPHS["vector units"]
    (kernel,) = sound(graph, CLEAN.machine, CLEAN.apart).kernels
    results = copied_out(kernel)
    (reader,) = (s for s in kernel.after if results in {tile.buffer for tile in s.sources})
    (other,) = {tile.buffer for tile in reader.sources} - {results}
    own, others = (kernel.buffer(name).offset for name in (results, other))
    assert own != others
    place = first(rf"{results} = [^;]*shared_memory\(\) \+ {own}", kernel_text(graph))[0]
    assert is_caught(graph, place, place.replace(str(own), str(others)))


@pytest.mark.parametrize("name", GRAPHS)
def test_rows_of_a_panel_at_the_wrong_pitch(name: str) -> None:
    pitch = first(r"(\d+) \* row \+ at\)?, in", kernel_text(GRAPHS[name]))
    assert is_caught(GRAPHS[name], pitch[0], pitch[0].replace(pitch[1], str(int(pitch[1]) - 8)))


@pytest.mark.parametrize("name", GRAPHS)
def test_a_wrong_swizzle_on_one_side(name: str) -> None:
    """Every place that a swizzled tile is written to or read at, with the rows of another swizzle."""
    swizzles = list(re.finditer(r"Swizzle<(\d), (\d), (\d)>", kernel_text(GRAPHS[name])))
    assert swizzles or name == "vector units"
    for number, swizzle in enumerate(swizzles):
        same = sum(earlier[0] == swizzle[0] for earlier in swizzles[:number])
        bits, base, shift = map(int, swizzle.groups())
        assert is_caught(GRAPHS[name], swizzle[0], f"Swizzle<{bits}, {base}, {shift + 1}>", same), f"swizzle {number}"


MASKS: dict[str, tuple[str, Callable[[re.Match[str]], str]]] = {
    "attention": (r"if \(m < 12 && n < 64\) \{", lambda match: "{"),
    "norm": (r"e < (\d+); (?!.*e < )", lambda match: f"e < 2 * {match[1]}; "),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_is_dropped(name: str) -> None:
    pattern, dropped = MASKS[name]
    mask = first(pattern, kernel_text(GRAPHS[name], APART))
    assert is_caught(GRAPHS[name], mask[0], dropped(mask), clean=APART)


STAGED = rms_norm_linear(rows=8, inner=1024, columns=64, grid=2, loop=8, dtype=DType.BF16)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const int next = panel + 1 - 0;", "const int next = panel - 0;"),
        ("next < 8", "next < 7"),
        ("cp_async_wait<3>();", "cp_async_wait<4>();"),
        ("staged0 + l % 5", "staged0 + l % 2"),
        ("in0 + 128 * l + 1024", "in0 + 128 * l + 1008"),
    ],
    ids=["stale", "one short", "too early", "too few slots", "wrong pitch"],
)
def test_a_staged_input(old: str, new: str) -> None:
    kernel = kernel_text(STAGED)
    assert old in kernel
    machine = replace(CLEAN, edit=lambda text: text.replace(kernel, kernel.replace(old, new)), findings=[])
    error = emulated(STAGED, machine, lowered=sound(STAGED, CLEAN.machine, CLEAN.apart))
    assert machine.findings or not error < ERRORS[DType.BF16]


def test_what_a_kernel_reads_late_is_waited_for() -> None:
    graph = normed_twice()
    assert emulated(graph, replace(CLEAN, findings=[])) < ERRORS[DType.BF16]
    assert is_caught(graph, "cp_async_wait<0>();", "")
