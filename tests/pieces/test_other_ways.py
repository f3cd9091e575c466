"""Calls that PyTorch is asked for otherwise: they give the same, and are made where that was measured to be faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import mugraph
from mugraph.frontend import record
from mugraph.frontend.recording.recorded_graph import recorded_graph
from mugraph.pieces.data import PartitionedResult
from mugraph.pieces.library_ways import Library
from mugraph.pieces.other_ways import other_ways
from mugraph.support.deadline import Deadline
from mugraph.support.store import Store

functional = torch.nn.functional
IMAGE, ROWS, VOLUME = torch.randn(2, 20, 25, 30), torch.randn(3, 17, 50), torch.randn(2, 8, 9, 10, 12)
CALLS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "argmax": (lambda x: x.argmax(1), ROWS),
    "argmin, dimension kept": (lambda x: x.argmin(-1, keepdim=True), ROWS),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool2d, dilated": (lambda x: functional.max_pool2d(x, (2, 3), 1, 0, 2, ceil_mode=True), IMAGE),
    "max_pool3d": (lambda x: functional.max_pool3d(x, 2), VOLUME),
    "avg_pool1d": (lambda x: functional.avg_pool1d(x, 4), ROWS),
    "avg_pool1d, padded": (lambda x: functional.avg_pool1d(x, 4, 2, 1, count_include_pad=False), ROWS),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5), IMAGE),
    "avg_pool3d": (lambda x: functional.avg_pool3d(x, 2, 1), VOLUME),
}


def calls_of(function: Callable[..., Any], *inputs: torch.Tensor) -> list[fx.Node]:
    graph = recorded_graph(record(function, inputs)).module.graph
    return [node for node in graph.nodes if node.op == "call_function"]


def asked_otherwise(function: Callable[..., Any], x: torch.Tensor) -> Any:
    ((node, way),) = other_ways(calls_of(function, x)).items()
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in node.target._schema.arguments}
    given = defaults | dict(zip(names, node.args, strict=False)) | node.kwargs
    return way(x, *(given[name] for name in names[1:]))


@pytest.mark.parametrize("name", CALLS)
def test_the_other_way_gives_what_the_call_gives(name: str) -> None:
    function, x = CALLS[name]
    got, wanted = asked_otherwise(function, x), function(x)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    assert got.stride() == wanted.stride()


@pytest.mark.parametrize("function", [lambda x: x.argmax(1), lambda x: x.argmin(1)])
def test_of_equal_numbers_the_first_is_taken_and_of_nan_the_first_too(function: Callable[..., Any]) -> None:
    inf, nan = float("inf"), float("nan")
    rows = [[1, 3, 3, 1], [nan, 1, 2, 3], [1, nan, nan, 0], [inf, inf, -inf, -inf], [0.0, -0.0, 0.0, -0.0], [5, 5, 5, 5]]
    x = torch.tensor(rows)
    assert torch.equal(asked_otherwise(function, x), function(x))
    many = torch.randint(0, 4, (40, 999)).float()
    assert torch.equal(asked_otherwise(function, many), function(many))


def test_pools_without_a_batch_and_tensors_that_lie_otherwise_are_left() -> None:
    assert not other_ways(calls_of(lambda x: functional.max_pool2d(x, 2), IMAGE[0]))
    assert not other_ways(calls_of(lambda x: functional.max_pool2d(x, 2), IMAGE.contiguous(memory_format=torch.channels_last)))
    assert not other_ways(calls_of(lambda x: x.argmax(), ROWS))
    assert not other_ways(calls_of(lambda x: x.argmax(1), torch.randint(0, 9, (5, 6))))


def test_a_way_is_taken_where_it_takes_less_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (node,) = calls_of(lambda x: x.argmax(1), ROWS)
    seconds = {"first": (2.0, 1.0), "second": (1.0, 1.0)}
    for name, times in seconds.items():
        monkeypatch.setattr("mugraph.pieces.library_ways._measured_call", lambda *_, times=times: times)
        library = Library("cpu", Store(tmp_path / name))
        found = library.faster_ways(other_ways([node]), Deadline(None))
        assert list(found) == ([node] if name == "first" else [])
    assert library.faster_ways(other_ways([node]), Deadline(0.0)) == {}


def test_a_result_asks_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "faster_ways", lambda library, ways, deadline: ways)

    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(x.sigmoid() * x, 3, 2).flatten(1).argmax(1)

    with torch.inference_mode():
        opt = mugraph.superoptimize(function, (IMAGE,), budget=5.0, cache="off")
        image = torch.randn_like(IMAGE)
        assert isinstance(opt, PartitionedResult)
        assert torch.equal(opt(image), function(image))
        inputs = opt.calling.flatten((image,), {})
        assert torch.equal(opt.outputs(inputs)[0], function(image))
    targets = {str(node.target) for node in opt.run.graph.nodes}
    assert not targets & {"aten.argmax.default", "aten.max_pool2d.default"}
