"""Results as torch operators: they run, have fake kernels, and survive torch.export and torch.compile."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from mugraph import Superoptimized, superoptimize
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.integrations.torch_operator import torch_operator

_NUMBERS = itertools.count()
X, W = torch.randn(4, 32), torch.randn(32, 16)


def norm_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)) @ w


@pytest.fixture(scope="module")
def result() -> Superoptimized:
    return superoptimize(norm_linear, (X, W), profile=False)


def named() -> str:
    return f"mugraph_test::op{next(_NUMBERS)}"


def test_an_operator_computes_what_the_result_computes(result: Superoptimized) -> None:
    name = named()
    operator = torch_operator(name, result)
    torch.testing.assert_close(operator(X, W), result(X, W))
    torch.testing.assert_close(getattr(torch.ops.mugraph_test, name.partition("::")[2])(X, W), result(X, W))
    torch.library.opcheck(operator, (X, W), test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


def test_an_operator_survives_export_and_compilation(result: Superoptimized) -> None:
    operator = torch_operator(named(), result)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.lgamma(operator(x, w)) + 1

    exported = torch.export.export(Model(), (X, W))
    assert any("mugraph_test" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(X, W), Model()(X, W))
    whole: Any = torch.compile(Model(), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(X, W), Model()(X, W))


def test_several_outputs_are_a_tuple() -> None:
    result = superoptimize(lambda x, w: (x @ w, (x @ w).exp().sum(-1)), (X, W), profile=False)
    operator = torch_operator(named(), result)
    for ours, wanted in zip(operator(X, W), result(X, W), strict=True):
        torch.testing.assert_close(ours, wanted)


def test_other_shapes_and_names_are_refused(result: Superoptimized) -> None:
    operator = torch_operator(named(), result)
    with pytest.raises(ShapeMismatch):
        operator(X[:2], W)
    with pytest.raises(InvalidInput, match="use the form namespace::name"):
        torch_operator("no namespace", result)
