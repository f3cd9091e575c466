"""torch.compile(backend="mugraph"): results are those of eager PyTorch, and the log says what was not optimized."""

from __future__ import annotations

import copy
import gc
import logging
import os
import re
import subprocess
import sys
import time
import unittest.mock
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import mugraph.integrations.torch_compile
from mugraph.errors import InvalidInput, LeftToPyTorch, TargetUnavailable, UnsupportedOperator
from mugraph.frontend.partitioning.partition import Partition
from mugraph.frontend.partitioning.splice import as_torch
from mugraph.frontend.recording.capture import captured
from mugraph.integrations import graph_sizes, optimized_graph, whole_graph
from mugraph.integrations.background import BackgroundGraph, Queue
from mugraph.integrations.torch_compile import BUDGETS, Compilations, Compiled, compilations
from mugraph.pieces import library_ways, piece_optimizer
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.plan import plans
from mugraph.pieces.shares import least_seconds
from mugraph.runtime import Executable
from mugraph.runtime.benchmarking import Duel
from mugraph.search import search
from mugraph.selection import proposals, whole_programs

from .networks import Mlp

ALL: dict[str, Any] = {"keep": "all", "budget": 120.0}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    compilations.clear()
    piece_optimizer.optimizer.cache_clear()
    yield
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = torch.compile(fn, backend="mugraph", options={**ALL, **options})
    return function


def last() -> Compiled:
    return compilations[-1]


def test_the_backend_is_found_without_an_import() -> None:
    code = "import torch, sys; assert 'mugraph' in torch._dynamo.list_backends(); assert 'mugraph' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_halves_of_a_rotary_embedding_are_exchanged_by_kernels() -> None:
    def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return x * cos + torch.cat((-x[..., 8:], x[..., :8]), dim=-1) * sin

    inputs = (torch.randn(2, 4, 16), torch.randn(4, 16), torch.randn(4, 16))
    fast = compiled(rotated, strict=True)
    with torch.inference_mode():
        torch.testing.assert_close(fast(*inputs), rotated(*inputs), rtol=1e-6, atol=1e-6)
    assert len(last().partition.pieces) == 1
    assert last().partition.left == ()


def test_a_model_runs_as_kernels_and_gives_what_eager_gives() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Mlp(), Mlp(), nn.Softmax(-1)).eval()
    fast, x = compiled(model), torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    assert len(last().partition.pieces) >= 4
    assert len(set(map(id, last().results.values()))) < len(last().results), "layers share their kernels"
    assert last().partition.byte_share > 0.8


def test_only_gradients_and_mutation_need_aot_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = unittest.mock.Mock(wraps=aot_autograd)
    monkeypatch.setattr(mugraph.integrations.torch_compile, "aot_autograd", asked)
    model, x = Mlp(), torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-5, atol=1e-5)
    assert asked.call_count == 0
    torch._dynamo.reset()
    compiled(model)(x).sum().backward()
    assert asked.call_count == 1
    with torch.no_grad():
        torch.testing.assert_close(compiled(lambda y: y.add_(1).sum())(x.clone()), (x + 1).sum(), rtol=1e-5, atol=1e-5)
    assert asked.call_count == 2


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("fails", [False, True])
def test_what_dynamo_made_is_no_garbage_while_kernels_are_made(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = list[int]()

    def counted(*arguments: Any, **settings: Any) -> Any:
        frozen.append(gc.get_freeze_count())
        if fails:
            raise ValueError
        return plans(*arguments, **settings)

    def recorded(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        frozen.append(gc.get_freeze_count())
        return captured(module)

    monkeypatch.setattr(optimized_graph, "plans", counted)
    monkeypatch.setattr(mugraph.integrations.torch_compile, "captured", recorded)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-5, atol=1e-5)
    assert len(frozen) == 2
    assert all(frozen)
    assert gc.get_freeze_count() == 0


def test_parameters_changed_in_place_are_seen() -> None:
    model, x = Mlp().eval(), torch.randn(4, 32)
    fast = compiled(model)
    with torch.no_grad():
        fast(x)
        model.down.weight.mul_(2)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    assert len(compilations) == 1


def test_half_precision_is_as_exact_as_eager() -> None:
    torch.manual_seed(0)
    model, x = Mlp().eval().bfloat16(), torch.randn(4, 32).bfloat16()
    fast = compiled(model)
    with torch.no_grad():
        ours, eager, exact = fast(x), model(x), model.double()(x.double())
    assert ours.dtype is torch.bfloat16
    assert (ours.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max()


def test_a_graph_break_and_an_unsupported_operator_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    model = Mlp().eval()

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = torch.logcumsumexp(model(x), -1)
        torch._dynamo.graph_break()
        return torch.sort(model(x), -1).values

    x = torch.randn(4, 32)
    with torch.no_grad(), caplog.at_level(logging.DEBUG, logger="mugraph"):
        torch.testing.assert_close(compiled(broken)(x), broken(x), rtol=1e-4, atol=1e-4)
    assert len(compilations) == 2
    assert "left to torch: 1 x aten.logcumsumexp.default: operator aten.logcumsumexp" in caplog.text


def test_sizes_that_change_are_right() -> None:
    model = Mlp().eval()
    fast = compiled(model)
    with torch.no_grad():
        for rows in (4, 7, 1, 4, 9):
            x = torch.randn(rows, 32)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)


def test_symbolic_sizes_that_keep_coming_are_run_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    optimize = unittest.mock.Mock(side_effect=whole_programs.superoptimize_program)
    monkeypatch.setattr(piece_optimizer, "superoptimize_program", optimize)
    monkeypatch.setattr(graph_sizes, "_cut", lambda *_: None)  # whose parts would have kernels from the first call on
    mlp = Mlp().eval()

    def model(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = mlp(x)
        return y / x.shape[0]  # which no other size's results give

    fast: Any = torch.compile(model, backend="mugraph", dynamic=True, options={**ALL, "strict": True})

    def call(rows: int) -> None:
        x = torch.randn(rows, 32)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)

    with torch.no_grad():
        for rows in (4, 7, 5, 4, 7):
            call(rows)
        assert [done.partition.pieces for done in compilations] == [()], "one graph, without kernels for any size"
        call(4)
        assert len(last().partition.pieces) == 2
        assert last().partition.left == ()
        for rows in (7, 4, 5, 5, 7):
            call(rows)
    assert len(compilations) == 4, "the graph, and three sizes"
    likes = [bool(call.kwargs["like"]) for call in optimize.call_args_list]
    assert likes == [False, False, True, True, True, True]


def test_strides_that_vary_while_sizes_do_not() -> None:
    def changed(x: torch.Tensor) -> torch.Tensor:
        y = x.flatten()
        y[3] = 5.0
        return y.softmax(-1)

    fast = compiled(changed)
    with torch.no_grad():
        for apart in (1, 2, 3, 1, 4):
            numbers = torch.randn(8, 8, apart)
            ours, theirs = (numbers.clone()[..., 0] for _ in range(2))
            torch.testing.assert_close(fast(ours), changed(theirs), rtol=1e-5, atol=1e-5)
            assert torch.equal(ours, theirs)


def test_every_size_in_one_graph_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    optimize = unittest.mock.Mock(side_effect=whole_programs.superoptimize_program)
    monkeypatch.setattr(piece_optimizer, "superoptimize_program", optimize)

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [torch.relu(x @ w) for x, w in (tensors[:2], tensors[2:])]

    with torch.no_grad():
        compiled(function)(torch.randn(4, 32), torch.randn(32, 16), torch.randn(8, 64), torch.randn(64, 24))
    assert len(optimize.call_args_list) == 2
    assert all(call.kwargs["profile"] and not call.kwargs["like"] for call in optimize.call_args_list)


def test_growing_sizes_have_kernels_that_are_made_once() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    fast = compiled(attend)
    with torch.no_grad():
        for length in range(2, 12):
            q, k, v = torch.randn(2, 1, 16), torch.randn(2, length, 16), torch.randn(2, length, 16)
            torch.testing.assert_close(fast(q, k, v), attend(q, k, v), rtol=1e-5, atol=1e-5)
    assert len(compilations) == 3, "for the first size, for all others, and for 1024 keys, which hold them"
    assert len(last().partition.pieces) == 1


def test_inputs_with_strides_and_outputs_that_are_views_are_right() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.softmax(x @ w, -1) * 2
        return y.t(), y[:2], (x.t() * 3 + 1)

    x, w = torch.randn(32, 4).t(), torch.randn(64, 32)[::2]
    with torch.no_grad():
        for ours, wanted in zip(compiled(function)(x, w), function(x, w), strict=True):
            torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
            assert ours.stride() == wanted.stride()


def test_results_that_are_equal_may_be_changed_one_by_one() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.softmax(x @ w, -1), torch.softmax(x @ w, -1) * 1.0, x * 1.0

    x, w = torch.randn(4, 32), torch.randn(32, 16)
    with torch.no_grad():
        wanted, results = function(x, w), compiled(function)(x, w)
        before = x.clone()
        for result, expected in zip(results, wanted, strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
            result.zero_()
        torch.testing.assert_close(x, before)


def test_a_view_that_is_returned_beside_its_tensor_shares_its_memory() -> None:
    def broken(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = (x * x).sum(-1, keepdim=True) * (x @ w)
        heads = product.view(4, 2, 8)
        lengths = (heads * heads).sum(-1).sqrt()
        torch._dynamo.graph_break()
        heads.add_(1.0)
        return product, lengths

    inputs = (torch.randn(4, 32), torch.randn(32, 16))
    fast = compiled(broken)
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), broken(*inputs), rtol=1e-4, atol=1e-4)
    assert compilations[0].partition.pieces


def test_results_that_are_expanded_are_expanded() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = (x * x).sum(-1, keepdim=True) * (x @ w)
        several = product.unsqueeze(0).expand(3, 4, 16)
        return several, (several * several).sum(-1).sqrt()

    inputs = (torch.randn(4, 32), torch.randn(32, 16))
    fast = compiled(fn)
    with torch.no_grad():
        ours, wanted = fast(*inputs), fn(*inputs)
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
    assert [result.stride() for result in ours] == [result.stride() for result in wanted]
    assert last().partition.pieces


def test_inputs_changed_in_place_are_changed() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x @ w, -1)
        x.mul_(2)
        return y + torch.softmax(x @ w, -1)

    x, w = torch.randn(4, 32), torch.randn(32, 16)
    ours, theirs = x.clone(), x.clone()
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(ours, w), function(theirs, w), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (torch.ops.aten.native_dropout.default, (0.5, True)),
        (torch.ops._c10d_functional.all_reduce.default, ("sum", "0")),
        (torch.ops._c10d_functional.all_reduce, ("sum", "0")),
        (torch._prims.rng_prims.run_and_save_rng_state, ()),
    ],
)
def test_plans_of_graphs_with_effects_are_not_compared(operator: Any, arguments: tuple[Any, ...]) -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(operator, (graph.placeholder("x"), *arguments)))
    plans: list[Any] = [None, None]  # which nobody asks for anything
    assert optimized_graph._fastest(fx.GraphModule({}, graph), plans, PieceOptions()) is plans[0]


def test_random_numbers_are_those_of_eager() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(torch.softmax(x @ w, -1)) + torch.rand_like(x) @ w

    x, w = torch.randn(4, 32), torch.randn(32, 16)
    fast = compiled(function)
    with torch.no_grad():
        torch.manual_seed(3)
        ours = fast(x, w)
        torch.manual_seed(3)
        torch.testing.assert_close(ours, function(x, w), rtol=1e-5, atol=1e-5)


def test_eight_threads_may_call_one_function() -> None:
    model = Mlp().eval()
    fast, inputs = compiled(model), [torch.randn(4, 32) for _ in range(8)]

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(10):
                result: torch.Tensor = fast(x)
        return result

    with ThreadPoolExecutor(8) as pool:
        for x, ours in zip(inputs, pool.map(call, inputs), strict=True):
            torch.testing.assert_close(ours, model(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_are_budgets(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[PieceOptions] = []
    optimized = optimized_graph.optimized

    def noted(options: PieceOptions, *rest: Any) -> Any:
        chosen.append(options)
        return optimized(options, *rest)

    monkeypatch.setattr(graph_sizes, "optimized", noted)
    model, x = Mlp().eval(), torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="mugraph", mode=mode)(x), model(x), rtol=1e-5, atol=1e-5)
    assert [options.budget for options in chosen] == [BUDGETS[mode]]


def test_other_modes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no mode 'fast'; use one of default, reduce-overhead, max-autotune"):
        mugraph.integrations.torch_compile.backend(fx.symbolic_trace(nn.ReLU()), [torch.ones(2)], mode="fast")


def test_ctrl_c_while_a_model_compiles_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(self: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("mugraph.search.driver.Search.run", pressed)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        compiled(Mlp().eval())(torch.randn(4, 32))


def test_what_is_left_of_the_budget_is_for_pieces_whose_time_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: dict[str, list[float]] = {}
    superoptimize = whole_programs.superoptimize_program

    def noted(program: Any, *, budget: float, **settings: Any) -> Any:
        given = budgets.setdefault(str(program), [])
        given.append(budget)
        hurried = len(budgets) == 1 and len(given) == 1
        return superoptimize(program, budget=0.0 if hurried else budget, **settings)

    monkeypatch.setattr(piece_optimizer, "superoptimize_program", noted)
    monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: 1.0)
    first, second = Mlp().eval(), Mlp(inner=48).eval()
    with torch.no_grad():
        compiled(lambda x: second(first(x).logcumsumexp(0)), budget=600.0)(torch.randn(4, 32))
    hurried, *others = budgets.values()
    assert [len(given) for given in others] == [1] * len(others)
    assert least_seconds() <= hurried[0] < 600.0 / 2, "a share, of four pieces"
    assert hurried[1] > 1.5 * hurried[0]
    assert last().results


def test_a_machine_without_a_compiler_warns_and_runs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any, **settings: Any) -> Any:
        raise TargetUnavailable("no C compiler was found; install one")

    monkeypatch.setattr(piece_optimizer, "superoptimize_program", missing)
    model, x = Mlp().eval(), torch.randn(4, 32)
    with torch.no_grad(), pytest.warns(LeftToPyTorch, match="no C compiler was found; install one"):
        torch.testing.assert_close(compiled(model)(x), model(x))


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise UnsupportedOperator("not today")


def _break(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("a defect")


@pytest.mark.parametrize(("failure", "text"), [(_refuse, "not today"), (_break, "a defect")])
def test_a_piece_that_cannot_be_optimized_falls_back_or_is_an_error(
    failure: Callable[..., Any], text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(piece_optimizer, "superoptimize_program", failure)
    model, x = Mlp().eval(), torch.randn(4, 32)
    with torch.no_grad():
        with caplog.at_level(logging.INFO, logger="mugraph"):
            torch.testing.assert_close(compiled(model)(x), model(x))
        assert re.search(f"stays with torch: .*{text}", caplog.text)
        assert last().partition.pieces == ()
        torch._dynamo.reset()
        with pytest.raises(Exception, match=text):
            compiled(model, strict=True)(x)


def test_a_graph_that_cannot_be_split_is_run_by_torch_or_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(optimized_graph, "plans", _break)
    model, x = Mlp().eval(), torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x))
        assert "optimizing a graph failed, torch runs it" in caplog.text
        torch._dynamo.reset()
        with pytest.raises(Exception, match="a defect"):
            compiled(model, strict=True)(x)


def test_kernels_that_do_not_beat_torch_are_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(piece_optimizer, "against", lambda *_: Duel(rounds=20, won=2, speedup=0.5))
    model, x = nn.Sequential(Mlp(), Mlp()).eval(), torch.randn(4, 32)
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="mugraph"):
        torch.testing.assert_close(compiled(model, keep="faster", pack=False)(x), model(x))
    assert caplog.text.count("stays with torch: its kernels") == 2, "a line for each of two kinds of pieces, not for each piece"
    assert "(2 such pieces)" in caplog.text
    assert "its kernels are not clearly faster than torch (0.50x)" in caplog.text
    assert last().partition.pieces == ()


def test_slow_kernels_lose_against_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Executable.__call__

    def slow(self: Executable, *arrays: Any) -> list[Any]:
        time.sleep(0.005)
        return run(self, *arrays)

    monkeypatch.setattr(Executable, "__call__", slow)
    model, x = Mlp().eval(), torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, keep="faster", strict=True)(x), model(x))
    assert last().partition.pieces == ()


def test_kernels_that_beat_a_slow_torch_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(piece: Any) -> Any:
        module = as_torch(piece)
        forward = module.forward

        def delayed(*tensors: Any) -> Any:
            time.sleep(0.02)
            return forward(*tensors)

        module.forward = delayed
        return module

    monkeypatch.setattr(piece_optimizer, "as_torch", slow)
    monkeypatch.setattr(whole_graph, "duel", lambda *sides, **settings: Duel(rounds=20, won=20, speedup=2.0))
    model, x = Mlp().eval(), torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, keep="faster", strict=True)(x), model(x), rtol=1e-5, atol=1e-5)
    assert last().partition.pieces


@pytest.mark.parametrize("loads", [(0.0, 1000.0), (1000.0, 0.0)])
def test_what_was_measured_stands_whatever_the_load(
    loads: tuple[float, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path))
    measured = unittest.mock.Mock(return_value=Duel(rounds=20, won=20, speedup=2.0))
    monkeypatch.setattr(piece_optimizer, "against", measured)
    whole = unittest.mock.Mock(return_value=Duel(rounds=20, won=20, speedup=2.0))
    monkeypatch.setattr(whole_graph, "duel", whole)
    searched = unittest.mock.Mock(side_effect=search)
    monkeypatch.setattr(proposals, "closure_search", searched)
    timed = unittest.mock.Mock(side_effect=library_ways._measured)
    monkeypatch.setattr(library_ways, "_measured", timed)
    model, x = Mlp().eval(), torch.randn(4, 32)
    counts = []
    with torch.no_grad():
        for load in loads:
            monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
            compiled(model, keep="faster", cache="on", budget=None)(x)
            torch._dynamo.reset()
            piece_optimizer.optimizer.cache_clear()
            counts.append([made.call_count for made in (measured, whole, searched, timed)])
    assert any(result.found for result in compilations[0].results.values())
    assert min(counts[0]) > 0
    assert counts[1] == counts[0], "a later process measures and searches nothing"
    assert len(compilations[0].results) == len(compilations[1].results)


def test_pieces_that_read_expanded_tensors_are_measured() -> None:
    def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (32,)) @ w

    x, w = torch.randn(1, 32).expand(4, 32), torch.randn(32, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(normalised, keep="faster", strict=True)(x, w), normalised(x, w), rtol=1e-4, atol=1e-4)


def test_tensors_elsewhere_than_on_the_target_stay_with_torch(caplog: pytest.LogCaptureFixture) -> None:
    model, x = nn.Sequential(Mlp(), Mlp()).eval(), torch.randn(4, 32)
    with torch.no_grad(), caplog.at_level(logging.DEBUG, logger="mugraph"):
        torch.testing.assert_close(compiled(model, target="cuda:sm_90")(x), model(x))
    assert last().partition.pieces == ()
    assert "torch.strided on cpu" in caplog.text


@pytest.mark.parametrize("target", ["cuda:sm_90", "triton:sm_90"])
def test_graphs_of_tensors_on_a_gpu_are_cut_for_targets_that_take_these(target: str) -> None:
    """Triton's kernels take tensors of the same devices; nothing runs here, so every kernel counts."""
    pytest.importorskip("cuda.core")
    with FakeTensorMode():
        inputs = torch.empty(32, 64, device="cuda"), torch.empty(64, device="cuda")
        module = make_fx(lambda x, g: torch.relu(torch.exp(x * g).cumsum(-1)) * 2 + 1)(*inputs)
    options = PieceOptions(target=target, profile=False, cache="off", budget=600.0)
    optimized_graph.optimized(options, module, {}, BackgroundGraph(module.forward, Queue()), options.budget)
    compilation = last()
    assert len(compilation.partition.pieces) == 2
    assert {left.reason for left in compilation.partition.left} == {"running sums and products are kernels of the CPU alone"}
    assert all(result.target == target for result in compilation.results.values())


def test_kernels_keep_to_the_space(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Mlp().eval(), torch.randn(4, 32)
    space = mugraph.SearchSpace(grids=[4], loops=[1])
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, space=space)(x), model(x))
    results = last().results.values()
    assert results
    assert all(space.holds(each.graph) for result in results for each in result.candidates)
    torch._dynamo.reset()
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="mugraph"):
        torch.testing.assert_close(compiled(model, space=mugraph.SearchSpace(grids=[7]))(x), model(x))
    assert last().partition.pieces == ()
    assert "grid 7" in caplog.text


def test_a_space_is_a_search_space() -> None:
    with pytest.raises(Exception, match=r"use a mugraph\.SearchSpace"), torch.no_grad():
        compiled(Mlp(), space={"grids": [4]})(torch.randn(4, 32))


def test_equal_pieces_of_two_models_are_optimized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    optimize = unittest.mock.Mock(side_effect=whole_programs.superoptimize_program)
    monkeypatch.setattr(piece_optimizer, "superoptimize_program", optimize)
    with torch.no_grad():
        for model in (Mlp(), Mlp()):
            compiled(model.eval())(torch.randn(4, 32))
            torch._dynamo.reset()
    assert len(compilations) == 2
    assert optimize.call_count == len(compilations[0].partition.pieces)


def test_a_compiled_model_can_be_copied_and_compiled_anew() -> None:
    model, x = Mlp().eval(), torch.randn(4, 32)
    fast: Any = compiled(model)
    with torch.no_grad():
        fast(x)
        twin = copy.deepcopy(model)
        twin.down.weight.mul_(2)
        torch.testing.assert_close(compiled(twin)(x), twin(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)


def test_graphs_that_are_no_longer_listed_are_counted() -> None:
    latest = Compilations()
    for _ in range(250):
        latest.append(Compiled(Partition((), ()), {}))
    assert (len(latest), latest.in_all) == (100, 250)
