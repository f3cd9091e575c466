"""A kernel graph that runs: its graph-defined kernels compiled for a target, the rest through the array library."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugraph.errors import InvalidInput, StorageError, TargetUnavailable
from mugraph.ir.graph import Graph, Node, Tensor, Value
from mugraph.ir.ops import GRAPH_DEFINED, apply_call
from mugraph.lower import Launch
from mugraph.runtime.arrays import Arrays
from mugraph.runtime.cpu import Cpu
from mugraph.runtime.machine import Machine

Slots = dict[Value, Any]
Step = Callable[[Arrays, Slots], None]


def build(graph: Graph, target: str = "cpu", cache_directory: Path | None = None) -> Executable:
    """Compile a kernel graph for a target: `cpu`, or `cuda:sm_90` and its like, which can be compiled for without a GPU.

    Raises TargetUnavailable for a target that cannot be compiled for here, InvalidGraph and UnsupportedOperator for
    graphs the target cannot run. Objects are cached in `cache_directory` (by default the user's, see
    `mugraph.store.cache_directory`).
    """
    return Executable(graph, machine_for(target), cache_directory=cache_directory)


def machine_for(target: str) -> Machine:
    """The machine of a target's name; raises TargetUnavailable where there is none."""
    if target == "cpu":
        return Cpu()
    if target.startswith("cuda:"):
        from mugraph.runtime.cuda.machine import Cuda  # NVRTC is only loaded for those who ask for it

        return Cuda.of(target)
    raise TargetUnavailable(f"target {target!r} has no code generator; use 'cpu' or 'cuda:sm_90'")


def digest(sources: Mapping[str, str]) -> str:
    """A SHA-256 of named sources, to notice when saved ones were changed."""
    parts = (part for name in sorted(sources) for part in (name, sources[name]))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Executable:
    """Call it with one array per input of the graph, in order; it returns the list of outputs.

    All inputs are torch tensors on the target's device, or on a CPU all NumPy arrays, of exactly the graph's shapes and
    dtypes; contiguous ones are read in place. Safe to call from several threads. `graph` is the muGraph, `sources` the
    generated text by file name, `machine` the target.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        sources: Mapping[str, str] | None = None,
        cache_directory: Path | None = None,
    ) -> None:
        """`sources` are compiled where given, else printed; raises what `build` raises."""
        self.graph, self.machine = graph, machine
        launches = machine.lower(graph)
        kernels = [launch.kernel for launch in launches.values()]
        self.sources = machine.print(kernels) if sources is None else dict(sources)
        self._functions = machine.load(kernels, self.sources, cache_directory)
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
        machine = machine_for(target)
        if digest(sources) != expected_digest:
            raise StorageError("the saved sources were changed since they were written; optimize again")
        return cls(graph, machine, sources, cache_directory)

    @property
    def digest(self) -> str:
        """The digest of `sources`, for `from_sources`."""
        return digest(self.sources)

    def __call__(self, *arrays: Any) -> list[Any]:
        if len(arrays) != len(self._inputs):
            names = ", ".join(name for _, name, _ in self._inputs)
            raise InvalidInput(f"expected {len(self._inputs)} inputs ({names}), got {len(arrays)}")
        library = self.machine.arrays(arrays)
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
        outputs = tuple((value, self.graph.tensor(value)) for value in launch.outputs)
        return _KernelStep(self._functions[launch.kernel.name], launch.inputs, outputs)


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
