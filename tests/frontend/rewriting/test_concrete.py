"""Graphs with symbolic sizes at sizes that are known: what is computed of sizes becomes constants, results stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from mugraph.frontend.rewriting.graph_passes import concrete, numbers_of


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graphs_of(fn: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = True) -> tuple[fx.GraphModule, list[Any]]:
    """The ATen graph of a function, and its arguments for these inputs."""
    seen: list[tuple[fx.GraphModule, list[Any]]] = []

    def compiler(module: fx.GraphModule, example_inputs: Any) -> Any:
        def run(*arguments: Any) -> Any:
            seen.append((module, list(arguments)))
            return module.forward(*arguments)

        return make_boxed_func(run)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=aot_autograd(fw_compiler=compiler), dynamic=dynamic)(*inputs)
    return seen[-1]


def flattened_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.cat([x, y], 0)
    return z.reshape(z.shape[0] * z.shape[1]) * z.shape[0] + torch.arange(z.numel())


def test_results_and_recorded_sizes_are_those_of_the_arguments() -> None:
    module, arguments = graphs_of(flattened_sum, torch.randn(3, 4), torch.randn(5, 4))
    assert numbers_of(module)
    graph = concrete(module, arguments)
    torch.testing.assert_close(graph(*arguments), module(*arguments))
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            assert all(type(size) is int for size in (*value.shape, *value.stride()))
    assert not any("sym_size" in str(node.target) or "mul.Scalar" in str(node.target) for node in graph.graph.nodes)


def test_a_graph_can_be_made_concrete_at_several_sizes() -> None:
    module, _ = graphs_of(flattened_sum, torch.randn(3, 4), torch.randn(5, 4))
    numbers = numbers_of(module)
    assert numbers is not None
    other, others = graphs_of(flattened_sum, torch.randn(7, 6), torch.randn(2, 6))
    assert numbers_of(other) == numbers
    graph = concrete(module, others)
    torch.testing.assert_close(graph(*others), other(*others))


def test_graphs_of_fixed_sizes_have_no_numbers() -> None:
    module, arguments = graphs_of(flattened_sum, torch.randn(3, 4), torch.randn(5, 4), dynamic=False)
    assert numbers_of(module) == ()
    torch.testing.assert_close(concrete(module, arguments)(*arguments), module(*arguments))


def test_strides_are_those_of_the_arguments() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.t() * 2

    module, arguments = graphs_of(function, torch.randn(6, 10)[:, ::2])
    numbers = numbers_of(module)
    graph = concrete(module, arguments)
    torch.testing.assert_close(graph(*arguments), module(*arguments))
    (result,) = (node for node in graph.graph.nodes if node.op == "call_function" and "mul" in str(node.target))
    assert result.meta["val"].stride() == module(*arguments)[0].stride()
    assert numbers is not None


def test_sizes_that_are_no_argument_are_noticed() -> None:
    module, _ = graphs_of(flattened_sum, torch.randn(3, 4), torch.randn(5, 4))
    for node in list(module.graph.nodes):
        if node.op == "placeholder" and isinstance(node.meta["val"], torch.SymInt):
            node.meta["val"] = 3
    assert numbers_of(module) is None


def test_numbers_that_are_no_integers_are_noticed() -> None:
    module, _ = graphs_of(flattened_sum, torch.randn(3, 4), torch.randn(5, 4))
    (first, *_) = (node for node in module.graph.nodes if node.op == "placeholder")
    first.meta["val"] = torch.SymFloat(1.0)  # type: ignore[no-untyped-call]  # not annotated by torch
    assert numbers_of(module) is None


def test_calls_that_give_nothing_stay() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.ops.aten._foreach_zero_.default, ([x],))
    graph.output((x,))
    x_ours = torch.ones(3)
    concrete(fx.GraphModule({}, graph), [torch.ones(3)])(x_ours)
    assert not x_ours.any()


def test_calls_that_change_their_operands_stay() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[1:] = 0
        return y + y.shape[0]

    module, arguments = graphs_of(function, torch.randn(6, 5))
    torch.testing.assert_close(concrete(module, arguments)(*arguments), module(*arguments))
