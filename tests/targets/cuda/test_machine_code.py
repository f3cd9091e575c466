"""What the assembler makes of printed kernels, read from its disassembly: nothing slow that the source does not show."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lower.graphs import linear_along_k
from mugraph.devices import NO_ENGINES, Engines
from mugraph.devices.copies import THREAD_COPY
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.text import parse_graph
from mugraph.lower import construct
from mugraph.lower.issue_slots import BOX_COPY as BOX_COPY_SLOTS
from mugraph.lower.issue_slots import PANEL_OF_ONE
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.cuda.nvrtc import Cubin, compile_cubin

pytest.importorskip("cuda.core", reason="kernels are compiled by NVRTC; pip install 'mugraph[cuda]'")

PAPER = Path(__file__).parents[3] / "examples" / "paper"
NAMES = sorted(path.stem for path in PAPER.glob("*.mugraph"))
LOCAL_MEMORY = re.compile(r"\b(?:STL|LDL)\b")
ASYNCHRONOUS = re.compile(r"\bLDGSTS\S*")
BULK_COPY, LOOP_OVER_LANES = "UBLKCP", "BRA.U.ANY"
MATRIX_UNITS = re.compile(r"\bHG?MMA\b")
BOX_COPY = "UTMALDG"
BULK, MAPS = Engines(bulk_row_bytes=128), Engines(tensor_maps=True)
BLOCK_END = re.compile(r"\b(?:BRA|EXIT|BSYNC|RET)\b|^\.L_", re.MULTILINE)
DIVISION_TEST = re.compile(r"\bFCHK\b")
"""Of operands, before a division that is rounded correctly: whether they are far enough from the ends of the range."""
RECIPROCAL = re.compile(r"\bMUFU\.RCP\b")
DIVISIONS = {DType.BF16: 0, DType.FP32: 8}
"""Of a thread that divides 8 elements of a row, those that are tested."""
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+\S")


def disassembler() -> str | None:
    """NVIDIA's, on the path or in the package of Triton."""
    try:
        from triton import backends
    except ImportError:
        return shutil.which("nvdisasm")
    return shutil.which("nvdisasm") or shutil.which("nvdisasm", path=str(Path(backends.__file__).parent / "nvidia" / "bin"))


DISASSEMBLER = disassembler()
pytestmark = pytest.mark.skipif(DISASSEMBLER is None, reason="there is no nvdisasm; Triton's package has one")


def machine_code(
    name: str, tmp_path: Path, architecture: str = "sm_90", engines: Engines | None = None, edit: Callable[[str], str] = str
) -> str:
    """The disassembly of the kernels of a muGraph of the paper."""
    machine = Cuda.of(f"cuda:{architecture}")
    if engines is not None:
        machine = replace(machine, engines=engines)
    return disassembled(parse_graph((PAPER / f"{name}.mugraph").read_text()), machine, tmp_path, edit)


def disassembled(graph: Graph, machine: Cuda, tmp_path: Path, edit: Callable[[str], str] = str) -> str:
    """The disassembly of the kernels of a muGraph."""
    launches = machine.lower(construct(graph)).values()
    (source,) = machine.print([launch.kernel for launch in launches]).values()
    return code_of(compile_cubin(edit(source), machine.architecture), tmp_path)


def code_of(cubin: Cubin, tmp_path: Path) -> str:
    """The disassembly of machine code."""
    file = tmp_path / "kernels.cubin"
    file.write_bytes(cubin.code)
    assert DISASSEMBLER is not None
    return subprocess.run([DISASSEMBLER, "-c", file], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_lies_in_local_memory_and_copies_are_of_sixteen_bytes(name: str, architecture: str, tmp_path: Path) -> None:
    code = machine_code(name, tmp_path, architecture)
    assert LOCAL_MEMORY.search(code) is None
    copies = ASYNCHRONOUS.findall(code)
    assert all(".128" in copy for copy in copies)
    assert copies or (architecture == "sm_90" and BOX_COPY in code)
    assert bool(MATRIX_UNITS.search(code)) == (name != "ntrans")


@pytest.mark.parametrize(("taken", "hint"), [(32, ".LTC128B"), (64, ".LTC256B"), (128, "")])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_copies_of_less_than_a_line_name_the_line_in_machine_code(
    taken: int, hint: str, architecture: str, tmp_path: Path
) -> None:
    machine = replace(Cuda.of(f"cuda:{architecture}"), engines=NO_ENGINES)
    copies = ASYNCHRONOUS.findall(disassembled(linear_along_k(taken, loop=4, columns=32), machine, tmp_path))
    assert copies
    for copy in copies:
        assert ".LTC" in copy and hint in copy if hint else ".LTC" not in copy


def test_a_thread_issues_bulk_copies_and_no_loop_over_lanes_does(tmp_path: Path) -> None:
    code = machine_code("gqa", tmp_path, engines=BULK)
    assert BULK_COPY in code
    assert LOOP_OVER_LANES not in code


def test_the_compiler_must_know_that_it_is_one_thread(tmp_path: Path) -> None:
    """Where the text names a lane, each copy is a loop over the lanes that might be here."""
    code = machine_code("gqa", tmp_path, engines=BULK, edit=lambda text: text.replace("elected()", "lane == 0"))
    assert code.count(LOOP_OVER_LANES) == code.count(BULK_COPY) > 0


@pytest.mark.parametrize("name", NAMES)
def test_boxes_are_copied_by_one_instruction_each_and_by_no_loop_over_lanes(name: str, tmp_path: Path) -> None:
    code = machine_code(name, tmp_path, engines=MAPS)
    assert LOOP_OVER_LANES not in code
    assert BULK_COPY not in code
    assert LOCAL_MEMORY.search(code) is None
    assert (BOX_COPY in code) == (name != "ntrans"), "which has no product"


def straight_lines(code: str) -> list[str]:
    """What runs from a label or a branch to the next."""
    return BLOCK_END.split(code)


def test_copies_take_about_as_many_instructions_as_issue_slots_are_counted_for(tmp_path: Path) -> None:
    threads = straight_lines(machine_code("gated_mlp", tmp_path, engines=NO_ENGINES))
    unrolled = [part for part in threads if len(ASYNCHRONOUS.findall(part)) == 4]
    assert unrolled
    for part in unrolled:
        assert len(INSTRUCTION.findall(part)) == pytest.approx(4 * THREAD_COPY, rel=0.25)
    boxes = [part for part in straight_lines(machine_code("gated_mlp", tmp_path, engines=MAPS)) if part.count(BOX_COPY) == 2]
    assert boxes
    for part in boxes:
        assert len(INSTRUCTION.findall(part)) == pytest.approx(2 * BOX_COPY_SLOTS + PANEL_OF_ONE, rel=0.25)


@pytest.mark.parametrize("dtype", list(DIVISIONS))
def test_rows_are_divided_without_branches_where_results_have_16_bits(dtype: DType, tmp_path: Path) -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (64, 2048), dtype)
    block = GraphBuilder(Level.BLOCK, grid=(64,), loop=1)
    row = block.iterator(0, kernel.tensor(x), (0,), None)
    length = block.add("sqrt", block.add("sum", block.add("square", row), dim=1, size=2048))
    body = block.build([block.add("output_saver", block.add("div", row, length), omap=(0,))])
    code = disassembled(kernel.build(kernel.graph_defined(body, [x])), Cuda.of("cuda:sm_90"), tmp_path)
    assert len(DIVISION_TEST.findall(code)) == DIVISIONS[dtype]
    assert (len(RECIPROCAL.findall(code)) == 1) == (dtype is DType.BF16), "which serves all elements of a thread"


FP8_PRODUCT = """
extern "C" __global__ void product(const unsigned *a, const unsigned *b, float *d)
{
    float s[4] = {};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.TYPE.TYPE.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    for (int i = 0; i < 4; ++i) d[i] = s[i];
}
"""


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
@pytest.mark.parametrize(("architecture", "has_unit"), [("sm_89", True), ("sm_90", False), ("sm_100", False), ("sm_120", True)])
def test_some_architectures_multiply_fp8_by_units_of_fp16(
    architecture: str, has_unit: bool, element: str, tmp_path: Path
) -> None:
    """So that `mma` in fp8 would gain nothing there (docs/cuda-target.md, "Products of fp8")."""
    text = code_of(compile_cubin(FP8_PRODUCT.replace("TYPE", element), architecture), tmp_path)
    assert len(re.findall(r"QMMA\.16832", text)) == has_unit
    assert len(re.findall(r"HMMA\.16816\.F32 ", text)) == (0 if has_unit else 2)


def test_local_memory_is_seen(tmp_path: Path) -> None:
    def spilled(text: str) -> str:
        kernel = """
extern "C" __global__ void spilled(float *x, int at)
{
    float many[64];
    for (int i = 0; i < 64; ++i)
        many[i] = x[i];
    for (int i = 0; i < at; ++i)
        many[i * at % 64] += many[i];
    x[0] = many[at];
}
"""
        return text + kernel

    assert LOCAL_MEMORY.search(machine_code("ntrans", tmp_path, edit=spilled))
