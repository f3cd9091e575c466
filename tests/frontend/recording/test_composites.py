"""Graphs are decomposed as PyTorch decomposes them, with fewer operators overridden for each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from torch._export import utils
from torch.export import exported_program
from torch.nn import functional as F

from mugraph.errors import UnsupportedOperator
from mugraph.frontend import record
from mugraph.frontend.recording import export
from mugraph.frontend.recording.calls import Calls
from mugraph.frontend.recording.composites import fewer_overrides
from mugraph.frontend.recording.decompositions import decompositions
from mugraph.frontend.recording.export import Recording

X, SQUARE, IMAGE, Q = torch.randn(4, 8), torch.randn(8, 8), torch.randn(2, 4, 6, 6), torch.randn(2, 4, 8, 16)
RECURRENT, GATED = torch.nn.RNN(8, 8), torch.nn.LSTM(8, 8, proj_size=4)
PRIVATE = [(exported_program, "_split_decomp_table_to_cia_and_python_decomp"), (utils, "_materialize_cpp_cia_ops")]


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "products": (
        lambda x, w: F.linear(x, w) + torch.einsum("ij,jk->ik", x, w) + x.matmul(w) + torch.tensordot(x, w, 1),
        (X, SQUARE),
    ),
    "norms": (lambda x: F.layer_norm(x, (8,)) + F.rms_norm(x, (8,)) + F.group_norm(x, 2) + torch.std(x, 1, keepdim=True), (X,)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (Q,)),
    "images": (
        lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1)), x[:, :, :3, :3]) + F.avg_pool2d(x, 3, 1, 1)[:, :2, :6, :6].sum(),
        (IMAGE,),
    ),
    "views": (lambda x: (x.reshape(2, 2, 8).movedim(0, 1).flatten(1).unflatten(1, (4, 4)), x.chunk(2, -1), x.tril(), x.T), (X,)),
    "functions": (lambda x: F.silu(x) + F.gelu(x) + F.mish(x) + F.softmax(x, -1) + F.cosine_similarity(x, x)[:, None], (X,)),
    "losses": (lambda x: F.cross_entropy(x, x.softmax(-1)) + F.mse_loss(x, x * 2) + torch.cdist(x, x).sum(), (X,)),
    "casts": (lambda x: (x.half().type_as(x) + x.to(torch.bfloat16).float()).clamp(0.0, 1.0), (X,)),
    "changes in place": (lambda x: x.clone().add_(1).mul_(x).index_fill_(0, torch.tensor([1]), 0.0), (X,)),
    "recurrent": (lambda x: RECURRENT(x)[0][:, :4] + GATED(x)[0], (X,)),
    "resizing": (lambda x: F.interpolate(x, (9, 9)) + F.interpolate(x, (9, 9), mode="bicubic"), (IMAGE,)),
    "linear algebra": (lambda x: torch.linalg.inv(x @ x.T + torch.eye(8)) + torch.linalg.multi_dot([x, x, x]), (SQUARE,)),
}


def text(program: Calls) -> str:
    """A graph with the types of its tensors, and what its inputs and outputs are."""
    tensors = [node.meta.get("val") for node in program.graph.nodes]
    kinds = [(value.dtype, value.shape, value.stride()) if isinstance(value, torch.Tensor) else type(value) for value in tensors]
    return f"{program.graph}\n{kinds}\n{program.graph_signature}"


@pytest.mark.parametrize("calls", [False, True], ids=["in rows", "in calls"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_graphs_are_those_that_pytorch_makes(name: str, calls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record(*FUNCTIONS[name]).recording
    made = recording.in_calls if calls else recording.in_rows
    ours = text(made())
    monkeypatch.setattr(export, "fewer_overrides", nullcontext)
    again = replace(recording, _taken_apart=[])
    assert ours == text(again.in_calls() if calls else again.in_rows())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_are_those_of_all_decompositions_and_nobody_changes_them(name: str) -> None:
    """Also where nothing was decomposed but what calls are decomposed into."""
    recording = record(*FUNCTIONS[name]).recording
    everything = text(Calls.of(recording._decomposed(decompositions())))
    for _ in range(2):
        made = recording.in_rows()
        assert text(made) == everything
        for node in reversed([node for node in made.graph.nodes if node.op != "placeholder"]):
            made.graph.erase_node(node)


def test_what_is_taken_apart_for_calls_is_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[object]()

    def counted(recording: Recording, table: object) -> Any:
        taken.append(table)
        return decomposed(recording, table)  # type: ignore[arg-type]  # as given

    decomposed = Recording._decomposed
    monkeypatch.setattr(Recording, "_decomposed", counted)
    recording = record(lambda x, w: F.softmax(F.linear(x, w), -1).tanh(), (X, SQUARE)).recording
    for made in (recording.in_rows, recording.in_calls, recording.in_calls):
        made()
    assert len(taken) == 1


def overridden(run: Callable[[], object]) -> int:
    """How many operators are given other implementations while something runs."""
    real, counts = exported_program._override_composite_implicit_decomp, list[int]()

    def counted(table: dict[Any, Any]) -> Any:
        counts.append(len(table))
        return real(table)

    with mock.patch.object(exported_program, "_override_composite_implicit_decomp", counted):
        run()
    return max(counts)


def test_few_operators_are_overridden_and_nothing_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record(*FUNCTIONS["norms"]).recording
    before = [getattr(module, name) for module, name in PRIVATE]
    few = overridden(recording.in_rows)
    assert [getattr(module, name) for module, name in PRIVATE] == before
    with pytest.raises(KeyboardInterrupt), fewer_overrides(torch.fx.Graph()):
        raise KeyboardInterrupt
    assert [getattr(module, name) for module, name in PRIVATE] == before
    monkeypatch.setattr(export, "fewer_overrides", nullcontext)
    assert 0 < 3 * few < overridden(replace(recording, _taken_apart=[]).in_rows)


def test_the_table_is_looked_through_once_for_operators_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that call others' operators have it looked through each time: some may have been registered since."""
    module, name = PRIVATE[0]
    real, seen = getattr(module, name), list[int]()

    def counted(table: dict[Any, Any]) -> Any:
        seen.append(len(table))
        return real(table)

    monkeypatch.setattr(module, name, counted)
    for function in ("norms", "casts", "norms"):
        record(*FUNCTIONS[function]).recording.in_rows()
    assert len(seen) == 1
    with torch.library._scoped_library("looked_through_by_a_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        for _ in range(2):
            record(lambda x: torch.ops.looked_through_by_a_test.twice(x), (X,)).recording.in_rows()
    assert len(seen) == 3


def test_only_calls_that_stay_are_overridden_where_all_of_them_do() -> None:
    """`linear` is composite and has a row; `cosine_similarity` is taken apart, into operators that are not known before."""
    stays = record(lambda x, w: F.linear(x, w) * 2, (X, SQUARE)).recording
    taken_apart = record(lambda x: F.cosine_similarity(x, x), (X,)).recording
    assert overridden(stays.in_rows) == 1 < overridden(taken_apart.in_rows)


def in_autocast(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def narrow(*tensors: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return function(*tensors)

    return narrow


@pytest.mark.parametrize("calls", [False, True], ids=["in rows", "in calls"])
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: torch.einsum("ij,kj->ik", x, x), id="einsum"),
        pytest.param(lambda x: torch.linalg.multi_dot([x, x.T, x]), id="products"),
        pytest.param(lambda x: RECURRENT(x)[0], id="recurrent"),
    ],
)
def test_what_is_inside_composite_operators_is_cast_under_autocast(
    function: Callable[..., torch.Tensor], calls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch loses the casts where it registers implementations; what it takes apart without them is refused."""
    narrow = in_autocast(function)
    recording = record(narrow, (X,)).recording
    program = recording.in_calls() if calls else recording.in_rows()
    (result,) = torch.fx.GraphModule(program.graph_module, program.graph)(X, *recording.captured)
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result, narrow(X))
    monkeypatch.setattr(export, "fewer_overrides", nullcontext)
    again = replace(recording, _taken_apart=[])
    with pytest.raises(UnsupportedOperator, match="narrow: PyTorch loses casts of autocast"):
        again.in_calls() if calls else again.in_rows()


def test_composite_operators_of_others_stay_calls() -> None:
    """Of one that is registered after PyTorch's decompositions were asked for, too."""
    recording = record(*FUNCTIONS["casts"]).recording
    recording.in_rows()
    with torch.library._scoped_library("composites_of_a_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        program = record(lambda x: torch.ops.composites_of_a_test.twice(x) * 2, (X,)).recording.in_rows()
    assert next(str(node.target) for node in program.graph.nodes if node.op == "call_function").endswith("twice.default")


@pytest.mark.parametrize(("module", "name"), PRIVATE)
def test_without_private_names_pytorch_does_as_it_always_does(
    module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(module, name)
    with fewer_overrides(torch.fx.Graph()):
        assert not hasattr(module, name)
