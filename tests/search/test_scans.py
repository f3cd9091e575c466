"""Programs with running sums and products: one kernel with what stands around them, proved, and nothing for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mugraph
from mugraph.devices import device_for
from mugraph.errors import UnsupportedOperator
from mugraph.ir.axes import axis_program
from mugraph.ir.axes_text import format_axes, parse_axes
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.scans import SCANS
from mugraph.ir.validity import check
from mugraph.search import search
from mugraph.verifier import verify_graphs

CPU = device_for("cpu")


def written(function: Callable[..., ProgramTensor], *shapes: tuple[int, ...]) -> Program:
    made = Program()
    made.output(function(*(made.input(f"x{number}", shape) for number, shape in enumerate(shapes))))
    return made


PROGRAMS: dict[str, Program] = {
    "masked": written(lambda x, m: (x * m).apply("cumsum", dim=1) * 2, (8, 32), (8, 32)),
    "along columns": written(lambda x, m: (x * m).apply("cumsum", dim=0).exp(), (32, 8), (32, 8)),
    "shares": written(lambda x: x.square().apply("cumsum", dim=1) / x.square().sum(1, keepdim=True), (8, 32)),
    "two of them": written(lambda x: x.apply("cumsum", dim=0).apply("cumprod_back", dim=1), (6, 5)),
    "of a product": written(lambda x, w: (x @ w).apply("cumsum_back", dim=1), (8, 6), (6, 12)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_candidate_is_the_program(name: str) -> None:
    graph = PROGRAMS[name].graph
    found = search(graph, CPU).candidates
    assert found
    for candidate in found:
        check(candidate.graph)
        verdict = verify_graphs(graph, candidate.graph)
        assert verdict.equivalent, verdict.reason


@pytest.mark.parametrize("name", ["masked", "along columns", "shares", "of a product"])
def test_a_scan_and_what_stands_around_it_are_one_kernel(name: str) -> None:
    program = PROGRAMS[name]
    opt = mugraph.superoptimize(program, profile=False)
    assert opt.certificate.accepted
    (kernel,) = opt.graph.kernels()
    assert kernel.body is not None
    assert any(node.op in SCANS for node in kernel.body.nodes)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(node.output.shape).astype(np.float32) for node in program.graph.inputs()]
    (wanted,) = evaluate(program.graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    np.testing.assert_allclose(np.asarray(opt(*inputs)), wanted, rtol=1e-5, atol=1e-5)


def test_blocks_divide_what_is_not_scanned() -> None:
    (candidate, *_) = search(written(lambda x: x.apply("cumsum", dim=1) * 2, (512, 1024)).graph, CPU).candidates
    (kernel,) = candidate.graph.kernels()
    assert kernel.body is not None
    iterators = [node for node in kernel.body.nodes if node.op == "input_iterator"]
    assert kernel.body.grid != (1,)
    assert all(1 not in node.integers("imap") for node in iterators)
    assert kernel.body.loop == 1 or all(node.get("fmap") != 1 for node in iterators)


def test_scans_have_an_axis_form_that_prints_and_parses() -> None:
    found = axis_program(PROGRAMS["two of them"].graph)
    assert len(found.scanned) == 2
    assert found.reductions == frozenset()
    assert parse_axes(format_axes(found)) == found


def test_what_has_no_axis_to_run_along_is_refused_or_the_operand() -> None:
    regrouped = written(lambda x: x.reshape(24).apply("cumsum", dim=0).reshape(4, 6) * x, (4, 6))
    with pytest.raises(UnsupportedOperator, match="cumsum along a dimension that is regrouped"):
        axis_program(regrouped.graph)
    with pytest.raises(UnsupportedOperator, match="all elements are the same; multiply by positions"):
        axis_program(written(lambda x: x.repeat(1, 4).apply("cumsum", dim=1), (3, 1)).graph)
    assert not axis_program(written(lambda x: x.apply("cumsum", dim=1) * 2, (3, 1)).graph).scanned


@pytest.mark.parametrize("target", ["cuda:sm_90", "triton:sm_90"])
def test_gpus_have_no_scans(target: str) -> None:
    with pytest.raises(UnsupportedOperator, match=r"running sums and products are kernels of the CPU alone.*leave them"):
        search(PROGRAMS["masked"].graph, device_for(target))


def test_a_masked_scan_of_pytorch_is_one_kernel_of_all_its_bytes() -> None:
    torch = pytest.importorskip("torch")
    x, mask = torch.randn(64, 257), torch.rand(64, 257) > 0.5

    def masked(x: Any, mask: Any) -> Any:
        return torch.cumsum(x * mask, dim=1)

    opt = mugraph.superoptimize(masked, (x, mask), profile=False, budget=20)
    (kernel,) = opt.graph.kernels()
    assert kernel.body is not None
    assert any(node.op in SCANS for node in kernel.body.nodes)
    torch.testing.assert_close(opt(x, mask), masked(x.double(), mask).float(), rtol=1e-6, atol=1e-5)
