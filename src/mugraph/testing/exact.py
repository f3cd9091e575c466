"""What a PyTorch function is as a function of real numbers: its ATen operators on fractions, or on mpmath's numbers of 200 bits.

This shares nothing with the frontend, the table of operators or the fields: PyTorch records the function and takes its composite
operators apart, and what is left is computed element by element (`exact_operators.py`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from mugraph.testing.exact_numbers import Arithmetic, Numbers
from mugraph.testing.exact_operators import Evaluation


@dataclass(frozen=True, slots=True)
class Recorded:
    """A function as ATen operators on `inputs` tensors; `structure` describes what it returned."""

    graph: torch.fx.GraphModule
    structure: Any
    constants: tuple[Any, ...]
    """The leaves it returned that are no tensors."""

    def outputs(self, inputs: Sequence[Numbers], arith: Arithmetic) -> list[Numbers]:
        """The tensors it returns for these numbers."""
        run = Evaluation(arith)
        values: dict[torch.fx.Node, Any] = {}
        remaining = iter(inputs)
        for node in self.graph.graph.nodes:
            match node.op:
                case "placeholder":
                    values[node] = next(remaining)
                case "get_attr":
                    values[node] = run.tensor(operator.attrgetter(str(node.target))(self.graph))
                case "call_function":
                    args, kwargs = (torch.fx.map_arg(part, values.__getitem__) for part in (node.args, node.kwargs))
                    values[node] = run.apply(node, args, kwargs)
                case "output":
                    return [values[out] for out in node.args[0]]
        raise AssertionError("a graph without outputs")


def recorded(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Recorded:
    """Record a call of `fn` on flat tensors; every position is an input of its own, though tensors may be the same."""
    leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
    positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    returned: list[tuple[Any, tuple[Any, ...]]] = []

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        filled = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            filled[position] = tensor
        inner_args, inner_kwargs = torch.utils._pytree.tree_unflatten(filled, structure)
        out, spec = tree_flatten(fn(*inner_args, **inner_kwargs))
        returned.append((spec, tuple(leaf for leaf in out if not isinstance(leaf, torch.Tensor))))
        return [leaf for leaf in out if isinstance(leaf, torch.Tensor)]

    examples = [leaves[position].detach().clone() for position in positions]
    with _SpelledOut(), torch.no_grad():
        graph = make_fx(flat, decomposition_table=_decompositions())(*examples)
    return Recorded(graph, *returned[-1])


class _SpelledOut(TorchFunctionMode):
    """Attention and norms as what they mean: PyTorch's own forms round a root of the scale, and epsilon."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        if func is torch.nn.functional.rms_norm:
            return _rms_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if enable_gqa:
        times = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(times, -3), v.repeat_interleave(times, -3)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return torch.softmax(scores if attn_mask is None else scores + attn_mask, -1) @ v


def _rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    normed = x / torch.sqrt((x * x).mean(dims, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps))
    return normed if weight is None else normed * weight


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's, looked up once: it takes a second. Rotations stay, which would become numbers of positions."""
    found = core_aten_decompositions().items()  # type: ignore[no-untyped-call]  # torch's
    return {operation: meaning for operation, meaning in found if operation is not torch.ops.aten.roll.default}
