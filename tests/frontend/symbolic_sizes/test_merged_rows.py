"""Graphs with a batch and a length as graphs of rows: accepted where every row is by itself, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import UserError
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.recording.export import recorded_at_all_sizes
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.merged_rows import merged_rows
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_slices, with_sizes

Function = Callable[[torch.Tensor], torch.Tensor]
WEIGHT, TABLE, SQUARE = torch.randn(8, 12), torch.randn(9, 8), torch.randn(3, 8, 8)


def check(fn: Function, x: torch.Tensor) -> None:
    """Raise SizeMatters unless the function does the same to every row of [batch, length, ...]."""
    sizes = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=2, max=512)}
    try:
        program = recorded_at_all_sizes(fn, (x,), {}, {0: sizes})
    except (UserError, ConstraintViolationError, UnsupportedOperator) as error:  # it asks about sizes
        raise SizeMatters(str(error)) from None
    for graph in (program.graph, program.run_decompositions().graph):
        check_slices(merged_rows(with_sizes(graph)))


OF_ROWS: dict[str, Function] = {
    "elementwise": lambda x: torch.where(x > 0, x.exp(), x * 2) + torch.ones(8),
    "norm": lambda x: F.layer_norm(x, (8,)) + F.rms_norm(x, (8,)),
    "spelled norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
    "linear": lambda x: F.gelu(F.linear(x, WEIGHT.T)) @ WEIGHT.T,
    "flattened": lambda x: (x.reshape(-1, 8) @ WEIGHT).reshape(x.shape[0], x.shape[1], 12),
    "flattened and left so": lambda x: x.flatten(0, 1).relu(),
    "heads": lambda x: F.softmax(x.view(x.shape[0], x.shape[1], 2, 4), 2).sum(-2),
    "turned": lambda x: x.view(x.shape[0], x.shape[1], 2, 4).transpose(2, 3).sum(3),
    "counted from the first": lambda x: torch.softmax(x, 2) + x.amax(2, keepdim=True) + x.permute(0, 1, 2),
    "parts": lambda x: torch.cat([x[..., 4:], -x.narrow(2, 0, 4)], 2) * torch.cat(torch.split(x, 4, 2)[::-1], -1).cos(),
    "selected": lambda x: x.select(2, 3).unsqueeze(2) + x[:, :, 0:1],
    "behind": lambda x: x.unsqueeze(0).permute(1, 2, 3, 0).squeeze(3),
    "filled": lambda x: torch.zeros_like(x) + torch.full((x.shape[0], x.shape[1], 1), 2.0) + x,
}
NOT_OF_ROWS: dict[str, Function] = {
    "softmax along the length": lambda x: torch.softmax(x, 1),
    "softmax along the batch": lambda x: torch.softmax(x, 0),
    "softmax along the length from the end": lambda x: torch.softmax(x, -2),
    "mean over the length": lambda x: x.mean(1),
    "mean over both": lambda x: x - x.mean((0, 1)),
    "mean over length and width": lambda x: x - x.mean((1, 2), keepdim=True),
    "sum of all": lambda x: x / x.sum(),
    "last position": lambda x: x[:, -1],
    "without the first": lambda x: x[:, 1:],
    "turned": lambda x: x.transpose(0, 1).contiguous(),
    "turned, and put together as before": lambda x: x.transpose(0, 1).reshape(x.shape[0], x.shape[1], 8),
    "length last": lambda x: x.transpose(1, 2) * 2,
    "read in another order": lambda x: x.reshape(x.shape[1], x.shape[0], 8) * 2,
    "length and width together": lambda x: x.reshape(x.shape[0], -1),
    "attention": lambda x: torch.softmax(x @ x.mT, -1) @ x,
    "norm over length and width": lambda x: F.layer_norm(x, x.shape[1:]),
    "groups over the length": lambda x: F.group_norm(x, 1),
    "instances": lambda x: F.instance_norm(x),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "positions": lambda x: x + torch.arange(x.shape[1])[:, None],
    "a size as a number": lambda x: x / x.shape[1],
    "running sums": lambda x: x.cumsum(1),
    "backwards": lambda x: x.flip(1),
    "shifted": lambda x: x.roll(1, 1),
    "padded": lambda x: F.pad(x, (0, 0, 1, 0)) * 2,
    "convolution": lambda x: F.conv1d(x.transpose(1, 2), SQUARE.permute(1, 2, 0), padding=1).transpose(1, 2),
    "joined along the length": lambda x: torch.cat([x, x], 1),
    "appended": lambda x: torch.cat([x, x.new_zeros(x.shape[0], 1, 8)], 1),
    "triangle": lambda x: x.tril(),
    "by einsum": lambda x: torch.einsum("bsh,bth->bst", x, x),
    "repeated": lambda x: x.repeat(1, 2, 1),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_what_does_the_same_to_every_row(name: str) -> None:
    """And it does: rows of other batches and lengths are the same rows."""
    fn, x = OF_ROWS[name], torch.randn(6, 10, 8)
    check(fn, x)
    wanted = fn(x)
    torch.testing.assert_close(fn(x.view(30, 2, 8)).reshape(wanted.shape), wanted)
    torch.testing.assert_close(fn(x.view(4, 15, 8)).reshape(wanted.shape), wanted)


@pytest.mark.parametrize("name", NOT_OF_ROWS)
def test_what_mixes_rows_or_tells_them_apart(name: str) -> None:
    with pytest.raises(SizeMatters):
        check(NOT_OF_ROWS[name], torch.randn(6, 10, 8))


def test_lookups_are_of_rows_where_places_are() -> None:
    check(lambda i: F.embedding(i, TABLE) * 2, torch.randint(0, 9, (6, 10)))


def test_one_size_or_three_are_not_two() -> None:
    program = recorded_at_all_sizes(torch.exp, (torch.randn(6, 10),), {}, {0: {0: torch.export.Dim("batch")}})
    with pytest.raises(SizeMatters, match="have 1 symbolic sizes, and two are wanted"):
        merged_rows(program.graph)


def test_only_operators_of_aten_are_followed() -> None:
    sizes = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=2, max=512)}
    graph = with_sizes(recorded_at_all_sizes(lambda x: x.exp(), (torch.randn(4, 5, 8),), {}, {0: sizes}).graph)
    check_slices(merged_rows(graph))
    (exp,) = (node for node in graph.nodes if node.op == "call_function")
    exp.target = torch.ops.prims.exp.default
    with pytest.raises(SizeMatters):
        check_slices(merged_rows(graph))


def test_tensors_without_elements_have_no_slices_to_number() -> None:
    sizes = {1: torch.export.Dim("length", min=2, max=512)}
    program = recorded_at_all_sizes(lambda x: x.unsqueeze(0).exp(), (torch.randn(0, 5, 8),), {}, {0: sizes})
    with pytest.raises(SizeMatters, match="the axis does not stay whole"):
        check_slices(program.graph)
