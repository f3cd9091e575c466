"""Lints of machine code that no result and no emulator shows: fences of rings, chains of products that wait for each other.

Every lint is tried with a fault planted in the text that is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lower import test_block_order
from mugraph.devices import Engines
from mugraph.lower.fragments import instruction_depth
from mugraph.lower.tile_form import Matmul
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.cuda.nvrtc import SOURCE_NAME, compile_cubin
from targets import test_lagging_rings, test_parts_of_panels
from targets.cuda.test_machine_code import DISASSEMBLER, code_of, disassembled, straight_lines

pytest.importorskip("cuda.core", reason="kernels are compiled by NVRTC; pip install 'mugraph[cuda]'")
pytestmark = pytest.mark.skipif(DISASSEMBLER is None, reason="there is no nvdisasm; Triton's package has one")

BOXES = test_lagging_rings.MACHINE
THREADS = replace(BOXES, engines=Engines(warp_group_rows=64))
RINGS = test_lagging_rings.GRAPHS
CHAINS = test_parts_of_panels.GRAPHS

STEPS = {
    "arrived": re.compile(r"\bDEPBAR\.LE SB0\b"),  # copies of this thread
    "initialised": re.compile(r"\bSYNCS\.EXCH\b"),  # a barrier in shared memory
    "fenced": re.compile(r"\bFENCE\.VIEW\.ASYNC\b"),
    "met": re.compile(r"\bBAR\.SYNC\b"),
    "multiplied": re.compile(r"\bHGMMA\b"),
    "copied": re.compile(r"\bUTMALDG\b"),
    "shown": re.compile(r"\bWARPGROUP\.ARRIVE\b"),  # registers to the unit
    "waited": re.compile(r"\bWARPGROUP\.DEPBAR\b"),
}
HMMA = re.compile(r"\bHMMA\.\S+ (R\d+), R\d+, R\d+, (R\d+|RZ)")


def steps(code: str) -> Iterator[str]:
    """What instructions do to the ring, in the order in which they stand."""
    for line in code.splitlines():
        yield from (name for name, pattern in STEPS.items() if pattern.search(line))


def unfenced(code: str) -> list[str]:
    """What other units are given before threads have fenced it: panels that threads wrote, barriers, and registers.

    A panel is fenced by each thread before all meet. The first copy behind barriers is issued by who made them.
    """
    panel, barriers, registers, found = "", "", "", list[str]()
    for step in steps(code):
        match step:
            case "arrived":
                panel = "written"
            case "initialised":
                barriers = "made"
            case "fenced":
                panel, barriers = "fenced" if panel == "written" else panel, ""
            case "met" if panel == "fenced":
                panel = ""
            case "copied" if barriers:
                found.append("barriers")
            case "waited":
                registers = ""
            case "shown":
                registers = "shown"
            case "multiplied":
                found += ["a panel"] * bool(panel) + ["registers"] * (registers != "shown")
    return found


@pytest.mark.parametrize("machine", [BOXES, THREADS], ids=["boxes", "threads"])
@pytest.mark.parametrize("name", RINGS)
def test_what_other_units_read_is_fenced_before_threads_meet(name: str, machine: Cuda, tmp_path: Path) -> None:
    code = disassembled(RINGS[name], machine, tmp_path)
    made = list(steps(code))
    assert "multiplied" in made
    assert ("arrived" in made) == (machine is THREADS)
    assert ("initialised" in made) == (machine is BOXES)
    assert unfenced(code) == []


FENCES = {
    "no fence of panels": (THREADS, r"proxy_fence\(\);", "", "a panel"),
    "threads meet before the fence": (
        THREADS,
        r"proxy_fence\(\);(\s*)__syncthreads\(\);",
        r"__syncthreads();\1proxy_fence();",
        "a panel",
    ),
    "no barrier": (THREADS, r"(proxy_fence\(\);\s*)__syncthreads\(\);", r"\1", "a panel"),
    "no fence of barriers": (BOXES, r"proxy_fence\(\);", "", "barriers"),
}


@pytest.mark.parametrize("fault", FENCES)
def test_a_fence_that_is_missing_or_late_is_seen(fault: str, tmp_path: Path) -> None:
    machine, old, new, what = FENCES[fault]

    def planted(text: str) -> str:
        changed, count = re.subn(old, new, text)
        assert count
        return changed

    assert what in unfenced(disassembled(RINGS["two groups"], machine, tmp_path, planted))


def test_registers_that_are_not_shown_to_the_unit_are_seen(tmp_path: Path) -> None:
    """In the machine code itself, for the assembler writes what the text leaves out (the emulator finds that)."""
    code = disassembled(RINGS["two groups"], THREADS, tmp_path)
    assert set(unfenced(code.replace("WARPGROUP.ARRIVE", "NOP"))) == {"registers"}
    without = disassembled(RINGS["two groups"], THREADS, tmp_path, lambda text: text.replace("wgmma_fence();", ""))
    assert unfenced(without) == []
    assert "WARPGROUP.ARRIVE" in without


def longest_chain(code: str) -> int:
    """The most products of one straight line of code that wait for each other's sums, through the registers they name."""
    longest = 0
    for part in straight_lines(code):
        lengths: dict[str, int] = {}
        for target, sums in HMMA.findall(part):
            lengths[target] = 1 + lengths.get(sums, 0)
            longest = max(longest, lengths[target])
    return longest


def chain_of_panel(name: str) -> int:
    """Products of a panel that wait for each other where a warp has two sums in turn."""
    (product,) = (each for each in test_parts_of_panels.lowered(CHAINS[name][0]).body if isinstance(each, Matmul))
    assert product.panels is not None
    return product.panels.depth // instruction_depth(product) // product.panels.parts // 2


@pytest.mark.parametrize("name", ["two parts", "four parts", "in TF32", "a task for each warp", "a short chain"])
def test_chains_are_as_long_as_is_counted(name: str, tmp_path: Path) -> None:
    assert longest_chain(disassembled(CHAINS[name][0], test_parts_of_panels.MAPS, tmp_path)) == chain_of_panel(name)


@pytest.mark.parametrize("name", ["two parts", "in TF32"])
def test_a_chain_that_is_twice_as_long_is_seen(name: str, tmp_path: Path) -> None:
    """One sum in the place of two in turn."""

    def planted(text: str) -> str:
        changed, count = re.subn(r"step % 2 == 0 \? (\w+) : other", r"\1", text)
        assert count == 1
        return changed

    code = disassembled(CHAINS[name][0], test_parts_of_panels.MAPS, tmp_path, planted)
    assert longest_chain(code) == 2 * chain_of_panel(name)


def test_bands_of_blocks_cost_neither_registers_in_memory_nor_products(tmp_path: Path) -> None:
    products = set()
    for machine in (test_block_order.H100, replace(test_block_order.H100, cache_bytes=0)):
        kernel = test_block_order.lowered(test_block_order.tall_product(), machine)
        assert (kernel.bands is None) == (machine is not test_block_order.H100)
        compiled = compile_cubin(machine.print([kernel])[SOURCE_NAME], machine.architecture)
        (resources,) = compiled.resources.values()
        assert resources.spill_bytes == 0
        assert resources.registers * kernel.threads * kernel.resident <= 65_536
        assert "serialized" not in compiled.log
        products.add(code_of(compiled, tmp_path).count("HGMMA"))
    assert len(products) == 1
    assert products != {0}
