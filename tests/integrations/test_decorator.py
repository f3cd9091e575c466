"""`@mugraph.optimize`: calls are answered as the function answers them, and gradients are never lost."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import mugraph
from mugraph.errors import GradientsDropped, InvalidInput, LeftToPyTorch, ShapeMismatch, TargetUnavailable, UnsupportedOperator
from mugraph.integrations import decorator
from mugraph.integrations.decorator import Optimized
from mugraph.pieces.partitioned import Partitioned
from mugraph.runtime.baselines import EAGER, BaselineComparison
from mugraph.runtime.benchmarking import Duel
from mugraph.sizes.capacity_results import CapacityTable
from mugraph.sizes.dynamic_results import DynamicSuperoptimized
from mugraph.sizes.masked_functions import masked_function

X, W = torch.randn(4, 32), torch.randn(32, 16)


def norm_linear(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Normalises rows, and multiplies."""
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)) @ w


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.RMSNorm(32), nn.Linear(32, 16)

    @mugraph.optimize(budget=120.0)
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # torch declares no arguments
        return torch.nn.functional.linear(self.norm(x), self.linear.weight, self.linear.bias)


@pytest.fixture(autouse=True)
def pieces_win(kernels_win: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is who answers, not how fast tiny programs are."""
    monkeypatch.setattr(decorator, "duel", lambda *sides: Duel(rounds=60, won=60, speedup=2.0))


@pytest.fixture
def optimized() -> Optimized[..., torch.Tensor]:
    return mugraph.optimize(norm_linear, budget=120.0)


@pytest.fixture
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("silent")
def test_kernels_answer_from_the_first_call_on(optimized: Optimized[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    close(optimized(X, W), norm_linear(X, W))
    (result,) = optimized.results
    assert isinstance(result, mugraph.Superoptimized)
    assert result.found
    monkeypatch.setattr(optimized, "fn", None)
    close(optimized(X, W), norm_linear(X, W))
    close(optimized(X.t().contiguous().t().contiguous(), W), norm_linear(X, W))


def test_kinds_of_calls_have_answers_of_their_own(optimized: Optimized[..., torch.Tensor]) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X, W), {}),
        ((X[:2], W), {}),
        ((X, W, 1e-3), {}),
        ((X,), {"w": W}),
        ((), {"w": W, "x": X}),
        ((X.t().contiguous().t(), W), {}),
        ((X.bfloat16(), W.bfloat16()), {}),
    ]
    for number, (args, kwargs) in enumerate(calls, 1):
        torch.testing.assert_close(optimized(*args, **kwargs), norm_linear(*args, **kwargs), rtol=2e-2, atol=2e-1)
        assert len(optimized.answers) == len(optimized.results) == number
    for args, kwargs in calls:
        torch.testing.assert_close(optimized(*args, **kwargs), norm_linear(*args, **kwargs), rtol=2e-2, atol=2e-1)
    assert len(optimized.answers) == len(calls)


def test_it_looks_like_the_function(optimized: Optimized[..., torch.Tensor]) -> None:
    assert optimized.__name__ == "norm_linear"
    assert optimized.__doc__ == norm_linear.__doc__
    assert repr(optimized) == "<Optimized norm_linear: 0 of 0 kinds of calls run by kernels>"


def test_gradients_are_those_of_the_function(optimized: Optimized[..., torch.Tensor]) -> None:
    optimized(X, W)
    w = W.clone().requires_grad_()
    torch.autograd.backward(optimized(X, w).sum())
    assert w.grad is not None
    with torch.no_grad():
        assert not optimized(X, w).requires_grad


def test_a_layer_trains_and_serves() -> None:
    layer = Layer()
    with pytest.warns(LeftToPyTorch, match=r"Layer.forward runs as PyTorch runs it: gradients are recorded.*inference_mode"):
        torch.autograd.backward(layer(X).sum())
    assert layer.linear.weight.grad is not None
    assert not layer.forward.answers
    with torch.inference_mode():
        close(layer(X), layer.linear(layer.norm(X)))
    assert len(layer.forward.results) == 1
    layer.linear.weight.grad = None
    torch.autograd.backward(layer(X).sum())  # the answer is known, and is not asked
    assert layer.linear.weight.grad is not None
    with torch.no_grad():
        layer.linear.weight.mul_(2)
        close(layer(X), layer.linear(layer.norm(X)))


@pytest.mark.parametrize("whole", [True, False])
def test_a_module_that_trains_is_another_kind(whole: bool) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        @mugraph.optimize(budget=120.0)
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # torch declares no arguments
            return self.drop(x.exp() + 1.0) * 2.0  # type: ignore[no-any-return]

    layer = Dropping().eval()
    for _ in range(2):
        close(layer(X), (X.exp() + 1) * 2)
    (layer if whole else layer.drop).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorch)
        assert (layer(X) == 0).any()
    layer.eval()
    close(layer(X), (X.exp() + 1) * 2)


def test_a_failure_of_ours_is_no_failure_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **settings: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(decorator, "superoptimize", failing)
    optimized = mugraph.optimize(norm_linear, budget=120.0)
    with pytest.warns(LeftToPyTorch, match="please report this"):
        assert torch.equal(optimized(X, W), norm_linear(X, W))
    with pytest.raises(AssertionError):
        mugraph.optimize(norm_linear, strict=True)(X, W)


def test_copies_of_a_layer_have_answers_of_their_own() -> None:
    layer = Layer().requires_grad_(False)
    layer(X)
    other = copy.deepcopy(layer)
    other.linear.weight.mul_(3)
    close(other(X), other.linear(other.norm(X)))
    read = pickle.loads(pickle.dumps(layer))
    close(read(X), layer(X))
    assert layer.forward is not other.forward


def test_other_tensors_of_the_function_are_optimized_for_anew() -> None:
    layer = Layer().requires_grad_(False)
    layer(X)
    layer.linear = nn.Linear(32, 24).requires_grad_(False)
    close(layer(X), layer.linear(layer.norm(X)))
    assert len(layer.forward.answers) == 1
    layer.bfloat16()
    assert layer(X.bfloat16()).dtype is torch.bfloat16


def test_a_module_keeps_what_it_has() -> None:
    model = nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 16)).requires_grad_(False)
    optimized = mugraph.optimize(model, budget=120.0)
    assert [*optimized.parameters()] == [*model.parameters()]
    close(optimized(X), model(X))
    assert len(optimized.results) == 1
    model.train(False)
    close(optimized(X), model(X))
    assert len(optimized.answers) == 2
    with pytest.raises(AttributeError):
        optimized.nothing  # noqa: B018


def test_what_is_set_of_an_optimized_module_is_the_modules() -> None:
    """It is read there: what stood beside it did nothing."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(32, 16), 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.linear.weight, self.linear.bias) * self.scale

    model = Scaled().eval()
    optimized = mugraph.optimize(model, budget=120.0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorch)
        close(optimized(X), model(X))
        before = model(X)
        optimized.scale = 4.0
        assert model.scale == 4.0
        close(optimized(X), 2 * before)
        optimized.linear = nn.Linear(32, 16)
        assert model.linear is optimized.linear
        assert len(list(model.parameters())) == 2
        close(optimized(X), model(X))
    del optimized.scale
    assert not hasattr(model, "scale")
    assert optimized.settings.budget == 120.0


class Stepping(nn.Module):
    """Has attributes of such names as its stand-in has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self._step, self._latest, self.results = nn.Linear(32, 16), 2.0, 3.0, 4.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.linear.weight, self.linear.bias) * self._step * self._latest * self.results


def test_private_names_of_a_module_are_its_own_and_names_of_what_stands_for_it_are_not() -> None:
    """A private one did nothing where it was set, and others were read elsewhere than they were set."""
    model = Stepping().eval()
    optimized: Any = mugraph.optimize(model, budget=120.0)
    assert model._latest == 3.0
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorch)
        before = optimized(X)
        optimized._step = 4.0
        assert model._step == optimized._step == 4.0
        close(optimized(X), 2 * before)
    optimized._note = "kept"
    assert not hasattr(model, "_note")
    with pytest.raises(AttributeError):
        optimized.results = 5.0
    assert model.results == 4.0
    with pytest.raises(AttributeError):
        del optimized.nothing


def test_methods_that_give_the_module_itself_give_what_stands_for_it() -> None:
    """`optimize(model).eval()` was the model, which no kernels run."""
    model = Stepping()
    optimized: Any = mugraph.optimize(model, budget=120.0)
    assert optimized.eval() is optimized.requires_grad_(False).to(torch.float64) is optimized
    assert not model.training
    assert model.linear.weight.dtype is torch.float64
    assert optimized.get_submodule("linear") is model.linear


def test_a_model_whose_forward_is_optimized_can_be_exported() -> None:
    layer = Layer().eval()
    with torch.no_grad():
        exported = torch.export.export(layer, (X,)).module()
        close(exported(X), layer(X))


def test_what_is_no_program_runs_in_pieces() -> None:
    def shifted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return norm_linear(x.logcumsumexp(0), w)[:, 1:]

    optimized = mugraph.optimize(shifted, budget=120.0)
    x, weight = torch.randn(8, 512), torch.randn(512, 1024)
    close(optimized(x, weight), shifted(x, weight))
    (result,) = optimized.results
    assert isinstance(result, Partitioned)
    assert "logcumsumexp" in {left.node.name for left in result.cut.partition.left}
    close(optimized(x, weight), shifted(x, weight))
    w = weight.clone().requires_grad_()
    torch.autograd.backward(optimized(x, w).sum())
    assert w.grad is not None


def test_a_look_into_tensors_leaves_the_function_which_is_not_called_once_more() -> None:
    seen: list[torch.Tensor] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        if x.sum() > 0:
            seen.append(x)
        return x * 2

    optimized = mugraph.optimize(counted, budget=120.0)
    with pytest.warns(LeftToPyTorch, match="control flow depends on the values .*torch.compile"):
        assert torch.equal(optimized(torch.ones(4)), torch.full((4,), 4.0))
    assert len(seen) == 1


def test_what_has_no_kernels_runs_as_ever() -> None:
    optimized = mugraph.optimize(lambda x: x.logcumsumexp(0)[1:], budget=120.0)
    with pytest.warns(LeftToPyTorch, match="no piece of it runs as kernels.*logcumsumexp"):
        assert torch.equal(optimized(X), X.logcumsumexp(0)[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(optimized(X), X.logcumsumexp(0)[1:])
    with pytest.warns(LeftToPyTorch, match="index: its shape depends on the values of a tensor"):
        mugraph.optimize(lambda x: x[x > 0], budget=120.0)(X)
    with pytest.warns(LeftToPyTorch, match="runs as PyTorch runs it: it computes nothing of tensors$"):
        assert mugraph.optimize(lambda x: None, budget=120.0)(X) is None
    strict = mugraph.optimize(lambda x: x.logcumsumexp(0)[1:], strict=True)
    with pytest.raises(UnsupportedOperator):
        strict(X)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("branches", [True, False])
def test_what_changes_its_inputs_runs_once(grad: bool, branches: bool) -> None:
    def changing(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        if branches and x.sum() > 0:
            return x.logcumsumexp(0)
        return x.logcumsumexp(1)

    x = torch.zeros(4, 8)
    optimized = mugraph.optimize(changing, budget=120.0)
    with torch.set_grad_enabled(grad):
        for call in (1.0, 2.0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LeftToPyTorch)
                assert torch.equal(optimized(x), torch.full((4, 8), call).logcumsumexp(0 if branches else 1))
            assert torch.equal(x, torch.full((4, 8), call))
    assert not optimized.results


def test_modules_that_a_function_reaches_decide_about_its_kind_of_calls() -> None:
    class Engine:
        def __init__(self) -> None:
            self.model = nn.Sequential(nn.Linear(32, 16), nn.Dropout(0.5)).eval()

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).exp()  # type: ignore[no-any-return]

    engine = Engine()
    model = engine.model
    for function in (engine.step, lambda x: model(x).exp()):
        optimized = mugraph.optimize(function, budget=120.0)
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore", LeftToPyTorch)
            for _ in range(2):
                close(optimized(X), function(X))
            model[1].train()
            assert (optimized(X) == 1).any()  # exp of what was dropped
            model.eval()
            close(optimized(X), function(X))


def test_a_module_that_is_put_together_otherwise_is_another_kind() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU()).eval()
    optimized = mugraph.optimize(model, budget=120.0)
    with torch.inference_mode():
        for _ in range(2):
            close(optimized(X), model(X))
        model[1] = nn.GELU()
        close(optimized(X), model(X))
        hook = model[0].register_forward_hook(lambda module, args, result: 3 * result)
        close(optimized(X), model(X))
        hook.remove()
        before = model[1].register_forward_pre_hook(lambda module, args: (args[0] - 1,))
        close(optimized(X), model(X))
        before.remove()
        close(optimized(X), model(X))
    assert len(optimized.answers) == 4


def test_a_module_that_is_replaced_by_one_of_its_class_is_looked_into() -> None:
    inner = nn.Sequential(nn.Linear(32, 16), nn.ReLU())
    model = nn.Sequential(inner).eval()
    optimized = mugraph.optimize(model, budget=120.0)
    with torch.inference_mode():
        for _ in range(2):
            close(optimized(X), model(X))
        model[0] = nn.Sequential(inner[0], nn.GELU())
        close(optimized(X), model(X))


def test_a_name_that_leads_to_another_module_is_noticed() -> None:
    before: nn.Module = nn.ReLU()
    after: nn.Module = before

    def function(x: torch.Tensor) -> torch.Tensor:
        return after(before(x) @ W - 1)  # type: ignore[no-any-return]

    optimized = mugraph.optimize(function, budget=120.0)
    with torch.inference_mode():
        for _ in range(2):
            close(optimized(X), function(X))
        after = nn.Tanh()
        close(optimized(X), function(X))
        before = nn.Tanh()
        close(optimized(X), function(X))
    assert len(optimized.answers) == 3


@pytest.mark.parametrize("dynamic", [True, None])
def test_arguments_that_only_have_a_place_beside_others_that_only_have_a_name(dynamic: bool | None) -> None:
    def scaled(x: torch.Tensor, /, *, by: float) -> torch.Tensor:
        return x * by

    def named(x: torch.Tensor, **settings: float) -> torch.Tensor:
        return x * settings["by"]

    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorch)
        for function in (scaled, named):
            assert torch.equal(mugraph.optimize(function, dynamic=dynamic)(X, by=2.0), X * 2)
        assert torch.equal(mugraph.optimize(torch.add, dynamic=dynamic)(X, X, alpha=2), X * 3)
        with pytest.raises(TypeError):
            mugraph.optimize(scaled, dynamic=dynamic)(X, to=2.0)  # type: ignore[call-arg]


class Scale:
    """An object as functions get their settings in."""

    def __init__(self, by: float, shifts: list[float]) -> None:
        self.by, self.shifts = by, shifts


def test_an_object_that_changes_is_another_kind() -> None:
    def scaled(x: torch.Tensor, scale: Scale) -> torch.Tensor:
        return torch.softmax(x * scale.by + x * scale.shifts[0], -1)

    optimized, scale = mugraph.optimize(scaled, budget=120.0), Scale(2.0, [1.0])
    with torch.inference_mode():
        close(optimized(X, scale), scaled(X, scale))
        scale.by = 5.0
        close(optimized(X, scale), scaled(X, scale))
        scale.shifts[0] = -3.0
        close(optimized(X, scale), scaled(X, scale))
        assert len(optimized.answers) == 3
        close(optimized(X, Scale(5.0, [-3.0])), scaled(X, scale))
        assert len(optimized.answers) == 3


@pytest.mark.filterwarnings("ignore::mugraph.errors.LeftToPyTorch")  # there are no kernels for float64
def test_the_type_of_new_tensors_belongs_to_the_kind() -> None:
    def added(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + torch.ones(32), -1)

    optimized = mugraph.optimize(added, budget=120.0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            x = X.bfloat16()
            assert optimized(x).dtype is added(x).dtype is dtype
        finally:
            torch.set_default_dtype(torch.float32)


def test_who_watches_torch_functions_sees_them(optimized: Optimized[..., torch.Tensor]) -> None:
    class Counting(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += func is torch.rsqrt
            return func(*args, **(kwargs or {}))

    optimized(X, W)
    with Counting() as counting:
        close(optimized(X, W), norm_linear(X, W))
    assert counting.seen == 2
    assert len(optimized.results) == 1


class Forgotten(Optimized[..., torch.Tensor]):
    """Another thread forgets the latest answer as soon as a call has looked at it."""

    @property
    def _latest(self) -> Any:
        latest, self.__dict__["latest"] = self.__dict__.get("latest"), None
        return latest

    @_latest.setter
    def _latest(self, latest: Any) -> None:
        self.__dict__["latest"] = latest


def test_an_answer_that_another_thread_forgets_is_looked_up(optimized: Optimized[..., torch.Tensor]) -> None:
    forgotten = Forgotten(norm_linear, optimized.settings)
    for _ in range(3):
        close(forgotten(X, W), norm_linear(X, W))


def test_an_index_out_of_range_costs_no_kernels() -> None:
    table = torch.randn(20, 32)
    optimized = mugraph.optimize(lambda places: torch.softmax(table[places] @ W, -1), budget=120.0)
    places = torch.arange(8)
    first = optimized(places)
    with pytest.raises(IndexError, match="out of range"):
        optimized(places + 50)
    assert len(optimized.results) == 1
    close(optimized(places), first)


def test_tensors_that_share_memory_are_changed_as_the_function_does() -> None:
    def changing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return torch.softmax(x, -1) + y

    optimized = mugraph.optimize(changing, budget=120.0)
    with torch.inference_mode():
        optimized(X.clone(), X.clone())
        ours, theirs = torch.arange(40.0).view(5, 8), torch.arange(40.0).view(5, 8)
        for first, second in ((slice(0, 4), slice(1, 5)), (slice(0, 4), slice(0, 4))):
            optimized(ours[first].clone(), ours[second].clone())
            close(optimized(ours[first], ours[second]), changing(theirs[first], theirs[second]))
            assert torch.equal(ours, theirs)
    assert optimized.results


def test_slower_kernels_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = BaselineComparison({EAGER: Duel.of([2e-6] * 5, [1e-6] * 5)})
    monkeypatch.setattr("mugraph.selection.own_function.compare", lambda *call, **settings: lost)
    optimized = mugraph.optimize(norm_linear, budget=120.0)
    with pytest.warns(LeftToPyTorch, match=r"not clearly faster \(0.50 times"):
        assert torch.equal(optimized(X, W), norm_linear(X, W))
    assert not optimized.results


def test_one_answer_for_a_range_of_sizes() -> None:
    batch = mugraph.Dim("batch", 2, 6)
    optimized = mugraph.optimize(norm_linear, dynamic={0: {0: batch}}, budget=120.0)
    for size in (2, 4, 6):
        x = torch.randn(size, 32)
        close(optimized(x, W), norm_linear(x, W))
    assert len(optimized.answers) == 1
    with pytest.raises(ShapeMismatch, match="batch has size 7"):
        optimized(torch.randn(7, 32), W)


def test_sizes_that_turn_out_to_vary_have_one_answer() -> None:
    optimized = mugraph.optimize(norm_linear, dynamic=True, budget=120.0)
    for size in (4, 3, 4, 8, 1, 5):
        x = torch.randn(size, 32)
        close(optimized(x, W), norm_linear(x, W))
    assert len(optimized.answers) == 2, "the first size, and all others"
    x = torch.randn(9, 32)
    close(optimized(x, w=W), norm_linear(x, W))  # beyond twice the largest; here by name, and so a first call of its kind
    *_, alone = optimized.answers.values()
    assert isinstance(alone.result, mugraph.Superoptimized)
    x = torch.randn(40, 32)
    close(optimized(x, W), norm_linear(x, W))
    assert len(optimized.answers) == 4, "a larger range"
    assert torch.equal(optimized(torch.randn(0, 32), W), torch.empty(0, W.shape[1]))


def test_a_tensor_that_is_brought_along_may_be_replaced_where_sizes_vary() -> None:
    linear = nn.Linear(32, 24, bias=False).requires_grad_(False)
    optimized = mugraph.optimize(lambda x: torch.relu(linear(x)) * 2, dynamic=True, budget=120.0)
    with torch.inference_mode():
        for size in (4, 3):
            optimized(torch.randn(size, 32))
        linear.weight = nn.Parameter(torch.randn(24, 32), requires_grad=False)
        x = torch.randn(5, 32)
        close(optimized(x), torch.relu(linear(x)) * 2)


@pytest.mark.parametrize("grad", [True, False])
def test_one_answer_for_a_range_of_a_function_that_runs_in_pieces(grad: bool) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.logcumsumexp(-1) * 2, -1)

    optimized = mugraph.optimize(fn, dynamic={0: {0: mugraph.Dim("batch", 2, 6)}}, budget=120.0)
    with torch.set_grad_enabled(grad):
        for size in (4, 3, 6, 5):
            x = torch.randn(size, 32)
            close(optimized(x), fn(x))
    (result,) = optimized.results
    assert isinstance(result, DynamicSuperoptimized)
    assert result.pieced is not None
    assert not any(made.is_one_program for made in result.table.values())
    assert {*result.specializations} == {*result.table}, "nothing was compiled for other sizes"
    with torch.enable_grad():
        assert optimized(torch.randn(3, 32).requires_grad_()).requires_grad


@pytest.mark.parametrize("captured", [True, False])
def test_a_range_at_capacities_knows_whether_gradients_are_wanted(captured: bool) -> None:
    """Of such a range no size was compiled for, and what the function brings along is the masked graph's."""
    keys = mugraph.Dim("keys", 1, 60)
    linear = nn.Linear(16, 16, bias=False).requires_grad_(captured)

    def decode(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(linear(q) @ k.transpose(-1, -2), -1) @ k

    inputs = torch.randn(2, 1, 16), torch.randn(2, 7, 16)
    result = DynamicSuperoptimized(decode, {1: {1: keys}}, {}, mugraph.superoptimize)
    with torch.no_grad():
        result.capacities = CapacityTable(masked_function(decode, result.declared, inputs, {}), fn=decode)
    assert decorator._brings_gradients(result) is captured
    linear.requires_grad_(not captured)
    assert decorator._brings_gradients(result) is not captured
    with torch.no_grad():
        assert not decorator._brings_gradients(result)


def test_tensors_without_numbers_and_mapped_ones(optimized: Optimized[..., torch.Tensor]) -> None:
    close(torch.vmap(optimized, in_dims=(0, None))(X[:, None], W)[:, 0], norm_linear(X, W))
    tangent = torch.func.jvp(lambda x: optimized(x, W), (X,), (X,))[1]
    close(tangent, torch.func.jvp(lambda x: norm_linear(x, W), (X,), (X,))[1])
    compiled = torch.compile(lambda x, w: optimized(x, w) + 1, backend="eager", fullgraph=True)
    close(compiled(X, W), norm_linear(X, W) + 1)
    traced = torch.jit.trace(lambda x, w: optimized(x, w) + 1, (X, W), check_trace=False)  # type: ignore[no-untyped-call]
    close(traced(2 - X, W), norm_linear(2 - X, W) + 1)


def test_a_copy_of_an_optimized_module_has_tensors_of_its_own(optimized: Optimized[..., torch.Tensor]) -> None:
    model = nn.Linear(32, 8).requires_grad_(False)
    model.other_way = mugraph.optimize(model)  # type: ignore[assignment]
    copied: Any = copy.deepcopy(mugraph.optimize(model))
    x, expected = torch.ones(2, 32), model(torch.ones(2, 32))
    model.weight.mul_(2)
    close(copied.fn(x), expected)
    close(copied.fn.other_way.fn(x), expected)
    assert copied.fn.other_way.fn is copied.fn
    assert copy.deepcopy(optimized) is optimized


def test_values_that_have_no_hash() -> None:
    optimized = mugraph.optimize(lambda x, sizes: x * len(sizes), budget=120.0)
    with pytest.warns(LeftToPyTorch, match="neither a tensor nor a value"):
        assert torch.equal(optimized(X, {1, 2}), X * 2)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"target": "tpu"}, TargetUnavailable, "unknown target 'tpu'"),
        ({"dynamic": "batch"}, InvalidInput, "dynamic='batch': declare dimensions .* or say True"),
        ({"dynamic": True, "background": True}, InvalidInput, "leave dynamic out"),
        ({"budget": -1.0}, InvalidInput, "budget"),
        ({"max_error": 2.0}, InvalidInput, "max_error|error"),
        ({"space": "small"}, InvalidInput, "SearchSpace"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mugraph.optimize(norm_linear, **settings)


def test_only_functions_are_optimized() -> None:
    with pytest.raises(InvalidInput, match="a function or module, not a int"):
        mugraph.optimize(3)  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", ["an argument", "a parameter"])
def test_results_warn_where_gradients_are_dropped(kind: str) -> None:
    linear = nn.Linear(32, 16)
    fn = linear if kind == "a parameter" else nn.functional.silu
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt = mugraph.superoptimize(fn, (X,), budget=10.0)
        with torch.no_grad():
            opt(X)
    x = X if kind == "a parameter" else X.clone().requires_grad_()
    with pytest.warns(GradientsDropped, match=r"requires a gradient.*torch.no_grad\(\)") as seen:
        assert not opt(x).requires_grad
    assert {warning.filename for warning in seen} == {__file__}


def test_programs_warn_where_gradients_are_dropped() -> None:
    program = mugraph.Program()
    program.output(program.input("x", (4, 32)).exp())
    opt = mugraph.superoptimize(program, budget=10.0)
    with pytest.warns(GradientsDropped, match="an input requires a gradient"):
        opt(X.clone().requires_grad_())


class Scaled(nn.Module):
    """Reads numbers by every kind of name, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale, self.calls = nn.Linear(32, 16), 2.0, 0
        self.inner.offset = 1.0  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.softmax(self.inner(x) * self.scale, -1) + self.inner.offset  # type: ignore[operator]


def test_a_number_of_a_module_that_is_changed_is_noticed() -> None:
    model = Scaled()
    fast = mugraph.optimize(model, budget=120.0)
    with torch.inference_mode():
        for _ in range(2):
            close(fast(X), model(X))
        assert len(fast.results) == 1
        for holder, name, value in ((model, "scale", 3.0), (model.inner, "offset", -1.0)):
            before = getattr(holder, name)
            setattr(holder, name, value)
            with pytest.warns(LeftToPyTorch, match=f"{name} is not what it was .*optimize the function anew"):
                close(fast(X), model(X))
            setattr(holder, name, before)
            calls = model.calls
            fast(X)
            assert model.calls == calls, "kernels answer again, whatever the function counts"


FACTOR = 2.0


def test_a_number_of_a_closure_a_global_or_a_dict_that_is_changed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    shift, options = 1.0, {"power": 2.0}

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x @ w, -1) * FACTOR + shift) * options["power"]

    fast = mugraph.optimize(plain, budget=120.0)
    close(fast(X, W), plain(X, W))
    assert len(fast.results) == 1
    options["power"] = 3.0
    with pytest.warns(LeftToPyTorch, match="power is not what it was"):
        close(fast(X, W), plain(X, W))
    options["power"], shift = 2.0, 5.0
    with pytest.warns(LeftToPyTorch, match="shift is not what it was"):
        close(fast(X, W), plain(X, W))
    shift = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(fast(X, W), plain(X, W))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 7.0)
    with pytest.warns(LeftToPyTorch, match="FACTOR is not what it was"):
        close(fast(X, W), plain(X, W))


def test_what_is_not_a_number_that_was_changed_is_the_same_number() -> None:
    model = Scaled()
    model.scale = float("nan")
    fast = mugraph.optimize(model, budget=120.0)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(X)
        model.scale = float("nan")
        fast(X)
    model.scale = 0.0
    again = mugraph.optimize(model, budget=120.0)
    with torch.inference_mode():
        again(X)
        model.scale = -0.0
        with pytest.warns(LeftToPyTorch, match="scale is not what it was"):
            again(X)


def test_an_attribute_that_no_code_of_the_function_names_may_change() -> None:
    class Service:
        def __init__(self) -> None:
            self.weight, self.sharpness, self.requests = W, 2.0, 0

        @property
        def sharp(self) -> float:
            return self.sharpness * 2

        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.sharp

        def answer(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.scaled(x) @ self.weight, -1)

    service = Service()
    fast = mugraph.optimize(service.answer, budget=120.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            close(fast(X), service.answer(X))
            service.requests += 1
    assert len(fast.results) == 1
    service.sharpness = 5.0
    with pytest.warns(LeftToPyTorch, match="sharpness is not what it was"):
        close(fast(X), service.answer(X))


def test_a_decorated_method_of_a_plain_object_answers_by_kernels_until_the_object_changes() -> None:
    class Service:
        def __init__(self) -> None:
            self.weight, self.sharpness = W, 2.0

        @mugraph.optimize(budget=120.0)
        def answer(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ self.weight * self.sharpness, -1)

    service = Service()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            service.answer(X)
    assert len(service.answer.results) == 1
    service.sharpness = 5.0
    with pytest.warns(LeftToPyTorch, match="sharpness is not what it was"):
        close(service.answer(X), torch.softmax(X @ W * 5.0, -1))


class Scaling(nn.Module):
    """Multiplies by a number of its own."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * self.scale, -1)


class InLists(nn.Module):
    """Has modules and numbers in containers, of which PyTorch knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.after, self.numbers = nn.Linear(32, 16), [Scaling(2.0)], {"shift": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x) + self.numbers["shift"]
        for each in self.after:
            x = each(x)
        return x


def answered_as_ever(fast: Optimized[..., torch.Tensor], function: Callable[..., torch.Tensor]) -> None:
    """Both give the same, whoever answers."""
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorch)
        for _ in range(2):
            close(fast(X), function(X))


def other_forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def test_a_forward_that_is_replaced_is_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(32, 16), Scaling(2.0)).eval()
    fast = mugraph.optimize(model, budget=120.0)
    answered_as_ever(fast, model)
    model[1].forward = types.MethodType(other_forward, model[1])
    answered_as_ever(fast, model)
    assert len(fast.answers) == 2
    del model[1].forward
    answered_as_ever(fast, model)
    assert len(fast.answers) == 2, "it is the first one again"
    monkeypatch.setattr(Scaling, "forward", other_forward)
    answered_as_ever(fast, model)
    assert len(fast.answers) == 3


def test_what_another_forward_reaches_is_noticed() -> None:
    model, inner, shift = nn.Sequential(nn.Linear(32, 16), nn.ReLU()).eval(), Scaling(2.0), 1.0
    model[1].forward = lambda x: inner(x) + shift
    fast = mugraph.optimize(model, budget=120.0)
    answered_as_ever(fast, model)
    assert len(fast.results) == 1
    shift = 2.0
    answered_as_ever(fast, model)
    shift, inner.scale = 1.0, 3.0
    answered_as_ever(fast, model)
    inner = Scaling(4.0)
    answered_as_ever(fast, model)


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_modules_in_a_list_or_dict_are_looked_at(large: bool) -> None:
    layers: list[nn.Module] = [nn.Identity() for _ in range(40 * large)] + [nn.Linear(32, 16), Scaling(2.0)]
    named: dict[str, nn.Module] = {"last": nn.Tanh()}

    def function(x: torch.Tensor) -> torch.Tensor:
        for layer in (*layers, *named.values()):
            x = layer(x)
        return x

    fast = mugraph.optimize(function, budget=120.0)

    def change() -> Iterator[str]:
        yield "nothing"
        layers[-1].scale = 3.0  # type: ignore[assignment]
        yield "a number"
        layers[-1] = Scaling(4.0)
        yield "a module of the same class"
        layers[-1] = nn.GELU()
        yield "one of another"
        layers.append(nn.Sigmoid())
        yield "one more"
        layers[-2:] = layers[:-3:-1]
        yield "another order"
        named["last"] = nn.ReLU()
        yield "another one in a dict"
        named["later"] = Scaling(0.5)
        yield "one more there"
        layers[-1].forward = lambda x: x + 1
        yield "what one computes"
        layers.pop()
        yield "one less"

    for _ in change():
        answered_as_ever(fast, function)
    assert fast.results


def test_what_a_module_has_in_lists_and_dicts_is_looked_at() -> None:
    model = InLists().eval()
    fast = mugraph.optimize(model, budget=120.0)

    def change() -> Iterator[str]:
        yield "nothing"
        model.numbers["shift"] = 5.0
        yield "a number"
        model.numbers = {"shift": 6.0}
        yield "another dict"
        model.after[0].scale = 3.0
        yield "a number of a module in a list"
        model.after[0] = Scaling(4.0)
        yield "another module"
        model.after.append(Scaling(0.5))
        yield "one more"
        model.after = []
        yield "none"

    for _ in change():
        answered_as_ever(fast, model)
    assert len(fast.results) >= 1


def test_a_module_of_the_same_class_has_numbers_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(32, 16), Scaling(2.0)).eval()
    fast = mugraph.optimize(model, budget=120.0)
    answered_as_ever(fast, model)
    model[1] = Scaling(4.0).eval()
    answered_as_ever(fast, model)


def test_a_list_that_the_function_adds_to_is_no_other_one() -> None:
    seen = list[int]()

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(seen))
        return torch.softmax(x @ W, -1)

    fast = mugraph.optimize(function, budget=120.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            close(fast(X), torch.softmax(X @ W, -1))
    assert len(fast.results) == 1


def test_a_list_of_numbers_that_grows_is_noticed() -> None:
    scales = [2.0]

    def function(x: torch.Tensor) -> torch.Tensor:
        for scale in scales:
            x = torch.softmax(x @ W * scale, -1) @ W.T
        return x

    fast = mugraph.optimize(function, budget=120.0)
    answered_as_ever(fast, function)
    scales.append(0.5)
    answered_as_ever(fast, function)


def scaled_by(self: Any, x: torch.Tensor) -> Any:
    return torch.softmax(x * self.factor, -1)


@pytest.mark.parametrize("reads", ["function", "wrapped", "partial"])
def test_a_number_of_a_module_that_another_function_reads_is_noticed(reads: str) -> None:
    model: Any = nn.Linear(32, 16).eval()
    model.factor = 2.0

    def function(x: torch.Tensor) -> Any:
        return model(x) * model.factor

    def wrapped(x: torch.Tensor) -> Any:
        return scaled_by(model, x)

    if reads != "function":
        model.forward = functools.partial(scaled_by, model) if reads == "partial" else wrapped
    usual = function if reads == "function" else model
    fast = mugraph.optimize(usual, budget=120.0)
    answered_as_ever(fast, usual)
    assert len(fast.results) == 1
    model.factor = 3.0
    answered_as_ever(fast, usual)


def test_hooks_of_all_modules_are_noticed() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.Softmax(-1)).eval()
    fast = mugraph.optimize(model, budget=120.0)
    answered_as_ever(fast, model)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda _, __, result: result + 1)
    try:
        answered_as_ever(fast, model)
    finally:
        hook.remove()
    answered_as_ever(fast, model)


class Attending(nn.Module):
    """Reads numbers of settings that it shares with other modules, as layers of models do."""

    def __init__(self, config: types.SimpleNamespace) -> None:
        super().__init__()
        self.config, self.linear = config, nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x) * self.config.scale, -1) + self.config.inner["shift"]  # type: ignore[no-any-return]


def test_numbers_of_settings_that_modules_within_hold_are_noticed() -> None:
    config = types.SimpleNamespace(scale=2.0, inner={"shift": 1.0})
    model = nn.Sequential(nn.Linear(32, 32), Attending(config)).eval()
    fast = mugraph.optimize(model, budget=120.0)
    answered_as_ever(fast, model)
    assert len(fast.results) == 1
    for change, name in ((lambda: vars(config).update(scale=3.0), "scale"), (lambda: config.inner.update(shift=5.0), "shift")):
        change()
        with torch.inference_mode(), pytest.warns(LeftToPyTorch, match=f"{name} is not what it was"):
            close(fast(X), model(X))
        config.scale, config.inner["shift"] = 2.0, 1.0
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error")
        close(fast(X), model(X))


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nothing has kernels, which is found out at once; the fixture counts how often it was."""
    asked = list[int]()

    def optimized(self: Any, *call: Any) -> decorator.Answer:
        asked.append(len(asked))
        return decorator.Answer(reason="there are none")

    monkeypatch.setattr(Optimized, "_optimized", optimized)
    return asked


@pytest.mark.filterwarnings("ignore::mugraph.errors.LeftToPyTorch")
def test_answers_of_kinds_that_do_not_come_again_go(without_kernels: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decorator, "_MOST_ANSWERS", 3)
    model = nn.Sequential(nn.Linear(32, 16), Scaling(2.0)).eval()
    fast = mugraph.optimize(model)
    with torch.inference_mode():
        fast(X)
        for number in range(8):
            model[1].forward = lambda x, by=number: x * by
            close(fast(X), model(X))
            del model[1].forward
            fast(X)
    assert len(fast.answers) == 3
    assert len(without_kernels) == 9, "the kind that comes again has kept its answer"


@pytest.mark.filterwarnings("ignore::mugraph.errors.LeftToPyTorch")
def test_a_method_that_is_bound_anew_for_each_call_is_of_one_kind(without_kernels: list[int]) -> None:
    model = nn.Sequential(nn.Linear(32, 16), Scaling(2.0)).eval()
    fast = mugraph.optimize(model)
    with torch.inference_mode():
        for _ in range(4):
            model[1].forward = types.MethodType(other_forward, model[1])
            close(fast(X), model(X))
    assert len(fast.answers) == len(without_kernels) == 1
