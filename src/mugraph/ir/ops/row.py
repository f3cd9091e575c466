"""A row of the operator table, and what its rules are given: the call of an operator, with the shapes that it sees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mugraph.errors import ShapeMismatch, UnsupportedOperator
from mugraph.ir.arithmetic import Abstraction, Arithmetic, Array
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import LOOKUP, AttributeValue, Graph, Level, Shape, Tensor
from mugraph.ir.index_maps import IndexMaps, MapRule, Structure


class Kind(StrEnum):
    """What an operator is to the verifier (paper, Definition 5.1) and to the thread-graph rules."""

    DATA = "data"
    MULTILINEAR = "multilinear"
    DIVISION = "division"
    EXPONENTIATION = "exponentiation"
    SQUARE_ROOT = "square root"
    OPAQUE = "opaque"
    DEFINED = "defined"
    """What the operators are that it is made of: proofs read these in its place."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What surrounds a node: the grid and the for-loop of its block graph."""

    grid: tuple[int, ...] = ()
    loop: int = 1


@dataclass(frozen=True, slots=True)
class Call:
    """One application of an operator: the shapes it sees, its attributes, and its surroundings."""

    op: str
    shapes: tuple[Shape, ...]
    attributes: Mapping[str, AttributeValue]
    scope: Scope = Scope()

    def integer(self, name: str) -> int:
        """The integer attribute called `name`."""
        value = self.attributes.get(name)
        if not isinstance(value, int):
            raise ShapeMismatch(f"{self.op}: attribute {name!r} must be an integer, not {value!r}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """The attribute called `name`, a tuple of integers."""
        value = self.attributes.get(name)
        if not isinstance(value, tuple) or not all(isinstance(item, int) for item in value):
            raise ShapeMismatch(f"{self.op}: attribute {name!r} must be a tuple of integers, not {value!r}")
        return tuple(item for item in value if item is not None)

    def dim(self, name: str = "dim") -> int:
        """The attribute called `name`, a dimension of the first operand."""
        dim = self.integer(name)
        if not 0 <= dim < len(self.shapes[0]):
            raise ShapeMismatch(f"{self.op}: dimension {dim} of an operand of shape {list(self.shapes[0])}")
        return dim

    def fail(self, why: str) -> ShapeMismatch:
        """A ShapeMismatch that names the operator and its operands' shapes."""
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        return ShapeMismatch(f"{self.op}({shapes}): {why}")


ShapeRule = Callable[[Call], Shape]
ComputeRule = Callable[[Arithmetic[Any], Call, Sequence[Any]], Any]
AbstractRule = Callable[[Abstraction[Any], Call, Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of the table.

    `structure` and `maps` say at which points it computes, and what it reads and writes at each (`mugraph.ir.index_maps`); leaves
    and boundaries have no maps, and a contraction lists in `products` the pairs of operands whose products it adds up.
    `shape`, `compute` and `express` are the operator's shape rule, meaning and abstract expression, `cost` its floating-point
    operations at each point; `arity` is the number of its operands, the least one if it is `variadic`. Elementwise operators have
    `scalar`, a C-family expression over {0}, {1} (functions in it are named as in C's math library or supplied by each target's
    prelude), and opaque ones a NumPy `reference`. `attributes` names what a node must carry, `optional` what it may carry too. An
    operator that others define has a `definition`: for a call, the program that it stands for (`mugraph.ir.definitions`).
    """

    name: str
    paper: str | None
    arity: int
    kind: Kind
    structure: Structure
    levels: frozenset[Level]
    shape: ShapeRule
    compute: ComputeRule
    express: AbstractRule
    maps: Callable[[Call], MapRule] | None = None
    cost: int = 0
    products: tuple[tuple[int, int], ...] = ()
    attributes: tuple[str, ...] = ()
    scalar: str | None = None
    reference: Callable[..., Array] | None = None
    commutative: bool = False
    optional: tuple[str, ...] = ()
    variadic: bool = False
    definition: Callable[[Call], Graph] | None = None
    indices: tuple[int, ...] = ()
    """Operands that are integers, and of which nothing but places is made."""
    whole: bool = False
    """Whether it takes whole numbers of 8 bits, and gives such numbers."""
    picks: tuple[int, ...] = ()
    """Operands of which each element of the result is one, up to its sign, or 0: it has no more digits than they have."""

    @property
    def elementwise(self) -> bool:
        """Whether each output element depends on one element of each operand (so it may join a thread graph)."""
        return self.scalar is not None

    def index_maps(self, call: Call, out: Shape) -> IndexMaps | None:
        """The points at which a call with a result of shape `out` computes; None for leaves and boundaries."""
        return None if self.maps is None else self.maps(call)(call.shapes, out)

    def infer(self, call: Call, inputs: Sequence[Tensor], level: Level) -> Tensor:
        """The output tensor; raises ShapeMismatch when the operands break the operator's specification."""
        if len(inputs) != self.arity and not (self.variadic and len(inputs) > self.arity):
            raise ShapeMismatch(f"{self.name} takes {self.arity} operands{' or more' * self.variadic}, not {len(inputs)}")
        for name in self.attributes:
            if name not in call.attributes:
                raise ShapeMismatch(f"{self.name}: attribute {name!r} is missing")
        for number, tensor in enumerate(inputs):
            if tensor.dtype.is_index != (number in self.indices):
                raise UnsupportedOperator(self._mistyped(number, tensor))
            if self.whole and not tensor.dtype.is_whole:
                raise UnsupportedOperator(f"{self.name}({tensor}): bits are taken of int8 and uint8 alone; pass whole numbers")
        dtype = call.attributes.get("dtype")
        if isinstance(dtype, DType) and dtype.is_stored and self.name != "input":
            read = ", ".join(map(str, inputs))
            raise UnsupportedOperator(
                f"{self.name}({read}) to {dtype}: only inputs are {dtype}; convert before, and pass the result"
            )
        if not isinstance(dtype, DType):
            if "dtype" in self.attributes:
                raise ShapeMismatch(f"{self.name}: attribute 'dtype' must be a dtype, not {dtype!r}")
            numbers = [tensor for number, tensor in enumerate(inputs) if number not in self.indices]
            dtypes = [tensor.dtype for tensor in numbers if tensor.shape] or [tensor.dtype for tensor in numbers]
            counting = [dtype for dtype in dtypes if dtype.is_floating] or dtypes
            dtype = self._stored(call, functools.reduce(DType.promote, counting))
        return Tensor(self.shape(call), dtype, level)

    def _mistyped(self, number: int, tensor: Tensor) -> str:
        """Why an operand with integers, or without, cannot be its operand of that number."""
        what = f"{self.name}: operand {number} of shape {list(tensor.shape)} is {tensor.dtype}"
        if number in self.indices:
            return f"{what}; places are named by integers, of int64 or int32"
        return f"{what}; of integers only {LOOKUP} can read places; convert numbers to a floating-point type before"

    def _stored(self, call: Call, dtype: DType) -> DType:
        """What is computed of booleans is no boolean, nor of a type that is only stored; what only moves them is."""
        moves = self.kind is Kind.DATA or call.attributes.get("combine") == "concat"
        return dtype if moves or self.whole else dtype.of_arithmetic
