"""Kernels as Triton is given them: the tile form before anything is decided of threads and memory, on device tensors by name.

Triton places tiles in registers and shared memory, shares their elements out among threads and sets barriers by itself. So the
passes that do this for other GPUs are left out.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mugraph.errors import UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Tensor, Value
from mugraph.ir.liveness import peak_bytes
from mugraph.lower.first_slices import Slices, any_product, with_first_slices
from mugraph.lower.lower import DimensionOrder, Launch, grouped, launches, require_no_lookups
from mugraph.lower.packing import Packing
from mugraph.lower.pipeline import tile_stages
from mugraph.lower.thread_graphs import CHAINS
from mugraph.lower.tile_form import Kernel, Tile
from mugraph.targets.launch import SlicedLaunch
from mugraph.targets.machine import LOWERED
from mugraph.targets.triton.units import NVIDIA, Units

_WARPS = (4, 8, 16)
_TILE_REGISTERS = 80
"""Registers of a thread that may hold elements of tiles; the others hold addresses and partial results."""
_LARGEST_OFFSET = 2**31 - 1
_WORDS = {
    "tl",
    "torch",
    "triton",
    "workspace",
    "blocks",
    "held",
    "stages",
    "tuned",
    "part",
    "largest",
    "raised",
    "old_factor",
    "new_factor",
}
"""Modules, and variables of the text that are numbered as tiles are."""
_NUMBERED = re.compile(r"[gimt]\d.*|kernel_\d+", re.ASCII)
"""Coordinates, ranges, masks, results and kernels."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A device tensor that a kernel is called with, a value of the kernel graph, under the name it has in the text."""

    name: str
    tensor: Tensor
    value: Value
    is_number: bool = False
    """Whether the kernel takes its one number, and no pointer to it."""

    @property
    def argument(self) -> str:
        """The name of the kernel's argument: a pointer, or the number."""
        return self.name if self.is_number else f"{self.name}_ptr"


@dataclass(frozen=True, slots=True)
class TileKernel:
    """Node `index` of the kernel graph `program`: its tile form, whose inputs and outputs are `inputs` and `outputs`, in order.

    A block has as many `warps` as can hold its tiles in registers. The text is for a GPU with `units`.
    """

    program: Graph
    index: int
    form: Kernel
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    warps: int
    units: Units = NVIDIA
    tuned: bool = False
    """Whether the text times a few configurations at the first launch, instead of having one."""
    fuses: bool = False
    """Whether Triton may put products into one instruction with the sums that read them, without rounding them: benchmarks alone
    let it, since what is equal must stay equal (`as_written`)."""

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.form.name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What it is called with, inputs first."""
        return (*self.inputs, *self.outputs)

    @property
    def blocks(self) -> int:
        """Blocks of its grid, which are numbered along one dimension, the last of the grid's first."""
        return math.prod(self.form.grid)

    @property
    def sliced(self) -> SlicedLaunch | None:
        """What of a launch the number of slices decides; None of a kernel that computes all of its own."""
        return SlicedLaunch.of(self.form)


@dataclass(frozen=True, slots=True)
class TileLaunch:
    """A kernel and the kernel graph's values that are its operands: roots, after views are turned into strides.

    `body` is the block graph that was lowered, `results` where its outputs lie in `outputs`.
    """

    kernel: TileKernel
    body: Graph
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    results: tuple[tuple[int, Tile], ...]

    @property
    def packings(self) -> Mapping[Value, Packing]:
        """None: tensors are read where they lie."""
        return {}

    @property
    def orders(self) -> Mapping[Value, DimensionOrder]:
        """None: every operand is row-major."""
        return {}


def tile_launches(graph: Graph, units: Units = NVIDIA, slices: Slices | None = None) -> dict[int, TileLaunch]:
    """The launch of every graph-defined node of a kernel graph, by node: kernels in the tile form after all of `TILE_PASSES`, for
    a GPU with `units`. Where there are `slices`, they compute the first of these, as many as a call says.

    Elementwise chains are fused into thread graphs. Reductions stand beside them: Triton's compiler decides by itself what it
    keeps in registers on the way to one.

    Raises UnsupportedOperator for fp64 tensors and for those whose elements 32 bits cannot count, for lookups, and where slices
    are not computed one by one.
    """
    graph = grouped(graph, CHAINS)
    names, lowered = value_names(graph), launches(graph)
    require_no_lookups(lowered)
    if slices is not None:
        lowered = with_first_slices(graph, lowered, slices, any_product)
    return {index: _tile_launch(graph, names, index, launch, units) for index, launch in lowered.items()}


def explained(graph: Graph) -> Iterator[tuple[str, str, Kernel]]:
    """Each kernel as it is lowered and after each of `TILE_PASSES`: (name of the kernel, name of the pass, tile form)."""
    for launch in launches(grouped(graph, CHAINS)).values():
        for name, form in (LOWERED, launch.kernel), *tile_stages(launch.kernel):
            yield form.name, name, form


def _tile_launch(graph: Graph, names: Mapping[Value, str], index: int, launch: Launch, units: Units) -> TileLaunch:
    count = None if launch.kernel.slices is None else launch.kernel.inputs.index(launch.kernel.slices.count)
    inputs, outputs = (
        tuple(
            Parameter(names[value], graph.tensor(value), value, group is launch.inputs and number == count)
            for number, value in enumerate(group)
        )
        for group in (launch.inputs, launch.outputs)
    )
    for parameter in (*inputs, *outputs):
        _require_supported(parameter)
    *_, (_, form) = tile_stages(launch.kernel)
    kernel = TileKernel(graph, index, form, inputs, outputs, _warps(launch.body, units.lanes), units)
    return TileLaunch(kernel, launch.body, launch.inputs, launch.outputs, launch.results)


def _warps(body: Graph, lanes: int) -> int:
    """Warps of a block: as few as can hold the tiles of its block graph in registers."""
    elements = peak_bytes(body) / DType.FP32.bytes
    return next((warps for warps in _WARPS if elements <= warps * lanes * _TILE_REGISTERS), _WARPS[-1])


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
