"""Which steps are proposed as one program: the choice of candidates, and what programs are predicted to take."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.devices import device_for
from mugraph.frontend.partitioning.partition import Piece, partition
from mugraph.pieces.joining import Group, Join, Joining, Unit
from mugraph.pieces.predicted_cost import KnownForms, Measured, PredictedCost, not_predicted_to_pay, seconds_of_calls

DEVICE = device_for("cuda:sm_90")
MATMUL_AND_SUM = torch.ops.aten.mm.default, torch.ops.aten.sum.dim_IntList


def network(reads: Sequence[Sequence[int]]) -> Joining:
    """A graph of units of one call each, of which every one reads some before it."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    for sources in reads:
        nodes.append(graph.call_function(torch.cat, tuple(nodes[source] for source in sources)))
    units = [Unit((), (node,), 1.0, joinable=True, products=0) for node in nodes]
    return Joining(units, PredictedCost(DEVICE, {}), {node: number for number, node in enumerate(nodes)})


def waits(joining: Joining, groups: Sequence[Group]) -> bool:
    """Whether units wait for each other where those of each group are one."""
    home = {number: number for number in range(len(joining.units))} | {n: group[0] for group in groups for n in group}
    before: dict[int, set[int]] = {place: set() for place in home.values()}
    for number, readers in enumerate(joining.readers):
        for reader in readers:
            if home[reader] != home[number]:
                before[home[reader]].add(home[number])
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        return True
    return False


def exhaustive(joining: Joining, candidates: Sequence[Join]) -> float:
    """The most that candidates save together, by looking at all choices."""
    best = 0.0
    for size in range(len(candidates) + 1):
        for choice in itertools.combinations(candidates, size):
            groups = [join.group for join in choice]
            disjoint = sum(map(len, groups)) == len(set().union(*groups))
            if disjoint and not waits(joining, groups):
                best = max(best, sum(join.saving for join in choice))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_the_choice_is_the_best_of_all_that_do_not_wait_for_each_other(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.randrange(4, 10)
    joining = network([[source for source in range(number) if draw.random() < 0.4] for number in range(size)])
    groups = {tuple(sorted(draw.sample(range(size), draw.randrange(2, 4)))) for _ in range(9)}
    candidates = [Join(group, draw.random()) for group in sorted(groups) if not waits(joining, [group])]
    chosen = joining.best(candidates)
    assert not waits(joining, [join.group for join in chosen])
    assert sum(join.saving for join in chosen) == pytest.approx(exhaustive(joining, candidates))
    assert joining.best(candidates) == chosen


def test_two_groups_of_which_each_reads_the_other_are_not_chosen_together() -> None:
    joining = network([[], [], [0], [1]])  # 0 -> 2, 1 -> 3
    crossing = [Join((0, 3), 2.0), Join((1, 2), 3.0)]
    assert waits(joining, [(0, 3), (1, 2)])
    assert joining.best(crossing) == [crossing[1]]


@pytest.mark.parametrize("seed", range(40))
def test_whether_groups_wait_is_seen_when_the_last_is_added(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.randrange(4, 14)
    joining = network([[source for source in range(number) if draw.random() < 0.3] for number in range(size)])
    groups: list[Group] = []
    free = set(range(size))
    for _ in range(6):
        if len(free) < 2:
            break
        group = tuple(sorted(draw.sample(sorted(free), 2)))
        assert joining.run_in_order([*groups, group]) == (not waits(joining, [*groups, group]))
        if joining.run_in_order([*groups, group]):
            groups.append(group)
            free -= set(group)


@pytest.mark.parametrize(("together", "groups"), [(1.55, {(1, 2)}), (1.8, {(1, 2), (0, 1, 2)})])
def test_what_adds_too_little_to_a_group_is_not_in_it(together: float, groups: set[Group]) -> None:
    joining = network([[], [0], [1]])  # each takes a second
    joining.savings.update({(0, 1): 0.05, (0, 2): 0.0, (1, 2): 1.5, (0, 1, 2): together})
    assert {join.group for join in joining.candidates(worth=0.1)} == groups


# --- predicted seconds ---------------------------------------------------------------------------------------------------


def cost_of(fn: Callable[..., object], *inputs: torch.Tensor) -> tuple[float, float]:
    """Predicted seconds of a function on a GPU: as one program, and in the pieces that rules cut."""
    with torch.no_grad():
        graph = make_fx(fn, tracing_mode="fake")(*inputs).graph
    cost = PredictedCost(DEVICE, partition(graph).traits)
    joining = Joining.of(graph, partition(graph), cost)
    whole = tuple(range(len(joining.units)))
    return cost.of_program(joining.nodes_of(whole)), sum(unit.seconds for unit in joining.units)


def _summed(other: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return other(x @ w).sum(-1)


def softmax(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).softmax(-1)


def test_a_sum_of_what_is_linear_in_a_product_needs_no_product() -> None:
    inputs = torch.empty(4096, 4096), torch.empty(4096, 4096)
    summed, apart = cost_of(lambda x, w: (x @ w * 2 + 1).sum(-1), *inputs)
    assert summed < 0.3 * apart
    for other in (torch.relu, torch.square, torch.exp):
        together, _ = cost_of(functools.partial(_summed, other), *inputs)
        assert together > 2 * summed
    read, _ = cost_of(lambda x, w: [x @ w, (x @ w).sum(-1)], *inputs)
    assert read > 2 * summed, "somebody reads the product"


def test_rows_that_are_whole_in_one_block_pay_where_there_are_many() -> None:
    together, apart = cost_of(softmax, torch.empty(4096, 64), torch.empty(64, 256))
    assert together < 0.8 * apart
    together, apart = cost_of(softmax, torch.empty(1, 4096), torch.empty(4096, 8192))
    assert together >= 0.95 * apart, "one block alone would multiply"


def test_rows_that_no_block_holds_are_stored() -> None:
    together, apart = cost_of(softmax, torch.empty(512, 64), torch.empty(64, 1 << 20))
    assert together >= 0.99 * apart


def test_what_calls_take_does_not_depend_on_the_order_in_which_a_set_has_them() -> None:
    def products(x: torch.Tensor, narrow: torch.Tensor, wide: torch.Tensor) -> list[torch.Tensor]:
        return [x @ wide, x @ wide, x @ narrow]

    with torch.no_grad():
        graph = make_fx(products, tracing_mode="fake")(torch.empty(1, 512), torch.empty(512, 640), torch.empty(512, 777)).graph
    cost = PredictedCost(DEVICE, partition(graph).traits)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    assert len({cost.of_calls(order) for order in itertools.permutations(calls)}) == 1


def test_of_a_table_only_what_is_looked_up_is_read() -> None:
    def looked_up(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, table).exp() * 2

    few, _ = cost_of(looked_up, torch.empty(1 << 20, 64), torch.zeros(16, dtype=torch.int64))
    assert few < 2 * DEVICE.launch_seconds


def test_what_was_measured_counts_for_calls_and_for_programs_with_them() -> None:
    with torch.no_grad():
        graph = make_fx(softmax, tracing_mode="fake")(torch.empty(4096, 64), torch.empty(64, 256)).graph
    traits = partition(graph).traits
    product, *_ = nodes = [node for node in graph.nodes if node.op == "call_function"]
    modelled = PredictedCost(DEVICE, traits)
    alone, together = modelled.of_calls([product]), modelled.of_program(nodes)
    slow = PredictedCost(DEVICE, traits, {product: Measured(5 * alone, 3 * alone)})
    assert slow.of_calls([product]) == 5 * alone
    assert slow.of_program(nodes) == pytest.approx(together + 2 * alone), "as slow as the fastest that was measured"
    fast = PredictedCost(DEVICE, traits, {product: Measured(alone / 2, alone / 2)})
    assert fast.of_calls([product]) == alone / 2
    assert fast.of_program(nodes) == together


def _layered(layers: int) -> fx.Graph:
    """A graph of equal layers with a residual stream, whose last result is read along with the one before it."""

    def stream(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        results = [x]
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            norm = torch.rsqrt(results[-1].square().mean(-1, keepdim=True) + 1e-5)
            results.append(results[-1] + torch.tanh((results[-1] * norm) @ up).sum(-1, keepdim=True) @ down)
        return results[-2:]

    weights = (torch.empty(64, 128), torch.empty(1, 64)) * layers
    with torch.no_grad():
        return make_fx(stream, tracing_mode="fake")(torch.empty(16, 64), *weights).graph


def _groups(graph: fx.Graph, known: KnownForms) -> dict[tuple[fx.Node, ...], float]:
    """The runs of up to six calls of a graph, and what they are predicted to take."""
    cost = PredictedCost(DEVICE, partition(graph).traits, known=known)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    runs = [tuple(calls[start : start + length]) for length in range(1, 7) for start in range(len(calls) - length + 1)]
    return {run: cost.of_program(run) for run in runs}


def test_equal_layers_are_predicted_once_and_alike() -> None:
    four, eight = KnownForms(), KnownForms()
    _groups(_layered(4), four)
    graph = _layered(8)
    predicted = _groups(graph, eight)
    assert len(four.seconds) == len(eight.seconds) < len(predicted) / 2
    traits = partition(graph).traits
    assert all(PredictedCost(DEVICE, traits).of_program(run) == seconds for run, seconds in predicted.items())


def test_programs_are_told_apart_by_who_reads_them_and_by_what_was_measured() -> None:
    def twice(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        first, second = x @ w, y @ w
        return [first.sum(-1), second.sum(-1), second]

    inputs = torch.empty(4096, 64), torch.empty(4096, 64), torch.empty(64, 512)
    with torch.no_grad():
        graph = make_fx(twice, tracing_mode="fake")(*inputs).graph
    traits = partition(graph).traits
    products, sums = ([node for node in graph.nodes if node.target is target] for target in MATMUL_AND_SUM)
    cost = PredictedCost(DEVICE, traits)
    unread, read = (cost.of_program(pair) for pair in zip(products, sums, strict=True))
    assert unread < read / 2
    slow = PredictedCost(DEVICE, traits, {products[1]: Measured(1.0, 1.0)}, cost.known)
    assert slow.of_program((products[1],)) > 0.9 > slow.of_program((products[0],))


def test_a_product_that_vanishes_takes_nothing_however_long_it_was_measured_to() -> None:
    with torch.no_grad():
        graph = make_fx(lambda x, w: (x @ w).sum(-1), tracing_mode="fake")(torch.empty(64, 64), torch.empty(64, 64)).graph
    traits = partition(graph).traits
    product, *_ = nodes = [node for node in graph.nodes if node.op == "call_function"]
    slow = PredictedCost(DEVICE, traits, {product: Measured(1.0, 1.0)})
    assert slow.of_program(nodes) == PredictedCost(DEVICE, traits).of_program(nodes)


def test_of_a_tensor_that_is_taken_apart_the_parts_are_read() -> None:
    def part(x: torch.Tensor) -> torch.Tensor:
        return x[:, :64].exp() * 2

    few, _ = cost_of(part, torch.empty(1 << 14, 1 << 12))
    most, _ = cost_of(lambda x: x.exp() * 2, torch.empty(1 << 14, 1 << 12))
    assert few < 0.1 * most


# --- kernels for a device that is not here ------------------------------------------------------------------------------


def normed(x: torch.Tensor, gain: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(torch.nn.functional.rms_norm(x, (x.shape[-1],), gain), w)


def piece_of_function(fn: Callable[..., object], *inputs: torch.Tensor) -> Piece:
    with torch.no_grad():
        (piece,) = partition(make_fx(fn, tracing_mode="fake", pre_dispatch=True)(*inputs).graph).pieces
    return piece


@pytest.mark.parametrize("rows", [1, 128])
def test_kernels_that_cannot_be_timed_must_be_predicted_to_take_less_than_torch(rows: int) -> None:
    inputs = (rows, 4096), (4096,), (4096, 4096)
    piece = piece_of_function(normed, *(torch.empty(shape, dtype=torch.bfloat16) for shape in inputs))
    calls = seconds_of_calls(piece.nodes, DEVICE)
    assert not_predicted_to_pay(piece.nodes, 0.94 * calls, DEVICE) == ""
    for seconds in (0.96 * calls, 2 * calls):
        assert "nothing is timed here" in not_predicted_to_pay(piece.nodes, seconds, DEVICE)


def test_a_call_of_torch_takes_one_launch_however_many_operators_spell_it_out() -> None:
    piece = piece_of_function(normed, torch.empty(1, 64), torch.empty(64), torch.empty(64, 64))
    assert len(piece.program.kernels()) > 5
    assert 2 * DEVICE.launch_seconds < seconds_of_calls(piece.nodes, DEVICE) < 3 * DEVICE.launch_seconds
