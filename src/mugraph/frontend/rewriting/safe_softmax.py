"""PyTorch's softmax that is 0 where every element of a row is -inf, as a softmax of rows that are not.

A program's softmax of such a row is not a number. Which elements are -inf is known without the scores, where these are finite:
they are scores + bias, and the bias alone says which rows it hides. Where it depends on no argument it is looked at once; else
every call shows what it hides and multiplies it by 0.

    safe_softmax(scores + bias) = softmax(scores + (bias, 0 in hidden rows)) * (0 in hidden rows, else 1)

Products of matrices are taken for finite, and for far less than the largest number of their type. Scores are finite that are made
of them by operators of which it is known how large their results may be. Of others nothing is known, and the call stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from mugraph.frontend.operators.torch_casts import draws_random_numbers, name_of, tensor_of

_aten = torch.ops.aten
SAFE = _aten._safe_softmax.default
_PRODUCTS = frozenset({"mm", "bmm", "matmul"})
_BOUNDED = frozenset({"cos", "sigmoid", "sin", "tanh"})
"""Operators that give nothing infinite."""
_LARGEST_OF_OPERANDS = frozenset(
    {
        "_to_copy", "_unsafe_view", "abs", "alias", "clamp", "clamp_max", "clamp_min", "clone", "expand", "masked_fill",
        "maximum", "minimum", "neg", "permute", "relu", "reshape", "squeeze", "to", "transpose", "unsqueeze", "view", "where",
    }
)  # fmt: skip
"""Operators that give nothing larger than the largest of their operands."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What is done to a bias: `add` or `sub` an operand, or put -inf where a mask is true (`hide`) or is not (`keep`)."""

    kind: str
    operand: Any


def with_plain_softmax(
    graph: fx.Graph, values: Mapping[fx.Node, torch.Tensor], constant: Callable[[torch.Tensor], fx.Node]
) -> None:
    """Change a graph of ATen calls so that every `_safe_softmax` whose hidden rows are known without its scores is a softmax.

    `values` has what the graph computes of no argument, and `constant` makes a node of such a value.
    """
    biased = _Biased(values)
    for node in [node for node in graph.nodes if node.target is SAFE and _is_plain(node)]:
        found = biased.parts(node.args[0])
        if found is not None:
            _Spelling(graph, node, *found, values, constant).replace()


def _is_plain(node: fx.Node) -> bool:
    """Whether a call leaves the type as it is, and its rows lie along the last dimension."""
    operand: Any = node.args[0]
    given = operand.meta["val"]
    return node.meta["val"].dtype is given.dtype and node.args[1] in (-1, given.dim() - 1)


@dataclass
class _Biased:
    """Tensors of a graph as finite scores + bias."""

    values: Mapping[fx.Node, torch.Tensor]
    known: dict[fx.Node, float] = field(default_factory=dict)

    def parts(self, node: Any) -> tuple[fx.Node, list[_Step]] | None:
        """The scores, and the steps that make the bias, from 0 on; None for what is no such sum."""
        if not isinstance(node, fx.Node) or node in self.values:
            return None
        steps = self._last_steps(node)
        if not any(step.operand in self.values for _, step in steps) and self._is_finite(node):
            return node, []
        for base, step in steps:
            found = self.parts(base)
            # by name: operators of ATen
            if found is not None and self._is_finite(found[0], beside_others=step.kind in ("add", "sub")):
                return found[0], [*found[1], step]
        return (node, []) if self._is_finite(node) else None

    def _last_steps(self, node: fx.Node) -> list[tuple[Any, _Step]]:
        """The ways to take a tensor for one to which a step was done."""
        # by name: operators of ATen
        match name_of(node), node.args, dict(node.kwargs):
            case "add", (one, other), {**rest} if not rest:
                return [(one, _Step("add", other)), (other, _Step("add", one))]
            case "sub", (one, other), {**rest} if not rest:
                return [(one, _Step("sub", other))]
            case "masked_fill", (base, mask, number), _ if self._hides(number):
                return [(base, _Step("hide", mask))]
            case "where", (mask, base, number), _ if self._hides(number):
                return [(base, _Step("keep", mask))]
            case "where", (mask, number, base), _ if self._hides(number):
                return [(base, _Step("hide", mask))]
        return []

    def _hides(self, number: Any) -> bool:
        value = self.values.get(number) if isinstance(number, fx.Node) else number
        return bool((value == -math.inf).all()) if isinstance(value, torch.Tensor) else value == -math.inf

    def _is_finite(self, node: fx.Node, beside_others: bool = False) -> bool:
        """Whether a tensor is finite where products are; `beside_others`, also with any finite number added to it."""
        given, bound = tensor_of(node), self._bound(node)
        if given is None or not given.dtype.is_floating_point:
            return False
        return _is_number(bound + (torch.finfo(given.dtype).max if beside_others else 0.0), given.dtype)

    def _bound(self, operand: Any) -> float:
        """How large the elements of an operand, or an operand that is a number, may be; infinite where that is not known."""
        if not isinstance(operand, fx.Node):
            return abs(float(operand)) if isinstance(operand, (int, float)) else 0.0
        if operand not in self.known:
            bound, given = self._bound_of_result(operand), tensor_of(operand)
            fits = given is None or not given.dtype.is_floating_point or _is_number(bound, given.dtype)
            self.known[operand] = bound if fits else math.inf
        return self.known[operand]

    def _bound_of_result(self, node: fx.Node) -> float:
        if node in self.values:
            value = self.values[node].double()
            return (float(value.abs().max()) if value.isfinite().all() else math.inf) if value.numel() else 0.0
        given, name = tensor_of(node), name_of(node)
        if given is None or node.op != "call_function":
            return math.inf
        if not given.dtype.is_floating_point:
            return 1.0 if given.dtype is torch.bool else float(torch.iinfo(given.dtype).max)
        if name in _BOUNDED:
            return 1.0
        if name in _PRODUCTS:
            return float(torch.finfo(given.dtype).max ** (1 / 5))
        if name in _LARGEST_OF_OPERANDS:
            found = [0.0]
            map_aggregate((node.args, node.kwargs), lambda each: found.append(self._bound(each)))
            return max(found)
        # by name: operators of ATen, whose results have bounds by those of their operands
        if node.kwargs or name not in ("add", "sub", "mul", "div"):
            return math.inf
        one, other = node.args
        # by name: as above
        match name:
            case "mul":
                return self._bound(one) * self._bound(other)
            case "div":
                return self._bound(one) * self._bound_of_reciprocal(other)
            case _:
                return self._bound(one) + self._bound(other)

    def _bound_of_reciprocal(self, divisor: Any) -> float:
        value = self.values.get(divisor) if isinstance(divisor, fx.Node) else torch.tensor(divisor)
        smallest = 0.0 if value is None or not value.numel() else float(value.double().abs().min())
        return 1 / smallest if smallest else math.inf


def _is_number(bound: float, kind: torch.dtype) -> bool:
    """Whether numbers up to a bound are finite in a type, to which they are rounded."""
    return bool(torch.tensor(bound, dtype=torch.float64).to(kind).isfinite())


@dataclass
class _Spelling:
    """One call of scores + bias, of which the steps make the bias."""

    graph: fx.Graph
    node: fx.Node
    scores: fx.Node
    steps: Sequence[_Step]
    values: Mapping[fx.Node, torch.Tensor]
    constant: Callable[[torch.Tensor], fx.Node]

    def replace(self) -> None:
        """Put the softmax of shown rows in the place of the call, and the sum in that of its operand."""
        operand: Any = self.node.args[0]
        with self.graph.inserting_before(operand.next):
            shown, factor = self._shown(operand)
        with self.graph.inserting_before(self.node):
            result = self._call(_aten._softmax.default, (shown, self.node.args[1], False), self.node)
            if factor is not None:
                result = self._call(_aten.mul.Tensor, (result, factor), self.node)
        self.node.replace_all_uses_with(result)
        for unread in (self.node, operand):
            erase_unused(unread)

    def _shown(self, operand: fx.Node) -> tuple[fx.Node, fx.Node | None]:
        """The scores with the bias where it hides no row, and what rows are multiplied by, if by anything."""
        if not self.steps:
            return self.scores, None
        if all(not isinstance(step.operand, fx.Node) or step.operand in self.values for step in self.steps):
            return self._shown_by_values(operand)
        return self._shown_by_calls(operand)

    def _shown_by_values(self, operand: fx.Node) -> tuple[fx.Node, fx.Node | None]:
        given = operand.meta["val"]
        bias: Any = torch.zeros((), dtype=given.dtype, device=given.device)
        for step in self.steps:
            bias = _after(step, bias, self._value(step.operand))
        bias, widens = _narrowed(bias.to(given.dtype)), self.scores.meta["val"].shape != given.shape
        if widens:  # repetitions that the scores do not have
            bias = bias.expand(given.shape).contiguous()
        elif not bool(bias.any()):
            return self.scores, None
        hidden = (bias == -math.inf).all(-1, keepdim=True)
        biased = self._biased(operand, self.constant(bias))
        if not bool(hidden.any()):
            return biased, None
        shown = self._call(_aten.add.Tensor, (self.scores, self.constant(bias.masked_fill(hidden, 0.0))), operand)
        return shown, self.constant((~hidden).to(given.dtype))

    def _value(self, operand: Any) -> Any:
        return unexpanded(self.values[operand]) if isinstance(operand, fx.Node) else operand

    def _shown_by_calls(self, operand: fx.Node) -> tuple[fx.Node, fx.Node | None]:
        kind = operand.meta["val"].dtype
        bias: Any = 0.0
        for step in self.steps:
            bias = self._after(step, bias, kind)
        self._biased(operand, bias)
        hidden = self._made(_aten.all.dim, self._made(_aten.eq.Scalar, bias, -math.inf), -1, True)
        shown = self._made(_aten.where.ScalarSelf, hidden, 0.0, bias)
        factor = self._in_type(self._made(_aten.where.Scalar, hidden, 0.0, 1.0), kind)
        return self._call(_aten.add.Tensor, (self.scores, shown), operand), factor

    def _after(self, step: _Step, bias: Any, kind: torch.dtype) -> Any:
        """A bias, a number or the node of a tensor, behind a step."""
        operand = step.operand
        if step.kind in ("hide", "keep"):
            sides = (-math.inf, bias) if step.kind == "hide" else (bias, -math.inf)
            call = _aten.where.Scalar
            if isinstance(bias, fx.Node):
                call = _aten.where.ScalarSelf if step.kind == "hide" else _aten.where.ScalarOther
            return self._in_type(self._made(call, operand, *sides), kind)
        if isinstance(operand, fx.Node):
            operand = self._in_type(operand, kind)
        # by name: an operator of ATen
        if step.kind == "sub":
            operand = self._made(_aten.neg.default, operand) if isinstance(operand, fx.Node) else -operand
        if not isinstance(bias, fx.Node):
            bias, operand = operand, bias
        if not isinstance(bias, fx.Node):
            return bias + operand
        return bias if not isinstance(operand, fx.Node) and operand == 0 else self._made(_aten.add.Tensor, bias, operand)

    def _in_type(self, node: fx.Node, kind: torch.dtype) -> fx.Node:
        return node if node.meta["val"].dtype is kind else self._made(_aten._to_copy.default, node, dtype=kind)

    def _biased(self, operand: fx.Node, bias: fx.Node) -> fx.Node:
        """scores + bias, in the place of the operand, which is the same."""
        whole = self._call(_aten.add.Tensor, (self.scores, bias), operand)
        operand.replace_all_uses_with(whole)
        return whole

    def _call(self, target: Any, operands: tuple[Any, ...], like: fx.Node) -> fx.Node:
        """A call that gives a tensor like another one."""
        node = self.graph.call_function(target, operands)
        node.meta.update(like.meta)
        return node

    def _made(self, target: Any, *operands: Any, **options: Any) -> fx.Node:
        """A call on what goes into the bias."""
        node = self.graph.call_function(target, operands, options)
        values = [operand.meta["val"] if isinstance(operand, fx.Node) else operand for operand in operands]
        with self.node.meta["val"].fake_mode:
            node.meta["val"] = target(*values, **options)
        return node


def _after(step: _Step, bias: Any, operand: Any) -> Any:
    """The value of a bias behind a step."""
    # by name: operators of ATen
    match step.kind:
        case "add":
            return bias + operand
        case "sub":
            return bias - operand
        case "hide":
            return torch.where(operand, -math.inf, bias)
        case _:
            return torch.where(operand, bias, -math.inf)


def _narrowed(value: torch.Tensor) -> torch.Tensor:
    """A tensor without leading dimensions of size 1, as a bias of positions alone is written."""
    while value.dim() > 1 and value.shape[0] == 1:
        value = value[0]
    return value


def unexpanded(value: torch.Tensor) -> torch.Tensor:
    """A tensor without its repetitions along dimensions, which are of size 1 then."""
    for dim, stride in enumerate(value.stride()):
        if stride == 0:
            value = value.narrow(dim, 0, 1)
    return value


def erase_unused(node: fx.Node) -> None:
    """Erase a call that nobody reads, and what it alone read, but for what changes tensors or draws random numbers."""
    if node.op == "call_function" and not (node._erased or node.users or node.is_impure() or draws_random_numbers(node)):
        sources = node.all_input_nodes
        node.graph.erase_node(node)
        for source in sources:
            erase_unused(source)
