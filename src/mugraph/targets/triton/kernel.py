"""Kernels as Triton sees them: a block graph whose tensors are whole tiles, on windows of device tensors.

Triton places tiles in registers and shared memory, shares their elements out among threads and sets barriers by itself. So
kernels are printed from block graphs, and not from the lowered form, where these things are decided.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mugraph.errors import InvalidGraph, UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Level, Tensor, Value
from mugraph.ir.liveness import peak_bytes
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.lower import construct, kernel_windows, require_fp32
from mugraph.lower.flattening import flattened
from mugraph.lower.lower import DimensionOrder
from mugraph.lower.thread_graphs import CHAINS
from mugraph.lower.tile_form import Tile

_WARPS = (4, 8, 16)
_TILE_REGISTERS = 80
"""Registers of a thread that may hold elements of tiles; the others hold addresses and partial results."""
_LARGEST_OFFSET = 2**31 - 1
_WORDS = {"tl", "torch", "triton", "workspace", "part", "largest", "raised", "old_factor", "new_factor"}
"""Modules, and variables of the text that are numbered as tiles are."""
_NUMBERED = re.compile(r"[gimt]\d.*|kernel_\d+", re.ASCII)
"""Coordinates, ranges, masks, results and kernels."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A device tensor that a kernel is called with, under the name it has in the text."""

    name: str
    tensor: Tensor

    @property
    def pointer(self) -> str:
        """The name of the kernel's argument."""
        return f"{self.name}_ptr"


@dataclass(frozen=True, slots=True)
class TileKernel:
    """Node `index` of the kernel graph `program`, its `body` on `operands`: windows of the tensors of `inputs`, by name."""

    program: Graph
    index: int
    body: Graph
    operands: tuple[Tile, ...]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        """The name of its function."""
        return f"kernel_{self.index}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What it is called with, inputs first."""
        return (*self.inputs, *self.outputs)

    @property
    def blocks(self) -> int:
        """Blocks of its grid, which are numbered along one dimension, the last of the grid's first."""
        return math.prod(self.body.grid)

    @property
    def warps(self) -> int:
        """Warps of a block: as few as can hold its tiles in registers."""
        held = peak_bytes(self.body) / DType.FP32.bytes
        return next((warps for warps in _WARPS if held <= warps * 32 * _TILE_REGISTERS), _WARPS[-1])


@dataclass(frozen=True, slots=True)
class TileLaunch:
    """A kernel and the kernel graph's values that are its operands: roots, after views are turned into strides."""

    kernel: TileKernel
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def body(self) -> Graph:
        """The block graph that was printed."""
        return self.kernel.body

    @property
    def orders(self) -> Mapping[Value, DimensionOrder]:
        """None: every operand is row-major."""
        return {}


def tile_launches(graph: Graph) -> dict[int, TileLaunch]:
    """The launch of every graph-defined node of a kernel graph, by node, elementwise chains fused into thread graphs.

    Reductions stand beside them: Triton's compiler decides by itself what it keeps in registers on the way to one.

    Raises UnsupportedOperator for fp64 tensors and for those whose elements 32 bits cannot count.
    """
    if graph.level is not Level.KERNEL:
        raise InvalidGraph(f"lowering starts at a kernel graph, not a {graph.level} graph")
    graph = construct(flattened(graph), CHAINS)
    names, windows = value_names(graph), kernel_windows(graph)
    launches: dict[int, TileLaunch] = {}
    for index, node in enumerate(graph.nodes):
        if node.op != GRAPH_DEFINED or node.body is None:
            continue
        require_fp32(f"kernel_{index}", node.body)
        roots = tuple(dict.fromkeys(windows[value][0] for value in node.inputs))
        results = tuple(Value(index, number) for number in range(len(node.outputs)))
        inputs, outputs = (tuple(Parameter(names[value], graph.tensor(value)) for value in group) for group in (roots, results))
        for parameter in (*inputs, *outputs):
            _require_supported(parameter)
        operands = tuple(replace(tile, buffer=names[root]) for root, tile in (windows[value] for value in node.inputs))
        launches[index] = TileLaunch(TileKernel(graph, index, node.body, operands, inputs, outputs), roots, results)
    return launches


def value_names(graph: Graph) -> Mapping[Value, str]:
    """A Python name for each value of a kernel graph: inputs keep theirs, others are numbered by their node."""
    names: dict[Value, str] = {}
    for index, node in enumerate(graph.nodes):
        if node.is_input:
            names[Value(index)] = _identifier(str(node["name"]), set(names.values()))
        else:
            suffixes = [""] if len(node.outputs) == 1 else [f"_{number}" for number in range(len(node.outputs))]
            names.update({Value(index, number): f"t{index}{suffix}" for number, suffix in enumerate(suffixes)})
    return names


def _identifier(name: str, taken: set[str]) -> str:
    """A name that Python takes for a variable, and that is no other value's and no word of the text."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not word[:1].isalpha() or keyword.iskeyword(word) or word in _WORDS or _NUMBERED.fullmatch(word):
        word = f"input_{word}"
    while word in taken:
        word += "_"
    return word


def _require_supported(parameter: Parameter) -> None:
    tensor = parameter.tensor
    if tensor.elements > _LARGEST_OFFSET:
        raise UnsupportedOperator(
            f"target triton counts elements with 32 bits and cannot take {parameter.name} of shape {list(tensor.shape)}; split it"
        )
