"""ONNX models as programs: graphs of the operators in `mugraph.frontend.onnx.rows`, read with the onnx package.

Shapes are fixed. What depends on no input (shapes, axes) is computed on the way by ONNX's own reference. Casts between
floating-point types round where they are written as roundings (`mugraph.frontend.operators.roundings`, asked about the graph's
nodes), and change an output's dtype otherwise, as in `mugraph.frontend.operators.conversion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch, UnsupportedOperator
from mugraph.frontend.onnx.calls import BOOLEAN, FLOATS, INTEGERS, Constant, NodeCall, Operand
from mugraph.frontend.onnx.rows import ROWS
from mugraph.frontend.operators.roundings import PrecisionOrigin, PrecisionStep, written_roundings
from mugraph.ir.dtypes import DType
from mugraph.ir.program import Program, ProgramTensor

if TYPE_CHECKING:
    import onnx


_MOVING = frozenset(
    {
        "Abs", "Concat", "Dropout", "Expand", "Flatten", "Gather", "GlobalMaxPool", "Identity", "MaxPool", "Neg", "Pad",
        "ReduceMax", "ReduceMin", "Relu", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
"""Operators whose results are among the numbers they are given, up to sign."""


def cast_roundings(
    graph: onnx.GraphProto, given: Mapping[str, DType], numbers: Mapping[str, DType] | None = None
) -> Mapping[str, DType]:
    """The results of casts that round, by name, and the type they round to; `given` are the types of inputs and weights,
    `numbers` those of the constants of one number that the model brings along.

    A result that only the caller gets is left out: it is stored rounded anyway. ONNX promotes no types: unless it is a cast, a
    node gives what its first operand of a floating-point type is.
    """
    names = list(given)
    steps = [PrecisionStep(dtype, PrecisionOrigin.GIVEN) for dtype in given.values()]

    def type_of(name: str) -> DType | None:
        return steps[names.index(name)].dtype if name in names else (numbers or {}).get(name)

    for node in graph.node:
        operands = tuple(names.index(name) for name in node.input if name in names)
        types = [steps[operand].dtype for operand in operands]
        cast = node.op_type in ("Cast", "CastLike")
        dtype = _target(node, type_of) if cast else next(iter(filter(None, types)), None)
        for name in node.output:
            names.append(name)
            steps.append(PrecisionStep(dtype, _origin(node, cast, operands), operands[:1] if cast else operands))
    read = {name for node in graph.node for name in node.input}
    rounding = {names[number]: steps[number].dtype for number in written_roundings(steps)}
    return {name: dtype for name, dtype in rounding.items() if dtype is not None and name in read}


def _target(node: onnx.NodeProto, type_of: Callable[[str], DType | None]) -> DType | None:
    """The floating-point type that a cast gives, None for others."""
    if node.op_type == "CastLike":
        return type_of(node.input[1])
    return next((FLOATS.get(attribute.i) for attribute in node.attribute if attribute.name == "to"), None)


def _origin(node: onnx.NodeProto, cast: bool, operands: tuple[int, ...]) -> PrecisionOrigin:
    if not operands:
        return PrecisionOrigin.NUMBER
    if cast:
        return PrecisionOrigin.CAST
    return PrecisionOrigin.MOVED if node.op_type in _MOVING else PrecisionOrigin.COMPUTED


_OLDEST_OPSET = 7
"""Operands broadcast as in NumPy from this opset on."""
_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
_DEFAULT_DOMAINS = ("", "ai.onnx")


def from_onnx(
    model: str | Path | onnx.ModelProto, *, sizes: Mapping[str, int] | None = None, fixed: Mapping[str, Any] | None = None
) -> Program:
    """The program of an ONNX model: a file, or a model in memory.

    Its inputs are the model's and then, by name, its weights (`weights` has their values). `sizes` are those of dimensions
    that the model leaves open, by name, or as `x[0]` where dimension 0 of input x has none; `fixed` are values of inputs that
    the program is to take as known, as shapes and axes must be. Raises UnsupportedOperator naming the operator and node at
    fault, ShapeMismatch also for outputs that are declared with other shapes than they have, InvalidInput for files that are
    no ONNX models, opsets before 7 or unknown to the onnx package, open dimensions, and inputs that are neither floating point
    nor booleans, nor integers at which `Gather` alone reads.
    """
    loaded = _loaded(model)
    reader = _Reader(loaded, _mapping("sizes", sizes, "{'batch': 8}"), _mapping("fixed", fixed, "{'axes': [1]}"))
    reader.read()
    return reader.program


def weights(model: str | Path | onnx.ModelProto) -> dict[str, Constant]:
    """The tensors that a model brings along, in the order in which they follow the inputs of its program; bf16 as float32."""
    return {name: _widened(array) for name, array in _constants(_loaded(model)) if _is_weight(array)}


class _Reader:
    """A graph on its way into a program."""

    def __init__(self, model: onnx.ModelProto, sizes: Mapping[str, int], fixed: Mapping[str, Any]) -> None:
        self.model, self.sizes = model, sizes
        self.fixed = {name: np.asarray(value) for name, value in fixed.items()}
        self.opset = next((entry.version for entry in model.opset_import if entry.domain in _DEFAULT_DOMAINS), 0)
        self.program = Program()
        self.values: dict[str, Operand] = {"": None}
        self.rounding: Mapping[str, DType] = {}
        self.numbers: Mapping[str, DType] = {}

    def read(self) -> None:
        """Everything: inputs, weights, nodes, outputs."""
        _check_opset(self.opset)
        constants = dict(_constants(self.model))
        open_inputs = [value for value in self.model.graph.input if value.name not in constants]
        _check_names("fixed", self.fixed, "input without a value", [value.name for value in open_inputs])
        _check_names("sizes", self.sizes, "open dimension", [name for value in open_inputs for name in _open_dimensions(value)])
        for value in self.model.graph.input:
            if value.name in self.fixed:
                self.values[value.name] = self.fixed[value.name]
            elif value.name not in constants:
                self.values[value.name] = self._input(value)
        for name, array in constants.items():
            weight = _is_weight(array)
            self.values[name] = self.program.input(name, array.shape, _dtype_of(array)) if weight else _widened(array)
        tensors = [(name, value) for name, value in self.values.items() if isinstance(value, ProgramTensor)]
        given = {name: value.dtype for name, value in tensors if not value.dtype.is_index}
        known = {**constants, **self.fixed}
        self.numbers = {name: _dtype_of(array) for name, array in known.items() if str(array.dtype) in _FLOATING}
        self.rounding = cast_roundings(self.model.graph, given, self.numbers)
        for node in self.model.graph.node:
            if node.op_type != "Constant":
                self._node(node)
        for value in self.model.graph.output:
            self.program.output(self._output(value))

    def _input(self, value: onnx.ValueInfoProto) -> ProgramTensor:
        kind = value.type.tensor_type
        shape = [self._size(value.name, position, dim) for position, dim in enumerate(kind.shape.dim)]
        if kind.elem_type in INTEGERS and self._names_places(value.name):
            return self.program.input(value.name, shape, INTEGERS[kind.elem_type])
        return self.program.input(value.name, shape, _dtype(f"input {value.name}", kind.elem_type))

    def _names_places(self, name: str) -> bool:
        """Whether all that reads an input are lookups, at the places that it names."""
        reads = [
            (node.op_type, position) for node in self.model.graph.node for position, read in enumerate(node.input) if read == name
        ]
        return bool(reads) and all(read == ("Gather", 1) for read in reads)

    def _size(self, name: str, position: int, dim: Any) -> int:
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        label = _called(name, position, dim)
        if label in self.sizes:
            return self.sizes[label]
        raise InvalidInput(f"input {name} has an open dimension {label!r}; give sizes={{{label!r}: ...}}")

    def _output(self, value: onnx.ValueInfoProto) -> ProgramTensor:
        tensor = self.values[value.name]
        if not isinstance(tensor, ProgramTensor):
            raise UnsupportedOperator(f"output {value.name} is constant, or a part of a result that is not computed")
        declared = value.type.tensor_type
        sizes = [dim.dim_value if dim.HasField("dim_value") else self.sizes.get(dim.dim_param, "?") for dim in declared.shape.dim]
        fits = len(sizes) == len(tensor.shape)
        if not fits or any(size not in ("?", actual) for size, actual in zip(sizes, tensor.shape, strict=True)):
            raise ShapeMismatch(
                f"output {value.name} is declared with shape [{', '.join(map(str, sizes))}] but computed with "
                f"{list(tensor.shape)}; correct the model's declaration, or its nodes"
            )
        return tensor.cast(_dtype(f"output {value.name}", declared.elem_type)) if declared.elem_type else tensor

    def _node(self, node: onnx.NodeProto) -> None:
        operands = [self.values[name] for name in node.input]
        try:
            results = self._results(node, operands)
        except MugraphError as error:
            name = f" (node {node.name})" if node.name else ""
            raise type(error)(f"operator {node.op_type}{name}: {error}") from None
        missing = [None] * (len(node.output) - len(results))
        self.values.update(zip(node.output, [*results, *missing], strict=False))

    def _results(self, node: onnx.NodeProto, operands: Sequence[Operand]) -> Sequence[Operand]:
        if node.domain not in _DEFAULT_DOMAINS:
            raise UnsupportedOperator(f"it is of domain {node.domain}; only ONNX's own operators can be converted")
        if node.op_type in _RANDOM:
            raise UnsupportedOperator("it draws random numbers; pass them as an input")
        from onnx.helper import get_attribute_value

        attributes = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
        attributes = {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()}
        if node.op_type == "Shape" and isinstance(operands[0], ProgramTensor):
            return [np.array(operands[0].shape[attributes.get("start", 0) : attributes.get("end")], np.int64)]
        for name, operand in zip(node.input, operands, strict=True):
            if name and operand is None:
                raise UnsupportedOperator(f"it reads {name}, a part of a result that is not computed")
        if not any(isinstance(operand, ProgramTensor) for operand in operands):
            return self._folded(node)
        like = operands[1] if node.op_type == "CastLike" else None
        if isinstance(like, np.ndarray) and str(like.dtype) in _FLOATING and node.input[1] not in self.numbers:
            raise UnsupportedOperator("the type it casts to is that of a constant which other nodes compute; use Cast")
        if node.op_type not in ROWS:
            raise UnsupportedOperator("no such operator in the table; cut it out of the model")
        result = ROWS[node.op_type](NodeCall(tuple(operands), attributes, self.opset, len(node.output)))
        if node.op_type == "Cast" and isinstance(result, ProgramTensor) and attributes["to"] in FLOATS:
            result = self._cast(result, FLOATS[attributes["to"]])
        if node.output[0] in self.rounding and isinstance(result, ProgramTensor):
            result = result.rounded(self.rounding[node.output[0]])
        return result if isinstance(result, tuple) else [result]

    def _cast(self, tensor: ProgramTensor, dtype: DType) -> ProgramTensor:
        """A tensor as wide as a cast makes it, where widths count (see `mugraph.frontend.operators.conversion`)."""
        return tensor.cast(dtype) if self.rounding and dtype.bytes > tensor.dtype.bytes else tensor

    def _folded(self, node: onnx.NodeProto) -> list[Constant]:
        """The results of a node of constants, as ONNX's reference computes them."""
        from onnx import TensorProto, helper
        from onnx.reference import ReferenceEvaluator

        known = {name: value for name in node.input if isinstance(value := self.values[name], np.ndarray)}
        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in known.items()
        ]
        wanted = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output]
        graph = helper.make_graph([node], "constants", given, wanted)
        opsets = list(self.model.opset_import)
        try:
            evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
            return [np.asarray(array) for array in evaluator.run(None, known)]
        except Exception as error:  # whatever the reference cannot compute
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UnsupportedOperator(f"its operands are constants, but ONNX's reference cannot compute it: {reason}") from error


def _mapping(option: str, given: Any, example: str) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidInput(f"{option} is of type {type(given).__name__}; give a dictionary by name, as {option}={example}")
    return given or {}


def _check_names(option: str, given: Iterable[str], what: str, known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise InvalidInput(f"{option} names {name!r}, which is no {what}; those are {', '.join(known) or 'none'}")


def _check_opset(opset: int) -> None:
    from onnx.defs import onnx_opset_version

    newest = onnx_opset_version()
    if opset < _OLDEST_OPSET:
        raise InvalidInput(f"the model is of opset {opset}; convert it to opset {_OLDEST_OPSET} or later")
    if opset > newest:
        raise InvalidInput(
            f"the model is of opset {opset}, and the onnx package knows operators up to opset {newest}; "
            "upgrade the package, or convert the model to an earlier opset"
        )


def _open_dimensions(value: onnx.ValueInfoProto) -> Iterator[str]:
    """What the dimensions of an input that have no size are called."""
    for position, dim in enumerate(value.type.tensor_type.shape.dim):
        if not dim.HasField("dim_value"):
            yield _called(value.name, position, dim)


def _called(name: str, position: int, dim: Any) -> str:
    """What a dimension of an input is called: by the model, or by its place where it has no name."""
    return str(dim.dim_param) or f"{name}[{position}]"


def _loaded(model: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """A valid model."""
    if find_spec("onnx") is None:
        raise InvalidInput("the onnx package is needed to read ONNX models: pip install mugraph[onnx]")
    import onnx
    from google.protobuf import json_format, text_format
    from google.protobuf.message import DecodeError

    if not isinstance(model, (str, Path, onnx.ModelProto)):
        raise InvalidInput(f"a model is a file or an onnx.ModelProto, not {type(model).__name__}")
    no_model = (DecodeError, json_format.ParseError, text_format.ParseError, onnx.parser.ParseError, onnx.checker.ValidationError)
    try:
        loaded = onnx.load(str(model)) if isinstance(model, (str, Path)) else model
        onnx.checker.check_model(loaded)
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {model}") from None
    except OSError as error:
        raise InvalidInput(f"cannot read {model}: {error.strerror or error}") from None
    except (*no_model, ValueError) as error:  # the last one above 2 GB
        reason = (str(error).strip() or "no message").splitlines()[0]
        raise InvalidInput(f"{model if isinstance(model, (str, Path)) else 'the model'} is not valid ONNX: {reason}") from None
    return loaded


def _constants(model: onnx.ModelProto) -> Iterator[tuple[str, Constant]]:
    """What a model brings along, by name: initializers, then what nodes called Constant give."""
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    for sparse in model.graph.sparse_initializer:
        raise UnsupportedOperator(f"initializer {sparse.values.name} is sparse; make it dense")
    for tensor in model.graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in _DEFAULT_DOMAINS:
            if node.attribute[0].name == "sparse_value":
                raise UnsupportedOperator(f"operator Constant of {node.output[0]} is sparse; make it dense")
            (array,) = ReferenceEvaluator(node).run(None, {})
            yield node.output[0], np.asarray(array)


_TYPES = {dtype.torch_name: dtype for dtype in DType if dtype.is_floating or dtype is DType.BOOL}
"""Of constants that may be inputs, by NumPy's name, which bf16 has of a package of its own."""
_FLOATING = _TYPES.keys() - {DType.BOOL.torch_name}


def _is_weight(array: Constant) -> bool:
    """Whether a constant is an input of the program, rather than a number or a list of integers that it is written with."""
    return array.size > 1 and str(array.dtype) in _TYPES


def _widened(array: Constant) -> Constant:
    return array.astype(np.float32) if str(array.dtype) == "bfloat16" else array


def _dtype_of(array: Constant) -> DType:
    return _TYPES[str(array.dtype)]


def _dtype(what: str, kind: int) -> DType:
    """The element type of ONNX's number for it."""
    from onnx import TensorProto

    if kind == BOOLEAN:
        return DType.BOOL
    if kind not in FLOATS:
        remedy = "only floating-point and boolean tensors are supported, and integers that only Gather reads places from"
        remedy += " (`fixed` gives inputs a known value)"
        raise InvalidInput(f"{what} is of type {TensorProto.DataType.Name(kind)}; {remedy}")
    return FLOATS[kind]
