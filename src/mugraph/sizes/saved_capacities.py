"""Kernels of a few capacities on disk: what a saved program is (`mugraph.results.serialization`), for each capacity.

mugraph.json          the manifest, of the kind `capacities`
capacities.json       the dimension and its range, where it stands in arguments and outputs, which of these are 0 behind the
                      elements, what further arguments say of slots, which argument each input of the programs is, what calls
                      took, the claim in words
capacities/N/...      the saved result for the masked program at capacity N

What is looked at when the folder is read says `mugraph.sizes.loaded_capacities`. Whose function it is at each size is not in it:
`mugraph verify --certificate DIR FILE.py:f` asks PyTorch again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_structure

from mugraph.errors import InvalidInput, StorageError
from mugraph.frontend import trace
from mugraph.frontend.calls.calling import Calling, filled, structure_of
from mugraph.frontend.calls.saved_constants import SavedConstant
from mugraph.frontend.comparison import as_stored
from mugraph.frontend.operators.torch_casts import TORCH_DTYPES, widened
from mugraph.frontend.symbolic_sizes.slots import Place, SlotPlaces, Slots
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Shape
from mugraph.results.places import check_replaceable
from mugraph.results.serialization import CAPACITIES, write_folder
from mugraph.results.superoptimized import Superoptimized
from mugraph.sizes import range_folder
from mugraph.sizes.capacity_calls import CapacityCalls
from mugraph.sizes.dims import Dim, Dynamic
from mugraph.sizes.growing_kernels import argument_numbers
from mugraph.sizes.masked_calls import MaskedCalls, shape_at
from mugraph.sizes.masked_functions import MaskedFunction
from mugraph.sizes.range_folder import RangeFolder, seconds_of
from mugraph.verifier import verify_graphs


def save(path: Path, table: CapacityCalls[MaskedFunction], dynamic: Dynamic, claim: str) -> Path:
    """Write the results of all capacities to the folder `path`, as `mugraph.results.serialization.save` does; raises what
    `files_of` raises."""
    check_replaceable(path)
    return write_folder(path, files_of(table, dynamic, claim))


def files_of(table: CapacityCalls[MaskedFunction], dynamic: Dynamic, claim: str) -> dict[str, str]:
    """Text of every file of the folder, by its path in it.

    Raises StorageError where no capacity holds the largest sizes, for nothing in a folder could run these.
    """
    masked, largest = table.masked, max(table.kernels)
    if largest < masked.dim.high:
        raise StorageError(
            f"no kernels hold {masked.dim.name} from {largest + 1} to {masked.dim.high}, where the function itself is called; "
            "declare a smaller range, or save the results in `capacities.kernels`"
        )
    orders = [_given_numbers(made.calling, masked.arguments(capacity)) for capacity, made in table.kernels.items()]
    order = _with_captured(orders[0], len(masked.inputs))
    if any(other != orders[0] for other in orders) or sorted(order) != list(range(len(order))):
        raise StorageError(
            "the programs of different capacities are called differently; save the results in `capacities.kernels`"
        )
    places, captured = masked.graph, len(order) - len(masked.arguments(largest))
    record = {
        **range_folder.said_of(masked.dim, dynamic, claim, masked.sizes),
        "inputs": [None if place is None else place.dim for place in places.inputs] + [None] * captured,
        "slots": [[slots.first, slots.end] for slots in places.slots],
        "counts": list(places.counts),
        "outputs": [None if place is None else [place.dim, place.more] for place in places.outputs],
        "zeroed": sorted(places.zeroed),
        "arguments": order,
        "structure": _structure(masked),
        "seconds": {str(capacity): _by_text(table.seconds.get(capacity, {})) for capacity in sorted(table.kernels)},
    }
    return range_folder.files_of(CAPACITIES, record, table.kernels)


def _given_numbers(calling: Calling, arguments: Sequence[torch.Tensor]) -> list[int | None]:
    """For each input of a program but its constants, which are saved with it, which argument it is; None for what is captured."""
    numbers = argument_numbers(calling, arguments)
    return numbers[: len(numbers) - len(calling.constants)]


def _with_captured(order: Sequence[int | None], inputs: int) -> list[int]:
    """Numbers of arguments where what the function brings along (None) are arguments, too, behind its `inputs`."""
    captured = order.count(None)
    numbers = itertools.count(inputs)
    return [next(numbers) if number is None else number + captured * (number >= inputs) for number in order]


def _structure(masked: MaskedFunction) -> Any:
    """How outputs are arranged, as JSON."""
    return structure_of(masked, len(masked.graph.outputs))


def _by_text(seconds: Mapping[int, float]) -> dict[str, float]:
    return {str(size): each for size, each in sorted(seconds.items())}


@dataclass(frozen=True, slots=True)
class SavedCapacities:
    """What a folder says, of which no program was compiled again."""

    dim: Dim
    dynamic: tuple[tuple[int | str, int], ...]
    """Arguments of the function, and their dimensions of varying size."""
    claim: str
    places: SlotPlaces
    arguments: tuple[int, ...]
    """For each input of a program its number among the inputs, what is said of slots, and counts."""
    structure: Any
    seconds: Mapping[int, Mapping[int, float]]
    programs: Mapping[int, Path]
    """The folders of the results, by capacity."""

    @classmethod
    def of(cls, folder: Path) -> SavedCapacities:
        """What the folder says; raises InvalidInput for a file that was changed or is malformed."""
        saved = RangeFolder.of(folder, CAPACITIES, "kernels of capacities")
        with saved.well_formed():
            return cls._of(saved)

    @classmethod
    def _of(cls, saved: RangeFolder) -> SavedCapacities:
        record, dim = saved.record, saved.dim
        places = SlotPlaces(
            tuple(None if dim is None else Place(_number(dim), 0) for dim in record["inputs"]),
            tuple(_slots(*slots) for slots in record["slots"]),
            tuple(map(_number, record["counts"])),
            tuple(None if place is None else Place(*map(_number, place)) for place in record["outputs"]),
            frozenset(map(_number, record["zeroed"])),
        )
        seconds = {
            int(capacity): {int(size): seconds_of(each) for size, each in measured.items()}
            for capacity, measured in record["seconds"].items()
        }
        arguments = tuple(map(_number, record["arguments"]))
        if sorted(arguments) != list(range(len(places.inputs) + len(places.slots) + len(places.counts))):
            raise ValueError("inputs of programs are not the arguments, one each")
        if not any(places.inputs) or not places.slots or dim.high > max(seconds):
            raise ValueError("nothing has the dimension, or no capacity holds all of it")
        if any(places.inputs[number] is None for number in places.zeroed):
            raise ValueError("an input without slots has none that are 0")
        programs = saved.programs(seconds)
        structure = record["structure"]
        filled(structure, list(range(len(places.outputs))))
        return cls(dim, saved.dynamic, saved.claim, places, arguments, structure, seconds, programs)

    def calls(self, program: Graph) -> MaskedCalls:
        """How the programs are called, of which one is given; raises InvalidInput where outputs have another structure."""
        leaves, results = tree_flatten(filled(self.structure, list(range(len(self.places.outputs)))))
        if leaves != list(range(len(self.places.outputs))):
            raise InvalidInput("its outputs have no structure of tensors; optimize and save again")
        given = {number: node.output for number, node in zip(self.arguments, program.inputs(), strict=False)}
        generator = torch.Generator().manual_seed(0)
        inputs = tuple(_example(given[number].shape, given[number].dtype, generator) for number in range(len(self.places.inputs)))
        return MaskedCalls(self.dim, self.places, inputs, tree_structure((inputs, {})), results)

    def is_at(self, capacity: int, program: Graph, constants: Sequence[SavedConstant], masked: MaskedFunction) -> bool:
        """Whether a program with these constants is what a function's masked graph is at a capacity, and is called and returns
        as is said here. Folders of the format before have constants among the arguments."""
        arguments = masked.arguments(capacity)
        traced = trace(masked.at_capacity(capacity), tuple(arguments))
        numbers = argument_numbers(traced, arguments) if not constants else _given_numbers(traced, arguments)
        if constants and tuple(constants) != traced.constants:
            return False
        order = _with_captured(numbers, len(masked.inputs))
        brought = (None,) * (len(self.places.inputs) - len(masked.inputs))
        graph = masked.graph
        theirs = SlotPlaces((*graph.inputs, *brought), graph.slots, graph.counts, graph.outputs, graph.zeroed)
        if tuple(order) != self.arguments or self.places != theirs or self.structure != _structure(masked):
            return False
        return bool(verify_graphs(*as_stored(traced.graph, program)).equivalent)

    def check(self, capacity: int, made: Superoptimized, largest: Graph) -> None:
        """Raise InvalidInput unless a program has tensors of the shapes and types that are said here, and as that of the largest
        capacity has; and constants behind them."""
        program = made.program
        if len(program.inputs()) != len(self.arguments) + len(made.calling.constants):
            raise InvalidInput(f"the program of capacity {capacity} takes {len(program.inputs())} tensors")
        slots, most = capacity + self.places.more, max(self.programs) + self.places.more
        behind = [*[(DType.BOOL, (slots,))] * len(self.places.slots), *[(DType.FP32, (1,))] * len(self.places.counts)]
        given = zip(program.inputs(), largest.inputs(), strict=False)  # capacities may have constants of their own
        inputs = [(node.output, other.output) for node, other in itertools.islice(given, len(self.arguments))]
        outputs = zip(program.output_tensors, largest.output_tensors, self.places.outputs, strict=True)
        pairs = [(ours, theirs, place) for ours, theirs, place in outputs]
        for number, (ours, theirs) in zip(self.arguments, inputs, strict=True):
            if number < len(self.places.inputs):
                pairs.append((ours, theirs, self.places.inputs[number]))
            elif (ours.dtype, ours.shape) != behind[number - len(self.places.inputs)]:
                raise InvalidInput("an input that says what is held is none")
        for ours, theirs, place in pairs:
            wanted = shape_at(theirs.shape, None if place is None else Place(place.dim, 0), slots)
            if ours.dtype != theirs.dtype or ours.shape != wanted or (place and theirs.shape[place.dim] != most):
                raise InvalidInput(f"a tensor of shape {list(ours.shape)} does not have the slots of its capacity")


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of a dimension or slot")
    return value


def _slots(first: Any, end: Any) -> Slots:
    if first is not None and _number(first) >= _number(end):
        raise ValueError(f"no slots are from {first} to {end}")
    return Slots(first, _number(end))


def _example(shape: Shape, dtype: DType, generator: torch.Generator) -> torch.Tensor:
    """A tensor to call kernels with: random numbers, masks that hide nothing, first places of tables."""
    made = torch.ones(shape, dtype=TORCH_DTYPES[dtype])
    if made.is_floating_point():
        return torch.empty_like(widened(made)).normal_(generator=generator).to(made.dtype)
    return made if dtype is DType.BOOL else torch.zeros_like(made)
