"""Floating-point evidence: a compiled candidate against the float64 meaning of the program, on many kinds of inputs.

Inputs are normal numbers of many scales, and rows known to do harm. Programs have no value for negative numbers under roots and
logarithms, and nothing would be compared there.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mugraph.errors import BudgetExceeded
from mugraph.ir.arithmetic import Array
from mugraph.ir.cores import Cores, core_of, cores_of, ranges
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.graph import Graph, Shape
from mugraph.support.stopping import check
from mugraph.verifier.deviations import Measure
from mugraph.verifier.domain import positive_inputs
from mugraph.verifier.exact_values import ExactValues, Repeating, Sampled, Worst
from mugraph.verifier.float_report import TOLERANCES, FloatReport, ScaleError
from mugraph.verifier.parallel_axes import shared_slice, slices_at
from mugraph.verifier.parted_dims import PartedDims
from mugraph.verifier.reference import Counts, Reference
from mugraph.verifier.rounding import RoundedArithmetic, operator_errors
from mugraph.verifier.samples import affordable, chosen, parts_of
from mugraph.verifier.updates import NO_TABLES, Rows, Update
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

SCALES = (1e-3, 1e-1, 1.0, 10.0, 1e3)
"""Standard deviations of normal inputs."""

_PERIOD = (1 << 22) + 15
"""Normal numbers repeat after so many, a prime: no two rows, tiles or slices of a tensor are alike, and rounding is cheap."""

Pattern = Callable[[Array], Array]
Draw = Callable[[Sequence[int], int], list[Array]]
"""Standard normal numbers for inputs of so many elements, by a seed."""


def _equal_elements(normal: Array) -> Array:
    """Rows of one number each: sums grow with every term, and their rounding errors with them."""
    return np.broadcast_to(normal[..., :1], normal.shape) if normal.ndim else normal


def _one_huge_element(normal: Array) -> Array:
    """One element of each row a thousand times the others: what is small beside it gets lost."""
    if not normal.ndim:
        return normal
    huge = np.argmax(np.abs(normal), axis=-1, keepdims=True)
    factors = np.where(np.arange(normal.shape[-1]) == huge, np.float32(1e3), np.float32(1))
    return np.asarray(normal * factors)


def _mixed_signs(normal: Array) -> Array:
    """Numbers between 1 and 2 with alternating signs: sums of rows cancel."""
    if not normal.ndim:
        return normal
    signs = np.where(np.arange(normal.shape[-1]) % 2 == 0, np.float32(1), np.float32(-1))
    return np.asarray((1 + np.tanh(np.abs(normal))) * signs)


ADVERSARIAL: dict[str, Pattern] = {
    "rows of equal elements": _equal_elements,
    "one huge element per row": _one_huge_element,
    "alternating signs": _mixed_signs,
}
"""Kinds of rows that sums and exponentials are known to suffer from, made of normal numbers of standard deviation 1."""


@dataclass(frozen=True, slots=True)
class InputKind:
    """A kind of inputs: normal numbers of standard deviation `scale`, or an adversarial `pattern` made of such."""

    scale: float
    pattern: str = ""

    @property
    def standard(self) -> bool:
        """Whether these are standard normal numbers."""
        return self.scale == 1 and not self.pattern

    def __str__(self) -> str:
        return self.pattern or f"input scale {self.scale:g}"


def kinds(scales: Sequence[float] = SCALES) -> Iterator[InputKind]:
    """Normal numbers of these scales, and every pattern."""
    yield from map(InputKind, scales)
    yield from (InputKind(1.0, name) for name in ADVERSARIAL)


def arrays_for(graph: Graph, shapes: Sequence[Shape]) -> list[Array]:
    """One array without values per input of a kernel graph, of the `shapes` given and the type that holds the input's dtype."""
    dtypes = (node.output.dtype for node in graph.inputs())
    return [np.empty(shape, round_to(dtype, 0.0).dtype) for dtype, shape in zip(dtypes, shapes, strict=True)]


def drawn(sizes: Sequence[int], seed: int) -> list[Array]:
    """Standard normal numbers in float32 for inputs of so many elements, of which those behind the first _PERIOD repeat."""
    rng = np.random.default_rng([seed, 0xF10A7])
    return [rng.standard_normal(min(_PERIOD, size), np.float32) for size in sizes]


def fill(
    graph: Graph, arrays: Sequence[Array], kind: InputKind, seed: int, draw: Draw = drawn, tables: Mapping[int, Rows] = NO_TABLES
) -> None:
    """Fill contiguous arrays, one per input of a kernel graph, with numbers rounded to the inputs' dtypes.

    They are those of `repeating_numbers`, again and again. Of `tables`, by their numbers among the inputs, these rows alone are
    written, each with what it has where all are, and others stay as they are.
    """
    filled = zip(arrays, repeating_numbers(graph, [array.shape for array in arrays], kind, seed, draw), strict=True)
    for number, (array, numbers) in enumerate(filled):
        if number in tables:
            tables[number].repeat(numbers, array)
        else:
            _repeat(numbers, array.reshape(-1))


def repeating_numbers(graph: Graph, shapes: Sequence[Shape], kind: InputKind, seed: int, draw: Draw = drawn) -> Iterator[Array]:
    """For each input of a kernel graph, of the shape given, numbers rounded to its dtype that repeat in it, as a flat array.

    Booleans are 0 or 1, one as often as the other; whole numbers of 8 bits are spread over all there are; integers are places in
    the tables that are looked up at them. Numbers lose their signs where roots and logarithms are taken of an input itself: it
    stands for a variance or a probability.
    """
    positive, integers = positive_inputs(graph), ranges(graph)
    normals = draw([math.prod(shape) for shape in shapes], seed)
    for number, (node, shape, unit) in enumerate(zip(graph.inputs(), shapes, normals, strict=True)):
        normal = unit if kind.scale == 1 else unit * np.float32(kind.scale)
        dtype = node.output.dtype
        if dtype is DType.BOOL:
            numbers = _booleans(kind, np.resize(normal, shape))
        elif dtype.is_index:
            numbers = _integers(np.resize(unit, shape), *integers.get(number, (0, 1)))
        elif dtype.is_whole:
            numbers = _whole_numbers(kind, unit, shape, dtype)
        else:
            numbers = round_to(dtype, _rows(normal, shape, ADVERSARIAL[kind.pattern]) if kind.pattern else normal)
            numbers = np.abs(numbers) if number in positive else numbers
        yield numbers.reshape(-1)


def _booleans(kind: InputKind, normal: Array) -> Array:
    """0 and 1, made of normal numbers: one as often as the other, in the kind's pattern, or in runs from either end of a row.

    Runs hide whole tiles of rows that are not hidden as a whole.
    """
    if kind.pattern:
        return np.asarray(ADVERSARIAL[kind.pattern](normal) > 0, np.float32)
    if kind.scale == 1 or not normal.ndim:
        return np.asarray(normal > 0, np.float32)
    share = np.mod(np.abs(normal[..., :1]) * (1 / kind.scale), 1)
    places = np.arange(normal.shape[-1]) / normal.shape[-1]
    return np.asarray(places < share if kind.scale < 1 else places >= share, np.float32)


def _whole_numbers(kind: InputKind, normal: Array, shape: Shape, dtype: DType) -> Array:
    """Whole numbers of 8 bits: all there are alike often and the ends of their range for certain, or in the kind's pattern around
    its middle, as rows of a shape."""
    if not kind.pattern:
        return _integers(normal, int(dtype.least), int(dtype.largest) + 1)
    middle = (dtype.least + dtype.largest + 1) / 2
    return round_to(dtype, middle + _DEVIATION * _rows(normal, shape, ADVERSARIAL[kind.pattern]))


_DEVIATION = 32
"""What whole numbers in patterns deviate by."""


def _integers(normal: Array, least: int, rows: int) -> Array:
    """Integers from `least` up to `rows`, made of normal numbers: all alike often, and the first and the last of them for certain
    where there are two elements."""
    share = np.mod(np.abs(normal.astype(np.float64)) * _SPREAD, 1)
    found = np.minimum(np.floor(least + share * (rows - least)), rows - 1)
    if found.size > 1:
        found.reshape(-1)[[0, -1]] = rows - 1, least
    return np.asarray(found)


_SPREAD = 1e4
"""Normal numbers times so much have fractions that are spread evenly."""


def _rows(normal: Array, shape: Shape, pattern: Pattern) -> Array:
    """Rows of a pattern, as many as _PERIOD elements make at most: an odd number, which few dimensions are a multiple of."""
    if not shape or not normal.size:
        return pattern(normal.reshape(shape))
    length = shape[-1]
    most = max(1, _PERIOD // length)
    return pattern(np.resize(normal, (min(math.prod(shape[:-1]), most - (most % 2 == 0)), length)))


def _repeat(numbers: Array, into: Array) -> None:
    for start in range(0, into.size, max(len(numbers), 1)):
        rest = into[start : start + len(numbers)]
        rest[...] = numbers[: rest.size]


def random_inputs(graph: Graph, seed: int, scale: float = 1.0) -> list[Array]:
    """One array per input of a kernel graph: normal numbers of standard deviation `scale`, rounded to the input's dtype."""
    arrays = arrays_for(graph, [node.output.shape for node in graph.inputs()])
    fill(graph, arrays, InputKind(scale), seed)
    return arrays


LATE = "the budget ended before the comparison with float64 did; raise it"

_WHOLE = float(1 << 25)
"""All slices are compared with float64 where that takes so much work (`Reference.work`), about a tenth of a second, ..."""
_SAMPLED = float(1 << 23)
"""... and otherwise slices that take so much, or as few as `samples.LEAST` along each axis."""

_OF_TABLE = 16
"""One row in so many, at most, is looked up where the others of a table are not filled again for most kinds of inputs."""

_UNEXPLAINED = 10.0
"""What errs this many times as much as any of its operators owes it to something else."""

Runner = Callable[..., Sequence[Any]]
"""Takes one array per program input, gives the outputs in order."""


@runtime_checkable
class UpdatingRunner(Protocol):
    """A runner that converts arrays of types which NumPy lacks, and keeps them, so that it need not be given all of them anew."""

    def __call__(self, *arrays: Array) -> Sequence[Any]: ...

    def updated(self, arrays: Sequence[Array], updates: Mapping[int, Update]) -> Sequence[Any]:
        """The outputs for these arrays; of inputs with such a type that have an update, by number, for what they were in the call
        before but for that. The arrays of these are not read."""
        ...


def float_check(
    run: Runner,
    reference: Graph,
    *,
    baseline: Runner | None = None,
    seed: int = 0,
    scales: Sequence[float] = SCALES,
    graph: Graph | None = None,
    budget: float | None = None,
    complete: bool = True,
    brief: bool = False,
) -> FloatReport:
    """Compare `run` with the float64 evaluation of the kernel graph `reference` on random and adversarial inputs.

    Inputs are rounded to the dtype of each input (bf16 as float32 arrays of bf16 numbers), and reused from kind to kind. Along
    axes that are parallel in the program, all slices of standard normal inputs differ, and those of other kinds repeat after a
    few (`mugraph.verifier.reference`). All elements of all outputs are compared; where float64 takes long for slices that all
    differ, a sample of them is (`mugraph.verifier.samples`), chosen by the `seed`, and the slices in which results are farthest
    from those of `baseline`. A candidate is unstable when a result is not finite, or errs by more than the tolerance of its
    dtype and more than 10 times the error of `baseline` (by default the reference evaluated operator by operator, each result
    rounded to the dtype). Errors of an output that float64 cannot tell from 0 are relative to the terms that cancel there
    (`mugraph.verifier.cancellation`). Where the program itself leaves its number range, nothing is asked of the candidate. With
    `graph`, the muGraph that `run` computes, the report names the operator that loses the most, unless asking takes long and
    nothing is unstable. Unless `complete`, it ends with the first kind of inputs that shows instability. `brief` looks at
    standard normal numbers alone.

    Raises BudgetExceeded if it takes longer than `budget` seconds.
    """
    pulse = functools.partial(_look_at_the_clock, math.inf if budget is None else time.monotonic() + budget)
    pulse()
    known = _known(core_of(reference), seed)
    made = _Inputs(reference, seed, parts_of(graph), pulse, run, max(scales, default=1.0))

    def alone(graph: Graph, slices: Sequence[Array]) -> Sequence[Array]:
        return operator_by_operator(graph, pulse)(*slices)

    dtypes = tuple(tensor.dtype for tensor in reference.output_tensors)
    entries: list[ScaleError] = []
    reason = blamed = ""
    for kind in (InputKind(1.0),) if brief else kinds(scales):
        exact = made.fill(kind, known)
        pulse()
        with np.errstate(all="ignore"):  # of kernels of NumPy's; what leaves the number range is judged below
            results = known.parted.outputs(made.results())
        entry = ScaleError(kind.scale, exact.errors(results), None, kind.pattern, exact.compared)
        if kind.standard or entry.exceeds(dtypes):
            made.fill(kind, known)  # again: kernels that write to their inputs would have the baseline err with them
            own = known.parted.outputs(baseline(*made.inputs) if baseline is not None else exact.outputs_by(alone, made.read))
            exact = exact.beside(made.read, own, results, pulse) if isinstance(exact, Sampled) else exact
            entry = replace(entry, errors=exact.errors(results), baseline=exact.errors(own))
        why = entry.instability(dtypes)
        if why and (beside := exact.beside_terms(made.read, pulse)) is not exact:
            exact, entry = beside, replace(entry, errors=beside.errors(results), baseline=beside.errors(own))
            why = entry.instability(dtypes)
        entries.append(entry)
        if graph is not None and not reason and (why or (kind.standard and known.is_quick)):
            number, index = exact.worst(results)
            worst = number, known.parted.index_of(number, index)
            blamed = _culprit(reference, graph, made.inputs, worst, entry.errors[number])
        reason = reason or (f"{why}: {blamed}" if why and blamed else why)
        if reason and not complete:
            break
    elements = tuple(tensor.elements for tensor in reference.output_tensors)
    return FloatReport(not reason, reason, tuple(entries), dtypes, blamed, elements)


def errors_against(expected: Sequence[Array], actual: Sequence[Any], dtypes: Sequence[DType]) -> tuple[float, ...]:
    """For each output its error as `ScaleError` defines it, over the elements whose exact values its type holds."""
    outputs = zip(expected, actual, dtypes, strict=True)
    measured = ((Measure.of(exact, dtype), exact, np.asarray(results)) for exact, results, dtype in outputs)
    return tuple(measure.error(measure.farthest(exact, results).deviation) for measure, exact, results in measured)


def _look_at_the_clock(deadline: float) -> None:
    check()
    if time.monotonic() > deadline:
        raise BudgetExceeded(LATE)


@dataclass(frozen=True, slots=True)
class _Known:
    """The exact outputs of a program by kind of inputs: many candidates are checked against one program."""

    parted: PartedDims
    reference: Reference
    """Of the program with `parted` dimensions."""
    sample: Counts | None
    """About how many positions along each axis a sample has; None where the whole is cheap, or a sample would be the whole."""
    is_quick: bool
    """Whether one slice is evaluated in an instant."""
    by_kind: dict[tuple[InputKind, tuple[int, ...] | None], ExactValues] = field(default_factory=dict)
    """Samples depend on the parts into which a candidate cuts axes, too; None stands for all slices."""


@dataclass(slots=True)
class _Inputs:
    """The inputs of one check, in arrays that are filled with one kind after the other.

    A program that looks something up is compared as its core: `read` is what that takes. Integers may name one place twice, so
    slices of its inputs repeat as they may, and all of them, or the sample, are compared for each kind.
    """

    program: Graph
    seed: int
    parts: Sequence[int]
    pulse: Pulse
    run: Runner
    largest: float
    """The largest scale: all of a table is filled for that, too, and stands out beside the rows of the kinds that follow."""
    cores: Cores | None = field(init=False)
    tables: dict[int, Rows] = field(default_factory=dict)
    """The rows that are looked up in large tables which nothing else reads, once all of these have been filled: the integers are
    the same for all kinds, and other rows are to stay others."""
    updates: dict[int, Update] = field(default_factory=dict)
    """What the inputs of a kind have that those of the kind before had not, of some of them."""
    normals: dict[tuple[int, ...], list[Array]] = field(default_factory=dict)
    _arrays: list[Array] = field(init=False)
    _read: list[Array] = field(init=False)
    _rest: Callable[[], None] | None = None
    """Fills those that are written when somebody reads them."""

    def __post_init__(self) -> None:
        self._arrays = self._read = arrays_for(self.program, [node.output.shape for node in self.program.inputs()])
        self.cores = cores_of(self.program)

    @property
    def inputs(self) -> list[Array]:
        """What the program takes."""
        self._complete()
        return self._arrays

    @property
    def read(self) -> list[Array]:
        """What the reference takes."""
        self._complete()
        return self._read

    def results(self) -> Sequence[Any]:
        """What the runner gives for the inputs."""
        if self.updates and isinstance(self.run, UpdatingRunner):
            return self.run.updated(self._arrays, self.updates)
        return self.run(*self.inputs)

    def fill(self, kind: InputKind, known: _Known) -> ExactValues:
        """Fill the inputs with those of a kind, and return the exact outputs."""
        self.updates, self._rest = {}, None
        if kind.standard or self.cores is not None:
            return self._fill_differing(kind, known)
        reference, counts = known.reference, known.reference.few
        different = self._read = known.parted.inputs(self._arrays)
        if counts != reference.all:
            different = arrays_for(self.program, reference.input_shapes(counts))
        fill(self.program, different, kind, self.seed, self.draw)
        if different is not self._read:
            self._repeat(reference, different, counts)
        if (kind, None) not in known.by_kind:
            known.by_kind[kind, None] = Repeating.of(reference, different, counts, self.pulse)
        return known.by_kind[kind, None]

    def _fill_differing(self, kind: InputKind, known: _Known) -> ExactValues:
        """Fill the inputs where all slices differ, or may."""
        tables = NO_TABLES if kind.scale == self.largest else self.tables
        fill(self.program, self._arrays, kind, self.seed, self.draw, tables)
        self.updates = {number: rows.of(self._arrays[number]) for number, rows in tables.items()}
        if self.cores is not None:
            self.tables = self.tables or _looked_up(self.cores, self._arrays)
        self._read = known.parted.inputs(self._arrays if self.cores is None else self.cores.inputs(self._arrays))
        return self.exact(known, kind)

    def _repeat(self, reference: Reference, different: Sequence[Array], counts: Counts) -> None:
        """Repeat slices to whole inputs; those that the runner converts anyway are so where it keeps them."""
        nodes = self.program.inputs() if isinstance(self.run, UpdatingRunner) else []
        late = [number for number, node in enumerate(nodes) if not node.output.dtype.is_numpys]
        self.updates = {number: Update(*reference.repeated(number, different[number], counts)) for number in late}
        into = self._read
        filled = functools.partial(reference.full_inputs, different, counts, into=into, pulse=self.pulse)
        filled(but=late)
        if late:
            self._rest = functools.partial(filled, but=[number for number in range(len(into)) if number not in late])

    def _complete(self) -> None:
        """Fill what is not filled yet."""
        rest, self._rest = self._rest, None
        if rest is not None:
            rest()

    def exact(self, known: _Known, kind: InputKind) -> ExactValues:
        """The exact outputs where all slices differ: all of them, or a sample."""
        reference = known.reference
        places = None if known.sample is None else chosen(reference.all, known.sample, self.parts, self.seed)
        key = (kind, None if places is None else tuple(sorted({*self.parts})))
        if key not in known.by_kind:
            known.by_kind[key] = (
                Repeating.of(reference, self._read, reference.all, self.pulse)
                if places is None
                else Sampled.of(reference, self._read, places, self.pulse)
            )
        return known.by_kind[key]

    def draw(self, sizes: Sequence[int], seed: int) -> list[Array]:
        """As `drawn`, once for all kinds."""
        if tuple(sizes) not in self.normals:
            self.normals[tuple(sizes)] = drawn(sizes, seed)
        return self.normals[tuple(sizes)]


def _looked_up(cores: Cores, inputs: Sequence[Array]) -> dict[int, Rows]:
    """The rows that are looked up in each table that nothing else reads, along one dimension, where these are few of many."""
    found: dict[int, Rows] = {}
    for table in {each.table for each in cores.lookups}.difference(cores.kept):
        lookups = [each for each in cores.lookups if each.table == table]
        dim, size = lookups[0].dim, inputs[table].shape[lookups[0].dim]
        places = np.unique(np.concatenate([inputs[each.integers].reshape(-1) for each in lookups]).astype(np.int64) % size)
        if {each.dim for each in lookups} == {dim} and len(places) * _OF_TABLE <= size:
            found[table] = Rows(dim, places)
    return found


@functools.lru_cache(maxsize=4)
def _known(program: Graph, seed: int) -> _Known:
    parted, reference = PartedDims.none(program), Reference.of(program)
    is_quick = reference.work([1] * len(reference.axes)) <= _WHOLE
    if not is_quick:  # as of attention whose heads lie in rows of all heads, of which a few stand for many then
        parted = PartedDims.of(program)
        reference = Reference.of(parted.program)
    counts = affordable(reference.all, reference.work, _SAMPLED) if reference.work(reference.all) > _WHOLE else reference.all
    return _Known(parted, reference, None if counts == reference.all else counts, is_quick)


def operator_by_operator(graph: Graph, pulse: Pulse = lambda: None) -> Runner:
    """The program as a framework runs it: every result rounded to the outputs' dtype, accumulation in float32."""
    dtype = functools.reduce(DType.promote, (tensor.dtype for tensor in graph.output_tensors)).of_arithmetic

    def run(*inputs: Array) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return evaluate_batched(graph, inputs, RoundedArithmetic(dtype), pulse)

    return run


def _culprit(program: Graph, graph: Graph, inputs: Sequence[Array], worst: Worst, error: float) -> str:
    """The operator of a candidate that adds the most error to the slice with its worst element, and whether it explains it.

    Operators compute in float32 there, and what is stored is not rounded to 16 bits.
    """
    dtypes = {tensor.dtype for node in graph.nodes for tensor in node.outputs}
    precision = DType.FP64 if any(t.dtype is DType.FP64 for t in graph.output_tensors) else DType.FP32
    if (cores := cores_of(program, graph)) is not None:
        (program, graph), inputs = cores.cores, cores.inputs(inputs)
    cut = shared_slice(program, graph)
    errors = operator_errors(cut.right, slices_at(cut.axes, inputs, *worst), precision)
    if not errors:
        return "no operator of it is to blame in exact order"
    narrow = " and ".join(sorted(str(dtype) for dtype in dtypes if dtype.bytes == 2))
    if narrow and _UNEXPLAINED * errors[0].growth < error <= TOLERANCES[graph.output_tensors[worst[0]].dtype]:
        return f"rounding to {narrow} where values are stored; of the operators, computed in {precision}, {errors[0]}"
    return str(errors[0])
