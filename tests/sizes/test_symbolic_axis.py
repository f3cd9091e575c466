"""Random compositions of operators: where the rules say that slices are treated alike, they are."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_slices
from mugraph.sizes.dims import repeated

Step = Callable[[torch.Tensor, random.Random], torch.Tensor]
SHAPE = (7, 4, 6)
ROWS = 7


def weights(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def dim_of(x: torch.Tensor, rng: random.Random) -> int:
    return rng.randrange(-x.dim(), x.dim())


def permuted(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    return x.permute(rng.sample(range(x.dim()), x.dim()))


def reshaped(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Two neighbouring dimensions as one, or one as two."""
    dim = rng.randrange(x.dim())
    if rng.random() < 0.5 and x.dim() > 1:
        first = min(dim, x.dim() - 2)
        return x.flatten(first, first + 1)
    return torch.unflatten(x, dim, (2, -1) if rng.random() < 0.5 else (-1, 2))


def multiplied(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    y = torch.relu(x)
    match rng.randrange(6):
        case 0:
            return x @ y.transpose(-1, -2)
        case 1:
            return x.transpose(-1, -2) @ y
        case 2:
            return torch.matmul(x, weights(x.shape[-1], 3))
        case 3:
            return torch.matmul(weights(3, x.shape[-2]), x)
        case 4:
            return torch.matmul(x, weights(x.shape[-1]))
        case _:
            return F.linear(x, weights(5, x.shape[-1]), weights(5))


def indexed(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    dim = dim_of(x, rng)
    match rng.randrange(8):
        case 0:
            return x.narrow(dim, 0, 2)
        case 7:
            return x[(slice(None),) * (dim % x.dim()) + (0,)]
        case 1:
            return x.select(dim, -1)
        case 2:
            return x.flip(dim)
        case 3:
            return x.roll(rng.randrange(1, 4), dim)
        case 4:
            return x.chunk(2, dim)[0]
        case 5:
            return x.index_select(dim, torch.tensor([1, 0]))
        case _:
            return x.gather(dim, torch.argsort(x, dim))


def joined(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    join = rng.choice([torch.cat, torch.stack])
    return join([x, x.exp()], dim_of(x, rng))


def normalized(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    match rng.randrange(5):
        case 0:
            return F.layer_norm(x, x.shape[-1:])
        case 1:
            return F.rms_norm(x, x.shape[-1:])
        case 2:
            return F.group_norm(x, 2) if x.dim() > 2 else F.normalize(x, dim=-1)
        case 3:
            return F.batch_norm(x, None, None, training=True) if x.dim() > 1 else x
        case _:
            return F.softmax(x, dim_of(x, rng))


def attended(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, torch.sin(x), is_causal=rng.random() < 0.5)


def in_other_order(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Something done where another dimension stands before the first two or three, as one; then they are parted again."""
    first, last = sorted((dim_of(x, rng) % x.dim(), dim_of(x, rng) % x.dim()))
    moved = x.movedim(last, first)
    together = moved.flatten(first, min(first + rng.randint(1, 2), x.dim() - 1))
    parted = moved.shape if rng.random() < 0.7 else [*moved.shape[:first], -1, *moved.shape[first + 1 :]]
    steps: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        torch.sin,
        torch.relu,
        lambda y: y + y.roll(1, dim_of(y, rng)),
        lambda y: y * together,
    )
    return rng.choice(steps)(together).reshape(parted).movedim(first, last)


def again(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Elements several times."""
    if rng.random() < 0.5:
        return x.repeat_interleave(rng.choice((1, 2, 3)), dim_of(x, rng))
    return x.repeat([rng.choice((1, 1, 2)) for _ in range(x.dim() + rng.randrange(2))])


STEPS: tuple[Step, ...] = (
    permuted,
    reshaped,
    multiplied,
    indexed,
    joined,
    normalized,
    attended,
    in_other_order,
    again,
    lambda x, rng: x.sum(dim_of(x, rng), keepdim=rng.random() < 0.5),
    lambda x, rng: x - x.amax(dim_of(x, rng), keepdim=True),
    lambda x, rng: x.var(dim_of(x, rng), keepdim=True) + x,
    lambda x, rng: x.cumsum(dim_of(x, rng)),
    lambda x, rng: x.sort(dim_of(x, rng)).values,
    lambda x, rng: x.unsqueeze(dim_of(x, rng)).squeeze(dim_of(x, rng)),
    lambda x, rng: x + x.transpose(dim_of(x, rng), dim_of(x, rng)),
    lambda x, rng: x.mul(2).sub_(1).relu_(),
    lambda x, rng: torch.where(x > 0, x, x.mean(dim_of(x, rng), keepdim=True)),
    lambda x, rng: F.pad(x, (1, 0, 0, 1)),
    lambda x, rng: x.tril(rng.randrange(-2, 3)),
    lambda x, rng: x[None].expand(2, *x.shape).reshape(-1, *x.shape[1:]),
    lambda x, rng: x * torch.ones(x.shape[0], dtype=x.dtype)[(...,) + (None,) * (x.dim() - 1)],
    lambda x, rng: torch.einsum("...i,...j->...ij", x, x),
    lambda x, rng: x.reshape(x.shape[0], -1).sigmoid(),
)  # fmt: skip


def composed(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Some of the steps, which choose alike at every call."""

    def run(x: torch.Tensor) -> torch.Tensor:
        rng = random.Random(seed)
        for step in rng.choices(STEPS, k=rng.randint(1, 3)):
            x = step(x, rng)
        return x

    return run


class Called(torch.nn.Module):
    """A function as a module."""

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x)


def is_accepted(fn: Callable[[torch.Tensor], torch.Tensor], place: int, x: torch.Tensor) -> bool:
    symbol = torch.export.Dim("rows", min=2, max=64)
    try:
        program = torch.export.export(Called(fn), (x,), dynamic_shapes=({place: symbol},), strict=False)
    except Exception:  # whatever keeps it from being recorded
        return False
    try:
        check_slices(program.graph)
    except SizeMatters:
        return False
    return True


def axis_between(small: torch.Tensor, large: torch.Tensor) -> tuple[int, int] | None:
    """The dimension in which results for 5 and for 7 rows differ, and how many elements a row has of it."""
    differing = [dim for dim, (one, other) in enumerate(zip(small.shape, large.shape, strict=True)) if one != other]
    if not differing:
        return None
    (dim,) = differing
    return dim, large.shape[dim] // ROWS


def accepted_and_right(seeds: range) -> int:
    """How many compositions the rules accept; each of them treats slices alike in float64, or this fails."""
    accepted = 0
    for seed in seeds:
        fn, place = composed(seed), seed % 3
        shape = list(SHAPE)
        shape[0], shape[place] = shape[place], ROWS
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        try:
            whole = fn(x)
        except (RuntimeError, IndexError):  # shapes do not fit
            continue
        if not is_accepted(fn, place, x):
            continue
        accepted += 1
        rows = torch.tensor([6, 2, 2, 0, 5])
        part = fn(x.index_select(place, rows))
        found = axis_between(part, whole)
        if found is None:
            torch.testing.assert_close(part, whole, equal_nan=True)
            continue
        dim, width = found
        wanted = torch.unflatten(whole, dim, (ROWS, width)).index_select(dim, rows).flatten(dim, dim + 1)
        torch.testing.assert_close(part, wanted, equal_nan=True, msg=f"composition {seed}")
        assert fn(repeated(x, place, 9)).shape[dim] == 9 * width
    return accepted


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_what_is_accepted_acts_on_slices(first: int) -> None:
    assert accepted_and_right(range(first, first + 40)) >= 8


def test_of_slices_those_that_take_all_of_the_axis_are_accepted() -> None:
    x = torch.randn(7, 4, 6)
    whole: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (lambda x: x[:, 0], lambda x: x[0:], lambda x: x[:, 1:3].exp())
    parts: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda x: x[1:],
        lambda x: x[:-1],
        lambda x: x[::2],
        lambda x: x[-3:],
        lambda x: x[:2],
        lambda x: x[: x.shape[0] // 2],
        lambda x: x[:100] + 1,  # of all sizes that are recorded, not of larger ones
    )
    assert [is_accepted(fn, 0, x) for fn in whole] == [True] * len(whole)
    assert [is_accepted(fn, 0, x) for fn in parts] == [False] * len(parts)
