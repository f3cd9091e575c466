"""The paper's six workloads: shapes, functions, inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mugraph.errors import InvalidInput
from mugraph.frontend.workloads import WORKLOADS, workload

from .agreement import assert_agrees

FULL_SIZE: dict[str, dict[str, tuple[int, ...]]] = {
    "rmsnorm": {"x": (8, 4096), "g": (4096,), "w": (4096, 4096)},
    "gated-mlp": {"x": (8, 4096), "w_gate": (4096, 4096), "w_up": (4096, 4096)},
    "lora": {"x": (8, 4096), "w": (4096, 4096), "a": (4096, 16), "b": (16, 4096)},
    "gqa": {"q": (8, 2, 8, 128), "k": (8, 2, 8192, 128), "v": (8, 2, 8192, 128)},
    "qknorm": {"q": (8, 32, 1, 128), "k": (8, 32, 4096, 128), "v": (8, 32, 4096, 128)},
    "ntrans": {"x": (64, 2048), "h": (64, 2048), "alpha": (2048,)},
}
VARIANTS = [(name, norm) for name, found in WORKLOADS.items() for norm in (*found.norms, None)]


def test_full_sizes_are_the_papers() -> None:
    assert {name: dict(found.shapes()) for name, found in WORKLOADS.items()} == FULL_SIZE


def test_the_batch_size_scales_activations_only() -> None:
    assert WORKLOADS["rmsnorm"].shapes(16) == {"x": (16, 4096), "g": (4096,), "w": (4096, 4096)}
    assert WORKLOADS["qknorm"].shapes(1)["k"] == (1, 32, 4096, 128)
    assert WORKLOADS["ntrans"].shapes(2)["x"] == (16, 2048)


def test_the_figures_rmsnorm() -> None:
    assert WORKLOADS["rmsnorm"].shapes(size="figure") == {"x": (16, 1024), "g": (1024,), "w": (1024, 4096)}


@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_a_workload_traces_to_what_pytorch_computes(name: str, norm: str | None) -> None:
    found = WORKLOADS[name]
    inputs = found.inputs(dtype="fp64", size="small")
    traced = assert_agrees(found.function(norm), *inputs)
    assert traced.graph.input_names == tuple(found.shapes())


@pytest.mark.parametrize("name", WORKLOADS)
def test_results_are_neither_tiny_nor_huge(name: str) -> None:
    found = WORKLOADS[name]
    spread = found.function()(*found.inputs(size="small")).std().item()
    assert 0.05 < spread < 3


def test_inputs_are_reproducible_and_of_the_type_asked_for() -> None:
    found = WORKLOADS["lora"]
    first, again, other = (found.inputs(2, "bf16", "small", seed) for seed in (1, 1, 2))
    assert all(tensor.dtype is torch.bfloat16 for tensor in first)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_qknorms_default_norm_is_rms() -> None:
    assert WORKLOADS["qknorm"].norm_names == ("rms", "layer")
    assert WORKLOADS["gqa"].norm_names == (None,)
    assert WORKLOADS["qknorm"].function() is WORKLOADS["qknorm"].function("rms")
    assert WORKLOADS["qknorm"].function() is not WORKLOADS["qknorm"].function("layer")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (lambda: workload("rmsnorms"), "unknown workload 'rmsnorms'; use one of rmsnorm, gated-mlp, lora, gqa, qknorm, ntrans"),
        (lambda: workload("gqa").inputs(size="figure"), "unknown size of workload gqa 'figure'; use one of full, small"),
        (lambda: workload("qknorm").function("batch"), "unknown norm of workload qknorm 'batch'; use one of rms, layer"),
        (lambda: workload("gqa").function("rms"), "workload gqa has no norm to choose"),
        (lambda: workload("gqa").inputs(batch=0), "batch 0: use 1 or more"),
        (lambda: workload("gqa").inputs(dtype="int3", size="small"), "unknown dtype 'int3'"),
        (lambda: workload("gqa").inputs(dtype="int8", size="small"), "no inputs of int8; use one of fp16, bf16, fp32, fp64"),
    ],
)
def test_unknown_requests_name_what_is_known(request_: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        request_()
