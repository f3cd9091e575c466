"""What a recorded function computes of no tensor: masks by position, tables of positions, tensors of one number.

Such calls are made once, while the function is traced, and what the rest reads of them becomes inputs of the program that the
result brings along. A mask of booleans becomes numbers on the way: choices by it are sums and products with constants,

    masked_fill(x, mask, -inf) = x + m, with -inf where the mask is, and 0 elsewhere
    where(mask, x, y)          = x k + y (1 - k), with 1 where the mask is, and 0 elsewhere

which are the same numbers wherever what is not chosen is finite: 0 times infinity is not a number. So a choice from what the
function's own numbers make infinite, as a mask before it does, stays one. Attention that is causal, or has such a mask, gets the
mask as numbers too; where it hides every key of a query, whose row is 0 in PyTorch, it stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.frontend.operators.aten import Rule
from mugraph.frontend.operators.attention import WATCHED_ROWS, causal_mask, hides_a_row, mask_of
from mugraph.frontend.operators.conversion import CHECKS, ROW
from mugraph.frontend.operators.torch_casts import DTYPES, FLOATS, draws_random_numbers, lazy_module, name_of, tensor_of, widened
from mugraph.frontend.rewriting.safe_softmax import SAFE, erase_unused, with_plain_softmax

T = TypeVar("T")

_LARGEST = 1 << 26
"""Elements of a constant that is kept."""
UNWRITTEN = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators that give memory which nobody has written to: no numbers, and no constants."""
_ATTENTION = frozenset({"scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"})
_INFINITIES = frozenset({-math.inf, math.inf})
_KEEPING = frozenset({"where", "masked_fill", "add"})
"""Operators that give no infinity but those of their operands; NaN where these have both."""
_DIVIDING = frozenset({"div", "fmod", "remainder"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "div"})

Constants = Mapping[str, torch.Tensor]
"""The values of placeholders that were added to a graph, by name."""


def with_constants(graph: fx.Graph, every: bool = False) -> dict[str, torch.Tensor]:
    """Change a graph so that what it computes of no placeholder is read from new ones, and return their values.

    Integers and booleans are computed in place, for whom no program takes, unless `every` constant is asked for.
    """
    values = _computed(graph)
    added = _Placeholders(graph)
    with_plain_softmax(graph, values, added.of)
    fixed = _reading_nothing(graph)
    for node in list(graph.nodes):
        if name_of(node) in CHECKS and node in fixed:
            checked = node.all_input_nodes
            graph.erase_node(node)
            for source in checked:
                erase_unused(source)
    infinite = _Infinite(values)
    for node in list(graph.nodes):
        if node.op != "call_function" or node in values:
            continue
        found = infinite.given_by(node)
        infinite.found[_chosen_by_constants(graph, node, values, added, infinite) or node] = found
    for node in list(graph.nodes):
        if node.op == "call_function" and node not in values and name_of(node) in _ATTENTION:
            _masked_by_constants(node, values, added)
    for node in list(graph.nodes):
        if node.op in ("call_function", "output") and node not in values:
            for source in node.all_input_nodes:
                value = values.get(source)
                if value is not None and (every or value.dtype in DTYPES):
                    node.replace_input_with(source, added.of(value))
    for node in reversed(list(graph.nodes)):
        if node in values and not node.users:
            graph.erase_node(node)
    return added.values


def with_known_masks(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls in which masks and biases of scores that depend on no argument are buffers of the module."""
    graph = module.graph
    masked = [node for node in graph.nodes if mask_of(node) is not None]
    if not masked and not any(node.target is SAFE for node in graph.nodes):
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    tensors = {str(node.target): attrgetter(str(node.target))(module) for node in graph.nodes if node.op == "get_attr"}
    with _disable_current_modes():
        values = _computed(graph)
        added = _Buffers(graph)
        with_plain_softmax(graph, values, added.of)
        for node in masked:
            mask = mask_of(copies[node])
            if mask is not None and mask in values:
                _masked_by_constants(copies[node], values, added)
                erase_unused(mask)
        _write_numbers(values)
    return lazy_module({**tensors, **added.values}, graph)


def _write_numbers(values: Mapping[fx.Node, torch.Tensor]) -> None:
    """Give arithmetic its known tensors of one number as numbers, where they are exact."""
    for node, value in values.items():
        if value.dim() == 0 and value.dtype in FLOATS and math.isfinite(value):
            for user in [user for user in node.users if name_of(user) in _ARITHMETIC and user not in values]:
                other = tensor_of(user.args[0]) if isinstance(user.args[0], fx.Node) else None
                if user.args[1] is node and other is not None and other.dtype is value.dtype:
                    user.args = (user.args[0], value.item())
            erase_unused(node)


class _Infinite:
    """What numbers of a graph make infinite, or no number, whatever is in its placeholders."""

    def __init__(self, values: Mapping[fx.Node, torch.Tensor]) -> None:
        self.found: dict[fx.Node, frozenset[float]] = {}
        self._values = values

    def given_by(self, node: fx.Node) -> frozenset[float]:
        """Which infinities a call may give because of its operands; NaN only where it may give both."""
        if name_of(node) in _DIVIDING and self._has_zeros(node.args[1]):
            return _INFINITIES
        if name_of(node) in _ATTENTION:  # its mask only hides
            operands: Any = node.args[:3]
        else:
            operands = (node.args, node.kwargs)
        found: set[float] = set()
        map_aggregate(operands, lambda part: found.update(self.within(_rounded(part, node))))
        return frozenset(found) if not found or name_of(node) in _KEEPING else _INFINITIES

    def within(self, part: Any) -> frozenset[float]:
        """Which may be in an operand."""
        if isinstance(part, fx.Node):
            return self._of(self._values[part]) if part in self._values else self.found.get(part, frozenset())
        return frozenset({part}) & _INFINITIES if isinstance(part, float) else frozenset()

    def _has_zeros(self, divisor: Any) -> bool:
        value = self._values.get(divisor) if isinstance(divisor, fx.Node) else None
        return divisor == 0 if value is None else bool((value == 0).any())

    @staticmethod
    def _of(value: torch.Tensor) -> frozenset[float]:
        if not value.dtype.is_floating_point or bool((numbers := widened(value)).isfinite().all()):
            return frozenset()
        return frozenset({-math.inf}) if bool((numbers < math.inf).all()) else _INFINITIES


class _Placeholders:
    """Placeholders for constants, one for each value."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.values: dict[str, torch.Tensor] = {}
        self._known: dict[str, fx.Node] = {}

    def of(self, value: torch.Tensor) -> fx.Node:
        for name, other in self.values.items():
            if other is value or _same_bits(other, value):
                return self._known[name]
        first = next(iter(self.graph.nodes))
        with self.graph.inserting_before(first):
            node = self._new(f"constant_{len(self.values)}")
        node.meta["val"] = value
        self.values[node.name] = value
        self._known[node.name] = node
        return node

    def _new(self, name: str) -> fx.Node:
        return self.graph.placeholder(name)


class _Buffers(_Placeholders):
    """Buffers of a module for constants, one for each value."""

    def _new(self, name: str) -> fx.Node:
        node = self.graph.create_node("get_attr", name)
        node.target = node.name
        return node


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one type and hold the same numbers, 0.0 and -0.0 being two."""
    if one.dtype is not other.dtype or not torch.equal(one, other):
        return False
    return not one.dtype.is_floating_point or torch.equal(widened(one).signbit(), widened(other).signbit())


def _reading_nothing(graph: fx.Graph) -> set[fx.Node]:
    """The calls that no placeholder decides about."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


def _computed(graph: fx.Graph) -> dict[fx.Node, torch.Tensor]:
    """The values of the calls that read no placeholder, draw nothing and change nothing."""
    values: dict[fx.Node, torch.Tensor] = {}
    for node in graph.nodes:
        fixed = isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable
        if _fills_what_was_not_written(node):
            values[node] = _full(node.meta["val"], node.args[1])
            continue
        if (
            name_of(node) in UNWRITTEN
            or not fixed
            or draws_random_numbers(node)
            or any(source not in values for source in node.all_input_nodes)
        ):
            continue
        given = node.meta.get("val")
        if not isinstance(given, torch.Tensor) or given.numel() > _LARGEST:
            continue
        arguments: Any = fx.map_arg(node.args, values.__getitem__)
        options: Any = fx.map_arg(node.kwargs, values.__getitem__)
        value = node.target(*arguments, **options)
        if isinstance(value, torch.Tensor):
            values[node] = value
    return values


def _full(like: torch.Tensor, number: Any) -> torch.Tensor:
    return torch.full(tuple(like.shape), number, dtype=like.dtype, device=like.device)


def _fills_what_was_not_written(node: fx.Node) -> bool:
    """Whether a call gives a number in every place of memory that nobody has written to."""
    if name_of(node) != "fill" or not isinstance(node.args[1], (int, float)):
        return False
    return isinstance(node.args[0], fx.Node) and name_of(node.args[0]) in UNWRITTEN


def _chosen_by_constants(
    graph: fx.Graph, node: fx.Node, values: Mapping[fx.Node, torch.Tensor], added: _Placeholders, infinite: _Infinite
) -> fx.Node | None:
    """Replace a choice between numbers by a mask that is known; what stands for it now, or None where it stays."""
    given = node.meta.get("val")
    if not isinstance(given, torch.Tensor) or given.dtype not in FLOATS:
        return None
    choice = _choice(node, values)
    if choice is None:
        return None
    mask, first, second = choice
    lowered = first if isinstance(first, fx.Node) and second == -math.inf else None  # -inf is added to it
    for side in (first, second):
        if isinstance(side, fx.Node) and infinite.within(side) - {-math.inf if side is lowered else 0.0}:
            return None
    kept = mask.to(given.dtype)
    with graph.inserting_before(node):
        if lowered is not None:
            hidden = torch.zeros_like(kept).masked_fill(~mask, -math.inf)
            replacement = _call(node, torch.ops.aten.add.Tensor, lowered, added.of(hidden))
        else:
            parts = [_part(node, first, kept, added), _part(node, second, 1 - kept, added)]
            shown = [part for part in parts if part is not None]
            replacement = shown[0] if len(shown) == 1 else _call(node, torch.ops.aten.add.Tensor, *shown)
    node.replace_all_uses_with(replacement)
    graph.erase_node(node)
    return replacement


Choice = tuple[torch.Tensor, fx.Node | float, fx.Node | float]


def _choice(node: fx.Node, values: Mapping[fx.Node, torch.Tensor]) -> Choice | None:
    """The mask of a choice, what stands where it is true, and what elsewhere; None for what is no choice by a known mask."""
    name = name_of(node)
    if name not in ("where", "masked_fill") or len(node.args) != 3:
        return None
    first, second, third = node.args
    mask, chosen, other = (second, third, first) if name == "masked_fill" else (first, second, third)
    known = values.get(mask) if isinstance(mask, fx.Node) else None
    if known is None or known.dtype is not torch.bool:
        return None
    sides = [_rounded(_number_or_node(side, values), node) for side in (chosen, other)]
    if sides[0] is None or sides[1] is None:
        return None
    if isinstance(sides[0], float) and sides[0] == -math.inf:  # -inf is added to what is kept
        return ~known, sides[1], sides[0]
    return known, sides[0], sides[1]


def _rounded(side: T, node: fx.Node) -> T | float:
    """A side of a choice; a number as the result has it, which may be infinite there."""
    value = node.meta.get("val")
    if not isinstance(side, float) or not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return side
    return float(torch.tensor(side, dtype=value.dtype))


def _number_or_node(side: Any, values: Mapping[fx.Node, torch.Tensor]) -> fx.Node | float | None:
    """A side of a choice: one number, or a node; None for infinities that are not all of a side, and for what is not known."""
    if isinstance(side, (int, float)):
        return float(side)
    if not isinstance(side, fx.Node):
        return None
    value = values.get(side)
    if value is None:
        return side
    if value.numel() and bool((value == value.reshape(-1)[0]).all()):
        return float(value.reshape(-1)[0])
    return side if bool(widened(value).isfinite().all()) else None


def _part(node: fx.Node, side: fx.Node | float, kept: torch.Tensor, added: _Placeholders) -> fx.Node | None:
    """A side of a choice where it is chosen, and 0 elsewhere; None for 0 everywhere."""
    if isinstance(side, float):
        # a product would be no number where 0 meets infinity
        chosen = torch.where(kept != 0, torch.tensor(side, dtype=kept.dtype, device=kept.device), torch.zeros_like(kept))
        return added.of(chosen.expand(node.meta["val"].shape).contiguous()) if side else None
    return _call(node, torch.ops.aten.mul.Tensor, side, added.of(kept))


def _call(like: fx.Node, target: Any, *operands: fx.Node) -> fx.Node:
    """A call before another one, in its place, that gives a tensor like its."""
    node = like.graph.call_function(target, operands)
    node.meta.update(like.meta)
    return node


def _masked_by_constants(node: fx.Node, values: Mapping[fx.Node, torch.Tensor], added: _Placeholders) -> None:
    """Give attention its mask as numbers, where it is known and hides no row."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given: dict[str, Any] = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    given |= dict(zip((argument.name for argument in schema), node.args, strict=False)) | dict(node.kwargs)
    query, key = given["query"].meta["val"], given["key"].meta["val"]
    shape = (query.shape[-2], key.shape[-2])
    mask = given.get("attn_mask")
    known = values.get(mask) if isinstance(mask, fx.Node) else None
    if known is not None and known.dtype is torch.bool:
        known = torch.zeros(known.shape, dtype=query.dtype, device=known.device).masked_fill(~known, -math.inf)
    if mask is None and given["is_causal"] and shape[1] > 1:  # query 0 sees key 0, and only it, however many of both there are
        known = causal_mask(shape, query.dtype, query.device)
    if known is None:
        return
    given |= {"attn_mask": added.of(known.to(query.dtype)), "is_causal": False}
    node.args = tuple(given[argument.name] for argument in schema if not argument.kwarg_only)
    node.kwargs = {argument.name: given[argument.name] for argument in schema if argument.kwarg_only}
    if not hides_a_row(known):
        node.meta[ROW] = f"{name_of(node)} with a known mask"


KNOWN_MASKS: Mapping[str, Rule] = {f"{name} with a known mask": row for name, row in WATCHED_ROWS.items()}
"""Rows of attention for masks that were looked at."""
