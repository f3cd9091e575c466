"""Several kernels: every cut that could win is looked at, the best of every kind is proposed, and all compute the program."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace

import numpy as np
import pytest

from mugraph.devices import device_for
from mugraph.ir import DType, Graph, Value
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.validity import check
from mugraph.search import driver, search
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier, distinct_tiers
from mugraph.search.driver import Search
from mugraph.search.partition.cuts import Cut, CutSpace, in_normal_order
from mugraph.search.partition.lower_bounds import is_function
from mugraph.search.partition.plan import Library, Plan, Stage
from mugraph.search.partition.plans import CUT_GAIN, Wanted
from mugraph.search.partition.variants import Parts, Variants, _composed
from mugraph.search.tasks import ANY_GAIN, CANDIDATES, Options
from mugraph.testing import ProgramSpace, random_program
from mugraph.verifier import verify_graphs

from .parallel.items import PATIENT
from .programs import PAPER, chain, finished, outputs, rmsnorm

H100 = device_for("cuda:sm_90")
GPUS = ["cuda:sm_80", "cuda:sm_90", "cuda:sm_100"]


COARSE = Options(finer_tier_seconds=0.0)
"""Where what is looked for is in the coarsest tier: the finer ones have as many seconds as there are, on any machine."""


def grouped_attention(batch: int, dtype: DType = DType.FP32) -> Graph:
    """Attention of 8 query rows over 8192 keys, for two groups of heads."""
    p = Program()
    q = p.input("q", (batch, 2, 8, 128), dtype)
    k, v = (p.input(name, (batch, 2, 8192, 128), dtype) for name in "kv")
    return finished(p, (q @ k.transpose(-2, -1) * 128**-0.5).softmax(-1) @ v)


def normalized_product(n: int) -> Graph:
    """One large product divided by the row lengths of another."""
    p = Program()
    x, a, y, b = (p.input(name, (n, n)) for name in "xayb")
    return finished(p, (x @ a) / ((y @ b).square().sum(-1, keepdim=True) + 1.0).sqrt())


def block_of_a_model(n: int) -> Graph:
    """A normalisation that is wanted itself, and two products of it."""
    p = Program()
    x, a, b = p.input("x", (8, n)), p.input("a", (n, n)), p.input("b", (n, n))
    h = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return finished(p, h @ a, h @ b, h)


def residual(n: int) -> Graph:
    """A product added to its input, which is wanted itself, and a product of that normalised."""
    p = Program()
    x, r = p.input("x", (64, n)), p.input("r", (64, n))
    a, b = p.input("a", (n, n)), p.input("b", (n, n))
    h = x + r @ a
    return finished(p, h, h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt() @ b)


def wide_mlp() -> Graph:
    """Two layers of a network whose hidden layer is wide: in one kernel each block would compute all of it again."""
    p = Program()
    x, a, b = p.input("x", (256, 1024)), p.input("a", (1024, 4096)), p.input("b", (4096, 1024))
    return finished(p, (x @ a).silu() @ b)


def divergence(rows: int, columns: int) -> Graph:
    """The mean of how far the softmax of each row is from that of another: no block holds all rows."""
    p = Program()
    x, y = p.input("x", (rows, columns)), p.input("y", (rows, columns))
    first, second = x.softmax(-1), y.softmax(-1)
    return finished(p, (first * (first.apply("log") - second.apply("log"))).sum(-1).mean(0))


def large_program(seed: int) -> Graph:
    """A random program of which launches take the least time."""
    return random_program(seed, ProgramSpace(sizes=(256, 1024, 4096)))


def spaces(run: Search, produces: tuple[int, ...], tier: Tier = Tier.OPAQUE_SUMS) -> list[CutSpace]:
    """The cuts of all derivations."""
    variants = run.plans.variants(run.axes, tier, produces)
    return [space for batch in variants.batches() for space in variants.spaces(batch, math.inf)]


def sources(stage: Stage) -> set[int]:
    """The device tensors that a launch reads."""
    kernel = stage.kernel
    return {load.source for load in ((kernel.left, kernel.right) if isinstance(kernel, Library) else kernel.sketch.leaves)}


def kinds(graph: Graph) -> list[str]:
    """The kernels of a graph in order."""
    return [node.op for node in graph.kernels()]


@pytest.mark.parametrize("target", ["cpu", *GPUS])
def test_attention_in_one_kernel_and_in_two(target: str) -> None:
    graphs = [candidate.graph for candidate in search(grouped_attention(8), device_for(target), options=COARSE).candidates]
    whole = [graph for graph in graphs if len(graph.kernels()) == 1]
    split = [graph for graph in graphs if len(graph.kernels()) == 2 and len(graph.kernels()[0].outputs) == 3]
    assert any(kernel.body is not None and kernel.body.loop > 1 for graph in whole for kernel in graph.kernels())
    assert split


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_split_attention_fills_the_device(target: str, batch: int) -> None:
    device = device_for(target)
    first, second = search(grouped_attention(batch), device).candidates[0].graph.kernels()
    assert first.body is not None
    assert second.body is not None
    blocks = math.prod(first.body.grid)
    rounds = math.ceil(blocks / device.multiprocessors)
    assert blocks / (rounds * device.multiprocessors) > 0.85


def test_large_products_that_meet_in_a_reduction_are_launches_of_their_own() -> None:
    best = search(normalized_product(2048), H100).candidates[0].graph
    assert kinds(best) == ["matmul", "matmul", "graph_defined"]


def test_a_wide_hidden_layer_is_stored() -> None:
    found = search(wide_mlp(), H100).candidates
    assert len(found[0].graph.kernels()) > 1
    assert all(found[0].cost < candidate.cost / 2 for candidate in found if len(candidate.graph.kernels()) == 1)


def test_outputs_that_others_are_computed_from() -> None:
    for size, device in ((16, device_for("cpu")), (1024, H100)):
        program = block_of_a_model(size)
        found = search(program, device, options=COARSE).candidates
        if size == 16:
            for candidate in found:
                for got, wanted in zip(outputs(candidate.graph), outputs(program), strict=True):
                    np.testing.assert_allclose(got, wanted, rtol=1e-9)
    assert len(found[0].graph.kernels()) > 1


def test_partial_results_are_costed_in_fp32() -> None:
    wide, narrow = (search(grouped_attention(8, dtype), H100, options=COARSE).candidates[0] for dtype in (DType.FP32, DType.BF16))
    first, second = narrow.graph.kernels()
    assert {tensor.dtype for tensor in first.outputs} == {DType.FP32}
    assert second.output.dtype is DType.BF16
    assert narrow.cost < wide.cost


def partitions(made: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """All ways to divide terms into groups."""
    if not made:
        yield []
        return
    for groups in partitions(made[1:]):
        yield [made[:1], *groups]
        for place, group in enumerate(groups):
            yield [*groups[:place], (made[0], *group), *groups[place + 1 :]]


def can_be_launched(space: CutSpace, stored: tuple[int, ...], groups: Sequence[tuple[int, ...]]) -> bool:
    """Whether launches make these groups in some order, each tensor is stored for another one, and none has two things to do."""
    reads = [space.visit(group, sum(1 << term for term in stored if term not in group))[1] for group in groups]
    before = [{other for other, made in enumerate(groups) if any(read >> term & 1 for term in made)} for read in reads]
    in_order = any(
        all(before[group] <= {*order[:place]} for place, group in enumerate(order))
        for order in itertools.permutations(range(len(groups)))
    )
    return in_order and all(any(read >> term & 1 for read in reads) for term in stored) and all(map(space.related, groups))


@pytest.mark.parametrize("launches", [2, 3, 4])
@pytest.mark.parametrize("program", [rmsnorm(), chain(), normalized_product(8)], ids=["rmsnorm", "chain", "normalized product"])
def test_cuts_are_all_sets_of_stored_tensors(program: Graph, launches: int) -> None:
    run = Search(program, H100)
    space = CutSpace(in_normal_order(run.axes), run.plans.roofline, (-1,))
    found = [frozenset(cut.groups) for cut in space.cuts(launches, lambda: math.inf)]
    points, (output,) = space.cut_points(), space.outputs
    wanted = {
        frozenset(groups)
        for count in range(1, 5)
        for stored in itertools.combinations(sorted(points, key=points.index), count)
        for groups in partitions((*stored, output))
        if 2 <= len(groups) <= launches and can_be_launched(space, stored, groups)
    }
    assert {frozenset(map(frozenset, groups)) for groups in found} == {frozenset(map(frozenset, groups)) for groups in wanted}
    assert len(found) == len(wanted)
    assert found


def test_two_kernels_store_several_tensors_and_the_report_says_how_many() -> None:
    """Both products of a gate in one kernel, and what is made of them in another."""
    p = Program()
    x, a, b, c, d = (p.input(name, (256, 256)) for name in "xabcd")
    program = finished(p, ((x @ a).silu() @ c) * ((x @ b).tanh() @ d))
    run = Search(program, H100, options=replace(PATIENT, max_kernels=2))
    space = CutSpace(in_normal_order(run.axes), run.plans.roofline, run.produces)
    assert {tuple(map(len, cut.groups)) for cut in space.cuts(2, lambda: math.inf)} >= {(1, 1), (2, 1)}
    found = run.run()
    assert any(words.startswith("more than 4 tensors stored") for words in found.report.not_searched)
    first, second = found.candidates[0].graph.kernels()
    assert len(first.outputs) == 2
    assert second.output.shape == (256, 256)
    assert verify_graphs(program, found.candidates[0].graph).equivalent


def test_a_launch_stores_what_it_makes_on_the_way() -> None:
    """The sum is an output; the launch that makes it normalises it as well, for a library to multiply."""
    program = residual(1024)
    best = search(program, H100, options=COARSE).candidates[0].graph
    assert [len(kernel.outputs) for kernel in best.kernels()] == [1, 2, 1]
    assert best.kernels()[-1].op == "matmul"
    small = residual(8)
    run = Search(small, H100)
    produces = (-1, -2)
    (space, *_) = spaces(run, produces)
    cuts = space.cuts(3, lambda: math.inf)
    several = [cut for cut in cuts if any(len(group) == 2 for group in cut.groups)][:3]
    plans = [next(run.plans.cut_plan(cut, Tier.OPAQUE_SUMS, 3, produces, math.inf)) for cut in several]
    assert plans
    for plan in plans:
        for got, wanted in zip(outputs(run._graph(plan)), outputs(small), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9)


def test_launches_compute_an_output_again_where_that_takes_less_than_to_read_it() -> None:
    """A sum of a row and a column is an output, and a function of it is summed up along the axis that no grid of both cuts."""
    p = Program()
    total = p.input("a", (1024, 1)) + p.input("b", (1, 1024))
    program = finished(p, total, total.silu().sum(0))
    device = dataclasses.replace(device_for("cpu"), shared_memory_bytes=1 << 19)  # with 1 MiB, one kernel is taken to be faster
    best = search(program, device, options=Options(max_kernels=2)).candidates[0].graph
    given = {Value(index) for index in range(2)}
    assert [set(kernel.inputs) for kernel in best.kernels()] == [given, given]


def test_launches_read_back_the_outputs_that_their_cut_stores_and_no_others() -> None:
    program = residual(8)
    run = Search(program, H100)
    (space, *_) = spaces(run, run.produces)
    again = 0
    for cut in itertools.islice(space.cuts(3, lambda: math.inf), 20):
        plan = next(run.plans.cut_plan(cut, Tier.OPAQUE_SUMS, 3, run.produces, math.inf))
        read = set().union(*map(sources, plan.stages))
        stored = {source for term, source in zip(space.outputs, run.produces, strict=True) if term in cut.stored}
        assert {output for output, source in run.plans.read_as.items() if source in read} == stored
        again += not stored
        for got, wanted in zip(outputs(run._graph(plan)), outputs(program), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9)
    assert 0 < again < 20


def test_launches_are_in_an_order_in_which_what_they_read_was_made() -> None:
    run = Search(block_of_a_model(16), H100)
    space = CutSpace(in_normal_order(run.axes), run.plans.roofline, (-1, -2, -3))
    shared = 0
    for cut in space.cuts(4, lambda: math.inf):
        made: set[int] = set()
        stored = {term for group in cut.groups for term in group}
        for group in cut.groups:
            _, read = space.visit(group, sum(1 << term for term in stored - set(group)))
            assert {term for term in stored if read >> term & 1} <= made | {i for i, _ in run.axes.loads()}
            made |= set(group)
        assert made >= set(space.outputs)
        shared += any(len(group) > 1 for group in cut.groups)
    assert shared > 3


def test_no_cut_left_out_could_have_won() -> None:
    p = Program()
    x, a, b = (p.input(name, (256, 256)) for name in "xab")
    run = Search(finished(p, (x @ a) / (x @ b).sqrt()), H100)
    best = min(plan.seconds for plan in run.plans.plans(run.axes, Tier.OPAQUE_SUMS, 3, (-1,)))
    unbounded = math.inf
    for space in spaces(run, (-1,)):
        for cut in space.cuts(3, lambda: math.inf):
            for plan in run.plans.cut_plan(cut, Tier.OPAQUE_SUMS, 3, (-1,), math.inf):
                assert plan.seconds >= cut.floor
                unbounded = min(unbounded, plan.seconds)
    assert best <= unbounded / CUT_GAIN


Operands = Sequence[ProgramTensor]
"""Three matrices of one size."""

FUNCTIONS: dict[str, Callable[[Operands], ProgramTensor]] = {
    "exponentials": lambda xyw: (xyw[0].exp() * xyw[1].exp()) @ xyw[2],
    "quotient": lambda xyw: ((xyw[0].exp() / xyw[1].exp()) @ xyw[2]).silu(),
    "softmax": lambda xyw: (xyw[0] @ xyw[2]).softmax(-1) * xyw[1],
    "roots": lambda xyw: ((xyw[0].square() + 1).sqrt() * xyw[1]) @ xyw[2],
    "activations": lambda xyw: (xyw[0] @ xyw[2]).silu().softmax(-1) * xyw[1].apply("tanh"),
}
"""Programs whose functions take a good part of a CPU's time, and of some of which the algebra knows forms with fewer."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_plan_is_below_the_least_roofline_of_the_cuts_that_launch_the_same(name: str) -> None:
    """Launches are searched for all of their derivations: one with fewer functions is a cut of another derivation."""
    p = Program()
    operands = [p.input(operand, (256, 256)) for operand in "xyw"]
    run = Search(finished(p, FUNCTIONS[name](operands)), device_for("cpu"))
    counting = compared = 0
    for tier in distinct_tiers(run.axes):
        floors: dict[object, float] = {}
        cuts: dict[object, Cut] = {}
        for space in spaces(run, run.produces, tier):
            counting += space.one_of_all and any(is_function(space.program, term) for term in space.program.terms)
            for cut in space.cuts(3, lambda: math.inf):
                floors[cut.key] = min(cut.floor, floors.get(cut.key, math.inf))
                cuts[cut.key] = cut
        for key in sorted(cuts, key=floors.__getitem__)[:10]:
            for plan in run.plans.cut_plan(cuts[key], tier, 3, run.produces, math.inf):
                assert plan.seconds >= floors[key] * (1 - 1e-9)
                compared += 1
    assert counting
    assert compared


def test_bounds_of_a_program_cut_as_it_is_written_alone_count_no_functions() -> None:
    """Its launches are searched for derivations with fewer of them."""
    p = Program()
    x, w = (p.input(name, (512, 512)) for name in "xw")
    run = Search(finished(p, (x.exp().sqrt() * x.exp().square().sqrt()) @ w), device_for("cpu"))
    space = CutSpace(in_normal_order(run.axes), run.plans.roofline, run.produces, one_of_all=True)
    below = math.inf
    for cut in space.cuts(2, lambda: math.inf):
        best = min(plan.seconds for plan in run.plans.cut_plan(cut, Tier.FULL, 2, run.produces, math.inf))
        below = min(below, (cut.floor + best) / 2 if best < cut.floor else math.inf)
    assert below < math.inf
    assert run.plans.first_cut(run.axes, Tier.FULL, 2, run.produces, below)


def test_functions_are_what_no_loop_applies_to_sums_of_slices() -> None:
    p = Program()
    x, y = p.input("x", (4, 8)), p.input("y", (4, 8))
    program = axis_program(finished(p, (((x * 2 + 1).exp() - y) / y.silu()).sum(-1)))
    assert [term.op for term in program.terms if is_function(program, term)] == ["add", "exp", "silu"]


@pytest.mark.parametrize(
    "program", [normalized_product(2048), residual(1024), block_of_a_model(1024), *map(large_program, range(12))]
)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_the_bounds_that_leave_out_families_of_cuts_are_below_all_of_them(program: Graph, target: str) -> None:
    run = Search(program, device_for(target))
    space = CutSpace(in_normal_order(run.axes), run.plans.roofline, run.produces, one_of_all=True)
    everything = list(space.cuts(4, lambda: math.inf))
    for bound in np.quantile([cut.floor for cut in everything] or [0.0], [0.1, 0.5, 0.9]) * (1 + 1e-9):  # beyond equal sums
        kept = {cut.groups for cut in space.cuts(4, lambda bound=bound: bound)}  # type: ignore[misc]
        assert kept == {cut.groups for cut in everything if cut.floor < bound}


def test_families_of_cuts_are_the_sets_of_stored_tensors_in_the_order_of_their_traffic() -> None:
    run = Search(residual(256), H100)
    space = CutSpace(in_normal_order(run.axes), run.plans.roofline, run.produces)
    families = list(space.families(3))
    points = space.cut_points()
    sets = {frozenset(some) for count in range(4) for some in itertools.combinations(points, count)}
    assert len(points) > 4
    assert len(families) == len(sets)
    assert {frozenset(stored) for _, stored in families} == sets
    assert [memory for memory, _ in families] == sorted(memory for memory, _ in families)


def worth_trying(cuts: Sequence[Cut], best: float, near: int, tried: Set[object]) -> list[float]:
    """The rooflines of cuts, lowest first, that are tried beside a plan of `best` seconds if none of them is better."""
    lowest: dict[object, float] = {}
    for cut in cuts:
        if cut.key not in tried and cut.floor < best:
            lowest[cut.key] = min(cut.floor, lowest.get(cut.key, math.inf))
    could_win = sum(floor < CUT_GAIN * best for floor in lowest.values())
    return sorted(lowest.values())[: could_win + near]


@pytest.mark.parametrize("near", [0, 1, 5, 1000])
@pytest.mark.parametrize("program", [normalized_product(2048), residual(1024), *map(large_program, range(6))])
def test_every_cut_that_is_worth_trying_is_listed(program: Graph, near: int) -> None:
    run = Search(program, H100)
    tier = distinct_tiers(run.axes)[0]
    every = [cut for space in spaces(run, run.produces, tier) for cut in space.cuts(4, lambda: math.inf)]
    floors = [cut.floor for cut in every] or [1.0]
    for best, share in itertools.product(np.quantile(floors, [0.3, 1.0]) * 1.05, (0, 3)):
        tried = {cut.key for cut in every[::share]} if share else set()
        variants = run.plans.variants(run.axes, tier, run.produces)
        batch = [bounded for some in variants.batches(best) for bounded in some]
        listed = run.plans.cuts(variants, batch, 4, Wanted(best, near, tried))
        expected = worth_trying(every, best, near, tried)
        assert worth_trying(listed, best, near, tried) == pytest.approx(expected, rel=1e-12)  # sums in another order


def test_of_many_cuts_that_win_little_few_are_listed() -> None:
    run = Search(wide_mlp(), H100)
    variants = run.plans.variants(run.axes, Tier.OPAQUE_SUMS, (-1,))
    (batch,) = variants.batches()
    best = 0.999 / CUT_GAIN * min(cut.floor for cut in run.plans.cuts(variants, batch, 5, Wanted(1.0)))
    numbers = [
        len(run.plans.cuts(run.plans.variants(run.axes, Tier.OPAQUE_SUMS, (-1,)), batch, 5, Wanted(best, near)))
        for near in (1, None)
    ]
    assert 0 < numbers[0] < numbers[1]


def test_candidates_are_few_and_in_order() -> None:
    candidates = search(grouped_attention(8), H100).candidates
    assert len(candidates) <= CANDIDATES
    assert [candidate.cost for candidate in candidates] == sorted(candidate.cost for candidate in candidates)


@pytest.mark.parametrize("name", ["rmsnorm", "gqa", "lora"])
def test_a_second_size_is_scheduled_at_once(name: str) -> None:
    search(PAPER[name](), H100)

    def seconds() -> float:
        """Processor time of this thread: a collection of garbage may fall into one search, not into five."""
        started = time.thread_time()
        search(PAPER[name](), H100)
        return time.thread_time() - started

    assert min(seconds() for _ in range(5)) < 0.5  # 0.02 to 0.05 where nothing else runs


def test_cuts_of_a_long_program_end_when_the_time_does() -> None:
    p = Program()
    tensor = p.input("x", (64, 64))
    for layer in range(30):
        tensor = tensor @ p.input(f"w{layer}", (64, 64))
    run = Search(finished(p, tensor), H100)
    calls = itertools.count()
    space = CutSpace(in_normal_order(run.axes), run.plans.roofline, (-1,))
    assert sum(1 for _ in space.cuts(5, lambda: math.inf if next(calls) < 100 else -math.inf)) <= 100
    assert next(calls) < 5000


def test_cuts_that_there_was_no_time_for_are_not_called_searched() -> None:
    run = Search(rmsnorm(), H100)
    run.plans.cut_deadline = 0.0
    assert list(run.plans.cut_plans(run.axes, Tier.OPAQUE_SUMS, 5, (-1,), math.inf)) == []
    assert not run.plans.cuts_complete


def two_products(n: int) -> Graph:
    """Two products with one factor in common."""
    p = Program()
    x, y, z = (p.input(name, (n, n), DType.FP16) for name in "xyz")
    return finished(p, x @ z + y @ z)


def test_cuts_that_store_fewer_tensors_than_there_are_launches_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are many others: while they were tried, there was no time for partial results, nor for the cuts of long programs."""
    p = Program()
    x, a, b, c, d = (p.input(name, (1024, 1024)) for name in "xabcd")
    run = Search(finished(p, ((x @ a).silu() @ c) * ((x @ b).tanh() @ d)), H100)
    stored: list[int] = []

    def none_of(cut: Cut, *_: object) -> Iterator[Plan]:
        stored.append(len(cut.stored))
        return iter(())

    def no_partial_results(*_: object) -> Iterator[Plan]:
        stored.append(0)
        return iter(())

    monkeypatch.setattr(run.plans, "cut_plan", none_of)
    monkeypatch.setattr(run.plans, "partial_plans", no_partial_results)
    list(run.plans.plans(run.axes, Tier.OPAQUE_SUMS, 2, run.produces))
    before, after = stored[: stored.index(0)], stored[stored.index(0) + 1 :]
    assert {*before} == {1}
    assert min(after) == 2
    stored.clear()
    run.plans.first_cut(run.axes, Tier.OPAQUE_SUMS, 3, run.produces)
    assert stored[0] == 1
    assert {*stored} == {1, 2}


def test_algebra_that_only_several_kernels_profit_from() -> None:
    """One sum and one product of a library, where each is a kernel; in one kernel every block would add again."""
    found = search(two_products(4096), H100)
    assert kinds(found.candidates[0].graph) == ["graph_defined", "matmul"]
    assert found.report.exhausted
    for candidate in search(two_products(8), H100).candidates:
        for got, wanted in zip(outputs(candidate.graph), outputs(two_products(8)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9)


def test_algebra_of_parts_where_the_whole_is_too_large_for_it() -> None:
    """As if nothing were known of the whole: the sum of two products is a part, and that is factored."""
    p = Program()
    x, y, z = (p.input(name, (8, 8)) for name in "xyz")
    run = Search(finished(p, (x @ z + y @ z).silu().sum(-1)), H100)
    parts = Parts(run.plans.sketches_of_part(Tier.FULL), run.plans.store)
    variants = Variants(run.axes, (-1,), (), parts, run.plans.roofline, seed=0)
    found = [space for batch in variants.batches() for space in variants.spaces(batch, math.inf)]
    products = [sum(term.op == "contract" for term in space.program.terms) for space in found]
    assert products[0] == 2
    assert 1 in products
    final = {space.digests[term] for space in found for term in space.outputs}
    assert len(final) == 1
    (nothing,) = variants.batches(below=0.0)
    assert len(nothing) == 1


def test_the_program_as_it_is_written_is_cut_before_parts_of_it_are_searched() -> None:
    def never(part: AxisProgram) -> Sequence[Sketch]:
        raise AssertionError(f"{len(part.terms)} terms are searched")

    run = Search(normalized_product(64), H100)
    variants = Variants(run.axes, (-1,), (), Parts(never, run.plans.store), run.plans.roofline, seed=0)
    batches = variants.batches()
    ((floor, written),) = next(batches)
    assert floor == 0.0
    assert len(written().terms) >= len(run.axes.terms)
    with pytest.raises(AssertionError, match="are searched"):
        next(batches)


@pytest.mark.parametrize("time_for", [0, 3])
def test_parts_are_put_together_only_while_there_is_time_for_cuts(monkeypatch: pytest.MonkeyPatch, time_for: int) -> None:
    """Of a whole that is too large; hundreds of derivations of parts had been made before any cut of them was looked at."""
    run = Search(normalized_product(64), H100)
    structure = run.kernels.structure
    composed: list[AxisProgram] = []

    def noted(made: AxisProgram, rest: AxisProgram, source: int) -> AxisProgram:
        composed.append(rest)
        run.plans.cut_deadline = -math.inf if len(composed) == time_for else run.plans.cut_deadline
        return _composed(made, rest, source)

    monkeypatch.setattr("mugraph.search.partition.variants._composed", noted)
    monkeypatch.setattr(run.kernels, "structure", lambda *asked: replace(structure(*asked), saturated=False))
    run.plans.cut_deadline = -math.inf if time_for == 0 else math.inf
    found = run.plans.variants(run.axes, Tier.FULL, run.produces)
    assert found.parts is not None
    assert sum(map(len, found.batches())) >= 1
    assert len(composed) == time_for
    assert not run.plans.cuts_complete


def test_cuts_come_first_where_nothing_is_found_yet() -> None:
    run = Search(rmsnorm(), H100)
    assert run.plans.promising_first(run.axes, (-1,), found=True)[0] == run.plans.partial_plans
    assert run.plans.promising_first(run.axes, (-1,), found=False)[0] == run.plans.cut_plans


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_what_is_no_kernel_has_several_before_any_closure_ends(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(driver, "_AT_ONCE", 1e-6)
    program = divergence(64, 5000)
    device = device_for(target)
    run = Search(program, replace(device, multiprocessors=2) if target == "cpu" else device)
    run._offer_early(Tier.OPAQUE_SUMS)
    assert run.kernels.structures == {}, "no closure with all of its time"
    assert len(min(run.best, key=lambda plan: plan.seconds).stages) == 2
    for plan in run.best:
        graph = run._graph(plan)
        check(graph, run.device)
        np.testing.assert_allclose(outputs(graph)[0], outputs(program)[0], rtol=1e-9)


@pytest.mark.parametrize(("target", "seed"), [("cpu", 2026), ("cuda:sm_90", 2027)])
def test_what_is_offered_early_does_not_hide_what_is_as_fast(monkeypatch: pytest.MonkeyPatch, target: str, seed: int) -> None:
    """The best plan is a cut of the program as it is written, which is taken back once all closures are saturated."""
    p = Program()
    program = finished(p, p.input("x", (512, 4096)).softmax(-1) @ p.input("w", (4096, 512)))
    fresh = Options(seed=seed)  # or else closures would be known from other tests

    def costs() -> list[float]:
        return [candidate.cost for candidate in search(program, device_for(target), options=fresh).candidates]

    with monkeypatch.context() as hurried:
        hurried.setattr(driver, "_AT_ONCE", 1e-6)
        early = costs()
    assert early == costs()


def test_no_cuts_are_listed_once_what_is_offered_early_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """They had most of a budget, though no closure was given a moment any more."""
    monkeypatch.setattr(driver, "_AT_ONCE", 1e-6)
    run = Search(divergence(64, 5000), H100, budget=60, options=Options(least_gain=ANY_GAIN, seed=2028))
    run.run()
    assert run.report.settled
    assert run.plans.cut_deadline <= run.started + run.report.seconds + 1.0


def test_the_first_cut_has_as_few_launches_as_there_are_plans_of() -> None:
    run = Search(normalized_product(64), H100)
    plans = run.plans.first_cut(run.axes, Tier.OPAQUE_SUMS, 4, (-1,))
    assert {len(plan.stages) for plan in plans} == {2}
    run.plans.cut_deadline = 0.0
    assert run.plans.first_cut(run.axes, Tier.OPAQUE_SUMS, 4, (-1,)) == []


def test_derivations_beyond_a_bound_have_no_cut_below_it() -> None:
    run = Search(normalized_product(64), H100)
    variants = run.plans.variants(run.axes, Tier.FULL, (-1,))
    forms = [bounded for batch in variants.batches() for bounded in batch]
    assert len(forms) > 3
    for floor, form in forms:
        space = CutSpace(form().with_sizes(run.axes.sizes), run.plans.roofline, (-1,))
        assert all(cut.floor >= floor for cut in space.cuts(5, lambda: math.inf))


def test_cuts_of_several_derivations_that_launch_the_same_are_tried_once() -> None:
    run = Search(rmsnorm(), H100)
    keys = [cut.key for space in spaces(run, (-1,), Tier.FULL) for cut in space.cuts(5, lambda: math.inf)]
    assert len(set(keys)) < len(keys)
    run.plans.cut_deadline = math.inf
    list(run.plans.cut_plans(run.axes, Tier.FULL, 5, (-1,), math.inf))
    assert run.plans.cuts_tried <= len(set(keys))


@pytest.mark.parametrize(("left", "right", "dim"), [((64, 1), (1024,), -1), ((16, 1), (1, 64), 0), ((8, 64), (64,), -1)])
def test_sums_of_products_of_which_one_factor_is_spread(left: tuple[int, ...], right: tuple[int, ...], dim: int) -> None:
    """A factor without the axis that is summed over is no side of a matrix product."""
    program = Program()
    x, v = program.input("x", left), program.input("v", right)
    program.output((x * v).sum(dim))
    found = search(program.graph, device_for("cpu")).candidates
    assert found
    assert all(verify_graphs(program.graph, candidate.graph).equivalent for candidate in found)
