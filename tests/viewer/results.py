"""Results to show: the six workloads at small sizes with the muGraphs that were discovered for them, without searching again."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from mugraph.frontend import trace
from mugraph.frontend.calls.calling import Positional
from mugraph.frontend.workloads import WORKLOADS, workload
from mugraph.ir.graph import Graph
from mugraph.ir.text import parse_graph
from mugraph.results.data import Candidate, Rejection, Report
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime import build
from mugraph.search.report import Pruning, SearchReport, TierReport
from mugraph.verifier import verify_graphs

NAMES = tuple(WORKLOADS)


@cache
def program(name: str) -> Graph:
    """The program of a workload at its small size."""
    work = workload(name)
    return trace(work.function(), work.inputs(size="small")).graph


@cache
def discovered(name: str) -> Graph:
    """The muGraph that was found for it."""
    return parse_graph((Path(__file__).parent / "mugraphs" / f"{name}.txt").read_text())


@cache
def result(name: str) -> Superoptimized:
    """A result that was not searched for: its search report is made up, all else is real."""
    return result_of(program(name), discovered(name), name)


def result_of(original: Graph, graph: Graph, word: str) -> Superoptimized:
    """A result that runs `graph` for `original`, with a certificate of their equivalence."""
    candidate = Candidate(graph, 1e-6, 2e-6, verify_graphs(original, graph).certificate)
    tier = TierReport("full axioms", closures=2, saturated=2, states=1234, edges=56, bound=11, cuts_complete=True)
    tier.pruned[Pruning.EXPRESSION] = 7890
    report = Report(
        found=True,
        search=SearchReport(seconds=0.5, first_found_seconds=0.125, tiers=[tier], max_kernels=5).to_json(),
        proposed=5,
        rejected=(Rejection("float", "not <finite>", 3e-6), Rejection("float", "not <finite>", 2.5e-6)),
        compile_seconds=0.25,
        measure_seconds=0.0,
        verify_seconds=0.5,
        total_seconds=1.5,
        original_latency=8e-6,
        seed=0,
    )
    executable, calling = build(graph), Positional.of(original)
    return Superoptimized(original, candidate, (candidate,), report, executable, calling, "cpu", {"word": word})
