"""Casts as PyTorch writes them: which round, with the bits of eager, and which only say where a program stores less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.nn.functional import scaled_dot_product_attention

import mugraph.integrations.torch_compile
from mugraph.errors import UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.operators.roundings import PrecisionOrigin, PrecisionStep, written_roundings
from mugraph.frontend.operators.torch_casts import note_roundings
from mugraph.frontend.partitioning.partition import partition
from mugraph.ir import DType, Graph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.ops import ROUNDINGS

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INF = float("inf")


def inputs(dtype: torch.dtype, wide: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors [4, 8] with numbers of many magnitudes, or (not `wide`) of order 1."""
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(4, 8, generator=generator, dtype=F64) for _ in range(2))
    spread = torch.logspace(-9, 5, 8, dtype=F64) if wide else torch.ones(8, dtype=F64)
    return (x * spread).to(dtype), y.to(dtype)


def roundings(graph: Graph) -> list[str]:
    return sorted(node.op for node in graph.nodes if node.op in ROUNDINGS.values())


def computed(graph: Graph, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The outputs as kernels make them, in fp32 (fp64 where there is any), stored in the types that they are declared with."""
    types = {"fp16": F16, "bf16": BF16, "fp32": F32, "fp64": F64}
    precision: Any = np.float64 if any(node.output.dtype is DType.FP64 for node in graph.nodes) else np.float32
    arrays = [tensor.double().numpy().astype(precision) for tensor in tensors]
    with np.errstate(all="ignore"):
        results = evaluate(graph, arrays, FloatArithmetic(precision))
    return [torch.tensor(array).to(types[output.dtype]) for array, output in zip(results, graph.output_tensors, strict=True)]


@dataclass(frozen=True)
class Case:
    """A function of two tensors of `given`, and what it rounds to."""

    name: str
    function: Callable[..., Any]
    rounds: tuple[str, ...]
    given: torch.dtype = F32


def quantized(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).to(x.dtype)


class Straight(nn.Module):
    """Fake quantization of weights as quantization-aware training writes it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + (quantized(x, BF16) - x).detach()


def split(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    high = x.bfloat16()
    low = (x - high.float()).bfloat16()
    return high.float() * y + low.float() * y


def split_in_three(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = x.bfloat16().float()
    second = (x - first).bfloat16().float()
    third = (x - first - second).bfloat16().float()
    return first, second, third


def in_autocast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=BF16):
        return (x.bfloat16() @ y.t().bfloat16()).float() - x @ y.t()


def written_into(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    narrow = x.half()
    return torch.abs(narrow).float() * y


EXACT = [
    Case("residual of bf16", lambda x, y: x - x.bfloat16().float(), ("round_bf16",)),
    Case("residual of fp16", lambda x, y: x - x.half().float(), ("round_fp16",)),
    Case("overflow to infinity", lambda x, y: (x * 1e6).half().float(), ("round_fp16",)),
    Case("overflow below", lambda x, y: (-x.abs() * 1e30).half().float(), ("round_fp16",)),
    Case("underflow to subnormals", lambda x, y: (x * 1e-6).half().float(), ("round_fp16",)),
    Case("underflow to nothing", lambda x, y: (x * 1e-9).half().float() + y, ("round_fp16",)),
    Case("there and back twice", lambda x, y: quantized(quantized(x, BF16), BF16), ("round_bf16",)),
    Case("two types", lambda x, y: quantized(x, BF16) - quantized(x, F16), ("round_bf16", "round_fp16")),
    Case("fp16, then bf16", lambda x, y: x.half().bfloat16().float(), ("round_bf16", "round_fp16")),
    Case("bf16, then fp16", lambda x, y: x.bfloat16().half().float(), ("round_bf16", "round_fp16")),
    Case("through a view", lambda x, y: x.bfloat16().reshape(8, 4).t().float(), ("round_bf16",)),
    Case(
        "through several views",
        lambda x, y: x.bfloat16().unsqueeze(0).transpose(1, 2).squeeze(0).t().float() - x,
        ("round_bf16",),
    ),
    Case("through a copy", lambda x, y: x.bfloat16().clone().contiguous().float(), ("round_bf16",)),
    Case("through an expansion", lambda x, y: x[:, None, :].bfloat16().expand(4, 2, 8).float().sum(1), ("round_bf16",)),
    Case("through abs and neg", lambda x, y: (-x.bfloat16().abs()).float(), ("round_bf16",)),
    Case("through relu", lambda x, y: torch.relu(x.bfloat16()).float(), ("round_bf16",)),
    Case("through a maximum", lambda x, y: x.bfloat16().amax(-1).float(), ("round_bf16",)),
    Case("promoted by a wider tensor", lambda x, y: x.bfloat16() * y, ("round_bf16",)),
    Case("promoted by the other 16 bits", lambda x, y: x.bfloat16() + y.half(), ("round_bf16", "round_fp16")),
    Case("subtracted from itself by promotion", lambda x, y: x - x.half(), ("round_fp16",)),
    Case("sum(dtype=) widens", lambda x, y: x.reshape(16, 2).bfloat16().sum(-1, dtype=F32), ("round_bf16",)),
    Case("to another's type", lambda x, y: x.to(y.half().dtype).to(x.dtype), ("round_fp16",)),
    Case("type_as", lambda x, y: x.type_as(y.half()).type_as(x) - x, ("round_fp16",)),
    Case("type()", lambda x, y: x.type(BF16).type(F32), ("round_bf16",)),
    Case("detached", Straight(), ("round_bf16",)),
    Case("scaled quantization", lambda x, y: (x / 0.37).half().float() * 0.37, ("round_fp16",)),
    Case("scale of the data", lambda x, y: quantized(x / y.abs(), BF16) * y.abs(), ("round_bf16",)),
    Case("split precision", split, ("round_bf16",) * 2),
    Case("split precision in three", split_in_three, ("round_bf16",) * 3),
    Case("read wide and narrow", lambda x, y: (x.bfloat16(), x - x.bfloat16().float()), ("round_bf16",)),
    Case("one cast, two readers", lambda x, y: (lambda h: (h.abs(), h.float() * y))(x.bfloat16()), ("round_bf16",)),
    Case("rounded after arithmetic", lambda x, y: (x * y + 1).bfloat16().float() - x * y, ("round_bf16",)),
    Case("fp32 made of bf16 comes back", lambda x, y: (x.float() * 1.001).bfloat16().float(), ("round_bf16",), BF16),
    Case(
        "rest of what bf16 makes",
        lambda x, y: (x.float() * 1.001) - (x.float() * 1.001).bfloat16().float(),
        ("round_bf16",),
        BF16,
    ),
    Case("fp16 asked of bf16", lambda x, y: x.half().float(), ("round_fp16",), BF16),
    Case("bf16 asked of fp16", lambda x, y: x.bfloat16().float() - x.float(), ("round_bf16",), F16),
    Case("fp16 overflows in fp32's place", lambda x, y: (x.float() * 1e5).half().float(), ("round_fp16",), F16),
    Case("fp64 to fp32 and back", lambda x, y: x - x.float().double(), ("round_fp32",), F64),
    Case("fp64 to bf16 and back", lambda x, y: x.float().bfloat16().double(), ("round_bf16", "round_fp32"), F64),
    Case("fp64 to fp16 by promotion", lambda x, y: x.half() * y, ("round_fp16",), F64),
    Case("widened first", lambda x, y: x.double().half().float(), ("round_fp16",)),
    Case("what is of the type already", lambda x, y: x.float().half().float(), (), F16),
    Case("views of what is of the type", lambda x, y: x.float().t().abs().bfloat16().float(), (), BF16),
    Case("into a smaller operand", written_into, ("round_fp16",)),
    Case("returned as it is", lambda x, y: x.bfloat16(), ()),
    Case("returned after arithmetic", lambda x, y: (x * y).half(), ()),
    Case("widened and back", lambda x, y: x.double().float() * y, ()),
]


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.name)
@pytest.mark.parametrize("wide", [False, True], ids=["of order 1", "of many magnitudes"])
def test_a_cast_that_comes_back_gives_the_bits_of_eager(case: Case, wide: bool) -> None:
    tensors = inputs(case.given, wide)
    graph = trace(case.function, tensors).graph
    assert roundings(graph) == sorted(case.rounds)
    wanted = case.function(*tensors)
    results = computed(graph, tensors if len(graph.inputs()) == 2 else tensors[: len(graph.inputs())])
    for got, expected in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert got.dtype is expected.dtype
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


NARROW_PROGRAMS = [
    Case("operands rounded to multiply", lambda x, y: x.bfloat16() @ y.t().bfloat16(), ("round_bf16",) * 2),
    Case("rounded, multiplied, widened", lambda x, y: (x.bfloat16() * 3).float(), ("round_bf16",)),
    Case("one wide operand", lambda x, y: (x.float() * y.float()).to(BF16) @ y.t(), (), BF16),
    Case("sum(dtype=) narrows", lambda x, y: x.sum(-1, dtype=F16), ("round_fp16",)),
    Case("softmax(dtype=) narrows", lambda x, y: torch.softmax(x, -1, dtype=F16), ("round_fp16",)),
    Case("softmax(dtype=) widens", lambda x, y: torch.softmax(x.bfloat16(), -1, dtype=F32), ("round_bf16",)),
    Case("autocast", in_autocast, ("round_bf16",) * 2),
]


@pytest.mark.parametrize("case", NARROW_PROGRAMS, ids=lambda case: case.name)
def test_operators_of_a_narrow_type_are_as_near_as_their_type_says(case: Case) -> None:
    tensors = inputs(case.given)
    graph = trace(case.function, tensors).graph
    assert roundings(graph) == sorted(case.rounds)
    expected = case.function(*tensors)
    (result,) = computed(graph, tensors[: len(graph.inputs())])
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result, expected, rtol=2**-7, atol=2**-7)


def test_multiplying_what_was_rounded_is_multiplying_the_rounded() -> None:
    """The product of operands rounded to bf16 differs from that of fp32 operands by more than rounding its result could."""
    x, y = inputs(F32)
    graph = trace(lambda x, y: x.bfloat16().float() @ y.t().bfloat16().float(), (x, y)).graph
    (result,) = computed(graph, (x, y))
    torch.testing.assert_close(result, x.bfloat16().float() @ y.t().bfloat16().float(), rtol=1e-5, atol=1e-6)
    assert (result - x @ y.t()).abs().max() > 1e-3


# --- what stays free -------------------------------------------------------------------------------------------------


def llama_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return gain * wide.to(x.dtype)


def gemma_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (wide * (1.0 + gain.float())).type_as(x)


def two_layers(x: torch.Tensor, gain: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x + llama_norm(x, gain) @ weight
    return gemma_norm(x, gain) @ weight


def eager_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    weights = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return torch.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype) @ value


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_fp32_between_16_bit_tensors_is_free(dtype: torch.dtype) -> None:
    x, gain, weight = torch.randn(4, 8), torch.randn(8), torch.randn(8, 8)
    graph = trace(two_layers, tuple(tensor.to(dtype) for tensor in (x, gain, weight))).graph
    assert not roundings(graph)
    assert not any(node.op == "cast" for node in graph.nodes) or dtype is BF16
    heads = tuple(torch.randn(2, 4, 8).to(dtype) for _ in range(3))
    fused = trace(lambda query, key, value: scaled_dot_product_attention(query, key, value), heads).graph
    assert trace(eager_attention, heads).graph == fused


def test_a_wide_tensor_that_enters_makes_the_cast_a_rounding() -> None:
    x, y = inputs(BF16)
    scale = torch.rand(8) + 0.5
    graph = trace(lambda x, scale, w: (x.float() * scale).to(x.dtype) @ w.t(), (x, scale, y)).graph
    assert roundings(graph) == ["round_bf16"]
    literal = trace(lambda x, w: (x.float() * torch.tensor(0.3)).to(x.dtype) @ w.t(), (x, y)).graph
    assert not roundings(literal)


@pytest.mark.parametrize(
    ("dtype", "why"),
    [
        *(
            (dtype, rf"it gives a tensor of {dtype}; only floating-point \(of fp8: e4m3fn, e5m2\), boolean, int8")
            for dtype in (torch.int16, torch.int64, torch.float8_e4m3fnuz)
        ),
        (torch.float8_e4m3fn, "it computes e4m3fn and rounds to it"),
        (torch.float8_e5m2, "it computes e5m2 and rounds to it"),
    ],
)
def test_casts_to_types_that_programs_do_not_compute_are_refused(dtype: torch.dtype, why: str) -> None:
    with pytest.raises(UnsupportedOperator, match=why):
        trace(lambda x: x.to(dtype).float() * 2, (torch.randn(4),))


def test_constants_are_rounded_at_once() -> None:
    x, _ = inputs(F32)
    graph = trace(lambda x: x * torch.full_like(x, 0.1).bfloat16().float(), (x,)).graph
    (result,) = computed(graph, (x,))
    torch.testing.assert_close(result, x * torch.full_like(x, 0.1).bfloat16().float(), rtol=0, atol=0)
    literal = trace(lambda x: x * torch.tensor(0.1).half().float(), (x,)).graph
    (node,) = (node for node in literal.nodes if node.op == "constant")
    assert str(node["value"]) == "819/8192"


# --- pieces ----------------------------------------------------------------------------------------------------------


def whole_graph(function: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> fx.Graph:
    graph: fx.Graph = torch.export.export(Wrapped(function), tensors, strict=False).run_decompositions({}).graph
    return graph


class Wrapped(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def test_compiled_pieces_keep_the_rounding() -> None:
    """The rest that rounding leaves of a softmax, times a matrix: nothing, if the cast were dropped in a piece."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(x, -1)
        return (weights - weights.bfloat16().float()) @ w

    x, w = torch.randn(16, 64), torch.randn(64, 64)
    torch._dynamo.reset()
    options: dict[str, Any] = {"keep": "all", "budget": 10.0, "strict": True, "cache": "off"}
    compiled: Any = torch.compile(function, backend="mugraph", options=options)
    with torch.inference_mode():
        result, wanted = compiled(x, w), function(x, w)
    torch._dynamo.reset()
    assert mugraph.integrations.torch_compile.compilations[-1].results
    assert wanted.abs().max() > 1e-4
    torch.testing.assert_close(result, wanted, rtol=0, atol=float(wanted.abs().max()) / 20)


def test_what_is_free_in_the_whole_is_free_in_a_piece() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide / (wide.square().sum(-1, keepdim=True) + 1).sqrt()).to(x.dtype) @ w

    x, w = torch.randn(16, 32).bfloat16(), torch.randn(32, 16).bfloat16()
    graph = whole_graph(function, (x, w))
    note_roundings(graph)
    assert not any(node.meta.get("rounds") for node in graph.nodes)
    assert all(not roundings(piece.program) for piece in partition(graph).pieces)


def test_equal_calls_that_round_otherwise_are_other_programs() -> None:
    """In both halves the same calls; in the second the narrow tensor is also read by a wide operator, outside the piece."""

    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for tensor in (x, y.sort(-1).values):
            wide = tensor.float()
            narrow = (wide * wide.square().mean(-1, keepdim=True)).to(tensor.dtype)
            results += [narrow @ w, narrow]
        return results[0], results[2], results[3].float().sort(-1).values

    tensors = tuple(torch.randn(32, 32).bfloat16() for _ in range(3))
    pieces = partition(whole_graph(function, tensors)).pieces
    programs = {piece.program for piece in pieces}
    assert len(pieces) == 2
    assert len(programs) == 2
    assert sorted(len(roundings(program)) for program in programs) == [0, 1]


# --- the rule --------------------------------------------------------------------------------------------------------


def test_integers_that_become_floats_are_wider_than_any_narrow_type() -> None:
    steps = [
        PrecisionStep(None, PrecisionOrigin.GIVEN),
        PrecisionStep(DType.FP32, PrecisionOrigin.COMPUTED, (0,)),
        PrecisionStep(DType.BF16, PrecisionOrigin.CAST, (1,)),
        PrecisionStep(DType.BF16, PrecisionOrigin.COMPUTED, (2,)),
    ]
    assert written_roundings(steps) == {2}


def test_an_index_decides_nothing_about_precision() -> None:
    steps = [
        PrecisionStep(None, PrecisionOrigin.GIVEN),
        PrecisionStep(DType.BF16, PrecisionOrigin.GIVEN),
        PrecisionStep(DType.FP32, PrecisionOrigin.CAST, (1,)),
        PrecisionStep(DType.FP32, PrecisionOrigin.MOVED, (2, 0)),
        PrecisionStep(DType.BF16, PrecisionOrigin.CAST, (3,)),
        PrecisionStep(DType.BF16, PrecisionOrigin.COMPUTED, (4,)),
    ]
    assert written_roundings(steps) == frozenset()


PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda x: x[:, 1:5],
    "split": lambda x: x.chunk(2, 1)[1],
    "cat": lambda x: torch.cat([x, -x], 1),
    "roll": lambda x: x.roll(3, 1),
    "unfold": lambda x: x.unfold(1, 3, 1),
    "zeros around": lambda x: nn.functional.pad(x, (1, 2)),
    "reflected": lambda x: nn.functional.pad(x, (1, 2), mode="reflect"),
    "the border again": lambda x: nn.functional.pad(x, (1, 2), mode="replicate"),
    "largest of windows": lambda x: nn.functional.max_pool1d(x, 3, 1),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_value_comes_back_through_its_parts(name: str) -> None:
    """What was rounded before is read where more than its type is computed with, and is no other for standing elsewhere."""

    def function(x: torch.Tensor) -> torch.Tensor:
        wide = x.float().exp()
        return PARTS[name](wide.half()).float() - PARTS[name](wide)

    x = inputs(F16)[0]
    graph = trace(function, [x]).graph
    assert roundings(graph) == ["round_fp16"]
    (result,) = computed(graph, (x,))
    torch.testing.assert_close(result, function(x), rtol=0, atol=1e-5)
    assert result.abs().max() > 1e-4
