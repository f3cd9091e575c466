"""What the verifier accepts and rejects: mutants, rewrites, adversarial pairs, and its throughput at full size.

    python benchmarks/evidence.py                        # all campaigns but the adversarial one: most of an hour of one core
    python benchmarks/evidence.py --seconds 600 --only mutants rewrites    # what fits into ten minutes for each part
    python benchmarks/evidence.py adversarial            # near misses over every construct, and saved results tampered with

Subjects are the six workloads in small and 50 random LAX programs, each as it is written and as the search's kernels compute it;
for the part `rows`, small functions of PyTorch of every operator that `random_programs.py` has, and that are programs.
Every mutant is compared with its program by the verifier's tests and by the paper's own test (p = 227, q = 113, once), and some
(`verdicts`) by all that `mugraph.verify` does. A mutant that is accepted is compared again by exact fractions or wide floats
(`mugraph.testing.agree`): it must be no mistake at all, and one that is called different must be one. Rewrites must agree in all
tests; those that agree without a bound are counted. Times are process times of one core. Results go to
`benchmarks/results/evidence.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import adversarial
from mugraph.algebra.fields import FieldArithmetic, FieldPair, FieldValue
from mugraph.devices import device_for
from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir.graph import Graph, Value
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import build
from mugraph.search import search
from mugraph.selection.inputs import runner, torch_runner
from mugraph.selection.structure_key import form_of, of_forms
from mugraph.testing import Mutant, ProgramSpace, accepted_by_paper, agree, mutants, random_program, retiled, rewritten
from mugraph.verifier import Verdict, by_random_tests, float_check, verify_graphs
from mugraph.verifier.prover import verify
from mugraph.verifier.reference import Reference
from mugraph.verifier.vectorized_eval import evaluate_batched

Result = TypeVar("Result")

RESULTS = Path(__file__).parent / "results"
RANDOM_PROGRAMS = 50
SMALL = {64: 8, 128: 12, 16: 4, 4: 3}
"""Sizes of the small workloads, made smaller still."""
FOUND = 6
"""muGraphs of each program that take part."""
OUTPUTS = 3
"""At most, of programs of several."""
SECONDS_PER_SEARCH = 1.0
SECONDS_PER_WORKLOAD = 20.0
_EVERY = 200
"""Mutants after which results are written."""
SECOND_MISTAKES = 24
"""Mutants of one mutant that are drawn where single mistakes do not suffice."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A program, and graphs that compute it: itself and muGraphs that the search found."""

    name: str
    program: Graph
    graphs: tuple[Graph, ...]


def main() -> None:
    """Run the parts asked for, write the results, print a summary."""
    if sys.argv[1:2] == ["adversarial"]:
        sys.exit(adversarial.main(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=100_000, help="how many mutants")
    parser.add_argument("--rewrites", type=int, default=10_000, help="how many rewrites")
    parser.add_argument("--seconds", type=float, default=math.inf, help="process time after which a part stops where it is")
    parser.add_argument(
        "--only", nargs="+", choices=["mutants", "rows", "verdicts", "outputs", "rewrites", "throughput"], default=None
    )
    options = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "mutants": lambda: mutation(subjects(), options.mutants, options.seconds),
        "rows": lambda: mutation(of_the_table(), options.mutants // 5, options.seconds),
        "verdicts": lambda: verdicts(subjects(), options.mutants // 50, options.seconds),
        "outputs": lambda: mutation(several_outputs(), options.mutants // 50, options.seconds),
        "rewrites": lambda: rewriting(subjects(), options.rewrites, options.seconds),
        "throughput": throughput,
    }
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / "evidence.json"
    record: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in options.only or parts:
        started = time.process_time()
        for result in parts[name]():  # as it grows, so that a run may be ended at any time
            record[name] = {**result, "cpu_seconds": round(time.process_time() - started, 1)}
            file.write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps({name: record[name]}, indent=1))


# --- subjects ----------------------------------------------------------------------------------------------------------


def subjects() -> list[Subject]:
    """The workloads and the random programs, with what the search finds for each."""
    space = ProgramSpace(sizes=(2, 3, 4, 6))
    programs = {name: small_workload(name) for name in WORKLOADS}
    programs |= {f"random {seed}": random_program(seed, space) for seed in range(RANDOM_PROGRAMS)}
    return [Subject(name, program, (program, *found(program))) for name, program in programs.items()]


def small_workload(name: str) -> Graph:
    """A workload traced at sizes of a few elements."""
    import torch

    shapes = WORKLOADS[name].shapes(size="small").values()
    tensors = [torch.ones([SMALL.get(size, size) for size in shape]) for shape in shapes]
    return trace(WORKLOADS[name].function(), tensors).graph


def several_outputs() -> list[Subject]:
    """Random programs that also return what they compute on the way in the shape of their output; found muGraphs do too."""
    space = ProgramSpace(sizes=(2, 3, 4, 6))
    tried = []
    for seed in range(RANDOM_PROGRAMS):
        program = random_program(seed, space)
        shape = program.output_tensors[0].shape
        made = [index for index, node in enumerate(program.nodes) if node in program.kernels() and node.output.shape == shape]
        if len(made) > 1:
            more = program.with_nodes(program.nodes, tuple(Value(index) for index in made[-OUTPUTS:]))
            tried.append(Subject(f"random {seed}", more, (more, *found(more))))
    return tried


def of_the_table() -> list[Subject]:
    """A program for each operator of PyTorch that random functions have, beside others that it could be confused with."""
    import torch

    import random_programs as drawn

    def unary(apply: drawn.Apply) -> drawn.Apply:
        return lambda x, y, w: apply(x @ w) * y

    def binary(apply: drawn.Apply) -> drawn.Apply:
        def weighted(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            """With weights, as shares would add up to 1 whatever they are of."""
            value = apply(x @ w, y)
            given: torch.Tensor = value * y + x[:, :1] if value.shape == y.shape else value.sum(-1, keepdim=True) + y
            return given

        return weighted

    def along(apply: Callable[[torch.Tensor, int], torch.Tensor], dim: int) -> drawn.Apply:
        return lambda x, y, w: apply(x @ w + y, dim) * 2

    def rows(apply: drawn.Apply) -> drawn.Apply:
        return lambda x, y, w: apply(x @ w + y) * 2

    functions = {name: unary(apply) for name, apply in drawn.UNARY.items()}
    functions |= {name: binary(apply) for name, apply in drawn.BINARY.items()}
    functions |= {f"{name} along {dim}": along(apply, dim) for name, apply in drawn.ALONG.items() for dim in (0, 1)}
    functions |= {name: rows(apply) for name, apply in drawn.ROWS.items()}
    tensors = [torch.ones(4, 3), torch.ones(4, 6), torch.ones(3, 6)]
    tried = []
    for name, function in functions.items():
        try:
            program = trace(function, tensors).graph
        except MugraphError:  # it is no program
            continue
        tried.append(Subject(name, program, (program, *found(program))))
    return tried


def found(program: Graph) -> list[Graph]:
    """The best muGraphs of a short search; none where the search has nothing to offer."""
    try:
        candidates = search(program, device_for("cpu"), budget=SECONDS_PER_SEARCH).candidates
    except MugraphError:
        return []
    return [candidate.graph for candidate in candidates[:FOUND]]


# --- mutants -----------------------------------------------------------------------------------------------------------


def mutation(tried: list[Subject], count: int, limit: float) -> Iterator[dict[str, Any]]:
    """Counts of mutants by kind, of those that each test accepts, and of accepted ones that are mistakes."""

    def result() -> dict[str, Any]:
        return {
            "programs": len(tried),
            "graphs": sum(len(subject.graphs) for subject in tried),
            "mutants": sum(made.values()),
            "by_kind": dict(made),
            "accepted_and_equal": sum(equal.values()),
            "accepted_and_equal_by_kind": dict(+equal),
            "accepted_and_different": sum(wrong.values()),
            "crashes": crashes,
            "examples": examples[:20],
            "accepted_and_different_by_the_papers_test": sum(paper.values()),
            "by_the_papers_test_by_kind": dict(+paper),
            "milliseconds_per_mutant": round(1e3 * seconds / max(1, sum(made.values())), 2),
        }

    made: Counter[str] = Counter()
    equal: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    paper: Counter[str] = Counter()
    examples: list[str] = []
    crashes = 0
    seconds, until = 0.0, time.process_time() + limit
    for subject, mutant in drawn_mutants(tried, count):
        if time.process_time() > until:
            break
        made[mutant.kind] += 1
        started = time.process_time()
        try:
            verdict = by_random_tests(subject.program, mutant.graph)
        except Exception as error:
            crashes += 1
            examples.append(f"crash: {error!r}: {subject.name}: {mutant.kind}: {mutant.change} of\n{mutant.graph}")
            continue
        accepted = verdict.equivalent is True
        seconds += time.process_time() - started
        fooled = accepted_by_paper(subject.program, mutant.graph)
        same = (accepted or fooled) and agree(subject.program, mutant.graph)
        equal[mutant.kind] += accepted and same
        wrong[mutant.kind] += accepted and not same
        paper[mutant.kind] += fooled and not same
        if accepted and not same:
            examples.append(f"{subject.name}: {mutant.kind}: {mutant.change}")
        if sum(made.values()) % _EVERY == 0:
            yield result()
    yield result()


def verdicts(tried: list[Subject], count: int, limit: float) -> Iterator[dict[str, Any]]:
    """Counts of what all means together say of mutants, and of answers that are wrong."""
    answers: Counter[str] = Counter()
    faults: list[str] = []
    times: list[float] = []
    until = time.process_time() + limit
    for subject, mutant in drawn_mutants(tried, count):
        if time.process_time() > until:
            break
        started = time.process_time()
        try:
            verdict = verify(subject.program, mutant.graph)
        except Exception as error:
            faults.append(f"crash: {error!r}: {subject.name}: {mutant.kind}: {mutant.change} of\n{mutant.graph}")
            continue
        times.append(time.process_time() - started)
        answers[verdict.outcome] += 1
        if verdict.equivalent is not None and verdict.equivalent != agree(subject.program, mutant.graph):
            faults.append(f"{verdict.outcome}: {subject.name}: {mutant.kind}: {mutant.change}")
        if len(times) % _EVERY == 0:
            yield _answered(answers, faults, times)
    yield _answered(answers, faults, times)


def _answered(answers: Counter[str], faults: list[str], times: list[float]) -> dict[str, Any]:
    median, worst = (1e3 * float(value) for value in (np.median(times), np.max(times)))
    return {
        "mutants": sum(answers.values()),
        "answers": dict(answers),
        "wrong_answers_or_crashes": len(faults),
        "examples": faults[:20],
        "milliseconds_per_mutant_median_and_worst": [round(median, 1), round(worst, 1)],
    }


def drawn_mutants(tried: list[Subject], count: int) -> Iterator[tuple[Subject, Mutant]]:
    """Single mistakes, equally many of every graph as far as there are so many, and then pairs of mistakes; none twice."""
    rng = np.random.default_rng(0)
    seen: set[tuple[str, Graph]] = set()

    def fresh(subject: Subject, mutant: Mutant) -> bool:
        known = (subject.name, mutant.graph) in seen
        seen.add((subject.name, mutant.graph))
        return not known and len(seen) <= count

    sources = [(subject, graph) for subject in tried for graph in subject.graphs]
    single: list[tuple[Subject, Mutant]] = []
    for index in rng.permutation(len(sources)):
        subject, graph = sources[int(index)]
        for mutant in some(list(mutants(graph)), math.ceil(count / len(sources)), rng):
            if fresh(subject, mutant):
                single.append((subject, mutant))
                yield subject, mutant
    while len(seen) < count:
        subject, first = single[int(rng.integers(len(single)))]
        for second in some(list(mutants(first.graph)), SECOND_MISTAKES, rng):
            mutant = Mutant(second.kind, f"{first.change}; {second.change}", second.graph)
            if fresh(subject, mutant):
                yield subject, mutant


def some(choices: Sequence[Mutant], count: int, rng: np.random.Generator) -> list[Mutant]:
    """At most `count` of them, at random."""
    return [choices[int(index)] for index in rng.permutation(len(choices))[:count]]


# --- rewrites ----------------------------------------------------------------------------------------------------------


def rewriting(tried: list[Subject], count: int, limit: float) -> Iterator[dict[str, Any]]:
    """Counts of rewrites by axioms and by other tiles, and of those that were rejected."""
    rng = np.random.default_rng(1)
    made: Counter[str] = Counter()
    rejected: list[str] = []
    unbounded = 0
    until = time.process_time() + limit
    sources = [(subject, graph) for subject in tried for graph in subject.graphs]
    for subject, graph in itertools.cycle(sources):
        if sum(made.values()) >= count or time.process_time() > until:
            break
        for kind, other in variants(graph, rng):
            made[kind] += 1
            try:
                verdict = by_random_tests(subject.program, other)
            except Exception as error:
                rejected.append(f"crash: {error!r}: {subject.name}: {kind}:\n{other}")
                continue
            unbounded += verdict.certificate.agreed and not verdict.equivalent
            if not verdict.certificate.agreed:
                rejected.append(f"{subject.name}: {kind}: {verdict.reason}")
        counts = {"rewrites": sum(made.values()), "by_kind": dict(made), "agree_without_a_bound": unbounded}
        yield {**counts, "rejected": len(rejected), "examples": rejected[:20]}


def variants(graph: Graph, rng: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    """The graph after one to three passes of axioms, after another choice of tiles, and after both."""
    by_axioms = graph
    for _ in range(int(rng.integers(1, 4))):
        by_axioms = rewritten(by_axioms, rng)
    if by_axioms != graph:
        yield "axioms", by_axioms
    for kind, source in (("tiles", graph), ("axioms and tiles", by_axioms)):
        other = retiled(source, rng)
        if other is not None:
            yield kind, other


# --- throughput --------------------------------------------------------------------------------------------------------


class TimedArithmetic(FieldArithmetic):
    """Field arithmetic that keeps the time its matrix products take."""

    seconds = 0.0
    multiplications = 0

    def matmul(self, x: FieldValue, y: FieldValue) -> FieldValue:
        started = time.process_time()
        result = super().matmul(x, y)
        self.seconds += time.process_time() - started
        known = [(a, b) for a, b in ((x.known_p, y.known_p), (x.q, y.q)) if a is not None and b is not None]
        self.multiplications += sum(a.shape[-1] * part.size for (a, _), part in zip(known, result_parts(result), strict=False))
        return result


def result_parts(value: FieldValue) -> list[Any]:
    return [part for part in (value.known_p, value.q) if part is not None]


def throughput() -> Iterator[dict[str, Any]]:
    """For each workload at full size: what it takes to verify the search's best muGraph, there and at other sizes."""
    rows = []
    for name in WORKLOADS:
        rows.append({"workload": name, **verification(name)})
        yield {"workloads": rows}


def verification(name: str) -> dict[str, Any]:
    """CPU seconds of proof and comparison with float64, and of the matrix products alone; of proofs at other sizes."""
    workload = WORKLOADS[name]
    function, inputs = workload.function(), workload.inputs()
    traced = trace(function, inputs)
    program, best = traced.graph, best_graph(traced.graph)
    verdict, proof = timed(lambda: verify_graphs(program, best))
    kernels = build(best, "cpu")
    own = torch_runner(function, traced, inputs)
    floats, comparison = timed(lambda: float_check(runner(kernels), program, baseline=own, graph=best))
    floor, multiplications = matrix_products(program, verdict)
    tests = len(verdict.certificate.rounds)
    return {
        "equivalent": verdict.equivalent,
        "error_bound": verdict.error_bound,
        "tests": tests,
        "cpu_seconds": round(proof, 2),
        "cpu_seconds_per_test": round(proof / tests, 3),
        "matmul_floor_cpu_seconds": round(floor, 3),
        "times_the_floor": round(proof / tests / floor, 4) if floor else None,
        "modular_multiplications_per_second": round(multiplications / floor) if floor else None,
        "float_comparison_cpu_seconds": round(comparison, 2),
        "stable": floats.stable,
        "other_sizes": {what: at_other_size(like, best) for what, like in other_sizes(name).items()},
    }


def best_graph(program: Graph) -> Graph:
    """The best muGraph of a short search, with its thread graphs."""
    return construct(search(program, device_for("cpu"), budget=SECONDS_PER_WORKLOAD).candidates[0].graph)


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """What a call returns, and its CPU seconds."""
    started = time.process_time()
    result = call()
    return result, time.process_time() - started


def matrix_products(program: Graph, verdict: Verdict) -> tuple[float, int]:
    """CPU seconds and multiplications of one evaluation's matrix products at full size, in the fields of a verdict's first test.

    Along axes where slices have nothing in common, one slice is evaluated and counted as often as there are slices.
    """
    cut = Reference.of(program)
    first = verdict.certificate.rounds[0]
    arith, rng = TimedArithmetic(FieldPair(first.p, first.q)), np.random.default_rng(0)
    inputs = [arith.random(node.output.shape, rng, q=bool(verdict.certificate.semantics)) for node in cut.unit.inputs()]
    evaluate_batched(cut.unit, inputs, arith)
    slices = math.prod(cut.all)
    return slices * arith.seconds, slices * arith.multiplications


def other_sizes(name: str) -> dict[str, Graph]:
    """The workload at twice its batch size, and at half the size of the largest dimension of all, which is often reduced over."""
    import torch

    workload = WORKLOADS[name]
    shapes = list(workload.shapes().values())
    largest = max(size for shape in shapes for size in shape)
    halved = [tuple(size // 2 if size == largest else size for size in shape) for shape in shapes]
    batch = 2 * workload.sizes["full"].batch
    return {
        f"batch {batch}": trace(workload.function(), workload.inputs(batch)).graph,
        f"{largest // 2} for {largest}": trace(workload.function(), [torch.ones(shape) for shape in halved]).graph,
    }


def at_other_size(program: Graph, like: Graph) -> dict[str, Any]:
    """The proof of a muGraph of the same form at the sizes of a program."""
    candidates = search(program, device_for("cpu"), budget=SECONDS_PER_WORKLOAD).candidates
    graph = construct(of_forms(candidates, [like], program)[0].graph)
    verdict, seconds = timed(lambda: verify_graphs(program, graph))
    return {"equivalent": verdict.equivalent, "same_form": form_of(graph) == form_of(like), "cpu_seconds": round(seconds, 3)}


if __name__ == "__main__":
    main()
