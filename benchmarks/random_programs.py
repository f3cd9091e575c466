"""Random PyTorch functions, of operators inside and outside the table, against float64: does any result differ?

    python benchmarks/random_programs.py --count 1000          # some hours of one core
    python benchmarks/random_programs.py --only 17             # one function, with its text and what became of it

A function applies a few operators, drawn with the number that names it, to tensors whose sizes are 0, 1, primes and powers of
two, that are contiguous or not. It is optimized without measuring, so that kernels run wherever there are any, and what comes of
it is called on other tensors. Right is what errs at most ERRORS times as much as the function in its own precision, or by
ROUNDING of the largest element. Where it errs more, elements that rounding decides, by a comparison or a whole part on their
way, are left out, and counted. Then it is called with an infinity or NaN: results that have these in other places than the
function's are counted by themselves; crashes count as wrong. Records go to `benchmarks/results/random-programs.json`; what is
there by the same sources is kept.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch.nn import functional as F

import mugraph
from kept import Record, records

RESULT = Path(__file__).parent / "results" / "random-programs.json"
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 32)
ERRORS = 8.0
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Relative to the largest element."""
SHAKEN, ROUNDINGS = 16, 8
"""How often results of steps are moved, and by how many roundings, to see which elements jump, ..."""
JUMP = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""... which is to say, by so much of the largest."""
MOST_ELEMENTS = 1 << 14
BUDGET = 5.0

Shape = tuple[int, ...]
Tensor = torch.Tensor
Apply = Callable[..., Tensor]

UNARY: dict[str, Apply] = {
    **{name: getattr(torch, name) for name in ("relu", "tanh", "sigmoid", "abs", "neg", "square", "sin", "cos")},
    **{
        name: getattr(torch, name)
        for name in ("atan", "asinh", "erf", "erfc", "sinc", "floor", "ceil", "round", "trunc", "frac", "sign")
    },
    **{name: getattr(F, name) for name in ("gelu", "silu", "hardswish", "hardsigmoid", "leaky_relu", "elu", "selu", "softplus")},
    **{name: getattr(F, name) for name in ("mish", "logsigmoid", "relu6", "hardtanh", "celu")},
    **{
        name: functools.partial(lambda name, x: getattr(torch, name)(x.clamp(-3, 3)), name)
        for name in ("exp", "exp2", "expm1", "sinh", "cosh")
    },
    **{
        name: functools.partial(lambda name, x: getattr(torch, name)(x.clamp(-0.9, 0.9)), name)
        for name in ("asin", "acos", "atanh", "tan", "log1p")
    },
    **{
        name: functools.partial(lambda name, x: getattr(torch, name)(x.abs() + 1.25), name) for name in ("acosh", "log2", "log10")
    },
    "logit": lambda x: torch.logit(x, 0.1),
    "roots": lambda x: (x.abs() + 0.5) ** 0.3,
    "remainder": lambda x: x % 0.7,
    "hundredths": lambda x: torch.round(x, decimals=2),
    "numbers_alone": lambda x: torch.nan_to_num(x),
    "is_positive": lambda x: x > 0,
    "is_finite": lambda x: torch.isfinite(x),
    "not": lambda x: torch.logical_not(x),
    "filled": lambda x: x.masked_fill(x < -0.5, 0.25),
    "shrunk": lambda x: F.softshrink(x, 0.25),
    "beyond": lambda x: F.threshold(x, 0.1, -1.0),
    "as_numbers": lambda x: x * 1.0,
    "log": lambda x: torch.log(x.abs() + 0.5),
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.5),
    "rsqrt": lambda x: torch.rsqrt(x.square() + 0.5),
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "clamp_min": lambda x: x.clamp_min(-0.25),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "scaled": lambda x: x * 0.3 + 1.5,
    "pow": lambda x: x**3,
    "in_place": lambda x: x.clone().mul_(2),
    "row_of_mask": lambda x: x + torch.arange(x.shape[-1], dtype=x.dtype),
    "tril": lambda x: x.tril(),
    "masked": lambda x: x.masked_fill(torch.arange(x.shape[-1]) % 2 == 0, 0.5),
}
BINARY: dict[str, Apply] = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "maximum", "minimum")},
    "div": lambda x, y: x / (y.abs() + 0.5),
    "mse": lambda x, y: F.mse_loss(x, y.expand_as(x), reduction="none"),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y.abs() + 0.5),
    **{name: getattr(torch, name) for name in ("atan2", "hypot", "logaddexp", "fmax", "fmin", "copysign")},
    **{name: getattr(torch, name) for name in ("gt", "le", "eq", "ne", "logical_and", "logical_or", "logical_xor")},
    "fmod": lambda x, y: torch.fmod(x, y.abs() + 0.5),
    "modulo": lambda x, y: torch.remainder(x, y.abs() + 0.5),
    "whole": lambda x, y: torch.div(x, y.abs() + 0.5, rounding_mode="floor"),
    "power": lambda x, y: (x.abs() + 0.5) ** y.clamp(-2, 2),
    "where": lambda x, y: torch.where(x > y, x, 0.5 * y),
    "chosen": lambda x, y: torch.where(y > 0, x, -x),
    "hidden": lambda x, y: torch.softmax(x.masked_fill(y < -1, -float("inf")), -1),
    "side_by_side": lambda x, y: torch.cat([x, y], -1),
    "below": lambda x, y: torch.cat([x, y], 0),
    "in_a_stack": lambda x, y: torch.stack(torch.broadcast_tensors(x, y), 0),  # type: ignore[no-untyped-call]  # torch's
}
ALONG: dict[str, Callable[[Tensor, int], Tensor]] = {
    **{name: functools.partial(lambda name, x, d: getattr(torch, name)(x, d), name) for name in ("softmax", "log_softmax")},
    **{name: functools.partial(lambda name, x, d: getattr(torch, name)(x, d), name) for name in ("cumsum", "logsumexp")},
    **{name: functools.partial(lambda name, x, d: getattr(torch, name)(x, d), name) for name in ("sum", "mean", "amax", "amin")},
    "sum_kept": lambda x, d: x.sum(d, keepdim=True),
    "mean_kept": lambda x, d: x.mean(d, keepdim=True),
    "max_kept": lambda x, d: x.amax(d, keepdim=True),
    "largest": lambda x, d: x.max(d).values,
    "variance": lambda x, d: x.var(d, unbiased=False),
    "norm": lambda x, d: torch.linalg.vector_norm(x, 2, d),
    "flip": lambda x, d: x.flip(d),
    "roll": lambda x, d: x.roll(1, d),
    "first": lambda x, d: x.select(d, 0),
    "tail": lambda x, d: x.narrow(d, x.shape[d] // 2, x.shape[d] - x.shape[d] // 2),
    "every_other": lambda x, d: x.index_select(d, torch.arange(0, x.shape[d], 2)),
    "twice": lambda x, d: torch.cat([x, -x], d),
    "stacked": lambda x, d: torch.stack([x, x * 2], d),
    "steps": lambda x, d: x[(*(slice(None),) * d, slice(1, None, 3))],
    "but_the_ends": lambda x, d: x.narrow(d, 1, x.shape[d] - 2),
    "parts_added": lambda x, d: sum(torch.unbind(x, d)[1:], x.select(d, 0)),
    "chunk_gated": lambda x, d: torch.chunk(x, 2, d)[0] * torch.sigmoid(torch.chunk(x, 2, d)[1]),
    "any": lambda x, d: (x > 1).any(d),
    "all": lambda x, d: (x > -1).all(d),
    "mean_of_those": lambda x, d: (x * (x > 0)).sum(d, keepdim=True) / (x > 0).sum(d, keepdim=True).clamp(min=1),
    "unsqueezed": lambda x, d: x.unsqueeze(d),
    "repeated": lambda x, d: x.repeat_interleave(2, d),
    "halves": lambda x, d: torch.cat(torch.split(x, (x.shape[d] + 1) // 2, d)[::-1], d),
    "sorted": lambda x, d: x.sort(d).values,
}
ROWS: dict[str, Apply] = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "transposed": lambda x: x.transpose(0, -1),
    "flattened": lambda x: x.reshape(-1, x.shape[-1]),
    "padded": lambda x: F.pad(x, (1, 2)),
    "gram": lambda x: x @ x.mT if x.dim() > 1 else x.outer(x),
    "glu": lambda x: F.glu(torch.cat([x, x * 0.5], -1)),
    "unfolded": lambda x: x.unfold(-1, 1, 1).squeeze(-1),
}


@dataclass(frozen=True)
class Step:
    """An operator applied to one or two of the tensors before it, along a dimension where it has one."""

    name: str
    apply: Callable[[Sequence[Tensor]], Tensor]
    text: str


@dataclass(frozen=True)
class Function:
    """A random function: the shapes of its inputs, its steps, and how many of the last tensors it returns."""

    shapes: tuple[Shape, ...]
    steps: tuple[Step, ...]
    returned: int
    dtype: torch.dtype
    layouts: tuple[str, ...]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The last tensors of the steps."""
        tensors = list(inputs)
        for step in self.steps:
            tensors.append(step.apply(tensors))
        return tuple(tensors[-self.returned :])

    def __str__(self) -> str:
        inputs = enumerate(zip(self.shapes, self.layouts, strict=True))
        lines = [f"t{number} = input {list(shape)} {layout}" for number, (shape, layout) in inputs]
        lines += [f"t{number} = {step.text}" for number, step in enumerate(self.steps, len(self.shapes))]
        return "\n".join([*lines, f"return the last {self.returned}, {self.dtype}"])

    def inputs(self, seed: int) -> list[Tensor]:
        """Standard normal numbers, laid out as the function wants them."""
        generator = torch.Generator().manual_seed(seed)
        return [_laid_out(shape, layout, generator, self.dtype) for shape, layout in zip(self.shapes, self.layouts, strict=True)]


def _laid_out(shape: Shape, layout: str, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    if layout == "transposed":
        return torch.randn(shape[::-1], generator=generator).to(dtype).permute(*reversed(range(len(shape))))
    if layout == "strided":
        return torch.randn((*shape[:-1], 2 * shape[-1]), generator=generator).to(dtype)[..., ::2]
    if layout == "expanded":
        return torch.randn((1, *shape[1:]), generator=generator).to(dtype).expand(shape)
    return torch.randn(shape, generator=generator).to(dtype)


def drawn(number: int) -> Function:
    """The function of that number."""
    rng = random.Random(number)
    rank = rng.choice((1, 2, 2, 2, 3, 3))
    shape = tuple(0 if rng.random() < 0.01 else rng.choice(SIZES) for _ in range(rank))
    shapes = [shape, *(_like(shape, rng) for _ in range(rng.randrange(3)))]
    if rng.random() < 0.6:
        shapes.append((shape[-1], rng.choice(SIZES)))
    dtype = torch.bfloat16 if rng.random() < 0.1 else torch.float32
    layouts = tuple(rng.choice(("contiguous", "contiguous", "transposed", "strided", "expanded")) for _ in shapes)
    values = [torch.zeros(each, dtype=dtype) for each in shapes]
    steps: list[Step] = []
    for _ in range(60):
        if len(steps) == 3 + number % 6:
            break
        step = _step(rng, len(values), [value.dim() for value in values])
        try:
            value = step.apply(values)
        except (RuntimeError, IndexError, ValueError):  # of these shapes there is no such call
            continue
        if value.numel() <= MOST_ELEMENTS and value.dim() <= 4:
            values.append(value)
            steps.append(step)
    return Function(tuple(shapes), tuple(steps), min(rng.choice((1, 1, 2)), len(steps)), dtype, layouts)


def _like(shape: Shape, rng: random.Random) -> Shape:
    """A shape that broadcasts with another one."""
    begin = rng.randrange(len(shape))
    return tuple(1 if rng.random() < 0.3 else size for size in shape[begin:])


def _step(rng: random.Random, count: int, ranks: Sequence[int]) -> Step:
    x = rng.choice((count - 1, count - 1, rng.randrange(count)))
    y = rng.randrange(count)
    kind = rng.choice(("unary", "unary", "binary", "along", "along", "rows", "product"))
    if kind == "unary":
        name = rng.choice(sorted(UNARY))
        return Step(name, lambda tensors: UNARY[name](tensors[x]), f"{name}(t{x})")
    if kind == "binary":
        name = rng.choice(sorted(BINARY))
        return Step(name, lambda tensors: BINARY[name](tensors[x], tensors[y]), f"{name}(t{x}, t{y})")
    if kind == "along":
        name, dim = rng.choice(sorted(ALONG)), rng.randrange(max(ranks[x], 1))
        return Step(name, lambda tensors: ALONG[name](tensors[x], dim), f"{name}(t{x}, {dim})")
    if kind == "rows":
        name = rng.choice(sorted(ROWS))
        return Step(name, lambda tensors: ROWS[name](tensors[x]), f"{name}(t{x})")
    return Step("matmul", lambda tensors: tensors[x] @ tensors[y], f"t{x} @ t{y}")


def outcome(number: int) -> Record:
    """What became of a function."""
    torch.manual_seed(number)
    function = drawn(number)
    with torch.no_grad():
        try:
            function(*function.inputs(1))
        except RuntimeError as error:
            return {"outcome": "not run by PyTorch", "why": str(error).splitlines()[0]}
        try:
            opt = mugraph.superoptimize(function, function.inputs(1), budget=BUDGET, profile=False, cache="off", seed=number)
        except mugraph.MugraphError as error:
            return {"outcome": "refused", "why": f"{type(error).__name__}: {error}"}
        except Exception as error:
            return {"outcome": "crashed", "why": f"optimizing: {error!r}"}
        told = {"found": opt.found, "one_program": opt.is_one_program, "programs": len(opt.results)}
        try:
            return told | _compared(function, opt, function.inputs(2)) | _specials(function, opt, function.inputs(3))
        except Exception as error:
            return told | {"outcome": "crashed", "why": f"calling: {error!r}"}


def _compared(function: Function, opt: Callable[..., Any], inputs: Sequence[Tensor]) -> Record:
    wide = [tensor.double() for tensor in inputs]
    given, own = opt(*inputs), function(*inputs)
    try:
        exact = [tensor.double() for tensor in function(*wide)]
    except RuntimeError as error:  # numbers made of booleans are of float32, with which float64 is not multiplied
        return {"outcome": "no reference", "why": str(error)}
    for ours, theirs in zip(given, own, strict=True):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return {"outcome": "wrong", "why": f"{ours.dtype} {list(ours.shape)} for {theirs.dtype} {list(theirs.shape)}"}
    nowhere = [torch.zeros(tensor.shape, dtype=torch.bool) for tensor in exact]
    found = _judged(function.dtype, given, own, exact, nowhere)
    if found["outcome"] == "right":
        return found
    doubtful = _doubtful(function, wide, exact)
    again = _judged(function.dtype, given, own, exact, doubtful)
    return again | {"in_doubt": sum(int(tensor.sum()) for tensor in doubtful)} if again["outcome"] == "right" else found


def _judged(
    dtype: torch.dtype, given: Sequence[Tensor], own: Sequence[Tensor], exact: Sequence[Tensor], doubtful: Sequence[Tensor]
) -> Record:
    """What results are, apart from doubtful elements, of which there may be no more than others."""
    worst, allowed = 0.0, ROUNDING[dtype]
    errors = []
    for ours, theirs, right, doubt in zip(given, own, exact, doubtful, strict=True):
        asked = ~doubt
        if 2 * int(asked.sum()) < asked.numel() or not _same_specials(ours[asked], theirs[asked]):
            return {"outcome": "wrong", "why": "infinities or NaN where the function has none, or the other way round"}
        finite = asked & theirs.isfinite() & right.isfinite()
        if not bool(finite.any()):
            continue
        largest = float(right[finite].abs().max()) or 1.0
        worst = max(worst, float((ours.double() - right)[finite].abs().max()) / largest)
        errors.append(float((theirs.double() - right)[finite].abs().max()) / largest)
    error = max(errors, default=0.0)
    return {"outcome": "right" if worst <= max(ERRORS * error, allowed) else "wrong", "error": worst, "function_error": error}


def _doubtful(function: Function, inputs: Sequence[Tensor], exact: Sequence[Tensor]) -> list[Tensor]:
    """Where results jump if what a step gives moves by a few roundings: comparisons and whole parts may fall out either way.

    What the function's type holds exactly does not move.
    """
    found = [torch.zeros(tensor.shape, dtype=torch.bool) for tensor in exact]
    for seed in range(SHAKEN):
        generator = torch.Generator().manual_seed(seed)
        tensors = list(inputs)
        for step in function.steps:
            tensors.append(_shaken(step.apply(tensors), function.dtype, generator))
        for tensor, right, doubt in zip(tensors[-function.returned :], exact, found, strict=True):
            moved = tensor.double()
            largest = float(right[right.isfinite()].abs().max()) if bool(right.isfinite().any()) else 1.0
            near = (moved - right).abs() <= JUMP[function.dtype] * largest
            doubt |= ~(near | (moved == right) | (moved.isnan() & right.isnan()))
    return found


def _shaken(tensor: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point() or torch.equal(tensor.to(dtype).double().nan_to_num(), tensor.double().nan_to_num()):
        return tensor
    finite = tensor.isfinite()
    largest = float(tensor[finite].abs().max()) if bool(finite.any()) else 0.0
    off = 2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1
    return tensor + off * (ROUNDINGS * torch.finfo(dtype).eps * largest)


def _same_specials(ours: Tensor, theirs: Tensor) -> bool:
    """Whether both have infinities of each sign, and NaN, in the same places."""
    return all(torch.equal(kind(ours), kind(theirs)) for kind in (torch.isnan, torch.isposinf, torch.isneginf))


def _specials(function: Function, opt: Callable[..., Any], inputs: list[Tensor]) -> Record:
    """Whether infinities and NaN of the inputs are where the function has them."""
    if not inputs[0].numel():
        return {}
    inputs[0][(0,) * inputs[0].dim()] = (float("inf"), float("-inf"), float("nan"))[len(function.steps) % 3]
    for ours, theirs in zip(opt(*inputs), function(*inputs), strict=True):
        if not _same_specials(ours, theirs):
            return {"specials": "differ"}
    return {"specials": "alike"}


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """What the records say together."""
    return {
        "functions": len(found),
        "outcomes": dict(Counter(entry["outcome"] for entry in found)),
        "with_kernels": sum(bool(entry.get("found")) for entry in found),
        "no_programs_as_a_whole": sum(entry.get("one_program") is False for entry in found),
        "elements_that_rounding_decides": sum(entry.get("in_doubt", 0) for entry in found),
        "infinities_and_nan": dict(Counter(entry["specials"] for entry in found if "specials" in entry)),
        "wrong": [entry["number"] for entry in found if entry["outcome"] in ("wrong", "crashed")],
        "refused": dict(Counter(entry["why"].partition(":")[0] for entry in found if entry["outcome"] == "refused")),
    }


def main() -> None:
    """Make the records, print the summary; the exit code is 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first function")
    parser.add_argument("--only", type=int, help="one function, printed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--record", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only is not None:
        print(drawn(options.only))
        print(json.dumps(outcome(options.only), indent=1))
        return
    cases = [{"number": number} for number in range(options.first, options.first + options.count)]
    found = records(cases, outcome, options.record, summary, options.jobs)
    said = summary(found)
    print(json.dumps(said, indent=1))
    sys.exit(1 if said["wrong"] else 0)


if __name__ == "__main__":
    main()
