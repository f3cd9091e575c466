"""Families of reductions: softmax and logsumexp, norms, maxima, sums and means in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import layer_norm, log_softmax, rms_norm, softmax

from mugraph.testing.pairs.pair import Function, Pair, Shape, Truth, family, pair, register

EQUAL, DIFFERENT, PART, NEARLY, EMPTY, READING = Truth

ByAxis = Callable[[torch.Tensor, int], torch.Tensor]
PLACES: tuple[tuple[Shape, int], ...] = (((6,), 0), ((3, 4), 1), ((3, 4), 0), ((4, 4), 0), ((2, 3, 5), 1), ((2, 1, 3), -1))
"""Shapes, and the axis reduced over."""


def _spread(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x - x.mean(dim, keepdim=True)


def _softmax(x: torch.Tensor, dim: int, shift: torch.Tensor | float = 0.0) -> torch.Tensor:
    powers = torch.exp(x - shift)
    return powers / powers.sum(dim, keepdim=True)


def _normalised(x: torch.Tensor, dim: int, eps: float = 1e-5) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(dim, keepdim=True) + eps)


def _variance(x: torch.Tensor, dim: int, less: int = 0) -> torch.Tensor:
    return (_spread(x, dim) ** 2).sum(dim) / (x.shape[dim] - less)


ROWS: tuple[tuple[str, Truth, str, ByAxis, ByAxis], ...] = (
    ("softmax", EQUAL, "softmax spelled out", lambda x, d: softmax(x, d), lambda x, d: _softmax(x, d)),
    ("softmax", EQUAL, "softmax shifted by its maximum", lambda x, d: _softmax(x, d),
     lambda x, d: _softmax(x, d, x.amax(d, keepdim=True))),
    ("softmax", EQUAL, "softmax shifted by its mean", lambda x, d: softmax(x, d),
     lambda x, d: _softmax(x, d, x.mean(d, keepdim=True))),
    ("softmax", EQUAL, "softmax of scores and a constant", lambda x, d: softmax(x, d), lambda x, d: softmax(x + 3, d)),
    ("softmax", DIFFERENT, "softmax of scaled scores", lambda x, d: softmax(x, d), lambda x, d: softmax(x * 1.001, d)),
    ("softmax", DIFFERENT, "softmax normalised by its maximum", lambda x, d: softmax(x, d),
     lambda x, d: torch.exp(x) / torch.exp(x).amax(d, keepdim=True)),
    ("softmax", DIFFERENT, "softmax whose sum is not shifted", lambda x, d: softmax(x, d),
     lambda x, d: torch.exp(x - x.amax(d, keepdim=True)) / torch.exp(x).sum(d, keepdim=True)),
    ("softmax", EQUAL, "softmax sums to one", lambda x, d: softmax(x, d).sum(d) * x.mean(d), lambda x, d: x.mean(d)),
    ("softmax", EQUAL, "the square of softmax normalised", lambda x, d: softmax(2 * x, d),
     lambda x, d: softmax(x, d) ** 2 / (softmax(x, d) ** 2).sum(d, keepdim=True)),
    ("softmax", EQUAL, "softmax from log-softmax", lambda x, d: softmax(x, d), lambda x, d: torch.exp(log_softmax(x, d))),
    ("softmax", EQUAL, "softmax of logarithms of softmax", lambda x, d: softmax(x, d),
     lambda x, d: softmax(torch.log(softmax(x, d)), d)),
    ("softmax", EQUAL, "stacked softmax", lambda x, d: softmax(softmax(softmax(x, d), d), d),
     lambda x, d: _softmax(_softmax(_softmax(x, d), d), d)),
    ("softmax", DIFFERENT, "softmax stacked twice and three times", lambda x, d: softmax(softmax(x, d), d),
     lambda x, d: softmax(softmax(softmax(x, d), d), d)),
    ("softmax", DIFFERENT, "softmax of negative scores", lambda x, d: softmax(-x, d), lambda x, d: 1 - softmax(x, d)),
    ("log-softmax", EQUAL, "log-softmax of softmax", lambda x, d: log_softmax(x, d), lambda x, d: torch.log(softmax(x, d))),
    ("log-softmax", EQUAL, "log-softmax by logsumexp", lambda x, d: log_softmax(x, d),
     lambda x, d: x - torch.logsumexp(x, d, keepdim=True)),
    ("log-softmax", EQUAL, "log-softmax twice", lambda x, d: log_softmax(x, d), lambda x, d: log_softmax(log_softmax(x, d), d)),
    ("log-softmax", DIFFERENT, "log-softmax without its logarithm", lambda x, d: log_softmax(x, d),
     lambda x, d: x - torch.exp(x).sum(d, keepdim=True)),
    ("logsumexp", EQUAL, "logsumexp spelled out", lambda x, d: torch.logsumexp(x, d),
     lambda x, d: torch.log(torch.exp(x).sum(d))),
    ("logsumexp", EQUAL, "logsumexp shifted by its maximum", lambda x, d: torch.log(torch.exp(x).sum(d)),
     lambda x, d: torch.log(torch.exp(x - x.amax(d, keepdim=True)).sum(d)) + x.amax(d)),
    ("logsumexp", EQUAL, "logsumexp shifted by its mean", lambda x, d: torch.logsumexp(x, d),
     lambda x, d: torch.log(torch.exp(_spread(x, d)).sum(d)) + x.mean(d)),
    ("logsumexp", DIFFERENT, "logsumexp whose shift is not undone", lambda x, d: torch.logsumexp(x, d),
     lambda x, d: torch.log(torch.exp(x - x.amax(d, keepdim=True)).sum(d))),
    ("logsumexp", DIFFERENT, "logsumexp whose shift is undone twice", lambda x, d: torch.logsumexp(x, d),
     lambda x, d: torch.log(torch.exp(_spread(x, d)).sum(d)) + 2 * x.mean(d)),
    ("logsumexp", DIFFERENT, "logsumexp and the maximum", lambda x, d: torch.logsumexp(x, d), lambda x, d: x.amax(d)),
    ("logsumexp", EQUAL, "logsumexp of scores and a constant", lambda x, d: torch.logsumexp(x + 2, d),
     lambda x, d: torch.logsumexp(x, d) + 2),
    ("logsumexp", DIFFERENT, "logsumexp of scaled scores", lambda x, d: torch.logsumexp(2 * x, d),
     lambda x, d: 2 * torch.logsumexp(x, d)),
    ("logsumexp", DIFFERENT, "a logarithm inside of a sum", lambda x, d: torch.log(torch.exp(x).sum(d)),
     lambda x, d: torch.log(torch.exp(x)).sum(d)),
    ("norms", EQUAL, "a variance by two means", lambda x, d: _variance(x, d), lambda x, d: (x * x).mean(d) - x.mean(d) ** 2),
    ("norms", EQUAL, "a variance spelled out", lambda x, d: x.var(d, unbiased=False), lambda x, d: _variance(x, d)),
    ("norms", DIFFERENT, "a variance over one element less", lambda x, d: x.var(d, unbiased=False),
     lambda x, d: _variance(x, d, 1)),
    ("norms", DIFFERENT, "a variance about zero", lambda x, d: x.var(d, unbiased=False), lambda x, d: (x * x).mean(d)),
    ("norms", EQUAL, "a norm by a root or a reciprocal root", lambda x, d: _normalised(x, d),
     lambda x, d: x / torch.sqrt((x * x).mean(d, keepdim=True) + 1e-5)),
    ("norms", DIFFERENT, "epsilon outside of the root", lambda x, d: _normalised(x, d),
     lambda x, d: x / (torch.sqrt((x * x).mean(d, keepdim=True)) + 1e-5)),
    ("norms", DIFFERENT, "another epsilon", lambda x, d: _normalised(x, d), lambda x, d: _normalised(x, d, 1e-6)),
    ("norms", DIFFERENT, "a norm by a sum of squares", lambda x, d: _normalised(x, d),
     lambda x, d: x * torch.rsqrt((x * x).sum(d, keepdim=True) + 1e-5)),
    ("norms", EQUAL, "a norm by a scaled sum of squares", lambda x, d: _normalised(x, d),
     lambda x, d: x * torch.rsqrt((x * x).sum(d, keepdim=True) / x.shape[d] + 1e-5)),
    ("norms", EQUAL, "a norm of doubled values", lambda x, d: _normalised(2 * x, d, 4e-5), lambda x, d: _normalised(x, d)),
    ("norms", DIFFERENT, "a norm of doubled values and one epsilon", lambda x, d: _normalised(2 * x, d),
     lambda x, d: _normalised(x, d)),
    ("norms", DIFFERENT, "a norm twice", lambda x, d: _normalised(_normalised(x, d), d), lambda x, d: _normalised(x, d)),
    ("norms", EQUAL, "a Euclidean norm spelled out", lambda x, d: torch.linalg.vector_norm(x, dim=d),
     lambda x, d: torch.sqrt((x * x).sum(d))),
    ("norms", DIFFERENT, "a Euclidean norm and a sum of absolute values", lambda x, d: torch.linalg.vector_norm(x, dim=d),
     lambda x, d: torch.abs(x).sum(d)),
    ("norms", EQUAL, "a mean taken off twice", lambda x, d: _spread(_spread(x, d), d), lambda x, d: _spread(x, d)),
    ("maxima", EQUAL, "a maximum of a repeated tensor", lambda x, d: x.amax(d), lambda x, d: x.repeat_interleave(3, d).amax(d)),
    ("maxima", EQUAL, "a maximum of exponentials", lambda x, d: torch.exp(x).amax(d), lambda x, d: torch.exp(x.amax(d))),
    ("maxima", EQUAL, "a maximum of rectified numbers", lambda x, d: torch.relu(x).amax(d), lambda x, d: torch.relu(x.amax(d))),
    ("maxima", DIFFERENT, "a maximum of squares", lambda x, d: (x * x).amax(d), lambda x, d: x.amax(d) ** 2),
    ("maxima", EQUAL, "a maximum of doubled numbers", lambda x, d: (2 * x).amax(d), lambda x, d: 2 * x.amax(d)),
    ("maxima", DIFFERENT, "a maximum of negated numbers", lambda x, d: (-x).amax(d), lambda x, d: -x.amax(d)),
    ("maxima", EQUAL, "a maximum of shifted numbers", lambda x, d: (x + 5).amax(d), lambda x, d: x.amax(d) + 5),
    ("maxima", EQUAL, "a maximum of differences from the mean", lambda x, d: _spread(x, d).amax(d),
     lambda x, d: x.amax(d) - x.mean(d)),
    ("maxima", DIFFERENT, "a maximum and a mean", lambda x, d: x.amax(d), lambda x, d: x.mean(d)),
    ("maxima", EQUAL, "a maximum taken off its maximum", lambda x, d: (x - x.amax(d, keepdim=True)).amax(d) + x.sum(d),
     lambda x, d: x.sum(d)),
    ("maxima", EQUAL, "a maximum of a sigmoid", lambda x, d: torch.sigmoid(x).amax(d), lambda x, d: torch.sigmoid(x.amax(d))),
    ("maxima", DIFFERENT, "a maximum of a gelu", lambda x, d: torch.nn.functional.silu(x).amax(d),
     lambda x, d: torch.nn.functional.silu(x.amax(d))),
    ("sums", EQUAL, "a mean and a scaled sum", lambda x, d: x.mean(d), lambda x, d: x.sum(d) / x.shape[d]),
    ("sums", DIFFERENT, "a mean over one element less", lambda x, d: x.mean(d), lambda x, d: x.sum(d) / (x.shape[d] + 1)),
    ("sums", EQUAL, "a sum of a linear expression", lambda x, d: (3 * x + 1).sum(d), lambda x, d: 3 * x.sum(d) + x.shape[d]),
    ("sums", DIFFERENT, "a constant summed once", lambda x, d: (3 * x + 1).sum(d), lambda x, d: 3 * x.sum(d) + 1),
    ("sums", DIFFERENT, "a sum of squares and the square of a sum", lambda x, d: (x * x).sum(d), lambda x, d: x.sum(d) ** 2),
    ("sums", DIFFERENT, "a sum of exponentials and its exponential", lambda x, d: torch.exp(x).sum(d),
     lambda x, d: torch.exp(x.sum(d))),
)  # fmt: skip


def _by_axis(truth: Truth, left: ByAxis, right: ByAxis) -> Callable[[], Iterator[Pair]]:
    def make() -> Iterator[Pair]:
        for shape, dim in PLACES:
            if shape[dim] > 1:
                yield pair(truth, f"{list(shape)} along {dim}", _along(left, dim), _along(right, dim), shape)
        for note, around in AROUND.items():
            yield pair(truth, note, around(_along(left, 1)), around(_along(right, 1)), (4, 3), (2, 4))

    return make


def _along(fn: ByAxis, dim: int) -> Function:
    return lambda x: fn(x, dim)


AROUND: dict[str, Callable[[Function], Function]] = {
    "of a product": lambda fn: lambda w, x: fn(x @ w),
    "of scaled columns": lambda fn: lambda w, x: fn(x * w.sum(-1)),
    "added to a sum": lambda fn: lambda w, x: fn(x) + x.sum(),
    "the second output": lambda fn: lambda w, x: (x @ w, fn(x)),
}
"""Places for a reduction along the last axis of a matrix."""

for _construct, _truth, _name, _left, _right in ROWS:
    register(_name, _construct, _by_axis(_truth, _left, _right))


# --- axes --------------------------------------------------------------------------------------------------------------


@family("maxima")
def a_maximum_repeated_many_times() -> Iterator[Pair]:
    """Each step takes the maximum of two copies: multiplicities are powers of two."""

    def maximum(times: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def of(x: torch.Tensor) -> torch.Tensor:
            largest = x.amax(-1, keepdim=True)
            for _ in range(times):
                largest = largest.repeat(1, 2).amax(-1, keepdim=True)
            return largest

        return of

    for times in (1, 3, 16, 63, 64, 65):
        fn = maximum(times)
        yield pair(
            EQUAL, f"{times} times", lambda x, y, fn=fn: fn(x) + y, lambda x, y: x.amax(-1, keepdim=True) + y, (2, 3), (2, 1)
        )
        yield pair(
            DIFFERENT, f"{times} times, of another tensor", lambda x, y, fn=fn: fn(x), lambda x, y, fn=fn: fn(y), (2, 3), (2, 3)
        )
        yield pair(
            DIFFERENT,
            f"{times} times, of nothing",
            lambda x, y, fn=fn: fn(x) - fn(y),
            lambda x, y, fn=fn: fn(x) * 0,
            (2, 3),
            (2, 3),
        )


@family("maxima")
def a_maximum_repeated_in_one_step() -> Iterator[Pair]:
    for copies in (2, 3, 64, 1024):

        def repeated(x: torch.Tensor, copies: int = copies) -> torch.Tensor:
            return x.repeat(1, copies).amax(-1)

        yield pair(EQUAL, f"{copies} copies", repeated, lambda x: x.amax(-1), (2, 3))
        yield pair(DIFFERENT, f"{copies} copies of the other axis", repeated, lambda x: x.amax(0), (3, 3))


@family("maxima")
def maxima_of_maxima() -> Iterator[Pair]:
    for shape in ((3, 4), (4, 4), (2, 6)):
        yield pair(EQUAL, f"rows or columns first, {shape}", lambda x: x.amax(0).amax(0), lambda x: x.amax(1).amax(0), shape)
        yield pair(EQUAL, f"at once, {shape}", lambda x: x.amax(0).amax(0), lambda x: x.amax(), shape)
        yield pair(DIFFERENT, f"a sum of maxima, {shape}", lambda x: x.amax(0).amax(0), lambda x: x.amax(0).sum(0), shape)
        yield pair(DIFFERENT, f"a maximum of sums, {shape}", lambda x: x.sum(0).amax(0), lambda x: x.amax(0).sum(0), shape)
    yield pair(DIFFERENT, "maxima of rows and of columns", lambda x: x.amax(0), lambda x: x.amax(1), (4, 4))


@family("maxima")
def maxima_of_outer_sums() -> Iterator[Pair]:
    for m, n in ((3, 4), (4, 4), (1, 5)):
        yield pair(
            EQUAL,
            f"sums {m} by {n}",
            lambda x, y: (x[:, None] + y[None, :]).amax((0, 1)),
            lambda x, y: x.amax() + y.amax(),
            (m,),
            (n,),
        )
        yield pair(
            DIFFERENT,
            f"differences {m} by {n}",
            lambda x, y: (x[:, None] - y[None, :]).amax((0, 1)),
            lambda x, y: x.amax() - y.amax(),
            (m,),
            (n,),
        )
        yield pair(
            DIFFERENT,
            f"products {m} by {n}",
            lambda x, y: (x[:, None] * y[None, :]).amax((0, 1)),
            lambda x, y: x.amax() * y.amax(),
            (m,),
            (n,),
        )
        yield pair(
            DIFFERENT,
            f"one of the two {m} by {n}",
            lambda x, y: (x[:, None] + y[None, :]).amax((0, 1)),
            lambda x, y: x.amax() + y.sum(),
            (m,),
            (n,),
        )


@family("maxima")
def maxima_of_parts() -> Iterator[Pair]:
    """A maximum of groups, of which one counts twice or is another group."""
    for groups, size in ((2, 3), (3, 2), (4, 4)):
        shape = (groups * size,)
        yield pair(
            EQUAL, f"{groups} groups of {size}", lambda x, g=groups: x.reshape(g, -1).amax(1).amax(0), lambda x: x.amax(0), shape
        )
        yield pair(
            EQUAL,
            f"{groups} interleaved groups",
            lambda x, g=groups: x.reshape(-1, g).amax(0).amax(0),
            lambda x: x.amax(0),
            shape,
        )
        yield pair(
            DIFFERENT,
            f"{groups} groups taken for interleaved",
            lambda x, g=groups, s=size: x.reshape(g, s).amax(1).sum(0),
            lambda x, g=groups, s=size: x.reshape(s, g).amax(0).sum(0),
            shape,
        )


@family("maxima")
def maxima_of_products_with_squares() -> Iterator[Pair]:
    for n in (2, 3, 5):
        yield pair(
            EQUAL,
            f"a square, {n}",
            lambda x, y: (x * y * y).amax(-1, keepdim=True),
            lambda x, y: x.amax(-1, keepdim=True) * y * y,
            (3, n),
            (3, 1),
        )
        yield pair(
            DIFFERENT,
            f"a cube, {n}",
            lambda x, y: (x * y**3).amax(-1, keepdim=True),
            lambda x, y: x.amax(-1, keepdim=True) * y**3,
            (3, n),
            (3, 1),
        )
        yield pair(
            EQUAL,
            f"an exponential, {n}",
            lambda x, y: (x * torch.exp(y)).amax(-1, keepdim=True),
            lambda x, y: x.amax(-1, keepdim=True) * torch.exp(y),
            (3, n),
            (3, 1),
        )


@family("sums")
def means_of_means() -> Iterator[Pair]:
    for m, n in ((2, 3), (3, 3), (4, 2)):
        yield pair(EQUAL, f"of equal parts {m} and {n}", lambda x: x.mean(0).mean(0), lambda x: x.mean(), (m, n))
        truth = EQUAL if m == n else DIFFERENT
        yield pair(
            truth,
            f"of parts of {m} and {n}",
            lambda x, y: (x.mean() + y.mean()) / 2,
            lambda x, y, k=m + n: (x.sum() + y.sum()) / k,
            (m,),
            (n,),
        )
        yield pair(
            EQUAL,
            f"weighted parts of {m} and {n}",
            lambda x, y, a=m, b=n: (a * x.mean() + b * y.mean()) / (a + b),
            lambda x, y, k=m + n: (x.sum() + y.sum()) / k,
            (m,),
            (n,),
        )


@family("sums")
def sums_split_into_parts() -> Iterator[Pair]:
    for size, parts in ((6, 2), (6, 3), (12, 4), (8, 8)):

        def split(x: torch.Tensor, w: torch.Tensor, parts: int = parts) -> torch.Tensor:
            return torch.einsum("mpk,pkn->mn", x.reshape(x.shape[0], parts, -1), w.reshape(parts, -1, w.shape[1]))

        def interleaved(x: torch.Tensor, w: torch.Tensor, parts: int = parts) -> torch.Tensor:
            return torch.einsum("mkp,pkn->mn", x.reshape(x.shape[0], -1, parts), w.reshape(parts, -1, w.shape[1]))

        truth = EQUAL if parts == size else DIFFERENT
        yield pair(EQUAL, f"{size} in {parts}", split, lambda x, w: x @ w, (2, size), (size, 3))
        yield pair(truth, f"{size} in {parts}, one side interleaved", interleaved, lambda x, w: x @ w, (2, size), (size, 3))


@family("sums")
def a_part_missing_or_counted_twice() -> Iterator[Pair]:
    for a, b in ((3, 5), (4, 4), (1, 2)):
        shapes = ((2, a), (2, b), (a, 3), (b, 3))
        whole: Function = lambda x, y, u, v: x @ u + y @ v  # noqa: E731
        yield pair(DIFFERENT, f"{a} and {b}: the second missing", whole, lambda x, y, u, v: x @ u, *shapes)
        yield pair(DIFFERENT, f"{a} and {b}: the first twice", whole, lambda x, y, u, v: x @ u + y @ v + x @ u, *shapes)
        yield pair(EQUAL, f"{a} and {b}: the other order", whole, lambda x, y, u, v: (v.T @ y.T + u.T @ x.T).T, *shapes)
        if a == b:
            yield pair(DIFFERENT, f"{a} and {b}: weights exchanged", whole, lambda x, y, u, v: x @ v + y @ u, *shapes)


@family("sums")
def identities_of_few_numbers() -> Iterator[Pair]:
    """Newton's identity for a sum of cubes without its last term, which two numbers do not have."""
    for n in (1, 2, 3, 4, 5):
        truth = EQUAL if n <= 2 else DIFFERENT
        yield pair(
            truth,
            f"{n} numbers",
            lambda x: 2 * (x**3).sum(-1),
            lambda x: 3 * (x * x).sum(-1) * x.sum(-1) - x.sum(-1) ** 3,
            (2, n),
        )


@family("sums")
def identities_of_three_numbers() -> Iterator[Pair]:
    """A mean of three written for any number of elements."""
    for n in (2, 3, 4, 7):
        yield pair(EQUAL if n == 3 else DIFFERENT, f"{n} numbers", lambda x: x.mean(-1), lambda x: x.sum(-1) / 3, (4, n))
        yield pair(
            EQUAL if n == 3 else DIFFERENT,
            f"a root of {n}",
            lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1),
            lambda x: x / torch.sqrt((x * x).sum(-1, keepdim=True) / 3 + 1),
            (4, n),
        )


@family("norms")
def layer_norms() -> Iterator[Pair]:
    def spelled(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor, eps: float = 1e-5, less: int = 0) -> torch.Tensor:
        return _spread(x, -1) / torch.sqrt(_variance(x, -1, less)[..., None] + eps) * g + b

    def normed(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (x.shape[-1],), g, b, 1e-5)

    for shape in ((3, 4), (4, 4), (2, 3, 5)):
        shapes = (shape, shape[-1:], shape[-1:])
        yield pair(EQUAL, f"spelled out {shape}", normed, spelled, *shapes)
        yield pair(DIFFERENT, f"epsilon {shape}", normed, lambda x, g, b: spelled(x, g, b, 1e-6), *shapes)
        yield pair(DIFFERENT, f"one element less {shape}", normed, lambda x, g, b: spelled(x, g, b, 1e-5, 1), *shapes)
        yield pair(DIFFERENT, f"gain before {shape}", normed, lambda x, g, b: normed(x * g, g * 0 + 1, b), *shapes)
        yield pair(
            DIFFERENT, f"bias before the gain {shape}", normed, lambda x, g, b: (normed(x, g * 0 + 1, g * 0) + b) * g, *shapes
        )
        yield pair(DIFFERENT, f"gain and bias exchanged {shape}", normed, lambda x, g, b: normed(x, b, g), *shapes)
        yield pair(EQUAL, f"of shifted values {shape}", normed, lambda x, g, b: normed(x + 7, g, b), *shapes)
        yield pair(EQUAL, f"its mean taken before {shape}", normed, lambda x, g, b: normed(_spread(x, -1), g, b), *shapes)


@family("norms")
def rms_norms() -> Iterator[Pair]:
    def normed(x: torch.Tensor, g: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
        return rms_norm(x, (x.shape[-1],), g, eps)

    for shape in ((3, 4), (4, 4), (2, 3, 5)):
        shapes = (shape, shape[-1:], (shape[-1], 3))
        yield pair(
            EQUAL,
            f"spelled out {shape}",
            lambda x, g, w: normed(x, g) @ w,
            lambda x, g, w: (_normalised(x, -1, 1e-6) * g) @ w,
            *shapes,
        )
        yield pair(
            EQUAL,
            f"gain folded into the weights {shape}",
            lambda x, g, w: normed(x, g) @ w,
            lambda x, g, w: _normalised(x, -1, 1e-6) @ (g[:, None] * w),
            *shapes,
        )
        yield pair(
            EQUAL,
            f"divided after the product {shape}",
            lambda x, g, w: normed(x, g) @ w,
            lambda x, g, w: (x * g) @ w / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6),
            *shapes,
        )
        yield pair(
            DIFFERENT,
            f"the norm of what the gain scaled {shape}",
            lambda x, g, w: normed(x, g) @ w,
            lambda x, g, w: _normalised(x * g, -1, 1e-6) @ w,
            *shapes,
        )
        yield pair(
            DIFFERENT,
            f"PyTorch's own epsilon {shape}",
            lambda x, g, w: normed(x, g) @ w,
            lambda x, g, w: rms_norm(x, (x.shape[-1],), g) @ w,
            *shapes,
        )


@family("softmax")
def softmax_along_the_other_axis() -> Iterator[Pair]:
    for n in (2, 3, 4, 5):
        yield pair(DIFFERENT, f"square {n}", lambda x: softmax(x, 0), lambda x: softmax(x, 1), (n, n))
        yield pair(EQUAL, f"transposed {n}", lambda x: softmax(x, 0), lambda x: softmax(x.T, 1).T, (n, n))
        yield pair(EQUAL, f"a row's constant {n}", lambda x, c: softmax(x + c, 1), lambda x, c: softmax(x, 1), (n, n), (n, 1))
        yield pair(
            DIFFERENT, f"a column's constant {n}", lambda x, c: softmax(x + c, 1), lambda x, c: softmax(x, 1), (n, n), (1, n)
        )
        yield pair(
            DIFFERENT,
            f"shifted along the wrong axis {n}",
            lambda x: softmax(x, 1),
            lambda x: _softmax(x, 1, x.amax(0, keepdim=True)),
            (n, n),
        )


@family("softmax")
def softmax_of_two_is_a_sigmoid() -> Iterator[Pair]:
    for n in (2, 3):
        truth = EQUAL if n == 2 else DIFFERENT
        for sign in (1, -1):
            yield pair(
                truth,
                f"{n} scores, sign {sign}",
                lambda x, s=sign: softmax(s * x, 1),
                lambda x, s=sign: torch.sigmoid(2 * s * (x - x.mean(1, keepdim=True))),
                (3, n),
            )
