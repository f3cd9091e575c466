"""Programs between convolutions on images with channels last: they read and write these as they lie, and compute the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import mugraph
from mugraph.errors import InvalidInput
from mugraph.frontend.partitioning.channels_last import with_channels_last, with_images
from mugraph.frontend.partitioning.library import convolutions
from mugraph.frontend.partitioning.partition import Partition, partition
from mugraph.frontend.partitioning.splice import spliced
from mugraph.pieces.cutting import prepared
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.partitioned import Partitioned
from mugraph.runtime import build
from pieces.test_cutting import called, same
from pieces.test_packed_weights import fastest, recorded


class Between(nn.Module):
    """Two convolutions, and what the library does not do between and behind them."""

    def __init__(self, rank: int = 2) -> None:
        super().__init__()
        kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]
        self.first, self.second = kind(3, 8, 3, padding=1), kind(8, 5, 1)
        self.bias = nn.Parameter(torch.randn(8, *[1] * rank))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """From images [batch, 3, ...] to images of 5 channels, and to sums over those of 8."""
        inner = torch.relu(self.first(image)) + self.bias
        behind = torch.tanh(self.second(inner)).square() * 2
        return behind, inner.sum(1)


def cut(module: nn.Module, image: torch.Tensor) -> tuple[fx.GraphModule, Partition]:
    with torch.no_grad():
        ready = prepared(recorded(module, image)).module
    return ready, partition(ready.graph, "cpu", convolutions(ready.graph, "cpu"))


@pytest.mark.parametrize(("rank", "sizes"), [(2, (6, 7)), (3, (4, 3, 5))])
def test_programs_read_and_write_images_as_convolutions_do(rank: int, sizes: tuple[int, ...]) -> None:
    module, whole = cut(Between(rank).eval(), torch.randn(2, 3, *sizes))
    turned = with_channels_last(module.graph, whole)
    between, behind = turned.pieces
    assert between.images == {0}
    assert len(between.image_results) == 1, "what the convolution reads, and not the sums"
    assert behind.images == {0}
    assert not behind.image_results, "the function's result lies as usual"
    (read,) = (between.program.inputs()[number].output.shape for number in between.images)
    assert read == (2, *sizes, 8)
    assert [len(tensor.shape) for tensor in between.program.output_tensors].count(rank + 2) == 1
    for piece in turned.pieces:
        assert len(build(piece.program).graph.kernels()) == len(piece.program.kernels())


def test_images_along_one_dimension_lie_in_one_way() -> None:
    module, whole = cut(Between(1).eval(), torch.randn(2, 3, 6))
    assert with_channels_last(module.graph, whole).pieces == whole.pieces


def test_what_is_no_image_is_refused() -> None:
    _, whole = cut(Between(2).eval(), torch.randn(2, 3, 6, 7))
    piece = whole.pieces[0]
    for read, made in (((9,), ()), ((-1,), ()), ((1,), ()), ((), (7,))):
        with pytest.raises(ValueError, match="images"):
            with_images(piece, read, made)


def test_tensors_are_handed_on_as_they_lie() -> None:
    module, whole = cut(Between(2).eval(), torch.randn(2, 3, 6, 7))
    turned = with_channels_last(module.graph, whole)
    seen: dict[str, Any] = {}

    def kernels(number: int) -> Any:
        piece, ready = turned.pieces[number], build(turned.pieces[number].program)

        def run(*tensors: torch.Tensor) -> Any:
            seen[f"read by {number}"] = [tensors[index].is_contiguous() for index in piece.images]
            return ready(*tensors)

        return run

    run = spliced(
        module,
        turned,
        {piece: kernels(number) for number, piece in enumerate(turned.pieces)},
        {kernel: lambda *given, kernel=kernel: Layout.CHANNELS_LAST.of(kernel.as_torch()(*given)) for kernel in turned.library},
        Layout.CHANNELS_LAST.of,
    )
    tensors = [torch.randn(node.meta["val"].shape) for node in module.graph.nodes if node.op == "placeholder"]
    with torch.no_grad():
        wanted, got = module(*tensors), run(*tensors)
    same(list(got), list(wanted))
    assert [tensor.stride() for tensor in got] == [tensor.stride() for tensor in wanted]
    assert seen == {"read by 0": [True], "read by 1": [True]}, "without a copy of an image"


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_results_on_images_are_saved(pool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for method in ("layouts", "is_faster"):
        answer = tuple(Layout) if method == "layouts" else True
        monkeypatch.setattr(f"mugraph.pieces.library_ways.Library.{method}", lambda self, kernel, deadline, answer=answer: answer)
    monkeypatch.setattr("mugraph.runtime.benchmarking.Duel.clear", True)
    monkeypatch.setattr("mugraph.pieces.cutting._fastest", fastest(Layout.CHANNELS_LAST))
    torch.manual_seed(4)
    block = Between(2).eval()
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Hardtanh(-0.5, 0.5))

    class Pooled(nn.Module):
        """Pools before what is in between."""

        def __init__(self) -> None:
            super().__init__()
            self.block, self.before = block, module

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            """Images [batch, 2, height, width]."""
            result: torch.Tensor = self.block(pool(self.before(image), 2))[0]
            return result

    image, whole = torch.randn(2, 2, 18, 14), Pooled().eval()
    with torch.no_grad():
        opt = mugraph.superoptimize(whole, (image,), budget=30.0, cache="off")
    assert isinstance(opt, Partitioned)
    assert opt.found
    assert any(piece.images for piece in opt.cut.partition.pieces)
    same(called(opt, (image,)), called(whole, (image,)), rtol=1e-4)
    opt.save(tmp_path / "saved")
    back = mugraph.load(tmp_path / "saved")
    assert isinstance(back, Partitioned)
    tensors = tuple(opt.calling.flatten((image,), {}))
    same(called(back, tensors), [*called(whole, (image,)), *tensors[1:]], rtol=1e-4)
    images = [piece.images for piece in opt.cut.partition.pieces]
    assert [piece.images for piece in back.cut.partition.pieces] == images

    document = json.loads((tmp_path / "saved" / "torch.json").read_text())
    assert any(piece["images"] for piece in document["pieces"])
    for piece in document["pieces"]:
        piece["images"] = [99]
    folder = tmp_path / "saved"
    (folder / "torch.json").write_text(json.dumps(document))
    with pytest.raises(InvalidInput):
        mugraph.load(folder)
