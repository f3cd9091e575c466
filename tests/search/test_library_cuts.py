"""Products of a GPU's library: a plan that leaves them to it is there however little time there is, and computes the program."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from mugraph.devices import device_for
from mugraph.ir import DType, Graph
from mugraph.ir.program import Program
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.partition.library_cuts import library_cut
from mugraph.search.partition.plan import Library, Plan
from mugraph.verifier import verify_graphs

from .programs import finished

H200 = device_for("cuda:sm_90:h200")


def mlp(rows: int, inner: int, hidden: int) -> Graph:
    """(silu(x @ w) * (x @ v)) @ d."""
    p = Program()
    shapes = {"x": (rows, inner), "w": (inner, hidden), "v": (inner, hidden), "d": (hidden, inner)}
    x, w, v, d = (p.input(name, shape, DType.BF16) for name, shape in shapes.items())
    return finished(p, ((x @ w).silu() * (x @ v)) @ d)


def normalized(rows: int, inner: int, columns: int) -> Graph:
    """x / sqrt(sum of squares) @ w."""
    p = Program()
    x, w = p.input("x", (rows, inner), DType.BF16), p.input("w", (inner, columns), DType.BF16)
    return finished(p, (x / x.square().sum(-1, keepdim=True).sqrt()) @ w)


def gate(rows: int, inner: int, columns: int) -> Graph:
    """silu(x @ w) * (x @ w + x @ v): a product with two readers."""
    p = Program()
    x, w, v = p.input("x", (rows, inner), DType.BF16), *(p.input(name, (inner, columns), DType.BF16) for name in "wv")
    return finished(p, (x @ w).silu() * ((x @ w) + (x @ v)))


def with_its_product(rows: int, inner: int, columns: int) -> Graph:
    """x @ w, and its silu."""
    p = Program()
    product = p.input("x", (rows, inner), DType.BF16) @ p.input("w", (inner, columns), DType.BF16)
    return finished(p, product, product.silu())


def library_plans(run: Search, best: float = math.inf, launches: int = 5) -> list[Plan]:
    """What is tried before any other cut, with no time for those."""
    run.plans.cut_deadline = 0.0
    return [*run.plans.library_plans(run.axes, Tier.FULL, launches, run.produces, best)]


PROGRAMS: dict[str, tuple[Callable[[int, int, int], Graph], int, int]] = {
    "mlp": (mlp, 4, 3),
    "normalized": (normalized, 2, 1),
    "gate": (gate, 3, 2),
    "with its product": (with_its_product, 2, 1),
}
"""Each with the launches of its plan, and those of them that are the library's."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_product_is_a_launch_of_its_own_without_time_for_cuts(name: str) -> None:
    program, launches, products = PROGRAMS[name]
    run = Search(program(128, 4096, 14336), H200)
    plans = library_plans(run)
    best = min(plans, key=lambda plan: plan.seconds)
    assert len(best.stages) == launches
    assert sum(isinstance(stage.kernel, Library) for stage in best.stages) == products
    assert library_plans(run, best=0.5 * best.seconds) == []
    assert library_plans(run, launches=launches - 1) == []


def test_it_is_tried_before_other_cuts() -> None:
    run = Search(mlp(128, 4096, 14336), H200)
    run.plans.cut_deadline = 0.0
    plans = [*run.plans.plans(run.axes, Tier.FULL, 5, run.produces)]
    assert min(plans, key=lambda plan: plan.seconds) in library_plans(run)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_it_makes_is_the_program(name: str) -> None:
    program = PROGRAMS[name][0](64, 64, 128)
    run = Search(program, H200)
    plans = library_plans(run)
    assert plans
    for plan in plans[:2]:
        assert verify_graphs(program, run._graph(plan)).equivalent


def test_there_is_none_without_products_nor_of_one_alone_nor_on_a_cpu() -> None:
    p = Program()
    assert library_cut(Search(finished(p, p.input("x", (64, 64)).exp()), H200).axes) is None
    p = Program()
    assert library_cut(Search(finished(p, p.input("x", (64, 64)) @ p.input("w", (64, 64))), H200).axes) is None
    assert library_plans(Search(mlp(128, 256, 512), device_for("cpu"))) == []
