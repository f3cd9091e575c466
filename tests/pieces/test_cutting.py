"""Functions of which only parts are programs: kernels run these, PyTorch the rest; a call gives and changes what it should."""

from __future__ import annotations

import copy
import itertools
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import mugraph
from mugraph.errors import InvalidInput, SeveralPrograms, ShapeMismatch, UnsupportedOperator
from mugraph.frontend import record
from mugraph.frontend.files import load_function
from mugraph.frontend.recording.recorded_graph import recorded_graph
from mugraph.pieces import cutting, data, piece_optimizer, whole_calls, whole_or_pieces
from mugraph.pieces.cutting import _CALLS, _beside, _Clock, _seconds_of_a_call, difference, timed_coverage
from mugraph.pieces.partitioned import Partitioned
from mugraph.results.coverage import Coverage
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER, BaselineComparison
from mugraph.runtime.benchmarking import Duel
from mugraph.selection import whole_programs
from mugraph.selection.contestants import Contestant, Proved
from mugraph.selection.own_function import OwnCall
from mugraph.selection.problems import Problem
from mugraph.selection.qualification import Qualifier
from mugraph.selection.reasons import out_of_time
from mugraph.selection.whole_programs import OptimizationSettings, superoptimized
from mugraph.support.deadline import Deadline
from mugraph.support.progress import ProgressCallback, silent
from mugraph.targets.machine import machine_for
from pieces.clocks import Clock
from pieces.programs import EXAMPLES, Example, Layer

EXAMPLE_FILE = Path(__file__).parents[2] / "examples" / "decoder_layer.py"


def optimized(example: Example, inputs: tuple[Any, ...], **settings: Any) -> Partitioned:
    """The result whose calls run kernels wherever there are any, as nothing is measured."""
    with torch.no_grad():
        opt = mugraph.superoptimize(example.function, inputs, budget=120.0, profile=False, cache="off", seed=3, **settings)
    assert isinstance(opt, Partitioned)
    return opt


def called(function: Callable[..., Any], inputs: tuple[Any, ...]) -> list[Any]:
    """What a call returns, and what its inputs are afterwards."""
    given = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, inputs)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(5)
        returned = function(*given)
    return [*tree_leaves(returned), *tree_leaves(given)]


def buffers(function: Callable[..., Any]) -> list[torch.Tensor]:
    """The tensors of a module that are no parameters."""
    return [*function.buffers()] if isinstance(function, torch.nn.Module) else []


def same(got: list[Any], wanted: list[Any], rtol: float = 1e-5) -> None:
    """Assert that tensors agree within rounding, and everything else exactly."""
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        if isinstance(other, torch.Tensor):
            rounding = 2e-2 if other.dtype is torch.bfloat16 else rtol
            torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)
        else:
            assert one == other


@pytest.mark.parametrize("name", EXAMPLES)
def test_calls_give_and_change_what_the_function_does(name: str) -> None:
    example = EXAMPLES[name]
    torch.manual_seed(1)
    opt = optimized(example, example.inputs())
    assert len(opt.pieces) >= example.programs
    assert opt.found is bool(opt.pieces)
    assert opt.report.coverage is not None
    assert example.left <= {calls.operator for calls in opt.report.coverage.left}
    for _ in range(2):
        inputs = example.inputs()
        function = copy.deepcopy(example.function)  # what it changes of itself is changed once
        wanted = [*called(function, inputs), *buffers(function)]
        same([*called(opt, inputs), *buffers(example.function)], wanted)


@pytest.mark.parametrize("own", [True, False], ids=["of a result", "of an argument"])
@pytest.mark.parametrize(
    "given",
    [
        lambda y: torch.nn.functional.dropout(y, 0.5, training=False),
        lambda y: torch.nn.functional.dropout(y, 0.0),
        lambda y: y.type_as(y),
        lambda y: y.type_as(torch.empty(0, dtype=torch.float64)).float(),
    ],
    ids=["dropout", "dropout of none", "same type", "other type"],
)
def test_what_is_written_to_what_a_call_gives_is_written_to_its_operand_where_that_is_given(given: Any, own: bool) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2 if own else x
        given(y).add_(1)
        return torch.tanh(y @ w), y * 3

    x, w = torch.randn(8, 16), torch.randn(16, 24)
    opt = mugraph.superoptimize(fn, (x.clone(), w), budget=10.0, profile=False)
    wanted, got = x.clone(), x.clone()
    same([*opt(got, w), got], [*fn(wanted, w), wanted])


@pytest.mark.parametrize(("p", "train"), [(0.5, False), (0.0, True)])
def test_a_native_dropout_that_drops_nothing_is_refused(p: float, train: bool) -> None:
    with pytest.raises(UnsupportedOperator, match=r"aten\.native_dropout: it drops nothing; call torch\.nn\.functional"):
        mugraph.superoptimize(lambda x: torch.native_dropout(x, p, train)[0].add_(1) @ x, (torch.randn(8, 8),), profile=False)


def test_the_example_is_a_layer_of_which_most_is_programs() -> None:
    loaded = load_function(f"{EXAMPLE_FILE}:layer")
    assert isinstance(loaded.function, torch.nn.Module)
    inputs = loaded.example_inputs()
    opt = optimized(Example(loaded.function, lambda: inputs, set(), 2), inputs)
    coverage = opt.report.coverage
    assert coverage is not None
    assert {calls.operator for calls in coverage.left} <= {"embedding", "split", "getitem"}
    assert coverage.byte_share > 0.9
    same(called(opt, inputs), called(loaded.function, inputs))


def test_what_is_measured_is_found_only_if_it_is_faster() -> None:
    example = EXAMPLES["views alone"]
    with torch.no_grad():
        opt = mugraph.superoptimize(example.function, example.inputs(), budget=10.0)
    assert not opt.found
    assert opt.own is example.function
    coverage = opt.report.coverage
    assert coverage is not None
    assert coverage.byte_share == 0


def test_kernels_that_give_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = Partitioned.outputs

    def wrong(self: Partitioned, inputs: list[Any]) -> tuple[torch.Tensor, ...]:
        first, *others = outputs(self, inputs)
        return (first + 1e-2, *others)

    monkeypatch.setattr("mugraph.pieces.piece_optimizer.why_not_faster", lambda *duel: "")
    monkeypatch.setattr(Partitioned, "outputs", wrong)
    example = EXAMPLES["logcumsumexp"]
    inputs = example.inputs()
    with torch.no_grad():
        opt = mugraph.superoptimize(example.function, inputs, budget=30.0, cache="off")
    assert not opt.found
    assert opt.own is example.function
    assert opt.report.coverage is not None
    assert "something else than the function" in opt.report.coverage.left[0].reason


def test_the_measured_coverage_has_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.pieces.piece_optimizer.why_not_faster", lambda *duel: "")
    monkeypatch.setattr("mugraph.runtime.benchmarking.Duel.clear", True)
    example = EXAMPLES["layer"]
    with torch.no_grad():
        opt = mugraph.superoptimize(example.function, example.inputs(), budget=60.0, cache="off")
    assert opt.found
    coverage = opt.report.coverage
    assert coverage is not None
    assert coverage.time_share is not None
    assert 0 < coverage.time_share < 1
    assert 0.5 < coverage.byte_share < 1


def test_arguments_that_do_not_fit_are_named() -> None:
    example = EXAMPLES["gather"]
    opt = optimized(example, example.inputs())
    table, ids, w = example.inputs()
    with pytest.raises(ShapeMismatch, match=r"argument ids is torch.int64 \[3\], optimized for torch.int64 \[4\]"):
        opt(table, ids[:3], w)
    with pytest.raises(ShapeMismatch, match="int32"):
        opt(table, ids.int(), w)


def test_what_is_changed_has_memory_of_its_own() -> None:
    example = EXAMPLES["cache"]
    opt = optimized(example, example.inputs())
    cache, x, w = example.inputs()
    with pytest.raises(InvalidInput, match="cache and x share memory, and _appended changes cache"):
        opt(cache, cache[:, :2], w)
    memory = cache.numpy()
    with pytest.raises(InvalidInput, match="share memory"):
        opt(torch.from_numpy(memory), torch.from_numpy(memory)[:, :2], w)
    assert opt(cache, x, w).shape == (2, 6, 16)


def test_memory_that_overlaps_what_is_changed_is_found_wherever_it_lies() -> None:
    rng, found = random.Random(1), 0
    for _ in range(3000):
        firsts = [rng.randrange(30) for _ in range(rng.randrange(1, 7))]
        extents = [(first, first + rng.choice((0, 0, 1, 2, 3, 8))) for first in firsts]
        changed = rng.sample(range(len(extents)), rng.randrange(len(extents) + 1))
        shared = {
            (number, other)
            for number, other in itertools.product(changed, range(len(extents)))
            if number != other and max(extents[number][0], extents[other][0]) < min(extents[number][1], extents[other][1])
        }
        pair = data.overlapping(extents, changed)
        assert pair in shared if shared else pair is None
        found += bool(shared)
    assert 300 < found < 2700


def test_parts_of_one_tensor_have_memory_of_their_own() -> None:
    example = EXAMPLES["cache"]
    opt = optimized(example, example.inputs())
    cache, x, w = example.inputs()
    both = torch.cat([cache.flatten(), x.flatten()])
    parts = both[: cache.numel()].view(cache.shape), both[cache.numel() :].view(x.shape)
    wanted = example.function(cache, x, w)
    same([opt(*parts, w), parts[0]], [wanted, cache])


def test_examples_that_were_expanded_are_no_promise() -> None:
    def shifted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.logcumsumexp(0).view(4, 2, 16) @ w, -1)

    w = torch.randn(16, 8)
    opt = optimized(Example(shifted, lambda: (), set(), 1), (torch.randn(1, 16).expand(8, 16), w))
    for x in (torch.randn(8, 16), torch.randn(1, 16).expand(8, 16), torch.randn(16, 8).t()):
        same(called(opt, (x, w)), called(shifted, (x, w)))


def test_parameters_are_read_at_each_call() -> None:
    layer = Layer().eval()
    ids = torch.randint(0, 11, (2, 8))
    opt = optimized(Example(layer, lambda: (ids,), set(), 1), (ids,))
    with torch.no_grad():
        layer.down.weight.mul_(2)
        layer.embedding.weight.add_(1)
    same(called(opt, (ids,)), called(layer, (ids,)))


def test_what_results_of_one_program_have_is_asked_of_the_pieces() -> None:
    example = EXAMPLES["logcumsumexp"]
    opt = optimized(example, example.inputs())
    with pytest.raises(SeveralPrograms, match=r"\.pieces\[i\]\.result\.graph"):
        opt.graph  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'grapf'"):
        opt.grapf  # noqa: B018
    assert not hasattr(opt, "best")
    assert opt.error_bound is not None
    assert opt.error_bound < 2**-40
    assert opt.certificates[0].accepted
    assert repr(opt).startswith("<Partitioned for cpu: 2 programs, ")
    assert "0/kernels.c" in opt.sources


def test_equal_pieces_share_a_result() -> None:
    def stacked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.softmax(x.logcumsumexp(0) @ w, -1)
        return x

    inputs = (torch.randn(8, 16), torch.randn(16, 16))
    opt = optimized(Example(stacked, lambda: inputs, set(), 3), inputs)
    assert len(opt.pieces) == 6
    assert len(opt.results) == 2
    same(called(opt, inputs), called(stacked, inputs))


def test_parts_are_timed_in_fewer_calls_behind_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    example, calls, run = EXAMPLES["logcumsumexp"], list[object](), _Clock.run
    opt = optimized(example, example.inputs())

    def counted(self: _Clock, *inputs: torch.Tensor) -> Any:
        calls.append(self)
        return run(self, *inputs)

    monkeypatch.setattr(_Clock, "run", counted)
    for deadline, most in ((Deadline(None), 6), (Deadline(0.0), 1)):
        calls.clear()
        assert timed_coverage(opt, example.inputs(), {}, deadline).mugraphs.seconds
        assert len(calls) == most


def test_a_form_or_another_engine_is_for_programs() -> None:
    example = EXAMPLES["logcumsumexp"]
    with pytest.raises(mugraph.MugraphError, match="logcumsumexp"):
        mugraph.superoptimize(example.function, example.inputs(), search="enumerate")


def test_a_difference_is_named() -> None:
    one = (torch.ones(3),)
    assert difference(torch.neg, torch.neg, one, {}) == ""
    assert difference(torch.neg, torch.abs, one, {}).startswith("tensor 0: ")
    assert difference(lambda x: x.argmax(0), lambda x: x.argmin(0) + 1, one, {}) != ""
    assert difference(lambda x: x.mul_(2), lambda x: x * 2, one, {}).startswith("tensor 1: ")
    assert difference(lambda x: x + 1e-9, lambda x: x, one, {}) == ""
    assert difference(lambda x: x / 0, lambda x: x / 0, one, {}) == ""
    assert difference(lambda x: x.double(), lambda x: x, one, {}).startswith("tensor 0: ")


@pytest.mark.parametrize(("long", "alike", "calls"), [(True, True, 1), (True, False, 2), (False, True, 2)])
def test_of_a_long_function_that_does_the_same_again_one_call_is_made(
    monkeypatch: pytest.MonkeyPatch, long: bool, alike: bool, calls: int
) -> None:
    monkeypatch.setattr(cutting, "LONG_SECONDS", 0.0 if long else 1e9)
    made: list[str] = []

    def counted(name: str, wrong: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            made.append(name)
            return x + (made.count(name) == wrong)

        return call

    one = (torch.ones(3),)
    assert difference(counted("result", 0), counted("function", 0), one, {}, alike=alike) == ""
    assert (made.count("function"), made.count("result")) == (calls, 2)
    made.clear()
    assert difference(counted("result", 2), counted("function", 0), one, {}, alike=alike) != ""


def numbers(x: torch.Tensor) -> dict[str, Any]:
    return {"positive": (x > 0).sum().item(), "mean": x.mean().item(), "any": (x > 9).any().item(), "shares": (2 * x).softmax(1)}


def test_numbers_that_are_read_from_tensors_are_returned_as_such() -> None:
    opt = optimized(Example(numbers, tuple, set(), 1), (torch.randn(16, 32),))
    assert opt.found
    for _ in range(2):
        x = torch.randn(16, 32)
        got, wanted = opt(x), numbers(x)
        assert {name: type(value) for name, value in got.items()} == {name: type(value) for name, value in wanted.items()}
        assert (got["positive"], got["any"]) == (wanted["positive"], wanted["any"])
        assert got["mean"] == pytest.approx(wanted["mean"], abs=1e-6)
        torch.testing.assert_close(got["shares"], wanted["shares"])
    with pytest.raises(InvalidInput, match="number that is read from a tensor"):
        mugraph.verify(numbers, numbers, (torch.randn(16, 32),))
    assert difference(numbers, lambda x: numbers(x) | {"positive": -1}, (torch.ones(3, 4),), {}).startswith("tensor 0: ")


def test_systems_of_equations_have_the_errors_of_pytorch() -> None:
    def solved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.linalg.solve(x @ x.T, y) * 2, 1)

    x, y = torch.randn(8, 8), torch.randn(8, 4)
    opt = optimized(Example(solved, tuple, set(), 1), (x, y))
    assert opt.found
    torch.testing.assert_close(opt(x, y), solved(x, y), rtol=1e-3, atol=1e-4)
    with pytest.raises(RuntimeError, match="singular"):
        opt(torch.zeros(8, 8), y)


def test_parts_that_are_left_to_pytorch_are_left_with_what_is_read_of_them() -> None:
    inputs = tuple(torch.randn(shape) for shape in ((6, 16), (6, 8), (6, 8), (32, 16), (32, 8)))

    def cell(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Any:
        return torch.ops.aten.lstm_cell(x, [h, c], w, u)

    with torch.no_grad():
        opt = mugraph.superoptimize(cell, inputs, budget=20.0, profile=False, cache="off", seed=3)
    same([*opt(*inputs)], [*cell(*inputs)], rtol=1e-4)


def test_writing_into_a_part_is_in_programs() -> None:
    def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        z[:, 2:5] = y.half()
        z[1] = 0.5
        return torch.softmax(z, 1)

    x, y = torch.randn(6, 8), torch.randn(6, 1)
    with torch.no_grad():
        opt = mugraph.superoptimize(written, (x, y), budget=20.0, profile=False, cache="off", seed=3)
    assert opt.is_one_program
    torch.testing.assert_close(opt(x, y), written(x, y), rtol=1e-5, atol=1e-5)


def test_gradients_are_warned_of() -> None:
    example = EXAMPLES["logcumsumexp"]
    opt = optimized(example, example.inputs())
    x, w = example.inputs()
    with pytest.warns(mugraph.errors.GradientsDropped):
        assert not opt(x.requires_grad_(), w).requires_grad


def test_what_cannot_be_recorded_names_the_line() -> None:
    def branching(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(mugraph.MugraphError, match=r"test_cutting\.py:\d+"):
        mugraph.superoptimize(branching, (torch.ones(3),))

    def energy(x: torch.Tensor) -> torch.Tensor:
        return x.tanh().square().sum()

    with pytest.raises(InvalidInput, match="cannot be traced"):
        mugraph.superoptimize(torch.func.grad(energy), (torch.ones(3),))
    for gradients in (
        lambda x, w: torch.func.grad(lambda row: energy(row @ w))(x),
        lambda x, w: torch.vmap(torch.func.grad(lambda row: energy(row @ w)))(x),
        lambda x, w: torch.func.jvp(lambda rows: torch.tanh(rows @ w), (x,), (x,))[1],
    ):
        with pytest.raises(InvalidInput, match=r"cannot be traced.*torch.func.*: use torch.compile\(backend='mugraph'\)"):
            mugraph.superoptimize(gradients, (torch.ones(3, 4), torch.ones(4, 4)))
    with pytest.raises(InvalidInput, match="give example_inputs"):
        mugraph.superoptimize(branching)


def without_time(problem: Problem, settings: OptimizationSettings, deadline: Deadline, tell: ProgressCallback) -> Superoptimized:
    """What is found of a problem in no time."""
    return superoptimized(problem, settings, Deadline(0.0), tell)


def rows(x: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Two products of normalised rows."""
    for weight in (one, other):
        x = torch.tanh(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1) @ weight)
    return x


ROWS = torch.randn(8, 16), torch.randn(16, 16), torch.randn(16, 16)


def test_a_program_of_which_nothing_was_found_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no parts of tensors: what refuses it as a whole, here the time, may not refuse its pieces."""
    monkeypatch.setattr(whole_or_pieces, "superoptimized", without_time)
    opt = mugraph.superoptimize(rows, ROWS, budget=60.0, profile=False, cache="off")
    assert opt.found
    assert not opt.is_one_program
    torch.testing.assert_close(opt(*ROWS), rows(*ROWS), rtol=1e-4, atol=1e-5)


@pytest.fixture
def without_bound(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of `rows` as a whole nothing is proved, as where its degrees are too large; the operators of each program tried."""
    tried, prove = list[int](), Qualifier._proved

    def proved(qualifier: Qualifier, entry: Contestant, name: str) -> Proved | None:
        tried.append(len(qualifier.program.kernels()))
        return None if tried[-1] == max(tried) else prove(qualifier, entry, name)

    monkeypatch.setattr(whole_programs, "is_beyond_tests", lambda *_: True)
    monkeypatch.setattr(Qualifier, "_proved", proved)
    return tried


@pytest.mark.parametrize("budget", [None, 60.0])
def test_of_a_whole_without_a_bound_little_is_tried_before_its_pieces(without_bound: list[int], budget: float | None) -> None:
    opt = mugraph.superoptimize(rows, ROWS, budget=budget, profile=False, cache="off")
    assert opt.found
    assert not opt.is_one_program
    assert without_bound.count(max(without_bound)) == 1
    torch.testing.assert_close(opt(*ROWS), rows(*ROWS), rtol=1e-4, atol=1e-5)


def test_a_whole_without_a_bound_is_searched_on_where_its_pieces_have_nothing(
    without_bound: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*asked: object) -> Any:
        raise UnsupportedOperator("there is nothing")

    def recorded(problem: Problem, settings: OptimizationSettings, *asked: Any) -> Superoptimized:
        divisible.append(settings.divisible)
        return (superoptimized if settings.divisible else without_time)(problem, settings, *asked)

    divisible: list[bool] = []
    monkeypatch.setattr(cutting, "superoptimized_in_pieces", nothing)
    monkeypatch.setattr(whole_or_pieces, "superoptimized", recorded)
    opt = mugraph.superoptimize(rows, ROWS, profile=False, cache="off")
    assert divisible == [True, False]
    assert len(without_bound) == 1
    assert not opt.report.search["left_to_pieces"]


def test_a_function_whose_time_is_over_before_its_pieces_are_searched_says_so() -> None:
    """It said that nothing clearly faster was found, as where all was searched."""
    opt = mugraph.superoptimize(rows, ROWS, budget=1e-4, profile=False, cache="off")
    assert not opt.found
    assert opt.report.coverage is not None
    assert [calls.reason for calls in opt.report.coverage.left] == [out_of_time("a muGraph was found")]


def test_a_whole_out_of_reach_whose_time_is_over_says_that_its_pieces_were_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that nothing clearly faster was found."""

    def out_of_reach(*asked: Any, **given: Any) -> Any:
        time.sleep(0.5)
        raise UnsupportedOperator("too many axes at once")

    monkeypatch.setattr("mugraph.selection.proposals.closure_search", out_of_reach)
    opt = mugraph.superoptimize(rows, ROWS, budget=0.5, profile=False, cache="off")
    assert not opt.found
    assert opt.report.coverage is not None
    assert [calls.reason for calls in opt.report.coverage.left] == [out_of_time("its pieces were searched")]


def test_a_whole_whose_first_kernels_are_proved_is_searched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_programs, "is_beyond_tests", lambda *_: True)
    opt = mugraph.superoptimize(rows, ROWS, profile=False, cache="off", seed=0)
    assert opt.is_one_program
    assert not opt.report.search["left_to_pieces"]
    monkeypatch.undo()
    assert opt.graph == mugraph.superoptimize(rows, ROWS, profile=False, cache="off", seed=0).graph


def test_a_piece_that_is_the_whole_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: Any, **settings: Any) -> Any:
        raise AssertionError("it was searched before")

    monkeypatch.setattr(whole_or_pieces, "superoptimized", without_time)
    monkeypatch.setattr(piece_optimizer, "superoptimize_program", never)
    inputs = (torch.randn(8, 16), torch.randn(16, 16))
    opt = mugraph.superoptimize(lambda x, w: torch.tanh(x @ w), inputs, budget=30.0, profile=False, cache="off")
    assert not opt.found


@pytest.mark.parametrize(
    ("slowdown", "call", "seconds"),
    [
        (1.0, 0.1, 57.0),
        (2.0, 0.1, 54.0),
        (1.0, 0.5, 51.0),
        (2.0, 0.25, 51.0),
        (100.0, 0.1, 42.0),  # too many seconds to compare anything
        (10.0, 0.5, 35.0),  # five calls, where eighteen are too many
    ],
)
def test_programs_leave_time_for_calls_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, slowdown: float, call: float, seconds: float
) -> None:
    Clock(monkeypatch, slowdown)
    monkeypatch.setattr("mugraph.devices.host.slowdown_of_calls", lambda: slowdown)
    monkeypatch.setattr(whole_calls, "slowdown", lambda: slowdown)
    assert _CALLS.before(Deadline(60.0), call).remaining == pytest.approx(seconds, abs=0.1)
    assert _CALLS.before(Deadline(None), call).remaining is None


def clock_by_hand(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that deadlines read from now on, on a machine that does nothing else."""
    now = [0.0]
    monkeypatch.setattr("mugraph.support.deadline.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(cutting, "slowdown", lambda: 1.0)
    return now


@pytest.mark.parametrize(
    ("left", "predicted", "taken", "called"),
    [
        (100.0, 1.0, 5.0, True),
        (100.0, 1.0, 63.0, False),
        (5.5, 1.0, 3.0, True),
        (4.5, 1.0, 0.0, False),
        (0.0, 0.01, 0.1, True),
    ],
    ids=[
        "there is time",
        "calls took longer than predicted",
        "there is just",
        "there is none",
        "calls that take next to nothing",
    ],
)
def test_whole_calls_that_would_end_late_are_not_begun(
    monkeypatch: pytest.MonkeyPatch, left: float, predicted: float, taken: float, called: bool
) -> None:
    """Five calls take that long at the least, of which three are looked at for what they give, and warm."""
    example = EXAMPLES["logcumsumexp"]
    inputs = example.inputs()
    opt, now = optimized(example, inputs), clock_by_hand(monkeypatch)
    looked_at, timed, known = list[float](), list[float](), list[float]()

    def difference(*calls: object, **settings: object) -> str:
        looked_at.append(now[0])
        now[0] += taken
        return ""

    def beside(*calls: object, taken: float, **settings: object) -> BaselineComparison:
        timed.append(now[0])
        known.append(taken)
        return BaselineComparison({})

    monkeypatch.setattr(cutting, "difference", difference)
    monkeypatch.setattr(OwnCall, "beside", beside)
    deadline, settings = Deadline(left, started=0.0), OptimizationSettings(cache="off")
    answer = _beside(opt, example.function, inputs, machine_for("cpu"), settings, deadline, silent, predicted)
    assert looked_at == ([0.0] if called or taken else [])
    assert timed == ([taken] if called else [])
    assert known == ([taken / 3 if taken > 1.0 else math.inf] if called else [])
    assert not answer.report.found
    assert answer.own is example.function
    assert answer.report.coverage is not None
    reason = answer.report.coverage.left[0].reason
    assert ("are not clearly faster" if called else "the time ran out before calls with kernels were compared") in reason


@pytest.mark.parametrize(("left", "by_parts"), [(100.0, True), (7.0, False)], ids=["there is time", "there is none"])
def test_long_calls_are_timed_part_by_part_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch, left: float, by_parts: bool
) -> None:
    example = EXAMPLES["logcumsumexp"]
    inputs = example.inputs()
    opt, now = optimized(example, inputs), clock_by_hand(monkeypatch)

    def passing(seconds: float, answer: Any) -> Any:
        now[0] += seconds
        return answer

    won = BaselineComparison({EAGER: Duel(20, 20, 2.0)})
    monkeypatch.setattr(cutting, "difference", lambda *_, **settings: passing(4.0, ""))
    monkeypatch.setattr(OwnCall, "beside", lambda *_, **settings: passing(2.7, won))
    called: list[Partitioned] = []

    def by_part(result: Partitioned, *given: Any) -> Coverage:
        called.append(result)
        return timed_coverage(result, *given)

    monkeypatch.setattr(cutting, "timed_coverage", by_part)
    deadline, settings = Deadline(left, started=0.0), OptimizationSettings(cache="off")
    answer = _beside(opt, example.function, inputs, machine_for("cpu"), settings, deadline, silent, 1.0)
    assert answer.report.found
    assert answer.report.coverage is not None
    assert (answer.report.coverage.time_share is not None) == bool(called) == by_parts
    assert answer.report.coverage.byte_share > 0


def test_what_a_call_takes_is_predicted_by_what_it_computes_and_moves() -> None:
    few, many = (
        _seconds_of_a_call(recorded_graph(record(torch.matmul, (torch.ones(n, 64), torch.ones(64, 64))), ()), "cpu")
        for n in (64, 4096)
    )
    assert many > 20 * few > 0
