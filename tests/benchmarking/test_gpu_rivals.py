"""What kernels are timed against on a GPU: right on the CPU as far as it runs there, refused with a reason where it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import gpu_rivals, gpu_times
from benchmarks.gpu_rivals import OF_WORKLOADS, SYSTEMS, Rival, offers, rivals
from benchmarks.ranks import rank_correlation

from mugraph.frontend.workloads import WORKLOADS
from mugraph.runtime.baselines import EAGER

ON_CPU = {
    "rmsnorm": {"rms_norm and cuBLAS"},
    "gated-mlp": {"one cuBLAS product"},
    "lora": {"two cuBLAS products"},
    "gqa": {"scaled_dot_product_attention", "attention, math"},
    "qknorm": {"scaled_dot_product_attention", "attention, math"},
    "ntrans": set(),
}
"""What needs nothing but PyTorch on a CPU."""


def inputs_of(workload: str, dtype: str = "fp32") -> tuple[torch.Tensor, ...]:
    return WORKLOADS[workload].inputs(3, dtype, "small")


def exact_of(workload: str, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return WORKLOADS[workload].function()(*(tensor.double() for tensor in inputs))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_rivals_that_run_here_are_right(workload: str, dtype: str) -> None:
    inputs = inputs_of(workload, dtype)
    found = offers(rivals(workload, WORKLOADS[workload].function(), ()), inputs, exact_of(workload, inputs))
    assert {EAGER} | ON_CPU[workload] <= found.functions.keys()
    for function in found.functions.values():
        torch.testing.assert_close(function(*inputs).double(), exact_of(workload, inputs), rtol=5e-2, atol=5e-2)


def test_every_system_is_a_rival_of_some_workload_and_none_has_two_of_a_name() -> None:
    every = {name: rivals(name, workload.function()) for name, workload in WORKLOADS.items()}
    assert {rival.system for of_workload in every.values() for rival in of_workload} == set(SYSTEMS)
    for of_workload in every.values():
        assert len({rival.name for rival in of_workload}) == len(of_workload)


def test_another_function_of_a_workload_has_no_rivals_that_compute_its_usual_one() -> None:
    layer_normed = rivals("qknorm", WORKLOADS["qknorm"].function("layer"))
    assert {rival.name for rival in layer_normed} & {rival.name for rival in OF_WORKLOADS["qknorm"]} == set()


def test_what_is_missing_fails_or_is_wrong_is_refused_with_the_reason() -> None:
    x = torch.randn(4, 4)

    def fails(inputs: object) -> Any:
        raise RuntimeError("not for this GPU")

    found = offers(
        [
            Rival("PyTorch", "right", lambda inputs: torch.neg),
            Rival("PyTorch", "wrong", lambda inputs: lambda x: 1.01 * -x),
            Rival("PyTorch", "of another shape", lambda inputs: lambda x: -x[:1]),
            Rival("PyTorch", "no number", lambda inputs: lambda x: -x / 0),
            Rival("PyTorch", "failing", fails),
            Rival("FlashInfer", "missing", lambda inputs: torch.neg, ("no_such_package",)),
        ],
        [x],
        -x.double(),
    )
    assert list(found.functions) == ["right"]
    assert found.refused["missing"] == "ModuleNotFoundError: No module named 'no_such_package'"
    assert found.refused["failing"] == "RuntimeError: not for this GPU"
    assert all(found.refused[name].startswith("wrong: its error is") for name in ("wrong", "of another shape", "no number"))
    assert found.errors["right"] < 1e-6 < found.errors["wrong"]


def attention_by_pages(workload: str) -> None:
    """FlashInfer and FlashAttention, played by PyTorch in the layouts that their documentation names."""
    inputs = inputs_of(workload)
    found = offers(OF_WORKLOADS[workload], inputs, exact_of(workload, inputs))
    assert {"FlashInfer decode", "FlashAttention decode"} <= found.functions.keys(), found.refused


class Pages:
    """A batched decoder over pages in the layout [pages, heads, tokens, width], of which each sequence has one."""

    def __init__(self, workspace: torch.Tensor, layout: str, use_tensor_cores: bool) -> None:
        assert layout == "HND"

    def plan(self, starts: Any, pages: Any, last: Any, heads: int, shared: int, width: int, size: int, q_data_type: Any) -> None:
        assert starts.tolist() == list(range(len(pages) + 1))
        assert last.tolist() == [size] * len(pages)
        self.heads, self.shared, self.width, self.size = heads, shared, width, size

    def run(self, q: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        k, v = cache
        assert q.shape[1:] == (self.heads, self.width)
        assert k.shape[1:] == (self.shared, self.size, self.width)
        return decoded(q.unsqueeze(2), k, v).squeeze(2)


def decoded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, heads, width]."""
    return decoded(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


@pytest.fixture
def _packages(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer, flash_attn = ModuleType("flashinfer"), ModuleType("flash_attn")
    flashinfer.__dict__.update(
        BatchDecodeWithPagedKVCacheWrapper=Pages,
        norm=SimpleNamespace(rmsnorm=lambda x, g, epsilon: torch.nn.functional.rms_norm(x, x.shape[-1:], g, epsilon)),
        activation=SimpleNamespace(silu_and_mul=gpu_rivals._gates),
    )
    flash_attn.__dict__.update(flash_attn_with_kvcache=flash)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn)


@pytest.mark.usefixtures("_packages")
@pytest.mark.parametrize("workload", ["gqa", "qknorm"])
def test_packages_of_attention_get_the_layouts_that_they_document(workload: str) -> None:
    attention_by_pages(workload)


@pytest.mark.usefixtures("_packages")
def test_parts_of_layers_come_from_packages_too() -> None:
    for workload, name in (
        ("rmsnorm", "FlashInfer's norm and cuBLAS"),
        ("gated-mlp", "one cuBLAS product and FlashInfer's gate"),
    ):
        inputs = inputs_of(workload)
        assert name in offers(OF_WORKLOADS[workload], inputs, exact_of(workload, inputs)).functions


BY_HAND = """
import sys
from gpu_rivals import OF_WORKLOADS, offers
from mugraph.frontend.workloads import WORKLOADS

for workload in ("rmsnorm", "gated-mlp", "ntrans"):
    for batch, dtype in ((3, "fp32"), (3, "fp16"), (17, "fp16")):
        inputs = WORKLOADS[workload].inputs(batch, dtype, "small")
        exact = WORKLOADS[workload].function()(*(tensor.double() for tensor in inputs))
        found = offers(OF_WORKLOADS[workload], inputs, exact)
        assert "Triton by hand" in found.functions, (workload, batch, dtype, found.refused)
"""


def test_kernels_by_hand_are_right_in_the_interpreter() -> None:
    """In a process of its own: whether Triton interprets is decided when it is imported."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", BY_HAND], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_ranks() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)
    assert rank_correlation([1, 1], [2, 3]) is None
    assert rank_correlation([1], [2]) is None


def made_up(workload: str, predicted: float | None, cold: float) -> dict[str, Any]:
    return {
        "workload": workload,
        "dtype": "bf16",
        "batch": 8,
        "device": "GPU",
        "predicted_seconds": predicted,
        "roofline_seconds": 1e-6,
        "warm_seconds": {"mugraph": 2e-6, "torch eager": 5e-6, "FlashInfer decode": 3e-6},
        "cold_seconds": {"mugraph": cold, "torch eager": 4e-6},
    }


def test_the_summary_names_the_best_rival_and_ranks_predictions() -> None:
    found = [made_up("a", 3e-6, 4e-6), made_up("b", 5e-6, 6e-6), made_up("c", None, 1e-6)]
    summary = gpu_times.summary(found)
    assert summary["a bf16 batch 8 on GPU"] == {
        "warm": 2.0,
        "cold": 4.0,
        "predicted": 3.0,
        "roofline": 1.0,
        "best rival, warm (FlashInfer decode)": 3.0,
        "best rival, cold (torch eager)": 4.0,
    }
    assert summary["c bf16 batch 8 on GPU"]["predicted"] is None
    assert summary["rank correlation of predicted and cold times on GPU"] == 1.0


def test_the_cache_is_flushed_by_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_times.FLUSHED_BYTES, "cpu", 1 << 12)
    flush = gpu_times.flush("cpu")
    assert flush() == 1.0
    (buffer, _) = flush.args  # type: ignore[attr-defined]
    assert buffer.nbytes == 1 << 12
    assert torch.equal(buffer, torch.ones_like(buffer))
