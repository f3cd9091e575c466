"""Parts of graphs of `torch.compile` that reduce a size that varies: kernels of a few capacities, right at every size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mugraph.frontend.symbolic_sizes.masked_parts import masked_parts
from mugraph.frontend.symbolic_sizes.slots import Place
from mugraph.integrations.background import BackgroundGraph, Comparison, Queue, Turn
from mugraph.integrations.masked_run import MaskedRun
from mugraph.integrations.torch_compile import compilations
from mugraph.sizes.capacities import AtCapacity

from .networks import Decoder

pytestmark = pytest.mark.usefixtures("first_found")

ALL: dict[str, Any] = {"budget": 120.0, "keep": "all", "strict": True}


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    compilations.clear()
    run: Callable[..., Any] = torch.compile(fn, backend="mugraph", options={**ALL, **options})
    return run


def cache(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    pair = torch.randn(1, 2, size, 8), torch.randn(1, 2, size, 8)
    for tensor in pair:
        torch._dynamo.mark_dynamic(tensor, 2)
    return pair


def test_a_cache_grows_and_nothing_is_compiled_again(caplog: pytest.LogCaptureFixture) -> None:
    model = Decoder().eval()
    fast = compiled(model, budget=90.0)
    with torch.inference_mode(), caplog.at_level(logging.INFO, logger="mugraph.torch_compile"):
        k, v = cache(5)
        theirs = (k, v)
        for step in range(100):
            x = torch.randn(1, 1, 32)
            y, k, v = fast(x, k, v)
            wanted, *theirs = model(x, *theirs)
            torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close((k, v), tuple(theirs))
            if not step:
                first = len(compilations)
        assert len(compilations) == first <= 3, (
            "the graph, and its attention at 1024 slots in one or two parts of the search space"
        )
        assert compilations[1].partition.byte_share == 1.0
        assert caplog.text.count("is optimized for 1024 elements") == 1


def test_layers_share_kernels_and_keep_their_own_weights_and_caches(caplog: pytest.LogCaptureFixture) -> None:
    layers = [Decoder().eval() for _ in range(3)]

    def model(x: torch.Tensor, *caches: torch.Tensor) -> list[torch.Tensor]:
        grown = list[torch.Tensor]()
        for number, layer in enumerate(layers):
            x, k, v = layer(x, *caches[2 * number : 2 * number + 2])
            grown += k, v
        return [x, *grown]

    fast = compiled(model)
    with torch.inference_mode(), caplog.at_level(logging.INFO, logger="mugraph.torch_compile"):
        ours = theirs = [tensor for _ in layers for tensor in cache(5)]
        for _ in range(8):
            x = torch.randn(1, 1, 32)
            (y, *ours), (wanted, *theirs) = fast(x, *ours), model(x, *theirs)
            torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(ours, theirs)
    assert "3 parts of a graph reduce a symbolic size" in caplog.text
    assert caplog.text.count("is optimized for 1024 elements") == 1


def test_attentions_whose_results_lie_otherwise_share_nothing() -> None:
    def attend(a: torch.Tensor, b: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b = b.transpose(1, 2)
        first, second = (F.scaled_dot_product_attention(q, *kv) for q, kv in ((a, (k, v)), (b, (v, k))))
        return first, second.transpose(1, 2).view(2, 3, -1)

    fast = compiled(attend)
    with torch.inference_mode():
        given = torch.randn(2, 4, 3, 16), torch.randn(2, 3, 4, 16), torch.randn(2, 4, 40, 16), torch.randn(2, 4, 40, 16)
        for tensor in given[2:]:
            torch._dynamo.mark_dynamic(tensor, 2)
        for ours, theirs in zip(fast(*given), attend(*given), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            assert ours.stride() == theirs.stride()


def test_larger_capacities_are_made_when_a_call_needs_them() -> None:
    fast = compiled(lambda x, y: torch.softmax(y @ x, 0) @ y)
    with torch.inference_mode():
        counts = []
        for size in (7, 1024, 1025, 4095, 4096, 30):
            x, y = torch.randn(16), torch.randn(size, 16)
            torch._dynamo.mark_dynamic(y, 0)
            torch.testing.assert_close(fast(x, y), torch.softmax(y @ x, 0) @ y, rtol=1e-4, atol=1e-5)
            counts.append(len(compilations))
    assert counts[0] == counts[1] < counts[2] == counts[3] == counts[4] == counts[5], "1024 slots, and 8192"


class Counted(MaskedRun):
    """Capacities that nothing is computed for; PyTorch is as fast up to a size."""

    def __init__(
        self,
        in_place: bool,
        slow_until: int = 0,
        more: int = 0,
        limit: int = 8,
        masks: tuple[int, ...] = (),
        turn: Turn | None = None,
    ) -> None:
        part: Any = SimpleNamespace(masked=SimpleNamespace(more=more, inputs=(Place(0, 0),)), strides=[], masks=masks)
        super().__init__(part, lambda module, masked, budget: None, limit, turn=turn)
        self.reads_in_place, self.slow_until, self.made = in_place, slow_until, list[int]()

    def _compiled(self, capacity: int, inputs: Sequence[torch.Tensor], budget: float | None) -> Any:
        self.made.append(capacity)
        return SimpleNamespace(capacity=capacity, in_place=self.reads_in_place or None)

    def _is_faster(self, runner: AtCapacity, size: int, inputs: Sequence[torch.Tensor]) -> bool:
        return size > self.slow_until

    def runs(self, size: int) -> int | None:
        """The capacity whose kernels run a size."""
        runner = self._runner(size, [torch.empty(size, 8)])
        return None if runner is None else runner.capacity


def test_kernels_that_read_tensors_where_they_lie_serve_smaller_sizes_too() -> None:
    run = Counted(in_place=True)
    assert [run.runs(size) for size in (17, 1, 128, 1024, 1025, 8192, 100)] == [1024] * 4 + [8192] * 2 + [1024]
    assert run.made == [1024, 8192]


def test_kernels_that_copy_are_made_for_each_capacity() -> None:
    run = Counted(in_place=False)
    assert [run.runs(size) for size in (17, 128, 129, 1024)] == [128, 128, 1024, 1024]
    assert run.made == [1024, 128]


def test_sizes_at_which_pytorch_is_faster_are_its_own() -> None:
    run = Counted(in_place=True, slow_until=100)
    assert [run.runs(size) for size in (17, 100, 128, 129, 1024)] == [None, None, 1024, 1024, 1024]
    run.slow_until = 0
    assert [run.runs(size) for size in (31, 64, 63)] == [None, None, 1024], "as at the first call of about as many, 17 and 100"
    assert run.made == [1024]


def test_who_was_slow_while_other_programs_ran_is_looked_at_again() -> None:
    run = Counted(in_place=True, slow_until=100)
    assert run.runs(17) is None
    run.slow_until = 0
    assert [run.runs(17) for _ in range(33)] == [None] * 31 + [1024] * 2
    run.slow_until = 100
    assert [run.runs(20) for _ in range(1024)] == [1024] * 1022 + [None] * 2
    assert run.runs(65) is None, "the first of about as many"


def test_who_was_slow_is_looked_at_again_behind_calls() -> None:
    work: list[Any] = []
    run = Counted(in_place=True, slow_until=100, turn=Turn(None, work.append))
    assert run.runs(17) is None
    run.slow_until = 0
    assert [run.runs(17) for _ in range(40)] == [None] * 40
    (again,) = work
    assert isinstance(again, Comparison), "no process is started for it"
    again.work(BackgroundGraph(lambda: None, Queue()))
    assert run.runs(17) == 1024


def test_work_behind_a_call_reads_what_it_was_given() -> None:
    """Integers and masks as they were in the call; numbers of a cache are not read, and not copied."""
    work, seen = list[Any](), list[Sequence[torch.Tensor]]()
    run = Counted(in_place=True, turn=Turn(work.append))
    keys, mask, places = torch.zeros(5, 2), torch.ones(5, dtype=torch.bool), torch.arange(5)
    run._take(seen.append, [keys, mask, places])
    mask.zero_()
    places.add_(7)
    work.pop()(None)
    (given,) = seen
    assert given[0] is keys
    assert given[1].all()
    assert given[2].tolist() == [0, 1, 2, 3, 4]


def test_kernels_that_copy_are_compared_at_the_sizes_that_are_copied_most_for() -> None:
    run = Counted(in_place=False, slow_until=100)
    assert [run.runs(size) for size in (17, 128, 129, 1024)] == [None, None, 1024, 1024]


def test_kernels_are_looked_at_with_masks_that_hide_much_and_no_row() -> None:
    run = Counted(in_place=True, masks=(0, 1))
    for size in (1, 65, 127):
        added, shown = run._hiding([torch.zeros(2, 1, 3, size), torch.zeros(size, dtype=torch.bool)[None]])
        seen = (added == 0).sum(-1).flatten().tolist()
        assert 0 < min(seen) <= seen[0] == sorted(seen)[0]
        assert (added == 0).sum() + (added == -torch.inf).sum() == added.numel()
        assert len(set(seen)) == (1 if size == 1 else 6)
        assert shown.sum() == size - size // 2


def test_a_mask_that_hides_a_row_decides_for_no_others() -> None:
    masked = SimpleNamespace(more=0, inputs=(Place(0, 0), Place(1, 0)))
    part: Any = SimpleNamespace(masked=masked, strides=[], masks=(1,), original=lambda *inputs: [])
    run, ran = MaskedRun(part, lambda module, masked, budget: None, 8), list[int]()
    kernels: Any = lambda size, inputs: ran.append(size)  # noqa: E731
    run._is_faster(kernels, 8, [torch.randn(8, 2), torch.zeros(1, 8, dtype=torch.bool)])
    assert {*ran} == {8}


def test_room_is_bounded_by_what_inputs_take() -> None:
    run = Counted(in_place=True, more=1)
    wide = torch.empty(4, 1 << 14)  # 64 KiB an element
    assert run._wanted(4, [wide]) == [127, 1023]
    assert run._wanted(4, [torch.empty(4, 1 << 16)]) == [127, 255]
    assert run._wanted(4, [torch.empty(4, 1 << 20)]) == [127]


def test_tensors_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(size: int) -> None:
        q, k, v = (torch.randn(1, rows, 4, 8).transpose(1, 2) for rows in (1, size, size))
        for tensor in (k, v):
            torch._dynamo.mark_dynamic(tensor, 2)
        wanted = F.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(fast(q, k, v), wanted, rtol=1e-4, atol=1e-5)

    def copied(*arguments: Any) -> None:
        raise AssertionError("inputs are put into slots")

    fast = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    with torch.inference_mode():
        attend(5)  # for which kernels are made
        monkeypatch.setattr(AtCapacity, "arguments", copied)
        for size in (2, 31, 32, 33, 127, 128, 509, 1023, 1024, 64):
            attend(size)


def test_random_numbers_of_others_stay_what_they_are() -> None:
    fast, x = compiled(lambda x: x.exp().sum(0) * 2), torch.ones(7, 8)
    torch._dynamo.mark_dynamic(x, 0)
    state = torch.random.get_rng_state()
    with torch.inference_mode():
        fast(x)
    assert len(compilations) == 2
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("limit", "size", "wanted"),
    [
        (1, 4000, [4096]),
        (2, 4000, [2048, 4096]),
        (3, 4000, [1024, 2048, 4096]),
        (8, 4000, [1024, 2048, 4096, 8192, 16384]),
        (1, 5, [128]),
        (8, 129, [256, 512, 1024]),
    ],
)
def test_capacities_that_a_call_asks_for_hold_it_however_few(limit: int, size: int, wanted: list[int]) -> None:
    part: Any = SimpleNamespace(masked=SimpleNamespace(more=0, inputs=(Place(0, 0),)), strides=[])
    run = MaskedRun(part, lambda module, masked, budget: None, limit)
    run.capacities = {128: None} if limit == 8 and size == 129 else {}
    assert run._wanted(size, [torch.empty(size, 1 << 20, device="meta")]) == wanted


def test_means_and_products_over_the_size_have_kernels() -> None:
    w = torch.randn(24, 24)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        centred = x - x.mean(0, keepdim=True)
        return (centred.T @ centred) @ w, centred.exp().sum(0)

    fast = compiled(fn)
    with torch.inference_mode():
        for size in (9, 2, 3, 64, 127):
            x = torch.randn(size, 24)
            torch._dynamo.mark_dynamic(x, 0)
            for ours, theirs in zip(fast(x), fn(x), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_tensors_of_different_sizes_are_run_by_pytorch() -> None:
    fast = compiled(lambda x, y: torch.softmax(x, 0).sum(-1).unsqueeze(-1) * y.sum(0))
    with torch.inference_mode():
        for one, other in ((5, 5), (6, 9), (17, 3)):
            x, y = torch.randn(one, 8), torch.randn(other, 8)
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(y, 0)
            torch.testing.assert_close(fast(x, y), torch.softmax(x, 0).sum(-1).unsqueeze(-1) * y.sum(0))


def test_what_is_not_a_number_behaves_as_in_pytorch() -> None:
    fast = compiled(lambda q, k, v: torch.softmax(k @ q, 0) @ v)
    with torch.inference_mode():
        for place, number in ((0, float("nan")), (4, float("inf")), (8, -float("inf"))):
            q, k, v = torch.rand(16), torch.randn(9, 16), torch.randn(9, 16)
            for tensor in (k, v):
                torch._dynamo.mark_dynamic(tensor, 0)
            v[place, 3] = number
            torch.testing.assert_close(fast(q, k, v), torch.softmax(k @ q, 0) @ v, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_kernels_that_are_slower_are_not_used() -> None:
    fast = compiled(lambda x: x.sum(0), keep="faster")
    with torch.inference_mode():
        for size in (4, 5, 90):
            x = torch.randn(size, 4)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(fast(x), x.sum(0))


def test_what_else_is_computed_at_a_size_has_kernels_from_the_first_call_on() -> None:
    w = torch.randn(16, 16)
    fast = compiled(lambda x, y: (torch.softmax(x @ w, -1) * 2, y.mean(0) * 2))
    with torch.inference_mode():
        counts = []
        for _ in range(4):
            x, y = torch.randn(20, 16), torch.randn(20, 16)
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(y, 0)
            ours, mean = fast(x, y)
            torch.testing.assert_close(ours, torch.softmax(x @ w, -1) * 2)
            torch.testing.assert_close(mean, y.mean(0) * 2)
            counts.append(len(compilations))
    assert [count - counts[0] for count in counts] == [0, 0, 0, 0], "the rows and the mean at the first call, and nothing since"
    assert sum(done.partition.byte_share == 1.0 for done in compilations) >= 3, "rows at two sizes, and the mean"


W = torch.linspace(-1.0, 1.0, 1024).view(32, 32)


def padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Two layers of attention of which each sequence sees the keys from its first on."""
    places = torch.arange(k.shape[2])[None, None, None, :]
    shown = (places >= first[:, None, None, None]).expand(-1, -1, q.shape[2], -1)
    added = torch.where(shown, 0.0, -torch.inf)
    for _ in range(2):
        q = F.scaled_dot_product_attention(q @ W, k, v, attn_mask=added, enable_gqa=True)
    return q


def padded_inputs(size: int, first: Sequence[int]) -> list[torch.Tensor]:
    q, k, v = torch.randn(2, 4, 1, 32), *(torch.randn(2, 9, size, 32)[:, 3:5] for _ in range(2))
    for tensor in (k, v):
        torch._dynamo.mark_dynamic(tensor, 2)
    return [q, k, v, torch.tensor(first)]


def assert_padded(fast: Callable[..., Any], given: Sequence[torch.Tensor]) -> None:
    torch.testing.assert_close(fast(*given), padded(*given), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_masks_of_positions_are_read_by_the_kernels_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = compiled(padded, budget=90.0)
    with torch.inference_mode():
        assert_padded(fast, padded_inputs(37, [0, 5]))
        first = len(compilations)
        assert 1.0 in [made.partition.byte_share for made in compilations]
        monkeypatch.setattr(AtCapacity, "arguments", None)  # inputs are put into slots
        for size in (3, 31, 32, 33, 61, 61, 61, 61, 127, 509, 1023, 1024):
            for begin in ([0, 0], [size - 1, 1], [size // 2, 0]):
                assert_padded(fast, padded_inputs(size, begin))
        assert len(compilations) == first


def test_where_a_mask_hides_all_keys_attention_is_0_as_in_pytorch() -> None:
    fast = compiled(padded)
    with torch.inference_mode():
        for first in ([0, 5], [40, 5], [40, 40], [3, 39]):
            assert_padded(fast, padded_inputs(40, first))


def test_numbers_behind_a_mask_that_are_none_act_as_in_pytorch() -> None:
    fast = compiled(padded)
    with torch.inference_mode():
        for number in (float("nan"), float("inf")):
            given = padded_inputs(40, [1, 7])
            given[2][1, :, 2, 3] = number
            assert_padded(fast, given)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.cumsum(0).sum(0),
        lambda x: x.flip(0).softmax(0),
        lambda x: x.sum(0) / x.shape[0],
        lambda x: (x + torch.arange(x.shape[0])[:, None]).sum(0),
        lambda x: x[1:].sum(0),
        lambda x: x.sort(0).values.amax(0),
    ],
)
def test_what_else_depends_on_the_size_stays_with_pytorch(fn: Callable[..., Any]) -> None:
    fast = compiled(fn)
    with torch.inference_mode():
        for size in (4, 5, 9):
            x = torch.randn(size, 8)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(fast(x), fn(x))


def test_no_part_is_made_of_a_graph_of_fixed_sizes() -> None:
    assert masked_parts(torch.fx.symbolic_trace(lambda x: x + 1)) == []
