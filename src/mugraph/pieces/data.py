"""A function that is no program as a whole: its programs run as kernels, PyTorch makes the calls between them."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx

from mugraph.devices.targets import target_row
from mugraph.errors import InvalidInput, SeveralPrograms, SharedMemory
from mugraph.frontend.operators.torch_casts import name_of
from mugraph.frontend.partitioning.partition import Partition, Piece
from mugraph.frontend.partitioning.splice import laid_out
from mugraph.frontend.recording.recorded_graph import RecordedGraph
from mugraph.frontend.rewriting.graph_passes import on_device
from mugraph.frontend.source_lines import line_of_node
from mugraph.pieces.plan import Plan
from mugraph.results.cuda_graphs import Graphed
from mugraph.results.data import Candidates, Report, calling_directly
from mugraph.results.superoptimized import Superoptimized
from mugraph.verifier import Certificate

_OF_ONE_PROGRAM = frozenset({"program", "graph", "best", "certificate", "executable"})


@dataclass(frozen=True, slots=True)
class ProgramPiece:
    """A program in a function: the operators of PyTorch that it stands for, their lines of Python, and its result.

    Equal programs share a result.
    """

    operators: tuple[str, ...]
    lines: tuple[str, ...]
    result: Superoptimized

    @classmethod
    def of(cls, piece: Piece, result: Superoptimized) -> ProgramPiece:
        """The piece of a torch graph with its result."""
        lines = dict.fromkeys(filter(None, map(line_of_node, piece.nodes)))
        return cls(tuple(map(name_of, piece.nodes)), tuple(lines), result)


@dataclass(frozen=True, slots=True)
class CutGraph:
    """A recorded function cut into programs and calls of PyTorch: what runs for which part of the torch graph."""

    recorded: RecordedGraph
    """Its `module` is the graph that the plan is of."""
    plan: Plan

    @property
    def partition(self) -> Partition:
        """Which part is what."""
        return self.plan.partition

    @property
    def results(self) -> Mapping[Piece, Superoptimized]:
        """What was found for the programs."""
        return self.plan.results

    def spliced(self) -> fx.GraphModule:
        """The graph with calls of kernels in the place of the programs."""
        return self.plan.spliced(self.recorded.module, written=self.recorded.written)


class PartitionedResult(Superoptimized):
    """A function of which only parts are programs, with kernels for these, to be called like the function.

    `pieces` are the programs in the order in which they run, each with a result of its own (`pieces[0].result.graph`,
    `.certificate`); `report.coverage` says what PyTorch runs and why. What only results of one program have, such as `graph`,
    raises SeveralPrograms. Tensors that the function changes are changed by calls, as the function does.
    """

    is_one_program = False

    def __init__(
        self,
        cut: CutGraph,
        report: Report,
        target: str,
        origin: Mapping[str, Any] | None = None,
        own: Callable[..., Any] | None = None,
    ) -> None:
        self.cut, self.report, self.target = cut, report, target
        self.calling = cut.recorded.calling
        self.candidates = Candidates(())
        self.origin = dict(origin or {})
        self.pieces = tuple(ProgramPiece.of(piece, cut.results[piece]) for piece in cut.partition.pieces)
        self.own = own
        self.run = cut.spliced()
        """The torch graph that calls the kernels, where it was recorded."""
        self._elsewhere: dict[torch.device, fx.GraphModule] = {}
        """The same on other devices, with what it holds."""
        if own is not None:
            self.__class__ = calling_directly(type(self), own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run kernels and PyTorch's calls; raises ShapeMismatch or InvalidInput for other tensors than it was optimized for.

        Where nothing better than the user's function was found, this is a call of that function.
        """
        inputs = self.calling.flatten(args, kwargs)
        with torch.no_grad():
            outputs = self.outputs(inputs)
        return self.calling.unflatten(outputs, inputs)

    def outputs(self, inputs: list[Any]) -> tuple[torch.Tensor, ...]:
        """What the graph gives for one tensor per input, those being changed that the function changes."""
        recorded = self.cut.recorded
        self._check_memory(inputs)
        for together in self._together:
            self._check_devices(inputs, together)
        placed = [laid_out(tensor, layout) for tensor, layout in zip(inputs, recorded.layouts, strict=True)]
        outputs: tuple[torch.Tensor, ...] = self._run_on(placed).forward(*placed)  # which spares what a module does around it
        for number, output in recorded.writes.items():
            if outputs[output] is not inputs[number]:  # else it was written in place
                inputs[number].copy_(outputs[output])
        return outputs

    def _run_on(self, tensors: list[torch.Tensor]) -> fx.GraphModule:
        """The torch graph for the device where tensors are: what is found on a CPU runs on any GPU."""
        if target_row(self.target).tensors == "cpu":
            return self.run
        device = next((tensor.device for tensor in tensors if tensor.dim()), self._device)
        if device == self._device:
            return self.run
        if device not in self._elsewhere:
            self._elsewhere[device] = on_device(self.cut.spliced(), device)
        return self._elsewhere[device]

    @functools.cached_property
    def _device(self) -> torch.device:
        """Where tensors were when the function was recorded."""
        device: torch.device = self.cut.recorded.placeholders[0].meta["val"].device
        return device

    @functools.cached_property
    def _together(self) -> tuple[tuple[int, ...], ...]:
        """For a GPU, inputs that lay on one device when they were recorded; those without dimensions may lie anywhere."""
        if target_row(self.target).tensors == "cpu":
            return ()
        groups: dict[torch.device, list[int]] = {}
        for number, node in enumerate(self.cut.recorded.placeholders):
            tensor = node.meta["val"]
            if tensor.dim():
                groups.setdefault(tensor.device, []).append(number)
        return tuple(map(tuple, groups.values()))

    def _check_devices(self, inputs: list[torch.Tensor], together: tuple[int, ...]) -> None:
        """Raise InvalidInput, naming both, where one of some inputs is on another device than the first one on a GPU."""
        devices = [inputs[number].device for number in together]
        if devices.count(devices[0]) == len(devices):
            return
        names = self.cut.recorded.calling.inputs
        place = next(place for place, device in enumerate(devices) if device.type != "cpu")
        other = next(other for other, device in enumerate(devices) if device != devices[place])
        raise InvalidInput(
            f"input {names[together[other]]!r} of {self.name} is on {devices[other]}, and {names[together[place]]!r} on "
            f"{devices[place]}; all tensors of a call lie on one GPU: move it with .to({str(devices[place])!r})"
        )

    def _check_memory(self, inputs: list[torch.Tensor]) -> None:
        """Raise SharedMemory where a tensor that is changed shares memory with another one: they were recorded as two tensors."""
        writes = self.cut.recorded.writes
        shared = overlapping([_extent(tensor) for tensor in inputs], writes) if writes else None
        if shared is not None:
            changed, other = (self.cut.recorded.calling.inputs[number] for number in shared)
            share = f"{changed} and {other} share memory"
            raise SharedMemory(f"{share}, and {self.name} changes {changed}; give it tensors of their own")

    @property
    def name(self) -> str:
        """What people call the function."""
        return self.cut.recorded.calling.name

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of all tensors that the graph is given, those that the function brings along being the last ones."""
        return self.cut.recorded.calling.inputs

    @property
    def found(self) -> bool:
        """Whether kernels run some of the function, clearly faster than the function itself."""
        return self.report.found

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """What was proved of each distinct program, in the order in which they run first."""
        return tuple(result.certificate for result in self.results)

    @property
    def results(self) -> tuple[Superoptimized, ...]:
        """The results of distinct programs, in the order in which they run first."""
        return tuple({id(piece.result): piece.result for piece in self.pieces}.values())

    @property
    def error_bound(self) -> float | None:
        """The probability that any of the programs is computed by a wrong muGraph; None where one of them has no bound.

        PyTorch's calls are those that it recorded of the function, and not part of it.
        """
        bounds = [certificate.error_bound for certificate in self.certificates]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)

    @property
    def sources(self) -> dict[str, str]:
        """Generated source by number of the program and file name."""
        numbered = enumerate(self.results)
        return {f"{number}/{name}": text for number, result in numbered for name, text in result.sources.items()}

    def graphed(self, device: int | None = None, *, static_outputs: bool = False) -> Graphed:
        """Raises SeveralPrograms: graphs are of one program; torch.cuda.graph captures a call of this result as any other."""
        raise SeveralPrograms("graphed() is for one program; capture a call of the result with torch.cuda.graph")

    def __getattr__(self, name: str) -> NoReturn:
        if name in _OF_ONE_PROGRAM:
            count = len(self.results) if "pieces" in self.__dict__ else 0
            raise SeveralPrograms(f"the function is no program as a whole: .pieces[i].result.{name} has that of each of {count}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        coverage, many, left = self.report.coverage, len(self.pieces), len(self.cut.partition.left)
        share = "" if coverage is None else f", {coverage.byte_share:.0%} of the bytes"
        called = len(self.cut.partition.library)
        library = f" and {called} library kernel{'s' * (called != 1)} with packed weights" if called else ""
        programs = f"{many} program{'s' * (many != 1)}" if many else "no muGraph"
        what = f"{programs}{library}{share}; {left} calls by PyTorch"
        return f"<{type(self).__name__} for {self.target}: {what}, {'found' if self.found else 'original'}>"


def overlapping(extents: Sequence[tuple[int, int]], changed: Collection[int]) -> tuple[int, int] | None:
    """The numbers of a changed extent of addresses, (first, end), and of another one that it overlaps; None where there is none.

    Every call of a model asks, of hundreds of tensors: each is looked for among the sorted extents of those that are changed.
    """
    ordered = sorted((*extents[number], number) for number in changed if extents[number][0] < extents[number][1])
    for (_, end, number), (first, _, other) in itertools.pairwise(ordered):
        if first < end:
            return number, other
    firsts = [first for first, _, _ in ordered]
    for other, (first, end) in enumerate(extents):
        before = bisect.bisect_left(firsts, end) - 1  # of those, which are apart, the last one that begins before the end
        if first < end and before >= 0 and ordered[before][1] > first and other not in changed:
            return ordered[before][2], other
    return None


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of the first byte of a tensor, and of the first one behind its last, others between them included."""
    first = tensor.data_ptr()
    if tensor.is_contiguous() or not tensor.numel():
        return first, first + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()
