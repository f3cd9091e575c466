"""Families of constants, of numbers chosen with a seed in view, of casts, and of laws that hold in some draws only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import torch

from mugraph.ir.program import Program, ProgramTensor
from mugraph.testing.pairs.pair import Function, Pair, Truth, family, pair, tensors

EQUAL, DIFFERENT, PART, NEARLY, EMPTY, READING = Truth

FLOATS = (1.0, 2.0, 0.5, 0.1, 1 / 3, math.sqrt(2), 1 / math.sqrt(8), math.pi, 1e-5, 0.7, 1 / 64, math.sqrt(1 / 3))

USES: dict[str, Callable[[float], Function]] = {
    "a factor": lambda c: lambda x: x * c,
    "a summand": lambda c: lambda x: x + c,
    "a denominator": lambda c: lambda x: x / c,
    "in a sum of squares": lambda c: lambda x: (x * x).sum(-1) + c,
}
"""What a constant may be to a program."""


def _used(c: float, other: float, truth: Truth, note: str) -> Iterator[Pair]:
    for use, fn in USES.items():
        yield pair(truth, f"{note} as {use}", fn(c), fn(other), (3, 2))


@family("constants")
def one_ulp_above() -> Iterator[Pair]:
    for c in FLOATS:
        yield from _used(c, math.nextafter(c, math.inf), DIFFERENT, f"{c!r}")


@family("constants")
def one_ulp_below() -> Iterator[Pair]:
    for c in FLOATS:
        yield from _used(c, math.nextafter(c, 0), DIFFERENT, f"{c!r}")


@family("constants")
def two_to_four_ulp_apart() -> Iterator[Pair]:
    for c in FLOATS[:6]:
        for ulps in (2, 3, 4):
            other = c + ulps * math.ulp(c)
            yield pair(DIFFERENT, f"{c!r}, {ulps} ulp", lambda x, c=c: x * c, lambda x, c=other: x * c, (4,))


@family("constants")
def a_fraction_and_its_float() -> Iterator[Pair]:
    """A float is the fraction that it was rounded from, or it is itself: then it is half an ulp beside."""
    for n in (3, 5, 7, 10, 49, 100, 1000):
        yield pair(READING, f"1/{n} as a quotient", lambda x, n=n: x / n, lambda x, n=n: x * (1 / n), (3,))
        yield pair(READING, f"1/{n} of a sum", lambda x, n=n: (x * (1 / n)).sum(-1), lambda x, n=n: x.sum(-1) / n, (2, 3))
    for n in (2, 4, 64):
        yield pair(EQUAL, f"1/{n} is a float", lambda x, n=n: x / n, lambda x, n=n: x * (1 / n), (3,))


@family("constants")
def a_root_and_its_float() -> Iterator[Pair]:
    for n in (2, 3, 8, 12, 96, 128):
        c = math.sqrt(n)
        yield pair(READING, f"the square of the root of {n}", lambda x, c=c: x * c * c, lambda x, n=n: x * n, (3,))
        yield pair(READING, f"1 / the root of {n}", lambda x, c=c: x / c / c, lambda x, n=n: x / n, (3,))
    for n in (4, 16, 64):
        yield pair(EQUAL, f"the root of {n} is a float", lambda x, n=n: x * math.sqrt(n), lambda x, n=n: x * math.isqrt(n), (3,))


@family("constants")
def rounded_sums_and_products() -> Iterator[Pair]:
    """What Python computed with floats is no longer the number that was meant."""
    cases = {
        "0.1 + 0.2": (0.1 + 0.2, 0.3),
        "sqrt(2) squared": (math.sqrt(2) ** 2, 2.0),
        "1.1 * 1.1": (1.1 * 1.1, 1.21),
        "1 - 0.9": (1 - 0.9, 0.1),
        "1.0000000000000004": (1.0000000000000004, 1.0),
        "1 - 2**-53": (1 - 2**-53, 1.0),
        "0.1 in fp32": (float(torch.tensor(0.1)), 0.1),
        "1/3 in fp32": (float(torch.tensor(1 / 3)), 1 / 3),
    }
    for note, (c, other) in cases.items():
        yield from _used(c, other, DIFFERENT, note)


@family("constants")
def tiny_terms() -> Iterator[Pair]:
    for c in (1e-30, 2.0**-60, 1e-12, 1e-7):
        yield pair(DIFFERENT, f"{c!r} added", lambda x, c=c: x + c, lambda x: x, (3, 2))
        yield pair(DIFFERENT, f"{c!r} times another tensor", lambda x, y, c=c: x + c * y, lambda x, y: x + 0 * y, (3, 2), (3, 2))
        yield pair(
            DIFFERENT,
            f"1 + {c!r}, a factor of a product",
            lambda x, w, c=c: x @ w + c * (x @ w),
            lambda x, w: x @ w,
            (2, 3),
            (3, 2),
        )


@family("constants")
def powers_of_two_that_cancel() -> Iterator[Pair]:
    for n in (1, 20, 100):
        yield pair(EQUAL, f"2**{n}", lambda x, c=2.0**n: x * c / c, lambda x: x, (3,))
        yield pair(EQUAL, f"2**-{n}", lambda x, c=2.0**n: x / c * c, lambda x: x, (3,))
        yield pair(DIFFERENT, f"2**{n} and half of it", lambda x, c=2.0**n: x * c / (c / 2), lambda x: x, (3,))


@family("constants")
def an_epsilon_of_another_size() -> Iterator[Pair]:
    for eps, other in ((1e-5, 1e-6), (1e-5, 1.1e-5), (1e-6, 0.0), (1e-12, 1e-13)):

        def normed(x: torch.Tensor, eps: float = eps) -> torch.Tensor:
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)

        yield pair(DIFFERENT, f"{eps} and {other}", normed, lambda x, f=normed, e=other: f(x, e), (2, 4))
        yield pair(EQUAL, f"{eps} twice", normed, lambda x, e=eps: x / torch.sqrt((x * x).mean(-1, keepdim=True) + e), (2, 4))


@family("constants")
def a_scale_spelled_in_other_ways() -> Iterator[Pair]:
    for d in (4, 16, 64, 8, 48):
        truth = EQUAL if math.isqrt(d) ** 2 == d else READING
        yield pair(truth, f"{d}: a quotient and a power", lambda x, d=d: x / math.sqrt(d), lambda x, d=d: x * d**-0.5, (2, 3))
        yield pair(DIFFERENT, f"{d}: without the root", lambda x, d=d: x / math.sqrt(d), lambda x, d=d: x / d, (2, 3))
        yield pair(
            DIFFERENT, f"{d}: of another size", lambda x, d=d: x / math.sqrt(d), lambda x, d=d: x / math.sqrt(d + 1), (2, 3)
        )


# --- seeds -------------------------------------------------------------------------------------------------------------


def _program(change: Callable[[ProgramTensor, ProgramTensor], ProgramTensor]) -> Program:
    program = Program()
    x, y = program.input("x", (3,)), program.input("y", (3,))
    program.output(change(x, y))
    return program


def _shifted_sum(constant: Fraction, turned: bool) -> Callable[[ProgramTensor, ProgramTensor], ProgramTensor]:
    return lambda x, y: (y + x if turned else x + y) + constant


def _product_of_primes(seed: int | None) -> int:
    """Primes that the verifier draws first under a seed, and will draw again if its draws do not depend on the programs."""
    from mugraph import verify

    product = 1
    for _ in range(2):
        constant = Fraction(max(2, product))
        left, right = (_program(_shifted_sum(constant, turned)) for turned in (False, True))
        verdict = verify(left, right, None, seed=seed)
        product = math.prod(number for drawn in verdict.certificate.rounds for number in (drawn.p, drawn.q))
    return product


def _vanishing(seed: int | None) -> Iterator[Pair]:
    product = _product_of_primes(seed)
    options = {} if seed is None else {"seed": seed}
    changes: dict[str, Callable[[ProgramTensor, ProgramTensor], ProgramTensor]] = {
        "a summand": lambda x, y: x + y + product,
        "a factor": lambda x, y: x * (product + 1) + y,
        "a factor of a product": lambda x, y: x + y + x * y * product,
        "a fraction": lambda x, y: x + y + Fraction(product, 3),
        "a root": lambda x, y: x + y + (x.square() + 1).sqrt() * product,
        "an exponential": lambda x, y: x + y + x.exp() * product,
    }
    for note, change in changes.items():
        yield Pair(note, _program(lambda x, y: x + y), _program(change), None, DIFFERENT, options)
    yield Pair(
        "the same summand", _program(lambda x, y: x + y + product), _program(lambda x, y: y + (x + product)), None, EQUAL, options
    )


@family("seeds")
def multiples_of_the_first_primes() -> Iterator[Pair]:
    yield from _vanishing(None)


@family("seeds")
def multiples_of_the_primes_of_seed_0() -> Iterator[Pair]:
    for made in _vanishing(0):
        yield replace(made, options={})


@family("seeds")
def multiples_of_the_primes_of_a_given_seed() -> Iterator[Pair]:
    for seed in (0, 7):
        for made in _vanishing(seed):
            yield replace(made, note=f"{made.note}, seed {seed}")


# --- casts -------------------------------------------------------------------------------------------------------------

NARROW = (torch.float16, torch.bfloat16)


def _through(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).to(torch.float32)


@family("casts")
def rounded_and_widened() -> Iterator[Pair]:
    for t in NARROW:
        yield pair(DIFFERENT, f"{t}", lambda x, t=t: _through(x, t), lambda x: x * 1, (3, 2))
        yield pair(EQUAL, f"{t} twice", lambda x, t=t: _through(_through(x, t), t), lambda x, t=t: _through(x, t), (3, 2))
        yield pair(DIFFERENT, f"{t} before a product", lambda x, w, t=t: _through(x, t) @ w, lambda x, w: x @ w, (2, 3), (3, 2))
        yield pair(DIFFERENT, f"{t} of the weights", lambda x, w, t=t: x @ _through(w, t), lambda x, w: x @ w, (2, 3), (3, 2))
        yield pair(DIFFERENT, f"{t} of the result", lambda x, w, t=t: _through(x @ w, t), lambda x, w: x @ w, (2, 3), (3, 2))
        yield pair(
            EQUAL,
            f"{t} in both",
            lambda x, w, t=t: _through(x, t) @ w * 2,
            lambda x, w, t=t: (_through(x, t) * 2) @ w,
            (2, 3),
            (3, 2),
        )


@family("casts")
def what_rounding_leaves() -> Iterator[Pair]:
    """The rest of a split into high and low parts."""
    for t in NARROW:
        yield pair(
            DIFFERENT, f"{t}: the rest", lambda x, w, t=t: (x - _through(x, t)) @ w, lambda x, w: 0 * (x @ w), (2, 3), (3, 2)
        )
        yield pair(
            DIFFERENT,
            f"{t}: the rest of the rest",
            lambda x, t=t: x - _through(x, t) - _through(x - _through(x, t), t),
            lambda x: 0 * x,
            (3,),
        )
        yield pair(
            DIFFERENT,
            f"{t}: products of parts",
            lambda x, w, t=t: _through(x, t) @ _through(w, t),
            lambda x, w: x @ w,
            (2, 3),
            (3, 2),
        )
        yield pair(DIFFERENT, f"{t}: a scale of quantization", lambda x, t=t: _through(x * 100, t) / 100, lambda x: x * 1, (3,))


@family("casts")
def rounding_moved() -> Iterator[Pair]:
    for t in NARROW:
        yield pair(
            DIFFERENT,
            f"{t}: a sum of rounded numbers",
            lambda x, y, t=t: _through(x, t) + _through(y, t),
            lambda x, y, t=t: _through(x + y, t),
            (4,),
            (4,),
        )
        yield pair(
            DIFFERENT,
            f"{t}: a tripled rounded number",
            lambda x, t=t: 3 * _through(x, t),
            lambda x, t=t: _through(3 * x, t),
            (4,),
        )
        yield pair(
            DIFFERENT,
            f"{t}: an exponential",
            lambda x, t=t: torch.exp(_through(x, t)),
            lambda x, t=t: _through(torch.exp(x), t),
            (4,),
        )
        yield pair(DIFFERENT, f"{t}: a sum", lambda x, t=t: _through(x, t).sum(-1), lambda x, t=t: _through(x.sum(-1), t), (2, 4))


@family("casts")
def one_narrow_type_for_another() -> Iterator[Pair]:
    yield pair(DIFFERENT, "half and bfloat", lambda x: _through(x, torch.float16), lambda x: _through(x, torch.bfloat16), (3,))
    yield pair(
        DIFFERENT,
        "half before bfloat",
        lambda x: _through(_through(x, torch.float16), torch.bfloat16),
        lambda x: _through(x, torch.bfloat16),
        (3,),
    )
    yield pair(
        DIFFERENT,
        "one of two",
        lambda x, y: _through(x, torch.float16) + y,
        lambda x, y: x + _through(y, torch.float16),
        (3,),
        (3,),
    )


@family("casts")
def overflows() -> Iterator[Pair]:
    for scale in (1e6, 1e5, 7e4):
        yield pair(
            DIFFERENT, f"{scale} to half", lambda x, s=scale: _through(x * s, torch.float16), lambda x, s=scale: x * s, (3,)
        )
        yield pair(
            DIFFERENT, f"{scale} to half and back", lambda x, s=scale: _through(x * s, torch.float16) / s, lambda x: x * 1, (3,)
        )
    yield pair(DIFFERENT, "an exponential", lambda x: _through(torch.exp(x), torch.float16), torch.exp, (3,))


@family("casts")
def casts_that_lose_nothing() -> Iterator[Pair]:
    """Wider and back: free, and equal."""
    yield replace(pair(EQUAL, "to double and back", lambda x: x.double().float() * 2, lambda x: 2 * x, (3,)), by_values=False)
    yield replace(pair(EQUAL, "computed in double", lambda x: (x.double() * x).float(), lambda x: x * x, (3,)), by_values=False)
    for t in NARROW:
        (x, y) = tensors((3, 4), (3, 4), dtype=t)
        yield Pair(f"{t}: wider and back", lambda x, t=t: x.float().to(t) * 2, lambda x: 2 * x, (x,), EQUAL, by_values=False)
        yield Pair(
            f"{t}: a sum in fp32",
            lambda x, y, t=t: (x.float() + y.float()).to(t),
            lambda x, y: x + y,
            (x, y),
            EQUAL,
            by_values=False,
        )
        yield Pair(
            f"{t}: a norm in fp32",
            lambda x, y, t=t: (x.float() / torch.sqrt((x.float() ** 2).mean(-1, keepdim=True) + 1)).to(t) * y,
            lambda x, y: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1) * y,
            (x, y),
            EQUAL,
            by_values=False,
        )
        yield Pair(
            f"{t}: a norm in fp32, another epsilon",
            lambda x, y, t=t: (x.float() / torch.sqrt((x.float() ** 2).mean(-1, keepdim=True) + 1)).to(t) * y,
            lambda x, y: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 2) * y,
            (x, y),
            DIFFERENT,
            by_values=False,
        )
        yield Pair(
            f"{t}: softmax in fp32",
            lambda x, y, t=t: torch.softmax(x.float(), -1).to(t) * y,
            lambda x, y: torch.softmax(x, -1) * y,
            (x, y),
            EQUAL,
            by_values=False,
        )


# --- laws --------------------------------------------------------------------------------------------------------------


def _product(factors: int, factor: Callable[[torch.Tensor, int], torch.Tensor]) -> Function:
    def fn(x: torch.Tensor) -> torch.Tensor:
        result = factor(x, 1)
        for number in range(2, factors + 1):
            result = result * factor(x, number)
        return result

    return fn


FACTORS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "roots of squares and their bases": lambda x, i: torch.sqrt((x + i) ** 2) + x + i,
    "roots of squares less their bases": lambda x, i: torch.sqrt((x + i) ** 2) - x - i,
    "absolute values and their arguments": lambda x, i: torch.abs(x + i) + x + i,
    "roots of roots": lambda x, i: torch.sqrt(torch.sqrt((x + i) ** 4)) + x + i,
    "rectified numbers": lambda x, i: torch.relu(x + i),
    "roots of multiples": lambda x, i: torch.sqrt((i * x) ** 2) + i * x,
}


@family("unbounded laws")
def products_that_vanish_on_one_side() -> Iterator[Pair]:
    for note, factor in FACTORS.items():
        for factors in (1, 2, 5, 10, 12):
            yield pair(DIFFERENT, f"{factors} {note}", _product(factors, factor), lambda x: 0 * x, (3,))


@family("unbounded laws")
def products_of_roots_and_their_signs() -> Iterator[Pair]:
    for factors in (2, 3, 6, 10):
        roots, bases = _product(factors, lambda x, i: torch.sqrt((x + i) ** 2)), _product(factors, lambda x, i: x + i)
        yield pair(DIFFERENT, f"{factors} roots and bases", roots, bases, (3,))
        yield pair(EQUAL, f"{factors} roots and absolute values", roots, _product(factors, lambda x, i: torch.abs(x + i)), (3,))
        yield pair(EQUAL, f"{factors} squared", lambda x, f=roots: f(x) ** 2, lambda x, f=bases: f(x) ** 2, (3,))


@family("unbounded laws")
def sums_that_one_side_hides() -> Iterator[Pair]:
    """A difference that is there only where every root takes its other sign."""
    for factors in (3, 6, 10):
        hidden = _product(factors, lambda x, i: torch.sqrt((x + i) ** 2) + x + i)
        yield pair(DIFFERENT, f"{factors} roots, added", lambda x, f=hidden: x * x + f(x), lambda x: x * x, (3,))
        yield pair(DIFFERENT, f"{factors} roots, exponentiated", lambda x, f=hidden: torch.exp(x) * (1 + f(x)), torch.exp, (3,))
        yield pair(DIFFERENT, f"{factors} roots, of a sum", lambda x, f=hidden: f(x.sum(-1)), lambda x: 0 * x.sum(-1), (3, 2))


@family("unbounded laws")
def stacks_of_softmax() -> Iterator[Pair]:
    def stacked(times: int, slope: float = 1.0) -> Function:
        def fn(x: torch.Tensor) -> torch.Tensor:
            for _ in range(times):
                x = torch.softmax(slope * x, -1)
            return x

        return fn

    for times in (2, 3, 4):
        yield pair(DIFFERENT, f"{times} and {times + 1}", stacked(times), stacked(times + 1), (2, 3))
        yield pair(DIFFERENT, f"{times} of another slope", stacked(times), stacked(times, 1.5), (2, 3))
        yield pair(EQUAL, f"{times} of shifted scores", stacked(times), lambda x, f=stacked(times): f(x + 1), (2, 3))


@family("unbounded laws")
def roots_of_roots() -> Iterator[Pair]:
    def nested(x: torch.Tensor, depth: int) -> torch.Tensor:
        for _ in range(depth):
            x = torch.sqrt(x)
        return x

    for depth in (2, 3, 4):
        yield pair(EQUAL, f"depth {depth}, of a power", lambda x, d=depth: nested(x ** (2**d), d), torch.abs, (3,))
        yield pair(DIFFERENT, f"depth {depth}, its base", lambda x, d=depth: nested(x ** (2**d), d), lambda x: x, (3,))
        yield pair(
            DIFFERENT,
            f"depth {depth}, one less",
            lambda x, d=depth: nested(x * x + 1, d),
            lambda x, d=depth: nested(x * x + 1, d - 1),
            (3,),
        )
        yield pair(
            EQUAL, f"depth {depth}, raised again", lambda x, d=depth: nested(x * x + 1, d) ** (2**d), lambda x: x * x + 1, (3,)
        )
