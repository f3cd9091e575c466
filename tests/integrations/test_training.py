"""Training through torch.compile(backend="mugraph"): gradients are eager PyTorch's, whatever is asked of them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from mugraph.frontend.partitioning.library import is_constant
from mugraph.frontend.partitioning.partition import partition
from mugraph.integrations import background, torch_compile, trained_graph, waiting
from mugraph.integrations.torch_compile import compilations
from mugraph.integrations.trained_graph import StepGraphs, TrainedGraph
from mugraph.pieces import piece_optimizer
from mugraph.runtime.benchmarking import Duel
from mugraph.support.store import Store
from mugraph.targets.machine import machine_for

aten = torch.ops.aten
WIDTH = 32
X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0))
ALL: dict[str, Any] = {"keep": "all", "budget": 120.0, "profile": False}


class Gated(nn.Module):
    """A piece in each direction."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(1)
        self.gain, self.shift = (nn.Parameter(torch.randn(WIDTH, generator=drawn)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.gain) * x + self.shift


Loss = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def _store(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What one test has found, others recall."""
    ALL["cache"] = Store(tmp_path_factory.mktemp("results"))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(waiting.notice, "said", True)  # on a slow machine it would be
    torch._dynamo.reset()
    compilations.clear()
    piece_optimizer.optimizer.cache_clear()
    yield
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = torch.compile(fn, backend="mugraph", options={**ALL, **options})
    return function


def of_squares(y: torch.Tensor) -> torch.Tensor:
    return y.square().mean()


def gradients(run: Callable[..., torch.Tensor], module: nn.Module, x: torch.Tensor = X, loss: Loss = of_squares) -> list[Any]:
    """What parameters get of a step of `run`, which runs `module`."""
    module.zero_grad()
    loss(run(x)).backward()  # type: ignore[no-untyped-call]  # torch's
    return [each.grad for each in module.parameters()]


def assert_like_eager(module: nn.Module, fast: Callable[..., torch.Tensor], loss: Loss = of_squares) -> None:
    """That gradients of a compiled module are those of the module in float64."""
    exact = copy.deepcopy(module).double()
    for ours, wanted in zip(gradients(fast, module, loss=loss), gradients(exact, exact, X.double(), loss), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-6)


def in_kernels() -> list[int]:
    """Of the graphs that were compiled, how many pieces run as kernels."""
    return [len(done.partition.pieces) for done in compilations]


def test_both_graphs_of_a_step_run_in_kernels() -> None:
    module = Gated()
    fast = compiled(module, strict=True)
    assert_like_eager(module, fast)
    assert in_kernels() == [1, 1]
    assert_like_eager(module, fast, torch.sum)  # of which the tangent is one number, expanded
    assert in_kernels() == [1, 1]


@pytest.mark.parametrize(
    "tangent", [torch.randn(WIDTH, 8).t(), torch.randn(8, 2 * WIDTH)[:, ::2], torch.ones(()).expand(8, WIDTH)]
)
def test_tangents_may_lie_anyhow(tangent: torch.Tensor) -> None:
    module, theirs = Gated(), Gated()
    compiled(module)(X).backward(tangent)
    theirs(X).backward(tangent)
    torch.testing.assert_close(module.gain.grad, theirs.gain.grad, rtol=1e-5, atol=1e-5)


def test_later_processes_recall_the_kernels_of_a_step() -> None:
    module = Gated()
    for _ in range(2):
        torch._dynamo.reset()
        piece_optimizer.optimizer.cache_clear()  # as in a process that begins
        assert_like_eager(module, compiled(module, strict=True))
    results = [result for done in list(compilations)[2:] for result in done.results.values()]
    assert [result.report.recalled for result in results] == [True, True]


def test_an_optimizer_changes_what_the_next_step_reads() -> None:
    ours, theirs = Gated(), Gated()
    runs: list[Callable[..., torch.Tensor]] = [compiled(ours), theirs]
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.05) for module in (ours, theirs)]
    losses: list[list[float]] = [[], []]
    for _ in range(20):
        for number, (run, optimizer) in enumerate(zip(runs, optimizers, strict=True)):
            optimizer.zero_grad()
            loss = (run(X) - 1).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            losses[number].append(loss.item())
    assert losses[0][-1] < 0.7 * losses[0][0]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)


def test_nothing_is_constant_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[bool] = []
    run = torch_compile._run

    def seen(options: Any, module: torch.fx.GraphModule, *others: Any) -> Any:
        marked.append(any(is_constant(node) for node in module.graph.nodes))
        return run(options, module, *others)

    monkeypatch.setattr(torch_compile, "_run", seen)
    module = nn.Linear(WIDTH, 2)
    gradients(compiled(module), module)
    with torch.no_grad():
        compiled(module)(X)
    assert marked == [False, False, True]


def test_gradients_are_added_to_those_that_are_there() -> None:
    module = Gated()
    fast = compiled(module)
    once = [each.clone() for each in gradients(fast, module)]
    of_squares(fast(X)).backward()  # type: ignore[no-untyped-call]  # torch's
    for parameter, grad in zip(module.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * grad)


def test_graphs_may_be_retained_at_any_step() -> None:
    module = Gated()
    fast = compiled(module)
    once = [each.clone() for each in gradients(fast, module)]
    module.zero_grad()
    loss = of_squares(fast(X))
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch's
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    for parameter, grad in zip(module.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * grad)


def test_gradients_of_gradients_are_refused_in_torch_s_words() -> None:
    module = Gated()
    (grad,) = torch.autograd.grad(of_squares(compiled(module)(X)), module.gain, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.sum().backward()  # type: ignore[no-untyped-call]  # torch's


def test_what_is_saved_may_not_be_changed_before_the_backward_pass() -> None:
    module = Gated()
    fast = compiled(lambda x: torch.tanh(x * module.gain))
    result = fast(X)
    with torch.no_grad():
        result.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_module_is_evaluated_after_training() -> None:
    module = Gated()
    fast = compiled(module)
    gradients(fast, module)
    with torch.no_grad():
        module.gain.mul_(2)
        torch.testing.assert_close(fast(X), module(X), rtol=1e-5, atol=1e-6)


def test_frozen_parameters_and_unused_ones_have_no_gradients() -> None:
    class Two(Gated):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
            return super().forward(x), x.exp() * 2

    module = Two()
    module.shift.requires_grad_(False)
    compiled(module)(X)[0].sum().backward()
    assert module.shift.grad is None
    (wanted,) = torch.autograd.grad(module(X)[0].sum(), module.gain)
    torch.testing.assert_close(module.gain.grad, wanted, rtol=1e-5, atol=1e-5)


def test_results_may_be_views_of_each_other_and_of_arguments() -> None:
    def views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(x * w) * w
        return y, y.view(-1), y.t(), x.view(-1)

    def of(run: Callable[..., tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        x, w = X.clone().requires_grad_(), X[0].clone().requires_grad_()
        y, flat, turned, given = run(x, w)
        return torch.autograd.grad(y.sum() + flat.square().sum() + 3 * turned.sum() + given.sum(), (x, w))

    for ours, wanted in zip(of(compiled(views)), of(views), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


def test_dropout_draws_what_a_seed_says() -> None:
    module = nn.Sequential(Gated(), nn.Dropout(0.5))
    fast = compiled(module)

    def of(run: Callable[..., torch.Tensor], seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        grad: torch.Tensor = gradients(run, module)[0]
        return grad.clone()

    torch.testing.assert_close(of(fast, 3), of(module, 3), rtol=1e-5, atol=1e-6)
    assert not torch.equal(of(fast, 3), of(fast, 4))
    assert in_kernels() == [1, 1]


def test_batch_norm_keeps_its_statistics() -> None:
    module = nn.Sequential(Gated(), nn.BatchNorm1d(WIDTH))
    theirs = copy.deepcopy(module)
    fast = compiled(module)
    for _ in range(3):
        gradients(fast, module)
        gradients(theirs, theirs)
    for ours, wanted in zip(module.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6)


def test_an_embedding_adds_up_what_its_rows_get() -> None:
    module, tokens = nn.Sequential(nn.Embedding(5, WIDTH), Gated()), torch.randint(5, (4, 6))
    ours = [each.clone() for each in gradients(compiled(module), module, tokens)]
    for one, wanted in zip(ours, gradients(module, module, tokens), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)


def test_nan_and_infinities_are_where_pytorch_has_them() -> None:
    x = X.clone()
    x[0, 0], x[1, 1], x[2, 2] = torch.nan, torch.inf, -torch.inf
    module = Gated()
    fast = compiled(module)

    def of(run: Callable[..., torch.Tensor]) -> torch.Tensor:
        given = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(run(given).sum(), given)
        return grad

    torch.testing.assert_close(of(fast), of(module), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_threads_train_at_once() -> None:
    module = Gated()
    fast = compiled(module)

    def of(run: Callable[..., torch.Tensor], number: int) -> torch.Tensor:
        (grad,) = torch.autograd.grad(of_squares(run(X / (1 + number))), module.gain)
        return grad

    of(fast, 0)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: of(fast, number), range(32)))
    for number, grad in enumerate(found):
        torch.testing.assert_close(grad, of(module, number), rtol=1e-4, atol=1e-5)


def test_training_begins_before_kernels_are_found() -> None:
    module = Gated()
    fast = compiled(module, background=True)
    assert_like_eager(module, fast)
    assert background.wait(timeout=300.0)
    assert_like_eager(module, fast)
    assert [graph.state for graph in background.graphs()[-2:]] == ["in kernels"] * 2


def test_sizes_may_vary() -> None:
    module = Gated()
    fast: Callable[..., torch.Tensor] = torch.compile(module, backend="mugraph", dynamic=True, options={**ALL})
    for rows in (8, 5, 5, 5, 3):
        x = torch.randn(rows, WIDTH)
        ours = [each.clone() for each in gradients(fast, module, x)]
        for one, wanted in zip(ours, gradients(module, module, x), strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)


def test_autocast_trains_in_the_narrow_type() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), Gated())
    fast = compiled(module)

    def of(run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return [each.clone() for each in gradients(run, module)]

    for ours, wanted in zip(of(fast), of(module), strict=True):
        assert ours.dtype is torch.float32
        torch.testing.assert_close(ours, wanted, rtol=2e-2, atol=1e-2)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def of_shared_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


HEADS = [torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def test_the_gradient_of_attention_is_a_piece_of_its_own() -> None:
    def backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        kept = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        return list(aten._scaled_dot_product_flash_attention_for_cpu_backward(q + v, q, k, v, *kept, 0.0, True))

    cut = partition(make_fx(backward, tracing_mode="fake")(*HEADS).graph)
    assert not cut.left
    (piece,) = (piece for piece in cut.pieces if len(piece.outputs) == 3)
    assert sum(node.op == "matmul" for node in piece.program.kernels()) == 5


@pytest.mark.slow
@pytest.mark.parametrize(("attend", "shared"), [(attention, 2), (of_shared_keys, 1)])
def test_the_gradient_of_attention_runs_in_kernels(attend: Callable[..., torch.Tensor], shared: int) -> None:
    heads = [HEADS[0], *(each[:, :shared] for each in HEADS[1:])]

    def of(run: Callable[..., torch.Tensor], heads: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        given = [each.clone().requires_grad_() for each in heads]
        return torch.autograd.grad(of_squares(run(*given)), given)

    ours = of(compiled(attend), heads)
    for one, wanted in zip(ours, of(attend, [each.double() for each in heads]), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-6)
    assert compilations[-1].partition.byte_share == 1


class Decided:
    """A trained graph whose duel ends as it is told, of a function and one that adds nothing to it but a count of calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcome: Duel | Exception) -> None:
        def decided(ours: Callable[[], object], theirs: Callable[[], object], clock: Any, limit: float) -> Duel:
            ours(), theirs()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(trained_graph, "duel", decided)
        self.calls = {"ours": 0, "theirs": 0}
        self.graphs = StepGraphs(draws=True)
        self.graph = TrainedGraph(self._side("ours"), self._side("theirs"), self.graphs, machine_for("cpu"))

    def _side(self, name: str) -> Callable[..., list[torch.Tensor]]:
        def run(x: torch.Tensor, w: torch.Tensor, kept: torch.Tensor) -> list[torch.Tensor]:
            self.calls[name] += 1
            kept.add_(1)
            return [torch.dropout(x * w, 0.5, True)]

        return run


@pytest.mark.parametrize(
    ("outcome", "winner", "says"),
    [
        (Duel(20, 20, 1.5), "ours", "1.50 times as fast"),
        (Duel(20, 11, 1.01), "theirs", "torch runs a graph that needs gradients"),
        (RuntimeError("no memory"), "theirs", "comparing a training step with PyTorch failed"),
    ],
)
def test_a_step_runs_by_what_was_faster(
    outcome: Duel | Exception, winner: str, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mugraph.torch_compile")
    sides = Decided(monkeypatch, outcome)
    w, kept = X[0].clone().requires_grad_(), torch.zeros(())
    for _ in range(3):
        sides.graph(X, w, kept)
    assert sides.calls == {"ours": 3, "theirs": 0}  # nobody has asked for gradients
    sides.graphs.complete.set()
    torch.manual_seed(5)
    (drawn,) = sides.graph(X, w, kept)
    assert sides.calls == {"ours": 4 + (winner == "ours"), "theirs": 1 + (winner == "theirs")}
    assert says in caplog.text
    torch.manual_seed(5)
    torch.testing.assert_close(drawn, torch.dropout(X * w, 0.5, True))  # comparing drew nothing of it
    assert kept == 4  # nor did it write to arguments
    assert w.grad is None


def test_steps_that_kernels_do_not_make_faster_are_pytorch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = repeated_steps(monkeypatch)
    module = Gated()
    fast = compiled(module, **COMPARED)
    assert_like_eager(module, fast)
    assert_like_eager(module, fast)
    (grad,) = torch.autograd.grad(of_squares(fast(X)), module.gain, create_graph=True)
    assert grad.requires_grad  # as PyTorch gives it
    grad.sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert steps == [2]


COMPARED = {"keep": "faster", "profile": True}


def repeated_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By comparison, how many steps of each side were made, of which PyTorch wins all."""
    steps: list[int] = []

    def made(ours: Callable[[], object], theirs: Callable[[], object], clock: Any, limit: float) -> Duel:
        steps.append(2)
        for _ in range(steps[-1]):
            ours(), theirs()
        return Duel(20, 0, 0.5)

    monkeypatch.setattr(trained_graph, "duel", made)
    return steps


def test_checkpoints_around_a_graph_see_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = repeated_steps(monkeypatch)
    module = Gated()
    fast = compiled(module, **COMPARED)

    def twice(run: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The backward pass of the second call has kernels when the first one is made again."""
        module.zero_grad()
        x = X.clone().requires_grad_()
        loss = of_squares(checkpoint(run, checkpoint(run, x, use_reentrant=False), use_reentrant=False))
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        assert module.gain.grad is not None
        return module.gain.grad.clone()

    for _ in range(2):
        torch.testing.assert_close(twice(fast), twice(module), rtol=1e-5, atol=1e-5)
    assert not steps
    fast(X.clone().requires_grad_())
    assert steps


def test_what_a_gpu_is_to_do_is_recorded_without_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Decided(monkeypatch, Duel(20, 20, 1.5))
    sides.graphs.complete.set()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for recording in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda recording=recording: recording)
        sides.graph(X, X[0].clone().requires_grad_(), torch.zeros(()))
        assert (sides.graph.duel is None) == recording


def test_checkpoints_in_a_graph_drop_again_what_they_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of PyTorch's graph run as it stands the gradients are others than of eager PyTorch."""
    steps = repeated_steps(monkeypatch)
    module = nn.Sequential(Gated(), nn.Dropout(0.5))

    def saving(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(module, x, use_reentrant=False)
        return result

    fast = compiled(saving, **COMPARED)

    def of(run: Callable[..., torch.Tensor], seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [each.clone() for each in gradients(run, module)]

    for seed in range(3):
        torch.testing.assert_close(of(fast, seed), of(saving, seed), rtol=1e-5, atol=1e-5)
    assert not steps


def test_operators_that_may_have_effects_are_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = repeated_steps(monkeypatch)
    calls = []

    @torch.library.custom_op("mugraph_training::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.clone()

    counted.register_fake(torch.empty_like)
    counted.register_autograd(lambda context, grad: grad)
    module = Gated()
    fast = compiled(lambda x: counted(module(x)), **COMPARED)
    for number in range(3):
        fast(X).sum().backward()
        assert len(calls) == number + 1
    assert not steps


def test_steps_are_compared_on_arguments_that_share_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = repeated_steps(monkeypatch)

    def moved(above: torch.Tensor, below: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        above.add_(1)
        return torch.tanh(below * w) * below

    def of(run: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = X.clone(), X[0].clone().requires_grad_()
        (grad,) = torch.autograd.grad(run(x[:4], x[2:6], w).sum(), w)
        return grad, x

    fast = compiled(moved, **COMPARED)
    for _ in range(3):
        torch.testing.assert_close(of(fast), of(moved), rtol=1e-5, atol=1e-5)
    assert steps
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_steps_are_compared_that_change_what_was_computed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = repeated_steps(monkeypatch)

    def doubled(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return torch.tanh(x) * x

    def of(run: Callable[..., torch.Tensor]) -> torch.Tensor:
        w = X[0].clone().requires_grad_()
        x = X * w
        (grad,) = torch.autograd.grad(run(x).sum() + x.sum(), w)
        return grad

    fast = compiled(doubled, **COMPARED)
    for _ in range(3):
        torch.testing.assert_close(of(fast), of(doubled), rtol=1e-5, atol=1e-5)
    assert steps
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_steps_that_draw_nothing_leave_the_generator_to_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """To put its state back would have them draw the same again."""
    drawn: list[torch.Tensor] = []

    def meanwhile(ours: Callable[[], object], theirs: Callable[[], object], clock: Any, limit: float) -> Duel:
        drawn.append(torch.rand(4))
        return Duel(20, 0, 0.5)

    monkeypatch.setattr(trained_graph, "duel", meanwhile)
    module = Gated()
    fast = compiled(module, **COMPARED)
    for _ in range(2):
        gradients(fast, module)
    (numbers,) = drawn
    assert not torch.equal(torch.rand(4), numbers)
