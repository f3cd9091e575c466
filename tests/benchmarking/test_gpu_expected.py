"""The table of what kernels should do on a GPU: bytes, chains and shares of kernels that can be counted by hand."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest
from benchmarks.gpu_expected import (
    BATCHES,
    COUNTS,
    FOUND,
    PAGE,
    RESULT,
    TARGETS,
    chain,
    in_flight,
    issue_share,
    main,
    page,
    printed,
    record,
    rows,
    table,
)
from benchmarks.kept import Record

from mugraph.devices import device_for
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import construct
from mugraph.lower.tile_form import Kernel
from mugraph.targets.cuda.machine import Cuda

H100 = device_for("cuda:sm_90")


def product(columns: int, loop: int) -> Graph:
    """x @ w of 16 x 1024 x columns, 64 columns a block."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (16, 1024), DType.BF16), kernel.input("w", (1024, columns), DType.BF16)
    block = GraphBuilder(Level.BLOCK, grid=(columns // 64,), loop=loop)
    rows, weight = block.iterator(0, kernel.tensor(x), (None,), 1), block.iterator(1, kernel.tensor(w), (1,), 0)
    total = block.add("accumulate", block.add("matmul", rows, weight), combine="sum")
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(1,))]), [x, w]))


def lowered(graph: Graph) -> Kernel:
    (launch,) = Cuda.described("cuda:sm_90").lower(construct(graph)).values()
    return launch.kernel


@pytest.mark.parametrize("loop", [1, 4])
def test_chains_and_bytes_of_a_product_are_those_of_its_ring(loop: int) -> None:
    kernel = lowered(product(8192, loop))
    assert kernel.ring is not None
    assert chain(kernel) == 1024 // 16
    assert in_flight(kernel, H100) == (kernel.ring.stages - 1) * kernel.ring.slot * DType.BF16.bytes
    assert in_flight(replace(kernel, grid=(1000,), resident=2), H100) == 2 * in_flight(kernel, H100)


def test_a_kernel_without_a_ring_has_a_vector_of_each_thread_on_its_way() -> None:
    kernel = replace(lowered(product(8192, 4)), ring=None)
    assert in_flight(kernel, H100) == 16 * kernel.threads


def test_steps_of_a_loop_take_issue_slots() -> None:
    (one,), (many,) = ([n.body for n in product(8192, loop).kernels() if n.body is not None] for loop in (1, 64))
    assert 0 < issue_share(one, H100) < issue_share(many, H100) < 1


FINDING = {
    "cores": 2,
    "records": [
        {"program": "gqa", "dtype": "bf16", "target": "cuda:sm_90", "clock_seconds": 61.7, "processor_seconds": 12.3}
        | {"first_proof_seconds": None, "load": 5.1}
    ],
}
CASE = {"workload": "gated-mlp", "batch": 1, "target": "cuda:sm_90"}


@pytest.fixture(scope="module")
def found() -> Record:
    made: Record = CASE | json.loads(json.dumps(record("gated-mlp", 1, "cuda:sm_90")))
    return made


def test_rows_stand_beside_the_bound_which_no_prediction_goes_below(found: Record) -> None:
    made = list(rows([found]))
    assert all(0 < row.bound < row.predicted and math.isfinite(row.issue_share) for row in made)
    header, rule, *lines = table(made)
    assert len(lines) == len(made)
    assert all(line.count("|") == header.count("|") == rule.count("|") for line in lines)


def test_figures_of_a_printed_table_are_read_back(found: Record) -> None:
    made = list(rows([found]))
    assert printed("\n".join(table(made))) == {"gated-mlp 1 cuda:sm_90": [list(row.figures) for row in made]}


def test_the_page_is_made_of_the_stored_records() -> None:
    stored, finding = (json.loads(file.read_text(encoding="utf-8")) for file in (RESULT, FOUND))
    assert PAGE.read_text(encoding="utf-8") == page(stored, finding)


def test_the_page_has_every_workload_batch_and_device() -> None:
    stored = json.loads(RESULT.read_text(encoding="utf-8"))["records"]
    assert {(each["workload"], each["batch"], each["target"]) for each in stored} == {
        *itertools.product(WORKLOADS, BATCHES, TARGETS)
    }


def test_cells_of_the_page_say_what_was_before_where_that_differs(found: Record) -> None:
    (row, *_) = rows([found])
    earlier = [["99.9", *row.figures[1:]], *([each.figures for each in rows([found])][1:])]
    before = {"revision": "abc", "figures": {"gated-mlp 1 cuda:sm_90": earlier}}
    made = page({"records": [found], "summary": {"before": before, "host_microseconds": {"one": 3.04}}}, FINDING)
    assert "| gqa | bf16 | 61.7 | 12.3 | none | 5.1 |" in made
    assert "`abc`" in made
    assert f"| 99.9, {row.figures[0]} | {row.figures[1]} |" in made
    before["figures"] = {"gated-mlp 1 cuda:sm_90": [["99.9", "1", "2%", "3"]] * (len(earlier) + 1)}  # of other kernels
    made = page({"records": [found], "summary": {"before": before, "host_microseconds": {}}}, FINDING)
    assert "99.9" not in made


def test_calls_of_as_many_kernels_as_were_measured_have_microseconds_of_the_host(found: Record) -> None:
    kernels = len(found["kernels"])
    for launches, shown in ((kernels, True), (kernels + 1, False)):
        summary = {"before": {}, "host_microseconds": dict.fromkeys(COUNTS, 71.3)}
        made = page({"records": [found | {"launches": launches}], "summary": summary}, FINDING)
        assert ("71.3" in made) is shown


@pytest.mark.parametrize("target", ["cpu", "triton:sm_90", "cuda:sm_77"])
def test_other_targets_than_those_of_cuda_are_refused(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--targets", target])
    assert target in capsys.readouterr().err
