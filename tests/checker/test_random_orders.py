"""Random programs for every size, by every operator that is counted: they are quotients of polynomials of these orders.

Where each row of the inputs stands m times, a sum of order K is a polynomial in m of degree K at most (docs/theory.md,
"Cutoffs"). So elements of outputs, as functions of m, must be quotients of polynomials of the degrees that are counted, at more
m than there are coefficients.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mugraph.checker import residue_fields
from mugraph.checker.interpreter import run
from mugraph.checker.residue_fields import Fields, Residues, Undefined
from mugraph.checker.saved_files import Undecided
from mugraph.checker.size_templates import program_at
from mugraph.checker.sum_orders import orders_of_outputs
from mugraph.testing.named_sizes import NAME, Number, Template, Writer, Written

ROWS = 2
MORE = 3
MOST = 11
PROGRAMS = range(150)


def broadcast(x: Written, y: Written) -> list[Any] | None:
    """The shape of both together, where there is one."""
    rank = max(len(x.sizes), len(y.sizes))
    padded = [(1,) * (rank - len(each.sizes)) + each.sizes for each in (x, y)]
    fits = all(1 in (ours, theirs) or ours == theirs for ours, theirs in zip(*padded, strict=True))
    return [theirs if ours == 1 else ours for ours, theirs in zip(*padded, strict=True)] if fits else None


def with_dim(x: Written, dim: int, size: Any) -> list[Any]:
    return [*x.sizes[:dim], size, *x.sizes[dim + 1 :]]


def elementwise(draw: random.Random, x: Written, y: Written) -> Written | None:
    shape = broadcast(x, y)
    op = draw.choice(["add", "sub", "mul", "mul", "div"])
    return None if shape is None else x.writer.add(op, shape, [x, y])


def squared(draw: random.Random, x: Written, y: Written) -> Written:
    return x.writer.add("square", x.sizes, [x])


def numbered(draw: random.Random, x: Written, y: Written) -> Written:
    """Times a number of powers of the size, or plus one."""
    powers = {power: draw.randrange(1, 9) for power in draw.sample(range(-2, 3), draw.randrange(1, 3))}
    number = x.writer.number(Number(powers))
    return x.writer.add(draw.choice(["add", "mul", "div"]), x.sizes, [x, number])


def product(draw: random.Random, x: Written, y: Written) -> Written | None:
    if min(len(x.sizes), len(y.sizes)) != 2 or len(x.sizes) != len(y.sizes) or x.sizes[1] != y.sizes[0]:
        return None
    return x.writer.add("matmul", (x.sizes[0], y.sizes[1]), [x, y])


def total(draw: random.Random, x: Written, y: Written) -> Written:
    dim = draw.randrange(len(x.sizes))
    size = x.sizes[dim]
    count = 2 if size == 4 and draw.random() < 0.5 else size
    return x.writer.add("sum", with_dim(x, dim, 1 if count == size else 2), [x], dim=dim, size=count)


def transposed(draw: random.Random, x: Written, y: Written) -> Written:
    order = draw.sample(range(len(x.sizes)), len(x.sizes))
    return x.writer.add("transpose", [x.sizes[dim] for dim in order], [x], permutation=order)


def reshaped(draw: random.Random, x: Written, y: Written) -> Written:
    """With dimensions of one element elsewhere, and those of four in two or together."""
    shape: list[Any] = [size for size in x.sizes if size != 1]
    if 4 in shape:
        shape[shape.index(4) : shape.index(4) + 1] = [2, 2]
    elif shape[-2:] == [2, 2]:
        shape[-2:] = [4]
    if len(shape) < 3:
        shape.insert(draw.randrange(len(shape) + 1), 1)
    return x.writer.add("reshape", shape, [x], shape=shape)


def repeated(draw: random.Random, x: Written, y: Written) -> Written | None:
    dim = draw.randrange(len(x.sizes))
    if x.sizes[dim] not in (1, 2):
        return None
    times: Any = draw.choice([NAME, 2, 4]) if x.sizes[dim] == 1 else 2
    return x.writer.add("repeat", with_dim(x, dim, times if x.sizes[dim] == 1 else 4), [x], dim=dim, times=times)


def sliced(draw: random.Random, x: Written, y: Written) -> Written | None:
    dim = draw.randrange(len(x.sizes))
    if x.sizes[dim] not in (2, 4):
        return None
    return x.writer.add("slice", with_dim(x, dim, 1), [x], dim=dim, start=draw.randrange(int(x.sizes[dim])), size=1, step=1)


def joined(draw: random.Random, x: Written, y: Written) -> Written | None:
    dim = draw.randrange(len(x.sizes))
    if x.sizes != y.sizes or x.sizes[dim] not in (1, 2):
        return None
    return x.writer.add("concat", with_dim(x, dim, 2 * int(x.sizes[dim])), [x, y], dim=dim)


OPERATORS: Sequence[Callable[[random.Random, Written, Written], Written | None]] = (
    elementwise, elementwise, elementwise, squared, numbered, product, product, total, total, total,
    transposed, reshaped, repeated, sliced, joined,
)  # fmt: skip


def random_template(seed: int) -> Template:
    """A program of up to eight operators on two tensors of any number of rows, and one of two."""
    draw, writer = random.Random(seed), Writer()
    values = [writer.input("x", (NAME, 2)), writer.input("y", (NAME, 2)), writer.input("w", (2, 2))]
    for _ in range(draw.randrange(3, 9)):
        x, y = (values[-1 - int(len(values) * draw.random() ** 2)] for _ in range(2))
        made = draw.choice(OPERATORS)(draw, x, y)
        if made is not None and len(made.sizes) <= 3 and made.sizes.count(NAME) <= 2:
            values.append(made)
    return {"nodes": writer.nodes, "outputs": [[values[-1].number, 0]]}


def values_of(template: Template, times: int, seed: int) -> list[int]:
    """The first elements of the output, where each row of the inputs stands so many times; raises Undefined."""
    rng = random.Random(seed)
    domain = Fields(residue_fields.draw(rng, 840, count=False), b"")
    size = ROWS * times
    inputs = []
    for node in template["nodes"]:
        if node["op"] == "input":
            shape = [ROWS if each == NAME else each for each in node["attributes"]["shape"]]
            small = np.array([rng.randrange(domain.primes.p) for _ in range(math.prod(shape))], object).reshape(shape)
            inputs.append(Residues(np.concatenate([small] * times) if NAME in node["attributes"]["shape"] else small, None))
    (made,) = run(program_at(template, {NAME: size}, "program"), inputs, domain)
    (output, _) = template["outputs"][0]
    kept = tuple(slice(ROWS) if each == NAME else slice(None) for each in template["nodes"][output]["outputs"][0]["shape"])
    return [int(each) for each in made.p[kept].flat]


def prime_of(seed: int) -> int:
    """That of the elements with this seed."""
    return int(residue_fields.draw(random.Random(seed), 840, count=False).p)


def is_quotient(values: Sequence[int], numerator: int, denominator: int, prime: int) -> bool:
    """Whether values at 1, 2, ... are those of a quotient of polynomials of these degrees."""
    rows = [
        [pow(m, power, prime) for power in range(numerator + 1)]
        + [-value * pow(m, power, prime) % prime for power in range(denominator + 1)]
        for m, value in enumerate(values, 1)
    ]
    width, rank = len(rows[0]), 0
    for column in range(width):
        place = next((index for index in range(rank, len(rows)) if rows[index][column]), None)
        if place is None:
            continue
        rows[rank], rows[place] = rows[place], rows[rank]
        inverse = pow(rows[rank][column], -1, prime)
        for index in range(rank + 1, len(rows)):
            factor = rows[index][column] * inverse % prime
            if factor:
                rows[index] = [(mine - factor * its) % prime for mine, its in zip(rows[index], rows[rank], strict=True)]
        rank += 1
    return rank < width


def judged(seed: int, fewer: int) -> bool | None:
    """Whether a program has the orders that are counted, less so many of its numerators; None where nothing is said of it."""
    template = random_template(seed)
    try:
        ((top, bottom),) = orders_of_outputs(template, [NAME])[0]
        numerator, denominator = top[NAME] - fewer, bottom[NAME]
        if not 0 <= numerator + denominator <= MOST or numerator < 0:
            return None
        columns = [values_of(template, times, seed) for times in range(1, numerator + denominator + 2 + MORE)]
    except (Undecided, Undefined):
        return None
    return all(is_quotient(values, numerator, denominator, prime_of(seed)) for values in zip(*columns, strict=True))


def test_random_programs_have_the_orders_that_are_counted() -> None:
    found = [judged(seed, 0) for seed in PROGRAMS]
    assert [seed for seed, right in zip(PROGRAMS, found, strict=True) if right is False] == []
    assert found.count(True) > len(PROGRAMS) // 2


def test_orders_that_are_one_too_low_are_found_out() -> None:
    assert [judged(seed, 1) for seed in PROGRAMS].count(False) > 20


@pytest.mark.slow
def test_many_random_programs_have_the_orders_that_are_counted() -> None:
    assert [seed for seed in range(1000, 4000) if judged(seed, 0) is False] == []
