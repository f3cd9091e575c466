"""Small programs as one would write them, beside the form one would choose: what it takes is algebra and several kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program, ProgramTensor

Outputs = ProgramTensor | tuple[ProgramTensor, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A program as it is `written` and in the form that is `chosen` by hand, over inputs of the same shapes.

    `construct` says what leads from the one to the other.
    """

    construct: str
    shapes: tuple[Shape, ...]
    written: Callable[..., Outputs]
    chosen: Callable[..., Outputs]
    dtype: DType = DType.FP16

    def graph(self, form: Callable[..., Outputs], divisor: int = 1) -> Graph:
        """The kernel graph of one of both forms, with all dimensions divided by a number."""
        program = Program()
        shapes = [tuple(-(-size // divisor) for size in shape) for shape in self.shapes]
        outputs = form(*(program.input(f"x{number}", shape, self.dtype) for number, shape in enumerate(shapes)))
        program.output(*(outputs if isinstance(outputs, tuple) else (outputs,)))
        return program.graph


def transposed(x: ProgramTensor) -> ProgramTensor:
    """With the last two dimensions exchanged."""
    return x.transpose(-2, -1)


def scaled_rows(x: ProgramTensor, s: ProgramTensor) -> ProgramTensor:
    """Each row multiplied by an element of a vector."""
    return transposed(transposed(x) * s)


def centred(x: ProgramTensor) -> ProgramTensor:
    """Each row without its mean."""
    return x - x.mean(-1, keepdim=True)


def length(x: ProgramTensor) -> ProgramTensor:
    """The root mean square of each row."""
    return (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def total(x: ProgramTensor) -> ProgramTensor:
    """The sum of each row."""
    return x.sum(-1, keepdim=True)


L, M, S, T = 4096, 1024, 64, 16
"""Sizes of dimensions, from large to tiny."""

LL, LM, ML, LS, SL, LT, TL, MM, L1 = (L, L), (L, M), (M, L), (L, S), (S, L), (L, T), (T, L), (M, M), (L, 1)

CASES: dict[str, Case] = {
    # factoring
    "two products": Case("factoring", (LL, LL, LL), lambda x, y, z: x @ z + y @ z, lambda x, y, z: (x + y) @ z),
    "two products from the left": Case("factoring", (LL, LL, LL), lambda x, y, z: z @ x + z @ y, lambda x, y, z: z @ (x + y)),
    "a difference": Case("factoring", (LL, LL, LL), lambda x, y, z: x @ z - y @ z, lambda x, y, z: (x - y) @ z),
    "three products": Case(
        "factoring", (LM, LM, LM, ML), lambda w, x, y, z: w @ z + x @ z + y @ z, lambda w, x, y, z: (w + x + y) @ z
    ),
    "products under a function": Case(
        "factoring", (LL, LL, LL), lambda x, y, z: (x @ z + y @ z).silu(), lambda x, y, z: ((x + y) @ z).silu()
    ),
    "gated products": Case(
        "factoring", (LM, LM, LM, ML), lambda x, y, g, z: (x * g) @ z + (y * g) @ z, lambda x, y, g, z: ((x + y) * g) @ z
    ),
    "products of a function": Case(
        "factoring", (LM, LM, ML), lambda x, y, z: x.silu() @ z + y.silu() @ z, lambda x, y, z: (x.silu() + y.silu()) @ z
    ),
    "two pairs of products": Case(
        "factoring", (LM, LM, ML, ML), lambda a, b, x, y: a @ x + a @ y + b @ x + b @ y, lambda a, b, x, y: (a + b) @ (x + y)
    ),
    # distributing
    "an adapted weight": Case(
        "distributing", (TL, LL, LT, TL), lambda x, w, a, b: x @ (w + a @ b), lambda x, w, a, b: x @ w + (x @ a) @ b
    ),
    "a residual before a thin product": Case(
        "distributing", (LL, LM, ML, LT), lambda x, a, b, v: (x + a @ b) @ v, lambda x, a, b, v: x @ v + a @ (b @ v)
    ),
    "an outer product added": Case(
        "distributing", (LL, LT, TL, LT), lambda x, a, b, v: (x + a @ b) @ v, lambda x, a, b, v: x @ v + a @ (b @ v)
    ),
    "the sum of a product's rows": Case("distributing", (LL, LL), lambda x, w: total(x @ w), lambda x, w: x @ total(w)),
    "the sum of two products' rows": Case(
        "distributing", (LL, LL, LL), lambda x, y, w: total(x @ w + y @ w), lambda x, y, w: (x + y) @ total(w)
    ),
    "a product that is subtracted": Case(
        "distributing", (LL, LM, ML, LT), lambda x, a, b, v: (x - a @ b) @ v, lambda x, a, b, v: x @ v - a @ (b @ v)
    ),
    # hoisting a scale
    "rows scaled after a product": Case(
        "hoisting a scale", (LM, ML, L1), lambda x, w, s: (x @ w) * s, lambda x, w, s: (x * s) @ w
    ),
    "rows scaled before a product": Case(
        "hoisting a scale", (LL, LM, L1), lambda x, w, s: (x * s) @ w, lambda x, w, s: (x @ w) * s
    ),
    "columns scaled after a product": Case(
        "hoisting a scale", (LM, ML, (L,)), lambda x, w, s: (x @ w) * s, lambda x, w, s: x @ (w * s)
    ),
    "a number after a product": Case("hoisting a scale", (LM, ML), lambda x, w: (x @ w) * 0.125, lambda x, w: (x * 0.125) @ w),
    "rows divided before a product": Case(
        "hoisting a scale", (LL, LM, L1), lambda x, w, s: (x / s) @ w, lambda x, w, s: (x @ w) / s
    ),
    "scaled rows in two products": Case(
        "hoisting a scale", (LL, LM, LM, L1), lambda x, a, b, s: (x * s) @ a + (x * s) @ b, lambda x, a, b, s: (x @ (a + b)) * s
    ),
    "a sum of scaled products": Case(
        "hoisting a scale", (LM, LM, ML, L1), lambda x, y, w, s: (x @ w) * s + (y @ w) * s, lambda x, y, w, s: ((x + y) * s) @ w
    ),
    # sharing a product
    "two weights behind one": Case(
        "sharing a product",
        (LM, MM, MM, MM),
        lambda x, w, a, b: (x @ (w @ a), (x @ w) @ b),
        lambda x, w, a, b: (x @ (w @ a), x @ (w @ b)),
    ),
    "gates before and after": Case(
        "sharing a product",
        (LM, ML, (L,), (L,)),
        lambda x, w, g, h: (x @ w) * g + x @ (w * h),
        lambda x, w, g, h: (x @ w) * (g + h),
    ),
    "a product and its double": Case(
        "sharing a product", (LM, ML), lambda x, w: (x @ w, (x * 2.0) @ w), lambda x, w: (x @ w, (x @ w) * 2.0)
    ),
    "rows scaled in one of two outputs": Case(
        "sharing a product", (LL, LL, L1), lambda x, w, s: (x @ w, (x * s) @ w), lambda x, w, s: (x @ w, (x @ w) * s)
    ),
    "a product in two sums": Case(
        "sharing a product",
        (LL, LL, LL),
        lambda x, y, w: (x @ w, (x + y) @ w),
        lambda x, y, w: (x @ w, (x @ w) + y @ w),
    ),
    "a product scaled and added": Case(
        "sharing a product", (LM, ML, L1), lambda x, w, s: (x @ w) * s + x @ w, lambda x, w, s: (x @ w) * (s + 1.0)
    ),
    "two gates of one product": Case(
        "sharing a product",
        (LM, ML, (L,), L1),
        lambda x, w, g, s: (x @ (w * g), (x * s) @ w),
        lambda x, w, g, s: ((x @ w) * g, (x @ w) * s),
    ),
    # splitting a norm
    "a norm before a narrow product": Case(
        "splitting a norm", (LL, LM), lambda x, w: (x / length(x)) @ w, lambda x, w: (x @ w) / length(x)
    ),
    "a norm with a gain": Case(
        "splitting a norm",
        (LL, (L,), LM),
        lambda x, g, w: (x * g / length(x)) @ w,
        lambda x, g, w: (x @ (scaled_rows(w, g))) / length(x),
    ),
    "a norm before two products": Case(
        "splitting a norm",
        (LL, LM, LM),
        lambda x, a, b: ((x / length(x)) @ a, (x / length(x)) @ b),
        lambda x, a, b: ((x @ a) / length(x), (x @ b) / length(x)),
    ),
    "a softmax without a maximum": Case(
        "splitting a norm", (LL, LM), lambda x, w: (x.exp() / total(x.exp())) @ w, lambda x, w: (x.exp() @ w) / total(x.exp())
    ),
    "a centred product": Case(
        "splitting a norm",
        (LL, LS),
        lambda x, w: centred(x) @ w,
        lambda x, w: x @ w - x.mean(-1, keepdim=True) * w.sum(-2, keepdim=True),
    ),
    "a norm of a sum of products": Case(
        "splitting a norm",
        (LM, LM, MM),
        lambda x, y, w: (x @ w + y @ w) / length(x @ w + y @ w),
        lambda x, y, w: ((x + y) @ w) / length((x + y) @ w),
    ),
    # reassociating a chain of products
    "a chain that narrows": Case("reassociating", (LL, LL, LT), lambda a, b, c: (a @ b) @ c, lambda a, b, c: a @ (b @ c)),
    "a chain that widens": Case("reassociating", (TL, LL, LL), lambda a, b, c: a @ (b @ c), lambda a, b, c: (a @ b) @ c),
    "a chain of four": Case(
        "reassociating", (LL, LS, SL, LM), lambda a, b, c, d: ((a @ b) @ c) @ d, lambda a, b, c, d: (a @ b) @ (c @ d)
    ),
    "linear attention": Case(
        "reassociating", (LS, LS, LS), lambda q, k, v: (q @ transposed(k)) @ v, lambda q, k, v: q @ (transposed(k) @ v)
    ),
    "a chain with a scale inside": Case(
        "reassociating",
        (LL, LL, LS, (L,)),
        lambda a, b, c, s: ((a @ b) * s) @ c,
        lambda a, b, c, s: a @ (b @ (scaled_rows(c, s))),
    ),
    "two chains with one end": Case(
        "reassociating",
        (LM, ML, LM, ML, LS),
        lambda a, b, c, d, v: (a @ b) @ v + (c @ d) @ v,
        lambda a, b, c, d, v: a @ (b @ v) + c @ (d @ v),
    ),
    "a chain under a gate": Case(
        "reassociating",
        (LL, LL, LS, LS),
        lambda a, b, c, g: ((a @ b) @ c) * g.silu(),
        lambda a, b, c, g: (a @ (b @ c)) * g.silu(),
    ),
}

LESS_PRECISE = {"a softmax without a maximum": "unnormalised exponentials stored in fp16 keep fewer bits than other plans do"}
"""Programs of which rewriting finds a faster form that the search finds, too, and drops for its rounding errors."""
