"""Convolutions as library kernels: what they take with them, weights that are packed once and again when they change."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mugraph
from mugraph.api import _recorded
from mugraph.cli.output import _found_what
from mugraph.frontend.operators.torch_casts import name_of
from mugraph.frontend.partitioning.library import LibraryKernel, convolutions, linear_layers, mark_constant
from mugraph.frontend.recording.recorded_graph import RecordedGraph, recorded_graph
from mugraph.host.tensor_state import forgotten
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.library_ways import Library, Ways
from mugraph.pieces.packed_weights import PackedConvolution, packed
from mugraph.pieces.partitioned import Partitioned
from mugraph.results.coverage import PACKED
from mugraph.support.deadline import Deadline
from mugraph.support.progress import silent
from mugraph.support.store import Store
from pieces.test_cutting import called, same

CONVOLUTIONS: dict[tuple[int, bool], Callable[..., nn.Module]] = {
    (1, False): nn.Conv1d,
    (2, False): nn.Conv2d,
    (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d,
    (2, True): nn.ConvTranspose2d,
    (3, True): nn.ConvTranspose3d,
}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
ACTIVATIONS = (
    nn.SiLU(),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.LeakyReLU(0.3),
    nn.Hardswish(),
    nn.ReLU(),
    nn.ReLU6(),
)


class Affine(nn.Module):
    """Steps with one number for each channel, or for all."""

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        self.by_channel = nn.Parameter(torch.randn(channels, *[1] * rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1 - (x - self.by_channel) / 2.5) * self.by_channel + 0.5


class Residual(nn.Module):
    """A block of a residual network, and the pooling in front of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 5, 2, 2)
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([normed(nn.BatchNorm2d(channels)) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.max_pool2d(F.relu(self.norms[0](self.stem(x))), 3, 2, 1)
        y = F.silu(self.norms[1](self.first(x)))
        z = F.relu(self.norms[2](self.second(y)) + x)
        return z, z.flatten(1).logcumsumexp(1)


def normed(norm: nn.Module) -> nn.Module:
    """A batch norm with statistics and parameters that are not those of the beginning."""
    with torch.no_grad():
        for name, tensor in itertools.chain(norm.named_parameters(), norm.named_buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2) if name == "running_var" else tensor.normal_()
    return norm


def recorded(module: Any, *inputs: torch.Tensor) -> RecordedGraph:
    """The graph of ATen calls of a module or function, of which all inputs but the first are constant."""
    graph = recorded_graph(_recorded(module, inputs)[0])
    for node in graph.placeholders[1:]:
        mark_constant(node)
    return graph


def values_of(graph: RecordedGraph, *inputs: torch.Tensor) -> dict[torch.fx.Node, Any]:
    """What PyTorch's calls give, node by node."""
    interpreter = torch.fx.Interpreter(graph.module, garbage_collect_values=False)
    with torch.no_grad():
        interpreter.run(*graph.calling.flatten(inputs, {}))
    return interpreter.env


def the_kernel(graph: RecordedGraph) -> LibraryKernel:
    (kernel,) = convolutions(graph.module.graph, "cpu")
    return kernel


def names(kernel: LibraryKernel) -> list[str]:
    return [name_of(node) for node in kernel.nodes]


def drawn(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """A random convolution with random steps after it, and an image."""
    draw = random.Random(seed)
    rank, transposed = draw.choice([1, 2, 3]), draw.random() < 0.5
    groups, inputs, outputs = draw.choice([1, 1, 2, 4]), 4 * draw.randint(1, 3), 4 * draw.randint(1, 3)
    size, stride, dilation = draw.randint(1, 3), draw.randint(1, 2), draw.randint(1, 2)
    options = {"stride": stride, "padding": draw.randint(0, 1) * (size > 1), "dilation": dilation, "groups": groups}
    if transposed and stride > 1:
        options["output_padding"] = draw.randint(0, 1)
    layers = [CONVOLUTIONS[rank, transposed](inputs, outputs, size, bias=draw.random() < 0.5, **options)]
    if draw.random() < 0.5:
        layers.append(normed(NORMS[rank](outputs)))
    if draw.random() < 0.5:
        layers.append(Affine(outputs, rank))
    if draw.random() < 0.8:
        layers.append(draw.choice(ACTIVATIONS))
    image = torch.randn(2, inputs, *(draw.randint(7, 9) for _ in range(rank)))
    return nn.Sequential(*layers).eval(), image


@pytest.mark.parametrize("seed", range(40))
def test_random_convolutions_with_what_they_take_along(seed: int) -> None:
    torch.manual_seed(seed)
    module, image = drawn(seed)
    graph = recorded(module, image)
    kernel = the_kernel(graph)
    computed = [node for node in graph.module.graph.nodes if node.op == "call_function" and name_of(node) != "view"]
    assert kernel.nodes == tuple(computed)
    values = values_of(graph, image)
    operands = [values[node] for node in kernel.operands]
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(image.double())
        for layout in Layout:
            convolution = PackedConvolution(kernel, layout)
            for _ in range(2):
                result = convolution(*operands)
                assert result.is_contiguous(memory_format=layout.format_of(result.dim()))
                torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=float(3e-6 * exact.abs().max()))
            assert convolution._packed is not None
        assert torch.equal(kernel.as_torch()(*operands), values[kernel.result])


def test_a_residual_block_is_a_kernel_for_each_convolution() -> None:
    graph = recorded(Residual(8).eval(), torch.randn(2, 3, 16, 16))
    stem, first, second = convolutions(graph.module.graph, "cpu")
    norm = ["_native_batch_norm_legit_no_training", "getitem"]
    assert names(stem) == ["convolution", *norm, "relu"]
    assert names(first) == ["convolution", *norm, "silu"]
    assert names(second) == ["convolution", *norm, "add", "relu"]
    assert second.added is not None
    assert name_of(second.added) == "max_pool2d"


@pytest.mark.parametrize(
    ("function", "shapes", "taken"),
    [
        (lambda x, k: F.conv2d(x, k) * x.sum(), [(2, 3, 6, 6), (4, 3, 3, 3)], ["convolution"]),
        (lambda x, k: 1 / F.conv2d(x, k), [(2, 3, 6, 6), (4, 3, 3, 3)], ["convolution"]),
        (lambda x, k, b: F.conv2d(x, k) + b, [(2, 3, 6, 6), (4, 3, 3, 3), (4,)], ["convolution"]),  # along the last dimension
        (lambda x, k, b: F.conv2d(x, k) + b, [(2, 3, 6, 6), (4, 3, 3, 3), (2, 4, 1, 1)], ["convolution"]),
        (lambda x, k, b: F.conv2d(x, k) + b, [(2, 3, 6, 6), (4, 3, 3, 3), (1, 4, 1, 1)], ["convolution", "add"]),
        (lambda x, k, b: F.conv2d(x, k) + b, [(1, 3, 6, 6), (4, 3, 3, 3), (1, 1, 4, 4)], ["convolution"]),
        (lambda x, k: torch.add(F.conv2d(x, k), 1, alpha=3), [(2, 3, 6, 6), (4, 3, 3, 3)], ["convolution", "add"]),
        (lambda x, k: torch.lgamma(F.conv2d(x, k)), [(2, 3, 6, 6), (4, 3, 3, 3)], ["convolution"]),
        (lambda x, k: torch.add(F.conv2d(x, k), F.conv2d(x, k), alpha=2), [(2, 3, 6, 6), (4, 3, 3, 3)], None),
        (lambda x, k: (y := F.conv2d(x, k)) + y, [(2, 3, 6, 6), (4, 3, 3, 3)], ["convolution"]),
        (lambda x, k: (y := F.conv2d(x, k)) * y.sigmoid(), [(2, 3, 6, 6), (4, 3, 3, 3)], ["convolution"]),
        (lambda x, k: F.conv2d(x, k, padding=1) + x, [(2, 3, 6, 6), (3, 3, 3, 3)], ["convolution", "add"]),
        (lambda x, k: F.conv_transpose2d(x, k, padding=1) + x, [(2, 3, 6, 6), (3, 3, 3, 3)], ["convolution"]),
        (lambda x, k: F.relu(F.conv2d(x, k)) * 2 + 1, [(2, 3, 6, 6), (4, 3, 3, 3)], ["convolution"]),  # our kernels' business
        (lambda x, k: F.gelu(F.conv2d(x, k)) * 2 + 1, [(2, 3, 6, 6), (4, 3, 3, 3)], ["convolution", "gelu"]),
    ],
)
def test_what_is_taken_along(function: Callable[..., Any], shapes: list[tuple[int, ...]], taken: list[str] | None) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    graph = recorded(function, *inputs)
    kernels = convolutions(graph.module.graph, "cpu")
    if taken is not None:
        assert names(kernels[0]) == taken
    values = values_of(graph, *inputs)
    nodes = [node for kernel in kernels for node in kernel.nodes]
    assert len(nodes) == len(set(nodes))
    with torch.no_grad():
        for kernel, layout in itertools.product(kernels, Layout):
            result = PackedConvolution(kernel, layout)(*(values[node] for node in kernel.operands))
            torch.testing.assert_close(result, values[kernel.result], rtol=1e-4, atol=1e-5)


def test_nothing_is_packed_for_other_devices_and_types() -> None:
    graph = recorded(F.conv2d, torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3))
    assert convolutions(graph.module.graph, "cuda") == ()
    doubles = recorded(F.conv2d, torch.randn(2, 3, 6, 6).double(), torch.randn(4, 3, 3, 3).double())
    assert convolutions(doubles.module.graph, "cpu") == ()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_nan_and_infinity_stay_where_they_are(activation: nn.Module) -> None:
    module = nn.Sequential(nn.Conv2d(4, 4, 1), activation).eval()
    image = torch.randn(1, 4, 4, 4)
    image[0, 0, 0, 0], image[0, 1, 2, 2], image[0, 2, 3, 3] = torch.nan, torch.inf, -torch.inf
    kernel = the_kernel(graph := recorded(module, image))
    values = values_of(graph, image)
    with torch.no_grad():
        result = PackedConvolution(kernel, Layout.CHANNELS_LAST)(*(values[node] for node in kernel.operands))
    torch.testing.assert_close(result, values[kernel.result], equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS], ids=str)
def test_linear_layers_with_their_activations(activation: nn.Module | None, dtype: torch.dtype) -> None:
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 here")
    module = nn.Sequential(nn.Linear(24, 40), *([] if activation is None else [activation])).eval().to(dtype)
    rows = torch.randn(3, 5, 24).to(dtype)
    rows[0, 0, 0], rows[1, 0, 0], rows[2, 0, 0] = torch.nan, torch.inf, -torch.inf
    graph = recorded(module, rows)
    values = values_of(graph, rows)
    calls = [node for node in graph.module.graph.nodes if node.op == "call_function"]
    (kernel,) = linear_layers(calls, "cpu")
    assert kernel.nodes == tuple(calls)
    layer = packed(kernel, Layout.CONTIGUOUS)
    with torch.no_grad():
        for _ in range(2):
            result = layer(*(values[node] for node in kernel.operands))
            rounding = 1e-5 if dtype is torch.float32 else 3e-2
            torch.testing.assert_close(result, values[kernel.result], rtol=rounding, atol=rounding, equal_nan=True)
    assert layer._packed is not None


def test_experts_have_as_many_rows_as_they_are_given() -> None:
    def routed(rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch._grouped_mm(rows, weight.transpose(1, 2), ends))

    rows, weight = torch.randn(12, 16, dtype=torch.bfloat16), torch.randn(4, 8, 16, dtype=torch.bfloat16)
    graph = recorded(routed, rows, weight, torch.tensor([3, 3, 7, 12], dtype=torch.int32))
    (kernel,) = linear_layers(graph.module.graph.nodes, "cpu")
    assert names(kernel) == ["_grouped_mm"]
    layer = packed(kernel, Layout.CONTIGUOUS)
    with torch.no_grad():
        for ends in ([3, 3, 7, 12], [0, 5, 6, 6], [0, 0, 0, 0], [12, 12, 12, 12]):
            given = torch.tensor(ends, dtype=torch.int32)
            parts = [rows[start:end] @ each.t() for start, end, each in zip([0, *ends], ends, weight, strict=False)]
            exact = torch.cat([*parts, rows.new_zeros(12 - ends[-1], 8)])
            result = layer(rows, weight.transpose(1, 2), given)
            torch.testing.assert_close(result[: ends[-1]], exact[: ends[-1]], rtol=3e-2, atol=3e-2)
        assert layer._packed is not None
        assert len(layer._packed.weights) == 4
        opt = mugraph.superoptimize(Experts(weight), (rows, given), profile=False, budget=5.0, cache="off")
    assert isinstance(opt, Partitioned)
    assert [names(each) for each in opt.cut.partition.library] == [["_grouped_mm"]]
    same(called(opt, (rows, given)), called(Experts(weight), (rows, given)))


class Experts(nn.Module):
    """Rows for each expert, and something that is no program."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(rows, self.weight.transpose(1, 2), ends).logcumsumexp(0)


def test_layers_of_what_is_computed_are_no_library_kernels() -> None:
    graph = recorded(lambda x, w: F.linear(x, w * 2), torch.randn(4, 8), torch.randn(6, 8))
    assert linear_layers(graph.module.graph.nodes, "cpu") == ()
    doubles = recorded(F.linear, torch.randn(4, 8).double(), torch.randn(6, 8).double())
    assert linear_layers(doubles.module.graph.nodes, "cpu") == ()


@pytest.mark.usefixtures("everything_packed")
def test_a_layer_that_is_left_is_packed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mugraph.pieces.library_ways.Library.is_faster", lambda library, kernel, deadline: True)
    module = nn.Sequential(nn.Linear(24, 2000), nn.ReLU(), nn.Linear(2000, 300)).eval()

    def counted(rows: torch.Tensor) -> torch.Tensor:
        first, activation, second = module
        between = torch.logcumsumexp(activation(first(rows)), 0)  # which no kernel joins
        made: torch.Tensor = second(between)
        return made

    rows = torch.randn(512, 24)
    with torch.no_grad():
        opt = mugraph.superoptimize(counted, (rows,), budget=10.0, cache="off")
    assert isinstance(opt, Partitioned)
    *_, last = opt.cut.partition.library
    assert names(last) == ["linear"]
    rows = torch.randn(512, 24)
    same(called(opt, (rows,)), called(counted, (rows,)), rtol=1e-3)
    with torch.no_grad():
        next(module[2].parameters()).mul_(2)
    same(called(opt, (rows,)), called(counted, (rows,)), rtol=1e-3)
    back = mugraph.load(opt.save(tmp_path / "saved"))
    assert isinstance(back, Partitioned)
    assert len(back.cut.partition.library) == len(opt.cut.partition.library)
    tensors = tuple(opt.calling.flatten((rows,), {}))
    same(called(back, tensors), [*called(counted, (rows,)), *tensors[1:]], rtol=1e-3)


def in_place(weight: torch.Tensor) -> torch.Tensor:
    return weight.mul_(2)


def behind_its_back(weight: torch.Tensor) -> torch.Tensor:
    weight.data.mul_(2)
    return weight


def another_one(weight: torch.Tensor) -> torch.Tensor:
    return weight * 2


def the_data_of_another_one(weight: torch.Tensor) -> torch.Tensor:
    weight.data = weight * 2
    return weight


@pytest.mark.parametrize("change", [in_place, behind_its_back, another_one, the_data_of_another_one])
def test_weights_that_change_are_packed_again(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    image, weight = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    runner = PackedConvolution(the_kernel(recorded(F.conv2d, image, weight)), Layout.CONTIGUOUS)
    with torch.no_grad():
        before = runner(image, weight)
        assert runner._packed is None  # what comes once is not worth it
        runner(image, weight)
        first = runner._packed
        torch.testing.assert_close(runner(image, weight.detach()), before)  # another look at the same memory
        assert runner._packed is first
        weight = change(weight)
        for _ in range(3):
            torch.testing.assert_close(runner(image, weight), 2 * before)
            assert runner._packed is not first
        assert runner._packed is not None


def test_memory_that_is_used_again_is_not_mistaken_for_what_was_there() -> None:
    image = torch.randn(1, 4, 8, 8)
    runner = PackedConvolution(the_kernel(recorded(F.conv2d, image, torch.randn(4, 4, 3, 3))), Layout.CONTIGUOUS)
    with torch.no_grad():
        for _ in range(20):
            weight = torch.randn(4, 4, 3, 3)
            torch.testing.assert_close(runner(image, weight), F.conv2d(image, weight))
            del weight


def test_threads_that_call_at_once_never_keep_weights_that_changed() -> None:
    graph = recorded(F.linear, torch.randn(4, 16), torch.randn(8, 16))
    (kernel,) = linear_layers(graph.module.graph.nodes, "cpu")
    rows, weight = torch.randn(4, 16), torch.randn(8, 16)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            layer = packed(kernel, Layout.CONTIGUOUS)
            for result in pool.map(layer, [rows] * 12, [weight] * 12):
                torch.testing.assert_close(result, F.linear(rows, weight))
            torch.testing.assert_close(layer(rows, weight), F.linear(rows, weight))
            assert layer._packed is not None
            assert len(layer._packed.sources) == 1
            weight.neg_()
            torch.testing.assert_close(layer(rows, weight), F.linear(rows, weight))


def test_weights_that_never_come_again_are_given_back() -> None:
    graph = recorded(F.linear, torch.randn(4, 16), torch.randn(8, 16))
    (kernel,) = linear_layers(graph.module.graph.nodes, "cpu")
    rows, weight, layers = torch.randn(4, 16), torch.randn(8, 16), [packed(kernel, Layout.CONTIGUOUS) for _ in range(2)]
    with forgotten():
        for layer in (*layers, *layers):
            torch.testing.assert_close(layer(rows, weight), F.linear(rows, weight))
        assert all(layer._packed is not None for layer in layers)
    for layer in layers:
        assert layer._packed is None
        assert layer._seen == ()
        for _ in range(2):
            torch.testing.assert_close(layer(rows, weight), F.linear(rows, weight))
        assert layer._packed is not None


def test_tensors_without_versions_are_not_kept() -> None:
    image = torch.randn(1, 4, 8, 8)
    runner = PackedConvolution(the_kernel(recorded(F.conv2d, image, torch.randn(4, 4, 3, 3))), Layout.CHANNELS_LAST)
    with torch.inference_mode():
        weight = torch.randn(4, 4, 3, 3)
        for _ in range(2):
            torch.testing.assert_close(runner(image, weight), F.conv2d(image, weight))
            weight.mul_(2)
    assert runner._packed is None


def test_slopes_that_are_not_finite_are_left_to_pytorch() -> None:
    module = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).eval()
    module[1].get_buffer("running_var")[2] = -1.0
    image = torch.randn(1, 4, 8, 8)
    graph = recorded(module, image)
    kernel, values = the_kernel(graph), values_of(graph, image)
    runner = PackedConvolution(kernel, Layout.CONTIGUOUS)
    torch.testing.assert_close(runner(*(values[node] for node in kernel.operands)), values[kernel.result], equal_nan=True)
    assert runner._packed is None


@pytest.fixture
def everything_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Library kernels are taken, and the result too, whatever the clock says."""
    monkeypatch.setattr("mugraph.pieces.library_ways.Library.layouts", lambda library, kernel, deadline: tuple(Layout))
    monkeypatch.setattr("mugraph.runtime.benchmarking.Duel.clear", True)


def fastest(layout: Layout) -> Callable[..., Partitioned]:
    """The choice of the result of one layout."""

    def chosen(results: list[Partitioned], *asked: Any) -> Partitioned:
        return next(result for result in results if result.cut.plan.layout is layout)

    return chosen


def test_a_result_without_any_mugraph_says_what_runs() -> None:
    """It had found kernels for 0 programs."""
    module, image = nn.Conv2d(3, 8, 3).eval(), torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        opt = mugraph.superoptimize(module, (image,), profile=False, cache="off")
        same(opt(image), module(image), rtol=1e-4)
    assert opt.found
    assert "no muGraph and 1 library kernel with packed weights" in repr(opt)
    words = f"found no muGraph: {PACKED} and PyTorch's calls run the function"
    assert words in repr(opt.report)
    assert _found_what(opt) == words
    assert "No muGraph, 1 kernel of the library with packed weights and 0 calls of PyTorch for cpu." in opt.to_html()


@pytest.mark.usefixtures("everything_packed")
@pytest.mark.parametrize("layout", Layout)
def test_a_network_runs_in_either_layout(layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mugraph.pieces.cutting._fastest", fastest(layout))
    torch.manual_seed(2)
    module, image = Residual(8).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        opt = mugraph.superoptimize(module, (image,), budget=20.0, cache="off")
    assert isinstance(opt, Partitioned)
    assert opt.found
    assert opt.cut.plan.layout is layout
    assert len(opt.cut.partition.library) == 3
    assert "and 3 library kernels with packed weights" in repr(opt)
    coverage = opt.report.coverage
    assert coverage is not None
    assert coverage.library.flops > 0.9 * (coverage.library + coverage.torch).flops
    assert {calls.operator for calls in coverage.left} <= {"max_pool2d", "logcumsumexp", "view"}
    for _ in range(2):
        image = torch.randn(2, 3, 16, 16)
        same(called(opt, (image,)), called(module, (image,)), rtol=1e-4)
        returned = opt(image)[0]
        assert returned.is_contiguous()
    with torch.no_grad():
        module.second.weight.mul_(1.5)
        module.norms[2].get_buffer("running_mean").add_(1)
    same(called(opt, (image,)), called(module, (image,)), rtol=1e-4)
    assert "3 kernels of the library with packed weights" in opt.to_html()

    opt.save(tmp_path / "saved")
    back = mugraph.load(tmp_path / "saved")
    assert isinstance(back, Partitioned)
    assert back.cut.plan.layout is layout
    assert len(back.cut.partition.library) == 3
    tensors = opt.calling.flatten((image,), {})
    same(called(back, tuple(tensors)), [*called(module, (image,)), *tensors[1:]], rtol=1e-4)
    back.save(tmp_path / "again")
    assert (tmp_path / "again" / "torch.json").read_text() == (tmp_path / "saved" / "torch.json").read_text()

    for finder in ("convolutions", "linear_layers"):
        monkeypatch.setattr(f"mugraph.pieces.saved_graph.{finder}", lambda calls, device: ())
    elsewhere = mugraph.load(tmp_path / "saved")  # where the library does not know these convolutions
    assert isinstance(elsewhere, Partitioned)
    assert not elsewhere.cut.partition.library
    same(called(elsewhere, tuple(tensors)), [*called(module, (image,)), *tensors[1:]], rtol=1e-4)


def test_what_there_is_no_time_for_is_tried_in_whole_calls() -> None:
    graph = recorded(F.conv2d, torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3))
    kernels = convolutions(graph.module.graph, "cpu")
    assert Ways.of(kernels, Library("cpu", Store.of("off")), Deadline(0.0), silent).layouts == {kernels[0]: tuple(Layout)}


def small_and_large() -> tuple[LibraryKernel, ...]:
    """The linear layers of a function, of which the second one has more work."""

    def layers(x: torch.Tensor, narrow: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, narrow).relu(), wide)

    graph = recorded(layers, torch.randn(4, 64), torch.randn(8, 64), torch.randn(256, 8))
    return linear_layers(graph.module.graph.nodes, "cpu")


def test_layers_with_the_most_work_are_timed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = small_and_large()
    asked: list[LibraryKernel] = []

    def until_time_is_out(library: Library, kernel: LibraryKernel, deadline: Deadline) -> bool:
        asked.append(kernel)
        return len(asked) == 1

    monkeypatch.setattr("mugraph.pieces.library_ways.Library.is_faster", until_time_is_out)
    assert Library("cpu", Store.of("off")).faster((small, large), Deadline(None), silent) == (large,)
    assert asked == [large, small]


def test_a_layer_that_takes_more_than_all_the_time_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a second was left for layers, and the one with the most work, timed first, took fifteen. It has six calls at
    least, as long as a busy machine makes them."""
    small, large = small_and_large()
    measured: list[LibraryKernel] = []

    def times(kernel: LibraryKernel, deadline: Deadline) -> tuple[float, ...]:
        measured.append(kernel)
        return 2.0, 1.0

    monkeypatch.setattr("mugraph.pieces.library_ways._measured", times)
    seconds = {small.product: 0.01, large.product: 0.11}
    monkeypatch.setattr("mugraph.pieces.library_ways.seconds_of_calls", lambda calls, device: seconds[calls[0]])
    monkeypatch.setattr("mugraph.pieces.library_ways.slowdown_of_calls", lambda: 2.0)
    store = Store.of("off")
    assert not Library("cpu", store).is_faster(large, Deadline(1.2)), "nor for a program that it is part of"
    assert Library("cpu", store).faster((small, large), Deadline(4.8), silent) == (small,)
    assert measured == [small]
    assert Library("cpu", store).faster((small, large), Deadline(None), silent) == (small, large)
