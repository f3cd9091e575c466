"""Tensors that a function asks for shape, type, device or strides alone: calls look at them as at those that are read."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mugraph
from mugraph.errors import InvalidInput, LeftToPyTorch, MugraphError, ShapeMismatch, UnsupportedOperator
from mugraph.frontend import record, trace
from mugraph.frontend.calls.calling import SignatureRecord
from mugraph.frontend.recording.recorded_graph import recorded_graph
from mugraph.sizes.dims import Declared
from mugraph.sizes.sliced_functions import sliced_function

from ..agreement import assert_agrees

X = torch.randn(3, 4)
ASKED = torch.zeros(5, 2)


class Scaled(torch.nn.Module):
    """Multiplies by a number that it has of a parameter, a buffer or a plain attribute, and of nothing that is in it."""

    def __init__(self, asked: str, table: torch.Tensor) -> None:
        super().__init__()
        self.asked = asked
        self.parameter, self.buffer = torch.nn.Parameter(table.clone()), torch.nn.Buffer(table.clone())
        self.attribute = table.clone()
        self.unused = torch.nn.Parameter(table.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        asked: torch.Tensor = getattr(self, self.asked)
        return x * asked.shape[0]


def of_global(x: torch.Tensor) -> torch.Tensor:
    return x * ASKED.shape[0]


Rebind = Callable[[torch.Tensor], None]
Made = tuple[Callable[..., Any], Rebind]


def global_one(monkeypatch: pytest.MonkeyPatch, table: torch.Tensor) -> Made:
    def rebind(other: torch.Tensor) -> None:
        monkeypatch.setitem(of_global.__globals__, "ASKED", other)

    rebind(table)
    return of_global, rebind


def closed_over(monkeypatch: pytest.MonkeyPatch, table: torch.Tensor) -> Made:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * table.shape[0]

    def rebind(other: torch.Tensor) -> None:
        nonlocal table
        table = other

    return fn, rebind


def held(name: str, monkeypatch: pytest.MonkeyPatch, table: torch.Tensor) -> Made:
    module = Scaled(name, table)

    def rebind(other: torch.Tensor) -> None:
        setattr(module, name, torch.nn.Parameter(other) if name == "parameter" else other)

    return module, rebind


def in_place(monkeypatch: pytest.MonkeyPatch, table: torch.Tensor) -> Made:
    """The object stays, and gets other data."""
    module = Scaled("parameter", table)

    def rebind(other: torch.Tensor) -> None:
        module.parameter.data = other

    return module, rebind


def method_of(monkeypatch: pytest.MonkeyPatch, table: torch.Tensor) -> Made:
    module, rebind = held("buffer", monkeypatch, table)
    return lambda x: module(x), rebind


WAYS = [
    global_one,
    closed_over,
    *(functools.partial(held, name) for name in ("parameter", "buffer", "attribute")),
    in_place,
    method_of,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: getattr(way, "__name__", None) or way.args[0])
def test_a_call_sees_that_a_tensor_has_another_shape(way: Callable[..., Made], monkeypatch: pytest.MonkeyPatch) -> None:
    fn, rebind = way(monkeypatch, torch.zeros(5, 2))
    traced = trace(fn, (X,))
    assert traced.graph.input_names == ("x",), "nothing of it is read"
    assert [*traced.flatten((X,), {})] == [X]
    rebind(torch.ones(5, 2))
    assert traced.plain((X,), {}) is not None, "one of the same kind is as good"
    for other, words in ((torch.zeros(7, 2), r"\[7, 2\].*optimized for .*\[5, 2\]"), (torch.zeros(5, 2).double(), "float64")):
        rebind(other)
        for call in (traced.flatten, traced.plain):
            with pytest.raises(ShapeMismatch, match=words):
                call((X,), {})
    rebind(torch.zeros(5, 2))
    assert [*traced.flatten((X,), {})] == [X]


def test_a_call_sees_that_it_is_none_any_more() -> None:
    module = Scaled("attribute", torch.zeros(5, 2))
    traced = trace(lambda x: module(x), (X,))
    del module.attribute
    with pytest.raises(InvalidInput, match=r"attribute was a tensor when the function was traced, and is none now"):
        traced.flatten((X,), {})


QUESTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "size": lambda x, w: x * w.size(0),
    "length": lambda x, w: x * len(w),
    "elements": lambda x, w: x * w.numel(),
    "dimensions": lambda x, w: x * w.dim(),
    "zeros like it": lambda x, w: x + torch.ones_like(w).sum(),
    "new zeros": lambda x, w: x + w.new_ones(w.shape[0]).sum(),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_whatever_is_asked_about_shapes(question: str) -> None:
    w = torch.zeros(5, 2)
    ask = QUESTIONS[question]
    traced = trace(lambda x: ask(x, w), (X,))
    w = torch.zeros(7, 2, 1)
    with pytest.raises(ShapeMismatch, match=r"tensor w of the function"):
        traced.flatten((X,), {})


def test_a_call_sees_another_type() -> None:
    w = torch.zeros(2)
    traced = trace(lambda x: x * (2 if w.dtype is torch.float32 else 3), (X,))
    w = w.double()
    with pytest.raises(ShapeMismatch, match="float64"):
        traced.flatten((X,), {})


def test_a_call_sees_another_device() -> None:
    w = torch.zeros(2)
    traced = trace(lambda x: x * (2 if w.device.type == "cpu" else 3), (X,))
    w = w.to("meta")
    with pytest.raises(InvalidInput, match="w was on cpu when the function was traced, and is on meta now; optimize again"):
        traced.flatten((X,), {})


def test_a_tensor_without_data_may_get_some() -> None:
    w = torch.zeros(2, device="meta")
    traced = trace(lambda x: x * w.shape[0], (X,))
    w = torch.zeros(2)
    assert [*traced.flatten((X,), {})] == [X]


def test_a_call_sees_other_strides_where_the_function_asks_for_them() -> None:
    w = torch.zeros(5, 2)
    asking = trace(lambda x: x * w.stride(0), (X,))
    others = trace(lambda x: x * w.shape[0], (X,))
    w = torch.zeros(2, 5).t()
    assert [*others.flatten((X,), {})] == [X]
    with pytest.raises(InvalidInput, match=r"w has strides \[1, 5\], optimized for \[2, 1\]"):
        asking.flatten((X,), {})


def test_what_is_not_looked_at_may_be_replaced() -> None:
    module = Scaled("buffer", torch.zeros(5, 2))
    traced = trace(module, (X,))
    module.parameter = module.unused = torch.nn.Parameter(torch.zeros(1))
    module.attribute = torch.zeros(9)
    assert [*traced.flatten((X,), {})] == [X]


def test_tensors_that_are_read_come_first() -> None:
    w, gain = torch.zeros(5, 2), torch.randn(4)
    traced = trace(lambda x: x * w.shape[0] * gain, (X,))
    assert traced.graph.input_names == ("x", "gain")
    gain = torch.ones(4)
    assert torch.equal(traced.flatten((X,), {})[1], gain)
    assert torch.equal(traced.captured[0], gain)
    w = torch.zeros(6, 2)
    with pytest.raises(ShapeMismatch, match="tensor w of the function"):
        _ = traced.captured


def test_calls_of_a_function_in_pieces_look_at_them_too() -> None:
    w = torch.zeros(5, 2)
    calling = recorded_graph(record(lambda x: torch.sort(x * w.shape[0])[0], (X,))).calling
    assert [*calling.flatten((X,), {})] == [X]
    w = torch.zeros(6, 2)
    with pytest.raises(ShapeMismatch, match="tensor w of the function"):
        calling.flatten((X,), {})


class Product(torch.nn.Module):
    """A softmax of products times a number that it has of a buffer."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.asked: torch.Tensor = torch.nn.Buffer(torch.zeros(sizes))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y * self.asked.shape[0], -1)


def without_it(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y * 5, -1)


def test_results_look_at_them_and_saved_ones_too(tmp_path: Path) -> None:
    model, x, y = Product(5, 2), torch.randn(4, 8), torch.randn(8, 4)
    result = mugraph.superoptimize(model, (x, y), budget=20.0)
    torch.testing.assert_close(result(x, y), model(x, y))
    result.save(tmp_path / "saved")
    loaded = mugraph.load(tmp_path / "saved")
    torch.testing.assert_close(loaded.bound_to(Product(5, 2))(x, y), model(x, y))
    with pytest.raises(ShapeMismatch, match="tensor asked of the function"):
        loaded.bound_to(Product(7, 2))
    with pytest.raises(InvalidInput, match="reads a tensor asked, and without_it has none"):
        loaded.bound_to(without_it)
    model.asked = torch.zeros(7, 2)
    with pytest.raises(ShapeMismatch, match="tensor asked of the function"):
        result(x, y)


def test_a_record_of_an_earlier_version_says_nothing_of_them() -> None:
    record = trace(Product(5, 2), (torch.randn(4, 8), torch.randn(8, 4))).signature_record
    values = record.to_json()
    assert SignatureRecord.from_json(values) == record
    del values["asked"]
    earlier = SignatureRecord.from_json(values)
    assert earlier == dataclasses.replace(record, asked=())
    assert earlier is not None
    assert not earlier.is_called_as(record)


@pytest.mark.parametrize("wrong", [None, [3], [{"names": ["w"]}], [{"names": ["w"], "dtype": 3, "shape": [], "strides": None}]])
def test_a_malformed_record_is_refused(wrong: Any) -> None:
    record = trace(Product(5, 2), (torch.randn(4, 8), torch.randn(8, 4))).signature_record
    with pytest.raises(TypeError, match=r"signature\.asked"):
        SignatureRecord.from_json({**record.to_json(), "asked": wrong})


def test_the_decorator_makes_kernels_anew() -> None:
    model = Product(5, 2)
    fast = mugraph.optimize(model, budget=20.0)
    x, y = torch.randn(4, 8), torch.randn(8, 4)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorch)
        for sizes in ((5, 2), (7, 2), (7, 3), (5, 2)):
            model.asked = torch.zeros(sizes)
            torch.testing.assert_close(fast(x, y), model(x, y))


def test_calls_at_any_size_look_at_them() -> None:
    model, y = Product(5, 2), torch.randn(8, 4)
    declared = Declared.of({0: {0: mugraph.Dim("rows", 1, 16)}})
    function = sliced_function(model, declared, (torch.randn(4, 8), y), {})
    for size in (1, 3, 16):
        x, calling = torch.randn(size, 8), function.calling_at(size)
        model.asked = torch.zeros(5, 2)
        assert [*calling.flatten((x, y), {})] == [x, y]
        model.asked = torch.zeros(7, 2)
        for call in (calling.flatten, calling.plain):
            with pytest.raises(ShapeMismatch, match="tensor asked of the function"):
                call((x, y), {})


# --- tracing writes to no tensor of anybody's ------------------------------------------------------------------------

GAIN, SEEN, CALLS = torch.randn(4), torch.zeros(4), torch.zeros((), dtype=torch.long)
NORM = torch.nn.BatchNorm1d(4)


def adding_the_mean(x: torch.Tensor) -> torch.Tensor:
    SEEN.add_(x.mean(0))
    return x + SEEN


def adding_numbers(x: torch.Tensor) -> torch.Tensor:
    SEEN.mul_(2).add_(1)
    return x + SEEN


def counting(x: torch.Tensor) -> torch.Tensor:
    CALLS.add_(1)
    return x * 2


def setting_an_element(x: torch.Tensor) -> torch.Tensor:
    SEEN[0] = 3.0
    return x + SEEN


def writing_out(x: torch.Tensor) -> torch.Tensor:
    torch.add(GAIN, 1, out=SEEN)
    return x + SEEN


def copying_into_a_view(x: torch.Tensor) -> torch.Tensor:
    SEEN.view(2, 2).copy_(torch.ones(2, 2))
    return x + SEEN


def batch_norm(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.batch_norm(x, SEEN, GAIN, training=True)


def normalized(x: torch.Tensor) -> torch.Tensor:
    normed: torch.Tensor = NORM(x)
    return normed


def adding_through_data(x: torch.Tensor) -> torch.Tensor:
    SEEN.data.add_(1)
    return x + SEEN


class Counting(torch.nn.Module):
    """Updates a buffer and a tensor that it has not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: torch.Tensor = torch.nn.Buffer(SEEN)
        self.calls = CALLS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.mean(0)
        self.calls += 1
        return x + self.seen


WRITERS: list[Callable[..., Any]] = [
    *(adding_the_mean, adding_numbers, counting, setting_an_element, writing_out, copying_into_a_view, batch_norm, normalized),
    *(adding_through_data, NORM, Counting()),
]


@pytest.mark.parametrize("fn", WRITERS, ids=lambda fn: getattr(fn, "__name__", type(fn).__name__))
@pytest.mark.parametrize("captured_before", [False, True])
def test_tracing_writes_to_no_captured_tensor(fn: Callable[..., Any], captured_before: bool) -> None:
    tensors = [GAIN, SEEN, CALLS, *NORM.parameters(), *NORM.buffers()]
    before = [(tensor.clone(), tensor._version) for tensor in tensors]
    with pytest.raises(InvalidInput, match=r"in place|cannot be traced"):
        trace(fn, (X,))
    if captured_before:
        with contextlib.suppress(InvalidInput):
            recorded_graph(record(fn, (X,)))
    for tensor, (value, version) in zip(tensors, before, strict=True):
        assert torch.equal(tensor, value)
        assert tensor._version == version


def test_what_is_written_to_is_written_by_calls() -> None:
    """The buffers of a module in training are what PyTorch makes of them, however often it was traced before."""
    ours, theirs = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    result = mugraph.superoptimize(lambda x: torch.sort(ours(x))[0], (X,), budget=5.0, profile=False)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(result(X), torch.sort(theirs(X))[0])
    for mine, wanted in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, wanted)


def test_a_tensor_that_the_function_makes_of_an_array_is_its_own() -> None:
    table = np.arange(4, dtype=np.float32)
    traced = assert_agrees(lambda x: x * torch.from_numpy(table) + torch.tensor([1.0, 2.0, 3.0, 4.0]), X.double())
    assert [name for name in traced.graph.input_names if not name.startswith(("x", "constant", "captured"))] == []


BOUND = torch.tensor(3)
SLICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "end": lambda x: x[:, :BOUND] * 2,
    "start": lambda x: x[:, BOUND:] * 2,
    "rows": lambda x: x[:BOUND] * 2,
    "step": lambda x: x[:, ::BOUND] * 2,
}


@pytest.mark.parametrize("bounds", SLICES)
def test_a_tensor_that_bounds_a_slice_is_read_by_every_call(bounds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = SLICES[bounds]
    monkeypatch.setitem(fn.__globals__, "BOUND", torch.tensor(3))
    with pytest.raises(MugraphError, match="the values of a tensor"):
        trace(fn, (X,))


def test_a_slice_that_is_written_to_is_not_bounded_by_a_number_of_then() -> None:
    bound = torch.tensor(3)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, :bound] = 0
        return y

    with pytest.raises(MugraphError, match="the values of a tensor"):
        trace(fn, (X,))


def test_questions_that_a_stand_in_answers_otherwise_are_refused() -> None:
    weight, part = torch.nn.Parameter(torch.ones(4)), torch.ones(9)[5:]
    by_gradient = lambda x: x if weight.grad is None else -x  # noqa: E731
    by_place = lambda x: x if part.storage_offset() == 0 else -x  # noqa: E731
    assert trace(by_gradient, (X,)).graph.input_names == ("x",)
    weight.grad = torch.ones(4)
    for fn, words in ((by_gradient, "its gradient"), (by_place, "where its memory begins")):
        with pytest.raises(UnsupportedOperator, match=words):
            trace(fn, (X,))


class AskingForGradients(torch.nn.Module):
    """Asks a parameter of its own whether it has a gradient, and perhaps reads it."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.weight, self.reads = torch.nn.Parameter(torch.ones(4)), reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.weight.grad is None else -x
        return x * self.weight if self.reads else x * 2


@pytest.mark.parametrize("reads", [False, True], ids=["asks", "reads"])
@pytest.mark.parametrize("owns", [False, True], ids=["captured", "module"])
def test_a_call_sees_that_a_tensor_has_a_gradient_now(owns: bool, reads: bool) -> None:
    module = AskingForGradients(reads)
    weight = module.weight
    by_closure = lambda x: (x if weight.grad is None else -x) * (weight if reads else 2)  # noqa: E731
    fn = module if owns else by_closure
    traced = trace(fn, (X,))
    with torch.no_grad():
        for grad, fits in ((None, True), (torch.ones(4), False), (None, True)):
            weight.grad = grad
            for call in (traced.flatten, traced.plain):
                with contextlib.nullcontext() if fits else pytest.raises(InvalidInput, match="weight had no gradient when"):
                    call((X,), {})
    weight.grad = torch.ones(4)
    with pytest.raises(UnsupportedOperator, match="a tensor that it brings along for its gradient; ask outside"):
        trace(fn, (X,))


ANSWERED_BY_EACH_CALL: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "version": (lambda tensor: tensor._version > 0, r"how often it was written to \(_version\)"),
    "inference": (lambda tensor: tensor.is_inference(), r"whether it is an inference tensor \(is_inference\)"),
    "function": (torch.is_inference, r"whether it is an inference tensor \(is_inference\)"),
}


@pytest.mark.parametrize("question", ANSWERED_BY_EACH_CALL)
@pytest.mark.parametrize("of", ["argument", "captured", "computed"])
def test_questions_that_each_call_may_answer_otherwise_are_refused(question: str, of: str) -> None:
    ask, words = ANSWERED_BY_EACH_CALL[question]
    table = torch.ones(4)

    def asking(x: torch.Tensor) -> torch.Tensor:
        return x if ask({"argument": x, "captured": table, "computed": x * 2}[of]) else -x

    with pytest.raises(UnsupportedOperator, match=f"asking asks a tensor {words}; ask outside the function"):
        trace(asking, (X,))


def test_the_gradient_of_an_argument_is_refused_and_that_of_a_result_is_none() -> None:
    with pytest.raises(UnsupportedOperator, match="asks an argument for its gradient"):
        trace(lambda x: x if x.grad is None else -x, (X,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert trace(lambda x: x * 2 if (x + 1).grad is None else -x, (X,)).graph.input_names == ("x",)


@pytest.mark.parametrize("of", ["argument", "captured"])
def test_the_order_of_dimensions_is_a_question_of_strides(of: str) -> None:
    table = torch.zeros(3, 4)

    def asking(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if (x if of == "argument" else table).dim_order() == (0, 1) else x * 3

    traced = trace(asking, (X,))
    assert [*traced.flatten((X,), {})] == [X]
    turned = torch.zeros(4, 3).t()
    x = turned if of == "argument" else X
    if of == "captured":
        table = turned
    with pytest.raises(InvalidInput, match=r"has strides \[1, 3\], optimized for \[4, 1\]"):
        traced.flatten((x,), {})
