"""What calls of ATen do to the counts of sums over axes of varying size (`index_counts`): a rule for each that is made of sums,
products and quotients. Others must be of local elements, and do the same to every slice along these axes."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from mugraph.frontend.operators.torch_casts import name_of, tensor_of, tensors_of
from mugraph.frontend.symbolic_sizes.axes import NotCounted, SizeMatters, is_multiple, shape_text
from mugraph.frontend.symbolic_sizes.equations import Equation
from mugraph.frontend.symbolic_sizes.index_counts import Quotient, Size, Sums
from mugraph.frontend.symbolic_sizes.shape_groups import Shape, broadcast, regrouped, together
from mugraph.frontend.symbolic_sizes.size_numbers import SizeNumber
from mugraph.frontend.symbolic_sizes.slice_rules import Call
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_call

_ONE = Quotient()
_MAY_BE_SIZES = frozenset({"size", "shape", "sizes", "self", "other", "alpha", "beta", "value", "fill_value", "scale"})
"""Arguments that may be numbers made of sizes: shapes, whose results are looked at, and factors and terms."""
_LARGEST_POWER = 64
"""Of a power that is taken for products."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A tensor that a graph returns: its sizes, its type, and bounds on its elements."""

    shape: Shape
    dtype: torch.dtype
    bounds: Quotient


@dataclass(frozen=True, slots=True)
class Counted:
    """What recorded calls return, and whether they are all made of sums, products, quotients and exponentials of such."""

    outputs: tuple[Returned, ...]
    analytic: bool
    vanishing: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By dimension, sizes at and beside which a number made of it is 0, or changes its sign."""


def counted(graph: fx.Graph, names: Mapping[Any, str]) -> Counted:
    """Bounds on what recorded calls return, at all sizes from 2 on of the dimensions that symbols have the `names` of.

    Nodes have their tensors without data in `meta["val"]`. Raises NotCounted, naming the call, where nothing is known of one.
    """
    walk = _Walk(names)
    for node in graph.nodes:
        try:
            walk.add(node)
        except SizeMatters as error:
            raise NotCounted(f"{name_of(node) or node.name}: {error}", node) from None
    return Counted(tuple(walk.outputs), walk.analytic, walk.vanishing)


@dataclass(slots=True)
class _Walk:
    """The bounds of a graph's tensors, node by node."""

    names: Mapping[Any, str]
    bounds: dict[fx.Node, Quotient] = field(default_factory=dict)
    outputs: list[Returned] = field(default_factory=list)
    dtype: torch.dtype | None = None
    analytic: bool = True
    vanishing: dict[str, frozenset[int]] = field(default_factory=dict)

    def add(self, node: fx.Node) -> None:
        """Add the bounds of a node."""
        if node.op == "output":
            self.outputs = [self._returned(each) for each in node.args[0]]  # type: ignore[union-attr]
            return
        tensors = tensors_of(node)
        for tensor in tensors:
            self._check(tensor)
        if node.op in ("placeholder", "get_attr"):
            if tensors:
                self.bounds[node] = self._variable(node)
        elif node.target is operator.getitem and node.args[0] in self.bounds:
            self.bounds[node] = self.bounds[node.args[0]]  # type: ignore[index]
        elif tensors:
            self.bounds[node] = self._called(node)
        elif node.users and not isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | int | float):
            raise SizeMatters("it gives no tensor")

    def _returned(self, source: Any) -> Returned:
        if not isinstance(source, fx.Node) or source not in self.bounds:
            raise SizeMatters("something else than tensors is returned")
        tensor = tensors_of(source)[0]
        return Returned(self.shape(tensor), tensor.dtype, self.bounds[source])

    def _check(self, tensor: torch.Tensor) -> None:
        """Raise SizeMatters for sizes that are none, and for floating-point numbers of several types, which are rounded."""
        self.shape(tensor)
        if tensor.is_floating_point():
            if self.dtype not in (None, tensor.dtype):
                raise SizeMatters(f"numbers are of {self.dtype} and of {tensor.dtype}, and of one type they should all be")
            self.dtype = tensor.dtype

    def _variable(self, node: fx.Node) -> Quotient:
        shape = self.shape(tensors_of(node)[0])
        if node.op == "get_attr" and any(isinstance(size, str) for size in shape):
            raise SizeMatters("a tensor that the function brings along has a size that varies")
        return Quotient.local(range(len(shape)))

    def _called(self, node: fx.Node) -> Quotient:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
            raise SizeMatters("it is no function of ATen")
        call, rule = Call.of(node), _RULES.get(target.overloadpacket.__name__)
        if rule is None or any(not tensor.is_floating_point() for tensor in (*call.operands, *tensors_of(node))):
            return self._local(call)
        for name, argument in call.arguments.items():
            numbers = (leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in tree_leaves(argument))
            if name not in _MAY_BE_SIZES and any(isinstance(each, torch.SymInt | torch.SymFloat) for each in numbers):
                raise SizeMatters(f"its argument {name} depends on the size")
        return rule(self, call)

    def _local(self, call: Call) -> Quotient:
        """The bounds of any function that does the same to all slices; raises SizeMatters where it is one of sums."""
        operands = [source for source in call.node.all_input_nodes if tensors_of(source)]
        if not all(self.bounds[source].is_local for source in operands):
            raise SizeMatters("it is no sum, product or quotient of sums over an axis of varying size")
        call.check_numbers(lambda size: True)
        for leaf in tree_leaves(dict(call.arguments)):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise SizeMatters("a number is not finite")
        tags = call.node.target.tags  # type: ignore[union-attr]
        if torch.Tag.pointwise not in tags or torch.Tag.nondeterministic_seeded in tags:
            check_call(call.node, is_multiple)
        self.analytic = False
        return Quotient.local(range(max((tensor.dim() for tensor in tensors_of(call.node)), default=0)))

    # what rules ask -------------------------------------------------------------------------------------------------------

    def shape(self, tensor: torch.Tensor) -> Shape:
        """The sizes of a tensor; raises SizeMatters for those that are neither a number nor a dimension."""
        sizes = [self.names.get(size.node.expr) if isinstance(size, torch.SymInt) else int(size) for size in tensor.shape]
        if None in sizes:
            raise SizeMatters(f"a size of {shape_text(tensor)} is neither a number nor that of a dimension")
        return tuple(size for size in sizes if size is not None)

    def shape_of(self, call: Call, name: str) -> Shape:
        """The sizes of an operand that is one tensor."""
        return self.shape(tensors_of(call[name])[0])

    def tensor(self, call: Call, name: str) -> Quotient:
        """The bounds of an operand that is one tensor."""
        return self.bounds[call[name]]

    def operand(self, call: Call, name: str) -> Quotient:
        """The bounds of an operand of an elementwise call, along the dimensions of its result."""
        source = call[name]
        if isinstance(source, fx.Node) and tensor_of(source) is not None:
            return self.bounds[source].moved(broadcast(self.shape_of(call, name), self.shape(call.result)))
        return self.number(source)

    def number(self, given: Any) -> Quotient:
        """The bounds of a number; raises SizeMatters for one that is no polynomial in the sizes."""
        value = given.meta.get("val") if isinstance(given, fx.Node) else given
        if isinstance(value, torch.SymInt):
            number = SizeNumber.of(value, self.names)
            self.vanishing |= {name: self.vanishing.get(name, frozenset()) | sizes for name, sizes in number.vanishing.items()}
            return Quotient(Sums(number.degrees, positive=number.positive))
        if isinstance(value, torch.SymFloat):
            raise SizeMatters(f"{value} is a number that Python computes of sizes and rounds; divide tensors by sizes")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SizeMatters(f"{value} is no finite number")
        return Quotient(Sums(positive=value > 0))

    def contracted(self, operands: Sequence[_Factor], result: Sequence[str]) -> Quotient:
        """The product of operands, each with a letter for every dimension, summed over all letters that a result has not."""
        sizes: dict[str, Size] = {}
        for factor in operands:
            for letter, size in zip(factor.letters, factor.shape, strict=True):
                sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
        order, product = [*sizes], _ONE
        for factor in operands:
            dims = enumerate(zip(factor.letters, factor.shape, strict=True))
            product *= factor.bounds.moved({dim: order.index(each) for dim, (each, size) in dims if size == sizes[each]})
        product = product.summed({place: sizes[letter] for place, letter in enumerate(order) if letter not in result})
        return product.moved({order.index(letter): place for place, letter in enumerate(result)})


Rule = Callable[[_Walk, Call], Quotient]
"""The bounds of what a call gives; raises SizeMatters where it depends on more than its operands' elements in any order."""


@dataclass(frozen=True, slots=True)
class _Factor:
    """A tensor in a product of several, with a letter for each dimension."""

    bounds: Quotient
    shape: Shape
    letters: Sequence[str]


# elementwise calls --------------------------------------------------------------------------------------------------------


def _added(walk: _Walk, call: Call, scaled: str = "other") -> Quotient:
    whole = "self" if scaled == "other" else "other"
    return walk.operand(call, whole) + walk.operand(call, scaled) * walk.number(call.arguments.get("alpha", 1))


def _subtracted(walk: _Walk, call: Call, scaled: str) -> Quotient:
    """A difference, of which the operand that is taken away is `scaled`."""
    return _added(walk, call, scaled).signed()


def _multiplied(walk: _Walk, call: Call) -> Quotient:
    return walk.operand(call, "self") * walk.operand(call, "other")


def _divided(walk: _Walk, call: Call) -> Quotient:
    if call.arguments.get("rounding_mode") is not None:
        raise SizeMatters("it rounds")
    return walk.operand(call, "self") / walk.operand(call, "other")


def _with_product(walk: _Walk, call: Call, divides: bool) -> Quotient:
    first, second = walk.operand(call, "tensor1"), walk.operand(call, "tensor2")
    return walk.operand(call, "self") + walk.number(call["value"]) * (first / second if divides else first * second)


def _same(walk: _Walk, call: Call) -> Quotient:
    return walk.tensor(call, "self")


def _negated(walk: _Walk, call: Call) -> Quotient:
    return walk.tensor(call, "self").signed()


def _inverted(walk: _Walk, call: Call) -> Quotient:
    return _ONE / walk.tensor(call, "self")


def _squared(walk: _Walk, call: Call) -> Quotient:
    return walk.tensor(call, "self") * walk.tensor(call, "self")


def _raised(walk: _Walk, call: Call) -> Quotient:
    exponent, base = call["exponent"], walk.tensor(call, "self")
    if isinstance(exponent, bool) or exponent not in range(-_LARGEST_POWER, _LARGEST_POWER + 1):
        raise SizeMatters(f"its exponent is no whole number from {-_LARGEST_POWER} to {_LARGEST_POWER}")
    product = math.prod([base] * abs(int(exponent)), start=_ONE)
    return product if exponent >= 0 else _ONE / product


def _exponential(walk: _Walk, call: Call) -> Quotient:
    return _power(walk, walk.tensor(call, "self"))


def _power(walk: _Walk, x: Quotient) -> Quotient:
    """The exponential of local elements; raises SizeMatters for others."""
    if not x.is_local:
        raise SizeMatters("it is an exponential of sums over an axis of varying size")
    return Quotient.local(x.top.varies, positive=True)


def _sigmoid(walk: _Walk, call: Call) -> Quotient:
    return _ONE / (_ONE + _exponential(walk, call))


def _silu(walk: _Walk, call: Call) -> Quotient:
    return walk.tensor(call, "self") * _sigmoid(walk, call)


def _tanh(walk: _Walk, call: Call) -> Quotient:
    return _sigmoid(walk, call).signed()


def _filled(walk: _Walk, call: Call) -> Quotient:
    """One number everywhere, which the call names or has in its name."""
    return walk.number(call["fill_value"]) if call.arguments.get("fill_value") is not None else _ONE.signed()


# calls that move elements -------------------------------------------------------------------------------------------------


def _in_order(walk: _Walk, call: Call) -> Quotient:
    """The elements in their order, in another shape."""
    return walk.tensor(call, "self").regrouped(regrouped(walk.shape_of(call, "self"), walk.shape(call.result)))


def _permuted(walk: _Walk, call: Call) -> Quotient:
    rank = call.rank("self")
    order = [dim % rank for dim in call["dims"]]
    return walk.tensor(call, "self").moved({dim: place for place, dim in enumerate(order)})


def _transposed(walk: _Walk, call: Call) -> Quotient:
    rank = call.rank("self")
    places = {dim: dim for dim in range(rank)}
    first, second = (dim % max(rank, 1) for dim in (call.arguments.get("dim0", 0), call.arguments.get("dim1", 1)))
    if rank > 1:
        places |= {first: second, second: first}
    return walk.tensor(call, "self").moved(places)


def _reversed(walk: _Walk, call: Call) -> Quotient:
    rank = call.rank("self")
    return walk.tensor(call, "self").moved({dim: rank - 1 - dim for dim in range(rank)})


def _selected(walk: _Walk, call: Call) -> Quotient:
    """One position of a dimension, or each of them apart."""
    shape, dim = walk.shape_of(call, "self"), call["dim"] % call.rank("self")
    _check_fixed(shape, dim)
    return walk.tensor(call, "self").moved({place: place - (place > dim) for place in range(len(shape)) if place != dim})


def _parted(walk: _Walk, call: Call) -> Quotient:
    """Some positions of a dimension, or all of them in parts."""
    _check_fixed(walk.shape_of(call, "self"), call["dim"] % call.rank("self"))
    return walk.tensor(call, "self")


def _sliced(walk: _Walk, call: Call) -> Quotient:
    is_whole = call["start"] in (None, 0) and call["end"] in (None, sys.maxsize) and call["step"] == 1
    return walk.tensor(call, "self") if is_whole else _parted(walk, call)


def _joined(walk: _Walk, call: Call, stacked: bool) -> Quotient:
    shape, dim = walk.shape(call.result), call["dim"] % call.result.dim()
    _check_fixed(shape, dim)
    parts = [walk.bounds[source] for source in call["tensors"]]
    if stacked:
        parts = [part.moved({place: place + (place >= dim) for place in range(len(shape) - 1)}) for part in parts]
    return functools.reduce(operator.or_, parts).along(dim)


def _check_fixed(shape: Shape, dim: int) -> None:
    """Raise SizeMatters for positions along a dimension of varying size."""
    if isinstance(shape[dim], str):
        raise SizeMatters(f"it tells positions along {shape[dim]} apart")


# sums and products --------------------------------------------------------------------------------------------------------


def _dims(call: Call) -> list[int]:
    """The dimensions that a reduction names, or all."""
    rank, given = call.rank("self"), call.arguments.get("dim")
    named = [given] if isinstance(given, int) else given
    return [dim % rank for dim in named] if named and rank else [*range(rank)]


def _summed(walk: _Walk, call: Call) -> Quotient:
    shape, dims = walk.shape_of(call, "self"), _dims(call)
    made = walk.tensor(call, "self").summed({dim: shape[dim] for dim in dims})
    if call.arguments.get("keepdim", False):
        return made
    left = [dim for dim in range(len(shape)) if dim not in dims]
    return made.moved({dim: place for place, dim in enumerate(left)})


def _averaged(walk: _Walk, call: Call) -> Quotient:
    shape = walk.shape_of(call, "self")
    return _summed(walk, call) / _count([shape[dim] for dim in _dims(call)])


def _count(sizes: Sequence[Size]) -> Quotient:
    """How many elements there are with indices of these sizes."""
    made = _ONE
    for size in sizes:
        if isinstance(size, str):
            made *= Quotient(Sums({size: 1}, positive=True))
    return made


def _normalized(walk: _Walk, call: Call) -> Quotient:
    shape = walk.shape_of(call, "self")
    return _softmax(walk, walk.tensor(call, "self"), shape, call["dim"] % max(len(shape), 1))


def _softmax(walk: _Walk, x: Quotient, shape: Shape, dim: int) -> Quotient:
    powers = _power(walk, x)
    return powers / powers.summed({dim: shape[dim]})


def _product(walk: _Walk, call: Call, left: str, right: str) -> Quotient:
    """A matrix product of batches of matrices, a vector being a row on the left and a column on the right."""
    ours, theirs = walk.shape_of(call, left), walk.shape_of(call, right)
    rows, columns = ["row"] * (len(ours) > 1), ["column"] * (len(theirs) > 1)
    batches = [f"batch {place}" for place in range(max(len(ours), len(theirs)) - 2, 0, -1)]

    def batch(shape: Shape) -> list[str]:
        return batches[len(batches) - max(len(shape) - 2, 0) :]

    factors = (
        _Factor(walk.tensor(call, left), ours, [*batch(ours), *rows, "sum"]),
        _Factor(walk.tensor(call, right), theirs, [*batch(theirs), "sum", *columns]),
    )
    return walk.contracted(factors, [*batches, *rows, *columns])


def _added_product(walk: _Walk, call: Call, left: str, right: str) -> Quotient:
    product = _product(walk, call, left, right)
    return walk.operand(call, "self") * walk.number(call["beta"]) + product * walk.number(call["alpha"])


def _linear(walk: _Walk, call: Call) -> Quotient:
    shape, weights = walk.shape_of(call, "input"), walk.shape_of(call, "weight")
    before = [f"dim {dim}" for dim in range(len(shape) - 1)]
    behind = ["column"] * (len(weights) > 1)
    factors = (
        _Factor(walk.tensor(call, "input"), shape, [*before, "sum"]),
        _Factor(walk.tensor(call, "weight"), weights, [*behind, "sum"]),
    )
    product = walk.contracted(factors, [*before, *behind])
    return product if call.arguments.get("bias") is None else product + walk.operand(call, "bias")


def _contracted(walk: _Walk, call: Call) -> Quotient:
    sources = call["tensors"]
    equation = Equation.of(call["equation"], [None] * len(sources))
    if equation is None:
        raise SizeMatters("its equation does not name the dimensions of its result")
    shapes = [walk.shape(tensors_of(source)[0]) for source in sources]
    parts = zip(sources, shapes, equation.operands, strict=True)
    return walk.contracted([_Factor(walk.bounds[source], shape, letters) for source, shape, letters in parts], equation.result)


def _attended(walk: _Walk, call: Call) -> Quotient:
    """Scaled dot-product attention without a mask."""
    if call.arguments.get("attn_mask") is not None or call.arguments.get("is_causal") or call.arguments.get("enable_gqa"):
        raise SizeMatters("it has a mask, or heads in groups")
    if call.arguments.get("dropout_p", 0) != 0:
        raise SizeMatters("it draws random numbers")
    names = "query", "key", "value"
    query, key, value = (walk.tensor(call, name) for name in names)
    ours, theirs, its = (walk.shape_of(call, name) for name in names)
    if isinstance(ours[-1], str) or not len(ours) == len(theirs) == len(its):
        raise SizeMatters("its operands have different ranks, or a width that varies")
    scale = walk.number(1 if call.arguments.get("scale") is None else call["scale"])
    batches = [f"batch {dim}" for dim in range(len(ours) - 2)]
    factors = _Factor(query, ours, [*batches, "row", "width"]), _Factor(key, theirs, [*batches, "key", "width"])
    shape = (*together(ours[:-2], theirs[:-2]), ours[-2], theirs[-2])
    weights = _softmax(walk, walk.contracted(factors, [*batches, "row", "key"]) * scale, shape, len(shape) - 1)
    mixed = _Factor(weights, shape, [*batches, "row", "key"]), _Factor(value, its, [*batches, "key", "column"])
    return walk.contracted(mixed, [*batches, "row", "column"])


_BY_RULE: Sequence[tuple[Rule, str]] = (
    (_added, "add"),
    (partial(_subtracted, scaled="other"), "sub"),
    (partial(_subtracted, scaled="self"), "rsub"),
    (_multiplied, "mul"),
    (_divided, "div true_divide"),
    (partial(_with_product, divides=False), "addcmul"),
    (partial(_with_product, divides=True), "addcdiv"),
    (_negated, "neg"),
    (_same, "positive clone contiguous alias detach to _to_copy lift_fresh lift_fresh_copy"),
    (_inverted, "reciprocal"),
    (_squared, "square"),
    (_raised, "pow"),
    (_exponential, "exp"),
    (_sigmoid, "sigmoid"),
    (_silu, "silu"),
    (_tanh, "tanh"),
    (_filled, "full zeros ones new_full new_zeros new_ones full_like zeros_like ones_like"),
    (_in_order, "view reshape _unsafe_view unsqueeze squeeze flatten unflatten view_as reshape_as"),
    (partial(_Walk.operand, name="self"), "expand expand_as"),
    (_permuted, "permute"),
    (_transposed, "t transpose"),
    (_reversed, "numpy_T"),
    (_selected, "select unbind"),
    (_parted, "narrow split split_with_sizes unsafe_split chunk unsafe_chunk"),
    (_sliced, "slice"),
    (partial(_joined, stacked=False), "cat"),
    (partial(_joined, stacked=True), "stack"),
    (_summed, "sum"),
    (_averaged, "mean"),
    (_normalized, "softmax _softmax"),
    (partial(_product, left="self", right="other"), "matmul"),
    (partial(_product, left="self", right="mat2"), "mm bmm"),
    (partial(_product, left="self", right="vec"), "mv"),
    (partial(_product, left="self", right="tensor"), "dot"),
    (partial(_added_product, left="mat1", right="mat2"), "addmm"),
    (partial(_added_product, left="batch1", right="batch2"), "baddbmm"),
    (_linear, "linear"),
    (_contracted, "einsum"),
    (_attended, "scaled_dot_product_attention"),
)
_RULES = {name: rule for rule, names in _BY_RULE for name in names.split()}
"""By the name of an operator of ATen, for all of its overloads."""
