"""Writing a tensor program by hand: arrays and operators in, a kernel graph of pre-defined operators out.

    program = Program()
    x = program.input("X", (16, 1024))
    w = program.input("W", (1024, 4096))
    program.output((x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()) @ w)
    program.graph

Programs are kept in a normal form on the way: equal subexpressions are one node, operations on constants are done
exactly, dividing by a constant is multiplying by its reciprocal, multiplying by a reciprocal is dividing, and views that
change nothing vanish. So two spellings of a program mostly give one graph, and the search one problem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from mugraph.errors import InvalidInput
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.graph import Attributes, AttributeValue, Graph, Level, Node, Shape, Value, attributes_of
from mugraph.ir.literals import Number, completed, exact_number, rounded_to, sizes_of, whole_number
from mugraph.ir.ops import ROUNDINGS, operator
from mugraph.ir.scalar import Scalar

_ONE, _ZERO = Scalar(Fraction(1)), Scalar(Fraction(0))
_KEEPING = frozenset({"reshape", "transpose", "slice", "repeat", "cast", "max", "relu", "abs"})
"""Operators whose results are among the numbers they are given, up to sign, or 0."""
_HIGHEST_POWER = 256
"""Abstract expressions and error bounds grow with the degree of a program."""


class Program:
    """A program being written: `input` and `constant` give tensors, tensors give tensors, `output` says what is wanted."""

    def __init__(self) -> None:
        self._builder = GraphBuilder(Level.KERNEL)
        self._known: dict[tuple[str, tuple[Value, ...], Attributes], Value] = {}
        self._outputs: list[Value] = []

    def input(self, name: str, shape: Sequence[int], dtype: DType | str = DType.FP32) -> ProgramTensor:
        """A new input. Raises InvalidInput for a name used before and for dimensions that are no whole numbers of at least 1."""
        if self.named(name) is not None:
            raise InvalidInput(f"the program has an input called {name!r} already; give each input its own name")
        if not isinstance(name, str) or not isinstance(shape, Sequence):
            raise InvalidInput(f"input {name!r} of shape {shape!r}: give a name and a sequence of sizes, such as (4, 8)")
        sizes = tuple(whole_number(size, "size") for size in shape)
        if any(size < 1 for size in sizes):
            raise InvalidInput(f"input {name!r} of shape {list(sizes)}: every dimension must have at least one element")
        return ProgramTensor(self, self._builder.input(name, sizes, DType.parse(dtype)))

    def named(self, name: str) -> ProgramTensor | None:
        """The input called `name`, if there is one."""
        for index, node in enumerate(self._builder.nodes):
            if node.is_input and node["name"] == name:
                return ProgramTensor(self, Value(index))
        return None

    def constant(self, number: Number, dtype: DType | str = DType.FP32) -> ProgramTensor:
        """An exact scalar of rank 0; one beside what is only stored is of fp32."""
        kind = DType.parse(dtype)
        return self.apply("constant", value=exact_number(number), dtype=kind.of_arithmetic if kind.is_stored else kind)

    def concat(self, tensors: Sequence[ProgramTensor], dim: int = 0) -> ProgramTensor:
        """Tensors one behind the other along a dimension; raises ShapeMismatch where they differ in another one."""
        first, *others = tensors
        return first.apply("concat", *others, dim=first._dim(dim)) if others else first

    def output(self, *tensors: ProgramTensor) -> None:
        """Append outputs, in order."""
        for tensor in tensors:
            self._outputs.append(self.own(tensor))

    def apply(self, op: str, *operands: ProgramTensor, **attributes: AttributeValue) -> ProgramTensor:
        """Any operator of the table, as it is: no normal form beyond sharing. Raises ShapeMismatch, UnsupportedOperator."""
        inputs = tuple(self.own(operand) for operand in operands)
        shared = tuple(sorted(inputs)) if operator(op).commutative else inputs
        key = (op, shared, attributes_of(attributes))
        if key not in self._known:
            self._known[key] = self._builder.add(op, *inputs, **attributes)
        # by name: equal numbers may have been written in several ways
        elif op == "constant":
            self._remember(self._known[key], attributes["value"])
        return ProgramTensor(self, self._known[key])

    def _remember(self, constant: Value, again: AttributeValue) -> None:
        """Give the node of a constant the readings of one that is equal to it."""
        node = self._builder.nodes[constant.node]
        known = node["value"]
        assert isinstance(known, Scalar)
        assert isinstance(again, Scalar)
        both = replace(known, readings=known.readings | again.readings)
        attributes = attributes_of({**dict(node.attributes), "value": both})
        self._builder.nodes[constant.node] = replace(node, attributes=attributes)

    def own(self, tensor: ProgramTensor) -> Value:
        """The value of a tensor of this program; raises InvalidInput for a tensor of another one and for what is none."""
        if not isinstance(tensor, ProgramTensor):
            raise InvalidInput(f"{tensor!r} is no tensor of a program; use program.input or program.constant")
        if tensor.program is not self:
            raise InvalidInput("tensors of two different programs cannot be combined; build both in one Program")
        return tensor.value

    def node(self, tensor: ProgramTensor) -> Node:
        """The node that computes a tensor."""
        return self._builder.nodes[tensor.value.node]

    @property
    def graph(self) -> Graph:
        """The kernel graph: every input in order, and what the outputs need. Raises InvalidInput without outputs."""
        if not self._outputs:
            raise InvalidInput("the program has no output; call program.output(tensor)")
        return without_dead_nodes(self._builder.build(self._outputs))


class ProgramTensor:
    """A tensor of a program, with NumPy's operators: elementwise ones broadcast, negative dimensions count from the end."""

    __slots__ = ("program", "value")

    # NumPy's scalars then leave `number * tensor` to this class.
    __array_ufunc__ = None

    def __init__(self, program: Program, value: Value) -> None:
        self.program, self.value = program, value

    @property
    def shape(self) -> Shape:
        """Elements per dimension."""
        return self.program.node(self).output.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.program.node(self).output.dtype

    @property
    def number(self) -> Scalar | None:
        """The exact value of a constant, None for any other tensor."""
        value = self.program.node(self).get("value")
        return value if isinstance(value, Scalar) else None

    def __repr__(self) -> str:
        return f"ProgramTensor({self.program.node(self).op}: {self.program.node(self).output})"

    # --- elementwise ---

    def __add__(self, other: ProgramTensor | Number) -> ProgramTensor:
        other = self._lift(other)
        if self.number is not None and other.number is not None and not (self.number.root or other.number.root):
            return self._folded(self.number + other.number, other)
        if self.number is not None:
            self, other = other, self
        return self if _is(other, _ZERO) else self.apply("add", other)

    def __sub__(self, other: ProgramTensor | Number) -> ProgramTensor:
        other = self._lift(other)
        if other.number is not None:
            return self + other._folded(other.number * Scalar.of(-1), other)
        return self.apply("sub", other)

    def __mul__(self, other: ProgramTensor | Number) -> ProgramTensor:
        other = self._lift(other)
        if self.number is not None and other.number is not None:
            return self._folded(self.number * other.number, other)
        if self.number is not None:
            self, other = other, self
        if _is(other, _ONE):
            return self
        if other.value == self.value:
            return self.square()
        if other.number is not None:
            return self._scaled(other)
        for factor, fraction in ((self, other), (other, self)):
            numerator, denominator = fraction._fraction()
            if denominator is not None:
                return factor * numerator / denominator
        return self.apply("mul", other)

    def __truediv__(self, other: ProgramTensor | Number) -> ProgramTensor:
        other = self._lift(other)
        if other.number is not None:
            return self * other._folded(other.number.reciprocal(), other)
        return self.apply("div", other)

    def __radd__(self, other: Number) -> ProgramTensor:
        return self + other

    def __rsub__(self, other: Number) -> ProgramTensor:
        return self._lift(other) - self

    def __rmul__(self, other: Number) -> ProgramTensor:
        return self * other

    def __rtruediv__(self, other: Number) -> ProgramTensor:
        return self._lift(other) / self

    def __neg__(self) -> ProgramTensor:
        return self * -1

    def __pow__(self, exponent: int | float) -> ProgramTensor:
        """Integer powers by squaring, and half-integer ones with a square root; raises InvalidInput for others and high ones."""
        exact = exact_number(exponent)
        if abs(exact.value) > _HIGHEST_POWER:
            raise InvalidInput(f"power {exponent}: at most power {_HIGHEST_POWER} is searched; multiply powers of less")
        if exact.root or exact.value.denominator > 2:
            raise InvalidInput(f"power {exponent}: only integer and half-integer exponents can be verified")
        if exact.value < 0:
            return 1 / self ** (-exponent)
        whole, half = divmod(exact.value, 1)
        if not half:
            return self._integer_power(int(whole))
        return self._integer_power(int(whole)) * self.sqrt() if whole else self.sqrt()

    def exp(self) -> ProgramTensor:
        """e to the power of each element."""
        return self.apply("exp")

    def sqrt(self) -> ProgramTensor:
        """Square root of each element."""
        if self.number is not None and not self.number.root and self.number.value >= 0:
            return self._folded(self.number.sqrt(), self)
        return self.apply("sqrt")

    def rsqrt(self) -> ProgramTensor:
        """Reciprocal of the square root of each element."""
        return 1 / self.sqrt()

    def square(self) -> ProgramTensor:
        """Square of each element."""
        return self.apply("square") if self.number is None else self._folded(self.number * self.number, self)

    def silu(self) -> ProgramTensor:
        """x * sigmoid(x)."""
        return self.apply("silu")

    def sigmoid(self) -> ProgramTensor:
        """1 / (1 + exp(-x))."""
        return self.apply("sigmoid")

    def relu(self) -> ProgramTensor:
        """max(x, 0)."""
        return self.apply("relu")

    def maximum(self, other: ProgramTensor | Number) -> ProgramTensor:
        """The larger of two elements, or of an element and a number; NaN where one of them is."""
        other = self._lift(other)
        if other.value == self.value:
            return self
        if other.number is not None and other.number.value == 0:
            return self.relu()
        return self.apply("maximum", other)

    def minimum(self, other: ProgramTensor | Number) -> ProgramTensor:
        """The smaller of two elements, or of an element and a number: -max(-x, -y), which rounds nothing."""
        return -((-self).maximum(-self._lift(other)))

    def gelu(self) -> ProgramTensor:
        """x * Phi(x), exactly (with the error function)."""
        return self.apply("gelu")

    def tanh(self) -> ProgramTensor:
        """Hyperbolic tangent of each element."""
        return self.apply("tanh")

    def cast(self, dtype: DType | str) -> ProgramTensor:
        """The same numbers stored as `dtype`: an output is rounded to it, anything else may be kept wider (see `rounded`)."""
        dtype = DType.parse(dtype)
        return self if dtype is self.dtype else self.apply("cast", dtype=dtype)

    def rounded(self, dtype: DType | str) -> ProgramTensor:
        """Each element rounded to the nearest number of `dtype` (ties to even; too large ones to infinity), stored as it is.

        Numbers that are known to be of that type stay. Raises InvalidInput for a constant that becomes infinite.
        """
        dtype = DType.parse(dtype)
        if self.number is not None:
            return self._folded(rounded_to(self.number, dtype), self)
        if dtype not in ROUNDINGS or self._is_of(dtype):
            return self
        return self.cast(self.dtype.promote(dtype)).apply(ROUNDINGS[dtype])

    def apply(self, op: str, *others: ProgramTensor, **attributes: AttributeValue) -> ProgramTensor:
        """Any operator of the table with this tensor as its first operand."""
        return self.program.apply(op, self, *others, **attributes)

    # --- contractions and reductions ---

    def __matmul__(self, other: ProgramTensor) -> ProgramTensor:
        """Matrix product over the last two dimensions, batched over the others; a vector is a row or a column, as in NumPy."""
        left = self.unsqueeze(0) if len(self.shape) == 1 else self
        right = other.unsqueeze(1) if len(other.shape) == 1 else other
        product = left.apply("matmul", right)
        if len(other.shape) == 1:
            product = product.squeeze(-1)
        return product.squeeze(-1 if len(other.shape) == 1 else -2) if len(self.shape) == 1 else product

    def sum(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> ProgramTensor:
        """Sum over one, several or (None) all dimensions."""
        return self._reduce("sum", dim, keepdim)

    def amax(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> ProgramTensor:
        """Largest element over one, several or (None) all dimensions."""
        return self._reduce("max", dim, keepdim)

    def mean(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> ProgramTensor:
        """Mean over one, several or (None) all dimensions."""
        count = math.prod(self.shape[position] for position in self._dims(dim))
        return self.sum(dim, keepdim) / count

    def softmax(self, dim: int) -> ProgramTensor:
        """exp(x - max) / sum(exp(x - max)), in range for every x; the search drops the maximum where it is provably neutral."""
        exponentials = (self - self.amax(dim, keepdim=True)).exp()
        return exponentials / exponentials.sum(dim, keepdim=True)

    # --- views and repetition ---

    def reshape(self, *shape: int | Sequence[int]) -> ProgramTensor:
        """The same elements in row-major order; one size may be -1."""
        sizes = completed(sizes_of(shape), math.prod(self.shape))
        if sizes == self.shape:
            return self
        node = self.program.node(self)
        # by name: the normal form has no reshape of a reshape
        source = ProgramTensor(self.program, node.inputs[0]).reshape(*sizes) if node.op == "reshape" else None
        return source or self.apply("reshape", shape=sizes)

    def permute(self, *dims: int | Sequence[int]) -> ProgramTensor:
        """Dimension i of the result is dimension dims[i] of this tensor."""
        permutation = tuple(self._dim(dim) for dim in sizes_of(dims))
        if permutation == tuple(range(len(self.shape))):
            return self
        return self.apply("transpose", permutation=permutation)

    def transpose(self, first: int, second: int) -> ProgramTensor:
        """Two dimensions exchanged."""
        dims = list(range(len(self.shape)))
        first, second = self._dim(first), self._dim(second)
        if not dims:
            return self
        dims[first], dims[second] = second, first
        return self.permute(*dims)

    def unsqueeze(self, dim: int) -> ProgramTensor:
        """A dimension of size 1 inserted before dimension `dim` of the result."""
        position = dim + len(self.shape) + 1 if dim < 0 else dim
        return self.reshape(*self.shape[:position], 1, *self.shape[position:])

    def squeeze(self, dim: int) -> ProgramTensor:
        """Dimension `dim` removed; raises ShapeMismatch unless its size is 1."""
        position = self._dim(dim)
        return self.reshape(*self.shape[:position], *self.shape[position + 1 :])

    def repeat(self, dim: int, times: int) -> ProgramTensor:
        """The tensor repeated `times` times along a dimension."""
        return self if times == 1 else self.apply("repeat", dim=self._dim(dim), times=times)

    def slice(self, dim: int, start: int, size: int, step: int = 1) -> ProgramTensor:
        """`size` elements along a dimension: that at `start`, and every `step`-th from there on (back, if `step` is negative)."""
        dim = self._dim(dim)
        if (start, size, step) == (0, self.shape[dim], 1):
            return self
        node = self.program.node(self)
        # by name: the normal form has no slice of a slice along one dimension
        if node.op == "slice" and node.integer("dim") == dim:
            whole, stride = ProgramTensor(self.program, node.inputs[0]), node.integer("step")
            return whole.slice(dim, node.integer("start") + start * stride, size, step * stride)
        return self.apply("slice", dim=dim, start=start, size=size, step=step)

    def expand(self, *shape: int | Sequence[int]) -> ProgramTensor:
        """Dimensions of size 1 repeated to the sizes asked for (-1 keeps one); new dimensions come first."""
        sizes = sizes_of(shape)
        lead = len(sizes) - len(self.shape)
        have = (1,) * lead + self.shape
        wanted = tuple(old if new == -1 else new for old, new in zip(have, sizes, strict=False))
        if lead < 0 or any(old not in (1, new) for old, new in zip(have, wanted, strict=True)):
            raise InvalidInput(f"cannot expand shape {list(self.shape)} to {list(sizes)}; only dimensions of size 1 grow")
        tensor = self.reshape(*have)
        for dim, (old, new) in enumerate(zip(have, wanted, strict=True)):
            tensor = tensor.repeat(dim, new // old)
        return tensor

    # --- inside ---

    def _is_of(self, dtype: DType) -> bool:
        """Whether all elements are known to be numbers of `dtype`."""
        node = self.program.node(self)
        if node.is_input:
            return dtype.contains(node.output.dtype)
        if any(node.op == rounding and dtype.contains(narrow) for narrow, rounding in ROUNDINGS.items()):
            return True
        return node.op in _KEEPING and ProgramTensor(self.program, node.inputs[0])._is_of(dtype)

    def _lift(self, other: ProgramTensor | Number) -> ProgramTensor:
        return other if isinstance(other, ProgramTensor) else self.program.constant(other, self.dtype)

    def _folded(self, value: Scalar, other: ProgramTensor) -> ProgramTensor:
        return self.program.constant(value, self.dtype.promote(other.dtype))

    def _scaled(self, factor: ProgramTensor) -> ProgramTensor:
        """This tensor times a constant that is not 1, merged with a constant it was multiplied by or divides."""
        numerator, denominator = self._fraction()
        if denominator is not None:
            return numerator * factor / denominator
        node = self.program.node(self)
        # by name: constants are merged by the laws of products and quotients
        if node.op == "mul":
            tensor, earlier = (ProgramTensor(self.program, value) for value in node.inputs)
            if earlier.number is not None:
                return tensor * (earlier * factor)
        return self.apply("mul", factor)

    def _fraction(self) -> tuple[ProgramTensor, ProgramTensor | None]:
        """(constant numerator, denominator) of a reciprocal; the denominator is None for any other tensor."""
        node = self.program.node(self)
        # by name: as in `_scaled`
        if node.op == "div":
            numerator, denominator = (ProgramTensor(self.program, value) for value in node.inputs)
            if numerator.number is not None:
                return numerator, denominator
        return self, None

    def _integer_power(self, exponent: int) -> ProgramTensor:
        if exponent == 0:
            return self.program.constant(1, self.dtype).expand(*self.shape)
        if exponent == 1:
            return self
        half = self._integer_power(exponent // 2).square()
        return half * self if exponent % 2 else half

    def _reduce(self, op: str, dim: int | Sequence[int] | None, keepdim: bool) -> ProgramTensor:
        dims = self._dims(dim)
        tensor = self
        for position in dims:
            if tensor.shape[position] > 1:
                tensor = tensor.apply(op, dim=position, size=tensor.shape[position])
        kept = tuple(size for position, size in enumerate(tensor.shape) if position not in dims)
        return tensor if keepdim else tensor.reshape(*kept)

    def _dims(self, dim: int | Sequence[int] | None) -> tuple[int, ...]:
        if dim is None:
            return tuple(range(len(self.shape)))
        dims = tuple(self._dim(item) for item in (dim if isinstance(dim, Sequence) else (dim,)))
        return dims if self.shape else ()

    def _dim(self, dim: int) -> int:
        """The place of a dimension. A tensor without dimensions is taken for one of one element, as in PyTorch."""
        rank, position = max(1, len(self.shape)), whole_number(dim, "dimension")
        if not -rank <= position < rank:
            raise InvalidInput(f"dimension {dim} of a tensor of shape {list(self.shape)}: use one from {-rank} to {rank - 1}")
        return position % rank


def _is(tensor: ProgramTensor, number: Scalar) -> bool:
    """Whether a tensor is a constant, and no float was taken for another number on the way to it."""
    return tensor.number == number and not (tensor.number and tensor.number.readings)
