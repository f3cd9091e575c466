"""Whether two functions compute the same at every size of their dynamic dimensions, by tests at a few.

Both are recorded with a symbol for each size. What the recorded calls compute is a family of quotients of sums whose terms have
few indices, counted by `mugraph.frontend.symbolic_sizes.count_rules`: two such families that are equal at a few sizes, from a
first one on, are equal at all (docs/theory.md, "Cutoffs"). Size 1, which the symbols do not speak of, is tested, and ranges of
few sizes are, size by size, whatever the functions do.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from mugraph.errors import InvalidInput, MugraphError
from mugraph.frontend.calls.calling import arguments_of, unused_name
from mugraph.frontend.calls.pytree import Traced, takes_any_names
from mugraph.frontend.comparison import Comparison, compared
from mugraph.frontend.recording.compiler_questions import asked_outside_torch
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.count_rules import Counted, Returned
from mugraph.frontend.symbolic_sizes.cut_pairs import joined_cuts
from mugraph.frontend.symbolic_sizes.cut_points import Cut, CutCalls, counted_with, cut_where_needed, with_inputs
from mugraph.frontend.symbolic_sizes.index_counts import Cutoff, cutoffs
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program
from mugraph.selection.whole_programs import reading
from mugraph.sizes.dims import Declaration, Declared, Dim, Sizes
from mugraph.sizes.recorded_calls import calls_of_arguments, program_of_calls
from mugraph.sizes.sliced_functions import bytes_of_slice, check_questions, check_time, compared_sizes, recorded
from mugraph.support.deadline import Deadline
from mugraph.support.progress import silent
from mugraph.verifier.certificate import Outcome
from mugraph.verifier.generic_inputs import without_generic_values
from mugraph.verifier.verdicts import Verdict

_LISTED = 8
"""Ranges of so many sizes are tested size by size."""
_MOST = 48
"""Tests of one pair of functions, at most."""
_LARGEST_BYTES = 1 << 28
"""Arguments of a test take so many bytes at most."""

Fn = Callable[..., Any]
Verify = Callable[..., Verdict]
"""`mugraph.verify`."""


@dataclass(frozen=True, slots=True)
class DecidedPart:
    """Ranges that are a part of all, and what decided about their sizes: the `cutoffs` of two families, by dimension, and the
    sizes that these say, or without families all of them."""

    ranges: tuple[Dim, ...]
    sizes: tuple[Sizes, ...]
    families: tuple[Family, ...] = ()
    cutoffs: Mapping[str, Cutoff] = field(default_factory=dict)
    beside: tuple[Sizes, ...] = ()
    """Sizes at which the functions may have no value, or a number made of sizes another sign; they decide about these alone."""

    def cutoff(self, name: str) -> Cutoff:
        """That of a dimension, whose sizes make no difference to what has none."""
        return self.cutoffs.get(name, Cutoff())


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict on two functions, and the parts of the ranges that it is for where they are equivalent."""

    verdict: Verdict
    parts: tuple[DecidedPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """Two functions, and for which sizes they are asked about."""

    decide: Callable[[Any, Any, Any], Verdict]
    """Of two functions, or programs of them, for example inputs."""
    functions: tuple[Fn, Fn]
    declared: Declared
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    deadline: Deadline

    @classmethod
    def of(
        cls,
        verify: Verify,
        functions: tuple[Any, Any],
        example_inputs: Any,
        dynamic: Declaration,
        budget: float | None,
        options: Mapping[str, Any],
    ) -> Question:
        """Raises InvalidInput and ShapeMismatch for functions and examples that do not fit the declaration."""
        if example_inputs is None or any(not callable(fn) or isinstance(fn, Program | Graph) for fn in functions):
            raise InvalidInput("dynamic dimensions are those of PyTorch functions' example_inputs; a program has fixed sizes")
        if options["for_all_weights"]:
            raise InvalidInput("for_all_weights is asked of one size; leave it out with dynamic=, or make the weights arguments")
        deadline = reading(Deadline(budget), silent, *functions)
        args, kwargs = arguments_of(example_inputs)
        declared = Declared.of(dynamic)
        if 0 in declared.sizes_of(args, kwargs):
            raise InvalidInput("the example has size 0 of a dimension; give one of size 1 or more")

        def decide(ours: Any, theirs: Any, examples: Any) -> Verdict:
            return verify(ours, theirs, examples, budget=deadline.remaining, **options)

        left, right = (_in_order(fn, tuple(kwargs)) for fn in functions)
        return cls(decide, (left, right), declared.from_one(), tuple(args), dict(sorted(kwargs.items())), deadline)

    @property
    def parts(self) -> list[tuple[Dim, ...]]:
        """Ranges that make up all sizes, in which every dimension has size 1 or sizes from 2 on."""
        return _parts([*self.declared.dims.values()])

    def answer(self) -> Answer:
        """What tests say, one after the other until there is an answer."""
        example = self.declared.sizes_of(self.args, self.kwargs)
        verdict = self.decide(*self.functions, self.kwargs or self.args)
        tested, decided = {example: verdict}, list[DecidedPart]()
        try:
            for ranges in self.parts if verdict.equivalent else ():
                part = self.deciding(ranges)
                for sizes, verdict in self._tests(part):
                    if sizes == example and verdict.equivalent:  # what stands for calls is defined everywhere
                        verdict = replace(verdict, domain=tested[example].domain)
                    tested[sizes] = verdict
                    if verdict.outcome is Outcome.UNDECIDED:
                        reason = f"at {self.text(sizes)}: {verdict.reason.removeprefix('undecided: ')}"
                        verdict = verdict.undecided(reason + self._remedy(sizes, len(decided)))
                    if not verdict.equivalent:
                        return Answer(self._answered(verdict, tested))
                decided.append(part)
        except SizeMatters as error:
            verdict = verdict.undecided(str(error))
        except MugraphError as error:  # whatever keeps what is recorded from being a program
            verdict = verdict.undecided(f"what is recorded for all sizes is no program: {error}")
        return Answer(self._answered(verdict, tested), tuple(decided))

    def _remedy(self, sizes: Sizes, parts: int) -> str:
        """How to ask about other sizes, where those that are not decided about are the first of their ranges."""
        names = ", ".join(name for name, size in zip(self.declared.dims, sizes, strict=True) if size == 1)
        is_first = parts == 0 and names and len(self.parts) > 1 and all(dim.low == 1 for dim in self.parts[0])
        return f"; declare {names} from 2 on to ask about the others" if is_first else ""

    def _answered(self, verdict: Verdict, tested: Mapping[Sizes, Verdict]) -> Verdict:
        """The verdict at the last sizes, or the weakest of those that decide about all."""
        names = [*self.declared.dims]
        sizes = tuple(dict(zip(names, each, strict=True)) for each in tested)
        if not verdict.equivalent:
            return replace(verdict, sizes=sizes)
        weakest = max(tested.values(), key=lambda each: each.error_bound or 0.0)
        used = tuple(dict.fromkeys(name for each in tested.values() for name in each.properties))
        domain = next((each.domain for each in tested.values() if each.domain), "")
        ranges = " and ".join(dim.said for dim in self.declared.dims.values())
        at = ", ".join(str(each[0] if len(each) == 1 else each) for each in sorted(tested))
        return replace(weakest, properties=used, domain=domain, sizes=sizes, claim=f"for every size {ranges}, by tests at {at}")

    def deciding(self, ranges: Sequence[Dim]) -> DecidedPart:
        """What decides about ranges that have either 1 alone or nothing below 2; raises SizeMatters where nothing does."""
        if math.prod(len(dim.sizes) for dim in ranges) <= _LISTED:
            return DecidedPart(tuple(ranges), tuple(itertools.product(*(dim.sizes for dim in ranges))))
        families = self.families_of(ranges)
        found = _cutoffs(*(family.counted.outputs for family in families))
        chosen = tuple(itertools.product(*chosen_sizes(ranges, found)))
        beside = tuple(sizes for sizes in _vanishing(ranges, families) if sizes not in chosen)
        self._check_amount((*chosen, *beside))
        return DecidedPart(tuple(ranges), chosen, families, found, beside)

    def _tests(self, part: DecidedPart) -> Iterator[tuple[Sizes, Verdict]]:
        """Sizes and the verdict there, until these decide about all sizes in a part; raises SizeMatters where they do not."""
        for sizes in part.sizes:
            yield sizes, self._decided_as_recorded(part.families, sizes) if part.families else self._decided(sizes)
        for sizes in part.beside:
            yield sizes, self._decided(sizes)
        if part.families:
            self.check_recorded(part.families, part.sizes[-1])

    def _check_amount(self, chosen: Sequence[Sizes]) -> None:
        """Raise SizeMatters for more or larger tests than are run."""
        if len(chosen) > _MOST:
            raise SizeMatters(f"{len(chosen)} tests would decide about all sizes, and {_MOST} are run at most")
        largest = max(self._bytes(sizes) for sizes in chosen)
        if largest > _LARGEST_BYTES:
            raise SizeMatters(f"a test at {self.text(chosen[-1])} would take {largest >> 20} MiB of arguments")

    def text(self, sizes: Sizes) -> str:
        """Sizes as messages have them."""
        return ", ".join(f"{name} = {size}" for name, size in zip(self.declared.dims, sizes, strict=True))

    def _bytes(self, sizes: Sizes) -> int:
        """Bytes of arguments with dynamic dimensions, of these sizes."""
        return self.declared.bytes_at(dict(zip(self.declared.dims, sizes, strict=True)), self.args, self.kwargs)

    def examples(self, sizes: Sizes, cuts: Sequence[Cut] = ()) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of some sizes, and what stands for calls behind them."""
        check_time(self.deadline, f"what they are at {self.text(sizes)}")
        args, kwargs = self.declared.resized(sizes, self.args, self.kwargs)
        chosen = dict(zip(self.declared.dims, sizes, strict=True))
        more = [cut.example(chosen) for cut in cuts]
        if not kwargs:
            return (*args, *more), {}
        return args, kwargs | {unused_name(f"cut_{place}", kwargs): tensor for place, tensor in enumerate(more)}

    def _decided(self, sizes: Sizes) -> Verdict:
        """The verdict on the functions at some sizes; raises SizeMatters where one is no program there."""
        args, kwargs = self.examples(sizes)
        try:
            return self.decide(*self.functions, kwargs or args)
        except MugraphError as error:
            raise SizeMatters(f"at {self.text(sizes)}: {error}") from error

    def _decided_as_recorded(self, families: Sequence[Family], sizes: Sizes) -> Verdict:
        """The verdict on the recorded calls at some sizes, where it is evidence for others; on the functions where they differ.

        Raises SizeMatters where the functions do not differ as the calls do, and where nothing follows for other sizes.
        """
        args, kwargs = self.examples(sizes, families[0].cuts)
        examples = kwargs or args
        left, right = (family.cut_program(args, kwargs) for family in families)
        verdict = self.decide(left, right, examples)
        reason = next((cut.reason for cut in families[0].cuts), "")
        if verdict.outcome is Outcome.DIFFERENT or (reason and not verdict.equivalent):
            own = self._decided(sizes)
            if own.equivalent and reason:
                raise SizeMatters(f"{reason}, and they are not shown to agree whatever stands there")
            if own.equivalent:
                raise SizeMatters(f"at {self.text(sizes)} their recorded calls differ, and they do not; please report this")
            return own
        if verdict.equivalent and not all(family.has_values for family in families):
            self._check_values(families, compared(left, right, examples), sizes)
        return verdict

    def _check_values(self, families: Sequence[Family], pair: Comparison, sizes: Sizes) -> None:
        """Raise SizeMatters unless functions that may divide by zero have values at nearly all inputs of these sizes."""
        if not all(family.counted.analytic for family in families):
            raise SizeMatters("they divide by a sum over an axis of varying size that may be 0, and are no analytic functions")
        reason = without_generic_values(pair.left, pair.right, pair.fixed)
        if reason:
            raise SizeMatters(f"at {self.text(sizes)} they may have a value nowhere: {reason}")

    def check_recorded(self, families: Sequence[Family], sizes: Sizes) -> None:
        """Raise SizeMatters unless the functions are what was recorded of them, at these sizes."""
        args, kwargs = self.examples(sizes)
        for fn, family in zip(self.functions, families, strict=True):
            if not self.decide(fn, family.program(args, kwargs), kwargs or args).equivalent:
                raise SizeMatters(f"the program of one at {self.text(sizes)} is another one than is recorded for all sizes")

    def families_of(self, ranges: Sequence[Dim]) -> tuple[Family, ...]:
        """Both functions' calls at all sizes of ranges; raises SizeMatters where they are not known, or not counted."""
        numbers: dict[Any, int] = {}
        recordings = [self._recorded(fn, ranges, numbers) for fn in self.functions]
        args, kwargs = self.examples(self._generic(ranges, self.declared))
        joined = joined_cuts([each.cut for each in recordings], tree_leaves((args, kwargs)))
        cuts = tuple({cut.number: cut for each in joined for cut in each.own.values()}.values())
        return tuple(
            Family(each.cut.calls, each.results, counted_with(each.cut, own.operands, each.names), own.own, cuts, own.operands)
            for each, own in zip(recordings, joined, strict=True)
        )

    def _recorded(self, fn: Fn, ranges: Sequence[Dim], numbers: dict[Any, int]) -> _Recording:
        varying = {dim.name: dim for dim in ranges if dim.low < dim.high}
        kept = {
            argument: {place: varying[dim.name] for place, dim in dims.items() if dim.name in varying}
            for argument, dims in self.declared.dynamic.items()
        }
        declared = Declared.of({argument: dims for argument, dims in kept.items() if dims})
        args, kwargs = self.examples(self._generic(ranges, declared))
        with asked_outside_torch() as asked:
            program = recorded(fn, declared, args, kwargs, self.deadline)
        check_questions(asked)
        calls = calls_of_arguments(program)
        names = _names_of_symbols(calls.graph, declared, args, kwargs)
        for node in calls.graph.nodes:
            if node.op == "get_attr" and not bool(torch.isfinite(getattr(calls, node.target)).all()):
                raise SizeMatters("a tensor that a function brings along has numbers that are not finite")
        return _Recording(cut_where_needed(calls, names, numbers), program.call_spec.out_spec, names)

    def _generic(self, ranges: Sequence[Dim], declared: Declared) -> Sizes:
        """Sizes at which a function is recorded, each another one where there are as many."""
        taken: list[int] = []
        for dim in ranges:
            slice_bytes = bytes_of_slice(declared, self.args, self.kwargs)
            sizes = [dim.low] if dim.low == dim.high else compared_sizes(dim, slice_bytes)
            taken.append(next((size for size in sizes if size not in taken), sizes[0]))
        return tuple(taken)


@dataclass(frozen=True, slots=True)
class _Recording:
    """What PyTorch recorded of a function, its results, and the dimensions that symbols are sizes of."""

    cut: CutCalls
    results: TreeSpec
    names: Mapping[Any, str]


@dataclass(frozen=True, slots=True)
class Family:
    """What PyTorch recorded of a function with symbols for sizes, and bounds on what it returns; `cuts` are the calls that inputs
    stand for in it, its `own`, and in another function that it is compared with. Both give `operands` of such calls behind their
    results, which are to be equal, too."""

    calls: fx.GraphModule
    results: TreeSpec
    counted: Counted
    own: Mapping[fx.Node, Cut]
    cuts: tuple[Cut, ...] = ()
    operands: tuple[fx.Node, ...] = ()

    @property
    def has_values(self) -> bool:
        """Whether it has a value wherever its local elements are defined, at every size."""
        return all(each.bounds.everywhere for each in self.counted.outputs)

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
        """The calls at the sizes of arguments."""
        return program_of_calls(self.calls, self._result, args, kwargs)

    def cut_program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
        """The same, with inputs behind the arguments for what is cut."""
        calls = with_inputs(self.calls, self.own, self.cuts, self.operands)
        return program_of_calls(calls, self._with_operands if self.operands else self._result, args, kwargs)

    def _result(self, leaves: list[Any]) -> Any:
        return tree_unflatten(leaves, self.results)

    def _with_operands(self, leaves: list[Any]) -> Any:
        count = self.results.num_leaves
        return self._result(leaves[:count]), *leaves[count:]


def _in_order(fn: Fn, names: tuple[str, ...]) -> Fn:
    """The function with these arguments in the order of `names`, whatever order calls have, where it could tell them apart."""
    if [*names] == sorted(names) or not takes_any_names(fn):
        return fn

    def called(**kwargs: Any) -> Any:
        return fn(**{name: kwargs[name] for name in names})

    called.__name__ = getattr(fn, "__name__", type(fn).__name__)
    return called


def _parts(dims: Sequence[Dim]) -> list[tuple[Dim, ...]]:
    """Ranges that make up all sizes, in which every dimension has size 1 or sizes from 2 on."""
    choices = [
        [
            replace(dim, low=low, high=high)
            for low, high in ((dim.low, min(dim.high, 1)), (max(dim.low, 2), dim.high))
            if low <= high
        ]
        for dim in dims
    ]
    return [*itertools.product(*choices)]


def _cutoffs(left: Sequence[Returned], right: Sequence[Returned]) -> dict[str, Cutoff]:
    """The cutoffs of two functions that return tensors of the same shapes, by dimension; raises SizeMatters for others."""
    if [(each.shape, each.dtype) for each in left] != [(each.shape, each.dtype) for each in right]:
        raise SizeMatters("they return tensors of different shapes or types")
    found: dict[str, Cutoff] = {}
    for ours, theirs in zip(left, right, strict=True):
        for name, cutoff in cutoffs(ours.bounds, theirs.bounds, ours.shape).items():
            found[name] = found[name] | cutoff if name in found else cutoff
    return found


def chosen_sizes(ranges: Sequence[Dim], found: Mapping[str, Cutoff]) -> list[range]:
    """Sizes of each dimension that decide about all in its range: those from the cutoff on, or all."""
    chosen = []
    for dim in ranges:
        cutoff = found.get(dim.name, Cutoff(1, 1))
        decide = range(dim.at_least(cutoff.first), dim.high + 1, dim.multiple_of)[: cutoff.count]
        chosen.append(decide if len(decide) == cutoff.count else dim.sizes)
    return chosen


def _vanishing(ranges: Sequence[Dim], families: Sequence[Family]) -> list[Sizes]:
    """Sizes at and beside which a number made of one of them is 0, if something may be divided by it or is no sum; those of other
    dimensions are the least."""
    if all(family.has_values and not family.own for family in families):
        return []
    lows = tuple(dim.sizes[0] for dim in ranges)
    return [
        (*lows[:place], size, *lows[place + 1 :])
        for place, dim in enumerate(ranges)
        for size in sorted({size for family in families for size in family.counted.vanishing.get(dim.name, ())})
        if size in dim.sizes
    ]


def _names_of_symbols(graph: fx.Graph, declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Any, str]:
    """The dimension that each symbol of a recorded graph of arguments is the size of; raises SizeMatters for other sizes."""
    values = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    given = [*enumerate(args), *kwargs.items()]
    leaves = [tree_leaves(value) for _, value in given]
    if len(values) != sum(map(len, leaves)):
        raise SizeMatters("arguments are not recorded one by one")
    starts = itertools.accumulate(map(len, leaves), operator.add, initial=0)
    place_of = {argument: start for (argument, _), start in zip(given, starts, strict=False)}
    names: dict[Any, str] = {}
    for argument, tensor, position, dim in declared.places(args, kwargs):
        size = values[place_of[argument]].shape[position % tensor.dim()]
        if not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol:
            raise SizeMatters(f"the size of {dim.name} is not recorded as a symbol")
        if names.setdefault(size.node.expr, dim.name) != dim.name:
            raise SizeMatters(f"the sizes of {names[size.node.expr]} and {dim.name} are recorded as one")
    return names
