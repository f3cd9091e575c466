"""AMD's GPUs as targets of Triton: text that their matrix units take, compiled and interpreted here; nothing was run on one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mugraph
from lower.graphs import attention, normalised_scores, rms_norm_linear
from mugraph.cli import main
from mugraph.devices import device_for
from mugraph.errors import CompilationFailed, ExceedsMemory, InvalidInput, TargetUnavailable
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.text import parse_graph
from mugraph.lower import construct
from mugraph.lower.tile_form import Matmul
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.targets.gpu import NvidiaGpu
from mugraph.targets.triton import print_program, tile_launches
from mugraph.targets.triton.compiler import AmdKernel
from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.targets.triton.machine import SOURCE_NAME, TritonMachine, TritonOnAmd
from mugraph.targets.triton.units import AMD, NVIDIA, Units, is_dot
from runtime.block_graphs import many_kernels
from targets.triton.test_interpreted import LARGEST_ERROR, largest_error, normal_inputs

pytest.importorskip("triton", reason="kernels are compiled by Triton; pip install 'mugraph[triton]'")

PAPER = Path(__file__).parents[3] / "examples" / "paper"
MATRIX_INSTRUCTION = re.compile(r"\bv_(?:mfma|wmma)_f32_16x16x\d+_")
UNITS = {"mfma": AMD["gfx942"], "wmma": AMD["gfx1100"]}


def compiled(graph: Graph, architecture: str) -> list[AmdKernel]:
    machine = TritonMachine.of(f"triton:{architecture}")
    kernels = [launch.kernel for launch in machine.lower(graph).values()]
    sources = machine.print(kernels)
    made = [machine.compiled(kernel, sources) for kernel in kernels]
    assert all(isinstance(kernel, AmdKernel) for kernel in made)
    return made  # type: ignore[return-value]  # as just compared


def text_for(graph: Graph, units: Units) -> str:
    return print_program([launch.kernel for launch in tile_launches(graph, units).values()], SOURCE_NAME)


def dots(graph: Graph, units: Units) -> list[bool]:
    """For each kernel, whether it has a product that matrix units take."""
    forms = (launch.kernel.form for launch in tile_launches(graph, units).values())
    products = [[each for each in form.statements if isinstance(each, Matmul)] for form in forms]
    return [any(is_dot(each) and units.factor_type(each) in units.types for each in group) for group in products]


def expect_good_figures(graph: Graph, architecture: str) -> None:
    for kernel, has_dot in zip(compiled(graph, architecture), dots(graph, AMD[architecture]), strict=True):
        figures = kernel.resources
        assert figures.spill_bytes == 0
        assert 0 < figures.registers <= 512
        assert kernel.threads <= 1024
        assert bool(MATRIX_INSTRUCTION.search(kernel.text)) == has_dot
        assert "v_dot2" not in kernel.text, "two numbers at once are what products without matrix units fall back to"


@pytest.mark.parametrize("architecture", AMD)
@pytest.mark.parametrize("name", ["rmsnorm", "gqa"])
def test_muGraphs_of_the_paper_run_on_matrix_units_without_spills(name: str, architecture: str) -> None:
    expect_good_figures(construct(parse_graph((PAPER / f"{name}.mugraph").read_text())), architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", AMD)
@pytest.mark.parametrize("name", sorted(path.stem for path in PAPER.glob("*.mugraph")))
def test_all_muGraphs_of_the_paper_do(name: str, architecture: str) -> None:
    expect_good_figures(construct(parse_graph((PAPER / f"{name}.mugraph").read_text())), architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", AMD)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_best_candidates_of_all_workloads_do(name: str, dtype: str, architecture: str) -> None:
    program = trace(WORKLOADS[name].function(), WORKLOADS[name].inputs(8, dtype)).graph
    best = search(program, device_for(f"triton:{architecture}")).candidates[0]
    expect_good_figures(construct(best.graph), architecture)


def test_registers_that_do_not_fit_are_counted() -> None:
    machine = TritonMachine.of("triton:gfx1100")
    (launch,) = machine.lower(rms_norm_linear(rows=16, inner=256, columns=64, loop=1)).values()
    kernel = replace(launch.kernel, warps=2)
    made = machine.compiled(kernel, machine.print([kernel]))
    assert isinstance(made, AmdKernel)
    (spilled,) = re.findall(r"\.vgpr_spill_count: (\d+)", made.text)
    assert int(spilled) > 0
    assert made.resources.spill_bytes == 8 * int(spilled)
    assert made.resources.registers == 256
    assert "scratch_store" in made.text


@pytest.mark.parametrize("architecture", AMD)
def test_products_are_rounded_before_they_are_added(architecture: str) -> None:
    """As on NVIDIA's GPUs; the compiler makes one instruction of both where it may."""
    machine = TritonMachine.of(f"triton:{architecture}")
    (launch,) = machine.lower(difference_of_a_product("abs")).values()
    multiplied_and_added = re.compile(r"\bv_\w*(?:fma|fmac|mad)_f32")
    for fuses in (False, True):
        kernel = replace(launch.kernel, fuses=fuses)
        made = machine.compiled(kernel, machine.print([kernel]))
        assert isinstance(made, AmdKernel)
        assert (multiplied_and_added.search(made.text) is not None) == fuses


def difference_of_a_product(op: str) -> Graph:
    """An operator of x * y - z."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(2,))
    inputs = [kernel.input(name, (64, 256), DType.FP32) for name in "xyz"]
    x, y, z = (block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate(inputs))
    result = block.add(op, block.add("sub", block.add("mul", x, y), z))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), inputs))


def test_metadata_that_says_nothing_is_refused() -> None:
    (kernel,) = compiled(rms_norm_linear(dtype=DType.FP16), "gfx942")
    kernel.handle.asm["amdgcn"] = kernel.text.replace(".vgpr_count", ".other_count")
    with pytest.raises(CompilationFailed, match="kernel_3 for gfx942 does not say its vgpr_count once"):
        _ = kernel.resources


# the text ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", UNITS.values(), ids=UNITS)
def test_computed_factors_of_fp16_are_multiplied_in_fp32(units: Units) -> None:
    graph = rms_norm_linear(rows=16, inner=256, dtype=DType.FP16)
    assert "tf32" in text_for(graph, NVIDIA)
    assert "tf32" not in text_for(graph, units)
    assert 'input_precision="ieee"' in text_for(graph, units)


def test_stand_ins_round_to_tf32_what_the_kernels_do() -> None:
    """Computed factors of fp16 are TF32 on an NVIDIA GPU, and fp32 on AMD's."""
    for target, rounded in (("triton:sm_90", True), ("triton:gfx942", False)):
        (launch,) = TritonMachine.described(target).stand_in.lower(rms_norm_linear(rows=16, inner=256, dtype=DType.FP16)).values()
        assert any(buffer.name.startswith("rounded") for buffer in launch.kernel.buffers) == rounded


@pytest.mark.parametrize(("rows", "columns"), [(8, 64), (5, 8), (16, 4)])
def test_rows_and_columns_of_products_are_sixteen_at_least(rows: int, columns: int) -> None:
    text = text_for(rms_norm_linear(rows=rows, inner=64, columns=2 * columns, dtype=DType.BF16, loop=2), AMD["gfx942"])
    assert f"tl.zeros(({max(rows, 16)}, {max(columns, 16)}), tl.float32)  # [{rows}, {columns}]" in text


def test_products_of_fp32_are_padded_where_matrix_units_take_them() -> None:
    graph = rms_norm_linear(rows=8, inner=64, columns=64, loop=2)
    assert "tl.zeros((16, 32), tl.float32)" in text_for(graph, AMD["gfx942"])
    assert "tl.zeros((8, 32), tl.float32)" in text_for(graph, AMD["gfx1100"])


def test_few_rows_and_columns_are_shared_out_by_depth() -> None:
    """So that no warp holds the same values of k as another one."""
    few, many = (rms_norm_linear(rows=rows, inner=512, columns=256, dtype=DType.BF16, loop=2) for rows in (8, 128))
    assert "tl.sum(tl.dot(" in text_for(rms_norm_linear(rows=8, inner=512, columns=32, dtype=DType.BF16, loop=2), AMD["gfx942"])
    assert "tl.sum(tl.dot(" not in text_for(many, AMD["gfx942"])
    assert "tl.sum(tl.dot(" not in text_for(few, NVIDIA)


# the interpreter --------------------------------------------------------------------------------------------------------


def interpreted(architecture: str) -> InterpretedTriton:
    return InterpretedTriton(TritonMachine.described(f"triton:{architecture}"))


GRAPHS = {
    "rmsnorm": rms_norm_linear(rows=5, inner=48, columns=40),
    "parts of k": rms_norm_linear(rows=8, inner=512, columns=16, dtype=DType.FP16, loop=2),
    "attention": attention(),
    "decode": attention(queries=1, dtype=DType.FP16),
    "few queries": attention(queries=3, keys=256, width=60, loop=4, dtype=DType.FP16),
    "concatenation": normalised_scores(queries=3, keys=36, width=20),
}


@pytest.mark.parametrize("architecture", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_widened_tiles_compute_what_they_did(graph: Graph, architecture: str) -> None:
    machine = interpreted(architecture)
    assert largest_error(graph, normal_inputs(graph), machine) < LARGEST_ERROR[graph.inputs()[0].output.dtype]
    assert machine.findings == []


@pytest.mark.parametrize(("seed", "architecture"), [(3, "gfx942"), (11, "gfx1100")])
def test_random_kernels_agree_with_those_of_other_units(seed: int, architecture: str) -> None:
    expect_equal_to_nvidia(seed, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 240))
def test_many_more_random_kernels_do(seed: int) -> None:
    expect_equal_to_nvidia(seed, "gfx942")


def expect_equal_to_nvidia(seed: int, architecture: str) -> None:
    graph = many_kernels(seed, 6, DType.FP32)
    inputs = [torch.from_numpy(array) for array in normal_inputs(graph, seed)]
    machine = interpreted(architecture)
    ours, theirs = (Executable(graph, each)(*inputs) for each in (machine, interpreted("sm_90")))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, other.abs().max().item()))
    assert machine.findings == []


def test_stores_that_write_the_padding_of_matrix_units_are_noticed() -> None:
    graph = rms_norm_linear(rows=8, inner=64, columns=64, dtype=DType.FP16, loop=2)
    machine = interpreted("gfx942")
    machine.edit = lambda text: re.sub(r"(tl\.store\(.*), mask=m8\[:, None\]\)", r"\1)", text)
    Executable(graph, machine)(*map(torch.from_numpy, normal_inputs(graph)))
    assert machine.findings


# as targets -------------------------------------------------------------------------------------------------------------


def test_a_result_is_verified_and_its_file_runs_by_itself(tmp_path: Path) -> None:
    rmsnorm = WORKLOADS["rmsnorm"]
    inputs = rmsnorm.inputs(dtype="fp16", size="small")
    opt = mugraph.superoptimize(rmsnorm.function(), inputs, "triton:gfx942")
    assert opt.found
    assert opt.certificate.accepted
    again = mugraph.load(opt.save(tmp_path / "result"))
    assert again.sources == opt.sources
    with pytest.raises(InvalidInput, match="this target takes tensors on cuda"):
        again(*inputs)
    tuned = tmp_path / "tuned.py"
    assert main(["export", str(tmp_path / "result"), "-o", str(tuned)]) == 0
    assert "@tuned(" in tuned.read_text()
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for file in (tmp_path / "result" / "sources" / SOURCE_NAME, tuned):
        shown = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, check=True)
        assert shown.stdout.startswith("[4, 128] torch.float16 mean ")


def test_kernels_are_not_launched_from_here() -> None:
    executable = build(rms_norm_linear(dtype=DType.FP16), "triton:gfx942")
    machine = executable.machine
    assert isinstance(machine, TritonOnAmd)
    assert not machine.available
    (figures,) = executable.resources
    assert figures.threads == 256
    kernels = [launch.kernel for launch in machine.lower(executable.graph).values()]
    (launch,) = machine.load(kernels, executable.sources, None).values()
    with pytest.raises(TargetUnavailable, match=r"kernel_3 for gfx942 is not launched from here: call `run` of its kernels\.py"):
        launch(16, 32, 48, 64)


def test_more_shared_memory_than_a_block_has_is_refused() -> None:
    with pytest.raises(ExceedsMemory, match=r"kernel_3 takes \d+ bytes of shared memory, a block of gfx942 has 64"):
        Executable(rms_norm_linear(rows=16, inner=256, columns=64, dtype=DType.FP16), TritonOnAmd("gfx942", 64))


def test_a_pytorch_for_amd_is_no_nvidia_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its devices are called cuda, and their compute capability is that of the architecture, as in 9.4."""
    monkeypatch.setattr(torch.version, "hip", "7.0.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not NvidiaGpu("sm_90", 1024).available
    with pytest.raises(TargetUnavailable, match="PyTorch sees none"):
        device_for("cuda")


def test_cuda_has_no_kernels_for_amd() -> None:
    with pytest.raises(TargetUnavailable, match="unknown target 'cuda:gfx942'"):
        device_for("cuda:gfx942")
