"""Random functions of any size that the theorem of cutoffs decides about, compared at all sizes from 1 to 8 by exact arithmetic.

    python benchmarks/cutoff_pairs.py                   # 100,000 pairs; a run that is repeated goes on where the last one stopped
    python benchmarks/cutoff_pairs.py --seconds 600     # stop after ten minutes of processor time
    python benchmarks/cutoff_pairs.py --pairs 100 --spans 5 --verified 5 --output /tmp/cutoffs.json

A *family* is a random function of two tensors (`mugraph.testing.summed_functions`), the same in other words, and with
mistakes. The rules count at how many sizes two of them must be equal to be so at all. A pair that agrees there modulo 2**61
- 1 is accepted, and wrong if it differs at another size, of up to 8 and two more than the last that was looked at. The same is
asked of the checker's own count, of the functions as programs with names for sizes (`mugraph.checker.sum_orders`), which may
be another. *Spans* are products of up to three sums over rows and of numbers made of the size: all linear combinations of
them that vanish at the sizes that decide are computed, and must vanish at the others, so that all pairs of combinations are
asked about at once. With one size fewer some do not (`spans with one size fewer: wrong`). Pairs that are *verified* are asked
of `mugraph.verify(dynamic=)`; what it calls equivalent is compared at sizes from 1 to 8. Exit code 1 where something that was
accepted differs. Totals go to `benchmarks/results/cutoff-pairs.json`, seed by seed; other sources begin anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

import mugraph
from kept import sources
from mugraph.checker.saved_files import Undecided
from mugraph.checker.sum_orders import conditions_of
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.testing.named_sizes import NAME, Template, template_of_function
from mugraph.testing.summed_functions import (
    WIDTH,
    Member,
    Plan,
    at_point,
    function_of,
    in_other_words,
    random_plan,
    span_of_sums,
    with_mistake,
)

RESULT = Path(__file__).parent / "results" / "cutoff-pairs.json"
SIZES = range(1, 9)
PACKAGES = ("checker", "frontend/symbolic_sizes", "sizes", "testing", "verifier")
"""Of mugraph: those that count, and those that functions and comparisons come from."""
MEMBERS = 12
"""Functions of a family, of which all pairs are asked about."""
MOST_SIZES = 16
"""Pairs that more sizes would decide about are left out."""


def main(arguments: Sequence[str]) -> int:
    """Run all three and write what was found; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000, help="of functions that are asked about (default: 100,000)")
    parser.add_argument("--spans", type=int, default=100, help="how many lists of products of sums (default: 100)")
    parser.add_argument("--verified", type=int, default=30, help="pairs that mugraph.verify is asked (default: 30)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="processor time after which the run stops")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    record: dict[str, Any] = {"sources": sources(PACKAGES), "next": {}, "counts": {}, "wrong": [], "seconds": 0.0}
    if options.output.exists() and (before := json.loads(options.output.read_text())).get("sources") == record["sources"]:
        record = before
    goals = {"spans": options.spans, "verified": options.verified, "pairs": options.pairs}
    judges = {"spans": judged_span, "verified": judged_by_verify, "pairs": judged_family}
    counts, begun = Counter[str](record["counts"]), time.process_time() - record["seconds"]
    end = time.process_time() + options.seconds

    def share(what: str) -> float:
        """How much of what is wanted is there."""
        return counts[what] / goals[what] if goals[what] else 1.0

    while share(what := min(goals, key=share)) < 1 and time.process_time() < end:
        seed = record["next"].get(what, 0)
        record["wrong"] += judges[what](seed, counts)
        record["next"][what] = seed + 1
        record |= {"counts": dict(sorted(counts.items())), "seconds": time.process_time() - begun}
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
    return 1 if record["wrong"] else 0


def drawn_plans(seed: int, steps: int, members: int) -> list[Plan]:
    """A function, and others that are the same in other words or with a mistake."""
    draw = random.Random(seed)
    plan = random_plan(draw, draw.randrange(1, steps + 1))
    return [plan, *((with_mistake if number % 2 else in_other_words)(plan, draw) for number in range(1, members))]


def judged_family(seed: int, counts: Counter[str]) -> list[str]:
    """Count pairs of functions and what became of them; what is wrong with them."""
    members: list[Member] = []
    templates: list[Template] = []
    for plan in drawn_plans(seed, 5, MEMBERS):
        try:
            member, template = Member(function_of(plan)), template_of_function(function_of(plan))
        except SizeMatters:
            counts["functions refused"] += 1
            continue
        members.append(member)
        templates.append(template)
    wrong = []
    for (left, ours), (right, theirs) in itertools.combinations(zip(members, templates, strict=True), 2):
        wrong += judged_pair(left, right, left.deciding_sizes(right), seed, counts, "pairs")
        wrong += judged_pair(left, right, checked_sizes(ours, theirs), seed, counts, "pairs by the checker")
    return wrong


def checked_sizes(left: Template, right: Template) -> range:
    """The sizes at which equality is equality at all, as the checker counts; none where it does not know."""
    try:
        conditions = conditions_of(left, right, [NAME])
    except Undecided:
        return range(0)
    first, count = conditions.cutoffs[NAME]
    return range(first, first + count)


def judged_pair(left: Member, right: Member, sizes: range, seed: int, counts: Counter[str], what: str) -> list[str]:
    """Count a pair that sizes decide about; what is wrong with it."""
    if not 0 < len(sizes) <= MOST_SIZES:
        counts[f"{what} with {'too many' if sizes else 'no'} sizes"] += 1
        return []
    counts[what] += 1
    others = range(1, max(*SIZES, sizes[-1] + 2) + 1)
    differ = [size for size in others if left.agrees(right, size, seed + 1) is False]
    accepted = left.is_accepted(right, sizes, seed)
    counts[f"{what} accepted"] += accepted
    counts[f"{what} that differ"] += bool(differ)
    counts[f"{what} that differ, and not at the first size"] += bool(differ) and differ[0] > 1
    counts[f"{what}: tests"] += len(sizes)
    early = left.is_accepted(right, sizes[:1], seed) and left.is_accepted(right, sizes[:-1], seed)
    counts[f"{what} with one size fewer: wrong"] += early and bool(differ)
    return [f"family {seed}: {what}: accepted at {[*sizes]}, differs at {differ}"] if accepted and differ else []


def judged_span(seed: int, counts: Counter[str]) -> list[str]:
    """Count a span and what became of it; what is wrong with it."""
    span = span_of_sums(random.Random(seed))
    counts["spans"] += 1
    counts["combinations of spans that vanish"] += len(span.vanishing(span.sizes))
    counts["spans with one size fewer: wrong"] += not span.vanish_at_all(span.sizes[:-1])
    return [] if span.vanish_at_all(span.sizes) else [f"span {seed}"]


def judged_by_verify(seed: int, counts: Counter[str]) -> list[str]:
    """Count what `mugraph.verify` says of a pair; what is wrong with it."""
    left, right = map(function_of, random.Random(seed).sample(drawn_plans(seed, 3, 3), 2))
    rows: Any = {0: {0: mugraph.Dim("n", 1, 1000)}, 1: {0: mugraph.Dim("n", 1, 1000)}}
    example = torch.randn(3, WIDTH), torch.randn(3, WIDTH), torch.randn(WIDTH, WIDTH)
    verdict = mugraph.verify(left, right, example, dynamic=rows, seed=seed)
    counts["verified"] += 1
    counts[f"verified: {verdict.outcome}"] += 1
    points = [(at_point(left, size, seed), at_point(right, size, seed)) for size in SIZES]
    agreed = [None if ours is None or its is None else bool((ours == its).all()) for ours, its in points]
    if verdict.equivalent and False in agreed:
        return [f"verified {seed}: equivalent, and differs at size {1 + agreed.index(False)}"]
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
