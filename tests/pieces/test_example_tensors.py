"""Tensors that stand for those of a program while its calls are timed."""

from __future__ import annotations

import pytest
import torch

from mugraph.pieces.example_tensors import example_of, examples, memory_reused


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (1025, 2048)])
def test_calls_are_timed_with_tensors_that_lie_as_others_and_have_no_two_equal_rows(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    original = torch.empty(shape, dtype=dtype).transpose(0, -1)
    example = example_of(original)
    assert (example.shape, example.stride(), example.dtype) == (original.shape, original.stride(), dtype)
    if dtype.is_floating_point:
        rows = example.transpose(0, -1).double().reshape(shape or (1,)).numpy()
        assert ((rows >= 0.09) & (rows <= 1.13)).all()
        assert len({row.tobytes() for row in rows}) == len(rows)


def test_examples_lie_beside_each_other() -> None:
    wanted = [torch.empty(5, 7), torch.empty(3).expand(4, 3), torch.empty(2, 6, dtype=torch.bfloat16), torch.empty(0, 3)]
    wanted += [torch.empty(6, 4).T, torch.empty(3, dtype=torch.int64), torch.empty(())]
    with examples(wanted) as found:
        for tensor, like in zip(found, wanted, strict=True):
            assert (tensor.shape, tensor.stride(), tensor.dtype) == (like.shape, like.stride(), like.dtype)
            assert tensor.data_ptr() % 64 == 0
            if tensor.is_floating_point():
                assert ((tensor >= 0.09) & (tensor <= 1.13)).all()
        for number, tensor in enumerate(found[0::4]):
            tensor.fill_(number)
        assert (found[0] == 0).all()
        assert (found[4] == 1).all()


def test_memory_is_reused_inside_alone_and_by_one_at_a_time() -> None:
    large, small = torch.empty(64, 64), torch.empty(8, 8)
    with memory_reused():
        with examples([large]) as first, examples([small]) as second:
            assert first[0].data_ptr() != second[0].data_ptr()
            place = first[0].data_ptr()
        with examples([small, small]) as [one, other], memory_reused():
            assert one.data_ptr() == place
            assert other.data_ptr() == place + small.nbytes
        with examples([large]) as again:
            assert again[0].data_ptr() == place
            held = again[0]
    with examples([large]) as outside:
        assert outside[0].data_ptr() != held.data_ptr()


def test_memory_that_was_written_to_is_not_used_again() -> None:
    with memory_reused():
        with examples([torch.empty(16)]) as [tensor]:
            tensor.fill_(float("nan"))
        with examples([torch.empty(16)]) as [again]:
            assert again.isfinite().all()


def test_nothing_is_kept_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.devices.host.free_memory", lambda: 0)
    with memory_reused():
        with examples([torch.empty(16)]) as [tensor]:
            pass
        with examples([torch.empty(16)]) as [again]:
            assert again.data_ptr() != tensor.data_ptr()
