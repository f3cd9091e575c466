"""From Dynamo's graph of torch calls to a graph of ATen calls, for inference: each kind of call is captured once.

AOTAutograd, which torch has for this, is ready for mutation and gradients, and runs every call twice. Where there is neither, a
deep model makes few kinds of calls, because layers repeat: one call of each kind is run on tensors without data, the ATen calls
below it are a template, and every further call of the kind copies it. The kind is the function with all its arguments, tensors
being described by whatever may decide which ATen calls are made.

What is less plain is refused, for AOTAutograd to do: calls that change an operand or torch's state, results that share memory
with an argument, subgraphs, autocast, subclasses of tensors, sizes that depend on the contents of tensors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators.torch_casts import lazy_module, text_of_tensor
from mugraph.frontend.rewriting.fused_layers import DECOMPOSED_LAYERS, FUNCTIONS
from mugraph.frontend.rewriting.node_traits import is_static

_FACTORIES: frozenset[Callable[..., Any]] = frozenset(
    getattr(torch, name + suffix) for name in ("empty", "full", "ones", "rand", "randn", "zeros") for suffix in ("", "_like")
) | {torch.arange, torch.eye, torch.linspace, torch.tensor}
"""Functions that take no tensor, or need none."""
_CHECKED = frozenset[Any]({torch.nn.functional.one_hot, torch.ops.aten.one_hot, torch.ops.aten.one_hot.default})
"""Functions that do not check the numbers of tensors without data. AOTAutograd records PyTorch's own decomposition, which has
calls for that."""
_TELEMETRY = torch._C._log_api_usage_once
_DETACH = torch.ops.aten.detach.default
_DEVICE = torch.ops.prim.device.default
_LIFTED, _LIFTED_COPY = torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default


def captured(module: fx.GraphModule) -> fx.GraphModule:
    """The graph of `module`, which Dynamo made, in ATen calls: same arguments and results, tensors without data in `meta["val"]`.

    Dynamo's backends may call it, for a graph whose gradients nobody asks for. Raises UnsupportedOperator, naming the first call
    at fault, for what must be left to AOTAutograd.
    """
    if torch._C._is_any_autocast_enabled():
        raise UnsupportedOperator("under autocast, calls choose their own dtypes")
    capture = _Capture(_fake_mode(module))
    results: Any = None
    for node in module.graph.nodes:
        if node.op == "placeholder":
            capture.place(node)
        elif node.op == "output":
            _check_results(node, module)
            results = fx.map_arg(node.args[0], capture.values.__getitem__)
        elif node.target is not _TELEMETRY:
            capture.call(node)
    capture.graph.output(map_aggregate(results, capture.as_argument))
    capture.graph.eliminate_dead_code()
    return lazy_module(capture.constants, capture.graph)


@dataclass(frozen=True, slots=True)
class _Size:
    """A symbolic size that varies, by its (sympy) expression."""

    expression: Any


@dataclass(frozen=True, slots=True)
class _Template:
    """What a kind of call becomes: ATen calls on `operands` and `sizes`, and its result, whose tensors are nodes of `graph`."""

    graph: fx.Graph
    operands: Sequence[fx.Node]
    sizes: Mapping[_Size, fx.Node]
    result: Any


@dataclass
class _Capture:
    """The graph so far, and what the nodes of Dynamo's graph became: nodes, numbers, or containers of them."""

    mode: FakeTensorMode
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    templates: dict[str, _Template] = field(default_factory=dict)
    sizes: dict[_Size, fx.Node] = field(default_factory=dict)
    """The nodes that give symbolic sizes."""

    def place(self, node: fx.Node) -> None:
        """Take over an argument of the graph."""
        value: Any = node.meta.get("example_value")
        plain = type(value) is FakeTensor and value.layout is torch.strided and not value.is_quantized
        if not plain and not isinstance(value, torch.SymInt):
            raise UnsupportedOperator(f"argument {node.name} is a {type(value).__name__}, no plain tensor or integer")
        _check_sizes(value)
        copy = self.graph.node_copy(node)
        copy.meta = {"val": value}
        if plain:
            self.values[node] = copy
        else:
            self.values[node] = value
            self.sizes[_Size(value.node.expr)] = copy

    def call(self, node: fx.Node) -> None:
        """Take over a call, by the template of its kind."""
        if node.target in _CHECKED:
            raise UnsupportedOperator(f"{node.name} checks numbers")
        run = _function(node)
        arguments, options = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        operands = list(dict.fromkeys(leaf for leaf in _leaves((arguments, options)) if isinstance(leaf, fx.Node)))
        kind = f"{node.op} {node.target} {_described((arguments, options), operands)}"
        template = self.templates.get(kind)
        if template is None:
            template = self.templates[kind] = _Recorder(self.mode, self.constants, operands).template(run, arguments, options)
        copies = dict(zip(template.operands, operands, strict=True))
        copies |= {copy: self.size(size) for size, copy in template.sizes.items()}
        self.graph.graph_copy(template.graph, copies)
        for own in template.graph.nodes:
            if own.op != "placeholder":
                copies[own].stack_trace = node.stack_trace
        self.values[node] = map_aggregate(template.result, lambda leaf: copies[leaf] if isinstance(leaf, fx.Node) else leaf)

    def size(self, size: _Size) -> fx.Node:
        """The node that gives a symbolic size, computed from those of the arguments."""
        if size not in self.sizes:
            tracer = fx.proxy.GraphAppendingTracer(self.graph)
            known = {symbol: fx.Proxy(self.sizes[_Size(symbol)], tracer) for symbol in size.expression.free_symbols}
            self.sizes[size] = sympy_interp(PythonReferenceAnalysis, known, size.expression).node
        return self.sizes[size]

    def as_argument(self, value: Any) -> Any:
        """A value as other nodes may have it for an argument."""
        number = _number(value)
        return self.size(number) if isinstance(number, _Size) else number


class _Recorder(TorchDispatchMode):
    """Writes down the ATen calls below one torch call."""

    def __init__(self, mode: FakeTensorMode, constants: dict[str, torch.Tensor], operands: Sequence[fx.Node]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.mode, self.constants = mode, constants
        self.graph = fx.Graph()
        self.sizes: dict[_Size, fx.Node] = {}
        self.operands = [self.graph.placeholder(f"x{number}") for number in range(len(operands))]
        with mode:
            self.values = {operand: _alias(operand.meta["val"]) for operand in operands}
        self.nodes = {id(value): own for value, own in zip(self.values.values(), self.operands, strict=True)}
        self.alive: list[torch.Tensor] = []
        """What `nodes` knows by identity."""

    def template(self, run: Callable[..., Any], arguments: Any, options: Any) -> _Template:
        """The template of the call `run(*arguments, **options)`, whose operands are nodes with tensors without data."""
        values = map_aggregate((arguments, options), lambda leaf: self.values[leaf] if isinstance(leaf, fx.Node) else leaf)
        with self.mode, self:
            result = run(*values[0], **values[1])
        return _Template(self.graph, self.operands, self.sizes, map_aggregate(result, self._result))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE:
            return func(*args)
        if func is _LIFTED and type(args[0]) is torch.Tensor:
            return self._constant(args[0])
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        if not func._schema.returns:
            raise UnsupportedOperator(f"{func} is called for what it does")
        with self:
            decomposed = DECOMPOSED_LAYERS.get(func, func.decompose)(*args, **kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        with enable_python_dispatcher():  # without it some shapes that vary are not broadcast
            result = func(*args, **kwargs)
        if func is _DETACH:  # without gradients another name for its operand
            self._known(result, self._node(args[0]))
            return result
        return self._called(func, args, kwargs, result)

    def _called(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        if not any(isinstance(leaf, torch.Tensor) for leaf in _leaves(result)):
            return result  # a question about tensors, which their descriptions answer
        arguments, options = map_aggregate((args, kwargs), self._argument)
        node = self.graph.call_function(func, arguments, options)
        node.meta["val"] = result
        if isinstance(result, torch.Tensor):
            self._known(result, node)
            return result
        for number, part in enumerate(result):
            if isinstance(part, torch.Tensor):
                taken = self.graph.call_function(operator.getitem, (node, number))
                taken.meta["val"] = part
                self._known(part, taken)
        return result

    def _in_place(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """A change of a tensor that torch made on the way, as RMSNorm's does: the changed one takes its name."""
        functional = _without_mutation(func)
        if functional is None or not self._is_private(args[0]):
            raise UnsupportedOperator(f"{func} changes an operand")
        target, result = args[0], functional(*args, **kwargs)
        if (result.dtype, result.shape, result.stride()) != (target.dtype, target.shape, target.stride()):
            raise UnsupportedOperator(f"{func} changes an operand, and rounds or repeats what it writes")
        self._called(functional, args, kwargs, result)
        self.nodes[id(target)] = self._node(result)
        return cast(torch.Tensor, target)

    def _is_private(self, tensor: torch.Tensor) -> bool:
        """Whether a call made the tensor, and no other tensor lies in its memory."""
        memory = tensor.untyped_storage()._cdata
        others = (other for other in (*self.values.values(), *self.alive) if other is not tensor)
        return self._node(tensor).op == "call_function" and all(other.untyped_storage()._cdata != memory for other in others)

    def _known(self, tensor: torch.Tensor, node: fx.Node) -> None:
        _check_sizes(tensor)
        self.nodes[id(tensor)] = node
        self.alive.append(tensor)

    def _constant(self, tensor: torch.Tensor) -> Any:
        """A tensor that the call itself writes down: each use gets a copy, which its user may change."""
        name = f"_constant{len(self.constants)}"
        self.constants[name] = tensor
        fake = self.mode.from_tensor(tensor, static_shapes=True)
        source = self.graph.create_node("get_attr", name)
        source.meta["val"] = fake
        self._known(fake, source)
        return self._called(_LIFTED_COPY, (fake,), {}, _LIFTED_COPY(fake))

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._node(value)
        number = _number(value)
        if isinstance(number, _Size) and number not in self.sizes:
            self.sizes[number] = self.graph.placeholder(f"size{len(self.sizes)}")
        return self.sizes[number] if isinstance(number, _Size) else number

    def _result(self, value: Any) -> Any:
        return self._node(value) if isinstance(value, torch.Tensor) else value

    def _node(self, tensor: torch.Tensor) -> fx.Node:
        if id(tensor) not in self.nodes:
            raise UnsupportedOperator("a tensor comes from outside the graph")
        return self.nodes[id(tensor)]


def _fake_mode(module: fx.GraphModule) -> FakeTensorMode:
    """The mode that Dynamo made the graph's tensors without data in, which knows the symbolic sizes."""
    values = (node.meta.get("example_value") for node in module.graph.nodes if node.op == "placeholder")
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None) or FakeTensorMode()


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as an object of its own: results of equal calls are one, and must be told apart as operands of a further call.

    By strides and `requires_grad` torch decides how it multiplies. Kernels give dimensions of size 1 the strides of contiguous
    tensors, where what stands in for them here may give others.
    """
    if is_static(tensor) and tensor.is_contiguous():
        alias = tensor.as_strided(tensor.shape, make_contiguous_strides_for(tensor.shape), tensor.storage_offset())
    else:
        alias = torch.ops.aten.alias(tensor)
    return alias.requires_grad_(tensor.requires_grad)


def _number(value: Any) -> Any:
    """The expression of a symbolic size that varies; everything else as it is."""
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        raise UnsupportedOperator(f"an argument is the symbolic number {value}")
    if not isinstance(value, torch.SymInt):
        return value
    expression = value.node.expr
    return int(expression) if expression.is_number else _Size(expression)


def _check_sizes(value: torch.Tensor | torch.SymInt) -> None:
    if free_unbacked_symbols(value):
        raise UnsupportedOperator("a size depends on the contents of a tensor")


def _function(node: fx.Node) -> Callable[..., Any]:
    """What a node calls. Raises UnsupportedOperator unless it is known to be a function of its arguments alone."""
    target = node.target
    if node.op == "call_method" and isinstance(target, str) and not (target.endswith("_") and not target.endswith("__")):
        return _method(target)
    if node.op == "call_function" and callable(target) and _is_pure(target):
        return target
    raise UnsupportedOperator(f"{node.op} {target} may do more than compute tensors")


def _method(name: str) -> Callable[..., Any]:
    def run(tensor: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(tensor, name)(*arguments, **options)

    return run


def _is_pure(target: Callable[..., Any]) -> bool:
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    of_python = target is getattr or getattr(operator, getattr(target, "__name__", ""), None) is target
    return of_python or target in _FACTORIES or target in FUNCTIONS or target in _tensor_functions()


@functools.cache
def _tensor_functions() -> frozenset[Any]:
    """The functions of torch that take tensors, by torch's own list."""
    return frozenset(function for functions in torch.overrides.get_overridable_functions().values() for function in functions)


def _without_mutation(func: Any) -> Any:
    """The operator that gives what `func` writes to its first operand; None where there is none, or it draws random numbers."""
    name = func._schema.name.removeprefix("aten::")
    if func.namespace != "aten" or not name.endswith("_") or torch.Tag.nondeterministic_seeded in func.tags:
        return None
    return getattr(getattr(torch.ops.aten, name.removesuffix("_"), None), func._overloadname, None)


def _leaves(value: Any) -> Iterator[Any]:
    found: list[Any] = []
    map_aggregate(value, found.append)
    return iter(found)


@dataclass(frozen=True, slots=True)
class _Operand:
    number: int


def _described(arguments: Any, operands: Sequence[fx.Node]) -> str:
    """Arguments as a text that differs where the ATen calls may; operands by number and description."""
    numbers = {operand: number for number, operand in enumerate(operands)}

    def described(leaf: Any) -> Any:
        return _Operand(numbers[leaf]) if isinstance(leaf, fx.Node) else leaf

    return f"{map_aggregate(arguments, described)} {[_description(operand.meta['val']) for operand in operands]}"


def _description(tensor: torch.Tensor) -> str:
    """Everything of a tensor without data that may decide which ATen calls a torch call makes of it."""
    flags = (tensor.is_conj(), tensor.is_neg(), tensor.is_inference(), tensor.requires_grad)
    return f"{text_of_tensor(tensor)} {tensor.storage_offset()} {flags}"


def _check_results(output: fx.Node, module: fx.GraphModule) -> None:
    """Raise UnsupportedOperator where a result of Dynamo's graph is an argument or shares its memory."""
    arguments = {_memory(node) for node in module.graph.nodes if node.op == "placeholder"} - {None}
    for node in output.all_input_nodes:
        if _memory(node) in arguments:
            raise UnsupportedOperator(f"result {node.name} shares memory with an argument")


def _memory(node: fx.Node) -> int | None:
    """Which memory the tensor of a node of Dynamo's graph lies in; None for a number."""
    value = node.meta["example_value"]
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
