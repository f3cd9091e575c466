"""Masks whose values are known, as the cost model sees them: kernels leave out iterations whose tile of a mask hides all scores.

Lowering shows it for every kernel, and kernels look at the values in every call. Here sketches are asked, which know no sizes;
nothing but costs depends on the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mugraph.ir.known_elements import Known, KnownArithmetic, States, leave_maximum, leave_rescaled, leave_sum
from mugraph.ir.ops import OPERATORS, Call, is_scan
from mugraph.search.closure.saturation import Leaf
from mugraph.search.closure.sketch import Sketch, Step
from mugraph.search.scheduling.space import Floats, Indices, Schedules, column

_NO_CALL = Call("", (), {})
_ARITHMETIC = KnownArithmetic()


class Mask:
    """An input [..., rows, columns]; `hidden`, booleans of its shape, say where it is -inf."""

    def __init__(self, hidden: NDArray[np.bool_]) -> None:
        self.shape = hidden.shape
        self._hidden = hidden.reshape(-1, *hidden.shape[-2:]).all(axis=0)
        self._shares: dict[tuple[int, int], float] = {}

    @functools.cached_property
    def _shown(self) -> NDArray[np.int64]:
        """How many elements above and left of each place are not hidden."""
        shown = np.zeros([size + 1 for size in self._hidden.shape], np.int64)
        shown[1:, 1:] = (~self._hidden).cumsum(axis=0).cumsum(axis=1)
        return shown

    def share(self, rows: int, columns: int) -> float:
        """The share of tiles that are not hidden as a whole where its last two dimensions are cut into so many parts each.

        1 where the parts are not equal.
        """
        height, width = self.shape[-2:]
        if height % rows or width % columns:
            return 1.0
        if (rows, columns) not in self._shares:
            corners = self._shown[:: height // rows, :: width // columns]
            tiles = np.diff(np.diff(corners, axis=0), axis=1)
            self._shares[rows, columns] = float(np.count_nonzero(tiles)) / tiles.size
        return self._shares[rows, columns]


Hidden = Mapping[str, NDArray[np.bool_]]
"""Where inputs of two dimensions or more are -inf, by name: booleans of their shapes."""
Masks = Mapping[int, Mask]
"""Masks by the number of the input."""


def least_share(masks: Masks) -> float:
    """The least share of its iterations that any sketch has to run under any schedule, as `running_shares` has it."""
    return min((mask.share(*mask.shape[-2:]) for mask in masks.values()), default=1.0)


def running_shares(sketches: Sequence[Sketch], schedules: Schedules, masks: Masks) -> tuple[Floats, Indices]:
    """What share of its iterations a sketch has to run under each schedule: of each kind of sketches, of shape
    [kinds, grids, loop counts], and the kind of each sketch, of shape [sketches]."""
    known, kinds = frozenset(masks), dict[tuple[Leaf, ...], int]()
    kind = np.array([kinds.setdefault(telling(sketch, known), len(kinds)) for sketch in sketches])
    everything = np.ones((len(schedules.grids), schedules.loop.size))
    shares = [functools.reduce(np.minimum, (_shares(leaf, schedules, masks) for leaf in leaves), everything) for leaves in kinds]
    return np.array(shares), kind


def _shares(leaf: Leaf, schedules: Schedules, masks: Masks) -> Floats:
    """The share of a mask's tiles that are not hidden as a whole under each schedule, of shape [grids, loop counts].

    1 where its dimensions are other axes than those of the schedules, or more than one each.
    """
    mask, grids = masks[leaf.source], schedules.grids
    lattice = (len(grids), schedules.loop.size)
    shares = np.ones(lattice)
    if not all(len(slot) == 1 for slot in leaf.slots[-2:]) or len(leaf.slots) != len(mask.shape):
        return shares
    parts = [np.ones(lattice), np.ones(lattice)]
    for number, (axis,) in enumerate(leaf.slots[-2:]):
        if np.any(np.asarray(grids.sizes[axis]) != mask.shape[number - 2]):
            return shares
        parts[number] *= column(grids.parts.get(axis, 1.0))
        if axis == schedules.loop_axis:
            parts[number] *= schedules.loop
    pairs, places = np.unique(np.stack(parts, axis=-1).reshape(-1, 2).astype(np.intp), axis=0, return_inverse=True)
    found = np.array([mask.share(int(rows), int(columns)) for rows, columns in pairs])
    return found[places.reshape(-1)].reshape(lattice)


@functools.lru_cache(maxsize=1 << 12)
def telling(sketch: Sketch, sources: frozenset[int]) -> tuple[Leaf, ...]:
    """The tensors among `sources` that tell a sketch's for-loop of iterations without effect: one of their tiles is all -inf."""
    loads = ((index, step.leaf) for index, step in enumerate(sketch.steps) if step.in_loop and step.leaf is not None)
    return tuple(leaf for index, leaf in loads if leaf.source in sources and _has_no_effect(sketch, index))


def _has_no_effect(sketch: Sketch, hidden: int) -> bool:
    """Whether an iteration changes no accumulator if all that one of its loads brings is -inf."""
    known: dict[int, States] = {}
    for index, step in enumerate(sketch.steps):
        operands = [known[i] for i in step.inputs if i in known]
        if step.in_loop or step.is_constant:
            known[index] = np.asarray(Known.HIDDEN, np.uint8) if index == hidden else _known(step, operands)
        elif any(sketch.steps[i].in_loop for i in step.inputs) and not _is_neutral(step, operands):
            return False
    return True


def _is_neutral(step: Step, operands: Sequence[States]) -> bool:
    """Whether a step that leads out of the for-loop stays as it is when it meets such elements."""
    # by name: what leads out of the loop is no row
    match step.op:
        case "accumulate":
            return leave_sum(operands[0])
        case "rescale":
            return leave_rescaled(operands[0], operands[1])
        case "accumulate_max":
            return leave_maximum(operands[0])
    return step.op == "carry"


def _known(step: Step, operands: Sequence[States]) -> States:
    """What is known of every element of a step's result."""
    # by name: steps that are not elementwise, as no single row is
    match step.op:
        case "load":
            return np.asarray(Known.FINITE, np.uint8)
        case "constant":
            assert step.scalar is not None
            return _ARITHMETIC.constant(step.scalar)
        case "contract":
            return _ARITHMETIC.mul(*operands)
        case "concat_contract":
            first, second, first_right, second_right = operands
            return _ARITHMETIC.add(_ARITHMETIC.mul(first, first_right), _ARITHMETIC.mul(second, second_right))
        case "sum":
            return operands[0]
        case "max":
            lowest = step.scalar is not None and operands[0] == Known.HIDDEN
            return np.asarray(Known.LOWEST, np.uint8) if lowest else operands[0]
    if is_scan(step.op):
        return np.asarray(Known.NOTHING, np.uint8)
    made: States = OPERATORS[step.op].compute(_ARITHMETIC, _NO_CALL, operands)
    return made
