"""The table of sizes of a function that acts on slices: which are searched, proved and measured, and what they cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER
from mugraph.runtime.benchmarking import medians
from mugraph.sizes.chunk_plans import Chunk, Costs
from mugraph.sizes.dims import Dim
from mugraph.sizes.dynamic_results import DynamicSuperoptimized, all_seconds, seconds_of_call
from mugraph.sizes.stage_times import StageTimes
from mugraph.support.deadline import Deadline
from mugraph.targets.machine import machine_for

_WANTED = 0.85
"""The speed that every size is to have beside kernels made for it."""
_APART, _APART_IN_PART = 4, 32
"""Neighbours in a table differ by this factor at most: what is not measured is known from them. They may differ more where the
larger one computes its first slices alone, which are timed at a few sizes between both."""
_TIMES = 2.0
"""Sizes that would be slow are added, and others given more forms, while all of them take less than so many times as long to
make as the largest took, of which one muGraph is proved, where three are of one size by itself."""
_GAIN, _TIMES_GAINING = 0.7, 4.0
"""And where no kernels compute first slices, while they take less than so many times as long, if what was added last takes this
part of its time before: it was not only predicted to gain."""
_FEW, _TAKEN_OVER = 8, 3
"""MuGraphs that are compiled for the smallest size, and for one that takes over forms of its neighbours."""
_MOST = 16
"""Sizes of a table at most."""
_ANCHORS = 0.6
"""The part of the budget for the sizes that are searched freely; the others take over what was found there."""
_REST = 0.8
"""And of what is left, for those that take over what was found in pieces."""
_MANY = 24
"""Nodes of a program from which on kernels often run parts of it only: the first size that is searched has most of the time."""
_LOOKED_AT = 512
"""Sizes of a range that are looked at for the slowest."""
_ROUNDS, _SECONDS = 30, 1.0
"""In which all sizes of a table are timed beside each other, and how long at most."""


@dataclass(slots=True)
class SizeTable:
    """The table of a function that acts on slices, while it is filled: until the deadline, but for the largest size at least."""

    result: DynamicSuperoptimized
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    deadline: Deadline
    most: int | None = None
    """The largest size that is searched; that of the range where it is None. Larger ones are several chunks."""
    _taking_over: float = field(default=0.0, init=False)
    """Seconds in which a size took over the form of another, the last time."""
    _settling: float = field(default=0.0, init=False)
    """And in which costs were computed."""
    _making: float = field(default=0.0, init=False)
    """Seconds, without those of measurement, that the last size took, or that another one is expected to take."""
    _largest: float = field(default=math.inf, init=False)
    """And that the largest took, which is the first."""
    _gained: bool = field(default=False, init=False)
    """Whether the size that was added last takes much less time than before."""
    _recalled: float = field(default=0.0, init=False)
    """And that results took which an earlier process made."""
    _forms_of: dict[int, set[object]] = field(default_factory=dict, init=False)
    """The forms that sizes were made with, whether or not they kept them."""
    _acts: dict[int, tuple[Superoptimized, object, bool]] = field(default_factory=dict, init=False)
    """By size, of what was found as which function whether others are put together of it."""

    def fill(self) -> None:
        """Search at the ends of the range, and between them if kernels may run parts of the function only; then add sizes where
        others would be slow as far as costs say."""
        dim = self._dim
        high = dim.high if self.most is None else dim.below(min(dim.high, self.most))
        with self._one_size():
            self._fill_freely(high, 1)
        self._largest, others = self._making, self._other_anchors(dim.low, high)
        for number, size in enumerate(others):
            if not self.deadline.passed:
                with self._one_size():
                    self._fill_freely(size, len(others) - number)
        if not self._may_be_pieced:  # others compile as many less
            self._making *= _TAKEN_OVER / _FEW
        self.result.settings["budget"] = None
        self.settle()
        self._improve_all()
        while self._may_grow:
            missing = self._missing()
            if missing is None:
                break
            before = self.result.costs.plan(missing).seconds
            with self._one_size():
                self._take_over(missing)
                self.settle()
            self._gained = self.result.costs.plan(missing).seconds < _GAIN * before
        self._improve_all()

    def _other_anchors(self, low: int, high: int) -> list[int]:
        """The smallest size, and a middle one of a function of which kernels may run parts only: less than that where those for
        the largest size compute its first slices alone, which are slow where they are few."""
        sizes, middle = [low], self._dim.middle(low, high)
        if self._may_be_pieced and middle is not None:
            sizes.append(self._half(middle, low) if self._computes_first(high) else middle)
        return [size for size in sizes if size != high]

    @property
    def _dim(self) -> Dim:
        """The dimension of slices."""
        (dim,) = self.result.dims.values()
        return dim

    def _half(self, size: int, low: int) -> int:
        """Half of a size that is larger than `low`, or what is next to that."""
        return max(self._dim.below(size // 2), low + self._dim.multiple_of)

    @contextmanager
    def _one_size(self) -> Iterator[None]:
        """Count what a size takes to make."""
        before = self._spent
        yield
        self._making = self._spent - before

    @property
    def _spent(self) -> float:
        """Seconds that everything took so far but for measurement, also what an earlier process made."""
        return self.result.times.making + self._recalled

    @property
    def _may_grow(self) -> bool:
        """Whether other sizes can be put together of what is known, and there is room and time to know more."""
        return len(self.result.table) < _MOST and self._may_improve

    @property
    def _may_improve(self) -> bool:
        """The same of sizes that are in the table: there is time for what took so long the last time."""
        result = self.result
        known = result.slices is not None and bool(result.costs.kernels or result.costs.own)
        return known and not self.deadline.passed and self.deadline.allows(self._taking_over + self._settling)

    def settle(self) -> None:
        """Compute the costs of what may be a part of others; without anything of that kind the function itself runs all sizes."""
        result, started = self.result, self.deadline.elapsed
        if result.pieced is None and result.slices is not None:
            if self._in_pieces() is None:
                self._as_one_program()
            else:
                self._becomes_pieced()
        if result.slices is None:
            return
        with result.times.of("verify"):
            kernels, alone = self._by_what_they_run()
        if result.slices is None:
            return
        measured = any(made.report.original_latency is not None for made in result.table.values())
        with result.times.of("measure"):
            costs = result.costs if result.costs.kernels else self._of_chunks(kernels)
            seconds, own = self._together(kernels | alone) if measured else (all_seconds(kernels | alone), {})
        together, by_themselves = ({size: seconds[size] for size in each} for each in (kernels, alone))
        parts = self._in_part(kernels, measured)
        result.costs = replace(costs, kernels=together, own=own, parts=parts, alone=by_themselves)
        self._settling = self.deadline.elapsed - started

    def _by_what_they_run(self) -> tuple[dict[int, Superoptimized], dict[int, Superoptimized]]:
        """What was found by size: of what others are put together, and what runs its own size alone. Where a program is another
        one than was proved to act on slices, nothing does, and the result says why."""
        result = self.result
        kernels: dict[int, Superoptimized] = {}
        alone: dict[int, Superoptimized] = {}
        for (size,), made in result.table.items():
            known = self._acts.get(size)
            if known is None or known[0] is not made or known[1] is not result.slices:
                if made.is_one_program and result.sliced is not None and not result.sliced.is_program_of(made.program):
                    result.sliced = result.pieced = None
                    result.reason = f"its program at size {size} is another one than was proved to act on slices"
                    return {}, {}
                known = self._acts[size] = made, result.slices, made.found and result.is_of_slices(size, made)
            if made.found:
                (kernels if known[2] else alone)[size] = made
        return kernels, alone

    def _fill_freely(self, size: int, left: int) -> None:
        """Search at an end of the range, or between them; `left` sizes are missing but for the larger end. Others than that have
        few muGraphs compiled, one of them of the form that was found for it. Where kernels run parts of the function, they take
        over what was found for it, and that others are put together of these is asked while there is time."""
        pieces = self._in_pieces() if self._may_be_pieced else None
        freely = (3 if self.result.table else 1) if self._may_be_pieced else 2
        budget = self.deadline.share(_ANCHORS / freely if pieces is None else _REST / left)
        if pieces is None and not self._may_be_pieced and self.result.table:
            wholes = [made for made in self.result.table.values() if made.found and made.is_one_program]
            self._filled(size, wholes, _FEW, budget)
        else:
            self._made(size, budget=budget, like=pieces)
            if pieces is not None:
                self._forms_of.setdefault(size, set()).add(_form(pieces))
        if self._may_be_pieced and self.result.pieced is None and self._in_pieces() is not None:
            self._becomes_pieced()
            made = self.result.table[size,]
            if self.result.pieced is not None and self.result.is_of_slices(size, made):  # before others have spent the time
                self._slice(size, made, made.report.original_latency is not None)

    def _made(self, size: int, **settings: Any) -> Superoptimized:
        """What is found for a size, which is in the table then."""
        made = self.result.fill((size,), self.args, self.kwargs, candidates=self._proved, **settings)
        if made.report.recalled:
            self._recalled += StageTimes.of_report(made.report).making
        return made

    @property
    def _proved(self) -> int:
        """How many muGraphs of a size are proved: others are put together of the fastest one alone."""
        asked: int | None = self.result.settings.get("candidates")
        return 1 if asked is None else asked

    @property
    def _may_be_pieced(self) -> bool:
        """Whether kernels may run parts of the function only: it is no program, or a long one."""
        sliced = self.result.sliced
        return sliced is None or len(sliced.slice.graph.nodes) > _MANY

    def _in_pieces(self) -> Superoptimized | None:
        """The result for the largest size at which kernels run parts of the function; None where there is none, or where they run
        all of it at some size."""
        found = {size: made for (size,), made in self.result.table.items() if made.found}
        pieced = None if any(made.is_one_program for made in found.values()) else found
        return pieced[max(pieced)] if pieced else None

    def _becomes_pieced(self) -> None:
        """Put sizes together of results in pieces, if that can be; else none are, and the result says why. Where time was
        wanting to ask, sizes of the table have their results, and the function itself answers at others."""
        from mugraph.frontend.symbolic_sizes.axes import SizeMatters
        from mugraph.sizes.pieced_functions import pieced_function  # loads PyTorch

        result = self.result
        try:
            given = result.fn, result.declared, self.args, self.kwargs, result.sliced, self.deadline
            with result.times.of("verify"):
                result.pieced = pieced_function(*given)
        except SizeMatters as error:
            result.reason = f"kernels run parts of it only, which are not put together: {error}"
            if not self.deadline.passed:
                result.sliced = None

    def _as_one_program(self) -> None:
        """Give sizes at which kernels run parts of the function only the form of the nearest that is one program: parts are not
        put together with these, and one such size would keep all others from being."""
        table = self.result.table
        wholes = {size: made for (size,), made in table.items() if made.is_one_program}
        for size in [size for (size,), made in table.items() if made.found and size not in wholes] if wholes else []:
            self._filled(size, [wholes[min(wholes, key=lambda known: abs(math.log(known / size)))]])

    def _computes_first(self, size: int) -> bool:
        """Whether kernels of a size are known to compute its first slices alone."""
        known = self.result.in_part.get(size)
        return known is not None and known.kernels is not None

    def _in_part(self, kernels: Mapping[int, Superoptimized], measured: bool) -> dict[int, Mapping[int, float]]:
        """Which part of their time kernels take that compute their first slices alone; those of what is new are made while there
        is time, for the most sizes first."""
        known, self.result.in_part = self.result.in_part, {}
        for size, made in sorted(kernels.items(), reverse=True):
            if size in known and known[size].whole == _whole(made):
                self.result.in_part[size] = known[size]
            else:
                self._slice(size, made, measured)
        return {size: each.parts for size, each in self.result.in_part.items() if each.kernels is not None}

    def _slice(self, size: int, made: Superoptimized, measured: bool) -> None:
        """Make the kernels of a size compute first slices alone, if they can and there is time."""
        import torch

        from mugraph.pieces.data import PartitionedResult
        from mugraph.sizes.rescaled_calls import RescaledCalls  # loads PyTorch
        from mugraph.sizes.sliced_kernels import InPart
        from mugraph.sizes.sliced_pieces import sliced_pieces

        result, function = self.result, self.result.slices
        assert function is not None, "kernels are those of slices"
        least = function.dim.low if result.pieced is None else result.pieced.least
        if size <= least or self.deadline.passed:
            return
        args, kwargs = result.declared.resized((size,), self.args, self.kwargs)
        with torch.no_grad():  # of kernels that are tried nobody wants gradients
            example = made.calling.flatten(args, kwargs)
            places = function.inputs, function.outputs
            if isinstance(made, PartitionedResult):
                module = made.cut.recorded.module
                assert result.pieced is not None, "else it is no kernels of slices"
                calls = RescaledCalls.of(module, size, *result.pieced.recorded_at_another(size))
                with result.times.of("compile"):
                    first = sliced_pieces(module, made.cut.plan, *places, example, self.deadline, calls)
                new = InPart.by(_whole(made), first, least)
            else:
                with result.times.of("compile"):
                    new = InPart.of(made.executable, *places, example, least, self.deadline)
        with result.times.of("measure"):
            result.in_part[size] = new.measured(example, self.deadline) if measured else new

    def _together(self, kernels: Mapping[int, Superoptimized]) -> tuple[dict[int, float], dict[int, float]]:
        """Seconds of kernels at the sizes of the table, and of the function there and between them, all in turns: what other
        programs do meanwhile slows down all of them. Without time for that they are those that were measured one by one, but for
        a call of the function at the smallest size, of which nothing else says what it takes."""
        machine = machine_for(next(iter(self.result.table.values())).target)
        table = sorted(size for (size,) in self.result.table)
        if self.deadline.passed:
            own, least = _own_seconds(self.result), table[0]
            if own and least not in own:
                own |= {least: medians({"own": machine.timed(self._call(least, self.result.fn)).run}, 1)["own"]}
            return all_seconds(kernels), own
        between = {self._dim.middle(*pair) for pair in itertools.pairwise(table)}
        sizes = sorted({*table, *(size for size in between if size is not None)})
        calls = {f"{size}": machine.timed(self._call(size, made)).run for size, made in kernels.items()}
        calls |= {f"own {size}": machine.timed(self._call(size, self.result.fn)).run for size in sizes}
        seconds = medians(calls, _ROUNDS, self._seconds)
        return {size: seconds[f"{size}"] for size in kernels}, {size: seconds[f"own {size}"] for size in sizes}

    def _missing(self) -> int | None:
        """The size to add to the table: in the middle between two that are far apart, or between which most sizes would be slow,
        on a logarithmic scale; None if none would be. Between those far apart it is half of that where kernels of the larger
        compute first slices, which are slower than others where these are few, and half of a size that has no kernels."""
        dim, costs = self._dim, self.result.costs
        known = sorted(size for (size,) in self.result.table)
        for low, high in itertools.pairwise(known):
            in_part = high in costs.parts
            if high > (_APART_IN_PART if in_part else _APART) * low:
                middle = self._dim.middle(low, high) if self.result.table[high,].found else dim.below(high // 2)
                return middle if middle is None or not in_part else self._half(middle, low)
        if not self._takes_less_than(_TIMES_GAINING if self._gained and not costs.parts else _TIMES):
            return None
        step = max((dim.high - dim.low) / _LOOKED_AT, 1)
        numbers = {round(dim.low + step * number) for number in range(int((dim.high - dim.low) / step) + 1)}
        numbers |= {size + dim.multiple_of for size in known if size < dim.high}
        looked_at = {dim.below(number) for number in numbers | {2**power for power in range(dim.high.bit_length())}}
        ratios = {size: costs.ratio(size) for size in looked_at if known[0] < size < known[-1] and size not in known}
        slow: dict[tuple[int, int], list[int]] = {}
        for size, ratio in ratios.items():
            if ratio < _WANTED:
                around = max(each for each in known if each < size), min(each for each in known if each > size)
                slow.setdefault(around, []).append(size)
        if not slow:
            return None
        low, high = max(slow, key=lambda around: sum(1 / size for size in slow[around]))
        return self._dim.middle(low, max(slow[low, high]) + dim.multiple_of if high in costs.parts else high)

    def _takes_less_than(self, times: float) -> bool:
        """Whether all sizes take less than so many times as long to make as the largest took, with another one that takes as long
        as the last."""
        return self._spent + self._making <= times * self._largest

    def _take_over(self, size: int) -> None:
        """Fill in a size with the forms of muGraphs that won at its neighbours: the faster of both."""
        known = sorted(each for (each,) in self.result.table)
        around = [min(each for each in known if each > size), max(each for each in known if each < size)]
        found = _different([self.result.table[each,] for each in around if self.result.table[each,].found])
        if all(each.is_one_program for each in found):
            self._filled(size, found, _TAKEN_OVER if found else _FEW)
            return
        made: list[Superoptimized] = []
        for like in found:
            if not made or (self._may_improve and self._takes_less_than(_TIMES)):
                made.append(self._filled(size, [like]))
        made.sort(key=lambda each: (seconds_of_call(each) if each.found else None) or math.inf)
        self.result.table[size,] = self.result.specializations[size,] = made[0]

    def _filled(
        self, size: int, likes: Sequence[Superoptimized], compiled: int = _TAKEN_OVER, share: float | None = None
    ) -> Superoptimized:
        """What is found for a size in its share of the budget, or in the time that is left, but for that in which costs are
        computed: of so many muGraphs, one of each form of other results, which are several that are one program or one in
        pieces."""
        started, remaining = self.deadline.elapsed, self.deadline.remaining
        budget = share if remaining is None or share is not None else max(remaining - self._settling, 0.0)
        asked: int | None = self.result.settings.get("compiled")
        compiled = compiled if asked is None else min(compiled, asked)
        made = self._made(size, budget=budget, like=likes[0] if len(likes) == 1 else likes, compiled=compiled)
        self._forms_of.setdefault(size, set()).update(map(_form, likes))
        self._taking_over = self.deadline.elapsed - started
        return made

    @property
    def _seconds(self) -> float:
        """In which calls are timed in turns."""
        remaining = self.deadline.remaining
        return _SECONDS if remaining is None else min(_SECONDS, remaining)

    def _improve_all(self) -> None:
        """Give sizes of the table the forms of others where these are faster."""
        sizes = [size for (size,) in sorted(self.result.table)]
        improved = [size for size in sizes if self._may_improve and self._takes_less_than(_TIMES) and self._improve(size)]
        if improved:
            self.settle()

    def _improve(self, size: int) -> bool:
        """Whether a size of the table was given the form of another, which is faster: one that covers it in less time than its
        own kernels take as far as costs say, or if it has none the nearest. Sizes that are searched have a part of the budget
        each."""
        result, costs, before = self.result, self.result.costs, self.result.table[size,]
        others = {known: seconds for known, seconds in costs.kernels.items() if known != size}
        plan = replace(costs, kernels=others).plan(size)
        covering = next((chunk.size for chunk in plan.chunks), None)
        if not before.found and others:
            covering = min(others, key=lambda known: abs(math.log(known / size)))
        elif plan.seconds >= costs.kernels.get(size, costs.alone.get(size, math.inf)):
            return False
        if covering is None:
            return False
        like = result.table[covering,]
        tried = self._forms_of.setdefault(size, set())
        if before.found:
            tried.add(_form(before))
        if _form(like) in tried:
            return False
        after = self._filled(size, [like])
        if after.found and (not before.found or self._is_faster(size, after, before)):
            return True
        result.table[size,] = result.specializations[size,] = before
        return False

    def _is_faster(self, size: int, one: Superoptimized, other: Superoptimized) -> bool:
        """Whether one of two results for a size is the faster one, as measured in turns or as far as is known."""
        if None in (one.report.original_latency, other.report.original_latency):
            return (seconds_of_call(one) or math.inf) < (seconds_of_call(other) or math.inf)
        timed = machine_for(one.target).timed
        calls = {name: timed(self._call(size, run)).run for name, run in (("one", one), ("other", other))}
        with self.result.times.of("measure"):
            seconds = medians(calls, _ROUNDS, self._seconds)
        return seconds["one"] < seconds["other"]

    def _of_chunks(self, kernels: Mapping[int, Superoptimized]) -> Costs:
        """What a chunk costs beside its kernels and padding does, as measured at the smallest size, and copying a slice does,
        at the largest: a cache of many samples takes longer to copy than kernels to read."""
        size, largest = min(kernels, default=0), max(kernels, default=0)
        machine = machine_for(kernels[size].target) if kernels else None
        if machine is None or not machine.available:
            return Costs({})
        result, less = kernels[size], self._dim.multiple_of
        runs: dict[str, tuple[int, Callable[..., Any]]] = {"alone": (size, result)}
        runs["two"] = 2 * size, self.result.covering(2 * size, [Chunk(0, size), Chunk(size, size)])
        if size > less:
            runs["padded"] = size - less, self.result.covering(size - less, [Chunk(0, size)])
        if largest > size:
            runs["all"] = largest, kernels[largest]
            runs["all padded"] = largest - less, self.result.covering(largest - less, [Chunk(0, largest)])
        calls = {name: self._call(*run) for name, run in runs.items()}
        timed = {name: machine.timed(call).run for name, call in calls.items()}
        seconds = medians(timed, _ROUNDS, self._seconds)
        chunk = max(seconds["two"] / 2 - seconds["alone"], 0.0)
        padding = max(seconds.get("padded", seconds["alone"] + 2 * chunk) - seconds["alone"], 0.0)
        copied = seconds["all padded"] - seconds["all"] if largest > size else 0.0
        return Costs({}, chunk=chunk, padding=padding, copying=max(copied - padding, 0.0) / largest)

    def _call(self, size: int, run: Callable[..., Any]) -> Callable[[], object]:
        """A call with the example arguments at a size, of which nobody wants gradients."""
        import torch

        args, kwargs = self.result.declared.resized((size,), self.args, self.kwargs)

        def call() -> object:
            with torch.inference_mode():
                return run(*args, **kwargs)

        return call


def _whole(made: Superoptimized) -> Callable[..., Any]:
    """What computes all slices of a result's inputs; that of the same result is equal."""
    from mugraph.pieces.data import PartitionedResult  # loads PyTorch

    return made.run.forward if isinstance(made, PartitionedResult) else made.executable


def _own_seconds(result: DynamicSuperoptimized) -> dict[int, float]:
    """Seconds of the function at sizes of the table, where they were measured beside those of kernels."""
    duels = {size: made.report.baselines.get(EAGER) for (size,), made in result.table.items()}
    return {size: duel.theirs.median for size, duel in duels.items() if duel is not None and duel.theirs is not None}


def _different(results: Sequence[Superoptimized]) -> list[Superoptimized]:
    """Results, one of each form."""
    return list({_form(result): result for result in results}.values())


def _form(result: Superoptimized) -> object:
    """The form of a result: that of its muGraph, or those of several in pieces."""
    from mugraph.selection.structure_key import form_of

    return result.is_one_program, tuple(form_of(each.graph) for each in result.results)
