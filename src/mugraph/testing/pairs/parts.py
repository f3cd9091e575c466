"""Families of parts of tensors: slices, concatenations, rotations, borders, and what is computed of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import avg_pool1d, max_pool1d, pad, softmax

from mugraph.testing.pairs.pair import Pair, Shape, Truth, family, pair, register

EQUAL, DIFFERENT, PART, NEARLY, EMPTY, READING = Truth

ByAxis = Callable[[torch.Tensor, int], torch.Tensor]
PLACES: tuple[tuple[Shape, int], ...] = (((6,), 0), ((3, 4), 1), ((4, 3), 0), ((4, 4), 0), ((2, 6, 3), 1))
"""Shapes, and the axis that has parts: of even sizes."""


def _halves(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.chunk(x, 2, dim)
    return first, second


def _every_other(x: torch.Tensor, dim: int, start: int) -> torch.Tensor:
    return x[(slice(None),) * dim + (slice(start, None, 2),)]


def _turned(x: torch.Tensor, dim: int, sign: float = -1.0) -> torch.Tensor:
    first, second = _halves(x, dim)
    return torch.cat([sign * second, first], dim)


ROWS: tuple[tuple[str, Truth, str, ByAxis, ByAxis], ...] = (
    ("slices", EQUAL, "halves put together", lambda x, d: torch.cat(_halves(x, d), d) * 2, lambda x, d: x + x),
    ("slices", DIFFERENT, "halves exchanged", lambda x, d: torch.cat(_halves(x, d), d) * 2,
     lambda x, d: torch.cat(_halves(x, d)[::-1], d) * 2),
    ("slices", EQUAL, "a sum in two parts", lambda x, d: x.sum(d),
     lambda x, d: _halves(x, d)[0].sum(d) + _halves(x, d)[1].sum(d)),
    ("slices", DIFFERENT, "a sum without its last element", lambda x, d: x.sum(d),
     lambda x, d: x.narrow(d, 0, x.shape[d] - 1).sum(d)),
    ("slices", DIFFERENT, "a sum with one element twice", lambda x, d: x.sum(d),
     lambda x, d: torch.cat([x.narrow(d, 1, x.shape[d] - 1), x.narrow(d, 1, 1)], d).sum(d)),
    ("slices", DIFFERENT, "a part that starts one later", lambda x, d: x.narrow(d, 0, 2) * 3, lambda x, d: x.narrow(d, 1, 2) * 3),
    ("slices", DIFFERENT, "a part for all, and all", lambda x, d: x * x.narrow(d, 0, 1), lambda x, d: x * x),
    ("slices", EQUAL, "a part of a function", lambda x, d: torch.exp(x).narrow(d, 1, 2),
     lambda x, d: torch.exp(x.narrow(d, 1, 2))),
    ("slices", DIFFERENT, "a part of softmax", lambda x, d: softmax(x, d).narrow(d, 0, 2),
     lambda x, d: softmax(x.narrow(d, 0, 2), d)),
    ("slices", EQUAL, "softmax of both halves", lambda x, d: torch.cat([softmax(part, d) for part in _halves(x, d)], d),
     lambda x, d: torch.cat([softmax(part + 2, d) for part in _halves(x, d)], d)),
    ("slices", DIFFERENT, "softmax whose halves are shifted apart", lambda x, d: softmax(x, d),
     lambda x, d: softmax(torch.cat([_halves(x, d)[0], _halves(x, d)[1] + 1], d), d)),
    ("slices", EQUAL, "a maximum in two parts", lambda x, d: x.amax(d),
     lambda x, d: torch.maximum(_halves(x, d)[0].amax(d), _halves(x, d)[1].amax(d))),
    ("slices", DIFFERENT, "a maximum of one part", lambda x, d: x.amax(d), lambda x, d: _halves(x, d)[0].amax(d)),
    ("orders", EQUAL, "backwards twice", lambda x, d: torch.exp(x.flip(d)).flip(d), lambda x, d: torch.exp(x)),
    ("orders", DIFFERENT, "backwards once", lambda x, d: torch.exp(x.flip(d)), lambda x, d: torch.exp(x)),
    ("orders", EQUAL, "rotated there and back", lambda x, d: (x.roll(1, d) * 2).roll(-1, d), lambda x, d: 2 * x),
    ("orders", DIFFERENT, "rotated there twice", lambda x, d: (x.roll(1, d) * 2).roll(1, d), lambda x, d: 2 * x),
    ("orders", EQUAL, "a sum of what is rotated", lambda x, d: x.roll(1, d).sum(d), lambda x, d: x.sum(d)),
    ("orders", EQUAL, "halves turned four times", lambda x, d: _turned(_turned(_turned(_turned(x, d), d), d), d) + x,
     lambda x, d: 2 * x),
    ("orders", DIFFERENT, "halves turned twice", lambda x, d: _turned(_turned(x, d), d) + x, lambda x, d: 2 * x),
    ("orders", DIFFERENT, "the other half negated", lambda x, d: x + _turned(x, d), lambda x, d: x - _turned(x, d)),
    ("orders", EQUAL, "every other element beside the others",
     lambda x, d: torch.cat([_every_other(x, d, 1), _every_other(x, d, 0)], d).sum(d), lambda x, d: x.sum(d)),
    ("orders", DIFFERENT, "every other element, and the others", lambda x, d: _every_other(x, d, 0) * 2,
     lambda x, d: _every_other(x, d, 1) * 2),
    ("borders", EQUAL, "a border cut off", lambda x, d: torch.cat([x * 0, x, x * 0], d).narrow(d, x.shape[d], x.shape[d]) * 2,
     lambda x, d: 2 * x),
    ("borders", DIFFERENT, "a border cut off one too late",
     lambda x, d: torch.cat([x * 0, x, x * 0], d).narrow(d, x.shape[d] + 1, x.shape[d]) * 2, lambda x, d: 2 * x),
    ("borders", EQUAL, "a sum with zeros", lambda x, d: torch.cat([x, torch.zeros_like(x)], d).sum(d), lambda x, d: x.sum(d)),
    ("borders", DIFFERENT, "a maximum with zeros", lambda x, d: torch.cat([x, torch.zeros_like(x)], d).amax(d),
     lambda x, d: x.amax(d)),
    ("borders", DIFFERENT, "softmax with zeros", lambda x, d: softmax(torch.cat([x, torch.zeros_like(x)], d), d).narrow(d, 0, 2),
     lambda x, d: softmax(x, d).narrow(d, 0, 2)),
)  # fmt: skip
"""Functions of a tensor and an axis: construct, truth, note, left, right."""


def _along(truth: Truth, note: str, left: ByAxis, right: ByAxis) -> Callable[[], Iterator[Pair]]:
    def pairs() -> Iterator[Pair]:
        for shape, dim in PLACES:
            yield pair(truth, f"{note} {shape} along {dim}", lambda x, d=dim: left(x, d), lambda x, d=dim: right(x, d), shape)

    return pairs


for _construct, _truth, _note, _left, _right in ROWS:
    register(_note, _construct, _along(_truth, _note, _left, _right))


@family("slices")
def products_of_parts() -> Iterator[Pair]:
    for m, k, n in ((2, 4, 4), (3, 6, 2), (4, 4, 4)):
        shapes = ((m, k), (k, n))
        yield pair(
            EQUAL,
            f"the inner dimension in two parts {shapes}",
            lambda x, w, k=k: x[:, : k // 2] @ w[: k // 2] + x[:, k // 2 :] @ w[k // 2 :],
            lambda x, w: x @ w,
            *shapes,
        )
        yield pair(
            DIFFERENT,
            f"its parts exchanged in one factor {shapes}",
            lambda x, w, k=k: x[:, : k // 2] @ w[k // 2 :] + x[:, k // 2 :] @ w[: k // 2],
            lambda x, w: x @ w,
            *shapes,
        )
        yield pair(
            EQUAL,
            f"gate and value of one product {shapes}",
            lambda x, w, n=n: torch.sigmoid((x @ w)[:, : n // 2]) * (x @ w)[:, n // 2 :],
            lambda x, w, n=n: (x @ w[:, n // 2 :]) * torch.sigmoid(x @ w[:, : n // 2]),
            *shapes,
        )
        yield pair(
            DIFFERENT,
            f"gate and value exchanged {shapes}",
            lambda x, w, n=n: torch.sigmoid((x @ w)[:, : n // 2]) * (x @ w)[:, n // 2 :],
            lambda x, w, n=n: torch.sigmoid((x @ w)[:, n // 2 :]) * (x @ w)[:, : n // 2],
            *shapes,
        )
        yield pair(DIFFERENT, f"one factor backwards {shapes}", lambda x, w: x.flip(1) @ w, lambda x, w: x @ w, *shapes)
        yield pair(EQUAL, f"both factors backwards {shapes}", lambda x, w: x.flip(1) @ w.flip(0), lambda x, w: x @ w, *shapes)


@family("slices")
def parts_of_a_batch() -> Iterator[Pair]:
    for n in (2, 4):
        shapes = ((n, 3), (n, 3))
        yield pair(DIFFERENT, f"its first row, and all rows {n}", lambda z, x: z + x[0:1], lambda z, x: z + x, *shapes)
        yield pair(DIFFERENT, f"its first and its last row {n}", lambda z, x: z + x[:1], lambda z, x: z + x[-1:], *shapes)
        yield pair(EQUAL, f"its first row {n}", lambda z, x: z + x[:1], lambda z, x: x[0].expand(z.shape) + z, *shapes)
        yield pair(
            DIFFERENT, f"a mean over half {n}", lambda z, x, n=n: z - x[: n // 2].mean(0), lambda z, x: z - x.mean(0), *shapes
        )
        yield pair(
            DIFFERENT, f"one behind the other {n}", lambda z, x: torch.cat([z, x]), lambda z, x: torch.cat([x, z]), *shapes
        )


@family("borders")
def pools() -> Iterator[Pair]:
    for shape in ((2, 6), (3, 8)):
        yield pair(
            EQUAL,
            f"means of overlapping windows {shape}",
            lambda x: avg_pool1d(x, 3, 1, 1),
            lambda x: (pad(x, (1, 0))[:, :-1] + x + pad(x, (0, 1))[:, 1:]) / 3,
            shape,
        )
        yield pair(
            DIFFERENT,
            f"means without the border {shape}",
            lambda x: avg_pool1d(x, 3, 1, 1),
            lambda x: avg_pool1d(x, 3, 1, 1, count_include_pad=False),
            shape,
        )
        yield pair(
            EQUAL,
            f"maxima of overlapping windows {shape}",
            lambda x: max_pool1d(x, 2, 1),
            lambda x: torch.maximum(x[:, 1:], x[:, :-1]),
            shape,
        )
        yield pair(
            DIFFERENT,
            f"maxima of windows in another order {shape}",
            lambda x: max_pool1d(x, 3, 1),
            lambda x: max_pool1d(x.flip(1), 3, 1),
            shape,
        )
