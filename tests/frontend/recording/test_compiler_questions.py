"""Questions of how a function is run are heard wherever Python that is not PyTorch's asks them, and nowhere else is listened."""

from __future__ import annotations

import cProfile
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

from mugraph.frontend import trace
from mugraph.frontend.recording.compiler_questions import asked_outside_torch, heard
from mugraph.frontend.recording.decompositions import decompositions

X = torch.randn(4, 8)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.compiler.is_dynamo_compiling() else x + x


def doubled_later(x: torch.Tensor) -> torch.Tensor:
    taken_apart = any(frame.function == "run_decompositions" for frame in inspect.stack(0))
    return doubled(x) if taken_apart else x + x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return doubled(x)


@pytest.fixture
def operators() -> Iterator[Any]:
    """Operators of somebody else: one that asks where it is recorded, one only where it is taken apart later, one never."""
    with torch.library._scoped_library("mugraph_questions", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", doubled, "CompositeImplicitAutograd")
        library.define("later(Tensor x) -> Tensor")
        library.impl("later", doubled_later, "CompositeImplicitAutograd")
        library.define("plain(Tensor x) -> Tensor")
        library.impl("plain", lambda x: x.exp(), "CompositeImplicitAutograd")
        decompositions.cache_clear()
        yield torch.ops.mugraph_questions
    decompositions.cache_clear()


def questions(function: Callable[..., Any]) -> set[str]:
    with asked_outside_torch() as asked:
        trace(function, (X,))
    return set(asked)


@pytest.mark.parametrize("function", [doubled, Doubled.apply, torch.nn.Sequential(torch.nn.ReLU()), torch.exp])
def test_questions_of_functions_are_heard(function: Callable[..., Any]) -> None:
    assert questions(function) == ({"is_dynamo_compiling"} if function in (doubled, Doubled.apply) else set())


def test_questions_of_operators_of_others_are_heard(operators: Any) -> None:
    assert questions(lambda x: operators.doubled(x)) == {"is_dynamo_compiling"}
    assert questions(lambda x: operators.later(x)) == {"is_dynamo_compiling"}
    assert not questions(lambda x: operators.plain(x))


def test_functions_are_what_they_are_with_a_compiler() -> None:
    graph = trace(lambda x: x.exp() if torch.compiler.is_compiling() else x.tanh(), (X,)).graph
    assert [node.op for _, node in graph.walk() if not node.is_input] == ["exp"]


def test_what_pytorch_does_by_itself_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes most of the time, and twice as long where every call is looked at."""
    own, looked = ExportedProgram.run_decompositions, list[Any]()

    def run(program: ExportedProgram, *rest: Any) -> Any:
        looked.append(sys.getprofile())
        return own(program, *rest)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", run)
    assert questions(doubled)
    assert looked == [None]


def test_nobody_listens_unless_asked_and_whoever_looked_before_looks_again() -> None:
    def other(*event: Any) -> None: ...

    sys.setprofile(other)
    try:
        with heard():
            assert sys.getprofile() is other
        with asked_outside_torch() as asked:
            with asked_outside_torch() as inner, heard():
                assert sys.getprofile() is not other
                torch.compiler.is_dynamo_compiling()
            with heard():
                torch.compiler.is_dynamo_compiling()
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)
    assert asked == inner == ["is_dynamo_compiling"]


def test_a_profiler_around_it_goes_on_looking() -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        with asked_outside_torch() as asked:
            with heard():
                doubled(X)
            torch.compiler.is_dynamo_compiling()
    finally:
        profiler.disable()
    assert asked == ["is_dynamo_compiling"]
    assert any(getattr(entry.code, "co_name", "") == "is_dynamo_compiling" for entry in profiler.getstats())


def test_profilers_that_python_cannot_begin_again_do_not_keep_anyone_from_listening() -> None:
    """As that of PyTorch, which sees no more calls; what it saw before is still there."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
        with asked_outside_torch() as asked, heard():
            doubled(X)
        torch.exp(X)
    assert asked == ["is_dynamo_compiling"]
    assert "aten::exp" in {event.key for event in profiler.key_averages()}
