"""Convolutions and linear layers of a torch graph, each with the calls that a library can make a part of it: steps that are
affine in its result with one slope and one offset per channel, a tensor that is added, and an activation. Layers of experts too,
of which each multiplies some rows.

A convolution is linear in its weights, so that a*conv(x, w) + c is conv(x, a*w) + c: batch norm of fixed statistics, scales and
biases cost nothing once they are multiplied into the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from mugraph.frontend.operators.torch_casts import arguments_of_call, name_of, tensor_of
from mugraph.frontend.rewriting.graph_passes import viewed
from mugraph.frontend.rewriting.node_traits import CallWork, bytes_of, work_of_call

_CONSTANT = "mugraph constant"
_AFFINE = frozenset({"add", "sub", "rsub", "mul", "div"})


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of single elements that oneDNN applies to what it writes: its name there, numbers, and algorithm."""

    name: str = "none"
    numbers: tuple[float, ...] = ()
    algorithm: str = ""


_ACTIVATIONS: dict[str, Callable[..., Activation]] = {
    "gelu": lambda approximate="none": Activation("gelu", (), approximate),
    "hardswish": lambda: Activation("hardswish"),
    "leaky_relu": lambda negative_slope=0.01: Activation("leaky_relu", (negative_slope,)),
    "sigmoid": lambda: Activation("sigmoid"),
    "silu": lambda: Activation("swish"),
    "tanh": lambda: Activation("tanh"),
}
"""By operator of PyTorch. What compares (relu, hardtanh, hardsigmoid) is not here: of NaN oneDNN makes 0 then, PyTorch NaN."""
_MATRIX_PRODUCTS = frozenset({torch.ops.aten.addmm.default, torch.ops.aten.matmul.default, torch.ops.aten.mm.default})
"""Overloads of ATen that multiply by weights [inputs, outputs]."""
_OF_EXPERTS = frozenset({"aten._grouped_mm.default", "transformers.grouped_mm_fallback.default"})
"""Operators that multiply rows by matrices [experts, inputs, outputs], some by each: PyTorch's, and that of `transformers`."""
_IN_PLACE = frozenset({*_ACTIVATIONS, "elu", "hardsigmoid", "hardtanh", "mish", "relu"})
"""Operators of PyTorch that can write their result in the place of what they read."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the windows of a convolution lie."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @property
    def rank(self) -> int:
        """Along how many dimensions windows slide."""
        return len(self.stride)


@dataclass(frozen=True, slots=True, eq=False)
class LibraryKernel:
    """A convolution or linear layer; of calls after it those that are affine, the one that adds a tensor, and the activation."""

    product: fx.Node
    affine: tuple[fx.Node, ...] = ()
    sum: fx.Node | None = None
    activation: fx.Node | None = None
    level: int = 0

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Its calls, in order."""
        return (self.product, *self.affine, *(node for node in (self.sum, self.activation) if node is not None))

    def of_copies(self, copies: Mapping[fx.Node, fx.Node]) -> LibraryKernel:
        """The same kernel in another graph, which has copies of its calls."""
        added, activation = (node and copies[node] for node in (self.sum, self.activation))
        affine = tuple(copies[node] for node in self.affine)
        return replace(self, product=copies[self.product], affine=affine, sum=added, activation=activation)

    @property
    def result(self) -> fx.Node:
        """The call whose result others read."""
        return self.nodes[-1]

    @property
    def geometry(self) -> Geometry | None:
        """How the windows of a convolution lie; None for a linear layer."""
        if self.product.target is not torch.ops.aten.convolution.default:
            return None
        _, _, _, stride, padding, dilation, transposed, output_padding, groups = arguments_of_call(self.product)
        rank = len(_tensor(self.weight).shape) - 2
        sizes = (tuple(each) * (rank if len(each) == 1 else 1) for each in (stride, padding, dilation, output_padding))
        steps, border, gaps, extra = sizes
        return Geometry(steps, border, gaps, bool(transposed), extra, int(groups))

    @property
    def source(self) -> fx.Node:
        """What the weights multiply: an image [batch, channels, ...] of a convolution, or the rows [..., features] of a layer."""
        return _product_of(self.product)[0]

    @property
    def weight(self) -> fx.Node:
        """The weights [outputs, inputs of a group, ...], or [inputs, outputs of a group, ...] if `inputs_first`."""
        return _product_of(self.product)[1]

    @property
    def ends(self) -> fx.Node | None:
        """For a layer of experts, the row at which those of each end."""
        return self.product.args[2] if _is_of_experts(self.product) else None  # type: ignore[return-value]

    @property
    def bias(self) -> fx.Node | None:
        """The offset of each output of the product itself."""
        return _product_of(self.product)[2]

    @property
    def inputs_first(self) -> bool:
        """Whether the weights have a row for each input, not for each output."""
        geometry = self.geometry
        return self.product.target is not torch.ops.aten.linear.default if geometry is None else geometry.transposed

    @property
    def parameters(self) -> tuple[fx.Node, ...]:
        """What the library's weights and offsets are made of, the weights of the product first; each once."""
        own = {self.source, self.ends, *self.nodes}
        sources = (source for node in (self.product, *self.affine) for source in node.all_input_nodes if source not in own)
        return tuple(dict.fromkeys((self.weight, *sources)))

    @property
    def added(self) -> fx.Node | None:
        """The tensor that is added to the product."""
        if self.sum is None:
            return None
        last = (self.product, *self.affine)[-1]
        return next(source for source in self.sum.all_input_nodes if source is not last)

    @property
    def operands(self) -> tuple[fx.Node, ...]:
        """What it is called with: its source, its parameters, and the tensor that is added, or the ends."""
        return (self.source, *self.parameters, *(node for node in (self.added, self.ends) if node is not None))

    @property
    def fused(self) -> Activation | None:
        """The activation as the library applies it; None where there is one that it does not, so that PyTorch must, in place."""
        if self.activation is None:
            return Activation()
        known = None if self.sum is not None else _ACTIVATIONS.get(name_of(self.activation))
        return None if known is None else known(*self.activation.args[1:], **self.activation.kwargs)

    def activate(self, tensor: torch.Tensor) -> torch.Tensor:
        """Apply the activation in place, as PyTorch does."""
        assert self.activation is not None
        change = getattr(torch.ops.aten, f"{name_of(self.activation)}_").default
        return change(tensor, *self.activation.args[1:], **self.activation.kwargs)  # type: ignore[no-any-return]

    @property
    def work(self) -> CallWork:
        """Bytes that it reads and writes at least, and the floating-point operations of its calls."""
        moved = sum(map(bytes_of, {*self.operands, self.result}))
        return CallWork(moved, sum(work_of_call(node).flops for node in self.nodes))

    @property
    def affine_operands(self) -> tuple[fx.Node, ...]:
        """What the affine calls read, the product first."""
        own = set(self.affine)
        sources = (source for node in self.affine for source in node.all_input_nodes if source not in own)
        return tuple(dict.fromkeys((self.product, *sources)))

    def affine_steps(self) -> fx.GraphModule:
        """The affine calls as PyTorch makes them, from `affine_operands`."""
        return _module(self.affine, self.affine_operands)

    def as_torch(self) -> fx.GraphModule:
        """All its calls as PyTorch makes them, from `operands`."""
        return _module(self.nodes, self.operands)


def _product_of(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None]:
    """What a call multiplies, the weights that multiply it, and the offsets that are added."""
    if node.target is torch.ops.aten.addmm.default:
        bias, source, weight = node.args[:3]
        return source, weight, bias  # type: ignore[return-value]
    source, weight, *rest = node.args
    return source, weight, rest[0] if rest and not _is_of_experts(node) else None  # type: ignore[return-value]


def _is_of_experts(node: fx.Node) -> bool:
    return str(node.target) in _OF_EXPERTS


def _module(nodes: Sequence[fx.Node], operands: Sequence[fx.Node]) -> fx.GraphModule:
    """Calls from what they read to the result of the last."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"x{number}") for number, node in enumerate(operands)}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[nodes[-1]])
    return fx.GraphModule({}, graph)


def convolutions(graph: fx.Graph, device: str) -> tuple[LibraryKernel, ...]:
    """The convolutions of a graph of ATen calls, as much as possible in each, none of whose calls is in two.

    Only on the CPU, where weights can be packed; nodes carry tensors without data in `meta["val"]`.
    """
    if not _packs(device):
        return ()
    found: list[LibraryKernel] = []
    taken: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and _is_convolution(node):
            found.append(_kernel(node, taken))
            taken.update(found[-1].nodes)
    return tuple(found)


def linear_layers(calls: Iterable[fx.Node], device: str) -> tuple[LibraryKernel, ...]:
    """The linear layers among calls that PyTorch would make, with the activations that are among them too."""
    if not _packs(device):
        return ()
    among = set(calls)
    layers = [node for node in among if _is_layer(node)]
    activations = {node: None if _is_of_experts(node) else _activation(node, among) for node in layers}
    return tuple(LibraryKernel(node, activation=activations[node]) for node in sorted(layers))


def _packs(device: str) -> bool:
    return device == "cpu" and torch._C._has_mkldnn


def _is_layer(node: fx.Node) -> bool:
    """Whether a call multiplies rows by a matrix, or those of experts, that is there before, and adds at most one row to each."""
    grouped = _is_of_experts(node)
    if node.target is not torch.ops.aten.linear.default and node.target not in _MATRIX_PRODUCTS and not grouped:
        return False
    operands = 3 if grouped else 2
    if node.kwargs or not all(isinstance(operand, fx.Node) for operand in node.args[:operands]) or node.args[3:]:
        return False
    source, weight, bias = _product_of(node)
    fixed = (weight,) if bias is None else (weight, bias)
    return (
        all(map(_is_some, (*_tensor(source).shape, *_tensor(weight).shape)))
        and _tensor(weight).dim() == operands
        and (_tensor(source).dim() == 2 if grouped else _tensor(source).dim() > 1)
        and all(map(is_constant, fixed))
        and (bias is None or _tensor(bias).dim() == 1)
        and _is_packed(_tensor(node).dtype)
        and all(_tensor(operand).dtype is _tensor(node).dtype for operand in (source, *fixed))
    )


def _is_some(size: int | torch.SymInt) -> bool:
    """Whether a size is positive, in the call that a graph was recorded with at least."""
    return (size if isinstance(size, int) else size.node.hint or 0) > 0


def _activation(last: fx.Node, among: Container[fx.Node]) -> fx.Node | None:
    """The call that applies an activation to a result which nobody else reads."""
    user = _only_user(last)
    if user is None or user not in among or name_of(user) not in _IN_PLACE or user.args[0] is not last:
        return None
    return user


def _is_convolution(node: fx.Node) -> bool:
    if node.target is not torch.ops.aten.convolution.default:
        return False
    image, weight = (_tensor(source) for source in node.args[:2])
    result = tensor_of(node)
    weights = [operand for operand in arguments_of_call(node)[1:3] if operand is not None]
    sizes = (*image.shape, *weight.shape)
    return (
        result is not None
        and all(map(is_constant, weights))
        and all(isinstance(size, int) and size > 0 for size in sizes)
        and 3 <= weight.dim() <= 5
        and image.dim() == weight.dim()
        and _is_packed(image.dtype)
        and image.dtype is weight.dtype is result.dtype
    )


def _is_packed(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of a type on this machine."""
    return dtype is torch.float32 or (dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _kernel(convolution: fx.Node, taken: Container[fx.Node]) -> LibraryKernel:
    """As much as a convolution can hold of what is not `taken`."""
    affine = tuple(node for step in _affine_steps(convolution) for node in step)
    last = affine[-1] if affine else convolution
    total = _only_user(last)
    if total is None or total in taken or not _adds(total, last):
        total = None
    last = total or last
    activation = _activation(last, last.users)
    if activation is None:
        return LibraryKernel(convolution, affine, total)
    kernel = LibraryKernel(convolution, affine, total, activation)
    elementwise = all(name_of(user) in _AFFINE | _IN_PLACE for user in activation.users)
    if kernel.fused is None and elementwise:  # which one kernel of ours computes with them
        return LibraryKernel(convolution, affine, total)
    return kernel


def _adds(node: fx.Node, operand: fx.Node) -> bool:
    """Whether a call adds another tensor of the same shape to an image along two dimensions or three."""
    # by name: an operator of ATen
    if name_of(node) != "add" or arguments_of_call(node)[2] != 1 or _tensor(operand).dim() == 3:
        return False
    others = [source for source in node.all_input_nodes if source is not operand]
    transposed = operand.target is torch.ops.aten.convolution.default and arguments_of_call(operand)[6]
    return len(others) == 1 and not transposed and _alike(node, operand) and _alike(others[0], operand)


def _affine_steps(convolution: fx.Node) -> Iterator[tuple[fx.Node, ...]]:
    """The calls after a convolution that are affine in it, each with those that take its result apart."""
    last = convolution
    while (user := _only_user(last)) is not None:
        if name_of(user) == "_native_batch_norm_legit_no_training" and user.args[0] is last:
            parts = [use for use in user.users if use.users or use.args[1] == 0]
            if [part.args[1] for part in parts] != [0] or not all(map(is_constant, user.all_input_nodes[1:])):
                return
            step: tuple[fx.Node, ...] = (user, *parts)
        elif name_of(user) in _AFFINE and _alike(user, convolution) and _is_affine(user, last):
            step = (user,)
        else:
            return
        yield step
        last = step[-1]


def _is_affine(node: fx.Node, operand: fx.Node) -> bool:
    """Whether a call of an elementwise operator is affine in one operand, with the same numbers everywhere in a channel."""
    first, second = node.args[:2]
    if node.kwargs.get("rounding_mode") is not None or (first is operand) is (second is operand):
        return False
    # by name: an operator of ATen
    if name_of(node) == "div" and second is operand:
        return False
    other = second if first is operand else first
    if not isinstance(other, fx.Node):
        return isinstance(other, (int, float))
    tensor, result = tensor_of(other), _tensor(node)
    if tensor is None or tensor.dtype not in (result.dtype, torch.float32) or not is_constant(other):
        return False
    return all(size == 1 or place == 1 for place, size in enumerate(tensor.shape, result.dim() - tensor.dim()))


def mark_constant(node: fx.Node) -> None:
    """Say of an input that it is the same tensor in every call, as parameters are, though its values may change."""
    node.meta[_CONSTANT] = True


def is_constant(node: fx.Node) -> bool:
    """Whether a tensor is the same in every call: an input of which this was said, or a view of one."""
    while (source := viewed(node)) is not None:
        node = source
    return node.op == "get_attr" or _CONSTANT in node.meta


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op == "call_function" else None


def _alike(node: fx.Node, other: fx.Node) -> bool:
    """Whether two calls give tensors of one shape and type."""
    one, two = tensor_of(node), tensor_of(other)
    return one is not None and two is not None and one.shape == two.shape and one.dtype is two.dtype


def _tensor(node: Any) -> torch.Tensor:
    tensor = tensor_of(node)
    assert tensor is not None, "operands of a convolution are tensors"
    return tensor
