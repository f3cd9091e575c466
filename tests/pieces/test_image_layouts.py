"""Images brought from one layout to the other, by kernels of ours and by PyTorch."""

from __future__ import annotations

import pytest
import torch

from mugraph.errors import TargetUnavailable
from mugraph.pieces import image_layouts
from mugraph.pieces.image_layouts import Layout, as_recorded

SHAPES = [(2, 8, 40, 30), (1, 64, 17, 19), (3, 5, 7, 20, 11), (2, 100, 6, 16), (1, 3, 128, 128), (1, 20000, 1, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_copy_has_the_elements_in_the_other_layout(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    image = torch.randn(shape).to(dtype)
    for layout in (Layout.CHANNELS_LAST, Layout.CONTIGUOUS):
        copy = layout.of(image)
        assert torch.equal(copy, image)
        assert copy.stride() == image.contiguous(memory_format=layout.format_of(image.dim())).stride()
        assert layout.of(copy) is copy
        image = copy


def test_images_that_lie_otherwise_and_rows_are_copied_by_pytorch() -> None:
    for image in (torch.randn(4, 16, 64, 64)[:, :, ::2], torch.randn(2, 64, 600).transpose(1, 2), torch.randn(64, 64).T):
        for layout in Layout:
            copy = layout.of(image)
            assert torch.equal(copy, image)
            assert copy.is_contiguous(memory_format=layout.format_of(image.dim()))


def test_what_was_recorded_is_given_back_with_its_strides() -> None:
    image = torch.randn(2, 16, 32, 32).contiguous(memory_format=torch.channels_last)
    for strides in ((16384, 1024, 32, 1), (16384, 1, 512, 16), (16384, 1024, 1, 32)):
        copy = as_recorded(image, strides)
        assert torch.equal(copy, image)
        assert copy.stride() == strides
    assert as_recorded(image, image.stride()) is image


def test_pytorch_copies_where_nothing_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(graph: object) -> None:
        raise TargetUnavailable("no compiler")

    monkeypatch.setattr(image_layouts, "build", unavailable)
    image_layouts._kernel.cache_clear()
    image = torch.randn(2, 24, 30, 40)
    assert torch.equal(Layout.CHANNELS_LAST.of(image), image)
    image_layouts._kernel.cache_clear()
