"""Compiling CUDA kernels without a GPU: figures of the assembler, refusals, the cache."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from mugraph.errors import CompilationFailed, InvalidInput, TargetUnavailable
from mugraph.support.store import Store
from mugraph.targets.cuda import nvrtc
from mugraph.targets.cuda.device import ptx_functions
from mugraph.targets.cuda.nvrtc import compile_cubin
from mugraph.targets.launch import LaunchShape, LoadedKernel
from targets.cuda.kernels import matmul, root_mean_square

pytest.importorskip("cuda.core", reason="compiling CUDA needs cuda-core")

OFF = Store(mode="off")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"])
@pytest.mark.parametrize("element", ["fp16_t", "bf16_t"])
def test_a_tensor_core_kernel_compiles_without_spills(architecture: str, element: str) -> None:
    cubin = compile_cubin(matmul(element) + root_mean_square(element), architecture, OFF)
    assert cubin.code.startswith(b"\x7fELF")
    assert cubin.resources.keys() == {"matmul", "root_mean_square"}
    for resources in cubin.resources.values():
        assert 8 <= resources.registers <= 128
        assert resources.spill_bytes == resources.stack_bytes == resources.shared_bytes == 0


GREEDY = """
    extern "C" __global__ void __launch_bounds__(1024) greedy(const float *x, float *y) {
        __shared__ float s[1024];
        float values[128];
        for (int i = 0; i < 128; ++i) values[i] = x[i * 1024 + threadIdx.x];
        s[threadIdx.x] = values[0];
        __syncthreads();
        float sum = s[threadIdx.x ^ 1];
        for (int i = 0; i < 128; ++i) for (int j = 0; j < 128; ++j) sum += values[i] * values[j] * values[(i + j) % 128];
        y[threadIdx.x] = sum;
    }"""


def test_spills_and_static_shared_memory_are_reported() -> None:
    resources = compile_cubin(GREEDY, "sm_80", OFF).resources["greedy"]
    assert resources.registers <= 64
    assert resources.spill_bytes > 0
    assert resources.shared_bytes == 4096


def test_accelerated_instructions_need_their_architecture() -> None:
    source = 'extern "C" __global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }'
    assert compile_cubin(source, "sm_90", OFF).architecture == "sm_90a"
    for architecture in ("sm_80", "sm_100", "sm_103", "sm_120"):
        with pytest.raises(CompilationFailed, match=f"{architecture}.*wgmma.fence"):
            compile_cubin(source, architecture, OFF)


@pytest.mark.parametrize(("architecture", "variant"), [("sm_90", "sm_90a"), ("sm_100", "sm_100f"), ("sm_103", "sm_103f")])
def test_code_is_for_a_variant_only_where_it_needs_one(architecture: str, variant: str) -> None:
    """The word that decides is in the instructions: the compiler refuses them for the architecture itself."""
    assert compile_cubin(matmul("bf16_t"), architecture, OFF).architecture == architecture
    instruction = "wgmma.fence.sync.aligned;" if architecture == "sm_90" else "tcgen05.fence::before_thread_sync;"
    source = f'extern "C" __global__ void k() {{ asm volatile("{instruction}"); }}'
    assert compile_cubin(source, architecture, OFF).architecture == variant
    with pytest.raises(CompilationFailed, match=instruction[:7]):
        nvrtc._compile(source, architecture)


def test_errors_name_the_line_of_the_kernels() -> None:
    with pytest.raises(CompilationFailed, match=r'kernels.cu\(2\): error: identifier "missing" is undefined'):
        compile_cubin('\nextern "C" __global__ void k(float *x) { x[0] = missing; }', "sm_80", OFF)
    with pytest.raises(InvalidInput, match="'sm_70'; use one of sm_80"):
        compile_cubin("", "sm_70", OFF)


def test_results_are_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    first = compile_cubin(matmul("bf16_t"), "sm_80", store)
    monkeypatch.setattr(nvrtc, "_compile", lambda text, architecture: pytest.fail("compiled again"))
    assert compile_cubin(matmul("bf16_t"), "sm_80", store) == first
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        compile_cubin(matmul("fp16_t"), "sm_80", store)
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        compile_cubin(matmul("bf16_t"), "sm_90", store)


def test_without_cuda_core_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_cuda(name: str, *arguments: object, **options: object) -> object:
        if name.startswith("cuda"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *arguments, **options)  # type: ignore[arg-type]  # the signature of __import__ is a stub's business

    monkeypatch.setattr(builtins, "__import__", without_cuda)
    with pytest.raises(TargetUnavailable, match=r"pip install 'mugraph\[cuda\]'"):
        compile_cubin("", "sm_80", OFF)


def test_launching_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(TargetUnavailable, match="needs an NVIDIA GPU"):
        LoadedKernel(compile_cubin(matmul("bf16_t"), "sm_80", OFF), "matmul", LaunchShape((1,), 64, 0))


HOLDS_MUCH = """
extern "C" __global__ void __launch_bounds__(256, 2) holds_much(const float *x, float *y)
{
    float sums[80] = {};
    for (int panel = 0; panel < 8; ++panel) {
        UNROLLED_STEPS
        for (int step = 0; step < 16; ++step) {
            const float4 *from = (const float4 *)x + (panel * 16 + step) * 1024 + threadIdx.x;
            const float4 first = from[0], second = from[256], third = from[512], last = from[768];
            for (int i = 0; i < 80; ++i)
                sums[i] = fma(first.x + i, second.y, sums[i]) + third.z * last.w;
        }
        __syncthreads();
    }
    for (int i = 0; i < 80; ++i)
        y[i * 256 + threadIdx.x] = sums[i];
}
"""


def test_kernels_that_spill_are_compiled_again_with_loops_unrolled_less() -> None:
    text = f"{ptx_functions()}\n{HOLDS_MUCH}"
    unrolled, kept = nvrtc._compile(text, "sm_80"), compile_cubin(HOLDS_MUCH, "sm_80", OFF)
    assert unrolled.resources["holds_much"].spill_bytes > kept.resources["holds_much"].spill_bytes == 0


def test_each_kernel_of_a_text_is_unrolled_as_it_spills_least() -> None:
    """One that spills is sparing, as if it stood alone; others, that hold little or spill either way, are as they were."""
    holds_less = HOLDS_MUCH.replace("holds_much", "holds_less").replace("80", "8")
    source = holds_less + HOLDS_MUCH + GREEDY
    usual = nvrtc._compile(f"{ptx_functions()}\n{source}", "sm_80").resources
    alike = nvrtc._compile(f"{ptx_functions()}\n#undef SPARING\n#define SPARING 1\n{source}", "sm_80").resources
    kept = compile_cubin(source, "sm_80", OFF).resources
    assert list(kept) == list(usual)
    assert usual["holds_less"] == kept["holds_less"] != alike["holds_less"]
    assert usual["greedy"] == kept["greedy"]
    assert usual["greedy"].spill_bytes > 0
    assert usual["holds_much"].spill_bytes > kept["holds_much"].spill_bytes == 0
    assert kept["holds_much"] == alike["holds_much"]


def test_a_kernel_that_spills_does_not_change_the_next_one() -> None:
    source = HOLDS_MUCH + HOLDS_MUCH.replace("holds_much", "holds_less").replace("80", "8")
    alone = compile_cubin(source[len(HOLDS_MUCH) :], "sm_80", OFF).resources["holds_less"]
    assert compile_cubin(source, "sm_80", OFF).resources["holds_less"] == alone


def test_what_spills_as_much_with_loops_unrolled_less_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    real, texts = nvrtc._compile, list[str]()

    def noted(text: str, architecture: str) -> nvrtc.Cubin:
        texts.append(text)
        return real(text, architecture)

    monkeypatch.setattr(nvrtc, "_compile", noted)
    kept = compile_cubin(GREEDY, "sm_80", OFF)
    usual, sparing = texts
    assert sparing.count("#define SPARING 1\n") == 1
    assert kept == real(usual, "sm_80")
    texts.clear()
    compile_cubin(matmul("bf16_t"), "sm_80", OFF)
    assert len(texts) == 1
