"""The files in examples/ do what their docstrings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mugraph.frontend import trace
from mugraph.frontend.files import load_function
from mugraph.ir.program import Program

from .agreement import assert_agrees

EXAMPLES = Path(__file__).parents[2] / "examples"
FUNCTIONS = [
    "layernorm_linear.py:model",
    "matmul_chain.py:chain",
    "matmul_chain.py:cheap_chain",
    "residual_rmsnorm.py:add_and_normalise",
    "rmsnorm_gated_mlp.py:normalised_gate",
    "softmax.py:scores",
    "softmax.py:shifted_scores",
    "xz_yz.py:one_product",
    "xz_yz.py:two_products",
]


def load(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    loaded = load_function(f"{EXAMPLES}/{name}")
    return loaded.function, loaded.example_inputs()


def test_every_file_is_named_here_and_in_the_readme() -> None:
    files = {path.name for path in EXAMPLES.glob("*.py")}
    assert files == {name.partition(":")[0] for name in FUNCTIONS} | {"without_torch.py", "decoder_layer.py"}
    assert all(f"`{file}`" in (EXAMPLES / "README.md").read_text() for file in files)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_example_traces_to_what_it_computes(name: str) -> None:
    function, inputs = load(name)
    if isinstance(function, torch.nn.Module):
        function = function.double()
    assert_agrees(function, *(tensor.double() for tensor in inputs))


def test_both_softmaxes_are_one_program() -> None:
    scores, inputs = load("softmax.py:scores")
    shifted_scores, _ = load("softmax.py:shifted_scores")
    assert trace(scores, inputs).graph == trace(shifted_scores, inputs).graph


def test_the_program_without_torch_is_a_program() -> None:
    program = load_function(f"{EXAMPLES}/without_torch.py:program").function
    assert isinstance(program, Program)
    assert program.graph.output_tensors[0].shape == (16, 1024)
