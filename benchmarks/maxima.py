"""Are programs of maxima told apart? Random expressions of max, min, relu, abs, sums and products, rewritten or with a mistake.

    python benchmarks/maxima.py                # two minutes
    python benchmarks/maxima.py --seconds 20

Of each pair NumPy says at 20,000 points of many magnitudes whether it is equal, and `mugraph.verify` whether it is equivalent.
A pair that is accepted and not equal, or the other way round, is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

import mugraph
from mugraph.verifier import Outcome

NAMES = ("a", "b", "c")
BINARY = {"max": np.maximum, "min": np.minimum, "add": np.add, "sub": np.subtract, "mul": np.multiply}
Expression = Any
"""A name, or a tuple: an operator and its operands, of `scale` a number and an operand."""


def drawn(rng: random.Random, depth: int) -> Expression:
    """A random expression."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(NAMES)
    op = rng.choice(["max", "max", "min", "add", "sub", "mul", "relu", "abs", "scale"])
    if op in ("relu", "abs"):
        return op, drawn(rng, depth - 1)
    if op == "scale":
        return op, rng.choice([2, -1, 0.5, -3]), drawn(rng, depth - 1)
    return op, drawn(rng, depth - 1), drawn(rng, depth - 1)


def rewritten(rng: random.Random, e: Expression) -> Expression:
    """The same function, written otherwise."""
    if isinstance(e, str):
        return e
    op, *operands = e
    operands = [x if isinstance(x, (int, float)) else rewritten(rng, x) for x in operands]
    x, y = operands[0], operands[-1]
    forms: dict[str, list[Expression]] = {
        "max": [("max", y, x), ("add", y, ("relu", ("sub", x, y))), ("scale", -1, ("min", ("scale", -1, x), ("scale", -1, y)))],
        "min": [("scale", -1, ("max", ("scale", -1, x), ("scale", -1, y)))],
        "relu": [("scale", 0.5, ("add", x, ("abs", x)))],
        "abs": [("max", x, ("scale", -1, x))],
    }
    same = (op, *operands)
    return rng.choice([same, *forms.get(op, [])])


def mistaken(rng: random.Random, e: Expression) -> Expression:
    """Another expression, with another operator or another name somewhere."""
    if isinstance(e, str):
        return rng.choice(NAMES)
    if e[0] in BINARY and rng.random() < 0.4:
        return rng.choice(sorted(BINARY)), *e[1:]
    place = rng.choice([place for place, x in enumerate(e) if place and not isinstance(x, (int, float))])
    return *e[:place], mistaken(rng, e[place]), *e[place + 1 :]


def program(e: Expression) -> mugraph.Program:
    """The expression as a program of three vectors."""
    made = mugraph.Program()
    inputs = {name: made.input(name, (4,)) for name in NAMES}

    def value(e: Expression) -> Any:
        if isinstance(e, str):
            return inputs[e]
        if e[0] == "scale":
            return value(e[2]) * e[1]
        x = value(e[1])
        if e[0] in ("relu", "abs"):
            return x.apply(e[0])
        y = value(e[2])
        of = {"max": x.maximum, "min": x.minimum, "add": x.__add__, "sub": x.__sub__, "mul": x.__mul__}
        return of[e[0]](y)

    made.output(value(e))
    return made


def numbers(e: Expression, points: dict[str, Any]) -> Any:
    """The expression's values at points."""
    if isinstance(e, str):
        return points[e]
    if e[0] == "scale":
        return e[1] * numbers(e[2], points)
    if e[0] in ("relu", "abs"):
        x = numbers(e[1], points)
        return np.maximum(x, 0) if e[0] == "relu" else np.abs(x)
    return BINARY[e[0]](numbers(e[1], points), numbers(e[2], points))


def main() -> None:
    """Count verdicts, and print the wrong ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    rng, draws = random.Random(options.seed), np.random.default_rng(options.seed)
    points = {name: draws.standard_normal(20_000) * draws.choice([0.1, 1, 10], 20_000) for name in NAMES}
    counts: Counter[str] = Counter()
    wrong = 0
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        left = drawn(rng, 3)
        right = rewritten(rng, rewritten(rng, left)) if rng.random() < 0.5 else mistaken(rng, left)
        pair = (program(left), program(right))
        if pair[0].graph == pair[1].graph:
            continue
        equal = bool(np.allclose(numbers(left, points), numbers(right, points), rtol=1e-9, atol=1e-9))
        outcome = mugraph.verify(*pair, budget=5.0).outcome
        counts[f"{'equal' if equal else 'not equal'}: {outcome}"] += 1
        if outcome is (Outcome.DIFFERENT if equal else Outcome.EQUIVALENT):
            wrong += 1
            print(f"wrong: {left} and {right} are {'equal' if equal else 'not equal'}, and called {outcome}")
    for words, count in sorted(counts.items()):
        print(f"{count:5} {words}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
