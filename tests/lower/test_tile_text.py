"""Lowered kernels print and parse, and what passes make of small ones is what it was."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from mugraph.devices import device_for
from mugraph.errors import InvalidGraph, InvalidInput
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS, workload
from mugraph.lower.check import check
from mugraph.lower.order import by_depth, with_barriers
from mugraph.lower.phases import Phase
from mugraph.lower.places import Index
from mugraph.lower.tile_form import Load, Skip, Tile
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.search import search
from mugraph.targets.machine import machine_for

LOWERED = """
kernel norm grid(4) {
  buffer x: fp16 device[256]
  buffer w: fp16 device[4096]
  buffer y: fp16 device[256]
  buffer product: fp32 shared[64]
  buffer root: fp32 shared[1] at 256
  inputs x, w
  outputs y
  before {
  }
  body {
  }
  after {
    product[1, 64 | 64, 1] = matmul fp16 (x[1, 64 | 64, 1 | 64 b0], w[64, 64 | 64, 1])
    root[1, 1 | 1, 1] = sum over "({0} * {0})"(#0) (x[1, 1, 64 | 64, 64, 1 | 64 b0])
    y[1, 64 | 64, 1 | 64 b0] = "({0} / {1})"(#1, "sqrt({0})"(#0)) (root[1, 64 | 1, 0], product[1, 64 | 64, 1])
  }
}
""".strip()

WITH_BARRIERS = LOWERED.replace("grid(4) {", "grid(4) threads(64) {").replace("    y[1", "    barrier\n    y[1")

REORDERED = """
    s[4 | 1] = #0 (x[4 | 1])
    t[4 | 1] = "exp({0})"(#0) (s[4 | 1])
    u[4 | 1] = "sqrt({0})"(#0) (x[4 | 1])
    y[4 | 1] = "({0} + {1})"(#0, #1) (t[4 | 1], u[4 | 1])
"""


def small(statements: str) -> str:
    """A kernel of a few elementwise statements."""
    buffers = "\n".join(f"  buffer {name}: fp32 shared[4]" for name in "stu")
    return f"""
kernel chain threads(32) {{
  buffer x: fp32 device[4]
  buffer y: fp32 device[4]
{buffers}
  inputs x
  outputs y
  before {{
  }}
  body {{
  }}
  after {{
{statements.strip(chr(10))}
  }}
}}
""".strip()


def test_the_text_is_what_it_was() -> None:
    kernel = parse_kernel(LOWERED)
    check(kernel)
    assert format_kernel(kernel) == LOWERED


def test_tiles_that_tell_of_iterations_without_effect_are_read_back() -> None:
    tile = 'skip "-inf" x[1, 64 | 64, 1 | 64 b0]'
    kernel = parse_kernel(LOWERED.replace("grid(4)", "grid(4) loop(2)").replace("  before {", f"  {tile}\n  before {{"))
    check(kernel)
    assert kernel.skips == (Skip(Tile("x", (1, 64), (64, 1), Index(0, (64,))), -math.inf),)
    assert tile in format_kernel(kernel)
    for other in (replace(kernel, loop=1), replace(kernel, skips=(Skip(Tile("root", (1,), (1,)), 0.0),))):
        with pytest.raises(InvalidGraph, match="without effect"):
            check(other)


def test_barriers_stand_where_threads_depend_on_each_other() -> None:
    kernel = parse_kernel(LOWERED.replace("grid(4) {", "grid(4) threads(64) {"))
    assert format_kernel(with_barriers(kernel)) == WITH_BARRIERS


def test_statements_are_ordered_by_depth() -> None:
    first, second, third, last = REORDERED.strip("\n").splitlines()
    ordered = by_depth(parse_kernel(small(REORDERED)))
    assert format_kernel(ordered) == small("\n".join((first, third, second, last)))


def test_labels_and_loads_are_kept() -> None:
    text = LOWERED.replace("  before {", "  load 0 = after x[1, 64 | 64, 1 | 64 b0]\n  before {", 1).replace(
        "product[1", "matmul_2: product[1", 1
    )
    kernel = parse_kernel(text)
    assert format_kernel(kernel) == text
    assert [str(statement.label) for statement in kernel.statements] == ["matmul_2", "None", "None"]
    assert kernel.loads == (Load(0, Tile("x", (1, 64), (64, 1), Index(grid=(64,))), Phase.AFTER),)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("product[1", "matmul: product[1", "expected a label such as mul_3"),
        ("matmul fp16 (", "matmul fp17 (", "line 14, column 37: expected a type"),
        ('"sqrt({0})"(#0)', '"sqrt"', '"sqrt" is no number'),
        ("outputs y", "output y", "expected outputs"),
        ("shared[64]", "nowhere[64]", "expected device, shared, registers or rows"),
        ("| 64, 1]", "| 64, 1]^(1, 2)", "a swizzle has three numbers"),
    ],
)
def test_what_is_no_kernel(old: str, new: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_kernel(LOWERED.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        # a second search of the largest programs finds kernels of the same kinds
        pytest.param(name, target, marks=[pytest.mark.slow] * (name in ("gqa", "qknorm") and target != "cuda:sm_90"))
        for name, target in itertools.product(WORKLOADS, ("cpu", "cuda:sm_80", "cuda:sm_90"))
    ],
)
def test_kernels_of_workloads_print_and_parse(name: str, target: str) -> None:
    if target != "cpu":
        pytest.importorskip("cuda.core", reason="compiling CUDA needs cuda-core")
    program = trace(workload(name).function(), workload(name).inputs(size="small", dtype="fp16")).graph
    found = search(program, device_for(target)).candidates[:3]
    kernels = [launch.kernel for candidate in found for launch in machine_for(target).lower(candidate.graph).values()]
    assert kernels
    for kernel in kernels:
        text = format_kernel(kernel)
        assert parse_kernel(text) == kernel
        assert format_kernel(parse_kernel(text)) == text
