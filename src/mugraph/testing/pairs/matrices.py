"""Families of matrix products, broadcasting, transposes and attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, softmax

from mugraph.testing.pairs.pair import Function, Pair, Shape, Truth, family, pair, register

EQUAL, DIFFERENT, PART, NEARLY, EMPTY, READING = Truth

SIZES = ((2, 3, 4), (1, 5, 2), (3, 3, 3), (4, 2, 7))
SQUARES = (2, 3, 5)

Shapes = Callable[[int, int, int], tuple[Shape, ...]]

_XW: Shapes = lambda m, k, n: ((m, k), (k, n))  # noqa: E731
_XWV: Shapes = lambda m, k, n: ((m, k), (k, n), (n, m))  # noqa: E731
_XWW: Shapes = lambda m, k, n: ((m, k), (k, n), (k, n))  # noqa: E731
_XXW: Shapes = lambda m, k, n: ((m, k), (m, k), (k, n))  # noqa: E731
_XWB: Shapes = lambda m, k, n: ((m, k), (k, n), (n,))  # noqa: E731
_LORA: Shapes = lambda m, k, n: ((m, k), (k, n), (k, 2), (2, n))  # noqa: E731

PRODUCTS: tuple[tuple[Truth, str, Shapes, Function, Function], ...] = (
    (EQUAL, "products reassociated", _XWV, lambda x, w, v: (x @ w) @ v, lambda x, w, v: x @ (w @ v)),
    (EQUAL, "a sum of products with one factor", _XWW, lambda x, w, v: x @ w + x @ v, lambda x, w, v: x @ (w + v)),
    (DIFFERENT, "a difference for a sum of weights", _XWW, lambda x, w, v: x @ w + x @ v, lambda x, w, v: x @ (w - v)),
    (EQUAL, "a sum of inputs", _XXW, lambda x, y, w: (x + y) @ w, lambda x, y, w: y @ w + x @ w),
    (DIFFERENT, "a product of inputs", _XXW, lambda x, y, w: (x * y) @ w, lambda x, y, w: (x @ w) * (y @ w)),
    (EQUAL, "a transposed product", _XW, lambda x, w: (x @ w).T, lambda x, w: w.T @ x.T),
    (EQUAL, "a scale hoisted", _XW, lambda x, w: (x * 0.25) @ w, lambda x, w: (x @ w) / 4),
    (DIFFERENT, "a scale hoisted twice", _XW, lambda x, w: (x * 0.25) @ w, lambda x, w: (x @ w) / 16),
    (EQUAL, "a bias added to doubled products", _XWB, lambda x, w, b: 2 * (x @ w + b), lambda x, w, b: (2 * x) @ w + 2 * b),
    (DIFFERENT, "a bias that is not doubled", _XWB, lambda x, w, b: 2 * (x @ w + b), lambda x, w, b: (2 * x) @ w + b),
    (EQUAL, "a linear layer and a product", _XWB, lambda x, w, b: linear(x, w.T, b), lambda x, w, b: torch.addmm(b, x, w)),
    (DIFFERENT, "another factor of addmm", _XWB, lambda x, w, b: torch.addmm(b, x, w, beta=2),
     lambda x, w, b: torch.addmm(b, x, w)),
    (EQUAL, "columns of a product summed", _XW, lambda x, w: (x @ w).sum(-1), lambda x, w: x @ w.sum(-1)),
    (EQUAL, "rows of a product summed", _XW, lambda x, w: (x @ w).sum(0), lambda x, w: x.sum(0) @ w),
    (DIFFERENT, "rows of a product averaged for summed", lambda m, k, n: ((m + 1, k), (k, n)),
     lambda x, w: (x @ w).sum(0), lambda x, w: x.mean(0) @ w),
    (EQUAL, "a low-rank update merged", _LORA, lambda x, w, a, b: x @ w + (x @ a) @ b * 0.5,
     lambda x, w, a, b: x @ (w + a @ b / 2)),
    (DIFFERENT, "a low-rank update scaled twice", _LORA, lambda x, w, a, b: x @ w + (x @ a) @ b * 0.5,
     lambda x, w, a, b: x @ (w + a @ b / 2) / 2),
    (DIFFERENT, "a low-rank update of the scaled base", _LORA, lambda x, w, a, b: x @ w + (x @ a) @ b * 0.5,
     lambda x, w, a, b: x @ (w * 0.5 + a @ b / 2)),
    (EQUAL, "products by einsum", _XW, lambda x, w: torch.einsum("mk,kn->mn", x, w), lambda x, w: x @ w),
    (EQUAL, "a product as a sum of outer products", _XW, lambda x, w: (x[:, :, None] * w[None]).sum(1), lambda x, w: x @ w),
    (EQUAL, "rows scaled before or after", lambda m, k, n: ((m, k), (k, n), (m, 1)), lambda x, w, s: (x * s) @ w,
     lambda x, w, s: (x @ w) * s),
    (EQUAL, "columns scaled before or after", lambda m, k, n: ((m, k), (k, n), (n,)), lambda x, w, s: x @ (w * s),
     lambda x, w, s: (x @ w) * s),
    (EQUAL, "inner scales on either side", lambda m, k, n: ((m, k), (k, n), (k,)), lambda x, w, s: (x * s) @ w,
     lambda x, w, s: x @ (s[:, None] * w)),
    (DIFFERENT, "a nonlinear function moved through a product", _XW, lambda x, w: torch.relu(x) @ w,
     lambda x, w: torch.relu(x @ w)),
    (EQUAL, "a Gram matrix is symmetric", _XW, lambda x, w: x @ x.T @ (x @ w), lambda x, w: (x @ x.T).T @ (x @ w)),
    (DIFFERENT, "a Gram matrix taken for its square", lambda m, k, n: ((k, k), (k, n)), lambda x, w: x.T @ x @ w,
     lambda x, w: x @ x @ w),
    (EQUAL, "a gated unit with products exchanged", _XWW, lambda x, w, v: torch.nn.functional.silu(x @ w) * (x @ v),
     lambda x, w, v: (x @ v) * (x @ w) / (1 + torch.exp(-(x @ w)))),
    (DIFFERENT, "a gated unit with weights exchanged", _XWW, lambda x, w, v: torch.nn.functional.silu(x @ w) * (x @ v),
     lambda x, w, v: torch.nn.functional.silu(x @ v) * (x @ w)),
    (DIFFERENT, "a residual left out", lambda m, k, n: ((m, k), (k, k)), lambda x, w: x + torch.relu(x @ w),
     lambda x, w: torch.relu(x @ w)),
    (DIFFERENT, "a residual counted twice", lambda m, k, n: ((m, k), (k, k)), lambda x, w: x + x @ w, lambda x, w: 2 * x + x @ w),
)  # fmt: skip

OF_SQUARES: tuple[tuple[Truth, str, int, Function, Function], ...] = (
    (DIFFERENT, "a transposed square weight", 2, lambda x, w: x @ w, lambda x, w: x @ w.T),
    (DIFFERENT, "factors exchanged", 2, lambda x, w: x @ w, lambda x, w: w @ x),
    (DIFFERENT, "a transposed output", 2, lambda x, w: x @ w, lambda x, w: (x @ w).T),
    (DIFFERENT, "transposed factors in order", 2, lambda x, w: (x @ w).T, lambda x, w: x.T @ w.T),
    (DIFFERENT, "rows for columns summed", 1, lambda x: x.sum(0), lambda x: x.sum(1)),
    (DIFFERENT, "a mean without keepdim", 1, lambda x: x - x.mean(1, keepdim=True), lambda x: x - x.mean(1)),
    (DIFFERENT, "a maximum without keepdim", 1, lambda x: torch.exp(x - x.amax(1, keepdim=True)),
     lambda x: torch.exp(x - x.amax(1))),
    (DIFFERENT, "a norm without keepdim", 1, lambda x: x / torch.sqrt((x * x).sum(1, keepdim=True) + 1),
     lambda x: x / torch.sqrt((x * x).sum(1) + 1)),
    (EQUAL, "twice transposed", 1, lambda x: x.T.contiguous().T * 2, lambda x: x + x),
    (DIFFERENT, "a reshape for a transpose", 1, lambda x: x.T, lambda x: x.reshape(-1).reshape(x.shape)),
    (EQUAL, "a trace of a product by elements", 2, lambda x, w: (x * w.T).sum(), lambda x, w: (w * x.T).sum()),
    (DIFFERENT, "a trace of a product taken for a sum", 2, lambda x, w: (x * w.T).sum(), lambda x, w: (x * w).sum()),
    (DIFFERENT, "a symmetric part", 1, lambda x: (x + x.T) / 2, lambda x: x),
    (EQUAL, "an antisymmetric part of a symmetric matrix", 2, lambda x, w: (x + x.T) - (x + x.T).T + w, lambda x, w: w),
)  # fmt: skip


def _at_sizes(truth: Truth, shapes: Shapes, left: Function, right: Function) -> Callable[[], Iterator[Pair]]:
    def make() -> Iterator[Pair]:
        for sizes in SIZES:
            yield pair(truth, f"{sizes}", left, right, *shapes(*sizes))
        for note, around in AROUND.items():
            yield pair(truth, note, around(left), around(right), *shapes(2, 3, 4))

    return make


AROUND: dict[str, Callable[[Function], Function]] = {
    "an exponential of it": lambda fn: lambda *args: torch.exp(fn(*args)),
    "a sum of it": lambda fn: lambda *args: fn(*args).sum(0) if fn(*args).dim() else fn(*args),
    "normalised": lambda fn: lambda *args: fn(*args) / torch.sqrt((fn(*args) ** 2).mean() + 1),
    "the second output": lambda fn: lambda *args: (args[0] + 1, fn(*args)),
}


def _of_squares(truth: Truth, count: int, left: Function, right: Function) -> Callable[[], Iterator[Pair]]:
    def make() -> Iterator[Pair]:
        for size in SQUARES:
            yield pair(truth, f"{size} by {size}", left, right, *((size, size),) * count)
        for note in ("an exponential of it", "normalised", "the second output"):
            yield pair(truth, note, AROUND[note](left), AROUND[note](right), *((3, 3),) * count)

    return make


for _truth, _name, _shapes, _left, _right in PRODUCTS:
    register(_name, "products", _at_sizes(_truth, _shapes, _left, _right))
for _truth, _name, _count, _left, _right in OF_SQUARES:
    register(_name, "transposed squares", _of_squares(_truth, _count, _left, _right))


# --- broadcasting ------------------------------------------------------------------------------------------------------


@family("broadcasts")
def a_row_for_a_column() -> Iterator[Pair]:
    for n in SQUARES:
        for name, op in OPERATIONS.items():
            yield pair(
                DIFFERENT,
                f"{name}, {n}",
                lambda x, b, op=op: op(x, b[:, None]),
                lambda x, b, op=op: op(x, b[None, :]),
                (n, n),
                (n,),
            )
            yield pair(
                EQUAL,
                f"{name} of the transposed, {n}",
                lambda x, b, op=op: op(x, b[:, None]),
                lambda x, b, op=op: op(x.T, b[None, :]).T,
                (n, n),
                (n,),
            )


OPERATIONS: dict[str, Function] = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "difference": lambda x, y: torch.exp(x - y),
}


@family("broadcasts")
def expansions_written_out() -> Iterator[Pair]:
    for m, n in ((2, 3), (3, 3), (1, 4)):
        yield pair(EQUAL, f"a row {m} by {n}", lambda x, b, m=m, n=n: x * b.expand(m, n), lambda x, b: x * b, (m, n), (n,))
        yield pair(EQUAL, f"repeated {m} by {n}", lambda x, b, m=m: x * b.repeat(m, 1), lambda x, b: x * b, (m, n), (n,))
        yield pair(
            DIFFERENT if m > 1 else EQUAL,
            f"summed after {m} by {n}",
            lambda x, b, m=m, n=n: b.expand(m, n).sum(0) + x.sum(0),
            lambda x, b: b + x.sum(0),
            (m, n),
            (n,),
        )
        yield pair(
            EQUAL,
            f"averaged after {m} by {n}",
            lambda x, b, m=m, n=n: b.expand(m, n).mean(0) + x.sum(0),
            lambda x, b: b + x.sum(0),
            (m, n),
            (n,),
        )


@family("broadcasts")
def repeats_in_another_order() -> Iterator[Pair]:
    for n, times in ((2, 2), (3, 2), (2, 4)):
        yield pair(
            DIFFERENT,
            f"{times} of {n}",
            lambda x, y, t=times: x.repeat(t) * y,
            lambda x, y, t=times: x.repeat_interleave(t) * y,
            (n,),
            (n * times,),
        )
        yield pair(
            EQUAL,
            f"{times} of {n} summed",
            lambda x, y, t=times: x.repeat(t).sum() * y,
            lambda x, y, t=times: x.repeat_interleave(t).sum() * y,
            (n,),
            (n * times,),
        )
        yield pair(
            EQUAL,
            f"{times} of {n} by reshape",
            lambda x, y, t=times: x.repeat_interleave(t) * y,
            lambda x, y, t=times: (x[:, None] * y.reshape(-1, t)).reshape(-1),
            (n,),
            (n * times,),
        )


@family("slices")
def whole_slices() -> Iterator[Pair]:
    for shape in ((4,), (3, 4), (2, 3, 4)):
        yield pair(EQUAL, f"all of {shape}", lambda x: x[:] * 2, lambda x: x + x, shape)
        yield pair(EQUAL, f"up to the end of {shape}", lambda x, n=shape[0]: x[0:n] * 2, lambda x: x + x, shape)
        yield pair(EQUAL, f"as a column of {shape}", lambda x: x[..., None].sum(-1), lambda x: x * 1, shape)


@family("slices")
def halves_by_reshape() -> Iterator[Pair]:
    """Rows of two halves, as a view; one of the two views takes every other element."""
    for m, n in ((2, 4), (3, 6), (1, 8)):
        yield pair(
            DIFFERENT,
            f"{m} by {n}",
            lambda x: x.reshape(x.shape[0], 2, -1).sum(2),
            lambda x: x.reshape(x.shape[0], -1, 2).sum(1),
            (m, n),
        )
        yield pair(
            EQUAL,
            f"{m} by {n}, summed again",
            lambda x: x.reshape(x.shape[0], 2, -1).sum(2).sum(1),
            lambda x: x.reshape(x.shape[0], -1, 2).sum(1).sum(1),
            (m, n),
        )
        yield pair(
            DIFFERENT,
            f"{m} by {n}, squared",
            lambda x: (x.reshape(x.shape[0], 2, -1).sum(2) ** 2).sum(1),
            lambda x: (x.reshape(x.shape[0], -1, 2).sum(1) ** 2).sum(1),
            (m, n),
        )


@family("slices")
def one_of_one() -> Iterator[Pair]:
    for shape in ((1, 3), (1, 2, 4)):
        yield pair(EQUAL, f"the only row of {shape}", lambda x: x[0] * 3, lambda x: x.squeeze(0) * 3, shape)
        yield pair(EQUAL, f"summed over the only row of {shape}", lambda x: x[0], lambda x: x.sum(0), shape)


# --- attention ---------------------------------------------------------------------------------------------------------


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return softmax(q @ k.transpose(-2, -1) * scale, -1) @ v


def _unshifted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(q @ k.transpose(-2, -1) / 2)
    return powers @ v / powers.sum(-1, keepdim=True)


HEADS: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((3, 4), (5, 4), (5, 4)), ((4, 4), (4, 4), (4, 4)),
    ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)), ((1, 1, 4), (1, 6, 4), (1, 6, 2)),
)  # fmt: skip

_OF_FOUR: tuple[tuple[Truth, str, Function, Function], ...] = (
    (EQUAL, "attention spelled out", lambda q, k, v: _attend(q, k, v, 0.5), _unshifted),
    (DIFFERENT, "attention without its scale", lambda q, k, v: _attend(q, k, v, 1), _unshifted),
    (EQUAL, "attention with queries scaled", lambda q, k, v: _attend(q / 2, k, v, 1), _unshifted),
    (EQUAL, "attention shifted by a maximum", lambda q, k, v: torch.exp(q @ k.mT / 2 - (q @ k.mT / 2).amax(-1, keepdim=True)) @ v
     / torch.exp(q @ k.mT / 2 - (q @ k.mT / 2).amax(-1, keepdim=True)).sum(-1, keepdim=True), _unshifted),
    (DIFFERENT, "attention whose sum misses the shift",
     lambda q, k, v: torch.exp(q @ k.mT / 2 - (q @ k.mT / 2).amax(-1, keepdim=True)) @ v
     / torch.exp(q @ k.mT / 2).sum(-1, keepdim=True), _unshifted),
    (DIFFERENT, "attention normalised over queries", lambda q, k, v: softmax(q @ k.mT / 2, -2) @ v, _unshifted),
    (DIFFERENT, "attention normalised after its values", lambda q, k, v: (torch.exp(q @ k.mT / 2) @ v)
     / (torch.exp(q @ k.mT / 2) @ v).sum(-1, keepdim=True), _unshifted),
    (DIFFERENT, "linear attention", lambda q, k, v: q @ k.mT @ v / 2, _unshifted),
    (EQUAL, "linear attention reassociated", lambda q, k, v: (q @ k.mT) @ v, lambda q, k, v: q @ (k.mT @ v)),
    (DIFFERENT, "a scale after the softmax", lambda q, k, v: softmax(q @ k.mT, -1) @ v / 2, _unshifted),
    (DIFFERENT, "a scale inside twice", lambda q, k, v: _attend(q / 2, k / 2, v, 0.5), _unshifted),
    (EQUAL, "values scaled outside", lambda q, k, v: _attend(q, k, 3 * v, 0.5), lambda q, k, v: 3 * _unshifted(q, k, v)),
    (EQUAL, "PyTorch's attention", lambda q, k, v: scaled_dot_product_attention(q, k, v, scale=0.5), _unshifted),
    (EQUAL, "PyTorch's attention with its own scale", lambda q, k, v: scaled_dot_product_attention(q, k, v), _unshifted),
)  # fmt: skip


def _at_heads(truth: Truth, left: Function, right: Function) -> Callable[[], Iterator[Pair]]:
    def make() -> Iterator[Pair]:
        for shapes in HEADS:
            yield pair(truth, f"{shapes[0]} and {shapes[2]}", left, right, *shapes)
        yield pair(
            truth,
            "projected",
            lambda q, k, v, w: left(q, k, v) @ w,
            lambda q, k, v, w: right(q, k, v) @ w,
            (3, 4),
            (4, 4),
            (4, 4),
            (4, 2),
        )
        yield pair(
            truth,
            "of normed queries",
            lambda q, k, v: left(q / torch.sqrt((q * q).mean(-1, keepdim=True) + 1), k, v),
            lambda q, k, v: right(q / torch.sqrt((q * q).mean(-1, keepdim=True) + 1), k, v),
            (3, 4),
            (4, 4),
            (4, 4),
        )

    return make


for _truth, _name, _left, _right in _OF_FOUR:
    register(_name, "attention", _at_heads(_truth, _left, _right))


@family("attention")
def tensors_of_attention_exchanged() -> Iterator[Pair]:
    for shape in ((3, 4), (4, 4), (2, 3, 4)):
        shapes = (shape,) * 3
        yield pair(DIFFERENT, f"keys and values {shape}", _attend, lambda q, k, v: _attend(q, v, k), *shapes)
        yield pair(DIFFERENT, f"queries and keys {shape}", _attend, lambda q, k, v: _attend(k, q, v), *shapes)
        yield pair(
            EQUAL,
            f"scores transposed {shape}",
            lambda q, k, v: softmax(q @ k.mT, -1) @ v,
            lambda q, k, v: softmax((k @ q.mT).mT, -1) @ v,
            *shapes,
        )


@family("attention")
def masks_that_are_added() -> Iterator[Pair]:
    for shape in ((3, 4), (4, 4), (2, 3, 4)):
        mask = (*shape[:-1], shape[-2])
        shapes = (shape, shape, shape, mask)
        masked: Function = lambda q, k, v, m: softmax(q @ k.mT / 2 + m, -1) @ v  # noqa: E731
        yield pair(
            EQUAL, f"PyTorch's {shape}", lambda q, k, v, m: scaled_dot_product_attention(q, k, v, attn_mask=m), masked, *shapes
        )
        yield pair(
            DIFFERENT, f"added before the scale {shape}", lambda q, k, v, m: softmax((q @ k.mT + m) / 2, -1) @ v, masked, *shapes
        )
        yield pair(DIFFERENT, f"transposed {shape}", lambda q, k, v, m: softmax(q @ k.mT / 2 + m.mT, -1) @ v, masked, *shapes)
        yield pair(
            EQUAL,
            f"as a factor {shape}",
            lambda q, k, v, m: (
                (torch.exp(q @ k.mT / 2) * torch.exp(m)) @ v / (torch.exp(q @ k.mT / 2) * torch.exp(m)).sum(-1, keepdim=True)
            ),
            masked,
            *shapes,
        )
        yield pair(
            DIFFERENT,
            f"in the numerator only {shape}",
            lambda q, k, v, m: (torch.exp(q @ k.mT / 2) * torch.exp(m)) @ v / torch.exp(q @ k.mT / 2).sum(-1, keepdim=True),
            masked,
            *shapes,
        )
        yield pair(DIFFERENT, f"subtracted {shape}", lambda q, k, v, m: softmax(q @ k.mT / 2 - m, -1) @ v, masked, *shapes)


@family("attention")
def grouped_heads() -> Iterator[Pair]:
    for heads, groups in ((4, 2), (6, 3), (4, 1)):
        times = heads // groups
        shapes = ((1, heads, 2, 4), (1, groups, 3, 4), (1, groups, 3, 4))

        def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, times: int = times) -> torch.Tensor:
            return _attend(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1), 0.5)

        truth = EQUAL if groups == 1 else DIFFERENT
        yield pair(
            truth,
            f"{heads} heads in {groups}, repeated in turn",
            grouped,
            lambda q, k, v, t=times: _attend(q, k.repeat(1, t, 1, 1), v.repeat(1, t, 1, 1), 0.5),
            *shapes,
        )
        yield pair(
            truth,
            f"{heads} heads in {groups}, values in turn",
            grouped,
            lambda q, k, v, t=times: _attend(q, k.repeat_interleave(t, 1), v.repeat(1, t, 1, 1), 0.5),
            *shapes,
        )
        yield pair(
            EQUAL,
            f"{heads} heads in {groups}, queries reshaped",
            grouped,
            lambda q, k, v, g=groups, t=times: _attend(q.reshape(1, g, t * 2, 4), k, v, 0.5).reshape(q.shape),
            *shapes,
        )
        yield pair(
            EQUAL,
            f"{heads} heads in {groups}, PyTorch's",
            grouped,
            lambda q, k, v: scaled_dot_product_attention(q, k, v, enable_gqa=True),
            *shapes,
        )


@family("attention")
def heads_permuted() -> Iterator[Pair]:
    for heads in (2, 3, 4):
        shape = (3, heads * 4)

        def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int = heads) -> torch.Tensor:
            q, k, v = (x.reshape(3, heads, 4).transpose(0, 1) for x in (q, k, v))
            return _attend(q, k, v, 0.5).transpose(0, 1).reshape(3, heads * 4)

        def merged_wrongly(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int = heads) -> torch.Tensor:
            q, k, v = (x.reshape(3, heads, 4).transpose(0, 1) for x in (q, k, v))
            return _attend(q, k, v, 0.5).reshape(3, heads * 4)

        def split_wrongly(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int = heads) -> torch.Tensor:
            q, k, v = (x.reshape(heads, 3, 4) for x in (q, k, v))
            return _attend(q, k, v, 0.5).transpose(0, 1).reshape(3, heads * 4)

        yield pair(DIFFERENT, f"{heads} heads merged without a transpose", attended, merged_wrongly, *(shape,) * 3)
        yield pair(DIFFERENT, f"{heads} heads split without a transpose", attended, split_wrongly, *(shape,) * 3)


@family("attention")
def keys_in_two_parts() -> Iterator[Pair]:
    """Partial results of two halves of the keys, joined with or without their maxima and sums."""
    for m, keys, d in ((2, 3, 4), (1, 4, 2), (3, 2, 4)):
        shapes = ((m, d), (2, keys, d), (2, keys, d))

        def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return _attend(q, k.reshape(-1, k.shape[-1]), v.reshape(-1, v.shape[-1]), 0.5)

        def joined(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            scores = q @ k.mT / 2
            largest = scores.amax(-1, keepdim=True)
            powers = torch.exp(scores - largest)
            weights = torch.exp(largest - largest.amax(0, keepdim=True))
            return (powers @ v * weights).sum(0) / (powers.sum(-1, keepdim=True) * weights).sum(0)

        def averaged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return _attend(q, k, v, 0.5).mean(0)

        def not_rescaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            scores = q @ k.mT / 2
            powers = torch.exp(scores - scores.amax(-1, keepdim=True))
            return (powers @ v).sum(0) / powers.sum(-1, keepdim=True).sum(0)

        yield pair(EQUAL, f"{m} queries, {keys} keys, joined", whole, joined, *shapes)
        yield pair(DIFFERENT, f"{m} queries, {keys} keys, averaged", whole, averaged, *shapes)
        yield pair(DIFFERENT, f"{m} queries, {keys} keys, not rescaled", whole, not_rescaled, *shapes)
