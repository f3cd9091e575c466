"""Functions and modules as people write them: the traced program computes what they compute, in the form the search wants."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mugraph.errors import InvalidInput, UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.recording import export
from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.scalar import Scalar
from mugraph.runtime import build

from ..agreement import assert_agrees, positive, random

X, Y, M = random(3, 4, seed=1), random(3, 4, seed=2), random(4, 5)
Q, K, V = random(2, 3, 6, 4), random(2, 3, 8, 4), random(2, 3, 8, 4, seed=1)


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes if node.op not in ("input", "constant"))


def test_what_pytorch_traces_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    trace(torch.exp, (X,))
    caplog.clear()
    trace(torch.exp, (X,))
    assert [record for record in caplog.records if record.name == "torch.__trace"] == []


# --- functions -------------------------------------------------------------------------------------------------------


def elementwise(x: torch.Tensor, y: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
    return [
        x + y, x + 1, 2 - x, x - y, -x, x * y, 0.5 * x, x / p, 1 / p, x / 3, p.reciprocal(), x**2, p**0.5, p**-0.5,
        x.square(), p.sqrt(), p.rsqrt(), x.exp(), p.log(), x.abs(), x.tanh(), x.sigmoid(), F.silu(x), F.relu(x), F.gelu(x),
        x * torch.sigmoid(x), x + torch.ones_like(x), torch.lerp(x, y, 0.25), torch.addcmul(x, y, p), p.clamp(min=0.75),
    ]  # fmt: skip


def contractions(x: torch.Tensor, m: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "mm": torch.mm(x, m),
        "at": x @ m,
        "linear": F.linear(x, m.t(), m[0:4].sum(0)),
        "addmm": torch.addmm(m.sum(0), x, m),
        "bmm": torch.bmm(q[:, :].flatten(0, 1), k.flatten(0, 1).mT),
        "batched": q @ k.transpose(-1, -2),
        "einsum": torch.einsum("bhqd,bhkd->bhqk", q, k),
        "outer": torch.outer(x.flatten(), m.flatten()),
        "vector": x @ m.sum(1),
    }


def reductions(x: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        x.sum(), x.sum(0), x.sum((0, 1), keepdim=True), x.mean(), x.mean(-1), x.amax(1), x.max(), x.max(0).values, x.var(1),
        x.std(1, unbiased=False), torch.var_mean(x, -1)[1], x.norm(), x.norm(dim=-1, keepdim=True), torch.linalg.vector_norm(q),
        F.normalize(x, dim=-1), F.softmax(x, -1), torch.softmax(q, 1), F.layer_norm(q, (6, 4)), F.rms_norm(x, (4,)),
    )  # fmt: skip


def views(x: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        x.view(2, 6), x.t().reshape(-1), x.T, q.mT, q.flatten(1, 2), q.view(2, 3, 2, -1), q.permute(3, 1, 0, 2),
        q.movedim(1, -1), x.unsqueeze(1), x[:, None].flatten(),
        x[None, :, None], x[None][0], x.unsqueeze(0).squeeze(), x.expand(2, 3, 4), x.repeat(2, 1), x.tile(2),
        x.repeat_interleave(2, dim=0), x.contiguous().clone().detach(), torch.broadcast_to(x[:, None], (3, 2, 4)),
        x.swapaxes(0, 1),
    )  # fmt: skip


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (elementwise, (X, Y, positive(3, 4))),
        (contractions, (X, M, Q, K)),
        (reductions, (X, Q)),
        (views, (X, Q)),
        (attention, (Q, K, V)),
        (F.scaled_dot_product_attention, (Q, K, V)),
    ],
)
def test_a_program_computes_what_the_function_computes(fn: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    assert_agrees(fn, *inputs)


def test_both_ways_to_write_attention_are_one_program() -> None:
    spelled, named = trace(attention, (Q, K, V)).graph, trace(F.scaled_dot_product_attention, (Q, K, V)).graph
    assert [node.op for node in spelled.nodes] == [node.op for node in named.nodes]


def test_both_ways_to_write_rms_norm_are_one_program() -> None:
    def spelled(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * g

    def named(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (4,), g, eps=1e-5)

    assert trace(spelled, (X, X[0])).graph == trace(named, (X, X[0])).graph


def test_safe_softmax_written_by_hand_is_softmax() -> None:
    def by_hand(x: torch.Tensor) -> torch.Tensor:
        exponentials = torch.exp(x - x.max(-1, keepdim=True).values)
        return exponentials / exponentials.sum(-1, keepdim=True)

    assert trace(by_hand, X).graph == trace(lambda x: x.softmax(-1), X).graph


def test_equal_subexpressions_are_computed_once_and_dead_ones_never() -> None:
    def wasteful(x: torch.Tensor) -> torch.Tensor:
        x.exp() @ x.t()
        return x.square().sum(-1) / (x.pow(2).sum(-1) + (x * x).sum(-1))

    assert operators(trace(wasteful, X).graph)["square"] == 1
    assert "exp" not in operators(trace(wasteful, X).graph)


def test_scalars_are_exact() -> None:
    graph = trace(lambda x: x * 0.1 + 128**-0.5, X).graph
    assert {str(node["value"]) for node in graph.nodes if node.op == "constant"} == {"1/10", "sqrt(1/128)"}


def test_numbers_written_as_tensors_are_constants() -> None:
    traced = assert_agrees(lambda x: x * torch.tensor(0.5, dtype=torch.float64) + torch.tensor(3), X)
    assert traced.captured == ()


def test_in_place_operators_on_intermediate_tensors_are_fine() -> None:
    def in_place(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = x @ m
        y += 1
        y.mul_(2).relu_()
        return y

    assert_agrees(in_place, X, M)


# --- dtypes ----------------------------------------------------------------------------------------------------------


def dtypes(graph: Graph) -> list[DType]:
    return [tensor.dtype for tensor in graph.output_tensors]


def test_casts_inside_a_program_are_dropped() -> None:
    def llama(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).type_as(x) * g

    graph = trace(llama, (X.bfloat16(), X[0].bfloat16())).graph
    assert "cast" not in operators(graph)
    assert dtypes(graph) == [DType.BF16]


def test_an_output_is_stored_as_pytorch_stores_it() -> None:
    graph = trace(lambda x: (x @ x.t(), (x + 1).half(), x.double().bfloat16()), X.float()).graph
    assert dtypes(graph) == [DType.FP32, DType.FP16, DType.BF16]


def test_an_output_wider_than_its_inputs_is_computed_wide() -> None:
    graph = trace(lambda x: x.float() @ x.float().t(), X.bfloat16()).graph
    assert dtypes(graph) == [DType.FP32]
    product = next(node for node in graph.nodes if node.op == "matmul")
    assert product.output.dtype is DType.FP32


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.softmax(x, -1, dtype=torch.float32) + 0 * w,
        lambda x, w: x.sum(-1, keepdim=True, dtype=torch.float32) * w,
        lambda x, w: (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w,
        lambda x, w: torch.softmax(x, -1, dtype=torch.float32),
    ],
)
def test_what_pytorch_computes_wide_is_as_exact(function: Callable[..., torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(4, 16, generator=generator).bfloat16(), torch.randn(4, 16, generator=generator)
    traced = trace(function, (x, w))
    torch.testing.assert_close(traced.call(build(traced.graph), x, w), function(x, w), rtol=1e-6, atol=1e-6)


def test_what_is_added_no_times_is_not_read() -> None:
    def scores(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(out, q, k, beta=0, alpha=0.5)

    operands = torch.full((2, 3, 4), torch.nan), torch.ones(2, 3, 5), torch.ones(2, 5, 4)
    traced = trace(scores, operands)
    torch.testing.assert_close(traced.call(build(traced.graph), *operands), torch.full((2, 3, 4), 2.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_default_epsilon_of_rms_norm_is_pytorchs(dtype: torch.dtype) -> None:
    x = torch.full((2, 4), 3e-5, dtype=dtype)
    graph = trace(lambda x: F.rms_norm(x, (4,)), x).graph
    (shifted,) = (node for node in graph.nodes if node.op == "add")
    epsilon = graph.nodes[shifted.inputs[1].node]["value"]
    assert isinstance(epsilon, Scalar)
    assert epsilon == Scalar(Fraction(1, 2**52 if dtype is torch.float64 else 2**23))
    expected = 3e-5 / math.sqrt(9e-10 + float(epsilon))
    assert F.rms_norm(x, (4,))[0, 0].item() == pytest.approx(expected, rel=2e-2)


# --- modules ---------------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """A module with parameters, a buffer, a plain tensor attribute and submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)
        self.up = torch.nn.Linear(4, 6)
        self.down = torch.nn.Linear(6, 4, bias=False)
        self.unused = torch.nn.Linear(9, 9)
        self.dropout = torch.nn.Dropout(0.1)
        self.scale = torch.nn.Buffer(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.offset = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.up(self.norm(x)))
        residual: torch.Tensor = self.dropout(self.down(hidden))
        return x * self.scale + self.offset + residual


def test_parameters_and_buffers_are_inputs_passed_along() -> None:
    traced = assert_agrees(Block().double().eval(), X)
    assert traced.graph.input_names == ("x", "norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "scale", "offset")


def test_parameters_updated_in_place_are_seen() -> None:
    model = torch.nn.Linear(4, 5).double()
    traced = trace(model, X)
    with torch.no_grad():
        model.weight.mul_(2)
    weight = traced.flatten((X,), {})[1]
    assert torch.equal(weight, model.weight)
    assert not weight.requires_grad


def test_parameters_replaced_by_others_are_seen() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 5)).double()
    traced = trace(model, X)
    wanted = torch.nn.Linear(4, 5).double()
    model[0].weight = wanted.weight
    assert torch.equal(traced.flatten((X,), {})[1], wanted.weight)
    model.load_state_dict({f"0.{name}": tensor.detach() + 1 for name, tensor in wanted.state_dict().items()}, assign=True)
    assert torch.equal(traced.flatten((X,), {})[1], wanted.weight + 1)
    model[0] = wanted
    assert torch.equal(traced.flatten((X,), {})[2], wanted.bias)


def test_tensors_a_function_closes_over_are_inputs() -> None:
    linear = torch.nn.Linear(4, 5).double()
    traced = assert_agrees(lambda x: linear(x) @ M.t(), X)
    assert traced.graph.input_names == ("x", "linear.weight", "linear.bias", "M")
    assert traced.captured[2] is M or torch.equal(traced.captured[2], M)


class Recordings:
    """Functions that bring tensors along, and how often PyTorch records them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.real = torch.export.export
        monkeypatch.setattr(torch.export, "export", self.export)

    def export(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self.real(*args, **kwargs)

    def of(self, fn: Callable[..., Any], x: torch.Tensor = X) -> int:
        """How often it is recorded to be a program, which is right."""
        self.count = 0
        traced = trace(fn, x)
        count = self.count
        arrays = [tensor.double().numpy() for tensor in traced.flatten((x,), {})]
        (got,) = evaluate(traced.graph, arrays, FloatArithmetic())
        torch.testing.assert_close(torch.from_numpy(got), fn(x))
        return count


def test_what_a_function_captured_before_is_an_input_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings, held = Recordings(monkeypatch), {"w": M, "b": random(5, seed=4)}

    def fn(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 2:
            return held["b"].exp() + x @ held["w"]
        return x @ held["w"] if x.shape[0] == 3 else (x @ held["w"] + held["b"]).exp()

    assert [recordings.of(fn), recordings.of(fn)] == [1, 1]
    assert recordings.of(fn, random(5, 4)) == 2  # one tensor more
    assert recordings.of(fn, random(6, 4)) == 1
    assert recordings.of(fn, random(2, 4)) == 1  # in another order
    assert recordings.of(fn) == 1  # one less
    held["w"] = M + 1
    assert recordings.of(fn) == 2  # another
    held["w"] = M - 1
    gc.collect()
    assert recordings.of(fn) == 1  # another, and nobody has the one before
    held["w"].mul_(2)
    assert recordings.of(fn) == 1


def test_what_a_function_may_capture_is_an_input_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a module's closures, too, in whatever order it comes to them; what it does not reach is no input."""
    recordings = Recordings(monkeypatch)

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.weights = torch.nn.Linear(4, 4).double(), torch.nn.ParameterList([M, M + 1, M + 2])
            self.layers = [lambda x, weight=weight: x @ weight for weight in self.weights]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layers[2](self.own(x)) * self.layers[0](x)
            return found

    module = Layers()
    assert recordings.of(module) == 1
    assert trace(module, X).inputs[1:] == ("own.weight", "own.bias", "weights.2", "weights.0")
    monkeypatch.setattr(export, "likely_captured", lambda fn: [])
    assert recordings.of(Layers()) == 2
    assert trace(Layers(), X).graph == trace(module, X).graph


def test_where_a_function_captures_what_nothing_leads_to_it_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings, hidden, bias = Recordings(monkeypatch), weakref.ref(M), random(5, seed=4)
    assert recordings.of(lambda x: x @ hidden() + bias) == 3


def test_what_is_captured_and_written_to_is_recorded_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings, held = Recordings(monkeypatch), torch.zeros(3, 4, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="changes a tensor it closes over"):
        recordings.of(lambda x: held[1:].add_(x[1:]) * 2)
    assert recordings.count == 3


def test_what_was_captured_before_decides_nothing() -> None:
    """A tensor whose values a function looks at is refused as where it is captured the first time, and recorded again after."""
    held: list[Any] = [M, False]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x @ held[0] if not held[1] or held[0].sum() > 0 else x

    trace(fn, X)
    held[1] = True
    with pytest.raises(UnsupportedOperator, match="depends on the values of a tensor"):
        trace(fn, X)
    held[1] = False
    assert len(trace(fn, X).captured) == 1


def test_what_is_kept_in_mind_keeps_no_tensor_and_no_function_alive() -> None:
    class Called:
        __slots__ = ("weight",)

        def __init__(self) -> None:
            self.weight = random(4, 5)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    for _ in range(2):
        assert len(trace(Called(), X).captured) == 1  # takes no weak references

    def gone_after() -> list[weakref.ref[Any]]:
        weight = random(4, 5)

        def fn(x: torch.Tensor) -> torch.Tensor:
            return x @ weight

        assert len(trace(fn, X).captured) == 1
        return [weakref.ref(fn), weakref.ref(weight)]

    gone = gone_after()
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_keys_that_differ_in_punctuation_only_are_inputs_of_their_own() -> None:
    traced = assert_agrees(lambda pair: pair["a-b"] @ pair["a b"].t(), {"a-b": X, "a b": X + 1})
    assert len(set(traced.graph.input_names)) == 2


def test_a_tensor_attribute_named_like_an_argument_gets_another_name() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(Y)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.x

    assert assert_agrees(Model(), X).graph.input_names == ("x", "x_2")


def test_shapes_come_from_tensors_without_data_too() -> None:
    graph = trace(lambda x, m: x @ m, (X.to("meta"), M.to("meta"))).graph
    assert graph.output_tensors[0].shape == (3, 5)


def test_threads_trace_at_once_and_leave_stdout_alone() -> None:
    stdout = sys.stdout
    with ThreadPoolExecutor(4) as pool:
        graphs = list(pool.map(lambda _: trace(torch.softmax, (torch.ones(4, 4), -1)).graph, range(8)))
    assert all(graph == graphs[0] for graph in graphs)
    assert sys.stdout is stdout
