"""Rewrites by axioms and by tiles change graphs and never their meaning; the verifier accepts every one."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.ir import Graph, Value
from mugraph.ir.editing import Site, edited
from mugraph.ir.program import ProgramTensor
from mugraph.testing import ProgramSpace, agree, random_program, retiled, rewritten
from mugraph.testing import rewrites as module
from mugraph.verifier import verify_graphs
from verifier.graphs import fused_rmsnorm, linear_with_bias, online_attention, program

_PLACES = 1
"""Places of each rule where the verifier is asked."""
SPACE = ProgramSpace(sizes=(2, 3, 4))
MATRIX, ROW = (4, 4), (4, 1)
KERNELS = {"rmsnorm": fused_rmsnorm(4, 12, 8), "attention": online_attention(), "linear": linear_with_bias(6)}


def everything(x: ProgramTensor, y: ProgramTensor, z: ProgramTensor, r: ProgramTensor) -> ProgramTensor:
    """A program in which every rule has its place."""
    fractions = x * (y / z) - (x * y).apply("div", z) + (x / y).apply("div", z)
    roots = (x.square() * y).sqrt() + ((x * r).sum(-1, keepdim=True)).sqrt()
    products = (x + y) @ z + ((x @ y) @ z) + ((x * r) @ y) + (x * z + y * z)
    exponentials = (x + y).exp() * z.exp()
    return fractions + roots + products + exponentials + x.exp().apply("mul", y.exp()) + (x @ y).apply("add", y @ z)


@pytest.mark.parametrize("rule", module.RULES, ids=lambda rule: rule.__name__)
def test_every_rule_has_its_place_and_keeps_the_meaning(rule: module.Rule) -> None:
    graph = program(everything, MATRIX, MATRIX, MATRIX, ROW)
    places = 0
    for index in range(len(graph.nodes)):

        def edit(site: Site) -> Value:
            found = rule(site)
            return site.copy() if found is None else found

        changed = edited(graph, {index: edit})
        if changed != graph:
            places += 1
        if changed != graph and places <= _PLACES:
            assert agree(graph, changed)
            assert verify_graphs(graph, changed).certificate.agreed
    assert places


def test_no_rewrite_of_a_random_program_is_rejected() -> None:
    rng = np.random.default_rng(0)
    changed = 0
    for seed in range(15):
        graph = random_program(seed, SPACE)
        other = graph
        for _ in range(3):
            other = rewritten(other, rng)
        verdict = verify_graphs(graph, other)
        assert verdict.certificate.agreed, f"{verdict.reason}\n{graph}\n{other}"
        changed += other != graph
    assert changed > 12


@pytest.mark.parametrize("name", KERNELS)
def test_no_rewrite_of_a_kernel_is_rejected(name: str) -> None:
    rng = np.random.default_rng(1)
    graph = KERNELS[name]
    for _ in range(4):
        other = rewritten(rewritten(graph, rng), rng)
        assert verify_graphs(graph, other).equivalent, str(other)


@pytest.mark.parametrize("name", KERNELS)
def test_other_tiles_keep_the_meaning(name: str) -> None:
    graph = KERNELS[name]
    found: set[Graph] = set()
    for seed in range(20):
        other = retiled(graph, np.random.default_rng(seed))
        if other is not None:
            found.add(other)
    assert len(found) >= 2
    for other in found:
        body = other.nodes[-1].body
        original = graph.nodes[-1].body
        assert body is not None
        assert original is not None
        assert (body.grid, body.loop) != (original.grid, original.loop)
        assert agree(graph, other)
        assert verify_graphs(graph, other).equivalent


def test_programs_without_kernels_have_no_tiles() -> None:
    assert retiled(random_program(0, SPACE), np.random.default_rng(0)) is None
