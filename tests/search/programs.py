"""Programs the search tests run on: the paper's shapes in small."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mugraph.ir import Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program, ProgramTensor


def finished(program: Program, *outputs: ProgramTensor) -> Graph:
    """The graph of a program with these outputs."""
    program.output(*outputs)
    return program.graph


def normalized(x: ProgramTensor, eps: float = 1e-5) -> ProgramTensor:
    """x / rms(x) along the last dimension."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def rmsnorm(batch: int = 4, hidden: int = 16, out: int = 8) -> Graph:
    """RMSNorm with gain, then a linear layer."""
    p = Program()
    x, g, w = p.input("x", (batch, hidden)), p.input("g", (hidden,)), p.input("w", (hidden, out))
    return finished(p, normalized(x) * g @ w)


def gated_mlp(batch: int = 4, hidden: int = 8, out: int = 6) -> Graph:
    """silu(x @ a) * (x @ b)."""
    p = Program()
    x, a, b = p.input("x", (batch, hidden)), p.input("a", (hidden, out)), p.input("b", (hidden, out))
    return finished(p, (x @ a).silu() * (x @ b))


def lora(batch: int = 4, hidden: int = 12, out: int = 6, rank: int = 2) -> Graph:
    """x @ w + x @ a @ b."""
    p = Program()
    x, w = p.input("x", (batch, hidden)), p.input("w", (hidden, out))
    a, b = p.input("a", (hidden, rank)), p.input("b", (rank, out))
    return finished(p, x @ w + x @ a @ b)


def attention(queries: int = 3, keys: int = 8, width: int = 4, normalize: bool = False) -> Graph:
    """Batched softmax attention with scale, queries and keys normalised on demand."""
    p = Program()
    q, k, v = p.input("q", (2, 2, queries, width)), p.input("k", (2, 2, keys, width)), p.input("v", (2, 2, keys, width))
    if normalize:
        q, k = normalized(q), normalized(k)
    scores = q @ k.transpose(-2, -1) * width**-0.5
    return finished(p, scores.softmax(-1) @ v)


def ntrans(batch: int = 4, width: int = 8) -> Graph:
    """norm(x + alpha * norm(h - x)) with unit norms."""
    p = Program()
    x, h, alpha = p.input("x", (batch, width)), p.input("h", (batch, width)), p.input("alpha", (width,))

    def unit(t: ProgramTensor) -> ProgramTensor:
        return t / t.square().sum(-1, keepdim=True).sqrt()

    return finished(p, unit(x + alpha * unit(h - x)))


def self_attention() -> Graph:
    """softmax(x @ x.T) @ x: one tensor along two axes at once."""
    p = Program()
    x = p.input("x", (6, 4))
    return finished(p, (x @ x.transpose(0, 1)).softmax(-1) @ x)


def distances() -> Graph:
    """Squared distances of all pairs of rows: an elementwise operator whose operands' axes are not nested."""
    p = Program()
    x, y = p.input("x", (7, 5)), p.input("y", (6, 5))
    return finished(p, (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1))


def heads_and_projection() -> Graph:
    """Attention weights of several heads, projected and added: the heads are reduced, but later than the rows."""
    p = Program()
    x, w = p.input("x", (4, 6, 8)), p.input("w", (4, 8, 3))
    return finished(p, (x.softmax(-1) @ w).sum(0))


def grouped_heads() -> Graph:
    """Keys repeated over a group of query heads by expand and reshape, as model code writes it."""
    p = Program()
    q, k = p.input("q", (2, 6, 3, 4)), p.input("k", (2, 2, 5, 4))
    wide = k.unsqueeze(2).expand(2, 2, 3, 5, 4).reshape(2, 6, 5, 4)
    return finished(p, q @ wide.transpose(-2, -1))


def chain(rows: int = 4, inner: int = 8, middle: int = 6, out: int = 10) -> Graph:
    """(a @ b) @ c."""
    p = Program()
    a, b, c = p.input("a", (rows, inner)), p.input("b", (inner, middle)), p.input("c", (middle, out))
    return finished(p, (a @ b) @ c)


PAPER: dict[str, Callable[[], Graph]] = {
    "rmsnorm": rmsnorm,
    "gated-mlp": gated_mlp,
    "lora": lora,
    "gqa": attention,
    "qknorm": lambda: attention(queries=1, normalize=True),
    "ntrans": ntrans,
}


def random_inputs(graph: Graph, seed: int = 0) -> list[Array]:
    """Standard normal inputs of a graph in float64."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(node.output.shape) for node in graph.inputs()]


def outputs(graph: Graph, seed: int = 0) -> list[Array]:
    """What a graph computes on `random_inputs`, in float64."""
    return evaluate(graph, random_inputs(graph, seed), FloatArithmetic())
