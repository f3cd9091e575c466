"""FlexAttention, written out: what PyTorch's own eager implementation gives, and programs where there was one call."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import mugraph
from mugraph.errors import UnsupportedOperator
from mugraph.frontend.recording.torch_trace import recorded_call, traced
from mugraph.frontend.rewriting.flex_attention import OPERATOR, attention
from mugraph.frontend.rewriting.graph_passes import ready_to_cut
from mugraph.integrations import torch_compile
from mugraph.ir.ops import OPERATORS
from pairwise import pairwise

pytestmark = pytest.mark.skipif(
    not hasattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"), reason="it is compiled before it is traced"
)
HEADS, LENGTH, WIDTH = 4, 40, 16
torch.manual_seed(0)
TABLE = torch.randn(HEADS, 400)
HIDING = torch.randn(HEADS, 400).masked_fill(torch.rand(HEADS, 400) < 0.5, -torch.inf)
DOCUMENTS = torch.arange(200) // 13
PREFIX = torch.tensor([5, 0])
SMALLEST = torch.finfo(torch.float32).min
SLOPES = torch.exp2(-torch.arange(1.0, HEADS + 1))

Mod = Callable[..., torch.Tensor]
SCORE_MODS: dict[str, Mod | None] = {
    "none": None,
    "soft cap": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
    "alibi": lambda s, b, h, i, j: s - (i - j).abs() * torch.exp2(-(h + 1.0)),
    "slopes of a buffer": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "table": lambda s, b, h, i, j: s + TABLE[h, i - j + 200],
    "row of a table": lambda s, b, h, i, j: s + TABLE[h][i],
    "table that hides": lambda s, b, h, i, j: s + HIDING[h, i % 3],
    "integers": lambda s, b, h, i, j: torch.where((i // 3) % 2 == j % 2, s, s * 0.5 - h),
    "causal": lambda s, b, h, i, j: torch.where(i >= j, s, -torch.inf),
    "no row": lambda s, b, h, i, j: torch.where(i % 4 == 1, -torch.inf, s),
    "quotient": lambda s, b, h, i, j: s / (j + 1) + b,
    "cap of a bias": lambda s, b, h, i, j: 5 * torch.tanh((s + HIDING[h, j]) / 5),
    "factor": lambda s, b, h, i, j: s * HIDING[h, j].exp(),
    "square": lambda s, b, h, i, j: s * s - s,
}
MASK_MODS: dict[str, Mod | None] = {
    "none": None,
    "all": lambda b, h, i, j: i >= 0,
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i - j).abs() < 7,
    "by head": lambda b, h, i, j: (i >= j) | (h == 1),
    "hidden rows": lambda b, h, i, j: (i >= j) & (i % 5 != 0),
    "prefix": lambda b, h, i, j: (i >= j) | (j < PREFIX[b]),
    "documents": lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (DOCUMENTS[i] != 1),
    "nothing": lambda b, h, i, j: j < 0,
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Eager calls warn of themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def operands(
    queries: int = LENGTH, keys: int = LENGTH, groups: int = HEADS, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    torch.manual_seed(1)
    sizes = ((HEADS, queries), (groups, keys), (groups, keys))
    return [torch.randn(2, heads, length, WIDTH, dtype=dtype) for heads, length in sizes]


def block_mask(mask_mod: Mod | None, queries: int = LENGTH, keys: int = LENGTH) -> BlockMask | None:
    return None if mask_mod is None else create_block_mask(mask_mod, 2, HEADS, queries, keys, device="cpu")


def flex(score: str, mask: str, queries: int = LENGTH, keys: int = LENGTH, **options: Any) -> Callable[..., Any]:
    """A function of queries, keys and values."""
    given = block_mask(MASK_MODS[mask], queries, keys)
    return lambda q, k, v: flex_attention(q, k, v, score_mod=SCORE_MODS[score], block_mask=given, **options)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="mugraph", options={"budget": 1, "strict": True}, **options)


def close(got: Any, wanted: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    torch.testing.assert_close(got, wanted, equal_nan=True, rtol=rtol, atol=atol)


def eager(function: Callable[..., Any], *given: torch.Tensor) -> Any:
    """What the function gives where PyTorch calls its operator as it is, which it has Dynamo read for each call otherwise."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        return function(*given)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """The graphs as they are cut into pieces, which run in the place of kernels."""
    found: list[fx.GraphModule] = []

    def run(_: Any, graph: fx.GraphModule, *rest: Any) -> Any:
        found.append(ready_to_cut(graph))
        return found[-1].forward

    monkeypatch.setattr(torch_compile, "_run", run)
    return found


def called(graph: fx.GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("score", SCORE_MODS)
def test_calls_that_dynamo_does_not_read_give_what_eager_calls_give(score: str) -> None:
    """They are what graphs are compared with below."""
    function = flex(score, "hidden rows", return_lse=True)
    for got, wanted in zip(eager(function, *operands()), function(*operands()), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True, rtol=0, atol=0)


FEW_SCORES, FEW_MASKS = ("none", "no row", "integers"), ("none", "hidden rows", "by head")
"""One kind each: what leaves scores as they are, hides whole rows, tells heads apart. Masks apply to whatever scores became."""
SHAPES: dict[str, Any] = {"lengths": [(40, 40), (24, 56), (129, 1)], "groups": [HEADS, 2]}


def compare(graphs: list[fx.GraphModule], score: str, mask: str, lengths: tuple[int, int], groups: int) -> None:
    """Compare a graph of calls with the operator in the same type, and with what it gives in float64."""
    function = flex(score, mask, *lengths, enable_gqa=groups != HEADS, return_lse=True)
    given = operands(*lengths, groups)
    with torch.no_grad():
        got = compiled(function)(*given)
    assert OPERATOR not in called(graphs[0])
    close(got, eager(function, *given))
    close([each.double() for each in got], eager(function, *(each.double() for each in given)))


def by_turns(scores: Sequence[str], masks: Sequence[str]) -> pytest.MarkDecorator:
    """Every score and mask with shapes by turns; all rows at night. Dynamo reads each row anew, for half a second."""
    shapes = list(itertools.product(*SHAPES.values()))
    turns = range(max(len(scores), len(masks)))
    by_day = {(scores[turn % len(scores)], masks[turn % len(masks)], *shapes[turn % len(shapes)]) for turn in turns}
    rows = [(score, mask, *shape) for score in scores for mask in masks for shape in shapes]
    marked = [pytest.param(*row, marks=() if row in by_day else pytest.mark.slow) for row in rows]
    return pytest.mark.parametrize(("score", "mask", *SHAPES), marked)


@by_turns(list(SCORE_MODS), FEW_MASKS)
def test_a_graph_of_calls_gives_what_eager_calls_give(
    graphs: list[fx.GraphModule], score: str, mask: str, lengths: tuple[int, int], groups: int
) -> None:
    compare(graphs, score, mask, lengths, groups)


@by_turns(FEW_SCORES, [mask for mask in MASK_MODS if mask not in FEW_MASKS])
def test_so_it_does_with_other_masks(
    graphs: list[fx.GraphModule], score: str, mask: str, lengths: tuple[int, int], groups: int
) -> None:
    compare(graphs, score, mask, lengths, groups)


@pytest.mark.slow
@pairwise(
    score=[score for score in SCORE_MODS if score not in FEW_SCORES],
    mask=[mask for mask in MASK_MODS if mask not in FEW_MASKS],
    **SHAPES,
)
def test_so_it_does_with_both_others(
    graphs: list[fx.GraphModule], score: str, mask: str, lengths: tuple[int, int], groups: int
) -> None:
    compare(graphs, score, mask, lengths, groups)


@pytest.mark.parametrize("mask", MASK_MODS)
def test_attention_alone_is_the_call_that_pytorch_has_for_it(graphs: list[fx.GraphModule], mask: str) -> None:
    function = flex("none", mask)
    with torch.no_grad():
        close(compiled(function)(*operands()), function(*operands()))
    assert [target for target in called(graphs[0]) if "scaled_dot_product" in str(target)]


@pytest.mark.parametrize(
    ("score", "mask"),
    [
        *(("alibi", mask) for mask in ("none", "all", "causal", "window", "by head")),
        *((score, "causal") for score in ("none", "soft cap", "causal", "integers")),
        *((score, "by head") for score in ("none", "integers")),
    ],
)
def test_what_positions_decide_is_a_constant(graphs: list[fx.GraphModule], score: str, mask: str) -> None:
    function = flex(score, mask, return_lse=True)
    with torch.no_grad():
        close(compiled(function)(*operands()), eager(function, *operands()))
    left = {str(target) for target in called(graphs[0])} & {"aten.arange.default", "aten.ge.Tensor", "aten._safe_softmax.default"}
    assert left <= ({"aten.arange.default"} if score == "integers" else set())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("score", ["none", "soft cap", "alibi"])
def test_narrow_types_are_as_exact_as_eager_calls(graphs: list[fx.GraphModule], score: str, dtype: torch.dtype) -> None:
    function, given = flex(score, "causal"), operands(dtype=dtype)
    exact = function(*(each.double() for each in given))
    with torch.no_grad():
        got, wanted = compiled(function)(*given), function(*given)
    assert got.dtype is dtype
    errors = [float((each.double() - exact).abs().max()) for each in (got, wanted)]
    assert errors[0] <= 1.5 * errors[1]


@pairwise(score=list(SCORE_MODS), mask=list(MASK_MODS), **SHAPES)
def test_results_maxima_and_sums_of_rows_are_those_of_the_operator(
    score: str, mask: str, lengths: tuple[int, int], groups: int
) -> None:
    """What stands in graphs for the operator, called without one."""
    functions = SCORE_MODS[score] or module._identity, (MASK_MODS[mask] or module.noop_mask,)
    arguments: Any = (*operands(*lengths, groups), *functions, 0.3, {})
    with torch.no_grad():
        close(attention(*arguments), OPERATOR(*arguments))


def test_a_result_lies_in_memory_as_that_of_the_operator() -> None:
    given = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in operands()]
    mask = (module.noop_mask,)
    arguments: Any = (*given, module._identity, mask, 0.25, {})
    with torch.no_grad():
        assert attention(*arguments)[0].stride() == OPERATOR(*arguments)[0].stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_buffers_may_change_between_calls(graphs: list[fx.GraphModule], dynamic: bool) -> None:
    def function(q: torch.Tensor, table: torch.Tensor, ids: torch.Tensor, offset: int) -> torch.Tensor:
        mask = create_block_mask(lambda b, h, i, j: ids[i] == ids[j], None, None, LENGTH, LENGTH, device="cpu")
        return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + table[h, i] * offset, block_mask=mask)

    run, query = compiled(function, dynamic=dynamic), operands()[0]
    with torch.no_grad():
        for number in range(3):
            given = (query, TABLE + number, torch.arange(LENGTH) // (5 + number), number)
            close(run(*given), function(*given))


def test_sums_that_overflow_hide_rows(graphs: list[fx.GraphModule]) -> None:
    def score(s: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return torch.where(i % 4 == 1, SMALLEST, s) + torch.where(i % 3 == 1, SMALLEST, 0.0)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=score)

    with torch.no_grad():
        got, wanted = compiled(function)(*operands()), function(*operands())
    assert bool((wanted == 0).all(-1).any())
    close(got, wanted)


def test_two_calls_in_a_graph(graphs: list[fx.GraphModule]) -> None:
    first, second = flex("soft cap", "causal"), flex("table", "window")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return second(first(q, k, v).relu(), k, v)

    with torch.no_grad():
        close(compiled(function)(*operands()), function(*operands()))
    assert len(graphs) == 1


def test_sizes_may_vary() -> None:
    def function(q: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, q, q, score_mod=SCORE_MODS["alibi"])

    run = compiled(function, dynamic=True)
    with torch.no_grad():
        for length in (40, 129, 7):
            (query, *_) = operands(length)
            close(run(query), function(query), rtol=1e-3, atol=1e-4)


def test_autocast_chooses_the_types_that_eager_calls_have() -> None:
    function = flex("soft cap", "causal", return_lse=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, wanted = compiled(function)(*operands()), function(*operands())
    assert [each.dtype for each in got] == [each.dtype for each in wanted]
    close(got, wanted, rtol=0.02, atol=0.01)


def test_random_numbers_are_refused_as_in_eager_calls() -> None:
    def function(q: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + torch.rand_like(s))

    torch._dynamo.reset()
    run = torch.compile(function, backend="mugraph")
    with torch.no_grad(), pytest.raises(RuntimeError, match="random"):
        run(operands()[0])


@pytest.mark.parametrize(
    ("score", "mask"), [("soft cap", "none"), ("none", "causal"), ("alibi", "causal"), ("soft cap", "hidden rows")]
)
def test_positions_are_constants_of_a_program(score: str, mask: str) -> None:
    program = traced(recorded_call(flex(score, mask), operands(), {}))
    assert {node.op for node in program.graph.kernels()} <= OPERATORS.keys()


def spelled(cap: float, slope: float) -> Callable[..., torch.Tensor]:
    """A soft cap, a bias by distance, and a causal mask, by hand."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        scores = cap * torch.tanh(q @ k.transpose(-2, -1) * WIDTH**-0.5 / cap)
        return (scores + (slope * -distance).masked_fill(distance < 0, -torch.inf)).softmax(-1) @ v

    return function


def test_it_is_proved_equal_to_what_is_written_by_hand() -> None:
    mask = block_mask(MASK_MODS["causal"])

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: 20 * torch.tanh(s / 20) - 0.5 * (i - j), block_mask=mask)

    assert mugraph.verify(function, spelled(20, 0.5), operands()).equivalent
    assert mugraph.verify(function, spelled(21, 0.5), operands()).equivalent is False
    assert mugraph.verify(function, spelled(20, 0.25), operands()).equivalent is False


def test_a_result_of_a_whole_function_gives_what_it_gives() -> None:
    function = flex("soft cap", "hidden rows")
    result = mugraph.superoptimize(function, operands(), budget=3, cache="off")
    close(result(*operands()), function(*operands()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dim", [-1, 1, 2])
def test_a_softmax_of_repeated_rows_keeps_its_shape_and_its_dimension(dim: int) -> None:
    def function(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        places = torch.arange(6)
        bias = torch.zeros(6, 6).masked_fill((places[:, None] == 2) | (places > places[:, None] + 1), -torch.inf)
        return torch._safe_softmax(one @ other + bias.expand(3, 6, 6), dim) * 1.0

    given = torch.randn(6, 8), torch.randn(8, 6)
    close(mugraph.superoptimize(function, given, budget=1, cache="off")(*given), function(*given))


def test_a_pytorch_that_always_compiles_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG")
    with pytest.raises(UnsupportedOperator, match="flex_attention is compiled by PyTorch before"):
        recorded_call(flex("none", "causal"), operands(), {})
