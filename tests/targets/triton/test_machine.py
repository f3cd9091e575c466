"""The triton target on a machine without a GPU: optimize, compile, report, save, read back; only running is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import mugraph
from lower.graphs import SUMMED_PRODUCTS, attention, rms_norm_linear
from mugraph.cli import main
from mugraph.errors import CompilationFailed, ExceedsMemory, InvalidInput, TargetUnavailable
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.runtime import Executable, build
from mugraph.targets.launch import LaunchShape
from mugraph.targets.triton.compiler import module_of
from mugraph.targets.triton.machine import SOURCE_NAME, Triton, launcher

pytest.importorskip("triton", reason="kernels are compiled by Triton; pip install 'mugraph[triton]'")

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
GRAPH = rms_norm_linear(rows=16, inner=256, columns=64, dtype=DType.FP16)


def figures_are_good(graph: Graph, architecture: str) -> None:
    (figures,) = build(graph, f"triton:{architecture}").resources
    assert figures.spill_bytes == 0
    assert 0 < figures.registers <= 65536 // figures.threads
    assert figures.grid == (2,)
    assert figures.loop == 4


def test_kernels_compile_without_spills() -> None:
    figures_are_good(GRAPH, "sm_90")


@pytest.mark.parametrize("depth", [4, 8, 16])
def test_products_of_any_depth_compile(depth: int) -> None:
    """`tl.dot` takes 16 values of k or more, of fp32 too."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(2,))
    x, y = kernel.input("x", (4, depth), DType.FP32), kernel.input("y", (depth, 4), DType.FP32)
    left, right = block.iterator(0, kernel.tensor(x), (0,), None), block.iterator(1, kernel.tensor(y), (None,), None)
    body = block.build([block.add("output_saver", block.add("matmul", left, right), omap=(0,))])
    assert build(kernel.build(kernel.graph_defined(body, [x, y])), "triton:sm_90").sources


@pytest.mark.parametrize("architecture", ["sm_90", "gfx942"])
@pytest.mark.parametrize("case", SUMMED_PRODUCTS)
def test_threads_multiply_what_the_text_sums(case: str, architecture: str) -> None:
    """The matrix units would multiply in TF32, and add each of few values of k several times."""
    machine = Triton.of(f"triton:{architecture}")
    (launch,) = machine.lower(SUMMED_PRODUCTS[case]).values()
    compiled = machine.compiled(launch.kernel, machine.print([launch.kernel]))
    assert "tt.reduce" in compiled.handle.asm["ttir"]
    assert "tt.dot" not in compiled.handle.asm["ttir"]
    assert not re.search(
        r"\bw?g?mma\.|\bv_(?:mfma|wmma|dot)", compiled.handle.asm["ptx" if architecture == "sm_90" else "amdgcn"]
    )


def once(pattern: str, replacement: str, text: str) -> str:
    edited, count = re.subn(pattern, replacement, text)
    assert count == 1
    return edited


def compile_edited(graph: Graph, pattern: str, replacement: str) -> None:
    """Compile a graph of one kernel, of whose text one place is replaced."""
    machine = Triton.of("triton:sm_90")
    (source,) = machine.print([launch.kernel for launch in machine.lower(graph).values()]).values()
    Executable(graph, machine, {SOURCE_NAME: once(pattern, replacement, source)})


@pytest.mark.skipif(
    tuple(map(int, version("triton").split(".")[:2])) >= (3, 8), reason="it takes no wrong sums for products any more"
)
@pytest.mark.parametrize("case", ["k = 2", "k = 8", "over rows"])
def test_sums_that_triton_takes_for_products_of_matrices_are_refused(case: str) -> None:
    with pytest.raises(CompilationFailed, match="makes 1 products of matrices of kernel_2, whose text has 0"):
        compile_edited(SUMMED_PRODUCTS[case], r"(?<!def )times\((\w+\[[^]]*\]), (\w+\[[^]]*\])\)", r"\1 * \2")


def test_more_products_of_matrices_than_the_text_has_are_refused() -> None:
    with pytest.raises(CompilationFailed, match="makes 1 products of matrices of kernel_3, whose text has 0"):
        compile_edited(GRAPH, r"tl\.dot\(", "tl.dot (")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"])
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.BF16])
def test_kernels_compile_without_spills_for_all(architecture: str, dtype: DType) -> None:
    figures_are_good(rms_norm_linear(rows=16, inner=256, columns=64, dtype=dtype), architecture)
    figures_are_good(attention(queries=3, keys=256, width=60, loop=4, dtype=dtype), architecture)


@pytest.mark.parametrize(("architecture", "variant"), [("sm_80", "sm_80"), ("sm_90", "sm_90a")])
def test_the_code_is_for_what_triton_asked_its_assembler_for(architecture: str, variant: str) -> None:
    executable = build(GRAPH, f"triton:{architecture}")
    machine = executable.machine
    assert isinstance(machine, Triton)
    (launch,) = machine.lower(GRAPH).values()
    compiled = machine.compiled(launch.kernel, executable.sources)
    assert machine.variant == compiled.cubin.architecture == variant
    assert f".target {variant}\n" in compiled.handle.asm["ptx"]


def test_loads_of_a_loop_are_asynchronous_copies() -> None:
    executable = build(GRAPH, "triton:sm_80")
    machine = executable.machine
    assert isinstance(machine, Triton)
    (launch,) = machine.lower(GRAPH).values()
    assert "cp.async" in machine.compiled(launch.kernel, executable.sources).handle.asm["ptx"]


@without_gpu
def test_the_stages_of_a_tuned_kernel_are_those_of_its_loop() -> None:
    """Each takes shared memory for the tiles of one more iteration."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    machine = Triton.described("triton:sm_90")
    tuned = module_of(machine.tuned_source(GRAPH, "tuned.py")).kernel_3
    types = {**dict.fromkeys(("X_ptr", "G_ptr", "W_ptr", "t3_ptr"), "*fp16"), "stages": "constexpr"}
    aligned = {(position,): [["tt.divisibility", 16]] for position in range(4)}
    sources = (ASTSource(tuned.fn, types, {(4,): stages}, aligned) for stages in (2, 3))
    two, three = (triton.compile(each, GPUTarget("cuda", 90, 32)).metadata.shared for each in sources)
    assert 0 < two < three


@without_gpu
def test_a_result_for_a_gpu_is_verified_and_travels(tmp_path: Path) -> None:
    rmsnorm = WORKLOADS["rmsnorm"]
    inputs = rmsnorm.inputs(dtype="fp16", size="small")
    opt = mugraph.superoptimize(rmsnorm.function(), inputs, "triton:sm_90")
    assert opt.found
    assert opt.certificate.accepted
    assert opt.best.latency is None
    again = mugraph.load(opt.save(tmp_path / "result"))
    assert again.sources == opt.sources
    with pytest.raises(InvalidInput, match=r"this target takes tensors on cuda: move it with .to\('cuda'\), or"):
        again(*inputs)
    source = tmp_path / "result" / "sources" / SOURCE_NAME
    assert source.read_text() == opt.sources[SOURCE_NAME]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    shown = subprocess.run([sys.executable, source], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("[4, 128] torch.float16 mean ")
    source.write_text(source.read_text().replace("tl.sum", "tl.max"))
    with pytest.raises(InvalidInput, match=r"kernels\.py was changed"):
        mugraph.load(tmp_path / "result")


def test_the_command_line_reports_what_kernels_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "rmsnorm", "--size", "small", "--target", "triton:sm_90", "--dtype", "fp16", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == "triton:sm_90"


def test_running_needs_a_gpu() -> None:
    executable = build(GRAPH, "triton:sm_90")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match="this target takes tensors on cuda"):
            executable(*(torch.zeros(node.output.shape, dtype=torch.float16) for node in GRAPH.inputs()))
    with pytest.raises(InvalidInput, match="torch tensors on a CUDA device"):
        executable(*([0.0] for _ in GRAPH.inputs()))


def test_a_launch_has_the_grid_the_threads_and_all_parameters_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Triton.of("triton:sm_90")
    assert isinstance(machine, Triton)
    (launch,) = machine.lower(GRAPH).values()
    compiled = machine.compiled(launch.kernel, machine.print([launch.kernel]))
    made = launcher(compiled, launch.kernel)
    assert made.shape == LaunchShape((2,), 32 * launch.kernel.warps, compiled.shared_bytes)
    assert made.scratch == compiled.parameters - len(launch.inputs) - len(launch.outputs)
    assert 0 <= made.scratch <= 2
    assert made.cubin.code.startswith(b"\x7fELF")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TargetUnavailable, match="needs an NVIDIA GPU to run"):
        made(16, 32)


def test_more_shared_memory_than_a_block_has_is_refused() -> None:
    with pytest.raises(ExceedsMemory, match=r"kernel_3 takes \d+ bytes of shared memory, a block of sm_90 has 64"):
        Executable(GRAPH, Triton("sm_90", 64))


def test_what_triton_rejects_is_one_line() -> None:
    machine = Triton.of("triton:sm_90")
    (source,) = machine.print([launch.kernel for launch in machine.lower(GRAPH).values()]).values()
    with pytest.raises(CompilationFailed, match="rejected kernel_3 for sm_90") as caught:
        Executable(GRAPH, machine, {SOURCE_NAME: source.replace("axis=1", "axis=7")})
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(TargetUnavailable, match="sm_35"):
        build(GRAPH, "triton:sm_35")


def test_without_triton_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(TargetUnavailable, match=r"pip install 'mugraph\[triton\]'"):
        build(GRAPH, "triton:sm_90")


def test_an_environment_that_interprets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(TargetUnavailable, match="unset it"):
        build(GRAPH, "triton:sm_90")


def test_the_same_text_is_the_same_module_and_a_broken_one_is_none() -> None:
    assert module_of("x = 1\n") is module_of("x = 1\n")
    assert module_of("x = 2\n").x == 2
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            module_of("x = 1 / 0\n")
