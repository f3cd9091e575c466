"""What cannot be a program is refused with one line that names the thing at fault and the remedy."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor

import mugraph.frontend
from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch, UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS

from ..agreement import assert_agrees

X = torch.randn(3, 4)
WEIGHT = torch.randn(4, 4)
KEPT: list[torch.Tensor] = []


class Image(torch.Tensor):
    """A tensor that says what it is."""


OF_A_CLASS = WEIGHT.as_subclass(Image)
TWO: torch.Tensor = TwoTensor(X, X)  # type: ignore[no-untyped-call]  # torch's


def refusal(fn: Any, inputs: Any) -> MugraphError:
    with pytest.raises(MugraphError) as raised:
        trace(fn, inputs)
    assert "\n" not in str(raised.value)
    return raised.value


def cumulative(x: torch.Tensor) -> torch.Tensor:
    return torch.logcumsumexp(x, 0)


def branching(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def adding_in_place(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def writing_into_a_view(x: torch.Tensor) -> torch.Tensor:
    x.t()[0] = 0
    return x * 2


def changing_what_it_closes_over(x: torch.Tensor) -> torch.Tensor:
    WEIGHT.mul_(2)
    return x @ WEIGHT


def mismatched(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (cumulative, UnsupportedOperator, r"aten\.logcumsumexp \(test_refusals\.py:\d+\)"),
        (lambda x: torch.where(x > 0, torch.cummax(x, 0)[0], x), UnsupportedOperator, r"aten\.cummax"),
        (lambda x: torch.lgamma(x), UnsupportedOperator, r"aten\.lgamma"),
        (lambda x: x.argmax(-1), UnsupportedOperator, r"aten\.argmax"),
        (lambda x: x.max(-1).indices, UnsupportedOperator, "torch.int64; only floating-point"),
        (lambda x: x.int() * 2, UnsupportedOperator, "torch.int32; only floating-point"),
        (lambda x: x[:, :0] + 1, UnsupportedOperator, "part of a tensor without elements"),
        (lambda x: x + torch.rand_like(x), UnsupportedOperator, "draws random numbers"),
        (lambda x: F.dropout(x, 0.5), UnsupportedOperator, r"draws random numbers.*model\.eval"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT), UnsupportedOperator, "masked attention"),
        (
            branching,
            UnsupportedOperator,
            r"branching \(test_refusals\.py:\d+\): control flow depends on the values .*torch\.compile",
        ),
        (lambda x: x * x.sum().item(), UnsupportedOperator, "values of a tensor"),
        (adding_in_place, InvalidInput, "adding_in_place changes its argument x in place"),
        (writing_into_a_view, InvalidInput, "changes its argument x in place"),
        (changing_what_it_closes_over, InvalidInput, "changes a tensor it closes over"),
        (mismatched, ShapeMismatch, r"mismatched \(test_refusals\.py:\d+\).*\[3, 4\] X \[3, 3\]"),
        (lambda x: x.view(5, 5), ShapeMismatch, r"\[5, 5\]"),
        (lambda x: x.no_such_method(), InvalidInput, "AttributeError.*no_such_method"),
        (lambda x: 1 // 0, InvalidInput, "ZeroDivisionError"),
        (lambda x: sys.exit(0), InvalidInput, "cannot be traced: SystemExit"),
        (lambda x: None, InvalidInput, "returns no tensor"),
        (lambda x: 3, InvalidInput, "returns no tensor"),
    ],
)
def test_functions(fn: Callable[..., Any], error: type[MugraphError], words: str) -> None:
    refused = refusal(fn, X)
    assert isinstance(refused, error)
    with pytest.raises(error, match=words):
        raise refused


def test_a_module_that_updates_its_buffers() -> None:
    refused = refusal(torch.nn.BatchNorm1d(4), X)
    assert "changes num_batches_tracked in place" in str(refused) or "changes running_mean in place" in str(refused)


def test_a_module_with_an_integer_buffer() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = torch.nn.Buffer(torch.arange(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.steps

    assert "operand 1 of shape [4] is int64; of integers only index_select can read places" in str(refusal(Scaled(), X))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (torch.arange(4).short(), "argument x has dtype torch.int16; use float16"),
        (torch.ones(4, dtype=torch.complex64), "argument x has dtype torch.complex64"),
        (torch.ones(4).to(torch.float8_e5m2fnuz), "has dtype torch.float8_e5m2fnuz; use .* float8_e4m3fn or float8_e5m2$"),
        (torch.ones(4, 0), r"argument x has shape \[4, 0\] without elements"),
        (torch.ones(4, 4).to_sparse(), "argument x is torch.sparse_coo; use a dense tensor"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "argument x is a nested tensor; use"),
        ((np.ones(4),), "argument x of .* is a NumPy array; pass torch.from_numpy"),
        ((2.0,), "called without a tensor"),
        ((X, X), "too many positional arguments"),
        ((), "missing a required argument"),
        ("text", "example_inputs must be a tuple of tensors, not str"),
        (None, "example_inputs must be a tuple of tensors, not NoneType"),
    ],
)
def test_inputs(inputs: Any, words: str) -> None:
    refused = refusal(lambda x: x + 1, inputs)
    assert isinstance(refused, InvalidInput)
    with pytest.raises(InvalidInput, match=words):
        raise refused


@pytest.mark.parametrize("given", [X.as_subclass(Image), TWO, torch.masked.masked_tensor(X, X > 0)])
def test_tensors_of_a_class_of_their_own_are_refused_with_a_remedy(given: torch.Tensor) -> None:
    refused = refusal(lambda x: x + 1, (given,))
    assert isinstance(refused, InvalidInput)
    words = (
        rf"argument x of .* is a {type(given).__name__}, .* x.as_subclass\(torch.Tensor\) .* torch.compile\(backend='mugraph'\)$"
    )
    with pytest.raises(InvalidInput, match=words):
        raise refused
    with pytest.raises(InvalidInput, match=words):
        mugraph.superoptimize(lambda x: x + 1, (given,), budget=1.0)


def test_things_that_cannot_be_called() -> None:
    assert "not a function or module" in str(refusal(3, X))
    assert "Slow is a class; give an instance of it" in str(refusal(Slow, X))


def test_nothing_but_the_refusal_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    refusal(branching, X)
    refusal(mismatched, X)
    assert capfd.readouterr() == ("", "")


def test_without_torch_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mugraph.frontend, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="PyTorch is needed to optimize PyTorch functions: pip install torch"):
        trace(lambda x: x, ())
    with pytest.raises(InvalidInput, match="PyTorch is needed for workload lora: pip install torch"):
        WORKLOADS["lora"].inputs()


def test_the_table_of_workloads_does_not_import_torch() -> None:
    import subprocess

    script = "import sys, mugraph.frontend.workloads, mugraph.frontend.files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_what_kernels_cannot_do_names_the_way_that_leaves_it_to_pytorch() -> None:
    with pytest.raises(UnsupportedOperator, match="superoptimize leaves such operators to PyTorch"):
        trace(lambda x: torch.logcumsumexp(x, 0), torch.ones(4, 4))


class Keys:
    """As caches of keys are: objects that a function is given, or has."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []

    def update(self, row: torch.Tensor) -> torch.Tensor:
        self.rows.append(row)
        return torch.cat(self.rows)


class Turning(torch.nn.Module):
    """As rotary embeddings are: a table that grows when it is too short, and what was computed last for somebody to look at."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.table: torch.Tensor | None = None
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None or len(self.table) < len(x):
            self.table = torch.arange(len(x)).float().cos()[:, None]
        turned = x * self.table[: len(x)]
        self.last = turned if self.keeps else None
        return turned


def test_tensors_that_a_function_keeps_are_taken_back() -> None:
    keys = Keys()
    assert "f keeps a tensor in rows.0" in str(refusal(named("f", lambda x, keys: keys.update(x) * 2), (X, keys)))
    assert "g keeps a tensor in keys.rows.0" in str(refusal(named("g", lambda x: keys.update(x) * 2), (X,)))
    assert keys.rows == []
    module, watching = Turning(False), Turning(True)
    trace(module, (X,))
    assert module.table is None, "the function runs as ever"
    module(X), watching(X)
    before = watching.last
    trace(module, (X,))
    assert "Turning keeps a tensor in last" in str(refusal(watching, (X,)))
    assert watching.last is before


@functools.lru_cache
def remembered(size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float64).cos()


class Keeping(torch.nn.Module):
    """`keep` may put tensors into the module before its weight is read."""

    weight: torch.Tensor
    table: torch.Tensor

    def __init__(self, keep: Callable[[Any, torch.Tensor], None]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.rand(X.shape[-1]), persistent=False)
        self.register_buffer("table", torch.rand(X.shape[-1]))
        self.original, self.length, self.keep = self.weight, 0, keep

    @functools.cached_property
    def turns(self) -> torch.Tensor:
        return torch.arange(X.shape[-1], dtype=torch.float64).sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keep(self, x)
        return x * self.weight + self.table


def grown(module: Any, x: torch.Tensor) -> None:
    if module.length < x.shape[-1]:
        module.length, module.table = x.shape[-1], torch.zeros_like(x[0]) + remembered(x.shape[-1]).to(x)


def scaled(module: Any, x: torch.Tensor) -> None:
    module.table = module.weight * module.turns


def the_same(module: Any, x: torch.Tensor) -> None:
    module.register_buffer("weight", module.original.to(x.device), persistent=False)
    module.original = module.original.to(x.device)


@pytest.mark.parametrize("keep", [grown, scaled, the_same])
def test_what_is_made_of_no_argument_may_be_kept(keep: Callable[[Any, torch.Tensor], None]) -> None:
    """A table that grows, a weight that is made of others before each call, a weight that is moved where it is."""
    remembered.cache_clear()
    module = Keeping(keep).double()
    before, held = dict(module.named_buffers()), dict(vars(module))
    trace(module, (X.double(),))
    assert all(each is before[name] for name, each in module.named_buffers()), "the function runs as ever"
    assert vars(module) == held
    assert_agrees(module, X.double())


def lowered(module: Any, x: torch.Tensor) -> None:
    module.table = module.table * 0.5


def written(module: Any, x: torch.Tensor) -> None:
    table = torch.zeros(x.shape[-1])
    table[:1].copy_(x[0, :1])
    module.table = table


def mapped(module: Any, x: torch.Tensor) -> None:
    module.table = torch.vmap(lambda row: row * 2)(x)[0]


def filled(module: Any, x: torch.Tensor) -> None:
    module.table = torch.add(x[0], 1, out=torch.zeros(x.shape[-1]))


def swapped(module: Any, x: torch.Tensor) -> None:
    module.weight, module.table = module.table, module.weight


@pytest.mark.parametrize("keep", [lowered, written, mapped, filled, swapped])
def test_what_the_next_call_would_read_is_not_kept(keep: Callable[[Any, torch.Tensor], None]) -> None:
    """A buffer that is made of what it was, of the argument in several ways, and two that change places."""
    module = Keeping(keep)
    before = dict(module.named_buffers())
    assert "Keeping keeps a tensor in" in str(refusal(module, (X,)))
    assert all(each is before[name] for name, each in module.named_buffers())


def named(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    fn.__name__ = name
    return fn


@pytest.mark.parametrize(
    ("fn", "argument"),
    [
        (lambda x, rows: torch.cat((rows.append(x * 2), rows)[1]), [X]),
        (lambda x, rows: rows.pop("y") + x, {"y": X}),
        (lambda x, rows: (rows.update(z=x * 2), rows["z"] + rows["y"])[1], {"y": X}),
        (lambda x, rows: (rows.__setitem__(0, x * 2), rows[0] + x)[1], [X]),
    ],
)
def test_lists_and_dicts_of_the_caller_stay_as_they_are(fn: Callable[..., Any], argument: Any) -> None:
    words = str(refusal(named("f", fn), (X, argument)))
    assert words.startswith("f changes ")
    assert "copy it first and return what is new" in words
    trace(lambda x, rows: fn(x, type(rows)(rows)), (X, argument))


def test_a_transform_that_is_broken_off_is_left() -> None:
    """Tensors that are made later are in none."""
    error = refusal(lambda x: torch.func.jvp(lambda y: y @ WEIGHT, (x,), (x,))[1], (torch.randn(3, 4),))
    assert "cannot be traced: TypeError" in str(error)
    assert type(torch.ones(2) + 1) is torch.Tensor
    assert not torch._C._functorch.is_functorch_wrapped_tensor(torch.ones(2) + 1)
    assert trace(lambda x: x + 1, (X,)).graph.output_tensors[0].shape == (3, 4)
    assert torch.equal(torch.func.jvp(lambda x: x * 2, (X,), (X,))[1], X * 2)


def keeping(x: torch.Tensor) -> torch.Tensor:
    KEPT.append(x * 2)
    return x


@pytest.mark.parametrize("fn", [branching, mismatched, adding_in_place, cumulative, keeping])
def test_a_refusal_that_says_all_shows_nothing_of_pytorchs_tracer(fn: Callable[..., Any]) -> None:
    shown = "".join(traceback.format_exception(refusal(fn, (X,))))
    assert str(Path(torch.__file__).parent) not in shown
    assert "The above exception" not in shown
    assert "During handling" not in shown


def test_what_nothing_is_known_of_is_shown_below_its_line() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return {"x": x}["y"]

    refused = refusal(broken, (X,))
    assert isinstance(refused, InvalidInput)
    assert isinstance(refused.__cause__, KeyError)
    assert "thread" not in str(refused)
    assert str(Path(torch.__file__).parent) not in "".join(traceback.format_exception(refused))


def of_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.exp(x.numpy()))


def with_a_gradient(x: torch.Tensor) -> torch.Tensor:
    point = x.detach().requires_grad_()
    return torch.autograd.grad(point.exp().sum(), point)[0]


def with_gradients_on(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return with_a_gradient(x)


def backwards(x: torch.Tensor) -> torch.Tensor | None:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        point.exp().sum().backward()  # type: ignore[no-untyped-call]  # torch's
    return point.grad


def with_a_jacobian(x: torch.Tensor) -> torch.Tensor:
    jacobian: torch.Tensor = torch.autograd.functional.jacobian(lambda y: y.exp().sum(), x)  # type: ignore[no-untyped-call]
    return jacobian


def with_a_transform(x: torch.Tensor) -> torch.Tensor:
    gradient: torch.Tensor = torch.func.grad(lambda y: y.exp().sum())(x)
    return gradient


def of_a_class_of_its_own(x: torch.Tensor) -> torch.Tensor:
    return x @ OF_A_CLASS


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (of_numpy, "no numbers for NumPy"),
        (with_a_gradient, "no gradients are recorded"),
        (with_gradients_on, "no gradients of the function's own"),
        (backwards, "no gradients of the function's own"),
        (with_a_jacobian, "no gradients of the function's own"),
        (with_a_transform, "nor in transforms of torch.func"),
        (of_a_class_of_its_own, "captures a tensor of a class of its own"),
    ],
)
def test_what_pytorch_runs_and_cannot_record_names_the_way_that_does(fn: Callable[..., Any], why: str) -> None:
    words = str(refusal(fn, (X,)))
    assert why in words
    assert words.endswith("use torch.compile(backend='mugraph')")


def test_what_an_error_of_ours_came_of_is_still_shown() -> None:
    """As where the function optimizes another one, which PyTorch cannot trace."""

    def outer(x: torch.Tensor) -> torch.Tensor:
        raise InvalidInput("inner cannot be traced") from KeyError("y")

    assert isinstance(refusal(outer, (X,)).__cause__, KeyError)


class Slow(torch.nn.Module):
    """Called by another thread, it says so and waits until it may return."""

    def __init__(self) -> None:
        super().__init__()
        self.recording, self.called, self.may_return = threading.Event(), threading.Event(), threading.Event()
        self.recorder = threading.get_ident()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if threading.get_ident() != self.recorder:
            self.called.set()
            self.may_return.wait(300)
        return x


def test_where_another_thread_calls_the_module_meanwhile_the_refusal_says_so() -> None:
    slow = Slow()
    inner = torch.nn.Sequential(torch.nn.ReLU(), slow)

    def function(x: torch.Tensor) -> Any:
        slow.recording.set()
        slow.called.wait(300)
        return inner(x)

    def calls() -> None:
        slow.recording.wait(300)
        with contextlib.suppress(Exception):  # it is in the tracer, too
            inner(X)

    other = threading.Thread(target=calls)
    other.start()
    try:
        assert "if another thread calls the same module meanwhile" in str(refusal(Outer(function, inner), (X,)))
    finally:
        slow.may_return.set()
        other.join()


class Outer(torch.nn.Module):
    """A module with one inside, which a function calls."""

    def __init__(self, function: Callable[..., Any], inner: torch.nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)
