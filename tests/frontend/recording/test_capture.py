"""Capturing Dynamo's graphs: they are those of AOTAutograd, each kind of call is captured once, what is not plain is refused."""

from __future__ import annotations

import itertools
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.recording import capture
from mugraph.frontend.recording.capture import captured

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Layer(nn.Module):
    """Attention over halves of a tensor, masked by its own constant, and a residual."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x of shape [batch, rows, width]."""
        batch, rows, width = x.shape
        q, k, v = (part.view(batch, rows, 2, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        scale = torch.tensor([0.5, 2.0]).view(2, 1, 1)
        attended = nn.functional.scaled_dot_product_attention(torch.cat((-q[..., 4:], q[..., :4]), -1) * scale, k, v)
        result: torch.Tensor = x + self.out(attended.transpose(1, 2).reshape(batch, rows, width))
        return result


def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = x.max(-1)
    return values * 2, places.float().to(torch.float32) + torch.arange(x.shape[0])


def grown(cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    grown = torch.cat((cache, x))
    return grown, torch.softmax(grown @ grown.T, -1).reshape(-1) + grown.shape[0] * 2


def both(fn: Function, *examples: Sequence[torch.Tensor], **how: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The last graph of `fn` on these arguments as captured, which ran and gave what eager gives, and as AOTAutograd makes it."""
    graphs: list[tuple[fx.GraphModule, fx.GraphModule]] = []

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Function:
        ours = captured(module)

        def keep(theirs: fx.GraphModule, _: Sequence[Any]) -> Function:
            graphs.append((ours, theirs))
            return make_boxed_func(theirs.forward)

        aot_autograd(fw_compiler=keep)(module, example_inputs)
        forward: Function = ours.forward
        return forward

    fast = torch.compile(fn, backend=backend, fullgraph=True, **how)
    with torch.no_grad():
        for given in examples:
            torch.testing.assert_close(fast(*given), fn(*given))
    return graphs[-1]


def text(module: fx.GraphModule) -> list[str]:
    """The calls on tensors, operands numbered in their order, sizes as expressions."""
    names: dict[fx.Node, str] = {}
    calls: list[str] = []
    for node in module.graph.nodes:
        value = node.meta.get("val")
        of_tensors = node.op == "output" or isinstance(value, (torch.Tensor, tuple))
        names[node] = f"%{len(calls)}" if of_tensors else str(value)
        if of_tensors:
            called = "" if node.op in ("placeholder", "get_attr") else node.target
            calls.append(f"{node.op} {called} {fx.map_arg((node.args, node.kwargs), names.__getitem__)}")
    return calls


@pytest.mark.parametrize(
    ("fn", "examples"),
    [
        (nn.Sequential(Layer(), Layer()).eval(), [(torch.randn(2, 4, 16),)]),
        (largest, [(torch.randn(3, 5),)]),
        (nn.Sequential(nn.RMSNorm(5), nn.GELU(), nn.Softmax(-1)), [(torch.randn(3, 5),)]),
        (lambda x, y: (torch.einsum("ij,kj->ik", x, y).T, torch.where(x > 0, x, -x)), [(torch.randn(3, 5), torch.randn(4, 5))]),
    ],
)
def test_a_captured_graph_is_the_one_of_aot_autograd(fn: Function, examples: list[tuple[torch.Tensor, ...]]) -> None:
    ours, theirs = both(fn, *examples)
    assert text(ours) == text(theirs)


def test_calls_know_the_line_they_come_from() -> None:
    ours, _ = both(largest, (torch.randn(3, 5),))
    assert all("in largest" in (node.stack_trace or "") for node in ours.graph.nodes if node.op == "call_function")


def test_sizes_may_vary() -> None:
    x = torch.randn(2, 6)
    ours, _ = both(grown, *((torch.randn(rows, 6), x) for rows in (3, 4, 9)))
    symbols = [node for node in ours.graph.nodes if node.op == "placeholder" and isinstance(node.meta["val"], torch.SymInt)]
    assert len(symbols) == 1, "the last graph is right for all numbers of rows"


def test_a_size_that_varies_may_be_broadcast() -> None:
    sizes = ((torch.randn(batch, 6, 32), torch.randn(batch, 6, 32)) for batch in (2, 7))
    both(lambda x, y: nn.functional.normalize(torch.lerp(x, y.mean(1, keepdim=True), 0.3), dim=0), *sizes, dynamic=True)


def test_equal_calls_are_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = unittest.mock.Mock(wraps=capture._Recorder)
    monkeypatch.setattr(capture, "_Recorder", template)
    kinds = []
    for depth in (2, 6):
        template.reset_mock()
        torch._dynamo.reset()
        both(nn.Sequential(*(Layer() for _ in range(depth))).eval(), (torch.randn(2, 4, 16),))
        kinds.append(template.call_count)
    assert kinds[0] == kinds[1] > 10


def test_results_of_equal_calls_are_told_apart() -> None:
    both(lambda x, y: torch.sin(x) - torch.sin(y) * torch.sin(x), (torch.randn(4), torch.randn(4)))


def test_calls_that_differ_in_a_stride_a_number_or_a_repetition_are_not_equal() -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    both(lambda x, y: (-x.reshape(16), -y.t().reshape(16), x * 2, x * 2.0, x * -0.0, x * 0.0, x - y, x - x), (x, y))


def test_a_constant_of_the_function_is_fresh_in_every_call() -> None:
    fast = torch.compile(lambda x: (torch.tensor([1.0, 2.0]), x + 1), backend=lambda module, _: captured(module).forward)
    for _ in range(2):
        constant, _ = fast(torch.zeros(2))
        torch.testing.assert_close(constant, torch.tensor([1.0, 2.0]))
        constant.zero_()


def in_place_on_an_argument(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1) * 2


def in_place_on_a_result(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[0] = 3
    return y


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return x * 2


def under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


def a_branch(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    return result


@pytest.mark.parametrize(
    ("fn", "match"),
    [
        (in_place_on_an_argument, "add_"),
        (in_place_on_a_result, "changes an operand"),
        (lambda x: (x.view(4, 4), x * 2), "shares memory with an argument"),
        (lambda x: x.to(torch.float32).transpose(0, 1), "shares memory with an argument"),
        (without_gradients, "grad"),
        (under_autocast, "autocast"),
        (a_branch, "cond"),
        (lambda x: torch.nn.functional.one_hot((x > 0).long(), 2) * x[..., None], "one_hot checks numbers"),
        (lambda x: torch.ops.aten.one_hot((x > 0).long(), 2) * x[..., None], "one_hot checks numbers"),
    ],
)
def test_what_is_not_plain_is_refused_and_right_all_the_same(fn: Function, match: str) -> None:
    refused: list[str] = []

    def backend(module: fx.GraphModule, _: Sequence[Any]) -> Function:
        try:
            captured(module)
        except UnsupportedOperator as error:
            refused.append(str(error))
        forward: Function = module.forward
        return forward

    x = torch.randn(4, 4)
    with torch.no_grad():
        torch.compile(fn, backend=backend)(x.clone())
        assert any(match in reason for reason in refused), refused
        torch._dynamo.reset()
        ours, theirs = x.clone(), x.clone()
        torch.testing.assert_close(torch.compile(fn, backend="mugraph")(ours), fn(theirs), rtol=0.05, atol=0.05)
        torch.testing.assert_close(ours, theirs)


def test_classes_that_there_are_not_are_an_error_in_later_calls_too() -> None:
    """They had no 1 in their row."""
    w = torch.randn(4, 5)
    options: dict[str, Any] = {"keep": "all", "profile": False, "budget": 20.0}
    fast = torch.compile(lambda classes: torch.nn.functional.one_hot(classes, 4).float() @ w, backend="mugraph", options=options)
    with torch.no_grad():
        classes = torch.tensor([1, 2])
        torch.testing.assert_close(fast(classes), w[classes], rtol=1e-4, atol=1e-4)
        for wrong in (torch.tensor([9, 2]), torch.tensor([1, -1])):
            with pytest.raises(RuntimeError, match="Class values must be"):
                fast(wrong)


def test_under_ambient_autocast_nothing_is_captured() -> None:
    module = fx.GraphModule({}, fx.Graph())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UnsupportedOperator, match="autocast"):
        captured(module)


def test_random_numbers_are_drawn_in_the_order_of_the_graph() -> None:
    def noisy(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(3) + x, torch.rand(3) * torch.randn_like(x)

    fast = torch.compile(noisy, backend=lambda module, _: captured(module).forward)
    drawn = []
    for fn in (fast, noisy):
        torch.manual_seed(1)
        with torch.no_grad():
            drawn.append([fn(torch.ones(3)) for _ in range(2)])
    for ours, theirs in zip(itertools.chain(*drawn[0]), itertools.chain(*drawn[1]), strict=True):
        torch.testing.assert_close(ours, theirs)
