"""A kernel graph that runs: its graph-defined kernels compiled into one shared object, the rest through the array library."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugraph.errors import InvalidInput, StorageError, TargetUnavailable
from mugraph.ir.graph import Graph, Node, Tensor, Value
from mugraph.ir.ops import GRAPH_DEFINED, apply_call
from mugraph.lower import Launch, lower
from mugraph.runtime.arrays import Arrays, arrays_of
from mugraph.runtime.compiler import compile_shared, find_compiler
from mugraph.runtime.threads import load_thread_pool
from mugraph.targets.cpu import print_program

SOURCE_NAME = "kernels.c"

Slots = dict[Value, Any]
Step = Callable[[Arrays, Slots], None]


def build(graph: Graph, target: str = "cpu", cache_directory: Path | None = None) -> Executable:
    """Compile a kernel graph for a target of this machine.

    Raises TargetUnavailable for a target other than cpu or without a C compiler, InvalidGraph and
    UnsupportedOperator for graphs the target cannot run. Objects are cached in `cache_directory`
    (by default the user's, see `mugraph.store.cache_directory`).
    """
    _require_cpu(target)
    launches = lower(graph)
    source = print_program([launch.kernel for launch in launches.values()], find_compiler().vectors)
    return Executable(graph, launches, {SOURCE_NAME: source} if launches else {}, cache_directory)


def digest(sources: Mapping[str, str]) -> str:
    """A SHA-256 of named sources, to notice when saved ones were changed."""
    parts = (part for name in sorted(sources) for part in (name, sources[name]))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _require_cpu(target: str) -> None:
    if target != "cpu":
        raise TargetUnavailable(f"target {target!r} cannot run on this machine; use 'cpu'")


class Executable:
    """Call it with one array per input of the graph, in order; it returns the list of outputs.

    All inputs are torch CPU tensors or all are NumPy arrays, of exactly the graph's shapes and dtypes; contiguous ones
    are read in place. Safe to call from several threads. `graph` is the muGraph, `sources` the generated
    text by file name.
    """

    def __init__(
        self, graph: Graph, launches: Mapping[int, Launch], sources: Mapping[str, str], cache_directory: Path | None = None
    ) -> None:
        self.graph = graph
        self.sources = dict(sources)
        self._library = _load(sources[SOURCE_NAME], cache_directory) if launches else None
        self._inputs = [
            (Value(index), str(node["name"]), node.output) for index, node in enumerate(graph.nodes) if node.op == "input"
        ]
        self._steps = self._plan(launches)

    @classmethod
    def from_sources(
        cls,
        graph: Graph,
        sources: Mapping[str, str],
        expected_digest: str,
        target: str = "cpu",
        cache_directory: Path | None = None,
    ) -> Executable:
        """An executable from saved sources; raises StorageError when they are not those `expected_digest` was made of."""
        _require_cpu(target)
        if digest(sources) != expected_digest:
            raise StorageError("the saved sources were changed since they were written; optimize again")
        return cls(graph, lower(graph), sources, cache_directory)

    @property
    def digest(self) -> str:
        """The digest of `sources`, for `from_sources`."""
        return digest(self.sources)

    def __call__(self, *arrays: Any) -> list[Any]:
        if len(arrays) != len(self._inputs):
            names = ", ".join(name for _, name, _ in self._inputs)
            raise InvalidInput(f"expected {len(self._inputs)} inputs ({names}), got {len(arrays)}")
        library = arrays_of(arrays)
        slots: Slots = {
            value: library.checked(array, name, tensor) for (value, name, tensor), array in zip(self._inputs, arrays, strict=True)
        }
        for step in self._steps:
            step(library, slots)
        return [slots[value] for value in self.graph.outputs]

    def _plan(self, launches: Mapping[int, Launch]) -> list[Step]:
        """The steps whose results are needed, in order; views that only kernels read are strides inside them."""
        needed = set(self.graph.outputs)
        steps: list[Step] = []
        for index in reversed(range(len(self.graph.nodes))):
            node = self.graph.nodes[index]
            if node.op == "input" or not any(Value(index, number) in needed for number in range(len(node.outputs))):
                continue
            step = self._launch(launches[index]) if node.op == GRAPH_DEFINED else _library_step(self.graph, index, node)
            needed.update(launches[index].inputs if node.op == GRAPH_DEFINED else node.inputs)
            steps.append(step)
        return steps[::-1]

    def _launch(self, launch: Launch) -> Step:
        function = getattr(self._library, launch.kernel.name)
        function.restype = None
        function.argtypes = [ctypes.c_void_p] * (len(launch.inputs) + len(launch.outputs))
        return _KernelStep(function, launch.inputs, tuple((value, self.graph.tensor(value)) for value in launch.outputs))


def _load(source: str, cache_directory: Path | None) -> ctypes.CDLL:
    load_thread_pool()
    return ctypes.CDLL(str(compile_shared(source, cache_directory)))


@dataclass(frozen=True, slots=True)
class _KernelStep:
    """Allocate the outputs of one compiled kernel and run it."""

    function: Callable[..., None]
    inputs: tuple[Value, ...]
    outputs: tuple[tuple[Value, Tensor], ...]

    def __call__(self, library: Arrays, slots: Slots) -> None:
        for value, tensor in self.outputs:
            slots[value] = library.empty(tensor)
        arrays = [slots[value] for value in self.inputs] + [slots[value] for value, _ in self.outputs]
        self.function(*map(library.pointer, arrays))


@dataclass(frozen=True, slots=True)
class _LibraryStep:
    """A pre-defined kernel that the array library computes."""

    value: Value
    compute: Callable[[Arrays, Slots], Any]

    def __call__(self, library: Arrays, slots: Slots) -> None:
        slots[self.value] = self.compute(library, slots)


def _library_step(graph: Graph, index: int, node: Node) -> Step:
    """Views and matmul by the library's own functions, everything else by its row of the operator table."""
    value, operands = Value(index), node.inputs
    match node.op:
        case "reshape":
            return _LibraryStep(value, lambda lib, slots: lib.contiguous(lib.reshape(slots[operands[0]], node.output.shape)))
        case "transpose":
            order = [dim for dim in _tuple(node, "permutation") if dim is not None]
            return _LibraryStep(value, lambda lib, slots: lib.contiguous(lib.transpose(slots[operands[0]], order)))
        case "matmul" if len({graph.tensor(operand).dtype for operand in (*operands, value)}) == 1:
            return _LibraryStep(value, lambda lib, slots: lib.matmul(slots[operands[0]], slots[operands[1]]))
    call = apply_call(node.op, [graph.tensor(operand) for operand in operands], dict(node.attributes))
    return _LibraryStep(value, lambda lib, slots: lib.compute(call, [slots[v] for v in operands], node.output))


def _tuple(node: Node, name: str) -> tuple[int | None, ...]:
    value = node[name]
    assert isinstance(value, tuple)
    return value
