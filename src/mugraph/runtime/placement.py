"""Where the tensors of a muGraph lie once it is lowered: the layout of each, and the offsets of its buffers, at each level.

Layouts and offsets are no part of the muGraph, which is what was searched for and proved: they are chosen for one target, may be
padded or swizzled, and some belong to buffers that hold none of its tensors. They follow from the muGraph and what the target's
machine says of itself, as sources do; so a saved result records them beside it, and they can be compared again.

At kernel level a tensor is the caller's, has memory of its own, lies in the workspace (`mugraph.lower.workspace`), or is what the
array library makes of it. At block level it is a window of device memory, or lies in a shared buffer or in the registers of
matrix units; what is not stored is computed where it is read. A thread holds one element of each tensor of a thread graph at
a time, in a register, so there is nothing to lay out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mugraph.ir.graph import VIEWS, Graph, Value
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.ir.serialize import graph_to_json
from mugraph.ir.text import Path, format_graph
from mugraph.lower import concatenations, kernel_windows, needed_nodes, tiles
from mugraph.lower.lower import DimensionOrder
from mugraph.lower.places import Index
from mugraph.lower.tile_form import Buffer, Kernel, Matmul, Memory, Strips, Tile
from mugraph.lower.workspace import Workspace, plan_workspace
from mugraph.targets.machine import Launched

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the tensors of `graph` lie as `launches` were lowered, by node, with the workspace that they share."""

    graph: Graph
    launches: Mapping[int, Launched]
    workspace: Workspace

    def to_json(self) -> Json:
        """All of it as JSON values; offsets and sizes in bytes, strides and starts in elements."""
        return {
            "workspace": {"bytes": self.workspace.bytes, "bound": self.workspace.bound},
            "tensors": [{"value": list(value), **device_place.to_json()} for value, device_place in self.device_places().items()],
            "kernels": [_kernel_json(self.graph, index, launch) for index, launch in self.launches.items()],
        }

    def __str__(self) -> str:
        """The muGraph with a comment for each tensor, and below it the bodies that were rewritten before they were lowered."""
        comments: dict[Path, str] = {}
        for value, place in self.device_places().items():
            comments[value.node,] = f"{comments[value.node,]}; {place}" if (value.node,) in comments else str(place)
        below: list[str] = []
        for index, launch in self.launches.items():
            kernel, inside = launch.kernel, _block_comments(launch)
            if isinstance(kernel, Kernel) and (index,) in comments:
                comments[index,] += f"; a block has {kernel.shared_bytes} bytes of shared memory"
            if launch.body == self.graph.nodes[index].body:
                comments |= {(index, number): comment for number, comment in inside.items()}
            else:
                text = format_graph(launch.body, {(number,): comment for number, comment in inside.items()})
                below.append(f"// {kernel.name} as it was rewritten before it was lowered\n{text}")
        return "\n".join([format_graph(self.graph, comments), *below])

    def device_places(self) -> dict[Value, DevicePlace]:
        """Where each tensor of the kernel graph lies that has memory, or is a view of one that has."""
        windows, needed, joined = kernel_windows(self.graph), {*needed_nodes(self.graph)}, concatenations(self.graph)
        orders = {value: order for launch in self.launches.values() for value, order in launch.orders.items()}
        packed = {value: (*self._packings(value),) for launch in self.launches.values() for value in launch.packings}
        found: dict[Value, DevicePlace] = {}
        for index, node in enumerate(self.graph.nodes):
            for number, tensor in enumerate(node.outputs):
                value = Value(index, number)
                shape = tensor.shape
                order = orders.get(value, DimensionOrder(shape, range(len(shape))))
                if node.is_input:
                    found[value] = DevicePlace("input", order, packed=packed.get(value, ()))
                elif windows[value][0] != value:
                    found[value] = DevicePlace("part" if node.op == GRAPH_DEFINED else "view", None)
                elif (node.op == GRAPH_DEFINED and index in needed) or index in joined:
                    offset = self.workspace.offsets.get(value)
                    found[value] = DevicePlace("own" if offset is None else "workspace", order, offset)
                elif index in needed:
                    found[value] = DevicePlace("library", None)
        return found

    def _packings(self, value: Value) -> Iterator[tuple[str, Strips]]:
        """The kernels that read an input packed, and how."""
        for launch in self.launches.values():
            if value in launch.packings:
                yield str(launch.kernel.name), launch.packings[value].strips


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """Where a tensor between kernels lies: `memory` is a key of `_DEVICE`; `offset` is its first byte in the workspace.

    `packed` are the kernels that do not read it there, but packed in strips.
    """

    memory: str
    order: DimensionOrder | None
    offset: int | None = None
    packed: tuple[tuple[str, Strips], ...] = ()

    def to_json(self) -> Json:
        """The place as JSON values."""
        found: Json = {"memory": self.memory}
        if self.offset is not None:
            found["offset"] = self.offset
        if self.order is not None:
            found |= {"shape": list(self.order.extents), "strides": list(_strides(self.order))}
        if self.packed:
            found["packed"] = {kernel: asdict(strips) for kernel, strips in self.packed}
        return found

    def __str__(self) -> str:
        words = _DEVICE[self.memory] + ("" if self.offset is None else f" from byte {self.offset}")
        if self.order is None:
            return words
        shape = "" if self.order.is_row_major else f" as [{', '.join(map(str, self.order.extents))}]"
        packed = "".join(f"; {_strips_text(strips)} for {kernel}" for kernel, strips in self.packed)
        return f"{words}{shape}, {_strides_text(_strides(self.order))}{packed}"


def _strips_text(strips: Strips) -> str:
    rows = {1: "", 2: " of pairs of rows", 4: " of fours of rows"}[strips.together]
    return f"packed in panels of {strips.depth} rows and strips{rows} of {strips.width} columns"


_DEVICE = {
    "input": "the caller's",
    "own": "memory of its own",
    "workspace": "workspace",
    "library": "made by the array library",
    "view": "a view, read by strides",
    "part": "a part of a concatenation, written in place",
}


def placement_of(graph: Graph, launches: Mapping[int, Launched]) -> Placement:
    """Where the tensors of a kernel graph lie, whose launches a machine made."""
    return Placement(graph, launches, plan_workspace(graph))


def _strides(order: DimensionOrder) -> tuple[int, ...]:
    """The stride of each of the extents, in elements."""
    lying = tiles.row_major(tuple(order.extents[dim] for dim in order.order))
    return tuple(lying[list(order.order).index(dim)] for dim in range(len(order.extents)))


# --- block level -------------------------------------------------------------------------------------------------------


def _kernel_json(graph: Graph, index: int, launch: Launched) -> Json:
    """A kernel's buffers and where its block graph's tensors lie; Triton's compiler decides both for its kernels."""
    kernel = launch.kernel
    found: Json = {"node": index, "name": kernel.name}
    if launch.body != graph.nodes[index].body:
        found["body"] = graph_to_json(launch.body)
    if isinstance(kernel, Kernel):
        found["shared_bytes"] = kernel.shared_bytes
        found["buffers"] = [_buffer_json(buffer) for buffer in kernel.buffers]
        found["tensors"] = [{"value": list(value), **_tile_json(tile)} for value, tile in _block_places(kernel)]
    return found


def _buffer_json(buffer: Buffer) -> Json:
    place = {"offset": buffer.offset} if buffer.memory is Memory.SHARED else {}
    return {"name": buffer.name, "memory": str(buffer.memory), "dtype": str(buffer.dtype), "bytes": buffer.bytes, **place}


def _tile_json(tile: Tile) -> Json:
    start = {"constant": tile.start.constant, "grid": list(tile.start.grid), "loop": tile.start.loop}
    found: Json = {"buffer": tile.buffer, "shape": list(tile.shape), "strides": list(tile.strides), "start": start}
    if tile.swizzle is not None:
        found["swizzle"] = {"bits": tile.swizzle.bits, "base": tile.swizzle.base, "shift": tile.swizzle.shift}
    return found


def _block_places(kernel: Kernel) -> Iterator[tuple[Value, Tile]]:
    """The places of the tensors of a block graph, and behind each factor's those of its panels, which pass through the ring."""
    panels: dict[Tile, Tile] = {}
    for statement in kernel.statements:
        if isinstance(statement, Matmul) and statement.panels is not None:
            for factor, panel in ((statement.left, statement.panels.left), (statement.right, statement.panels.right)):
                if panel is not None:
                    panels[factor] = panel
    for value, tile in kernel.tensors:
        yield value, tile
        if tile in panels:
            yield value, panels[tile]


def _block_comments(launch: Launched) -> dict[int, str]:
    """What to say of each node of a block graph that makes a tensor, by its number."""
    kernel = launch.kernel
    if not isinstance(kernel, Kernel):
        return {}
    places: dict[int, list[str]] = {}
    for value, tile in _block_places(kernel):
        places.setdefault(value.node, []).append(_tile_text(kernel, tile))
    found: dict[int, str] = {}
    for number, node in enumerate(launch.body.nodes):
        if not (node.is_constant or node.is_saver):
            unstored = "a view" if node.op in VIEWS else "computed where it is read"
            found[number] = ", then ".join(places.get(number, [unstored]))
    return found


def _tile_text(kernel: Kernel, tile: Tile) -> str:
    buffer = kernel.buffer(tile.buffer)
    if buffer.memory.in_registers:
        return f"{buffer.dtype} in registers"
    strides = _strides_text(tile.strides)
    if buffer.memory is Memory.DEVICE:
        return f"device memory, {strides}"
    if kernel.ring is not None and tile.buffer == kernel.ring.buffer:
        where = f"{kernel.ring.stages} slots from byte {buffer.offset}"
    else:
        where = f"{buffer.dtype} from byte {buffer.offset}"
    first = "" if tile.start == Index() else f" and element {tile.start.constant}"
    swizzled = "" if tile.swizzle is None else f", swizzled by {tile.swizzle.bits} bits"
    return f"shared memory, {where}{first}, {strides}{swizzled}"


def _strides_text(strides: tuple[int, ...]) -> str:
    return f"strides ({', '.join(map(str, strides))})"
