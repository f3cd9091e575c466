"""Kernels of a few capacities that were read from a folder (`mugraph.sizes.saved_capacities`), to be called at any size.

Each muGraph is tested against its program, kernels must give the same bits whatever lies in slots that are not held, and those of
different capacities the same numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.calling import ArgumentsAlone, Calling
from mugraph.frontend.calls.saved_constants import SavedConstant
from mugraph.ir.dtypes import DType
from mugraph.results.data import Shared
from mugraph.results.serialization import CAPACITIES
from mugraph.results.superoptimized import load_program
from mugraph.sizes.capacity_calls import CapacityCalls, looked_at
from mugraph.sizes.chunk_plans import ChunkPlan
from mugraph.sizes.dims import known_sizes
from mugraph.sizes.masked_calls import MaskedCalls
from mugraph.sizes.range_folder import document_of
from mugraph.sizes.saved_capacities import SavedCapacities
from mugraph.support.picking import picked
from mugraph.verifier.float_report import MULTIPLE, TOLERANCES

_SIGNS = ((0, 0), (-1, -1), (1, -1), (-1, 1))
"""Those of numbers in every other input with which capacities are compared, 0 being both: a 0 that takes part in the maximum of
negative numbers is found."""


@dataclass(frozen=True, slots=True)
class _InOrder(ArgumentsAlone):
    """How a program is called with the arguments of a masked graph, in the order of these; its constants come by themselves."""

    program: Calling
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]

    @property
    def constants(self) -> tuple[SavedConstant, ...]:
        """Those of the program."""
        return self.program.constants

    @property
    def captured(self) -> Sequence[Any]:
        """Those of the program."""
        return self.program.captured

    def captured_beside(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Those of the program."""
        return self.program.captured_beside(tensors)

    def plain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """The program's inputs, if there are no other arguments."""
        return None if kwargs else self.program.plain(self.pick(args), kwargs)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The program's inputs; raises what that of the program raises."""
        return self.program.flatten(self.pick(args), kwargs)

    def unflatten(self, outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> Any:
        """The outputs, in a tuple."""
        return self.program.unflatten(outputs, inputs)


class LoadedCapacities(Shared):
    """What `DynamicSuperoptimized.load` reads: call it with one tensor per input, of any size in the range: the tensors of the
    function in order, then what it brings along."""

    def __init__(self, saved: SavedCapacities, capacities: CapacityCalls[MaskedCalls]) -> None:
        self.dim, self.claim, self.capacities = saved.dim, saved.claim, capacities
        self._first = next((number, place.dim) for number, place in enumerate(saved.places.inputs) if place is not None)
        self._runs: dict[int, Callable[..., Any]] = {size: self._run(size) for (size,) in known_sizes([self.dim])}

    def __call__(self, *tensors: Any) -> Any:
        """The outputs in the structure that the function returned them; raises ShapeMismatch and InvalidInput."""
        number, dim = self._first
        shape = getattr(tensors[number], "shape", ()) if number < len(tensors) else ()
        run = self._runs.get(shape[dim]) if dim < len(shape) else None
        if run is None:
            size, _ = self.capacities.masked.flatten(tensors, {})
            run = self._runs[size] = self._run(size)
        return run(*tensors)

    def _run(self, size: int) -> Callable[..., Any]:
        return self.capacities.at_size(self.plan(size).chunks[0].size, size)

    def plan(self, size: int) -> ChunkPlan:
        """Which capacity runs a size; raises ShapeMismatch for one that is out of range."""
        self.dim.check(size)
        return min(self.capacities.plans(size), key=lambda plan: plan.seconds)

    def __repr__(self) -> str:
        count = len(self.capacities.kernels)
        return f"<LoadedCapacities for {self.dim.short}: {count} capacities, which hold all sizes>"


def load(folder: Path, trust_sources: bool = False) -> LoadedCapacities:
    """The kernels of capacities in a folder; raises what `mugraph.load` raises, also where other slots reach a result, and where
    capacities have different results."""
    saved = SavedCapacities.of(folder)
    made = {capacity: load_program(place, trust_sources) for capacity, place in saved.programs.items()}
    largest = made[max(made)].program
    try:
        for capacity, each in made.items():
            saved.check(capacity, each, largest)
        masked = saved.calls(largest)
    except (InvalidInput, ValueError, IndexError) as error:
        raise InvalidInput(f"{folder / document_of(CAPACITIES)} does not fit the programs beside it: {error}") from None
    calls = CapacityCalls(masked, seconds={capacity: dict(seconds) for capacity, seconds in saved.seconds.items() if seconds})
    pick = picked(saved.arguments)
    for capacity, each in made.items():
        result = each.called_by(_InOrder(each.calling, pick))
        if not calls.take(capacity, result, calls.growing(capacity, result)):
            raise InvalidInput(f"{folder}: what lies behind the elements reaches results of capacity {capacity}; do not use it")
    for less, more in itertools.pairwise(sorted(made)):
        sizes = [*looked_at(saved.dim, less), saved.dim.below(less)]  # the last is all of what the smaller one has
        if any(_differ(calls, less, more, size) for size in sizes if size in saved.dim.sizes):
            raise InvalidInput(f"{folder}: capacities {less} and {more} have different results; do not use it")
    return LoadedCapacities(saved, calls)


def _differ(calls: CapacityCalls[MaskedCalls], one: int, other: int, size: int) -> bool:
    """Whether two capacities have results at a size that rounding does not explain."""
    if not all(calls.kernels[capacity].executable.machine.available for capacity in (one, other)):
        return False
    normal = calls.masked.resized(size)
    dtypes = [tensor.dtype for tensor in calls.kernels[one].program.output_tensors]
    for signs in _SIGNS:
        inputs = [_of_sign(tensor, signs[number % 2]) for number, tensor in enumerate(normal)]
        with torch.inference_mode():
            ours, theirs = (tree_flatten(calls.at(capacity)(*inputs))[0] for capacity in (one, other))
        if not all(map(_are_close, ours, theirs, dtypes)):
            return True
    return False


def _of_sign(tensor: torch.Tensor, sign: int) -> torch.Tensor:
    return tensor.abs() * sign if sign and tensor.is_floating_point() else tensor


def _are_close(ours: torch.Tensor, theirs: torch.Tensor, dtype: DType) -> bool:
    ours, theirs = ours.double(), theirs.double()
    largest = float(theirs[theirs.isfinite()].abs().amax()) if theirs.isfinite().any() else 0.0
    return torch.allclose(ours, theirs, rtol=0, atol=MULTIPLE * TOLERANCES[dtype] * largest, equal_nan=True)
